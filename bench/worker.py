"""A contender in a process of its own, which sleeps between the blocks of calls that it is told.

Reads commands and writes answers, one JSON object a line. A process of its own, because several
libraries' pools of threads in one process disturb each other.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from peers.base import Call, Library, Unsupported, results
from workloads import Workload, all_workloads, gpu_workloads

Answer = dict[str, Any]

# name: module, variant
PEERS = {
    "ferrule": ("ferrule", ""),
    "torch": ("torch", ""),
    "torch.nhwc": ("torch", "nhwc"),
    "torch.compile": ("torch", "compile"),
    "jax": ("jax", ""),
    "jax.nhwc": ("jax", "nhwc"),
    "tinygrad": ("tinygrad", ""),
    "tinygrad.beam": ("tinygrad", "beam"),
    "mlx": ("mlx", ""),
    "onnxruntime": ("onnxruntime", ""),
    "ferrule.packed": ("ferrule", "packed"),
    "onnxruntime.packed": ("onnxruntime", "packed"),
}
# What has a GPU's kernels: those of torch.compile are Triton's, "graphs" replays them as one.
ON_GPU = {
    "ferrule": ("ferrule", ""),
    "torch": ("torch", ""),
    "torch.compile": ("torch", "compile"),
    "torch.graphs": ("torch", "graphs"),
    "jax": ("jax", ""),
    "cupy": ("cupy", ""),
}
REFERENCES = (("torch", "float64"), ("ferrule", "float64"))

WARM_CALLS = 4
"""Enough for a jit to capture: what is checked must be what is timed."""
SLOWEST_CALL_S = 10.0
GPU_SAMPLE_S = 2e-3
MOST_IN_FLIGHT = 100
"""On a GPU a sample is as many calls as take so long, awaited together: as programs make them, who
do not look at each result. Waiting after each call would measure how long that takes.
"""
CHECKED_STEPS = 5
CHECKED_RATE = 1e-3
# Timed steps hardly move, so that the first and the last of them compute on numbers alike.
TIMED_RATE = 1e-6


class Failed(Exception):
    """A contender that cannot take part in this row, and why."""


def load(module: str, variant: str) -> Library:
    """A contender; raises `ImportError` if it is not installed."""
    library: Library = importlib.import_module(f"peers.{module}").load(variant)
    return library


def prepare(library: Library, workload: Workload, rate: float = TIMED_RATE) -> Call:
    """The workload as a call of no arguments, its inputs made."""
    library.images = workload.images
    arrays = [library.array(value) for value in workload.arrays()]
    state, rest = arrays[: workload.state], arrays[workload.state :]
    program = workload.program
    if workload.kind == "backward":
        return library.backward(program, arrays, workload.wrt, workload.with_result)
    if workload.optimizer:
        return library.training(program, state, rest, workload.optimizer, rate)
    if workload.kind == "stateful":
        return library.stateful(program, state, rest)
    return library.forward(program, arrays, workload.constants)


# Results


def computed(
    library: Library, workload: Workload, slowest_s: float = math.inf
) -> tuple[Call, list[np.ndarray]]:
    """The call, and in float64 the results of a late call, or the losses of the first steps.

    Raises `Failed` as soon as a call takes longer than the slowest may.
    """
    call = prepare(library, workload, CHECKED_RATE)
    found = []
    for _ in range(CHECKED_STEPS if workload.optimizer else WARM_CALLS):
        value, seconds = timed(call, library)
        if seconds > slowest_s and found:  # the first one may compile
            raise Failed(f"a call takes {seconds:.0f} s")
        found.append([library.numpy(part) for part in results(value)])
    return call, [np.array(found)] if workload.optimizer else found[-1]


def relative_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference of any result, over the largest magnitude of its reference."""
    errors = []
    for ours, exact in zip(found, expected, strict=True):
        if ours.size != exact.size:
            raise Failed(f"a result has shape {ours.shape}, not {exact.shape}")
        difference = np.abs(ours.reshape(exact.shape) - exact).max()
        errors.append(float(difference / np.abs(exact).max()))
    return math.inf if any(math.isnan(error) for error in errors) else max(errors)


# Timing


