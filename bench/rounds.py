"""Contenders take turns, each in a process of its own.

A round gives each contender one block of calls; the order rotates. A block's figure is the median
of its calls, a contender's is the median of its blocks', and a ratio is the median of the rounds'
ratios, so that a slow spell of the machine, which hits neighbours in a round alike, cancels out.

Before each counted block a contender warms up: on two cores, Linux may leave a woken thread on the
core of the one that woke it until its balancer moves it, and both then take turns.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads import Workload

FOLDER = Path(__file__).parent
START_S = 120.0
SLOW_CALL_S = 2.0
"""Who takes longer makes one call a round, without a warm-up."""
HOPELESS = 4.0
"""Peers so many times slower than the quickest one have one round only."""

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "DEV": "CPU",
}
SETTINGS = {"tinygrad.beam": {"BEAM": "2"}}
SETUP_S = {"tinygrad.beam": 40.0}
"""Who may take less time than the plan allows, because it would nearly always take it all."""


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    rounds: int = 7
    block_s: float = 0.1
    warmup_s: float = 0.25
    setup_s: float = 120.0
    """Who is not ready by then is left out."""


QUICK = Plan(rounds=5, block_s=0.04, warmup_s=0.08, setup_s=20.0)
FOR_GPU = Plan(setup_s=300.0)
"""A training step is minutes of compiling, for those who compile with Triton."""


class Left(Exception):
    """A contender that takes no part in a row, and why."""


ON_GPU = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# NVIDIA's libraries round the operands of float32's products to 10 bits where they are let, and JAX
# asks for that unless it is told otherwise. So each row says which of the two it is, to everybody.
OF_FLOAT32 = {
    "ALLOW_TF32": "0",
    "CUPY_TF32": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0",
    "NVIDIA_TF32_OVERRIDE": "0",  # nobody may; set to 1 it would not mean that all have to
}
OF_TF32 = {
    "ALLOW_TF32": "1",
    "CUPY_TF32": "1",
    "JAX_DEFAULT_MATMUL_PRECISION": "tensorfloat32",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
}


def command(
    contender: str,
    threads: int,
    script: str,
    *arguments: str,
    gpu: bool = False,
    tf32: bool = False,
) -> list[str]:
    """A script's command line, with everything that tells libraries how many threads to use, and
    whether products of float32 may be of operands rounded to tf32.
    """
    names = ("OMP", "MKL", "OPENBLAS", "FERRULE")
    settings = {f"{name}_NUM_THREADS": str(threads) for name in names}
    settings |= ENVIRONMENT | SETTINGS.get(contender, {})
    if gpu:
        settings |= ON_GPU | (OF_TF32 if tf32 else OF_FLOAT32)
    pairs = [f"{name}={value}" for name, value in settings.items()]
    unset = ["-u", "PYTHONDONTWRITEBYTECODE", "-u", "NVIDIA_TF32_OVERRIDE"]
    return ["env", *unset, *pairs, sys.executable, str(FOLDER / script), *arguments]


class Contender:
    """The process of one contender for one number of threads."""

    def __init__(
        self, name: str, threads: int, log: Path, gpu: bool = False, tf32: bool = False
    ) -> None:
        self.name = name
        self.threads = threads
        self.gpu = gpu
        self.tf32 = tf32
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.greeted = False
        """Whether the process has said that its library is there."""
        self.missing = ""
        """Why it cannot take part at all."""

    def send(self, do: str, **arguments: Any) -> None:
        """Gives a command; its answer is to be read. Starts the process, if it does not run."""
        if self.missing:
            raise Left(self.missing)
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")

    def _start(self) -> None:
        arguments = [self.name, str(self.threads), *(["gpu"] if self.gpu else [])]
        line = command(
            self.name, self.threads, "worker.py", *arguments, gpu=self.gpu, tf32=self.tf32
        )
        pipe = subprocess.PIPE
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                line, stdin=pipe, stdout=pipe, stderr=log, bufsize=0, start_new_session=True
            )
        self.greeted = False

    def answer(self, timeout: float) -> dict[str, Any]:
        """The answer to a command. Raises `Left`; the process is at an end if it did not answer."""
        if not self.greeted:
            try:
                self._line(START_S)
            except Left as reason:
                self.missing = str(reason)
                self.stop()
                raise
            self.greeted = True
        return self._line(timeout)

    def _line(self, timeout: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.stop()
            raise Left(f"not ready after {timeout:.0f} s" if not ready else f"died; see {self.log}")
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise Left(found["failed"])
        return found

    def do(self, do: str, timeout: float = 60.0, **arguments: Any) -> dict[str, Any]:
        """A command and its answer."""
        self.send(do, **arguments)
        return self.answer(timeout)

    def stop(self) -> None:
        """Ends the process, and those that it started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None


@dataclass
class Timing:
    """What is known of one contender in one row; `left` says why there are no times."""

    blocks: list[float] = field(default_factory=list)
    error: float | None = None
    left: str = ""
    slow: bool = False

    @property
    def ms(self) -> float:
        """The median of the blocks."""
        return 1e3 * statistics.median(self.blocks)


def ratio(peer: Timing, own: Timing) -> float:
    """The median, over the rounds, of the peer's time over our own."""
    pairs = zip(peer.blocks, own.blocks, strict=False)  # who is hopeless has fewer rounds
    return statistics.median(theirs / ours for theirs, ours in pairs)


def compare(
    workload: Workload, contenders: dict[str, Contender], reference: Path, plan: Plan
) -> dict[str, Timing]:
    """Checks all contenders' results, then times them in turns; the first one is our own."""
    timings = _prepared(workload, contenders, reference, plan)
    for turn in range(plan.rounds):
        names = [name for name, timing in timings.items() if goes_on(name, timings)]
        first = turn % max(1, len(names))
        for name in names[first:] + names[:first]:
            _one_block(contenders[name], timings[name], plan)
    for contender in contenders.values():
        if contender.process is not None:
            contender.do("drop")
    return timings


def _prepared(
    workload: Workload, contenders: dict[str, Contender], reference: Path, plan: Plan
) -> dict[str, Timing]:
    """All contenders checked and ready, two at a time."""
    timings = {name: Timing() for name in contenders}
    names = list(contenders)
    for first in range(0, len(names), 2):
        pair = names[first : first + 2]
        for name in pair:
            try:
                contenders[name].send("setup", workload=workload.name, path=str(reference))
            except Left as reason:
                timings[name].left = str(reason)
        for name in pair:
            if not timings[name].left:
                limit = min(plan.setup_s, SETUP_S.get(contenders[name].name, plan.setup_s))
                _receive_setup(contenders[name], timings[name], limit)
    return timings


def _receive_setup(contender: Contender, timing: Timing, limit: float) -> None:
    try:
        found = contender.answer(limit)
        timing.error, timing.slow = found["error"], found["call_s"] > SLOW_CALL_S
    except Left as reason:
        timing.left = str(reason)


def goes_on(name: str, timings: dict[str, Timing]) -> bool:
    """Whether a contender has another round."""
    timing = timings[name]
    if timing.left:
        return False
    peers = [other.ms for other in list(timings.values())[1:] if other.blocks]
    return name == "ferrule" or not timing.blocks or timing.ms <= HOPELESS * min(peers)


def _one_block(contender: Contender, timing: Timing, plan: Plan) -> None:
    seconds, warmup = (0.0, 0.0) if timing.slow else (plan.block_s, plan.warmup_s)
    try:
        found = contender.do("block", seconds=seconds, warmup=warmup)
        timing.blocks.append(found["median"])
    except Left as reason:
        timing.left = str(reason)
