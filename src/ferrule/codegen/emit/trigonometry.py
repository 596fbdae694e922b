"""SIN and COS as expressions, of float32 and float64, for arguments of any size.

A float32 is reduced to turns in float64. A float64 is reduced to radians, as the sum of two
numbers: by pi/2 in three parts, or, if it is huge, in integers by the digits of 1/(2*pi) that
count.
"""

from __future__ import annotations

import math
from typing import Final

from ferrule.codegen.emit.floats import (
    FLOAT32,
    FLOAT64,
    Format,
    add,
    and_,
    bitcast,
    fma,
    format_of,
    less,
    like,
    mul,
    or_,
    polynomial,
    rounded,
    shl,
    shr,
    sub,
    where,
    xor,
)
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, ExprOp, alu, cast, const

# -- float32 ---------------------------------------------------------------------------------------

# 1/(2*pi) in pieces of 27 bits: a piece times a float32 is exact in float64. The last is rounded.
_TURN_PIECES: Final = (
    0.15915493667125702,
    6.420638298809678e-09,
    1.7916237000301966e-17,
    2.77735701037504e-25,
    2.5454160871601804e-33,
    9.714746768796706e-42,
)
# sin(2*pi*v) / v over v*v, for |v| <= 1/4.
_SINE_OF_TURNS: Final = (
    6.283185273790403,
    -41.34167746724192,
    81.60222994319662,
    -76.57494955175025,
    39.71049883529958,
)


def _magnitude(form: Format, x: Expr) -> Expr:
    bits = and_(bitcast(x, form.unsigned), const(form.sign_bit - 1, form.unsigned))
    return bitcast(bits, form.real)


def _sign(form: Format, x: Expr) -> Expr:
    """The sign bit where it is, all other bits 0."""
    return and_(bitcast(x, form.unsigned), const(form.sign_bit, form.unsigned))


def _turns(x: Expr) -> Expr:
    """A non-negative float32 in whole turns, without the integer part: float64 in [-1/2, 1/2].

    Each piece of 1/(2*pi) adds 27 bits to the fraction, and the integer goes before the next one.
    While a product is above 1, it and the fraction so far fit the 53 bits together, so the sum is
    exact; below, the sum is rounded in relation to itself. So the result is right to nearly 53
    bits even for the floats that are nearest to a multiple of pi, and for all up to the largest.
    """
    wide = cast(x, dtypes.float64)
    fraction = const(0.0, dtypes.float64)
    for piece in _TURN_PIECES[:-1]:
        whole_and_fraction = fma(wide, like(piece, wide), fraction)
        fraction = sub(whole_and_fraction, rounded(whole_and_fraction))
    return fma(wide, like(_TURN_PIECES[-1], wide), fraction)


def _sine_of_turns(v: Expr) -> Expr:
    """sin(2*pi*v) for a float64 |v| <= 1/4, right to 28 bits."""
    return mul(polynomial(_SINE_OF_TURNS, mul(v, v)), v)


def _sin_float32(x: Expr) -> Expr:
    turns = _turns(_magnitude(FLOAT32, x))
    size = _magnitude(FLOAT64, turns)
    mirrored = sub(const(0.5, dtypes.float64), size)
    folded = where(less(mirrored, size), mirrored, size)
    value = cast(_sine_of_turns(folded), dtypes.float32)
    sign = xor(_sign(FLOAT32, cast(turns, dtypes.float32)), _sign(FLOAT32, x))
    return bitcast(xor(bitcast(value, dtypes.uint32), sign), dtypes.float32)


def _cos_float32(x: Expr) -> Expr:
    size = _magnitude(FLOAT64, _turns(_magnitude(FLOAT32, x)))
    return cast(_sine_of_turns(sub(const(0.25, dtypes.float64), size)), dtypes.float32)


# -- float64 ---------------------------------------------------------------------------------------

