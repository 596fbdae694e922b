"""Layers that look rows of a table up: `Embedding`, `EmbeddingBag`."""

from __future__ import annotations

from typing import Self, final

from ferrule.ir.shape.view import ShapeError
from ferrule.nn.module import Layer
from ferrule.nn.parameters import check_sizes
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike


@final
class Embedding(Layer):
    """One row of `weight`, (vocabulary, width), for each index: (...) to (..., width).

    The row `padding_idx` starts at zero and gets no gradient. Rows used whose norm of the order
    `norm_type` is above `max_norm` are scaled down to it, in the table. `scale_grad_by_freq`
    divides gradients by how often an index occurs.

    **An index out of range gives a row of zeros**, where PyTorch raises: it is known only when it
    runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Embedding
    >>> Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    _shown = "num_embeddings embedding_dim padding_idx? max_norm? norm_type? scale_grad_by_freq?"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        check_sizes(self, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.padding_idx = _row(padding_idx, num_embeddings, "Embedding")
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.weight = _table(num_embeddings, embedding_dim, self.padding_idx, dtype, device)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
    ) -> Self:
        """A layer with the rows of `embeddings`, which are trained only if not frozen.

        >>> from ferrule import Tensor
        >>> from ferrule.nn import Embedding
        >>> Embedding.from_pretrained(Tensor([[1.0, 2.0], [3.0, 4.0]]))(Tensor([1])).tolist()
        [[3.0, 4.0]]
        """
        layer = cls.__new__(cls)
        layer.padding_idx = _row(padding_idx, embeddings.shape[0], "Embedding")
        layer.max_norm = max_norm
        layer.norm_type = norm_type
        layer.scale_grad_by_freq = scale_grad_by_freq
        layer.weight = embeddings.requires_grad_(not freeze)
        return layer

    @property
    def num_embeddings(self) -> int:
        """The number of rows."""
        return int(self.weight.shape[0])

    @property
    def embedding_dim(self) -> int:
        """The width of a row."""
        return int(self.weight.shape[1])

    @checks_arguments
    def __call__(self, indices: Tensor) -> Tensor:
        """The rows at `indices`."""
        return indices.embedding(
            self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq
        )


@final
class EmbeddingBag(Layer):
    """The sum, mean or maximum ("sum", "mean", "max") of several rows of `weight` for each bag.

    Indices are (bags, positions), or a vector with the `offsets` at which the bags begin; the
    result is (bags, width). The other settings are those of `Embedding`. With
    `include_last_offset` the last offset is the end of the last bag.

    Raises `ShapeError` for a vector of indices without offsets.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import EmbeddingBag
    >>> EmbeddingBag(10, 4)(Tensor([[1, 2, 3], [4, 5, 6]])).shape
    (2, 4)
    """

    _shown = (
        "num_embeddings embedding_dim max_norm? norm_type? scale_grad_by_freq? mode= padding_idx?"
    )

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        self.padding_idx = _row(padding_idx, num_embeddings, "EmbeddingBag")
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.weight = _table(num_embeddings, embedding_dim, self.padding_idx, dtype, device)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:
        """A layer with the rows of `embeddings`, which are trained only if not frozen.

        >>> from ferrule import Tensor
        >>> from ferrule.nn import EmbeddingBag
        >>> layer = EmbeddingBag.from_pretrained(Tensor([[1.0], [3.0]]), mode="sum")
        >>> layer(Tensor([[0, 1]])).tolist()
        [[4.0]]
        """
        layer = cls.__new__(cls)
        layer.padding_idx = _row(padding_idx, embeddings.shape[0], "EmbeddingBag")
        layer.max_norm = max_norm
        layer.norm_type = norm_type
        layer.scale_grad_by_freq = scale_grad_by_freq
        layer.mode = mode
        layer.include_last_offset = include_last_offset
        layer.weight = embeddings.requires_grad_(not freeze)
        return layer

    @property
    def num_embeddings(self) -> int:
        """The number of rows."""
        return int(self.weight.shape[0])

    @property
    def embedding_dim(self) -> int:
        """The width of a row."""
        return int(self.weight.shape[1])

    @checks_arguments
    def __call__(
        self,
        indices: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """One row for each bag of `indices`."""
        return indices.embedding_bag(
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )


def _table(
    rows: int, width: int, padding: int | None, dtype: DTypeLike | None, device: str | None
) -> Tensor:
    """Normally distributed numbers, and zeros in the padding's row."""
    values = Tensor.randn(rows, width, dtype=dtype, device=device)
    if padding is not None:
        values[padding] = 0
    return values.requires_grad_()


def _row(padding_idx: int | None, rows: int, what: str) -> int | None:
    """The number of the padding's row, counted from the start."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ShapeError(
            f"{what}: padding_idx {padding_idx} is none of {rows} rows; it must be between"
            f" {-rows} and {rows - 1}"
        )
    return padding_idx % rows
