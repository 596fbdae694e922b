"""The errors that docstrings state, in units in the last place, over the range of each type.

A docstring's line "Error: at most 1.5 ulp in float32, 2 in float64." is the bound that is tested
here, against NumPy's longer float or mpmath. The narrow types compute in a wider one and round
once: all their 65,536 values are compared with float64.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from ferrule.dtype import DType, dtypes
from ferrule.tensor import Tensor

Array = np.ndarray[Any, Any]
LONG = np.longdouble
# Without a longer type the reference itself may be half a unit off.
SLACK = 0.0 if np.finfo(LONG).nmant > 60 else 0.6
FLOATS = [dtypes.float32, dtypes.float64]
NARROW = [dtypes.float16, dtypes.bfloat16]
INF = float("inf")


# *** references ***


def exactly(function: Callable[[Any], Any], precision: int = 120) -> Callable[[Array], Array]:
    """mpmath's function, of each element, as the sum of two floats."""

    def reference(x: Array) -> Array:
        with mpmath.workprec(precision):
            values = [function(mpmath.mpf(float(element))) for element in x]
            high = [float(value) for value in values]
            low = [
                float(value - part) if np.isfinite(part) else 0.0
                for value, part in zip(values, high, strict=True)
            ]
        return np.array(high, LONG) + np.array(low, LONG)

    return reference


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def selu(x: Array) -> Array:
    alpha, gamma = (
        LONG("1.6732632423543772848170429916717"),
        LONG("1.0507009873554804934193349852946"),
    )
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def ndtri(p: Any) -> Any:
    """By Newton's steps on the logarithm, where mpmath's inverse would need many digits."""
    tail = min(p, 1 - p)
    if tail > 1e-4:
        size = mpmath.erfinv(1 - 2 * tail)
    else:
        root = mpmath.sqrt(-mpmath.log(tail))
        size = root - mpmath.log(2 * root * mpmath.sqrt(mpmath.pi)) / (2 * root)
        for _ in range(8):
            rest = mpmath.erfc(size)
            slope = mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(size * size) * rest
            size += mpmath.log(rest / (2 * tail)) * slope
    return mpmath.sqrt(2) * (-size if p < 0.5 else size)


def log_ndtr(x: Any) -> Any:
    return (
        mpmath.log1p(-mpmath.erfc(x / mpmath.sqrt(2)) / 2) if x > 0 else mpmath.log(mpmath.ncdf(x))
    )


@dataclass(frozen=True)
class Case:
    """A function's reference, and where its bound holds."""

    reference: Callable[[Array], Array]
    low: float = -INF
    high: float = INF
    low_float32: float | None = None  # where it is another one there
    args: tuple[Any, ...] = ()

    def lowest(self, dtype: DType) -> float:
        narrow = dtype is not dtypes.float64 and self.low_float32 is not None
        return self.low_float32 if narrow and self.low_float32 is not None else self.low


