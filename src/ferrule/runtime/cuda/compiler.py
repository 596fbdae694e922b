"""NVRTC, NVIDIA's compiler: CUDA C to machine code for exactly one kind of GPU.

Any driver of that kind of GPU loads such code, a cubin; an old driver does not accept the PTX of a
new compiler.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, final

from ferrule.base.diskcache import digest
from ferrule.base.records import dataclass
from ferrule.device import CompileError, Compiler
from ferrule.renderer.c.dialect import CUDA
from ferrule.runtime.cuda.driver import INSTALL

UNALIGNED = "FERRULE_UNALIGNED"
"""The macro that is defined if addresses are no multiples of 16; see
docs/design/interfaces.md, §3.
"""

_REPORT = "--ptxas-options=-v"
"""The option by which the assembler reports the resources of each kernel in the log."""
_FLAGS = ("--std=c++17", *CUDA.flags, _REPORT)

_REGISTERS = 65536
"""Registers of a multiprocessor of any supported GPU."""
_GRANULE = 8
"""Registers are given to a thread in multiples of this number."""
_LAUNCH = re.compile(r"__launch_bounds__\((\d+)(, \d+)?\)")


class Toolchain(Protocol):
    """A compiler from CUDA C to machine code."""

    @property
    def version(self) -> str:
        """A version that, with the architecture and the options, determines the result."""

    def build(self, source: str, arch: str, options: Sequence[str]) -> bytes:
        """The machine code for `arch`, such as `sm_90a`. Raises `CompileError`, with the log."""


@cache
def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise ImportError(
            f"the device CUDA needs cuda-bindings, which cannot be imported ({error}); {INSTALL}"
        ) from error
    return nvrtc


@cache
def _include_options() -> tuple[str, ...]:
    """The include path of CUDA's headers, if they are installed."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    return () if found is None else (f"--include-path={found}",)


def _loaded_version() -> str:
    """The version that the library itself reports. Raises `OSError` if it is not installed."""
    nvrtc = _bindings()
    try:
        major, minor = _check(nvrtc.nvrtcVersion())
    except Exception as error:  # which type a missing library raises depends on the version
        raise OSError(
            f"NVRTC, the compiler of the device CUDA, cannot be loaded ({error}); {INSTALL}"
        ) from error
    return f"{major}.{minor}"


def _installed_version() -> str:
    """The version of NVIDIA's package for the CUDA of the bindings, if it is installed.

    Loading the library takes a tenth of a second, which a process does not need whose kernels are
    all in the disk cache. There may be packages for several versions of CUDA; the bindings load the
    one of their own version.
    """
    try:
        major = metadata.version("cuda-bindings").partition(".")[0]
        package = "nvidia-cuda-nvrtc-cu12" if major == "12" else "nvidia-cuda-nvrtc"
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return _loaded_version()
    return found if found.partition(".")[0] == major else _loaded_version()


