"""Initial values: their bounds, variances and shapes, on parameters."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, nn
from ferrule.ir.shape.view import ShapeError
from ferrule.nn import init

SHAPE = (60, 40, 3, 3)  # fan in 360, fan out 540


def parameter(*shape: int) -> Tensor:
    return Tensor.ones(*shape, requires_grad=True).realize()


@pytest.mark.parametrize(
    ("write", "std", "bound"),
    [
        (lambda x: init.uniform_(x, -2, 2), 2 / sqrt(3), 2),
        (lambda x: init.normal_(x, 0, 0.5), 0.5, None),
        (lambda x: init.trunc_normal_(x, 0, 1, -1, 1), 0.5396, 1),
        (lambda x: init.xavier_uniform_(x, 2.0), 2 * sqrt(2 / 900), 2 * sqrt(6 / 900)),
        (init.xavier_normal_, sqrt(2 / 900), None),
        (lambda x: init.kaiming_uniform_(x, sqrt(5)), sqrt(1 / 3 / 360), sqrt(1 / 360)),
        (lambda x: init.kaiming_normal_(x, 0, "fan_out", "relu"), sqrt(2 / 540), None),
    ],
    ids=["uniform", "normal", "truncated", "xavier", "xavier normal", "kaiming", "kaiming normal"],
)
def test_variances(
    device: str, write: Callable[[Tensor], Tensor], std: float, bound: float | None
) -> None:
    x = parameter(*SHAPE)
    assert write(x) is x
    assert x.is_leaf
    assert x.requires_grad
    values = x.numpy()
    assert abs(values.std() / std - 1) < 0.03
    assert abs(values.mean()) < 0.03 * std
    if bound is not None:
        assert 0.98 * bound < np.abs(values).max() <= bound * (1 + 1e-6)


def test_truncated_at_a_distance(device: str) -> None:
    values = init.trunc_normal_(parameter(1000), mean=1, std=2, a=2, b=4).numpy()
    assert values.min() >= 2
    assert values.max() <= 4
    assert values.mean() < 3


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 2, 2, 2)])
def test_orthogonal(device: str, shape: tuple[int, ...]) -> None:
    matrix = init.orthogonal_(parameter(*shape), gain=2.0).numpy().reshape(shape[0], -1)
    product = matrix @ matrix.T if shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)


def test_constants(device: str) -> None:
    assert init.ones_(parameter(2)).tolist() == [1, 1]
    assert init.zeros_(parameter(2)).tolist() == [0, 0]
    assert init.constant_(parameter(2), 7).tolist() == [7, 7]
    assert init.eye_(parameter(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_a_layer_is_initialised_and_learns() -> None:
    layer = nn.Linear(4, 3)
    init.kaiming_normal_(layer.weight)
    assert layer.bias is not None
    init.zeros_(layer.bias)
    layer(Tensor.ones(2, 4)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[2.0] * 4] * 3


@pytest.mark.parametrize(
    ("use", "kind", "text"),
    [
        (lambda: init.xavier_uniform_(parameter(3)), ShapeError, "xavier_uniform_: a weight is"),
        (
            lambda: init.eye_(parameter(3)),
            ShapeError,
            "eye_: a matrix is needed, not shape",
        ),
        (
            lambda: init.calculate_gain("x"),
            ValueError,
            "calculate_gain: nonlinearity 'x' is not one of 'linear'",
        ),
        (
            lambda: init.kaiming_normal_(parameter(3, 3), mode="in"),
            ValueError,
            "kaiming_normal_: mode 'in' is not one of 'fan_in', 'fan_out'",
        ),
    ],
)
def test_misuse_is_explained(use: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        use()
