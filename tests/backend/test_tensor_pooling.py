"""Convolutions and pools beyond the plain ones, against loops over places written in NumPy."""

import itertools
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.dtype import dtypes
from ferrule.tensor import Tensor

RNG = np.random.default_rng(8)


def test_convolution_pads_to_the_same_size(device: str) -> None:
    image, filters = RNG.normal(size=(2, 3, 7, 6)), RNG.normal(size=(4, 3, 4, 3))
    x, w = Tensor(image), Tensor(filters)
    same = x.conv2d(w, padding="same", dilation=(1, 2))
    assert same.shape == (2, 4, 7, 6)
    by_hand = x.pad((2, 2, 1, 2)).conv2d(w, dilation=(1, 2))
    np.testing.assert_array_equal(same.numpy(), by_hand.numpy())
    valid = x.conv2d(w, padding="valid")
    np.testing.assert_array_equal(valid.numpy(), x.conv2d(w).numpy())


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_convolution_without_a_batch(device: str, name: str, count: int) -> None:
    image, filters, bias = (RNG.normal(size=n) for n in ((2, 6, 5, 4), (2, 2, 3, 2, 1), 2))
    image, filters = image[(..., *[0] * (3 - count))], filters[(..., *[0] * (3 - count))]
    function = getattr(Tensor, f"{name}{count}d")
    single = function(Tensor(image), Tensor(filters), Tensor(bias), 2, 1)
    several = function(Tensor(image[None]), Tensor(filters), Tensor(bias), stride=2, padding=1)
    np.testing.assert_array_equal(single.numpy(), several.numpy()[0])


def test_transposed_convolution_over_one_axis(device: str) -> None:
    x, w = RNG.normal(size=(1, 2, 4)), RNG.normal(size=(2, 3, 3))
    expected = np.zeros((1, 3, 2 * 3 + 2 * 2 + 2))
    for place, tap, inner, outer in itertools.product(range(4), range(3), range(2), range(3)):
        expected[0, outer, 2 * place + 2 * tap] += x[0, inner, place] * w[inner, outer, tap]
    options: dict[str, Any] = {"stride": 2, "dilation": 2, "padding": 1, "output_padding": 1}
    found = Tensor(x).conv_transpose1d(Tensor(w), **options)
    np.testing.assert_allclose(found.numpy(), expected[..., 1:-1], rtol=1e-12)
    assert_gradients(lambda a, b: a.conv_transpose1d(b, **options), x, w)


# *** pooling ***


def places(length: int, size: int, step: int, spread: int, pad: int, up: bool) -> list[list[int]]:
    """The places that each window over an axis sees; those outside the input are negative."""
    reach = spread * (size - 1) + 1
    starts = list(range(-pad, length + pad - reach + 1, step))
    if up and starts[-1] + reach < length + pad and starts[-1] + step < length:
        starts.append(starts[-1] + step)
    taps = [[start + spread * k for k in range(size)] for start in starts]
    return [[n if n < length else -1 - n for n in window] for window in taps]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": 2, "ceil_mode": True},
    {"stride": 3, "padding": 1, "ceil_mode": True},
    {"stride": 1, "dilation": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(7,), (2, 9), (2, 3, 7, 8), (2, 6, 5, 7)], ids=str)
