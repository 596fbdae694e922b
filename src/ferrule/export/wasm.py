"""The format `wasm`: a captured function as a WebAssembly module, and a loader for JavaScript.

A module has one memory, with all blocks of the program at fixed addresses; an instance of it is an
instance of the function. It exports `memory` and `run`, which takes the values of the variables and
gives 0, or 1 for values that do not fit. The section `ferrule` says in JSON where the tensors are.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.codegen.uops import UOp, UOps
from ferrule.export.interface import size_data
from ferrule.export.program import (
    ALIGNMENT,
    Cell,
    ExportedProgram,
    ExportError,
    Kernel,
    TensorSpec,
)
from ferrule.export.step_code import Lines, StepCode, expression
from ferrule.export.targets import WASM, scheduled
from ferrule.export.wasm_object import Segment, WasmObject
from ferrule.ir.expr import Variable, as_expr
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.runtime.cpu import native_sort
from ferrule.runtime.cpu.llvm import compile_wasm

INTERFACE: Final = 1
"""The version of what modules export and of their section `ferrule`."""
LOADER: Final = Path(__file__).with_name("loader.mjs")

_RUN: Final = "ferrule.run"
_SLOT_BYTES: Final = 8
_STACK_SPARE: Final = 64 << 10  # bytes of the stack beside the kernels' scratch
_MAX_BYTES: Final = 1 << 32


@final
@dataclass(frozen=True)
class WasmProgram:
    """A module, and the addresses of the program's blocks in its memory."""

    program: ExportedProgram
    module: bytes
    addresses: tuple[int, ...]


def wasm_program(program: ExportedProgram, name: str) -> WasmProgram:
    """The module of a program; `name` is what its loader calls it.

    Raises `ExportError` for packed kernels, and if all memory is more than 4 GiB.
    """
    made = _Module(program, name)
    return WasmProgram(program, made.bytes(), tuple(made.addresses))


def wasm_kernels(program: ExportedProgram) -> dict[str, list[UOp]]:
    """The programs of the kernels, by name."""
    return {name: k.uops for name, k in scheduled(program, WASM).items()}


