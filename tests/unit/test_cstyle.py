"""Programs as C: what compiled code does is what the interpreter does, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests import gpus
from tests.clprograms import GPU, compile_as_cuda, run_as_opencl
from tests.cprograms import (
    PLAIN,
    CompiledC,
    aligned,
    assert_same,
    needs_compiler,
    run_as_c,
)
from tests.kernels import CASES, Case, make_inputs
from tests.programs import (
    COMPUTED,
    I64,
    NARROW,
    REALS,
    SIZE,
    Array,
    Builder,
    bits,
    dot,
    elementwise,
    every_operation,
    in_range,
    sample,
)

from ferrule.codegen.interpret import interpret
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.uops import ProgramError, UOp, UOps, verify
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.renderer.base import RenderError
from ferrule.renderer.c.dialect import CUDA, OPENCL, C, Dialect, special_bits
from ferrule.renderer.c.function import pieces
from ferrule.renderer.c.style import CStyleRenderer, cuda_renderer, opencl_renderer

FLOAT8 = [dtypes.float8_e4m3, dtypes.float8_e5m2]
EVERY = [*COMPUTED, *NARROW, *FLOAT8]


# -- arithmetic ------------------------------------------------------------------------------------


def operations_and_buffers(dtype: DType, lanes: int) -> tuple[list[UOp], list[Array]]:
    uops, stored = every_operation(dtype, lanes)
    inputs = [sample(dtype, SIZE, seed) for seed in range(3)]
    return uops, [*inputs, *(np.zeros(SIZE, kind.np) for kind in stored)]


@needs_compiler
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.name)
def test_every_operation(dtype: DType, lanes: int) -> None:
    run_as_c(*operations_and_buffers(dtype, lanes))


@needs_compiler
@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_fused_multiply_add_rounds_once(dtype: DType) -> None:
    generator = np.random.default_rng(5)
    a, b = generator.standard_normal((2, 512)).astype(dtype.np)
    c = (-a * b * (1 + generator.integers(-2, 3, 512) * np.finfo(dtype.np).eps)).astype(dtype.np)
    uops = elementwise(lambda builder, v: builder.alu(ExprOp.MULACC, *v), [dtype] * 3, 4, 128)
    assert (run_as_c(uops, [np.zeros_like(a), a, b, c])[0] != a * b + c).any()


@needs_compiler
@pytest.mark.parametrize("dtype", [dtypes.int32, I64], ids=lambda d: d.name)
def test_divisions(dtype: DType) -> None:
    """By variables and by constants, of all signs; and an index by positive ones."""
    divisors = [1, 3, 8, 10, 1 << 20, -1, -3, 0]
    b = Builder(SIZE)
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    x, y = b.param(0, dtype), b.param(1, dtype)
    loop = b.loop(start, stop)
    a, positive = b.load(x, loop), b.load(y, loop)
    results = [b.alu(op, a, positive) for op in (ExprOp.IDIV, ExprOp.MOD)]
    for divisor in divisors:
        ops = [ExprOp.TDIV, ExprOp.TMOD, *([ExprOp.IDIV, ExprOp.MOD] if divisor > 0 else [])]
        results += [b.alu(op, a, b.const(divisor, dtype)) for op in ops]
    for slot, result in enumerate(results):
        b.store(b.param(2 + slot, dtype), loop, result)
    b.end(loop)
    divisor_array = np.resize(np.array([1, 2, 3, 7, 2**30], dtype.np), SIZE)
    outputs = [np.zeros(SIZE, dtype.np) for _ in results]
    run_as_c(b.uops, [sample(dtype, SIZE, 0), divisor_array, *outputs])


@needs_compiler
@pytest.mark.parametrize("op", [ExprOp.ADD, ExprOp.MUL, ExprOp.MAX, ExprOp.MIN])
@pytest.mark.parametrize("dtype", [dtypes.int8, I64, dtypes.float32], ids=lambda d: d.name)
def test_horizontal_reductions_halve(op: ExprOp, dtype: DType) -> None:
    def body(b: Builder, values: Sequence[UOp]) -> UOp:
        return b.splat(b.add(UOps.HREDUCE, dtype, 1, (values[0],), op), 8)

    x = sample(dtype, SIZE, 3)
    run_as_c(elementwise(body, [dtype], 8, SIZE // 8), [np.zeros_like(x), x])


@needs_compiler
def test_maximum_keeps_nan_and_the_first_of_two_zeros() -> None:
    a = np.array([np.nan, 1, np.nan, 2, -0.0, 0.0, -np.inf, np.inf], np.float32)
    c = np.array([1, np.nan, np.nan, 3, 0.0, -0.0, np.nan, 1], np.float32)
    for op in (ExprOp.MAX, ExprOp.MIN):

        def body(b: Builder, values: Sequence[UOp], op: ExprOp = op) -> UOp:
            return b.alu(op, *values)

        found = run_as_c(elementwise(body, [dtypes.float32] * 2, 8, 1), [np.zeros_like(a), a, c])[0]
        assert list(np.signbit(found[4:6])) == [True, False]


@needs_compiler
def test_products_of_packed_pairs() -> None:
    """Also of subnormals, which count as zeros, and of infinities."""
    pairs = [sample(dtypes.bfloat16, 2 * SIZE, seed).view(np.uint32) for seed in (0, 1)]
    c = sample(dtypes.float32, SIZE, 2)
    kinds = [dtypes.uint32, dtypes.uint32, dtypes.float32]
    uops = elementwise(lambda b, v: b.alu(ExprOp.DOT, *v), kinds, 4, SIZE // 4)
    run_as_c(uops, [np.zeros_like(c), *pairs, c])


@needs_compiler
def test_what_is_only_fetched_changes_nothing() -> None:
    b = Builder()
    x, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    b.add(UOps.PREFETCH, src=(x, b.const(1 << 40)))
    b.store(out, b.const(0), b.load(x, b.const(0)))
    data = np.ones(1, np.float32)
    run_as_c(b.uops, [data, np.zeros_like(data)])


@needs_compiler
def test_constants_keep_every_bit() -> None:
    b = Builder()
    expected: list[Array] = []
    for dtype in EVERY:
        values = sample(dtype, SIZE, 0)[:24]
        pointer = b.param(len(expected), dtype)
        for i, value in enumerate(values):
            b.store(pointer, b.const(i), b.const(value.item(), dtype))
        expected.append(values)
    found = run_as_c(b.uops, [np.zeros_like(values) for values in expected])
    for a, c in zip(expected, found, strict=True):
        np.testing.assert_array_equal(bits(a), bits(c))


# -- casts -----------------------------------------------------------------------------------------


def every_cast(source: DType) -> tuple[list[UOp], list[Array]]:
    """A program that casts to each dtype, two lanes at a time, and its buffers."""
    b = Builder(SIZE // 2)
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    loop = b.loop(start, stop)
    index = b.alu(ExprOp.MUL, loop, b.const(2))
    buffers = []
    for slot, kind in enumerate(EVERY):
        value = b.load(b.param(2 * slot, source), index, 2)
        result = b.add(UOps.CAST, kind, 2, (value,))
        b.store(b.param(2 * slot + 1, kind), index, result)
        x = sample(source, SIZE, slot)
        buffers += [in_range(x, kind) if dtypes.is_float(source) else x, np.zeros(SIZE, kind.np)]
    b.end(loop)
    return b.uops, buffers


@needs_compiler
@pytest.mark.parametrize("source", EVERY, ids=lambda d: d.name)
def test_every_cast(source: DType) -> None:
    run_as_c(*every_cast(source))


@needs_compiler
@pytest.mark.parametrize("source", REALS, ids=lambda d: d.name)
@pytest.mark.parametrize("kind", [*NARROW, *FLOAT8], ids=lambda d: d.name)
def test_narrow_floats_round_to_nearest_even(kind: DType, source: DType) -> None:
    """From values of the narrow type, from the middles between them and from beside those."""
    every = np.arange(1 << kind.bits, dtype=f"u{kind.itemsize}").view(kind.np)
    every = every[np.isfinite(every.astype(np.float32))]
    values = np.sort(every.astype(np.float64))
    middles = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(middles, side) for side in (-np.inf, np.inf)]
    beyond = np.array([np.inf, -np.inf, np.nan, 3e38, 70000.0, 65519.0, 65520.0, 500.0, 1e-45])
    parts = [values, middles, *near] if kind in FLOAT8 else [p[::29] for p in (middles, *near)]
    with np.errstate(over="ignore"):
        x = np.concatenate([*parts, beyond]).astype(source.np)
    uops = elementwise(lambda b, v: b.add(UOps.CAST, kind, 1, v), [source], 1, len(x))
    with np.errstate(over="ignore", invalid="ignore"):
        run_as_c(uops, [np.zeros(len(x), kind.np), x])


@needs_compiler
@pytest.mark.parametrize("kind", [*NARROW, *FLOAT8], ids=lambda d: d.name)
def test_every_narrow_float_is_widened(kind: DType) -> None:
    every = np.arange(1 << kind.bits, dtype=f"u{kind.itemsize}").view(kind.np)
    uops = elementwise(lambda b, v: b.add(UOps.CAST, dtypes.float32, 1, v), [kind], 1, len(every))
    found = CompiledC(uops)
    out = np.zeros(len(every), np.float32)
    found([out, every])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(bits(out), bits(every.astype(np.float32)))


@needs_compiler
def test_bitcasts() -> None:
    """Also into more lanes, or fewer, of another width: the lowest bits come first."""
    pairs = [(dtypes.float32, dtypes.int32), (dtypes.uint64, dtypes.float64)]
    pairs += [(dtypes.bfloat16, dtypes.uint16), (dtypes.int16, dtypes.float16)]
    pairs += [(dtypes.bool, dtypes.uint8), (dtypes.bfloat16, dtypes.uint32)]
    pairs += [(dtypes.float64, dtypes.int8), (dtypes.uint8, dtypes.float32)]
    for source, target in pairs:
        lanes = 8 * source.bits // target.bits
        b = Builder()
        value = b.load(b.param(0, source), b.const(0), 8)
        b.store(b.param(1, target), b.const(0), b.add(UOps.BITCAST, target, lanes, (value,)))
        x = sample(source, 8, 0)
        found = run_as_c(b.uops, [x, np.zeros(lanes, target.np)])[1]
        np.testing.assert_array_equal(found.view(np.uint8), x.view(np.uint8))


# -- memory ----------------------------------------------------------------------------------------


def test_accesses_are_as_wide_as_the_alignment_allows() -> None:
    assert pieces(8, 2, 8) == [(0, 8)]
    assert pieces(16, 1, 4) == [(0, 4), (4, 4), (8, 4), (12, 4)]
    assert pieces(5, 8, 6) == [(0, 2), (2, 2), (4, 1)]
    assert pieces(3, 4, 1) == [(0, 1), (1, 1), (2, 1)]
    assert pieces(4, 4, 12) == [(0, 4)]


@needs_compiler
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.bool, *NARROW, *REALS, I64], ids=lambda d: d.name)
def test_aligned_vectors(dtype: DType, unaligned: bool) -> None:
    """out = in, 6 lanes at an index that is a multiple of 4, where a scalar mask is on."""
    b = Builder(5)
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    out, x = b.param(0, dtype), b.param(1, dtype)
    loop = b.loop(start, stop)
    index = b.alu(ExprOp.MUL, loop, b.const(8))
    mask = b.splat(b.alu(ExprOp.CMPLT, loop, b.const(3)), 6)
    value = b.add(UOps.LOAD, dtype, 6, (x, index, mask), 4)
    b.add(UOps.STORE, None, 1, (out, index, value), 4)
    again = b.add(UOps.LOAD, dtype, 4, (x, index), 4)
    last = b.splat(b.alu(ExprOp.CMPNE, loop, b.const(0)), 4)
    b.add(UOps.STORE, None, 1, (b.param(2, dtype), index, again, last), 4)
    b.end(loop)
    data = sample(dtype, 40, 0)
    buffers = [np.zeros(40, dtype.np), data, np.zeros(40, dtype.np)]
    found = run_as_c(b.uops, buffers)
    np.testing.assert_array_equal(bits(found[0][16:22]), bits(data[16:22]))
    if unaligned:
        compiled = CompiledC(b.uops, options="-DFERRULE_UNALIGNED")
        assert ".lane[1]" in compiled.source
        moved = [aligned(np.concatenate([buffer[:1], buffer]))[1:] for buffer in buffers]
        compiled(moved)
        for a, c in zip(found, moved, strict=True):
            np.testing.assert_array_equal(bits(a), bits(c))


@needs_compiler
@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.float16, *REALS], ids=lambda d: d.name)
@pytest.mark.parametrize("lanes", [1, 4])
def test_masks_keep_accesses_inside(dtype: DType, lanes: int) -> None:
    """out[i] = in[i - 3] where that is there; other addresses are far outside."""
    size = 37
    b = Builder(-(-size // lanes))
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    out, x = b.param(0, dtype), b.param(1, dtype)
    far = b.const(1 << 40)
    loop = b.loop(start, stop)
    base = b.alu(ExprOp.MUL, loop, b.const(lanes))
    index = b.alu(ExprOp.ADD, b.splat(base, lanes), b.add(UOps.IOTA, I64, lanes))
    inside = b.alu(ExprOp.CMPLT, index, b.const(size, I64, lanes))
    behind = b.alu(ExprOp.CMPLT, b.const(2, I64, lanes), index)
    valid = b.alu(ExprOp.AND, behind, inside)
    shifted = b.alu(ExprOp.SUB, index, b.const(3, I64, lanes))
    source = b.alu(ExprOp.WHERE, valid, shifted, b.splat(far, lanes))
    b.store(out, base, b.load(x, source, lanes, valid), inside)
    b.end(loop)
    data = sample(dtype, size, 0)
    found = run_as_c(b.uops, [np.zeros(size, dtype.np), data])[0]
    np.testing.assert_array_equal(bits(found[3:]), bits(data[:-3]))


@needs_compiler
def test_the_highest_lane_wins_where_two_store_to_one_place() -> None:
    b = Builder()
    place = b.load(b.param(1, I64), b.const(0), 4)
    b.store(b.param(0, I64), place, b.add(UOps.IOTA, I64, 4))
    found = run_as_c(b.uops, [np.zeros(3, np.int64), np.array([2, 0, 2, 0])])[0]
    assert list(found) == [3, 0, 2]


@needs_compiler
def test_scratch_and_shuffles() -> None:
    """The columns of a 4x4 matrix, by shuffles and through scratch."""
    b = Builder()
    x, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    scratch = b.add(UOps.LOCAL, dtypes.float32, arg=("tile.a", 16))
    rows = [b.load(x, b.const(4 * i), 4) for i in range(4)]
    for i, row in enumerate(rows):
        for j in range(4):
            lane = b.add(UOps.EXTRACT, dtypes.float32, 1, (row,), j)
            b.store(scratch, b.const(4 * j + i), lane)
    pairs = [
        b.add(UOps.SHUFFLE, dtypes.float32, 4, (rows[i], rows[i + 1]), (0, 4, 1, 5)) for i in (0, 2)
    ]
    both = b.add(UOps.SHUFFLE, dtypes.float32, 4, tuple(pairs), (0, 1, 4, 5))
    b.store(out, b.const(0), both)
    b.add(
        UOps.STORE,
        None,
        1,
        (out, b.const(4), b.add(UOps.LOAD, x.dtype, 4, (scratch, b.const(0)), 4)),
        4,
    )
    data = np.arange(16, dtype=np.float32)
    found = run_as_c(b.uops, [data, np.zeros(8, np.float32)])[1]
    np.testing.assert_array_equal(found[:4], data[::4])
    np.testing.assert_array_equal(found[4:], data[::4])


# -- control and registers -------------------------------------------------------------------------


@needs_compiler
def test_registers_in_nested_loops() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 6 * 64)).astype(np.float32)
    run_as_c(dot(64, 8), [np.zeros(6, np.float32), x, y], [6])


@needs_compiler
def test_a_register_is_read_when_the_program_says() -> None:
    """Fibonacci's numbers, and lanes that change places: old values are used after the change."""
    b = Builder()
    out = b.param(0, I64)
    one = b.const(1)
    first = b.add(UOps.REG, I64, 1, (one,), "a")
    second = b.add(UOps.REG, I64, 1, (one,), "b")
    pair = b.add(UOps.REG, I64, 2, (b.add(UOps.IOTA, I64, 2),), "pair")
    loop = b.loop(b.const(0), b.const(7))
    old, new = (b.add(UOps.GET, I64, 1, (r,)) for r in (first, second))
    b.add(UOps.SET, src=(first, new))
    b.add(UOps.SET, src=(second, b.alu(ExprOp.ADD, old, new)))
    lanes = b.add(UOps.GET, I64, 2, (pair,))
    b.add(UOps.SET, src=(pair, b.add(UOps.SHUFFLE, I64, 2, (lanes,), (1, 0))))
    b.store(out, loop, old)
    b.end(loop)
    b.store(out, b.const(7), b.add(UOps.GET, I64, 2, (pair,)))
    found = run_as_c(b.uops, [np.zeros(9, np.int64)])[0]
    assert list(found) == [1, 1, 2, 3, 5, 8, 13, 1, 0]


