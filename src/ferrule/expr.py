"""One interned scalar expression for symbolic shapes, indices and kernel code.

An `Expr` is an immutable node of a DAG; equal nodes are the same object, so equality is identity.
Integer index arithmetic (`+ - * // %` and comparisons) is kept in a normal form as it is built: a
sum of `coefficient * atom` and a constant, with floor division and modulo simplified by the bounds
of their operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import reduce
from typing import Any, Final, Self, Union
from weakref import WeakValueDictionary
from zlib import crc32

from ferrule.dtype import DType, dtypes, truncate


class ExprOp(Enum):
    """What a scalar expression does. IDIV and MOD floor; TDIV and TMOD truncate, as C's do.

    DOT of packed pairs a and b, and a float32 c, is `a0*b0 + (a1*b1 + c)`; `codegen/intrinsics.py`
    says how it rounds.
    """

    CONST = auto()
    VARIABLE = auto()
    RANGE = auto()
    ADD = auto()
    SUB = auto()
    MUL = auto()
    FDIV = auto()
    IDIV = auto()
    MOD = auto()
    TDIV = auto()
    TMOD = auto()
    FMOD = auto()
    NEG = auto()
    MIN = auto()
    MAX = auto()
    CMPLT = auto()
    CMPNE = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    SHL = auto()
    SHR = auto()
    NOT = auto()
    WHERE = auto()
    MULACC = auto()
    DOT = auto()
    CAST = auto()
    BITCAST = auto()
    RECIP = auto()
    SQRT = auto()
    TRUNC = auto()
    ROUND = auto()
    EXP2 = auto()
    LOG2 = auto()
    SIN = auto()
    COS = auto()
    LOAD = auto()
    REDUCE = auto()
    KEEP = auto()
    READ = auto()

    __hash__ = object.__hash__


COMPARISONS: Final = frozenset({ExprOp.CMPLT, ExprOp.CMPNE})
# Functions of which most processors have no instruction: tens of operations each.
COSTLY: Final = frozenset({ExprOp.EXP2, ExprOp.LOG2, ExprOp.SIN, ExprOp.COS})
# Index arithmetic never overflows, so it may be simplified as integers are; a user's int64 wraps,
# so it may not. Hence a dtype of its own.
INDEX: Final = DType(7, 8, "index", "q", "numpy.int64")
BOOL: Final = dtypes.bool
UNBOUNDED: Final = (-(2**63), 2**63 - 1)
NO_RANGES: Final[frozenset[Expr]] = frozenset()


def _free_ranges(node: Expr) -> frozenset[Expr]:
    if node.op is ExprOp.RANGE:
        return frozenset((node,)) | node.src[0].ranges
    below = NO_RANGES
    for s in node.src:
        if s.ranges:
            below = below | s.ranges if below else s.ranges
    if node.op in (ExprOp.REDUCE, ExprOp.KEEP):
        below = below - frozenset(node.arg[1])
    return below


_interned: WeakValueDictionary[Any, Expr] = WeakValueDictionary()


class Expr:
    """One node: an operation, its dtype, its operands and a literal argument.

    `arg` is the value of a CONST, `(name, min, max)` of a VARIABLE, the name of a RANGE (whose size
    is `src[0]`), the buffer slot of a LOAD (`src = (index, valid)`; two such pairs where two
    elements are packed into one integer), `(monoid name, ranges)` of a REDUCE, `(name, ranges)` of
    a KEEP (`src = (value, index…)`) and the stage name of a READ.
    """

    __slots__ = (
        "__weakref__",
        "_bounds",
        "_linear",
        "_rank",
        "arg",
        "dtype",
        "op",
        "ranges",
        "src",
    )

    op: ExprOp
    dtype: DType
    src: tuple[Expr, ...]
    arg: Any
    ranges: frozenset[Expr]
    _rank: int | None
    _bounds: tuple[int, int] | None
    _linear: tuple[dict[Expr, int], int] | None

    def __new__(cls, op: ExprOp, dtype: DType, src: tuple[Expr, ...] = (), arg: Any = None) -> Self:
        key = (op, dtype, src, type(arg), arg.hex() if type(arg) is float else arg)
        found = _interned.get(key)
        if found is not None:
            assert isinstance(found, cls)
            return found
        self = object.__new__(cls)
        self.op = op
        self.dtype = dtype
        self.src = src
        self.arg = arg
        self._bounds = None
        self._linear = None
        self._rank = None
        self.ranges = _free_ranges(self)
        _interned[key] = self
        return self

    # -- what it is ------------------------------------------------------------------------------

    @property
    def is_const(self) -> bool:
        return self.op is ExprOp.CONST

    @property
    def size(self) -> Expr:
        """The number of iterations of a RANGE."""
        assert self.op is ExprOp.RANGE, f"size of a {self.op.name}"
        return self.src[0]

    @property
    def name(self) -> str:
        """The name of a VARIABLE or a RANGE."""
        return str(self.arg[0] if self.op is ExprOp.VARIABLE else self.arg)

    def bounds(self) -> tuple[int, int]:
        """The inclusive (least, greatest) value that an integer expression may take."""
        if self._bounds is None:
            self._bounds = _compute_bounds(self)
        return self._bounds

    @property
    def min(self) -> int:
        return self.bounds()[0]

    @property
    def max(self) -> int:
        return self.bounds()[1]

    def vars(self) -> set[Expr]:
        """The variables below, unbound."""
        return {node for node in toposort([self]) if node.op is ExprOp.VARIABLE}

    @property
    def rank(self) -> int:
        """A number that orders nodes the same way in every process, whatever was built before."""
        if self._rank is None:
            for node in toposort([self]):
                if node._rank is None:
                    label = f"{node.op.name} {node.dtype.name} {_label(node.arg)}"
                    below = tuple(s._rank for s in node.src)
                    node._rank = hash((crc32(label.encode()), *below))
        assert self._rank is not None
        return self._rank

    def linear(self) -> tuple[dict[Expr, int], int]:
        """The node as ({atom: coefficient}, constant)."""
        if self._linear is None:
            self._linear = _compute_linear(self)
        return self._linear

    # -- building --------------------------------------------------------------------------------

    def __add__(self, other: sint) -> Expr:
        return index_add(self, as_expr(other))

    def __radd__(self, other: int) -> Expr:
        return index_add(as_expr(other), self)

    def __sub__(self, other: sint) -> Expr:
        return index_add(self, index_mul(as_expr(other), const(-1)))

    def __rsub__(self, other: int) -> Expr:
        return index_add(as_expr(other), index_mul(self, const(-1)))

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

    # -- using -----------------------------------------------------------------------------------

    def substitute(self, mapping: Mapping[Expr, Expr]) -> Expr:
        """The expression with some nodes replaced, simplified again on the way up."""
        return substitute([self], mapping)[0]

    def infer(self, values: Mapping[Expr, int]) -> int:
        """The value of an integer expression, its variables taken from `values`.

        Raises:
            KeyError: a variable has no value.
        """
        if self.op is ExprOp.CONST:
            return int(self.arg)
        if self.op is ExprOp.VARIABLE:
            if self not in values:
                raise KeyError(
                    f"variable {self.name} has no value; bind it, or pass it in var_vals"
                )
            return values[self]
        replaced = self.substitute({v: const(values[v]) for v in self.vars() if v in values})
        if not replaced.is_const:
            missing = sorted(v.name for v in replaced.vars())
            raise KeyError(f"no value for {missing} in {self}; bind them, or pass them in var_vals")
        return int(replaced.arg)


def _label(arg: Any) -> str:
    """An argument as text that does not depend on the process."""
    if isinstance(arg, tuple):
        return " ".join(_label(part) for part in arg)
    return arg.name if isinstance(arg, Expr) else repr(arg)


class Variable(Expr):
    """A named integer with bounds, for shapes that change from call to call.

    >>> n = Variable("n", 1, 10)
    >>> n.bind(3).unbind()
    (n, 3)
    """

    __slots__ = ()

    def __new__(cls, name: str, min: int, max: int) -> Self:
        if min > max:
            raise ValueError(f"Variable {name}: min {min} is above max {max}; swap them")
        return super().__new__(cls, ExprOp.VARIABLE, INDEX, (), (name, min, max))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Variable, self.arg)

    def bind(self, value: int) -> BoundVariable:
        """The variable with a value, to be used as a size or passed to a captured function.

        Raises:
            ValueError: the value is outside the bounds.
        """
        return BoundVariable(self, value)

    @property
    def val(self) -> int:
        """The bound value; an unbound variable has none."""
        raise ValueError(f"variable {self.name} is not bound; use {self.name}.bind(value)")


class BoundVariable(Expr):
    """A `Variable` together with its present value.

    It is an expression like the variable itself.
    """

    __slots__ = ()

    def __new__(cls, variable: Variable, value: int) -> Self:
        name, low, high = variable.arg
        if not low <= value <= high:
            raise ValueError(f"cannot bind {name} to {value}: it goes from {low} to {high}")
        node = Expr.__new__(cls, ExprOp.VARIABLE, INDEX, (variable,), (name, low, high, int(value)))
        assert isinstance(node, BoundVariable)
        return node

    def __reduce__(self) -> tuple[Any, ...]:
        return (BoundVariable, (self.src[0], self.arg[3]))

    @property
    def val(self) -> int:
        """The bound value."""
        return int(self.arg[3])

    def unbind(self) -> tuple[Variable, int]:
        """The variable and its value."""
        variable = self.src[0]
        assert isinstance(variable, Variable)
        return variable, self.val


sint = Union[int, Expr]  # noqa: UP007 - a type alias that also works in annotations evaluated late
Node = Expr


def unbind(node: sint) -> tuple[sint, dict[Variable, int]]:
    """An expression without bound values, and the values."""
    if isinstance(node, int):
        return node, {}
    values: dict[Variable, int] = {}
    replace: dict[Expr, Expr] = {}
    for below in toposort([node]):
        if isinstance(below, BoundVariable):
            variable, value = below.unbind()
            if values.setdefault(variable, value) != value:
                raise ValueError(
                    f"variable {variable.name} is bound to {values[variable]} and {value} at once; "
                    "use one value, or two variables"
                )
            replace[below] = variable
    return (node.substitute(replace) if replace else node), values


# -- leaves
# ------------------------------------------------------------------------------------------

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
    return value.__index__() if hasattr(value, "__index__") else value


def range_(name: str, size: sint) -> Expr:
    """A loop counter from 0 to size-1."""
    return Expr(ExprOp.RANGE, INDEX, (as_expr(size),), name)


# -- index arithmetic
# --------------------------------------------------------------------------------


def _from_linear(terms: dict[Expr, int], constant: int) -> Expr:
    """The normal form: the largest coefficients first, the constant last."""
    _recombine(terms)
    out: Expr | None = None
    for atom in sorted(terms, key=lambda a: (-abs(terms[a]), a.rank)):
        coefficient = terms[atom]
        if coefficient == 0:
            continue
        term = atom if coefficient == 1 else Expr(ExprOp.MUL, INDEX, (atom, const(coefficient)))
        out = term if out is None else Expr(ExprOp.ADD, INDEX, (out, term))
    if out is None:
        return const(constant)
    return out if constant == 0 else Expr(ExprOp.ADD, INDEX, (out, const(constant)))


def _recombine(terms: dict[Expr, int]) -> None:
    """`(x // n) * n + x % n -> x`, wherever both halves are there with matching coefficients."""
    changed = True
    while changed:
        changed = False
        for atom in [a for a in terms if a.op is ExprOp.MOD]:
            x, n = atom.src
            if not n.is_const:
                continue
            coefficient = terms[atom]
            quotient = index_div(x, n)
            if (
                coefficient
                and quotient.op is not ExprOp.CONST
                and terms.get(quotient) == coefficient * n.arg
            ):
                del terms[atom]
                del terms[quotient]
                more, constant = x.linear()
                if constant:
                    more = {x: 1}
                for node, times in more.items():
                    terms[node] = terms.get(node, 0) + times * coefficient
                changed = True
                break


def _compute_linear(node: Expr) -> tuple[dict[Expr, int], int]:
    match node.op:
        case ExprOp.CONST:
            return {}, int(node.arg)
        case ExprOp.ADD:
            terms = dict(node.src[0].linear()[0])
            constant = node.src[0].linear()[1]
            more, plus = node.src[1].linear()
            for atom, coefficient in more.items():
                terms[atom] = terms.get(atom, 0) + coefficient
            return terms, constant + plus
        case ExprOp.MUL if node.src[1].is_const:
            terms, constant = node.src[0].linear()
            factor = int(node.src[1].arg)
            return {a: c * factor for a, c in terms.items()}, constant * factor
        case _:
            return {node: 1}, 0


def index_add(a: Expr, b: Expr) -> Expr:
    """`a + b` in normal form."""
    if a.op is ExprOp.CONST and b.op is ExprOp.CONST:
        return const(a.arg + b.arg)
    if b.op is ExprOp.CONST and b.arg == 0:
        return a
    if a.op is ExprOp.CONST and a.arg == 0:
        return b
    terms, constant = a.linear()
    terms = dict(terms)
    more, plus = b.linear()
    for atom, coefficient in more.items():
        terms[atom] = terms.get(atom, 0) + coefficient
    return _from_linear(terms, constant + plus)


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


def _bounds_of_terms(terms: Iterable[tuple[Expr, int]], constant: int) -> tuple[int, int]:
    low = high = constant
    for atom, coefficient in terms:
        least, greatest = atom.bounds()
        if coefficient >= 0:
            low += least * coefficient
            high += greatest * coefficient
        else:
            low += greatest * coefficient
            high += least * coefficient
    return low, high


def _small_part(
    terms: dict[Expr, int], constant: int, n: int
) -> tuple[int, dict[Expr, int]] | None:
    """A divisor g of n such that all terms are multiples of g but for some that stay in [0, g)."""
    for g in sorted(
        {abs(c) for c in terms.values()} | {math.gcd(n, *terms.values())}, reverse=True
    ):
        if g <= 1 or n % g:
            continue
        rest = {a: c for a, c in terms.items() if c % g}
        low, high = _bounds_of_terms(rest.items(), constant % g)
        if 0 <= low and high < g:
            return g, rest
    return None


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
    low, high = _bounds_of_terms(rest.items(), constant)
    if low // n == high // n:
        return _from_linear(quotient, whole + low // n)
    found = _small_part(rest, constant, n)
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
    low, high = _bounds_of_terms(rest.items(), constant)
    if low // n == high // n:
        return _from_linear(rest, constant - (low // n) * n)
    found = _small_part(rest, constant, n)
    if found is not None:
        g, small = found
        inner = _from_linear({x: c // g for x, c in rest.items() if x not in small}, constant // g)
        return index_add(
            index_mul(index_mod(inner, const(n // g)), const(g)),
            _from_linear(dict(small), constant % g),
        )
    return Expr(ExprOp.MOD, INDEX, (_from_linear(rest, constant), b))


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


def less(a: Expr, b: Expr) -> Expr:
    """`a < b`, decided where the bounds decide it."""
    difference = a - b
    low, high = difference.bounds()
    if high < 0:
        return TRUE
    if low >= 0:
        return FALSE
    terms, constant = difference.linear()
    found = _small_part(terms, constant, 0)
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


def minimum(a: sint, b: sint) -> Expr:
    """The smaller index."""
    a, b = as_expr(a), as_expr(b)
    if a.max <= b.min:
        return a
    if b.max <= a.min:
        return b
    return Expr(ExprOp.MIN, INDEX, (a, b))


# -- bounds
# ------------------------------------------------------------------------------------------


def _compute_bounds(node: Expr) -> tuple[int, int]:
    match node.op:
        case ExprOp.CONST:
            return (int(node.arg), int(node.arg)) if not isinstance(node.arg, float) else UNBOUNDED
        case ExprOp.VARIABLE:
            return node.arg[1], node.arg[2]
        case ExprOp.RANGE:
            return 0, max(node.src[0].max - 1, 0)
        case ExprOp.ADD | ExprOp.MUL if node.dtype is INDEX:
            return _arithmetic_bounds(node)
        case ExprOp.IDIV if node.src[1].min > 0:
            quotients = [a // b for a in node.src[0].bounds() for b in node.src[1].bounds()]
            return min(quotients), max(quotients)
        case ExprOp.MOD if node.src[1].min > 0:
            low, high = node.src[0].bounds()
            top = node.src[1].max - 1
            return (0, min(high, top)) if low >= 0 else (0, top)
        case ExprOp.MIN:
            (a, b), (c, d) = node.src[0].bounds(), node.src[1].bounds()
            return min(a, c), min(b, d)
        case ExprOp.MAX:
            (a, b), (c, d) = node.src[0].bounds(), node.src[1].bounds()
            return max(a, c), max(b, d)
        case ExprOp.WHERE:
            (a, b), (c, d) = node.src[1].bounds(), node.src[2].bounds()
            return min(a, c), max(b, d)
        case _:
            if node.dtype is BOOL:
                return 0, 1
            if dtypes.is_int(node.dtype):
                return int(dtypes.min(node.dtype)), int(dtypes.max(node.dtype))
            return UNBOUNDED


def _arithmetic_bounds(node: Expr) -> tuple[int, int]:
    (a, b), (c, d) = node.src[0].bounds(), node.src[1].bounds()
    if node.op is ExprOp.ADD:
        low, high = a + c, b + d
    else:
        products = (a * c, a * d, b * c, b * d)
        low, high = min(products), max(products)
    if low < UNBOUNDED[0] or high > UNBOUNDED[1]:
        return UNBOUNDED
    return low, high


# -- values
# ------------------------------------------------------------------------------------------


def alu(op: ExprOp, *src: Expr, dtype: DType | None = None) -> Expr:
    """A value operation, with constants folded in the dtype's own arithmetic and nothing else."""
    out = dtype or (BOOL if op in COMPARISONS else src[-1].dtype)
    if all(s.op is ExprOp.CONST for s in src) and op in _FOLD:
        folded = _fold(op, out, src)
        if folded is not None:
            return folded
    if op is ExprOp.WHERE:
        if src[0].op is ExprOp.CONST:
            return src[1] if src[0].arg else src[2]
        if src[1] is src[2]:
            return src[1]
        if src[0].dtype is BOOL and src[1] is TRUE and src[2] is FALSE:
            return src[0]
    if op is ExprOp.AND and out is BOOL:
        return both(*src)
    return Expr(op, out, src)


