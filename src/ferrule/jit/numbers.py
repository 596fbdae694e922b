"""Guards on the numbers, strings and arrays that a function finds without its arguments.

Replays contain their values from the capture, so a replay is only right while they stay equal.
"""

from __future__ import annotations

import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from itertools import chain
from operator import itemgetter
from typing import Any, Final, final

import numpy as np

from ferrule.jit.places import MISSING, Place, attributes
from ferrule.jit.state import State
from ferrule.jit.values import Value, form, shown

_read_attribute: Final[Any] = object.__getattribute__
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
        changed = _first_change(self._all())
        if changed is not None:
            return changed
        for reference, kind, own in self.classes:
            if not _is_same(reference(), kind, own):
                name = kind.__name__
                return f"an object of {name} has another class or other attributes, or is gone"
        return self.changed_array()

    def changed_kind(self) -> str | None:
        """The description of a tensor of another shape, dtype or device; None if there is none."""
        return _first_change(self.kinds)

    def changed_array(self) -> str | None:
        """The description of an array that has changed; None if none has."""
        for found, contents in self.arrays:
            if _contents(found) != contents:
                return "an array that the function reads has changed"
        return None


def _first_change(values: Iterable[Value]) -> str | None:
    for value in values:
        changed = value.change()
        if changed is not None:
            return changed
    return None


def _is_small(value: Any) -> bool:
    size = value.nbytes if isinstance(value, np.ndarray) else memoryview(value).nbytes
    return bool(size <= _LARGEST_ARRAY)


def _is_same(value: Any, kind: type, own: dict[str, Any] | None) -> bool:
    """True if an object still has this class, and this `__dict__` unless it is None."""
    return type(value) is kind and (own is None or attributes(value) is own)


def _contents(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    return (bytes(value),)


@final
class Snapshot:
    """What places held, what was in containers, and the classes of objects.

    Loops over tuples compare everything, as the interpreter runs these faster than a chain of
    iterators in C: an item of a dict takes 25 ns, an attribute 50, a class or a length 20. The
    whole of a list takes 15 ns for each item, by a call of C.
    """

    def __init__(self, contents: Iterable[tuple[Place, Any]], numbers: Numbers | None) -> None:
        self._items: list[tuple[Any, Any, Any]] = []
        self._absent: list[tuple[dict[Any, Any], Any]] = []
        """Dicts that lack a key, such as a module's that lacks the name of a built-in function."""
        self._attributes: list[tuple[Any, str, Any]] = []
        self._calls: list[tuple[Callable[[], Any], Any]] = []
        """Functions that give what is in a place, or a number, with what they gave."""
        self._wholes: list[Collection[Any]] = []
        self._objects: list[tuple[Any, type, dict[str, Any]]] = []
        self._references: list[tuple[Callable[[], Any], type, dict[str, Any] | None]] = []
        """The objects that take longer, or that no place keeps alive."""
        sized: dict[int, Collection[Any]] = {}
        held = list(contents)
        if numbers is not None:
            self._add_classes(numbers, held)
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
        self._inside = list(chain.from_iterable(self._wholes))
        self._has_more = any(
            [self._absent, self._calls, self._objects, self._references, self._sized]
        )

    def _add_classes(self, numbers: Numbers, held: Iterable[tuple[Place, Any]]) -> None:
        """Add the classes of objects and their `__dict__`."""
        in_places = {id(child): child for _, child in held}
        for reference, kind, own in numbers.classes:
            value = reference()
            is_usual = kind.__getattribute__ is _read_attribute
            if own is not None and is_usual and id(value) in in_places:
                self._objects.append((value, kind, own))
            else:
                self._references.append((reference, kind, own))

    def _add_numbers(
        self, numbers: Numbers, sized: dict[int, Collection[Any]]
    ) -> list[tuple[Place, Any]]:
        """Add the numbers; gives the places of those that are in one, and of tensors."""
        places: list[tuple[Place, Any]] = []
        for value in numbers.values:
            if value.container is not None:
                sized[id(value.container)] = value.container
            elif value.place is None:
                self._calls.append((value.get, value.value))
            else:
                places.append((value.place, value.value))
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
                self._calls.append((place.getter(), child))
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
            if type(place.holder) is dict:
                if id(place.holder) not in complete:
                    self._absent.append((place.holder, place.key))
            else:
                self._calls.append((place.getter(), MISSING))
        return complete

    def _add_parts(self, holder: Any, parts: Mapping[Any, Any]) -> None:
        if type(holder) in (dict, list, deque):
            self._items += [(holder, key, child) for key, child in parts.items()]
        elif isinstance(holder, dict | list | deque):  # the class may have its own `__getitem__`
            getters = [Place(holder, key).getter() for key in parts]
            self._calls += zip(getters, parts.values(), strict=True)
        else:
            self._attributes += [(holder, name, child) for name, child in parts.items()]

    def holds(self) -> bool:
        """True if everything is what it was; else some of it may still be equal."""
        try:
            for holder, key, child in self._items:
                if holder[key] is not child:
                    return False
            for holder, name, child in self._attributes:
                if getattr(holder, name) is not child:
                    return False
            return not self._has_more or self._more_holds()
        except (AttributeError, LookupError, ValueError, ReferenceError, RuntimeError):
            return False  # a place is empty now, an object is gone, or a dict was changed meanwhile

    def _more_holds(self) -> bool:
        for mapping, key in self._absent:
            if key in mapping:
                return False
        for get, child in self._calls:
            if get() is not child:
                return False
        for value, kind, own in self._objects:
            if type(value) is not kind or value.__dict__ is not own:
                return False
        for get, kind, space in self._references:
            if not _is_same(get(), kind, space):
                return False
        # Containers have as many items as before, and those that are known whole the same ones.
        return list(map(len, self._sized)) == self._lengths and all(
            map(operator.is_, chain.from_iterable(self._wholes), self._inside)
        )
