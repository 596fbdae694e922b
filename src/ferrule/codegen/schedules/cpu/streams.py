"""Schedules of element-wise work, which memory bounds (streams)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.analysis.loop_partitions import segments_of
from ferrule.codegen.analysis.vector_shuffles import MAX_VECTORS, period
from ferrule.codegen.analysis.window import distance
from ferrule.codegen.kernel import Kind, Nest
from ferrule.codegen.plan import (
    MIN_LANES,
    Plan,
    loads,
    step_of,
)
from ferrule.codegen.policy import (
    CHUNK_ELEMENTS,
    MAX_CACHED_BYTES,
    MAX_SEGMENTS,
    MIN_PARALLEL_WORK,
)
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.primitives.loops import can_shift
from ferrule.codegen.primitives.nests import MAX_EXPANDED_TERMS
from ferrule.ir.expr import COSTLY, Expr, toposort
from ferrule.ir.target import LINE_BYTES


def schedule_stream(plan: Plan, name: str) -> bool:
    """Schedule element-wise work: lanes along the contiguous axis, the other loops shared out."""
    if plan.nest(name).loops:
        _choose_lanes(plan, name)
    if not plan.below(name):
        partition_loops(plan, name)
    return True


def schedule_few_terms(plan: Plan, name: str) -> bool:
    """Schedule sums of a few terms, as over a small window, as element-wise work.

    All loads must be near along some axis: between the borders no load has a mask then. Several
    results must not share such a sum, as each would compute it anew.
    """
    nest = plan.nest(name)
    below = plan.below(name)
    nests = [plan.nest(n) for n in below]
    if any(n.at is not None and n.at[0] == name and n.at[1] < len(nest.loops) for n in nests):
        raise ScheduleError("several results share a sum")
    terms = sum(_count_terms(plan, name, n) for n in nests)
    found = [e for n in nests for c in n.computes for e in loads(c.value)]
    stores = [c.store.index for c in nest.computes if c.store is not None]
    if terms > MAX_EXPANDED_TERMS or not any(
        _all_near(found, stores, loop.range) for loop in nest.loops
    ):
        raise ScheduleError(f"{terms} terms are too many, or their loads are not near each other")
    for n in below:
        plan.do("expand_reduce", n)
    return schedule_stream(plan, name)


def _count_terms(plan: Plan, name: str, nest: Nest) -> int:
    """The number of updates of a reduce inside of a root, for each of the root's results."""
    loops = [loop for owner, _, loop in plan.kernel.path(nest) if owner != name]
    return prod(loop.range.size.max for loop in loops)


def _all_near(found: Sequence[Expr], stores: Sequence[Expr], r: Expr) -> bool:
    """True if results are adjacent along an axis, and all loads are of a few vectors."""
    near = all(0 <= step_of(e.src[0], r) <= MAX_VECTORS for e in found)
    return near and r.size.max >= MIN_LANES and all(step_of(index, r) == 1 for index in stores)


def schedule_scatter(plan: Plan, name: str) -> bool:
    """Schedule work whose iterations may store to one place: in order, with lanes along the last
    loop if its iterations store to adjacent elements.
    """
    loops = plan.nest(name).loops
    stores = [c.store.index for c in plan.nest(name).computes if c.store is not None]
    if not loops or any(step_of(index, loops[-1].range) != 1 for index in stores):
        return False
    plan.vectorize_inner(name, loops[-1])
    return True


def partition_loops(plan: Plan, name: str) -> None:
    """Partition loops into segments if conditions change along them, as long as that is little
    code.
    """
    copies = 1
    nest = plan.nest(name)
    for depth, loop in reversed(list(enumerate(nest.loops))):
        runs = loop.kind in (Kind.SERIAL, Kind.PARALLEL) and loop.range not in nest.result_axes
        if loop.segments or not runs:
            continue
        segments = segments_of(plan.kernel, plan.nest(name), depth)
        if segments and copies * len(segments) <= MAX_SEGMENTS:
            copies *= len(segments)
            plan.do("segment", name, loop.range)


