"""Element-wise ops on scalars: the rule of each in its dtype, and the dtypes that compute wider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ferrule.ir.dtype import compute_dtype, dtypes
from ferrule.ir.expr import BOOL, Expr, ExprOp, alu, cast, const
from ferrule.ir.lazyop import BinaryOps, Op, TernaryOps, UnaryOps, cast_arg
from ferrule.ir.op_table import ELEMENTWISE

LoweringRule: TypeAlias = Callable[..., Expr]
"""A rule from the operands, all in the dtype to compute in, to the result."""


def elementwise(op: Any, operands: list[Expr], arg: Any) -> Expr:
    """One element-wise op on values; floats narrower than float32 compute in float32 and round at
    once.
    """
    dtype = operands[-1].dtype
    if op is UnaryOps.CAST:
        return _cast(operands[0], arg)
    rule = LOWERED[op]
    wide = compute_dtype(dtype)
    if wide is dtype or op is TernaryOps.WHERE:
        return rule(*operands)
    result = rule(*[cast(x, wide) for x in operands])
    return result if ELEMENTWISE[op].compares else cast(result, dtype)


def _by(
    floats: ExprOp, *, integers: ExprOp | None = None, bools: ExprOp | None = None
) -> LoweringRule:
    """The rule of an op that is one operation on scalars, perhaps another one for some dtypes."""

    def rule(*operands: Expr) -> Expr:
        dtype = operands[-1].dtype
        if dtype is BOOL:
            return alu(bools or floats, *operands)
        return alu(floats if dtypes.is_float(dtype) else integers or floats, *operands)

    return rule


def _multiply_add(a: Expr, b: Expr, c: Expr) -> Expr:
    if dtypes.is_float(c.dtype):
        return alu(ExprOp.MULACC, a, b, c)
    return alu(ExprOp.ADD, alu(ExprOp.MUL, a, b), c)


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.WHERE, _truth(condition), a, b)


LOWERED: Final[dict[Op, LoweringRule]] = {
    UnaryOps.EXP2: _by(ExprOp.EXP2),
    UnaryOps.LOG2: _by(ExprOp.LOG2),
    UnaryOps.SIN: _by(ExprOp.SIN),
    UnaryOps.COS: _by(ExprOp.COS),
    UnaryOps.SQRT: _by(ExprOp.SQRT),
    UnaryOps.RECIP: _by(ExprOp.RECIP),
    UnaryOps.NEG: _by(ExprOp.NEG, bools=ExprOp.NOT),
    UnaryOps.TRUNC: _by(ExprOp.TRUNC),
    BinaryOps.ADD: _by(ExprOp.ADD, bools=ExprOp.OR),
    BinaryOps.SUB: _by(ExprOp.SUB),
    BinaryOps.MUL: _by(ExprOp.MUL, bools=ExprOp.AND),
    BinaryOps.DIV: _by(ExprOp.FDIV, integers=ExprOp.TDIV),
    BinaryOps.MAX: _by(ExprOp.MAX, bools=ExprOp.OR),
    BinaryOps.MOD: _by(ExprOp.FMOD, integers=ExprOp.TMOD),
    BinaryOps.CMPLT: _by(ExprOp.CMPLT),
    BinaryOps.CMPNE: _by(ExprOp.CMPNE),
    BinaryOps.XOR: _by(ExprOp.XOR),
    BinaryOps.AND: _by(ExprOp.AND),
    BinaryOps.OR: _by(ExprOp.OR),
    BinaryOps.SHL: _by(ExprOp.SHL),
    BinaryOps.SHR: _by(ExprOp.SHR),
    TernaryOps.MULACC: _multiply_add,
    TernaryOps.WHERE: _where,
}
"""The rule of each element-wise op but CAST, whose result depends on its argument."""


def _truth(x: Expr) -> Expr:
    x = cast(x, compute_dtype(x.dtype))
    return x if x.dtype is BOOL else alu(ExprOp.CMPNE, x, const(0, x.dtype))


def _cast(x: Expr, arg: Any) -> Expr:
    dtype, bitcast = cast_arg(arg)
    if bitcast:
        return x if x.dtype is dtype else Expr(ExprOp.BITCAST, dtype, (x,))
    if dtype is BOOL:
        return _truth(x)
    return cast(x, dtype)
