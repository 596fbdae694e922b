"""Schedules for thread blocks (GPUs): which loops become blocks, and which become threads.

Each shape of work has a module: streams, reduces with reuse, other reduces, scatters. This module
tells them apart, and schedules the rest: reduces inside of reduces, by a thread for each result, or
by a whole block if the terms are adjacent in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.kernel import MAX_ACCESS_BYTES, Kind, Nest, stores_to_one_place
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.codegen.primitives.editing import ScheduleError, is_ordered
from ferrule.codegen.schedules.cpu.chains import has_stages
from ferrule.codegen.schedules.cpu.rows import column_axis, merge_siblings
from ferrule.codegen.schedules.gpu.chains import schedule_grid_chain
from ferrule.codegen.schedules.gpu.rows import (
    Layout,
    column_of,
    layout_of,
    place_of_all,
    schedule_reduces,
)
from ferrule.codegen.schedules.gpu.scatter import schedule_scatter
from ferrule.codegen.schedules.gpu.streams import last, schedule_stream, share, threads_for
from ferrule.codegen.schedules.gpu.tile import schedule_grid_tile

# Not measured; no GPU was at hand. Chosen from the machine code that NVRTC makes.
SHORT_REDUCE = 32
"""Terms of a reduce that one thread does as well alone."""
MIN_WORK_RATIO = 8
"""Work of a kernel relative to the work that it does again, at least."""
FREE_ITERATIONS = 16
"""Iterations of each thread that may be computed again in any case."""


def schedule_grid(plan: Plan) -> None:
    """Schedule a kernel for thread blocks."""
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
        elif has_stages(plan, name):
            plan.attempt(schedule_grid_chain, name)
        elif not plan.attempt(schedule_grid_tile, name):
            reduces.append(name)
    merge_siblings(plan, reduces)
    for name in (n for n in reduces if n in plan.kernel.by_name):
        _schedule_reduces(plan, name)


def _schedule_reduces(plan: Plan, name: str) -> None:
    """Schedule a root with reduces that are no contraction's tile."""
    merge_siblings(plan, plan.below(name))
    below = plan.below(name)
    plan.attempt(_recompute_inside, name)
    plan.attempt(_recompute_in_blocks, name)
    if plan.attempt(schedule_reduces, name):
        return
    if not (_suits_rows(plan, name, below) and _rows(plan, name)):
        _by_block(plan, name)


def _adds_up(nest: Nest) -> bool:
    """True if a nest stores from inside another, as a sum over a stage does."""
    return nest.at is not None and any(c.store is not None for c in nest.computes)


def _recompute_inside(plan: Plan, name: str) -> bool:
    """Recompute reduces that hang further out than others, at the place of these.

    Only if results further out are too few for the device, and recomputing them takes little.
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
    for n in reversed(again):  # a reader must be in the loops before its operand enters them
        plan.do("recompute", n, inner)
    block = FREE_ITERATIONS * plan.target.block_threads
    if once <= block and extra <= block * plan.target.max_threads:
        return True
    return MIN_WORK_RATIO * extra <= plan.work(name)


def _recompute_in_blocks(plan: Plan, name: str) -> bool:
    """Recompute reduces in several blocks, which then share out the loops inside of them.

    The reduces hang outside of all loops of a root, or where few blocks have results. Recomputing
    takes no longer than computing in one block, and the kernel ends sooner. If there are several
    blocks already, they may recompute only a little.
    """
    loops, hanging = plan.nest(name).loops, _hanging(plan, name)
    depth = _depth_of_children(plan, name)
    if depth == len(loops) or any(plan.nest(n).at != (name, depth) for n in hanging):
        return False
    sizes = [loop.range.size.max for loop in loops]
    inner, least = prod(sizes[depth:]), FREE_ITERATIONS * plan.target.block_threads
    layout = _layout(plan, name, depth)
    blocks = -(-prod(sizes[:depth]) // (layout.results if layout else 1))
    shares = min(
        plan.target.max_threads // blocks, prod(sizes) // (least * blocks), inner // SHORT_REDUCE
    )
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
    for n in reversed(hanging):  # a reader must be in the loops before its operand enters them
        plan.do("recompute", n, depth + 1)
    return True


def _layout(plan: Plan, name: str, depth: int) -> Layout | None:
    """The layout of a block's threads before the loops inside are shared out."""
    below = plan.below(name)
    if place_of_all(plan, name, below) is None:
        return None
    return layout_of(plan, name, below, depth, column_of(plan, name, below, depth))


