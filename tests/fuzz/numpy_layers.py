"""Counterparts of losses, normalisation, pooling, attention and other layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tests.fuzz.numpy_functions import (
    Array,
    Function,
    Scaled,
    as_integers,
    axes_of,
    only_if,
    pairs,
    sigmoid,
    softmax,
    softplus,
    windows,
)
from tests.fuzz.numpy_linalg import vector_norm

# -- losses ----------------------------------------------------------------------------------------


def _reduced(losses: Any, reduction: str) -> Any:
    return {"none": np.asarray, "sum": np.sum, "mean": np.mean}[reduction](losses)


def _smooth_l1(x: Array, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    size = np.abs(x - target)
    losses = np.where(size < beta, np.square(size) / (2 * beta), size - beta / 2)
    return _reduced(losses, reduction)


def _huber(x: Array, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    size = np.abs(x - target)
    losses = np.where(size > delta, delta * (size - delta / 2), np.square(size) / 2)
    return _reduced(losses, reduction)


def _surprise(x: Array, target: Any, weight: Any = 1.0, reduction: str = "mean") -> Any:
    """Of probabilities; logarithms are at least -100."""
    x = np.where((x >= 0) & (x <= 1), x, np.nan)
    own, other = (np.maximum(np.log(part), -100) for part in (x, 1 - x))
    losses = -(target * own + (1 - np.asarray(target)) * other) * weight
    return Scaled(_reduced(losses, reduction), 100.0 * max(1, np.nansum(np.abs(losses))))


def _surprise_of_scores(
    x: Array, target: Any, weight: Any = 1.0, reduction: str = "mean", pos_weight: Any = 1.0
) -> Any:
    target = np.asarray(target)
    losses = pos_weight * target * softplus(-x) + (1 - target) * softplus(x)
    only_if(np.shape(losses) == np.shape(x) == np.shape(losses * weight))
    size = float(np.abs(pos_weight * target).max(initial=1) * np.abs(weight).max(initial=1))
    size *= 1 + np.abs(x).max(initial=1)
    return Scaled(_reduced(losses * weight, reduction), size * max(1, x.size))


def _multilabel_soft_margin(
    x: Array, target: Any, weight: Any = 1.0, reduction: str = "mean"
) -> Any:
    found = _surprise_of_scores(x, target, weight, "none")
    return Scaled(_reduced(found.value.mean(-1), reduction), found.magnitude)


def _kl_div(x: Array, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    logs = target if log_target else np.log(target)
    chances = np.exp(target) if log_target else target
    losses = np.where(chances == 0, -chances * x, chances * (logs - x))
    return _reduced(losses, reduction)


def _poisson(
    x: Array, target: Any, log_input: bool = True, eps: float = 1e-8, reduction: str = "mean"
) -> Any:
    losses = np.exp(x) - target * x if log_input else x - target * np.log(x + eps)
    return Scaled(
        _reduced(losses, reduction), float(np.abs(losses).max(initial=1)) * max(1, x.size)
    )


def _gaussian(
    x: Array, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    var = np.maximum(var, eps)
    losses = (np.log(var) + np.square(x - target) / var) / 2
    return _reduced(losses + (math.log(2 * math.pi) / 2 if full else 0), reduction)


def _hinge(x: Array, target: Any, margin: float = 1.0, reduction: str = "mean") -> Any:
    far = np.maximum(0, margin - x)
    losses = np.where(target == 1, x, np.where(target == -1, far, x + far))
    return _reduced(losses, reduction)


def _ranking(
    x: Array, other: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    return _reduced(np.maximum(0, margin - target * (x - other)), reduction)


def _cosine(x: Array, other: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    a, b = np.broadcast_arrays(x, other)
    lengths = [np.sqrt(np.square(y).sum(dim)) for y in (a, b)]
    only_if(np.all([(n == 0) | (n > 1e-2) for n in lengths]))
    return (a * b).sum(dim) / np.prod([np.maximum(n, eps) for n in lengths], 0)


def _cosine_embedding(
    x: Array, other: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    only_if(np.shape(x) == np.shape(other))  # lengths are those before broadcasting
    cosine = _cosine(x, other, -1, 1e-30)
    losses = np.where(
        target == 1, 1 - cosine, np.where(target == -1, np.maximum(0, cosine - margin), 0)
    )
    return _reduced(losses, reduction)


def _distance(
    x: Array, other: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return vector_norm(x - other + eps, p, -1, keepdim)


def _triplet(
    x: Array,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    near, far = _distance(x, positive, p, eps), _distance(x, negative, p, eps)
    far = np.minimum(far, _distance(positive, negative, p, eps)) if swap else far
    return _reduced(np.maximum(0, near - far + margin), reduction)


def _of_pairs(x: Array, p: float = 2.0) -> Any:
    only_if(x.ndim == 2)
    rows, columns = np.triu_indices(len(x), 1)
    return vector_norm(x[rows] - x[columns], p, -1)


def _of_all_pairs(x: Array, other: Array, p: float = 2.0) -> Any:
    return vector_norm(x[..., :, None, :] - other[..., None, :, :], p, -1)


def _of_classes(
    logs: Array,
    target: Array,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Of indices of classes, which are on the last of two axes; NaN for one that is no class."""
    only_if(logs.ndim == 2 and target.ndim == 1)
    classes, count = as_integers(target), logs.shape[1]
    right = -logs[np.arange(len(logs)), np.clip(classes, 0, count - 1)]
    right = np.where((classes >= 0) & (classes < count), right, np.nan)
    losses = (1 - label_smoothing) * right - label_smoothing * logs.mean(-1)
    counted = target != ignore_index
    losses = np.where(counted, losses, 0)
    return losses.sum() / counted.sum() if reduction == "mean" else _reduced(losses, reduction)


