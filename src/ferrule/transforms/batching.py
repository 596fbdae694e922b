"""Batching, for `vmap`: the graph of one example, rewritten to compute a whole batch at once.

A function runs once, on values without the mapped axis. Each is a *lane*: a node that no device can
compute, and that knows the value with the axis in front. The part of the graph above such nodes is
then built again with the axis, with one rule for each primitive op. So is the part of the tape
above their edges, since an entry's rule is itself a function that runs on one lane. Nodes that do
not depend on a lane stay as they are, and are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, Final, TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np

from ferrule.autograd import (
    IDENTITY,
    GradEdge,
    Gradients,
    GradNode,
    Parts,
    Rule,
    Shape,
    TracedValue,
    is_recording,
    record,
    tape_position,
)
from ferrule.autograd.backward import entries_below
from ferrule.base.records import dataclass
from ferrule.device.runner import JITRunner, RowFunction
from ferrule.engine.host import Array, HostFunction, on_host
from ferrule.engine.random import Words, drawn_by, random_words
from ferrule.engine.rows import row_node
from ferrule.fusion.dynamic.templates import Template
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Variable, sint
from ferrule.ir.lazy import Handle, LazyBuffer
from ferrule.ir.lazyop import (
    BinaryOps,
    FunctionOps,
    LoadOps,
    MovementOps,
    ReduceOps,
    TernaryOps,
    UnaryOps,
)
from ferrule.ir.op_table import FORMS
from ferrule.ir.shape.view import View, same
from ferrule.ir.steps import Steps


class VmapError(RuntimeError):
    """A mapped function does something that has no batched form."""


@final
class Batch:
    """One axis that a function is mapped over, of `size` lanes."""

    __slots__ = ("edges", "first_entry", "first_node", "size")

    def __init__(self, size: sint) -> None:
        self.size = size
        self.first_entry = tape_position()
        """Entries recorded from here on are made on a lane; earlier ones only if in `edges`."""
        self.first_node = LazyBuffer.empty((), dtypes.uint8, "").serial
        self.edges: WeakKeyDictionary[GradNode, GradEdge] = WeakKeyDictionary()
        """The edges for all lanes of entries made on one lane."""

    def from_now_on(self) -> Batch:
        """The same lanes without the entries that others recorded so far.

        Those include the lanes of an outer map that runs backwards as well.
        """
        lanes = copy(self)
        lanes.first_entry = tape_position()
        return lanes

    def is_same(self, other: Batch) -> bool:
        """True if both are lanes of one map."""
        return self.edges is other.edges

    def enter(self, value: TracedValue) -> TracedValue:
        """One lane of a value, whose first axis is the mapped one."""
        node = value.node
        if node.base_const() is not None:
            lane = LazyBuffer.const(node.arg, node.dtype, node.shape[1:], node.device)
        else:
            runner = Lane(self, node)
            lane = LazyBuffer.custom(runner, (), node.shape[1:], node.dtype, node.device)
        if value.edge is None or not is_recording():
            return TracedValue(lane)
        root = GradNode("lane", IDENTITY, (TracedValue(lane),), lane, None)
        self.edges[root] = value.edge
        return TracedValue(lane, root)

    def leave(self, values: Sequence[TracedValue]) -> list[TracedValue]:
        """The values for all lanes, the mapped axis in front, from those for one."""
        return _Leaving(self).values(values)

    def holds(self, edge: GradEdge | None) -> bool:
        """True if an edge was made on a lane, rather than before."""
        return isinstance(edge, GradNode) and (edge in self.edges or edge.serial > self.first_entry)

    def drawing(self) -> AbstractContextManager[None]:
        """The block in which each lane draws random numbers of its own."""

        def draw(shape: Sequence[sint], device: str) -> Words:
            first, second = random_words((self.size, *shape), device)
            return self.enter(first), self.enter(second)

        return drawn_by(draw)

    def mapped(self, node: LazyBuffer) -> bool:
        """True if a node made on a lane depends on it."""
        return _Leaving(self).node(node) is not None


@final
class Lane(JITRunner):
    """Stands for one lane of a node. It cannot run: the lanes have no values of their own."""

    def __init__(self, lanes: Batch, node: LazyBuffer) -> None:
        self.lanes = lanes
        self.node = node
        self._handle = Handle(node)  # a runner is no user of the node
        self.device = node.device
        self.name = "lane"

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Raise an error: the contents of a mapped tensor were asked for."""
        raise VmapError(
            f"[vmap] the values of a mapped tensor, here of shape {self.node.shape[1:]} in each of "
            f"{self.node.shape[0]} lanes, are known only after the mapped function has returned. "
            "It cannot read them (item, tolist, numpy, bool, if, masks as indices), nor leave the "
            "tensor in an attribute or a variable from outside; use x.where(...) and return it"
        )


# *** the graph ***


