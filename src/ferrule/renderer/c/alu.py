"""Arithmetic, casts and bitcasts as C expressions.

An operand is a name, a literal, a call, or a text in parentheses; a result may be any expression.
Nothing relies on signed overflow, which C leaves undefined: it is computed in unsigned integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import STORAGE_ONLY, RenderError, storage_bits
from ferrule.renderer.c import prelude as cprelude
from ferrule.renderer.c.dialect import bits_type, literal, type_of
from ferrule.renderer.c.prelude import Helper, Prelude

_PRODUCT: Final = re.compile(r"\(\w+ \* \w+\)")
_SUM: Final = re.compile(r"\(\w+( \* \w+)? \+ \w+( \* \w+)?\)")
_ATOM: Final = re.compile(r"\w+(\.\w+)?(\[\w+\])?|[\d.]+(e[-+]\d+)?f?")


def atom(text: str) -> str:
    """An expression as an operand."""
    return text if _ATOM.fullmatch(text) or _is_enclosed(text) else f"({text})"


def bare(text: str) -> str:
    """An operand without its outer parentheses, for a place that does not need them."""
    return text[1:-1] if text.startswith("(") and _is_enclosed(text) else text


def _is_enclosed(text: str) -> bool:
    """True if a text is one pair of parentheses, perhaps after a function's name."""
    start = re.match(r"\w*\(", text)
    if start is None or not text.endswith(")"):
        return False
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter == ")":
            return position == len(text) - 1
    return False


@final
@dataclass(frozen=True)
class Arithmetic:
    """The types of an operation: `kind` is the C type, which may be narrower than `dtype`."""

    prelude: Prelude
    dtype: DType
    kind: str
    is_exact: bool
    """True if the result, an integer, is known not to overflow."""
    not_negative: bool
    """True if the first operand, an integer, is known to be at least 0."""

    @property
    def is_bool(self) -> bool:
        return self.dtype is dtypes.bool

    @property
    def is_real(self) -> bool:
        return dtypes.is_float(self.dtype)

    def call(self, helper: Helper, *operands: str) -> str:
        return self.prelude.call(helper, *operands)

    def maths(self, name: str, *operands: str) -> str:
        return self.prelude.maths(name, self.kind, *operands)

    @property
    def is_plain(self) -> bool:
        """True if C computes these integers as they are meant: without overflow, or unsigned."""
        return self.kind in ("u32", "u64") or (self.is_exact and self.kind in ("i32", "i64"))

    def wrapping(self, template: str, *operands: str) -> str:
        """An operation on integers; `{0}`, `{1}`, ... are the places of the operands."""
        if self.is_plain:
            return template.format(*operands)
        width = max(int(self.kind[1:]), 32)
        unsigned = [f"(u{width}){operand}" for operand in operands]
        return f"({self.kind})({template.format(*unsigned)})"


def _term(text: str) -> str:
    """A text as a term of a sum: a product needs no parentheses."""
    return text[1:-1] if _PRODUCT.fullmatch(text) else text


def _add(t: Arithmetic, a: str, b: str) -> str:
    if t.is_bool:
        return f"{a} | {b}"
    if t.is_real or t.is_plain:
        # Sums associate from the left, as in C.
        return f"{bare(a) if _SUM.fullmatch(a) else _term(a)} + {_term(b)}"
    return t.wrapping("{0} + {1}", a, b)


def _subtract(t: Arithmetic, a: str, b: str) -> str:
    if t.is_bool:
        raise RenderError("SUB of bool has no meaning; use XOR, or cast to an integer first")
    return f"{a} - {b}" if t.is_real else t.wrapping("{0} - {1}", a, b)


def _multiply(t: Arithmetic, a: str, b: str) -> str:
    if t.is_bool:
        return f"{a} & {b}"
    return f"{a} * {b}" if t.is_real else t.wrapping("{0} * {1}", a, b)


def _fused(t: Arithmetic, a: str, b: str, c: str) -> str:
    if t.is_bool:
        return f"({a} & {b}) | {c}"
    return t.maths("fma", a, b, c) if t.is_real else t.wrapping("{0} * {1} + {2}", a, b, c)


def _negate(t: Arithmetic, a: str) -> str:
    if t.is_bool:
        return f"!{a}"
    return f"-{a}" if t.is_real or t.is_exact else t.wrapping("0u - {0}", a)


def _complement(t: Arithmetic, a: str) -> str:
    return f"!{a}" if t.is_bool else f"({t.kind})~{a}"


