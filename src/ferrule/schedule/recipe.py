"""Schedules to be used again: a graph of the same form has the same kernels.

The form of a graph is its nodes in order, with sources and memory named by numbers. It says which
nodes share memory, which were asked for, which are referred to from outside, and whose memory was
handed out; all that the scheduler looks at. A recipe is a schedule that names nodes, too, by
numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from ferrule.buffer import Buffer, readable_bytes
from ferrule.dtype import DType, dtypes
from ferrule.expr import Expr, Variable, as_expr, sint, unbind
from ferrule.fold import is_negative_zero
from ferrule.lazy import LazyBuffer
from ferrule.ops import BufferOps, LazyOp, LoadOps, ScheduleItem
from ferrule.records import dataclass
from ferrule.runner import is_divisible
from ferrule.schedule.graph import Graph
from ferrule.shape.view import View

Values: TypeAlias = dict[Variable, int]

_NO_LENGTHS: Final[Mapping[Expr, int]] = {}


@final
@dataclass(frozen=True)
class Schedule:
    """Kernels to run in order, and the buffers that the nodes have once they have run."""

    items: list[ScheduleItem]
    results: list[tuple[LazyBuffer, Buffer]]

    def commit(self) -> None:
        """Tells the nodes where their values are."""
        for node, buffer in self.results:
            node.set_realized(buffer)


@final
@dataclass(frozen=True)
class Place:
    """Memory that kernels use: that of a node, a part of an arena or of another place, or new
    memory of its own."""

    device: str
    dtype: DType
    size: sint
    node: int | None = None
    """The number of a node that has this memory already."""
    arena: int | None = None
    offset: int = 0
    """In what it is a part of, in elements."""
    whole: int | None = None
    """The number of the place that it is a part of, which comes before it."""


@final
@dataclass(frozen=True)
class Step:
    """A kernel and the numbers of the places that it runs on."""

    ast: LazyOp
    places: tuple[int, ...]
    outputs: int
    variables: tuple[Variable, ...]


@final
@dataclass(frozen=True)
class Recipe:
    """A schedule without buffers and values."""

    places: tuple[Place, ...]
    arenas: tuple[tuple[str, int], ...]
    """The device and the size in bytes of each."""
    steps: tuple[Step, ...]
    results: tuple[tuple[int, int], ...]
    """Numbers of nodes, and of the places where their values are afterwards."""

    def follow(
        self,
        values: Sequence[Mapping[Variable, int]],
        nodes: list[LazyBuffer],
        lengths: Mapping[Expr, int] = _NO_LENGTHS,
    ) -> Schedule:
        """The schedule for `nodes`, which have the form that the recipe was made for.

        `values` holds, for each step, those of its variables; `lengths` those in places' sizes.
        """
        try:
            arenas = [Buffer(device, nbytes, dtypes.uint8) for device, nbytes in self.arenas]
            buffers: list[Buffer] = []
            for place in self.places:
                buffers.append(self._buffer(place, nodes, arenas, buffers, lengths))
        except MemoryError as error:
            error.add_note(f"The largest values to be stored: {self._largest()}")
            raise
        items = [_item(*pair, buffers) for pair in zip(self.steps, values, strict=True)]
        return Schedule(items, [(nodes[node], buffers[place]) for node, place in self.results])

    def _largest(self) -> str:
        """The shapes of the values that take most memory, for a message."""
        stored: dict[str, int] = {}
        for step in self.steps:
            roots = step.ast.src if step.ast.op is BufferOps.SINK else (step.ast,)
            for root, place in zip(roots, step.places, strict=False):
                if isinstance(root.op, LoadOps):
                    continue
                value = root.src[0] if root.op is BufferOps.STORE else root
                nbytes = as_expr(self.places[place].size).max * value.dtype.itemsize
                stored[f"{value.shape} {value.dtype} ({readable_bytes(nbytes)})"] = nbytes
        return ", ".join(sorted(stored, key=lambda shown: -stored[shown])[:3])

    def _buffer(
        self,
        place: Place,
        nodes: list[LazyBuffer],
        arenas: list[Buffer],
        earlier: list[Buffer],
        lengths: Mapping[Expr, int],
    ) -> Buffer:
        size = place.size if isinstance(place.size, int) else place.size.infer(lengths)
        if place.node is not None:
            buffer = nodes[place.node].realized
            assert buffer is not None, "a leaf lost its memory"
            whole = size == buffer.size
            return buffer if whole else buffer.view(place.offset, size)
        if place.arena is not None:
            return arenas[place.arena].view(place.offset, size, place.dtype)
        if place.whole is not None:
            return earlier[place.whole].view(place.offset, size)
        return Buffer(place.device, size, place.dtype)


def _item(step: Step, values: Mapping[Variable, int], buffers: list[Buffer]) -> ScheduleItem:
    used = [buffers[place] for place in step.places]
    outputs = tuple(used[: step.outputs])
    var_vals = {variable: values[variable] for variable in step.variables}
    return ScheduleItem(step.ast, outputs[0], tuple(used[step.outputs :]), var_vals, outputs)


# *** the form of a graph ***


@final
class Form:
    """What a graph looks like: `key` is equal for graphs that one recipe serves.

    None where there is no such key: for runners of the user's, or a variable with two values.
    `values` holds the variables' values.
    """

    def __init__(self, graph: Graph) -> None:
        self.values: Values = {}
        self.key: tuple[Hashable, ...] | None = None
        self._numbers: dict[LazyBuffer, int] = {}
        self._memories: dict[Any, int] = {}
        self._symbolic = graph.symbolic
        self._parts = graph.parts
        self._consistent = True
        parts: list[Hashable] = []
        for node in graph.everything:
            parts.append(self._part(node))
            self._numbers[node] = len(self._numbers)
        waiting = [node for node in graph.external if node.realized is None]
        parts.append(("requested", *self._numbers_of(graph.requested)))
        parts.append(("referred to", *self._numbers_of(waiting)))
        parts.append(("moved out", *self._numbers_of(graph.moved_out)))
        if self._consistent:
            self.key = tuple(parts)

    def _numbers_of(self, nodes: Iterable[LazyBuffer]) -> list[int]:
        return sorted([self._numbers[node] for node in nodes])

    def _part(self, node: LazyBuffer) -> tuple[Hashable, ...]:
        owner = -1 if node.owner is None else self._number_of(node.owner)
        arg, shape = node.arg, node.shape
        if self._symbolic:
            arg, shape = self._free(arg), self._free(shape)
        if node.realized is not None:
            memory = self._memory(node.realized, node in self._parts)
            return (shape, node.dtype, node.device, owner, *memory)
        if node.srcs:
            sources = tuple([self._numbers[source] for source in node.srcs])
            if node.op is LoadOps.CUSTOM:
                self._consistent = False
            return (node.op, sources, arg, owner)
        return (node.op, arg, is_negative_zero(arg), shape, node.dtype, node.device, owner)

    def _memory(self, buffer: Buffer, anywhere: bool) -> tuple[Hashable, ...]:
        base = buffer.base
        number, owner = self._number_of(buffer), self._number_of(base)
        offset = 0 if base is buffer or anywhere else buffer.byte_offset
        return (number, owner, offset, buffer.size, buffer.exports > 0, is_divisible(buffer))

    def _number_of(self, thing: object) -> int:
        """Things are numbered as they are met."""
        return self._memories.setdefault(id(thing), len(self._memories))

    def _free(self, arg: Any) -> Any:
        """An argument without bound values, which go to `values`."""
        if isinstance(arg, tuple):
            return tuple([self._free(part) for part in arg])
        if isinstance(arg, View):
            return self._free((arg.shape, arg.strides, arg.offset, arg.mask))
        if not isinstance(arg, Expr):
            return arg
        free, values = unbind(arg)
        for variable, value in values.items():
            if self.values.setdefault(variable, value) != value:
                self._consistent = False
        return free
