"""Operators on windows that move over images: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import ceil, floor, prod
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.rules.products import integer_product
from ferrule.onnx.rules.shapes import padded
from ferrule.onnx.values import Host, OnnxError, as_tensor, ints
from ferrule.tensor import Tensor

Pairs = list[tuple[int, int]]


class Window(NamedTuple):
    """The attributes that say how windows move over an image."""

    auto_pad: str = "NOTSET"
    dilations: Sequence[int] | None = None
    kernel_shape: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    strides: Sequence[int] | None = None

    def on(self, sizes: Sequence[int], kernel: Sequence[int], ceil_mode: int = 0) -> Windows:
        """The windows on an image."""
        ones = [1] * len(kernel)
        steps = list(zip(kernel, self.strides or ones, self.dilations or ones, strict=True))
        around = self._around(sizes, steps)
        rounding = ceil if ceil_mode and self.auto_pad == "NOTSET" else floor
        counts, beyond = [], []
        for size, (before, after), (k, stride, dilation) in zip(sizes, around, steps, strict=True):
            reach = dilation * (k - 1) + 1
            count = rounding((size + before + after - reach) / stride) + 1
            if rounding is ceil and (count - 1) * stride >= size + before:
                count -= 1  # a window must begin in the image, or in what is before it
            counts.append(count)
            beyond.append((0, (count - 1) * stride + reach - size - before - after))
        _, strides, dilations = zip(*steps, strict=True)
        return Windows(tuple(kernel), strides, dilations, around, tuple(counts), beyond)

    def _around(self, sizes: Sequence[int], steps: Sequence[tuple[int, int, int]]) -> Pairs:
        n = len(sizes)
        if self.auto_pad == "NOTSET" and self.pads:
            return list(zip(self.pads[:n], self.pads[n:], strict=True))
        if self.auto_pad in ("NOTSET", "VALID"):
            return [(0, 0)] * n
        # So that the size, divided by the stride, stays.
        around: Pairs = []
        for size, (k, stride, dilation) in zip(sizes, steps, strict=True):
            missing = (ceil(size / stride) - 1) * stride + dilation * (k - 1) + 1 - size
            around.append(self.halves(max(missing, 0)))
        return around

    def halves(self, width: int) -> tuple[int, int]:
        """The parts of a width before and after an image, the larger one where it should be."""
        less, more = width // 2, width - width // 2
        return (less, more) if self.auto_pad == "SAME_UPPER" else (more, less)


PLAIN = Window()
"""Windows that move by one element, on nothing but the image."""


class Windows(NamedTuple):
    """Windows on an image: how they move, what is added around it, and how many there are."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    around: Pairs
    counts: tuple[int, ...]
    """The number of windows along each axis."""
    beyond: Pairs
    """What the last windows reach beyond that; below zero where they end before."""

    def grown(self, x: Tensor, value: Any, beyond: Any) -> Tensor:
        """Images with a value around them, and another beyond that."""
        return on_images(on_images(x, self.around, value), self.beyond, beyond)

    def parts(self, grown: Tensor) -> list[Tensor]:
        """For each place in a window what is there, of all windows."""
        return [
            grown[(slice(None), slice(None), *map(_taps, place, *self._steps))]
            for place in product(*map(range, self.kernel))
        ]

    @property
    def _steps(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return self.dilations, self.strides, self.counts


def _taps(at: int, dilation: int, stride: int, count: int) -> slice:
    """What one place in all windows sees along an axis."""
    start = at * dilation
    return slice(start, start + (count - 1) * stride + 1, stride)


def on_images(x: Tensor, around: Pairs, value: Any) -> Tensor:
    """Images (batch, channels, sizes) with elements before and after each axis of sizes."""
    return padded(x, [(0, 0), (0, 0), *around], "constant", value)


_CONVOLUTIONS = {1: Tensor.conv1d, 2: Tensor.conv2d, 3: Tensor.conv3d}
_TRANSPOSED = {1: Tensor.conv_transpose1d, 2: Tensor.conv_transpose2d, 3: Tensor.conv_transpose3d}


@rule("Conv")
def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, window: Window = PLAIN, group: int = 1
) -> Tensor:
    if w.ndim - 2 not in _CONVOLUTIONS:
        raise OnnxError(f"convolutions of images with {w.ndim - 2} axes are not supported")
    windows = window.on(x.shape[2:], w.shape[2:])
    around = windows.around
    if any(before != after for before, after in around):
        x, around = on_images(x, around, 0), [(0, 0)] * len(around)
    padding = tuple(before for before, _ in around)
    method = _CONVOLUTIONS[w.ndim - 2]
    return method(x, w, b, windows.strides, padding, windows.dilations, group)


@rule("ConvInteger", 10)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    window: Window = PLAIN,
    group: int = 1,
) -> Tensor:
    return integer_conv(x, w, x_zero, w_zero, None, window, group)


