"""Operators on windows that move over images: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, floor, prod

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.rules.products import integer_product
from ferrule.onnx.rules.shapes import padded
from ferrule.onnx.values import Host, OnnxError, as_tensor, ints
from ferrule.tensor import Tensor

Pairs = list[tuple[int, int]]


def same_padding(
    auto_pad: str, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> Pairs:  # fmt: skip
    """What is to be added around an image so that its size, divided by the strides, stays."""
    around: Pairs = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        count = ceil(size / stride)
        missing = max((count - 1) * stride + dilation * (k - 1) + 1 - size, 0)
        less, more = missing // 2, missing - missing // 2
        around.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return around


def around_of(
    auto_pad: str, pads: Sequence[int] | None, sizes: Sequence[int], kernel: Sequence[int],
    strides: Sequence[int], dilations: Sequence[int],
) -> Pairs:  # fmt: skip
    """What is added around an image, as the attributes of an operator say."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return same_padding(auto_pad, sizes, kernel, strides, dilations)
    if auto_pad == "VALID" or not pads:
        return [(0, 0)] * len(kernel)
    n = len(kernel)
    return list(zip(pads[:n], pads[n:], strict=True))


def convolve(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    around: Pairs,
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Tensor:
    """A convolution of images with 1, 2 or 3 axes."""
    n = w.ndim - 2
    method = {1: Tensor.conv1d, 2: Tensor.conv2d, 3: Tensor.conv3d}.get(n)
    if method is None:
        raise OnnxError(f"convolutions of images with {n} axes are not supported")
    if any(before != after for before, after in around):
        x = padded(x, [(0, 0), (0, 0), *around], "constant", 0)
        around = [(0, 0)] * n
    padding = tuple(before for before, _ in around)
    return method(x, w, bias, tuple(strides), padding, tuple(dilations), group)


@rule("Conv")
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    ones = [1] * (w.ndim - 2)
    strides, dilations = strides or ones, dilations or ones
    around = around_of(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
    return convolve(x, w, b, around, strides, dilations, group)


@rule("ConvInteger", 10)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    return integer_convolution(
        x, w, x_zero, w_zero, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads,
        strides=strides,
    )  # fmt: skip


def integer_convolution(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None,
    w_zero: Tensor | None,
    *,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """A convolution of 8-bit numbers less their zero points, in int32."""
    if group > 1 or w.ndim != 4:
        if w_zero is not None and w_zero.ndim:
            w_zero = w_zero.reshape(-1, *(1,) * (w.ndim - 1))
        x, w = _shifted(x, x_zero), _shifted(w, w_zero)
        return conv(
            x, w, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
        )
    # A product of matrices, as there are instructions for these: filters x windows.
    strides, dilations = strides or (1, 1), dilations or (1, 1)
    around = around_of(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
    edges = [(0, 0), (0, 0), *around]
    if any(width for edge in around for width in edge):
        inside = padded(
            Tensor.ones(1, 1, *x.shape[2:], dtype=dtypes.bool), edges, "constant", False
        )
        x = inside.where(padded(x, edges, "constant", 0), 0 if x_zero is None else x_zero)
    n, _, *sizes = x.shape
    counts = [
        (size - dilation * (k - 1) - 1) // stride + 1
        for size, k, stride, dilation in zip(sizes, w.shape[2:], strides, dilations, strict=True)
    ]
    windows = [
        x[
            :,
            :,
            _taps(i, dilations[0], strides[0], counts[0]),
            _taps(j, dilations[1], strides[1], counts[1]),
        ]
        for i, j in product(*map(range, w.shape[2:]))
    ]
    columns = windows[0] if len(windows) == 1 else Tensor.stack(*windows, dim=2)
    columns = columns.reshape(n, -1, prod(counts))
    filters = w.reshape(w.shape[0], -1)
    y = integer_product(filters, columns, w_zero, x_zero)
    return y.reshape(n, w.shape[0], *counts)


def _taps(at: int, dilation: int, stride: int, count: int) -> slice:
    """What one place in all windows sees along an axis."""
    start = at * dilation
    return slice(start, start + (count - 1) * stride + 1, stride)


def _shifted(x: Tensor, zero: Tensor | None) -> Tensor:
    wide = x.cast(dtypes.int32)
    return wide if zero is None else wide - zero.cast(dtypes.int32)


@rule("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    n = w.ndim - 2
    ones = [1] * n
    strides, dilations, extra = strides or ones, dilations or ones, output_padding or [0] * n
    full = [
        (size - 1) * stride + (k - 1) * dilation + 1 + more
        for size, stride, k, dilation, more in zip(
            x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True
        )
    ]
    if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if output_shape is not None:
        around = []
        for size, wanted in zip(full, output_shape[-n:], strict=True):
            missing = size - wanted
            if missing < 0:  # beyond the last window
                around.append((0, missing))
                continue
            less, more = missing // 2, missing - missing // 2
            around.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    else:
        around = around_of(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
    method = {1: Tensor.conv_transpose1d, 2: Tensor.conv_transpose2d, 3: Tensor.conv_transpose3d}
    y = method[n](x, w, b, stride=tuple(strides), dilation=tuple(dilations), groups=group)
    edges = [(-before, more - after) for (before, after), more in zip(around, extra, strict=True)]
    if b is None or all(after <= 0 for _, after in edges):
        return padded(y, [(0, 0), (0, 0), *edges], "constant", 0)
    # What lies beyond the last window has the bias alone.
    bias = b.reshape(1, -1, *ones)
    return padded(y - bias, [(0, 0), (0, 0), *edges], "constant", 0) + bias


# Pooling


class _Windows:
    """Where the windows of a pooling are: what is added around an image, and their number."""

    def __init__(
        self,
        x: Tensor,
        kernel: Sequence[int],
        strides: Sequence[int] | None,
        dilations: Sequence[int] | None,
        pads: Sequence[int] | None,
        auto_pad: str,
        ceil_mode: int,
    ) -> None:
        ones = [1] * len(kernel)
        self.kernel = tuple(kernel)
        self.strides, self.dilations = tuple(strides or ones), tuple(dilations or ones)
        sizes = x.shape[2:]
        self.around = around_of(auto_pad, pads, sizes, kernel, self.strides, self.dilations)
        self.counts: list[int] = []
        self.extended: Pairs = []
        rounding = ceil if ceil_mode and auto_pad == "NOTSET" else floor
        for axis, size in enumerate(sizes):
            before, after = self.around[axis]
            stride = self.strides[axis]
            reach = self.dilations[axis] * (self.kernel[axis] - 1) + 1
            count = rounding((size + before + after - reach) / stride) + 1
            if rounding is ceil and (count - 1) * stride >= size + before:
                count -= 1  # a window must begin in the image, or in what is before it
            self.counts.append(count)
            self.extended.append((before, max((count - 1) * stride + reach - size - before, 0)))

    def parts(self, x: Tensor, value: float) -> list[Tensor]:
        """For each place in a window what is there, of all windows; `value` is outside."""
        grown = padded(x, [(0, 0), (0, 0), *self.extended], "constant", value)
        return [
            grown[(slice(None), slice(None), *self._where(place))]
            for place in product(*map(range, self.kernel))
        ]

    def _where(self, place: Sequence[int]) -> list[slice]:
        axes = zip(place, self.dilations, self.strides, self.counts, strict=True)
        return [_taps(*axis) for axis in axes]

    @property
    def is_plain(self) -> bool:
        """Whether equally much is added on both sides, and no window reaches farther."""
        return all(
            b == a and e <= a for (b, a), (_, e) in zip(self.around, self.extended, strict=True)
        )


_MAX_POOLS = {1: Tensor.max_pool1d, 2: Tensor.max_pool2d, 3: Tensor.max_pool3d}
_AVERAGE_POOLS = {1: Tensor.avg_pool1d, 2: Tensor.avg_pool2d, 3: Tensor.avg_pool3d}


@rule("MaxPool")
def max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, Tensor]:
    n = len(kernel_shape)
    windows = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    lowest = float("-inf") if dtypes.is_float(x.dtype) else dtypes.min(x.dtype)
    around = windows.extended
    grown = padded(x, [(0, 0), (0, 0), *around], "constant", lowest)
    pool = _MAX_POOLS[n]
    if n_outputs == 1:
        y = pool(grown, windows.kernel, windows.strides, 0, windows.dilations)
        return as_tensor(y).cast(x.dtype)
    y, places = pool(
        grown, windows.kernel, windows.strides, 0, windows.dilations, return_indices=True
    )
    return y.cast(x.dtype), _flat(places, grown.shape[2:], around, x.shape, storage_order)


def _flat(
    places: Tensor,
    grown: Sequence[int],
    around: Pairs,
    shape: Sequence[int],
    storage_order: int,
) -> Tensor:
    """Places in each padded image as places in all images; the last axis first if asked for."""
    sizes = list(shape[2:])
    rest = places.cast(dtypes.int64)
    coordinates: list[Tensor] = []
    for size, (before, _) in zip(reversed(grown), reversed(around), strict=True):
        coordinates.insert(0, rest % size - before)
        rest = rest.div(size, rounding_mode="floor")
    if storage_order:
        coordinates, sizes = coordinates[::-1], sizes[::-1]
    flat = coordinates[0]
    for coordinate, size in zip(coordinates[1:], sizes[1:], strict=True):
        flat = flat * size + coordinate
    images = Tensor.arange(shape[0] * shape[1], dtype=dtypes.int64) * prod(sizes)
    return flat + images.reshape(shape[0], shape[1], *(1,) * len(sizes))


@rule("AveragePool")
def average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    windows = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if windows.is_plain and set(windows.dilations) == {1}:
        padding = tuple(before for before, _ in windows.around)
        pool = _AVERAGE_POOLS[len(kernel_shape)]
        return pool(
            x, windows.kernel, windows.strides, padding, count_include_pad=bool(count_include_pad)
        )
    total = _sum(windows.parts(x, 0.0))
    ones = Tensor.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    if count_include_pad:
        edges = [(0, 0), (0, 0), *windows.around]
        ones = padded(ones, edges, "constant", 1)
        windows = _Windows(ones, kernel_shape, strides, dilations, None, "NOTSET", ceil_mode)
        windows.counts = list(total.shape[2:])
        windows.extended = [
            (0, max((c - 1) * s + d * (k - 1) + 1 - size, 0))
            for c, s, d, k, size in zip(
                windows.counts, windows.strides, windows.dilations, windows.kernel,
                ones.shape[2:], strict=True,
            )
        ]  # fmt: skip
    return total / _sum(windows.parts(ones, 0.0))


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@rule("LpPool", 2)
def lp_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    windows = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return _sum([part.abs() ** p for part in windows.parts(x, 0.0)]) ** (1 / p)


def _over_image(function: Callable[[Tensor, tuple[int, ...]], Tensor], x: Tensor) -> Tensor:
    return function(x, tuple(range(2, x.ndim)))


@rule("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return _over_image(lambda x, axes: x.mean(axes, keepdim=True), x)


@rule("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return _over_image(lambda x, axes: x.amax(axes, keepdim=True), x)


@rule("GlobalLpPool", 2)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return _over_image(lambda x, axes: (x.abs() ** p).sum(axes, keepdim=True) ** (1 / p), x)


@rule("MaxUnpool", 9)
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Host | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    n = len(kernel_shape)
    strides, pads = strides or [1] * n, pads or [0] * 2 * n
    sizes = [
        (size - 1) * stride + k - pads[axis] - pads[axis + n]
        for axis, (size, stride, k) in enumerate(
            zip(x.shape[2:], strides, kernel_shape, strict=True)
        )
    ]
    shape = [*x.shape[:2], *sizes]
    flat = Tensor.zeros(prod(shape), dtype=x.dtype).scatter(0, indices.reshape(-1), x.reshape(-1))
    small = flat.reshape(*shape)
    if output_shape is None:
        return small
    wanted = ints(output_shape)
    # The places are those of the smaller image.
    edges = [(0, w - s) for w, s in zip(wanted, shape, strict=True)]
    return padded(small, edges, "constant", 0)


@rule("Col2Im", 18)
def col2im(
    x: Tensor,
    image_shape: Host,
    block_shape: Host,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    image, block = ints(image_shape), ints(block_shape)
    n = len(image)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    around = around_of("NOTSET", pads, image, block, strides, dilations)
    grown = [size + before + after for size, (before, after) in zip(image, around, strict=True)]
    # The place in the padded image of each element: a sum of one for each axis of blocks and image.
    places = np.zeros((1, 1), np.int64)
    for axis in range(n):
        count = (grown[axis] - dilations[axis] * (block[axis] - 1) - 1) // strides[axis] + 1
        inner = np.arange(block[axis])[:, None] * dilations[axis]
        outer = np.arange(count)[None] * strides[axis]
        here = inner + outer
        rows = places[:, None, :, None] * grown[axis] + here[None, :, None, :]
        places = rows.reshape(places.shape[0] * block[axis], -1)
    batch, channels = x.shape[0], x.shape[1] // prod(block)
    flat = Tensor(places.reshape(1, 1, -1)).expand(batch, channels, places.size)
    sums = Tensor.zeros(batch, channels, prod(grown), dtype=x.dtype)
    sums = sums.scatter_add(2, flat, x.reshape(batch, channels, -1))
    edges = [(-before, -after) for before, after in around]
    return padded(sums.reshape(batch, channels, *grown), [(0, 0), (0, 0), *edges], "constant", 0)