# Above this, the integer path; below, pi/2 in three parts is exact enough.
_HUGE: Final = 2.0**30
_HALF_PI_PARTS: Final = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_TWO_PI_PARTS: Final = (4 * _HALF_PI_PARTS[0], 4 * _HALF_PI_PARTS[1])
# (sin(r)/r - 1) / r**2 and (cos(r) - 1 + r**2/2) / r**4, over r**2, for |r| <= pi/4.
_SINE: Final = (
    -0.1666666666666663,
    0.008333333333321875,
    -0.00019841269829406216,
    2.755731356036073e-06,
    -2.5050738488423126e-08,
    1.5895704341762635e-10,
)
_COSINE: Final = (
    0.041666666666666595,
    -0.0013888888888873307,
    2.480158728896503e-05,
    -2.755731420295913e-07,
    2.0875703115836782e-09,
    -1.1358615469005866e-11,
)
# The binary digits of 1/(2*pi) after the point, 64 in a word; a word of zeros comes first, because
# the window of the smallest huge number starts before the point.
_TURN_WORDS: Final = (
    0,
    0x28BE60DB9391054A,
    0x7F09D5F47D4D3770,
    0x36D8A5664F10E410,
    0x7F9458EAF7AEF158,
    0x6DC91B8E909374B8,
    0x01924BBA82746487,
    0x3F877AC72C4A69CF,
    0xBA208D7D4BAED121,
    0x3A671C09AD17DF90,
    0x4E64758E60D4CE7D,
    0x272117E2EF7E4A0E,
    0xC7FE25FFF7816603,
    0xFBCBC462D6829B47,
    0xDB4D9FB3C9F2C26D,
    0xD3D18FD9A797FA8B,
    0x5D49EEB1FAF97C5E,
    0xCF41CE7DE294A4BA,
    0x9AFED7EC47E35742,
    0x1580CC11BF1EDAEA,
)
_LOW_HALF: Final = const((1 << 32) - 1, dtypes.uint64)


def _high_product(a: Expr, b: Expr) -> Expr:
    """The upper 64 of the 128 bits of a product of two uint64, a below 2**53."""
    a_high, a_low = shr(a, 32), and_(a, _LOW_HALF)
    b_high, b_low = shr(b, 32), and_(b, _LOW_HALF)
    upper = add(mul(a_low, b_high), shr(mul(a_low, b_low), 32))
    lower = add(mul(a_high, b_low), and_(upper, _LOW_HALF))
    return add(mul(a_high, b_high), add(shr(upper, 32), shr(lower, 32)))


