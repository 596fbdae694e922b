"""Values: numbers, strings and arrays that replays contain, and how these are compared."""

from __future__ import annotations

import functools
import operator
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

    __slots__ = ("container", "get", "name", "place", "value")

    def __init__(
        self,
        name: str,
        get: Callable[[], Any],
        *,
        place: Place | None = None,
        container: Collection[Any] | None = None,
    ) -> None:
        self.name = name
        self.get = get
        self.value = get()
        self.place = place
        """The place that it is in, or that the tensor is in whose kind it is."""
        self.container = container
        """The container of which it is a copy, or the length."""

    @classmethod
    def at(cls, place: Place) -> Value:
        """What is in a place, or `MISSING`."""
        return cls(str(place.key), place.get, place=place)

    @classmethod
    def of(cls, name: str, function: Callable[[Any], Any], container: Collection[Any]) -> Value:
        """A copy of a container, or its length."""
        return cls(name, functools.partial(function, container), container=container)

    def read(self) -> Any:
        """The present value; `MISSING` if the object is gone that has it."""
        try:
            return self.get()
        except ReferenceError:
            return MISSING

    def change(self) -> str | None:
        """The description of a change, or None. An equal new object replaces the old one."""
        now, then = self.read(), self.value
        if now is not then:
            if not are_equal(now, then):
                return f"{self.name} was {then!r:.40}, and is {now!r:.40}"
            self.value = now
        return None


def are_equal(a: Any, b: Any) -> bool:
    """True if two values have the same type and the same bits."""
    if type(a) is tuple and type(b) is tuple:  # perhaps a copy of a long list
        return len(a) == len(b) and (all(map(operator.is_, a, b)) or form(a) == form(b))
    return bool(form(a) == form(b))
