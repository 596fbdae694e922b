"""Two contractions in one kernel, with what is between them as stages: attention above all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.programs import HOST

from ferrule import Context, Tensor, dtypes
from ferrule.codegen.heuristic import choose
from ferrule.codegen.lower import lower
from ferrule.fusion import make_schedule, target_of
from ferrule.ir.expr import Variable
from ferrule.ir.shape.view import ShapeError
from ferrule.ir.target import usable_cores
from ferrule.ops import BufferOps

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


def has_stages(tensor: Tensor) -> bool:
    """True if the last kernel has stages."""
    item = make_schedule([tensor.lazydata]).items[-1]
    return any(node.op is BufferOps.STAGE for node in item.ast.toposort())


@pytest.mark.parametrize("rows", [5, 16, 33, 77])
def test_blocks_have_about_as_many_rows_as_there_are(rows: int) -> None:
    q, k = random(8, 8, rows, 16), random(8, 8, 300, 16)
    item = make_schedule([q.scaled_dot_product_attention(k, k).lazydata]).items[-1]
    opts = choose(lower(item.ast, "k"), HOST)
    (block,) = (opt.args[2] for opt in opts if opt.args[:2] == ("out0", "i0.2"))
    assert -(-rows // block) * block - rows < 2 * HOST.lanes(4)


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
    assert has_stages(found)
    tolerance = {"float32": 5e-6, "float64": 1e-12, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    np.testing.assert_allclose(wide(found), attend(wide(q), wide(k), wide(v)), atol=tolerance)


def test_blocks_of_three_vectors_of_float64() -> None:
    q, k = random(1, 1, 200, 16, dtype="float64"), random(1, 1, 40, 16, dtype="float64")
    found = q.scaled_dot_product_attention(k, k)
    assert has_stages(found)
    np.testing.assert_allclose(wide(found), attend(wide(q), wide(k), wide(k)), atol=1e-12)


@pytest.mark.parametrize("rows", [64, 130])
def test_masked_attention(rows: int) -> None:
    q, k, v = (random(2, 2, rows, 32) for _ in range(3))
    lower = np.tril(np.ones((rows, rows), bool))
    causal = q.scaled_dot_product_attention(k, v, is_causal=True)
    np.testing.assert_allclose(wide(causal), attend(wide(q), wide(k), wide(v), lower), atol=5e-6)
    mask = RNG.random((2, 1, rows, rows)) > 0.5
    mask[:, :, ::5] = False
    masked = q.scaled_dot_product_attention(k, v, attn_mask=Tensor(mask).realize())
    assert has_stages(masked)
    np.testing.assert_allclose(wide(masked), attend(wide(q), wide(k), wide(v), mask), atol=5e-6)
    assert not wide(masked)[:, :, ::5].any()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("mask", ["none", "causal", "kept", "added"])
def test_masks_on_every_device(mask: str) -> None:
    """Scores up to 100, rows without any, and sizes that fill no tile; rows enough for a GPU."""
    rows, columns, heads = 45, 67, 48
    q, v = random(1, heads, rows, 24) * 20, random(1, heads, columns, 20)
    k = random(1, 1, columns, 24)
    kept = RNG.random((rows, columns)) > 0.5
    kept[::5] = False
    given: dict[str, Any] = {}
    if mask == "causal":
        kept = np.tril(np.ones_like(kept))
        given["is_causal"] = True
    elif mask == "kept":
        given["attn_mask"] = Tensor(kept).realize()
    elif mask == "added":
        bias = np.where(kept, 0, -np.inf).astype(np.float32)
        given["attn_mask"] = Tensor(bias).realize()
    else:
        kept = np.ones_like(kept)
    found = q.realize().scaled_dot_product_attention(k.expand(1, heads, columns, 24), v, **given)
    assert has_stages(found)
    expected = attend(wide(q), wide(k), wide(v), kept)
    np.testing.assert_allclose(wide(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_precisions_on_every_device(dtype: str) -> None:
    q, k, v = (random(2, 16, 70, 33, dtype=dtype) for _ in range(3))
    found = q.scaled_dot_product_attention(k, v)
    assert has_stages(found)
    tolerance = {"float64": 1e-12, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    np.testing.assert_allclose(wide(found), attend(wide(q), wide(k), wide(v)), atol=tolerance)


@pytest.mark.usefixtures("device")
def test_numbers_that_are_none_on_every_device() -> None:
    q, k, v = (random(2, 64, 16).numpy() for _ in range(3))
    q[0, 3], k[1, 7], v[0, 9, 2] = np.nan, np.inf, np.inf
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)).numpy()
    assert np.isnan(found[0, 3]).all()
    assert np.isnan(found[1][q[1].sum(-1) > 0]).all()
    others = np.delete(found[0], 3, 0)
    assert np.isinf(others[:, 2]).all()
    assert np.isfinite(np.delete(others, 2, 1)).all()


@pytest.mark.usefixtures("device")
def test_heads_and_hidden_layers_on_every_device() -> None:
    q, k, v = random(1, 48, 50, 16), random(1, 16, 70, 16), random(1, 16, 70, 16)
    found = q.scaled_dot_product_attention(k, v, enable_gqa=True)
    assert has_stages(found)
    shared = (np.repeat(wide(x), 3, axis=1) for x in (k, v))
    np.testing.assert_allclose(wide(found), attend(wide(q), *shared), atol=1e-5)
    x, first, second = random(3000, 16), random(16, 100), random(100, 12)
    found = (x @ first).relu() @ second
    assert has_stages(found)
    expected = np.maximum(wide(x) @ wide(first), 0) @ wide(second)
    np.testing.assert_allclose(wide(found), expected, rtol=1e-4, atol=1e-3)


def test_query_key_and_value_from_one_buffer() -> None:
    mixed = random(2, 96, 3, 4, 16)
    q, k, v = (mixed.permute(2, 0, 3, 1, 4)[i] for i in range(3))
    found = q.scaled_dot_product_attention(k, v)
    assert has_stages(found)
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
    assert has_stages(found)
    expected = np.maximum(wide(x) @ wide(first), 0) @ wide(second)
    np.testing.assert_allclose(wide(found), expected, rtol=1e-4, atol=1e-3)


def test_a_symbolic_number_of_positions() -> None:
    length = Variable("length", 64, 128).bind(100)
    q, k, v = random(1, 2, 70, 16), random(1, 2, 128, 16), random(1, 2, 128, 16)
    part = ((0, 1), (0, 2), (0, length), (0, 16))
    found = q.scaled_dot_product_attention(k.shrink(part), v.shrink(part))
    assert has_stages(found)
    expected = attend(wide(q), wide(k)[:, :, :100], wide(v)[:, :, :100])
    np.testing.assert_allclose(wide(found), expected, atol=5e-6)


def test_attention_needs_no_memory_for_its_scores() -> None:
    q, k, v = (random(1, 2, 1024, 16) for _ in range(3))
    items = make_schedule([q.scaled_dot_product_attention(k, v).lazydata]).items
    sizes = [buffer.size for item in items for buffer in item.buffers]
    assert max(sizes) == 2 * 1024 * 16


@pytest.mark.parametrize(("rows", "columns"), [(32, 40_000), (17, 30_000), (1, 50_000)])
def test_few_rows_of_very_many_columns(rows: int, columns: int) -> None:
    q, k, v = random(1, 1, rows, 16), random(1, 1, columns, 16), random(1, 1, columns, 16)
    found = q.scaled_dot_product_attention(k, v)
    np.testing.assert_allclose(wide(found), attend(wide(q), wide(k), wide(v)), atol=1e-5)


def test_blocks_of_long_rows() -> None:
    q, k, v = random(1, 1, 140, 4), random(1, 1, 12_000, 4), random(1, 1, 12_000, 4)
    found = q.scaled_dot_product_attention(k, v)
    assert has_stages(found)
    np.testing.assert_allclose(wide(found), attend(wide(q), wide(k), wide(v)), atol=1e-5)


MASKS = ["none", "causal", "kept", "added", "minus infinity"]


def slopes(arrays: list[Array], bias: Array, kept: Array) -> list[Array]:
    """The gradients of query, key, value and of what is added to the scores."""
    query, key, value, upstream = arrays
    scale = query.shape[-1] ** -0.5
    scores = np.where(kept, query @ key.swapaxes(-1, -2) * scale + bias, -np.inf)
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    sums = powers.sum(-1, keepdims=True)
    weights = powers / np.where(sums == 0, 1, sums)
    slope = upstream @ value.swapaxes(-1, -2)
    slope = weights * (slope - (slope * weights).sum(-1, keepdims=True))
    return [
        slope @ key * scale,
        slope.swapaxes(-1, -2) @ query * scale,
        weights.swapaxes(-1, -2) @ upstream,
        slope,
    ]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [*SHAPES[1::2], (2, 2, 70, 70, 16, 16), (1, 1, 130, 130, 16, 16)])
def test_gradients_of_attention(mask: str, shape: tuple[int, ...]) -> None:
    batch, heads, rows, columns, depth, out = shape
    q = random(batch, heads, rows, depth).requires_grad_()
    k = random(batch, heads, columns, depth).requires_grad_()
    v = random(batch, heads, columns, out).requires_grad_()
    upstream = random(batch, heads, rows, out)
    kept, bias = np.ones((rows, columns), bool), np.zeros((rows, columns))
    given: dict[str, Any] = {}
    if mask == "causal":
        kept, given = np.tril(kept), {"is_causal": True}
    elif mask == "kept":
        kept = RNG.random((batch, 1, rows, columns)) > 0.3
        kept[:, :, ::5] = False
        given = {"attn_mask": Tensor(kept)}
    elif mask == "added":
        added = random(batch, 1, rows, columns)
        bias, given = wide(added), {"attn_mask": added}
    elif mask == "minus infinity":
        bias = np.where(RNG.random((rows, columns)) > 0.3, 0, -np.inf)
        bias[:, 0] = 0
        given = {"attn_mask": Tensor(bias.astype(np.float32))}
    result = q.scaled_dot_product_attention(k, v, **given)
    found = result.gradient(q, k, v, gradient=upstream)
    arrays = [wide(x.detach()) for x in (q, k, v, upstream)]
    for gradient, right in zip(found, slopes(arrays, bias, kept), strict=False):
        np.testing.assert_allclose(wide(gradient), right, atol=2e-5)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("mask", MASKS[:4])
def test_gradients_on_every_device(mask: str) -> None:
    """Sizes that fill no tile; rows and columns enough for a GPU, and no scores in its memory."""
    rows, columns, heads, depth = 75, 67, 48, 8
    q, upstream = (random(1, heads, rows, depth) for _ in range(2))
    k, v = (random(1, heads, columns, depth) for _ in range(2))
    kept, bias = np.ones((rows, columns), bool), np.zeros((rows, columns))
    given: dict[str, Any] = {}
    if mask == "causal":
        kept, given = np.tril(kept), {"is_causal": True}
    elif mask == "kept":
        kept = RNG.random((rows, columns)) > 0.3
        kept[::5] = False
        given = {"attn_mask": Tensor(kept).realize()}
    elif mask == "added":
        added = random(rows, columns)
        bias, given = wide(added), {"attn_mask": added}
    for x in (q, k, v):
        x.requires_grad_()
    result = q.scaled_dot_product_attention(k, v, **given)
    found = result.gradient(q, k, v, gradient=upstream)
    items = make_schedule([x.lazydata for x in found]).items
    largest = max(buffer.size for item in items for buffer in item.buffers)
    assert target_of(q.device).block_threads == 1 or largest < heads * rows * columns
    arrays = [wide(x.detach()) for x in (q, k, v, upstream)]
    for gradient, right in zip(found, slopes(arrays, bias, kept), strict=False):
        np.testing.assert_allclose(wide(gradient), right, atol=2e-5)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_gradients_in_other_precisions_on_every_device(dtype: str) -> None:
    q, k, v = (random(1, 16, 160, 20, dtype=dtype).requires_grad_() for _ in range(3))
    upstream = random(1, 16, 160, 20, dtype=dtype)
    result = q.scaled_dot_product_attention(k, v, is_causal=True)
    found = result.gradient(q, k, v, gradient=upstream)
    arrays = [wide(x.detach()) for x in (q, k, v, upstream)]
    tolerance = {"float64": 1e-12, "float16": 2e-2, "bfloat16": 2e-1}[dtype]
    expected = slopes(arrays, np.zeros((160, 160)), np.tril(np.ones((160, 160), bool)))
    for gradient, right in zip(found, expected, strict=False):
        np.testing.assert_allclose(wide(gradient), right, atol=tolerance)


@pytest.mark.usefixtures("device")
def test_gradients_of_gradients_on_every_device() -> None:
    arrays = [RNG.normal(size=(1, 2, 20, 4)).astype(np.float32) for _ in range(4)]

    def second(device: str | None) -> list[Array]:
        q, k, v, upstream = (Tensor(x, device=device).requires_grad_() for x in arrays)
        result = q.scaled_dot_product_attention(k, v, is_causal=True)
        first = result.gradient(q, k, v, gradient=upstream, create_graph=True)
        total = sum((x * x).sum() for x in first)
        return [wide(x) for x in total.gradient(q, k, v, upstream)]

    for found, right in zip(second(None), second("NUMPY"), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_bias_of_attention() -> None:
    q, k, v = (random(2, 2, 70, 16).requires_grad_() for _ in range(3))
    upstream, bias = random(2, 2, 70, 16), random(2, 70, 70).requires_grad_()
    result = q.scaled_dot_product_attention(k, v, attn_mask=bias)
    found = result.gradient(q, k, v, bias, gradient=upstream)
    arrays = [wide(x.detach()) for x in (q, k, v, upstream)]
    *expected, slope = slopes(arrays, wide(bias.detach()), np.ones((70, 70), bool))
    for gradient, right in zip(found, [*expected, slope.sum(0)], strict=True):
        np.testing.assert_allclose(wide(gradient), right, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_gradients_of_attention_in_other_precisions(dtype: str) -> None:
    q, k, v = (random(1, 4, 130, 32, dtype=dtype).requires_grad_() for _ in range(3))
    upstream = random(1, 4, 130, 32, dtype=dtype)
    found = q.scaled_dot_product_attention(k, v).gradient(q, k, v, gradient=upstream)
    arrays = [wide(x.detach()) for x in (q, k, v, upstream)]
    tolerance = {"float64": 1e-12, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    expected = slopes(arrays, np.zeros((130, 130)), np.ones((130, 130), bool))
    for gradient, right in zip(found, expected, strict=False):
        np.testing.assert_allclose(wide(gradient), right, atol=tolerance)


def test_gradients_of_heads_that_share_a_key_and_a_value() -> None:
    q = random(1, 6, 80, 16).requires_grad_()
    k, v = (random(1, 2, 70, 16).requires_grad_() for _ in range(2))
    upstream = random(1, 6, 80, 16)
    found = q.scaled_dot_product_attention(k, v, enable_gqa=True).gradient(
        q, k, v, gradient=upstream
    )
    shared = [np.repeat(wide(x.detach()), 3, axis=1) for x in (k, v)]
    arrays = [wide(q.detach()), *shared, wide(upstream)]
    query, *others, _ = slopes(arrays, np.zeros((80, 70)), np.ones((80, 70), bool))
    expected = [query, *(x.reshape(1, 2, 3, 70, 16).sum(2) for x in others)]
    for gradient, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(wide(gradient), right, atol=2e-5)


def test_gradients_of_query_key_and_value_from_one_buffer() -> None:
    mixed = random(2, 96, 3, 4, 16).requires_grad_()
    q, k, v = (mixed.permute(2, 0, 3, 1, 4)[i] for i in range(3))
    upstream = random(2, 96, 64)
    result = q.scaled_dot_product_attention(k, v, is_causal=True)
    result = result.permute(0, 2, 1, 3).reshape(2, 96, 64)
    (found,) = result.gradient(mixed, gradient=upstream)
    arrays = list(wide(mixed.detach()).transpose(2, 0, 3, 1, 4))
    arrays.append(wide(upstream).reshape(2, 96, 4, 16).transpose(0, 2, 1, 3))
    *expected, _ = slopes(arrays, np.zeros((96, 96)), np.tril(np.ones((96, 96), bool)))
    right = np.stack(expected).transpose(1, 3, 0, 2, 4)
    np.testing.assert_allclose(wide(found), right, atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_need_no_memory_for_its_scores(causal: bool) -> None:
    heads = 2 * usable_cores()
    q, k, v = (random(1, heads, 1024, 16).requires_grad_() for _ in range(3))
    result = q.scaled_dot_product_attention(k, v, is_causal=causal)
    found = result.gradient(q, k, v, gradient=random(1, heads, 1024, 16))
    items = make_schedule([x.lazydata for x in (result, *found)]).items
    sizes = [buffer.size for item in items for buffer in item.buffers]
    assert max(sizes) == heads * 1024 * 16
    assert len(items[-1].outputs) == 3


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


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["causal", "added"])
def test_scores_that_a_narrow_float_does_not_hold(dtype: str, form: str) -> None:
    """They are float32, as PyTorch's are in one kernel; results and slopes are rounded."""
    random = np.random.RandomState(5)
    arrays = [random.randn(2, 3, 17, 31) * 60 for _ in range(3)]
    arrays += [random.randn(2, 3, 17, 31), random.randn(17, 17)]
    rounded = [Tensor(x).cast(dtype).cast("float64").numpy() for x in arrays]

    def computed(dtype: str) -> list[Array]:
        q, k, v, upstream, bias = (Tensor(x).cast(dtype).realize() for x in rounded)
        for x in (q, k, v):
            x.requires_grad_()
        given = {"attn_mask": bias} if form == "added" else {"is_causal": form == "causal"}
        result = q.scaled_dot_product_attention(k, v, **given)
        return [wide(x) for x in (result, *result.gradient(q, k, v, gradient=upstream))]

    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    for found, right in zip(computed(dtype), computed("float64"), strict=True):
        # A slope is a difference of two sums of 31 products, of which one is rounded.
        np.testing.assert_allclose(found, right, rtol=8 * step, atol=60 * 60 * step)