CASES: dict[str, Case] = {
    "sqrt": Case(np.sqrt, 0),
    "rsqrt": Case(lambda x: 1 / np.sqrt(x), 0),
    "reciprocal": Case(lambda x: 1 / x),
    "exp": Case(np.exp),
    "exp2": Case(np.exp2),
    "expm1": Case(np.expm1),
    "log": Case(np.log, 0),
    "log2": Case(np.log2, 0),
    "log10": Case(np.log10, 0),
    "log1p": Case(np.log1p, -1),
    "cbrt": Case(np.cbrt),
    "sin": Case(np.sin),
    "cos": Case(np.cos),
    "tan": Case(np.tan),
    "sinh": Case(np.sinh),
    "cosh": Case(np.cosh),
    "tanh": Case(np.tanh),
    "asin": Case(np.arcsin, -1, 1),
    "acos": Case(np.arccos, -1, 1),
    "atan": Case(np.arctan),
    "asinh": Case(np.arcsinh),
    "acosh": Case(np.arccosh, 1),
    "atanh": Case(np.arctanh, -1, 1),
    "sigmoid": Case(sigmoid, -709.7, INF, -88.7),
    "silu": Case(lambda x: x * sigmoid(x), -709.7, INF, -88.7),
    "softplus": Case(softplus),
    "logsigmoid": Case(lambda x: -softplus(-x)),
    "mish": Case(lambda x: x * np.tanh(softplus(x)), -708, INF, -87),
    "elu": Case(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "celu": Case(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "selu": Case(selu),
    "quick_gelu": Case(lambda x: x * sigmoid(LONG("1.702") * x), -5),
    "gelu": Case(exactly(lambda x: x * mpmath.ncdf(x)), -12, 30, args=("none",)),
    "softsign": Case(lambda x: x / (1 + np.abs(x))),
    "erf": Case(exactly(mpmath.erf), -8, 8),
    "erfc": Case(exactly(mpmath.erfc), -8, 27),
    "erfinv": Case(exactly(mpmath.erfinv), -1, 1),
    "ndtr": Case(exactly(mpmath.ncdf), -37, 37),
    "ndtri": Case(exactly(ndtri), 0, 1),
    "log_ndtr": Case(exactly(log_ndtr), -1e6, 30),
    "erfcx": Case(exactly(lambda x: mpmath.exp(x * x) * mpmath.erfc(x)), -26, 1e4),
    "i0": Case(exactly(lambda x: mpmath.besseli(0, x)), -700, 700),
    "i1": Case(exactly(lambda x: mpmath.besseli(1, x)), -700, 700),
    "i0e": Case(exactly(lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x))), -1e4, 1e4),
    "i1e": Case(exactly(lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x))), -1e4, 1e4),
    "logit": Case(exactly(lambda p: mpmath.log(p / (1 - p)), 300), 0, 1),
    "tanhshrink": Case(exactly(lambda x: x - mpmath.tanh(x), 2500), -20, 20),
    "sinc": Case(exactly(mpmath.sincpi), -20, 20),
    "lgamma": Case(exactly(mpmath.loggamma), 0, 60),
    "digamma": Case(exactly(mpmath.digamma), 0, 60),
}
SLOW = {name for name, case in CASES.items() if case.reference.__name__ == "reference"}
STATED = re.compile(r"Error[^:.]*: at most ([\d.]+) ulp in float32, ([\d.]+) in float64")


def stated(name: str, dtype: DType) -> float:
    """The bound in the docstring of a method."""
    documentation = " ".join((getattr(Tensor, name).__doc__ or "").split())
    found = STATED.search(documentation)
    assert found, f"the docstring of {name} states no error"
    return float(found[1 if dtype is dtypes.float32 else 2])


# *** samples ***


def unit(exact: Array, dtype: DType) -> Array:
    """One unit in the last place that `dtype` has at numbers of this size."""
    info = ml_dtypes.finfo(dtype.np)
    exponent = np.maximum(np.frexp(exact)[1] - 1, info.minexp)
    return np.ldexp(np.ones_like(exact), exponent - info.nmant)


