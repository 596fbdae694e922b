"""Determinants, inverses, systems and decompositions against NumPy; their gradients exactly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import Context, Tensor, TinyJit, dtypes, grad
from ferrule.helpers import GlobalCounters
from ferrule.tensor.algebra.solving import LinalgError

RNG = np.random.default_rng(11)
Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape)


def regular(*shape: int) -> Array:
    return RNG.normal(size=shape) + 3 * np.eye(shape[-1])


def positive(*shape: int) -> Array:
    a = RNG.normal(size=shape)
    return np.asarray(a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1]))


def close(found: Tensor, expected: Any, tolerance: float = 1e-10) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


# *** values ***


@pytest.mark.usefixtures("device")
def test_determinants() -> None:
    a = normal(2, 3, 3)
    a[1, 0] = 0
    close(Tensor(a).det(), np.linalg.det(a))
    sign, size = Tensor(a).slogdet()
    close(sign, np.linalg.slogdet(a)[0])
    close(size, np.linalg.slogdet(a)[1])
    assert np.isneginf(Tensor(a).logdet().numpy()[1])
    assert np.isnan(Tensor([[0.0, 1.0], [1.0, 0.0]]).logdet().item())
    close(Tensor(positive(3, 3)).logdet().exp() * 0, 0.0)


@pytest.mark.usefixtures("device")
def test_inverses_and_powers() -> None:
    a, wide = regular(2, 3, 3), normal(2, 3, 4)
    close(Tensor(a).inv(), np.linalg.inv(a))
    close(Tensor(wide).pinv(), np.linalg.pinv(wide))
    thin = wide[..., :1] @ wide[..., :1, :]  # of rank one
    close(Tensor(thin).pinv(), np.linalg.pinv(thin, rcond=1e-12))
    close(Tensor(np.diag([1e-3, 1.0])).pinv(atol=0.1), np.diag([0.0, 1.0]))
    close(Tensor(np.diag([1e-3, 1.0])).pinv(0.1), np.diag([0.0, 1.0]))
    both = np.stack([np.diag([1e-3, 1.0])] * 2)
    limited = Tensor(both).pinv(Tensor([0.1, 1e-6]), atol=Tensor(0.0))
    close(limited, [np.diag([0.0, 1.0]), np.diag([1e3, 1.0])])
    for n in (-3, -1, 0, 1, 2, 5):
        close(Tensor(a).matrix_power(n), np.linalg.matrix_power(a, n), 1e-8)
    b = normal(4, 2, 2)
    close(Tensor(b).tensorinv(1), np.linalg.tensorinv(b, 1))


@pytest.mark.usefixtures("device")
def test_systems() -> None:
    a, b, v = regular(2, 3, 3), normal(2, 3, 4), normal(3)
    x = Tensor(a)
    close(x.solve(Tensor(b)), np.linalg.solve(a, b))
    close(x.solve(Tensor(b[0])), np.linalg.solve(a, b[0]))
    close(x.solve(Tensor(v)), np.linalg.solve(a, v))
    close(x.solve(Tensor(b[..., 0])), np.linalg.solve(a, b[..., :1])[..., 0])
    rows = np.swapaxes(b, -1, -2)
    close(x.solve(Tensor(rows), left=False) @ x, rows)
    close(Tensor(normal(6, 2, 3)).tensorsolve(Tensor(np.ones(6))).sum() * 0, 0.0)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.usefixtures("device")
def test_triangular_systems(upper: bool, unit: bool) -> None:
    a, b = regular(2, 3, 3), normal(2, 3, 4)
    t = np.triu(a) if upper else np.tril(a)
    if unit:
        t = t - t * np.eye(3) + np.eye(3)
    x = Tensor(a).solve_triangular(Tensor(b), upper=upper, unitriangular=unit)
    close(x, np.linalg.solve(t, b))
    rows = Tensor(np.swapaxes(b, -1, -2))
    y = Tensor(a).solve_triangular(rows, upper=upper, left=False, unitriangular=unit)
    close(y @ Tensor(t), rows.numpy())
    z, coefficient = Tensor(b).triangular_solve(Tensor(a), upper, True, unit)
    close(z, np.linalg.solve(np.swapaxes(t, -1, -2), b))
    close(coefficient, a)


@pytest.mark.usefixtures("device")
def test_cholesky() -> None:
    a, b = positive(2, 3, 3), normal(2, 3, 4)
    factor = Tensor(a).cholesky()
    close(factor, np.linalg.cholesky(a))
    close(Tensor(a).cholesky(upper=True), np.swapaxes(np.linalg.cholesky(a), -1, -2))
    half = Tensor(np.triu(a))
    close(half.cholesky(upper=True), np.swapaxes(np.linalg.cholesky(a), -1, -2))
    close(Tensor(b).cholesky_solve(factor), np.linalg.solve(a, b))
    close(Tensor(b).cholesky_solve(factor.mT, upper=True), np.linalg.solve(a, b))
    close(factor.cholesky_inverse(), np.linalg.inv(a))


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2), (0, 3), (3, 0), (2, 0, 0)])
@pytest.mark.usefixtures("device")
def test_factors_give_the_matrix_back(shape: tuple[int, ...]) -> None:
    a = normal(*shape)
    rows, columns = shape[-2:]
    for mode, inner in (("reduced", min(rows, columns)), ("complete", rows)):
        q, r = Tensor(a).qr(mode)
        assert q.shape == (*shape[:-1], inner)
        close(q @ r, a)
        close(q.mT @ q, np.broadcast_to(np.eye(inner), (*shape[:-2], inner, inner)))
        close(r.tril(-1), np.zeros(r.shape))
    for full in (False, True):
        u, s, vh = Tensor(a).svd(full)
        size = min(rows, columns)
        assert u.shape[-1] == (rows if full else size)
        assert vh.shape[-2] == (columns if full else size)
        close(u[..., :size] * s.unsqueeze(-2) @ vh[..., :size, :], a)
        close(u.mT @ u, np.broadcast_to(np.eye(u.shape[-1]), u.mT.shape[:-1] + u.shape[-1:]))
        close(
            vh @ vh.mT, np.broadcast_to(np.eye(vh.shape[-2]), (*shape[:-2],) + vh.shape[-2:-1] * 2)
        )
    close(Tensor(a).svdvals(), np.linalg.svd(a, compute_uv=False))


@pytest.mark.usefixtures("device")
def test_symmetric_eigenvalues() -> None:
    a = positive(2, 3, 3)
    values, vectors = Tensor(np.tril(a)).eigh()
    close(values, np.linalg.eigvalsh(a))
    close(vectors * values.unsqueeze(-2) @ vectors.mT, a)
    close(Tensor(np.triu(a)).eigvalsh("U"), np.linalg.eigvalsh(a))


@pytest.mark.usefixtures("device")
def test_exponentials() -> None:
    a = normal(3, 3)
    values, vectors = np.linalg.eigh(a + a.T)
    for scale in (0.0, 1e-3, 1.0, 20.0):
        expected = (vectors * np.exp(scale * values)) @ vectors.T
        found = Tensor(scale * (a + a.T)).matrix_exp().numpy()
        assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
    batch = np.stack([np.zeros((2, 2)), np.array([[0.0, -40.0], [40.0, 0.0]])])
    turned = [[np.cos(40), -np.sin(40)], [np.sin(40), np.cos(40)]]
    close(Tensor(batch).matrix_exp(), [np.eye(2), turned], 1e-11)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3)])
@pytest.mark.usefixtures("device")
def test_least_squares(shape: tuple[int, int]) -> None:
    a, b = normal(2, *shape), normal(2, shape[0], 2)
    a[1, :, 1] = a[1, :, 0]  # one of them lacks a rank
    found = Tensor(a).lstsq(Tensor(b))
    expected = [np.linalg.lstsq(x, y, rcond=1e-12) for x, y in zip(a, b, strict=True)]
    close(found.solution, np.stack([part[0] for part in expected]))
    np.testing.assert_array_equal(found.rank.numpy(), [part[2] for part in expected])
    close(found.singular_values, np.stack([part[3] for part in expected]))
    if shape[0] > shape[1]:
        close(found.residuals[0], expected[0][1])
    else:
        assert found.residuals.shape == (0,)
    close(Tensor(a[0]).lstsq(Tensor(b[0, :, 0])).solution, expected[0][0][:, 0])


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")])
@pytest.mark.usefixtures("device")
def test_norms_and_conditions(order: Any) -> None:
    a, square = normal(2, 3, 4), regular(2, 3, 3)
    close(Tensor(a).matrix_norm(order), np.linalg.norm(a, order, (-2, -1)))
    close(Tensor(a).matrix_norm(order, (0, 1), True), np.linalg.norm(a, order, (0, 1), True))
    close(Tensor(square).cond(order), np.linalg.cond(square, order))
    square[1, 0] = 0
    assert (Tensor(square).cond(order) > 1e12).tolist() == [False, order != -2]


@pytest.mark.usefixtures("device")
def test_ranks() -> None:
    a = normal(3, 2) @ normal(2, 3)
    assert Tensor(a).matrix_rank().item() == 2
    assert Tensor(np.diag([1e-3, 1.0])).matrix_rank(tol=0.1).item() == 1
    assert Tensor(np.diag([1e-3, 1.0])).matrix_rank(rtol=0.1).item() == 1
    assert Tensor(np.tril(np.ones((3, 3)))).matrix_rank(hermitian=True).item() == 1
    assert Tensor.zeros(2, 0, 3).matrix_rank().tolist() == [0, 0]


@pytest.mark.usefixtures("device")
def test_empty_matrices() -> None:
    nothing = Tensor.zeros(0, 0)
    assert nothing.det().item() == 1
    assert [part.item() for part in nothing.slogdet()] == [1, 0]
    assert nothing.inv().shape == nothing.cholesky().shape == nothing.matrix_exp().shape == (0, 0)
    assert nothing.solve(Tensor.zeros(0, 2)).shape == (0, 2)
    assert Tensor.zeros(3, 0).pinv().shape == (0, 3)
    assert Tensor.zeros(0, 2, 2).det().shape == (0,)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int32"])
@pytest.mark.usefixtures("device")
def test_other_dtypes(name: str) -> None:
    x = Tensor([[4, 1], [1, 3]], dtype=name)
    expected = dtypes.float32 if name == "int32" else dtypes.from_name(name)
    results = (x.det(), x.inv(), x.solve(x), x.cholesky(), x.svdvals(), *x.eigh(), *x.qr())
    assert all(result.dtype is expected for result in results)
    np.testing.assert_allclose(x.det().item(), 11, rtol=1e-2)


@pytest.mark.usefixtures("device")
def test_they_are_lazy_and_run_in_captured_programs() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        u, s, vh = x.svd()
        return (u * s @ vh + x.inv()).realize()

    before = GlobalCounters.host_calls
    a = regular(3, 3)
    lazy = Tensor(a).svd()
    assert GlobalCounters.host_calls == before
    lazy.S.realize(lazy.U, lazy.Vh)
    assert GlobalCounters.host_calls == before + 1  # one call gives all factors
    for shift in range(4):
        close(f(Tensor(a + shift)), a + shift + np.linalg.inv(a + shift))


# *** gradients ***


def _symmetric(x: Tensor) -> Tensor:
    return x @ x.mT + Tensor.eye(x.shape[-1], device=x.device, dtype="float64")


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "det": lambda x: x.det(),
    "slogdet": lambda x: x.slogdet().logabsdet,
    "inv": lambda x: x.inv(),
    "pinv": lambda x: x[:, :2].pinv(),
    "pinv of a symmetric one": lambda x: _symmetric(x).pinv(hermitian=True),
    "matrix_power": lambda x: x.matrix_power(-2),
    "solve": lambda x: x.solve(x.mT[:, :2]),
    "solve_triangular": lambda x: x.solve_triangular(x.mT, upper=True),
    "unitriangular": lambda x: x.solve_triangular(x.mT, upper=False, unitriangular=True),
    "cholesky": lambda x: _symmetric(x).cholesky(),
    "cholesky, upper": lambda x: _symmetric(x).cholesky(upper=True),
    "cholesky_solve": lambda x: x.cholesky_solve(x),
    "cholesky_inverse": lambda x: x.cholesky_inverse(upper=True),
    "qr": lambda x: x.qr().Q + x.qr().R,
    "tall qr": lambda x: x[:, :2].qr().Q @ x[:2],
    "wide qr": lambda x: x[:2].qr().R,
    "complete qr": lambda x: (lambda q: q[:, 2:] @ q[:, 2:].mT)(x[:, :2].qr("complete").Q),
    "svd": lambda x: (lambda u, s, vh: u * s.square() @ vh)(*x.svd()),
    "tall svd": lambda x: (lambda u, s, vh: u * s.square() @ vh)(*x[:, :2].svd(False)),
    "wide svd": lambda x: (lambda u, s, vh: u * s.square() @ vh)(*x[:2].svd(False)),
    "full svd": lambda x: (lambda u: u[:, 2:] @ u[:, 2:].mT)(x[:, :2].svd().U),
    "full svd of a wide one": lambda x: (lambda vh: vh[2:].mT @ vh[2:])(x[:2].svd().Vh),
    "svdvals": lambda x: x.svdvals(),
    "eigh": lambda x: (lambda w, v: v * w.exp() @ v.mT)(*(x + x.mT).eigh()),
    "eigvalsh": lambda x: (x + x.mT).eigvalsh(),
    "matrix_exp": lambda x: x.matrix_exp(),
    "lstsq": lambda x: x[:, :2].lstsq(x[:, 1:]).solution,
    "wide lstsq": lambda x: x[:2].lstsq(x[1:]).solution,
    "nuclear norm": lambda x: x.matrix_norm("nuc"),
    "cond": lambda x: x.cond(1),
}
POINT = np.array([[1.5, -0.3, 0.2], [0.4, 2.5, -0.6], [-0.5, 0.7, 3.5]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str) -> None:
    """The same products on every device; all of them on the one that compiles nothing."""
    with Context(FERRULE_DEVICE="NUMPY"):
        assert_gradients(FUNCTIONS[name], POINT, tolerance=1e-5)


@pytest.mark.parametrize("name", ["complete qr", "full svd", "eigh", "cholesky", "lstsq"])
def test_gradients_on_the_device(device: str, name: str) -> None:
    x = Tensor(POINT, requires_grad=True)
    on_numpy = Tensor(POINT, device="NUMPY", requires_grad=True)
    (found,) = FUNCTIONS[name](x).square().sum().gradient(x)
    (expected,) = FUNCTIONS[name](on_numpy).square().sum().gradient(on_numpy)
    close(found, expected.numpy())


@pytest.mark.parametrize("name", FUNCTIONS)
@Context(FERRULE_DEVICE="NUMPY")
def test_second_gradients(name: str) -> None:
    weights = np.random.default_rng(1).normal(size=FUNCTIONS[name](Tensor(POINT)).shape)
    along = np.random.default_rng(2).normal(size=(3, 3))

    def slopes(at: Array) -> tuple[Tensor, Tensor]:
        x = Tensor(at, requires_grad=True)
        loss = (FUNCTIONS[name](x) * Tensor(weights)).sum()
        return x, loss.gradient(x, create_graph=True)[0]

    x, first = slopes(POINT)
    (found,) = (first * Tensor(along)).sum().gradient(x)
    step = 1e-5
    ahead, back = (slopes(POINT + sign * step * along)[1].numpy() for sign in (1, -1))
    np.testing.assert_allclose(found.numpy(), (ahead - back) / (2 * step), rtol=1e-4, atol=1e-5)


@Context(FERRULE_DEVICE="NUMPY")
def test_the_determinant_of_a_singular_matrix_has_a_gradient() -> None:
    for a in ([[1.0, 2.0], [2.0, 4.0]], np.diag([1.0, 0.0, 2.0]), np.zeros((3, 3)), np.eye(3)):
        assert_gradients(lambda x: x.det(), np.asarray(a))


@Context(FERRULE_DEVICE="NUMPY")
def test_equal_values_need_not_differ_for_gradients_of_the_values() -> None:
    x = Tensor(np.eye(3), requires_grad=True)
    close(x.svdvals().sum().gradient(x)[0], np.eye(3))
    close(x.eigvalsh().sum().gradient(x)[0], np.eye(3))
    _, s, _ = x.svd()
    close(s.sum().gradient(x)[0], np.eye(3))


@Context(FERRULE_DEVICE="NUMPY")
def test_gradients_of_broadcast_systems() -> None:
    a, b = regular(2, 1, 2, 2), normal(3, 2, 1)
    assert_gradients(lambda x, y: x.solve(y), a, b)
    assert_gradients(lambda x, y: x.solve_triangular(y, upper=True), a, b)
    assert_gradients(lambda x, y: x.lstsq(y).solution, a, b)


# *** errors ***


@pytest.mark.usefixtures("device")
def test_what_has_no_result_says_so_when_realised() -> None:
    singular = Tensor([[1.0, 2.0], [2.0, 4.0]])
    for lazy, text in (
        (singular.inv(), r"\[inv\] singular matrix; use pinv or lstsq, or add a small multiple"),
        (singular.solve(singular), r"\[solve\] singular matrix; use lstsq, or add"),
        (singular.matrix_power(-1), r"\[inv\] singular matrix"),
        (
            Tensor([[0.0]]).solve_triangular(Tensor([[1.0]]), upper=True),
            r"\[solve_triangular\] singular matrix; the diagonal has a zero",
        ),
        ((-singular).cholesky(), r"\[cholesky\] matrix is not positive definite; add a small"),
        (Tensor([[float("nan")]]).svdvals(), r"\[svdvals\] SVD did not converge; look for NaN"),
    ):
        with pytest.raises(LinalgError, match=text):
            lazy.realize()


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_singular_values_of_what_is_not_finite_are_refused(bad: float) -> None:
    """Of such a matrix, LAPACK's iterations may have no end."""
    rows = [[bad, bad, -1, 0, 0, 0, 0], [bad, 0, -1, 0, bad, 0, 1], [0, 0, -1, -1, 0, 0, -1]]
    x = Tensor(np.array(rows, np.float32))
    square = x[:, :3].contiguous()
    for name, lazy in {
        "svd": x.svd()[1],
        "svdvals": x.svdvals(),
        "pinv": x.pinv(),
        "lstsq": x.T.lstsq(x.T)[0],
        "det": grad(Tensor.det)(square),
    }.items():
        with pytest.raises(LinalgError, match=rf"\[{name}\] SVD did not converge; .*infinity"):
            lazy.realize()


@Context(FERRULE_DEVICE="NUMPY")
def test_second_gradients_of_singular_determinants_are_refused() -> None:
    x = Tensor(np.zeros((3, 3)), requires_grad=True)
    (first,) = x.det().gradient(x, create_graph=True)
    with pytest.raises(LinalgError, match=r"\[det\] singular matrix"):
        first.sum().gradient(x)[0].realize()
