"""One captured call, ready to run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.expr import Variable
from ferrule.gradient import Value, is_recording
from ferrule.jit.batch import Batch
from ferrule.jit.inputs import InputPart
from ferrule.jit.numbers import Numbers
from ferrule.jit.results import Outcome, build_result
from ferrule.jit.watch import Watch
from ferrule.jit.weights import PackedWeights
from ferrule.lazy import LazyBuffer
from ferrule.tensor import Tensor


@final
class Replay:
    """What ran in one call, to be run with other arguments of the same signature.

    It is right as long as `watch` finds no problem. Each run writes to the memory `changed`, from
    outside, besides what it writes to arguments. The signature knows `objects` by their `id()`.
    """

    def __init__(
        self,
        batch: Batch,
        packed: PackedWeights | None,
        outcome: Outcome,
        watch: Watch,
        changed: Sequence[Buffer],
        var_vals: Mapping[Variable, int],
        objects: Sequence[object],
        numbers: Numbers,
        parts: Sequence[InputPart] = (),
    ) -> None:
        self.batch = batch
        self.watch = watch
        self.numbers = numbers
        self.runs = 0
        """How often it was used."""
        self._packed = packed
        self._outcome = outcome
        self._changed = changed
        self._var_vals = dict(var_vals)
        self._objects = objects
        self._parts = parts

    def run(
        self, tensors: Sequence[Tensor], buffers: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> Any:
        """Runs everything again, with the tensors among the arguments, and the memory that they
        are in; the results are in new memory."""
        values = {**self._var_vals, **var_vals} if var_vals else self._var_vals
        outcome = self._outcome
        self.runs += 1
        for effect in outcome.effects:
            effect.let_go(tensors)
        nodes: list[LazyBuffer] = []
        memory: list[Any] = list(buffers)
        for value in outcome.fresh:
            node = value.make(values)
            nodes.append(node)
            memory.append(node.realized)
        for part in self._parts:
            memory.append(part.take(buffers))
        packed = self._packed
        batch = self.batch if packed is None or not packed.are_ready() else packed.batch
        try:
            batch.run(memory, values)
        finally:
            for buffer in (*self._changed, *self.watch.written(buffers)):
                buffer.note_write()
        everything = list(tensors)
        for number in outcome.made:
            everything.append(Tensor._wrap(Value(nodes[number])))
        for effect in outcome.effects:
            effect.apply(everything)
        return build_result(outcome.template, everything)


@final
class Recent:
    """The replay used last, and what it was given: nothing but plain tensors in memory.

    A call that is given the same again, or others of the same kind, needs no signature. Nodes are
    numbered and stay in the memory that they are in; no tensor and no memory is kept alive.
    """

    __slots__ = ("_apart", "_kinds", "_reachable", "_recording", "_serials", "_training", "replay")

    def __init__(
        self, replay: Replay, nodes: Sequence[LazyBuffer], reachable: Set[int | None]
    ) -> None:
        self.replay = replay
        self._training = Tensor.training
        self._recording = is_recording()
        self._reachable = reachable
        self._serials = [node.serial for node in nodes]
        self._kinds = [_kind(node) for node in nodes]
        self._apart = self._are_apart([node.realized for node in nodes])

    @staticmethod
    def of(replay: Replay, args: Sequence[Any], reachable: Set[int | None]) -> Recent | None:
        """A call with these arguments; None if they are not of the simple kind."""
        nodes = [_plain(arg) for arg in args]
        known = [node for node in nodes if node is not None]
        return Recent(replay, known, reachable) if len(known) == len(nodes) else None

    def buffers(self, args: Sequence[Any]) -> list[Buffer] | None:
        """The memory that the arguments are in; None if they have to be read anew."""
        serials = self._serials
        if len(args) != len(serials) or Tensor.training is not self._training:
            return None
        if is_recording() is not self._recording:
            return None
        buffers: list[Any] = []
        same = True
        for arg in args:
            node = _plain(arg)
            if node is None:
                return None
            number = len(buffers)
            if node.serial != serials[number]:
                if _kind(node) != self._kinds[number]:
                    return None
                same = False
            buffers.append(node.realized)
        return buffers if same or (self._apart and self._are_apart(buffers)) else None

    def _are_apart(self, buffers: Sequence[Any]) -> bool:
        """Whether no two share memory, and the function reaches none of it by itself."""
        serials = {buffer.base.serial for buffer in buffers}
        if len(serials) != len(buffers) or not serials.isdisjoint(self._reachable):
            return False
        return not self.replay.watch.overlaps(buffers)


def _plain(value: Any) -> LazyBuffer | None:
    """A tensor's node; None if that is not in memory, or if it is a view, on the tape, or more."""
    if type(value) is not Tensor or value._parent is not None or value._detached:
        return None
    held = value._cell.value
    if held.edge is not None or value._leaf is not None or value._grad is not None:
        return None
    return held.node if held.node.realized is not None else None


def _kind(node: LazyBuffer) -> tuple[Any, ...]:
    """What the signature of a plain tensor holds."""
    assert node.realized is not None
    return node.shape, node.dtype, node.device, node.realized.nbytes
