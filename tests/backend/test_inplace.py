"""PyTorch's functions in place: they write into the tensor, and into what shares its memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import Tensor, TinyJit
from ferrule.autograd import GradientError
from ferrule.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError

RNG = np.random.default_rng(12)

CALLS: dict[str, tuple[Any, ...]] = {
    "add_": (2.5,),
    "mul_": (Tensor([1.0, 2.0, 3.0]),),
    "clamp_": (-0.5, 0.5),
    "sigmoid_": (),
    "cumsum_": (0,),
    "masked_fill_": (Tensor([True, False, True]), 7),
    "index_add_": (0, Tensor([1, 1]), Tensor([10.0, 20.0])),
    "scatter_": (0, Tensor([2, 0]), Tensor([10.0, 20.0])),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_view_is_written_and_returned(device: str, name: str) -> None:
    array = RNG.normal(size=(2, 6)).astype(np.float32)
    x = Tensor(array)
    view = x[1, ::-2]
    arguments = [a.to(device) if isinstance(a, Tensor) else a for a in CALLS[name]]
    expected = getattr(Tensor(array[1, ::-2]), name[:-1])(*arguments).numpy()
    assert getattr(view, name)(*arguments) is view
    np.testing.assert_array_equal(view.numpy(), expected)
    array[1, ::-2] = expected
    np.testing.assert_array_equal(x.numpy(), array)


def test_the_dtype_stays(device: str) -> None:
    x = Tensor([1, 2], dtype=dtypes.int8)
    assert x.add_(Tensor([3, 4])).dtype is dtypes.int8
    assert x.tolist() == [4, 6]
    assert Tensor([1.0], dtype=dtypes.float16).exp_().dtype is dtypes.float16


def test_gradients() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        x = a * 1
        x.mul_(b).sin_()
        x[:2].exp_().add_(a[1:])
        return x.cumsum_(0)

    assert_gradients(program, RNG.normal(size=3), RNG.normal(size=3))


def test_in_a_captured_function() -> None:
    total = Tensor.zeros(2).realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        return total.add_(x).clamp_(max=5).realize()

    for _ in range(4):
        add(Tensor([1.0, 2.0]).realize())
    assert total.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("draw", "mean", "variance"),
    [
        (lambda x: x.uniform_(1, 3), 2, 1 / 3),
        (lambda x: x.normal_(1, 2), 1, 4),
        (lambda x: x.exponential_(2), 0.5, 0.25),
        (lambda x: x.bernoulli_(0.25), 0.25, 0.1875),
    ],
    ids=["uniform", "normal", "exponential", "bernoulli"],
)
def test_random_numbers(
    device: str, draw: Callable[[Tensor], Tensor], mean: float, variance: float
) -> None:
    x = Tensor.zeros(400, 500)
    assert draw(x) is x
    found = x.numpy()
    assert abs(found.mean() - mean) < 0.03
    assert abs(found.var() - variance) < 0.1


@pytest.mark.parametrize(
    ("use", "kind", "text"),
    [
        (lambda: Tensor([1]).exp_(), DTypeError, r"\[exp_\] .* write x = x\.exp\(\.\.\.\) instead"),
        (lambda: Tensor([1.0]).add_(Tensor([1.0, 2.0])), ShapeError, r"\[add_\] a result of shape"),
        (
            lambda: Tensor([1.0], requires_grad=True).mul_(2),
            GradientError,
            r"\[mul_\] a tensor that requires a gradient",
        ),
        (lambda: Tensor([1]).normal_(), DTypeError, r"\[normal_\] draws floats, and the tensor is"),
        (lambda: Tensor([1.0]).exponential_(0), ValueError, r"\[exponential_\] lambd 0 must be"),
        (lambda: Tensor([1.0]).bernoulli_(2), ValueError, r"\[bernoulli_\] the probability is"),
    ],
)
def test_misuse_is_explained(use: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        use()
