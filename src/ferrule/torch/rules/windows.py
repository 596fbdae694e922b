"""Operators on windows that move over images: pooling, resizing, sampling, and their slopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ferrule.tensor import Tensor
from ferrule.torch.registry import enter_rule, rule
from ferrule.torch.values import int64, pairs
from ferrule.transforms.derivatives import vjp

Sizes = Sequence[int]
_MAX = {1: Tensor.max_pool1d, 2: Tensor.max_pool2d, 3: Tensor.max_pool3d}
_AVG = {1: Tensor.avg_pool1d, 2: Tensor.avg_pool2d, 3: Tensor.avg_pool3d}


def _pulled(function: Callable[[Tensor], Tensor], x: Tensor, slope: Tensor) -> Tensor:
    """The slope of a function's result, taken back to its argument."""
    _, pull = vjp(function, x)
    (back,) = pull(slope)
    result: Tensor = back
    return result


def _enter_pools() -> None:
    for count in (1, 2, 3):

        def largest(
            self: Tensor,
            kernel_size: Sizes,
            stride: Sizes = (),
            padding: Sizes = (0,),
            dilation: Sizes = (1,),
            ceil_mode: bool = False,
            count: int = count,
        ) -> tuple[Tensor, Tensor]:
            size, edges, gaps = (pairs(each, count) for each in (kernel_size, padding, dilation))
            steps = pairs(stride, count) or size
            values, places = _MAX[count](self, size, steps, edges, gaps, ceil_mode, True)
            return values, int64(places)

        def average(
            self: Tensor,
            kernel_size: Sizes,
            stride: Sizes = (),
            padding: Sizes = (0,),
            ceil_mode: bool = False,
            count_include_pad: bool = True,
            divisor_override: int | None = None,
            count: int = count,
        ) -> Tensor:
            size, edges = pairs(kernel_size, count), pairs(padding, count)
            steps = pairs(stride, count) or size
            settings = (size, steps, edges, ceil_mode, count_include_pad, divisor_override)
            return _AVG[count](self, *settings)

        def average_back(
            grad_output: Tensor, self: Tensor, *settings: Any, average: Any = average
        ) -> Tensor:
            return _pulled(lambda x: average(x, *settings), self, grad_output)

        def largest_back(
            grad_output: Tensor,
            self: Tensor,
            kernel_size: Sizes,
            stride: Sizes,
            padding: Sizes,
            dilation: Sizes,
            ceil_mode: bool,
            indices: Tensor,
            count: int = count,
        ) -> Tensor:
            """Each slope goes to the place that was the largest."""
            front = self.shape[: self.ndim - count]
            flat = Tensor.zeros(*front, _volume(self.shape[-count:]), dtype=grad_output.dtype)
            shape = (*front, -1)
            found = flat.scatter_add(-1, indices.reshape(shape), grad_output.reshape(shape))
            return found.reshape(self.shape)

        enter_rule(f"max_pool{count}d_with_indices", largest)
        enter_rule(f"avg_pool{count}d", average)
        if count > 1:
            enter_rule(f"max_pool{count}d_with_indices_backward", largest_back)
            enter_rule(f"avg_pool{count}d_backward", average_back)


def _volume(shape: Sequence[int]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


_enter_pools()


@rule("_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_avg_pool2d(self: Tensor, output_size: Sizes) -> Tensor:
    return self.adaptive_avg_pool2d(tuple(output_size))


@rule("_adaptive_avg_pool3d", "adaptive_avg_pool3d")
def adaptive_avg_pool3d(self: Tensor, output_size: Sizes) -> Tensor:
    return self.adaptive_avg_pool3d(tuple(output_size))


@rule("adaptive_avg_pool1d")
def adaptive_avg_pool1d(self: Tensor, output_size: Sizes) -> Tensor:
    return self.adaptive_avg_pool1d(output_size[0])


@rule("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    size = grad_output.shape[-2:]
    return _pulled(lambda x: x.adaptive_avg_pool2d(size), self, grad_output)


@rule("adaptive_max_pool2d")
def adaptive_max_pool2d(self: Tensor, output_size: Sizes) -> tuple[Tensor, Tensor]:
    values, places = self.adaptive_max_pool2d(tuple(output_size), return_indices=True)
    return values, int64(places)


@rule("adaptive_max_pool3d")
def adaptive_max_pool3d(self: Tensor, output_size: Sizes) -> tuple[Tensor, Tensor]:
    values, places = self.adaptive_max_pool3d(tuple(output_size), return_indices=True)
    return values, int64(places)


# -- resizing ------------------------------------------------------------------------------------


def _resized(
    x: Tensor,
    mode: str,
    output_size: Sizes | None,
    scales: Sequence[float] | None,
    align_corners: bool | None = None,
) -> Tensor:
    if output_size is not None:
        return x.interpolate(tuple(output_size), mode=mode, align_corners=align_corners)
    assert scales is not None
    return x.interpolate(scale_factor=tuple(scales), mode=mode, align_corners=align_corners)


def _enter_resizing() -> None:
    for count, mode in ((1, "linear"), (2, "bilinear"), (3, "trilinear"), (2, "bicubic")):

        def smooth(
            input: Tensor,
            output_size: Sizes | None,
            align_corners: bool,
            scale_factors: Sequence[float] | None,
            mode: str = mode,
        ) -> Tensor:
            return _resized(input, mode, output_size, scale_factors, align_corners)

        enter_rule(f"upsample_{mode}{count}d.vec", smooth)
    for count in (1, 2, 3):

        def nearest(
            input: Tensor, output_size: Sizes | None, scale_factors: Sequence[float] | None
        ) -> Tensor:
            return _resized(input, "nearest", output_size, scale_factors)

        enter_rule(f"upsample_nearest{count}d.vec", nearest)


_enter_resizing()


@rule("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    mode = ("bilinear", "nearest", "bicubic")[interpolation_mode]
    outside = ("zeros", "border", "reflection")[padding_mode]
    return input.grid_sample(grid, mode, outside, align_corners)


# -- slopes of resizing --------------------------------------------------------------------------


def _enter_slopes() -> None:
    for mode in ("nearest", "bilinear", "bicubic"):

        def back(grad_output: Tensor, *settings: Any, mode: str = mode) -> Tensor:
            output_size, input_size, *rest = settings
            align = rest[0] if mode != "nearest" else None
            scales = tuple(rest[1:] if mode != "nearest" else rest)
            exact = None not in scales and len(scales) == len(output_size)
            size, factors = (None, scales) if exact else (output_size, None)
            x = Tensor.zeros(tuple(input_size), dtype=grad_output.dtype)
            return _pulled(lambda x: _resized(x, mode, size, factors, align), x, grad_output)

        enter_rule(f"upsample_{mode}2d_backward", back)


_enter_slopes()
