"""Searching sorted sequences, counting, and sets of elements."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota
from ferrule.base.calls import one_of
from ferrule.ir.dtype import DTypeError, dtypes, promote
from ferrule.ir.lazyop import UnaryOps
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import check_devices, expanded, known_size, part_of
from ferrule.tensor.data import Array, from_host
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import Operand, as_floats
from ferrule.tensor.reduce import order
from ferrule.tensor.reduce.reductions import T, largest, smallest

_MAX_COMPARED = 32  # test elements up to which `isin` compares with each of them


class Histogram(NamedTuple, Generic[T]):
    """Counts, and the edges of the bins that they are of."""

    hist: T
    bin_edges: T


def _promoted(self: Tensor, other: Any, what: str) -> tuple[TracedValue, TracedValue]:
    """This tensor's value and another's, of one dtype, each with its own shape."""
    a = self._read()
    weak = isinstance(other, bool | int | float | list | tuple) and dtypes.is_float(a.dtype)
    if isinstance(other, Tensor):
        b = other._read()
    else:
        b = from_host(other, a.dtype if weak else None, self.device)
    check_devices(a, b, what)
    dtype = promote(a.dtype, b.dtype)
    return a.cast(dtype), b.cast(dtype)


# -- sorted sequences ----------------------------------------------------------------------------


@method
def searchsorted(
    self: Tensor,
    values: Operand,
    *,
    out_int32: bool = True,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where in this sorted tensor each value would be put in, so that it stays sorted.

    The last axis is sorted, or is so in the order `sorter`. A vector is searched for values of
    any shape, a tensor of more axes for as many rows of values. Of equal elements the place is
    before the first, or behind the last with `right` or `side="right"`. NaN is the largest.
    int32 in any case; computed on the device, by halving.

    >>> from ferrule import Tensor
    >>> Tensor([1, 3, 5]).searchsorted(Tensor([3, 4])).tolist()
    [1, 2]
    """
    behind = _is_right(right, side)
    sequence, wanted = _promoted(self, values, "searchsorted")
    if not sequence.shape:
        raise ShapeError("[searchsorted] a sorted sequence has an axis; this tensor has none")
    if sorter is not None:
        if sorter._shape != sequence.shape:
            raise ShapeError(
                f"[searchsorted] a sorter of shape {sorter._shape} does not fit a sequence of "
                f"shape {sequence.shape}; it is what argsort() gives"
            )
        sequence = order.taken(sequence, sorter._read().cast(dtypes.int32))
    return self._wrap(_searched(sequence, wanted, behind))


@method
def bucketize(
    self: Tensor, boundaries: Any, *, out_int32: bool = True, right: bool = False
) -> Tensor:
    """The number of the interval between sorted boundaries in which each element is.

    Intervals include their right end, with `right` their left one. int32 in any case.

    >>> from ferrule import Tensor
    >>> Tensor([0, 1, 5]).bucketize([1, 3]).tolist()
    [0, 0, 2]
    """
    own, edges = _promoted(self, boundaries, "bucketize")
    if len(edges.shape) != 1:
        raise ShapeError(f"[bucketize] boundaries are a vector, not of shape {edges.shape}")
    return self._wrap(_searched(edges, own, right))


