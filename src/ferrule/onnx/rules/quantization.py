"""Quantised numbers: integers of 8 or 16 bits, or floats of 8, with a scale and a zero point."""

from __future__ import annotations

from itertools import zip_longest

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.shape.view import same
from ferrule.onnx.registry import rule
from ferrule.onnx.rules.elementwise import cast
from ferrule.onnx.rules.products import integer_product
from ferrule.onnx.rules.windows import PLAIN, Window, conv_integer, integer_conv
from ferrule.onnx.values import Scale, dtype_of, number_of
from ferrule.tensor import Tensor


def _spread(values: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Scales or zero points, one for all of `x`, for each along an axis, or for blocks along it."""
    if values.numel() == 1 and not block:
        return values.reshape(())
    axis %= x.ndim
    if block:
        return values.repeat_interleave(block, axis)[tuple(slice(0, size) for size in x.shape)]
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.reshape(*shape)


def quantized(scaled: Tensor, zero: Tensor | None, dtype: DType, saturate: int = 1) -> Tensor:
    """The nearest quantised numbers to numbers that are divided by the scale."""
    if dtypes.is_float(dtype):
        return cast(scaled, to=number_of(dtype), saturate=saturate)
    rounded = scaled.round()
    if zero is not None:
        rounded = rounded + zero.cast(rounded.dtype)
    return rounded.clip(dtypes.min(dtype), dtypes.max(dtype)).cast(dtype)


@rule("QuantizeLinear", 10)
def quantize_linear(
    x: Tensor,
    scale: Scale,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    stored: int = 0,
) -> Tensor:
    dtype = zero_point.dtype if zero_point is not None else dtypes.uint8
    if output_dtype:
        dtype = dtype_of(output_dtype)
    wide = x.cast(dtype_of(precision)) if precision else x
    if not dtypes.is_float(wide.dtype):
        wide = wide.cast(dtypes.float32)
    offset = None if zero_point is None else _spread(zero_point, x, axis, block_size)
    scaled = wide / _spread(scale, x, axis, block_size).cast(wide.dtype)
    y = quantized(scaled, offset, dtype, saturate)
    return y.contiguous() if stored else y


@rule("DequantizeLinear", 10)
def dequantize_linear(
    x: Tensor,
    scale: Scale,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    dtype = dtype_of(output_dtype) if output_dtype else scale.dtype
    if dtypes.is_float(x.dtype):
        value = x.cast(dtypes.float32)
    else:
        value = x.cast(dtypes.int32)
        if zero_point is not None:
            value = value - _spread(zero_point, x, axis, block_size).cast(dtypes.int32)
    factor = _spread(scale, x, axis, block_size)
    return (value.cast(dtypes.float32) * factor.cast(dtypes.float32)).cast(dtype)


@rule("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.min().minimum(0.0), x.max().maximum(0.0)
    scale = (high - low) / 255
    zero = (-low / (scale == 0).where(1.0, scale)).round().clip(0, 255)
    y = ((x / (scale == 0).where(1.0, scale)).round() + zero).clip(0, 255)
    return y.cast(dtypes.uint8), scale, zero.cast(dtypes.uint8)


@rule("QLinearMatMul", 10)
def q_linear_matmul(
    a: Tensor,
    a_scale: Scale,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Scale,
    b_zero: Tensor,
    y_scale: Scale,
    y_zero: Tensor,
) -> Tensor:
    total = integer_product(a, b, a_zero, b_zero).cast(dtypes.float32)
    a_factor = a_scale.unsqueeze(-1) if a_scale.ndim == 1 and a_scale.numel() > 1 else a_scale
    factor = a_factor.cast(dtypes.float32) * b_scale.cast(dtypes.float32)
    scale = factor / y_scale.cast(dtypes.float32)
    if scale.numel() == 1:
        scale = scale.reshape(())
    offset = y_zero.reshape(()) if y_zero.numel() == 1 else y_zero
    return quantized(total * scale, offset, y_zero.dtype)


@rule("QLinearConv", 10)
def q_linear_conv(
    x: Tensor,
    x_scale: Scale,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Scale,
    w_zero: Tensor,
    y_scale: Scale,
    y_zero: Tensor,
    bias: Tensor | None = None,
    *,
    window: Window = PLAIN,
    group: int = 1,
) -> Tensor:
    total = conv_integer(x, w, x_zero, w_zero, window=window, group=group)
    if bias is not None:
        total = total + bias.reshape(-1, *(1,) * (x.ndim - 2))
    scale = x_scale.reshape(()) * w_scale / y_scale.reshape(())
    scale = scale.reshape(()) if scale.numel() == 1 else scale.reshape(1, -1, *(1,) * (x.ndim - 2))
    return quantized(total.cast(dtypes.float32) * scale, y_zero.reshape(()), y_zero.dtype)


# Operators of ONNX Runtime, with its order of roundings

_RUNTIME = "com.microsoft"


@rule("QLinearAdd", domain=_RUNTIME)
def q_linear_add(
    a: Tensor,
    a_scale: Scale,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Scale,
    b_zero: Tensor | None,
    y_scale: Scale,
    y_zero: Tensor | None = None,
) -> Tensor:
    # It adds a row to a number, whichever comes first.
    if _is_repeated(a, b):
        a, a_scale, a_zero, b, b_scale, b_zero = b, b_scale, b_zero, a, a_scale, a_zero
    a_ratio, b_ratio = a_scale / y_scale, b_scale / y_scale
    zeros = _fused(a_zero, a_ratio, _fused(b_zero, b_ratio, None))
    start = -zeros if y_zero is None else y_zero.cast(dtypes.float32) - zeros
    total = _fused(a, a_ratio, _fused(b, b_ratio, start))
    return quantized(total, None, a.dtype)


def _is_repeated(a: Tensor, b: Tensor) -> bool:
    """True if `a` has one element for a row of `b`, or for its only one."""
    sizes = zip_longest(reversed(a.shape), reversed(b.shape), fillvalue=1)
    longer = [(same(n, 1), same(m, 1)) for n, m in sizes if not (same(n, 1) and same(m, 1))]
    return not longer or longer[0][0]


def _fused(x: Tensor | None, factor: Tensor, more: Tensor | None) -> Tensor:
    """x * factor + more for integers, rounded once to float32: the product is exact in float64."""
    wide = factor.cast(dtypes.float64) * (0 if x is None else x.cast(dtypes.float64))
    if more is not None:
        wide = wide + more.cast(dtypes.float64)
    return wide.cast(dtypes.float32)


@rule("QLinearGlobalAveragePool", domain=_RUNTIME)
def q_linear_global_average_pool(
    x: Tensor,
    x_scale: Scale,
    x_zero: Tensor | None,
    y_scale: Scale,
    y_zero: Tensor | None = None,
    *,
    channels_last: int = 0,
) -> Tensor:
    axes = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    wide = x.cast(dtypes.int32)
    total = (wide if x_zero is None else wide - x_zero.cast(dtypes.int32)).sum(axes, keepdim=True)
    scale = x_scale / (y_scale * count)
    return quantized(total.cast(dtypes.float32) * scale, y_zero, x.dtype)


# What products of quantised numbers become when a model is loaded


@rule("QuantizedMatMul", domain="ferrule")
def quantized_matmul(
    a: Tensor,
    b: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    b_sums: Tensor | None = None,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    y_zero: Tensor | None = None,
    *,
    dtype: int,
    relu: int,
    stored: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    a = a.transpose(0, 1) if transA else a
    b = b.transpose(0, 1) if transB else b
    total = integer_product(a, b, a_zero, b_zero, b_sums=b_sums)
    return _finished(total, bias, factor, y_zero, relu, dtype, stored)


@rule("QuantizedConv", domain="ferrule")
def quantized_conv(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    w_sums: Tensor | None = None,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    y_zero: Tensor | None = None,
    *,
    dtype: int,
    relu: int,
    stored: int = 0,
    window: Window = PLAIN,
    group: int = 1,
) -> Tensor:
    total = integer_conv(x, w, x_zero, w_zero, w_sums, window, group)
    if bias is not None:
        bias = _spread(bias, total, 1, 0)
    if factor is not None:
        factor = _spread(factor, total, 1, 0)
    return _finished(total, bias, factor, y_zero, relu, dtype, stored)


def _finished(
    total: Tensor,
    bias: Tensor | None,
    factor: Tensor | None,
    y_zero: Tensor | None,
    relu: int,
    dtype: int,
    stored: int,
) -> Tensor:
    """Sums of products with a bias, of integers before or of floats after they are scaled."""
    if bias is not None and not dtypes.is_float(bias.dtype):
        total, bias = total + bias, None
    if factor is None:
        return total
    scaled = total.cast(dtypes.float32) * factor
    if bias is not None:
        scaled = scaled + bias
    if relu:
        scaled = scaled.relu()
    if not dtype:
        return scaled
    y = quantized(scaled, None if y_zero is None else y_zero.reshape(()), dtype_of(dtype))
    return y.contiguous() if stored else y
