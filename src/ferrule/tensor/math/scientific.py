"""Functions of real numbers beyond the elementary ones: inverses, the error function, gamma.

Integers and bools are computed as the default float.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ferrule.autograd import TracedValue
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method
from ferrule.tensor.math import errorfunction, gamma, inverse, pairs, power
from ferrule.tensor.math.arithmetic import (
    Operand,
    apply,
    as_floats,
    divisible,
    float_value,
    operands,
)


def pair(
    self: Tensor,
    function: Callable[[TracedValue, TracedValue], TracedValue],
    other: Operand,
    what: str,
) -> Tensor:
    """A function of this tensor and another, both as floats of one dtype and shape."""
    return self._wrap(function(*divisible(self, other, what)))


@method
def cbrt(self: Tensor) -> Tensor:
    """The cube root, also of negative elements.

    Error: at most 0.51 ulp in float32, 1 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([-8.0, 27.0]).cbrt().tolist()
    [-2.0, 3.0]
    """
    return apply(self, power.cbrt)


# -- angles --------------------------------------------------------------------------------------


@method
def asin(self: Tensor) -> Tensor:
    """The arc in [-pi/2, pi/2] with this sine; NaN outside [-1, 1].

    Error: at most 1.6 ulp in float32, 1.6 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).asin().tolist()
    [0.0, nan]
    """
    return apply(self, inverse.asin)


@method
def acos(self: Tensor) -> Tensor:
    """The arc in [0, pi] with this cosine; NaN outside [-1, 1].

    Error: at most 1.2 ulp in float32, 1.2 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).acos().tolist()
    [0.0, nan]
    """
    return apply(self, inverse.acos)


@method
def atan(self: Tensor) -> Tensor:
    """The angle in [-pi/2, pi/2] with this tangent.

    Error: at most 1.9 ulp in float32, 1.6 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).atan().tolist()
    [0.0]
    """
    return apply(self, inverse.atan)


@method
def atan2(self: Tensor, other: Operand) -> Tensor:
    """The angle of the point (x, y) with y this tensor and x `other`, in [-pi, pi].

    Zeros have signs: atan2(-0.0, -1.0) is -pi. Error: at most 2 ulp in float32, 2 in float64.
    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 0.0]).atan2(Tensor([1.0, -1.0])).tolist()
    [0.0, 3.1415927410125732]
    """
    return pair(self, inverse.atan2, other, "atan2")


@method
def deg2rad(self: Tensor) -> Tensor:
    """Degrees as radians.

    >>> from ferrule import Tensor
    >>> Tensor([180.0]).deg2rad().tolist()
    [3.1415927410125732]
    """
    return self._wrap(float_value(self) * (math.pi / 180))


@method
def rad2deg(self: Tensor) -> Tensor:
    """Radians as degrees.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).rad2deg().tolist()
    [0.0]
    """
    return self._wrap(float_value(self) * (180 / math.pi))


@method
def sinc(self: Tensor) -> Tensor:
    """sin(pi * self) / (pi * self), and 1 at 0.

    Error: at most 0.51 ulp in float32, 2.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).sinc().tolist()
    [1.0]
    """
    return apply(self, gamma.sinc)


@method
def asinh(self: Tensor) -> Tensor:
    """The inverse of `sinh`.

    Error: at most 0.51 ulp in float32, 2 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).asinh().tolist()
    [0.0]
    """
    return apply(self, inverse.asinh)


@method
def acosh(self: Tensor) -> Tensor:
    """The inverse of `cosh`; NaN below 1.

    Error: at most 0.51 ulp in float32, 2.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 0.0]).acosh().tolist()
    [0.0, nan]
    """
    return apply(self, inverse.acosh)


@method
def atanh(self: Tensor) -> Tensor:
    """The inverse of `tanh`: infinite at -1 and 1, NaN outside.

    Error: at most 0.51 ulp in float32, 2.1 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 1.0, 2.0]).atanh().tolist()
    [0.0, inf, nan]
    """
    return apply(self, inverse.atanh)


# -- probability ---------------------------------------------------------------------------------


@method
def erfc(self: Tensor) -> Tensor:
    """1 - erf(self), exact where it is small.

    Error: at most 0.51 ulp in float32, 4.2 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).erfc().tolist()
    [1.0]
    """
    return apply(self, errorfunction.erfc)


@method
def erfinv(self: Tensor) -> Tensor:
    """The inverse of `erf`: infinite at -1 and 1, NaN outside.

    Error: at most 0.51 ulp in float32, 3.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 1.0]).erfinv().tolist()
    [0.0, inf]
    """
    return apply(self, errorfunction.erfinv)


@method
def logit(self: Tensor, eps: float | None = None) -> Tensor:
    """log(self / (1 - self)), the inverse of `sigmoid`; first clamped to [eps, 1 - eps].

    Error: at most 0.51 ulp in float32, 2.2 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.5, 1.0]).logit().tolist()
    [0.0, inf]
    """
    x = self if eps is None else as_floats(self).clamp(eps, 1 - eps)
    return apply(x, errorfunction.logit)


@method
def ndtr(self: Tensor) -> Tensor:
    """The normal distribution's probability of less than each element, exact in both tails.

    Error: at most 0.51 ulp in float32, 4.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).ndtr().tolist()
    [0.5]
    """
    return apply(self, errorfunction.ndtr)


@method
def entr(self: Tensor) -> Tensor:
    """-self * log(self): 0 at 0, -inf for negative elements.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 1.0, -1.0]).entr().abs().tolist()
    [0.0, 0.0, inf]
    """
    return self._wrap(pairs.entr(float_value(self)))


# -- gamma ---------------------------------------------------------------------------------------


@method
def lgamma(self: Tensor) -> Tensor:
    """The logarithm of the absolute value of the gamma function: infinite at 0, -1, -2, ...

    Error of positive elements: at most 0.51 ulp in float32, 5 in float64. Of negative ones it
    is 0.51 ulp in float32, and in float64 2**-48 times the larger of 1 and the result.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0, 0.0]).lgamma().tolist()
    [0.0, 0.0, inf]
    """
    return apply(self, gamma.lgamma)


@method
def digamma(self: Tensor) -> Tensor:
    """The derivative of `lgamma`: infinite at 0, NaN at -1, -2, ...

    Error of positive elements: at most 0.51 ulp in float32, 5 in float64. Of negative ones it
    is 0.51 ulp in float32, and in float64 2**-48 times the larger of 1 and the result.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).digamma().tolist()
    [-0.5772156715393066]
    """
    return apply(self, gamma.digamma)


@method
def polygamma(self: Tensor, n: int) -> Tensor:
    """The n-th derivative of `digamma`.

    Error: at most 0.51 ulp in float32; in float64 4 + 2n for positive elements.

    Raises `ValueError` for an n below 0 or above 170, and in `backward` above 169.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).polygamma(1).tolist()
    [1.644934058189392]
    """
    return apply(self, lambda x: gamma.polygamma(n, x))


# -- of two --------------------------------------------------------------------------------------


@method
def hypot(self: Tensor, other: Operand) -> Tensor:
    """sqrt(self**2 + other**2), finite wherever that is; infinite if one of the two is.

    Error: at most 0.51 ulp in float32, 1.3 in float64. Raises `ShapeError` if the shapes do not
    broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([3e30]).hypot(4e30).tolist() == Tensor([5e30]).tolist()
    True
    """
    return pair(self, pairs.hypot, other, "hypot")


@method
def logaddexp(self: Tensor, other: Operand) -> Tensor:
    """log(exp(self) + exp(other)), without overflow.

    Error: at most 0.51 ulp in float32, and in float64 of 2 ulp of the largest among the result, the
    operands and 1. Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1000.0]).logaddexp(0).tolist()
    [1000.0]
    """
    return pair(self, pairs.logaddexp, other, "logaddexp")


@method
def logaddexp2(self: Tensor, other: Operand) -> Tensor:
    """log2(2**self + 2**other), without overflow.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1000.0, 1.0]).logaddexp2(1).tolist()
    [1000.0, 2.0]
    """
    a, b = divisible(self, other, "logaddexp2")
    log2 = math.log(2)
    wide = [part.cast(dtypes.float64) * log2 for part in (a, b)]
    return self._wrap((pairs.logaddexp(*wide) * (1 / log2)).cast(a.dtype))


@method
def xlogy(self: Tensor, other: Operand) -> Tensor:
    """self * log(other), and 0 where this tensor is 0, unless `other` is NaN.

    Error: at most 0.51 ulp in float32, 2 in float64. Raises `ShapeError` if the shapes do not
    broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
    [0.0, 0.0]
    """
    return pair(self, pairs.xlogy, other, "xlogy")


@method
def xlog1py(self: Tensor, other: Operand) -> Tensor:
    """self * log(1 + other), and 0 where this tensor is 0, unless `other` is NaN.

    Error: at most 0.51 ulp in float32, 2.4 in float64. Raises `ShapeError` if the shapes do not
    broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).xlog1py(Tensor([-1.0, 0.0])).tolist()
    [0.0, 0.0]
    """
    return pair(self, pairs.xlog1py, other, "xlog1py")


@method
def ldexp(self: Tensor, other: Operand) -> Tensor:
    """self * 2**other, exact for whole exponents wherever the result is a normal number.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 3.0]).ldexp(Tensor([4, -1])).tolist()
    [16.0, 1.5]
    """
    return pair(self, pairs.ldexp, other, "ldexp")


@method
def float_power(self: Tensor, other: Operand) -> Tensor:
    """self ** other in float64, whatever the dtypes.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([2, 4]).float_power(-0.5).dtype.name
    'float64'
    """
    exponent = other.double() if isinstance(other, Tensor) else other
    return self.double().pow(exponent)


@method
def gcd(self: Tensor, other: Operand) -> Tensor:
    """The greatest common divisor of integers, not negative; gcd(0, n) is n.

    Raises `DTypeError` for floats and bools.

    >>> from ferrule import Tensor
    >>> Tensor([12, -18, 0]).gcd(8).tolist()
    [4, 2, 8]
    """
    return self._wrap(pairs.gcd(*_integers(self, other, "gcd")))


@method
def lcm(self: Tensor, other: Operand) -> Tensor:
    """The least common multiple of integers, not negative; 0 if one of the two is.

    Raises `DTypeError` for floats and bools.

    >>> from ferrule import Tensor
    >>> Tensor([4, -6, 0]).lcm(6).tolist()
    [12, 6, 0]
    """
    return self._wrap(pairs.lcm(*_integers(self, other, "lcm")))


def _integers(self: Tensor, other: Operand, what: str) -> tuple[TracedValue, TracedValue]:
    a, b = operands(self, other, what)
    if not dtypes.is_int(a.dtype):
        raise DTypeError(f"[{what}] is defined for integers, not {a.dtype}; cast it first")
    return a, b
