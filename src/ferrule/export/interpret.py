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
    ExportedProgram,
    Kernel,
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

    def _at(self, cell: Cell) -> Array:
        return self.memory[cell.block][cell.offset : cell.offset + cell.nbytes]

    def run(self, values: Mapping[Variable, int] | None = None) -> None:
        """Runs all steps. Raises `ValueError` for values of variables that do not fit."""
        known = values or {}
        program = self.program
        program.check_values(known)
        for step in program.steps:
            if not isinstance(step, Kernel):
                self._at(step.to)[:] = self._at(step.source)
                continue
            addresses = [self._at(cell).ctypes.data for cell in step.cells]
            numbers = [v if isinstance(v, int) else known[v] for v in step.values]
            table = table_packer(len(addresses) + len(numbers)).pack(*addresses, *numbers)
            native = step.runner.program
            extent = _EXTENT(native.extent)(table)
            _BODY(native.body)(table, 0, extent)


def state_bytes(instance: Instance) -> dict[str, bytes]:
    """The contents of all states."""
    blocks = instance.program.of_kind(BlockKind.STATE)
    return {block.name: instance.memory[number].tobytes() for number, block in blocks}
