"""What there was before a call that is captured: what it is given, and what it can reach."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.capture import Capture
from ferrule.dtype import dtypes
from ferrule.gradient.tape import tape_position
from ferrule.jit.found import FoundBefore, FoundInputs
from ferrule.jit.hooks import code_of
from ferrule.jit.inputs import Arguments, follow, memory_serial, stand_ins
from ferrule.jit.numbers import Numbers
from ferrule.jit.reach import Owner, Reach, present_version
from ferrule.jit.readers import readers, renew
from ferrule.jit.results import Leaf
from ferrule.jit.sharing import Sharing
from ferrule.jit.watch import Watch
from ferrule.lazy import LazyBuffer
from ferrule.random import streams
from ferrule.realize import realize
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell
from ferrule.threadstate import this_thread


@final
class Before:
    """The tensors, memory and numbers that a call may use, as they were when it began."""

    def __init__(
        self,
        arguments: Arguments,
        function: Callable[..., Any],
        writes: bool,
        found: FoundInputs,
    ) -> None:
        self.arguments = arguments
        self.stand_ins = stand_ins(arguments)
        self._gradients = [tensor.grad for tensor in arguments.tensors]
        self.roots = [*code_of(function), *arguments.objects]
        self.reach = Reach(self.roots)
        self.numbers = Numbers(self.roots)
        """What the function can read besides tensors."""
        tensors = self.reach.tensors()
        # What is lazy would melt into the function's kernels, and could not be told from them.
        compute_lazy(tensors)
        realize([stream.node for stream in streams()])
        count = len(arguments.tensors)
        self.found = FoundBefore(self.reach, arguments, found, self.numbers.assigned)
        self.tape = tape_position()
        """Entries of the tape with serials below that are from before the call."""
        self.given = {
            self.stand_ins.get(tensor, tensor): number
            for number, tensor in enumerate(arguments.tensors)
        }
        """The tensors that it is given, or that are inputs all the same, and their numbers."""
        self.constants = [
            (weakref.ref(tensor), tensor._cell.value.node.serial)
            for tensor in tensors
            if tensor.lazydata.base_const() is not None
        ]
        """Those that it reaches and that have no memory, and the serials of their nodes."""
        self._cells = {id(tensor._cell): weakref.ref(tensor._cell) for tensor in tensors}
        self._forget_cells(arguments.tensors[count:])
        # Nodes are numbered as well: all that are made in the call come after this one. Equal
        # ones from before are not to be taken for them: their values stay what they are.
        this_thread.state.nodes.clear()
        self.last_node = _newest_node()
        self._renew_memory(tensors, writes)
        self.last_version = _newest_node()
        """The newest node that holds what some memory contained before the call."""
        cells = [weakref.ref(tensor._cell) for tensor in tensors]
        serials = [memory_serial(tensor.lazydata) for tensor in tensors]
        self.memory = list(zip(map(weakref.ref, tensors), serials, cells, strict=True))
        """The tensors that it reaches, the serials of their memory, and their cells."""
        self._versions = {t: self._version_for(t) for t in self.stand_ins}
        """For the tensors that have a stand-in: the serial of what that held."""

    def _renew_memory(self, reached: Sequence[Tensor], writes: bool) -> None:
        """Copies that the function makes are to be known from those of before the call.

        What is found below a view may be in memory of its own, so its whole stays as it was read.
        Arguments come first: what shares their memory, such as a gradient that was left in that of
        the call before, moves elsewhere, and not they.
        """
        read = {id(tensor._cell) for tensor in self.given if tensor._parent is not None}
        cells = [tensor._cell for tensor in [*self.given, *reached]]
        renew([cell for cell in cells if id(cell) not in read], writes)

    def _forget_cells(self, found: Iterable[Tensor]) -> None:
        """What shares memory with an input that was found does so with each call's own."""
        for tensor in found:
            self._cells.pop(id(tensor._cell), None)

    def owners(self) -> list[Owner]:
        """The memories of tensors that the call can reach, and of random streams, whose versions
        nobody else holds, and nobody else from before the call has held.
        """
        reached = [cell for _, _, reference in self.memory if (cell := reference()) is not None]
        owners: list[Owner] = [*dict.fromkeys(reached), *streams()]
        return [owner for owner in owners if self._was_renewed(owner) and not readers(owner)]

    def _was_renewed(self, owner: Owner) -> bool:
        """What somebody else held was not, see `renew`."""
        return present_version(owner).serial > self.last_node

    def watch(self) -> Watch:
        """What must not have changed since: which tensors collect gradients, and have none yet."""
        watch = Watch()
        tensors = self.reach.tensors()
        for tensor in tensors:
            if tensor._leaf is not None and tensor.grad is None:
                watch.add_no_gradient(tensor)
        watch.add_leaves(tensors)
        return watch

    def was_written(self, tensor: Tensor) -> bool:
        """Whether something was written to the stand-in of a tensor, which may be a view."""
        return self._version_for(tensor) != self._versions[tensor]

    def _version_for(self, tensor: Tensor) -> int:
        return present_version(self.stand_ins[tensor]._cell).serial

    # -- what a tensor of the call has to do with it ---------------------------------------------

    def kind(self, tensor: Tensor) -> Leaf | None:
        """What a tensor is, if the call has not made its value."""
        number = self.given.get(tensor)
        if number is not None:
            return number
        cell = self._cells.get(id(tensor._cell))
        if tensor in self.reach or (cell is not None and cell() is tensor._cell):
            return tensor
        return None

    def sharing(self, tensors: Iterable[Tensor]) -> Sharing:
        """Which of the tensors that the call made are in memory of others."""
        made = [tensor for tensor in tensors if self.kind(tensor) is None]
        return Sharing(self.given, made, self.arguments.var_vals.keys())

    def new_gradients(self) -> dict[int, Tensor]:
        """The gradients that arguments have got since, by the argument's number."""
        pairs = enumerate(zip(self.arguments.tensors, self._gradients, strict=False))
        found = {number: (tensor.grad, old) for number, (tensor, old) in pairs}
        return {n: new for n, (new, old) in found.items() if new is not None and new is not old}

    def retained(self, tensors: Iterable[Tensor]) -> dict[Tensor, Tensor]:
        """The gradients that tensors which the call made have kept."""
        made = [tensor for tensor in tensors if self.kind(tensor) is None]
        return {tensor: tensor.grad for tensor in made if tensor.grad is not None}

    def add_found(self, capture: Capture, seen: Set[int], replaced: Set[Any]) -> None:
        """The inputs that the function has found by itself are arguments from here on."""
        used: dict[int, Buffer] = {**capture.read, **capture.updated}
        first = len(self.arguments.tensors)
        added = self.found.add_used(used, seen, replaced, self.arguments)
        self.given.update({tensor: first + number for number, tensor in enumerate(added)})
        self._forget_cells(added)


def _newest_node() -> int:
    return LazyBuffer.empty((), dtypes.uint8, "").serial


def compute_lazy(tensors: Iterable[Tensor]) -> None:
    """Puts those in memory that are not yet, such as the weights of a model that is new.

    That is all of what a view is of, for a write goes there. A copy that is still a movement of
    somebody else's memory, or a constant of which a view was computed by itself, gets memory of its
    own: it would be there after a write, and a replay would go on to read where it was before.
    """
    cells: dict[Cell, None] = {}
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
