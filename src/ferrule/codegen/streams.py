"""Streams: element-wise work, bound by memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.kernel import Kind, Nest
from ferrule.codegen.neighbours import MOST_VECTORS, period
from ferrule.codegen.plan import SERIAL_WORK, Plan, loads, step_of
from ferrule.codegen.primitives.nests import MOST_TERMS
from ferrule.codegen.segments import MOST_SEGMENTS, segments_of
from ferrule.codegen.window import distance
from ferrule.expr import COSTLY, Expr, toposort

SHORT = 8  # elements: of a row that fills no vector
CHUNK = 8192  # elements of a stream that one thread takes at a time
UNCACHED_BYTES = 1 << 24  # a result so large would be out of the cache before anyone reads it


def schedule_stream(plan: Plan, name: str) -> None:
    """Element-wise work: lanes along the contiguous axis, the rest shared out."""
    if not plan.nest(name).loops:
        return
    _choose_lanes(plan, name)
    _segment(plan, name)


def schedule_few_terms(plan: Plan, name: str, *below: str) -> bool:
    """Sums of a few terms for each result, as over a small window, are element-wise work, if there
    is an axis along which all of it is near: between the borders no load has a mask then.

    Not where several results have such a sum in common: each would compute it anew.
    """
    nest = plan.nest(name)
    nests = [plan.nest(n) for n in below]
    if any(n.at is not None and n.at[0] == name and n.at[1] < len(nest.loops) for n in nests):
        return False
    terms = sum(_count_terms(plan, name, n) for n in nests)
    found = [e for n in nests for c in n.computes for e in loads(c.value)]
    stores = [c.store.index for c in nest.computes if c.store is not None]
    if terms > MOST_TERMS or not any(_all_near(found, stores, loop.range) for loop in nest.loops):
        return False
    for n in below:
        plan.do("write_out", n)
    schedule_stream(plan, name)
    return True


def _count_terms(plan: Plan, name: str, nest: Nest) -> int:
    """How often a reduce inside of a root is updated for each of the root's results."""
    loops = [loop for owner, _, loop in plan.kernel.path(nest) if owner != name]
    return prod(loop.range.size.max for loop in loops)


def _all_near(found: Sequence[Expr], stores: Sequence[Expr], r: Expr) -> bool:
    """Whether results are neighbours along an axis, and all loads are of a few vectors."""
    near = all(0 <= step_of(e.src[0], r) <= MOST_VECTORS for e in found)
    return near and r.size.max >= SHORT and all(step_of(index, r) == 1 for index in stores)


def schedule_scatter(plan: Plan, name: str) -> bool:
    """Work whose iterations may store to one place: in their order, but for lanes along a last loop
    whose iterations store to neighbours.
    """
    loops = plan.nest(name).loops
    stores = [c.store.index for c in plan.nest(name).computes if c.store is not None]
    if not loops or any(step_of(index, loops[-1].range) != 1 for index in stores):
        return False
    plan.vectorize_inner(name, loops[-1])
    return True


def _segment(plan: Plan, name: str) -> None:
    """Loops in segments, where conditions change along them, as long as that is little code."""
    if plan.below(name):
        return
    copies = 1
    for depth, loop in reversed(list(enumerate(plan.nest(name).loops))):
        if loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
            continue
        segments = segments_of(plan.kernel, plan.nest(name), depth)
        if segments and copies * len(segments) <= MOST_SEGMENTS:
            copies *= len(segments)
            plan.do("segment", name, loop.range)


def _choose_lanes(plan: Plan, name: str) -> None:
    _join_short_rows(plan, name)
    nest = plan.nest(name)
    v = _contiguous_axis(nest)
    w = _other_orientation(plan, nest, v)
    if w is not None:
        _turn(plan, name, v, w)
        return
    if passes_by(nest):
        plan.do("nontemporal", name)
    loops = nest.loop_ranges
    if loops[-1] is not v:
        plan.do("reorder", name, (*(r for r in loops if r is not v), v))
    parallel = plan.work(name) >= SERIAL_WORK
    outer = prod(loop.range.size.max for loop in plan.nest(name).loops[:-1])
    enough = 4 * plan.target.max_threads
    if parallel and len(loops) > 1 and outer >= enough:
        _vectorize_last(plan, name)
        _share_outer(plan, name, enough)
    elif parallel and v.size.max >= 2 * CHUNK:
        _chunk_inner(plan, name)
    else:
        _vectorize_last(plan, name)
        if parallel and len(loops) > 1:
            _share_outer(plan, name, enough)


def _vectorize_last(plan: Plan, name: str) -> None:
    """Lanes along the last loop, and copies of it until the loads are the same again."""
    r = plan.nest(name).loops[-1].range
    lanes, copies = _repeated(plan, name)
    if copies == 1:
        plan.vectorize_inner(name, plan.nest(name).loops[-1])
        return
    _, inner = plan.split(name, r, lanes * copies, "peel")
    plan.vectors(name, inner, lanes)


