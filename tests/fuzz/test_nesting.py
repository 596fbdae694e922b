"""Nests of transformations: a mistake in a map that shows only through another one is found."""

from __future__ import annotations

from random import Random

import pytest

from ferrule.transforms.batching import Batch
from tests.fuzz import nesting

NESTS = 60


def test_maps_and_loops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nesting, "SHARE", 1.0)
    assert [nesting.finding(1, index) for index in range(NESTS)] == [None] * NESTS
    # A map that goes backwards takes what the map around it made meanwhile for its own.
    monkeypatch.setattr(Batch, "from_now_on", lambda lanes: lanes)
    found = [nesting.finding(1, index) for index in range(NESTS)]
    wrong = [finding for finding in found if finding is not None]
    assert wrong
    assert "in loops" in wrong[0].detail


def test_every_transformation_is_drawn() -> None:
    texts = [nesting.Nest(Random(seed)).text for seed in range(200)]
    for name in ("grad", "jvp", "vmap", "jacrev", "jacfwd", "checkpoint"):
        assert any(f"{name}(" in text for text in texts)
