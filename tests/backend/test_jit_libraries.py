"""Captured functions beside large libraries, which captures do not look into as a whole."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from ferrule.jit import TinyJit
from ferrule.jit.executed import Executed
from ferrule.jit.state import State
from ferrule.tensor import Tensor

LARGE = 400  # modules

LIBRARY = """
class Trap:
    def __getattr__(self, name):
        raise RuntimeError(f"nobody may ask for {name}")

trap = Trap()
rate = 2.0

class Array:
    pass

class Settings:
    step = 3.0
    def __init__(self): self._fields = {"lr": 0.5}
    def __getattr__(self, name):
        if name.startswith("_"): raise AttributeError(name)
        return self._fields[name]

def is_array(x): return trap is None or hasattr(x, "shapes") or isinstance(x, Array)

def decorate(function):
    def wrapper(*args): return function(*args)
    return wrapper
"""


def make_library(name: str, modules: int) -> types.ModuleType:
    """A package of so many modules, of which the first has all that is in it."""
    library = types.ModuleType(name)
    exec(compile(LIBRARY, "library.py", "exec"), vars(library))
    for number in range(modules):
        sys.modules[f"{name}.part{number}"] = types.ModuleType(f"{name}.part{number}")
    sys.modules[name] = library
    return library


@pytest.fixture(params=[1, LARGE], ids=["small", "large"])
def library(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield make_library("arrays", request.param)
    for name in [n for n in sys.modules if n.partition(".")[0] == "arrays"]:
        del sys.modules[name]


def calls(function: Any, number: int = 4) -> list[list[float]]:
    return [function(Tensor([1.0, float(i)])).tolist() for i in range(number)]


def test_a_helper_asks_a_library_for_its_type(library: Any) -> None:
    def double(x: Any) -> Any:
        return library.Array() if library.is_array(x) else x * 2

    captured = TinyJit(lambda x: (double(x) + 1).realize())
    assert calls(captured) == [[3, 2.0 * i + 1] for i in range(4)]
    assert captured.jit_cache


def test_a_library_is_looked_at_as_far_as_code_names_it(library: Any) -> None:
    for number in range(1000):
        exec(f"def function{number}(x): return other{number}(x)", vars(library))
    for state in (State([calls, lambda: library.rate], None), State([lambda: library], Executed())):
        assert len(state._holders) < 20
        assert len(state.codes) < 10


def test_what_a_library_decorates_is_looked_at(library: Any) -> None:
    state = {"weight": Tensor([2.0]).realize()}

    def multiply(x: Tensor) -> Tensor:
        return x * state["weight"]

    decorated = library.decorate(multiply)
    captured = TinyJit(lambda x: decorated(x).realize())
    assert calls(captured) == [[2, 2.0 * i] for i in range(4)]
    state["weight"] = Tensor([5.0]).realize()
    assert calls(captured) == [[5, 5.0 * i] for i in range(4)]


def test_settings_of_a_library_may_change(library: Any) -> None:
    settings = library.Settings()
    captured = TinyJit(lambda x: (x * settings.lr + settings.step * library.rate).realize())
    assert calls(captured) == [[6.5, 0.5 * i + 6] for i in range(4)]
    settings._fields["lr"] = 2.0
    assert calls(captured) == [[8, 2.0 * i + 6] for i in range(4)]
    library.Settings.step = 1.0
    assert calls(captured) == [[4, 2.0 * i + 2] for i in range(4)]
    library.rate = 7.0
    assert calls(captured) == [[9, 2.0 * i + 7] for i in range(4)]


def test_a_library_that_uses_tensors_may_keep_some(library: Any) -> None:
    vars(library)["Tensor"] = Tensor
    exec("weight = Tensor([2.0]).realize()\ndef scale(x): return x * weight", vars(library))
    captured = TinyJit(lambda x: library.scale(x).realize())
    assert calls(captured) == [[2, 2.0 * i] for i in range(4)]
    vars(library)["weight"] = Tensor([5.0]).realize()
    assert calls(captured) == [[5, 5.0 * i] for i in range(4)]


class Lazily:
    """Computes an attribute of a class when it is first asked for, and keeps it there."""

    def __get__(self, instance: object, kind: type) -> float:
        kind.kept = 2.0
        return 2.0


class Counted:
    factor = Lazily()
    rest = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * type(self).factor + self.rest


def test_classes_that_get_attributes_when_they_are_looked_at(device: str) -> None:
    model = Counted()
    f = TinyJit(lambda x: model(x).realize())
    assert [f(Tensor([float(i)])).item() for i in range(4)] == [1.0, 3.0, 5.0, 7.0]
