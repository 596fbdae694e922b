"""Ops: the documented names and values, the rules for shapes and dtypes, the tree, its cost."""

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from ferrule.dtype import DType, dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import ShapeError, View
from ferrule.ops import (
    BinaryOps,
    BufferOps,
    ConstBuffer,
    LazyOp,
    LoadOps,
    MemBuffer,
    MovementOps,
    Op,
    OpError,
    OpTypeError,
    ReduceOps,
    ScheduleItem,
    TernaryOps,
    UnaryOps,
    get_lazyop_info,
    infer,
)

ROOT = Path(__file__).parents[2]
F, I, B = dtypes.float32, dtypes.int32, dtypes.bool  # noqa: E741


def load(idx: int, *shape: int, dtype: DType = F) -> LazyOp:
    return LazyOp(BufferOps.LOAD, (), MemBuffer(idx, dtype, ShapeTracker.from_shape(shape)))


def const(value: float, *shape: int, dtype: DType = F) -> LazyOp:
    return LazyOp(BufferOps.CONST, (), ConstBuffer(value, dtype, ShapeTracker.from_shape(shape)))


def test_documented_values() -> None:
    documented = {
        UnaryOps: "EXP2 LOG2 CAST SIN SQRT RECIP NEG TRUNC COS",
        BinaryOps: "ADD SUB MUL DIV MAX MOD CMPLT CMPNE XOR AND OR SHL SHR",
        TernaryOps: "MULACC WHERE",
        ReduceOps: "SUM MAX PROD SCATTER",
        MovementOps: "RESHAPE PERMUTE EXPAND PAD SHRINK STRIDE AS_STRIDED WINDOW UNWINDOW GATHER",
        LoadOps: "EMPTY CONST FROM CONTIGUOUS CUSTOM ASSIGN TEMPLATE RESULT",
        BufferOps: "LOAD CONST STORE SINK STAGE",
    }
    for kind, names in documented.items():
        expected = {name: value for value, name in enumerate(names.split(), 1)}
        assert {member.name: member.value for member in kind} == expected


def test_the_former_name_of_a_stage_warns() -> None:
    with pytest.warns(DeprecationWarning, match="KEEP is BufferOps.STAGE now") as caught:
        assert BufferOps.KEEP is BufferOps.STAGE
    assert caught[0].filename == __file__


# *** interning ***


def test_equal_nodes_are_one_object() -> None:
    a = LazyOp(BinaryOps.ADD, (load(1, 2), load(2, 2)))
    b = LazyOp(BinaryOps.ADD, (load(1, 2), load(2, 2)))
    assert a is b
    assert a.hash == b.hash
    assert a is not LazyOp(BinaryOps.ADD, (load(2, 2), load(1, 2)))
    assert pickle.loads(pickle.dumps(a)) is a
    assert copy.deepcopy(a) is a


@pytest.mark.parametrize("name", ["op", "src", "arg", "other"])
def test_a_node_stays_what_it_is(name: str) -> None:
    node = LazyOp(UnaryOps.NEG, (load(1, 4),))
    with pytest.raises(FrozenInstanceError, match=rf"LazyOp\.{name}: all trees with such a node"):
        setattr(node, name, None)
    with pytest.raises(FrozenInstanceError):
        delattr(node, name)
    assert node is LazyOp(UnaryOps.NEG, (load(1, 4),))


def test_a_node_is_a_dataclass() -> None:
    node = LazyOp(UnaryOps.NEG, (load(1, 4),))
    assert [member.name for member in dataclasses.fields(node)] == ["op", "src", "arg"]
    assert dataclasses.replace(node, op=UnaryOps.SIN) is LazyOp(UnaryOps.SIN, (load(1, 4),))
    match node:
        case LazyOp(UnaryOps.NEG, (source,), None):
            assert source is load(1, 4)
        case _:
            raise AssertionError(node)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (lambda: LazyOp("ADD", (load(1, 4),)), "LazyOp: 'ADD' is no op; use a member such as"),
        (lambda: LazyOp(ReduceOps.SUM, (load(1, 4),)), "the argument None is none that it takes"),
        (lambda: LazyOp(MovementOps.PAD, (load(1, 4),), (1,)), r"the argument \(1,\) is none that"),
        (lambda: LazyOp(BufferOps.STORE, (load(1, 4),), 3), "the argument 3 is none that it takes"),
        (lambda: LazyOp(UnaryOps.NEG, (3,)), "UnaryOps.NEG: 3 is no operand; it has no shape"),
    ],
)
def test_arguments_and_operands_of_the_wrong_kind(node: Callable[[], LazyOp], message: str) -> None:
    with pytest.raises(OpError, match=message):
        _ = node().shape


