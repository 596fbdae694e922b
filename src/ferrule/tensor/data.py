"""Data of the host as values: Python numbers, nested lists, bytes and NumPy arrays."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, SupportsFloat, TypeAlias

import numpy as np

from ferrule.autograd import Number, TracedValue, check_expression
from ferrule.device import Device
from ferrule.ir.buffer import Buffer, allocators
from ferrule.ir.dlpack import array_from
from ferrule.ir.dtype import DType, DTypeError, check_range, dtypes
from ferrule.ir.expr import BOOL, Expr, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.view import ShapeError

Array: TypeAlias = np.ndarray[Any, Any]
DTypeLike: TypeAlias = "DType | str | np.dtype[Any] | type[np.generic]"


def to_dtype(dtype: DTypeLike) -> DType:
    """The dtype for a DType, a name such as "float32", or a NumPy dtype."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str):
        return dtypes.from_name(dtype)
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        return dtypes.from_np(dtype)
    raise DTypeError(
        f"{dtype!r} is no dtype; use one of ferrule's, such as dtypes.float32, or its name"
    )


def to_device(device: str | None) -> str:
    """The one spelling of a device's name; the default device for None."""
    return Device.DEFAULT if device is None else Device.known(device)


def python_number(number: object, rule: str) -> Any:
    """A number as Python's: that of a NumPy scalar, or of an array or a tensor of one element.

    Raises `TypeError` if it is no number; `rule` says what takes only numbers.
    """
    item = getattr(number, "item", None)
    found = number if item is None else item()
    if not isinstance(found, SupportsFloat | Expr):
        raise TypeError(f"{rule}, not {number!r}")
    return found


def scalar_dtype(number: object) -> DType:
    """The dtype that a Python number has on its own."""
    if isinstance(number, bool) or (isinstance(number, Expr) and number.dtype is BOOL):
        return dtypes.bool
    if isinstance(number, int | Expr):
        return dtypes.default_int
    return dtypes.default_float


def constant(number: Any, dtype: DType, shape: Sequence[sint], device: str) -> LazyBuffer:
    """A number for every element; raises `OverflowError` if it is beyond an integer type's."""
    check = check_expression if isinstance(number, Expr) else check_range
    check(number, dtype)
    return LazyBuffer.const(number, dtype, shape, device)


def from_host(data: Any, dtype: DType | None, device: str) -> TracedValue:
    """The value of anything that is no tensor.

    Raises `ShapeError` for ragged lists, `TypeError` for what holds no numbers, `DTypeError` for
    NumPy dtypes that ferrule lacks, `OverflowError` for integers that do not fit.
    """
    if isinstance(data, np.generic) and dtype is not None:
        data = data.item()  # a number for another dtype has to fit it, as Python's
    is_number = isinstance(data, bool | int | float | Expr)
    if is_number and not isinstance(data, np.generic):
        chosen = scalar_dtype(data) if dtype is None else dtype
        return TracedValue(constant(data, chosen, (), device))
    found = _to_array(data, dtype)
    if dtype is not None and found.dtype != dtype.np:
        found = found.astype(dtype.np)
    return TracedValue(LazyBuffer.from_buffer(Buffer.fromCPU(device, found), found.shape))


def is_in_host_memory(device: str) -> bool:
    """True if the host can address the device's memory."""
    return hasattr(allocators[device], "as_buffer")


