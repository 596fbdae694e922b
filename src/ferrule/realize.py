"""Runs schedules: `realize` computes nodes of the lazy graph."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.device import Device
from ferrule.helpers import lock_across_forks
from ferrule.lazy import LazyBuffer
from ferrule.ops import LazyOp, LoadOps, ScheduleItem
from ferrule.runner import BufferCopy, JITRunner
from ferrule.schedule import make_schedule

_turn = lock_across_forks()


def realize(nodes: Sequence[LazyBuffer]) -> None:
    """Computes `nodes`; afterwards each has a Buffer.

    All kernels are prepared before the first one runs. Threads take turns, because equal
    expressions are one node in all of them, and a write may happen once only.
    """
    if all([node.realized is not None for node in nodes]):
        return
    with _turn:
        schedule = make_schedule(nodes)
        run(schedule.items)
        schedule.commit()


def run(items: Sequence[ScheduleItem]) -> None:
    """Runs the items of a schedule in order."""
    prepare(items)
    for item in items:
        run_item(item)


def prepare(items: Sequence[ScheduleItem]) -> None:
    """Makes the runners of all kernels, each device's together."""
    asts: dict[str, dict[LazyOp, None]] = {}
    for item in items:
        if not isinstance(item.ast.op, LoadOps):
            asts.setdefault(item.out.device, {})[item.ast] = None
    for device, kernels in asts.items():
        Device[device].prepare(list(kernels))


def run_item(item: ScheduleItem) -> None:
    """Runs one item: a kernel, a copy between devices, or a runner of the user's."""
    runner: JITRunner
    if item.ast.op is LoadOps.FROM:
        runner = BufferCopy(item.out.device, item.out.nbytes, item.inputs[0].device)
    elif item.ast.op is LoadOps.CUSTOM:
        runner = item.ast.arg
    else:
        runner = Device[item.out.device].get_runner(item.ast)
    runner.exec(list(item.buffers), item.var_vals)
