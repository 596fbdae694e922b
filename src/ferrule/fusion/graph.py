"""The graph of one schedule: the nodes to compute, and the readers outside of it.

Old versions of memory may be overwritten only when nothing will read them later. Readers in this
schedule can be put first; all others have a handle, or are users that no schedule has computed yet
(see `node.needed_outside`). What is held but never read costs a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import partial
from typing import final
from weakref import ref

from ferrule.base.records import dataclass
from ferrule.base.threadstate import ThreadState, left_behind, this_thread
from ferrule.ir.expr import Expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.op_table import PLAIN_MOVEMENTS
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import View
from ferrule.ir.storage import Storage, pending_writes


@final
@dataclass
class Graph:
    """The nodes of one schedule; collections of nodes are in order, sources before users."""

    order: list[LazyBuffer]
    """All nodes that must be computed or read."""
    requested: dict[LazyBuffer, None]
    """The nodes that must have a buffer afterwards."""
    everything: list[LazyBuffer]
    """`order`, and the versions that are replaced as a whole, with what they are made of."""
    external: set[LazyBuffer] = field(default_factory=set)
    """The nodes that are asked for, have handles, or are used by nodes outside the schedule."""
    moved_out: list[LazyBuffer] = field(default_factory=list)
    """The old versions that are read later: they must be copied before they are overwritten."""
    symbolic: bool = False
    """True if any size or argument is symbolic."""
    parts: set[LazyBuffer] = field(default_factory=set)
    """The leaves that are parts of memory that is only read: the key leaves their offsets out."""
    passed: list[LazyBuffer] = field(default_factory=list)
    """The values that something outside holds and that may not be stored; see `needed_again`."""


def value_sources(node: LazyBuffer) -> tuple[LazyBuffer, ...]:
    """The sources whose contents a node needs: all but a version that it replaces as a whole."""
    if node.op is LoadOps.ASSIGN and node.arg is None:
        return node.srcs[1:]
    return node.srcs


def toposort(
    roots: Iterable[LazyBuffer], everything: bool = False, known: Iterable[LazyBuffer] = ()
) -> list[LazyBuffer]:
    """The nodes that `roots` are made of, sources first, without `known` ones and those below.

    `everything` includes versions that are replaced as a whole.
    """
    order: list[LazyBuffer] = []
    seen: set[LazyBuffer] = set(known)
    # A None on top of a node says that all its sources are in order.
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
    """The graph of these nodes; those with the numbers `outside` are needed there as well."""
    order = everything
    if any([node.op is LoadOps.ASSIGN for node in everything]):
        order = toposort(requested)
    held = {everything[number] for number in outside}
    graph = Graph(order, requested, everything, held | requested.keys())
    graph.symbolic = any([_is_symbolic(node) for node in everything])
    _find_late_readers(graph)
    graph.passed = _passed(graph)
    return graph


def nodes_to_compute(roots: Iterable[LazyBuffer], state: ThreadState) -> dict[LazyBuffer, None]:
    """The `roots` without a buffer, and pending writes."""
    requested: dict[LazyBuffer, None] = {}
    for node in roots:  # which are few
        if node.realized is None:
            requested[node] = None
    if state.written or left_behind:
        pending = pending_writes()
        if pending:
            _join_pending_writes(requested, pending)
    return requested


def _join_pending_writes(requested: dict[LazyBuffer, None], pending: Iterable[Storage]) -> None:
    """Add the pending writes to memory of the same devices.

    A write must join if it replaces a version that is read here. Other writes join, too: statistics
    that nobody reads would else keep all versions before them alive. The exception is a write that
    calls a function of the host, whose error belongs to whoever reads the result.
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


def with_results(
    requested: dict[LazyBuffer, None], nodes: Sequence[LazyBuffer]
) -> tuple[dict[LazyBuffer, None], list[LazyBuffer]]:
    """The requested nodes, and all in order, with all live results of the runs among them.

    A run is over afterwards, so that it has to give all its results at once.
    """
    runs = [node.srcs[0] for node in nodes if node.op is LoadOps.RESULT]
    if not runs:
        return requested, list(nodes)
    present = set(nodes)
    others = [
        result
        for run in dict.fromkeys(runs)
        for result in run.live_results()
        if result not in present and result.realized is None
    ]
    if not others:
        return requested, list(nodes)
    requested = requested | dict.fromkeys(others)
    return requested, toposort(requested, everything=True)


