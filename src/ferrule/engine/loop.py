"""Loops: a body of lazy nodes that is planned once, and run once for each trip.

A `Body` is written over placeholders: the values that are carried from trip to trip, the rows of
arrays, and what is the same in each trip. `loop_results` makes the nodes of its results. They are
those of one run of a `Loop`, which computes as many of them as somebody needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, final
from weakref import WeakValueDictionary

from ferrule.base.records import dataclass
from ferrule.engine.loop_body import Body, LoopError, LoopForm, Trips, made_of, rebuilt
from ferrule.engine.loop_runs import Loop, loops_by_integers
from ferrule.engine.realize import unrecorded
from ferrule.fusion import ClosedGraph, values_of
from ferrule.fusion.graph import toposort
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, Variable, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps
from ferrule.ir.op_table import PLAIN_MOVEMENTS
from ferrule.ir.shape.layout import storage_size


@final
@dataclass(frozen=True, eq=False)
class Results:
    """The nodes of a loop's results."""

    last: list[LazyBuffer]
    """The carried values after the last trip."""
    stacked: list[LazyBuffer]
    """The rows of all trips."""
    kept: list[LazyBuffer]
    """The carried values before each trip."""
    count: LazyBuffer
    """The number of trips."""


def loop_results(
    body: Body,
    starts: Sequence[LazyBuffer],
    arrays: Sequence[LazyBuffer],
    trips: Trips,
    device: str,
) -> Results:
    """The results of a loop. `starts` are the first carries, `arrays` have a row for each trip."""
    n = len(body.carries)
    constants = _invariants(body.outs, [*body.carries, *body.rows], trips.since)
    twins = {node: _in_plan(node) for node in (*body.carries, *body.rows, *constants)}
    leaves = list(twins.values())
    outs = _distinct(rebuilt(body.outs, twins), twins)
    sources, firsts = zip(*map(_rows_of, arrays), strict=True) if arrays else ((), ())
    inner = Body(leaves[:n], leaves[n : n + len(arrays)], outs)
    runner = _loop(inner, leaves[n + len(arrays) :], trips.form(), tuple(firsts), device)
    rows, n_outs = trips.rows, len(outs)
    carried = [(node.shape, node.dtype) for node in body.carries]
    stacked = [((rows, *node.shape), node.dtype) for node in body.outs[n:]]
    kept = [((rows + 1, *shape), dtype) for shape, dtype in carried]
    counted = [] if trips.count is None else [trips.count]
    nodes = LazyBuffer.several(
        runner,
        [*starts, *sources, *constants, *counted],
        [*carried, *stacked, *kept, ((1,), dtypes.int32)],
        device,
        trips.size,
    )
    first = 1 if trips.backwards else 0
    kept_rows = [
        node.shrink([(first, rows + first), *[(0, size) for size in node.shape[1:]]])
        for node in nodes[n_outs : n_outs + n]
    ]
    return Results(nodes[:n], nodes[n:n_outs], kept_rows, nodes[-1])


def _distinct(
    outs: Sequence[LazyBuffer], twins: Mapping[LazyBuffer, LazyBuffer]
) -> list[LazyBuffer]:
    """The nodes, each with memory of its own."""
    seen: set[LazyBuffer] = set()
    found = []
    for out in outs:
        is_computed = out.srcs and out not in seen
        seen.add(out)
        found.append(out if is_computed else out.like((out,), None, op=LoadOps.CONTIGUOUS))
    return found


def _rows_of(array: LazyBuffer) -> tuple[LazyBuffer, sint]:
    """The memory that an array's rows are in, and the number of the first: a part is not copied."""
    if array.op is MovementOps.SHRINK and array.realized is None:
        (memory,) = array.srcs
        (start, _), *rest = array.arg
        whole = rest == [(0, size) for size in memory.shape[1:]]
        if whole and memory.owns_memory and isinstance(start, int):
            return memory, start
    return array, 0


def _invariants(
    roots: Sequence[LazyBuffer], leaves: Sequence[LazyBuffer], since: int | None
) -> list[LazyBuffer]:
    """The values that are the same in each trip: they are computed once, before the loop.

    These are the largest that are no movement of others, so that nothing is copied for it, and not
    computed from nodes made `since`. A part at a variable is one, too: a loop knows the values of
    sizes alone.
    """
    varying = made_of(roots, leaves)
    if since is not None:
        for node in toposort(roots, everything=True, known=leaves):
            is_part = node.op in PLAIN_MOVEMENTS and node.srcs[0] not in varying
            if node.serial >= since and node.realized is None and not is_part:
                varying.add(node)
    found: dict[LazyBuffer, None] = {}
    stack = list(roots)
    seen = set(leaves)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        value = node.base_const()
        if isinstance(value, Expr):  # a loop knows no values of variables but of its sizes
            found[node] = None
        if value is not None or (node.op is LoadOps.EMPTY and node.realized is None):
            continue
        moves = node.op in PLAIN_MOVEMENTS and node.realized is None
        if node in varying or (moves and _variables(node.arg) <= values_of(node.srcs).keys()):
            stack += node.srcs
        elif any([below.base_const() is None for below in toposort([node]) if not below.srcs]):
            found[node] = None
    return list(found)


def _variables(arg: Any) -> set[Variable]:
    """The variables in the argument of a movement."""
    if isinstance(arg, tuple):
        return set().union(*map(_variables, arg))
    return {*unbind(arg)[1]} if isinstance(arg, Expr) else set()


_MEMORY: Final = object()
"""The handle of the memory of placeholders in plans, which is never touched."""


def _in_plan(node: LazyBuffer) -> LazyBuffer:
    """A leaf like a node, for plans."""
    buffer = Buffer(node.device, storage_size(node.shape), node.dtype, _MEMORY)
    return LazyBuffer.in_buffer(buffer, node.shape)


_loops: WeakValueDictionary[tuple[Hashable, ...], Loop] = WeakValueDictionary()


def _loop(
    body: Body,
    constants: Sequence[LazyBuffer],
    form: LoopForm,
    firsts: tuple[sint, ...],
    device: str,
) -> Loop:
    """One object for equal loops with any number of trips, so that equal graphs have equal keys,
    and graphs of one family differ in sizes alone.
    """
    with unrecorded():
        graph = ClosedGraph(body.outs)
    numbers = graph.numbers
    leaves = [*body.carries, *body.rows, *constants]
    named = tuple([numbers.get(leaf, -1) for leaf in leaves])
    outs = tuple([numbers[out] for out in body.outs])
    unread = tuple([(leaf.shape, leaf.dtype) for leaf in leaves if leaf not in numbers])
    unknown = graph.values.keys() - values_of([*leaves, *body.outs]).keys()
    if unknown:
        names = ", ".join(sorted([variable.name for variable in unknown]))
        raise LoopError(
            f"[loop] the function takes a part of a value of the trip at {names}, whose value no "
            "size in it tells; take the part outside, or at a position that is a tensor"
        )
    shape = len(body.carries), len(body.rows)
    rest = named, outs, unread, shape, form, firsts, device
    key = graph.key, *rest
    found = None if graph.key is None else _loops.get(key)
    if found is None:
        found = Loop(body, constants, form, firsts, device)
        if graph.key is not None:
            now, others = graph.parameters()
            found.family = others, now.constants, *rest
            found.integers, found.n_sizes = now.integers, len(now.sizes)
            found = _loops.setdefault(key, found)
            loops_by_integers[found.family, found.integers] = found
    return found
