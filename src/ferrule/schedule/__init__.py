"""From a lazy graph to a list of kernels: cut, place in memory, order, and build the ASTs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

from ferrule.buffer import Buffer
from ferrule.device import Device
from ferrule.dtype import dtypes
from ferrule.expr import Variable
from ferrule.lazy import LazyBuffer
from ferrule.memory import Lifetime, plan_memory
from ferrule.ops import LazyOp, LoadOps, ScheduleItem
from ferrule.schedule.cut import cut
from ferrule.schedule.graph import Graph, build_graph
from ferrule.schedule.hazards import Hazards
from ferrule.schedule.slots import Slot, Slots
from ferrule.schedule.tasks import Reader, Task
from ferrule.schedule.trees import TreeBuilder
from ferrule.target import Target, detect_cpu

__all__ = ["Schedule", "create_schedule", "make_schedule"]


@final
@dataclass(frozen=True)
class Schedule:
    """Kernels to run in order, and the buffers that the nodes have once they have run."""

    items: list[ScheduleItem]
    results: list[tuple[LazyBuffer, Buffer]]

    def commit(self) -> None:
        """Tells the nodes where their values are."""
        for node, buffer in self.results:
            node.set_realized(buffer)


def create_schedule(nodes: Sequence[LazyBuffer]) -> list[ScheduleItem]:
    """The kernels that compute `nodes`, to be run in this order by the caller.

    From now on the nodes count as realised.
    """
    schedule = make_schedule(nodes)
    schedule.commit()
    return schedule.items


def make_schedule(nodes: Sequence[LazyBuffer]) -> Schedule:
    """What has to run to compute `nodes`; the graph stays as it is until `commit`."""
    graph = build_graph(nodes)
    if not graph.requested:
        return Schedule([], [])
    roots, groups = cut(graph, _target(nodes[0].device))
    reader = Reader(roots)
    tasks = [Task(group) for group in groups]
    hazards = Hazards(graph, tasks, reader)
    order = hazards.ordered()
    works = [_work(task, reader, hazards.slots, graph.symbolic) for task in order]
    results = [(node, _buffer(slot)) for node, slot in _results(graph, roots, hazards)]
    _allocate(works)
    return Schedule([work.item() for work in works], results)


@cache
def _target(device: str) -> Target:
    """What the scheduler assumes about a device; one that interprets is weighed as the host."""
    target: Target | None = getattr(Device[device], "linearizer_opts", None)
    return detect_cpu() if target is None else target


@final
@dataclass(frozen=True)
class _Work:
    """A ScheduleItem whose memory is not allocated yet."""

    ast: LazyOp
    slots: list[Slot]
    outputs: int
    var_vals: dict[Variable, int]

    def item(self) -> ScheduleItem:
        buffers = [_buffer(slot) for slot in self.slots]
        outputs = tuple(buffers[: self.outputs])
        return ScheduleItem(
            self.ast, outputs[0], tuple(buffers[self.outputs :]), self.var_vals, outputs
        )


def _work(task: Task, reader: Reader, slots: Slots, symbolic: bool) -> _Work:
    if task.is_kernel:
        builder = TreeBuilder(task, reader, slots, symbolic)
        ast = builder.build()
        outputs = len({slots[root] for root in task.outputs})
        return _Work(ast, builder.slots, outputs, builder.var_vals)
    root = task.outputs[0]
    sources = [task.instead.get(source, source) for source in root.srcs]
    ast = LazyOp(root.op, (), root.arg)
    return _Work(ast, [slots[node] for node in (root, *sources)], 1, {})


def _allocate(works: list[_Work]) -> None:
    """Memory for the intermediate results of each device: parts of one arena."""
    first: dict[Slot, int] = {}
    last: dict[Slot, int] = {}
    for step, work in enumerate(works):
        for slot in work.slots:
            if slot.buffer is None:
                first.setdefault(slot, step)
                last[slot] = step
    devices = dict.fromkeys([slot.device for slot in first])
    for device in devices:
        slots = [slot for slot in first if slot.device == device]
        plan = plan_memory([Lifetime(slot.nbytes, first[slot], last[slot]) for slot in slots])
        arena = Buffer(device, plan.nbytes, dtypes.uint8)
        for slot, offset in zip(slots, plan.offsets, strict=True):
            slot.buffer = arena.view(offset // slot.dtype.itemsize, slot.size, slot.dtype)


def _buffer(slot: Slot) -> Buffer:
    if slot.buffer is None:
        slot.buffer = Buffer(slot.device, slot.size, slot.dtype)
    return slot.buffer


def _results(
    graph: Graph, roots: set[LazyBuffer], hazards: Hazards
) -> list[tuple[LazyBuffer, Slot]]:
    """The nodes that get a buffer: those asked for, and those still needed outside."""
    found = [(old, hazards.slots[copy]) for old, copy in hazards.copies.items()]
    held: set[LazyBuffer] = set()
    for node in reversed(graph.order):
        needed = node in graph.external or node in held
        if node.realized is not None:
            continue
        requested = node in graph.requested
        if requested or (node in roots and node.op is not LoadOps.CONST):
            if (requested or needed) and node not in hazards.copies:
                found.append((node, hazards.slots[node]))
        elif needed:
            held.update(node.srcs)
    return found
