"""Element-wise functions of one tensor or two, which call `Tensor`'s methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from ferrule.array_api.data_types import Scalar, promoted
from ferrule.tensor import Tensor

Unary: TypeAlias = Callable[[Tensor], Tensor]
Binary: TypeAlias = Callable[[Tensor | Scalar, Tensor | Scalar], Tensor]


def _unary(name: str, what: str, compute: Callable[[Tensor], Tensor]) -> Unary:
    def function(x: Tensor, /) -> Tensor:
        return compute(x)

    return _named(function, name, what)


def _binary(name: str, what: str, compute: Callable[[Any, Any], Tensor]) -> Binary:
    """A function that takes a Python number for one of its operands as it is."""

    def function(x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
        return compute(x1, x2)

    return _named(function, name, what)


def _of_tensors(name: str, what: str, compute: Callable[[Tensor, Tensor], Tensor]) -> Binary:
    """A function that needs two tensors of one type."""

    def function(x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
        return compute(*promoted(x1, x2))

    return _named(function, name, what)


F = TypeVar("F", bound=Callable[..., Tensor])


def _named(function: F, name: str, what: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return function


# *** of one element ***

abs = _unary("abs", "The size of each element.", Tensor.abs)
acos = _unary("acos", "The arc cosine, in [0, pi].", Tensor.acos)
acosh = _unary("acosh", "The inverse of the hyperbolic cosine.", Tensor.acosh)
asin = _unary("asin", "The arc sine, in [-pi/2, pi/2].", Tensor.asin)
asinh = _unary("asinh", "The inverse of the hyperbolic sine.", Tensor.asinh)
atan = _unary("atan", "The arc tangent, in [-pi/2, pi/2].", Tensor.atan)
atanh = _unary("atanh", "The inverse of the hyperbolic tangent.", Tensor.atanh)
ceil = _unary("ceil", "The smallest whole number that is not smaller.", Tensor.ceil)
conj = _unary("conj", "The complex conjugate: of real numbers, they themselves.", operator.pos)
cos = _unary("cos", "The cosine.", Tensor.cos)
cosh = _unary("cosh", "The hyperbolic cosine.", Tensor.cosh)
exp = _unary("exp", "e to the power of each element.", Tensor.exp)
expm1 = _unary("expm1", "e**x - 1, exact near 0.", Tensor.expm1)
floor = _unary("floor", "The largest whole number that is not larger.", Tensor.floor)
imag = _unary("imag", "The imaginary part: of real numbers, zeros.", Tensor.zeros_like)
isfinite = _unary("isfinite", "Whether each element is neither infinite nor NaN.", Tensor.isfinite)
isinf = _unary("isinf", "Whether each element is infinite.", Tensor.isinf)
isnan = _unary("isnan", "Whether each element is NaN.", Tensor.isnan)
log = _unary("log", "The natural logarithm.", Tensor.log)
log10 = _unary("log10", "The logarithm to base 10.", Tensor.log10)
log1p = _unary("log1p", "log(1 + x), exact near 0.", Tensor.log1p)
log2 = _unary("log2", "The logarithm to base 2.", Tensor.log2)
logical_not = _unary("logical_not", "Whether each element is false.", Tensor.logical_not)
negative = _unary("negative", "Each element with the other sign.", operator.neg)
positive = _unary("positive", "Each element as it is.", operator.pos)
real = _unary("real", "The real part: of real numbers, they themselves.", operator.pos)
reciprocal = _unary("reciprocal", "1 / x.", Tensor.reciprocal)
round = _unary("round", "The nearest whole number, of two the even one.", Tensor.round)
sign = _unary("sign", "-1, 0 or 1; NaN stays.", Tensor.sign)
signbit = _unary("signbit", "Whether the sign is -, also that of zeros and NaN.", Tensor.signbit)
sin = _unary("sin", "The sine.", Tensor.sin)
sinh = _unary("sinh", "The hyperbolic sine.", Tensor.sinh)
sqrt = _unary("sqrt", "The square root.", Tensor.sqrt)
square = _unary("square", "x * x.", Tensor.square)
tan = _unary("tan", "The tangent.", Tensor.tan)
tanh = _unary("tanh", "The hyperbolic tangent.", Tensor.tanh)
trunc = _unary("trunc", "Each element without its fraction.", Tensor.trunc)
bitwise_invert = _unary("bitwise_invert", "All bits inverted.", operator.invert)

# *** of two elements ***

add = _binary("add", "x1 + x2.", operator.add)
bitwise_and = _binary("bitwise_and", "x1 & x2.", operator.and_)
bitwise_left_shift = _binary("bitwise_left_shift", "x1 << x2.", operator.lshift)
bitwise_or = _binary("bitwise_or", "x1 | x2.", operator.or_)
bitwise_right_shift = _binary("bitwise_right_shift", "x1 >> x2.", operator.rshift)
bitwise_xor = _binary("bitwise_xor", "x1 ^ x2.", operator.xor)
divide = _binary("divide", "x1 / x2, as floats.", operator.truediv)
equal = _binary("equal", "x1 == x2.", operator.eq)
floor_divide = _binary("floor_divide", "x1 / x2, rounded down.", operator.floordiv)
greater = _binary("greater", "x1 > x2.", operator.gt)
greater_equal = _binary("greater_equal", "x1 >= x2.", operator.ge)
less = _binary("less", "x1 < x2.", operator.lt)
less_equal = _binary("less_equal", "x1 <= x2.", operator.le)
multiply = _binary("multiply", "x1 * x2.", operator.mul)
not_equal = _binary("not_equal", "x1 != x2.", operator.ne)
pow = _binary("pow", "x1 to the power x2.", operator.pow)
remainder = _binary("remainder", "x1 % x2, with the sign of x2.", operator.mod)
subtract = _binary("subtract", "x1 - x2.", operator.sub)

atan2 = _of_tensors("atan2", "The angle of the point (x2, x1), in [-pi, pi].", Tensor.atan2)
copysign = _of_tensors("copysign", "The size of x1 with the sign of x2.", Tensor.copysign)
hypot = _of_tensors("hypot", "sqrt(x1**2 + x2**2), without overflow.", Tensor.hypot)
logaddexp = _of_tensors("logaddexp", "log(e**x1 + e**x2), without overflow.", Tensor.logaddexp)
logical_and = _of_tensors("logical_and", "Whether both are true.", Tensor.logical_and)
logical_or = _of_tensors("logical_or", "Whether at least one is true.", Tensor.logical_or)
logical_xor = _of_tensors("logical_xor", "Whether just one is true.", Tensor.logical_xor)
maximum = _of_tensors("maximum", "The larger one; NaN if either is.", Tensor.maximum)
minimum = _of_tensors("minimum", "The smaller one; NaN if either is.", Tensor.minimum)
nextafter = _of_tensors("nextafter", "The float next to x1 on the way to x2.", Tensor.nextafter)


def clip(
    x: Tensor,
    /,
    min: Tensor | Scalar | None = None,
    max: Tensor | Scalar | None = None,
) -> Tensor:
    """Each element, but no less than `min` and no more than `max`; of the type of `x`."""
    if min is None and max is None:
        return x.clone()
    return x.clamp(min, max).cast(x.dtype)
