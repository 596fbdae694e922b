"""The table of ops: the kinds of operations, and the facts of each op that no operand changes.

What each op means is in `docs/design/interfaces.md`. A row has the facts: how many operands, which
dtypes, the shape of the result, the index and view rules of movements (`ir/shape/movement.py`), the
form of the argument. What one interpretation of programs does for an op is a rule that lives
there, keyed by the op: `docs/adding-an-op.md` names all of them. `ferrule.ir.lazyop` re-exports the
kinds of ops, the errors and `infer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeAlias, final

from ferrule.base.enums import Enum, Renamed
from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp, as_int, sint
from ferrule.ir.shape import movement
from ferrule.ir.shape.movement import Form, Found, Index, check_axis
from ferrule.ir.shape.view import ShapeError, View, same

_BOOL: Final = dtypes.bool


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
    """Sources of values; these occur in graphs, never in a kernel's AST."""

    EMPTY = 1
    CONST = 2
    FROM = 3
    CONTIGUOUS = 4
    CUSTOM = 5
    ASSIGN = 6
    TEMPLATE = 7
    RESULT = 8


class _FormerBufferOps:
    KEEP = Renamed("STAGE")


class BufferOps(_FormerBufferOps, Enum):
    """A kernel's reads and writes of memory; these occur in a kernel's AST, never in a graph."""

    LOAD = 1
    CONST = 2
    STORE = 3
    SINK = 4
    STAGE = 5


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


# *** how values combine ***


@final
@dataclass(frozen=True)
class Combination:
    """A way to combine values into one, in reduces, scatters, scans and the loops of kernels."""

    name: str
    identity: Callable[[DType], bool | int | float]
    """The value that changes nothing; if the order decides ("last"), a value that is replaced."""
    expr: ExprOp | None = None
    """The operation on scalars in kernels; None where a rule of the scatter computes it."""
    scatter: str | None = None
    """The name of the combination in the argument of a SCATTER."""
    reduce: ReduceOps | None = None
    """The reduce with this combination."""
    binary: BinaryOps | None = None
    """The element-wise op that combines two values this way."""
    bools: str | None = None
    """The name of the combination that takes its place for bool."""
    chooses: bool = False
    """True if the result is one of the values, by their sizes."""


COMBINATIONS: Final[dict[str, Combination]] = {
    row.name: row
    for row in (
        Combination(
            "sum",
            lambda dtype: 0,
            ExprOp.ADD,
            scatter="add",
            reduce=ReduceOps.SUM,
            binary=BinaryOps.ADD,
            bools="any",
        ),
        Combination(
            "max",
            dtypes.min,
            ExprOp.MAX,
            scatter="max",
            reduce=ReduceOps.MAX,
            binary=BinaryOps.MAX,
            bools="any",
            chooses=True,
        ),
        Combination("min", dtypes.max, scatter="min", chooses=True),
        Combination(
            "prod",
            lambda dtype: 1,
            ExprOp.MUL,
            scatter="prod",
            reduce=ReduceOps.PROD,
            binary=BinaryOps.MUL,
            bools="all",
        ),
        Combination("last", lambda dtype: 0, scatter="last"),
        Combination("any", lambda dtype: False, ExprOp.OR),
        Combination("all", lambda dtype: True, ExprOp.AND),
    )
}
"""All combinations, by name."""
REDUCED: Final[dict[ReduceOps, Combination]] = {
    row.reduce: row for row in COMBINATIONS.values() if row.reduce is not None
}
"""The combination of each reduce but SCATTER, whose argument names it."""
_SCATTERED: Final[dict[str, Combination]] = {
    row.scatter: row for row in COMBINATIONS.values() if row.scatter is not None
}
SCATTERED: Final = tuple(_SCATTERED)
"""The names of SCATTER's combinations. Elements with one index are combined with one another and
with the third operand's element there, or with `scatter_start` without a third operand."""


def how_scattered(arg: Sequence[Any]) -> str:
    """The name of the combination of a SCATTER with this argument; "add" unless it has one."""
    return arg[2] if len(arg) > 2 else SCATTERED[0]


def combination_of(op: ReduceOps, arg: Any) -> Combination:
    """The combination of a reduce with this argument."""
    return REDUCED[op] if op in REDUCED else scattered(how_scattered(arg))


