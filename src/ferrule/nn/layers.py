"""Layers: plain objects that hold tensors and are called on tensors.

There is no base class. Whatever has tensors as attributes is a module to `nn.state`, and whatever
can be called on a tensor fits into a `Sequential`. Names, shapes and initial values are PyTorch's,
so that its checkpoints load.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import final

import numpy as np

from ferrule.dtype import DType, dtypes
from ferrule.shape.view import ShapeError
from ferrule.tensor import Tensor


def _uniform(
    shape: tuple[int, ...], bound: float, dtype: DType | None, device: str | None
) -> Tensor:
    values = Tensor.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device)
    return values.requires_grad_()


def _filled(
    shape: tuple[int, ...], value: float, dtype: DType | None, device: str | None
) -> Tensor:
    """A tensor with memory of its own; copied from the host, it needs no kernel."""
    kind = dtypes.default_float if dtype is None else dtype
    return Tensor(np.full(shape, value, kind.np), device=device)


def _constant(
    shape: tuple[int, ...], value: float, dtype: DType | None, device: str | None
) -> Tensor:
    """A parameter that starts with the same value everywhere."""
    return _filled(shape, value, dtype, device).requires_grad_()


def _statistic(
    shape: tuple[int, ...], value: float, dtype: DType | None, device: str | None
) -> Tensor:
    """A tensor that is saved with the parameters, and that optimisers leave alone."""
    return _filled(shape, value, dtype, device).requires_grad_(False)


def _pair(name: str, value: int | tuple[int, int]) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2:
        raise ShapeError(f"{name}: expected an int or two, got {value!r}")
    return pair


@final
class Linear:
    """`x @ weight.T + bias`: (..., in_features) to (..., out_features).

    `weight` is (out_features, in_features), `bias` (out_features,) or None.

    >>> Linear(3, 2)(Tensor.ones(4, 3)).shape
    (4, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        bound = 1 / sqrt(in_features)
        self.weight = _uniform((out_features, in_features), bound, dtype, device)
        self.bias = _uniform((out_features,), bound, dtype, device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        return x.linear(self.weight.transpose(), self.bias)


@final
class Conv2d:
    """A two-dimensional convolution: (N, in_channels, H, W) to (N, out_channels, H', W').

    `weight` is (out_channels, in_channels // groups, kernel height, kernel width).

    >>> Conv2d(3, 8, kernel_size=3, padding=1)(Tensor.ones(1, 3, 5, 5)).shape
    (1, 8, 5, 5)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"Conv2d: {in_channels} and {out_channels} channels do not divide into"
                f" {groups} groups"
            )
        kernel = _pair("Conv2d: kernel_size", kernel_size)
        self.stride = _pair("Conv2d: stride", stride)
        self.padding = _pair("Conv2d: padding", padding)
        self.dilation = _pair("Conv2d: dilation", dilation)
        self.groups = groups
        inputs = in_channels // groups
        bound = 1 / sqrt(inputs * prod(kernel))
        self.weight = _uniform((out_channels, inputs, *kernel), bound, dtype, device)
        self.bias = _uniform((out_channels,), bound, dtype, device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        vertical, horizontal = self.padding
        return x.conv2d(
            self.weight,
            self.bias,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
            padding=(horizontal, horizontal, vertical, vertical),
        )


def _per_channel(values: Tensor, rank: int) -> Tensor:
    """(C,) as (1, C, 1, ...), to broadcast against (N, C, ...)."""
    return values.reshape(1, -1, *(1,) * (rank - 2))


@final
class BatchNorm:
    """Normalises each channel of (N, C, ...) over all other axes.

    While `Tensor.training` is true it uses the batch's own mean and variance and updates
    `running_mean` and `running_var`; otherwise it uses those.

    >>> BatchNorm(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = _constant((num_features,), 1.0, dtype, device) if affine else None
        self.bias = _constant((num_features,), 0.0, dtype, device) if affine else None
        self.track_running_stats = track_running_stats
        if track_running_stats:
            self.running_mean = _statistic((num_features,), 0.0, dtype, device)
            self.running_var = _statistic((num_features,), 1.0, dtype, device)
            self.num_batches_tracked = _statistic((), 0, dtypes.int64, device)

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"BatchNorm: expected (N, {self.num_features}, ...), got {tuple(x.shape)}"
            )
        if Tensor.training or not self.track_running_stats:
            mean, variance = self._batch_statistics(x)
        else:
            mean, variance = self.running_mean, self.running_var
        scale = (variance + self.eps).rsqrt()
        out = (x - _per_channel(mean, x.ndim)) * _per_channel(scale, x.ndim)
        if self.weight is not None:
            out = out * _per_channel(self.weight, x.ndim)
        if self.bias is not None:
            out = out + _per_channel(self.bias, x.ndim)
        return out

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        mean = x.mean(axis=axes)
        variance = (x - _per_channel(mean, x.ndim)).square().mean(axis=axes)
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach(), x)
        return mean, variance

    def _track(self, mean: Tensor, variance: Tensor, x: Tensor) -> None:
        count = prod(x.shape) // self.num_features
        # The running variance estimates that of the data, hence the n - 1.
        sample_variance = variance * (count / max(count - 1, 1))
        self._move(self.running_mean, mean)
        self._move(self.running_var, sample_variance)
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)

    def _move(self, average: Tensor, value: Tensor) -> None:
        moved = average * (1 - self.momentum) + value * self.momentum
        average.assign(moved.cast(average.dtype))


