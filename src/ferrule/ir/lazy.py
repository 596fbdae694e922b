"""The lazy graph: `LazyBuffer`, a value not computed yet.

A node is `(op, srcs, arg)` with a shape, a dtype and a device. Equal nodes of a thread are one
object, so that equality is identity and an expression that is written twice is computed once.
Building a node does no work but to check its operands and to fold constants. A node that was
computed holds a `Buffer` and forgets its sources.

Writing is functional: `ASSIGN(old, value)` is the next version of `old`. Whether it happens in
place is for the scheduler to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final, final
from weakref import ref

from ferrule.base.interning import Entry, forget
from ferrule.base.threadstate import ThreadState, this_thread
from ferrule.ir.buffer import Buffer
from ferrule.ir.constant_folding import Scalar, fold_bitcast, fold_cast, is_negative_zero
from ferrule.ir.dtype import DType, dtypes, exact, truncate
from ferrule.ir.expr import Expr, as_int, sint
from ferrule.ir.lazyop import (
    PLAIN_RESULTS,
    LoadOps,
    MovementOps,
    Op,
    ReduceOps,
    TernaryOps,
    UnaryOps,
    infer,
    infer_moved,
    infer_reduced,
    scatter_start,
)
from ferrule.ir.node import Anchor, Node, Shape, recent_nodes, sweep
from ferrule.ir.shape.layout import storage_size, storage_view
from ferrule.ir.shape.view import ShapeError, View
from ferrule.ir.simplify import (
    SPECIAL,
    is_empty,
    moved_const,
    part_of_join,
    reduced_const,
    simplify,
)


class DeviceMismatchError(ValueError):
    """The operands of one operation are on different devices."""


def _sizes(shape: Sequence[sint]) -> Shape:
    return tuple([size if type(size) is int else as_int(size) for size in shape])


def _pairs(arg: Sequence[tuple[sint, sint]]) -> tuple[tuple[sint, sint], ...]:
    return tuple(
        [(a if type(a) is int else as_int(a), b if type(b) is int else as_int(b)) for a, b in arg]
    )


# Each look-up of a member takes 0.1 us before Python 3.12.
_CONST: Final = LoadOps.CONST
_EMPTY: Final = LoadOps.EMPTY
_WHERE: Final = TernaryOps.WHERE
_serials = count()
note_made: Final = recent_nodes.append
"""Notes a weak reference to a new node that has sources."""


@final
class LazyBuffer(Node):
    """A value in the graph: `op` on `srcs`, or, once `realized` is a Buffer, its contents.

    Operands must agree in shape, dtype and device: broadcasting and promotion are up to the caller.
    Methods raise `OpError` for operands or arguments that do not fit, `DeviceMismatchError` for
    operands on different devices.

    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.lazyop import BinaryOps
    >>> x = LazyBuffer.const(2, dtypes.int32, (2, 3), "CPU")
    >>> x.e(BinaryOps.ADD, x).base_const(), x.permute((1, 0)).shape
    (4, (3, 2))
    """

    __slots__ = ()

    srcs: tuple[LazyBuffer, ...]

    def __init__(self) -> None:
        raise TypeError("LazyBuffer: use LazyBuffer.const, .empty or .from_buffer")

    def __repr__(self) -> str:
        state = "" if self.realized is None else f" in {self.realized}"
        return f"<LazyBuffer {self.op.name} {self.shape} {self.dtype} {self.device}{state}>"

    # -- leaves ----------------------------------------------------------------------------------

    @staticmethod
    def const(value: Scalar | Expr, dtype: DType, shape: Sequence[sint], device: str) -> LazyBuffer:
        """Every element is `value`, as `dtype` holds it. A symbolic integer is allowed."""
        if not isinstance(value, Expr):
            value = truncate(dtype, value)
        elif value.is_const:
            value = truncate(dtype, value.arg)
        shape = _sizes(shape)
        key = (LoadOps.CONST, exact(value), dtype, shape, device)
        found = _find(key)
        return found or _make(LoadOps.CONST, (), value, shape, dtype, device, key)

    @staticmethod
    def empty(shape: Sequence[sint], dtype: DType, device: str) -> LazyBuffer:
        """Memory of its own with no particular contents."""
        shape = _sizes(shape)
        return _make(LoadOps.EMPTY, (), None, shape, dtype, device)

    @staticmethod
    def from_buffer(buffer: Buffer, shape: Sequence[sint]) -> LazyBuffer:
        """The contents of `buffer`, row-major; symbolic sizes have room for their upper bounds."""
        shape = _sizes(shape)
        if storage_size(shape) != buffer.size:
            raise ShapeError(
                f"from_buffer: shape {shape} takes {storage_size(shape)} elements, "
                f"and {buffer} has {buffer.size}"
            )
        return LazyBuffer.in_buffer(buffer, shape)

    @staticmethod
    def in_buffer(buffer: Buffer, shape: Shape) -> LazyBuffer:
        """`from_buffer` for a shape that is known to fit, with an int for each constant size."""
        node = object.__new__(LazyBuffer)  # as `_make` does: each result of a replay comes by here
        node.op = _EMPTY
        node.srcs = ()
        node.arg = None
        node.shape = shape
        node.dtype = buffer.dtype
        node.device = buffer.device
        node.realized = buffer
        node.owner = None
        node.serial = next(_serials)
        node.maker = None
        node.anchor = Anchor()
        node.marks = None
        return node

    @staticmethod
    def custom(
        runner: Any, srcs: Sequence[LazyBuffer], shape: Sequence[sint], dtype: DType, device: str
    ) -> LazyBuffer:
        """The value that `runner.exec([out, *buffers of srcs], var_vals)` writes."""
        shape = _sizes(shape)
        return _make(LoadOps.CUSTOM, tuple(srcs), runner, shape, dtype, device)

    @staticmethod
    def several(
        runner: Any,
        srcs: Sequence[LazyBuffer],
        results: Sequence[tuple[Sequence[sint], DType]],
        device: str,
        size: sint = 1,
    ) -> list[LazyBuffer]:
        """The values that a run with several results writes, each with a shape and a dtype.

        `runner.narrowed(numbers)` is a runner for the results with these numbers alone. Its buffers
        are bytes that are not touched, as many as `size`, then these results, and the sources.
        """
        sources = tuple(srcs)
        key = (LoadOps.CUSTOM, sources, runner, size)
        run = _find(key)
        if run is None:
            run = _make(LoadOps.CUSTOM, sources, runner, (size,), dtypes.uint8, device, key)
            run.results = {}
        return [run.result(number, *result) for number, result in enumerate(results)]

    def result(self, number: int, shape: Sequence[sint], dtype: DType) -> LazyBuffer:
        """A result of this run, which has several."""
        reference = self.results.get(number)
        found: LazyBuffer | None = None if reference is None else reference()
        if found is None:
            found = _make(LoadOps.RESULT, (self,), number, _sizes(shape), dtype, self.device)
            self.results[number] = ref(found)
        return found

    def live_results(self) -> list[LazyBuffer]:
        """The results of this run that something refers to; none of a run made by `like`."""
        known = getattr(self, "results", {})
        entries = [known[number] for number in sorted(known)]
        return [node for entry in entries if (node := entry()) is not None]

    @property
    def st(self) -> View:
        """The view of the elements in the memory that the node has, or would get."""
        return storage_view(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the value's memory."""
        return storage_size(self.shape)

    # -- element-wise ----------------------------------------------------------------------------

    def e(self, op: Op, *others: LazyBuffer, arg: Any = None) -> LazyBuffer:
        """`op` on each element of this and the `others`, all of one shape."""
        return elementwise(op, (self, *others), arg)

    def same(self, op: Op, srcs: tuple[LazyBuffer, ...], arg: Any, dtype: DType) -> LazyBuffer:
        """The node of an operation on values with this one's shape and device.

        The operands must fit, and the result must have no simpler form: there are no checks.
        """
        key = (op, srcs, arg)
        found = _find(key)
        return found or _make(op, srcs, arg, self.shape, dtype, self.device, key)

    def like(
        self,
        srcs: tuple[LazyBuffer, ...],
        arg: Any,
        shape: Shape | None = None,
        op: Op | None = None,
    ) -> LazyBuffer:
        """A node like this one with other sources; look-ups of equal nodes do not find it.

        It has the same shape and the same op unless others are given.
        """
        shape = self.shape if shape is None else shape
        twin = _make(op or self.op, srcs, arg, shape, self.dtype, self.device)
        twin.owner = self.owner
        return twin

    def cast(self, dtype: DType) -> LazyBuffer:
        """Each element as a `dtype`: floats lose their fraction to integers; to bool, `!= 0`."""
        if dtype is self.dtype:
            return self
        value = self.base_const()
        if value is not None and not isinstance(value, Expr):
            folded = fold_cast(value, self.dtype, dtype)
            if folded is not None:
                return LazyBuffer.const(folded, dtype, self.shape, self.device)
        return self.e(UnaryOps.CAST, arg=dtype)

    def bitcast(self, dtype: DType) -> LazyBuffer:
        """The bits of each element read as a `dtype` of the same size."""
        if dtype is self.dtype:
            return self
        value = self.base_const()
        if value is not None and not isinstance(value, Expr) and dtype.bits == self.dtype.bits:
            folded = fold_bitcast(value, self.dtype, dtype)
            if folded is not None:
                return LazyBuffer.const(folded, dtype, self.shape, self.device)
        return self.e(UnaryOps.CAST, arg=(dtype, True))

    # -- reduces ---------------------------------------------------------------------------------

    def r(self, op: ReduceOps, axes: Iterable[int]) -> LazyBuffer:
        """The elements along `axes` combined; a reduced axis stays, with size 1."""
        chosen = frozenset(axes)
        wrong = [axis for axis in chosen if not 0 <= axis < len(self.shape)]
        if wrong:
            raise ShapeError(
                f"{op}: axis {wrong[0]} is out of range for shape {self.shape}, "
                f"which has {len(self.shape)} axes"
            )
        shape = tuple([1 if axis in chosen else n for axis, n in enumerate(self.shape)])
        if shape == self.shape:
            return self
        srcs = (self,)
        key = (op, srcs, shape)
        found = _find(key)
        if found is not None:
            return found
        infer_reduced(op, self.shape, self.dtype, shape)
        value = reduced_const(op, self, shape)
        if value is not None:
            return LazyBuffer.const(value, self.dtype, shape, self.device)
        if self.op is MovementOps.EXPAND and self.realized is None:
            repeated = self.srcs[0]
            pairs = zip(repeated.shape, self.shape, strict=True)
            once = tuple([n if a in chosen else m for a, (m, n) in enumerate(pairs)])
            if once != self.shape:  # equal results are computed once
                return repeated.expand(once).r(op, chosen).expand(shape)
        return _make(op, srcs, shape, shape, self.dtype, self.device, key)

    def scatter(self, index: LazyBuffer, axis: int, size: sint, how: str = "add") -> LazyBuffer:
        """Zeros with `size` at `axis`; each element is added to them at its `index` there.

        `how` is one of `SCATTERED`, which combines several elements with one index.
        """
        arg = (axis, as_int(size)) if how == "add" else (axis, as_int(size), how)
        return self._with(ReduceOps.SCATTER, (index,), arg)

    def put(self, new: LazyBuffer, index: LazyBuffer, axis: int, how: str = "add") -> LazyBuffer:
        """This value with elements of `new` combined into it at their `index` along `axis`.

        On other axes `new` may be smaller: it goes to the first places there.
        """
        if is_empty(new.shape) or is_empty(self.shape):
            return self
        size = self.shape[axis]
        start = self.base_const()
        whole = (*new.shape[:axis], size, *new.shape[axis + 1 :]) == self.shape
        if whole and start == scatter_start(how, self.dtype) and not is_negative_zero(start):
            return new.scatter(index, axis, size, how)
        arg = (axis, size) if how == "add" else (axis, size, how)
        return new._with(ReduceOps.SCATTER, (index, self), arg)

    def gather(self, index: LazyBuffer, axis: int) -> LazyBuffer:
        """NumPy's `take_along_axis`; an index out of range reads 0."""
        return self.moved(MovementOps.GATHER, axis, index)

    def _with(self, op: Op, others: tuple[LazyBuffer, ...], arg: Any) -> LazyBuffer:
        for other in others:
            if other.device != self.device:
                raise _device_mismatch(op, self, other)
        srcs = (self, *others)
        key = (op, srcs, arg)
        found = _find(key)
        if found is not None:
            return found
        shape, dtype = infer(op, [(s.shape, s.dtype) for s in srcs], arg)
        if is_empty(shape) or is_empty(self.shape):
            return LazyBuffer.const(0, dtype, shape, self.device)
        return _make(op, srcs, arg, shape, dtype, self.device, key)

    # -- movement --------------------------------------------------------------------------------

    def reshape(self, shape: Sequence[sint]) -> LazyBuffer:
        """The same elements, row-major, under another shape."""
        arg = _sizes(shape)
        source = self
        srcs = source.srcs
        if source.op is MovementOps.RESHAPE and srcs:
            source = srcs[0]
        if arg == source.shape:
            return source
        return _moved(source, MovementOps.RESHAPE, arg)

    def permute(self, axes: Sequence[int]) -> LazyBuffer:
        """Axis i of the result is axis `axes[i]` of this."""
        arg = tuple(axes)
        source = self
        srcs, inner = source.srcs, source.arg
        is_inner = source.op is MovementOps.PERMUTE and srcs and len(arg) == len(source.shape)
        if is_inner and all([0 <= axis < len(inner) for axis in arg]):
            arg = tuple([inner[axis] for axis in arg])
            source = srcs[0]
        if arg == tuple(range(len(source.shape))):
            return source
        return _moved(source, MovementOps.PERMUTE, arg)

    def expand(self, shape: Sequence[sint]) -> LazyBuffer:
        """Axes of size 1 repeat."""
        arg = _sizes(shape)
        if arg == self.shape:
            return self
        source = self
        srcs = source.srcs
        if source.op is MovementOps.EXPAND and srcs:
            infer(MovementOps.EXPAND, [(source.shape, source.dtype)], arg)
            source = srcs[0]
        return _moved(source, MovementOps.EXPAND, arg)

    def pad(self, arg: Sequence[tuple[sint, sint]]) -> LazyBuffer:
        """`(before, after)` zeros are added on each axis."""
        pairs = _pairs(arg)
        if pairs == ((0, 0),) * len(self.shape):
            return self
        return _moved(self, MovementOps.PAD, pairs)

    def shrink(self, arg: Sequence[tuple[sint, sint]]) -> LazyBuffer:
        """The elements `start` to `stop - 1` of each axis."""
        pairs = _pairs(arg)
        if pairs == tuple([(0, size) for size in self.shape]):
            return self
        source = self
        srcs, inner = source.srcs, source.arg
        if source.op is MovementOps.SHRINK and srcs:
            infer(MovementOps.SHRINK, [(source.shape, source.dtype)], pairs)
            firsts = [start for start, _ in inner]
            moved = zip(pairs, firsts, strict=True)
            pairs = tuple([(as_int(a + first), as_int(b + first)) for (a, b), first in moved])
            source = srcs[0]
        if source.op is TernaryOps.WHERE:
            piece, part = part_of_join(source, pairs)
            if piece is not source:
                return piece.shrink(part)
        return _moved(source, MovementOps.SHRINK, pairs)

    def stride(self, arg: Sequence[int]) -> LazyBuffer:
        """Every `arg[i]`-th element of axis i, from the end if that is negative."""
        steps = tuple(arg)
        if steps == (1,) * len(self.shape):
            return self
        return _moved(self, MovementOps.STRIDE, steps)

    def as_strided(
        self, shape: Sequence[sint], strides: Sequence[sint], offset: sint = 0
    ) -> LazyBuffer:
        """The elements at `offset + sum(i[k] * strides[k])` of this value, taken as flat."""
        return _moved(self, MovementOps.AS_STRIDED, (tuple(shape), tuple(strides), offset))

    def window(self, axis: int, size: int, stride: int = 1, dilation: int = 1) -> LazyBuffer:
        """`axis` becomes the positions of a window; a last axis counts inside the window."""
        return _moved(self, MovementOps.WINDOW, (axis, size, stride, dilation))

    def unwindow(self, axis: int, length: sint, stride: int = 1, dilation: int = 1) -> LazyBuffer:
        """Each element at the place in `axis` that `window` took it from, zeros elsewhere."""
        return _moved(self, MovementOps.UNWINDOW, (axis, as_int(length), stride, dilation))

    def moved(self, op: MovementOps, arg: Any, *others: LazyBuffer) -> LazyBuffer:
        """Any movement of this, by its op; the others are its further operands."""
        if others:
            return self._with(op, others, arg)
        simplified = _SIMPLIFIED.get(op)
        return _moved(self, op, arg) if simplified is None else simplified(self, arg)

    def template(self, template: Any, shape: Shape, dtype: DType) -> LazyBuffer:
        """The function of a `schedule.templates.Template` applied to this value."""
        srcs = (self,)
        key = (LoadOps.TEMPLATE, srcs, template)
        found = _find(key)
        return found or _make(LoadOps.TEMPLATE, srcs, template, shape, dtype, self.device, key)

    # -- memory ----------------------------------------------------------------------------------

    def contiguous(self) -> LazyBuffer:
        """The same value in memory of its own."""
        if self.owns_memory or self.op is LoadOps.CONTIGUOUS:
            return self
        srcs = (self,)
        key = (LoadOps.CONTIGUOUS, srcs, None)
        found = _find(key)
        if found is not None:
            return found
        return _make(LoadOps.CONTIGUOUS, srcs, None, self.shape, self.dtype, self.device, key)

    def copy_to(self, device: str) -> LazyBuffer:
        """The same value on `device`."""
        if device == self.device:
            return self
        value = self.base_const()
        if value is not None:
            return LazyBuffer.const(value, self.dtype, self.shape, device)
        srcs = (self.contiguous(),)
        key = (LoadOps.FROM, srcs, device)
        found = _find(key)
        if found is not None:
            return found
        return _make(LoadOps.FROM, srcs, device, self.shape, self.dtype, device, key)

    def assign(self, value: LazyBuffer, region: View | None = None) -> LazyBuffer:
        """The next version of this memory: the part at `region`, or all of it, replaced by `value`.

        `region` says where in the flat memory the elements of `value` go, each in a place of its
        own. Raises `ShapeError` if they do not fit.
        """
        check_assign(self, value, region)
        if is_empty(value.shape):
            return self
        srcs = (self, value)
        return _make(LoadOps.ASSIGN, srcs, region, self.shape, self.dtype, self.device)


