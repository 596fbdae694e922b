"""Inverse trigonometric and hyperbolic functions.

The polynomials were fitted for this file, by least squares with weights, to the function named
beside them. Constants of which a type holds too little are the sum of two.
"""

from __future__ import annotations

import math

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.base.records import dataclass
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.math.pairs import hypot
from ferrule.tensor.math.special import (
    doubled,
    function_of_one,
    log,
    log1p,
    magnitude,
    polynomial,
    sign_bits,
    widened,
    with_sign,
)


@dataclass(frozen=True, slots=True)
class _Constants:
    """Coefficients, the constant one first, of one float type."""

    asin: tuple[float, ...]  # (asin(x) / x - 1) / x**2 on [-0.5, 0.5], in x**2
    atan: tuple[float, ...]  # (atan(x) / x - 1) / x**2 between -tan(pi/8) and tan(pi/8), in x**2
    half_pi: tuple[float, float]
    huge: float  # doubled, it still is finite


_FLOAT32 = _Constants(
    asin=(0.1666666, 0.07500503, 0.044517238, 0.031805065, 0.014449381, 0.037500635),
    atan=(-0.33333316, 0.19998468, -0.1424349, 0.10593511, -0.060774885),
    half_pi=(1.57079637050628662109375, -4.37113900018624283e-8),
    huge=2.0**126,
)
_FLOAT64 = _Constants(
    asin=(
        0.1666666666666676,
        0.07499999999970791,
        0.04464285717460814,
        0.030381942708278438,
        0.022372214968274736,
        0.017351612425595807,
        0.013980815085878463,
        0.011398959879238417,
        0.010779974112438832,
        0.0037074918271834726,
        0.02170476025531119,
        -0.020995210022845448,
        0.03262619355601406,
    ),
    atan=(
        -0.33333333333333326,
        0.19999999999997642,
        -0.14285714285385182,
        0.11111111088026218,
        -0.09090908139803325,
        0.0769228266634769,
        -0.06666225582621323,
        0.05877011933244078,
        -0.05218350334261906,
        0.04503364268946944,
        -0.03347087784059719,
        0.015192195959059452,
    ),
    half_pi=(1.5707963267948966, 6.123233995736766e-17),
    huge=2.0**1022,
)


def _constants(x: TracedValue) -> _Constants:
    return _FLOAT64 if x.dtype is dtypes.float64 else _FLOAT32


# *** asin and acos ***


def _arc(size: TracedValue) -> tuple[TracedValue, TracedValue, TracedValue]:
    """Three values: True where a size is below 1/2, `root`, and asin(root) - root.

    `root` is the size itself below 1/2. Above it is sqrt((1 - size) / 2), whose arc is half of the
    remaining one: asin(size) = pi / 2 - 2 * asin(root).
    """
    near = size < 0.5
    half = (1.0 - size) * 0.5
    root = half.alu(UnaryOps.SQRT)
    lost = (-root).muladd(root, half) / (root + root)  # of the square root
    lost = root.equals(0).where(root, lost)
    root = near.where(size, root)
    square = near.where(size * size, half)
    rest = root * square * polynomial(square, _constants(size).asin)
    return near, root, near.where(rest, rest + lost)


def _asin(x: TracedValue) -> TracedValue:
    """The arc whose sine is x: NaN outside [-1, 1]."""
    near, root, rest = _arc(magnitude(x))
    half_pi, half_pi_rest = _constants(x).half_pi
    far = (half_pi - 2.0 * root) + (half_pi_rest - 2.0 * rest)
    return with_sign(near.where(root + rest, far), x)


def _acos(x: TracedValue) -> TracedValue:
    """The arc whose cosine is x: NaN outside [-1, 1]."""
    near, root, rest = _arc(magnitude(x))
    half_pi, half_pi_rest = _constants(x).half_pi
    negative = x < 0
    signed, signed_rest = negative.where(-root, root), negative.where(-rest, rest)
    middle = (half_pi - signed) + (half_pi_rest - signed_rest)
    left = (half_pi - root) + (half_pi_rest - rest)
    far = negative.where(left, root + rest)
    return near.where(middle, far + far)


def _slope_of_arc(x: TracedValue) -> TracedValue:
    """1 / sqrt(1 - x**2)."""
    return ((1.0 - x) * (x + 1.0)).alu(UnaryOps.SQRT).alu(UnaryOps.RECIP)


asin = function_of_one(
    "asin", _asin, lambda grad, entry: (grad * _slope_of_arc(entry.saved[0]),), inputs=(0,)
)
acos = function_of_one(
    "acos", _acos, lambda grad, entry: (-(grad * _slope_of_arc(entry.saved[0])),), inputs=(0,)
)