@pytest.mark.usefixtures("device")
def test_scores_of_attention_with_dropout_are_not_rounded() -> None:
    q = (random(1, 2, 9, 31, dtype="float32") * 60).cast("float16").realize()
    with Tensor.train():
        found = q.scaled_dot_product_attention(q, q, dropout_p=1e-9)
    expected = q.cast("float64").scaled_dot_product_attention(q.cast("float64"), q.cast("float64"))
    np.testing.assert_allclose(wide(found), wide(expected), rtol=4e-3, atol=0.1)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("how", ["below", "finite", "sums"])
def test_weights_that_count_by_their_values(how: str, rows: bool) -> None:
    """Where blocks are made of what conditions on numbers choose, those end no loop."""
    query, key, value = (RNG.integers(-6, 7, (4, n, 16)) / 2 for n in (40, 17, 40))
    scores = query @ key.swapaxes(1, 2)
    sums = scores.sum(-1, keepdims=True)
    chosen = {"below": scores < 1.5, "finite": abs(scores) < np.inf, "sums": sums < 1.5}[how]
    weights = np.where(chosen, scores, 0)
    with Context(FERRULE_NUM_THREADS=1):
        tensors = [Tensor(x, dtype="float32").realize() for x in (query, key, value)]
        found = tensors[0] @ tensors[1].transpose(1, 2)
        if how == "below":
            found = (found < 1.5).where(found, 0)
        elif how == "finite":
            found = (found.abs() < np.inf).where(found, 0)
        else:
            found = (found.sum(-1, keepdim=True) < 1.5).where(found, 0)
        along, across = found @ tensors[1], found.transpose(1, 2) @ tensors[2]
        del found
        Tensor.realize(*([along] if rows else [along, across]))
        np.testing.assert_allclose(along.numpy(), weights @ key, atol=1e-3)
        np.testing.assert_allclose(across.numpy(), weights.swapaxes(1, 2) @ value, atol=1e-3)
