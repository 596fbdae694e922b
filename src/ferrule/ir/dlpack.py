"""DLPack, the exchange of arrays between libraries in memory that both can use.

NumPy makes and reads the capsules: they live as long as someone holds the memory, and outlive the
interpreter. Number types that NumPy does not know, such as bfloat16, go through it as integers of
the same width; this module writes the type into the capsule.

The structures are those of DLPack 1.0, https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, TypeAlias, final

import numpy as np

from ferrule.ir.dtype import DType, DTypeError, dtypes

Array: TypeAlias = np.ndarray[Any, Any]

HOST: Final = (1, 0)  # kDLCPU
VERSION: Final = (1, 0)
_HOST_KINDS: Final = (1, 3)  # kDLCPU, and kDLCUDAHost: pinned memory of the host
_UINT: Final = 1  # kDLUInt
_CODES: Final = {dtypes.bfloat16: 4, dtypes.float8_e4m3: 10, dtypes.float8_e5m2: 12}
_KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Array(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; the managed tensor without a version starts with the array."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("array", _Array),
    )


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_capsule.restype = ctypes.c_int
_address_in = ctypes.pythonapi.PyCapsule_GetPointer
_address_in.argtypes = (ctypes.py_object, ctypes.c_char_p)
_address_in.restype = ctypes.c_void_p


def _type_of(capsule: object) -> _Type:
    """The number type in a capsule that nobody has consumed; it may be written."""
    for name, structure in ((b"dltensor_versioned", _Versioned), (b"dltensor", _Array)):
        if _is_capsule(capsule, name):
            found: Any = structure.from_address(_address_in(capsule, name))
            described: _Type = (found.array if structure is _Versioned else found).dtype
            return described
    raise BufferError(f"[from_dlpack] {capsule!r} is no DLPack capsule, or was consumed before")


# *** to others ***


@final
class _Shared:
    """The memory of a read-only array, for the version of the protocol that cannot say so."""

    def __init__(self, array: Array) -> None:
        self.array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def capsule_of(
    array: Array, dtype: DType, max_version: tuple[int, int] | None, copy: bool | None
) -> object:
    """A capsule with the memory of an array of `dtype`, or with a copy.

    A consumer that knows version 1 is told that a read-only array may only be read; the protocol
    before that cannot say so.
    """
    code = _CODES.get(dtype)
    if code is not None:
        array = array.view(np.dtype(f"u{dtype.itemsize}"))
    if max_version is None or max_version[0] < 1:
        shared = array.copy() if copy else np.asarray(_Shared(array))
        capsule: object = shared.__dlpack__()
    else:
        capsule = array.__dlpack__(max_version=max_version, copy=copy)
    if code is not None:
        _type_of(capsule).code = code
    return capsule


# *** from others ***


@final
class _Consumed:
    """A capsule in the form in which NumPy takes it."""

    def __init__(self, capsule: object, device: tuple[int, int]) -> None:
        self.capsule = capsule
        self.device = device

    def __dlpack__(self, **_: Any) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def array_from(producer: Any, copy: bool | None = None) -> Array:
    """The array of any object with `__dlpack__`, in the producer's memory if the host can read it.

    Elsewhere it is a copy, which the producer makes unless `copy=False`.

    Raises `TypeError` for other objects, `DTypeError` for number types that ferrule lacks,
    `BufferError` where the producer cannot put its array into the host's memory, or may not.
    """
    if not hasattr(producer, "__dlpack__") or not hasattr(producer, "__dlpack_device__"):
        raise TypeError(
            f"[from_dlpack] {type(producer).__name__} has no __dlpack__ and __dlpack_device__; "
            "use Tensor(data) for lists and other arrays"
        )
    kind, number = producer.__dlpack_device__()
    is_here = int(kind) in _HOST_KINDS
    if copy is False and not is_here:
        raise BufferError(
            f"[from_dlpack] a {type(producer).__name__} on DLPack device {(int(kind), number)} "
            f"comes to the host, DLPack device {HOST}, only as a copy; use copy=None"
        )
    capsule = _capsule_from(producer, {} if is_here else {"dl_device": HOST})
    described = _type_of(capsule)
    dtype = _dtype_in(described)
    if dtype in _CODES:
        described.code = _UINT
    consumed: Any = _Consumed(capsule, (int(kind), number) if is_here else HOST)
    array: Array = np.from_dlpack(consumed)
    return array.view(dtype.np)


def _capsule_from(producer: Any, wanted: dict[str, Any]) -> object:
    try:
        return producer.__dlpack__(max_version=VERSION, **wanted)
    except TypeError:  # the protocol before version 1 had no such parameters
        if not wanted:
            return producer.__dlpack__()
    raise BufferError(
        f"[from_dlpack] a {type(producer).__name__} on DLPack device "
        f"{producer.__dlpack_device__()} is not in the host's memory; copy it there first"
    )


def _dtype_in(described: _Type) -> DType:
    code, bits, lanes = described.code, described.bits, described.lanes
    for dtype, known in _CODES.items():
        if (code, bits, lanes) == (known, dtype.bits, 1):
            return dtype
    name = "bool" if code == 6 and bits == 8 else f"{_KINDS.get(code, f'code {code} ')}{bits}"
    if lanes != 1 or name not in _NAMES:
        raise DTypeError(
            f"[from_dlpack] elements of {name} x {lanes} have no ferrule dtype; convert them first "
            f"to one of {', '.join(dtype.name for dtype in dtypes.all)}"
        )
    return _NAMES[name]


_NAMES: Final = {dtype.name: dtype for dtype in dtypes.all if dtype not in _CODES}
