"""Element-wise mathematics: gradients of both orders, integers at their limits, operators."""

import math
import operator
from collections.abc import Callable

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import TinyJit, grad
from ferrule.autograd import GradientError
from ferrule.dtype import DType, dtypes
from ferrule.tensor import Tensor

INTEGERS = [d for d in dtypes.all if dtypes.is_int(d)]
RNG = np.random.default_rng(3)

# The function and the range of the points at which it is differentiated.
SMOOTH: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "asin": (Tensor.asin, -0.9, 0.9),
    "acos": (Tensor.acos, -0.9, 0.9),
    "atan": (Tensor.atan, -3, 3),
    "asinh": (Tensor.asinh, -3, 3),
    "acosh": (Tensor.acosh, 1.1, 4),
    "atanh": (Tensor.atanh, -0.9, 0.9),
    "sinc": (Tensor.sinc, 0.2, 2),
    "erf": (Tensor.erf, -2, 2),
    "erfc": (Tensor.erfc, -2, 2),
    "erfinv": (Tensor.erfinv, -0.9, 0.9),
    "logit": (Tensor.logit, 0.1, 0.9),
    "ndtr": (Tensor.ndtr, -2, 2),
    "entr": (Tensor.entr, 0.2, 2),
    "sinc near 0": (Tensor.sinc, -0.3, 0.3),
    "lgamma": (Tensor.lgamma, 0.3, 5),
    "lgamma of negative": (Tensor.lgamma, -1.8, -1.2),
    "digamma": (Tensor.digamma, 0.3, 5),
    "i0": (Tensor.i0, -4, 4),
    "i1": (Tensor.i1, -4, 4),
    "i0e": (Tensor.i0e, 0.1, 12),
    "i1e": (Tensor.i1e, -12, -0.1),
    "erfcx": (Tensor.erfcx, -2, 5),
    "log_ndtr": (Tensor.log_ndtr, -8, 3),
    "ndtri": (Tensor.ndtri, 0.05, 0.95),
    "cbrt": (Tensor.cbrt, 0.2, 3),
    "nextafter": (lambda x: x.nextafter(9.0) * x, 0.1, 2),
    "zeta": (lambda q: Tensor(2.5).zeta(q), 0.3, 5),
    "mvlgamma": (lambda x: x.mvlgamma(3), 1.5, 6),
    "frexp": (lambda x: x.frexp().mantissa * x, 2.1, 3.9),
    "digamma of negative": (Tensor.digamma, -1.8, -1.2),
    "polygamma": (lambda x: x.polygamma(2), 0.5, 5),
    "sin": (Tensor.sin, -5, 5),
    "cos": (Tensor.cos, -5, 5),
    "tan": (Tensor.tan, -1.2, 1.2),
    "sinh": (Tensor.sinh, -2, 2),
    "cosh": (Tensor.cosh, -2, 2),
    "tanh": (Tensor.tanh, -2, 2),
    "log10": (Tensor.log10, 0.3, 3),
    "rsqrt": (Tensor.rsqrt, 0.5, 3),
    "mish": (Tensor.mish, -3, 3),
    "tanhshrink": (Tensor.tanhshrink, -2, 2),
    "softshrink": (Tensor.softshrink, 0.6, 2),
    "hardshrink": (Tensor.hardshrink, 0.6, 2),
    "threshold": (lambda x: x.threshold(0.5, 1.0), 0.6, 2),
    "glu": (Tensor.glu, -2, 2),
    "frac": (Tensor.frac, 0.1, 0.9),
    "nan_to_num": (Tensor.nan_to_num, -2, 2),
    "deg2rad": (Tensor.deg2rad, -2, 2),
    "round": (lambda x: x.round(1) * x, 0.11, 0.14),
    "pow": (lambda x: x**2.5, 0.3, 2),
    "pow 7": (lambda x: x**7, -1.5, -0.5),
    "pow -2": (lambda x: x**-2, 0.5, 2),
    "rpow": (lambda x: 3**x, -2, 2),
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "atan2": Tensor.atan2,
    "hypot": Tensor.hypot,
    "logaddexp": Tensor.logaddexp,
    "logaddexp2": Tensor.logaddexp2,
    "xlogy": Tensor.xlogy,
    "xlog1py": Tensor.xlog1py,
    "pow": Tensor.pow,
    "copysign": lambda a, b: a.copysign(b.detach()) * b,
    "fmod": lambda a, b: a.fmod(b + 5),
    "remainder": lambda a, b: a.remainder(b + 5),
    "ldexp": Tensor.ldexp,
    "prelu": lambda a, b: (a - 1.3).prelu(b[0]),
    "addcmul": lambda a, b: a.addcmul(b, a, value=0.5),
    "addcdiv": lambda a, b: a.addcdiv(b, a + 3, value=2),
    "add alpha": lambda a, b: a.add(b, alpha=3).sub(b * b, alpha=2),
    "fmax": Tensor.fmax,
    "float_power": Tensor.float_power,
}


def slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative as a tensor that can be differentiated again."""
    inner = x if x.requires_grad else x.detach().requires_grad_()
    (grad,) = function(inner).sum().gradient(inner, create_graph=True)
    return grad


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients(name: str) -> None:
    function, low, high = SMOOTH[name]
    assert_gradients(function, RNG.uniform(low, high, 6), tolerance=1e-5)


FLAT_SLOPES = {"softshrink", "hardshrink", "threshold", "nan_to_num", "deg2rad", "frac", "round"}


@pytest.mark.parametrize("name", sorted(SMOOTH.keys() - FLAT_SLOPES))
def test_second_derivatives(name: str) -> None:
    function, low, high = SMOOTH[name]
    x = np.random.default_rng(1).uniform(low, high, 4)
    leaf = Tensor(x, requires_grad=True)
    slope(function, leaf).sum().backward()
    assert leaf.grad is not None
    step = 1e-5
    above = slope(function, Tensor(x + step)).detach().numpy()
    below = slope(function, Tensor(x - step)).detach().numpy()
    if name == "glu":  # its halves depend on one another
        step_all = (above - below) / (2 * step)
        assert leaf.grad.numpy().sum() == pytest.approx(step_all.sum(), rel=1e-4)
        return
    np.testing.assert_allclose(leaf.grad.numpy(), (above - below) / (2 * step), rtol=1e-4)


@pytest.mark.parametrize("name", TWO)
def test_gradients_of_two(name: str) -> None:
    a, b = RNG.uniform(0.5, 2, 5), RNG.uniform(0.5, 2, 5)
    assert_gradients(TWO[name], a, b, tolerance=1e-5)


def test_gradients_at_zero_are_finite() -> None:
    x = Tensor([0.0, 0.0], requires_grad=True)
    y = Tensor([0.0, 1.0], requires_grad=True)
    (x.hypot(y) + x.copysign(y) + x.sinc() + x.xlogy(y + 1)).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [0.0, pytest.approx(math.log(2))]
    assert y.grad.tolist() == [0.0, 1.0]


def test_slopes_where_a_product_with_a_logarithm_is_zero() -> None:
    """It is 0 for any logarithm, so that nothing depends on that; and -x log x rises from 0."""
    x, y = Tensor([0.0, 0.0, 2.0, 0.0]), Tensor([0.0, 3.0, 4.0, math.nan])
    slope = grad(lambda y: x.xlogy(y).sum())
    np.testing.assert_array_equal(slope(y).numpy(), np.float32([0, 0, 0.5, math.nan]))
    np.testing.assert_array_equal(
        grad(lambda z: slope(z).sum())(y[:3].cat(x[3:])).numpy(), x * -1 / 16
    )
    mixed = grad(lambda x: grad(lambda y: x.xlogy(y).sum())(y[1:3]).sum())(x[1:3])
    assert mixed.tolist() == [pytest.approx(1 / 3), 0.25]
    z = Tensor([-1.0, 3.0, 1.0, math.nan])
    found = grad(lambda z: x.xlog1py(z).sum())(z)
    np.testing.assert_array_equal(found.numpy(), np.float32([0, 0, 1, math.nan]))
    assert grad(lambda p: p.entr().sum())(Tensor([0.0, 1.0])).tolist() == [math.inf, -1]


# *** integers ***


def extremes(dtype: DType) -> np.ndarray:
    info = np.iinfo(dtype.np)
    values = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, info.max // 3]
    values += [] if dtypes.is_unsigned(dtype) else [-1, -2, -7]
    return np.array(values, dtype.np)


def assert_same(found: Tensor, expected: np.ndarray) -> None:
    assert found.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integers_at_their_limits(device: str, dtype: DType) -> None:
    a, b = (part.ravel() for part in np.meshgrid(extremes(dtype), extremes(dtype)))
    x, y = Tensor(a), Tensor(b)
    with np.errstate(all="ignore"):
        for function in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod):
            assert_same(function(x, y), function(a, b))
        assert_same(x.fmod(y), np.fmod(a, b))
        assert_same(abs(x), np.abs(a))
        assert_same(-x, -a)
        assert_same(x.sign(), np.sign(a))
        assert_same(x.square(), np.square(a))
        quotient, rest = divmod(x, y)
        assert_same(quotient, a // b)
        assert_same(rest, a % b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_shifts_by_any_count(device: str, dtype: DType) -> None:
    a, b = np.meshgrid(extremes(dtype), np.arange(dtype.bits + 3).astype(dtype.np))
    assert_same(Tensor(a) << Tensor(b), a << b)
    assert_same(Tensor(a) >> Tensor(b), a >> b)
    assert_same(Tensor(a) << dtype.bits, np.zeros_like(a))
    assert_same(Tensor(a).bitwise_right_shift(100), np.where(a < 0, -1, 0).astype(dtype.np))
    if not dtypes.is_unsigned(dtype):
        assert_same(Tensor(a) << -1, a << np.array(-1, dtype.np))
        assert_same(Tensor(a) >> Tensor(-b - 1), a >> (-b - 1))


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_powers_wrap(device: str, dtype: DType) -> None:
    a, b = np.meshgrid(extremes(dtype), np.array([0, 1, 2, 3, 5, 31, 63]).astype(dtype.np))
    assert_same(Tensor(a) ** Tensor(b), a**b)
    assert_same(Tensor(a) ** 5, a ** dtype.np(5))
    assert (Tensor([0, 0]) ** Tensor([0, 3])).tolist() == [1, 0]
    assert (Tensor([1, -1, -1, 2, 0]) ** Tensor([-1, -1, -2, -1, -3])).tolist() == [1, -1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint16, dtypes.int64], ids=lambda d: d.name)
def test_common_divisors(device: str, dtype: DType) -> None:
    values = extremes(dtype)
    values = values[values != np.iinfo(dtype.np).min] if values.min() < 0 else values
    a, b = (part.ravel() for part in np.meshgrid(values, values))
    assert_same(Tensor(a).gcd(Tensor(b)), np.gcd(a, b))
    fibonacci = np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89], dtype.np)
    assert_same(Tensor(fibonacci[1:]).gcd(Tensor(fibonacci[:-1])), np.gcd(fibonacci[1:], 1))
    small = np.array([0, 1, 4, 6, 9, 10], dtype.np)
    a, b = (part.ravel() for part in np.meshgrid(small, small))
    assert_same(Tensor(a).lcm(Tensor(b)), np.lcm(a, b))


def test_longest_division(device: str) -> None:
    a, b = 7540113804746346429, 4660046610375530309  # neighbouring Fibonacci numbers
    assert Tensor([a], dtype="int64").gcd(Tensor([b], dtype="int64")).tolist() == [1]


# *** operators and methods ***


def test_methods_are_the_operators(device: str) -> None:
    x, y = Tensor([6, -3, 0]), Tensor([3, -3, 2])
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        assert getattr(x, name)(y).tolist() == getattr(operator, name)(x, y).tolist()
    assert x.bitwise_and(y).tolist() == (x & y).tolist()
    assert x.bitwise_or(y).tolist() == (x | y).tolist()
    assert x.bitwise_xor(y).tolist() == (x ^ y).tolist()
    assert x.bitwise_not().tolist() == (~x).tolist()
    assert x.logical_xor(y).tolist() == [False, False, True]
    assert x.div(y, rounding_mode="trunc").tolist() == [2, 1, 0]
    assert x.div(Tensor([4, 2, 0]), rounding_mode="floor").tolist() == [1, -2, 0]
    assert [part.tolist() for part in divmod(7, Tensor([2, -2]))] == [[3, -4], [1, -1]]
    assert [part.tolist() for part in divmod(Tensor([7.5]), 2)] == [[3.0], [1.5]]


def test_whole_numbers_of_python(device: str) -> None:
    x = Tensor([1.25, -1.75])
    assert round(x).tolist() == [1.0, -2.0]
    assert round(x, 1).tolist() == pytest.approx([1.2, -1.8])
    assert math.floor(x).tolist() == [1.0, -2.0]  # type: ignore[call-overload]
    assert math.ceil(x).tolist() == [2.0, -1.0]  # type: ignore[call-overload]
    assert math.trunc(x).tolist() == [1.0, -1.0]  # type: ignore[call-overload]
    assert (+x).tolist() == x.tolist()


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_halves_go_to_even_numbers(device: str, name: str) -> None:
    digits = np.finfo(name).nmant
    sizes = [
        0.0,
        0.25,
        0.5,
        1.5,
        2.5,
        2.0**digits - 0.5,
        2.0**digits + 1,
        2.0 ** (digits - 1) + 0.5,
    ]
    last = np.nextafter(np.array([0.5, 1.5, 2.5], name), np.array(0, name))
    x = np.array([*sizes, *last, np.inf, np.nan], name)
    x = np.concatenate([x, -x])
    found = Tensor(x).round().numpy()
    np.testing.assert_array_equal(found, np.round(x))
    signs, numbers = np.signbit(found), ~np.isnan(x)  # a NaN need not keep its sign
    np.testing.assert_array_equal(signs[numbers], np.signbit(np.round(x))[numbers])


def test_decimals_are_numpys(device: str) -> None:
    x = RNG.normal(size=200) * 1000
    for decimals in (2, 1, -1, -2):
        np.testing.assert_array_equal(Tensor(x).round(decimals).numpy(), np.round(x, decimals))
    assert Tensor([3]).round(2).tolist() == [3]


def test_parts_and_signs(device: str) -> None:
    x = np.array([1.5, -1.5, -0.0, np.inf, -np.inf, np.nan], np.float32)
    t = Tensor(x)
    assert t.isposinf().tolist() == np.isposinf(x).tolist()
    assert t.isneginf().tolist() == np.isneginf(x).tolist()
    assert t.signbit().tolist()[:5] == [False, True, True, False, True]
    largest = float(np.finfo(np.float32).max)
    assert t.nan_to_num(nan=7.0).tolist() == [1.5, -1.5, 0.0, largest, -largest, 7.0]
    assert t.nan_to_num(posinf=1, neginf=2).tolist()[3:] == [1.0, 2.0, 0.0]
    assert t[:2].frac().tolist() == [0.5, -0.5]
    assert Tensor([3]).frac().tolist() == [0]
    half = Tensor(np.array([np.inf, -np.inf], np.float16)).nan_to_num()
    assert half.tolist() == [65504.0, -65504.0]
    assert Tensor([1, 2]).isreal().tolist() == [True, True]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scaling_by_powers_of_two(device: str, dtype: type) -> None:
    x = np.array([1.0, -1.5, 0.0, np.inf, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype)
    exponents = np.array([3, -5, 2000, -2000, -20, -4], np.int32)
    with np.errstate(all="ignore"):
        expected = np.ldexp(x, exponents)
    np.testing.assert_array_equal(Tensor(x).ldexp(Tensor(exponents)).numpy(), expected)
    assert Tensor([2.0**-100]).ldexp(200).tolist() == [2.0**100]


def test_gamma_of_several_dimensions(device: str) -> None:
    x = np.array([2.5, 4.0, 30.0])
    expected = 1.5 * math.log(math.pi) + sum(
        np.array([math.lgamma(value - shift) for value in x]) for shift in (0, 0.5, 1)
    )
    np.testing.assert_allclose(Tensor(x).multigammaln(3).numpy(), expected, rtol=1e-12)


def test_zeta_has_no_gradient_by_its_exponent() -> None:
    x = Tensor([2.0], requires_grad=True)
    with pytest.raises(GradientError, match=r"\[zeta\] has no gradient by its exponent"):
        x.zeta(1.0).sum().backward()


def test_integers_become_floats(device: str) -> None:
    x = Tensor([1, 2])
    for name in ("asin", "atan", "erfc", "lgamma", "sinc", "deg2rad", "logit", "tanhshrink"):
        assert getattr(x, name)().dtype is dtypes.float32, name
    assert x.atan2(2).dtype is dtypes.float32
    assert x.hypot(Tensor([1, 2])).dtype is dtypes.float32
    assert x.double().lgamma().dtype is dtypes.float64
    assert x.half().erfinv().dtype is dtypes.float16


def test_activations_of_shrinking(device: str) -> None:
    x = Tensor([-2.0, -0.5, 0.0, 0.5, 2.0, math.nan])
    assert x.hardshrink().tolist()[:5] == [-2.0, 0.0, 0.0, 0.0, 2.0]
    assert x.softshrink(1.0).tolist()[:5] == [-1.0, 0.0, 0.0, 0.0, 1.0]
    assert x.threshold(0.5, 9.0).tolist()[:5] == [9.0, 9.0, 9.0, 9.0, 2.0]
    for result in (x.hardshrink(), x.softshrink(), x.threshold(0, 0), x.tanhshrink()):
        assert math.isnan(result.tolist()[5])
    weights = Tensor([0.5, 0.25])
    image = Tensor(-np.ones((1, 2, 2, 2), np.float32))
    assert image.prelu(weights).numpy()[0, :, 0, 0].tolist() == [-0.5, -0.25]
    assert Tensor(-2.0).prelu(weights[:1]).tolist() == -1.0
    assert Tensor([[1.0, 0.0], [2.0, 0.0]]).glu(0).numpy().shape == (1, 2)


def test_shapes(device: str) -> None:
    for shape in ((), (0,), (3, 0, 2), (1,) * 8):
        x = np.full(shape, 0.5, np.float32)
        assert Tensor(x).lgamma().numpy().shape == shape
        assert Tensor(x).atan2(Tensor(x)).numpy().shape == shape
    wide = Tensor([0.5]).expand(4).hypot(Tensor([[1.0], [2.0]]))
    assert wide.numpy().shape == (2, 4)


def test_inside_a_captured_function(device: str) -> None:
    @TinyJit
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.atan2(y) + x.lgamma() + (x**y).cos()).realize()

    for seed in range(4):
        a, b = np.random.default_rng(seed).uniform(0.5, 3, (2, 5))
        expected = np.arctan2(a, b) + [math.lgamma(value) for value in a] + np.cos(a**b)
        np.testing.assert_allclose(function(Tensor(a), Tensor(b)).numpy(), expected, rtol=1e-12)


OF_NAN = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "asin", "acos", "atan", "sqrt", "rsqrt"),
    *("sigmoid", "silu", "gelu", "softplus", "mish", "erf", "erfc", "lgamma", "digamma", "cbrt"),
)


@pytest.mark.parametrize("name", OF_NAN)
def test_every_nan_stays_one(device: str, name: str) -> None:
    """Whatever else its bits say, which functions that compute with bits could take for a value."""
    single = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00001, 0x7F812345], np.uint32)
    double = np.array([0x7FF8 << 48, (0x7FF0 << 48) + 1, (1 << 63) - 1, (1 << 64) - 1], np.uint64)
    for values in (single.view(np.float32), double.view(np.float64)):
        with np.errstate(invalid="ignore"):
            found = getattr(Tensor(values), name)().numpy()
        assert np.isnan(found).all(), found


def test_the_derivative_of_copysign_at_nan_is_nan(device: str) -> None:
    """The sign of a NaN is another one on each device."""
    for nan in (math.nan, -math.nan):
        x = Tensor([nan, 2.0, -3.0, 0.0], device=device).requires_grad_()
        x.copysign(1.0).sum().backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), [np.nan, 1, -1, 0])
