"""The order of elements along the last axis, and what is picked by it.

Orders are found on the host; the elements are gathered by them on their device, so that gradients
flow to where each came from. NaN counts as the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.counting import place_dtype
from ferrule.dtype import dtypes
from ferrule.gradient import Value
from ferrule.host import on_host
from ferrule.ops import BinaryOps
from ferrule.tensor.arithmetic import floor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.data import Array
from ferrule.tensor.elementwise import less_or_equal
from ferrule.tensor.functions import round_half_even
from ferrule.tensor.reduce import is_nan
from ferrule.tensor.special import at_least

INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def sort_keys(array: Array) -> Array:
    """An array in a dtype that NumPy sorts: float32 for floats that it does not know."""
    known = array.dtype.isbuiltin == 1
    return array if known else array.astype(np.float32)


# *** on the host ***


def sorted_places(array: Array, descending: bool = False) -> Array:
    """The stable order: equal elements stay in the order that they have."""
    keys = sort_keys(array)
    if keys.dtype.itemsize <= 4 and keys.shape[-1] <= 1 << 32:
        return _order_of_words(_words(keys), descending)
    if not descending:
        return np.argsort(keys, axis=-1, kind="stable")
    from_end: Array = np.argsort(np.flip(keys, -1), axis=-1, kind="stable")
    return np.flip(keys.shape[-1] - 1 - from_end, -1)


def _words(keys: Array) -> Array:
    """uint32 numbers in the order of elements that are as narrow; equal ones for equal elements."""
    if keys.dtype.kind in "bu":
        return keys.astype(np.uint32)
    if keys.dtype.kind == "i":
        ordered = keys.astype(np.int32)
    else:
        single = np.where(np.isnan(keys), np.float32(np.nan), keys.astype(np.float32))
        bits = (single + np.float32(0)).view(np.int32)  # 0.0 for -0.0
        # The magnitudes of negative numbers, the other way round.
        ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
    return ordered.view(np.uint32) ^ np.uint32(1 << 31)


def _order_of_words(words: Array, descending: bool) -> Array:
    """The stable order of uint32 numbers, by sorting each together with its position.

    NumPy sorts numbers many times as fast as positions by numbers.
    """
    high = (~words if descending else words).astype(np.uint64) << np.uint64(32)
    both = np.sort(high | np.arange(words.shape[-1], dtype=np.uint64), axis=-1)
    return both & np.uint64(0xFFFFFFFF)


def _median(array: Array, ignore_nan: bool) -> Array:
    """The position of the lower of the middle elements, or of the first NaN."""
    keys = sort_keys(array)
    order = sorted_places(array)
    missing = np.isnan(keys).sum(-1, keepdims=True)
    there = keys.shape[-1] - missing
    middle = np.maximum(there - 1, 0) // 2
    place = middle if ignore_nan else np.where(missing > 0, there, middle)
    return np.take_along_axis(order, place, -1)


def _mode(array: Array) -> Array:
    """The last position of the most frequent element, of the smallest such one."""
    keys = sort_keys(array)
    order = sorted_places(array)
    ordered = np.take_along_axis(keys, order, -1)
    place = np.arange(keys.shape[-1])
    starts = np.ones(keys.shape, bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    length = place - np.maximum.accumulate(np.where(starts, place, 0), -1)
    return np.take_along_axis(order, length.argmax(-1, keepdims=True), -1)


def _on_last(function: Any, x: Value, size: int, *args: Any) -> Value:
    """Positions on the last axis, `size` of them."""
    shape = (*x.shape[:-1], size)
    return on_host(function, [x.detach()], shape, place_dtype(x.shape[-1]), *args)


def argsort(x: Value, descending: bool = False) -> Value:
    """The positions of the elements in their order."""
    return _on_last(sorted_places, x, known_size(x.shape[-1], "argsort"), descending)


def median(x: Value, ignore_nan: bool) -> Value:
    """The position of the median, on a last axis of size 1."""
    return _on_last(_median, x, 1, ignore_nan)


def mode(x: Value) -> Value:
    """The position of the most frequent element, on a last axis of size 1."""
    return _on_last(_mode, x, 1)


# *** on the device ***


def taken(x: Value, positions: Value) -> Value:
    """The elements at positions on the last axis."""
    return x.gather(positions, len(x.shape) - 1)


def quantiles(x: Value, fractions: Value, interpolation: str, ignore_nan: bool) -> Value:
    """Where each of Q fractions of the elements is below: (..., n) gives (..., Q).

    `fractions` are float64. NaN for those outside of 0 to 1, and for rows with a NaN in them.
    """
    size = known_size(x.shape[-1], "quantile")
    shape = (*x.shape[:-1], *fractions.shape)
    ordered = taken(x, argsort(x))
    missing = is_nan(ordered).cast(dtypes.float64).sum((len(shape) - 1,))
    top = at_least(size - 1 - missing, 0) if ignore_nan else missing.full(size - 1)
    sized = fractions.reshape((1,) * (len(shape) - 1) + fractions.shape).expand(shape)
    allowed = less_or_equal(sized.full(0), sized)
    allowed = allowed.alu(BinaryOps.AND, less_or_equal(sized, sized.full(1)))
    rank = allowed.where(sized, 0.0) * top.expand(shape)
    if not ignore_nan:
        rank = missing.equals(0).expand(shape).where(rank, size - 1.0)
    found = _interpolated(ordered, rank, interpolation)
    return allowed.where(found, float("nan"))


def _interpolated(ordered: Value, rank: Value, interpolation: str) -> Value:
    def at(place: Value) -> Value:
        return taken(ordered, place.cast(dtypes.int32))

    if interpolation == "nearest":
        return at(round_half_even(rank))
    low, high = floor(rank), -floor(-rank)
    if interpolation == "lower":
        return at(low)
    if interpolation == "higher":
        return at(high)
    weight = rank.full(0.5) if interpolation == "midpoint" else rank - low
    return _between(at(low), at(high), weight.cast(ordered.dtype))


def _between(low: Value, high: Value, weight: Value) -> Value:
    """From `low` at weight 0 to `high` at 1, counted from the nearer one; equal ones stay."""
    gap = high - low
    mixed = (weight < 0.5).where(low + gap * weight, high - gap * (1 - weight))
    stays = low.equals(high).alu(BinaryOps.AND, low.absolute().equals(float("inf")))
    return stays.where(low, mixed)


def place_in(sequence: Value, values: Value, right: bool) -> Value:
    """How many elements of a sorted last axis are less than each value (`right`: or equal).

    A search by halving, as long as the logarithm of the size.
    """
    size = known_size(sequence.shape[-1], "searchsorted")
    found = values.full(0).cast(dtypes.int32)
    step = 1 << size.bit_length() >> 1
    while step:
        candidate = found + step
        here = taken(sequence, candidate - 1)
        before = _comes_first(values, here).equals(False) if right else _comes_first(here, values)
        found = before.alu(BinaryOps.AND, candidate < size + 1).where(candidate, found)
        step >>= 1
    return found


def _comes_first(a: Value, b: Value) -> Value:
    """Whether a < b, NaN being the largest."""
    if not dtypes.is_float(a.dtype):
        return a < b
    last = is_nan(a).equals(False).alu(BinaryOps.AND, is_nan(b))
    return (a < b).alu(BinaryOps.OR, last)
