"""Sums over the taps of a window alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.golden.test_golden import TARGET
from tests.kernels import adjoint, load, mul, numpy_adjoint, store, total
from tests.roles import copied, copies, of_kind, parts, the_output, the_reduce

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import interpret
from ferrule.codegen.kernel import Kernel, Kind
from ferrule.codegen.linearizer import Linearizer, linearize
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import step_of
from ferrule.codegen.uops import UOps
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.ops import LazyOp

WITH_MASKS = replace(TARGET, features="+avx512bw,+avx512f,+fma")


def scheduled(ast: LazyOp, target: Target = TARGET) -> Kernel:
    return schedule(lower(store(ast), "k"), target).kernel


def windows(size: tuple[int, int], taps: int, stride: int = 1) -> LazyOp:
    """(2, 3, *places, taps, taps) of an image with a border that leaves it its size."""
    border = (taps // 2, taps // 2)
    x = load(1, 2, 3, *size).pad(((0, 0), (0, 0), border, border))
    return x.window(2, taps, stride).window(3, taps, stride)


def filtered(x: LazyOp) -> LazyOp:
    return total(mul(x, load(2, 1, 3, 1, 1, *x.shape[4:]).expand(x.shape)), 4, 5)


def gradient_of_taps(x: LazyOp) -> LazyOp:
    return total(mul(x, load(2, *x.shape[:4], 1, 1).expand(x.shape)), 0, 2, 3)


@pytest.mark.parametrize("of", [filtered, gradient_of_taps])
def test_loads_under_masks_need_no_copy_with_a_border(of: Callable[[LazyOp], LazyOp]) -> None:
    """Without masks, or where lanes are no neighbours, they do."""
    assert not copies(scheduled(of(windows((28, 28), 3)), WITH_MASKS))
    assert copies(scheduled(of(windows((28, 28), 3))))
    assert copies(scheduled(filtered(windows((28, 28), 3, 2)), WITH_MASKS))


def test_masks_of_many_sums_do_not_fit_their_registers() -> None:
    assert copies(scheduled(gradient_of_taps(windows((28, 28), 5)), WITH_MASKS))
    assert not copies(scheduled(filtered(windows((28, 28), 5)), WITH_MASKS))


@pytest.mark.parametrize("size", [(5, 7), (9, 18), (11, 35), (1, 20)])
@pytest.mark.parametrize("of", [filtered, gradient_of_taps])
def test_what_is_read_under_masks(of: Callable[[LazyOp], LazyOp], size: tuple[int, int]) -> None:
    """Lines and lanes that leave some over."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 3, *size)).astype(np.float32)
    other = generator.standard_normal((3, 3, 3) if of is filtered else x.shape).astype(np.float32)
    seen = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3)
    )
    form = "ncyxkl,ckl->ncyx" if of is filtered else "ncyxkl,ncyx->ckl"
    expected = np.einsum(form, seen, other)
    linearizer = Linearizer(store(of(windows(size, 3))), WITH_MASKS).linearize()
    assert not copies(linearizer.scheduled)
    out = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, x.ravel(), other.ravel()])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding"), [(7, 5, 2, 2), (28, 3, 2, 1), (40, 5, 3, 0)]
)
def test_lines_of_all_phases_of_a_strided_adjoint_leave_whole(
    size: int, taps: int, stride: int, padding: int
) -> None:
    """Their lanes are neighbours, and those of the sums too; what they load is copied once."""
    g, w = load(1, 8, 6, size, size), load(2, 1, 6, taps, taps)
    value = adjoint(g, w, stride, padding)
    kernel = scheduled(value)
    assert [copied(nest) for nest in kernel.nests] == [1, None, None]
    nests = the_output(kernel), the_reduce(kernel)
    (out_lane,), (lane,) = ([o.range for o in of_kind(n, Kind.VECTOR)] for n in nests)
    (stored,), (summed,) = (nest.computes for nest in nests)
    assert stored.store is not None
    assert step_of(stored.store.index, out_lane) == 1
    assert summed.ranges[-1] is lane
    loops = the_output(lower(store(value), "k")).loops
    phases = [loop.range for loop in loops if loop.size == stride]  # of lines and of columns
    found = [loop.kind for r in phases for loop in parts(the_reduce(kernel), r)]
    assert found == [Kind.UNROLL] * 2


@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding"),
    [(7, 5, 2, 2), (17, 3, 2, 1), (5, 4, 2, 1), (6, 4, 3, 0), (9, 7, 4, 3), (9, 9, 3, 1)],
)
@pytest.mark.parametrize("target", [TARGET, WITH_MASKS])
def test_strided_adjoints_in_phases(
    size: int, taps: int, stride: int, padding: int, target: Target
) -> None:
    generator = np.random.default_rng(0)
    g = generator.standard_normal((1, 2, size, size)).astype(np.float32)
    w = generator.standard_normal((1, 2, taps, taps)).astype(np.float32)
    expected = numpy_adjoint(g, w, stride, padding)
    ast = store(adjoint(load(1, *g.shape), load(2, *w.shape), stride, padding))
    linearizer = Linearizer(ast, target).linearize()
    assert bool(copies(linearizer.scheduled)) == (target is TARGET)
    out = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, g.ravel(), w.ravel()])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


