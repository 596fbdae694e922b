"""The order of elements along the last axis, and what is picked by it.

Codes are sorted: numbers that hold an element and its position, made on the device, where both fit
into 64 bits. A device with functions of rows has native ones for that; else the host sorts, but the
first few elements are found by kernels. Elements of 64 bits are sorted by their lower halves, and
then by their upper ones, of which there is mostly only one. The elements are gathered by their
positions on the device, so that gradients flow to where each came from. NaN counts as the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.autograd import TracedValue, note_call
from ferrule.autograd.concat import concatenated
from ferrule.autograd.iota import iota, position_dtype
from ferrule.device import Device
from ferrule.engine.host import on_host
from ferrule.engine.rows import by_rows
from ferrule.fusion.forms import has_kernels
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazyop import BinaryOps, ReduceOps
from ferrule.ir.shape.layout import storage_size
from ferrule.tensor.algebra.templates import by_kernels
from ferrule.tensor.broadcast import expanded, known_size, part_of
from ferrule.tensor.data import Array
from ferrule.tensor.math.arithmetic import round_down
from ferrule.tensor.math.elementwise import less_or_equal
from ferrule.tensor.math.functions import round_half_even
from ferrule.tensor.math.special import at_least
from ferrule.tensor.reduce.reductions import is_nan
from ferrule.tensor.shaping.joining import to_bound

INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")
_PLACE_BITS = 32
_NARROW, _WIDE = (dtypes.int32, dtypes.uint32), (dtypes.int64, dtypes.uint64)
_NAN_BITS, _WIDE_NAN_BITS = 0x7FC00000, 0x7FF8000000000000
_NAN_CODE = (_NAN_BITS | 1 << 31) << _PLACE_BITS  # no code of a number is as large
_LAST_CODE = (1 << 64) - 1
_MAX_SORTED_WHOLE = 256  # elements of a row up to which NumPy sorts it faster than it partitions it
_MAX_PASSES = 16
"""Elements that are found one by one: each takes 0.2 cycles for each element of the row, where a
partition takes 3 to 8."""
_MIN_ROW_PER_CHOSEN = 16  # elements of a row for each chosen one from which on parts are searched


def sort_keys(array: Array) -> Array:
    """An array in a dtype that NumPy sorts: float32 for floats that it does not know."""
    known = array.dtype.isbuiltin == 1
    return array if known else array.astype(np.float32)


# *** on the host ***


def sorted_places(array: Array, descending: bool = False) -> Array:
    """The stable order: equal elements stay in the order that they have."""
    keys = sort_keys(array)
    if not descending:
        return np.argsort(keys, axis=-1, kind="stable")
    from_end: Array = np.argsort(np.flip(keys, -1), axis=-1, kind="stable")
    return np.flip(keys.shape[-1] - 1 - from_end, -1)


def _first(codes: Array, start: int, stop: int) -> Array:
    """Some elements of the order: only those of them that come first are sorted."""
    if codes.shape[-1] <= _MAX_SORTED_WHOLE:
        return np.sort(codes, axis=-1)[..., start:stop]
    codes = _candidates(codes, stop)
    first = np.partition(codes, stop - 1, axis=-1) if stop < codes.shape[-1] else codes
    if stop - start == 1 and stop < codes.shape[-1]:
        return first[..., start:stop]
    return np.sort(first[..., :stop], axis=-1)[..., start:]


def _candidates(codes: Array, count: int) -> Array:
    """Elements among which are the `count` that come first: those of as many parts of the row, the
    ones with the least elements. All of them where that leaves out few.

    A part has every n-th element, so that the least of all parts are found by vectors.
    """
    size = codes.shape[-1]
    if count < 1 or size < _MIN_ROW_PER_CHOSEN * count:
        return codes
    length = 1 << (size // count).bit_length() // 2  # about the root: as many in each step
    parts = size // length
    whole = codes[..., : parts * length].reshape(*codes.shape[:-1], length, parts)
    chosen = np.argpartition(whole.min(-2), count - 1, axis=-1)[..., np.newaxis, :count]
    found = np.take_along_axis(whole, chosen, -1).reshape(*codes.shape[:-1], length * count)
    return np.concatenate([found, codes[..., parts * length :]], -1)


def _median_code(codes: Array, nan: int, ignore_nan: bool) -> Array:
    """The lower of the middle elements, or the first NaN; codes of NaN begin with `nan`."""
    last = codes.shape[-1] - 1
    if int(codes.max()) < nan:
        return _first(codes, last // 2, last // 2 + 1)
    there = (codes < nan).sum(-1, keepdims=True)
    place = _median_place(there, last + 1, ignore_nan)
    return np.take_along_axis(np.sort(codes, axis=-1), place, -1)


def _median_place(there: Array, size: int, ignore_nan: bool) -> Array:
    """Where in the order the median is, if `there` of `size` elements are no NaN."""
    middle = np.maximum(there - 1, 0) // 2
    return middle if ignore_nan else np.where(there < size, there, middle)


def _mode_code(codes: Array, nan: int) -> Array:
    """The last of the most frequent elements, of the smallest such one; no NaN equals another."""
    ordered = np.sort(codes, axis=-1)
    words = ordered >> np.uint64(_PLACE_BITS)
    differ = (words[..., 1:] != words[..., :-1]) | (ordered[..., 1:] >= nan)
    return np.take_along_axis(ordered, _end_of_longest(differ), -1)


def _end_of_longest(differ: Array) -> Array:
    """Where the longest run ends, the first of several; each begins where elements `differ`."""
    starts = np.concatenate([np.ones((*differ.shape[:-1], 1), bool), differ], -1)
    place = np.arange(starts.shape[-1])
    length: Array = place - np.maximum.accumulate(np.where(starts, place, 0), -1)
    return np.asarray(length.argmax(-1, keepdims=True))


def _median(array: Array, ignore_nan: bool) -> Array:
    """The position of the lower of the middle elements, or of the first NaN."""
    there = (~np.isnan(sort_keys(array))).sum(-1, keepdims=True)
    place = _median_place(there, array.shape[-1], ignore_nan)
    return np.take_along_axis(sorted_places(array), place, -1)


def _mode(array: Array) -> Array:
    """The last position of the most frequent element, of the smallest such one."""
    keys = sort_keys(array)
    order = sorted_places(array)
    ordered = np.take_along_axis(keys, order, -1)
    differ = ordered[..., 1:] != ordered[..., :-1]
    return np.take_along_axis(order, _end_of_longest(differ), -1)


def _on_last(function: Any, x: TracedValue, size: int, *args: Any) -> TracedValue:
    """Positions on the last axis, `size` of them."""
    shape = (*x.shape[:-1], size)
    return on_host(function, [x.detach()], shape, position_dtype(x.shape[-1]), *args)


# *** codes: an element and its position in one number ***


def _has_codes(x: TracedValue) -> bool:
    """True if an element and its position fit into 64 bits."""
    return x.dtype.itemsize <= 4 and storage_size((x.shape[-1],)) <= 1 << _PLACE_BITS


def _keys(x: TracedValue) -> TracedValue:
    """Unsigned numbers in the order of the elements, equal ones for equal elements: uint32, or
    uint64 for elements of 64 bits.
    """
    wide = x.dtype.itemsize == 8
    signed, unsigned = _WIDE if wide else _NARROW
    if x.dtype is dtypes.bool or dtypes.is_unsigned(x.dtype):
        return x.cast(unsigned)
    sign = 1 << 8 * unsigned.itemsize - 1
    if dtypes.is_float(x.dtype):
        real = x.cast(dtypes.float64 if wide else dtypes.float32)
        bits = (real + 0.0).bitcast(signed)  # 0.0 for -0.0
        # One NaN for all, as an integer: arithmetic leaves the sign of a NaN open.
        bits = is_nan(real).where(bits.full(_WIDE_NAN_BITS if wide else _NAN_BITS), bits)
        # The magnitudes of negative numbers, the other way round.
        ordered = (bits < 0).where(bits.alu(BinaryOps.XOR, bits.full(sign - 1)), bits)
    else:
        ordered = x.cast(signed)
    key = ordered.bitcast(unsigned)
    return key.alu(BinaryOps.XOR, key.full(sign))


def _directed(key: TracedValue, descending: bool) -> TracedValue:
    """Keys whose order is the wanted one."""
    last = (1 << 8 * key.dtype.itemsize) - 1
    return key.alu(BinaryOps.XOR, key.full(last)) if descending else key


def _codes(x: TracedValue, descending: bool) -> TracedValue:
    """uint64 numbers that are different, in the stable order: a word, and the position below it.

    NumPy sorts numbers many times as fast as positions by numbers.
    """
    codes = _coded(_directed(_keys(x.detach()), descending).cast(dtypes.uint64))
    return to_bound(codes, _LAST_CODE)  # the host needs a known size


def _coded(word: TracedValue) -> TracedValue:
    """The lower halves of uint64 numbers, above the positions."""
    place = iota(word.shape[-1], dtypes.uint64, word.node.device)
    shifted = word.alu(BinaryOps.SHL, word.full(_PLACE_BITS))
    return shifted.alu(BinaryOps.OR, expanded(place, word.shape))


def _places(codes: TracedValue, size: sint) -> TracedValue:
    """The positions in codes of elements of an axis of some size."""
    low = codes.alu(BinaryOps.AND, codes.full((1 << _PLACE_BITS) - 1))
    return low.cast(position_dtype(size))


def _one_of_codes(function: Any, x: TracedValue, *args: Any) -> TracedValue:
    """The position in the code that `function(codes, where those of NaN begin, *args)` picks."""
    size = known_size(x.shape[-1], "sort")
    codes = _codes(x, False)
    code = on_host(function, [codes], (*x.shape[:-1], 1), codes.dtype, _nan_code(x), *args)
    return _places(code, size)


def _nan_code(x: TracedValue) -> int:
    """A number that no code of an element reaches unless it is NaN."""
    return _NAN_CODE if dtypes.is_float(x.dtype) else _LAST_CODE


def _has_row_functions(x: TracedValue) -> bool:
    return Device[x.node.device].row_function is not None and 0 not in x.shape


def argsort(x: TracedValue, descending: bool = False) -> TracedValue:
    """The positions of the elements in their order."""
    places = _argsort(x, descending)
    note_call("order", [x], places, (0, x.shape[-1], descending))
    return places


def _argsort(x: TracedValue, descending: bool) -> TracedValue:
    size = x.shape[-1]
    if not _has_codes(x):
        if _has_row_functions(x) and isinstance(size, int) and size <= 1 << _PLACE_BITS:
            return _argsort_by_halves(x, size, descending)
        return _on_last(sorted_places, x, known_size(size, "argsort"), descending)
    codes = _codes(x, descending)
    if _has_row_functions(codes):
        ordered = by_rows("sort", codes, known_size(codes.shape[-1], "sort"))
    else:
        ordered = on_host(np.sort, [codes], codes.shape, codes.dtype)
    places = _places(ordered, size)
    return places if isinstance(size, int) else part_of(places, 0, size)


def _argsort_by_halves(x: TracedValue, size: int, descending: bool) -> TracedValue:
    """The order of elements of 64 bits: by their lower halves, and then by their upper ones."""
    key = _directed(_keys(x.detach()), descending)
    by_lower = _places(by_rows("sort", _coded(key), size), size)
    upper = taken(key, by_lower)
    upper = upper.alu(BinaryOps.SHR, upper.full(_PLACE_BITS))
    return taken(by_lower, _places(by_rows("sort", _coded(upper), size), size))


def first(x: TracedValue, start: int, stop: int, descending: bool = False) -> TracedValue:
    """The positions of the elements from `start` to `stop` of the order."""
    places = _first_places(x, start, stop, descending)
    note_call("order", [x], places, (start, stop, descending))
    return places


def _first_places(x: TracedValue, start: int, stop: int, descending: bool) -> TracedValue:
    size = x.shape[-1]
    if stop == start or not _has_codes(x):
        return part_of(argsort(x, descending), start, stop)
    if stop <= _MAX_PASSES and has_kernels(x.node.device):
        found = TracedValue(by_kernels(x.detach().node, _one_by_one, start, stop, descending))
        return _places(found, size)
    codes = _codes(x, descending)
    if _has_row_functions(codes):
        return _places(by_rows("select", codes, stop - start, start), size)
    shape = (*x.shape[:-1], stop - start)
    return _places(on_host(_first, [codes], shape, codes.dtype, start, stop), size)


def _one_by_one(x: TracedValue, start: int, stop: int, descending: bool) -> TracedValue:
    """Codes of the order from `start` to `stop`, each by a pass over those that come after it."""
    codes = _codes(x, descending)
    # The first one is the largest of these.
    turned = codes.alu(BinaryOps.XOR, codes.full(_LAST_CODE)).contiguous()
    left, found = turned, []
    for _ in range(stop):
        peak = left.reduce(ReduceOps.MAX, (len(turned.shape) - 1,)).contiguous()
        found.append(peak)
        left = (turned < peak.expand(turned.shape)).where(turned, 0)
    picked = concatenated(found[start:], -1)
    return picked.alu(BinaryOps.XOR, picked.full(_LAST_CODE))


def median(x: TracedValue, ignore_nan: bool) -> TracedValue:
    """The position of the median, on a last axis of size 1."""
    place = _median_of(x, ignore_nan)
    note_call("median", [x], place, ignore_nan)
    return place


def _median_of(x: TracedValue, ignore_nan: bool) -> TracedValue:
    if not _has_codes(x):
        return _on_last(_median, x, 1, ignore_nan)
    if x.shape[-1] != 0 and _has_row_functions(x):
        size = known_size(x.shape[-1], "sort")
        nan = _nan_code(x) - (1 << 64)  # as a signed number
        code = by_rows("median", _codes(x, False), 1, nan, int(ignore_nan))
        return _places(code, size)
    return _one_of_codes(_median_code, x, ignore_nan)


def mode(x: TracedValue) -> TracedValue:
    """The position of the most frequent element, on a last axis of size 1."""
    if not _has_codes(x):
        return _on_last(_mode, x, 1)
    return _one_of_codes(_mode_code, x)


# *** on the device ***


def taken(x: TracedValue, positions: TracedValue) -> TracedValue:
    """The elements at positions on the last axis."""
    return x.gather(positions, len(x.shape) - 1)


def quantiles(
    x: TracedValue, fractions: TracedValue, interpolation: str, ignore_nan: bool
) -> TracedValue:
    """Where each of Q fractions of the elements is below: (..., n) gives (..., Q).

    `fractions` are float64. NaN for those outside of 0 to 1, and for rows with a NaN in them.
    """
    size = known_size(x.shape[-1], "quantile")
    shape = (*x.shape[:-1], *fractions.shape)
    ordered = taken(x, argsort(x))
    missing = is_nan(ordered).cast(dtypes.float64).sum((len(shape) - 1,))
    top = at_least(size - 1 - missing, 0) if ignore_nan else missing.full(size - 1)
    sized = expanded(fractions, shape)
    allowed = less_or_equal(sized.full(0), sized)
    allowed = allowed.alu(BinaryOps.AND, less_or_equal(sized, sized.full(1)))
    rank = allowed.where(sized, 0.0) * top.expand(shape)
    if not ignore_nan:
        rank = missing.equals(0).expand(shape).where(rank, size - 1.0)
    found = _interpolated(ordered, rank, interpolation)
    return allowed.where(found, float("nan"))


def _interpolated(ordered: TracedValue, rank: TracedValue, interpolation: str) -> TracedValue:
    def at(place: TracedValue) -> TracedValue:
        return taken(ordered, place.cast(dtypes.int32))

    if interpolation == "nearest":
        return at(round_half_even(rank))
    low, high = round_down(rank), -round_down(-rank)
    if interpolation == "lower":
        return at(low)
    if interpolation == "higher":
        return at(high)
    weight = rank.full(0.5) if interpolation == "midpoint" else rank - low
    return _between(at(low), at(high), weight.cast(ordered.dtype))


def _between(low: TracedValue, high: TracedValue, weight: TracedValue) -> TracedValue:
    """From `low` at weight 0 to `high` at 1, counted from the nearer one; equal ones stay."""
    gap = high - low
    mixed = (weight < 0.5).where(low + gap * weight, high - gap * (1 - weight))
    stays = low.equals(high).alu(BinaryOps.AND, low.absolute().equals(float("inf")))
    return stays.where(low, mixed)


def place_in(sequence: TracedValue, values: TracedValue, right: bool) -> TracedValue:
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


def _comes_first(a: TracedValue, b: TracedValue) -> TracedValue:
    """True where a < b, NaN being the largest."""
    if not dtypes.is_float(a.dtype):
        return a < b
    last = is_nan(a).equals(False).alu(BinaryOps.AND, is_nan(b))
    return (a < b).alu(BinaryOps.OR, last)