def errors(found: Array, exact: Array, dtype: DType) -> Array:
    """The errors in ulp: 0 where infinities, NaN and what rounds to infinity agree."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype.np)
        agree = (found == rounded) & ~np.isfinite(rounded.astype(np.float64))
        agree |= np.isnan(found.astype(np.float64)) & np.isnan(exact)
        distance = np.abs(found.astype(exact.dtype) - exact) / unit(exact, dtype)
    distance[agree] = 0
    return np.where(np.isnan(distance), np.inf, distance)


@cache
def samples(dtype: DType, count: int) -> Array:
    """All exponents and both signs; numbers near 0, 1 and pi/2's multiples; moderate ones."""
    rng = np.random.default_rng(5)
    infinity = int(np.array(INF, dtype.np).view(f"i{dtype.itemsize}"))
    drawn = rng.integers(1, infinity, count).astype(f"i{dtype.itemsize}").view(dtype.np)
    parts = [
        np.where(rng.random(count) < 0.5, drawn, -drawn),
        1 + rng.uniform(-1, 1, count) * 2.0 ** rng.integers(-50, 0, count),
        rng.uniform(-1, 1, count),
        rng.uniform(-20, 20, count),
        rng.uniform(-700, 700, count),
        rng.integers(-5000, 5000, count) * (np.pi / 2),
        np.array([0.0, -0.0, 1e6, 1e15, 1e22, 1e30, -1e30]),
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([part.astype(dtype.np) for part in parts])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", CASES)
def test_the_error_is_within_the_stated_bound(name: str, dtype: DType) -> None:
    case = CASES[name]
    x = samples(dtype, 250 if name in SLOW else 20_000)
    x = x[(x > case.lowest(dtype)) & (x < case.high)]
    with np.errstate(all="ignore"):
        exact = case.reference(x.astype(LONG))
    error = errors(getattr(Tensor(x), name)(*case.args).numpy(), exact, dtype)
    worst = int(error.argmax())
    assert error[worst] <= stated(name, dtype) + SLACK, f"{error[worst]} ulp at {x[worst]!r}"


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_tanh_is_exact_where_its_forms_meet(dtype: DType) -> None:
    x = np.random.default_rng(8).uniform(0.5, 0.75, 300_000).astype(dtype.np)
    assert errors(Tensor(x).tanh().numpy(), np.tanh(x.astype(LONG)), dtype).max() <= 1.5 + SLACK


@pytest.mark.parametrize("name", CASES)
def test_narrow_types_round_once(name: str) -> None:
    """For all their values: what float64 gives, rounded, but for ties."""
    for dtype in NARROW:
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype.np)
        with np.errstate(invalid="ignore"):  # signalling NaN
            wide = x.astype(np.float64)
        within = ~((wide <= CASES[name].lowest(dtype)) & (wide > -INF))
        x, wide = x[within], wide[within]
        args = CASES[name].args
        exact = getattr(Tensor(wide), name)(*args).numpy()
        error = errors(getattr(Tensor(x), name)(*args).numpy(), exact, dtype)
        worst = int(error.argmax())
        assert error[worst] <= 0.51, f"{error[worst]} ulp at {x[worst]!r}"


# *** two arguments ***

