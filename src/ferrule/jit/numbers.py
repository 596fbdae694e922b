"""Guards on the numbers, strings and arrays that a function finds without its arguments.

Replays contain their values from the capture, so a replay is only right while they stay equal.
"""

from __future__ import annotations

import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from itertools import chain
from operator import itemgetter
from typing import Any, Final, final

import numpy as np

from ferrule.jit.places import MISSING, Place
from ferrule.jit.state import State
from ferrule.jit.values import Value, form, shown

_LARGEST_ARRAY: Final = 1 << 20  # bytes: larger arrays take too long to compare before each replay


@final
class Numbers:
    """The guards on the numbers, strings and arrays of a `State`, and on their places."""

    def __init__(self, state: State) -> None:
        self.path = state.path()
        """The objects on the way to the numbers, with their places: they must stay there too."""
        self.values = list(state.values)
        self.copies = state.copies
        self.kinds: list[Value] = []
        """The shapes, dtypes and devices of tensors."""
        self.classes = state.classes
        self._possible = state.kinds
        self.arrays = [(found, _contents(found)) for found in state.arrays if _is_small(found)]
        self.has_large_arrays = len(self.arrays) < len(state.arrays)
        """True if there are arrays too large to be compared before each replay."""

    def add_kinds(self, is_watched: Callable[[Place], bool]) -> None:
        """Adds the shapes, dtypes and devices of tensors: code may read these and not the contents.

        Tensors in watched places, which must stay there or are inputs, are left out.
        """
        self.kinds = [
            kind for kind in self._possible if kind.place is None or not is_watched(kind.place)
        ]

    def __bool__(self) -> bool:
        return any([self.values, self.copies, self.kinds, self.arrays, self.classes])

    def _all(self) -> tuple[Value, ...]:
        return (*self.values, *self.kinds, *self.copies)

    def key(self) -> tuple[Any, ...]:
        """The present values of all the numbers, for the signature."""
        return tuple([form(value.read()) for value in self._all()])

    def shown(self, way: Callable[[Any], str | None]) -> list[str]:
        """The numbers that have a name of their own, as `name = value`; see `changes`.

        Those with the shortest names come first.
        """
        every = [v for v in self.values if v.name == v.words and not v.name.startswith("__")]
        found = [(value.named_by(way), value.read()) for value in every]
        named = sorted([(name.count("."), name, value) for name, value in found], key=itemgetter(0))
        return [f"{name} = {shown(value)}" for _, name, value in named if value is not MISSING]

    def changes(self, way: Callable[[Any], str | None]) -> list[str]:
        """The changes since the capture; `way` has the expression for a place or an object."""
        found = [change for value in self._all() if (change := value.change_by(way)) is not None]
        changed = [array for array, contents in self.arrays if _contents(array) != contents]
        return found + [f"{way(array) or 'an array'} has other contents" for array in changed]

    def problem(self) -> str | None:
        """The description of a number that has changed; None if none has."""
        for value in self._all():
            changed = value.change()
            if changed is not None:
                return changed
        for reference, kind in self.classes:
            if type(reference()) is not kind:
                return f"an object of {kind.__name__} has another class, or is gone"
        return self.changed_array()

    def changed_array(self) -> str | None:
        """The description of an array that has changed; None if none has."""
        for found, contents in self.arrays:
            if _contents(found) != contents:
                return "an array that the function reads has changed"
        return None


def _is_small(value: Any) -> bool:
    size = value.nbytes if isinstance(value, np.ndarray) else memoryview(value).nbytes
    return bool(size <= _LARGEST_ARRAY)


