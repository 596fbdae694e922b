"""Long reduces in parts: first each part, then all parts, so that all threads have work.

A graph is rewritten before it is cut (`rebuilt`), by shapes alone. So the bits of such a reduce
depend on nothing else: not on the number of threads, and not on what a kernel fuses with it. The
tree of a kernel for thread blocks may be split again (`in_parts`), by its schedule
(`codegen/schedules/gpu/split_reduce.py`).

The parts have an axis of their own, and are combined along it in their order, so that the bits are
the same each time. In a graph, where there are few results, the parts of each lie side by side, and
the second kernel reads rows. In a tree that axis is the outermost in memory: the first kernel then
stores as contiguously as it would store the results.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ferrule.base.helpers import prod
from ferrule.ir.dtype import DType, compute_dtype
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BufferOps, LazyOp, MemBuffer, ReduceOps, UnaryOps
from ferrule.ir.op_table import MOVEMENTS, REDUCED, combination_of, reduced_axes
from ferrule.ir.shape.layout import storage_shape
from ferrule.ir.shape.movement import is_known
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import Shape
from ferrule.ir.simplify import ELEMENT_BY_ELEMENT

if TYPE_CHECKING:  # thread blocks alone need it
    from ferrule.codegen.schedules.gpu.split_reduce import Parts

FEW_RESULTS: Final = 32
"""Results; fewer cannot keep the threads busy. Not measured."""
MAX_PARTS: Final = 16 * FEW_RESULTS
_FEW_PARTS: Final = 8
"""Parts that are better than none, for 8 threads."""
LONG_REDUCE: Final = 1 << 17
"""Elements for each result from which a second kernel is worth its time. Not measured by itself."""
TALL_RESULTS: Final = 1024
TALL_ROWS: Final = 1024
TALL_SIZE: Final = 1 << 20
"""The columns at most, and the rows and elements at least, of a tall reduce in parts.

