"""Index arithmetic, simplified as it is built, means what Python's integers mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ferrule.ir.expr import (
    BOOL,
    TRUE,
    Expr,
    Variable,
    alu,
    as_expr,
    const,
    less,
    minimum,
    range_,
    step_along,
    substitute,
    weighted_sum,
)
from ferrule.ir.expr.base import ExprOp

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
RANGES = [range_(f"r{size}", size) for size in SIZES]
N = Variable("n", 1, 9)


@dataclass(frozen=True)
class Sample:
    """An expression, and how to compute it from the values of its leaves."""

    node: Expr
    compute: Callable[[dict[Expr, int]], int]


def leaves() -> st.SearchStrategy[Sample]:
    ranges = st.sampled_from([*RANGES, N]).map(lambda r: Sample(r, lambda env: env[r]))
    numbers = st.integers(-20, 20).map(lambda k: Sample(const(k), lambda env: k))
    return ranges | numbers


def grown(below: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    pairs = st.tuples(below, below)
    scaled = st.tuples(below, st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 64]))
    return st.one_of(
        pairs.map(
            lambda p: Sample(p[0].node + p[1].node, lambda e: p[0].compute(e) + p[1].compute(e))
        ),
        pairs.map(
            lambda p: Sample(p[0].node - p[1].node, lambda e: p[0].compute(e) - p[1].compute(e))
        ),
        pairs.map(
            lambda p: Sample(p[0].node * p[1].node, lambda e: p[0].compute(e) * p[1].compute(e))
        ),
        scaled.map(lambda p: Sample(p[0].node * p[1], lambda e: p[0].compute(e) * p[1])),
        scaled.map(lambda p: Sample(p[0].node // p[1], lambda e: p[0].compute(e) // p[1])),
        scaled.map(lambda p: Sample(p[0].node % p[1], lambda e: p[0].compute(e) % p[1])),
        below.map(lambda p: Sample(p.node // N, lambda e: p.compute(e) // e[N])),
        below.map(lambda p: Sample(p.node % N, lambda e: p.compute(e) % e[N])),
        pairs.map(
            lambda p: Sample(
                minimum(p[0].node, p[1].node), lambda e: min(p[0].compute(e), p[1].compute(e))
            )
        ),
    )


def samples() -> st.SearchStrategy[Sample]:
    return st.recursive(leaves(), grown, max_leaves=8)


def environments() -> st.SearchStrategy[dict[Expr, int]]:
    values = {r: st.integers(0, size - 1) for r, size in zip(RANGES, SIZES, strict=True)}
    return st.fixed_dictionaries({**values, N: st.integers(1, 9)})


def evaluate(node: Expr, env: dict[Expr, int]) -> int:
    replaced = node.substitute({leaf: const(value) for leaf, value in env.items()})
    assert replaced.is_const, f"{node} became {replaced}"
    return int(replaced.arg)


@given(samples(), environments())
@settings(max_examples=300, deadline=None)
def test_simplified_arithmetic_is_exact(sample: Sample, env: dict[Expr, int]) -> None:
    expected = sample.compute(env)
    low, high = sample.node.bounds()
    assert low <= expected <= high
    assert evaluate(sample.node, env) == expected


@given(samples(), samples(), environments())
@settings(max_examples=200, deadline=None)
def test_comparisons_are_exact(a: Sample, b: Sample, env: dict[Expr, int]) -> None:
    condition = less(a.node, b.node)
    assert condition.dtype is BOOL
    assert evaluate(condition, env) == int(a.compute(env) < b.compute(env))


@given(samples(), st.integers(-20, 20))
@settings(max_examples=300, deadline=None)
def test_a_number_that_is_added_comes_last_in_the_same_sum(sample: Sample, number: int) -> None:
    assert sample.node + number is weighted_sum([(sample.node, 1)], number)


@given(samples(), st.sampled_from(RANGES), environments())
@settings(max_examples=300, deadline=None)
def test_a_constant_step_is_that_of_all_places(
    sample: Sample, r: Expr, env: dict[Expr, int]
) -> None:
    step = step_along(sample.node, r)
    if step is not None:
        values = [evaluate(sample.node, env | {r: place}) for place in range(int(r.size.arg))]
        assert values == [values[0] + step * place for place in range(len(values))]


@given(samples(), samples(), samples(), environments())
@settings(max_examples=200, deadline=None)
def test_conditions_are_replaced_wherever_they_are(
    a: Sample, b: Sample, c: Sample, env: dict[Expr, int]
) -> None:
    """Together with ranges, or alone; what does not vary with their ranges stays as it is."""
    condition = less(a.node, b.node)
    assume(not condition.is_const)
    node = alu(ExprOp.WHERE, condition, c.node, b.node + 1) + c.node
    alone = substitute([node], {condition: TRUE})[0]
    assert evaluate(alone, env) == 2 * c.compute(env)
    fixed = substitute([node], {condition: TRUE, RANGES[-1]: const(env[RANGES[-1]])})[0]
    assert evaluate(fixed, env) == 2 * c.compute(env)
    assert substitute([c.node], {range_("other", 5): const(0)}) == [c.node]


@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_splitting_and_joining_an_index_is_nothing(sizes: list[int]) -> None:
    total = 1
    for size in sizes:
        total *= size
    whole = range_("whole", total)
    parts = []
    rest: Expr = whole
    for size in reversed(sizes):
        parts.append(rest % size)
        rest = rest // size
    joined = as_expr(0)
    for size, part in zip(sizes, reversed(parts), strict=True):
        joined = joined * size + part
    assert joined is (whole if total > 1 else const(0)) or joined is whole


def test_what_is_joined_again_is_no_term_of_its_own() -> None:
    """Places of a tile's rows that lie in two vectors of a copy: one sum, and a constant."""
    o, k, y = range_("o", 4), range_("k", 3), range_("y", 5)
    sums = []
    for i in range(8):
        place = o * 8 + k + i
        index = y * 48 + place // 16 * 16 + place % 16
        assert index is y * 48 + o * 8 + k + i
        terms, constant = index.linear()
        assert constant == i
        sums.append(terms)
    assert all(terms == sums[0] for terms in sums)


