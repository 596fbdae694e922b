"""Comparison, choice, and operations on bits and truth values."""

from __future__ import annotations

import math

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.ir.dtype import DTypeError, dtypes, promote
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, check_devices, expanded
from ferrule.tensor.data import constant, from_host, scalar_dtype
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import (
    WEAK,
    Operand,
    binary,
    divisible,
    float_value,
    operands,
    reflected,
    weak_dtype,
)


def less_or_equal(a: TracedValue, b: TracedValue) -> TracedValue:
    """a <= b; false for NaN."""
    if dtypes.is_float(a.dtype):
        return (a < b).alu(BinaryOps.OR, a.equals(b))
    return (b < a).alu(UnaryOps.NEG)


def smaller(a: TracedValue, b: TracedValue) -> TracedValue:
    """The smaller of two; NaN if either is. The complement reverses the order of integers."""
    if dtypes.is_float(a.dtype):
        return -(-a).maximum(-b)
    return complement(complement(a).maximum(complement(b)))


def shifted(op: BinaryOps, value: TracedValue, count: TracedValue) -> TracedValue:
    """A shift by any count: one that is negative or not below the width shifts all bits out."""
    bits = value.dtype.bits
    known = count.node.base_const()
    if isinstance(known, int) and 0 <= known < bits:
        return value.alu(op, count)
    within = count < bits
    if not dtypes.is_unsigned(count.dtype):
        within = within.alu(BinaryOps.AND, (count < 0).alu(UnaryOps.NEG))
    nothing = value.full(0)
    keeps_sign = op is BinaryOps.SHR and not dtypes.is_unsigned(value.dtype)
    gone = (value < 0).where(value.full(-1), 0) if keeps_sign else nothing
    return within.where(value.alu(op, within.where(count, 0)), gone)


def complement(value: TracedValue) -> TracedValue:
    """All bits inverted; a bool is negated."""
    if value.dtype is dtypes.bool:
        return value.alu(UnaryOps.NEG)
    ones = dtypes.max(value.dtype) if dtypes.is_unsigned(value.dtype) else -1
    return value.alu(BinaryOps.XOR, value.full(ones))


# -- comparison ----------------------------------------------------------------------------------


def equals(self: Tensor, other: object) -> Tensor:
    """self == other; Python compares with None itself."""
    if other is None:  # as `x in (None, …)` asks
        return NotImplemented  # type: ignore[no-any-return]
    a, b = operands(self, other, "==")
    return self._wrap(a.equals(b))


def differs(self: Tensor, other: object) -> Tensor:
    """self != other; Python compares with None itself."""
    if other is None:
        return NotImplemented  # type: ignore[no-any-return]
    return binary(self, BinaryOps.CMPNE, other, "!=")


@method
def eq(self: Tensor, other: Operand) -> Tensor:
    """self == other, which is false for NaN.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).eq(2).tolist()
    [False, True]
    """
    return self == other


@method
def ne(self: Tensor, other: Operand) -> Tensor:
    """self != other, which is true for NaN.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).ne(2).tolist()
    [True, False]
    """
    return binary(self, BinaryOps.CMPNE, other, "ne")


@method
def lt(self: Tensor, other: Operand) -> Tensor:
    """self < other.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).lt(2).tolist()
    [True, False]
    """
    return binary(self, BinaryOps.CMPLT, other, "<")


@method
def le(self: Tensor, other: Operand) -> Tensor:
    """self <= other.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).le(2).tolist()
    [True, True, False]
    """
    return self._wrap(less_or_equal(*operands(self, other, "<=")))


@method
def gt(self: Tensor, other: Operand) -> Tensor:
    """self > other.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).gt(2).tolist()
    [False, False, True]
    """
    return reflected(self, BinaryOps.CMPLT, other, ">")


@method
def ge(self: Tensor, other: Operand) -> Tensor:
    """self >= other.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).ge(2).tolist()
    [False, True]
    """
    b, a = operands(self, other, ">=")
    return self._wrap(less_or_equal(a, b))


@method
def maximum(self: Tensor, other: Operand) -> Tensor:
    """The larger of two elements; NaN if either is. Of equal ones each gets half the gradient.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 5]).maximum(3).tolist()
    [3, 5]
    """
    return binary(self, BinaryOps.MAX, other, "maximum")


@method
def minimum(self: Tensor, other: Operand) -> Tensor:
    """The smaller of two elements; NaN if either is. Of equal ones each gets half the gradient.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 5]).minimum(3).tolist()
    [1, 3]
    """
    return self._wrap(smaller(*operands(self, other, "minimum")))


