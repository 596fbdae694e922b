"""The small functions, where their docstrings' examples stop."""

import numpy
import pytest

import ferrule.base.helpers
from ferrule.dtype import DType
from ferrule.helpers import (
    GlobalCounters,
    ansi_length,
    argsort,
    ceildiv,
    colored,
    prod,
    round_up,
)
from ferrule.ir.expr import Variable


def test_prod_of_symbolic_sizes() -> None:
    n = Variable("n", 1, 4)
    assert prod([2, n, 3]) is n * 6


def test_argsort_is_stable_and_agrees_with_numpy() -> None:
    keys = [3, 1, 2, 1, 3]
    assert argsort(keys) == tuple(numpy.argsort(keys, kind="stable"))


@pytest.mark.parametrize("numerator", range(-5, 6))
def test_ceildiv(numerator: int) -> None:
    assert ceildiv(numerator, 4) == numpy.ceil(numerator / 4)


def test_round_up() -> None:
    assert [round_up(n, 8) for n in (0, 1, 8, 9)] == [0, 8, 8, 16]


@pytest.mark.parametrize("colour", ["red", "GREEN", "cyan"])
def test_colours_take_no_room(colour: str) -> None:
    text = colored("kernel", colour)
    assert text != "kernel"
    assert ansi_length(text) == 6


def test_reset_leaves_memory_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kernel_count", "global_ops", "global_mem", "mem_used"):
        monkeypatch.setattr(GlobalCounters, name, 7)
    monkeypatch.setattr(GlobalCounters, "time_sum_s", 1.5)
    GlobalCounters.reset()
    totals = (GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem)
    assert totals == (0, 0, 0)
    assert GlobalCounters.time_sum_s == 0.0
    assert GlobalCounters.mem_used == 7


def test_what_the_documents_have_here() -> None:
    assert ferrule.base.helpers.DType is DType  # type: ignore[attr-defined]
    with pytest.raises(
        AttributeError, match=r"'ferrule\.base\.helpers' has no attribute 'prd'; did you"
    ):
        _ = ferrule.base.helpers.prd  # type: ignore[attr-defined]
