"""Normalisations: by batch, instance, group, layer, and root mean square."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from numbers import Integral
from typing import final

from ferrule.autograd import note_evaluation
from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.functions import layer
from ferrule.nn.module import Layer
from ferrule.nn.parameters import check_counts, check_number, check_sizes, constant, statistic
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.notes import note


def _per_channel(values: Tensor, rank: int) -> Tensor:
    """(C,) as (1, C, 1, ...), to broadcast against (N, C, ...)."""
    return values.reshape(1, -1, *(1,) * (rank - 2))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x * weight + bias for each channel, if there are a weight and a bias."""
    if weight is not None:
        x = x * _per_channel(weight, x.ndim)
    return x if bias is None else x + _per_channel(bias, x.ndim)


class _ByChannel(Layer, ABC):
    """The base of layers that normalise channels, with statistics that may be tracked."""

    _shown = "num_features eps= momentum= affine= track_running_stats="

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        dtype: DTypeLike | None,
        device: str | None,
    ) -> None:
        check_sizes(self, num_features=num_features)
        check_number(self, "eps", eps)
        if momentum is not None:
            check_number(self, "momentum", momentum)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = constant((num_features,), 1.0, dtype, device) if affine else None
        self.bias = constant((num_features,), 0.0, dtype, device) if affine else None
        self.track_running_stats = track_running_stats
        if track_running_stats:
            self.register_buffer("running_mean", statistic((num_features,), 0.0, dtype, device))
            self.register_buffer("running_var", statistic((num_features,), 1.0, dtype, device))
            self.register_buffer("num_batches_tracked", statistic((), 0, dtypes.int64, device))

    @abstractmethod
    def _axes(self, x: Tensor) -> tuple[int, ...]:
        """The axes that statistics are taken over."""

    @property
    def affine(self) -> bool:
        """True if there are a weight and a bias."""
        return self.weight is not None

    @checks_arguments
    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: expected (N, {self.num_features}, ...), got"
                f" {tuple(x.shape)}"
            )
        if not self.track_running_stats or Tensor.training:
            mean, variance = self._own_statistics(x)
        else:
            mean = _per_channel(self.running_mean, x.ndim)
            variance = _per_channel(self.running_var, x.ndim)
        out = (x - mean) * (variance + self.eps).rsqrt()
        out = _affine(out, self.weight, self.bias)
        if self.track_running_stats and not Tensor.training:
            statistics = (self.running_mean, self.running_var)
            note("batch_norm", [x, *statistics, self.weight, self.bias], out, self.eps)
        if self.track_running_stats:
            note_evaluation(out._read(), "batch normalisation")
        return out

    def _own_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = self._axes(x)
        mean = x.mean(axis=axes, keepdim=True)
        variance = (x - mean).square().mean(axis=axes, keepdim=True)
        if self.track_running_stats:
            count = prod(x.shape[axis] for axis in axes)
            # The running variance estimates that of the data, hence the n - 1.
            sample_variance = variance.detach() * (count / max(count - 1, 1))
            self._track(self._averaged(mean.detach()), self._averaged(sample_variance))
        return mean, variance

    @staticmethod
    def _averaged(statistics: Tensor) -> Tensor:
        """(N or 1, C, 1, ...) as (C,)."""
        return statistics.flatten(1).mean(axis=0) if statistics.shape[0] != 1 else statistics

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        batches = self.num_batches_tracked + 1
        # Without a momentum all batches count the same.
        part = 1 / batches if self.momentum is None else self.momentum
        for average, value in ((self.running_mean, mean), (self.running_var, variance)):
            moved = average * (1 - part) + value.reshape(self.num_features) * part
            average.assign(moved.cast(average.dtype))
        self.num_batches_tracked.assign(batches)


@final
class BatchNorm(_ByChannel):
    """Normalises each channel of (N, C, ...) over all other axes.

    While `Tensor.training` is true it uses the batch's own mean and variance and updates
    `running_mean` and `running_var`, by `momentum` of the new (all batches count the same if that
    is None); otherwise it uses those.

    Raises `ShapeError` for an input of another number of channels.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import BatchNorm
    >>> BatchNorm(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype, device)

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        return tuple(axis for axis in range(x.ndim) if axis != 1)


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


@final
class InstanceNorm(_ByChannel):
    """Normalises each channel of each sample of (N, C, ...) over all other axes.

    With `track_running_stats` the averages over samples are tracked while `Tensor.training`, and
    used otherwise. Ulyanov, Vedaldi, Lempitsky, "Instance Normalization" (2016).

    Raises `ShapeError` for an input of another number of channels.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import InstanceNorm
    >>> InstanceNorm(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype, device)

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        if x.ndim < 3:
            raise ShapeError(
                f"InstanceNorm: {tuple(x.shape)} has no axes after the channels to normalise over"
            )
        return tuple(range(2, x.ndim))


