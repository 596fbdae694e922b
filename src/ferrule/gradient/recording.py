"""Whether operations are recorded, and whether a transformation is at work: for each thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from typing import final


class Mode(threading.local):
    """What the current thread does; `mode` is the only one."""

    recording = True
    transforming = False


mode = Mode()


def is_recording() -> bool:
    """Whether operations on tensors that need a gradient are recorded in this thread."""
    return mode.recording


def is_transforming() -> bool:
    """Whether a transformation is calling its function in this thread, to see what it does."""
    return mode.transforming


@contextmanager
def transforming(recording: bool = True) -> Iterator[None]:
    """The block in which a transformation calls its function; by default all is recorded."""
    before = mode.recording, mode.transforming
    mode.recording = recording
    mode.transforming = True
    try:
        yield
    finally:
        mode.recording, mode.transforming = before


@final
class no_grad(ContextDecorator):
    """While it is entered, nothing is recorded, and parameters may be written in place.

    >>> from ferrule import Tensor
    >>> x = Tensor([2.0], requires_grad=True)
    >>> with Tensor.no_grad():
    ...     y = x * 3
    >>> y.requires_grad is None
    True
    """

    def __init__(self, active: bool = True) -> None:
        self._recording = not active
        self._before: list[bool] = []

    def __enter__(self) -> no_grad:
        self._before.append(mode.recording)
        mode.recording = self._recording
        return self

    def __exit__(self, *_: object) -> None:
        mode.recording = self._before.pop()


def enable_grad() -> no_grad:
    """While it is entered, operations are recorded, also inside `no_grad`.

    >>> from ferrule import Tensor
    >>> x = Tensor([2.0], requires_grad=True)
    >>> with Tensor.no_grad(), Tensor.enable_grad():
    ...     y = x * 3
    >>> y.requires_grad
    True
    """
    return no_grad(False)
