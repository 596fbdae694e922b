"""How often a kernel would evaluate a node, counted without lowering it."""

import pytest

from ferrule.dtype import dtypes
from ferrule.fusion.graph import toposort, value_sources
from ferrule.fusion.signature import Signature, Space, axis_groups
from ferrule.ir.lazy import LazyBuffer
from ferrule.ops import BinaryOps, ReduceOps, UnaryOps


def memory(*shape: int) -> LazyBuffer:
    return LazyBuffer.empty(shape, dtypes.float32, "NUMPY")


def visits(root: LazyBuffer) -> tuple[Space, dict[LazyBuffer, dict[Signature, None]]]:
    """All indices at which one kernel for `root` wants the nodes below."""
    space = Space(root.shape)
    wanted: dict[LazyBuffer, dict[Signature, None]] = {root: {space.identity: None}}
    for node in reversed(toposort([root])):
        for signature in wanted[node]:
            for place, source in enumerate(value_sources(node)):
                at = space.source_signature(node, signature, place)
                wanted.setdefault(source, {})[at] = None
    return space, wanted


def factor(root: LazyBuffer, node: LazyBuffer) -> float:
    """Evaluations for each element."""
    space, wanted = visits(root)
    return sum(space.evals(space.ranges(at)) for at in wanted[node]) / node.size


def spread(node: LazyBuffer, shape: tuple[int, ...]) -> LazyBuffer:
    return node.expand(shape)


def test_softmax_evaluates_its_exponentials_twice_and_its_reduces_once() -> None:
    x = memory(64, 100)
    largest = x.r(ReduceOps.MAX, (1,))
    powers = x.e(BinaryOps.SUB, spread(largest, x.shape)).e(UnaryOps.EXP2)
    total = powers.r(ReduceOps.SUM, (1,))
    root = powers.e(BinaryOps.DIV, spread(total, x.shape))
    assert factor(root, total) == 1
    assert factor(root, largest) == 1
    assert factor(root, powers) == 2
    assert factor(root, x) == 3


def test_two_stacked_windows() -> None:
    x = memory(16).e(UnaryOps.EXP2)
    inner = x.window(0, 3).r(ReduceOps.SUM, (1,)).reshape((14,))
    outer = inner.window(0, 3).r(ReduceOps.SUM, (1,)).reshape((12,))
    assert factor(outer, inner) == pytest.approx(36 / 14)
    assert round(factor(outer, inner), 2) == 2.57


def test_attention_written_out_evaluates_its_scores_once_for_each_column_of_the_values() -> None:
    scores = memory(8, 8).e(UnaryOps.EXP2)
    left = spread(scores.reshape((8, 1, 8)), (8, 5, 8))
    right = spread(memory(5, 8).reshape((1, 5, 8)), (8, 5, 8))
    product = left.e(BinaryOps.MUL, right).r(ReduceOps.SUM, (2,))
    assert factor(product, scores) == 5


def test_one_reduce_wanted_at_two_indices_has_two_loops() -> None:
    sums = memory(6, 7).e(UnaryOps.EXP2)
    total = sums.r(ReduceOps.SUM, (1,))
    rows = spread(total, (6, 6))
    columns = spread(total.reshape((1, 6)), (6, 6))
    root = rows.e(BinaryOps.MUL, columns)
    assert factor(root, total) == 2
    assert factor(root, sums) == 2


def test_reshapes_there_and_back_are_the_identity() -> None:
    x = memory(6, 4)
    for shape in [(24,), (2, 3, 4), (3, 2, 2, 2), (4, 6), (8, 3)]:
        moved = x.reshape(shape).e(UnaryOps.NEG)
        root = moved.reshape((6, 4)).e(UnaryOps.NEG)
        space, wanted = visits(root)
        assert list(wanted[x]) == [space.identity]
        (at,) = wanted[moved]
        assert space.evals(space.ranges(at)) == 24


def test_the_digits_of_an_index_show_whether_it_is_the_kernels_own() -> None:
    x = memory(6, 4)
    flat = x.reshape((24,)).e(UnaryOps.NEG)
    space, wanted = visits(flat.reshape((6, 4)).e(UnaryOps.NEG))
    (at,) = wanted[flat]
    assert space.digits_of(at, (24,)) == space.digits
    space, wanted = visits(x.permute((1, 0)).e(UnaryOps.NEG))
    (at,) = wanted[x]
    assert space.digits_of(at, (6, 4)) != space.digits


def test_shifts_there_and_back_cancel() -> None:
    x = memory(6)
    inner = x.e(UnaryOps.NEG)
    root = inner.pad(((2, 3),)).e(UnaryOps.EXP2).shrink(((2, 8),)).e(UnaryOps.NEG)
    space, wanted = visits(root)
    assert list(wanted[inner]) == [space.identity]


def test_different_constant_indices_are_told_apart() -> None:
    x = memory(6, 4).e(UnaryOps.EXP2)
    rows = [x.shrink(((row, row + 1), (0, 4))) for row in (1, 3)]
    assert factor(rows[0].e(BinaryOps.ADD, rows[1]), x) == pytest.approx(8 / 24)


def test_a_gathered_index_depends_on_all_that_its_index_does() -> None:
    x = memory(9, 4).e(UnaryOps.EXP2)
    index = LazyBuffer.empty((5, 4), dtypes.int32, "NUMPY")
    assert factor(x.gather(index, 0), x) == pytest.approx(20 / 36)


def test_groups_of_axes_that_cover_the_same_elements() -> None:
    assert axis_groups((2, 3, 4), (6, 4)) == (((0, 1), (0,)), ((2,), (1,)))
    assert axis_groups((1, 5), (5, 1)) == (((1,), (0,)),)
    assert axis_groups((4, 6), (8, 3)) == (((0, 1), (0, 1)),)
