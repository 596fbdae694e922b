"""Sums of sums as one sum, and sums of masked terms.

A mask on every term would prevent the use of multiply-add instructions. In a product it is enough
if one factor's load is masked.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import TRUE, Expr, ExprOp, all_of, conjuncts, const, load, select, uncast

_MAX_TAPS = 512  # combinations of a window's taps that are tried; not measured


@dataclass(frozen=True)
class Sum:
    """A sum of `term`, over `ranges` in addition to its own.

    The term is 0 where `condition` fails, if all elements of the `finite` slots are finite.
    """

    term: Expr
    ranges: tuple[Expr, ...] = ()
    condition: Expr = TRUE
    finite: frozenset[int] = frozenset()

    @property
    def exact(self) -> Expr:
        """The term for any elements."""
        return select(self.condition, self.term, const(0, self.term.dtype))


def one_sum(body: Expr, dtype: DType, known: Mapping[Expr, Sum]) -> Sum:
    """A sum of such a body, without sums and conditions inside if that is possible.

    A sum of a sum becomes one sum. `known` has the sums that need finite slots, by their terms.

    A term that counts only under conditions loses these if they can be the mask of a factor's load.
    The product is 0 where that load is masked, and the other factor needs no mask if it is finite.
    A mask for it would make register tiles several times slower. If it is not finite, such as a
    filter with an infinity in the adjoint of a convolution, the terms of the border would be NaN,
    though the graph has no such terms. `guards.py` checks for that, and sums the exact terms then.
    """
    ranges: tuple[Expr, ...] = ()
    conditions, term = _conditions(body)
    if term.op is ExprOp.REDUCE and term.arg[0] == "sum" and term.dtype is dtype:
        ranges = term.arg[1]
        term = term.src[0]
    if not conditions:
        return Sum(term, ranges)
    inside = known.get(term, Sum(term))
    before = _factors(term)
    for condition in reversed(conditions):
        product = _under(term, condition)
        if product is None:
            return Sum(body)
        term = product
    unmasked = [e for e in _factors(term) if e not in before and dtypes.is_float(e.dtype)]
    condition = all_of([*conditions, inside.condition])
    return Sum(term, ranges, condition, inside.finite.union(e.arg for e in unmasked))


def _conditions(term: Expr) -> tuple[list[Expr], Expr]:
    """The conditions under which a term counts, and the term."""
    conditions = []
    while term.op is ExprOp.WHERE and term.src[2] is const(0, term.dtype):
        conditions.append(term.src[0])
        term = term.src[1]
    return conditions, term


def _factors(product: Expr) -> list[Expr]:
    return [uncast(e) for e in product.src]


def _under(product: Expr, condition: Expr) -> Expr | None:
    """A product of two loads, perhaps cast, that is 0 where a condition fails, with one of them
    masked.

    None if it is no such product.
    """
    factors = _factors(product)
    if product.op is not ExprOp.MUL or any(e.op is not ExprOp.LOAD for e in factors):
        return None
    parts = set(conjuncts(condition))
    for masked, other in (factors, factors[::-1]):
        # In a square both factors are one load, which would lose its mask.
        if masked is other or not parts <= set(conjuncts(masked.src[1])):
            continue
        if all(is_free(part, parts, other.src[0].ranges) for part in parts):
            rest = all_of(part for part in conjuncts(other.src[1]) if part not in parts)
            unmasked = load(other.arg, other.dtype, other.src[0], rest)
            return product.substitute({other: unmasked})
    return None


def is_free(part: Expr, parts: set[Expr], given: frozenset[Expr]) -> bool:
    """True if for all values of the given ranges some value of another range fulfils a condition.

    It must fulfil the conditions that share that range too. An index of the given ranges is then in
    bounds without the condition.
    """
    free = part.ranges - given
    if len(free) != 1:
        return False
    (r,) = free
    related = [p for p in parts if r in p.ranges]
    taken = sorted({x for p in related for x in p.ranges} - free, key=lambda x: x.rank)
    sizes = [x.size for x in (r, *taken)]
    linear = all(p.op is ExprOp.CMPLT for p in related)
    if not linear or any(not n.is_const for n in sizes):
        return False
    terms = [(p.src[0] - p.src[1]).linear() for p in related]
    if any(atom not in (r, *taken) for t, _ in terms for atom in t):
        return False
    if prod(n.arg for n in sizes[1:]) > _MAX_TAPS:
        return False
    for values in itertools.product(*(range(n.arg) for n in sizes[1:])):
        at = dict(zip(taken, values, strict=True))
        low, high = 0, sizes[0].arg - 1
        for t, constant in terms:  # step * r + base < 0
            step = t[r]
            base = constant + sum(c * at[x] for x, c in t.items() if x is not r)
            if step > 0:
                high = min(high, (-base - 1) // step)
            else:
                low = max(low, base // -step + 1)
        if low > high:
            return False
    return True
