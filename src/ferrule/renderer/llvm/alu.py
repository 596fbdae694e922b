"""The arithmetic of programs in LLVM IR: one function for each `ExprOp`.

There are no fast-math flags, and nothing here becomes a call of libm.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Final

from ferrule.codegen.intrinsics import INTRINSICS
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.arithmetic import meaning
from ferrule.renderer.base import RenderError
from ferrule.renderer.llvm import expand
from ferrule.renderer.llvm.value import Value, vector


def _extremum(is_better: Value, a: Value, b: Value) -> Value:
    """MAX and MIN: NaN if either operand is, and the first of two equal ones.

    On x86 it is a maximum, a comparison and a masked move. Only the first and the last of them are
    on the critical path of an accumulator a. A constant b that is no NaN takes the maximum alone.
    """
    better = is_better.select(b, a)
    if not a.is_real or (not b.name.startswith("%") and "0x7FF8" not in b.name):
        return better
    return b.is_nan().select(b, better)


def _constant_divisor(b: Value) -> int | None:
    """The value of a positive constant operand, scalar or splat."""
    text = b.name.rpartition(" ")[2].rstrip(")")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _floor_divide(a: Value, b: Value) -> Value:
    """IDIV; the divisor is positive."""
    divisor = _constant_divisor(b)
    if divisor is not None and divisor & (divisor - 1) == 0:
        return a >> divisor.bit_length() - 1
    quotient = a / b
    return quotient + (a - quotient * b >> a.dtype.bits - 1)


def _floor_remainder(a: Value, b: Value) -> Value:
    """MOD; the divisor is positive."""
    divisor = _constant_divisor(b)
    if divisor is not None and divisor & (divisor - 1) == 0:
        return a & divisor - 1
    remainder = a % b
    return remainder + (remainder >> a.dtype.bits - 1 & b)


def _truncated(divide: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    """TDIV and TMOD: x / 0 = 0, x % 0 = x, and the one quotient that does not fit wraps.

    x86 traps at a divisor of 0, and at one of -1 if the quotient does not fit.
    """
    if _constant_divisor(b) is not None:
        return divide(a, b)
    zero = b.op("icmp eq", 0)
    minus_one = b.op("icmp eq", -1) if a.is_signed else None
    unsafe = zero if minus_one is None else zero | minus_one
    result = divide(a, unsafe.select(b.constant(1), b))
    if divide is operator.mod:
        return zero.select(a, result)
    if minus_one is not None:
        result = minus_one.select(-a, result)
    return zero.select(a.constant(0), result)


def _fused(a: Value, b: Value, c: Value) -> Value:
    """MULACC: a * b + c, rounded once for floats."""
    if not a.is_real:
        return alu(ExprOp.ADD, alu(ExprOp.MUL, a, b), c)
    if a.code.target.has_fma:
        return a.intrinsic("fma", b, c)
    return (expand.fused_by_double if a.dtype is dtypes.float32 else expand.fused_by_parts)(a, b, c)


def _dot(a: Value, b: Value, c: Value) -> Value:
    """DOT: the instruction takes 4, 8 or 16 lanes, so fewer lanes are widened first."""
    intrinsic, code, lanes = INTRINSICS["dpbf16ps"], a.code, a.lanes
    if not intrinsic.is_native(code.target) or lanes > intrinsic.lanes[-1]:
        raise RenderError(
            f"DOT of {lanes} lanes: {code.target.name} has no such instruction; it takes "
            f"{sorted(intrinsic.needs)} and at most {intrinsic.lanes[-1]} lanes"
        )
    wide = next(n for n in intrinsic.lanes if n >= lanes)
    pairs, floats = vector("bfloat", 2 * wide), vector("float", wide)

    def paired(x: Value) -> tuple[str, str]:
        whole = _with_lanes(x, wide, "zeroinitializer")
        return pairs, code.assign(f"bitcast {whole} to {pairs}")

    left, right = paired(a), paired(b)
    total = code.call(
        f"llvm.x86.avx512bf16.dpbf16ps.{32 * wide}",
        floats,
        (floats, _with_lanes(c, wide, "zeroinitializer").name),
        left,
        right,
    )
    return _with_lanes(Value(code, c.dtype, wide, total), lanes, "poison")


def _with_lanes(x: Value, lanes: int, rest: str) -> Value:
    """The first lanes of a value, or all of them and further ones from `rest`."""
    if lanes == x.lanes:
        return x
    if x.lanes == 1:
        whole = vector(x.type, lanes)
        return x.made(f"insertelement {whole} {rest}, {x}, i64 0", lanes=lanes)
    if lanes == 1:
        return x.lane(0)
    return x.shuffled([min(lane, x.lanes) for lane in range(lanes)], rest)


def _round(x: Value) -> Value:
    if "ROUND" in x.code.target.native_ops:
        return x.intrinsic("roundeven")
    return expand.round_even(x)


def _truncate(x: Value) -> Value:
    if "TRUNC" in x.code.target.native_ops:
        return x.intrinsic("trunc")
    return expand.truncate(x)


def _to_tf32(x: Value) -> Value:
    """Round to tf32: add half of the last kept bit, then clear the bits after it."""
    kept = (x.bits + (1 << 12)) & -1 << 13
    rounded = kept.view(x.dtype)
    return x.is_nan().select(x, rounded)


_ALU: Final[dict[ExprOp, Callable[..., Value]]] = {
    ExprOp.ADD: operator.add,
    ExprOp.SUB: operator.sub,
    ExprOp.MUL: operator.mul,
    ExprOp.FDIV: operator.truediv,
    ExprOp.IDIV: _floor_divide,
    ExprOp.MOD: _floor_remainder,
    ExprOp.TDIV: partial(_truncated, operator.truediv),
    ExprOp.TMOD: partial(_truncated, operator.mod),
    ExprOp.FMOD: expand.remainder,
    ExprOp.NEG: operator.neg,
    ExprOp.MIN: lambda a, b: _extremum(b < a, a, b),
    ExprOp.MAX: lambda a, b: _extremum(b > a, a, b),
    ExprOp.CMPLT: operator.lt,
    ExprOp.CMPNE: Value.differs,
    ExprOp.AND: operator.and_,
    ExprOp.OR: operator.or_,
    ExprOp.XOR: operator.xor,
    ExprOp.SHL: operator.lshift,
    ExprOp.SHR: operator.rshift,
    ExprOp.NOT: operator.invert,
    ExprOp.POPCOUNT: lambda a: a.intrinsic("ctpop"),
    ExprOp.WHERE: Value.select,
    ExprOp.MULACC: _fused,
    ExprOp.DOT: _dot,
    ExprOp.RECIP: lambda a: a.constant(1.0) / a,
    ExprOp.SQRT: lambda a: a.intrinsic("sqrt"),
    ExprOp.TRUNC: _truncate,
    ExprOp.ROUND: _round,
    ExprOp.TF32: _to_tf32,
}


def alu(op: ExprOp, *operands: Value) -> Value:
    """The value of an operation; all operands but the condition of a WHERE have one dtype.

    Raises:
        RenderError: the operation is none of programs, or the dtype has no arithmetic.
    """
    return _ALU[meaning(op, operands[0].dtype, _ALU)](*operands)
