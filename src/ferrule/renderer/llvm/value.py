"""Values in LLVM IR: types, constants and instructions, for scalars and vectors alike.

How a dtype is held in a register and in memory:

| dtype | register | memory |
|---|---|---|
| bool | i1 | i8, 0 or 1 |
| integers | iN; the sign is in the operation | iN |
| float32, float64 | float, double | the same |
| float16, bfloat16, float8 | their bits, i16 or i8: nothing but moves and casts | the same |
"""

from __future__ import annotations

import math
import struct
from typing import Final, final

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.target import Target

_REALS: Final = {dtypes.float32: "float", dtypes.float64: "double"}


def register_type(dtype: DType) -> str:
    """The LLVM type of one lane in a register."""
    if dtype is dtypes.bool:
        return "i1"
    return _REALS.get(dtype) or f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """The LLVM type of one element in memory."""
    return "i8" if dtype is dtypes.bool else register_type(dtype)


def vector(kind: str, lanes: int) -> str:
    """The type of `lanes` values; a single one is a scalar."""
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def is_real(kind: str) -> bool:
    """True if an LLVM lane type is a float."""
    return kind in ("float", "double")


def _literal(kind: str, value: float) -> str:
    if is_real(kind):
        bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
        if math.isnan(value):  # the quiet one, of the same sign
            bits = bits & 1 << 63 | 0x7FF8000000000000
        return f"0x{bits:016X}"
    if kind == "i1":
        return "true" if value else "false"
    width = int(kind[1:])
    wrapped = int(value) & ((1 << width) - 1)
    return str(wrapped - (1 << width) if wrapped >> (width - 1) else wrapped)


def literal(kind: str, lanes: int, value: float) -> str:
    """A constant operand: the same value in each lane."""
    text = _literal(kind, value)
    return text if lanes == 1 else f"splat ({kind} {text})"


@final
class Code:
    """The lines of one function, and the declarations and helpers that they need in the module."""

    def __init__(self, target: Target, needed: set[str]) -> None:
        self.target = target
        self.needed = needed
        self._lines: list[str | list[str]] = []
        self._count = 0

    @property
    def lines(self) -> list[str]:
        """All lines, in order."""
        found: list[str] = []
        for part in self._lines:
            if isinstance(part, str):
                found.append(part)
            else:
                found += part
        return found

    def emit(self, line: str) -> None:
        self._lines.append(f"  {line}")

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")

    def gap(self) -> list[str]:
        """A place for lines that are added later."""
        found: list[str] = []
        self._lines.append(found)
        return found

    def number(self) -> int:
        self._count += 1
        return self._count

    def value(self, text: str) -> str:
        """A new name for the result of an instruction."""
        name = f"%v{self.number()}"
        self.emit(f"{name} = {text}")
        return name

    def call(self, intrinsic: str, result: str, *arguments: tuple[str, str]) -> str:
        """A call of an LLVM intrinsic; an argument is (type, operand)."""
        kinds = ", ".join(kind for kind, _ in arguments)
        self.needed.add(f"declare {result} @{intrinsic}({kinds})")
        operands = ", ".join(f"{kind} {operand}" for kind, operand in arguments)
        return self.value(f"call {result} @{intrinsic}({operands})")


@final
class Lanes:
    """Instructions on values of one type: `kind` (such as i32 or float) times `lanes`."""

    def __init__(self, code: Code, kind: str, lanes: int) -> None:
        self.code = code
        self.kind = kind
        self.lanes = lanes
        self.type = vector(kind, lanes)

    def of(self, kind: str) -> Lanes:
        """The same lanes of another kind."""
        return Lanes(self.code, kind, self.lanes)

    def constant(self, value: float) -> str:
        return literal(self.kind, self.lanes, value)

    def op(self, name: str, *operands: str) -> str:
        return self.code.value(f"{name} {self.type} {', '.join(operands)}")

    def compare(self, condition: str, a: str, b: str) -> str:
        return self.op(f"{'f' if is_real(self.kind) else 'i'}cmp {condition}", a, b)

    def select(self, condition: str, a: str, b: str) -> str:
        mask = vector("i1", self.lanes)
        return self.code.value(f"select {mask} {condition}, {self.type} {a}, {self.type} {b}")

    def convert(self, instruction: str, x: str, target: str) -> str:
        """A conversion instruction; the result has `target` lanes."""
        return self.code.value(f"{instruction} {self.type} {x} to {vector(target, self.lanes)}")

    def spread(self, x: str, wide: Lanes) -> str:
        """The value in the first lanes of a wider one."""
        if self.lanes == wide.lanes:
            return x
        if self.lanes == 1:
            return self.code.value(
                f"insertelement {wide.type} zeroinitializer, {self.type} {x}, i64 0"
            )
        return self._pick(x, "zeroinitializer", wide.lanes)

    def first(self, x: str, narrow: Lanes) -> str:
        """The first lanes of a value."""
        if self.lanes == narrow.lanes:
            return x
        if narrow.lanes == 1:
            return self.code.value(f"extractelement {self.type} {x}, i64 0")
        return self._pick(x, "poison", narrow.lanes)

    def _pick(self, x: str, rest: str, lanes: int) -> str:
        numbers = ", ".join(f"i32 {min(lane, self.lanes)}" for lane in range(lanes))
        vectors = f"{self.type} {x}, {self.type} {rest}"
        return self.code.value(f"shufflevector {vectors}, <{lanes} x i32> <{numbers}>")

    def intrinsic(self, name: str, *operands: str) -> str:
        letter = {"float": "f32", "double": "f64"}.get(self.kind, self.kind)
        suffix = letter if self.lanes == 1 else f"v{self.lanes}{letter}"
        arguments = [(self.type, operand) for operand in operands]
        return self.code.call(f"llvm.{name}.{suffix}", self.type, *arguments)


def lanes_of(code: Code, dtype: DType, lanes: int) -> Lanes:
    """Instructions on values of a dtype in registers."""
    return Lanes(code, register_type(dtype), lanes)
