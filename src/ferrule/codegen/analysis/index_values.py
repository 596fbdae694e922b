"""The values of an index for many iterations of some loops at once, as arrays.

They say which elements the threads of a warp access together, whatever quotients and remainders an
index is made of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, ExprOp, toposort

Places: TypeAlias = Mapping[Expr, Any]
"""Iterations of loops, by their ranges: arrays of shapes that fit one another."""
_MIX: Final = 0x9E3779B1
"""An odd number whose multiples are spread evenly: it stands for what is loaded."""


def _quotient(a: Any, b: Any) -> Any:
    return a // np.maximum(b, 1)


def _remainder(a: Any, b: Any) -> Any:
    return a % np.maximum(b, 1)


def _whole(value: Any) -> Any:
    """Values of floats as integers."""
    return np.clip(np.nan_to_num(value), -(1 << 31), 1 << 31).astype(np.int64)


def _wrapped(value: Any) -> Any:
    """A literal as NumPy's integers have it: the upper half of 64 unsigned bits is negative."""
    is_large = isinstance(value, int) and value >= 1 << 63
    return value - (1 << 64) if is_large else value


def _clamped(a: Any, b: Any) -> Any:
    """The lesser of two values; but a clamp of what is loaded leaves it spread."""
    return np.where(a > b, a % np.maximum(b + 1, 1), a)


_OPERATIONS: Final[Mapping[ExprOp, Callable[..., Any]]] = {
    ExprOp.ADD: operator.add,
    ExprOp.SUB: operator.sub,
    ExprOp.MUL: operator.mul,
    ExprOp.NEG: operator.neg,
    ExprOp.IDIV: _quotient,
    ExprOp.TDIV: _quotient,
    ExprOp.MOD: _remainder,
    ExprOp.TMOD: _remainder,
    ExprOp.MIN: _clamped,
    ExprOp.MAX: np.maximum,
    ExprOp.AND: operator.and_,
    ExprOp.OR: operator.or_,
    ExprOp.XOR: operator.xor,
    ExprOp.NOT: np.logical_not,
    ExprOp.WHERE: np.where,
    ExprOp.CMPLT: np.less,
    ExprOp.CMPNE: np.not_equal,
}


def index_values(index: Expr, places: Places) -> Any:
    """The values of an index at some places, but for a constant: other loops are at their start.

    >>> from ferrule.ir.expr import range_
    >>> i, j = range_("i", 4), range_("j", 9)
    >>> index_values(i // 2 * 100 + i % 2 + j, {i: np.arange(4)}).tolist()
    [0, 1, 100, 101]
    """
    terms, first = index.linear()
    total = sum([0 * place for place in places.values()], np.array(first))
    for atom, step in terms.items():
        if atom in places:
            total = total + step * places[atom]
        elif not atom.ranges.isdisjoint(places):
            total = total + step * sampled(atom, places)
    return total


def sampled(root: Expr, places: Places, sample: Any = 0) -> Any:
    """The values of any expression at some places. Loaded values are spread evenly, and others in
    each `sample`.
    """
    known: dict[Expr, Any] = {}
    for e in toposort([root]):
        src = [known[s] for s in e.src]
        if e.op is ExprOp.CONST:
            known[e] = _wrapped(e.arg)
        elif e.op is ExprOp.VARIABLE:
            known[e] = e.max
        elif e.op is ExprOp.RANGE:
            known[e] = places.get(e, 0)
        elif e.op in (ExprOp.LOAD, ExprOp.READ):
            known[e] = (_whole(sum(src[:1])) + sample) * _MIX % (1 << 31) >> 4
        elif e.op in _OPERATIONS:
            known[e] = _OPERATIONS[e.op](*src)
        else:  # a cast of an index, as a rule; an index may be computed of floats
            value = src[0] if src else 0
            known[e] = value if dtypes.is_float(e.dtype) else _whole(value)
    return known[root]
