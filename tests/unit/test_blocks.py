"""Contractions whose operands are copied block by block: how often, and how much at a time."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from tests.golden.test_golden import TARGET
from tests.kernels import (
    add,
    adjoint,
    convolution,
    load,
    mul,
    numpy_adjoint,
    numpy_convolution,
    store,
    total,
)
from tests.roles import copied, copies, the_copy, the_output, the_reduce

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import Kernel
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import MAX_SCRATCH_BYTES, step_of
from ferrule.codegen.uops import UOps
from ferrule.ops import LazyOp


def scheduled(ast: LazyOp) -> Kernel:
    return schedule(lower(store(ast), "k"), TARGET).kernel


def runs(kernel: Kernel, slot: int) -> int:
    """How often a copy of what is in a buffer is made."""
    nest = the_copy(kernel, slot)
    around = [loop.range for name, _, loop in kernel.path(nest) if name != nest.name]
    return prod(int(r.size.arg) for r in around)


@pytest.mark.parametrize("filters", [512, 1024])
def test_panels_of_many_channels_are_narrow_enough_for_scratch(filters: int) -> None:
    """4 places in a line want wide tiles: their filters would be 4 MB, and more."""
    g, w = load(1, 16, filters, 4, 4), load(2, filters, 256, 4, 4)
    kernel = scheduled(adjoint(g, w, 2, 1))
    assert [copied(nest) for nest in kernel.nests] == [2, None, None]
    filter_bytes = 4 * kernel.memory[the_copy(kernel, 2).name][1]
    assert filter_bytes <= MAX_SCRATCH_BYTES * 3 // 4


def test_filters_are_copied_for_all_images_where_phases_are_panels_enough() -> None:
    """Two panels of 32 of 64 channels, each for two phases of lines: work for two threads."""
    g, w = load(1, 8, 128, 8, 8), load(2, 128, 64, 4, 4)
    kernel = scheduled(adjoint(g, w, 2, 1))
    assert runs(kernel, 2) == 4


def test_filters_are_copied_for_groups_of_images_where_panels_are_few() -> None:
    """Of 64 filters two threads get two panels each, for a half of the images."""
    kernel = scheduled(convolution(load(1, 8, 64, 7, 7), load(2, 64, 64, 3, 3)))
    assert runs(kernel, 2) == 4


def test_images_are_read_where_they_are() -> None:
    """Of a tile's 14 places the first and the last may be beyond the border, and ask."""
    ast = store(convolution(load(1, 8, 64, 56, 56), load(2, 64, 64, 3, 3)))
    linearizer = Linearizer(ast, TARGET).linearize()
    assert [copied(nest) for nest in linearizer.scheduled.nests] == [2, None, None]
    assert the_reduce(linearizer.scheduled).ahead == ((1, 56),)
    loaded = [u for u in linearizer.uops if u.op is UOps.LOAD and u.src[0].arg == 1]
    masked = [u for u in loaded if len(u.src) == 3]
    assert len(loaded) == 7 * len(masked) > 0


def test_images_whose_channels_share_sets_of_the_cache_are_copied_once() -> None:
    """Their filters, which are small, are copied for each block of lines."""
    kernel = scheduled(convolution(load(1, 8, 128, 64, 64), load(2, 64, 128, 3, 3)))
    assert runs(kernel, 2) == 2 * runs(kernel, 1)


def test_images_of_three_dimensions_are_copied() -> None:
    x, w = load(1, 1, 4, 6, 6, 28), load(2, 32, 4, 3, 3, 3)
    windows = x.window(2, 3).window(3, 3).window(4, 3)
    full = (1, 32, 4, 4, 4, 26, 3, 3, 3)
    left = windows.reshape((1, 1, *full[2:])).expand(full)
    right = w.reshape((1, 32, 4, 1, 1, 1, 3, 3, 3)).expand(full)
    assert copies(scheduled(total(mul(left, right), 2, 6, 7, 8)), 1)


def test_images_are_copied_for_taps_that_reach_far_beyond_the_border() -> None:
    g, w = load(1, 2, 64, 40, 40), load(2, 64, 64, 5, 5)
    assert copies(scheduled(adjoint(g, w, 1, 2)), 1)
    assert not copies(scheduled(adjoint(g, load(2, 64, 64, 3, 3), 1, 1)), 1)


