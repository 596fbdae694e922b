"""Functions that are called plainly and captured, and must give the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ferrule.base.config import Context
from ferrule.jit import TinyJit, guards, readers
from ferrule.jit.owners import Owner, present_version
from ferrule.tensor import Tensor

Call = Callable[..., Any]
Capture = Callable[[Call], Call]

kept: list[Tensor] = []
"""Tensors that are still there when the function has others: so their memory is."""


def tensor(*values: float) -> Tensor:
    found = Tensor(np.array(values, np.float32)).realize()
    kept.append(found)
    return found


def results(f: Call, changes: dict[int, Callable[[], object]], calls: int = 12) -> Iterator[Any]:
    """What calls give; before some of them something happens."""
    for number in range(calls):
        if number in changes:
            changes[number]()
        yield f(tensor(number, 1)).tolist()


def replayed_like_plain(case: Callable[[Capture], Iterator[Any]]) -> list[TinyJit[Any]]:
    """Asserts that a case gives the same with captured functions; returns these."""
    captured: list[TinyJit[Any]] = []

    def capture(function: Call) -> Call:
        captured.append(TinyJit(function))
        return captured[-1]

    with Context(FERRULE_DEVICE="NUMPY"), np.errstate(divide="ignore"):
        plain = list(case(lambda function: function))
        assert repr(list(case(capture))) == repr(plain)
    kept.clear()
    return captured


def is_had_by_others(owner: Owner) -> bool:
    """The drop test: the owner gets another node, and the old one lives on if somebody has it."""
    return readers._replaced(owner, None)() is not None


@contextmanager
def readers_looked_for() -> Iterator[None]:
    """A block in which replays look for readers even where owners have noted none."""

    def look(owner: Owner | None) -> None:
        if owner is not None and not owner.taken and present_version(owner).realized is not None:
            assert not is_had_by_others(owner), "a reader was not noted"

    def leave(owner: Owner, leave_to_readers: Any = readers.leave_to_readers) -> None:
        look(owner)
        leave_to_readers(owner)

    def is_alone(self: Any, is_alone: Any = guards._Unchanged._is_alone) -> bool:
        for owner in self._written:
            look(owner())
        return bool(is_alone(self))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(guards, "leave_to_readers", leave)
        patched.setattr(guards._Unchanged, "_is_alone", is_alone)
        yield
