"""Convolutions and their transposes over one, two or three axes."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, final

from ferrule.base.calls import one_of
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.module import Layer
from ferrule.nn.parameters import check_counts, check_sizes, filter_weights
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.network.convolution import conv_paddings
from ferrule.tensor.network.windows import Sizes, each

_MODES = ("zeros", "reflect", "replicate", "circular")


class _Filters(Layer, ABC):
    """The settings that both kinds of layers share."""

    axes: ClassVar[int]
    """How many spatial axes there are."""

    _shown = (
        "in_channels out_channels kernel_size= stride= padding? dilation? groups? bias?"
        " padding_mode?"
    )

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: Sizes,
        stride: Sizes,
        dilation: Sizes,
        groups: int,
    ) -> None:
        check_sizes(self, in_channels=in_channels, out_channels=out_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = self._each("kernel_size", kernel)
        self.stride = self._each("stride", stride)
        self.dilation = self._each("dilation", dilation)
        for size in (*self.kernel_size, *self.stride, *self.dilation):
            check_counts(self, **{"each of kernel_size, stride and dilation": size})
        check_counts(self, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"{self._name}: {in_channels} and {out_channels} channels do not divide into"
                f" {groups} groups"
            )
        self.groups = groups

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _each(self, setting: str, value: Sizes) -> tuple[int, ...]:
        return each(value, self.axes, f"{self._name}: {setting}")


class _Convolution(_Filters):
    """A convolution: (N, in_channels, ...) to (N, out_channels, ...).

    `weight` is (out_channels, in_channels // groups, *kernel_size). `padding` is one number, one
    for each axis, "same" or "valid"; `padding_mode` "zeros", "reflect", "replicate" or "circular".
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, dilation, groups)
        one_of(padding_mode, _MODES, f"{self._name}: padding_mode")
        self.padding_mode = padding_mode
        self.padding = padding if isinstance(padding, str) else self._each("padding", padding)
        given = (self.kernel_size, self.stride, self.dilation)
        # As `pad` takes them: from the last axis on.
        pads = reversed(conv_paddings(self.padding, *given, self._name))
        self._pads = [amount for pair in pads for amount in pair]
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight, self.bias = filter_weights(shape, out_channels, bias, dtype, device)

    @checks_arguments
    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        pads: Sizes = self._pads
        if self.padding_mode != "zeros" and any(self._pads):
            x = x.pad(self._pads, mode=self.padding_mode)
            pads = 0
        return x.conv2d(
            self.weight,
            self.bias,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
            padding=pads,
        )


@final
class Conv1d(_Convolution):
    """A convolution over one axis: (N, in_channels, L) to (N, out_channels, L').

    `weight` is (out_channels, in_channels // groups, kernel length). `padding` is a number, "same"
    or "valid"; `padding_mode` "zeros", "reflect", "replicate" or "circular".

    Raises `ShapeError` for channels that do not divide into the groups, for an input of other
    channels or smaller than the kernel; `ValueError` for another `padding` or `padding_mode`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Conv1d
    >>> Conv1d(3, 8, kernel_size=3, padding="same")(Tensor.ones(1, 3, 5)).shape
    (1, 8, 5)
    """

    axes = 1


@final
class Conv2d(_Convolution):
    """A two-dimensional convolution: (N, in_channels, H, W) to (N, out_channels, H', W').

    `weight` is (out_channels, in_channels // groups, kernel height, kernel width). `padding` is one
    number or two, "same" or "valid"; `padding_mode` as for `Conv1d`.

    Raises `ShapeError` for channels that do not divide into the groups, for an input of other
    channels or smaller than the kernel; `ValueError` for another `padding` or `padding_mode`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Conv2d
    >>> Conv2d(3, 8, kernel_size=3, padding=1)(Tensor.ones(1, 3, 5, 5)).shape
    (1, 8, 5, 5)
    """

    axes = 2


