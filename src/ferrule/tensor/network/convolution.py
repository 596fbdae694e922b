"""Convolutions, and their adjoints, over any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.autograd import Shape, TracedValue, is_noting
from ferrule.ir.dtype import DType, promote
from ferrule.ir.expr import as_int
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import check_devices
from ferrule.tensor.keywords import method
from ferrule.tensor.network.windows import (
    Pair,
    Sizes,
    each,
    known_sizes,
    paddings,
    put_back,
    windows,
)
from ferrule.tensor.notes import note
from ferrule.tensor.reduce.rowwise import accumulating


@method
def conv1d(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Any = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """`conv2d` with one spatial axis: (batch, channels, L), or without the batch.

    >>> from ferrule import Tensor
    >>> Tensor([[[1.0, 2.0, 3.0]]]).conv1d(Tensor([[[1.0, 1.0]]])).tolist()
    [[[3.0, 5.0]]]
    """
    _check_spatial(weight, 1, "conv1d")
    return _convolved(self, weight, bias, stride, padding, dilation, groups, "conv1d")


@method
def conv2d(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Any = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """The convolution of (batch, channels, …) with filters (out, channels / groups, …).

    Any number of spatial axes will do, and the batch may be missing. `padding` is one number,
    one for each spatial axis, two for each from the last axis on, "valid" for none, or "same"
    for a result of the input's size. float16 and bfloat16 are added up in float32.

    Raises `ShapeError` if channels, groups or sizes do not fit.

    >>> from ferrule import Tensor
    >>> image = Tensor.ones(1, 1, 3, 3)
    >>> image.conv2d(Tensor.ones(1, 1, 3, 3), padding=1).tolist()
    [[[[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]]]
    """
    return _convolved(self, weight, bias, stride, padding, dilation, groups, "conv2d")


@method
def conv3d(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Any = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """`conv2d` with three spatial axes: (batch, channels, D, H, W), or without the batch.

    >>> from ferrule import Tensor
    >>> Tensor.ones(1, 1, 2, 2, 2).conv3d(Tensor.ones(1, 1, 2, 2, 2)).item()
    8.0
    """
    _check_spatial(weight, 3, "conv3d")
    return _convolved(self, weight, bias, stride, padding, dilation, groups, "conv3d")


@method
def conv_transpose1d(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """`conv_transpose2d` with one spatial axis.

    >>> from ferrule import Tensor
    >>> Tensor([[[1.0, 2.0]]]).conv_transpose1d(Tensor([[[1.0, 1.0, 1.0]]])).tolist()
    [[[1.0, 3.0, 3.0, 2.0]]]
    """
    _check_spatial(weight, 1, "conv_transpose1d")
    options = (stride, padding, output_padding, groups, dilation)
    return _transposed(self, weight, bias, *options, "conv_transpose1d")


@method
def conv_transpose2d(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The adjoint of `conv2d`: filters (channels, out / groups, …) are laid over the result.

    `padding` is cut from the result at both ends, `output_padding` is added at the end.

    Raises `ShapeError` if channels, groups or sizes do not fit.

    >>> from ferrule import Tensor
    >>> x = Tensor([[[[1.0, 2.0]]]])
    >>> x.conv_transpose2d(Tensor.ones(1, 1, 1, 2), stride=2).tolist()
    [[[[1.0, 1.0, 2.0, 2.0]]]]
    """
    options = (stride, padding, output_padding, groups, dilation)
    return _transposed(self, weight, bias, *options, "conv_transpose2d")


@method
def conv_transpose3d(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """`conv_transpose2d` with three spatial axes.

    >>> from ferrule import Tensor
    >>> Tensor.ones(1, 1, 1, 1, 1).conv_transpose3d(Tensor.ones(1, 2, 2, 2, 2)).shape
    (1, 2, 2, 2, 2)
    """
    _check_spatial(weight, 3, "conv_transpose3d")
    options = (stride, padding, output_padding, groups, dilation)
    return _transposed(self, weight, bias, *options, "conv_transpose3d")


# -- what they share -----------------------------------------------------------------------------


def _convolved(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int,
    what: str,
) -> Tensor:
    value, filters, dtype = _conv_operands(self, weight, what)
    count = len(filters.shape) - 2
    _check_channels(value.shape, filters.shape, groups, what)
    sizes = known_sizes(filters.shape[2:], what)
    strides = each(stride, count, f"[{what}] stride")
    dilations = each(dilation, count, f"[{what}] dilation")
    pads = conv_paddings(padding, sizes, strides, dilations, what)
    if any(amount for pair in pads for amount in pair):
        value = value.pad([(0, 0), (0, 0), *pads])
    found = windows(value, sizes, strides, dilations, what)
    result = _conv_result(self, _correlated(found, filters, groups), dtype, bias, count, what)
    spatial = sizes, strides, pads, dilations
    return _noted(self, weight, bias, result, "conv", (spatial, groups, {}))


def _transposed(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    what: str,
) -> Tensor:
    value, filters, dtype = _conv_operands(self, weight, what)
    count = len(filters.shape) - 2
    if groups < 1 or value.shape[1] != filters.shape[0] or value.shape[1] % groups:
        raise ShapeError(
            f"[{what}] {value.shape[1]} channels of shape {value.shape} do not fit "
            f"filters of shape {filters.shape} in {groups} groups"
        )
    sizes = known_sizes(filters.shape[2:], what)
    strides = each(stride, count, f"[{what}] stride")
    dilations = each(dilation, count, f"[{what}] dilation")
    extra = each(output_padding, count, f"[{what}] output_padding")
    if any(more >= max(pair) for more, *pair in zip(extra, strides, dilations, strict=True)):
        raise ShapeError(
            f"[{what}] output_padding {extra} must be below the stride {strides} or the "
            f"dilation {dilations}"
        )
    cuts = each(padding, count, f"[{what}] padding")
    lengths = [
        as_int((n - 1) * step + spread * (size - 1) + 1 + more)
        for n, size, step, spread, more in zip(
            value.shape[2:], sizes, strides, dilations, extra, strict=True
        )
    ]
    for length, cut in zip(lengths, cuts, strict=True):
        if isinstance(length, int) and length - 2 * cut < 1:
            raise ShapeError(
                f"[{what}] padding {cuts} cuts everything from a result of {tuple(lengths)}"
            )
    value = put_back(_spread_filters(value, filters, groups), lengths, strides, dilations)
    inner = [(cut, as_int(n - cut)) for cut, n in zip(cuts, lengths, strict=True)]
    value = value.shrink([(0, n) for n in value.shape[:2]] + inner)
    result = _conv_result(self, value, dtype, bias, count, what)
    pads = [(cut, cut) for cut in cuts]
    spatial = sizes, strides, pads, dilations
    arg = (spatial, groups, {"output_padding": extra})
    return _noted(self, weight, bias, result, "conv_transpose", arg)


def _noted(
    self: Tensor, weight: Tensor, bias: Tensor | None, result: Tensor, name: str, arg: object
) -> Tensor:
    """The result, without the batch axis if the input had none."""
    is_batch = len(self._shape) == len(result._shape)
    if is_noting():
        note(name, [self if is_batch else self.unsqueeze(0), weight, bias], result, arg)
    return result if is_batch else result.squeeze(0)


def _conv_operands(
    self: Tensor, weight: Tensor, what: str
) -> tuple[TracedValue, TracedValue, DType]:
    """The input, with a batch axis, and the filters, in the type to add up in."""
    value, filters = self._read(), weight._read()
    rank = len(filters.shape)
    if rank < 3 or len(value.shape) not in (rank, rank - 1):
        raise ShapeError(
            f"[{what}] an input of shape {value.shape} and filters of shape {filters.shape} "
            "need a channel axis and the same number of spatial axes; the filters have one "
            "more axis in front, and the input may have a batch axis"
        )
    if len(value.shape) == rank - 1:
        value = value.reshape((1, *value.shape))
    check_devices(value, filters, what)
    dtype = promote(value.dtype, filters.dtype)
    return accumulating(value.cast(dtype)), accumulating(filters.cast(dtype)), dtype


def _conv_result(
    self: Tensor, result: TracedValue, dtype: DType, bias: Tensor | None, count: int, what: str
) -> Tensor:
    """With the bias of each channel."""
    tensor = self._wrap(result.cast(dtype))
    if bias is not None:
        if bias._shape != result.shape[1:2]:
            raise ShapeError(
                f"[{what}] a bias of shape {bias._shape} must be one number for each of the "
                f"{result.shape[1]} filters"
            )
        tensor = tensor + bias.reshape(1, -1, *(1,) * count)
    return tensor


def _check_spatial(weight: Tensor, count: int, what: str) -> None:
    found = len(weight._shape) - 2
    if found != count:
        raise ShapeError(
            f"[{what}] filters of shape {weight._shape} have {max(found, 0)} spatial axes after "
            f"those of their number and channels, not {count}"
        )


def _check_channels(shape: Shape, filters: Shape, groups: int, what: str) -> None:
    channels, out, inner = shape[1], filters[0], filters[1]
    if (
        groups > 0
        and channels == inner * groups
        and (not isinstance(out, int) or out % groups == 0)
    ):
        return
    raise ShapeError(
        f"[{what}] {channels} channels of an input of shape {shape} do not fit filters of shape "
        f"{filters} in {groups} groups: channels = groups * {inner}, and {out} filters divide "
        "by the groups"
    )


def conv_paddings(
    padding: Any,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    what: str,
) -> list[Pair]:
    """(before, after) for each spatial axis; of an odd number for "same" the end gets more."""
    if not isinstance(padding, str):
        return paddings(padding, len(sizes), what)
    if padding == "valid":
        return [(0, 0)] * len(sizes)
    if padding != "same":
        raise ValueError(f"[{what}] padding is numbers, 'valid' or 'same', not {padding!r}")
    if any(stride != 1 for stride in strides):
        raise ValueError(
            f"[{what}] padding='same' is for a stride of 1, not {tuple(strides)}; give numbers"
        )
    totals = [spread * (size - 1) for size, spread in zip(sizes, dilations, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]


def _correlated(windows: TracedValue, filters: TracedValue, groups: int) -> TracedValue:
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


def _spread_filters(value: TracedValue, filters: TracedValue, groups: int) -> TracedValue:
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
