"""Layers of matrix products and look-ups: `Linear`, `Bilinear`, `Embedding`."""

from __future__ import annotations

from typing import Self, final

from ferrule.dtype import DType
from ferrule.nn.parameters import filter_weights, inverse_root, uniform
from ferrule.shape.view import ShapeError
from ferrule.tensor import Tensor


@final
class Linear:
    """`x @ weight.T + bias`: (..., in_features) to (..., out_features).

    `weight` is (out_features, in_features), `bias` (out_features,) or None.

    >>> Linear(3, 2)(Tensor.ones(4, 3)).shape
    (4, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        shape = (out_features, in_features)
        self.weight, self.bias = filter_weights(shape, out_features, bias, dtype, device)

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        return x.linear(self.weight.transpose(), self.bias)


@final
class Bilinear:
    """`x1 @ weight[k] @ x2 + bias[k]` for each output k, over the last axes.

    `weight` is (out_features, in1_features, in2_features).

    >>> Bilinear(3, 4, 2)(Tensor.ones(5, 3), Tensor.ones(5, 4)).shape
    (5, 2)
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        bound = inverse_root(in1_features)
        shape = (out_features, in1_features, in2_features)
        self.weight = uniform(shape, bound, dtype, device)
        self.bias = uniform((out_features,), bound, dtype, device) if bias else None

    def __call__(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The layer applied to `x1` and `x2`."""
        # For each output a product with x1: (..., 1, in1) @ (out, in1, in2) would repeat x1.
        outputs, first, second = self.weight.shape
        flat = self.weight.permute(1, 0, 2).reshape(first, -1)
        products = x1.matmul(flat).reshape(*x1.shape[:-1], outputs, second)
        out = (products * x2.unsqueeze(-2)).sum(axis=-1)
        return out if self.bias is None else out + self.bias


@final
class Embedding:
    """One row of `weight`, (vocabulary, width), for each index: (...) to (..., width).

    The row `padding_idx` starts at zero and gets no gradient.

    >>> Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        self.padding_idx = _row(padding_idx, num_embeddings)
        values = Tensor.randn(num_embeddings, embedding_dim, dtype=dtype, device=device)
        if self.padding_idx is not None:
            values[self.padding_idx] = 0
        self.weight = values.requires_grad_()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Self:
        """A layer with the rows of `embeddings`, which are trained only if not frozen.

        >>> Embedding.from_pretrained(Tensor([[1.0, 2.0], [3.0, 4.0]]))(Tensor([1])).tolist()
        [[3.0, 4.0]]
        """
        layer = object.__new__(cls)
        layer.padding_idx = _row(padding_idx, embeddings.shape[0])
        layer.weight = embeddings.requires_grad_(not freeze)
        return layer

    def __call__(self, indices: Tensor) -> Tensor:
        """The rows at `indices`."""
        rows = self.weight[indices]
        if self.padding_idx is None:
            return rows
        padding = (indices == self.padding_idx).unsqueeze(-1)
        return padding.where(rows.detach(), rows)


def _row(padding_idx: int | None, rows: int) -> int | None:
    """The number of the padding's row, counted from the start."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ShapeError(
            f"Embedding: padding_idx {padding_idx} is none of {rows} rows; it must be between"
            f" {-rows} and {rows - 1}"
        )
    return padding_idx % rows
