"""Tests of the generator: its programs test combinations that single statements cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Context
from ferrule.fusion import rounding
from ferrule.fusion.groups import Fusion
from ferrule.fusion.horizontal_reduces import HorizontalFusion
from ferrule.ir.shape.view import View
from tests.fuzz import surface
from tests.fuzz.check import check
from tests.fuzz.generate import Generator
from tests.fuzz.program import Program, methods
from tests.fuzz.ways import Way, run
from tests.fuzz.workers import MIXTURE, Job, drawn

TRIES = 150


def lines(focus: str, count: int = 40) -> Iterator[str]:
    """The statements of some programs."""
    for index in range(count):
        program = Generator(1, index, focus=focus).program()
        if program is not None:
            yield from program.body


def test_views_of_views_are_drawn() -> None:
    merged = [line for line in lines("views") if len(re.findall(r"\.\w+\(|\)\[|\.T", line)) > 2]
    used = {name for line in merged for name in methods(line)}
    assert {"pad", "flip", "reshape", "permute", "expand", "getitem", "T"} <= used


def test_a_border_on_the_wrong_side_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways share a mistake in the views; a statement that merges views meets it."""
    right = View.stride

    def not_mirrored(view: View, arg: Any) -> View:
        moved = right(view, arg)
        return View(moved.shape, moved.strides, moved.offset, right(view, [*map(abs, arg)]).mask)

    monkeypatch.setattr(View, "stride", not_mirrored)
    _forget_plans()
    monkeypatch.setattr(Generator, "layouts", lambda generator: None)
    wrong = next(p for p in map(_found, range(TRIES)) if p is not None)
    monkeypatch.undo()
    _forget_plans()
    assert check(wrong, []) is None


def _found(index: int) -> Program | None:
    """A program that is found to be wrong, or to have a wrong statement beside it."""
    generator, program, _ = drawn(Job(2, focus="views"), index)
    finding = generator.finding
    if program is not None:
        finding = check(program, [])
    return None if finding is None else finding.program


def _forget_plans() -> None:
    ferrule.fusion._plans.clear()
    ferrule.fusion._known_graphs.clear()


def test_single_elements_and_ends_are_among_the_slices() -> None:
    text = " ".join(lines("views"))
    assert re.search(r"\b(\d):(?!\1)\d[],]", text)
    singles = re.findall(r"[\[ ](\d):(\d)[],]", text)
    assert any(int(stop) == int(start) + 1 for start, stop in singles)


def test_functions_are_called_where_they_are_defined() -> None:
    (logit,) = [method for method in surface.methods() if method.name == "logit"]
    defined = 0
    for index in range(30):
        generator = Generator(3, index)
        with Context(FERRULE_DEVICE="NUMPY"):
            generator.start()
            x = generator.draw.fresh((4,), "float32")
            call = logit.call(generator.draw, generator.draw.values[x], x)
            done = generator.done(f"{generator.new_name()} = {call}")
            result = generator.machine.values[done[-1].partition(" = ")[0]]
            defined += bool(np.isfinite(result.numpy()).any())
    assert defined > 15


def test_arguments_that_need_not_be_given_are_drawn_for_recipes() -> None:
    wanted = {"grid_sample": "padding_mode", "max_pool2d": "ceil_mode", "interpolate": "mode"}
    wanted |= {"cross_entropy": "label_smoothing", "conv_transpose1d": "output_padding"}
    for name, option in wanted.items():
        calls = []
        for index in range(60):
            generator = Generator(4, index)
            with Context(FERRULE_DEVICE="NUMPY"):
                generator.start()
                calls.append(generator.by_recipe(name))
        assert any(f"{option}=" in call for call in calls), name


def test_all_options_of_recipes_are_some_methods() -> None:
    known = {p.name for method in surface.methods() for p in method.parameters}
    assert known >= surface.OPTIONS


def test_sums_are_added_up_beside_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs have enough rows for blocks, and enough that reads them."""
    found = []
    attach = HorizontalFusion._attach

    def noted(guests: HorizontalFusion, guest: Fusion, host: Fusion) -> None:
        found.append(guest)
        attach(guests, guest, host)

    monkeypatch.setattr(HorizontalFusion, "_attach", noted)
    _forget_plans()
    for index in range(60):
        program = Generator(5, index, focus="contractions").program()
        if program is not None:
            run(program, Way())
    assert len(found) >= 3


def test_sums_are_held_while_their_largest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared with it in another schedule, where a second rounding would be seen."""
    found: set[Any] = set()
    held = rounding._held_values

    def noted(*given: Any) -> Any:
        found.update(stored := held(*given))
        return stored

    monkeypatch.setattr(rounding, "_held_values", noted)
    _forget_plans()
    for index in range(40):
        program = Generator(6, index, focus="contractions").program()
        if program is not None and any(".realize()" in line for line in program.body):
            run(program, Way())
    assert found


def test_a_run_without_a_focus_has_programs_of_several() -> None:
    seen = {drawn(Job(5), index)[0].focus for index in range(60)}
    assert seen == set(MIXTURE)
    assert {drawn(Job(5, focus="jit"), index)[0].focus for index in range(5)} == {"jit"}


def test_a_program_on_a_device_that_compiles_slowly_may_take_longer() -> None:
    job = Job(1, patience=10.0)
    assert job.patience_for([Way(), Way("CPU")]) == 10.0
    assert job.patience_for([Way(), Way("CL"), Way("CL")]) >= 100.0