BatchNorm2d = BatchNorm


@final
class LayerNorm:
    """Normalises over the last axes, those of `normalized_shape`.

    >>> LayerNorm(8)(Tensor.ones(2, 8)).shape
    (2, 8)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(shape)
        self.axes = tuple(range(-len(self.normalized_shape), 0))
        self.eps = eps
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if elementwise_affine:
            self.weight = _constant(self.normalized_shape, 1.0, dtype, device)
            self.bias = _constant(self.normalized_shape, 0.0, dtype, device)

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        if tuple(x.shape[-len(self.axes) :]) != self.normalized_shape:
            raise ShapeError(
                f"LayerNorm: expected (..., {', '.join(map(str, self.normalized_shape))}), got"
                f" {tuple(x.shape)}"
            )
        out = x.layernorm(axis=self.axes, eps=self.eps)
        if self.weight is None or self.bias is None:
            return out
        return out * self.weight + self.bias


@final
class GroupNorm:
    """Normalises each of `num_groups` groups of channels of (N, C, ...).

    >>> GroupNorm(2, 6)(Tensor.ones(1, 6, 4, 4)).shape
    (1, 6, 4, 4)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        if num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = _constant((num_channels,), 1.0, dtype, device) if affine else None
        self.bias = _constant((num_channels,), 0.0, dtype, device) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: expected (N, {self.num_channels}, ...), got {tuple(x.shape)}"
            )
        groups = x.reshape(x.shape[0], self.num_groups, -1)
        out = groups.layernorm(eps=self.eps).reshape(*x.shape)
        if self.weight is None or self.bias is None:
            return out
        return out * _per_channel(self.weight, x.ndim) + _per_channel(self.bias, x.ndim)


@final
class RMSNorm:
    """Divides by the root of the mean square along the last axis.

    >>> RMSNorm(4)(Tensor.ones(2, 4)).shape
    (2, 4)
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        self.eps = eps
        self.weight = _constant((dim,), 1.0, dtype, device) if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        # Squares of halves overflow early, so the mean is taken in float32.
        wide = x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x
        scale = (wide.square().mean(axis=-1, keepdim=True) + self.eps).rsqrt()
        out = (wide * scale).cast(x.dtype)
        return out if self.weight is None else out * self.weight


@final
class Embedding:
    """One row of `weight`, (vocabulary, width), for each index: (...) to (..., width).

    >>> Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        values = Tensor.randn(num_embeddings, embedding_dim, dtype=dtype, device=device)
        self.weight = values.requires_grad_()

    def __call__(self, indices: Tensor) -> Tensor:
        """The rows at `indices`."""
        return self.weight[indices]


@final
class Dropout:
    """Zeroes elements with probability `p`, and scales the rest up, while `Tensor.training`.

    >>> Dropout(0.5)(Tensor.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        """The layer applied to `x`."""
        return x.dropout(self.p)


@final
class Sequential(list[Callable[[Tensor], Tensor]]):
    """A list of layers or functions, called one after another.

    >>> model = Sequential(Linear(4, 8), Tensor.relu, Linear(8, 2))
    >>> model(Tensor.ones(3, 4)).shape
    (3, 2)
    """

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        super().__init__(layers)

    def __call__(self, x: Tensor) -> Tensor:
        """All layers applied to `x`, in order."""
        for layer in self:
            x = layer(x)
        return x