@final
class Conv3d(_Convolution):
    """A three-dimensional convolution: (N, in_channels, D, H, W) to (N, out_channels, D', H', W').

    Raises `ShapeError` for channels that do not divide into the groups, for an input of other
    channels or smaller than the kernel; `ValueError` for another `padding` or `padding_mode`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Conv3d
    >>> Conv3d(3, 8, kernel_size=(1, 3, 3))(Tensor.ones(1, 3, 2, 5, 5)).shape
    (1, 8, 2, 3, 3)
    """

    axes = 3


class _Transposed(_Filters):
    """The adjoint of a convolution: (N, in_channels, ...) to (N, out_channels, ...).

    `weight` is (in_channels, out_channels // groups, *kernel_size).
    """

    _shown = (
        "in_channels out_channels kernel_size= stride= padding? output_padding? dilation? groups?"
        " bias?"
    )

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, dilation, groups)
        self.padding = self._each("padding", padding)
        self.output_padding = self._each("output_padding", output_padding)
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self.weight, self.bias = filter_weights(shape, out_channels, bias, dtype, device)

    @checks_arguments
    def __call__(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The layer applied to `x`; `output_size`, of the spatial axes, chooses among the sizes
        that a stride above 1 leaves open."""
        extra = self.output_padding if output_size is None else self._extra(x.shape, output_size)
        return x.conv_transpose2d(
            self.weight,
            self.bias,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
            padding=self.padding,
            output_padding=extra,
        )

    def _extra(self, shape: Sequence[Any], output_size: Sequence[int]) -> tuple[int, ...]:
        """The output padding that gives a size."""
        sizes = tuple(output_size)[-self.axes :]
        smallest = [
            (length - 1) * stride - 2 * padding + dilation * (size - 1) + 1
            for length, stride, padding, dilation, size in zip(
                shape[-self.axes :],
                self.stride,
                self.padding,
                self.dilation,
                self.kernel_size,
                strict=True,
            )
        ]
        extra = tuple(wanted - least for wanted, least in zip(sizes, smallest, strict=True))
        if not all(0 <= more < step for more, step in zip(extra, self.stride, strict=True)):
            raise ShapeError(
                f"{self._name}: output_size {sizes} is out of reach; with stride {self.stride} the"
                f" sizes go from {tuple(smallest)} on"
            )
        return extra


@final
class ConvTranspose1d(_Transposed):
    """The adjoint of `Conv1d`: (N, in_channels, L) to (N, out_channels, L').

    `weight` is (in_channels, out_channels // groups, kernel length).

    Raises `ShapeError` for an input of other channels, or an `output_size` that cannot be reached.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import ConvTranspose1d
    >>> ConvTranspose1d(3, 8, kernel_size=2, stride=2)(Tensor.ones(1, 3, 5)).shape
    (1, 8, 10)
    """

    axes = 1


@final
class ConvTranspose2d(_Transposed):
    """The adjoint of `Conv2d`: (N, in_channels, H, W) to (N, out_channels, H', W').

    `weight` is (in_channels, out_channels // groups, kernel height, kernel width).

    Raises `ShapeError` for an input of other channels, or an `output_size` that cannot be reached.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import ConvTranspose2d
    >>> ConvTranspose2d(3, 8, kernel_size=2, stride=2)(Tensor.ones(1, 3, 5, 5)).shape
    (1, 8, 10, 10)
    """

    axes = 2


@final
class ConvTranspose3d(_Transposed):
    """The adjoint of `Conv3d`: (N, in_channels, D, H, W) to (N, out_channels, D', H', W').

    Raises `ShapeError` for an input of other channels, or an `output_size` that cannot be reached.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import ConvTranspose3d
    >>> ConvTranspose3d(3, 8, kernel_size=2)(Tensor.ones(1, 3, 2, 5, 5)).shape
    (1, 8, 3, 6, 6)
    """

    axes = 3
