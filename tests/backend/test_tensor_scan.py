"""Running sums, products and extremes against NumPy, and their gradients."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gradients import assert_gradients

from ferrule import TinyJit
from ferrule.dtype import dtypes
from ferrule.tensor import Tensor

RNG = np.random.default_rng(3)
SIZES = (0, 1, 2, 5, 16, 17, 256, 257, 600)
Array = np.ndarray[Any, Any]


def last_extreme(values: Array, better: Any) -> tuple[Array, Array]:
    """The running extreme of a vector and its last position; NaN is better than anything."""
    best, places = values.copy(), np.zeros(len(values), np.int64)
    for place, value in enumerate(values):
        before = best[place - 1] if place else value
        wins = place == 0 or value != value or (before == before and better(value, before))
        best[place] = value if wins else before
        places[place] = place if wins else places[place - 1]
    return best, places


@pytest.mark.parametrize("size", SIZES)
def test_sums_and_products(device: str, size: int) -> None:
    whole = RNG.integers(-5, 5, (2, size))
    np.testing.assert_array_equal(Tensor(whole).cumsum(1).numpy(), np.cumsum(whole, 1))
    np.testing.assert_array_equal(Tensor(whole.T).cumsum(0).numpy(), np.cumsum(whole.T, 0))
    odd = whole * 2 + 1
    np.testing.assert_array_equal(Tensor(odd).cumprod(1).numpy(), np.cumprod(odd, 1))
    flags = whole > 0
    assert Tensor(flags).cumsum(1).dtype is dtypes.int64
    np.testing.assert_array_equal(Tensor(flags).cumsum(-1).numpy(), np.cumsum(flags, 1))
    near_one = 1 + RNG.normal(size=(size, 3)) / 100
    np.testing.assert_allclose(
        Tensor(near_one).cumprod(0).numpy(), np.cumprod(near_one, 0), rtol=1e-12
    )


@pytest.mark.parametrize("size", [1, 3, 8, 16, 63, 64, 100, 1040])
def test_what_is_the_same_for_all_elements_or_many(device: str, size: int) -> None:
    steps = np.arange(1, size + 1)
    np.testing.assert_array_equal(Tensor.full((size,), 2).cumsum(0).numpy(), 2 * steps)
    np.testing.assert_array_equal((Tensor(steps) * 0 + 1).cumsum(0).numpy(), steps)
    np.testing.assert_array_equal(Tensor.ones(2, size).cumprod(1).numpy(), np.ones((2, size)))
    np.testing.assert_array_equal(Tensor.ones(size).cummax(0)[0].numpy(), np.ones(size))
    row = np.arange(3)
    columns = Tensor(row).reshape(3, 1).expand(3, size)
    np.testing.assert_array_equal(columns.cumsum(1).numpy(), row[:, None] * steps)
    np.testing.assert_array_equal(columns.T.cumsum(0).numpy(), row * steps[:, None])
    blocks = Tensor(steps).repeat_interleave(16, 0)
    np.testing.assert_array_equal(blocks.cumsum(0).numpy(), np.cumsum(np.repeat(steps, 16)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["f", "i1", "u8", "?"])
def test_extremes(device: str, size: int, kind: str) -> None:
    values = RNG.integers(0, 7, (2, size)).astype(kind)
    if kind == "f" and size > 3:
        values[0, size // 2] = math.nan
        values[1, 0] = -math.inf
    for name, better in (("cummax", np.greater_equal), ("cummin", np.less_equal)):
        found, places = getattr(Tensor(values), name)(1)
        assert found.dtype is dtypes.from_np(values.dtype)
        assert places.dtype is dtypes.int32
        for row in range(2):
            best, wanted = last_extreme(values[row], better)
            np.testing.assert_array_equal(found.numpy()[row], best)
            np.testing.assert_array_equal(places.numpy()[row], wanted)


@pytest.mark.parametrize("size", SIZES)
def test_logarithms_of_sums(device: str, size: int) -> None:
    values = RNG.uniform(-300, 300, (size, 2))
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.accumulate(values, 0) if size else values
    np.testing.assert_allclose(Tensor(values).logcumsumexp(0).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_the_error_of_logarithms_of_sums(device: str, kind: str) -> None:
    for spread in (0.1, 1, 10, 100):
        for offset in (0, -5, 50):
            values = (RNG.normal(size=1000) * spread + offset).astype(kind)
            exact = np.logaddexp.accumulate(values.astype(np.longdouble))
            unit = np.maximum(1, abs(exact)) * np.finfo(kind).eps / 2
            x = Tensor(values)
            assert (abs(x.logcumsumexp().numpy() - exact) / unit).max() <= 6
            assert abs(x.logsumexp().numpy() - exact[-1]) / unit[-1] <= 6


def test_logarithms_of_sums_with_infinities(device: str) -> None:
    inf = math.inf
    x = Tensor([-inf, -inf, 1.0, inf, 2.0, math.nan])
    np.testing.assert_array_equal(
        x.logcumsumexp().numpy(), np.array([-inf, -inf, 1, inf, inf, math.nan], "f")
    )


def test_tensors_without_axes(device: str) -> None:
    x = Tensor(2.5)
    for axis in (0, -1):
        assert x.cumsum(axis).item() == x.cumprod(axis).item() == 2.5
        assert x.logcumsumexp(axis).item() == 2.5
        assert [part.item() for part in x.cummax(axis)] == [2.5, 0]


def test_dtypes(device: str) -> None:
    ones = np.ones(3000, np.float16)
    assert Tensor(ones).cumsum().numpy()[-1] == np.float16(3000)
    assert Tensor(ones).cumsum(dtype="float64").dtype is dtypes.float64
    assert Tensor(ones.astype(np.uint8)).cumsum().tolist()[-1] == 3000
    assert Tensor([2, 3]).cumprod(dtype="float32").dtype is dtypes.float32
    assert Tensor([2, 3]).logcumsumexp().dtype is dtypes.float32
    big = np.array([1 << 62, 3, (1 << 63) + 5], np.uint64)
    np.testing.assert_array_equal(Tensor(big).cumsum().numpy(), np.cumsum(big))


def test_sums_of_a_million_stay_exact(device: str) -> None:
    values = RNG.random(1_000_000, np.float32)
    found = Tensor(values).cumsum().numpy()
    np.testing.assert_allclose(found, np.cumsum(values, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 18])
def test_gradients(device: str, size: int) -> None:
    points = RNG.normal(size=(2, size))
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        assert_gradients(lambda x, name=name: getattr(x, name)(1), points)
        assert_gradients(lambda x, name=name: getattr(x, name)(0), points)
    assert_gradients(lambda x: x.cummax(1).values, points)
    assert_gradients(lambda x: x.cummin(1).values, points)


@pytest.mark.parametrize("zeros", [[2], [2, 4], [0], [0, 1, 5]])
def test_products_with_zeros_have_right_derivatives(device: str, zeros: list[int]) -> None:
    point = RNG.normal(size=6)
    point[zeros] = 0
    assert_gradients(lambda x: x.cumprod(), point)
    weights = RNG.normal(size=6)

    def slope(x: Tensor) -> Tensor:
        total = (x.cumprod() * Tensor(weights)).sum()
        return total.gradient(x, create_graph=True)[0]

    x = Tensor(point, requires_grad=True)
    for place in range(6):
        found = slope(x)[place].gradient(x)[0].numpy()
        step = np.zeros(6)
        for other in range(6):
            step[:] = 0
            step[other] = 1e-5
            above = slope(Tensor(point + step, requires_grad=True)).numpy()[place]
            below = slope(Tensor(point - step, requires_grad=True)).numpy()[place]
            assert found[other] == pytest.approx((above - below) / 2e-5, rel=1e-6, abs=1e-6)


def test_equal_elements_give_the_gradient_to_the_last(device: str) -> None:
    x = Tensor([1.0, 1.0, 0.0], requires_grad=True)
    x.cummax().values.sum().backward()
    assert x.grad.tolist() == [1, 2, 0]


def test_gradients_of_logarithms_far_apart(device: str) -> None:
    """Where e**x overflows, and where all that counts is the last element."""
    x = Tensor([1e4, -1e4, 0.0, 1e4], dtype="float64", requires_grad=True)
    (x.logcumsumexp() * Tensor([0.0, 1.0, -2.0, 4.0])).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1 - 2 + 2, 0, 0, 2])


def test_captured_scans() -> None:
    @TinyJit
    def running(x: Tensor) -> tuple[Tensor, ...]:
        return x.cumsum().realize(), *[part.realize() for part in x.cummax()]

    for seed in range(4):
        values = np.random.default_rng(seed).normal(size=100)
        total, largest, places = running(Tensor(values))
        np.testing.assert_allclose(total.numpy(), np.cumsum(values), rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(largest.numpy(), np.maximum.accumulate(values))
        np.testing.assert_array_equal(values[places.numpy()], largest.numpy())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.data())
def test_any_shape_and_axis(sizes: list[int], data: st.DataObject) -> None:
    sizes = [min(size, 4) if place else size for place, size in enumerate(sizes)]
    axis = data.draw(st.integers(-len(sizes), len(sizes) - 1))
    values = np.random.default_rng(0).integers(-3, 4, sizes)
    np.testing.assert_array_equal(Tensor(values).cumsum(axis).numpy(), np.cumsum(values, axis))
    largest, places = Tensor(values).cummax(axis)
    np.testing.assert_array_equal(largest.numpy(), np.maximum.accumulate(values, axis))
    picked = np.take_along_axis(values, places.numpy().astype(np.int64), axis)
    np.testing.assert_array_equal(picked, largest.numpy())


def test_positions_that_a_kernel_computes_are_added_to_by_one_thread() -> None:
    # The running maximum's positions are found in the kernel that scatters: it is large enough to
    # be shared out, and two threads once added to one place at a time.
    rng = np.random.default_rng(0)
    for _ in range(200):
        values, weights = rng.normal(size=(2, 2, 18))
        x = Tensor(values, requires_grad=True)
        x.cummax(1).values.backward(Tensor(weights))
        place = np.maximum.accumulate(
            np.where(values == np.maximum.accumulate(values, 1), np.arange(18), 0), 1
        )
        expected = np.zeros((2, 18))
        for row in range(2):
            np.add.at(expected[row], place[row], weights[row])
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), expected)