def test_lines_of_two_phases_are_shuffled_together() -> None:
    """They leave scratch as the vectors that were put there, not lane by lane."""
    ast = store(adjoint(load(1, 8, 6, 28, 28), load(2, 1, 6, 3, 3), 2, 1))
    finite = replace(Linearizer(ast, TARGET).scheduled, guard=None)
    uops = linearize(finite, TARGET)
    assert all(u.src[1].lanes == 1 for u in uops if u.op is UOps.LOAD and u.lanes > 1)
    assert any(u.op is UOps.SHUFFLE for u in uops)


@pytest.mark.parametrize(
    ("lines", "together"), [(5, 5), (7, 7), (8, 8), (14, 7), (15, 5), (28, 4), (56, 4), (31, 4)]
)
def test_lines_at_a_time_leave_few_beyond_the_last(lines: int, together: int) -> None:
    """One line alone has too few sums that do not wait for one another."""
    full = (2, 6, lines, lines, 3, 3)
    x = load(1, 2, 6, lines, lines).pad(((0, 0), (0, 0), (1, 1), (1, 1)))
    right = load(2, 1, 6, 1, 1, 3, 3).expand(full)
    value = total(mul(x.window(2, 3).window(3, 3), right), 4, 5)
    kernel = scheduled(value)
    of_lines = the_output(lower(store(value), "k")).loops[2].range
    rows = parts(the_reduce(kernel), of_lines)
    assert [loop.size for loop in rows if loop.kind is Kind.UNROLL] == [together]


def test_phases_are_more_than_registers_hold() -> None:
    """64 phases of a place would each need a vector of sums."""
    g, w = load(1, 8, 6, 9, 9), load(2, 1, 6, 17, 17)
    assert not copies(scheduled(adjoint(g, w, 8, 0)))


def test_several_results_for_each_channel_are_no_phases() -> None:
    """Two filters for each channel: their results are further apart than places are."""
    x = load(1, 2, 6, 1, 20, 20).window(3, 3).window(4, 3)
    full = (2, 6, 2, 18, 18, 3, 3)
    left = x.reshape((2, 6, 1, 18, 18, 3, 3)).expand(full)
    right = load(2, 1, 6, 2, 1, 1, 3, 3).expand(full)
    kernel = scheduled(total(mul(left, right), 5, 6))
    assert the_reduce(kernel)
    assert not copies(kernel)


def channels_last(size: tuple[int, int], channels: int, taps: int) -> LazyOp:
    """Images (2, *size, channels), filtered by (channels, taps, taps)."""
    border = (taps // 2, taps // 2)
    x = load(1, 2, *size, channels).permute((0, 3, 1, 2)).pad(((0, 0), (0, 0), border, border))
    x = x.window(2, taps).window(3, taps)
    return total(mul(x, load(2, 1, channels, 1, 1, taps, taps).expand(x.shape)), 4, 5)


def test_images_with_channels_last_are_copied_transposed() -> None:
    """Their lines would be gathered element by element, seven times each."""
    kernel = scheduled(channels_last((24, 24), 48, 7), WITH_MASKS)
    (copy,) = copies(kernel)
    *_, transposed, lane = copy.loops
    assert transposed.kind is Kind.TRANSPOSE
    (element,) = (e for e in copy.nodes if e.op is ExprOp.LOAD)
    assert step_of(element.src[0], transposed.range) == 1 < step_of(element.src[0], lane.range)


@pytest.mark.parametrize(
    ("size", "channels", "taps"), [((24, 24), 40, 7), ((5, 17), 16, 3), ((9, 6), 21, 5)]
)
@pytest.mark.parametrize("target", [TARGET, WITH_MASKS])
def test_what_is_copied_transposed(
    size: tuple[int, int], channels: int, taps: int, target: Target
) -> None:
    """Lines, lanes and channels that leave some over."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, *size, channels)).astype(np.float32)
    w = generator.standard_normal((channels, taps, taps)).astype(np.float32)
    border = (taps // 2, taps // 2)
    padded = np.pad(x, [(0, 0), border, border, (0, 0)])
    seen = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (1, 2))
    expected = np.einsum("nyxckl,ckl->ncyx", seen, w)
    linearizer = Linearizer(store(channels_last(size, channels, taps)), target).linearize()
    assert copies(linearizer.scheduled)
    out = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [out, x.ravel(), w.ravel()])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