def test_constants_differ_by_their_bits() -> None:
    values = [0.0, -0.0, 0, False, float("nan"), 1, 1.0, True]
    nodes = [const(value, 2) for value in values]
    assert len({id(node) for node in nodes}) == len(values)
    assert const(float("nan"), 2) is nodes[4]
    assert const(0.0, 2) is nodes[0]


def test_the_key_is_the_same_in_every_process() -> None:
    program = (
        "from tests.unit.test_ops import load, LazyOp, BinaryOps;"
        "print(LazyOp(BinaryOps.MUL, (load(1, 3), load(2, 3))).key)"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == LazyOp(BinaryOps.MUL, (load(1, 3), load(2, 3))).key, run.stderr
    assert load(1, 3).key != load(2, 3).key


# *** shapes and dtypes ***


@pytest.mark.parametrize(
    ("op", "operands", "arg", "shape", "dtype"),
    [
        (UnaryOps.EXP2, [((2, 3), F)], None, (2, 3), F),
        (UnaryOps.CAST, [((2,), F)], I, (2,), I),
        (UnaryOps.CAST, [((2,), F)], (I, True), (2,), I),
        (BinaryOps.ADD, [((2,), I)] * 2, None, (2,), I),
        (BinaryOps.CMPLT, [((2,), F)] * 2, None, (2,), B),
        (TernaryOps.WHERE, [((2,), B), ((2,), F), ((2,), F)], None, (2,), F),
        (TernaryOps.MULACC, [((2,), F)] * 3, None, (2,), F),
        (ReduceOps.SUM, [((2, 3), F)], (2, 1), (2, 1), F),
        (ReduceOps.SCATTER, [((2, 3), F), ((2, 3), I)], (1, 7), (2, 7), F),
        (MovementOps.RESHAPE, [((2, 3), F)], (6,), (6,), F),
        (MovementOps.PERMUTE, [((2, 3, 4), F)], (2, 0, 1), (4, 2, 3), F),
        (MovementOps.EXPAND, [((1, 3), F)], (5, 3), (5, 3), F),
        (MovementOps.PAD, [((2, 3), F)], ((1, 0), (0, 2)), (3, 5), F),
        (MovementOps.SHRINK, [((4, 3), F)], ((1, 3), (0, 3)), (2, 3), F),
        (MovementOps.STRIDE, [((5, 4), F)], (-2, 3), (3, 2), F),
        (MovementOps.AS_STRIDED, [((6,), F)], ((2, 2), (2, 1), 1), (2, 2), F),
        (MovementOps.WINDOW, [((2, 7), F)], (1, 3, 2, 1), (2, 3, 3), F),
        (MovementOps.UNWINDOW, [((2, 3, 3), F)], (1, 7, 2, 1), (2, 7, 3), F),
        (MovementOps.GATHER, [((4, 3), F), ((2, 3), I)], 0, (2, 3), F),
    ],
)
def test_results(
    op: Op, operands: list[tuple[tuple[int, ...], DType]], arg: object, shape: object, dtype: DType
) -> None:
    assert infer(op, operands, arg) == (shape, dtype)


@pytest.mark.parametrize(
    ("op", "operands", "arg", "message"),
    [
        (BinaryOps.ADD, [((2,), F), ((3,), F)], None, "the operands' shapes differ"),
        (BinaryOps.ADD, [((2,), F)], None, "takes 2 operands, got 1"),
        (ReduceOps.SUM, [((2, 3), F)], (2,), "has not the rank of"),
        (ReduceOps.SUM, [((2, 3), F)], (2, 2), "only by axes of size 1"),
        (ReduceOps.MAX, [((2, 0), F)], (2, 1), "has no largest element"),
        (MovementOps.RESHAPE, [((2, 3), F)], (7,), "has 6 elements, .7,. has 7"),
        (MovementOps.RESHAPE, [((2, 3), F)], (-1, -6), "has a negative size"),
        (MovementOps.PERMUTE, [((2, 3), F)], (0, 0), "no permutation of the 2 axes"),
        (MovementOps.EXPAND, [((2, 3), F)], (4, 3), "only 1 repeats"),
        (MovementOps.PAD, [((2,), F)], ((-1, 0),), "a negative amount; use SHRINK"),
        (MovementOps.SHRINK, [((2,), F)], ((1, 3),), ".1, 3. is no part of an axis of size 2"),
        (MovementOps.STRIDE, [((2,), F)], (0,), "must be integers other than 0"),
        (MovementOps.AS_STRIDED, [((6,), F)], ((3, 2), (3, 1), 0), "reaches 0..7 of 6 elements"),
        (MovementOps.WINDOW, [((4,), F)], (0, 3, 1, 2), "spans 5 does not fit an axis of size 4"),
        (MovementOps.WINDOW, [((4,), F)], (1, 3, 1, 1), "axis 1 is out of range for 1 axes"),
        (MovementOps.UNWINDOW, [((4, 3), F)], (0, 6, 0, 1), "must be at least 1"),
        (MovementOps.GATHER, [((4, 3), F), ((2, 4), I)], 0, "differ off axis 0"),
        (ReduceOps.SCATTER, [((2,), F), ((3,), I)], (0, 4), "is not the index's"),
        (LoadOps.EMPTY, [], None, "it is no op of a kernel"),
        (UnaryOps.CAST, [((2,), F)], "float", "names no dtype"),
    ],
)
def test_shapes_that_do_not_fit(
    op: Op, operands: list[tuple[tuple[int, ...], DType]], arg: object, message: str
) -> None:
    with pytest.raises(OpError, match=message) as raised:
        infer(op, operands, arg)
    assert str(op) in str(raised.value)
    assert isinstance(raised.value, ShapeError)


@pytest.mark.parametrize(
    ("op", "operands", "arg", "message"),
    [
        (BinaryOps.ADD, [((2,), F), ((2,), I)], None, "dtypes differ: .* cast them first"),
        (UnaryOps.EXP2, [((2,), I)], None, "needs a float, got dtypes.int32"),
        (BinaryOps.SUB, [((2,), B)] * 2, None, "is not defined for bool"),
        (BinaryOps.XOR, [((2,), F)] * 2, None, "needs an integer or bool"),
        (BinaryOps.SHL, [((2,), B)] * 2, None, "needs an integer, got dtypes.bool"),
        (UnaryOps.CAST, [((2,), F)], (dtypes.int64, True), "a bitcast keeps the item size"),
        (MovementOps.GATHER, [((2,), F), ((2,), F)], 0, "the index must be int32 or int64"),
    ],
)
def test_dtypes_that_do_not_fit(
    op: Op, operands: list[tuple[tuple[int, ...], DType]], arg: object, message: str
) -> None:
    with pytest.raises(OpTypeError, match=message) as raised:
        infer(op, operands, arg)
    assert isinstance(raised.value, TypeError)


def test_a_store_fits_its_buffer() -> None:
    value = load(1, 2, 3)
    wrong_shape = MemBuffer(0, F, ShapeTracker.from_shape((3, 2)))
    with pytest.raises(OpError, match=r"is not that of the view \(3, 2\)"):
        _ = LazyOp(BufferOps.STORE, (value,), wrong_shape).shape
    wrong_dtype = MemBuffer(0, I, ShapeTracker.from_shape((2, 3)))
    with pytest.raises(OpTypeError, match=r"goes to a buffer of dtypes.int32; cast it first"):
        _ = LazyOp(BufferOps.STORE, (value,), wrong_dtype).dtype
    with pytest.raises(OpError, match="needs at least one STORE"):
        _ = LazyOp(BufferOps.SINK, ()).shape


def test_symbolic_shapes() -> None:
    n = Variable("n", 1, 10)
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, F, ShapeTracker(View.create((n, 4), (4, 1)))))
    assert x.pad(((1, 2), (0, 0))).shape == (n + 3, 4)
    assert x.shrink(((1, n), (0, 2))).shape == (n - 1, 2)
    assert x.stride((2, 1)).shape == ((n + 1) // 2, 4)
    assert x.window(0, 1).shape == (n, 4, 1)
    assert x.shrink(((n - 1, n), (0, 4))).shape == (1, 4)
    assert x.reshape((n * 4,)).shape == (n * 4,)


# *** the tree ***


def test_what_a_tree_holds() -> None:
    a, b = load(1, 4), load(2, 4)
    total = LazyOp(BinaryOps.ADD, (a, b))
    root = LazyOp(BinaryOps.MUL, (total, total))
    assert root.toposort() == [a, b, total, root]
    assert root.get_lazyops() == [root, total, b, a]
    assert root.realized is None
    assert root.st == ShapeTracker.from_shape((4,))
    assert a.st is a.arg.st
    with pytest.raises(NotImplementedError, match="does not know its users"):
        _ = root.children
    assert repr(total).splitlines()[-1] == "%2 = ADD(%0, %1)"


def test_leaves_that_are_no_nodes() -> None:
    class Leaf:
        shape = (4,)
        dtype = F

    one, two = Leaf(), Leaf()
    inner = LazyOp(BinaryOps.ADD, (one, two))
    tree = LazyOp(BinaryOps.MUL, (inner, one))
    assert tree.buffers == (one, two)
    assert tree.shape == (4,)
    a, b = load(1, 4), load(2, 4)
    expected = LazyOp(BinaryOps.MUL, (LazyOp(BinaryOps.ADD, (a, b)), a))
    assert tree.map_buffers({one: a, two: b}) is expected
    assert tree.map_buffers({inner: a, one: b}) is LazyOp(BinaryOps.MUL, (a, b))


def test_movement_methods_build_nodes() -> None:
    x = load(1, 2, 3)
    index = load(2, 2, 1, dtype=I)
    nodes = {
        MovementOps.RESHAPE: x.reshape((6,)),
        MovementOps.PERMUTE: x.permute((1, 0)),
        MovementOps.EXPAND: x.reshape((2, 3)).expand((2, 3)),
        MovementOps.PAD: x.pad(((0, 0), (1, 1))),
        MovementOps.SHRINK: x.shrink(((0, 1), (0, 3))),
        MovementOps.STRIDE: x.stride((1, -1)),
        MovementOps.AS_STRIDED: x.as_strided((2,), (1,), 3),
        MovementOps.WINDOW: x.window(1, 2),
        MovementOps.UNWINDOW: x.window(1, 2).unwindow(1, 3),
        MovementOps.GATHER: x.gather(index, 1),
    }
    for op, node in nodes.items():
        assert node.op is op
        assert len(node.shape) >= 1


def test_movements_go_below_elementwise_nodes() -> None:
    a, b = load(1, 2, 3), load(2, 2, 3)
    moves = [(MovementOps.PERMUTE, (1, 0)), (MovementOps.WINDOW, (0, 2, 1, 1))]
    moved = LazyOp(BinaryOps.ADD, (a, b)).replace_with_movement_ops(moves)
    below = [node.permute((1, 0)).window(0, 2) for node in (a, b)]
    assert moved is LazyOp(BinaryOps.ADD, tuple(below))
    reduced = LazyOp(ReduceOps.SUM, (a,), (2, 1))
    assert reduced.replace_with_movement_ops(moves[:1]) is reduced.permute((1, 0))


def test_variables_are_sorted_by_name() -> None:
    m, n = Variable("m", 1, 4), Variable("n", 1, 4)
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, F, ShapeTracker(View.create((n, 8), (8, 1)))))
    tree = x.shrink(((0, 1), (0, m)))
    assert tree.vars() == [m, n]
    constant = LazyOp(BufferOps.CONST, (), ConstBuffer(m, I, ShapeTracker.from_shape((2,))))
    assert constant.vars() == [m]
    with pytest.raises(OpError, match="two variables are called n"):
        x.shrink(((0, 1), (0, Variable("n", 1, 5)))).vars()
    with pytest.raises(OpError, match="is bound; a kernel takes it unbound"):
        x.shrink(((0, 1), (0, m.bind(2)))).vars()


