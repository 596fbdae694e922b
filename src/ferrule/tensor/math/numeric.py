"""Parts of numbers, remainders, signs, and operations on three tensors."""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeVar

from ferrule.autograd import Number
from ferrule.ir.dtype import DTypeError, dtypes, largest_finite
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method
from ferrule.tensor.math import pairs, special
from ferrule.tensor.math.arithmetic import Operand, divisible, float_value, operands, times
from ferrule.tensor.math.elementwise import smaller
from ferrule.tensor.math.scientific import pair

T = TypeVar("T")


class Parts(NamedTuple, Generic[T]):
    """The parts of a float: mantissa * 2**exponent."""

    mantissa: T
    exponent: T


# -- other names of operators --------------------------------------------------------------------


@method
def positive(self: Tensor) -> Tensor:
    """The tensor itself; not defined for bool.

    >>> from ferrule import Tensor
    >>> Tensor([-1]).positive().tolist()
    [-1]
    """
    if self.dtype is dtypes.bool:
        raise DTypeError("[positive] is not defined for bool; cast it first")
    return +self


@method
def true_divide(self: Tensor, other: Operand) -> Tensor:
    """self / other, as floats.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).true_divide(2).tolist()
    [0.5, 1.0]
    """
    return self / other


@method
def frexp(self: Tensor) -> Parts[Tensor]:
    """A mantissa from 1/2 to below 1, with the sign, and an exponent of 2 (int32), exactly.

    0, infinities and NaN have the exponent 0.

    >>> from ferrule import Tensor
    >>> mantissa, exponent = Tensor([6.0, 0.0]).frexp()
    >>> mantissa.tolist(), exponent.tolist()
    ([0.75, 0.0], [3, 0])
    """
    value = float_value(self)
    exponent = pairs.exponent_of(value)
    mantissa = self._wrap(value).ldexp(self._wrap(-exponent))
    return Parts(mantissa, self._wrap(exponent))


@method
def floor_divide(self: Tensor, other: Operand) -> Tensor:
    """self // other: the quotient rounded down. Integers by 0 give 0.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([7, -7]).floor_divide(2).tolist()
    [3, -4]
    """
    return self // other


@method
def remainder(self: Tensor, other: Operand) -> Tensor:
    """self % other: the remainder with the sign of the divisor. Integers by 0 give 0.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([7, -7]).remainder(3).tolist()
    [1, 2]
    """
    return self % other


@method
def fmod(self: Tensor, other: Operand) -> Tensor:
    """The remainder with the sign of this tensor, as C's. Integers by 0 give 0, floats NaN.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([7, -7]).fmod(3).tolist()
    [1, -1]
    """
    a, b = operands(self, other, "fmod")
    if a.dtype is dtypes.bool:
        raise DTypeError("[fmod] is not defined for bool; cast them")
    rest = a.alu(BinaryOps.MOD, b)
    if dtypes.is_float(a.dtype):
        return self._wrap(rest)
    return self._wrap(b.equals(0).where(rest.full(0), rest))


