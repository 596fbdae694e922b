"""Activations as layers. `inplace` is accepted, but the input is never changed."""

from __future__ import annotations

from typing import final

from ferrule.nn.functions import layer
from ferrule.nn.module import Layer
from ferrule.nn.parameters import constant
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike


@layer(Tensor.relu, "inplace?")
def ReLU(inplace: bool = False) -> None:
    """max(x, 0).

    >>> from ferrule import Tensor
    >>> from ferrule.nn import ReLU
    >>> ReLU()(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """


@layer(Tensor.relu6, "inplace?")
def ReLU6(inplace: bool = False) -> None:
    """min(max(x, 0), 6).

    >>> from ferrule import Tensor, nn
    >>> nn.ReLU6()(Tensor([-2.0, 3.0, 8.0])).tolist()
    [0.0, 3.0, 6.0]
    """


@layer(Tensor.leaky_relu, "negative_slope= inplace?")
def LeakyReLU(negative_slope: float = 0.01, inplace: bool = False) -> None:
    """x, and `negative_slope` times x below zero.

    >>> from ferrule import Tensor, nn
    >>> nn.LeakyReLU(0.25)(Tensor([-2.0, 3.0])).tolist()
    [-0.5, 3.0]
    """


@layer(Tensor.rrelu, "lower= upper= inplace?")
def RReLU(lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
    """x; below zero times a random number between `lower` and `upper`, or in evaluation their mean.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import RReLU
    >>> RReLU(0.25, 0.75)(Tensor([-4.0, 2.0])).tolist()
    [-2.0, 2.0]
    """


@layer(Tensor.elu, "alpha= inplace?")
def ELU(alpha: float = 1.0, inplace: bool = False) -> None:
    """x, and alpha * (e**x - 1) below zero.

    >>> from ferrule import Tensor, nn
    >>> nn.ELU()(Tensor([0.0, 3.0])).tolist()
    [0.0, 3.0]
    """


@layer(Tensor.selu, "inplace?")
def SELU(inplace: bool = False) -> None:
    """An `ELU` that keeps mean 0 and variance 1.

    >>> from ferrule import Tensor, nn
    >>> round(nn.SELU()(Tensor([1.0])).item(), 4)
    1.0507
    """


@layer(Tensor.celu, "alpha= inplace?")
def CELU(alpha: float = 1.0, inplace: bool = False) -> None:
    """x, and alpha * (e**(x / alpha) - 1) below zero.

    >>> from ferrule import Tensor, nn
    >>> nn.CELU()(Tensor([0.0, 3.0])).tolist()
    [0.0, 3.0]
    """


@layer(Tensor.gelu)
def GELU(approximate: str = "none") -> None:
    """x times the probability that a standard normal number is below it; "tanh" approximates.

    >>> from ferrule import Tensor, nn
    >>> round(nn.GELU()(Tensor([1.0])).item(), 4)
    0.8413
    """


@layer(Tensor.silu, "inplace?")
def SiLU(inplace: bool = False) -> None:
    """x * sigmoid(x).

    >>> from ferrule import Tensor, nn
    >>> round(nn.SiLU()(Tensor([1.0])).item(), 4)
    0.7311
    """


@layer(Tensor.mish, "inplace?")
def Mish(inplace: bool = False) -> None:
    """x * tanh(softplus(x)).

    >>> from ferrule import Tensor, nn
    >>> round(nn.Mish()(Tensor([1.0])).item(), 4)
    0.8651
    """


@layer(Tensor.sigmoid)
def Sigmoid() -> None:
    """1 / (1 + e**-x).

    >>> from ferrule import Tensor, nn
    >>> nn.Sigmoid()(Tensor([0.0])).tolist()
    [0.5]
    """


@layer(Tensor.logsigmoid)
def LogSigmoid() -> None:
    """log(sigmoid(x)).

    >>> from ferrule import Tensor, nn
    >>> round(nn.LogSigmoid()(Tensor([0.0])).item(), 4)
    -0.6931
    """


@layer(Tensor.tanh)
def Tanh() -> None:
    """The hyperbolic tangent.

    >>> from ferrule import Tensor, nn
    >>> round(nn.Tanh()(Tensor([1.0])).item(), 4)
    0.7616
    """


@layer(Tensor.softsign)
def Softsign() -> None:
    """x / (1 + |x|).

    >>> from ferrule import Tensor, nn
    >>> nn.Softsign()(Tensor([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """


@layer(Tensor.hardtanh, "min_val= max_val= inplace?")
def Hardtanh(min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
    """x, limited to [min_val, max_val].

    >>> from ferrule import Tensor, nn
    >>> nn.Hardtanh()(Tensor([-2.0, 0.5, 2.0])).tolist()
    [-1.0, 0.5, 1.0]
    """


@layer(Tensor.hardsigmoid, "inplace?")
def Hardsigmoid(inplace: bool = False) -> None:
    """x / 6 + 1 / 2, limited to [0, 1].

    >>> from ferrule import Tensor, nn
    >>> nn.Hardsigmoid()(Tensor([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """


@layer(Tensor.hardswish, "inplace?")
def Hardswish(inplace: bool = False) -> None:
    """x * hardsigmoid(x).

    >>> from ferrule import Tensor, nn
    >>> nn.Hardswish()(Tensor([0.0, 3.0])).tolist()
    [0.0, 3.0]
    """


@layer(Tensor.softplus)
def Softplus(beta: float = 1.0, threshold: float = 20.0) -> None:
    """log(1 + e**(beta * x)) / beta, and x itself where beta * x is above the threshold.

    >>> from ferrule import Tensor, nn
    >>> round(nn.Softplus()(Tensor([0.0])).item(), 4)
    0.6931
    """


@layer(Tensor.tanhshrink)
def Tanhshrink() -> None:
    """x - tanh(x).

    >>> from ferrule import Tensor, nn
    >>> round(nn.Tanhshrink()(Tensor([1.0])).item(), 4)
    0.2384
    """


@layer(Tensor.softshrink, "lambd")
def Softshrink(lambd: float = 0.5) -> None:
    """x, moved towards zero by `lambd`.

    >>> from ferrule import Tensor, nn
    >>> nn.Softshrink()(Tensor([-2.0, 0.25, 1.0])).tolist()
    [-1.5, 0.0, 0.5]
    """


@layer(Tensor.hardshrink, "lambd")
def Hardshrink(lambd: float = 0.5) -> None:
    """x, and zero where it is at most `lambd` in size.

    >>> from ferrule import Tensor, nn
    >>> nn.Hardshrink()(Tensor([-2.0, 0.25, 1.0])).tolist()
    [-2.0, 0.0, 1.0]
    """


@layer(Tensor.threshold, "threshold= value= inplace?")
def Threshold(threshold: float, value: float, inplace: bool = False) -> None:
    """x above the threshold, `value` elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.Threshold(1.0, -1.0)(Tensor([0.5, 2.0])).tolist()
    [-1.0, 2.0]
    """


@layer(Tensor.glu)
def GLU(dim: int = -1) -> None:
    """The first half along an axis, times the sigmoid of the second.

    >>> from ferrule import Tensor, nn
    >>> nn.GLU()(Tensor([4.0, 0.0])).tolist()
    [2.0]
    """


@layer(Tensor.softmax)
def Softmax(dim: int) -> None:
    """Positive numbers of sum 1 along an axis.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Softmax
    >>> Softmax(dim=1)(Tensor([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """


@layer(Tensor.log_softmax)
def LogSoftmax(dim: int) -> None:
    """The logarithm of `Softmax`.

    >>> from ferrule import Tensor, nn
    >>> round(nn.LogSoftmax(0)(Tensor([1.0, 1.0]))[0].item(), 4)
    -0.6931
    """


@layer(Tensor.softmin)
def Softmin(dim: int) -> None:
    """`Softmax` of -x.

    >>> from ferrule import Tensor, nn
    >>> nn.Softmin(0)(Tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """


def _softmax_of_channels(x: Tensor) -> Tensor:
    return x.softmax(-3)


@layer(_softmax_of_channels)
def Softmax2d() -> None:
    """`Softmax` over the channels of (N, C, H, W) or (C, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.Softmax2d()(Tensor.zeros(1, 2, 1, 1)).flatten().tolist()
    [0.5, 0.5]
    """


@final
class PReLU(Layer):
    """x, and below zero x times a slope that is learnt: one, or one for each channel.

    Raises `ShapeError` if there are several slopes and the input has another number of channels.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import PReLU
    >>> PReLU()(Tensor([-2.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    _shown = "num_parameters="

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
