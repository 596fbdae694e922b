"""Attention."""

from __future__ import annotations

from math import inf, sqrt

from ferrule.ir.dtype import dtypes
from ferrule.tensor import Tensor
from ferrule.torch.registry import rule
from ferrule.transforms.derivatives import vjp


@rule("scaled_dot_product_attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    with Tensor.train(dropout_p > 0):
        return query.scaled_dot_product_attention(
            key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )


@rule("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The result, and the logarithm of the sums that each query was divided by."""
    found = attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ key.transpose(-2, -1)).cast(dtypes.float32) * factor
    if is_causal:
        rows, columns = scores.shape[-2:]
        seen = Tensor.ones(rows, columns, dtype=dtypes.bool).tril()
        scores = seen.where(scores, -inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    return found, scores.logsumexp(-1)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    _, pull = vjp(
        lambda q, k, v: attention(q, k, v, attn_mask, 0.0, is_causal, scale=scale),
        *(query, key, value),
    )
    return tuple(pull(grad_out))


@rule("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """A whole layer, as PyTorch runs it in evaluation."""
    size = (embed_dim,)

    def attend(x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        packed = x.linear(qkv_weight.transpose(0, 1), qkv_bias)
        heads = packed.reshape(batch, length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        seen = None if mask is None else _added(mask, mask_type)
        found = attention(heads[0], heads[1], heads[2], seen)
        flat = found.transpose(1, 2).reshape(batch, length, embed_dim)
        return flat.linear(proj_weight.transpose(0, 1), proj_bias)

    def feed(x: Tensor) -> Tensor:
        wide = x.linear(ffn_weight_1.transpose(0, 1), ffn_bias_1)
        wide = wide.gelu("none") if use_gelu else wide.relu()
        return wide.linear(ffn_weight_2.transpose(0, 1), ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return x.layer_norm(size, norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return x.layer_norm(size, norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first(src))
        return x + feed(second(x))
    x = first(src + attend(src))
    return second(x + feed(x))


def _added(mask: Tensor, kind: int | None) -> Tensor:
    """A mask, true where nothing is to be seen or as numbers to add, for scores of all heads.

    Its kind is 0 for (queries, keys), 1 for (batch, keys), 2 for all axes of the scores.
    """
    shaped = mask.reshape(mask.shape[0], 1, 1, mask.shape[1]) if kind == 1 else mask
    return shaped.where(-inf, 0.0) if shaped.dtype is dtypes.bool else shaped
