"""Sums in which an equality of two indices says what counts: diagonals, triangles, one-hot rows.

Such a sum is over one index only. Which of the two, and what is left of the other, is decided where
an axis of the sum is shortened.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule.dtype import dtypes
from ferrule.tensor import Tensor

RNG = np.random.default_rng(19)
SHAPES = [(1, 1), (2, 2), (3, 5), (8, 8), (17, 4)]
AXES = [None, 0, 1]


def whole(*shape: int) -> Any:
    """Small whole numbers, whose sums are exact."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def check(found: Tensor, expected: Any) -> None:
    np.testing.assert_array_equal(found.numpy(), np.asarray(expected, np.float32))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_under_a_mask(device: str, shape: tuple[int, int], axis: int | None) -> None:
    rows, columns = shape
    a = whole(rows, columns)
    x, unit, mask = Tensor(a), Tensor.eye(rows, columns), np.eye(rows, columns)
    check((x * unit).sum(axis), (a * mask).sum(axis))
    check((x * (1 - unit)).sum(axis), (a * (1 - mask)).sum(axis))
    check((x * x * unit * 2).sum(axis), (a * a * mask * 2).sum(axis))
    check(unit.cast(dtypes.bool).where(x, 0).sum(axis), np.where(mask, a, 0).sum(axis))
    check(unit.cast(dtypes.bool).where(x, 1).prod(axis), np.where(mask, a, 1).prod(axis))
    check((x * unit).max(axis), (a * mask).max(axis))
    at = RNG.integers(0, columns, rows)
    chosen = np.eye(columns)[at]
    check((x * Tensor(at).one_hot(columns)).sum(axis), (a * chosen).sum(axis))
    check((x * Tensor(at).one_hot(columns) * unit).sum(axis), (a * chosen * mask).sum(axis))


@pytest.mark.parametrize("offset", [-1, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_over_bands(device: str, shape: tuple[int, int], offset: int) -> None:
    a = whole(*shape)
    x, ones = Tensor(a), Tensor.ones(*shape)
    band = np.triu(np.tril(a, offset), offset)
    wide = np.pad(a, 2)
    unit = Tensor.eye(*wide.shape)
    moved = wide * np.roll(np.eye(*wide.shape), offset, 0)
    for axis in AXES:
        check((x.tril(offset) * ones.triu(offset)).sum(axis), band.sum(axis))
        check(
            (x.tril(-offset) * x.triu(offset)).sum(axis),
            (np.tril(a, -offset) * np.triu(a, offset)).sum(axis),
        )
        check((x.pad(((2, 2), (2, 2))) * unit.roll(offset, 0)).sum(axis), moved.sum(axis))


@pytest.mark.parametrize("divisor", [1, 2, 3])
@pytest.mark.parametrize("steps", [(1, 1), (1, -1), (2, 1), (-2, 3)], ids=str)
def test_sums_where_a_remainder_is_zero(device: str, steps: tuple[int, int], divisor: int) -> None:
    a = whole(5, 7)
    first, second = steps
    rows, columns = np.arange(5)[:, None] * first, np.arange(7) * second
    lines = Tensor.arange(5).reshape(5, 1) * first + Tensor.arange(7) * second
    for axis in AXES:
        mask = (rows + columns) % divisor == 0
        check((Tensor(a) * (lines % divisor == 0)).sum(axis), (a * mask).sum(axis))
        check((Tensor(a) * (lines == 1)).sum(axis), (a * (rows + columns == 1)).sum(axis))


def test_diagonals_of_products_and_of_batches(device: str) -> None:
    a, b = whole(5, 3), whole(3, 5)
    x, y, unit = Tensor(a), Tensor(b), Tensor.eye(5)
    check(((x @ y) * unit).sum(), np.trace(a @ b))
    check(((x @ y) * unit).sum(0), np.diag(a @ b))
    check((unit @ x @ Tensor.eye(3)).sum(1), a.sum(1))
    check((unit @ unit).sum(), 5)
    weights = np.array([1, 2, 3], np.float32)
    batch = x.reshape(1, 5, 3) * Tensor.eye(5, 3) * Tensor(weights).reshape(3, 1, 1)
    wanted = a * np.eye(5, 3) * weights.reshape(3, 1, 1)
    for axes in ((0, 1), (0, 2), (1, 2), (0, 1, 2)):
        check(batch.sum(axes), wanted.sum(axes))
    chain = x.unsqueeze(2) * Tensor.eye(5, 3).unsqueeze(2) * Tensor.eye(3, 5).unsqueeze(0)
    check(chain.sum(), (a * np.eye(5, 3)).sum())


A = whole(4, 3)
COVARIANCE = A @ A.T
UNIT = np.eye(4, dtype=np.float32)
PENALTIES: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "trace": (lambda x: ((x @ x.T) * Tensor.eye(4)).sum(), 2 * A),
    "identity": (lambda x: (x @ x.T - Tensor.eye(4)).square().sum(), 4 * (COVARIANCE - UNIT) @ A),
    "off the diagonal": (
        lambda x: ((x @ x.T) * (1 - Tensor.eye(4))).square().sum(),
        4 * (COVARIANCE * (1 - UNIT)) @ A,
    ),
    "diagonal": (lambda x: (x * Tensor.eye(4, 3)).square().sum(), 2 * A * np.eye(4, 3)),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_gradients_of_penalties(device: str, name: str) -> None:
    penalty, expected = PENALTIES[name]
    check(ferrule.grad(penalty)(Tensor(A)), expected)


def test_gradients_of_a_ridge(device: str) -> None:
    def ridge(weight: Tensor) -> Tensor:
        return (Tensor(COVARIANCE) + weight * Tensor.eye(4)).square().sum()

    check(ferrule.grad(ridge)(Tensor(2.0)), 2 * np.trace(COVARIANCE + 2 * UNIT))


def test_losses_of_pairs(device: str) -> None:
    """Barlow Twins and NT-Xent, which part a matrix of similarities into its diagonal and the
    rest.
    """
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 6, 4))
    cross = (a - a.mean(0)).T @ (b - b.mean(0)) / 6
    on, off = np.square(np.diag(cross) - 1).sum(), np.square(cross * (1 - np.eye(4))).sum()
    x, y, unit = Tensor(a), Tensor(b), Tensor.eye(4, dtype=dtypes.float64)
    found = (x - x.mean(0)).T @ (y - y.mean(0)) / 6
    twins = ((found - unit) * unit).square().sum() + (found * (1 - unit)).square().sum() * 0.01
    np.testing.assert_allclose(twins.item(), on + 0.01 * off, rtol=1e-10)

    pairs = np.concatenate([a, b])
    likeness = np.where(np.eye(12) > 0, -np.inf, pairs @ pairs.T)
    partner = likeness[np.arange(12), np.roll(np.arange(12), 6)]
    expected = (np.log(np.exp(likeness).sum(1)) - partner).mean()
    z = Tensor.cat(x, y)
    alike = Tensor.eye(12, dtype=dtypes.bool).where(-float("inf"), z @ z.T)
    rolled = Tensor.eye(12, dtype=dtypes.float64).roll(6, 1)
    scores = alike.logsumexp(1) - ((z @ z.T) * rolled).sum(1)
    np.testing.assert_allclose(scores.mean().item(), expected, rtol=1e-10)
