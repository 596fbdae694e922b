"""The graph key: a description of a graph by which an earlier plan of an equal one is found."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from typing import Any, TypeAlias, final

from ferrule.base.threadstate import this_thread
from ferrule.device.runner import is_divisible
from ferrule.fusion.graph import Graph, graph_of, nodes_to_compute, toposort, with_results
from ferrule.ir.buffer import BufferUseError
from ferrule.ir.dtype import exact
from ferrule.ir.expr import Expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.node import GONE, needed_outside

Part: TypeAlias = tuple[Any, ...]


def is_known(node: LazyBuffer) -> bool:
    """True if equal nodes compute the same; not certain of nodes with an impure user's runner."""
    is_run = node.op is LoadOps.CUSTOM and bool(node.srcs)
    return not is_run or getattr(node.arg, "is_pure", False)


def is_constant(node: LazyBuffer) -> bool:
    """True for a node with one value everywhere that is a literal, rather than a variable."""
    value = node.base_const()
    return value is not None and not isinstance(value, Expr)


def parts_of(
    nodes: Sequence[LazyBuffer],
    anywhere: Set[LazyBuffer] = frozenset(),
    arrays: list[object] | None = None,
) -> tuple[list[Part], list[Hashable], dict[LazyBuffer, int]]:
    """The part of the key for each node, the bits of the constants, and each node's number.

    A part holds all that planning looks at of a node, but for the value of a constant. Nodes come
    after their sources, which parts name by number. The parts of the nodes `anywhere` leave out
    their offset in memory. The arrays that share memory of the nodes are added to `arrays`.
    """
    parts: list[Part] = []
    constants: list[Hashable] = []
    note = parts.append
    numbers: dict[LazyBuffer, int] = {}
    number_of = numbers.__getitem__
    things: dict[int, int] = {}  # memory and owners, in the order of the walk
    is_watched = this_thread.state.watched_since is not None
    custom, constant, result = LoadOps.CUSTOM, LoadOps.CONST, LoadOps.RESULT
    for place, node in enumerate(nodes):
        numbers[node] = place
        token, srcs, buffer = node.owner, node.srcs, node.realized
        owner = -1 if token is None else things.setdefault(id(token), len(things))
        if buffer is not None:
            number = whole = things.setdefault(id(buffer), len(things))
            offset = 0
            base = buffer.base
            if base is not buffer:
                whole = things.setdefault(id(base), len(things))
                offset = 0 if node in anywhere else buffer.byte_offset
            divisible = not is_watched or is_divisible(buffer)
            shape, dtype, device = node.shape, node.dtype, node.device
            sharing = base.arrays if base._exports else []
            if arrays is not None:
                arrays += sharing
            size, shared = buffer.size, bool(sharing)
            note((shape, dtype, device, owner, number, whole, offset, size, shared, divisible))
        elif srcs:
            op = node.op
            sources = tuple(map(number_of, srcs))
            if op is custom:
                # Nothing is known of a user's runner, so that it is equal to no other.
                runner = node.arg if is_known(node) else object()
                note((op, sources, runner, node.shape, node.dtype, node.device, owner))
            elif op is result:
                note((op, sources, node.arg, node.shape))
            else:
                note((op, sources, node.arg, owner))
        else:
            arg = node.arg
            if arg is GONE:
                raise BufferUseError(
                    f"{node} was in memory that has been written over since, and nothing held what "
                    "it contained; a tensor does, or a ferrule.ir.lazy.Handle(node)"
                )
            kind = node.op
            if kind is constant and not isinstance(arg, Expr):
                constants.append(exact(arg))
                note((kind, node.shape, node.dtype, node.device, owner))
            else:
                note((kind, node.shape, arg, node.dtype, node.device, owner))
    return parts, constants, numbers


def _note_others(nodes: Sequence[LazyBuffer]) -> None:
    """Note, in a capture, that the graph has nodes that another thread made meanwhile."""
    state = this_thread.state
    last, _ = state.kept
    recent = [node for node in nodes if node.serial > last and node.maker not in (None, state)]
    if any([node.realized is None and node.op is not LoadOps.CONST for node in recent]):
        state.taken += 1


@final
class KeyedGraph:
    """The nodes to compute with their key, made before anything else is known of the graph.

    `key` and `constants` hold all that planning looks at. A second graph for which both are equal
    needs neither analysis nor a plan.
    """

    def __init__(self, roots: Iterable[LazyBuffer]) -> None:
        requested = nodes_to_compute(roots)
        nodes = toposort(requested, everything=True)
        self.requested, self.nodes = with_results(requested, nodes)
        if this_thread.state.kept is not None:
            _note_others(self.nodes)
        self.arrays: list[object] = []
        """The arrays that share memory with nodes. The plan depends on whether there are any, so
        none may go before it is made: another thread may drop one at any time."""
        self.parts, constants, self.numbers = parts_of(self.nodes, arrays=self.arrays)
        self.constants = tuple(constants)
        asked = tuple([self.numbers[node] for node in self.requested])
        self.outside = needed_outside(self.numbers)
        self.key: tuple[Hashable, ...] = (*self.parts, asked, tuple(self.outside))

    def graph(self) -> Graph:
        """The graph, with the decisions that come before its plan, such as copies of versions."""
        return graph_of(self.requested, self.nodes, self.outside)