A thread that reads whole rows gets two to three times as much from memory as one that reads its
share of the columns of all rows.
"""
PARTIAL_RESULTS: Final = 1 << 14
"""Results of all parts together: so many threads, with several rows each, fill a GPU."""
MIN_PART_ROWS: Final = 256
"""Rows of one part; the second kernel then has little to do."""
_NEAREST: Final = 64
"""Nodes that are looked at below a reduce."""

_REPEATING: Final = frozenset([op for op, row in MOVEMENTS.items() if row.repeats])
Value = TypeVar("Value", LazyBuffer, LazyOp)


def _split(value: Value, axis: int, count: int) -> Value:
    """The value with an axis in `count` parts: an axis that counts them, and then one of each."""
    shape: Shape = value.shape
    return value.reshape((*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]))


# *** in a graph, by shapes ***


def rebuilt(node: LazyBuffer, srcs: tuple[LazyBuffer, ...]) -> LazyBuffer:
    """The node with other sources; in two steps if it is a long reduce.

    Nobody else finds the node that is returned: it stands for `node` alone.
    """
    if is_long(node):
        twin = _reduced(srcs[0], node.op, _axes(node))
        twin = twin.like(twin.srcs, twin.arg)
        twin.owner = node.owner
        return twin
    return node if srcs == node.srcs else node.like(srcs, node.arg)


def is_long(node: LazyBuffer) -> bool:
    """True if a node is a reduce that is computed in parts."""
    if node.op not in REDUCED or node.realized is not None:
        return False
    return _parts(node.srcs[0], _axes(node)) is not None


def _axes(reduce: LazyBuffer) -> frozenset[int]:
    return frozenset(reduced_axes(reduce.srcs[0].shape, reduce.shape))


def _parts(x: LazyBuffer, axes: frozenset[int]) -> tuple[int, int] | None:
    """The axis that is split, and the number of parts; None if the reduce is not long."""
    parts = parts_of_long_reduce(x.shape, axes)
    if parts is None:
        parts = parts_of_tall_reduce(x.shape, axes)
        if parts is not None and not _reads_all_elements(x):
            return None
    return parts


def _reduced(x: LazyBuffer, op: Any, axes: frozenset[int]) -> LazyBuffer:
    """A reduce, in parts if it is long."""
    found = _parts(x, axes)
    if found is None:
        return x.r(op, axes)
    axis, parts = found
    whole = x.cast(compute_dtype(x.dtype))
    length = x.shape[axis]
    even = _split(_along(whole, axis, 0, length // parts * parts), axis, parts)
    partial = even.r(op, {a + (a >= axis) for a in axes}).contiguous()
    kept = (*partial.shape[:axis], *partial.shape[axis + 1 :])
    result = partial.r(op, (axis,)).reshape(kept)
    rest = length % parts
    if rest != 0:
        # Of an end less the rest, it is known how long that is.
        combine = REDUCED[op].binary
        assert combine is not None, f"{op} has no op that combines two results"
        result = result.e(combine, _reduced(_along(whole, axis, length - rest, length), op, axes))
    return result.cast(x.dtype)


def _along(x: LazyBuffer, axis: int, start: sint, end: sint) -> LazyBuffer:
    """The elements from `start` to `end` on one axis."""
    bounds: list[tuple[sint, sint]] = [(0, n) for n in x.shape]
    bounds[axis] = start, end
    return x.shrink(bounds)


def _reads_all_elements(value: LazyBuffer) -> bool:
    """True if some operand below an element-wise value repeats none of its elements.

    The operands of a contraction's products all do. Only the nearest nodes are looked at.
    """
    seen = {value}
    waiting = [value]
    while waiting and len(seen) < _NEAREST:
        node = waiting.pop()
        if node.realized is None and node.op in ELEMENT_BY_ELEMENT:
            waiting.extend(source for source in node.srcs if source not in seen)
            seen.update(node.srcs)
        elif node.base_const() is None and node.op not in _REPEATING:
            return True
    return False


@lru_cache(maxsize=4096)
def parts_of_long_reduce(shape: Shape, axes: frozenset[int]) -> tuple[int, int] | None:
    """For a reduce of many elements to few results: an axis, and into how many parts to split it.

    If the parts do not divide the axis, what is left over is no longer than a part. A single
    axis has as many parts whether they divide it or not, so lengths near one another have the same
    number, and so has any length up to a bound.
    """
    sizes = storage_shape(shape)
    results = prod(n for axis, n in enumerate(sizes) if axis not in axes)
    combined = prod(sizes[axis] for axis in axes)
    if results >= FEW_RESULTS or combined < LONG_REDUCE:
        return None
    wanted = min(max(2 * FEW_RESULTS, combined // LONG_REDUCE + 1), MAX_PARTS - 1)
    largest = max(axes, key=lambda a: sizes[a])
    if sizes[largest] == combined:
        return largest, min(1 << (wanted - 1).bit_length(), MAX_PARTS // 2)
    if not is_known(shape):
        return None
    # Of the axes with parts for the threads, the outermost: its parts are the most contiguous.
    for axis in [*sorted(axes), largest]:
        size = sizes[axis]
        least = FEW_RESULTS if axis != largest else _FEW_PARTS
        fit = [parts for parts in range(least, MAX_PARTS) if size % parts == 0]
        if fit:
            return axis, next((parts for parts in fit if parts >= wanted), fit[-1])
        # What is left over is a part of its own, no larger than the others.
        uneven = [parts for parts in range(least, wanted + 1) if size % parts <= size // parts]
        if uneven:
            return axis, uneven[-1]
    return None


@lru_cache(maxsize=4096)
def parts_of_tall_reduce(shape: Shape, axes: frozenset[int]) -> tuple[int, int] | None:
    """For a reduce of many rows to one: their axis, and into how many parts to split it."""
    if not is_known(shape):
        return None
    sizes = storage_shape(shape)
    if any(n > 1 for axis, n in enumerate(sizes[:-1]) if axis not in axes):
        return None
    results, rows = sizes[-1], prod(sizes[:-1])
    if not FEW_RESULTS <= results <= TALL_RESULTS or rows < TALL_ROWS:
        return None
    if len(sizes) - 1 in axes or rows * results < TALL_SIZE:
        return None
    axis = max(axes, key=lambda a: sizes[a])
    wanted = max(FEW_RESULTS, min(PARTIAL_RESULTS // results, rows // MIN_PART_ROWS))
    even = 1 << (wanted.bit_length() - 1)  # the same for numbers of rows that are near one another
    if even <= sizes[axis] // even:
        return axis, even
    fit = [parts for parts in range(8, 4 * wanted) if sizes[axis] % parts == 0]
    if fit:
        return axis, min(fit, key=lambda parts: abs(parts - wanted))
    return (axis, wanted) if wanted <= sizes[axis] // wanted else None


# *** in the tree of a kernel, by its schedule ***


def in_parts(ast: LazyOp, parts: Parts, number: int) -> tuple[LazyOp, LazyOp]:
    """The trees of both kernels. The parts are in the buffers `number`, `number + 1` and so on."""
    stores, whole = [], {}
    for place, reduce in enumerate(parts.reduces):
        partial = _partial(reduce, parts.axis, parts.count)
        memory = MemBuffer(number + place, partial.dtype, ShapeTracker.from_shape(partial.shape))
        stores.append(LazyOp(BufferOps.STORE, (partial,), memory))
        load = LazyOp(BufferOps.LOAD, (), memory)
        assert isinstance(reduce.op, ReduceOps)
        combine = combination_of(reduce.op, reduce.arg).reduce
        assert combine is not None, f"the parts of {reduce.op} are combined by no reduce"
        combined = LazyOp(combine, (load,), (1, *reduce.shape)).reshape(reduce.shape)
        whole[reduce] = _cast(combined, reduce.dtype)
    first = stores[0] if len(stores) == 1 else LazyOp(BufferOps.SINK, tuple(stores))
    return first, ast.map_buffers(whole)


def _partial(reduce: LazyOp, axis: int, count: int) -> LazyOp:
    """The reduce of each part. An index is split as the elements that it is for."""
    value, *index = reduce.src
    values = (_cast(value, compute_dtype(reduce.dtype)), *index)
    arg = (count, *reduce.shape)
    if reduce.op is ReduceOps.SCATTER:
        arg = (reduce.arg[0] + 1, *reduce.arg[1:])
    split = [_split(v, axis, count) for v in values]
    order = (axis, *[a for a in range(len(split[0].shape)) if a != axis])
    return LazyOp(reduce.op, tuple([v.permute(order) for v in split]), arg)


def _cast(value: LazyOp, dtype: DType) -> LazyOp:
    return value if value.dtype is dtype else LazyOp(UnaryOps.CAST, (value,), dtype)


def numbered(ast: LazyOp) -> tuple[LazyOp, list[int]]:
    """The tree with its buffers renumbered, those stored to first, and their old numbers."""
    memories = [node for node in ast.toposort() if isinstance(node.arg, MemBuffer)]
    memories.sort(key=lambda node: node.op is not BufferOps.STORE)
    old = list(dict.fromkeys(node.arg.idx for node in memories))
    done: dict[LazyOp, LazyOp] = {}
    for node in ast.toposort():
        src = tuple(done[source] for source in node.src)
        arg = node.arg
        if isinstance(arg, MemBuffer):
            arg = replace(arg, idx=old.index(arg.idx))
        done[node] = LazyOp(node.op, src, arg)
    return done[ast], old
