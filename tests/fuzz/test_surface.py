"""Tests that every public method is called by programs, or is listed with a reason why not."""

import inspect

import pytest

from ferrule import Context, Tensor
from tests.fuzz import reached, surface
from tests.fuzz.calls import UNREACHED, accepted, calls_in, refused
from tests.fuzz.drawing import NothingFitsError
from tests.fuzz.generate import Generator
from tests.fuzz.recipes import RECIPES

OPTION_PROGRAMS, OPTION_CALLS = 25, 3
"""Drawn for each method, of which some call gives each of its arguments."""


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


def drawn_options(method: surface.Method) -> set[str]:
    """The names of the parameters that some drawn call of a method gives."""
    found: set[str] = set()
    for index in range(OPTION_PROGRAMS):
        generator = Generator(3, index)
        with Context(FERRULE_DEVICE="NUMPY"):
            generator.start()
            for _ in range(OPTION_CALLS):
                try:
                    line = generator.call(method)
                except NothingFitsError:
                    continue
                for _, given in calls_in(line or "", method):
                    found |= given.keys()
    return found


def test_every_argument_that_need_not_be_given_is_drawn() -> None:
    lists = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    missing = {
        f"{method.name}.{parameter.name}"
        for method in surface.methods()
        if not method.lacking and not method.in_place
        for drawn in [drawn_options(method)]
        for parameter in method.parameters
        if parameter.kind not in lists and parameter.name not in drawn
    }
    named = {name for names in surface.UNDRAWN for name in names.split()}
    assert missing - named == set(), "add a maker or a recipe, or a reason to UNDRAWN"
    assert named - missing == set(), "remove it from UNDRAWN"
