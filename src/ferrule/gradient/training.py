"""Whether layers behave as in training: a mode of each thread, and evaluation nobody asked for.

A layer's own mode goes before that of the thread: while the layer is called, the thread has it. A
new thread starts in evaluation, whatever the one has that started it, as it starts with all else
(`threadstate.py`): what another thread is doing is no reason to train.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import Any, Self, final
from weakref import WeakKeyDictionary

from ferrule.gradient.tape import Entry, Leaf, Value
from ferrule.threadstate import this_thread


def is_training() -> bool:
    """Whether layers called in this thread behave as in training."""
    return bool(this_thread.state.training)


def trains(given: bool | None, value: Value, what: str) -> bool:
    """Whether `what`, which is about to look at a value, behaves as in training.

    `given` goes before the mode. If nobody asked for either, it is noted.
    """
    if given is not None:
        return bool(given)
    mode = this_thread.state.training
    if mode is None:
        note_evaluation(value, what)
    return bool(mode)


def note_evaluation(value: Value, what: str) -> None:
    """Notes that `what` evaluated by default on the way to or from a value that has a gradient."""
    state = this_thread.state
    edge = value.edge
    if state.training is None and state.recording and type(edge) is Entry:
        if state.evaluated is None:
            state.evaluated = WeakKeyDictionary()
        state.evaluated[edge] = what


def note_gradients(entries: Iterable[Entry]) -> None:
    """Notes for the leaves below these entries whether one is where something evaluated."""
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
    """What evaluated by default on the way to the latest gradients of some leaves, if anything."""
    noted = this_thread.state.differentiated
    if not noted:
        return None
    found = [noted.pop(leaf, None) for leaf in leaves if leaf is not None]
    return next(filter(None, found), None)


@final
class train(ContextDecorator):
    """While it is entered, layers called in this thread behave as in training, or do not.

    Blocks nest. Other threads, and those that are started inside, keep their own mode. A layer that
    has one of its own, by its `train()` or `eval()`, goes by that.

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
