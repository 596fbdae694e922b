"""Derivatives: values that remember how they were made, and the reverse rule of each op.

A `Value` is a node of the lazy graph and, while it depends on something that needs a gradient, an
`Edge` into the tape. The tape is a second graph beside the lazy one: a realised node drops its
sources, an `Entry` keeps what its rule will ask for, and nothing else. Rules are written over
`Value`s, so that they can be recorded and differentiated themselves.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, final
from weakref import ref

from ferrule.dtype import DType, dtypes
from ferrule.expr import sint
from ferrule.lazy import LazyBuffer
from ferrule.ops import BinaryOps, LoadOps, MovementOps, Op, ReduceOps, TernaryOps, UnaryOps
from ferrule.shape.view import View

Shape = tuple[sint, ...]
Number = bool | int | float


class GradientError(RuntimeError):
    """A gradient was asked for that the tape cannot give."""


# *** the tape ***


class _Mode(threading.local):
    recording = True
    transforming = False


_mode = _Mode()


def is_recording() -> bool:
    """Whether operations on tensors that need a gradient are recorded in this thread."""
    return _mode.recording


def is_transforming() -> bool:
    """Whether a transformation is calling its function in this thread, to see what it does."""
    return _mode.transforming


@contextmanager
def transforming(recording: bool = True) -> Iterator[None]:
    """The block in which a transformation calls its function; by default all is recorded."""
    before = _mode.recording, _mode.transforming
    _mode.recording = recording
    _mode.transforming = True
    try:
        yield
    finally:
        _mode.recording, _mode.transforming = before


@final
class no_grad(ContextDecorator):
    """While it is entered, nothing is recorded, and parameters may be written in place.

    >>> from ferrule import Tensor
    >>> x = Tensor([2.0], requires_grad=True)
    >>> with Tensor.no_grad():
    ...     y = x * 3
    >>> y.requires_grad is None
    True
    """

    def __init__(self, active: bool = True) -> None:
        self._recording = not active
        self._before: list[bool] = []

    def __enter__(self) -> no_grad:
        self._before.append(_mode.recording)
        _mode.recording = self._recording
        return self

    def __exit__(self, *_: object) -> None:
        _mode.recording = self._before.pop()


def enable_grad() -> no_grad:
    """While it is entered, operations are recorded, also inside `no_grad`.

    >>> from ferrule import Tensor
    >>> x = Tensor([2.0], requires_grad=True)
    >>> with Tensor.no_grad(), Tensor.enable_grad():
    ...     y = x * 3
    >>> y.requires_grad
    True
    """
    return no_grad(False)


_serials = count()


def tape_position() -> int:
    """A number above the serials of all entries so far, and below those of all to come."""
    return next(_serials)


@final
class Leaf:
    """Where the tape ends: a tensor that keeps its gradient. `owner` is that tensor, weakly."""

    __slots__ = ("owner",)

    def __init__(self, owner: object) -> None:
        self.owner = ref(owner)


@final
class Entry:
    """A recorded operation: the edges of its sources, and what its rule asked to keep."""

    __slots__ = (
        "__weakref__",
        "arg",
        "freed",
        "kinds",
        "name",
        "output",
        "parents",
        "rule",
        "saved",
        "serial",
        "shapes",
    )

    kinds: tuple[DType, ...]
    """The dtypes of the sources."""
    serial: int
    """Counts entries as they are made."""

    def __init__(
        self, name: str, rule: Rule, sources: Sequence[Value], node: LazyBuffer, arg: Any
    ) -> None:
        self.name = name
        self.rule = rule
        self.arg = arg
        self.parents = tuple([source.edge for source in sources])
        self.shapes = tuple([source.node.shape for source in sources])
        self.kinds = tuple([source.node.dtype for source in sources])
        self.saved = tuple([sources[position] for position in rule.inputs])
        self.output = node if rule.output else None
        self.freed = False
        self.serial = next(_serials)

    @staticmethod
    def like(
        other: Entry,
        rule: Rule,
        arg: Any,
        parents: tuple[Edge | None, ...],
        shapes: tuple[Shape, ...],
        saved: tuple[Value, ...],
        output: LazyBuffer | None,
    ) -> Entry:
        """The same operation, recorded in another way."""
        entry = object.__new__(Entry)
        entry.name = other.name
        entry.rule = rule
        entry.arg = arg
        entry.parents = parents
        entry.shapes = shapes
        entry.kinds = other.kinds
        entry.saved = saved
        entry.output = output
        entry.freed = other.freed
        entry.serial = next(_serials)
        return entry

    def result(self) -> Value:
        """What the operation gave, for rules that asked to keep it."""
        assert self.output is not None, f"the rule of {self.name} does not keep its output"
        return Value(self.output, self)

    def free(self) -> None:
        """Drops what was kept, so that memory can go; entries that keep nothing stay usable."""
        if self.saved or self.output is not None:
            self.saved = ()
            self.output = None
            self.freed = True


Edge = Leaf | Entry
Gradients = tuple["Value | None", ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """The reverse rule of an operation: from the gradient of its result to those of its sources.

    `inputs` are the positions of the sources to keep, `output` whether to keep the result.
    """

    reverse: Callable[[Any, Entry], Gradients]
    inputs: tuple[int, ...] = ()
    output: bool = False


class Region(Protocol):
    """The part of a tensor's memory that an ASSIGN replaces."""

    @property
    def view(self) -> View:
        """The part as a view of the flat memory."""

    def read(self, value: Value) -> Value:
        """The part, from a value with the shape of the whole memory."""


