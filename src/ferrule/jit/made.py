"""What a call that is captured made and left behind, so that replays make the same anew."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.capture import Capture
from ferrule.gradient import Value
from ferrule.jit.before import Before
from ferrule.jit.places import Place, tensors_of
from ferrule.jit.results import Effect, Fresh, Leaf, Outcome, end_of_tape, replace_tensors
from ferrule.jit.sharing import Sharing
from ferrule.lazy import LazyBuffer
from ferrule.realize import realize
from ferrule.runner import BufferCopy
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell


@final
class Made:
    """The tensors of a call's outcome, and the memory that they are in."""

    def __init__(self, before: Before, capture: Capture) -> None:
        self._before = before
        self._capture = capture
        self.outcome = Outcome()
        self.originals = {stand_in: tensor for tensor, stand_in in before.stand_ins.items()}
        """For stand-ins, and views of them that the call leaves: the same of the arguments."""
        self.buffers: list[Buffer] = []
        """The memory in which the call made the values that replays make anew."""
        self.views: list[Tensor] = []
        """The results that are views of what the call made: in replays they are no views."""
        self.cells: set[int] = set()
        """The memories, by `id()`, of what replays make anew, as far as the caller has it."""
        self.same: list[Cell] = []
        """The memory from before the call that it returned handles on."""
        self._left: list[weakref.ref[Cell]] = []
        """The memories of all tensors of the outcome."""

    def add(
        self, tensors: Mapping[int, Tensor], nodes: Mapping[int, LazyBuffer], sharing: Sharing
    ) -> dict[int, Leaf]:
        """For each tensor of the outcome, by its `id()`, how a replay comes by it.

        `nodes` are the values that the call computed for those of them that it made.
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
        """The same for those that the call did not make, or made in memory of their own."""
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
        """A value in memory of its own: a copy, where its memory has another use too."""
        buffer = node.realized
        assert buffer is not None, f"{node} was not computed"
        fresh = Fresh.like(node)
        is_new = node.serial > self._before.last_node and self._capture.is_produced(buffer)
        if not is_new or buffer.base is not buffer:
            source, buffer = buffer, fresh.allocate()
            copy = BufferCopy(buffer.device, buffer.nbytes, source.device)
            copy.exec([buffer, source])
        self.outcome.fresh.append(fresh)
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def add_gradients(
        self,
        gradients: Mapping[int, Tensor],
        retained: Mapping[Tensor, Tensor],
        leaves: Mapping[int, Leaf],
    ) -> None:
        """Each replay puts gradients where the call did: into arguments, and into what it made."""
        for number, tensor in gradients.items():
            self.outcome.effects.append(Effect(number, leaves[id(tensor)]))
        for made, tensor in retained.items():
            owner = leaves[id(made)]
            assert isinstance(owner, int)
            self.outcome.effects.append(Effect(owner, leaves[id(tensor)]))

    def rejoin(self) -> None:
        """Copies of stand-ins, in the memory of an argument until one of both is written to, become
        copies of the argument: else neither would know of what is written to the other. So what
        views that the call left are of is computed, before somebody writes to the argument.
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
                cell.restore(Value(node, cell.value.edge))

    def restore(self, place: Place, content: Any) -> None:
        """Puts an argument where the call put its stand-in."""
        if any(tensor in self.originals for tensor in tensors_of(content) or ()):
            place.set(replace_tensors(content, self.originals))