@final
class _Leaving:
    """The translation of nodes, values and tape entries from one lane to all lanes."""

    def __init__(self, lanes: Batch) -> None:
        self._lanes = lanes
        self._size = lanes.size
        self._nodes: dict[LazyBuffer, LazyBuffer | None] = {}

    def node(self, root: LazyBuffer) -> LazyBuffer | None:
        """The node for all lanes; None if it is the same for each."""
        nodes = self._nodes
        pending = [root]
        while pending:
            node = pending[-1]
            if node in nodes:
                pending.pop()
            elif node.serial < self._lanes.first_node or node.realized is not None:
                nodes[node] = None
            elif isinstance(node.arg, Lane):
                nodes[node] = node.arg.node if node.arg.lanes.is_same(self._lanes) else None
            else:
                waiting = [source for source in node.srcs if source not in nodes]
                if waiting:
                    pending.extend(waiting)
                    continue
                sources = [nodes[source] for source in node.srcs]
                known = all(source is None for source in sources)
                nodes[node] = None if known else over_lanes(node, sources, self._size)
        return nodes[root]

    def _spread(self, node: LazyBuffer) -> LazyBuffer:
        found = self.node(node)
        return spread(node, self._size) if found is None else found

    def values(self, values: Sequence[TracedValue]) -> list[TracedValue]:
        """The values for all lanes."""
        if is_recording():
            inside = [value.edge for value in values if value.edge is not None]
            self._translate([edge for edge in inside if self._lanes.holds(edge)])
        return [self._value(value) for value in values]

    def _value(self, value: TracedValue) -> TracedValue:
        node = self._spread(value.node)
        if value.edge is None or not is_recording():
            return TracedValue(node)
        if self._lanes.holds(value.edge):
            return TracedValue(node, self._edge(value.edge))
        return record("lanes", _SPREAD, (value,), node, None)

    # -- the tape --------------------------------------------------------------------------------

    def _edge(self, edge: GradEdge) -> GradEdge:
        return self._lanes.edges[edge] if isinstance(edge, GradNode) else edge

    def _translate(self, roots: Sequence[GradEdge]) -> None:
        lanes = self._lanes
        for entry in entries_below(roots, lanes.first_entry, lanes.edges):
            lanes.edges[entry] = self._entry(entry)

    def _entry(self, entry: GradNode) -> GradNode:
        """An entry for all lanes, whose sources have theirs already."""
        one = OneLane(
            self._lanes,
            entry.rule,
            entry.arg,
            entry.shapes,
            tuple([self._lanes.holds(parent) for parent in entry.parents]),
            tuple([self._differs(value) for value in entry.saved]),
            entry.output is not None and self.node(entry.output.node) is not None,
        )
        parents = [
            self._edge(parent) if parent is not None and inside else parent
            for parent, inside in zip(entry.parents, one.inside, strict=True)
        ]
        saved = [
            self._value(value) if differs else value
            for value, differs in zip(entry.saved, one.differs, strict=True)
        ]
        output = entry.output
        if output is not None and one.output_differs:
            output = TracedValue(self._spread(output.node))
        shapes = tuple([(self._size, *shape) for shape in entry.shapes])
        return GradNode.like(entry, _LANES, one, tuple(parents), shapes, tuple(saved), output)

    def _differs(self, value: TracedValue) -> bool:
        return self._lanes.holds(value.edge) or self.node(value.node) is not None


@final
@dataclass(frozen=True, slots=True)
class OneLane:
    """The facts about an entry for one lane that the entry for all lanes keeps."""

    lanes: Batch
    rule: Rule
    arg: Any
    shapes: tuple[Shape, ...]
    inside: tuple[bool, ...]
    """For each parent, True if it was made on the lane, too. Others get the sum over the lanes."""
    differs: tuple[bool, ...]
    """For each kept value, True if it differs from lane to lane."""
    output_differs: bool

    def stand_in(self, wide: GradNode, lanes: Batch) -> GradNode:
        """The entry for one lane, with lanes in the place of the kept values."""
        saved = [
            lanes.enter(value) if differs else value
            for value, differs in zip(wide.saved, self.differs, strict=True)
        ]
        output = wide.output
        if output is not None and self.output_differs:
            output = lanes.enter(output)
        entry = GradNode.like(
            wide, self.rule, self.arg, wide.parents, self.shapes, tuple(saved), output
        )
        lanes.edges[entry] = wide
        return entry


def _reverse_lanes(grad: TracedValue | Parts, entry: GradNode) -> Gradients:
    """The rule of the entry for one lane, over all lanes."""
    one: OneLane = entry.arg
    lanes = one.lanes.from_now_on()
    given: Any
    if isinstance(grad, Parts):
        given = Parts({number: lanes.enter(part) for number, part in grad.of.items()})
    else:
        given = lanes.enter(grad)
    found: Sequence[Any] = one.rule.reverse(given, one.stand_in(entry, lanes))
    parts: list[TracedValue] = []
    for part in found:
        parts += part.of.values() if isinstance(part, Parts) else [] if part is None else [part]
    wide = iter(lanes.leave(parts))
    result: list[Any] = []
    for part, inside in zip(found, one.inside, strict=True):
        if isinstance(part, Parts):
            part = Parts({number: next(wide) for number in part.of})
        elif part is not None:
            part = next(wide)
            part = part if inside else _summed(part)
        result.append(part)
    return tuple(result)


