"""Tensors from and to other libraries, in the same memory where both can use it.

What shares memory is for reading. A write to a tensor that others read, or that is in memory of
others, goes to memory of its own: what was handed out keeps its values, and what was borrowed is
never changed. A lender that writes changes what the tensor reads from then on.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.base.containers import mapped
from ferrule.ir.dlpack import HOST, array_from, capsule_of
from ferrule.ir.shape.layout import storage_view
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import (
    Array,
    DTypeLike,
    borrowed,
    from_host,
    is_in_host_memory,
    to_device,
    to_dtype,
)
from ferrule.tensor.keywords import method

# NumPy's name of each operator, the method of a tensor on its left, and of one on its right.
_OPERATORS: Final = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "floor_divide": ("__floordiv__", "__rfloordiv__"),
    "remainder": ("__mod__", "__rmod__"),
    "divmod": ("__divmod__", "__rdivmod__"),
    "power": ("__pow__", "__rpow__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "bitwise_and": ("__and__", "__rand__"),
    "bitwise_or": ("__or__", "__ror__"),
    "bitwise_xor": ("__xor__", "__rxor__"),
    "left_shift": ("__lshift__", "__rlshift__"),
    "right_shift": ("__rshift__", "__rrshift__"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
}


# -- from others ---------------------------------------------------------------------------------


@method
def from_numpy(
    cls: type[Tensor], /, array: Array, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor in the memory of a NumPy array, which it keeps alive.

    The tensor sees writes to the array, and never writes there itself: a write to the tensor goes
    to new memory. Any strides are shared. Copied with `copy=True`, and unless
    `copy=False`, where a device has other memory or elements are not aligned.

    Raises `DTypeError` for dtypes that ferrule lacks, `ValueError` where `copy=False` and the
    memory cannot be shared.

    >>> import numpy as np
    >>> from ferrule import Tensor
    >>> array = np.arange(4)
    >>> x = Tensor.from_numpy(array)
    >>> array[0] = 7
    >>> x.tolist()
    [7, 1, 2, 3]
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"[from_numpy] takes a NumPy array, not {type(array).__name__}")
    return cls._wrap(_shared(array, device, copy, "from_numpy", ValueError))


@method
def from_dlpack(
    cls: type[Tensor], x: Any, /, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor in the memory of any array with `__dlpack__`: PyTorch's, JAX's, NumPy's.

    Memory is shared and copied as by `from_numpy`. An array on a GPU comes to the host, as a
    copy, if its library does that.

    Raises `TypeError` for an object without the protocol, `DTypeError` for dtypes that ferrule
    lacks, `BufferError` where the memory cannot be shared though `copy=False`, or the host
    cannot have it.

    >>> import numpy as np
    >>> from ferrule import Tensor
    >>> Tensor.from_dlpack(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return cls._wrap(_shared(array_from(x, copy), device, copy, "from_dlpack", BufferError))


@method
def frombuffer(
    cls: type[Tensor],
    /,
    buffer: Any,
    dtype: DTypeLike,
    count: int = -1,
    offset: int = 0,
    device: str | None = None,
) -> Tensor:
    """`count` elements of a buffer, such as bytes or an mmap, from byte `offset` on; a vector.

    Memory is shared as by `from_numpy`. Raises `ValueError` where the buffer is too short, or
    its size is no multiple of that of an element.

    >>> from ferrule import Tensor
    >>> Tensor.frombuffer(bytes([1, 0, 2, 0]), "int16").tolist()
    [1, 2]
    """
    try:
        array = np.frombuffer(buffer, to_dtype(dtype).np, count, offset)
    except ValueError as error:
        raise ValueError(f"[frombuffer] {error}; give another dtype, count or offset") from None
    return cls._wrap(_shared(array, device, None, "frombuffer", ValueError))


# -- to others -----------------------------------------------------------------------------------


@method
def tobytes(self: Tensor) -> bytes:
    """The bytes of all elements, in row-major order.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2], dtype="int16").tobytes()
    b'\\x01\\x00\\x02\\x00'
    """
    return self.numpy(copy=False).tobytes()


def array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """The elements for NumPy: read-only in the tensor's memory, or a copy if that is asked for.

    Raises `ValueError` where `copy=False` and there is no way without a copy.
    """
    wanted = None if dtype is None else np.dtype(dtype)
    converts = wanted is not None and wanted != self.dtype.np
    if copy is False and (converts or not is_in_host_memory(self.device)):
        reason = f"as {wanted}" if converts else f"from {self.device}"
        raise ValueError(
            f"[__array__] a tensor of {self.dtype} becomes an array {reason} only as a copy; "
            "use copy=None"
        )
    array = self.numpy(copy=bool(copy) and not converts)
    return array.astype(wanted) if converts else array


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """An operator of an array and a tensor gives a tensor; NumPy's other functions, arrays.

    Other functions compute with NumPy: `np.sin(x)` is `np.sin(x.numpy())`, and no gradient flows
    back. The target of a write (`array += x`, `out=array`) has to be an array, and stays one.
    """
    if method == "__call__" and not kwargs and ufunc.__name__ in _OPERATORS:
        left, right = _OPERATORS[ufunc.__name__]
        if isinstance(inputs[0], Tensor):
            return getattr(inputs[0], left)(inputs[1])
        return getattr(inputs[1], right)(inputs[0])
    if any(isinstance(out, Tensor) for out in kwargs.get("out", ())):
        raise TypeError(
            f"[np.{ufunc.__name__}] NumPy cannot write to a tensor, as `out`; assign its "
            "result: x.assign(...)"
        )
    return getattr(ufunc, method)(*_as_arrays(inputs), **_as_arrays(kwargs))


def array_function(self: Tensor, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's functions compute with NumPy, and give arrays: `np.mean(x)` is one."""
    if func is np.shape:
        return self.shape
    if func is np.ndim:
        return self.ndim
    return func(*_as_arrays(args), **_as_arrays(kwargs))


