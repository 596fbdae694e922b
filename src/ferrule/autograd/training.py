"""The training mode of each thread, and notes of layers that evaluated by default.

A layer's own mode has priority: while the layer is called, it is the thread's mode. A new thread
starts in evaluation, whatever the mode of the thread that started it (`base/threadstate.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import Any, Self, final
from weakref import WeakKeyDictionary

from ferrule.autograd.tape import GradNode, Leaf, TracedValue
from ferrule.base.threadstate import this_thread


def is_training() -> bool:
    """True if layers called in this thread behave as in training."""
    return bool(this_thread.state.training)


def trains(given: bool | None, value: TracedValue, what: str) -> bool:
    """True if `what`, which is about to process a value, behaves as in training.

    `given` has priority over the mode. If neither was set, the evaluation is noted.
    """
    if given is not None:
        return bool(given)
    mode = this_thread.state.training
    if mode is None:
        note_evaluation(value, what)
    return bool(mode)


def note_evaluation(value: TracedValue, what: str) -> None:
    """Note that `what` evaluated by default on a value that has a gradient."""
    state = this_thread.state
    edge = value.edge
    if state.training is None and state.recording and type(edge) is GradNode:
        if state.evaluated is None:
            state.evaluated = WeakKeyDictionary()
        state.evaluated[edge] = what


def note_gradients(entries: Iterable[GradNode]) -> None:
    """Note the leaves below these entries whose gradients go through a layer noted before."""
    state = this_thread.state
    if not state.evaluated and not state.differentiated:
        return
    noted = None
    leaves: set[Leaf] = set()
    for entry in entries:
        noted = noted or (state.evaluated or {}).get(entry)
        leaves.update([edge for edge in entry.parents if type(edge) is Leaf])
    if state.differentiated is None:
        state.differentiated = WeakKeyDictionary()
    for leaf in leaves:
        if noted is None:
            state.differentiated.pop(leaf, None)
        else:
            state.differentiated[leaf] = noted


def take_noted(leaves: Iterable[Leaf | None]) -> str | None:
    """The layer that evaluated by default below the latest gradients of some leaves, or None.

    The notes for the leaves are removed.
    """
    noted = this_thread.state.differentiated
    if not noted:
        return None
    found = [noted.pop(leaf, None) for leaf in leaves if leaf is not None]
    return next(filter(None, found), None)


@final
class train(ContextDecorator):
    """A block, or a decorator, in which layers of this thread behave as in training, or do not.

    Blocks nest. Other threads, and those that are started inside, keep their own mode. A layer's
    own mode, by its `train()` or `eval()`, has priority.

    >>> from ferrule import Tensor
    >>> with Tensor.train():
    ...     Tensor.training
    True
    >>> Tensor.training
    False
    """

    __slots__ = ("_mode",)

    def __init__(self, mode: bool = True) -> None:
        self._mode = bool(mode)

    def __enter__(self) -> Self:
        state = this_thread.state
        state.modes.append(state.training)
        state.training = self._mode
        return self

    def __exit__(self, *_: Any) -> None:
        state = this_thread.state
        state.training = state.modes.pop()
