"""The arithmetic of programs in LLVM IR: one function for each `ExprOp`.

There are no fast-math flags, and nothing here becomes a call of libm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ferrule.codegen.intrinsics import INTRINSICS
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import STORAGE_ONLY, RenderError
from ferrule.renderer.llvm import expand
from ferrule.renderer.llvm.value import Code, Lanes, is_real, lanes_of


def _greater(t: Lanes, dtype: DType, a: str, b: str) -> str:
    """MAX: NaN if either operand is, and the first of two equal ones.

    On x86 it is a maximum, a comparison and a masked move. Only the first and the last of them are
    on the critical path of an accumulator a. A constant b that is no NaN takes the maximum alone.
    """
    return _extremum(t, dtype, a, b, "gt", "or")


def _lesser(t: Lanes, dtype: DType, a: str, b: str) -> str:
    """MIN, in the same way."""
    return _extremum(t, dtype, a, b, "lt", "and")


def _extremum(t: Lanes, dtype: DType, a: str, b: str, condition: str, of_bool: str) -> str:
    if t.kind == "i1":
        return t.op(of_bool, a, b)
    if not is_real(t.kind):
        sign = "u" if dtypes.is_unsigned(dtype) else "s"
        return t.select(t.compare(sign + condition, b, a), b, a)
    better = t.select(t.compare(f"o{condition}", b, a), b, a)
    if not b.startswith("%") and "0x7FF8" not in b:
        return better
    return t.select(t.compare("uno", b, b), b, better)


def _add(t: Lanes, dtype: DType, a: str, b: str) -> str:
    if t.kind == "i1":
        return t.op("or", a, b)
    return t.op("fadd" if is_real(t.kind) else "add", a, b)


def _subtract(t: Lanes, dtype: DType, a: str, b: str) -> str:
    if t.kind == "i1":
        raise RenderError("SUB of bool has no meaning; use XOR, or cast to an integer first")
    return t.op("fsub" if is_real(t.kind) else "sub", a, b)


def _multiply(t: Lanes, dtype: DType, a: str, b: str) -> str:
    if t.kind == "i1":
        return t.op("and", a, b)
    return t.op("fmul" if is_real(t.kind) else "mul", a, b)


def _constant_divisor(b: str) -> int | None:
    """The value of a positive constant operand, scalar or splat."""
    text = b.rpartition(" ")[2].rstrip(")")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _floor_divide(t: Lanes, dtype: DType, a: str, b: str) -> str:
    """IDIV; the divisor is positive."""
    divisor = _constant_divisor(b)
    if divisor is not None and divisor & (divisor - 1) == 0:
        return t.op("ashr", a, t.constant(divisor.bit_length() - 1))
    quotient = t.op("sdiv", a, b)
    remainder = t.op("sub", a, t.op("mul", quotient, b))
    return t.op("add", quotient, t.op("ashr", remainder, t.constant(dtype.bits - 1)))


def _floor_remainder(t: Lanes, dtype: DType, a: str, b: str) -> str:
    """MOD; the divisor is positive."""
    divisor = _constant_divisor(b)
    if divisor is not None and divisor & (divisor - 1) == 0:
        return t.op("and", a, t.constant(divisor - 1))
    remainder = t.op("srem", a, b)
    negative = t.op("ashr", remainder, t.constant(dtype.bits - 1))
    return t.op("add", remainder, t.op("and", negative, b))


def _safe_divisor(t: Lanes, dtype: DType, b: str) -> tuple[str, str, str | None]:
    """(a divisor that cannot trap, a mask where b is 0, a mask where b is -1): x86 traps
    at both.
    """
    zero = t.compare("eq", b, t.constant(0))
    if dtypes.is_unsigned(dtype):
        return t.select(zero, t.constant(1), b), zero, None
    minus_one = t.compare("eq", b, t.constant(-1))
    either = t.of("i1").op("or", zero, minus_one)
    return t.select(either, t.constant(1), b), zero, minus_one


def _truncated_divide(t: Lanes, dtype: DType, a: str, b: str) -> str:
    """TDIV: towards zero, x / 0 = 0, and the one quotient that does not fit wraps."""
    instruction = "udiv" if dtypes.is_unsigned(dtype) else "sdiv"
    if _constant_divisor(b) is not None:
        return t.op(instruction, a, b)
    divisor, zero, minus_one = _safe_divisor(t, dtype, b)
    quotient = t.op(instruction, a, divisor)
    if minus_one is not None:
        quotient = t.select(minus_one, t.op("sub", t.constant(0), a), quotient)
    return t.select(zero, t.constant(0), quotient)


def _truncated_remainder(t: Lanes, dtype: DType, a: str, b: str) -> str:
    """TMOD: the sign of a, and x % 0 = x."""
    instruction = "urem" if dtypes.is_unsigned(dtype) else "srem"
    if _constant_divisor(b) is not None:
        return t.op(instruction, a, b)
    divisor, zero, _ = _safe_divisor(t, dtype, b)
    return t.select(zero, a, t.op(instruction, a, divisor))


def _less(t: Lanes, dtype: DType, a: str, b: str) -> str:
    if is_real(t.kind):
        return t.compare("olt", a, b)
    unsigned = dtypes.is_unsigned(dtype) or t.kind == "i1"
    return t.compare("ult" if unsigned else "slt", a, b)


def _differ(t: Lanes, dtype: DType, a: str, b: str) -> str:
    return t.compare("une" if is_real(t.kind) else "ne", a, b)


def _negate(t: Lanes, dtype: DType, a: str) -> str:
    if is_real(t.kind):
        return t.op("fneg", a)
    if t.kind == "i1":
        return t.op("xor", a, t.constant(True))
    return t.op("sub", t.constant(0), a)


def _complement(t: Lanes, dtype: DType, a: str) -> str:
    return t.op("xor", a, t.constant(True if t.kind == "i1" else -1))


def _shift_right(t: Lanes, dtype: DType, a: str, b: str) -> str:
    return t.op("lshr" if dtypes.is_unsigned(dtype) else "ashr", a, b)


def _fused(t: Lanes, dtype: DType, a: str, b: str, c: str) -> str:
    """MULACC: a * b + c, rounded once for floats."""
    if not is_real(t.kind):
        return _add(t, dtype, _multiply(t, dtype, a, b), c)
    if t.code.target.has_fma:
        return t.intrinsic("fma", a, b, c)
    if t.kind == "float":
        return expand.fused_by_double(t, a, b, c)
    return expand.fused_by_parts(t, a, b, c)


def _dot(t: Lanes, dtype: DType, a: str, b: str, c: str) -> str:
    """DOT: the instruction takes 4, 8 or 16 lanes, so fewer lanes are widened first."""
    intrinsic = INTRINSICS["dpbf16ps"]
    if not intrinsic.is_native(t.code.target) or t.lanes > intrinsic.lanes[-1]:
        raise RenderError(
            f"DOT of {t.lanes} lanes: {t.code.target.name} has no such instruction; it takes "
            f"{sorted(intrinsic.needs)} and at most {intrinsic.lanes[-1]} lanes"
        )
    wide = Lanes(t.code, t.kind, next(n for n in intrinsic.lanes if n >= t.lanes))
    real = wide.of("float")
    pairs = f"<{2 * wide.lanes} x bfloat>"
    a, b = (t.code.value(f"bitcast {wide.type} {t.spread(x, wide)} to {pairs}") for x in (a, b))
    total = t.code.call(
        f"llvm.x86.avx512bf16.dpbf16ps.{32 * wide.lanes}",
        real.type,
        (real.type, t.of("float").spread(c, real)),
        (pairs, a),
        (pairs, b),
    )
    return real.first(total, t.of("float"))


def _round(t: Lanes, dtype: DType, x: str) -> str:
    if "ROUND" in t.code.target.native_ops:
        return t.intrinsic("roundeven", x)
    return expand.round_even(t, x)


def _truncate(t: Lanes, dtype: DType, x: str) -> str:
    if "TRUNC" in t.code.target.native_ops:
        return t.intrinsic("trunc", x)
    return expand.truncate(t, x)


def _to_tf32(t: Lanes, dtype: DType, x: str) -> str:
    """Round to tf32: add half of the last kept bit, then clear the bits after it."""
    whole = t.of("i32")
    more = whole.op("add", t.convert("bitcast", x, "i32"), whole.constant(1 << 12))
    kept = whole.op("and", more, whole.constant(-1 << 13))
    rounded = whole.convert("bitcast", kept, "float")
    return t.select(t.compare("uno", x, x), x, rounded)


_ALU: Final[dict[ExprOp, Callable[..., str]]] = {
    ExprOp.ADD: _add,
    ExprOp.SUB: _subtract,
    ExprOp.MUL: _multiply,
    ExprOp.FDIV: lambda t, dtype, a, b: t.op("fdiv", a, b),
    ExprOp.IDIV: _floor_divide,
    ExprOp.MOD: _floor_remainder,
    ExprOp.TDIV: _truncated_divide,
    ExprOp.TMOD: _truncated_remainder,
    ExprOp.FMOD: lambda t, dtype, a, b: expand.remainder(t, a, b),
    ExprOp.NEG: _negate,
    ExprOp.MIN: _lesser,
    ExprOp.MAX: _greater,
    ExprOp.CMPLT: _less,
    ExprOp.CMPNE: _differ,
    ExprOp.AND: lambda t, dtype, a, b: t.op("and", a, b),
    ExprOp.OR: lambda t, dtype, a, b: t.op("or", a, b),
    ExprOp.XOR: lambda t, dtype, a, b: t.op("xor", a, b),
    ExprOp.SHL: lambda t, dtype, a, b: t.op("shl", a, b),
    ExprOp.SHR: _shift_right,
    ExprOp.NOT: _complement,
    ExprOp.POPCOUNT: lambda t, dtype, a: t.intrinsic("ctpop", a),
    ExprOp.MULACC: _fused,
    ExprOp.DOT: _dot,
    ExprOp.RECIP: lambda t, dtype, a: t.op("fdiv", t.constant(1.0), a),
    ExprOp.SQRT: lambda t, dtype, a: t.intrinsic("sqrt", a),
    ExprOp.TRUNC: _truncate,
    ExprOp.ROUND: _round,
    ExprOp.TF32: _to_tf32,
}


def alu(code: Code, op: ExprOp, dtype: DType, lanes: int, operands: Sequence[str]) -> str:
    """The value of an operation on operands of `dtype` (for WHERE: a bool, then two of `dtype`).

    Raises:
        RenderError: the operation is none of programs, or the dtype has no arithmetic.
    """
    t = lanes_of(code, dtype, lanes)
    if op is ExprOp.WHERE:
        return t.select(*operands)
    function = _ALU.get(op)
    if function is None:
        raise RenderError(f"{op.name} is no operation of a program; expand it first")
    if dtype in STORAGE_ONLY:
        raise RenderError(
            f"{op.name} of {dtype.name}: programs compute in float32; CAST before and after"
        )
    return function(t, dtype, *operands)
