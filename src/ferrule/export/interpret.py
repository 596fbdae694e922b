"""Runs an exported program in this process, step by step: what backends are compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from ferrule.base.helpers import round_up
from ferrule.export.program import (
    ALIGNMENT,
    BlockKind,
    Cell,
    Copy,
    ExportedProgram,
    Kernel,
    Loop,
    Step,
    TensorSpec,
)
from ferrule.ir.expr import Variable, as_expr
from ferrule.runtime.cpu.program import table_packer

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Array: TypeAlias = np.ndarray[Any, Any]

_EXTENT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def aligned(nbytes: int, dtype: DTypeLike = np.uint8) -> Array:
    """Zeroed bytes at a multiple of `ALIGNMENT`."""
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = round_up(memory.ctypes.data, ALIGNMENT) - memory.ctypes.data
    return memory[start : start + nbytes].view(dtype)


@final
class Instance:
    """A program with memory for all of its blocks. State is what it was when this was made.

    `arguments`, `states` and `results` are arrays in that memory, for the largest values of the
    variables. `run` computes the results from what the others contain.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.memory = [aligned(block.nbytes) for block in program.blocks]
        for memory, block in zip(self.memory, program.blocks, strict=True):
            contents = block.contents
            if contents is not None:
                memory[:] = contents
        self.arguments = self._arrays(program.arguments)
        self.states = self._arrays((*program.states, *program.effects))
        self.results = self._arrays(program.results)

    def _arrays(self, specs: Sequence[TensorSpec]) -> dict[str, Array]:
        return {spec.name: self.array(spec, {}) for spec in specs}

    def array(self, spec: TensorSpec, values: Mapping[Variable, int]) -> Array:
        """A tensor as an array; without a value for its variables it has its largest size."""
        known = {variable: variable.max for variable in self.program.variables} | dict(values)
        shape = [as_expr(size).infer(known) for size in spec.shape]
        strides = [as_expr(step).infer(known) * spec.dtype.itemsize for step in spec.strides]
        memory = self._at(spec.cell)
        whole = memory[: len(memory) // spec.dtype.itemsize * spec.dtype.itemsize]
        return np.lib.stride_tricks.as_strided(whole.view(spec.dtype.np), shape, strides)

    def _at(self, cell: Cell, trips: Sequence[tuple[int, int]] = ()) -> Array:
        start = cell.offset + sum([move.at(*trips[move.depth]) for move in cell.moves])
        return self.memory[cell.block][start : start + cell.nbytes]

    def run(self, values: Mapping[Variable, int] | None = None) -> None:
        """Runs all steps. Raises `ValueError` for values of variables that do not fit."""
        known = values or {}
        program = self.program
        program.check_values(known)
        self._run(program.steps, known, [])

    def _run(
        self, steps: Sequence[Step], known: Mapping[Variable, int], trips: list[tuple[int, int]]
    ) -> None:
        """Runs steps within loops, in trips of so many."""
        for step in steps:
            if isinstance(step, Copy):
                self._at(step.to, trips)[:] = self._at(step.source, trips)
            elif isinstance(step, Loop):
                self._loop(step, known, trips)
            else:
                self._kernel(step, known, trips)

    def _kernel(
        self, step: Kernel, known: Mapping[Variable, int], trips: Sequence[tuple[int, int]]
    ) -> None:
        addresses = [self._at(cell, trips).ctypes.data for cell in step.cells]
        numbers = [v if isinstance(v, int) else known[v] for v in step.values]
        table = table_packer(len(addresses) + len(numbers)).pack(*addresses, *numbers)
        native = step.runner.program
        extent = _EXTENT(native.extent)(table)
        _BODY(native.body)(table, 0, extent)

    def _loop(
        self, loop: Loop, known: Mapping[Variable, int], around: list[tuple[int, int]]
    ) -> None:
        limits = [] if loop.most is None else [as_expr(loop.most).infer(known)]
        if loop.count is not None:
            limits.append(int(self._at(loop.count, around).view(np.int32)[0]))
        if loop.start is not None and not self._at(loop.start, around)[0]:
            limits.append(0)
        trips = max(min(limits), 0) if limits else None
        trip, last = 0, trips or 0
        self._run(loop.before, known, [*around, (0, last)])
        while trips is None or trip < trips:
            now = [*around, (trip, last)]
            self._run(loop.body, known, now)
            trip += 1
            if loop.condition is not None and not self._at(loop.condition, now)[0]:
                break
        if loop.counted is not None:
            self._at(loop.counted, around).view(np.int32)[0] = trip
        self._run(loop.after, known, [*around, (trip, last)])


def state_bytes(instance: Instance) -> dict[str, bytes]:
    """The contents of all states."""
    blocks = instance.program.of_kind(BlockKind.STATE)
    return {block.name: instance.memory[number].tobytes() for number, block in blocks}