def _constant_divisor(text: str) -> int | None:
    """The value of a positive constant operand."""
    digits = text.removeprefix("(u64)").removesuffix("u")
    return int(digits) if digits.isdecimal() and int(digits) > 0 else None


def _floor_divide(t: Arithmetic, a: str, b: str) -> str:
    """IDIV; the divisor is positive, and a shift floors."""
    divisor = _constant_divisor(b)
    if divisor is not None and divisor & (divisor - 1) == 0:
        return f"{a} >> {divisor.bit_length() - 1}"
    return f"{a} / {b}" if t.not_negative else t.call(cprelude.floor_divide(t.kind), a, b)


def _floor_remainder(t: Arithmetic, a: str, b: str) -> str:
    """MOD; the divisor is positive."""
    divisor = _constant_divisor(b)
    if divisor is not None and divisor & (divisor - 1) == 0:
        return f"{a} & {divisor - 1}"
    return f"{a} % {b}" if t.not_negative else t.call(cprelude.floor_remainder(t.kind), a, b)


def _divide(t: Arithmetic, a: str, b: str) -> str:
    if _constant_divisor(b) is not None:
        return f"{a} / {b}"
    return t.call(cprelude.divide(t.kind), a, b)


def _remainder(t: Arithmetic, a: str, b: str) -> str:
    if _constant_divisor(b) is not None:
        return f"{a} % {b}"
    return t.call(cprelude.remainder(t.kind), a, b)


def _maximum(t: Arithmetic, a: str, b: str) -> str:
    return f"{a} | {b}" if t.is_bool else t.call(cprelude.maximum(t.kind), a, b)


def _minimum(t: Arithmetic, a: str, b: str) -> str:
    return f"{a} & {b}" if t.is_bool else t.call(cprelude.minimum(t.kind), a, b)


def _near_exp2(t: Arithmetic, a: str) -> str:
    exact = t.prelude.maths("exp2", "float").removesuffix("()")
    return t.prelude.call(cprelude.near_exp2(exact), a)


def _dot(t: Arithmetic, a: str, b: str, c: str) -> str:
    fused = t.prelude.maths("fma", "float").removesuffix("()")
    return t.call(cprelude.dot(fused), a, b, c)


def _shift_left(t: Arithmetic, a: str, b: str) -> str:
    width = max(int(t.kind[1:]), 32)
    if t.kind == f"u{width}":
        return f"{a} << {b}"
    return f"({t.kind})((u{width}){a} << {b})"


_ALU: Final[dict[ExprOp, Callable[..., str]]] = {
    ExprOp.ADD: _add,
    ExprOp.SUB: _subtract,
    ExprOp.MUL: _multiply,
    ExprOp.FDIV: lambda t, a, b: f"{a} / {b}",
    ExprOp.IDIV: _floor_divide,
    ExprOp.MOD: _floor_remainder,
    ExprOp.TDIV: _divide,
    ExprOp.TMOD: _remainder,
    ExprOp.FMOD: lambda t, a, b: t.maths("fmod", a, b),
    ExprOp.NEG: _negate,
    ExprOp.MIN: _minimum,
    ExprOp.MAX: _maximum,
    ExprOp.CMPLT: lambda t, a, b: f"{a} < {b}",
    ExprOp.CMPNE: lambda t, a, b: f"{a} != {b}",
    ExprOp.AND: lambda t, a, b: f"{a} & {b}",
    ExprOp.OR: lambda t, a, b: f"{a} | {b}",
    ExprOp.XOR: lambda t, a, b: f"{a} ^ {b}",
    ExprOp.SHL: _shift_left,
    ExprOp.SHR: lambda t, a, b: f"{a} >> {b}",
    ExprOp.NOT: _complement,
    ExprOp.POPCOUNT: lambda t, a: t.call(cprelude.COUNT_BITS, a),
    ExprOp.MULACC: _fused,
    ExprOp.DOT: _dot,
    ExprOp.RECIP: lambda t, a: f"{literal(t.dtype, 1.0)} / {a}",
    ExprOp.SQRT: lambda t, a: t.maths("sqrt", a),
    ExprOp.TRUNC: lambda t, a: t.maths("trunc", a),
    ExprOp.ROUND: lambda t, a: t.maths("rint", a),
    ExprOp.NEAR_EXP2: lambda t, a: _near_exp2(t, a),
    ExprOp.TF32: lambda t, a: t.prelude.call(cprelude.TF32_OF_FLOAT, a),
}


