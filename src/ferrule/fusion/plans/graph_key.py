"""The graph key: a description of a graph by which an earlier plan of an equal one is found."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import Any, Final, TypeAlias, final

from ferrule.base.threadstate import this_thread
from ferrule.device.runner import is_divisible
from ferrule.fusion.graph import Graph, graph_of, needed_again, nodes_to_compute, with_results
from ferrule.ir.buffer import Buffer, BufferUseError
from ferrule.ir.dtype import exact
from ferrule.ir.expr import Expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.node import GONE, needed_outside
from ferrule.ir.shape.layout import is_dense

Part: TypeAlias = tuple[Any, ...]

_CUSTOM: Final = LoadOps.CUSTOM
_RESULT: Final = LoadOps.RESULT
_ASSIGN: Final = LoadOps.ASSIGN


def is_known(node: LazyBuffer) -> bool:
    """True if equal nodes compute the same; not certain of nodes with an impure user's runner."""
    has_runner = node.op is LoadOps.CUSTOM and bool(node.srcs)
    return not has_runner or getattr(node.arg, "is_pure", False)


def is_run(node: LazyBuffer) -> bool:
    """True for a node of a user's or the host's runner, or a result of one, not computed yet."""
    return node.realized is None and node.op in (LoadOps.CUSTOM, LoadOps.RESULT)


def serves_any_size(node: LazyBuffer) -> bool:
    """True for a run, or a result of one, whose runner there is for other sizes as well."""
    run = node.srcs[0] if node.op is LoadOps.RESULT else node
    return run.op is LoadOps.CUSTOM and getattr(run.arg, "family", None) is not None


def is_constant(node: LazyBuffer) -> bool:
    """True for a node with one value everywhere that is a literal, rather than a variable."""
    value = node.base_const()
    return value is not None and not isinstance(value, Expr)


def is_marker(part: object) -> bool:
    """True for a part of `KeyedGraph.key` that few nodes have."""
    return isinstance(part, tuple) and len(part) > 0 and isinstance(part[0], str)


