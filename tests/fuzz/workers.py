"""Processes that run programs: one that crashes or hangs is a finding, and another takes over."""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import os
import random
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from ferrule.device import Device, DeviceUnavailableError
from tests.fuzz import crowds, modes, nesting, onnx_models, reached, refusals, sharing
from tests.fuzz.calls import refused
from tests.fuzz.check import Finding, check, error_finding, is_internal
from tests.fuzz.generate import Generator
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrink
from tests.fuzz.single import Single
from tests.fuzz.surface import methods
from tests.fuzz.ways import Way, draw_ways

DEVICES = ("NUMPY", "CPU", "CPU")
MIXTURE = (
    *(*[""] * 14, *["views"] * 3, *["gradients"] * 3, *["jit"] * 3, *["writes"] * 3),
    *(*["aliases"] * 6, "contractions"),
)
"""The foci of programs of a run without one."""
SECONDS_EACH = 20.0
"""For one program that is run again by itself."""
IDLE = 0.02
"""Of a processor; a worker that uses less than this for long waits for what never comes."""
PROGRAMS_EACH = 60
"""Of a worker, before a new one takes over; so that what it keeps does not pile up. One does so
sooner where half of `MOST_MEMORY` is reserved."""
MOST_MEMORY = 3 << 30
SHRINKING = 60.0
CL_PATIENCE = 5.0
"""Extra time for each way on CL, which compiles slowly, as a multiple of the time limit."""


@dataclass(frozen=True)
class Job:
    """The programs to run, and their settings."""

    seed: int
    size: str = "small"
    focus: str = ""
    devices: tuple[str, ...] = DEVICES
    ways: int = 3
    patience: float = 20.0
    """Seconds of processor time for one program in all ways; more is a hang."""

    def patience_for(self, ways: Sequence[Way]) -> float:
        """The patience for a program that is run in these ways."""
        return self.patience * (1 + CL_PATIENCE * sum(way.device == "CL" for way in ways))


@dataclass
class Report:
    """The report on one program."""

    index: int
    finding: Finding | None = None
    drawn: bool = True
    accepted: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def drawn(job: Job, index: int) -> tuple[Generator, Program | None, list[Way]]:
    """A program and the ways to run it, both from the seed and the number alone."""
    rng = random.Random(f"ways:{job.seed}:{index}")
    focus = job.focus or rng.choice(MIXTURE)
    generator = Generator(job.seed, index, job.size, focus)
    program = generator.program()
    if generator.finding is None:
        (method,) = rng.choices(reached.methods_in(focus) if focus.endswith(".py") else methods())
        generator.finding = (
            Single(job.seed, index, job.focus).statements()
            or nesting.finding(job.seed, index)
            or sharing.finding(job.seed, index, focus)
            or crowds.finding(job.seed, index, focus)
            or modes.finding(job.seed, index)
            or onnx_models.finding(job.seed, index)
            or refusals.finding(job.seed, index, focus)
            or refused(method)
        )
    if program is None or generator.finding is not None:
        return generator, None, []
    return generator, program, draw_ways(program, rng, focus, job.devices, job.ways)


def run_one(job: Job, index: int, patience: Any = None) -> Report:
    """Draws and runs a program; `patience` is told how long that may take."""
    start = time.monotonic()
    generator, program, ways = drawn(job, index)
    if patience is not None:
        patience.value = job.patience_for(ways)
    finding = generator.finding
    if program is not None:
        try:
            finding = check(program, ways)
        except Exception as error:
            if is_internal(error):
                finding = error_finding(error, program, None)
    return Report(
        index,
        finding,
        program is not None,
        generator.accepted,
        generator.rejected,
        time.monotonic() - start,
    )


def _work(job: Job, indices: Connection, reports: Connection, patience: Any) -> None:
    """The life of a worker: a number comes in, and what came of it goes out."""
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A statement of too many elements is a MemoryError then, and another one is drawn.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    warnings.simplefilter("ignore")
    gc.freeze()  # a capture looks through all objects for owners of memory: there are none yet
    while (index := indices.recv()) is not None:
        try:
            report = run_one(job, index, patience)
        except MemoryError:
            report = Report(index, None, False)
        except Exception:
            traceback.print_exc()
            report = Report(index, None, False)
        reports.send(report)


def _shrink(finding: Finding, found: Connection) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found.send(shrink(finding, SHRINKING))


