"""A loop of kernels on the CPU, run by one native call.

There are argument tables for two trips, since carried values take turns between two memories. After
both, the native code moves the addresses in the tables on by the strides of two trips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from ferrule.base.config import config
from ferrule.device import BufferCopy, CompiledASTRunner
from ferrule.device.loop import LoopStep, Operand, Stream
from ferrule.ir.buffer import Buffer
from ferrule.runtime.cpu.pool import SLOT_BYTES, batch_record, record
from ferrule.runtime.cpu.program import NativeProgram, native_runtime

_TOTAL: Final = 7  # the slot of a batch's record with the number of items to run
_LEFT: Final = 8  # the slot with the number of those that are left
_FOREVER: Final = 1 << 62  # items
_TABLES: Final = 2  # trips that have tables of their own


def cpu_loop(steps: Sequence[LoopStep], condition: Operand | None) -> CPULoop | None:
    """The loop of these steps; None if one is neither a kernel nor a copy.

    It ends before the number of trips is reached, if the `condition` is false after a trip.
    """
    is_native = all([_is_native(step) for step in steps])
    return CPULoop(steps, condition) if is_native else None


def _is_native(step: LoopStep) -> bool:
    runner = step.runner
    if isinstance(runner, BufferCopy):
        return True
    return isinstance(runner, CompiledASTRunner) and isinstance(runner.program, NativeProgram)


@final
class CPULoop:
    """Steps that are run trip after trip."""

    def __init__(self, steps: Sequence[LoopStep], condition: Operand | None) -> None:
        self._steps = steps
        self._condition = condition
        self._free: list[_Tables] = []

    def run(self, buffers: Sequence[Buffer], trips: int | None, var_vals: Mapping[Any, int]) -> int:
        """Run so many trips on buffers; None: any number. Returns how many it were."""
        # A signal's handler may run the same loop in the middle of this: each run has its tables.
        tables = self._free.pop() if self._free else _Tables(self._steps, self._condition)
        try:
            return tables.run(buffers, trips, var_vals)
        finally:
            self._free.append(tables)


@final
class _Tables:
    """The argument tables of all steps, and the records that the native code reads."""

    def __init__(self, steps: Sequence[LoopStep], condition: Operand | None) -> None:
        runtime = native_runtime()
        self._runtime = runtime
        self._n_items = len(steps) + (condition is not None)
        operands = [operand for step in steps for operand in step.operands]
        operands += [] if condition is None else [condition]
        self._streams = list(dict.fromkeys([operand.stream for operand in operands]))
        variables = [variable for step in steps for variable in step.runner.vars]
        self._variables = list(dict.fromkeys(variables))
        inputs = {stream: number for number, stream in enumerate(self._streams)}
        values = {v: len(inputs) + number for number, v in enumerate(self._variables)}
        self._trips, trips_at = record([0])
        self._batch, batch_at = batch_record(0, 0, 0, 0, runtime.pool, 0)
        entries = [_entries(step) for step in steps]
        functions = [_functions(step) for step in steps]
        if condition is not None:
            place = condition.stream, condition.offset
            entries.append([place, batch_at + SLOT_BYTES * _LEFT, trips_at])
            functions.append(runtime.while_)
        self._memory, address = record([0] * (_TABLES * sum(map(len, entries))))
        items: list[int] = []
        patches: list[int] = []
        strides: list[int] = []
        for trip in range(_TABLES):
            for function, slots in zip(functions, entries, strict=True):
                items += [*function, address, 0]
                for slot in slots:
                    if isinstance(slot, tuple):
                        stream, offset = slot
                        patches += [address, inputs[stream], offset + _behind(stream, trip)]
                        if stream.step:
                            strides += [address, _TABLES * stream.step]
                    elif isinstance(slot, int):
                        patches += [address, len(inputs) + len(values), slot]
                    else:
                        patches += [address, values[slot], 0]
                    address += SLOT_BYTES
        self._items, items_at = record(items)
        self._patches, patches_at = record(patches)
        self._strides, strides_at = record(strides)
        self._batch[:] = batch_record(
            items_at,
            _TABLES * self._n_items,
            patches_at,
            len(patches) // 3,
            runtime.pool,
            0,
            strides_at,
            len(strides) // 2,
        )[0]
        self._replay = runtime.replayer(batch_at)

    def run(self, buffers: Sequence[Buffer], trips: int | None, var_vals: Mapping[Any, int]) -> int:
        """Run so many trips on buffers; all is done on return."""
        inputs = []
        for stream in self._streams:
            memory = buffers[stream.buffer]._buf
            inputs.append((0 if memory is None else memory.address) + stream.start(trips or 0))
        inputs += [variable.infer(var_vals) for variable in self._variables]
        inputs.append(0)
        self._batch[_TOTAL] = _FOREVER if trips is None else trips * self._n_items
        self._trips[0] = 0
        threads = self._runtime.threads(config())
        more = self._replay(0, threads, inputs)
        while more:
            # Its slice of time was over; here Python handles signals.
            more = self._replay(1, threads, inputs)
        return self._trips[0]


def _behind(stream: Stream, trip: int) -> int:
    """The bytes of a trip's memory from that of the first one on."""
    return stream.step * trip + stream.other * ((trip + stream.phase) & 1)


def _functions(step: LoopStep) -> tuple[int, int]:
    runner: Any = step.runner
    if isinstance(runner, BufferCopy):
        return native_runtime().copy
    return runner.program.body, runner.program.extent


def _entries(step: LoopStep) -> list[Any]:
    """The contents of a step's table: memory as pairs, variables, and numbers."""
    memory = [(operand.stream, operand.offset) for operand in step.operands]
    if isinstance(step.runner, BufferCopy):
        operand = step.operands[0]
        return [*memory, operand.size * operand.dtype.itemsize]
    assert isinstance(step.runner, CompiledASTRunner)
    return [*memory, *step.runner.fixed, *step.runner.vars]
