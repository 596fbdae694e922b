"""The trees of operations that one kernel computes, and the cost of running one.

A `LazyOp` is an interned node `(op, src, arg)`: two nodes with equal parts are the same object, so
that equality is identity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError, field
from dataclasses import dataclass as standard_dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from ferrule.base.interning import Table
from ferrule.base.records import dataclass
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType, exact, shown
from ferrule.ir.expr import Expr, Variable, sint
from ferrule.ir.op_table import (
    ELEMENTWISE,
    PLAIN_RESULTS,
    REDUCED,
    BinaryOps,
    BufferOps,
    FunctionOps,
    Info,
    LoadOps,
    MovementOps,
    Op,
    OpError,
    OpType,
    OpTypeError,
    ReduceOps,
    Shape,
    TernaryOps,
    UnaryOps,
    cast_arg,
    how_scattered,
    infer,
    infer_moved,
    infer_reduced,
    operand_count,
    scatter_start,
)
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import prod_sint

__all__ = [
    "PLAIN_RESULTS",
    "BinaryOps",
    "BufferOps",
    "ConstBuffer",
    "FlopCounter",
    "FunctionOps",
    "LazyOp",
    "LoadOps",
    "MemBuffer",
    "MovementOps",
    "Op",
    "OpError",
    "OpType",
    "OpTypeError",
    "ReduceOps",
    "ScheduleItem",
    "TernaryOps",
    "UnaryOps",
    "apply_movements",
    "cast_arg",
    "get_lazyop_info",
    "how_scattered",
    "infer",
    "infer_moved",
    "infer_reduced",
    "operand_count",
    "scatter_start",
]


# *** the buffers of a kernel ***


@dataclass(frozen=True)
class MemBuffer:
    """Buffer number `idx` of a kernel, seen with elements of `dtype` through the view `st`."""

    idx: int
    dtype: DType
    st: ShapeTracker


@dataclass(frozen=True, eq=False)
class ConstBuffer:
    """The value `val`, in `dtype`, with the shape of `st`. `val` may be a symbolic integer.

    Two constants are equal if they hold the same bits: 0.0 differs from -0.0, 1 from True and from
    1.0, and NaN equals itself.
    """

    val: int | float | Expr
    dtype: DType
    st: ShapeTracker

    def __repr__(self) -> str:
        return f"ConstBuffer(val={shown(self.val)}, dtype={self.dtype!r}, st={self.st!r})"

    def _identity(self) -> tuple[object, ...]:
        return (exact(self.val), self.dtype, self.st)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstBuffer) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


# *** the tree of a kernel ***


@standard_dataclass(init=False, repr=False, eq=False)
class LazyOp:
    """One operation of a kernel: `op` on the values `src`, with the argument `arg`.

    Interned: building a node twice gives the same object. A source is a `LazyOp`, or any other
    object with a shape and a dtype that stands for a buffer (see `buffers`, `map_buffers`).
    """

    __slots__ = ("__weakref__", "_info", "_key", "arg", "op", "src")

    op: Op
    src: tuple[Any, ...]
    arg: Any
    if TYPE_CHECKING:  # what follows from these three is no field
        _info: Info | None
        _key: str | None

    def __new__(cls, op: Op, src: tuple[Any, ...] = (), arg: Any = None) -> LazyOp:
        """The interned node: equal arguments give one object."""
        src = tuple(src)
        identity = (op, src, type(arg), arg)
        node: LazyOp | None = _interned.find(identity)
        if node is not None:
            return node
        if not isinstance(op, _OPS):
            raise OpTypeError(f"LazyOp: {op!r} is no op; use a member such as BinaryOps.ADD")
        node = object.__new__(cls)
        _set(node, "op", op)
        _set(node, "src", src)
        _set(node, "arg", arg)
        _set(node, "_info", None)
        _set(node, "_key", None)
        one: LazyOp = _interned.remember(identity, node)
        return one

    def __setattr__(self, name: str, value: object = None) -> None:
        raise FrozenInstanceError(
            f"LazyOp.{name}: all trees with such a node have this one; make another, as with "
            "LazyOp(op, src, arg)"
        )

    __delattr__ = __setattr__

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyOp, (self.op, self.src, self.arg)

    def __repr__(self) -> str:
        lines = []
        numbers: dict[LazyOp, int] = {}
        for node in self.toposort():
            numbers[node] = len(numbers)
            sources = ", ".join(_source_name(source, numbers) for source in node.src)
            argument = "" if node.arg is None else f" {node.arg!r}"
            lines.append(f"%{numbers[node]} = {node.op.name}({sources}){argument}")
        return "\n".join(lines)

    # what the tree holds

    def toposort(self) -> list[LazyOp]:
        """Every node once, sources before their users, this node last. Needs no recursion."""
        order: list[LazyOp] = []
        seen: set[LazyOp] = set()
        # A None on top of a node says that all its sources are in order.
        stack: list[LazyOp | None] = [self]
        while stack:
            node = stack.pop()
            if node is None:
                node = stack.pop()
                assert node is not None
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append(node)
                stack.append(None)
                stack += [source for source in reversed(node.src) if isinstance(source, LazyOp)]
        return order

    def get_lazyops(self) -> list[LazyOp]:
        """Every node once, this one first and users before their sources."""
        return self.toposort()[::-1]

    @property
    def buffers(self) -> tuple[Any, ...]:
        """The sources that are no `LazyOp`, each once, in order of first use."""
        found = (source for node in self.toposort() for source in node.src)
        return tuple(dict.fromkeys(leaf for leaf in found if not isinstance(leaf, LazyOp)))

    def vars(self) -> list[Variable]:
        """The symbolic variables in shapes, views and constants, sorted by name.

        Raises `OpError` if two different variables have one name, or if one is bound to a value.
        """
        found: dict[str, Variable] = {}
        for node in self.toposort():
            for variable in _vars_of(node.arg):
                if not isinstance(variable, Variable):
                    raise OpError(f"variable {variable} is bound; a kernel takes it unbound")
                known = found.setdefault(variable.name, variable)
                if known is not variable:
                    raise OpError(f"two variables are called {variable.name}: {known}, {variable}")
        return [found[name] for name in sorted(found)]

    @property
    def hash(self) -> int:
        """A hash for use within this process; see `key` for one that outlives it."""
        return hash(self)

    @property
    def key(self) -> str:
        """A digest of the whole tree that is the same in every process."""
        if self._key is None:
            variables = [variable.arg for variable in self.vars()]
            self.set_key(hashlib.sha256(f"{self!r} {variables}".encode()).hexdigest())
        assert self._key is not None
        return self._key

    def set_key(self, key: str) -> None:
        """Set `key` to the digest that an earlier process computed."""
        _set(self, "_key", key)

    @property
    def children(self) -> Any:
        """Not available: a node does not know its users, since many trees may share it."""
        raise NotImplementedError(
            "LazyOp.children: a node does not know its users, since many trees share it; "
            "walk down from the root with toposort()"
        )

    # the value

    def _infer(self) -> Info:
        if self._info is None:
            pending = [self]
            while pending:
                node = pending[-1]
                sources = [source for source in node.src if isinstance(source, LazyOp)]
                unknown = [source for source in sources if source._info is None]
                if unknown:
                    pending.extend(unknown)
                    continue
                operands = [_info_of(source, node.op) for source in node.src]
                _set(node, "_info", infer(node.op, operands, node.arg))
                pending.pop()
        assert self._info is not None
        return self._info

    @property
    def shape(self) -> Shape:
        """The value's shape; raises `OpError` where the operands do not fit."""
        return self._infer()[0]

    @property
    def dtype(self) -> DType:
        """The value's dtype; raises `OpError` where the operands do not fit."""
        return self._infer()[1]

    @property
    def st(self) -> ShapeTracker:
        """The view of a LOAD, CONST or STORE; a computed value is row-major."""
        if isinstance(self.arg, (MemBuffer, ConstBuffer)):
            return self.arg.st
        return ShapeTracker.from_shape(self.shape)

    @property
    def realized(self) -> None:
        """Always None: a node of a kernel has no memory of its own."""
        return None

    # rewriting

    def map_buffers(self, real_srcs: Mapping[Any, Any]) -> LazyOp:
        """The same tree with the sources that are keys of `real_srcs` replaced by their values."""
        done: dict[Any, Any] = dict(real_srcs)
        for node in self.toposort():
            if node in real_srcs and node is not self:
                continue
            src = tuple(done.get(source, source) for source in node.src)
            done[node] = node if src == node.src else LazyOp(node.op, src, node.arg)
        result: LazyOp = done[self]
        return result

    def replace_with_movement_ops(self, ops: Sequence[tuple[MovementOps, Any]]) -> LazyOp:
        """The tree with the movements `ops`, first to last, moved below its element-wise nodes."""
        done: dict[Any, Any] = {}
        for node in self._elementwise_top():
            sources = []
            for source in node.src:
                if source not in done:
                    done[source] = apply_movements(source, ops)
                sources.append(done[source])
            done[node] = LazyOp(node.op, tuple(sources), node.arg)
        result: LazyOp = done[self] if self in done else apply_movements(self, ops)
        return result

    def _elementwise_top(self) -> list[LazyOp]:
        """The nodes reached through element-wise nodes only, sources first."""
        reached = {self} if self.op in ELEMENTWISE else set()
        for node in self.get_lazyops():
            if node in reached:
                nodes = (source for source in node.src if isinstance(source, LazyOp))
                reached.update(source for source in nodes if source.op in ELEMENTWISE)
        return [node for node in self.toposort() if node in reached]

    # movements, each a new node

    def reshape(self, arg: Shape) -> LazyOp:
        """A RESHAPE of this value to the shape `arg`."""
        return LazyOp(MovementOps.RESHAPE, (self,), tuple(arg))

    def permute(self, arg: tuple[int, ...]) -> LazyOp:
        """A PERMUTE of this value: axis i of the result is axis `arg[i]`."""
        return LazyOp(MovementOps.PERMUTE, (self,), tuple(arg))

    def expand(self, arg: Shape) -> LazyOp:
        """An EXPAND of this value to the shape `arg`: axes of size 1 repeat."""
        return LazyOp(MovementOps.EXPAND, (self,), tuple(arg))

    def pad(self, arg: tuple[tuple[sint, sint], ...]) -> LazyOp:
        """A PAD of this value: for each axis (before, after) zeros."""
        return LazyOp(MovementOps.PAD, (self,), tuple(arg))

    def shrink(self, arg: tuple[tuple[sint, sint], ...]) -> LazyOp:
        """A SHRINK of this value: for each axis its part (start, stop)."""
        return LazyOp(MovementOps.SHRINK, (self,), tuple(arg))

    def stride(self, arg: tuple[int, ...]) -> LazyOp:
        """A STRIDE of this value: every `arg[i]`-th element of axis i, from the end if negative."""
        return LazyOp(MovementOps.STRIDE, (self,), tuple(arg))

    def as_strided(self, shape: Shape, strides: Shape, offset: sint = 0) -> LazyOp:
        """An AS_STRIDED of this value, taken as a flat row-major array."""
        return LazyOp(MovementOps.AS_STRIDED, (self,), (tuple(shape), tuple(strides), offset))

    def window(self, axis: int, size: sint, stride: int = 1, dilation: int = 1) -> LazyOp:
        """A WINDOW of this value: `axis` becomes positions, a last axis of `size` is added."""
        return LazyOp(MovementOps.WINDOW, (self,), (axis, size, stride, dilation))

    def unwindow(self, axis: int, length: sint, stride: int = 1, dilation: int = 1) -> LazyOp:
        """An UNWINDOW of this value: WINDOW's adjoint but for the sum over the last axis."""
        return LazyOp(MovementOps.UNWINDOW, (self,), (axis, length, stride, dilation))

    def gather(self, index: Any, axis: int) -> LazyOp:
        """A GATHER from this value: NumPy's `take_along_axis`."""
        return LazyOp(MovementOps.GATHER, (self, index), axis)

    def moved(self, op: MovementOps, arg: Any, *others: Any) -> LazyOp:
        """Any movement of this value, by its op."""
        return LazyOp(op, (self, *others), arg)


