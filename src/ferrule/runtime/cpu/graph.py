"""A batch of captured kernels on the CPU, replayed by one native call.

The argument tables of all kernels are ready in memory. A replay gives the addresses of the inputs
and the values of the variables to the native code, which writes them to the tables' slots and runs
one kernel after the other. The kernels of several devices CPU, CPU:1 and so on are a lane for each
device, and lanes run at once where their kernels do not wait for each other (`native_lanes`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, final

from ferrule.base.config import config
from ferrule.base.helpers import GlobalCounters
from ferrule.base.records import dataclass
from ferrule.device import BufferCopy, CompiledASTRunner
from ferrule.device.capture import GraphException, GraphExecutor, JitItem
from ferrule.device.lanes import Lane, lanes_of
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.runtime.cpu.memory import CPUMemory
from ferrule.runtime.cpu.pool import (
    LANE_THREADS,
    SLOT_BYTES,
    batch_record,
    lane_records,
    record,
)
from ferrule.runtime.cpu.program import NativeProgram, native_runtime


@final
@dataclass(frozen=True)
class _Step:
    """One item as the native code takes it: two functions, and a table for them."""

    body: int
    extent: int
    table: list[int]
    n_buffers: int
    """The number of slots that are addresses; the values of `variables` follow."""
    variables: tuple[Variable, ...]


@final
class CPUGraph(GraphExecutor):
    """The items of `jit_cache`, ready to be replayed with other inputs and other values.

    If an item uses one of `input_rawbuffers`, each call replaces it by its own input of that
    number. All other buffers are those of the items, which the graph keeps alive. Inputs may share
    memory with each other, or with those buffers, only if they did when the graph was built.

    Raises `GraphException` if an item is neither a kernel of the CPU nor a copy inside it.
    """

    takes_plans = True
    spans_devices = True

    def __init__(
        self,
        jit_cache: list[JitItem],
        input_rawbuffers: Sequence[Buffer],
        var_vals: dict[Any, int],
    ) -> None:
        super().__init__(jit_cache, input_rawbuffers)
        steps = [_step(item, var_vals) for item in jit_cache]
        self._inputs = sorted(set(self.replaced.values()))
        lanes = lanes_of(jit_cache)
        self._n_lanes = len(lanes)
        self._build(steps, lanes)
        self._runtime = native_runtime()

    def _build(self, steps: list[_Step], lanes: Sequence[Lane]) -> None:
        """Lays out the native records: tables, items, patches, and the batch that has them all."""
        runtime = native_runtime()
        self._tables, address = record(value for step in steps for value in step.table)
        places = {number: place for place, number in enumerate(self._inputs)}
        items: list[list[int]] = []
        patches: list[int] = []
        for j, step in enumerate(steps):
            items.append([step.body, step.extent, address, 0])
            for i in range(step.n_buffers):
                if (j, i) in self.replaced:
                    patches += [address + SLOT_BYTES * i, places[self.replaced[j, i]], 0]
            for i, variable in enumerate(step.variables, start=step.n_buffers):
                place = len(places) + self.vars.index(variable)
                patches += [address + SLOT_BYTES * i, place, 0]
            address += SLOT_BYTES * len(step.table)
        self._patches, patches_at = record(patches)
        n_patches = len(patches) // 3
        if len(lanes) == 1:
            self._lanes = [_LaneRecords(items, patches_at, n_patches, runtime.pool)]
            self._batch = self._lanes[0].batch
        else:
            self._lanes = [
                _LaneRecords([items[j] for j in lane.steps], 0, 0, runtime.lane_pool(k), lane)
                for k, lane in enumerate(lanes)
            ]
            self._lane_records, lanes_at = lane_records([lane.entry() for lane in self._lanes])
            self._batch, _ = batch_record(
                *(0, 0, patches_at, n_patches, runtime.pool, 0),
                lanes=lanes_at,
                n_lanes=len(lanes),
                gate=runtime.gate,
            )
        self._replay = runtime.replayer(self._batch.buffer_info()[0])

    def replay(
        self, input_rawbuffers: Sequence[Buffer], var_vals: dict[Any, int], wait: bool = False
    ) -> float | None:
        """Run all items, in order; they are finished on return.

        Gives the seconds it took if `wait`. A `KeyboardInterrupt` leaves the graph as good as
        before.
        """
        settings = config()
        if settings.DEBUG >= 2:
            wait = True
        values: list[int] = []
        note = values.append
        for number in self._inputs:
            memory = input_rawbuffers[number]._buf
            note(0 if memory is None else memory.address)
        if self.vars:
            values += [variable.infer(var_vals) for variable in self.vars]
        threads = settings.FERRULE_NUM_THREADS
        if threads > 1:
            threads = self._runtime.threads(settings)
            if self._n_lanes > 1:
                share = self._runtime.lane_threads(settings, self._n_lanes)
                self._batch[LANE_THREADS] = share
        if self.inside:
            raise self.reentered()
        started = time.perf_counter() if wait else 0.0
        self.inside = True
        try:
            more = self._replay(0, threads, values)
            while more:
                # Its slice of time was over; here Python handles signals.
                more = self._replay(1, threads, values)
        finally:
            self.inside = False
        if self.cost is not None and not wait:  # what `count` does, without a call
            kernels, ops, mem = self.cost
            GlobalCounters.kernel_count += kernels
            GlobalCounters.global_ops += ops
            GlobalCounters.global_mem += mem
            return None
        seconds = time.perf_counter() - started if wait else None
        self.count(len(input_rawbuffers), var_vals, seconds)
        return seconds


@final
class _LaneRecords:
    """The native records of a batch of items; with a lane, those of the lane's segments as well."""

    def __init__(
        self,
        items: Sequence[Sequence[int]],
        patches: int,
        n_patches: int,
        pool: int,
        lane: Lane | None = None,
    ) -> None:
        n = len(items)
        self._items, items_at = record(value for item in items for value in item)
        self.batch, self._batch_at = batch_record(items_at, n, patches, n_patches, pool, n)
        segments = () if lane is None else lane.segments
        slots = [[n - segment.stop, *segment.needs] for segment in segments]
        self._n_segments = len(slots)
        self._segments, self._segments_at = record(value for slot in slots for value in slot)

    def entry(self) -> tuple[int, int, int]:
        """The lane, as `lane_records` takes it."""
        return self._batch_at, self._segments_at, self._n_segments


