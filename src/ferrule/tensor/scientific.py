"""Functions of real numbers beyond the elementary ones: inverses, the error function, gamma.

Integers and bools are computed as the default float.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from ferrule.dtype import DTypeError, dtypes
from ferrule.gradient import Value
from ferrule.tensor import errorfunction, gamma, inverse, pairs, power
from ferrule.tensor.arithmetic import Operand
from ferrule.tensor.functions import Functions


class Scientific(Functions):
    """Inverse trigonometric and hyperbolic functions, erf's relatives, gamma's logarithm."""

    __slots__ = ()

    def _pair(self, function: Callable[[Value, Value], Value], other: Operand, what: str) -> Self:
        """A function of this tensor and another, both as floats of one dtype and shape."""
        return self._wrap(function(*self._divisible(other, what)))

    def cbrt(self) -> Self:
        """The cube root, also of negative elements.

        Error: at most 0.51 ulp in float32, 1 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([-8.0, 27.0]).cbrt().tolist()
        [-2.0, 3.0]
        """
        return self._apply(power.cbrt)

    # -- angles ----------------------------------------------------------------------------------

    def asin(self) -> Self:
        """The arc in [-pi/2, pi/2] with this sine; NaN outside [-1, 1].

        Error: at most 1.6 ulp in float32, 1.6 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).asin().tolist()
        [0.0, nan]
        """
        return self._apply(inverse.asin)

    def acos(self) -> Self:
        """The arc in [0, pi] with this cosine; NaN outside [-1, 1].

        Error: at most 1.2 ulp in float32, 1.2 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).acos().tolist()
        [0.0, nan]
        """
        return self._apply(inverse.acos)

    def atan(self) -> Self:
        """The angle in [-pi/2, pi/2] with this tangent.

        Error: at most 1.9 ulp in float32, 1.6 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).atan().tolist()
        [0.0]
        """
        return self._apply(inverse.atan)

    def atan2(self, other: Operand) -> Self:
        """The angle of the point (x, y) with y this tensor and x `other`, in [-pi, pi].

        Zeros have signs: atan2(-0.0, -1.0) is -pi.
        Error: at most 2 ulp in float32, 2 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 0.0]).atan2(Tensor([1.0, -1.0])).tolist()
        [0.0, 3.1415927410125732]
        """
        return self._pair(inverse.atan2, other, "atan2")

    def deg2rad(self) -> Self:
        """Degrees as radians.

        >>> from ferrule import Tensor
        >>> Tensor([180.0]).deg2rad().tolist()
        [3.1415927410125732]
        """
        return self._wrap(self._float() * (math.pi / 180))

    def rad2deg(self) -> Self:
        """Radians as degrees.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).rad2deg().tolist()
        [0.0]
        """
        return self._wrap(self._float() * (180 / math.pi))

    def sinc(self) -> Self:
        """sin(pi * self) / (pi * self), and 1 at 0.

        Error: at most 0.51 ulp in float32, 2.5 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).sinc().tolist()
        [1.0]
        """
        return self._apply(gamma.sinc)

    def asinh(self) -> Self:
        """The inverse of `sinh`.

        Error: at most 0.51 ulp in float32, 2 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).asinh().tolist()
        [0.0]
        """
        return self._apply(inverse.asinh)

    def acosh(self) -> Self:
        """The inverse of `cosh`; NaN below 1.

        Error: at most 0.51 ulp in float32, 2.5 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 0.0]).acosh().tolist()
        [0.0, nan]
        """
        return self._apply(inverse.acosh)

    def atanh(self) -> Self:
        """The inverse of `tanh`: infinite at -1 and 1, NaN outside.

        Error: at most 0.51 ulp in float32, 2.1 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 1.0, 2.0]).atanh().tolist()
        [0.0, inf, nan]
        """
        return self._apply(inverse.atanh)

    arcsin, arccos, arctan, arctan2 = asin, acos, atan, atan2
    arcsinh, arccosh, arctanh = asinh, acosh, atanh
    radians, degrees = deg2rad, rad2deg

    # -- probability -----------------------------------------------------------------------------

    def erfc(self) -> Self:
        """1 - erf(self), exact where it is small.

        Error: at most 0.51 ulp in float32, 4.2 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).erfc().tolist()
        [1.0]
        """
        return self._apply(errorfunction.erfc)

    def erfinv(self) -> Self:
        """The inverse of `erf`: infinite at -1 and 1, NaN outside.

        Error: at most 0.51 ulp in float32, 3.5 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 1.0]).erfinv().tolist()
        [0.0, inf]
        """
        return self._apply(errorfunction.erfinv)

    def logit(self, eps: float | None = None) -> Self:
        """log(self / (1 - self)), the inverse of `sigmoid`; first clamped to [eps, 1 - eps].

        Error: at most 0.51 ulp in float32, 2.2 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.5, 1.0]).logit().tolist()
        [0.0, inf]
        """
        x = self if eps is None else self._as_float().clamp(eps, 1 - eps)
        return x._apply(errorfunction.logit)

    def ndtr(self) -> Self:
        """The normal distribution's probability of less than each element, exact in both tails.

        Error: at most 0.51 ulp in float32, 4.5 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).ndtr().tolist()
        [0.5]
        """
        return self._apply(errorfunction.ndtr)

    def entr(self) -> Self:
        """-self * log(self): 0 at 0, -inf for negative elements.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 1.0, -1.0]).entr().abs().tolist()
        [0.0, 0.0, inf]
        """
        value = self._float()
        entropy = -pairs.xlogy(value, value)
        return self._wrap((value < 0).where(value.full(-math.inf), entropy))

    # -- gamma -----------------------------------------------------------------------------------

    def lgamma(self) -> Self:
        """The logarithm of the size of the gamma function: infinite at 0, -1, -2, ...

        Error of positive elements: at most 0.51 ulp in float32, 5 in float64. Of negative ones it
        is 0.51 ulp in float32, and in float64 2**-48 times the larger of 1 and the result.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0, 0.0]).lgamma().tolist()
        [0.0, 0.0, inf]
        """
        return self._apply(gamma.lgamma)

    def digamma(self) -> Self:
        """The derivative of `lgamma`: infinite at 0, NaN at -1, -2, ...

        Error of positive elements: at most 0.51 ulp in float32, 5 in float64. Of negative ones it
        is 0.51 ulp in float32, and in float64 2**-48 times the larger of 1 and the result.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).digamma().tolist()
        [-0.5772156715393066]
        """
        return self._apply(gamma.digamma)

    def polygamma(self, n: int) -> Self:
        """The n-th derivative of `digamma`.

        Error: at most 0.51 ulp in float32; in float64 4 + 2n for positive elements.

        Raises `ValueError` for an n below 0 or above 170, and in `backward` above 169.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).polygamma(1).tolist()
        [1.644934058189392]
        """
        return self._apply(lambda x: gamma.polygamma(n, x))

    # -- of two ----------------------------------------------------------------------------------

    def hypot(self, other: Operand) -> Self:
        """sqrt(self**2 + other**2), finite wherever that is; infinite if one of the two is.

        Error: at most 0.51 ulp in float32, 1.3 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([3e30]).hypot(4e30).tolist() == Tensor([5e30]).tolist()
        True
        """
        return self._pair(pairs.hypot, other, "hypot")

    def logaddexp(self, other: Operand) -> Self:
        """log(exp(self) + exp(other)), without overflow.

        Error: at most 0.51 ulp in float32, and in float64 of 2 ulp of the largest among the result,
        the operands and 1.

        >>> from ferrule import Tensor
        >>> Tensor([1000.0]).logaddexp(0).tolist()
        [1000.0]
        """
        return self._pair(pairs.logaddexp, other, "logaddexp")

    def logaddexp2(self, other: Operand) -> Self:
        """log2(2**self + 2**other), without overflow.

        >>> from ferrule import Tensor
        >>> Tensor([1000.0, 1.0]).logaddexp2(1).tolist()
        [1000.0, 2.0]
        """
        a, b = self._divisible(other, "logaddexp2")
        log2 = math.log(2)
        wide = [part.cast(dtypes.float64) * log2 for part in (a, b)]
        return self._wrap((pairs.logaddexp(*wide) * (1 / log2)).cast(a.dtype))

    def xlogy(self, other: Operand) -> Self:
        """self * log(other), and 0 where this tensor is 0, unless `other` is NaN.

        Error: at most 0.51 ulp in float32, 2 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
        [0.0, 0.0]
        """
        return self._pair(pairs.xlogy, other, "xlogy")

    def xlog1py(self, other: Operand) -> Self:
        """self * log(1 + other), and 0 where this tensor is 0, unless `other` is NaN.

        Error: at most 0.51 ulp in float32, 2.4 in float64.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).xlog1py(Tensor([-1.0, 0.0])).tolist()
        [0.0, 0.0]
        """
        return self._pair(pairs.xlog1py, other, "xlog1py")

    def ldexp(self, other: Operand) -> Self:
        """self * 2**other, exact for whole exponents wherever the result is a normal number.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 3.0]).ldexp(Tensor([4, -1])).tolist()
        [16.0, 1.5]
        """
        return self._pair(pairs.ldexp, other, "ldexp")

    def float_power(self, other: Operand) -> Self:
        """self ** other in float64, whatever the dtypes.

        >>> from ferrule import Tensor
        >>> Tensor([2, 4]).float_power(-0.5).dtype.name
        'float64'
        """
        exponent = other.double() if isinstance(other, Functions) else other
        return self.double().pow(exponent)

    def gcd(self, other: Operand) -> Self:
        """The greatest common divisor of integers, not negative; gcd(0, n) is n.

        Raises `DTypeError` for floats and bools.

        >>> from ferrule import Tensor
        >>> Tensor([12, -18, 0]).gcd(8).tolist()
        [4, 2, 8]
        """
        return self._wrap(pairs.gcd(*self._integers(other, "gcd")))

    def lcm(self, other: Operand) -> Self:
        """The least common multiple of integers, not negative; 0 if one of the two is.

        Raises `DTypeError` for floats and bools.

        >>> from ferrule import Tensor
        >>> Tensor([4, -6, 0]).lcm(6).tolist()
        [12, 6, 0]
        """
        return self._wrap(pairs.lcm(*self._integers(other, "lcm")))

    def _integers(self, other: Operand, what: str) -> tuple[Value, Value]:
        a, b = self._operands(other, what)
        if not dtypes.is_int(a.dtype):
            raise DTypeError(f"[{what}] is defined for integers, not {a.dtype}; cast it first")
        return a, b
