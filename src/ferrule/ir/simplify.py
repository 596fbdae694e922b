"""Constant folding and simplification of nodes as they are made."""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

from ferrule.ir.constant_folding import Scalar, fold, fold_reduce, is_negative_zero, same_operand
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr, sint
from ferrule.ir.lazyop import FunctionOps, LoadOps, MovementOps, Op, ReduceOps, TernaryOps, UnaryOps
from ferrule.ir.node import Node, Shape
from ferrule.ir.op_table import ELEMENTWISE, MOVEMENTS, REDUCED, WHOLE_MOVEMENTS
from ferrule.ir.shape.layout import storage_size

ELEMENT_BY_ELEMENT: Final = frozenset({*ELEMENTWISE, *FunctionOps, *WHOLE_MOVEMENTS})
SPECIAL: Final = frozenset({TernaryOps.WHERE, UnaryOps.NEG, UnaryOps.CAST})
"""The element-wise ops that may have a simpler form though no operand is a constant."""
_ADDS_ZEROS: Final = frozenset([op for op, row in MOVEMENTS.items() if row.zeros])


_CONST: Final = LoadOps.CONST
_MOST_KEPT: Final = 4096
"""Operations with constants that are known to have no simpler form. Not measured."""
_without_gain: Final[set[tuple[Op, DType, tuple[int, ...]]]] = set()
"""They, by the constants' serial numbers, with -1 for what is no constant: to find that out takes a
microsecond, as long as to make the node."""
_Node = TypeVar("_Node", bound=Node)
Region: TypeAlias = tuple[tuple[sint, sint], ...]


def is_empty(shape: Shape) -> bool:
    """True for a shape without elements."""
    return 0 in shape


def simplify(op: Op, srcs: tuple[_Node, ...], shape: Shape) -> _Node | Scalar | None:
    """The result of an element-wise operation, if it needs no node of its own; else None.

    It is a node with the same bits, or the number that all elements are.
    """
    if 0 in shape:
        return 0
    if op in SPECIAL:
        if op is TernaryOps.WHERE and srcs[1] is srcs[2]:
            return srcs[1]
        inner = srcs[0].srcs
        if op is UnaryOps.NEG and srcs[0].op is UnaryOps.NEG and inner:
            return inner[0]
        if op is UnaryOps.CAST:
            return None
    for source in srcs:
        if source.op is _CONST:
            return _with_constants(op, srcs)
    return None


def _with_constants(op: Op, srcs: tuple[_Node, ...]) -> _Node | Scalar | None:
    # Serial numbers are never used again, so what was found for a constant stays right.
    key = op, srcs[-1].dtype, tuple([node.serial if node.op is _CONST else -1 for node in srcs])
    if key in _without_gain:
        return None
    found = _folded(op, srcs)
    if found is None:
        if len(_without_gain) >= _MOST_KEPT:
            _without_gain.clear()
        _without_gain.add(key)
    return found


def _folded(op: Op, srcs: tuple[_Node, ...]) -> _Node | Scalar | None:
    known: list[Scalar | None] = []
    numbers: list[Scalar] = []
    for source in srcs:
        value = source.base_const()
        if value is None or isinstance(value, Expr):
            known.append(None)
        else:
            known.append(value)
            numbers.append(value)
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


def join_mask(node: _Node) -> _Node | None:
    """The mask by which a WHERE chooses a padded value inside its padding; None for other nodes.

    A join, values side by side, is a chain of such WHEREs; the last value is padded alone.
    """
    if node.op is not TernaryOps.WHERE or node.realized is not None:
        return None
    condition, padded, _ = node.srcs
    if condition.op is not MovementOps.PAD or padded.op is not MovementOps.PAD:
        return None
    if condition.realized is not None or padded.realized is not None:
        return None
    is_inside = condition.arg == padded.arg and condition.srcs[0].base_const() is True
    return condition if is_inside else None


def part_of_join(node: _Node, part: Region) -> tuple[_Node, Region]:
    """The value that has all elements of a part of a join, and the part of it that these are.

    It is the join itself if several values have them. `part` is (start, stop) for each axis.
    """
    while True:
        if join_mask(node) is not None:
            _, padded, others = node.srcs
            if _is_inside(part, padded):
                node = padded
            elif _is_outside(part, padded):
                node = others
            else:
                return node, part
        elif node.op is MovementOps.PAD and node.srcs and _is_inside(part, node):
            befores = [before for before, _ in node.arg]
            moved = zip(part, befores, strict=True)
            part = tuple([(start - before, stop - before) for (start, stop), before in moved])
            node = node.srcs[0]
        else:
            return node, part


def _is_inside(part: Region, padded: Node) -> bool:
    """True if a part has none of the padding; False where a size is symbolic."""
    for (start, stop), (before, after), size in zip(part, padded.arg, padded.shape, strict=True):
        if (before, after) == (0, 0):
            continue
        if not _are_known(start, stop, before, after, size):
            return False
        if start < before or stop > size - after:
            return False
    return True


def _is_outside(part: Region, padded: Node) -> bool:
    """True if a part has nothing but padding; False where a size is symbolic."""
    for (start, stop), (before, after), size in zip(part, padded.arg, padded.shape, strict=True):
        if _are_known(start, stop, before, after, size) and (
            stop <= before or start >= size - after
        ):
            return True
    return False


def _are_known(*sizes: sint) -> bool:
    return all([isinstance(size, int) for size in sizes])
