"""Concat elimination: each piece of a `cat` is computed in its place in the whole.

A `cat` that gets memory would be a kernel that copies its pieces. Kernels that store a piece anyway
store it in the memory of the whole, and its users read it there. The remaining pieces get kernels
of their own.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, TypeAlias, final

from ferrule.base.config import config
from ferrule.base.records import dataclass
from ferrule.fusion.graph import Graph, late_readers
from ferrule.fusion.tasks import Reader, Task
from ferrule.fusion.updates import base_of
from ferrule.fusion.views import dense, is_movement, reshape, unmoved
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps, ReduceOps, TernaryOps
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import View
from ferrule.ir.simplify import join_mask

_MIN_STORED_SHARE: Final = 0.5
"""Fraction of a whole that other kernels have to store. Below it the whole's memory, which is in
use from the first piece on, is not worth it. Not measured."""
_MAX_OUTPUTS: Final = 16
"""Outputs up to which a kernel stores one more copy of a result. Not measured: chosen for training
steps of a GRU, whose gates belong to several wholes (2026-11-23)."""


@final
@dataclass(frozen=True)
class Part:
    """The part of a node's memory that holds a piece: `size` elements from `start` on."""

    memory: LazyBuffer
    start: int
    size: int
    layout: View
    """The view of the piece's elements in the part."""


@final
@dataclass(frozen=True)
class Pieces:
    """The pieces, with the memory that they are in, and the wholes made of them."""

    parts: dict[LazyBuffer, Part] = field(default_factory=dict)
    of: dict[LazyBuffer, list[LazyBuffer]] = field(default_factory=dict)
    """The pieces of each whole that no kernel computes. A piece may be such a whole itself."""

    @property
    def layouts(self) -> dict[LazyBuffer, View]:
        """The views of the pieces' elements in their parts of memory."""
        return {node: part.layout for node, part in self.parts.items()}

    def computed(self, node: LazyBuffer) -> list[LazyBuffer]:
        """The nodes that kernels compute for a node: its pieces, or itself."""
        found: list[LazyBuffer] = []
        waiting = [node]
        while waiting:
            node = waiting.pop()
            pieces = self.of.get(node)
            if pieces is None:
                found.append(node)
            else:
                waiting.extend(pieces)
        return found


def place_pieces(graph: Graph, roots: set[LazyBuffer], tasks: list[Task], alignment: int) -> Pieces:
    """Place pieces in the memory of their wholes.

    `tasks` loses the wholes, and gains a task for each piece that no other kernel stores. Parts of
    memory begin at multiples of `alignment` bytes.
    """
    wholes: list[LazyBuffer] = []
    is_skipped = graph.symbolic or "pieces" in config().FERRULE_SKIP
    for task in [] if is_skipped else tasks:
        wholes += task.outputs if _may_be_joined(task) else []
    if not wholes:
        return Pieces()
    joiner = _Joiner(graph, roots, tasks)
    joiner.join(wholes)
    parts = {node: _part(*place, alignment) for node, place in joiner.places.items()}
    return Pieces(parts, joiner.pieces)


def _may_be_joined(task: Task) -> bool:
    """True if all outputs of a kernel look like a `cat`; most graphs have no such kernel."""
    if task.stages:
        return False
    return all(_joined_value(root).op is TernaryOps.WHERE for root in task.outputs)


def _joined_value(root: LazyBuffer) -> LazyBuffer:
    value = root
    while value.realized is None and value.op in (LoadOps.CONTIGUOUS, MovementOps.RESHAPE):
        value = value.srcs[0]
    return value


