"""The values that flow between the nodes of an ONNX model, and the data types of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Expr, sint
from ferrule.onnx.sizes import as_numbers, varies
from ferrule.tensor import Tensor

Array: TypeAlias = npt.NDArray[Any]

Host: TypeAlias = Array
"""An input of a rule whose elements decide about shapes, axes or which node runs: it is known
before anything is computed. If sizes that vary decide, its elements are objects; see `sizes.py`."""

Statistic: TypeAlias = Tensor
"""An input of a rule that no gradient is wanted of, such as a running mean."""

Scale: TypeAlias = Tensor
"""An input of a rule that belongs to quantised numbers: where it is known it is no parameter."""


class HostArray(NamedTuple):
    """An array that cannot change."""

    data: bytes
    shape: tuple[int, ...]
    dtype: Any

    @staticmethod
    def of(array: Array) -> HostArray:
        """A copy of an array."""
        return HostArray(array.tobytes(), array.shape, array.dtype)

    @property
    def array(self) -> Array:
        """The array, which cannot be written to."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Constant(NamedTuple):
    """A value that is the same in all calls: on the host, as a tensor, or both."""

    host: HostArray | None
    tensor: Tensor | None

    @staticmethod
    def of(array: Array, on_host: bool = False) -> Constant:
        """A constant with the elements of an array, kept on the host or as a tensor."""
        return Constant(HostArray.of(array), None) if on_host else Constant(None, Tensor(array))


Value: TypeAlias = Tensor | Array | Constant | list[Any] | None
"""A tensor; an array that is known on the host; a sequence; an input that is left out."""


class OnnxError(ValueError):
    """A model in ONNX's format that cannot be loaded or run, and why."""


# By their numbers in onnx.TensorProto.
_DTYPES: Final[dict[int, DType]] = {
    1: dtypes.float32,
    2: dtypes.uint8,
    3: dtypes.int8,
    4: dtypes.uint16,
    5: dtypes.int16,
    6: dtypes.int32,
    7: dtypes.int64,
    9: dtypes.bool,
    10: dtypes.float16,
    11: dtypes.float64,
    12: dtypes.uint32,
    13: dtypes.uint64,
    16: dtypes.bfloat16,
    17: dtypes.float8_e4m3,
    19: dtypes.float8_e5m2,
}
_NUMBERS: Final = {dtype: number for number, dtype in _DTYPES.items()}


def is_supported(number: int) -> bool:
    """Whether there are tensors of a data type, by its number in `onnx.TensorProto`."""
    return number in _DTYPES


def dtype_of(number: int) -> DType:
    """The data type with a number in `onnx.TensorProto`; raises `OnnxError` if there is none."""
    if number not in _DTYPES:
        raise OnnxError(f"tensors of ONNX's data type {type_name(number)} are not supported")
    return _DTYPES[number]


def number_of(dtype: DType) -> int:
    """The number of a data type in `onnx.TensorProto`."""
    return _NUMBERS[dtype]


def type_name(number: int) -> str:
    """The name of a data type in `onnx.TensorProto`, or its number if it has none."""
    from onnx import TensorProto

    known = TensorProto.DataType.values()
    return TensorProto.DataType.Name(number) if number in known else str(number)


def as_tensor(value: Tensor | Array | Constant) -> Tensor:
    """A value as a tensor."""
    if isinstance(value, Constant):
        return as_tensor(as_host(value)) if value.tensor is None else value.tensor
    if isinstance(value, Tensor):
        return value
    return as_numbers(value) if varies(value) else Tensor(value)


def as_host(value: Value) -> Array:
    """The elements of a value. Those of a tensor are computed and read, which ends a capture.

    Raises `OnnxError` for a sequence, and for an input that is left out.
    """
    if isinstance(value, Constant):
        if value.host is not None:
            return value.host.array
        assert value.tensor is not None
        return value.tensor.numpy()
    if value is None or isinstance(value, list):
        raise OnnxError("a tensor is needed, not a sequence or nothing")
    return value.numpy() if isinstance(value, Tensor) else value


def is_host(value: Value) -> bool:
    """Whether the elements of a value are known on the host."""
    return isinstance(value, np.ndarray) or (isinstance(value, Constant) and value.host is not None)


def ints(value: Array | Sequence[int] | None, default: Sequence[sint] = ()) -> tuple[Any, ...]:
    """Whole numbers, or expressions, from a one-dimensional array, or from one number."""
    if value is None:
        return tuple(default)
    numbers = np.asarray(value).reshape(-1)
    return tuple(number if isinstance(number, Expr) else int(number) for number in numbers)
