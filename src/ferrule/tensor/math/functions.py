"""Functions of one tensor, element by element: types, roots, exponentials, rounding.

Integers and bools are computed as the default float where a function is one of real numbers.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable

from ferrule.autograd import GradientError, Gradients, GradNode, Rule, TracedValue, record
from ferrule.ir.dtype import DTypeError, compute_dtype, dtypes
from ferrule.ir.lazyop import UnaryOps
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import DTypeLike, to_dtype
from ferrule.tensor.keywords import method
from ferrule.tensor.math import errorfunction, special
from ferrule.tensor.math.arithmetic import apply, float_value, round_down
from ferrule.tensor.math.special import magnitude, widened, with_sign


def round_half_even(value: TracedValue) -> TracedValue:
    """The nearest whole number, of two the even one.

    Where a size is added to a number whose last digit is 1, its fraction is lost to rounding.
    """
    wide = widened(value)
    whole = 2.0**wide.dtype.mantissa_bits
    size = magnitude(wide)
    rounded = (size < whole).where((size + whole) - whole, size)
    return with_sign(rounded, wide).cast(value.dtype)


def _sign(value: TracedValue) -> TracedValue:
    """-1, 0 or 1; NaN stays."""
    sign = (value > 0).cast(value.dtype)
    if not dtypes.is_unsigned(value.dtype):
        sign = sign - (value < 0).cast(value.dtype)
    return value.differs(value).where(value, sign) if dtypes.is_float(value.dtype) else sign


def _reverse_abs(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * _sign(entry.saved[0]),)


_ABS = Rule(_reverse_abs, inputs=(0,))


def in_float32(self: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of several operations: narrower floats go through float32, and round once."""
    value = float_value(self)
    wide = self._wrap(value.cast(compute_dtype(value.dtype)))
    return function(wide).cast(value.dtype)


# -- types ---------------------------------------------------------------------------------------


@method
def cast(self: Tensor, dtype: DTypeLike) -> Tensor:
    """Each element as another type: floats lose their fraction to integers.

    Integers wrap. A float beyond the integers of the type, or NaN, becomes some integer, as in
    C and NumPy: which one depends on the device. A tensor of that type is returned itself.

    >>> from ferrule import Tensor, dtypes
    >>> Tensor([1.7, -1.7]).cast(dtypes.int32).tolist()
    [1, -1]
    """
    target = to_dtype(dtype)
    return self if target is self.dtype else self._wrap(self._read().cast(target))


@method
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Cast to another tensor's dtype; itself where it has that.

    >>> from ferrule import Tensor
    >>> Tensor([1.5]).type_as(Tensor([1])).tolist()
    [1]
    """
    return self.cast(other.dtype)


@method
def astype(self: Tensor, dtype: DTypeLike, copy: bool = True) -> Tensor:
    """NumPy's name of `cast`: a tensor with memory of its own, unless `copy` is false.

    >>> from ferrule import Tensor
    >>> Tensor([1.7, -1.7]).astype("int32").tolist()
    [1, -1]
    """
    result = self.cast(dtype)
    return result.clone() if copy and result is self else result


@method
def bitcast(self: Tensor, dtype: DTypeLike) -> Tensor:
    """The bits of each element, read as another type of the same width. A copy.

    Raises `DTypeError` for another width, `GradientError` where a gradient would have to pass.

    >>> from ferrule import Tensor, dtypes
    >>> Tensor([1.0]).bitcast(dtypes.int32).item() == 0x3F800000
    True
    """
    target = to_dtype(dtype)
    value = self._read()
    if value.edge is not None:
        raise GradientError("[bitcast] has no gradient; use x.detach().bitcast(dtype)")
    if target.itemsize != value.dtype.itemsize:
        raise DTypeError(f"[bitcast] {value.dtype} and {target} differ in width; cast instead")
    return self._wrap(value.bitcast(target))


# -- roots, exponentials, logarithms -------------------------------------------------------------


@method
def sqrt(self: Tensor) -> Tensor:
    """The square root; NaN for negative elements.

    Error: at most 0.5 ulp in float32, 0.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([4.0]).sqrt().tolist()
    [2.0]
    """
    return self._wrap(float_value(self).alu(UnaryOps.SQRT))


@method
def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(self).

    Error: at most 1.6 ulp in float32, 1.6 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([4.0]).rsqrt().tolist()
    [0.5]
    """
    return in_float32(self, lambda x: x._wrap(x._read().alu(UnaryOps.SQRT).alu(UnaryOps.RECIP)))


