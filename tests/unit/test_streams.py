"""Schedules of element-wise work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.golden.test_golden import TARGET
from tests.kernels import CASES, add, constant, exp, joined, load, softmax, store, total
from tests.programs import HOST

from ferrule.codegen.heuristic import schedule
from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.kernel import Kernel
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.schedules.cpu.streams import CHUNK_ELEMENTS
from ferrule.codegen.uops import UOps
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp, const
from ferrule.ops import LazyOp, ReduceOps
from ferrule.schedule import create_schedule
from ferrule.tensor import Tensor

WIDE = replace(HOST, vector_bytes=64, n_vector_registers=32)


def _iterations(kernel: Kernel) -> list[int]:
    """How many iterations the loop over vectors has in each chunk of a root nest."""
    chunks, vectors = kernel.roots[0].loops[:2]
    end = vectors.range.size if vectors.end is None else vectors.end
    return [int(end.substitute({chunks.range: const(i)}).arg) for i in range(chunks.size)]


@pytest.mark.parametrize("places", [16, 27, 55, 96])
@pytest.mark.parametrize("pools", [False, True])
def test_every_second_element_is_shuffled_from_whole_vectors(places: int, pools: bool) -> None:
    """Also in the last vector of a row, which begins earlier instead of gathering under a mask."""
    x = load(1, 3, 2, 2 * places + 1)
    if pools:
        value = total(x.window(2, 3, 2), 3).reshape((3, 2, places))
    else:
        value = exp(x.stride((1, 1, 2)).shrink(((0, 3), (0, 2), (0, places))))
    linearizer = Linearizer(store(value), WIDE).linearize()
    loads = [u for u in linearizer.uops if u.op is UOps.LOAD]
    assert loads
    assert all(len(u.src) == 2 and u.src[1].lanes == 1 for u in loads)
    values = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
    second = [values[..., k : k + 2 * places - 1 : 2] for k in range(3)]
    expected = sum(second[1:], second[0]) if pools else np.exp(second[0])
    found = np.full(expected.size, np.nan, np.float32)
    interpret(linearizer.uops, [found, values.ravel()])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [65_000, 100_000, 100_003, 12 * CHUNK_ELEMENTS])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.float64])
def test_the_last_chunk_ends_where_the_data_end(size: int, dtype: DType) -> None:
    """Masked vectors beyond the end may lie in memory that is not there, which takes long."""
    x = load(1, size, dtype=dtype)
    value = exp(x) if dtype is dtypes.float32 else add(x, constant(1, (size,), dtype))
    kernel = schedule(lower(store(value), "k"), HOST).kernel
    lanes = kernel.roots[0].loops[-1].size
    full = CHUNK_ELEMENTS // lanes
    counts = _iterations(kernel)
    assert counts[:-1] == [full] * (len(counts) - 1)
    assert sum(counts) == -(-size // lanes)


@pytest.mark.parametrize("name", ["every_third", "each_three_times", "interleaved"])
def test_lanes_that_are_near_are_loaded_as_vectors(name: str) -> None:
    """But in the last iteration, where there is a mask for each lane."""
    case = next(case for case in CASES if case.name == name)
    uops = Linearizer(case.ast, WIDE).linearize().uops
    gathers = [u for u in uops if u.op is UOps.LOAD and u.src[1].lanes > 1]
    assert all(len(u.src) > 2 for u in gathers)
    assert any(u.op is UOps.SHUFFLE for u in uops)


def test_sums_of_pixels_have_lanes() -> None:
    """Along the pixels, whose channels are three elements apart."""
    case = next(case for case in CASES if case.name == "sum_pixels")
    uops = Linearizer(case.ast, WIDE).linearize().uops
    loads = [u for u in uops if u.op is UOps.LOAD and len(u.src) == 2]
    assert loads
    assert all(u.lanes == 16 and u.src[1].lanes == 1 for u in loads)


@pytest.mark.parametrize("name", ["sums_of_pairs", "largest_in_windows"])
def test_small_windows_have_lanes_along_the_results(name: str) -> None:
    """Between the borders, whole vectors are loaded, and no load has a mask."""
    case = next(case for case in CASES if case.name == name)
    linearizer = Linearizer(case.ast, replace(WIDE, max_threads=1)).linearize()
    assert [opt.primitive for opt in linearizer.opts].count("expand_reduce") == 1
    uops = linearizer.uops
    stores = [u for u in uops if u.op is UOps.STORE]
    assert {u.src[2].lanes for u in stores} == {16}
    assert all(u.src[1].lanes == 1 for u in stores)
    plain = [u for u in uops if u.op is UOps.LOAD and len(u.src) == 2]
    assert plain
    assert all(u.lanes == 16 and u.src[1].lanes == 1 for u in plain)


def test_sums_of_many_terms_stay_loops() -> None:
    linearizer = Linearizer(store(total(load(1, 200, 26), 1)), WIDE).linearize()
    assert "expand_reduce" not in [opt.primitive for opt in linearizer.opts]


def test_sums_that_results_have_in_common_are_computed_once() -> None:
    """Written out, each of the 8 results of a place would add up the same 8 terms."""
    linearizer = Linearizer(store(softmax(load(1, 4, 8, 400), 1)), WIDE).linearize()
    assert "expand_reduce" not in [opt.primitive for opt in linearizer.opts]
    stores = [u for u in linearizer.uops if u.op is UOps.STORE]
    assert {u.src[2].lanes for u in stores} == {16}


def test_scattered_rows_have_lanes() -> None:
    case = next(case for case in CASES if case.name == "scatter_rows")
    uops = Linearizer(case.ast, WIDE).linearize().uops
    stores = [u for u in uops if u.op is UOps.STORE]
    assert {u.src[2].lanes for u in stores} == {16}
    assert all(u.src[1].lanes == 1 for u in stores)


def test_segments_know_their_buffer() -> None:
    """Between the ends of two buffers nothing is asked, and nothing is loaded from the other."""
    a, b = load(1, 8, 160), load(2, 8, 96)
    linearizer = Linearizer(store(joined(a, b)), replace(WIDE, max_threads=1)).linearize()
    loads = [u for u in linearizer.uops if u.op is UOps.LOAD]
    assert [len(u.src) for u in loads] == [2, 2]
    assert not any(u.op is UOps.ALU and u.arg is ExprOp.WHERE for u in linearizer.uops)
    (loop,) = [o for o in linearizer.scheduled.roots[0].loops if o.segments]
    assert [segment.end.arg for segment in loop.segments] == [10, 16]


def test_a_segment_needs_a_condition_that_changes() -> None:
    kernel = lower(store(add(load(1, 40), load(2, 40))), "k")
    with pytest.raises(ScheduleError, match="no condition of out0 changes a few times"):
        apply_opts(kernel, [Opt("segment", ("out0", "i0.0"))])


def test_a_loop_in_segments_is_not_split() -> None:
    kernel = lower(store(joined(load(1, 40), load(2, 40))), "k")
    opts = [Opt("segment", ("out0", "i0.0")), Opt("split", ("out0", "i0.0", 8, "mask"))]
    with pytest.raises(ScheduleError, match="it is limited"):
        apply_opts(kernel, opts)


@pytest.mark.parametrize("shape", [(40, 40), (33, 50), (16, 16), (100, 19)])
def test_only_what_lies_across_is_transposed(shape: tuple[int, int]) -> None:
    """What lies along the result is loaded so, and no square at the edge has a mask."""
    n, m = shape
    ast = store(add(load(1, n, m), load(2, m, n).permute((1, 0))))
    uops = Linearizer(ast, TARGET).linearize().uops
    loads = [u for u in uops if u.op is UOps.LOAD and u.src[0].op is UOps.PARAM]
    assert {len(u.src) for u in loads} == {2}
    assert all(u.src[1].lanes == 1 and u.lanes == 16 for u in loads)
    a, b = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in (shape, (m, n)))
    out = np.full(n * m, np.nan, np.float32)
    interpret(uops, [out, a.ravel(), b.ravel()], [], 0, extent(uops, []))
    np.testing.assert_array_equal(out.reshape(shape), a + b.T)


@pytest.mark.parametrize("steps", [(-1, 1), (1, -1), (-1, -1)], ids=str)
def test_images_turned_by_a_quarter_are_transposed_in_squares(steps: tuple[int, int]) -> None:
    """Backwards along what is loaded is as near as forwards: nothing is gathered."""
    ast = store(add(load(1, 50, 33).permute((1, 0)).stride(steps), constant(1.0, (33, 50))))
    uops = Linearizer(ast, TARGET).linearize().uops
    loads = [u for u in uops if u.op is UOps.LOAD and u.src[0].op is UOps.PARAM]
    assert loads
    assert all(u.src[1].lanes == 1 and u.lanes == 16 for u in loads)
    image = np.random.default_rng(0).standard_normal((50, 33)).astype(np.float32)
    out = np.full(33 * 50, np.nan, np.float32)
    interpret(uops, [out, image.ravel()], [], 0, extent(uops, []))
    transposed = image.T[:: steps[0], :: steps[1]]
    np.testing.assert_array_equal(out.reshape(33, 50), transposed + 1)


def test_what_is_stored_in_place_is_not_computed_twice() -> None:
    x = load(0, 40, 40)
    kernel = lower(store(add(x, load(1, 40, 40).permute((1, 0)))), "k")
    with pytest.raises(ScheduleError, match="has to be the same both times"):
        apply_opts(kernel, [Opt("split", ("out0", "i0.0", 16, "shift"))])
    tails = {opt.args[3] for opt in schedule(kernel, WIDE).opts if opt.primitive == "split"}
    assert tails == {"peel"}


def test_a_border_around_what_is_transposed() -> None:
    """Loops with copies inside are not in segments: these have the conditions too."""
    wide = load(1, 40, 40).pad(((0, 8), (0, 8)))
    ast = store(add(wide, load(2, 48, 48).permute((1, 0))))
    uops = Linearizer(ast, TARGET).linearize().uops
    a, b = (np.random.default_rng(0).standard_normal((n, n)).astype(np.float32) for n in (40, 48))
    out = np.full(48 * 48, np.nan, np.float32)
    interpret(uops, [out, a.ravel(), b.ravel()], [], 0, extent(uops, []))
    np.testing.assert_array_equal(out.reshape(48, 48), np.pad(a, ((0, 8), (0, 8))) + b.T)


@pytest.mark.parametrize("shape", [(768, 192), (64, 3, 7, 7), (100, 197), (5, 7), (1000, 512)])
def test_random_numbers_are_made_along_memory(shape: tuple[int, ...]) -> None:
    """Whatever the shape, nothing is transposed, and but for the end the digits of an element's
    number are loaded as vectors, or are the same for all lanes.
    """
    drawing, advancing = create_schedule([Tensor.rand(*shape, device="CPU").lazydata])
    assert advancing.out.size == 1
    linearizer = Linearizer(drawing.ast, WIDE).linearize()
    assert {opt.primitive for opt in linearizer.opts}.isdisjoint({"transpose", "stage"})
    gathers = [u for u in linearizer.uops if u.op is UOps.LOAD and u.src[1].lanes > 1]
    assert all(len(u.src) > 2 for u in gathers)


def _repeated(rows: int, columns: int, period: int) -> LazyOp:
    """`x[i % period]` of a buffer, for each i of rows x columns."""
    size = rows * columns
    times = -(-size // period)
    x = load(1, period).reshape((1, period)).expand((times, period)).reshape((times * period,))
    return x.shrink(((0, size),)).reshape((rows, columns))


def test_loops_are_fused_where_a_remainder_stays_one() -> None:
    """`x[(100 * i + j) % 64]` is `x[k % 64]`; of `x[i % 3]` would be `x[k // 100 % 3]`."""
    plan = schedule(lower(store(_repeated(50, 100, 64)), "k"), WIDE)
    assert any(opt.primitive == "fuse" for opt in plan.opts)
    by_row = store(_repeated(50, 1, 3).expand((50, 100)))
    assert "fuse" not in {opt.primitive for opt in schedule(lower(by_row, "k"), WIDE).opts}


def test_what_is_contiguous_along_no_loop_is_not_transposed() -> None:
    """`x[i // 2, j // 3]` is near along both, and a step along neither is constant."""
    x = load(1, 32, 1, 32, 1).expand((32, 2, 32, 3)).reshape((64, 96))
    plan = schedule(lower(store(x), "k"), WIDE)
    assert {opt.primitive for opt in plan.opts}.isdisjoint({"transpose", "stage"})


def test_a_row_shorter_than_a_vector_is_loaded_as_vectors() -> None:
    """Its only iteration is the last one too, so its lanes have constant conditions."""
    window = load(1, 8, 27).window(1, 3, 2)
    ast = store(LazyOp(ReduceOps.MAX, (window,), (8, 13, 1)))
    uops = Linearizer(ast, TARGET).linearize().uops
    loaded = [u for u in uops if u.op is UOps.LOAD and u.lanes > 1]
    assert loaded
    assert all(u.src[1].lanes == 1 for u in loaded)