@pytest.mark.parametrize("size", [N, N * 4])
def test_what_is_joined_again_by_a_size_that_varies(size: Expr) -> None:
    i, j = range_("i", size * 64), range_("j", 3)
    quotient, remainder = i // size, i % size
    assert quotient * size + remainder is i
    assert remainder * 5 + j + 2 + quotient * size * 5 is i * 5 + j + 2
    for other in (quotient * size + remainder * 2, quotient * (size + 1) + remainder):
        assert other.ranges == {i}
        for n, place in ((1, 63), (4, 9), (9, 200)):
            known = as_expr(size).infer({N: n})
            q, r = divmod(place, known)
            expected = {q * known + 2 * r, q * (known + 1) + r}
            assert other.substitute({i: const(place)}).infer({N: n}) in expected


def test_sums_of_products_of_variables_have_values() -> None:
    m = Variable("m", 0, 50)
    for n, k in ((1, 0), (5, 50), (9, 7)):
        values = {N: n, m: k}
        for node, expected in (
            (N * m * 4 - m * 2 + 7, n * k * 4 - k * 2 + 7),
            ((N + m) * (N - m), n * n - k * k),
            (N * N * m, n * n * k),
            (minimum(N, m) * 2 + N // 3, min(n, k) * 2 + n // 3),
        ):
            assert as_expr(node).infer(values) == expected
        with pytest.raises(KeyError, match="m"):
            (N * m + 1).infer({N: n})
        with pytest.raises(ValueError, match="cannot be 10"):
            (N * m + 1).infer({N: 10, m: k})
