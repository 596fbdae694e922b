"""How often tests make the scheduler plan, and which kernels they run."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import ferrule.engine.realize
import ferrule.fusion
from ferrule.engine.realize import Runners, prepare, settle_writes
from ferrule.fusion import Schedule, _known_graphs, _matchers, _plans
from ferrule.fusion.dynamic.families import _families, _only_forms
from ferrule.ops import LazyOp


class Work:
    """How often something is planned from now on, and which kernels run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forget()
        self.plans = 0
        self.kernels: set[Any] = set()
        plan = ferrule.fusion._plan

        def planned(*args: Any) -> Any:
            self.plans += 1
            return plan(*args)

        def run(schedule: Schedule) -> None:
            self.kernels.update(*schedule.plan.kernels.values())
            run_all(schedule)

        def prepared(kernels: Mapping[str, Sequence[LazyOp]]) -> Runners:
            self.kernels.update(*kernels.values())
            return prepare(kernels)

        run_all = ferrule.engine.realize._run_all

        monkeypatch.setattr("ferrule.fusion._plan", planned)
        monkeypatch.setattr("ferrule.engine.realize._run_all", run)
        monkeypatch.setattr("ferrule.engine.loop_runs.prepare", prepared)

    @staticmethod
    def forget() -> None:
        """Nothing is known of what ran before."""
        forget()


def forget() -> None:
    """Nothing is known of the graphs that ran before, and no write of theirs joins the next one."""
    settle_writes()  # on all devices
    _known_graphs.clear()
    _matchers.clear()
    _plans.clear()
    _families.clear()
    _only_forms.clear()
