"""What belongs to a thread: its unfinished graph and writes, what watches its runs, its modes.

`this_thread.state` is the record of the thread that asks. One thread sees nothing of another's but
through the tensors that they share. What is to belong to a thread is an attribute here, and nowhere
else: a `ContextVar` is copied to other threads by `asyncio.to_thread`, which then run at once.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, Generic, TypeVar, cast, final

from ferrule.interning import Table

T = TypeVar("T")


@final
class ThreadState:
    """The record of one thread; `None` in a slot says that there is nothing of that kind.

    >>> this_thread.state.recording, this_thread.state.observer
    (True, None)
    """

    __slots__ = (
        "differentiated",
        "evaluated",
        "failures",
        "kept",
        "modes",
        "nodes",
        "observer",
        "passed",
        "read_guard",
        "recording",
        "taken",
        "training",
        "transforming",
        "undoable",
        "watched_since",
        "written",
    )

    def __init__(self) -> None:
        self.nodes = Table()
        """The nodes that it made and that are alive, by what they are; see `node.py`."""
        self.passed: set[Any] = set()
        """The numbers that kernels computed on their way; see `schedule/graph.py`."""
        self.written: set[Any] = set()
        """References to the storages that it wrote to, and that may be pending; see `storage.py`.
        """
        self.failures = 0
        """How often computing something raised; see `realize.py`."""
        self.undoable: Any = None
        """The memory that a block writes to, all of it or none; see `tensor/cell.py`."""
        self.kept: Any = None
        """What keeps these storages alive; see `storage.keep_written`."""
        self.observer: Any = None
        """What each run goes through; see `runner.py`."""
        self.read_guard: Any = None
        """What is asked before contents go to the host; see `buffer.py`."""
        self.watched_since: int | None = None
        """In a capture: where its memory begins; see `runner.py`."""
        self.recording = True
        """Whether the tape records; see `gradient/recording.py`."""
        self.training: bool | None = None
        """Whether layers behave as in training; None, which is evaluation, if nobody said it."""
        self.modes: list[bool | None] = []
        """What `training` was around each block that is entered; see `gradient/training.py`."""
        self.evaluated: Any = None
        """Where on the tape a layer evaluated though nobody asked for it, and which."""
        self.differentiated: Any = None
        """The leaves whose gradients went through one of them."""
        self.taken = 0
        """How often another thread computed a node of this one or wrote over it, and how often this
        one computed, in a capture, what another had made in the meantime.
        """
        self.transforming = False
        """Whether a transformation calls its function."""


left_behind: Final[deque[set[Any]]] = deque()
"""What threads that are over had in `written`: it is for whoever looks next."""


@final
class _Ending:
    """Belongs to a thread alone, and so is gone when the thread is."""

    __slots__ = ("_state",)

    def __init__(self, state: ThreadState) -> None:
        self._state = state

    def __del__(self, left: deque[set[Any]] = left_behind) -> None:
        if self._state.written:
            left.append(self._state.written)


@final
class _ThisThread(threading.local):
    state: ThreadState

    def __init__(self) -> None:
        self.state = ThreadState()
        self._ending = _Ending(self.state)


this_thread: Final = _ThisThread()


@final
class Slot(Generic[T]):
    """An attribute of the record, with the methods of a `ContextVar`.

    >>> slot = Slot[int]("watched_since")
    >>> before = slot.set(3)
    >>> slot.get()
    3
    >>> slot.reset(before)
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def get(self) -> T | None:
        """What the thread has there."""
        return cast("T | None", getattr(this_thread.state, self._name))

    def set(self, value: T | None) -> T | None:
        """Puts something there; gives what was, for `reset`."""
        before = self.get()
        setattr(this_thread.state, self._name, value)
        return before

    def reset(self, before: T | None) -> None:
        """Puts back what `set` gave."""
        setattr(this_thread.state, self._name, before)