_interned: Final = Table()
_set: Final = object.__setattr__
"""Sets an attribute of an immutable node; see `LazyOp.__setattr__`."""
_OPS = get_args(Op)


def _info_of(source: Any, op: Op) -> Info:
    if not hasattr(source, "shape") or not hasattr(source, "dtype"):
        raise OpError(f"{op}: {source!r} is no operand; it has no shape and dtype")
    return tuple(source.shape), source.dtype


def _source_name(source: Any, numbers: Mapping[LazyOp, int]) -> str:
    return f"%{numbers[source]}" if isinstance(source, LazyOp) else repr(source)


def _vars_of(arg: Any) -> list[Expr]:
    """The variables anywhere in an argument."""
    if isinstance(arg, Expr):
        return list(arg.vars())
    if isinstance(arg, tuple):
        # Most parts are ints, which need no call.
        parts = [part for part in arg if type(part) is not int]
        return [variable for part in parts for variable in _vars_of(part)]
    if isinstance(arg, MemBuffer):
        return list(arg.st.vars())
    if isinstance(arg, ConstBuffer):
        return [*arg.st.vars(), *_vars_of(arg.val)]
    return []


def apply_movements(value: Any, ops: Sequence[tuple[MovementOps, Any]]) -> Any:
    """A node of a graph or of a kernel, moved by each of `ops` in turn."""
    for op, arg in ops:
        value = value.moved(op, arg)
    return value


