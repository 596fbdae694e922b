"""The CUDA driver: its errors, and a GPU as all other modules see it.

No other module opens a GPU. All work of a process on one GPU goes through one stream, in program
order. So memory may be used again as soon as the work that used it is queued.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, Protocol, final

from ferrule.ir.target import Target


class CUDAError(RuntimeError):
    """The CUDA driver reports a failure. `code` is its name for it, such as
    `CUDA_ERROR_LAUNCH_FAILED`."""

    code: str = ""


class CUDAMemoryError(CUDAError, MemoryError):
    """The GPU has no memory left."""


INSTALL = "run: pip install 'ferrule[cuda]', or 'ferrule[cuda12]' where the driver is for CUDA 12"


@cache
def bindings() -> Any:
    """`cuda.bindings.driver`. Raises `ImportError` if it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ImportError(
            f"the device CUDA needs cuda-bindings, which cannot be imported ({error}); {INSTALL}"
        ) from error
    return driver


_SANITIZE = "run it under compute-sanitizer to find the kernel"
_UPDATE = (
    "update NVIDIA's driver, or install an NVRTC that is no newer than the driver: "
    "pip install 'ferrule[cuda12]' for one of CUDA 12"
)
_HINTS = {
    "CUDA_ERROR_NO_DEVICE": "CUDA_VISIBLE_DEVICES may hide the GPUs that there are",
    "CUDA_ERROR_NOT_INITIALIZED": "a forked process cannot use a GPU that its parent has opened",
    "CUDA_ERROR_ILLEGAL_ADDRESS": _SANITIZE,
    "CUDA_ERROR_MISALIGNED_ADDRESS": _SANITIZE,
    "CUDA_ERROR_LAUNCH_FAILED": _SANITIZE,
    "CUDA_ERROR_INVALID_IMAGE": _UPDATE,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": _UPDATE,
}


def _error(code: Any, doing: str) -> CUDAError:
    driver = bindings()
    name = (driver.cuGetErrorName(code)[1] or str(code).encode()).decode()
    text = (driver.cuGetErrorString(code)[1] or b"no description").decode()
    hint = f"; {_HINTS[name]}" if name in _HINTS else ""
    is_memory = name == "CUDA_ERROR_OUT_OF_MEMORY"
    error = (CUDAMemoryError if is_memory else CUDAError)(f"{doing}: {name}: {text}{hint}")
    error.code = name
    return error


def check(result: tuple[Any, ...], doing: str = "CUDA") -> Any:
    """The values that a function of the driver gives: none, one, or a tuple of them.

    Raises `CUDAError`, with the operation and the driver's name and text of the error;
    `CUDAMemoryError`, also a `MemoryError`, if there is no memory.
    """
    if result[0]:
        raise _error(result[0], doing)
    if len(result) == 2:
        return result[1]
    return result[1:] or None


