"""Sequences and values that may be left out: lists, and None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.onnx.registry import rule
from ferrule.onnx.values import Array, Host, as_tensor, ints
from ferrule.tensor import Tensor


@rule("SequenceConstruct", 11)
def construct(*parts: Any) -> list[Any]:
    return list(parts)


@rule("SequenceEmpty", 11)
def empty(*, dtype: int = 1) -> list[Any]:
    return []


@rule("SequenceAt", 11)
def at(parts: list[Any], position: Host) -> Any:
    return parts[int(position.item())]


@rule("SequenceInsert", 11)
def insert(parts: list[Any], part: Any, position: Host | None = None) -> list[Any]:
    place = len(parts) if position is None else int(position.item())
    place = place + len(parts) if place < 0 else place
    return [*parts[:place], part, *parts[place:]]


@rule("SequenceErase", 11)
def erase(parts: list[Any], position: Host | None = None) -> list[Any]:
    place = (-1 if position is None else int(position.item())) % len(parts)
    return [*parts[:place], *parts[place + 1 :]]


@rule("SequenceLength", 11)
def length(parts: list[Any]) -> Array:
    return np.asarray(len(parts), np.int64)


@rule("ConcatFromSequence", 11)
def concat_from_sequence(parts: list[Any], *, axis: int, new_axis: int = 0) -> Tensor:
    tensors = [as_tensor(part) for part in parts]
    return Tensor.stack(*tensors, dim=axis) if new_axis else Tensor.cat(*tensors, dim=axis)


@rule("SplitToSequence", 11)
def split_to_sequence(
    x: Tensor, split: Host | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Any]:
    size = x.shape[axis]
    if split is None:
        parts = x.split([1] * size, axis)
        return list(parts) if keepdims else [part.squeeze(axis) for part in parts]
    sizes: Sequence[int] = ints(split)
    if split.ndim == 0:
        step = sizes[0]
        sizes = [min(step, size - start) for start in range(0, size, step)]
    return list(x.split(list(sizes), axis))


@rule("SequenceMap", 17)
def sequence_map(parts: list[Any], *others: Any, body: Any) -> tuple[list[Any], ...]:
    results = [
        body(part, *(other[i] if isinstance(other, list) else other for other in others))
        for i, part in enumerate(parts)
    ]
    return tuple([result[i] for result in results] for i in range(body.n_outputs))


@rule("Optional", 15)
def optional(value: Any = None, *, type: Any = None) -> Any:
    return value


@rule("OptionalGetElement", 15)
def optional_element(value: Any) -> Any:
    return value


@rule("OptionalHasElement", 15)
def has_element(value: Any = None) -> Array:
    return np.asarray(value is not None)
