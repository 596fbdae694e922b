"""Further parts of neural networks: dropout, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ferrule.autograd import TracedValue, trains
from ferrule.ir.dtype import dtypes, promote
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, expanded, fit_shape, known_size
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import as_floats
from ferrule.tensor.network.attention import attention, attention_scores, attention_weights

# -- dropout -------------------------------------------------------------------------------------


@method
def dropout(self: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """Zero with probability `p`, else scaled by 1 / (1 - p); nothing changes in evaluation.

    `training` is `Tensor.training` unless given. Raises `ValueError` for a probability outside of
    [0, 1].

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).dropout(0.5).tolist()
    [1.0, 2.0]
    >>> Tensor([1.0, 2.0]).dropout(1.0, training=True).tolist()
    [0.0, 0.0]
    """
    return _dropped_out(self, p, training, self._shape, "dropout")


def _dropped_out(
    self: Tensor,
    p: float,
    training: bool | None,
    shape: Sequence[sint],
    what: str,
    chosen: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Dropout with one draw for each element of a shape that broadcasts to this one.

    `chosen` gives the result from where elements are kept, if not the usual one.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"[{what}] the probability is between 0 and 1, not {p}")
    if p == 0 or not trains(training, self._read(), what):
        return self
    if p == 1:
        return self.zeros_like()
    kept = self.rand(shape, device=self.device) >= p
    return kept.where(self, 0) * (1 / (1 - p)) if chosen is None else chosen(kept)


@method
def rrelu(
    self: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool | None = None
) -> Tensor:
    """The element; where it is negative, times a random number between `lower` and `upper`.

    In evaluation times their mean. `training` is `Tensor.training` unless given.

    Xu, Wang, Chen, Li: Empirical evaluation of rectified activations (2015).

    >>> from ferrule import Tensor
    >>> Tensor([-4.0, 2.0]).rrelu(0.25, 0.75).tolist()
    [-2.0, 2.0]
    """
    if not lower <= upper:
        raise ValueError(f"[rrelu] lower {lower} is above upper {upper}; swap them")
    if not trains(training, self._read(), "rrelu"):
        return self.leaky_relu((lower + upper) / 2)
    slopes = self.uniform(*self._shape, low=lower, high=upper, device=self.device)
    return (self < 0).where(self * slopes.cast(self.dtype), self)


@method
def gumbel_softmax(self: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """Random weights along an axis, near one for a class drawn with the logits self.

    The lower the temperature `tau`, the nearer. With `hard` they are that class's one-hot
    vector, with the gradient of the weights. Integers become float32.

    Raises `ValueError` for a temperature that is not positive.

    Jang, Gu, Poole: Categorical reparameterization with Gumbel-softmax (2017).

    >>> from ferrule import Tensor
    >>> x = Tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> x.gumbel_softmax(hard=True).sum(-1).tolist()
    [1.0, 1.0]
    """
    if not tau > 0:
        raise ValueError(f"[gumbel_softmax] tau {tau} has to be more than 0")
    logits = as_floats(self)
    # What is computed of the draws is as exact as the logits.
    wide = dtypes.float64 if logits.dtype is dtypes.float64 else dtypes.float32
    drawn = self.rand(self._shape, device=self.device).cast(wide)
    # An exponentially distributed number; 0 stands for those below 2**-24.
    waited = (-drawn).log1p().neg().maximum(2.0**-25)
    soft = ((logits - waited.log()) / tau).softmax(dim).cast(logits.dtype)
    if not hard:
        return soft
    chosen = soft.detach().argmax(dim, keepdim=True)
    one_hot = soft.zeros_like().scatter(dim, chosen, 1.0)
    return one_hot + (soft - soft.detach())


@method
def dropout1d(self: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """`dropout` of whole channels of (batch, channels, L), or without the batch.

    >>> from ferrule import Tensor
    >>> Tensor.ones(1, 2, 3).dropout1d(0.5).shape
    (1, 2, 3)
    """
    return _dropped_out(self, p, training, _channel_shape(self, 1, "dropout1d"), "dropout1d")


@method
def dropout2d(self: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """`dropout` of whole channels of (batch, channels, H, W), or without the batch.

    >>> from ferrule import Tensor
    >>> Tensor.ones(1, 2, 3, 3).dropout2d(0.5).shape
    (1, 2, 3, 3)
    """
    return _dropped_out(self, p, training, _channel_shape(self, 2, "dropout2d"), "dropout2d")


@method
def dropout3d(self: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """`dropout` of whole channels of (batch, channels, D, H, W), or without the batch.

    >>> from ferrule import Tensor
    >>> Tensor.ones(1, 2, 3, 3, 3).dropout3d(0.5).shape
    (1, 2, 3, 3, 3)
    """
    return _dropped_out(self, p, training, _channel_shape(self, 3, "dropout3d"), "dropout3d")


def _channel_shape(self: Tensor, count: int, what: str) -> tuple[sint, ...]:
    if len(self._shape) not in (count + 1, count + 2):
        raise ShapeError(
            f"[{what}] shape {self._shape} is not (batch, channels) and {count} more, or "
            "without the batch"
        )
    return (*self._shape[:-count], *(1,) * count)


@method
def alpha_dropout(self: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """Dropout for `selu`: keeps mean 0 and variance 1, dropped elements being its lower limit.

    Klambauer and others, "Self-normalizing neural networks", 2017, section 3.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).alpha_dropout(0.5).tolist()
    [1.0, 2.0]
    """

    def chosen(kept: Tensor) -> Tensor:
        scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU_LIMIT**2))
        return kept.where(self, _SELU_LIMIT) * scale - scale * p * _SELU_LIMIT

    return _dropped_out(self, p, training, self._shape, "alpha_dropout", chosen)


@method
def bilinear(self: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """self @ weight[k] @ other for each k: (…, n) and (…, m) with (out, n, m) give (…, out).

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).bilinear(Tensor([3.0]), Tensor([[[1.0], [1.0]]])).tolist()
    [9.0]
    """
    result = self.einsum("...i,oij,...j->...o", self, weight, other)
    return result if bias is None else result + bias


@method
def softmin(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """The softmax of -self.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 0.0]).softmin().tolist()
    [0.5, 0.5]
    """
    x = as_floats(self) if dtype is None else self.cast(dtype)
    return (-x).softmax(axis, dtype)


# -- attention -----------------------------------------------------------------------------------


@method
def scaled_dot_product_attention(
    self: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
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
    if enable_gqa:
        key, value = (_for_all_heads(self, x, what) for x in (key, value))
    given = _attended((self._read(), key._read(), value._read()), what)
    query = given[0]
    depth = known_size(query.shape[-1], what)
    factor = 1 / math.sqrt(depth) if scale is None else scale
    shape = (*query.shape[:-1], given[1].shape[-2])
    if is_causal and attn_mask is not None:
        raise ValueError(
            f"[{what}] a mask and is_causal exclude each other; put the causal mask into attn_mask"
        )
    if is_causal and not all(isinstance(size, int) for size in shape[-2:]):
        ones = self.ones(*shape[-2:], device=self.device, dtype=dtypes.bool)
        attn_mask, is_causal = ~ones.triu(1), False
    mask = None
    if attn_mask is not None:
        mask = fit_shape(attn_mask._read(), shape, what)
        mask = mask if mask.dtype is dtypes.bool else mask.cast(query.dtype)
    if dropout_p and trains(None, query, "dropout"):
        scores = attention_scores(query, given[1], factor)
        weights = attention_weights(scores, mask, is_causal).cast(query.dtype)
        return self._wrap(weights).dropout(dropout_p) @ self._wrap(given[2])
    return self._wrap(attention(*given, mask, factor, is_causal))


def _for_all_heads(self: Tensor, shared: Tensor, what: str) -> Tensor:
    """Keys or values with as many heads as there are queries: each for a group of them."""
    if min(self.ndim, shared.ndim) < 3:
        raise ShapeError(
            f"[{what}] enable_gqa needs an axis of heads: (…, heads, positions, depth)"
        )
    heads, groups = (known_size(x._shape[-3], what) for x in (self, shared))
    if groups == 0 or heads % groups:
        raise ShapeError(
            f"[{what}] {heads} heads of queries do not divide into {groups} groups, one for "
            f"each head of shape {shared._shape}"
        )
    return shared.repeat_interleave(heads // groups, -3)


# -- composition ---------------------------------------------------------------------------------


@method
def sequential(self: Tensor, layers: Sequence[Callable[[Any], Any]]) -> Any:
    """The layers applied one after the other.

    >>> from ferrule import Tensor
    >>> Tensor([-4.0, 4.0]).sequential([Tensor.relu, Tensor.sqrt]).tolist()
    [0.0, 2.0]
    """
    result: Any = self
    for layer in layers:
        result = layer(result)
    return result


# What `alpha_dropout` gives elements that it drops: the limit of selu at minus infinity.
_SELU_LIMIT = -1.0507009873554805 * 1.6732632423543772


def _attended(
    given: Sequence[TracedValue], what: str
) -> tuple[TracedValue, TracedValue, TracedValue]:
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
