"""A kernel with a long reduce as two: one that combines parts, and one that combines these.

Where a device has blocks of threads, a kernel of few results leaves most of it idle. How many parts
are worth a second kernel is code generation's to say (`codegen/grid/parts.py`); what is here writes
the two ASTs. Parts are combined in their order, so that the bits are the same each time.
"""

from __future__ import annotations

from dataclasses import replace

from ferrule.codegen.grid.parts import Parts, how_combined
from ferrule.dtype import DType, dtypes
from ferrule.ops import BufferOps, LazyOp, MemBuffer, ReduceOps, UnaryOps
from ferrule.shape.shapetracker import ShapeTracker


def in_parts(ast: LazyOp, parts: Parts, number: int) -> tuple[LazyOp, LazyOp]:
    """The ASTs of both kernels; the parts are in the buffers of that number and the next ones.

    A reduce becomes one along an axis of its own, outside of all others in memory, so that what the
    first kernel stores is as contiguous as the results are.
    """
    stores, whole = [], {}
    for place, reduce in enumerate(parts.reduces):
        partial = _partial(reduce, parts)
        memory = MemBuffer(number + place, partial.dtype, ShapeTracker.from_shape(partial.shape))
        stores.append(LazyOp(BufferOps.STORE, (partial,), memory))
        load = LazyOp(BufferOps.LOAD, (), memory)
        how = how_combined(reduce)
        assert how is not None
        combined = LazyOp(how, (load,), (1, *reduce.shape)).reshape(reduce.shape)
        whole[reduce] = _cast(combined, reduce.dtype)
    first = stores[0] if len(stores) == 1 else LazyOp(BufferOps.SINK, tuple(stores))
    return first, ast.map_buffers(whole)


def _partial(reduce: LazyOp, parts: Parts) -> LazyOp:
    body = _split(_cast(reduce.src[0], _accumulated(reduce.dtype)), parts)
    if reduce.op is not ReduceOps.SCATTER:
        return LazyOp(reduce.op, (body,), (parts.count, *reduce.shape))
    axis, *others = reduce.arg
    return LazyOp(reduce.op, (body, _split(reduce.src[1], parts)), (axis + 1, *others))


def _split(value: LazyOp, parts: Parts) -> LazyOp:
    """A value with the parts of an axis as an axis of their own, the first."""
    shape, axis = value.shape, parts.axis
    inside = (*shape[:axis], parts.count, shape[axis] // parts.count, *shape[axis + 1 :])
    order = (axis, *(a for a in range(len(inside)) if a != axis))
    return value.reshape(inside).permute(order)


def numbered(ast: LazyOp) -> tuple[LazyOp, list[int]]:
    """An AST with its buffers numbered as they are met, after those that it stores to; and the
    numbers that they had.
    """
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


def _accumulated(dtype: DType) -> DType:
    """What a reduce of a dtype is combined in."""
    narrow = dtypes.is_float(dtype) and dtype.itemsize < 4
    return dtypes.float32 if narrow else dtype


def _cast(value: LazyOp, dtype: DType) -> LazyOp:
    return value if value.dtype is dtype else LazyOp(UnaryOps.CAST, (value,), dtype)
