"""The operations, and the trees of them that one kernel computes.

A `LazyOp` is an interned node `(op, src, arg)`: two nodes with equal parts are the same object, so that equality is identity.
What each op means is in `docs/design/interfaces.md`; the rules for shapes and dtypes are here, as one function for each
kind of op, and can be asked without building a node (`infer`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from ferrule.buffer import Buffer
from ferrule.dtype import DType, dtypes
from ferrule.expr import Expr, Variable, as_int, sint
from ferrule.shape.shapetracker import ShapeTracker


class UnaryOps(Enum):
    """Element-wise operations on one operand."""

    EXP2 = 1
    LOG2 = 2
    CAST = 3
    SIN = 4
    SQRT = 5
    RECIP = 6
    NEG = 7
    TRUNC = 8

    __hash__ = object.__hash__


class BinaryOps(Enum):
    """Element-wise operations on two operands of one dtype."""

    ADD = 1
    SUB = 2
    MUL = 3
    DIV = 4
    MAX = 5
    MOD = 6
    CMPLT = 7
    CMPNE = 8
    XOR = 9
    AND = 10
    OR = 11
    SHL = 12
    SHR = 13

    __hash__ = object.__hash__


class TernaryOps(Enum):
    """Element-wise operations on three operands."""

    MULACC = 1
    WHERE = 2

    __hash__ = object.__hash__


class ReduceOps(Enum):
    """Operations that combine the elements along some axes; SCATTER combines those with one index."""

    SUM = 1
    MAX = 2
    PROD = 3
    SCATTER = 4

    __hash__ = object.__hash__


class MovementOps(Enum):
    """Operations that only rearrange elements."""

    RESHAPE = 1
    PERMUTE = 2
    EXPAND = 3
    PAD = 4
    SHRINK = 5
    STRIDE = 6
    AS_STRIDED = 7
    WINDOW = 8
    UNWINDOW = 9
    GATHER = 10

    __hash__ = object.__hash__


class LoadOps(Enum):
    """Where values come from; these occur in graphs, never in a kernel's AST."""

    EMPTY = 1
    CONST = 2
    FROM = 3
    CONTIGUOUS = 4
    CUSTOM = 5
    ASSIGN = 6

    __hash__ = object.__hash__


class BufferOps(Enum):
    """A kernel's reads and writes of memory; these occur in a kernel's AST, never in a graph."""

    LOAD = 1
    CONST = 2
    STORE = 3
    SINK = 4

    __hash__ = object.__hash__


Op: TypeAlias = UnaryOps | BinaryOps | ReduceOps | MovementOps | LoadOps | TernaryOps | BufferOps
OpType: TypeAlias = (
    type[UnaryOps]
    | type[BinaryOps]
    | type[ReduceOps]
    | type[MovementOps]
    | type[LoadOps]
    | type[TernaryOps]
    | type[BufferOps]
)
Shape: TypeAlias = tuple[sint, ...]
Info: TypeAlias = tuple[Shape, DType]


class OpError(ValueError):
    """The operands' shapes, or the argument, do not fit the op."""


