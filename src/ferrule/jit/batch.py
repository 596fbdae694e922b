"""Captured items with exchangeable inputs: consecutive kernels run as one graph where possible."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final, final

from ferrule.base.config import config
from ferrule.device import BufferCopy, CompiledASTRunner
from ferrule.device.capture import (
    GraphException,
    GraphExecutor,
    JitItem,
    executor_of,
    get_input_replace,
)
from ferrule.device.runner import ASTRunner
from ferrule.fusion import target_of
from ferrule.fusion.dynamic.lengths import uses_worth_compiling, uses_worth_kernels
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable, as_expr

_TIMED_RUNS: Final = 2
"""Runs that are timed: one may be interrupted, or find nothing in the caches."""


@final
class Batch:
    """The items of a replay, with runs of kernels handed to the devices' graph executors.

    Each run replaces the `inputs` in the items by its own buffers, number by number. The buffers
    are not kept alive.
    """

    def __init__(
        self, items: list[JitItem], inputs: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> None:
        self.kernels = len(items)
        """The number of items before any were handed to graph executors."""
        self.enough = _enough(items)
        """The number of runs after which kernels for the sizes of this call pay."""
        self._general = len({one.ast for one in _for_any_size(items)})
        self._seconds: list[float] = []
        self.items = _batched(items, inputs, var_vals) if config().JIT != 2 else items
        self.kinds = [(buffer.device, buffer.size, buffer.dtype) for buffer in inputs]
        """The device, the number of elements and the dtype of each input."""
        self.input_replace = get_input_replace(self.items, inputs)
        for j, i in self.input_replace:
            self.items[j].rawbufs[i] = None
        graph = self.items[0].prg if len(self.items) == 1 else None
        self.graph = graph if isinstance(graph, GraphExecutor) else None
        """The graph, if it holds all items."""

    @property
    def is_timed(self) -> bool:
        """True if enough runs were timed; always, without kernels for any size."""
        return self.enough == inf or len(self._seconds) == _TIMED_RUNS

    def note_time(self, seconds: float) -> None:
        """Notes the time of the calling thread in a run: kernels for any size may be far slower
        than estimated.

        The least time counts, as other things may happen in a run.
        """
        self._seconds.append(seconds)
        if self.is_timed:
            uses = uses_worth_compiling(self._general, min(self._seconds))
            self.enough = min(self.enough, uses)

    def run(self, buffers: list[Any], var_vals: dict[Variable, int]) -> None:
        """Runs everything, with these buffers as inputs. The caller has the `turn`."""
        if self.graph is not None:
            self.graph.replay(buffers, var_vals)
            return
        items = self.items
        for (j, i), number in self.input_replace.items():
            items[j].rawbufs[i] = buffers[number]
        try:
            for item in items:
                item.prg([b for b in item.rawbufs if b is not None], var_vals, jit=True)
        finally:
            for j, i in self.input_replace:
                items[j].rawbufs[i] = None


def _enough(items: Sequence[JitItem]) -> float:
    """The number of runs after which kernels pay that are for one length, not for any."""
    runners = _for_any_size(items)
    if not runners:
        return inf
    costs = [(as_expr(one.op_estimate).max, as_expr(one.mem_estimate).max) for one in runners]
    different = len({runner.ast for runner in runners}) / len(runners)
    return different * uses_worth_kernels(costs, target_of(runners[0].device))


def _for_any_size(items: Sequence[JitItem]) -> list[ASTRunner]:
    """The runners of kernels for any length, given those of this call."""
    return [item.prg for item in items if isinstance(item.prg, ASTRunner) and item.prg.is_general]


def _batched(
    items: Sequence[JitItem], inputs: Sequence[Buffer], var_vals: dict[Variable, int]
) -> list[JitItem]:
    """The items, with consecutive ones merged where one graph executor takes them."""
    batched: list[JitItem] = []
    batch: list[JitItem] = []
    for item in items:
        if batch and _executor(item) != _executor(batch[0]):
            batched += _graph(batch, inputs, var_vals)
            batch = []
        if _executor(item) is None:
            batched.append(item)
        else:
            batch.append(item)
    return batched + _graph(batch, inputs, var_vals)


def _executor(item: JitItem) -> tuple[Any, str] | None:
    """The graph executor that takes an item, and the device that it is for.

    The device is empty for an executor of several. Equal ones take the items as one batch. None for
    an item that ends a batch: a function of the host, a loop, or a copy between devices that no
    executor spans.
    """
    if not isinstance(item.prg, CompiledASTRunner | BufferCopy):
        return None
    found = {executor_of(buffer.device) for buffer in item.rawbufs if buffer is not None}
    found.add(executor_of(item.prg.device))
    return found.pop() if len(found) == 1 else None


def _graph(
    batch: list[JitItem], inputs: Sequence[Buffer], var_vals: dict[Variable, int]
) -> list[JitItem]:
    """The batch as one item, or unchanged if no executor can take it."""
    executor = _executor(batch[0]) if batch else None
    if executor is None:
        return batch
    graph_class, _ = executor
    try:
        graph = graph_class(batch, inputs, var_vals)
    except GraphException as error:
        if config().DEBUG >= 1:
            print(f"replaying {len(batch)} kernels one by one: {error}")
        return batch
    for j, i in get_input_replace(batch, inputs):
        batch[j].rawbufs[i] = None
    return [JitItem(graph, list(inputs))]