@final
class GPU:
    """One GPU: its primary context, one stream, and its properties.

    Raises `OSError` if there is no such GPU.
    """

    def __init__(self, number: int) -> None:
        driver = bindings()
        self.number = number
        self.handle = check(driver.cuDeviceGet(number))
        self.name = check(driver.cuDeviceGetName(256, self.handle)).split(b"\0")[0].decode()
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.handle))
        self._set_current = driver.cuCtxSetCurrent
        self.activate()
        self.stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        # At exit this runs after all objects that were made later are gone.
        weakref.finalize(self, _destroy_stream, self.context, self.stream)

    def __repr__(self) -> str:
        return f"<GPU {self.number} {self.name}>"

    def activate(self) -> None:
        """Make this GPU the current one for this thread's next calls of the driver."""
        (code,) = self._set_current(self.context)  # every replay comes by here
        if code:
            raise _error(code, "CUDA")

    def release(self, *calls: Callable[[], object]) -> None:
        """Call functions of the driver that give something back, and ignore their results.

        For destructors: these may run between `activate` of another GPU and its use, so the GPU
        that was active before is active again afterwards. If the GPU is lost, by a kernel that
        failed or because this process is a fork, there is nothing to give back.
        """
        driver = bindings()
        (code,) = driver.cuCtxPushCurrent(self.context)
        if not code:
            for call in calls:
                call()
            driver.cuCtxPopCurrent()

    def synchronize(self) -> None:
        """Wait for everything that is queued. Raises `CUDAError` if some of it failed."""
        self.activate()
        check(bindings().cuStreamSynchronize(self.stream), f"{self.name}: waiting for its work")

    def attribute(self, name: str) -> int:
        """An attribute of the GPU: `CU_DEVICE_ATTRIBUTE_` and `name`."""
        driver = bindings()
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(driver.cuDeviceGetAttribute(attribute, self.handle)))

    def free_bytes(self) -> int:
        """The bytes of its memory that are free."""
        self.activate()
        free, _ = check(bindings().cuMemGetInfo())
        return int(free)

    @cached_property
    def total_bytes(self) -> int:
        """The bytes of its memory."""
        return int(check(bindings().cuDeviceTotalMem(self.handle)))

    @cached_property
    def capability(self) -> tuple[int, int]:
        """Its compute capability."""
        prefix = "COMPUTE_CAPABILITY"
        return self.attribute(f"{prefix}_MAJOR"), self.attribute(f"{prefix}_MINOR")

    @cached_property
    def max_grid(self) -> tuple[int, int, int]:
        """The most blocks along each axis of a launch."""
        x, y, z = (self.attribute(f"MAX_GRID_DIM_{axis}") for axis in "XYZ")
        return x, y, z

    @cached_property
    def max_block(self) -> tuple[int, int, int]:
        """The most threads along each axis of a block."""
        x, y, z = (self.attribute(f"MAX_BLOCK_DIM_{axis}") for axis in "XYZ")
        return x, y, z


def _destroy_stream(context: Any, stream: Any) -> None:
    driver = bindings()
    # The process ends, or has lost the GPU: errors have no reader.
    driver.cuCtxSetCurrent(context)
    driver.cuStreamDestroy(stream)


_OLDEST_DRIVER = 12040
"""The version of CUDA 12.4, the first that reports which parameters a kernel has."""


def _readable(version: int) -> str:
    """A version of CUDA as the driver numbers it.

    >>> _readable(12040)
    '12.4'
    """
    return f"{version // 1000}.{version % 1000 // 10}"


@cache
def _initialize() -> int:
    """The number of GPUs. Raises `OSError` if there is no driver, or too old a one."""
    driver = bindings()
    try:
        check(driver.cuInit(0), "starting the CUDA driver")
    except Exception as error:  # which type a missing driver raises depends on the version
        raise OSError(f"there is no usable CUDA driver: {error}") from error
    version = int(check(driver.cuDriverGetVersion()))
    if version < _OLDEST_DRIVER:
        raise OSError(
            f"NVIDIA's driver is for CUDA {_readable(version)}; ferrule needs one for CUDA "
            f"{_readable(_OLDEST_DRIVER)} or later, so update it"
        )
    return int(check(driver.cuDeviceGetCount()))


def gpu_count() -> int:
    """The number of GPUs. Raises `ImportError` without the bindings, `OSError` without a driver."""
    return _initialize()


@cache
def open_gpu(number: int) -> GPU:
    """The GPU with a number, opened once.

    Raises `ImportError` without the bindings, `OSError` without a driver or such a GPU.
    """
    count = _initialize()
    if not 0 <= number < count:
        raise OSError(f"there is no GPU {number}: the CUDA driver has {count}")
    try:
        return GPU(number)
    except CUDAError as error:
        raise OSError(f"GPU {number} cannot be opened: {error}") from error


