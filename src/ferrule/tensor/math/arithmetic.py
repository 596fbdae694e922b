"""Arithmetic with NumPy's broadcasting, between tensors and with Python numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ferrule.autograd import Gradients, GradNode, Number, Rule, TracedValue, constant, record
from ferrule.base.helpers import type_name
from ferrule.ir.dtype import DType, DTypeError, dtypes, promote
from ferrule.ir.expr import Expr
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.autocast import autocasting
from ferrule.tensor.base import Tensor, read, wrapped
from ferrule.tensor.broadcast import broadcast, check_devices
from ferrule.tensor.data import from_host, scalar_dtype
from ferrule.tensor.keywords import method
from ferrule.tensor.math.power import power
from ferrule.tensor.math.special import widened, with_sign

Operand: TypeAlias = Tensor | Number | Any
WEAK = (bool, int, float, Expr)


def weak_dtype(dtype: DType, number: object) -> DType:
    """The dtype in which a tensor meets a Python number: the number gives way where it can."""
    kind = scalar_dtype(number)
    if dtypes.is_float(dtype) or kind is dtypes.bool:
        return dtype
    if dtypes.is_float(kind) or dtype is dtypes.bool:
        return kind
    return dtype


# *** what the methods compute, on values of one dtype and shape ***


def round_down(value: TracedValue) -> TracedValue:
    """The largest whole number that is not larger."""
    whole = value.alu(UnaryOps.TRUNC)
    return whole - (value < whole).cast(value.dtype)


def _signs_differ(rest: TracedValue, divisor: TracedValue) -> TracedValue:
    """Where a remainder is not 0 and has not the sign of the divisor."""
    opposite = (rest < 0).alu(BinaryOps.XOR, divisor < 0)
    return rest.differs(0).alu(BinaryOps.AND, opposite)


def floor_mod(a: TracedValue, b: TracedValue) -> TracedValue:
    """The remainder with the sign of the divisor; integers by 0 give 0."""
    if dtypes.is_float(a.dtype):
        result = _float_mod(widened(a), widened(b)).cast(a.dtype)
        return record("mod", _FLOAT_MOD, (a, b), result.node, None)
    rest = a.alu(BinaryOps.MOD, b)
    if not dtypes.is_unsigned(a.dtype):
        rest = _signs_differ(rest, b).where(rest + b, rest)
    return rest if b.node.base_const() else b.equals(0).where(rest.full(0), rest)


def _float_mod(a: TracedValue, b: TracedValue) -> TracedValue:
    rest = a.alu(BinaryOps.MOD, b)
    rest = _signs_differ(rest, b).where(rest + b, rest)
    return rest.equals(0).where(with_sign(rest, b), rest)


def _reverse_float_mod(grad: TracedValue, entry: GradNode) -> Gradients:
    a, b = entry.saved
    return grad, -(grad * round_down(a / b)) if entry.parents[1] is not None else None


_FLOAT_MOD = Rule(_reverse_float_mod, inputs=(0, 1))


def _float_floor_div(a: TracedValue, b: TracedValue) -> TracedValue:
    rest = a.alu(BinaryOps.MOD, b)
    quotient = (a - rest) / b - _signs_differ(rest, b).cast(a.dtype)
    whole = round_down(quotient)
    whole = whole + (quotient - whole > 0.5).cast(whole.dtype)
    whole = whole.equals(0).where(with_sign(whole, a / b), whole)
    return b.equals(0).where(a / b, whole)


def floor_div(a: TracedValue, b: TracedValue) -> TracedValue:
    """The quotient, rounded down; integers by 0 give 0."""
    if dtypes.is_float(a.dtype):
        return _float_floor_div(widened(a), widened(b)).cast(a.dtype)
    quotient = a.alu(BinaryOps.DIV, b)
    if dtypes.is_unsigned(a.dtype):
        return quotient
    inexact = _signs_differ(a.alu(BinaryOps.MOD, b), b)
    if not b.node.base_const():
        inexact = inexact.alu(BinaryOps.AND, b.differs(0))
    return quotient - inexact.cast(a.dtype)


def integer_power(base: TracedValue, exponent: int) -> TracedValue:
    """base**exponent for a whole exponent of at least 1, by squaring."""
    result: TracedValue | None = None
    while True:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        base = base * base


def _integer_powers(base: TracedValue, exponent: TracedValue) -> TracedValue:
    """base**exponent for integers, bit by bit of the exponent.

    Where that is negative, the fraction is lost: only powers of 1 and -1 are not 0.
    """
    result = base.full(1)
    unit = (base * base).equals(1).where(base, 0)
    rest = exponent
    for _ in range(base.dtype.bits - 1):
        odd = rest.alu(BinaryOps.AND, rest.full(1)).differs(0)
        result = odd.where(result * base, result)
        rest = rest.alu(BinaryOps.SHR, rest.full(1))
        base = base * base
    if dtypes.is_unsigned(exponent.dtype):
        return result
    odd = exponent.alu(BinaryOps.AND, exponent.full(1)).differs(0)
    signed = odd.where(unit, unit * unit)
    return (exponent < 0).where(signed, result)


def _power(base: TracedValue, exponent: TracedValue) -> TracedValue:
    """base**exponent for floats or integers; bools count as int32."""
    if dtypes.is_float(base.dtype):
        return power(base, exponent)
    if base.dtype is dtypes.bool:
        base, exponent = base.cast(dtypes.int32), exponent.cast(dtypes.int32)
    return _integer_powers(base, exponent)


def _not_bool(value: TracedValue, what: str, instead: str) -> None:
    if value.dtype is dtypes.bool:
        raise DTypeError(f"[{what}] is not defined for bool; use {instead}")


# -- operands ------------------------------------------------------------------------------------


def operands(self: Tensor, other: Operand, what: str) -> tuple[TracedValue, TracedValue]:
    """This tensor and another operand, brought to one dtype and shape."""
    a = read(self)
    if isinstance(other, Tensor):
        b = read(other)
    elif isinstance(other, np.generic):
        return _weak_operands(a, other.item())
    elif isinstance(other, WEAK):
        return _weak_operands(a, other)
    elif isinstance(other, np.ndarray | list | tuple):
        b = from_host(other, None, a.node.device)
    else:
        raise TypeError(
            f"[{what}] {type_name(other)} is no operand; use a tensor, a Python number or a "
            "NumPy array; ferrule.from_dlpack(x) takes those of other libraries"
        )
    first, second = a.node, b.node
    if (
        first.shape == second.shape
        and first.dtype is second.dtype
        and first.device == second.device
    ):
        return a, b
    if first.dtype is not second.dtype:
        dtype = promote(first.dtype, second.dtype)
        a, b = a.cast(dtype), b.cast(dtype)
    check_devices(a, b, what)
    return broadcast(a, b, what)


def _weak_operands(a: TracedValue, number: Any) -> tuple[TracedValue, TracedValue]:
    node = a.node
    dtype = node.dtype
    if not dtypes.is_float(dtype):  # floats keep their type, whatever they meet
        dtype = weak_dtype(dtype, number)
        a = a.cast(dtype)
    return a, constant(number, dtype, node.shape, node.device)


def binary(self: Tensor, op: BinaryOps, other: Operand, what: str) -> Tensor:
    """The result of an op of this tensor and another operand."""
    a, b = operands(self, other, what)
    return wrapped(type(self), a.alu(op, b))


def reflected(self: Tensor, op: BinaryOps, other: Operand, what: str) -> Tensor:
    """The result of an op of another operand and this tensor."""
    b, a = operands(self, other, what)
    return self._wrap(a.alu(op, b))


def as_floats(self: Tensor, other: Operand | None = None) -> Tensor:
    """This tensor in floats, as losses and distances need it: integers would wrap around.

    An integer stays one if `other` is a float, since operations on both have its dtype.
    """
    stays = isinstance(other, Tensor) and dtypes.is_float(other.dtype)
    return self if stays or dtypes.is_float(self.dtype) else self._wrap(float_value(self))


def float_value(self: Tensor) -> TracedValue:
    """The value as a float: integers and bools become the default float."""
    value = self._read()
    return value if dtypes.is_float(value.dtype) else value.cast(dtypes.default_float)


def apply(self: Tensor, function: Callable[[TracedValue], TracedValue]) -> Tensor:
    """A function of floats, of each element."""
    return self._wrap(function(float_value(self)))


# -- arithmetic ----------------------------------------------------------------------------------


@method
def add(self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """self + alpha * other.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).add(10).tolist(), Tensor([1, 2]).add(10, alpha=3).tolist()
    ([11, 12], [31, 32])
    """
    return binary(self, BinaryOps.ADD, times(other, alpha), "add")


def times(other: Any, alpha: Number) -> Any:
    """alpha * other, of which `other` alone may be a list."""
    if type(alpha) is int and alpha == 1:
        return other
    if isinstance(other, list | tuple):
        return np.asarray(other) * alpha
    return other * alpha


@method
def sub(self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """self - alpha * other; not defined for two bools.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).sub(10).tolist(), Tensor([1, 2]).sub(10, alpha=3).tolist()
    ([-9, -8], [-29, -28])
    """
    a, b = operands(self, times(other, alpha), "sub")
    _not_bool(a, "sub", "^, or cast them")
    return self._wrap(a - b)


@method
def mul(self: Tensor, other: Operand) -> Tensor:
    """self * other.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).mul(1.5).tolist()
    [1.5, 3.0]
    """
    return binary(self, BinaryOps.MUL, other, "mul")


@method
def div(self: Tensor, other: Operand, rounding_mode: str | None = None) -> Tensor:
    """self / other, as floats; with `rounding_mode` "trunc" or "floor" a whole number.

    "floor" is `//`, "trunc" rounds towards zero. Integers stay integers then. Raises `ShapeError`
    if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).div(2).tolist(), Tensor([-7, 7]).div(2, rounding_mode="trunc").tolist()
    ([0.5, 1.0], [-3, 3])
    """
    if rounding_mode == "floor":
        return self.floordiv(other)
    if rounding_mode == "trunc":
        a, b = operands(self, other, "div")
        _not_bool(a, "div", "cast them")
        quotient = a.detach().alu(BinaryOps.DIV, b.detach())
        return self._wrap(quotient.alu(UnaryOps.TRUNC) if dtypes.is_float(a.dtype) else quotient)
    if rounding_mode is not None:
        raise ValueError(f"[div] rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    a, b = divisible(self, other, "div")
    return self._wrap(a / b)


def divisible(self: Tensor, other: Operand, what: str) -> tuple[TracedValue, TracedValue]:
    """This tensor and another operand, as floats of one dtype and shape."""
    a, b = operands(self, other, what)
    if not dtypes.is_float(a.dtype):
        a, b = a.cast(dtypes.default_float), b.cast(dtypes.default_float)
    return a, b


@method
def floordiv(self: Tensor, other: Operand) -> Tensor:
    """self // other: the quotient rounded down, as Python's. Integers by 0 give 0.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([7, -7]).floordiv(2).tolist()
    [3, -4]
    """
    a, b = operands(self, other, "floordiv")
    _not_bool(a, "floordiv", "cast them")
    return self._wrap(floor_div(a, b))


@method
def mod(self: Tensor, other: Operand) -> Tensor:
    """self % other: the remainder with the sign of the divisor, as Python's.

    Integers by 0 give 0, floats NaN. Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([7, -7]).mod(3).tolist()
    [1, 2]
    """
    a, b = operands(self, other, "mod")
    _not_bool(a, "mod", "cast them")
    return self._wrap(floor_mod(a, b))


@method
def pow(self: Tensor, other: Operand) -> Tensor:
    """self ** other.

    1, 2, 3, 4 and -2 as Python numbers multiply. Integers stay integers and wrap; to a negative
    element of a tensor they are 0, but for those of 1 and -1. Anything to the power 0 is 1.
    Error: at most 1.5 ulp in float32, 1 in float64, whose powers are exact where they can be.

    Raises `ValueError` for an integer tensor and a negative Python int.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).pow(2).tolist(), Tensor([4.0]).pow(-0.5).tolist()
    ([1, 4, 9], [0.5])
    """
    if isinstance(other, bool | int | float):
        return _pow_number(self, other)
    a, b = operands(self, other, "pow")
    return self._wrap(_power(a, b))


def _pow_number(self: Tensor, exponent: Number) -> Tensor:
    value = self._read()
    value = value.cast(weak_dtype(value.dtype, exponent))
    is_float = dtypes.is_float(value.dtype)
    if exponent < 0 and not is_float:
        raise ValueError(
            f"[pow] a tensor of {value.dtype} to the power {exponent} is no integer; "
            "cast it to a float first"
        )
    if exponent == 0:
        return self._wrap(value.full(1))
    whole = math.isfinite(exponent) and exponent == int(exponent)
    if whole and (-2 <= exponent <= 4 or not is_float):
        factor = value if exponent > 0 else value.alu(UnaryOps.RECIP)
        return self._wrap(integer_power(factor, abs(int(exponent))))
    if abs(exponent) == 0.5:
        root = value.alu(UnaryOps.SQRT)
        return self._wrap(root if exponent > 0 else root.alu(UnaryOps.RECIP))
    return self._wrap(power(value, value.full(exponent)))


@method
def neg(self: Tensor) -> Tensor:
    """-self.

    >>> from ferrule import Tensor
    >>> Tensor([1, -2]).neg().tolist()
    [-1, 2]
    """
    value = self._read()
    _not_bool(value, "neg", "~, or logical_not()")
    return self._wrap(-value)


def plus(self: Tensor, other: Operand) -> Tensor:
    """self + other, for the operator: without what `add` multiplies by."""
    return binary(self, BinaryOps.ADD, other, "add")


def radd(self: Tensor, other: Operand) -> Tensor:
    """other + self."""
    return reflected(self, BinaryOps.ADD, other, "add")


def rsub(self: Tensor, other: Operand) -> Tensor:
    """other - self."""
    b, a = operands(self, other, "sub")
    _not_bool(a, "sub", "^, or cast them")
    return self._wrap(a - b)


def rmul(self: Tensor, other: Operand) -> Tensor:
    """other * self."""
    return reflected(self, BinaryOps.MUL, other, "mul")


@autocasting
def rtruediv(self: Tensor, other: Operand) -> Tensor:
    """other / self."""
    b, a = divisible(self, other, "div")
    return self._wrap(a / b)


def rfloordiv(self: Tensor, other: Operand) -> Tensor:
    """other // self."""
    b, a = operands(self, other, "floordiv")
    _not_bool(a, "floordiv", "cast them")
    return self._wrap(floor_div(a, b))


def rmod(self: Tensor, other: Operand) -> Tensor:
    """other % self."""
    b, a = operands(self, other, "mod")
    _not_bool(a, "mod", "cast them")
    return self._wrap(floor_mod(a, b))


@autocasting
def rpow(self: Tensor, other: Operand) -> Tensor:
    """other ** self."""
    b, a = operands(self, other, "pow")
    if isinstance(other, int | float) and other == 2 and dtypes.is_float(b.dtype):
        return self._wrap(b.alu(UnaryOps.EXP2))
    return self._wrap(_power(a, b))


def divmod(self: Tensor, other: Operand) -> tuple[Tensor, Tensor]:
    """The quotient, rounded down, and the remainder."""
    return self // other, self % other


def rdivmod(self: Tensor, other: Operand) -> tuple[Tensor, Tensor]:
    """The quotient of other by self, rounded down, and the remainder."""
    return other // self, other % self


def pos(self: Tensor) -> Tensor:
    """The tensor itself."""
    return self
