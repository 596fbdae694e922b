"""Sorting, and the elements that an order picks: the k-th, the median, quantiles, the mode.

Orders are computed when they are needed, on the host where a device has no functions for it.
Sorting is stable: equal elements stay in their order. NaN counts as the largest. Positions are
int32. Gradients flow to the elements that were picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.base.calls import one_of
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.expr import as_expr
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import check_devices, known_size
from ferrule.tensor.data import from_host
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import plain
from ferrule.tensor.reduce import order
from ferrule.tensor.reduce.reductions import (
    Axes,
    ValuesIndices,
    check_not_empty,
    reduced_axes,
    with_axis,
)
from ferrule.tensor.reduce.scan import along


def _at(
    self: Tensor, axis: int, what: str, positions: Callable[[TracedValue], TracedValue]
) -> ValuesIndices[Tensor]:
    """The elements at some positions along an axis, and the positions."""
    tensor, place = with_axis(self, axis, what)

    def pick(x: TracedValue) -> Sequence[TracedValue]:
        where = positions(x)
        return order.taken(x, where), where

    values, indices = along(place, tensor._read(), pick)
    return ValuesIndices(self._wrap(values), self._wrap(indices))


def _one_at(
    self: Tensor,
    axis: int,
    keepdim: bool,
    what: str,
    positions: Callable[[TracedValue], TracedValue],
) -> ValuesIndices[Tensor]:
    """One element along an axis, and its position."""
    tensor, place = with_axis(self, axis, what)
    check_not_empty(tensor, (place,), what)
    picked = _at(tensor, place, what, positions)
    shape = [size for i, size in enumerate(tensor._shape) if i != place]
    if keepdim and self._shape:
        shape.insert(place, 1)
    return ValuesIndices(*[part.reshape(tuple(shape)) for part in picked])


@method
def sort(
    self: Tensor, axis: int = -1, descending: bool = False, stable: bool = True
) -> ValuesIndices[Tensor]:
    """The elements in their order along an axis, and where each was. Always stable.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> values, indices = Tensor([3, 1, 2]).sort()
    >>> values.tolist(), indices.tolist()
    ([1, 2, 3], [1, 2, 0])
    """
    sorted_ = _at(self, axis, "sort", lambda x: order.argsort(x, descending))
    return ValuesIndices(*[part.reshape(self._shape) for part in sorted_])


@method
def argsort(self: Tensor, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Where each element of the sorted tensor is, along an axis. Always stable.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([3, 1, 2]).argsort(descending=True).tolist()
    [0, 2, 1]
    """
    return self.sort(axis, descending).indices


@method
def msort(self: Tensor) -> Tensor:
    """The elements in their order along the first axis.

    >>> from ferrule import Tensor
    >>> Tensor([[3, 1], [2, 5]]).msort().tolist()
    [[2, 1], [3, 5]]
    """
    return self.sort(0).values


