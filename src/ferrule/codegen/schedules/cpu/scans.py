"""Schedules of running totals: lanes along another axis if that is contiguous, else along the
totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.kernel import Nest
from ferrule.codegen.plan import MIN_LANES, Plan, loads, step_of
from ferrule.codegen.policy import MIN_PARALLEL_WORK
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.primitives.scans import scanned
from ferrule.codegen.schedules.cpu.rows import partition_joins
from ferrule.ir.expr import Expr


def schedule_scan(plan: Plan, name: str) -> bool:
    """Schedule a root nest and the reduce inside it, if that is a running total."""
    below = plan.below(name)
    if len(below) != 1:
        raise ScheduleError("there are several reduces")
    (total,) = below
    root, at = plan.nest(name), plan.nest(total).at
    assert at is not None
    around = [loop.range for loop in root.loops[: at[1]]]
    along = next((r for r in around if scanned(plan.nest(total), r) is not None), None)
    if along is None:
        raise ScheduleError("its terms are not those of the result before and one more")
    loops = root.loop_ranges
    others = [r for r in around if r is not along]
    if around[-1] is not along:
        plan.do("reorder", name, (*others, along, *loops[at[1] :]))
    plan.do("scan", total, along)
    column = _column(plan.nest(name), plan.nest(total), others)
    if column is None:
        r = plan.nest(total).computes[0].carried_by
        assert r is not None
        lanes = plan.lanes(plan.nest(name), r.size.max)
        # Terms that do not vary, as those of totals of ones, have no lanes.
        varies = any(r in c.value.ranges for c in plan.nest(total).computes)
        if lanes > 1 and varies:
            plan.do("prefix", total, lanes)
    else:
        _along_columns(plan, name, total, column)
    _share(plan, name)
    partition_joins(plan, name)
    return True


def _column(root: Nest, total: Nest, others: Sequence[Expr]) -> Expr | None:
    """Another axis along which all stores and loads are contiguous."""
    stores = [c.store.index for c in root.computes if c.store is not None]
    found = [e.src[0] for c in total.computes for e in loads(c.value)]
    for loop in root.loops:
        r = loop.range
        wide = r in others and r.size.is_const and r.size.max >= MIN_LANES
        if wide and all(step_of(index, r) == 1 for index in stores + found):
            return r
    return None


def _along_columns(plan: Plan, name: str, total: str, column: Expr) -> None:
    """Run vectors of totals side by side, each in a register."""
    lanes = plan.lanes(plan.nest(name), column.size.max)
    shared = plan.work(name) >= MIN_PARALLEL_WORK  # fewer vectors are more chunks
    vectors = min(plan.sums_at_once // (2 if shared else 1), -(-column.size.max // lanes))
    _, panel = plan.split(name, column, lanes * vectors, "mask")
    inside = plan.vectors(name, panel, lanes)
    rest = plan.others(name, inside)
    depth = max(rest.index(r) for r in _around(plan, total) if r in rest) + 1
    plan.do("reorder", name, (*rest[:depth], *inside, *rest[depth:]))
    plan.do("compute_at", total, depth)


def _share(plan: Plan, name: str) -> None:
    """Share out the loops outside of the loop along which totals run."""
    loops = plan.nest(name).loops
    outside = min(n.at[1] for n in plan.kernel.nests if n.at is not None and n.at[0] == name) - 1
    count = 1
    while count < outside and prod(o.range.size.max for o in loops[:count]) < plan.enough_chunks:
        count += 1
    plan.share(name, min(count, outside))


def _around(plan: Plan, total: str) -> list[Expr]:
    at = plan.nest(total).at
    assert at is not None
    return plan.loops(at[0])[: at[1]]
