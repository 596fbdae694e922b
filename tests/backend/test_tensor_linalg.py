"""Products against NumPy: any rank, every dtype, Einstein's notation."""

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.dtype import dtypes
from ferrule.tensor import Tensor

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((1, 1), (1, 1)),
        ((3, 0), (0, 5)),
        ((0, 3), (3, 5)),
        ((65, 130), (130, 33)),
    ],
)
def test_matmul(device: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = RNG.normal(size=first), RNG.normal(size=second)
    found = Tensor(a) @ Tensor(b)
    expected = a @ b
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose((a @ Tensor(b)).numpy(), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("wanted", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_products_of_integers_are_computed_in_the_dtype_asked_for(device: str, wanted: str) -> None:
    a = RNG.integers(-(2**30), 2**30, (5, 7), dtype=np.int32)
    b = RNG.integers(-9, 9, (7, 3), dtype=np.int32)
    expected = a.astype(wanted) @ b.astype(wanted)
    np.testing.assert_array_equal(Tensor(a).matmul(Tensor(b), dtype=wanted).numpy(), expected)


def test_matmul_of_views(device: str) -> None:
    a, b = RNG.normal(size=(8, 6)), RNG.normal(size=(10, 6))
    x, y = Tensor(a), Tensor(b)
    np.testing.assert_allclose((x @ y.T).numpy(), a @ b.T, rtol=1e-12)
    np.testing.assert_allclose((x.T[1:4] @ y[:8]).numpy(), a.T[1:4] @ b[:8], rtol=1e-12)
    np.testing.assert_allclose((x[::2, ::-1] @ y.T[::-1]).numpy(), a[::2] @ b.T, rtol=1e-12)


@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
def test_matmul_of_integers(device: str, name: str) -> None:
    dtype = dtypes.from_name(name)
    a, b = (
        RNG.integers(0, 2 if name == "bool" else 100, n).astype(dtype.np) for n in ((5, 7), (7, 3))
    )
    found = (Tensor(a) @ Tensor(b)).numpy()
    assert found.dtype == dtype.np
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_products_accumulate_in_float32(device: str, name: str) -> None:
    dtype = dtypes.from_name(name)
    a, b = (RNG.normal(size=n).astype(dtype.np) for n in ((9, 200), (200, 7)))
    found = Tensor(a) @ Tensor(b)
    assert found.dtype is dtype
    wide = a.astype(np.float64) @ b.astype(np.float64)
    step = 2.0 ** -(dtype.mantissa_bits + 1)
    np.testing.assert_allclose(found.numpy().astype(np.float64), wide, rtol=step * 1.1, atol=1e-4)
    exact = Tensor(a).matmul(Tensor(b), dtype="float32")
    assert exact.dtype is dtypes.float32
    np.testing.assert_allclose(exact.numpy(), wide, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("left", ["int8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("wanted", ["int16", "int64", "uint64"])
def test_products_of_integers_wrap_in_the_dtype_wanted(device: str, left: str, wanted: str) -> None:
    a = RNG.integers(-5, 6, (3, 4)).astype(left)
    b = RNG.integers(-5, 6, (4, 2)).astype(np.int32)
    found = Tensor(a).matmul(Tensor(b), dtype=wanted)
    expected = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(found.numpy(), expected.astype(wanted))


def test_sums_and_products_of_differences_from_a_diagonal(device: str) -> None:
    a, b = RNG.normal(size=(4, 4)), RNG.normal(size=(4, 4))
    rest, line = a - np.eye(4), Tensor(a) - Tensor.eye(4, dtype="float64")
    np.testing.assert_allclose(line.sum(0).numpy(), rest.sum(0), rtol=1e-12)
    np.testing.assert_allclose(line.sum(1).numpy(), rest.sum(1), rtol=1e-12)
    np.testing.assert_allclose((Tensor(b) @ line).numpy(), b @ rest, rtol=1e-12)
    np.testing.assert_allclose((line @ Tensor(b)).numpy(), rest @ b, rtol=1e-12)


def test_mixed_types(device: str) -> None:
    a, b = np.arange(6).reshape(2, 3), RNG.normal(size=(3, 2)).astype("f")
    found = Tensor(a) @ Tensor(b)
    assert found.dtype is dtypes.float32
    np.testing.assert_allclose(found.numpy(), a @ b, rtol=1e-6)


def test_in_place_and_linear(device: str) -> None:
    a = RNG.normal(size=(3, 3))
    x = Tensor(a)
    x @= Tensor(a)
    np.testing.assert_allclose(x.numpy(), a @ a, rtol=1e-12)
    bias = RNG.normal(size=3)
    np.testing.assert_allclose(x.linear(Tensor(a), Tensor(bias)).numpy(), a @ a @ a + bias)
    np.testing.assert_allclose(x.linear(Tensor(bias)).numpy(), a @ a * bias, rtol=1e-12)
    np.testing.assert_allclose(Tensor(a[0]).outer(Tensor(a[1])).numpy(), np.outer(a[0], a[1]))


EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("ij->j", (3, 4)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("iij->j", (3, 3, 2)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (1, 4, 5)),
    ("...ij,jk", (2, 3, 4), (4, 5)),
    ("i...,i...->...", (3, 2, 4), (3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ab,cd,be->ade", (2, 3), (4, 2), (3, 2)),
    ("a b , b c -> a c", (2, 3), (3, 4)),
    ("ij,kl->ikjl", (2, 3), (2, 2)),
    ("abc,abd->acd", (2, 3, 4), (2, 3, 5)),
    ("ab,bc,cd,de,ea->", (2, 3), (3, 4), (4, 5), (5, 2), (2, 2)),
    ("aB,Bc,a", (2, 3), (3, 4), (2,)),
    ("...a,a...,->...", (2, 3), (3, 2), ()),
    ("a...a->...", (3, 2, 4, 3)),
    (",->", (), ()),
    ("ab,ab,ab->ba", (2, 3), (2, 3), (2, 3)),
    ("ij,jk->ik", (3, 0), (0, 2)),
]


@pytest.mark.parametrize("equation", EQUATIONS, ids=lambda e: e[0])
def test_einsum(device: str, equation: tuple[str, ...]) -> None:
    formula, *shapes = equation
    arrays = [RNG.normal(size=shape) for shape in shapes]
    found = Tensor.einsum(formula, *[Tensor(array) for array in arrays])
    expected = np.einsum(formula, *arrays)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-13)


def test_einsum_takes_lists_of_axes_and_one_list_of_operands(device: str) -> None:
    a, b = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(4, 5))
    x, y = Tensor(a), Tensor(b)
    expected = np.einsum("abc,cd->abd", a, b)
    for found in (
        Tensor.einsum("abc,cd->abd", [x, y]),
        Tensor.einsum(x, [0, 1, 2], y, [2, 3], [0, 1, 3]),
        Tensor.einsum(x, [Ellipsis, 2], y, [2, 3], [Ellipsis, 3]),
        Tensor.einsum(x, [7, 8, 9], y, [9, 50]),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-13)


def test_einsum_multiplies_in_a_cheap_order() -> None:
    """From left to right this would have an intermediate result of 10**9 elements."""
    a, b, c, d = (np.ones(n, np.float32) for n in ((100_000,), (10_000, 2), (100_000,), (10_000,)))
    found = Tensor.einsum("i,jk,i,j->k", Tensor(a), Tensor(b), Tensor(c), Tensor(d))
    np.testing.assert_allclose(found.numpy(), [1e9, 1e9], rtol=1e-6)


def test_gradients_of_einsum(device: str) -> None:
    a, b, c = (RNG.normal(size=n) for n in ((2, 3), (3, 2, 2), (2,)))
    assert_gradients(lambda *x: Tensor.einsum("ij,jkk,k->i", *x), a, b, c)
