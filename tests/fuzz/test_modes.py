"""Models that train in one mode or another: a warning that is missing is found."""

from __future__ import annotations

import pytest

from ferrule.autograd import backward
from tests.fuzz import modes

MODELS = 30


def test_only_what_nobody_asked_for_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "SHARE", 1.0)
    assert [modes.finding(1, index) for index in range(MODELS)] == [None] * MODELS
    monkeypatch.setattr(backward, "note_gradients", lambda entries: None)
    found = [modes.finding(1, index) for index in range(MODELS)]
    assert any("warns in steps ([], 0), not [0]" in f.detail for f in found if f is not None)
