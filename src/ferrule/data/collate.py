"""Batches of samples: containers of samples become containers of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor


def default_collate(batch: Sequence[Any]) -> Any:
    """The batch of some samples, each alike: tensors, arrays and numbers are stacked.

    Dicts, lists, tuples and named tuples become such of batches (tuples become lists), texts a
    list. Python floats become float64, whole numbers int64.

    Raises `ShapeError` for tensors of different shapes, `ValueError` for samples with different
    numbers of parts, `TypeError` for what cannot be in a batch.

    >>> from ferrule.data import default_collate
    >>> found = default_collate([{"x": [1.0, 2.0], "name": "a"}, {"x": [3.0, 4.0], "name": "b"}])
    >>> [one.tolist() for one in found["x"]], found["name"]
    ([[1.0, 3.0], [2.0, 4.0]], ['a', 'b'])
    """
    first = batch[0]
    if isinstance(first, Tensor):
        _check([one.shape for one in batch])
        return Tensor.stack(*batch)
    if isinstance(first, np.ndarray | np.generic):
        arrays = [np.asarray(one) for one in batch]
        _check([one.shape for one in arrays])
        return Tensor(np.stack(arrays))
    if isinstance(first, bool):
        return Tensor([*batch], dtype=dtypes.bool)
    if isinstance(first, int | float):
        return Tensor([*batch], dtype=dtypes.int64 if isinstance(first, int) else dtypes.float64)
    if isinstance(first, str | bytes):
        return [*batch]
    if isinstance(first, Mapping):
        parts = {key: default_collate([one[key] for one in batch]) for key in first}
        return parts if type(first) is dict else _like(first, parts)
    if isinstance(first, Sequence):
        if any([len(one) != len(first) for one in batch]):
            sizes = sorted({len(one) for one in batch})
            raise ValueError(f"samples of one batch have {sizes} parts; give a collate_fn")
        columns = [default_collate(column) for column in zip(*batch, strict=True)]
        if hasattr(first, "_fields"):
            return type(first)(*columns)
        return columns if type(first) in (tuple, list) else _like(first, columns)
    raise TypeError(
        f"a batch has tensors, arrays, numbers, texts, dicts and lists, and no {type(first)}; give "
        "a collate_fn that makes batches of them"
    )


def default_convert(sample: Any) -> Any:
    """A sample without a batch: arrays in it become tensors.

    >>> import numpy as np
    >>> from ferrule.data import default_convert
    >>> default_convert([np.ones(2), "a"])[1]
    'a'
    """
    if isinstance(sample, np.ndarray | np.generic):
        return Tensor(np.asarray(sample))
    if isinstance(sample, Mapping):
        return _like(sample, {key: default_convert(part) for key, part in sample.items()})
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*map(default_convert, sample))
    if isinstance(sample, list | tuple):
        return [default_convert(part) for part in sample]
    return sample


def _check(shapes: Sequence[tuple[Any, ...]]) -> None:
    if any([shape != shapes[0] for shape in shapes]):
        different = ", ".join(map(str, dict.fromkeys(shapes)))
        raise ShapeError(
            f"samples of one batch have the shapes {different}; pad them, or give a collate_fn"
        )


def _like(container: Any, parts: Any) -> Any:
    """The parts in a container of that type; as they are if it cannot be made of them."""
    try:
        return type(container)(parts)
    except TypeError:
        return parts
