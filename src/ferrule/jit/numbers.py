"""Guards on the numbers, strings and arrays that a function finds without its arguments.

Replays contain their values from the capture, so a replay is only right while they stay equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, final

import numpy as np

from ferrule.jit.places import Place
from ferrule.jit.state import State
from ferrule.jit.values import form

_LARGEST_ARRAY: Final = 1 << 20  # bytes: larger arrays take too long to compare before each replay


@final
class Numbers:
    """The guards on the numbers, strings and arrays of a `State`, and on their places."""

    def __init__(self, state: State) -> None:
        self.path = state.path()
        """The objects on the way to the numbers, with their places: they must stay there too."""
        self._numbers = list(state.values)
        self._copies = state.copies
        self._kinds = state.kinds
        self._arrays = [(found, _contents(found)) for found in state.arrays if _is_small(found)]
        self.has_large_arrays = len(self._arrays) < len(state.arrays)
        """True if there are arrays too large to be compared before each replay."""
        self._gets = [number.get for number in self._numbers]
        self._containers = state.copied
        self._note()

    def add_kinds(self, is_watched: Callable[[Place], bool]) -> None:
        """Adds the shapes, dtypes and devices of tensors: code may read these and not the contents.

        Tensors in watched places, which must stay there or are inputs, are left out.
        """
        for place, numbers in self._kinds:
            if not is_watched(place):
                self._numbers += numbers
        self._gets = [number.get for number in self._numbers]
        self._note()

    def _note(self) -> None:
        """Notes the present objects: as long as they are the same, no value is compared."""
        self._values = [number.value for number in self._numbers]
        self._lengths = list(map(len, self._containers))
        self._contents = list(chain.from_iterable(self._containers))

    def _are_the_same(self) -> bool:
        contents = chain.from_iterable(self._containers)
        try:
            same = all(map(operator.is_, map(operator.call, self._gets), self._values))
        except ReferenceError:  # an object that only weak references led to is gone
            same = False
        return (
            same
            and list(map(len, self._containers)) == self._lengths
            and all(map(operator.is_, contents, self._contents))
        )

    def __bool__(self) -> bool:
        return bool(self._numbers or self._copies or self._arrays)

    def key(self) -> tuple[Any, ...]:
        """The present values of all the numbers, for the signature."""
        return tuple([form(number.read()) for number in (*self._numbers, *self._copies)])

    def problem(self) -> str | None:
        """The description of a number or an array that has changed; None if none has."""
        if not self._are_the_same():
            for number in (*self._numbers, *self._copies):
                changed = number.change()
                if changed is not None:
                    return changed
            self._note()
        for found, contents in self._arrays:
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
