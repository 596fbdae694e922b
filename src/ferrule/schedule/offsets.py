"""Offsets that change from call to call, such as those of random crops.

Where a part of memory begins is no business of the kernels that read it: they are given that part
as a buffer. So a graph with such parts gets a *stand-in*, in which they are leaves of their own. It
has the same form wherever they begin, and so the same recipe. Other offsets that change, as those
of a crop of what is padded, become variables in it, which kernels are given as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.expr import Expr, Variable
from ferrule.lazy import LazyBuffer
from ferrule.opkinds import FORMS
from ferrule.ops import LoadOps, MovementOps
from ferrule.records import dataclass
from ferrule.runner import is_divisible
from ferrule.schedule.graph import Graph, toposort
from ferrule.schedule.recipe import Schedule
from ferrule.schedule.views import is_movement, view_of
from ferrule.shape.layout import storage_size
from ferrule.shape.view import View

Axes = tuple[int, ...]


def offsets_of(node: LazyBuffer) -> tuple[Any, ...]:
    """Where a part begins on each axis, or in memory; what is in front of a padded value."""
    if node.realized is not None or node.arg is None:
        return ()
    if node.op is LoadOps.ASSIGN:
        return (node.arg.offset,)
    form = FORMS.get(node.op)
    return () if form is None else tuple(form.offsets(node.arg))


def without_offsets(part: Any) -> Any:
    """A part of a graph's key without these: `x[i] = v` is of one form for all `i`."""
    if isinstance(part, tuple) and len(part) > 2:
        op, sources, arg = part[:3]
        if op in FORMS and FORMS[op].offsets(arg):
            return (op, sources, tuple(FORMS[op].sizes(arg)), *part[3:])
        if op is LoadOps.ASSIGN and isinstance(arg, View):
            return (op, sources, arg.shape, arg.strides, *part[3:])
    return part


@final
@dataclass(frozen=True)
class StandIn:
    """A graph that computes what another one does."""

    graph: Graph
    originals: Mapping[LazyBuffer, LazyBuffer]
    """For its nodes that are not the other graph's: those that they stand for."""

    def named(self, schedule: Schedule) -> Schedule:
        """A schedule for this graph as one for the other."""
        results = [(self.originals.get(node, node), buffer) for node, buffer in schedule.results]
        return Schedule(schedule.recipe, schedule.values, schedule.buffers, results)


def stand_in(
    graph: Graph, changed: Set[tuple[int, int]], alignment: int, may_vary: bool
) -> StandIn | None:
    """A graph without the offsets that changed; None where nothing would be won.

    `changed` has the numbers of nodes and axes. Parts begin at multiples of `alignment` bytes.
    Variables are allowed if `may_vary`.
    """
    axes: dict[LazyBuffer, Axes] = {}
    for number, axis in sorted(changed):
        node = graph.everything[number]
        axes[node] = (*axes.get(node, ()), axis)
    written = _written(graph)
    parts = {node: part for node in axes if (part := _part(node, written, alignment)) is not None}
    others = {node: chosen for node, chosen in axes.items() if node not in parts}
    # Of memory that exists kernels are given parts anyway, if it is planned where these begin. And
    # that one reads what it overwrites is known only then: `x[i:j] += y`.
    moved = [node for node in others if node.op is not LoadOps.ASSIGN]
    if not may_vary or (moved and all([_is_in_memory(node) for node in others])):
        others = {}
    if not parts and not others:
        return None
    found = replaced(graph, _twins(graph, parts, others), bool(others))
    leaves = {part.srcs[0] for part in parts.values()}
    found.graph.parts = leaves.intersection(found.graph.everything)
    return found


def replaced(graph: Graph, twins: Mapping[LazyBuffer, LazyBuffer], symbolic: bool) -> StandIn:
    """A graph with other nodes in place of some, and of all that are made of these."""
    requested = dict.fromkeys([twins.get(node, node) for node in graph.requested])
    order = toposort(requested)
    everything = order if graph.order is graph.everything else toposort(requested, everything=True)
    external = {twins.get(node, node) for node in graph.external}.intersection(everything)
    moved_out = [twins.get(node, node) for node in graph.moved_out]
    found = Graph(order, requested, everything, external, moved_out, symbolic)
    return StandIn(found, {twin: node for node, twin in twins.items()})


