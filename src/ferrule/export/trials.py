"""Runs of what the formats `c` and `wasm` have written, so that it can be compared with the replay.

Each gives a `Run` and how it was made: C by the system's compiler, WebAssembly by wasmtime. Where
these are missing, the kernels, scheduled for that format, are compiled by LLVM for this processor.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ferrule.codegen.uops import UOp
from ferrule.export.c import FLAGS, CProgram
from ferrule.export.interface import Interface
from ferrule.export.interpret import Instance, aligned
from ferrule.export.program import ExportedProgram, ExportError, Kernel, TensorSpec, with_kernels
from ferrule.export.targets import WASM
from ferrule.export.verify import Array, Run
from ferrule.export.wasm import WasmProgram
from ferrule.ir.expr import Variable, as_expr
from ferrule.ir.target import Target
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.runtime.cpu.llvm import host_compiler
from ferrule.runtime.cpu.program import CPUProgram

Trial: TypeAlias = tuple[Run, str]

_COMPILERS = ("cc", "gcc", "clang")


def c_compiler() -> str | None:
    """The system's C compiler, if there is one."""
    return next((found for name in _COMPILERS if (found := shutil.which(name))), None)


def trial_of_c(
    made: CProgram,
    shared: Interface,
    kernels: Mapping[str, Sequence[UOp]],
    target: Target,
    folder: Path,
) -> Trial:
    """A program in C, compiled in a folder.

    Raises `ExportError` if the compiler does not accept it.
    """
    compiler = c_compiler()
    if compiler is None:
        run = _run_of_kernels(shared.program, kernels, target)
        return run, "its kernels compiled by LLVM, as there is no C compiler"
    (folder / f"{shared.name}.c").write_text(made.source)
    (folder / f"{shared.name}.h").write_text(made.header)
    command = [compiler, *FLAGS, "-O1", "-shared", "-fPIC", f"{shared.name}.c", "-o", "trial.so"]
    done = subprocess.run(
        [*command, "-lm"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ExportError(
            f"{shared.name}: {compiler} does not accept the source; this is a fault of ferrule, "
            f"please report it: {done.stderr[:2000]}"
        )
    return _CInstance(
        folder / "trial.so", shared, made.weights
    ), f"compiled by {Path(compiler).name}"


class _CInstance:
    """An instance of a program in a shared library."""

    def __init__(self, path: Path, shared: Interface, weights: bytes | None) -> None:
        self.shared = shared
        self.library = ctypes.CDLL(str(path))
        self.state = self.library[f"{shared.name}_state"]
        self.state.restype = ctypes.c_void_p
        self.instance = ctypes.c_void_p()
        given = []
        if weights is not None:
            self.weights = aligned(len(weights))
            self.weights[:] = np.frombuffer(weights, np.uint8)
            given = [ctypes.c_void_p(self.weights.ctypes.data)]
        self.check(self.library[f"{shared.name}_create"](ctypes.byref(self.instance), *given))

    def __del__(self) -> None:
        self.library[f"{self.shared.name}_destroy"](self.instance)

    def check(self, error: int) -> None:
        if error:
            raise ExportError(f"{self.shared.name}: the program in C gives error {error}")

    def __call__(
        self, arguments: Mapping[str, Array], sizes: Mapping[Variable, int]
    ) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """The results, and the states afterwards."""
        shared, program = self.shared, self.shared.program
        given = {one.block: aligned(program.blocks[one.block].nbytes) for one in shared.parameters}
        for spec in program.arguments:
            tensor_in(given[spec.cell.block], spec, {})[...] = arguments[spec.name]
        addresses = [memory.ctypes.data for memory in given.values()]
        tensors = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        numbers = [sizes[variable] for variable in program.variables]
        values = (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
        self.check(self.library[f"{shared.name}_run_tensors"](self.instance, tensors, values))
        for number, block in enumerate(shared.states):
            place = self.state(self.instance, number)
            nbytes = program.blocks[block].nbytes
            given[block] = np.frombuffer(ctypes.string_at(place, nbytes), np.uint8)
        for spec in program.changed:
            arguments[spec.name][...] = tensor_in(given[spec.cell.block], spec, {})
        return _named(program, lambda spec: tensor_in(given[spec.cell.block], spec, sizes))


def trial_of_wasm(made: WasmProgram, kernels: Mapping[str, Sequence[UOp]]) -> Trial:
    """A module in wasmtime."""
    if find_spec("wasmtime") is None:
        run = _run_of_kernels(made.program, kernels, WASM)
        return run, "its kernels compiled by LLVM, as wasmtime is not installed"
    return _wasm_run(made), "run by wasmtime"


def _wasm_run(made: WasmProgram) -> Run:
    import wasmtime

    store = wasmtime.Store()
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, made.module), []).exports(
        store
    )
    memory: Any = exports["memory"]
    run_all: Any = exports["run"]
    program = made.program

    def contents(spec: TensorSpec) -> Array:
        whole = np.ctypeslib.as_array(memory.data_ptr(store), (memory.data_len(store),))
        start = made.addresses[spec.cell.block]
        return whole[start : start + program.blocks[spec.cell.block].nbytes]

    def run(
        arguments: Mapping[str, Array], sizes: Mapping[Variable, int]
    ) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        for spec in program.arguments:
            tensor_in(contents(spec), spec, {})[...] = arguments[spec.name]
        if run_all(store, *(sizes[variable] for variable in program.variables)):
            raise ExportError(f"{program.name}: the module refuses {dict(sizes)}")
        for spec in program.changed:
            arguments[spec.name][...] = tensor_in(contents(spec), spec, {})
        return _named(program, lambda spec: tensor_in(contents(spec), spec, sizes).copy())

    return run


def _run_of_kernels(
    program: ExportedProgram, kernels: Mapping[str, Sequence[UOp]], target: Target
) -> Run:
    """A program whose kernels, scheduled for another target, are compiled for this processor."""
    compiler = host_compiler()
    host = replace(compiler.target, vector_bytes=target.vector_bytes)
    renderer = LLVMRenderer(host)
    programs = {
        name: CPUProgram(name, compiler.compile_cached(renderer.render(name, uops)))
        for name, uops in kernels.items()
    }

    def here(kernel: Kernel) -> Kernel:
        if kernel.row_function is not None:
            return kernel
        runner = copy(kernel.runner)
        runner.program = programs[kernel.name]
        return replace(kernel, runner=runner)

    instance = Instance(replace(program, steps=with_kernels(program.steps, here)))

    def run(
        arguments: Mapping[str, Array], sizes: Mapping[Variable, int]
    ) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        for name, array in arguments.items():
            instance.arguments[name][...] = array
        instance.run(sizes)
        for spec in program.changed:
            arguments[spec.name][...] = instance.arguments[spec.name]
        return _named(program, lambda spec: instance.array(spec, sizes).copy())

    return run


def tensor_in(memory: Array, spec: TensorSpec, sizes: Mapping[Variable, int]) -> Array:
    """A tensor in the bytes of its block; without a size for a variable with its largest one."""
    variables = {v for e in (*spec.shape, *spec.strides) for v in as_expr(e).vars()}
    known = {v: v.max for v in variables if isinstance(v, Variable)} | dict(sizes)
    shape = [as_expr(size).infer(known) for size in spec.shape]
    strides = [as_expr(step).infer(known) * spec.dtype.itemsize for step in spec.strides]
    whole = memory[spec.cell.offset :]
    whole = whole[: len(whole) // spec.dtype.itemsize * spec.dtype.itemsize]
    return np.lib.stride_tricks.as_strided(whole.view(spec.dtype.np), shape, strides)


def _named(
    program: ExportedProgram, array: Callable[[TensorSpec], Array]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """The results and the states, by name."""
    results = {spec.name: array(spec) for spec in program.results}
    return results, {spec.name: array(spec) for spec in (*program.states, *program.effects)}
