"""Packed copies of a contraction's operands, in the order in which its tiles read them."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.codegen.plan import PREFETCH_BYTES, Plan, bytes_loaded, load_step, loads, step_of
from ferrule.ir.expr import Expr, is_adjacent
from ferrule.ir.target import PAGE_BYTES

STEPS_AHEAD = 16
"""Steps of k from a copied element of a panel to the one that is prefetched (2026-11-22): twice as
many were as good, half as many worse."""


def pack(
    plan: Plan, reduce: str, e: Expr, at: str, depth: int, axes: Sequence[Expr], lanes: int
) -> None:
    """Copy the load `e` of the nest `reduce`, inside `depth` loops of `at`, with `axes` outermost
    first.

    The copy is made in vectors of `lanes`, transposed if neighbours in the copy are not adjacent in
    memory.
    """
    name = plan.kernel.free_name(f"{reduce}.pack{e.arg}", plan.number(reduce, e))
    plan.stage(reduce, e, at, depth, axes, name)
    for d in reversed(range(len(axes) - 1)):
        plan.try_fuse(name, d)
    axes = plan.loops(name)
    e = plan.nest(name).computes[0].value
    lane = axes[-1]
    if load_step(e, lane) == 1:
        plan.vectorize_inner(name, plan.nest(name).loops[-1])
        _prefetch_steps(plan, name)
        return
    columns = int(lane.size.arg)
    if columns > lanes:
        _, lane = plan.split(name, lane, lanes, "mask")
    along = next((r for r in axes[:-1] if load_step(e, r) == 1), None)
    size = int(lane.size.arg)
    if along is not None and along.size.max >= size:
        _, side = plan.split(name, along, size, "peel")
        plan.transpose(name, side, lane)
        _prefetch_squares(plan, name, size, columns)


def is_far(e: Expr, k: Expr) -> bool:
    """True if two steps of k are pages apart, or packed elements are not adjacent."""
    return not is_adjacent(e) or step_of(e.src[0], k) * e.dtype.itemsize >= PAGE_BYTES


def _prefetch_steps(plan: Plan, copy: str) -> None:
    """Prefetch later steps of k while a panel is copied, if steps are pages apart."""
    nest = plan.nest(copy)
    for e in loads(nest.computes[0].value):
        steps = [step_of(e.src[0], loop.range) for loop in nest.loops if is_far(e, loop.range)]
        size = bytes_loaded(e)
        if steps and size > plan.target.l2_bytes and len(e.src) == 2:
            plan.do("prefetch", copy, e.arg, STEPS_AHEAD * steps[-1])


def _prefetch_squares(plan: Plan, copy: str, size: int, columns: int) -> None:
    """Prefetch later squares while squares of many rows are transposed.

    There are more rows than any processor prefetches by itself.
    """
    e = plan.nest(copy).computes[0].value
    whole = bytes_loaded(e)
    if whole > plan.target.l2_bytes // 2 and len(e.src) == 2:
        squares = -(-PREFETCH_BYTES // (columns * size * e.dtype.itemsize))
        plan.do("prefetch", copy, e.arg, squares * size)