def parts_of(
    nodes: Sequence[LazyBuffer],
    anywhere: Set[LazyBuffer] = frozenset(),
) -> tuple[list[Part], list[Hashable], dict[LazyBuffer, int]]:
    """The part of the key for each node, the bits of the constants, and each node's number.

    A part holds all that planning looks at of a node, but for the value of a constant. Nodes come
    after their sources, which parts name by number. The parts of the nodes `anywhere` leave out
    their offset in memory.
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
            # The plan is for all sizes of dense memory, which the shape tells.
            size = 0 if is_dense(shape) else buffer.size
            shared = bool(base._exports and base.arrays)
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
                raise _gone(node)
            kind = node.op
            if kind is constant and not isinstance(arg, Expr):
                constants.append(exact(arg))
                note((kind, node.shape, node.dtype, node.device, owner))
            else:
                note((kind, node.shape, arg, node.dtype, node.device, owner))
    return parts, constants, numbers


def _note_others(nodes: Iterable[LazyBuffer]) -> None:
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

    __slots__ = ("arrays", "constants", "key", "numbers", "outside", "requested")

    def __init__(self, roots: Sequence[LazyBuffer]) -> None:
        state = this_thread.state
        self.requested = nodes_to_compute(roots, state)
        self.numbers: dict[LazyBuffer, int] = {}
        """All nodes in order, sources first, with their numbers."""
        self.arrays: list[object] = []
        """The arrays that share memory with nodes. The plan depends on whether there are any, so
        none may go before it is made: another thread may drop one at any time."""
        key, constants, are_inner, has_runs = self._walk(state.watched_since is not None)
        if has_runs:
            requested, _ = with_results(self.requested, list(self.numbers))
            if requested is not self.requested:
                self.requested = requested
                self.numbers.clear()
                key, constants, are_inner, _ = self._walk(state.watched_since is not None)
        if state.passed:
            self.requested.update(dict.fromkeys(needed_again(self.numbers)))
        if state.kept is not None:
            _note_others(self.numbers)
        self.constants = tuple(constants)
        # Without nodes between memory and one result nobody else can need any.
        self.outside: Sequence[int] = needed_outside(self.numbers) if are_inner else ()
        key.append(None)
        key += map(self.numbers.__getitem__, self.requested)
        key.append(None)
        key += self.outside
        self.key: tuple[Hashable, ...] = tuple(key)

    def _walk(self, is_watched: bool) -> tuple[list[Any], list[Hashable], bool, bool]:
        """The nodes' part of the key, the bits of the constants, and two flags: True if something
        outside may need a node, and if a run of the user's or the host's is among them.

        The part says of each node what `parts_of` does, in a flat list: what most nodes have comes
        first, and tuples for what few have.
        """
        key: list[Any] = []
        constants: list[Hashable] = []
        numbers = self.numbers
        things: dict[int, int] = {}  # memory and owners, in the order of the walk
        inner = 0
        has_runs = False
        # The nodes that wait for a source, each with the sources after it; None waits for what is
        # requested. Memory, which most sources are, is noted where it is met.
        stack: list[tuple[LazyBuffer | None, Iterator[LazyBuffer]]] = []
        node: LazyBuffer | None = None
        rest: Iterator[LazyBuffer] = iter(self.requested)
        while True:
            for source in rest:
                if source in numbers:
                    continue
                buffer = source.realized
                if buffer is None:
                    stack.append((node, rest))
                    node, rest = source, iter(source.srcs)
                    break
                numbers[source] = len(numbers)
                key += (source.shape, source.dtype, source.device, buffer.size)
                count = len(things)
                number = things.setdefault(id(buffer), count)
                if number != count:
                    key.append(("same", number))
                if buffer._base is not None or buffer._exports or is_watched:
                    key += self._memory_part(buffer, things, is_watched)
                if source.owner is not None:
                    key.append(("owner", things.setdefault(id(source.owner), len(things))))
            else:
                if node is None:
                    return key, constants, inner > 1, has_runs
                srcs, op, arg = node.srcs, node.op, node.arg
                if node.realized is not None:  # by another thread, meanwhile
                    memory = node
                    node, rest = stack.pop()
                    rest = chain((memory,), rest)
                    continue
                numbers[node] = len(numbers)
                if srcs:
                    inner += 2 if op is _ASSIGN else 1
                    runs = op is _CUSTOM or op is _RESULT
                    has_runs = has_runs or runs
                    key += _run_part(node) if runs else (op, arg)
                    key += map(numbers.__getitem__, srcs)
                else:
                    key += _leaf_part(node, constants)
                if node.owner is not None:
                    key.append(("owner", things.setdefault(id(node.owner), len(things))))
                node, rest = stack.pop()

    def _memory_part(
        self, buffer: Buffer, things: dict[int, int], is_watched: bool
    ) -> Iterator[tuple[Hashable, ...]]:
        """What is to be said of memory that is a part, shared, or made in a capture."""
        base = buffer.base
        if base is not buffer:
            yield "part", things.setdefault(id(base), len(things)), buffer.byte_offset
        sharing = base.arrays
        if sharing:
            self.arrays += sharing
            yield ("shared",)
        if is_watched and not is_divisible(buffer):
            yield ("whole",)

    def graph(self) -> Graph:
        """The graph, with the decisions that come before its plan, such as copies of versions."""
        return graph_of(self.requested, list(self.numbers), self.outside)


def _run_part(node: LazyBuffer) -> Part:
    if node.op is LoadOps.RESULT:
        return (node.op, node.arg, node.shape)
    # Nothing is known of a user's runner, so that it is equal to no other.
    runner = node.arg if is_known(node) else object()
    return (node.op, runner, node.shape, node.dtype, node.device)


def _leaf_part(node: LazyBuffer, constants: list[Hashable]) -> Part:
    """The part of a leaf without memory; the value of a constant goes to `constants`."""
    arg, op = node.arg, node.op
    if arg is GONE:
        raise _gone(node)
    if op is LoadOps.CONST and not isinstance(arg, Expr):
        constants.append(exact(arg))
        return (op, node.shape, node.dtype, node.device)
    return (op, node.shape, node.dtype, node.device, (arg,))


def _gone(node: LazyBuffer) -> BufferUseError:
    return BufferUseError(
        f"{node} was in memory that has been written over since, and nothing held what "
        "it contained; a tensor does, or a ferrule.ir.lazy.Handle(node)"
    )