@needs_compiler
def test_a_loop_has_the_limit_that_it_began_with() -> None:
    b = Builder()
    register = b.add(UOps.REG, I64, 1, (b.const(3),), "limit")
    loop = b.loop(b.const(0), b.add(UOps.GET, I64, 1, (register,)))
    b.add(UOps.SET, src=(register, b.const(9)))
    b.store(b.param(0, I64), loop, b.const(1))
    b.end(loop)
    assert run_as_c(b.uops, [np.zeros(10, np.int64)])[0].sum() == 3


@needs_compiler
@pytest.mark.parametrize("count", [0, 1, 12])
def test_loops_and_conditions(count: int) -> None:
    """Loops with variable bounds, also empty ones, and conditions inside."""
    b = Builder()
    n = b.add(UOps.VALUE, I64, arg=1)
    out = b.param(0, I64)
    register = b.add(UOps.REG, I64, 1, (b.const(0),), "count")
    outer = b.loop(b.const(0), n, name="outer loop!")
    inner = b.loop(outer, n, 2)
    small = b.add(UOps.IF, src=(b.alu(ExprOp.CMPLT, inner, b.const(10)),))
    old = b.add(UOps.GET, I64, 1, (register,))
    b.add(UOps.SET, src=(register, b.alu(ExprOp.ADD, old, inner)))
    b.end(small)
    b.end(inner)
    b.end(outer)
    b.store(out, b.const(0), b.add(UOps.GET, I64, 1, (register,)))
    found = run_as_c(b.uops, [np.full(1, 99)], [count])[0]
    assert found[0] == sum(j for i in range(count) for j in range(i, count, 2) if j < 10)


