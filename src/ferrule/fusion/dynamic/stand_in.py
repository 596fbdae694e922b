"""Stand-ins of graphs: they compute the same values, from other nodes.

In a stand-in, what changes from call to call is a variable or memory. So its form, and its plan,
are the same in each call. It lives as long as planning does: the user's nodes stay as they are, and
get the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field
from typing import Any, Final, final
from weakref import WeakSet

from ferrule.base.records import dataclass
from ferrule.base.threadstate import this_thread
from ferrule.fusion.dynamic.parameters import Integers, argument_with
from ferrule.fusion.graph import Graph, toposort
from ferrule.fusion.plans.execution_plan import Schedule
from ferrule.fusion.plans.graph_key import is_run
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import FunctionOps, LoadOps, MovementOps
from ferrule.ir.op_table import OpError, infer
from ferrule.ir.shape.view import Shape, View, prod_sint, same


@final
@dataclass(frozen=True)
class StandIn:
    """A graph that computes the same values as another one, the original."""

    graph: Graph
    originals: Mapping[LazyBuffer, LazyBuffer]
    """The original's node for each node of the stand-in that is a new one."""
    constants: Mapping[LazyBuffer, LazyBuffer] = field(default_factory=dict)
    """The original's constant for each one in memory."""

    def named(self, schedule: Schedule) -> Schedule:
        """The schedule of this graph with the results of the original's nodes."""
        nodes = [self.originals.get(node, node) for node in schedule.nodes]
        return Schedule(schedule.plan, schedule.values, schedule.buffers, nodes)

    def numbers_in(self, original: Graph) -> tuple[int, ...]:
        """For each node the number of the original's; ~n for the memory of the constant n."""
        number = {node: place for place, node in enumerate(original.everything)}
        found = []
        for node in self.graph.everything:
            constant = self.constants.get(node)
            found.append(
                number[self.originals.get(node, node)] if constant is None else ~number[constant]
            )
        return tuple(found)


def nodes_by(numbers: Iterable[int], nodes: Sequence[LazyBuffer]) -> list[LazyBuffer]:
    """The nodes of a stand-in without making it: see `StandIn.numbers_in`."""
    return [nodes[n] if n >= 0 else constant_in_memory(nodes[~n]) for n in numbers]


captured_constants: Final[WeakSet[Buffer]] = WeakSet()
"""The memory of constants in captures: it holds numbers of the graph, and no data of the host."""


def constant_in_memory(node: LazyBuffer) -> LazyBuffer:
    """The value of a constant as one element in memory."""
    import numpy as np

    buffer = Buffer.fromCPU(node.device, np.array(node.base_const(), node.dtype.np))
    if this_thread.state.observer is not None:
        captured_constants.add(buffer)
    return LazyBuffer.in_buffer(buffer, (1,) * len(node.shape))


