"""Values that remember how they were made.

A `TracedValue` is a node of the lazy graph and, while it depends on something that needs a
gradient, a `GradEdge` into the tape. The tape is a second graph beside the lazy one: a realised
node drops its sources, a `GradNode` keeps what its rule will ask for, and nothing else. Rules are
written over `TracedValue`s, so that they can be recorded and differentiated themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol, final
from weakref import ref

from ferrule.base.records import dataclass
from ferrule.base.threadstate import this_thread
from ferrule.ir.dtype import DType, check_range, dtypes, exact
from ferrule.ir.expr import INDEX, Expr, present_value, sint
from ferrule.ir.lazy import Handle, LazyBuffer, elementwise
from ferrule.ir.lazyop import (
    BinaryOps,
    LoadOps,
    MovementOps,
    Op,
    ReduceOps,
    TernaryOps,
    UnaryOps,
    scatter_start,
)
from ferrule.ir.op_table import ELEMENTWISE
from ferrule.ir.shape.view import View, prod_sint

Shape = tuple[sint, ...]
Number = bool | int | float


class GradientError(RuntimeError):
    """The tape cannot give a gradient that was asked for."""


# *** the tape ***


_serials = count()


def tape_position() -> int:
    """A number above the serials of all entries so far, and below those of all to come."""
    return next(_serials)


@final
class Leaf:
    """An end of the tape: a tensor that keeps its gradient. `owner` is that tensor, weakly."""

    __slots__ = ("__weakref__", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = ref(owner)


@final
class GradNode:
    """A recorded operation: the edges of its sources, and the values that its rule needs."""

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
        self, name: str, rule: Rule, sources: Sequence[TracedValue], node: LazyBuffer, arg: Any
    ) -> None:
        self.name = name
        self.rule = rule
        self.arg = arg
        self.parents = tuple([source.edge for source in sources])
        self.shapes = tuple([source.node.shape for source in sources])
        self.kinds = tuple([source.node.dtype for source in sources])
        inputs = rule.inputs
        self.saved = tuple([sources[position] for position in inputs]) if inputs else ()
        self.output = TracedValue(node) if rule.output else None
        self.freed = False
        self.serial = next(_serials)

    @staticmethod
    def like(
        other: GradNode,
        rule: Rule,
        arg: Any,
        parents: tuple[GradEdge | None, ...],
        shapes: tuple[Shape, ...],
        saved: tuple[TracedValue, ...],
        output: TracedValue | None,
    ) -> GradNode:
        """The same operation, recorded in another way."""
        entry = object.__new__(GradNode)
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

    def result(self) -> TracedValue:
        """The result of the operation, for rules that keep it."""
        assert self.output is not None, f"the rule of {self.name} does not keep its output"
        return TracedValue(self.output.node, self)

    def free(self) -> None:
        """Drop the kept values to free memory; entries that keep nothing stay usable."""
        if self.saved or self.output is not None:
            self.saved = ()
            self.output = None
            self.freed = True


GradEdge = Leaf | GradNode
Gradients = tuple["TracedValue | None", ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """The reverse rule of an operation: from the gradient of its result to those of its sources.

    `inputs` are the positions of the sources to keep; `output` is True if the result is kept.
    """

    reverse: Callable[[Any, GradNode], Gradients]
    inputs: tuple[int, ...] = ()
    output: bool = False


class Region(Protocol):
    """The part of a tensor's memory that an ASSIGN replaces."""

    @property
    def view(self) -> View:
        """The part as a view of the flat memory."""

    def read(self, value: TracedValue) -> TracedValue:
        """The part, from a value with the shape of the whole memory."""


def record(
    name: str, rule: Rule, sources: Sequence[TracedValue], node: LazyBuffer, arg: Any
) -> TracedValue:
    """`node` as a value; recorded with `rule` if a source needs a gradient."""
    state = this_thread.state
    if state.calls is not None:
        state.calls.add(name, sources, node, arg)
    if state.recording and dtypes.is_float(node.dtype):
        for source in sources:
            if source.edge is not None:
                return TracedValue(node, GradNode(name, rule, sources, node, arg))
    return TracedValue(node)


def is_noting() -> bool:
    """True in an export, which notes the functions that are called."""
    return this_thread.state.calls is not None


def note_call(
    name: str, sources: Sequence[TracedValue | None], result: TracedValue, arg: Any = None
) -> None:
    """Note that a value is the result of a function without a rule of its own.

    Exports write such functions as one operator, as they do with those that are recorded.
    """
    calls = this_thread.state.calls
    if calls is not None:
        calls.add(name, sources, result.node, arg)


