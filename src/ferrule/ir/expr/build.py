"""Construction of expressions: simplified at once, so that equal values are mostly one node.

Integer index arithmetic (`+ - * // %` and comparisons) is kept in a normal form: a sum of
`coefficient * atom` and a constant, with floor division and modulo simplified by the bounds of
their operands.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from numbers import Integral
from typing import Any, Final, Union

from ferrule.ir.dtype import DType, truncate
from ferrule.ir.expr.base import (
    BOOL,
    INDEX,
    ExprOp,
    bounds_of_terms,
    conjuncts,
    factors,
    small_part,
    toposort,
)
from ferrule.ir.expr.numbers import Number, by_value, compared
from ferrule.ir.expr.printing import render


class Expr(Number):
    """A node together with the operators and functions that make new ones of it.

    Operators with integers give expressions, with other numbers what `Number` says.
    """

    __slots__ = ()

    src: tuple[Expr, ...]
    ranges: frozenset[Expr]

    def __add__(self, other: sint) -> Expr:
        b = _term(other, self)
        return by_value(operator.add, self, other) if b is None else index_add(self, b)

    __radd__ = __add__

    def __sub__(self, other: sint) -> Expr:
        b = _term(other, self)
        return by_value(operator.sub, self, other) if b is None else index_sub(self, b)

    def __rsub__(self, other: int) -> Expr:
        a = _term(other, self)
        return by_value(operator.sub, other, self) if a is None else index_sub(a, self)

    def __mul__(self, other: sint) -> Expr:
        b = _term(other, self)
        return by_value(operator.mul, self, other) if b is None else index_mul(self, b)

    __rmul__ = __mul__

    def __abs__(self) -> Expr:
        return self if self.min >= 0 else -minimum(self, -self)

    def __floordiv__(self, other: sint) -> Expr:
        b = _term(other, self)
        return by_value(operator.floordiv, self, other) if b is None else index_div(self, b)

    def __rfloordiv__(self, other: int) -> Expr:
        a = _term(other, self)
        return by_value(operator.floordiv, other, self) if a is None else index_div(a, self)

    def __mod__(self, other: sint) -> Expr:
        b = _term(other, self)
        return by_value(operator.mod, self, other) if b is None else index_mod(self, b)

    def __rmod__(self, other: int) -> Expr:
        a = _term(other, self)
        return by_value(operator.mod, other, self) if a is None else index_mod(a, self)

    def __lt__(self, other: sint) -> Expr:
        b = operand(other)
        return compared(operator.lt, self, other, math.ceil) if b is None else less(self, b)

    def __gt__(self, other: sint) -> Expr:
        b = operand(other)
        return compared(operator.gt, self, other, math.floor) if b is None else less(b, self)

    def __le__(self, other: sint) -> Expr:
        b = operand(other)
        return compared(operator.le, self, other, math.floor) if b is None else less(self, b + 1)

    def __ge__(self, other: sint) -> Expr:
        b = operand(other)
        return compared(operator.ge, self, other, math.ceil) if b is None else less(b - 1, self)

    def __and__(self, other: Expr) -> Expr:
        if self.dtype is BOOL and isinstance(other, Expr) and other.dtype is BOOL:
            return both(self, other)
        return by_value(operator.and_, self, other)  # type: ignore[no-any-return]

    __rand__ = __and__

    def __repr__(self) -> str:
        return render(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr, (self.op, self.dtype, self.src, self.arg))

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    def vars(self) -> set[Expr]:
        """The variables below, unbound."""
        return {node for node in toposort([self]) if node.op is ExprOp.VARIABLE}

    def substitute(self, mapping: Mapping[Expr, Expr]) -> Expr:
        """The expression with some nodes replaced, simplified again on the way up."""
        return substitute([self], mapping)[0]


sint = Union[int, Expr]  # noqa: UP007 - a type alias that also works in annotations evaluated late
Node = Expr


# -- leaves ----------------------------------------------------------------------------------------

_small: dict[int, Expr] = {}


def const(value: float | bool, dtype: DType = INDEX) -> Expr:
    """A literal of a dtype, as the dtype would hold it."""
    if dtype is INDEX:
        found = _small.get(value)  # type: ignore[arg-type]
        if found is not None:
            return found
        node = Expr(ExprOp.CONST, INDEX, (), operator.index(value))  # type: ignore[arg-type]
        if len(_small) < 4096:
            _small[node.arg] = node
        return node
    return Expr(ExprOp.CONST, dtype, (), truncate(dtype, value))


TRUE: Final = Expr(ExprOp.CONST, BOOL, (), True)
FALSE: Final = Expr(ExprOp.CONST, BOOL, (), False)


def as_expr(value: sint) -> Expr:
    """An index expression from an int or an expression."""
    return value if isinstance(value, Expr) else const(value)


def operand(value: Any) -> Expr | None:
    """An index expression from an integer or an expression; None for anything else."""
    if isinstance(value, Expr):
        return value
    return const(int(value)) if isinstance(value, Integral) else None


def _term(value: Any, other: Expr) -> Expr | None:
    """`operand` for arithmetic, in which conditions count by value, as 0 or 1."""
    found = operand(value)
    return None if found is None or BOOL in (found.dtype, other.dtype) else found


def as_int(value: sint) -> sint:
    """An int where the expression is a constant; NumPy's integers become ints too."""
    if isinstance(value, int):
        return value
    if isinstance(value, Expr):
        return int(value.arg) if value.is_const else value
    if not hasattr(value, "__index__"):
        raise TypeError(f"a size is a whole number, not {value!r}")
    return value.__index__()


