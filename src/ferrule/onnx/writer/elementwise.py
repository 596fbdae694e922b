"""Element-wise operations, and casts.

Runtimes have kernels of most operators for float32, float64, int32 and int64. So narrower integers
compute in one of these, and wrap when they are cast back, and floats narrower than float16 in
float32, as they do here.
"""

from __future__ import annotations

from math import log
from typing import Final

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import (
    BinaryOps,
    FunctionOps,
    LoadOps,
    MovementOps,
    Op,
    TernaryOps,
    UnaryOps,
    cast_arg,
)
from ferrule.onnx.values import number_of
from ferrule.onnx.writer.builder import Builder, Value, broadcast, equal
from ferrule.onnx.writer.plan import Plan, Planner, Write, rule

_WIDE: Final[dict[DType, DType]] = {
    dtypes.int8: dtypes.int32,
    dtypes.int16: dtypes.int32,
    dtypes.uint8: dtypes.int32,
    dtypes.uint16: dtypes.int32,
    dtypes.uint32: dtypes.int64,
    dtypes.bfloat16: dtypes.float32,
    dtypes.float8_e4m3: dtypes.float32,
    dtypes.float8_e5m2: dtypes.float32,
}
_CARRIERS: Final = {dtypes.uint64: dtypes.int64, dtypes.bool: dtypes.int32}
_UNSIGNED: Final = {1: dtypes.uint8, 2: dtypes.uint32, 4: dtypes.uint32, 8: dtypes.uint64}
_BITCAST_OPSET: Final = 26


def wide(dtype: DType) -> DType:
    """The dtype that values of another compute in."""
    return _WIDE.get(dtype, dtype)


def widened(builder: Builder, value: Value) -> Value:
    """The value in the dtype that it computes in."""
    return builder.cast(value, wide(value.dtype))


def carried(builder: Builder, value: Value) -> Value:
    """The value in a dtype that runtimes can move, pad and choose, and cast back without loss."""
    dtype = wide(value.dtype)
    return builder.cast(value, _CARRIERS.get(dtype, dtype))


# *** operands ***


def operands(planner: Planner, node: LazyBuffer) -> list[LazyBuffer]:
    """The sources of an element-wise node, without expansions that its operator does itself."""
    sources = list(node.srcs)
    short = [_unexpanded(planner, source) for source in sources]
    if not equal(broadcast([source.shape for source in short]), node.shape):
        pairs = enumerate(zip(sources, short, strict=True))
        place = next(number for number, (long, own) in pairs if long is not own)
        short[place] = sources[place]
    return short


def _unexpanded(planner: Planner, node: LazyBuffer) -> LazyBuffer:
    """The value before axes were added in front of it, and expanded."""
    number = node.base_const()
    if number is not None and not isinstance(number, Expr):
        return LazyBuffer.const(number, node.dtype, (), node.device)
    if _is_only(planner, node, MovementOps.EXPAND):
        node = node.srcs[0]
    if _is_only(planner, node, MovementOps.RESHAPE):
        (source,) = node.srcs
        if equal(node.shape, (1,) * (len(node.shape) - len(source.shape)) + source.shape):
            return source
    return node


def _is_only(planner: Planner, node: LazyBuffer, op: Op) -> bool:
    is_free = node not in planner.values and not planner.is_noted(node)
    return node.op is op and node.realized is None and is_free


# *** the functions of each op ***


def _plain(operator: str) -> Write:
    def write(builder: Builder, *values: Value) -> Value:
        return builder.like(operator, *values)

    return write


def _for_bools(operator: str, bools: str) -> Write:
    def write(builder: Builder, *values: Value) -> Value:
        return builder.like(bools if values[0].dtype is dtypes.bool else operator, *values)

    return write


def _low_bits(operator: str, bools: str = "") -> Write:
    """An operator whose low bits do not depend on signs; another one for bools."""

    def write(builder: Builder, *values: Value) -> Value:
        if values[0].dtype is dtypes.bool:
            return builder.like(bools, *values)
        if values[0].dtype is not dtypes.uint64:
            return builder.like(operator, *values)
        signed = [builder.cast(value, dtypes.int64) for value in values]
        return builder.cast(builder.like(operator, *signed), dtypes.uint64)

    return write


def in_order(builder: Builder, value: Value) -> Value:
    """Numbers of int64 in the same order as those of uint64; other values as they are."""
    if value.dtype is not dtypes.uint64:
        return value
    signed = builder.cast(value, dtypes.int64)
    return builder.like("Add", signed, builder.number(-(2**63), dtypes.int64))


