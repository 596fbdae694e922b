"""Processes that run random programs: when a new one takes over."""

from __future__ import annotations

import time

import pytest

from tests.fuzz import workers
from tests.fuzz.workers import MOST_MEMORY, Job, Pool, Worker


@pytest.mark.parametrize(("reserved", "count"), [(0, 1), (MOST_MEMORY, 3)])
def test_a_process_ends_when_much_memory_is_reserved(
    reserved: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where little of it is in use: a library that gets no memory may crash."""
    started = []

    class Counted(Worker):
        memory = 0
        reserved: int = 0

        def __init__(self, job: Job) -> None:
            started.append(job)
            super().__init__(job)

    monkeypatch.setattr(workers, "Worker", Counted)
    Counted.reserved = reserved
    reports = [*Pool(Job(3, devices=("NUMPY",), ways=0), 1).run(range(3), time.monotonic() + 600)]
    assert [report.index for report in reports] == [0, 1, 2]
    assert len(started) == count
