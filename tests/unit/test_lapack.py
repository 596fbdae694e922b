"""NumPy's LAPACK, called for matrices as they lie in memory: the results are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ferrule.engine import lapack

Array = np.ndarray[Any, Any]
DTYPES = [np.float32, np.float64]


@pytest.fixture(autouse=True, params=["called", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Matrices of any size by calls, and by NumPy, as where it has another LAPACK."""
    if request.param == "called":
        if lapack._integer("f") is None:
            pytest.skip("NumPy has no LAPACK that can be called")
        least = lambda a, least=0: a.size > 0  # noqa: E731
        monkeypatch.setattr(lapack, "_is_called", least)
    else:
        monkeypatch.setattr(lapack, "_integer", lambda char: None)
    return str(request.param)


def random(shape: tuple[int, ...], dtype: Any) -> Array:
    array = np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)
    array.flags.writeable = False  # as a borrowed buffer
    return array


def near(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape
    assert found.dtype in (wanted.dtype, np.float64)
    limit = 2e-4 if wanted.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found, wanted, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (70, 70), (2, 3, 6, 6)])
def test_square_matrices(shape: tuple[int, ...], dtype: Any) -> None:
    a = random(shape, dtype) + shape[-1] * np.eye(shape[-1], dtype=dtype)
    b = random((*shape[:-1], 3), dtype)
    near(lapack.inverse(a), np.linalg.inv(a))
    near(lapack.solve(a, b), np.linalg.solve(a, b))
    sign, log = lapack.signed_log_determinant(a[..., ::-1, :])
    wanted_sign, wanted_log = np.linalg.slogdet(a[..., ::-1, :])
    near(sign.astype(dtype), np.asarray(wanted_sign))
    near(log.astype(dtype), np.asarray(wanted_log))
    half = a / shape[-1]  # determinants that float32 holds
    near(lapack.determinant(half).astype(dtype), np.asarray(np.linalg.det(half)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (70, 70), (2, 3, 6, 6)])
@pytest.mark.parametrize("is_upper", [False, True])
def test_only_one_triangle_is_read(shape: tuple[int, ...], dtype: Any, is_upper: bool) -> None:
    whole = random(shape, dtype)
    whole = whole @ np.swapaxes(whole, -1, -2) + np.eye(shape[-1], dtype=dtype)
    half = np.triu(whole) if is_upper else np.tril(whole)
    rest = np.tril(np.full_like(whole, 99), -1) if is_upper else np.triu(np.full_like(whole, 99), 1)
    values, vectors = lapack.eigh(half + rest, is_upper)
    near(values, np.linalg.eigvalsh(whole))
    near(lapack.eigenvalues(half + rest, is_upper), np.linalg.eigvalsh(whole))
    scale = np.abs(whole).max()
    near((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2) / scale, whole / scale)
    if not is_upper:
        near(lapack.cholesky(half + rest), np.linalg.cholesky(whole))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (9, 4), (4, 9), (40, 40), (2, 3, 7, 5), (3, 5, 7)])
def test_factors_of_any_matrix(shape: tuple[int, ...], dtype: Any) -> None:
    a = random(shape, dtype)
    near(lapack.singular_values(a), np.linalg.svdvals(a))
    near(np.abs(lapack.upper_factor(a)), np.abs(np.linalg.qr(a, "r")))
    size = min(shape[-2:])
    for full in (False, True):
        q, r = lapack.qr(a, full)
        wanted_q, wanted_r = np.linalg.qr(a, "complete" if full else "reduced")
        assert (q.shape, r.shape) == (wanted_q.shape, wanted_r.shape)
        assert (np.tril(r, -1) == 0).all()
        near(q @ r, a)
        near(
            np.swapaxes(q, -1, -2) @ q,
            np.broadcast_to(np.eye(q.shape[-1], dtype=dtype), q.shape[:-2] + (q.shape[-1],) * 2),
        )
        u, s, vh = lapack.svd(a, full)
        wanted = np.linalg.svd(a, full_matrices=full)
        assert [part.shape for part in (u, s, vh)] == [part.shape for part in wanted]
        near(s, wanted[1])
        near((u[..., :size] * s[..., None, :]) @ vh[..., :size, :], a)
        near(
            vh @ np.swapaxes(vh, -1, -2),
            np.broadcast_to(np.eye(vh.shape[-2], dtype=dtype), vh.shape[:-2] + (vh.shape[-2],) * 2),
        )


def test_right_sides_broadcast() -> None:
    a, b = random((2, 1, 30, 30), np.float64), random((3, 30, 2), np.float64)
    near(lapack.solve(a, b), np.linalg.solve(a, b))


def test_determinants_of_singular_and_undefined_matrices() -> None:
    ones = np.ones((3, 3))
    sign, log = lapack.signed_log_determinant(np.stack([ones, ones * np.nan, np.eye(3)]))
    np.testing.assert_array_equal(sign[[0, 2]], [0, 1])
    np.testing.assert_array_equal(log, [-np.inf, np.nan, 0])


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lapack.cholesky, (-np.eye(3),), "Matrix is not positive definite"),
        (lapack.inverse, (np.ones((3, 3)),), "Singular matrix"),
        (lapack.solve, (np.ones((3, 3)), np.ones((3, 1))), "Singular matrix"),
    ],
)
def test_failures_are_numpys(function: Any, args: Any, message: str) -> None:
    with pytest.raises(np.linalg.LinAlgError, match=message):
        function(*args)


def test_the_arguments_stay() -> None:
    a = random((6, 6), np.float64) + 9 * np.eye(6)
    before = a.copy()
    for function in (lapack.cholesky, lapack.inverse, lapack.singular_values, lapack.upper_factor):
        function(a @ a.T if function is lapack.cholesky else a)
    lapack.svd(a, True), lapack.qr(a, True), lapack.eigh(a, True), lapack.solve(a, a)
    np.testing.assert_array_equal(a, before)
