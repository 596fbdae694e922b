"""The digits demonstration on three seeds."""

from __future__ import annotations

import subprocess
import sys

from harness import Plan, Row, run_script

SEEDS = (0, 1, 2)


def run_demo(seed: int) -> dict[str, float]:
    """The figures of the last line of a run."""
    command = [sys.executable, "-m", "ferrule", "demo", "digits", "--seed", str(seed)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    name, *pairs = output.splitlines()[-1].split()
    if name != "digits":
        raise ValueError(f"unexpected last line: {output.splitlines()[-1]!r}")
    return {key: float(value) for key, value in (pair.split("=") for pair in pairs)}


def measure(plan: Plan) -> list[Row]:
    """One row for each seed."""
    del plan  # a run is as long as it is
    return [Row(f"demo digits, seed {seed}", "", values=run_demo(seed)) for seed in SEEDS]


if __name__ == "__main__":
    run_script(measure)
