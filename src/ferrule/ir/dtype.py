"""Number types: `DType`, the namespace `dtypes`, and the rules for mixing them.

A `DType` exists once, so it is compared and hashed by identity. NumPy, and ml_dtypes for the types
that NumPy lacks, are imported only when a type's `np` is asked for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable
from functools import cache, cached_property
from typing import Any, Final, final

from ferrule.base.records import dataclass


class DTypeError(TypeError):
    """A number type that ferrule does not have, or that does not fit its use."""


_by_name: dict[str, DType] = {}


@final
@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """One number type. Tensors have those in `dtypes`, and there is one object for each.

    `fmt` is the format letter of `struct` and `memoryview`, None where they have none.
    `numpy_path` names the scalar type, `module.name`. The two bit counts describe floats, and are
    0 for all others.
    """

    priority: int
    itemsize: int
    name: str
    fmt: str | None
    numpy_path: str
    exponent_bits: int = 0
    mantissa_bits: int = 0

    def __post_init__(self) -> None:
        if self.name in _by_name:
            raise DTypeError(f"DType({self.name!r}) exists already; use dtypes.{self.name}")
        _by_name[self.name] = self

    @cached_property
    def np(self) -> type[Any]:
        """The NumPy scalar type, such as `numpy.float32` or `ml_dtypes.bfloat16`."""
        from importlib import import_module

        module, _, attribute = self.numpy_path.rpartition(".")
        scalar_type: type[Any] = getattr(import_module(module), attribute)
        return scalar_type

    @property
    def dtype(self) -> Any:
        """The `numpy.dtype`, where NumPy looks for it: `np.zeros(3, x.dtype)`.

        >>> import numpy as np
        >>> np.zeros(3, dtypes.float64).dtype
        dtype('float64')
        """
        from numpy import dtype

        return dtype(self.np)

    @property
    def bits(self) -> int:
        """The width in bits."""
        return 8 * self.itemsize

    @property
    def numpy_name(self) -> str:
        """The name of the scalar type without its module."""
        return self.numpy_path.rpartition(".")[2].rstrip("_")

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (dtype_from_name, (self.name,))


def dtype_from_name(name: str) -> DType:
    """The DType called `name`, aliases included; raises `DTypeError` with the nearest names.

    >>> dtype_from_name("half")
    dtypes.float16
    """
    found = _by_name.get(name) or _aliases.get(name)
    if found is None:
        raise DTypeError(_unknown_name(name))
    return found


def _unknown_name(name: object) -> str:
    from difflib import get_close_matches

    names = [dtype.name for dtype in dtypes.all]
    nearest = get_close_matches(str(name), [*names, *_aliases], cutoff=0.5)
    if nearest:
        return f"no dtype is called {name!r}; did you mean {', '.join(nearest)}?"
    return f"no dtype is called {name!r}; the dtypes are {', '.join(names)}"


def largest_finite(dtype: DType) -> float:
    """The largest number of a float type that is no infinity."""
    if dtype is dtypes.float8_e4m3:
        return 448.0  # the bit pattern above it is NaN: this format has no infinity
    largest_exponent = (1 << (dtype.exponent_bits - 1)) - 1
    return math.ldexp(2.0 - math.ldexp(1.0, -dtype.mantissa_bits), largest_exponent)


_NAN: Final = math.nan
_NEGATIVE_NAN: Final = -math.nan


def exact(value: object) -> Hashable:
    """A key that is equal for two literals of the same type and the same bits.

    `==` is no such key: 1 equals True and 1.0, 0.0 equals -0.0, and no NaN equals itself.

    >>> exact(0.0) == exact(-0.0), exact(math.nan) == exact(math.nan), exact(1) == exact(True)
    (False, True, False)
    """
    if isinstance(value, float):
        return struct.pack("<d", value)
    return (type(value).__name__, value)


def shown(value: object) -> str:
    """A literal as text that differs if `exact` differs: the sign of a NaN is shown.

    >>> shown(-math.nan), shown(-0.0), shown(1)
    ('-nan', '-0.0', '1')
    """
    if isinstance(value, float) and value != value and math.copysign(1.0, value) < 0:
        return "-nan"
    return repr(value)


def _round_float(dtype: DType, value: float) -> float:
    """The nearest value that `dtype` holds, ties to even, with its subnormals and overflow.

    A NaN keeps its sign, and loses its payload. There is one object for each of the two, so that
    what is equal but for identity, such as a tuple, is the same where the bits are.
    """
    if value != value:
        return _NAN if math.copysign(1.0, value) > 0 else _NEGATIVE_NAN
    if dtype is dtypes.float64 or value == 0:
        return value
    if dtype is dtypes.float8_e4m3:
        overflow = _NAN if value > 0 else _NEGATIVE_NAN
    else:
        overflow = math.copysign(math.inf, value)
    if math.isinf(value):
        return overflow
    exponent = math.frexp(value)[1] - 1
    smallest_normal = 2 - (1 << (dtype.exponent_bits - 1))
    unit = max(exponent, smallest_normal) - dtype.mantissa_bits
    rounded = math.ldexp(round(math.ldexp(value, -unit)), unit)
    if abs(rounded) > largest_finite(dtype):
        return overflow
    return math.copysign(rounded, value)


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return math.copysign(math.inf, 1 if value > 0 else -1)


def _wrap_int(dtype: DType, value: float) -> int:
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    low_bits = int(value) & ((1 << dtype.bits) - 1)
    sign_bit = 1 << (dtype.bits - 1)
    if dtypes.is_unsigned(dtype) or low_bits < sign_bit:
        return low_bits
    return low_bits - (1 << dtype.bits)


def truncate(dtype: DType, value: float) -> bool | int | float:
    """`value` as `dtype` would hold it: rounded, wrapped to the width, or compared with zero.

    A float given to an integer type drops its fraction first; infinities and NaN become 0.

    >>> truncate(dtypes.uint8, 257), truncate(dtypes.int8, 200), truncate(dtypes.float16, 0.1)
    (1, -56, 0.0999755859375)
    """
    if dtype is dtypes.bool:
        return bool(value)
    if dtypes.is_float(dtype):
        return _round_float(dtype, _to_float(value))
    return _wrap_int(dtype, value)


def check_range(number: float, dtype: DType) -> None:
    """Raises `OverflowError` if an integer type cannot hold a number that is given for it.

    A fraction is cut off, as in a cast. Floats take any number: too large ones are infinite.

    >>> check_range(255.5, dtypes.uint8)
    >>> check_range(300, dtypes.uint8)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    OverflowError: 300 does not fit dtypes.uint8 (0 to 255); ...
    """
    if dtype.exponent_bits or dtype is dtypes.bool:
        return
    if not dtypes.min(dtype) - 1 < number < dtypes.max(dtype) + 1:
        raise OverflowError(
            f"{number} does not fit {dtype} ({dtypes.min(dtype)} to {dtypes.max(dtype)}); "
            "use a wider dtype, or cast the tensor first"
        )


def _join_floats(floats: Iterable[DType]) -> DType:
    """The narrowest float type that holds every value of all of `floats` exactly."""
    distinct = set(floats)
    exponent_bits = max(dtype.exponent_bits for dtype in distinct)
    mantissa_bits = max(dtype.mantissa_bits for dtype in distinct)
    return next(
        dtype
        for dtype in dtypes.all
        if dtype.exponent_bits >= exponent_bits and dtype.mantissa_bits >= mantissa_bits
    )


def _join_ints(ints: Iterable[DType]) -> DType:
    """The narrowest integer type that holds all of `ints`; the default float where none does."""
    distinct = set(ints)
    unsigned = max((d.itemsize for d in distinct if dtypes.is_unsigned(d)), default=0)
    signed = max((d.itemsize for d in distinct if not dtypes.is_unsigned(d)), default=0)
    if not signed:
        return dtype_from_name(f"uint{8 * unsigned}")
    width = 8 * max(signed, 2 * unsigned)
    if width > dtypes.int64.bits:
        return dtypes.default_float
    return dtype_from_name(f"int{width}")


@cache
def promote(*operands: DType) -> DType:
    """The type in which values of the types `operands` are computed together.

    The kind decides first (bool < int < float), the width second, and no value takes part.
    float16 with bfloat16 gives float32, uint8 with int8 gives int16. No integer type holds both
    uint64 and a signed one: the result is the default float, as in JAX. The order of `operands`
    does not matter.

    >>> promote(dtypes.int64, dtypes.float16), promote(dtypes.uint8, dtypes.int8)
    (dtypes.float16, dtypes.int16)
    """
    if not operands:
        raise DTypeError("promote() needs at least one dtype")
    floats = [dtype for dtype in operands if dtypes.is_float(dtype)]
    if floats:
        return _join_floats(floats)
    ints = [dtype for dtype in operands if dtype is not dtypes.bool]
    return _join_ints(ints) if ints else dtypes.bool


def sum_dtype(dtype: DType) -> DType:
    """The type of a sum over values of `dtype`: int64 for bool and integers; floats keep theirs.

    int64 also for unsigned ones, as in PyTorch, since the difference of two sums may be negative;
    only sums of uint64 are uint64.

    >>> sum_dtype(dtypes.bool), sum_dtype(dtypes.uint8), sum_dtype(dtypes.float16)
    (dtypes.int64, dtypes.int64, dtypes.float16)
    """
    if dtypes.is_float(dtype) or dtype is dtypes.uint64:
        return dtype
    return dtypes.int64


def compute_dtype(dtype: DType) -> DType:
    """The type that values of `dtype` are computed and added up in: float32 for narrower floats.

    >>> compute_dtype(dtypes.bfloat16), compute_dtype(dtypes.float64), compute_dtype(dtypes.int8)
    (dtypes.float32, dtypes.float64, dtypes.int8)
    """
    return dtypes.float32 if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype


class _Functions:
    """The functions of `dtypes`, apart from it: its members hide `bool`, `int` and `float`."""

    promote = staticmethod(promote)
    sum_dtype = staticmethod(sum_dtype)
    truncate = staticmethod(truncate)
    from_name = staticmethod(dtype_from_name)

    @staticmethod
    def is_float(dtype: DType) -> bool:
        """True for a floating-point type."""
        return dtype.exponent_bits > 0

    @staticmethod
    def is_int(dtype: DType) -> bool:
        """True for an integer type, signed or not; False for bool."""
        return dtype.exponent_bits == 0 and dtype is not dtypes.bool

    @staticmethod
    def is_unsigned(dtype: DType) -> bool:
        """True for an unsigned integer type."""
        return dtype.name.startswith("uint")

    @staticmethod
    def from_np(numpy_dtype: Any) -> DType:
        """The DType of a NumPy dtype, or of anything that `numpy.dtype` accepts.

        Raises `DTypeError` for types that ferrule lacks and for foreign byte orders.
        """
        import numpy

        described = numpy.dtype(numpy_dtype)
        known = _by_numpy_dtype.get(described)  # NumPy makes the name anew each time
        if known is not None:
            return known
        if not described.isnative:
            raise DTypeError(
                f"NumPy dtype {described.str!r} is not in this machine's byte order; "
                "convert it first with array.astype(array.dtype.newbyteorder('='))"
            )
        found = _by_numpy_name.get(described.name)
        if found is None:
            raise DTypeError(
                f"NumPy dtype {described.name!r} has no ferrule dtype; "
                f"convert it first to one of {', '.join(dtype.name for dtype in dtypes.all)}"
            )
        _by_numpy_dtype[described] = found
        return found

    @staticmethod
    def min(dtype: DType) -> bool | int | float:
        """The identity of MAX: no value of `dtype` is smaller."""
        if dtype is dtypes.bool:
            return False
        if dtype is dtypes.float8_e4m3:
            return -largest_finite(dtype)
        if dtypes.is_float(dtype):
            return -math.inf
        return 0 if dtypes.is_unsigned(dtype) else -(1 << (dtype.bits - 1))

    @staticmethod
    def max(dtype: DType) -> bool | int | float:
        """The identity of MIN: no value of `dtype` is larger."""
        if dtype is dtypes.bool:
            return True
        if dtype is dtypes.float8_e4m3:
            return largest_finite(dtype)
        if dtypes.is_float(dtype):
            return math.inf
        value_bits = dtype.bits if dtypes.is_unsigned(dtype) else dtype.bits - 1
        return (1 << value_bits) - 1


@final
class dtypes(_Functions):
    """All number types, and the questions one may ask about them.

    `float8_e4m3` is the OCP format, which ml_dtypes calls float8_e4m3fn: it has no infinity, and
    its largest value is 448.

    >>> dtypes.float is dtypes.float32, dtypes.is_int(dtypes.uint8), dtypes.max(dtypes.int16)
    (True, True, 32767)
    """

    bool = DType(0, 1, "bool", "?", "numpy.bool_")
    int8 = DType(1, 1, "int8", "b", "numpy.int8")
    uint8 = DType(2, 1, "uint8", "B", "numpy.uint8")
    int16 = DType(3, 2, "int16", "h", "numpy.int16")
    uint16 = DType(4, 2, "uint16", "H", "numpy.uint16")
    int32 = DType(5, 4, "int32", "i", "numpy.int32")
    uint32 = DType(6, 4, "uint32", "I", "numpy.uint32")
    int64 = DType(7, 8, "int64", "q", "numpy.int64")
    uint64 = DType(8, 8, "uint64", "Q", "numpy.uint64")
    float8_e4m3 = DType(9, 1, "float8_e4m3", None, "ml_dtypes.float8_e4m3fn", 4, 3)
    float8_e5m2 = DType(10, 1, "float8_e5m2", None, "ml_dtypes.float8_e5m2", 5, 2)
    float16 = DType(11, 2, "float16", "e", "numpy.float16", 5, 10)
    bfloat16 = DType(12, 2, "bfloat16", None, "ml_dtypes.bfloat16", 8, 7)
    float32 = DType(13, 4, "float32", "f", "numpy.float32", 8, 23)
    float64 = DType(14, 8, "float64", "d", "numpy.float64", 11, 52)

    all = tuple(_by_name.values())

    char = int8
    uchar = uint8
    short = int16
    ushort = uint16
    int = int32
    uint = uint32
    long = int64
    ulong = uint64
    half = float16
    float = float32
    double = float64

    default_float = float32
    default_int = int32


_aliases: dict[str, DType] = {
    "char": dtypes.char,
    "uchar": dtypes.uchar,
    "short": dtypes.short,
    "ushort": dtypes.ushort,
    "int": dtypes.int,
    "uint": dtypes.uint,
    "long": dtypes.long,
    "ulong": dtypes.ulong,
    "half": dtypes.half,
    "float": dtypes.float,
    "double": dtypes.double,
}
_by_numpy_name = {dtype.numpy_name: dtype for dtype in dtypes.all}
_by_numpy_dtype: dict[Any, DType] = {}  # those that were looked up
