"""Scatters for blocks of threads: a value says where they store, so that their order counts.

Loops along other axes than the one that is scattered own their parts of the result: these become
blocks and threads. What is scattered stays in its order, one after the other in each thread, which
has filled its part of the result with the identity itself, unless elements go to what is in memory
already. Where this leaves most of the device idle, the places themselves are divided: all threads
go through all elements, and do those alone that are stored to places of theirs. Where the threads
of a warp own neighbours of one place, they look at 32 elements at a time, one each, and do together
those that are theirs, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from ferrule.codegen.grid.cost import clock
from ferrule.codegen.grid.streams import aligned_lanes
from ferrule.codegen.kernel import PIECE_BYTES, Kind
from ferrule.codegen.plan import LINE_BYTES, Plan
from ferrule.codegen.primitives.loops import MAX_SKIP_SIZE
from ferrule.codegen.primitives.nests import chosen_place
from ferrule.codegen.scatters import cut_out, fill_inside, owned, stored_by
from ferrule.expr import Expr, ExprOp, toposort
from ferrule.target import Target

AT_ONCE = 8  # elements of which a thread looks at the places together
LOOKS = 4  # of all threads together, each at a place of its own, before what they found is done
MOST_PARTS = 4096
WARPS = 16  # of which one at a time goes on
# Time in cycles: of a warp that passes an element by, while others run and alone; the same where
# its threads look at one each; of one that adds an element to memory; of one that fills a place.
PASS_CYCLES = 12.0
WAIT_CYCLES = 12.0
LOOK_CYCLES = 0.6
LOOK_WAIT_CYCLES = 2.0
ADD_CYCLES = 700.0
FILL_CYCLES = 4.0


def schedule_scatter(plan: Plan) -> bool:
    """Blocks and threads for what loops own of the result; False if they own nothing."""
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
    """The nests of a scatter: the one that fills the result, if there is one, and the one that goes
    through the elements.
    """
    return [nest.name for nest in plan.kernel.nests]


# -- parts of the places ---------------------------------------------------------------------------


def _is_outside(plan: Plan, name: str) -> bool:
    """Whether loops outside of all places alone give a warp something to do."""
    found = chosen_place(plan.nest(name))
    digits = owned(plan.nest(name))
    if found is None or not digits:
        return False
    step = stored_by(plan.nest(name)).index.linear()[0][found[0]]
    return step <= min(digits)[0] and max(digits)[1] >= plan.target.warp


def _looks_together(plan: Plan, name: str) -> bool:
    """Whether the threads of a block may look at an element each, and then do all that are theirs:
    they own neighbours, and whether an element is theirs does not vary among these.
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
    """Divide the places among threads where that takes less time; whether it does."""
    cycles = _cycles(plan, names)
    best = min(cycles, key=cycles.__getitem__, default=1)
    if best > 1:
        plan.do("partition", names[-1], best)
    return best > 1


def scatter_seconds(plan: Plan, times: int) -> float | None:
    """About how long a scatter takes whose elements go, in so many parts, to as many results; None
    where the time is not known.
    """
    cycles = _cycles(plan, _names(plan), times)
    return min(cycles.values()) / clock(plan.target) if cycles else None


