"""Emission of loops that run: whole, with the last iteration peeled, in segments, or by the bits of
a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ferrule.codegen.emit.values import Values
from ferrule.codegen.kernel import Loop
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import FALSE, TRUE, Expr, ExprOp, conjuncts, const

Body: TypeAlias = Callable[[], None]


def run_loop(values: Values, loop: Loop, body: Body, bounds: tuple[UOp, UOp] | None = None) -> None:
    """Emit a loop that runs; with `bounds`, only the iterations between these."""
    if loop.bitmask is not None:
        _run_by_bitmask(values, loop, loop.bitmask, body)
        return
    first = const(0) if loop.start is None else loop.start
    end = loop.range.size if loop.end is None else loop.end
    start, stop = bounds or (values.plain(first), values.plain(end))
    with values.knowing(_holding(loop.assumed)):
        if loop.segments:
            _run_segments(values, loop, start, stop, body)
        elif loop.peel is not None:
            whole = bounds is None and loop.start is None and loop.end is None
            _run_peeled(values, loop, (start, stop), body, whole=whole)
        else:
            _run(values, loop, start, stop, body)


def _run(values: Values, loop: Loop, start: UOp, stop: UOp, body: Body) -> None:
    values.begin(loop, values.out.open(loop.range.name, start, stop))
    body()
    values.out.close()


def _run_peeled(
    values: Values, loop: Loop, bounds: tuple[UOp, UOp], body: Body, *, whole: bool
) -> None:
    """Emit all iterations but the last without the condition that holds in them, then the last
    one.
    """
    out, (start, stop) = values.out, bounds
    last = values.value(loop.range.size - 1)
    if (loop.range.size - 1).max > 0:
        before = last if whole else out.alu(ExprOp.MIN, stop, last)
        with values.knowing(_holding(loop.peel)):
            _run(values, loop, start, before, body)
    if not whole or loop.range.size.min < 1:  # the last one may not be in the bounds
        last = out.alu(ExprOp.MAX, start, last)
    _run(values, loop, last, stop, body)


def _run_segments(values: Values, loop: Loop, start: UOp, stop: UOp, body: Body) -> None:
    """Emit one loop after the other, each with the conditions that are known in it.

    A segment that contradicts conditions known outside has no iteration, and is left out.
    """
    for segment in loop.segments:
        known = {condition: TRUE if holds else FALSE for condition, holds in segment.known}
        if any(values.copies.get(condition, e) is not e for condition, e in known.items()):
            continue
        end = values.out.alu(ExprOp.MIN, values.plain(segment.end), stop)
        with values.knowing(known):
            _run(values, loop, start, end, body)
        start = values.out.alu(ExprOp.MAX, start, end)


def _run_by_bitmask(values: Values, loop: Loop, mask: Expr, body: Body) -> None:
    """Emit a loop that runs once for each set bit of a mask; the iteration is the number of the
    bit.
    """
    out, name, bits = values.out, loop.range.name, values.vector(mask)
    left = out.emit(UOp(UOps.REG, dtypes.uint32, 1, (bits,), f"{name}.left"))
    count = out.typed(out.alu(ExprOp.POPCOUNT, bits), out.index)
    out.open(name, out.constant(0, out.index), count)
    now = out.get(left)
    # The bits below the lowest set bit are set in `now - 1`, and that bit itself is not.
    before = out.alu(ExprOp.SUB, now, out.constant(1, dtypes.uint32))
    below = out.alu(ExprOp.AND, out.alu(ExprOp.NOT, now), before)
    values.begin(loop, out.typed(out.alu(ExprOp.POPCOUNT, below), out.index))
    with values.knowing(_holding(loop.assumed)):
        body()
    out.set(left, out.alu(ExprOp.AND, now, before))
    out.close()


def _holding(condition: Expr | None) -> Mapping[Expr, Expr]:
    """The conditions that are known where a condition holds."""
    return {} if condition is None else dict.fromkeys(conjuncts(condition), TRUE)
