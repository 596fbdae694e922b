"""Element-wise schedules for thread blocks: 16 bytes a thread, and transposition in shared memory.

Neighbouring threads store adjacent elements. If the loads are contiguous along another axis, a
block loads a square along that axis into shared memory, and stores it along the other. A row of the
square has a bank of shared memory, or an element, for each thread of a warp.
"""

from __future__ import annotations

from functools import partial
from math import gcd

from ferrule.codegen.estimate_blocks import least_block_cycles
from ferrule.codegen.kernel import MAX_ACCESS_BYTES, Nest
from ferrule.codegen.plan import Plan, Proposal, loads, step_of
from ferrule.ir.expr import Expr, ExprOp, toposort

MIN_SIDE = 8  # elements of a side of a square: then a row fills the 32-byte sectors that are loaded
BANK_BYTES = 4  # bytes of a bank of shared memory


def schedule_stream(plan: Plan, name: str) -> None:
    """Schedule a vector for each thread, or squares that are transposed."""
    nest = plan.nest(name)
    if not nest.loops:
        return
    v = _contiguous(nest)
    w = _other_orientation(nest, v)
    forms = [Proposal("vectors", partial(_in_vectors, name=name, v=v), least_block_cycles)]
    if w is not None:
        widest = max(e.dtype.itemsize for e in _strided_loads(nest, v))
        side = max(plan.target.warp, MIN_SIDE)
        sides = {side * max(1, BANK_BYTES // widest), side}
        squares = {n: partial(_transpose, name=name, v=v, w=w, side=n) for n in sides}
        forms = [
            *[
                Proposal(f"squares of {n}", squares[n], least_block_cycles)
                for n in sorted(sides)[::-1]
            ],
            *forms,
        ]
    plan.best(name, *forms)


def _in_vectors(plan: Plan, name: str, v: Expr) -> bool:
    nest = plan.nest(name)
    last(plan, name, v, len(nest.loops))
    lanes = aligned_lanes(nest, v)
    if lanes == 1 and len(nest.loops) == 1 and _odd_lanes(nest, v) > 1:
        _share_with_tail(plan, name, _odd_lanes(nest, v))
        return True
    if lanes > 1:
        _, lane = plan.split(name, v, lanes)
        plan.do("vectorize", name, lane)
    share(plan, name, len(nest.loops))
    return True


def threads_for(plan: Plan, items: int) -> int:
    """The number of threads of a block that has `items` things to do at once."""
    threads = plan.target.warp
    while threads < min(items, plan.target.block_threads):
        threads *= 2
    return threads


def share(plan: Plan, name: str, depth: int) -> None:
    """Fuse the first `depth` loops; the iterations are the threads of blocks."""
    flat = plan.fuse_first(name, depth)
    blocks, thread = plan.split(name, flat, threads_for(plan, flat.size.max), "mask")
    plan.do("bind", name, thread)
    plan.do("parallel", name, blocks)


def last(plan: Plan, name: str, r: Expr, depth: int) -> None:
    """Reorder the first loops so that `r` is the last of them."""
    loops = plan.loops(name)
    first = [x for x in loops[:depth] if x is not r]
    if loops[depth - 1] is not r:
        plan.do("reorder", name, (*first, r, *loops[depth:]))


def _share_with_tail(plan: Plan, name: str, lanes: int) -> None:
    """Share out one loop whose last vector is incomplete: only the last block has masks."""
    r = plan.nest(name).loops[0].range
    threads = threads_for(plan, r.size.max // lanes)
    blocks, block = plan.split(name, r, threads * lanes, "peel")
    thread, lane = plan.split(name, block, lanes)
    plan.do("vectorize", name, lane)
    plan.do("bind", name, thread)
    plan.do("parallel", name, blocks)


def _contiguous(nest: Nest) -> Expr:
    """The loop along which most stores, then most loads, are contiguous."""

    def score(r: Expr) -> tuple[int, int]:
        stores = [c.store.index for c in nest.computes if c.store is not None]
        indices = [e.src[0] for c in nest.computes for e in loads(c.value)]
        return (
            sum(step_of(index, r) == 1 for index in stores),
            sum(step_of(index, r) == 1 for index in indices),
        )

    ranges = [loop.range for loop in nest.loops]
    return max(reversed(ranges), key=score)


# -- vectors ---------------------------------------------------------------------------------------


def aligned_lanes(nest: Nest, r: Expr) -> int:
    """The number of adjacent elements along a range that one thread takes at a time.

    All accesses are aligned, and there is no tail.
    """
    return gcd(_odd_lanes(nest, r), r.size.arg) if r.size.is_const else 1


def _odd_lanes(nest: Nest, r: Expr) -> int:
    """The number of adjacent elements along a range that one thread takes at a time, perhaps with a
    tail.
    """
    found = [e for c in nest.computes for e in loads(c.value)]
    accesses = [(e.src[0], e.src[1], e.dtype.itemsize) for e in found]
    for c in nest.computes:
        if c.store is not None:
            accesses.append((c.store.index, c.store.valid, c.value.dtype.itemsize))
    if any(r in valid.ranges for _, valid, _ in accesses):
        return 1
    lanes = MAX_ACCESS_BYTES // max((size for *_, size in accesses), default=MAX_ACCESS_BYTES)
    for index, _, _ in accesses:
        step = step_of(index, r)
        if step not in (0, 1):
            return 1
        if step == 1:
            terms, first = index.linear()
            lanes = gcd(lanes, first, *(n for e, n in terms.items() if e is not r))
    return lanes


# -- transposes ------------------------------------------------------------------------------------


def _strided_loads(nest: Nest, v: Expr) -> list[Expr]:
    """The loads that are contiguous along another loop."""
    found = dict.fromkeys(e for c in nest.computes for e in loads(c.value))
    return [e for e in found if step_of(e.src[0], v) not in (0, 1)]


def _other_orientation(nest: Nest, v: Expr) -> Expr | None:
    """The loop along which all those loads are contiguous; None if there is none."""
    far = _strided_loads(nest, v)
    if not far or v.size.max < MIN_SIDE or any(len(e.src) > 2 for e in far):
        return None
    if any(x.op is ExprOp.LOAD for e in far for x in toposort(e.src)):
        return None  # positions that are loaded are near one another nowhere
    for loop in nest.loops:
        w = loop.range
        if w is not v and w.size.max >= MIN_SIDE and all(step_of(e.src[0], w) == 1 for e in far):
            return w
    return None


def _transpose(plan: Plan, name: str, v: Expr, w: Expr, side: int) -> bool:
    """Schedule squares of `v` and `w`: loaded along `w` to shared memory, stored along `v`."""
    far = _strided_loads(plan.nest(name), v)
    if (side + BANK_BYTES) * side * sum(e.dtype.itemsize for e in far) > plan.target.shared_bytes:
        return False
    _, along = plan.split(name, v, side)
    _, across = plan.split(name, w, side)
    blocks = plan.others(name, (across, along))
    plan.do("reorder", name, (*blocks, across, along))
    for _ in far:
        _stage_square(plan, name, len(blocks), (along, across), side)
    _threads_of_square(plan, name, across, along, side)
    plan.do("parallel", name, plan.fuse_first(name, len(blocks)))
    return True


def _stage_square(plan: Plan, name: str, depth: int, axes: tuple[Expr, Expr], side: int) -> None:
    """Copy the next load that is not contiguous; the rows of the copy are padded by one bank."""
    e = _strided_loads(plan.nest(name), axes[0])[0]
    same = dict.fromkeys(x for c in plan.nest(name).computes for x in loads(c.value))
    number = [x for x in same if x.arg == e.arg].index(e)
    copy = plan.kernel.free_name("square", numbered=True)
    plan.do("stage", name, e.arg, name, depth, axes, copy, number)
    across, along = plan.loops(copy)
    _threads_of_square(plan, copy, across, along, side)
    rows = [o.range for o in plan.nest(copy).loops if o.is_from(across)]
    plan.do("pad", copy, rows[-1], max(1, BANK_BYTES // e.dtype.itemsize))


def _threads_of_square(plan: Plan, name: str, across: Expr, along: Expr, side: int) -> None:
    """Bind neighbouring threads along one axis of a square.

    The remaining threads take the other axis, in a few turns.
    """
    rows = max(1, min(side, plan.target.block_threads // side))
    plan.do("bind", name, along, "thread", 1)
    if rows == side:
        plan.do("bind", name, across, "thread", side)
        return
    turns, thread = plan.split(name, across, rows)
    plan.do("bind", name, thread, "thread", side)
    plan.do("unroll", name, turns)