class Handle:
    """Holds a node from outside of the graph, as tensors and the tape do.

    What a handle holds is there later: a schedule keeps it, or what it is made of. A node that is
    only referred to is computed anew, if need be.
    """

    __slots__ = ("_mark", "node")

    def __init__(self, node: LazyBuffer) -> None:
        self.node = node
        self._mark = ref(node.anchor)


def elementwise(op: Op, srcs: tuple[LazyBuffer, ...], arg: Any = None) -> LazyBuffer:
    """`op` on each element of the sources, all of one shape."""
    key = (op, srcs, arg)
    state = this_thread.state
    entry = state.nodes.get(key)
    found: LazyBuffer | None = None if entry is None else entry()
    if found is not None:
        return found
    last = srcs[-1]
    shape, dtype, device = last.shape, last.dtype, last.device
    is_plain, is_known = True, op in SPECIAL or 0 in shape
    condition = srcs[0] if op is _WHERE else None
    for source in srcs:
        if source.op is _CONST:
            is_known = True
        if source is last:
            continue
        if source.device != device:
            raise _device_mismatch(op, source, last)
        if source.shape != shape or (source.dtype is not dtype and source is not condition):
            is_plain = False
    result = PLAIN_RESULTS.get((op, len(srcs), dtype)) if is_plain else None
    if result is None:
        shape, result = infer(op, [(s.shape, s.dtype) for s in srcs], arg)
        is_known = is_known or 0 in shape
    dtype = result
    known = simplify(op, srcs, shape) if is_known else None
    if known is None:
        return _make(op, srcs, arg, shape, dtype, device, key, state)
    if isinstance(known, LazyBuffer):
        return known
    return LazyBuffer.const(known, dtype, shape, device)