@method
def reciprocal(self: Tensor) -> Tensor:
    """1 / self.

    Error: at most 0.5 ulp in float32, 0.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([4.0]).reciprocal().tolist()
    [0.25]
    """
    return self._wrap(float_value(self).alu(UnaryOps.RECIP))


@method
def square(self: Tensor) -> Tensor:
    """self * self.

    >>> from ferrule import Tensor
    >>> Tensor([-3]).square().tolist()
    [9]
    """
    value = self._read()
    return self._wrap(value * value)


@method
def exp(self: Tensor) -> Tensor:
    """e ** self.

    Error: at most 1 ulp in float32, 1 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).exp().tolist()
    [1.0]
    """
    return apply(self, special.exp)


@method
def exp2(self: Tensor) -> Tensor:
    """2 ** self.

    Error: at most 0.9 ulp in float32, 0.9 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([3.0]).exp2().tolist()
    [8.0]
    """
    return self._wrap(float_value(self).alu(UnaryOps.EXP2))


@method
def expm1(self: Tensor) -> Tensor:
    """e ** self - 1, to full precision near 0.

    Error: at most 1.7 ulp in float32, 1.8 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([1e-10]).expm1().tolist() == Tensor([1e-10]).tolist()
    True
    """
    return apply(self, special.expm1)


@method
def log(self: Tensor) -> Tensor:
    """The natural logarithm; -inf at 0, NaN below.

    Error: at most 1 ulp in float32, 1.3 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).log().tolist()
    [0.0]
    """
    return apply(self, special.log)


@method
def log2(self: Tensor) -> Tensor:
    """The logarithm to base 2.

    Error: at most 1 ulp in float32, 1 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([8.0]).log2().tolist()
    [3.0]
    """
    return self._wrap(float_value(self).alu(UnaryOps.LOG2))


@method
def log10(self: Tensor) -> Tensor:
    """The logarithm to base 10.

    Error: at most 1 ulp in float32, 1.1 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).log10().tolist()
    [0.0]
    """
    return in_float32(self, lambda x: x._wrap(x._read().alu(UnaryOps.LOG2) * math.log10(2)))


@method
def log1p(self: Tensor) -> Tensor:
    """log(1 + self), to full precision near 0.

    Error: at most 1.9 ulp in float32, 1.7 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([1e-10]).log1p().tolist() == Tensor([1e-10]).tolist()
    True
    """
    return apply(self, special.log1p)


# -- trigonometric and hyperbolic ----------------------------------------------------------------


@method
def sin(self: Tensor) -> Tensor:
    """The sine of radians.

    Error: at most 0.6 ulp in float32, 1.7 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).sin().tolist()
    [0.0]
    """
    return apply(self, special.sin)


@method
def cos(self: Tensor) -> Tensor:
    """The cosine of radians.

    Error: at most 0.6 ulp in float32, 1.7 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).cos().tolist()
    [1.0]
    """
    return apply(self, special.cos)


@method
def tan(self: Tensor) -> Tensor:
    """The tangent of radians.

    Error: at most 2.2 ulp in float32, 3.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).tan().tolist()
    [0.0]
    """
    return apply(self, special.tan)


@method
def sinh(self: Tensor) -> Tensor:
    """The hyperbolic sine.

    Error: at most 2.5 ulp in float32, 2.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).sinh().tolist()
    [0.0]
    """
    return apply(self, special.sinh)


