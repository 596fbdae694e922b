"""How the tests share out the machine's cores."""

from __future__ import annotations

import pytest
from tests.cores import keep_to_own, own

import ferrule.base.config


@pytest.mark.parametrize(("worker", "expected"), [(0, [0, 1]), (3, [6, 7]), (8, [0, 1])])
def test_workers_have_two_cores_each(worker: int, expected: list[int]) -> None:
    assert own(range(16), worker) == expected


def test_where_there_are_few() -> None:
    assert own([5], 1) == [5]
    assert [own([0, 1, 2], worker) for worker in (0, 1)] == [[0, 1], [0, 1]]


def test_a_worker_finds_all_cores_though_it_inherits_two(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = set(range(16))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores, raising=False)

    def put(_: int, chosen: list[int]) -> None:
        cores.intersection_update(chosen)
        chosen_before.append(chosen)

    chosen_before: list[list[int]] = []
    monkeypatch.setattr("os.sched_setaffinity", put, raising=False)
    environment: dict[str, str] = {}
    keep_to_own(environment)
    keep_to_own({**environment, "PYTEST_XDIST_WORKER": "gw2"})
    assert chosen_before == [[0, 1], [4, 5]]


def test_no_test_sees_more() -> None:
    assert ferrule.base.config.usable_cores() <= 2