def integer_conv(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None,
    w_zero: Tensor | None,
    w_sums: Tensor | None,
    window: Window,
    group: int,
) -> Tensor:
    """A convolution of 8-bit numbers less their zero points, in int32.

    `w_sums` are the sums of the weights of each filter, if they are known.
    """
    if group > 1:
        if w_zero is not None and w_zero.ndim:
            w_zero = w_zero.reshape(-1, *(1,) * (w.ndim - 1))
        # Floats are exact while the sums have 24 bits, and there are schedules for few terms.
        is_exact = prod(w.shape[1:]) * 2**16 <= 2**24
        dtype = dtypes.float32 if is_exact else dtypes.int32
        x, w = (_shifted(*of).cast(dtype).contiguous() for of in ((x, x_zero), (w, w_zero)))
        return conv(x, w, window=window, group=group).cast(dtypes.int32)
    # A product of matrices, as there are instructions for these: filters x windows.
    windows = window.on(x.shape[2:], w.shape[2:])
    grown = windows.grown(x, 0, 0)
    if x_zero is not None and any(before or after for before, after in windows.around):
        ones = Tensor.ones(1, 1, *x.shape[2:], dtype=dtypes.bool)
        grown = windows.grown(ones, False, False).where(grown, x_zero)
    if grown is not x:
        grown = grown.contiguous()
    parts = windows.parts(grown)
    columns = parts[0] if len(parts) == 1 else Tensor.stack(*parts, dim=2)
    if any(stride > 1 for stride in windows.strides):
        columns = columns.contiguous()  # the instructions read neighbours
    columns = columns.reshape(x.shape[0], -1, prod(windows.counts))
    y = integer_product(w.reshape(w.shape[0], -1), columns, w_zero, x_zero, w_sums)
    return y.reshape(x.shape[0], w.shape[0], *windows.counts)


def _shifted(x: Tensor, zero: Tensor | None) -> Tensor:
    wide = x.cast(dtypes.int32)
    return wide if zero is None else wide - zero.cast(dtypes.int32)


@rule("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    window: Window = PLAIN,
    group: int = 1,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
) -> Tensor:
    n = w.ndim - 2
    windows = window.on(x.shape[2:], w.shape[2:])
    extra = output_padding or [0] * n
    if output_shape is None and window.auto_pad.startswith("SAME"):
        output_shape = [s * stride for s, stride in zip(x.shape[2:], windows.strides, strict=True)]
    around = windows.around
    if output_shape is not None:
        around = []
        for axis, wanted in enumerate(output_shape[-n:]):
            reach = windows.dilations[axis] * (w.shape[2 + axis] - 1) + 1
            full = (x.shape[2 + axis] - 1) * windows.strides[axis] + reach + extra[axis]
            missing = full - wanted
            # What is wanted beyond the last window comes after it.
            around.append((0, missing) if missing < 0 else window.halves(missing))
    y = _TRANSPOSED[n](x, w, b, stride=windows.strides, dilation=windows.dilations, groups=group)
    edges = [(-before, more - after) for (before, after), more in zip(around, extra, strict=True)]
    if b is None or all(after <= 0 for _, after in edges):
        return on_images(y, edges, 0)
    # What lies beyond the last window has the bias alone.
    bias = b.reshape(1, -1, *(1,) * n)
    return on_images(y - bias, edges, 0) + bias


# Pooling

_MAX_POOLS = {1: Tensor.max_pool1d, 2: Tensor.max_pool2d, 3: Tensor.max_pool3d}
_AVERAGE_POOLS = {1: Tensor.avg_pool1d, 2: Tensor.avg_pool2d, 3: Tensor.avg_pool3d}


@rule("MaxPool")
def max_pool(
    x: Tensor,
    *,
    window: Window = PLAIN,
    ceil_mode: int = 0,
    storage_order: int = 0,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, Tensor]:
    windows = window.on(x.shape[2:], kernel_of(window), ceil_mode)
    lowest = float("-inf") if dtypes.is_float(x.dtype) else dtypes.min(x.dtype)
    grown = windows.grown(x, lowest, lowest)
    how = (windows.kernel, windows.strides, 0, windows.dilations)
    pool = _MAX_POOLS[len(windows.kernel)]
    if n_outputs == 1:
        return as_tensor(pool(grown, *how)).cast(x.dtype)
    y, places = pool(grown, *how, return_indices=True)
    return as_tensor(y).cast(x.dtype), _flat(places, grown, windows.around, x, storage_order)


def kernel_of(window: Window) -> Sequence[int]:
    """The sizes of a window; raises `OnnxError` if they are missing."""
    if window.kernel_shape is None:
        raise OnnxError("the attribute kernel_shape is missing")
    return window.kernel_shape


