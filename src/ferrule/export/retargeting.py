"""A program with kernels for another target than the replay's, with weights packed for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.codegen.linearizer import Linearizer, linearize
from ferrule.codegen.prepack import Copy as PackingCopy
from ferrule.codegen.prepack import Prepacked, prepack
from ferrule.device.weight_packing import is_worth_packing
from ferrule.export.program import (
    Block,
    BlockKind,
    Cell,
    ExportedProgram,
    Kernel,
    with_kernels,
)
from ferrule.ir.buffer import Buffer
from ferrule.ir.lazyop import LazyOp
from ferrule.ir.target import Target
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.runtime.cpu import native_sort
from ferrule.runtime.cpu.llvm import CPUCompiler, host_compiler
from ferrule.runtime.cpu.program import CPUProgram

CompiledKernel: TypeAlias = tuple[bytes, str]
"""The object file of a kernel, and its name there."""
_UNUSED: Final = 0
"""The block that stands in the place of memory that a kernel takes, but does not use."""

_Key: TypeAlias = tuple[LazyOp, frozenset[int], tuple[int, ...]]


@final
@dataclass(frozen=True)
class Retargeted:
    """A program for a target, and the machine code of its kernels."""

    program: ExportedProgram
    kernels: tuple[CompiledKernel, ...]


def retargeted(program: ExportedProgram, target: Target) -> Retargeted:
    """The program with kernels that are scheduled and compiled for a target.

    Those that pack constants read packed copies, which are made now and are constants too.
    """
    return _Retargeting(program, target).result()


def native_kernel(step: Kernel, compiler: CPUCompiler) -> CompiledKernel:
    """The machine code of the replay's kernel; a function of rows is compiled."""
    if step.row_function is None:
        return step.runner.lib, step.name
    return compiler.compile_cached(native_sort.module(step.row_function, step.name)), step.name


class _Retargeting:
    def __init__(self, program: ExportedProgram, target: Target) -> None:
        self._program = program
        self._target = target
        self._compiler, self._renderer = CPUCompiler(target), LLVMRenderer(target)
        self._blocks = list(program.blocks)
        self._made: dict[_Key, tuple[Prepacked, CompiledKernel]] = {}
        self._copies: dict[tuple[Cell, str], Cell] = {}
        """The packed copy of each part of a weight, by the name of the kernel that makes it."""

    def result(self) -> Retargeted:
        """The program for the target."""
        kernels: list[CompiledKernel] = []

        def changed(step: Kernel) -> Kernel:
            step, compiled = self._kernel(step)
            kernels.append(compiled)
            return step

        steps = with_kernels(self._program.steps, changed)
        program = replace(self._program, blocks=tuple(self._blocks), steps=steps)
        return Retargeted(program, tuple(kernels))

    def _kernel(self, step: Kernel) -> tuple[Kernel, CompiledKernel]:
        if step.row_function is not None:
            return step, native_kernel(step, self._compiler)
        assert step.ast is not None, "kernels without packed weights have trees"
        constant = frozenset(
            [
                place
                for place, cell in enumerate(step.cells)
                if self._blocks[cell.block].kind is BlockKind.CONSTANT and not cell.moves
            ]
        )
        if not is_worth_packing(step.runner, constant):
            constant = frozenset()
        key = step.ast, constant, tuple([cell.nbytes for cell in step.cells])
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._compiled(*key)
        packed, compiled = found
        cells = [*step.cells]
        for copy in packed.copies:
            cells.append(self._copy(step.cells[copy.source], copy))
            if not packed.reads(copy.source):
                cells[copy.source] = Cell(_UNUSED, 0, 0)
        return replace(step, cells=tuple(cells), ast=None if packed.copies else step.ast), compiled

    def _compiled(
        self, ast: LazyOp, constant: frozenset[int], sizes: tuple[int, ...]
    ) -> tuple[Prepacked, CompiledKernel]:
        kernel = Linearizer(ast, self._target, constants=constant).scheduled
        packed = prepack(kernel, constant, sizes, self._target)
        name = packed.kernel.name
        source = self._renderer.render(name, linearize(packed.kernel, self._target))
        return packed, (self._compiler.compile_cached(source), name)

    def _copy(self, weight: Cell, copy: PackingCopy) -> Cell:
        """The packed copy of a weight, made by this processor."""
        key = weight, copy.kernel.name
        found = self._copies.get(key)
        if found is None:
            block = self._blocks[weight.block]
            memory = block.memory
            assert memory is not None, "constants have contents"
            compiler, name = host_compiler(), copy.kernel.name
            uops = linearize(copy.kernel, compiler.target)
            source = LLVMRenderer(compiler.target).render(name, uops)
            program = CPUProgram(name, compiler.compile_cached(source))
            start = weight.offset // memory.dtype.itemsize
            part = memory.view(start, weight.nbytes // memory.dtype.itemsize)
            filled = Buffer(memory.device, copy.elements, copy.dtype)
            program(filled._buf, part._buf)
            filled.note_write()
            made = Block(BlockKind.CONSTANT, f"packed {block.name}", filled.nbytes, filled)
            self._blocks.append(made)
            found = self._copies[key] = Cell(len(self._blocks) - 1, 0, filled.nbytes)
        return found
