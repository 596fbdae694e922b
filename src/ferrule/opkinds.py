"""The kinds of operations, and the shapes and dtypes that they give.

What each op means is in `docs/design/interfaces.md`. The rules are here, as one function for each
kind of op, and can be asked without building a node (`infer`). `ferrule.ops` re-exports all public
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from ferrule.dtype import DType, dtypes
from ferrule.enums import Enum
from ferrule.expr import Expr, as_int, sint
from ferrule.shape.view import ShapeError, prod_sint, same


class UnaryOps(Enum):
    """Element-wise operations on one operand."""

    EXP2 = 1
    LOG2 = 2
    CAST = 3
    SIN = 4
    SQRT = 5
    RECIP = 6
    NEG = 7
    TRUNC = 8
    COS = 9


class BinaryOps(Enum):
    """Element-wise operations on two operands of one dtype."""

    ADD = 1
    SUB = 2
    MUL = 3
    DIV = 4
    MAX = 5
    MOD = 6
    CMPLT = 7
    CMPNE = 8
    XOR = 9
    AND = 10
    OR = 11
    SHL = 12
    SHR = 13


class TernaryOps(Enum):
    """Element-wise operations on three operands."""

    MULACC = 1
    WHERE = 2


class ReduceOps(Enum):
    """Operations that combine the elements along some axes.

    SCATTER combines those with one index, in one of the ways in `SCATTERED`.
    """

    SUM = 1
    MAX = 2
    PROD = 3
    SCATTER = 4


SCATTERED = ("add", "max", "min", "prod", "last")
"""How SCATTER combines elements with one index, and with what its third operand has there. Without
one that is what `scatter_start` says."""


def how_scattered(arg: Sequence[Any]) -> str:
    """How a SCATTER with this argument combines; it is a sum where that does not say."""
    return arg[2] if len(arg) > 2 else SCATTERED[0]


def scatter_start(how: str, dtype: DType) -> bool | int | float:
    """What a SCATTER without a base starts with: 0, or what changes no element.

    >>> scatter_start("max", dtypes.int8), scatter_start("prod", dtypes.int8)
    (-128, 1)
    """
    if how == "max":
        return dtypes.min(dtype)
    if how == "min":
        return dtypes.max(dtype)
    return 1 if how == "prod" else 0


class MovementOps(Enum):
    """Operations that only rearrange elements."""

    RESHAPE = 1
    PERMUTE = 2
    EXPAND = 3
    PAD = 4
    SHRINK = 5
    STRIDE = 6
    AS_STRIDED = 7
    WINDOW = 8
    UNWINDOW = 9
    GATHER = 10


class FunctionOps(Enum):
    """Element-wise functions as one node, whose argument, a `Steps`, says what they do.

    These occur in graphs, never in a kernel's AST, which has the steps themselves.
    """

    STEPS = 1


class LoadOps(Enum):
    """Where values come from; these occur in graphs, never in a kernel's AST."""

    EMPTY = 1
    CONST = 2
    FROM = 3
    CONTIGUOUS = 4
    CUSTOM = 5
    ASSIGN = 6


class BufferOps(Enum):
    """A kernel's reads and writes of memory; these occur in a kernel's AST, never in a graph."""

    LOAD = 1
    CONST = 2
    STORE = 3
    SINK = 4
    KEEP = 5


Op: TypeAlias = (
    UnaryOps | BinaryOps | TernaryOps | FunctionOps | ReduceOps | MovementOps | LoadOps | BufferOps
)
OpType: TypeAlias = (
    type[UnaryOps]
    | type[BinaryOps]
    | type[ReduceOps]
    | type[MovementOps]
    | type[LoadOps]
    | type[TernaryOps]
    | type[FunctionOps]
    | type[BufferOps]
)
Shape: TypeAlias = tuple[sint, ...]
Info: TypeAlias = tuple[Shape, DType]


class OpError(ShapeError):
    """The operands' shapes, or the argument, do not fit the op."""


class OpTypeError(OpError, TypeError):
    """The operands' dtypes do not fit the op."""


# *** shapes and dtypes of results ***


def _is_known(values: Iterable[sint]) -> bool:
    # Lists are faster than generators, here and below: the rules run for every node that is made.
    return all([isinstance(value, int) for value in values])