def test_pooling(device: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    count = {1: 1, 2: 1, 4: 2}[len(shape)] if shape[1:2] != (6,) else 3
    image = RNG.normal(size=shape) - 4
    spatial = shape[-count:]
    asked = (options.get(name, n) for name, n in (("stride", 3), ("dilation", 1), ("padding", 0)))
    step, spread, pad = asked
    up = options.get("ceil_mode", False)
    seen = [places(n, 3, step, spread, pad, up) for n in spatial]
    flat = image.reshape(*shape[:-count], -1)
    best, index, mean, inside = [], [], [], []
    for window in itertools.product(*seen):
        taps = [tap for tap in itertools.product(*window) if min(tap) >= 0]
        numbers = [int(np.ravel_multi_index(tap, spatial)) for tap in taps]
        part = flat[..., numbers]
        best.append(part.max(-1))
        index.append(np.asarray(numbers)[part.argmax(-1)])
        # What lies beyond the padding is not counted.
        sizes = [
            sum(n >= 0 or -pad <= n or -1 - n < size + pad for n in axis)
            for axis, size in zip(window, spatial, strict=True)
        ]
        mean.append(part.sum(-1) / np.prod(sizes))
        inside.append(part.mean(-1))
    target = (*shape[:-count], *[len(axis) for axis in seen])
    x = Tensor(image)
    found, where = getattr(x, f"max_pool{count}d")(3, return_indices=True, **options)
    np.testing.assert_array_equal(found.numpy(), np.stack(best, -1).reshape(target))
    np.testing.assert_array_equal(where.numpy(), np.stack(index, -1).reshape(target))
    average = getattr(x, f"avg_pool{count}d")
    found = average(3, **options)
    np.testing.assert_allclose(found.numpy(), np.stack(mean, -1).reshape(target), rtol=1e-12)
    found = average(3, count_include_pad=False, **options)
    np.testing.assert_allclose(found.numpy(), np.stack(inside, -1).reshape(target), rtol=1e-12)


def test_mean_with_a_given_divisor(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    assert x.avg_pool1d(2, divisor_override=4).tolist() == [0.75, 1.75]
    assert Tensor([1, 2]).avg_pool1d(2, divisor_override=1).tolist() == [3.0]


def test_places_of_equal_and_unusual_elements(device: str) -> None:
    values = Tensor([[2.0, 2.0, np.nan, 1.0, -np.inf, -np.inf]])
    found, where = values.max_pool1d(2, return_indices=True)
    np.testing.assert_array_equal(found.numpy(), [[2, np.nan, -np.inf]])
    assert where.tolist() == [[0, 2, 4]]
    assert where.dtype is dtypes.int64


def test_gradients_of_pooling() -> None:
    image = RNG.permutation(2 * 5 * 6).reshape(1, 2, 5, 6) / 7
    for options in OPTIONS[1:4]:
        assert_gradients(lambda x, o=options: x.max_pool2d(2, **o), image)
        assert_gradients(lambda x, o=options: x.avg_pool2d(2, count_include_pad=False, **o), image)


def test_elements_are_put_back(device: str) -> None:
    image = RNG.normal(size=(2, 3, 4, 6))
    pooled, where = Tensor(image).max_pool2d(2, return_indices=True)
    back = pooled.max_unpool2d(where, 2).numpy()
    expected = np.zeros((2, 3, 24))
    np.put_along_axis(
        expected, where.numpy().reshape(2, 3, 6), pooled.numpy().reshape(2, 3, 6), axis=-1
    )
    np.testing.assert_array_equal(back, expected.reshape(image.shape))
    # Three windows find the same element.
    pooled, where = Tensor([0.0, 0.1, 0.7, 0.2, 0.3]).max_pool1d(3, 1, return_indices=True)
    assert pooled.max_unpool1d(where, 3, 1).tolist() == Tensor([0, 0, 0.7, 0, 0]).tolist()
    larger = pooled.max_unpool1d(where, 3, 1, output_size=(6,))
    assert larger.shape == (6,)
    index = Tensor([[3, 0]])
    assert_gradients(lambda x: x.max_unpool1d(index, 2), RNG.normal(size=(1, 2)))


@pytest.mark.parametrize("power", [1, 2, 3.5, np.inf])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_norms_of_windows(device: str, count: int, power: float) -> None:
    image = np.abs(RNG.normal(size=(2, 4, 5, 6)[: count + 1]))
    axes = tuple(range(1, count + 1))
    seen = np.lib.stride_tricks.sliding_window_view(image, (3,) * count, axes)
    seen = seen[(slice(None), *[slice(None, None, 2)] * count)]
    expected = np.linalg.norm(seen.reshape(*seen.shape[: count + 1], -1), power, -1)
    found = getattr(Tensor(image), f"lp_pool{count}d")(power, 3, 2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_norms_of_windows_that_reach_beyond_the_input(device: str) -> None:
    # As if the mean of 4**2 went on.
    found = Tensor([3.0, 4.0, 4.0]).lp_pool1d(2, 2, ceil_mode=True)
    np.testing.assert_allclose(found.numpy(), [5, np.sqrt(32)], rtol=1e-6)
    assert Tensor([-1.0, -8.0]).lp_pool1d(3, 1).isnan().all().item()


def test_gradients_of_norms_of_windows() -> None:
    image = RNG.normal(size=(1, 2, 5, 4))
    assert_gradients(lambda x: x.lp_pool2d(2, (2, 3), 1), image)
    assert_gradients(lambda x: x.abs().lp_pool2d(3, 2, ceil_mode=True), image)
    x = Tensor([0.0, 0.0, 3.0, 4.0], requires_grad=True)
    x.lp_pool1d(2, 2).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [0, 0, 0.6, 0.8], rtol=1e-6)


# *** windows as columns ***


def test_columns_and_their_adjoint(device: str) -> None:
    image, filters = RNG.normal(size=(2, 3, 6, 5)), RNG.normal(size=(4, 3, 3, 2))
    options: dict[str, Any] = {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}
    x = Tensor(image)
    columns = x.im2col((3, 2), **options)
    expected = x.conv2d(Tensor(filters), **options).numpy()
    product = filters.reshape(4, -1) @ columns.numpy()
    np.testing.assert_allclose(product, expected.reshape(2, 4, -1), rtol=1e-10, atol=1e-12)
    other = RNG.normal(size=columns.shape)
    back = Tensor(other).fold((6, 5), (3, 2), **options).numpy()
    assert (columns.numpy() * other).sum() == pytest.approx((image * back).sum(), rel=1e-10)
    single = Tensor(other[0]).fold((6, 5), (3, 2), **options).numpy()
    np.testing.assert_array_equal(single, back[0])
    np.testing.assert_array_equal(x[0].im2col((3, 2), **options).numpy(), columns.numpy()[0])


@pytest.mark.parametrize("stride", [1, 2])
def test_squares_that_repeat_are_added_up_where_they_are(stride: int) -> None:
    row = np.array([1.0, 2.0, 3.0, np.inf, 5.0], np.float32)
    x = Tensor(row)
    found = (x * x).reshape(1, 5, 1).expand(1, 5, 4).fold((1, 5 + 3 * stride), (1, 5), 1, 0, stride)
    wanted = np.zeros(5 + 3 * stride, np.float32)
    for place in range(4):
        wanted[stride * place : stride * place + 5] += row * row
    np.testing.assert_array_equal(found.numpy().ravel(), wanted)
