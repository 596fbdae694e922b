"""Two contractions in one kernel, with what is between them kept in blocks: attention above all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, dtypes
from ferrule.expr import Variable
from ferrule.ops import BufferOps
from ferrule.schedule import make_schedule
from ferrule.shape.view import ShapeError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def random(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(RNG.normal(size=shape).astype(np.float32)).cast(dtype).realize()


def wide(tensor: Tensor) -> Array:
    return tensor.cast(dtypes.float64).numpy()


def attend(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    sums = powers.sum(-1, keepdims=True)
    return powers / np.where(sums == 0, 1, sums) @ value


def keeps(tensor: Tensor) -> bool:
    """Whether the last kernel keeps anything in blocks."""
    item = make_schedule([tensor.lazydata]).items[-1]
    return any(node.op is BufferOps.KEEP for node in item.ast.toposort())


SHAPES = [
    (1, 2, 64, 64, 64, 64),
    (2, 3, 65, 33, 40, 33),
    (3, 1, 127, 129, 16, 8),
    (1, 3, 200, 17, 24, 16),
    (2, 1, 131, 301, 80, 64),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_attention_of_any_size(shape: tuple[int, ...], dtype: str) -> None:
    batch, heads, rows, columns, depth, out = shape
    q, k = random(batch, heads, rows, depth, dtype=dtype), random(batch, heads, columns, depth)
    k, v = k.cast(dtype).realize(), random(batch, heads, columns, out, dtype=dtype)
    found = q.scaled_dot_product_attention(k, v)
    assert keeps(found)
    tolerance = {"float32": 5e-6, "float64": 1e-12, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    np.testing.assert_allclose(wide(found), attend(wide(q), wide(k), wide(v)), atol=tolerance)


@pytest.mark.parametrize("rows", [64, 130])
def test_masked_attention(rows: int) -> None:
    q, k, v = (random(2, 2, rows, 32) for _ in range(3))
    lower = np.tril(np.ones((rows, rows), bool))
    causal = q.scaled_dot_product_attention(k, v, is_causal=True)
    np.testing.assert_allclose(wide(causal), attend(wide(q), wide(k), wide(v), lower), atol=5e-6)
    mask = RNG.random((2, 1, rows, rows)) > 0.5
    mask[:, :, ::5] = False
    masked = q.scaled_dot_product_attention(k, v, attn_mask=Tensor(mask).realize())
    assert keeps(masked)
    np.testing.assert_allclose(wide(masked), attend(wide(q), wide(k), wide(v), mask), atol=5e-6)
    assert not wide(masked)[:, :, ::5].any()


def test_query_key_and_value_from_one_buffer() -> None:
    mixed = random(2, 96, 3, 4, 16)
    q, k, v = (mixed.permute(2, 0, 3, 1, 4)[i] for i in range(3))
    found = q.scaled_dot_product_attention(k, v)
    assert keeps(found)
    arrays = wide(mixed).transpose(2, 0, 3, 1, 4)
    np.testing.assert_allclose(wide(found), attend(*arrays), atol=5e-6)


def test_heads_that_share_a_key_and_a_value() -> None:
    q, k, v = random(1, 6, 80, 16), random(1, 2, 70, 16), random(1, 2, 70, 16)
    found = q.scaled_dot_product_attention(k, v, enable_gqa=True)
    shared = (np.repeat(wide(x), 3, axis=1) for x in (k, v))
    np.testing.assert_allclose(wide(found), attend(wide(q), *shared), atol=5e-6)


def test_a_narrow_network_keeps_its_hidden_layer() -> None:
    x, first, second = random(3000, 16), random(16, 100), random(100, 12)
    found = (x @ first).relu() @ second
    assert keeps(found)
    expected = np.maximum(wide(x) @ wide(first), 0) @ wide(second)
    np.testing.assert_allclose(wide(found), expected, rtol=1e-4, atol=1e-3)


def test_a_symbolic_number_of_positions() -> None:
    length = Variable("length", 64, 128).bind(100)
    q, k, v = random(1, 2, 70, 16), random(1, 2, 128, 16), random(1, 2, 128, 16)
    part = ((0, 1), (0, 2), (0, length), (0, 16))
    found = q.scaled_dot_product_attention(k.shrink(part), v.shrink(part))
    assert not keeps(found)
    expected = attend(wide(q), wide(k)[:, :, :100], wide(v)[:, :, :100])
    np.testing.assert_allclose(wide(found), expected, atol=5e-6)


def test_attention_needs_no_memory_for_its_scores() -> None:
    q, k, v = (random(1, 2, 1024, 16) for _ in range(3))
    items = make_schedule([q.scaled_dot_product_attention(k, v).lazydata]).items
    sizes = [buffer.size for item in items for buffer in item.buffers]
    assert max(sizes) == 2 * 1024 * 16


MASKS = ["none", "causal", "kept", "added"]


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_attention(mask: str) -> None:
    q, k, v = (random(2, 2, 70, 16).requires_grad_() for _ in range(3))
    upstream = random(2, 2, 70, 16)
    bias = random(2, 70, 70).requires_grad_()
    kept = RNG.random((2, 1, 70, 70)) > 0.3
    given: dict[str, Any] = {
        "none": {},
        "causal": {"is_causal": True},
        "kept": {"attn_mask": Tensor(kept)},
        "added": {"attn_mask": bias},
    }[mask]
    result = q.scaled_dot_product_attention(k, v, **given)
    targets = [q, k, v, bias] if mask == "added" else [q, k, v]
    found = result.gradient(*targets, gradient=upstream)
    arrays = [wide(x.detach()) for x in (q, k, v, upstream)]
    scores = arrays[0] @ arrays[1].swapaxes(-1, -2) / 4
    if mask == "added":
        scores = scores + wide(bias.detach())
    if mask in ("causal", "kept"):
        scores = np.where(kept if mask == "kept" else np.tril(np.ones((70, 70))), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    slope = arrays[3] @ arrays[2].swapaxes(-1, -2)
    slope = weights * (slope - (slope * weights).sum(-1, keepdims=True))
    expected = [
        slope @ arrays[1] / 4,
        slope.swapaxes(-1, -2) @ arrays[0] / 4,
        weights.swapaxes(-1, -2) @ arrays[3],
        slope.sum(0),
    ]
    for gradient, right in zip(found, expected, strict=False):
        np.testing.assert_allclose(wide(gradient), right, atol=2e-5)


def test_the_forward_pass_keeps_no_weights_for_its_gradient() -> None:
    q, k, v = (random(1, 2, 256, 16).requires_grad_() for _ in range(3))
    result = q.scaled_dot_product_attention(k, v)
    (item,) = make_schedule([result.lazydata]).items
    assert max(buffer.size for buffer in item.buffers) == 2 * 256 * 16


def test_attention_of_shapes_that_do_not_fit() -> None:
    q, k = Tensor.zeros(2, 5, 4), Tensor.zeros(2, 6, 3)
    with pytest.raises(ShapeError, match="depth of query and key"):
        q.scaled_dot_product_attention(k, k)
    with pytest.raises(ShapeError, match="two axes"):
        q.scaled_dot_product_attention(Tensor.zeros(4), q)
