"""What a schedule has to do: the nodes to compute, and what else in the process still needs them.

Old versions of memory may be overwritten only when nothing will read them later. Readers in this
schedule can be put first; to find all others, the references to a node that this schedule knows of
are counted and compared with the interpreter's count. A reference that cannot be explained counts
as a reader.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import final
from weakref import ref

from ferrule.expr import Expr
from ferrule.lazy import LazyBuffer
from ferrule.ops import LoadOps, ReduceOps
from ferrule.records import dataclass
from ferrule.shape.layout import storage_size
from ferrule.shape.view import View
from ferrule.storage import Storage, pending_writes
from ferrule.threadstate import this_thread


@final
@dataclass
class Graph:
    """The nodes of one schedule; collections of nodes are in order, sources before users."""

    order: list[LazyBuffer]
    """Every node that must be computed or read."""
    requested: dict[LazyBuffer, None]
    """The nodes that must have a buffer afterwards."""
    everything: list[LazyBuffer]
    """`order`, and the versions that are replaced as a whole, with what they are made of."""
    external: set[LazyBuffer] = field(default_factory=set)
    """The nodes that something outside the schedule refers to."""
    moved_out: list[LazyBuffer] = field(default_factory=list)
    """The old versions that are read later: they must be copied before they are overwritten."""
    symbolic: bool = False
    """Whether any size or argument is symbolic."""
    parts: set[LazyBuffer] = field(default_factory=set)
    """The leaves that are parts of memory which only ever is read: it is all one where they are."""
    passed: list[LazyBuffer] = field(default_factory=list)
    """The numbers that some kernel may compute on its way, while something outside holds them."""


def value_sources(node: LazyBuffer) -> tuple[LazyBuffer, ...]:
    """The nodes whose contents a node is made of: a version that is replaced as a whole is none."""
    if node.op is LoadOps.ASSIGN and node.arg is None:
        return node.srcs[1:]
    return node.srcs


def toposort(roots: Iterable[LazyBuffer], everything: bool = False) -> list[LazyBuffer]:
    """The nodes that `roots` are made of, sources first.

    `everything` includes versions that are replaced as a whole.
    """
    order: list[LazyBuffer] = []
    seen: set[LazyBuffer] = set()
    # On top of a node, None: all that it is made of is in order.
    stack: list[LazyBuffer | None] = list(roots)
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:
            node = stack.pop()
            assert node is not None
            order.append(node)
        elif node not in seen:
            seen.add(node)
            srcs = node.srcs if everything else value_sources(node)
            if srcs:
                stack += (node, None)
                stack += srcs[::-1]
            else:
                order.append(node)
    return order


def graph_of(
    requested: dict[LazyBuffer, None], everything: list[LazyBuffer], outside: Sequence[int]
) -> Graph:
    """The graph of these nodes; those with the numbers `outside` are referred to from there."""
    order = everything
    if any([node.op is LoadOps.ASSIGN for node in everything]):
        order = toposort(requested)
    graph = Graph(order, requested, everything, {everything[number] for number in outside})
    graph.symbolic = any([_is_symbolic(node) for node in everything])
    _find_late_readers(graph)
    graph.passed = _numbers_on_the_way(graph)
    return graph


def nodes_to_compute(roots: Iterable[LazyBuffer]) -> dict[LazyBuffer, None]:
    """Those of `roots` that have no buffer, pending writes, and numbers that are needed a second
    time."""
    requested = dict.fromkeys([node for node in roots if node.realized is None])
    pending = pending_writes()
    if pending:
        _join_pending_writes(requested, pending)
    if this_thread.state.passed:
        _request_again(requested)
    return requested


def _join_pending_writes(requested: dict[LazyBuffer, None], pending: Iterable[Storage]) -> None:
    """Adds the writes to memory of the same devices.

    Those that replace what is read have to be done. Others, such as those of statistics that nobody
    looks at, would keep alive whatever they are made of, and that of all writes before. But a
    function of the host may raise, which is to be the error of who reads what it makes.
    """
    devices = {node.device for node in requested}
    waiting = {s.node for s in pending if s.node.device in devices} - requested.keys()
    harmless = [node for node in waiting if not _calls_host(node)]
    requested.update(dict.fromkeys(sorted(harmless, key=_serial)))
    waiting.difference_update(harmless)
    while waiting:
        present = set(toposort(requested))
        joining = [node for node in waiting if _replaces_one_of(node, present)]
        if not joining:
            break
        joining.sort(key=_serial)
        requested.update(dict.fromkeys(joining))
        waiting.difference_update(joining)


def _calls_host(node: LazyBuffer) -> bool:
    return any(below.op is LoadOps.CUSTOM for below in toposort([node]))


def _request_again(requested: dict[LazyBuffer, None]) -> None:
    """Has numbers that are needed a second time stored.

    A kernel computes a number such as `bias - 0.1 * (scores - bias).sum()` as it goes along, which
    costs it nothing. In a loop the next one is made of it, and each turn's kernel would be longer
    than the last.
    """
    present = set(toposort(requested))
    again = []
    passed = this_thread.state.passed
    for reference in list(passed):
        node = reference()
        if node is None or node.realized is not None:
            passed.discard(reference)
        elif node in present and node not in requested:
            again.append(node)
    requested.update(dict.fromkeys(sorted(again, key=_serial)))


def note_passed(numbers: Iterable[LazyBuffer]) -> None:
    """These are `Graph.passed` of a graph that is to be computed."""
    passed = this_thread.state.passed
    passed.update([ref(node, passed.discard) for node in numbers])


def _numbers_on_the_way(graph: Graph) -> list[LazyBuffer]:
    """The single elements, made by sums or the like, that are held outside and not stored."""
    inside = graph.external - graph.requested.keys()
    numbers = [node for node in inside if node.realized is None and storage_size(node.shape) == 1]
    if not numbers:
        return []
    summed: set[LazyBuffer] = set()
    for node in graph.order:
        if node.op in ReduceOps or any([source in summed for source in node.srcs]):
            summed.add(node)
    return [node for node in numbers if node in summed]


def _serial(node: LazyBuffer) -> int:
    """A key to sort by, so that nothing depends on how a set is ordered."""
    return node.serial


def _replaces_one_of(version: LazyBuffer, present: set[LazyBuffer]) -> bool:
    while version.op is LoadOps.ASSIGN:
        version = version.srcs[0]
        if version in present:
            return True
    return False


def _is_symbolic(node: LazyBuffer) -> bool:
    """Whether a node brings a symbol in: the shapes of most follow from those of their sources."""
    is_leaf = not node.srcs or node.op is LoadOps.CUSTOM
    return (is_leaf and _has_expr(node.shape)) or _has_expr(node.arg)


def _has_expr(arg: object) -> bool:
    if isinstance(arg, View):
        arg = arg.shape, arg.strides, arg.offset, arg.mask
    if not isinstance(arg, tuple):
        return isinstance(arg, Expr)
    # A list is faster than a generator, and this is asked of every node of every schedule.
    return any([type(part) is not int and _has_expr(part) for part in arg])


# *** readers that this schedule does not know ***


# What nothing refers to but a list shows how many references the counting itself makes.
(_OWN,) = map(sys.getrefcount, [object()])


def referenced_from_outside(nodes: list[LazyBuffer], uses: Sequence[int]) -> list[int]:
    """The numbers of the nodes that are referred to by more than this list, and their users in it.

    `uses` says how many these are. Who calls this has no other references to the nodes; but to
    those to be computed, to which something outside refers anyway.
    """
    counts = enumerate(map(sys.getrefcount, nodes))
    return [number for number, found in counts if found - uses[number] > _OWN]


def _find_late_readers(graph: Graph) -> None:
    """Decides what happens to old versions that are needed after this schedule.

    A node outside that was built on an old version either gets its value now, or the old version is
    copied: whichever is less memory.
    """
    present = set(graph.order)
    replaced = _replaced_versions(graph)
    if not replaced:
        return
    readers = late_readers(graph)
    needed = [version for version in replaced if readers[version]]
    behind = {reader for version in needed for reader in readers[version]}
    if not behind:
        return
    can_compute = behind <= present and not behind & set(replaced)
    copies = sum(_nbytes(version) for version in needed)
    if can_compute and sum(map(_nbytes, behind)) <= copies:
        for reader in sorted(behind, key=_serial):
            graph.requested[reader] = None
    else:
        graph.moved_out = needed


def _replaced_versions(graph: Graph) -> list[LazyBuffer]:
    """What the ASSIGNs of the schedule write over, as far as it has contents."""
    found: dict[LazyBuffer, None] = {}
    for node in graph.order:
        if node.op is LoadOps.ASSIGN:
            old = node.srcs[0]
            while old not in found:
                found[old] = None
                if old.op is LoadOps.ASSIGN and old not in graph.requested:
                    old = old.srcs[0]
    return list(found)


def late_readers(graph: Graph) -> dict[LazyBuffer, frozenset[LazyBuffer]]:
    """For each node, those referred to from outside that are made of it after this schedule."""
    none: frozenset[LazyBuffer] = frozenset()
    readers: dict[LazyBuffer, frozenset[LazyBuffer]] = {}
    inherited: dict[LazyBuffer, frozenset[LazyBuffer]] = {}
    for node in reversed(graph.everything):
        below = inherited.pop(node, none)
        requested = node in graph.requested
        if requested or node in graph.external:
            below = below | {node}
        readers[node] = below
        # A requested node has its value afterwards: its users read that, and not its sources.
        if below and not requested:
            for source in node.srcs:
                known = inherited.get(source)
                inherited[source] = below if known is None else known | below
    return readers


def _nbytes(node: LazyBuffer) -> int:
    return storage_size(node.shape) * node.dtype.itemsize
