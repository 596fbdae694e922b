"""GPUs that tests schedule for, whether there is one or not, and NVIDIA's compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ferrule.ir.target import Target, detect_cpu
from ferrule.runtime.cuda.compiler import NVRTC
from ferrule.runtime.cuda.driver import gpu_target

ARCHITECTURES = ("sm_80", "sm_90a")
GPU = replace(
    detect_cpu(),
    name="gpu",
    vector_bytes=16,
    block_threads=256,
    warp=32,
    index_bits=32,
    max_threads=1056,
    shared_bytes=48 << 10,
)
"""132 multiprocessors with eight blocks each, at the rates of this machine's processor."""
TENSOR = replace(GPU, name="tensor", features="+mma")
ASYNC = replace(GPU, features="+async,+mma")
LARGE = replace(TENSOR, flops_per_second=6e10, bytes_per_second=3e9)
"""With the ratio of operations and bytes that large ones have."""


# What the driver says of an A100 and of an H100, both with 80 GB.
_COMMON = {
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_THREADS_PER_BLOCK": 1024,
    "WARP_SIZE": 32,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
}
_ATTRIBUTES = {
    "sm_80": _COMMON
    | {
        "MULTIPROCESSOR_COUNT": 108,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 163 << 10,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 164 << 10,
        "L2_CACHE_SIZE": 40 << 20,
        "CLOCK_RATE": 1_410_000,
        "MEMORY_CLOCK_RATE": 1_593_000,
    },
    "sm_90a": _COMMON
    | {
        "MULTIPROCESSOR_COUNT": 132,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
        "L2_CACHE_SIZE": 50 << 20,
        "CLOCK_RATE": 1_980_000,
        "MEMORY_CLOCK_RATE": 2_619_000,
    },
}


@dataclass(frozen=True)
class ToldGPU:
    """A GPU that is known by what its driver says, as `gpu_target` asks for it."""

    capability: tuple[int, int]
    attributes: Mapping[str, int]

    def attribute(self, name: str) -> int:
        """`CU_DEVICE_ATTRIBUTE_` and `name`."""
        return self.attributes[name]


def told(arch: str, **changes: int) -> ToldGPU:
    """One of `ARCHITECTURES`, with other attributes where the driver is to say something else."""
    number = int(arch.removeprefix("sm_").removesuffix("a"))
    return ToldGPU(divmod(number, 10), _ATTRIBUTES[arch] | changes)


def nvidia(arch: str) -> Target:
    """What code generation assumes on that GPU, whatever machine the tests run on."""
    return gpu_target(told(arch))


def nvrtc_bindings() -> Any:
    """Those of NVIDIA's compiler; a test that asks is skipped where they are not installed."""
    return pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")


def nvrtc() -> NVRTC:
    """The compiler itself, likewise."""
    nvrtc_bindings()
    return NVRTC()
