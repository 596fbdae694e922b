"""Threads that share tensors: a write that is lost is found."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from ferrule.tensor import cell, inplace
from tests.fuzz import sharing

PROGRAMS = 60


def test_nothing_is_lost_but_without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "SHARE", 1.0)
    assert [sharing.finding(1, index, "") for index in range(PROGRAMS)] == [None] * PROGRAMS
    # Threads that write at the same time make their versions of the same earlier one.
    monkeypatch.setattr(cell, "turn", nullcontext())
    monkeypatch.setattr(inplace, "turn", nullcontext())
    found = [sharing.finding(1, index, "") for index in range(PROGRAMS)]
    assert any("in the end" in finding.detail for finding in found if finding is not None)
