"""Runs schedules: `realize` computes nodes of the lazy graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from ferrule.buffer import Buffer, newest_serial
from ferrule.config import config
from ferrule.device import Device
from ferrule.helpers import lock_across_forks
from ferrule.interrupts import Whole
from ferrule.lazy import LazyBuffer
from ferrule.ops import LazyOp, LoadOps, ScheduleItem
from ferrule.runner import BufferCopy, JITRunner
from ferrule.schedule import Schedule, make_schedule
from ferrule.schedule.recipe import kernels_by_device
from ferrule.storage import Storage, leave_pending, pending_writes

Runners: TypeAlias = Mapping[str, Mapping[LazyOp, JITRunner]]
"""By device and AST."""

_turn = lock_across_forks()


def realize(nodes: Sequence[LazyBuffer]) -> None:
    """Computes `nodes`; afterwards each has a Buffer.

    All kernels are prepared before the first one runs. Threads take turns, because equal
    expressions are one node in all of them, and a write may happen once only.
    """
    if all([node.realized is not None for node in nodes]):
        return
    with _turn:
        newest = newest_serial()
        schedule = make_schedule(nodes)
        runners = prepare(schedule.recipe.kernels)
        if not schedule.recipe.writes_over:
            _run_and_commit(schedule, runners, newest)
            return
        with Whole():  # the writes would be done again, as they are still to be done until `commit`
            _run_and_commit(schedule, runners, newest)


def _run_and_commit(schedule: Schedule, runners: Runners, newest: int) -> None:
    if schedule.recipe.calls_host:
        with contents_kept(_at_risk(schedule, newest)):
            _run_all(schedule, runners)
    else:
        _run_all(schedule, runners)
    schedule.commit()


def _run_all(schedule: Schedule, runners: Runners) -> None:
    for step, buffers, values in schedule.runs():
        _runner(step.ast, buffers, runners).exec(buffers, values)


def _at_risk(schedule: Schedule, newest: int) -> list[Buffer]:
    """The memory from before, with serial numbers below `newest`, that is written to before a
    function of the host runs, which may raise: all of these writes are then still to be done.
    """
    runs = list(schedule.runs())
    last = max([n for n, (step, _, _) in enumerate(runs) if step.ast.op is LoadOps.CUSTOM])
    written = [buffer for step, buffers, _ in runs[:last] for buffer in buffers[: step.outputs]]
    return [buffer for buffer in dict.fromkeys(written) if buffer.base.serial < newest]


def settle_writes() -> None:
    """Does all writes that are still pending.

    One that raises is no business of a call that does not read it; whoever does gets the error.
    """
    pending = pending_writes()
    if not pending:
        return
    try:
        realize([storage.node for storage in pending])
    except Exception:
        for storage in pending:
            _settle_alone(storage)


def _settle_alone(storage: Storage) -> None:
    try:
        realize([storage.node])
    except Exception as error:
        leave_pending(storage)
        if config().DEBUG >= 1:
            print(f"a write raises, and is left to whoever reads it: {error}")


@contextmanager
def contents_kept(memory: Iterable[Buffer]) -> Iterator[None]:
    """A block after which these contain what they did before, if it raises."""
    kept = [(buffer, Buffer(buffer.device, buffer.size, buffer.dtype)) for buffer in memory]
    for buffer, contents in kept:
        _copy(contents, buffer)
    try:
        yield
    except BaseException:
        for buffer, contents in kept:
            _copy(buffer, contents)
            buffer.note_write()
        raise


def _copy(to: Buffer, source: Buffer) -> None:
    BufferCopy(to.device, to.nbytes, source.device)([to, source], {})


def run(items: Sequence[ScheduleItem]) -> None:
    """Runs the items of a schedule in order."""
    runners = prepare(kernels_by_device([(item.out.device, item.ast) for item in items]))
    for item in items:
        _runner(item.ast, item.buffers, runners).exec(list(item.buffers), item.var_vals)


def prepare(kernels: Mapping[str, Sequence[LazyOp]]) -> Runners:
    """Makes the runners of all kernels, given by device, each device's together."""
    return {device: Device[device].prepare(asts) for device, asts in kernels.items()}


def _runner(ast: LazyOp, buffers: Sequence[Buffer], runners: Runners) -> JITRunner:
    """What runs a kernel, a copy between devices, or a runner of the user's."""
    out = buffers[0]
    if not isinstance(ast.op, LoadOps):
        return runners[out.device][ast]
    if ast.op is LoadOps.FROM:
        return BufferCopy(out.device, out.nbytes, buffers[1].device)
    runner: JITRunner = ast.arg
    return runner
