"""Calls that run a captured function's own code, each alone among those that share its tensors.

A replay has the turn to compute from its first look to its last write. A call that runs the
function itself, the first one or one that is captured, cannot have it: the function may wait for
other threads. So such calls name the memory of the tensors that they may use; other calls of
captured functions that may use some of it wait. All is named at once, and what waits has named
nothing, so nobody waits in a circle. A call inside such a call waits for nobody.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import Final

from ferrule.realize import turn

_used: Final[dict[int, int]] = {}
"""The cells of tensors that such calls may use, by `id()`: the thread of each."""
_changed: Final = Condition(turn)


def anyone_runs() -> bool:
    """Whether there is such a call at all."""
    return bool(_used)


def wait_for_others(cells: Collection[int]) -> None:
    """Waits until no such call of another thread may use these cells.

    Who calls this has the turn, but for the time that it waits.
    """
    while get_ident() not in _used.values() and not _used.keys().isdisjoint(cells):
        _changed.wait()


@contextmanager
def alone(cells: Collection[int]) -> Iterator[None]:
    """A block that runs while no other thread is in one with some of these cells."""
    with turn:
        wait_for_others(cells)
        mine = [cell for cell in cells if cell not in _used]
        _used.update(dict.fromkeys(mine, get_ident()))
    try:
        yield
    finally:
        with turn:
            for cell in mine:
                _used.pop(cell, None)
            _changed.notify_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_used.clear)  # the other threads are not there
