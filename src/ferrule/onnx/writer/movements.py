"""Movements: elements rearranged, repeated, picked by position, and written at positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import as_int, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, LoadOps, MovementOps, ReduceOps, TernaryOps, how_scattered
from ferrule.ir.op_table import scatter_start
from ferrule.ir.shape.view import Shape, prod_sint, same
from ferrule.ir.simplify import join_mask
from ferrule.onnx.writer.builder import Builder, Value
from ferrule.onnx.writer.elementwise import (
    back_in_order,
    carried,
    chosen,
    elementwise,
    in_order,
    passed_on,
    widened,
)
from ferrule.onnx.writer.plan import Plan, Planner, call_rule, rule


@rule(MovementOps.RESHAPE)
def _reshape(planner: Planner, node: LazyBuffer) -> Plan:
    return Plan(node.srcs, lambda builder, x: builder.reshape(x, node.shape))


@rule(MovementOps.PERMUTE)
def _permute(planner: Planner, node: LazyBuffer) -> Plan:
    return Plan(node.srcs, lambda builder, x: builder.transpose(x, node.arg))


@rule(MovementOps.EXPAND)
def _expand(planner: Planner, node: LazyBuffer) -> Plan:
    return Plan(node.srcs, lambda builder, x: builder.expand(x, node.shape))


# *** parts and padding ***


@rule(MovementOps.PAD)
def _pad(planner: Planner, node: LazyBuffer) -> Plan:
    def write(builder: Builder, x: Value) -> Value:
        befores, afters = zip(*node.arg, strict=True)
        return padded(builder, x, (*befores, *afters), node.shape)

    return Plan(node.srcs, write)


def padded(builder: Builder, x: Value, amounts: Sequence[sint], shape: Shape) -> Value:
    """Zeros around a value: those before each axis, and then those after each."""
    wide = carried(builder, x)
    zero = builder.number(0, wide.dtype)
    result = builder.add("Pad", [wide, builder.sizes(amounts), zero], wide.dtype, shape)
    return builder.cast(result, x.dtype)


def sliced(builder: Builder, x: Value, parts: Sequence[tuple[int, sint, sint, int]]) -> Value:
    """The elements `start` to `stop - 1` along some axes, by steps: (axis, start, stop, step)."""
    if not parts:
        return x
    axes, starts, stops, steps = zip(*parts, strict=True)
    shape = list(x.shape)
    for axis, start, stop, step in parts:
        shape[axis] = as_int((stop - start + step - 1) // step) if step > 0 else x.shape[axis]
    inputs = [x, builder.sizes(starts), builder.sizes(stops), builder.integers(axes)]
    if any([step != 1 for step in steps]):
        inputs.append(builder.integers(steps))
    return builder.add("Slice", inputs, x.dtype, tuple(shape))


@rule(MovementOps.SHRINK)
def _shrink(planner: Planner, node: LazyBuffer) -> Plan:
    (source,) = node.srcs
    parts = [
        (axis, start, stop, 1)
        for axis, ((start, stop), size) in enumerate(zip(node.arg, source.shape, strict=True))
        if not (same(start, 0) and same(stop, size))
    ]

    def write(builder: Builder, x: Value) -> Value:
        return sliced(builder, x, parts)._replace(shape=node.shape)

    return Plan(node.srcs, write)


@call_rule("iota")
def _iota(node: LazyBuffer, sources: Sequence[Any], arg: Any) -> Plan:
    def write(builder: Builder) -> Value:
        return builder.cast(_positions(builder, node.shape[0], 1), node.dtype)

    return Plan((), write)


@rule(MovementOps.STRIDE)
def _stride(planner: Planner, node: LazyBuffer) -> Plan:
    def write(builder: Builder, x: Value) -> Value:
        parts: list[tuple[int, sint, sint, int]] = []
        for axis, (step, size) in enumerate(zip(node.arg, x.shape, strict=True)):
            if step > 0:
                parts.append((axis, 0, size, step))
            else:
                parts.append((axis, -1, -(2**63), step))
        chosen = [part for part in parts if part[3] != 1]
        return sliced(builder, x, chosen)._replace(shape=node.shape)

    return Plan(node.srcs, write)


@rule(MovementOps.AS_STRIDED)
def _as_strided(planner: Planner, node: LazyBuffer) -> Plan | None:
    shape, strides, offset = node.arg
    if not all([isinstance(n, int) for n in (*shape, *strides)]):
        return None

    def write(builder: Builder, x: Value) -> Value:
        flat = builder.reshape(x, (prod_sint(x.shape),))
        places = places_of(builder, shape, strides, offset)
        return builder.add("Gather", [flat, places], x.dtype, shape, axis=0)

    return Plan(node.srcs, write)


def places_of(
    builder: Builder, shape: Sequence[int], strides: Sequence[int], offset: sint
) -> Value:
    """The places in flat memory of the elements of a view."""
    places = np.zeros(shape, np.int64)
    for axis, (size, step) in enumerate(zip(shape, strides, strict=True)):
        along = [1] * len(shape)
        along[axis] = size
        places += (np.arange(size) * step).reshape(along)
    if isinstance(offset, int):
        return builder.constant(places + offset)
    return builder.like("Add", builder.constant(places), builder.size(offset))


# *** windows ***


def _positions(builder: Builder, count: sint, step: int) -> Value:
    """So many numbers from 0 on, a step apart."""
    if isinstance(count, int):
        return builder.constant(np.arange(count, dtype=np.int64) * step)
    ends = [builder.reshape(builder.size(n), ()) for n in (0, count, 1)]
    found = builder.add("Range", ends, dtypes.int64, (count,))
    if step == 1:
        return found
    return builder.like("Mul", found, builder.number(step, dtypes.int64))


def _two_axes(builder: Builder, rows: sint, row: int, columns: sint, column: int) -> Value:
    """i * row + k * column, for each i and k."""
    if isinstance(rows, int) and isinstance(columns, int):
        table = np.arange(rows)[:, None] * row + np.arange(columns) * column
        return builder.constant(table.astype(np.int64))
    first = builder.reshape(_positions(builder, rows, row), (rows, 1))
    return builder.like("Add", first, _positions(builder, columns, column))


@rule(MovementOps.WINDOW)
def _window(planner: Planner, node: LazyBuffer) -> Plan:
    axis, size, stride, dilation = node.arg

    def write(builder: Builder, x: Value) -> Value:
        rank = len(x.shape)
        places = _two_axes(builder, node.shape[axis], stride, size, dilation)
        shape = (*x.shape[:axis], node.shape[axis], size, *x.shape[axis + 1 :])
        found = builder.add("Gather", [x, places], x.dtype, shape, axis=axis)
        order = [place for place in range(rank + 1) if place != axis + 1]
        return builder.transpose(found, [*order, axis + 1])

    return Plan(node.srcs, write)


@rule(MovementOps.UNWINDOW)
def _unwindow(planner: Planner, node: LazyBuffer) -> Plan | None:
    axis, length, stride, dilation = node.arg
    (source,) = node.srcs
    count, size = source.shape[axis], source.shape[-1]
    if not isinstance(length, int) or not isinstance(count, int) or not isinstance(size, int):
        return None
    place = np.arange(length)[:, None] - np.arange(size) * dilation
    window = place // stride
    there = (place % stride == 0) & (window >= 0) & (window < count)
    chosen = window * size + np.arange(size)
    flat = np.where(there, chosen, count * size)

    def write(builder: Builder, x: Value) -> Value:
        rank = len(x.shape)
        order = [*range(axis + 1), rank - 1, *range(axis + 1, rank - 1)]
        moved = builder.transpose(x, order)
        rest = x.shape[axis + 1 : -1]
        merged = builder.reshape(moved, (*x.shape[:axis], count * size, *rest))
        amounts = [0] * (2 * (rank - 1))
        amounts[rank - 1 + axis] = 1
        wide = padded(builder, merged, amounts, (*x.shape[:axis], count * size + 1, *rest))
        shape = (*x.shape[:axis], length, size, *rest)
        places = builder.constant(np.asarray(flat, np.int64))
        found = builder.add("Gather", [wide, places], x.dtype, shape, axis=axis)
        back = [i for i in range(rank) if i != axis + 1]
        return builder.transpose(found, [*back, axis + 1])

    return Plan(node.srcs, write)


# *** values side by side ***


@rule(TernaryOps.WHERE)
def _where(planner: Planner, node: LazyBuffer) -> Plan | None:
    return _joined(planner, node) or elementwise(planner, node)


def _joined(planner: Planner, node: LazyBuffer) -> Plan | None:
    """A chain of padded values that fill an axis, as they are joined."""
    found: list[tuple[sint, LazyBuffer, sint]] = []
    axes: set[int] = set()
    part: LazyBuffer = node
    while True:
        padding = part.srcs[1] if join_mask(part) is not None else part
        if padding.op is not MovementOps.PAD or padding.realized is not None:
            return None
        axes |= {a for a, pair in enumerate(padding.arg) if not all([same(n, 0) for n in pair])}
        if len(axes) != 1:
            return None
        (axis,) = axes
        start, after = padding.arg[axis]
        found.append((start, padding.srcs[0], as_int(node.shape[axis] - after)))
        if padding is part:
            break
        part = part.srcs[2]
    reached: sint = 0
    for start, _, stop in reversed(found):
        if not same(start, reached):
            return None
        reached = stop
    if not same(reached, node.shape[axis]):
        return None
    pieces = [piece for _, piece, _ in reversed(found)]

    def write(builder: Builder, *values: Value) -> Value:
        return builder.add("Concat", values, node.dtype, node.shape, axis=axis)

    return Plan(pieces, write)


# *** positions from tensors ***


@rule(MovementOps.GATHER)
def _gather(planner: Planner, node: LazyBuffer) -> Plan:
    """Rows of a table where the positions are the same for whole rows, else single elements.

    Positions that count from the end if negative are ONNX's own, which gives an error for those
    out of range. Others read 0 there.
    """
    source, index = node.srcs
    axis, size = node.arg, source.shape[node.arg]
    rows = _repeated(index, axis)
    shown = index if rows is None else rows
    counted = _counted_from_end(shown, size)
    shown = shown if counted is None else counted
    whole = (*source.shape[:axis], node.shape[axis], *source.shape[axis + 1 :])

    def write(builder: Builder, x: Value, places: Value) -> Value:
        inside = None
        if counted is None:
            places, inside = _inside(builder, places, builder.size(size))
        if rows is None:
            found = builder.add("GatherElements", [x, places], x.dtype, node.shape, axis=axis)
        else:
            flat = builder.reshape(places, (node.shape[axis],))
            found = builder.add("Gather", [x, flat], x.dtype, whole, axis=axis)
            if inside is not None:
                shape = [1] * len(whole)
                inside = builder.reshape(
                    inside, (*shape[:axis], node.shape[axis], *shape[axis + 1 :])
                )
        if inside is None:
            return found
        zero = builder.number(0, node.dtype)
        return chosen(builder, inside, found, zero)._replace(shape=node.shape)

    return Plan([source, shown], write)


def _inside(builder: Builder, places: Value, size: Value) -> tuple[Value, Value]:
    """The places with 0 for those out of range, and where they are in range."""
    zero = builder.number(0, dtypes.int64)
    wide = builder.cast(places, dtypes.int64)
    low = builder.compared("Less", wide, zero)
    high = builder.compared("Less", wide, size)
    inside = builder.like("And", builder.like("Not", low), high)
    inside = inside._replace(shape=places.shape)
    chosen = builder.add("Where", [inside, wide, zero], dtypes.int64, places.shape)
    return chosen, inside


def _repeated(index: LazyBuffer, axis: int) -> LazyBuffer | None:
    """What an index repeats along all axes but one; None if it varies along others."""
    if index.op is MovementOps.EXPAND and index.realized is None:
        index = index.srcs[0]
    others = [size for place, size in enumerate(index.shape) if place != axis]
    return index if all([same(size, 1) for size in others]) else None


def _counted_from_end(index: LazyBuffer, size: sint) -> LazyBuffer | None:
    """The positions of which those below 0 were made to count from the end; else None."""
    shape = index.shape
    while index.op in (MovementOps.RESHAPE, MovementOps.EXPAND) and index.realized is None:
        index = index.srcs[0]
    if index.op is not TernaryOps.WHERE or index.realized is not None:
        return None
    condition, moved, plain = index.srcs
    zero = plain.const(0, plain.dtype, plain.shape, plain.device)
    count = plain.const(size, plain.dtype, plain.shape, plain.device)
    is_so = condition is plain.e(BinaryOps.CMPLT, zero) and moved is plain.e(BinaryOps.ADD, count)
    if not is_so or not same(prod_sint(shape), prod_sint(plain.shape)):
        return None
    return plain


_REDUCTIONS = {"add": "add", "prod": "mul", "max": "max", "min": "min", "last": "none"}


@rule(ReduceOps.SCATTER)
def _scatter(planner: Planner, node: LazyBuffer) -> Plan:
    """Elements written at positions; those out of range go to a row that is cut off again."""
    axis, size = node.arg[:2]
    how = how_scattered(node.arg)

    def write(builder: Builder, value: Value, index: Value, *base: Value) -> Value:
        ordered = how in ("max", "min")
        given = [widened(builder, part) for part in (value, *base)]
        if ordered:
            given = [in_order(builder, part) for part in given]
        new, *old = [carried(builder, part) for part in given]
        wide = [*node.shape]
        wide[axis] = as_int(size + 1)
        if old:
            amounts: list[sint] = [0] * (2 * len(wide))
            amounts[len(wide) + axis] = 1
            start = padded(builder, old[0], amounts, tuple(wide))
        else:
            number = builder.number(scatter_start(how, node.dtype), node.dtype)
            number = widened(builder, number)
            number = in_order(builder, number) if ordered else builder.cast(number, new.dtype)
            start = builder.expand(builder.cast(number, new.dtype), tuple(wide))
        end = builder.size(size)
        places, inside = _inside(builder, index, end)
        places = builder.add("Where", [inside, places, end], dtypes.int64, index.shape)
        attributes: dict[str, Any] = {"axis": axis, "reduction": _REDUCTIONS[how]}
        inputs = [start, places, new]
        found = builder.add("ScatterElements", inputs, new.dtype, tuple(wide), **attributes)
        found = sliced(builder, found, [(axis, 0, size, 1)])._replace(shape=node.shape)
        if ordered:
            found = back_in_order(builder, found, node.dtype)
        return builder.cast(found, node.dtype)

    return Plan(node.srcs, write)


# *** memory ***


@rule(LoadOps.ASSIGN)
def _assign(planner: Planner, node: LazyBuffer) -> Plan | None:
    """The next version of memory: a part replaced, as elements of the flat memory."""
    view = node.arg
    if view is None:
        return passed_on(node)
    if not all([isinstance(n, int) for n in (*view.shape, *view.strides)]):
        return None

    def write(builder: Builder, old: Value, new: Value) -> Value:
        flat = builder.reshape(old, (prod_sint(old.shape),))
        places = places_of(builder, view.shape, view.strides, view.offset)
        count = (prod_sint(view.shape),)
        inputs = [flat, builder.reshape(places, count), builder.reshape(new, count)]
        found = builder.add("ScatterElements", inputs, old.dtype, flat.shape, axis=0)
        return builder.reshape(found, old.shape)

    return Plan(node.srcs, write)
