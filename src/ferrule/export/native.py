"""Exports to native code: the formats `so` (a shared library), `a` (an archive) and `ferrule`."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.export import header, interface, loading
from ferrule.export.captured import exported_program
from ferrule.export.interface import Interface, size_data
from ferrule.export.linking import Blob, SharedLibrary, externals_of
from ferrule.export.native_code import NativeCode, Variant, Weights
from ferrule.export.objects import Member, data_object, defined_names, renamed, write_archive
from ferrule.export.program import (
    ALIGNMENT,
    ExportedProgram,
    ExportError,
    TensorSpec,
)
from ferrule.export.retargeting import Retargeted, native_kernel, retargeted
from ferrule.export.verify import Array, Run
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.target import Target, named_cpu
from ferrule.jit import BoundJit, TinyJit
from ferrule.runtime.cpu import native as runtime
from ferrule.runtime.cpu.llvm import CPUCompiler, host_compiler
from ferrule.runtime.cpu.relocations import MACHINES, Machine

_MACHINES: Final = {"x86-64": MACHINES["x86_64"], "aarch64": MACHINES["aarch64"]}
NATIVE: Final = "native"


@final
@dataclass(frozen=True)
class NativeProgram:
    """The object files of a program, its read-only data, and the texts that belong to it."""

    interface: Interface
    variants: tuple[Variant, ...]
    objects: tuple[bytes, ...]
    exported: tuple[str, ...]
    imported: tuple[str, ...]
    blob: Blob
    machine: Machine
    threads: bool

    @property
    def program(self) -> ExportedProgram:
        """What it does, with the kernels for the first target."""
        return self.interface.program

    def library(self, file: str) -> SharedLibrary:
        """The program as a shared library."""
        return SharedLibrary(
            self.objects, self.exported, self.imported, self.blob, self.machine, file
        )

    def header(self) -> str:
        """The header in C."""
        names = ", ".join([variant.target.name for variant in self.variants])
        what = f"Its kernels are for {names}."
        return header.header(self.interface, what, self.threads, has_about=True)

    def loader(self, file: str) -> str:
        """The loader in Python."""
        return header.loader(self.interface, file)

    def members(self) -> list[Member]:
        """The members of an archive."""
        name = self.interface.name
        found = [
            Member.of(f"{name}_{number}.o", data, defined_names(data, self.machine))
            for number, data in enumerate(self.objects)
        ]
        if self.blob.nbytes:
            blob = self.blob
            found.append(data_object(blob.name, blob.nbytes, blob.pieces, self.machine))
        return found


def native_program(
    step: TinyJit[Any] | BoundJit[Any],
    name: str,
    targets: Sequence[str] = (NATIVE,),
    threads: bool = False,
) -> NativeProgram:
    """The native code of a captured function for some targets, of which the first that can run is
    chosen when an instance is made.

    The target "native" has the machine code of the replay itself, for processors that have all
    instructions of this one. Others are the names that `named_cpu` takes.

    Raises `ExportError` for no target, for one of another processor than this one, and for what
    `exported_program` refuses.
    """
    host = host_compiler().target
    if not targets or host.arch not in _MACHINES:
        raise ExportError(f"name at least one target for this processor, {host.arch}")
    machine = _MACHINES[host.arch]
    shared_name = interface.program_name(name)
    objects: dict[bytes, tuple[str, str]] = {}
    """For each object file of a kernel: its name in the program, and the one that it has."""
    variants = []
    for label in dict.fromkeys(targets):
        target, found = _compiled_for(step, label, host, name)
        kernels = []
        for lib, original in found.kernels:
            symbol, _ = objects.setdefault(lib, (f"{shared_name}.k{len(objects)}", original))
            kernels.append(symbol)
        variants.append(Variant(target, found.program, tuple(kernels)))
    shared = Interface(variants[0].program, name)
    for other in variants[1:]:
        assert [one.name for one in Interface(other.program, name).parameters] == [
            one.name for one in shared.parameters
        ], "programs of one replay have the same pointers"
    weights, blob = _weights([one.program for one in variants], f"{shared.name}_weights")
    code = NativeCode(shared, variants, weights, header.about(shared), threads)
    base = CPUCompiler(named_cpu("sse2" if host.arch == "x86-64" else "neon"))
    made = [base.compile_cached(str(code))]
    if threads:
        native = base.compile_cached(runtime.ir(host.arch, "linux", for_python=False))
        names = {one: f"{shared.name}.{one}" for one in defined_names(native, machine)}
        made.append(renamed(native, names, machine))
    for lib, (symbol, original) in objects.items():
        names = {original: symbol, f"{original}.extent": f"{symbol}.extent"}
        made.append(renamed(lib, names, machine))
    needed = [one for one in externals_of(made, machine) if one != blob.name]
    imported = tuple([one for one in needed if one in code.imported])
    exported = tuple(code.exported)
    return NativeProgram(
        shared, tuple(variants), tuple(made), exported, imported, blob, machine, threads
    )


def _compiled_for(
    step: TinyJit[Any] | BoundJit[Any], label: str, host: Target, name: str
) -> tuple[Target, Retargeted]:
    """A target, and the program with its kernels for it."""
    if label == NATIVE:
        program = exported_program(step, name=name)
        compiled = [native_kernel(one, host_compiler()) for one in program.kernels]
        return host, Retargeted(program, tuple(compiled))
    target = named_cpu(label)
    if target.arch != host.arch:
        raise ExportError(f"target {label} is for {target.arch}, and this processor is {host.arch}")
    return target, retargeted(exported_program(step, packed=False, name=name), target)


def _weights(programs: Sequence[ExportedProgram], name: str) -> tuple[Weights, Blob]:
    """The places of all constants and first contents of states, and these as data."""
    places: dict[int, int] = {}
    memories: list[Buffer] = []
    end = 0
    for program in programs:
        used = program.used_blocks
        for number, block in enumerate(program.blocks):
            memory = block.memory if number in used else None
            if memory is not None and memory.serial not in places:
                places[memory.serial] = end = round_up(end, ALIGNMENT)
                memories.append(memory)
                end += memory.nbytes

    def pieces() -> Iterator[bytes]:
        at = 0
        for memory in memories:
            start = places[memory.serial]
            yield bytes(start - at)
            yield memory.copied((memory.size,)).tobytes()
            at = start + memory.nbytes

    return Weights(name, places), Blob(name, end, pieces)


def write_library(program: NativeProgram, path: Path) -> None:
    """Writes a shared library."""
    with path.open("wb") as file:
        program.library(path.name).write(file)


def write_static_library(program: NativeProgram, path: Path) -> None:
    """Writes an archive of object files."""
    with path.open("wb") as file:
        write_archive(file, program.members())


def write_program(program: NativeProgram, path: Path) -> None:
    """Writes a file that `ferrule.load` runs: see `loading.py`."""
    description = json.dumps(_description(program)).encode()
    with path.open("w+b") as file:
        program.library(f"{program.interface.name}.so").write(file)
        file.write(description)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as written:
            view = memoryview(written)
            end = loading.footer([view], len(description))
            view.release()
        file.write(end)


def _description(program: NativeProgram) -> dict[str, Any]:
    shared, whole = program.interface, program.program
    names = dict(zip(whole.variables, shared.sizes, strict=True))

    def rows(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [
            {
                "name": spec.name,
                "dtype": header.numpy_name(spec),
                "shape": [size_data(size, names) for size in spec.shape],
                "strides": [size_data(step, names) for step in spec.strides],
                "offset": spec.cell.offset,
                "place": place.place,
                "nbytes": whole.blocks[spec.cell.block].nbytes,
                "changed": whole.blocks[spec.cell.block].is_written,
            }
            for spec, place in zip(specs, shared.described(specs), strict=True)
        ]

    return {
        "name": shared.name,
        "interface": interface.VERSION,
        "machine": program.variants[0].target.arch,
        "sizes": [[names[one], one.min, one.max] for one in whole.variables],
        "arguments": rows(whole.arguments),
        "results": rows(whole.results),
        "states": rows(shared.state_specs),
        "pointers": [whole.blocks[one.block].nbytes for one in shared.parameters],
        "template": _as_json(whole.template),
    }


def _as_json(template: Any) -> Any:
    """A template whose containers say what they are; keys are texts of Python, as in a program."""
    if isinstance(template, dict):
        pairs = [[header.key_text(key), _as_json(part)] for key, part in template.items()]
        return {"kind": "dict", "parts": pairs}
    if isinstance(template, list | tuple):
        kind = "list" if isinstance(template, list) else "tuple"
        return {"kind": kind, "parts": [*map(_as_json, template)]}
    return template


def runner(program: NativeProgram, path: Path) -> Run:
    """A program of the format `ferrule` at a path, as the function that `verify` takes."""
    loaded = loading.load(path)
    names = dict(zip(program.program.variables, program.interface.sizes, strict=True))

    def run(
        arguments: Mapping[str, Array], sizes: Mapping[Variable, int]
    ) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        values = {names[one]: value for one, value in sizes.items()}
        given = []
        for spec, one in zip(program.program.arguments, loaded.arguments, strict=True):
            part = tuple([slice(0, size) for size in one.shape_for(values)])
            given.append(arguments[spec.name][part].view(one.dtype))
        results = loaded.run(given, values)
        return results, loaded.states

    return run