def _calls_host(node: LazyBuffer) -> bool:
    runs = [below for below in toposort([node]) if below.op is LoadOps.CUSTOM]
    return any([run.arg.may_raise for run in runs])


def needed_again(nodes: Iterable[LazyBuffer]) -> list[LazyBuffer]:
    """The nodes that two schedules or more have computed, and none has stored.

    A kernel may compute a held value such as `keys = cat([keys, new])` without storing it. A loop
    makes the next value of it, and the graph would grow with each turn. One more schedule that
    needs it says little, since that may be the last one, as a backward pass is.
    """
    passed = this_thread.state.passed
    again = []
    for node in nodes:
        known = passed.get(node.serial)
        if known is not None and node.realized is None:
            if known.is_needed_again:
                again.append(node)
            known.is_needed_again = True
    return again


def were_passed(nodes: Iterable[LazyBuffer]) -> bool:
    """True if some schedule computed one of these nodes without storing it."""
    passed = this_thread.state.passed
    return bool(passed) and any([node.serial in passed for node in nodes])


def note_passed(nodes: Iterable[LazyBuffer]) -> None:
    """Remember the `Graph.passed` of a graph that is about to be computed."""
    passed = this_thread.state.passed
    for node in nodes:
        serial = node.serial
        if serial not in passed:
            passed[serial] = _Passed(ref(node, partial(passed.pop, serial)))


@final
class _Passed:
    """A value that some schedule computed without storing it."""

    __slots__ = ("is_needed_again", "reference")

    def __init__(self, reference: ref[LazyBuffer]) -> None:
        self.reference = reference
        """To forget the value as soon as it is dead."""
        self.is_needed_again = False
        """True if another schedule has computed it since."""


def _passed(graph: Graph) -> list[LazyBuffer]:
    """The held values, below movements, that are worth storing if they are needed often.

    Reading a value takes no longer than computing it if it is no larger than what it is made of.
    """
    values = dict.fromkeys([_unmoved(node) for node in graph.external - graph.requested.keys()])
    held = {node for node in values if node.srcs and not node.owns_memory}
    if not held:
        return []
    reads: dict[LazyBuffer, float] = {}  # elements of memory; sums of sums may become infinite
    for node in graph.order:
        size = float(storage_size(node.shape))
        below = sum([reads[source] for source in value_sources(node)], 0.0)
        if node.owns_memory:
            below = size
        reads[node] = min(below, size) if node.op in PLAIN_MOVEMENTS else below
    return [n for n in graph.order if n in held and storage_size(n.shape) <= reads[n]]


def _unmoved(node: LazyBuffer) -> LazyBuffer:
    while node.op in PLAIN_MOVEMENTS:
        node = node.srcs[0]
    return node


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
    """True if a node introduces a symbol: most shapes follow from those of the sources."""
    is_leaf = not node.srcs or node.op in (LoadOps.CUSTOM, LoadOps.RESULT)
    return (is_leaf and _has_expr(node.shape)) or _has_expr(node.arg)


def _has_expr(arg: object) -> bool:
    if isinstance(arg, View):
        arg = arg.shape, arg.strides, arg.offset, arg.mask
    if not isinstance(arg, tuple):
        return isinstance(arg, Expr)
    # A list is faster than a generator, and this runs for every node of every schedule.
    return any([type(part) is not int and _has_expr(part) for part in arg])


# *** readers outside of this schedule ***


def _find_late_readers(graph: Graph) -> None:
    """Decide how to preserve old versions that are needed after this schedule.

    Either the nodes outside that read them are computed now, or the old versions are copied,
    whichever takes less memory.
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
    """The versions that the ASSIGNs of the schedule overwrite, as far as they are stored."""
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
    """For each node, those needed outside that are made of it after this schedule."""
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
