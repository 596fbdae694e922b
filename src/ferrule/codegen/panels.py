"""Sums of a few terms at a time over wide panels: for operands that are read once, row by row.

A product of one row with a matrix, or a sum over the columns of one, is bound by memory. Lanes
along the columns with the whole sum inside would touch another page with every step. Here a step
adds a few rows to a panel of sums up to two pages wide, so that much is read in one place, and
fetches what later steps read.
"""

from __future__ import annotations

from math import prod

from ferrule.codegen.plan import LINE_BYTES, PAGE_BYTES, Plan, loads, step_of
from ferrule.expr import Expr

FEW_ROWS = 4  # results that one element of the wide operand adds to
LEAST_BYTES = 1024  # from one step to the next, of one row: of less, few lines are read at a time
WIDEST_BYTES = 2 * PAGE_BYTES  # of a row of a panel
AHEAD_BYTES = 16 << 10  # of a panel, to be on their way from memory; 8 to 64 KiB are alike
STEPS = 8  # terms added at a time; half of them for several rows, to fit the registers


def schedule_panels(plan: Plan, name: str, reduce: str, v: Expr) -> bool:
    """Schedule the only reduce inside a root with lanes along `v`; False where it does not suit."""
    root, nest = plan.nest(name), plan.nest(reduce)
    if len(nest.loops) != 1 or len(nest.computes) != 1 or len(plan.below(name)) != 1:
        return False
    k = nest.loops[0].range
    found = [e for e in loads(nest.computes[0].value) if v in e.ranges]
    wide = [e for e in found if k in e.ranges]
    rows = [o.range for o in root.loops if o.range is not v and _misses(wide, o.range)]
    count = prod(r.size.max for r in rows)
    least = LEAST_BYTES if count == 1 else PAGE_BYTES
    far = all(step_of(e.src[0], v) == 1 for e in found) and all(
        step_of(e.src[0], k) * e.dtype.itemsize >= least for e in wide
    )
    sizes = [r.size for r in (v, *rows)]
    if not wide or not far or count > FEW_ROWS or any(not n.is_const for n in sizes):
        return False
    if k.size.max < 4 * STEPS:
        return False
    _apply(plan, name, reduce, v, rows, STEPS if count <= 2 else STEPS // 2)
    return True


def _misses(wide: list[Expr], r: Expr) -> bool:
    return all(r not in e.ranges for e in wide)


def _apply(plan: Plan, name: str, reduce: str, v: Expr, rows: list[Expr], steps: int) -> None:
    k = plan.nest(reduce).loops[0].range
    itemsize = plan.nest(reduce).computes[0].value.dtype.itemsize
    batch = plan.others(name, (v, *rows))
    width = _width(plan, v.size.arg, itemsize)
    panels, panel = plan.split(name, v, width, "mask")
    plan.do("reorder", name, (*batch, panels, *rows, panel))
    plan.do("compute_at", reduce, len(batch) + 1)
    lanes = plan.lanes(plan.nest(reduce), width)
    vectors, lane = plan.split(reduce, plan.copy_of(panel, reduce), lanes, "mask")
    plan.do("vectorize", reduce, lane)
    some, one = plan.split(reduce, k, steps, "peel")
    plan.do("unroll", reduce, one)
    copies = plan.copies_of(rows, reduce)
    for copy in copies:
        plan.do("unroll", reduce, copy)
    plan.do("reorder", reduce, (some, vectors, *copies, one, lane))
    _fetch_next_steps(plan, reduce, some, steps * width * itemsize)
    plan.vectorize_inner(name, plan.nest(name).loops[-1])
    plan.share(name, len(batch) + 1)


def _width(plan: Plan, columns: int, itemsize: int) -> int:
    """The columns of a panel: as many as are read at one go, or fewer, so that all threads have
    equal shares.
    """
    threads = plan.target.max_threads
    panels = -(-columns * itemsize // WIDEST_BYTES)
    even = -(-columns // (-(-panels // threads) * threads))
    line = LINE_BYTES // itemsize
    return -(-even // line) * line


def _fetch_next_steps(plan: Plan, reduce: str, terms: Expr, step_bytes: int) -> None:
    """While some terms are added, later ones come into the cache: at the end of a row of the panel,
    what is read next is elsewhere, and no processor looks ahead so far. Not where the operand is
    small: from a third cache it comes as quickly without.
    """
    nest = plan.nest(reduce)
    for e in loads(nest.computes[0].value):
        size = prod(x.size.max for x in e.ranges) * e.dtype.itemsize
        if size > 2 * plan.target.l2_bytes and e.arg not in dict(plan.nest(reduce).ahead):
            distance = step_of(e.src[0], terms) * -(-AHEAD_BYTES // step_bytes)
            plan.do("prefetch", reduce, e.arg, distance)