def replaced(
    graph: Graph,
    twins: Mapping[LazyBuffer, LazyBuffer],
    symbolic: bool,
    leaves: Set[LazyBuffer] = frozenset(),
    constants: Mapping[LazyBuffer, LazyBuffer] | None = None,
) -> StandIn:
    """The stand-in in which `twins` replace nodes; all users of these have twins as well.

    See `Graph` for `symbolic` and `leaves`, its `parts`; and `StandIn` for `constants`.
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
    return StandIn(found, {twin: node for node, twin in twins.items()}, constants or {})


def with_own_constants(graph: Graph) -> StandIn | None:
    """The graph with a constant for each use of one that several nodes use; None if there is none.

    Equal constants of equal shape are one node. So two parts of a graph, such as experts that
    compute some rows each, share nodes when they happen to have equal lengths. Without that, graphs
    have one form whatever their lengths are.
    """
    used: set[LazyBuffer] = set()
    twins: dict[LazyBuffer, LazyBuffer] = {}
    for node in graph.everything:
        srcs = []
        for source in node.srcs:
            if source in used:
                source = source.like((), source.arg)
            elif source.op is LoadOps.CONST and any([size != 1 for size in source.shape]):
                used.add(source)
            srcs.append(twins.get(source, source))
        if any([a is not b for a, b in zip(srcs, node.srcs, strict=True)]):
            twins[node] = node.like(tuple(srcs), node.arg)
    return replaced(graph, twins, graph.symbolic) if twins else None


def generalised(
    graph: Graph,
    integers: Mapping[LazyBuffer, Integers],
    constants: Iterable[LazyBuffer] = (),
    parts: Mapping[LazyBuffer, LazyBuffer] | None = None,
) -> StandIn | None:
    """The stand-in with other `integers`, and with `constants` and `parts` of memory as leaves.

    `integers` has the sizes and offsets of the nodes for which some are symbolic, `parts` the
    movements of new leaves that replace nodes. None if shapes may not fit for some sizes.
    """
    parts = parts or {}
    elements = {node: constant_in_memory(node) for node in constants}
    twins: dict[LazyBuffer, LazyBuffer] = {}
    for node in graph.everything:
        if node in parts:
            twins[node] = parts[node]
            continue
        srcs = tuple([twins.get(source, source) for source in node.srcs])
        own, element = integers.get(node), elements.get(node)
        if element is not None:
            shape = node.shape if own is None else tuple(own[0])
            twins[node] = node.like((element,), shape, shape, MovementOps.EXPAND)
        elif own is not None or any([a is not b for a, b in zip(srcs, node.srcs, strict=True)]):
            twin = _twin(node, srcs, own)
            if twin is None:
                return None
            twins[node] = twin
    leaves = {part.srcs[0] for part in parts.values()}
    symbolic = graph.symbolic or bool(integers)
    originals = {element: node for node, element in elements.items()}
    return replaced(graph, twins, symbolic, leaves, originals)


def _twin(
    node: LazyBuffer, srcs: tuple[LazyBuffer, ...], own: Integers | None
) -> LazyBuffer | None:
    """The node on other sources, with its `own` new integers; None if its shape is not certain."""
    if own is not None and not node.srcs:
        shape = tuple(own[0])
        if node.realized is None:
            return node.like((), node.arg, shape)
        twin = LazyBuffer.in_buffer(node.realized, shape)
        twin.owner = node.owner
        return twin
    if is_run(node):
        return _run_twin(node, srcs, own)
    arg = node.arg if own is None else argument_with(node, own)
    has_shape = own is None or all([isinstance(size, int) for size in own[0]])
    if has_shape and all([a.shape == b.shape for a, b in zip(srcs, node.srcs, strict=True)]):
        return node.like(srcs, arg)
    found = _shape(node, srcs, arg)
    return None if found is None else node.like(srcs, arg, found)


def _run_twin(
    node: LazyBuffer, srcs: tuple[LazyBuffer, ...], own: Integers | None
) -> LazyBuffer | None:
    """`_twin` for a run with results and these."""
    if own is None:
        return node.like(srcs, node.arg)
    rank = len(node.shape)
    shape, integers = tuple(own[0][:rank]), own[0][rank:]
    arg = node.arg
    if any([isinstance(integer, Expr) for integer in integers]):
        arg = arg.with_integers(integers)
    return None if arg is None else node.like(srcs, arg, shape)


def _shape(node: LazyBuffer, srcs: tuple[LazyBuffer, ...], arg: Any) -> Shape | None:
    """The shape of a node with these sources and argument; None if they may not fit."""
    shapes = [source.shape for source in srcs]
    if node.op is LoadOps.FROM:
        return None  # what is copied to another device is all of some memory
    if isinstance(node.op, LoadOps | FunctionOps):
        fitting = arg.shape if isinstance(arg, View) else shapes[0]
        return shapes[0] if all([shape == fitting for shape in shapes[1:]]) else None
    if node.op is MovementOps.RESHAPE and not same(prod_sint(shapes[0]), prod_sint(arg)):
        return None
    try:
        return infer(node.op, [(source.shape, source.dtype) for source in srcs], arg)[0]
    except OpError:  # sizes that must be equal follow different laws
        return None
