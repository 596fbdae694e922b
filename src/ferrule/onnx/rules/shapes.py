"""Operators that make tensors, and change shapes and orders without computing elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, sint
from ferrule.onnx.registry import rule
from ferrule.onnx.sizes import settled, sizes_of, varies
from ferrule.onnx.values import Array, Host, OnnxError, dtype_of, ints
from ferrule.tensor import Tensor


@rule("Constant")
def constant(
    *,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
) -> Array:
    if value is not None:
        return value
    if value_float is not None or value_floats is not None:
        return np.asarray(value_floats if value_float is None else value_float, np.float32)
    return np.asarray(value_ints if value_int is None else value_int, np.int64)


@rule("ConstantOfShape", 9)
def constant_of_shape(shape: Host, *, value: Array | None = None) -> Tensor:
    if value is None:
        value = np.zeros(1, np.float32)
    return Tensor(value.reshape(())).expand(*ints(shape))


@rule("Shape")
def shape_of(x: Tensor, *, start: int = 0, end: int | None = None) -> Array:
    return sizes_of(x.shape[start:end])


@rule("Size")
def size_of(x: Tensor) -> Array:
    return settled(prod(x.shape))


@rule("Range", 11)
def arrange(start: Host, limit: Host, delta: Host, *, stash_type: int = 1) -> Tensor:
    first, step = start.item(), delta.item()
    span = limit.item() - first
    is_real = isinstance(span, float) or isinstance(step, float)
    count = max(ceil(span / step) if is_real else -(-span // step), 0)
    kind = np.result_type(*(np.int64 if varies(end) else end for end in (start, limit, delta)))
    steps: Tensor = Tensor.arange(count, dtype=_counting(kind)) * step + first
    return steps.cast(dtypes.from_np(kind))


def _counting(dtype: Any) -> Any:
    return dtypes.int64 if np.issubdtype(dtype, np.integer) else dtypes.float64


@rule("EyeLike", 9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = x.shape
    places = Tensor.arange(rows).reshape(rows, 1) + k == Tensor.arange(columns)
    return places.cast(x.dtype if dtype is None else dtype_of(dtype))


# Shapes


@rule("Reshape", 5)
def reshape(x: Tensor, shape: Host, *, allowzero: int = 0) -> Tensor:
    sizes = list(ints(shape))
    if not allowzero:
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(*sizes)


@rule("Reshape")
def reshape_old(x: Tensor, *, shape: Sequence[int]) -> Tensor:
    return reshape(x, np.asarray(shape))


@rule("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    if axis < 0:
        axis += x.ndim
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


@rule("Squeeze", 13)
def squeeze(x: Tensor, axes: Host | None = None) -> Tensor:
    if axes is None:
        return x.reshape(*(size for size in x.shape if not _is_one(size)))
    dropped = {axis % x.ndim for axis in ints(axes)}
    return x.reshape(*(size for axis, size in enumerate(x.shape) if axis not in dropped))


def _is_one(size: sint) -> bool:
    """Whether a size is 1; for one that may be 1 or not, a capture notes the answer."""
    if isinstance(size, Expr) and not size.min <= 1 <= size.max:
        return False
    return int(size) == 1


@rule("Squeeze")
def squeeze_old(x: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    return squeeze(x, None if axes is None else np.asarray(axes))


@rule("Unsqueeze", 13)
def unsqueeze(x: Tensor, axes: Host) -> Tensor:
    new = ints(axes)
    ndim = x.ndim + len(new)
    shape = list(x.shape)
    for axis in sorted(axis % ndim for axis in new):
        shape.insert(axis, 1)
    return x.reshape(*shape)


@rule("Unsqueeze")
def unsqueeze_old(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    return unsqueeze(x, np.asarray(axes))


@rule("Transpose")
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(*(range(x.ndim)[::-1] if perm is None else perm))


@rule("Expand", 8)
def expand(x: Tensor, shape: Host) -> Tensor:
    return x.expand(*Tensor.broadcast_shapes(x.shape, ints(shape)))


@rule("Tile", 6)
def tile(x: Tensor, repeats: Host) -> Tensor:
    return x.repeat(*ints(repeats))


# Joining and splitting


@rule("Concat", 4)
def concatenate(*xs: Tensor, axis: int) -> Tensor:
    return Tensor.cat(*xs, dim=axis)


@rule("Concat")
def concatenate_old(*xs: Tensor, axis: int = 1) -> Tensor:
    return Tensor.cat(*xs, dim=axis)


def parts_of(
    x: Tensor, sizes: Sequence[int] | None, axis: int, n_outputs: int
) -> tuple[Tensor, ...]:
    """A tensor in parts along an axis, of given sizes or equal ones; the last may be smaller."""
    if not sizes:
        size = -(-x.shape[axis] // n_outputs)
        sizes = [min(size, x.shape[axis] - i * size) for i in range(n_outputs)]
    return tuple(x.split(list(sizes), axis))


@rule("Split", 13)
def split(
    x: Tensor,
    split: Host | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    n_outputs: int,
) -> tuple[Tensor, ...]:
    return parts_of(x, ints(split), axis, num_outputs or n_outputs)


@rule("Split", 2)
def split_old(
    x: Tensor, *, axis: int = 0, split: Sequence[int] | None = None, n_outputs: int
) -> tuple[Tensor, ...]:
    return parts_of(x, split, axis, n_outputs)


# Windows on a tensor


@rule("Slice", 10)
def slice_(
    x: Tensor, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None
) -> Tensor:
    first = ints(starts)
    where: list[slice] = [slice(None)] * x.ndim
    strides = ints(steps, [1] * len(first))
    along = ints(axes, range(len(first)))
    for axis, start, end, step in zip(along, first, ints(ends), strides, strict=True):
        where[axis] = _slice(start, end, step, x.shape[axis])
    return x[tuple(where)]


def _slice(start: int, end: int, step: int, size: int) -> slice:
    """Part of an axis: what counts from its end is below zero, and what is beyond ends there."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start = min(max(start + size if start < 0 else start, max(low, 0)), high)
    end = min(max(end + size if end < 0 else end, low), high if step > 0 else size)
    return slice(start, None if end < 0 else end, step)


