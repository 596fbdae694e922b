"""Functions of one tensor, element by element: types, roots, exponentials, activations.

Integers and bools are computed as the default float where a function is one of real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from ferrule.dtype import DType, DTypeError, dtypes
from ferrule.gradient import Entry, Gradients, Rule, Value, record
from ferrule.ops import BinaryOps, UnaryOps
from ferrule.tensor import special
from ferrule.tensor.arithmetic import floor
from ferrule.tensor.data import to_dtype
from ferrule.tensor.elementwise import Elementwise


def round_half_even(value: Value) -> Value:
    """The nearest whole number, of two the even one."""
    whole = value.alu(UnaryOps.TRUNC)
    size = (value - whole).absolute()
    halved = whole * 0.5
    odd = halved.differs(halved.alu(UnaryOps.TRUNC))
    away = (size > 0.5).alu(BinaryOps.OR, size.equals(0.5).alu(BinaryOps.AND, odd))
    sign = (value < 0).where(value.full(-1), 1)
    return away.where(whole + sign, whole)


def _sign(value: Value) -> Value:
    """-1, 0 or 1; NaN stays."""
    sign = (value > 0).cast(value.dtype)
    if not dtypes.is_unsigned(value.dtype):
        sign = sign - (value < 0).cast(value.dtype)
    return value.differs(value).where(value, sign) if dtypes.is_float(value.dtype) else sign


def _reverse_abs(grad: Value, entry: Entry) -> Gradients:
    return (grad * _sign(entry.saved[0]),)


_ABS = Rule(_reverse_abs, inputs=(0,))


# The class has methods called `float` and `bool`, which hide the types from its annotations.
float_ = float


class Functions(Elementwise):
    """Types, roots, exponentials, trigonometry, rounding, activations."""

    __slots__ = ()

    def _in_float32(self, function: Callable[[Self], Self]) -> Self:
        """A function of several operations: narrower floats go through float32, and round once."""
        value = self._float()
        wide = self._wrap(value.cast(dtypes.float32) if value.dtype.itemsize < 4 else value)
        return function(wide).cast(value.dtype)

    # -- types -----------------------------------------------------------------------------------

    def cast(self, dtype: DType | str) -> Self:
        """Each element as another type: floats lose their fraction to integers.

        >>> from ferrule import Tensor, dtypes
        >>> Tensor([1.7, -1.7]).cast(dtypes.int32).tolist()
        [1, -1]
        """
        target = to_dtype(dtype)
        return self if target is self.dtype else self._wrap(self._read().cast(target))

    def bitcast(self, dtype: DType | str) -> Self:
        """The bits of each element, read as another type of the same width.

        >>> from ferrule import Tensor, dtypes
        >>> Tensor([1.0]).bitcast(dtypes.int32).item() == 0x3F800000
        True
        """
        target = to_dtype(dtype)
        value = self._read()
        if value.edge is not None:
            raise DTypeError("[bitcast] has no gradient; use x.detach().bitcast(dtype)")
        if target.itemsize != value.dtype.itemsize:
            raise DTypeError(f"[bitcast] {value.dtype} and {target} differ in width; cast instead")
        return self._wrap(value.bitcast(target))

    def float(self) -> Self:
        """Each element as a float32.

        >>> from ferrule import Tensor
        >>> Tensor([1]).float().tolist()
        [1.0]
        """
        return self.cast(dtypes.float32)

    def double(self) -> Self:
        """Each element as a float64.

        >>> from ferrule import Tensor
        >>> Tensor([1]).double().tolist()
        [1.0]
        """
        return self.cast(dtypes.float64)

    def half(self) -> Self:
        """Each element as a float16.

        >>> from ferrule import Tensor
        >>> Tensor([1]).half().tolist()
        [1.0]
        """
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """Each element as a bfloat16.

        >>> from ferrule import Tensor
        >>> Tensor([1]).bfloat16().tolist()
        [1.0]
        """
        return self.cast(dtypes.bfloat16)

    def int(self) -> Self:
        """Each element as a int32.

        >>> from ferrule import Tensor
        >>> Tensor([1]).int().tolist()
        [1]
        """
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """Each element as a int64.

        >>> from ferrule import Tensor
        >>> Tensor([1]).long().tolist()
        [1]
        """
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """Each element as a int16.

        >>> from ferrule import Tensor
        >>> Tensor([1]).short().tolist()
        [1]
        """
        return self.cast(dtypes.int16)

    def bool(self) -> Self:
        """Each element as a bool.

        >>> from ferrule import Tensor
        >>> Tensor([1]).bool().tolist()
        [True]
        """
        return self.cast(dtypes.bool)

    # -- roots, exponentials, logarithms ---------------------------------------------------------

    def sqrt(self) -> Self:
        """The square root; NaN for negative elements.

        >>> from ferrule import Tensor
        >>> Tensor([4.0]).sqrt().tolist()
        [2.0]
        """
        return self._wrap(self._float().alu(UnaryOps.SQRT))

    def rsqrt(self) -> Self:
        """1 / sqrt(self).

        >>> from ferrule import Tensor
        >>> Tensor([4.0]).rsqrt().tolist()
        [0.5]
        """
        return self._wrap(self._float().alu(UnaryOps.SQRT).alu(UnaryOps.RECIP))

    def reciprocal(self) -> Self:
        """1 / self.

        >>> from ferrule import Tensor
        >>> Tensor([4.0]).reciprocal().tolist()
        [0.25]
        """
        return self._wrap(self._float().alu(UnaryOps.RECIP))

    def square(self) -> Self:
        """self * self.

        >>> from ferrule import Tensor
        >>> Tensor([-3]).square().tolist()
        [9]
        """
        value = self._read()
        return self._wrap(value * value)

    def exp(self) -> Self:
        """e ** self.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).exp().tolist()
        [1.0]
        """
        return self._apply(special.exp)

    def exp2(self) -> Self:
        """2 ** self.

        >>> from ferrule import Tensor
        >>> Tensor([3.0]).exp2().tolist()
        [8.0]
        """
        return self._wrap(self._float().alu(UnaryOps.EXP2))

    def expm1(self) -> Self:
        """e ** self - 1, to full precision near 0.

        >>> from ferrule import Tensor
        >>> Tensor([1e-10]).expm1().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._apply(special.expm1)

    def log(self) -> Self:
        """The natural logarithm; -inf at 0, NaN below.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).log().tolist()
        [0.0]
        """
        return self._apply(special.log)

    def log2(self) -> Self:
        """The logarithm to base 2.

        >>> from ferrule import Tensor
        >>> Tensor([8.0]).log2().tolist()
        [3.0]
        """
        return self._wrap(self._float().alu(UnaryOps.LOG2))

    def log10(self) -> Self:
        """The logarithm to base 10.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).log10().tolist()
        [0.0]
        """
        return self._wrap(self._float().alu(UnaryOps.LOG2) * math.log10(2))

    def log1p(self) -> Self:
        """log(1 + self), to full precision near 0.

        >>> from ferrule import Tensor
        >>> Tensor([1e-10]).log1p().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._apply(special.log1p)

    # -- trigonometric and hyperbolic ------------------------------------------------------------

    def sin(self) -> Self:
        """The sine of radians.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).sin().tolist()
        [0.0]
        """
        return self._apply(special.sin)

    def cos(self) -> Self:
        """The cosine of radians.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).cos().tolist()
        [1.0]
        """
        return self._apply(special.cos)

    def tan(self) -> Self:
        """The tangent of radians.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).tan().tolist()
        [0.0]
        """
        return self._apply(special.tan)

    def sinh(self) -> Self:
        """The hyperbolic sine.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).sinh().tolist()
        [0.0]
        """
        return self._apply(special.sinh)

    def cosh(self) -> Self:
        """The hyperbolic cosine.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).cosh().tolist()
        [1.0]
        """
        return self._apply(special.cosh)

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).tanh().tolist()
        [0.0]
        """
        return self._apply(special.tanh)

    def erf(self) -> Self:
        """The error function.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).erf().tolist()
        [0.0]
        """
        return self._apply(special.erf)

    # -- sign and rounding -----------------------------------------------------------------------

    def __abs__(self) -> Self:
        return self.abs()

    def abs(self) -> Self:
        """The size of each element, without its sign. The gradient at 0 is 0.

        >>> from ferrule import Tensor
        >>> Tensor([-2, 3]).abs().tolist()
        [2, 3]
        """
        value = self._read()
        if value.dtype is dtypes.bool or dtypes.is_unsigned(value.dtype):
            return self
        return self._wrap(record("abs", _ABS, (value,), value.detach().absolute().node, None))

    def sign(self) -> Self:
        """-1, 0 or 1 by the sign of each element; NaN stays.

        >>> from ferrule import Tensor
        >>> Tensor([-2.5, 0.0, 3.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        value = self._read()
        return self if value.dtype is dtypes.bool else self._wrap(_sign(value.detach()))

    def _rounded(self, function: Callable[[Value], Value]) -> Self:
        value = self._read()
        return self._wrap(function(value.detach())) if dtypes.is_float(value.dtype) else self

    def floor(self) -> Self:
        """The largest whole number that is not larger.

        >>> from ferrule import Tensor
        >>> Tensor([1.5, -1.5]).floor().tolist()
        [1.0, -2.0]
        """
        return self._rounded(floor)

    def ceil(self) -> Self:
        """The smallest whole number that is not smaller.

        >>> from ferrule import Tensor
        >>> Tensor([1.5, -1.5]).ceil().tolist()
        [2.0, -1.0]
        """
        return self._rounded(lambda value: -floor(-value))

    def trunc(self) -> Self:
        """Each element without its fraction.

        >>> from ferrule import Tensor
        >>> Tensor([1.5, -1.5]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._rounded(lambda value: value.alu(UnaryOps.TRUNC))

    def round(self) -> Self:
        """The nearest whole number; of two the even one.

        >>> from ferrule import Tensor
        >>> Tensor([0.5, 1.5, 2.4]).round().tolist()
        [0.0, 2.0, 2.0]
        """
        return self._rounded(round_half_even)

    # -- activations -----------------------------------------------------------------------------

    def relu(self) -> Self:
        """The positive part; its gradient at 0 is 0.

        >>> from ferrule import Tensor
        >>> Tensor([-1, 2]).relu().tolist()
        [0, 2]
        """
        return self._wrap(special.relu(self._read()))

    def relu6(self) -> Self:
        """The positive part, at most 6.

        >>> from ferrule import Tensor
        >>> Tensor([-1, 2, 9]).relu6().tolist()
        [0, 2, 6]
        """
        return self.relu().clamp(max=6)

    def leaky_relu(self, neg_slope: float_ = 0.01) -> Self:
        """The element, times `neg_slope` where it is negative.

        >>> from ferrule import Tensor
        >>> Tensor([-1.0, 2.0]).leaky_relu(0.5).tolist()
        [-0.5, 2.0]
        """
        return (self < 0).where(self * neg_slope, self)

    def elu(self, alpha: float_ = 1.0) -> Self:
        """The element, alpha * (e**x - 1) where it is negative.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).elu().tolist()
        [0.0, 2.0]
        """
        return self._in_float32(lambda x: (x < 0).where(x.clamp(max=0).expm1() * alpha, x))

    def celu(self, alpha: float_ = 1.0) -> Self:
        """The element, alpha * (e**(x / alpha) - 1) where it is negative.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 2.0]).celu().tolist()
        [0.0, 2.0]
        """
        return self._in_float32(
            lambda x: (x < 0).where((x.clamp(max=0) / alpha).expm1() * alpha, x)
        )

    def selu(self, alpha: float_ = 1.6732632423543772, gamma: float_ = 1.0507009873554805) -> Self:
        """`elu` with the constants that keep mean 0 and variance 1.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        return self._in_float32(lambda x: x.elu(alpha) * gamma)

    def sigmoid(self) -> Self:
        """1 / (1 + e ** -self).

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).sigmoid().tolist()
        [0.5]
        """
        return self._apply(special.sigmoid)

    def logsigmoid(self) -> Self:
        """log(sigmoid(self)).

        >>> from ferrule import Tensor
        >>> Tensor([-100.0]).logsigmoid().tolist()
        [-100.0]
        """
        return self._wrap(-special.softplus(-self._float()))

    def gelu(self, approximate: str = "tanh") -> Self:
        """self times the normal distribution's probability of less than self.

        `approximate` is "tanh" for the usual approximation, "none" for the exact function.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 100.0]).gelu().tolist(), Tensor([0.0]).gelu("none").tolist()
        ([0.0, 100.0], [0.0])
        """
        if approximate not in ("tanh", "none"):
            raise ValueError(f"[gelu] approximate is 'tanh' or 'none', not {approximate!r}")
        return self._apply(special.gelu_tanh if approximate == "tanh" else special.gelu)

    def quick_gelu(self) -> Self:
        """self * sigmoid(1.702 * self).

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).quick_gelu().tolist()
        [0.0]
        """
        return self._in_float32(lambda x: x.clamp(min=-500) * (x * 1.702).sigmoid())

    def silu(self) -> Self:
        """self * sigmoid(self).

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).silu().tolist()
        [0.0]
        """
        return self._apply(special.silu)

    def swish(self) -> Self:
        """The same as `silu`.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).swish().tolist()
        [0.0]
        """
        return self._apply(special.silu)

    def mish(self) -> Self:
        """self * tanh(softplus(self)).

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).mish().tolist()
        [0.0]
        """
        return self._in_float32(lambda x: x.clamp(min=-800) * x.softplus().tanh())

    def softplus(self, beta: float_ = 1.0) -> Self:
        """log(1 + e ** (beta * self)) / beta.

        >>> from ferrule import Tensor
        >>> Tensor([-200.0, 200.0]).softplus().tolist()
        [0.0, 200.0]
        """
        value = self._float()
        if beta == 1:
            return self._wrap(special.softplus(value))
        return self._wrap(special.softplus(value * beta) * (1 / beta))

    def softsign(self) -> Self:
        """self / (1 + abs(self)).

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).softsign().tolist()
        [0.5]
        """
        return self._in_float32(lambda x: x.clamp(-1e30, 1e30) / (x.abs().clamp(max=1e30) + 1))

    def hardtanh(self, min_val: float_ = -1, max_val: float_ = 1) -> Self:
        """Each element, within the limits.

        >>> from ferrule import Tensor
        >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        return self.clamp(min_val, max_val)

    def hardsigmoid(self) -> Self:
        """relu6(self + 3) / 6.

        >>> from ferrule import Tensor
        >>> Tensor([-4.0, 0.0]).hardsigmoid().tolist()
        [0.0, 0.5]
        """
        return self._in_float32(lambda x: (x / 6 + 0.5).clamp(0, 1))

    def hardswish(self) -> Self:
        """self * hardsigmoid(self).

        >>> from ferrule import Tensor
        >>> Tensor([-4.0, 3.0]).hardswish().abs().tolist()
        [0.0, 3.0]
        """
        return self._in_float32(lambda x: x.clamp(min=-3) * x.hardsigmoid())