def alu(op: ExprOp, t: Arithmetic, operands: Sequence[str]) -> str:
    """The expression for an operation on operands of `t.dtype` (for WHERE: a bool, then two).

    Raises:
        RenderError: the operation is none of programs, or the dtype has no arithmetic.
    """
    if op is ExprOp.WHERE:
        condition, a, b = operands
        return f"{condition} ? {a} : {b}"
    function = _ALU.get(op)
    if function is None:
        raise RenderError(f"{op.name} is no operation of a program; expand it first")
    if t.dtype in STORAGE_ONLY:
        raise RenderError(
            f"{op.name} of {t.dtype.name}: programs compute in float32; CAST before and after"
        )
    return function(t, *operands)


# -- casts -----------------------------------------------------------------------------------------


def _to_bool(source: DType, x: str) -> str:
    if source in STORAGE_ONLY:  # bits: both zeros have none but the sign
        return f"({x} & {(1 << (source.bits - 1)) - 1:#x}) != 0"
    return f"{x} != 0"


def _to_narrow(prelude: Prelude, source: DType, target: DType, x: str) -> str:
    if source is dtypes.bool:
        return f"{x} ? {storage_bits(target, 1.0):#x} : 0"
    if source is dtypes.float64:
        x = prelude.call(cprelude.ODD_FLOAT, x)
    elif source is not dtypes.float32:
        x = f"(float){x}"
    return prelude.call(cprelude.narrowed(target), x)


def _to_integer(kind: str, x: str) -> str:
    """A float as an integer, by way of a wider signed one, so that small negatives wrap."""
    if kind == "u64":
        return f"({x} < 0 ? (u64)(i64){x} : (u64){x})"
    wide = {"u32": "i64", "i64": "i64"}.get(kind, "i32")
    return f"({kind}){x}" if kind == wide else f"({kind})({wide}){x}"


def cast(prelude: Prelude, source: DType, target: DType, kind: str, x: str) -> str:
    """The value in another dtype, whose C type is `kind`."""
    if source is target:
        return x
    if target is dtypes.bool:
        return _to_bool(source, x)
    if target in STORAGE_ONLY and source not in STORAGE_ONLY:
        return _to_narrow(prelude, source, target, x)
    if source in STORAGE_ONLY:
        wide = prelude.call(cprelude.widened(source), x)
        return cast(prelude, dtypes.float32, target, kind, wide)
    if dtypes.is_float(source) and not dtypes.is_float(target):
        return _to_integer(kind, x)
    return x if source is target else f"({kind}){x}"


# -- bits ------------------------------------------------------------------------------------------


def _to_bits(prelude: Prelude, dtype: DType, x: str) -> str:
    """The bits as an unsigned integer of the dtype's width."""
    kind = type_of(dtype)
    if kind in ("float", "double"):
        return prelude.call(cprelude.bits_of(kind), x)
    return x if kind == bits_type(dtype) else f"({bits_type(dtype)}){x}"


def _from_bits(prelude: Prelude, dtype: DType, x: str) -> str:
    kind = type_of(dtype)
    if kind in ("float", "double"):
        return prelude.call(cprelude.of_bits(kind), x)
    if dtype is dtypes.bool:
        return f"{x} != 0"
    return x if kind == bits_type(dtype) else f"({kind}){x}"


def bitcast(prelude: Prelude, source: DType, target: DType, lanes: Sequence[str]) -> list[str]:
    """The same bits as lanes of another dtype; if the widths differ, in another number of lanes."""
    if source is target:
        return list(lanes)
    bits = [atom(_to_bits(prelude, source, x)) for x in lanes]
    if source.bits < target.bits:
        bits = _joined(bits, source, target)
    elif source.bits > target.bits:
        bits = _parted(bits, source, target)
    return [_from_bits(prelude, target, x) for x in bits]


def _joined(bits: Sequence[str], source: DType, target: DType) -> list[str]:
    count = target.bits // source.bits
    kind = bits_type(target)
    wide = [f"({kind}){x} << {i % count * source.bits}" for i, x in enumerate(bits)]
    return [atom(" | ".join(wide[i : i + count])) for i in range(0, len(wide), count)]


def _parted(bits: Sequence[str], source: DType, target: DType) -> list[str]:
    shifts = range(0, source.bits, target.bits)
    return [f"({bits_type(target)})({x} >> {shift})" for x in bits for shift in shifts]
