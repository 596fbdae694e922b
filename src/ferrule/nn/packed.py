"""`PackedSequence`: sequences of different lengths as one tensor, and their lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Self, final

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size

Order = np.ndarray[Any, np.dtype[np.int64]]


@final
@dataclasses.dataclass(init=False, eq=False)  # with an initialiser of its own
class PackedSequence:
    """Sequences of different lengths, for `RNN`, `LSTM` and `GRU`; see `nn.utils.rnn`.

    It holds them padded, (T, N, ...), in the order in which they were given, and a tensor of their
    lengths. So a captured function takes other lengths without compiling anything. `data`,
    `batch_sizes` and the indices are PyTorch's: the elements without padding, step by step, longest
    sequence first. They are made, and lengths read, when they are asked for; the constructor takes
    them.

    Raises `ShapeError` for data whose size is not the sum of the batch sizes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils.rnn import pack_sequence
    >>> packed = pack_sequence([Tensor([1.0, 2.0, 3.0]), Tensor([4.0])])
    >>> packed.data.tolist(), packed.batch_sizes.tolist()
    ([1.0, 4.0, 2.0, 3.0], [2, 1, 1])
    """

    padded: Tensor
    """The sequences, (T, N, ...), with zeros behind their ends."""
    lengths: Tensor
    """The length of each, (N,)."""

    def __init__(
        self,
        data: Tensor,
        batch_sizes: Any,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> None:
        sizes = np.asarray(_on_host(batch_sizes), np.int64)
        if sizes.ndim != 1 or not len(sizes) or sizes.sum() != data.shape[0]:
            raise ShapeError(
                f"PackedSequence: data has {data.shape[0]} rows, and the batch sizes"
                f" {sizes.tolist()} add up to {sizes.sum()}"
            )
        number = int(sizes[0])
        order = np.arange(number)
        if sorted_indices is not None:
            order = np.asarray(_on_host(sorted_indices), np.int64)
        elif unsorted_indices is not None:
            order = np.argsort(_on_host(unsorted_indices))
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        inside = np.arange(number)[np.argsort(order)] < sizes[:, None]
        rows = np.where(inside, starts[:, None] + np.argsort(order), 0)
        found = data[Tensor(rows, device=data.device)]
        self.lengths = Tensor(inside.sum(0), device=data.device)
        self.padded = self._mask_of(Tensor(inside, device=data.device), found).where(found, 0)

    @classmethod
    def of(cls, padded: Tensor, lengths: Tensor) -> Self:
        """Sequences that are padded already, (T, N, ...), and their lengths.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.utils.rnn import PackedSequence
        >>> PackedSequence.of(Tensor.ones(3, 2), Tensor([3, 1])).data.shape
        (4,)
        """
        found = object.__new__(cls)
        found.padded, found.lengths = padded, lengths
        return found

    @staticmethod
    def _mask_of(inside: Tensor, like: Tensor) -> Tensor:
        return inside.reshape(*inside.shape, *[1] * (like.ndim - 2))

    def mask(self) -> Tensor:
        """True for each step inside of a sequence, (T, N).

        >>> from ferrule import Tensor
        >>> from ferrule.nn.utils.rnn import PackedSequence
        >>> PackedSequence.of(Tensor.ones(2, 2), Tensor([2, 1])).mask().tolist()
        [[True, True], [True, False]]
        """
        steps = Tensor.arange(self.padded.shape[0], device=self.lengths.device)
        return steps.unsqueeze(1) < self.lengths

    def masked(self, value: float) -> Tensor:
        """The padded sequences with another value behind their ends.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.utils.rnn import PackedSequence
        >>> PackedSequence.of(Tensor.ones(2, 2), Tensor([2, 1])).masked(-1.0).tolist()
        [[1.0, 1.0], [1.0, -1.0]]
        """
        found = self._mask_of(self.mask(), self.padded).where(self.padded, value)
        return found.cast(self.padded.dtype)

    # PyTorch's parts, of lengths that are read

    def _order(self) -> tuple[Order, Order]:
        """The lengths, and the sequences' order, the longest first."""
        lengths = self.lengths.numpy().astype(np.int64)
        return lengths, np.argsort(-lengths, kind="stable")

    @property
    def data(self) -> Tensor:
        """The elements of all sequences, step by step, the longest sequence first."""
        lengths, order = self._order()
        steps = known_size(self.padded.shape[0], "PackedSequence")
        places = [step * len(lengths) + order[lengths[order] > step] for step in range(steps)]
        return self.padded.flatten(0, 1)[Tensor(np.concatenate(places), device=self.padded.device)]

    @property
    def batch_sizes(self) -> Tensor:
        """The number of sequences that have each step; int64."""
        lengths, _ = self._order()
        return Tensor((lengths > np.arange(lengths.max())[:, None]).sum(1).astype(np.int64))

    @property
    def sorted_indices(self) -> Tensor | None:
        """The numbers of the sequences, the longest first; None where that is their order."""
        _, order = self._order()
        return None if (np.diff(order) == 1).all() else Tensor(order, dtype=dtypes.int64)

    @property
    def unsorted_indices(self) -> Tensor | None:
        """The place of each sequence among the sorted ones; None where that is its own."""
        _, order = self._order()
        return (
            None if (np.diff(order) == 1).all() else Tensor(np.argsort(order), dtype=dtypes.int64)
        )

    def __iter__(self) -> Iterator[Any]:
        return iter((self.data, self.batch_sizes, self.sorted_indices, self.unsorted_indices))

    def _replace(self, data: Tensor) -> PackedSequence:
        """The same lengths with other data."""
        _, sizes, order, inverse = self
        return type(self)(data, sizes, order, inverse)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """`Tensor.to` of the elements; the lengths follow to a device.

        >>> from ferrule import Tensor
        >>> from ferrule.nn.utils.rnn import pack_sequence
        >>> pack_sequence([Tensor([1.0])]).to("CPU").data.tolist()
        [1.0]
        """
        padded = self.padded.to(*args, **kwargs)
        return self.of(padded, self.lengths.to(padded.device))


def _on_host(given: Any) -> Any:
    return given.numpy() if isinstance(given, Tensor) else given
