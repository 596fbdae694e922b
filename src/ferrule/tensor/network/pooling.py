"""Pooling: windows over the last axes, each combined into one element; blocks of them, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.autograd.iota import iota
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.index.positions import in_range, index_value
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import as_floats
from ferrule.tensor.math.functions import in_float32
from ferrule.tensor.network.windows import Pool, Sizes, each, paddings, put_back, windows
from ferrule.tensor.notes import note
from ferrule.tensor.reduce.reductions import dropped, largest
from ferrule.tensor.reduce.rowwise import rounded_mean
from ferrule.tensor.shaping.joining import extended

Combine: TypeAlias = Callable[[TracedValue, Sequence[int]], TracedValue]


# -- maxima --------------------------------------------------------------------------------------


@method
def max_pool1d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Any = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` over the last axis.

    >>> from ferrule import Tensor
    >>> Tensor([1, 3, 2, 5, 4]).max_pool1d(2, ceil_mode=True).tolist()
    [3, 5, 4]
    """
    given = (kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(self, Pool.make("max_pool1d", 1, self._shape, *given), return_indices)


@method
def max_pool2d(
    self: Tensor,
    kernel_size: Sizes = (2, 2),
    stride: Sizes | None = None,
    padding: Any = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element in each window over the last axes; the stride is the kernel's size.

    There are as many axes as `kernel_size` has numbers, two for a single one. What is added by
    `padding` is never the largest. `ceil_mode` counts windows that start inside the input but
    do not end there. `return_indices` gives a second tensor: the places of the elements, the
    first of equal ones, counted over the pooled axes.

    Raises `ShapeError` for a kernel that does not fit.

    >>> from ferrule import Tensor
    >>> Tensor([[[[1, 2, 3, 4], [5, 6, 7, 8]]]]).max_pool2d().tolist()
    [[[[6, 8]]]]
    """
    given = (kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(self, Pool.make("max_pool2d", 2, self._shape, *given), return_indices)


@method
def max_pool3d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Any = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` over the last three axes.

    >>> from ferrule import Tensor
    >>> Tensor.arange(8).reshape(2, 2, 2).max_pool3d(2).item()
    7
    """
    given = (kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(self, Pool.make("max_pool3d", 3, self._shape, *given), return_indices)


def _max_pool(self: Tensor, pool: Pool, return_indices: bool) -> Any:
    result = pooled(self, pool, dtypes.min(self.dtype), largest)
    note("max_pool", [self], result, (pool.spatial, "MaxPool", {}))
    return (result, max_places(self, pool)) if return_indices else result


def max_places(self: Tensor, pool: Pool) -> Tensor:
    """Where in the pooled axes, taken together, the first largest element of a window is."""
    outside = dtypes.min(self.dtype)
    values, axes = pool.taken(_bordered(self, pool, outside)._read().detach())
    first = len(self._shape) - len(pool.sizes)
    spatial = [known_size(size, pool.what) for size in self._shape[first:]]
    # Counted from the end, so that the first is the largest, and what is outside 0.
    rest = _bordered(counted_down(self, spatial), pool, 0)._read()
    rest, _ = pool.taken(rest)
    return first_places(self, values, axes, rest, math.prod(spatial))


def counted_down(self: Tensor, spatial: Sequence[int]) -> Tensor:
    """How many elements of the last axes, taken together, there are from each one on."""
    total = math.prod(spatial)
    rest = total - iota(total, dtypes.int64, self.device)
    return self._wrap(rest.reshape((*(1,) * (len(self._shape) - len(spatial)), *spatial)))


def first_places(
    self: Tensor, values: TracedValue, axes: Sequence[int], rest: TracedValue, total: int
) -> Tensor:
    """Where the first of the largest values is, by how many elements there are from it on."""
    top = largest(values, axes).expand(values.shape)
    chosen = values.equals(top)
    if dtypes.is_float(self.dtype):
        chosen = top.equals(top).where(chosen, values.differs(values))
    picked = chosen.where(rest.expand(values.shape), 0)
    return dropped(self, total - largest(picked, axes), axes, False)


# -- means ---------------------------------------------------------------------------------------


@method
def avg_pool1d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    dilation: Sizes = 1,
) -> Tensor:
    """`avg_pool2d` over the last axis.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 3.0, 2.0, 5.0]).avg_pool1d(2).tolist()
    [2.0, 3.5]
    """
    given = (kernel_size, stride, padding, dilation, ceil_mode)
    pool = Pool.make("avg_pool1d", 1, self._shape, *given)
    return _avg_pool(self, pool, count_include_pad, divisor_override)


@method
def avg_pool2d(
    self: Tensor,
    kernel_size: Sizes = (2, 2),
    stride: Sizes | None = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    dilation: Sizes = 1,
) -> Tensor:
    """The mean of each window over the last axes; the stride is the kernel's size.

    Zeros added by `padding` count unless `count_include_pad` is false; elements beyond them,
    that windows reach with `ceil_mode`, never do. `divisor_override` divides all sums.

    Raises `ShapeError` for a kernel that does not fit.

    >>> from ferrule import Tensor
    >>> Tensor([[[[1, 2, 3, 4], [5, 6, 7, 8]]]]).avg_pool2d().tolist()
    [[[[3.5, 5.5]]]]
    """
    given = (kernel_size, stride, padding, dilation, ceil_mode)
    pool = Pool.make("avg_pool2d", 2, self._shape, *given)
    return _avg_pool(self, pool, count_include_pad, divisor_override)


@method
def avg_pool3d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    dilation: Sizes = 1,
) -> Tensor:
    """`avg_pool2d` over the last three axes.

    >>> from ferrule import Tensor
    >>> Tensor.arange(8).reshape(2, 2, 2).avg_pool3d(2).item()
    3.5
    """
    given = (kernel_size, stride, padding, dilation, ceil_mode)
    pool = Pool.make("avg_pool3d", 3, self._shape, *given)
    return _avg_pool(self, pool, count_include_pad, divisor_override)


def _avg_pool(
    self: Tensor, pool: Pool, count_include_pad: bool = True, divisor: int | None = None
) -> Tensor:
    if divisor == 0:
        raise ValueError(f"[{pool.what}] divisor_override must not be 0")
    source = as_floats(self)
    if divisor is None and count_include_pad and not any(pool.extra):
        result = pooled(source, pool, 0, rounded_mean)
        note("avg_pool", [source], result, (pool.spatial, "AveragePool", {"count_include_pad": 1}))
        return result
    total = in_float32(source, lambda x: pooled(x, pool, 0, TracedValue.sum))
    if divisor is not None:
        return total / divisor
    result = total / _counted(source, pool, count_include_pad)
    if not count_include_pad:
        note("avg_pool", [source], result, (pool.spatial, "AveragePool", {"count_include_pad": 0}))
    return result


def _counted(self: Tensor, pool: Pool, include_pad: bool) -> Tensor:
    """How many elements of each window count."""
    first = len(self._shape) - len(pool.sizes)
    value = self._read()
    ones = value.full(1, (1,) * first + self._shape[first:])
    borders = pool.borders(len(self._shape))
    if include_pad:
        padding = [(0, 0)] * first + list(pool.pads)
        borders = [(0, 0)] * first + [(0, more) for more in pool.extra]
        wide = [n + sum(pair) for n, pair in zip(ones.shape, padding, strict=True)]
        ones = value.full(1, tuple(wide))
    counted, axes = pool.taken(ones.pad(borders) if pool.is_padded else ones)
    return dropped(self, counted.sum(axes), axes, False)


def pooled(self: Tensor, pool: Pool, outside: bool | int | float, combine: Combine) -> Tensor:
    """Each window combined into one element."""
    value, axes = pool.taken(_bordered(self, pool, outside)._read())
    return dropped(self, combine(value, axes), axes, False)


def _bordered(self: Tensor, pool: Pool, outside: bool | int | float) -> Tensor:
    return extended(self, pool.borders(len(self._shape)), outside) if pool.is_padded else self


# -- norms ---------------------------------------------------------------------------------------


@method
def lp_pool1d(
    self: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """`lp_pool2d` over the last axis.

    >>> from ferrule import Tensor
    >>> Tensor([3.0, 4.0, 0.0, 0.0]).lp_pool1d(2, 2).tolist()
    [5.0, 0.0]
    """
    given = (kernel_size, stride, 0, 1, ceil_mode)
    return _lp_pool(self, norm_type, Pool.make("lp_pool1d", 1, self._shape, *given))


@method
def lp_pool2d(
    self: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The sum of the powers `norm_type` in each window over the last axes, to 1 / `norm_type`.

    The largest size of an element for an infinite power. An odd power keeps the sign of the
    elements, and a negative sum has no root: NaN. Windows that reach beyond the input with
    `ceil_mode` count as if their mean went on there. The gradient of a sum of 0 is 0.

    Raises `ShapeError` for a kernel that does not fit, `ValueError` for a power of 0 or less.

    >>> from ferrule import Tensor
    >>> Tensor([[3.0, 0.0], [0.0, 4.0]]).lp_pool2d(2, 2).item()
    5.0
    """
    given = (kernel_size, stride, 0, 1, ceil_mode)
    return _lp_pool(self, norm_type, Pool.make("lp_pool2d", 2, self._shape, *given))


@method
def lp_pool3d(
    self: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """`lp_pool2d` over the last three axes.

    >>> from ferrule import Tensor
    >>> Tensor([[[3.0, 4.0]]]).lp_pool3d(1, (1, 1, 2)).item()
    7.0
    """
    given = (kernel_size, stride, 0, 1, ceil_mode)
    return _lp_pool(self, norm_type, Pool.make("lp_pool3d", 3, self._shape, *given))


def _lp_pool(self: Tensor, power: float, pool: Pool) -> Tensor:
    if not power > 0:
        raise ValueError(f"[{pool.what}] norm_type {power} must be more than 0")
    source = as_floats(self)
    if math.isinf(power):
        size: Tensor = source.abs()
        return pooled(size, pool, 0, largest)
    total = _avg_pool(source.pow(power), pool) * math.prod(pool.sizes)
    empty = total.eq(0)
    return empty.where(0, empty.where(1, total).pow(1 / power))


# -- back from maxima ----------------------------------------------------------------------------


@method
def max_unpool1d(
    self: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """`max_unpool2d` over the last axis.

    >>> from ferrule import Tensor
    >>> pooled, places = Tensor([1, 3, 2, 5]).max_pool1d(2, return_indices=True)
    >>> pooled.max_unpool1d(places, 2).tolist()
    [0, 3, 0, 5]
    """
    given = (kernel_size, stride, padding, output_size)
    return _unpooled(self, indices, *given, 1, "max_unpool1d")


@method
def max_unpool2d(
    self: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The elements of a `max_pool2d` put back at the `indices` that it gave, among zeros.

    Elements that several windows have found must be equal, as those of a pooling are.

    >>> from ferrule import Tensor
    >>> pooled, places = Tensor([[1, 3], [2, 5]]).max_pool2d(return_indices=True)
    >>> pooled.max_unpool2d(places, 2).tolist()
    [[0, 0], [0, 5]]
    """
    given = (kernel_size, stride, padding, output_size)
    return _unpooled(self, indices, *given, 2, "max_unpool2d")


@method
def max_unpool3d(
    self: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """`max_unpool2d` over the last three axes.

    >>> from ferrule import Tensor
    >>> Tensor([[[7]]]).max_unpool3d(Tensor([[[7]]]), 2).flatten().tolist()
    [0, 0, 0, 0, 0, 0, 0, 7]
    """
    given = (kernel_size, stride, padding, output_size)
    return _unpooled(self, indices, *given, 3, "max_unpool3d")


def _unpooled(
    self: Tensor,
    indices: Tensor,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    output_size: Sequence[int] | None,
    count: int,
    what: str,
) -> Tensor:
    if indices._shape != self._shape or len(self._shape) < count:
        raise ShapeError(
            f"[{what}] indices of shape {indices._shape} must have the shape of the elements, "
            f"{self._shape}, with at least {count} axes"
        )
    first = len(self._shape) - count
    lead, spatial = self._shape[:first], self._shape[first:]
    sizes = each(kernel, count, f"[{what}] kernel_size")
    steps = sizes if stride in (None, ()) else each(stride or 1, count, f"[{what}] stride")
    pads = each(padding, count, f"[{what}] padding")
    parts = zip(spatial, sizes, steps, pads, strict=True)
    wanted = [(known_size(n, what) - 1) * step - 2 * pad + k for n, k, step, pad in parts]
    if output_size is not None:
        wanted = list(output_size)[-count:]
    flat = (*lead, math.prod(known_size(n, what) for n in spatial))
    places = in_range(index_value(indices._read()), math.prod(wanted), what, first)
    result = _put_at(self._read().reshape(flat), places.reshape(flat), math.prod(wanted))
    return self._wrap(result.reshape((*lead, *wanted)))


# -- windows as columns --------------------------------------------------------------------------


@method
def im2col(
    self: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Any = 0, stride: Sizes = 1
) -> Tensor:
    """Windows over (batch, channels, H, W) as columns: (batch, channels * kernel, positions).

    The batch may be missing. PyTorch calls this `torch.nn.functional.unfold`; `Tensor.unfold`
    is its other function of that name.

    >>> from ferrule import Tensor
    >>> Tensor([[[1, 2, 3], [4, 5, 6]]]).im2col((2, 2)).tolist()
    [[1, 2], [2, 3], [4, 5], [5, 6]]
    """
    if len(self._shape) not in (3, 4):
        raise ShapeError(
            f"[im2col] shape {self._shape} is not (batch, channels, height, width), or without "
            "the batch"
        )
    pool = Pool.make("im2col", 2, self._shape, kernel_size, stride, padding, dilation)
    source = _bordered(self, pool, 0)._read()
    if len(self._shape) == 3:
        source = source.reshape((1, *source.shape))
    found = windows(source, pool.sizes, pool.strides, pool.dilations, "im2col")
    batch, channels, high, wide, *_ = found.shape
    columns = found.permute((0, 1, 4, 5, 2, 3))
    columns = columns.reshape((batch, channels * math.prod(pool.sizes), high * wide))
    result = self._wrap(columns)
    return result if len(self._shape) == 4 else result.squeeze(0)


@method
def fold(
    self: Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Any = 0,
    stride: Sizes = 1,
) -> Tensor:
    """Columns of `im2col` added up where they were: its adjoint, PyTorch's `fold`.

    Raises `ShapeError` if the columns are not those of an input of `output_size`.

    >>> from ferrule import Tensor
    >>> x = Tensor([[[1, 2, 3], [4, 5, 6]]])
    >>> x.im2col((2, 2)).fold((2, 3), (2, 2)).tolist()
    [[[1, 4, 3], [4, 10, 6]]]
    """
    target = each(output_size, 2, "[fold] output_size")
    sizes = each(kernel_size, 2, "[fold] kernel_size")
    steps = each(stride, 2, "[fold] stride")
    spreads = each(dilation, 2, "[fold] dilation")
    pads = paddings(padding, 2, "fold")
    wide = [n + sum(pair) for n, pair in zip(target, pads, strict=True)]
    parts = zip(wide, sizes, steps, spreads, strict=True)
    counts = [(n - spread * (k - 1) - 1) // step + 1 for n, k, step, spread in parts]
    columns = self._read()
    if len(self._shape) == 2:
        columns = columns.reshape((1, *self._shape))
    area = math.prod(sizes)
    if columns.shape[2:] != (math.prod(counts),) or columns.shape[1] % area:
        raise ShapeError(
            f"[fold] columns of shape {self._shape} do not fit: for an output of {target} and "
            f"windows of {sizes} they are (batch, channels * {area}, {math.prod(counts)})"
        )
    batch, rows = columns.shape[:2]
    value = columns.reshape((batch, rows // area, *sizes, *counts)).permute((0, 1, 4, 5, 2, 3))
    result = put_back(value, wide, steps, spreads)
    kept: list[tuple[sint, sint]] = [(0, n) for n in result.shape[:2]]
    kept += [(low, low + n) for n, (low, _) in zip(target, pads, strict=True)]
    tensor = self._wrap(result.shrink(kept))
    return tensor if len(self._shape) == 3 else tensor.squeeze(0)


def _put_at(value: TracedValue, places: TracedValue, size: int) -> TracedValue:
    """Zeros with the elements at places along the last axis, several at one place being equal."""
    axis = len(value.shape) - 1
    result = value.detach().scatter(places, axis, size, "last")
    return record("max_unpool", _PUT_AT, (value, places), result.node, axis)


def _reverse_put_at(grad: TracedValue, entry: GradNode) -> Gradients:
    return grad.gather(entry.saved[0], entry.arg), None


_PUT_AT = Rule(_reverse_put_at, inputs=(1,))
