"""The numbers by which code generation, fusion and devices decide: how many there are, at most.

A number counts if it is a named constant of a module, or if a comparison has it. Numbers that a
format, an instruction or a level of output gives are no decisions: they are listed below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferrule

SOURCE = Path(ferrule.__file__).parent
MOST = {"codegen": 151, "fusion": 59, "device": 32}
"""The numbers that decide, by room. They may only become fewer."""
UNEXPLAINED = {"codegen": 47, "fusion": 13, "device": 4}
"""The named ones without a date or a word on whether they were measured. As above."""

GIVEN = (
    "codegen/emit/",  # formats of floats, bits of masks
    "codegen/interpret/",
    "codegen/intrinsics.py",  # the shapes of instructions
    "codegen/uops.py",  # what a program may have
)
"""Where numbers follow from a format or an instruction."""
NAMES = {
    "codegen/analysis/loop_bounds.py": {"MASKED_SCORE"},  # the lowest float16
    "codegen/schedules/cpu/amx.py": {"TERMS_PER_PAIR"},  # of a register's 32 bits
    "fusion/signature.py": {"ZERO", "_LAST"},  # kinds of indices
    "fusion/updates.py": {"BASE"},  # the position of an operand
}
"""Names of numbers that follow from a format, or stand for something."""
SMALL = {-1, 0, 1, 2}
PLAIN = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Name, ast.Load)


def modules(room: str) -> list[str]:
    found = sorted(p.relative_to(SOURCE).as_posix() for p in (SOURCE / room).rglob("*.py"))
    return [path for path in found if not path.startswith(GIVEN)]


def is_number(e: ast.AST) -> bool:
    return isinstance(e, ast.Constant) and type(e.value) in (int, float)


def constants(path: str) -> Iterator[tuple[int, str]]:
    """The named numbers of a module: the index of their statement, and their name."""
    for index, node in enumerate(ast.parse((SOURCE / path).read_text()).body):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        parts = list(ast.walk(value))
        if any(map(is_number, parts)) and all(isinstance(part, PLAIN) for part in parts):
            for target in targets:
                name = target.id if isinstance(target, ast.Name) else ""
                if name.isupper() and name not in NAMES.get(path, ()):
                    yield index, name


def compared(path: str) -> Iterator[int | float]:
    """The numbers in a module's comparisons, levels of output apart."""
    for node in ast.walk(ast.parse((SOURCE / path).read_text())):
        if isinstance(node, ast.Compare) and "debug" not in ast.unparse(node).lower():
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and is_number(part) and part.value not in SMALL:
                    yield part.value  # type: ignore[misc]


@pytest.mark.parametrize("room", MOST)
def test_no_more_numbers_decide(room: str) -> None:
    """A new choice is a proposal that the estimate weighs (docs/design/estimate.md)."""
    found = {p: [n for _, n in constants(p)] + list(compared(p)) for p in modules(room)}
    assert sum(map(len, found.values())) <= MOST[room], "; ".join(
        f"{path}: {numbers}" for path, numbers in found.items() if numbers
    )


@pytest.mark.parametrize("room", UNEXPLAINED)
def test_named_numbers_say_where_they_are_from(room: str) -> None:
    found = [f"{path}: {name}" for path in modules(room) for name in unexplained(path)]
    assert len(found) <= UNEXPLAINED[room], "\n".join(found)


def unexplained(path: str) -> list[str]:
    """The constants whose docstring, or the comment above them, has neither a date nor a word on
    whether they were measured.
    """
    text = (SOURCE / path).read_text()
    body, lines = ast.parse(text).body, text.splitlines()
    found = []
    for index, name in constants(path):
        after = body[index + 1 : index + 2]
        told = ""
        if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
            told = str(after[0].value.value)
        line = body[index].lineno - 1
        told += lines[line].partition("#")[2]
        above = index
        while above and not lines[body[above].lineno - 2].startswith("#"):
            if lines[body[above].lineno - 2] == "":
                break
            above -= 1
        line = body[above].lineno - 2
        while line >= 0 and lines[line].startswith("#"):
            told += lines[line]
            line -= 1
        if not told or not re.search(r"20\d\d-\d\d|measured|chosen|follows", told, re.IGNORECASE):
            found.append(name)
    return found
