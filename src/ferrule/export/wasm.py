"""The format `wasm`: a captured function as a WebAssembly module, and a loader for JavaScript.

A module has one memory, with all blocks of the program at fixed addresses; an instance of it is an
instance of the function. It exports `memory` and `run`, which takes the values of the variables and
gives 0, or 1 for values that do not fit. The section `ferrule` says in JSON where the tensors are.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
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
    Step,
    TensorSpec,
)
from ferrule.export.targets import WASM, scheduled
from ferrule.export.wasm_object import Segment, WasmObject
from ferrule.ir.expr import Expr, ExprOp, Variable
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
        self._count = 0
        # The sizes of the tables are known before their contents, the addresses, are.
        tables = [_SLOT_BYTES * _slots(step) for step in program.steps]
        place = self.stack_bytes
        self.tables: list[int] = []
        for size in tables:
            self.tables.append(place)
            place += size
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

    def _address(self, cell: Cell) -> int:
        return self.addresses[cell.block] + cell.offset

    # -- memory ------------------------------------------------------------------------------------

    def _segments(self) -> Iterator[Segment]:
        for step, address in zip(self.program.steps, self.tables, strict=True):
            if isinstance(step, Kernel):
                cells = [self._address(cell) for cell in step.cells]
                values = [value if isinstance(value, int) else 0 for value in step.values]
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
            "address": self._address(spec.cell),
            "length": spec.cell.nbytes // spec.dtype.itemsize,
        }

    # -- the run -----------------------------------------------------------------------------------

    def _run(self) -> str:
        """The function that does all steps, in LLVM IR."""
        lines: list[str] = []
        for variable in self.program.variables:
            lines += self._refuse_outside(variable)
        for spare in self.program.limits:
            value = self._integer(spare, lines)
            lines += self._leave_if(f"icmp slt i64 {value}, 0")
        for step, table in zip(self.program.steps, self.tables, strict=True):
            lines += self._step(step, table)
        names = {step.name for step in self.program.steps if isinstance(step, Kernel)}
        declared = [
            line
            for name in sorted(names)
            for line in (
                f'declare void @"{name}"(ptr, i64, i64)',
                f'declare i64 @"{name}.extent"(ptr)',
            )
        ]
        given = ", ".join(f"i32 %given.{n}" for n in range(len(self.program.variables)))
        widened = [
            f"%value.{n} = sext i32 %given.{n} to i64" for n in range(len(self.program.variables))
        ]
        head = f'define i32 @"{_RUN}"({given}) {{'
        body = [f"  {line}" for line in (*widened, *lines, "ret i32 0")]
        refused = ["refused:", "  ret i32 1"] if self._checks else []
        copy = "declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)"
        return "\n".join([*declared, copy, head, *body, *refused, "}"]) + "\n"

    @property
    def _checks(self) -> bool:
        return bool(self.program.variables or self.program.limits)

    def _value(self, variable: Variable) -> str:
        return f"%value.{self.program.variables.index(variable)}"

    def _refuse_outside(self, variable: Variable) -> Iterator[str]:
        for comparison, bound in (("slt", variable.min), ("sgt", variable.max)):
            yield from self._leave_if(f"icmp {comparison} i64 {self._value(variable)}, {bound}")

    def _leave_if(self, condition: str) -> list[str]:
        self._count += 1
        name = f"check.{self._count}"
        return [
            f"%{name} = {condition}",
            f"br i1 %{name}, label %refused, label %{name}.passed",
            f"{name}.passed:",
        ]

    def _integer(self, e: Expr, lines: list[str]) -> str:
        """The value of an expression of the variables."""
        if e.op is ExprOp.CONST:
            return str(e.arg)
        if isinstance(e, Variable):
            return self._value(e)
        if e.op not in _INTEGERS:
            raise ExportError(f"{e}: the format wasm has no {e.op.name} of sizes")
        operands = [self._integer(s, lines) for s in e.src]
        self._count += 1
        name = f"%size.{self._count}"
        if e.op is ExprOp.NEG:
            operands = ["0", *operands]
        lines.append(f"{name} = {_INTEGERS[e.op]} i64 {', '.join(operands)}")
        return name

    def _step(self, step: Step, table: int) -> Iterator[str]:
        if not isinstance(step, Kernel):
            to, source = (_pointer(self._address(cell)) for cell in (step.to, step.source))
            size = f"i32 {step.to.nbytes}"
            yield f"call void @llvm.memcpy.p0.p0.i32({to}, {source}, {size}, i1 false)"
            return
        for number, value in enumerate(step.values, len(step.cells)):
            if isinstance(value, Variable):
                slot = _pointer(table + _SLOT_BYTES * number)
                yield f"store i64 {self._value(value)}, {slot}"
        self._count += 1
        chunks = f"%chunks.{self._count}"
        yield f'{chunks} = call i64 @"{step.name}.extent"({_pointer(table)})'
        yield f'call void @"{step.name}"({_pointer(table)}, i64 0, i64 {chunks})'


_INTEGERS: Final = {
    ExprOp.ADD: "add",
    ExprOp.SUB: "sub",
    ExprOp.MUL: "mul",
    ExprOp.NEG: "sub",
}


def _pointer(address: int) -> str:
    return f"ptr inttoptr (i32 {address} to ptr)"


def _slots(step: Step) -> int:
    return len(step.cells) + len(step.values) if isinstance(step, Kernel) else 0


def _local_bytes(uops: Sequence[UOp]) -> int:
    """The bytes of a kernel's scratch arrays."""
    return sum(
        round_up(u.arg[1] * u.dtype.itemsize, ALIGNMENT)
        for u in uops
        if u.op is UOps.LOCAL and u.dtype
    )