def test_deep_trees_need_no_recursion() -> None:
    leaf = load(1, 4)
    node = leaf
    for _ in range(50_000):
        node = LazyOp(BinaryOps.ADD, (node, leaf))
    assert node.shape == (4,)
    assert len(node.toposort()) == 50_001
    assert node.vars() == []
    assert get_lazyop_info(node).flops == 200_000
    assert len(node.key) == 64
    moved = node.replace_with_movement_ops([(MovementOps.RESHAPE, (2, 2))])
    assert moved.shape == (2, 2)
    assert node.map_buffers({leaf: const(1.0, 4)}).shape == (4,)


# *** what it costs ***


def test_flops() -> None:
    a, b = load(1, 4), load(2, 4)
    add = LazyOp(BinaryOps.ADD, (a, b))
    twice = LazyOp(BinaryOps.ADD, (add, LazyOp(BinaryOps.ADD, (a, add))))
    total = LazyOp(ReduceOps.SUM, (add,), (1,))
    assert get_lazyop_info(add).flops == 4
    assert get_lazyop_info(LazyOp(BinaryOps.ADD, (add, add))).flops == 8
    assert get_lazyop_info(twice).flops == 12
    assert get_lazyop_info(total).flops == 8
    assert get_lazyop_info(LazyOp(BinaryOps.ADD, (total, total))).flops == 9
    assert get_lazyop_info(LazyOp(TernaryOps.MULACC, (a, a, b))).flops == 8
    assert get_lazyop_info(LazyOp(UnaryOps.CAST, (a,), I)).flops == 0
    assert get_lazyop_info(a.reshape((2, 2))).flops == 0