def select(condition: Expr, value: Expr, otherwise: Expr) -> Expr:
    """A WHERE; left out where the value is a load that gives 0 under the same mask anyway."""
    if value.op is ExprOp.LOAD and otherwise.op is ExprOp.CONST and otherwise.arg == 0:
        needed = set(conjuncts(condition))
        if all(needed <= set(conjuncts(valid)) for valid in value.src[1::2]):
            return value
    return alu(ExprOp.WHERE, condition, value, otherwise)


def cast(x: Expr, dtype: DType) -> Expr:
    """The value in another dtype."""
    if x.dtype is dtype:
        return x
    if x.op is ExprOp.CONST and not (isinstance(x.arg, float) and not math.isfinite(x.arg)):
        return const(x.arg, dtype)
    return Expr(ExprOp.CAST, dtype, (x,))


def _fold(op: ExprOp, dtype: DType, src: Sequence[Expr]) -> Expr | None:
    if dtype is dtypes.float64 or not dtypes.is_float(src[-1].dtype) or op in COMPARISONS:
        value = _FOLD[op](*[s.arg for s in src])
        return const(value, dtype)
    if op in (ExprOp.ADD, ExprOp.SUB, ExprOp.MUL, ExprOp.NEG, ExprOp.MAX, ExprOp.MIN):
        # exact in double for two float32 (or narrower) operands but for the final rounding
        return const(_FOLD[op](*[s.arg for s in src]), dtype)
    return None


