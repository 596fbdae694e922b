"""Mutual exclusion of calls that run a captured function's own code and share tensors.

A replay holds the lock `turn` from its first check to its last write. A call that runs the
function itself (the first call, or a capture) cannot hold it: the function may wait for other
threads. Such a call locks the cells of the tensors that it may use instead, and other calls that
may use one of them wait. A call locks all its cells at once and none while it waits, so there is
no deadlock. A call inside such a call does not wait.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import Final

from ferrule.engine.realize import turn

_used: Final[dict[int, int]] = {}
"""The locked cells, by `id()`, with the thread that holds each."""
_changed: Final = Condition(turn)


def anyone_runs() -> bool:
    """True if any cell is locked."""
    return bool(_used)


def wait_for_others(cells: Collection[int]) -> None:
    """Waits until no other thread has locked any of these cells.

    The caller holds `turn`, which is released while it waits.
    """
    while get_ident() not in _used.values() and not _used.keys().isdisjoint(cells):
        _changed.wait()


@contextmanager
def alone(cells: Collection[int]) -> Iterator[None]:
    """A block that holds these cells: no other thread runs one with any of them meanwhile."""
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
    os.register_at_fork(after_in_child=_used.clear)  # a child has no other threads
