"""Normalisation: over rows, channels, groups of channels, or batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

from ferrule.dtype import promote
from ferrule.expr import sint
from ferrule.shape.view import ShapeError, prod_sint
from ferrule.tensor import rowwise
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.resampling import Resampling


class Normalization(Resampling):
    """Mean 0 and variance 1, or length 1, along some axes."""

    __slots__ = ()

    # -- rows ------------------------------------------------------------------------------------

    def layernorm(self, axis: int | Sequence[int] = -1, eps: float = 1e-5) -> Self:
        """Mean 0 and variance 1 along some axes.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        axes = self._axes(axis, "layernorm")
        return self._wrap(rowwise.layernorm(self._float(), axes, eps))

    def layer_norm(
        self,
        normalized_shape: int | Sequence[int],
        weight: TensorBase | None = None,
        bias: TensorBase | None = None,
        eps: float = 1e-5,
    ) -> Self:
        """`layernorm` of the last axes, whose sizes are given, times a weight, plus a bias.

        Raises `ShapeError` if the last axes, the weight or the bias are of other sizes.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 3.0]).layer_norm(2, Tensor([2.0, 1.0]), eps=0).tolist()
        [-2.0, 1.0]
        """
        shape = self._last_sizes(normalized_shape, "layer_norm")
        axes = tuple(range(-len(shape), 0))
        return self._scaled(lambda x: x.layernorm(axes, eps), weight, bias, shape, "layer_norm")

    def rms_norm(
        self,
        normalized_shape: int | Sequence[int] | None = None,
        weight: TensorBase | float | None = None,
        eps: float | None = None,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Self:
        """Divided by the root of the mean square along some axes, and multiplied by a weight.

        The axes are given as `axis`, the last one unless it is; or as PyTorch has it, by the sizes
        of the last axes, and then `eps` is that of the type unless given (else 1e-6). A number or
        a tuple in the first place is taken for axes if these exist and there is no weight.

        >>> from ferrule import Tensor
        >>> Tensor([3.0, -3.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        >>> Tensor([3.0, -3.0]).rms_norm((2,), Tensor([1.0, 2.0]), eps=0).tolist()
        [1.0, -2.0]
        """
        if weight is not None and not isinstance(weight, TensorBase):
            eps, weight = float(weight), None
        wanted = normalized_shape if axis is None else axis
        if weight is None and (axis is not None or self._has_axes(wanted)):
            axes = self._axes(-1 if wanted is None else wanted, "rms_norm")
            small = 1e-6 if eps is None else eps
            return self._wrap(rowwise.rms_norm(self._float(), axes, small))
        if wanted is None:
            wanted = known_size(self._shape[-1], "rms_norm") if self._shape else ()
        shape = self._last_sizes(wanted, "rms_norm")
        last = tuple(range(len(self._shape) - len(shape), len(self._shape)))
        least = math.ldexp(1.0, -self._float().dtype.mantissa_bits) if eps is None else eps
        return self._scaled(
            lambda x: x._wrap(rowwise.rms_norm(x._read(), last, least)),
            weight,
            None,
            shape,
            "rms_norm",
        )

    def _has_axes(self, wanted: int | Sequence[int] | None) -> bool:
        rank = len(self._shape)
        axes = (-1,) if wanted is None else (wanted,) if isinstance(wanted, int) else tuple(wanted)
        return all(-rank <= axis < rank for axis in axes)

    def _last_sizes(self, wanted: int | Sequence[int], what: str) -> tuple[int, ...]:
        shape = (wanted,) if isinstance(wanted, int) else tuple(wanted)
        if not shape or self._shape[-len(shape) :] != shape:
            raise ShapeError(
                f"[{what}] normalized_shape {shape} must be the last sizes of shape {self._shape}"
            )
        return shape

    def _scaled(
        self,
        function: Callable[[Self], Self],
        weight: TensorBase | None,
        bias: TensorBase | None,
        shape: Sequence[sint],
        what: str,
    ) -> Self:
        """A function times a weight, plus a bias, of a shape; rounded once."""
        value = self._float()
        given = [part for part in (weight, bias) if part is not None]
        dtype = promote(value.dtype, *[part.dtype for part in given])
        result = function(self._wrap(rowwise.accumulating(value.cast(dtype))))
        for part in given:
            if prod_sint(part._shape) != prod_sint(shape):
                raise ShapeError(
                    f"[{what}] a weight or bias of shape {part._shape} does not fit {tuple(shape)}"
                )
        if weight is not None:
            result = result * self._along(weight, shape, what)
        if bias is not None:
            result = result + self._along(bias, shape, what)
        return result.cast(dtype)

    def _along(self, tensor: TensorBase, shape: Sequence[sint], what: str) -> Self:
        """Another tensor, reshaped to vary along some axes only."""
        if tensor.numel() != prod_sint(shape):
            raise ShapeError(
                f"[{what}] statistics and weights of shape {self._shape} have "
                f"{prod_sint(shape)} numbers, one for each channel, not {tensor._shape}"
            )
        return self._wrap(tensor._read()).reshape(shape)

    def _channels(self, what: str) -> list[sint]:
        """The shape of what varies along axis 1 only."""
        if not self._shape:
            raise ShapeError(f"[{what}] a tensor without axes has no channels")
        if len(self._shape) == 1:
            return [self._shape[0]]
        return [1, self._shape[1], *[1] * (len(self._shape) - 2)]

    # -- batches ---------------------------------------------------------------------------------

    def batchnorm(
        self,
        weight: TensorBase | None,
        bias: TensorBase | None,
        mean: TensorBase,
        invstd: TensorBase,
        axis: int | Sequence[int] = 1,
    ) -> Self:
        """(self - mean) * invstd * weight + bias, where these vary along `axis` only.

        >>> from ferrule import Tensor
        >>> x = Tensor([[1.0, 2.0]])
        >>> x.batchnorm(None, None, mean=Tensor([1.0, 1.0]), invstd=Tensor([2.0, 2.0])).tolist()
        [[0.0, 2.0]]
        """
        axes = self._axes(axis, "batchnorm")
        shape = [size if place in axes else 1 for place, size in enumerate(self._shape)]

        result = self - self._along(mean, shape, "batchnorm")
        if weight is not None:
            result = result * self._along(weight, shape, "batchnorm")
        # invstd may be of the full rank already, as a mean with keepdim is.
        factor = self._along(invstd, shape, "batchnorm") if invstd.ndim == len(axes) else invstd
        result = result * factor
        return result if bias is None else result + self._along(bias, shape, "batchnorm")

    def batch_norm(
        self,
        running_mean: TensorBase | None,
        running_var: TensorBase | None,
        weight: TensorBase | None = None,
        bias: TensorBase | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Self:
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
        shape = self._channels("batch_norm")
        if not training and running_mean is not None and running_var is not None:
            return self._with_statistics(running_mean, running_var, weight, bias, eps, "batch_norm")
        axes = tuple(axis for axis in range(len(self._shape)) if axis != len(shape[:2]) - 1)
        if prod_sint([self._shape[axis] for axis in axes]) == 1 and 0 not in shape:
            raise ValueError(
                f"[batch_norm] shape {self._shape} has one element in each channel, whose variance "
                "is 0; give a larger batch, or training=False"
            )
        self._track(running_mean, running_var, axes, momentum)
        return self._scaled(lambda x: x.layernorm(axes, eps), weight, bias, shape, "batch_norm")

    def _with_statistics(
        self,
        mean: TensorBase,
        variance: TensorBase,
        weight: TensorBase | None,
        bias: TensorBase | None,
        eps: float,
        what: str,
    ) -> Self:
        shape = self._channels(what)
        scale = (self._along(variance, shape, what) + eps).rsqrt()
        centre = self._along(mean, shape, what)
        return self._scaled(lambda x: (x - centre) * scale, weight, bias, shape, what)

    def _track(
        self,
        running_mean: TensorBase | None,
        running_var: TensorBase | None,
        axes: Sequence[int],
        momentum: float,
    ) -> None:
        """Moves running statistics towards those along the axes; what is left but channels is
        averaged."""
        source = self.detach()
        found = source.var_mean(axes)[::-1]
        for running, new in zip((running_mean, running_var), found, strict=True):
            if running is not None:
                own = new if new.ndim == 1 else new.mean(0)
                old = self._wrap(running._read().detach())
                running.assign((old * (1 - momentum) + own * momentum).cast(running.dtype))

    def instance_norm(
        self,
        running_mean: TensorBase | None = None,
        running_var: TensorBase | None = None,
        weight: TensorBase | None = None,
        bias: TensorBase | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Self:
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
            return self._with_statistics(
                running_mean, running_var, weight, bias, eps, "instance_norm"
            )
        axes = tuple(range(2, len(self._shape)))
        if prod_sint(self._shape[2:]) == 1:
            raise ValueError(
                f"[instance_norm] shape {self._shape} has one element in each channel, whose "
                "variance is 0"
            )
        self._track(running_mean, running_var, axes, momentum)
        shape = self._channels("instance_norm")
        return self._scaled(lambda x: x.layernorm(axes, eps), weight, bias, shape, "instance_norm")

    def group_norm(
        self,
        num_groups: int,
        weight: TensorBase | None = None,
        bias: TensorBase | None = None,
        eps: float = 1e-5,
    ) -> Self:
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

        def normalised(x: Self) -> Self:
            return x.reshape(groups).layernorm(-1, eps).reshape(self._shape)

        return self._scaled(normalised, weight, bias, self._channels("group_norm"), "group_norm")

    # -- lengths ---------------------------------------------------------------------------------

    def local_response_norm(
        self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> Self:
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

        def normalised(x: Self) -> Self:
            squares = x.square()._read().pad(around).window(1, size)
            total = squares.sum((len(self._shape),)).reshape(self._shape)
            return x / (x._wrap(total) * (alpha / size) + k).pow(beta)

        return self._in_float32(normalised)

    def normalize(self, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12) -> Self:
        """Divided by the p-norm along an axis, or by `eps` if that is larger.

        >>> from ferrule import Tensor
        >>> Tensor([[3.0, 4.0]]).normalize().mul(5).tolist()
        [[3.0, 4.0]]
        """
        return self._in_float32(lambda x: x / x.norm(p, dim, True).clamp(min=eps))

    # -- names that are written together, too ----------------------------------------------------

    groupnorm = group_norm
    instancenorm = instance_norm
    rmsnorm = rms_norm
