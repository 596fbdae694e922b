"""Convolution, pooling, normalisation, attention and losses, against formulas written in NumPy."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from ferrule import Context, nn
from ferrule.dtype import DType, dtypes
from ferrule.tensor import Tensor

RNG = np.random.default_rng(4)
windows = np.lib.stride_tricks.sliding_window_view


def convolve(
    image: np.ndarray,
    filters: np.ndarray,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    pads: list[tuple[int, int]],
    groups: int,
) -> np.ndarray:
    """One output element at a time."""
    image = np.pad(image, [(0, 0), (0, 0), *pads])
    spatial = image.shape[2:]
    kernel = filters.shape[2:]
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(spatial, kernel, stride, dilation, strict=True)
    ]
    out = np.zeros((len(image), len(filters), *sizes))
    each = len(filters) // groups
    inner = filters.shape[1]
    for place in itertools.product(*[range(n) for n in sizes]):
        part = tuple(
            slice(o * s, o * s + d * (k - 1) + 1, d)
            for o, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        for f in range(len(filters)):
            first = (f // each) * inner
            seen = image[(slice(None), slice(first, first + inner), *part)]
            axes = tuple(range(1, seen.ndim))
            out[(slice(None), f, *place)] = (seen * filters[f]).sum(axes)
    return out


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 6, 5), (4, 3, 3, 3), {}),
    ((2, 3, 6, 5), (4, 3, 1, 1), {}),
    ((1, 3, 6, 5), (4, 3, 3, 2), {"stride": 2, "padding": 1}),
    ((1, 4, 7, 6), (6, 2, 3, 3), {"groups": 2, "stride": (2, 1)}),
    ((1, 4, 7, 6), (4, 1, 3, 3), {"groups": 4, "padding": (1, 2)}),
    ((1, 2, 9, 9), (3, 2, 3, 3), {"dilation": 2, "padding": 2}),
    ((1, 2, 8, 9), (3, 2, 3, 3), {"dilation": (1, 3), "stride": (3, 2)}),
    ((1, 2, 8, 9), (3, 2, 3, 3), {"padding": (1, 0, 2, 3)}),
    ((2, 3, 8), (4, 3, 3), {"padding": 1}),
    ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"stride": (1, 2, 2)}),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(device: str, case: Any) -> None:
    shape, kernel, options = case
    image, filters, bias = (RNG.normal(size=n) for n in (shape, kernel, kernel[:1]))
    count = len(shape) - 2

    def each(value: Any) -> tuple[int, ...]:
        return (value,) * count if isinstance(value, int) else tuple(value)

    padding = options.get("padding", 0)
    pads = [(n, n) for n in each(padding)]
    if not isinstance(padding, int) and len(padding) == 2 * count:
        pads = [(padding[2], padding[3]), (padding[0], padding[1])]
    expected = convolve(
        image,
        filters,
        each(options.get("stride", 1)),
        each(options.get("dilation", 1)),
        pads,
        options.get("groups", 1),
    )
    found = Tensor(image).conv2d(Tensor(filters), Tensor(bias), **options)
    assert found.shape == expected.shape
    expected = expected + bias.reshape(1, -1, *[1] * count)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_convolution_of_narrow_floats(device: str) -> None:
    image, filters = RNG.normal(size=(1, 4, 6, 6)), RNG.normal(size=(2, 4, 3, 3))
    narrow = Tensor(image).half().conv2d(Tensor(filters).half())
    assert narrow.dtype is dtypes.float16
    wide = Tensor(image).half().float().conv2d(Tensor(filters).half().float())
    np.testing.assert_allclose(narrow.float().numpy(), wide.numpy(), rtol=1e-3)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda dtype: dtype.name)
def test_gradients_of_a_convolution_of_narrow_floats(
    device: str, dtype: DType, stride: int
) -> None:
    """Sums are of float32, whose masks are those of the loads."""
    image, filters = RNG.normal(size=(2, 16, 9, 9)), RNG.normal(size=(24, 16, 3, 3))
    narrow = [Tensor(value).cast(dtype).realize() for value in (image, filters)]
    wide = [value.float().realize() for value in narrow]
    found = []
    for x, w in (narrow, wide):
        out = x.requires_grad_().conv2d(w.requires_grad_(), stride=stride, padding=1)
        found.append([out.detach(), *out.gradient(x, w, gradient=out.detach())])
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype is dtype
        largest = float(exact.abs().max().item())
        error = np.abs(ours.float().numpy() - exact.numpy()).max() / largest
        assert error < 2.0**-dtype.mantissa_bits


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"stride": (2, 3), "padding": 1},
        {"padding": (1, 0), "dilation": 2},
        {"stride": 2, "output_padding": 1, "groups": 2},
    ],
    ids=str,
)
def test_transposed_convolution_is_the_adjoint(device: str, options: dict[str, Any]) -> None:
    """<conv(x, w), y> = <x, conv_transpose(y, w)>."""
    filters = RNG.normal(size=(4, 3, 3, 2))
    y = RNG.normal(size=(2, 4, 4, 3))
    back = Tensor(y).conv_transpose2d(Tensor(filters), **options)
    x = RNG.normal(size=back.shape)
    forward = {name: value for name, value in options.items() if name != "output_padding"}
    there = Tensor(x).conv2d(Tensor(filters), **forward)
    assert there.shape == y.shape
    assert (there.numpy() * y).sum() == pytest.approx((x * back.numpy()).sum(), rel=1e-10)


# *** pooling ***


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((2, 2), {}),
        (3, {}),
        ((2, 3), {"stride": 1}),
        ((3, 3), {"stride": 2, "padding": 1}),
        ((2, 2), {"stride": (1, 2), "dilation": (2, 1)}),
        ((2, 2), {"padding": (1, 0)}),
    ],
    ids=str,
)
def test_pooling(device: str, kernel: Any, options: dict[str, Any]) -> None:
    image = RNG.normal(size=(2, 3, 7, 8)) - 5
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    given_stride = options.get("stride", sizes)
    stride = (given_stride,) * 2 if isinstance(given_stride, int) else given_stride
    dilation = options.get("dilation", (1, 1))
    given_pad = options.get("padding", 0)
    pad = (given_pad,) * 2 if isinstance(given_pad, int) else given_pad

    def seen(value: float) -> np.ndarray:
        wide = np.pad(image, [(0, 0), (0, 0), *[(n, n) for n in pad]], constant_values=value)
        reach = [d * (k - 1) + 1 for k, d in zip(sizes, dilation, strict=True)]
        parts = windows(wide, reach, (2, 3))[:, :, :: stride[0], :: stride[1]]
        return parts[..., :: dilation[0], :: dilation[1]]

    x = Tensor(image)
    found = x.max_pool2d(kernel, **options).numpy()
    np.testing.assert_array_equal(found, seen(-np.inf).max((-2, -1)))
    found = x.avg_pool2d(kernel, **options).numpy()
    np.testing.assert_allclose(found, seen(0).mean((-2, -1)), rtol=1e-12)
    found = x.avg_pool2d(kernel, count_include_pad=False, **options).numpy()
    np.testing.assert_allclose(found, np.nanmean(seen(np.nan), (-2, -1)), rtol=1e-12)


def test_pooling_of_integers(device: str) -> None:
    image = RNG.integers(-50, 50, (1, 1, 4, 4)).astype(np.int8)
    expected = image.reshape(1, 1, 2, 2, 2, 2).max((3, 5))
    np.testing.assert_array_equal(Tensor(image).max_pool2d().numpy(), expected)
    padded = Tensor(-np.abs(image) - 1).max_pool2d((2, 2), padding=1)
    assert padded.max().item() < 0


# *** normalisation ***


def test_normalisation(device: str) -> None:
    a = RNG.normal(size=(2, 3, 4)) * 3 + 2
    x = Tensor(a)
    for axis in (-1, (1, 2)):
        centred = a - a.mean(axis, keepdims=True)
        expected = centred / np.sqrt(a.var(axis, keepdims=True) + 1e-5)
        np.testing.assert_allclose(x.layernorm(axis).numpy(), expected, rtol=1e-12)
    expected = a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(x.rms_norm().numpy(), expected, rtol=1e-12)
    weight, bias, mean, deviation = (RNG.normal(size=3) for _ in range(4))
    found = x.batchnorm(*[Tensor(v) for v in (weight, bias, mean, deviation)])
    w, b, m, d = (v.reshape(1, 3, 1) for v in (weight, bias, mean, deviation))
    np.testing.assert_allclose(found.numpy(), (a - m) * d * w + b, rtol=1e-12)
    half = x.half().layernorm()
    assert half.dtype is dtypes.float16


def test_dropout(device: str) -> None:
    x = Tensor.ones(10_000)
    assert x.dropout(0.3) is x
    with Tensor.train():
        kept = x.dropout(0.3).numpy()
        assert x.dropout(0) is x
        assert x.dropout(1).sum().item() == 0
    values = np.unique(kept)
    np.testing.assert_allclose(values, [0, 1 / 0.7], rtol=1e-6)
    assert abs((kept > 0).mean() - 0.7) < 0.02


# *** attention ***


def attend(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None, scale: float
) -> np.ndarray:
    scores = query @ key.swapaxes(-1, -2) * scale
    if mask is not None:
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ value


def test_attention(device: str) -> None:
    query, key, value = (RNG.normal(size=n) for n in ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)))
    q, k, v = Tensor(query), Tensor(key), Tensor(value)
    plain = q.scaled_dot_product_attention(k, v)
    np.testing.assert_allclose(plain.numpy(), attend(query, key, value, None, 0.5), rtol=1e-11)
    scaled = q.scaled_dot_product_attention(k, v, scale=0.1)
    np.testing.assert_allclose(scaled.numpy(), attend(query, key, value, None, 0.1), rtol=1e-11)
    mask = RNG.random((5, 6)) > 0.4
    mask[:, 0] = True
    masked = q.scaled_dot_product_attention(k, v, attn_mask=Tensor(mask))
    np.testing.assert_allclose(masked.numpy(), attend(query, key, value, mask, 0.5), rtol=1e-11)
    added = RNG.normal(size=(2, 1, 5, 6))
    biased = q.scaled_dot_product_attention(k, v, attn_mask=Tensor(added))
    np.testing.assert_allclose(biased.numpy(), attend(query, key, value, added, 0.5), rtol=1e-11)
    causal = q.scaled_dot_product_attention(k, v, is_causal=True)
    lower = np.tril(np.ones((5, 6), bool))
    np.testing.assert_allclose(causal.numpy(), attend(query, key, value, lower, 0.5), rtol=1e-11)


def test_attention_with_groups_and_empty_rows(device: str) -> None:
    query, key, value = (RNG.normal(size=n) for n in ((1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)))
    q, k, v = Tensor(query), Tensor(key), Tensor(value)
    found = q.scaled_dot_product_attention(k, v, enable_gqa=True).numpy()
    wide = [array.repeat(2, 1) for array in (key, value)]
    np.testing.assert_allclose(found, attend(query, *wide, None, 1 / math.sqrt(2)), rtol=1e-11)
    nothing = Tensor(np.zeros((3, 3), bool))
    assert q.scaled_dot_product_attention(q, q, attn_mask=nothing).abs().sum().item() == 0


# *** losses ***


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(device: str, reduction: str, smoothing: float) -> None:
    scores = RNG.normal(size=(4, 5, 3)) * 4
    labels = RNG.integers(0, 5, (4, 3))
    logs = _log_softmax(scores, 1)
    chosen = -np.take_along_axis(logs, labels[:, None], 1)[:, 0]
    losses = chosen * (1 - smoothing) - logs.mean(1) * smoothing
    reduce: Any = {"mean": np.mean, "sum": np.sum, "none": np.asarray}[reduction]
    x = Tensor(scores)
    found = x.cross_entropy(Tensor(labels), reduction, smoothing)
    np.testing.assert_allclose(found.numpy(), reduce(losses), rtol=1e-11)
    last = Tensor(np.moveaxis(scores, 1, -1)).sparse_categorical_crossentropy(
        Tensor(labels), label_smoothing=smoothing, reduction=reduction
    )
    np.testing.assert_allclose(last.numpy(), reduce(losses), rtol=1e-11)
    chances = np.moveaxis(np.eye(5)[labels], -1, 1)
    soft = x.cross_entropy(Tensor(chances), reduction, smoothing)
    np.testing.assert_allclose(soft.numpy(), reduce(losses), rtol=1e-11)


def test_ignored_labels(device: str) -> None:
    scores = RNG.normal(size=(4, 5))
    labels = np.array([1, -1, 3, -1])
    logs = _log_softmax(scores, 1)
    kept = -logs[[0, 2], [1, 3]]
    x = Tensor(scores)
    found = x.sparse_categorical_crossentropy(Tensor(labels))
    assert found.item() == pytest.approx(kept.mean(), rel=1e-11)
    found = x.cross_entropy(Tensor(labels), ignore_index=-1, label_smoothing=0.3)
    smooth = kept * 0.7 - logs[[0, 2]].mean(1) * 0.3
    assert found.item() == pytest.approx(smooth.mean(), rel=1e-11)
    each = x.cross_entropy(Tensor(labels), "none", ignore_index=-1)
    np.testing.assert_allclose(each.numpy(), [kept[0], 0, kept[1], 0], rtol=1e-11)


def test_weighted_negative_log_likelihood(device: str) -> None:
    scores = RNG.normal(size=(4, 5))
    labels, weight = np.array([1, 0, 3, 1]), np.array([0.5, 2.0, 1.0, 3.0, 1.0])
    logs = _log_softmax(scores, 1)
    each = -logs[np.arange(4), labels] * weight[labels]
    x = Tensor(logs)
    found = x.nll_loss(Tensor(labels), Tensor(weight))
    assert found.item() == pytest.approx(each.sum() / weight[labels].sum(), rel=1e-11)
    single = Tensor(logs[0]).nll_loss(Tensor(2))
    assert single.item() == pytest.approx(-logs[0, 2], rel=1e-11)


def test_impossible_classes(device: str) -> None:
    scores = Tensor([[0.0, -math.inf], [0.0, 1000.0]])
    assert scores.cross_entropy(Tensor([0, 1])).item() == 0
    assert scores.cross_entropy(Tensor([1, 1]), "none").tolist() == [math.inf, 0]


def test_binary_cross_entropy(device: str) -> None:
    chances, targets = RNG.random(20), RNG.random(20)
    expected = -(targets * np.log(chances) + (1 - targets) * np.log(1 - chances))
    found = Tensor(chances).binary_crossentropy(Tensor(targets), "none")
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11)
    logits = np.log(chances) - np.log(1 - chances)
    found = Tensor(logits).binary_crossentropy_logits(Tensor(targets), "none")
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11)
    assert Tensor([0.0, 1.0]).binary_crossentropy(Tensor([0.0, 1.0])).item() == 0


def test_distances(device: str) -> None:
    a, b = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))
    x, y = Tensor(a), Tensor(b)
    assert x.mse_loss(y).item() == pytest.approx(((a - b) ** 2).mean())
    assert x.l1_loss(y, "sum").item() == pytest.approx(np.abs(a - b).sum())
    np.testing.assert_allclose(x.mse_loss(y, "none").numpy(), (a - b) ** 2)


def test_sequential(device: str) -> None:
    found = Tensor([-1.0, 4.0]).sequential([Tensor.relu, Tensor.sqrt, lambda x: x + 1])
    assert found.tolist() == [1, 3]


# *** random activations ***


def test_rrelu() -> None:
    x = Tensor(np.linspace(-3, 3, 601, dtype=np.float32))
    values = x.numpy()
    np.testing.assert_allclose(
        x.rrelu(0.1, 0.5).numpy(), np.where(values < 0, values * 0.3, values), rtol=1e-6
    )
    Tensor.manual_seed(1)
    found = x.rrelu(0.1, 0.5, training=True).numpy()
    np.testing.assert_array_equal(found[300:], values[300:])
    slopes = found[:300] / values[:300]
    assert 0.1 <= slopes.min() < 0.12
    assert 0.48 < slopes.max() <= 0.5 + 1e-6
    assert abs(slopes.mean() - 0.3) < 0.03
    assert x.half().rrelu(training=True).dtype is dtypes.float16
    with Tensor.train():
        assert len(np.unique(nn.RReLU(0.1, 0.5)(x * 0 - 1).numpy())) > 100
    with pytest.raises(ValueError, match=r"\[rrelu\] lower 2 is above upper 1; swap them"):
        x.rrelu(2, 1)


def test_gumbel_softmax_draws_as_often_as_softmax_says() -> None:
    Tensor.manual_seed(2)
    logits = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
    x = Tensor(np.tile(logits[:, None], (1, 20000)))
    expected = np.exp(logits) / np.exp(logits).sum()
    hard = x.gumbel_softmax(tau=0.7, hard=True, dim=0).numpy()
    np.testing.assert_allclose(hard.sum(0), 1, rtol=1e-6)
    np.testing.assert_allclose(hard.mean(1), expected, atol=0.015)
    soft = x.gumbel_softmax(tau=0.7, dim=0).numpy()
    np.testing.assert_allclose(soft.sum(0), 1, rtol=1e-5)
    np.testing.assert_allclose(
        (soft.argmax(0)[:, None] == np.arange(4)).mean(0), expected, atol=0.015
    )
    assert x[:, :3].half().gumbel_softmax().dtype is dtypes.float16
    with pytest.raises(ValueError, match=r"\[gumbel_softmax\] tau 0 has to be more than 0"):
        x.gumbel_softmax(tau=0)


def test_gumbel_softmax_is_as_exact_as_its_logits(device: str) -> None:
    logits = np.linspace(-2, 2, 12).reshape(3, 4)

    def drawn() -> np.ndarray:
        Tensor.manual_seed(3)
        return Tensor(logits, dtype="float64").gumbel_softmax().numpy()

    found = drawn()
    with Context(FERRULE_DEVICE="NUMPY"):
        np.testing.assert_allclose(found, drawn(), rtol=1e-12)


def test_a_hard_gumbel_softmax_has_the_gradient_of_the_soft_one() -> None:
    gradients = []
    for hard in (False, True):
        Tensor.manual_seed(3)
        x = Tensor([[0.5, -1.0, 2.0], [0.0, 0.3, 0.1]], requires_grad=True)
        (x.gumbel_softmax(hard=hard) * Tensor([1.0, 2.0, 5.0])).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.numpy())
    assert np.abs(gradients[0]).max() > 0.01
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-5)


@pytest.mark.parametrize("shape", [(256, 32, 4, 128, 32), (40, 7, 2, 60, 9), (64, 48, 1, 200, 33)])
def test_a_convolution_of_rows_of_a_table(device: str, shape: tuple[int, ...]) -> None:
    """What is loaded says where the image is loaded from, and is not copied by itself."""
    rows, channels, batch, length, filters = shape
    rng = np.random.default_rng(0)
    table = rng.standard_normal((rows, channels)).astype(np.float32)
    weight = rng.standard_normal((filters, channels, 2)).astype(np.float32)
    places = rng.integers(0, rows, (batch, length))
    image = Tensor(places).embedding(Tensor(table)).transpose(1, 2).pad((1, 0))
    padded = np.pad(table[places].transpose(0, 2, 1).astype(np.float64), ((0, 0), (0, 0), (1, 0)))
    expected = sum(
        np.einsum("bcl,oc->bol", padded[:, :, k : k + length], weight[:, :, k]) for k in range(2)
    )
    np.testing.assert_allclose(image.conv1d(Tensor(weight)).numpy(), expected, atol=1e-4)
