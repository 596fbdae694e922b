"""Powers with real exponents.

The logarithm is needed to more than the precision of the result, because the exponent multiplies
its error: float32 takes it in float64, to 41 bits, and float64 as the sum of two.
"""

from __future__ import annotations

import math

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.math.special import (
    constants,
    doubled,
    function_of_one,
    log,
    magnitude,
    polynomial,
    polynomial_in_halves,
    power_of_two,
    sign_bits,
    widened,
    with_sign,
    within,
)

# log((1 + s) / (1 - s)) is 2s * (1 + z / 3 + z**2 * (1/5 + z/7 + ...)) with z = s**2 < 0.0295.
_SERIES = tuple(1 / (2 * k + 5) for k in range(11))
_THIRD = (1 / 3, 1.850371707708594e-17)
_TWO_OVER_LOG_2 = (2.8853900817779268, 4.0710547481862066e-17)
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_LEAST_NORMAL = 2.0**-1022
_BIAS = 1023
_ROUNDER = 1.5 * 2.0**52  # added and subtracted again, it rounds to a whole number
_LOG_2 = (0.6931471805599453, 2.3190468138462996e-17)
# log2(1 + f) / f from sqrt(1/2) to sqrt(2), to 41 bits; 2**r on [-0.5, 0.5], to 34 bits. Both are
# minimax fits in relative error.
_LOG2 = (
    1.442695040889344,
    -0.7213475204247889,
    0.4808983465937848,
    -0.36067376595744655,
    0.28853906964601467,
    -0.24044872178425972,
    0.20609531226379596,
    -0.18035063368142115,
    0.16042438042591708,
    -0.1441214778007091,
    0.12914987050484458,
    -0.11967175459888997,
    0.1261335018758961,
    -0.12334726394165263,
    0.06299110553072093,
)
_EXP2 = (
    1.0,
    0.693147180704595,
    0.24022651066857334,
    0.055504103657997836,
    0.009618038099405538,
    0.0013333934686649716,
    0.00015466763672106345,
    1.5196324292263165e-05,
)


def _product(a: TracedValue, b: TracedValue | float) -> tuple[TracedValue, TracedValue]:
    """A product, rounded, and its rounding error."""
    rounded = a * b
    return rounded, a.muladd(b, -rounded)


def _sum(large: TracedValue, small: TracedValue) -> tuple[TracedValue, TracedValue]:
    """The sum of a number and one that is not larger, rounded, and its rounding error."""
    rounded = large + small
    return rounded, small - (rounded - large)


def _log2_of_fraction(m: TracedValue) -> tuple[TracedValue, TracedValue]:
    """log2(m) of a float64 m from sqrt(1/2) to sqrt(2), to some 70 bits, as the sum of two.

    It is 2 * atanh(s) / log(2) with s = (m - 1) / (m + 1); what is lost of s, of its square and of
    the cubic term is carried along.
    """
    f = m - 1.0
    t = f + 2.0
    s = f / t
    s_lost = ((-s).muladd(t, f) - s * (f - (t - 2.0))) / t
    z, z_lost = _product(s, s)
    z_lost = z_lost + 2.0 * s * s_lost
    third, third_lost = _product(z, _THIRD[0])
    rest = third_lost + z * _THIRD[1] + z_lost * _THIRD[0] + z * z * polynomial(z, _SERIES)
    factor, factor_lost = _sum(third, rest)
    curved, curved_lost = _product(s, factor)
    curved_lost = curved_lost + s * factor_lost + s_lost * factor
    total, total_lost = _sum(s, curved)
    total_lost = total_lost + curved_lost + s_lost
    result, result_lost = _product(total, _TWO_OVER_LOG_2[0])
    lost = result_lost + total * _TWO_OVER_LOG_2[1] + total_lost * _TWO_OVER_LOG_2[0]
    return result, lost


def _log2(size: TracedValue) -> tuple[TracedValue, TracedValue]:
    """log2 of a float64 that is not negative, as the sum of two."""
    subnormal = size < _LEAST_NORMAL
    bits = subnormal.where(size * 2.0**54, size).bitcast(dtypes.int64)
    exponent = (bits - _ROOT_HALF_BITS).alu(BinaryOps.SHR, bits.full(52))
    fraction = (bits - exponent.alu(BinaryOps.SHL, bits.full(52))).bitcast(dtypes.float64)
    n = exponent.cast(dtypes.float64) - subnormal.cast(dtypes.float64) * 54.0
    high, low = _log2_of_fraction(fraction)
    total, lost = _sum(n, high)
    total = (size < math.inf).where(total, size)
    return size.equals(0).where(size.full(-math.inf), total), lost + low


def _two_to(whole: TracedValue) -> TracedValue:
    """2**n for a whole float64 n, which is made of bits: from -1022 to 1023."""
    bits = (whole + (_ROUNDER + _BIAS)).bitcast(dtypes.uint64)
    return bits.alu(BinaryOps.SHL, bits.full(52)).bitcast(dtypes.float64)


def _power_of_size(size: TracedValue, exponent: TracedValue) -> TracedValue:
    """size**exponent in float64, for a size that is not negative.

    Nothing is rounded to float64 before the last sum, so that a power which is a float64 is exact.
    """
    high, low = _log2(size)
    product, lost = _product(exponent, high)
    lost = lost + exponent * low
    lost = (magnitude(lost) < 1.0).where(lost, 0.0)  # beyond, the power is 0 or infinite
    product = within(product, (-1200.0, 1200.0))
    whole = product + _ROUNDER - _ROUNDER
    fraction = product - whole
    x, x_lost = _product(fraction, _LOG_2[0])
    x_lost = x_lost + fraction * _LOG_2[1] + lost * _LOG_2[0]
    first, first_lost = _sum(x.full(1), x)  # e**x is 1 + x + x**2 * (1/2 + x/6 + ...)
    rest = x * x * polynomial(x, constants(x).expm1)
    rest = x_lost.muladd(first + rest, rest)
    power = first + (first_lost + rest)
    # A power of two that is not normal takes two steps, of which only the last may round.
    half = whole * 0.5 + _ROUNDER - _ROUNDER
    return power * _two_to(half) * _two_to(whole - half)