@method
def topk(
    self: Tensor, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> ValuesIndices[Tensor]:
    """The k largest, or smallest, elements along an axis, the first first; and where they are.

    They are sorted in any case; of equal elements the first count. Raises `ShapeError` for an axis
    that is out of range.

    >>> from ferrule import Tensor
    >>> values, indices = Tensor([3, 1, 2]).topk(2)
    >>> values.tolist(), indices.tolist()
    ([3, 2], [0, 2])
    """
    tensor, place = with_axis(self, axis, "topk")
    k, size = plain(k), as_expr(tensor._shape[place]).min  # of a symbolic size the least
    if not 0 <= k <= size:
        raise ShapeError(f"[topk] k is from 0 to {size}, the size of axis {axis}, not {k}")

    picked = _at(tensor, place, "topk", lambda x: order.first(x, 0, k, largest))
    return picked if self._shape else ValuesIndices(*[part.reshape(()) for part in picked])


@method
def kthvalue(self: Tensor, k: int, axis: int = -1, keepdim: bool = False) -> ValuesIndices[Tensor]:
    """The k-th smallest element along an axis, counted from 1, and where it is.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([3.0, 1.0, 2.0]).kthvalue(2).values.item()
    2.0
    """
    tensor, place = with_axis(self, axis, "kthvalue")
    size = known_size(tensor._shape[place], "kthvalue")
    if not 1 <= k <= size:
        raise ShapeError(f"[kthvalue] k is from 1 to {size}, the size of axis {axis}, not {k}")
    return _one_at(self, axis, keepdim, "kthvalue", lambda x: order.first(x, k - 1, k))


@method
def median(self: Tensor, axis: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the lower of two; NaN if there is one.

    Without an axis, of all elements, a tensor; along one, as `kthvalue`, with positions. Raises
    `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> x = Tensor([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])
    >>> x.median().item(), x.median(1).values.tolist()
    (3.0, [2.0, 5.0])
    """
    return _median(self, axis, keepdim, False, "median")


@method
def nanmedian(self: Tensor, axis: int | None = None, keepdim: bool = False) -> Any:
    """The middle of the elements that are not NaN, as `median`; NaN where all are.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([3.0, float("nan"), 2.0, 1.0]).nanmedian().item()
    2.0
    """
    return _median(self, axis, keepdim, True, "nanmedian")


def _median(self: Tensor, axis: int | None, keepdim: bool, ignore_nan: bool, what: str) -> Any:
    if axis is None:
        found = _median(self.flatten(), 0, False, ignore_nan, what).values
        return found.reshape((1,) * self.ndim) if keepdim else found
    return _one_at(self, axis, keepdim, what, lambda x: order.median(x, ignore_nan))


@method
def mode(self: Tensor, axis: int = -1, keepdim: bool = False) -> ValuesIndices[Tensor]:
    """The most frequent element along an axis, the smallest of several, and its last position.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([2, 1, 2, 1, 3]).mode().values.item()
    1
    """
    return _one_at(self, axis, keepdim, "mode", order.mode)


@method
def quantile(
    self: Tensor, q: Any, axis: Axes = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """The value below which a fraction q of the elements is, along some axes or of all.

    Several q (a list or a vector) make a new first axis. Between two elements `interpolation` says
    which: "linear", "lower", "higher", "midpoint" or "nearest". NaN where there is one, and for a q
    in a tensor that is not from 0 to 1. Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 1.0, 2.0, 4.0]).quantile([0.5, 0.75]).tolist()
    [1.5, 2.5]
    """
    return _quantile(self, q, axis, keepdim, interpolation, False, "quantile")


@method
def nanquantile(
    self: Tensor, q: Any, axis: Axes = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """The quantile of the elements that are not NaN, as `quantile`; NaN if all are.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 1.0, float("nan")]).nanquantile(0.5).item()
    0.5
    """
    return _quantile(self, q, axis, keepdim, interpolation, True, "nanquantile")


def _quantile(
    self: Tensor, q: Any, axis: Axes, keepdim: bool, interpolation: str, ignore_nan: bool, what: str
) -> Tensor:
    one_of(interpolation, order.INTERPOLATIONS, f"[{what}] interpolation")
    value = self._read()
    if not dtypes.is_float(value.dtype):
        raise DTypeError(f"[{what}] is defined for floats, not {value.dtype}; cast it first")
    fractions = _fractions(self, q, what)
    axes = reduced_axes(self, axis, what)
    check_not_empty(self, axes, what)
    kept = [i for i in range(len(value.shape)) if i not in axes]
    rest = tuple([value.shape[i] for i in kept])
    length = prod_sint([value.shape[i] for i in axes])
    rows = value.permute([*kept, *axes]).reshape((*rest, length))
    several = fractions.reshape(fractions.shape or (1,))
    found = order.quantiles(rows, several, interpolation, ignore_nan)
    front = found.permute([len(rest), *range(len(rest))])
    shape = [1 if i in axes else n for i, n in enumerate(self._shape)] if keepdim else rest
    return self._wrap(front.reshape((*fractions.shape, *shape)))


def _fractions(self: Tensor, q: Any, what: str) -> TracedValue:
    """The fractions as float64, of at most one axis."""
    if isinstance(q, Tensor):
        fractions = q._read().cast(dtypes.float64)
        check_devices(self._read(), fractions, what)
    else:
        try:
            known = np.asarray(q, np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"[{what}] q is a number, or several, not {q!r}") from None
        if not ((known >= 0) & (known <= 1)).all():
            raise ValueError(f"[{what}] q is from 0 to 1, not {q}")
        fractions = from_host(known, dtypes.float64, self.device)
    if len(fractions.shape) > 1:
        raise ShapeError(f"[{what}] q of shape {fractions.shape} has more than one axis")
    return fractions
