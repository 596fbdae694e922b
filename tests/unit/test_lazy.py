"""The lazy graph: interning, simpler forms, versions, and what is refused."""

import gc
import math
import random
import weakref

import pytest
from tests.effort import calls

from ferrule.base.threadstate import this_thread
from ferrule.device import Buffer
from ferrule.dtype import DType, dtypes
from ferrule.ir.constant_folding import fold, fold_bitcast, fold_cast, is_negative_zero
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import DeviceMismatchError, LazyBuffer
from ferrule.ir.shape.layout import storage_size, storage_view
from ferrule.ir.shape.view import ShapeError, View
from ferrule.ir.storage import Storage, pending_writes
from ferrule.ops import BinaryOps, LoadOps, MovementOps, OpError, ReduceOps, TernaryOps, UnaryOps


def memory(*shape: int, dtype: DType = dtypes.float32, device: str = "NUMPY") -> LazyBuffer:
    return LazyBuffer.empty(shape, dtype, device)


def const(value: float, *shape: int, dtype: DType = dtypes.float32) -> LazyBuffer:
    return LazyBuffer.const(value, dtype, shape, "NUMPY")


# *** interning ***


def test_equal_expressions_are_one_node() -> None:
    x, y = memory(2, 3), memory(2, 3)
    assert x is not y
    assert x.e(BinaryOps.ADD, y) is x.e(BinaryOps.ADD, y)
    assert x.e(BinaryOps.ADD, y) is not y.e(BinaryOps.ADD, x)
    assert x.r(ReduceOps.SUM, (1,)) is x.r(ReduceOps.SUM, [1])
    assert x.reshape((3, 2)) is x.reshape([3, 2])
    assert x.contiguous() is x
    assert x.permute((1, 0)).contiguous() is x.permute((1, 0)).contiguous()


def test_constants_are_told_apart_by_their_bits() -> None:
    assert const(1) is const(1.0)
    assert const(0.0) is not const(-0.0)
    assert const(math.nan) is const(float("nan"))
    assert const(-math.nan) is const(-float("nan"))
    assert const(math.nan) is not const(-math.nan)
    assert const(1, dtype=dtypes.int32) is not const(1, dtype=dtypes.bool)
    assert const(300, dtype=dtypes.uint8).base_const() == 44


def test_interning_keeps_nothing_alive() -> None:
    x = memory(4)
    node = weakref.ref(x.e(UnaryOps.NEG).e(UnaryOps.SQRT))
    gc.collect()
    assert node() is None


def test_a_realised_node_forgets_its_sources() -> None:
    x = memory(4)
    source = weakref.ref(x)
    node = x.e(UnaryOps.EXP2)
    del x
    assert source() is not None
    node.set_realized(Buffer("NUMPY", 4, dtypes.float32), this_thread.state)
    assert source() is None
    assert (node.op, node.srcs) == (LoadOps.EMPTY, ())


def test_a_realised_node_is_not_found_by_its_old_expression() -> None:
    x = memory(4)
    node = x.e(UnaryOps.EXP2)
    node.set_realized(Buffer("NUMPY", 4, dtypes.float32), this_thread.state)
    assert x.e(UnaryOps.EXP2) is not node


def test_a_long_chain_can_be_dropped() -> None:
    x = memory(4)
    node = x
    for _ in range(100_000):
        node = node.e(BinaryOps.ADD, x)
    del node
    gc.collect()


def test_nodes_are_cheap() -> None:
    y = memory(4, 5)
    sources = [memory(4, 5) for _ in range(2000)]

    def build() -> list[LazyBuffer]:
        return [x.e(BinaryOps.ADD, y).reshape((4, 1, 5)).expand((4, 7, 5)) for x in sources]

    assert calls(build) < 50 * (3 * len(sources))


# *** simpler forms ***


@pytest.mark.parametrize(
    ("op", "value"),
    [
        (BinaryOps.ADD, -0.0),
        (BinaryOps.SUB, 0.0),
        (BinaryOps.MUL, 1.0),
        (BinaryOps.DIV, 1.0),
        (BinaryOps.MAX, -math.inf),
    ],
)
def test_float_identities(op: BinaryOps, value: float) -> None:
    x = memory(3)
    assert x.e(op, const(value, 3)) is x


@pytest.mark.parametrize(
    ("op", "value"),
    [
        (BinaryOps.ADD, 0.0),  # -0.0 + 0.0 is 0.0
        (BinaryOps.SUB, -0.0),
        (BinaryOps.MUL, 0.0),  # of NaN and infinity it is NaN
        (BinaryOps.MAX, 0.0),
    ],
)
def test_what_is_no_identity_of_floats_stays(op: BinaryOps, value: float) -> None:
    x = memory(3)
    node = x.e(op, const(value, 3))
    assert node.op is op


