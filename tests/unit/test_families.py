"""Families of graphs: what they say changes, from the parameters alone."""

import numpy as np
import pytest
from tests.planning import Work

from ferrule import Tensor
from ferrule.fusion.dynamic import families
from ferrule.fusion.dynamic.families import ENOUGH_ALIKE, ENOUGH_SIZES, Family
from ferrule.fusion.dynamic.parameters import Parameters

NOTHING: tuple[set[int], set[int]] = (set(), set())


def graph(n: int, offset: int = 0, constant: float = 1.0) -> Parameters:
    """The parameters of a graph with the sizes n, 2 n and 7."""
    return Parameters((n, 2 * n, 7), (offset, 3), (2.0, constant))


def learned() -> Family:
    """A family that knows its laws."""
    family = Family()
    for n in range(10, 10 + ENOUGH_SIZES):
        assert family.lengths_of(counted(family, graph(n))) == (() if n == 10 else (n,))
    return family


def counted(family: Family, now: Parameters) -> Parameters:
    """The parameters of one more graph of the family."""
    family.count(now)
    return now


def test_what_differs_is_told_after_a_few_graphs_of_the_same_sizes() -> None:
    family = Family()
    for call in range(ENOUGH_ALIKE):
        family.count(graph(5, offset=call))
        assert family.changes(graph(5)) == NOTHING
    family.count(graph(5, constant=3.0))
    assert family.changes(graph(5)) == ({1}, {0})
    family.count(graph(6))
    assert family.changes(graph(6)) == NOTHING


def test_sizes_follow_from_one_length() -> None:
    family = learned()
    family.count(graph(31))
    assert family.lengths_of(graph(31)) == (31,)
    assert family.integers([31]) == [31, 62, 7, 0, 3]


def test_a_broken_law_is_learned_anew() -> None:
    family = learned()
    other = Parameters((20, 41, 7), (0, 3), (2.0, 1.0))
    family.count(other)
    assert sorted(family.lengths_of(other)) == [20, 41]
    both = Parameters((9, 30, 7), (0, 3), (2.0, 1.0))
    family.count(both)
    assert sorted(family.lengths_of(both)) == [9, 30]


def test_a_constant_that_was_the_same_so_far_breaks_the_law() -> None:
    family = learned()
    family.count(graph(31, constant=5.0))
    assert family.lengths_of(graph(31, constant=5.0)) == (31,)
    family.count(graph(32, constant=6.0))
    assert family.lengths_of(graph(32, constant=6.0)) == (32,)
    assert family.constants == {1}


def test_offsets_alone_teach_no_laws() -> None:
    family = Family()
    for offset in range(2 * ENOUGH_SIZES):
        family.count(graph(10, offset))
        assert family.lengths_of(graph(10, offset)) == ()
    family.count(graph(11))
    assert family.lengths_of(graph(11)) == (11,)
    for offset in (1, 2):
        family.count(graph(11, offset))
        assert family.lengths_of(graph(11, offset)) == (), "no offset follows from the size"


def test_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_MOST_COUNTED", 8)
    family = Family()
    for n in range(40):
        family.count(graph(n))
        assert len(family._alike) <= 8


def test_a_length_an_offset_and_a_constant_change_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    rows = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    x = Tensor(rows).realize()
    for call, (start, n) in enumerate([(0, 5), (3, 9), (40, 20), (11, 7), (60, 33), (2, 12)] * 3):
        expected = (rows[start : start + n] * call).sum(0)
        found = (x[start : start + n] * float(call)).sum(0)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert work.plans <= ENOUGH_SIZES + 3


def test_constants_change_where_no_plan_serves_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.fusion.dynamic.lengths._planned", lambda *args: None)
    work = Work(monkeypatch)
    x = Tensor(np.arange(40, dtype=np.float32)).realize()
    for call in range(30):
        n = 20 + call % 3
        np.testing.assert_array_equal((x[:n] * (call + 2.0)).numpy(), np.arange(n) * (call + 2))
    assert work.plans <= 3 * (ENOUGH_ALIKE + 1)


def test_a_graph_with_nan_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    x = Tensor(np.arange(40, dtype=np.float32)).realize()
    for _ in range(4):
        assert np.isnan((x + float("nan")).numpy()).all()
    assert work.plans == 1
