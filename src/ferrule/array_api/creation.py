"""Tensors from numbers, sequences and other libraries' arrays."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from ferrule.ir.dtype import DType, dtypes
from ferrule.tensor import Tensor

Number: TypeAlias = bool | int | float
Shape: TypeAlias = int | tuple[int, ...]


def asarray(
    obj: Any, /, *, dtype: DType | None = None, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor of numbers, nested sequences, buffers or arrays.

    Memory is shared if that is possible, unless `copy=True`; NumPy's is borrowed, as by
    `Tensor.from_numpy`. Raises `ValueError` if `copy=False` and a copy is needed.
    """
    if isinstance(obj, memoryview | bytearray | np.ndarray):
        shared = Tensor.from_numpy(np.asarray(obj), device, copy)
        return shared if dtype is None else _as_asked(shared, dtype, device, copy)
    if isinstance(obj, Tensor):
        found = _as_asked(obj, obj.dtype if dtype is None else dtype, device, copy)
        return found.clone() if copy and found is obj else found
    if hasattr(obj, "__dlpack__"):
        return asarray(from_dlpack(obj, device=device, copy=copy), dtype=dtype)
    if copy is False:
        raise ValueError(f"[asarray] a {type(obj).__name__} has no memory to share; use copy=None")
    return Tensor(obj, device, dtype)


def _as_asked(x: Tensor, dtype: DType, device: str | None, copy: bool | None) -> Tensor:
    found = x.cast(dtype)
    found = found if device is None else found.to(device)
    if copy is False and found is not x:
        raise ValueError(
            f"[asarray] {x.dtype} on {x.device} becomes {dtype} on {found.device} only as a copy; "
            "use copy=None"
        )
    return found


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor in the memory of any array with `__dlpack__`, as `Tensor.from_dlpack`."""
    return Tensor.from_dlpack(x, device=device, copy=copy)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """start, start + step, … below stop; from 0 if only one number is given."""
    return Tensor.arange(start, stop, step, device=device, dtype=dtype)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers evenly from start to stop, which is left out unless `endpoint`."""
    if endpoint:
        return Tensor.linspace(start, stop, num, device=device, dtype=dtype)
    return Tensor.linspace(start, stop, num + 1, device=device, dtype=dtype)[:num]


def empty(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Memory with no particular contents."""
    return Tensor.empty(shape, dtype=dtype, device=device)


def zeros(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Zeros."""
    return Tensor.zeros(shape, dtype=dtype, device=device)


def ones(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Ones."""
    return Tensor.ones(shape, dtype=dtype, device=device)


def full(
    shape: Shape, fill_value: Number, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """One value everywhere; its type unless a dtype is given."""
    return Tensor.full(shape, fill_value, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Memory of a tensor's shape with no particular contents."""
    return empty(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Zeros of a tensor's shape."""
    return x.zeros_like(dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Ones of a tensor's shape."""
    return x.ones_like(dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: Number, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """One value everywhere, in a tensor's shape and type."""
    return x.full_like(fill_value, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Ones on the k-th diagonal of a matrix, zeros elsewhere."""
    if k == 0:
        return Tensor.eye(n_rows, n_cols, device=device, dtype=dtype)
    columns = n_rows if n_cols is None else n_cols
    square = Tensor.ones(n_rows, columns, device=device, dtype=dtype or dtypes.default_float)
    return square.triu(k).tril(k)


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """The coordinates of a grid whose axes are given by vectors."""
    if not arrays:
        return ()
    first, *others = arrays
    return first.meshgrid(*others, indexing=indexing)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Zeros above the k-th diagonal of the last two axes."""
    return x.tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Zeros below the k-th diagonal of the last two axes."""
    return x.triu(k)
