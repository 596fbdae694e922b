"""The interpreter of programs: what the IR means, and what programs must not do."""

import math
from fractions import Fraction

import numpy as np
import pytest
from tests.programs import I64, Array, Builder

from ferrule.codegen.interpret import AccessError, InterpretError, RaceError, extent, interpret
from ferrule.codegen.interpret.memory import Memory
from ferrule.codegen.uops import ProgramError, UOp, UOps
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp


def apply(op: ExprOp, *columns: Array) -> Array:
    """One ALU operation on arrays."""
    b = Builder()
    zero = b.const(0)
    kinds = [dtypes.from_np(column.dtype) for column in columns]
    values = [b.load(b.param(slot, kind), zero, len(columns[0])) for slot, kind in enumerate(kinds)]
    result = b.alu(op, *values)
    assert result.dtype is not None
    b.store(b.param(len(columns), result.dtype), zero, result)
    out = np.zeros(len(columns[0]), result.dtype.np)
    interpret(b.uops, [*columns, out])
    return out


def convert(x: Array, target: DType, op: UOps = UOps.CAST) -> Array:
    b = Builder()
    zero = b.const(0)
    value = b.load(b.param(0, dtypes.from_np(x.dtype)), zero, len(x))
    b.store(b.param(1, target), zero, b.add(op, target, len(x), (value,)))
    out = np.zeros(len(x), target.np)
    interpret(b.uops, [x, out])
    return out


def test_float32_is_computed_in_float32() -> None:
    a = np.array([1.0, 2**24, 1e38], np.float32)
    b = np.array([2**-25, 1.0, 4.0], np.float32)
    np.testing.assert_array_equal(apply(ExprOp.ADD, a, b), np.array([1, 2**24, 1e38], np.float32))
    assert apply(ExprOp.MUL, a, b)[2] == np.inf


def test_integers_wrap() -> None:
    a = np.array([127, -128], np.int8)
    assert apply(ExprOp.ADD, a, a).tolist() == [-2, 0]
    assert apply(ExprOp.NEG, a).tolist() == [-127, -128]


def test_index_division_floors_and_data_division_truncates() -> None:
    a = np.array([-7, 7, -8, 8, 0], np.int64)
    b = np.array([4, 4, 4, 4, 4], np.int64)
    assert apply(ExprOp.IDIV, a, b).tolist() == [-2, 1, -2, 2, 0]
    assert apply(ExprOp.MOD, a, b).tolist() == [1, 3, 0, 0, 0]
    assert apply(ExprOp.TDIV, a, b).tolist() == [-1, 1, -2, 2, 0]
    assert apply(ExprOp.TMOD, a, b).tolist() == [-3, 3, 0, 0, 0]


def test_data_division_is_total() -> None:
    least = -(2**31)
    a = np.array([5, least, least], np.int32)
    b = np.array([0, -1, 0], np.int32)
    assert apply(ExprOp.TDIV, a, b).tolist() == [0, least, 0]
    assert apply(ExprOp.TMOD, a, b).tolist() == [5, 0, least]


def test_bool_arithmetic() -> None:
    a = np.array([False, False, True, True])
    b = np.array([False, True, False, True])
    assert apply(ExprOp.ADD, a, b).tolist() == [False, True, True, True]
    assert apply(ExprOp.MAX, a, b).tolist() == [False, True, True, True]
    assert apply(ExprOp.MUL, a, b).tolist() == [False, False, False, True]
    assert apply(ExprOp.MIN, a, b).tolist() == [False, False, False, True]
    assert apply(ExprOp.NEG, a).tolist() == [True, True, False, False]
    assert apply(ExprOp.NOT, a).tolist() == [True, True, False, False]


def test_bits_that_are_set() -> None:
    a = np.array([0, 1, 2, 0x80000000, 0xFFFFFFFF, 0x12345678], np.uint32)
    found = apply(ExprOp.POPCOUNT, a)
    assert found.tolist() == [0, 1, 1, 1, 32, 13]
    assert found.dtype == np.uint32


