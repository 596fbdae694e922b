"""Guards: conditions that must still hold for a replay of a captured call to be right."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, final

from ferrule.base.changes import changes
from ferrule.engine.realize import realize
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes
from ferrule.jit.hooks import HooksBefore
from ferrule.jit.inputs import Arguments
from ferrule.jit.numbers import Numbers, Snapshot
from ferrule.jit.owners import Owner, present_version
from ferrule.jit.places import Path, Place
from ferrule.jit.readers import leave_to_readers
from ferrule.jit.state import State
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef


@final
class _Watched:
    """A guard on memory that the replay reads or writes."""

    __slots__ = ("buffer", "memory", "owner", "realized", "written")

    def __init__(self, owner: Owner, buffer: Buffer, written: bool) -> None:
        self.owner = weakref.ref(owner, _note_death)
        self.realized = present_version(owner).realized
        """The buffer of the node: all of `buffer`, or a slice of it."""
        self.buffer = buffer
        self.memory = buffer.base
        self.written = written
        """True if the replay writes there."""

    def problem(self) -> str | None:
        """The reason why a replay would be wrong, or None; copies the contents for readers."""
        owner = self.owner()
        if owner is None:
            return "a tensor that the function uses is gone"
        # Without a write to a tensor it moves too: when a copy-on-write copy of it is written to.
        if present_version(owner).realized is not self.realized and not self._is_back(owner):
            return "a tensor that the function uses is in other memory now"
        if self.written:
            if self.memory._exports:
                return "an array shares the memory of a tensor that the function writes"
            leave_to_readers(owner)
        return None

    def _is_back(self, owner: Owner) -> bool:
        """True if a tensor that was written to since is still in the same memory."""
        realize([present_version(owner)])
        realized = present_version(owner).realized
        if realized is not self.buffer and realized is not self.realized:
            return False
        self.realized = realized
        return True


@final
class _Unchanged:
    """A fast check that no guarded tensor has changed at all.

    It takes a few calls of C for all tensors; `_Watched.problem`, one by one, takes three times as
    long. Where a tensor is, is looked at only if some tensor has changed since (`Changes`).
    """

    def __init__(self, watched: Sequence[_Watched]) -> None:
        written = [one for one in watched if one.written]
        self._owners = [one.owner for one in watched]
        self._written = [one.owner for one in written]
        self._memories = [one.memory for one in written]
        self._realized = [one.realized for one in watched]

    def holds(self, has_changes: bool) -> bool:
        """True if all memory is where it was, and the written part has no exports or readers."""
        try:
            return (not has_changes or self._is_there()) and self._is_alone()
        except AttributeError:
            return False  # a tensor is gone

    def _is_there(self) -> bool:
        cells = map(operator.call, self._owners)
        return all(map(operator.is_, map(_realized_of, cells), self._realized))

    def _is_alone(self) -> bool:
        cells = map(operator.call, self._written)
        return not any(map(_taken_of, cells)) and not any(map(_exports_of, self._memories))


_realized_of = operator.attrgetter("value.node.realized")
_exports_of = operator.attrgetter("_exports")
_taken_of = operator.attrgetter("taken")


@final
class _Memories:
    """The guards on all memory that the replay reads or writes."""

    def __init__(self) -> None:
        self._tensors: list[_Watched] = []
        self._others: list[_Watched] = []
        """The guards on memory whose owner is a storage without a cell."""
        self._unchanged: _Unchanged | None = None
        self.needs_a_look = False
        """True if a look is needed though no tensor has changed: a replay writes to some."""

    def add(self, watched: _Watched) -> None:
        """Adds a guard."""
        belongs = type(watched.owner()) is StorageRef
        (self._tensors if belongs else self._others).append(watched)
        self.needs_a_look |= watched.written or not belongs
        self._unchanged = None

    def problem(self, has_changes: bool) -> str | None:
        """The reason why a replay would be wrong; None if all guards hold."""
        if self._unchanged is None or not self._unchanged.holds(has_changes):
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
    """The reason to give when a place has another content than before."""
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
    """The guards on places, each of which must still hold the same object, and on numbers."""

    def __init__(self) -> None:
        self.numbers: Numbers | None = None
        self._found: dict[tuple[int, Any], tuple[Place, Any]] = {}
        self.snapshot: Snapshot | None = None
        """What was found when all places held their content; None if they were never looked at."""

    def add(self, place: Place, child: Any) -> None:
        """Adds a place and its content."""
        if not place.fixed:
            self._found[place.identity] = place, child

    def __contains__(self, place: Place) -> bool:
        return place.identity in self._found

    def problem_of_kinds(self) -> str | None:
        """The description of a change of tensors whose places hold them; None if there is none."""
        return None if self.numbers is None else self.numbers.changed_kind()

    def problem(self) -> str | None:
        """The description of a change; None if there is none."""
        problem = None if self.numbers is None else self.numbers.problem()
        if problem is not None:
            return problem
        for place, child in self._found.values():
            if place.get() is not child:
                return _moved(place)
        self.snapshot = Snapshot(self._found.values(), self.numbers)
        return None


@final
class _Leaves:
    """The guard on the set of leaves: the same tensors collect gradients as in the capture."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        floats = [tensor for tensor in tensors if dtypes.is_float(tensor.dtype)]
        self._tensors = list(map(weakref.ref, floats))
        self._collect_none = [tensor._leaf is None for tensor in floats]

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def have_changed(self) -> bool:
        """True if a tensor became a leaf, or is no longer one."""
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
    """The guards of a replay: everything that it depends on besides its signature."""

    def __init__(self) -> None:
        self._memory = _Memories()
        self._contents = _Contents()
        self._changes = -1
        """The number of changes of tensors when all guards held last."""
        self._gradients: list[tuple[weakref.ref[Tensor], bool]] = []
        """The tensors in reach, each with True if it has a gradient."""
        self._hooks = HooksBefore(())
        self._leaves = _Leaves(())
        self._handles: list[tuple[weakref.ref[Tensor], weakref.ref[StorageRef]]] = []
        """Tensors, and the cell that each of them must have."""
        self._constants: list[tuple[weakref.ref[StorageRef], int]] = []
        self._used: frozenset[int] = frozenset()
        """The memory from outside that the replay uses, by serial number."""
        self._updated: frozenset[int] = frozenset()
        """The memory from outside that the replay writes to."""
        self._written: list[int] = []
        """The numbers of the arguments that the replay writes to."""
        self._unshared: list[int] = []
        """The numbers of the arguments that must not be in the used memory."""
        self._outside = False
        """True if there are guards on anything besides the arguments."""
        self._is_calm = True
        """True if what places hold is all there is to look at while no tensor changes."""

    # -- outside of the arguments ------------------------------------------------------------------

    def add(self, owner: Owner, buffer: Buffer, written: bool) -> None:
        """Adds a guard on memory that is now in `buffer`."""
        self._memory.add(_Watched(owner, buffer, written))
        self._is_calm &= not self._memory.needs_a_look
        self._outside = True

    def add_path(self, path: Path) -> None:
        """Adds guards on all places of a path: they keep their content."""
        for place, child in path:
            self._contents.add(place, child)
            self._outside = True

    def watches(self, place: Place) -> bool:
        """True if there is a guard on a place."""
        return place in self._contents

    def add_tensor(self, tensor: Tensor, state: State) -> bool:
        """Adds guards on all places of a tensor; False if one of them has changed already."""
        if state.has_moved(tensor):
            return False
        self.add_path(state.places_of(tensor))
        self._handles.append((weakref.ref(tensor), weakref.ref(tensor._cell)))
        self._outside = True
        return True

    def add_constant(self, cell: StorageRef) -> None:
        """Adds a guard on a constant: its value stays the same."""
        self._constants.append((weakref.ref(cell), cell.value.node.serial))
        self._outside = True

    def add_numbers(self, numbers: Numbers) -> None:
        """Adds guards on the numbers that the function finds by itself, and on their places."""
        if numbers:
            self._contents.numbers = numbers
            self._is_calm &= not numbers.arrays
            self._outside = True
        self.add_path(numbers.path)

    def add_leaves(self, tensors: Sequence[Tensor]) -> None:
        """Adds guards on the tensors: the same ones stay leaves, and have a gradient; and they keep
        their hooks.
        """
        self._gradients = [(weakref.ref(tensor), tensor._grad is not None) for tensor in tensors]
        self._leaves = _Leaves(tensors)
        self._hooks = HooksBefore(tensors)
        self._outside = self._outside or bool(tensors)

    # -- the arguments -----------------------------------------------------------------------------

    def add_arguments(
        self, arguments: Arguments, used: Collection[int], updated: Mapping[int, Buffer]
    ) -> None:
        """Notes the memory from outside that is `used`, and all memory that is `updated`."""
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
        """True if an argument is in memory from outside, and a write or a gradient makes it matter.

        In the captured call it was in memory of its own. The gradients at the end of `buffers` may
        be missing.
        """
        if not self._used:
            return False
        given = [number for number in self._unshared if number < len(buffers)]
        return any([buffers[number].base.serial in self._used for number in given]) or any(
            [buffer.base.serial in self._updated for buffer in buffers]
        )

    def writes_arguments(self) -> bool:
        """True if the replay writes to any of its arguments."""
        return bool(self._written)

    def written(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The arguments that the replay writes to."""
        return [buffers[number] for number in self._written]

    # -- before each replay ------------------------------------------------------------------------

    def problem(self, tensors: Sequence[Tensor], buffers: Sequence[Buffer]) -> str | None:
        """The reason why a replay with these arguments would be wrong; None if all guards hold."""
        if self._written:
            for number in self._written:
                if buffers[number].exports:
                    return "an array shares the memory of an argument that the function writes"
                leave_to_readers(tensors[number]._cell)
        if not self._outside:
            return None
        count = changes.count
        has_changes = count != self._changes
        snapshot = self._contents.snapshot
        are_there = snapshot is not None and snapshot.holds()
        if are_there and self._is_calm and not has_changes:
            return None
        return self._problem_outside(count, has_changes, are_there)

    def _problem_outside(self, count: int, has_changes: bool, are_there: bool) -> str | None:
        problem = None
        if not are_there:
            problem = self._contents.problem()
        elif has_changes:  # which a training step makes in each call: it sets gradients
            problem = self._contents.problem_of_kinds()
        if has_changes and problem is None:
            problem = self._problem_of_tensors()
        if problem is None and (has_changes or self._memory.needs_a_look):
            problem = self._memory.problem(has_changes)
        numbers = self._contents.numbers
        if problem is None and numbers is not None and numbers.arrays:
            problem = numbers.changed_array()
        if problem is None:
            self._changes = count
        return problem

    def _problem_of_tensors(self) -> str | None:
        """The reason that lies in gradients, leaves, hooks or constants; None if there is none."""
        for reference, had_gradient in self._gradients:
            tensor = reference()
            if tensor is not None and (tensor._grad is not None) is not had_gradient:
                now = "no gradient where there was one" if had_gradient else "a gradient, a new one"
                return f"a tensor of shape {tensor.shape} has {now}"
        if self._leaves.have_changed():
            return "other tensors require a gradient now"
        if self._hooks.have_changed():
            return "a parameter has other hooks now"
        for tensor_of_place, cell in self._handles:
            handle = tensor_of_place()
            if handle is not None and handle._cell is not cell():
                return "a tensor that the function uses was replaced"
        for cell_of_constant, serial in self._constants:
            found = cell_of_constant()
            if found is None or found.value.node.serial != serial:
                return "a constant that the function may use has changed"
        return None


def _note_death(_: object) -> None:
    """A tensor is gone that some replay uses."""
    changes.count += 1
