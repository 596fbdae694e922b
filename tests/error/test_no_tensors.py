"""What has to be a tensor and is none is named, for all methods and all layers."""

import inspect
import re
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, nn
from ferrule.nn.functions import Function

ARRAY: Any = np.ones((2, 2), np.float32)


def tensors_expected() -> list[tuple[str, str]]:
    """Methods, and their parameters that have to be tensors."""
    found = []
    for name in sorted(vars(Tensor)):
        member = inspect.getattr_static(Tensor, name)
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        for parameter in inspect.signature(member).parameters.values():
            plain = str(parameter.annotation).removesuffix(" | None")
            one = parameter.kind is not inspect.Parameter.VAR_POSITIONAL
            if plain == "Tensor" and one and parameter.name != "self":
                found.append((name, parameter.name))
    return found


def test_what_is_realized_along() -> None:
    with pytest.raises(TypeError, match=r"^\[realize\] takes tensors, not ndarray; make it one"):
        (Tensor([1.0]) + 1).realize(ARRAY)


def test_methods() -> None:
    expected = tensors_expected()
    assert ("gather", "index") in expected
    assert ("conv2d", "bias") in expected
    assert len(expected) > 130
    for method, parameter in expected:
        name = getattr(Tensor, method).__name__  # of a method with several names, the first
        text = f"[{name}] {parameter} has to be a tensor, not ndarray; make it one: Tensor(...)"
        with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
            getattr(Tensor([[1.0]]), method)(**{parameter: ARRAY})


def test_by_place_and_none() -> None:
    x = Tensor([[1.0, 2.0]])
    with pytest.raises(TypeError, match=r"^\[gather\] index has to be a tensor, not list"):
        x.gather(1, [[0]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^\[cross_entropy\] target has to be a tensor, not None"):
        x.cross_entropy(None)  # type: ignore[arg-type]
    assert x.linear(Tensor([[1.0], [1.0]]), None).tolist() == [[3.0]]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'index'"):
        x.gather(1)  # type: ignore[call-arg]


LAYERS = [
    name
    for name in nn.__all__
    if inspect.isclass(getattr(nn, name)) and name not in ("Identity", "Parameter", "Sequential")
    # Not containers, which are not called, nor records of what was found about layers.
    if getattr(getattr(nn, name), "forward", nn.Module.forward) is not nn.Module.forward
]


@pytest.mark.parametrize("name", [name for name in LAYERS if name[0].isupper()])
def test_layers(name: str) -> None:
    kind = getattr(nn, name)
    layer = kind.__new__(kind)  # what it is made of does not matter
    with pytest.raises(
        TypeError, match=rf"^\[{kind.__name__}\] .* has to be a tensor, not ndarray; make"
    ):
        layer(ARRAY, ARRAY)


def test_layers_of_functions_check_what_they_are_given_first() -> None:
    assert isinstance(nn.MSELoss(), Function)
    target: Any = np.zeros(2, np.float32)
    assert nn.MSELoss()(Tensor([1.0, 1.0]), target).item() == 1.0
    with pytest.raises(TypeError, match=r"^\[Linear\] x has to be a tensor, not list; make it"):
        nn.Sequential(nn.Linear(2, 2), nn.ReLU())([1.0, 2.0])
