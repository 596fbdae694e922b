"""Products of a few rows with a matrix (gemv), and column sums: panels of partial sums.

Such work is bound by memory, as the matrix is read once, row by row. Lanes along the columns with
the whole sum inside would touch another page with every step. Here a step adds a few rows to a
panel of sums, up to two pages wide. So much is read in one place, and later rows are prefetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from ferrule.codegen.plan import PREFETCH_BYTES, Plan, Proposal, loads, step_of
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.ir.expr import Expr
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES

MAX_PANEL_BYTES = 2 * PAGE_BYTES
"""Bytes of a row of a panel (2026-11-22, Zen 4 and 5)."""
FAR_STEP_BYTES = PAGE_BYTES // 4
"""Bytes from one term to the next from which on a page has too few of them for a processor to
prefetch more (2026-11-22, Zen 4 and 5)."""


def panels(plan: Plan, name: str, reduce: str, *, far: bool) -> list[Proposal]:
    """Panels along each axis of the results along which all loads are contiguous, for the only
    reduce inside of a root; none if its terms have several axes.

    They are those whose terms are far apart in memory, or those whose terms are not.
    """
    root, nest = plan.nest(name), plan.nest(reduce)
    if len(nest.loops) != 1 or len(nest.computes) != 1 or len(plan.below(name)) != 1:
        return []
    k, found = nest.loops[0].range, loads(nest.computes[0].value)
    return [
        Proposal(f"panels along {v}", partial(_schedule, name=name, reduce=reduce, v=v, wide=wide))
        for v in [loop.range for loop in root.loops]
        if all(step_of(e.src[0], v) in (0, 1) for e in found)
        and (wide := [e for e in found if {v, k} <= e.ranges])
        and far == all(step_of(e.src[0], k) * e.dtype.itemsize >= FAR_STEP_BYTES for e in wide)
    ]


def _schedule(plan: Plan, name: str, reduce: str, v: Expr, wide: Sequence[Expr]) -> bool:
    root, (loop,) = plan.nest(name), plan.nest(reduce).loops
    rows = [
        o.range
        for o in root.loops
        if o.range is not v and all(o.range not in e.ranges for e in wide)
    ]
    if any(not r.size.is_const for r in (v, *rows)):
        raise ScheduleError("a size is not known")
    count = prod([r.size.max for r in rows])
    steps = 1  # terms at once: each has a vector, and one for each row that multiplies it
    while 2 * steps * (count + 1) + count <= plan.target.n_vector_registers:
        steps *= 2
    if count > steps:
        raise ScheduleError("its sums would be loaded more often than the matrix")
    if loop.range.size.max < steps:
        raise ScheduleError(f"its sums have less than {steps} terms")
    _apply(plan, name, reduce, v, rows, steps)
    return True


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
    if vectors.size.arg == 1:
        sum_terms_apart(plan, reduce, one)
    plan.vectorize_inner(name, plan.nest(name).loops[-1])
    plan.share(name, len(batch) + 1)


def sum_terms_apart(plan: Plan, reduce: str, one: Expr) -> None:
    """Give each result several sums, one for each copy of an unrolled loop over terms, where that
    takes less time.

    A sum in a register waits for the term before: 20,000 rows of 8 columns took 16.4 us, and take
    6.9 (one core of a Zen 4, 2026-11).
    """
    plan.least(
        f"sums of a result of {reduce}",
        Proposal("one", lambda _: True),
        Proposal("several", partial(_group, reduce=reduce, one=one)),
    )


def _group(plan: Plan, reduce: str, one: Expr) -> bool:
    plan.do("group", reduce, (one,))
    return True


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
            distance = step_of(e.src[0], terms) * -(-PREFETCH_BYTES // step_bytes)
            plan.do("prefetch", reduce, e.arg, distance)
