"""Element-wise ops on scalars: which operation each is in its dtype, and what computes wider."""

from __future__ import annotations

from typing import Any

from ferrule.dtype import dtypes
from ferrule.expr import BOOL, Expr, ExprOp, alu, cast, const
from ferrule.ops import BinaryOps, TernaryOps, UnaryOps

NARROW = (dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2)
_UNARY = {
    UnaryOps.EXP2: ExprOp.EXP2,
    UnaryOps.LOG2: ExprOp.LOG2,
    UnaryOps.SIN: ExprOp.SIN,
    UnaryOps.COS: ExprOp.COS,
    UnaryOps.SQRT: ExprOp.SQRT,
    UnaryOps.RECIP: ExprOp.RECIP,
    UnaryOps.NEG: ExprOp.NEG,
    UnaryOps.TRUNC: ExprOp.TRUNC,
}
_BINARY = {
    BinaryOps.ADD: ExprOp.ADD,
    BinaryOps.SUB: ExprOp.SUB,
    BinaryOps.MUL: ExprOp.MUL,
    BinaryOps.MAX: ExprOp.MAX,
    BinaryOps.CMPLT: ExprOp.CMPLT,
    BinaryOps.CMPNE: ExprOp.CMPNE,
    BinaryOps.XOR: ExprOp.XOR,
    BinaryOps.AND: ExprOp.AND,
    BinaryOps.OR: ExprOp.OR,
    BinaryOps.SHL: ExprOp.SHL,
    BinaryOps.SHR: ExprOp.SHR,
}
_BOOL_BINARY = {BinaryOps.ADD: ExprOp.OR, BinaryOps.MAX: ExprOp.OR, BinaryOps.MUL: ExprOp.AND}


def elementwise(op: Any, operands: list[Expr], arg: Any) -> Expr:
    """One element-wise op on values; half precision computes in float32 and rounds at once."""
    dtype = operands[-1].dtype
    if op is UnaryOps.CAST:
        return _cast(operands[0], arg)
    if dtype in NARROW and op not in (BinaryOps.CMPLT, BinaryOps.CMPNE, TernaryOps.WHERE):
        wide = [cast(x, dtypes.float32) for x in operands]
        return cast(_in_dtype(op, wide), dtype)
    if dtype in NARROW and op in (BinaryOps.CMPLT, BinaryOps.CMPNE):
        operands = [cast(x, dtypes.float32) for x in operands]
    return _in_dtype(op, operands)


def _in_dtype(op: Any, operands: list[Expr]) -> Expr:
    dtype = operands[-1].dtype
    if op is TernaryOps.WHERE:
        return alu(ExprOp.WHERE, _truth(operands[0]), *operands[1:])
    if op is TernaryOps.MULACC:
        if dtypes.is_float(dtype):
            return alu(ExprOp.MULACC, *operands)
        return alu(ExprOp.ADD, alu(ExprOp.MUL, *operands[:2]), operands[2])
    if op is BinaryOps.DIV:
        return alu(ExprOp.FDIV if dtypes.is_float(dtype) else ExprOp.TDIV, *operands)
    if op is BinaryOps.MOD:
        return alu(ExprOp.FMOD if dtypes.is_float(dtype) else ExprOp.TMOD, *operands)
    if dtype is BOOL and op is UnaryOps.NEG:
        return alu(ExprOp.NOT, *operands)
    if dtype is BOOL and op in _BOOL_BINARY:
        return alu(_BOOL_BINARY[op], *operands)
    return alu(_UNARY[op] if op in _UNARY else _BINARY[op], *operands)


def _truth(x: Expr) -> Expr:
    if x.dtype in NARROW:
        x = cast(x, dtypes.float32)
    return x if x.dtype is BOOL else alu(ExprOp.CMPNE, x, const(0, x.dtype))


def _cast(x: Expr, arg: Any) -> Expr:
    dtype, bitcast = arg if isinstance(arg, tuple) else (arg, False)
    if bitcast:
        return x if x.dtype is dtype else Expr(ExprOp.BITCAST, dtype, (x,))
    if dtype is BOOL:
        return _truth(x)
    return cast(x, dtype)
