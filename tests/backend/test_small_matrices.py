"""Many small matrices, which kernels eliminate, against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import Context, Tensor, TinyJit, vmap
from ferrule.engine import blas
from ferrule.fusion.forms import has_kernels
from ferrule.helpers import GlobalCounters
from ferrule.tensor.algebra.solving import LinalgError

RNG = np.random.default_rng(5)
Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("device")


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape)


def positive(count: int, n: int) -> Array:
    a = normal(count, n, n)
    return np.asarray(a @ np.swapaxes(a, -1, -2) + np.eye(n))


def triangle(a: Array, upper: bool, unit: bool) -> Array:
    n = a.shape[-1]
    whole = np.triu(a, 1) if upper else np.tril(a, -1)
    return np.asarray(whole + np.eye(n) * (1 if unit else a))


def close(found: Tensor, expected: Any, tolerance: float = 1e-9) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 12, 16])
def test_systems(n: int) -> None:
    a, b = normal(4, 5, n, n), normal(5, n, 3)
    a[0, :, 0, 0] = 0  # without an exchange of rows there is no solution
    close(Tensor(a).det(), np.linalg.det(a))
    sign, size = np.linalg.slogdet(a)
    close(Tensor(a).slogdet()[0], sign)
    close(Tensor(a).slogdet()[1], size)
    if n == 1:
        a[0] = 2
    close(Tensor(a).inv(), np.linalg.inv(a), 1e-7)
    close(Tensor(a).solve(Tensor(b)), np.linalg.solve(a, np.broadcast_to(b, (4, *b.shape))), 1e-7)
    single = Tensor(a.astype(np.float32)).solve(Tensor(b.astype(np.float32)))
    assert single.dtype == Tensor([1.0]).dtype
    a32 = a.astype(np.float32).astype(np.float64)
    residual = a32 @ single.numpy() - b
    assert np.abs(residual).max() < 1e-3 * max(1.0, float(np.abs(single.numpy()).max()))


@pytest.mark.parametrize("n", [1, 4, 16])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles(n: int, upper: bool, unit: bool) -> None:
    a, b = normal(20, n, n) / n + 2 * np.eye(n), normal(20, n, 2)
    found = Tensor(a).solve_triangular(Tensor(b), upper=upper, unitriangular=unit)
    close(found, np.linalg.solve(triangle(a, upper, unit), b))


@pytest.mark.parametrize("n", [1, 3, 12, 16])
def test_cholesky_factors(n: int) -> None:
    a = positive(17, n)
    close(Tensor(a).cholesky(), np.linalg.cholesky(a))
    close(Tensor(a).cholesky(upper=True), np.swapaxes(np.linalg.cholesky(a), -1, -2))


@pytest.mark.parametrize(
    ("m", "n"), [(1, 1), (3, 3), (5, 2), (4, 1), (9, 8), (3, 5), (40, 2), (16, 16)]
)
def test_qr(m: int, n: int) -> None:
    a = normal(2, 8, m, n)
    a[0, 0, :, 0] = 0
    a[0, 1, 1:, 0] = 0
    q, r = Tensor(a).qr()
    expected_q, expected_r = np.linalg.qr(a)
    close(q @ r, a)
    close(q.mT @ q, np.broadcast_to(np.eye(min(m, n)), (2, 8, min(m, n), min(m, n))))
    close(r[:, 2:], expected_r[:, 2:])
    close(q[:, 2:], expected_q[:, 2:])
    assert (np.tril(r.numpy(), -1) == 0).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_qr_of_numbers_whose_squares_have_no_float(scale: float) -> None:
    a = (normal(16, 4, 3) * scale).astype(np.float32)
    q, r = Tensor(a).qr()
    np.testing.assert_allclose((q.numpy() @ r.numpy()) / scale, a / scale, atol=1e-5)


def test_kernels_alone_compute_them(device: str) -> None:
    if not has_kernels(device):
        return
    a = Tensor(positive(16, 4)).realize()
    before = GlobalCounters.host_calls
    a.det().realize()
    a.logdet().realize()
    a.qr()[1].realize()
    assert GlobalCounters.host_calls == before


def test_replays_give_the_same_bits() -> None:
    @TinyJit
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        results = (a.det(), a.solve(b), a.inv(), a.cholesky(), *a.qr())
        return tuple(result.realize() for result in results)

    for _ in range(4):
        a, b = Tensor(positive(16, 3)).realize(), Tensor(normal(16, 3, 1)).realize()
        plain = (a.det(), a.solve(b), a.inv(), a.cholesky(), *a.qr())
        for found, expected in zip(f(a, b), plain, strict=True):
            np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("n", [3, 11])
def test_one_matrix_without_a_result_is_reported(n: int) -> None:
    a = positive(16, n)
    a[7] = np.arange(1, n + 1)
    x, b = Tensor(a), Tensor(normal(16, n, 1))
    assert x.det().numpy()[7] == 0
    assert np.isneginf(x.slogdet()[1].numpy()[7])
    a[7, :, 0] = 0
    x = Tensor(a)
    for lazy, text in (
        (x.inv(), r"\[inv\] singular matrix"),
        (x.solve(b), r"\[solve\] singular matrix"),
        (x.solve_triangular(b, upper=False), r"\[solve_triangular\] singular matrix"),
        (x.cholesky(), r"\[cholesky\] matrix is not positive definite"),
    ):
        with pytest.raises(LinalgError, match=text):
            lazy.realize()


@pytest.mark.parametrize("n", [3, 11])
def test_determinants_of_what_is_not_a_number(n: int) -> None:
    a = positive(16, n)
    a[2, 1, 1] = np.nan
    found = Tensor(a).det().numpy()
    assert np.isnan(found[2])
    assert np.isfinite(found).sum() == 15


def test_infinite_results_are_no_errors() -> None:
    a = positive(16, 2)
    b = normal(16, 2, 1)
    b[3] = np.inf
    close(Tensor(a).solve(Tensor(b))[:3], np.linalg.solve(a[:3], b[:3]))
    found = Tensor(a).solve_triangular(Tensor(b), upper=True, unitriangular=True).numpy()
    assert not np.isfinite(found[3]).all()


@Context(FERRULE_DEVICE="CPU")
def test_gradients() -> None:
    a, b = positive(16, 2), normal(16, 2, 1)
    assert_gradients(Tensor.det, a)
    assert_gradients(Tensor.inv, a)
    assert_gradients(lambda x, y: x.solve(y), a, b)
    assert_gradients(lambda x, y: x.solve_triangular(y, upper=True), a, b)
    assert_gradients(lambda x: (x @ x.mT).cholesky(), a)
    assert_gradients(lambda x: x.qr()[0] + x.qr()[1], a)


@pytest.mark.parametrize("function", [Tensor.det, Tensor.inv, Tensor.cholesky])
def test_mapped(function: Callable[[Tensor], Tensor]) -> None:
    a = positive(48, 3).reshape(3, 16, 3, 3)
    close(vmap(function)(Tensor(a)), function(Tensor(a)).numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("columns", [1, 5])
def test_large_triangles_with_and_without_blas(
    dtype: Any, upper: bool, unit: bool, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = normal(2, 1, 40, 40) / 40 + 2 * np.eye(40), normal(3, 40, columns)
    for _ in range(2):
        x = Tensor(a.astype(dtype)).solve_triangular(
            Tensor(b.astype(dtype)), upper=upper, unitriangular=unit
        )
        expected = np.linalg.solve(triangle(a, upper, unit), np.broadcast_to(b, (2, *b.shape)))
        close(x, expected, 1e-9 if dtype is np.float64 else 1e-4)
        monkeypatch.setattr(blas, "_triangle_solvers", lambda dtype: None)