def _written(graph: Graph) -> set[Buffer]:
    """The memory from before that some version in the graph may be written to."""
    found: set[Buffer] = set()
    for node in graph.everything:
        if node.op is LoadOps.ASSIGN:
            memory = _memory(node)
            if memory is not None:
                found.add(memory.base)
    return found


def _is_in_memory(node: LazyBuffer) -> bool:
    """Whether a version is in memory that exists, or something moved is a part of such memory."""
    if node.op is not LoadOps.ASSIGN:
        return _part_of(node) is not None
    memory = node
    while memory.realized is None and memory.op is LoadOps.ASSIGN:
        memory = memory.srcs[0]
    return memory.realized is not None and memory.owner in (None, node.owner)


def _memory(node: LazyBuffer) -> Buffer | None:
    """The memory that exists which a part, or a version, is one of."""
    while node.realized is None and (node.op is LoadOps.ASSIGN or is_movement(node)):
        node = node.srcs[0]
    return node.realized


def _part_of(node: LazyBuffer) -> tuple[Buffer, View, int] | None:
    """The memory that exists, the view of it which a node is by being moved, and its offset.

    What is padded is none: whether a part of it is, in the middle, would depend on its place.
    """
    leaf = node
    while is_movement(leaf):
        if leaf.op is MovementOps.PAD:
            return None
        leaf = leaf.srcs[0]
    if leaf is node or leaf.realized is None:
        return None
    view = view_of(node, leaf)
    if view is None or not isinstance(view.offset, int):
        return None
    return leaf.realized, view, view.offset


def _part(node: LazyBuffer, written: Set[Buffer], alignment: int) -> LazyBuffer | None:
    """The same elements as a view of a leaf that is no more than what they are in; None if they are
    no part of memory that exists, or it is written to meanwhile.
    """
    found = _part_of(node)
    if found is None:
        return None
    memory, view, offset = found
    if memory.base in written or not is_divisible(memory):
        return None
    below, above = _reach(view)
    start = offset - below
    start -= start % max(1, alignment // memory.dtype.itemsize)
    size = offset + above + 1 - start
    part = LazyBuffer.in_buffer(memory.view(start, size), (size,))
    return part.as_strided(view.shape, view.strides, offset - start)


def _reach(view: View) -> tuple[int, int]:
    """How far elements are from the first one, in front of it and behind it."""
    below = above = 0
    for size, stride in zip(view.shape, view.strides, strict=True):
        assert isinstance(size, int)
        assert isinstance(stride, int)
        below += max(0, -stride * (size - 1))
        above += max(0, stride * (size - 1))
    return below, above


def _twins(
    graph: Graph, parts: Mapping[LazyBuffer, LazyBuffer], varying: Mapping[LazyBuffer, Axes]
) -> dict[LazyBuffer, LazyBuffer]:
    """For all nodes that are made of a part, or of something at a variable offset, another node."""
    twins = dict(parts)
    variables = 0
    for node in graph.everything:
        if node in parts or node.realized is not None:
            continue
        srcs = tuple([twins.get(source, source) for source in node.srcs])
        axes = varying.get(node, ())
        if axes or any([new is not old for new, old in zip(srcs, node.srcs, strict=True)]):
            arg = _with_variables(node, axes, variables) if axes else node.arg
            variables += len(axes)
            twins[node] = node.like(srcs, arg)
    return twins


def _with_variables(node: LazyBuffer, axes: Axes, number: int) -> Any:
    """The argument of a node with variables for its offsets, numbered from `number` on."""
    if node.op is LoadOps.ASSIGN:
        view = node.arg
        below, above = _reach(view)
        last = storage_size(node.shape) - 1 - above
        return View(view.shape, view.strides, _bound(number, view.offset, below, last))
    form, arg = FORMS[node.op], node.arg
    sizes, offsets = form.sizes(arg), list(form.offsets(arg))
    for place, axis in enumerate(axes):
        greatest = form.greatest_offset(arg, axis, node.srcs[0].shape)
        offsets[axis] = _bound(number + place, offsets[axis], 0, greatest)
    return form.replaced(arg, iter(sizes), iter(offsets))


def _bound(number: int, value: int, least: int, greatest: int) -> Expr:
    return Variable(f"offset{number}", least, greatest).bind(value)
