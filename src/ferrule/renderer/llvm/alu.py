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
    """DOT: the instructions take 4, 8 or 16 lanes, so fewer lanes are widened first."""
    lanes, target = a.lanes, a.code.target
    signs = {x.is_signed for x in (a, b)}
    known = [i for i in INTRINSICS.values() if i.result is c.dtype]
    fit = [i for i in known if i.lanes[-1] >= lanes and (len(signs) == 2 or not i.mixed)]
    intrinsic = next((i for i in fit if i.is_native(target)), None)
    if intrinsic is None:
        raise RenderError(
            f"DOT of {lanes} lanes: {target.name} has no such instruction; there are "
            f"{[(i.name, sorted(i.needs), i.lanes[-1]) for i in known]}, as names, features and "
            f"lanes at most"
        )
    wide = next(n for n in intrinsic.lanes if n >= lanes)
    operands = [_with_lanes(x, wide, "zeroinitializer") for x in (a, b, c)]
    return _with_lanes(_DOTS[intrinsic.name](*operands), lanes, "poison")


def _dot_of_pairs(a: Value, b: Value, c: Value) -> Value:
    pairs = vector("bfloat", 2 * a.lanes)
    factors = [(pairs, a.code.assign(f"bitcast {x} to {pairs}")) for x in (a, b)]
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * a.lanes}"
    return Value(a.code, c.dtype, a.lanes, a.code.call(name, c.type, (c.type, c.name), *factors))


def _dot_of_bytes(a: Value, b: Value, c: Value) -> Value:
    """Four products at once; the first operand of the instruction is the unsigned one."""
    operands = (c, b, a) if a.is_signed else (c, a, b)
    arguments = [(x.type, x.name) for x in operands]
    name = f"llvm.x86.avx512.vpdpbusd.{32 * a.lanes}"
    return Value(a.code, c.dtype, a.lanes, a.code.call(name, c.type, *arguments))


def _dot_of_words(a: Value, b: Value, c: Value) -> Value:
    """The products of the even bytes and those of the odd ones, extended to 16 bits."""
    words = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
    code, kind = a.code, vector("i16", 2 * a.lanes)
    for halves in zip(_even_and_odd(a), _even_and_odd(b), strict=True):
        arguments = [(kind, x.name) for x in halves]
        product = code.call(f"llvm.x86.{words[a.lanes]}", c.type, *arguments)
        c = c + Value(code, c.dtype, c.lanes, product)
    return c


def _even_and_odd(x: Value) -> tuple[Value, Value]:
    """The even bytes of integers, and the odd ones, each extended to 16 bits."""
    dtype = dtypes.int16 if x.is_signed else dtypes.uint16
    kind = vector("i16", 2 * x.lanes)
    words = x.made(f"bitcast {x} to {kind}", dtype, 2 * x.lanes)
    return words << 8 >> 8, words >> 8


_DOTS: Final = {
    "dpbf16ps": _dot_of_pairs,
    "dpbusd": _dot_of_bytes,
    "dpbusd.vex": _dot_of_bytes,
    "pmaddwd.512": _dot_of_words,
    "pmaddwd": _dot_of_words,
}


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
