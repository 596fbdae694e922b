"""Comparison, choice, and operations on bits and truth values."""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from ferrule.dtype import DTypeError, dtypes, promote
from ferrule.gradient import Value
from ferrule.ops import BinaryOps, UnaryOps
from ferrule.tensor.arithmetic import WEAK, Arithmetic, Operand, weak_dtype
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import broadcast_shape, check_devices, expanded
from ferrule.tensor.data import constant, from_host, scalar_dtype


def less_or_equal(a: Value, b: Value) -> Value:
    """a <= b; false for NaN."""
    if dtypes.is_float(a.dtype):
        return (a < b).alu(BinaryOps.OR, a.equals(b))
    return (b < a).alu(UnaryOps.NEG)


def minimum(a: Value, b: Value) -> Value:
    """The smaller of two; NaN if either is. The complement reverses the order of integers."""
    if dtypes.is_float(a.dtype):
        return -(-a).maximum(-b)
    return complement(complement(a).maximum(complement(b)))


def shifted(op: BinaryOps, value: Value, count: Value) -> Value:
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


def complement(value: Value) -> Value:
    """All bits inverted; a bool is negated."""
    if value.dtype is dtypes.bool:
        return value.alu(UnaryOps.NEG)
    ones = dtypes.max(value.dtype) if dtypes.is_unsigned(value.dtype) else -1
    return value.alu(BinaryOps.XOR, value.full(ones))


