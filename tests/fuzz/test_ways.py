"""The ways to run a program: right programs agree in all of them, and planted mistakes do not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Context, Tensor
from ferrule.autograd.tape import REVERSE
from ferrule.base.config import PASSES, config
from ferrule.ops import UnaryOps
from ferrule.transforms.batching import Batch
from ferrule.transforms.trace import Linear
from tests.fuzz import check, functions, ways
from tests.fuzz.check import Finding, Shadows, check_way, plausible
from tests.fuzz.derivatives import POINTS, Slopes, _said
from tests.fuzz.drawing import LARGE, LARGE_COUNTS, SMALL, Drawing
from tests.fuzz.functions import DERIVATIVES, ORACLES
from tests.fuzz.program import Program, Source, read_program
from tests.fuzz.reference import Machine, evaluate
from tests.fuzz.ways import Way, draw_way

A = Source("a", "Tensor(rng(0).integers(-6, 7, (3, 4)) / 2, dtype='float32')")
B = Source("b", "Tensor(rng(1).integers(-6, 7, (3, 4)) / 2, dtype='float32')")
STATE = replace(B, name="s", is_state=True)

PLAIN = Program((A, B), ("c = a * b + 1", "d = c.sum(1)", "e = c[[0, -1]] * 2"), ("d", "e"), 5, 5)
GROWING = replace(
    PLAIN, sources=tuple(replace(s, made=s.made.replace("(3,", "(3 + call % 3,")) for s in (A, B))
)
KEPT = Program((A, STATE), ("c = a + s", "s += a", "d = c.sum(0)"), ("c", "d"), 6, 5)
SMOOTH = Program(
    (A, B), ("c = ((a * a + 1).sqrt() * b).sum(0)", "d = c * c"), ("d",), 7, 3, ("a", "b")
)

MAPPING = Program(
    (A, B), ("c = ferrule.vmap(lambda x: a.tanh() * a * x.sum())(b)",), ("c",), 6, 5, ("a", "b")
)

POSITIONS = Source("i", "Tensor(rng(2).integers(0, 4, (3, 4)))")
PICKING = Program((A, POSITIONS), ("c = (a * a + 1).sqrt().gather(1, i)",), ("c",), 7, 1, ("a",))

EXAMPLES = {
    "a plain one": (PLAIN, Way("CPU")),
    "mapped": (PLAIN, Way("CPU", mapped=True)),
    "mapped, captured": (PLAIN, Way("CPU", mapped=True, jit=1)),
    "mapped, with gradients": (SMOOTH, Way("CPU", mapped=True, derivative="grad")),
    "mapped, by differences": (SMOOTH, Way("CPU", mapped=True, derivative="differences")),
    "mapped, by second": (MAPPING, Way("CPU", mapped=True, derivative="second")),
    "split": (PLAIN, Way("CPU", split=1)),
    "split, captured": (KEPT, Way("CPU", split=2, jit=1)),
    "a variable": (PLAIN, Way("CPU", variable=1)),
    "a variable that changes": (GROWING, Way("CPU", variable=2)),
    "a variable, captured": (GROWING, Way("CPU", variable=3, jit=1)),
    "a variable, with gradients": (SMOOTH, Way("CPU", variable=1)),
    "a state": (KEPT, Way("CPU", jit=1, outside=True)),
    "a state, replays checked": (KEPT, Way("CPU", jit=3, outside=True)),
    "all skipped": (SMOOTH, Way("CPU", skipped=",".join(PASSES))),
    **{f"by {name}": (SMOOTH, Way("CPU", derivative=name)) for name in (*DERIVATIVES, *ORACLES)},
    "by tape, captured": (SMOOTH, Way("CPU", derivative="tape", jit=1)),
}


def found(program: Program, way: Way) -> Finding | None:
    """The finding, or None; unlike `check`, this raises if the way does not apply."""
    return check_way(program, way, evaluate(program))


@pytest.mark.parametrize("name", EXAMPLES)
def test_right_programs_agree(name: str) -> None:
    assert found(*EXAMPLES[name]) is None


@pytest.mark.parametrize("name", EXAMPLES)
def test_programs_can_be_read_back(name: str) -> None:
    program, _ = EXAMPLES[name]
    assert read_program(program.text()) == program


# -- planted mistakes ------------------------------------------------------------------------------


class Stale:
    """A `TinyJit` whose replays give what the second call gave."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.results: list[Any] = []

    def __call__(self, *arguments: Any) -> Any:
        if len(self.results) < 2:
            self.results.append(self.function(*arguments))
        return self.results[-1]