def _misfit(op: Op, message: str) -> OpError:
    """The error, for rules that are asked so often that no message is made where all is well."""
    return OpError(f"{op}: {message}")


def _check(condition: bool, op: Op, message: str) -> None:
    if not condition:
        raise OpError(f"{op}: {message}")


def _check_dtype(condition: bool, op: Op, message: str) -> None:
    if not condition:
        raise OpTypeError(f"{op}: {message}")


def _is_integer(dtype: DType) -> bool:
    return dtypes.is_int(dtype) and dtype is not dtypes.bool


def _same_shapes(op: Op, operands: Sequence[Info]) -> Shape:
    shapes = [shape for shape, _ in operands]
    for shape in shapes[1:]:
        if shape != shapes[0]:
            raise _misfit(op, f"the operands' shapes differ: {shapes}; expand them first")
    return shapes[0]


def _same_dtypes(op: Op, operands: Sequence[Info]) -> DType:
    kinds = [dtype for _, dtype in operands]
    for dtype in kinds[1:]:
        if dtype is not kinds[0]:
            raise OpTypeError(f"{op}: the operands' dtypes differ: {kinds}; cast them first")
    return kinds[0]


_FLOAT_ONLY = frozenset(
    {
        UnaryOps.EXP2,
        UnaryOps.LOG2,
        UnaryOps.SIN,
        UnaryOps.COS,
        UnaryOps.SQRT,
        UnaryOps.RECIP,
        UnaryOps.TRUNC,
    }
)
_NOT_BOOL = frozenset({BinaryOps.SUB, BinaryOps.DIV, BinaryOps.MOD})
_BITWISE = frozenset({BinaryOps.XOR, BinaryOps.AND, BinaryOps.OR})
_SHIFTS = frozenset({BinaryOps.SHL, BinaryOps.SHR})
_COMPARISONS = frozenset({BinaryOps.CMPLT, BinaryOps.CMPNE})


def cast_arg(arg: Any) -> tuple[DType, bool]:
    """The dtype and the bitcast flag in the argument of a CAST."""
    dtype, bitcast = arg if isinstance(arg, tuple) else (arg, False)
    if not isinstance(dtype, DType):
        raise OpError(f"UnaryOps.CAST: the argument {arg!r} names no dtype; pass a DType")
    return dtype, bool(bitcast)