def scattered(how: str) -> Combination:
    """The combination that the argument of a SCATTER names; raises `OpError` for another name."""
    row = _SCATTERED.get(how)
    if row is None:
        names = ", ".join(SCATTERED)
        raise OpError(f"{ReduceOps.SCATTER}: combines by one of {names}, not {how!r}")
    return row


def scatter_start(how: str, dtype: DType) -> bool | int | float:
    """The initial value of a SCATTER without a base: the identity of its combination.

    >>> scatter_start("max", dtypes.int8), scatter_start("prod", dtypes.int8)
    (-128, 1)
    """
    return scattered(how).identity(dtype)


# *** rules for shapes and dtypes ***

InferRule: TypeAlias = Callable[[Op, Sequence[Info], Any], Info]
"""A rule from the operands' shapes and dtypes, and the argument, to those of the result."""


def _misfit(op: Op, message: str) -> OpError:
    """The error of a rule; rules run so often that they make a message only when they fail."""
    return OpError(f"{op}: {message}")


def _check(condition: bool, op: Op, message: str) -> None:
    if not condition:
        raise OpError(f"{op}: {message}")


def _check_dtype(condition: bool, op: Op, message: str) -> None:
    if not condition:
        raise OpTypeError(f"{op}: {message}")


def _is_integer(dtype: DType) -> bool:
    return dtypes.is_int(dtype) and dtype is not dtypes.bool


class Takes(Enum):
    """The dtypes that an element-wise op is defined for."""

    ALL = 1
    FLOATS = 2
    NUMBERS = 3
    INTEGERS = 4
    BITS = 5


def _check_takes(op: Op, takes: Takes, dtype: DType) -> None:
    match takes:
        case Takes.FLOATS:
            is_float = dtypes.is_float(dtype)
            _check_dtype(is_float, op, f"needs a float, got {dtype}; cast it first")
        case Takes.NUMBERS:
            _check_dtype(dtype is not _BOOL, op, "is not defined for bool; cast it first")
        case Takes.INTEGERS:
            _check_dtype(_is_integer(dtype), op, f"needs an integer, got {dtype}")
        case Takes.BITS:
            allowed = _is_integer(dtype) or dtype is _BOOL
            _check_dtype(allowed, op, f"needs an integer or bool, got {dtype}")
        case Takes.ALL:
            pass


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


def cast_arg(arg: Any) -> tuple[DType, bool]:
    """The dtype and the bitcast flag in the argument of a CAST."""
    dtype, bitcast = arg if isinstance(arg, tuple) else (arg, False)
    if not isinstance(dtype, DType):
        raise OpError(f"UnaryOps.CAST: the argument {arg!r} names no dtype; pass a DType")
    return dtype, bool(bitcast)


