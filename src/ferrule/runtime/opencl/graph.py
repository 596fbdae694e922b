"""A batch of captured kernels on an OpenCL device.

Each item has a kernel object of its own with its arguments set. A replay sets only the arguments
that have changed, and queues the kernels. A call with the same arguments as the call before it is
recorded into a command buffer, if the platform has them; as long as the arguments stay the same, a
replay is one command. (A recorded command cannot be given other arguments, and recording takes as
long as running: `docs/design/opencl.md` has the figures.)
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, final

from ferrule.base.config import config
from ferrule.device import CompiledASTRunner
from ferrule.device.capture import GraphException, GraphExecutor, JitItem
from ferrule.ir.buffer import Buffer
from ferrule.runtime.opencl.driver import cl
from ferrule.runtime.opencl.memory import CLMemory
from ferrule.runtime.opencl.program import CLKernel, CLProgram

# *** command buffers, which pyopencl does not offer ***

_EXTENSION = "cl_khr_command_buffer"
_CAPABILITIES = 0x12A9
_FLAGS = 0x1293
_SIMULTANEOUS_USE = 1 << 0
_CAN_SIMULTANEOUS_USE = 1 << 2

_HANDLE = ctypes.c_void_p
_STATUS = ctypes.c_int32
_COUNT = ctypes.c_uint32
_SIZES = ctypes.POINTER(ctypes.c_size_t)
_EVENTS = (_COUNT, _HANDLE, _HANDLE)
_PROPERTIES = ctypes.c_uint64 * 3
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "clCreateCommandBufferKHR": (_HANDLE, _COUNT, _HANDLE, _HANDLE, _HANDLE),
    "clCommandNDRangeKernelKHR": (
        *(_STATUS, _HANDLE, _HANDLE, _HANDLE, _HANDLE),
        *(_COUNT, _SIZES, _SIZES, _SIZES, _COUNT, _HANDLE, _HANDLE, _HANDLE),
    ),
    "clFinalizeCommandBufferKHR": (_STATUS, _HANDLE),
    "clEnqueueCommandBufferKHR": (_STATUS, _COUNT, _HANDLE, _HANDLE, *_EVENTS),
    "clReleaseCommandBufferKHR": (_STATUS, _HANDLE),
}


class CommandBufferError(RuntimeError):
    """The driver refuses to record or to run a command buffer."""


@cache
def _functions(device: cl.Device) -> dict[str, Callable[..., int]] | None:
    """The functions of the extension; None if the device lacks it.

    Also None if a command buffer may not be queued again before its last run is over.
    """
    if _EXTENSION not in device.extensions.split():
        return None
    # The library that pyopencl itself is linked with.
    library = ctypes.CDLL(cl._cl.__file__)
    can = ctypes.c_uint64()
    size = ctypes.c_size_t(ctypes.sizeof(can))
    handle = ctypes.c_void_p(device.int_ptr)
    status = library.clGetDeviceInfo(handle, _CAPABILITIES, size, ctypes.byref(can), None)
    if status != 0 or not can.value & _CAN_SIMULTANEOUS_USE:
        return None
    find = library.clGetExtensionFunctionAddressForPlatform
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    platform = device.platform.int_ptr
    return {
        name: ctypes.CFUNCTYPE(*signature)(find(platform, name.encode()))
        for name, signature in _SIGNATURES.items()
    }


def _check(status: int, what: str) -> None:
    if status != 0:
        raise CommandBufferError(f"CL: the driver does not {what} a command buffer: {status}")


@final
class CommandBuffer:
    """Kernels with their arguments and sizes, recorded, to be queued by one command."""

    def __init__(self, functions: dict[str, Callable[..., int]], queue: cl.CommandQueue) -> None:
        self._functions = functions
        status = ctypes.c_int32()
        queues = (_HANDLE * 1)(queue.int_ptr)
        properties = _PROPERTIES(_FLAGS, _SIMULTANEOUS_USE, 0)
        create = functions["clCreateCommandBufferKHR"]
        self._handle = create(1, queues, properties, ctypes.byref(status))
        _check(status.value, "create")

    def __del__(self) -> None:
        if self._handle:
            self._functions["clReleaseCommandBufferKHR"](self._handle)

    def add(self, kernel: cl.Kernel, blocks: Sequence[int], threads: Sequence[int]) -> None:
        """Records a launch."""
        n = len(blocks)
        total = [count * size for count, size in zip(blocks, threads, strict=True)]
        sizes = [(ctypes.c_size_t * n)(*values) for values in (total, threads)]
        record = self._functions["clCommandNDRangeKernelKHR"]
        nothing = (0, None, None, None)
        handle = kernel.int_ptr
        _check(record(self._handle, None, None, handle, n, None, *sizes, *nothing), "record into")

    def close(self) -> None:
        """Ends the recording."""
        _check(self._functions["clFinalizeCommandBufferKHR"](self._handle), "finalize")

    def enqueue(self) -> None:
        """Queues all launches."""
        enqueue = self._functions["clEnqueueCommandBufferKHR"]
        _check(enqueue(0, None, self._handle, 0, None, None), "enqueue")


# *** the graph ***


@final
class _Step:
    """One item: a kernel, and the sources of its arguments."""

    def __init__(self, item: JitItem, inputs: dict[int, int], var_vals: dict[Any, int]) -> None:
        runner = item.prg
        self.runner, self.kernel = _kernel_of(runner)
        self._inputs = inputs
        """The numbers of the inputs, by their positions among the buffers."""
        self._memory: list[Any] = [None if b is None else b._buf for b in item.rawbufs]
        self._state: Any = None
        self.blocks: list[int] = []
        self.threads: list[int] = []

    def update(self, inputs: Sequence[CLMemory], var_vals: dict[Any, int]) -> bool:
        """Set the arguments of a call; True if they differ from those before."""
        addresses = [inputs[number].address for number in self._inputs.values()]
        vals = (*self.runner.fixed, *[v.infer(var_vals) for v in self.runner.vars])
        if self._state == (addresses, vals):
            return False
        memory = list(self._memory)
        for position, number in self._inputs.items():
            memory[position] = inputs[number]
        self.kernel.bind(memory, vals)
        blocks, threads = self.runner.launch_dims(var_vals)
        self.blocks, self.threads = blocks or [1], threads or [1]
        self._state = (addresses, vals)
        return True


def _kernel_of(runner: Any) -> tuple[CompiledASTRunner, CLKernel]:
    if isinstance(runner, CompiledASTRunner) and isinstance(runner.program, CLProgram):
        return runner, CLKernel(runner.program.code)
    name = runner.name or type(runner).__name__
    raise GraphException(f"CLGraph: {name} is no kernel of CL")


@final
class CLGraph(GraphExecutor):
    """The items of `jit_cache`, ready to be replayed with other inputs and other values.

    If an item uses one of `input_rawbuffers`, each call replaces it by its own input of that
    number. All other buffers are those of the items, which the graph keeps alive.

    Raises `GraphException` if an item is no kernel of CL, or the items are of several devices.
    """

    def __init__(
        self,
        jit_cache: list[JitItem],
        input_rawbuffers: Sequence[Buffer],
        var_vals: dict[Any, int],
    ) -> None:
        super().__init__(jit_cache, input_rawbuffers)
        positions: list[dict[int, int]] = [{} for _ in jit_cache]
        for (j, i), number in self.replaced.items():
            positions[j][i] = number
        self._steps = [_Step(item, positions[j], var_vals) for j, item in enumerate(jit_cache)]
        devices = {item.prg.device for item in jit_cache}
        if len(devices) != 1:
            raise GraphException(f"CLGraph: kernels of several devices: {sorted(devices)}")
        self._queue = self._steps[0].kernel.queue
        self._functions = _functions(self._queue.device)
        self._recorded: CommandBuffer | None = None

    def replay(
        self, input_rawbuffers: Sequence[Buffer], var_vals: dict[Any, int], wait: bool = False
    ) -> float | None:
        """Queues all items, in order. Gives the seconds they took if `wait`."""
        wait = wait or config().DEBUG >= 2
        inputs = [buffer._buf for buffer in input_rawbuffers]
        if self.inside:
            raise self.reentered()
        self.inside = True
        try:
            seconds = self._run(inputs, var_vals, wait)
        finally:
            self.inside = False
        self.count(len(input_rawbuffers), var_vals, seconds)
        return seconds

    def _run(self, inputs: Sequence[Any], var_vals: dict[Any, int], wait: bool) -> float | None:
        if wait:
            self._queue.finish()
        started = time.perf_counter()
        self._enqueue(any([step.update(inputs, var_vals) for step in self._steps]))
        if wait:
            self._queue.finish()
        return time.perf_counter() - started if wait else None

    def _enqueue(self, changed: bool) -> None:
        launches = [step for step in self._steps if 0 not in step.blocks]
        if changed or self._functions is None:
            self._recorded = None
            for step in launches:
                step.kernel.launch(step.blocks, step.threads)
            return
        if self._recorded is None:
            self._recorded = CommandBuffer(self._functions, self._queue)
            for step in launches:
                self._recorded.add(step.kernel.handle, step.blocks, step.threads)
            self._recorded.close()
        self._recorded.enqueue()
