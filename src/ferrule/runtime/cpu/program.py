"""Native kernels as programs: loaded, launched, timed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import final

from ferrule.base.config import config
from ferrule.runtime.cpu import pool
from ferrule.runtime.cpu.llvm import host_compiler, load_object
from ferrule.runtime.cpu.memory import CPUMemory


@cache
def native_runtime() -> pool.NativeRuntime:
    """The thread pool and the launch functions of this process, from the disk cache if they are
    there.

    Raises `CompileError` if they are not, and LLVM is not installed.
    """
    compiler = host_compiler()
    arch = compiler.target.arch
    lib = compiler.compile_cached(pool.runtime_source(arch))
    code = load_object(lib, pool.runtime_externals(), pool.runtime_functions())
    return pool.NativeRuntime(code, arch)


@cache
def table_packer(n_slots: int) -> Struct:
    """The packer of an argument table of `n_slots` addresses and values."""
    return Struct(f"={n_slots}q")


class NativeProgram:
    """A kernel in native code, ready to run: a body and an extent, by the CPU's binary interface
    (docs/design/interfaces.md, §3).
    """

    def __init__(self, body: int, extent: int) -> None:
        runtime = native_runtime()
        self.body = body
        self.extent = extent
        self._threads = runtime.threads
        self._record, address = pool.record([body, extent, runtime.pool, 0])
        self._launch = runtime.launcher(address)

    def __call__(
        self, *bufs: CPUMemory | None, vals: Sequence[int] = (), wait: bool = False
    ) -> float | None:
        """Runs the kernel on the blocks `bufs` with the variables' values `vals`.

        None stands for a buffer without elements, which has no memory. Gives the seconds it took
        if `wait`. It is finished on return either way.
        """
        # A table of its own for each call, so that any number of threads may call at once.
        addresses = [0 if buf is None else buf.address for buf in bufs]
        table = table_packer(len(bufs) + len(vals)).pack(*addresses, *vals)
        threads = self._threads(config())
        started = time.perf_counter() if wait else 0.0
        taken = self._launch(table, 0, threads)
        while taken:
            # Its slice of time was over; here Python handles signals.
            taken = self._launch(table, taken, threads)
        return time.perf_counter() - started if wait else None


@cache
def row_function(name: str) -> NativeProgram:
    """The function of rows of codes with this name; see `native_sort`."""
    return NativeProgram(*native_runtime().row_functions[name])


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@final
class CPUProgram(NativeProgram):
    """A compiled kernel, ready to run.

    `lib` is an object file that defines `name` and `name.extent`. `fxn(table, start, stop)` is the
    kernel itself. `mem` is its machine code, read-only; it is empty if LLVM loaded it.
    `helper_handle` has the functions that the kernel may call.

    Raises `ObjectError` for a file that is malformed or lacks the two functions.
    """

    helper_handle = pool.process

    def __init__(self, name: str, lib: bytes) -> None:
        self.name = name
        self.lib = lib
        extent_name = f"{name}.extent"
        self._code = load_object(lib, pool.kernel_externals, (name, extent_name))
        self.mem = self._code.mem
        super().__init__(self._code.address(name), self._code.address(extent_name))
        self.fxn = _BODY(self.body)
