"""One captured call, ready to run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final
from weakref import ref

from ferrule.autograd import TracedValue
from ferrule.autograd.tape import Shape
from ferrule.base.interrupts import Whole
from ferrule.base.records import dataclass
from ferrule.engine.realize import contents_kept
from ferrule.ir.buffer import Buffer, Salvage, note_writes
from ferrule.ir.expr import Expr, Variable
from ferrule.ir.lazy import LazyBuffer
from ferrule.jit.batch import Batch
from ferrule.jit.executed import CallOfPackage
from ferrule.jit.found import FoundInputs
from ferrule.jit.guards import Watch
from ferrule.jit.inputs import InputPart, Layout
from ferrule.jit.numbers import Numbers
from ferrule.jit.places import Place
from ferrule.jit.results import Effect, Outcome, build_result
from ferrule.jit.weights import PackedWeights
from ferrule.tensor import Tensor
from ferrule.tensor.base import in_new_memory
from ferrule.tensor.limits import Limits, fit


@final
@dataclass(frozen=True)
class AtRisk:
    """The memory that a replay writes to before a run that may raise, such as a host function.

    It is restored if the run raises, so that a failed replay has no effect.
    """

    arguments: Sequence[int]
    outside: Sequence[Buffer]

    def memory(self, arguments: Sequence[Buffer]) -> list[Buffer]:
        """The memory at risk in a replay with these arguments."""
        return [*self.outside, *[arguments[number] for number in self.arguments]]


_Old: TypeAlias = tuple[Tensor, int, "ref[Tensor]", "ref[LazyBuffer]", Shape, Salvage]
"""A dropped gradient: its holder, the number of the value that is the next one, the tensor and its
node, which others may hold, the shape, and the memory."""


@final
class ReplacedGradients:
    """Old gradients, which are dropped, so that no memory is needed for two at a time.

    `holders` are tensors, each with the number of the value that will be its gradient. Views and
    lazy gradients stay until they are replaced. One that is in use elsewhere keeps its memory.
    """

    __slots__ = ("_old",)

    def __init__(self, holders: Iterable[tuple[Tensor, int]]) -> None:
        found = [_noted(holder, number) for holder, number in holders]
        self._old = [noted for noted in found if noted is not None]
        for holder, *_ in self._old:
            holder._grad = None

    def memory(self) -> dict[int, Buffer]:
        """The memory of old gradients that nobody uses, by the numbers of the values."""
        return {one[1]: one[5].buffer for one in self._old if one[5].buffer is not None}

    def put_back(self) -> None:
        """Sets the old gradients again. Nothing may have been written to their memory."""
        made: dict[int, Tensor] = {}
        nodes: dict[Salvage, LazyBuffer] = {}
        for holder, _, reference, known, shape, salvage in self._old:
            gradient = reference()
            if gradient is None:
                gradient = made.get(id(reference))
            if gradient is None:
                node = known() or nodes.get(salvage)
                if node is None:
                    assert salvage.buffer is not None, "the memory of a gradient is lost"
                    node = nodes[salvage] = LazyBuffer.in_buffer(salvage.buffer, shape)
                gradient = made[id(reference)] = Tensor._wrap(TracedValue(node))
            holder._grad = gradient


def _noted(holder: Tensor, number: int) -> _Old | None:
    """What puts a gradient back; None if it cannot be made again from its memory alone."""
    gradient = holder._grad
    if type(gradient) is not Tensor or gradient._parent is not None:
        return None
    value = gradient._cell.value
    node = value.node
    memory = node.realized
    is_plain = value.edge is None and gradient._leaf is None and gradient._requires_grad is None
    salvage = None if memory is None or not is_plain else Salvage.of(memory)
    if salvage is None:
        return None
    return holder, number, ref(gradient), ref(node), node.shape, salvage


@final
class Replay:
    """The recorded runs of one call, to be run with other arguments of the same signature.

    A replay is right as long as the guards in `watch` find no problem. Each run writes to the
    memory `changed` from outside, and perhaps to arguments. The signature identifies `objects` by
    their `id()`, so they are kept alive.
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
        found: tuple[FoundInputs, tuple[Any, ...]],
        layouts: Sequence[Layout],
        parts: Sequence[InputPart] = (),
        limits: Limits | None = None,
        at_risk: AtRisk | None = None,
        gradients: Sequence[tuple[int | Tensor, int]] = (),
    ) -> None:
        self.batch = batch
        self.watch = watch
        self.numbers = numbers
        self.found, self.found_key = found
        """The implicit inputs, and their signature in calls that may be replayed."""
        self.runs = 0
        """The number of runs."""
        self.last_call = 0
        """The number of the last call that used it, not counting calls on the fast path."""
        self.packed = packed
        self.outcome = outcome
        self.changed = [buffer.base for buffer in changed]
        self._writes = bool(changed) or watch.writes_arguments()
        self._leaves_something = self._writes or bool(outcome.effects)
        self._results = None if parts or packed else outcome.new_tensors()
        """The tensors that a run makes, if it does nothing else; None if it does."""
        self.fills = frozenset(
            [id(e.where.holder) for e in outcome.effects if isinstance(e.where, Place)]
        )
        """The holders of the places that it writes to, by `id()`; the effects keep them alive."""
        self.var_vals = dict(var_vals)
        """The values of the kernels' variables in the captured call."""
        self.objects = objects
        self.layouts = layouts
        """The shape of the memory of each given tensor, and the movements from there to it."""
        self.parts = parts
        self.limits = limits or {}
        """The conditions on the values of variables: with other values a replay may be wrong."""
        self._at_risk = at_risk
        """None if no run may raise."""
        self._gradients = gradients if at_risk is None else ()
        """The tensors whose gradients are dropped before the new ones, values by number, need
        memory. The tensors are arguments, by number, or others."""
        self.calls: list[CallOfPackage] | None = None
        """The calls of this package in the captured call, if they were noted."""

    def takes(self, var_vals: Mapping[Variable, int]) -> bool:
        """True if the limits hold with these values: no view reaches beyond its tensor."""
        return not self.limits or fit(self.limits, {**self.var_vals, **var_vals})

    def unfit(self, var_vals: Mapping[Variable, int]) -> list[Expr]:
        """The limits that do not hold with these values: each is negative."""
        values = {**self.var_vals, **var_vals}
        return [spare for spare in self.limits if not fit({spare: None}, values)]

    def run(
        self, tensors: list[Tensor], buffers: list[Buffer], var_vals: dict[Variable, int]
    ) -> Any:
        """Runs everything again with the tensors of a call and their buffers; returns the result.

        Results are in new memory. The tensors and buffers that the replay makes are appended to
        both lists.
        """
        if self._leaves_something:
            with Whole():
                return self._run(tensors, buffers, var_vals, self.outcome.effects)
        results = self._results
        if results is None:
            return self._run(tensors, buffers, var_vals, ())
        # What `_run` does, where there are but new tensors: each empty loop there takes 30 ns.
        self.runs += 1
        for device, size, dtype, _, _ in results:
            buffers.append(Buffer(device, size, dtype))
        batch = self.batch
        run = batch.run if batch.graph is None else batch.graph.replay
        run(buffers, {**self.var_vals, **var_vals} if var_vals else self.var_vals)
        place = len(buffers) - len(results)
        for _, _, _, shape, edge in results:
            tensors.append(in_new_memory(Tensor, buffers[place], shape, edge))
            place += 1
        template = self.outcome.template  # mostly one tensor
        return tensors[template] if type(template) is int else build_result(template, tensors)

    def run_apart(
        self, tensors: list[Tensor], buffers: list[Buffer], var_vals: dict[Variable, int]
    ) -> tuple[Any, list[tuple[Place, Any]]]:
        """Runs as `run` does, but leaves gradients and other places as they are.

        Returns the result, and the places with what `run` would put there. Memory is written to:
        see `written`.
        """
        result = self._run(tensors, buffers, var_vals, ())
        effects = self.outcome.effects
        return result, [(e.place(tensors), build_result(e.leaf, tensors)) for e in effects]

    def written(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The memory from before it that a run with these arguments writes to."""
        return [*self.changed, *[buffer.base for buffer in self.watch.written(buffers)]]

    def _run(
        self,
        tensors: list[Tensor],
        buffers: list[Buffer],
        var_vals: dict[Variable, int],
        effects: Sequence[Effect],
    ) -> Any:
        values = {**self.var_vals, **var_vals} if var_vals else self.var_vals
        outcome = self.outcome
        self.runs += 1
        if self._gradients and effects:
            nodes = self._in_old_memory(tensors, buffers, values)
        else:
            nodes = []
            for value in outcome.fresh:
                buffer, node = value.make(values)
                buffers.append(buffer)
                nodes.append(node)
        for part in self.parts:
            buffers.append(part.take(buffers))
        packed = self.packed
        batch = self.batch if packed is None or not packed.are_ready() else packed.batch
        if self._writes:
            self._run_and_note(batch, buffers, values)
        else:
            batch.run(buffers, values)
        for number, edge in outcome.made:
            tensors.append(Tensor._wrap(TracedValue(nodes[number], edge)))
        for shared in outcome.shared:
            tensors.append(shared.of(tensors, values))
        for number in outcome.collecting:
            tensors[number].requires_grad = True
        for effect in effects:
            effect.apply(tensors)
        return build_result(outcome.template, tensors)

    def _run_and_note(
        self, batch: Batch, buffers: list[Buffer], values: dict[Variable, int]
    ) -> None:
        """Run the batch, which writes to memory from before, and count the writes."""
        try:
            if self._at_risk is None:
                batch.run(buffers, values)
            else:
                with contents_kept(self._at_risk.memory(buffers)):
                    batch.run(buffers, values)
        finally:
            note_writes(self.changed)
            note_writes(self.watch.written(buffers))

    def _in_old_memory(
        self, tensors: list[Tensor], buffers: list[Buffer], values: Mapping[Variable, int]
    ) -> list[LazyBuffer]:
        """Memory for all values, that of the gradients which they replace where nobody uses it.

        Appends it to `buffers`, and returns the nodes.
        """
        replaced = ReplacedGradients(
            [(tensors[one] if isinstance(one, int) else one, n) for one, n in self._gradients]
        )
        try:
            memory = replaced.memory()
            fresh = enumerate(self.outcome.fresh)
            made = [value.make(values, memory.get(number)) for number, value in fresh]
        except BaseException:
            replaced.put_back()
            raise
        buffers += [buffer for buffer, _ in made]
        return [node for _, node in made]
