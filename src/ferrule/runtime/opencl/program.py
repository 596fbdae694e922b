"""Compilation of OpenCL C to programs, and programs that run."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from math import prod
from threading import Lock
from typing import final

from ferrule.base.diskcache import digest
from ferrule.base.records import dataclass
from ferrule.device import CompileError, Compiler, RunnerError
from ferrule.runtime.opencl.driver import Accelerator, cl
from ferrule.runtime.opencl.memory import CLMemory

_UNALIGNED = "FERRULE_UNALIGNED"
_VECTOR_BYTES = 16  # bytes of the widest access of a thread
_LENGTH = struct.Struct("<Q")
_VALUE = struct.Struct("=i")


# *** programs as bytes ***


def pack_library(binary: bytes, source: str) -> bytes:
    """A program as bytes, with its source if it needs that (else "").

    >>> unpack_library(pack_library(b"code", "text"))
    (b'code', 'text')
    """
    return _LENGTH.pack(len(binary)) + binary + zlib.compress(source.encode())


def unpack_library(lib: bytes) -> tuple[bytes, str]:
    """The arguments of `pack_library`."""
    (length,) = _LENGTH.unpack_from(lib)
    stop = _LENGTH.size + length
    return lib[_LENGTH.size : stop], zlib.decompress(lib[stop:]).decode()


@final
class CLCompiler(Compiler):
    """OpenCL C to a program of one device.

    A program with a second form, for memory that is not aligned to 16 bytes, carries its source, so
    that this form can be compiled when it is needed.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        key = digest(accelerator.describe(), accelerator.flags)
        super().__init__(f"opencl-{key[:16]}")

    def compile(self, src: str) -> bytes:
        """The program for `src`. Raises `CompileError`, with the compiler's own messages."""
        try:
            program = cl.Program(self.accelerator.context, src)
            program.build(self.accelerator.flags)
        except cl.Error as error:
            raise CompileError(
                f"kernel {_kernel_name(src)}: {self.accelerator.device.name} does not accept its"
                f" code: {error}"
            ) from error
        # One for each device of the context, which has one.
        binary: bytes = program.binaries[0]
        return pack_library(binary, src if _UNALIGNED in src else "")

    def disassemble(self, lib: bytes) -> str:
        """A description of the driver's binary; OpenCL does not say what is inside."""
        binary, _ = unpack_library(lib)
        return f"a binary of {len(binary)} bytes for {self.accelerator.describe()}"

    def load(self, lib: bytes) -> cl.Program:
        """The program, ready to take kernels from."""
        binary, _ = unpack_library(lib)
        accelerator = self.accelerator
        program = cl.Program(accelerator.context, [accelerator.device], [binary])
        program.build(accelerator.flags)
        return program

    def load_unaligned(self, lib: bytes) -> cl.Program:
        """The program in the form that takes memory at any address."""
        _, source = unpack_library(lib)
        if not source:
            return self.load(lib)
        return self.load(self.compile_cached(f"#define {_UNALIGNED} 1\n{source}"))


def _kernel_name(source: str) -> str:
    found = re.search(r"__kernel.*?\bvoid\s+(\w+)", source, re.DOTALL)
    return found[1] if found else "?"


# *** programs that run ***


@final
class CLCode:
    """A loaded program: the form for aligned memory, and, from its first use on, the other form."""

    def __init__(self, compiler: CLCompiler, name: str, lib: bytes) -> None:
        self.name = name
        self.accelerator = compiler.accelerator
        self._compiler = compiler
        self._lib = lib
        self._aligned = compiler.load(lib)
        self._unaligned: cl.Program | None = None

    def kernel(self, aligned: bool) -> cl.Kernel:
        """A new object for the one kernel of the program."""
        program = self._aligned if aligned else self._unaligned
        if program is None:
            program = self._unaligned = self._compiler.load_unaligned(self._lib)
        return program.all_kernels()[0]


@final
class CLKernel:
    """A kernel with arguments of its own. One thread at a time may use it."""

    def __init__(self, code: CLCode) -> None:
        self.code = code
        self.queue = code.accelerator.queue
        self._forms: dict[bool, _Form] = {}
        self._current = self._form(True)

    @property
    def handle(self) -> cl.Kernel:
        """OpenCL's own object, with the arguments of the last `bind`."""
        return self._current.kernel

    def bind(self, bufs: Sequence[CLMemory | None], vals: Sequence[int]) -> None:
        """Sets the arguments. Raises `RunnerError` for a value of more than 32 bits."""
        aligned = all([buffer is None or buffer.address % _VECTOR_BYTES == 0 for buffer in bufs])
        self._current = self._form(aligned)
        kernel = self._current.kernel
        for place, buffer in enumerate(bufs):
            kernel.set_arg(place, None if buffer is None else buffer.pointer)
        # Setting a value takes a hundred times longer than setting a pointer.
        if self._current.vals != vals:
            for place, value in enumerate(vals, len(bufs)):
                kernel.set_arg(place, self._packed(value))
            self._current.vals = tuple(vals)

    def launch(self, blocks: Sequence[int], threads: Sequence[int]) -> cl.Event:
        """Queues the kernel. Raises `RunnerError` if the device does not take the sizes."""
        total = tuple([n * size for n, size in zip(blocks, threads, strict=True)])
        try:
            return cl.enqueue_nd_range_kernel(self.queue, self.handle, total, tuple(threads))
        except cl.Error as error:
            raise RunnerError(
                f"kernel {self.code.name}: {self.code.accelerator.device.name} does not run"
                f" {prod(blocks)} blocks of {prod(threads)} threads: {error}"
            ) from error

    def _form(self, aligned: bool) -> _Form:
        form = self._forms.get(aligned)
        if form is None:
            form = self._forms[aligned] = _Form(self.code.kernel(aligned))
        return form

    def _packed(self, value: int) -> bytes:
        try:
            return _VALUE.pack(value)
        except struct.error as error:
            raise RunnerError(
                f"kernel {self.code.name}: {value} does not fit a variable of 32 bits;"
                f" CL takes values from {-(2**31)} to {2**31 - 1}"
            ) from error


@final
@dataclass
class _Form:
    """One of the two forms of a kernel, and the values that were set last."""

    kernel: cl.Kernel
    vals: tuple[int, ...] = ()


@final
class CLProgram:
    """A compiled kernel, ready to run; `docs/design/interfaces.md`, §3, has its interface."""

    def __init__(self, compiler: CLCompiler, name: str, lib: bytes) -> None:
        self.name = name
        self.lib = lib
        self.code = CLCode(compiler, name, lib)
        self._kernel = CLKernel(self.code)
        self._lock = Lock()

    def __call__(
        self,
        *bufs: CLMemory | None,
        global_size: Sequence[int] = (1, 1, 1),
        local_size: Sequence[int] = (1, 1, 1),
        vals: Sequence[int] = (),
        wait: bool = False,
    ) -> float | None:
        """Run the kernel on the blocks `bufs` with the variables' values `vals`.

        It runs in `global_size` blocks of `local_size` threads each. Gives the seconds it took if
        `wait`; else it may be still to run. Raises `RunnerError` for sizes that the device cannot
        launch.
        """
        if prod(global_size) == 0:
            return 0.0 if wait else None
        with self._lock:
            self._kernel.bind(bufs, vals)
            event = self._kernel.launch(global_size, local_size)
        if not wait:
            return None
        event.wait()
        return float(event.profile.end - event.profile.start) * 1e-9
