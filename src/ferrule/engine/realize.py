"""Runs schedules: `realize` computes nodes of the lazy graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import clear_frames
from typing import Final, TypeAlias

from ferrule.base.config import Config, config
from ferrule.base.interrupts import Whole
from ferrule.base.threadstate import this_thread
from ferrule.device import Compiled, Device
from ferrule.device.capture import GraphExecutor, JitItem, executor_of
from ferrule.device.runner import BufferCopy, CompiledASTRunner, JITRunner
from ferrule.fusion import Schedule, make_schedule
from ferrule.fusion.graph import toposort
from ferrule.fusion.plans.execution_plan import ExecutionPlan, kernels_by_device
from ferrule.ir.buffer import Buffer, note_writes
from ferrule.ir.expr import Length, Variable
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LazyOp, LoadOps, ScheduleItem
from ferrule.ir.storage import (
    Storage,
    leave_pending,
    none_pending,
    pending_writes,
    turn,
    unfinished,
)

_NO_VALUES: Final[dict[Variable, int]] = {}

Runners: TypeAlias = Mapping[str, Mapping[LazyOp, JITRunner]]
"""The runners by device and AST."""


@contextmanager
def others_turn() -> Iterator[None]:
    """A block that gives the turn to other threads, inside of a block that has it."""
    turn.release()
    try:
        yield
    finally:
        turn.acquire()


def realize(nodes: Sequence[LazyBuffer]) -> None:
    """Computes `nodes`; afterwards each has a Buffer.

    All memory is allocated and all kernels are prepared before the first one runs.

    If a write among `nodes` raises, nothing is written: all writes among them are withdrawn, with
    the writes made of them, and the memory has its earlier version. If another of the nodes raises,
    the writes are done. Pending writes that only joined are done in both cases.
    """
    for node in nodes:
        if node.realized is None:
            break
    else:
        return
    with turn:
        try:
            _compute(nodes)
        except Exception as error:
            this_thread.state.failures += 1
            clear_frames(error.__traceback__)  # which refer to nodes, and to memory
            with unrecorded():
                is_computed = _computed_alone(nodes)
                if not is_computed:
                    _withdraw(nodes)
            if not is_computed:
                raise
        except BaseException:  # an interrupt, which says nothing about the writes
            this_thread.state.failures += 1
            raise


def _compute(nodes: Sequence[LazyBuffer]) -> None:
    """Compute nodes, with all pending writes.

    A signal's handler, or a destructor, may call this in the middle of a computation of its own
    thread. The pending writes are left to that one, which may be at them.
    """
    state = this_thread.state
    if state.computes:
        with none_pending():
            _compute_now(nodes)
        return
    state.computes = True
    try:
        _compute_now(nodes)
    finally:
        state.computes = False


def _compute_now(nodes: Sequence[LazyBuffer]) -> None:
    schedule = make_schedule(nodes)
    use, settings = schedule.plan.use, config()
    if use.settings is not settings or use.tuned != Compiled.tuned:
        _prepare_plan(schedule.plan, settings)
    if not use.written:
        _run_all(schedule)
        schedule.commit()
        return
    with Whole():  # the writes would be done again, as they are still to be done until `commit`
        if use.last_to_raise:
            with contents_kept(_at_risk(schedule)):
                _run_all(schedule)
        else:
            _run_all(schedule)
        schedule.commit()


def _prepare_plan(plan: ExecutionPlan, settings: Config) -> None:
    """Make the runners of all steps."""
    tuned = Compiled.tuned
    runners = prepare(plan.kernels)
    found = [
        step.sized(runners[plan.places[step.places[0]].device][step.ast])
        if not isinstance(step.ast.op, LoadOps)
        else None
        if step.ast.op is LoadOps.FROM
        else step.ast.arg
        for step in plan.steps
    ]
    use = plan.use
    use.settings, use.tuned, use.runners, use.runs, use.graph = settings, tuned, found, 0, None


def _run_all(schedule: Schedule) -> None:
    state = this_thread.state
    if state.observer is None and _is_run_at_once(schedule):
        return
    lines = state.lines
    runners = schedule.plan.use.runners
    for runner, (step, buffers, values) in zip(runners, schedule.runs(), strict=True):
        if lines is not None:
            lines.begin(None if step.node is None else schedule.nodes[step.node].serial)
        if runner is None:
            runner = _copier(buffers)
        if state.observer is not None and any([isinstance(v, Length) for v in values]):
            # Replays know the variables of the arguments alone, and have the sizes of this call.
            runner, values = runner.at(values), {}
        runner.exec(buffers, values)


def _is_run_at_once(schedule: Schedule) -> bool:
    """Run all steps of a plan by one call of the device, from the plan's second run on.

    False if nothing was run: the device has no such call, or is in the middle of it.
    """
    use = schedule.plan.use
    graph = use.graph
    if graph is None:
        use.runs += 1
        if use.runs != 2:
            return False
        graph = use.graph = _graph_of(schedule)
        if graph is None:
            return False
    if graph.inside:
        return False
    values = dict(schedule.values[0]) if graph.vars else _NO_VALUES
    if not use.written:
        graph.replay(schedule.buffers, values)
        return True
    try:
        graph.replay(schedule.buffers, values)
    finally:
        note_writes([schedule.buffers[place] for place in use.written])
    return True


def _graph_of(schedule: Schedule) -> GraphExecutor | None:
    """The graph executor for a plan, where the devices have one that takes it as it is."""
    plan, use = schedule.plan, schedule.plan.use
    settings = config()
    executors = {executor_of(device) for device in {place.device for place in plan.places}}
    if len(executors) != 1 or settings.DEBUG >= 2 or settings.JIT == 2:
        return None
    (executor,) = executors
    if executor is None or not executor[0].takes_plans:
        return None
    values = dict(schedule.values[0]) if schedule.values else {}
    if any([known is not schedule.values[0] for known in schedule.values]):
        return None
    items: list[JitItem] = []
    for runner, (_, buffers, _) in zip(use.runners, schedule.runs(), strict=True):
        made = _copier(buffers) if runner is None else runner
        if not isinstance(made, CompiledASTRunner | BufferCopy):
            return None
        items.append(JitItem(made, list(buffers)))
    graph: GraphExecutor = executor[0](items, schedule.buffers, values)
    for item in items:
        item.rawbufs[:] = [None] * len(item.rawbufs)  # or the graph would keep them alive
    return graph


def _at_risk(schedule: Schedule) -> list[Buffer]:
    """The existing memory that is written to before a step that may raise.

    If the step raises, all of these writes are still to be done, so that the memory must have its
    old contents.
    """
    use = schedule.plan.use
    steps = schedule.plan.steps[: use.last_to_raise]
    written = {place for step in steps for place in step.places[: step.outputs]}
    return [schedule.buffers[place] for place in use.written if place in written]


# *** writes when something raises ***


def settle_writes() -> None:
    """Do all writes that are still pending.

    A write that raises is left to the call that reads it, which gets the error.
    """
    pending = pending_writes()
    if not pending or this_thread.state.computes:
        return
    with turn:
        if not _is_computed([storage.node for storage in pending]):
            _settle_each(pending)


def _settle_each(pending: Sequence[Storage]) -> None:
    """Do the writes that can be done, and leave the others to the calls that read them."""
    with none_pending():
        left = [storage for storage in pending if not _is_computed([storage.node])]
    for storage in left:
        leave_pending(storage)


def _is_computed(nodes: Sequence[LazyBuffer]) -> bool:
    """Compute nodes; False if that raises, and nothing is done."""
    try:
        _compute(nodes)
    except Exception as error:
        this_thread.state.failures += 1
        clear_frames(error.__traceback__)
        if config().DEBUG >= 1:
            print(f"a write raises, and is left to whoever reads it: {error}")
        return False
    return True


@contextmanager
def unrecorded() -> Iterator[None]:
    """A block whose runs are part of no capture, since a capture that raised is of no use."""
    state = this_thread.state
    before = state.observer, state.read_guard, state.watched_since
    state.observer = state.read_guard = state.watched_since = None
    try:
        yield
    finally:
        state.observer, state.read_guard, state.watched_since = before


def _computed_alone(nodes: Sequence[LazyBuffer]) -> bool:
    """Compute nodes without the pending writes that joined, and then these, one by one.

    False if there are none, or if the nodes raise alone, too.

    A capture has recorded what ran: there nothing is run again.
    """
    if this_thread.state.observer is not None:
        return False
    needed = _below(nodes)
    others = [storage for storage in pending_writes() if storage.node.serial not in needed]
    if not others:
        return False
    with none_pending():
        if not _is_computed(nodes):
            return False
    _settle_each(others)
    return True


def _below(nodes: Iterable[LazyBuffer]) -> set[int]:
    """The serial numbers of all nodes below."""
    return {node.serial for node in toposort(nodes, everything=True)}


def _withdraw(nodes: Sequence[LazyBuffer]) -> None:
    """Withdraw the writes among nodes, and all writes made of them.

    Earlier writes that the nodes need are done; one that raises is withdrawn as well.
    """
    state = this_thread.state
    storages = unfinished([node.owner for node in toposort(nodes, everything=True)])
    failed = {node.serial for node in nodes}
    written = [storage for storage in storages if storage.node.serial in failed]
    others = failed.difference([storage.node.serial for storage in written])
    block = state.undoable
    if block is not None or not (others and _are_done(written)):
        withdrawn: set[int] = set()
        for storage in written:
            _take_back(storage, withdrawn)
        while any([_take_back_if_made_of(storage, withdrawn) for storage in storages]):
            pass
    if block is not None:  # which withdraws all of its writes, the earlier ones as well
        storages = [storage for storage in storages if storage not in block]
    below = _below(nodes)
    settle_or_withdraw([storage for storage in storages if storage.node.serial in below])


def _are_done(written: Sequence[Storage]) -> bool:
    """Do all of these writes; False if that raises."""
    with none_pending():
        return _is_computed([storage.node for storage in written])


def _take_back(storage: Storage, withdrawn: set[int]) -> bool:
    serial = storage.node.serial
    if not storage.withdraw():
        return False
    withdrawn.add(serial)
    return True


def _take_back_if_made_of(storage: Storage, withdrawn: set[int]) -> bool:
    """Withdraw a version that is made of withdrawn ones; True if it was."""
    return not withdrawn.isdisjoint(_below([storage.node])) and _take_back(storage, withdrawn)


def settle_or_withdraw(storages: Iterable[Storage]) -> None:
    """Do the last write to each storage that can be done, and withdraw those after it."""
    with turn, unrecorded(), none_pending():
        for storage in sorted(storages, key=lambda storage: storage.node.serial):
            while storage.node.base_const() is None and not _is_computed([storage.node]):
                if not storage.withdraw():
                    break


@contextmanager
def contents_kept(memory: Iterable[Buffer]) -> Iterator[None]:
    """A block that restores the contents of memory if it raises."""
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
    """Run the items of a schedule in order."""
    runners = prepare(kernels_by_device([(item.out.device, item.ast) for item in items]))
    for item in items:
        _runner(item.ast, item.buffers, runners).exec(list(item.buffers), item.var_vals)


def prepare(kernels: Mapping[str, Sequence[LazyOp]]) -> Runners:
    """Make the runners of all kernels, given by device, each device's together."""
    return {device: Device[device].prepare(asts) for device, asts in kernels.items()}


def _runner(ast: LazyOp, buffers: Sequence[Buffer], runners: Runners) -> JITRunner:
    """The runner of a kernel, of a copy between devices, or the user's own."""
    out = buffers[0]
    if not isinstance(ast.op, LoadOps):
        return runners[out.device][ast]
    if ast.op is LoadOps.FROM:
        return _copier(buffers)
    runner: JITRunner = ast.arg
    return runner


def _copier(buffers: Sequence[Buffer]) -> BufferCopy:
    """The runner of a copy between devices: to the first buffer, from the second."""
    dest, source = buffers
    return BufferCopy(dest.device, dest.nbytes, source.device)