@needs_compiler
def test_extent_is_computed_from_variables() -> None:
    b = Builder(0)
    n = b.add(UOps.VALUE, I64, arg=1)
    rounded = b.alu(ExprOp.IDIV, b.alu(ExprOp.ADD, n, b.const(15)), b.const(16))
    b.add(UOps.EXTENT, src=(rounded,))
    b.store(b.param(0, I64), b.const(0), rounded)
    compiled = CompiledC(b.uops, "a.name")
    assert [compiled.extent([np.zeros(1)], [n]) for n in (1, 16, 17, 160)] == [1, 1, 2, 10]
    run_as_c(b.uops, [np.zeros(1, np.int64)], [100])


def kernel(case: Case, target: Target) -> tuple[Linearizer, list[Array], Array]:
    """The program, its buffers, and the values expected in the first."""
    linearizer = Linearizer(case.ast, target, name=f"kernel_{case.name}").linearize()
    inputs = make_inputs(case)
    expected = case.expected(*inputs)
    buffers = [np.zeros(expected.size, expected.dtype), *(x.reshape(-1) for x in inputs)]
    return linearizer, buffers, expected.reshape(-1)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels(case: Case) -> None:
    linearizer, buffers, _ = kernel(case, PLAIN)
    run_as_c(linearizer.uops, buffers, name=linearizer.name)


