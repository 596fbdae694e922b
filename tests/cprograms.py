"""Programs as C: compiled by the system's compiler, and compared with the interpreter."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.uops import UOp
from ferrule.renderer.c.dialect import C, Dialect, symbol
from ferrule.renderer.c.portable import PORTABLE, kernel_function
from ferrule.renderer.c.prelude import Prelude
from ferrule.renderer.c.style import CStyleRenderer
from tests.programs import HOST, Array, bits

COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed")
PLAIN = replace(HOST, block_threads=1)


class CompiledC:
    """A program as machine code that a C compiler made; called as the CPU's kernels are."""

    def __init__(self, uops: Sequence[UOp], name: str = "kernel", options: str = "") -> None:
        self.source = CStyleRenderer(C, PLAIN).render(name, uops)
        self.library = shared_library(self.source, C, options)
        self._run = self.library[symbol(name)]
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self._run.restype = None
        self._extent = self.library[f"{symbol(name)}_extent"]
        self._extent.argtypes = [ctypes.c_void_p]
        self._extent.restype = ctypes.c_int64

    def extent(self, buffers: Sequence[Array], values: Sequence[int] = ()) -> int:
        return int(self._extent(argument_table(buffers, values)))

    def __call__(self, buffers: Sequence[Array], values: Sequence[int] = ()) -> None:
        table = argument_table(buffers, values)
        self._run(table, 0, int(self._extent(table)))


class PortableC:
    """A program as a function of C11, called by one that takes the argument table."""

    def __init__(self, uops: Sequence[UOp], name: str = "kernel", options: str = "") -> None:
        self.source = portable_source(uops, name)
        strict = "-Wall -Wextra -Werror -pedantic -O1 -mfma"
        self.library = shared_library(self.source, PORTABLE, f"{strict} {options}")

    def __call__(self, buffers: Sequence[Array], values: Sequence[int] = ()) -> None:
        self.library["call"](argument_table(buffers, values))


def portable_source(uops: Sequence[UOp], name: str = "kernel") -> str:
    """The file with a program's function and `call`, which gives it its arguments."""
    prelude = Prelude(PORTABLE, vector_bytes=64)
    function = kernel_function(name, uops, prelude)
    arguments = ", ".join(
        f"({p.declaration(restrict=False).rpartition(p.name)[0]})(intptr_t)args[{p.slot}]"
        if p.is_buffer
        else f"args[{p.slot}]"
        for p in function.parameters
    )
    head = "void call(const i64 *args);\nvoid call(const i64 *args) {\n  (void)args;\n"
    call = f"{head}  {function.name}({arguments});\n}}"
    parts = [PORTABLE.header, prelude.text(), function.text(restrict=False), call]
    return "\n\n".join(part for part in parts if part) + "\n"


def shared_library(source: str, dialect: Dialect, options: str) -> ctypes.CDLL:
    """A file in C as a library; fails with the compiler's message."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        command = [str(COMPILER), *dialect.flags, *options.split()]
        command += ["-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-lm"]
        done = subprocess.run(command, input=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + source
        return ctypes.CDLL(str(library))


def argument_table(buffers: Sequence[Array], values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """The addresses of buffers, and values after them."""
    slots = [*(buffer.ctypes.data for buffer in buffers), *values]
    return (ctypes.c_int64 * max(len(slots), 1))(*slots)


def aligned(array: Array) -> Array:
    """A copy at an address that is a multiple of 64, as the buffers of devices have."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_as_c(
    uops: Sequence[UOp],
    buffers: Sequence[Array],
    values: Sequence[int] = (),
    name: str = "kernel",
) -> list[Array]:
    """The buffers after a run; fails unless interpreter and both forms of C agree bit for bit."""
    expected = [aligned(buffer) for buffer in buffers]
    interpret(uops, expected, values)
    found = [aligned(buffer) for buffer in buffers]
    compiled = CompiledC(uops, name)
    assert compiled.extent(found, values) == extent(uops, values, len(buffers))
    compiled(found, values)
    assert_same(expected, found, compiled.source)
    again = [aligned(buffer) for buffer in buffers]
    portable = PortableC(uops, name)
    portable(again, values)
    assert_same(expected, again, portable.source)
    return found


def assert_same(expected: Sequence[Array], found: Sequence[Array], source: str) -> None:
    for slot, (a, b) in enumerate(zip(expected, found, strict=True)):
        where = np.flatnonzero(bits(a) != bits(b))[:5]
        assert not len(where), (
            f"buffer {slot} differs at {where}: {a[where]} expected, {b[where]} found\n{source}"
        )
