"""Kernels of a GPU as programs: loaded, checked, launched."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any, final

from ferrule.device.runner import RunnerError
from ferrule.renderer.c.dialect import symbol
from ferrule.runtime.cuda.compiler import UNALIGNED, CUDACompiler, unpack_program
from ferrule.runtime.cuda.driver import (
    GPU,
    STATIC_SHARED_BYTES,
    CUDAError,
    Timer,
    bindings,
    check,
    open_gpu,
)
from ferrule.runtime.cuda.memory import CUDAMemory

_ALIGNMENT = 16  # bytes; addresses that are no multiples of it need other code
_ADDRESS_BYTES = 8
_VALUE_BYTES = 4
_SMALLEST, _LARGEST = -(2**31), 2**31 - 1
_MAX_SHARED = "MAX_DYNAMIC_SHARED_SIZE_BYTES"


@final
class Arguments:
    """The memory that the driver takes a launch's arguments from: addresses, then 32-bit values.

    It is laid out once; `fill` changes its contents. `pointer` is the address of the driver's
    table, with one pointer to each argument.
    """

    def __init__(self, name: str, n_addresses: int, n_values: int) -> None:
        self.name = name
        self.n_addresses = n_addresses
        n = n_addresses + n_values
        # The driver reads a value of four bytes from the low half of its slot.
        self._slots = (ctypes.c_int64 * max(n, 1))()
        start = ctypes.addressof(self._slots)
        places = [start + ctypes.sizeof(ctypes.c_int64) * i for i in range(n)]
        self._table = (ctypes.c_void_p * max(n, 1))(*places)
        self.pointer = ctypes.addressof(self._table)

    def fill(self, addresses: Sequence[int], values: Sequence[int]) -> None:
        """Put in the arguments of the next launch.

        Raises `RunnerError` for a value that needs more than 32 bits.
        """
        for value in values:
            if not _SMALLEST <= value <= _LARGEST:
                raise RunnerError(
                    f"kernel {self.name}: the variable's value {value} does not fit 32 bits, which "
                    "kernels of a GPU take; split the work into smaller tensors"
                )
        self._slots[:] = [*addresses, *values] or [0]

    def fill_addresses(self, addresses: Sequence[int]) -> None:
        """Puts other addresses in; the values stay."""
        self._slots[: self.n_addresses] = list(addresses)


@final
class _Function:
    """A kernel's code on a GPU."""

    def __init__(self, gpu: GPU, name: str, cubin: bytes) -> None:
        driver = bindings()
        gpu.activate()
        module = check(driver.cuModuleLoadData(cubin), f"loading the kernel {name}")
        unload = weakref.finalize(
            self,
            gpu.release,
            partial(driver.cuStreamSynchronize, gpu.stream),
            partial(driver.cuModuleUnload, module),
        )
        # At exit a graph may still need it, and it goes with the process.
        unload.atexit = False
        function = driver.cuModuleGetFunction(module, symbol(name).encode())
        self.handle = check(function, f"kernel {name}")
        self.sizes = _parameter_sizes(self.handle)
        self.max_threads = self._attribute("MAX_THREADS_PER_BLOCK")
        # Declared memory is part of that; not every driver may say so.
        free = STATIC_SHARED_BYTES - self._attribute("SHARED_SIZE_BYTES")
        self._max_shared = min(self._attribute(_MAX_SHARED), free)
        self._lock = Lock()

    def _attribute(self, name: str) -> int:
        driver = bindings()
        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(check(driver.cuFuncGetAttribute(attribute, self.handle)))

    def allow_shared(self, nbytes: int) -> None:
        """Lets launches ask for that much shared memory, beside what the kernel declares."""
        if nbytes <= self._max_shared:
            return
        driver = bindings()
        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{_MAX_SHARED}")
        with self._lock:
            if nbytes > self._max_shared:
                check(driver.cuFuncSetAttribute(self.handle, attribute, nbytes), "shared memory")
                self._max_shared = nbytes


def _parameter_sizes(function: Any) -> list[int]:
    """The bytes of each parameter; the driver reports the end of the list by an error."""
    driver = bindings()
    sizes: list[int] = []
    while True:
        code, _, size = driver.cuFuncGetParamInfo(function, len(sizes))
        if code == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return sizes
        check((code,), "asking for a kernel's parameters")
        sizes.append(int(size))