def borrowed(array: Array, device: str) -> TracedValue | None:
    """The value of an array in its own memory, of any strides; None where it has to be copied."""
    dtypes.from_np(array.dtype)  # raises for dtypes that ferrule lacks
    step = array.itemsize
    if array.size == 0:
        return from_host(array, None, device)
    if array.flags.c_contiguous:
        buffer = Buffer.lent(device, array.reshape(-1))
        if buffer is None:
            return None
        return TracedValue(LazyBuffer.in_buffer(buffer, array.shape))
    if any(stride % step for stride in array.strides):
        return None
    backwards = [stride < 0 for stride in array.strides]
    forwards = array.view(f"u{step}")  # NumPy cannot stride over types that it does not know
    forwards = forwards[tuple([slice(None, None, -1 if back else 1) for back in backwards])]
    reach = [(n - 1) * stride // step for n, stride in zip(array.shape, array.strides, strict=True)]
    span = 1 + sum(map(abs, reach))
    flat = np.lib.stride_tricks.as_strided(forwards, (span,), (step,), writeable=False)
    buffer = Buffer.lent(device, flat.view(array.dtype))
    if buffer is None:
        return None
    first = -sum(min(far, 0) for far in reach)
    strides = [stride // step for stride in array.strides]
    memory = LazyBuffer.from_buffer(buffer, (span,))
    return TracedValue(memory.as_strided(array.shape, strides, first))


def _to_array(data: Any, dtype: DType | None) -> Array:
    if isinstance(data, np.ndarray | np.generic):
        found = np.asarray(data)
        dtypes.from_np(found.dtype)  # raises for dtypes that ferrule lacks
        return found
    if isinstance(data, bytes | bytearray):
        return np.frombuffer(data, np.uint8)
    if isinstance(data, memoryview | array):
        return _to_array(np.asarray(data), dtype)
    if isinstance(data, list | tuple | range):
        return _from_sequence(data, dtype)
    if hasattr(data, "__dlpack__"):
        return array_from(data)
    if hasattr(data, "__array__"):
        return _to_array(np.asarray(data), dtype)
    raise TypeError(
        f"[Tensor] cannot be made of {type(data).__name__}; pass a number, a nested list of "
        "numbers, bytes, a NumPy array or a tensor"
    )


def _from_sequence(data: Sequence[Any], dtype: DType | None) -> Array:
    if len(data) and all(isinstance(part, np.ndarray) and part.ndim for part in data):
        return _to_array(_stacked(data), dtype)
    shape = _nested_shape(data, ())
    numbers = list(_leaves(data, len(shape)))
    chosen = _common_dtype(numbers) if dtype is None else dtype
    for number in numbers if dtypes.is_int(chosen) else ():
        check_range(number, chosen)
    return np.array(numbers, chosen.np).reshape(shape)


def _stacked(arrays: Sequence[Array]) -> Array:
    for position, part in enumerate(arrays):
        if part.shape != arrays[0].shape:
            raise _ragged("", arrays[0].shape, position, part.shape)
    return np.stack(arrays)


def _ragged(
    place: str, first: tuple[int, ...], position: int, shape: tuple[int, ...]
) -> ShapeError:
    return ShapeError(
        f"[Tensor] the list is ragged: data{place}[0] has shape {first}, "
        f"data{place}[{position}] has {shape}; pad the shorter ones"
    )


def _nested_shape(data: Any, place: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of nested lists; `place` is where in the whole `data` is, for the message."""
    if not isinstance(data, list | tuple | range):
        return ()
    if len(data) == 0:
        return (0,)
    first = _nested_shape(data[0], (*place, 0))
    for position in range(1, len(data)):
        shape = _nested_shape(data[position], (*place, position))
        if shape != first:
            raise _ragged("".join(f"[{step}]" for step in place), first, position, shape)
    return (len(data), *first)


def _leaves(data: Any, rank: int) -> Any:
    if rank == 0:
        yield _number(data)
        return
    for part in data:
        yield from _leaves(part, rank - 1)


def _number(item: Any) -> Number:
    if isinstance(item, bool | int | float):
        return item
    if isinstance(item, Expr):
        return bool(item) if item.dtype is BOOL else int(item)
    if isinstance(item, np.generic) or (isinstance(item, np.ndarray) and item.ndim == 0):
        number: Number = item.item()
        return number
    hint = "; for a list of tensors use Tensor.stack(*tensors)" if hasattr(item, "shape") else ""
    raise TypeError(f"[Tensor] a list may hold numbers only, found {type(item).__name__}{hint}")


def _common_dtype(numbers: Sequence[Number]) -> DType:
    kinds = {type(number) for number in numbers}
    if kinds == {bool}:
        return dtypes.bool
    if kinds and kinds <= {bool, int}:
        return dtypes.default_int
    return dtypes.default_float


# *** back to the host ***


def bound_shape(shape: Sequence[sint], what: str) -> tuple[int, ...]:
    """The sizes as numbers, symbolic ones by the values that their variables are bound to."""
    return tuple([size if isinstance(size, int) else _bound(size, what) for size in shape])


def _bound(size: Expr, what: str) -> int:
    free, values = unbind(size)
    if isinstance(free, int):
        return free
    missing = sorted(variable.name for variable in free.vars() - set(values))
    if missing:
        raise ShapeError(
            f"[{what}] the size {free} is symbolic, and {', '.join(missing)} has no value; "
            "use variable.bind(value) in the shape"
        )
    known: dict[Expr, int] = {variable: value for variable, value in values.items()}
    return free.infer(known)
