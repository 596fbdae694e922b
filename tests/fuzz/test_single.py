"""Single statements: all rules of derivatives are met, and mistakes in them are found."""

from __future__ import annotations

import pytest

from ferrule import Context
from ferrule.autograd import Rule
from ferrule.autograd.tape import REVERSE, Gradients, GradNode, TracedValue
from ferrule.ops import BinaryOps, MovementOps, Op, ReduceOps
from tests.fuzz import reached
from tests.fuzz.drawing import NothingFitsError
from tests.fuzz.single import Single
from tests.fuzz.surface import methods

TRIES = 60
"""Of programs of one method, for a mistake that shows at some numbers only."""
# Rules that are on no tape of a function that is drawn, each with the reason.
UNMET = {
    "_reverse_cofactors": "is the rule of a rule: the derivative of a determinant's",
    "_reverse_by_frequency": "is no derivative, by definition",
}


def test_programs_of_one_statement_are_drawn_in_nearly_all_cases() -> None:
    with Context(FERRULE_DEVICE="NUMPY"):
        found = [Single(4, index).one_statement() for index in range(60)]
    programs = [program for program in found if program is not None]
    assert len(programs) > len(found) * 0.7
    assert any(len(program.results) > 1 for program in programs)
    assert any(program.writes for program in programs)
    assert any(len(program.wanted) < len(program.sources) for program in programs)


def test_each_rule_is_met_by_what_is_drawn_for_it() -> None:
    unmet = [r.rule.reverse for r in reached.rules() if not _is_met(r)]
    assert {function.__name__ for function in unmet} == {*UNMET}


def test_with_a_focus_on_a_file_its_rules_are_drawn() -> None:
    rules = reached.rules_in("tensor/math/pairs.py")
    assert len(rules) > 2
    assert {r.rule.reverse.__module__ for r in rules} == {"ferrule.tensor.math.pairs"}
    # A file without rules has those of the methods that run its code.
    around = {r.rule.reverse.__name__ for r in reached.rules_in("tensor/broadcast.py")}
    assert "_reverse_copysign" in around
    focused = Single(3, 0, "tensor/math/pairs.py")
    with Context(FERRULE_DEVICE="NUMPY"):
        focused.start()
        lines = [focused.ruled() for _ in range(20)]
        met = [
            line for line in lines if line and any(focused.has_rule(line, r.rule) for r in rules)
        ]
    assert len(met) > len(lines) / 2


def _is_met(ruled: reached.Ruled) -> bool:
    single = Single(1, 1)
    with Context(FERRULE_DEVICE="NUMPY"):
        for _ in range(200):
            single.start()
            (method,) = single.rng.choices(ruled.methods, ruled.chances)
            try:
                line = single.called(method)
            except NothingFitsError:
                continue
            if line is not None and single.has_rule(line, ruled.rule):
                return True
    return False


def _to_the_first(grad: TracedValue, entry: GradNode) -> Gradients:
    a, b = entry.saved
    to_a = (a < b).where(grad.full(0), grad)
    return to_a, grad - to_a


def _not_shared(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    chosen = x.equals(entry.result().expand(x.shape)).cast(x.dtype)
    return (grad.expand(x.shape) * chosen,)


def _divided(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    product = x.reduce(ReduceOps.PROD, entry.arg)
    return ((grad * product).expand(x.shape) / x,)


def _of_other_shape(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad,)


MISTAKES: dict[str, tuple[str, Op, Rule]] = {
    "ties of two": ("maximum", BinaryOps.MAX, Rule(_to_the_first, inputs=(0, 1))),
    "ties of many": ("amax", ReduceOps.MAX, Rule(_not_shared, inputs=(0,), output=True)),
    "not finite at zeros": ("prod", ReduceOps.PROD, Rule(_divided, inputs=(0,))),
    "another shape": ("split", MovementOps.SHRINK, Rule(_of_other_shape)),
    "another order": ("permute", MovementOps.PERMUTE, Rule(lambda g, e: (g.permute(e.arg),))),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_rules_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, op, wrong = MISTAKES[name]
    (called,) = [known for known in methods() if known.name == method]
    monkeypatch.setattr(Single, "lines", lambda single: (single.call(called),))
    assert not any(Single(5, index).statements() for index in range(TRIES))
    monkeypatch.setitem(REVERSE, op, wrong)
    assert any(Single(5, index).statements() for index in range(TRIES))
