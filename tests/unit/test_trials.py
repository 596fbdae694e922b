"""Trial runs in another process: what is wrong, hangs or crashes is found out, and hurts nobody."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.clocks import Clock, clock_of

import ferrule.device.autotune.measurement as trials_module
from ferrule.base.config import config
from ferrule.device.autotune.measurement import (
    Job,
    Source,
    TrialError,
    Trials,
    Worker,
    WorkerLostError,
)
from ferrule.device.autotune.worker import difference
from ferrule.dtype import dtypes

ENTRY = "ferrule.device.autotune.worker:serve"
JOB = Job("CPU", "add", (("float32", 100),) * 3, (1, 2), (0,), ())

Kernels = dict[str, Callable[..., str]]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker that gets all the time that a busy machine may need for what does not hang."""
    monkeypatch.setattr(trials_module, "_TRIAL_S", 30.0)
    found = Worker(ENTRY)
    yield found
    found.close()


def add(kernels: Kernels) -> Source:
    return Source(kernels["add_kernel"]("add", "ret i64 100"))


def hanging(kernels: Kernels) -> Source:
    chunk = "  br label %forever\nforever:\n  br label %forever\nnever:"
    return Source(kernels["kernel_source"]("add", chunk))


def crashing(kernels: Kernels) -> Source:
    return Source(kernels["kernel_source"]("add", "  store volatile i32 1, ptr null"))


def started(worker: Worker, kernels: Kernels) -> Trials:
    return Trials(worker, JOB, add(kernels), time.monotonic() + 300)


def is_alive(worker: Worker, kernels: Kernels) -> bool:
    seconds = started(worker, kernels).measure(add(kernels), True)
    return seconds is not None and seconds > 0


def test_what_is_right_is_timed(worker: Worker, kernels: Kernels) -> None:
    trials = started(worker, kernels)
    assert 0 < trials.best < 1
    seconds = trials.measure(add(kernels), True)
    assert seconds is not None
    assert trials.best <= seconds
    both = trials.compare([add(kernels), add(kernels)])
    assert both is not None
    assert len(both) == 2


@pytest.mark.parametrize("change", [("fadd", "fsub"), ("ret i64 100", "ret i64 99")])
def test_what_is_wrong_is_refused(
    worker: Worker, kernels: Kernels, change: tuple[str, str]
) -> None:
    trials = started(worker, kernels)
    assert trials.measure(Source(add(kernels).text.replace(*change)), False) is None
    assert trials.measure(add(kernels), True) is not None


def test_what_does_not_compile_is_refused(worker: Worker, kernels: Kernels) -> None:
    trials = started(worker, kernels)
    assert trials.measure(Source("this is no program"), True) is None
    assert trials.measure(add(kernels), True) is not None


def test_a_crash_is_survived(worker: Worker, kernels: Kernels) -> None:
    trials = started(worker, kernels)
    assert trials.measure(crashing(kernels), True) is None
    assert trials.measure(add(kernels), True) is not None
    assert worker.generation == 1