def of_the_first_lane(function: Callable[..., Any]) -> Callable[..., Any]:
    def over_all(*stacked: Tensor) -> Any:
        count = stacked[0].shape[0]
        return tuple(Tensor.stack([r] * count) for r in function(*(x[0] for x in stacked)))

    return over_all


def doubled(results: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose last result, or the last part of that, is twice what it should be."""

    def twice(part: Any) -> Any:
        return (*part[:-1], twice(part[-1])) if isinstance(part, tuple | list) else part * 2

    return lambda *args, **kwargs: twice(results(*args, **kwargs))


def plant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes one thing wrong."""
    rule = REVERSE[UnaryOps.SQRT]
    changes: dict[str, tuple[Any, str, Any]] = {
        "a stale replay": (functions, "TinyJit", Stale),
        "vmap": (ferrule, "vmap", of_the_first_lane),
        "positions": (ferrule.tensor.index.positions, "wrapped", lambda index, *_: index),
        "lanes going backwards": (Batch, "from_now_on", lambda lanes: lanes),
        "backward": (Tensor, "backward", lambda self: None),
        "checkpoint": (ferrule, "checkpoint", lambda step: lambda *args: step(*args[::-1])),
        "jvp": (Linear, "push", None),
        "a state": (
            ways._Run,
            "write_state",
            lambda run: run.names["s"].assign(run.names["s"] + 1),
        ),
    }
    if name in ("a derivative", "a second derivative"):
        function = rule.reverse

        def wrong(*args: Any) -> Any:
            (slope,) = function(*args)
            assert slope is not None
            return (slope.detach() if name.startswith("a second") else slope + slope,)

        monkeypatch.setitem(REVERSE, UnaryOps.SQRT, replace(rule, reverse=wrong))
        return
    where, attribute, value = changes[name]
    if value is None:
        value = doubled(getattr(where, attribute))
    monkeypatch.setattr(where, attribute, value)


PLANTED = [
    ("a stale replay", PLAIN, Way("CPU", split=1, jit=1)),
    ("vmap", PLAIN, Way("CPU", mapped=True)),
    ("positions", PLAIN, Way("CPU", variable=4)),
    ("backward", SMOOTH, Way("CPU", derivative="tape")),
    ("checkpoint", SMOOTH, Way("CPU", derivative="checkpoint")),
    ("jvp", SMOOTH, Way("CPU", derivative="jvp")),
    ("jvp", SMOOTH, Way("CPU", derivative="differences")),
    ("a derivative", SMOOTH, Way("CPU", derivative="differences")),
    ("a derivative", PICKING, Way("CPU", derivative="differences")),
    ("a second derivative", SMOOTH, Way("CPU", derivative="second")),
    ("lanes going backwards", MAPPING, Way("CPU", mapped=True, derivative="second")),
    ("a state", KEPT, Way("CPU", outside=True)),
]


@pytest.mark.parametrize(("name", "program", "way"), PLANTED)
def test_planted_mistakes_are_found(
    name: str, program: Program, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(program, way) is None
    expected = evaluate(program)
    plant(name, monkeypatch)
    finding = check_way(program, way, expected)
    assert finding is not None
    assert finding.kind == "wrong"


def test_overflow_by_the_order_of_a_sum_is_no_mistake() -> None:
    huge = Source("a", "Tensor([3e38, -3e38, 3e38, -3e38], dtype='float32')")
    tall = replace(huge, made="Tensor([1.0, 1e20, 2.0, -1.0], dtype='float32')")
    for source, is_plausible in ((huge, True), (tall, False)):
        program = Program((source,), ("b = a.mean()", "c = b.tanh()"), ("c",))
        expected = evaluate(program).calls[0][0]
        assert plausible(Shadows(program), 0, 0, expected, expected * np.nan) == is_plausible


def test_rounding_of_large_integers_is_no_mistake() -> None:
    far = Source("a", "Tensor([2**31 - 1, 1, -(2**31), 2, 0], dtype='int32')")
    near = replace(far, made="Tensor([2**20, 1, -(2**20), 2, 0], dtype='int32')")
    for source, is_plausible in ((far, True), (near, False)):
        program = Program((source,), ("c = a.mean()",), ("c",))
        expected = evaluate(program).calls[0][0]
        assert plausible(Shadows(program), 0, 0, expected, expected + 20) == is_plausible


def test_derivatives_that_are_rounding_are_no_mistake() -> None:
    """Attention to one place is constant; its second derivative is 0 but for rounding."""
    rows = "[1.0] * 8, [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0], [1.0] * 8"
    query = Source("q", f"Tensor([[[{rows}]]])")
    key = Source("k", "Tensor([[[[1.0, 1.0, 1.0, 1.0, 0.0, -2.0, 0.5, 0.0]]]])")
    body = ("c = q.scaled_dot_product_attention(k, k)",)
    program = Program((query, key), body, ("c",), 296925528, 1, ("q",))
    assert found(program, Way(derivative="second")) is None


def test_extremes_say_nothing_about_derivatives() -> None:
    huge = replace(A, made="Tensor([1.0, 3e38, 0.0])")
    program = Program((huge,), ("c = a * 1",), ("c",), 8, 1, ("a",))
    assert found(program, Way(derivative="differences")) is None
    unused = replace(A, made='Tensor([float("nan"), float("inf"), 0.0])')
    program = Program((unused,), ("b = a * a", "c = b[3:]"), ("c",), 8, 1, ("a",))
    assert found(program, Way(derivative="differences")) is None


def test_extremes_say_nothing_about_second_derivatives() -> None:
    matrix = replace(A, made="Tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, -3e38, 1.0]])")
    right = replace(B, made="Tensor([[0.0], [3e38], [1.0]])")
    body = ("c = (a + Tensor.eye(1)).solve(b)", "d = c.rmsnorm()")
    program = Program((matrix, right), body, ("d",), 364434975, 1, ("a",))
    assert found(program, Way(derivative="second")) is None


def test_a_state_that_keeps_the_tape_of_the_call_before_is_no_mistake() -> None:
    program = Program((STATE, A), ("c = a * 2", "d = s - c", "s += c"), ("d",), 1, 3, ("a",))
    impossible = check.impossible["tape"]
    assert check.check(program, [Way(derivative="tape")]) is None
    assert check.impossible["tape"] == impossible + 1


def test_differences_of_what_is_defined_at_a_point_alone_say_nothing() -> None:
    """For a negative y, x * log(y) is a number at x = 0 only, and left out beside it."""
    x, y = replace(A, made="Tensor([0.0, 1.0])"), replace(B, made="Tensor([-2.0, 2.0])")
    program = Program((x, y), ("c = a.xlogy(b)",), ("c",), 1, 1, ("a", "b"))
    assert POINTS[program.seed % len(POINTS)] == "round"
    assert found(program, Way(derivative="second")) is None


@pytest.mark.parametrize("name", ["grad", "vjp"])
def test_a_wrong_transformation_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = evaluate(SMOOTH)
    monkeypatch.setattr(ferrule, name, lambda function, *args, **kwargs: _zeros(name, args))
    assert check_way(SMOOTH, Way("CPU", derivative=name), expected) is not None


def _zeros(name: str, args: Any) -> Any:
    results = evaluate(SMOOTH).calls[0][:1]
    tensors = tuple(map(Tensor, results))
    zeros = (Tensor.zeros(3, 4), Tensor.zeros(3, 4))
    if name == "vjp":
        return tensors[0].sum(), lambda _: zeros, tensors
    return lambda *inputs: (zeros, tensors)


def test_optimisations_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[frozenset[str]] = set()
    plan = ferrule.fusion._plan

    def noting(*args: Any) -> Any:
        seen.add(config().FERRULE_SKIP)
        return plan(*args)

    monkeypatch.setattr(ferrule.fusion, "_plan", noting)
    ferrule.fusion._plans.clear()
    ferrule.fusion._known_graphs.clear()
    found(PLAIN, Way("CPU", skipped="merge,fusion"))
    assert frozenset({"merge", "fusion"}) in seen


def test_what_a_way_is_not_for_is_no_finding() -> None:
    sorts = replace(PLAIN, body=("c = a.sort(0)[0] + b",), results=("c",))
    before = check.impossible["variable"]
    assert check.check(sorts, [Way("CPU", variable=seed) for seed in range(1, 9)]) is None
    assert check.impossible["variable"] > before


# -- what is drawn -------------------------------------------------------------------------------


def drawn_ways(program: Program, devices: tuple[str, ...] = ("NUMPY", "CPU")) -> list[Way]:
    rng = random.Random(0)
    return [draw_way(program, rng, "", devices) for _ in range(600)]


def test_every_way_is_drawn() -> None:
    drawn = [*drawn_ways(PLAIN), *drawn_ways(KEPT), *drawn_ways(SMOOTH)]
    assert {way.derivative for way in drawn} == {"", *DERIVATIVES, *ORACLES}
    assert {name for way in drawn for name in way.skipped.split(",")} == {"", *PASSES}
    for is_chosen in (
        lambda way: way.mapped,
        lambda way: way.mapped and way.jit,
        lambda way: way.mapped and way.derivative in ORACLES,
        lambda way: way.split and way.jit,
        lambda way: way.variable and way.jit,
        lambda way: way.outside and way.jit,
        lambda way: way.layout,
        lambda way: way.beside,
    ):
        assert sum(bool(is_chosen(way)) for way in drawn) > 3


def test_opencl_is_drawn_seldom_and_only_where_it_is() -> None:
    assert {way.device for way in drawn_ways(PLAIN)} == {"NUMPY", "CPU"}
    devices = Counter(way.device for way in drawn_ways(PLAIN, ("NUMPY", "CPU", "CL")))
    assert 0 < devices["CL"] < 40
    assert {way.device for way in drawn_ways(PLAIN, ("CL",))} == {"CL"}


@pytest.fixture
def on_numpy() -> Iterator[None]:
    with Context(FERRULE_DEVICE="NUMPY"):
        yield


def test_sizes_are_around_what_the_compiler_treats_apart(on_numpy: None) -> None:
    draw = Drawing(random.Random(0), SMALL)
    sizes = {draw.size() for _ in range(2000)}
    assert {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65} <= sizes
    large = Drawing(random.Random(0), LARGE)
    assert set(LARGE_COUNTS) <= {n for _ in range(2000) for n in large.shape()}


def test_sources_of_a_varied_size_differ_from_call_to_call(on_numpy: None) -> None:
    draw = Drawing(random.Random(0), SMALL, varied=3)
    made: list[Source] = []
    machine = Machine()

    def make(source: Source) -> Tensor:
        made.append(source)
        return machine.add(source, PLAIN.rng(0))

    draw.make = make
    draw.fresh((3, 2), "float32")
    shapes = [machine.add(made[0], PLAIN.rng(call), call).shape for call in range(4)]
    assert shapes == [(3, 2), (4, 2), (5, 2), (3, 2)]


def test_what_rounding_leaves_of_a_derivative_is_not_compared() -> None:
    left = Slopes(-1.3e-11, -1.9e-12, None, 1e-6)
    assert not _said(left, True)
    assert _said(replace(left, backwards=-1.3e-3), True)
