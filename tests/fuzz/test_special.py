"""Programs of one kind of statements: they meet what they are for, and find planted mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import ferrule
from ferrule import Context
from ferrule.fusion.costs import Costs
from ferrule.fusion.hazards import Hazards
from ferrule.fusion.plans import plan_cache
from ferrule.ir.buffer import Buffer
from ferrule.ir.dependence import Contents
from tests.fuzz.check import Finding, check
from tests.fuzz.program import Program, Source
from tests.fuzz.reference import Machine
from tests.fuzz.workers import Job, drawn

TRIES = 200


def programs(focus: str, count: int) -> Iterator[Program]:
    for index in range(count):
        program = drawn(Job(5, focus=focus), index)[1]
        if program is not None:
            yield program


def test_programs_read_and_write_the_same_tensors_by_views() -> None:
    lines = [line for program in programs("aliases", 30) for line in program.body]
    writes = [line for line in lines if re.match(r"\w+\[.*\] \S?= |\w+\.(assign|index_add_)", line)]
    own = [line for line in writes if line.count(line[:2]) > 1]
    assert len(writes) > len(lines) / 3
    assert len(own) > len(writes) / 4
    for text in (".assign(", ".index_add_(", ".cat(", ".flip(", ".permute(", ".contiguous()"):
        assert any(text in line for line in lines), text


def _nobody_reads_later(self: Hazards) -> None:
    pass


def _read_by_nobody(self: Contents[Any], writes: bool) -> Any:
    return self.writers


def _only_itself(self: Hazards, task: Any, version: Any, views: Any) -> bool:
    others = [root for root in task.outputs if root is not version]
    views.update({root: {} for root in others})
    return _IS_SAFE(self, task, version, views)


_IS_SAFE = Hazards._is_safe
MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "an old version is read later": (Hazards, "_keep_late_readers", _nobody_reads_later),
    "a writer does not wait": (Contents, "before", _read_by_nobody),
    "another result reads what is written": (Hazards, "_is_safe", _only_itself),
    "an array was handed out": (Buffer, "exports", property(lambda self: 0)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong = MISTAKES[name]
    monkeypatch.setattr(owner, attribute, wrong)
    monkeypatch.setattr(plan_cache, "_code", lambda: name)  # or wrong plans were found later
    _forget_plans()
    found = next(finding for finding in map(_finding, range(TRIES)) if finding is not None)
    monkeypatch.undo()
    _forget_plans()
    assert found.way is not None
    assert check(found.program, [found.way]) is None


def _finding(index: int) -> Finding | None:
    _, program, ways = drawn(Job(6, focus="aliases"), index)
    return None if program is None else check(program, ways)


def _forget_plans() -> None:
    ferrule.fusion._plans.clear()
    ferrule.fusion._known_graphs.clear()


def test_products_are_large_enough_for_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Costs._reduce
    seen = []

    def noted(self: Costs, node: Any, sources: Any) -> Any:
        cost = right(self, node, sources)
        seen.append(cost.contraction)
        return cost

    monkeypatch.setattr(Costs, "_reduce", noted)
    monkeypatch.setattr(plan_cache, "load", lambda key: None)
    for index in range(6):
        _forget_plans()
        seen.clear()
        program = drawn(Job(7, focus="contractions"), index)[1]
        assert program is not None
        assert any(seen), program.text()
        assert check(program, []) is None


def test_products_of_products_are_not_taken_for_exact() -> None:
    """All partial results of a statement count, not only its operands and its result."""
    machine = Machine()
    for name in ("a0", "a1"):
        made = f'Tensor(rng({name[1]}).integers(-6, 7, (40, 40)) / 2, dtype="float32")'
        machine.add(Source(name, made), Program((), (), (), 1).rng(0))
    with Context(FERRULE_DEVICE="NUMPY"):
        machine.run("v1 = a0 @ a1")
        machine.run("v2 = (v1 @ a0).square() @ a1")
    assert machine.known["v1"].exact
    assert not machine.known["v2"].exact
