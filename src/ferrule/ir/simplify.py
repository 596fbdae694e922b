"""Constant folding and simplification of nodes as they are made."""

from __future__ import annotations

from typing import Final, TypeVar

from ferrule.ir.constant_folding import Scalar, fold, fold_reduce, is_negative_zero, same_operand
from ferrule.ir.expr import Expr
from ferrule.ir.lazyop import FunctionOps, LoadOps, MovementOps, Op, ReduceOps, TernaryOps, UnaryOps
from ferrule.ir.node import Node, Shape
from ferrule.ir.op_table import ELEMENTWISE, MOVEMENTS, REDUCED, WHOLE_MOVEMENTS
from ferrule.ir.shape.layout import storage_size

ELEMENT_BY_ELEMENT: Final = frozenset({*ELEMENTWISE, *FunctionOps, *WHOLE_MOVEMENTS})
_SPECIAL: Final = frozenset({TernaryOps.WHERE, UnaryOps.NEG, UnaryOps.CAST})
_ADDS_ZEROS: Final = frozenset([op for op, row in MOVEMENTS.items() if row.zeros])


_Node = TypeVar("_Node", bound=Node)


def is_empty(shape: Shape) -> bool:
    """True for a shape without elements."""
    return 0 in shape


def simplify(op: Op, srcs: tuple[_Node, ...], shape: Shape) -> _Node | Scalar | None:
    """The result of an element-wise operation, if it needs no node of its own; else None.

    It is a node with the same bits, or the number that all elements are.
    """
    if 0 in shape:
        return 0
    if op in _SPECIAL:
        if op is TernaryOps.WHERE and srcs[1] is srcs[2]:
            return srcs[1]
        inner = srcs[0].srcs
        if op is UnaryOps.NEG and srcs[0].op is UnaryOps.NEG and inner:
            return inner[0]
        if op is UnaryOps.CAST:
            return None
    constant = LoadOps.CONST
    for source in srcs:
        if source.op is constant:
            return _with_constants(op, srcs)
    return None


def _with_constants(op: Op, srcs: tuple[_Node, ...]) -> _Node | Scalar | None:
    values = [source.base_const() for source in srcs]
    known = [None if isinstance(value, Expr) else value for value in values]
    numbers = [value for value in known if value is not None]
    if not numbers:
        return None
    if len(numbers) == len(srcs) and op is not TernaryOps.WHERE:
        return fold(op, srcs[0].dtype, numbers)
    place = same_operand(op, srcs[-1].dtype, known)
    return None if place is None else srcs[place]


def reduced_const(op: ReduceOps, source: Node, shape: Shape) -> Scalar | None:
    """The value of a reduce of nothing or of a constant; None if its rounding is unknown."""
    dtype = source.dtype
    if is_empty(source.shape):
        return REDUCED[op].identity(dtype)
    value = source.base_const()
    if value is None or isinstance(value, Expr):
        return None
    if not all([isinstance(size, int) for size in source.shape]):
        return None
    return fold_reduce(op, dtype, value, storage_size(source.shape) // storage_size(shape))


def moved_const(op: MovementOps, source: Node) -> Scalar | Expr | None:
    """The value that all elements still have when a constant is moved."""
    value = source.base_const()
    return value if op not in _ADDS_ZEROS or _is_plain_zero(value) else None


def _is_plain_zero(value: object) -> bool:
    return isinstance(value, int | float) and value == 0 and not is_negative_zero(value)
