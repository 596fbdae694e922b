"""A clock for code that keeps to a time: it moves by what is done, not by how long that takes."""

from __future__ import annotations

from types import ModuleType

import pytest


class Clock:
    """What modules get in the place of `time`; tests move it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def clock_of(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Clock:
    """The clock that these modules look at, for the rest of a test."""
    clock = Clock()
    for module in modules:
        monkeypatch.setattr(module, "time", clock)
    return clock
