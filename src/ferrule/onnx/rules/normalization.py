"""Normalisations, and dropout."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.values import Host, OnnxError, Statistic, dtype_of
from ferrule.tensor import Tensor


@rule("BatchNormalization", 14)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Statistic,
    variance: Statistic,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor | tuple[Tensor, ...]:
    if not training_mode:
        return x.batch_norm(mean, variance, scale, bias, eps=epsilon).cast(x.dtype)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    now = x.mean(axes)
    spread = ((x - _per_channel(now, x)) ** 2).mean(axes)
    y = x.batch_norm(now, spread, scale, bias, eps=epsilon)
    return (
        y.cast(x.dtype),
        mean * momentum + now * (1 - momentum),
        variance * momentum + spread * (1 - momentum),
    )


@rule("BatchNormalization")
def batch_normalization_old(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Statistic,
    variance: Statistic,
    *,
    epsilon: float = 1e-5,
    is_test: int = 1,
    momentum: float = 0.9,
    spatial: int = 1,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    if not spatial:
        raise OnnxError("means of each element are not supported, only of each channel")
    training = int(n_outputs > 1)
    return batch_normalization(
        x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum, training_mode=training
    )


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))


@rule("InstanceNormalization", 6)
def instance_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    return x.instance_norm(weight=scale, bias=bias, eps=epsilon)


@rule("GroupNormalization", 21)
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    return x.group_norm(num_groups, scale, bias, epsilon).cast(x.dtype)


@rule("GroupNormalization", 18)
def group_normalization_old(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    each = x.shape[1] // num_groups
    scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return x.group_norm(num_groups, scale, bias, epsilon).cast(x.dtype)


@rule("LayerNormalization", 17)
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    axis %= x.ndim
    wide = x.cast(dtype_of(stash_type))
    if n_outputs == 1:
        shape = x.shape[axis:]
        if tuple(scale.shape) == tuple(shape) and wide.dtype == x.dtype:
            return x.layer_norm(shape, scale, bias, epsilon)
    axes = tuple(range(axis, x.ndim))
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    inverse = ((centred * centred).mean(axes, keepdim=True) + epsilon).rsqrt()
    y = (centred * inverse).cast(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


@rule("RMSNormalization", 23)
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.cast(dtype_of(stash_type))
    inverse = ((wide * wide).mean(axes, keepdim=True) + epsilon).rsqrt()
    return ((wide * inverse).cast(x.dtype) * scale).cast(scale.dtype)


@rule("MeanVarianceNormalization", 9)
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    along = tuple(axes)
    centred = x - x.mean(along, keepdim=True)
    return centred / ((centred * centred).mean(along, keepdim=True).sqrt() + 1e-9)


@rule("LRN")
def local_response_normalization(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    return x.local_response_norm(size, alpha, beta, bias)


@rule("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    return x.normalize(p, axis)


# Dropout


def _dropped(
    x: Tensor, ratio: float, training: bool, n_outputs: int
) -> Tensor | tuple[Tensor, ...]:
    if not training or ratio == 0:
        return x if n_outputs == 1 else (x, Tensor.ones(*x.shape, dtype=dtypes.bool))
    kept = Tensor.rand(*x.shape) >= ratio
    return (kept.where(x / (1 - ratio), 0.0).cast(x.dtype), kept)


@rule("Dropout", 12)
def dropout(
    x: Tensor,
    ratio: Host | None = None,
    training_mode: Host | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    chance = 0.5 if ratio is None else float(ratio.item())
    return _dropped(x, chance, training_mode is not None and bool(training_mode.item()), n_outputs)


@rule("Dropout")
def dropout_old(
    x: Tensor,
    *,
    ratio: float = 0.5,
    is_test: int = 1,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    return _dropped(x, ratio, False, n_outputs)
