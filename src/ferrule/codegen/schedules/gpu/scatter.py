"""Schedules of scatters for thread blocks: stores at loaded indices, whose order counts.

Loops along other axes than the scattered one own their parts of the result: these become blocks and
threads. The scattered elements stay in order, one after the other in each thread. Each thread has
filled its part of the result with the identity itself, unless elements are combined with values
that are in memory already.

If this leaves most of the device idle, the places themselves are divided: all threads go through
all elements, and do only those that are stored to places of theirs. If the threads of a warp own
adjacent elements of one place, they look at 32 elements at a time, one each, and do together, in
order, those that are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from ferrule.codegen.kernel import MAX_ACCESS_BYTES, Kind
from ferrule.codegen.plan import Plan
from ferrule.codegen.primitives.loops import MAX_SKIP_SIZE
from ferrule.codegen.primitives.nests import chosen_place
from ferrule.codegen.schedules.cpu.scatters import cut_out, fill_inside, owned, stored_by
from ferrule.codegen.schedules.gpu.cost import clock
from ferrule.codegen.schedules.gpu.streams import aligned_lanes
from ferrule.ir.expr import Expr, ExprOp, toposort
from ferrule.ir.target import LINE_BYTES, Target

PLACES_AT_ONCE = 8  # elements whose places a thread loads before it stores the first
LOOKS_AT_ONCE = 4  # looks of all threads together before the elements that they found are done
MAX_PARTS = 4096
WARPS_IN_TURN = 16  # warps that share a scheduler: one of them runs at a time
# Cycles, estimated from NVRTC's machine code (docs/design/experiments.md, Scatters of rows; no GPU
# was at hand): of a warp that passes an element by, beside other warps and alone; the same if its
# threads look at one element each; to add an element to memory; to fill a place.
PASS_CYCLES = 12.0
WAIT_CYCLES = 12.0
LOOK_CYCLES = 0.6
LOOK_WAIT_CYCLES = 2.0
ADD_CYCLES = 700.0
FILL_CYCLES = 4.0


def schedule_scatter(plan: Plan) -> bool:
    """Schedule blocks and threads for the parts of the result that loops own; False if they own
    nothing.
    """
    names = _names(plan)
    if len(names) > 2 or len(plan.kernel.roots) != len(names):
        return False
    *fills, host = names
    is_outside = _is_outside(plan, host)
    together = _looks_together(plan, host)
    together &= _divide(plan, names)
    lanes = _lanes(plan, names)
    digits = sorted(
        (d for d in owned(plan.nest(host)) if all(cut_out(plan, fill, host, d) for fill in fills)),
        reverse=True,
    )
    if not digits:
        return False
    if is_outside:  # the threads of a warp go through elements of their own
        digits = [*digits[1:], digits[0]]
    fill_inside(plan, names, digits)
    if together:
        _share_looks(plan, host, fills, len(digits), lanes)
    else:
        _share(plan, host, fills, len(digits), lanes)
        _look_ahead(plan, host)
    return True


def _names(plan: Plan) -> list[str]:
    """The nests of a scatter: perhaps one that fills the result, and the one that goes through the
    elements.
    """
    return [nest.name for nest in plan.kernel.nests]


# -- parts of the places ---------------------------------------------------------------------------


def _is_outside(plan: Plan, name: str) -> bool:
    """True if loops outside of all places are enough work for a warp."""
    found = chosen_place(plan.nest(name))
    digits = owned(plan.nest(name))
    if found is None or not digits:
        return False
    step = stored_by(plan.nest(name)).index.linear()[0][found[0]]
    return step <= min(digits)[0] and max(digits)[1] >= plan.target.warp


def _looks_together(plan: Plan, name: str) -> bool:
    """True if the threads of a block may look at one element each, and then do all that are theirs.

    They own adjacent elements, for all of which the same scattered elements are theirs.
    """
    nest = plan.nest(name)
    found = chosen_place(nest)
    near = [r for (step, _), r in owned(nest).items() if step == 1]
    if found is None or not near or plan.target.block_threads < MAX_SKIP_SIZE:
        return False
    free = [o.range for o in nest.loops if o.range not in owned(nest).values()]
    is_known = bool(free) and free[-1].size.is_const and free[-1] in found[0].ranges
    alike = not any(r in e.ranges for r in near for e in (found[0], stored_by(nest).valid))
    return is_known and alike and not _is_outside(plan, name)


def _divide(plan: Plan, names: Sequence[str]) -> bool:
    """Divide the places among threads if that takes less time; True if it does."""
    cycles = _cycles(plan, names)
    best = min(cycles, key=cycles.__getitem__, default=1)
    if best > 1:
        plan.do("partition", names[-1], best)
    return best > 1


def scatter_seconds(plan: Plan, times: int) -> float | None:
    """About the time of a scatter in `times` parts, each with a result of its own; None if it is
    not known.
    """
    cycles = _cycles(plan, _names(plan), times)
    return min(cycles.values()) / clock(plan.target) if cycles else None


def _cycles(plan: Plan, names: Sequence[str], times: int = 1) -> dict[int, float]:
    """The cycles by the number of parts of the places; empty if sizes are symbolic or no place is
    loaded.
    """
    nest = plan.nest(names[-1])
    found = chosen_place(nest)
    if found is None or not all(loop.range.size.is_const for loop in nest.loops):
        return {}
    place, places = found
    step = stored_by(nest).index.linear()[0][place]
    digits = owned(nest)
    inside = prod(size for own, size in digits if own < step) // _lanes(plan, names)
    outside = times * prod(size for own, size in digits if own >= step)
    elements = prod(loop.size for loop in nest.loops if loop.range not in digits.values()) // times
    filled = places if len(names) > 1 else 0
    together = _looks_together(plan, names[-1])
    return {
        parts: scatter_cycles(plan.target, elements, filled, outside, inside, parts, together)
        for parts in _parts(places, exact=outside > 1)
    }


def _parts(places: int, *, exact: bool) -> Iterator[int]:
    """The numbers of parts into which places may be divided, about doubled each time.

    If `exact`, all parts are of one size: if loops outside of all places own more than one place,
    parts have to end with these.
    """
    wanted = 1
    while wanted <= min(places, MAX_PARTS):
        parts = wanted
        while exact and places % parts:
            parts += 1
        yield parts
        wanted *= 2


def scatter_cycles(
    target: Target,
    elements: int,
    filled: int,
    outside: int,
    inside: int,
    parts: int,
    together: bool = False,
) -> float:
    """About the cycles to scatter `elements`, each with `inside` elements beside it, to divided
    places.

    `filled` places are filled first, and all of it is done `outside` times. Threads look at
    elements `together`, or each thread looks at all of them.
    """
    together = together and parts > 1
    near = inside if inside > 1 else outside if outside >= target.warp else parts
    threads = MAX_SKIP_SIZE if together else min(target.warp, near)
    warps = outside * parts * max(inside / threads, float(together))
    at_once = max(1, target.max_threads * target.block_threads // (target.warp * WARPS_IN_TURN))
    busy, alone = (LOOK_CYCLES, LOOK_WAIT_CYCLES) if together else (PASS_CYCLES, WAIT_CYCLES)
    passing = elements * max(alone, busy * warps / at_once)
    # The threads of a warp that have different parts add one after the other.
    in_turn = min(target.warp, parts) if inside == 1 and outside < target.warp else 1
    adding = elements * in_turn / parts * ADD_CYCLES
    return passing + adding + filled / parts * FILL_CYCLES * max(1.0, warps / at_once)


# -- blocks and threads ----------------------------------------------------------------------------


def _lanes(plan: Plan, names: Sequence[str]) -> int:
    """The number of adjacent elements that a thread takes at a time.

    It is 1 unless the last loop that owns its elements is contiguous in all loads and stores.
    """
    lanes = MAX_ACCESS_BYTES
    for name in names:
        near = [r for (step, _), r in owned(plan.nest(name)).items() if step == 1]
        lanes = gcd(lanes, aligned_lanes(plan.nest(name), near[0]) if near else 1)
    return lanes


def _share(plan: Plan, name: str, fills: Sequence[str], depth: int, lanes: int) -> None:
    """Give a block one warp, as there are few blocks."""
    last = _in_lanes(plan, name, fills, depth, lanes)
    threads = 1
    while threads < min(last.size.max, max(plan.target.warp, LINE_BYTES // 4)):
        threads *= 2
    _, thread = plan.split(name, last, threads, "mask")
    plan.do("bind", name, thread)
    plan.do("parallel", name, plan.fuse_first(name, depth))


def _in_lanes(plan: Plan, name: str, fills: Sequence[str], depth: int, lanes: int) -> Expr:
    """Make adjacent elements the lanes of vectors; returns the last owning loop after that."""
    last = plan.nest(name).loops[depth - 1].range
    if lanes > 1:
        last, lane = plan.split(name, last, lanes)
        _vectorize(plan, name, lane)
        for fill in fills:
            plan.do("compute_at", fill, depth)
            plan.do("vectorize", fill, plan.copy_of(lane, fill))
    return last


def _share_looks(plan: Plan, name: str, fills: Sequence[str], depth: int, lanes: int) -> None:
    """Give a block one warp, whose threads look at an element each, and do together the elements
    found.
    """
    while lanes > 1 and plan.nest(name).loops[depth - 1].size < lanes * MAX_SKIP_SIZE:
        lanes //= 2
    last = _in_lanes(plan, name, fills, depth, lanes)
    _, thread = plan.split(name, last, MAX_SKIP_SIZE, "mask")
    for fill in fills:
        plan.do("compute_at", fill, depth)
        _bind_first(plan, fill, plan.copy_of(thread, fill))
    plan.do("bind", name, thread)
    plan.do("parallel", name, plan.fuse_first(name, depth))
    lane = [o.range for o in plan.nest(name).loops if o.kind is Kind.VECTOR]
    *_, r = [o.range for o in plan.nest(name).loops if o.kind is Kind.SERIAL]
    plan.do("split", name, r, MAX_SKIP_SIZE, "mask")
    *free, element = [o.range for o in plan.nest(name).loops if o.kind is Kind.SERIAL]
    first = plan.loops(name)[0]
    plan.do("reorder", name, (first, *free, thread, element, *lane))
    bits = plan.skip(name, element)
    plan.do("bind", bits, plan.copy_of(element, bits))
    _look_several_times(plan, name, bits, free[-1])


def _bind_first(plan: Plan, name: str, thread: Expr) -> None:
    plan.do("reorder", name, (thread, *plan.others(name, (thread,))))
    plan.do("bind", name, thread)


def _look_several_times(plan: Plan, name: str, bits: str, r: Expr) -> None:
    """Let each thread load the places of several elements before the first is done."""
    if not r.size.is_const or r.size.arg % LOOKS_AT_ONCE:
        return
    _, look = plan.split(name, r, LOOKS_AT_ONCE)
    at = plan.nest(bits).at
    assert at is not None
    plan.do("compute_at", bits, at[1] - 1)
    plan.do("unroll", bits, plan.copy_of(look, bits))
    plan.do("unroll", name, look)


def _vectorize(plan: Plan, name: str, lane: Expr) -> None:
    plan.do("reorder", name, (*plan.others(name, (lane,)), lane))
    plan.do("vectorize", name, lane)


def _look_ahead(plan: Plan, name: str) -> None:
    """Load the places of several elements before the first of them is stored."""
    free = [o.range for o in plan.nest(name).loops if o.kind is Kind.SERIAL]
    if not free or not free[-1].size.is_const or free[-1].size.arg % PLACES_AT_ONCE:
        return
    _, inner = plan.split(name, free[-1], PLACES_AT_ONCE)
    depth = plan.loops(name).index(inner)
    for number, e in enumerate(_places(plan, name, inner)):
        copy = f"{name}.place{number}"
        plan.do("stage", name, e.arg, name, depth, (inner,), copy)
        along = plan.nest(copy).loops[-1].range
        lanes = aligned_lanes(plan.nest(copy), along)
        if 1 < lanes < PLACES_AT_ONCE:
            vectors, lane = plan.split(copy, along, lanes)
            plan.do("unroll", copy, vectors)
            plan.do("vectorize", copy, lane)
        else:
            plan.do("unroll", copy, along)
    plan.do("unroll", name, inner)


def _places(plan: Plan, name: str, r: Expr) -> list[Expr]:
    """The loads of a nest's store index, from buffers that are loaded for nothing else."""
    nest = plan.nest(name)
    (c,) = nest.computes
    found = [e for e in toposort([stored_by(nest).index]) if e.op is ExprOp.LOAD]
    slots = [e.arg for e in toposort([c.value, stored_by(nest).index]) if e.op is ExprOp.LOAD]
    near = [e for e in found if r in e.ranges and slots.count(e.arg) == 1]
    return [e for e in near if not any(x.op is ExprOp.LOAD for x in toposort(e.src))]