def _cycles(plan: Plan, names: Sequence[str], times: int = 1) -> dict[int, float]:
    """The cycles for places in so many parts; none where sizes vary, or nothing says the place."""
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
    """Into how many parts places may be divided, about doubled each time.

    They are of one size if `exact`: where loops own more than a place, what is outside of all
    places, parts have to end with these.
    """
    wanted = 1
    while wanted <= min(places, MOST_PARTS):
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
    """About how many cycles it takes to scatter `elements`, each with `inside` beside it, to places
    that are divided into parts, so many of them filled first; all of that is done `outside` times.
    Threads look at elements `together`, or each at all of them.
    """
    together = together and parts > 1
    near = inside if inside > 1 else outside if outside >= target.warp else parts
    threads = MAX_SKIP_SIZE if together else min(target.warp, near)
    warps = outside * parts * max(inside / threads, float(together))
    at_once = max(1, target.max_threads * target.block_threads // (target.warp * WARPS))
    busy, alone = (LOOK_CYCLES, LOOK_WAIT_CYCLES) if together else (PASS_CYCLES, WAIT_CYCLES)
    passing = elements * max(alone, busy * warps / at_once)
    # Threads of a warp that have parts of their own add one after the other.
    in_turn = min(target.warp, parts) if inside == 1 and outside < target.warp else 1
    adding = elements * in_turn / parts * ADD_CYCLES
    return passing + adding + filled / parts * FILL_CYCLES * max(1.0, warps / at_once)


# -- blocks and threads ----------------------------------------------------------------------------


def _lanes(plan: Plan, names: Sequence[str]) -> int:
    """How many neighbours a thread takes at a time: where the last loop that owns its elements is
    contiguous in all that is loaded and stored.
    """
    lanes = PIECE_BYTES
    for name in names:
        near = [r for (step, _), r in owned(plan.nest(name)).items() if step == 1]
        lanes = gcd(lanes, aligned_lanes(plan.nest(name), near[0]) if near else 1)
    return lanes


def _share(plan: Plan, name: str, fills: Sequence[str], depth: int, lanes: int) -> None:
    """A warp to a block: blocks are what there are few of."""
    last = _in_lanes(plan, name, fills, depth, lanes)
    threads = 1
    while threads < min(last.size.max, max(plan.target.warp, LINE_BYTES // 4)):
        threads *= 2
    _, thread = plan.split(name, last, threads, "mask")
    plan.do("bind", name, thread)
    plan.do("parallel", name, plan.fuse_first(name, depth))


def _in_lanes(plan: Plan, name: str, fills: Sequence[str], depth: int, lanes: int) -> Expr:
    """Neighbours become the lanes of vectors; what the last loop that owns its elements is then."""
    last = plan.nest(name).loops[depth - 1].range
    if lanes > 1:
        last, lane = plan.split(name, last, lanes)
        _vectorize(plan, name, lane)
        for fill in fills:
            plan.do("compute_at", fill, depth)
            plan.do("vectorize", fill, plan.copy_of(lane, fill))
    return last


def _share_looks(plan: Plan, name: str, fills: Sequence[str], depth: int, lanes: int) -> None:
    """A warp to a block, whose threads look at an element each, and do together what they found."""
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
    """The places of several elements are loaded by each thread before the first is done."""
    if not r.size.is_const or r.size.arg % LOOKS:
        return
    _, look = plan.split(name, r, LOOKS)
    at = plan.nest(bits).at
    assert at is not None
    plan.do("compute_at", bits, at[1] - 1)
    plan.do("unroll", bits, plan.copy_of(look, bits))
    plan.do("unroll", name, look)


def _vectorize(plan: Plan, name: str, lane: Expr) -> None:
    plan.do("reorder", name, (*plan.others(name, (lane,)), lane))
    plan.do("vectorize", name, lane)


def _look_ahead(plan: Plan, name: str) -> None:
    """What says where several elements go is loaded before the first of them is stored."""
    free = [o.range for o in plan.nest(name).loops if o.kind is Kind.SERIAL]
    if not free or not free[-1].size.is_const or free[-1].size.arg % AT_ONCE:
        return
    _, inner = plan.split(name, free[-1], AT_ONCE)
    depth = plan.loops(name).index(inner)
    for number, e in enumerate(_places(plan, name, inner)):
        copy = f"{name}.place{number}"
        plan.do("stage", name, e.arg, name, depth, (inner,), copy)
        along = plan.nest(copy).loops[-1].range
        lanes = aligned_lanes(plan.nest(copy), along)
        if 1 < lanes < AT_ONCE:
            vectors, lane = plan.split(copy, along, lanes)
            plan.do("unroll", copy, vectors)
            plan.do("vectorize", copy, lane)
        else:
            plan.do("unroll", copy, along)
    plan.do("unroll", name, inner)


def _places(plan: Plan, name: str, r: Expr) -> list[Expr]:
    """The loads that say where a nest stores, of buffers that are loaded for nothing else."""
    nest = plan.nest(name)
    (c,) = nest.computes
    found = [e for e in toposort([stored_by(nest).index]) if e.op is ExprOp.LOAD]
    slots = [e.arg for e in toposort([c.value, stored_by(nest).index]) if e.op is ExprOp.LOAD]
    near = [e for e in found if r in e.ranges and slots.count(e.arg) == 1]
    return [e for e in near if not any(x.op is ExprOp.LOAD for x in toposort(e.src))]