def _step(item: JitItem, var_vals: dict[Any, int]) -> _Step:
    runner: Any = item.prg
    handles: list[Any] = [None if buffer is None else buffer._buf for buffer in item.rawbufs]
    if isinstance(runner, CompiledASTRunner) and isinstance(runner.program, NativeProgram):
        addresses = [0 if handle is None else handle.address for handle in handles]
        values = [*runner.fixed, *[variable.infer(var_vals) for variable in runner.vars]]
        program = runner.program
        return _Step(program.body, program.extent, addresses + values, len(handles), runner.vars)
    if isinstance(runner, BufferCopy) and all(isinstance(handle, CPUMemory) for handle in handles):
        return _copy_step(*handles)
    name = runner.name or type(runner).__name__
    raise GraphException(f"CPUGraph: {name} is neither a kernel of the CPU nor a copy inside it")


def _copy_step(dest: CPUMemory, src: CPUMemory) -> _Step:
    distance = abs(dest.address - src.address)
    if dest.nbytes != src.nbytes or 0 < distance < src.nbytes:
        raise GraphException(
            f"CPUGraph: a copy of {src.nbytes} bytes to {dest.nbytes} bytes, {distance} bytes away"
        )
    body, extent = native_runtime().copy
    return _Step(body, extent, [dest.address, src.address, src.nbytes], 2, ())