# -- blocks of threads -----------------------------------------------------------------------------


class Block(Builder):
    """A program for `blocks` blocks of `threads` threads."""

    def __init__(self, blocks: int, threads: int) -> None:
        super().__init__(0)
        self.add(UOps.EXTENT, src=(self.const(blocks),), arg=threads)
        self.block, self.thread = self.add(UOps.START, I64), self.add(UOps.THREAD, I64)
        first = self.alu(ExprOp.MUL, self.block, self.const(threads))
        self.index = self.alu(ExprOp.ADD, first, self.thread)

    def across(self, op: ExprOp, x: UOp, count: int, step: int = 1) -> UOp:
        return self.add(UOps.ACROSS, x.dtype, x.lanes, (x,), (op, count, step))


def combined(
    dtype: DType, threads: int, ops: Sequence[ExprOp], groups: Sequence[tuple[int, int]]
) -> list[UOp]:
    """Each operation across groups of (count, step) threads: out[group][op][thread]."""
    b = Block(2, threads)
    x = b.load(b.param(0, dtype), b.index)
    slot = 1
    for group in groups:
        for op in ops:
            b.store(b.param(slot, dtype), b.index, b.across(op, x, *group))
            slot += 1
    return b.uops


def reversed_through_shared_memory() -> list[UOp]:
    """Each block turns its part around, twice, by vectors of 4; then 2 lanes are summed up."""
    b = Block(3, 16)
    x, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    tile = b.add(UOps.SHARED, dtypes.float32, arg=("tile", 64))
    own = b.alu(ExprOp.MUL, b.thread, b.const(4))
    place = b.alu(ExprOp.MUL, b.index, b.const(4))
    value = b.add(UOps.LOAD, dtypes.float32, 4, (x, place), 4)
    loop = b.loop(b.const(0), b.const(2))
    b.add(UOps.BARRIER)
    b.add(UOps.STORE, None, 1, (tile, own, value), 4)
    b.add(UOps.BARRIER)
    other = b.alu(ExprOp.SUB, b.const(60), own)
    turned = b.add(UOps.LOAD, dtypes.float32, 4, (tile, other), 4)
    back = b.add(UOps.SHUFFLE, dtypes.float32, 4, (turned,), (3, 2, 1, 0))
    at = b.alu(ExprOp.ADD, b.alu(ExprOp.MUL, loop, b.const(192)), place)
    b.add(UOps.STORE, None, 1, (out, at, back), 4)
    b.end(loop)
    pair = b.add(UOps.SHUFFLE, dtypes.float32, 2, (value,), (0, 3))
    both = b.across(ExprOp.ADD, pair, 8)
    b.store(b.param(2, dtypes.float32), b.alu(ExprOp.MUL, b.index, b.const(2)), both)
    return b.uops