def test_subtracting_from_zero_and_dividing_one_stay() -> None:
    x = memory(3)
    assert const(0.0, 3).e(BinaryOps.SUB, x).op is BinaryOps.SUB
    assert const(1.0, 3).e(BinaryOps.DIV, x).op is BinaryOps.DIV
    assert x.e(BinaryOps.SUB, x).op is BinaryOps.SUB


def test_integer_identities() -> None:
    x = memory(3, dtype=dtypes.int32)
    zero = const(0, 3, dtype=dtypes.int32)
    assert x.e(BinaryOps.ADD, zero) is x
    assert zero.e(BinaryOps.ADD, x) is x
    assert zero.e(BinaryOps.MUL, x) is zero
    assert x.e(BinaryOps.SHL, zero) is x
    assert zero.e(BinaryOps.SHL, x).op is BinaryOps.SHL


def test_where_with_a_known_condition_or_equal_branches() -> None:
    x, y = memory(3), memory(3)
    assert const(1, 3, dtype=dtypes.bool).e(TernaryOps.WHERE, x, y) is x
    assert const(0, 3, dtype=dtypes.bool).e(TernaryOps.WHERE, x, y) is y
    assert memory(3, dtype=dtypes.bool).e(TernaryOps.WHERE, x, x) is x


def test_negating_twice_and_casting_to_the_same_dtype() -> None:
    x = memory(3)
    assert x.e(UnaryOps.NEG).e(UnaryOps.NEG) is x
    assert x.cast(dtypes.float32) is x
    assert x.bitcast(dtypes.float32) is x


def test_constants_fold_in_their_own_dtype() -> None:
    big = const(200, 2, dtype=dtypes.uint8)
    assert big.e(BinaryOps.ADD, big).base_const() == 144
    third = const(1.0).e(BinaryOps.DIV, const(3.0)).base_const()
    assert third == 0.3333333432674408
    assert const(1.0).e(BinaryOps.CMPLT, const(2.0)).base_const() is True
    assert const(2.75).cast(dtypes.int32).base_const() == 2
    assert const(1.0).bitcast(dtypes.int32).base_const() == 0x3F800000


def test_movements_of_a_constant_are_a_constant() -> None:
    x = const(2.0, 2, 3)
    assert x.permute((1, 0)) is const(2.0, 3, 2)
    assert x.reshape((6, 1)).expand((6, 4)) is const(2.0, 6, 4)
    assert x.shrink(((0, 1), (0, 3))) is const(2.0, 1, 3)
    assert x.pad(((1, 0), (0, 0))).op is MovementOps.PAD
    assert const(0.0, 2).pad(((1, 0),)) is const(0.0, 3)
    assert const(-0.0, 2).pad(((1, 0),)).op is MovementOps.PAD


def test_movements_merge() -> None:
    x = memory(2, 3)
    assert x.reshape((6,)).reshape((2, 3)) is x
    assert x.reshape((6,)).reshape((3, 2)).srcs == (x,)
    assert x.permute((1, 0)).permute((1, 0)) is x
    assert x.shrink(((0, 2), (1, 3))).shrink(((1, 2), (0, 1))) is x.shrink(((1, 2), (1, 2)))
    assert x.reshape((1, 2, 3)).expand((4, 2, 3)).expand((4, 2, 3)).op is MovementOps.EXPAND
    assert x.pad(((0, 0), (0, 0))) is x
    assert x.stride((1, 1)) is x


def test_reduces_without_work() -> None:
    x = memory(1, 3)
    assert x.r(ReduceOps.SUM, (0,)) is x
    assert const(3, 4, dtype=dtypes.int32).r(ReduceOps.SUM, (0,)).base_const() == 12
    assert const(3.0, 4).r(ReduceOps.SUM, (0,)).base_const() == 12.0
    assert const(0.1, 4).r(ReduceOps.SUM, (0,)).op is ReduceOps.SUM
    assert const(0.1, 4).r(ReduceOps.MAX, (0,)).base_const() == const(0.1).base_const()


@pytest.mark.parametrize("op", [ReduceOps.SUM, ReduceOps.MAX])
def test_equal_results_of_a_reduce_are_computed_once(op: ReduceOps) -> None:
    rows = memory(5, 1, 3)
    found = rows.expand((5, 4, 3)).r(op, (2,))
    assert found is rows.r(op, (2,)).expand((5, 4, 1))
    partly = memory(1, 1, 3).expand((5, 4, 3)).r(op, (0, 2))
    assert (partly.op, partly.shape) == (MovementOps.EXPAND, (1, 4, 1))
    assert partly.srcs[0].shape == (1, 1, 1)


