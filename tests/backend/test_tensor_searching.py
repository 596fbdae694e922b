"""Searches in sorted sequences, counts, histograms and sets, against NumPy."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import TinyJit
from ferrule.device.capture import JitError
from ferrule.dtype import DType, dtypes
from ferrule.helpers import GlobalCounters
from ferrule.tensor import Tensor

RNG = np.random.default_rng(13)
NORMAL = RNG.normal(size=(6, 50))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 1000])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searches(device: str, size: int, side: Any) -> None:
    sequence = np.sort(RNG.integers(-20, 20, size))
    wanted = RNG.integers(-22, 22, (3, 40))
    before = GlobalCounters.host_calls
    found = Tensor(sequence).searchsorted(Tensor(wanted), side=side)
    assert found.dtype is dtypes.int32
    np.testing.assert_array_equal(found.numpy(), np.searchsorted(sequence, wanted, side))
    right = side == "right"
    np.testing.assert_array_equal(
        Tensor(wanted).bucketize(Tensor(sequence), right=right).numpy(),
        np.searchsorted(sequence, wanted, side),
    )
    assert GlobalCounters.host_calls == before


def test_searches_of_rows_and_by_an_order(device: str) -> None:
    wanted = RNG.normal(size=(6, 20))
    ordered = np.sort(NORMAL, 1)
    expected = [np.searchsorted(row, values) for row, values in zip(ordered, wanted, strict=True)]
    found = Tensor(ordered).searchsorted(Tensor(wanted))
    np.testing.assert_array_equal(found.numpy(), expected)
    x = Tensor(NORMAL)
    found = x.searchsorted(Tensor(wanted), sorter=x.argsort())
    np.testing.assert_array_equal(found.numpy(), expected)
    assert Tensor([1.0, 2.0]).searchsorted(1.5).item() == 1
    assert Tensor([1, 2]).searchsorted(1.5).item() == 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_nan_is_searched_for_behind_all_numbers(device: str, side: Any) -> None:
    sequence = np.array([-math.inf, 0.0, 1.0, math.inf, math.nan, math.nan])
    wanted = np.array([math.nan, math.inf, -math.inf, -0.0, 5.0])
    found = Tensor(sequence).searchsorted(Tensor(wanted), side=side)
    np.testing.assert_array_equal(found.numpy(), np.searchsorted(sequence, wanted, side))


def test_captured_searches() -> None:
    @TinyJit
    def places(sequence: Tensor, wanted: Tensor) -> Tensor:
        return sequence.searchsorted(wanted).realize()

    for seed in range(4):
        rng = np.random.default_rng(seed)
        sequence, wanted = np.sort(rng.normal(size=100)), rng.normal(size=30)
        found = places(Tensor(sequence), Tensor(wanted))
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(sequence, wanted))


@pytest.mark.parametrize("count", [0, 1, 5, 32, 33, 500])
def test_elements_among_others(device: str, count: int) -> None:
    values = RNG.integers(0, 100, (7, 9))
    others = RNG.integers(0, 100, (count,))
    np.testing.assert_array_equal(
        Tensor(values).isin(Tensor(others)).numpy(), np.isin(values, others)
    )
    found = Tensor(values).isin(Tensor(others), invert=True)
    np.testing.assert_array_equal(found.numpy(), np.isin(values, others, invert=True))


def test_elements_among_numbers_of_other_kinds(device: str) -> None:
    assert Tensor([1.5, math.nan]).isin([1.5, math.nan]).tolist() == [True, False]
    assert Tensor([44], dtype="int8").isin(300).tolist() == [False]
    assert Tensor([0.1], dtype="float64").isin([0.1]).tolist() == [True]
    assert Tensor([math.nan]).isin(Tensor([math.nan] * 40)).tolist() == [False]
    assert Tensor(3).isin([3]).item() is True


def test_counts_of_numbers(device: str) -> None:
    values = RNG.integers(0, 9, 100)
    x = Tensor(values)
    for minimum in (0, 5, 20):
        found = x.bincount(minlength=minimum)
        assert found.dtype is dtypes.int32
        np.testing.assert_array_equal(found.numpy(), np.bincount(values, minlength=minimum))
    weights = RNG.normal(size=100)
    np.testing.assert_allclose(
        x.bincount(Tensor(weights)).numpy(), np.bincount(values, weights), rtol=1e-12
    )
    assert Tensor(np.zeros(0, np.int32)).bincount(minlength=2).tolist() == [0, 0]


def test_gradients_of_weighted_counts(device: str) -> None:
    weights = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    (Tensor([1, 0, 1]).bincount(weights) * Tensor([5.0, 7.0])).sum().backward()
    assert weights.grad.tolist() == [7, 5, 7]


@pytest.mark.parametrize("bins", [1, 4, 33])
@pytest.mark.parametrize("limits", [None, (-1.0, 2.0), (7.0, 8.0)])
def test_histograms(device: str, bins: int, limits: Any) -> None:
    x = Tensor(NORMAL)
    weights = RNG.random(NORMAL.shape)
    for density in (False, limits != (7.0, 8.0)):
        for given_weights in (None, weights):
            expected, edges = np.histogram(NORMAL, bins, limits, density, given_weights)
            weight = None if given_weights is None else Tensor(given_weights)
            found = x.histogram(bins, limits, weight, density)
            np.testing.assert_allclose(found.hist.numpy(), expected, rtol=1e-12)
            np.testing.assert_allclose(found.bin_edges.numpy(), edges, rtol=1e-14, atol=1e-15)
    low, high = limits or (0, 0)
    counts = np.histogram(NORMAL, bins, limits)[0]
    np.testing.assert_array_equal(x.histc(bins, low, high).numpy(), counts)


def test_histograms_at_the_edges(device: str) -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 3.5, math.nan, -1.0, math.inf])
    edges = np.array([0.0, 1.0, 3.0])
    expected = [1, 3]
    assert Tensor(values).histogram(Tensor(edges)).hist.tolist() == expected
    assert Tensor([1, 2, 1]).histc(4, 0, 3).tolist() == [0, 2, 1, 0]
    assert Tensor([5.0]).histc(2).tolist() == [0, 1]
    assert Tensor(np.zeros(0)).histc(3).tolist() == [0, 0, 0]
    assert Tensor([5.0, 5.0]).histogram(2).bin_edges.tolist() == [4.5, 5, 5.5]


@pytest.mark.parametrize("kind", ["int32", "float32", "float16", "bfloat16", "uint8", "bool"])
def test_different_elements(device: str, kind: str) -> None:
    x = Tensor(RNG.integers(0, 9, (4, 6))).cast(kind)
    values = x.numpy().astype(np.float64)
    found, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    expected = np.unique(values, return_inverse=True, return_counts=True)
    assert found.dtype is x.dtype
    np.testing.assert_array_equal(found.numpy().astype(np.float64), expected[0])
    np.testing.assert_array_equal(inverse.numpy(), expected[1].reshape(4, 6))
    np.testing.assert_array_equal(counts.numpy(), expected[2])
    assert x.unique().shape == expected[0].shape


def test_different_parts(device: str) -> None:
    rows = np.array([[1, 2], [0, 5], [1, 2]])
    for axis in (0, 1, -1):
        found, inverse, counts = Tensor(rows).unique(True, True, True, axis)
        expected = np.unique(rows, return_inverse=True, return_counts=True, axis=axis)
        np.testing.assert_array_equal(found.numpy(), expected[0])
        np.testing.assert_array_equal(inverse.numpy(), expected[1].reshape(-1))
        np.testing.assert_array_equal(counts.numpy(), expected[2])
    assert Tensor([math.nan, math.nan]).unique().shape == (2,)


def test_elements_unlike_the_one_before(device: str) -> None:
    x = Tensor([[1, 1, 2], [2, 1, 1]])
    found, inverse, counts = x.unique_consecutive(True, True)
    assert found.tolist() == [1, 2, 1]
    assert inverse.tolist() == [[0, 0, 1], [1, 2, 2]]
    assert counts.tolist() == [2, 2, 2]
    rows = Tensor([[1, 2], [1, 2], [3, 4], [1, 2]])
    assert rows.unique_consecutive(axis=0).tolist() == [[1, 2], [3, 4], [1, 2]]
    assert rows.T.unique_consecutive(axis=1).tolist() == [[1, 3, 1], [2, 4, 2]]
    assert Tensor(np.zeros((0, 3))).unique_consecutive().shape == (0,)


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if dtypes.is_float(d)], ids=str)
def test_different_floats_among_nans(device: str, dtype: DType) -> None:
    """Of any width: NumPy does not sort all of them."""
    x = Tensor([1.0, math.nan, 0.5, 1.0, -2.0, math.nan, 3.0]).cast(dtype)
    values, inverse = x.unique(return_inverse=True)
    for found in (x.unique(), values):
        assert found.dtype is dtype
        assert found.tolist()[:4] == [-2.0, 0.5, 1.0, 3.0]
        assert all(map(math.isnan, found.tolist()[4:]))
        assert found.shape == (6,)
    assert inverse.tolist() == [2, 4, 1, 2, 0, 5, 3]


@pytest.mark.parametrize("name", ["unique", "unique_consecutive", "bincount"])
def test_sizes_that_depend_on_data_are_not_captured(name: str) -> None:
    @TinyJit
    def different(x: Tensor) -> Tensor:
        found: Tensor = getattr(x + 1, name)()
        return found.realize()

    different(Tensor([1, 2]))
    with pytest.raises(JitError):
        different(Tensor([1, 2]))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(width=32), max_size=40), st.lists(st.floats(width=32), max_size=8))
def test_any_numbers_are_found_as_numpy_finds_them(
    numbers: list[float], wanted: list[float]
) -> None:
    sequence, values = np.sort(np.array(numbers, "f")), np.array(wanted, "f")
    for side in ("left", "right"):
        found = Tensor(sequence).searchsorted(Tensor(values), side=side).numpy()
        np.testing.assert_array_equal(found, np.searchsorted(sequence, values, side=side))
