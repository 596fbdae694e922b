"""The recording mode of each thread: `no_grad`, `enable_grad`, and running transformations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from typing import final

from ferrule.base.threadstate import ThreadState, this_thread


def is_recording() -> bool:
    """True if operations on tensors that need a gradient are recorded in this thread."""
    return this_thread.state.recording


def is_transforming() -> bool:
    """True while a transformation traces its function in this thread."""
    return this_thread.state.transforming


@contextmanager
def transforming(recording: bool = True) -> Iterator[None]:
    """A block in which a transformation calls its function; by default all is recorded."""
    state = this_thread.state
    before = state.recording, state.transforming
    state.recording = recording
    state.transforming = True
    try:
        yield
    finally:
        state.recording, state.transforming = before


@final
class no_grad(ContextDecorator):
    """A block, or a decorator, in which nothing is recorded, and parameters may be written.

    >>> from ferrule import Tensor
    >>> x = Tensor([2.0], requires_grad=True)
    >>> with Tensor.no_grad():
    ...     y = x * 3
    >>> y.requires_grad is None
    True
    """

    def __init__(self, active: bool = True) -> None:
        self._recording = not active
        self._before: dict[ThreadState, list[bool]] = {}
        """For each thread that is inside: what held around it. A decorated function has one of
        these for all calls."""

    def __enter__(self) -> no_grad:
        state = this_thread.state
        self._before.setdefault(state, []).append(state.recording)
        state.recording = self._recording
        return self

    def __exit__(self, *_: object) -> None:
        state = this_thread.state
        before = self._before[state]
        state.recording = before.pop()
        if not before:
            del self._before[state]


def enable_grad() -> no_grad:
    """A block, or a decorator, in which operations are recorded, also inside `no_grad`.

    >>> from ferrule import Tensor
    >>> x = Tensor([2.0], requires_grad=True)
    >>> with Tensor.no_grad(), Tensor.enable_grad():
    ...     y = x * 3
    >>> y.requires_grad
    True
    """
    return no_grad(False)
