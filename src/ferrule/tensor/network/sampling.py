"""Values read at places between elements: taps with weights, along an axis or at any coordinates.

A table of taps has, for each place of a result, the positions of the few elements that it is made
of. Along an axis it is a matrix (places, taps), so that resizing is a gather and a sum for each
axis; at coordinates of a grid it is one for each axis and sample, and their product is gathered.
"""

from __future__ import annotations

import math
from math import gcd

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota
from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.broadcast import expanded, part_of
from ferrule.tensor.math.arithmetic import floor_div, round_down
from ferrule.tensor.math.functions import round_half_even
from ferrule.tensor.reduce.reductions import squeezed

_MAX_RATIO_SUM = 9  # sum of the two numbers of a ratio of sizes up to which no table is made
_CUBIC = -0.75  # the slope of the cubic kernel at 1, as PyTorch's


def sampling_dtype(dtype: DType) -> DType:
    """The dtype of coordinates and weights: float64 for float64, else float32."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


# *** along an axis ***


def gathered(value: TracedValue, axis: int, index: TracedValue) -> TracedValue:
    """The elements along `axis` at (places, taps), which become two axes there."""
    places, taps = index.shape
    before, after = value.shape[:axis], value.shape[axis + 1 :]
    flat = index.reshape((*(1,) * axis, places * taps, *(1,) * len(after)))
    found = value.gather(flat.expand((*before, places * taps, *after)), axis)
    return found.reshape((*before, places, taps, *after))


def resized(
    value: TracedValue, axis: int, index: TracedValue, weight: TracedValue | None
) -> TracedValue:
    """The sum of the elements at the taps, each times its weight; without one the first tap."""
    found = gathered(value, axis, index)
    if weight is not None:
        found = (found * expanded(weight, found.shape, axis)).sum((axis + 1,))
    return squeezed(found, (axis + 1,))


def repeated(value: TracedValue, axis: int, times: int) -> TracedValue:
    """Each element along an axis several times."""
    before, size, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
    wide = value.reshape((*before, size, 1, *after)).expand((*before, size, times, *after))
    return wide.reshape((*before, size * times, *after))


def every(value: TracedValue, axis: int, start: int, step: int, count: int) -> TracedValue:
    """So many elements along an axis, from `start` on, each `step` after the one before."""
    steps = [step if i == axis else 1 for i in range(len(value.shape))]
    return part_of(value, start, start + (count - 1) * step + 1, axis).stride(steps)


def blended(value: TracedValue, axis: int, wanted: int, align: bool) -> TracedValue | None:
    """Linear interpolation along an axis as a blend of its elements, repeated, and the next ones.

    Place i lies (i * down + shift) / up elements from the first one, with `up` and `down` small
    where sizes have much in common. So the elements on both sides of it are i * down + shift, and
    `up` more, of those repeated `up` times each. That moves memory and gathers nothing; a gradient
    is a sum of `up` terms for each side, of which `down` - 1 of `down` are 0. None where the ratio
    is not simple: then a table is less work.
    """
    size = value.shape[axis]
    assert isinstance(size, int)
    ends = align and wanted > 1 and size > 1
    up, down = (wanted - 1, size - 1) if ends else (wanted, size)
    up, down = up // gcd(up, down), down // gcd(up, down)
    if up + down > _MAX_RATIO_SUM or (align and not ends):
        return None
    twice = 0 if ends else down - up  # the shift
    low, high = _sides(repeated(value, axis, up), axis, wanted, up, down, twice // 2)
    table = _share_of_high(size, wanted, up, down, twice, value.dtype, value.node.device)
    share = expanded(table, low.shape, axis)
    return high.muladd(share, low * (1 - share))


def _sides(
    value: TracedValue, axis: int, wanted: int, up: int, down: int, shift: int
) -> tuple[TracedValue, TracedValue]:
    """Elements `shift` and every `down` more along an axis, and those `up` later; 0 outside."""
    length = value.shape[axis]
    end = shift + up + (wanted - 1) * down + 1
    before, after = max(0, -shift), max(0, end - length)
    padded = value.pad([(before, after) if i == axis else (0, 0) for i in range(len(value.shape))])
    low, high = before + shift, before + shift + up
    return every(padded, axis, low, down, wanted), every(padded, axis, high, down, wanted)


def _share_of_high(
    size: int, wanted: int, up: int, down: int, twice: int, dtype: DType, device: str
) -> TracedValue:
    """How near each place is to the element above it, from 0 to 1; beyond the border, the element
    that is there counts alone.
    """
    place = iota(wanted, dtypes.int64, device) * (2 * down) + twice
    low = floor_div(place, place.full(2 * up))
    share = (place - low * (2 * up)).cast(dtype) / (2 * up)
    above = (low < size - 1).where(share, 0)
    # Divisions of integers take so long that they are worth a kernel of their own.
    return (low < 0).where(above.full(1), above).contiguous()


def nearest_taps(size: int, wanted: int, step: float, exact: bool, device: str) -> TracedValue:
    """The element that each of `wanted` places lies in; `exact` is for their centres."""
    place = iota(wanted, dtypes.float32, device)
    index = round_down((place + 0.5) * step if exact else place * step).cast(dtypes.int32)
    return _at_most(index, size - 1).reshape((wanted, 1))


def centres(
    size: int, wanted: int, step: float, align: bool, dtype: DType, device: str
) -> TracedValue:
    """Where among `size` elements each of `wanted` places is; `align` lays corners on corners."""
    place = iota(wanted, dtype, device)
    if align:
        return place * ((size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    return (place + 0.5) * step - 0.5


def linear_taps(size: int, where: TracedValue) -> tuple[TracedValue, TracedValue]:
    """The elements on both sides of each place, and their weights."""
    at, weight = _around(where.maximum(0), 2)
    return _at_most(at, size - 1).cast(dtypes.int32), weight


def cubic_taps(size: int, where: TracedValue) -> tuple[TracedValue, TracedValue]:
    """Four elements around each place, those beyond the border being the last, and weights."""
    at, weight = _around(where, 4)
    return _at_most(at.maximum(0), size - 1).cast(dtypes.int32), weight


def _around(where: TracedValue, taps: int) -> tuple[TracedValue, TracedValue]:
    """The positions of two or four elements around each place, as a new last axis, and weights."""
    low = round_down(where.detach())
    tap = _tap_numbers(where, taps)
    tap = tap if taps == 2 else tap - 1
    fraction = expanded(where - low, tap.shape, 0)
    weight = _linear_weights(fraction, tap) if taps == 2 else _cubic_weights(fraction, tap)
    return _beside(low, tap), weight


def _tap_numbers(where: TracedValue, taps: int) -> TracedValue:
    """0, 1, … for the taps, as a last axis after those of the places."""
    number = iota(taps, where.dtype, where.node.device)
    return expanded(number, (*where.shape, taps))


def _beside(low: TracedValue, tap: TracedValue) -> TracedValue:
    return expanded(low, tap.shape, 0) + tap


def _at_most(value: TracedValue, limit: int) -> TracedValue:
    return (value > limit).where(value.full(limit), value)


def _linear_weights(fraction: TracedValue, tap: TracedValue) -> TracedValue:
    """1 - fraction for tap 0 and the fraction for tap 1."""
    return (tap > 0).where(fraction, 1 - fraction)


def _cubic_weights(fraction: TracedValue, tap: TracedValue) -> TracedValue:
    """Keys' cubic convolution kernel at the distance of the taps -1, 0, 1, 2.

    R. Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 15.
    """
    far = (tap < 1).where(fraction - tap, tap - fraction)
    inner = ((_CUBIC + 2) * far - (_CUBIC + 3)) * far * far + 1
    outer = ((_CUBIC * far - 5 * _CUBIC) * far + 8 * _CUBIC) * far - 4 * _CUBIC
    is_inner = (tap > -1).alu(BinaryOps.AND, tap < 2)
    return is_inner.where(inner, outer)


# *** parts of an axis, as equal as they can be ***


@dataclass(frozen=True, slots=True)
class Parts:
    """Part i of `count` reaches from floor(i n / count) to ceil((i + 1) n / count)."""

    index: TracedValue
    inside: TracedValue
    sizes: TracedValue

    @staticmethod
    def make(length: int, count: int, device: str) -> Parts:
        """Tables (count, taps): positions, whether they belong to the part; and its size."""
        rest = length % count
        # The longest part spans a remainder at both of its ends, unless all have the same.
        taps = length // count + (rest > 0) + (rest > math.gcd(rest, count))
        part = iota(count, dtypes.int64, device)
        start = floor_div(part * length, part.full(count))
        stop = floor_div((part + 1) * length + (count - 1), part.full(count))
        index = _beside(start, _tap_numbers(start, taps))
        inside = index < expanded(stop, index.shape, 0)
        return Parts(index, inside, stop - start)


# *** at coordinates ***


def sampled(
    value: TracedValue, grid: TracedValue, mode: str, padding: str, align: bool
) -> TracedValue:
    """(batch, channels, *spatial) at coordinates (batch, places, axes), the last axis first.

    Coordinates are from -1 to 1 over an axis: between its corners' centres if `align`, else
    between its borders.
    """
    batch, channels, *spatial = value.shape
    places, count = grid.shape[1:]
    assert isinstance(places, int)
    assert isinstance(count, int)
    index: TracedValue | None = None
    weight: TracedValue | None = None
    inside: TracedValue | None = None
    for axis in range(count):
        size = spatial[axis]
        assert isinstance(size, int)
        own = part_of(grid, count - 1 - axis, count - axis)
        taps = _grid_taps(own.reshape((batch, places)), size, mode, padding, align)
        at, factor, fits = [_among(part, axis, count) for part in taps]
        index = at if index is None else _joined(index * size, at, BinaryOps.ADD)
        weight = factor if weight is None else _joined(weight, factor, BinaryOps.MUL)
        inside = fits if inside is None else _joined(inside, fits, BinaryOps.AND)
    assert index is not None
    assert weight is not None
    assert inside is not None
    flat = inside.where(index, -1)  # which reads 0
    if channels != 1:  # which have these in common
        flat, weight = flat.contiguous(), weight.contiguous()
    total = math.prod(n for n in flat.shape[1:] if isinstance(n, int))
    flat = flat.reshape((batch, 1, total)).expand((batch, channels, total))
    elements = value.reshape((batch, channels, math.prod(n for n in spatial if isinstance(n, int))))
    found = elements.gather(flat, 2).reshape((batch, channels, places, total // places))
    factors = weight.reshape((batch, 1, places, total // places)).expand(found.shape)
    return (found * factors).sum((3,)).reshape((batch, channels, places))


def _among(part: TracedValue, axis: int, count: int) -> TracedValue:
    """(batch, places, taps) with one axis of taps for each of `count` axes."""
    batch, places, taps = part.shape
    return part.reshape((batch, places, *(1,) * axis, taps, *(1,) * (count - 1 - axis)))


def _joined(a: TracedValue, b: TracedValue, op: BinaryOps) -> TracedValue:
    shape = tuple([n if m == 1 else m for n, m in zip(a.shape, b.shape, strict=True)])
    return a.expand(shape).alu(op, b.expand(shape))


def _grid_taps(
    coordinate: TracedValue, size: int, mode: str, padding: str, align: bool
) -> tuple[TracedValue, TracedValue, TracedValue]:
    """For each sample: positions on an axis, their weights, and whether they are on it."""
    where = _position(coordinate, size, align)
    if mode != "bicubic":
        where = _bordered(where, size, padding, align)
    if mode == "nearest":
        near = round_half_even(where.detach())
        at, weight = near.reshape((*near.shape, 1)), where.full(1, (*where.shape, 1))
    else:
        at, weight = _around(where, 2 if mode == "bilinear" else 4)
        if mode == "bicubic":
            at = _bordered(at, size, padding, align)
    inside = (at > -1).alu(BinaryOps.AND, at < size)
    return inside.where(at, 0).cast(dtypes.int64), weight, inside


def _position(coordinate: TracedValue, size: int, align: bool) -> TracedValue:
    if align:
        return (coordinate + 1) * ((size - 1) / 2)
    return ((coordinate + 1) * size - 1) * 0.5


def _bordered(where: TracedValue, size: int, padding: str, align: bool) -> TracedValue:
    """A position outside brought inside; with zeros there, it stays."""
    if padding == "zeros":
        return where
    if padding == "reflection":
        where = _reflected(where, 0.0 if align else -0.5, size - 1.0 if align else float(size))
    # Outside, and at the limits, nothing flows back.
    limited = (where < size - 1).where(where, size - 1)
    return (where > 0).where(limited, 0)


def _reflected(where: TracedValue, low: float, span: float) -> TracedValue:
    """A position mirrored at `low` and `low + span` until it is between them."""
    if span == 0:
        return where.full(0)
    away = (where - low).absolute()
    rest = away.alu(BinaryOps.MOD, away.full(span))
    turns = round_down(away.detach() / span)
    half = turns * 0.5
    is_odd = half.differs(half.alu(UnaryOps.TRUNC))
    return is_odd.where(span - rest, rest) + low
