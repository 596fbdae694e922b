"""Schedules of reduces along rows or columns: lanes where memory is contiguous, rows staged if they
are costly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod

from ferrule.codegen.analysis.vector_shuffles import MAX_VECTORS
from ferrule.codegen.kernel import Kind, Loop, Nest
from ferrule.codegen.plan import (
    MIN_LANES,
    Plan,
    Proposal,
    bytes_loaded,
    loads,
    step_of,
)
from ferrule.codegen.policy import MAX_CACHED_BYTES, MIN_PARALLEL_WORK
from ferrule.codegen.primitives.editing import descendants, is_combined
from ferrule.codegen.primitives.nests import mergeable, shared_row
from ferrule.codegen.schedules.cpu.gemv import panels
from ferrule.codegen.schedules.cpu.streams import bypasses_caches, partition_loops
from ferrule.ir.expr import COSTLY, Expr, ExprOp, const, toposort
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES

# Tuning constants, set between 2026-11-21 and 23 on the processors of docs/performance.md. Those
# without a figure were not measured by themselves.
MIN_WORK_RATIO = 8
"""Work of a chunk relative to what it computes again, at least."""
STREAMS = 2
"""Parts that a reduce reads side by side if it waits for memory and loads from one buffer: 0.51 to
0.93 of the time for 64 MiB on two threads of a Zen 5."""
MIN_STREAM_BYTES = 4 * PAGE_BYTES
"""Bytes of a part of a row."""


def schedule_rows(plan: Plan, name: str) -> bool:
    """Schedule a root nest and the reduces inside it, with the lanes that take the least time."""
    merge_siblings(plan, plan.below(name))
    _recompute_first(plan, name, plan.below(name))
    below = plan.below(name)
    lanes = [
        Proposal(
            f"along {'the terms' if axis is None else axis}",
            partial(_schedule_lanes, name=name, column=axis),
        )
        for axis in _lane_axes(plan, name, below)
    ]
    far, near = (panels(plan, name, below[0], far=far) for far in (True, False))
    found = plan.best("lanes", *far, *lanes, *near)
    partition_joins(plan, name)
    return found


def partition_joins(plan: Plan, name: str) -> None:
    """Partition the loops of a root nest and of the reduces inside it that read a `cat`."""
    for n in plan.below(name):
        if any(map(_chooses_operand, plan.nest(n).nodes)):
            partition_loops(plan, name)
            partition_loops(plan, n)


def _lane_axes(plan: Plan, name: str, below: Sequence[str]) -> list[Expr | None]:
    """The result axes along which lanes may be, the most likely one first; None for lanes along
    the terms.

    They are those along which something is contiguous, or the one along which lanes gather.
    """
    computes = [c for n in (name, *below) for c in plan.nest(n).computes]
    indices = [e.src[0] for c in computes for e in loads(c.value)]
    indices += [c.store.index for c in computes if c.store is not None]
    found: list[Expr | None] = [
        loop.range
        for loop in plan.nest(name).loops
        if loop.kind is Kind.SERIAL and any([step_of(index, loop.range) == 1 for index in indices])
    ]
    best = column_axis(plan, name, below)
    first = [_gather_axis(plan, name, below) if best is None else best, None]
    return [*dict.fromkeys([*first, *found])]


def _schedule_lanes(plan: Plan, name: str, column: Expr | None) -> bool:
    """Schedule a root and its reduces with lanes along a result axis, or else along the terms."""
    below = plan.below(name)
    if column is not None:
        inside = _inside(plan, name, below, column)
        vectors = _columns(plan, name, below, column)
        for n in inside:
            _sum_apart(plan, n, vectors)
        for n in [n for n in below if n not in inside]:
            _reduce_lanes(plan, n)
    else:
        _stage_rows(plan, name, below)
        for n in below:
            _reduce_lanes(plan, n)
        _vectorize_last(plan, name, below)
    if bypasses_caches(plan.nest(name)):
        plan.do("nontemporal", name)
    _share_rows(plan, name)
    _limit_rows(plan, name)
    _prefetch_rows(plan, name)
    return True


def _chooses_operand(e: Expr) -> bool:
    """True if an index decides where a value is read from, as in a `cat`.

    Where the loop along that index is not partitioned, both places are read, one of them with an
    empty mask.
    """
    if e.op is not ExprOp.WHERE or loads(e.src[0]):
        return False
    return all(loads(side) for side in e.src[1:])


def merge_siblings(plan: Plan, below: Sequence[str]) -> None:
    for second in below:
        for first in below:
            if first == second or first not in plan.kernel.by_name:
                continue
            if mergeable(plan.kernel, plan.nest(first), plan.nest(second)) and _ready(
                plan, first, second
            ):
                plan.do("merge", first, second)


def _ready(plan: Plan, first: str, second: str) -> bool:
    """True if no nest between two siblings reads the first one, which moves down to the second."""
    order = [n.name for n in plan.kernel.nests]
    a, b = order.index(first), order.index(second)
    if a > b:
        return False
    names = {c.name for c in plan.nest(first).computes}
    between = [plan.kernel.nests[i] for i in range(a + 1, b)]
    return not any(e.arg in names for n in between for e in n.reads)


def _recompute_first(plan: Plan, name: str, below: Sequence[str]) -> None:
    """Compute a cheap nest, which all results need, again in each chunk of the results.

    Computed once, before all results, it would leave the whole kernel to one thread. An example is
    the last step of a long reduce, which combines a few parts.
    """
    loops = plan.nest(name).loops
    first = [n for n in below if plan.nest(n).at == (name, 0)]
    family = {n for f in first for n in descendants(plan.kernel, f)}
    stores = any(c.store is not None for n in family for c in plan.nest(n).computes)
    if not first or not loops or stores or loops[0].kind is not Kind.SERIAL:
        return
    once = plan.work_of(family)
    whole = plan.work(name) - once
    if whole < MIN_PARALLEL_WORK:
        return
    r = loops[0].range
    worth_it = whole // (MIN_WORK_RATIO * max(once, 1))
    chunks = min(plan.enough_chunks, r.size.max, worth_it)
    if chunks < plan.target.max_threads:
        return
    size = -(-r.size.max // chunks)
    if size > LINE_BYTES and len(loops) == 1:  # so that only the last chunk has a part of a vector
        size = -(-size // LINE_BYTES) * LINE_BYTES
    if size > 1:
        plan.do("split", name, r, size, "peel")
    for n in reversed(first):
        plan.do("recompute", n, 1)


def column_axis(
    plan: Plan, name: str, below: Sequence[str], depth: int | None = None
) -> Expr | None:
    """The result axis along which most loads of the reduces inside it are contiguous; None if there
    is none.

    With `depth`, it is one of the first `depth` loops. Loads that are the same for all terms of a
    result, such as a channel's mean, do not count. Neither do loads that are the same for many
    results, such as a mask: every lane multiplies by it.
    """
    best: Expr | None = None
    best_score = 0
    for r in [loop.range for loop in plan.nest(name).loops[:depth]]:
        along = across = 0
        for n in [plan.nest(n) for n in _inside(plan, name, below, r)]:
            terms = {loop.range for loop in n.loops}
            for e in (e for c in n.computes for e in loads(c.value)):
                if terms.isdisjoint(e.src[0].ranges):
                    continue
                inner = n.loops[-1].range
                along += step_of(e.src[0], r) == 1 and r.size.max >= MIN_LANES
                differs = r in e.src[0].ranges or r.size.max < plan.target.lanes(4)
                across += differs and step_of(e.src[0], inner) == 1 and inner.size.max >= MIN_LANES
        if along > across and along > best_score:
            best, best_score = r, along
    return best


def _inside(plan: Plan, name: str, below: Sequence[str], r: Expr) -> list[str]:
    """The reduces inside of a root's loop.

    Other reduces, such as the number of elements that a mask leaves of a row, are computed once for
    all of its iterations.
    """
    depth = [loop.range for loop in plan.nest(name).loops].index(r)
    return [n for n in below if _depth_in(plan, name, n) > depth]


def _depth_in(plan: Plan, name: str, n: str) -> int:
    """The number of a root's loops around a nest, directly or by way of the nest that it hangs
    in.
    """
    at = plan.nest(n).at
    while at is not None and at[0] != name:
        at = plan.nest(at[0]).at
    return 0 if at is None else at[1]


def _gather_axis(plan: Plan, name: str, below: Sequence[str]) -> Expr | None:
    """The result axis for lanes if no load is contiguous; None if some load is, or no axis fits.

    No condition changes along it, and most loads are near one another there. Of several such axes
    it is the longest.
    """
    nest = plan.nest(name)
    direct = [plan.nest(n) for n in below]
    found = [e for n in direct for c in n.computes for e in loads(c.value)]
    inner = [n.loops[-1].range for n in direct]
    if any(step_of(e.src[0], r) == 1 and r.size.max >= MIN_LANES for e in found for r in inner):
        return None
    shortest = min((n.at[1] for n in direct if n.at is not None and n.at[0] == name), default=0)
    fit = [
        loop.range
        for loop in nest.loops[:shortest]
        if loop.range.size.max >= MIN_LANES
        and all(step_of(e.src[0], loop.range) >= 0 for e in found)
        and all(loop.range not in e.src[1].ranges for e in found)
    ]
    return max(fit, key=lambda r: (_count_near(found, r), r.size.max), default=None)


def _count_near(found: Sequence[Expr], r: Expr) -> int:
    """The number of loads whose elements along a range are neighbours, or a few vectors'
    elements.
    """
    return sum(0 < step_of(e.src[0], r) <= MAX_VECTORS for e in found)


def _columns(plan: Plan, name: str, below: Sequence[str], r: Expr) -> int:
    """Put lanes along a result axis: every reduce keeps vectors of results, as many as returned."""
    lanes = plan.lanes(plan.nest(name), r.size.max)
    vectors = plan.sums_at_once // 2
    if r.size.max < plan.enough_chunks * vectors * lanes:
        vectors = 1
    outer, inner = plan.split(name, r, lanes * vectors, "mask")
    lane_loops = plan.vectors(name, inner, lanes)
    loops = plan.loops(name)
    first = loops[: loops.index(outer) + 1]
    for n in below:
        at = plan.nest(n).at
        if at is not None and at[0] == name and any(r in lane_loops for r in loops[: at[1]]):
            _move_out(plan, name, n, lane_loops)
    rest = [r for r in loops if r not in first and r not in lane_loops]
    plan.do("reorder", name, (*first, *rest, *lane_loops))
    return vectors


def _sum_apart(plan: Plan, n: str, vectors: int) -> None:
    """Give each result of a reduce with lanes along results several sums, if it has few vectors."""
    nest = plan.nest(n)
    copies = plan.sums_at_once // vectors
    terms = [o for o in nest.loops if is_combined(nest, o.range)]
    has_others = any(c.at is not None and c.at[0] == n for c in plan.kernel.nests)
    if copies < 2 or has_others or not terms or terms[-1].range.size.max < copies:
        return
    several = partial(_split_sums, n=n, r=terms[-1].range, copies=copies)
    plan.best(
        f"sums of a result of {n}", Proposal("one", lambda _: True), Proposal("several", several)
    )


def _split_sums(plan: Plan, n: str, r: Expr, copies: int) -> bool:
    _, one = plan.split(n, r, copies, "peel")
    plan.do("unroll", n, one)
    plan.do("group", n, (one,))
    return True


def _move_out(plan: Plan, name: str, n: str, lane_loops: Sequence[Expr]) -> None:
    """Compute a reduce outside of the lanes; other loops between stay in front of it."""
    loops = plan.loops(name)
    at = plan.nest(n).at
    assert at is not None
    depth = loops.index(lane_loops[0])
    between = [r for r in loops[depth : at[1]] if r not in lane_loops]
    if between:  # bring the lanes to the end of the prefix first
        prefix = [r for r in loops[: at[1]] if r not in lane_loops]
        plan.do("reorder", name, (*prefix, *lane_loops, *loops[at[1] :]))
        depth = len(prefix)
    plan.do("compute_at", n, depth)


def _stage_rows(plan: Plan, name: str, below: Sequence[str]) -> None:
    """Store a costly row that a reduce computes, instead of computing it again in the root nest."""
    nest = plan.nest(name)
    for n in reversed(below):
        producer = plan.nest(n)
        shared = shared_row(plan.kernel, producer, nest)
        if shared is None:
            continue
        size = producer.loops[-1].range.size.max
        if size * shared[0].dtype.itemsize <= plan.target.l2_bytes // 4:
            plan.do("stage_row", n, name)
            return


def _reduce_lanes(plan: Plan, n: str) -> None:
    """Give a reduce several vectors of partial results along one of its loops."""
    nest = plan.nest(n)
    *others, last = nest.loops
    if any(c.at is not None and c.at[0] == n for c in plan.kernel.nests):
        others = []
    found = [e.src[0] for c in nest.computes for e in loads(c.value)]
    fit = [
        loop.range
        for loop in others
        if loop.kind is Kind.SERIAL and any([step_of(index, loop.range) == 1 for index in found])
    ]
    along = [Proposal(f"along {r}", partial(_lanes_along, n=n, r=r)) for r in (last.range, *fit)]
    if not _loads_neighbours(nest, last.range):
        # Its lanes gather, which pays where much is computed of each element.
        along.insert(0, Proposal("none", lambda _: True))
    plan.best(f"lanes of {n}", *along)


def _loads_neighbours(nest: Nest, r: Expr) -> bool:
    """True if lanes along a loop load from neighbouring places, or read what is computed."""
    steps = [step_of(e.src[0], r) for c in nest.computes for e in loads(c.value)]
    near = any(1 <= step <= MAX_VECTORS for step in steps)
    return near or any(e.src for e in nest.reads)


def _lanes_along(plan: Plan, n: str, r: Expr) -> bool:
    """Give a reduce several vectors of partial results along a loop; False if it has no use."""
    if plan.loops(n)[-1] is not r:
        plan.do("reorder", n, (*plan.others(n, [r]), r))
    nest = plan.nest(n)
    lanes = plan.lanes(nest, r.size.max)
    if lanes == 1 or any(c.at == (n, len(nest.loops)) for c in plan.kernel.nests):
        return False
    most = plan.sums_at_once // 2 * lanes
    if _is_memory_bound(plan, nest):
        found = [e for c in nest.computes for e in loads(c.value)]
        widest = max(e.dtype.itemsize for e in found)
        long = r.size.is_const and r.size.arg * widest >= STREAMS * MIN_STREAM_BYTES
        if long and r.size.arg % (STREAMS * most) == 0 and len(found) == 1:
            _read_in_streams(plan, n, r, most, lanes)
            return True
        lanes = min(lanes, LINE_BYTES // 2 // widest)
    copies = 1
    while 2 * copies * lanes <= min(most, r.size.max):
        copies *= 2
    _, inner = plan.split(n, r, lanes * copies, "peel")
    plan.do("group", n, plan.vectors(n, inner, lanes))
    return True


def _read_in_streams(plan: Plan, n: str, r: Expr, step: int, lanes: int) -> None:
    """Give a reduce lanes that read several parts of its terms side by side.

    The processor prefetches in each of these parts.
    """
    streams, stream = plan.split(n, r, r.size.arg // STREAMS, "mask")
    _, part = plan.split(n, stream, step, "mask")
    inside = (streams, *plan.vectors(n, part, lanes))
    around = plan.others(n, inside)
    plan.do("reorder", n, (*around, *inside))
    plan.do("unroll", n, streams)
    plan.do("group", n, inside)


def _is_memory_bound(plan: Plan, nest: Nest) -> bool:
    """True if a reduce does little more than read data that no cache keeps and that no nest reads
    again.

    Loads of whole lines overtake the processor's own prefetches there; loads of half lines do not.
    """
    found = [e for c in nest.computes for e in loads(c.value)]
    if sum(bytes_loaded(e) for e in found) <= 2 * MAX_CACHED_BYTES:
        return False
    if any(e.op in COSTLY for e in toposort([c.value for c in nest.computes])):
        return False
    others = [n for n in plan.kernel.nests if n is not nest]
    again = {e.arg for n in others for c in n.computes for e in loads(c.value)}
    return all(e.arg not in again for e in found)


def _vectorize_last(plan: Plan, name: str, below: Sequence[str]) -> None:
    """Put lanes along the loops of the root that are inside of all its reduces."""
    nest = plan.nest(name)
    deepest = max(
        (d for n in below if (at := plan.nest(n).at) and at[0] == name for d in [at[1]]),
        default=0,
    )
    if len(nest.loops) <= deepest:
        return
    last = nest.loops[-1]
    if any(c.store is not None and step_of(c.store.index, last.range) == 1 for c in nest.computes):
        plan.vectorize_inner(name, last)


def _share_rows(plan: Plan, name: str) -> None:
    nest = plan.nest(name)
    if not nest.loops or plan.work(name) < MIN_PARALLEL_WORK:
        return
    if nest.loops[0].kind is Kind.SERIAL and nest.loops[0].range.size.max > 1:
        inner_reduces = any(n.at == (name, 0) for n in plan.kernel.nests)
        if not inner_reduces:
            while _can_fuse_rows(plan, name):
                plan.do("fuse", name, plan.loops(name)[0])
            plan.do("parallel", name, plan.loops(name)[0])


def _limit_rows(plan: Plan, name: str) -> None:
    """End a chunk of results, with reduces inside of it, where the results end.

    Beyond, whole rows would be read past the end of memory: under an empty mask, which is right,
    but takes hundreds of cycles for each load where the page there is not mapped.
    """
    nest = plan.nest(name)
    deepest = max([n.at[1] for n in plan.kernel.nests if n.at and n.at[0] == name], default=0)
    for outer, loop in pairwise(nest.loops[:deepest]):
        is_plain = loop == Loop(loop.range, lineage=loop.lineage)
        if is_plain and outer.peel is not None and loop.range in outer.peel.ranges:
            plan.limit(name, loop.range)


def _can_fuse_rows(plan: Plan, name: str) -> bool:
    nest = plan.nest(name)
    if len(nest.loops) < 2 or nest.loops[0].range.size.max >= plan.enough_chunks:
        return False
    if nest.loops[1].kind is not Kind.SERIAL or any(o.peel is not None for o in nest.loops[:2]):
        return False
    return not any(n.at in ((name, 0), (name, 1)) for n in plan.kernel.nests)


def _prefetch_rows(plan: Plan, name: str) -> None:
    """Prefetch the next row while the last pass over a row finds it in the cache.

    Otherwise passes that wait for memory and passes that compute or store take turns.
    """
    inside = [n for n in plan.kernel.nests if n.at is not None and n.at[0] == name]
    passes: dict[int, list[Nest]] = {}  # over what each buffer has
    for nest in (*inside, plan.nest(name)):
        for slot in {e.arg for c in nest.computes for e in loads(c.value)}:
            passes.setdefault(slot, []).append(nest)
    for slot, (first, *others) in passes.items():
        if first.at is None or not others or others[-1].at not in (None, first.at):
            continue
        distance = _row_distance(plan, plan.nest(name).loops[: first.at[1]], others[-1], slot)
        if distance is not None:
            plan.do("prefetch", others[-1].name, slot, distance)


def _row_distance(plan: Plan, around: Sequence[Loop], nest: Nest, slot: int) -> int | None:
    """The distance to the next row of a pass, if it is worth a prefetch; else None.

    There are too many rows for the cache to keep all, and the cache has room for two. A row has
    several pages, as the processor prefetches within a page by itself. The pass does more than
    read.
    """
    values = [c.value for c in nest.computes]
    if nest.at is not None and not any(e.op in COSTLY for e in toposort(values)):
        return None
    (load, *_) = (e for value in values for e in loads(value) if e.arg == slot)
    row = around[-1].range if around else const(0)
    distance = step_of(load.src[0], row)
    row_bytes = distance * load.dtype.itemsize
    rows_bytes = row_bytes * prod(loop.range.size.max for loop in around)
    fits = 2 * PAGE_BYTES <= row_bytes <= plan.target.l2_bytes // 4
    is_large = rows_bytes > plan.target.l2_bytes * plan.target.max_threads
    return distance if fits and is_large else None
