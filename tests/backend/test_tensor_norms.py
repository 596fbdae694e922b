"""Norms against NumPy, and their gradients at ordinary points and where they have corners."""

import math

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.tensor import Tensor

RNG = np.random.default_rng(5)
CUBE = RNG.normal(size=(3, 4, 5))
ORDERS = (0, 0.5, 1, 1.5, 2, 3, 4.5, -1, -2, math.inf, -math.inf)


@pytest.mark.parametrize("p", ORDERS)
def test_orders(device: str, p: float) -> None:
    x = Tensor(CUBE)
    for axis in (0, 1, -1):
        expected = np.linalg.norm(CUBE, p, axis)
        np.testing.assert_allclose(x.norm(p, axis).numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(x.vector_norm(p, axis).numpy(), expected, rtol=1e-12)
    flat = np.linalg.norm(CUBE.ravel(), p)
    np.testing.assert_allclose(x.norm(p).numpy(), flat, rtol=1e-12)
    np.testing.assert_allclose(x.norm(p, (0, 1, 2), keepdim=True).numpy(), [[[flat]]], rtol=1e-12)
    if p != 0:
        assert_gradients(lambda x: x.norm(p, (0, 2)), CUBE)


def test_sums_of_singular_values(device: str) -> None:
    x = Tensor(CUBE)
    for axes in ((0, 1), (1, 2), (0, 2)):
        for keepdims in (False, True):
            expected = np.linalg.norm(CUBE, "nuc", axes, keepdims)
            found = x.norm("nuc", axes, keepdims).numpy()
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert x[0].norm("nuc").item() == pytest.approx(np.linalg.norm(CUBE[0], "nuc"))
    assert_gradients(lambda x: x.norm("nuc", (1, 2)), CUBE)


def test_names_of_the_order(device: str) -> None:
    expected = np.linalg.norm(CUBE)
    for found in (Tensor(CUBE).norm(), Tensor(CUBE).norm("fro"), Tensor(CUBE).norm(None)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert Tensor([3, 4]).norm().item() == 5
    assert Tensor([3.0, 4.0]).norm(dtype="float64").dtype.name == "float64"
    assert Tensor(-3.0).norm(2, 0).item() == 3


@pytest.mark.parametrize("p", ORDERS)
def test_nothing_flows_to_a_vector_of_zeros(device: str, p: float) -> None:
    x = Tensor([0.0, 0.0], requires_grad=True)
    x.norm(p).backward()
    assert x.grad is None or x.grad.tolist() == [0, 0]


def test_equal_sizes_share_the_gradient_of_a_limit(device: str) -> None:
    x = Tensor([3.0, -3.0, 1.0], requires_grad=True)
    x.norm(math.inf).backward()
    assert x.grad.tolist() == [0.5, -0.5, 0]


def test_second_derivatives(device: str) -> None:
    """The curvature of the length: (I - u u^T) / length."""
    x = Tensor([3.0, 4.0], dtype="float64", requires_grad=True)
    (slope,) = x.norm().gradient(x, create_graph=True)
    (along,) = slope[0].gradient(x)
    np.testing.assert_allclose(along.numpy(), [(1 - 0.36) / 5, -0.48 / 5])


def test_the_gradient_of_a_length_stays_a_number(device: str) -> None:
    """Wherever the length does: neither it nor the gradient over it may be out of range."""
    for size, slope in ((1e-18, 1e22), (1e18, 1e-22), (1e-18, 1.0)):
        x = Tensor(np.array([3, -4, 0], np.float32) * np.float32(size), requires_grad=True)
        x.norm().backward(Tensor(slope, dtype="float32"))
        expected = np.array([0.6, -0.8, 0]) * slope
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)
    x = Tensor([0.0, 0.0], requires_grad=True)
    (slope,) = x.norm().gradient(x, create_graph=True)
    (along,) = slope.sum().gradient(x)
    assert along.tolist() == [0, 0]


def test_narrow_floats_compute_in_float32(device: str) -> None:
    x = Tensor(np.full(10_000, 100, np.float16))
    assert x.norm().item() == 10_000
    assert x.norm().dtype.name == "float16"


def test_distances(device: str) -> None:
    a, b = CUBE, CUBE[0]
    for p in (1, 2, math.inf):
        expected = np.linalg.norm((a - b).ravel(), p)
        np.testing.assert_allclose(Tensor(a).dist(Tensor(b), p).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_parts_scaled_down_to_a_norm(device: str, dim: int) -> None:
    found = Tensor(CUBE).renorm(2, dim, 3.0).numpy()
    others = tuple(axis for axis in range(3) if axis != dim % 3)
    norms = np.sqrt((CUBE**2).sum(others, keepdims=True))
    np.testing.assert_allclose(found, CUBE * np.minimum(1, 3 / norms), rtol=1e-6)