def _find(key: Any) -> LazyBuffer | None:
    entry = this_thread.state.nodes.get(key)
    return None if entry is None else entry()


def _make(
    op: Op,
    srcs: tuple[LazyBuffer, ...],
    arg: Any,
    shape: Shape,
    dtype: DType,
    device: str,
    key: Any = None,
    maker: ThreadState | None = None,
) -> LazyBuffer:
    """A new node of this thread, which is `maker`; with a `key` it is found again."""
    node = object.__new__(LazyBuffer)
    node.op = op
    node.srcs = srcs
    node.arg = arg
    node.shape = shape
    node.dtype = dtype
    node.device = device
    node.realized = None
    node.owner = None
    node.serial = next(_serials)
    node.maker = maker = maker or this_thread.state
    node.marks = None
    if key is None:
        node.anchor = Anchor()
        reference = ref(node)
    else:
        node.anchor = entry = reference = Entry(node, forget)
        entry.key = key
        entry.table = table = maker.nodes
        if table.setdefault(key, entry) is not entry:
            found: LazyBuffer = table.enter(entry)
            if found is not node:
                entry.key = None
                return found
    if srcs:
        note_made(reference)
        if maker.lines is not None:
            maker.lines.note(node.serial)
        if len(recent_nodes) > recent_nodes.limit:
            sweep()
    return node


