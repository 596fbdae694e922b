"""The graph of an ONNX model while it is written: nodes, constants, and sizes that may vary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import BoundVariable, Expr, ExprOp, Variable, as_int, sint
from ferrule.ir.shape.view import Shape, same
from ferrule.onnx.values import Array, OnnxError, number_of

_FLOAT8: Final = (dtypes.float8_e4m3, dtypes.float8_e5m2)
_TAKE_FLOAT8: Final = {"Cast", "Identity", "Scan", "Loop"}
"""Operators that take floats of 8 bits."""


class Value(NamedTuple):
    """A value in the model."""

    name: str
    dtype: DType
    shape: Shape

    def info(self) -> Any:
        """The `onnx.ValueInfoProto`: sizes are numbers, names of variables, or unknown."""
        from onnx import helper

        sizes = [_dimension(size) for size in self.shape]
        return helper.make_tensor_value_info(self.name, number_of(self.dtype), sizes)


def _dimension(size: sint) -> int | str | None:
    if isinstance(size, BoundVariable):
        size = size.unbound()[0]
    if isinstance(size, int):
        return size
    return str(size.name) if isinstance(size, Variable) else None


@final
class Scope:
    """The names, constants and sizes of a model; graphs inside of others share them."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.initializers: dict[str, Array] = {}
        self.variables: dict[Expr, Value] = {}
        """The values of variables, as vectors of one int64."""
        self.constants: dict[tuple[Any, ...], Value] = {}

    def fresh(self, wanted: str) -> str:
        """A name that nothing else has: the wanted one, or that with a number behind it."""
        name, number = wanted, 0
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name


