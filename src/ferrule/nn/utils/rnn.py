"""Sequences of different lengths for recurrent layers: padded, packed, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.base.calls import one_of
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.packed import PackedSequence
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.checked import checks_arguments

__all__ = [
    "PackedSequence",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


@checks_arguments
def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Packs sequences that are padded to one length: (T, N, ...), or (N, T, ...).

    `lengths` may be a list, an array or a tensor. Numbers of a list or an array are checked, and
    steps beyond the longest sequence are left out. A tensor is not read: a captured function can
    take it as an argument, and T stays. `enforce_sorted` asks for lengths that do not grow.

    Raises `ShapeError` for lengths that do not fit, or are in another order.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import GRU
    >>> from ferrule.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
    >>> packed = pack_padded_sequence(Tensor.ones(5, 2, 3), [4, 1])
    >>> out, last = GRU(3, 6)(packed)
    >>> pad_packed_sequence(out)[0].shape
    (4, 2, 6)
    """
    if input.ndim < 2:
        raise ShapeError(f"[pack_padded_sequence] the input {tuple(input.shape)} has no two axes")
    padded = input.transpose(0, 1) if batch_first else input
    if isinstance(lengths, Tensor):
        counts = lengths
    else:
        numbers = np.asarray(lengths, np.int64)
        _check(numbers, padded, enforce_sorted)
        padded = padded[: int(numbers.max())]
        counts = Tensor(numbers, device=input.device)
    if tuple(counts.shape) != tuple(padded.shape[1:2]):
        raise ShapeError(
            f"[pack_padded_sequence] lengths have the shape {tuple(counts.shape)} for"
            f" {padded.shape[1]} sequences"
        )
    # What is behind the ends may be anything, NaN too.
    return PackedSequence.of(PackedSequence.of(padded, counts).masked(0.0), counts)


def _check(numbers: np.ndarray[Any, Any], padded: Tensor, enforce_sorted: bool) -> None:
    """Raises `ShapeError` for lengths that do not fit padded sequences."""
    if numbers.shape != tuple(padded.shape[1:2]):
        raise ShapeError(
            f"[pack_padded_sequence] lengths {numbers.tolist()} are not one for each of"
            f" {padded.shape[1]} sequences"
        )
    steps = padded.shape[0]
    if numbers.min() < 1 or (isinstance(steps, int) and numbers.max() > steps):
        raise ShapeError(
            f"[pack_padded_sequence] lengths {numbers.tolist()} are not all between 1 and {steps}"
        )
    if enforce_sorted and (np.diff(numbers) > 0).any():
        raise ShapeError(
            f"[pack_padded_sequence] lengths {numbers.tolist()} grow; sort the sequences, the"
            " longest first, or pass enforce_sorted=False"
        )


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The sequences padded to one length, (T, N, ...) or (N, T, ...), and their lengths.

    With `total_length` T is that. Raises `ShapeError` where the sequences are longer.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils.rnn import pack_sequence, pad_packed_sequence
    >>> padded, lengths = pad_packed_sequence(pack_sequence([Tensor([1, 2]), Tensor([3])]), True)
    >>> padded.tolist(), lengths.tolist()
    ([[1, 2], [3, 0]], [2, 1])
    """
    if not isinstance(sequence, PackedSequence):
        kind = type(sequence).__name__
        raise TypeError(f"[pad_packed_sequence] {kind} is no PackedSequence")
    padded = sequence.masked(padding_value)
    if total_length is not None:
        steps = known_size(padded.shape[0], "pad_packed_sequence")
        if steps > total_length:
            raise ShapeError(
                f"[pad_packed_sequence] total_length {total_length} is less than the sequences'"
                f" {steps}"
            )
        axes = [(0, total_length - steps), *[(0, 0)] * (padded.ndim - 1)]
        padded = padded.pad(axes, value=padding_value)
    return padded.transpose(0, 1) if batch_first else padded, sequence.lengths


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences of shape (L, ...) with different L as one tensor, (T, N, ...) or (N, T, ...).

    Raises `ShapeError` for sequences whose other axes differ.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils.rnn import pad_sequence
    >>> pad_sequence([Tensor([1, 2]), Tensor([3])], batch_first=True).tolist()
    [[1, 2], [3, 0]]
    """
    one_of(padding_side, ("right", "left"), "[pad_sequence] padding_side")
    found = list(sequences)
    if not found:
        raise ShapeError("[pad_sequence] there are no sequences")
    sizes = [known_size(part.shape[0], "pad_sequence") for part in found]
    longest = max(sizes)
    padded = []
    for part, size in zip(found, sizes, strict=True):
        gap = (longest - size, 0) if padding_side == "left" else (0, longest - size)
        padded.append(part.pad([gap, *[(0, 0)] * (part.ndim - 1)], value=padding_value))
    return padded[0].stack(*padded[1:], dim=1 if not batch_first else 0)


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs sequences of shape (L, ...); `enforce_sorted` asks for the longest first.

    Raises `ShapeError` for sequences whose other axes differ, or in another order.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils.rnn import pack_sequence
    >>> pack_sequence([Tensor([1]), Tensor([2, 3])], enforce_sorted=False).lengths.tolist()
    [1, 2]
    """
    lengths = [known_size(part.shape[0], "pack_sequence") for part in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


@checks_arguments
def unpad_sequence(
    padded_sequences: Tensor, lengths: Any, batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a padded tensor, each of its own length; `lengths` are read.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils.rnn import unpad_sequence
    >>> [part.tolist() for part in unpad_sequence(Tensor([[1, 2], [3, 0]]), [2, 1], True)]
    [[1, 2], [3]]
    """
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    numbers = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [rows[place, : int(number)] for place, number in enumerate(numbers)]


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that were packed, in their order; lengths are read.

    >>> from ferrule import Tensor
    >>> from ferrule.nn.utils.rnn import pack_sequence, unpack_sequence
    >>> [part.tolist() for part in unpack_sequence(pack_sequence([Tensor([1, 2]), Tensor([3])]))]
    [[1, 2], [3]]
    """
    return unpad_sequence(packed_sequences.padded, packed_sequences.lengths)
