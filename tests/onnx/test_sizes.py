"""Sizes that vary on the host: results hold for each value of the variable, or are not given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from ferrule.ir.expr import Expr, Variable, as_expr, as_int, sint
from ferrule.onnx.sizes import computed, settled, sizes_of, takes, varies

N = Variable("n", 2, 9)
VALUES = range(2, 10)
SIZES = [as_int(N * a + b) for a, b in product((-2, -1, 0, 1, 2), (-3, 0, 1, 5))]
REFERENCES: dict[str, Callable[[int, int], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "Min": min,
    "Max": max,
    "Equal": lambda a, b: a == b,
    "Less": lambda a, b: a < b,
    "Greater": lambda a, b: a > b,
    "LessOrEqual": lambda a, b: a <= b,
    "GreaterOrEqual": lambda a, b: a >= b,
}


def at(size: Any, value: int) -> int:
    """A size for a value of the variable."""
    if not isinstance(size, Expr):
        return int(size)
    found = as_int(size.substitute({N: as_expr(value)}))
    assert isinstance(found, int)
    return found


def can_be_known(operator: str, a: sint, b: sint) -> bool:
    """True if the result has one formula, or one truth value, for all values of the variable."""
    firsts, seconds = [[at(size, value) for value in VALUES] for size in (a, b)]
    if operator == "Div":  # ONNX rounds towards 0, and formulas down
        return min(firsts) >= 0 and min(seconds) > 0
    if operator == "Mod":
        return min(seconds) > 0
    if operator == "Equal":  # by bounds: 2 n - 3 may be 0 for all that they tell
        distances = [x - y for x, y in zip(firsts, seconds, strict=True)]
        return min(distances) > 0 or max(distances) < 0 or not any(distances)
    if operator in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        pairs = zip(firsts, seconds, strict=True)
        return len({REFERENCES[operator](x, y) for x, y in pairs}) == 1
    return True


@pytest.mark.parametrize("operator", REFERENCES)
def test_results_hold_for_each_size(operator: str) -> None:
    for a, b in product(SIZES, SIZES):
        found = computed(operator, [settled(a), settled(b)], {})
        assert (found is not None) == can_be_known(operator, a, b), (a, b)
        if found is not None:
            wanted = [REFERENCES[operator](at(a, value), at(b, value)) for value in VALUES]
            assert [at(found.flat[0], value) for value in VALUES] == wanted, (a, b)


def test_operators_of_one_or_three_operands() -> None:
    sizes = [settled(as_int(size)) for size in (N, 2 * N - 7, as_expr(5))]
    for operator, reference in (("Min", min), ("Max", max)):
        found = computed(operator, sizes, {})
        assert found is not None
        for n in VALUES:
            assert at(found.flat[0], n) == reference(n, 2 * n - 7, 5)
    negative = computed("Neg", sizes[:1], {})
    assert negative is not None
    assert [at(negative.flat[0], n) for n in VALUES] == [-n for n in VALUES]


@pytest.mark.parametrize("given", [{}, {"keepdims": 0}, {"keepdims": 1}])
@pytest.mark.parametrize("axes", [None, [0], [1], [0, 1]])
@pytest.mark.parametrize("as_input", [False, True])
def test_products_along_axes(given: dict[str, Any], axes: list[int] | None, as_input: bool) -> None:
    array = sizes_of([N, 2, N + 1, 1, N - 1, 3]).reshape(2, 3)
    inputs = [array]
    attributes = dict(given)
    if axes is not None and as_input:
        inputs.append(np.array(axes))
    elif axes is not None:
        attributes["axes"] = axes
    found = computed("ReduceProd", inputs, attributes)
    assert found is not None
    for n in VALUES:
        plain = np.array([[n, 2, n + 1], [1, n - 1, 3]])
        keeps = bool(given.get("keepdims", 1))
        wanted = plain.prod(None if axes is None else tuple(axes), keepdims=keeps)
        assert found.shape == wanted.shape
        np.testing.assert_array_equal([at(size, n) for size in found.flat], wanted.reshape(-1))


def test_a_product_along_no_axes() -> None:
    found = computed("ReduceProd", [sizes_of([N, 3])], {"noop_with_empty_axes": 1})
    assert found is not None
    assert [at(size, 5) for size in found] == [5, 3]


def test_choices_by_sizes_are_not_known() -> None:
    sizes = sizes_of([N, 3])
    found = computed("Where", [np.array([True, False]), sizes, np.array([7, 8])], {})
    assert found is not None
    assert [at(size, 5) for size in found] == [5, 8]
    assert computed("Where", [sizes, sizes, sizes], {}) is None


def test_what_takes_sizes() -> None:
    sizes, numbers = sizes_of([N, 3]), np.array([0])
    assert takes("Cast", [sizes], {"to": 7})
    assert not takes("Cast", [sizes], {"to": 1})  # float32
    assert takes("Gather", [sizes, numbers], {})
    assert not takes("Gather", [numbers, sizes], {})
    assert takes("Concat", [numbers, sizes], {})
    assert not takes("Relu", [sizes], {})
    assert varies(sizes)
    assert not varies(settled(np.array([2, 3], dtype=object)))