def _log_softmax(x: Array) -> Array:
    return np.asarray(x - np.logaddexp.reduce(x, -1, keepdims=True))


def _cross_entropy(x: Array, target: Array, **words: Any) -> Any:
    return _of_classes(_log_softmax(x), target, **words)


def _sparse_cross_entropy(x: Array, target: Array, ignore_index: int = -1, **words: Any) -> Any:
    return _cross_entropy(x, target, ignore_index=ignore_index, **words)


# -- normalisation ---------------------------------------------------------------------------------


def _standard(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt(np.square(centred).mean(axes, keepdims=True) + eps))


def _on_channels(x: Array, numbers: Any) -> Any:
    """One number for each channel, on axis 1."""
    only_if(x.ndim > 1 and np.size(numbers) == x.shape[1])
    return np.reshape(numbers, (1, -1) + (1,) * (x.ndim - 2))


def _scaled(x: Array, weight: Any, bias: Any = None) -> Any:
    scaled = x if weight is None else x * _on_channels(x, weight)
    return scaled if bias is None else scaled + _on_channels(x, bias)


def _batch_norm(
    x: Array,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    eps: float = 1e-5,
) -> Any:
    if training:
        only_if(mean is None and var is None and x.ndim > 1)
        return _scaled(_standard(x, (0, *range(2, x.ndim)), eps), weight, bias)
    scale = 1 / np.sqrt(_on_channels(x, var) + eps)
    return _scaled((x - _on_channels(x, mean)) * scale, weight, bias)


def _batchnorm(x: Array, weight: Any, bias: Any, mean: Any, invstd: Any) -> Any:
    return _scaled((x - _on_channels(x, mean)) * _on_channels(x, invstd), weight, bias)


