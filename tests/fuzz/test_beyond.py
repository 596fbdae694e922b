"""Tests that every public name outside of `Tensor` is fuzzed, or is listed with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ferrule.transforms
from ferrule import Context, Tensor, nn
from ferrule.base.config import config
from ferrule.nn.optim import lr_scheduler
from tests.fuzz import chances, layers, namespaces, training, transforms
from tests.fuzz.__main__ import FOCI
from tests.fuzz.beyond import KINDS, WEIGHTS
from tests.fuzz.calls import accepted_statements
from tests.fuzz.check import Finding, check_way
from tests.fuzz.generate import Generator
from tests.fuzz.layers import Layer
from tests.fuzz.program import CHANCE, Program, Source, is_random, read_program, written
from tests.fuzz.reference import evaluate
from tests.fuzz.shrink import shrink
from tests.fuzz.ways import Way, run

TRIES = 120


def is_accepted(drawn: Callable[[Generator], str]) -> bool:
    return accepted_statements(drawn, TRIES) > 0


@pytest.mark.parametrize("layer", layers.layers(), ids=lambda layer: layer.name)
def test_programs_call_every_layer(layer: Layer) -> None:
    assert layer.name in layers.RECIPES or not layer.lacking, (
        f"nothing is known for {layer.lacking} of {layer.name}: add words to CHOICES or KINDS, or "
        "a recipe, in tests/fuzz/layers.py"
    )

    def drawn(generator: Generator) -> str:
        generator.beyond.few = 1000
        return f"v = {generator.beyond.called(layers.drawn(generator.draw, layer))}"

    assert is_accepted(drawn), f"no call of {layer.name} was accepted: add a recipe"


@pytest.mark.parametrize(
    "maker", [*training.optimizers(), *training.schedules()], ids=lambda maker: maker.name
)
def test_programs_step_every_optimizer_and_schedule(maker: training.Maker) -> None:
    assert not maker.lacking, f"add words for {maker.lacking} to CHOICES in tests/fuzz/layers.py"

    def drawn(generator: Generator) -> str:
        draw = generator.draw
        x = draw.fresh((2, 3), "float32")
        model = draw.object("m", "filled(nn.Linear(3, 2), {})")
        if "lr_scheduler" in maker.path:
            optimizer = draw.object("o", f"nn.optim.SGD(nn.state.get_parameters({model}), lr=0.5)")
            return f"{draw.object('o', maker.made(draw, optimizer))}.step()"
        made = maker.made(draw, training.parameters(draw, [model], maker))
        return training.step(draw, draw.object("o", made), f"{model}({x})")

    assert is_accepted(drawn)


@pytest.mark.parametrize("name", transforms.FORMS)
def test_programs_call_every_transformation(name: str) -> None:
    def drawn(generator: Generator) -> str:
        x = generator.draw.fresh((3,), "float32")
        value = generator.draw.values[x]
        values = generator.machine.values
        return f"v = {transforms.call(generator.draw, values, name, x, value, ('x', 'y'))}"

    assert is_accepted(drawn)


@pytest.mark.parametrize("function", namespaces.functions(), ids=lambda function: function.path)
def test_programs_call_every_function(function: namespaces.Function) -> None:
    assert not function.lacking, f"add makers for {function.lacking} to tests/fuzz/namespaces.py"
    assert is_accepted(lambda generator: f"v = {namespaces.call(generator.draw, function)}")


@pytest.mark.parametrize("chance", chances.chances(), ids=lambda chance: chance.name)
def test_programs_draw_by_every_method_of_chance(chance: chances.Chance) -> None:
    assert not chance.lacking, f"add makers for {chance.lacking} to tests/fuzz/chances.py"
    assert is_accepted(lambda generator: f"v = {chances.call(generator.draw, chance)}")


def test_what_is_named_is_there() -> None:
    assert {*layers.LEFT_OUT, *layers.RECIPES} <= {*nn.__all__}
    assert {*training.LEFT_OUT} <= {*nn.optim.__all__, *lr_scheduler.__all__}
    assert {*transforms.FORMS, *transforms.LEFT_OUT} == {*ferrule.transforms.__all__}
    assert {*KINDS} == {*WEIGHTS}
    assert {*KINDS} <= {*FOCI}
    assert all(hasattr(Tensor, name) for name in CHANCE)


def test_a_layer_that_is_added_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Added:
        def __init__(self, channels: int, scale: float = 1.0) -> None:
            self.channels, self.scale = channels, scale

        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            if x.ndim != 3 or x.shape[1] != self.channels:
                raise ValueError
            return x * y * self.scale

    monkeypatch.setattr(nn, "Added", Added, raising=False)
    layer = layers._layer("Added", Added)
    axes = ("n0", "channels", "n2")
    assert layers.forms(layer) == ((layers.Operand("float", axes), layers.Operand("float", axes)),)


# -- programs with them ----------------------------------------------------------------------------

X = Source("a0", "Tensor(rng(0).integers(-6, 7, (4, 3)) / 2, dtype='float32')")
MODEL = Source("m1", "filled(nn.Linear(3, 2, dtype='float32'), rng(1))", True)
NORM = Source("t2", "filled(nn.BatchNorm1d(2, dtype='float32'), rng(2)).train()", True)
ADAM = Source("o3", "nn.optim.Adam(nn.state.get_parameters([m1, t2]), lr=0.5, eps=0.25)", True)
RATES = Source("o4", "nn.optim.lr_scheduler.ExponentialLR(o3, 0.5)", True)

TRAINED = Program(
    (X, MODEL, NORM, ADAM),
    ("v1 = t2(m1(a0))", "update(o3, v1.tanh().square().sum())", "v2 = m1(a0)"),
    ("v1", "v2"),
    3,
    5,
)
# Schedules count in Python: they are not for captured functions.
SCHEDULED = replace(
    TRAINED, sources=(*TRAINED.sources, RATES), body=(*TRAINED.body, "o4.step()"), calls=3
)
CALLED = Program(
    (replace(X, name="a5", made=X.made.replace("(4, 3)", "(2, 3)")), X, MODEL),
    (
        "v1 = nn.state.functional_call(m1, {'weight': a5}, (a0,))",
        "v2 = ferrule.jvp(lambda x: x.sin() * a5.sum(), (v1,), (v1,))[1]",
    ),
    ("v1", "v2"),
    4,
    3,
    ("a5", "a0"),
)
DRAWN = Program((X,), ("v1 = a0.dropout(0.5, True)", "v2 = Tensor.randn(3) + v1"), ("v2",), 5, 5)
EXAMPLES = {"training": TRAINED, "schedules": SCHEDULED, "layers": CALLED, "chance": DRAWN}
WAYS = (
    Way("CPU"),
    Way("CPU", jit=1),
    Way("CPU", cuts=((0, "realize"),), late=True),
    Way("NUMPY", jit=2, threads=2),
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_right_programs_agree(name: str) -> None:
    program = EXAMPLES[name]
    expected = evaluate(program)
    for way in WAYS:
        if way.jit and "o4" in program.text():
            continue
        finding = check_way(program, way, expected)
        assert finding is None, finding.text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_programs_print_as_plain_code_and_are_read_back(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = EXAMPLES[name]
    assert read_program(program.text()) == program
    with Context(FERRULE_DEVICE="NUMPY"):
        exec(program.text("a title\n"), {"__name__": "printed"})
        results = run(replace(program, wanted=()), Way()).calls
    count = len(program.results)
    expected = "".join(f"{array}\n" for arrays in results for array in arrays[:count])
    assert capsys.readouterr().out == expected


def test_the_state_is_that_of_all_objects() -> None:
    expected = evaluate(TRAINED)
    assert {"m1.weight", "t2.running_mean", "t2.num_batches_tracked"} <= {*expected.states}
    assert any("exp_avg" in name for name in expected.states)
    first, last = expected.calls[0], expected.calls[-1]
    place = expected.labels(TRAINED).index("m1.weight")
    assert not np.array_equal(first[place], last[place])


def _planted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes one thing wrong, on the device CPU."""
    places: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "a step": (nn.optim.Adam, "step", lambda step, self: (step(self), step(self))),
        "a schedule": (lr_scheduler.ExponentialLR, "step", lambda step, self: None),
        "a statistic": (nn.BatchNorm1d, "_track", lambda track, self, *of: track(self, *of[::-1])),
        "a parameter": (nn.state, "functional_call", lambda call, model, _, args: model(*args)),
        "a stream": (Tensor, "manual_seed", lambda seeded, seed: seeded(seed + 1)),
        "a transformation": (ferrule, "jvp", lambda jvp, f, x, t: jvp(f, x, (t[0] * 2,))),
    }
    owner, attribute, wrong = places[name]
    right = getattr(owner, attribute)

    def planted(*args: Any) -> Any:
        is_wrong = config().FERRULE_DEVICE == "CPU"
        return wrong(right, *args) if is_wrong else right(*args)

    replacement: Any = staticmethod(planted) if owner is Tensor else planted
    monkeypatch.setattr(owner, attribute, replacement)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("a step", TRAINED),
        ("a schedule", SCHEDULED),
        ("a statistic", TRAINED),
        ("a parameter", CALLED),
        ("a stream", DRAWN),
        ("a transformation", CALLED),
    ],
)
def test_planted_mistakes_are_found(
    name: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = replace(program, calls=2)
    expected = evaluate(program)
    _planted(name, monkeypatch)
    finding = check_way(program, Way("CPU"), expected)
    assert finding is not None
    assert finding.kind == "wrong"


def test_programs_with_objects_become_smaller() -> None:
    extra = Source("m9", "filled(nn.Linear(3, 2, bias=True), rng(9))", True)
    body = ("v8 = m9(a0)", *TRAINED.body, "v3 = v2 + v8")
    large = replace(TRAINED, sources=(*TRAINED.sources, extra), body=body, results=("v1", "v3"))

    def show(program: Program, way: Way | None) -> Finding | None:
        has_update = any(line.startswith("update(") for line in program.body)
        return Finding("wrong", program, way, "here", "") if has_update else None

    smaller = shrink(Finding("wrong", large, Way(), "here", ""), 20, show)
    assert len(smaller.program.body) <= 2
    assert all(s.name != "m9" for s in smaller.program.sources)
    assert {"o3", "m1"} <= {source.name for source in smaller.program.sources}


def test_an_optimizer_keeps_its_models() -> None:
    program = replace(SCHEDULED, body=("o4.step()",), results=("a0",)).without_unused()
    assert [source.name for source in program.sources] == ["a0", "m1", "t2", "o3", "o4"]


def test_statements_say_what_they_change() -> None:
    assert written("v1 = t2(m1(a0))") == "t2"
    assert written("update(o3, v1.sum())") == "o3"
    assert written("v1 = m1(a0)") is None
    assert is_random("v1 = t2(a0)")
    assert is_random("v1 = a0.dropout(0.5, True)")
    assert not is_random("o3.step()")


MARKS = {
    "layers": r"nn\.|\b[mt]\d+\(",
    "training": r"update\(",
    "transforms": r"ferrule\.\w+\(",
    "functions": r"ferrule\.\w+\.",
    "chance": "|".join(CHANCE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_statements_of_a_kind_are_drawn(kind: str) -> None:
    """A change of the generator must not make a kind of statement vanish unnoticed."""
    found = 0
    for number in range(8):
        generator = Generator(1, number, focus=kind)
        generator.program()
        found += any(re.search(MARKS[kind], line) for line in generator.body)
    assert found >= 3


def test_some_programs_have_such_statements() -> None:
    kinds = [Generator(2, number).kind for number in range(1000)]
    assert 130 < sum(map(bool, kinds)) < 230
    assert {*kinds} == {"", *KINDS}