def all_alike(uops: Sequence[UOp], buffers: Sequence[Array], values: Sequence[int] = ()) -> None:
    """OpenCL does what the interpreter does, bit for bit."""
    found = run_as_opencl(uops, buffers, values)
    expected = [aligned(buffer) for buffer in buffers]
    interpret(uops, expected, values)
    assert_same(expected, found, opencl_renderer(GPU).render("kernel", uops))


@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.name)
def test_every_operation_in_opencl(dtype: DType) -> None:
    all_alike(*operations_and_buffers(dtype, 2))


@pytest.mark.parametrize("source", [*REALS, I64, *NARROW, *FLOAT8], ids=lambda d: d.name)
def test_casts_in_opencl(source: DType) -> None:
    all_alike(*every_cast(source))


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.int16, I64, *REALS], ids=lambda d: d.name)
def test_threads_combine_values_in_opencl(dtype: DType) -> None:
    """All threads of a group get the same bits, also where zeros and NaNs differ."""
    uops = combined(dtype, 16, [ExprOp.ADD, ExprOp.MAX], [(4, 2), (16, 1)])
    x = sample(dtype, 32, 0)
    all_alike(uops, [x, *(np.zeros_like(x) for _ in range(4))])


def vectors_combined(dtype: DType, threads: int, lanes: int, count: int, step: int) -> list[UOp]:
    """The sum of each lane across groups of threads."""
    b = Block(2, threads)
    place = b.alu(ExprOp.MUL, b.index, b.const(lanes))
    x = b.add(UOps.LOAD, dtype, lanes, (b.param(0, dtype), place))
    b.store(b.param(1, dtype), place, b.across(ExprOp.ADD, x, count, step))
    return b.uops


@pytest.mark.parametrize(("count", "step"), [(4, 2), (16, 1)])
@pytest.mark.parametrize("lanes", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.int16, *REALS], ids=lambda d: d.name)
def test_threads_combine_vectors_in_opencl(dtype: DType, lanes: int, count: int, step: int) -> None:
    x = sample(dtype, 32 * lanes, 0)
    all_alike(vectors_combined(dtype, 16, lanes, count, step), [x, np.zeros_like(x)])