def range_(name: str, size: sint) -> Expr:
    """A loop counter from 0 to size-1."""
    return Expr(ExprOp.RANGE, INDEX, (as_expr(size),), name)


# -- index arithmetic ------------------------------------------------------------------------------


def index_add(a: Expr, b: Expr) -> Expr:
    """`a + b` in normal form."""
    if a.op is ExprOp.CONST and b.op is ExprOp.CONST:
        return const(a.arg + b.arg)
    if b.op is ExprOp.CONST:
        return _plus_constant(a, b.arg)
    if a.op is ExprOp.CONST:
        return _plus_constant(b, a.arg)
    return weighted_sum(((a, 1), (b, 1)))


def _plus_constant(a: Expr, constant: int) -> Expr:
    """A sum with another constant, which comes last."""
    if a.op is ExprOp.ADD and a.src[1].op is ExprOp.CONST:
        a, constant = a.src[0], a.src[1].arg + constant
    return a if constant == 0 else Expr(ExprOp.ADD, INDEX, (a, const(constant)))


def index_sub(a: Expr, b: Expr) -> Expr:
    """`a - b` in normal form."""
    if b.op is ExprOp.CONST:
        return index_add(a, const(-b.arg))
    return weighted_sum(((a, 1), (b, -1)))


def weighted_sum(parts: Iterable[tuple[Expr, int]], constant: int = 0) -> Expr:
    """The sum of `part * weight` and a constant, in normal form."""
    terms: dict[Expr, int] = {}
    for part, weight in parts:
        more, plus = part.linear()
        constant += plus * weight
        for atom, coefficient in more.items():
            terms[atom] = terms.get(atom, 0) + coefficient * weight
    return _from_linear(terms, constant)