def running(value: LazyOp, size: int, op: ReduceOps = ReduceOps.SUM) -> LazyOp:
    """A reduce of windows of a row of three columns."""
    window = LazyOp(MovementOps.WINDOW, (value,), (0, size, 1, 1))
    return LazyOp(op, (window,), (*window.shape[:-1], 1))


def test_flops_of_running_totals() -> None:
    """Each is the one before and one more."""
    x = load(1, 10, 3)
    before = ((9, 0), (0, 0))
    padded = LazyOp(MovementOps.PAD, (x,), before)
    assert get_lazyop_info(running(padded, 10)).flops == 30
    assert get_lazyop_info(running(padded, 10, ReduceOps.MAX)).flops == 30
    view = MemBuffer(1, F, ShapeTracker.from_shape((10, 3)).pad(before))
    assert get_lazyop_info(running(LazyOp(BufferOps.LOAD, (), view), 10)).flops == 30
    ones = ConstBuffer(True, B, ShapeTracker.from_shape((10, 3)).pad(before))
    inside = LazyOp(BufferOps.CONST, (), ones)
    filled = LazyOp(TernaryOps.WHERE, (inside, padded, const(1.0, 19, 3)))
    assert get_lazyop_info(running(filled, 10, ReduceOps.PROD)).flops == 30
    squares = LazyOp(MovementOps.PAD, (LazyOp(BinaryOps.MUL, (x, x)),), before)
    assert get_lazyop_info(running(squares, 10)).flops == 60


