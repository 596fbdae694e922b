"""LLVM, by way of llvmlite: the compiler of the CPU device. No other module imports llvmlite.

It is imported when something is compiled, and not before. That takes 40 ms or more, and 45 MB,
which a process does not pay whose kernels are all in the disk cache.

The result for a kernel depends on its source, the target's features, LLVM's version and the flags
below. `CPUCompiler.cachekey` has all of these, so objects may be moved between machines of one
target. LLVM is not asked for the processor's model: it would have to be imported for the key, and
it guesses a model by family and stepping.
"""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import local
from typing import Any, Final, final

from ferrule.base.diskcache import digest
from ferrule.device import CompileError, Compiler
from ferrule.ir.target import Target, detect_cpu
from ferrule.runtime.cpu.elf import LoadedObject, ObjectError, load, supports
from ferrule.runtime.cpu.measured import measured

# Kernels come with explicit vectors and register tiles, so only the pass matters that turns stack
# slots into registers: 41 ms for a matrix product, 90 ms with all passes.
_PASSES = ("sroa",)
_OPT_LEVEL = 2
_RELOCATION_MODEL = "pic"
_CODE_MODEL = "small"
_WASM_TRIPLE = "wasm32-unknown-unknown"
_MODEL = {"x86-64": "x86-64"}
_FLAGS = f"O{_OPT_LEVEL} {','.join(_PASSES)} {_RELOCATION_MODEL} {_CODE_MODEL}"

_DEFINITION = re.compile(r'^define\b[^@\n]*@"?([\w.$-]+)"?\(', re.MULTILINE)


def _kernel_name(src: str) -> str:
    """The name of the kernel that a source defines, as far as one can tell."""
    names = _DEFINITION.findall(src)
    kernels = [name for name in names if not name.endswith(".extent")]
    return kernels[0] if kernels else "?"


def _package_version() -> str:
    """A string for llvmlite's version in cache keys, found without importing it."""
    found = find_spec("llvmlite")
    if found is None or found.origin is None:
        return "none"
    version = Path(found.origin).with_name("_version.py")
    if version.exists():
        return digest(version.read_bytes())[:12]
    from importlib.metadata import version as installed_version

    return installed_version("llvmlite")


@cache
def _llvm() -> Any:
    """llvmlite's binding, ready for use. Raises `CompileError` if it is not installed."""
    try:
        from llvmlite import binding
    except ImportError as error:
        raise CompileError(
            f"the CPU device compiles with llvmlite, which cannot be imported ({error});"
            " run: pip install llvmlite"
        ) from error
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()  # without it, inline assembly ends the process
    return binding


@cache
def _emitter() -> Callable[..., Any] | None:
    """LLVM's code generator, without the lock that llvmlite has around every call.

    LLVM itself allows one context for each thread. Code generation is nine tenths of a compilation;
    everything else goes through llvmlite, one thread at a time. None if a new version of llvmlite
    does not offer it.
    """
    ffi = _llvm().ffi
    try:
        locked = ffi.lib.LLVMPY_TargetMachineEmitToMemory
        library = ctypes.CDLL(ffi.lib._name, handle=ffi.lib._handle)
        emit = library.LLVMPY_TargetMachineEmitToMemory
        emit.argtypes, emit.restype = locked.argtypes, locked.restype
    except AttributeError:
        return None
    return emit


def _emit_object(machine: Any, module: Any) -> bytes:
    emit = _emitter()
    if emit is None:
        return bytes(machine.emit_object(module))
    ffi = _llvm().ffi
    with ffi.OutputString() as message:
        buffer = emit(machine, module, 1, message)
        if not buffer:
            raise RuntimeError(str(message))
    try:
        size = ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


class _OfThread(local):
    """What each thread has for itself."""

    def __init__(self) -> None:
        self.machines: dict[tuple[str, str], Any] = {}


_own: Final = _OfThread()


