"""Nodes of scalar expressions, and the queries that need no other node.

Nodes are interned: equal nodes are the same object. `build.py` makes them, simplified.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import auto
from typing import Any, Final, Self, TypeVar
from zlib import crc32

from ferrule.base.enums import Enum
from ferrule.base.interning import Table
from ferrule.ir.dtype import DType, dtypes, exact


class ExprOp(Enum):
    """The operation of a scalar expression. IDIV and MOD floor; TDIV and TMOD truncate, as C's do.

    DOT of packed pairs a and b, and a float32 c, is `a0*b0 + (a1*b1 + c)`; of packed bytes and an
    int32, the sum of four products and c. `codegen/intrinsics.py` says how it rounds. TF32 of a
    float32 is the nearest one with 10 bits of mantissa, the larger of two that are as near.
    NEAR_EXP2 of a float32 is 2 to its power, off by up to 2**-22 of that, or 0 instead of a
    subnormal. POPCOUNT is the number of set bits of a uint32.
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
    POPCOUNT = auto()
    WHERE = auto()
    MULACC = auto()
    DOT = auto()
    CAST = auto()
    BITCAST = auto()
    RECIP = auto()
    SQRT = auto()
    TRUNC = auto()
    ROUND = auto()
    TF32 = auto()
    NEAR_EXP2 = auto()
    EXP2 = auto()
    LOG2 = auto()
    SIN = auto()
    COS = auto()
    LOAD = auto()
    REDUCE = auto()
    STAGE = auto()
    READ = auto()


COMPARISONS: Final = frozenset({ExprOp.CMPLT, ExprOp.CMPNE})
# Functions of which most processors have no instruction: tens of operations each.
COSTLY: Final = frozenset({ExprOp.EXP2, ExprOp.LOG2, ExprOp.SIN, ExprOp.COS})
# Index arithmetic never overflows, so it may be simplified as integers are; a user's int64 wraps,
# so it may not. Hence a dtype of its own.
INDEX: Final = DType(7, 8, "index", "q", "numpy.int64")
BOOL: Final = dtypes.bool
UNBOUNDED: Final = (-(2**63), 2**63 - 1)

_interned: Final = Table()
_NO_RANGES: Final[frozenset[Any]] = frozenset()


