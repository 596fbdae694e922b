"""What neural networks are made of: convolution, pooling, normalisation, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

from ferrule.dtype import dtypes, promote
from ferrule.expr import as_int, sint
from ferrule.gradient import Shape, Value
from ferrule.shape.view import ShapeError
from ferrule.tensor import rowwise
from ferrule.tensor.attention import attention, attention_weights
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import (
    broadcast_shape,
    check_devices,
    expanded,
    fit_shape,
    known_size,
)
from ferrule.tensor.diagonals import Diagonals
from ferrule.tensor.matrices import accumulating, matrix_product, transposed
from ferrule.tensor.reduce import largest

Sizes: TypeAlias = int | Sequence[int]


def _each(value: Sizes, count: int, what: str) -> tuple[int, ...]:
    """One number for each spatial axis."""
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) != count:
        raise ShapeError(f"{what} {values} needs one number, or one for each of {count} axes")
    return values


def _paddings(padding: Any, count: int, what: str) -> list[tuple[int, int]]:
    """(before, after) for each spatial axis.

    One number, one for each axis, or two for each axis from the last one on, as `Tensor.pad` takes.
    """
    if isinstance(padding, int):
        return [(padding, padding)] * count
    amounts = list(padding)
    if len(amounts) == 2 * count and count > 0:
        pairs = [(amounts[place], amounts[place + 1]) for place in range(0, 2 * count, 2)]
        return pairs[::-1]
    if len(amounts) != count:
        raise ShapeError(
            f"[{what}] padding {tuple(amounts)} needs one number, one for each of {count} axes, "
            "or two for each from the last axis on"
        )
    return [(amount, amount) for amount in amounts]


def _windows(
    value: Value, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int], what: str
) -> Value:
    """Windows over the last axes: their positions, and then an axis inside the window for each."""
    first = len(value.shape) - len(sizes)
    shape = value.shape[first:]
    for size, stride, dilation, length in zip(sizes, strides, dilations, shape, strict=True):
        if stride < 1 or dilation < 1 or size < 1:
            raise ShapeError(
                f"[{what}] kernel {tuple(sizes)}, stride {tuple(strides)} and dilation "
                f"{tuple(dilations)} must be at least 1"
            )
        reach = dilation * (size - 1) + 1
        if isinstance(length, int) and reach > length:
            raise ShapeError(
                f"[{what}] a kernel of {tuple(sizes)} reaches over {reach} elements, and the "
                f"padded input {tuple(shape)} has {length} there; add padding"
            )
    for place, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        value = value.window(first + place, size, stride, dilation)
    return value


class Neural(Diagonals):
    """Convolution, pooling, normalisation, dropout, attention."""

    __slots__ = ()

    # -- convolution -----------------------------------------------------------------------------

    def conv2d(
        self,
        weight: TensorBase,
        bias: TensorBase | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Any = 0,
    ) -> Self:
        """The convolution of (batch, channels, …) with filters (out, channels / groups, …).

        Any number of spatial axes will do. `padding` is one number, one for each spatial axis, or
        two for each from the last axis on.

        Raises `ShapeError` if channels, groups or sizes do not fit.

        >>> from ferrule import Tensor
        >>> image = Tensor.ones(1, 1, 3, 3)
        >>> image.conv2d(Tensor.ones(1, 1, 3, 3), padding=1).tolist()
        [[[[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]]]
        """
        value, filters, dtype = self._conv_operands(weight, "conv2d")
        count = len(filters.shape) - 2
        _check_channels(value.shape, filters.shape, groups)
        pads = _paddings(padding, count, "conv2d")
        strides = _each(stride, count, "[conv2d] stride")
        dilations = _each(dilation, count, "[conv2d] dilation")
        if any(amount for pair in pads for amount in pair):
            value = value.pad([(0, 0), (0, 0), *pads])
        sizes = _kernel(filters.shape[2:], "conv2d")
        windows = _windows(value, sizes, strides, dilations, "conv2d")
        result = self._wrap(_convolved(windows, filters, groups).cast(dtype))
        return result if bias is None else result + _channel_bias(bias, count)

    def conv1d(self, weight: TensorBase, bias: TensorBase | None = None, **kwargs: Any) -> Self:
        """`conv2d` with one spatial axis.

        >>> from ferrule import Tensor
        >>> Tensor([[[1.0, 2.0, 3.0]]]).conv1d(Tensor([[[1.0, 1.0]]])).tolist()
        [[[3.0, 5.0]]]
        """
        return self.conv2d(weight, bias, **kwargs)

    def conv3d(self, weight: TensorBase, bias: TensorBase | None = None, **kwargs: Any) -> Self:
        """`conv2d` with three spatial axes.

        >>> from ferrule import Tensor
        >>> Tensor.ones(1, 1, 2, 2, 2).conv3d(Tensor.ones(1, 1, 2, 2, 2)).item()
        8.0
        """
        return self.conv2d(weight, bias, **kwargs)

    def conv_transpose2d(
        self,
        weight: TensorBase,
        bias: TensorBase | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
    ) -> Self:
        """The adjoint of `conv2d`: filters (channels, out / groups, …) are laid over the result.

        >>> from ferrule import Tensor
        >>> x = Tensor([[[[1.0, 2.0]]]])
        >>> x.conv_transpose2d(Tensor.ones(1, 1, 1, 2), stride=2).tolist()
        [[[[1.0, 1.0, 2.0, 2.0]]]]
        """
        value, filters, dtype = self._conv_operands(weight, "conv_transpose2d")
        count = len(filters.shape) - 2
        if value.shape[1] != filters.shape[0] or value.shape[1] % groups:
            raise ShapeError(
                f"[conv_transpose2d] {value.shape[1]} channels of shape {value.shape} do not fit "
                f"filters of shape {filters.shape} in {groups} groups"
            )
        result = _spread_filters(value, filters, groups)
        strides = _each(stride, count, "[conv_transpose2d] stride")
        dilations = _each(dilation, count, "[conv_transpose2d] dilation")
        extra = _each(output_padding, count, "[conv_transpose2d] output_padding")
        for place in reversed(range(count)):
            axis, size = 2 + place, filters.shape[2 + place]
            length = (value.shape[axis] - 1) * strides[place] + dilations[place] * (size - 1) + 1
            length = as_int(length + extra[place])
            result = result.unwindow(axis, length, strides[place], dilations[place])
            result = result.sum((len(result.shape) - 1,)).reshape(result.shape[:-1])
        cuts = _each(padding, count, "[conv_transpose2d] padding")
        inner = [(cut, as_int(n - cut)) for cut, n in zip(cuts, result.shape[2:], strict=True)]
        result = result.shrink([(0, n) for n in result.shape[:2]] + inner)
        tensor = self._wrap(result.cast(dtype))
        return tensor if bias is None else tensor + _channel_bias(bias, count)

    def _conv_operands(self, weight: TensorBase, what: str) -> tuple[Value, Value, Any]:
        value, filters = self._read(), weight._read()
        if len(value.shape) != len(filters.shape) or len(value.shape) < 3:
            raise ShapeError(
                f"[{what}] an input of shape {value.shape} and filters of shape {filters.shape} "
                "need a batch axis, a channel axis and the same number of spatial axes"
            )
        check_devices(value, filters, what)
        dtype = promote(value.dtype, filters.dtype)
        return accumulating(value.cast(dtype)), accumulating(filters.cast(dtype)), dtype

    # -- pooling ---------------------------------------------------------------------------------

    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Any = 0,
    ) -> Self:
        """The largest element in each window over the last axes; the stride is the kernel's size.

        >>> from ferrule import Tensor
        >>> Tensor([[[[1, 2, 3, 4], [5, 6, 7, 8]]]]).max_pool2d().tolist()
        [[[[6, 8]]]]
        """
        lowest = dtypes.min(self.dtype)
        return self._pool(kernel_size, stride, dilation, padding, lowest, largest, "max_pool2d")

    def avg_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Any = 0,
        count_include_pad: bool = True,
    ) -> Self:
        """The mean of each window over the last axes; the stride is the kernel's size.

        >>> from ferrule import Tensor
        >>> Tensor([[[[1, 2, 3, 4], [5, 6, 7, 8]]]]).avg_pool2d().tolist()
        [[[[3.5, 5.5]]]]
        """
        given = (kernel_size, stride, dilation, padding)
        source = self._wrap(self._float())
        if count_include_pad:
            return source._pool(*given, 0, self._mean, "avg_pool2d")
        total = source._pool(*given, 0, Value.sum, "avg_pool2d")
        return total / source.ones_like()._pool(*given, 0, Value.sum, "avg_pool2d")

    def _pool(
        self,
        kernel: Sizes,
        stride: Sizes | None,
        dilation: Sizes,
        padding: Any,
        outside: bool | int | float,
        combine: Callable[[Value, Sequence[int]], Value],
        what: str,
    ) -> Self:
        """Windows over the last axes, each combined into one element."""
        sizes = (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)
        count = len(sizes)
        if len(self._shape) < count:
            raise ShapeError(f"[{what}] shape {self._shape} has fewer axes than kernel {sizes}")
        strides = sizes if stride is None else _each(stride, count, f"[{what}] stride")
        dilations = _each(dilation, count, f"[{what}] dilation")
        pads = _paddings(padding, count, what)
        first = len(self._shape) - count
        source = self
        if any(amount for pair in pads for amount in pair):
            source = self._padded([(0, 0)] * first + pads, outside)
        value = source._read()
        if strides == sizes and all(step == 1 for step in dilations):
            value, axes = _blocks(value, sizes, what)
        else:
            value = _windows(value, sizes, strides, dilations, what)
            axes = list(range(len(value.shape) - count, len(value.shape)))
        return self._dropped(combine(value, axes), axes, False)

    # -- normalisation ---------------------------------------------------------------------------

    def layernorm(self, axis: int | Sequence[int] = -1, eps: float = 1e-5) -> Self:
        """Mean 0 and variance 1 along some axes.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        axes = self._axes(axis, "layernorm")
        return self._wrap(rowwise.layernorm(self._float(), axes, eps))

    def rms_norm(self, axis: int | Sequence[int] = -1, eps: float = 1e-6) -> Self:
        """Divided by the root of the mean square along some axes.

        >>> from ferrule import Tensor
        >>> Tensor([3.0, -3.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        """
        axes = self._axes(axis, "rms_norm")
        return self._wrap(rowwise.rms_norm(self._float(), axes, eps))

    def batchnorm(
        self,
        weight: TensorBase | None,
        bias: TensorBase | None,
        mean: TensorBase,
        invstd: TensorBase,
        axis: int | Sequence[int] = 1,
    ) -> Self:
        """(self - mean) * invstd * weight + bias, where these vary along `axis` only.

        >>> from ferrule import Tensor
        >>> x = Tensor([[1.0, 2.0]])
        >>> x.batchnorm(None, None, mean=Tensor([1.0, 1.0]), invstd=Tensor([2.0, 2.0])).tolist()
        [[0.0, 2.0]]
        """
        axes = self._axes(axis, "batchnorm")
        shape = [size if place in axes else 1 for place, size in enumerate(self._shape)]

        result = self - self._along(mean, shape)
        if weight is not None:
            result = result * self._along(weight, shape)
        # invstd may be of the full rank already, as a mean with keepdim is.
        factor = self._along(invstd, shape) if invstd.ndim == len(axes) else invstd
        result = result * factor
        return result if bias is None else result + self._along(bias, shape)

    def _along(self, tensor: TensorBase, shape: Sequence[sint]) -> Self:
        """Another tensor, reshaped to vary along some axes only."""
        return self._wrap(tensor._read()).reshape(shape)

    def dropout(self, p: float = 0.5) -> Self:
        """While `Tensor.training`: zero with probability `p`, else scaled by 1 / (1 - p).

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).dropout(0.5).tolist()
        [1.0, 2.0]
        """
        if not 0 <= p <= 1:
            raise ValueError(f"[dropout] the probability is between 0 and 1, not {p}")
        if not self.training or p == 0:
            return self
        if p == 1:
            return self.zeros_like()
        kept = self.rand(self._shape, device=self.device) >= p
        return kept.where(self, 0) * (1 / (1 - p))

    # -- attention -------------------------------------------------------------------------------

    def scaled_dot_product_attention(
        self,
        key: TensorBase,
        value: TensorBase,
        attn_mask: TensorBase | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(self @ key.T * scale + mask) @ value, for (…, positions, depth).

        A mask of bools keeps what is True; any other is added. `is_causal` masks later positions.
        `scale` is 1 / sqrt(depth). With `enable_gqa` groups of heads share a key and a value.
        Dropout is done while `Tensor.training`. A row that is masked entirely gives zeros.

        >>> from ferrule import Tensor
        >>> x = Tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> x.scaled_dot_product_attention(x, x, is_causal=True)[0].tolist()
        [1.0, 0.0]
        """
        what = "scaled_dot_product_attention"
        keys, values = self._wrap(key._read()), self._wrap(value._read())
        if enable_gqa:
            heads, groups = (known_size(x._shape[-3], what) for x in (self, keys))
            keys = keys.repeat_interleave(heads // groups, -3)
            values = values.repeat_interleave(heads // groups, -3)
        given = _attended((self._read(), keys._read(), values._read()), what)
        query = given[0]
        depth = known_size(query.shape[-1], what)
        factor = 1 / math.sqrt(depth) if scale is None else scale
        shape = (*query.shape[:-1], given[1].shape[-2])
        if is_causal and attn_mask is not None:
            raise ValueError(
                f"[{what}] a mask and is_causal exclude each other; "
                "put the causal mask into attn_mask"
            )
        if is_causal and not all(isinstance(size, int) for size in shape[-2:]):
            ones = self.ones(*shape[-2:], device=self.device, dtype=dtypes.bool)
            attn_mask, is_causal = ~ones.triu(1), False
        mask = None
        if attn_mask is not None:
            mask = fit_shape(attn_mask._read(), shape, what)
            mask = mask if mask.dtype is dtypes.bool else mask.cast(query.dtype)
        if dropout_p and self.training:
            scores = matrix_product(query, transposed(given[1])) * factor
            weights = self._wrap(attention_weights(scores, mask, is_causal)).dropout(dropout_p)
            return weights @ self._wrap(given[2])
        return self._wrap(attention(*given, mask, factor, is_causal))

    # -- composition -----------------------------------------------------------------------------

    def sequential(self, layers: Sequence[Callable[[Any], Any]]) -> Any:
        """The layers applied one after the other.

        >>> from ferrule import Tensor
        >>> Tensor([-4.0, 4.0]).sequential([Tensor.relu, Tensor.sqrt]).tolist()
        [0.0, 2.0]
        """
        result: Any = self
        for layer in layers:
            result = layer(result)
        return result


def _attended(given: Sequence[Value], what: str) -> tuple[Value, Value, Value]:
    """Query, key and value of one dtype, with equal leading axes; raises `ShapeError`."""
    query, key, value = given
    if any(len(x.shape) < 2 for x in given):
        raise ShapeError(f"[{what}] query, key and value need two axes: (…, positions, depth)")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"[{what}] a query of shape {query.shape} with a key of shape {key.shape} and a value "
            f"of shape {value.shape}: the depth of query and key must be equal, and the "
            "positions of key and value; transpose one of them"
        )
    dtype = promote(query.dtype, key.dtype, value.dtype)
    dtype = dtype if dtypes.is_float(dtype) else dtypes.default_float
    batch = broadcast_shape([x.shape[:-2] for x in given], what)
    query, key, value = (expanded(x.cast(dtype), (*batch, *x.shape[-2:])) for x in given)
    return query, key, value


def _kernel(sizes: Shape, what: str) -> tuple[int, ...]:
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        raise ShapeError(f"[{what}] the filters' sizes {sizes} must be known, not symbolic")
    return tuple(known)


def _check_channels(shape: Shape, filters: Shape, groups: int) -> None:
    channels, out, inner = shape[1], filters[0], filters[1]
    if channels == inner * groups and (not isinstance(out, int) or out % groups == 0):
        return
    raise ShapeError(
        f"[conv2d] {channels} channels of an input of shape {shape} do not fit filters of shape "
        f"{filters} in {groups} groups: channels = groups * {inner}, and {out} filters divide "
        "by the groups"
    )


def _channel_bias(bias: TensorBase, count: int) -> Any:
    tensor: Any = bias
    return tensor.reshape(1, -1, *(1,) * count)


def _convolved(windows: Value, filters: Value, groups: int) -> Value:
    """Windows (batch, channels, *positions, *kernel) times filters (out, channels, *kernel)."""
    count = len(filters.shape) - 2
    batch, channels = windows.shape[:2]
    positions, kernel = windows.shape[2 : 2 + count], windows.shape[2 + count :]
    out = filters.shape[0]
    inner, each = as_int(channels // groups), as_int(out // groups)
    # Both as (batch, group, filter, *positions, channel, *kernel).
    windows = windows.reshape((batch, groups, inner, *positions, *kernel))
    order = [0, 1, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count)]
    windows = windows.permute(order).reshape((batch, groups, 1, *positions, inner, *kernel))
    filters = filters.reshape((1, groups, each, *(1,) * count, inner, *kernel))
    shape = (batch, groups, each, *positions, inner, *kernel)
    product = windows.expand(shape) * filters.expand(shape)
    total = product.sum(range(3 + count, len(shape)))
    return total.reshape((batch, out, *positions))


def _spread_filters(value: Value, filters: Value, groups: int) -> Value:
    """Each input element times all filters, as (batch, out, *positions, *kernel)."""
    count = len(filters.shape) - 2
    batch, channels, *positions = value.shape
    each, kernel = filters.shape[1], filters.shape[2:]
    inner = as_int(channels // groups)
    shape = (batch, groups, each, *positions, *kernel, inner)
    order = [0, 1, *range(3, 3 + count), 2]
    value = value.reshape((batch, groups, inner, *positions)).permute(order)
    value = value.reshape((batch, groups, 1, *positions, *(1,) * count, inner))
    filters = filters.reshape((groups, inner, each, *kernel))
    filters = filters.permute([0, 2, *range(3, 3 + count), 1])
    filters = filters.reshape((1, groups, each, *(1,) * count, *kernel, inner))
    product = value.expand(shape) * filters.expand(shape)
    total = product.sum((len(shape) - 1,))
    return total.reshape((batch, as_int(each * groups), *positions, *kernel))


def _blocks(value: Value, sizes: Sequence[int], what: str) -> tuple[Value, list[int]]:
    """The last axes cut into blocks: (…, positions, kernel, …), and the axes of the blocks."""
    first = len(value.shape) - len(sizes)
    shape: list[sint] = list(value.shape[:first])
    kept: list[tuple[sint, sint]] = [(0, size) for size in shape]
    axes: list[int] = []
    for size, length in zip(sizes, value.shape[first:], strict=True):
        if isinstance(length, int) and (size < 1 or length < size):
            raise ShapeError(
                f"[{what}] a kernel of {tuple(sizes)} does not fit an input of shape {value.shape}"
            )
        positions = as_int(length // size)
        kept.append((0, as_int(positions * size)))
        axes.append(len(shape) + 1)
        shape.extend([positions, size])
    return value.shrink(kept).reshape(tuple(shape)), axes