def test_a_reduce_of_nothing_but_copies_stays() -> None:
    """Its result is as small as its source."""
    found = memory(5, 1, 3).expand((5, 4, 3)).r(ReduceOps.SUM, (1,))
    assert (found.op, found.shape) == (ReduceOps.SUM, (5, 1, 3))


def test_axes_of_size_zero_need_no_kernel() -> None:
    x = memory(0, 3)
    assert x.e(UnaryOps.EXP2).op is LoadOps.CONST
    assert x.r(ReduceOps.SUM, (0,)).base_const() == 0.0
    assert x.r(ReduceOps.PROD, (0,)).base_const() == 1.0
    assert x.permute((1, 0)).shape == (3, 0)
    assert x.pad(((2, 0), (0, 0))) is const(0.0, 2, 3)
    with pytest.raises(OpError, match="no largest element"):
        x.r(ReduceOps.MAX, (0,))


def test_symbolic_sizes_take_the_memory_of_their_upper_bounds() -> None:
    n = Variable("n", 1, 10).bind(4)
    x = memory(3, 10).shrink(((0, 3), (0, n)))
    assert x.shape == (3, n)
    assert storage_size(x.shape) == 30
    assert storage_view(x.shape).strides == (10, 1)


# *** folding ***


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        (BinaryOps.DIV, -7, 2, -3),
        (BinaryOps.DIV, 7, 0, 0),
        (BinaryOps.MOD, -7, 2, -1),
        (BinaryOps.MOD, 7, 0, 7),
        (BinaryOps.SHR, -8, 1, -4),
        (BinaryOps.XOR, 5, 3, 6),
    ],
)
def test_integers_fold_as_c_does(op: BinaryOps, a: int, b: int, expected: int) -> None:
    assert fold(op, dtypes.int32, [a, b]) == expected


def test_floats_fold_as_ieee_754_says() -> None:
    assert fold(BinaryOps.DIV, dtypes.float32, [-1.0, 0.0]) == -math.inf
    assert math.isnan(float(fold(BinaryOps.DIV, dtypes.float32, [0.0, 0.0]) or 0))
    assert math.isnan(float(fold(UnaryOps.SQRT, dtypes.float32, [-1.0]) or 0))
    assert math.isnan(float(fold(BinaryOps.MAX, dtypes.float32, [math.nan, 1.0]) or 0))
    assert is_negative_zero(fold(UnaryOps.TRUNC, dtypes.float32, [-0.5]))
    assert fold(BinaryOps.MAX, dtypes.float32, [0.0, -0.0]) is None
    assert fold(UnaryOps.EXP2, dtypes.float32, [1.0]) is None


def test_casts_that_devices_may_do_differently_are_not_folded() -> None:
    assert fold_cast(1e20, dtypes.float32, dtypes.int32) is None
    assert fold_cast((1 << 53) + 1, dtypes.int64, dtypes.float32) is None
    assert fold_cast(math.nan, dtypes.float32, dtypes.bool) is True
    assert fold_bitcast(math.nan, dtypes.float32, dtypes.int32) is None


# *** versions ***


def test_writing_makes_a_new_version_and_keeps_the_old_one() -> None:
    old = LazyBuffer.from_buffer(Buffer("NUMPY", 4, dtypes.float32), (4,))
    storage = Storage(old)
    storage.write(const(1.0, 4))
    assert storage.node.op is LoadOps.ASSIGN
    assert storage.node.srcs == (old, const(1.0, 4))
    assert storage in pending_writes()
    storage.node.set_realized(Buffer("NUMPY", 4, dtypes.float32), this_thread.state)
    assert storage not in pending_writes()


def test_writing_all_of_what_was_never_computed_replaces_it() -> None:
    storage = Storage(memory(4).e(UnaryOps.NEG))
    value = memory(4).e(UnaryOps.SQRT)
    storage.write(value)
    assert storage.node is value


def test_two_storages_never_share_memory() -> None:
    a = LazyBuffer.from_buffer(Buffer("NUMPY", 4, dtypes.float32), (4,))
    storage = Storage(memory(4).e(UnaryOps.NEG))
    storage.write(a)
    assert storage.node is not a
    assert storage.node.op is LoadOps.ASSIGN


def test_writing_a_part_of_a_constant_gives_it_memory() -> None:
    storage = Storage(const(0.0, 4))
    storage.write(const(1.0, 2), View.create((2,), (1,), 1))
    memory_node = storage.node.srcs[0]
    assert (storage.node.op, memory_node.op) == (LoadOps.ASSIGN, LoadOps.ASSIGN)
    assert memory_node.srcs[1] is const(0.0, 4)