InstanceNorm1d = InstanceNorm2d = InstanceNorm3d = InstanceNorm


def _last_axes(layer: object, shape: tuple[int, ...], x: Tensor) -> tuple[int, ...]:
    """The axes of `shape` at the end of `x`; raises `ShapeError` where they differ."""
    if tuple(x.shape[-len(shape) :]) != shape:
        raise ShapeError(
            f"{type(layer).__name__}: expected (..., {', '.join(map(str, shape))}), got"
            f" {tuple(x.shape)}"
        )
    return tuple(range(-len(shape), 0))


def _as_shape(layer: object, sizes: int | Sequence[int]) -> tuple[int, ...]:
    given: object = sizes
    if isinstance(given, str) or not isinstance(given, Integral | Sequence):
        kind = type(layer).__name__
        raise TypeError(
            f"{kind}: normalized_shape is {sizes!r}; it must be a whole number, or several"
        )
    shape = tuple(sizes) if isinstance(sizes, Sequence) else (sizes,)
    for size in shape:
        check_sizes(layer, normalized_shape=size)
    return shape


@final
class LayerNorm(Layer):
    """Normalises over the last axes, those of `normalized_shape`.

    Raises `ShapeError` if the last axes of the input differ from `normalized_shape`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import LayerNorm
    >>> LayerNorm(8)(Tensor.ones(2, 8)).shape
    (2, 8)
    """

    _shown = "normalized_shape eps= elementwise_affine="

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        shape = self.normalized_shape = _as_shape(self, normalized_shape)
        self.eps = eps
        self.weight = constant(shape, 1.0, dtype, device) if elementwise_affine else None
        self.bias = constant(shape, 0.0, dtype, device) if elementwise_affine and bias else None

    @property
    def elementwise_affine(self) -> bool:
        """True if there is a weight."""
        return self.weight is not None

    @checks_arguments
    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        axes = _last_axes(self, self.normalized_shape, x)
        out = x.layernorm(axis=axes, eps=self.eps)
        if self.weight is not None:
            out = out * self.weight
        if self.bias is not None:
            out = out + self.bias
        note("layer_norm", [x, self.weight, self.bias], out, (len(axes), self.eps))
        return out


@final
class GroupNorm(Layer):
    """Normalises each of `num_groups` groups of channels of (N, C, ...).

    Raises `ShapeError` for channels that do not divide into the groups, or an input of other
    channels.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import GroupNorm
    >>> GroupNorm(2, 6)(Tensor.ones(1, 6, 4, 4)).shape
    (1, 6, 4, 4)
    """

    _shown = "num_groups num_channels eps= affine="

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        check_counts(self, num_groups=num_groups)
        check_sizes(self, num_channels=num_channels)
        if num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = constant((num_channels,), 1.0, dtype, device) if affine else None
        self.bias = constant((num_channels,), 0.0, dtype, device) if affine else None

    @property
    def affine(self) -> bool:
        """True if there are a weight and a bias."""
        return self.weight is not None

    @checks_arguments
    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: expected (N, {self.num_channels}, ...), got {tuple(x.shape)}"
            )
        groups = x.reshape(x.shape[0], self.num_groups, -1)
        out = groups.layernorm(eps=self.eps).reshape(*x.shape)
        return _affine(out, self.weight, self.bias)


@final
class RMSNorm(Layer):
    """Divides by the root of the mean square over the last axes, those of `normalized_shape`.

    `eps` is added to the mean square; None is the spacing of the input's type at 1.

    Raises `ShapeError` if the last axes of the input differ from `normalized_shape`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import RMSNorm
    >>> RMSNorm(4)(Tensor.ones(2, 4)).shape
    (2, 4)
    """

    _shown = "normalized_shape eps= elementwise_affine="

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        shape = self.normalized_shape = _as_shape(self, normalized_shape)
        self.eps = eps
        self.weight = constant(shape, 1.0, dtype, device) if elementwise_affine else None

    @property
    def elementwise_affine(self) -> bool:
        """True if there is a weight."""
        return self.weight is not None

    @checks_arguments
    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        axes = _last_axes(self, self.normalized_shape, x)
        eps = 2.0**-x.dtype.mantissa_bits if self.eps is None else self.eps
        # Squares of halves overflow early, so the mean is taken in float32.
        wide = x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x
        out = wide.rmsnorm(axes, eps)
        return (out if self.weight is None else out * self.weight).cast(x.dtype)


@layer(Tensor.local_response_norm, "size alpha= beta= k=")
def LocalResponseNorm(size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
    """Each element over (k + alpha * mean square of `size` neighbouring channels) ** beta.

    >>> from ferrule import Tensor, nn
    >>> nn.LocalResponseNorm(2)(Tensor.ones(1, 4, 3)).shape
    (1, 4, 3)
    """
