"""What `import ferrule` costs over `import numpy`, which it needs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from harness import Figure, Plan, Row, run_script

PROGRAMS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "ferrule": "import numpy; import ferrule",
    "ferrule, used": "import numpy; from ferrule import Tensor; Tensor([1.0]).numpy()",
}


def _start(program: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin


def measure(plan: Plan) -> list[Row]:
    """One row: whole processes, and the difference that ferrule makes."""
    rounds = 21 if plan.rounds > 5 else 7
    samples: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds + 1):
        for name, program in PROGRAMS.items():
            samples[name].append(_start(program))
    counted = {name: found[1:] for name, found in samples.items()}  # the first one warms up
    figures = {
        name: Figure(statistics.median(found), min(found), max(found), len(found))
        for name, found in counted.items()
    }
    extra = statistics.median(
        own - other for own, other in zip(counted["ferrule"], counted["numpy"], strict=True)
    )
    values = {"import_over_numpy_ms": 1e3 * extra}
    return [Row("start of a process", "ms", figures, values=values)]


if __name__ == "__main__":
    run_script(measure)
