"""Stand-ins of graphs in which offsets or numbers change from call to call, as in random crops.

Kernels need not know where a part of memory begins: they are given that part as a buffer. So a
graph with such parts gets a *stand-in*, in which the parts are leaves. Its form, and so its plan,
is the same wherever the parts begin. Other changing offsets, such as those of a crop of a padded
value, become variables in the stand-in. A changing number, such as a learning rate, becomes one
element in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import field
from typing import Any, final

from ferrule.base.records import dataclass
from ferrule.device.runner import is_divisible
from ferrule.fusion.graph import Graph, toposort
from ferrule.fusion.plans.execution_plan import Schedule
from ferrule.fusion.views import is_movement, view_of
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Expr, Variable
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps
from ferrule.ir.op_table import FORMS
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import View

Axes = tuple[int, ...]


def offsets_of(node: LazyBuffer) -> tuple[Any, ...]:
    """The offsets of a node: a slice's on each axis, a version's in memory, padding in front."""
    if node.realized is not None or node.arg is None:
        return ()
    if node.op is LoadOps.ASSIGN:
        return (node.arg.offset,)
    form = FORMS.get(node.op)
    return () if form is None else tuple(form.offsets(node.arg))


def without_offsets(part: Any) -> Any:
    """A node's part of the graph's key without offsets: `x[i] = v` has one form for all `i`."""
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
    """A graph that computes the same values as another one, the original."""

    graph: Graph
    originals: Mapping[LazyBuffer, LazyBuffer]
    """The original's node for each node of the stand-in that is a new one."""
    numbers: Mapping[LazyBuffer, LazyBuffer] = field(default_factory=dict)
    """The original's constant for each number in memory."""

    def named(self, schedule: Schedule) -> Schedule:
        """The schedule of this graph with the results of the original's nodes."""
        results = [(self.originals.get(node, node), buffer) for node, buffer in schedule.results]
        return Schedule(schedule.plan, schedule.values, schedule.buffers, results)


def stand_in(
    graph: Graph, changed: Set[tuple[int, int]], alignment: int, may_vary: bool
) -> StandIn | None:
    """The stand-in of a graph, without the offsets that changed; None if it would gain nothing.

    `changed` has the numbers of nodes and axes. Parts begin at multiples of `alignment` bytes.
    Offsets may become variables only if `may_vary`.
    """
    axes: dict[LazyBuffer, Axes] = {}
    for number, axis in sorted(changed):
        node = graph.everything[number]
        axes[node] = (*axes.get(node, ()), axis)
    written = _written(graph)
    parts = {node: part for node in axes if (part := _part(node, written, alignment)) is not None}
    others = {node: chosen for node, chosen in axes.items() if node not in parts}
    # A plan for fixed offsets gives kernels parts of existing memory anyway. It also sees that one
    # kernel reads what it overwrites, as in `x[i:j] += y`.
    moved = [node for node in others if node.op is not LoadOps.ASSIGN]
    if not may_vary or (moved and all([_is_in_memory(node) for node in others])):
        others = {}
    if not parts and not others:
        return None
    leaves = {part.srcs[0] for part in parts.values()}
    return replaced(graph, _twins(graph, parts, others), bool(others), leaves)


def with_numbers_in_memory(graph: Graph, numbers: Iterable[LazyBuffer]) -> StandIn:
    """A graph in which some constants are one element in memory, repeated."""
    elements = {node: number_in_memory(node) for node in numbers}
    parts = {
        node: node.like((element,), node.shape, op=MovementOps.EXPAND)
        for node, element in elements.items()
    }
    found = replaced(graph, _twins(graph, parts, {}), graph.symbolic)
    constants = {element: node for node, element in elements.items()}
    return StandIn(found.graph, found.originals, constants)


def number_in_memory(node: LazyBuffer) -> LazyBuffer:
    """The number of a constant as one element in memory."""
    import numpy as np

    buffer = Buffer.fromCPU(node.device, np.array(node.base_const(), node.dtype.np))
    return LazyBuffer.in_buffer(buffer, (1,) * len(node.shape))


def replaced(
    graph: Graph,
    twins: Mapping[LazyBuffer, LazyBuffer],
    symbolic: bool,
    leaves: Set[LazyBuffer] = frozenset(),
) -> StandIn:
    """The stand-in in which `twins` replace nodes; all users of these have twins as well.

    See `Graph` for the other arguments.
    """
    requested = dict.fromkeys([twins.get(node, node) for node in graph.requested])
    order = toposort(requested)
    everything = order if graph.order is graph.everything else toposort(requested, everything=True)
    present = set(everything)
    # Nobody needs a constant later, and so not what stands for it.
    held = [node for node in graph.external if node.op is not LoadOps.CONST]
    external = {twins.get(node, node) for node in held} & present
    moved_out = [twins.get(node, node) for node in graph.moved_out]
    found = Graph(order, requested, everything, external, moved_out, symbolic, present & leaves)
    return StandIn(found, {twin: node for node, twin in twins.items()})


def _written(graph: Graph) -> set[Buffer]:
    """The existing memory that versions in the graph may be written to."""
    found: set[Buffer] = set()
    for node in graph.everything:
        if node.op is LoadOps.ASSIGN:
            memory = _memory(node)
            if memory is not None:
                found.add(memory.base)
    return found


def _is_in_memory(node: LazyBuffer) -> bool:
    """True for a version in existing memory, or a movement that is a part of such memory."""
    if node.op is not LoadOps.ASSIGN:
        return _part_of(node) is not None
    memory = node
    while memory.realized is None and memory.op is LoadOps.ASSIGN:
        memory = memory.srcs[0]
    return memory.realized is not None and memory.owner in (None, node.owner)


def _memory(node: LazyBuffer) -> Buffer | None:
    """The existing memory below a chain of movements and versions; None if there is none."""
    while node.realized is None and (node.op is LoadOps.ASSIGN or is_movement(node)):
        node = node.srcs[0]
    return node.realized


def _part_of(node: LazyBuffer) -> tuple[Buffer, View, int] | None:
    """The existing memory that a node moves, its view of that, and the view's offset.

    None below a PAD: whether a part holds padding would depend on its offset.
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
    """The node's elements as a view of a leaf that spans no more memory than they do.

    None if they are no part of existing memory, or that memory is in `written`.
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
    """The greatest distances of elements before and after the first one in memory, in elements."""
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
    """Twins for all nodes that are made of a part, or of a node with a variable offset."""
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
