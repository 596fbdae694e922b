"""Injective stores: the part of a buffer that an iteration of a loop stores to, as a digit of the
elements' numbers.

If a nest stores at a loaded index, iterations may store to one place, and their order counts. Loops
along other axes are free of that: their iterations store to different elements, whatever the index
is.
"""

from __future__ import annotations

from collections.abc import Iterable

from ferrule.codegen.kernel import Store
from ferrule.ir.expr import Expr, ExprOp, conjuncts, const, range_

Digit = tuple[int, int]


def owned_digit(store: Store, r: Expr) -> Digit | None:
    """(step, size) if iteration i stores only to elements with `number // step % size == i`.

    >>> i, j = range_("i", 5), range_("j", 4)
    >>> owned_digit(Store(0, i * 4 + j), j), owned_digit(Store(0, i * 2 + j), j)
    ((1, 4), None)
    """
    return _digit(store.index, conjuncts(store.valid), r)


def is_injective(store: Store, r: Expr) -> bool:
    """True if different iterations of a loop store to different elements.

    A fused loop does so if each of its parts does.
    """
    conditions = conjuncts(store.valid)
    terms, _ = store.index.linear()
    found = {part: x for x in terms if (part := _part_of(x, r)) is not None}
    end = 1
    for step, size in sorted(found):
        if step != end or not _is_injective_part(store.index, conditions, found[step, size]):
            return False
        end = step * size
    return end > r.max


def is_injective_index(index: Expr, r: Expr) -> bool:
    """True if an index differs in all iterations of a loop, by steps that may be products of sizes.

    It says less than `is_injective`: nothing about the other loops. A buffer with symbolic sizes
    has a place of its own for each value of the ranges in its index.

    >>> from ferrule.ir.expr import Variable
    >>> i, n = range_("i", 6), Variable("n", 1, 9)
    >>> is_injective_index(i // 2 * n + i % 2 * 5, i), is_injective_index(i // 2 * n, i)
    (True, False)
    """
    terms, _ = index.linear()
    found = {part for x in terms if (part := _part_of(_without_sizes(x), r)) is not None}
    end = 1
    for step, size in sorted(found):
        if step == end:
            end = step * size
    return end > r.max


def _without_sizes(x: Expr) -> Expr:
    """A product without its factors that are sizes, if these are not 0."""
    while x.op is ExprOp.MUL:
        sizes = [s for s in x.src if not s.ranges and s.min > 0]
        if len(sizes) != 1:
            break
        (x,) = [s for s in x.src if s is not sizes[0]]
    return x


def _part_of(x: Expr, r: Expr) -> Digit | None:
    """The digit of a range that a value is: `r // 4 % 3` has step 4 and size 3. None if it is no
    digit.
    """
    if x is r:
        return 1, r.max + 1
    if x.op not in (ExprOp.IDIV, ExprOp.MOD) or not x.src[1].is_const:
        return None
    inner = _part_of(x.src[0], r)
    if inner is None:
        return None
    (step, size), n = inner, int(x.src[1].arg)
    return (step * n, -(-size // n)) if x.op is ExprOp.IDIV else (step, n)


def _is_injective_part(index: Expr, conditions: list[Expr], part: Expr) -> bool:
    mine = None
    for whole, together, step in _groups(index, conditions):
        if mine is None and part in together.linear()[0]:
            mine = whole, together
        index = index - together * const(step) + whole * step
    if mine is None:
        return _digit(index, conditions, part) is not None
    whole, together = mine
    return bool(_digit(index, conditions, whole) and _digit(together, (), part))


def _digit(index: Expr, conditions: Iterable[Expr], r: Expr) -> Digit | None:
    """The range `r` as a digit of an index: terms above it are multiples, those below are less than
    its step.
    """
    terms, first = index.linear()
    step = terms.get(r, 0)
    size = r.max + 1
    if step <= 0 or r.min != 0:
        return None
    low = high = first if first % (step * size) else 0
    for x, c in terms.items():
        if x is r or c % (step * size) == 0:
            continue
        least, most = _bounds(x, conditions)
        low += min(c * least, c * most)
        high += max(c * least, c * most)
    return (step, size) if 0 <= low and high < step else None


def _bounds(x: Expr, conditions: Iterable[Expr]) -> tuple[int, int]:
    """The least and the most that a value is where some conditions hold."""
    low, high = x.min, x.max
    for condition in conditions:
        if condition.op is not ExprOp.CMPLT or not condition.src[1].is_const:
            continue
        bound = int(condition.src[1].arg)
        if condition.src[0] is x:
            high = min(high, bound - 1)
        if condition.src[0] is x * -1:
            low = max(low, 1 - bound)
    return low, high


def _groups(index: Expr, conditions: Iterable[Expr]) -> list[tuple[Expr, Expr, int]]:
    """The parts of loops that were split: a condition bounds their sum.

    Each is given as a range for the whole, the sum of its parts, and the step of that in the index.
    """
    terms, _ = index.linear()
    out = []
    for number, condition in enumerate(conditions):
        if condition.op is not ExprOp.CMPLT or not condition.src[1].is_const:
            continue
        parts, first = condition.src[0].linear()
        steps = {terms.get(x, 0) // c for x, c in parts.items()}
        exact = all(terms.get(x, 0) % c == 0 for x, c in parts.items())
        if len(parts) > 1 and len(steps) == 1 and exact and min(steps) > 0 and not first:
            whole = range_(f"whole{number}", int(condition.src[1].arg))
            out.append((whole, condition.src[0], min(steps)))
    return out