def record(name: str, rule: Rule, sources: Sequence[Value], node: LazyBuffer, arg: Any) -> Value:
    """`node` as a value; recorded with `rule` if a source needs a gradient."""
    if _mode.recording and dtypes.is_float(node.dtype):
        for source in sources:
            if source.edge is not None:
                return Value(node, Entry(name, rule, sources, node, arg))
    return Value(node)


@final
class Parts:
    """The gradients of an operation's results, by their numbers, where it has several."""

    __slots__ = ("of",)

    def __init__(self, of: dict[int, Value]) -> None:
        self.of = of

    def __add__(self, other: Parts) -> Parts:
        both = dict(self.of)
        for number, grad in other.of.items():
            both[number] = both[number] + grad if number in both else grad
        return Parts(both)


def record_several(
    name: str,
    rule: Rule,
    sources: Sequence[Value],
    nodes: Sequence[LazyBuffer],
    arg: Any,
    others: Sequence[Edge] = (),
) -> list[Value]:
    """`record` for several results; the rule is given their gradients as `Parts`.

    `others` are edges that the results depend on as well: the rule gives their gradients last.
    """
    depends = bool(others) or any(source.edge is not None for source in sources)
    if not (_mode.recording and depends):
        return [Value(node) for node in nodes]
    assert not rule.output, f"the rule of {name} cannot keep one of several results"
    whole = Entry(name, rule, sources, nodes[0], arg)
    whole.parents += tuple(others)
    return [
        Value(node, Entry(name, _PART, (Value(node, whole),), node, number))
        if dtypes.is_float(node.dtype)
        else Value(node)
        for number, node in enumerate(nodes)
    ]


def _reverse_part(grad: Value, entry: Entry) -> Any:
    return (Parts({entry.arg: grad}),)


_PART = Rule(_reverse_part)
IDENTITY = Rule(lambda grad, entry: (grad,))
"""The rule of what hands its source on."""


def _apply(op: Op, sources: tuple[Value, ...], node: LazyBuffer, arg: Any = None) -> Value:
    if _mode.recording:
        for source in sources:
            if source.edge is not None:
                return _record_op(op, sources, node, arg)
    return Value(node)


def _record_op(op: Op, sources: tuple[Value, ...], node: LazyBuffer, arg: Any) -> Value:
    if op in FLAT or not dtypes.is_float(node.dtype):
        return Value(node)
    rule = REVERSE.get(op)
    if rule is None:
        raise GradientError(
            f"{op.name} has no rule for its gradient; "
            "compute it under Tensor.no_grad(), or on x.detach()"
        )
    return Value(node, Entry(op.name, rule, sources, node, arg))


