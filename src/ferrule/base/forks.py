"""Locks that a forked child finds free: a fork takes them all first, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Final

_taken: Final[list[tuple[Callable[[], object], Callable[[], object]]]] = []
"""What a fork takes, and how it gives that back; the last one is taken first."""


def lock_across_forks() -> RLock:
    """A lock that is free in a forked child: a fork waits until it can take the lock.

    So the data that it protects is consistent in the child as well. Of two locks that a thread
    takes one inside the other, the outer one has to be made later.
    """
    lock = RLock()
    _taken.append((lock.acquire, lock.release))
    return lock


def take_last(take: Callable[[], object], give_back: Callable[[], object]) -> None:
    """Makes forks take something else, inside of all locks, however late its module is imported."""
    _taken.insert(0, (take, give_back))


def _before() -> None:
    for take, _ in reversed(_taken):
        take()


def _after() -> None:
    for _, give_back in _taken:
        give_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