@pytest.mark.parametrize("images", [7, 8])
@pytest.mark.parametrize("strided", [False, True])
def test_groups_of_images(images: int, strided: bool) -> None:
    """Also where the last group has fewer."""
    x, w = ((images, 5, 6, 6), (5, 20, 4, 4)) if strided else ((images, 4, 7, 7), (20, 4, 3, 3))
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape).astype(np.float32) for shape in (x, w)]
    build, expected = (
        (adjoint(load(1, *x), load(2, *w), 2, 1), numpy_adjoint(*inputs, 2, 1))
        if strided
        else (convolution(load(1, *x), load(2, *w)), numpy_convolution(*inputs))
    )
    linearizer = Linearizer(store(build), TARGET).linearize()
    kernel = linearizer.scheduled
    _, depth = the_copy(kernel, 2).at or ("", 0)
    of_images = the_output(linearizer.kernel).loops[0].range
    assert any(of_images in loop.lineage for loop in the_output(kernel).loops[depth:])
    out = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, *(i.ravel() for i in inputs)])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("filters", "taps"), [(40, 16), (600, 4)])
def test_an_image_made_of_patches(filters: int, taps: int) -> None:
    """The filters' lines are copied together if that fits the cache, the image is read where it is,
    and no result is scattered.
    """
    kernel = scheduled(adjoint(load(1, 2, filters, 8, 8), load(2, filters, 24, 4, 4), 4, 0))
    assert sorted(copied(nest) or 0 for nest in kernel.nests) == [0, 0, 2]
    # 24 channels, a tile of 32
    assert kernel.memory[the_copy(kernel, 2).name][1] == filters * taps * 32
    (index,) = {c.store.index for c in the_output(kernel).computes if c.store is not None}
    assert step_of(index, the_output(kernel).loops[-1].range) == 1


@pytest.mark.parametrize("shape", [(2, 17, 3, 5), (1, 16, 1, 7)])
def test_patches_of_any_size(shape: tuple[int, int, int, int]) -> None:
    batch, filters, out, channels = shape
    generator = np.random.default_rng(0)
    g = generator.standard_normal((batch, filters, out, out)).astype(np.float32)
    w = generator.standard_normal((filters, channels, 3, 3)).astype(np.float32)
    linearizer = Linearizer(store(adjoint(load(1, *g.shape), load(2, *w.shape), 3, 0)), TARGET)
    expected = numpy_adjoint(g, w, 3, 0)
    found = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.linearize().uops, [found, g.ravel(), w.ravel()])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


LINES = {
    ("out0",): "contraction",
    ("out0", "contraction", "form"): "in registers",
    ("out0", "contraction", "form", "in registers", "lanes"): "lines",
}
"""The form of a contraction whose places are in lines, with lanes along the filters."""


def pointwise(x: LazyOp, w: LazyOp, added: LazyOp) -> LazyOp:
    """1 x 1 on (batch, channels, places), and a value that is added to the result."""
    batch, channels, places = x.shape
    full = (batch, w.shape[0], channels, places)
    left = x.reshape((batch, 1, channels, places)).expand(full)
    right = w.reshape((1, w.shape[0], channels, 1)).expand(full)
    return add(total(mul(left, right), 2).reshape((batch, w.shape[0], places)), added)


def test_places_that_fill_no_vectors_are_rows_of_lanes_along_the_filters() -> None:
    """Results leave transposed, so that what is added and what is stored are vectors of places."""
    x, w, added = load(1, 1, 256, 14 * 14), load(2, 1024, 256), load(3, 1, 1024, 14 * 14)
    kernel = scheduled(pointwise(x, w, added))
    assert [copied(nest) for nest in kernel.nests] == [2, None, None]
    (index,) = {c.store.index for c in the_output(kernel).computes if c.store is not None}
    assert step_of(index, the_output(kernel).loops[-1].range) == 1


@pytest.mark.parametrize(
    ("places", "channels", "filters"), [(196, 16, 40), (49, 20, 33), (225, 17, 16), (130, 16, 70)]
)
def test_places_in_lines(places: int, channels: int, filters: int) -> None:
    """Also where the last line, tile and panel have fewer."""
    generator = np.random.default_rng(0)
    shapes = [(2, channels, places), (filters, channels), (2, filters, places)]
    x, w, added = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    ast = store(pointwise(*(load(slot + 1, *shape) for slot, shape in enumerate(shapes))))
    plan = schedule(lower(ast, "k"), TARGET, wanted=LINES)
    assert any(c.path[-1] == "lines" and c.is_taken for c in plan.candidates)
    linearizer = Linearizer(ast, TARGET, plan.opts).linearize()
    found = np.full(added.size, np.nan, np.float32)
    interpret(linearizer.uops, [found, x.ravel(), w.ravel(), added.ravel()])
    np.testing.assert_allclose(found.reshape(added.shape), w @ x + added, rtol=1e-4, atol=1e-4)


def test_every_second_place_of_a_line_is_read_where_it_is() -> None:
    x, w = load(1, 1, 256, 56, 56), load(2, 512, 256)
    every = x.stride((1, 1, 2, 2))
    full = (1, 512, 256, 28, 28)
    left, right = every.reshape((1, 1, 256, 28, 28)), w.reshape((1, 512, 256, 1, 1))
    kernel = scheduled(total(mul(left.expand(full), right.expand(full)), 2))
    assert not copies(kernel, 1)