class OpTypeError(OpError, TypeError):
    """The operands' dtypes do not fit the op."""


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

    Two are equal if they hold the same bits: 0.0 differs from -0.0, 1 from True and from 1.0, and NaN equals itself.
    """

    val: int | float | Expr
    dtype: DType
    st: ShapeTracker

    def _identity(self) -> tuple[object, ...]:
        value = struct.pack("<d", self.val) if isinstance(self.val, float) else self.val
        return (type(self.val), value, self.dtype, self.st)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstBuffer) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


# *** shapes and dtypes of results ***


def _prod(values: Iterable[sint]) -> sint:
    result: sint = 1
    for value in values:
        result = result * value
    return result


def _is_known(values: Iterable[sint]) -> bool:
    return all(isinstance(value, int) for value in values)


def _check(condition: bool, op: Op, message: str) -> None:
    if not condition:
        raise OpError(f"{op}: {message}")


def _check_dtype(condition: bool, op: Op, message: str) -> None:
    if not condition:
        raise OpTypeError(f"{op}: {message}")


def _is_integer(dtype: DType) -> bool:
    return dtypes.is_int(dtype) and dtype is not dtypes.bool


def _same_shapes(op: Op, operands: Sequence[Info]) -> Shape:
    shapes = [shape for shape, _ in operands]
    for shape in shapes[1:]:
        _check(shape == shapes[0], op, f"the operands' shapes differ: {shapes}; expand them first")
    return shapes[0]


def _same_dtypes(op: Op, operands: Sequence[Info]) -> DType:
    kinds = [dtype for _, dtype in operands]
    for dtype in kinds[1:]:
        message = f"the operands' dtypes differ: {kinds}; cast them first"
        _check_dtype(dtype is kinds[0], op, message)
    return kinds[0]


_FLOAT_ONLY = frozenset(
    {
        UnaryOps.EXP2,
        UnaryOps.LOG2,
        UnaryOps.SIN,
        UnaryOps.SQRT,
        UnaryOps.RECIP,
        UnaryOps.TRUNC,
    }
)
_NOT_BOOL = frozenset({BinaryOps.SUB, BinaryOps.DIV, BinaryOps.MOD})
_BITWISE = frozenset({BinaryOps.XOR, BinaryOps.AND, BinaryOps.OR})
_SHIFTS = frozenset({BinaryOps.SHL, BinaryOps.SHR})
_COMPARISONS = frozenset({BinaryOps.CMPLT, BinaryOps.CMPNE})


def cast_arg(arg: Any) -> tuple[DType, bool]:
    """The dtype and the bitcast flag in the argument of a CAST."""
    dtype, bitcast = arg if isinstance(arg, tuple) else (arg, False)
    if not isinstance(dtype, DType):
        raise OpError(f"UnaryOps.CAST: the argument {arg!r} names no dtype; pass a DType")
    return dtype, bool(bitcast)


def _infer_unary(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape, dtype = operands[0]
    if op is UnaryOps.CAST:
        target, bitcast = cast_arg(arg)
        same_size = not bitcast or target.itemsize == dtype.itemsize
        _check_dtype(same_size, op, f"a bitcast keeps the item size; {dtype} and {target} differ")
        return shape, target
    if op in _FLOAT_ONLY:
        _check_dtype(dtypes.is_float(dtype), op, f"needs a float, got {dtype}; cast it first")
    return shape, dtype


def _infer_binary(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape = _same_shapes(op, operands)
    dtype = _same_dtypes(op, operands)
    if op in _NOT_BOOL:
        _check_dtype(dtype is not dtypes.bool, op, "is not defined for bool; cast it first")
    if op in _BITWISE:
        allowed = _is_integer(dtype) or dtype is dtypes.bool
        _check_dtype(allowed, op, f"needs an integer or bool, got {dtype}")
    if op in _SHIFTS:
        _check_dtype(_is_integer(dtype), op, f"needs an integer, got {dtype}")
    return shape, dtypes.bool if op in _COMPARISONS else dtype


def _infer_ternary(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape = _same_shapes(op, operands)
    values = operands[1:] if op is TernaryOps.WHERE else operands
    return shape, _same_dtypes(op, values)


def _infer_reduce(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape, dtype = operands[0]
    if op is ReduceOps.SCATTER:
        return _infer_scatter(op, operands, arg)
    _check(len(arg) == len(shape), op, f"the new shape {arg} has not the rank of {shape}")
    for size, new in zip(shape, arg, strict=True):
        kept = new == size or new == 1
        _check(kept, op, f"the new shape {arg} may differ from {shape} only by axes of size 1")
    if op is ReduceOps.MAX and dtype is not dtypes.bool:
        reduces_nothing = any(size == 0 and new == 1 for size, new in zip(shape, arg, strict=True))
        _check(not reduces_nothing, op, f"an axis of size 0 in {shape} has no largest element")
    return tuple(arg), dtype


def _check_index(op: Op, dtype: DType) -> None:
    is_index = dtype in (dtypes.int32, dtypes.int64)
    _check_dtype(is_index, op, f"the index must be int32 or int64, got {dtype}")


def _check_axis(op: Op, axis: Any, rank: int) -> None:
    inside = isinstance(axis, int) and 0 <= axis < rank
    _check(inside, op, f"axis {axis} is out of range for {rank} axes")


def _infer_scatter(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    axis, size = arg
    (shape, dtype), (index_shape, index_dtype) = operands
    _check_index(op, index_dtype)
    _check(shape == index_shape, op, f"the value's shape {shape} is not the index's {index_shape}")
    _check_axis(op, axis, len(shape))
    return (*shape[:axis], size, *shape[axis + 1 :]), dtype


# *** shapes of movements ***


def _reshape(op: Op, shape: Shape, arg: Any) -> Shape:
    if _is_known(shape) and _is_known(arg):
        same = _prod(shape) == _prod(arg)
        _check(same, op, f"{shape} has {_prod(shape)} elements, {arg} has {_prod(arg)}")
    negative = any(isinstance(size, int) and size < 0 for size in arg)
    _check(not negative, op, f"the new shape {arg} has a negative size")
    return tuple(arg)


def _permute(op: Op, shape: Shape, arg: Any) -> Shape:
    is_permutation = sorted(arg) == list(range(len(shape)))
    _check(is_permutation, op, f"{arg} is no permutation of the {len(shape)} axes of {shape}")
    return tuple(shape[axis] for axis in arg)


def _expand(op: Op, shape: Shape, arg: Any) -> Shape:
    _check(len(arg) == len(shape), op, f"the new shape {arg} has not the rank of {shape}")
    for size, new in zip(shape, arg, strict=True):
        _check(new == size or size == 1, op, f"{shape} does not expand to {arg}: only 1 repeats")
    return tuple(arg)


def _pad(op: Op, shape: Shape, arg: Any) -> Shape:
    _check(len(arg) == len(shape), op, f"{arg} has not one pair for each axis of {shape}")
    for before, after in arg:
        negative = [pad for pad in (before, after) if isinstance(pad, int) and pad < 0]
        _check(not negative, op, f"{arg} has a negative amount; use SHRINK")
    return tuple(size + before + after for size, (before, after) in zip(shape, arg, strict=True))


def _shrink(op: Op, shape: Shape, arg: Any) -> Shape:
    _check(len(arg) == len(shape), op, f"{arg} has not one pair for each axis of {shape}")
    for size, (start, stop) in zip(shape, arg, strict=True):
        known = _is_known((size, start, stop))
        inside = not known or 0 <= start <= stop <= size
        _check(inside, op, f"({start}, {stop}) is no part of an axis of size {size}")
    return tuple(stop - start for start, stop in arg)


def _stride(op: Op, shape: Shape, arg: Any) -> Shape:
    _check(len(arg) == len(shape), op, f"{arg} has not one multiplier for each axis of {shape}")
    valid = all(isinstance(step, int) and step != 0 for step in arg)
    _check(valid, op, f"the multipliers {arg} must be integers other than 0")
    return tuple(
        size if abs(step) == 1 else (size + (abs(step) - 1)) // abs(step)
        for size, step in zip(shape, arg, strict=True)
    )


def _as_strided(op: Op, shape: Shape, arg: Any) -> Shape:
    new, strides, offset = arg
    _check(len(new) == len(strides), op, f"{len(new)} sizes, but {len(strides)} strides")
    everything = (*shape, *new, *strides, offset)
    if _is_known(everything) and 0 not in new:
        reach = [(size - 1) * stride for size, stride in zip(new, strides, strict=True)]
        lowest = offset + sum(step for step in reach if step < 0)
        highest = offset + sum(step for step in reach if step > 0)
        inside = 0 <= lowest and highest < _prod(shape)
        _check(inside, op, f"{arg} reaches {lowest}..{highest} of {_prod(shape)} elements")
    return tuple(new)


def _window(op: Op, shape: Shape, arg: Any) -> Shape:
    axis, size, stride, dilation = arg
    _check_axis(op, axis, len(shape))
    positive = all(isinstance(value, int) and value >= 1 for value in (size, stride, dilation))
    _check(positive, op, f"size, stride and dilation must be at least 1, got {arg[1:]}")
    span = dilation * (size - 1) + 1
    length = shape[axis]
    fits = not isinstance(length, int) or length >= span
    _check(fits, op, f"a window that spans {span} does not fit an axis of size {length}")
    count = length - span + 1 if stride == 1 else (length - span) // stride + 1
    return (*shape[:axis], count, *shape[axis + 1 :], size)


def _unwindow(op: Op, shape: Shape, arg: Any) -> Shape:
    axis, length, stride, dilation = arg
    _check_axis(op, axis, len(shape) - 1)
    positive = all(isinstance(value, int) and value >= 1 for value in (stride, dilation))
    _check(positive, op, f"stride and dilation must be at least 1, got {arg[2:]}")
    return (*shape[:axis], length, *shape[axis + 1 :])


_MOVEMENTS: dict[MovementOps, Callable[[Op, Shape, Any], Shape]] = {
    MovementOps.RESHAPE: _reshape,
    MovementOps.PERMUTE: _permute,
    MovementOps.EXPAND: _expand,
    MovementOps.PAD: _pad,
    MovementOps.SHRINK: _shrink,
    MovementOps.STRIDE: _stride,
    MovementOps.AS_STRIDED: _as_strided,
    MovementOps.WINDOW: _window,
    MovementOps.UNWINDOW: _unwindow,
}


def _infer_gather(op: Op, operands: Sequence[Info], axis: Any) -> Info:
    (shape, dtype), (index_shape, index_dtype) = operands
    _check_index(op, index_dtype)
    _check_axis(op, axis, len(shape))
    others = (*shape[:axis], *shape[axis + 1 :])
    index_others = (*index_shape[:axis], *index_shape[axis + 1 :])
    same = len(shape) == len(index_shape) and others == index_others
    _check(same, op, f"{shape} and the index's {index_shape} differ off axis {axis}")
    return index_shape, dtype


def _infer_movement(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    assert isinstance(op, MovementOps)
    if op is MovementOps.GATHER:
        return _infer_gather(op, operands, arg)
    shape, dtype = operands[0]
    return _MOVEMENTS[op](op, shape, arg), dtype


def _infer_buffer(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    if op is BufferOps.SINK:
        _check(len(operands) > 0, op, "needs at least one STORE")
        return operands[0]
    if op is BufferOps.STORE:
        shape, dtype = operands[0]
        same = tuple(arg.st.shape) == shape
        _check(same, op, f"the value's shape {shape} is not that of the view {arg.st.shape}")
        fits = arg.dtype is dtype
        _check_dtype(fits, op, f"a value of {dtype} goes to a buffer of {arg.dtype}; cast it first")
        return shape, dtype
    return tuple(arg.st.shape), arg.dtype


_INFER: dict[type[Enum], Callable[[Op, Sequence[Info], Any], Info]] = {
    UnaryOps: _infer_unary,
    BinaryOps: _infer_binary,
    TernaryOps: _infer_ternary,
    ReduceOps: _infer_reduce,
    MovementOps: _infer_movement,
    BufferOps: _infer_buffer,
}


def operand_count(op: Op) -> int | None:
    """How many sources an op has; None where any number will do.

    >>> operand_count(BinaryOps.ADD)
    2
    """
    if op in (ReduceOps.SCATTER, MovementOps.GATHER) or isinstance(op, BinaryOps):
        return 2
    if op in (BufferOps.LOAD, BufferOps.CONST):
        return 0
    if op is BufferOps.SINK or isinstance(op, LoadOps):
        return None
    return 3 if isinstance(op, TernaryOps) else 1


def infer(op: Op, operands: Sequence[Info], arg: Any = None) -> Info:
    """The shape and dtype of a result from those of the operands.

    Raises `OpError` where shapes or the argument do not fit the op, `OpTypeError` where dtypes do not.

    >>> infer(MovementOps.PERMUTE, [((2, 3), dtypes.int32)], (1, 0))
    ((3, 2), dtypes.int32)
    """
    rule = _INFER.get(type(op))
    if rule is None:
        raise OpError(f"{op}: its shape and dtype are the graph's to say; it is no op of a kernel")
    wanted = operand_count(op)
    right = wanted is None or wanted == len(operands)
    _check(right, op, f"takes {wanted} operands, got {len(operands)}")
    shape, dtype = rule(op, operands, arg)
    return tuple(as_int(size) for size in shape), dtype


# *** the tree of a kernel ***


class LazyOp:
    """One operation of a kernel: `op` on the values `src`, with the argument `arg`.

    Interned: building a node twice gives the same object. A source is a `LazyOp`, or any other object with a shape and a
    dtype that stands for a buffer (see `buffers`, `map_buffers`).
    """

    __slots__ = ("op", "src", "arg", "_info", "_key", "__weakref__")

    op: Op
    src: tuple[Any, ...]
    arg: Any
    _info: Info | None
    _key: str | None

    def __new__(cls, op: Op, src: tuple[Any, ...] = (), arg: Any = None) -> LazyOp:
        src = tuple(src)
        identity = (op, src, type(arg), arg)
        node = _interned.get(identity)
        if node is not None:
            return node
        node = object.__new__(cls)
        node.op = op
        node.src = src
        node.arg = arg
        node._info = None
        node._key = None
        _interned[identity] = node
        return node

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
        stack: list[tuple[LazyOp, bool]] = [(self, False)]
        while stack:
            node, sources_done = stack.pop()
            if sources_done:
                order.append(node)
                continue
            if node in seen:
                continue
            seen.add(node)
            stack.append((node, True))
            unseen = (source for source in reversed(node.src) if isinstance(source, LazyOp))
            stack.extend((source, False) for source in unseen if source not in seen)
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
            self._key = hashlib.sha256(f"{self!r} {variables}".encode()).hexdigest()
        return self._key

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
                operands = [(tuple(source.shape), source.dtype) for source in node.src]
                node._info = infer(node.op, operands, node.arg)
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
                    done[source] = _apply_movements(source, ops)
                sources.append(done[source])
            done[node] = LazyOp(node.op, tuple(sources), node.arg)
        result: LazyOp = done[self] if self in done else _apply_movements(self, ops)
        return result

    def _elementwise_top(self) -> list[LazyOp]:
        """The element-wise nodes that are reached through element-wise nodes only, sources first."""
        reached = {self} if isinstance(self.op, _ELEMENTWISE) else set()
        for node in self.get_lazyops():
            if node in reached:
                nodes = (source for source in node.src if isinstance(source, LazyOp))
                reached.update(source for source in nodes if isinstance(source.op, _ELEMENTWISE))
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

    def window(self, axis: int, size: int, stride: int = 1, dilation: int = 1) -> LazyOp:
        """A WINDOW of this value: axis `axis` becomes positions, and a last axis of `size` is added."""
        return LazyOp(MovementOps.WINDOW, (self,), (axis, size, stride, dilation))

    def unwindow(self, axis: int, length: sint, stride: int = 1, dilation: int = 1) -> LazyOp:
        """An UNWINDOW of this value: WINDOW's adjoint but for the sum over the last axis."""
        return LazyOp(MovementOps.UNWINDOW, (self,), (axis, length, stride, dilation))

    def gather(self, index: Any, axis: int) -> LazyOp:
        """A GATHER from this value: NumPy's `take_along_axis`."""
        return LazyOp(MovementOps.GATHER, (self, index), axis)