@final
class _Joiner:
    def __init__(self, graph: Graph, roots: set[LazyBuffer], tasks: list[Task]) -> None:
        self.graph = graph
        self.roots = roots
        self.tasks = tasks
        self.pieces: dict[LazyBuffer, list[LazyBuffer]] = {}
        self.places: dict[LazyBuffer, tuple[LazyBuffer, View]] = {}
        """The node in whose memory each piece is, and its view there. That node is no piece."""
        self._task_of = {root: task for task in tasks for root in task.outputs}
        self._reader = Reader(roots)
        self._late = late_readers(graph)
        self._users: dict[LazyBuffer, int] = {}
        for node in graph.order:
            for source in node.srcs:
                self._users[source] = self._users.get(source, 0) + 1
        self._nodes_with_own_memory = _nodes_with_own_memory(graph)

    def join(self, wholes: list[LazyBuffer]) -> None:
        """Join wholes, outer ones first: a piece of one may be a whole itself."""
        position = {node: place for place, node in enumerate(self.graph.order)}
        for whole in sorted(wholes, key=lambda node: -position[node]):
            if whole in self._task_of:
                self._join(whole)

    def _join(self, whole: LazyBuffer) -> None:
        if whole in self._nodes_with_own_memory:
            return
        memory, view = self.places.get(whole, (whole, dense(whole.shape)))
        found = self._pieces(whole, view)
        if found is None:
            return
        pieces, passed = found
        places: dict[LazyBuffer, View] = {}
        again: list[tuple[LazyBuffer, View]] = []
        others: list[tuple[LazyBuffer, View]] = []
        for value, place in pieces:
            stored = self._stored(value, place)
            if stored is None:
                others.append((value, place))
            elif stored[0] not in places and self._may_be_placed(stored[0]):
                places[stored[0]] = stored[1]
            elif self._may_be_stored_again(stored[0]):
                again.append(stored)
            else:
                others.append((value, place))
        made = [*places, *[node for node, _ in again]]
        # A join is mostly stored because a kernel has only so many masks, and serves nothing else.
        has_join = any([join_mask(_joined_value(node)) is not None for node in places])
        if not has_join and sum(map(_size, made)) < _MIN_STORED_SHARE * _size(whole):
            return
        for node in (whole, *passed):
            self._leave_out(node)
        self.roots.difference_update(passed)
        places.update({self._store_again(node): place for node, place in again})
        places.update({self._add(value): place for value, place in others})
        self.pieces[whole] = list(places)
        self.places.update({node: (memory, place) for node, place in places.items()})

    def _leave_out(self, node: LazyBuffer) -> None:
        """Remove the node from the outputs of its task."""
        task = self._task_of.pop(node)
        task.outputs.remove(node)
        if not task.outputs:
            self.tasks.remove(task)

    def _add(self, value: LazyBuffer) -> LazyBuffer:
        """Add a task for a piece that no other kernel stores; returns the node it stores."""
        piece = self._copy(value)
        self.tasks.append(Task([piece]))
        return piece

    def _store_again(self, node: LazyBuffer) -> LazyBuffer:
        """Add a second output to the kernel that stores a piece; returns that output."""
        piece = self._copy(node)
        self._task_of[node].outputs.append(piece)
        return piece

    def _copy(self, value: LazyBuffer) -> LazyBuffer:
        piece = LazyBuffer.empty(value.shape, value.dtype, value.device).assign(value)
        self.roots.add(piece)
        return piece

    def _pieces(
        self, whole: LazyBuffer, view: View
    ) -> tuple[list[tuple[LazyBuffer, View]], list[LazyBuffer]] | None:
        """The pieces of a whole with their views, and the stored partial joins between them.

        None if the whole is no `cat`.
        """
        value = _joined_value(whole)
        inner = reshape(view, value.shape)
        if inner is None or (value is not whole and value in self.roots):
            return None
        return self._pieces_of_join(value, inner)

    def _pieces_of_join(
        self, value: LazyBuffer, view: View
    ) -> tuple[list[tuple[LazyBuffer, View]], list[LazyBuffer]] | None:
        found: list[tuple[LazyBuffer, _Pads]] = []
        passed: list[LazyBuffer] = []
        while value.op is TernaryOps.WHERE:
            if join_mask(value) is None or value.srcs[1] in self.roots:
                return None
            _, padded, value = value.srcs
            found.append((padded.srcs[0], padded.arg))
            if value in self.roots:
                if not self._can_be_passed(value):
                    return None
                passed.append(value)
        if value.op is not MovementOps.PAD or not value.srcs:
            return None
        found.append((value.srcs[0], value.arg))
        if not _lie_side_by_side(found):
            return None
        pieces: list[tuple[LazyBuffer, View]] = []
        for source, pads in found:
            place = _inside(view, source, pads)
            inner = self._with_stored_pieces(source, place)
            if inner is None:
                pieces.append((source, place))
            else:
                pieces += inner[0]
                passed += inner[1]
        return pieces, passed

    def _with_stored_pieces(
        self, value: LazyBuffer, view: View
    ) -> tuple[list[tuple[LazyBuffer, View]], list[LazyBuffer]] | None:
        """The pieces of a piece that no kernel stores, if kernels store some of them.

        A kernel for the whole piece would copy these.
        """
        if value in self.roots or join_mask(value) is None:
            return None
        found = self._pieces_of_join(value, view)
        if found is None or not any([self._stored(*piece) for piece in found[0]]):
            return None
        return found

    def _can_be_passed(self, node: LazyBuffer) -> bool:
        """True if a stored value has one user only, which does not need it once joined."""
        task = self._task_of.get(node)
        if (
            task is None
            or len(task.outputs) > 1
            or task.stages
            or node in self._nodes_with_own_memory
        ):
            return False
        return self._users[node] == 1 and not self._late[node]

    def _stored(self, value: LazyBuffer, view: View) -> tuple[LazyBuffer, View] | None:
        """The output of a kernel that `value` only moves, with its view if `value` is at `view`.

        None if there is no such kernel.
        """
        while value not in self.roots and value.op in (MovementOps.RESHAPE, MovementOps.PERMUTE):
            below = unmoved(value, view)
            if below is None:
                return None
            value, view = below
        task = self._task_of.get(value)
        if task is None or task.stages or not task.is_kernel:
            return None
        is_value = value.op not in (LoadOps.ASSIGN, ReduceOps.SCATTER)
        return (value, view) if is_value and _is_last_axis_contiguous(view) else None

    def _may_be_placed(self, node: LazyBuffer) -> bool:
        """True if an output of a kernel needs no memory but its place in a whole."""
        return not (node in self._nodes_with_own_memory or node in self.places or self._late[node])

    def _may_be_stored_again(self, node: LazyBuffer) -> bool:
        """True if a kernel may store an output a second time: it is element-wise, and has room."""
        task = self._task_of[node]
        self._reader.find_reads(task)
        return not task.has_reduce and len(task.outputs) < _MAX_OUTPUTS


