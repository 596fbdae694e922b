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
from ferrule.renderer.c.dialect import C, symbol
from ferrule.renderer.c.style import CStyleRenderer
from tests.programs import HOST, Array, bits

COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed")
PLAIN = replace(HOST, block_threads=1)


class CompiledC:
    """A program as machine code that a C compiler made; called as the CPU's kernels are."""

    def __init__(self, uops: Sequence[UOp], name: str = "kernel", options: str = "") -> None:
        self.source = CStyleRenderer(C, PLAIN).render(name, uops)
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "kernel.so"
            command = [str(COMPILER), *C.flags, *options.split()]
            command += ["-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-lm"]
            done = subprocess.run(command, input=self.source, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + self.source
            self.library = ctypes.CDLL(str(library))
        self._run = self.library[symbol(name)]
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self._run.restype = None
        self._extent = self.library[f"{symbol(name)}_extent"]
        self._extent.argtypes = [ctypes.c_void_p]
        self._extent.restype = ctypes.c_int64

    def extent(self, buffers: Sequence[Array], values: Sequence[int] = ()) -> int:
        return int(self._extent(self.table(buffers, values)))

    def __call__(self, buffers: Sequence[Array], values: Sequence[int] = ()) -> None:
        table = self.table(buffers, values)
        self._run(table, 0, int(self._extent(table)))

    def table(
        self, buffers: Sequence[Array], values: Sequence[int]
    ) -> ctypes.Array[ctypes.c_int64]:
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
    """The buffers after a run; fails unless interpreter and C agree bit for bit."""
    expected = [aligned(buffer) for buffer in buffers]
    interpret(uops, expected, values)
    found = [aligned(buffer) for buffer in buffers]
    compiled = CompiledC(uops, name)
    assert compiled.extent(found, values) == extent(uops, values, len(buffers))
    compiled(found, values)
    assert_same(expected, found, compiled.source)
    return found


def assert_same(expected: Sequence[Array], found: Sequence[Array], source: str) -> None:
    for slot, (a, b) in enumerate(zip(expected, found, strict=True)):
        where = np.flatnonzero(bits(a) != bits(b))[:5]
        assert not len(where), (
            f"buffer {slot} differs at {where}: {a[where]} expected, {b[where]} found\n{source}"
        )