def back_in_order(builder: Builder, value: Value, dtype: DType) -> Value:
    """The numbers that `in_order` was given."""
    if dtype is not dtypes.uint64:
        return value
    signed = builder.like("Add", value, builder.number(-(2**63), dtypes.int64))
    return builder.cast(signed, dtype)


def _maximum(builder: Builder, a: Value, b: Value) -> Value:
    if a.dtype is dtypes.bool:
        return builder.like("Or", a, b)
    ordered = [in_order(builder, value) for value in (a, b)]
    return back_in_order(builder, builder.like("Max", *ordered), a.dtype)


def _less(builder: Builder, a: Value, b: Value) -> Value:
    if a.dtype is dtypes.bool:
        return builder.like("And", builder.like("Not", a), b)
    return builder.compared("Less", *[in_order(builder, value) for value in (a, b)])


def _differs(builder: Builder, a: Value, b: Value) -> Value:
    return builder.like("Not", builder.compared("Equal", a, b))


def _negative(builder: Builder, x: Value) -> Value:
    if x.dtype is dtypes.bool:
        return builder.like("Not", x)
    if x.dtype is dtypes.uint64:
        return builder.cast(_negative(builder, builder.cast(x, dtypes.int64)), x.dtype)
    return builder.like("Neg", x)


def _truncated(builder: Builder, x: Value) -> Value:
    negative = builder.compared("Less", x, builder.number(0, x.dtype))
    return builder.like("Where", negative, builder.like("Ceil", x), builder.like("Floor", x))


def _power_of_two(builder: Builder, x: Value) -> Value:
    return builder.like("Pow", builder.number(2, x.dtype), x)


def _log_of_two(builder: Builder, x: Value) -> Value:
    return builder.like("Mul", builder.like("Log", x), builder.number(1 / log(2), x.dtype))


def _guarded(builder: Builder, b: Value) -> tuple[Value, Value]:
    """Where a divisor is 0, and the divisor with 1 there."""
    zero = builder.compared("Equal", b, builder.number(0, b.dtype))
    return zero, chosen(builder, zero, builder.number(1, b.dtype), b)


def _divided(builder: Builder, a: Value, b: Value) -> Value:
    if dtypes.is_float(a.dtype):
        return builder.like("Div", a, b)
    zero, divisor = _guarded(builder, b)
    quotient = builder.like("Div", a, divisor)
    return chosen(builder, zero, builder.number(0, a.dtype), quotient)


def _rest(builder: Builder, a: Value, b: Value) -> Value:
    if dtypes.is_float(a.dtype):
        return builder.like("Mod", a, b, fmod=1)
    zero, divisor = _guarded(builder, b)
    return chosen(builder, zero, a, builder.like("Mod", a, divisor, fmod=1))