PAIRS: dict[str, Callable[[Array, Array], Array]] = {
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "pow": np.power,
    "xlogy": lambda a, b: a * np.log(b),
    "xlog1py": lambda a, b: a * np.log1p(b),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two(name: str, dtype: DType) -> None:
    a = samples(dtype, 10_000)
    b = np.random.default_rng(2).permutation(a)
    if name.startswith("xlog"):
        b = np.abs(b)
    if name == "pow":
        # The exponents reach from 0 to what overflows.
        a = np.abs(a)
        with np.errstate(all="ignore"):
            most = 1100 / np.abs(np.log2(a.astype(np.float64)))
            b = (np.random.default_rng(3).uniform(-1, 1, len(a)) * most).astype(dtype.np)
    with np.errstate(all="ignore"):
        exact = PAIRS[name](a.astype(LONG), b.astype(LONG))
    error = errors(getattr(Tensor(a), name)(Tensor(b)).numpy(), exact, dtype)
    worst = int(error.argmax())
    assert error[worst] <= stated(name, dtype) + SLACK, (error[worst], a[worst], b[worst])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_logaddexp(dtype: DType) -> None:
    a, b = np.random.default_rng(6).uniform(-5, 5, (2, 20_000)).astype(dtype.np)
    exact = np.logaddexp(a.astype(LONG), b.astype(LONG))
    found = Tensor(a).logaddexp(Tensor(b)).numpy()
    if dtype is dtypes.float32:
        assert errors(found, exact, dtype).max() <= 0.51
    largest = np.maximum(np.maximum(np.abs(exact), 1), np.maximum(np.abs(a), np.abs(b)))
    assert (np.abs(found - exact) <= (2 + SLACK) * unit(largest, dtype)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_approximate_gelu(dtype: DType) -> None:
    x = np.random.default_rng(7).uniform(-5, 20, 20_000).astype(dtype.np)
    wide = x.astype(LONG)
    power = 2 * np.sqrt(2 / LONG(np.pi)) * (wide + LONG("0.044715") * wide**3)
    error = errors(Tensor(x).gelu().numpy(), wide * sigmoid(power), dtype)
    assert error.max() <= 24


@pytest.mark.parametrize("n", [1, 2, 5])
def test_polygamma(n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.concatenate([rng.uniform(0.01, 30, 200), rng.uniform(-8, 0, 100)])
    exact = exactly(lambda z: mpmath.psi(n, z))(x)
    error = errors(Tensor(x).polygamma(n).numpy(), exact, dtypes.float64)
    assert error[:200].max() <= 4 + 2 * n
    np.testing.assert_allclose(Tensor(x).polygamma(n).numpy(), exact, rtol=1e-11)
    narrow = x.astype(np.float32)
    exact = Tensor(narrow.astype(np.float64)).polygamma(n).numpy()
    error = errors(Tensor(narrow).polygamma(n).numpy(), exact, dtypes.float32)
    assert error.max() <= 0.51


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_of_negative_numbers(name: str) -> None:
    x = np.random.default_rng(4).uniform(-30, 0, 500)
    function = {
        "lgamma": lambda z: mpmath.log(abs(mpmath.gamma(z))),
        "digamma": mpmath.digamma,
    }[name]
    exact = exactly(function)(x)
    error = np.abs(getattr(Tensor(x), name)().numpy() - exact)
    assert (error <= 2.0**-48 * np.maximum(1, np.abs(exact))).all()


# *** zeros, infinities, NaN, the smallest and the largest numbers ***

NUMPY_NAMES = """
    sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh arcsin arccos arctan
    arcsinh arccosh arctanh floor ceil trunc sign deg2rad rad2deg signbit isinf isnan isfinite
    reciprocal square abs positive negative
"""
NUMPY_PAIRS = """
    arctan2 hypot fmod remainder floor_divide copysign power fmax fmin maximum minimum
    logaddexp logaddexp2 heaviside
"""
EITHER_ZERO = {"fmax", "fmin", "maximum", "minimum"}  # of two zeros either may be the result


def limits(dtype: DType) -> Array:
    info = np.finfo(dtype.np)
    sizes = [0.0, info.smallest_subnormal, info.tiny, 0.5, 1.0, 2.0, 3.0, 1e6, info.max, np.inf]
    return np.array([sign * size for size in sizes for sign in (1, -1)] + [np.nan], dtype.np)


def assert_like_numpy(found: Array, expected: Array, dtype: DType) -> None:
    assert found.dtype == expected.dtype
    if found.dtype == bool:
        np.testing.assert_array_equal(found, expected)
        return
    info = np.finfo(dtype.np)
    np.testing.assert_allclose(found, expected, rtol=4 * info.eps, atol=2 * info.smallest_subnormal)
    zeros = (found == 0) & (expected == 0)
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", NUMPY_NAMES.split())
def test_limits_of_functions(name: str, dtype: DType) -> None:
    x = limits(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    assert_like_numpy(getattr(Tensor(x), name)().numpy(), expected, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", NUMPY_PAIRS.split())
def test_limits_of_functions_of_two(name: str, dtype: DType) -> None:
    a, b = (part.ravel() for part in np.meshgrid(limits(dtype), limits(dtype)))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(a, b)
    found = getattr(Tensor(a), name)(Tensor(b)).numpy()
    if name in EITHER_ZERO:
        found, expected = found + 0.0, expected + 0.0
    assert_like_numpy(found, expected, dtype)


def test_whole_powers_that_float32_holds_are_exact() -> None:
    base = np.arange(-20, 21).astype(np.float32)
    for exponent in (0.0, 1.0, 2.0, 3.0, 5.0):
        found = Tensor(base).pow(Tensor(np.full_like(base, exponent))).numpy()
        np.testing.assert_array_equal(found, base**exponent)


ENDS = {"sigmoid": (0, 1), "silu": (0, None), "gelu": (0, None), "quick_gelu": (0, None)}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", [*ENDS, "gelu of none"])
def test_ends_of_activations(name: str, dtype: DType) -> None:
    """Far below they are 0, far above 1 or the argument, wherever a power of two would overflow."""
    args = ("none",) if name == "gelu of none" else ()
    name = name.split()[0]
    below, above = ENDS[name]
    x = np.array([22, 40, 89, 130, 710, 1025, 1e6, 1e30, np.inf], dtype.np)
    found = getattr(Tensor(x), name)(*args).numpy()
    rounding = 4 * np.finfo(dtype.np).eps
    np.testing.assert_allclose(found, x if above is None else above, rtol=max(rounding, 3e-10))
    found = getattr(Tensor(-x[4:]), name)(*args).numpy()
    np.testing.assert_array_equal(found, below)
    nan = getattr(Tensor(np.array([np.nan], dtype.np)), name)(*args).numpy()
    assert np.isnan(nan).all()


def hurwitz(x: float, q: float) -> float:
    """The zeta function by Euler and Maclaurin, from the hundredth term on with 20 Bernoullis."""
    with mpmath.workprec(200):
        exponent, end = mpmath.mpf(x), mpmath.mpf(q) + 100
        total = mpmath.fsum((mpmath.mpf(q) + k) ** -exponent for k in range(100))
        total += end ** (1 - exponent) / (exponent - 1) + end**-exponent / 2
        for j in range(1, 21):
            rising = mpmath.rf(exponent, 2 * j - 1)
            share = mpmath.bernoulli(2 * j) / mpmath.factorial(2 * j)
            total += share * rising * end ** (1 - exponent - 2 * j)
        return float(total)


def test_zeta() -> None:
    rng = np.random.default_rng(9)
    x = np.concatenate([rng.uniform(1.001, 40, 200), rng.uniform(40, 2000, 50)])
    q = 10 ** rng.uniform(-1, 4, 250)
    exact = np.array([hurwitz(*pair) for pair in zip(x, q, strict=True)])
    found = Tensor(x).zeta(Tensor(q)).numpy()
    error = errors(found, exact, dtypes.float64)
    assert error.max() <= 6, (error.max(), x[error.argmax()], q[error.argmax()])
    np.testing.assert_array_equal(
        Tensor([1.0, 0.5, 2.0, 2.0, 2.0, np.nan]).zeta(Tensor([3.0, 1, 0, -3, -0.5, -1])).numpy(),
        [np.inf, np.nan, np.inf, np.inf, np.nan, np.nan],
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_limits_of_tails_and_bessel_functions(dtype: DType) -> None:
    x = Tensor(np.array([-np.inf, 0.0, np.inf, np.nan], dtype.np))
    inf, nan = INF, np.nan
    for name, expected in {
        "i0": [inf, 1, inf, nan],
        "i1": [-inf, 0, inf, nan],
        "i0e": [0, 1, 0, nan],
        "i1e": [-0.0, 0, 0, nan],
        "erfcx": [inf, 1, 0, nan],
        "log_ndtr": [-inf, np.log(0.5), 0, nan],
    }.items():
        np.testing.assert_allclose(getattr(x, name)().numpy(), expected, rtol=1e-7, err_msg=name)
    ends = Tensor(np.array([0.0, 1.0, -0.5, 1.5, np.nan], dtype.np)).ndtri().numpy()
    np.testing.assert_array_equal(ends, [-inf, inf, nan, nan, nan])
    assert Tensor(np.array([800.0], dtype.np)).i0().item() == inf


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW], ids=lambda d: d.name)
def test_mantissa_and_exponent(dtype: DType) -> None:
    with np.errstate(over="ignore"):
        x = samples(dtypes.float32, 300).astype(dtype.np)
    info = ml_dtypes.finfo(dtype.np)
    x = np.concatenate([x, np.array([info.smallest_subnormal, info.max, np.inf, np.nan], dtype.np)])
    mantissa, exponent = Tensor(x).frexp()
    expected = np.frexp(x.astype(np.float64))
    np.testing.assert_array_equal(mantissa.numpy().astype(np.float64), expected[0])
    finite = np.isfinite(expected[0])
    np.testing.assert_array_equal(exponent.numpy()[finite], expected[1][finite])
    assert exponent.dtype is dtypes.int32