def _window(position: Expr) -> tuple[Expr, Expr, Expr]:
    """192 digits of 1/(2*pi) from `position` (uint64) on, the first word of zeros counted.

    The word is chosen bit by bit of its number, from the highest: a tree of WHERE, not a table.
    """
    words = [const(word, dtypes.uint64) for word in _TURN_WORDS]
    zero = const(0, dtypes.uint64)
    for bit in reversed(range(5)):
        step = 1 << bit
        chosen = alu(ExprOp.CMPNE, and_(position, const(64 << bit, dtypes.uint64)), zero)
        needed = 4 + step - 1
        words = [
            where(chosen, words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(min(needed, len(words)))
        ]
    shift = and_(position, const(63, dtypes.uint64))
    counter_shift = xor(shift, const(63, dtypes.uint64))

    def joined(first: Expr, second: Expr) -> Expr:
        upper = alu(ExprOp.SHL, first, shift)
        return or_(upper, alu(ExprOp.SHR, shr(second, 1), counter_shift))

    return joined(words[0], words[1]), joined(words[1], words[2]), joined(words[2], words[3])


def _reduce_huge(x: Expr) -> tuple[Expr, Expr]:
    """(r, quadrant) of a float64 from `_HUGE` to the largest, in integers (Payne and Hanek).

    x is an integer m of 53 bits times 2**e. Of m * 2**e / (2*pi) only the fraction counts, so the
    product of m with the 192 digits after the first e is enough: its highest 128 bits are right.
    """
    bits = bitcast(x, dtypes.uint64)
    fraction_mask = const((1 << 52) - 1, dtypes.uint64)
    m = or_(and_(bits, fraction_mask), const(1 << 52, dtypes.uint64))
    position = sub(shr(bits, 52), const(1023 + 52 - 64, dtypes.uint64))
    first, second, third = _window(position)
    low_part = mul(m, second)
    low = add(low_part, _high_product(m, third))
    carry = cast(less(low, low_part), dtypes.uint64)
    turns = add(add(mul(m, first), _high_product(m, second)), carry)
    quadrant = shr(add(turns, const(1 << 61, dtypes.uint64)), 62)
    rest = bitcast(sub(turns, shl(quadrant, 62)), dtypes.int64)
    rest_low = bitcast(shr(low, 11), dtypes.int64)
    return _radians(rest, rest_low), quadrant


def _radians(high: Expr, low: Expr) -> Expr:
    """`(high * 2**-64 + low * 2**-117) * 2*pi` in float64, from int64: rounded once but for a hair.

    The leading 29 bits of `high` are a float exactly, and so what their product with 2*pi loses in
    rounding is a float too, which a fused multiply-add gives. The rest adds to that.
    """
    leading = cast(and_(high, const(-(1 << 32), dtypes.int64)), dtypes.float64)
    following = cast(and_(high, const((1 << 32) - 1, dtypes.int64)), dtypes.float64)
    following = fma(cast(low, dtypes.float64), const(2.0**-53, dtypes.float64), following)
    unit, unit_rest = (const(part * 2.0**-64, dtypes.float64) for part in _TWO_PI_PARTS)
    product = mul(leading, unit)
    lost = fma(leading, unit, alu(ExprOp.NEG, product))
    return add(product, fma(leading, unit_rest, fma(following, unit, lost)))


def _reduce_small(x: Expr) -> tuple[Expr, Expr]:
    """(r, quadrant) of a float64 from 0 to `_HUGE`: x less n times pi/2 (Cody and Waite)."""
    rounder = like(1.5 * 2.0**52, x)
    shifted = fma(x, like(2 / math.pi, x), rounder)
    n = sub(shifted, rounder)
    r = x
    for part in _HALF_PI_PARTS:
        r = fma(n, like(-part, x), r)
    return r, bitcast(shifted, dtypes.uint64)


def _wave_float64(x: Expr, quarter: int) -> Expr:
    """The sine of a non-negative float64 plus `quarter` quarter turns."""
    small_r, small_quadrant = _reduce_small(x)
    huge_r, huge_quadrant = _reduce_huge(x)
    is_small = less(x, like(_HUGE, x))
    r = where(is_small, small_r, huge_r)
    quadrant = add(where(is_small, small_quadrant, huge_quadrant), const(quarter, dtypes.uint64))
    z = mul(r, r)
    sine = fma(mul(r, z), polynomial(_SINE, z), r)
    parabola = fma(z, like(-0.5, z), like(1.0, z))
    cosine = fma(mul(z, z), polynomial(_COSINE, z), parabola)
    odd = alu(ExprOp.CMPNE, and_(quadrant, const(1, dtypes.uint64)), const(0, dtypes.uint64))
    value = bitcast(where(odd, cosine, sine), dtypes.uint64)
    flip = shl(and_(quadrant, const(2, dtypes.uint64)), 62)
    signed = bitcast(xor(value, flip), dtypes.float64)
    return where(less(x, like(math.inf, x)), signed, like(math.nan, x))


def _sin_float64(x: Expr) -> Expr:
    value = _wave_float64(_magnitude(FLOAT64, x), 0)
    signed = xor(bitcast(value, dtypes.uint64), _sign(FLOAT64, x))
    return bitcast(signed, dtypes.float64)


# -- either ----------------------------------------------------------------------------------------


def sin(x: Expr) -> Expr:
    """The sine of x radians, with the argument reduced exactly however large it is.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = format_of("sin", x)
    return _sin_float32(x) if form is FLOAT32 else _sin_float64(x)


def cos(x: Expr) -> Expr:
    """The cosine of x radians: better than `sin(pi/2 - x)`, whose difference is rounded.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = format_of("cos", x)
    if form is FLOAT32:
        return _cos_float32(x)
    return _wave_float64(_magnitude(FLOAT64, x), 1)
