"""Blocks that Ctrl-C does not end halfway."""

from __future__ import annotations

import importlib
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final, final

# The functions of Python's `signal` take ten times as long, to make members of enumerations.
_signals: Final[Any] = importlib.import_module("_signal")
_SIGINT: Final = _signals.SIGINT
_raise: Final = _signals.default_int_handler


@final
class Whole:
    """A block that is run to its end before Ctrl-C raises `KeyboardInterrupt`.

    It is for writes over memory: after an interrupt in the middle, a write could be neither
    repeated nor left out. A second Ctrl-C ends the block at once. Only the main thread gets the
    signal. A program's own handler of the signal stays in force.
    """

    __slots__ = ("_came", "_waits")

    def __enter__(self) -> None:
        self._came = False
        self._waits = current_thread() is main_thread() and _signals.getsignal(_SIGINT) is _raise
        if self._waits:
            _signals.signal(_SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            _raise(number, frame)
        self._came = True

    def __exit__(self, *_: object) -> None:
        if self._waits:
            _signals.signal(_SIGINT, _raise)
            if self._came:
                raise KeyboardInterrupt
