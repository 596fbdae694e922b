"""Construction of operations on values: constants are folded, in the dtype's own arithmetic, and
masks that are always or never true are left out; nothing else is simplified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr.base import BOOL, COMPARISONS, ExprOp, conjuncts
from ferrule.ir.expr.build import FALSE, TRUE, VALUES, Expr, both, const


def alu(op: ExprOp, *src: Expr, dtype: DType | None = None) -> Expr:
    """A value operation, with constants folded in the dtype's own arithmetic and nothing else."""
    out = dtype or (BOOL if op in COMPARISONS else src[-1].dtype)
    if all(s.op is ExprOp.CONST for s in src) and op in _FOLD:
        folded = _fold(op, out, src)
        if folded is not None:
            return folded
    if op is ExprOp.WHERE:
        if src[0].op is ExprOp.CONST:
            return src[1] if src[0].arg else src[2]
        if src[1] is src[2]:
            return src[1]
        if src[0].dtype is BOOL and src[1] is TRUE and src[2] is FALSE:
            return src[0]
    if op is ExprOp.AND and out is BOOL:
        return both(*src)
    return Expr(op, out, src)


def select(condition: Expr, value: Expr, otherwise: Expr) -> Expr:
    """A WHERE; left out if the value is a load that gives 0 under the same mask anyway, or a cast
    of one.
    """
    element = uncast(value)
    if element.op is ExprOp.LOAD and otherwise.op is ExprOp.CONST and otherwise.arg == 0:
        needed = set(conjuncts(condition))
        if all(needed <= set(conjuncts(valid)) for valid in element.src[1::2]):
            return value
    return alu(ExprOp.WHERE, condition, value, otherwise)


def uncast(e: Expr) -> Expr:
    """An expression without its casts."""
    while e.op is ExprOp.CAST:
        e = e.src[0]
    return e


def cast(x: Expr, dtype: DType) -> Expr:
    """The value in another dtype."""
    if x.dtype is dtype:
        return x
    if x.op is ExprOp.CONST and not (isinstance(x.arg, float) and not math.isfinite(x.arg)):
        return const(x.arg, dtype)
    return Expr(ExprOp.CAST, dtype, (x,))


def load(slot: int, dtype: DType, index: Expr, valid: Expr = TRUE) -> Expr:
    """An element of a buffer; 0 where `valid` is false."""
    if valid is FALSE:
        return const(0, dtype)
    return Expr(ExprOp.LOAD, dtype, (index, valid), slot)


def pack(elements: Sequence[Expr], dtype: DType) -> Expr:
    """Loads of one buffer as one integer as wide as all of them, the first in its lowest bits."""
    slot = elements[0].arg
    assert all(e.op is ExprOp.LOAD and e.arg == slot for e in elements), elements
    return Expr(ExprOp.LOAD, dtype, tuple(part for e in elements for part in e.src), slot)


def is_adjacent(e: Expr) -> bool:
    """True if the elements of a load are neighbours in memory, as a single one is."""
    indices = e.src[::2]
    return all(index - indices[0] is const(i) for i, index in enumerate(indices[1:], 1))


def _fold(op: ExprOp, dtype: DType, src: Sequence[Expr]) -> Expr | None:
    if dtype is dtypes.float64 or not dtypes.is_float(src[-1].dtype) or op in COMPARISONS:
        value = _FOLD[op](*[s.arg for s in src])
        return const(value, dtype)
    if op in (ExprOp.ADD, ExprOp.SUB, ExprOp.MUL, ExprOp.NEG, ExprOp.MAX, ExprOp.MIN):
        # exact in double for two float32 (or narrower) operands but for the final rounding
        return const(_FOLD[op](*[s.arg for s in src]), dtype)
    return None


_FOLD: Final[dict[ExprOp, Callable[..., Any]]] = {
    ExprOp.ADD: lambda a, b: a + b,
    ExprOp.SUB: lambda a, b: a - b,
    ExprOp.MUL: lambda a, b: a * b,
    ExprOp.NEG: lambda a: -a,
    ExprOp.CMPLT: lambda a, b: a < b,
    ExprOp.CMPNE: lambda a, b: a != b,
    ExprOp.NOT: lambda a: not a,
}


def _load_again(node: Expr, src: tuple[Expr, ...]) -> Expr:
    if len(src) > 2:  # two elements, packed
        return Expr(ExprOp.LOAD, node.dtype, src, node.arg)
    return load(node.arg, node.dtype, *src)


VALUES[ExprOp.LOAD] = _load_again
VALUES[ExprOp.CAST] = lambda node, src: cast(src[0], node.dtype)
VALUES[ExprOp.WHERE] = lambda node, src: alu(ExprOp.WHERE, *src)
