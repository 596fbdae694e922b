"""`nn.functional`: arguments by place and by name, defaults, and refusals."""

from typing import Any

import pytest

from ferrule import Tensor
from ferrule.nn import functional as F


@pytest.mark.parametrize("name", F.__all__)
def test_every_function_is_there(name: str) -> None:
    function = getattr(F, name)
    assert function.__name__ == name
    assert name in dir(F)


def test_arguments_by_place_and_by_name() -> None:
    x = Tensor([-2.0, 4.0])
    assert F.leaky_relu(x, 0.5).tolist() == [-1.0, 4.0]
    assert F.leaky_relu(input=x, negative_slope=0.25).tolist() == [-0.5, 4.0]
    assert F.pad(x, pad=(1, 0), value=3.0).tolist() == [3.0, -2.0, 4.0]
    scores, labels = Tensor([[1.0, 1.0]]), Tensor([0])
    assert F.cross_entropy(scores, labels, None, None, 0).isnan().item()  # label 0 is ignored


def test_dropout_is_in_training_by_default() -> None:
    x = Tensor.ones(4)
    assert F.dropout(x, 1.0).tolist() == [0.0] * 4
    assert F.dropout(x, 1.0, training=False).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: F.mse_loss(x, x, size_average=True), "size_average=True is not supported"),
        (lambda x: F.interpolate(x, antialias=True), "interpolate: antialias=True is not supp"),
        (lambda x: F.relu(x, slope=2), "unexpected keyword argument 'slope'"),
        (lambda x: F.softmax(x), "missing a required argument: 'dim'"),
    ],
)
def test_what_is_refused(call: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        call(Tensor([1.0]))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="did you mean"):
        F.reluu  # noqa: B018
