"""Normalisations: of batches, layers and groups, and their slopes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.ir.dtype import dtypes
from ferrule.tensor import Tensor
from ferrule.torch.registry import rule


def _wide(x: Tensor) -> Tensor:
    """Statistics are computed in float32 at least."""
    return x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x


def _moments(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the biased variance, and the inverse of the deviation; axes keep size 1."""
    mean = x.mean(tuple(axes), keepdim=True)
    var = x.var(tuple(axes), keepdim=True, correction=0)
    return mean, var, (var + eps).rsqrt()


def _scaled(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * weight.reshape(tuple(shape))
    return x if bias is None else x + bias.reshape(tuple(shape))


# -- batches -------------------------------------------------------------------------------------


def _per_channel(x: Tensor) -> tuple[int, ...]:
    return (1, x.shape[1], *(1,) * (x.ndim - 2))


@rule("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    found = input.batch_norm(running_mean, running_var, weight, bias, False, momentum, eps)
    nothing = Tensor.zeros(0, dtype=running_mean.dtype)
    return found.cast(input.dtype), nothing, nothing


def _of_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, and mean, inverse deviation and unbiased variance of each channel."""
    wide = _wide(x)
    axes = (0, *range(2, x.ndim))
    mean, var, inverse = _moments(wide, axes, eps)
    result = _scaled((wide - mean) * inverse, _per_channel(x), weight, bias).cast(x.dtype)
    count = prod(x.shape[axis] for axis in axes)
    unbiased = var * (count / max(count - 1, 1))
    return result, mean.reshape(-1), inverse.reshape(-1), unbiased.reshape(-1)


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _of_batch(input, weight, bias, eps)[:3]


@rule("_native_batch_norm_legit_functional")
def batch_norm_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The result, statistics of the batch, and the next running statistics."""
    if not training:
        found = batch_norm_no_training(
            input, weight, bias, running_mean, running_var, momentum, eps
        )
        return (*found, running_mean, running_var)
    result, mean, inverse, unbiased = _of_batch(input, weight, bias, eps)
    kept = [
        old * (1 - momentum) + new.detach().cast(old.dtype) * momentum
        for old, new in ((running_mean, mean), (running_var, unbiased))
    ]
    return result, mean, inverse, *kept


@rule("_native_batch_norm_legit", "native_batch_norm")
def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Writes the running statistics in place."""
    if running_mean is None or running_var is None:
        return batch_norm_no_stats(input, weight, bias, training, momentum, eps)
    statistics = (running_mean, running_var)
    *found, next_mean, next_var = batch_norm_functional(
        input, weight, bias, *statistics, training, momentum, eps
    )
    if training:
        running_mean.assign(next_mean)
        running_var.assign(next_var)
    return tuple(found)


@rule("native_batch_norm_backward")
def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    shape = _per_channel(input)
    axes = (0, *range(2, input.ndim))
    x, slope = _wide(input), _wide(grad_out)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, inverse = save_mean, save_invstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, inverse = running_mean, (running_var + eps).rsqrt()
    normal = (x - mean.reshape(shape)) * inverse.reshape(shape)
    along, total = (slope * normal).sum(axes), slope.sum(axes)
    scale = inverse if weight is None else inverse * weight
    back = slope
    if train:
        count = prod(input.shape[axis] for axis in axes)
        back = slope - (total.reshape(shape) + normal * along.reshape(shape)) / count
    slopes = ((back * scale.reshape(shape)).cast(input.dtype), along, total)
    return _chosen(slopes, output_mask)


def _chosen(slopes: Sequence[Tensor], mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    return tuple(slope if wanted else None for slope, wanted in zip(slopes, mask, strict=True))


# -- layers and groups ---------------------------------------------------------------------------


@rule("native_layer_norm")
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    axes = range(input.ndim - len(normalized_shape), input.ndim)
    mean, _, inverse = _moments(_wide(input), tuple(axes), eps)
    return _layer_normal(input, tuple(normalized_shape), weight, bias, eps), mean, inverse


def _layer_normal(
    x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return x.layer_norm(shape, weight, bias, eps).cast(x.dtype)


@rule("layer_norm")
def layer_norm_alone(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return _layer_normal(input, tuple(normalized_shape), weight, bias, eps)


@rule("rms_norm")
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    return input.rms_norm(tuple(normalized_shape), weight, eps).cast(input.dtype)


@rule("native_layer_norm_backward")
def layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    count = len(normalized_shape)
    inner = tuple(range(input.ndim - count, input.ndim))
    outer = tuple(range(input.ndim - count))
    x, slope = _wide(input), _wide(grad_out)
    normal = (x - mean) * rstd
    inside = slope if weight is None else slope * weight
    back = inside - inside.mean(inner, keepdim=True)
    back = (back - normal * (inside * normal).mean(inner, keepdim=True)) * rstd
    slopes = (back.cast(input.dtype), (slope * normal).sum(outer), slope.sum(outer))
    return _chosen(slopes, output_mask)


@rule("native_group_norm")
def group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    mean, _, inverse = _moments(_wide(input).reshape(N, group, -1), (2,), eps)
    found = input.group_norm(group, weight, bias, eps).cast(input.dtype)
    return found, mean.reshape(N, group), inverse.reshape(N, group)


@rule("group_norm")
def group_norm_alone(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    return input.group_norm(num_groups, weight, bias, eps).cast(input.dtype)


@rule("native_group_norm_backward")
def group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    shape = (N, group, C // group, HxW)
    x, slope = _wide(input).reshape(shape), _wide(grad_out).reshape(shape)
    each = (N, group, 1, 1)
    normal = (x - mean.reshape(each)) * rstd.reshape(each)
    inside = slope if weight is None else slope * weight.reshape(1, group, C // group, 1)
    back = inside - inside.mean((2, 3), keepdim=True)
    back = (back - normal * (inside * normal).mean((2, 3), keepdim=True)) * rstd.reshape(each)
    slopes = (
        back.reshape(input.shape).cast(input.dtype),
        (slope * normal).sum((0, 3)).reshape(C),
        slope.sum((0, 3)).reshape(C),
    )
    return _chosen(slopes, output_mask)


@rule("_fused_rms_norm")
def fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    wide = _wide(input)
    small = eps if eps is not None else 2.0**-23
    inverse = ((wide * wide).mean(axes, keepdim=True) + small).rsqrt()
    return rms_norm(input, normalized_shape, weight, small), inverse
