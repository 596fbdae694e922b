"""From starting Python to the printed loss of the training step of mlp.py, caches empty and warm.

Each start is a process of its own. Contenders take turns, and one start of each, not counted, puts
their files into the page cache.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import Figure, Plan, Row, load_jax, load_torch, run_script

FOLDER = Path(__file__).parent
PROGRAMS = {
    "ferrule": "import mlp; print(float(mlp.ferrule_step(1e-3)().item()))",
    "jax": "import mlp, jax; print(float(mlp.jax_step(jax, 1e-3)()))",
    "torch": (
        "import mlp, torch; torch.set_num_threads(2); print(float(mlp.torch_step(torch, 1e-3)()))"
    ),
}
EXPECTED_LOSS = (2.0, 2.7)


def start(name: str, cache: str) -> float:
    """Seconds from the start of a process, with this cache folder, to its printed loss."""
    settings = [
        f"FERRULE_CACHE_DIR={cache}",
        f"JAX_COMPILATION_CACHE_DIR={cache}",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1",
    ]
    command = ["env", *settings, sys.executable, "-c", PROGRAMS[name]]
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = time.perf_counter() - begin
    process.communicate()
    if process.returncode or not EXPECTED_LOSS[0] < float(line) < EXPECTED_LOSS[1]:
        raise RuntimeError(f"{name}: exit status {process.returncode}, printed {line!r}")
    return seconds


def _row(name: str, contenders: list[str], rounds: int, once: Callable[[str], float]) -> Row:
    samples: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            samples[contender].append(once(contender))
    figures = {
        contender: Figure(statistics.median(found), min(found), max(found), len(found))
        for contender, found in samples.items()
    }
    ratios = {
        contender: fig.median / figures["ferrule"].median
        for contender, fig in figures.items()
        if contender != "ferrule"
    }
    return Row(name, "s", figures, ratios)


def _with_empty_cache(contender: str) -> float:
    with TemporaryDirectory() as cache:
        return start(contender, cache)


def measure(plan: Plan) -> list[Row]:
    """Two rows: with an empty cache, and with one that an earlier start filled."""
    contenders = ["ferrule"]
    contenders += ["torch"] if load_torch() is not None else []
    contenders += ["jax"] if load_jax() is not None else []
    rounds = 7 if plan.rounds > 5 else 3
    with TemporaryDirectory() as parent:
        caches = {contender: f"{parent}/{contender}" for contender in contenders}
        for contender in contenders:
            start(contender, caches[contender])
        return [
            _row("start to loss, empty cache", contenders, rounds, _with_empty_cache),
            _row(
                "start to loss, warm cache",
                contenders,
                rounds,
                lambda contender: start(contender, caches[contender]),
            ),
        ]


if __name__ == "__main__":
    run_script(measure)
