"""Schedules for blocks of threads: which loops become blocks, and which threads.

Each shape of work has a module: streams, reduces with reuse, other reduces, scatters. What is here
tells them apart, and does what is left: reduces inside of reduces, by a thread for each result, or
by a block together where the terms lie along memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.chains import has_blocks
from ferrule.codegen.grid.chains import schedule_grid_chain
from ferrule.codegen.grid.rows import Layout, column_of, layout_of, place_of_all, schedule_reduces
from ferrule.codegen.grid.scatter import schedule_scatter
from ferrule.codegen.grid.streams import last, schedule_stream, share, threads_for
from ferrule.codegen.grid.tile import schedule_grid_tile
from ferrule.codegen.kernel import PIECE_BYTES, Kind, Nest, stores_to_one_place
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.codegen.primitives.editing import ScheduleError, is_ordered
from ferrule.codegen.rows import column_axis, merge_siblings

SHORT = 32  # terms of a reduce that one thread does as well alone
AGAIN = 8  # times the work of what is computed again, a kernel has at least
UNNOTICED = 16  # iterations of each thread, which are computed again in any case


def schedule_grid(plan: Plan) -> None:
    """Schedule a kernel for blocks of threads."""
    kernel = plan.kernel
    if any(stores_to_one_place(nest) or _adds_up(nest) for nest in kernel.nests):
        plan.attempt(schedule_scatter)
        return
    if any(is_ordered(kernel, nest.name) for nest in kernel.roots):
        return
    reduces = []
    for name in [nest.name for nest in plan.kernel.roots]:
        if not plan.below(name):
            schedule_stream(plan, name)
        elif has_blocks(plan, name):
            plan.attempt(schedule_grid_chain, name)
        elif not plan.attempt(schedule_grid_tile, name):
            reduces.append(name)
    merge_siblings(plan, reduces)
    for name in (n for n in reduces if n in plan.kernel.by_name):
        _schedule_reduces(plan, name)


def _schedule_reduces(plan: Plan, name: str) -> None:
    """Schedule a root with reduces in it that are no contraction's tile."""
    merge_siblings(plan, plan.below(name))
    below = plan.below(name)
    plan.attempt(_meet, name)
    plan.attempt(_again_in_blocks, name)
    if plan.attempt(schedule_reduces, name):
        return
    if not (_suits_rows(plan, name, below) and _rows(plan, name)):
        _together(plan, name)


def _adds_up(nest: Nest) -> bool:
    """Whether a nest stores from inside another, as a sum over blocks does."""
    return nest.at is not None and any(c.store is not None for c in nest.computes)


def _meet(plan: Plan, name: str) -> bool:
    """Reduces that hang further out than others are computed again for each of these, where results
    out there are too few for the device and that takes little.
    """
    loops = plan.nest(name).loops
    depths = {n: at[1] for n in plan.below(name) if (at := plan.nest(n).at) and at[0] == name}
    if not depths:
        return False
    outer, inner = min(depths.values()), max(depths.values())
    if outer == inner or prod(o.range.size.max for o in loops[:outer]) >= plan.target.max_threads:
        return False
    again = [n for n in depths if depths[n] < inner]
    once = sum(_iterations(plan, n) for n in again)
    extra = once * prod(loop.range.size.max for loop in loops[:inner])
    for n in reversed(again):  # whose readers have to be in there
        plan.do("recompute", n, inner)
    block = UNNOTICED * plan.target.block_threads
    if once <= block and extra <= block * plan.target.max_threads:
        return True
    return AGAIN * extra <= plan.work(name)