def _multiply_add(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    return _SUM(builder, _PRODUCT(builder, a, b), c)


def chosen(builder: Builder, condition: Value, yes: Value, no: Value) -> Value:
    """One value where a condition holds, the other elsewhere."""
    if condition.dtype is not dtypes.bool:
        condition = builder.cast(condition, dtypes.bool)
    if yes.dtype is dtypes.bool:
        other = builder.like("And", builder.like("Not", condition), no)
        return builder.like("Or", builder.like("And", condition, yes), other)
    given = [carried(builder, value) for value in (yes, no)]
    return builder.cast(builder.like("Where", condition, *given), yes.dtype)


def _shifted(builder: Builder, x: Value, n: Value, direction: str) -> Value:
    """A shift of the bits of integers; that of negative ones to the right keeps the sign."""
    bits = _UNSIGNED[x.dtype.itemsize]
    signed = not dtypes.is_unsigned(x.dtype) and direction == "RIGHT"
    sign = None
    if signed:  # the complement of a negative number is none: its zeros come in as ones
        zero = builder.number(0, x.dtype)
        negative = builder.compared("Less", x, zero)
        sign = chosen(builder, negative, builder.number(-1, x.dtype), zero)
        x_bits = builder.cast(builder.like("BitwiseXor", x, sign), bits)
    else:
        x_bits = builder.cast(x, bits)
    moved = builder.like("BitShift", x_bits, builder.cast(n, bits), direction=direction)
    result = builder.cast(moved, x.dtype)
    return result if sign is None else builder.like("BitwiseXor", result, sign)


_SUM: Final = _low_bits("Add", "Or")
_PRODUCT: Final = _low_bits("Mul", "And")


def _bits(direction: str) -> Write:
    return lambda builder, x, n: _shifted(builder, x, n, direction)


_FUNCTIONS: Final[dict[Op, Write]] = {
    UnaryOps.EXP2: _power_of_two,
    UnaryOps.LOG2: _log_of_two,
    UnaryOps.SIN: _plain("Sin"),
    UnaryOps.COS: _plain("Cos"),
    UnaryOps.SQRT: _plain("Sqrt"),
    UnaryOps.RECIP: _plain("Reciprocal"),
    UnaryOps.NEG: _negative,
    UnaryOps.TRUNC: _truncated,
    BinaryOps.ADD: _SUM,
    BinaryOps.SUB: _low_bits("Sub"),
    BinaryOps.MUL: _PRODUCT,
    BinaryOps.DIV: _divided,
    BinaryOps.MAX: _maximum,
    BinaryOps.MOD: _rest,
    BinaryOps.CMPLT: _less,
    BinaryOps.CMPNE: _differs,
    BinaryOps.XOR: _for_bools("BitwiseXor", "Xor"),
    BinaryOps.AND: _for_bools("BitwiseAnd", "And"),
    BinaryOps.OR: _for_bools("BitwiseOr", "Or"),
    BinaryOps.SHL: _bits("LEFT"),
    BinaryOps.SHR: _bits("RIGHT"),
    TernaryOps.MULACC: _multiply_add,
    TernaryOps.WHERE: chosen,
}
_AS_THEY_ARE: Final = frozenset(
    {BinaryOps.SHL, BinaryOps.SHR, BinaryOps.XOR, BinaryOps.AND, BinaryOps.OR}
)
"""The ops that work on bits, in any width."""


@rule(*_FUNCTIONS)
def elementwise(planner: Planner, node: LazyBuffer) -> Plan:
    """An operation on each element."""
    function, dtype = _FUNCTIONS[node.op], node.dtype
    keeps = node.op in _AS_THEY_ARE

    def write(builder: Builder, *values: Value) -> Value:
        given = values if keeps else [widened(builder, value) for value in values]
        return builder.cast(function(builder, *given), dtype)

    return Plan(operands(planner, node), write)


@rule(UnaryOps.CAST)
def _cast(planner: Planner, node: LazyBuffer) -> Plan | None:
    dtype, as_bits = cast_arg(node.arg)
    if not as_bits:
        return Plan(node.srcs, lambda builder, x: builder.cast(x, dtype))
    if {dtype, node.srcs[0].dtype} <= _SAME_BITS.get(dtype.itemsize, frozenset()):
        return Plan(node.srcs, lambda builder, x: builder.cast(x, dtype))
    planner.needs_opset[_BITCAST_OPSET] = f"a cast of the bits of {node.srcs[0].dtype} to {dtype}"

    def write(builder: Builder, x: Value) -> Value:
        return builder.add("BitCast", [x], dtype, x.shape, to=number_of(dtype))

    return Plan(node.srcs, write)


_SAME_BITS: Final = {
    1: frozenset({dtypes.int8, dtypes.uint8}),
    2: frozenset({dtypes.int16, dtypes.uint16}),
    4: frozenset({dtypes.int32, dtypes.uint32}),
    8: frozenset({dtypes.int64, dtypes.uint64}),
}
"""The dtypes between which a cast keeps all bits."""


@rule(FunctionOps.STEPS)
def _steps(planner: Planner, node: LazyBuffer) -> Plan:
    return Plan([node.arg.spelled_out(node.srcs[0])], lambda builder, x: x)


@rule(LoadOps.TEMPLATE)
def _template(planner: Planner, node: LazyBuffer) -> Plan:
    return Plan([node.arg.expanded(node.srcs[0])], lambda builder, x: x)


@rule(LoadOps.CONST)
def _constant(planner: Planner, node: LazyBuffer) -> Plan:
    number = node.arg

    def write(builder: Builder) -> Value:
        if isinstance(number, Expr):
            value = builder.cast(builder.size(number), node.dtype)
            value = builder.reshape(value, (1,) * len(node.shape))
        else:
            value = builder.number(number, node.dtype)
        return builder.expand(value, node.shape)

    return Plan((), write)


@rule(LoadOps.EMPTY)
def _empty(planner: Planner, node: LazyBuffer) -> Plan:
    """Memory with no particular contents: zeros."""

    def write(builder: Builder) -> Value:
        return builder.expand(builder.number(0, node.dtype), node.shape)

    return Plan((), write)


def passed_on(node: LazyBuffer) -> Plan:
    """The plan of a node with the value of its last source."""
    return Plan(node.srcs[-1:], lambda builder, x: x)


@rule(LoadOps.CONTIGUOUS, LoadOps.FROM)
def _copied(planner: Planner, node: LazyBuffer) -> Plan:
    return passed_on(node)
