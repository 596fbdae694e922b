"""OpenCL devices: how they are found, and the target that code generation assumes for one."""

from __future__ import annotations

from functools import cache
from typing import final

from ferrule.base.records import dataclass
from ferrule.ir.target import Target
from ferrule.renderer.c.dialect import CORRECT_ROUNDING, OPENCL

try:
    import pyopencl as cl
except ImportError as error:
    raise ImportError(
        f"the device CL needs pyopencl, which cannot be imported ({error});"
        " run: pip install 'ferrule[opencl]'"
    ) from error

__all__ = ["Accelerator", "all_devices", "cl", "open_accelerator", "target_of"]

# Assumed for all devices, as OpenCL does not report these; not measured.
_BLOCK_THREADS = 256
_BLOCKS_A_UNIT = 4
_L1_BYTES = 32 << 10
_L2_BYTES = 1 << 20
_REGISTERS = 64
# Operations and bytes per second of a compute unit. Only their ratio matters, and it is about that
# of processors and GPUs.
_UNIT_FLOPS = 100e9
_UNIT_BYTES = 10e9


@final
@dataclass(frozen=True)
class Accelerator:
    """One OpenCL device, with a context and a queue that runs commands in order."""

    device: cl.Device
    context: cl.Context
    queue: cl.CommandQueue

    def describe(self) -> str:
        """Platform and device, with all that a compiled program depends on."""
        platform = self.device.platform
        parts = (platform.name, platform.version, self.device.name, self.device.driver_version)
        return ", ".join(part.strip() for part in parts)

    @property
    def flags(self) -> str:
        """The options that programs are built with."""
        rounding = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        can_round = bool(self.device.single_fp_config & rounding)
        return " ".join(["-w", *(f for f in OPENCL.flags if can_round or f != CORRECT_ROUNDING)])


def all_devices() -> list[cl.Device]:
    """The OpenCL devices of this machine, processors after all others.

    Raises `OSError` if there is none.
    """
    try:
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        found = []
    if not found:
        raise OSError(
            "no OpenCL device is there; install the driver of one, or one that runs on the"
            " processor: apt install pocl-opencl-icd"
        )
    return sorted(found, key=lambda device: device.type == cl.device_type.CPU)


@cache
def open_accelerator(number: int) -> Accelerator:
    """The OpenCL device of that number.

    Raises `OSError` if it is not there, or lacks something that kernels need.
    """
    devices = all_devices()
    if number >= len(devices):
        names = ", ".join(device.name for device in devices)
        raise OSError(f"CL:{number} is not there; the OpenCL devices are {names}")
    device = devices[number]
    _check(device)
    context = cl.Context([device])
    timed = cl.command_queue_properties.PROFILING_ENABLE
    return Accelerator(device, context, cl.CommandQueue(context, device, timed))


def _check(device: cl.Device) -> None:
    if not _has_shared_memory(device):
        raise OSError(
            f"{device.name} has no shared virtual memory; CL needs a driver for OpenCL 2.0, or for"
            " 3.0 with coarse-grained buffers"
        )
    if device.max_work_group_size < 2:
        raise OSError(f"{device.name} runs one thread a block; CL needs threads that work together")


def _has_shared_memory(device: cl.Device) -> bool:
    try:
        return bool(device.svm_capabilities & cl.device_svm_capabilities.COARSE_GRAIN_BUFFER)
    except cl.Error:
        return False  # OpenCL 1.2 does not know the question


def target_of(device: cl.Device) -> Target:
    """The target for an OpenCL device: all that code generation may assume about it."""
    units = device.max_compute_units
    fma = bool(device.single_fp_config & cl.device_fp_config.FMA)
    return Target(
        name=f"opencl-{device.name.strip()}",
        arch="opencl",
        features="",
        vector_bytes=16,
        n_vector_registers=_REGISTERS,
        max_threads=units * _BLOCKS_A_UNIT,
        l1_bytes=_L1_BYTES,
        l2_bytes=device.global_mem_cache_size or _L2_BYTES,
        has_fma=fma,
        flops_per_second=units * _UNIT_FLOPS,
        bytes_per_second=units * _UNIT_BYTES,
        native_ops=frozenset({"SQRT", "TRUNC", "ROUND"} | ({"MULACC"} if fma else set())),
        index_bits=32,
        block_threads=min(_BLOCK_THREADS, device.max_work_group_size),
        shared_bytes=device.local_mem_size,
    )
