"""Tensors that a captured call made and returned or left behind; each replay makes new ones."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, final

from ferrule.autograd import TracedValue
from ferrule.device.capture import Capture
from ferrule.device.runner import BufferCopy
from ferrule.engine.realize import realize
from ferrule.ir.buffer import Buffer
from ferrule.ir.lazy import LazyBuffer
from ferrule.jit.before import Before
from ferrule.jit.places import Place, tensors_of
from ferrule.jit.results import Effect, Fresh, Leaf, Outcome, end_of_tape, replace_tensors
from ferrule.jit.sharing import Sharing
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Move, StorageRef


@final
class Made:
    """The tensors of a captured call's outcome, and their memory."""

    def __init__(self, before: Before, capture: Capture) -> None:
        self._before = before
        self._capture = capture
        self.outcome = Outcome()
        self.originals = {stand_in: tensor for tensor, stand_in in before.stand_ins.items()}
        """The argument for each stand-in, and the same view of it for each view of a stand-in."""
        self.buffers: list[Buffer] = []
        """The memory of the values that replays compute again."""
        self.views: list[Tensor] = []
        """The results that are views of tensors of the call: in replays they are no views."""
        self.cells: set[int] = set()
        """The cells, by `id()`, of the tensors of the outcome that replays make anew."""
        self.same: list[StorageRef] = []
        """The cells from before the call that are part of its outcome."""
        self.lacking: str | None = None
        """The text of the error if there was no room for a copy that only replays need."""
        self._left: list[weakref.ref[StorageRef]] = []
        """The cells of all tensors of the outcome."""

    def add(
        self, tensors: Mapping[int, Tensor], nodes: Mapping[int, LazyBuffer], sharing: Sharing
    ) -> dict[int, Leaf]:
        """The `Leaf` that stands for each tensor of the outcome in a replay, by `id()`.

        `nodes` are the values of the tensors that the call made.
        """
        self._left = [weakref.ref(tensor._cell) for tensor in tensors.values()]
        leaves = self._apart(tensors, nodes, sharing)
        first = len(self._before.arguments.tensors) + len(self.outcome.made)
        for number, tensor in tensors.items():
            if number not in leaves:
                leaves[number] = kind = first + len(self.outcome.shared)
                self._note_leaf(tensor, kind)
                self._add_shared(tensor, leaves, sharing)
        return leaves

    def _apart(
        self, tensors: Mapping[int, Tensor], nodes: Mapping[int, LazyBuffer], sharing: Sharing
    ) -> dict[int, Leaf]:
        """The `Leaf` of each tensor that is older than the call, or is new and no alias."""
        values: dict[LazyBuffer, int] = {}
        leaves: dict[int, Leaf] = {}
        for number, tensor in tensors.items():
            kind = self._before.kind(tensor)
            if kind is None and tensor in sharing:
                continue
            if kind is None:
                node = nodes[number]
                self.cells.add(id(tensor._cell))
                if tensor._parent is not None:
                    self.views.append(tensor)
                if node not in values:
                    values[node] = self._add_value(node)
                kind = len(self._before.arguments.tensors) + len(self.outcome.made)
                self._note_leaf(tensor, kind)
                self.outcome.made.append((values[node], end_of_tape(tensor)))
            if isinstance(kind, Tensor):
                self.same.append(tensor._cell)
            leaves[number] = kind
        return leaves

    def _add_shared(self, tensor: Tensor, leaves: Mapping[int, Leaf], sharing: Sharing) -> None:
        arguments = self._before.arguments
        shared = sharing.shared(tensor, leaves)
        self.outcome.shared.append(shared)
        if sharing.is_of(tensor, self.originals):
            twin = shared.of(arguments.tensors, arguments.var_vals)
            if tensor._leaf is not None:
                twin.requires_grad_().grad = tensor.grad
            self.originals[tensor] = twin

    def _note_leaf(self, tensor: Tensor, number: int) -> None:
        if tensor._leaf is not None:
            self.outcome.collecting.append(number)

    def _add_value(self, node: LazyBuffer) -> int:
        """Adds a value that replays compute, and returns its number.

        The value is copied if its memory has another use too.
        """
        buffer = node.realized
        assert buffer is not None, f"{node} was not computed"
        fresh = Fresh.like(node)
        is_new = node.serial > self._before.last_node and self._capture.is_produced(buffer)
        if not is_new or buffer.base is not buffer:
            try:
                source, buffer = buffer, fresh.allocate()
                copy = BufferCopy(buffer.device, buffer.nbytes, source.device)
                copy.exec([buffer, source])
            except MemoryError as error:
                self.lacking = str(error)  # the call itself has had all of its effects
        self.outcome.fresh.append(fresh)
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def take_from_bases(self) -> None:
        """Gives the results that are views memory of their own, as they have in replays.

        They stay views where somebody else has their base, or another tensor in that memory.
        """
        for view in self.views:
            _take_from_base(view)

    def add_gradients(
        self,
        gradients: Mapping[int, Tensor],
        retained: Mapping[Tensor, Tensor],
        leaves: Mapping[int, Leaf],
    ) -> None:
        """Adds the gradients that the call left on arguments and on tensors that it made."""
        for number, tensor in gradients.items():
            self.outcome.effects.append(Effect(number, leaves[id(tensor)]))
        for made, tensor in retained.items():
            owner = leaves[id(made)]
            assert isinstance(owner, int)
            self.outcome.effects.append(Effect(owner, leaves[id(tensor)]))

    def rejoin(self) -> None:
        """Turns copy-on-write copies of stand-ins into copies of the arguments.

        Otherwise a write to the argument would change the copy, and the other way round. The bases
        of views that the call left are computed now, before somebody writes to the argument.
        """
        if not self._before.stand_ins:
            return
        left = [cell for reference in self._left if (cell := reference()) is not None]
        wholes = [cell.value.node for cell in left]
        realize([node for node in wholes if node.base_const() is None])
        nodes = {
            stand_in.lazydata: tensor.lazydata
            for tensor, stand_in in self._before.stand_ins.items()
            if tensor not in self._before.arguments.parts
        }
        for cell in left:
            node = nodes.get(cell.value.node)
            if node is not None:
                cell.restore(TracedValue(node, cell.value.edge))

    def restore(self, place: Place, content: Any) -> None:
        """Puts an argument where the call put its stand-in."""
        if any(tensor in self.originals for tensor in tensors_of(content) or ()):
            place.set(replace_tensors(content, self.originals))


def _take_from_base(view: Tensor) -> None:
    """Gives a view memory of its own; nothing changes if somebody else has its base."""
    cell, move, cache = weakref.ref(view._cell), view._move, view._cache
    bases = []
    handle = view._parent
    while handle is not None:
        bases.append((weakref.ref(handle), handle._move, handle._detached))
        handle = handle._parent
    view._cell = StorageRef(view._read())
    view._parent = view._move = view._cache = view._view = None
    present = cell()
    if present is None:
        return
    parent: Any = None
    for reference, moved, detached in reversed(bases):
        found = reference()
        parent = _handle(present, parent, moved, detached) if found is None else found
    view._cell, view._parent, view._move, view._cache = present, parent, move, cache


def _handle(cell: StorageRef, parent: Tensor | None, move: Move | None, detached: bool) -> Tensor:
    """A tensor in a cell, or a view of its parent."""
    if parent is not None and move is not None:
        tensor = parent._view_of(*move)
    else:
        tensor = object.__new__(Tensor)
        tensor._set(cell)
    tensor._detached = detached
    tensor._note_whole()
    return tensor
