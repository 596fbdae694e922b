"""The interface of a device's compiler: from the source of a kernel to the bytes of a program.

`ferrule.device` re-exports the public names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, final

import ferrule.base.diskcache as diskcache
from ferrule.base.config import config


class CompileError(ValueError):
    """A device's compiler does not accept a kernel's code, or is not there."""


class Compiler:
    """Turns a renderer's source into a program's bytes. A device subclasses it.

    `cachekey` names the compiler and all but the source that a program depends on: target, version,
    flags. A renderer that is no part of ferrule adds its version, since programs are also found by
    their ASTs. None: programs are not cached.
    """

    is_portable = False
    """True if it and the device's renderer may be pickled, to compile in another process."""

    def __init__(self, cachekey: str | None = None) -> None:
        self.cachekey = cachekey

    def compile(self, src: str) -> bytes:
        """The program for `src`."""
        raise NotImplementedError(f"{type(self).__name__} does not define compile(src)")

    def compile_cached(self, src: str) -> bytes:
        """The program for `src`, from the disk cache if it is there."""
        if self.cachekey is None:
            return self.compile(src)
        lib = diskcache.get(self.cachekey, src)
        if config().DEBUG >= 1:
            print(f"{self.cachekey}: cache {'miss' if lib is None else 'hit'}")
        if lib is None:
            lib = self.compile(src)
            diskcache.put(self.cachekey, src, lib)
        return lib

    def disassemble(self, lib: bytes) -> str:
        """The machine code of a program, as text."""
        raise NotImplementedError(f"{type(self).__name__} does not define disassemble(lib)")


@final
class NoCompiler(Compiler):
    """Stands for the compiler of a device that only holds memory."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def compile(self, src: str) -> bytes:
        """Raises `CompileError`."""
        raise no_kernels(self._device, "compiler")


def no_runtime(device: str) -> Callable[[str, bytes], Any]:
    """Stands for the program loader of such a device."""

    def load(name: str, lib: bytes) -> NoReturn:
        raise no_kernels(device, "runtime")

    return load


def no_kernels(device: str, part: str) -> CompileError:
    """The error of a device that holds memory only, when a kernel is to be made for it."""
    return CompileError(
        f"device {device} has no {part}: it holds memory, and runs no kernels; copy tensors to "
        "another device first, as with x.to('CPU')"
    )