def _again_in_blocks(plan: Plan, name: str) -> bool:
    """Reduces that hang outside of all loops of a root, or further in where few blocks' results
    are, are computed again by each of several blocks, which share out the loops inside: that takes
    no longer than one block does it, and ends sooner. Where there are blocks already, it has to be
    little that they do again.
    """
    loops, hanging = plan.nest(name).loops, _hanging(plan, name)
    depth = _depth_of_children(plan, name)
    if depth == len(loops) or any(plan.nest(n).at != (name, depth) for n in hanging):
        return False
    sizes = [loop.range.size.max for loop in loops]
    inner, least = prod(sizes[depth:]), UNNOTICED * plan.target.block_threads
    layout = _layout(plan, name, depth)
    blocks = -(-prod(sizes[:depth]) // (layout.results if layout else 1))
    shares = min(plan.target.max_threads // blocks, prod(sizes) // (least * blocks), inner // SHORT)
    if shares < 2 or (blocks > 1 and sum(_iterations(plan, n) for n in hanging) > least):
        return False
    is_short = sizes[-1] < plan.target.block_threads  # all loops as one have work for all threads
    count = next(
        n
        for n in range(1, len(sizes) + 1)
        if depth + n == len(sizes) or (not is_short and prod(sizes[depth : depth + n]) >= shares)
    )
    first = plan.fuse_at(name, depth, count)
    is_row = depth + count == len(sizes) and not (layout and layout.across)
    size = _share_of(prod(sizes[depth : depth + count]), shares, least if is_row else 1)
    if size > 1:
        plan.do("split", name, first, size, "mask")
    for n in reversed(hanging):  # whose readers have to be in there
        plan.do("recompute", n, depth + 1)
    return True


def _layout(plan: Plan, name: str, depth: int) -> Layout | None:
    """The threads of a block, before the loops inside are shared out."""
    below = plan.below(name)
    if place_of_all(plan, name, below) is None:
        return None
    return layout_of(plan, name, below, depth, column_of(plan, name, below, depth))


def _share_of(size: int, shares: int, whole: int) -> int:
    """How much of a loop each block does: an equal part, so that no access needs a mask, or else
    a multiple of what gives all threads whole vectors.
    """
    for count in range(shares, shares // 2, -1):
        if size % count == 0 and (whole == 1 or size // count % PIECE_BYTES == 0):
            return size // count
    return -(-size // (shares * whole)) * whole


def _hanging(plan: Plan, name: str) -> list[str]:
    """The nests that hang in the loops of a nest, or before them."""
    return [n.name for n in plan.kernel.nests if n.at is not None and n.at[0] == name]


def _iterations(plan: Plan, name: str) -> int:
    """How often the bodies of a nest and of those that hang in it run for each place of it."""
    nest = plan.nest(name)
    inside = sum(
        prod(loop.range.size.max for loop in nest.loops[: n.at[1]]) * _iterations(plan, n.name)
        for n in plan.kernel.nests
        if n.at is not None and n.at[0] == name
    )
    return prod(loop.range.size.max for loop in nest.loops) + inside


# -- a thread for each result ----------------------------------------------------------------------


def _suits_rows(plan: Plan, name: str, below: Sequence[str]) -> bool:
    """Whether reduces are better done by one thread each."""
    if column_axis(plan, name, below, _depth_of_children(plan, name)) is not None:
        return True
    terms = max(loop.range.size.max for n in below for loop in plan.nest(n).loops[-1:])
    return terms < SHORT or not _along_memory(plan, below)


def _along_memory(plan: Plan, below: Sequence[str]) -> bool:
    """Whether the terms of some reduce are neighbours in memory."""
    nests = [plan.nest(n) for n in below]
    return any(
        step_of(e.src[0], loop.range) == 1
        for nest in nests
        for loop in nest.loops[-1:]
        for c in nest.computes
        for e in loads(c.value)
    )


def _rows(plan: Plan, name: str) -> bool:
    """False if the reduces hang outside of all loops, so that there is one thread's work only."""
    depth = _depth_of_children(plan, name)
    if depth == 0:
        return False
    column = column_axis(plan, name, plan.below(name), depth)
    if column is not None:
        last(plan, name, column, depth)
    share(plan, name, depth)
    return True


def _depth_of_children(plan: Plan, name: str) -> int:
    """How many loops of a nest are open around everything that hangs in it."""
    places = [n.at[1] for n in plan.kernel.nests if n.at is not None and n.at[0] == name]
    return min(places, default=len(plan.nest(name).loops))


# -- a block for each result -----------------------------------------------------------------------


def _together(plan: Plan, name: str) -> None:
    """The block does all that hangs outside of its threads' loops together."""
    depth = _depth_of_children(plan, name)
    if depth:
        plan.do("parallel", name, plan.fuse_first(name, depth))
    family = [name, *reversed(plan.below(name))]
    terms = max(_inner_size(plan, n) for n in family)
    threads = threads_for(plan, terms)
    together = {name}
    for n in family:
        at = plan.nest(n).at
        if at is not None and not (at[0] in together and at[1] <= _first_thread(plan, at[0])):
            continue
        together.add(n)
        _bind_last(plan, n, threads)


def _inner_size(plan: Plan, name: str) -> int:
    """How many iterations the loop has along which the threads of a block share out a nest."""
    nest = plan.nest(name)
    free = [o.range.size.max for o in nest.loops if o.kind is Kind.SERIAL]
    return free[-1] if free else 1


def _first_thread(plan: Plan, name: str) -> int:
    kinds = [loop.kind for loop in plan.nest(name).loops]
    return kinds.index(Kind.THREAD) if Kind.THREAD in kinds else len(kinds)


def _bind_last(plan: Plan, name: str, threads: int) -> None:
    """Threads along the last loop of a nest, if it is not a block's, nor has less to share out
    than what hangs in it.
    """
    nest = plan.nest(name)
    if not nest.loops or nest.loops[-1].kind is not Kind.SERIAL:
        return
    inside = [n.name for n in plan.kernel.nests if n.at == (name, len(nest.loops))]
    family = {n for child in inside for n in (child, *plan.below(child))}
    if any(_inner_size(plan, n) > nest.loops[-1].range.size.max for n in family):
        return
    try:
        _, thread = plan.split(name, nest.loops[-1].range, threads, "mask")
    except ScheduleError:  # a loop with limits stays as it is: all threads do it
        return
    plan.do("bind", name, thread)
