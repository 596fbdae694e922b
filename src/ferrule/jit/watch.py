"""What must not have changed since a call was captured, so that a replay of it is right."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.dtype import dtypes
from ferrule.jit.hooks import HooksBefore
from ferrule.jit.inputs import Arguments
from ferrule.jit.numbers import Numbers
from ferrule.jit.places import Path, Place
from ferrule.jit.reach import Owner, Reach, present_version
from ferrule.jit.readers import leave_to_readers, readers, references, without_readers
from ferrule.lazy import LazyBuffer
from ferrule.realize import realize
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell


@final
class _Watched:
    """Memory in which the replay reads or writes."""

    __slots__ = ("buffer", "memory", "node_serial", "owner", "realized", "written")

    def __init__(self, owner: Owner, buffer: Buffer, written: bool) -> None:
        node = present_version(owner)
        self.owner = weakref.ref(owner)
        self.node_serial = node.serial
        self.realized = node.realized
        """Where the node was: all of `buffer`, or a part of it."""
        self.buffer = buffer
        self.memory = buffer.base
        self.written = written
        """Whether the replay writes there."""

    def problem(self) -> str | None:
        """What makes the next replay wrong; None if this does not."""
        owner = self.owner()
        if owner is None:
            return "a tensor that the function uses is gone"
        node = present_version(owner)
        # Memory that was not written to moves, too: when a copy that had shared it is written to.
        is_there = node.serial == self.node_serial and node.realized is self.realized
        if not is_there and not self._is_back(node):
            return "a tensor that the function uses is in other memory now"
        del node  # whoever holds it is a reader
        if self.written:
            if self.memory._exports:
                return "an array shares the memory of a tensor that the function writes"
            if readers(owner):
                leave_to_readers(owner)
        return None

    def _is_back(self, node: LazyBuffer) -> bool:
        """Whether what was written to since is in the same memory as before."""
        realize([node])
        if node.realized is not self.buffer and node.realized is not self.realized:
            return False
        self.node_serial, self.realized = node.serial, node.realized
        return True


@final
class _Unchanged:
    """The memory of tensors to which nothing has happened: a few calls of C look at all of it,
    where `_Watched.problem` takes three times as long, one by one.
    """

    def __init__(self, watched: Sequence[_Watched]) -> None:
        written = [one for one in watched if one.written]
        self._written = len(written)
        self._owners = [one.owner for one in written]
        self._owners += [one.owner for one in watched if not one.written]
        cells: list[Any] = list(map(operator.call, self._owners))
        self._serials = list(map(_serial_of, cells))
        self._realized = list(map(_realized_of, cells))
        self._memories = [one.memory for one in written]
        self._references = without_readers(cells[: self._written])

    def holds(self) -> bool:
        """Whether all is where it was, nothing that is written is shared or read."""
        cells: list[Any] = list(map(operator.call, self._owners))
        try:
            if list(map(_serial_of, cells)) != self._serials:
                return False
            if not all(map(operator.is_, map(_realized_of, cells), self._realized)):
                return False
        except AttributeError:
            return False  # a tensor is gone
        del cells[self._written :]
        if any(map(_exports_of, self._memories)) or any(map(_caches_of, cells)):
            return False
        return references(cells) == self._references


_serial_of = operator.attrgetter("value.node.serial")
_realized_of = operator.attrgetter("value.node.realized")
_exports_of = operator.attrgetter("_exports")
_caches_of = operator.attrgetter("caches")


@final
class _Memories:
    """All memory in which the replay reads or writes."""

    def __init__(self) -> None:
        self._tensors: list[_Watched] = []
        self._others: list[_Watched] = []
        """What no tensor is known to be in."""
        self._unchanged: _Unchanged | None = None

    def add(self, watched: _Watched) -> None:
        """Watches some memory, too."""
        belongs = type(watched.owner()) is Cell
        (self._tensors if belongs else self._others).append(watched)
        self._unchanged = None

    def problem(self) -> str | None:
        """What makes the next replay wrong; None if this does not."""
        if self._unchanged is None or not self._unchanged.holds():
            self._unchanged = None
            for watched in self._tensors:
                problem = watched.problem()
                if problem is not None:
                    return problem
            self._unchanged = _Unchanged(self._tensors)
        for watched in self._others:
            problem = watched.problem()
            if problem is not None:
                return problem
        return None


def _moved(place: Place) -> str:
    """Why a replay cannot find what was in a place."""
    if isinstance(place.holder, dict):
        return f"{place.key!r} is another object now"
    if isinstance(place.holder, Tensor) and place.key == "grad":
        return (
            f"the gradient of a tensor of shape {place.holder.shape} was made anew outside, and "
            "the function adds to it; have it zero all gradients that it adds to"
        )
    return "something that the function uses is another object now"


@final
class _Contents:
    """What has to be in which places."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, Any], tuple[Place, Any]] = {}
        self._gets: list[Callable[[], Any]] | None = None
        self._children: list[Any] = []

    def add(self, place: Place, child: Any) -> None:
        """Adds a place, and what is there."""
        self._found[place.identity] = place, child
        self._gets = None

    def __contains__(self, place: Place) -> bool:
        return place.identity in self._found

    def problem(self) -> str | None:
        """Where something else is now; None if nothing is. All are looked at by one call of C."""
        if self._gets is None:
            self._gets = [place.getter() for place, _ in self._found.values()]
            self._children = [child for _, child in self._found.values()]
        try:
            same = all(map(operator.is_, map(operator.call, self._gets), self._children))
        except (IndexError, ValueError):
            same = False  # nothing is there now
        if same:
            return None
        for place, child in self._found.values():
            if place.get() is not child:
                return _moved(place)
        return None


