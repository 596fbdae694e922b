"""Reductions against NumPy: axes, dtypes, NaN, empty axes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.dtype import DType, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

RNG = np.random.default_rng(2)
CUBE = RNG.normal(size=(3, 4, 5))
AXES: list[Any] = [None, 0, 1, -1, (0, 2), (1, -1), (0, 1, 2), ()]


def assert_close(tensor: Tensor, expected: Any, rtol: float = 1e-12) -> None:
    found, wanted = tensor.numpy(), np.asarray(expected)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=rtol)


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_over_axes(device: str, axis: Any, keepdims: bool) -> None:
    x = Tensor(CUBE)
    for name in ("sum", "prod", "mean", "max", "min"):
        found = getattr(x, name)(axis, keepdim=keepdims)
        assert_close(found, getattr(np, name)(CUBE, axis=axis, keepdims=keepdims))
    if axis != ():
        assert_close(x.var(axis, keepdims), np.var(CUBE, axis=axis, keepdims=keepdims, ddof=1))
        assert_close(x.std(axis, keepdims), np.std(CUBE, axis=axis, keepdims=keepdims, ddof=1))
        population = np.var(CUBE, axis=axis, keepdims=keepdims)
        assert_close(x.var(axis, keepdims, correction=0), population)
    sparse = CUBE * (CUBE > 0)
    assert_close(Tensor(sparse).any(axis, keepdims), np.any(sparse, axis=axis, keepdims=keepdims))
    assert_close(Tensor(sparse).all(axis, keepdims), np.all(sparse, axis=axis, keepdims=keepdims))


SUMS = {
    dtypes.bool: dtypes.int64,
    dtypes.int8: dtypes.int64,
    dtypes.uint8: dtypes.int64,
    dtypes.int16: dtypes.int64,
    dtypes.uint16: dtypes.int64,
    dtypes.int32: dtypes.int64,
    dtypes.uint32: dtypes.int64,
    dtypes.int64: dtypes.int64,
    dtypes.uint64: dtypes.uint64,
    dtypes.float16: dtypes.float16,
    dtypes.bfloat16: dtypes.bfloat16,
}


@pytest.mark.parametrize("dtype", SUMS, ids=lambda d: d.name)
def test_dtypes_of_sums(device: str, dtype: DType) -> None:
    a = np.array([1, 0, 1, 1, 1], dtype.np)
    x = Tensor(a)
    assert x.sum().dtype is SUMS[dtype]
    assert x.sum().item() == 4
    assert x.prod().dtype is SUMS[dtype]
    assert x.sum(dtype="float64").dtype is dtypes.float64
    is_float = dtypes.is_float(dtype)
    assert x.mean().dtype is (dtype if is_float else dtypes.float32)
    assert x.mean().item() == pytest.approx(0.8, rel=1e-2)
    assert x.max().dtype is dtype
    assert x.max().item() == 1
    assert x.min().item() == 0


def test_small_integers_do_not_overflow(device: str) -> None:
    assert Tensor(np.full(1000, 100, np.int8)).sum().item() == 100_000
    assert Tensor(np.full(1000, 200, np.uint8)).sum().item() == 200_000


TOTALS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(1),
    "cumsum": lambda x: x.cumsum(1)[:, -1],
    "nansum": lambda x: x.nansum(1),
    "sum_to_size": lambda x: x.sum_to_size(x.shape[0], 1).squeeze(1),
    "reduce": lambda x: x.reduce("a b -> a", "sum"),
    "trace": lambda x: x.diag_embed().trace(dim1=1, dim2=2),
}


@pytest.mark.parametrize("total", TOTALS.items(), ids=lambda total: total[0])
@pytest.mark.parametrize("dtype", [*filter(dtypes.is_int, SUMS)], ids=lambda d: d.name)
def test_totals_of_integers_do_not_overflow(device: str, dtype: DType, total: Any) -> None:
    extremes = np.array([[dtypes.min(dtype)] * 70, [dtypes.max(dtype)] * 70], dtype.np)
    wide = np.uint64 if dtype is dtypes.uint64 else np.int64
    found = total[1](Tensor(extremes)).numpy()
    assert found.dtype == wide
    np.testing.assert_array_equal(found, extremes.sum(1, dtype=wide))


@pytest.mark.parametrize("size", [1, 3, 40, 3000])
def test_products_of_bools_are_true_if_all_are(device: str, size: int) -> None:
    x = Tensor.ones(2, size, dtype=dtypes.bool, device=device)
    x[1, size // 2] = False
    assert x.contiguous().prod(1, dtype=dtypes.bool).tolist() == [True, False]


def test_products_of_integers_do_not_overflow(device: str) -> None:
    for dtype in (dtypes.int8, dtypes.uint16, dtypes.int32):
        a = np.full((2, 4), 100, dtype.np)
        assert Tensor(a).prod(1).tolist() == [10**8] * 2
        assert Tensor(np.full(6, 100, dtype.np)).prod().item() == 10**12
        assert Tensor(np.full(6, 100, dtype.np)).cumprod().tolist()[-1] == 10**12


@pytest.mark.parametrize("count", [2**24 - 1, 2**24, 2**24 + 1])
def test_many_narrow_integers_do_not_overflow(device: str, count: int) -> None:
    low = Tensor(np.array([-128], np.int8)).realize()
    assert low.expand(count).sum().item() == -128 * count


def test_counts_of_places_are_int32(device: str) -> None:
    flags = Tensor([True, False, True])
    assert flags.count_nonzero().dtype is flags.argmax().dtype is dtypes.int32
    assert flags.sum().dtype is flags.cumsum().dtype is dtypes.int64


def test_extremes_of_every_integer(device: str) -> None:
    for dtype in dtypes.all:
        if dtypes.is_int(dtype):
            low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
            x = Tensor(np.array([low, high, 1], dtype.np))
            assert (x.min().item(), x.max().item()) == (low, high)
            assert (x.argmin().item(), x.argmax().item()) == (0, 1)


def test_narrow_floats_accumulate_in_float32(device: str) -> None:
    ones = np.ones(5000)
    for dtype in (dtypes.float16, dtypes.bfloat16):
        x = Tensor(ones.astype(dtype.np))
        assert x.mean().item() == 1
        assert x.sum().item() == float(np.array(5000).astype(dtype.np))
        spread = Tensor((RNG.normal(size=5000) * 3 + 1).astype(dtype.np))
        exact = spread.numpy().astype(np.float64)
        assert spread.var().item() == pytest.approx(exact.var(ddof=1), rel=1e-2)


def test_nan_wins(device: str) -> None:
    a = np.array([[1.0, math.nan, 3.0], [4.0, 5.0, math.nan]], "f")
    x = Tensor(a)
    for name in ("max", "min", "sum", "mean"):
        np.testing.assert_array_equal(getattr(x, name)(1).numpy(), getattr(np, name)(a, axis=1))
        np.testing.assert_array_equal(getattr(x, name)(0).numpy(), getattr(np, name)(a, axis=0))
    np.testing.assert_array_equal(x.argmax(1).numpy(), a.argmax(1))
    np.testing.assert_array_equal(x.argmin(1).numpy(), a.argmin(1))


@pytest.mark.parametrize("name", ["max", "min"])
def test_values_along_an_axis_are_not_unpacked(device: str, name: str) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = Tensor(a)
    for values in (getattr(x, name)(1), getattr(x, name)(dim=1), getattr(x, name)(0).realize()):
        with pytest.raises(TypeError, match=rf"write x\.{name}\(axis\), x\.arg{name}\(axis\)"):
            _, _ = values
    found = getattr(x, name)(1)
    expected = getattr(a, name)(1)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert [float(part) for part in found.unbind()] == found.tolist() == expected.tolist()
    assert found[1].item() == expected[1]
    for same in (getattr(x, f"a{name}")(1), found * 1, found.clone(), x.sum(1)):
        assert len(list(same)) == 2
    low, high = x.aminmax(axis=1)
    assert len(list(low)) == len(list(high)) == 2


def test_infinities(device: str) -> None:
    x = Tensor([-math.inf, -math.inf])
    assert x.max().item() == -math.inf
    assert x.logsumexp().item() == -math.inf
    assert x.argmax().item() == 0
    assert Tensor([math.inf, 1.0]).logsumexp().item() == math.inf
    assert Tensor([-math.inf, 0.0]).softmax().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_positions(device: str, axis: int | None) -> None:
    ties = RNG.integers(0, 3, (3, 4, 5))
    for values in (CUBE, ties, ties > 1, ties.astype(np.uint8)):
        x = Tensor(values)
        for name in ("argmax", "argmin"):
            found = getattr(x, name)(axis)
            assert found.dtype is dtypes.int32
            np.testing.assert_array_equal(found.numpy(), getattr(np, name)(values, axis=axis))
            kept = getattr(x, name)(axis, keepdim=True).numpy()
            np.testing.assert_array_equal(kept, getattr(np, name)(values, axis, keepdims=True))


def test_empty_axes(device: str) -> None:
    x = Tensor(np.zeros((3, 0, 2)))
    assert x.sum(1).tolist() == [[0, 0], [0, 0], [0, 0]]
    assert x.prod(1).tolist() == [[1, 1], [1, 1], [1, 1]]
    assert x.any(1).tolist() == [[False] * 2] * 3
    assert x.all(1).tolist() == [[True] * 2] * 3
    assert np.isnan(x.mean(1).numpy()).all()
    assert x.max(0).shape == (0, 2)
    assert x.sum().item() == 0
    assert x.logsumexp(1).tolist() == [[-math.inf] * 2] * 3
    assert x.softmax(1).shape == x.log_softmax(1).shape == (3, 0, 2)
    for name in ("max", "min", "argmax", "argmin"):
        with pytest.raises(ShapeError, match=rf"\[{name}\] axis 1 of shape \(3, 0, 2\) has no"):
            getattr(x, name)(1)


SCALARS = ("sum", "prod", "mean", "max", "min", "amax", "amin", "logsumexp", "nansum", "nanmean")


def test_scalars(device: str) -> None:
    x = Tensor(2.5)
    for name in SCALARS:
        assert getattr(x, name)().item() == 2.5
        for axis in (0, -1):
            found = getattr(x, name)(axis, keepdim=True)
            assert (found.shape, found.item()) == ((), 2.5)
    for axis in (None, 0, -1):
        assert x.argmax(axis).item() == x.argmin(axis, keepdim=True).item() == 0
        assert x.any(axis).item()
        assert x.all(axis).item()
        assert math.isnan(x.var(axis).item())
        assert x.var(axis, correction=0).item() == 0
    assert x.softmax().item() == 1
    with pytest.raises(ShapeError, match=r"\[sum\] axis 1: a tensor without axes has none"):
        x.sum(1)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "nansum", "nanmean"])
def test_a_dtype_is_that_of_the_sum_and_the_result(device: str, name: str) -> None:
    halves = Tensor(np.array([[60000.0, 60000.0], [2.0, 0.5]], np.float16))
    found = getattr(halves, name)(1, dtype="float64")
    assert found.dtype is dtypes.float64
    exact = halves.numpy().astype(np.float64)
    np.testing.assert_array_equal(found.numpy(), getattr(np, name)(exact, axis=1))


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_what_is_not_nan(device: str, axis: Any) -> None:
    holes = np.where(np.arange(60).reshape(CUBE.shape) % 7 < 2, np.nan, CUBE)
    x = Tensor(holes, requires_grad=True)
    assert_close(x.nansum(axis), np.nansum(holes, axis))
    if axis != ():
        counts = (~np.isnan(holes)).sum(axis, keepdims=True)
        assert_close(x.nanmean(axis), np.nansum(holes, axis) / counts.reshape(x.nansum(axis).shape))
        x.nanmean(axis).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.where(np.isnan(holes), 0, 1 / counts))
    assert math.isnan(Tensor([math.nan]).nanmean().item())
    assert Tensor([math.nan]).nansum().item() == 0
    assert Tensor([1, 2]).nansum().dtype is dtypes.int64


def test_counts_and_pairs(device: str) -> None:
    values = np.array([[0.0, -0.0, math.nan], [2.0, 0.0, math.inf]])
    x = Tensor(values)
    for axis in (None, 0, 1, (0, 1)):
        np.testing.assert_array_equal(
            x.count_nonzero(axis).numpy(), np.count_nonzero(values, axis=axis)
        )
    small, large = Tensor(CUBE).aminmax(axis=1, keepdim=True)
    np.testing.assert_array_equal(small.numpy(), CUBE.min(1, keepdims=True))
    np.testing.assert_array_equal(large.numpy(), CUBE.max(1, keepdims=True))
    np.testing.assert_array_equal(Tensor(CUBE).max(Tensor(0.0)).numpy(), np.maximum(CUBE, 0))
    np.testing.assert_array_equal(Tensor(CUBE).min(Tensor(0.0)).numpy(), np.minimum(CUBE, 0))
    np.testing.assert_allclose(
        Tensor(CUBE).sum_to_size(4, 1).numpy(), CUBE.sum((0, 2)).reshape(4, 1), rtol=1e-12
    )


def test_equality_of_the_whole(device: str) -> None:
    x = Tensor(CUBE)
    assert x.equal(Tensor(CUBE.copy()))
    assert not x.equal(Tensor(CUBE + 1e-9))
    assert not x.equal(Tensor(CUBE[:1]))
    assert Tensor(np.zeros((0, 2))).equal(Tensor(np.zeros((0, 2))))
    assert not Tensor([math.nan]).equal(Tensor([math.nan]))


def test_sums_of_millions_stay_exact(device: str) -> None:
    values = RNG.random(3_000_000, np.float32)
    exact = values.astype(np.float64)
    x = Tensor(values)
    assert x.sum().item() == pytest.approx(exact.sum(), rel=1e-6)
    assert x.mean().item() == pytest.approx(exact.mean(), rel=1e-6)
    assert x.var().item() == pytest.approx(exact.var(ddof=1), rel=2e-6)
    columns = x.reshape(-1, 3)
    np.testing.assert_allclose(columns.sum(0).numpy(), exact.reshape(-1, 3).sum(0), rtol=2e-6)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(device: str, axis: int) -> None:
    wide = CUBE * 30
    x = Tensor(wide)
    expected = _softmax(wide, axis)
    assert_close(x.softmax(axis), expected)
    shifted = wide - wide.max(axis, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    np.testing.assert_allclose(x.log_softmax(axis).numpy(), logs, rtol=1e-12, atol=1e-14)
    total = np.log(np.exp(wide).sum(axis))
    assert_close(x.logsumexp(axis), total)
    assert_close(x.logsumexp((0, 2)), np.log(np.exp(wide).sum((0, 2))))
    half = Tensor(wide.astype(np.float16)).softmax(axis)
    assert half.dtype is dtypes.float16
    np.testing.assert_allclose(half.numpy(), _softmax(wide.astype(np.float16), axis), atol=2e-3)
    assert x.float().softmax(axis, dtype="float64").dtype is dtypes.float64
    large = np.array([[1e4, 1e4 + 1]], "f")
    np.testing.assert_allclose(Tensor(large).softmax().numpy(), _softmax(large, 1), rtol=1e-5)


def test_variance_with_mean(device: str) -> None:
    variance, mean = Tensor(CUBE).var_mean(1)
    assert_close(variance, CUBE.var(1, ddof=1))
    assert_close(mean, CUBE.mean(1))
    deviation, mean = Tensor(CUBE).std_mean((0, 2), keepdim=True, correction=0)
    assert_close(deviation, CUBE.std((0, 2), keepdims=True))
    assert_close(mean, CUBE.mean((0, 2), keepdims=True))


def test_large_values_with_small_variance(device: str) -> None:
    for offset, spread in ((1000, 1e-2), (1e8, 30.0), (1e8, 0.0)):
        a = (RNG.normal(size=10_000) * spread + offset).astype("f")
        exact = a.astype(np.float64)
        x = Tensor(a, requires_grad=True)
        variance = x.var()
        assert variance.item() == pytest.approx(exact.var(ddof=1), rel=1e-5)
        variance.backward()
        slope = 2 * (exact - exact.mean()) / 9999
        np.testing.assert_allclose(x.grad.numpy(), slope, rtol=1e-4, atol=1e-7)


def test_each_way_to_say_the_correction(device: str) -> None:
    x = Tensor(CUBE)
    population = CUBE.var()
    for found in (
        x.var(False),
        x.var(unbiased=False),
        x.var(ddof=0),
        x.var(correction=0),
        x.std(False).square(),
        x.var_mean(unbiased=False)[0],
        x.std_mean(None, correction=0)[0] ** 2,
    ):
        assert_close(found, population)
    assert_close(x.var(1, correction=0.5), CUBE.var(1) * 4 / 3.5)
    assert x.var(1, correction=4).tolist() == np.full((3, 5), math.inf).tolist()
    assert Tensor([3.0, 3.0]).var(correction=2).isnan().item()


def test_the_gradient_of_a_deviation_of_0_is_0(device: str) -> None:
    x = Tensor([[2.0, 2.0], [1.0, 3.0]], requires_grad=True)
    x.std(1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [[0, 0], [-(0.5**0.5), 0.5**0.5]], rtol=1e-6)


def test_gradients_of_moments(device: str) -> None:
    for axis in (None, 1, (0, 2)):
        assert_gradients(lambda x, axis=axis: x.var(axis), CUBE)
        assert_gradients(lambda x, axis=axis: x.std(axis, correction=0), CUBE)
