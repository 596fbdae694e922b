"""A batch of captured kernels on the CPU, replayed by one native call.

The argument tables of all kernels lie ready in memory. A replay packs the addresses of the inputs
and the values of the variables into one byte string; the native code copies them from there to
the tables' slots, and runs one kernel after the other.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping, Sequence
from threading import Lock, get_ident
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.capture import GraphException, JitItem, get_input_replace, get_jit_stats
from ferrule.config import config
from ferrule.device import CompiledASTRunner, update_stats
from ferrule.expr import Variable
from ferrule.runtime.cpu_program import CPUProgram, native_runtime, table_packer
from ferrule.runtime.pool import record

_SLOT_BYTES = 8


class GraphReentryError(RuntimeError):
    """A graph was called by a signal handler that had interrupted the same graph's call."""


@final
class CPUGraph:
    """`jit_cache`, ready to be replayed with other inputs and other values.

    Where an item uses one of `input_rawbuffers`, each call puts its own input of that number; all
    other buffers are those of the items, which the graph keeps alive.

    Raises `GraphException` where an item is not a kernel of the CPU.
    """

    def __init__(
        self,
        jit_cache: list[JitItem],
        input_rawbuffers: Sequence[Buffer],
        var_vals: dict[Any, int],
    ) -> None:
        runners = [_cpu_runner(item) for item in jit_cache]
        self._programs = [runner.program for runner in runners]
        replaced = get_input_replace(jit_cache, input_rawbuffers)
        self._inputs = sorted(set(replaced.values()))
        self._variables = _all_variables(runners)
        self._kept = [
            buffer
            for j, item in enumerate(jit_cache)
            for i, buffer in enumerate(item.rawbufs)
            if (j, i) not in replaced
        ]
        tables = [
            _table(item, runner, var_vals) for item, runner in zip(jit_cache, runners, strict=True)
        ]
        self._build(tables, runners, replaced)
        self._pack = table_packer(len(self._inputs) + len(self._variables)).pack
        self._name = f"<batch of {len(jit_cache)}>"
        self._op_estimate, self._mem_estimate = get_jit_stats(jit_cache)
        self._device = runners[0].device if runners else ""
        self._threads = native_runtime().threads
        self._forget_callers()
        _graphs.add(self)

    def _build(
        self,
        tables: list[list[int]],
        runners: list[CompiledASTRunner],
        replaced: Mapping[tuple[int, int], int],
    ) -> None:
        """Lays out the native records: tables, items, patches, and the batch that has them all."""
        runtime = native_runtime()
        self._tables, address = record(value for table in tables for value in table)
        places = {number: place for place, number in enumerate(self._inputs)}
        items: list[int] = []
        patches: list[int] = []
        for j, (table, runner) in enumerate(zip(tables, runners, strict=True)):
            items += [runner.program.body, runner.program.extent, address]
            n_buffers = len(table) - len(runner.vars)
            for i in range(n_buffers):
                if (j, i) in replaced:
                    patches += [address + _SLOT_BYTES * i, places[replaced[j, i]]]
            for i, variable in enumerate(runner.vars, start=n_buffers):
                place = len(places) + self._variables.index(variable)
                patches += [address + _SLOT_BYTES * i, place]
            address += _SLOT_BYTES * len(table)
        self._items, items_address = record(items)
        self._patches, patches_address = record(patches)
        n_patches = len(patches) // 2
        self._batch, batch_address = record(
            [items_address, len(tables), patches_address, n_patches, runtime.pool, 0, 0]
        )
        self._replay = runtime.replayer(batch_address)

    def _forget_callers(self) -> None:
        """Nobody is inside: at the start, and in a forked child."""
        self._lock = Lock()
        self._caller = 0

    def __call__(
        self,
        input_rawbuffers: Sequence[Buffer],
        var_vals: dict[Any, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Runs all items, in order; they are finished on return.

        Gives the seconds it took if `wait`. Several threads take turns, for the buffers between
        the kernels are there once. A `KeyboardInterrupt` leaves the graph as good as before.
        """
        wait = wait or config().DEBUG >= 2
        inputs = self._pack(
            *[input_rawbuffers[number]._buf.address for number in self._inputs],
            *[variable.infer(var_vals) for variable in self._variables],
        )
        threads = self._threads()
        started = time.perf_counter() if wait else 0.0
        caller = get_ident()
        if self._caller == caller:
            raise GraphReentryError(
                f"{self._name}: called from inside its own call, by a signal handler or a"
                " destructor; its buffers hold half a result, so call it from elsewhere"
            )
        with self._lock:
            self._caller = caller
            try:
                more = self._replay(inputs, threads)
                while more:
                    # Its slice of time was over; here Python handles signals.
                    more = self._replay(threads)
            finally:
                self._caller = 0
        seconds = time.perf_counter() - started if wait else None
        update_stats(
            self._name,
            self._op_estimate,
            self._mem_estimate,
            var_vals,
            seconds,
            len(input_rawbuffers),
            jit=jit,
            num_kernels=len(self._programs),
            device=self._device,
        )
        return seconds


def _cpu_runner(item: JitItem) -> CompiledASTRunner:
    runner: Any = item.prg
    if not isinstance(runner, CompiledASTRunner) or not isinstance(runner.program, CPUProgram):
        name = runner.name or type(runner).__name__
        raise GraphException(f"CPUGraph: {name} is not a kernel of the CPU")
    return runner


def _all_variables(runners: Sequence[CompiledASTRunner]) -> list[Variable]:
    """The variables of all kernels, each once."""
    return list(dict.fromkeys(variable for runner in runners for variable in runner.vars))


def _table(item: JitItem, runner: CompiledASTRunner, var_vals: dict[Any, int]) -> list[int]:
    """A kernel's argument table as it was captured."""
    handles = [None if buffer is None else buffer._buf for buffer in item.rawbufs]
    addresses = [0 if handle is None else handle.address for handle in handles]
    return addresses + [variable.infer(var_vals) for variable in runner.vars]


_graphs: weakref.WeakSet[CPUGraph] = weakref.WeakSet()


def _after_fork() -> None:
    for graph in list(_graphs):
        graph._forget_callers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
