"""Activations of neural networks, element by element.

Integers and bools are computed as the default float where a function is one of real numbers.
"""

from __future__ import annotations

from ferrule.base.calls import one_of
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import part_of
from ferrule.tensor.data import from_host
from ferrule.tensor.keywords import method
from ferrule.tensor.math import errorfunction, special
from ferrule.tensor.math.arithmetic import Operand, apply, as_floats, float_value
from ferrule.tensor.math.functions import in_float32


@method
def relu(self: Tensor) -> Tensor:
    """The positive part; its gradient at 0 is 0.

    >>> from ferrule import Tensor
    >>> Tensor([-1, 2]).relu().tolist()
    [0, 2]
    """
    return self._wrap(special.relu(self._read()))


@method
def relu6(self: Tensor) -> Tensor:
    """The positive part, at most 6.

    >>> from ferrule import Tensor
    >>> Tensor([-1, 2, 9]).relu6().tolist()
    [0, 2, 6]
    """
    return self.relu().clamp(max=6)


@method
def leaky_relu(self: Tensor, neg_slope: float = 0.01) -> Tensor:
    """The element, times `neg_slope` where it is negative.

    >>> from ferrule import Tensor
    >>> Tensor([-1.0, 2.0]).leaky_relu(0.5).tolist()
    [-0.5, 2.0]
    """
    return (self < 0).where(self * neg_slope, self)


@method
def elu(self: Tensor, alpha: float = 1.0) -> Tensor:
    """The element, alpha * (e**x - 1) where it is negative.

    Error, for an alpha of 1: at most 1.8 ulp in float32, 1.8 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).elu().tolist()
    [0.0, 2.0]
    """
    return in_float32(self, lambda x: (x < 0).where(x.clamp(max=0).expm1() * alpha, x))


@method
def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
    """The element, alpha * (e**(x / alpha) - 1) where it is negative.

    Error, for an alpha of 1: at most 1.8 ulp in float32, 1.8 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 2.0]).celu().tolist()
    [0.0, 2.0]
    """
    return in_float32(self, lambda x: (x < 0).where((x.clamp(max=0) / alpha).expm1() * alpha, x))


@method
def selu(
    self: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805
) -> Tensor:
    """`elu` with the constants that keep mean 0 and variance 1.

    Error: at most 3.3 ulp in float32, 3.3 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).selu().tolist()
    [0.0]
    """
    return in_float32(self, lambda x: x.elu(alpha) * gamma)


@method
def sigmoid(self: Tensor) -> Tensor:
    """1 / (1 + e ** -self).

    Below -88.7 in float32 and -709.7 in float64, where the power overflows, it is 0.
    Error elsewhere: at most 2.5 ulp in float32, 2.4 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).sigmoid().tolist()
    [0.5]
    """
    return apply(self, special.sigmoid)


@method
def logsigmoid(self: Tensor) -> Tensor:
    """log(sigmoid(self)).

    Error: at most 2 ulp in float32, 2 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([-100.0]).logsigmoid().tolist()
    [-100.0]
    """
    return self._wrap(-special.softplus(-float_value(self)))


@method
def gelu(self: Tensor, approximate: str = "tanh") -> Tensor:
    """self times the normal distribution's probability of less than self.

    `approximate` is "tanh" for the usual approximation, "none" for the exact function.

    Error of "none" above -12: at most 5 ulp in float32, 5 in float64. That of the approximation
    grows with its power, to 24 ulp at -5.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 100.0]).gelu().tolist(), Tensor([0.0]).gelu("none").tolist()
    ([0.0, 100.0], [0.0])
    """
    one_of(approximate, ("tanh", "none"), "[gelu] approximate")
    return apply(self, errorfunction.gelu_tanh if approximate == "tanh" else errorfunction.gelu)


@method
def quick_gelu(self: Tensor) -> Tensor:
    """self * sigmoid(1.702 * self).

    Error above -5: at most 8.5 ulp in float32, 8.5 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).quick_gelu().tolist()
    [0.0]
    """
    return in_float32(self, lambda x: x.clamp(min=-500) * (x * 1.702).sigmoid())


@method
def silu(self: Tensor) -> Tensor:
    """self * sigmoid(self).

    Below -88.7 in float32 and -709.7 in float64 it is 0, as the sigmoid is.
    Error elsewhere: at most 3.2 ulp in float32, 3.2 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).silu().tolist()
    [0.0]
    """
    return apply(self, special.silu)


@method
def swish(self: Tensor) -> Tensor:
    """The same as `silu`.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).swish().tolist()
    [0.0]
    """
    return apply(self, special.silu)


@method
def mish(self: Tensor) -> Tensor:
    """self * tanh(softplus(self)).

    Error where e**self is no subnormal number: at most 3.6 ulp in float32, 3.6 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).mish().tolist()
    [0.0]
    """
    return apply(self, special.mish)