def timed(call: Call, library: Library, count: int = 1) -> tuple[Any, float]:
    """The result of several calls, and the seconds that each of them takes until all are there."""
    start = time.perf_counter()
    for _ in range(count):
        value = call()
    library.finish()
    return value, (time.perf_counter() - start) / count


def in_flight(library: Library, seconds: float) -> int:
    """How many calls to make before they are awaited, where each takes so long."""
    if not library.gpu:
        return 1
    return max(1, min(MOST_IN_FLIGHT, round(GPU_SAMPLE_S / seconds)))


def block(call: Call, library: Library, seconds: float, warmup: float, count: int = 1) -> Answer:
    """The median of as many samples as fit; those of the warm-up do not count."""
    warm_until = time.perf_counter() + warmup
    while time.perf_counter() < warm_until:
        timed(call, library, count)
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        samples.append(timed(call, library, count)[1])
    return {"median": statistics.median(samples), "calls": count * len(samples)}


class Worker:
    """One library, and the workload that it is busy with."""

    def __init__(self, library: Library) -> None:
        self.library = library
        workloads = [*all_workloads(), *gpu_workloads()]
        self.workloads = {workload.name: workload for workload in workloads}
        self.call: Call | None = None
        self.count = 1
        """How many calls are made before they are awaited."""

    def reference(self, workload: str, path: str) -> Answer:
        """Computes the exact results, and keeps them in a file."""
        np.savez(path, *computed(self.library, self.workloads[workload])[1])
        return {}

    def setup(self, workload: str, path: str) -> Answer:
        """Checks the results against the file's, and gets ready to be timed."""
        wanted = self.workloads[workload]
        if self.library.searches:
            computed(self.library, wanted)
        call, found = computed(self.library, wanted, SLOWEST_CALL_S)
        with np.load(path) as kept:
            error = relative_error(found, [kept[name] for name in kept.files])
        if not error <= wanted.tolerance:
            raise Failed(f"wrong: off by {error:.1e}, where {wanted.tolerance:.0e} is allowed")
        if wanted.optimizer:
            call = prepare(self.library, wanted)
            for _ in range(WARM_CALLS):
                call()
        self.call = call
        _, seconds = timed(call, self.library)
        self.count = in_flight(self.library, seconds)
        gc.collect()
        gc.disable()
        return {"error": error, "call_s": seconds}

    def block(self, seconds: float, warmup: float) -> Answer:
        """Times the workload."""
        assert self.call is not None
        return block(self.call, self.library, seconds, warmup, self.count)

    def drop(self) -> Answer:
        """Frees the workload."""
        self.call = None
        gc.enable()
        gc.collect()
        return {}


def serve(worker: Worker, answer: Callable[[Answer], None]) -> None:
    """Obeys until the input ends. What goes wrong is answered as "failed"."""
    for line in sys.stdin:
        command = json.loads(line)
        method = getattr(worker, command.pop("do"))
        try:
            answer(method(**command))
        except Exception as error:  # a peer may raise anything, and the others go on
            worker.drop()
            answer({"failed": reason(error)})


def reason(error: Exception) -> str:
    """An error in a line."""
    if isinstance(error, Failed | Unsupported):
        return str(error)[:160]
    text = str(error).strip()
    if not text:  # an assertion of some library's: where it is must do
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{place.filename}:{place.lineno}: {place.line}"
    return f"{type(error).__name__}: {text.splitlines()[0]}"[:160]


def load_reference() -> Library:
    """The first of the references that is installed."""
    for module, variant in REFERENCES:
        try:
            return load(module, variant)
        except ImportError:
            continue
    raise ImportError("no reference is installed")


def main() -> None:
    """`worker.py CONTENDER THREADS [gpu]`."""
    name, threads, *rest = sys.argv[1:]
    gpu = rest == ["gpu"] and name != "reference"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    # Libraries may print: only answers go to the parent.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: Answer) -> None:
        output.write(json.dumps(value) + "\n")

    try:
        peers = ON_GPU if gpu else PEERS
        library = load_reference() if name == "reference" else load(*peers[name])
        if gpu:
            library.use_gpu()
    except Exception as error:
        answer({"failed": reason(error)})
        return
    answer({})
    serve(Worker(library), answer)


if __name__ == "__main__":
    main()
