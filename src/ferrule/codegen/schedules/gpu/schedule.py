"""Schedules for thread blocks (GPUs): which loops become blocks, and which become threads.

Each shape of work has a module that proposes schedules: streams, contractions, other reduces,
scatters. This one adds two for reduces: a thread for each result, and a block for each. The
estimate of the time decides (`Plan.best`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import prod
from typing import TypeAlias

from ferrule.codegen.estimate_blocks import least_block_cycles, least_untiled_block_cycles
from ferrule.codegen.kernel import MAX_ACCESS_BYTES, Kind, Nest, stores_to_one_place
from ferrule.codegen.plan import Plan, Proposal
from ferrule.codegen.primitives.editing import ScheduleError, is_ordered
from ferrule.codegen.schedules.cpu.chains import has_stages
from ferrule.codegen.schedules.cpu.rows import column_axis, merge_siblings
from ferrule.codegen.schedules.gpu.chains import schedule_grid_chain
from ferrule.codegen.schedules.gpu.rows import (
    MAX_REGISTER_VALUES,
    Layout,
    column_of,
    layout_of,
    place_of_all,
    schedule_reduces,
)
from ferrule.codegen.schedules.gpu.scatter import schedule_scatter
from ferrule.codegen.schedules.gpu.streams import last, schedule_stream, share, threads_for
from ferrule.codegen.schedules.gpu.tile import can_be_tiled, schedule_grid_tile

_MORE = (1, 4, 16)
"""Times the threads that share a sum, in other schedules than the first."""
_Form: TypeAlias = Callable[[Plan, str], bool]


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
        elif can_be_tiled(plan, name):
            tile = Proposal("tile", partial(schedule_grid_tile, name=name), least_block_cycles)
            plan.best(name, tile, *_of_reduces(name, least_untiled_block_cycles))
        else:
            reduces.append(name)
    merge_siblings(plan, reduces)
    for name in (n for n in reduces if n in plan.kernel.by_name):
        merge_siblings(plan, plan.below(name))
        plan.best(name, *_of_reduces(name, least_block_cycles))


def _of_reduces(name: str, least: Callable[..., float]) -> Iterator[Proposal]:
    """Schedules for a root with reduces: those that wait for others may be recomputed first."""
    forms: dict[str, _Form] = {
        **{f"{n} times the threads": partial(schedule_reduces, more=n) for n in _MORE},
        "rows": _rows,
        "unrolled rows": _unrolled_rows,
        "a block for each": _by_block,
    }
    before: dict[str, _Form] = {
        "": _as_it_is,
        ", recomputed inside": _recompute_inside,
        ", recomputed in blocks": _recompute_in_blocks,
    }
    for how, form in product(before, forms):
        both = partial(_both, first=before[how], form=forms[form], name=name)
        yield Proposal(form + how, both, least)


def _both(plan: Plan, first: _Form, form: _Form, name: str) -> bool:
    return first(plan, name) and form(plan, name)


def _as_it_is(plan: Plan, name: str) -> bool:
    return True


def _adds_up(nest: Nest) -> bool:
    """True if a nest stores from inside another, as a sum over a stage does."""
    return nest.at is not None and any(c.store is not None for c in nest.computes)


def _recompute_inside(plan: Plan, name: str) -> bool:
    """Recompute reduces that hang further out than others, at the place of these."""
    depths = {n: at[1] for n in plan.below(name) if (at := plan.nest(n).at) and at[0] == name}
    inner = max(depths.values(), default=0)
    again = [n for n in depths if depths[n] < inner]
    for n in reversed(again):  # a reader must be in the loops before its operand enters them
        plan.do("recompute", n, inner)
    return bool(again)


def _recompute_in_blocks(plan: Plan, name: str) -> bool:
    """Recompute reduces in several blocks, which then share out the loops inside of them.

    The reduces hang outside of all loops of a root, or where few blocks have results.
    """
    loops, hanging = plan.nest(name).loops, _hanging(plan, name)
    depth = _depth_of_children(plan, name)
    if depth == len(loops) or any(plan.nest(n).at != (name, depth) for n in hanging):
        return False
    sizes = [loop.range.size.max for loop in loops]
    block, inner = plan.target.block_threads, prod(sizes[depth:])
    layout = _layout(plan, name, depth)
    blocks = -(-prod(sizes[:depth]) // (layout.results if layout else 1))
    shares = min(plan.target.max_threads // blocks, inner // block)
    if shares <= 1:
        return False
    is_short = sizes[-1] < block  # all loops as one have work for all threads
    count = next(
        n
        for n in range(1, len(sizes) + 1)
        if depth + n == len(sizes) or (not is_short and prod(sizes[depth : depth + n]) >= shares)
    )
    first = plan.fuse_at(name, depth, count)
    is_row = depth + count == len(sizes) and not (layout and layout.across)
    whole = MAX_ACCESS_BYTES * block if is_row else 1
    size = _share_of(prod(sizes[depth : depth + count]), shares, whole)
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


# -- a thread for each result ----------------------------------------------------------------------


def _unrolled_rows(plan: Plan, name: str) -> bool:
    """The same with all terms of the innermost reduces at once; False if there are too many."""
    inner = [n for n in plan.below(name) if not plan.below(n)]
    sizes = [prod(loop.range.size.max for loop in plan.nest(n).loops) for n in inner]
    if sum(sizes) > MAX_REGISTER_VALUES or not _rows(plan, name):
        return False
    for n in inner:
        for r in plan.loops(n):
            plan.do("unroll", n, r)
    return True


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


def _by_block(plan: Plan, name: str) -> bool:
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
    return True


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
