"""Images of another size: adaptive pooling, interpolation, sampling at a grid, shuffled pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota
from ferrule.base.calls import one_of
from ferrule.ir.dtype import dtypes, promote
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.algebra.matrices import matrix_product, transposed
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import check_devices, expanded, known_size, part_of
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import as_floats, float_value
from ferrule.tensor.math.functions import in_float32
from ferrule.tensor.network import sampling
from ferrule.tensor.network.pooling import counted_down, first_places, max_places, pooled
from ferrule.tensor.network.windows import Pool
from ferrule.tensor.notes import note
from ferrule.tensor.reduce.reductions import dropped, largest, squeezed
from ferrule.tensor.reduce.rowwise import accumulating, rounded_mean

Wanted: TypeAlias = int | Sequence[int | None]

_LINEAR = ("linear", "bilinear", "trilinear")
_NEAREST = ("nearest", "nearest-exact")
_MODES = (*_NEAREST, *_LINEAR, "bicubic", "area")


# -- adaptive pooling ----------------------------------------------------------------------------


@method
def adaptive_avg_pool1d(self: Tensor, output_size: Wanted) -> Tensor:
    """`adaptive_avg_pool2d` over the last axis.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 3.0, 5.0]).adaptive_avg_pool1d(2).tolist()
    [2.0, 4.0]
    """
    return _adaptive_mean(self, output_size, 1, "adaptive_avg_pool1d")


@method
def adaptive_avg_pool2d(self: Tensor, output_size: Wanted) -> Tensor:
    """The means of parts of the last two axes, `output_size` of them on each axis.

    Part i of n elements reaches from floor(i * n / size) to ceil((i + 1) * n / size). None
    keeps the size of the axis.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).adaptive_avg_pool2d(1).tolist()
    [[2.5]]
    """
    return _adaptive_mean(self, output_size, 2, "adaptive_avg_pool2d")


@method
def adaptive_avg_pool3d(self: Tensor, output_size: Wanted) -> Tensor:
    """`adaptive_avg_pool2d` over the last three axes.

    >>> from ferrule import Tensor
    >>> Tensor.arange(8).reshape(2, 2, 2).adaptive_avg_pool3d((1, 1, None)).tolist()
    [[[3.0, 4.0]]]
    """
    return _adaptive_mean(self, output_size, 3, "adaptive_avg_pool3d")


@method
def adaptive_max_pool1d(self: Tensor, output_size: Wanted, return_indices: bool = False) -> Any:
    """`adaptive_max_pool2d` over the last axis.

    >>> from ferrule import Tensor
    >>> Tensor([1, 5, 3]).adaptive_max_pool1d(2).tolist()
    [5, 5]
    """
    return _adaptive_max(self, output_size, 1, return_indices, "adaptive_max_pool1d")


@method
def adaptive_max_pool2d(self: Tensor, output_size: Wanted, return_indices: bool = False) -> Any:
    """The largest elements of parts of the last two axes, as `adaptive_avg_pool2d` has them.

    `return_indices` gives their places too, as `max_pool2d` does.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).adaptive_max_pool2d((1, 2)).tolist()
    [[3, 4]]
    """
    return _adaptive_max(self, output_size, 2, return_indices, "adaptive_max_pool2d")


@method
def adaptive_max_pool3d(self: Tensor, output_size: Wanted, return_indices: bool = False) -> Any:
    """`adaptive_max_pool2d` over the last three axes.

    >>> from ferrule import Tensor
    >>> Tensor.arange(8).reshape(2, 2, 2).adaptive_max_pool3d(1).item()
    7
    """
    return _adaptive_max(self, output_size, 3, return_indices, "adaptive_max_pool3d")


def _parts(self: Tensor, wanted: Wanted, count: int, what: str) -> tuple[list[int], list[int]]:
    """The sizes of the last axes, and how many parts each is to have."""
    if len(self._shape) < count:
        raise ShapeError(f"[{what}] shape {self._shape} has fewer than {count} axes")
    sizes = [known_size(n, what) for n in self._shape[len(self._shape) - count :]]
    given = [wanted] * count if isinstance(wanted, int) else list(wanted)
    if len(given) == 1:
        given *= count
    if len(given) != count or any(n is not None and n < 0 for n in given):
        raise ShapeError(
            f"[{what}] output_size {wanted} needs one number, or one or None for each of "
            f"{count} axes"
        )
    parts = [own if n is None else n for n, own in zip(given, sizes, strict=True)]
    if 0 in sizes and any(n and not own for n, own in zip(parts, sizes, strict=True)):
        raise ShapeError(f"[{what}] an axis of shape {self._shape} has no elements to pool")
    return sizes, parts


def _even_pool(self: Tensor, sizes: Sequence[int], parts: Sequence[int], what: str) -> Pool | None:
    """The windows of parts that are all equal."""
    if any(n == 0 or size % n for size, n in zip(sizes, parts, strict=True)):
        return None
    kernel = [size // n for size, n in zip(sizes, parts, strict=True)]
    return Pool.make(what, len(kernel), self._shape, kernel, None)


def _adaptive_mean(self: Tensor, wanted: Wanted, count: int, what: str) -> Tensor:
    sizes, parts = _parts(self, wanted, count, what)
    source = as_floats(self)
    pool = _even_pool(self, sizes, parts, what)
    if pool is not None:
        return pooled(source, pool, 0, rounded_mean)
    return in_float32(source, lambda x: _means_of_parts(x, sizes, parts))


def _means_of_parts(self: Tensor, sizes: Sequence[int], parts: Sequence[int]) -> Tensor:
    value = self._read()
    first = len(value.shape) - len(parts)
    for axis, (length, count) in enumerate(zip(sizes, parts, strict=True), first):
        if count == 0:
            value = part_of(value, 0, 0, axis)
            continue
        table = sampling.Parts.make(length, count, self.device)
        found = sampling.gathered(_computed(value, axis, first), axis, table.index)
        kept = expanded(table.inside, found.shape, axis).where(found, 0)
        total = squeezed(kept.sum((axis + 1,)), (axis + 1,))
        value = total / expanded(table.sizes.cast(total.dtype), total.shape, axis)
    return self._wrap(value)


def _adaptive_max(self: Tensor, wanted: Wanted, count: int, return_indices: bool, what: str) -> Any:
    sizes, parts = _parts(self, wanted, count, what)
    pool = _even_pool(self, sizes, parts, what)
    if pool is not None:
        result = pooled(self, pool, dtypes.min(self.dtype), largest)
        return (result, max_places(self, pool)) if return_indices else result
    if 0 in parts:
        shape = (*self._shape[: len(self._shape) - count], *parts)
        none = self._wrap(self._read().nothing(shape))
        return (none, none.cast(dtypes.int64)) if return_indices else none
    lowest = dtypes.min(self.dtype)
    found, axes = _of_parts(self, sizes, parts, lowest)
    result = dropped(self, largest(found, axes), axes, False)
    if not return_indices:
        return result
    rest, _ = _of_parts(counted_down(self, sizes), sizes, parts, 0)
    return result, first_places(self, found.detach(), axes, rest, math.prod(sizes))


def _of_parts(
    self: Tensor, sizes: Sequence[int], parts: Sequence[int], outside: float
) -> tuple[TracedValue, list[int]]:
    """The elements of each part along axes behind those of the parts; `outside` fills up."""
    value = self._read()
    axis = len(value.shape) - len(parts)
    axes = []
    for length, count in zip(sizes, parts, strict=True):
        table = sampling.Parts.make(length, count, self.device)
        found = sampling.gathered(value, axis, table.index)
        value = expanded(table.inside, found.shape, axis).where(found, outside)
        axes.append(axis + 1)
        axis += 2
    return value, axes


# -- interpolation -------------------------------------------------------------------------------


@method
def interpolate(
    self: Tensor,
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """(batch, channels, …) with other sizes of the axes behind the first two.

    `size` is one for all of these axes, or one for each; a list is for as many last axes as it
    has sizes. `scale_factor` is taken instead, and gives floor(n * factor). `mode` is
    "nearest" (of the element's start; "nearest-exact" of its centre), "linear", which
    "bilinear" and "trilinear" are for two and three axes, "bicubic", or "area" for the means
    of `adaptive_avg_pool2d`. `align_corners` lays the centres of the outer elements, not
    their borders, on each other. Numbers are those of PyTorch.

    Raises `ShapeError` for sizes that do not fit, `ValueError` for another mode.

    >>> from ferrule import Tensor
    >>> Tensor([[[1.0, 3.0]]]).interpolate(4).tolist()
    [[[1.0, 1.0, 3.0, 3.0]]]
    >>> Tensor([[[1.0, 3.0]]]).interpolate(3, mode="linear", align_corners=True).tolist()
    [[[1.0, 2.0, 3.0]]]
    """
    if isinstance(scale_factor, str):  # as tinygrad's interpolate(size, mode)
        scale_factor, mode = None, scale_factor
    one_of(mode, _MODES, "[interpolate] mode")
    if align_corners and mode in (*_NEAREST, "area"):
        raise ValueError(f"[interpolate] align_corners is not for mode {mode!r}")
    sizes, wanted, steps = _new_sizes(self, size, scale_factor, recompute_scale_factor)
    if mode == "area":
        return _adaptive_mean(self, wanted, len(wanted), "interpolate")
    result = _resized(self, sizes, wanted, steps, mode, bool(align_corners))
    is_even = [step == own / new for own, new, step in zip(sizes, wanted, steps, strict=True)]
    if all(is_even) and len(wanted) == len(self._shape) - 2:
        note("interpolate", [self], result, (mode, bool(align_corners)))
    return result


def _resized(
    self: Tensor,
    sizes: Sequence[int],
    wanted: Sequence[int],
    steps: Sequence[float],
    mode: str,
    align: bool,
) -> Tensor:
    """The last axes in other sizes, of places that are `steps` elements apart."""
    if mode in _NEAREST:
        return self._wrap(_nearest(self, sizes, wanted, steps, mode == "nearest-exact"))
    taps = sampling.linear_taps if mode in _LINEAR else sampling.cubic_taps
    source = float_value(self)
    value = accumulating(source)
    axis = first = len(value.shape) - len(wanted)
    for own, new, step in zip(sizes, wanted, steps, strict=True):
        if own != new or step != 1:
            even = align or step == own / new
            simple = even and mode in _LINEAR
            found = sampling.blended(value, axis, new, align) if simple else None
            if found is None:
                given = (own, new, step, align, value.dtype, self.device)
                table = taps(own, sampling.centres(*given))
                found = sampling.resized(_computed(value, axis, first), axis, *table)
            value = found
        axis += 1
    return self._wrap(value.cast(source.dtype))


def _new_sizes(
    self: Tensor,
    size: Wanted | None,
    factor: float | Sequence[float] | None,
    recompute: bool | None,
) -> tuple[list[int], list[int], list[float]]:
    """Sizes before and after, and the distance of places in elements, for the last axes."""
    if (size is None) == (factor is None):
        raise ValueError("[interpolate] give size or scale_factor, and not both")
    given: Any = factor if size is None else size
    count = len(self._shape) - 2 if isinstance(given, int | float) else len(given)
    if not 0 < count <= len(self._shape):
        raise ShapeError(
            f"[interpolate] shape {self._shape} has no {max(count, 1)} axes to resize behind "
            "(batch, channels)"
        )
    each: list[Any] = [given] * count if isinstance(given, int | float) else list(given)
    sizes = [known_size(n, "interpolate") for n in self._shape[len(self._shape) - count :]]
    if size is None:
        wanted = [int(n * times) for n, times in zip(sizes, each, strict=True)]
    else:
        wanted = [int(n) for n in each]
    if min(wanted) < 1 or min(sizes) < 1:
        raise ShapeError(
            f"[interpolate] the sizes {tuple(sizes)} cannot become {tuple(wanted)}: all must "
            "be at least 1"
        )
    steps = [n / new for n, new in zip(sizes, wanted, strict=True)]
    if size is None and not recompute:
        steps = [1 / times for times in each]
    return sizes, wanted, steps


def _nearest(
    self: Tensor, sizes: Sequence[int], wanted: Sequence[int], steps: Sequence[float], exact: bool
) -> TracedValue:
    value = self._read()
    axis = len(value.shape) - len(wanted)
    for own, new, step in zip(sizes, wanted, steps, strict=True):
        if new % own == 0 and step == own / new:
            value = sampling.repeated(value, axis, new // own)
        elif own % new == 0 and step == own / new:
            step = own // new
            value = sampling.every(value, axis, step // 2 if exact else 0, step, new)
        else:
            index = sampling.nearest_taps(own, new, step, exact, self.device)
            value = sampling.resized(value, axis, index, None)
        axis += 1
    return value


@method
def upsample(
    self: Tensor,
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """The same as `interpolate`.

    >>> from ferrule import Tensor
    >>> Tensor([[[1, 3]]]).upsample(scale_factor=2).tolist()
    [[[1, 1, 3, 3]]]
    """
    return self.interpolate(size, scale_factor, mode, align_corners)


@method
def upsample_nearest(
    self: Tensor,
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`interpolate` with mode "nearest".

    >>> from ferrule import Tensor
    >>> Tensor([[[1, 3]]]).upsample_nearest(4).tolist()
    [[[1, 1, 3, 3]]]
    """
    return self.interpolate(size, scale_factor)


@method
def upsample_bilinear(
    self: Tensor,
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`interpolate` with mode "bilinear" and `align_corners`.

    >>> from ferrule import Tensor
    >>> Tensor([[[[1.0, 3.0]]]]).upsample_bilinear((1, 3)).tolist()
    [[[[1.0, 2.0, 3.0]]]]
    """
    return self.interpolate(size, scale_factor, "bilinear", True)


# -- grids ---------------------------------------------------------------------------------------


@method
def grid_sample(
    self: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """(batch, channels, H, W) at the points (x, y) of a grid (batch, out H, out W, 2).

    Coordinates go from -1 to 1 over the image: between the borders, or between the centres of
    its outer elements with `align_corners`. With (batch, channels, D, H, W) a grid has one
    axis more and points (x, y, z). `mode` is "bilinear", "nearest" or, for two axes,
    "bicubic"; `padding_mode`, for points outside, is "zeros", "border" or "reflection".

    Raises `ShapeError` for shapes that do not fit.

    >>> from ferrule import Tensor
    >>> image = Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> image.grid_sample(Tensor([[[[0.0, 0.0], [-0.5, -0.5]]]])).tolist()
    [[[[2.5, 1.0]]]]
    """
    one_of(mode, ("bilinear", "nearest", "bicubic"), "[grid_sample] mode")
    one_of(padding_mode, ("zeros", "border", "reflection"), "[grid_sample] padding_mode")
    own, points = float_value(self), grid._read()
    count = len(own.shape) - 2
    fits = count in (2, 3) and len(points.shape) == count + 2
    if not fits or points.shape[-1] != count or points.shape[0] != own.shape[0]:
        raise ShapeError(
            f"[grid_sample] an image of shape {own.shape} needs a grid of shape (batch, …, "
            f"{max(count, 2)}) with as many axes, not {points.shape}"
        )
    if mode == "bicubic" and count != 2:
        raise ValueError("[grid_sample] mode 'bicubic' is for two axes; take 'bilinear'")
    for n in (*own.shape, *points.shape):
        known_size(n, "grid_sample")
    check_devices(own, points, "grid_sample")
    dtype = promote(own.dtype, points.dtype)
    out = points.shape[1:-1]
    shape = (*own.shape[:2], *out)
    if 0 in shape:
        return self._wrap(own.nothing(shape))
    if 0 in own.shape:
        raise ShapeError(f"[grid_sample] an image of shape {own.shape} has no elements")
    flat = points.reshape((points.shape[0], math.prod(out), count))
    kind = sampling.sampling_dtype(dtype)
    options = (mode, padding_mode, bool(align_corners))
    found = sampling.sampled(own.cast(kind), flat.cast(kind), *options)
    return self._wrap(found.reshape(shape).cast(own.dtype))


@method
def affine_grid(self: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid for `grid_sample` that maps images by matrices (batch, 2, 3) or (batch, 3, 4).

    `size` is that of the result: (batch, channels, H, W) or (batch, channels, D, H, W).

    >>> from ferrule import Tensor
    >>> Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]]]).affine_grid((1, 1, 1, 2)).tolist()
    [[[[-0.5, 0.5], [0.5, 0.5]]]]
    """
    count = len(size) - 2
    if count not in (2, 3) or self._shape != (size[0], count, count + 1):
        raise ShapeError(
            f"[affine_grid] matrices of shape {self._shape} and a size of {tuple(size)}: these "
            "are (batch, 2, 3) with (batch, channels, H, W), or (batch, 3, 4) with a D before H"
        )
    matrices = float_value(self)
    spatial = tuple(size[2:])
    axes = [
        _coordinates(spatial, axis, bool(align_corners), matrices)
        for axis in reversed(range(count))
    ]
    points = [self._wrap(axis) for axis in (*axes, matrices.full(1, spatial))]
    base: TracedValue = points[0].stack(*points[1:], dim=-1)._read()
    base = base.reshape((1, math.prod(spatial), count + 1))
    return self._wrap(
        matrix_product(base, transposed(matrices)).reshape((size[0], *spatial, count))
    )


# -- pixels and channels -------------------------------------------------------------------------


@method
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    """(…, channels * r * r, H, W) as (…, channels, H * r, W * r).

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3, 4]).reshape(4, 1, 1).pixel_shuffle(2).tolist()
    [[[1, 2], [3, 4]]]
    """
    r = upscale_factor
    _check_image(self, "pixel_shuffle", r, r * r, 1)
    *lead, channels, high, wide = self._shape
    value = self._read().reshape((*lead, channels // (r * r), r, r, high, wide))
    n = len(lead)
    value = value.permute((*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return self._wrap(value.reshape((*lead, channels // (r * r), high * r, wide * r)))


@method
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    """The inverse of `pixel_shuffle`.

    >>> from ferrule import Tensor
    >>> Tensor([[[1, 2], [3, 4]]]).pixel_unshuffle(2).flatten().tolist()
    [1, 2, 3, 4]
    """
    r = downscale_factor
    _check_image(self, "pixel_unshuffle", r, 1, r)
    *lead, channels, high, wide = self._shape
    value = self._read().reshape((*lead, channels, high // r, r, wide // r, r))
    n = len(lead)
    value = value.permute((*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return self._wrap(value.reshape((*lead, channels * r * r, high // r, wide // r)))


def _check_image(self: Tensor, what: str, factor: int, channels: int, pixels: int) -> None:
    """Raise `ShapeError` unless the last three axes divide by the parts."""
    last = self._shape[-3:]
    parts = (channels, pixels, pixels)
    if factor < 1 or len(last) < 3 or any(n % part for n, part in zip(last, parts, strict=True)):
        raise ShapeError(
            f"[{what}] shape {self._shape} with a factor of {factor}: the last three axes "
            f"must divide by {parts}"
        )


@method
def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    """The channels, axis 1, taken from each of `groups` in turn.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3, 4]]).channel_shuffle(2).tolist()
    [[1, 3, 2, 4]]
    """
    if groups < 1 or len(self._shape) < 2 or self._shape[1] % groups:
        raise ShapeError(
            f"[channel_shuffle] axis 1 of shape {self._shape} must divide by {groups} groups"
        )
    batch, channels, *rest = self._shape
    value = self._read().reshape((batch, groups, channels // groups, *rest))
    value = value.permute((0, 2, 1, *range(3, len(value.shape))))
    return self._wrap(value.reshape(self._shape))


def _computed(value: TracedValue, axis: int, first: int) -> TracedValue:
    """The value, in memory of its own if an axis from `first` on was resized before.

    A gather would else compute an element each time that it takes it, and without vectors.
    """
    return value.contiguous() if axis > first else value


def _coordinates(spatial: Sequence[int], axis: int, align: bool, like: TracedValue) -> TracedValue:
    """From -1 to 1 along one axis of a grid: of its corners' centres, or its borders."""
    size = spatial[axis]
    place = iota(size, like.dtype, like.node.device)
    if align:
        line = place * (2 / (size - 1)) - 1 if size > 1 else place - 1
    else:
        line = (place * 2 + (1 - size)) / size
    return expanded(line, tuple(spatial), axis)
