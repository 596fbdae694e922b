"""Crowds of threads: each computes what it does alone, and a loss is found."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import pytest

from ferrule.tensor import cell, inplace
from tests.fuzz.crowds import Crowd

CROWDS = 8


def test_each_thread_computes_what_it_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    crowds = [Crowd(Random(f"test:{index}")) for index in range(CROWDS)]
    assert [crowd.mistake() for crowd in crowds] == [""] * CROWDS
    # Threads that write at the same time make their versions of the same earlier one.
    monkeypatch.setattr(cell, "turn", nullcontext())
    monkeypatch.setattr(inplace, "turn", nullcontext())
    monkeypatch.setattr("ferrule.jit.alone", lambda cells: nullcontext(True))
    busy = [Crowd(Random(f"test:{index}")) for index in range(CROWDS)]
    for crowd in busy:
        crowd.total = "total.assign(total + x.sum()) * 0 + x"
        crowd.steps = [["(count.reset(), count(x2 * 0 + 1))[1]"] * 4] * len(crowd.steps)
    assert any("the total is" in crowd.mistake() for crowd in busy)