@final
class CPUCompiler(Compiler):
    """LLVM IR text to an object file for `target`."""

    is_portable = True

    def __init__(self, target: Target) -> None:
        self.target = target
        key = (target.features, sys.platform, platform.machine(), _package_version(), _FLAGS)
        super().__init__(f"cpu-{target.name}-{digest(*key)[:16]}")

    def compile(self, src: str) -> bytes:
        """The object file for the module `src`.

        Raises `CompileError`, with the kernel's name and LLVM's message, if LLVM rejects it.
        """
        llvm = _llvm()
        machine = self._machine()
        # A context of its own: it owns its types and metadata, and threads do not share it.
        context = llvm.create_context()
        try:
            module = llvm.parse_assembly(src, context)
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            module.verify()
            if "alloca" in src:  # else there is nothing for them
                _run_passes(machine, module)
            return _emit_object(machine, module)
        except RuntimeError as error:
            raise CompileError(
                f"kernel {_kernel_name(src)}: LLVM does not accept its code: {error}"
            ) from error

    def disassemble(self, lib: bytes) -> str:
        """The machine code of an object file: by objdump if that is installed, else as bytes."""
        import shutil
        import subprocess
        import tempfile

        objdump = shutil.which("objdump") or shutil.which("llvm-objdump")
        if objdump is None:
            return _hex_dump(lib)
        with tempfile.NamedTemporaryFile(suffix=".o") as file:
            file.write(lib)
            file.flush()
            command = [objdump, "-d", "-r", "--no-show-raw-insn", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else _hex_dump(lib)

    def _machine(self) -> Any:
        """This thread's code generator for the target.

        A new one would make its tables anew for each kernel, which is a quarter of the time of an
        empty one (Zen 4, 2026-11).
        """
        key = self.target.arch, self.target.features
        found = _own.machines.get(key)
        if found is None:
            llvm = _llvm()
            target = llvm.Target.from_triple(llvm.get_process_triple())
            found = _own.machines[key] = target.create_target_machine(
                cpu=_MODEL.get(self.target.arch, "generic"),
                features=self.target.features,
                opt=_OPT_LEVEL,
                reloc=_RELOCATION_MODEL,
                codemodel=_CODE_MODEL,
            )
        return found


def _run_passes(machine: Any, module: Any) -> None:
    llvm = _llvm()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0))
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)


def compile_wasm(sources: Sequence[str], features: str) -> bytes:
    """The WebAssembly object that modules of LLVM IR make together.

    Raises `CompileError`, with LLVM's message, if LLVM rejects them.
    """
    llvm = _llvm()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(_WASM_TRIPLE)
    machine = target.create_target_machine(features=features, opt=_OPT_LEVEL, reloc="static")
    context = llvm.create_context()
    try:
        whole, *others = (llvm.parse_assembly(source, context) for source in sources)
        for module in others:
            whole.link_in(module)
        whole.triple = machine.triple
        whole.data_layout = str(machine.target_data)
        whole.verify()
        _run_passes(machine, whole)
        return _emit_object(machine, whole)
    except RuntimeError as error:
        raise CompileError(f"LLVM does not accept code for WebAssembly: {error}") from error


@cache
def host_compiler() -> CPUCompiler:
    """The compiler for the processor that this process runs on."""
    target = detect_cpu()
    found = measured(target.key)
    return CPUCompiler(target if found is None else target.with_speeds(found))


def _hex_dump(data: bytes) -> str:
    rows = range(0, len(data), 16)
    return "\n".join(f"{start:06x}  {data[start : start + 16].hex(' ')}" for start in rows)


_library_numbers = count()


@cache
def _linker() -> Any:
    return _llvm().create_lljit_compiler()


def load_with_llvm(data: bytes, externals: Mapping[str, int], names: Sequence[str]) -> LoadedObject:
    """Load an object file of the host's own format, and find the functions `names` in it.

    Raises `ObjectError` if LLVM cannot link it.
    """
    builder = _llvm().JITLibraryBuilder().add_object_img(data)
    for name, address in externals.items():
        builder.import_symbol(name, address)
    for name in names:
        builder.export_symbol(name)
    try:
        library = builder.link(_linker(), f"ferrule-{next(_library_numbers)}")
    except RuntimeError as error:
        raise ObjectError(f"object file: LLVM cannot link it: {error}") from error
    return LoadedObject({name: library[name] for name in names}, memoryview(b""), library)


def load_object(data: bytes, externals: Mapping[str, int], names: Sequence[str]) -> LoadedObject:
    """Load an object file that defines `names`: by our own loader if it can, else by LLVM.

    Raises `ObjectError` if the file is malformed or lacks one of `names`.
    """
    if not supports(data):
        return load_with_llvm(data, externals, names)
    loaded = load(data, externals)
    for name in names:
        loaded.address(name)
    return loaded
