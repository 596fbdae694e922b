"""Split a kernel with a long reduce into two: one reduces parts, the other combines the parts.

A kernel of few results leaves most of a GPU idle. Code generation decides how many parts are worth
a second kernel (`codegen/schedules/gpu/split_reduce.py`); this module writes the two ASTs. Parts
are combined in their order, so that the bits are the same each time.
"""

from __future__ import annotations

from dataclasses import replace

from ferrule.codegen.schedules.gpu.split_reduce import Parts, how_combined
from ferrule.ir.dtype import DType, compute_dtype
from ferrule.ir.lazyop import BufferOps, LazyOp, MemBuffer, ReduceOps, UnaryOps
from ferrule.ir.shape.shapetracker import ShapeTracker


def in_parts(ast: LazyOp, parts: Parts, number: int) -> tuple[LazyOp, LazyOp]:
    """The ASTs of both kernels. The parts are in the buffers `number`, `number + 1` and so on.

    The parts have an axis of their own, the outermost in memory. So the first kernel's stores are
    as contiguous as the results.
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
    body = _split(_cast(reduce.src[0], compute_dtype(reduce.dtype)), parts)
    if reduce.op is not ReduceOps.SCATTER:
        return LazyOp(reduce.op, (body,), (parts.count, *reduce.shape))
    axis, *others = reduce.arg
    return LazyOp(reduce.op, (body, _split(reduce.src[1], parts)), (axis + 1, *others))


def _split(value: LazyOp, parts: Parts) -> LazyOp:
    """The value with an axis split into parts, whose number is the first axis."""
    shape, axis = value.shape, parts.axis
    inside = (*shape[:axis], parts.count, shape[axis] // parts.count, *shape[axis + 1 :])
    order = (axis, *(a for a in range(len(inside)) if a != axis))
    return value.reshape(inside).permute(order)


def numbered(ast: LazyOp) -> tuple[LazyOp, list[int]]:
    """The AST with its buffers renumbered, those stored to first, and their old numbers."""
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


def _cast(value: LazyOp, dtype: DType) -> LazyOp:
    return value if value.dtype is dtype else LazyOp(UnaryOps.CAST, (value,), dtype)