@method
def clamp(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Each element, but no less than `min` and no more than `max`. NaN stays.

    >>> from ferrule import Tensor
    >>> Tensor([-2, 0, 7]).clamp(-1, 5).tolist()
    [-1, 0, 5]
    """
    if min is None and max is None:
        raise ValueError("[clamp] neither min nor max is given; pass at least one")
    result = self
    if min is not None:
        a, low = operands(result, min, "clamp")
        result = self._wrap((a < low).where(low, a))
    if max is not None:
        a, high = operands(result, max, "clamp")
        result = self._wrap((high < a).where(high, a))
    return result


@method
def clamp_min(self: Tensor, min: Operand) -> Tensor:
    """Each element, but no less than `min`.

    >>> from ferrule import Tensor
    >>> Tensor([-2, 7]).clamp_min(0).tolist()
    [0, 7]
    """
    return self.clamp(min=min)


@method
def clamp_max(self: Tensor, max: Operand) -> Tensor:
    """Each element, but no more than `max`.

    >>> from ferrule import Tensor
    >>> Tensor([-2, 7]).clamp_max(5).tolist()
    [-2, 5]
    """
    return self.clamp(max=max)


@method
def isclose(
    self: Tensor, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """True where elements differ by at most `atol + rtol * abs(other)`, as a bool tensor.

    Infinities are close to themselves only, and NaN to NaN if `equal_nan`. Raises `ShapeError` if
    the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 1.1]).isclose(Tensor([1.0, 1.0])).tolist()
    [True, False]
    """
    a, b = divisible(self, other, "isclose")
    near = less_or_equal((a - b).absolute(), b.absolute() * rtol + atol)
    near = near.alu(BinaryOps.AND, b.absolute() < math.inf)
    near = near.alu(BinaryOps.OR, a.equals(b))
    if equal_nan:
        near = near.alu(BinaryOps.OR, a.differs(a).alu(BinaryOps.AND, b.differs(b)))
    return self._wrap(near)


# -- bits and truth ------------------------------------------------------------------------------


def _bitwise(self: Tensor, op: BinaryOps, other: Operand, what: str, swap: bool = False) -> Tensor:
    a, b = operands(self, other, what)
    shifts = op is BinaryOps.SHL or op is BinaryOps.SHR
    if dtypes.is_float(a.dtype) or (shifts and a.dtype is dtypes.bool):
        kinds = "integers" if shifts else "integers and bools"
        raise DTypeError(f"[{what}] is defined for {kinds}, not {a.dtype}; cast it first")
    if swap:
        a, b = b, a
    return self._wrap(shifted(op, a, b) if shifts else a.alu(op, b))


def rlshift(self: Tensor, other: Operand) -> Tensor:
    """other << self."""
    return _bitwise(self, BinaryOps.SHL, other, "<<", swap=True)


def rrshift(self: Tensor, other: Operand) -> Tensor:
    """other >> self."""
    return _bitwise(self, BinaryOps.SHR, other, ">>", swap=True)


@method
def bitwise_and(self: Tensor, other: Operand) -> Tensor:
    """self & other, of integers or bools.

    Raises `ShapeError` if the shapes do not broadcast, `DTypeError` for floats.

    >>> from ferrule import Tensor
    >>> Tensor([6, 7]).bitwise_and(3).tolist()
    [2, 3]
    """
    return _bitwise(self, BinaryOps.AND, other, "&")


@method
def bitwise_or(self: Tensor, other: Operand) -> Tensor:
    """self | other, of integers or bools.

    Raises `ShapeError` if the shapes do not broadcast, `DTypeError` for floats.

    >>> from ferrule import Tensor
    >>> Tensor([4, 7]).bitwise_or(3).tolist()
    [7, 7]
    """
    return _bitwise(self, BinaryOps.OR, other, "|")


@method
def bitwise_xor(self: Tensor, other: Operand) -> Tensor:
    """self ^ other, of integers or bools.

    Raises `ShapeError` if the shapes do not broadcast, `DTypeError` for floats.

    >>> from ferrule import Tensor
    >>> Tensor([4, 7]).bitwise_xor(3).tolist()
    [7, 4]
    """
    return _bitwise(self, BinaryOps.XOR, other, "^")


@method
def bitwise_not(self: Tensor) -> Tensor:
    """~self, of integers or bools.

    >>> from ferrule import Tensor
    >>> Tensor([0, 7]).bitwise_not().tolist()
    [-1, -8]
    """
    value = self._read()
    if dtypes.is_float(value.dtype):
        raise DTypeError(f"[~] is defined for integers and bools, not {value.dtype}")
    return self._wrap(complement(value))


@method
def bitwise_left_shift(self: Tensor, other: Operand) -> Tensor:
    """self << other, of integers. Bits beyond the width are lost, whatever the count.

    Raises `ShapeError` if the shapes do not broadcast, `DTypeError` for floats.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).bitwise_left_shift(Tensor([3, 40])).tolist()
    [8, 0]
    """
    return _bitwise(self, BinaryOps.SHL, other, "<<")


@method
def bitwise_right_shift(self: Tensor, other: Operand) -> Tensor:
    """self >> other, of integers. The sign stays, whatever the count.

    Raises `ShapeError` if the shapes do not broadcast, `DTypeError` for floats.

    >>> from ferrule import Tensor
    >>> Tensor([16, -2]).bitwise_right_shift(Tensor([3, 40])).tolist()
    [2, -1]
    """
    return _bitwise(self, BinaryOps.SHR, other, ">>")


@method
def logical_not(self: Tensor) -> Tensor:
    """True where an element is 0, as a bool tensor.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).logical_not().tolist()
    [True, False]
    """
    return self._wrap(self._read().equals(0))


@method
def logical_and(self: Tensor, other: Operand) -> Tensor:
    """True where neither element is 0, as a bool tensor.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).logical_and(1).tolist()
    [False, True]
    """
    a, b = operands(self, other, "logical_and")
    return self._wrap(a.cast(dtypes.bool).alu(BinaryOps.AND, b.cast(dtypes.bool)))


@method
def logical_or(self: Tensor, other: Operand) -> Tensor:
    """True where at least one of two elements is not 0, as a bool tensor.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).logical_or(0).tolist()
    [False, True]
    """
    a, b = operands(self, other, "logical_or")
    return self._wrap(a.cast(dtypes.bool).alu(BinaryOps.OR, b.cast(dtypes.bool)))


@method
def logical_xor(self: Tensor, other: Operand) -> Tensor:
    """True where exactly one of two elements is not 0, as a bool tensor.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).logical_xor(1).tolist()
    [True, False]
    """
    a, b = operands(self, other, "logical_xor")
    return self._wrap(a.cast(dtypes.bool).alu(BinaryOps.XOR, b.cast(dtypes.bool)))


@method
def isnan(self: Tensor) -> Tensor:
    """True where an element is NaN, as a bool tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan")]).isnan().tolist()
    [False, True]
    """
    value = self._read()
    return self._wrap(value.differs(value))


@method
def isinf(self: Tensor) -> Tensor:
    """True where an element is infinite, as a bool tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("-inf")]).isinf().tolist()
    [False, True]
    """
    return self._wrap(float_value(self).absolute().equals(math.inf))


@method
def isfinite(self: Tensor) -> Tensor:
    """True where an element is neither infinite nor NaN, as a bool tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan")]).isfinite().tolist()
    [True, False]
    """
    return self._wrap(float_value(self).absolute() < math.inf)


# -- choice --------------------------------------------------------------------------------------


def choose(self: Tensor, input: Operand, other: Operand) -> Tensor:
    """`input` where this condition holds, `other` elsewhere."""
    condition = self._read()
    if condition.dtype is not dtypes.bool:
        if isinstance(input, Tensor) and input.dtype is dtypes.bool:
            raise DTypeError(
                f"[where] the condition comes first: write condition.where(x, y), and not "
                f"x.where(condition, y) with an x of {condition.dtype}"
            )
        condition = condition.differs(0)
    yes, no = _branches(self, input, other)
    check_devices(condition, yes, "where")
    shape = broadcast_shape((condition.shape, yes.shape, no.shape), "where")
    condition, yes, no = (expanded(value, shape) for value in (condition, yes, no))
    return self._wrap(condition.where(yes, no))


def _branches(self: Tensor, yes: Operand, no: Operand) -> tuple[TracedValue, TracedValue]:
    """The two branches in one dtype."""
    yes = yes.item() if isinstance(yes, np.generic) else yes
    no = no.item() if isinstance(no, np.generic) else no
    if isinstance(yes, Tensor):
        return _unbroadcast(yes, no)
    if isinstance(no, Tensor):
        b, a = _unbroadcast(no, yes)
        return a, b
    device = self.device
    if isinstance(yes, WEAK) and isinstance(no, WEAK):
        dtype = weak_dtype(scalar_dtype(yes), no)
        return from_host(yes, dtype, device), from_host(no, dtype, device)
    first = self._wrap(from_host(no if isinstance(yes, WEAK) else yes, None, device))
    return _branches(self, yes, first) if isinstance(yes, WEAK) else _branches(self, first, no)


def _unbroadcast(self: Tensor, other: Operand) -> tuple[TracedValue, TracedValue]:
    """This tensor and another operand in one dtype, each with its own shape."""
    a = self._read()
    if isinstance(other, WEAK):
        dtype = weak_dtype(a.dtype, other)
        return a.cast(dtype), TracedValue(constant(other, dtype, (), a.node.device))
    b = other._read() if isinstance(other, Tensor) else from_host(other, None, self.device)
    check_devices(a, b, "where")
    dtype = promote(a.dtype, b.dtype)
    return a.cast(dtype), b.cast(dtype)


@method
def masked_fill(self: Tensor, mask: Operand, value: Operand) -> Tensor:
    """`value` where the mask holds, this tensor elsewhere; the dtype stays.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 0).tolist()
    [0, 2, 0]
    """
    condition = mask if isinstance(mask, Tensor) else self._wrap(from_host(mask, None, self.device))
    broadcast_shape((condition._shape, self._shape), "masked_fill")
    # A fraction must not make floats of large integers on the way.
    new = (
        value._read().cast(self.dtype)
        if isinstance(value, Tensor)
        else from_host(value, self.dtype, self.device)
    )
    return self._wrap(condition.where(self._wrap(new), self)._read())


@method
def lerp(self: Tensor, end: Operand, weight: Operand) -> Tensor:
    """self + (end - self) * weight.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 10.0]).lerp(Tensor([10.0, 20.0]), 0.5).tolist()
    [5.0, 15.0]
    """
    start, stop = (self._wrap(part) for part in operands(self, end, "lerp"))
    return start + (stop - start) * weight
