"""Attention, and the embedding of positions that goes with it."""

from __future__ import annotations

from math import inf

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.values import dtype_of
from ferrule.tensor import Tensor
from ferrule.transforms.loops import scan


def _heads(x: Tensor, count: int | None) -> Tensor:
    """(batch, length, heads * size) as (batch, heads, length, size), which it may be already."""
    if x.ndim == 4:
        return x
    assert count is not None, "the checker wants the number of heads"
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Keys or values of fewer heads, each for several heads of queries in turn."""
    batch, own, length, size = x.shape
    if own == heads:
        return x
    shared = x.unsqueeze(2).expand(batch, own, heads // own, length, size)
    return shared.reshape(batch, heads, length, size)


def _reach(
    queries: int, keys: int, offset: Tensor | int, causal: int, left: int, right: int
) -> Tensor | None:
    """Which keys each query may see by its position; None if all."""
    if not causal and left < 0 and right < 0:
        return None
    rows = Tensor.arange(queries).reshape(-1, 1) + offset
    behind = rows - Tensor.arange(keys)
    seen: Tensor | None = None
    if causal:
        seen = behind >= 0
    if left >= 0:
        seen = _both(seen, behind <= left)
    if right >= 0:
        seen = _both(seen, behind >= -right)
    return seen


def _both(x: Tensor | None, y: Tensor) -> Tensor:
    return y if x is None else x.logical_and(y)


@rule("Attention", 23)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    n_outputs: int = 1,
) -> tuple[Tensor, ...]:
    flat = q.ndim == 3
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    offset: Tensor | int = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = Tensor.cat(past_key, k, dim=2), Tensor.cat(past_value, v, dim=2)
    elif nonpad_kv_seqlen is not None:
        offset = (nonpad_kv_seqlen - q.shape[2]).reshape(-1, 1, 1, 1)
    factor = (q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    own_k = _repeated(k, q.shape[1])
    scores = ((q * factor) @ (own_k * factor).transpose(-1, -2)).cast(q.dtype)
    raw = scores
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    capped = scores
    bias, seen = _masks(q, k, attn_mask, nonpad_kv_seqlen, offset, is_causal,
                        left_window_size, right_window_size)  # fmt: skip
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = seen.where(scores, -inf)
    biased = scores
    if softmax_precision is not None:
        scores = scores.cast(dtype_of(softmax_precision))
    weights = scores.softmax(-1)
    if bias is not None or seen is not None:
        # A query that sees no key gets nothing.
        blocked = _blocked(bias, seen, scores)
        weights = blocked.where(0.0, weights)
    weights = weights.cast(q.dtype)
    y = (weights @ _repeated(v, q.shape[1])).cast(q.dtype)
    if flat:
        y = y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)
    shown = (raw, capped, biased, weights)[qk_matmul_output_mode]
    return (y, k, v, shown.cast(q.dtype))[:n_outputs]


def _masks(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    offset: Tensor | int,
    causal: int,
    left: int,
    right: int,
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and which keys are seen."""
    keys = k.shape[2]
    seen = _reach(q.shape[2], keys, offset, causal, left, right)
    if lengths is not None:
        seen = _both(seen, Tensor.arange(keys) < lengths.reshape(-1, 1, 1, 1))
    if mask is None:
        return None, seen
    missing = keys - mask.shape[-1]
    if mask.dtype == dtypes.bool:
        if missing > 0:
            mask = mask.pad([0, missing], value=False)
        return None, _both(seen, mask)
    if missing > 0:
        mask = mask.pad([0, missing], value=-inf)
    return mask, seen


def _blocked(bias: Tensor | None, seen: Tensor | None, scores: Tensor) -> Tensor:
    """The rows in which no key is seen."""
    none: Tensor | None = None if seen is None else seen.logical_not()
    if bias is not None:
        hidden = bias == -inf
        none = hidden if none is None else none.logical_or(hidden)
    assert none is not None
    return none.expand(*Tensor.broadcast_shapes(none.shape, (scores.shape[-1],))).all(
        -1, keepdim=True
    )


@rule("RotaryEmbedding", 23)
def rotary_embedding(
    x: Tensor,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    flat = x.ndim == 3
    heads = _heads(x, num_heads) if flat else x
    size = rotary_embedding_dim or heads.shape[-1]
    turned, rest = heads[..., :size], heads[..., size:]
    if positions is not None:
        shape = (*positions.shape, cosines.shape[-1])
        places = positions.reshape(-1)
        cosines = cosines.index_select(0, places).reshape(*shape)
        sines = sines.index_select(0, places).reshape(*shape)
    cos, sin = (part[..., : size // 2].unsqueeze(1) for part in (cosines, sines))
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., : size // 2], turned[..., size // 2 :]
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if interleaved:
        y = Tensor.stack(real, imaginary, dim=-1).reshape(turned.shape)
    else:
        y = Tensor.cat(real, imaginary, dim=-1)
    if size < heads.shape[-1]:
        y = Tensor.cat(y, rest, dim=-1)
    if flat:
        y = y.transpose(1, 2).reshape(x.shape)
    return y.cast(x.dtype)


@rule("LinearAttention", 27)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    batch, steps = query.shape[:2]
    # Steps first, as the loop takes them: (T, B, heads, size).
    q = _steps(query, q_num_heads)
    k, v = _steps(key, kv_num_heads), _steps(value, kv_num_heads)
    factor = scale or q.shape[-1] ** -0.5
    rows: dict[str, Tensor] = {"q": q * factor, "k": k, "v": v}
    if decay is not None:
        rows["decay"] = _steps(decay, kv_num_heads).exp()
    if beta is not None:
        rows["beta"] = _steps(beta, beta.shape[-1])
    if past_state is None:
        shape = (batch, kv_num_heads, k.shape[-1], v.shape[-1])
        state = Tensor.zeros(*shape, dtype=dtypes.float32)
    else:
        state = past_state.cast(dtypes.float32)
    groups = q_num_heads // kv_num_heads

    def step(state: Tensor, row: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        k, v = row["k"], row["v"]
        if "decay" in row:
            state = state * row["decay"].unsqueeze(-1)
        if "beta" in row:
            known = (state * k.unsqueeze(-1)).sum(-2)
            v = row["beta"] * (v - known)
        state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
        asked = row["q"].reshape(batch, kv_num_heads, groups, -1, 1)
        return state, (asked * state.unsqueeze(2)).sum(-2)

    last, found = scan(step, state, rows)
    y = found.permute(1, 0, 2, 3, 4).reshape(batch, steps, -1)
    kind = query.dtype if past_state is None else past_state.dtype
    return y.cast(query.dtype), last.cast(kind)


def _steps(x: Tensor, heads: int) -> Tensor:
    batch, steps, _ = x.shape
    return x.reshape(batch, steps, heads, -1).transpose(0, 1).cast(dtypes.float32)


@rule("CausalConvWithState", 27)
def causal_conv_with_state(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    before = w.shape[-1] - 1
    if past_state is None:
        past_state = Tensor.zeros(*x.shape[:2], before, dtype=x.dtype)
    seen = Tensor.cat(past_state, x, dim=2)
    y = seen.conv1d(w, bias, groups=x.shape[1])
    if activation in ("silu", "swish"):
        y = y * y.sigmoid()
    return y.cast(x.dtype), seen[..., seen.shape[-1] - before :]