@method
def rsub(self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """other - alpha * self.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).rsub(10).tolist()
    [9, 8]
    """
    return other - self._wrap(times(self, alpha)._read())


# -- parts of numbers ----------------------------------------------------------------------------


@method
def frac(self: Tensor) -> Tensor:
    """The part after the point, with the sign of the element; its gradient is 1.

    >>> from ferrule import Tensor
    >>> Tensor([1.5, -1.5]).frac().tolist()
    [0.5, -0.5]
    """
    value = self._read()
    if not dtypes.is_float(value.dtype):
        return self._wrap(value.full(0))
    return self._wrap(value - value.detach().alu(UnaryOps.TRUNC))


@method
def signbit(self: Tensor) -> Tensor:
    """True where an element has a minus sign, as a bool tensor; -0.0 has one.

    >>> from ferrule import Tensor
    >>> Tensor([-0.0, 0.0, -3.0]).signbit().tolist()
    [True, False, True]
    """
    value = self._read()
    if dtypes.is_float(value.dtype):
        return self._wrap(special.sign_bits(value).differs(0))
    if value.dtype is dtypes.bool:
        return self._wrap(value.full(False))
    return self._wrap(value < 0)


@method
def angle(self: Tensor) -> Tensor:
    """The angle of each number as a complex one: pi where it is negative, else 0; NaN stays.

    >>> from ferrule import Tensor
    >>> Tensor([-2.0, 3.0]).angle().tolist()
    [3.1415927410125732, 0.0]
    """
    x = float_value(self).detach()
    angle = (x < 0).where(x.full(math.pi), 0)
    return self._wrap(x.equals(x).where(angle, x))


@method
def copysign(self: Tensor, other: Operand) -> Tensor:
    """The size of each element, with the sign of `other`'s. The gradient at 0 is 0.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, -2.0]).copysign(-0.0).tolist()
    [-1.0, -2.0]
    """
    return pair(self, pairs.copysign, other, "copysign")


@method
def nextafter(self: Tensor, other: Operand) -> Tensor:
    """The float next to each element on the way to `other`; `other` where they are equal.

    Zero is next to the smallest subnormal numbers. The gradient is 1 where this moves.
    Raises `DTypeError` for float8.

    >>> from ferrule import Tensor
    >>> (Tensor([1.0]).nextafter(2) - 1).item() == 2.0**-23
    True
    """
    a, b = divisible(self, other, "nextafter")
    if a.dtype.itemsize == 1:
        raise DTypeError(f"[nextafter] is not defined for {a.dtype}; cast it to float16")
    return self._wrap(pairs.nextafter(a, b))


@method
def heaviside(self: Tensor, values: Operand) -> Tensor:
    """0 for negative elements, 1 for positive ones, `values` at 0.

    >>> from ferrule import Tensor
    >>> Tensor([-2.0, 0.0, 3.0]).heaviside(0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    x, at_zero = operands(self, values, "heaviside")
    x = x.detach()
    step = (x > 0).cast(x.dtype)
    step = x.equals(x).where(step, x)
    return self._wrap(x.equals(0).where(at_zero, step))


# -- infinities and NaN --------------------------------------------------------------------------


@method
def isposinf(self: Tensor) -> Tensor:
    """True where an element is positive infinity, as a bool tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("-inf"), float("inf")]).isposinf().tolist()
    [False, False, True]
    """
    return self._wrap(float_value(self).equals(math.inf))


@method
def isneginf(self: Tensor) -> Tensor:
    """True where an element is negative infinity, as a bool tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("-inf"), float("inf")]).isneginf().tolist()
    [False, True, False]
    """
    return self._wrap(float_value(self).equals(-math.inf))


@method
def isreal(self: Tensor) -> Tensor:
    """True: no dtype is complex.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).isreal().tolist()
    [True]
    """
    value = self._read()
    return self._wrap(value.equals(value).alu(BinaryOps.OR, value.differs(value)))


@method
def nan_to_num(
    self: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced by numbers: infinities by the largest that the dtype has.

    >>> from ferrule import Tensor
    >>> Tensor([float("nan"), 1.0, float("inf")]).nan_to_num(posinf=9.0).tolist()
    [0.0, 1.0, 9.0]
    """
    value = self._read()
    if not dtypes.is_float(value.dtype):
        return self.clone()
    largest = largest_finite(value.dtype)
    above = value.full(largest if posinf is None else posinf)
    below = value.full(-largest if neginf is None else neginf)
    finite = value.equals(math.inf).where(above, value)
    finite = value.equals(-math.inf).where(below, finite)
    return self._wrap(value.differs(value).where(value.full(nan), finite))


@method
def fmax(self: Tensor, other: Operand) -> Tensor:
    """The larger of two elements; of a number and NaN the number.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan")]).fmax(0.5).tolist()
    [1.0, 0.5]
    """
    a, b = operands(self, other, "fmax")
    larger = b.differs(b).where(a, a.maximum(b))
    return self._wrap(a.differs(a).where(b, larger))


@method
def fmin(self: Tensor, other: Operand) -> Tensor:
    """The smaller of two elements; of a number and NaN the number.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan")]).fmin(0.5).tolist()
    [0.5, 0.5]
    """
    a, b = operands(self, other, "fmin")
    least = b.differs(b).where(a, smaller(a, b))
    return self._wrap(a.differs(a).where(b, least))


# -- of three ------------------------------------------------------------------------------------


@method
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Operand, value: Number = 1) -> Tensor:
    """self + value * tensor1 * tensor2.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), value=0.5).tolist()
    [4.0]
    """
    return self.add(tensor1 * tensor2, value)


@method
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Operand, value: Number = 1) -> Tensor:
    """self + value * tensor1 / tensor2.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).addcdiv(Tensor([3.0]), Tensor([2.0]), value=2).tolist()
    [4.0]
    """
    return self.add(tensor1 / tensor2, value)