def _share_of(size: int, shares: int, whole: int) -> int:
    """The size of each block's part of a loop.

    It is an equal part, so that no access needs a mask, or else a multiple of a size that gives all
    threads whole vectors.
    """
    for count in range(shares, shares // 2, -1):
        if size % count == 0 and (whole == 1 or size // count % MAX_ACCESS_BYTES == 0):
            return size // count
    return -(-size // (shares * whole)) * whole


def _hanging(plan: Plan, name: str) -> list[str]:
    """The nests that hang in the loops of a nest, or before them."""
    return [n.name for n in plan.kernel.nests if n.at is not None and n.at[0] == name]


def _iterations(plan: Plan, name: str) -> int:
    """The number of times that the bodies of a nest, and of nests in it, run for each
    place of it.
    """
    nest = plan.nest(name)
    inside = sum(
        prod(loop.range.size.max for loop in nest.loops[: n.at[1]]) * _iterations(plan, n.name)
        for n in plan.kernel.nests
        if n.at is not None and n.at[0] == name
    )
    return prod(loop.range.size.max for loop in nest.loops) + inside


# -- a thread for each result ----------------------------------------------------------------------


def _suits_rows(plan: Plan, name: str, below: Sequence[str]) -> bool:
    """True if reduces are better done by one thread each."""
    if column_axis(plan, name, below, _depth_of_children(plan, name)) is not None:
        return True
    terms = max(loop.range.size.max for n in below for loop in plan.nest(n).loops[-1:])
    return terms < SHORT_REDUCE or not _along_memory(plan, below)


def _along_memory(plan: Plan, below: Sequence[str]) -> bool:
    """True if the terms of some reduce are adjacent in memory."""
    nests = [plan.nest(n) for n in below]
    return any(
        step_of(e.src[0], loop.range) == 1
        for nest in nests
        for loop in nest.loops[-1:]
        for c in nest.computes
        for e in loads(c.value)
    )


def _rows(plan: Plan, name: str) -> bool:
    """Schedule a thread for each result; False if the reduces hang outside of all loops, where
    there is only one.
    """
    depth = _depth_of_children(plan, name)
    if depth == 0:
        return False
    column = column_axis(plan, name, plan.below(name), depth)
    if column is not None:
        last(plan, name, column, depth)
    share(plan, name, depth)
    return True


def _depth_of_children(plan: Plan, name: str) -> int:
    """The number of a nest's loops that are open around all nests that hang in it."""
    places = [n.at[1] for n in plan.kernel.nests if n.at is not None and n.at[0] == name]
    return min(places, default=len(plan.nest(name).loops))


# -- a block for each result -----------------------------------------------------------------------


def _by_block(plan: Plan, name: str) -> None:
    """Let a block do all nests together that hang outside of its threads' loops."""
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
    """The size of the loop along which the threads of a block share a nest."""
    nest = plan.nest(name)
    free = [o.range.size.max for o in nest.loops if o.kind is Kind.SERIAL]
    return free[-1] if free else 1


def _first_thread(plan: Plan, name: str) -> int:
    kinds = [loop.kind for loop in plan.nest(name).loops]
    return kinds.index(Kind.THREAD) if Kind.THREAD in kinds else len(kinds)


def _bind_last(plan: Plan, name: str, threads: int) -> None:
    """Bind threads along the last loop of a nest.

    Not if that loop is a block's, or shorter than a loop of the nests inside of it.
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
