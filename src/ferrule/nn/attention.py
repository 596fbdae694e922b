"""Attention with several heads, in PyTorch's layout of parameters."""

from __future__ import annotations

from math import sqrt
from typing import final

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.linear import Linear
from ferrule.nn.module import Layer
from ferrule.nn.parameters import check_chance, check_counts, constant, glorot_uniform
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.network.attention import attention_scores, attention_weights


@final
class MultiheadAttention(Layer):
    """Attention in `num_heads` parts of the width, each with projections of its own.

    Takes a query (L, N, embed_dim), a key (S, N, kdim) and a value (S, N, vdim), with `batch_first`
    the batch first, or all without it. `in_proj_weight` is (3 * embed_dim, embed_dim), for query,
    key and value in order; with other widths `kdim` or `vdim` there are `q_proj_weight`,
    `k_proj_weight` and `v_proj_weight`. `add_bias_kv` appends a key and a value that are learnt,
    `add_zero_attn` zeros. Vaswani and others, "Attention Is All You Need" (2017).

    Raises `ShapeError` if `embed_dim` does not divide into the heads, or for inputs of other
    widths.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import MultiheadAttention
    >>> x = Tensor.ones(5, 2, 8)
    >>> out, weights = MultiheadAttention(8, num_heads=4)(x, x, x)
    >>> out.shape, weights.shape
    ((5, 2, 8), (2, 5, 5))
    """

    _shown = ""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        check_counts(self, embed_dim=embed_dim, num_heads=num_heads)
        check_chance(self, "dropout", dropout)
        if embed_dim % num_heads:
            raise ShapeError(
                f"MultiheadAttention: embed_dim {embed_dim} does not divide into {num_heads} heads"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        widths = [embed_dim if width is None else width for width in (embed_dim, kdim, vdim)]
        if widths == [embed_dim] * 3:
            self.in_proj_weight = glorot_uniform((3 * embed_dim, embed_dim), dtype, device)
        else:
            shapes = [(embed_dim, width) for width in widths]
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
                glorot_uniform(shape, dtype, device) for shape in shapes
            )
        self.in_proj_bias = constant((3 * embed_dim,), 0.0, dtype, device) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype, device=device)
        if self.out_proj.bias is not None:
            self.out_proj.bias = constant((embed_dim,), 0.0, dtype, device)
        self.bias_k: Tensor | None = None
        self.bias_v: Tensor | None = None
        if add_bias_kv:
            self.bias_k, self.bias_v = (_extra(embed_dim, dtype, device) for _ in range(2))

    @checks_arguments
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The result, of the query's shape, and the weights (N, L, S), or (N, heads, L, S).

        `key_padding_mask` is (N, S), `attn_mask` (L, S) or (N * heads, L, S). Where a mask of bools
        is True, nothing is taken; any other is added to the scores. `is_causal` masks later
        positions. A position that may take nothing gets zeros. Dropout is done while
        `Tensor.training`; the weights are those before it. They cost nothing unless they are used.
        """
        alone = query.ndim == 2
        if alone:
            batch = 0 if self.batch_first else 1
            query, key, value = (tensor.unsqueeze(batch) for tensor in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        out, q, k, mask = self._batched(query, key, value, key_padding_mask, attn_mask, is_causal)
        if alone:
            out = out.squeeze(batch)
        if not need_weights:
            return out, None
        weights = _weights(q, k, mask)
        weights = weights.squeeze(0) if alone else weights
        return out, weights.mean(axis=-3) if average_attn_weights else weights

    def _batched(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The result, and the queries, keys and the mask that the weights are made of."""
        q, k, v = self._projected(query, key, value)
        batch, length, given = q.shape[0], q.shape[1], k.shape[1]
        k, v = self._extended(k, self.bias_k), self._extended(v, self.bias_v)
        mask = self._mask(padding, attn_mask, is_causal, (batch, length, given), k)
        q, k, v = (self._split(part) for part in (q, k, v))
        out = q.scaled_dot_product_attention(k, v, mask, self.dropout)
        out = self.out_proj(out.transpose(1, 2).reshape(batch, length, self.embed_dim))
        return out if self.batch_first else out.transpose(0, 1), q, k, mask

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Query, key and value times their matrices: each (N, length, embed_dim)."""
        inputs = [query, key, value]
        if query.ndim != 3 or key.ndim != 3 or value.ndim != 3:
            raise ShapeError(
                "MultiheadAttention: query, key and value have 3 axes, or 2 without a batch; got"
                f" {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
            )
        if not self.batch_first:
            inputs = [tensor.transpose(0, 1) for tensor in inputs]
        if self.in_proj_bias is None:
            biases: list[Tensor | None] = [None] * 3
        else:
            biases = list(self.in_proj_bias.chunk(3))
        pairs = zip(inputs, self._matrices(), biases, strict=True)
        return [tensor.linear(matrix.transpose(), bias) for tensor, matrix, bias in pairs]

    def _matrices(self) -> list[Tensor]:
        if hasattr(self, "in_proj_weight"):
            return list(self.in_proj_weight.chunk(3))
        return [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]

    def _extended(self, part: Tensor, learnt: Tensor | None) -> Tensor:
        """Keys or values with the appended ones."""
        shape = (part.shape[0], 1, self.embed_dim)
        if learnt is not None:
            part = part.cat(learnt.expand(*shape), dim=1)
        if self.add_zero_attn:
            zeros = Tensor.zeros(*shape, dtype=part.dtype, device=part.device)
            part = part.cat(zeros, dim=1)
        return part

    def _split(self, part: Tensor) -> Tensor:
        """(N, length, embed_dim) as (N, heads, length, depth)."""
        batch, length, _ = part.shape
        return part.reshape(batch, length, self.num_heads, -1).transpose(1, 2)

    def _mask(
        self,
        padding: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
        sizes: tuple[int, int, int],
        keys: Tensor,
    ) -> Tensor | None:
        """All masks in one, that broadcasts to (N, heads, L, S), in the sense of `Tensor`'s."""
        batch, length, given = sizes
        masks = []
        if mask is not None:
            masks.append(self._attention_mask(mask, sizes))
        elif is_causal:
            later = Tensor.ones(length, given, dtype=dtypes.bool, device=keys.device)
            masks.append(later.triu(1).reshape(1, 1, length, given))
        if padding is not None:
            if tuple(padding.shape) != (batch, given):
                raise ShapeError(
                    f"MultiheadAttention: key_padding_mask is {tuple(padding.shape)}, not"
                    f" {(batch, given)}: one for each key"
                )
            masks.append(padding.reshape(batch, 1, 1, given))
        if not masks:
            return None
        more = keys.shape[1] - given
        if more:  # all positions see the appended keys
            masks = [part.pad((0, more)) for part in masks]
        if all(part.dtype is dtypes.bool for part in masks):
            hidden = masks[0] if len(masks) == 1 else masks[0].logical_or(masks[1])
            return hidden.logical_not()
        added = [_additive(part, keys.dtype) for part in masks]
        return added[0] if len(added) == 1 else added[0] + added[1]

    def _attention_mask(self, mask: Tensor, sizes: tuple[int, int, int]) -> Tensor:
        batch, length, given = sizes
        shape = tuple(mask.shape)
        if shape == (length, given):
            return mask.reshape(1, 1, length, given)
        if shape == (batch * self.num_heads, length, given):
            return mask.reshape(batch, self.num_heads, length, given)
        raise ShapeError(
            f"MultiheadAttention: attn_mask is {shape}; it must be {(length, given)}, or"
            f" {(batch * self.num_heads, length, given)} for each sample and head"
        )


def _extra(width: int, dtype: DTypeLike | None, device: str | None) -> Tensor:
    """A key or value that is learnt; spread as PyTorch's, by Glorot's rule."""
    values = Tensor.randn(1, 1, width, dtype=dtype, device=device) * sqrt(1 / width)
    return values.detach().requires_grad_()


def _additive(mask: Tensor, dtype: DType) -> Tensor:
    """A mask of bools as numbers to be added."""
    if mask.dtype is not dtypes.bool:
        return mask.cast(dtype)
    return mask.where(float("-inf"), 0.0).cast(dtype)


def _weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """The weights of attention, (N, heads, L, S)."""
    scores = attention_scores(query._read(), key._read(), 1 / sqrt(query.shape[-1]))
    wide = None if mask is None else mask.expand(*scores.shape)._read()
    return query._wrap(attention_weights(scores, wide, False).cast(query.dtype))