def _log2_of_narrow(size: TracedValue) -> TracedValue:
    """log2, to 41 bits, of a float64 from a narrower type, which has no subnormal numbers."""
    bits = size.bitcast(dtypes.uint64)
    biased = bits + ((_BIAS << 52) - _ROOT_HALF_BITS)
    exponent = biased.alu(BinaryOps.SHR, bits.full(52))
    fraction = bits + (_BIAS << 52) - exponent.alu(BinaryOps.SHL, bits.full(52))
    base = 2.0**52  # its lowest bits are an integer
    shifted = exponent.alu(BinaryOps.OR, size.full(base).bitcast(dtypes.uint64))
    n = shifted.bitcast(dtypes.float64) - (base + _BIAS)
    f = fraction.bitcast(dtypes.float64) - 1.0
    value = f.muladd(polynomial_in_halves(f, _LOG2), n)
    value = (size < math.inf).where(value, size)
    return size.equals(0).where(size.full(-math.inf), value)


def _narrow_power_of_size(size: TracedValue, exponent: TracedValue) -> TracedValue:
    """size**exponent in float32, through float64, where it neither overflows nor underflows."""
    product = doubled(exponent) * _log2_of_narrow(doubled(size))
    power, scale = power_of_two(within(product, (-300.0, 300.0)), 1.0, fit=_EXP2)
    return (power * scale).cast(size.dtype)


def _power(base: TracedValue, exponent: TracedValue) -> TracedValue:
    """base**exponent, with C's rules for zeros, infinities and negative bases."""
    of_size = _power_of_size if base.dtype is dtypes.float64 else _narrow_power_of_size
    power = of_size(magnitude(base), exponent)
    negative = sign_bits(base).differs(0)
    power = negative.where(_signed_power(base, power, exponent), power)
    one = exponent.equals(0).alu(BinaryOps.OR, base.equals(1))
    minus_one = base.equals(-1).alu(BinaryOps.AND, exponent.absolute().equals(math.inf))
    return one.alu(BinaryOps.OR, minus_one).where(base.full(1), power)


def _signed_power(base: TracedValue, power: TracedValue, exponent: TracedValue) -> TracedValue:
    """The power of a negative base, from that of its size: NaN unless the exponent is whole."""
    whole = exponent.equals(exponent.alu(UnaryOps.TRUNC))
    halved = exponent * 0.5
    odd = halved.differs(halved.alu(UnaryOps.TRUNC)).alu(BinaryOps.AND, whole)
    infinite = exponent.absolute().equals(math.inf)
    signed = odd.where(infinite.where(power, -power), power)
    limit = base.equals(0).alu(BinaryOps.OR, base.equals(-math.inf))
    defined = whole.alu(BinaryOps.OR, infinite).alu(BinaryOps.OR, limit)
    return defined.where(signed, power.full(math.nan))


def _reverse_power(grad: TracedValue, entry: GradNode) -> Gradients:
    base, exponent = entry.saved
    to_base = to_exponent = None
    if entry.parents[0] is not None:
        # x**0 is 1 for all x. Where 1 / x is a number, 0 times it says so, and how that changes
        # with the exponent too. Elsewhere the power is that of 1: no derivative has 0 * inf.
        is_number = base.alu(UnaryOps.RECIP).absolute() < math.inf
        is_flat = exponent.equals(0).alu(BinaryOps.AND, is_number.equals(0))
        lower = power(is_flat.where(base.full(1), base), exponent - 1.0)
        to_base = grad * is_flat.where(base.full(0), exponent * lower)
    if entry.parents[1] is not None:
        # 0**y is 0 for all positive y, and infinite for negative ones: there the slope is -inf.
        # The logarithm is that of 1 where it stays, so that no derivative of this has 0 * -inf.
        at_least_0 = (exponent > 0).alu(BinaryOps.OR, exponent.equals(0))
        stays = base.equals(0).alu(BinaryOps.AND, at_least_0)
        to_exponent = grad * (entry.result() * log(stays.where(base.full(1), base)))
    return to_base, to_exponent


def _cbrt(x: TracedValue) -> TracedValue:
    """The cube root: a power, and one of Newton's steps for what 1 / 3 was rounded by."""
    size = magnitude(x)
    usual = (size > 0).alu(BinaryOps.AND, size < math.inf)
    tiny = size < 2.0**-900  # where the square would lose digits
    base = usual.where(tiny.where(size * 2.0**300, size), size.full(1))
    root = _power_of_size(base, base.full(1 / 3))
    square, lost = _product(root, root)
    rest = root.muladd(-square, base) - root * lost
    root = rest.muladd(1 / (3.0 * square), root)
    return with_sign(usual.where(tiny.where(root * 2.0**-100, root), size), x)


def _reverse_cbrt(grad: TracedValue, entry: GradNode) -> Gradients:
    root = entry.result()
    return (grad / (root * root * 3.0),)


cbrt = function_of_one("cbrt", _cbrt, _reverse_cbrt, output=True, within=doubled)

_POWER = Rule(_reverse_power, inputs=(0, 1), output=True)


def power(base: TracedValue, exponent: TracedValue) -> TracedValue:
    """base**exponent for floats of one type and shape."""
    result = _power(widened(base), widened(exponent)).cast(base.dtype)
    return record("power", _POWER, (base, exponent), result.node, None)