_interned: WeakValueDictionary[Any, LazyOp] = WeakValueDictionary()
_ELEMENTWISE = (UnaryOps, BinaryOps, TernaryOps)


def _source_name(source: Any, numbers: Mapping[LazyOp, int]) -> str:
    return f"%{numbers[source]}" if isinstance(source, LazyOp) else repr(source)


def _vars_of(arg: Any) -> list[Expr]:
    """The variables anywhere in an argument."""
    if isinstance(arg, Expr):
        return list(arg.vars())
    if isinstance(arg, tuple):
        return [variable for part in arg for variable in _vars_of(part)]
    if isinstance(arg, MemBuffer):
        return list(arg.st.vars())
    if isinstance(arg, ConstBuffer):
        return [*arg.st.vars(), *_vars_of(arg.val)]
    return []


def _apply_movements(value: Any, ops: Sequence[tuple[MovementOps, Any]]) -> Any:
    """`value` moved by each of `ops`; a value that is no `LazyOp` has methods of the same names."""
    for op, arg in ops:
        spread = op in (MovementOps.AS_STRIDED, MovementOps.WINDOW, MovementOps.UNWINDOW)
        method = getattr(value, op.name.lower())
        value = method(*arg) if spread else method(arg)
    return value


# *** what a scheduler hands over ***


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


