"""Number types against NumPy, ml_dtypes and the promotion of JAX and PyTorch."""

import copy
import itertools
import math
import pickle
import struct

import ml_dtypes
import numpy
import pytest

from ferrule.dtype import (
    DType,
    DTypeError,
    check_range,
    compute_dtype,
    dtypes,
    exact,
    promote,
    shown,
    sum_dtype,
    truncate,
)

FLOATS = [dtype for dtype in dtypes.all if dtypes.is_float(dtype)]
INTS = [dtype for dtype in dtypes.all if dtypes.is_int(dtype)]


@pytest.mark.parametrize("dtype", dtypes.all, ids=repr)
def test_numpy_agrees(dtype: DType) -> None:
    scalar = numpy.dtype(dtype.np)
    assert scalar.itemsize == dtype.itemsize
    assert dtypes.from_np(scalar) is dtype
    assert dtypes.from_np(dtype.np) is dtype
    assert dtypes.from_name(dtype.name) is dtype
    if dtype.fmt is not None:
        assert struct.calcsize(f"={dtype.fmt}") == dtype.itemsize
        assert numpy.zeros(1, scalar).data.itemsize == dtype.itemsize
        assert numpy.dtype(dtype.fmt) == scalar


@pytest.mark.parametrize("dtype", dtypes.all, ids=repr)
def test_there_is_one_of_each(dtype: DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.copy(dtype) is copy.deepcopy(dtype) is dtype
    assert repr(dtype) == f"dtypes.{dtype.name}"
    assert len({dtype, copy.copy(dtype)}) == 1


def test_kinds() -> None:
    assert not dtypes.is_int(dtypes.bool)
    assert not dtypes.is_float(dtypes.bool)
    assert all(dtypes.is_int(dtype) != dtypes.is_float(dtype) for dtype in dtypes.all[1:])
    unsigned = [dtype.name for dtype in dtypes.all if dtypes.is_unsigned(dtype)]
    assert unsigned == ["uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", INTS, ids=repr)
def test_integer_limits(dtype: DType) -> None:
    limits = numpy.iinfo(dtype.np)
    assert (dtypes.min(dtype), dtypes.max(dtype)) == (limits.min, limits.max)


def test_other_limits() -> None:
    assert dtypes.min(dtypes.bool) is False
    assert dtypes.max(dtypes.bool) is True
    assert dtypes.min(dtypes.float16) == -math.inf
    assert dtypes.max(dtypes.float64) == math.inf
    assert dtypes.min(dtypes.float8_e4m3) == ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).min
    assert dtypes.max(dtypes.float8_e4m3) == ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max


AWKWARD = [
    0.0, -0.0, 1.0, 0.1, -1 / 3, 1e-3, 2.0**-9, 2.0**-10, 3 * 2.0**-11, 1e-8, 1e-40, 1e-46, 1e-320,
    240.0, 448.0, 464.0, 465.0, 57344.0, 61439.9, 61440.0, 65504.0, 65519.9, 65520.0, 3.39e38,
    3.4028235e38, 3.4028236e38, 1e39, 1e300, math.inf, -math.inf, math.nan, 257.0, 1.0000001, 16.5,
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("value", AWKWARD)
def test_truncate_rounds_floats_as_numpy(dtype: DType, value: float) -> None:
    with numpy.errstate(over="ignore"):
        expected = float(numpy.float64(value).astype(dtype.np))
    found = truncate(dtype, value)
    numpy.testing.assert_equal(found, expected)
    assert math.isnan(expected) or math.copysign(1, found) == math.copysign(1, expected)


def test_truncate_rounds_once() -> None:
    """Just above a tie of bfloat16: by way of float32 it would become the tie, and round down."""
    assert truncate(dtypes.bfloat16, 1 + 2.0**-8 + 2.0**-40) == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", INTS, ids=repr)
@pytest.mark.parametrize("value", [0, 1, -1, 127, 128, 255, 256, -129, 2**31, 2**40 + 3, 2**64 - 1])
def test_truncate_wraps_integers_as_numpy(dtype: DType, value: int) -> None:
    low_bits = numpy.array(value & (2**64 - 1), numpy.uint64)
    assert truncate(dtype, value) == int(low_bits.astype(dtype.np))


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int32, dtypes.int64], ids=repr)
@pytest.mark.parametrize("value", [0.9, -0.9, 1.5, -1.5, 100.99])
def test_truncate_drops_the_fraction(dtype: DType, value: float) -> None:
    assert truncate(dtype, value) == int(numpy.float64(value).astype(dtype.np))


def test_truncate_of_extremes() -> None:
    assert truncate(dtypes.int32, math.nan) == truncate(dtypes.int32, -math.inf) == 0
    assert truncate(dtypes.float32, 10**400) == math.inf
    assert truncate(dtypes.float64, -(10**400)) == -math.inf
    assert truncate(dtypes.bool, math.nan) is True
    assert truncate(dtypes.bool, 0.0) is False


@pytest.mark.parametrize(
    ("names", "result"),
    [
        ("bool", "bool"),
        ("bool uint8", "uint8"),
        ("uint8 int8", "int16"),
        ("uint16 int8", "int32"),
        ("uint32 int16", "int64"),
        ("uint8 int32", "int32"),
        ("uint64 bool", "uint64"),
        ("uint64 int8", "float32"),
        ("int64 float16", "float16"),
        ("uint64 int64 float16", "float16"),
        ("float16 bfloat16", "float32"),
        ("bfloat16 float32", "float32"),
        ("float32 float64", "float64"),
        ("bool float8_e4m3", "float8_e4m3"),
        ("float8_e4m3 float8_e5m2", "float16"),
        ("float8_e5m2 bfloat16", "bfloat16"),
    ],
)
def test_promotion(names: str, result: str) -> None:
    operands = [dtypes.from_name(name) for name in names.split()]
    for order in itertools.permutations(operands):
        assert promote(*order) is dtypes.from_name(result)


