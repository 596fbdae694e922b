"""How expressions are built: simplified at once, so that what is equal is mostly one node.

Integer index arithmetic (`+ - * // %` and comparisons) is kept in a normal form: a sum of
`coefficient * atom` and a constant, with floor division and modulo simplified by the bounds of
their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, Union

from ferrule.dtype import DType, truncate
from ferrule.expr.base import (
    BOOL,
    INDEX,
    ExprBase,
    ExprOp,
    bounds_of_terms,
    small_part,
    toposort,
)
from ferrule.expr.printing import render


class Expr(ExprBase):
    """A node together with the operators and functions that make new ones of it."""

    __slots__ = ()

    src: tuple[Expr, ...]
    ranges: frozenset[Expr]

    def __add__(self, other: sint) -> Expr:
        return index_add(self, as_expr(other))

    def __radd__(self, other: int) -> Expr:
        return index_add(as_expr(other), self)

    def __sub__(self, other: sint) -> Expr:
        return index_sub(self, as_expr(other))

    def __rsub__(self, other: int) -> Expr:
        return index_sub(as_expr(other), self)

    def __mul__(self, other: sint) -> Expr:
        return index_mul(self, as_expr(other))

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return index_mul(self, const(-1))

    def __floordiv__(self, other: sint) -> Expr:
        return index_div(self, as_expr(other))

    def __rfloordiv__(self, other: int) -> Expr:
        return index_div(as_expr(other), self)

    def __mod__(self, other: sint) -> Expr:
        return index_mod(self, as_expr(other))

    def __rmod__(self, other: int) -> Expr:
        return index_mod(as_expr(other), self)

    def __lt__(self, other: sint) -> Expr:
        return less(self, as_expr(other))

    def __gt__(self, other: sint) -> Expr:
        return less(as_expr(other), self)

    def __le__(self, other: sint) -> Expr:
        return less(self, as_expr(other) + 1)

    def __ge__(self, other: sint) -> Expr:
        return less(as_expr(other) - 1, self)

    def __and__(self, other: Expr) -> Expr:
        return both(self, other)

    def __bool__(self) -> bool:
        if self.op is ExprOp.CONST:
            return bool(self.arg)
        raise TypeError(
            f"the truth of {self} is not known before it runs; "
            "compare its bounds() instead, or give its variables values with infer()"
        )

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

    def infer(self, values: Mapping[Expr, int]) -> int:
        """The value of an integer expression, its variables taken from `values`.

        Raises:
            KeyError: a variable has no value.
            ValueError: a variable's value is outside its bounds.
        """
        if self.op is ExprOp.CONST:
            return int(self.arg)
        if self.op is ExprOp.VARIABLE:
            if self not in values:
                raise KeyError(
                    f"variable {self.name} has no value; bind it, or pass it in var_vals"
                )
            value = values[self]
            low, high = self.arg[1:3]
            if not low <= value <= high:
                raise ValueError(
                    f"variable {self.name} cannot be {value}: it goes from {low} to {high}"
                )
            return value
        if self.dtype is INDEX:
            total = self._sum_of_products(values)
            if total is not None:
                return total
        replaced = self.substitute({v: const(values[v]) for v in self.vars() if v in values})
        if not replaced.is_const:
            missing = sorted(v.name for v in replaced.vars())
            raise KeyError(f"no value for {missing} in {self}; bind them, or pass them in var_vals")
        return int(replaced.arg)

    def _sum_of_products(self, values: Mapping[Expr, int]) -> int | None:
        """`infer` for what most sizes are: a sum of products of variables; None for the rest."""
        terms, total = self.linear()
        for atom, factor in terms.items():
            for part in atom.src if atom.op is ExprOp.MUL else (atom,):
                if part.op is ExprOp.VARIABLE and part not in values:
                    return None
                if part.op not in (ExprOp.VARIABLE, ExprOp.ADD, ExprOp.MUL):
                    return None
                factor *= part.infer(values)
            total += factor
        return total


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
        node = Expr(ExprOp.CONST, INDEX, (), int(value))
        if len(_small) < 4096:
            _small[node.arg] = node
        return node
    return Expr(ExprOp.CONST, dtype, (), truncate(dtype, value))


TRUE: Final = Expr(ExprOp.CONST, BOOL, (), True)
FALSE: Final = Expr(ExprOp.CONST, BOOL, (), False)


def as_expr(value: sint) -> Expr:
    """An index expression from an int or an expression."""
    return value if isinstance(value, Expr) else const(value)


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
    """The sum of `part * weight`, and a constant, in normal form.

    The same as products and sums of two at a time, without a normal form for each of these.
    """
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
    factors = sorted([*_factors(x), *_factors(y)], key=lambda f: f.rank)
    return reduce(lambda p, f: Expr(ExprOp.MUL, INDEX, (p, f)), factors)


def _factors(x: Expr) -> list[Expr]:
    if x.op is ExprOp.MUL and not x.src[1].is_const:
        return [*_factors(x.src[0]), *_factors(x.src[1])]
    return [x]


def _from_linear(terms: dict[Expr, int], constant: int) -> Expr:
    """The normal form: the largest coefficients first, the constant last."""
    order: Iterable[Expr] = terms
    if len(terms) > 1:
        constant += _recombine(terms)
        order = sorted(terms, key=lambda a: (-abs(terms[a]), a.rank))
    out: Expr | None = None
    for atom in order:
        coefficient = terms[atom]
        if coefficient == 0:
            continue
        term = atom if coefficient == 1 else Expr(ExprOp.MUL, INDEX, (atom, const(coefficient)))
        out = term if out is None else Expr(ExprOp.ADD, INDEX, (out, term))
    if out is None:
        return const(constant)
    return out if constant == 0 else Expr(ExprOp.ADD, INDEX, (out, const(constant)))


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
    factors, rest = n.linear()
    if not times or len(factors) != 1 or rest:
        return None
    ((factor, count),) = factors.items()
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
    if a is b:
        return const(1)
    if len(b.linear()[0]) != 1 or b.linear()[1]:
        return const(0) if _within(a, b) else Expr(ExprOp.IDIV, INDEX, (a, b))
    quotient, rest = _split_by_factor(a, b)
    if _within(rest, b):
        return quotient
    return quotient + Expr(ExprOp.IDIV, INDEX, (rest, b))


def _symbolic_mod(a: Expr, b: Expr) -> Expr:
    if a is b:
        return const(0)
    if len(b.linear()[0]) != 1 or b.linear()[1]:
        return a if _within(a, b) else Expr(ExprOp.MOD, INDEX, (a, b))
    _, rest = _split_by_factor(a, b)
    return rest if _within(rest, b) else Expr(ExprOp.MOD, INDEX, (rest, b))


def _split_by_factor(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`a` as `q * b + rest`, for a symbolic b."""
    quotient = const(0)
    rest = const(0)
    by = _factors(b)
    terms, constant = a.linear()
    for atom, coefficient in terms.items():
        factors = _factors(atom)
        remaining = list(factors)
        for f in by:
            if f not in remaining:
                break
            remaining.remove(f)
        else:
            part = reduce(index_mul, remaining, const(1))
            quotient = quotient + part * coefficient
            continue
        rest = rest + atom * coefficient
    return quotient, rest + constant


