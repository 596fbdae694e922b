"""Tests of the programs that were once wrong: each in several ways, and against known numbers."""

from pathlib import Path

import pytest

from tests.fuzz.program import read_program
from tests.fuzz.replay import kept, numbers, replay


@pytest.mark.parametrize("path", kept(), ids=lambda path: path.stem)
def test_a_kept_program_is_the_same_in_all_ways(path: Path) -> None:
    finding = replay(path)
    assert finding is None, finding.text()


@pytest.mark.parametrize("path", kept(), ids=lambda path: path.stem)
def test_a_kept_program_has_its_numbers(path: Path) -> None:
    assert numbers(path) == path.with_suffix(".out").read_text()


@pytest.mark.parametrize("path", kept(), ids=lambda path: path.stem)
def test_a_kept_program_is_printed_as_it_was_read(path: Path) -> None:
    program = read_program(path.read_text())
    again = read_program(program.text())
    assert again == program