@rule("Slice")
def slice_old(
    x: Tensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Tensor:
    along = None if axes is None else np.asarray(axes)
    return slice_(x, np.asarray(starts), np.asarray(ends), along)


@rule("Pad", 11)
def pad(
    x: Tensor,
    pads: Host,
    value: Host | None = None,
    axes: Host | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    widths = ints(pads)
    along = ints(axes, range(x.ndim))
    around = [(0, 0)] * x.ndim
    for axis, before, after in zip(along, widths, widths[len(along) :], strict=False):
        around[axis] = (before, after)
    return padded(x, around, mode, 0 if value is None or not value.size else value.item())


@rule("Pad")
def pad_old(
    x: Tensor,
    *,
    pads: Sequence[int] | None = None,
    paddings: Sequence[int] | None = None,
    mode: str = "constant",
    value: float = 0.0,
) -> Tensor:
    widths = np.asarray(pads if pads is not None else paddings)
    return pad(x, widths, np.asarray(value), mode=mode)


_MODES = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def padded(x: Tensor, around: Sequence[tuple[int, int]], mode: str, value: Any) -> Tensor:
    """A tensor with elements before and after each axis; a width below zero takes some away."""
    if mode == "constant":
        kept = tuple(
            slice(max(-before, 0), size - max(-after, 0))
            for (before, after), size in zip(around, x.shape, strict=True)
        )
        added = [width for before, after in reversed(around) for width in (before, after)]
        grown = x[kept].pad([max(width, 0) for width in added], value=value)
        return grown.cast(x.dtype)
    if mode not in _MODES:
        raise OnnxError(f"Pad: there is no mode {mode!r}")
    for axis, (before, after) in enumerate(around):
        if before or after:
            places = np.arange(-before, x.shape[axis] + after)
            x = x.index_select(axis, Tensor(_source(places, x.shape[axis], mode)))
    return x


def _source(places: Array, size: int, mode: str) -> Array:
    """The elements of an axis that stand at places before and after it."""
    if mode == "edge":
        return places.clip(0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(2 * (size - 1), 1)
    folded = places % period
    return np.where(folded < size, folded, period - folded)


@rule("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b, channels = blocksize, c // blocksize**2
    if mode == "DCR":
        y = x.reshape(n, b, b, channels, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, channels, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, channels, h * b, w * b)


@rule("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    y = x.reshape(n, c, h // b, b, w // b, b)
    y = y.permute(0, 3, 5, 1, 2, 4) if mode == "DCR" else y.permute(0, 1, 3, 5, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


@rule("Trilu", 14)
def triangle(x: Tensor, k: Host | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(k.item())
    return x.triu(diagonal) if upper else x.tril(diagonal)


@rule("CenterCropPad", 18)
def center_crop_pad(x: Tensor, shape: Host, *, axes: Sequence[int] | None = None) -> Tensor:
    around = [(0, 0)] * x.ndim
    for axis, size in zip(axes or range(x.ndim), ints(shape), strict=True):
        missing = size - x.shape[axis]
        before = missing // 2 if missing >= 0 else -(-missing // 2)
        around[axis] = (before, missing - before)
    return padded(x, around, "constant", 0)


@rule("ReverseSequence", 10)
def reverse_sequence(
    x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    steps = Tensor.arange(x.shape[time_axis], dtype=lengths.dtype)
    steps = steps.reshape(*_only(time_axis, x.ndim))
    ends = lengths.reshape(*_only(batch_axis, x.ndim))
    places = (steps < ends).where(ends - 1 - steps, steps)
    return x.gather(time_axis, places.expand(*x.shape).cast(dtypes.int64))


def _only(axis: int, ndim: int) -> list[int]:
    """A shape with all elements along one axis."""
    return [-1 if i == axis % ndim else 1 for i in range(ndim)]
