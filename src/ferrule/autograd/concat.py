"""Concatenation of values, and the gradients of slices, which are concatenated, not added."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from ferrule.autograd.tape import Gradients, GradNode, Rule, TracedValue, record
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import as_int, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import MovementOps, TernaryOps
from ferrule.ir.shape.view import same

_MAX_PIECES: Final = 8
"""Values side by side in one node of a concatenation; more are a tree of such nodes. A kernel that
tells its pieces apart by conditions has a loop for each, so that their number has to be small."""


def concatenated(values: Sequence[TracedValue], axis: int) -> TracedValue:
    """Values joined along an axis."""
    if len(values) == 1:
        return values[0]
    some = [value for value in values if not same(value.shape[axis], 0)] or list(values[:1])
    pieces = [value.node for value in some]
    while len(pieces) > _MAX_PIECES:
        groups = -(-len(pieces) // _MAX_PIECES)
        ends = [len(pieces) * group // groups for group in range(groups + 1)]
        pieces = [_side_by_side(pieces[start:end], axis) for start, end in pairwise(ends)]
    return record("cat", _CAT, values, _side_by_side(pieces, axis), axis)


def _side_by_side(pieces: Sequence[LazyBuffer], axis: int) -> LazyBuffer:
    """Few nodes, joined along an axis: each is chosen by a condition on the index."""
    if len(pieces) == 1:
        return pieces[0]
    total: sint = 0
    for node in pieces:
        total = as_int(total + node.shape[axis])
    result = _placed(pieces[0], axis, 0, total)
    start: sint = pieces[0].shape[axis]
    for node in pieces[1:]:
        true = LazyBuffer.const(True, dtypes.bool, node.shape, node.device)
        there = _placed(true, axis, start, total)
        result = there.e(TernaryOps.WHERE, _placed(node, axis, start, total), result)
        start = as_int(start + node.shape[axis])
    return result


def all_true(value: TracedValue) -> LazyBuffer:
    """True for every element of a value."""
    return LazyBuffer.const(True, dtypes.bool, value.shape, value.node.device)


def _placed(node: LazyBuffer, axis: int, start: sint, total: sint) -> LazyBuffer:
    """The node from `start` on along an axis of `total`, zeros elsewhere."""
    padding: list[tuple[sint, sint]] = [(0, 0)] * len(node.shape)
    padding[axis] = (start, as_int(total - start - node.shape[axis]))
    return node.pad(padding)


def _reverse_cat(grad: TracedValue, entry: GradNode) -> Gradients:
    parts: list[TracedValue | None] = []
    start: sint = 0
    for shape, parent in zip(entry.shapes, entry.parents, strict=True):
        stop = as_int(start + shape[entry.arg])
        arg: list[tuple[sint, sint]] = [(0, size) for size in shape]
        arg[entry.arg] = (start, stop)
        parts.append(None if parent is None else grad.shrink(arg))
        start = stop
    return tuple(parts)


_CAT = Rule(_reverse_cat)


# *** gradients of parts ***


def total_gradient(grads: Sequence[Any]) -> Any:
    """The sum of the gradients that have arrived at one edge.

    Each slice of a value (`chunk`, `x[i]`) gives a gradient that is padded with zeros. If the
    slices fill the value, their gradients are concatenated, and no zeros are added.
    """
    if len(grads) == 1:
        return grads[0]
    padded = [grad for grad in grads if _is_padded(grad)]
    joined = _joined(padded) if len(padded) > 1 else None
    rest = list(grads)
    if joined is not None:
        rest = [joined, *[grad for grad in grads if not _is_padded(grad)]]
    total = rest[0]
    for grad in rest[1:]:
        total = total + grad
    return total


def _is_padded(grad: object) -> bool:
    if not isinstance(grad, TracedValue) or grad.node.realized is not None:
        return False
    return grad.node.op is MovementOps.PAD


def _joined(padded: Sequence[TracedValue]) -> TracedValue | None:
    """The sum of padded values that lie one after the other along an axis; None if they do not."""
    args = [value.node.arg for value in padded]
    axes = {axis for arg in args for axis, pair in enumerate(arg) if pair != (0, 0)}
    if len(axes) != 1:
        return None
    (axis,) = axes
    if not all([isinstance(amount, int) for arg in args for amount in arg[axis]]):
        return None
    pairs = sorted(zip([arg[axis][0] for arg in args], padded, strict=True), key=lambda p: p[0])
    reached = 0
    for start, value in pairs:
        if start != reached:
            return None
        reached = value.shape[axis] - value.node.arg[axis][1]
    if reached != padded[0].shape[axis]:
        return None
    return concatenated([_inside(value) for _, value in pairs], axis)


def _inside(padded: TracedValue) -> TracedValue:
    """A padded value without its padding."""
    node = padded.node
    if padded.edge is None:
        return TracedValue(node.srcs[0])
    sizes = zip(node.arg, node.shape, strict=True)
    return padded.shrink([(before, size - after) for (before, after), size in sizes])