def _repeated(plan: Plan, name: str) -> tuple[int, int]:
    """The lanes for the last loop of a nest, and after how many vectors loads are the same again.

    So `x[i // 3]` is one vector for every three, of which each third is repeated.
    """
    nest = plan.nest(name)
    r = nest.loops[-1].range
    lanes = plan.lanes(nest, r.size.max)
    found = [e for c in nest.computes for e in loads(c.value)]
    copies = period(found, r, lanes)
    return lanes, copies if lanes * copies <= r.size.max else 1


def _join_short_rows(plan: Plan, name: str) -> None:
    """Fuse the last loop, while it is shorter than a vector, with the one around it, if results are
    neighbours across both: what is loaded may be gathered then, which costs less than scattering.
    """
    while len(plan.nest(name).loops) > 1 and plan.nest(name).loops[-1].range.size.max < SHORT:
        outer, inner = (loop.range for loop in plan.nest(name).loops[-2:])
        stores = [c.store.index for c in plan.nest(name).computes if c.store is not None]
        if not inner.size.is_const or not all(
            step_of(index, inner) == 1 and step_of(index, outer) == inner.size.arg
            for index in stores
        ):
            return
        plan.do("fuse", name, outer)


def passes_by(nest: Nest) -> bool:
    """Whether large results are made by little work, from other buffers: then stores that bypass
    the caches save the reads of what they replace.
    """
    if any(e.op in COSTLY for e in toposort([c.value for c in nest.computes])):
        return False
    elements = prod(loop.range.size.max for loop in nest.loops)
    sizes = [elements * c.value.dtype.itemsize for c in nest.computes]
    read = {e.arg for c in nest.computes for e in loads(c.value)}
    written = {c.store.slot for c in nest.computes if c.store is not None}
    return min(sizes) >= UNCACHED_BYTES and not read & written


def _other_orientation(plan: Plan, nest: Nest, v: Expr) -> Expr | None:
    """A loop along which what is loaded is contiguous, where it is not along the store's."""
    lanes = plan.lanes(nest, v.size.max)
    found = [e for c in nest.computes for e in loads(c.value)]
    far = [e for e in found if step_of(e.src[0], v) not in (0, 1)]
    if not far or lanes < 4 or v.size.max < lanes:
        return None
    for loop in nest.loops:
        w = loop.range
        if w is not v and w.size.max >= lanes and all(distance(e.src[0], w) == 1 for e in far):
            return w
    return None


def _turn(plan: Plan, name: str, v: Expr, w: Expr) -> None:
    """Squares of values, stored along `v`: computed along `w` where all loads are contiguous along
    that; else those are turned by themselves, in scratch, that are so.
    """
    parallel = plan.work(name) >= SERIAL_WORK
    nest = plan.nest(name)
    lanes = plan.lanes(nest, v.size.max)
    found = [e for c in nest.computes for e in loads(c.value)]
    mixed = any(step_of(e.src[0], v) == 1 for e in found)
    if not (mixed and plan.attempt(_turn_copies, name, v, w)):
        plan.turn(name, w, v, lanes)
    if parallel:
        plan.do("parallel", name, plan.loops(name)[0])


def _turn_copies(plan: Plan, name: str, v: Expr, w: Expr) -> bool:
    lanes = plan.lanes(plan.nest(name), v.size.max)
    inside = plan.squares(name, w, v, lanes)
    outside = plan.others(name, inside)
    plan.do("reorder", name, (*outside, *inside))
    _, lane = inside
    found = [e for c in plan.nest(name).computes for e in loads(c.value)]
    far = [e for e in dict.fromkeys(found) if step_of(e.src[0], lane) not in (0, 1)]
    for e in far:
        copy = plan.kernel.free_name(f"{name}.turned", numbered=True)
        along, across = plan.stage(name, e, name, len(outside), inside, copy)
        plan.transpose(copy, along, across)
    plan.do("vectorize", name, lane)
    return True


def _chunk_inner(plan: Plan, name: str) -> None:
    """Share out the last loop itself, by chunks."""
    v = plan.loops(name)[-1]
    lanes, copies = _repeated(plan, name)
    chunks, chunk = plan.split(name, v, CHUNK - CHUNK % (lanes * copies), "peel")
    loops = plan.loops(name)
    if loops[0] is not chunks:
        plan.do("reorder", name, (chunks, *(r for r in loops if r is not chunks)))
    plan.do("parallel", name, chunks)
    _vectorize_last(plan, name)
    # A mask is no help to the last chunk: beyond the end may be memory that is not there, which
    # takes a processor some hundred cycles to find out, for each vector.
    inner = next(o for o in plan.nest(name).loops if o.is_from(chunk))
    if inner.kind is Kind.SERIAL and inner.peel is None:
        plan.limit(name, inner.range)


def _share_outer(plan: Plan, name: str, enough: int) -> None:
    """Make the outermost loop parallel, fused with the next ones while it is too short."""
    while True:
        nest = plan.nest(name)
        if nest.loops[0].range.size.max >= enough or len(nest.loops) < 3:
            break
        if any(n.at == (name, 1) for n in plan.kernel.nests):
            break
        plan.do("fuse", name, nest.loops[0].range)
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
        if loop.range.size.max >= 4 and score >= best_score:
            best, best_score = loop.range, score
    return best