_Pads: TypeAlias = tuple[tuple[int, int], ...]


def _size(node: LazyBuffer) -> int:
    return storage_size(node.shape)


def _lie_side_by_side(pieces: list[tuple[LazyBuffer, _Pads]]) -> bool:
    """True if padded values lie one after the other along one axis, without gaps."""
    axes = {axis for _, pads in pieces for axis, pair in enumerate(pads) if pair != (0, 0)}
    if len(axes) != 1:
        return False
    (axis,) = axes
    spans = sorted([(pads[axis], source.shape[axis]) for source, pads in pieces])
    reached: sint = 0
    for (before, _), size in spans:
        if before != reached:
            return False
        reached = before + size
    return spans[-1][0][1] == 0


def _inside(view: View, source: LazyBuffer, pads: _Pads) -> View:
    """The view of a padded value's own elements, if the padded value is at `view`."""
    sizes = zip(pads, source.shape, strict=True)
    return view.shrink([(before, before + size) for (before, _), size in sizes])


def _part(memory: LazyBuffer, view: View, alignment: int) -> Part:
    reach = view.reach
    assert reach is not None, "pieces have known sizes"
    start, stop = reach
    start -= start % max(1, alignment // memory.dtype.itemsize)
    layout = View(view.shape, view.strides, view.offset - start)
    return Part(memory, start, stop - start, layout)


def _is_last_axis_contiguous(view: View) -> bool:
    """True if the last axis is contiguous in memory."""
    steps = [stride for size, stride in zip(view.shape, view.strides, strict=True) if size != 1]
    return not steps or steps[-1] == 1


def _nodes_with_own_memory(graph: Graph) -> set[LazyBuffer]:
    """The nodes that need memory of their own: a version, a copy or a user's runner uses it."""
    found: set[LazyBuffer] = set()
    for node in graph.everything:
        if node.op in (LoadOps.FROM, LoadOps.CUSTOM):
            found.update(node.srcs)
        memory = node.srcs[0] if node.op is LoadOps.ASSIGN and node.srcs else base_of(node)
        while memory is not None:
            found.add(memory)
            memory = memory.srcs[0] if is_movement(memory) else None
    return found