def test_maximum_and_minimum_propagate_nan() -> None:
    a = np.array([np.nan, 1, 2, -0.0, 0.0], np.float32)
    b = np.array([1, np.nan, 1, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(apply(ExprOp.MAX, a, b), np.maximum(a, b))
    np.testing.assert_array_equal(apply(ExprOp.MIN, a, b), np.minimum(a, b))
    # of two zeros the first
    assert np.signbit(apply(ExprOp.MAX, a, b)[3:]).tolist() == [True, False]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_multiply_add_rounds_once(kind: type[np.floating]) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((2, 500)).astype(kind)
    c = (-a * b * (1 + generator.integers(-2, 3, 500) * np.finfo(kind).eps)).astype(kind)
    found = apply(ExprOp.MULACC, a, b, c)
    for x, y, z, value in zip(*(v.tolist() for v in (a, b, c, found)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        neighbours = [np.nextafter(kind(value), kind(side)) for side in (-np.inf, np.inf)]
        error = abs(Fraction(value) - exact)
        assert all(error <= abs(Fraction(float(n)) - exact) for n in neighbours)


def test_multiply_add_beside_the_middle_of_two_float32() -> None:
    """The exact sums are below the middle by less than float64 can tell; even is above it."""
    below = np.array([1 - 2**-23, 1 - 2**-23, 1], np.float32)
    above = np.array([2**-24, 2**-150 * 2**75, 1], np.float32) * np.float32(1 + 2**-23)
    scale = np.array([1, 2**-75, 1], np.float32)
    odd = np.array([1 + 2**-23, 2**-149, 1], np.float32)
    found = apply(ExprOp.MULACC, above, below * scale, odd)
    assert found[:2].tolist() == odd[:2].tolist()


def test_multiply_add_at_the_edges() -> None:
    a = np.array([1e200, -1e200, np.inf, 1.0, 0.0, 1e-200])
    b = np.array([1e200, 1e200, 0.0, 1.0, 1.0, -1e-200])
    c = np.array([0.0, 0.0, 1.0, -1.0, -0.0, 0.0])
    found = apply(ExprOp.MULACC, a, b, c)
    np.testing.assert_array_equal(found, [np.inf, -np.inf, np.nan, 0.0, 0.0, -0.0])
    assert np.signbit(found[-1])


def test_casts() -> None:
    x = np.array([-1.5, 0.0, 2.7, np.nan, -0.0, 1e-45], np.float32)
    assert convert(x, dtypes.bool).tolist() == [True, False, True, True, False, True]
    assert convert(x[:3], dtypes.int32).tolist() == [-1, 0, 2]
    assert convert(x[:3], dtypes.uint8).tolist() == [255, 0, 2]
    assert convert(np.array([300, -1], np.int64), dtypes.uint8).tolist() == [44, 255]
    assert convert(np.array([True, False]), dtypes.float32).tolist() == [1.0, 0.0]


def test_float64_goes_to_narrow_floats_in_one_rounding() -> None:
    """By way of float32 the first would be rounded up twice."""
    x = np.array([1 + 2**-8 + 2**-30, 1 + 2**-8, 1 + 2**-8 - 2**-30, 1e300, -math.inf])
    found = convert(x, dtypes.bfloat16).astype(np.float64).tolist()
    assert found == [1 + 2**-7, 1.0, 1.0, math.inf, -math.inf]
    y = np.array([1 + 2**-11 + 2**-40, 1 + 2**-11, 65519.99999, 65520.0])
    assert convert(y, dtypes.float16).tolist() == [1 + 2**-10, 1.0, 65504.0, math.inf]


def test_bitcast_keeps_bits() -> None:
    x = np.array([1.0, -0.0, np.nan], np.float32)
    np.testing.assert_array_equal(convert(x, dtypes.uint32, UOps.BITCAST), x.view(np.uint32))


def test_reduction_order_is_by_halves() -> None:
    b = Builder()
    x = b.load(b.param(0, dtypes.float32), b.const(0), 4)
    total = b.add(UOps.HREDUCE, dtypes.float32, 1, (x,), ExprOp.ADD)
    b.store(b.param(1, dtypes.float32), b.const(0), total)
    data = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    out = np.zeros(1, np.float32)
    interpret(b.uops, [data, out])
    assert out[0] == 2.0  # (1e8 - 1e8) + (1 + 1); from left to right it is 1


def test_chunks_and_variables() -> None:
    b = Builder(0)
    n = b.add(UOps.VALUE, I64, arg=1)
    b.add(UOps.EXTENT, src=(n,))
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    loop = b.loop(start, stop)
    b.store(b.param(0, I64), loop, b.alu(ExprOp.MUL, loop, n))
    b.end(loop)
    assert extent(b.uops, [4], n_buffers=1) == extent(b.uops, {1: 4}) == 4
    out = np.full(4, -1)
    interpret(b.uops, [out], [4], start=1, stop=3)
    assert out.tolist() == [-1, 4, 8, -1]
    interpret(b.uops, [out], {1: 4})
    assert out.tolist() == [0, 4, 8, 12]


# -- what it refuses -------------------------------------------------------------------------------


def refuses(b: Builder, kind: type[Exception], text: str, *buffers: Array) -> None:
    with pytest.raises(kind) as caught:
        interpret(b.uops, buffers)
    assert text in str(caught.value)


@pytest.mark.parametrize("index", [-1, 1])
def test_loads_outside_a_buffer(index: int) -> None:
    b = Builder()
    b.load(b.param(0, dtypes.float32), b.const(index), 4)
    at = -1 if index < 0 else 4
    text = f"load of buffer 0[{at}]: it has 4 elements"
    refuses(b, AccessError, text, np.zeros(4, np.float32))
    assert issubclass(AccessError, IndexError)


def test_stores_outside_a_buffer() -> None:
    b = Builder()
    pointer = b.param(0, dtypes.float32)
    b.store(pointer, b.const(4), b.const(1.0, dtypes.float32))
    refuses(b, AccessError, "store of buffer 0[4]: it has 4 elements", np.zeros(4, np.float32))


def test_what_was_loaded_stays_when_memory_is_written() -> None:
    b = Builder()
    pointer = b.param(0, dtypes.float32)
    before = b.load(pointer, b.const(0), 4)
    b.store(pointer, b.const(0), b.const(7.0, dtypes.float32, 4))
    b.store(b.param(1, dtypes.float32), b.const(0), before)
    data, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    interpret(b.uops, [data, out])
    assert (data.tolist(), out.tolist()) == ([7, 7, 7, 7], [0, 1, 2, 3])


def test_masked_lanes_may_point_anywhere() -> None:
    b = Builder()
    pointer = b.param(0, dtypes.float32)
    mask = b.alu(ExprOp.CMPLT, b.add(UOps.IOTA, I64, 4), b.const(2, I64, 4))
    value = b.load(pointer, b.const(2), 4, mask)
    b.store(b.param(1, dtypes.float32), b.const(0), value)
    out = np.ones(4, np.float32)
    interpret(b.uops, [np.array([1, 2, 3, 4], np.float32), out])
    assert out.tolist() == [3, 4, 0, 0]


def test_masked_lanes_in_bounds_are_neither_read_nor_written() -> None:
    b = Builder()
    mask = b.alu(ExprOp.CMPLT, b.add(UOps.IOTA, I64, 4), b.const(2, I64, 4))
    value = b.load(b.param(0, dtypes.float32), b.const(0), 4, mask)
    b.store(b.param(1, dtypes.float32), b.const(0), value)
    b.store(b.param(2, dtypes.float32), b.const(0), value, mask)
    loaded, stored = np.ones(4, np.float32), np.full(4, 9, np.float32)
    interpret(b.uops, [np.array([1, 2, 3, 4], np.float32), loaded, stored])
    assert (loaded.tolist(), stored.tolist()) == ([1, 2, 0, 0], [1, 2, 9, 9])


def test_each_lane_may_have_an_index_of_its_own() -> None:
    b = Builder()
    backwards = b.alu(ExprOp.SUB, b.const(3, I64, 4), b.add(UOps.IOTA, I64, 4))
    value = b.load(b.param(0, dtypes.float32), backwards, 4)
    b.store(b.param(1, dtypes.float32), b.const(0), value)
    out = np.zeros(4, np.float32)
    interpret(b.uops, [np.arange(1, 9, dtype=np.float32), out])
    assert out.tolist() == [4, 3, 2, 1]


def test_each_thread_has_its_own_scratch() -> None:
    memory = Memory("panel", np.zeros(8, np.float32), np.zeros(8, bool), None, copies=2)
    place, threads = np.array([[1]]), np.arange(2)
    memory.store(place, np.array([[5], [6]], np.float32), None, threads)
    assert memory.data.tolist() == [0, 5, 0, 0, 0, 6, 0, 0]
    assert memory.load(place, 1, None, threads).tolist() == [[5], [6]]


def test_a_thread_alone_waits_for_its_copies_too() -> None:
    memory = Memory("panel", np.zeros(8, np.float32), np.zeros(8, bool), None, copies=1)
    place, alone, values = np.array([[2]]), np.arange(1), np.ones((1, 4), np.float32)
    copy = memory.await_copy(place, values, None, alone)
    with pytest.raises(RaceError, match=r"panel\[2\] is written, and a copy is on its way to it"):
        memory.store(place, values, None, alone)
    copy.arrive()
    assert memory.load(place, 4, None, alone).tolist() == values.tolist()


def test_scratch_that_nobody_wrote() -> None:
    b = Builder()
    scratch = b.add(UOps.LOCAL, dtypes.float32, arg=("panel", 8))
    b.store(scratch, b.const(0), b.const(1.0, dtypes.float32, 4))
    b.load(scratch, b.const(2), 4)
    refuses(b, AccessError, "load of panel[4], which was never written")


def test_scratch_has_a_size() -> None:
    b = Builder()
    scratch = b.add(UOps.LOCAL, dtypes.float32, arg=("panel", 8))
    b.store(scratch, b.const(6), b.const(1.0, dtypes.float32, 4))
    refuses(b, AccessError, "store of panel[8]: it has 8 elements")


def test_values_end_with_their_loop() -> None:
    b = Builder()
    out = b.param(0, I64)
    loop = b.loop(b.const(0), b.const(3))
    inside = b.alu(ExprOp.ADD, loop, loop)
    b.end(loop)
    b.store(out, b.const(0), inside)
    refuses(b, InterpretError, "ALU is used outside the loop or if", np.zeros(1, np.int64))


def test_the_counter_of_a_loop_ends_with_it() -> None:
    b = Builder()
    out = b.param(0, I64)
    loop = b.loop(b.const(0), b.const(3))
    b.end(loop)
    b.store(out, b.const(0), loop)
    refuses(b, InterpretError, "LOOP is used outside the loop or if", np.zeros(1, np.int64))


def test_values_end_with_their_condition() -> None:
    b = Builder()
    condition = b.add(UOps.IF, src=(b.const(False, dtypes.bool),))
    inside = b.add(UOps.VALUE, I64, arg=0)
    b.end(condition)
    b.store(b.param(0, I64), b.const(0), inside)
    refuses(b, InterpretError, "VALUE is used outside the loop or if", np.zeros(1, np.int64))


def test_loops_are_closed_in_order() -> None:
    b = Builder()
    outer = b.loop(b.const(0), b.const(3))
    b.loop(b.const(0), b.const(3))
    b.end(outer)
    refuses(b, ProgramError, "closes something that is not the innermost open block")


def test_loops_go_forward() -> None:
    b = Builder()
    loop = b.loop(b.const(0), b.const(3), step=0, name="k")
    b.end(loop)
    refuses(b, InterpretError, "loop k has step 0; steps are positive")


def test_buffers_of_another_dtype() -> None:
    b = Builder()
    b.param(0, dtypes.float32)
    text = "buffer 0 is a 1-d array of float64, not a flat one of float32"
    refuses(b, InterpretError, text, np.zeros(4))
    refuses(b, AccessError, "buffer 0 is not there: 0 were given")


def test_values_of_another_dtype_or_lanes() -> None:
    b = Builder()
    vector = b.const(1.0, dtypes.float32, 4)
    b.uops.append(UOp(UOps.SHUFFLE, dtypes.float32, 4, (vector,), (0, 1)))
    refuses(b, InterpretError, "SHUFFLE gives float32 with 2 lanes, not float32 with 4")
    b = Builder()
    b.add(UOps.BITCAST, dtypes.float64, 2, (b.const(1.0, dtypes.float32, 2),))
    refuses(b, ProgramError, "BITCAST: makes 128 bits of 64")


def test_a_prefetch_is_of_a_buffer_at_one_place() -> None:
    b = Builder()
    b.add(UOps.PREFETCH, src=(b.add(UOps.LOCAL, dtypes.float32, arg=("scratch", 8)), b.const(0)))
    refuses(b, ProgramError, "PREFETCH: fetches from no buffer")
    b = Builder()
    b.add(UOps.PREFETCH, src=(b.param(0, dtypes.float32), b.const(0.5, dtypes.float32)))
    refuses(b, ProgramError, "PREFETCH: the index must be a scalar, int32 or int64")


def test_bitcasts_between_widths() -> None:
    b = Builder()
    zero = b.const(0)
    two = b.load(b.param(0, dtypes.uint16), zero, 2)
    b.store(b.param(1, dtypes.uint32), zero, b.add(UOps.BITCAST, dtypes.uint32, 1, (two,)))
    out = np.zeros(1, np.uint32)
    interpret(b.uops, [np.array([1, 2], np.uint16), out])
    assert out[0] == 1 + (2 << 16)


def test_divisors_of_indices_are_positive() -> None:
    with pytest.raises(InterpretError, match=r"^an index is divided by 0; divisors must be pos"):
        apply(ExprOp.MOD, np.array([1, 2]), np.array([3, 0]))


def test_shift_counts_are_below_the_width() -> None:
    with pytest.raises(InterpretError, match=r"^a shift by \[32\] of 32-bit values"):
        apply(ExprOp.SHL, np.array([1], np.int32), np.array([32], np.int32))


def test_narrow_floats_have_no_arithmetic() -> None:
    half = np.ones(2, np.float16)
    with pytest.raises(InterpretError, match=r"^ADD of float16: programs compute in float32"):
        apply(ExprOp.ADD, half, half)


def test_functions_must_be_expanded_first() -> None:
    with pytest.raises(InterpretError, match=r"^EXP2 is no operation of a program"):
        apply(ExprOp.EXP2, np.ones(2, np.float32))


def test_variables_need_values() -> None:
    b = Builder()
    b.add(UOps.VALUE, I64, arg=3)
    refuses(b, InterpretError, "slot 3 of the table has no value; pass it")


def test_threads_that_each_go_their_own_way_race_too() -> None:
    b = Builder(0)
    b.add(UOps.EXTENT, src=(b.const(1),), arg=2)
    out, thread = b.param(0, dtypes.float32), b.add(UOps.THREAD, I64)
    always = b.add(UOps.IF, src=(b.alu(ExprOp.CMPLT, thread, b.const(2)),))
    b.store(out, b.const(0), b.const(1.0, dtypes.float32))
    b.add(UOps.ENDIF, src=(always,))
    with pytest.raises(RaceError, match=r"thread 1 writes buffer 0\[0\]"):
        interpret(b.uops, [np.zeros(1, np.float32)])


# -- copies that threads do not wait for ---------------------------------------------------------


def copying(after: str, threads: int = 4) -> list[UOp]:
    """Each thread copies two elements to shared memory, and stores what its neighbour copied.

    `after` are the steps in between: c COMMIT, w and 1 WAIT for all or all but one group, b
    BARRIER, 2 a second copy, s a STORE to where the copy goes to.
    """
    b = Builder(0)
    b.add(UOps.EXTENT, src=(b.const(1),), arg=threads)
    thread = b.add(UOps.THREAD, I64)
    mine = b.alu(ExprOp.MUL, thread, b.const(2))
    next_one = b.alu(ExprOp.MOD, b.alu(ExprOp.ADD, mine, b.const(2)), b.const(2 * threads))
    source, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    shared = b.add(UOps.SHARED, dtypes.float32, arg=("shared", 2 * threads))
    few = b.alu(ExprOp.CMPLT, thread, b.const(2))
    mask = b.add(UOps.SPLAT, dtypes.bool, 2, (few,))
    steps = {
        "c": lambda: b.add(UOps.COMMIT),
        "w": lambda: b.add(UOps.WAIT, arg=0),
        "1": lambda: b.add(UOps.WAIT, arg=1),
        "b": lambda: b.add(UOps.BARRIER),
        "2": lambda: b.add(UOps.COPY, None, 2, (shared, mine, source, mine, mask), 2),
        "s": lambda: b.store(shared, mine, b.const(1.0, dtypes.float32, 2)),
    }
    for step in "2" + after:
        steps[step]()
    b.store(out, mine, b.load(shared, next_one, 2))
    return b.uops


def copied(after: str) -> list[float]:
    out = np.zeros(8, np.float32)
    interpret(copying(after), [np.arange(1, 9, dtype=np.float32), out])
    return out.tolist()


def test_copies_are_there_when_all_threads_have_waited() -> None:
    assert copied("cwb") == [3, 4, 0, 0, 0, 0, 1, 2]


def test_a_wait_may_leave_the_newest_groups() -> None:
    """Here one without copies."""
    assert copied("cc1b") == copied("cwb")


@pytest.mark.parametrize("after", ["b", "cb", "wb", "c1b", "cbw"])
def test_what_is_read_before_its_copy_is_there(after: str) -> None:
    with pytest.raises((AccessError, RaceError)):
        copied(after)


def test_threads_wait_only_for_their_own_copies() -> None:
    with pytest.raises(RaceError, match=r"reads shared.* which another thread has written"):
        copied("cw")


@pytest.mark.parametrize("step", ["s", "2"])
def test_what_a_copy_is_on_its_way_to_is_not_written(step: str) -> None:
    with pytest.raises(RaceError, match="a copy is on its way to it"):
        copied(f"{step}cwb")


def test_a_block_waits_for_its_copies() -> None:
    program = copying("cb")
    ends = program[: [u.op for u in program].index(UOps.BARRIER)]
    with pytest.raises(InterpretError, match="ends while copies are on their way"):
        interpret(ends, [np.ones(8, np.float32)] * 2)


def test_operands_of_copies_are_checked() -> None:
    program = copying("cwb")
    (copy,) = (u for u in program if u.op is UOps.COPY)
    to, to_index, source, index, mask = copy.src
    wrong = [
        ((source, to_index, to, index, mask), "copies from a buffer to memory that the block"),
        ((to, mask, source, index, mask), "an index must be int32 or int64"),
        ((to, to_index, source, index, index), "the mask must be bool, one for each lane"),
        ((*copy.src, mask), "the condition must be bool, a scalar"),
    ]
    for src, message in wrong:
        other = UOp(UOps.COPY, None, 2, src)
        with pytest.raises(ProgramError, match=message):
            interpret([other if u is copy else u for u in program], [np.ones(8, np.float32)] * 2)
    with pytest.raises(ProgramError, match="waits for all but None groups"):
        interpret([*program, UOp(UOps.WAIT)], [np.ones(8, np.float32)] * 2)
