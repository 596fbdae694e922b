"""Polyphase sums: only every s-th term is not zero, as in the adjoint of a window that moves by s.

There the place x of a result gets a part from tap k if x - k is a multiple of s. With x = s*q + p,
all taps of one *phase* p are k = s*t + p: no division, no remainder and no zero term is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import pairwise
from math import gcd, isfinite

from ferrule.base.records import dataclass
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, ExprOp, conjuncts, const, range_, toposort, within


def strides_of(value: Expr, ranges: Sequence[Expr]) -> dict[Expr, int]:
    """The ranges whose remainder decides which terms count, each with its divisor."""
    found: dict[Expr, set[int]] = {}
    for remainder in _remainders([value]):
        for r in ranges:
            if _has_phases(remainder, r):
                found.setdefault(r, set()).add(remainder.src[1].arg)
    return {r: steps.pop() for r, steps in found.items() if len(steps) == 1}


def _has_phases(remainder: Expr, r: Expr) -> bool:
    """True if a remainder goes through all its values, more than once, along a range."""
    terms, _ = remainder.src[0].linear()
    return terms.get(r) == 1 and r.size.is_const and r.size.arg > remainder.src[1].arg


def digits_of(value: Expr, ranges: Sequence[Expr]) -> dict[Expr, tuple[int, ...]]:
    """The ranges that a sum uses only by quotients and remainders, each with the divisors, largest
    first.

    Each divisor divides the one before it. Examples are the filters of all groups of a convolution,
    and the channels and places of one that is stored in a line.
    """
    found: dict[Expr, set[int]] = {}
    nodes = toposort([value])
    if any(e.op is ExprOp.STAGE for e in nodes):
        return {}
    for e in toposort([e.src[0] for e in nodes if e.op is ExprOp.REDUCE]):
        if e.op is ExprOp.IDIV and e.src[0] in ranges and e.src[1].is_const:
            found.setdefault(e.src[0], set()).add(e.src[1].arg)
    falling = {r: tuple(sorted(divisors, reverse=True)) for r, divisors in found.items()}
    return {r: divisors for r, divisors in falling.items() if _divide(r.size, divisors)}


def _divide(size: Expr, divisors: Sequence[int]) -> bool:
    """True if the first divisor divides a size, and each later one the divisor before it."""
    if not size.is_const:
        return False
    return all(n % m == 0 for n, m in pairwise((size.arg, *divisors)))


@dataclass(frozen=True)
class NonzeroTerms:
    """The terms of a sum that are not zero, by a range shorter than that of the sum."""

    counter: Expr
    """The shorter range; 0 if one term is left."""
    index: Expr
    """The index of the term."""
    inside: Expr
    """The condition that there is such a term."""


def nonzero_terms(body: Expr, r: Expr, phased: Set[Expr] = frozenset()) -> NonzeroTerms | None:
    """The terms of a sum over `r` that are not zero.

    None if no remainder decides it, or only one with too many values; nor if one of the ranges
    `phased` decides it, which are to be divided into phases first. Else bounds would depend on both
    that range and the counter of terms, and neither factor of a product could go without them.
    """
    for condition in _divisibilities([body]):
        remainder = condition.src[0]
        rest, constant = remainder.src[0].linear()
        step, number = rest.get(r, 0), int(remainder.src[1].arg)
        others = {x: c for x, c in rest.items() if x is not r}
        if gcd(step, number) != 1 or any(r in x.ranges for x in others) or not r.size.is_const:
            continue
        if any(x in phased and _has_phases(remainder, x) for x in others):
            continue
        if not is_zero_without(condition, body):
            continue
        # step*r + others = 0 modulo number  <=>  r = inverse * others modulo number
        inverse = pow(-step, -1, number)
        inverse -= number if inverse > number // 2 else 0
        first = sum((x * (c * inverse) for x, c in others.items()), const(constant * inverse))
        before = first.max // number
        size = (r.size.arg - 1 - first.min) // number + before + 1
        if size > r.size.arg:
            continue
        counter = range_(f"{r.name}t", size) if size > 1 else const(0)
        index = (counter - before) * number + first
        return NonzeroTerms(counter, index, within(index, r.size))
    return None


def is_zero_without(condition: Expr, value: Expr) -> bool:
    """True if a value is 0 wherever a condition does not hold, whatever its loads give."""
    zero: set[Expr] = set()
    for e in toposort([value]):
        match e.op:
            case ExprOp.CONST:
                is_zero = e.arg == 0
            case ExprOp.LOAD:
                is_zero = all(condition in conjuncts(valid) for valid in e.src[1::2])
            case ExprOp.WHERE:
                asked = condition in conjuncts(e.src[0])
                is_zero = e.src[2] in zero and (asked or e.src[1] in zero)
            case ExprOp.MUL:
                is_zero = _is_zero_product(e.src, zero)
            case ExprOp.MULACC:
                is_zero = e.src[2] in zero and _is_zero_product(e.src[:2], zero)
            case ExprOp.ADD | ExprOp.SUB | ExprOp.MIN | ExprOp.MAX:
                is_zero = all(term in zero for term in e.src)
            case ExprOp.CAST | ExprOp.NEG | ExprOp.TRUNC | ExprOp.SQRT:
                is_zero = e.src[0] in zero
            case ExprOp.REDUCE:
                name, ranges = e.arg
                apart = condition.ranges.isdisjoint(ranges)
                is_zero = name in ("sum", "max") and apart and e.src[0] in zero
            case _:
                is_zero = False
        if is_zero:
            zero.add(e)
    return value in zero


def _is_zero_product(factors: Sequence[Expr], zero: Set[Expr]) -> bool:
    """True if a factor is 0 and the others are finite: 0 times infinity, or NaN, is NaN."""
    others = [factor for factor in factors if factor not in zero]
    return len(others) < len(factors) and all(_is_finite(factor) for factor in others)


def _is_finite(e: Expr) -> bool:
    if not dtypes.is_float(e.dtype):
        return True
    if e.op is ExprOp.CONST:
        return isfinite(e.arg)
    if e.op is ExprOp.WHERE:
        return all(_is_finite(choice) for choice in e.src[1:])
    return e.op is ExprOp.CAST and not dtypes.is_float(e.src[0].dtype)


def _remainders(values: Iterable[Expr]) -> Iterator[Expr]:
    """The remainders that some conditions in these values compare with 0."""
    return (condition.src[0] for condition in _divisibilities(values))


def _divisibilities(values: Iterable[Expr]) -> Iterator[Expr]:
    """The conditions in these values that a remainder by a constant is 0."""
    for e in toposort(values):
        wanted = e.op is ExprOp.CMPLT and e.src[0].op is ExprOp.MOD and e.src[1] is const(1)
        if wanted and e.src[0].src[1].is_const:
            yield e
