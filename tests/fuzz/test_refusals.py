"""Calls of a kind that a method takes: it is a finding if it refuses all of them."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import Tensor
from ferrule.errors import ShapeError
from tests.fuzz import refusals
from tests.fuzz.surface import methods

METHODS = {method.name: method for method in methods()}


def test_the_table_is_of_the_methods_that_there_are() -> None:
    known, called = set(refusals.table()), {method.name for method in refusals.called()}
    assert known == called, "write it anew: python -m tests.fuzz.refusals --write"
    assert "2-d" in refusals.table()["diag"]
    assert "3-d" not in refusals.table()["diag"]


def test_a_method_that_refuses_a_kind_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = range(1000, 1000 + refusals.PROGRAMS)
    assert refusals.refusals(METHODS["diag"], programs) == []
    diag = Tensor.diag

    def of_vectors(x: Tensor, *args: Any, **words: Any) -> Tensor:
        if x.ndim == 2:
            raise ShapeError("no matrix")
        return diag(x, *args, **words)

    monkeypatch.setattr(Tensor, "diag", of_vectors)
    assert refusals.refusals(METHODS["diag"], programs) == ["2-d"]


def test_most_methods_are_known_to_take_something() -> None:
    kinds = [len(known) for known in refusals.table().values()]
    assert sum(count > 0 for count in kinds) > 0.85 * len(kinds)