def _device_mismatch(op: Op, a: LazyBuffer, b: LazyBuffer) -> DeviceMismatchError:
    return DeviceMismatchError(
        f"{op}: one operand is on {a.device}, another on {b.device}; "
        "copy one of them to the other's device first"
    )


def check_assign(old: LazyBuffer, value: LazyBuffer, region: View | None) -> None:
    """Raises an error if `value` cannot replace the part of `old` at `region`."""
    if old.device != value.device:
        raise _device_mismatch(LoadOps.ASSIGN, old, value)
    shape = old.shape if region is None else region.shape
    if value.shape != shape:
        raise ShapeError(
            f"assign: a value of shape {value.shape} does not fill a region of shape {shape}; "
            "reshape or expand it first"
        )
    if value.dtype is not old.dtype:
        raise ShapeError(
            f"assign: a value of {value.dtype} does not go into memory of {old.dtype}; "
            "cast it first"
        )
    if region is not None and (region.mask is not None or not region.is_injective):
        raise ShapeError(
            f"assign: {region} names some elements twice, or none; write to each element once"
        )


def _moved(source: LazyBuffer, op: MovementOps, arg: Any) -> LazyBuffer:
    srcs = (source,)
    key = (op, srcs, arg)
    state = this_thread.state
    entry = state.nodes.get(key)
    found: LazyBuffer | None = None if entry is None else entry()
    if found is not None:
        return found
    shape = infer_moved(op, source.shape, arg)
    dtype = source.dtype
    device = source.device
    if 0 in shape or 0 in source.shape:
        return LazyBuffer.const(0, dtype, shape, device)
    value = moved_const(op, source) if source.op is LoadOps.CONST else None
    if value is not None:
        return LazyBuffer.const(value, dtype, shape, device)
    return _make(op, srcs, arg, shape, dtype, device, key, state)


_SIMPLIFIED: Final[dict[MovementOps, Callable[[LazyBuffer, Any], LazyBuffer]]] = {
    MovementOps.RESHAPE: LazyBuffer.reshape,
    MovementOps.PERMUTE: LazyBuffer.permute,
    MovementOps.EXPAND: LazyBuffer.expand,
    MovementOps.PAD: LazyBuffer.pad,
    MovementOps.SHRINK: LazyBuffer.shrink,
    MovementOps.STRIDE: LazyBuffer.stride,
}
"""The movements that a method may simplify, so that they need no node of their own."""