def _flat(places: Tensor, grown: Tensor, around: Pairs, x: Tensor, storage_order: int) -> Tensor:
    """Places in each padded image as places in all images; the last axis first if asked for."""
    sizes = list(x.shape[2:])
    rest = places.cast(dtypes.int64)
    coordinates: list[Tensor] = []
    for size, (before, _) in zip(reversed(grown.shape[2:]), reversed(around), strict=True):
        coordinates.insert(0, rest % size - before)
        rest = rest.div(size, rounding_mode="floor")
    if storage_order:
        coordinates, sizes = coordinates[::-1], sizes[::-1]
    flat: Tensor = coordinates[0]
    for coordinate, size in zip(coordinates[1:], sizes[1:], strict=True):
        flat = flat * size + coordinate
    images = Tensor.arange(x.shape[0] * x.shape[1], dtype=dtypes.int64) * prod(sizes)
    found: Tensor = flat + images.reshape(*x.shape[:2], *(1,) * len(sizes))
    return found


@rule("AveragePool")
def average_pool(
    x: Tensor, *, window: Window = PLAIN, ceil_mode: int = 0, count_include_pad: int = 0
) -> Tensor:
    windows = window.on(x.shape[2:], kernel_of(window), ceil_mode)
    is_even = all(before == after for before, after in windows.around)
    if is_even and all(end <= 0 for _, end in windows.beyond) and set(windows.dilations) == {1}:
        padding = tuple(before for before, _ in windows.around)
        pool = _AVERAGE_POOLS[len(windows.kernel)]
        counts_all = bool(count_include_pad)
        mean = pool(x, windows.kernel, windows.strides, padding, count_include_pad=counts_all)
        return as_tensor(mean)
    total = reduce(add, windows.parts(windows.grown(x, 0, 0)))
    ones = Tensor.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    return total / reduce(add, windows.parts(windows.grown(ones, count_include_pad, 0)))


@rule("LpPool", 2)
def lp_pool(x: Tensor, *, window: Window = PLAIN, ceil_mode: int = 0, p: int = 2) -> Tensor:
    windows = window.on(x.shape[2:], kernel_of(window), ceil_mode)
    parts = [part.abs() ** p for part in windows.parts(windows.grown(x, 0, 0))]
    return reduce(add, parts) ** (1 / p)


def _image_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@rule("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(_image_axes(x), keepdim=True)


@rule("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.amax(_image_axes(x), keepdim=True)


@rule("GlobalLpPool", 2)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return (x.abs() ** p).sum(_image_axes(x), keepdim=True) ** (1 / p)


@rule("MaxUnpool", 9)
def max_unpool(
    x: Tensor, indices: Tensor, output_shape: Host | None = None, *, window: Window = PLAIN
) -> Tensor:
    windows = window.on(x.shape[2:], kernel_of(window))
    sizes = [
        (size - 1) * stride + k - before - after
        for size, stride, k, (before, after) in zip(
            x.shape[2:], windows.strides, windows.kernel, windows.around, strict=True
        )
    ]
    shape = [*x.shape[:2], *sizes]
    flat = Tensor.zeros(prod(shape), dtype=x.dtype).scatter(0, indices.reshape(-1), x.reshape(-1))
    small = flat.reshape(*shape)
    if output_shape is None:
        return small
    # The places are those of the smaller image.
    edges = [(0, w - s) for w, s in zip(ints(output_shape), shape, strict=True)]
    return padded(small, edges, "constant", 0)


@rule("Col2Im", 18)
def col2im(x: Tensor, image_shape: Host, block_shape: Host, *, window: Window = PLAIN) -> Tensor:
    image = ints(image_shape)
    windows = window.on(image, ints(block_shape))
    around, kernel = windows.around, windows.kernel
    grown = [size + before + after for size, (before, after) in zip(image, around, strict=True)]
    # The place in the padded image of each element: a sum of one for each axis of blocks and image.
    places = np.zeros((1, 1), np.int64)
    for axis, size in enumerate(grown):
        inner = np.arange(kernel[axis])[:, None] * windows.dilations[axis]
        outer = np.arange(windows.counts[axis])[None] * windows.strides[axis]
        rows = places[:, None, :, None] * size + (inner + outer)[None, :, None, :]
        places = rows.reshape(places.shape[0] * kernel[axis], -1)
    batch, channels = x.shape[0], x.shape[1] // prod(kernel)
    flat = Tensor(places.reshape(1, 1, -1)).expand(batch, channels, places.size)
    sums = Tensor.zeros(batch, channels, prod(grown), dtype=x.dtype)
    sums = sums.scatter_add(2, flat, x.reshape(batch, channels, -1))
    edges = [(-before, -after) for before, after in around]
    return on_images(sums.reshape(batch, channels, *grown), edges, 0)