def _choose_lanes(plan: Plan, name: str) -> None:
    _fuse_short_rows(plan, name)
    nest = plan.nest(name)
    v = _contiguous_axis(nest)
    w = _other_orientation(plan, nest, v)
    if w is not None:
        _transpose(plan, name, v, w)
        return
    if bypasses_caches(nest):
        plan.do("nontemporal", name)
    loops = nest.loop_ranges
    parallel = plan.work(name) >= MIN_PARALLEL_WORK
    lines = plan.target.l1_bytes // LINE_BYTES
    if v.size.max >= 2 * lines and _shares_lines(nest, v):
        _chunk_outer(plan, name, v, lines, parallel)
        return
    if loops[-1] is not v:
        plan.do("reorder", name, (*(r for r in loops if r is not v), v))
    outer = prod(loop.range.size.max for loop in plan.nest(name).loops[:-1])
    enough = plan.enough_chunks
    if parallel and len(loops) > 1 and outer >= enough:
        _vectorize_last(plan, name)
        _share_outer(plan, name, enough)
    elif parallel and v.size.max >= 2 * CHUNK_ELEMENTS:
        _chunk_inner(plan, name)
    else:
        _vectorize_last(plan, name)
        if parallel and len(loops) > 1:
            _share_outer(plan, name, enough)


def _vectorize_last(plan: Plan, name: str) -> None:
    """Put lanes along the last loop, and copies of it until the loads repeat.

    Loads of every second element or so are shuffled from whole vectors. The last vector of lanes
    would gather its elements under a mask, so it begins earlier where that is legal. A border's
    conditions are left to `partition_loops`, which knows them by plain indices.
    """
    nest = plan.nest(name)
    r = nest.loops[-1].range
    lanes, copies = _repeated(plan, name)
    found = [e for c in nest.computes for e in loads(c.value)]
    apart = any(1 < step_of(e.src[0], r) <= MAX_VECTORS for e in found)
    apart = apart and all(r not in e.src[1].ranges for e in found)
    if copies == 1 and apart and can_shift(plan.kernel, nest, r, lanes):
        _, inner = plan.split(name, r, lanes, "shift")
        plan.do("vectorize", name, inner)
        return
    if copies == 1:
        plan.vectorize_inner(name, plan.nest(name).loops[-1])
        return
    _, inner = plan.split(name, r, lanes * copies, "peel")
    plan.vectors(name, inner, lanes)


def _repeated(plan: Plan, name: str) -> tuple[int, int]:
    """The lanes for the last loop of a nest, and the number of vectors after which loads repeat.

    For `x[i // 3]` that is one load for every three vectors, each third of which is repeated.
    """
    nest = plan.nest(name)
    r = nest.loops[-1].range
    lanes = plan.lanes(nest, r.size.max)
    found = [e for c in nest.computes for e in loads(c.value)]
    copies = period(found, r, lanes)
    return lanes, copies if lanes * copies <= r.size.max else 1


def _fuse_short_rows(plan: Plan, name: str) -> None:
    """Fuse a last loop shorter than a vector with the one around it, if results are adjacent across
    both.

    Loads may be gathers then, which cost less than scattered stores.
    """
    half = plan.target.lanes(8)
    while len(plan.loops(name)) > 1 and plan.loops(name)[-1].size.max < half:
        outer, inner = plan.loops(name)[-2:]
        stores = [c.store.index for c in plan.nest(name).computes if c.store is not None]
        if not inner.size.is_const or not all(
            step_of(index, inner) == 1 and step_of(index, outer) == inner.size.arg
            for index in stores
        ):
            return
        plan.do("fuse", name, outer)


def bypasses_caches(nest: Nest) -> bool:
    """True if large results are made by little work, from other buffers.

    Stores that bypass the caches then save the reads of the overwritten lines.
    """
    if any(e.op in COSTLY for e in toposort([c.value for c in nest.computes])):
        return False
    elements = prod(loop.range.size.max for loop in nest.loops)
    sizes = [elements * c.value.dtype.itemsize for c in nest.computes]
    read = {e.arg for c in nest.computes for e in loads(c.value)}
    written = {c.store.slot for c in nest.computes if c.store is not None}
    return min(sizes) >= MAX_CACHED_BYTES and not read & written


def _other_orientation(plan: Plan, nest: Nest, v: Expr) -> Expr | None:
    """A loop along which the loads are contiguous if they are not along the store's axis."""
    lanes = plan.lanes(nest, v.size.max)
    found = [e for c in nest.computes for e in loads(c.value)]
    far = [e for e in found if step_of(e.src[0], v) not in (0, 1)]
    if not far or lanes < MIN_LANES or v.size.max < lanes:
        return None
    for loop in nest.loops:
        w = loop.range
        if w is not v and w.size.max >= lanes and all(distance(e.src[0], w) == 1 for e in far):
            return w
    return None


