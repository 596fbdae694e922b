"""Normalisation: over rows, channels, groups of channels, or batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ferrule.ir.dtype import promote
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import float_value
from ferrule.tensor.math.functions import in_float32
from ferrule.tensor.notes import note
from ferrule.tensor.reduce import rowwise

# -- rows ----------------------------------------------------------------------------------------


@method
def layernorm(self: Tensor, axis: int | Sequence[int] = -1, eps: float = 1e-5) -> Tensor:
    """Mean 0 and variance 1 along some axes.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
    [-1.0, 1.0]
    """
    axes = self._axes(axis, "layernorm")
    return self._wrap(rowwise.layernorm(float_value(self), axes, eps))


@method
def layer_norm(
    self: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`layernorm` of the last axes, whose sizes are given, times a weight, plus a bias.

    Raises `ShapeError` if the last axes, the weight or the bias are of other sizes.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 3.0]).layer_norm(2, Tensor([2.0, 1.0]), eps=0).tolist()
    [-2.0, 1.0]
    """
    shape = _last_sizes(self, normalized_shape, "layer_norm")
    axes = tuple(range(-len(shape), 0))
    result = _scaled(self, lambda x: x.layernorm(axes, eps), weight, bias, shape, "layer_norm")
    note("layer_norm", [self, weight, bias], result, (len(shape), eps))
    return result


@method
def rmsnorm(self: Tensor, axis: int | Sequence[int] = -1, eps: float = 1e-6) -> Tensor:
    """Divided by the root of the mean square along some axes.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([3.0, -3.0]).rmsnorm(eps=0).tolist()
    [1.0, -1.0]
    """
    axes = self._axes(axis, "rmsnorm")
    return self._wrap(rowwise.rms_norm(float_value(self), axes, eps))


@method
def rms_norm(
    self: Tensor,
    normalized_shape: int | Sequence[int] | None = None,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """`rmsnorm` of the last axes, whose sizes are given, times a weight.

    Instead of the sizes, axes may be given as `axis`; the last one if neither is. `eps` is that of
    the type unless given, as PyTorch has it; 1e-6 where no sizes are given. Raises `ShapeError` if
    the last axes or the weight are of other sizes, or an axis is out of range, and ValueError for
    both sizes and axes.

    >>> from ferrule import Tensor
    >>> Tensor([3.0, -3.0]).rms_norm((2,), Tensor([1.0, 2.0]), eps=0).tolist()
    [1.0, -2.0]
    """
    if normalized_shape is None:
        axes = self._axes(-1 if axis is None else axis, "rms_norm")
        least = 1e-6
    elif axis is not None:
        raise ValueError("[rms_norm] give either normalized_shape or axis, not both")
    else:
        rank = len(self._shape)
        axes = tuple(range(rank - len(_last_sizes(self, normalized_shape, "rms_norm")), rank))
        least = math.ldexp(1.0, -float_value(self).dtype.mantissa_bits)
    shape = [size if i in axes else 1 for i, size in enumerate(self._shape)]
    chosen = least if eps is None else eps
    return _scaled(self, lambda x: x.rmsnorm(axes, chosen), weight, None, shape, "rms_norm")


def _last_sizes(self: Tensor, wanted: int | Sequence[int], what: str) -> tuple[int, ...]:
    shape = (wanted,) if isinstance(wanted, int) else tuple(wanted)
    if not shape or self._shape[-len(shape) :] != shape:
        raise ShapeError(
            f"[{what}] normalized_shape {shape} must be the last sizes of shape {self._shape}"
        )
    return shape


def _scaled(
    self: Tensor,
    function: Callable[[Tensor], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[sint],
    what: str,
) -> Tensor:
    """A function times a weight, plus a bias, of a shape; rounded once."""
    value = float_value(self)
    given = [part for part in (weight, bias) if part is not None]
    dtype = promote(value.dtype, *[part.dtype for part in given])
    result = function(self._wrap(rowwise.accumulating(value.cast(dtype))))
    if weight is not None:
        result = result * _along(weight, shape, what)
    if bias is not None:
        result = result + _along(bias, shape, what)
    return result.cast(dtype)


def _along(tensor: Tensor, shape: Sequence[sint], what: str) -> Tensor:
    """Another tensor, reshaped to vary along some axes only."""
    if tensor.numel() != prod_sint(shape):
        raise ShapeError(
            f"[{what}] a weight, bias or statistic of shape {tensor._shape} does not fit "
            f"{tuple(shape)}; it is one number for each"
        )
    return tensor.reshape(shape)


def _channels(self: Tensor, what: str) -> list[sint]:
    """The shape of what varies along axis 1 only."""
    if not self._shape:
        raise ShapeError(f"[{what}] a tensor without axes has no channels")
    if len(self._shape) == 1:
        return [self._shape[0]]
    return [1, self._shape[1], *[1] * (len(self._shape) - 2)]


# -- batches -------------------------------------------------------------------------------------


@method
def batchnorm(
    self: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    axis: int | Sequence[int] = 1,
) -> Tensor:
    """(self - mean) * invstd * weight + bias, where these vary along `axis` only.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1.0, 2.0]])
    >>> x.batchnorm(None, None, mean=Tensor([1.0, 1.0]), invstd=Tensor([2.0, 2.0])).tolist()
    [[0.0, 2.0]]
    """
    axes = self._axes(axis, "batchnorm")
    shape = [size if place in axes else 1 for place, size in enumerate(self._shape)]

    result = self - _along(mean, shape, "batchnorm")
    if weight is not None:
        result = result * _along(weight, shape, "batchnorm")
    # invstd may be of the full rank already, as a mean with keepdim is.
    factor = _along(invstd, shape, "batchnorm") if invstd.ndim == len(axes) else invstd
    result = result * factor
    return result if bias is None else result + _along(bias, shape, "batchnorm")


@method
def batch_norm(
    self: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Channels, axis 1, less their mean, over the root of variance + eps; weight and bias.

    While `training`, or without running statistics, mean and variance are those of the batch,
    and the running ones are moved towards them by `momentum`, in place. Else the running ones
    are used.

    Raises `ValueError` for training with a single element in each channel.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1.0], [3.0]])
    >>> x.batch_norm(None, None, training=True, eps=0).tolist()
    [[-1.0], [1.0]]
    """
    shape = _channels(self, "batch_norm")
    if not training and running_mean is not None and running_var is not None:
        return _with_statistics(self, running_mean, running_var, weight, bias, eps, "batch_norm")
    axes = tuple(axis for axis in range(len(self._shape)) if axis != len(shape[:2]) - 1)
    if prod_sint([self._shape[axis] for axis in axes]) == 1 and 0 not in shape:
        raise ValueError(
            f"[batch_norm] shape {self._shape} has one element in each channel, whose variance "
            "is 0; give a larger batch, or training=False"
        )
    _track(self, running_mean, running_var, axes, momentum)
    return _scaled(self, lambda x: x.layernorm(axes, eps), weight, bias, shape, "batch_norm")


def _with_statistics(
    self: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    what: str,
) -> Tensor:
    shape = _channels(self, what)
    scale = (_along(variance, shape, what) + eps).rsqrt()
    centre = _along(mean, shape, what)
    result = _scaled(self, lambda x: (x - centre) * scale, weight, bias, shape, what)
    note("batch_norm", [self, mean, variance, weight, bias], result, eps)
    return result


def _track(
    self: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    axes: Sequence[int],
    momentum: float,
) -> None:
    """Move running statistics towards those along the axes, averaged over all but channels."""
    source = self.detach()
    found = source.var_mean(axes)[::-1]
    for running, new in zip((running_mean, running_var), found, strict=True):
        if running is not None:
            own = new if new.ndim == 1 else new.mean(0)
            old = self._wrap(running._read().detach())
            running.assign((old * (1 - momentum) + own * momentum).cast(running.dtype))


@method
def instance_norm(
    self: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`layernorm` of each channel of each sample: (batch, channels, …) over the last axes.

    Running statistics are moved towards the mean of those of the samples, in place; without
    `use_input_stats` they are used instead.

    >>> from ferrule import Tensor
    >>> Tensor([[[1.0, 3.0], [2.0, 2.0]]]).instance_norm(eps=1e-30).tolist()
    [[[-1.0, 1.0], [0.0, 0.0]]]
    """
    if len(self._shape) < 3:
        raise ShapeError(f"[instance_norm] shape {self._shape} is not (batch, channels, …)")
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ValueError(
                "[instance_norm] without use_input_stats it needs running_mean and running_var"
            )
        return _with_statistics(self, running_mean, running_var, weight, bias, eps, "instance_norm")
    axes = tuple(range(2, len(self._shape)))
    if prod_sint(self._shape[2:]) == 1:
        raise ValueError(
            f"[instance_norm] shape {self._shape} has one element in each channel, whose "
            "variance is 0"
        )
    _track(self, running_mean, running_var, axes, momentum)
    shape = _channels(self, "instance_norm")
    return _scaled(self, lambda x: x.layernorm(axes, eps), weight, bias, shape, "instance_norm")