@final
class _Module:
    """Places the blocks of a program in memory, and compiles its kernels and `run`."""

    def __init__(self, program: ExportedProgram, name: str) -> None:
        self.program = program
        self.name = name
        kernels = wasm_kernels(program)
        locals_ = (_local_bytes(uops) for uops in kernels.values())
        self.stack_bytes = round_up(max(locals_, default=0) + _STACK_SPARE, ALIGNMENT)
        renderer = LLVMRenderer(WASM)
        sources = [renderer.render(name, uops) for name, uops in kernels.items()]
        sources += [native_sort.module(rows, name) for name, rows in program.row_functions.items()]
        # The sizes of the tables are known before their contents, the addresses, are.
        place = self.stack_bytes
        self.tables: list[int] = []
        for kernel in program.kernels:
            self.tables.append(place)
            place += _SLOT_BYTES * (len(kernel.cells) + len(kernel.values))
        self.addresses: list[int] = []
        for block in program.blocks:
            place = round_up(place, ALIGNMENT)
            self.addresses.append(place)
            place += block.nbytes
        self.base = round_up(place, ALIGNMENT)
        self.object = WasmObject(compile_wasm([*sources, self._run()], WASM.features))
        self.memory_bytes = self.base + self.object.data_bytes
        if self.memory_bytes > _MAX_BYTES:
            raise ExportError(
                f"{program.name} needs {self.memory_bytes} bytes, and a module of WebAssembly has "
                f"at most {_MAX_BYTES}; export a smaller batch"
            )

    def bytes(self) -> bytes:
        """The file."""
        return self.object.module(
            {"run": _RUN},
            list(self._segments()),
            base=self.base,
            stack_bytes=self.stack_bytes,
            memory_bytes=self.memory_bytes,
            customs={"ferrule": json.dumps(self._description()).encode()},
        )

    def address(self, cell: Cell) -> int:
        """The address of a cell without its moves."""
        return self.addresses[cell.block] + cell.offset

    # -- memory ------------------------------------------------------------------------------------

    def _segments(self) -> Iterator[Segment]:
        for kernel, address in zip(self.program.kernels, self.tables, strict=True):
            cells = [self.address(cell) for cell in kernel.cells]
            values = [value if isinstance(value, int) else 0 for value in kernel.values]
            slots = [*cells, *values]
            yield Segment(address, struct.pack(f"<{len(slots)}q", *slots))
        for number in sorted(self.program.used_blocks):
            address, contents = self.addresses[number], self.program.blocks[number].contents
            if contents is not None and contents.any():
                yield Segment(address, contents.tobytes())

    def _description(self) -> dict[str, Any]:
        program = self.program
        return {
            "interface": INTERFACE,
            "name": self.name,
            "variables": [{"name": v.name, "min": v.min, "max": v.max} for v in program.variables],
            "arguments": [self._tensor(spec) for spec in program.arguments],
            "states": [self._tensor(spec) for spec in (*program.states, *program.effects)],
            "results": [self._tensor(spec) for spec in program.results],
        }

    def _tensor(self, spec: TensorSpec) -> dict[str, Any]:
        names = {variable: variable.name for variable in self.program.variables}
        return {
            "name": spec.name,
            "dtype": spec.dtype.name,
            "shape": [size_data(size, names) for size in spec.shape],
            "strides": [size_data(step, names) for step in spec.strides],
            "changed": self.program.blocks[spec.cell.block].is_written,
            "address": self.address(spec.cell),
            "length": spec.cell.nbytes // spec.dtype.itemsize,
        }

    # -- the run -----------------------------------------------------------------------------------

    def _run(self) -> str:
        """The function that does all steps, in LLVM IR."""
        code, program = Lines(), self.program
        given, values = [], {}
        for number, variable in enumerate(program.variables):
            given.append(f"i32 %given{number}")
            value = values[variable] = code.value(f"sext i32 %given{number} to i64")
            for comparison, bound in (("slt", variable.min), ("sgt", variable.max)):
                code.leave_if(code.value(f"icmp {comparison} i64 {value}, {bound}"), _REFUSED)
        for spare in program.limits:
            found = expression(code, as_expr(spare), values)
            code.leave_if(code.value(f"icmp slt i64 {found}, 0"), _REFUSED)
        steps = _Steps(self, code, values)
        steps.run(program.steps)
        declared = ["declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)"]
        for name in sorted({kernel.name for kernel in program.kernels}):
            declared.append(f'declare void @"{name}"(ptr, i64, i64)')
            declared.append(f'declare i64 @"{name}.extent"(ptr)')
        head = f'define i32 @"{_RUN}"({", ".join(given)}) {{\nentry:\n{steps.slots()}'
        refused = f"error{_REFUSED}:\n  ret i32 {_REFUSED}\n"
        body = "\n".join([*code.lines, "  ret i32 0"])
        return "\n".join([*declared, head]) + f"{body}\n{refused}}}\n"


@final
class _Steps(StepCode):
    """The steps of a run, each kernel with a table of its own in memory."""

    def __init__(self, module: _Module, code: Lines, values: Mapping[Variable, str]) -> None:
        super().__init__(code, values)
        self._module = module
        self._tables = iter(module.tables)

    def first(self, cell: Cell) -> str:
        """The address of a cell without its moves."""
        return _pointer(self._module.address(cell))

    def copy(self, to: str, source: str, nbytes: int) -> None:
        """Copies bytes between addresses."""
        operands = f"ptr {to}, ptr {source}, i32 {nbytes}, i1 false"
        self.code.do(f"call void @llvm.memcpy.p0.p0.i32({operands})")

    def kernel(self, kernel: Kernel) -> None:
        """Runs a kernel: what is not the same in each call goes to its table."""
        code, table = self.code, next(self._tables)
        for number, cell in enumerate(kernel.cells):
            if cell.moves:
                slot = _pointer(table + _SLOT_BYTES * number)
                code.do(f"store ptr {self.address(cell)}, ptr {slot}")
        for number, value in enumerate(kernel.values, len(kernel.cells)):
            if isinstance(value, Variable):
                slot = _pointer(table + _SLOT_BYTES * number)
                code.do(f"store i64 {self.values[value]}, ptr {slot}")
        chunks = code.value(f'call i64 @"{kernel.name}.extent"(ptr {_pointer(table)})')
        code.do(f'call void @"{kernel.name}"(ptr {_pointer(table)}, i64 0, i64 {chunks})')


_REFUSED: Final = 1  # what the run gives for sizes that do not fit


def _pointer(address: int) -> str:
    return f"inttoptr (i32 {address} to ptr)"


def _local_bytes(uops: Sequence[UOp]) -> int:
    """The bytes of a kernel's scratch arrays."""
    return sum(
        round_up(u.arg[1] * u.dtype.itemsize, ALIGNMENT)
        for u in uops
        if u.op is UOps.LOCAL and u.dtype
    )