class Elementwise(Arithmetic):
    """Comparisons, bits, truth values, choices."""

    __slots__ = ()

    # -- comparison ------------------------------------------------------------------------------

    def __lt__(self, other: Operand) -> Self:
        return self._binary(BinaryOps.CMPLT, other, "<")

    def __gt__(self, other: Operand) -> Self:
        return self._reflected(BinaryOps.CMPLT, other, ">")

    def __le__(self, other: Operand) -> Self:
        return self._wrap(less_or_equal(*self._operands(other, "<=")))

    def __ge__(self, other: Operand) -> Self:
        b, a = self._operands(other, ">=")
        return self._wrap(less_or_equal(a, b))

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        if other is None:  # as `x in (None, …)` asks
            return NotImplemented
        a, b = self._operands(other, "==")
        return self._wrap(a.equals(b))

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        if other is None:
            return NotImplemented
        return self._binary(BinaryOps.CMPNE, other, "!=")

    __hash__ = TensorBase.__hash__

    def eq(self, other: Operand) -> Self:
        """self == other, which is false for NaN.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        return self == other

    def ne(self, other: Operand) -> Self:
        """self != other, which is true for NaN.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        return self._binary(BinaryOps.CMPNE, other, "ne")

    def lt(self, other: Operand) -> Self:
        """self < other.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        return self < other

    def le(self, other: Operand) -> Self:
        """self <= other.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2, 3]).le(2).tolist()
        [True, True, False]
        """
        return self <= other

    def gt(self, other: Operand) -> Self:
        """self > other.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2, 3]).gt(2).tolist()
        [False, False, True]
        """
        return self > other

    def ge(self, other: Operand) -> Self:
        """self >= other.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        return self >= other

    not_equal = ne
    less, less_equal, greater, greater_equal = lt, le, gt, ge

    def maximum(self, other: Operand) -> Self:
        """The larger of two elements; NaN if either is. Of equal ones each gets half the gradient.

        >>> from ferrule import Tensor
        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._binary(BinaryOps.MAX, other, "maximum")

    def minimum(self, other: Operand) -> Self:
        """The smaller of two elements; NaN if either is. Of equal ones each gets half the gradient.

        >>> from ferrule import Tensor
        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._wrap(minimum(*self._operands(other, "minimum")))

    def clamp(self, min: Operand | None = None, max: Operand | None = None) -> Self:
        """Each element, but no less than `min` and no more than `max`. NaN stays.

        >>> from ferrule import Tensor
        >>> Tensor([-2, 0, 7]).clamp(-1, 5).tolist()
        [-1, 0, 5]
        """
        if min is None and max is None:
            raise ValueError("[clamp] neither min nor max is given; pass at least one")
        result = self
        if min is not None:
            a, low = result._operands(min, "clamp")
            result = self._wrap((a < low).where(low, a))
        if max is not None:
            a, high = result._operands(max, "clamp")
            result = self._wrap((high < a).where(high, a))
        return result

    def clamp_min(self, min: Operand) -> Self:
        """Each element, but no less than `min`.

        >>> from ferrule import Tensor
        >>> Tensor([-2, 7]).clamp_min(0).tolist()
        [0, 7]
        """
        return self.clamp(min=min)

    def clamp_max(self, max: Operand) -> Self:
        """Each element, but no more than `max`.

        >>> from ferrule import Tensor
        >>> Tensor([-2, 7]).clamp_max(5).tolist()
        [-2, 5]
        """
        return self.clamp(max=max)

    def clip(self, min: Operand | None = None, max: Operand | None = None) -> Self:
        """The same as `clamp`.

        >>> from ferrule import Tensor
        >>> Tensor([-2, 0, 7]).clip(max=5).tolist()
        [-2, 0, 5]
        """
        return self.clamp(min, max)

    def isclose(
        self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Self:
        """Whether elements are equal but for `atol + rtol * abs(other)`.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 1.1]).isclose(Tensor([1.0, 1.0])).tolist()
        [True, False]
        """
        a, b = self._divisible(other, "isclose")
        near = less_or_equal((a - b).absolute(), b.absolute() * rtol + atol)
        near = near.alu(BinaryOps.AND, b.absolute() < math.inf)
        near = near.alu(BinaryOps.OR, a.equals(b))
        if equal_nan:
            near = near.alu(BinaryOps.OR, a.differs(a).alu(BinaryOps.AND, b.differs(b)))
        return self._wrap(near)

    # -- bits and truth --------------------------------------------------------------------------

    def _bitwise(self, op: BinaryOps, other: Operand, what: str, swap: bool = False) -> Self:
        a, b = self._operands(other, what)
        shifts = op is BinaryOps.SHL or op is BinaryOps.SHR
        if dtypes.is_float(a.dtype) or (shifts and a.dtype is dtypes.bool):
            kinds = "integers" if shifts else "integers and bools"
            raise DTypeError(f"[{what}] is defined for {kinds}, not {a.dtype}; cast it first")
        if swap:
            a, b = b, a
        return self._wrap(shifted(op, a, b) if shifts else a.alu(op, b))

    def __and__(self, other: Operand) -> Self:
        return self._bitwise(BinaryOps.AND, other, "&")

    def __or__(self, other: Operand) -> Self:
        return self._bitwise(BinaryOps.OR, other, "|")

    def __xor__(self, other: Operand) -> Self:
        return self._bitwise(BinaryOps.XOR, other, "^")

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    def __lshift__(self, other: Operand) -> Self:
        return self._bitwise(BinaryOps.SHL, other, "<<")

    def __rlshift__(self, other: Operand) -> Self:
        return self._bitwise(BinaryOps.SHL, other, "<<", swap=True)

    def __rshift__(self, other: Operand) -> Self:
        return self._bitwise(BinaryOps.SHR, other, ">>")

    def __rrshift__(self, other: Operand) -> Self:
        return self._bitwise(BinaryOps.SHR, other, ">>", swap=True)

    def bitwise_and(self, other: Operand) -> Self:
        """self & other, of integers or bools.

        >>> from ferrule import Tensor
        >>> Tensor([6, 7]).bitwise_and(3).tolist()
        [2, 3]
        """
        return self & other

    def bitwise_or(self, other: Operand) -> Self:
        """self | other, of integers or bools.

        >>> from ferrule import Tensor
        >>> Tensor([4, 7]).bitwise_or(3).tolist()
        [7, 7]
        """
        return self | other

    def bitwise_xor(self, other: Operand) -> Self:
        """self ^ other, of integers or bools.

        >>> from ferrule import Tensor
        >>> Tensor([4, 7]).bitwise_xor(3).tolist()
        [7, 4]
        """
        return self ^ other

    def bitwise_not(self) -> Self:
        """~self, of integers or bools.

        >>> from ferrule import Tensor
        >>> Tensor([0, 7]).bitwise_not().tolist()
        [-1, -8]
        """
        return ~self

    bitwise_invert = invert = bitwise_not

    def bitwise_left_shift(self, other: Operand) -> Self:
        """self << other, of integers. Bits beyond the width are lost, whatever the count.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).bitwise_left_shift(Tensor([3, 40])).tolist()
        [8, 0]
        """
        return self << other

    def bitwise_right_shift(self, other: Operand) -> Self:
        """self >> other, of integers. The sign stays, whatever the count.

        >>> from ferrule import Tensor
        >>> Tensor([16, -2]).bitwise_right_shift(Tensor([3, 40])).tolist()
        [2, -1]
        """
        return self >> other

    def __iand__(self, other: Operand) -> Self:
        return self._update(self & other, "&=")

    def __ior__(self, other: Operand) -> Self:
        return self._update(self | other, "|=")

    def __ixor__(self, other: Operand) -> Self:
        return self._update(self ^ other, "^=")

    def __ilshift__(self, other: Operand) -> Self:
        return self._update(self << other, "<<=")

    def __irshift__(self, other: Operand) -> Self:
        return self._update(self >> other, ">>=")

    def __invert__(self) -> Self:
        value = self._read()
        if dtypes.is_float(value.dtype):
            raise DTypeError(f"[~] is defined for integers and bools, not {value.dtype}")
        return self._wrap(complement(value))

    def logical_not(self) -> Self:
        """Whether each element is 0.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).logical_not().tolist()
        [True, False]
        """
        return self._wrap(self._read().equals(0))

    def logical_and(self, other: Operand) -> Self:
        """Whether both elements are other than 0.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).logical_and(1).tolist()
        [False, True]
        """
        a, b = self._operands(other, "logical_and")
        return self._wrap(a.cast(dtypes.bool).alu(BinaryOps.AND, b.cast(dtypes.bool)))

    def logical_or(self, other: Operand) -> Self:
        """Whether at least one of two elements is other than 0.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).logical_or(0).tolist()
        [False, True]
        """
        a, b = self._operands(other, "logical_or")
        return self._wrap(a.cast(dtypes.bool).alu(BinaryOps.OR, b.cast(dtypes.bool)))

    def logical_xor(self, other: Operand) -> Self:
        """Whether just one of two elements is other than 0.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).logical_xor(1).tolist()
        [True, False]
        """
        a, b = self._operands(other, "logical_xor")
        return self._wrap(a.cast(dtypes.bool).alu(BinaryOps.XOR, b.cast(dtypes.bool)))

    def isnan(self) -> Self:
        """Whether each element is NaN.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        value = self._read()
        return self._wrap(value.differs(value))

    def isinf(self) -> Self:
        """Whether each element is infinite.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, float("-inf")]).isinf().tolist()
        [False, True]
        """
        return self._wrap(self._float().absolute().equals(math.inf))

    def isfinite(self) -> Self:
        """Whether each element is neither infinite nor NaN.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, float("nan")]).isfinite().tolist()
        [True, False]
        """
        return self._wrap(self._float().absolute() < math.inf)

    # -- choice ----------------------------------------------------------------------------------

    def where(self, input: Operand, other: Operand) -> Self:
        """`input` where this condition holds, `other` elsewhere.

        Raises `DTypeError` where only `input` is a condition, as in PyTorch's x.where(x > 0, y).

        >>> from ferrule import Tensor
        >>> x = Tensor([-1.0, 2.0])
        >>> (x > 0).where(x, 0).tolist()
        [0.0, 2.0]
        """
        condition = self._read()
        if condition.dtype is not dtypes.bool:
            if isinstance(input, TensorBase) and input.dtype is dtypes.bool:
                raise DTypeError(
                    f"[where] the condition comes first: write condition.where(x, y), and not "
                    f"x.where(condition, y) with an x of {condition.dtype}"
                )
            condition = condition.differs(0)
        yes, no = self._branches(input, other)
        check_devices(condition, yes, "where")
        shape = broadcast_shape((condition.shape, yes.shape, no.shape), "where")
        condition, yes, no = (expanded(value, shape) for value in (condition, yes, no))
        return self._wrap(condition.where(yes, no))

    def _branches(self, yes: Operand, no: Operand) -> tuple[Value, Value]:
        """The two branches in one dtype."""
        yes = yes.item() if isinstance(yes, np.generic) else yes
        no = no.item() if isinstance(no, np.generic) else no
        if isinstance(yes, Elementwise):
            return yes._unbroadcast(no)
        if isinstance(no, Elementwise):
            b, a = no._unbroadcast(yes)
            return a, b
        device = self.device
        if isinstance(yes, WEAK) and isinstance(no, WEAK):
            dtype = weak_dtype(scalar_dtype(yes), no)
            return from_host(yes, dtype, device), from_host(no, dtype, device)
        first = self._wrap(from_host(no if isinstance(yes, WEAK) else yes, None, device))
        return self._branches(yes, first) if isinstance(yes, WEAK) else self._branches(first, no)

    def _unbroadcast(self, other: Operand) -> tuple[Value, Value]:
        """This tensor and another operand in one dtype, each with its own shape."""
        a = self._read()
        if isinstance(other, WEAK):
            dtype = weak_dtype(a.dtype, other)
            return a.cast(dtype), Value(constant(other, dtype, (), a.node.device))
        b = other._read() if isinstance(other, TensorBase) else from_host(other, None, self.device)
        check_devices(a, b, "where")
        dtype = promote(a.dtype, b.dtype)
        return a.cast(dtype), b.cast(dtype)

    def masked_fill(self, mask: Operand, value: Operand) -> Self:
        """`value` where the mask holds, this tensor elsewhere; the dtype stays.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 0).tolist()
        [0, 2, 0]
        """
        condition = (
            mask
            if isinstance(mask, Elementwise)
            else self._wrap(from_host(mask, None, self.device))
        )
        broadcast_shape((condition._shape, self._shape), "masked_fill")
        # A fraction must not make floats of large integers on the way.
        new = (
            value._read().cast(self.dtype)
            if isinstance(value, TensorBase)
            else from_host(value, self.dtype, self.device)
        )
        return self._wrap(condition.where(self._wrap(new), self)._read())

    def lerp(self, end: Operand, weight: Operand) -> Self:
        """self + (end - self) * weight.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 10.0]).lerp(Tensor([10.0, 20.0]), 0.5).tolist()
        [5.0, 15.0]
        """
        start, stop = (self._wrap(part) for part in self._operands(end, "lerp"))
        return start + (stop - start) * weight