@final
class Parts:
    """The gradients of an operation's results, by their numbers, where it has several."""

    __slots__ = ("of",)

    def __init__(self, of: dict[int, TracedValue]) -> None:
        self.of = of

    def __add__(self, other: Parts) -> Parts:
        both = dict(self.of)
        for number, grad in other.of.items():
            both[number] = both[number] + grad if number in both else grad
        return Parts(both)


def record_several(
    name: str,
    rule: Rule,
    sources: Sequence[TracedValue],
    nodes: Sequence[LazyBuffer],
    arg: Any,
    others: Sequence[GradEdge] = (),
    kept: Sequence[LazyBuffer] = (),
) -> list[TracedValue]:
    """`record` for several results; the rule is given their gradients as `Parts`.

    `others` are edges that the results depend on as well: the rule gives their gradients last.
    `kept` are nodes to be kept for the rule, after the sources that it asks for.
    """
    depends = bool(others) or any(source.edge is not None for source in sources)
    if not (this_thread.state.recording and depends):
        return [TracedValue(node) for node in nodes]
    assert not rule.output, f"the rule of {name} cannot keep one of several results"
    whole = GradNode(name, rule, sources, nodes[0], arg)
    whole.parents += tuple(others)
    whole.saved += tuple([TracedValue(node) for node in kept])
    return [result_of(whole, node, number) for number, node in enumerate(nodes)]


def result_of(whole: GradNode, node: LazyBuffer, number: int) -> TracedValue:
    """The result with a number of an operation that has several."""
    if not dtypes.is_float(node.dtype):
        return TracedValue(node)
    return TracedValue(node, GradNode(whole.name, _PART, (TracedValue(node, whole),), node, number))


def _reverse_part(grad: TracedValue, entry: GradNode) -> Any:
    return (Parts({entry.arg: grad}),)


_PART = Rule(_reverse_part)
IDENTITY = Rule(lambda grad, entry: (grad,))
"""The rule of operations that pass their source on."""
REVERSE: dict[Op, Rule] = {}
"""The rule of each primitive op; from `rules.py`, when the package is loaded."""
FLAT: frozenset[Op] = frozenset([op for op, row in ELEMENTWISE.items() if row.flat])
"""The ops whose derivative is zero wherever it exists, so that nothing flows back."""


def _apply(
    op: Op, sources: tuple[TracedValue, ...], node: LazyBuffer, arg: Any = None
) -> TracedValue:
    for source in sources:
        if source.edge is not None and this_thread.state.recording:
            return _record_op(op, sources, node, arg)
    return TracedValue(node)


def _record_op(op: Op, sources: tuple[TracedValue, ...], node: LazyBuffer, arg: Any) -> TracedValue:
    if op in FLAT or not dtypes.is_float(node.dtype):
        return TracedValue(node)
    rule = REVERSE.get(op)
    if rule is None:
        raise GradientError(
            f"{op.name} has no rule for its gradient; "
            "compute it under Tensor.no_grad(), or on x.detach()"
        )
    return TracedValue(node, GradNode(op._name_, rule, sources, node, arg))


# *** values ***


_constants: dict[Any, TracedValue] = {}


def constant(number: Number | Expr, dtype: DType, shape: Shape, device: str) -> TracedValue:
    """A number for every element; the last few hundred are kept, because functions need many.

    An expression is a number that is known when it runs. Raises `OverflowError` if the number is
    beyond an integer type's.
    """
    if isinstance(number, Expr):
        check_expression(number, dtype)
    key = (number if type(number) is int else exact(number), dtype, shape, device)
    value = _constants.get(key)
    # A constant that was computed has become memory, which nothing should hold without need.
    if value is None or value.node.op is not LoadOps.CONST:
        if not isinstance(number, Expr):
            check_range(number, dtype)
        if len(_constants) >= 512:
            _constants.clear()
        value = _constants[key] = TracedValue(LazyBuffer.const(number, dtype, shape, device))
    return value


def check_expression(number: Expr, dtype: DType) -> None:
    """`check_range` for the present value, and that of each replay; without one, for all values."""
    value: Any = number
    if number.dtype is INDEX and present_value(number) is not None:
        check_range(value, dtype)  # its comparisons note what they depend on
        return
    for bound in number.bounds():
        check_range(bound, dtype)


