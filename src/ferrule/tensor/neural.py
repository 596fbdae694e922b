"""What neural networks are made of besides convolutions: normalisation, dropout, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from ferrule.dtype import dtypes, promote
from ferrule.expr import sint
from ferrule.gradient import Value
from ferrule.shape.view import ShapeError
from ferrule.tensor import rowwise
from ferrule.tensor.attention import attention, attention_weights
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import (
    broadcast_shape,
    expanded,
    fit_shape,
    known_size,
)
from ferrule.tensor.matrices import matrix_product, transposed
from ferrule.tensor.resampling import Resampling


class Neural(Resampling):
    """Normalisation, dropout, attention."""

    __slots__ = ()

    # -- normalisation ---------------------------------------------------------------------------

    def layernorm(self, axis: int | Sequence[int] = -1, eps: float = 1e-5) -> Self:
        """Mean 0 and variance 1 along some axes.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        axes = self._axes(axis, "layernorm")
        return self._wrap(rowwise.layernorm(self._float(), axes, eps))

    def rms_norm(self, axis: int | Sequence[int] = -1, eps: float = 1e-6) -> Self:
        """Divided by the root of the mean square along some axes.

        >>> from ferrule import Tensor
        >>> Tensor([3.0, -3.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        """
        axes = self._axes(axis, "rms_norm")
        return self._wrap(rowwise.rms_norm(self._float(), axes, eps))

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

        result = self - self._along(mean, shape)
        if weight is not None:
            result = result * self._along(weight, shape)
        # invstd may be of the full rank already, as a mean with keepdim is.
        factor = self._along(invstd, shape) if invstd.ndim == len(axes) else invstd
        result = result * factor
        return result if bias is None else result + self._along(bias, shape)

    def _along(self, tensor: TensorBase, shape: Sequence[sint]) -> Self:
        """Another tensor, reshaped to vary along some axes only."""
        return self._wrap(tensor._read()).reshape(shape)

    def dropout(self, p: float = 0.5) -> Self:
        """While `Tensor.training`: zero with probability `p`, else scaled by 1 / (1 - p).

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).dropout(0.5).tolist()
        [1.0, 2.0]
        """
        if not 0 <= p <= 1:
            raise ValueError(f"[dropout] the probability is between 0 and 1, not {p}")
        if not self.training or p == 0:
            return self
        if p == 1:
            return self.zeros_like()
        kept = self.rand(self._shape, device=self.device) >= p
        return kept.where(self, 0) * (1 / (1 - p))

    # -- attention -------------------------------------------------------------------------------

    def scaled_dot_product_attention(
        self,
        key: TensorBase,
        value: TensorBase,
        attn_mask: TensorBase | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(self @ key.T * scale + mask) @ value, for (…, positions, depth).

        A mask of bools keeps what is True; any other is added. `is_causal` masks later positions.
        `scale` is 1 / sqrt(depth). With `enable_gqa` groups of heads share a key and a value.
        Dropout is done while `Tensor.training`. A row that is masked entirely gives zeros.

        >>> from ferrule import Tensor
        >>> x = Tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> x.scaled_dot_product_attention(x, x, is_causal=True)[0].tolist()
        [1.0, 0.0]
        """
        what = "scaled_dot_product_attention"
        keys, values = self._wrap(key._read()), self._wrap(value._read())
        if enable_gqa:
            heads, groups = (known_size(x._shape[-3], what) for x in (self, keys))
            keys = keys.repeat_interleave(heads // groups, -3)
            values = values.repeat_interleave(heads // groups, -3)
        given = _attended((self._read(), keys._read(), values._read()), what)
        query = given[0]
        depth = known_size(query.shape[-1], what)
        factor = 1 / math.sqrt(depth) if scale is None else scale
        shape = (*query.shape[:-1], given[1].shape[-2])
        if is_causal and attn_mask is not None:
            raise ValueError(
                f"[{what}] a mask and is_causal exclude each other; "
                "put the causal mask into attn_mask"
            )
        if is_causal and not all(isinstance(size, int) for size in shape[-2:]):
            ones = self.ones(*shape[-2:], device=self.device, dtype=dtypes.bool)
            attn_mask, is_causal = ~ones.triu(1), False
        mask = None
        if attn_mask is not None:
            mask = fit_shape(attn_mask._read(), shape, what)
            mask = mask if mask.dtype is dtypes.bool else mask.cast(query.dtype)
        if dropout_p and self.training:
            scores = matrix_product(query, transposed(given[1])) * factor
            weights = self._wrap(attention_weights(scores, mask, is_causal)).dropout(dropout_p)
            return weights @ self._wrap(given[2])
        return self._wrap(attention(*given, mask, factor, is_causal))

    # -- composition -----------------------------------------------------------------------------

    def sequential(self, layers: Sequence[Callable[[Any], Any]]) -> Any:
        """The layers applied one after the other.

        >>> from ferrule import Tensor
        >>> Tensor([-4.0, 4.0]).sequential([Tensor.relu, Tensor.sqrt]).tolist()
        [0.0, 2.0]
        """
        result: Any = self
        for layer in layers:
            result = layer(result)
        return result


def _attended(given: Sequence[Value], what: str) -> tuple[Value, Value, Value]:
    """Query, key and value of one dtype, with equal leading axes; raises `ShapeError`."""
    query, key, value = given
    if any(len(x.shape) < 2 for x in given):
        raise ShapeError(f"[{what}] query, key and value need two axes: (…, positions, depth)")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"[{what}] a query of shape {query.shape} with a key of shape {key.shape} and a value "
            f"of shape {value.shape}: the depth of query and key must be equal, and the "
            "positions of key and value; transpose one of them"
        )
    dtype = promote(query.dtype, key.dtype, value.dtype)
    dtype = dtype if dtypes.is_float(dtype) else dtypes.default_float
    batch = broadcast_shape([x.shape[:-2] for x in given], what)
    query, key, value = (expanded(x.cast(dtype), (*batch, *x.shape[-2:])) for x in given)
    return query, key, value