@final
class _Leaves:
    """Which tensors collect gradients, as they did in the call captured."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        floats = [tensor for tensor in tensors if dtypes.is_float(tensor.dtype)]
        self._tensors = list(map(weakref.ref, floats))
        self._collect_none = [tensor._leaf is None for tensor in floats]

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def have_changed(self) -> bool:
        """Whether one collects a gradient now and did not, or the other way round."""
        try:
            leaves = map(_leaf_of, map(operator.call, self._tensors))
            return list(map(operator.is_, leaves, repeat(None))) != self._collect_none
        except AttributeError:  # some are gone
            pairs = [*zip(self._tensors, self._collect_none, strict=True)]
            pairs = [(tensor, collects) for tensor, collects in pairs if tensor() is not None]
            self._tensors = [tensor for tensor, _ in pairs]
            self._collect_none = [collects for _, collects in pairs]
            return self.have_changed()


_leaf_of = operator.attrgetter("_leaf")


@final
class Watch:
    """Everything that a replay depends on and that its signature does not tell."""

    def __init__(self) -> None:
        self._memory = _Memories()
        self._contents = _Contents()
        self._numbers: Numbers | None = None
        self._without_gradient: list[weakref.ref[Tensor]] = []
        self._hooks = HooksBefore(())
        self._leaves = _Leaves(())
        self._constants: list[tuple[weakref.ref[Cell], int]] = []
        self._used: frozenset[int] = frozenset()
        """The memory from outside that the replay uses, by serial number."""
        self._updated: frozenset[int] = frozenset()
        """The part of it that it writes to."""
        self._written: list[int] = []
        """The arguments that it writes to."""
        self._unshared: list[int] = []
        """The arguments that must not be in the used memory."""
        self._outside = False
        """Whether there is anything outside of the arguments."""

    # -- outside of the arguments ------------------------------------------------------------------

    def add(self, owner: Owner, buffer: Buffer, written: bool) -> None:
        """Watches memory that is now in `buffer`."""
        self._memory.add(_Watched(owner, buffer, written))
        self._outside = True

    def add_path(self, path: Path) -> None:
        """Watches that all places of a path hold what they do."""
        for place, child in path:
            self._contents.add(place, child)
            self._outside = True

    def watches(self, place: Place) -> bool:
        """Whether what is in a place must stay there."""
        return place in self._contents

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
        self._outside = True

    def add_numbers(self, numbers: Numbers) -> None:
        """Watches the numbers that the function finds by itself, and where they are."""
        if numbers:
            self._numbers = numbers
            self._outside = True
        self.add_path(numbers.path)

    def add_no_gradient(self, tensor: Tensor) -> None:
        """Watches that a tensor has no gradient, to which a backward pass would add."""
        self._without_gradient.append(weakref.ref(tensor))
        self._outside = True

    def add_leaves(self, tensors: Sequence[Tensor]) -> None:
        """Watches which of the tensors collect gradients, and that they keep their hooks."""
        self._leaves = _Leaves(tensors)
        self._hooks = HooksBefore(tensors)
        self._outside = self._outside or bool(self._leaves)

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
        return self._problem_outside() if self._outside else None

    def _problem_outside(self) -> str | None:
        if self._numbers is not None:
            changed = self._numbers.problem()
            if changed is not None:
                return changed
        moved = self._contents.problem()
        if moved is not None:
            return moved
        for parameter in self._without_gradient:
            tensor = parameter()
            if tensor is not None and tensor._grad is not None:
                return "there is a gradient where there was none"
        if self._leaves.have_changed():
            return "other tensors require a gradient now"
        if self._hooks.have_changed():
            return "a parameter has other hooks now"
        for reference, serial in self._constants:
            cell = reference()
            if cell is None or cell.value.node.serial != serial:
                return "a constant that the function may use has changed"
        return self._memory.problem()
