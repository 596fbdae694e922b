"""Tests of the mutation tester: mutations are applied, killed or survive, and are undone."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.mutants import ROOT, Copy, judge
from tests.fuzz.mutations import PARTS, Mutation, all_mutations, drawn, mutations_of

PACKAGE = ROOT / "src" / "ferrule"


def mutation(file: str, before: str, after: str) -> Mutation:
    """The mutation of the only place where a text is in a file."""
    source = (PACKAGE / file).read_bytes()
    assert source.count(before.encode()) == 1
    start = source.index(before.encode())
    return Mutation(file, "test", start, start + len(before.encode()), after)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Copy, Copy]:
    folder = tmp_path_factory.mktemp("mutants")
    return Copy(folder / "mutated"), Copy(folder / "clean")


def test_an_obviously_wrong_mutant_is_killed_at_once(copies: tuple[Copy, Copy]) -> None:
    wrong = mutation("autograd/rules.py", "def _reverse_expand(", "def _another(")
    verdict = judge(wrong, *copies, seconds=600, seed=1, programs=1)
    assert verdict.killed
    assert verdict.how == "smoke"


def test_an_equivalent_mutant_survives(copies: tuple[Copy, Copy]) -> None:
    same = mutation("autograd/rules.py", "def _reverse_expand(", "def  _reverse_expand(")
    verdict = judge(same, *copies, seconds=600, seed=1, programs=3)
    assert not verdict.killed
    assert verdict.programs == 3


def test_a_mutation_is_taken_back(copies: tuple[Copy, Copy]) -> None:
    wrong = mutation("ir/shape/view.py", "from __future__ import annotations", "raise ValueError")
    mutated, _ = copies
    with mutated.changed(wrong):
        assert mutated.python(["-c", "import ferrule.ir.shape.view"], 60)[0] == 1
    assert mutated.python(["-c", "import ferrule.ir.shape.view"], 60)[0] == 0


def test_mutations_of_each_kind_are_made(tmp_path: Path) -> None:
    text = '''
def f(a: int = 1, *, b: "str | None" = None) -> int:
    """Adds 1."""
    if a < 0:
        raise ValueError(a + 1)
    if a and not b:
        a += min(a, 3)
    print(a, b, end="")
    return g([x - 1 for x in a if x], True)
'''
    (tmp_path / "a.py").write_text(text)
    found = mutations_of(tmp_path / "a.py", tmp_path)
    assert set(Counter(m.kind for m in found)) == {
        "constant",
        "operator",
        "negated condition",
        "branch always taken",
        "branch never taken",
        "filter dropped",
        "sign or negation dropped",
        "function",
        "arguments swapped",
        "argument dropped",
        "statement dropped",
        "first operand returned",
    }
    for m in found:
        source = m.applied(text.encode()).decode()
        assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(text)), m
        # The refused input, the docstring and the annotations are as they were.
        assert "    if a < 0:\n        raise ValueError(a + 1)" in source
        assert '"""Adds 1."""' in source
        assert '"str | None"' in source


def test_the_list_is_the_same_each_time() -> None:
    found = all_mutations(PACKAGE)
    assert 800 <= len(found) <= sum(PARTS.values()) == 1000
    assert len({m.name for m in found}) == len(found)
    assert [m.name for m in drawn(found, 5, 7)] == [m.name for m in drawn(found, 9, 7)][:5]
    assert drawn(found, 5, 7) != drawn(found, 5, 8)


def test_a_mutant_that_is_rarely_wrong_is_killed_by_a_finding(copies: tuple[Copy, Copy]) -> None:
    text = "row.bools if node.dtype is BOOL and row.bools is not None else row.name"
    wrong = mutation("codegen/expressions.py", text, f'"sum" if row.name == "max" else ({text})')
    verdict = judge(wrong, *copies, seconds=600, seed=1, programs=60)
    assert verdict.killed
    assert verdict.how.startswith("wrong: CPU")
