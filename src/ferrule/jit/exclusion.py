"""Mutual exclusion of calls that run a captured function's own code and share tensors.

A replay holds the lock `turn` from its first check to its last write. A call that runs the
function itself (the first call, or a capture) cannot hold it: the function may wait for other
threads. Such a call has cells instead, those of the tensors that it may use, and other calls that
may use one of them wait. A call takes all its cells at once and has none while it waits. A call
inside such a call does not wait.

The function may wait for a thread that itself calls a captured function with these tensors, as one
that shares out its work to a pool of threads does. So others may use its cells from when it begins
to wait until it uses this package again (`jit/executed.py` sees both), as with a monitor. A lock of
the program's own is not seen: one that the function waits for may be held around another call of
it. So no call waits for longer than `_PATIENCE`; then it runs beside the other one, plainly, as it
would without captures.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import Final, final

from ferrule.base.threadstate import this_thread
from ferrule.ir.storage import turn


@final
class _Run:
    """A call that runs a function's own code."""

    __slots__ = ("captures", "cells", "has_given_way", "thread")

    def __init__(self, cells: Collection[int]) -> None:
        self.cells = frozenset(cells)
        self.thread = get_ident()
        self.has_given_way = False
        """True if its function began to wait for another thread, and has not gone on."""
        self.captures = False
        """True if it was captured when it gave way."""


_PATIENCE = 20.0  # seconds without the end of any call; not measured
running: Final[list[_Run]] = []
"""The calls that have cells."""
_changed: Final = Condition(turn)


def wait_for_others(cells: Collection[int]) -> None:
    """Waits until no call of another thread has any of these cells, or for `_PATIENCE`.

    The caller holds `turn`, which is released while it waits.
    """
    if not _runs_of_this_thread():
        _wait(cells)


def _wait(cells: Collection[int]) -> None:
    while _are_taken(cells):
        if not _changed.wait(_PATIENCE):
            return


def _runs_of_this_thread() -> list[_Run]:
    thread = get_ident()
    return [run for run in running if run.thread == thread]


def _are_taken(cells: Collection[int]) -> bool:
    thread = get_ident()
    return any(
        [
            not (run.has_given_way or run.thread == thread or run.cells.isdisjoint(cells))
            for run in running
        ]
    )


@contextmanager
def alone(cells: Collection[int]) -> Iterator[bool]:
    """A block that has these cells: no other thread runs one with any of them meanwhile.

    Gives True if the block may be captured: no call that is being captured has given way to it,
    and it has not run out of patience with another one.
    """
    run = _Run(cells)
    with turn:
        wait_for_others(cells)
        others = [other for other in running if other.thread != run.thread and other.captures]
        is_alone = all([other.cells.isdisjoint(run.cells) for other in others])
        is_alone = is_alone and not _are_taken(cells)
        running.append(run)
    try:
        yield is_alone
    finally:
        if run in running:  # not in a child that was forked in the block
            running.remove(run)  # before it can be interrupted
        with turn:
            _changed.notify_all()


def give_way() -> None:
    """Lets others use the cells of this thread's calls: its function waits for another thread."""
    captures = this_thread.state.observer is not None
    for run in _runs_of_this_thread():
        run.captures = captures
        run.has_given_way = True
    with turn:
        _changed.notify_all()


def come_back() -> None:
    """Takes the cells of this thread's calls again, when no other call has any of them."""
    runs = _runs_of_this_thread()
    cells = frozenset().union(*[run.cells for run in runs])
    with turn:
        _wait(cells)
        for run in runs:
            run.has_given_way = run.captures = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=running.clear)  # a child has no other threads
