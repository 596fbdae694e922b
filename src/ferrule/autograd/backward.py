"""Running the tape backwards: gradients of some values from those of others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, final
from weakref import WeakKeyDictionary

from ferrule.autograd import GradEdge, GradientError, GradNode, Leaf, TracedValue, no_grad
from ferrule.autograd.concat import total_gradient
from ferrule.autograd.training import note_gradients
from ferrule.base.records import dataclass


@final
@dataclass(frozen=True)
class Hook:
    """A function that changes a gradient, and the user's function that it calls."""

    run: Callable[[TracedValue], TracedValue]
    function: Callable[[Any], Any]


hooks: Final[WeakKeyDictionary[GradEdge, dict[int, Hook]]] = WeakKeyDictionary()
"""The hooks of each edge, in order; they run once the edge's gradient is complete."""

_Arrived: TypeAlias = dict[GradEdge, list[TracedValue]]
"""The gradients that have arrived at each edge so far, one for each use."""


@final
class Passed:
    """How far back gradients went: the serial of the oldest tape entry that one passed."""

    __slots__ = ("oldest",)

    def __init__(self) -> None:
        self.oldest = sys.maxsize


_passed: ContextVar[Passed | None] = ContextVar("passed", default=None)


@contextmanager
def note_passed() -> Iterator[Passed]:
    """A block that notes how far back gradients go."""
    found = Passed()
    token = _passed.set(found)
    try:
        yield found
    finally:
        _passed.reset(token)


def entries_below(
    roots: Iterable[GradEdge], since: int = 0, known: Container[GradEdge] = ()
) -> list[GradNode]:
    """All entries below the roots, each after its parents.

    Entries with a serial below `since` and `known` ones are left out, with all only below them.
    """
    order: list[GradNode] = []
    seen: set[GradEdge] = set()
    pending: list[tuple[GradEdge, bool]] = [(root, False) for root in roots]
    while pending:
        edge, done = pending.pop()
        if isinstance(edge, Leaf):
            continue
        if done:
            order.append(edge)
            continue
        if edge in seen or edge.serial < since or edge in known:
            continue
        seen.add(edge)
        pending.append((edge, True))
        pending.extend((parent, False) for parent in edge.parents if parent is not None)
    return order


def _leading_to(targets: set[GradEdge], order: Sequence[GradNode]) -> set[GradEdge]:
    """The edges from which a target can be reached, the targets included."""
    leading = set(targets)
    for entry in order:
        if any(parent in leading for parent in entry.parents):
            leading.add(entry)
    return leading


def pull_back(
    outputs: Sequence[TracedValue],
    seeds: Sequence[TracedValue],
    targets: Iterable[GradEdge] | None = None,
    *,
    retain: bool = False,
    create_graph: bool = False,
    kept: Collection[GradEdge] = (),
    unhooked: Container[GradEdge] = (),
) -> dict[GradEdge, TracedValue]:
    """The gradients of the targets, given the gradients (`seeds`) of the outputs.

    `targets` None means all leaves below, and the edges in `kept`. A target that the outputs do not
    depend on is missing from the answer. Edges in `unhooked` get only a part of their gradient
    here, so that their hooks do not run. The values that the tape kept are freed, unless `retain`.
    The rules themselves are recorded if `create_graph`. Raises `GradientError` if the tape was
    freed before.
    """
    grads: _Arrived = {}
    for output, seed in zip(outputs, seeds, strict=True):
        if output.edge is not None:
            _add(grads, output.edge, seed)
    order = entries_below(list(grads))
    note_gradients(order)
    wanted: set[GradEdge] = set(kept).intersection(order) if targets is None else set(targets)
    leading = None if targets is None else _leading_to(wanted, order)
    hooked = {edge: None for edge in hooks if edge not in unhooked}  # in order
    passed = _passed.get()
    with no_grad(not create_graph):
        for entry in reversed(order):
            if leading is None or entry in leading:
                if entry in hooked and entry in grads:
                    grads[entry] = [_hooked(entry, total_gradient(grads[entry]))]
                if passed is not None and entry in grads:
                    passed.oldest = min(passed.oldest, entry.serial)
                _step(grads, entry, leading, wanted)
        for edge in hooked:
            if isinstance(edge, Leaf) and edge in grads:
                grads[edge] = [_hooked(edge, total_gradient(grads[edge]))]
        leaves = targets is None
        asked = [edge for edge in grads if edge in wanted or (leaves and isinstance(edge, Leaf))]
        found = {edge: total_gradient(grads[edge]) for edge in asked}
    if not (retain or create_graph):
        for entry in order:
            entry.free()
    return found


def _hooked(edge: GradEdge, grad: TracedValue) -> TracedValue:
    """The gradient of an edge after its hooks."""
    for hook in list(hooks.get(edge, {}).values()):
        grad = hook.run(grad)
    return grad


def _step(
    grads: _Arrived, entry: GradNode, leading: set[GradEdge] | None, wanted: Container[GradEdge]
) -> None:
    """Propagate the gradient of one entry to its parents."""
    arrived = grads.get(entry) if entry in wanted else grads.pop(entry, None)
    if arrived is None:
        return
    grad = total_gradient(arrived)
    if entry in wanted:
        grads[entry] = [grad]
    if entry.freed:
        raise GradientError(
            f"the tape was freed at {entry.name}: backward() ran over it before; "
            "call the first backward(retain_graph=True), or compute the result again"
        )
    for parent, part in zip(entry.parents, entry.rule.reverse(grad, entry), strict=True):
        if parent is None or part is None:
            continue
        if leading is None or parent in leading:
            _add(grads, parent, part)


def _add(grads: _Arrived, edge: GradEdge, grad: TracedValue) -> None:
    grads.setdefault(edge, []).append(grad)
