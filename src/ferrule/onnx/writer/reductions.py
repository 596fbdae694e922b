"""Reduces; sums of products are products of matrices where the operands share no more than that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ferrule.ir.dtype import dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, MovementOps, Op, ReduceOps
from ferrule.ir.shape.view import Shape, prod_sint, same
from ferrule.onnx.writer.builder import Builder, Value
from ferrule.onnx.writer.elementwise import back_in_order, carried, in_order
from ferrule.onnx.writer.movements import sliced
from ferrule.onnx.writer.plan import Plan, Planner, rule

_OPERATORS: Final[dict[Op, str]] = {
    ReduceOps.SUM: "ReduceSum",
    ReduceOps.MAX: "ReduceMax",
    ReduceOps.PROD: "ReduceProd",
}


@rule(ReduceOps.MAX, ReduceOps.PROD)
def _reduce(planner: Planner, node: LazyBuffer) -> Plan:
    return _along_axes(node)


@rule(ReduceOps.SUM)
def _sum(planner: Planner, node: LazyBuffer) -> Plan:
    return _contraction(planner, node) or _along_axes(node)


def _along_axes(node: LazyBuffer) -> Plan:
    axes = [
        axis
        for axis, (size, own) in enumerate(zip(node.srcs[0].shape, node.shape, strict=True))
        if not same(size, own)
    ]

    def write(builder: Builder, x: Value) -> Value:
        return reduced(builder, x, _OPERATORS[node.op], axes, node.shape)

    return Plan(node.srcs, write)


def reduced(builder: Builder, x: Value, operator: str, axes: Sequence[int], shape: Shape) -> Value:
    """The axes combined into one element each."""
    ordered = in_order(builder, x) if operator == "ReduceMax" else x
    wide = carried(builder, ordered)
    if operator == "ReduceProd" and dtypes.is_int(wide.dtype):
        return builder.cast(_product(builder, wide, axes), x.dtype)
    result = builder.add(operator, [wide, builder.integers(axes)], wide.dtype, shape, keepdims=1)
    if operator == "ReduceMax":
        result = back_in_order(builder, result, x.dtype)
    return builder.cast(result, x.dtype)


def _product(builder: Builder, x: Value, axes: Sequence[int]) -> Value:
    """The product of integers, which wraps: ONNX Runtime's ReduceProd computes in floats."""
    for axis in axes:
        size = x.shape[axis]
        if not isinstance(size, int):
            shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
            x = builder.add("ReduceProd", [x, builder.integers([axis])], x.dtype, shape, keepdims=1)
            continue
        while size > 1:
            half = size // 2
            first = sliced(builder, x, [(axis, 0, half, 1)])
            product = builder.like("Mul", first, sliced(builder, x, [(axis, half, 2 * half, 1)]))
            if size % 2:
                last = sliced(builder, x, [(axis, size - 1, size, 1)])
                shape = (*x.shape[:axis], half + 1, *x.shape[axis + 1 :])
                product = builder.add("Concat", [product, last], x.dtype, shape, axis=axis)
            x, size = product, half + size % 2
    return x


# *** products of matrices ***


class _Operand(NamedTuple):
    """An operand without its expansions: a node, and the axis of it for each axis of the product,
    None where it does not vary."""

    node: LazyBuffer
    axes: tuple[int | None, ...]

    def varies(self, axis: int) -> bool:
        return self.axes[axis] is not None


def _operand(planner: Planner, node: LazyBuffer) -> _Operand:
    shape = node.shape
    if _is_free(planner, node, MovementOps.EXPAND):
        node = node.srcs[0]
    own = [axis for axis, size in enumerate(node.shape) if not same(size, 1)]
    numbers: dict[int, int] = {axis: axis for axis in own}
    if _is_free(planner, node, MovementOps.RESHAPE):
        (source,) = node.srcs
        inner = [axis for axis, size in enumerate(source.shape) if not same(size, 1)]
        fits = len(inner) == len(own) and all(
            [same(source.shape[a], node.shape[b]) for a, b in zip(inner, own, strict=True)]
        )
        if fits:
            node = source
            numbers = dict(zip(own, inner, strict=True))
    return _Operand(node, tuple([numbers.get(axis) for axis in range(len(shape))]))


def _is_free(planner: Planner, node: LazyBuffer, op: Op) -> bool:
    return node.op is op and node.realized is None and not planner.is_noted(node)


def _contraction(planner: Planner, node: LazyBuffer) -> Plan | None:
    (product,) = node.srcs
    if product.op is not BinaryOps.MUL or product.realized is not None:
        return None
    if node.dtype is dtypes.bool or planner.is_noted(product):
        return None
    a, b = [_operand(planner, source) for source in product.srcs]
    groups: dict[tuple[bool, bool, bool], list[int]] = {}
    for axis, (size, own) in enumerate(zip(product.shape, node.shape, strict=True)):
        if not same(size, 1):
            groups.setdefault((a.varies(axis), b.varies(axis), same(size, own)), []).append(axis)
    batch = groups.pop((True, True, True), [])
    rows = groups.pop((True, False, True), [])
    columns = groups.pop((False, True, True), [])
    summed = groups.pop((True, True, False), [])
    if groups or not summed or not (rows or columns):
        return None

    def write(builder: Builder, x: Value, y: Value) -> Value:
        shape = product.shape
        left = _matrix(builder, x, a, [batch, rows, summed], shape, len(batch))
        right = _matrix(builder, y, b, [batch, summed, columns], shape, len(batch))
        sizes = [tuple([shape[axis] for axis in group]) for group in (batch, rows, columns)]
        plain = (*sizes[0], prod_sint(sizes[1]), prod_sint(sizes[2]))
        found = builder.add("MatMul", [left, right], left.dtype, plain)
        order = [*batch, *rows, *columns]
        result = builder.reshape(found, tuple([shape[axis] for axis in order]))
        result = builder.transpose(result, [order.index(axis) for axis in sorted(order)])
        return builder.reshape(builder.cast(result, node.dtype), node.shape)

    return Plan([a.node, b.node], write)


def _matrix(
    builder: Builder,
    value: Value,
    operand: _Operand,
    groups: Sequence[Sequence[int]],
    shape: Shape,
    n_batch: int,
) -> Value:
    """An operand as matrices: batch axes, and then one axis for each other group."""
    value = carried(builder, value)
    wanted = [axis for group in groups for axis in group]
    axes = [operand.axes[axis] for axis in wanted]
    order = [axis for axis in axes if axis is not None]
    ones = [axis for axis in range(len(value.shape)) if axis not in order]
    moved = builder.transpose(value, [*ones, *order]) if order != sorted(order) else value
    merged = [prod_sint([shape[axis] for axis in group]) for group in groups[1:]]
    return builder.reshape(moved, (*[shape[axis] for axis in groups[0]][:n_batch], *merged))