def _within(a: Expr, b: Expr) -> bool:
    """Whether 0 <= a < b is certain."""
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


def conjuncts(valid: Expr) -> list[Expr]:
    """The conditions that must all hold; none for TRUE."""
    if valid is TRUE:
        return []
    if valid.op is ExprOp.AND:
        return [*conjuncts(valid.src[0]), *conjuncts(valid.src[1])]
    return [valid]


def all_of(conditions: Iterable[Expr]) -> Expr:
    """The conjunction."""
    return reduce(both, conditions, TRUE)


# -- replacing ------------------------------------------------------------------------------------


VALUES: Final[dict[ExprOp, Callable[[Expr, tuple[Expr, ...]], Expr]]] = {}
"""How operations on values are built again of other operands, where that can simplify them; the
module `values` fills it."""


def substitute(roots: Sequence[Expr], mapping: Mapping[Expr, Expr]) -> list[Expr]:
    """The roots with some nodes replaced; shared parts stay shared."""
    if not all([_is_found_by_ranges(node) for node in mapping]):
        return _substitute_nodes(roots, mapping)
    # What is replaced is only below nodes that vary with some of its ranges.
    ranges = frozenset([r for node in mapping for r in node.ranges])
    done: dict[Expr, Expr] = dict(mapping)
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
            parts = [(done.get(s, s), weight) for s, weight in terms.items()]
            done[node] = weighted_sum(parts, constant)
        else:
            done[node] = _with_operands(node, tuple([done.get(s, s) for s in terms]))
    return [done.get(root, root) for root in roots]


def _is_found_by_ranges(node: Expr) -> bool:
    """Whether a node varies with some ranges, and is never only a part of a sum."""
    return bool(node.ranges) and not (node.dtype is INDEX and node.op in _OF_SUMS)


_OF_SUMS: Final = frozenset({ExprOp.ADD, ExprOp.MUL})


def _with_operands(node: Expr, src: tuple[Expr, ...]) -> Expr:
    # Nodes are interned: equal operands are the same ones.
    return node if src == node.src else rebuild(node, src)


def _substitute_nodes(roots: Sequence[Expr], mapping: Mapping[Expr, Expr]) -> list[Expr]:
    done: dict[Expr, Expr] = dict(mapping)
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