# *** atan and atan2 ***


def _angle(up: TracedValue, right: TracedValue) -> TracedValue:
    """The angle in [0, pi/2] of a direction, neither part negative, not both infinite.

    The distance of the angle to the nearest of 0, pi/4 and pi/2 has a tangent of at most tan(pi/8).
    """
    known = _constants(up)
    steep = right * (1 + math.sqrt(2)) < up
    tilted = right * (math.sqrt(2) - 1) < up
    over = steep.where(-right, tilted.where(up - right, up))
    under = steep.where(up, tilted.where(up + right, right))
    under = under.equals(0).where(under.full(1), under)
    tangent = over / under
    square = tangent * tangent
    high, low = known.half_pi
    half = up.full(0.5)
    turn = steep.where(up.full(1), tilted.where(half, 0))
    rest = (tangent * square).muladd(polynomial(square, known.atan), turn * low)
    return (turn * high) + (tangent + rest)


def _atan(x: TracedValue) -> TracedValue:
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    return with_sign(_angle(magnitude(x), x.full(1)), x)


def _reverse_atan(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad / x.muladd(x, 1.0),)


atan = function_of_one("atan", _atan, _reverse_atan, inputs=(0,))


def _atan2(y: TracedValue, x: TracedValue) -> TracedValue:
    """The angle of the point (x, y), with C's rules for zeros and infinities."""
    known = _constants(x)
    up, right = magnitude(y), magnitude(x)
    infinite = (up.equals(math.inf)).alu(BinaryOps.AND, right.equals(math.inf))
    up, right = (infinite.where(part.full(1), part) for part in (up, right))
    large = (up > known.huge).alu(BinaryOps.OR, right > known.huge)
    up, right = (large.where(part * 0.25, part) for part in (up, right))
    angle = _angle(up, right)
    high, low = known.half_pi
    left = (2 * high - angle) + 2 * low
    return with_sign(sign_bits(x).differs(0).where(left, angle), y)


def _reverse_atan2(grad: TracedValue, entry: GradNode) -> Gradients:
    y, x = entry.saved
    length = hypot(y, x)
    origin = length.equals(0)
    share = origin.where(grad.full(0), grad / length)
    length = origin.where(length.full(1), length)
    return share * (x / length), -(share * (y / length))


_ATAN2 = Rule(_reverse_atan2, inputs=(0, 1))


def atan2(y: TracedValue, x: TracedValue) -> TracedValue:
    """The angle of the point (x, y), for floats of one type and shape."""
    result = _atan2(widened(y), widened(x)).cast(y.dtype)
    return record("atan2", _ATAN2, (y, x), result.node, None)


# *** asinh, acosh and atanh ***

_LARGE = 2.0**30  # where x**2 + 1 is x**2 in float64


def _asinh(x: TracedValue) -> TracedValue:
    """The inverse of sinh."""
    size = magnitude(x)
    square = size * size
    near = log1p(size + square / ((square + 1.0).alu(UnaryOps.SQRT) + 1.0))
    return with_sign((size < _LARGE).where(near, log(size) + math.log(2)), x)


def _acosh(x: TracedValue) -> TracedValue:
    """The inverse of cosh: NaN below 1."""
    above = x - 1.0
    near = log1p(above + above.muladd(above, 2.0 * above).alu(UnaryOps.SQRT))
    result = (x > _LARGE).where(log(x) + math.log(2), near)
    return (x < 1.0).where(x.full(math.nan), result)


def _atanh(x: TracedValue) -> TracedValue:
    """The inverse of tanh: infinite at -1 and 1, NaN outside."""
    size = magnitude(x)
    double = size + size
    rest = double / (1.0 - size)
    rest = (size < 0.5).where(double.muladd(size / (1.0 - size), double), rest)
    return with_sign(0.5 * log1p(rest), x)


def _reverse_asinh(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad / hypot(x, x.full(1)),)


def _reverse_acosh(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad / ((x - 1.0).alu(UnaryOps.SQRT) * (x + 1.0).alu(UnaryOps.SQRT)),)


def _reverse_atanh(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad / ((1.0 - x) * (x + 1.0)),)


asinh = function_of_one("asinh", _asinh, _reverse_asinh, inputs=(0,), within=doubled)
acosh = function_of_one("acosh", _acosh, _reverse_acosh, inputs=(0,), within=doubled)
atanh = function_of_one("atanh", _atanh, _reverse_atanh, inputs=(0,), within=doubled)