def test_what_hangs_is_killed(
    worker: Worker, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = started(worker, kernels)
    process = worker._process
    assert process is not None
    monkeypatch.setattr(trials, "_patience", lambda: 0.4)
    assert trials.measure(hanging(kernels), True) is None
    assert process.returncode in (-signal.SIGKILL, -signal.SIGALRM)
    monkeypatch.setattr(trials, "_patience", lambda: 30.0)
    assert trials.measure(add(kernels), True) is not None


@pytest.fixture
def clock(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Only questions take time: a start 0.4 s, a trial all it may, for it hangs."""
    clock = clock_of(monkeypatch, trials_module)

    def ask(question: dict[str, Any], seconds: float) -> dict[str, object]:
        if question["do"] == "try":
            clock.now += seconds
            worker.generation += 1
            raise WorkerLostError("the worker was lost: it hangs")
        took = question.get("seconds", 0.4)
        assert took <= seconds
        clock.now += took
        return {"result": [1e-6] * len(question["sources"]) if "sources" in question else 1e-6}

    monkeypatch.setattr(worker, "ask", ask)
    return clock


def test_what_hangs_does_not_pass_the_deadline(
    worker: Worker, kernels: Kernels, clock: Clock
) -> None:
    trials = Trials(worker, JOB, add(kernels), 3.0)
    assert trials.measure(hanging(kernels), True) is None
    assert clock.now == pytest.approx(3.0)
    assert trials.is_over()


def test_what_hangs_at_the_end_leaves_time_to_compare(
    worker: Worker, kernels: Kernels, clock: Clock
) -> None:
    trials = Trials(worker, JOB, add(kernels), 8.0, reserved=5.0)
    assert trials.measure(hanging(kernels), True) is None
    assert trials.is_over()
    assert trials.compare([add(kernels)]) is not None
    assert 7.0 < clock.now <= 8.0


def test_too_many_losses_end_the_trials(
    worker: Worker, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_module, "_MAX_LOSSES", 0)
    trials = started(worker, kernels)
    assert trials.measure(crashing(kernels), True) is None
    assert trials.is_over()
    assert trials.measure(add(kernels), True) is None
    assert trials.compare([add(kernels)]) is not None


@pytest.mark.parametrize(("reserved", "count"), [(0.0, 6), (1.0, 3)])
def test_no_trial_is_begun_that_would_be_cut_short(
    worker: Worker,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    reserved: float,
    count: int,
) -> None:
    """Of 2.7 s once the worker has begun; what is reserved grows by another one's start, 0.4 s."""
    clock = clock_of(monkeypatch, trials_module)
    limits: list[float] = []

    def ask(question: object, seconds: float) -> dict[str, float]:
        limits.append(seconds)
        clock.now += 0.4
        return {"result": 1e-6}

    worker.ask = ask  # type: ignore[method-assign, assignment]
    trials = Trials(worker, JOB, add(kernels), 3.1, reserved)
    while not trials.is_over():
        assert trials.measure(add(kernels), True) is not None
    assert len(limits) == 1 + count
    assert min(limits) >= 0.4


def test_a_kernel_that_cannot_be_tried_itself(worker: Worker, kernels: Kernels) -> None:
    with pytest.raises(TrialError, match="the worker was lost"):
        Trials(worker, JOB, crashing(kernels), time.monotonic() + 300)
    with pytest.raises(TrialError, match="CompileError"):
        Trials(worker, JOB, Source("this is no program"), time.monotonic() + 300)
    assert is_alive(worker, kernels)


@pytest.mark.parametrize("entry", ["os:_exit", "time:sleep", "no_such_module:f"])
def test_a_worker_that_does_not_answer(entry: str) -> None:
    worker = Worker(entry)
    with pytest.raises(WorkerLostError, match="the worker was lost"):
        worker.ask({}, 0.5)


def test_a_worker_ends_although_nobody_kills_it(worker: Worker, kernels: Kernels) -> None:
    """Its alarm is set for each question, so that it does not outlive a process that is gone."""
    started(worker, kernels)
    process, connection = worker._process, worker._connection
    assert process is not None
    assert connection is not None
    source = astuple(hanging(kernels))
    question = {"do": "try", "source": source, "exact": True, "best": 1.0, "alarm": 0.3}
    connection.send_bytes(json.dumps(question).encode())
    assert process.wait(timeout=60) == -signal.SIGALRM


def test_a_worker_ends_with_its_connection(worker: Worker, kernels: Kernels) -> None:
    started(worker, kernels)
    process, connection = worker._process, worker._connection
    assert process is not None
    assert connection is not None
    connection.close()
    assert process.wait(timeout=60) == 0


def test_nothing_is_left_behind(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    worker = Worker(ENTRY)
    trials = started(worker, kernels)
    process = worker._process
    assert process is not None
    trials.measure(crashing(kernels), True)
    trials.measure(add(kernels), True)
    worker.close()
    assert process.poll() is not None
    assert os.listdir(tmp_path) == []
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_settings_in_force_are_the_workers_too(worker: Worker, kernels: Kernels) -> None:
    asked: list[dict[str, object]] = []
    ask = worker.ask

    def watch(question: dict[str, object], seconds: float) -> dict[str, object]:
        asked.append(question)
        return ask(question, seconds)

    worker.ask = watch  # type: ignore[method-assign, assignment]
    started(worker, kernels)
    settings = asked[0]["settings"]
    assert isinstance(settings, dict)
    assert settings["FERRULE_NUM_THREADS"] == config().FERRULE_NUM_THREADS
    assert settings["FERRULE_CACHE_DIR"] == config().FERRULE_CACHE_DIR


# comparing results


def test_differences() -> None:
    values = np.array([1, -2, np.nan, np.inf], np.float32)
    assert difference(dtypes.float32, values, values.copy(), True) is None
    near = values * np.float32(1 + 1e-5)
    assert difference(dtypes.float32, values, near, False) is None
    assert difference(dtypes.float32, values, near, True) is not None
    for i in range(4):
        far = values.copy()
        far[i] = 7
        assert difference(dtypes.float32, values, far, False) is not None


def test_integers_have_to_be_equal() -> None:
    values = np.arange(5, dtype=np.int64) + 1000000
    assert difference(dtypes.int64, values, values.copy(), False) is None
    assert difference(dtypes.int64, values, values + 1, False) is not None


def test_the_rounding_of_a_narrow_type_is_allowed() -> None:
    values = np.linspace(1, 2, 50).astype(dtypes.bfloat16.np)
    other = (values.astype(np.float32) * (1 + 2.0**-7)).astype(dtypes.bfloat16.np)
    assert difference(dtypes.bfloat16, values, other, False) is None
    assert difference(dtypes.bfloat16, values, other, True) is not None