# *** values ***


_constants: dict[Any, LazyBuffer] = {}


def constant(number: Number, dtype: DType, shape: Shape, device: str) -> LazyBuffer:
    """A number for every element; the last few hundred are kept, because functions need many."""
    key = (number, math.copysign(1.0, number), dtype, shape, device)
    node = _constants.get(key)
    # A constant that was computed has become memory, which nothing should hold without need.
    if node is None or node.op is not LoadOps.CONST:
        if len(_constants) >= 512:
            _constants.clear()
        node = _constants[key] = LazyBuffer.const(number, dtype, shape, device)
    return node


@final
class Value:
    """A node of the lazy graph, and its place in the tape. It never changes.

    The methods are the primitive ops: shapes and dtypes must fit exactly, only Python numbers are
    brought to them.
    """

    __slots__ = ("edge", "node")

    def __init__(self, node: LazyBuffer, edge: Edge | None = None) -> None:
        self.node = node
        self.edge = edge

    @property
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return self.node.shape

    @property
    def dtype(self) -> DType:
        """The number type."""
        return self.node.dtype

    def detach(self) -> Value:
        """The same node outside the tape."""
        return Value(self.node) if self.edge is not None else self

    def full(self, number: Number, shape: Shape | None = None) -> Value:
        """A constant with this value's dtype and device, and its shape unless given."""
        node = self.node
        shape = node.shape if shape is None else shape
        return Value(constant(number, node.dtype, shape, node.device))

    # element-wise

    def alu(self, op: UnaryOps | BinaryOps | TernaryOps, *others: Value) -> Value:
        """An element-wise op on this value and others of its shape."""
        node = self.node.e(op, *[other.node for other in others])
        return _apply(op, (self, *others), node)

    def cast(self, dtype: DType) -> Value:
        """The numbers as another type holds them."""
        if dtype is self.node.dtype:
            return self
        return _apply(UnaryOps.CAST, (self,), self.node.cast(dtype), dtype)

    def bitcast(self, dtype: DType) -> Value:
        """The same bits, read as another type."""
        return Value(self.node.bitcast(dtype))

    def _other(self, other: Value | Number) -> Value:
        return other if isinstance(other, Value) else self.full(other)

    def __add__(self, other: Value | Number) -> Value:
        return self.alu(BinaryOps.ADD, self._other(other))

    def __radd__(self, other: Number) -> Value:
        return self.full(other).alu(BinaryOps.ADD, self)

    def __sub__(self, other: Value | Number) -> Value:
        return self.alu(BinaryOps.SUB, self._other(other))

    def __rsub__(self, other: Number) -> Value:
        return self.full(other).alu(BinaryOps.SUB, self)

    def __mul__(self, other: Value | Number) -> Value:
        return self.alu(BinaryOps.MUL, self._other(other))

    def __rmul__(self, other: Number) -> Value:
        return self.full(other).alu(BinaryOps.MUL, self)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.alu(BinaryOps.DIV, self._other(other))

    def __rtruediv__(self, other: Number) -> Value:
        return self.full(other).alu(BinaryOps.DIV, self)

    def __neg__(self) -> Value:
        return self.alu(UnaryOps.NEG)

    def __lt__(self, other: Value | Number) -> Value:
        return self.alu(BinaryOps.CMPLT, self._other(other))

    def __gt__(self, other: Value | Number) -> Value:
        return self._other(other).alu(BinaryOps.CMPLT, self)

    def differs(self, other: Value | Number) -> Value:
        """Where the two are not equal; true for NaN."""
        return self.alu(BinaryOps.CMPNE, self._other(other))

    def equals(self, other: Value | Number) -> Value:
        """Where the two are equal; false for NaN."""
        return self.differs(other).alu(UnaryOps.NEG)

    def muladd(self, factor: Value | Number, addend: Value | Number) -> Value:
        """`self * factor + addend`, rounded once for floats."""
        return self.alu(TernaryOps.MULACC, self._other(factor), self._other(addend))

    def where(self, yes: Value, no: Value | Number) -> Value:
        """`yes` where this condition holds, `no` elsewhere."""
        return self.alu(TernaryOps.WHERE, yes, yes._other(no))

    def maximum(self, other: Value | Number) -> Value:
        """The larger of the two; NaN if either is."""
        return self.alu(BinaryOps.MAX, self._other(other))

    def absolute(self) -> Value:
        """The value without its sign."""
        return (self > 0).where(self, 0 - self)  # -0.0 becomes 0.0

    # reductions

    def reduce(self, op: ReduceOps, axes: Sequence[int]) -> Value:
        """The axes combined into one element each; they stay, with size 1."""
        if not axes:
            return self
        axes = tuple(axes)
        return _apply(op, (self,), self.node.r(op, axes), axes)

    def sum(self, axes: Sequence[int]) -> Value:
        """The sum along some axes, which stay with size 1."""
        return self.reduce(ReduceOps.SUM, axes)

    def scatter(self, index: Value, axis: int, size: sint, how: str = "add") -> Value:
        """Zeros, to which each element is added at its index along `axis`.

        With `how` "max", "prod" or "last" elements for one place are combined so, over the
        smallest number, 1 and 0; these are outside the tape.
        """
        if 0 in self.shape:
            shape = self.shape
            rest = {"max": dtypes.min(self.dtype), "prod": 1}.get(how, 0)
            return self.full(rest, (*shape[:axis], size, *shape[axis + 1 :]))
        node = self.node.scatter(index.node, axis, size, how)
        if how != "add":
            return Value(node)
        return _apply(ReduceOps.SCATTER, (self, index), node, (axis, size))

    # movements

    def reshape(self, shape: Shape) -> Value:
        """The same elements in row-major order."""
        if shape == self.node.shape:
            return self
        return _apply(MovementOps.RESHAPE, (self,), self.node.reshape(shape), shape)

    def permute(self, axes: Sequence[int]) -> Value:
        """Axis i of the result is axis `axes[i]`."""
        axes = tuple(axes)
        if axes == tuple(range(len(axes))):
            return self
        return _apply(MovementOps.PERMUTE, (self,), self.node.permute(axes), axes)

    def expand(self, shape: Shape) -> Value:
        """Axes of size 1 repeat."""
        if shape == self.node.shape:
            return self
        return _apply(MovementOps.EXPAND, (self,), self.node.expand(shape), shape)

    def pad(self, arg: Sequence[tuple[sint, sint]]) -> Value:
        """(before, after) zeros for each axis."""
        arg = tuple(arg)
        return _apply(MovementOps.PAD, (self,), self.node.pad(arg), arg)

    def shrink(self, arg: Sequence[tuple[sint, sint]]) -> Value:
        """The part (start, stop) of each axis."""
        arg = tuple(arg)
        return _apply(MovementOps.SHRINK, (self,), self.node.shrink(arg), arg)

    def stride(self, arg: Sequence[int]) -> Value:
        """Every n-th element of each axis, from the end if negative."""
        arg = tuple(arg)
        return _apply(MovementOps.STRIDE, (self,), self.node.stride(arg), arg)

    def window(self, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Value:
        """Axis `axis` becomes positions of a window, whose elements are a new last axis."""
        node = self.node.window(axis, size, stride, dilation)
        return _apply(MovementOps.WINDOW, (self,), node, (axis, size, stride, dilation))

    def unwindow(self, axis: int, length: sint, stride: int = 1, dilation: int = 1) -> Value:
        """The elements of windows put back at their positions, one copy for each window element."""
        node = self.node.unwindow(axis, length, stride, dilation)
        return _apply(MovementOps.UNWINDOW, (self,), node, (axis, length, stride, dilation))

    def gather(self, index: Value, axis: int) -> Value:
        """NumPy's `take_along_axis`."""
        node = self.node.gather(index.node, axis)
        return _apply(MovementOps.GATHER, (self, index), node, axis)

    # memory

    def contiguous(self) -> Value:
        """The same value in memory of its own."""
        return _apply(LoadOps.CONTIGUOUS, (self,), self.node.contiguous())

    def copy_to(self, device: str) -> Value:
        """The value in the memory of another device."""
        if device == self.node.device:
            return self
        return _apply(LoadOps.FROM, (self,), self.node.copy_to(device), self.node.device)

    def assign(self, value: Value, region: Region | None, node: LazyBuffer | None = None) -> Value:
        """This value with a region (None: all) replaced; `node` if a storage has made it."""
        if node is None:
            node = self.node.assign(value.node, None if region is None else region.view)
        return _apply(LoadOps.ASSIGN, (self, value), node, region)


# *** the rules, one for each primitive op ***


def _reverse_sub(grad: Value, entry: Entry) -> Gradients:
    return grad, -grad if entry.parents[1] is not None else None


def _reverse_mul(grad: Value, entry: Entry) -> Gradients:
    a, b = entry.saved
    return (
        grad * b if entry.parents[0] is not None else None,
        grad * a if entry.parents[1] is not None else None,
    )


def _reverse_div(grad: Value, entry: Entry) -> Gradients:
    (b,) = entry.saved
    quotient = grad / b
    return quotient, -(quotient * entry.result()) if entry.parents[1] is not None else None


def _reverse_mod(grad: Value, entry: Entry) -> Gradients:
    a, b = entry.saved
    return grad, -(grad * (a / b).alu(UnaryOps.TRUNC)) if entry.parents[1] is not None else None


def _reverse_maximum(grad: Value, entry: Entry) -> Gradients:
    """Where both are equal, each gets half."""
    a, b = entry.saved
    half = grad * 0.5
    to_a = (b < a).where(grad, (a < b).where(grad.full(0), half))
    return to_a, grad - to_a


def _reverse_muladd(grad: Value, entry: Entry) -> Gradients:
    a, b = entry.saved
    return (
        grad * b if entry.parents[0] is not None else None,
        grad * a if entry.parents[1] is not None else None,
        grad,
    )


def _reverse_where(grad: Value, entry: Entry) -> Gradients:
    (condition,) = entry.saved
    zero = grad.full(0)
    return None, condition.where(grad, zero), condition.where(zero, grad)


def _reverse_exp2(grad: Value, entry: Entry) -> Gradients:
    return (grad * entry.result() * math.log(2),)


def _reverse_log2(grad: Value, entry: Entry) -> Gradients:
    (x,) = entry.saved
    return (grad / (x * math.log(2)),)


def _reverse_sin(grad: Value, entry: Entry) -> Gradients:
    (x,) = entry.saved
    return (grad * x.alu(UnaryOps.COS),)


def _reverse_cos(grad: Value, entry: Entry) -> Gradients:
    (x,) = entry.saved
    return (-(grad * x.alu(UnaryOps.SIN)),)


def _reverse_sqrt(grad: Value, entry: Entry) -> Gradients:
    return (grad * 0.5 / entry.result(),)


def _reverse_reciprocal(grad: Value, entry: Entry) -> Gradients:
    result = entry.result()
    return (-(grad * result * result),)


def _reverse_sum(grad: Value, entry: Entry) -> Gradients:
    return (grad.expand(entry.shapes[0]),)


def _reverse_max(grad: Value, entry: Entry) -> Gradients:
    """Elements that share the maximum share its gradient evenly."""
    (x,) = entry.saved
    chosen = x.equals(entry.result().expand(x.shape)).cast(x.dtype)
    share = grad / chosen.sum(entry.arg)
    return (share.expand(x.shape) * chosen,)


def _reverse_prod(grad: Value, entry: Entry) -> Gradients:
    """The product of the others: with one zero it is left to the zero alone, with two it is 0."""
    (x,) = entry.saved
    zero = x.equals(0)
    others = zero.where(x.full(1), x)
    product = others.reduce(ReduceOps.PROD, entry.arg).expand(x.shape)
    zeros = zero.cast(x.dtype).sum(entry.arg).expand(x.shape)
    nothing = x.full(0)
    at_zero = zeros.equals(1).where(product, nothing)
    elsewhere = zeros.equals(0).where(product / others, nothing)
    return (grad.expand(x.shape) * zero.where(at_zero, elsewhere),)


def _reverse_scatter(grad: Value, entry: Entry) -> Gradients:
    (index,) = entry.saved
    return grad.gather(index, entry.arg[0]), None


def _reverse_reshape(grad: Value, entry: Entry) -> Gradients:
    return (grad.reshape(entry.shapes[0]),)


def _reverse_permute(grad: Value, entry: Entry) -> Gradients:
    inverse = [0] * len(entry.arg)
    for position, axis in enumerate(entry.arg):
        inverse[axis] = position
    return (grad.permute(inverse),)


def _reverse_expand(grad: Value, entry: Entry) -> Gradients:
    pairs = zip(entry.shapes[0], grad.shape, strict=True)
    return (grad.sum([axis for axis, (size, wide) in enumerate(pairs) if size != wide]),)


def _reverse_pad(grad: Value, entry: Entry) -> Gradients:
    sizes = zip(entry.arg, entry.shapes[0], strict=True)
    return (grad.shrink([(before, before + size) for (before, _), size in sizes]),)


def _reverse_shrink(grad: Value, entry: Entry) -> Gradients:
    sizes = zip(entry.arg, entry.shapes[0], strict=True)
    return (grad.pad([(start, size - stop) for (start, stop), size in sizes]),)


def _reverse_stride(grad: Value, entry: Entry) -> Gradients:
    """Zeros between the elements, then the flips undone."""
    for axis, step in enumerate(entry.arg):
        if abs(step) != 1:
            grad = _spread(grad, axis, abs(step), entry.shapes[0][axis])
    if any(step < 0 for step in entry.arg):
        grad = grad.stride([-1 if step < 0 else 1 for step in entry.arg])
    return (grad,)


def _spread(value: Value, axis: int, step: int, length: sint) -> Value:
    """The elements along `axis` moved `step` apart, with zeros between them, `length` in all."""
    shape = value.shape
    before, size, after = shape[:axis], shape[axis], shape[axis + 1 :]
    none = ((0, 0),)
    apart = value.reshape((*before, size, 1, *after))
    apart = apart.pad(none * (axis + 1) + ((0, step - 1),) + none * len(after))
    apart = apart.reshape((*before, size * step, *after))
    kept = [(0, wide) for wide in apart.shape]
    kept[axis] = (0, length)
    return apart.shrink(kept)


def _reverse_window(grad: Value, entry: Entry) -> Gradients:
    axis, _, stride, dilation = entry.arg
    length = entry.shapes[0][axis]
    back = grad.unwindow(axis, length, stride, dilation)
    return (back.sum((len(back.shape) - 1,)).reshape(entry.shapes[0]),)


def _reverse_unwindow(grad: Value, entry: Entry) -> Gradients:
    """A window over each of the K copies, of which element k of copy k is wanted: the diagonal.

    Under a sum over the copies, these are equal, and one window has all that is wanted.
    """
    axis, length, stride, dilation = entry.arg
    rank = len(grad.shape)
    size = entry.shapes[0][-1]
    assert isinstance(size, int)
    reach = (entry.shapes[0][axis] - 1) * stride + dilation * (size - 1) + 1
    srcs = grad.node.srcs
    if grad.node.op is MovementOps.EXPAND and srcs[0].shape[-1] == 1:
        first = [(0, n) for n in grad.shape[:-1]]
        copy = grad.shrink([*first, (0, 1)]).reshape(grad.shape[:-1])
        return (_resized(copy, axis, length, reach).window(axis, size, stride, dilation),)
    windows = _resized(grad, axis, length, reach).window(axis, size, stride, dilation)
    ones = grad.full(1, (size, 1))
    diagonal = ones.pad(((0, 0), (0, size))).reshape((size * (size + 1),))
    diagonal = diagonal.shrink(((0, size * size),)).reshape((1,) * (rank - 1) + (size, size))
    picked = (windows * diagonal.expand(windows.shape)).sum((rank,))
    return (picked.reshape(entry.shapes[0]),)


def _resized(value: Value, axis: int, length: sint, wanted: sint) -> Value:
    """The value with the size of an axis changed at its end, by zeros or by a cut."""
    more = wanted - length
    if isinstance(more, int) and more < 0:
        return value.shrink([(0, wanted if i == axis else n) for i, n in enumerate(value.shape)])
    return value.pad([(0, more if i == axis else 0) for i in range(len(value.shape))])


def _reverse_gather(grad: Value, entry: Entry) -> Gradients:
    (index,) = entry.saved
    return grad.scatter(index, entry.arg, entry.shapes[0][entry.arg]), None


def _reverse_assign(grad: Value, entry: Entry) -> Gradients:
    region: Region | None = entry.arg
    if region is None:
        return None, grad
    value = region.read(grad)
    rest = grad.assign(value.full(0), region) if entry.parents[0] is not None else None
    return rest, value


REVERSE: dict[Op, Rule] = {
    BinaryOps.ADD: Rule(lambda grad, entry: (grad, grad)),
    BinaryOps.SUB: Rule(_reverse_sub),
    BinaryOps.MUL: Rule(_reverse_mul, inputs=(0, 1)),
    BinaryOps.DIV: Rule(_reverse_div, inputs=(1,), output=True),
    BinaryOps.MOD: Rule(_reverse_mod, inputs=(0, 1)),
    BinaryOps.MAX: Rule(_reverse_maximum, inputs=(0, 1)),
    TernaryOps.MULACC: Rule(_reverse_muladd, inputs=(0, 1)),
    TernaryOps.WHERE: Rule(_reverse_where, inputs=(0,)),
    UnaryOps.EXP2: Rule(_reverse_exp2, output=True),
    UnaryOps.LOG2: Rule(_reverse_log2, inputs=(0,)),
    UnaryOps.SIN: Rule(_reverse_sin, inputs=(0,)),
    UnaryOps.COS: Rule(_reverse_cos, inputs=(0,)),
    UnaryOps.SQRT: Rule(_reverse_sqrt, output=True),
    UnaryOps.RECIP: Rule(_reverse_reciprocal, output=True),
    UnaryOps.NEG: Rule(lambda grad, entry: (-grad,)),
    UnaryOps.CAST: Rule(lambda grad, entry: (grad.cast(entry.kinds[0]),)),
    ReduceOps.SUM: Rule(_reverse_sum),
    ReduceOps.MAX: Rule(_reverse_max, inputs=(0,), output=True),
    ReduceOps.PROD: Rule(_reverse_prod, inputs=(0,)),
    ReduceOps.SCATTER: Rule(_reverse_scatter, inputs=(1,)),
    MovementOps.RESHAPE: Rule(_reverse_reshape),
    MovementOps.PERMUTE: Rule(_reverse_permute),
    MovementOps.EXPAND: Rule(_reverse_expand),
    MovementOps.PAD: Rule(_reverse_pad),
    MovementOps.SHRINK: Rule(_reverse_shrink),
    MovementOps.STRIDE: Rule(_reverse_stride),
    MovementOps.WINDOW: Rule(_reverse_window),
    MovementOps.UNWINDOW: Rule(_reverse_unwindow),
    MovementOps.GATHER: Rule(_reverse_gather, inputs=(1,)),
    LoadOps.CONTIGUOUS: IDENTITY,
    LoadOps.FROM: Rule(lambda grad, entry: (grad.copy_to(entry.arg),)),
    LoadOps.ASSIGN: Rule(_reverse_assign),
}
# The derivative is zero wherever it exists, so nothing flows back.
FLAT: frozenset[Op] = frozenset({UnaryOps.TRUNC, BinaryOps.CMPLT, BinaryOps.CMPNE})
