"""Initial values for existing parameters: each function writes a tensor, and returns it.

Under PyTorch's names. Weights are (outputs, inputs, ...), as those of layers are: a weight's fan in
is how many terms one output sums up, its fan out how many outputs one input goes to.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, prod, sqrt
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ferrule.base.calls import one_of
from ferrule.base.helpers import no_attribute
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments

__all__ = [
    "calculate_gain",
    "constant_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_GAINS: Final[dict[str, float]] = {
    **dict.fromkeys(("linear", "sigmoid", "identity"), 1.0),
    **{f"conv{axes}d": 1.0 for axes in (1, 2, 3)},
    **{f"conv_transpose{axes}d": 1.0 for axes in (1, 2, 3)},
    "tanh": 5 / 3,
    "relu": sqrt(2),
    "selu": 3 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor for weights by the activation that follows them.

    `param` is the slope of "leaky_relu" below zero, 0.01 unless given.

    >>> from ferrule.nn.init import calculate_gain
    >>> calculate_gain("tanh")
    1.6666666666666667
    """
    if nonlinearity == "leaky_relu":
        return sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    one_of(nonlinearity, [*_GAINS, "leaky_relu"], "calculate_gain: nonlinearity")
    return _GAINS[nonlinearity]


def _fans(tensor: Tensor, what: str) -> tuple[int, int]:
    """The fan in (terms of one output) and the fan out (outputs of one input)."""
    if tensor.ndim < 2:
        raise ShapeError(
            f"{what}: a weight is (outputs, inputs, ...), and shape {tensor.shape} has less than "
            "two axes; use normal_ or uniform_"
        )
    outputs, inputs, *window = tensor.shape
    return inputs * prod(window), outputs * prod(window)


def _written(tensor: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    with Tensor.no_grad():
        write(tensor)
    return tensor.realize()


# Values of one kind


@checks_arguments
def constant_(tensor: Tensor, val: float) -> Tensor:
    """One value everywhere.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.init import constant_
    >>> constant_(Tensor.zeros(2), 3.0).tolist()
    [3.0, 3.0]
    """
    return _written(tensor, lambda x: x.fill_(val))


@checks_arguments
def ones_(tensor: Tensor) -> Tensor:
    """Ones everywhere.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import init
    >>> init.ones_(Tensor([0.0, 2.0])).tolist()
    [1.0, 1.0]
    """
    return constant_(tensor, 1.0)


@checks_arguments
def zeros_(tensor: Tensor) -> Tensor:
    """Zeros everywhere.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import init
    >>> init.zeros_(Tensor([1.0, 2.0])).tolist()
    [0.0, 0.0]
    """
    return constant_(tensor, 0.0)


@checks_arguments
def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros elsewhere.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.init import eye_
    >>> eye_(Tensor.zeros(2, 3)).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    if tensor.ndim != 2:
        raise ShapeError(f"eye_: a matrix is needed, not shape {tensor.shape}")
    return _written(tensor, lambda x: x.zero_().diagonal().fill_(1))


@checks_arguments
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform random numbers in [a, b).

    >>> from ferrule import Tensor
    >>> from ferrule.nn import init
    >>> init.uniform_(Tensor.zeros(4), 2.0, 3.0).min().item() >= 2.0
    True
    """
    return _written(tensor, lambda x: x.uniform_(a, b))


@checks_arguments
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normally distributed random numbers.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import init
    >>> init.normal_(Tensor.zeros(3, 4)).shape
    (3, 4)
    """
    return _written(tensor, lambda x: x.normal_(mean, std))


@checks_arguments
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Tensor:
    """Normally distributed random numbers of those that are in [a, b].

    >>> from ferrule import Tensor
    >>> from ferrule.nn.init import trunc_normal_
    >>> bool((trunc_normal_(Tensor.zeros(50), a=-1, b=1).abs() <= 1).all())
    True
    """
    if not std > 0:
        raise ValueError(f"trunc_normal_: the standard deviation std is {std}; it must be above 0")
    low, high = (0.5 + 0.5 * erf((end - mean) / std / sqrt(2)) for end in (a, b))
    return _written(
        tensor,
        lambda x: x.uniform_(low, high).assign((x.ndtri() * std + mean).clamp(a, b)),
    )


# Values that keep the variance from layer to layer


@checks_arguments
def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform, with a variance of gain**2 * 2 / (fan in + fan out).

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks"
    (2010).

    >>> from ferrule import Tensor
    >>> from ferrule.nn.init import xavier_uniform_
    >>> bool((xavier_uniform_(Tensor.zeros(3, 3)).abs() <= 1).all())
    True
    """
    bound = gain * sqrt(6 / sum(_fans(tensor, "xavier_uniform_")))
    return uniform_(tensor, -bound, bound)


@checks_arguments
def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal, with a variance of gain**2 * 2 / (fan in + fan out).

    >>> from ferrule import Tensor
    >>> from ferrule.nn import init
    >>> init.xavier_normal_(Tensor.zeros(3, 4)).shape
    (3, 4)
    """
    return normal_(tensor, 0.0, gain * sqrt(2 / sum(_fans(tensor, "xavier_normal_"))))


@checks_arguments
def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Uniform, with a variance of gain**2 / fan in, or fan out if `mode` is "fan_out".

    The gain is that of `nonlinearity`, whose slope below zero is `a`. He and others, "Delving deep
    into rectifiers" (2015).

    >>> from ferrule import Tensor
    >>> from ferrule.nn import init
    >>> init.kaiming_uniform_(Tensor.zeros(3, 4)).shape
    (3, 4)
    """
    bound = sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity, "kaiming_uniform_")
    return uniform_(tensor, -bound, bound)


@checks_arguments
def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Normal, with the variance of `kaiming_uniform_`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import init
    >>> init.kaiming_normal_(Tensor.zeros(3, 4)).shape
    (3, 4)
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity, "kaiming_normal_"))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str, what: str) -> float:
    one_of(mode, ("fan_in", "fan_out"), f"{what}: mode")
    fan = _fans(tensor, what)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / sqrt(fan)


@checks_arguments
def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """A matrix of (outputs, all else) whose rows, or columns if fewer, are orthogonal, times gain.

    Saxe and others, "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks" (2013). Decomposed on the host.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.init import orthogonal_
    >>> rows = orthogonal_(Tensor.zeros(2, 4))
    >>> (rows @ rows.T - Tensor.eye(2)).abs().max().item() < 1e-6
    True
    """
    _fans(tensor, "orthogonal_")
    rows, columns = tensor.shape[0], prod(tensor.shape[1:])
    drawn = Tensor.randn(max(rows, columns), min(rows, columns), device=tensor.device)
    q, r = drawn.qr()
    q = q * r.diagonal().sign()  # so that every rotation is as likely
    q = q if rows >= columns else q.T
    return _written(tensor, lambda x: x.assign((q * gain).reshape(*tensor.shape)))


# What newcomers look for, and what does it here.
_INSTEAD = {
    "dirac_": "zeros_(weight), and ones at the middles: weight[i, i, 1, 1] = 1",
    "glorot_normal_": "xavier_normal_ is its other name",
    "glorot_uniform_": "xavier_uniform_ is its other name",
    "he_normal_": "kaiming_normal_ is its other name",
    "he_uniform_": "kaiming_uniform_ is its other name",
    "sparse_": "normal_(weight), and weight.mul_(Tensor.rand(*weight.shape) > sparsity)",
}


if not TYPE_CHECKING:  # which would take any name for one of the module

    def __getattr__(name: str) -> NoReturn:
        raise no_attribute(__name__, name, __all__, _INSTEAD)