def _summed(value: TracedValue) -> TracedValue:
    """The sum over the lanes."""
    return value.sum((0,)).reshape(value.shape[1:])


_LANES = Rule(_reverse_lanes)
_SPREAD = Rule(lambda grad, entry: (_summed(grad),))


# *** one rule for each primitive op ***

LaneRule: TypeAlias = Callable[[LazyBuffer, Sequence[LazyBuffer | None], sint], LazyBuffer]
"""A rule: from a node, its sources for all lanes, and the number of lanes, to the node for all."""


def spread(node: LazyBuffer, size: sint) -> LazyBuffer:
    """The node with a first axis of `size`, along which it repeats."""
    return node.reshape((1, *node.shape)).expand((size, *node.shape))


def over_lanes(node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> LazyBuffer:
    """`node` for all lanes, given its sources for all lanes (None: the same for each)."""
    own = LANE_RULES.get(node.op)
    if own is not None:
        return own(node, sources, size)
    pairs = zip(sources, node.srcs, strict=True)
    first, *others = [spread(one, size) if wide is None else wide for wide, one in pairs]
    op, arg = node.op, node.arg
    match op:
        case UnaryOps() | BinaryOps() | TernaryOps():
            return first.e(op, *others, arg=arg)
        case FunctionOps():
            function: Steps = arg
            return function.of(first)
        case ReduceOps.SCATTER:
            axis, length, *how = FORMS[op].batched(arg, node.srcs[0].shape, size)
            index, *base = others
            if base:
                return base[0].put(first, index, axis, *how)
            return first.scatter(index, axis, length, *how)
        case ReduceOps():
            kept = zip(node.srcs[0].shape, node.shape, strict=True)
            return first.r(op, [axis for axis, (a, b) in enumerate(kept, 1) if not same(a, b)])
        case MovementOps():
            return first.moved(op, FORMS[op].batched(arg, node.srcs[0].shape, size), *others)
        case LoadOps.CONTIGUOUS:
            return first.contiguous()
        case LoadOps.FROM:
            return first.copy_to(arg)
        case _:
            raise AssertionError(f"{node} depends on nothing")


def _assigned(node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> LazyBuffer:
    """A write to memory that each lane has for itself."""
    old, new = node.srcs
    wide_old, wide_new = sources
    memory = LazyBuffer.empty((size, *old.shape), old.dtype, old.device)
    value = spread(new, size) if wide_new is None else wide_new
    if node.arg is None:
        return memory.assign(value)
    if wide_old is not None and wide_old.owns_memory:
        memory = wide_old
    elif wide_old is not None or old.op is not LoadOps.EMPTY or old.realized is not None:
        memory = memory.assign(spread(old, size) if wide_old is None else wide_old)
    region: View = node.arg
    wide = View.create((size, *region.shape), (old.size, *region.strides), region.offset)
    return memory.assign(value, wide)


def _custom(node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> LazyBuffer:
    """A function on the host is called for one lane after the other."""
    runner = node.arg
    own = LANE_RULES.get(type(runner))
    if own is not None:
        return own(node, sources, size)
    if not isinstance(runner, HostFunction):
        raise VmapError(f"[vmap] {runner} has no rule for mapped tensors; call it outside")
    flags = tuple([source is not None for source in sources])
    pairs = zip(sources, node.srcs, strict=True)
    values = [TracedValue(one if wide is None else wide) for wide, one in pairs]
    shape = (size, *node.shape)
    found = on_host(_each_lane, values, shape, node.dtype, runner.function, flags, runner.args)
    return found.node


def _of_rows(node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> LazyBuffer:
    """A function of rows has the lanes as more of them."""
    runner: RowFunction = node.arg
    (codes,) = sources
    assert codes is not None, "nothing has lanes"
    return row_node(runner.function, codes, runner.width, *runner.values)


def _of_template(node: LazyBuffer, sources: Sequence[LazyBuffer | None], size: sint) -> LazyBuffer:
    """A function whose leading axes are rows has the lanes as more of them."""
    template: Template = node.arg
    (source,) = sources
    assert source is not None, "nothing has lanes"
    return template.again(source)


LANE_RULES: Final[dict[Any, LaneRule]] = {
    LoadOps.CUSTOM: _custom,
    LoadOps.ASSIGN: _assigned,
    LoadOps.TEMPLATE: _of_template,
    RowFunction: _of_rows,
}
"""The rules of ops and of runners that need to know which of their sources have lanes."""


def _each_lane(*parameters: Any) -> Array:
    """The stacked results of a function for each lane; `flags` say which arrays have lanes."""
    *arrays, function, flags, args = parameters
    count = next(len(array) for array, flag in zip(arrays, flags, strict=True) if flag)
    call: Callable[..., Array] = function
    return np.stack(
        [
            call(*[a[lane] if flag else a for a, flag in zip(arrays, flags, strict=True)], *args)
            for lane in range(count)
        ]
    )