@method
def cosh(self: Tensor) -> Tensor:
    """The hyperbolic cosine.

    Error: at most 1.9 ulp in float32, 1.9 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).cosh().tolist()
    [1.0]
    """
    return apply(self, special.cosh)


@method
def tanh(self: Tensor) -> Tensor:
    """The hyperbolic tangent.

    Error: at most 1.5 ulp in float32, 1.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).tanh().tolist()
    [0.0]
    """
    return apply(self, special.tanh)


@method
def erf(self: Tensor) -> Tensor:
    """The error function.

    Error: at most 1.5 ulp in float32, 1.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).erf().tolist()
    [0.0]
    """
    return apply(self, errorfunction.erf)


# -- sign and rounding ---------------------------------------------------------------------------


@method
def abs(self: Tensor) -> Tensor:
    """The size of each element, without its sign. The gradient at 0 is 0.

    >>> from ferrule import Tensor
    >>> Tensor([-2, 3]).abs().tolist()
    [2, 3]
    """
    value = self._read()
    if value.dtype is dtypes.bool or dtypes.is_unsigned(value.dtype):
        return self.clone()
    return self._wrap(record("abs", _ABS, (value,), value.detach().absolute().node, None))


@method
def sign(self: Tensor) -> Tensor:
    """-1, 0 or 1 by the sign of each element; NaN stays.

    >>> from ferrule import Tensor
    >>> Tensor([-2.5, 0.0, 3.0]).sign().tolist()
    [-1.0, 0.0, 1.0]
    """
    value = self._read()
    return self.clone() if value.dtype is dtypes.bool else self._wrap(_sign(value.detach()))


def _rounded(self: Tensor, function: Callable[[TracedValue], TracedValue]) -> Tensor:
    value = self._read()
    return self._wrap(function(value.detach()) if dtypes.is_float(value.dtype) else value)


@method
def floor(self: Tensor) -> Tensor:
    """The largest whole number that is not larger.

    >>> from ferrule import Tensor
    >>> Tensor([1.5, -1.5]).floor().tolist()
    [1.0, -2.0]
    """
    return _rounded(self, round_down)


@method
def ceil(self: Tensor) -> Tensor:
    """The smallest whole number that is not smaller.

    >>> from ferrule import Tensor
    >>> Tensor([1.5, -1.5]).ceil().tolist()
    [2.0, -1.0]
    """
    return _rounded(self, lambda value: -round_down(-value))


@method
def trunc(self: Tensor) -> Tensor:
    """Each element without its fraction.

    >>> from ferrule import Tensor
    >>> Tensor([1.5, -1.5]).trunc().tolist()
    [1.0, -1.0]
    """
    return _rounded(self, lambda value: value.alu(UnaryOps.TRUNC))


@method
def round(self: Tensor, decimals: int = 0) -> Tensor:
    """The nearest number with so many decimals; of two the even one.

    With `decimals`, as in NumPy, the element is multiplied by a power of ten, rounded and
    divided again. Whole numbers stay what they are.

    Raises `DTypeError` for integers and negative decimals.

    >>> from ferrule import Tensor
    >>> Tensor([0.5, 1.5, 2.4]).round().tolist(), Tensor([1234.0]).round(-2).tolist()
    ([0.0, 2.0, 2.0], [1200.0])
    """
    if decimals == 0:
        return _rounded(self, round_half_even)
    if not dtypes.is_float(self.dtype):
        if decimals > 0:
            return self.clone()
        raise DTypeError(
            f"[round] to {decimals} decimals is not defined for {self.dtype}; "
            "cast it to a float first"
        )
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return in_float32(self, lambda x: x.mul(scale).round() / scale)
    return in_float32(self, lambda x: x.div(scale).round() * scale)


def round_to(self: Tensor, ndigits: int | None = None) -> Tensor:
    """`round`, to a number of decimals."""
    return self.round(ndigits or 0)