_FOLD: Final[dict[ExprOp, Callable[..., Any]]] = {
    ExprOp.ADD: lambda a, b: a + b,
    ExprOp.SUB: lambda a, b: a - b,
    ExprOp.MUL: lambda a, b: a * b,
    ExprOp.NEG: lambda a: -a,
    ExprOp.CMPLT: lambda a, b: a < b,
    ExprOp.CMPNE: lambda a, b: a != b,
    ExprOp.NOT: lambda a: not a,
}


def load(slot: int, dtype: DType, index: Expr, valid: Expr = TRUE) -> Expr:
    """An element of a buffer; 0 where `valid` is false."""
    if valid is FALSE:
        return const(0, dtype)
    return Expr(ExprOp.LOAD, dtype, (index, valid), slot)


def pack(first: Expr, second: Expr, dtype: DType) -> Expr:
    """Two loads of one buffer as one integer of twice the width, the first in its low half."""
    assert first.op is second.op is ExprOp.LOAD, (first, second)
    assert first.arg == second.arg, (first, second)
    return Expr(ExprOp.LOAD, dtype, first.src + second.src, first.arg)


# -- graphs
# ------------------------------------------------------------------------------------------


def toposort(roots: Iterable[Expr]) -> list[Expr]:
    """Every node below the roots, operands first; no recursion."""
    order: dict[Expr, None] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        missing = [s for s in node.src if s not in order] if node not in order else None
        if missing:
            stack += missing
        else:
            order[node] = None
            stack.pop()
    return list(order)