@method
def group_norm(
    self: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`layernorm` of groups of channels: (batch, channels, …), each group with all behind it.

    `weight` and `bias` are one number for each channel.

    Raises `ShapeError` if the channels do not divide by the groups.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0, 3.0, 5.0, 5.0]]).group_norm(2, eps=1e-30).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]
    """
    if len(self._shape) < 2 or num_groups < 1 or self._shape[1] % num_groups:
        raise ShapeError(
            f"[group_norm] the channels, axis 1 of shape {self._shape}, must divide by "
            f"{num_groups} groups"
        )
    rest = prod_sint([self._shape[1] // num_groups, *self._shape[2:]])
    groups = (self._shape[0], num_groups, rest)

    def normalised(x: Tensor) -> Tensor:
        return x.reshape(groups).layernorm(-1, eps).reshape(self._shape)

    return _scaled(self, normalised, weight, bias, _channels(self, "group_norm"), "group_norm")


# -- lengths -------------------------------------------------------------------------------------


@method
def local_response_norm(
    self: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Over (k + alpha * mean square of `size` channels around) ** beta; channels are axis 1.

    >>> from ferrule import Tensor
    >>> Tensor([[[2.0], [1.0]]]).local_response_norm(1, alpha=1.0, beta=1.0).tolist()
    [[[0.4000000059604645], [0.5]]]
    """
    if size < 1 or len(self._shape) < 3:
        raise ShapeError(
            f"[local_response_norm] {size} channels of shape {self._shape}: it needs at least "
            "1, and (batch, channels, …)"
        )
    around = [(0, 0), (size // 2, (size - 1) // 2)] + [(0, 0)] * (len(self._shape) - 2)

    def normalised(x: Tensor) -> Tensor:
        squares = x.square()._read().pad(around).window(1, size)
        total = squares.sum((len(self._shape),)).reshape(self._shape)
        return x / (x._wrap(total) * (alpha / size) + k).pow(beta)

    return in_float32(self, normalised)


@method
def normalize(
    self: Tensor, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12
) -> Tensor:
    """Divided by the p-norm along an axis, or by `eps` if that is larger.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[3.0, 4.0]]).normalize().mul(5).tolist()
    [[3.0, 4.0]]
    """
    return in_float32(self, lambda x: x / x.norm(p, dim, True).clamp(min=eps))


# -- names that are written together, too --------------------------------------------------------
