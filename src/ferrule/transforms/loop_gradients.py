"""Loops as operations on the tape: the reverse pass of a loop is a loop in the other direction.

Its body is the reverse pass through one trip. It reads the values that the trip began with, which
the first loop then keeps, and the results of reduces and of slow functions; the rest it computes
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final, final

from ferrule.autograd import (
    IDENTITY,
    GradEdge,
    GradientError,
    Gradients,
    GradNode,
    Parts,
    Rule,
    TracedValue,
    is_recording,
    record_several,
    result_of,
)
from ferrule.autograd.backward import entries_below, pull_back
from ferrule.base.records import dataclass
from ferrule.engine.loop import Results, loop_results
from ferrule.engine.loop_body import Body, Trips, made_of, placeholder
from ferrule.fusion.graph import toposort
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import FunctionOps, LoadOps, MovementOps, ReduceOps, UnaryOps

_STORED: Final = frozenset(
    {
        *ReduceOps,
        *FunctionOps,
        *(UnaryOps.EXP2, UnaryOps.LOG2, UnaryOps.SIN, UnaryOps.COS),
        *(LoadOps.CUSTOM, LoadOps.RESULT, LoadOps.TEMPLATE, MovementOps.GATHER),
    }
)
"""The ops whose results the reverse pass reads: to compute them again would take longer."""


def node_mark() -> int:
    """A serial number above those of all nodes so far."""
    return LazyBuffer.empty((), dtypes.uint8, "").serial


def edges_from_outside(edges: Sequence[GradEdge], start: int) -> list[GradEdge]:
    """The edges made before a position of the tape that others depend on."""
    below = entries_below(edges, start)
    found = [*edges]
    found += [parent for entry in below for parent in entry.parents if parent is not None]
    inside = set(below)
    return [edge for edge in dict.fromkeys(found) if edge not in inside]


@final
@dataclass(frozen=True, eq=False)
class Trip:
    """One trip as values: placeholders, what it computes of them, and edges from outside.

    `start` is a position of the tape before its entries. `known` are nodes of it that were computed
    before, with the arrays that have them as rows.
    """

    carries: Sequence[TracedValue]
    rows: Sequence[TracedValue]
    outs: Sequence[TracedValue]
    outside: Sequence[GradEdge]
    start: int
    known: Mapping[LazyBuffer, LazyBuffer] = field(default_factory=dict)


def looped(
    what: str,
    trip: Trip,
    starts: Sequence[TracedValue],
    arrays: Sequence[TracedValue],
    trips: Trips,
) -> tuple[list[TracedValue], list[TracedValue]]:
    """The last carries and the stacked rows of a loop, on the tape."""
    sources = [*starts, *arrays]
    n, n_outs = len(starts), len(trip.outs)
    is_recorded = is_recording() and (
        bool(trip.outside) or any(value.edge is not None for value in sources)
    )
    has_rule = is_recorded and trips.most is not None
    needed = _needed(trip, trips.since) if has_rule else _Needed()
    nodes = [out.node for out in trip.outs]
    extra = [node for node in needed.stored if node not in trip.known]
    found = _results(trip, [*nodes, *extra], starts, arrays, trips)
    results = [*found.last, *found.stacked[: n_outs - n]]
    if not is_recorded:
        values = [TracedValue(node) for node in results]
        return values[:n], values[n:]
    known = {**trip.known, **dict(zip(extra, found.stacked[n_outs - n :], strict=True))}
    used = needed.stored
    call = _Call(what, trip, needed, trips, used, n_outs)
    reverse = _reverse if has_rule else _refuse
    rule = Rule(reverse, inputs=tuple([n + j for j in needed.rows]))
    others = [found.kept[k] for k in needed.carries]
    if trips.condition is not None and has_rule:
        others.append(found.count)
    values = record_several(
        what,
        rule,
        sources,
        results,
        call,
        trip.outside,
        kept=[*others, *[known[node] for node in used]],
    )
    return values[:n], values[n:]


def _results(
    trip: Trip,
    outs: Sequence[LazyBuffer],
    starts: Sequence[TracedValue],
    arrays: Sequence[TracedValue],
    trips: Trips,
) -> Results:
    """`loop_results`, for values without elements as well."""
    n = len(starts)
    carried = [k for k in range(n) if 0 not in starts[k].shape]
    read = [j for j, row in enumerate(trip.rows) if 0 not in row.shape]
    given = [k for k in range(n, len(outs)) if 0 not in outs[k].shape]
    leaves_of = [trip.rows[j].node for j in read]
    reached = toposort(
        [outs[k] for k in (*carried, *given)],
        everything=True,
        known=[*[trip.carries[k].node for k in carried], *leaves_of, *trip.known],
    )
    sources = {source for node in reached for source in node.srcs} | set(outs)
    used = [j for j in read if trip.rows[j].node in sources]
    known = [node for node in trip.known if node in sources]
    body = Body(
        [trip.carries[k].node for k in carried],
        [*[trip.rows[j].node for j in used], *known],
        [outs[k] for k in (*carried, *given)],
    )
    condition = None if trips.condition is None else carried.index(trips.condition)
    found = loop_results(
        body,
        [starts[k].node for k in carried],
        [*[arrays[j].node for j in used], *[trip.known[node] for node in known]],
        replace(trips, condition=condition),
        _device_of(outs, starts, arrays),
    )
    last = [value.node for value in starts]
    kept = [value.full(0, (trips.rows, *value.shape)).node for value in starts]
    for k, node, kept_node in zip(carried, found.last, found.kept, strict=True):
        last[k], kept[k] = node, kept_node
    stacked = [
        LazyBuffer.const(0, out.dtype, (trips.rows, *out.shape), out.device) for out in outs[n:]
    ]
    for k, node in zip(given, found.stacked, strict=True):
        stacked[k - n] = node
    return Results(last, stacked, kept, found.count)


def _device_of(
    outs: Sequence[LazyBuffer], starts: Sequence[TracedValue], arrays: Sequence[TracedValue]
) -> str:
    nodes = [*[value.node for value in (*starts, *arrays)], *outs]
    return nodes[0].device


# *** gradients ***


@final
@dataclass(frozen=True, eq=False)
class _Needed:
    """The values of a trip that its reverse pass reads."""

    carries: Sequence[int] = ()
    rows: Sequence[int] = ()
    stored: Sequence[LazyBuffer] = ()


@final
@dataclass(frozen=True, eq=False)
class _Call:
    """A loop on the tape. `used` are the nodes of a trip whose rows are kept."""

    what: str
    trip: Trip
    needed: _Needed
    trips: Trips
    used: Sequence[LazyBuffer]
    n_outs: int


def _needed(trip: Trip, since: int | None) -> _Needed:
    """The values that the gradients of all results need."""
    mark = node_mark()
    floats = [n for n, out in enumerate(trip.outs) if out.edge is not None]
    seeds = {n: _seed(trip.outs[n]) for n in floats}
    slopes = _pulled(trip, seeds, {}, create=False)
    return _read_by([slope.node for slope in slopes.values()], trip, mark, since)


def _seed(value: TracedValue) -> TracedValue:
    return TracedValue(placeholder("gradient", value.shape, value.dtype, value.node.device))


def _pulled(
    trip: Trip,
    seeds: Mapping[int, TracedValue],
    begun: Mapping[int, TracedValue],
    create: bool,
) -> dict[GradEdge, TracedValue]:
    """The gradients of a trip's placeholders and of the edges outside.

    `seeds` are those of what it computes, `begun` those of carries where it begins, by number.
    """
    ends = [value.edge for value in (*trip.carries, *trip.rows) if value.edge is not None]
    targets = [*ends, *trip.outside]
    pairs = [(trip.outs[n], seed) for n, seed in seeds.items()]
    pairs += [(trip.carries[k], seed) for k, seed in begun.items()]
    return pull_back(
        [value for value, _ in pairs],
        [seed for _, seed in pairs],
        targets,
        retain=True,
        create_graph=create,
        unhooked=targets,
    )


def _read_by(nodes: Sequence[LazyBuffer], trip: Trip, mark: int, since: int | None) -> _Needed:
    """The values of a trip that nodes made after `mark` are made of.

    These are also the carries and rows that only stored values are made of: derivatives of the
    reverse pass go on there.
    """
    leaves = [value.node for value in (*trip.carries, *trip.rows)]
    varying = made_of(nodes, leaves)
    below = set(toposort(nodes, everything=True))
    if since is not None:
        varying |= {node for node in below if node.serial >= since and node.realized is None}
    stored: dict[LazyBuffer, None] = {}
    seen: set[LazyBuffer] = set(leaves)
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in trip.known or (node in varying and node.serial < mark and node.op in _STORED):
            stored[node] = None
        else:
            stack += node.srcs
    return _Needed(
        [k for k, value in enumerate(trip.carries) if value.node in below],
        [j for j, value in enumerate(trip.rows) if value.node in below],
        list(stored),
    )


def _reverse(grad: Parts, entry: GradNode) -> Gradients:
    """The loop in the other direction, whose body is the reverse pass of one trip."""
    call: _Call = entry.arg
    trip, needed = call.trip, call.needed
    n, n_outs = len(trip.carries), call.n_outs
    create = is_recording()
    arrays = dict(zip(needed.rows, entry.saved, strict=False))
    more = entry.saved[len(needed.rows) :]
    kept = dict(zip(needed.carries, more, strict=False))
    rest = [value.node for value in more[len(needed.carries) :]]
    trips = replace(call.trips, backwards=not call.trips.backwards, condition=None)
    if call.trips.condition is not None:
        trips = replace(trips, count=rest.pop(0))
    stacks = rest
    known = dict(zip(call.used, stacks, strict=True))
    floats = [k for k in range(n) if trip.carries[k].edge is not None]
    carried = {k: _end(_seed(trip.carries[k]), create) for k in floats}
    given = {k: _end(_seed(trip.outs[k]), create) for k in grad.of if n <= k < n_outs}
    begun = {
        k - n_outs: _end(_seed(trip.carries[k - n_outs]), create) for k in grad.of if k >= n_outs
    }
    seeds = {k: seed for k, seed in {**carried, **given}.items() if trip.outs[k].edge is not None}
    found = _pulled(trip, seeds, begun, create)
    sums = [edge for edge in trip.outside if edge in found]
    totals = [_end(_seed(found[edge]), create) for edge in sums]
    asked = [
        j
        for j, row in enumerate(trip.rows)
        if entry.parents[n + j] is not None and row.edge in found
    ]

    def slope(value: TracedValue) -> TracedValue:
        return found[value.edge] if value.edge in found else value.full(0).detach()

    outs = [slope(trip.carries[k]) for k in floats]
    outs += [total + found[edge] for total, edge in zip(totals, sums, strict=True)]
    outs += [slope(trip.rows[j]) for j in asked]
    kept_values = {
        k: result_of(entry, value.node, n_outs + k) if create else value
        for k, value in kept.items()
    }
    rows = [*given.values(), *begun.values()]
    row_arrays = [*[grad.of[k] for k in given], *[grad.of[n_outs + k] for k in begun]]
    rows += [trip.rows[j] for j in arrays] + [trip.carries[k] for k in kept]
    row_arrays += [*arrays.values(), *kept_values.values()]
    edges = [out.edge for out in outs if out.edge is not None]
    inner_ends = {value.edge for value in (*rows, *trip.rows, *trip.carries)}
    outside = [edge for edge in edges_from_outside(edges, trip.start) if edge not in inner_ends]
    back = Trip([*carried.values(), *totals], rows, outs, outside, trip.start, known)
    starts = [grad.of[k] if k in grad.of else trip.carries[k].full(0).detach() for k in floats]
    starts += [total.full(0).detach() for total in totals]
    last, stacked = looped(call.what, back, starts, row_arrays, trips)
    slopes: list[TracedValue | None] = [None] * (n + len(trip.rows))
    for k, value in zip(floats, last, strict=False):
        slopes[k] = value
    for j, value in zip(asked, stacked, strict=True):
        slopes[n + j] = value
    found_sums = dict(zip(sums, last[len(floats) :], strict=True))
    return (*slopes, *[found_sums.get(edge) for edge in trip.outside])


def _refuse(grad: Parts, entry: GradNode) -> Gradients:
    call: _Call = entry.arg
    raise GradientError(
        f"[{call.what}] a gradient arrives at a loop whose number of trips has no limit, so that "
        "there is no room for what its trips compute; give max_trips, or detach() the result"
    )


def _end(value: TracedValue, create: bool) -> TracedValue:
    """The value with an end of the tape, if the pass is recorded."""
    if not create:
        return value
    node = value.node
    return TracedValue(node, GradNode("argument", IDENTITY, (value,), node, None))
