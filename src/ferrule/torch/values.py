"""The values that flow between the operators of PyTorch, their data types, and type promotion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ferrule.ir.dtype import DType, dtypes, promote
from ferrule.tensor import Tensor

Number: TypeAlias = bool | int | float
Operand: TypeAlias = Tensor | Number


class TorchError(ValueError):
    """A program of PyTorch that cannot be loaded or run, and why."""


class Ref(NamedTuple):
    """The place of a value among those of a graph, or among inputs or outputs."""

    place: int


_DTYPES: Final = {
    "float8_e4m3fn": dtypes.float8_e4m3,
    "float8_e5m2": dtypes.float8_e5m2,
} | {
    dtype.name: dtype
    for dtype in (
        *(dtypes.bool, dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64),
        *(dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64),
        *(dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64),
    )
}


def dtype_of(dtype: Any) -> DType:
    """The data type for one of PyTorch; raises `TorchError` if there is none."""
    found = _DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise TorchError(f"tensors of the data type {dtype} are not supported")
    return found


def shared(theirs: Any, copy: bool | None = None) -> Tensor:
    """A tensor of PyTorch as one of ferrule: in its memory where that is possible, else a copy.

    With `copy=False` it raises `BufferError` instead of copying.
    """
    dtype_of(theirs.dtype)
    found = theirs.detach()
    if found.device.type != "cpu":
        found = found.cpu()
    return Tensor.from_dlpack(found, copy=copy)


def _category(dtype: DType) -> int:
    return 2 if dtypes.is_float(dtype) else int(dtype is not dtypes.bool)


def _number_dtype(number: Number) -> DType:
    if isinstance(number, bool):
        return dtypes.bool
    return dtypes.int64 if isinstance(number, int) else dtypes.default_float


def _combined(higher: DType | None, lower: DType | None) -> DType | None:
    """The dtype of operands of which `lower` counts only if it is of a higher category."""
    if higher is None or lower is None:
        return higher or lower
    return promote(higher, lower) if _category(lower) > _category(higher) else higher


def result_dtype(*operands: Operand) -> DType:
    """The dtype that operands have in common by PyTorch's rules of promotion.

    Tensors with axes decide; tensors without axes, and then numbers, count only if they are of a
    higher category: floats above integers above bools.
    """
    with_axes: DType | None = None
    without: DType | None = None
    numbers: DType | None = None
    for operand in operands:
        if not isinstance(operand, Tensor):
            kind = _number_dtype(operand)
            numbers = kind if numbers is None else promote(numbers, kind)
        elif operand.ndim:
            with_axes = operand.dtype if with_axes is None else promote(with_axes, operand.dtype)
        else:
            without = operand.dtype if without is None else promote(without, operand.dtype)
    found = _combined(with_axes, _combined(without, numbers))
    assert found is not None, "there are operands"
    return found


def as_tensor(value: Operand, dtype: DType) -> Tensor:
    """A tensor or a number as a tensor of a dtype."""
    if isinstance(value, Tensor):
        return value.cast(dtype)
    return Tensor.full((), wrapped(value, dtype), dtype=dtype)


def wrapped(value: Number, dtype: DType) -> Number:
    """A number as PyTorch converts it to a dtype: integers wrap around."""
    if dtype is dtypes.bool:
        return bool(value)
    if dtypes.is_float(dtype):
        return float(value)
    bits = dtype.itemsize * 8
    whole = int(value) % (1 << bits)
    return whole if dtypes.is_unsigned(dtype) or not whole >> (bits - 1) else whole - (1 << bits)


def together(*operands: Operand) -> list[Tensor]:
    """The operands as tensors of their common dtype."""
    dtype = result_dtype(*operands)
    return [as_tensor(operand, dtype) for operand in operands]


def floats_together(*operands: Operand) -> list[Tensor]:
    """The operands as floats of their common dtype, of the default one if they are integers."""
    dtype = result_dtype(*operands)
    chosen = dtype if dtypes.is_float(dtype) else dtypes.default_float
    return [as_tensor(operand, chosen) for operand in operands]


def as_float(x: Tensor) -> Tensor:
    """A tensor as floats: integers and bools get the default dtype."""
    return x if dtypes.is_float(x.dtype) else x.cast(dtypes.default_float)


def widely(x: Tensor, compute: Callable[[Tensor], Any]) -> Any:
    """A function of a tensor, computed in float32 where its floats have fewer bits."""
    if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4:
        return compute(x.cast(dtypes.float32)).cast(x.dtype)
    return compute(x)


def int64(x: Tensor) -> Tensor:
    """Positions, as PyTorch has them."""
    return x.cast(dtypes.int64)


def axes_of(x: Tensor, dim: Sequence[int] | int | None) -> tuple[int, ...]:
    """The axes of a reduction, not negative; all axes for None or an empty list."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(x.ndim))
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(axis % x.ndim for axis in given) if x.ndim else ()


def pairs(value: Sequence[int], count: int) -> tuple[int, ...]:
    """A setting for each of `count` axes; a list of one number is for all."""
    values = tuple(value)
    return values * count if len(values) == 1 else values