@final
class TracedValue(Handle):
    """A node of the lazy graph, and its edge into the tape. It never changes.

    The methods are the primitive ops: shapes and dtypes must fit exactly, and only Python numbers
    are converted.
    """

    __slots__ = ("edge",)

    def __init__(self, node: LazyBuffer, edge: GradEdge | None = None) -> None:
        self.node = node  # what `Handle` does, without a call: each operation makes one
        self._mark = ref(node.anchor)
        self.edge = edge

    @property
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return self.node.shape

    @property
    def dtype(self) -> DType:
        """The number type."""
        return self.node.dtype

    def detach(self) -> TracedValue:
        """The same node outside the tape."""
        return TracedValue(self.node) if self.edge is not None else self

    def full(self, number: Number | Expr, shape: Shape | None = None) -> TracedValue:
        """A constant with this value's dtype and device, and its shape unless given."""
        node = self.node
        shape = node.shape if shape is None else shape
        return constant(number, node.dtype, shape, node.device)

    def nothing(self, shape: Shape) -> TracedValue:
        """Zeros that depend on this value, though on none of its elements: its gradient is zeros.

        A result without elements depends on its operands, too.
        """
        none = self.reshape((prod_sint(self.shape),)).shrink(((0, 0),))
        return none.pad(((0, prod_sint(shape)),)).reshape(shape)

    # element-wise

    def alu(self, op: UnaryOps | BinaryOps | TernaryOps, *others: TracedValue) -> TracedValue:
        """An element-wise op on this value and others of its shape."""
        if len(others) == 1:  # which most have; a loop would take as long as the rest
            other = others[0]
            node = elementwise(op, (self.node, other.node))
            if self.edge is None and other.edge is None:
                return TracedValue(node)
            return _apply(op, (self, other), node)
        sources = (self, *others)
        node = elementwise(op, tuple([source.node for source in sources]))
        return _apply(op, sources, node)

    def cast(self, dtype: DType) -> TracedValue:
        """The numbers as another type holds them."""
        if dtype is self.node.dtype:
            return self
        return _apply(UnaryOps.CAST, (self,), self.node.cast(dtype), dtype)

    def bitcast(self, dtype: DType) -> TracedValue:
        """The same bits, read as another type."""
        return TracedValue(self.node.bitcast(dtype))

    def _other(self, other: TracedValue | Number) -> TracedValue:
        return other if isinstance(other, TracedValue) else self.full(other)

    def __add__(self, other: TracedValue | Number) -> TracedValue:
        return self.alu(BinaryOps.ADD, self._other(other))

    def __radd__(self, other: Number) -> TracedValue:
        return self.full(other).alu(BinaryOps.ADD, self)

    def __sub__(self, other: TracedValue | Number) -> TracedValue:
        return self.alu(BinaryOps.SUB, self._other(other))

    def __rsub__(self, other: Number) -> TracedValue:
        return self.full(other).alu(BinaryOps.SUB, self)

    def __mul__(self, other: TracedValue | Number) -> TracedValue:
        return self.alu(BinaryOps.MUL, self._other(other))

    def __rmul__(self, other: Number) -> TracedValue:
        return self.full(other).alu(BinaryOps.MUL, self)

    def __truediv__(self, other: TracedValue | Number) -> TracedValue:
        return self.alu(BinaryOps.DIV, self._other(other))

    def __rtruediv__(self, other: Number) -> TracedValue:
        return self.full(other).alu(BinaryOps.DIV, self)

    def __neg__(self) -> TracedValue:
        return self.alu(UnaryOps.NEG)

    def __lt__(self, other: TracedValue | Number) -> TracedValue:
        return self.alu(BinaryOps.CMPLT, self._other(other))

    def __gt__(self, other: TracedValue | Number) -> TracedValue:
        return self._other(other).alu(BinaryOps.CMPLT, self)

    def differs(self, other: TracedValue | Number) -> TracedValue:
        """Where the two are not equal; true for NaN."""
        return self.alu(BinaryOps.CMPNE, self._other(other))

    def equals(self, other: TracedValue | Number) -> TracedValue:
        """Where the two are equal; false for NaN."""
        return self.differs(other).alu(UnaryOps.NEG)

    def muladd(self, factor: TracedValue | Number, addend: TracedValue | Number) -> TracedValue:
        """`self * factor + addend`, rounded once for floats."""
        return self.alu(TernaryOps.MULACC, self._other(factor), self._other(addend))

    def where(self, yes: TracedValue, no: TracedValue | Number) -> TracedValue:
        """`yes` where this condition holds, `no` elsewhere."""
        return self.alu(TernaryOps.WHERE, yes, yes._other(no))

    def maximum(self, other: TracedValue | Number) -> TracedValue:
        """The larger of the two; NaN if either is."""
        return self.alu(BinaryOps.MAX, self._other(other))

    def absolute(self) -> TracedValue:
        """The value without its sign."""
        return (self > 0).where(self, 0 - self)  # -0.0 becomes 0.0

    # reductions

    def reduce(self, op: ReduceOps, axes: Sequence[int]) -> TracedValue:
        """The axes combined into one element each; they stay, with size 1."""
        if not axes:
            return self
        axes = tuple(axes)
        return _apply(op, (self,), self.node.r(op, axes), axes)

    def sum(self, axes: Sequence[int]) -> TracedValue:
        """The sum along some axes, which stay with size 1."""
        return self.reduce(ReduceOps.SUM, axes)

    def scatter(self, index: TracedValue, axis: int, size: sint, how: str = "add") -> TracedValue:
        """Zeros, to which each element is added at its index along `axis`.

        With `how` "max", "min", "prod" or "last" elements for one place are combined so, over
        the smallest number, the largest, 1 and 0; these are outside the tape.
        """
        if 0 in self.shape:
            shape = self.shape
            wide = (*shape[:axis], size, *shape[axis + 1 :])
            if how == "add":
                return self.nothing(wide)
            return self.full(scatter_start(how, self.dtype), wide)
        node = self.node.scatter(index.node, axis, size, how)
        if how != "add":
            return TracedValue(node)
        return _apply(ReduceOps.SCATTER, (self, index), node, (axis, size))

    def put(self, new: TracedValue, index: TracedValue, axis: int, how: str = "add") -> TracedValue:
        """This value, to which elements of another are added at their index along `axis`.

        With `how` they are combined otherwise; that is outside the tape.
        """
        if 0 in new.shape and (how != "add" or new.edge is None):
            return self
        node = self.node.put(new.node, index.node, axis, how)
        if how != "add":
            return TracedValue(node)
        return _apply(ReduceOps.SCATTER, (new, index, self), node, (axis, self.shape[axis]))

    # movements

    def reshape(self, shape: Shape) -> TracedValue:
        """The same elements in row-major order."""
        if shape == self.node.shape:
            return self
        return _apply(MovementOps.RESHAPE, (self,), self.node.reshape(shape), shape)

    def permute(self, axes: Sequence[int]) -> TracedValue:
        """Axis i of the result is axis `axes[i]`."""
        axes = tuple(axes)
        if axes == tuple(range(len(axes))):
            return self
        return _apply(MovementOps.PERMUTE, (self,), self.node.permute(axes), axes)

    def expand(self, shape: Shape) -> TracedValue:
        """Axes of size 1 repeat."""
        if shape == self.node.shape:
            return self
        return _apply(MovementOps.EXPAND, (self,), self.node.expand(shape), shape)

    def pad(self, arg: Sequence[tuple[sint, sint]]) -> TracedValue:
        """(before, after) zeros for each axis."""
        arg = tuple(arg)
        return _apply(MovementOps.PAD, (self,), self.node.pad(arg), arg)

    def shrink(self, arg: Sequence[tuple[sint, sint]]) -> TracedValue:
        """The part (start, stop) of each axis."""
        arg = tuple(arg)
        return _apply(MovementOps.SHRINK, (self,), self.node.shrink(arg), arg)

    def stride(self, arg: Sequence[int]) -> TracedValue:
        """Every n-th element of each axis, from the end if negative."""
        arg = tuple(arg)
        return _apply(MovementOps.STRIDE, (self,), self.node.stride(arg), arg)

    def window(self, axis: int, size: int, stride: int = 1, dilation: int = 1) -> TracedValue:
        """Axis `axis` becomes positions of a window, whose elements are a new last axis."""
        return self.moved(MovementOps.WINDOW, (axis, size, stride, dilation))

    def unwindow(self, axis: int, length: sint, stride: int = 1, dilation: int = 1) -> TracedValue:
        """The elements of windows put back at their positions, one copy for each window element."""
        node = self.node.unwindow(axis, length, stride, dilation)
        return _apply(MovementOps.UNWINDOW, (self,), node, (axis, length, stride, dilation))

    def gather(self, index: TracedValue, axis: int) -> TracedValue:
        """NumPy's `take_along_axis`."""
        return self.moved(MovementOps.GATHER, axis, index)

    def moved(self, op: MovementOps, arg: Any, *others: TracedValue) -> TracedValue:
        """Any movement of this value, by its op; the others are its further operands."""
        nodes = [other.node for other in others]
        return _apply(op, (self, *others), self.node.moved(op, arg, *nodes), arg)

    # memory

    def contiguous(self) -> TracedValue:
        """The same value in memory of its own."""
        return _apply(LoadOps.CONTIGUOUS, (self,), self.node.contiguous())

    def copy_to(self, device: str) -> TracedValue:
        """The value in the memory of another device."""
        if device == self.node.device:
            return self
        return _apply(LoadOps.FROM, (self,), self.node.copy_to(device), self.node.device)

    def assign(
        self, value: TracedValue, region: Region | None, node: LazyBuffer | None = None
    ) -> TracedValue:
        """This value with a region (None: all) replaced; `node` if a storage has made it."""
        if node is None:
            node = self.node.assign(value.node, None if region is None else region.view)
        return _apply(LoadOps.ASSIGN, (self, value), node, region)
