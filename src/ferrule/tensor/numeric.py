"""Parts of numbers, remainders, signs, and operations on three tensors."""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, Self, TypeVar

from ferrule.dtype import DTypeError, dtypes, largest_finite
from ferrule.gradient import Number
from ferrule.ops import BinaryOps, UnaryOps
from ferrule.tensor import pairs, special
from ferrule.tensor.arithmetic import Operand
from ferrule.tensor.elementwise import minimum
from ferrule.tensor.probability import Probability

T = TypeVar("T")


class Parts(NamedTuple, Generic[T]):
    """What a float is made of."""

    mantissa: T
    exponent: T


class Numeric(Probability):
    """Parts of numbers, remainders, signs, products with sums."""

    __slots__ = ()

    # -- other names of operators ----------------------------------------------------------------

    def positive(self) -> Self:
        """The tensor itself; not defined for bool.

        >>> from ferrule import Tensor
        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        if self.dtype is dtypes.bool:
            raise DTypeError("[positive] is not defined for bool; cast it first")
        return +self

    def true_divide(self, other: Operand) -> Self:
        """self / other, as floats.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).true_divide(2).tolist()
        [0.5, 1.0]
        """
        return self / other

    divide = Probability.div

    def frexp(self) -> Parts[Self]:
        """A mantissa from 1/2 to below 1, with the sign, and an exponent of 2 (int32), exactly.

        0, infinities and NaN have the exponent 0.

        >>> from ferrule import Tensor
        >>> mantissa, exponent = Tensor([6.0, 0.0]).frexp()
        >>> mantissa.tolist(), exponent.tolist()
        ([0.75, 0.0], [3, 0])
        """
        value = self._float()
        exponent = pairs.exponent_of(value)
        mantissa = self._wrap(value).ldexp(self._wrap(-exponent))
        return Parts(mantissa, self._wrap(exponent))

    def floor_divide(self, other: Operand) -> Self:
        """self // other: the quotient rounded down. Integers by 0 give 0.

        >>> from ferrule import Tensor
        >>> Tensor([7, -7]).floor_divide(2).tolist()
        [3, -4]
        """
        return self // other

    def remainder(self, other: Operand) -> Self:
        """self % other: the remainder with the sign of the divisor. Integers by 0 give 0.

        >>> from ferrule import Tensor
        >>> Tensor([7, -7]).remainder(3).tolist()
        [1, 2]
        """
        return self % other

    def fmod(self, other: Operand) -> Self:
        """The remainder with the sign of this tensor, as C's. Integers by 0 give 0, floats NaN.

        >>> from ferrule import Tensor
        >>> Tensor([7, -7]).fmod(3).tolist()
        [1, -1]
        """
        a, b = self._operands(other, "fmod")
        if a.dtype is dtypes.bool:
            raise DTypeError("[fmod] is not defined for bool; cast them")
        rest = a.alu(BinaryOps.MOD, b)
        if dtypes.is_float(a.dtype):
            return self._wrap(rest)
        return self._wrap(b.equals(0).where(rest.full(0), rest))

    def rsub(self, other: Operand, alpha: Number = 1) -> Self:
        """other - alpha * self.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).rsub(10).tolist()
        [9, 8]
        """
        return other - self._wrap(self._times(self, alpha)._read())

    multiply, subtract, negative, absolute = (
        Probability.mul,
        Probability.sub,
        Probability.neg,
        Probability.abs,
    )
    power = Probability.pow

    # -- parts of numbers ------------------------------------------------------------------------

    def frac(self) -> Self:
        """The part after the point, with the sign of the element; its gradient is 1.

        >>> from ferrule import Tensor
        >>> Tensor([1.5, -1.5]).frac().tolist()
        [0.5, -0.5]
        """
        value = self._read()
        if not dtypes.is_float(value.dtype):
            return self._wrap(value.full(0))
        return self._wrap(value - value.detach().alu(UnaryOps.TRUNC))

    def fix(self) -> Self:
        """The same as `trunc`.

        >>> from ferrule import Tensor
        >>> Tensor([1.5, -1.5]).fix().tolist()
        [1.0, -1.0]
        """
        return self.trunc()

    def sgn(self) -> Self:
        """The same as `sign`.

        >>> from ferrule import Tensor
        >>> Tensor([-2.5, 0.0]).sgn().tolist()
        [-1.0, 0.0]
        """
        return self.sign()

    def signbit(self) -> Self:
        """Whether each element has a minus sign; -0.0 has one.

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

    def angle(self) -> Self:
        """The angle of each number as a complex one: pi where it is negative, else 0; NaN stays.

        >>> from ferrule import Tensor
        >>> Tensor([-2.0, 3.0]).angle().tolist()
        [3.1415927410125732, 0.0]
        """
        x = self._float().detach()
        angle = (x < 0).where(x.full(math.pi), 0)
        return self._wrap(x.equals(x).where(angle, x))

    def copysign(self, other: Operand) -> Self:
        """The size of each element, with the sign of `other`'s. The gradient at 0 is 0.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, -2.0]).copysign(-0.0).tolist()
        [-1.0, -2.0]
        """
        return self._pair(pairs.copysign, other, "copysign")

    def nextafter(self, other: Operand) -> Self:
        """The float next to each element on the way to `other`; `other` where they are equal.

        Zero is next to the smallest subnormal numbers. The gradient is 1 where this moves.
        Raises `DTypeError` for float8.

        >>> from ferrule import Tensor
        >>> (Tensor([1.0]).nextafter(2) - 1).item() == 2.0**-23
        True
        """
        a, b = self._divisible(other, "nextafter")
        if a.dtype.itemsize == 1:
            raise DTypeError(f"[nextafter] is not defined for {a.dtype}; cast it to float16")
        return self._wrap(pairs.nextafter(a, b))

    def heaviside(self, values: Operand) -> Self:
        """0 for negative elements, 1 for positive ones, `values` at 0.

        >>> from ferrule import Tensor
        >>> Tensor([-2.0, 0.0, 3.0]).heaviside(0.5).tolist()
        [0.0, 0.5, 1.0]
        """
        x, at_zero = self._operands(values, "heaviside")
        x = x.detach()
        step = (x > 0).cast(x.dtype)
        step = x.equals(x).where(step, x)
        return self._wrap(x.equals(0).where(at_zero, step))

    # -- infinities and NaN ----------------------------------------------------------------------

    def isposinf(self) -> Self:
        """Whether each element is positive infinity.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, float("-inf"), float("inf")]).isposinf().tolist()
        [False, False, True]
        """
        return self._wrap(self._float().equals(math.inf))

    def isneginf(self) -> Self:
        """Whether each element is negative infinity.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, float("-inf"), float("inf")]).isneginf().tolist()
        [False, True, False]
        """
        return self._wrap(self._float().equals(-math.inf))

    def isreal(self) -> Self:
        """True: no dtype is complex.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).isreal().tolist()
        [True]
        """
        value = self._read()
        return self._wrap(value.equals(value).alu(BinaryOps.OR, value.differs(value)))

    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Self:
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

    def fmax(self, other: Operand) -> Self:
        """The larger of two elements; of a number and NaN the number.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, float("nan")]).fmax(0.5).tolist()
        [1.0, 0.5]
        """
        a, b = self._operands(other, "fmax")
        larger = b.differs(b).where(a, a.maximum(b))
        return self._wrap(a.differs(a).where(b, larger))

    def fmin(self, other: Operand) -> Self:
        """The smaller of two elements; of a number and NaN the number.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, float("nan")]).fmin(0.5).tolist()
        [0.5, 0.5]
        """
        a, b = self._operands(other, "fmin")
        smaller = b.differs(b).where(a, minimum(a, b))
        return self._wrap(a.differs(a).where(b, smaller))

    # -- of three --------------------------------------------------------------------------------

    def addcmul(self, tensor1: Self, tensor2: Operand, value: Number = 1) -> Self:
        """self + value * tensor1 * tensor2.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), value=0.5).tolist()
        [4.0]
        """
        return self.add(tensor1 * tensor2, value)

    def addcdiv(self, tensor1: Self, tensor2: Operand, value: Number = 1) -> Self:
        """self + value * tensor1 / tensor2.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).addcdiv(Tensor([3.0]), Tensor([2.0]), value=2).tolist()
        [4.0]
        """
        return self.add(tensor1 / tensor2, value)