# *** what a kernel costs ***


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


T = TypeVar("T")


def _sum(values: Iterable[sint]) -> sint:
    result: sint = 0
    for value in values:
        result = result + value
    return result


def _flops(node: LazyOp) -> sint:
    """How many operations a node alone takes: one for each element made, or for each one reduced."""
    if isinstance(node.op, ReduceOps):
        return _prod(node.src[0].shape)
    if node.op is UnaryOps.CAST or not isinstance(node.op, _ELEMENTWISE):
        return 0
    return _prod(node.shape) * (2 if node.op is TernaryOps.MULACC else 1)


def _largest(a: sint, b: sint) -> sint:
    """The larger size; where symbols leave that open, the one with the larger upper bound."""
    upper_a = a if isinstance(a, int) else a.bounds()[1]
    upper_b = b if isinstance(b, int) else b.bounds()[1]
    return a if upper_a >= upper_b else b


def _count_touched(touched: dict[int, sint], arg: MemBuffer) -> None:
    # Two views of one buffer overlap in general: the larger one counts, not the sum.
    size = arg.dtype.itemsize * touched_size(arg.st)
    touched[arg.idx] = _largest(touched[arg.idx], size) if arg.idx in touched else size


def touched_size(st: ShapeTracker) -> sint:
    """How many different elements of the memory a view reads or writes at most."""
    if 0 in st.shape:
        return 0
    return st.real_size()


def get_lazyop_info(ast: LazyOp) -> FlopCounter:
    """What running `ast` costs: a shared node counts once, an element read many times is read once.

    Sizes that are symbolic give estimates that are symbolic. A buffer that is read and written counts for both.
    """
    flops: sint = 0
    reads: dict[int, sint] = {}
    writes: dict[int, sint] = {}
    for node in ast.toposort():
        flops = flops + _flops(node)
        if node.op is BufferOps.LOAD:
            _count_touched(reads, node.arg)
        if node.op is BufferOps.STORE:
            _count_touched(writes, node.arg)
    if ast.op not in (BufferOps.STORE, BufferOps.SINK):
        writes[0] = ast.dtype.itemsize * _prod(ast.shape)
    indices = sorted({*reads, *writes})
    mem = {index: reads.get(index, 0) + writes.get(index, 0) for index in indices}
    return FlopCounter(ast.shape, ast.dtype, flops, mem)
