"""Normalisation by PyTorch's names, dropout of channels, embeddings, against NumPy."""

from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

RNG = np.random.default_rng(21)


def standard(a: np.ndarray, axes: tuple[int, ...], eps: float = 1e-5) -> np.ndarray:
    """Mean 0 and variance 1 along axes."""
    return (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + eps)


def test_layer_norm(device: str) -> None:
    a, weight, bias = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))
    x, w, b = Tensor(a), Tensor(weight), Tensor(bias)
    expected = standard(a, (1, 2)) * weight + bias
    np.testing.assert_allclose(x.layer_norm((3, 4), w, b).numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(x.layer_norm(4).numpy(), standard(a, (2,)), rtol=1e-10)
    half = x.half().layer_norm((3, 4), w.half(), b.half())
    assert half.dtype is dtypes.float16
    # Rounded once, behind the weight and the bias.
    wide = [t.half().float() for t in (x, w, b)]
    once = wide[0].layer_norm((3, 4), *wide[1:]).half()
    np.testing.assert_array_equal(half.numpy(), once.numpy())


def test_rms_norm_by_axes_and_by_sizes(device: str) -> None:
    a, weight = RNG.normal(size=(5, 3, 4)), RNG.normal(size=(3, 4))
    x = Tensor(a)
    by_sizes = a / np.sqrt((a * a).mean((1, 2), keepdims=True) + 1e-3)
    found = x.rms_norm((3, 4), Tensor(weight), 1e-3)
    np.testing.assert_allclose(found.numpy(), by_sizes * weight, rtol=1e-12)
    np.testing.assert_allclose(x.rms_norm((3, 4), eps=1e-3).numpy(), by_sizes, rtol=1e-12)
    np.testing.assert_allclose(x.rms_norm(axis=(1, 2), eps=1e-3).numpy(), by_sizes, rtol=1e-12)
    by_axis = a / np.sqrt((a * a).mean(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(x.rmsnorm(1, 1e-3).numpy(), by_axis, rtol=1e-12)
    plain = a / np.sqrt((a * a).mean(-1, keepdims=True) + np.finfo(np.float64).eps)
    np.testing.assert_allclose(x.rms_norm((4,)).numpy(), plain, rtol=1e-12)
    first = Tensor(weight[:, :1]).rms_norm(axis=0, weight=Tensor(weight[:, 1]), eps=0)
    column = weight[:, :1] / np.sqrt((weight[:, :1] ** 2).mean(0)) * weight[:, 1:2]
    np.testing.assert_allclose(first.numpy(), column, rtol=1e-12)
    with pytest.raises(ValueError, match="either normalized_shape or axis"):
        x.rms_norm((4,), axis=0)


def test_sizes_that_could_be_axes_are_sizes() -> None:
    x = Tensor(np.arange(1.0, 7.0).reshape(3, 2, 1))
    np.testing.assert_allclose(x.rms_norm((1,), eps=0).numpy(), np.ones((3, 2, 1)), rtol=1e-12)
    with pytest.raises(ShapeError, match=r"normalized_shape \(2,\) must be the last sizes"):
        x.rms_norm((2,))


def test_batch_norm(device: str) -> None:
    a, weight, bias = RNG.normal(size=(4, 3, 5)), RNG.normal(size=3), RNG.normal(size=3)
    mean, variance = RNG.normal(size=3), RNG.random(3)
    x, w, b = Tensor(a), Tensor(weight), Tensor(bias)
    running_mean, running_var = Tensor(mean), Tensor(variance)
    found = x.batch_norm(running_mean, running_var, w, b)
    m, v, s, t = (part.reshape(1, 3, 1) for part in (mean, variance, weight, bias))
    expected = (a - m) / np.sqrt(v + 1e-5) * s + t
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)
    found = x.batch_norm(running_mean, running_var, w, b, True, 0.25)
    np.testing.assert_allclose(found.numpy(), standard(a, (0, 2)) * s + t, rtol=1e-10)
    moved = 0.75 * mean + 0.25 * a.mean((0, 2))
    np.testing.assert_allclose(running_mean.numpy(), moved, rtol=1e-12)
    moved = 0.75 * variance + 0.25 * a.var((0, 2), ddof=1)
    np.testing.assert_allclose(running_var.numpy(), moved, rtol=1e-12)


def test_instance_and_group_norm(device: str) -> None:
    a, weight, bias = RNG.normal(size=(2, 4, 3, 3)), RNG.normal(size=4), RNG.normal(size=4)
    x, w, b = Tensor(a), Tensor(weight), Tensor(bias)
    s, t = weight.reshape(1, 4, 1, 1), bias.reshape(1, 4, 1, 1)
    running_mean, running_var = Tensor(np.zeros(4)), Tensor(np.ones(4))
    found = x.instance_norm(running_mean, running_var, w, b)
    np.testing.assert_allclose(found.numpy(), standard(a, (2, 3)) * s + t, rtol=1e-10)
    np.testing.assert_allclose(running_mean.numpy(), a.mean((0, 2, 3)) * 0.1, rtol=1e-10)
    moved = 0.9 + 0.1 * a.var((2, 3), ddof=1).mean(0)
    np.testing.assert_allclose(running_var.numpy(), moved, rtol=1e-12)
    used = x.instance_norm(running_mean, running_var, use_input_stats=False)
    same = x.batch_norm(running_mean, running_var)
    np.testing.assert_array_equal(used.numpy(), same.numpy())
    grouped = standard(a.reshape(2, 2, 18), (2,)).reshape(a.shape) * s + t
    np.testing.assert_allclose(x.group_norm(2, w, b).numpy(), grouped, rtol=1e-10)
    single = standard(a, (1, 2, 3))
    np.testing.assert_allclose(x.groupnorm(1).numpy(), single, rtol=1e-10)


def test_lengths(device: str) -> None:
    a = RNG.normal(size=(2, 5, 3))
    x = Tensor(a)
    for p, axis in ((2.0, 1), (1.0, -1), (3.0, 0)):
        expected = a / np.linalg.norm(a, p, axis, keepdims=True)
        np.testing.assert_allclose(x.normalize(p, axis).numpy(), expected, rtol=1e-10)
    assert Tensor([[0.0, 0.0]]).normalize().tolist() == [[0, 0]]
    squares = np.pad(a * a, [(0, 0), (1, 0), (0, 0)])
    near = (squares[:, :-1] + squares[:, 1:]) / 2
    expected = a / (1.5 + 0.1 * near) ** 0.6
    found = x.local_response_norm(2, 0.1, 0.6, 1.5)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


NORMS: dict[str, Any] = {
    "layer": lambda x, w, b: x.layer_norm((3,), w, b),
    "rms": lambda x, w, b: x.rms_norm((3,), w) + b,
    "batch": lambda x, w, b: x.transpose(1, 2).batch_norm(None, None, w, b, True),
    "instance": lambda x, w, b: x.transpose(1, 2).instance_norm(None, None, w, b),
    "group": lambda x, w, b: x.transpose(1, 2).group_norm(1, w, b),
    "response": lambda x, w, b: x.local_response_norm(3, 0.5) * w + b,
    "normalize": lambda x, w, b: x.normalize() * w + b,
}


@pytest.mark.parametrize("name", NORMS)
def test_gradients(name: str) -> None:
    assert_gradients(NORMS[name], *(RNG.normal(size=n) for n in ((2, 4, 3), 3, 3)), tolerance=1e-5)


# *** dropout and tables ***


def test_dropout_of_channels(device: str) -> None:
    x = Tensor.ones(40, 50, 2, 3)
    assert x.dropout2d(0.5) is x
    kept = x.dropout2d(0.25, training=True).numpy()
    np.testing.assert_array_equal(kept, np.broadcast_to(kept[..., :1, :1], kept.shape))
    assert set(np.unique(kept)) == {0, np.float32(1 / 0.75)}
    assert abs((kept > 0).mean() - 0.75) < 0.05
    assert x[0].dropout2d(0.5, True).shape == (50, 2, 3)
    with Tensor.train():
        whole = x.dropout3d(0.5).numpy().reshape(40, -1)  # 40 channels, without a batch
    assert (whole == whole[:, :1]).all()
    assert len(np.unique(whole)) == 2


def test_alpha_dropout_keeps_mean_and_variance(device: str) -> None:
    with Tensor.train():
        found = Tensor.randn(200, 300).alpha_dropout(0.3).numpy()
    assert abs(found.mean()) < 0.02
    assert abs(found.var() - 1) < 0.03


def test_embedding(device: str) -> None:
    table, ids = RNG.normal(size=(5, 3)), np.array([[1, 4, 1], [0, 1, 2]])
    weight = Tensor(table, requires_grad=True)
    found = Tensor(ids).embedding(weight, padding_idx=2, scale_grad_by_freq=True)
    np.testing.assert_array_equal(found.numpy(), table[ids])
    np.testing.assert_array_equal(weight.embedding(Tensor(ids)).numpy(), table[ids])
    found.sum().backward()
    assert weight.grad is not None
    # Three times a third, and nothing for the row that pads.
    np.testing.assert_allclose(weight.grad.numpy()[:, 0], [1, 1, 0, 0, 1], rtol=1e-12)


def test_rows_of_a_table_are_kept_short(device: str) -> None:
    table, ids = RNG.normal(size=(5, 3)) * 3, np.array([4, 1, 4])
    weight = Tensor(table, requires_grad=True)
    found = Tensor(ids).embedding(weight, max_norm=2.0)
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    shorter = np.where(norms > 2, table * 2 / norms, table)
    np.testing.assert_allclose(found.numpy(), shorter[ids], rtol=1e-6)
    expected = table.copy()
    expected[ids] = shorter[ids]
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6)
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.numpy()[:, 0].tolist() == [0, 1, 0, 0, 2]


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows(device: str, mode: str, padding: int | None) -> None:
    table, ids = RNG.normal(size=(5, 3)), np.array([1, 4, 1, 2, 2, 0, 3])
    starts, ends = [0, 3, 3, 5], [3, 3, 5, 7]  # the second is empty, the third all padding
    expected = []
    for start, end in zip(starts, ends, strict=True):
        rows = table[[n for n in ids[start:end] if n != padding]]
        expected.append(getattr(np, mode)(rows, axis=0) if len(rows) else np.zeros(3))
    options: dict[str, Any] = {"mode": mode, "padding_idx": padding}
    found = Tensor(ids).embedding_bag(Tensor(table), Tensor(starts), **options)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    ended = Tensor([*starts, 5])
    found = Tensor(ids).embedding_bag(Tensor(table), ended, include_last_offset=True, **options)
    np.testing.assert_allclose(found.numpy()[:3], expected[:3], rtol=1e-12)
    assert found.numpy()[3].tolist() == [0, 0, 0]
    even = Tensor(ids[:3].reshape(1, 3))
    found = even.embedding_bag(Tensor(table), **options)
    np.testing.assert_allclose(found.numpy(), expected[:1], rtol=1e-12)
    assert_gradients(lambda x: even.embedding_bag(x, **options), table)
    assert_gradients(lambda x: Tensor(ids).embedding_bag(x, Tensor(starts), **options), table)


def test_a_bag_without_positions(device: str) -> None:
    for mode in ("sum", "mean", "max"):
        found = Tensor.zeros(2, 0, dtype="int32").embedding_bag(Tensor.ones(3, 2), mode=mode)
        assert found.tolist() == [[0, 0], [0, 0]]


def test_weights_of_the_rows_of_a_bag(device: str) -> None:
    table, ids, weights = RNG.normal(size=(5, 3)), np.array([[1, 4], [1, 2]]), RNG.normal(size=4)
    expected = np.einsum("bnd,bn->bd", table[ids], weights.reshape(2, 2))
    options: dict[str, Any] = {"mode": "sum"}
    assert_gradients(
        lambda t, w: Tensor(ids).embedding_bag(t, per_sample_weights=w.reshape(2, 2), **options),
        table,
        weights,
    )
    found = Tensor(ids.ravel()).embedding_bag(
        Tensor(table), Tensor([0, 2]), per_sample_weights=Tensor(weights), **options
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_bilinear(device: str) -> None:
    a, b, weight, bias = (RNG.normal(size=n) for n in ((4, 2), (4, 3), (5, 2, 3), 5))
    expected = np.einsum("ni,oij,nj->no", a, weight, b) + bias
    found = Tensor(a).bilinear(Tensor(b), Tensor(weight), Tensor(bias))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_softmin(device: str) -> None:
    a = RNG.normal(size=(2, 3))
    np.testing.assert_array_equal(Tensor(a).softmin(0).numpy(), Tensor(-a).softmax(0).numpy())


# *** attention ***


def test_attention_without_any_position(device: str) -> None:
    """A row that an added mask closes entirely is 0, as one that a mask of bools does."""
    x = Tensor(RNG.normal(size=(1, 3, 4)), requires_grad=True)
    mask = np.zeros((3, 3))
    mask[1] = -np.inf
    mask[2, 0] = -np.inf
    added = x.scaled_dot_product_attention(x, x, Tensor(mask))
    chosen = x.scaled_dot_product_attention(x, x, Tensor(mask == 0))
    np.testing.assert_array_equal(added.numpy(), chosen.numpy())
    assert added.numpy()[0, 1].tolist() == [0, 0, 0, 0]
    added.sum().backward()
    assert x.grad is not None
    assert np.isfinite(x.grad.numpy()).all()


def test_heads_that_share_values(device: str) -> None:
    query, key, value = (RNG.normal(size=(1, n, 3, 2)) for n in (6, 3, 2))
    q, k, v = Tensor(query), Tensor(key), Tensor(value)
    found = q.scaled_dot_product_attention(k, v, enable_gqa=True)
    each = q.scaled_dot_product_attention(
        Tensor(key.repeat(2, 1)), Tensor(value.repeat(3, 1)), is_causal=False
    )
    np.testing.assert_allclose(found.numpy(), each.numpy(), rtol=1e-12)
