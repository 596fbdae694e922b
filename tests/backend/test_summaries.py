"""Statistics under NumPy's names, against NumPy."""

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

RNG = np.random.default_rng(17)
GRID = RNG.normal(size=(3, 4, 5))
HOLES = np.where(RNG.random((3, 4, 5)) < 0.3, np.nan, GRID)
AXES = [None, 0, -1, (0, 2)]


@pytest.mark.filterwarnings("ignore:Degrees of freedom")
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["nanmax", "nanmin", "nanprod", "nanvar", "nanstd"])
def test_of_what_is_not_nan(device: str, name: str, axis: int | tuple[int, ...] | None) -> None:
    options = {"ddof": 1} if name in ("nanvar", "nanstd") else {}
    expected = getattr(np, name)(HOLES, axis=axis, **options)
    np.testing.assert_allclose(getattr(Tensor(HOLES), name)(axis).numpy(), expected, rtol=1e-10)
    kept = getattr(Tensor(HOLES), name)(axis, keepdim=True)
    assert kept.shape == getattr(np, name)(HOLES, axis=axis, keepdims=True, **options).shape


def test_where_all_are_nan(device: str) -> None:
    x = Tensor([[np.nan, np.nan], [1.0, -np.inf]])
    np.testing.assert_array_equal(x.nanmax(1).numpy(), [np.nan, 1])
    np.testing.assert_array_equal(x.nanmin(1).numpy(), [np.nan, -np.inf])
    assert x.nanprod(1).tolist()[0] == 1
    assert np.isnan(x.nanvar(1).numpy()).all()
    assert Tensor([3, 1]).nanmax().item() == 3
    assert Tensor([3, 1]).nanmin().item() == 1


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_ranges_and_percentiles(device: str, axis: int | tuple[int, ...] | None) -> None:
    x = Tensor(GRID)
    np.testing.assert_allclose(x.ptp(axis).numpy(), np.ptp(GRID, axis=axis), rtol=1e-12)
    for q in (30, [0, 12.5, 100]):
        expected = np.percentile(GRID, q, axis=axis)
        np.testing.assert_allclose(x.percentile(q, axis).numpy(), expected, rtol=1e-12)


def test_weighted_means(device: str) -> None:
    x, weights = Tensor(GRID), RNG.random((3, 4, 5))
    for axis in AXES:
        expected = np.average(GRID, axis=axis, weights=weights)
        found = x.average(axis, Tensor(weights))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    line = weights[0, :, 0]
    found = x.average(1, Tensor(line), keepdim=True)
    np.testing.assert_allclose(found.numpy()[:, 0], np.average(GRID, axis=1, weights=line))
    np.testing.assert_allclose(x.average(0).numpy(), GRID.mean(0), rtol=1e-12)
    with pytest.raises(ShapeError, match=r"\[average\] weights of shape \(4,\) for elements"):
        x.average(0, Tensor(line))


def test_gradients() -> None:
    points = RNG.permutation(12).reshape(3, 4) / 7
    weights = Tensor(RNG.random((3, 4)))
    for function in (
        lambda x: x.nanvar(0),
        lambda x: x.nanstd(1),
        lambda x: x.nanmax(0) * x.nanmin(1, keepdim=True),
        lambda x: x.average(0, weights),
        lambda x: x.ptp(),
    ):
        assert_gradients(function, points)


def test_copies_and_bytes(device: str) -> None:
    x = Tensor(GRID.astype(np.float32))
    assert x.T.tobytes() == GRID.astype(np.float32).T.tobytes()
    y = x.copy()
    y.zero_()
    assert x.numpy().any()
    with pytest.raises(TypeError, match=r"\[percentile\] q is a number, or several, not 'a'"):
        x.percentile("a")
    assert x.type_as(Tensor([1])).dtype.name == "int32"
    assert Tensor.zeros(2, 3).fill_diagonal_(2).tolist() == [[2, 0, 0], [0, 2, 0]]