def varying(roots: Iterable[Expr], ranges: frozenset[Expr]) -> list[Expr]:
    """The nodes below the roots that depend on some of the ranges, operands first."""
    order: dict[Expr, None] = {}
    stack = [root for root in roots if not ranges.isdisjoint(root.ranges)]
    while stack:
        node = stack[-1]
        missing = None
        if node not in order:
            missing = [s for s in node.src if s not in order and not ranges.isdisjoint(s.ranges)]
        if missing:
            stack += missing
        else:
            order[node] = None
            stack.pop()
    return list(order)


def substitute(roots: Sequence[Expr], mapping: Mapping[Expr, Expr]) -> list[Expr]:
    """The roots with some nodes replaced; shared parts stay shared."""
    ranges = frozenset(mapping)
    if all([node.op is ExprOp.RANGE for node in ranges]):
        order = varying(roots, ranges)
    else:
        order = toposort(roots)
    done: dict[Expr, Expr] = dict(mapping)
    for node in order:
        if node not in done:
            src = tuple([done.get(s, s) for s in node.src])
            # Nodes are interned: equal operands are the same ones.
            done[node] = node if src == node.src else rebuild(node, src)
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
        case ExprOp.LOAD if len(src) == 2:
            return load(node.arg, node.dtype, src[0], src[1])
        case ExprOp.CAST:
            return cast(src[0], node.dtype)
        case ExprOp.WHERE:
            return alu(ExprOp.WHERE, *src)
        case _:
            return Expr(node.op, node.dtype, src, node.arg)


