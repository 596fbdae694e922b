"""Counterparts of functions that sort, search, count and choose, and of running extremes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tests.fuzz.numpy_functions import Array, Function, as_integers, axes_of, only_if

# -- sorting ---------------------------------------------------------------------------------------


def _argsort(x: Array, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    only_if(x.ndim and x.dtype != np.bool_)
    return np.argsort(-x if descending else x, axis, kind="stable")


def _sort(x: Array, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    places = _argsort(x, axis, descending)
    return np.take_along_axis(x, places, axis), places


def _topk(x: Array, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    places = np.take(_argsort(x, axis, largest), range(k), axis)
    return np.take_along_axis(x, places, axis), places


def _kthvalue(x: Array, k: int, axis: int = -1, keepdim: bool = False) -> Any:
    places = np.take(_argsort(x, axis), [k - 1], axis)
    parts = np.take_along_axis(x, places, axis), places
    return parts if keepdim else tuple(part.squeeze(axis) for part in parts)


def _median(x: Array, keepdim: bool = False) -> Any:
    """The lower of two middle elements."""
    flat = np.sort(x[~np.isnan(x)])
    only_if(flat.size)
    found = flat[(flat.size - 1) // 2]
    return found.reshape((1,) * x.ndim) if keepdim else found


def _quantile(share: float, function: Callable[..., Any]) -> Function:
    def quantile(
        x: Array, q: Any, axis: Any = None, keepdim: bool = False, interpolation: str = "linear"
    ) -> Any:
        shares = np.asarray(q) * share
        return function(x, shares, axes_of(axis), keepdims=keepdim, method=interpolation)

    return quantile


def _chosen(
    x: Array, found: Sequence[Array], values: Array, axis: int = -1, keepdim: bool = False
) -> Any:
    """Values along an axis, which has size 1, and that they are where the positions say."""
    value, place = found
    yield values if keepdim else values.squeeze(axis), value
    places = as_integers(place if keepdim else np.expand_dims(place, axis))
    yield values, np.take_along_axis(x, places, axis)


def _medians(x: Array, found: Sequence[Array], axis: Any = None, keepdim: bool = False) -> Any:
    if axis is None:
        return [(_median(x, keepdim), found[0])]
    only_if(x.ndim and x.size and not np.isnan(x).any())
    middle = np.take(np.sort(x, axis), [(x.shape[axis] - 1) // 2], axis)
    return _chosen(x, found, middle, axis, keepdim)


def _mode(x: Array, found: Sequence[Array], axis: int = -1, keepdim: bool = False) -> Any:
    """The smallest of the most frequent elements."""
    only_if(x.ndim and x.size)

    def most(row: Array) -> Any:
        values, counts = np.unique(row, return_counts=True)
        return values[counts.argmax()]

    values = np.expand_dims(np.apply_along_axis(most, axis, x), axis)
    return _chosen(x, found, values, axis, keepdim)


def _running(function: np.ufunc) -> Function:
    def extremes(x: Array, found: Sequence[Array], axis: int = 0) -> Any:
        only_if(x.ndim and x.size)
        expected = function.accumulate(x, axis)
        value, place = found
        yield expected, value
        yield expected, np.take_along_axis(x, as_integers(place), axis)
        counted = np.arange(x.shape[axis]).reshape([-1] + [1] * (x.ndim - 1 - axis % x.ndim))
        yield place, np.minimum(place, counted)

    return extremes


# -- searching and counting ------------------------------------------------------------------------


def _searchsorted(
    x: Array, values: Any, right: bool = False, side: str | None = None, out_int32: bool = True
) -> Any:
    only_if(x.ndim == 1 and np.all(x[1:] >= x[:-1]))
    only_if(side is None or (side == "right") >= right)
    return np.searchsorted(x, values, "right" if right or side == "right" else "left")


def _bucketize(x: Array, boundaries: Any, out_int32: bool = True, right: bool = False) -> Any:
    edges = np.asarray(boundaries)
    only_if(edges.ndim == 1 and np.all(edges[1:] >= edges[:-1]))
    return np.searchsorted(edges, x, "right" if right else "left")


def _isin(x: Array, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    return np.isin(x, test_elements, invert=invert)


def _bincount(x: Array, weights: Any = None, minlength: int = 0) -> Any:
    return np.bincount(as_integers(x), weights, minlength)


def _binned(x: Array, bins: int, low: float, high: float, margin: float) -> Any:
    """Counts and edges, if no element is so near to an inner edge that its rounding matters."""
    only_if(x.size and isinstance(bins, int))
    if low == high:
        low, high = low - margin, high + margin
    edges = np.linspace(low, high, bins + 1)
    near = np.abs(x.reshape(-1, 1) - edges[1:-1]) < 1e-3 * (high - low) / bins
    only_if(not near.any())
    return np.histogram(x, edges)


def _histc(x: Array, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    low, high = (x.min(), x.max()) if min == max == 0 else (min, max)
    return _binned(x, bins, low, high, 1.0)[0]


def _histogram(x: Array, bins: Any = 10, density: bool = False) -> Any:
    counts, edges = _binned(x, bins, x.min(), x.max(), 0.5)
    return counts / (np.diff(edges) * counts.sum()) if density else counts, edges


def _nonzero_static(x: Array, *, size: int, fill_value: int = -1) -> Any:
    only_if(isinstance(fill_value, int))
    rows = np.argwhere(x)[:size]
    return np.pad(rows, ((0, size - len(rows)), (0, 0)), constant_values=fill_value)


# -- choices ---------------------------------------------------------------------------------------


def _combinations(x: Array, r: int = 2, with_replacement: bool = False) -> Any:
    only_if(x.ndim == 1)
    choose: Any = itertools.combinations_with_replacement if with_replacement else None
    rows = list((choose or itertools.combinations)(x, r))
    return np.reshape(rows, (len(rows), r))


def _cartesian_prod(x: Array, *others: Array) -> Any:
    only_if(all(y.ndim == 1 for y in (x, *others)))
    rows = list(itertools.product(x, *others))
    return np.reshape(rows, (len(rows), 1 + len(others))) if others else x


def _meshgrid(x: Array, *others: Array, indexing: Any = "ij") -> Any:
    only_if(all(y.ndim == 1 for y in (x, *others)))
    return tuple(np.meshgrid(x, *others, indexing=indexing))


def _aminmax(x: Array, *, axis: Any = None, keepdim: bool = False) -> Any:
    axis = axes_of(axis)
    return x.min(axis, keepdims=keepdim), x.max(axis, keepdims=keepdim)


CHOICES: Final[Mapping[str, Function]] = {
    "argsort": _argsort,
    "sort": _sort,
    "topk": _topk,
    "kthvalue": _kthvalue,
    "searchsorted": _searchsorted,
    "bucketize": _bucketize,
    "isin": _isin,
    "nonzero_static": _nonzero_static,
    "combinations": _combinations,
    "cartesian_prod": _cartesian_prod,
    "meshgrid": _meshgrid,
    "aminmax": _aminmax,
}
"""Functions that give operands' elements, or integers."""
COUNTS: Final[Mapping[str, Function]] = {
    "bincount": _bincount,
    "histc": _histc,
    "histogram": _histogram,
}
QUANTILES: Final[Mapping[str, Function]] = {
    "quantile": _quantile(1, np.quantile),
    "nanquantile": _quantile(1, np.nanquantile),
    "percentile": _quantile(0.01, np.quantile),
}
"""Functions of floats."""
PICKED: Final[Mapping[str, Callable[..., Any]]] = {
    "median": _medians,
    "nanmedian": _medians,
    "mode": _mode,
    "cummax": _running(np.maximum),
    "cummin": _running(np.minimum),
}
"""Pairs of what should be and what is: which of equal elements is picked, is left open."""