@method
def isin(
    self: Tensor, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """True where an element is among others, or is not if `invert`, as a bool tensor.

    NaN is among none. More than 32 others are sorted first, on the host.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).isin([3, 1]).tolist()
    [True, False, True]
    """
    own, others = _promoted(self, test_elements, "isin")
    found = _is_among(own, self._wrap(others).flatten()._read())
    return self._wrap(found.alu(UnaryOps.NEG) if invert else found)


# -- counting ------------------------------------------------------------------------------------


@method
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on is in a vector of integers, or the sum of its weights.

    As long as the largest number asks for, and `minlength` at least: computes the vector now.

    >>> from ferrule import Tensor
    >>> Tensor([1, 3, 1]).bincount().tolist()
    [0, 2, 0, 1]
    """
    index = self._read()
    if len(index.shape) != 1 or not dtypes.is_int(index.dtype):
        raise DTypeError(
            f"[bincount] counts a vector of integers, not a {index.dtype} tensor of shape "
            f"{index.shape}; cast and flatten it"
        )
    known = self.numpy(copy=False)
    low, high = (int(known.min()), int(known.max())) if known.size else (0, -1)
    if low < 0:
        raise ValueError(f"[bincount] counts numbers from 0 on; the smallest here is {low}")
    counted = index.full(1).cast(dtypes.default_int) if weights is None else weights._read()
    if counted.shape != index.shape:
        raise ShapeError(
            f"[bincount] weights of shape {counted.shape} for numbers of shape {index.shape}; "
            "give one for each"
        )
    size = high + 1 if high + 1 > minlength else minlength
    return self._wrap(counted.scatter(index.cast(dtypes.int32), 0, size))


@method
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements are in each of some intervals of equal width from `min` to `max`.

    From the smallest to the largest element where both are 0. What is outside, and NaN, does
    not count. The dtype is that of the elements, float32 for integers.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0, 1.0]).histc(4, min=0, max=3).tolist()
    [0.0, 2.0, 1.0, 0.0]
    """
    edges = _edges(self, bins, None if min == max == 0 else (min, max), 1, "histc")
    flat = as_floats(self).flatten()._read()
    return self._wrap(_binned(flat, edges, None).cast(flat.dtype))


@method
def histogram(
    self: Tensor,
    bins: Any = 10,
    range: tuple[float, float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram[Tensor]:
    """How many elements are between neighbouring edges, or the sum of their weights; the edges.

    `bins` are the edges, or how many intervals there are in `range`, of equal width; without
    it from the smallest to the largest element. The last interval includes its right end.
    With `density` the areas add up to 1. The edges are constants: they have no gradient.

    >>> from ferrule import Tensor
    >>> hist, edges = Tensor([1.0, 2.0, 1.0]).histogram(2, range=(0.0, 2.0))
    >>> hist.tolist(), edges.tolist()
    ([0.0, 3.0], [0.0, 1.0, 2.0])
    """
    flat = as_floats(self).flatten()._read()
    edges = _edges(self, bins, range, 0.5, "histogram")
    weights = None if weight is None else weight.flatten()._read()
    counts = _binned(flat, edges, weights).cast(flat.dtype)
    if density:
        widths = _ends(edges, 1) - _ends(edges, 0)
        total = counts.sum((0,)).expand(counts.shape)
        counts = counts / (widths * total)
    return Histogram(self._wrap(counts), self._wrap(edges))


def _edges(
    self: Tensor, bins: Any, limits: tuple[float, float] | None, margin: float, what: str
) -> TracedValue:
    """The edges of bins: those given, or at equal distances, and around a single number."""
    value = as_floats(self).flatten()._read().detach()
    if not isinstance(bins, int):
        edges = bins._read() if isinstance(bins, Tensor) else None
        edges = from_host(bins, value.dtype, self.device) if edges is None else edges
        if len(edges.shape) != 1:
            raise ShapeError(f"[{what}] edges are a vector, not of shape {edges.shape}")
        return edges.cast(value.dtype)
    if bins < 1:
        raise ValueError(f"[{what}] the number of bins is at least 1, not {bins}")
    if limits is None and value.shape[0] != 0:
        low, high = smallest(value, (0,)), largest(value, (0,))
    else:
        first, last = limits or (0.0, 0.0)
        if not first <= last:
            raise ValueError(f"[{what}] the range from {first} to {last} has no inside")
        low, high = value.full(first, (1,)), value.full(last, (1,))
    empty = low.equals(high)
    low, high = empty.where(low - margin, low), empty.where(high + margin, high)
    return _evenly(low, high, bins)


# -- sets ----------------------------------------------------------------------------------------


@method
def unique(
    self: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """The different elements in order, or the different parts along an axis; computed now.

    On request also where in them each element is, and how often each occurs: a tensor, or a tuple.
    Each NaN differs from all. Computed on the host. Raises `ShapeError` for an axis that is out of
    range.

    >>> from ferrule import Tensor
    >>> values, counts = Tensor([3, 1, 3]).unique(return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    place = None if axis is None else self._axis(axis, "unique")
    array = order.sort_keys(self.numpy(copy=False))
    if place is not None:
        values, inverse, counts = np.unique(
            array, return_inverse=True, return_counts=True, axis=place, equal_nan=False
        )
        inverse = inverse.reshape(-1)
    elif return_inverse:
        places = self.flatten().argsort().numpy(copy=False)
        ordered = array.reshape(-1)[places]
        first, numbers, counts = _runs(ordered)
        values, inverse = ordered[first], np.empty_like(numbers)
        inverse[places] = numbers
        inverse = inverse.reshape(array.shape)
    else:  # sorting the elements alone is many times as fast
        ordered = np.sort(array, axis=None)
        first, inverse, counts = _runs(ordered)
        values = ordered[first]
    return _answer(self, values, inverse, counts, return_inverse, return_counts)


@method
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None
) -> Any:
    """The elements without those equal to the one before, as `unique`; computed now.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 1, 2, 1]).unique_consecutive().tolist()
    [1, 2, 1]
    """
    place = None if axis is None else self._axis(axis, "unique_consecutive")
    array = self.numpy(copy=False)
    parts = array.reshape(-1) if place is None else np.moveaxis(array, place, 0)
    count = len(parts)
    first, inverse, counts = _runs(parts.reshape(count, -1) if count else parts)
    values = parts[first] if place is None else np.moveaxis(parts[first], 0, place)
    inverse = inverse.reshape(array.shape) if place is None else inverse
    return _answer(self, values, inverse, counts, return_inverse, return_counts)


def _answer(
    self: Tensor,
    values: Array,
    inverse: Array,
    counts: Array,
    with_inverse: bool,
    with_counts: bool,
) -> Any:
    """The parts of an answer that were asked for, one alone without a tuple."""
    device = self.device
    found = [type(self)(values, device, self.dtype)]
    wanted = ((inverse, with_inverse), (counts, with_counts))
    found += [type(self)(part.astype(np.int32), device) for part, wants in wanted if wants]
    return tuple(found) if len(found) > 1 else found[0]


def _runs(rows: Array) -> tuple[Array, Array, Array]:
    """Of runs of equal rows: where each begins, its number for each row of it, its length."""
    starts = np.ones(len(rows), bool)
    differ = rows[1:] != rows[:-1]
    starts[1:] = differ.any(1) if differ.ndim == 2 else differ
    first = np.flatnonzero(starts)
    return first, np.cumsum(starts) - 1, np.diff(np.append(first, len(rows)))


def _is_right(right: bool, side: str | None) -> bool:
    one_of(side, (None, "left", "right"), "[searchsorted] side")
    if right and side == "left":
        raise ValueError("[searchsorted] right=True and side='left' contradict; give one of them")
    return right or side == "right"


def _searched(sequence: TracedValue, values: TracedValue, right: bool) -> TracedValue:
    if len(sequence.shape) == 1:
        flat = values.reshape((prod_sint(values.shape),))
        return order.place_in(sequence, flat, right).reshape(values.shape)
    if sequence.shape[:-1] != values.shape[:-1]:
        raise ShapeError(
            f"[searchsorted] values of shape {values.shape} do not fit a sequence of shape "
            f"{sequence.shape}: all axes but the last must be equal, or the sequence a vector"
        )
    return order.place_in(sequence, values, right)


def _is_among(own: TracedValue, others: TracedValue) -> TracedValue:
    count = known_size(others.shape[0], "isin")
    if count == 0:
        return own.full(0).cast(dtypes.bool)
    if count <= _MAX_COMPARED:
        wide = (*own.shape, count)
        equal = expanded(own, wide, 0).equals(expanded(others, wide))
        return largest(equal, (len(own.shape),)).reshape(own.shape)
    ordered = order.taken(others, order.argsort(others))
    flat = own.reshape((prod_sint(own.shape),))
    place = order.place_in(ordered, flat, False)
    last = place.full(count - 1)
    there = order.taken(ordered, (place < last).where(place, last))
    return flat.equals(there).reshape(own.shape)


def _ends(edges: TracedValue, which: int) -> TracedValue:
    """The left (0) or right (1) ends of the bins."""
    count = known_size(edges.shape[0], "histogram") - 1
    return part_of(edges, which, which + count)


def _evenly(low: TracedValue, high: TracedValue, bins: int) -> TracedValue:
    """The edges of bins of equal width, each counted from the end that is nearer."""
    shape = (bins + 1,)
    low, high = low.expand(shape), high.expand(shape)
    place = iota(bins + 1, low.dtype, low.node.device)
    step = (high - low) / bins
    return (place < (bins + 1) / 2).where(low + step * place, high - step * (bins - place))


def _binned(x: TracedValue, edges: TracedValue, weights: TracedValue | None) -> TracedValue:
    """How many elements of a vector are in each bin, or their weights."""
    bins = known_size(edges.shape[0], "histogram") - 1
    if weights is not None and weights.shape != x.shape:
        raise ShapeError(
            f"[histogram] weights of shape {weights.shape} for {x.shape[0]} elements; "
            "give one for each"
        )
    counted = x.full(1).cast(dtypes.default_int) if weights is None else weights
    place = order.place_in(edges, x.detach(), True) - 1
    last = part_of(edges, bins, bins + 1).expand(x.shape)
    return counted.scatter(x.equals(last).where(place.full(bins - 1), place), 0, bins)
