"""Whole numbers are ints, or what has `__index__`: no float is one, and no bool."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import nn
from ferrule.tensor import Tensor

_INTS = {"int", "sint", "Axes", "Sizes", "Wanted", "Sequence[int]", "Sequence[sint]"}
_SEVERAL = {"Sequence[int]", "Sequence[sint]", "None"}


def _parameters() -> Iterator[tuple[str, str, list[Any]]]:
    """Each method, its parameter that is a whole number, and arguments for those before it."""
    for name in dir(Tensor):
        if name.startswith("_"):
            continue
        found = inspect.getattr_static(Tensor, name)
        is_method = inspect.isfunction(found)
        function = inspect.unwrap(getattr(found, "__func__", found))
        if not inspect.isfunction(function):
            continue
        before: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            kinds = set(str(parameter.annotation).split(" | "))
            if (
                parameter.name not in ("self", "cls")
                and parameter.kind is not parameter.VAR_KEYWORD
            ):
                if kinds & _INTS and "bool" not in kinds:  # as in `x.var(False)`
                    yield name, parameter.name, [is_method, *before]
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                    right = (1,) if kinds <= _SEVERAL else 1
                    before.append(Tensor([1]) if "Tensor" in kinds else right)


CASES = list(_parameters())


def test_the_methods_are_found() -> None:
    names = {(name, parameter) for name, parameter, _ in CASES}
    assert len(names) > 200
    assert {("triu", "diagonal"), ("sum", "axis"), ("roll", "shifts"), ("topk", "k")} <= names


@pytest.mark.parametrize("wrong", [0.5, 2.0, True, "a", np.float32(1)], ids=repr)
@pytest.mark.parametrize(("name", "parameter", "before"), CASES, ids=lambda c: str(c)[:20])
def test_no_method_takes_another_number(
    name: str, parameter: str, before: list[Any], wrong: Any
) -> None:
    is_method, *arguments = before
    owner: Any = Tensor.ones(2, 2) if is_method else Tensor
    with pytest.raises(TypeError, match=f"{parameter} is a whole number, not"):
        getattr(owner, name)(*arguments, **{parameter: wrong})


X = Tensor.ones(4)
IMAGE, FILTER = Tensor.ones(1, 1, 4, 4), Tensor.ones(1, 1, 2, 2)
OTHERS: dict[str, Callable[[Any], object]] = {
    "zeros": lambda n: Tensor.zeros(n, 2),
    "full": lambda n: Tensor.full((n,), 1),
    "full of one axis": lambda n: Tensor.full(n, 1),
    "rand": lambda n: Tensor.rand(n),
    "reshape": lambda n: X.reshape(n, 4),
    "view": lambda n: X.view(n, 4),
    "expand": lambda n: X.expand(n, 4),
    "broadcast_to": lambda n: X.broadcast_to((n, 4)),
    "permute": lambda n: X.permute(n),
    "flip": lambda n: IMAGE.flip(n),
    "repeat": lambda n: X.repeat(n),
    "tile": lambda n: X.tile(n),
    "pad": lambda n: X.pad((n, 0)),
    "pad in pairs": lambda n: X.pad(((0, n),)),
    "shrink": lambda n: X.shrink(((0, n),)),
    "repeat_interleave": lambda n: X.repeat_interleave(n),
    "tensor_split": lambda n: X.tensor_split(n),
    "tensor_split at places": lambda n: X.tensor_split([n]),
    "tensordot": lambda n: X.tensordot(X, n),
    "conv2d": lambda n: IMAGE.conv2d(FILTER, padding=n),
    "conv2d's stride": lambda n: IMAGE.conv2d(FILTER, stride=(1, n)),
    "max_pool2d": lambda n: IMAGE.max_pool2d(2, padding=n),
    "roll by several": lambda n: IMAGE.roll((1, n), (0, 1)),
    "two axes": lambda n: IMAGE.sum((0, n)),
    "a list": lambda n: IMAGE.sum([n]),
    "the other name": lambda n: IMAGE.sum(dim=n),
    "hann": lambda n: ferrule.signal.windows.hann(n),
    "stft": lambda n: ferrule.signal.stft(X, n_fft=n),
    "fft": lambda n: ferrule.fft.rfft(X, n=n),
    "fft's axis": lambda n: ferrule.fft.rfft(IMAGE, dim=n),
    "fftn": lambda n: ferrule.fft.rfftn(IMAGE, s=(n,)),
    "Linear": lambda n: nn.Linear(n, 2),
    "Conv2d": lambda n: nn.Conv2d(1, 2, n),
    "Conv2d's stride": lambda n: nn.Conv2d(1, 2, 1, stride=(1, n)),
    "Embedding": lambda n: nn.Embedding(n, 2),
    "LSTM": lambda n: nn.LSTM(2, 2, n),
}


@pytest.mark.parametrize("wrong", [0.5, 1.0, True, np.float32(1)], ids=repr)
@pytest.mark.parametrize("call", OTHERS.items(), ids=lambda call: call[0])
def test_nothing_else_does(call: tuple[str, Callable[[Any], object]], wrong: Any) -> None:
    with pytest.raises(TypeError, match="is a whole number, not"):
        call[1](wrong)


class _Index:
    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "right", [np.int64(1), np.uint8(1), np.array(1), _Index()], ids=lambda n: type(n).__name__
)
def test_other_whole_numbers_are_taken(right: Any) -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert x.triu(right).tolist() == [[0, 2], [0, 0]]
    assert x.sum(right).tolist() == x.sum(dim=right).tolist() == [3, 7]
    assert x.sum((0, right)).item() == 10
    assert x.roll(right, right).tolist() == [[2, 1], [4, 3]]
    assert x.pad((right, 0)).shape == (2, 3)
    assert x.reshape(right, 4).shape == (1, 4)
    assert all(type(size) is int for size in x.unsqueeze(0).expand(right, 2, 2).shape)
    assert IMAGE.conv2d(FILTER, stride=(right, 2)).shape == (1, 1, 3, 2)
