"""The devices CPU, CPU:1 and so on: kernels are native code, run by this process on its cores.

All are the same processor. They differ in where tensors are and in what runs at once, so programs
for several devices can be written and tested without them.

`docs/design/cpu-runtime.md` has the reasons for its design, with the measurements.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from ferrule.device import Compiled, CompileError, Device, virtual_index
from ferrule.ir.target import Target
from ferrule.renderer.base import Renderer
from ferrule.runtime.cpu.elf import ObjectError
from ferrule.runtime.cpu.graph import CPUGraph
from ferrule.runtime.cpu.llvm import CPUCompiler, host_compiler
from ferrule.runtime.cpu.loop import cpu_loop
from ferrule.runtime.cpu.memory import CPUAllocator, CPUMemory
from ferrule.runtime.cpu.program import CPUProgram, row_function

if TYPE_CHECKING:
    from ferrule.codegen.uops import UOp

__all__ = [
    "CPUAllocator",
    "CPUCompiler",
    "CPUGraph",
    "CPUMemory",
    "CPUProgram",
    "CompileError",
    "ObjectError",
    "device",
]


@final
class _HostRenderer(Renderer):
    """`LLVMRenderer`, imported for the first kernel: a kernel from the disk cache does
    not need it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """The LLVM IR of a kernel."""
        from ferrule.renderer.llvm.ir import LLVMRenderer

        return LLVMRenderer(self.target).render(name, uops)


def device(name: str) -> Compiled:
    """The CPU as a device: `CPU` is the first one, `CPU:1` the next; all run the same programs.

    Raises `OSError` on a system that it does not run on, `DeviceIndexError` for an index that
    `FERRULE_CPU_DEVICES` does not allow.
    """
    index = virtual_index(name)
    if sys.platform == "win32":
        raise OSError("the CPU device does not run on Windows; use the device NUMPY")
    compiler = host_compiler()
    twin = Device["CPU"] if index else None
    assert twin is None or isinstance(twin, Compiled)
    return Compiled(
        name,
        CPUAllocator(),
        _HostRenderer(compiler.target) if twin is None else twin.renderer,
        compiler,
        CPUProgram,
        CPUGraph,
        cpu_loop,
        row_function,
        twin,
    )
