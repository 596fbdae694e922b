"""Tests that every public method is called by programs, or is listed with a reason why not."""

import inspect

import pytest

from ferrule import Tensor
from tests.fuzz import reached, surface
from tests.fuzz.calls import UNREACHED, accepted, refused
from tests.fuzz.recipes import RECIPES


@pytest.mark.parametrize("method", surface.methods(), ids=lambda method: method.name)
def test_programs_call_every_public_method(method: surface.Method) -> None:
    if method.name in UNREACHED:
        # A few accepted calls would say that the reason is no longer true.
        assert accepted(method, 24, 12) < 12, "remove it from UNREACHED"
        return
    assert not method.lacking, (
        f"no argument can be drawn for {method.lacking} of {method.name}: add a maker to "
        "tests/fuzz/surface.py, a recipe to tests/fuzz/recipes.py, or a reason to UNREACHED"
    )
    assert refused(method) is None, "add a recipe"


def test_a_method_that_refuses_all_calls_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **words: object) -> Tensor:
        raise ValueError("no such shape")

    monkeypatch.setattr(Tensor, "hypot", refuse)
    findings = {m.name: refused(m) for m in surface.methods() if m.name in ("hypot", "atan2")}
    assert findings["atan2"] is None
    assert findings["hypot"] is not None
    assert findings["hypot"].where == "refuses all: hypot"


def test_what_is_named_is_there() -> None:
    known = {name for name in dir(Tensor) if not name.startswith("_")}
    named = {name for names in surface.LEFT_OUT for name in names.split()}
    assert named - known == set()
    assert {*UNREACHED, *RECIPES} - {method.name for method in surface.methods()} == set()


def test_what_is_left_out_is_not_called() -> None:
    called = {method.name for method in surface.methods()}
    for name in dir(Tensor):
        callable_ = callable(getattr(Tensor, name, None))
        if not name.startswith("_") and callable_ and surface.unavailable(name) is None:
            member = inspect.getattr_static(Tensor, name)
            assert name in called or isinstance(member, type), name


def test_methods_of_a_file_are_those_that_run_it() -> None:
    pairs = {method.name for method in reached.methods_in("tensor/math/pairs.py")}
    assert {"hypot", "copysign", "logaddexp"} <= pairs
    assert "relu" not in pairs
    assert {"logit", "erf"} <= {m.name for m in reached.methods_in("tensor/math/errorfunction.py")}
    assert reached.methods_in("fusion/cut.py") == surface.methods()
