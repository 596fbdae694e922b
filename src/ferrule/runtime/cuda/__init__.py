"""The devices CUDA, CUDA:1 and so on: kernels are machine code for one kind of GPU.

`docs/design/cuda.md` has its design, and the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from ferrule.device import Compiled, index_of
from ferrule.renderer.c.style import cuda_renderer
from ferrule.runtime.cuda.compiler import NVRTC, CUDACompiler, Toolchain
from ferrule.runtime.cuda.driver import (
    GPU,
    CUDAError,
    CUDAMemoryError,
    architecture,
    gpu_count,
    gpu_target,
    open_gpu,
)
from ferrule.runtime.cuda.graph import CUDAGraph
from ferrule.runtime.cuda.memory import CUDAAllocator, CUDAMemory
from ferrule.runtime.cuda.program import CUDAProgram

__all__ = [
    "NVRTC",
    "CUDAAllocator",
    "CUDACompiler",
    "CUDADevice",
    "CUDAError",
    "CUDAGraph",
    "CUDAMemory",
    "CUDAMemoryError",
    "CUDAProgram",
    "device",
    "toolchain",
]


@final
class CUDADevice(Compiled):
    """A GPU as a device; kernels and copies are queued, and run in order."""

    def __init__(self, name: str, gpu: GPU, toolchain: Toolchain) -> None:
        compiler = CUDACompiler(architecture(gpu.capability), toolchain)
        runtime = partial(CUDAProgram, gpu=gpu, compiler=compiler)
        renderer = cuda_renderer(gpu_target(gpu))
        super().__init__(name, CUDAAllocator(gpu), renderer, compiler, runtime, CUDAGraph)
        self.gpu = gpu

    def synchronize(self) -> None:
        """Waits for everything queued on the GPU. Raises `CUDAError` if some of it failed."""
        self.gpu.synchronize()


toolchain: Callable[[], Toolchain] = NVRTC
"""The toolchain of the devices that are opened from now on."""


def device(name: str) -> CUDADevice:
    """A GPU as a device: `CUDA` is the first one, `CUDA:1` the next.

    Raises `ImportError` if a package is missing, `OSError` if a driver or NVRTC is,
    `DeviceIndexError` if the GPU is.
    """
    count = gpu_count()
    gpu = open_gpu(index_of(name, count, f"the GPUs of the CUDA driver are {count}"))
    return CUDADevice(name, gpu, toolchain())
