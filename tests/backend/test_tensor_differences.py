"""Differences, integrals and covariances against NumPy, with gradients."""

from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.dtype import dtypes
from ferrule.tensor import Tensor

RNG = np.random.default_rng(17)
CUBE = RNG.normal(size=(3, 4, 5))
ROWS = RNG.normal(size=(4, 30))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_differences(device: str, n: int, axis: int) -> None:
    x = Tensor(CUBE)
    np.testing.assert_allclose(x.diff(n, axis).numpy(), np.diff(CUBE, n, axis), atol=1e-12)
    if n:
        found = x.diff(n, axis, prepend=x, append=x * 2).numpy()
        expected = np.diff(CUBE, n, axis, prepend=CUBE, append=CUBE * 2)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_differences_of_other_kinds(device: str) -> None:
    assert Tensor([True, True, False]).diff().tolist() == [False, True]
    assert Tensor(np.array([1, 0], np.uint8)).diff().tolist() == [255]
    assert Tensor(np.zeros((2, 0))).diff().shape == (2, 0)
    assert_gradients(lambda x: x.diff(2, 1), CUBE)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_integrals(device: str, axis: int) -> None:
    x = Tensor(CUBE)
    points = np.sort(RNG.normal(size=CUBE.shape), axis)
    line = np.sort(RNG.normal(size=CUBE.shape[axis]))
    for where, mine in ((None, None), (points, Tensor(points)), (line, Tensor(line))):
        expected = np.trapezoid(CUBE, where, axis=axis)
        np.testing.assert_allclose(x.trapezoid(mine, axis=axis).numpy(), expected, rtol=1e-10)
        np.testing.assert_allclose(x.trapz(mine, axis=axis).numpy(), expected, rtol=1e-10)
        running = x.cumulative_trapezoid(mine, axis=axis).numpy()
        assert running.shape == np.diff(CUBE, axis=axis).shape
        np.testing.assert_allclose(running.take(-1, axis), expected, rtol=1e-10)
        np.testing.assert_allclose(
            running.take(0, axis),
            np.trapezoid(CUBE.take([0, 1], axis), _first_two(where, axis), axis=axis),
            rtol=1e-10,
        )
    np.testing.assert_allclose(
        x.trapezoid(dx=0.5, axis=axis).numpy(), np.trapezoid(CUBE, dx=0.5, axis=axis), rtol=1e-10
    )
    assert_gradients(lambda y, p: y.trapezoid(p, axis=axis), CUBE, points)


def _first_two(points: Any, axis: int) -> Any:
    if points is None:
        return None
    return points[:2] if points.ndim == 1 else points.take([0, 1], axis)


def test_integrals_of_integers_and_of_nothing(device: str) -> None:
    assert Tensor([1, 2, 4]).trapezoid().dtype is dtypes.float32
    assert Tensor([1.0]).trapezoid().item() == 0
    assert Tensor(np.zeros((2, 0))).trapezoid().tolist() == [0, 0]


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_covariances(device: str, correction: int) -> None:
    x = Tensor(ROWS)
    counts, weights = RNG.integers(1, 4, 30), RNG.random(30)
    for fweights in (None, counts):
        for aweights in (None, weights):
            expected = np.cov(ROWS, ddof=correction, fweights=fweights, aweights=aweights)
            found = x.cov(
                correction,
                None if fweights is None else Tensor(fweights),
                None if aweights is None else Tensor(aweights),
            )
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)
    assert x[0].cov(correction).item() == pytest.approx(np.cov(ROWS[0], ddof=correction))


def test_correlations(device: str) -> None:
    np.testing.assert_allclose(Tensor(ROWS).corrcoef().numpy(), np.corrcoef(ROWS), rtol=1e-10)
    assert Tensor(ROWS[0]).corrcoef().item() == 1
    far = (ROWS + 1e6).astype("f")
    found = Tensor(far).cov().numpy()
    np.testing.assert_allclose(found, np.cov(far.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_gradients_of_covariances(device: str) -> None:
    assert_gradients(lambda x: x.cov(), ROWS[:3, :6])
    assert_gradients(lambda x: x.corrcoef()[0, 1], ROWS[:3, :6])
    assert_gradients(lambda x, w: x.cov(aweights=w), ROWS[:2, :5], RNG.random(5) + 0.5)