@method
def softplus(self: Tensor, beta: float = 1.0, threshold: float | None = None) -> Tensor:
    """log(1 + e ** (beta * self)) / beta; the element itself where beta * self > threshold.

    Error: at most 2 ulp in float32, 2 in float64, for a beta of 1.

    >>> from ferrule import Tensor
    >>> Tensor([-200.0, 200.0]).softplus().tolist()
    [0.0, 200.0]
    """
    x = as_floats(self)
    scaled = x if beta == 1 else x * beta
    result = x._wrap(special.softplus(scaled._read()))
    result = result if beta == 1 else result * (1 / beta)
    return result if threshold is None else (scaled > threshold).where(x, result)


@method
def softsign(self: Tensor) -> Tensor:
    """self / (1 + abs(self)).

    Error: at most 1.6 ulp in float32, 1.6 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).softsign().tolist()
    [0.5]
    """
    return in_float32(self, lambda x: x.clamp(-1e30, 1e30) / (x.abs().clamp(max=1e30) + 1))


@method
def hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """Each element, within the limits.

    >>> from ferrule import Tensor
    >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
    [-1.0, 0.5]
    """
    return self.clamp(min_val, max_val)


@method
def hardsigmoid(self: Tensor) -> Tensor:
    """relu6(self + 3) / 6.

    >>> from ferrule import Tensor
    >>> Tensor([-4.0, 0.0]).hardsigmoid().tolist()
    [0.0, 0.5]
    """
    return in_float32(self, lambda x: (x + 3).clamp(0, 6) / 6)


@method
def hardswish(self: Tensor) -> Tensor:
    """self * hardsigmoid(self).

    >>> from ferrule import Tensor
    >>> Tensor([-4.0, 3.0]).hardswish().abs().tolist()
    [0.0, 3.0]
    """
    return in_float32(self, lambda x: x.clamp(min=-3) * x.hardsigmoid())


@method
def tanhshrink(self: Tensor) -> Tensor:
    """self - tanh(self).

    Error: at most 0.51 ulp in float32, 12 in float64.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).tanhshrink().tolist()
    [0.0]
    """
    return apply(self, special.tanhshrink)


@method
def hardshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    """The element, and 0 where its size is at most `lambd`.

    >>> from ferrule import Tensor
    >>> Tensor([-2.0, 0.3, 1.0]).hardshrink().tolist()
    [-2.0, 0.0, 1.0]
    """
    return (self.abs() <= lambd).where(0, self)


@method
def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    """The element moved towards 0 by `lambd`, and 0 where its size is at most that.

    >>> from ferrule import Tensor
    >>> Tensor([-2.0, 0.3, 1.0]).softshrink().tolist()
    [-1.5, 0.0, 0.5]
    """
    if lambd < 0:
        raise ValueError(f"[softshrink] lambd is at least 0, not {lambd}")
    moved = (self > 0).where(self - lambd, self + lambd)
    return (self.abs() <= lambd).where(0, moved)


@method
def threshold(self: Tensor, threshold: float, value: float) -> Tensor:
    """The element where it is larger than `threshold`, else `value`.

    >>> from ferrule import Tensor
    >>> Tensor([-2.0, 0.3, 1.0]).threshold(0.5, -1.0).tolist()
    [-1.0, -1.0, 1.0]
    """
    return (self <= threshold).where(value, self)


@method
def prelu(self: Tensor, weight: Operand) -> Tensor:
    """The element, times `weight` where it is negative: one weight, or one for each channel.

    Channels are axis 1 of (N, C, ...), or the one axis of a vector. Raises `ShapeError` where
    the numbers of weights and channels differ.

    >>> from ferrule import Tensor
    >>> Tensor([[-1.0, -2.0]]).prelu(Tensor([0.5, 0.25])).tolist()
    [[-0.5, -0.5]]
    """
    value = weight._read() if isinstance(weight, Tensor) else from_host(weight, None, self.device)
    count = value.shape[0] if value.shape else 1
    rank = len(self._shape)
    channels = self._shape[min(1, rank - 1)] if rank else 1
    if len(value.shape) > 1 or (count != 1 and count != channels):
        raise ShapeError(
            f"[prelu] weights of shape {value.shape} for {channels} channels; "
            "give one weight, or one for each channel"
        )
    if rank != 1:
        value = value.reshape((count, *[1] * (rank - 2)) if rank else ())
    return (self > 0).where(self, self._wrap(value) * self)


@method
def glu(self: Tensor, dim: int = -1) -> Tensor:
    """The first half along an axis times the sigmoid of the second half.

    Raises `ShapeError` for an axis of odd size.

    >>> from ferrule import Tensor
    >>> Tensor([3.0, 0.0]).glu().tolist()
    [1.5]
    """
    value = float_value(self)
    axis = self._axis(dim, "glu")
    size = value.shape[axis]
    if not isinstance(size, int) or size % 2:
        raise ShapeError(f"[glu] axis {dim} of {value.shape} has no halves; its size is odd")
    first, second = part_of(value, 0, size // 2, axis), part_of(value, size // 2, size, axis)
    return self._wrap(first) * self._wrap(second).sigmoid()
