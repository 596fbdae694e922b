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
from collections.abc import Sequence
from typing import Final, TypeAlias, final

from ferrule.ir.dtype import DType, dtype_from_name, dtypes
from ferrule.ir.target import Target
from ferrule.renderer.base import STORAGE_ONLY, storage_bits

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


def letter(kind: str) -> str:
    """A lane's type in the name of an intrinsic."""
    return {"float": "f32", "double": "f64"}.get(kind, kind)


def _literal(kind: str, value: float) -> str:
    if kind in _REALS.values():
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

    def call(self, intrinsic: str, result: str, *arguments: tuple[str, object]) -> str:
        """A call of an LLVM intrinsic; an argument is (type, operand).

        A type may end with an attribute that only the declaration has. The result of a call of type
        void has no name.
        """
        kinds = ", ".join(kind for kind, _ in arguments)
        self.needed.add(f"declare {result} @{intrinsic}({kinds})")
        operands = ", ".join(f"{kind.removesuffix(' immarg')} {x}" for kind, x in arguments)
        call = f"call {result} @{intrinsic}({operands})"
        if result != "void":
            return self.value(call)
        self.emit(call)
        return ""


@final
class Value:
    """A value in a register: an operand, its dtype and its lanes. As text it has its type before
    it.

    Operators emit the instruction for the dtype, in all lanes. Their right operand may be a number.
    """

    __slots__ = ("code", "dtype", "lanes", "name")

    def __init__(self, code: Code, dtype: DType, lanes: int, name: str) -> None:
        self.code = code
        self.dtype = dtype
        self.lanes = lanes
        self.name = name

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def type(self) -> str:
        return vector(register_type(self.dtype), self.lanes)

    @property
    def is_real(self) -> bool:
        """True if the lanes are floats, not the bits of some."""
        return self.dtype in _REALS

    @property
    def is_signed(self) -> bool:
        return dtypes.is_int(self.dtype) and not dtypes.is_unsigned(self.dtype)

    def made(self, text: str, dtype: DType | None = None, lanes: int | None = None) -> Value:
        """The result of an instruction; its dtype and lanes if they differ."""
        return Value(self.code, dtype or self.dtype, lanes or self.lanes, self.code.value(text))

    def constant(self, value: float, dtype: DType | None = None) -> Value:
        """The same number in all lanes."""
        return constant(self.code, dtype or self.dtype, self.lanes, value)

    # -- arithmetic --------------------------------------------------------------------------------

    def op(self, instruction: str, *others: Operand, dtype: DType | None = None) -> Value:
        operands = [x if isinstance(x, Value) else self.constant(x) for x in others]
        names = ", ".join(x.name for x in (self, *operands))
        return self.made(f"{instruction} {self.type} {names}", dtype)

    def intrinsic(self, name: str, *others: Value) -> Value:
        suffix = ("" if self.lanes == 1 else f"v{self.lanes}") + letter(register_type(self.dtype))
        arguments = [(self.type, x.name) for x in (self, *others)]
        called = self.code.call(f"llvm.{name}.{suffix}", self.type, *arguments)
        return Value(self.code, self.dtype, self.lanes, called)

    def _arithmetic(self, name: str, *others: Operand) -> Value:
        return self.op(f"f{name}" if self.is_real else name, *others)

    def __add__(self, other: Operand) -> Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._arithmetic("sub", other)

    def __rsub__(self, other: float) -> Value:
        return self.constant(other) - self

    def __mul__(self, other: Operand) -> Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self.op("fdiv", other)

    def __neg__(self) -> Value:
        return self.op("fneg") if self.is_real else 0 - self

    def __and__(self, other: Operand) -> Value:
        return self.op("and", other)

    def __or__(self, other: Operand) -> Value:
        return self.op("or", other)

    def __xor__(self, other: Operand) -> Value:
        return self.op("xor", other)

    def __invert__(self) -> Value:
        return self ^ -1

    def __lshift__(self, count: Operand) -> Value:
        return self.op("shl", count)

    def __rshift__(self, count: Operand) -> Value:
        return self.op("ashr" if self.is_signed else "lshr", count)

    # -- comparison --------------------------------------------------------------------------------

    def compare(self, condition: str, other: Operand) -> Value:
        """A comparison under one of LLVM's conditions."""
        return self.op(f"{'f' if self.is_real else 'i'}cmp {condition}", other, dtype=dtypes.bool)

    def _ordered(self, condition: str, other: Operand) -> Value:
        prefix = "o" if self.is_real else "s" if self.is_signed else "u"
        return self.compare(prefix + condition, other)

    def __lt__(self, other: Operand) -> Value:
        return self._ordered("lt", other)

    def __gt__(self, other: Operand) -> Value:
        return self._ordered("gt", other)

    def __ge__(self, other: Operand) -> Value:
        return self._ordered("ge", other)

    def differs(self, other: Operand) -> Value:
        """True where the other one is not equal; NaN never is."""
        return self.compare("une" if self.is_real else "ne", other)

    def is_nan(self) -> Value:
        return self.compare("uno", self)

    def select(self, a: Value, b: Value) -> Value:
        """The lanes of a where this is true, else those of b."""
        return a.made(f"select {self}, {a}, {b}")

    # -- lanes -------------------------------------------------------------------------------------

    def lane(self, number: int) -> Value:
        """One lane, as a scalar."""
        return (
            self.made(f"extractelement {self}, i64 {number}", lanes=1) if self.lanes > 1 else self
        )

    def shuffled(self, lanes: Sequence[int], other: Value | str = "poison") -> Value:
        """Chosen lanes of this vector and another one."""
        second = other if isinstance(other, Value) else f"{self.type} {other}"
        numbers = ", ".join(f"i32 {lane}" for lane in lanes)
        text = f"shufflevector {self}, {second}, <{len(lanes)} x i32> <{numbers}>"
        return self.made(text, lanes=len(lanes))

    # -- dtypes ------------------------------------------------------------------------------------

    def convert(self, instruction: str, dtype: DType) -> Value:
        """A conversion instruction."""
        target = vector(register_type(dtype), self.lanes)
        return self.made(f"{instruction} {self} to {target}", dtype)

    def view(self, dtype: DType) -> Value:
        """The same bits as another dtype of the same size."""
        if register_type(dtype) == register_type(self.dtype):
            return Value(self.code, dtype, self.lanes, self.name)
        return self.convert("bitcast", dtype)

    @property
    def bits(self) -> Value:
        """The bits as an unsigned integer."""
        return self.view(dtype_from_name(f"uint{self.dtype.bits}"))

    def resized(self, dtype: DType) -> Value:
        """An integer or bool as an integer of another size, or a float as another float."""
        if self.is_real:
            return self.convert("fptrunc" if dtype is dtypes.float32 else "fpext", dtype)
        width, target = (register_type(d)[1:] for d in (self.dtype, dtype))
        if width == target:
            return self.view(dtype)
        if int(width) > int(target):
            return self.convert("trunc", dtype)
        return self.convert("sext" if self.is_signed else "zext", dtype)


Operand: TypeAlias = Value | float


def constant(code: Code, dtype: DType, lanes: int, value: float) -> Value:
    """The same number in all lanes."""
    held = storage_bits(dtype, value) if dtype in STORAGE_ONLY else value
    return Value(code, dtype, lanes, literal(register_type(dtype), lanes, held))
