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
from functools import partial
from math import gcd, prod

from ferrule.codegen.estimate_blocks import least_block_cycles
from ferrule.codegen.kernel import MAX_ACCESS_BYTES, Kernel, Kind
from ferrule.codegen.plan import Plan, Proposal
from ferrule.codegen.primitives.loops import MAX_SKIP_SIZE
from ferrule.codegen.primitives.nests import chosen_place
from ferrule.codegen.schedules.cpu.scatters import cut_out, fill_inside, owned, stored_by
from ferrule.codegen.schedules.gpu.streams import aligned_lanes
from ferrule.ir.expr import Expr, ExprOp, toposort
from ferrule.ir.target import LINE_BYTES

PLACES_AT_ONCE = 32  # elements whose places a thread loads before it stores the first
LOOKS_AT_ONCE = 4  # looks of all threads together before the elements that they found are done
PARTS_RATIO = 8  # times as many parts in each proposal as in the one before


def schedule_scatter(plan: Plan) -> bool:
    """Schedule blocks and threads for the parts of the result that loops own, with the places
    divided into as many parts as take the least time; False if they own nothing.
    """
    names = _names(plan)
    if len(names) > 2:
        return False
    proposals = [
        Proposal(f"{n} parts", partial(scatter_in_parts, parts=n), least_block_cycles)
        for n in _parts(plan, names[-1])
    ]
    return plan.least(names[-1], *proposals)


def scattered(plan: Plan) -> Iterator[Kernel]:
    """The kernels that a scatter may become."""
    for parts in _parts(plan, _names(plan)[-1]):
        made = Plan(plan.kernel, plan.target)
        if made.attempt(partial(scatter_in_parts, parts=parts)):
            yield made.kernel


def scatter_in_parts(plan: Plan, parts: int) -> bool:
    """Schedule a scatter with its places in so many parts; False if loops own nothing."""
    names = _names(plan)
    *fills, host = names
    operands = plan.below(host)
    is_outside = _is_outside(plan, host)
    together = parts > 1 and _looks_together(plan, host)
    if parts > 1:
        plan.do("partition", host, parts)
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
    for operand in operands:
        if prod(loop.range.size.max for loop in plan.nest(operand).loops) <= PLACES_AT_ONCE:
            for r in plan.loops(operand):
                plan.do("unroll", operand, r)
    return True


def _names(plan: Plan) -> list[str]:
    """The roots of a scatter: perhaps one that fills the result, and the one that goes through the
    elements.
    """
    return [nest.name for nest in plan.kernel.roots]


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
    if _has_operands(plan, name):
        return False
    is_known = bool(free) and free[-1].size.is_const and free[-1] in found[0].ranges
    alike = not any(r in e.ranges for r in near for e in (found[0], stored_by(nest).valid))
    return is_known and alike and not _is_outside(plan, name)


def _parts(plan: Plan, name: str) -> list[int]:
    """The numbers of parts into which places may be divided; one if none is loaded.

    If loops outside of all places own more than one place, all parts are of one size: they have to
    end with these.
    """
    nest = plan.nest(name)
    found = chosen_place(nest)
    if found is None or not all(loop.range.size.is_const for loop in nest.loops):
        return [1]
    place, places = found
    step = stored_by(nest).index.linear()[0][place]
    exact = prod(size for own, size in owned(nest) if own >= step) > 1
    out, wanted = [], 1
    while wanted <= places:
        out.append(next(n for n in range(wanted, places + 1) if not exact or places % n == 0))
        wanted *= PARTS_RATIO
    return sorted({*out, places})


def _has_operands(plan: Plan, name: str) -> bool:
    """True if a nest is computed for each element, as a sum that is scattered is."""
    return bool(plan.kernel.children(name, len(plan.loops(name))))


# -- blocks and threads ----------------------------------------------------------------------------


def _lanes(plan: Plan, names: Sequence[str]) -> int:
    """The number of adjacent elements that a thread takes at a time.

    It is 1 unless the last loop that owns its elements is contiguous in all loads and stores, or
    if elements are reduces.
    """
    lanes = MAX_ACCESS_BYTES
    if _has_operands(plan, names[-1]):
        return 1
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
    if _has_operands(plan, name) or not free or not free[-1].size.is_const:
        return
    ahead = gcd(free[-1].size.arg, PLACES_AT_ONCE)
    if ahead == 1:
        return
    _, inner = plan.split(name, free[-1], ahead)
    depth = plan.loops(name).index(inner)
    for number, e in enumerate(_places(plan, name, inner)):
        copy = f"{name}.place{number}"
        plan.do("stage", name, e.arg, name, depth, (inner,), copy)
        along = plan.nest(copy).loops[-1].range
        lanes = aligned_lanes(plan.nest(copy), along)
        if 1 < lanes < ahead:
            vectors, lane = plan.split(copy, along, lanes)
            plan.do("unroll", copy, vectors)
            plan.do("vectorize", copy, lane)
        else:
            plan.do("unroll", copy, along)
    plan.do("unroll", name, inner)


def _places(plan: Plan, name: str, r: Expr) -> list[Expr]:
    """The loads that say where a nest stores, from buffers that are loaded for nothing else."""
    nest = plan.nest(name)
    store = stored_by(nest)
    found = [e for e in toposort([store.index, store.valid]) if e.op is ExprOp.LOAD]
    slots = [e.arg for e in nest.nodes if e.op is ExprOp.LOAD]
    near = [e for e in found if r in e.ranges and slots.count(e.arg) == 1]
    return [e for e in near if not any(x.op is ExprOp.LOAD for x in toposort(e.src))]
