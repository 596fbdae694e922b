"""Trial runs of kernels in another process, which may crash, hang or be killed at any moment.

The process is an interpreter of its own, never a fork, since this one may have threads. It gets
sources, not schedules, so that it needs no code generation; `worker.py` is its code. All
answers come through one connection, and nothing of a kernel survives the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from multiprocessing.connection import Connection, Pipe
from typing import Any, final

from ferrule.base.config import config
from ferrule.base.records import dataclass

# -P: no modules are imported from the folder that this process was started in.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from importlib import import_module; "
    "module, _, name = sys.argv[1].partition(':'); "
    "getattr(import_module(module), name)(int(sys.argv[2]))"
)
# None of these is measured.
_GRACE_S = 0.5  # seconds that an answer may be late
_START_S = 20.0  # seconds for a worker to start and run the original kernel
_TRIAL_S = 2.0  # seconds to compile a candidate, at least
_RUNS_IN_A_TRIAL = 20  # runs in the best time that a trial may take beside its compilation
_MAX_LOSSES = 4  # workers lost, after which the search ends


class WorkerLostError(RuntimeError):
    """The worker process crashed, or took too long and was killed."""


class TrialError(RuntimeError):
    """A kernel cannot be tried."""


@final
class Worker:
    """A worker process: started by the first question, and again after it was lost.

    `entry` is the function that runs in it, as "module:function". Only one thread at a time may use
    it.
    """

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[bytes, bytes] | None = None
        self.generation = 0
        """The number of processes that there were before this one."""

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The worker's answer. Raises `WorkerLostError` if there is none within `seconds`."""
        try:
            connection = self._connection or self._start()
            # The worker's own alarm ends it even if this process is gone by then.
            text = json.dumps({**question, "alarm": seconds + _GRACE_S})
            connection.send_bytes(text.encode())
            if not connection.poll(seconds):
                raise TimeoutError(f"no answer after {seconds:.1f} s")
            answer: dict[str, Any] = json.loads(connection.recv_bytes())
            return answer
        except (OSError, EOFError) as error:
            self.close()
            raise WorkerLostError(f"the worker was lost: {error or 'it ended'}") from error
        except BaseException:
            self.close()
            raise

    def _start(self) -> Connection[bytes, bytes]:
        ours, theirs = Pipe()
        number = theirs.fileno()
        command = [sys.executable, "-P", "-c", _BOOT, self._entry, str(number), *sys.path]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if config().DEBUG >= 3 else subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._connection = ours
        return ours

    def close(self) -> None:
        """Kills the process, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.generation += 1


@dataclass(frozen=True)
class Job:
    """A kernel to try, its device and its buffers. `slots` are the (dtype, elements) of these.

    `opener` is the opener registered for the device in this process, as "module:function".
    """

    device: str
    name: str
    slots: tuple[tuple[str, int], ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    vals: tuple[int, ...]
    opener: str | None = None


@dataclass(frozen=True)
class Source:
    """A kernel's source, and its launch as (blocks, threads); None on a processor."""

    text: str
    launch: tuple[int, int] | None = None


@final
class Trials:
    """Trial runs of one kernel until a deadline, each compared with the results of `source`.

    The last `reserved` seconds are for `compare`. As much again, at most, is set aside for a new
    worker to start, since the last trial may hang.

    Raises `TrialError` if `source` itself cannot be tried.
    """

    def __init__(
        self, worker: Worker, job: Job, source: Source, deadline: float, reserved: float = 0.0
    ) -> None:
        self._worker = worker
        self._job = job
        self._source = source
        self._deadline = deadline
        self._reserved = reserved
        self._losses = 0
        self._generation = 0
        self._start_s = 0.0
        self._asked = 0
        self._asked_s = 0.0
        self.best = self._begin()
        """The seconds of the fastest source so far."""

    def left(self) -> float:
        """The seconds that are left for trials; 0 once too many workers were lost."""
        if self._losses > _MAX_LOSSES:
            return 0.0
        return self._until_deadline() - self._reserved - min(self._reserved, self._start_s)

    def is_over(self) -> bool:
        """True if the time that is left is below the mean time of the trials so far."""
        return self.left() * max(self._asked, 1) <= self._asked_s

    def measure(self, source: Source, exact: bool) -> float | None:
        """The seconds of a run; None if it is wrong, crashes, hangs, or is late.

        With `exact` its results have to have the same bits; else rounding may differ.
        """
        if not self._is_ready():
            return None
        patience = self._patience() + _RUNS_IN_A_TRIAL * self.best
        question = {"do": "try", "source": astuple(source), "exact": exact, "best": self.best}
        started = time.monotonic()
        found = self._ask(question, min(self.left(), patience))
        self._asked += 1
        self._asked_s += time.monotonic() - started
        if found is not None:
            self.best = min(self.best, float(found))
        return None if found is None else float(found)

    def compare(self, sources: Sequence[Source]) -> list[float] | None:
        """The seconds of several sources, timed in turns, for at most `reserved` seconds.

        None if the worker is lost on the way.
        """
        if not self._is_ready():
            return None
        left = self._until_deadline()
        question = {
            "do": "compare",
            "sources": [astuple(source) for source in sources],
            "seconds": min(self._reserved, left),
        }
        found = self._ask(question, left + _GRACE_S)
        return None if found is None else [float(taken) for taken in found]

    def _until_deadline(self) -> float:
        return self._deadline - time.monotonic()

    def _patience(self) -> float:
        """The seconds that a program may take to compile: some devices have slow compilers."""
        return max(_TRIAL_S, 2 * self._start_s)

    def _begin(self) -> float:
        started = time.monotonic()
        settings = config()
        question = {
            "do": "begin",
            "job": asdict(self._job),
            "source": astuple(self._source),
            "settings": {
                "FERRULE_NUM_THREADS": settings.FERRULE_NUM_THREADS,
                "FERRULE_CACHE_DIR": settings.FERRULE_CACHE_DIR,
                "FERRULE_MEMORY_LIMIT": settings.FERRULE_MEMORY_LIMIT,
            },
        }
        limit = min(max(self._until_deadline(), 0.0), _START_S)
        try:
            answer = self._worker.ask(question, limit)
        except WorkerLostError as error:
            raise TrialError(str(error)) from error
        if "error" in answer:
            raise TrialError(answer["error"])
        self._generation = self._worker.generation
        self._start_s = time.monotonic() - started
        return float(answer["result"])

    def _is_ready(self) -> bool:
        """True if there is a worker; starts another one if it was lost."""
        try:
            if self._generation != self._worker.generation:
                self._begin()
        except TrialError:
            self._losses += 1
            return False
        return True

    def _ask(self, question: Mapping[str, Any], limit: float) -> Any:
        """The answer's result; None where there is none."""
        if limit <= 0:
            return None
        try:
            return self._worker.ask(question, limit).get("result")
        except WorkerLostError:
            self._losses += 1
            return None