class Worker:
    """A process, and what it is at."""

    def __init__(self, job: Job) -> None:
        self.job = job
        context = multiprocessing.get_context("fork")
        receive, self.indices = context.Pipe(False)
        self.reports, send = context.Pipe(False)
        self.patience = context.Value("d", job.patience, lock=False)
        arguments = (job, receive, send, self.patience)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        receive.close()
        send.close()
        self.done = 0
        self.index: int | None = None
        self.since = 0.0
        self.used = 0.0

    def give(self, index: int) -> None:
        self.index, self.since, self.used = index, time.monotonic(), self.processor_time
        self.patience.value = self.job.patience
        self.indices.send(index)

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.indices.close()
        self.reports.close()

    @property
    def processor_time(self) -> float:
        """Seconds, of all threads of the process."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return 0.0

    def hangs(self) -> bool:
        """True if a program takes too long, not counting what other processes took from it."""
        patience = self.patience.value
        passed = time.monotonic() - self.since
        if passed < patience:
            return False
        used = self.processor_time - self.used
        return used > patience or used < IDLE * passed

    @property
    def memory(self) -> int:
        """Bytes that the process has touched."""
        return self._memory(1)

    @property
    def reserved(self) -> int:
        """Bytes that count against its limit, among them what devices keep for later."""
        return self._memory(5)

    def _memory(self, field: int) -> int:
        try:
            with open(f"/proc/{self.process.pid}/statm") as file:
                return int(file.read().split()[field]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0


class Pool:
    """Workers that run the programs of a job, one number after the other."""

    def __init__(self, job: Job, count: int) -> None:
        self.job = job
        self.workers: list[Worker] = []
        self.count = count
        reached.rules()  # takes a part of a second, which all workers share

    def run(self, indices: Any, until: float) -> Any:
        """Yields a report for each number, until the time is over."""
        iterator = iter(indices)
        more = True
        try:
            while True:
                while more and len(self.workers) < self.count and time.monotonic() < until:
                    index = next(iterator, None)
                    if index is None:
                        more = False
                        break
                    worker = Worker(self.job)
                    worker.give(index)
                    self.workers.append(worker)
                if not self.workers:
                    return
                yield from self.step(iterator, until)
        finally:
            for worker in self.workers:
                worker.end()
            self.workers.clear()

    def step(self, iterator: Any, until: float) -> Any:
        ready = wait([worker.reports for worker in self.workers], timeout=0.5)
        for worker in list(self.workers):
            report: Report | None = None
            if worker.reports in ready:
                try:
                    report = worker.reports.recv()
                except (EOFError, ConnectionError):
                    worker.process.join()
                    report = self.lost(worker, "crash", f"exit code {worker.process.exitcode}")
            elif worker.hangs():
                report = self.lost(worker, "hang", f"more than {worker.patience.value:.0f} seconds")
            elif worker.memory > MOST_MEMORY:
                report = self.lost(worker, "memory", f"more than {MOST_MEMORY >> 30} GiB")
            if report is None:
                continue
            yield report
            self.go_on(worker, iterator, until)

    def go_on(self, worker: Worker, iterator: Any, until: float) -> None:
        """Gives a worker its next number, or lets it end."""
        worker.done += 1
        index = None
        # A library that gets no memory may crash.
        is_fresh = worker.done < PROGRAMS_EACH and worker.reserved < MOST_MEMORY // 2
        if worker.process.is_alive() and is_fresh and time.monotonic() < until:
            index = next(iterator, None)
        if index is None:
            worker.end()
            self.workers.remove(worker)
        else:
            worker.give(index)

    def lost(self, worker: Worker, kind: str, why: str) -> Report:
        """The report of a worker that gave none."""
        index = worker.index
        assert index is not None
        worker.end()
        program, ways = Program((), (), ()), []
        with_program = isolated(_drawn_text, self.job, index)
        if with_program is not None:
            program, ways = with_program
        ways_text = "\n".join(map(str, ways))
        detail = f"program {index}, {why}; its ways:\n{ways_text}"
        found = Finding(kind, program, None, f"{kind} of {index}", detail)
        return Report(index, found)


def _drawn_text(job: Job, index: int) -> tuple[Program, list[Way]] | None:
    _, program, ways = drawn(job, index)
    return None if program is None else (program, ways)


def isolated(function: Any, *arguments: Any, seconds: float = SECONDS_EACH) -> Any:
    """The result of a function in its own process; None if that crashes or takes too long."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(False)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        warnings.simplefilter("ignore")
        send.send(function(*arguments))

    process = context.Process(target=work, daemon=True)
    process.start()
    send.close()
    try:
        return receive.recv() if receive.poll(seconds) else None
    except (EOFError, ConnectionError):
        return None
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        receive.close()


def with_opencl(devices: Sequence[str]) -> tuple[str, ...]:
    """The devices, and CL if there is one. A process that opens it should not be forked."""
    return (*devices, "CL") if isolated(_opens, "CL") else tuple(devices)


def _opens(name: str) -> bool:
    try:
        return bool(Device[name])
    except DeviceUnavailableError:
        return False


def shrunk(finding: Finding) -> Finding:
    """The finding with a smaller program, shrunk in a process of its own."""
    if finding.kind not in ("wrong", "error"):
        return finding
    smaller = isolated(shrink, finding, SHRINKING, seconds=SHRINKING + 3 * SECONDS_EACH)
    return finding if smaller is None else smaller


def write_json(path: str, data: object) -> None:
    with open(f"{path}.new", "w") as file:
        json.dump(data, file, indent=1)
    os.replace(f"{path}.new", path)


__all__: Sequence[str] = ["Job", "Pool", "Report", "isolated", "run_one", "shrunk", "write_json"]
