"""Layers that move, drop, pool and resize: no parameters, only settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ferrule.autograd import trains
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.functions import Chance, Function, Sizes, Wanted, criterion, layer
from ferrule.nn.shown import Shown
from ferrule.tensor import Tensor


@final
class Identity(Shown):
    """Returns its input unchanged; takes any settings, and ignores them.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Identity
    >>> Identity(54, unused=True)(Tensor([1.0])).tolist()
    [1.0]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        """`x` itself."""
        return x


@layer
def Flatten(x: Tensor, /, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    """Some axes as one, all but the first if nothing is said.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Flatten
    >>> Flatten()(Tensor.ones(2, 3, 4)).shape
    (2, 12)
    """
    return x.flatten(start_dim, end_dim)


@layer
def Unflatten(x: Tensor, /, dim: int, unflattened_size: Sequence[int]) -> Tensor:
    """One axis as several.

    >>> from ferrule import Tensor, nn
    >>> nn.Unflatten(1, (2, 3))(Tensor.zeros(4, 6)).shape
    (4, 2, 3)
    """
    return x.unflatten(dim, unflattened_size)


# Dropout


@layer
def Dropout(x: Tensor, /, p: Chance = 0.5, inplace: bool = False) -> Tensor:
    """Zeroes elements with probability `p`, and scales the rest up, while `Tensor.training`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Dropout
    >>> Dropout(0.5)(Tensor.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """
    return x.dropout(p)


def _drop_channels(x: Tensor, p: float, axes: int) -> Tensor:
    """Zeroes whole channels of (N, C, ...) or (C, ...), with so many axes after the channels."""
    if x.ndim not in (axes + 1, axes + 2):
        raise ShapeError(
            f"Dropout{axes}d: expected (N, C) or (C,) and {axes} more axes, got {tuple(x.shape)}"
        )
    kept = Tensor.ones(*x.shape[:-axes], *(1,) * axes, dtype=x.dtype, device=x.device)
    return x * kept.dropout(p, True) if trains(None, x._read(), "dropout") else x


@layer
def Dropout1d(x: Tensor, /, p: Chance = 0.5, inplace: bool = False) -> Tensor:
    """`Dropout` of whole channels of (N, C, L).

    >>> from ferrule import Tensor, nn
    >>> nn.Dropout1d().eval()(Tensor.ones(1, 1, 2)).tolist()
    [[[1.0, 1.0]]]
    """
    return _drop_channels(x, p, 1)


@layer
def Dropout2d(x: Tensor, /, p: Chance = 0.5, inplace: bool = False) -> Tensor:
    """`Dropout` of whole channels of (N, C, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.Dropout2d().eval()(Tensor.ones(1, 1, 1, 2)).tolist()
    [[[[1.0, 1.0]]]]
    """
    return _drop_channels(x, p, 2)


@layer
def Dropout3d(x: Tensor, /, p: Chance = 0.5, inplace: bool = False) -> Tensor:
    """`Dropout` of whole channels of (N, C, D, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.Dropout3d().eval()(Tensor.ones(1, 1, 1, 1, 2)).tolist()
    [[[[[1.0, 1.0]]]]]
    """
    return _drop_channels(x, p, 3)


@layer
def AlphaDropout(x: Tensor, /, p: Chance = 0.5, inplace: bool = False) -> Tensor:
    """`Dropout` for `SELU`: keeps mean 0 and variance 1.

    >>> from ferrule import Tensor, nn
    >>> nn.AlphaDropout().eval()(Tensor.ones(2)).tolist()
    [1.0, 1.0]
    """
    return x.alpha_dropout(p)


# Pools


@layer
def MaxPool1d(
    x: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """The largest element in each window over the last axis; the stride is the kernel's size.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[3.0, 5.0]]]
    """
    return x.max_pool1d(kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@layer
def MaxPool2d(
    x: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """The largest element in each window over the last two axes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import MaxPool2d
    >>> MaxPool2d(2)(Tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])).tolist()
    [[[6, 8]]]
    """
    return x.max_pool2d(kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@layer
def MaxPool3d(
    x: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """The largest element in each window over the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxPool3d(2)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 2, 3, 4)
    """
    return x.max_pool3d(kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@layer
def AvgPool1d(
    x: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over the last axis; the stride is the kernel's size.

    >>> from ferrule import Tensor, nn
    >>> nn.AvgPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[2.0, 3.5]]]
    """
    return x.avg_pool1d(kernel_size, stride, padding, ceil_mode, count_include_pad)


@layer
def AvgPool2d(
    x: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over the last two axes.

    >>> from ferrule import Tensor, nn
    >>> nn.AvgPool2d(2)(Tensor([[[[1.0, 3.0], [2.0, 6.0]]]])).tolist()
    [[[[3.0]]]]
    """
    given = (kernel_size, stride, padding)
    return x.avg_pool2d(*given, ceil_mode, count_include_pad, divisor_override)


@layer
def AvgPool3d(
    x: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.AvgPool3d(2)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 2, 3, 4)
    """
    given = (kernel_size, stride, padding)
    return x.avg_pool3d(*given, ceil_mode, count_include_pad, divisor_override)


@layer
def LPPool1d(
    x: Tensor,
    /,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm of the order `norm_type` of each window over the last axis.

    >>> from ferrule import Tensor, nn
    >>> nn.LPPool1d(1, 2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[4.0, 7.0]]]
    """
    return x.lp_pool1d(norm_type, kernel_size, stride, ceil_mode)


@layer
def LPPool2d(
    x: Tensor,
    /,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm of the order `norm_type` of each window over the last two axes.

    >>> from ferrule import Tensor, nn
    >>> nn.LPPool2d(1, 2)(Tensor([[[[1.0, 3.0], [2.0, 6.0]]]])).tolist()
    [[[[12.0]]]]
    """
    return x.lp_pool2d(norm_type, kernel_size, stride, ceil_mode)


@layer
def LPPool3d(
    x: Tensor,
    /,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm of the order `norm_type` of each window over the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.LPPool3d(1, 2)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 2, 3, 4)
    """
    return x.lp_pool3d(norm_type, kernel_size, stride, ceil_mode)


@criterion
def MaxUnpool1d(
    x: Tensor,
    indices: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
) -> Tensor:
    """The inverse of `MaxPool1d`: each maximum at its position, zeros elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxUnpool1d(2)(Tensor([[[3.0, 5.0]]]), Tensor([[[1, 3]]])).tolist()
    [[[0.0, 3.0, 0.0, 5.0]]]
    """
    return x.max_unpool1d(indices, kernel_size, stride, padding)


@criterion
def MaxUnpool2d(
    x: Tensor,
    indices: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
) -> Tensor:
    """The inverse of `MaxPool2d`: each maximum at its position, zeros elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxUnpool2d(2)(Tensor([[[[6.0]]]]), Tensor([[[[3]]]])).tolist()
    [[[[0.0, 0.0], [0.0, 6.0]]]]
    """
    return x.max_unpool2d(indices, kernel_size, stride, padding)


@criterion
def MaxUnpool3d(
    x: Tensor,
    indices: Tensor,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
) -> Tensor:
    """The inverse of `MaxPool3d`: each maximum at its position, zeros elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxUnpool3d(2)(Tensor.zeros(1, 1, 1, 1, 1), Tensor.zeros(1, 1, 1, 1, 1).int()).shape
    (1, 1, 2, 2, 2)
    """
    return x.max_unpool3d(indices, kernel_size, stride, padding)


@layer
def AdaptiveAvgPool1d(x: Tensor, /, output_size: Wanted) -> Tensor:
    """Means over as many parts of the last axis as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveAvgPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[2.0, 3.5]]]
    """
    return x.adaptive_avg_pool1d(output_size)


@layer
def AdaptiveAvgPool2d(x: Tensor, /, output_size: Wanted) -> Tensor:
    """Means over as many parts of the last two axes as are wanted; None is as many as there are.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import AdaptiveAvgPool2d
    >>> AdaptiveAvgPool2d(1)(Tensor([[[1.0, 2.0], [3.0, 6.0]]])).tolist()
    [[[3.0]]]
    """
    return x.adaptive_avg_pool2d(output_size)


@layer
def AdaptiveAvgPool3d(x: Tensor, /, output_size: Wanted) -> Tensor:
    """Means over as many parts of the last three axes as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveAvgPool3d(1)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 1, 1, 1)
    """
    return x.adaptive_avg_pool3d(output_size)


@layer
def AdaptiveMaxPool1d(x: Tensor, /, output_size: Wanted, return_indices: bool = False) -> Any:
    """The largest elements of as many parts of the last axis as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveMaxPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[3.0, 5.0]]]
    """
    return x.adaptive_max_pool1d(output_size, return_indices)


@layer
def AdaptiveMaxPool2d(x: Tensor, /, output_size: Wanted, return_indices: bool = False) -> Any:
    """The largest elements of as many parts of the last two axes as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveMaxPool2d(1)(Tensor([[[[1.0, 3.0], [2.0, 6.0]]]])).tolist()
    [[[[6.0]]]]
    """
    return x.adaptive_max_pool2d(output_size, return_indices)


@layer
def AdaptiveMaxPool3d(x: Tensor, /, output_size: Wanted, return_indices: bool = False) -> Any:
    """The largest elements of as many parts of the last three axes as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveMaxPool3d(1)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 1, 1, 1)
    """
    return x.adaptive_max_pool3d(output_size, return_indices)


# Other sizes


@layer
def Upsample(
    x: Tensor,
    /,
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """`Tensor.interpolate`: to a size, or by a factor.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Upsample
    >>> Upsample(scale_factor=2)(Tensor([[[1.0, 2.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    return x.interpolate(size, scale_factor, mode, align_corners, recompute_scale_factor)


@layer
def UpsamplingNearest2d(
    x: Tensor,
    /,
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`Upsample` with the nearest element.

    >>> from ferrule import Tensor, nn
    >>> nn.UpsamplingNearest2d(scale_factor=2)(Tensor([[[[1.0, 3.0]]]])).tolist()
    [[[[1.0, 1.0, 3.0, 3.0], [1.0, 1.0, 3.0, 3.0]]]]
    """
    return x.interpolate(size, scale_factor)


@layer
def UpsamplingBilinear2d(
    x: Tensor,
    /,
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`Upsample` by linear interpolation from corner to corner.

    >>> from ferrule import Tensor, nn
    >>> nn.UpsamplingBilinear2d((1, 3))(Tensor([[[[1.0, 3.0]]]])).tolist()
    [[[[1.0, 2.0, 3.0]]]]
    """
    return x.interpolate(size, scale_factor, "bilinear", True)


@layer
def PixelShuffle(x: Tensor, /, upscale_factor: int) -> Tensor:
    """(N, C * r * r, H, W) as (N, C, H * r, W * r).

    >>> from ferrule import Tensor, nn
    >>> nn.PixelShuffle(2)(Tensor.zeros(1, 8, 3, 4)).shape
    (1, 2, 6, 8)
    """
    return x.pixel_shuffle(upscale_factor)


@layer
def PixelUnshuffle(x: Tensor, /, downscale_factor: int) -> Tensor:
    """(N, C, H * r, W * r) as (N, C * r * r, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.PixelUnshuffle(2)(Tensor.zeros(1, 2, 6, 8)).shape
    (1, 8, 3, 4)
    """
    return x.pixel_unshuffle(downscale_factor)


@layer
def ChannelShuffle(x: Tensor, /, groups: int) -> Tensor:
    """The channels, axis 1, taken from each of `groups` in turn.

    >>> from ferrule import Tensor, nn
    >>> nn.ChannelShuffle(2)(Tensor([[[1.0], [2.0], [3.0], [4.0]]])).flatten().tolist()
    [1.0, 3.0, 2.0, 4.0]
    """
    return x.channel_shuffle(groups)


@layer
def Unfold(
    x: Tensor, /, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """The windows of (N, C, H, W) as columns: (N, C * kernel elements, windows).

    >>> from ferrule import Tensor, nn
    >>> nn.Unfold(2)(Tensor.zeros(1, 3, 4, 5)).shape
    (1, 12, 12)
    """
    return x.im2col(kernel_size, dilation, padding, stride)


@layer
def Fold(
    x: Tensor,
    /,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """The adjoint of `Unfold`: columns laid over an image of `output_size`, and added up.

    >>> from ferrule import Tensor, nn
    >>> nn.Fold((4, 5), 2)(Tensor.zeros(1, 12, 12)).shape
    (1, 3, 4, 5)
    """
    return x.fold(output_size, kernel_size, dilation, padding, stride)


# Padding


def _pads(padding: Sizes, axes: int) -> Sequence[int]:
    """(before, after) for each axis, from the last one on."""
    return [padding] * 2 * axes if isinstance(padding, int) else padding


def _padding(kind: str, mode: str, axes: int) -> Callable[[Sizes], Function]:
    """The class of layers that pad the last axes in one way."""

    def pad(x: Tensor, /, padding: Sizes) -> Tensor:
        return x.pad(_pads(padding, axes), mode)

    pad.__name__ = pad.__qualname__ = f"{kind}Pad{axes}d"
    pad.__doc__ = f"""`Tensor.pad` with mode "{mode}" on the last {axes} axes.

    `padding` is one number, or (before, after) for each axis from the last one on.
    """
    return layer(pad)


ZeroPad1d, ZeroPad2d, ZeroPad3d = (_padding("Zero", "constant", axes) for axes in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (
    _padding("Reflection", "reflect", axes) for axes in (1, 2, 3)
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (
    _padding("Replication", "replicate", axes) for axes in (1, 2, 3)
)
CircularPad1d, CircularPad2d, CircularPad3d = (
    _padding("Circular", "circular", axes) for axes in (1, 2, 3)
)


@layer
def ConstantPad1d(x: Tensor, /, padding: Sizes, value: float) -> Tensor:
    """`value` around the last axis.

    >>> from ferrule import Tensor, nn
    >>> nn.ConstantPad1d(1, 7.0)(Tensor([[[1.0, 2.0]]])).tolist()
    [[[7.0, 1.0, 2.0, 7.0]]]
    """
    return x.pad(_pads(padding, 1), "constant", value)


@layer
def ConstantPad2d(x: Tensor, /, padding: Sizes, value: float) -> Tensor:
    """`value` around the last two axes.

    >>> from ferrule import Tensor, nn
    >>> nn.ConstantPad2d(1, 7.0)(Tensor.zeros(1, 1, 2, 3)).shape
    (1, 1, 4, 5)
    """
    return x.pad(_pads(padding, 2), "constant", value)


@layer
def ConstantPad3d(x: Tensor, /, padding: Sizes, value: float) -> Tensor:
    """`value` around the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.ConstantPad3d(1, 7.0)(Tensor.zeros(1, 1, 2, 3, 4)).shape
    (1, 1, 4, 5, 6)
    """
    return x.pad(_pads(padding, 3), "constant", value)
