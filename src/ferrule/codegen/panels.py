"""Sums of a few terms at a time over wide panels: for operands that are read once, row by row.

A product of one row with a matrix, or a sum over the columns of one, is bound by memory. Lanes
along the columns with the whole sum inside would touch another page with every step. Here a step
adds a few rows to a panel of sums as wide as a page, so that memory is read in order.
"""

from __future__ import annotations

from math import prod

from ferrule.codegen.plan import PAGE_BYTES, Plan, loads, step_of
from ferrule.expr import Expr

FEW_ROWS = 4  # results that one element of the wide operand adds to
STEPS = 8  # terms added at a time; half of them for several rows, to fit the registers


def schedule_panels(plan: Plan, name: str, reduce: str, v: Expr) -> bool:
    """Schedule the only reduce inside a root with lanes along `v`; False where it does not suit."""
    root, nest = plan.nest(name), plan.nest(reduce)
    if len(nest.loops) != 1 or len(nest.computes) != 1 or len(plan.below(name)) != 1:
        return False
    k = nest.loops[0].range
    found = [e for e in loads(nest.computes[0].value) if v in e.ranges]
    wide = [e for e in found if k in e.ranges]
    far = all(step_of(e.src[0], v) == 1 for e in found) and all(
        step_of(e.src[0], k) * e.dtype.itemsize >= PAGE_BYTES for e in wide
    )
    rows = [o.range for o in root.loops if o.range is not v and _misses(wide, o.range)]
    count = prod(r.size.max for r in rows)
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
    names = [loop.range.name for loop in plan.nest(name).loops]
    inner = [r.name for r in rows]
    batch = [x for x in names if x not in (v.name, *inner)]
    width = PAGE_BYTES // itemsize
    while width > 16 and -(-v.size.arg // width) < plan.target.max_threads:
        width //= 2
    plan.do("split", name, v.name, width, "mask")
    plan.do("reorder", name, (*batch, f"{v.name}.o", *inner, f"{v.name}.i"))
    plan.do("compute_at", reduce, len(batch) + 1)
    lanes = plan.lanes(plan.nest(reduce), width)
    columns = f"{v.name}.i@{reduce}"
    plan.do("split", reduce, columns, lanes, "mask")
    plan.do("vectorize", reduce, f"{columns}.i")
    plan.do("split", reduce, k.name, steps, "peel")
    plan.do("unroll", reduce, f"{k.name}.i")
    copies = [f"{x}@{reduce}" for x in inner]
    for copy in copies:
        plan.do("unroll", reduce, copy)
    order = (f"{k.name}.o", f"{columns}.o", *copies, f"{k.name}.i", f"{columns}.i")
    plan.do("reorder", reduce, order)
    plan.vectorize_inner(name, plan.nest(name).loops[-1])
    plan.share(name, len(batch) + 1)