@pytest.mark.parametrize(
    ("dtype", "lanes", "times"),
    [
        (dtypes.float32, 1, 1),
        (dtypes.float32, 4, 1),
        (dtypes.float32, 8, 2),
        (dtypes.float64, 4, 2),
    ],
)
def test_threads_wait_once_for_all_lanes_of_16_bytes(dtype: DType, lanes: int, times: int) -> None:
    uops = vectors_combined(dtype, 256, lanes, 8, 32)
    helpers, _, body = cuda_renderer(GPU).render("k", uops).partition("k(")
    assert helpers.count("__syncthreads();") == 5  # three halves, before and after
    assert body.count("across_add") == times


def test_threads_share_memory_in_opencl() -> None:
    x = np.arange(192, dtype=np.float32)
    uops = reversed_through_shared_memory()
    all_alike(uops, [x, np.zeros(384, np.float32), np.zeros(96, np.float32)])


def waiting_loops(over_blocks: bool) -> list[UOp]:
    """Two loops, one after the other, in both of which the threads of a block wait."""
    b = Block(2, 16)
    blocks = b.loop(b.block, b.add(UOps.STOP, I64), name="block") if over_blocks else None
    part = b.alu(ExprOp.MUL, b.block if blocks is None else blocks, b.const(16))
    x = b.load(b.param(0, dtypes.int32), b.alu(ExprOp.ADD, part, b.thread))
    for slot, op in enumerate((ExprOp.ADD, ExprOp.MAX)):
        i = b.loop(b.const(0), b.const(3))
        term = b.alu(ExprOp.MUL, x, b.add(UOps.CAST, dtypes.int32, 1, (i,)))
        place = b.alu(ExprOp.ADD, b.alu(ExprOp.MUL, i, b.const(32)), part)
        at = b.alu(ExprOp.ADD, place, b.thread)
        b.store(b.param(slot + 1, dtypes.int32), at, b.across(op, term, 16))
        b.end(i)
    if blocks is not None:
        b.end(blocks)
    return b.uops


@pytest.mark.parametrize("over_blocks", [False, True])
def test_a_barrier_behind_a_loop_in_which_threads_wait_in_opencl(over_blocks: bool) -> None:
    """PoCL needs it. The loop over blocks is none in OpenCL: a block has one of them."""
    uops = waiting_loops(over_blocks)
    all_alike(uops, [sample(dtypes.int32, 32, 0), *(np.zeros(96, np.int32) for _ in range(2))])
    text = opencl_renderer(GPU).render("k", uops).partition("__kernel")[2]
    outside = [line for line in text.splitlines() if line.startswith(("  for", "  barrier"))]
    assert [line.split()[0] for line in outside] == ["for", OPENCL.after_waiting.split()[0], "for"]
    assert "\n  __syncthreads" not in cuda_renderer(GPU).render("k", uops).partition("k(")[2]


def test_an_old_value_stays_under_its_wider_name_in_opencl() -> None:
    """A cast that needs no text does not show that the register has changed."""
    b = Block(1, 1)
    register = b.add(UOps.REG, dtypes.int32, 2, (b.const(3, dtypes.int32, 2),), "r")
    old = b.add(UOps.GET, dtypes.int32, 2, (register,))
    lane = b.add(UOps.EXTRACT, dtypes.int32, 1, (old,), 1)
    index = b.add(UOps.CAST, I64, 1, (lane,))
    b.add(UOps.SET, src=(register, b.const(5, dtypes.int32, 2)))
    b.store(b.param(0, I64), index, index)
    all_alike(b.uops, [np.zeros(8, np.int64)])


def test_variables_are_32_bit_integers_in_opencl() -> None:
    """And what is computed from them may need more bits."""
    b = Builder(0)
    n, m = b.add(UOps.VALUE, I64, arg=1), b.add(UOps.VALUE, I64, arg=2)
    b.add(UOps.EXTENT, src=(b.alu(ExprOp.IDIV, b.alu(ExprOp.MUL, n, n), b.const(1 << 61)),), arg=2)
    start, thread = b.add(UOps.START, I64), b.add(UOps.THREAD, I64)
    out = b.param(0, I64)
    index = b.alu(ExprOp.ADD, b.alu(ExprOp.MUL, start, b.const(2)), thread)
    product = b.alu(ExprOp.MUL, b.alu(ExprOp.MUL, n, m), b.alu(ExprOp.ADD, thread, m))
    b.store(out, index, product)
    all_alike(b.uops, [np.zeros(4, np.int64)], [-(2**31) + 1, 3])


BLOCKS = replace(GPU, block_threads=32, index_bits=32, max_threads=8)
QUICK = ["add_row", "pad_sum", "sum_rows", "softmax", "layernorm", "convolution", "sum_of_gathered"]


@pytest.mark.parametrize("case", [c for c in CASES if c.name in QUICK], ids=lambda c: c.name)
def test_kernels_of_blocks_in_opencl(case: Case) -> None:
    linearizer, buffers, expected = kernel(case, BLOCKS)
    found = run_as_opencl(linearizer.uops, buffers)
    np.testing.assert_allclose(found[0], expected, rtol=2e-5, atol=1e-5)


