"""The state of a thread: its unfinished graph and writes, the observers of its runs, its modes.

`this_thread.state` is the record of the calling thread. A thread sees another's state only through
the tensors that they share. All state of threads is an attribute here: a `ContextVar` would not do,
since `asyncio.to_thread` copies it to other threads, which then run at once.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, Generic, TypeVar, cast, final

from ferrule.base.interning import Table

T = TypeVar("T")


@final
class ThreadState:
    """The record of one thread; a slot that is `None` is unset.

    >>> this_thread.state.recording, this_thread.state.observer
    (True, None)
    """

    __slots__ = (
        "autocast",
        "calls",
        "computed",
        "computes",
        "constants",
        "differentiated",
        "evaluated",
        "extents",
        "failures",
        "kept",
        "lines",
        "modes",
        "nodes",
        "observer",
        "passed",
        "read_guard",
        "recording",
        "seeing",
        "specialises",
        "taken",
        "training",
        "transforming",
        "undoable",
        "watched_since",
        "written",
    )

    def __init__(self) -> None:
        self.constants: Any = None
        """The list to which each schedule adds the constants of its graph; see
        `jit/executed.py`."""
        self.calls: Any = None
        """In an export: the notes of functions that were called; see `autograd/tape.py`. Nothing is
        realised meanwhile."""
        self.computed: Any = None
        """In a capture: references to the nodes that got memory; see `device/capture.py`."""
        self.computes = False
        """True in a computation; see `engine/realize.py`."""
        self.nodes = Table()
        """The live nodes that it made, by their keys; see `ir/node.py`."""
        self.passed: dict[int, Any] = {}
        """The values that a schedule computed without storing them, by the serial numbers of their
        nodes; see `fusion/graph.py`."""
        self.written: set[Any] = set()
        """References to the storages that it wrote to, whose writes may be pending; see
        `ir/storage.py`."""
        self.failures = 0
        """The number of computations that raised; see `engine/realize.py`."""
        self.undoable: Any = None
        """The memory that a block writes to, all of it or none; see `tensor/cell.py`."""
        self.kept: Any = None
        """The list that keeps written storages alive; see `storage.keep_written`."""
        self.observer: Any = None
        """The function that each run goes through; see `device/runner.py`."""
        self.lines: Any = None
        """In a capture: the lines that its nodes come from; see `device/capture.py`."""
        self.read_guard: Any = None
        """The function that is called before contents go to the host; see `ir/buffer.py`."""
        self.watched_since: int | None = None
        """In a capture: memory made in it has serial numbers above this; see `device/runner.py`."""
        self.recording = True
        """True if the tape records; see `autograd/recording.py`."""
        self.seeing: Any = None
        """The watch of the code that runs, in a call that is captured or before; see
        `jit/executed.py`."""
        self.specialises = False
        """True if kernels are made for the sizes of a graph alone; see `jit/__init__.py`."""
        self.autocast: Any = None
        """The low precision of each kind of devices in a block of `autocast`; see
        `tensor/autocast.py`."""
        self.training: bool | None = None
        """True if layers behave as in training; None if the mode was never set (evaluation)."""
        self.modes: list[bool | None] = []
        """The value of `training` outside of each entered block; see `autograd/training.py`."""
        self.evaluated: Any = None
        """The position on the tape and the name of a layer that evaluated by default."""
        self.differentiated: Any = None
        """The leaves whose gradients went through such a layer."""
        self.extents: Any = None
        """In a plain call of a captured function: the sizes that vary, by the cells of tensors; see
        `tensor/extents.py`."""
        self.taken = 0
        """The number of times that another thread computed or overwrote a node of this one, or this
        one computed, in a capture, a node that another made meanwhile, or what a signal's handler
        asked for."""
        self.transforming = False
        """True while a transformation calls its function."""


left_behind: Final[deque[ThreadState]] = deque()
"""The records of threads that have ended and wrote, for the next thread that looks."""


@final
class _Ending:
    """An object that only its thread refers to, so that it dies with the thread."""

    __slots__ = ("_state",)

    def __init__(self, state: ThreadState) -> None:
        self._state = state

    def __del__(self, left: deque[ThreadState] = left_behind) -> None:
        if self._state.written:
            left.append(self._state)


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
        """The value of the slot in this thread."""
        return cast("T | None", getattr(this_thread.state, self._name))

    def set(self, value: T | None) -> T | None:
        """Set the slot. Returns the old value, for `reset`."""
        before = self.get()
        setattr(this_thread.state, self._name, value)
        return before

    def reset(self, before: T | None) -> None:
        """Set the slot back to the value that `set` returned."""
        setattr(this_thread.state, self._name, before)
