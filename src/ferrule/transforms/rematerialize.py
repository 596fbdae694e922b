"""`checkpoint`: intermediate values are recomputed for the gradient rather than kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, final

from ferrule.autograd import (
    IDENTITY,
    GradEdge,
    Gradients,
    GradNode,
    Parts,
    Rule,
    TracedValue,
    is_recording,
    is_training,
    record_several,
    tape_position,
    train,
    transforming,
)
from ferrule.autograd.backward import entries_below, pull_back
from ferrule.base.callbacks import call_back
from ferrule.base.helpers import check_function
from ferrule.base.records import dataclass
from ferrule.engine.random import Words, drawn_by, random_words
from ferrule.ir.expr import sint
from ferrule.tensor.autocast import autocast_as, autocast_modes
from ferrule.tensor.cell import StorageRef, watch_writes
from ferrule.transforms.trace import blank, read, replaced, tensors_of, wrap


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that keeps nothing but its arguments for its gradient.

    The gradient calls it again, which takes time, and saves the memory of all its intermediate
    values. `checkpoint(f)(x)` is `checkpoint(f, x)`. The second call has the mode of layers
    (training or evaluation), the `autocast` and the random numbers of the first. Tensors from
    outside that the function writes to have their earlier contents in it, and are written once.
    In-place writes to the arguments stay inside.

    >>> import ferrule
    >>> block = ferrule.checkpoint(lambda x: (x.exp() + 1).log())
    >>> ferrule.grad(lambda x: block(x).sum())(ferrule.Tensor([0.0])).tolist()
    [0.5]
    """
    check_function(function, "checkpoint")
    if args or kwargs:
        return _call(function, args, kwargs)

    @functools.wraps(function)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return _call(function, args, kwargs)

    return checkpointed


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    if not is_recording():
        return call_back(function, *args, **kwargs)
    arguments = (tuple(args), dict(kwargs))
    sources = read(tensors_of(arguments))
    needs_gradient = [value.edge is not None for value in sources]
    call = _Call(function, blank(arguments), needs_gradient, [], is_training(), autocast_modes())
    start = tape_position()
    with watch_writes() as call.before, _keeping(call.words):
        result, outputs, _ = call.run([value.detach() for value in sources])
    call.outside = _edges_from_outside(outputs, start)
    rule = Rule(_reverse, inputs=tuple(range(len(sources))))
    nodes = [value.node for value in outputs]
    found = record_several("checkpoint", rule, sources, nodes, call, call.outside)
    return replaced(result, wrap(found))


@final
@dataclass
class _Call:
    """A function, the form of its arguments, and the random words that it drew."""

    function: Callable[..., Any]
    arguments: Any
    needs_gradient: Sequence[bool]
    """For each tensor among the arguments, True if it needs a gradient."""
    words: list[Words]
    training: bool
    """True if layers behaved as in training."""
    autocast: Any
    """The modes of `autocast`."""
    outside: Sequence[GradEdge] = ()
    """The edges of tensors that it closes over."""
    before: Mapping[StorageRef, TracedValue] = field(default_factory=dict)
    """The contents of memory from outside before the function wrote to it."""

    def run_again(
        self, values: Sequence[TracedValue]
    ) -> tuple[Any, list[TracedValue], list[GradNode]]:
        """Call the function in the state of the first call, and undo its side effects."""
        now = {cell: cell.take() for cell in self.before}
        try:
            for cell, value in self.before.items():
                cell.restore(value)
            with _giving(self.words), train(self.training), autocast_as(self.autocast):
                return self.run(values)
        finally:
            for cell, value in now.items():
                cell.restore(value)

    def run(self, values: Sequence[TracedValue]) -> tuple[Any, list[TracedValue], list[GradNode]]:
        """Call the function on these values: its result, the result's values, and the tape's ends.

        Views in the result are read while gradients are recorded, since that makes their edges.
        """
        roots = [GradNode("argument", IDENTITY, (value,), value.node, None) for value in values]
        inputs = zip(values, roots, self.needs_gradient, strict=True)
        tensors = wrap(
            [TracedValue(v.node, root if needed else None) for v, root, needed in inputs]
        )
        args, kwargs = replaced(self.arguments, tensors)
        with transforming():
            result = call_back(self.function, *args, **kwargs)
            return result, read(tensors_of(result)), roots


def _edges_from_outside(outputs: Sequence[TracedValue], start: int) -> list[GradEdge]:
    """The edges made before the call that its results depend on."""
    edges = [value.edge for value in outputs if value.edge is not None]
    below = entries_below(edges, start)
    edges += [parent for entry in below for parent in entry.parents if parent is not None]
    inside = set(below)
    return [edge for edge in dict.fromkeys(edges) if edge not in inside]


def _reverse(grad: Parts, entry: GradNode) -> Gradients:
    call: _Call = entry.arg
    seeds = dict(grad.of)
    number, seed = next(iter(seeds.items()))
    seeds[number] = seed = seed.contiguous()
    _, outputs, roots = call.run_again([_after(value, seed) for value in entry.saved])
    targets: list[GradEdge] = [*roots, *call.outside]
    found = pull_back(
        [outputs[number] for number in seeds],
        list(seeds.values()),
        targets,
        retain=True,
        create_graph=is_recording(),
        unhooked=targets,
    )
    return tuple([found.get(target) for target in targets])


def _after(value: TracedValue, other: TracedValue) -> TracedValue:
    """The value, but only once another has been computed.

    The condition `x < x` never holds, which graph construction does not know. So these nodes differ
    from those of the first call: equal ones would be shared, and keep their memory.
    """
    if 0 in value.shape or 0 in other.shape:
        return value
    one = other.detach().shrink([(0, 1)] * len(other.shape))
    one = one.reshape((1,) * len(value.shape)).expand(value.shape)
    return (one < one).where(value.full(0), value)


def _keeping(words: list[Words]) -> AbstractContextManager[None]:
    """A block that notes the random words that are drawn."""

    def draw(shape: Sequence[sint], device: str) -> Words:
        words.append(random_words(shape, device))
        return words[-1]

    return drawn_by(draw)


def _giving(words: Sequence[Words]) -> AbstractContextManager[None]:
    """A block in which these random words are drawn again."""
    remaining = iter(words)
    return drawn_by(lambda shape, device: next(remaining))