def index_mul(a: Expr, b: Expr) -> Expr:
    """`a * b`; a product with a constant is distributed over the sum."""
    if a.op is ExprOp.CONST:
        a, b = b, a
    if b.op is ExprOp.CONST:
        factor = int(b.arg)
        if a.op is ExprOp.CONST:
            return const(a.arg * factor)
        if factor == 1:
            return a
        if factor == 0:
            return const(0)
        terms, constant = a.linear()
        return _from_linear({x: c * factor for x, c in terms.items()}, constant * factor)
    if a.op is ExprOp.ADD or b.op is ExprOp.ADD:  # distribute: sizes may be symbolic
        left, left_constant = a.linear()
        right, right_constant = b.linear()
        out = b * left_constant + a * right_constant - const(left_constant * right_constant)
        for x, c in left.items():
            for y, d in right.items():
                out = out + _product(x, y) * (c * d)
        return out
    left, _ = a.linear()
    right, _ = b.linear()
    ((x, c),) = left.items()
    ((y, d),) = right.items()
    return _product(x, y) * (c * d)


def _product(x: Expr, y: Expr) -> Expr:
    """A product of atoms, flat and in one order."""
    ordered = sorted([*factors(x), *factors(y)], key=lambda f: f.rank)
    return reduce(lambda p, f: Expr(ExprOp.MUL, INDEX, (p, f)), ordered)


def _from_linear(terms: dict[Expr, int], constant: int) -> Expr:
    """The normal form: the largest coefficients first, the constant last."""
    order: Iterable[Expr] = terms
    if len(terms) > 1:
        constant += _recombine(terms)
        sizes = [abs(c) for c in terms.values()]
        if len(set(sizes)) == len(sizes):  # a rank takes longer
            order = [atom for _, atom in sorted(zip(sizes, terms, strict=True), reverse=True)]
        else:
            order = sorted(terms, key=lambda a: (-abs(terms[a]), a.rank))
    return _sum_of([(atom, terms[atom]) for atom in order if terms[atom]], constant)


def _sum_of(terms: list[tuple[Expr, int]], constant: int) -> Expr:
    """The sum of terms in the order of the normal form, none of them 0."""
    out: Expr | None = None
    for atom, coefficient in terms:
        term = atom if coefficient == 1 else Expr(ExprOp.MUL, INDEX, (atom, const(coefficient)))
        out = term if out is None else Expr(ExprOp.ADD, INDEX, (out, term))
    if out is None:
        return const(constant)
    if constant:
        out = Expr(ExprOp.ADD, INDEX, (out, const(constant)))
    out.set_linear(terms, constant)
    return out


def _recombine(terms: dict[Expr, int]) -> int:
    """`(x // n) * n + x % n -> x`, wherever both halves are there with matching coefficients.

    Returned is the constant that such an x adds: the terms of all sums are their atoms alone.
    """
    constant = 0
    changed = True
    while changed:
        changed = False
        for atom in [a for a in terms if a.op is ExprOp.MOD]:
            x, n = atom.src
            coefficient = terms[atom]
            found = _whole_parts(x, n, coefficient, terms)
            if found is not None:
                del terms[atom]
                del terms[found]
                more, part = x.linear()
                constant += part * coefficient
                for node, times in more.items():
                    terms[node] = terms.get(node, 0) + times * coefficient
                changed = True
                break
    return constant


def _whole_parts(x: Expr, n: Expr, times: int, terms: dict[Expr, int]) -> Expr | None:
    """The term that is `times * (x // n) * n`, if there is one."""
    if n.is_const:
        wanted = times * n.arg
        if not times or wanted not in terms.values():  # the quotient takes longer
            return None
        quotient = index_div(x, n)
        is_there = quotient.op is not ExprOp.CONST and terms.get(quotient) == wanted
        return quotient if is_there else None
    terms_of_n, rest = n.linear()
    if not times or len(terms_of_n) != 1 or rest:
        return None
    ((factor, count),) = terms_of_n.items()
    product = _product(Expr(ExprOp.IDIV, INDEX, (x, n)), factor)
    return product if terms.get(product) == times * count else None


def minimum(a: sint, b: sint) -> Expr:
    """The smaller index."""
    a, b = as_expr(a), as_expr(b)
    if a is b or a.max <= b.min:
        return a
    if b.max <= a.min:
        return b
    return Expr(ExprOp.MIN, INDEX, (a, b))


