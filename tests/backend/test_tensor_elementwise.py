"""Element-wise operations against NumPy: every dtype, broadcasting, accuracy, special values."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule.dtype import DType, dtypes, promote
from ferrule.tensor import Tensor

RNG = np.random.default_rng(1)
INTEGERS = [d for d in dtypes.all if dtypes.is_int(d)]
FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]
NUMBERS = [dtypes.bool, *INTEGERS, *FLOATS]


def sample(dtype: DType, shape: tuple[int, ...] = (3, 4), zero: bool = True) -> np.ndarray:
    if dtype is dtypes.bool:
        return RNG.random(shape) > 0.5
    if dtypes.is_float(dtype):
        return (RNG.normal(size=shape) * 3).astype(dtype.np)
    low = 0 if dtypes.is_unsigned(dtype) else -20
    values = RNG.integers(low, 20, shape)
    return (values if zero else np.where(values == 0, 3, values)).astype(dtype.np)


def assert_same(tensor: Tensor, expected: np.ndarray) -> None:
    found = tensor.numpy()
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


# *** operators ***


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.name)
def test_exact_operators(device: str, dtype: DType) -> None:
    a, b = sample(dtype), sample(dtype)
    x, y = Tensor(a), Tensor(b)
    for function in (operator.add, operator.mul, operator.lt, operator.le, operator.gt):
        assert_same(function(x, y), function(a, b))
    for function in (operator.ge, operator.eq, operator.ne):
        assert_same(function(x, y), function(a, b))
    assert_same(x.maximum(y), np.maximum(a, b))
    assert_same(x.minimum(y), np.minimum(a, b))
    assert_same((x != y).where(x, y), np.where(a != b, a, b))
    if dtype is not dtypes.bool:
        assert_same(x - y, a - b)
        assert_same(-x, -a)
        assert_same(abs(x), np.abs(a))
        assert_same(x.sign(), np.sign(a))
        assert_same(x.square(), a * a)
        assert_same(x.clamp(1, 5), np.clip(a, 1, 5).astype(a.dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_division(device: str, dtype: DType) -> None:
    a, b = sample(dtype, (200,)), sample(dtype, (200,), zero=False)
    assert_same(Tensor(a) // Tensor(b), a // b)
    assert_same(Tensor(a) % Tensor(b), a % b)
    assert_same(Tensor(a) // 7, a // 7)
    assert_same(Tensor(a) % 7, a % 7)
    assert_same(100 // Tensor(b), dtype.np(100) // b)
    assert_same(100 % Tensor(b), dtype.np(100) % b)
    quotient = (a.astype(np.float32) / b.astype(np.float32)).astype(np.float32)
    assert_same(Tensor(a) / Tensor(b), quotient)


def test_integer_division_by_zero_gives_zero(device: str) -> None:
    x = Tensor([5, -5, 0])
    assert (x // 0).tolist() == [0, 0, 0]
    assert (x % 0).tolist() == [0, 0, 0]
    assert (x % Tensor([0, 3, 0])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_float_division(device: str, dtype: DType) -> None:
    special = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, -7.0, math.inf, -math.inf, math.nan]
    a, b = np.meshgrid(np.array(special, dtype.np), np.array(special, dtype.np))
    with np.errstate(all="ignore"):
        for function in (operator.truediv, operator.floordiv, operator.mod):
            np.testing.assert_array_equal(
                function(Tensor(a), Tensor(b)).numpy(), function(a, b), err_msg=function.__name__
            )
    a, b = sample(dtype, (500,)), sample(dtype, (500,))
    assert_same(Tensor(a) // Tensor(b), a // b)
    np.testing.assert_allclose((Tensor(a) % Tensor(b)).numpy(), a % b, rtol=1e-6)


@pytest.mark.parametrize("dtype", [dtypes.bool, *INTEGERS], ids=lambda d: d.name)
def test_bitwise(device: str, dtype: DType) -> None:
    a, b = sample(dtype), sample(dtype)
    x, y = Tensor(a), Tensor(b)
    for function in (operator.and_, operator.or_, operator.xor):
        assert_same(function(x, y), function(a, b))
    assert_same(~x, ~a)
    if dtype is not dtypes.bool:
        shifts = (np.arange(12).reshape(3, 4) % dtype.bits).astype(dtype.np)
        assert_same(x << Tensor(shifts), a << shifts)
        assert_same(x >> Tensor(shifts), a >> shifts)
        assert_same(x >> 1, a >> 1)
        assert_same(1 << Tensor(shifts), dtype.np(1) << shifts)


@pytest.mark.parametrize("first", NUMBERS, ids=lambda d: d.name)
def test_promotion(device: str, first: DType) -> None:
    for second in NUMBERS:
        result = Tensor(sample(first)) * Tensor(sample(second))
        assert result.dtype is promote(first, second)
        result.realize()


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        (dtypes.float16, 2.5, dtypes.float16),
        (dtypes.bfloat16, 3, dtypes.bfloat16),
        (dtypes.float64, True, dtypes.float64),
        (dtypes.int8, 3, dtypes.int8),
        (dtypes.int64, 2.5, dtypes.float32),
        (dtypes.uint8, True, dtypes.uint8),
        (dtypes.bool, 3, dtypes.int32),
        (dtypes.bool, 0.5, dtypes.float32),
        (dtypes.bool, True, dtypes.bool),
    ],
)
def test_python_numbers_are_weak(device: str, dtype: DType, number: float, expected: DType) -> None:
    x = Tensor(np.ones(2, dtype.np))
    assert (x + number).dtype is expected
    assert (number + x).dtype is expected
    assert (x * number).dtype is expected


def test_reflected_operators(device: str) -> None:
    a = np.array([1, 2, 5], np.int32)
    x = Tensor(a)
    assert (10 - x).tolist() == [9, 8, 5]
    assert (10 / x).tolist() == [10.0, 5.0, 2.0]
    assert (10 // x).tolist() == [10, 5, 2]
    assert (10 % x).tolist() == [0, 0, 0]
    assert (2**x).tolist() == [2, 4, 32]
    assert (6 & x).tolist() == [0, 2, 4]
    assert (a - x).tolist() == [0, 0, 0]  # NumPy leaves it to the tensor
    assert isinstance(a + x, Tensor)
    assert isinstance(np.int32(1) + x, Tensor)
    row = [1, 2, 3]
    assert (row + x).tolist() == [2, 4, 8]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, 4), (4,)),
        ((3, 1), (1, 4)),
        ((2, 1, 4), (3, 1)),
        ((), (2, 2)),
        ((1,), (5,)),
        ((0,), (1,)),
    ],
)
def test_broadcasting(device: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = RNG.normal(size=first), RNG.normal(size=second)
    assert_same(Tensor(a) + Tensor(b), np.asarray(a + b))
    assert_same((Tensor(a) > 0).where(Tensor(b), 1), np.where(a > 0, b, 1))


def test_in_place_operators(device: str) -> None:
    a = np.array([7, 8, 9], np.int32)
    x = Tensor(a)
    same = x
    for function in (
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.ifloordiv,
        operator.imod,
        operator.iand,
        operator.ior,
        operator.ixor,
        operator.ilshift,
        operator.irshift,
        operator.ipow,
    ):
        x = function(x, 3)
        a = function(a, 3)
        assert x is same
        assert x.tolist() == a.tolist(), function.__name__
    y = Tensor([4.0])
    y /= 8
    assert y.tolist() == [0.5]


# *** powers ***


def test_float_powers(device: str) -> None:
    special = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -3.0, 2.5, math.inf, -math.inf, math.nan]
    a, b = np.meshgrid(np.array(special), np.array(special))
    with np.errstate(all="ignore"):
        expected = np.power(a, b)
    np.testing.assert_allclose((Tensor(a) ** Tensor(b)).numpy(), expected, rtol=1e-14)


def test_narrow_quotients_are_rounded_down(device: str) -> None:
    a = np.array([10000, 10000, -10000, 8200, 3.5, 2048, 65504], np.float16)
    b = np.array([7, -7, 7, 3, 0.5, 3, 9], np.float16)
    assert_same(Tensor(a) // Tensor(b), a // b)
    wide = np.array([1000, -1000, 250, 7], np.float32)
    found = (Tensor(wide).cast("bfloat16") // 3.0).cast("float32").numpy()
    np.testing.assert_array_equal(found, Tensor(wide // 3).cast("bfloat16").float().numpy())


def test_filling_integers_with_a_fraction_keeps_the_others(device: str) -> None:
    x, mask = Tensor([16777217, 5]), Tensor([False, True])
    assert_same(x.masked_fill(mask, 2.5), np.array([16777217, 2], np.int32))
    assert_same(x.masked_fill(mask, Tensor(3.0)), np.array([16777217, 3], np.int32))
    assert x.masked_fill(Tensor([[True], [False]]), 1.0).tolist() == [[1, 1], [16777217, 5]]
    assert Tensor([1.0, 2.0]).masked_fill(mask, float("-inf")).tolist() == [1.0, -np.inf]
    assert Tensor.full((2,), 2147483647.5, dtype="int32").tolist() == [2147483647] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_that_are_floats_are_exact(device: str, dtype: Any) -> None:
    bits = np.finfo(dtype).nmant + 1
    pairs = [(b, n) for b in range(1, 60) for n in range(bits) if b**n < 2**bits]
    base, exponent = np.array(pairs, dtype).T
    exact = np.array([b**n for b, n in pairs], dtype)
    np.testing.assert_array_equal((Tensor(base) ** Tensor(exponent)).numpy(), exact)
    np.testing.assert_array_equal((Tensor(1 / exact) ** Tensor(0 * base + 1)).numpy(), 1 / exact)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 40, -1, -2, 0.5, -0.5, 1.5, -2.75])
def test_powers_by_numbers(device: str, exponent: float) -> None:
    a = np.abs(RNG.normal(size=50)) + 0.1
    np.testing.assert_allclose((Tensor(a) ** exponent).numpy(), a**exponent, rtol=1e-13)


def test_integer_powers(device: str) -> None:
    a = np.array([0, 1, -1, 2, -3, 7], np.int32)
    b = np.array([0, 5, 3, 31, 4, 2], np.int32)
    assert_same(Tensor(a) ** Tensor(b), a**b)
    assert_same(Tensor(a) ** 3, a**3)
    assert_same(3 ** Tensor(b), np.int32(3) ** b)
    assert (Tensor([2]) ** Tensor([-1])).tolist() == [0]


# *** functions ***


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])

# The function in float64, the range of the samples, and the error allowed in float32, in ulp.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float, float, float]] = {
    "exp": (np.exp, -86, 88, 3),
    "exp2": (np.exp2, -120, 127, 3),  # NumPy's own has 2.3
    "expm1": (np.expm1, -20, 88, 4),
    "log": (np.log, 1e-30, 1e30, 3),
    "log2": (np.log2, 1e-3, 1e3, 3),
    "log10": (np.log10, 1e-3, 1e3, 4),
    "log1p": (np.log1p, -0.999, 10, 4),
    "sqrt": (np.sqrt, 0, 1e5, 1),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-5, 1e5, 2),
    "reciprocal": (np.reciprocal, 0.1, 10, 1),
    "sin": (np.sin, -30, 30, 3),
    "cos": (np.cos, -30, 30, 4),
    "tan": (np.tan, -1.5, 1.5, 5),
    "tanh": (np.tanh, -12, 12, 6),
    "sinh": (np.sinh, -40, 40, 7),
    "cosh": (np.cosh, -40, 40, 6),
    "sigmoid": (_sigmoid, -80, 80, 5),
    "logsigmoid": (lambda x: -_softplus(-x), -50, 50, 5),
    "softplus": (_softplus, -50, 50, 5),
    "erf": (_erf, -5, 5, 7),
    "silu": (lambda x: x * _sigmoid(x), -40, 40, 6),
    "mish": (lambda x: x * np.tanh(_softplus(x)), -20, 20, 8),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), -20, 20, 4),
    "softsign": (lambda x: x / (1 + np.abs(x)), -20, 20, 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate(device: str, name: str) -> None:
    function, low, high, limit = FUNCTIONS[name]
    rng = np.random.default_rng(0)  # the same samples, whichever tests ran before
    x = np.concatenate([rng.uniform(low, high, 2000), rng.normal(size=500) * 1e-3])
    for dtype, factor in ((np.float32, 1.0), (np.float64, 2.0)):
        points = x[(x >= low) & (x <= high)].astype(dtype)
        wide = points.astype(np.longdouble if name not in ("erf",) else np.float64)
        expected = function(wide)
        found = getattr(Tensor(points), name)().numpy()
        assert found.dtype == dtype
        ulps = np.abs(found - expected) / np.spacing(np.abs(expected).astype(dtype))
        worst = int(np.argmax(ulps))
        assert ulps[worst] <= limit * factor, f"{ulps[worst]} ulp at {points[worst]}"


def test_gelu(device: str) -> None:
    x = np.concatenate([RNG.uniform(-6, 6, 2000), RNG.normal(size=500) * 1e-3])
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    exact = 0.5 * wide * _erfc(-wide / math.sqrt(2))
    found = Tensor(x).gelu("none").numpy()
    assert (np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))).max() < 6
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    approximate = wide * _sigmoid(2 * inner)
    found = Tensor(x).gelu().numpy()
    assert (np.abs(found - approximate) / np.spacing(np.abs(x))).max() < 3
    np.testing.assert_allclose(found, approximate, rtol=1e-5)


ALL_FUNCTIONS = [*FUNCTIONS, "gelu", "quick_gelu", "relu", "relu6", "leaky_relu", "selu", "celu"]
ALL_FUNCTIONS += ["hardtanh", "hardsigmoid", "hardswish", "swish", "abs", "sign", "square"]
LIMITS: dict[str, tuple[float, float]] = {
    "exp": (0, math.inf),
    "exp2": (0, math.inf),
    "expm1": (-1, math.inf),
    "reciprocal": (0, 0),
    "tanh": (-1, 1),
    "sinh": (-math.inf, math.inf),
    "cosh": (math.inf, math.inf),
    "sigmoid": (0, 1),
    "logsigmoid": (-math.inf, 0),
    "softplus": (0, math.inf),
    "erf": (-1, 1),
    "silu": (0, math.inf),
    "swish": (0, math.inf),
    "mish": (0, math.inf),
    "elu": (-1, math.inf),
    "celu": (-1, math.inf),
    "softsign": (-1, 1),
    "gelu": (0, math.inf),
    "quick_gelu": (0, math.inf),
    "relu": (0, math.inf),
    "relu6": (0, 6),
    "hardtanh": (-1, 1),
    "hardsigmoid": (0, 1),
    "hardswish": (0, math.inf),
    "abs": (math.inf, math.inf),
    "sign": (-1, 1),
    "square": (math.inf, math.inf),
}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_limits_at_infinity(device: str, name: str, dtype: type) -> None:
    found = getattr(Tensor(np.array([-np.inf, np.inf, np.nan], dtype)), name)().tolist()
    assert (found[0], found[1]) == LIMITS[name]
    assert math.isnan(found[2])


def test_limits_of_logarithms(device: str) -> None:
    x = Tensor([0.0, math.inf, -1.0])
    for name in ("log", "log2", "log10"):
        zero, infinite, negative = getattr(x, name)().tolist()
        assert (zero, infinite, math.isnan(negative)) == (-math.inf, math.inf, True)
    assert Tensor([-1.0, math.inf]).log1p().tolist() == [-math.inf, math.inf]
    assert Tensor([0.0]).rsqrt().tolist() == [math.inf]


@pytest.mark.parametrize("name", ALL_FUNCTIONS)
def test_narrow_floats_round_once(device: str, name: str) -> None:
    """Within a few units of the last place of the function in float32."""
    low, high = FUNCTIONS[name][1:3] if name in FUNCTIONS else (-3, 3)
    for dtype in (dtypes.float16, dtypes.bfloat16):
        points = RNG.uniform(max(low, -8), min(high, 8), 200).astype(dtype.np)
        found = getattr(Tensor(points), name)()
        assert found.dtype is dtype
        exact = getattr(Tensor(points.astype(np.float32)), name)().numpy()
        np.testing.assert_allclose(
            found.numpy().astype(np.float32), exact, rtol=4 * 2.0**-dtype.mantissa_bits, atol=1e-5
        )


@pytest.mark.parametrize("name", ["exp", "log1p", "sin", "tanh", "sigmoid", "gelu", "sqrt"])
def test_integers_are_computed_as_float32(device: str, name: str) -> None:
    points = np.array([0, 1, 2, 3], np.int64)
    found = getattr(Tensor(points), name)()
    assert found.dtype is dtypes.float32
    np.testing.assert_array_equal(
        found.numpy(), getattr(Tensor(points.astype(np.float32)), name)().numpy()
    )


def test_cos_keeps_its_precision_far_out_and_near_its_zeros(device: str) -> None:
    points = np.array([1e4, 12345.678, 1e6, -3e5, math.pi / 2, 11 * math.pi / 2])
    found = Tensor(points).cos().numpy()
    np.testing.assert_allclose(found, np.cos(points), rtol=1e-9, atol=1e-15)


def test_rounding(device: str) -> None:
    special = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0, 1e30]
    points = np.array([*special, math.inf, -math.inf, math.nan, *RNG.normal(size=50) * 5], "f")
    x = Tensor(points)
    np.testing.assert_array_equal(x.floor().numpy(), np.floor(points))
    np.testing.assert_array_equal(x.ceil().numpy(), np.ceil(points))
    np.testing.assert_array_equal(x.trunc().numpy(), np.trunc(points))
    np.testing.assert_array_equal(x.round().numpy(), np.round(points))
    assert Tensor([1, -2]).floor().dtype is dtypes.int32


def test_truth(device: str) -> None:
    points = np.array([0.0, 1.0, -math.inf, math.inf, math.nan], "f")
    x = Tensor(points)
    assert_same(x.isnan(), np.isnan(points))
    assert_same(x.isinf(), np.isinf(points))
    assert_same(x.isfinite(), np.isfinite(points))
    assert_same(x.logical_not(), np.logical_not(points))
    assert_same(x.logical_and(Tensor([1, 0, 1, 1, 0])), np.logical_and(points, [1, 0, 1, 1, 0]))
    assert_same(x.logical_or(Tensor([1, 0, 1, 1, 0])), np.logical_or(points, [1, 0, 1, 1, 0]))
    other = np.array([1e-9, 1.00001, -math.inf, 1.0, math.nan], "f")
    for nan in (False, True):
        expected = np.isclose(points, other, equal_nan=nan)
        assert_same(x.isclose(Tensor(other), equal_nan=nan), expected)
    assert x.allclose(x, equal_nan=True)
    assert not x.allclose(x)


def test_nan_in_comparisons_and_extremes(device: str) -> None:
    a = np.array([math.nan, 1.0, math.nan, 2.0], "f")
    b = np.array([1.0, math.nan, math.nan, 2.0], "f")
    x, y = Tensor(a), Tensor(b)
    for function in (operator.lt, operator.le, operator.gt, operator.ge):
        assert_same(function(x, y), function(a, b))
    assert_same(x == y, a == b)
    assert_same(x != y, a != b)
    assert_same(x.maximum(y), np.maximum(a, b))
    assert_same(x.minimum(y), np.minimum(a, b))
    assert math.isnan(x.clamp(0, 1).tolist()[0])


def test_choice(device: str) -> None:
    condition = Tensor([True, False])
    assert condition.where(1, 2).tolist() == [1, 2]
    assert condition.where(1, 2.5).dtype is dtypes.float32
    assert condition.where(Tensor([1, 2]), 0).tolist() == [1, 0]
    assert condition.where(0, Tensor([1.5, 2.5])).tolist() == [0.0, 2.5]
    assert condition.where([1, 2], [3, 4]).tolist() == [1, 4]
    assert Tensor([2, 0]).where(1, 0).tolist() == [1, 0]
    assert Tensor([1, 2]).masked_fill([True, False], 9).tolist() == [9, 2]
    assert Tensor([1, 2]).masked_fill(Tensor([True, False]), 9.7).tolist() == [9, 2]


# *** types ***


def test_casts(device: str) -> None:
    points = np.array([0.0, 1.5, -1.5, 100.7, 2.0])
    x = Tensor(points)
    for dtype in NUMBERS:
        if dtypes.is_unsigned(dtype):
            continue
        assert_same(x.cast(dtype), points.astype(dtype.np))
    assert_same(Tensor([-1, 256]).cast("uint8"), np.array([255, 0], np.uint8))
    for name, dtype in [("float", "float32"), ("half", "float16"), ("int", "int32")]:
        assert getattr(x, name)().dtype.name == dtype
    for name, dtype in [("long", "int64"), ("bool", "bool"), ("double", "float64")]:
        assert getattr(x, name)().dtype.name == dtype
    assert x.bfloat16().dtype is dtypes.bfloat16
    assert x.cast(x.dtype) is x


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_small_negative_floats_wrap_in_unsigned_types(device: str, kind: str, source: str) -> None:
    for size in (3, 50):  # one after the other, and in vectors
        x = np.resize(np.array([-1.0, -2.5, 200.0, -0.5, -100.0]), size).astype(source)
        expected = x.astype(np.int64).astype(kind)
        np.testing.assert_array_equal(Tensor(x).cast(kind).numpy(), expected)


def test_bitcast(device: str) -> None:
    points = RNG.normal(size=10).astype("f")
    assert_same(Tensor(points).bitcast(dtypes.uint32), points.view(np.uint32))
    assert_same(Tensor(points).bitcast(dtypes.int32).bitcast(dtypes.float32), points)


@pytest.mark.parametrize("dtype", [dtypes.float8_e4m3, dtypes.float8_e5m2])
def test_float8_is_computed_in_float32_and_rounded(device: str, dtype: DType) -> None:
    values = np.linspace(-3, 3, 64, dtype=np.float32).astype(dtype.np)
    x = Tensor(values, device=device)
    wide = values.astype(np.float32)
    for found, expected in ((x + 1, wide + 1), (x * x, wide * wide), (x.exp(), np.exp(wide))):
        assert found.dtype is dtype
        rounded = expected.astype(dtype.np).astype(np.float32)
        np.testing.assert_array_equal(found.numpy().astype(np.float32), rounded)
    assert x.sum().item() == pytest.approx(wide.sum(), abs=0.2)
    assert x.cast(dtypes.bool).tolist() == (wide != 0).tolist()


def test_a_tensor_without_axes_is_a_tensor(device: str) -> None:
    """The dtype of a result does not depend on shapes: the array API's rule, and NumPy's."""
    pairs = [("float32", "float64"), ("float16", "float32"), ("int8", "int64"), ("int32", "uint8")]
    for wide, lone in pairs:
        for shape in ((3,), (1, 2), ()):
            a, b = np.ones(shape, wide), np.ones((), lone)
            expected = (np.ones((1,), wide) * np.ones((1,), lone)).dtype
            assert (Tensor(a) * Tensor(b)).dtype.np == (Tensor(b) * Tensor(a)).dtype.np == expected
            assert (Tensor(a) < 1).where(Tensor(a), Tensor(b)).dtype.np == expected
            assert Tensor(a).maximum(Tensor(b)).dtype.np == expected
            # Numbers have no dtype of their own.
            assert (Tensor(a) * 2).dtype.np == Tensor(a).dtype.np
            assert (Tensor(a) * b[()]).dtype.np == Tensor(a).dtype.np
    mapped = ferrule.vmap(lambda x, y: x * y)(Tensor(np.ones(2, "f")), Tensor(np.ones(2, "d")))
    assert mapped.dtype is dtypes.float64
    assert (Tensor([1.0]) * Tensor(2.0, dtype=dtypes.float64)).dtype is dtypes.float64
