"""Handlers of signals: blocks that Ctrl-C does not end halfway, and code that a handler runs."""

from __future__ import annotations

import functools
import importlib
import sys
from threading import current_thread, main_thread
from types import CodeType, FrameType
from typing import Any, Final, final

# The functions of Python's `signal` take ten times as long, to make members of enumerations.
_signals: Final[Any] = importlib.import_module("_signal")
_SIGINT: Final = _signals.SIGINT
_raise: Final = _signals.default_int_handler
_NUMBERS: Final = tuple(_signals.valid_signals())


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


def running_handlers() -> int:
    """The number of calls of the program's handlers of signals that this code is inside of.

    A handler runs in the main thread, amid whatever runs there.
    """
    if current_thread() is not main_thread():
        return 0
    handlers = [handler for handler in map(_signals.getsignal, _NUMBERS) if callable(handler)]
    codes = {_code_of(handler) for handler in handlers if handler is not _raise}
    count, frame = 0, sys._getframe().f_back if codes else None
    while frame is not None:
        count += frame.f_code in codes
        frame = frame.f_back
    return count


def _code_of(handler: Any) -> CodeType | None:
    """The code that runs first when a handler is called; None if that is not Python's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for found in (handler, getattr(handler, "__func__", None), type(handler).__call__):
        code = getattr(found, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
