"""Positions of elements, their order, and sets of different elements."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ferrule.array_api.data_types import Scalar
from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the largest element, the first of several."""
    return x.argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the smallest element, the first of several."""
    return x.argmin(axis, keepdims)


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The positions of the elements in order."""
    return x.argsort(axis, descending, stable).cast(dtypes.default_int)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order."""
    return x.sort(axis, descending, stable).values


def count_nonzero(
    x: Tensor, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """The number of elements along the axes that are not 0."""
    return x.count_nonzero(axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """For each axis the positions of the elements other than 0; computes the tensor now."""
    if x.ndim == 0:
        raise ShapeError("[nonzero] a tensor without axes has no positions; use x.reshape((1,))")
    return x.nonzero().unbind(1)


def where(condition: Tensor, x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
    """x1 where the condition holds, x2 elsewhere."""
    return condition.where(x1, x2)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The elements at some positions of an axis, which a vector need not name."""
    if axis is None and x.ndim != 1:
        raise ShapeError(f"[take] needs an axis for a tensor of shape {x.shape}")
    return x.index_select(0 if axis is None else axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """For each position in `indices`, the element there along an axis."""
    return x.take_along_dim(indices, axis)


def searchsorted(
    x1: Tensor,
    x2: Tensor | Scalar,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: Tensor | None = None,
) -> Tensor:
    """The position in the sorted vector x1 at which each value of x2 keeps it sorted."""
    return x1.searchsorted(x2, side=side, sorter=sorter).cast(dtypes.default_int)


# *** sets ***


class UniqueAll(NamedTuple):
    """The different elements, their first positions, the inverse and the counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The different elements, and their counts."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The different elements, and the position of each element among them."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different elements in order, their first positions in flat x, the inverse, the counts."""
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    places = inverse.flatten().argsort(stable=True)
    starts = counts.cumsum(dtype=counts.dtype) - counts
    return UniqueAll(values, *[_position(part) for part in (places[starts], inverse, counts)])


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different elements in order, and the count of each."""
    values, counts = x.unique(return_counts=True)
    return UniqueCounts(values, _position(counts))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different elements in order, and the position of each element of x among them."""
    values, inverse = x.unique(return_inverse=True)
    return UniqueInverse(values, _position(inverse))


def unique_values(x: Tensor, /) -> Tensor:
    """The different elements in order."""
    values: Tensor = x.unique()
    return values


def _position(x: Tensor) -> Tensor:
    return x.cast(dtypes.default_int)
