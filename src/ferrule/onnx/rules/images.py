"""Operators on images: resizing, sampling at points, and regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from math import ceil, floor
from operator import add, mul

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.rules.windows import PLAIN, Window
from ferrule.onnx.values import Array, Host, OnnxError, ints
from ferrule.tensor import Tensor

# Resizing: along each axis, each result is a weighted sum of a few elements.


def _coordinates(
    mode: str, size: int, wanted: int, scale: float, start: float, end: float
) -> Array:
    """Where the elements of a resized axis are in the one before."""
    places = np.arange(wanted, dtype=np.float64)
    if mode == "asymmetric":
        return places / scale
    if mode == "align_corners":
        length = scale * size  # before it was rounded to a whole number
        return places * (size - 1) / (length - 1) if length > 1 else places * 0
    if mode == "half_pixel":
        return (places + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (places + 0.5) / scale - 0.5 if wanted > 1 else places * 0 - 0.5
    if mode == "half_pixel_symmetric":
        adjusted = wanted / (scale * size)
        centre = size / 2 * (1 - adjusted)
        return centre + (places + 0.5) / scale - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (places + 0.5) / scale
    if mode == "tf_crop_and_resize":
        if wanted > 1:
            return start * (size - 1) + places * (end - start) * (size - 1) / (wanted - 1)
        return places * 0 + 0.5 * (start + end) * (size - 1)
    raise OnnxError(f"Resize: there is no coordinate_transformation_mode {mode!r}")


_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(distance: Array) -> Array:
    weights: Array = np.maximum(1 - np.abs(distance), 0)
    return weights


def _cubic(a: float) -> Callable[[Array], Array]:
    """Keys' kernel of cubic convolution, of a parameter `a`."""

    def weight(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((d - 5) * d + 8) * a * d - 4 * a
        weights: Array = np.where(d <= 1, near, np.where(d < 2, far, 0))
        return weights

    return weight


def _taps(
    at: Array, size: int, reach: int, weight: Callable[[Array], Array], scale: float, exclude: int
) -> tuple[Array, Array]:
    """The elements that each result is a sum of, and their weights."""
    widened = min(scale, 1.0)
    half = ceil(reach / widened)
    offsets = np.arange(-half + 1, half + 1)
    places = np.floor(at)[:, None].astype(np.int64) + offsets
    weights = weight((places - at[:, None]) * widened)
    if exclude:
        weights = np.where((places >= 0) & (places < size), weights, 0)
    if exclude or widened < 1:
        weights = weights / weights.sum(1, keepdims=True)
    return places.clip(0, size - 1), weights


def _resized(x: Tensor, axis: int, places: Array, weights: Array | None) -> Tensor:
    """An axis whose elements are weighted sums of a few elements of `x`."""
    if weights is None:
        return x.index_select(axis, Tensor(places))
    total: Tensor | None = None
    shape = [1] * x.ndim
    shape[axis] = -1
    for tap in range(places.shape[1]):
        if not weights[:, tap].any():
            continue
        factor = Tensor(weights[:, tap].astype(np.float32)).reshape(*shape)
        part = x.index_select(axis, Tensor(np.ascontiguousarray(places[:, tap]))) * factor
        total = part if total is None else total + part
    assert total is not None, "weights add up to one"
    return total


@rule("Resize", 11)
def resize(
    x: Tensor,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    along = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes)]
    old = [x.shape[axis] for axis in along]
    if sizes is not None and sizes.size:
        wanted = list(ints(sizes))
        factors = [new / size for new, size in zip(wanted, old, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            pick = min if keep_aspect_ratio_policy == "not_larger" else max
            factors = [pick(factors)] * len(factors)
            wanted = [floor(f * size + 0.5) for f, size in zip(factors, old, strict=True)]
    elif scales is not None and scales.size:
        factors = [float(factor) for factor in scales]
        wanted = [floor(size * f) for size, f in zip(old, factors, strict=True)]
    else:
        raise OnnxError("neither sizes nor scales are given")
    region = [0.0] * len(along) + [1.0] * len(along)
    if roi is not None and roi.size:
        region = [float(edge) for edge in roi]
    y = x if dtypes.is_float(x.dtype) or mode == "nearest" else x.cast(dtypes.float32)
    outside: Tensor | None = None
    for place, axis in enumerate(along):
        size, factor = old[place], factors[place]
        start, end = region[place], region[place + len(along)]
        if wanted[place] == size and factor == 1 and (start, end) == (0, 1):
            continue
        at = _coordinates(coordinate_transformation_mode, size, wanted[place], factor, start, end)
        if coordinate_transformation_mode == "tf_crop_and_resize":
            shape = [1] * x.ndim
            shape[axis] = -1
            here = Tensor((at < 0) | (at > size - 1)).reshape(*shape)
            outside = here if outside is None else outside.logical_or(here)
        if mode == "nearest":
            nearest = _ROUNDINGS[nearest_mode](at).astype(np.int64).clip(0, size - 1)
            y = _resized(y, axis, nearest, None)
        else:
            reach, weight = (1, _linear) if mode == "linear" else (2, _cubic(cubic_coeff_a))
            y = _resized(
                y, axis, *_taps(at, size, reach, weight, factor if antialias else 1.0,
                                exclude_outside)
            )  # fmt: skip
    if outside is not None:
        y = outside.where(extrapolation_value, y)
    if not dtypes.is_float(x.dtype):
        y = y.round().clip(dtypes.min(x.dtype), dtypes.max(x.dtype))
    return y.cast(x.dtype)


@rule("Resize", 10)
def resize_old(x: Tensor, scales: Host, *, mode: str = "nearest") -> Tensor:
    return resize(
        x, None, scales, coordinate_transformation_mode="asymmetric", mode=mode,
        nearest_mode="floor",
    )  # fmt: skip


@rule("Upsample", 9)
def upsample(x: Tensor, scales: Host, *, mode: str = "nearest") -> Tensor:
    return resize_old(x, scales, mode=mode)


@rule("Upsample", 7)
def upsample_old(x: Tensor, *, scales: Sequence[float], mode: str = "nearest") -> Tensor:
    return resize_old(x, np.asarray(scales), mode=mode)


# Sampling at points


def _sample(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """The elements of images at whole places: `x` has the shape (N, C, sizes), each of `places`
    (N, points); gives (N, C, points). Elements outside are zero.
    """
    n, channels, *sizes = x.shape
    flat = places[0].cast(dtypes.int64) * 0
    within = flat == 0
    for size, place in zip(sizes, places, strict=True):
        within = within.logical_and(place >= 0).logical_and(place < size)
        flat = flat * size + place.clip(0, size - 1).cast(dtypes.int64)
    index = flat.unsqueeze(1).expand(n, channels, flat.shape[1])
    values = x.reshape(n, channels, -1).gather(2, index)
    return within.unsqueeze(1).where(values, 0.0)


def _corners(at: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """The elements around points, each with its weight: the nearer, the heavier."""
    lower = [place.floor() for place in at]
    for corner in product((0, 1), repeat=len(at)):
        sides = [
            place - low if upper else 1 - (place - low)
            for place, low, upper in zip(at, lower, corner, strict=True)
        ]
        yield reduce(mul, sides), [low + upper for low, upper in zip(lower, corner, strict=True)]


def _interpolated(x: Tensor, at: Sequence[Tensor]) -> Tensor:
    """Images at points between elements: the mean of those around each, by distance."""
    parts = [_sample(x, places) * weight.unsqueeze(1) for weight, places in _corners(at)]
    return reduce(add, parts)


@rule("GridSample", 16)
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return x.grid_sample(grid, mode, padding_mode, bool(align_corners)).cast(x.dtype)


@rule("AffineGrid", 20)
def affine_grid(theta: Tensor, size: Host, *, align_corners: int = 0) -> Tensor:
    return theta.affine_grid(list(ints(size)), bool(align_corners))


# Regions


@rule("RoiAlign", 10)
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str | None = None,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    return _roi_align(
        x, rois, batch_indices, coordinate_transformation_mode or "output_half_pixel", mode,
        (output_height, output_width), sampling_ratio, spatial_scale,
    )  # fmt: skip


@rule("RoiAlign", 16)
def roi_align_16(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    return _roi_align(
        x, rois, batch_indices, coordinate_transformation_mode, mode,
        (output_height, output_width), sampling_ratio, spatial_scale,
    )  # fmt: skip


def _roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    coordinates: str,
    mode: str,
    output: tuple[int, int],
    ratio: int,
    scale: float,
) -> Tensor:
    half = 0.5 if coordinates == "half_pixel" else 0.0
    channels = x.shape[1]
    count = rois.shape[0]
    boxes = rois * scale - half
    if not ratio:
        # As many points as a box has pixels in a bin; the largest box decides, and is read.
        extents = boxes.numpy()
        spans = [extents[:, 3] - extents[:, 1], extents[:, 2] - extents[:, 0]]
        if not half:
            spans = [np.maximum(span, 1) for span in spans]
        counts = [np.ceil(s / o).astype(int) for s, o in zip(spans, output, strict=True)]
        parts = [
            _roi_bins(x, boxes[i : i + 1], batch_indices[i : i + 1], half, mode, output,
                      (max(int(counts[0][i]), 1), max(int(counts[1][i]), 1)))
            for i in range(count)
        ]  # fmt: skip
        return Tensor.cat(*parts) if parts else Tensor.zeros(0, channels, *output, dtype=x.dtype)
    return _roi_bins(x, boxes, batch_indices, half, mode, output, (ratio, ratio))


def _roi_bins(
    x: Tensor,
    boxes: Tensor,
    images: Tensor,
    half: float,
    mode: str,
    output: tuple[int, int],
    points: tuple[int, int],
) -> Tensor:
    count, channels = boxes.shape[0], x.shape[1]
    at = []
    for axis, (start, end) in enumerate(((1, 3), (0, 2))):
        low, span = boxes[:, start], boxes[:, end] - boxes[:, start]
        if not half:
            span = span.maximum(1.0)
        steps = output[axis] * points[axis]
        where = (Tensor.arange(steps, dtype=dtypes.float32) + 0.5) / points[axis]
        at.append(low.unsqueeze(1) + where * (span / output[axis]).unsqueeze(1))
    rows, columns = at
    sizes = x.shape[2:]
    y_places = rows.unsqueeze(2).expand(count, rows.shape[1], columns.shape[1])
    x_places = columns.unsqueeze(1).expand(count, rows.shape[1], columns.shape[1])
    flat = [y_places.reshape(count, -1), x_places.reshape(count, -1)]
    valid = None
    kept = []
    for place, size in zip(flat, sizes, strict=True):
        here = (place >= -1).logical_and(place <= size)
        valid = here if valid is None else valid.logical_and(here)
        kept.append(place.clip(0, size - 1))
    assert valid is not None
    chosen = x.index_select(0, images)
    shape = (count, channels, output[0], points[0], output[1], points[1])
    inside = valid.unsqueeze(1)
    if mode == "max":
        # The largest of the weighted elements, not of their sums.
        parts = [
            _sample(chosen, [p.clip(0, n - 1) for p, n in zip(places, sizes, strict=True)])
            * weight.unsqueeze(1)
            for weight, places in _corners(kept)
        ]
        return inside.where(reduce(Tensor.maximum, parts), 0.0).reshape(*shape).amax((3, 5))
    return inside.where(_interpolated(chosen, kept), 0.0).reshape(*shape).mean((3, 5))


@rule("MaxRoiPool")
def max_roi_pool(
    x: Tensor, rois: Host, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    boxes = []
    for image, left, top, right, bottom in rois:
        x0, y0, x1, y1 = (floor(edge * spatial_scale + 0.5) for edge in (left, top, right, bottom))
        boxes.append(_pooled(x[int(image)], (y0, x0), (y1, x1), pooled_shape))
    return Tensor.stack(*boxes)


def _pooled(
    image: Tensor, first: tuple[int, int], last: tuple[int, int], bins: Sequence[int]
) -> Tensor:
    edges = []
    for low, high, count, size in zip(first, last, bins, image.shape[1:], strict=True):
        extent = max(high - low + 1, 1) / count
        edges.append(
            [
                (
                    min(max(floor(i * extent) + low, 0), size),
                    min(max(ceil((i + 1) * extent) + low, 0), size),
                )
                for i in range(count)
            ]
        )
    cells = [
        image[:, y0:y1, x0:x1].amax((1, 2)) if y1 > y0 and x1 > x0 else image[:, 0, 0] * 0
        for (y0, y1), (x0, x1) in product(*edges)
    ]
    return Tensor.stack(*cells, dim=1).reshape(image.shape[0], *bins)


@rule("NonMaxSuppression", 10)
def non_max_suppression(
    boxes: Host,
    scores: Host,
    max_output_boxes_per_class: Host | None = None,
    iou_threshold: Host | None = None,
    score_threshold: Host | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    most = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.item())
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.item())
    least = None if score_threshold is None else float(score_threshold.item())
    if center_point_box:
        centre, size = boxes[..., :2], boxes[..., 2:]
        low, high = centre - size / 2, centre + size / 2
    else:
        low = np.minimum(boxes[..., :2], boxes[..., 2:])
        high = np.maximum(boxes[..., :2], boxes[..., 2:])
    found = [
        (image, kind, box)
        for image in range(scores.shape[0])
        for kind in range(scores.shape[1])
        for box in _suppressed(low[image], high[image], scores[image, kind], most, overlap, least)
    ]
    return np.asarray(found, np.int64).reshape(-1, 3)


def _suppressed(
    low: Array, high: Array, scores: Array, most: int, overlap: float, least: float | None
) -> list[int]:
    """The boxes that overlap no better one by more than `overlap`, the best first."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    areas = (high - low).prod(-1)
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        sides = np.minimum(high[best], high[order]) - np.maximum(low[best], low[order])
        shared = sides.clip(0).prod(-1)
        union = areas[best] + areas[order] - shared
        ratio = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        order = order[ratio <= overlap]
    return kept


@rule("DeformConv", 19)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    window: Window = PLAIN,
    group: int = 1,
    offset_group: int = 1,
) -> Tensor:
    if x.ndim != 4:
        raise OnnxError("deformable convolutions of images with 2 axes only are supported")
    windows = window.on(x.shape[2:], w.shape[2:])
    n, channels = x.shape[:2]
    counts = windows.counts
    taps = list(product(*map(range, windows.kernel)))
    moved = offset.reshape(n, offset_group, len(taps), 2, *counts)
    columns = []
    for number, tap in enumerate(taps):
        at = []
        for axis in range(2):
            start = tap[axis] * windows.dilations[axis] - windows.around[axis][0]
            base = Tensor.arange(counts[axis], dtype=x.dtype) * windows.strides[axis] + start
            base = base.reshape(*((-1, 1) if axis == 0 else (1, -1)))
            place = moved[:, :, number, axis] + base
            at.append(place.reshape(n * offset_group, -1))
        images = x.reshape(n * offset_group, channels // offset_group, *x.shape[2:])
        values = _interpolated(images, at)
        values = values.reshape(n, offset_group, channels // offset_group, *counts)
        if mask is not None:
            values = values * mask.reshape(n, offset_group, len(taps), 1, *counts)[:, :, number]
        columns.append(values.reshape(n, channels, *counts))
    patches = Tensor.stack(*columns, dim=2)  # (N, C, taps, rows, columns)
    grouped = patches.reshape(n, group, -1, *counts)
    filters = w.reshape(group, w.shape[0] // group, -1)
    y = Tensor.einsum("ngkhw,gok->ngohw", grouped, filters).reshape(n, w.shape[0], *counts)
    return y if b is None else y + b.reshape(1, -1, 1, 1)
