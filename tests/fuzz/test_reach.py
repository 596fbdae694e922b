"""Tests of the measurement of coverage by random programs."""

import ast
import runpy
from pathlib import Path

import pytest

from tests.fuzz.reach import Part, functions_of, measure

SOURCE = '''
class A:
    def entered(self):
        """Is called."""
        if self is None:
            return 1
        return 2

    def never(self):
        return 3

    def stub(self):
        ...


A().entered()
'''


def test_functions_are_found_with_their_bodies() -> None:
    found = list(functions_of(ast.parse(SOURCE)))
    assert found == [("A.entered", 5, 7), ("A.never", 10, 10)]


def test_what_never_ran_is_counted(tmp_path: Path) -> None:
    coverage = pytest.importorskip("coverage", reason="an extra of development")
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    measured = coverage.Coverage(branch=True, include=[str(path)], data_file=None)
    measured.start()
    runpy.run_path(str(path))
    measured.stop()
    part = Part()
    measure(measured, path, part)
    assert part.never == {f"{tmp_path.name}/module.py": ["A.never"]}
    assert (part.functions, part.branches, part.branches_run) == (2, 2, 1)
    assert part.lines - part.lines_run == 2
