"""Layers of matrix products: `Linear`, `Bilinear`."""

from __future__ import annotations

from typing import final

from ferrule.nn.module import Layer
from ferrule.nn.parameters import check_sizes, filter_weights, inverse_root, uniform
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike


@final
class Linear(Layer):
    """`x @ weight.T + bias`: (..., in_features) to (..., out_features).

    `weight` is (out_features, in_features), `bias` (out_features,) or None.

    Raises `ShapeError` for a negative number of features, or an input of another width.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Linear
    >>> Linear(3, 2)(Tensor.ones(4, 3)).shape
    (4, 2)
    """

    _shown = "in_features= out_features= bias="

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        check_sizes(self, in_features=in_features, out_features=out_features)
        shape = (out_features, in_features)
        self.weight, self.bias = filter_weights(shape, out_features, bias, dtype, device)

    @property
    def in_features(self) -> int:
        """The size of the last axis of the input."""
        return int(self.weight.shape[1])

    @property
    def out_features(self) -> int:
        """The size of the last axis of the output."""
        return int(self.weight.shape[0])

    @checks_arguments
    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        return x.linear(self.weight.transpose(), self.bias)


@final
class Bilinear(Layer):
    """`x1 @ weight[k] @ x2 + bias[k]` for each output k, over the last axes.

    `weight` is (out_features, in1_features, in2_features).

    Raises `ShapeError` for a negative number of features, or inputs of other widths.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Bilinear
    >>> Bilinear(3, 4, 2)(Tensor.ones(5, 3), Tensor.ones(5, 4)).shape
    (5, 2)
    """

    _shown = "in1_features= in2_features= out_features= bias="

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        check_sizes(self, in1=in1_features, in2=in2_features, out_features=out_features)
        bound = inverse_root(in1_features)
        shape = (out_features, in1_features, in2_features)
        self.weight = uniform(shape, bound, dtype, device)
        self.bias = uniform((out_features,), bound, dtype, device) if bias else None

    @property
    def in1_features(self) -> int:
        """The size of the last axis of the first input."""
        return int(self.weight.shape[1])

    @property
    def in2_features(self) -> int:
        """The size of the last axis of the second input."""
        return int(self.weight.shape[2])

    @property
    def out_features(self) -> int:
        """The size of the last axis of the output."""
        return int(self.weight.shape[0])

    @checks_arguments
    def __call__(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The layer applied to `x1` and `x2`."""
        # For each output a product with x1: (..., 1, in1) @ (out, in1, in2) would repeat x1.
        outputs, first, second = self.weight.shape
        flat = self.weight.permute(1, 0, 2).reshape(first, -1)
        products = x1.matmul(flat).reshape(*x1.shape[:-1], outputs, second)
        out = (products * x2.unsqueeze(-2)).sum(axis=-1)
        return out if self.bias is None else out + self.bias
