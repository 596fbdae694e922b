"""The device CL: kernels in OpenCL C, on a GPU or on any other device with a driver.

`docs/design/opencl.md` has the reasons for its design, with the measurements.
"""

from __future__ import annotations

from functools import partial
from typing import final

from ferrule.device import Compiled, index_of
from ferrule.renderer.c.style import opencl_renderer
from ferrule.runtime.opencl.driver import (
    Accelerator,
    all_devices,
    open_accelerator,
    target_of,
)
from ferrule.runtime.opencl.graph import CLGraph
from ferrule.runtime.opencl.memory import CLAllocator, CLMemory
from ferrule.runtime.opencl.program import CLCompiler, CLProgram

__all__ = [
    "CLAllocator",
    "CLCompiler",
    "CLDevice",
    "CLGraph",
    "CLMemory",
    "CLProgram",
    "device",
]


@final
class CLDevice(Compiled):
    """One OpenCL device."""

    def __init__(self, name: str, accelerator: Accelerator) -> None:
        compiler = CLCompiler(accelerator)
        renderer = opencl_renderer(target_of(accelerator.device))
        program = partial(CLProgram, compiler)
        super().__init__(name, CLAllocator(accelerator), renderer, compiler, program, CLGraph)
        self._queue = accelerator.queue

    def synchronize(self) -> None:
        """Waits for everything queued on the device."""
        self._queue.finish()


def device(name: str) -> CLDevice:
    """The OpenCL device of a name: CL is the first one of this machine, CL:1 the second, and so on.

    Raises `OSError` if there is none, or it lacks something, `DeviceIndexError` if there are fewer.
    """
    found = all_devices()
    names = ", ".join(accelerator.name for accelerator in found)
    index = index_of(name, len(found), f"the OpenCL devices are {names}")
    return CLDevice(name, open_accelerator(index))