@final
class Timer:
    """A stopwatch for work that is queued from its creation on, by the GPU's own clock."""

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu
        driver = bindings()
        flags = driver.CUevent_flags.CU_EVENT_DEFAULT
        gpu.activate()
        self._start = check(driver.cuEventCreate(flags))
        self._end = check(driver.cuEventCreate(flags))
        destroy = [partial(driver.cuEventDestroy, event) for event in (self._start, self._end)]
        weakref.finalize(self, gpu.release, *destroy)
        check(driver.cuEventRecord(self._start, gpu.stream))

    def seconds(self) -> float:
        """Wait for the work queued since; the seconds that it took."""
        driver = bindings()
        check(driver.cuEventRecord(self._end, self._gpu.stream))
        check(driver.cuEventSynchronize(self._end), f"{self._gpu.name}: waiting for its work")
        milliseconds: float = check(driver.cuEventElapsedTime(self._start, self._end))
        return milliseconds / 1e3


# *** the target of code generation ***

# float32 lanes of a multiprocessor, by compute capability; others are taken for the last.
_LANES = {(8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128}
_USUAL_CLOCK = 1_500_000  # kHz, if the driver does not report it
_USUAL_INTENSITY = 40  # operations for each byte of memory, if the driver does not report its clock
_BLOCK_THREADS = 256
STATIC_SHARED_BYTES = 48 << 10
"""Bytes of shared memory that a kernel has without asking."""
# 128 registers of a thread, four to a vector: two blocks of 256 threads fit a multiprocessor.
_N_VECTOR_REGISTERS = 32
_NATIVE_OPS = frozenset({"MULACC", "NEAR_EXP2", "ROUND", "SQRT", "TRUNC"})


def architecture(capability: tuple[int, int]) -> str:
    """The name of a GPU's instruction set, with the features that only this generation has.

    >>> architecture((8, 0)), architecture((9, 0))
    ('sm_80', 'sm_90a')
    """
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _features(capability: tuple[int, int]) -> str:
    """The features for code generation.

    They are asynchronous copies, products of matrices by a warp, and, for 9.0 alone, by four warps.
    """
    if capability < (8, 0):
        return ""
    return "+async,+mma,+wgmma" if capability == (9, 0) else "+async,+mma"


class Described(Protocol):
    """A GPU by its properties."""

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability."""

    def attribute(self, name: str) -> int:
        """An attribute of the GPU: `CU_DEVICE_ATTRIBUTE_` and `name`."""


def _speeds(gpu: Described) -> tuple[float, float]:
    """Operations on float32, and bytes of its memory, per second.

    A GPU that shares the host's memory, or is a part of one, may not report its clocks.
    """
    clock = gpu.attribute("CLOCK_RATE") or _USUAL_CLOCK
    lanes = gpu.attribute("MULTIPROCESSOR_COUNT") * _LANES.get(gpu.capability, 128)
    flops = 2e3 * lanes * clock
    bus = gpu.attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return flops, 2e3 * gpu.attribute("MEMORY_CLOCK_RATE") * bus or flops / _USUAL_INTENSITY


def gpu_target(gpu: Described) -> Target:
    """The target for a GPU: all that code generation may assume about it. The speeds are estimates
    for a block's share.
    """
    blocks = gpu.attribute("MAX_THREADS_PER_MULTIPROCESSOR") // _BLOCK_THREADS
    chunks = gpu.attribute("MULTIPROCESSOR_COUNT") * blocks
    flops, bandwidth = _speeds(gpu)
    arch = architecture(gpu.capability)
    return Target(
        name=f"cuda-{arch}",
        arch=arch,
        features=_features(gpu.capability),
        vector_bytes=16,
        n_vector_registers=_N_VECTOR_REGISTERS,
        max_threads=chunks,
        l1_bytes=gpu.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=gpu.attribute("L2_CACHE_SIZE"),
        has_fma=True,
        flops_per_second=flops / chunks,
        bytes_per_second=bandwidth / chunks,
        native_ops=_NATIVE_OPS,
        index_bits=32,
        block_threads=min(_BLOCK_THREADS, gpu.attribute("MAX_THREADS_PER_BLOCK")),
        warp=gpu.attribute("WARP_SIZE"),
        shared_bytes=gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        static_shared_bytes=STATIC_SHARED_BYTES,
    )
