"""Data types of the array API: their kinds and limits, promotion, and casts."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, DTypeError, dtypes, promote
from ferrule.tensor import Tensor
from ferrule.tensor.math.arithmetic import weak_dtype

Scalar: TypeAlias = bool | int | float
Kind: TypeAlias = DType | str | tuple[DType | str, ...]

STANDARD: Final = tuple(
    dtype for dtype in dtypes.all if dtype.itemsize >= 4 or not dtypes.is_float(dtype)
)
"""The types that the standard names; ferrule has narrow floats as well."""
SIGNED: Final = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED: Final = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
FLOATS: Final = tuple(dtype for dtype in dtypes.all if dtypes.is_float(dtype))
KINDS: Final = {
    "bool": (dtypes.bool,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": FLOATS,
    "complex floating": (),
    "numeric": SIGNED + UNSIGNED + FLOATS,
}


def astype(x: Tensor, dtype: DType, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """Each element as another type; with `copy=False` the same tensor if nothing changes."""
    found = x.cast(dtype)
    found = found if device is None else found.to(device)
    return found.clone() if copy and found is x else found


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """True if promotion with the type `to` gives that type."""
    return promote(_dtype(from_), to) is to


@dataclass(frozen=True)
class finfo_object:
    """Limits of a floating-point type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class iinfo_object:
    """Limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: DType | Tensor, /) -> finfo_object:
    """The limits of a floating-point type, or of a tensor's."""
    import ml_dtypes

    dtype = _dtype(type)
    if not dtypes.is_float(dtype):
        raise DTypeError(f"[finfo] {dtype} is no floating-point type; use iinfo")
    limits: Any = ml_dtypes.finfo(dtype.np)  # type: ignore[no-untyped-call]
    return finfo_object(
        dtype.bits,
        float(limits.eps),
        float(limits.max),
        float(limits.min),
        float(limits.smallest_normal),
        dtype,
    )


def iinfo(type: DType | Tensor, /) -> iinfo_object:
    """The limits of an integer type, or of a tensor's."""
    dtype = _dtype(type)
    if not dtypes.is_int(dtype):
        raise DTypeError(f"[iinfo] {dtype} is no integer type; use finfo for floats")
    return iinfo_object(dtype.bits, int(dtypes.max(dtype)), int(dtypes.min(dtype)), dtype)


def isdtype(dtype: DType, kind: Kind) -> bool:
    """True if a type equals another, or is of a kind such as "integral", or of one of several.

    Raises `ValueError` for a string that names no kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, part) for part in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"[isdtype] {kind!r} is no kind; the kinds are {', '.join(KINDS)}")
        return dtype in KINDS[kind]
    return dtype is kind


def result_type(*arrays_and_dtypes: Tensor | DType | Scalar) -> DType:
    """The type in which these are computed together; Python numbers take the tensors' type."""
    strong = [part for part in arrays_and_dtypes if isinstance(part, Tensor | DType)]
    if not strong:
        raise ValueError("[result_type] needs at least one tensor or dtype")
    result = promote(*[_dtype(part) for part in strong])
    for part in arrays_and_dtypes:
        if not isinstance(part, Tensor | DType):
            result = weak_dtype(result, part)
    return result


def _dtype(part: DType | Tensor) -> DType:
    return part.dtype if isinstance(part, Tensor) else part


def promoted(x1: Tensor | Scalar, x2: Tensor | Scalar) -> tuple[Tensor, Tensor]:
    """Two operands, at most one a Python number, as tensors of one type."""
    dtype = result_type(x1, x2)
    device = x1.device if isinstance(x1, Tensor) else x2.device if isinstance(x2, Tensor) else None

    def as_tensor(x: Tensor | Scalar) -> Tensor:
        if isinstance(x, Tensor):
            return x.cast(dtype)
        return Tensor.full((), x, device=device, dtype=dtype)

    return as_tensor(x1), as_tensor(x2)


def total_dtype(dtype: DType) -> DType:
    """The type of a sum or a product: the standard's, which goes by the default integer, int32.

    >>> from ferrule import dtypes
    >>> from ferrule.array_api.data_types import total_dtype
    >>> total_dtype(dtypes.int8), total_dtype(dtypes.uint16), total_dtype(dtypes.int64)
    (dtypes.int32, dtypes.uint32, dtypes.int64)
    """
    if dtypes.is_float(dtype) or dtype.itemsize >= 4:
        return dtype
    return dtypes.uint32 if dtypes.is_unsigned(dtype) else dtypes.int32
