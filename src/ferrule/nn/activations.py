"""Activations as layers. `inplace` is accepted, but the input is never changed."""

from __future__ import annotations

from typing import final

from ferrule.nn.functions import layer
from ferrule.nn.parameters import constant
from ferrule.nn.shown import Shown
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike


@layer
def ReLU(x: Tensor, /, inplace: bool = False) -> Tensor:
    """max(x, 0).

    >>> from ferrule import Tensor
    >>> from ferrule.nn import ReLU
    >>> ReLU()(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return x.relu()


@layer
def ReLU6(x: Tensor, /, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6).

    >>> from ferrule import Tensor, nn
    >>> nn.ReLU6()(Tensor([-2.0, 3.0, 8.0])).tolist()
    [0.0, 3.0, 6.0]
    """
    return x.relu6()


@layer
def LeakyReLU(x: Tensor, /, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x, and `negative_slope` times x below zero.

    >>> from ferrule import Tensor, nn
    >>> nn.LeakyReLU(0.25)(Tensor([-2.0, 3.0])).tolist()
    [-0.5, 3.0]
    """
    return x.leaky_relu(negative_slope)


@layer
def RReLU(
    x: Tensor, /, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False
) -> Tensor:
    """x; below zero times a random number between `lower` and `upper`, or in evaluation their mean.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import RReLU
    >>> RReLU(0.25, 0.75)(Tensor([-4.0, 2.0])).tolist()
    [-2.0, 2.0]
    """
    return x.rrelu(lower, upper)


@layer
def ELU(x: Tensor, /, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, and alpha * (e**x - 1) below zero.

    >>> from ferrule import Tensor, nn
    >>> nn.ELU()(Tensor([0.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    return x.elu(alpha)


@layer
def SELU(x: Tensor, /, inplace: bool = False) -> Tensor:
    """An `ELU` that keeps mean 0 and variance 1.

    >>> from ferrule import Tensor, nn
    >>> round(nn.SELU()(Tensor([1.0])).item(), 4)
    1.0507
    """
    return x.selu()


@layer
def CELU(x: Tensor, /, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, and alpha * (e**(x / alpha) - 1) below zero.

    >>> from ferrule import Tensor, nn
    >>> nn.CELU()(Tensor([0.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    return x.celu(alpha)


@layer
def GELU(x: Tensor, /, approximate: str = "none") -> Tensor:
    """x times the probability that a standard normal number is below it; "tanh" approximates.

    >>> from ferrule import Tensor, nn
    >>> round(nn.GELU()(Tensor([1.0])).item(), 4)
    0.8413
    """
    return x.gelu(approximate)


@layer
def SiLU(x: Tensor, /, inplace: bool = False) -> Tensor:
    """x * sigmoid(x).

    >>> from ferrule import Tensor, nn
    >>> round(nn.SiLU()(Tensor([1.0])).item(), 4)
    0.7311
    """
    return x.silu()


@layer
def Mish(x: Tensor, /, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x)).

    >>> from ferrule import Tensor, nn
    >>> round(nn.Mish()(Tensor([1.0])).item(), 4)
    0.8651
    """
    return x.mish()


@layer
def Sigmoid(x: Tensor, /) -> Tensor:
    """1 / (1 + e**-x).

    >>> from ferrule import Tensor, nn
    >>> nn.Sigmoid()(Tensor([0.0])).tolist()
    [0.5]
    """
    return x.sigmoid()


@layer
def LogSigmoid(x: Tensor, /) -> Tensor:
    """log(sigmoid(x)).

    >>> from ferrule import Tensor, nn
    >>> round(nn.LogSigmoid()(Tensor([0.0])).item(), 4)
    -0.6931
    """
    return x.logsigmoid()


@layer
def Tanh(x: Tensor, /) -> Tensor:
    """The hyperbolic tangent.

    >>> from ferrule import Tensor, nn
    >>> round(nn.Tanh()(Tensor([1.0])).item(), 4)
    0.7616
    """
    return x.tanh()


@layer
def Softsign(x: Tensor, /) -> Tensor:
    """x / (1 + |x|).

    >>> from ferrule import Tensor, nn
    >>> nn.Softsign()(Tensor([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    return x.softsign()


@layer
def Hardtanh(
    x: Tensor, /, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """x, limited to [min_val, max_val].

    >>> from ferrule import Tensor, nn
    >>> nn.Hardtanh()(Tensor([-2.0, 0.5, 2.0])).tolist()
    [-1.0, 0.5, 1.0]
    """
    return x.hardtanh(min_val, max_val)


@layer
def Hardsigmoid(x: Tensor, /, inplace: bool = False) -> Tensor:
    """x / 6 + 1 / 2, limited to [0, 1].

    >>> from ferrule import Tensor, nn
    >>> nn.Hardsigmoid()(Tensor([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return x.hardsigmoid()


@layer
def Hardswish(x: Tensor, /, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x).

    >>> from ferrule import Tensor, nn
    >>> nn.Hardswish()(Tensor([0.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    return x.hardswish()


@layer
def Softplus(x: Tensor, /, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + e**(beta * x)) / beta, and x itself where beta * x is above the threshold.

    >>> from ferrule import Tensor, nn
    >>> round(nn.Softplus()(Tensor([0.0])).item(), 4)
    0.6931
    """
    return x.softplus(beta, threshold)


@layer
def Tanhshrink(x: Tensor, /) -> Tensor:
    """x - tanh(x).

    >>> from ferrule import Tensor, nn
    >>> round(nn.Tanhshrink()(Tensor([1.0])).item(), 4)
    0.2384
    """
    return x.tanhshrink()


@layer
def Softshrink(x: Tensor, /, lambd: float = 0.5) -> Tensor:
    """x, moved towards zero by `lambd`.

    >>> from ferrule import Tensor, nn
    >>> nn.Softshrink()(Tensor([-2.0, 0.25, 1.0])).tolist()
    [-1.5, 0.0, 0.5]
    """
    return x.softshrink(lambd)


@layer
def Hardshrink(x: Tensor, /, lambd: float = 0.5) -> Tensor:
    """x, and zero where it is at most `lambd` in size.

    >>> from ferrule import Tensor, nn
    >>> nn.Hardshrink()(Tensor([-2.0, 0.25, 1.0])).tolist()
    [-2.0, 0.0, 1.0]
    """
    return x.hardshrink(lambd)


@layer
def Threshold(x: Tensor, /, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x above the threshold, `value` elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.Threshold(1.0, -1.0)(Tensor([0.5, 2.0])).tolist()
    [-1.0, 2.0]
    """
    return x.threshold(threshold, value)


@layer
def GLU(x: Tensor, /, dim: int = -1) -> Tensor:
    """The first half along an axis, times the sigmoid of the second.

    >>> from ferrule import Tensor, nn
    >>> nn.GLU()(Tensor([4.0, 0.0])).tolist()
    [2.0]
    """
    return x.glu(dim)


@layer
def Softmax(x: Tensor, /, dim: int) -> Tensor:
    """Positive numbers of sum 1 along an axis.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Softmax
    >>> Softmax(dim=1)(Tensor([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """
    return x.softmax(dim)


@layer
def LogSoftmax(x: Tensor, /, dim: int) -> Tensor:
    """The logarithm of `Softmax`.

    >>> from ferrule import Tensor, nn
    >>> round(nn.LogSoftmax(0)(Tensor([1.0, 1.0]))[0].item(), 4)
    -0.6931
    """
    return x.log_softmax(dim)


@layer
def Softmin(x: Tensor, /, dim: int) -> Tensor:
    """`Softmax` of -x.

    >>> from ferrule import Tensor, nn
    >>> nn.Softmin(0)(Tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """
    return (-x).softmax(dim)


@layer
def Softmax2d(x: Tensor, /) -> Tensor:
    """`Softmax` over the channels of (N, C, H, W) or (C, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.Softmax2d()(Tensor.zeros(1, 2, 1, 1)).flatten().tolist()
    [0.5, 0.5]
    """
    return x.softmax(-3)


@final
class PReLU(Shown):
    """x, and below zero x times a slope that is learnt: one, or one for each channel.

    Raises `ShapeError` if there are several slopes and the input has another number of channels.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import PReLU
    >>> PReLU()(Tensor([-2.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        self.num_parameters = num_parameters
        self.weight = constant((num_parameters,), init, dtype, device)

    @checks_arguments
    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`, (N, C, ...)."""
        return x.prelu(self.weight)
