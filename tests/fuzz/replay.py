"""Regression tests: kept programs are run in several ways and compared with known numbers.

A file of `corpus/` is the printed program of a finding, or was written by hand in the same form.
The `.out` file beside it has the numbers that NUMPY gives for its statements one by one; a reader
has checked them. `python -m tests.fuzz.replay FILE...` runs programs in these ways and prints what
is wrong with them; with `--write`, it writes their numbers down.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from tests.fuzz.check import Finding, check
from tests.fuzz.program import Program, read_program
from tests.fuzz.reference import evaluate
from tests.fuzz.ways import Way

CORPUS = Path(__file__).parent / "corpus"


def kept() -> list[Path]:
    """The files of programs that are kept."""
    return sorted(CORPUS.glob("*.py"))


def ways(program: Program) -> list[Way]:
    """The ways that a kept program is run in: always the same ones."""
    everywhere = tuple((place, "realize") for place in range(len(program.body)))
    found = [
        Way("NUMPY"),
        Way("CPU", late=True),
        Way("CPU", cuts=everywhere[::2], threads=2),
        Way("CPU", jit=1, cuts=everywhere[1::2]),
    ]
    # What a write changes besides is decided by the layout.
    found.append(Way("CPU", beside=2) if program.writes else Way("CPU", jit=2, layout=3))
    return found


def replay(path: Path) -> Finding | None:
    """The finding in a kept program; None if all ways agree."""
    program = read_program(path.read_text())
    return check(program, ways(program))


def numbers(path: Path) -> str:
    """The outcome of a program as text: results, gradients and states of each call."""
    program = read_program(path.read_text())
    expected = evaluate(program)
    lines = []
    for call, arrays in enumerate(expected.calls):
        for label, array in zip(expected.labels(program), arrays, strict=True):
            wide = array if array.dtype.kind in "iub" else array.astype(np.float64)
            text = np.array2string(wide, threshold=200, precision=4, suppress_small=True)
            lines.append(f"call {call}, {label}: {array.dtype} {array.shape}\n{text}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.replay", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="all of the corpus if none is given")
    parser.add_argument("--write", action="store_true", help="the numbers, beside each program")
    options = parser.parse_args()
    wrong = 0
    for path in options.files or kept():
        finding = replay(path)
        if finding is not None:
            wrong += 1
            print(f"{path}: {finding.kind}: {finding.where}\nway: {finding.way}\n{finding.detail}")
        if options.write:
            path.with_suffix(".out").write_text(numbers(path))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