def _check(result: tuple[Any, ...]) -> Any:
    if result[0]:
        raise CompileError(f"NVRTC: {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


@final
@dataclass(frozen=True)
class Resources:
    """The registers of each thread of a kernel, and the bytes that it spills for lack of them."""

    registers: int
    spilled_bytes: int


def _resources(log: str) -> Resources | None:
    """The resources in the assembler's report; None unless it is of one kernel."""
    spilled = re.findall(r"(\d+) bytes spill stores", log)
    registers = re.findall(r"Used (\d+) registers", log)
    if len(registers) != 1 or len(spilled) != 1:
        return None
    return Resources(int(registers[0]), int(spilled[0]))


def _blocks_at_once(threads: int, used: Resources) -> int:
    """The number of blocks that a multiprocessor has registers for."""
    of_thread = -(-used.registers // _GRANULE) * _GRANULE
    return _REGISTERS // (threads * of_thread)


@final
class NVRTC:
    """The toolchain of real GPUs.

    A kernel says how many blocks are to run at once, by an estimate of its registers, or leaves it
    to the compiler. If registers are spilled because of that, it is compiled again for fewer
    blocks.

    Raises `ImportError` without the bindings, `OSError` without NVRTC's library.
    """

    def __init__(self) -> None:
        self._version = f"nvrtc-{_installed_version()}"

    @property
    def version(self) -> str:
        """NVRTC's own version."""
        return self._version

    def build(self, source: str, arch: str, options: Sequence[str]) -> bytes:
        """The cubin of `source`. Raises `CompileError`, with the compiler's log."""
        return self._spilling_least(source, arch, options)[0]

    def resources(self, source: str, arch: str) -> Resources:
        """The resources of the kernel of `source` on a GPU of kind `arch`, as its assembler reports
        them.
        """
        _, log = self._spilling_least(source, arch, _FLAGS)
        used = _resources(log)
        if used is None:
            raise CompileError(f"{self._version} for {arch}: no report of one kernel:\n{log}")
        return used

    def _spilling_least(self, source: str, arch: str, options: Sequence[str]) -> tuple[bytes, str]:
        """The cubin with the most blocks at once among those that spill least, and its log."""
        found = self._compile(source, arch, options)
        used, launch = _resources(found[1]), _LAUNCH.search(source)
        if used is None or launch is None:
            return found
        before, after = source[: launch.start()], source[launch.end() :]
        for blocks in range(_blocks_at_once(int(launch[1]), used) - 1, 0, -1):
            if not used.spilled_bytes:
                break
            told = f"{before}__launch_bounds__({launch[1]}, {blocks}){after}"
            other = self._compile(told, arch, options)
            less = _resources(other[1])
            if less is not None and less.spilled_bytes < used.spilled_bytes:
                found, used = other, less
        return found

    def _compile(self, source: str, arch: str, options: Sequence[str]) -> tuple[bytes, str]:
        """The cubin, and the compiler's log."""
        nvrtc = _bindings()
        program = _check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
        try:
            includes = _include_options() if "#include" in source else ()
            all_options = [f"--gpu-architecture={arch}", *options, *includes]
            encoded = [option.encode() for option in all_options]
            (code,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
            if code:
                hint = _unknown(arch)
                text = f"{self._version} for {arch}: {code.name}{hint}\n{_log(program)}"
                raise CompileError(text)
            cubin = bytearray(_check(nvrtc.nvrtcGetCUBINSize(program)))
            _check(nvrtc.nvrtcGetCUBIN(program, cubin))
            return bytes(cubin), _log(program)
        finally:
            _check(nvrtc.nvrtcDestroyProgram(program))


def _unknown(arch: str) -> str:
    """A hint if the compiler is older than the GPU; else empty."""
    known = [f"sm_{number}" for number in _check(_bindings().nvrtcGetSupportedArchs())]
    if arch.rstrip("a") in known:
        return ""
    return f": it compiles for {', '.join(known)}, so install another NVRTC for this GPU"


def _log(program: Any) -> str:
    nvrtc = _bindings()
    log = bytearray(_check(nvrtc.nvrtcGetProgramLogSize(program)))
    _check(nvrtc.nvrtcGetProgramLog(program, log))
    return log.split(b"\0")[0].decode().strip()


# *** programs as bytes ***

_MAGIC = b"FerruleCUDA\0"
_LENGTH = struct.Struct("<Q")


def pack_program(cubin: bytes, source: str) -> bytes:
    """Machine code with its source, from which other code may be made when it is needed."""
    text = source.encode()
    return b"".join((_MAGIC, _LENGTH.pack(len(text)), text, cubin))


def unpack_program(lib: bytes) -> tuple[bytes, str | None]:
    """The machine code, and the source if it is there."""
    if not lib.startswith(_MAGIC):
        return lib, None
    start = len(_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(lib, len(_MAGIC))
    return lib[start + length :], lib[start : start + length].decode()


@final
class CUDACompiler(Compiler):
    """CUDA C to a program for the architecture `arch`, such as `sm_90a`.

    A kernel with separate code for addresses that are no multiples of 16 carries its source.
    `unaligned` compiles that code, which few kernels ever need.
    """

    def __init__(self, arch: str, toolchain: Toolchain, aligned: bool = True) -> None:
        self.arch = arch
        self._toolchain = toolchain
        self._aligned = aligned
        self._options = _FLAGS if aligned else (*_FLAGS, f"--define-macro={UNALIGNED}")
        key = digest(toolchain.version, *self._options)
        super().__init__(f"cuda-{arch}-{key[:16]}")

    def compile(self, src: str) -> bytes:
        """The program of `src`. Raises `CompileError`, with the compiler's log."""
        cubin = self._toolchain.build(src, self.arch, self._options)
        if self._aligned and UNALIGNED in src:
            return pack_program(cubin, src)
        return cubin

    def unaligned(self) -> CUDACompiler:
        """The compiler of code for addresses that are no multiples of 16."""
        return CUDACompiler(self.arch, self._toolchain, aligned=False)

    def disassemble(self, lib: bytes) -> str:
        """The machine code as text, by nvdisasm. Raises `CompileError` if that is missing."""
        cubin, _ = unpack_program(lib)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [_nvdisasm(), "--print-code", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"nvdisasm: {done.stderr.strip()}")
        return done.stdout


def _nvdisasm() -> str:
    found = shutil.which("nvdisasm") or _packaged("nvdisasm")
    if found is None:
        raise CompileError(
            "disassembling needs nvdisasm, which is not installed; "
            "run: pip install nvidia-cuda-nvdisasm, or print less with DEBUG=6"
        )
    return found


def _packaged(program: str) -> str | None:
    """A program of one of NVIDIA's packages."""
    import importlib.util

    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    paths = (path for folder in folders for path in Path(folder).glob(f"*/bin/{program}"))
    return next(map(str, paths), None)
