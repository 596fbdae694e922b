"""Contractions whose places are neighbours in memory, as those of a 1 x 1 convolution, in lines.

Lanes along the places would leave many empty where these are few: 14 x 14 fill 12.25 vectors. Here
the places are the rows of the tile, read where they are, and lanes run along the other axis. The
sums of a line of places wait in scratch and leave transposed, so that what is stored, and what is
added to each result, are vectors of places.
"""

from __future__ import annotations

from ferrule.codegen.analysis.window import distance
from ferrule.codegen.kernel import Nest
from ferrule.codegen.plan import Plan, step_of
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.schedules.copies import Copies, Operands
from ferrule.codegen.schedules.cpu.blocks import IN_PLACE_L2_SHARE, Windows, operands_of
from ferrule.codegen.schedules.tile import best_tile
from ferrule.ir.expr import Expr


def schedule_lines(plan: Plan, name: str, reduce: str) -> bool:
    """Schedule a contraction whose places are neighbours in the rows' operand and in the result, as
    a 1 x 1 convolution's: lanes run along the other axis, and results leave transposed.

    False where it is none. Places are taken in lines whose sums stay in the first cache, and whose
    operand stays in the second.
    """
    operands = _contraction_operands(plan, name, reduce)
    m = None if operands is None else _neighbouring_places(plan.nest(name), operands)
    if operands is None or m is None:
        return False
    copies = Copies(plan, name, reduce, operands)
    tile = best_tile(plan.target, copies.itemsize, int(m.size.arg), int(copies.v.size.arg))
    tiles = -(-int(m.size.arg) // tile.rows)
    most = max(1, plan.target.l1_bytes // 2 // (tile.rows * tile.columns * copies.itemsize))
    count = -(-tiles // most)
    count = next((n for n in range(count, 2 * count) if tiles % n == 0), count)
    size = min(-(-tiles // count) * tile.rows, int(m.size.arg))
    line = copies.copied_bytes(operands.rows, (m, *operands.terms), (m, size))
    if line > plan.target.l2_bytes * IN_PLACE_L2_SHARE:
        raise ScheduleError("the terms of a line exceed the second cache")
    lines = None
    if count > 1:
        lines, m = plan.split(name, m, size, "mask")
        operands = _contraction_operands(plan, name, reduce)
        assert operands is not None, "a loop was split, and nothing else"
    Windows(plan, name, reduce, operands).apply(m, lines)
    return True


def _contraction_operands(plan: Plan, name: str, reduce: str) -> Operands | None:
    """The operands of a contraction whose rows' places are neighbours; None if there are none."""
    fit = operands_of(plan, name, reduce)
    return next((o for o in fit if _neighbouring_places(plan.nest(name), o) is not None), None)


def _neighbouring_places(root: Nest, operands: Operands) -> Expr | None:
    """The axis of the rows along which places are neighbours in both the operand and the result."""
    index = next(c.store.index for c in root.computes if c.store is not None)
    if any(len(operands.window(r)) > 1 for r in operands.row_ranges):
        return None
    for m in operands.row_ranges:
        if step_of(index, m) == 1 == distance(operands.rows.src[0], m):
            return m
    return None