def _infer_elementwise(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    shape = _same_shapes(op, operands)
    dtype = _same_dtypes(op, operands)
    row = ELEMENTWISE[op]
    _check_takes(op, row.takes, dtype)
    return shape, _BOOL if row.compares else dtype


def _infer_cast(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    ((shape, dtype),) = operands
    target, bitcast = cast_arg(arg)
    same_size = not bitcast or target.itemsize == dtype.itemsize
    _check_dtype(same_size, op, f"a bitcast keeps the item size; {dtype} and {target} differ")
    return shape, target


def _infer_where(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    return _same_shapes(op, operands), _same_dtypes(op, operands[1:])


def _infer_reduce(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    ((shape, dtype),) = operands
    if len(arg) != len(shape):
        raise _misfit(op, f"the new shape {arg} has not the rank of {shape}")
    for size, new in zip(shape, arg, strict=True):
        if new != size and new != 1:
            raise _misfit(op, f"the new shape {arg} may differ from {shape} only by axes of size 1")
    assert isinstance(op, ReduceOps)
    if REDUCED[op].chooses and dtype is not _BOOL:
        reduces_nothing = any(size == 0 and new == 1 for size, new in zip(shape, arg, strict=True))
        _check(not reduces_nothing, op, f"an axis of size 0 in {shape} has no largest element")
    return tuple(arg), dtype


def _check_index(op: Op, dtype: DType) -> None:
    is_index = dtype in (dtypes.int32, dtypes.int64)
    _check_dtype(is_index, op, f"the index must be int32 or int64, got {dtype}")


def _infer_scatter(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    if len(operands) not in (2, 3):
        raise _misfit(op, f"takes 2 operands or 3, got {len(operands)}")
    axis, size = arg[:2]
    scattered(how_scattered(arg))
    (shape, dtype), (index_shape, index_dtype), *base = operands
    _check_index(op, index_dtype)
    _check(shape == index_shape, op, f"the value's shape {shape} is not the index's {index_shape}")
    check_axis(axis, len(shape))
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


def _infer_moved(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    ((shape, dtype),) = operands
    rule = MOVEMENTS[op].shape
    assert rule is not None
    return rule(shape, arg), dtype


def _infer_gather(op: Op, operands: Sequence[Info], axis: Any) -> Info:
    (shape, dtype), (index_shape, index_dtype) = operands
    _check_index(op, index_dtype)
    check_axis(axis, len(shape))
    others = (*shape[:axis], *shape[axis + 1 :])
    index_others = (*index_shape[:axis], *index_shape[axis + 1 :])
    same = len(shape) == len(index_shape) and others == index_others
    _check(same, op, f"{shape} and the index's {index_shape} differ off axis {axis}")
    return index_shape, dtype


def _infer_memory(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    return tuple(arg.st.shape), arg.dtype


def _infer_store(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    ((shape, dtype),) = operands
    same = tuple(arg.st.shape) == shape
    _check(same, op, f"the value's shape {shape} is not that of the view {arg.st.shape}")
    fits = arg.dtype is dtype
    _check_dtype(fits, op, f"a value of {dtype} goes to a buffer of {arg.dtype}; cast it first")
    return shape, dtype


def _infer_sink(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    _check(len(operands) > 0, op, "needs at least one STORE")
    return operands[0]


def _infer_stage(op: Op, operands: Sequence[Info], arg: Any) -> Info:
    ((shape, dtype),) = operands
    known = all(isinstance(axis, int) and 0 <= axis < len(shape) for axis in arg)
    _check(known, op, f"the axes {arg} are not all among those of the shape {shape}")
    return shape, dtype


# *** the table ***

ShapeRule: TypeAlias = Callable[[Shape, Any], Shape]
IndexRule: TypeAlias = Callable[[Index, Any, Shape], Found]
ViewRule: TypeAlias = Callable[[View, Any, Shape], View | None]


@dataclass(frozen=True)
class Facts:
    """A row of the table: the facts of an op that hold without its operands."""

    operands: int | None
    """The number of sources; None for any number."""
    infer: InferRule
    """The shape and dtype of the result."""


@final
@dataclass(frozen=True)
class Elementwise(Facts):
    """A row for an element-wise op."""

    infer: InferRule = _infer_elementwise
    takes: Takes = Takes.ALL
    compares: bool = False
    """True if the result is bool."""
    commutes: bool = False
    """True if the two operands may be exchanged."""
    jumps: bool = False
    """True if the result may jump when an operand of floats hardly changes."""
    flat: bool = False
    """True if the derivative is zero wherever it exists, so that no gradient flows back."""
    flops: int = 1
    """The number of operations that the statistics of a kernel count for each element."""


@final
@dataclass(frozen=True)
class Reduction(Facts):
    """A row for a reduce: `COMBINATIONS` says how it combines values."""

    form: Form


@final
@dataclass(frozen=True)
class Movement(Facts):
    """A row for an op that only moves elements."""

    form: Form
    shape: ShapeRule | None = None
    """None for a movement by a second operand."""
    index: IndexRule | None = None
    """None for a movement by a second operand."""
    view: ViewRule | None = None
    """None if no view can express the movement."""
    whole: bool = False
    """True if each element of the source is in the result exactly once."""
    repeats: bool = False
    """True if elements of the source may be in the result several times."""
    zeros: bool = False
    """True if there are zeros between or around the elements."""
    free: bool = False
    """True if the result is never worth memory of its own."""


ELEMENTWISE: Final[dict[Op, Elementwise]] = {
    UnaryOps.EXP2: Elementwise(1, takes=Takes.FLOATS),
    UnaryOps.LOG2: Elementwise(1, takes=Takes.FLOATS),
    UnaryOps.CAST: Elementwise(1, _infer_cast, jumps=True, flops=0),
    UnaryOps.SIN: Elementwise(1, takes=Takes.FLOATS),
    UnaryOps.COS: Elementwise(1, takes=Takes.FLOATS),
    UnaryOps.SQRT: Elementwise(1, takes=Takes.FLOATS),
    UnaryOps.RECIP: Elementwise(1, takes=Takes.FLOATS),
    UnaryOps.NEG: Elementwise(1),
    UnaryOps.TRUNC: Elementwise(1, takes=Takes.FLOATS, jumps=True, flat=True),
    BinaryOps.ADD: Elementwise(2, commutes=True),
    BinaryOps.SUB: Elementwise(2, takes=Takes.NUMBERS),
    BinaryOps.MUL: Elementwise(2, commutes=True),
    BinaryOps.DIV: Elementwise(2, takes=Takes.NUMBERS),
    BinaryOps.MAX: Elementwise(2, commutes=True),
    BinaryOps.MOD: Elementwise(2, takes=Takes.NUMBERS, jumps=True),
    BinaryOps.CMPLT: Elementwise(2, compares=True, jumps=True, flat=True),
    BinaryOps.CMPNE: Elementwise(2, compares=True, jumps=True, flat=True),
    BinaryOps.XOR: Elementwise(2, takes=Takes.BITS, commutes=True),
    BinaryOps.AND: Elementwise(2, takes=Takes.BITS, commutes=True),
    BinaryOps.OR: Elementwise(2, takes=Takes.BITS, commutes=True),
    BinaryOps.SHL: Elementwise(2, takes=Takes.INTEGERS),
    BinaryOps.SHR: Elementwise(2, takes=Takes.INTEGERS),
    TernaryOps.MULACC: Elementwise(3, flops=2),
    TernaryOps.WHERE: Elementwise(3, _infer_where),
}
REDUCTIONS: Final[dict[Op, Reduction]] = {
    ReduceOps.SUM: Reduction(1, _infer_reduce, movement.NEW_SHAPE),
    ReduceOps.MAX: Reduction(1, _infer_reduce, movement.NEW_SHAPE),
    ReduceOps.PROD: Reduction(1, _infer_reduce, movement.NEW_SHAPE),
    ReduceOps.SCATTER: Reduction(None, _infer_scatter, movement.AXIS_AND_SIZE),
}
MOVEMENTS: Final[dict[Op, Movement]] = {
    MovementOps.RESHAPE: Movement(
        1,
        _infer_moved,
        movement.NEW_SHAPE,
        movement.reshape_shape,
        movement.reshape_index,
        movement.reshape_view,
        whole=True,
        free=True,
    ),
    MovementOps.PERMUTE: Movement(
        1,
        _infer_moved,
        movement.AXES,
        movement.permute_shape,
        movement.permute_index,
        lambda view, arg, shape: view.permute(arg),
        whole=True,
        free=True,
    ),
    MovementOps.EXPAND: Movement(
        1,
        _infer_moved,
        movement.NEW_SHAPE,
        movement.expand_shape,
        movement.expand_index,
        lambda view, arg, shape: view.expand(arg),
        repeats=True,
        free=True,
    ),
    MovementOps.PAD: Movement(
        1,
        _infer_moved,
        movement.MARGINS,
        movement.pad_shape,
        movement.pad_index,
        lambda view, arg, shape: view.pad(arg),
        zeros=True,
        free=True,
    ),
    MovementOps.SHRINK: Movement(
        1,
        _infer_moved,
        movement.PARTS,
        movement.shrink_shape,
        movement.shrink_index,
        lambda view, arg, shape: view.shrink(arg),
    ),
    MovementOps.STRIDE: Movement(
        1,
        _infer_moved,
        movement.MULTIPLIERS,
        movement.stride_shape,
        movement.stride_index,
        lambda view, arg, shape: view.stride(arg),
    ),
    MovementOps.AS_STRIDED: Movement(
        1,
        _infer_moved,
        movement.STRIDED,
        movement.as_strided_shape,
        movement.as_strided_index,
        movement.as_strided_view,
        repeats=True,
    ),
    MovementOps.WINDOW: Movement(
        1,
        _infer_moved,
        movement.AXIS_AND_SIZE,
        movement.window_shape,
        movement.window_index,
        movement.window_view,
        repeats=True,
        free=True,
    ),
    MovementOps.UNWINDOW: Movement(
        1,
        _infer_moved,
        movement.AXIS_AND_SIZE,
        movement.unwindow_shape,
        movement.unwindow_index,
        zeros=True,
        free=True,
    ),
    MovementOps.GATHER: Movement(2, _infer_gather, movement.AXIS),
}
OPS: Final[dict[Op, Facts]] = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **MOVEMENTS,
    BufferOps.LOAD: Facts(0, _infer_memory),
    BufferOps.CONST: Facts(0, _infer_memory),
    BufferOps.STORE: Facts(1, _infer_store),
    BufferOps.SINK: Facts(None, _infer_sink),
    BufferOps.STAGE: Facts(1, _infer_stage),
}
"""The ops of kernels. Nodes of `LoadOps` and `FunctionOps` are given their shape and dtype."""
FORMS: Final[dict[Op, Form]] = {
    **{op: row.form for op, row in REDUCTIONS.items()},
    **{op: row.form for op, row in MOVEMENTS.items()},
    LoadOps.ASSIGN: movement.REGION,
}
"""The forms of the arguments."""
WHOLE_MOVEMENTS: Final = frozenset([op for op, row in MOVEMENTS.items() if row.whole])
"""The movements after which each element of the source is there exactly once."""
PLAIN_MOVEMENTS: Final = frozenset([op for op, row in MOVEMENTS.items() if row.operands == 1])
"""The movements whose argument alone decides where elements go."""


def operand_count(op: Op) -> int | None:
    """The number of sources of an op; None for any number.

    >>> operand_count(BinaryOps.ADD)
    2
    """
    if op in OPS:
        return OPS[op].operands
    return 1 if isinstance(op, FunctionOps) else None


def infer(op: Op, operands: Sequence[Info], arg: Any = None) -> Info:
    """The shape and dtype of a result, from those of the operands.

    Raises `OpError` if shapes or the argument do not fit the op, `OpTypeError` if dtypes do not.

    >>> infer(MovementOps.PERMUTE, [((2, 3), dtypes.int32)], (1, 0))
    ((3, 2), dtypes.int32)
    """
    row = OPS.get(op)
    if row is None:
        raise OpError(f"{op}: its shape and dtype are the graph's to say; it is no op of a kernel")
    if row.operands is not None and row.operands != len(operands):
        raise _misfit(op, f"takes {row.operands} operands, got {len(operands)}")
    try:
        shape, dtype = row.infer(op, operands, arg)
    except OpError:
        raise
    except ShapeError as error:
        raise OpError(f"{op}: {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise OpError(f"{op}: the argument {arg!r} is none that it takes ({error})") from error
    return _plain(shape), dtype


# Programs move and reduce values of the same shapes again and again, so answers are kept.


@lru_cache(maxsize=4096)
def infer_moved(op: MovementOps, shape: Shape, arg: Any) -> Shape:
    """`infer` for a movement of one operand, whose dtype does not matter."""
    rule = MOVEMENTS[op].shape
    assert rule is not None, f"{op} has another operand"
    try:
        return _plain(rule(shape, arg))
    except ShapeError as error:
        raise OpError(f"{op}: {error}") from None


@lru_cache(maxsize=4096)
def reduced_axes(before: Sequence[sint], after: Sequence[sint]) -> list[int]:
    """The axes along which a reduce combines elements, from the shapes of its source and result.

    Axes of size 1 are not among them: there is nothing to combine.

    >>> reduced_axes((4, 1, 5), (1, 1, 5))
    [0]
    """
    pairs = enumerate(zip(before, after, strict=True))
    return [axis for axis, (n, m) in pairs if n is not m and n != m]


def infer_reduced(op: ReduceOps, shape: Shape, dtype: DType, arg: Any) -> Shape:
    """`infer` for a reduce of one operand, which keeps the dtype."""
    return infer(op, [(shape, dtype)], arg)[0]


def _plain(shape: Shape) -> Shape:
    return tuple([size if type(size) is int else as_int(size) for size in shape])


def _plain_results() -> Iterator[tuple[tuple[Op, int, DType], DType]]:
    for op, row in ELEMENTWISE.items():
        if row.operands is None or row.infer not in (_infer_elementwise, _infer_where):
            continue
        for dtype in dtypes.all:
            with suppress(OpError):  # the op does not take the dtype
                yield (op, row.operands, dtype), infer(op, [((), dtype)] * row.operands)[1]


PLAIN_RESULTS: Final = dict(_plain_results())
"""The result's dtype by the op, the number of its operands, and their dtype, for element-wise ops.

It is a fast path for operands of one shape. `infer` raises the errors.
"""
