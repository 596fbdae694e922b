"""Arithmetic, casts and bitcasts as C expressions.

An operand is a name, a literal, a call, or a text in parentheses; a result may be any expression.
Nothing relies on signed overflow, which C leaves undefined: it is computed in unsigned integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.arithmetic import Step, conversion, meaning
from ferrule.renderer.base import STORAGE_ONLY
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
    is_exact: bool = False
    """True if the result, an integer, is known not to overflow."""
    not_negative: bool = False
    """True if the first operand, an integer, is known to be at least 0."""

    @property
    def is_real(self) -> bool:
        return dtypes.is_float(self.dtype)

    def call(self, helper: Helper, *operands: str) -> str:
        return self.prelude.call(helper, *operands)

    def maths(self, name: str, *operands: str) -> str:
        """A call of one of the language's own functions."""
        return f"{self.prelude.function(name, self.kind)}({', '.join(operands)})"

    @property
    def is_plain(self) -> bool:
        """True if C computes these numbers as they are meant: without overflow, or unsigned."""
        if self.is_real or self.kind in ("u32", "u64"):
            return True
        return self.is_exact and self.kind in ("i32", "i64")

    def wrapping(self, template: str, *operands: str) -> str:
        """An operation that may overflow; `{0}`, `{1}`, ... are the places of the operands."""
        if self.is_plain:
            return template.format(*operands)
        width = max(int(self.kind[1:]), 32)
        unsigned = [f"(u{width}){operand}" for operand in operands]
        return f"({self.kind})({template.format(*unsigned)})"


def _term(text: str) -> str:
    """A text as a term of a sum: a product needs no parentheses."""
    return text[1:-1] if _PRODUCT.fullmatch(text) else text


def _add(t: Arithmetic, a: str, b: str) -> str:
    if not t.is_plain:
        return t.wrapping("{0} + {1}", a, b)
    # Sums associate from the left, as in C.
    return f"{bare(a) if _SUM.fullmatch(a) else _term(a)} + {_term(b)}"


def _fused(t: Arithmetic, a: str, b: str, c: str) -> str:
    if t.dtype is dtypes.bool:
        return alu(ExprOp.ADD, t, (atom(alu(ExprOp.MUL, t, (a, b))), c))
    return t.maths("fma", a, b, c) if t.is_real else t.wrapping("{0} * {1} + {2}", a, b, c)


def _negate(t: Arithmetic, a: str) -> str:
    return f"-{a}" if t.is_real or t.is_exact else t.wrapping("0u - {0}", a)


def _complement(t: Arithmetic, a: str) -> str:
    return f"!{a}" if t.dtype is dtypes.bool else f"({t.kind})~{a}"


def _constant_divisor(text: str) -> int | None:
    """The value of a positive constant operand."""
    digits = text.removeprefix("(u64)").removesuffix("u")
    return int(digits) if digits.isdecimal() and int(digits) > 0 else None


def _floored(symbol: str, helper: Callable[[str], Helper], t: Arithmetic, a: str, b: str) -> str:
    """IDIV and MOD; the divisor is positive, and a shift floors."""
    divisor = _constant_divisor(b)
    if divisor is not None and divisor & (divisor - 1) == 0:
        return f"{a} >> {divisor.bit_length() - 1}" if symbol == "/" else f"{a} & {divisor - 1}"
    return f"{a} {symbol} {b}" if t.not_negative else t.call(helper(t.kind), a, b)


def _truncated(symbol: str, helper: Callable[[str], Helper], t: Arithmetic, a: str, b: str) -> str:
    """TDIV and TMOD."""
    is_safe = _constant_divisor(b) is not None
    return f"{a} {symbol} {b}" if is_safe else t.call(helper(t.kind), a, b)


