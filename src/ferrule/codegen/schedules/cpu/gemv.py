"""Products of a few rows with a matrix (gemv), and column sums: panels of partial sums.

Such work is bound by memory, as the matrix is read once, row by row. Lanes along the columns with
the whole sum inside would touch another page with every step. Here a step adds a few rows to a
panel of sums, up to two pages wide. So much is read in one place, and later rows are prefetched.
"""

from __future__ import annotations

from math import prod

from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.ir.expr import Expr
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES

# Tuning constants of 2026-11-22, on the processors of docs/performance.md.
MAX_ROWS = 4
"""Results that one element of the matrix adds to. Not measured."""
MIN_STEP_BYTES = 1024
"""Bytes from one step to the next, of one row; of shorter rows few lines are read at a time."""
MAX_PANEL_BYTES = 2 * PAGE_BYTES
"""Bytes of a row of a panel."""
AHEAD_BYTES = 16 << 10
"""Bytes of a panel between the read and the prefetched place; 8 to 64 KiB were equally good."""
TERMS_AT_ONCE = 8
"""Terms that are added at a time; half of them for three or four rows, to fit the registers."""


def schedule_panels(plan: Plan, name: str, reduce: str, v: Expr) -> bool:
    """Schedule the only reduce inside a root with lanes along `v`; False if it does not suit."""
    root, nest = plan.nest(name), plan.nest(reduce)
    if len(nest.loops) != 1 or len(nest.computes) != 1 or len(plan.below(name)) != 1:
        return False
    k = nest.loops[0].range
    found = [e for e in loads(nest.computes[0].value) if v in e.ranges]
    wide = [e for e in found if k in e.ranges]
    rows = [o.range for o in root.loops if o.range is not v and _is_invariant(wide, o.range)]
    count = prod(r.size.max for r in rows)
    least = MIN_STEP_BYTES if count == 1 else PAGE_BYTES
    far = all(step_of(e.src[0], v) == 1 for e in found) and all(
        step_of(e.src[0], k) * e.dtype.itemsize >= least for e in wide
    )
    sizes = [r.size for r in (v, *rows)]
    if not wide or not far or count > MAX_ROWS or any(not n.is_const for n in sizes):
        return False
    if k.size.max < 4 * TERMS_AT_ONCE:
        return False
    _apply(plan, name, reduce, v, rows, TERMS_AT_ONCE if count <= 2 else TERMS_AT_ONCE // 2)
    return True


def _is_invariant(wide: list[Expr], r: Expr) -> bool:
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
    _prefetch_steps(plan, reduce, some, steps * width * itemsize)
    plan.vectorize_inner(name, plan.nest(name).loops[-1])
    plan.share(name, len(batch) + 1)


def _width(plan: Plan, columns: int, itemsize: int) -> int:
    """The columns of a panel: as many as are read in one go, or fewer so that threads have equal
    shares.
    """
    threads = plan.target.max_threads
    panels = -(-columns * itemsize // MAX_PANEL_BYTES)
    even = -(-columns // (-(-panels // threads) * threads))
    line = LINE_BYTES // itemsize
    return -(-even // line) * line


def _prefetch_steps(plan: Plan, reduce: str, terms: Expr, step_bytes: int) -> None:
    """Prefetch later terms while some are added.

    At the end of a row of the panel the next read is elsewhere, and no processor prefetches so far.
    Not if the operand is small: from a third cache it comes as quickly without.
    """
    nest = plan.nest(reduce)
    for e in loads(nest.computes[0].value):
        size = prod(x.size.max for x in e.ranges) * e.dtype.itemsize
        if size > 2 * plan.target.l2_bytes and e.arg not in dict(plan.nest(reduce).ahead):
            distance = step_of(e.src[0], terms) * -(-AHEAD_BYTES // step_bytes)
            plan.do("prefetch", reduce, e.arg, distance)
