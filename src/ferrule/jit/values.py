"""Values: numbers, strings and arrays that replays contain, and how these are compared."""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, final

import numpy as np

from ferrule.ir.dtype import exact
from ferrule.jit.places import MISSING, PLAIN, Place


def form(value: Any) -> Any:
    """A key that is equal for values of the same type with the same bits, such as two NaNs.

    Objects other than numbers and strings are known by their `id()`.
    """
    if type(value) is tuple:
        return tuple([form(part) for part in value])
    if isinstance(value, tuple):
        return type(value), tuple([form(part) for part in value])
    if isinstance(value, frozenset):
        return frozenset([form(part) for part in value])
    if isinstance(value, float):
        return type(value), exact(value)
    if isinstance(value, complex):
        return type(value), exact(value.real), exact(value.imag)
    if isinstance(value, np.generic):
        return type(value), value.dtype.str, value.tobytes()
    if isinstance(value, slice | range):
        return type(value), form((value.start, value.stop, value.step))
    return type(value), value if isinstance(value, PLAIN) else id(value)


@final
class Value:
    """A number, or a copy of a container: the way to read it, and what it was last."""

    __slots__ = ("container", "get", "name", "of", "place", "value")

    def __init__(
        self,
        name: str,
        get: Callable[[], Any],
        *,
        place: Place | None = None,
        container: Collection[Any] | None = None,
        of: Any = None,
    ) -> None:
        self.name = name
        self.get = get
        self.value = get()
        self.place = place
        """The place that it is in, or that the tensor is in whose kind it is."""
        self.container = container
        """The container of which it is a copy, or the length."""
        self.of = of if of is not None else container if place is None else place
        """The place, the container, or the dict whose values the container has, for a message."""

    @classmethod
    def at(cls, place: Place) -> Value:
        """What is in a place, or `MISSING`."""
        return cls(str(place.key), place.get, place=place)

    @classmethod
    def from_container(
        cls,
        name: str,
        function: Callable[[Any], Any],
        container: Collection[Any],
        of: Any = None,
    ) -> Value:
        """A copy of a container, or its length."""
        return cls(name, functools.partial(function, container), container=container, of=of)

    def read(self) -> Any:
        """The present value; `MISSING` if the object is gone that has it."""
        try:
            return self.get()
        except ReferenceError:
            return MISSING

    @property
    def words(self) -> str:
        """What `name` calls the place or the container."""
        of = self.of
        return str(of.key) if isinstance(of, Place) else f"a {type(of).__name__}"

    def named_by(self, way: Callable[[Any], str | None]) -> str:
        """The name, with the expression that `way` has for the place or the container."""
        found = None if self.of is None else way(self.of)
        return self.name if found is None else self.name.replace(self.words, found)

    def change_by(self, way: Callable[[Any], str | None]) -> str | None:
        """The change since the capture, as `name old -> new`; None if there is none."""
        now, then, of = self.read(), self.value, self.of
        if now is then or are_equal(now, then):
            return None
        name = self.named_by(way)
        is_copy = self.name == self.words and isinstance(of, list | deque | dict)
        if not is_copy or len(then) != len(now):
            return f"{name} {shown(then)} -> {shown(now)}"
        keys = of if isinstance(of, dict) else range(len(now))
        items = [
            f"{name}[{key!r}] {shown(old)} -> {shown(new)}"
            for key, old, new in zip(keys, then, now, strict=True)
            if not are_equal(old, new)
        ]
        return ", ".join(items)

    def change(self) -> str | None:
        """The description of a change, or None. An equal new object replaces the old one."""
        now, then = self.read(), self.value
        if now is not then:
            if not are_equal(now, then):
                return f"{self.name} was {then!r:.40}, and is {now!r:.40}"
            self.value = now
        return None


def shown(value: Any) -> str:
    """A value as text, cut off if it is long."""
    return "nothing" if value is MISSING else f"{value!r:.40}"


def are_equal(a: Any, b: Any) -> bool:
    """True if two values have the same type and the same bits."""
    if type(a) is tuple and type(b) is tuple:  # perhaps a copy of a long list
        return len(a) == len(b) and (all(map(operator.is_, a, b)) or form(a) == form(b))
    return bool(form(a) == form(b))