@pytest.mark.parametrize("left", [dtypes.bool, *INTS], ids=repr)
@pytest.mark.parametrize("right", [dtypes.bool, *INTS], ids=repr)
def test_promotion_of_integers_is_numpys(left: DType, right: DType) -> None:
    expected = numpy.promote_types(left.np, right.np)
    assert promote(left, right) is dtypes.from_np("f4" if expected.kind == "f" else expected)


@pytest.mark.parametrize("left", FLOATS, ids=repr)
@pytest.mark.parametrize("right", FLOATS, ids=repr)
def test_promotion_of_floats_loses_nothing(left: DType, right: DType) -> None:
    result = promote(left, right)
    for operand in (left, right):
        smallest = 2.0 ** (2 - 2 ** (operand.exponent_bits - 1) - operand.mantissa_bits)
        largest = (2 - 2.0**-operand.mantissa_bits) * 2.0 ** (2 ** (operand.exponent_bits - 1) - 1)
        for value in (smallest, 1 + 2.0**-operand.mantissa_bits, truncate(operand, largest)):
            numpy.testing.assert_equal(truncate(result, value), value)


def test_promotion_of_nothing() -> None:
    with pytest.raises(DTypeError, match=r"promote\(\) needs at least one dtype"):
        promote()


@pytest.mark.parametrize(
    ("operand", "result"),
    [("bool", "int64"), ("int16", "int64"), ("uint32", "int64"), ("uint64", "uint64")],
)
def test_sums_widen(operand: str, result: str) -> None:
    assert sum_dtype(dtypes.from_name(operand)) is dtypes.from_name(result)


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_sums_of_floats_keep_their_type(dtype: DType) -> None:
    assert sum_dtype(dtype) is dtype


def test_floats_narrower_than_float32_are_computed_in_it() -> None:
    narrow = {"float16", "bfloat16", "float8_e4m3", "float8_e5m2"}
    assert {dtype.name for dtype in dtypes.all if compute_dtype(dtype) is not dtype} == narrow
    for name in narrow:
        assert compute_dtype(dtypes.from_name(name)) is dtypes.float32


def test_aliases() -> None:
    assert (dtypes.half, dtypes.float, dtypes.double) == (
        dtypes.float16,
        dtypes.float32,
        dtypes.float64,
    )
    assert (dtypes.int, dtypes.long) == (dtypes.int32, dtypes.int64)
    assert dtypes.from_name("double") is dtypes.float64
    assert (dtypes.default_float, dtypes.default_int) == (dtypes.float32, dtypes.int32)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: dtypes.from_name("flaot32"), "no dtype is called 'flaot32'; did you mean float32"),
        (lambda: dtypes.from_name("?"), "no dtype is called '\\?'; the dtypes are bool, int8"),
        (lambda: dtypes.from_np("complex64"), "'complex64' has no ferrule dtype; convert it first"),
        (lambda: dtypes.from_np(">f4"), "'>f4' is not in this machine's byte order"),
        (lambda: DType(0, 1, "bool", "?", "numpy.bool_"), "exists already; use dtypes.bool"),
    ],
)
def test_mistakes(mistake: object, message: str) -> None:
    assert callable(mistake)
    with pytest.raises(DTypeError, match=message):
        mistake()


_LITERALS = [0.0, -0.0, 0, 1, 1.0, True, False, math.nan, -math.nan, math.inf, -math.inf, "1", None]


def test_literals_are_told_apart_by_type_and_bits() -> None:
    assert len({exact(literal) for literal in _LITERALS}) == len(_LITERALS)
    assert exact(float("nan")) == exact(math.nan)
    floats = [literal for literal in _LITERALS if isinstance(literal, float)]
    assert len({shown(literal) for literal in floats}) == len(floats)


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if dtypes.is_float(d)], ids=repr)
def test_nan_keeps_its_sign_in_every_float(dtype: DType) -> None:
    payload = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_1234))[0]
    for literal in (math.nan, payload):
        for sign in (1.0, -1.0):
            found = truncate(dtype, math.copysign(literal, sign))
            assert math.isnan(found)
            assert math.copysign(1.0, found) == sign
            assert found is truncate(dtype, math.copysign(math.nan, sign))  # one object for each


def test_what_float8_has_no_infinity_for_is_nan_of_that_sign() -> None:
    for literal in (-math.inf, -1e6):
        assert shown(truncate(dtypes.float8_e4m3, literal)) == "-nan"
        assert shown(truncate(dtypes.float8_e4m3, -literal)) == "nan"


def test_the_range_of_a_literal() -> None:
    for dtype in dtypes.all:
        if dtypes.is_int(dtype):
            low, high = dtypes.min(dtype), dtypes.max(dtype)
            check_range(low, dtype)
            check_range(high, dtype)
            for wrong in (low - 1, high + 1, math.inf, -math.inf, math.nan, 10**400):
                with pytest.raises(OverflowError, match="does not fit"):
                    check_range(wrong, dtype)
        else:
            check_range(10**400, dtype)
