"""Derivatives by finite differences, to hold against those of the tape."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ferrule.tensor import Tensor

Array = np.ndarray[Any, Any]


def _value(function: Callable[..., Tensor], arrays: list[Array], weights: Array) -> float:
    with Tensor.no_grad():
        result = function(*[Tensor(array) for array in arrays]).numpy()
    return float((result * weights).sum())


def numerical_gradient(
    function: Callable[..., Tensor], arrays: list[Array], weights: Array, which: int, step: float
) -> Array:
    """The slope of `(function(*arrays) * weights).sum()` along each element of one array."""
    slopes = np.zeros_like(arrays[which])
    for place in np.ndindex(arrays[which].shape):
        moved = [array.copy() for array in arrays]
        moved[which][place] += step
        above = _value(function, moved, weights)
        moved[which][place] -= 2 * step
        slopes[place] = (above - _value(function, moved, weights)) / (2 * step)
    return slopes


def assert_gradients(
    function: Callable[..., Tensor], *arrays: Array, step: float = 1e-5, tolerance: float = 1e-6
) -> None:
    """Compares the tape's gradients of `function` at float64 arrays with finite differences.

    The results are weighted at random, so that an error in one element cannot hide behind another.
    """
    points = [np.asarray(array, np.float64) for array in arrays]
    tensors = [Tensor(array, requires_grad=True) for array in points]
    result = function(*tensors)
    weights = np.random.default_rng(7).normal(size=result.shape)
    result.backward(Tensor(weights))
    for which, tensor in enumerate(tensors):
        assert tensor.grad is not None, f"argument {which} has no gradient"
        assert tensor.grad.dtype is tensor.dtype
        expected = numerical_gradient(function, points, weights, which, step)
        np.testing.assert_allclose(
            tensor.grad.numpy(), expected, rtol=tolerance, atol=tolerance, err_msg=f"arg {which}"
        )