def _transpose(plan: Plan, name: str, v: Expr, w: Expr) -> None:
    """Transpose squares of values that are stored along `v`.

    They are computed along `w` if all loads are contiguous there. Otherwise only the loads that are
    contiguous along `w` are transposed, in scratch memory.
    """
    parallel = plan.work(name) >= MIN_PARALLEL_WORK
    nest = plan.nest(name)
    lanes = plan.lanes(nest, v.size.max)
    found = [e for c in nest.computes for e in loads(c.value)]
    mixed = any(step_of(e.src[0], v) == 1 for e in found)
    if not (mixed and plan.attempt(_transpose_copies, name, v, w)):
        plan.transpose_squares(name, w, v, lanes)
    if parallel:
        plan.do("parallel", name, plan.loops(name)[0])


def _transpose_copies(plan: Plan, name: str, v: Expr, w: Expr) -> bool:
    lanes = plan.lanes(plan.nest(name), v.size.max)
    inside = plan.squares(name, w, v, lanes)
    outside = plan.others(name, inside)
    plan.do("reorder", name, (*outside, *inside))
    _, lane = inside
    found = [e for c in plan.nest(name).computes for e in loads(c.value)]
    far = [e for e in dict.fromkeys(found) if step_of(e.src[0], lane) not in (0, 1)]
    for e in far:
        copy = plan.kernel.free_name(f"{name}.transposed", numbered=True)
        along, across = plan.stage(name, e, name, len(outside), inside, copy)
        plan.transpose(copy, along, across)
    plan.do("vectorize", name, lane)
    return True


def _chunk_inner(plan: Plan, name: str) -> None:
    """Share out the last loop itself, in chunks."""
    v = plan.loops(name)[-1]
    lanes, copies = _repeated(plan, name)
    chunks, chunk = plan.split(name, v, CHUNK_ELEMENTS - CHUNK_ELEMENTS % (lanes * copies), "peel")
    loops = plan.loops(name)
    if loops[0] is not chunks:
        plan.do("reorder", name, (chunks, *(r for r in loops if r is not chunks)))
    plan.do("parallel", name, chunks)
    _vectorize_last(plan, name)
    _limit_last_chunk(plan, name, chunk)


def _limit_last_chunk(plan: Plan, name: str, chunk: Expr) -> None:
    # The last chunk ends early instead of having masks: memory beyond the end may not exist, and a
    # masked access to it takes a processor some hundred cycles, for each vector.
    inner = next(o for o in plan.nest(name).loops if o.is_from(chunk))
    if inner.kind is Kind.SERIAL and inner.peel is None:
        plan.limit(name, inner.range)


def _shares_lines(nest: Nest, v: Expr) -> bool:
    """True if results along `v` are in different lines of memory, which other loops fill up."""
    stores = [c.store.index for c in nest.computes if c.store is not None]
    others = [loop.range for loop in nest.loops if loop.range is not v]
    return all(step_of(index, v) > 1 for index in stores) and any(
        all(step_of(index, r) == 1 for index in stores) for r in others
    )


def _chunk_outer(plan: Plan, name: str, v: Expr, size: int, parallel: bool) -> None:
    """Put lanes along a loop whose results are far apart, in chunks whose lines stay in the cache
    until the other loops have filled them.
    """
    chunks, chunk = plan.split(name, v, size, "peel")
    others = [r for r in plan.loops(name) if r is not chunks and r is not chunk]
    plan.do("reorder", name, (chunks, *others, chunk))
    if parallel:
        plan.do("parallel", name, chunks)
    _vectorize_last(plan, name)
    _limit_last_chunk(plan, name, chunk)


def _share_outer(plan: Plan, name: str, enough: int) -> None:
    """Make the outermost loop parallel, fused with the next ones while it is too short."""
    while True:
        nest = plan.nest(name)
        if nest.loops[0].range.size.max >= enough or len(nest.loops) < 3:
            break
        if any(n.at == (name, 1) for n in plan.kernel.nests):
            break
        outer, inner, *others = nest.loop_ranges
        changes = [bool(segments_of(plan.kernel, nest, depth)) for depth in (0, 1)]
        if changes == [False, True]:  # only the outer one of fused loops can be partitioned
            plan.do("reorder", name, (inner, outer, *others))
        plan.do("fuse", name, plan.loops(name)[0])
    plan.do("parallel", name, plan.loops(name)[0])


def _contiguous_axis(nest: Nest) -> Expr:
    """The loop along which the store, or else most loads, are contiguous."""
    best = nest.loops[-1].range
    best_score = -1
    for loop in nest.loops:
        score = 0
        for c in nest.computes:
            if c.store is not None and step_of(c.store.index, loop.range) == 1:
                score += 4
            score += sum(step_of(e.src[0], loop.range) == 1 for e in loads(c.value))
        if loop.range.size.max >= MIN_LANES and score >= best_score:
            best, best_score = loop.range, score
    return best
