"""Constant folding: element-wise operations on constants, in the arithmetic of their dtype.

Only operations that every device rounds alike are folded. EXP2, LOG2, SIN and COS are left to the
device, since the last bit may differ.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ferrule.ir.dtype import DType, dtypes, truncate
from ferrule.ir.op_table import ELEMENTWISE, REDUCED, BinaryOps, Op, ReduceOps, TernaryOps, UnaryOps

Scalar: TypeAlias = bool | int | float

# A Python float holds every integer up to here; above it, a cast to a narrower float would round
# twice.
_EXACT_INTEGERS = 1 << 53


def _divide_float(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a):
        return a if a else math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _remainder_float(a: float, b: float) -> float:
    if math.isinf(a) or b == 0:
        return math.nan
    return math.fmod(a, b)


def _divide_int(a: int, b: int) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder_int(a: int, b: int) -> int:
    return a - _divide_int(a, b) * b


def _largest_float(a: float, b: float) -> float | None:
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(a) else b
    if a == b == 0 and math.copysign(1.0, a) != math.copysign(1.0, b):
        return None  # devices differ in the sign of the zero
    return max(a, b)


def _root(a: float) -> float:
    return math.sqrt(a) if a >= 0 else a if math.isnan(a) else math.nan


def _whole(a: float) -> float:
    return math.copysign(math.trunc(a), a) if math.isfinite(a) else a


_BOTH: dict[Op, Callable[..., Scalar | None]] = {
    BinaryOps.ADD: lambda a, b: a + b,
    BinaryOps.SUB: lambda a, b: a - b,
    BinaryOps.MUL: lambda a, b: a * b,
    BinaryOps.CMPLT: lambda a, b: a < b,
    BinaryOps.CMPNE: lambda a, b: a != b,
    UnaryOps.NEG: lambda a: -a,
}
_FLOAT: dict[Op, Callable[..., Scalar | None]] = {
    **_BOTH,
    BinaryOps.DIV: _divide_float,
    BinaryOps.MOD: _remainder_float,
    BinaryOps.MAX: _largest_float,
    UnaryOps.SQRT: _root,
    UnaryOps.RECIP: lambda a: _divide_float(1.0, a),
    UnaryOps.TRUNC: _whole,
}
_INT: dict[Op, Callable[..., Scalar | None]] = {
    **_BOTH,
    BinaryOps.DIV: _divide_int,
    BinaryOps.MOD: _remainder_int,
    BinaryOps.MAX: max,
    BinaryOps.XOR: lambda a, b: a ^ b,
    BinaryOps.AND: lambda a, b: a & b,
    BinaryOps.OR: lambda a, b: a | b,
    BinaryOps.SHL: lambda a, b: a << b,
    BinaryOps.SHR: lambda a, b: a >> b,
    TernaryOps.MULACC: lambda a, b, c: a * b + c,
}
_BOOL: dict[Op, Callable[..., Scalar | None]] = {
    BinaryOps.ADD: lambda a, b: a or b,
    BinaryOps.MUL: lambda a, b: a and b,
    BinaryOps.MAX: lambda a, b: a or b,
    BinaryOps.AND: lambda a, b: a and b,
    BinaryOps.OR: lambda a, b: a or b,
    BinaryOps.XOR: lambda a, b: a != b,
    BinaryOps.CMPLT: lambda a, b: a < b,
    BinaryOps.CMPNE: lambda a, b: a != b,
    UnaryOps.NEG: lambda a: not a,
}


def _rules_of(dtype: DType) -> dict[Op, Callable[..., Scalar | None]]:
    if dtype is dtypes.bool:
        return _BOOL
    return _FLOAT if dtypes.is_float(dtype) else _INT


def fold(op: Op, dtype: DType, values: Sequence[Scalar]) -> Scalar | None:
    """`op` on values of `dtype`; None if the device has to compute it.

    >>> fold(BinaryOps.ADD, dtypes.uint8, [200, 100])
    44
    >>> fold(BinaryOps.DIV, dtypes.float32, [1.0, 0.0])
    inf
    """
    rule = _rules_of(dtype).get(op)
    if rule is None:
        return None
    result = rule(*values)
    if result is None:
        return None
    return truncate(dtypes.bool if ELEMENTWISE[op].compares else dtype, result)


def fold_cast(value: Scalar, source: DType, target: DType) -> Scalar | None:
    """`value` of dtype `source`, cast to `target`; None if the device has to compute it.

    >>> fold_cast(-1.75, dtypes.float32, dtypes.int32)
    -1
    """
    if target is dtypes.bool:
        return value != 0
    if dtypes.is_float(target):
        rounds_twice = not isinstance(value, float) and abs(value) > _EXACT_INTEGERS
        return None if rounds_twice else truncate(target, value)
    if dtypes.is_float(source):
        inside = dtypes.min(target) <= value <= dtypes.max(target)
        return truncate(target, value) if inside else None
    return truncate(target, value)


def fold_bitcast(value: Scalar, source: DType, target: DType) -> Scalar | None:
    """The bits of `value` read as `target`; None for types without a `struct` format.

    >>> fold_bitcast(1.0, dtypes.float32, dtypes.int32) == 0x3F800000
    True
    """
    if source.fmt is None or target.fmt is None or target is dtypes.bool:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None  # a Python NaN has lost its payload
    result: Scalar = struct.unpack("=" + target.fmt, struct.pack("=" + source.fmt, value))[0]
    return result


def is_negative_zero(value: object) -> bool:
    """True for -0.0: padding and sums start from 0.0, which differs in its bits."""
    return isinstance(value, float) and value == 0 and math.copysign(1.0, value) < 0


def fold_reduce(op: ReduceOps, dtype: DType, value: Scalar, count: int) -> Scalar | None:
    """`count` times `value` combined; None where the rounding depends on the order.

    >>> fold_reduce(ReduceOps.SUM, dtypes.float32, 3.0, 4)
    12.0
    """
    if REDUCED[op].chooses:
        return value
    if op is ReduceOps.PROD:
        return value if value in (0, 1) and not is_negative_zero(value) else None
    if op is not ReduceOps.SUM:
        return None
    total = value * count
    if dtype is dtypes.bool or not isinstance(value, float):
        return truncate(dtype, total)
    whole = abs(total) < 1 << (dtype.mantissa_bits + 1) and value.is_integer()
    return total + 0.0 if whole else None


def is_identity(op: BinaryOps, value: Scalar, dtype: DType, right: bool) -> bool:
    """True if `x op value` has the bits of x for any x of `dtype`; not `right`: `value op x`.

    >>> is_identity(BinaryOps.ADD, 0.0, dtypes.float32, right=True)  # -0.0 + 0.0 is 0.0
    False
    """
    rule = _IDENTITY.get(op)
    return rule is not None and (right or ELEMENTWISE[op].commutes) and rule(value, dtype)


def same_operand(op: Op, dtype: DType, known: Sequence[Scalar | None]) -> int | None:
    """The number of the operand that the result equals in all bits, whatever unknown ones are.

    `known` has None for unknown operands. None if there is no such operand.

    >>> same_operand(BinaryOps.MUL, dtypes.float32, [1.0, None])
    1
    """
    if op is TernaryOps.WHERE:
        condition = known[0]
        return None if condition is None else 1 if condition else 2
    if not isinstance(op, BinaryOps):
        return None
    for place, value in enumerate(known):
        if value is None:
            continue
        if is_identity(op, value, dtype, right=place == 1):
            return 1 - place
        if op is BinaryOps.MUL and value == 0 and not dtypes.is_float(dtype):
            return place
    return None


def _is_zero(value: Scalar, _: DType) -> bool:
    return value == 0


def _is_one(value: Scalar, _: DType) -> bool:
    return value == 1


# Of the two zeros only -0.0 leaves -0.0 as it is when added, only 0.0 when subtracted.
_IDENTITY: dict[BinaryOps, Callable[[Scalar, DType], bool]] = {
    BinaryOps.ADD: lambda v, d: v == 0 and (not dtypes.is_float(d) or is_negative_zero(v)),
    BinaryOps.SUB: lambda v, d: v == 0 and not is_negative_zero(v),
    BinaryOps.MUL: _is_one,
    BinaryOps.DIV: _is_one,
    BinaryOps.MAX: lambda v, d: v == dtypes.min(d),
    BinaryOps.XOR: _is_zero,
    BinaryOps.OR: _is_zero,
    BinaryOps.SHL: _is_zero,
    BinaryOps.SHR: _is_zero,
}