@final
class Builder:
    """Writes the nodes of one graph, in an order in which they can run."""

    def __init__(self, scope: Scope, outer: Builder | None = None) -> None:
        self.scope = scope
        self.nodes: list[Any] = []
        self._outer = outer
        self._made: dict[tuple[Any, ...], list[Value]] = {}
        """The outputs of each node, by all that they depend on: equal nodes are one."""
        self._sizes: dict[Expr, Value] = {}
        self._moves: dict[str, tuple[str, Value, tuple[int, ...]]] = {}
        """The Reshapes and Transposes, to be joined with what comes after them."""

    # -- nodes -----------------------------------------------------------------------------------

    def several(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[tuple[DType, Shape]],
        **attributes: Any,
    ) -> list[Value]:
        """The outputs of a new node."""
        from onnx import helper

        if operator not in _TAKE_FLOAT8 and any([dtype in _FLOAT8 for dtype, _ in outputs]):
            return self._in_float32(operator, inputs, outputs, attributes)
        given = ["" if value is None else value.name for value in inputs]
        while given and not given[-1]:
            given.pop()
        key = operator, tuple(given), repr(sorted(attributes.items()))
        known = None if "body" in attributes else self._made.get(key)
        if known is not None and len(known) == len(outputs):
            return known
        names = [self.scope.fresh(operator.lower()) for _ in outputs]
        self.nodes.append(helper.make_node(operator, given, names, name=names[0], **attributes))
        pairs = zip(names, outputs, strict=True)
        found = self._made[key] = [Value(name, dtype, shape) for name, (dtype, shape) in pairs]
        return found

    def copied(self, value: Value, wanted: str) -> Value:
        """A value of its own, as each output of a graph must be."""
        from onnx import helper

        name = self.scope.fresh(wanted)
        self.nodes.append(helper.make_node("Identity", [value.name], [name], name=name))
        return Value(name, value.dtype, value.shape)

    def _in_float32(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[tuple[DType, Shape]],
        attributes: Mapping[str, Any],
    ) -> list[Value]:
        """The outputs of a node that knows no floats of 8 bits."""
        wide = dtypes.float32
        given = [
            self.cast(value, wide) if value is not None and value.dtype in _FLOAT8 else value
            for value in inputs
        ]
        made = [(wide if dtype in _FLOAT8 else dtype, shape) for dtype, shape in outputs]
        found = self.several(operator, given, made, **attributes)
        pairs = zip(found, outputs, strict=True)
        return [self.cast(value, dtype) for value, (dtype, _) in pairs]

    def add(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        dtype: DType,
        shape: Shape,
        **attributes: Any,
    ) -> Value:
        """The output of a new node."""
        return self.several(operator, inputs, [(dtype, shape)], **attributes)[0]

    def like(self, operator: str, *inputs: Value, **attributes: Any) -> Value:
        """The output of a new element-wise node, with the dtype of its last operand."""
        shape = broadcast([value.shape for value in inputs])
        return self.add(operator, inputs, inputs[-1].dtype, shape, **attributes)

    def compared(self, operator: str, *inputs: Value) -> Value:
        """The output of a new element-wise node that gives bools."""
        return self.like(operator, *inputs)._replace(dtype=dtypes.bool)

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in another dtype."""
        if value.dtype is dtype:
            return value
        options = {"saturate": 0} if dtype in _FLOAT8 else {}  # too large: infinite, or NaN
        return self.add("Cast", [value], dtype, value.shape, to=number_of(dtype), **options)

    # -- movements -------------------------------------------------------------------------------

    def reshape(self, value: Value, shape: Shape) -> Value:
        """The same elements in another shape."""
        moved = self._moves.get(value.name)
        if moved is not None and moved[0] == "Reshape":
            value = moved[1]
        if equal(value.shape, shape):
            return value
        symbolic = sum([not isinstance(size, int) for size in shape])
        if symbolic == 1 and 0 not in shape:  # one size follows from the others
            known = [size if isinstance(size, int) else -1 for size in shape]
            wanted = self.integers(known)
        else:
            wanted = self.sizes(shape)
        zero = {"allowzero": 1} if 0 in shape else {}
        result = self.add("Reshape", [value, wanted], value.dtype, shape, **zero)
        self._moves[result.name] = "Reshape", value, ()
        return result

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        """Axis i of the result is axis `axes[i]`."""
        order = tuple(axes)
        moved = self._moves.get(value.name)
        if moved is not None and moved[0] == "Transpose":
            value, order = moved[1], tuple([moved[2][axis] for axis in order])
        if order == tuple(range(len(order))):
            return value
        shape = tuple([value.shape[axis] for axis in order])
        result = self.add("Transpose", [value], value.dtype, shape, perm=list(order))
        self._moves[result.name] = "Transpose", value, order
        return result

    def expand(self, value: Value, shape: Shape) -> Value:
        """The value, repeated along axes of size 1."""
        if equal(value.shape, shape):
            return value
        return self.add("Expand", [value, self.sizes(shape)], value.dtype, shape)

    # -- constants -------------------------------------------------------------------------------

    def constant(self, array: Array, wanted: str = "constant") -> Value:
        """An array as a part of the model; equal ones are there once."""
        key = array.dtype.str, str(array.dtype), array.shape, array.tobytes()
        found = self.scope.constants.get(key)
        if found is None:
            name = self.scope.fresh(wanted)
            self.scope.initializers[name] = array
            found = Value(name, dtypes.from_np(array.dtype), array.shape)
            self.scope.constants[key] = found
        return found

    def number(self, number: Any, dtype: DType) -> Value:
        """A number, without axes."""
        return self.constant(np.array(number, dtype.np))

    def integers(self, numbers: Sequence[int]) -> Value:
        """A vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    # -- sizes -----------------------------------------------------------------------------------

    def sizes(self, sizes: Sequence[sint]) -> Value:
        """Sizes as a vector of int64."""
        pieces: list[Value] = []
        known: list[int] = []
        for size in sizes:
            if isinstance(size, int):
                known.append(size)
                continue
            if known:
                pieces.append(self.integers(known))
                known = []
            pieces.append(self.size(size))
        if known or not pieces:
            pieces.append(self.integers(known))
        if len(pieces) == 1:
            return pieces[0]
        return self.add("Concat", pieces, dtypes.int64, (len(sizes),), axis=0)

    def size(self, size: sint) -> Value:
        """A size, or a place, as a vector of one int64."""
        if isinstance(size, int):
            return self.integers([size])
        found = self._known(size)
        if found is None:
            found = self._sizes[size] = self._computed(size)
        return found

    def _known(self, size: Expr) -> Value | None:
        graph: Builder | None = self
        while graph is not None:
            if size in graph._sizes:
                return graph._sizes[size]
            graph = graph._outer
        return None

    def _computed(self, size: Expr) -> Value:
        if size.op is ExprOp.CONST:
            return self.integers([int(size.arg)])
        if size.op is ExprOp.VARIABLE:
            variable = size.src[0] if size.src else size
            found = self.scope.variables.get(variable)
            if found is None:
                raise OnnxError(
                    f"the size {variable} is that of no argument: pass the bound variable as an "
                    "argument, or name the axis in `dynamic`"
                )
            return found
        operands = [self.size(part) for part in size.src]
        if size.op is ExprOp.IDIV:  # floor, where ONNX's truncates
            rest = self.like("Mod", *operands)
            return self.like("Div", self.like("Sub", operands[0], rest), operands[1])
        operator = _OF_SIZES.get(size.op)
        if operator is None:
            raise OnnxError(f"the size {size} cannot be computed in ONNX ({size.op.name})")
        return self.like(operator, *operands)


_OF_SIZES: Final[Mapping[ExprOp, str]] = {
    ExprOp.ADD: "Add",
    ExprOp.SUB: "Sub",
    ExprOp.MUL: "Mul",
    ExprOp.MOD: "Mod",
    ExprOp.NEG: "Neg",
    ExprOp.MIN: "Min",
    ExprOp.MAX: "Max",
}


def equal(a: Shape, b: Shape) -> bool:
    """True if two shapes are certainly equal."""
    return len(a) == len(b) and all([same(m, n) for m, n in zip(a, b, strict=True)])


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of the result of an element-wise operator, whose operands fit."""
    rank = max(map(len, shapes))
    full = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple([_wider(sizes) for sizes in zip(*full, strict=True)])


def _wider(sizes: Iterable[sint]) -> sint:
    wide = [size for size in sizes if not same(size, 1)]
    return as_int(wide[0]) if wide else 1


def reachable(nodes: Sequence[Any], outputs: Iterable[str]) -> list[Any]:
    """The nodes that outputs depend on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted.isdisjoint(node.output):
            continue
        kept.append(node)
        wanted.update(names_read(node))
    return kept[::-1]


def names_read(node: Any) -> Iterator[str]:
    """The names that a node reads, and those that the nodes of graphs in it read."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from names_read(inner)
