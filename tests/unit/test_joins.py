"""However many values a `cat` puts side by side, each of them costs what a copy costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
from tests.effort import calls
from tests.kernels import load, store
from tests.planning import Work

from ferrule import Tensor
from ferrule.codegen.analysis.loop_partitions import segments_of
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.uops import UOp, UOps
from ferrule.engine.realize import run
from ferrule.fusion import make_schedule
from ferrule.fusion.joins import MAX_MASKS
from ferrule.ir.expr import ExprOp, alu, const, less, range_
from ferrule.ir.target import detect_cpu
from ferrule.ops import LazyOp, ScheduleItem, TernaryOps

HOST = replace(detect_cpu(), vector_bytes=64, max_threads=1)
COUNTS = (2, 7, 8, 9, 10, 12, 17, 33, 64, 100, 150)

Join: TypeAlias = Callable[[Sequence[Tensor]], Tensor]


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    Work.forget()


def pieces(count: int, *shape: int) -> list[Tensor]:
    array = np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)
    return [Tensor(part).realize() for part in array]


def kernels(whole: Tensor) -> list[ScheduleItem]:
    return make_schedule([whole.lazydata]).items


def program(ast: LazyOp, threads: int = 1) -> list[UOp]:
    return Linearizer(ast, replace(HOST, max_threads=threads)).linearize().uops


def loops(first: Tensor, *others: Tensor) -> Tensor:
    for other in others:
        first = first.cat(other)
    return first


JOINS: dict[str, Join] = {
    "rows": Tensor.cat,
    "columns": lambda parts: Tensor.cat(parts, dim=1),
    "a new axis": Tensor.stack,
    "one after the other": lambda parts: loops(*parts),
    "computed pieces": lambda parts: Tensor.cat([part.relu() * 2 for part in parts]),
    "a function of all": lambda parts: Tensor.cat(parts).relu() * 2,
    "one piece": lambda parts: Tensor.cat([parts[0]] * len(parts)),
}


@pytest.mark.parametrize("threads", [1, 64])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", JOINS)
def test_no_element_is_masked(name: str, count: int, threads: int) -> None:
    """Each loop copies one piece: a load for each store, or for several of one value."""
    whole = JOINS[name](pieces(count, 16, 32))
    for item in kernels(whole):
        uops = program(item.ast, threads)
        loads = [u for u in uops if u.op is UOps.LOAD]
        stores = [u for u in uops if u.op is UOps.STORE]
        assert all(len(u.src) == 2 for u in loads), "a load has a mask"
        assert len(loads) <= len(stores)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", JOINS)
def test_every_element_is_written_once(name: str, count: int) -> None:
    """Twice, if a function of all of them is computed."""
    whole = JOINS[name](pieces(count, 16, 32))
    written = 0
    for item in kernels(whole):
        stores = item.ast.src if item.ast.op.name == "SINK" else (item.ast,)
        written += sum(int(np.prod(store.shape)) for store in stores)
    passes = 2 if name == "a function of all" else 1
    assert written <= passes * count * 16 * 32


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reduced", [0, 1])
def test_sums_of_joins_have_no_masks(count: int, axis: int, reduced: int) -> None:
    """Of whole vectors; along columns, a block of these may have several pieces."""
    whole = Tensor.cat(pieces(count, 16, 64), dim=axis).sum(reduced)
    masked = [u for item in kernels(whole) for u in program(item.ast) if u.op is UOps.LOAD]
    if (axis, reduced) != (1, 0):
        assert all(len(u.src) == 2 for u in masked)


@pytest.mark.parametrize("count", [count for count in COUNTS if count <= 64])
def test_running_totals_of_joins_have_no_masks(count: int) -> None:
    """Of rows that are few enough for one chunk: later chunks begin under a mask."""
    parts = pieces(count, 16, 64)
    whole = Tensor.cat(parts).cumsum(0)
    for item in kernels(whole):
        loads = [u for u in program(item.ast) if u.op is UOps.LOAD]
        assert all(len(u.src) == 2 for u in loads)
    expected = np.concatenate([part.numpy() for part in parts]).cumsum(0)
    np.testing.assert_allclose(whole.numpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("count", [8, 12])
def test_channels_have_no_masks(count: int, batch: int) -> None:
    """Though a batch is too small for all threads, whose loop then is fused with the channels."""
    whole = Tensor.cat(pieces(count, batch, 4, 16, 16), dim=1)
    for item in kernels(whole):
        loads = [u for u in program(item.ast, threads=64) if u.op is UOps.LOAD]
        assert all(len(u.src) == 2 for u in loads)


@pytest.mark.parametrize("count", [2, 4, 6, 12])
def test_a_sum_is_computed_for_its_own_piece(count: int) -> None:
    """Not for all elements of the join, with masks for those that are not its own."""
    items = kernels(Tensor.cat([part.sum(1) for part in pieces(count, 16, 64)]))
    assert len(items) == count
    assert len({item.ast for item in items}) == 1


@pytest.mark.parametrize("count", [12, 40])
def test_kernels_have_few_masks(count: int) -> None:
    """Whatever is joined: pieces of pieces, and several joins that one kernel wants."""
    parts = pieces(count, 4, 8)
    first, second = Tensor.cat(parts), Tensor.cat(parts[::-1])
    both = Tensor.cat([first + second, first * second], dim=1)
    for item in kernels(both.exp()):
        masks = {n.src[0] for n in item.ast.toposort() if n.op is TernaryOps.WHERE}
        assert len(masks) <= MAX_MASKS


@pytest.mark.parametrize("count", [2, 8, 9, 70])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_a_join_are_parts_of_its_pieces(count: int, axis: int) -> None:
    """A kernel reads no piece that lies outside of the part, and none is stored for it."""
    parts = pieces(count, 3, 4)
    expected = np.concatenate([part.numpy() for part in parts], axis)
    size = parts[0].shape[axis]
    for place in range(count):
        for start, stop in ((0, size), (1, size), (0, 1)):
            whole = Tensor.cat(parts, dim=axis)
            part = whole.narrow(axis, place * size + start, stop - start) * 2
            (item,) = kernels(part)
            assert len(item.inputs) == 1
            run([item])
            first = place * size + start
            found = expected.take(range(first, first + stop - start), axis)
            np.testing.assert_array_equal(part.numpy(), found * 2)


@pytest.mark.parametrize("count", [3, 9])
def test_parts_across_borders(count: int) -> None:
    parts = pieces(count, 3, 4)
    expected = np.concatenate([part.numpy() for part in parts])
    for start in range(len(expected)):
        for stop in range(start + 1, len(expected) + 1):
            part = Tensor.cat(parts)[start:stop, 1:]
            np.testing.assert_array_equal(part.numpy(), expected[start:stop, 1:])


def test_planning_takes_time_in_proportion_to_the_pieces() -> None:
    def planned(count: int) -> int:
        whole = Tensor.cat([part.relu() for part in pieces(count, 3, 5)])
        return calls(lambda: make_schedule([whole.lazydata]))

    planned(20)
    assert planned(400) < 5 * planned(100)


def test_a_version_is_made_of_itself() -> None:
    """Its old contents are read before they are overwritten, also by many pieces."""
    array = np.arange(40 * 3, dtype=np.float32).reshape(40, 3)
    for count in (2, 12, 40):
        x = Tensor(array).realize()
        rows = [x[start : start + 1] for start in range(count)]
        x.assign(Tensor.cat([*rows[1:], rows[0], x[count:]]))
        expected = np.concatenate([array[1:count], array[:1], array[count:]])
        np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("divisor", [1, 7])
@pytest.mark.parametrize("sign", [1, -1])
def test_conditions_on_quotients_partition_loops(divisor: int, sign: int) -> None:
    """As those on the outer of two axes are once a loop goes over both."""
    for limit in range(-20, 20):
        x = load(1, 100)
        r = range_("i", 100)
        condition = less(r // divisor * sign, const(limit))
        value = alu(ExprOp.WHERE, condition, const(1.0), const(2.0))
        kernel = lower(store(x), "k")
        nest = kernel.roots[0]
        compute = replace(nest.computes[0], value=value.substitute({r: nest.loops[0].range}))
        changed = kernel.with_nest(replace(nest, computes=(compute,)))
        holds = [n // divisor * sign < limit for n in range(100)]
        found = segments_of(changed, changed.roots[0], 0)
        start = 0
        for segment in found:
            (known,) = dict(segment.known).values()
            assert set(holds[start : segment.end.arg]) == {known}
            start = segment.end.arg
        assert start == (100 if len(set(holds)) == 2 else 0)


@pytest.mark.parametrize("quotient", [False, True])
def test_conditions_of_lanes_partition_loops(quotient: bool) -> None:
    """Whatever their steps: those of whole pairs and of single elements, as in a `cat` of pairs."""
    x = load(1, 7, 16)
    o, i = range_("o", 7), range_("i", 16)
    first = less(o * 8 + i // 2, const(13)) if quotient else less(o * 16 + i, const(26))
    conditions = [first, less(o * 16 + i, const(83))]
    value = const(0.0)
    for condition in conditions:
        value = value + alu(ExprOp.WHERE, condition, const(1.0), const(2.0))
    kernel = lower(store(x), "k")
    nest = kernel.roots[0]
    ranges = dict(zip((o, i), nest.loop_ranges, strict=True))
    compute = replace(nest.computes[0], value=value.substitute(ranges))
    changed = kernel.with_nest(replace(nest, computes=(compute,)))
    found = segments_of(changed, changed.roots[0], 0)
    assert [segment.end.arg for segment in found] == [1, 2, 5, 6, 7]
    assert [len(segment.known) for segment in found] == [2, 1, 2, 1, 2]


def test_joins_run() -> None:
    for count in COUNTS:
        parts = pieces(count, 3, 5)
        items = kernels(whole := Tensor.cat(parts, dim=1))
        run(items)
        del items
        expected = np.concatenate([part.numpy() for part in parts], 1)
        np.testing.assert_array_equal(whole.numpy(), expected)