def _infer_unary(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape, dtype = operands[0]
    if op is UnaryOps.CAST:
        target, bitcast = cast_arg(arg)
        same_size = not bitcast or target.itemsize == dtype.itemsize
        _check_dtype(same_size, op, f"a bitcast keeps the item size; {dtype} and {target} differ")
        return shape, target
    if op in _FLOAT_ONLY:
        _check_dtype(dtypes.is_float(dtype), op, f"needs a float, got {dtype}; cast it first")
    return shape, dtype


def _infer_binary(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape = _same_shapes(op, operands)
    dtype = _same_dtypes(op, operands)
    if op in _NOT_BOOL:
        _check_dtype(dtype is not dtypes.bool, op, "is not defined for bool; cast it first")
    if op in _BITWISE:
        allowed = _is_integer(dtype) or dtype is dtypes.bool
        _check_dtype(allowed, op, f"needs an integer or bool, got {dtype}")
    if op in _SHIFTS:
        _check_dtype(_is_integer(dtype), op, f"needs an integer, got {dtype}")
    return shape, dtypes.bool if op in _COMPARISONS else dtype


def _infer_ternary(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape = _same_shapes(op, operands)
    values = operands[1:] if op is TernaryOps.WHERE else operands
    return shape, _same_dtypes(op, values)


def _infer_reduce(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape, dtype = operands[0]
    if op is ReduceOps.SCATTER:
        return _infer_scatter(op, operands, arg)
    if len(arg) != len(shape):
        raise _misfit(op, f"the new shape {arg} has not the rank of {shape}")
    for size, new in zip(shape, arg, strict=True):
        if new != size and new != 1:
            raise _misfit(op, f"the new shape {arg} may differ from {shape} only by axes of size 1")
    if op is ReduceOps.MAX and dtype is not dtypes.bool:
        reduces_nothing = any(size == 0 and new == 1 for size, new in zip(shape, arg, strict=True))
        _check(not reduces_nothing, op, f"an axis of size 0 in {shape} has no largest element")
    return tuple(arg), dtype


def _check_index(op: Op, dtype: DType) -> None:
    is_index = dtype in (dtypes.int32, dtypes.int64)
    _check_dtype(is_index, op, f"the index must be int32 or int64, got {dtype}")


def _check_axis(op: Op, axis: Any, rank: int) -> None:
    inside = isinstance(axis, int) and 0 <= axis < rank
    _check(inside, op, f"axis {axis} is out of range for {rank} axes")


def _infer_scatter(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    if len(operands) not in (2, 3):
        raise _misfit(op, f"takes 2 operands or 3, got {len(operands)}")
    axis, size = arg[:2]
    known = how_scattered(arg) in SCATTERED
    _check(known, op, f"combines by one of {', '.join(SCATTERED)}, not {arg[2:]}")
    (shape, dtype), (index_shape, index_dtype), *base = operands
    _check_index(op, index_dtype)
    _check(shape == index_shape, op, f"the value's shape {shape} is not the index's {index_shape}")
    _check_axis(op, axis, len(shape))
    if not base:
        return (*shape[:axis], size, *shape[axis + 1 :]), dtype
    ((whole, base_dtype),) = base
    _check_dtype(base_dtype is dtype, op, f"puts {dtype} into {base_dtype}")
    fits = len(whole) == len(shape) and all(
        same(wide, size)
        if place == axis
        else not isinstance(own, int) or not isinstance(wide, int) or own <= wide
        for place, (own, wide) in enumerate(zip(shape, whole, strict=True))
    )
    _check(fits, op, f"a value of shape {shape} does not go into {whole} along axis {axis}")
    return whole, dtype


# *** shapes of movements ***


def _reshape(op: Op, shape: Shape, arg: Any) -> Shape:
    if _is_known(shape) and _is_known(arg) and prod_sint(shape) != prod_sint(arg):
        raise _misfit(op, f"{shape} has {prod_sint(shape)} elements, {arg} has {prod_sint(arg)}")
    for size in arg:
        if isinstance(size, int) and size < 0:
            raise _misfit(op, f"the new shape {arg} has a negative size")
    return tuple(arg)


def _permute(op: Op, shape: Shape, arg: Any) -> Shape:
    if sorted(arg) != list(range(len(shape))):
        raise _misfit(op, f"{arg} is no permutation of the {len(shape)} axes of {shape}")
    return tuple([shape[axis] for axis in arg])


def _expand(op: Op, shape: Shape, arg: Any) -> Shape:
    if len(arg) != len(shape):
        raise _misfit(op, f"the new shape {arg} has not the rank of {shape}")
    for size, new in zip(shape, arg, strict=True):
        if new != size and size != 1:
            raise _misfit(op, f"{shape} does not expand to {arg}: only 1 repeats")
    return tuple(arg)


def _pad(op: Op, shape: Shape, arg: Any) -> Shape:
    if len(arg) != len(shape):
        raise _misfit(op, f"{arg} has not one pair for each axis of {shape}")
    for before, after in arg:
        if (isinstance(before, int) and before < 0) or (isinstance(after, int) and after < 0):
            raise _misfit(op, f"{arg} has a negative amount; use SHRINK")
    pairs = zip(shape, arg, strict=True)
    return tuple([size + before + after for size, (before, after) in pairs])


def _shrink(op: Op, shape: Shape, arg: Any) -> Shape:
    if len(arg) != len(shape):
        raise _misfit(op, f"{arg} has not one pair for each axis of {shape}")
    for size, (start, stop) in zip(shape, arg, strict=True):
        known = isinstance(size, int) and isinstance(start, int) and isinstance(stop, int)
        if known and not 0 <= start <= stop <= size:
            raise _misfit(op, f"({start}, {stop}) is no part of an axis of size {size}")
    return tuple([stop - start for start, stop in arg])


def _stride(op: Op, shape: Shape, arg: Any) -> Shape:
    if len(arg) != len(shape):
        raise _misfit(op, f"{arg} has not one multiplier for each axis of {shape}")
    if 0 in arg or not _is_known(arg):
        raise _misfit(op, f"the multipliers {arg} must be integers other than 0")
    return tuple(
        [
            size if abs(step) == 1 else (size + (abs(step) - 1)) // abs(step)
            for size, step in zip(shape, arg, strict=True)
        ]
    )


def _as_strided(op: Op, shape: Shape, arg: Any) -> Shape:
    new, strides, offset = arg
    _check(len(new) == len(strides), op, f"{len(new)} sizes, but {len(strides)} strides")
    everything = (*shape, *new, *strides, offset)
    if _is_known(everything) and 0 not in new:
        reach = [(size - 1) * stride for size, stride in zip(new, strides, strict=True)]
        lowest = offset + sum(step for step in reach if step < 0)
        highest = offset + sum(step for step in reach if step > 0)
        inside = lowest >= 0 and highest < prod_sint(shape)
        _check(inside, op, f"{arg} reaches {lowest}..{highest} of {prod_sint(shape)} elements")
    return tuple(new)


def _window(op: Op, shape: Shape, arg: Any) -> Shape:
    axis, size, stride, dilation = arg
    _check_axis(op, axis, len(shape))
    known = [stride, dilation] if isinstance(size, Expr) else [size, stride, dilation]
    positive = all(isinstance(value, int) and value >= 1 for value in known)
    _check(positive, op, f"size, stride and dilation must be at least 1, got {arg[1:]}")
    span = dilation * (size - 1) + 1
    length = shape[axis]
    fits = not isinstance(length, int) or not isinstance(span, int) or length >= span
    _check(fits, op, f"a window that spans {span} does not fit an axis of size {length}")
    count = length - span + 1 if stride == 1 else (length - span) // stride + 1
    return (*shape[:axis], count, *shape[axis + 1 :], size)


def _unwindow(op: Op, shape: Shape, arg: Any) -> Shape:
    axis, length, stride, dilation = arg
    _check_axis(op, axis, len(shape) - 1)
    positive = all(isinstance(value, int) and value >= 1 for value in (stride, dilation))
    _check(positive, op, f"stride and dilation must be at least 1, got {arg[2:]}")
    return (*shape[:axis], length, *shape[axis + 1 :])


_MOVEMENTS: dict[MovementOps, Callable[[Op, Shape, Any], Shape]] = {
    MovementOps.RESHAPE: _reshape,
    MovementOps.PERMUTE: _permute,
    MovementOps.EXPAND: _expand,
    MovementOps.PAD: _pad,
    MovementOps.SHRINK: _shrink,
    MovementOps.STRIDE: _stride,
    MovementOps.AS_STRIDED: _as_strided,
    MovementOps.WINDOW: _window,
    MovementOps.UNWINDOW: _unwindow,
}


def _infer_gather(op: Op, operands: Sequence[Info], axis: Any) -> Info:
    (shape, dtype), (index_shape, index_dtype) = operands
    _check_index(op, index_dtype)
    _check_axis(op, axis, len(shape))
    others = (*shape[:axis], *shape[axis + 1 :])
    index_others = (*index_shape[:axis], *index_shape[axis + 1 :])
    same = len(shape) == len(index_shape) and others == index_others
    _check(same, op, f"{shape} and the index's {index_shape} differ off axis {axis}")
    return index_shape, dtype


def _infer_movement(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    assert isinstance(op, MovementOps)
    if op is MovementOps.GATHER:
        return _infer_gather(op, operands, arg)
    shape, dtype = operands[0]
    return _MOVEMENTS[op](op, shape, arg), dtype


def _infer_buffer(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    if op is BufferOps.SINK:
        _check(len(operands) > 0, op, "needs at least one STORE")
        return operands[0]
    if op is BufferOps.STORE:
        shape, dtype = operands[0]
        same = tuple(arg.st.shape) == shape
        _check(same, op, f"the value's shape {shape} is not that of the view {arg.st.shape}")
        fits = arg.dtype is dtype
        _check_dtype(fits, op, f"a value of {dtype} goes to a buffer of {arg.dtype}; cast it first")
        return shape, dtype
    if op is BufferOps.KEEP:
        shape, dtype = operands[0]
        known = all(isinstance(axis, int) and 0 <= axis < len(shape) for axis in arg)
        _check(known, op, f"the axes {arg} are not all among those of the shape {shape}")
        return shape, dtype
    return tuple(arg.st.shape), arg.dtype


_INFER: dict[type[Enum], Callable[[Op, Sequence[Info], Any], Info]] = {
    UnaryOps: _infer_unary,
    BinaryOps: _infer_binary,
    TernaryOps: _infer_ternary,
    ReduceOps: _infer_reduce,
    MovementOps: _infer_movement,
    BufferOps: _infer_buffer,
}


def operand_count(op: Op) -> int | None:
    """How many sources an op has; None where any number will do.

    >>> operand_count(BinaryOps.ADD)
    2
    """
    if op is MovementOps.GATHER or isinstance(op, BinaryOps):
        return 2
    if op in (BufferOps.LOAD, BufferOps.CONST):
        return 0
    if op in (BufferOps.SINK, ReduceOps.SCATTER) or isinstance(op, LoadOps):
        return None
    return 3 if isinstance(op, TernaryOps) else 1


def infer(op: Op, operands: Sequence[Info], arg: Any = None) -> Info:
    """The shape and dtype of a result from those of the operands.

    Raises `OpError` where shapes or the argument do not fit the op, `OpTypeError` where dtypes do
    not.

    >>> infer(MovementOps.PERMUTE, [((2, 3), dtypes.int32)], (1, 0))
    ((3, 2), dtypes.int32)
    """
    rule = _INFER.get(type(op))
    if rule is None:
        raise OpError(f"{op}: its shape and dtype are the graph's to say; it is no op of a kernel")
    wanted = operand_count(op)
    if wanted is not None and wanted != len(operands):
        raise _misfit(op, f"takes {wanted} operands, got {len(operands)}")
    try:
        shape, dtype = rule(op, operands, arg)
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ShapeError):
            raise
        raise OpError(f"{op}: the argument {arg!r} is none that it takes ({error})") from error
    return _plain(shape), dtype


# Programs move and reduce values of the same shapes again and again, so answers are kept.


@lru_cache(maxsize=4096)
def infer_moved(op: MovementOps, shape: Shape, arg: Any) -> Shape:
    """`infer` for a movement of one operand, which has no say in the dtype."""
    return _plain(_MOVEMENTS[op](op, shape, arg))


@lru_cache(maxsize=4096)
def infer_reduced(op: ReduceOps, shape: Shape, dtype: DType, arg: Any) -> Shape:
    """`infer` for a reduce of one operand, which keeps the dtype."""
    return infer(op, [(shape, dtype)], arg)[0]


def _plain(shape: Shape) -> Shape:
    return tuple([size if type(size) is int else as_int(size) for size in shape])


class Operand(Protocol):
    """What has a shape and a dtype."""

    shape: Shape
    dtype: DType


def plain_result(op: Op, operands: Sequence[Operand]) -> DType | None:
    """The result's dtype where the operands are surely right: of one shape, and of one dtype that
    `op` takes. Else None.

    So are most, and they need not wait for `infer`, which alone says what is wrong.
    """
    if len(operands) != _COUNTS.get(op):
        return None
    last = operands[-1]
    shape = last.shape
    dtype = last.dtype
    if op in _CHOICES:
        condition, other, _ = operands
        fits = condition.shape == shape and other.shape == shape and other.dtype is dtype
        return dtype if fits else None
    for operand in operands:
        if operand.dtype is not dtype or operand.shape != shape:
            return None
    if op in (_INTEGERS_ONLY if dtype.exponent_bits else _FLOAT_ONLY) or dtype is _BOOL:
        return None
    return _BOOL if op in _COMPARISONS else dtype


_BOOL = dtypes.bool
_CHOICES = frozenset({TernaryOps.WHERE})
_INTEGERS_ONLY = _BITWISE | _SHIFTS
_COUNTS: dict[Op, int] = {
    **dict.fromkeys([op for op in UnaryOps if op is not UnaryOps.CAST], 1),
    **dict.fromkeys(BinaryOps, 2),
    **dict.fromkeys(TernaryOps, 3),
}