def test_writing_nothing_changes_nothing() -> None:
    node = LazyBuffer.from_buffer(Buffer("NUMPY", 4, dtypes.float32), (4,))
    storage = Storage(node)
    storage.write(node)
    storage.write(const(1.0, 0), View.create((0,)))
    assert storage.node is node


def test_pending_writes_do_not_keep_storages_alive() -> None:
    storage = Storage(LazyBuffer.from_buffer(Buffer("NUMPY", 4, dtypes.float32), (4,)))
    storage.write(const(1.0, 4))
    before = len(pending_writes())
    del storage
    gc.collect()
    assert len(pending_writes()) == before - 1


def test_pending_writes_are_in_the_order_of_writing() -> None:
    """So that plans do not depend on the addresses by which a set is ordered."""
    buffers = [Buffer("NUMPY", 4, dtypes.float32) for _ in range(40)]
    storages = [Storage(LazyBuffer.from_buffer(buffer, (4,))) for buffer in buffers]
    order = random.Random(1).sample(storages, len(storages))
    for number, storage in enumerate(order):
        storage.write(const(float(number), 4))
    assert [storage for storage in pending_writes() if storage in storages] == order


# *** errors ***


def test_operands_on_two_devices_are_refused() -> None:
    with pytest.raises(DeviceMismatchError, match=r"one operand is on NUMPY, another on CPU; copy"):
        memory(3).e(BinaryOps.ADD, memory(3, device="CPU"))
    index = memory(3, dtype=dtypes.int32, device="CPU")
    with pytest.raises(DeviceMismatchError, match=r"GATHER: one operand is on NUMPY"):
        memory(3).gather(index, 0)
    with pytest.raises(DeviceMismatchError, match=r"ASSIGN: one operand is on NUMPY"):
        memory(3).assign(memory(3, device="CPU"))


def test_operands_of_two_shapes_or_dtypes_are_refused() -> None:
    with pytest.raises(OpError, match=r"shapes differ.*expand them first"):
        memory(3).e(BinaryOps.ADD, memory(4))
    with pytest.raises(OpError, match=r"dtypes differ.*cast them first"):
        memory(3).e(BinaryOps.ADD, memory(3, dtype=dtypes.int32))
    with pytest.raises(OpError, match="needs a float"):
        memory(3, dtype=dtypes.int32).e(UnaryOps.EXP2)


def test_an_axis_out_of_range_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"SUM: axis 2 is out of range for shape \(3, 4\)"):
        memory(3, 4).r(ReduceOps.SUM, (2,))


def test_an_assignment_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"shape \(3,\) does not fill a region of shape \(4,\)"):
        memory(4).assign(memory(3))
    with pytest.raises(ShapeError, match=r"int32 does not go into memory of .*float32"):
        memory(4).assign(memory(4, dtype=dtypes.int32))
    with pytest.raises(ShapeError, match=r"names some elements twice, or none"):
        memory(4).assign(memory(3), View.create((3,), (0,)))


def test_memory_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"shape \(5,\) takes 5 elements, and .* has 4"):
        LazyBuffer.from_buffer(Buffer("NUMPY", 4, dtypes.float32), (5,))


def test_the_constructor_says_what_to_use() -> None:
    with pytest.raises(TypeError, match=r"use LazyBuffer\.const, \.empty or \.from_buffer"):
        LazyBuffer()


def test_a_symbolic_constant_beside_a_known_one() -> None:
    n = LazyBuffer.const(Variable("n", 1, 10).bind(4), dtypes.int32, (3,), "NUMPY")
    two = const(2, 3, dtype=dtypes.int32)
    assert n.e(BinaryOps.MUL, two).op is BinaryOps.MUL
    assert n.e(BinaryOps.MUL, const(1, 3, dtype=dtypes.int32)) is n
    assert const(0, 3, dtype=dtypes.int32).e(BinaryOps.ADD, n) is n


def test_what_is_put_into_zeros_starts_from_nothing() -> None:
    """So that it is one SCATTER, however it is written."""
    value = LazyBuffer.empty((4, 3), dtypes.float32, "CPU")
    index = LazyBuffer.empty((4, 3), dtypes.int32, "CPU")

    def zeros(columns: int, number: float = 0) -> LazyBuffer:
        return LazyBuffer.const(number, dtypes.float32, (9, columns), "CPU")

    assert zeros(3).put(value, index, 0) is value.scatter(index, 0, 9)
    assert zeros(3, 1).put(value, index, 0, "prod") is value.scatter(index, 0, 9, "prod")
    for base in (zeros(5), zeros(3, 1), zeros(3, -0.0)):
        assert base.put(value, index, 0).srcs == (value, index, base)
    assert zeros(5).put(value, index, 0).shape == (9, 5)