# Templates of operators, and functions for the rest.
_ALU: Final[dict[ExprOp, str | Callable[..., str]]] = {
    ExprOp.ADD: _add,
    ExprOp.SUB: lambda t, a, b: t.wrapping("{0} - {1}", a, b),
    ExprOp.MUL: lambda t, a, b: t.wrapping("{0} * {1}", a, b),
    ExprOp.FDIV: "{0} / {1}",
    ExprOp.IDIV: partial(_floored, "/", cprelude.floor_divide),
    ExprOp.MOD: partial(_floored, "%", cprelude.floor_remainder),
    ExprOp.TDIV: partial(_truncated, "/", cprelude.divide),
    ExprOp.TMOD: partial(_truncated, "%", cprelude.remainder),
    ExprOp.FMOD: lambda t, a, b: t.maths("fmod", a, b),
    ExprOp.NEG: _negate,
    ExprOp.MIN: lambda t, a, b: t.call(cprelude.minimum(t.kind), a, b),
    ExprOp.MAX: lambda t, a, b: t.call(cprelude.maximum(t.kind), a, b),
    ExprOp.CMPLT: "{0} < {1}",
    ExprOp.CMPNE: "{0} != {1}",
    ExprOp.AND: "{0} & {1}",
    ExprOp.OR: "{0} | {1}",
    ExprOp.XOR: "{0} ^ {1}",
    ExprOp.SHL: lambda t, a, b: t.wrapping(f"{{0}} << {b}", a),
    ExprOp.SHR: "{0} >> {1}",
    ExprOp.NOT: _complement,
    ExprOp.POPCOUNT: lambda t, a: t.call(cprelude.COUNT_BITS, a),
    ExprOp.WHERE: "{0} ? {1} : {2}",
    ExprOp.MULACC: _fused,
    ExprOp.RECIP: lambda t, a: f"{literal(t.dtype, 1.0)} / {a}",
    ExprOp.SQRT: lambda t, a: t.maths("sqrt", a),
    ExprOp.TRUNC: lambda t, a: t.maths("trunc", a),
    ExprOp.ROUND: lambda t, a: t.maths("rint", a),
    ExprOp.NEAR_EXP2: lambda t, a: t.call(cprelude.near_exp2(t.prelude), a),
    ExprOp.TF32: lambda t, a: t.call(cprelude.TF32_OF_FLOAT, a),
}

OPERATIONS: Final = frozenset(_ALU)


def alu(op: ExprOp, t: Arithmetic, operands: Sequence[str]) -> str:
    """The expression for an operation on operands of `t.dtype` (for WHERE: a bool, then two).

    Raises:
        RenderError: the operation is none of programs, or the dtype has no arithmetic.
    """
    rule = _ALU[meaning(op, t.dtype, _ALU)]
    return rule.format(*operands) if isinstance(rule, str) else rule(t, *operands)


# -- casts -----------------------------------------------------------------------------------------


def _is_nonzero(prelude: Prelude, source: DType, target: DType, x: str) -> str:
    if source in STORAGE_ONLY:  # bits: both zeros have none but the sign
        return f"({x} & {(1 << (source.bits - 1)) - 1:#x}) != 0"
    return f"{x} != 0"


def _converted(prelude: Prelude, source: DType, target: DType, x: str) -> str:
    if source is dtypes.bool and target in STORAGE_ONLY:
        return f"{x} ? {literal(target, 1.0)} : 0"
    return f"({type_of(target)}){x}"


def _whole_part(prelude: Prelude, source: DType, target: DType, x: str) -> str:
    """A float as an integer, by way of a wider signed one, so that small negatives wrap."""
    kind = type_of(target)
    if kind == "u64":
        return f"({x} < 0 ? (u64)(i64){x} : (u64){x})"
    wide = "i64" if kind in ("u32", "i64") else "i32"
    return f"({kind}){x}" if kind == wide else f"({kind})({wide}){x}"


_STEPS: Final[dict[Step, Callable[[Prelude, DType, DType, str], str]]] = {
    Step.TEST: _is_nonzero,
    Step.CHOOSE: _converted,
    Step.WIDEN: lambda prelude, source, target, x: prelude.call(cprelude.WIDENED[source], x),
    Step.NARROW: lambda prelude, source, target, x: prelude.call(cprelude.NARROWED[target], x),
    Step.ODD: lambda prelude, source, target, x: prelude.call(cprelude.ODD_FLOAT, x),
    Step.TRUNCATE: _whole_part,
    Step.CONVERT: _converted,
}


def cast(prelude: Prelude, source: DType, target: DType, x: str) -> str:
    """The value in another dtype."""
    for step, dtype in conversion(source, target):
        x, source = _STEPS[step](prelude, source, dtype, x), dtype
    return x


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
    bits, kind = [atom(_to_bits(prelude, source, x)) for x in lanes], bits_type(target)
    if source.bits < target.bits:
        count = target.bits // source.bits
        wide = [f"({kind}){x} << {i % count * source.bits}" for i, x in enumerate(bits)]
        bits = [atom(" | ".join(wide[i : i + count])) for i in range(0, len(wide), count)]
    elif source.bits > target.bits:
        shifts = range(0, source.bits, target.bits)
        bits = [f"({kind})({x} >> {shift})" for x in bits for shift in shifts]
    return [_from_bits(prelude, target, x) for x in bits]
