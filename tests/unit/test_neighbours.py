"""Lanes whose elements a few vectors have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.codegen.analysis.vector_shuffles import (
    MAX_VECTORS,
    Near,
    few_vectors,
    near_lanes,
    period,
    whole_vectors,
)
from ferrule.dtype import dtypes
from ferrule.ir.expr import TRUE, Expr, both, const, less, load, range_

LANE = range_("lane", 16)
OUTER = range_("outer", 10)


def test_distances_are_those_of_the_lanes() -> None:
    second = near_lanes(OUTER * 32 + LANE * 2 + 3, TRUE, LANE)
    assert second == Near(OUTER * 32 + 3, TRUE, tuple(range(0, 32, 2)))
    halves = near_lanes((OUTER * 16 + LANE) // 2, less(LANE, 14), LANE)
    assert halves is not None
    assert halves.base is OUTER * 8
    assert halves.distances == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, None, None)


def test_a_condition_for_all_lanes_stays_one() -> None:
    here = less(OUTER, 7)
    near = near_lanes(LANE * 2, both(here, less(LANE, 3)), LANE)
    assert near is not None
    assert near.valid is here
    assert near.distances[:4] == (0, 2, 4, None)


def test_distances_that_change_from_iteration_to_iteration_are_none() -> None:
    assert near_lanes((OUTER * 16 + LANE) // 3, TRUE, LANE) is None
    assert near_lanes(LANE * 2, less(OUTER * 16 + LANE, 150), LANE) is None


@given(st.lists(st.one_of(st.none(), st.integers(-70, 70)), min_size=4, max_size=16))
def test_every_lane_finds_its_element(distances: list[int | None]) -> None:
    found = few_vectors(tuple(distances))
    if found is None:
        return
    wanted = [d for d in distances if d is not None]
    assert len(found.starts) <= MAX_VECTORS
    assert len(found.starts) < len(set(wanted))
    assert min(found.starts) >= min(wanted)
    assert max(found.starts) + found.width - 1 <= max(wanted)
    for distance, place in zip(distances, found.places, strict=True):
        if distance is None:
            assert place is None
        else:
            assert place is not None
            assert found.starts[place[0]] + place[1] == distance
            assert 0 <= place[1] < found.width


@pytest.mark.parametrize("step", [2, 3, 4, -2])
def test_small_steps_take_as_many_vectors(step: int) -> None:
    found = few_vectors(tuple(range(0, 16 * step, step)))
    assert found is not None
    assert len(found.starts) == abs(step)


def test_a_vector_for_each_element_is_too_many() -> None:
    assert few_vectors(tuple(range(0, 16 * 16, 16))) is None


@pytest.mark.parametrize(
    ("divisor", "expected"), [(2, 1), (3, 3), (6, 3), (7, 7), (9, 1)], ids=lambda n: str(n)
)
def test_the_period_of_quotients(divisor: int, expected: int) -> None:
    i = range_("i", 1000)
    element = load(1, dtypes.float32, i // divisor)
    assert period([element], i, 16) == expected


@pytest.mark.parametrize(
    ("index", "firsts", "place"),
    [
        (OUTER * 32 + LANE % 2 * 16 + LANE // 2, (OUTER * 32, OUTER * 32 + 16), (1, 2)),
        (OUTER * 32 + LANE % 2 * 16 + LANE // 2 + 8, (OUTER * 32, OUTER * 32 + 16), (1, 10)),
        (OUTER * 16 - LANE + 31, (OUTER * 16 + 16,), (0, 10)),
        (LANE * 2 + 8, (const(0), const(16), const(32)), (1, 2)),
    ],
)
def test_vectors_in_scratch_begin_where_they_were_stored(
    index: Expr, firsts: tuple[Expr, ...], place: tuple[int, int]
) -> None:
    whole = whole_vectors(index, LANE, 320)
    assert whole is not None
    assert whole.firsts == firsts
    assert whole.places[5] == place


@pytest.mark.parametrize(
    ("index", "elements"),
    [
        (OUTER * 16 + LANE, 160),  # neighbours
        (OUTER * 16, 160),  # the same for all lanes
        (OUTER * 20 + LANE * 2, 320),  # begins anywhere
        (LANE * 2, 40),  # the last vector is cut
        (LANE * 16, 256),  # a vector for each lane
    ],
)
def test_lanes_that_no_whole_vectors_have(index: Expr, elements: int) -> None:
    assert whole_vectors(index, LANE, elements) is None