@final
class CUDAProgram:
    """A compiled kernel on a GPU, the first GPU unless another is given.

    `lib` is the result of `CUDACompiler`, or a cubin. Its parameters are addresses, then 32-bit
    values. With a `compiler` it also runs on addresses that are no multiples of 16.

    Raises `CUDAError` if the driver does not accept it.
    """

    def __init__(
        self, name: str, lib: bytes, gpu: GPU | None = None, compiler: CUDACompiler | None = None
    ) -> None:
        self.name = name
        self.lib = lib
        self.gpu = open_gpu(0) if gpu is None else gpu
        self._compiler = compiler
        cubin, self._source = unpack_program(lib)
        self._aligned = _Function(self.gpu, name, cubin)
        self._unaligned: _Function | None = None
        sizes = self._aligned.sizes
        self._n_addresses = sizes.count(_ADDRESS_BYTES)
        self._n_values = sizes.count(_VALUE_BYTES)
        expected = [_ADDRESS_BYTES] * self._n_addresses + [_VALUE_BYTES] * self._n_values
        if sizes != expected:
            raise CUDAError(f"kernel {name} has parameters of {sizes} bytes: addresses come first")
        self._arguments = self.new_arguments()
        self._checked: tuple[int, ...] = ()
        """The sizes of the last launch."""
        self._lock = Lock()

    def new_arguments(self) -> Arguments:
        """Memory for a launch's arguments."""
        return Arguments(self.name, self._n_addresses, self._n_values)

    def check_arguments(self, n_addresses: int, n_values: int) -> None:
        """Raise `RunnerError` if the kernel has other parameters."""
        if (n_addresses, n_values) != (self._n_addresses, self._n_values):
            raise RunnerError(
                f"kernel {self.name} takes {self._n_addresses} buffers and {self._n_values} "
                f"values, got {n_addresses} and {n_values}"
            )

    def function(self, addresses: Sequence[int], shared_bytes: int = 0) -> Any:
        """The driver's handle of the code for these addresses, ready for a launch."""
        chosen = self._aligned
        if self._source is not None:
            together = 0
            for address in addresses:
                together |= address
            if together % _ALIGNMENT:
                if self._unaligned is None:
                    self._unaligned = self._load_unaligned(self._source)
                chosen = self._unaligned
        if shared_bytes:
            chosen.allow_shared(shared_bytes)
        return chosen.handle

    def _load_unaligned(self, source: str) -> _Function:
        if self._compiler is None:
            raise RunnerError(
                f"kernel {self.name}: an address is no multiple of {_ALIGNMENT}, and without a "
                f"compiler there is no code with {UNALIGNED}; pass a compiler, or copy the view"
            )
        lib = self._compiler.unaligned().compile_cached(source)
        return _Function(self.gpu, self.name, lib)

    def check_launch(self, global_size: Sequence[int], local_size: Sequence[int]) -> None:
        """Raise `RunnerError` for more blocks, or more threads in one, than the GPU takes."""
        gpu = self.gpu
        grid_fits = all(n <= most for n, most in zip(global_size, gpu.max_grid, strict=True))
        if not grid_fits or min(global_size) < 0:
            raise RunnerError(
                f"kernel {self.name}: a grid of {tuple(global_size)} blocks; {gpu.name} takes up "
                f"to {gpu.max_grid}"
            )
        threads = local_size[0] * local_size[1] * local_size[2]
        block_fits = all(n <= most for n, most in zip(local_size, gpu.max_block, strict=True))
        if not block_fits or not 0 < threads <= self._aligned.max_threads:
            raise RunnerError(
                f"kernel {self.name}: a block of {tuple(local_size)} threads; it takes 1 to "
                f"{self._aligned.max_threads}, and {gpu.name} up to {gpu.max_block}"
            )

    def __call__(
        self,
        *bufs: CUDAMemory | None,
        global_size: Sequence[int] = (1, 1, 1),
        local_size: Sequence[int] = (1, 1, 1),
        vals: Sequence[int] = (),
        wait: bool = False,
        shared_bytes: int = 0,
    ) -> float | None:
        """Queues the kernel on the blocks of memory `bufs` with the variables' values `vals`.

        Gives the seconds that it took if `wait`, by the GPU's clock. A grid of no blocks does
        nothing. Raises `RunnerError` for arguments that do not fit the kernel or sizes that do not
        fit the GPU, `CUDAError` where the driver refuses or, with `wait`, the kernel fails.
        """
        addresses = [0 if buf is None else buf.address for buf in bufs]
        self.check_arguments(len(addresses), len(vals))
        sizes = (*global_size, *local_size)
        if sizes != self._checked:
            self.check_launch(global_size, local_size)
            self._checked = sizes
        self.gpu.activate()
        timer = Timer(self.gpu) if wait else None
        if min(global_size) > 0:
            function = self.function(addresses, shared_bytes)
            self._launch(function, addresses, vals, (*sizes, shared_bytes))
        return timer.seconds() if timer is not None else None

    def _launch(
        self, function: Any, addresses: list[int], vals: Sequence[int], sizes: Sequence[int]
    ) -> None:
        # The driver copies the arguments; until it has, no other thread may change them.
        with self._lock:
            self._arguments.fill(addresses, vals)
            launch = bindings().cuLaunchKernel(
                function, *sizes, self.gpu.stream, self._arguments.pointer, 0
            )
        check(launch, f"kernel {self.name}")