ARCHITECTURES = pytest.mark.parametrize("architecture", gpus.ARCHITECTURES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernels_compile_as_cuda(case: Case) -> None:
    compile_as_cuda(kernel(case, replace(BLOCKS, block_threads=256))[0].uops, "sm_90a")


@ARCHITECTURES
@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: d.name)
def test_operations_compile_as_cuda(dtype: DType, architecture: str) -> None:
    compile_as_cuda(every_cast(dtype)[0], architecture)
    if dtype in COMPUTED:
        compile_as_cuda(every_operation(dtype, 4)[0], architecture)
        ops = [ExprOp.ADD, ExprOp.MAX]
        compile_as_cuda(
            combined(dtype, 256, ops, [(8, 4), (32, 1), (4, 64), (256, 1)]), architecture
        )


@ARCHITECTURES
@pytest.mark.parametrize("options", [(), ("-DFERRULE_UNALIGNED",), ("-DFERRULE_SHIM",)], ids=str)
def test_vectors_and_shared_memory_compile_as_cuda(
    options: Sequence[str], architecture: str
) -> None:
    compile_as_cuda(reversed_through_shared_memory(), architecture, options)
    compile_as_cuda(every_cast(dtypes.float16)[0], architecture, options)


def test_cuda_has_instructions_for_neighbours_and_for_narrow_floats() -> None:
    """And other ones where addresses are not aligned."""
    b = Block(4, 64)
    place = b.alu(ExprOp.MUL, b.index, b.const(8))
    x = b.add(UOps.LOAD, dtypes.bfloat16, 8, (b.param(0, dtypes.bfloat16), place), 8)
    wide = b.add(UOps.CAST, dtypes.float32, 8, (x,))
    half = b.add(UOps.CAST, dtypes.float16, 8, (b.alu(ExprOp.ADD, wide, wide),))
    b.add(UOps.STORE, None, 1, (b.param(1, dtypes.float16), place, half), 8)
    text = compile_as_cuda(b.uops, "compute_90").decode()
    assert text.count("ld.global.nc.v4") == text.count("st.global.v4") == 1
    assert text.count("cvt.rn.f16x2.f32") == 4  # of two neighbours at once
    text = compile_as_cuda(b.uops, "compute_90", ["-DFERRULE_UNALIGNED"]).decode()
    assert text.count("ld.global.nc.u16") == text.count("st.global.u16") == 8


