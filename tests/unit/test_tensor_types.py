"""Type checkers know the methods of `Tensor` with their signatures.

`mypy --strict` reads this file: it checks what `assert_type` says, and that expected errors are
there. At run time `assert_type` does nothing; the calls and their errors are tested then.
"""

from typing import assert_type

import pytest

from ferrule import Tensor
from ferrule.ir.expr import sint
from ferrule.tensor.reduce.reductions import ValuesIndices


@pytest.fixture
def x() -> Tensor:
    return Tensor([[1.0, 2.0], [3.0, 4.0]])


def test_functions(x: Tensor) -> None:
    assert_type(x.softmax(), Tensor)
    assert_type(x.sum(0, keepdim=True), Tensor)
    assert_type(x.sin().relu().reshape(4), Tensor)
    assert_type(x.split(1), tuple[Tensor, ...])
    assert_type(x.sort(), ValuesIndices[Tensor])
    assert_type(x.is_contiguous(), bool)
    assert isinstance(x.sort().values, Tensor)


def test_operators(x: Tensor) -> None:
    assert_type(x + 1, Tensor)
    assert_type(2 - x, Tensor)
    assert_type(x < 3, Tensor)
    assert_type(x @ x, Tensor)
    assert_type(x[0], Tensor)
    assert_type(len(x), int)
    assert len(x) == 2


def test_attributes(x: Tensor) -> None:
    assert_type(x.T, Tensor)
    assert_type(x.grad, Tensor | None)
    assert_type(x.is_leaf, bool)
    assert x.grad is None


def test_methods_of_the_class(x: Tensor) -> None:
    assert_type(Tensor.zeros(2, 3, dtype="int32"), Tensor)
    assert_type(Tensor.cat([x, x], dim=1), Tensor)
    assert_type(Tensor.broadcast_shapes((2, 1), (3,)), tuple[sint, ...])
    assert_type(x.where(x, 0), Tensor)
    assert_type(x.where(), tuple[Tensor, ...])


def test_in_place(x: Tensor) -> None:
    assert_type(x.clone().add_(1, alpha=2), Tensor)
    assert_type(x.clone().uniform_(high=2.0), Tensor)


def test_wrong_calls(x: Tensor) -> None:
    with pytest.raises(TypeError):
        x.softmax("last")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        x.softmax(axes_=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        x.clone().add_(1, alpha=2, beta=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        x.gather(0, [0])  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        x.sotfmax()  # type: ignore[attr-defined]