# *** the scheduler's result ***


@dataclass(frozen=True)
class ScheduleItem:
    """One kernel to run: its AST, the buffers it writes and reads, and the values of its variables.

    The runner gets `outputs`, then `inputs`; `out` is the first output.
    """

    ast: LazyOp
    out: Buffer
    inputs: tuple[Buffer, ...]
    var_vals: dict[Variable, int]
    outputs: tuple[Buffer, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.outputs:
            object.__setattr__(self, "outputs", (self.out,))
        if self.outputs[0] is not self.out:
            raise ValueError(f"ScheduleItem: out {self.out} is not the first of {self.outputs}")

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers in the order in which the runner takes them."""
        return self.outputs + self.inputs


# *** the cost of a kernel ***


@dataclass
class FlopCounter:
    """A count of the work of a kernel: operations, and bytes for each buffer index."""

    shape: Shape
    dtype: DType
    flops: sint
    mem: dict[int, sint]

    def consume_flops(self) -> sint:
        """The operations counted so far; afterwards the count is 0."""
        flops, self.flops = self.flops, 0
        return flops

    @property
    def mem_estimate(self) -> sint:
        """The bytes read and written, all buffers together."""
        return _sum(self.mem.values())


def _sum(values: Iterable[sint]) -> sint:
    result: sint = 0
    for value in values:
        result = result + value
    return result


def sources_of(node: Any) -> tuple[Any, ...]:
    """The sources of a node of a kernel's tree, or of the lazy graph."""
    return node.src if isinstance(node, LazyOp) else node.srcs


def running_axis(reduce: Any) -> int | None:
    """The axis of a running total, which combines each element with all before it; else None.

    `reduce` is a node of a kernel's tree, or of the lazy graph. A running total reduces a window as
    long as the axis, over a value with that many elements, less one, of padding in front.

    >>> from ferrule.ir.dtype import dtypes
    >>> before = ((3, 0), (0, 0))
    >>> x = ConstBuffer(1, dtypes.int32, ShapeTracker.from_shape((4, 2)).pad(before))
    >>> windows = LazyOp(BufferOps.CONST, (), x).window(0, 4)
    >>> running_axis(LazyOp(ReduceOps.SUM, (windows,), (4, 2, 1)))
    0
    """
    window = sources_of(reduce)[0] if reduce.op in REDUCED else None
    if window is None or window.op is not MovementOps.WINDOW:
        return None
    axis, size, stride, dilation = window.arg
    # A window of one element has nothing before it.
    runs = (
        (stride, dilation) == (1, 1)
        and size == window.shape[axis] != 1
        and reduce.shape == (*window.shape[:-1], 1)
        and _padding_before(sources_of(window)[0], axis) == size - 1
    )
    return axis if runs else None


def _padding_before(node: Any, axis: int) -> sint:
    """The number of padding elements in front of an axis."""
    if node.op is TernaryOps.WHERE:  # padded with a number
        return _padding_before(sources_of(node)[0], axis)
    if node.op is MovementOps.PAD:
        before: sint = node.arg[axis][0]
        return before
    mask = node.arg.st.view.mask if isinstance(node.arg, MemBuffer | ConstBuffer) else None
    return 0 if mask is None else mask[axis][0]


def _flops(node: Any) -> sint:
    """The operations of one node: one for each element made, or for each one reduced.

    A running total takes one operation for each element, since it continues the one before.
    """
    if isinstance(node.op, ReduceOps):
        return prod_sint(sources_of(node)[0].shape if running_axis(node) is None else node.shape)
    steps = node.arg.steps if node.op is FunctionOps.STEPS else (node,)
    rows = [ELEMENTWISE.get(step.op) for step in steps]
    each = sum([row.flops for row in rows if row is not None])
    return prod_sint(node.shape) * each if each else 0


def count_operations(nodes: Collection[Any]) -> sint:
    """The operations of nodes of a kernel's tree, or of the lazy graph; each node counts once."""
    padded = {sources_of(sources_of(n)[0])[0] for n in nodes if running_axis(n) is not None}
    # Padding is no operation.
    return _sum([_flops(node) for node in nodes if node not in padded])


def _largest(a: sint, b: sint) -> sint:
    """The larger size; if symbols leave that open, the one with the larger upper bound."""
    upper_a = a if isinstance(a, int) else a.bounds()[1]
    upper_b = b if isinstance(b, int) else b.bounds()[1]
    return a if upper_a >= upper_b else b


def _count_touched(touched: dict[int, sint], arg: MemBuffer) -> None:
    # Two views of one buffer overlap in general: the larger one counts, not the sum.
    size = arg.dtype.itemsize * touched_size(arg.st)
    touched[arg.idx] = _largest(touched[arg.idx], size) if arg.idx in touched else size


def touched_size(st: ShapeTracker) -> sint:
    """The greatest number of different elements of memory that a view reads or writes."""
    if 0 in st.shape:
        return 0
    return st.real_size()


def _scatters_in_place(node: LazyOp) -> bool:
    """True for a STORE of a SCATTER whose base is that memory: it touches a part of it only."""
    if node.op is not BufferOps.STORE or node.src[0].op is not ReduceOps.SCATTER:
        return False
    return any(src.op is BufferOps.LOAD and src.arg == node.arg for src in node.src[0].src[2:])


def get_lazyop_info(ast: LazyOp) -> FlopCounter:
    """The cost of running `ast`: a shared node counts once, and so does an element read many times.

    Symbolic sizes give symbolic estimates. A buffer that is read and written counts for both.
    """
    reads: dict[int, sint] = {}
    writes: dict[int, sint] = {}
    nodes = ast.toposort()
    in_place = {node.src[0].src[2] for node in nodes if _scatters_in_place(node)}
    for node in nodes:
        if node.op is BufferOps.LOAD and node not in in_place:
            _count_touched(reads, node.arg)
        elif _scatters_in_place(node):
            size = node.arg.dtype.itemsize * prod_sint(node.src[0].src[0].shape)
            writes[node.arg.idx] = size
            if how_scattered(node.src[0].arg) != "last":
                reads[node.arg.idx] = size
        elif node.op is BufferOps.STORE:
            _count_touched(writes, node.arg)
    if ast.op not in (BufferOps.STORE, BufferOps.SINK):
        writes[0] = ast.dtype.itemsize * prod_sint(ast.shape)
    indices = sorted({*reads, *writes})
    mem = {index: reads.get(index, 0) + writes.get(index, 0) for index in indices}
    return FlopCounter(ast.shape, ast.dtype, count_operations(nodes), mem)
