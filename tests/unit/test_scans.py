"""Running totals: how they are recognised, scheduled, cut, and how exact they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
from tests.kernels import CASES, Case, load, padded, reduce, running, store, total
from tests.programs import HOST
from tests.roles import the_output, the_reduce

from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.kernel import Kind
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.primitives.scans import scanned
from ferrule.dtype import dtypes
from ferrule.fusion.graph import toposort
from ferrule.helpers import GlobalCounters
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import running_axis
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ops import (
    BufferOps,
    ConstBuffer,
    LazyOp,
    MemBuffer,
    MovementOps,
    ReduceOps,
    TernaryOps,
)
from ferrule.schedule import create_schedule
from ferrule.tensor import Tensor

WIDE = replace(HOST, vector_bytes=64, n_vector_registers=32)
SHAPE = ShapeTracker.from_shape((30,))
RUNNING = [case for case in CASES if case.name.startswith("running")]


def sums(rows: int, columns: int, axis: int) -> LazyOp:
    return store(running(ReduceOps.SUM, load(1, rows, columns), axis, 0))


@pytest.mark.parametrize("case", RUNNING, ids=lambda case: case.name)
def test_each_is_one_loop(case: Case) -> None:
    """None goes through what is before each element again."""
    names = [opt.primitive for opt in Linearizer(case.ast, WIDE).opts]
    assert "scan" in names


@pytest.mark.parametrize("shape", [(1, 5), (3, 16), (2, 17), (5, 1000), (70, 3)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_every_length_and_lane(shape: tuple[int, int], axis: int, lanes: int) -> None:
    ast = sums(*shape, axis)
    uops = Linearizer(ast, replace(HOST, vector_bytes=4 * lanes)).linearize().uops
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    out = np.full(x.size, np.nan, np.float32)
    interpret(uops, [out, x.ravel()], [], 0, extent(uops, []))
    np.testing.assert_array_equal(out.reshape(shape), np.cumsum(x, axis))


def test_lanes_go_along_columns_where_these_are_contiguous() -> None:
    kernel = Linearizer(sums(40, 64, 0), WIDE).scheduled
    kinds = [loop.kind for loop in the_reduce(kernel).loops]
    assert kinds == [Kind.UNROLL, Kind.VECTOR]
    assert the_reduce(kernel).computes[0].scan_lanes is None
    kernel = Linearizer(sums(64, 40, 1), WIDE).scheduled
    assert [loop.kind for loop in the_reduce(kernel).loops] == [Kind.VECTOR]
    assert the_reduce(kernel).computes[0].scan_lanes is not None


Value: TypeAlias = "LazyOp | LazyBuffer"


def windows(x: Value, before: int, behind: int, *window: int) -> Value:
    """Windows along the first of two axes, with padding at its ends."""
    return x.pad(((before, behind), (0, 0))).window(0, *window)


def summed(x: Value, *axes: int) -> Value:
    if isinstance(x, LazyBuffer):
        return x.r(ReduceOps.SUM, axes)
    return reduce(ReduceOps.SUM, x, *axes)


def filled(x: Value, before: int) -> Value:
    """Padded with -1."""
    pad = ((before, 0), (0, 0))
    if isinstance(x, LazyOp):
        return padded(x, pad, -1)
    inside = LazyBuffer.const(True, dtypes.bool, x.shape, x.device).pad(pad)
    wide = x.pad(pad)
    number = LazyBuffer.const(-1, x.dtype, wide.shape, x.device)
    return inside.e(TernaryOps.WHERE, wide, number)


TOTALS: dict[str, tuple[Callable[[Value], Value], int | None]] = {
    "rows": (lambda x: summed(windows(x, 9, 0, 10), 2), 0),
    "columns": (lambda x: summed(x.pad(((0, 0), (2, 0))).window(1, 3), 2), 1),
    "behind other numbers": (lambda x: summed(filled(x, 9).window(0, 10), 2), 0),
    "zeros at the end": (lambda x: summed(windows(x.shrink(((0, 6), (0, 3))), 9, 4, 10), 2), 0),
    "of no padding": (lambda x: summed(x.shrink(((0, 9), (0, 3))).window(0, 5), 2), None),
    "of shorter windows": (lambda x: summed(windows(x, 4, 0, 5), 2), None),
    "of longer windows": (lambda x: summed(windows(x, 10, 0, 11), 2), None),
    "of what is around": (lambda x: summed(windows(x, 5, 4, 10), 2), None),
    "of what is behind": (lambda x: summed(windows(x, 0, 9, 10), 2), None),
    "every second": (lambda x: summed(windows(x, 9, 9, 10, 2), 2), None),
    "of every second": (lambda x: summed(windows(x, 9, 9, 10, 1, 2), 2), None),
    "over windows": (lambda x: summed(windows(x, 9, 0, 10), 0), None),
    "of both axes": (lambda x: summed(windows(x, 9, 0, 10), 1, 2), None),
    "of one element": (lambda x: summed(x.shrink(((0, 1), (0, 3))).window(0, 1), 2), None),
}


@pytest.mark.parametrize("name", TOTALS)
def test_trees_and_graphs_are_described_alike(name: str) -> None:
    make, axis = TOTALS[name]
    assert running_axis(make(LazyBuffer.empty((10, 3), dtypes.float32, "NUMPY"))) == axis
    assert running_axis(make(load(1, 10, 3))) == axis


@pytest.mark.parametrize("name", ["rows", "columns", "zeros at the end"])
def test_kernels_run_where_trees_do(name: str) -> None:
    """The cost of a running total is what its schedule makes true."""
    make, _ = TOTALS[name]
    kernel = lower(store(make(load(1, 10, 3))), "k")
    loops = the_output(kernel).loops
    assert any(scanned(the_reduce(kernel), loop.range) is not None for loop in loops)


@pytest.mark.parametrize("method", ["cumsum", "cumprod", "cummax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_those_of_tensors_are_recognised(method: str, axis: int) -> None:
    x = Tensor(np.ones((20, 30), np.float32)).realize()
    result = getattr(x, method)(axis)
    values = result.values if method == "cummax" else result
    found = {running_axis(node) for node in toposort([values.lazydata])}
    assert found == {None, 1}  # the axis is the last while it is scanned
    (item,) = create_schedule([values.lazydata])
    assert {running_axis(node) for node in item.ast.toposort()} == {None, 1}


def test_scatters_are_no_running_totals() -> None:
    values = LazyBuffer.empty((10, 3), dtypes.float32, "NUMPY").pad(((9, 0), (0, 0))).window(0, 10)
    index = LazyBuffer.empty(values.shape, dtypes.int32, "NUMPY")
    assert running_axis(values.scatter(index, 2, 1)) is None


def test_a_view_may_have_the_padding() -> None:
    before = ((9, 0), (0, 0))
    view = ShapeTracker.from_shape((10, 3)).pad(before)
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, view))
    assert running_axis(summed(x.window(0, 10), 2)) == 0
    behind = replace(x.arg, st=ShapeTracker.from_shape((10, 3)).pad(((0, 9), (0, 0))))
    x = LazyOp(BufferOps.LOAD, (), behind)
    assert running_axis(summed(x.window(0, 10), 2)) is None


def test_only_whole_prefixes_run() -> None:
    x = load(1, 30)
    shorter = total(x.pad(((9, 0),)).window(0, 10), 1).reshape((30,))
    centred = total(x.pad(((15, 14),)).window(0, 30), 1).reshape((30,))
    for value in (shorter, centred):
        kernel = lower(store(value), "k")
        root, nest = the_output(kernel), the_reduce(kernel)
        assert scanned(nest, root.loops[0].range) is None
        with pytest.raises(ScheduleError, match="begins before the first"):
            apply_opts(kernel, [Opt("scan", (nest.name, root.loops[0].range.name))])


def test_what_is_padded_with_another_number_is_no_running_sum() -> None:
    kernel = lower(store(running(ReduceOps.SUM, load(1, 30), 0, 1)), "k")
    assert scanned(the_reduce(kernel), the_output(kernel).loops[0].range) is None


def test_lanes_need_something_that_is_carried() -> None:
    kernel = lower(sums(3, 30, 1), "k")
    with pytest.raises(ScheduleError, match="the loop that it hangs in does not carry it alone"):
        apply_opts(kernel, [Opt("prefix", (the_reduce(kernel).name, 16))])
    along = the_output(kernel).loops[1].range.name
    scan = Opt("scan", (the_reduce(kernel).name, along))
    with pytest.raises(ScheduleError, match="no power of two"):
        apply_opts(kernel, [scan, Opt("prefix", (the_reduce(kernel).name, 12))])
    with pytest.raises(ScheduleError, match="carries"):
        apply_opts(kernel, [scan, Opt("vectorize", (the_output(kernel).name, along))])


def test_what_is_summed_and_what_follows_are_in_one_kernel() -> None:
    x = Tensor(np.ones((50, 300), np.float32)).realize()
    y = Tensor(np.ones((50, 300), np.float32)).realize()
    GlobalCounters.reset()
    result = ((x * y).cumsum(1) * 2 + y).realize()
    assert GlobalCounters.kernel_count == 1
    np.testing.assert_array_equal(result.numpy()[7], 2 * np.arange(1, 301) + 1)


@pytest.mark.parametrize("shape", [(600,), (3, 600), (600, 3), (600, 64), (64, 40)])
def test_totals_of_ones(shape: tuple[int, ...]) -> None:
    """All terms are the same: none varies with a lane."""
    for axis in range(len(shape)):
        expected = np.cumsum(np.ones(shape, np.float32), axis)
        np.testing.assert_array_equal(Tensor.ones(*shape).cumsum(axis).numpy(), expected)
        x = Tensor(expected, requires_grad=True)
        x.cumsum(axis).sum().backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), np.flip(expected, axis))
    row = Tensor(np.arange(shape[0], dtype=np.float32).reshape(-1, *[1] * (len(shape) - 1)))
    found = row.expand(*shape).cumsum(len(shape) - 1).numpy()
    expected = np.cumsum(np.broadcast_to(row.numpy(), shape), len(shape) - 1)
    np.testing.assert_array_equal(found, expected)


def test_lanes_need_terms_that_vary() -> None:
    ones = LazyOp(BufferOps.CONST, (), ConstBuffer(1.0, dtypes.float32, SHAPE))
    kernel = lower(store(running(ReduceOps.SUM, ones, 0, 0)), "k")
    name, along = the_reduce(kernel).name, the_output(kernel).loops[0].range.name
    with pytest.raises(ScheduleError, match="its terms do not vary with that"):
        apply_opts(kernel, [Opt("scan", (name, along)), Opt("prefix", (name, 16))])


OUT_OF_ORDER: dict[str, Callable[[Tensor], Tensor]] = {
    "from the end": lambda total: total.flip(1),
    "all but the first": lambda total: total[:, 1:],
    "behind a zero": lambda total: total.pad(((0, 0), (1, 0))),
    "every second": lambda total: total[:, ::2],
    "by index": lambda total: total.gather(1, Tensor([[2, 0, 1]] * 5)),
    "in columns": lambda total: total.reshape(5, 4, 25).permute(1, 0, 2).contiguous(),
    "in pairs": lambda total: total.reshape(250, 2) * 2,
    "summed": lambda total: total.sum(1),
    "in windows": lambda total: total.unfold(1, 3, 1).sum(2),
}


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_totals_that_are_wanted_in_another_order_are_stored(name: str) -> None:
    """A kernel that does not go along them would begin each from its first element."""
    x = np.random.default_rng(0).integers(-9, 9, (5, 100)).astype(np.float32)
    planned = OUT_OF_ORDER[name](Tensor(x).cumsum(1))
    kernels = [Linearizer(item.ast, WIDE) for item in create_schedule([planned.lazydata])]
    totals = [k for k in kernels if any(node.op is MovementOps.WINDOW for node in k.ast.toposort())]
    assert [opt.primitive for opt in totals[0].opts].count("scan") == 1
    result = OUT_OF_ORDER[name](Tensor(x).cumsum(1))
    stored = OUT_OF_ORDER[name](Tensor(np.cumsum(x, 1)))
    np.testing.assert_array_equal(result.numpy(), stored.numpy())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(1) * 2,
        lambda x: x.cumsum(1).reshape(500) + 1,
        lambda x: x.cumsum(1).reshape(5, 4, 25) + 1,
        lambda x: x.cumsum(1).flip(0),
        lambda x: x.cumsum(1).permute(1, 0).contiguous(),
    ],
)
def test_totals_in_their_order_need_no_memory(function: Callable[[Tensor], Tensor]) -> None:
    x = Tensor(np.ones((5, 100), np.float32)).realize()
    assert len(create_schedule([function(x).lazydata])) == 1


def test_a_running_total_is_not_computed_again_for_a_sum() -> None:
    x = np.random.default_rng(0).integers(-5, 5, (40, 200)).astype(np.float32)
    found = (Tensor(x).cumsum(1) / Tensor(x).abs().sum(1, keepdim=True)).cumsum(0).sum(1)
    expected = (np.cumsum(x, 1) / np.abs(x).sum(1, keepdims=True)).cumsum(0).sum(1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", [999, 1024, 1025, 2047, 12_345, 300_000])
def test_long_ones_are_as_exact_as_short_ones(size: int) -> None:
    x = np.random.default_rng(size).uniform(-1, 1, size).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64))
    error = np.abs(Tensor(x).cumsum(0).numpy() - exact).max()
    assert error <= 1e-6 * np.abs(exact).max()
    whole = np.random.default_rng(size).integers(-9, 9, size)
    np.testing.assert_array_equal(Tensor(whole).cumsum(0).numpy(), np.cumsum(whole))
    largest = Tensor(x).cummax(0)[0].numpy()
    np.testing.assert_array_equal(largest, np.maximum.accumulate(x))


def test_infinities_and_nans_go_on_from_where_they_are() -> None:
    x = np.ones(50, np.float32)
    x[20] = np.inf
    x[37] = np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(Tensor(x).cumsum(0).numpy(), np.cumsum(x))
        np.testing.assert_array_equal(Tensor(x).cummax(0)[0].numpy(), np.maximum.accumulate(x))