# -- printing
# ----------------------------------------------------------------------------------------

_SYMBOL: Final = {
    ExprOp.ADD: "+",
    ExprOp.SUB: "-",
    ExprOp.MUL: "*",
    ExprOp.FDIV: "/",
    ExprOp.IDIV: "//",
    ExprOp.MOD: "%",
    ExprOp.CMPLT: "<",
    ExprOp.CMPNE: "!=",
    ExprOp.AND: "&",
    ExprOp.OR: "|",
    ExprOp.XOR: "^",
    ExprOp.SHL: "<<",
    ExprOp.SHR: ">>",
}


def render(node: Expr) -> str:
    """The expression as readable text."""
    match node.op:
        case ExprOp.CONST:
            return repr(node.arg)
        case ExprOp.VARIABLE:
            return f"{node.name}={node.arg[3]}" if isinstance(node, BoundVariable) else node.name
        case ExprOp.RANGE:
            return node.name
        case ExprOp.LOAD:
            pairs = zip(node.src[::2], node.src[1::2], strict=True)
            elements = [render(i) + ("" if v is TRUE else f" if {render(v)}") for i, v in pairs]
            return f"b{node.arg}[{' & '.join(elements)}]"
        case ExprOp.READ:
            return f"{node.arg}[{', '.join(map(render, node.src))}]"
        case ExprOp.REDUCE:
            monoid, ranges = node.arg
            return f"{monoid}({render(node.src[0])} for {', '.join(r.name for r in ranges)})"
        case ExprOp.KEEP:
            name, ranges = node.arg
            value, *index = map(render, node.src)
            return f"{name}({value} for {', '.join(r.name for r in ranges)})[{', '.join(index)}]"
        case ExprOp.CAST | ExprOp.BITCAST:
            return f"{node.op.name.lower()}({render(node.src[0])}, {node.dtype.name})"
        case _:
            symbol = _SYMBOL.get(node.op)
            if symbol is not None:
                return f"({render(node.src[0])} {symbol} {render(node.src[1])})"
            return f"{node.op.name.lower()}({', '.join(map(render, node.src))})"
