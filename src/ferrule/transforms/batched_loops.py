"""Loops under `vmap`: each trip computes all lanes.

Those carried values have lanes that come to have them. Where the number of trips differs from lane
to lane, the loop makes as many as the last lane needs, and a lane that is done keeps its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

from ferrule.engine.loop import loop_results
from ferrule.engine.loop_body import Body, Trips, placeholder, rebuilt
from ferrule.engine.loop_runs import Loop
from ferrule.fusion.graph import toposort
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, LoadOps, ReduceOps, TernaryOps
from ferrule.transforms.batching import LaneRule, over_lanes, spread


def _loop(node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> LazyBuffer:
    """The run of a loop for all lanes."""
    loop: Loop = node.arg
    trip = _WideTrip(node, sources, size)
    masked = _Masked(trip, node, sources)
    n = len(loop.body.carries)
    starts: list[LazyBuffer] = []
    arrays: list[LazyBuffer] = []
    for number, (leaf, one) in enumerate(zip(trip.leaves, node.srcs, strict=False)):
        wide = sources[number]
        if leaf in trip.mapped:
            wide = spread(one, size) if wide is None else wide
            one = wide if number < n else _swapped(wide)
        (starts if number < n else arrays).append(one)
    most = node.shape[0] - 1 if loop.is_limited else None
    since = trip.since if loop.is_counted else None
    trips = Trips(most, loop.backwards, masked.condition, masked.count, since)
    arrays = [
        array.shrink([(first, first + trips.rows), *[(0, m) for m in array.shape[1:]]])
        for array, first in zip(arrays, loop.firsts, strict=True)
    ]
    carries = [*trip.places[:n], *masked.carries]
    body = Body(carries, trip.places[n:], [*masked.next, *masked.following, *trip.outs[n:]])
    return loop_results(body, [*starts, *masked.starts], arrays, trips, node.device).count.srcs[0]


@final
class _WideTrip:
    """One trip of a loop for all lanes."""

    def __init__(self, node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> None:
        loop: Loop = node.arg
        self.size = size
        self.body = body = loop.body
        self.leaves = [*body.carries, *body.rows]
        first, last = len(self.leaves), len(self.leaves) + len(loop.constants)
        constants = node.srcs[first:last]
        self.since = LazyBuffer.empty((), dtypes.uint8, "").serial
        self._outs = rebuilt(body.outs, dict(zip(loop.constants, constants, strict=True)))
        outer = zip(constants, sources[first:last], strict=True)
        self._known = {one: wide for one, wide in outer if wide is not None}
        pairs = zip(self.leaves, sources, strict=False)
        self.mapped = {leaf for leaf, wide in pairs if wide is not None}
        is_counted = loop.is_counted and sources[-1] is not None
        if is_counted:
            self.mapped |= set(body.carries)
        self._translate()
        condition = loop.condition
        self.is_masked = is_counted
        if condition is not None and body.carries[condition] in self.mapped:
            self.is_masked = True
            self.mapped |= set(body.carries)
            self._translate()

    def _translate(self) -> None:
        """Find the values that have lanes, until there are no more, and compute them."""
        carries = self.body.carries
        while True:
            wide = {
                leaf: _wide_leaf(leaf, self.size) for leaf in self.leaves if leaf in self.mapped
            }
            outs = _translated(self._outs, {**self._known, **wide}, self.size)
            pairs = zip(carries, outs, strict=False)
            more = {leaf for leaf, out in pairs if out is not None} - self.mapped
            if not more:
                break
            self.mapped |= more
        self.places = [wide.get(leaf, leaf) for leaf in self.leaves]
        is_wide = [leaf in self.mapped for leaf in carries]
        is_wide += [out is not None for out in outs[len(carries) :]]
        given = zip(is_wide, self._outs, outs, strict=True)
        self.outs = [(out or spread(one, self.size)) if flag else one for flag, one, out in given]


@final
class _Masked:
    """What a loop carries besides so that lanes which are done keep their values."""

    def __init__(
        self, trip: _WideTrip, node: LazyBuffer, sources: Sequence[LazyBuffer | None]
    ) -> None:
        loop: Loop = node.arg
        n = len(loop.body.carries)
        self.carries: list[LazyBuffer] = []
        self.following: list[LazyBuffer] = []
        self.starts: list[LazyBuffer] = []
        self.next = trip.outs[:n]
        self.condition = loop.condition
        self.count = node.srcs[-1] if loop.is_counted else None
        if not trip.is_masked:
            return
        if loop.condition is None:
            counts = sources[-1]
            assert counts is not None
            going = self._by_count(counts, loop.backwards)
        else:
            going = trip.places[loop.condition]
        before = trip.places[:n]
        pairs = zip(self.next, before, strict=True)
        self.next = [_chosen(going, new, old) for new, old in pairs]
        if loop.condition is not None:
            start = sources[loop.condition]
            start = spread(node.srcs[loop.condition], trip.size) if start is None else start
            self._by_condition(start, going, self.next[loop.condition], n)

    def _by_count(self, counts: LazyBuffer, backwards: bool) -> LazyBuffer:
        """The lanes (lanes, 1) in which the row of a trip is one of theirs."""
        self.count = _most(counts).reshape((1,))
        row = placeholder("vmap", (1,), dtypes.int32, counts.device)
        step = LazyBuffer.const(-1 if backwards else 1, dtypes.int32, (1,), counts.device)
        zero = LazyBuffer.const(0, dtypes.int32, (1,), counts.device)
        self.carries = [row]
        self.following = [row.e(BinaryOps.ADD, step)]
        self.starts = [self.count.e(BinaryOps.ADD, step) if backwards else zero]
        return spread(row, counts.shape[0]).e(BinaryOps.CMPLT, counts)

    def _by_condition(
        self, start: LazyBuffer, going: LazyBuffer, following: LazyBuffer, n: int
    ) -> None:
        """Go on while a lane does, and count the trips of each."""
        counts = placeholder("vmap", going.shape, dtypes.int32, going.device)
        self.condition = n
        self.carries = [placeholder("vmap", (), dtypes.bool, going.device), counts]
        self.following = [_any(following), counts.e(BinaryOps.ADD, going.cast(dtypes.int32))]
        zeros = LazyBuffer.const(0, dtypes.int32, going.shape, going.device)
        self.starts = [_any(start), zeros]


def _most(counts: LazyBuffer) -> LazyBuffer:
    return counts.r(ReduceOps.MAX, range(len(counts.shape)))


def _any(flags: LazyBuffer) -> LazyBuffer:
    return _most(flags.cast(dtypes.int32)).reshape(()).cast(dtypes.bool)


def _chosen(going: LazyBuffer, new: LazyBuffer, old: LazyBuffer) -> LazyBuffer:
    """The new values in the lanes that go on, the old ones in the others."""
    ones = (1,) * (len(new.shape) - 1)
    mask = going.reshape((new.shape[0], *ones)).expand(new.shape)
    return mask.e(TernaryOps.WHERE, new, old)


def _wide_leaf(leaf: LazyBuffer, size: sint) -> LazyBuffer:
    return placeholder("vmap", (size, *leaf.shape), leaf.dtype, leaf.device)


def _swapped(node: LazyBuffer) -> LazyBuffer:
    """The node with its first two axes swapped."""
    return node.permute((1, 0, *range(2, len(node.shape))))


def _translated(
    roots: Sequence[LazyBuffer], wide: dict[LazyBuffer, LazyBuffer], size: sint
) -> list[LazyBuffer | None]:
    """The nodes for all lanes, made of `wide` leaves; None for those that are the same for each."""
    nodes: dict[LazyBuffer, LazyBuffer | None] = {**wide}
    for node in toposort(roots, everything=True, known=wide):
        sources = [nodes[source] for source in node.srcs]
        known = all(source is None for source in sources)
        nodes[node] = None if known else over_lanes(node, sources, size)
    return [nodes[root] for root in roots]


def _result(node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> LazyBuffer:
    """A result of a loop, which may be the same for all lanes."""
    (run,) = sources
    assert run is not None, "a loop has lanes"
    narrow: Body = node.srcs[0].arg.body
    body: Body = run.arg.body
    number, n, n_outs = node.arg, len(narrow.carries), len(narrow.outs)
    more = len(body.carries) - n
    if number == n_outs + n:
        if run.arg.condition is not None and more:  # each lane has a count
            return run.result(n + 1, (size,), node.dtype).reshape((size, 1))
        return spread(run.result(number + 2 * more, node.shape, node.dtype), size)
    if number < n:
        is_wide = len(narrow.carries[number].shape) < len(body.carries[number].shape)
        place = number
    elif number < n_outs:
        is_wide = len(narrow.outs[number].shape) < len(body.outs[number + more].shape)
        place = number + more
    else:
        k = number - n_outs
        is_wide = len(narrow.carries[k].shape) < len(body.carries[k].shape)
        place = number + more
    if not is_wide:
        return spread(run.result(place, node.shape, node.dtype), size)
    if number < n:
        return run.result(place, (size, *node.shape), node.dtype)
    rows, *rest = node.shape
    return _swapped(run.result(place, (rows, size, *rest), node.dtype))


LOOP_RULES: Final[dict[Any, LaneRule]] = {Loop: _loop, LoadOps.RESULT: _result}
"""The rules of loops and their results, for `LANE_RULES`."""