class ExprBase:
    """One node: an operation, its dtype, its operands and a literal argument.

    `arg` is the value of a CONST, `(name, min, max)` of a VARIABLE, the name of a RANGE (whose size
    is `src[0]`), the buffer slot of a LOAD (`src = (index, valid)`; two such pairs where two
    elements are packed into one integer), `(monoid name, ranges)` of a REDUCE, `(name, ranges)` of
    a STAGE (`src = (value, index…)`), and the name of the stage that a READ reads.
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
    src: tuple[Self, ...]
    arg: Any
    ranges: frozenset[Self]
    _rank: int | None
    _bounds: tuple[int, int] | None
    _linear: tuple[dict[Self, int], int] | None

    def __new__(cls, op: ExprOp, dtype: DType, src: tuple[Self, ...] = (), arg: Any = None) -> Self:
        """The interned node: equal arguments give one object."""
        key = (op, dtype, src, exact(arg) if type(arg) is float else (type(arg), arg))
        entry = _interned.get(key)
        if entry is not None:  # as `Table.find`, without a call for each node
            found: Self | None = entry()
            if found is not None:
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
        one: Self = _interned.remember(key, self)
        return one

    @property
    def is_const(self) -> bool:
        """True for a number."""
        return self.op is ExprOp.CONST

    @property
    def size(self) -> Self:
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
        """The least value that there may be."""
        return self.bounds()[0]

    @property
    def max(self) -> int:
        """The greatest value that there may be."""
        return self.bounds()[1]

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

    def linear(self) -> tuple[dict[Self, int], int]:
        """The node as ({atom: coefficient}, constant)."""
        found = self._linear
        if found is None:
            found = _compute_linear(self)
            # An atom would refer to itself, and be freed by a search for such circles alone.
            if self not in found[0]:
                self._linear = found
        return found

    def set_linear(self, terms: list[tuple[Self, int]], constant: int) -> None:
        """Tell an index what `linear` is to give."""
        if self._linear is None and (len(terms) > 1 or terms[0][0] is not self):
            self._linear = dict(terms), constant


N = TypeVar("N", bound=ExprBase)


def _free_ranges(node: N) -> frozenset[N]:
    if node.op is ExprOp.RANGE:
        return frozenset((node,)) | node.src[0].ranges
    below = _NO_RANGES
    for s in node.src:
        ranges = s.ranges
        if ranges is not below and not ranges <= below:
            below = ranges if below <= ranges else below | ranges
    if node.op in (ExprOp.REDUCE, ExprOp.STAGE):
        below = below - frozenset(node.arg[1])
    return below


def _label(arg: Any) -> str:
    """An argument as text that does not depend on the process."""
    if isinstance(arg, tuple):
        return " ".join(_label(part) for part in arg)
    return arg.name if isinstance(arg, ExprBase) else repr(arg)


# -- walks -----------------------------------------------------------------------------------------


def toposort(roots: Iterable[N]) -> list[N]:
    """Every node below the roots, operands first; no recursion."""
    order: list[N] = []
    seen: set[N] = set()
    # On top of a node, None: all below it is in order.
    stack: list[N | None] = list(roots)
    while stack:
        node = stack.pop()
        if node is None:
            node = stack.pop()
            assert node is not None
            order.append(node)
        elif node not in seen:
            seen.add(node)
            src = node.src
            if src:
                stack.append(node)  # one by one: a tuple to add would be made for each node
                stack.append(None)
                stack.extend(src)
            else:
                order.append(node)
    return order


def varying(roots: Iterable[N], ranges: frozenset[N]) -> list[N]:
    """The nodes below the roots that depend on some of the ranges, operands first."""
    order: dict[N, None] = {}
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


# -- bounds ----------------------------------------------------------------------------------------


def _compute_bounds(node: N) -> tuple[int, int]:
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
        case ExprOp.XOR if node.dtype is INDEX and min(s.min for s in node.src) >= 0:
            return 0, (1 << max(s.max for s in node.src).bit_length()) - 1
        case ExprOp.WHERE:
            (a, b), (c, d) = node.src[1].bounds(), node.src[2].bounds()
            return min(a, c), max(b, d)
        case _:
            if node.dtype is BOOL:
                return 0, 1
            if dtypes.is_int(node.dtype):
                return int(dtypes.min(node.dtype)), int(dtypes.max(node.dtype))
            return UNBOUNDED


def _arithmetic_bounds(node: N) -> tuple[int, int]:
    (a, b), (c, d) = node.src[0].bounds(), node.src[1].bounds()
    if node.op is ExprOp.ADD:
        low, high = a + c, b + d
    else:
        products = (a * c, a * d, b * c, b * d)
        low, high = min(products), max(products)
    if low < UNBOUNDED[0] or high > UNBOUNDED[1]:
        return UNBOUNDED
    return low, high


# -- sums, products, conjunctions -----------------------------------------------------------------


def factors(node: N) -> list[N]:
    """The atoms of a product; a constant factor is none of them, but a part of an atom."""
    if node.op is ExprOp.MUL and not node.src[1].is_const:
        return [*factors(node.src[0]), *factors(node.src[1])]
    return [node]


def conjuncts(valid: N) -> list[N]:
    """The conditions that must all hold; none for TRUE."""
    if valid.op is ExprOp.CONST and valid.arg:
        return []
    if valid.op is ExprOp.AND:
        return [*conjuncts(valid.src[0]), *conjuncts(valid.src[1])]
    return [valid]


def _compute_linear(node: N) -> tuple[dict[N, int], int]:
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


def bounds_of_terms(terms: Iterable[tuple[N, int]], constant: int) -> tuple[int, int]:
    """The least and the greatest value of a sum of `coefficient * atom` and a constant."""
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


def step_along(index: N, r: N) -> int | None:
    """The step of an index from one iteration of a range to the next; None if it is not
    constant.
    """
    if r not in index.ranges:
        return 0
    terms, _ = index.linear()
    if any([r in atom.ranges for atom in terms if atom is not r]):
        return None
    return terms.get(r, 0)


def small_part(terms: dict[N, int], constant: int, n: int) -> tuple[int, dict[N, int]] | None:
    """A divisor g of n such that all terms are multiples of g but for some that stay in [0, g)."""
    for g in sorted(
        {abs(c) for c in terms.values()} | {math.gcd(n, *terms.values())}, reverse=True
    ):
        if g <= 1 or n % g:
            continue
        rest = {a: c for a, c in terms.items() if c % g}
        low, high = bounds_of_terms(rest.items(), constant % g)
        if 0 <= low and high < g:
            return g, rest
    return None