def buffer(self: Tensor, flags: int) -> memoryview:
    """The read-only memory, from Python 3.12 on: `memoryview(x)`, `bytes(x)`.

    Raises `BufferError` where it is to be written, or the dtype has no format.
    """
    if flags & 1:
        raise BufferError("[buffer] the memory of a tensor is read-only; use x.numpy()")
    if self.dtype.fmt is None:
        raise BufferError(f"[buffer] {self.dtype} has no memoryview format; cast it to float32")
    array = self.numpy(copy=False)
    array.flags.writeable = False
    return array.data


def dlpack(
    self: Tensor,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """A DLPack capsule with the tensor's memory, for `torch.from_dlpack(x)` and the like.

    The consumer may only read the memory, unless `copy=True`; DLPack from version 1 on tells it
    so. Nothing that the tensor becomes later is seen there.

    Raises `BufferError` for a device other than the host, or where `copy=False` and the memory
    is not the host's; `ValueError` for a stream.
    """
    if stream not in (None, -1):
        raise ValueError(f"[__dlpack__] the host has no streams; stream is None, not {stream}")
    if dl_device is not None and (int(dl_device[0]), dl_device[1]) != HOST:
        raise BufferError(
            f"[__dlpack__] a tensor on {self.device} goes to the host, DLPack device {HOST}, "
            f"not to {tuple(dl_device)}"
        )
    if copy is False and not is_in_host_memory(self.device):
        raise BufferError(
            f"[__dlpack__] the memory of {self.device} comes to the host only as a copy; "
            "use copy=None"
        )
    return capsule_of(self.numpy(copy=False), self.dtype, max_version, copy)


def dlpack_device(self: Tensor) -> tuple[int, int]:
    """DLPack's device type and number of the memory that `__dlpack__` gives: the host's."""
    return HOST


# -- PyTorch's questions about the memory --------------------------------------------------------


@method
def stride(self: Tensor, dim: int | None = None) -> Any:
    """How many elements of memory lie between neighbours: for each axis, or for one.

    The memory is that which the tensor shares with its views; a result that is not computed yet
    will be in row-major memory. It is 0 for an axis of one element, and for repeated ones. Raises
    `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
    >>> x.stride(), x.T.stride(), x[:, ::2].stride(1)
    ((3, 1), (1, 3), 2)
    """
    strides = self._layout().strides
    return strides if dim is None else strides[self._axis(dim, "stride")]


@method
def storage_offset(self: Tensor) -> Any:
    """Where the first element is in the memory that the tensor shares with its views.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3], [4, 5, 6]])[1:, 1].storage_offset()
    4
    """
    return self._layout().offset


@method
def is_contiguous(self: Tensor) -> bool:
    """True if the elements are contiguous in memory, in row-major order.

    No function needs that; `x.contiguous()` gives it.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
    >>> x.is_contiguous(), x.T.is_contiguous(), x.T.contiguous().is_contiguous()
    (True, False, True)
    """
    return 0 in self._shape or self._layout().strides == storage_view(self._shape).strides


@method
def ndimension(self: Tensor) -> int:
    """The number of axes: PyTorch's other name of `dim`.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3]]).ndimension()
    2
    """
    return self.ndim


# -- as a Python number --------------------------------------------------------------------------


@method
def is_nonzero(self: Tensor) -> bool:
    """True if the only element is not 0, as a Python bool.

    Raises `ShapeError` for a tensor with more elements, or none.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).is_nonzero(), Tensor(-0.5).is_nonzero()
    (False, True)
    """
    return bool(self.item())


def to_complex(self: Tensor) -> complex:
    """The only element, as a Python number."""
    return complex(self.item())


def formatted(self: Tensor, spec: str) -> str:
    """A tensor of one element and no axes is formatted as its number, others as `str`."""
    if spec and not self._shape:
        return format(self.item(), spec)
    try:
        return format(str(self), spec)
    except ValueError as error:
        raise TypeError(
            f"[format] {spec!r} is for one number, not a tensor of shape {self._shape}; "
            "format x.item(), or x.numpy() as NumPy prints it"
        ) from error


def array_interface(self: Tensor) -> dict[str, Any]:
    """NumPy's description of the memory of a tensor."""
    if self.dtype.fmt is None:
        raise AttributeError(f"{self.dtype} has no description in __array_interface__")
    array = self.numpy(copy=False)
    return {**array.__array_interface__, "data": array}


def _as_arrays(arguments: Any) -> Any:
    """The arguments of a function of NumPy's, with an array in the place of each tensor."""
    return mapped(arguments, lambda leaf: np.asarray(leaf) if isinstance(leaf, Tensor) else leaf)


def _shared(
    array: Array, device: str | None, copy: bool | None, what: str, error: type[Exception]
) -> TracedValue:
    """The value of an array in its own memory, unless that has to be copied."""
    target = to_device(device)
    value = None if copy else borrowed(array, target)
    if value is not None:
        return value
    if copy is False:
        raise error(
            f"[{what}] an array of {array.dtype}, shape {array.shape} and strides {array.strides} "
            f"cannot be shared with {target}; use copy=None"
        )
    return from_host(array, None, target)
