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

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeAlias, final

from ferrule.ir.dtype import DType, dtype_from_name, dtypes
from ferrule.ir.target import Target
from ferrule.renderer.base import STORAGE_ONLY, quiet, storage_bits

_REALS: Final = {dtypes.float32: "float", dtypes.float64: "double"}
_SIGNED: Final = frozenset({dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64})


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


@cache
def type_of(dtype: DType, lanes: int) -> str:
    """The type of a value in a register."""
    return vector(register_type(dtype), lanes)


def letter(kind: str) -> str:
    """A lane's type in the name of an intrinsic."""
    return {"float": "f32", "double": "f64"}.get(kind, kind)


def _literal(dtype: DType, value: float) -> str:
    if dtype in _REALS:
        return f"0x{struct.pack('>d', quiet(value)).hex().upper()}"
    if dtype is dtypes.bool:
        return "true" if value else "false"
    whole = storage_bits(dtype, value) if dtype in STORAGE_ONLY else int(value)
    wrapped = whole & ((1 << dtype.bits) - 1)
    return str(wrapped - (1 << dtype.bits) if wrapped >> (dtype.bits - 1) else wrapped)


class Code:
    """The lines of one function, and the declarations and helpers that they need in the module."""

    def __init__(self, target: Target, needed: set[str]) -> None:
        self.target = target
        self.needed = needed
        self.entry: list[str] = []
        """The lines before all others."""
        self.block = "entry"
        """The label of the block that the next line is in."""
        self._lines: list[str | list[str]] = []
        self._count = 0

    def text(self, header: str) -> str:
        """The definition of the function."""
        parts = [[part] if isinstance(part, str) else part for part in self._lines]
        lines = [line for part in (self.entry, *parts) for line in part]
        return "\n".join([f"define {header} #0 {{", "entry:", *lines, "}"])

    def emit(self, line: str) -> None:
        self._lines.append(f"  {line}")

    def label(self, name: str) -> None:
        """Begin a block."""
        self._lines.append(f"{name}:")
        self.block = name

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: str, label: str, other: str, how: str = "") -> None:
        """Go on at a label if a condition holds, else at the other one."""
        self.emit(f"br i1 {condition}, label %{label}, label %{other}{how}")

    def gap(self) -> list[str]:
        """A place for lines that are added later."""
        found: list[str] = []
        self._lines.append(found)
        return found

    def number(self) -> int:
        self._count += 1
        return self._count

    def assign(self, text: str) -> str:
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
            return self.assign(call)
        self.emit(call)
        return ""


def _operator(on_floats: str, on_signed: str = "", on_unsigned: str = "") -> Operator:
    """The operator that is one instruction; by default that of the dtypes before."""
    on_signed = on_signed or on_floats
    on_unsigned = on_unsigned or on_signed

    def emit(self: Value, other: Operand) -> Value:
        if self.is_real:
            return self.op(on_floats, other)
        return self.op(on_signed if self.is_signed else on_unsigned, other)

    return emit


@final
class Value:
    """A value in a register: an operand, its dtype and its lanes. As text it has its type before
    it.

    Operators emit an instruction, for all lanes; their right operand may be a number. Integers are
    divided towards zero.
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
        return type_of(self.dtype, self.lanes)

    @property
    def is_real(self) -> bool:
        """True if the lanes are floats, not the bits of some."""
        return self.dtype in _REALS

    @property
    def is_signed(self) -> bool:
        return self.dtype in _SIGNED

    def made(self, text: str, dtype: DType | None = None, lanes: int | None = None) -> Value:
        """The result of an instruction; its dtype and lanes if they differ."""
        return Value(self.code, dtype or self.dtype, lanes or self.lanes, self.code.assign(text))

    def constant(self, value: float, dtype: DType | None = None) -> Value:
        """The same number in all lanes."""
        return constant(self.code, dtype or self.dtype, self.lanes, value)

    # -- arithmetic --------------------------------------------------------------------------------

    def op(self, instruction: str, *others: Operand) -> Value:
        names = [x.name if isinstance(x, Value) else self.constant(x).name for x in others]
        text = f"{instruction} {self.type} {', '.join([self.name, *names])}"
        return self.made(text, dtypes.bool if "cmp" in instruction else None)

    def intrinsic(self, name: str, *others: Value) -> Value:
        suffix = ("" if self.lanes == 1 else f"v{self.lanes}") + letter(register_type(self.dtype))
        arguments = [(self.type, x.name) for x in (self, *others)]
        called = self.code.call(f"llvm.{name}.{suffix}", self.type, *arguments)
        return Value(self.code, self.dtype, self.lanes, called)

    __add__ = _operator("fadd", "add")
    __sub__ = _operator("fsub", "sub")
    __mul__ = _operator("fmul", "mul")
    __truediv__ = _operator("fdiv", "sdiv", "udiv")
    __mod__ = _operator("frem", "srem", "urem")
    __and__ = _operator("and")
    __or__ = _operator("or")
    __xor__ = _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr", "ashr", "lshr")
    __lt__ = _operator("fcmp olt", "icmp slt", "icmp ult")
    __gt__ = _operator("fcmp ogt", "icmp sgt", "icmp ugt")
    __ge__ = _operator("fcmp oge", "icmp sge", "icmp uge")
    differs = _operator("fcmp une", "icmp ne")

    def __neg__(self) -> Value:
        return self.op("fneg") if self.is_real else self.constant(0) - self

    def __invert__(self) -> Value:
        return self ^ -1

    def is_nan(self) -> Value:
        return self.op("fcmp uno", self)

    def select(self, a: Value, b: Value) -> Value:
        """The lanes of a where this is true, else those of b."""
        return a.made(f"select {self}, {a}, {b}")

    # -- lanes -------------------------------------------------------------------------------------

    def lane(self, number: int) -> Value:
        """One lane, as a scalar."""
        if self.lanes == 1:
            return self
        return self.made(f"extractelement {self}, i64 {number}", lanes=1)

    def shuffled(self, lanes: Sequence[int], other: Value | str = "poison") -> Value:
        """Chosen lanes of this vector and another one."""
        second = other if isinstance(other, Value) else f"{self.type} {other}"
        numbers = ", ".join(f"i32 {lane}" for lane in lanes)
        text = f"shufflevector {self}, {second}, <{len(lanes)} x i32> <{numbers}>"
        return self.made(text, lanes=len(lanes))

    # -- dtypes ------------------------------------------------------------------------------------

    def convert(self, instruction: str, dtype: DType) -> Value:
        """A conversion instruction."""
        return self.made(f"{instruction} {self} to {type_of(dtype, self.lanes)}", dtype)

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
Operator: TypeAlias = Callable[[Value, Operand], Value]


def constant(code: Code, dtype: DType, lanes: int, value: float) -> Value:
    """The same number in all lanes."""
    text = _literal(dtype, value)
    kind = register_type(dtype)
    return Value(code, dtype, lanes, text if lanes == 1 else f"splat ({kind} {text})")
