"""Windows of ranges: a copy has each element once, at the place that the ranges' sum gives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ferrule.codegen.analysis.window import Window, overlap
from ferrule.codegen.sums import is_free
from ferrule.dtype import dtypes
from ferrule.ir.expr import TRUE, Expr, ExprOp, all_of, conjuncts, const, less, load, range_


def at(expression: Expr, values: dict[Expr, int]) -> int:
    return expression.substitute({r: const(value) for r, value in values.items()}).arg


def every(ranges: list[Expr]) -> list[dict[Expr, int]]:
    sizes = [range(r.size.arg) for r in ranges]
    return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*sizes)]


@settings(max_examples=200)
@given(
    weights=st.lists(st.sampled_from([-2, -1, 1, 2, 3]), min_size=2, max_size=3),
    sizes=st.lists(st.integers(2, 4), min_size=3, max_size=3),
    factor=st.integers(1, 3),
    low=st.integers(-3, 3),
    high=st.integers(0, 12),
    part=st.booleans(),
)
def test_a_copy_has_what_the_ranges_read(
    weights: list[int], sizes: list[int], factor: int, low: int, high: int, part: bool
) -> None:
    ranges = [range_(f"r{i}", size) for i, size in enumerate(sizes[: len(weights)])]
    position = sum((r * (w * factor) for r, w in zip(ranges, weights, strict=True)), const(0))
    # A condition on the whole sum, and perhaps one on a range alone.
    conditions = [less(const(low * factor), position), less(position, const(high * factor))]
    if part:
        conditions.append(less(ranges[0], const(2)))
    element = load(1, dtypes.float32, position + 100, all_of(conditions))
    window = Window.of(element, ranges) if element.op is ExprOp.LOAD else None
    assume(window is not None)
    assert window is not None
    axis = range_("axis", window.extent)
    moved = window.moved(element, axis)
    needed = set()
    for values in every(ranges):
        place = at(window.position, values)
        assert 0 <= place < axis.size.arg
        if at(element.src[1], values):
            needed.add(place)
            assert at(moved.src[0], {axis: place}) == at(element.src[0], values)
            assert at(moved.src[1], {axis: place})
    for place in range(axis.size.arg):  # conditions on the whole sum mask what nothing reads
        if at(moved.src[1], {axis: place}) and not part:
            value = at(moved.src[0], {axis: place}) - 100
            assert low * factor < value < high * factor


def test_places_and_taps_overlap_where_conditions_take_both() -> None:
    y, k = range_("y", 8), range_("k", 3)
    inside = less(y + k, const(9))
    assert overlap(load(1, dtypes.float32, y + k, inside), y, k)
    assert not overlap(load(1, dtypes.float32, y + k * 8, inside), y, k)
    alone = all_of([inside, less(k, const(2))])
    assert not overlap(load(1, dtypes.float32, y + k, alone), y, k)


@pytest.mark.parametrize("most", [3, 2, 1])
def test_a_conditionis_free_where_some_tap_always_fulfils_it(most: int) -> None:
    # With y < 6: for each y there is a k below 3 with y < k + `most` + 1 only up to y = most + 2.
    y, k = range_("y", 6), range_("k", 3)
    condition = less(y, k + most + 1)
    free = all(any(a < b + most + 1 for b in range(3)) for a in range(6))
    assert is_free(condition, {condition}, frozenset({y})) is free


def test_a_condition_of_two_partsis_free_where_one_tap_fulfils_both() -> None:
    y, k = range_("y", 4), range_("k", 3)
    low, high = less(y, k + 2), less(k, const(2))
    parts = {low, high}
    expected = all(any(a < b + 2 and b < 2 for b in range(3)) for a in range(4))
    assert not expected
    assert not is_free(low, parts, frozenset({y}))
    assert is_free(low, {low}, frozenset({y}))
    assert TRUE not in conjuncts(all_of(parts))
