"""The state before a captured call: its arguments, and the tensors and numbers in its reach."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence, Set
from typing import Any, final

from ferrule.autograd.tape import tape_position
from ferrule.base.threadstate import this_thread
from ferrule.device.capture import Capture
from ferrule.engine.random import streams
from ferrule.engine.realize import realize
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.jit.found import FoundBefore, FoundInputs
from ferrule.jit.guards import Watch
from ferrule.jit.inputs import Arguments, follow, memory_serial, stand_ins
from ferrule.jit.numbers import Numbers
from ferrule.jit.owners import Owner, present_version
from ferrule.jit.readers import renew
from ferrule.jit.results import Leaf
from ferrule.jit.sharing import Sharing
from ferrule.jit.state import State
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef


@final
class Before:
    """The tensors, memory and numbers that a call may use, as they were when it began."""

    def __init__(
        self,
        arguments: Arguments,
        writes: bool,
        found: FoundInputs,
        state: State,
    ) -> None:
        self.arguments = arguments
        self.stand_ins = stand_ins(arguments)
        self._gradients = [tensor.grad for tensor in arguments.tensors]
        self.state = state
        """The tensors and the Python values that the function can reach by itself."""
        self.numbers = Numbers(state)
        tensors = state.tensors()
        # Lazy tensors would be fused into the function's kernels, and could not be separated.
        compute_lazy(tensors)
        realize([stream.node for stream in streams()])
        count = len(arguments.tensors)
        self.found = FoundBefore(state, arguments, found)
        self.tape = tape_position()
        """The position on the tape at the start: entries with smaller serials are older."""
        self.given = {
            self.stand_ins.get(tensor, tensor): number
            for number, tensor in enumerate(arguments.tensors)
        }
        """The inputs, given and found, and their numbers; stand-ins replace their arguments."""
        self.constants = [
            (weakref.ref(tensor), tensor._cell.value.node.serial)
            for tensor in tensors
            if tensor.lazydata.base_const() is not None
        ]
        """The constants in reach (tensors without memory), and the serials of their nodes."""
        self._cells = {id(tensor._cell): weakref.ref(tensor._cell) for tensor in tensors}
        self._forget_cells(arguments.tensors[count:])
        # Nodes have serial numbers too: those of the call come after this one. An equal node from
        # before must not be reused in the call, because replays do not compute its value again.
        this_thread.state.nodes.clear()
        self.last_node = _newest_node()
        self._renew_memory(tensors, writes)
        self.last_version = _newest_node()
        """The serial of the newest node that holds contents from before the call."""
        cells = [weakref.ref(tensor._cell) for tensor in tensors]
        serials = [memory_serial(tensor.lazydata) for tensor in tensors]
        self.memory = list(zip(map(weakref.ref, tensors), serials, cells, strict=True))
        """The tensors in reach, the serials of their memory, and their cells."""
        self._versions = {t: self._version_for(t) for t in self.stand_ins}
        """The version of each stand-in before the call, by the tensor that it stands for."""

    def _renew_memory(self, reached: Sequence[Tensor], writes: bool) -> None:
        """Gives memory new nodes, to tell copies that the function makes from those it finds.

        The base of a view that was read stays as it is: the view may have been computed into
        memory of its own. Arguments come first: a tensor that shares memory with an argument, such
        as a gradient of the call before, then moves elsewhere in place of the argument.
        """
        read = {id(tensor._cell) for tensor in self.given if tensor._parent is not None}
        cells = [tensor._cell for tensor in [*self.given, *reached]]
        renew([cell for cell in cells if id(cell) not in read], writes)

    def _forget_cells(self, found: Iterable[Tensor]) -> None:
        """Forgets the cells of found inputs: a replay shares memory with its own input instead."""
        for tensor in found:
            self._cells.pop(id(tensor._cell), None)

    def owners(self) -> list[Owner]:
        """The cells in the call's reach, and the random streams."""
        reached = [cell for _, _, reference in self.memory if (cell := reference()) is not None]
        return [*reached, *streams()]

    def watch(self) -> Watch:
        """The first guards: the set of leaves, and which tensors have a gradient."""
        watch = Watch()
        watch.add_leaves(self.state.tensors())
        return watch

    def was_written(self, tensor: Tensor) -> bool:
        """True if the call wrote to the stand-in of a tensor, which may be a view."""
        return self._version_for(tensor) != self._versions[tensor]

    def _version_for(self, tensor: Tensor) -> int:
        return present_version(self.stand_ins[tensor]._cell).serial

    # -- how a tensor of the outcome relates to the inputs ---------------------------------------

    def kind(self, tensor: Tensor) -> Leaf | None:
        """An input's number; the tensor itself if it is older than the call; None if it is new."""
        number = self.given.get(tensor)
        if number is not None:
            return number
        cell = self._cells.get(id(tensor._cell))
        if tensor in self.state or (cell is not None and cell() is tensor._cell):
            return tensor
        return None

    def sharing(self, tensors: Iterable[Tensor]) -> Sharing:
        """The aliases among the tensors that the call made."""
        made = [tensor for tensor in tensors if self.kind(tensor) is None]
        return Sharing(self.given, made, self.arguments.var_vals.keys())

    def new_gradients(self) -> dict[int, Tensor]:
        """The gradients that the call set on arguments, by the argument's number."""
        pairs = enumerate(zip(self.arguments.tensors, self._gradients, strict=False))
        found = {number: (tensor.grad, old) for number, (tensor, old) in pairs}
        return {n: new for n, (new, old) in found.items() if new is not None and new is not old}

    def retained(self, tensors: Iterable[Tensor]) -> dict[Tensor, Tensor]:
        """The retained gradients of the tensors that the call made."""
        made = [tensor for tensor in tensors if self.kind(tensor) is None]
        return {tensor: tensor.grad for tensor in made if tensor.grad is not None}

    def add_found(self, capture: Capture, seen: Set[int], replaced: Set[Any]) -> None:
        """Appends the inputs that the function has found by itself to the arguments."""
        used: dict[int, Buffer] = {**capture.read, **capture.updated}
        first = len(self.arguments.tensors)
        added = self.found.add_used(used, seen, replaced, self.arguments)
        self.given.update({tensor: first + number for number, tensor in enumerate(added)})
        self._forget_cells(added)


def _newest_node() -> int:
    return LazyBuffer.empty((), dtypes.uint8, "").serial


def compute_lazy(tensors: Iterable[Tensor]) -> None:
    """Computes lazy tensors into memory, such as the weights of a new model.

    For a view its whole base is computed, because a write to the view goes there. Two kinds get
    memory of their own: a copy that is still a movement of another tensor's memory, and a constant
    with a view that was computed by itself. A write would move them to new memory later, and a
    replay would still read the old one.
    """
    cells: dict[StorageRef, None] = {}
    for tensor in tensors:
        cell = tensor._cell
        node = cell.value.node
        is_constant = node.base_const() is not None
        view_is_constant = tensor.lazydata.base_const() is not None
        if node.realized is None and not (is_constant and view_is_constant):
            cells[cell] = None
            if follow(node) is not None or is_constant:
                cell.settle()
    realize([cell.value.node for cell in cells])