def _group_norm(
    x: Array, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    parts = x.reshape(x.shape[0], groups, -1)
    return _scaled(_standard(parts, (-1,), eps).reshape(x.shape), weight, bias)


def _instance_norm(x: Array, use_input_stats: bool = True, eps: float = 1e-5) -> Any:
    only_if(use_input_stats and x.ndim > 2)
    return _standard(x, tuple(range(2, x.ndim)), eps)


def _rmsnorm(x: Array, axis: Any = -1, eps: float = 1e-6) -> Any:
    return x / np.sqrt(np.square(x).mean(axis, keepdims=True) + eps)


def _rms_norm(x: Array, normalized_shape: Any = None, eps: float = 1e-6) -> Any:
    count = 1 if normalized_shape is None else len(normalized_shape)
    return _rmsnorm(x, tuple(range(x.ndim - count, x.ndim)), eps)


def _local_response(
    x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    edges = [(0, 0), (size // 2, (size - 1) // 2)] + [(0, 0)] * (x.ndim - 2)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(np.square(x), edges), size, 1)
    base = k + alpha * around.mean(-1)
    only_if(np.all(base > 0.1))
    return x / base**beta


def _normalize(x: Array, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    norm = vector_norm(x, p, dim, True)
    only_if(np.all((norm == 0) | (norm > 1e-2)))
    return x / np.maximum(norm, eps)


def _renorm(x: Array, p: float, dim: int, maxnorm: float) -> Any:
    others = tuple(axis for axis in range(x.ndim) if axis != dim % x.ndim)
    norm = vector_norm(x, p, others, True)
    return x * np.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1)


# -- pooling and sizes -----------------------------------------------------------------------------


def _adaptive(rank: int, function: Function) -> Function:
    """Of parts from floor(i * n / parts) to ceil((i + 1) * n / parts)."""

    def pool(x: Array, output_size: Any) -> Any:
        only_if(x.ndim >= rank and x.size)
        for axis, parts in zip(range(-rank, 0), pairs(output_size, rank), strict=True):
            size = x.shape[axis]
            ends = [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]
            x = np.stack([function(np.take(x, range(*end), axis), axis) for end in ends], axis)
        return x

    return pool


def _lp_pool(rank: int) -> Function:
    def pool(x: Array, norm_type: float, kernel_size: Any, stride: Any = None) -> Any:
        only_if(x.ndim == rank + 2)
        found = windows(x, kernel_size, kernel_size if stride is None else stride)
        return (found**norm_type).sum(tuple(range(-rank, 0))) ** (1 / norm_type)

    return pool


def _nearest(x: Array, scale_factor: Any = None, size: Any = None, mode: str = "nearest") -> Any:
    only_if(mode == "nearest" and x.ndim > 2 and scale_factor in (None, 0.5, 1, 2, 3))
    only_if((size is None) != (scale_factor is None) and isinstance(size, int | None))
    for axis in range(2, x.ndim):
        new = size if scale_factor is None else int(x.shape[axis] * scale_factor)
        only_if(scale_factor is not None or new % x.shape[axis] == 0)
        factor = new / x.shape[axis] if scale_factor is None else scale_factor
        x = np.take(x, [int(place / factor) for place in range(new)], axis)
    return x


def _between(
    x: Array,
    scale_factor: Any = None,
    size: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
) -> Any:
    """Elements in between are means of the two beside them, weighted by how near these are."""
    if mode == "nearest":
        return _nearest(x, scale_factor, size)
    only_if(mode in ("linear", "bilinear", "trilinear") and size is None and x.ndim > 2)
    only_if(not isinstance(scale_factor, tuple | list) and not recompute_scale_factor)
    for axis in range(2, x.ndim):
        count = x.shape[axis]
        new = int(count * scale_factor)
        places = (np.arange(new) + 0.5) / scale_factor - 0.5
        if align_corners:
            places = np.arange(new) * ((count - 1) / (new - 1) if new > 1 else 0.0)
        places = places.clip(0, count - 1)
        low = np.floor(places).astype(int)
        near = (places - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        high = np.minimum(low + 1, count - 1)
        x = np.take(x, low, axis) * (1 - near) + np.take(x, high, axis) * near
    return x


def _bilinear(x: Array, scale_factor: Any = None, size: Any = None) -> Any:
    only_if(x.ndim == 4)
    return _between(x, scale_factor, size, "bilinear", True)


# -- products --------------------------------------------------------------------------------------


def _conv_transpose(
    x: Array,
    weight: Array,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Each element lays the filters of its channel over the result."""
    rank = x.ndim - 2
    stride, padding, more, dilation = (
        pairs(n, rank) for n in (stride, padding, output_padding, dilation)
    )
    taps = weight.shape[2:]
    sizes = [
        (n - 1) * s + d * (k - 1) + 1 + o
        for n, s, d, k, o in zip(x.shape[2:], stride, dilation, taps, more, strict=True)
    ]
    channels, count = weight.shape[1], x.shape[1] // groups
    out = np.zeros((x.shape[0], channels * groups, *sizes))
    for group in range(groups):
        own = slice(group * count, (group + 1) * count)
        theirs = slice(group * channels, (group + 1) * channels)
        for tap in np.ndindex(taps):
            reached = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilation, x.shape[2:], stride, strict=True)
            )
            part = np.tensordot(x[:, own], weight[(own, slice(None), *tap)], ((1,), (0,)))
            out[(slice(None), theirs, *reached)] += np.moveaxis(part, -1, 1)
    cut = tuple(slice(p, n - p) for p, n in zip(padding, sizes, strict=True))
    return _scaled(out[(slice(None), slice(None), *cut)], None, bias)


def _linear(x: Array, weight: Array, bias: Any = None) -> Any:
    found = x * weight if weight.ndim == 1 else x @ weight
    return found if bias is None else found + bias


def _attention(
    x: Array,
    key: Array,
    value: Array,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    scale = 1 / math.sqrt(x.shape[-1]) if scale is None else scale
    scores = x @ np.swapaxes(key, -1, -2) * scale
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        only_if(attn_mask.dtype != np.bool_)
        scores = scores + attn_mask
    largest = float(np.abs(scores[np.isfinite(scores)]).max(initial=1))
    return Scaled(softmax(scores) @ value, largest * np.abs(value).max(initial=1))


def _glu(x: Array, dim: int = -1) -> Any:
    only_if(x.shape[dim] % 2 == 0)
    half, gate = np.split(x, 2, dim)
    return half * sigmoid(gate)


# -- averages and integrals ------------------------------------------------------------------------


def _average(x: Array, axis: Any = None, weights: Any = None, keepdim: bool = False) -> Any:
    axis = axes_of(axis)
    weights = np.ones(x.shape) if weights is None else weights
    only_if(np.shape(weights) == x.shape)
    whole = weights.sum(axis, keepdims=keepdim)
    only_if(np.all((whole == 0) | (np.abs(whole) > 0.1)))
    return (x * weights).sum(axis, keepdims=keepdim) / whole


def _cov(x: Array, correction: int = 1) -> Any:
    only_if(x.ndim <= 2 and x.shape[-1:] > (correction,))
    return np.cov(x, ddof=correction)


def _corrcoef(x: Array) -> Any:
    only_if(1 <= x.ndim <= 2 and x.size and x.var(-1).min() > 1e-2)
    return np.corrcoef(x)


def _trapezoid(x: Array, dx: float = 1, axis: int = -1) -> Any:
    heights = np.moveaxis(x, axis, -1)
    return (heights[..., 1:] + heights[..., :-1]).sum(-1) * dx / 2


def _areas(x: Array, dx: float = 1, axis: int = -1) -> Any:
    heights = np.moveaxis(x, axis, -1)
    found = (heights[..., 1:] + heights[..., :-1]).cumsum(-1) * dx / 2
    return np.moveaxis(found, -1, axis)


def _with_mean(power: float) -> Function:
    def spread_and_mean(
        x: Array, axis: Any = None, keepdim: bool = False, correction: int = 1
    ) -> Any:
        axis = axes_of(axis)
        spread = np.var(x, axis, ddof=correction, keepdims=keepdim) ** power
        return spread, x.mean(axis, keepdims=keepdim)

    return spread_and_mean


def _summed_to(x: Array, *size: Any) -> Any:
    sizes = size[0] if len(size) == 1 and isinstance(size[0], tuple | list) else size
    front = x.ndim - len(sizes)
    ones = [n for n, wanted in enumerate(sizes, front) if wanted == 1]
    return x.sum((*range(front), *ones), keepdims=True).reshape(sizes)


LAYERS: Final[Mapping[str, Function]] = {
    **{name: _smooth_l1 for name in ("smooth_l1", "smooth_l1_loss")},
    **{name: _huber for name in ("huber", "huber_loss")},
    "binary_cross_entropy": _surprise,
    "binary_crossentropy": lambda x, target, **words: _surprise(x, target, **words),
    "binary_cross_entropy_with_logits": _surprise_of_scores,
    "binary_crossentropy_logits": lambda x, target, **words: _surprise_of_scores(
        x, target, **words
    ),
    "multilabel_soft_margin_loss": _multilabel_soft_margin,
    "kl_div": _kl_div,
    "poisson_nll_loss": _poisson,
    "gaussian_nll_loss": _gaussian,
    "hinge_embedding_loss": _hinge,
    "margin_ranking_loss": _ranking,
    "soft_margin_loss": lambda x, target, reduction="mean": _reduced(
        softplus(-x * target), reduction
    ),
    "cosine_similarity": _cosine,
    "cosine_embedding_loss": _cosine_embedding,
    "pairwise_distance": _distance,
    "triplet_margin_loss": _triplet,
    "pdist": _of_pairs,
    "cdist": _of_all_pairs,
    "nll_loss": _of_classes,
    "cross_entropy": _cross_entropy,
    "sparse_categorical_crossentropy": _sparse_cross_entropy,
    "batch_norm": _batch_norm,
    "batchnorm": _batchnorm,
    **{name: _group_norm for name in ("group_norm", "groupnorm")},
    **{name: _instance_norm for name in ("instance_norm", "instancenorm")},
    "rmsnorm": _rmsnorm,
    "rms_norm": _rms_norm,
    "local_response_norm": _local_response,
    **{name: _between for name in ("interpolate", "upsample")},
    "upsample_bilinear": _bilinear,
    "normalize": _normalize,
    "renorm": _renorm,
    **{f"adaptive_avg_pool{n}d": _adaptive(n, np.mean) for n in (1, 2, 3)},
    **{f"lp_pool{n}d": _lp_pool(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _conv_transpose for n in (1, 2, 3)},
    "linear": _linear,
    "scaled_dot_product_attention": _attention,
    "glu": _glu,
    "average": _average,
    "cov": _cov,
    "corrcoef": _corrcoef,
    **{name: _trapezoid for name in ("trapezoid", "trapz")},
    "cumulative_trapezoid": _areas,
    "std_mean": _with_mean(0.5),
    "var_mean": _with_mean(1.0),
    "sum_to_size": _summed_to,
}
"""Functions of floats."""
SIZES: Final[Mapping[str, Function]] = {
    **{f"adaptive_max_pool{n}d": _adaptive(n, np.max) for n in (1, 2, 3)},
    "upsample_nearest": _nearest,
}
"""Functions that give operands' elements."""
