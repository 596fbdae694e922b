"""Rows whose unit is a whole process: the time to a first loss, and the peak of memory.

`start.py CONTENDER THREADS WORKLOAD STEPS` is such a process: it trains for so many steps, and
prints the first loss as soon as it has it, and at last the last loss and the megabytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import numpy as np
from rounds import Left, Plan, Timing, command, goes_on
from workloads import Workload

TIMEOUT_S = 240.0
CACHES = (
    "FERRULE_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "XDG_CACHE_HOME",
    "TMPDIR",
)
JAX_KEEPS_ALL = (
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1",
)


# The process


def _status(name: str) -> float:
    """A line of this process's status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


def train(contender: str, threads: int, name: str, steps: int) -> None:
    """Trains, and prints."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    # Imported here: importing the library is part of what is measured.
    from worker import CHECKED_RATE, PEERS, load, prepare
    from workloads import all_workloads

    library = load(*PEERS[contender])
    before = _status("VmRSS")
    workload = next(row for row in all_workloads() if row.name == name)
    call = prepare(library, workload, CHECKED_RATE)
    loss = float(library.numpy(call()))
    print(loss, flush=True)
    for _ in range(steps - 1):
        loss = float(library.numpy(call()))
    print(loss, _status("VmHWM") - before)


# The row


def run(contender: str, threads: int, workload: Workload, steps: int, cache: str) -> list[float]:
    """Seconds to the first loss, that loss, the last one, and megabytes; raises `Left`."""
    arguments = [contender, str(threads), workload.name, str(steps)]
    line = command(contender, threads, "start.py", *arguments)
    line = ["env", *(f"{name}={cache}" for name in CACHES), *JAX_KEEPS_ALL, *line]
    with TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        first = process.stdout.readline()
        seconds = time.perf_counter() - begin
        rest = process.stdout.read()
        process.wait()
        watchdog.cancel()
        errors.seek(0)
        message = errors.read().strip()
    if process.returncode:
        raise Left(message.splitlines()[-1][:160] if message else "died, or took too long")
    return [seconds, float(first), *(float(word) for word in rest.split())]


def compare(
    workload: Workload, names: list[str], threads: int, reference: Path, plan: Plan
) -> dict[str, Timing]:
    """Contenders take turns, one process each; megabytes are put where milliseconds are."""
    with np.load(reference) as kept:
        losses = kept["arr_0"].ravel()
    timings = {name: Timing() for name in names}
    memory = workload.kind == "memory"
    steps = len(losses) if memory else 1
    with TemporaryDirectory() as parent:
        for turn in range(-1, 1 if memory else plan.rounds):
            for name, timing in timings.items():
                if not goes_on(name, timings):
                    continue
                cache = Path(parent) / name / (str(turn) if "empty" in workload.name else "warm")
                cache.mkdir(parents=True, exist_ok=True)
                try:
                    seconds, first, last, megabytes = run(
                        name, threads, workload, steps, str(cache)
                    )
                except Left as reason:
                    timing.left = str(reason)
                    continue
                timing.error = max(abs(first / losses[0] - 1), abs(last / losses[steps - 1] - 1))
                if not timing.error <= workload.tolerance:
                    timing.left = f"wrong: off by {timing.error:.1e}"
                elif turn >= 0:  # the one before fills the page cache, and the warm cache
                    timing.blocks.append(megabytes / 1e3 if memory else seconds)
    return timings


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