def _contents(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    return (bytes(value),)


@final
class Snapshot:
    """What places held, what was in containers, and the classes of objects.

    A few calls of C compare everything: some 25 ns for each thing where the whole of a list is
    compared, and 50 ns for a part of it, or for an attribute.
    """

    def __init__(self, contents: Iterable[tuple[Place, Any]], numbers: Numbers | None) -> None:
        self._gets: list[Callable[[], Any]] = []
        self._got: list[Any] = []
        self._readers: list[Callable[[Any], tuple[Any, ...]]] = []
        self._read: list[Any] = []
        self._in_parts: list[Any] = []
        self._wholes: list[Collection[Any]] = []
        self._objects: list[Callable[[], Any]] = []
        self._classes: list[type] = []
        sized: dict[int, Collection[Any]] = {}
        held = list(contents)
        if numbers is not None:
            held += self._add_numbers(numbers, sized)
        complete = self._add_contents(held, sized)
        for copy in () if numbers is None else numbers.copies:
            # The attributes of an object, in any order, are those that its dict is asked for.
            is_known = isinstance(copy.value, frozenset) and id(copy.container) in complete
            if copy.container is not None and not is_known:
                self._wholes.append(copy.container)
        sized |= {id(whole): whole for whole in self._wholes}
        self._sized = list(sized.values())
        self._lengths = list(map(len, self._sized))
        self._inside = list(_flat(self._wholes))

    def _add_numbers(
        self, numbers: Numbers, sized: dict[int, Collection[Any]]
    ) -> list[tuple[Place, Any]]:
        """Add the numbers; gives the places of those that are in one, and of tensors."""
        places: list[tuple[Place, Any]] = []
        for value in numbers.values:
            if value.container is not None:
                sized[id(value.container)] = value.container
            elif value.place is None:
                self._add(value.get, value.value)
            else:
                places.append((value.place, value.value))
        self._objects += [reference for reference, _ in numbers.classes]
        self._classes += [kind for _, kind in numbers.classes]
        kinds = [value.place for value in numbers.kinds if value.place is not None]
        return places + [(place, place.get()) for place in kinds]

    def _add_contents(
        self, contents: Iterable[tuple[Place, Any]], sized: dict[int, Collection[Any]]
    ) -> set[int]:
        """Add what places hold; gives the dicts of which nothing else is missing, by `id()`."""
        holders: dict[int, tuple[Any, dict[Any, Any]]] = {}
        missing: list[Place] = []
        for place, child in contents:
            if child is MISSING:
                missing.append(place)
            elif place.raw or isinstance(place.holder, types.CellType | ContextVar):
                self._add(place.getter(), child)
            else:
                holders.setdefault(id(place.holder), (place.holder, {}))[1][place.key] = child
        complete = set()
        for number, (holder, parts) in holders.items():
            is_whole = isinstance(holder, dict | list | deque) and len(parts) == len(holder)
            if is_whole and not isinstance(holder, dict):
                self._wholes.append(holder)
                continue
            if is_whole:
                sized[number] = holder
                complete.add(number)
            self._add_parts(holder, parts)
        for place in missing:
            if id(place.holder) not in complete:
                self._add(place.getter(), MISSING)
        return complete

    def _add(self, get: Callable[[], Any], value: Any) -> None:
        self._gets.append(get)
        self._got.append(value)

    def _add_parts(self, holder: Any, parts: dict[Any, Any]) -> None:
        if len(parts) == 1:
            ((key, child),) = parts.items()
            self._add(Place(holder, key).getter(), child)
            return
        is_container = isinstance(holder, dict | list | deque)
        reader: Any = operator.itemgetter if is_container else operator.attrgetter
        self._readers.append(reader(*parts))
        self._read.append(holder)
        self._in_parts += parts.values()

    def holds(self) -> bool:
        """True if everything is what it was; else some of it may still be equal."""
        try:
            return not (
                (self._got and not self._are(map(_call, self._gets), self._got))
                or (self._in_parts and not self._are(self._present_parts(), self._in_parts))
                or (self._sized and list(map(len, self._sized)) != self._lengths)
                or (self._inside and not self._are(_flat(self._wholes), self._inside))
                or (self._classes and not self._are(self._present_classes(), self._classes))
            )
        except (AttributeError, LookupError, ValueError, ReferenceError, RuntimeError):
            return False  # a place is empty now, an object is gone, or a dict was changed meanwhile

    def _present_parts(self) -> Iterable[Any]:
        return _flat(map(_call, self._readers, self._read))

    def _present_classes(self) -> Iterable[Any]:
        return map(type, map(_call, self._objects))

    @staticmethod
    def _are(present: Iterable[Any], known: Iterable[Any]) -> bool:
        return all(map(operator.is_, present, known))


_call = operator.call
_flat = chain.from_iterable