def test_flops_of_other_windows() -> None:
    x = load(1, 10, 3)
    assert get_lazyop_info(running(x, 4)).flops == 7 * 3 * 4
    assert get_lazyop_info(running(load(1, 19, 3), 10)).flops == 10 * 3 * 10
    behind = LazyOp(MovementOps.PAD, (x,), ((0, 9), (0, 0)))
    assert get_lazyop_info(running(behind, 10)).flops == 10 * 3 * 10
    apart = LazyOp(MovementOps.PAD, (x,), ((18, 0), (0, 0)))
    window = LazyOp(MovementOps.WINDOW, (apart,), (0, 10, 1, 2))
    assert get_lazyop_info(LazyOp(ReduceOps.SUM, (window,), (10, 3, 1))).flops == 10 * 3 * 10


def test_memory() -> None:
    a, b = load(1, 4), load(2, 4)
    assert get_lazyop_info(LazyOp(BinaryOps.ADD, (a, b))).mem == {0: 16, 1: 16, 2: 16}
    assert get_lazyop_info(LazyOp(BinaryOps.ADD, (a, a))).mem == {0: 16, 1: 16}
    wide = LazyOp(
        BufferOps.LOAD, (), MemBuffer(1, F, ShapeTracker.from_shape((1, 4)).expand((8, 4)))
    )
    info = get_lazyop_info(LazyOp(UnaryOps.NEG, (wide,)))
    assert info.mem == {0: 128, 1: 16}
    assert info.mem_estimate == 144
    view = ShapeTracker.from_shape((4,))
    update = LazyOp(
        BufferOps.STORE, (LazyOp(BinaryOps.ADD, (load(0, 4), a)),), MemBuffer(0, F, view)
    )
    assert get_lazyop_info(update).mem == {0: 32, 1: 16}


