"""How often tests make the scheduler plan, and which kernels they run."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import ferrule.schedule
from ferrule.ops import LazyOp
from ferrule.realize import Runners, prepare
from ferrule.schedule import _recipes
from ferrule.schedule.changing import _forms
from ferrule.schedule.lengths import _families


class Work:
    """How often something is planned from now on, and which kernels run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forget()
        self.plans = 0
        self.kernels: set[Any] = set()
        plan = ferrule.schedule._plan

        def planned(*args: Any) -> Any:
            self.plans += 1
            return plan(*args)

        def prepared(kernels: Mapping[str, Sequence[LazyOp]]) -> Runners:
            self.kernels.update(*kernels.values())
            return prepare(kernels)

        monkeypatch.setattr("ferrule.schedule._plan", planned)
        monkeypatch.setattr("ferrule.realize.prepare", prepared)

    @staticmethod
    def forget() -> None:
        """Nothing is known of what ran before."""
        _recipes.clear()
        _forms.clear()
        _families.clear()
