"""Layers that move, drop, pool and resize: no parameters, only settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ferrule.nn.functions import Chance, Function, layer
from ferrule.nn.module import Layer
from ferrule.tensor import Tensor
from ferrule.tensor.network.resampling import Wanted
from ferrule.tensor.network.windows import Sizes


@final
class Identity(Layer):
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


@layer(Tensor.flatten)
def Flatten(start_dim: int = 1, end_dim: int = -1) -> None:
    """Some axes as one, all but the first if nothing is said.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Flatten
    >>> Flatten()(Tensor.ones(2, 3, 4)).shape
    (2, 12)
    """


def _unflattened(x: Tensor, dim: int, unflattened_size: Sequence[int]) -> Tensor:
    return x.unflatten(dim, unflattened_size)


@layer(_unflattened)
def Unflatten(dim: int, unflattened_size: Sequence[int]) -> None:
    """One axis as several.

    >>> from ferrule import Tensor, nn
    >>> nn.Unflatten(1, (2, 3))(Tensor.zeros(4, 6)).shape
    (4, 2, 3)
    """


# Dropout


@layer(Tensor.dropout)
def Dropout(p: Chance = 0.5, inplace: bool = False) -> None:
    """Zeroes elements with probability `p`, and scales the rest up, while `Tensor.training`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Dropout
    >>> Dropout(0.5)(Tensor.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """


@layer(Tensor.dropout1d)
def Dropout1d(p: Chance = 0.5, inplace: bool = False) -> None:
    """`Dropout` of whole channels of (N, C, L).

    >>> from ferrule import Tensor, nn
    >>> nn.Dropout1d().eval()(Tensor.ones(1, 1, 2)).tolist()
    [[[1.0, 1.0]]]
    """


@layer(Tensor.dropout2d)
def Dropout2d(p: Chance = 0.5, inplace: bool = False) -> None:
    """`Dropout` of whole channels of (N, C, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.Dropout2d().eval()(Tensor.ones(1, 1, 1, 2)).tolist()
    [[[[1.0, 1.0]]]]
    """


@layer(Tensor.dropout3d)
def Dropout3d(p: Chance = 0.5, inplace: bool = False) -> None:
    """`Dropout` of whole channels of (N, C, D, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.Dropout3d().eval()(Tensor.ones(1, 1, 1, 1, 2)).tolist()
    [[[[[1.0, 1.0]]]]]
    """


@layer(Tensor.alpha_dropout)
def AlphaDropout(p: Chance = 0.5, inplace: bool = False) -> None:
    """`Dropout` for `SELU`: keeps mean 0 and variance 1.

    >>> from ferrule import Tensor, nn
    >>> nn.AlphaDropout().eval()(Tensor.ones(2)).tolist()
    [1.0, 1.0]
    """


# Pools


@layer(Tensor.max_pool1d, "kernel_size= stride= padding= dilation= ceil_mode= return_indices?")
def MaxPool1d(
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> None:
    """The largest element in each window over the last axis; the stride is the kernel's size.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[3.0, 5.0]]]
    """


@layer(Tensor.max_pool2d, "kernel_size= stride= padding= dilation= ceil_mode= return_indices?")
def MaxPool2d(
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> None:
    """The largest element in each window over the last two axes.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import MaxPool2d
    >>> MaxPool2d(2)(Tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]])).tolist()
    [[[6, 8]]]
    """


@layer(Tensor.max_pool3d, "kernel_size= stride= padding= dilation= ceil_mode= return_indices?")
def MaxPool3d(
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> None:
    """The largest element in each window over the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxPool3d(2)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 2, 3, 4)
    """


@layer(Tensor.avg_pool1d, "kernel_size= stride= padding= ceil_mode? count_include_pad?")
def AvgPool1d(
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> None:
    """The mean of each window over the last axis; the stride is the kernel's size.

    >>> from ferrule import Tensor, nn
    >>> nn.AvgPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[2.0, 3.5]]]
    """


@layer(
    Tensor.avg_pool2d,
    "kernel_size= stride= padding= ceil_mode? count_include_pad? divisor_override?",
)
def AvgPool2d(
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> None:
    """The mean of each window over the last two axes.

    >>> from ferrule import Tensor, nn
    >>> nn.AvgPool2d(2)(Tensor([[[[1.0, 3.0], [2.0, 6.0]]]])).tolist()
    [[[[3.0]]]]
    """


@layer(
    Tensor.avg_pool3d,
    "kernel_size= stride= padding= ceil_mode? count_include_pad? divisor_override?",
)
def AvgPool3d(
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> None:
    """The mean of each window over the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.AvgPool3d(2)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 2, 3, 4)
    """


@layer(Tensor.lp_pool1d)
def LPPool1d(
    norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> None:
    """The norm of the order `norm_type` of each window over the last axis.

    >>> from ferrule import Tensor, nn
    >>> nn.LPPool1d(1, 2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[4.0, 7.0]]]
    """


@layer(Tensor.lp_pool2d)
def LPPool2d(
    norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> None:
    """The norm of the order `norm_type` of each window over the last two axes.

    >>> from ferrule import Tensor, nn
    >>> nn.LPPool2d(1, 2)(Tensor([[[[1.0, 3.0], [2.0, 6.0]]]])).tolist()
    [[[[12.0]]]]
    """


@layer(Tensor.lp_pool3d)
def LPPool3d(
    norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> None:
    """The norm of the order `norm_type` of each window over the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.LPPool3d(1, 2)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 2, 3, 4)
    """


@layer(Tensor.max_unpool1d, "kernel_size= stride= padding=")
def MaxUnpool1d(kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
    """The inverse of `MaxPool1d`: each maximum at its position, zeros elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxUnpool1d(2)(Tensor([[[3.0, 5.0]]]), Tensor([[[1, 3]]])).tolist()
    [[[0.0, 3.0, 0.0, 5.0]]]
    """


@layer(Tensor.max_unpool2d, "kernel_size= stride= padding=")
def MaxUnpool2d(kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
    """The inverse of `MaxPool2d`: each maximum at its position, zeros elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxUnpool2d(2)(Tensor([[[[6.0]]]]), Tensor([[[[3]]]])).tolist()
    [[[[0.0, 0.0], [0.0, 6.0]]]]
    """


@layer(Tensor.max_unpool3d, "kernel_size= stride= padding=")
def MaxUnpool3d(kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
    """The inverse of `MaxPool3d`: each maximum at its position, zeros elsewhere.

    >>> from ferrule import Tensor, nn
    >>> nn.MaxUnpool3d(2)(Tensor.zeros(1, 1, 1, 1, 1), Tensor.zeros(1, 1, 1, 1, 1).int()).shape
    (1, 1, 2, 2, 2)
    """


@layer(Tensor.adaptive_avg_pool1d)
def AdaptiveAvgPool1d(output_size: Wanted) -> None:
    """Means over as many parts of the last axis as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveAvgPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[2.0, 3.5]]]
    """


@layer(Tensor.adaptive_avg_pool2d)
def AdaptiveAvgPool2d(output_size: Wanted) -> None:
    """Means over as many parts of the last two axes as are wanted; None is as many as there are.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import AdaptiveAvgPool2d
    >>> AdaptiveAvgPool2d(1)(Tensor([[[1.0, 2.0], [3.0, 6.0]]])).tolist()
    [[[3.0]]]
    """


@layer(Tensor.adaptive_avg_pool3d)
def AdaptiveAvgPool3d(output_size: Wanted) -> None:
    """Means over as many parts of the last three axes as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveAvgPool3d(1)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 1, 1, 1)
    """


@layer(Tensor.adaptive_max_pool1d, "output_size= return_indices?")
def AdaptiveMaxPool1d(output_size: Wanted, return_indices: bool = False) -> None:
    """The largest elements of as many parts of the last axis as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveMaxPool1d(2)(Tensor([[[1.0, 3.0, 2.0, 5.0]]])).tolist()
    [[[3.0, 5.0]]]
    """


@layer(Tensor.adaptive_max_pool2d, "output_size= return_indices?")
def AdaptiveMaxPool2d(output_size: Wanted, return_indices: bool = False) -> None:
    """The largest elements of as many parts of the last two axes as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveMaxPool2d(1)(Tensor([[[[1.0, 3.0], [2.0, 6.0]]]])).tolist()
    [[[[6.0]]]]
    """


@layer(Tensor.adaptive_max_pool3d, "output_size= return_indices?")
def AdaptiveMaxPool3d(output_size: Wanted, return_indices: bool = False) -> None:
    """The largest elements of as many parts of the last three axes as are wanted.

    >>> from ferrule import Tensor, nn
    >>> nn.AdaptiveMaxPool3d(1)(Tensor.zeros(1, 3, 4, 6, 8)).shape
    (1, 3, 1, 1, 1)
    """


# Other sizes


@layer(Tensor.interpolate, "size? scale_factor? mode= align_corners? recompute_scale_factor?")
def Upsample(
    size: Wanted | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> None:
    """`Tensor.interpolate`: to a size, or by a factor.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Upsample
    >>> Upsample(scale_factor=2)(Tensor([[[1.0, 2.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """


@layer(Tensor.upsample_nearest, "size? scale_factor?")
def UpsamplingNearest2d(
    size: Wanted | None = None, scale_factor: float | Sequence[float] | None = None
) -> None:
    """`Upsample` with the nearest element.

    >>> from ferrule import Tensor, nn
    >>> nn.UpsamplingNearest2d(scale_factor=2)(Tensor([[[[1.0, 3.0]]]])).tolist()
    [[[[1.0, 1.0, 3.0, 3.0], [1.0, 1.0, 3.0, 3.0]]]]
    """


@layer(Tensor.upsample_bilinear, "size? scale_factor?")
def UpsamplingBilinear2d(
    size: Wanted | None = None, scale_factor: float | Sequence[float] | None = None
) -> None:
    """`Upsample` by linear interpolation from corner to corner.

    >>> from ferrule import Tensor, nn
    >>> nn.UpsamplingBilinear2d((1, 3))(Tensor([[[[1.0, 3.0]]]])).tolist()
    [[[[1.0, 2.0, 3.0]]]]
    """


@layer(Tensor.pixel_shuffle)
def PixelShuffle(upscale_factor: int) -> None:
    """(N, C * r * r, H, W) as (N, C, H * r, W * r).

    >>> from ferrule import Tensor, nn
    >>> nn.PixelShuffle(2)(Tensor.zeros(1, 8, 3, 4)).shape
    (1, 2, 6, 8)
    """


@layer(Tensor.pixel_unshuffle)
def PixelUnshuffle(downscale_factor: int) -> None:
    """(N, C, H * r, W * r) as (N, C * r * r, H, W).

    >>> from ferrule import Tensor, nn
    >>> nn.PixelUnshuffle(2)(Tensor.zeros(1, 2, 6, 8)).shape
    (1, 8, 3, 4)
    """


@layer(Tensor.channel_shuffle)
def ChannelShuffle(groups: int) -> None:
    """The channels, axis 1, taken from each of `groups` in turn.

    >>> from ferrule import Tensor, nn
    >>> nn.ChannelShuffle(2)(Tensor([[[1.0], [2.0], [3.0], [4.0]]])).flatten().tolist()
    [1.0, 3.0, 2.0, 4.0]
    """


@layer(Tensor.im2col)
def Unfold(kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
    """The windows of (N, C, H, W) as columns: (N, C * kernel elements, windows).

    >>> from ferrule import Tensor, nn
    >>> nn.Unfold(2)(Tensor.zeros(1, 3, 4, 5)).shape
    (1, 12, 12)
    """


@layer(Tensor.fold)
def Fold(
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> None:
    """The adjoint of `Unfold`: columns laid over an image of `output_size`, and added up.

    >>> from ferrule import Tensor, nn
    >>> nn.Fold((4, 5), 2)(Tensor.zeros(1, 12, 12)).shape
    (1, 3, 4, 5)
    """


# Padding


def _border(axes: int, mode: str) -> Callable[..., Tensor]:
    """The function that pads the last axes in one way."""

    def padded(x: Tensor, padding: Sizes, value: float = 0.0) -> Tensor:
        pairs = [padding] * 2 * axes if isinstance(padding, int) else padding
        return x.pad(pairs, mode, value)

    return padded


def _padding(kind: str, mode: str, axes: int) -> Callable[[Sizes], Function]:
    """The class of layers that pad the last axes in one way."""

    def pad(padding: Sizes) -> None: ...

    pad.__name__ = pad.__qualname__ = f"{kind}Pad{axes}d"
    pad.__doc__ = f"""`Tensor.pad` with mode "{mode}" on the last {axes} axes.

    `padding` is one number, or (before, after) for each axis from the last one on.
    """
    return layer(_border(axes, mode), "padding")(pad)


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


@layer(_border(1, "constant"))
def ConstantPad1d(padding: Sizes, value: float) -> None:
    """`value` around the last axis.

    >>> from ferrule import Tensor, nn
    >>> nn.ConstantPad1d(1, 7.0)(Tensor([[[1.0, 2.0]]])).tolist()
    [[[7.0, 1.0, 2.0, 7.0]]]
    """


@layer(_border(2, "constant"))
def ConstantPad2d(padding: Sizes, value: float) -> None:
    """`value` around the last two axes.

    >>> from ferrule import Tensor, nn
    >>> nn.ConstantPad2d(1, 7.0)(Tensor.zeros(1, 1, 2, 3)).shape
    (1, 1, 4, 5)
    """


@layer(_border(3, "constant"))
def ConstantPad3d(padding: Sizes, value: float) -> None:
    """`value` around the last three axes.

    >>> from ferrule import Tensor, nn
    >>> nn.ConstantPad3d(1, 7.0)(Tensor.zeros(1, 1, 2, 3, 4)).shape
    (1, 1, 4, 5, 6)
    """