def test_the_counter_can_be_consumed() -> None:
    info = get_lazyop_info(LazyOp(BinaryOps.ADD, (load(1, 4), load(2, 4))))
    assert (info.shape, info.dtype) == ((4,), F)
    assert info.consume_flops() == 4
    assert info.flops == 0


def test_symbolic_estimates() -> None:
    n = Variable("n", 1, 10)
    st = ShapeTracker(View.create((n, 4), (4, 1)))
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, F, st))
    info = get_lazyop_info(LazyOp(ReduceOps.SUM, (x,), (n, 1)))
    assert info.flops == n * 4
    assert info.mem_estimate == n * 20
    assert not isinstance(info.flops, int)
    assert info.flops.infer({n: 3}) == 12


def test_schedule_items() -> None:
    out, more, given = (Buffer("NUMPY", 4, F) for _ in range(3))
    item = ScheduleItem(load(1, 4), out, (given,), {})
    assert item.outputs == (out,)
    assert item.buffers == (out, given)
    assert ScheduleItem(load(1, 4), out, (given,), {}, (out, more)).buffers == (out, more, given)
    with pytest.raises(ValueError, match="is not the first of"):
        ScheduleItem(load(1, 4), more, (given,), {}, (out, more))


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (((4, 2), F), r"\(3, 3\) does not go into \(4, 2\)"),
        (((5, 3), F), r"\(3, 3\) does not go into \(5, 3\)"),
        (((4,), F), r"\(3, 3\) does not go into \(4,\)"),
    ],
)
def test_a_base_holds_what_is_scattered(base: tuple[tuple[int, ...], DType], message: str) -> None:
    index = ((3, 3), dtypes.int32)
    with pytest.raises(OpError, match=message):
        infer(ReduceOps.SCATTER, [((3, 3), F), index, base], (0, 4))
    with pytest.raises(OpTypeError, match="puts"):
        infer(ReduceOps.SCATTER, [((3, 3), F), index, ((4, 3), dtypes.int32)], (0, 4))
    with pytest.raises(OpError, match="2 operands or 3"):
        infer(ReduceOps.SCATTER, [((3, 3), F)], (0, 4))
    wide = infer(ReduceOps.SCATTER, [((3, 3), F), index, ((4, 7), F)], (0, 4, "min"))
    assert wide == ((4, 7), F)


def test_a_scatter_in_place_touches_what_it_writes() -> None:
    whole = MemBuffer(0, F, ShapeTracker.from_shape((1000, 8)))
    other = MemBuffer(3, F, ShapeTracker.from_shape((1000, 8)))
    value = LazyOp(BufferOps.LOAD, (), MemBuffer(1, F, ShapeTracker.from_shape((5, 8))))
    at = MemBuffer(2, dtypes.int32, ShapeTracker.from_shape((5, 8)))
    index = LazyOp(BufferOps.LOAD, (), at)
    for memory, how, nbytes in ((whole, (), 2), (whole, ("last",), 1), (other, ("last",), 200)):
        base = LazyOp(BufferOps.LOAD, (), memory)
        scatter = LazyOp(ReduceOps.SCATTER, (value, index, base), (0, 1000, *how))
        info = get_lazyop_info(LazyOp(BufferOps.STORE, (scatter,), whole))
        assert info.mem[0] + info.mem.get(3, 0) == nbytes * (160 if nbytes < 3 else 320)


def test_constants_of_other_bits_have_another_key() -> None:
    """The key is that of compiled kernels on disk."""
    values = [0.0, -0.0, float("nan"), -float("nan"), float("inf"), 1.0]
    trees = [
        LazyOp(BufferOps.CONST, (), ConstBuffer(value, F, ShapeTracker.from_shape((2,))))
        for value in values
    ]
    assert len({tree.key for tree in trees}) == len(set(trees)) == len(values)
