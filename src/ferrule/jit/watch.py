"""What must not have changed since a call was captured, so that a replay of it is right."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.jit.hooks import HooksBefore
from ferrule.jit.inputs import Arguments
from ferrule.jit.numbers import Numbers
from ferrule.jit.places import Path, Place
from ferrule.jit.reach import Owner, Reach, present_version
from ferrule.jit.readers import leave_to_readers
from ferrule.realize import realize
from ferrule.records import dataclass
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell


@final
@dataclass
class _Watched:
    """Memory in which the replay reads or writes."""

    owner: weakref.ref[Owner]
    node_serial: int
    realized: Buffer | None
    """Where the node was: all of `buffer`, or a part of it."""
    buffer: Buffer
    written: bool
    """Whether the replay writes there."""

    def problem(self) -> str | None:
        """What makes the next replay wrong; None if this does not."""
        owner = self.owner()
        if owner is None:
            return "a tensor that the function uses is gone"
        if not self._is_there(owner) and not self._is_back(owner):
            return "a tensor that the function uses is in other memory now"
        if self.written:
            if self.buffer.exports:
                return "an array shares the memory of a tensor that the function writes"
            leave_to_readers(owner)
        return None

    def _is_there(self, owner: Owner) -> bool:
        """Whether nothing was written, and what was there has not moved.

        It moves where a copy, which had shared its memory, is written to and takes that.
        """
        node = present_version(owner)
        return node.serial == self.node_serial and node.realized is self.realized

    def _is_back(self, owner: Owner) -> bool:
        """Whether what was written to since is in the same memory as before."""
        node = present_version(owner)
        realize([node])
        if node.realized is not self.buffer and node.realized is not self.realized:
            return False
        self.node_serial, self.realized = node.serial, node.realized
        return True


def _moved(place: Place) -> str:
    """Why a replay cannot find what was in a place."""
    if isinstance(place.holder, Tensor) and place.key == "grad":
        return (
            f"the gradient of a tensor of shape {place.holder.shape} was made anew outside, and "
            "the function adds to it; have it zero all gradients that it adds to"
        )
    return "something that the function uses is another object now"


@final
class Watch:
    """Everything that a replay depends on and that its signature does not tell."""

    def __init__(self) -> None:
        self._memory: list[_Watched] = []
        self._items: dict[tuple[int, Any], tuple[dict[Any, Any], Any, Any]] = {}
        """What has to be in which dict under which key; instances keep attributes in dicts."""
        self._others: dict[tuple[int, Any], tuple[Place, Any]] = {}
        self._numbers: Numbers | None = None
        self._without_gradient: list[weakref.ref[Tensor]] = []
        self._hooks = HooksBefore(())
        self._constants: list[tuple[weakref.ref[Cell], int]] = []
        self._used: frozenset[int] = frozenset()
        """The memory from outside that the replay uses, by serial number."""
        self._updated: frozenset[int] = frozenset()
        """The part of it that it writes to."""
        self._written: list[int] = []
        """The arguments that it writes to."""
        self._unshared: list[int] = []
        """The arguments that must not be in the used memory."""

    # -- outside of the arguments ------------------------------------------------------------------

    def add(self, owner: Owner, buffer: Buffer, written: bool) -> None:
        """Watches memory that is now in `buffer`."""
        node = present_version(owner)
        found = _Watched(weakref.ref(owner), node.serial, node.realized, buffer, written)
        self._memory.append(found)

    def add_path(self, path: Path) -> None:
        """Watches that all places of a path hold what they do."""
        for place, child in path:
            if isinstance(place.holder, dict):
                self._items[place.identity] = (place.holder, place.key, child)
            else:
                self._others[place.identity] = (place, child)

    def add_tensor(self, tensor: Tensor, reach: Reach) -> bool:
        """Watches that a tensor is where it was; False if it is not now."""
        for steps in reach.ways_to(tensor):
            if not all(step.get() is child for step, child in steps):
                return False
            self.add_path(steps)
        return True

    def add_constant(self, cell: Cell) -> None:
        """Watches that a tensor that is no more than a number stays that number."""
        self._constants.append((weakref.ref(cell), cell.value.node.serial))

    def add_numbers(self, numbers: Numbers) -> None:
        """Watches the numbers that the function finds by itself, and where they are."""
        self._numbers = numbers if numbers else None
        self.add_path(numbers.path)

    def add_no_gradient(self, tensor: Tensor) -> None:
        """Watches that a tensor has no gradient, to which a backward pass would add."""
        self._without_gradient.append(weakref.ref(tensor))

    def add_hooks(self, tensors: Iterable[Tensor]) -> None:
        """Watches that parameters among the tensors keep the hooks that they have."""
        self._hooks = HooksBefore(tensors)

    # -- the arguments -----------------------------------------------------------------------------

    def add_arguments(
        self, arguments: Arguments, used: Collection[int], updated: Mapping[int, Buffer]
    ) -> None:
        """Notes which memory from outside is `used`, and which of all memory is `updated`."""
        self._used = frozenset(used)
        self._updated = self._used & updated.keys()
        for number, buffer in enumerate(arguments.buffers):
            tensor = arguments.tensors[number]
            written = buffer.base.serial in updated
            if written:
                self._written.append(number)
            if written or tensor.requires_grad:
                self._unshared.append(number)

    def overlaps(self, buffers: Sequence[Buffer]) -> bool:
        """Whether an argument is in memory from outside, and a write or a gradient makes it matter.

        In the captured call it was in memory of its own. Gradients may be missing, at the end.
        """
        if not self._used:
            return False
        given = [number for number in self._unshared if number < len(buffers)]
        return any([buffers[number].base.serial in self._used for number in given]) or any(
            [buffer.base.serial in self._updated for buffer in buffers]
        )

    def writes_arguments(self) -> bool:
        """Whether the replay writes to any of its arguments."""
        return bool(self._written)

    def written(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The arguments that the replay writes to."""
        return [buffers[number] for number in self._written]

    # -- before each replay ------------------------------------------------------------------------

    def problem(self, tensors: Sequence[Tensor], buffers: Sequence[Buffer]) -> str | None:
        """What makes the next replay with these arguments wrong; None if nothing does."""
        for number in self._written:
            if buffers[number].exports:
                return "an array shares the memory of an argument that the function writes"
            leave_to_readers(tensors[number]._cell)
        if self._numbers is not None:
            changed = self._numbers.problem()
            if changed is not None:
                return changed
        for holder, key, child in self._items.values():
            if holder.get(key) is not child:
                return f"{key!r} is another object now"
        for place, child in self._others.values():
            if place.get() is not child:
                return _moved(place)
        for parameter in self._without_gradient:
            tensor = parameter()
            if tensor is not None and tensor._grad is not None:
                return "there is a gradient where there was none"
        if self._hooks.have_changed():
            return "a parameter has other hooks now"
        for reference, serial in self._constants:
            cell = reference()
            if cell is None or cell.value.node.serial != serial:
                return "a constant that the function may use has changed"
        for watched in self._memory:
            problem = watched.problem()
            if problem is not None:
                return problem
        return None