def exclusive_or(a: Expr, b: Expr) -> Expr:
    """The bits in which two indices, neither of them negative, differ."""
    if a.is_const and b.is_const:
        return const(a.arg ^ b.arg)
    if a.bounds() == (0, 0):
        return b
    return a if b.bounds() == (0, 0) else Expr(ExprOp.XOR, INDEX, (a, b))


# -- division --------------------------------------------------------------------------------------


def index_div(a: Expr, b: Expr) -> Expr:
    """`a // b`, floored; b is positive."""
    if b.op is not ExprOp.CONST:
        return _symbolic_div(a, b)
    n = int(b.arg)
    if n == 0:
        raise ZeroDivisionError(f"index {a} is divided by 0")
    if a.op is ExprOp.CONST:
        return const(a.arg // n)
    if n == 1:
        return a
    if n < 0:
        return Expr(ExprOp.IDIV, INDEX, (a, b))
    terms, constant = a.linear()
    quotient = {x: c // n for x, c in terms.items() if c % n == 0}
    rest = {x: c for x, c in terms.items() if c % n}
    whole, constant = divmod(constant, n)
    low, high = bounds_of_terms(rest.items(), constant)
    if low // n == high // n:
        return _from_linear(quotient, whole + low // n)
    found = small_part(rest, constant, n)
    if found is not None:
        g, small = found
        inner = _from_linear({x: c // g for x, c in rest.items() if x not in small}, constant // g)
        part = index_div(inner, const(n // g))
    else:
        inner = _from_linear(dict(rest), constant)
        if inner.op is ExprOp.IDIV and inner.src[1].is_const:
            part = index_div(inner.src[0], const(inner.src[1].arg * n))
        else:
            part = Expr(ExprOp.IDIV, INDEX, (inner, b))
    return index_add(_from_linear(quotient, whole), part)


def index_mod(a: Expr, b: Expr) -> Expr:
    """`a % b`, floored; b is positive."""
    if b.op is not ExprOp.CONST:
        return _symbolic_mod(a, b)
    n = int(b.arg)
    if n == 0:
        raise ZeroDivisionError(f"index {a} is taken modulo 0")
    if a.op is ExprOp.CONST:
        return const(a.arg % n)
    if n == 1:
        return const(0)
    if n < 0:
        return Expr(ExprOp.MOD, INDEX, (a, b))
    terms, constant = a.linear()
    rest: dict[Expr, int] = {}
    for x, c in terms.items():
        if c % n == 0:
            continue
        if x.op is ExprOp.MOD and x.src[1].is_const and (c * x.src[1].arg) % n == 0:
            more, plus = x.src[0].linear()  # (x % (n*m)) % n -> x % n
            for y, d in more.items():
                rest[y] = rest.get(y, 0) + c * d
            constant += plus * c
            continue
        rest[x] = rest.get(x, 0) + c
    rest = {x: c for x, c in rest.items() if c % n}
    constant %= n
    low, high = bounds_of_terms(rest.items(), constant)
    if low // n == high // n:
        return _from_linear(rest, constant - (low // n) * n)
    found = small_part(rest, constant, n)
    if found is not None:
        g, small = found
        inner = _from_linear({x: c // g for x, c in rest.items() if x not in small}, constant // g)
        return index_add(
            index_mul(index_mod(inner, const(n // g)), const(g)),
            _from_linear(dict(small), constant % g),
        )
    return Expr(ExprOp.MOD, INDEX, (_from_linear(rest, constant), b))


def _symbolic_div(a: Expr, b: Expr) -> Expr:
    a, b, _ = _cancelled(a, b)
    if b.is_const:
        return index_div(a, b)
    if len(b.linear()[0]) != 1 or b.linear()[1]:
        return const(0) if _within(a, b) else Expr(ExprOp.IDIV, INDEX, (a, b))
    quotient, rest = _split_by_factor(a, b)
    if _within(rest, b):
        return quotient
    return quotient + Expr(ExprOp.IDIV, INDEX, (rest, b))


def _symbolic_mod(a: Expr, b: Expr) -> Expr:
    a, b, common = _cancelled(a, b)
    if b.is_const:
        return index_mod(a, b) * common
    if len(b.linear()[0]) != 1 or b.linear()[1]:
        return (a if _within(a, b) else Expr(ExprOp.MOD, INDEX, (a, b))) * common
    _, rest = _split_by_factor(a, b)
    return (rest if _within(rest, b) else Expr(ExprOp.MOD, INDEX, (rest, b))) * common


def _cancelled(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr]:
    """Two expressions without the factors of all their terms, and the product of these.

    A divisor is not 0, so none of its factors is. `16*n, 4*n -> 4, 1, 4*n`
    """
    if a is b:
        return const(1), const(1), b
    (left, plus), (right, more) = a.linear(), b.linear()
    if plus or more:
        return a, b, const(1)
    shared = reduce(operator.and_, [Counter(factors(atom)) for atom in (*left, *right)])
    number = math.gcd(*left.values(), *right.values())
    parts = [
        weighted_sum([(_without(atom, shared), c // number) for atom, c in terms.items()])
        for terms in (left, right)
    ]
    return parts[0], parts[1], reduce(index_mul, shared.elements(), const(number))


def _without(atom: Expr, by: Counter[Expr]) -> Expr:
    """A product without some of its factors."""
    return reduce(index_mul, (Counter(factors(atom)) - by).elements(), const(1))


def _split_by_factor(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`a` as `q * b + rest`, for a b of one term."""
    ((divisor, times),) = b.linear()[0].items()
    by = Counter(factors(divisor))
    terms, constant = a.linear()
    quotient: list[tuple[Expr, int]] = []
    rest: list[tuple[Expr, int]] = []
    for atom, coefficient in terms.items():
        whole, left = (
            divmod(coefficient, times) if by <= Counter(factors(atom)) else (0, coefficient)
        )
        if whole:
            quotient.append((_without(atom, by), whole))
        rest.append((atom, left))
    return weighted_sum(quotient), weighted_sum(rest, constant)


def _within(a: Expr, b: Expr) -> bool:
    """True if 0 <= a < b is certain."""
    return (a.min >= 0 and (b - a).min > 0) or (a.op is ExprOp.RANGE and a.size is b)


# -- conditions ------------------------------------------------------------------------------------


def less(a: Expr, b: Expr) -> Expr:
    """`a < b`, decided where the bounds decide it."""
    difference = a - b
    low, high = difference.bounds()
    if high < 0:
        return TRUE
    if low >= 0:
        return FALSE
    terms, constant = difference.linear()
    found = small_part(terms, constant, 0)
    if found is not None:  # g*x + small + c < 0  <=>  x < ceil(-c / g), as small + c % g < g
        g, small = found
        terms = {x: c // g for x, c in terms.items() if x not in small}
        constant //= g
    return Expr(ExprOp.CMPLT, BOOL, (_from_linear(dict(terms), 0), const(-constant)))


def both(a: Expr, b: Expr) -> Expr:
    """`a and b`, flat, without repeats, in one order."""
    if a is TRUE:
        return b
    if b is TRUE or a is b:
        return a
    if a is FALSE or b is FALSE:
        return FALSE
    parts = {*conjuncts(a), *conjuncts(b)}
    ordered = sorted(parts, key=lambda p: p.rank)
    return reduce(lambda x, y: Expr(ExprOp.AND, BOOL, (x, y)), ordered)


def within(index: Expr, size: sint) -> Expr:
    """`0 <= index < size`."""
    return both(less(const(-1), index), less(index, as_expr(size)))


def all_of(conditions: Iterable[Expr]) -> Expr:
    """The conjunction."""
    return reduce(both, conditions, TRUE)


# -- replacing ------------------------------------------------------------------------------------


VALUES: Final[dict[ExprOp, Callable[[Expr, tuple[Expr, ...]], Expr]]] = {}
"""How operations on values are built again of other operands, where that can simplify them; the
module `values` fills it."""


def substitute(
    roots: Sequence[Expr], mapping: Mapping[Expr, Expr], done: dict[Expr, Expr] | None = None
) -> list[Expr]:
    """The roots with some nodes replaced; shared parts stay shared.

    `done` has what became of other nodes with the same mapping, and is added to.
    """
    done = {} if done is None else done
    done |= mapping
    if not all([_is_found_by_ranges(node) for node in mapping]):
        return _substitute_nodes(roots, done)
    # Only nodes that vary with some of the replaced node's ranges can contain it.
    ranges = frozenset([r for node in mapping for r in node.ranges])
    stack = [root for root in roots if not ranges.isdisjoint(root.ranges)]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        is_sum = node.dtype is INDEX and node.op is ExprOp.ADD
        terms, constant = node.linear() if is_sum else (node.src, 0)
        missing = [s for s in terms if s not in done and not ranges.isdisjoint(s.ranges)]
        if missing:
            stack += missing
            continue
        stack.pop()
        if isinstance(terms, dict):
            done[node] = _sum_with(terms, constant, done)
        else:
            done[node] = _with_operands(node, tuple([done.get(s, s) for s in terms]))
    return [done.get(root, root) for root in roots]


def _sum_with(terms: Mapping[Expr, int], constant: int, done: Mapping[Expr, Expr]) -> Expr:
    """A sum with some terms replaced.

    If they become numbers, as in the copies of a loop, the others are in order.
    """
    others = []
    plus = constant
    for atom, weight in terms.items():
        part = done.get(atom, atom)
        if part is atom:
            others.append((atom, weight))
        elif part.op is ExprOp.CONST:
            plus += part.arg * weight
        else:
            return weighted_sum([(done.get(s, s), w) for s, w in terms.items()], constant)
    return _sum_of(others, plus)


def _is_found_by_ranges(node: Expr) -> bool:
    """True if a node varies with some ranges, and is never only a part of a sum."""
    return bool(node.ranges) and not (node.dtype is INDEX and node.op in _OF_SUMS)


_OF_SUMS: Final = frozenset({ExprOp.ADD, ExprOp.MUL})


def _with_operands(node: Expr, src: tuple[Expr, ...]) -> Expr:
    return node if all(map(operator.is_, src, node.src)) else rebuild(node, src)


def _substitute_nodes(roots: Sequence[Expr], done: dict[Expr, Expr]) -> list[Expr]:
    for node in toposort(roots):
        if node not in done:
            done[node] = _with_operands(node, tuple([done.get(s, s) for s in node.src]))
    return [done.get(root, root) for root in roots]


def rebuild(node: Expr, src: tuple[Expr, ...]) -> Expr:
    """The node with other operands, simplified as when it was first built."""
    if node.dtype is INDEX:
        match node.op:
            case ExprOp.ADD:
                return src[0] + src[1]
            case ExprOp.MUL:
                return src[0] * src[1]
            case ExprOp.IDIV:
                return src[0] // src[1]
            case ExprOp.MOD:
                return src[0] % src[1]
            case ExprOp.MIN:
                return minimum(*src)
            case ExprOp.XOR:
                return exclusive_or(*src)
            case _:
                pass
    match node.op:
        case ExprOp.CMPLT if src[0].dtype is INDEX:
            return less(src[0], src[1])
        case ExprOp.AND if node.dtype is BOOL:
            return both(src[0], src[1])
        case _:
            build = VALUES.get(node.op)
            return Expr(node.op, node.dtype, src, node.arg) if build is None else build(node, src)