@pytest.mark.parametrize("lanes", [1, 3, 4])
@pytest.mark.parametrize("kind", NARROW, ids=lambda d: d.name)
def test_neighbours_are_rounded_together(kind: DType, lanes: int) -> None:
    def cast(b: Builder, v: Sequence[UOp]) -> UOp:
        return b.add(UOps.CAST, kind, lanes, tuple(v))

    uops = elementwise(cast, [dtypes.float32], lanes, 8)
    call = f"{'f16' if kind is dtypes.float16 else 'bf16'}x2_of_floats("
    found = cuda_renderer(GPU).render("k", uops).split("__global__")[1].count(call)
    assert found == (0 if lanes % 2 else lanes // 2)
    assert call not in opencl_renderer(GPU).render("k", uops)


def test_a_near_power_is_one_instruction() -> None:
    def power(b: Builder, v: Sequence[UOp]) -> UOp:
        return b.alu(ExprOp.NEAR_EXP2, *v)

    uops = elementwise(power, [dtypes.float32], 1, 8)
    text = compile_as_cuda(uops, "compute_90").decode()
    assert text.count("ex2.approx.ftz.f32") == 1


def test_near_powers_are_of_float32() -> None:
    b = Builder(0)
    x = b.const(1.0, dtypes.float64)
    with pytest.raises(ProgramError, match="NEAR_EXP2: computes in float32, not"):
        verify([*b.uops, UOp(UOps.ALU, dtypes.float64, 1, (x,), ExprOp.NEAR_EXP2)])


# -- text ------------------------------------------------------------------------------------------


def test_parameters_are_buffers_then_variables() -> None:
    """Also those that the program does not use; `const` where nothing is stored."""
    b = Builder(0)
    n = b.add(UOps.VALUE, I64, arg=4)
    b.add(UOps.EXTENT, src=(n,), arg=64)
    out, x, mask = b.param(2, dtypes.int32), b.param(0, dtypes.float16), b.param(3, dtypes.bool)
    zero = b.const(0)
    bit = b.add(UOps.BITCAST, dtypes.int16, 1, (b.load(x, zero),))
    b.store(out, zero, b.add(UOps.CAST, dtypes.int32, 1, (bit,)), b.load(mask, zero))
    text = cuda_renderer(GPU).render("a.b-c", b.uops)
    assert (
        'extern "C" __global__ void __launch_bounds__(64) a_b_c(const u16 *__restrict__ data0, '
        "const void *__restrict__ data1, i32 *data2, const u8 *__restrict__ data3, i32 value0)"
    ) in text
    text = opencl_renderer(GPU).render("a.b-c", b.uops)
    assert (
        "__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void a_b_c(__global const u16 "
        "*restrict data0, __global const void *restrict data1, __global i32 *data2, "
        "__global const u8 *restrict data3, i32 value0)"
    ) in text


def test_a_warp_needs_no_memory_to_combine_values() -> None:
    def text(threads: int, count: int, warp: int = 32) -> str:
        uops = combined(dtypes.float32, threads, [ExprOp.ADD], [(count, 1)])
        return cuda_renderer(replace(GPU, warp=warp)).render("k", uops)

    assert "scratch" not in text(128, 32)
    assert text(128, 32).count("__shfl_xor_sync(0xffffffffu") == 5
    assert text(16, 8).count("__shfl_xor_sync(0xffffu") == 3
    assert "u8 scratch[512];" in text(128, 64)
    assert "__shfl" not in text(128, 64, warp=1)
    assert "__shfl" not in text(48, 16)


def test_small_indices_are_32_bits_wide_on_devices_with_blocks() -> None:
    b = Block(1000, 256)
    far = b.alu(ExprOp.MUL, b.index, b.const(10000))
    b.store(b.param(0, I64), b.alu(ExprOp.MOD, far, b.const(1000)), far)
    text = cuda_renderer(GPU).render("k", b.uops)
    assert "const i64 t0 = (i64)(block * 256 + thread) * 10000;" in text
    assert "data0[t0 % 1000] = t0;" in text


def test_equal_programs_give_equal_text() -> None:
    renderer = CStyleRenderer(C, PLAIN)
    assert renderer.render("k", dot(64, 8)) == renderer.render("k", dot(64, 8))


def test_what_only_the_number_of_chunks_needs_is_not_in_the_kernel() -> None:
    text = opencl_renderer(GPU).render("k", dot(64, 8))
    assert "value0" in text.partition("{")[0]
    assert "value0" not in text.partition("void k(")[2].partition("{")[2]


# -- errors ----------------------------------------------------------------------------------------


def render(body: Builder, dialect: Dialect = CUDA) -> str:
    return CStyleRenderer(dialect, GPU).render("k", body.uops)


def test_arithmetic_on_narrow_floats_is_refused() -> None:
    b = Builder()
    x = b.const(1.0, dtypes.float16)
    b.store(b.param(0, dtypes.float16), b.const(0), b.alu(ExprOp.ADD, x, x))
    message = r"^ADD of float16: programs compute in float32; CAST before and after$"
    with pytest.raises(RenderError, match=message):
        render(b)


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        (ExprOp.EXP2, dtypes.float32, r"^EXP2 is no operation of a program; expand it first$"),
        (ExprOp.SUB, dtypes.bool, r"^SUB of bool has no meaning; use XOR, or cast to an integer"),
    ],
)
def test_operations_without_a_meaning_are_refused(op: ExprOp, dtype: DType, message: str) -> None:
    b = Builder()
    x = b.load(b.param(0, dtype), b.const(0))
    b.store(b.param(1, dtype), b.const(0), b.alu(op, *([x] if op is ExprOp.EXP2 else [x, x])))
    with pytest.raises(RenderError, match=message):
        render(b)


def test_a_program_needs_an_extent() -> None:
    with pytest.raises(RenderError, match=r"^kernel k has no EXTENT; put one behind what computes"):
        render(Builder(0))


def test_c_has_no_blocks() -> None:
    b = Block(1, 4)
    b.store(b.param(0, I64), b.thread, b.thread)
    message = r"^THREAD: C has no blocks of threads; use a dialect that has, or a kernel of one"
    with pytest.raises(RenderError, match=message):
        render(b, C)


def test_a_block_has_as_many_threads_as_the_target_takes() -> None:
    message = r"^kernel k has blocks of 2048 threads; gpu takes 1024: bind fewer$"
    with pytest.raises(RenderError, match=message):
        render(Block(1, 2048))


def test_groups_of_threads_fill_the_block() -> None:
    b = Block(1, 48)
    b.store(b.param(0, I64), b.thread, b.across(ExprOp.ADD, b.thread, 32))
    message = r"^ACROSS of 32 threads, 1 apart: the 48 of a block do not divide into such groups"
    with pytest.raises(RenderError, match=message):
        render(b)


def test_shared_memory_is_limited() -> None:
    b = Block(1, 64)
    tile = b.add(UOps.SHARED, dtypes.float64, arg=("tile", 6144))
    b.store(tile, b.thread, b.const(1.0, dtypes.float64))
    assert "double tile_0[6144];" in render(b)
    summed = b.across(ExprOp.ADD, b.load(tile, b.thread), 64)
    b.store(b.param(0, dtypes.float64), b.thread, summed)
    message = (
        r"^u8 scratch\[512\]; 49664 bytes in all are more than the 49152 that a block shares; "
        r"use smaller tiles$"
    )
    with pytest.raises(RenderError, match=message):
        render(b)


def test_the_bits_of_infinities_and_nan_are_numpys() -> None:
    for dtype in (dtypes.float32, dtypes.float64):
        for value in (np.inf, -np.inf, np.nan, -np.nan):
            bits = int(np.array([value], dtype.np).view(f"u{dtype.itemsize}")[0])
            assert special_bits(dtype, value) == f"{bits:#x}u"
