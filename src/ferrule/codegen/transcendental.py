"""EXP2, LOG2, SIN and COS as expressions: polynomials, fused multiply-adds and operations on bits.

Every function here takes and gives an `Expr` of float32 or float64 and expands it into MUL, ADD,
MULACC, ROUND, integer operations, BITCAST, CAST, WHERE and comparisons: no call into a
library, no table in memory, no branch, so that any number of lanes computes in step. Narrower
floats are computed in float32 by the caller.

| function | float32 | float64 | of its argument |
|---|---|---|---|
| exp2 | 0.85 ulp | 1.0 ulp | all; 18 operations in float32; exact at integers |
| exp | 1.0 ulp | 1.0 ulp | all; 18 operations in float32 |
| log2 | 1.0 ulp | 1.5 ulp | all; exact at powers of two |
| log, log10 | 0.9 ulp | 1.3 ulp | all |
| sin, cos | 0.6 ulp | 1.6 ulp | all, however large |

Infinities, NaN, signed zeros, subnormal arguments and subnormal results come out as IEEE 754's
recommended functions have them; nothing is flushed to zero.

The coefficients are minimax fits of ours, in relative error: an iteratively reweighted
least-squares fit (Lawson's method) on a Chebyshev grid in 240 bits, made anew for the rest each
time that the lowest free coefficient was rounded to the type. The leading 1 of the exponentials
is kept, so that they are exact where the reduced argument is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from ferrule.dtype import DType, DTypeError, dtypes
from ferrule.expr import Expr, ExprOp, alu, cast, const

# -- short names for building ----------------------------------------------------------------------


def _add(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.ADD, a, b)


def _sub(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.SUB, a, b)


def _mul(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.MUL, a, b)


def _fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """`a * b + c`, rounded once."""
    return alu(ExprOp.MULACC, a, b, c)


def _round(x: Expr) -> Expr:
    return alu(ExprOp.ROUND, x)


def _less(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.CMPLT, a, b)


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.WHERE, condition, a, b)


def _and(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.AND, a, b)


def _xor(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.XOR, a, b)


def _or(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.OR, a, b)


def _shl(x: Expr, count: int) -> Expr:
    return alu(ExprOp.SHL, x, const(count, x.dtype))


def _shr(x: Expr, count: int) -> Expr:
    return alu(ExprOp.SHR, x, const(count, x.dtype))


def _bitcast(x: Expr, dtype: DType) -> Expr:
    return Expr(ExprOp.BITCAST, dtype, (x,))


def _like(value: float, x: Expr) -> Expr:
    return const(value, x.dtype)


def _at_least(x: Expr, low: float) -> Expr:
    """The greater of x and a number; NaN stays. As a WHERE it is one instruction, MAX is three."""
    bound = _like(low, x)
    return _where(_less(x, bound), bound, x)


def _at_most(x: Expr, high: float) -> Expr:
    bound = _like(high, x)
    return _where(_less(bound, x), bound, x)


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's rule, the constant coefficient first in `coefficients`."""
    value = _like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        value = _fma(value, x, _like(coefficient, x))
    return value


# -- the two types ---------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class _Format:
    """A float type's layout, and the fits that reach its precision."""

    real: DType
    unsigned: DType
    signed: DType
    mantissa_bits: int
    smallest_normal: float
    exponent_offset: int
    """What makes a power's exponent n countable: n + offset is 0 at the greatest n whose 2**n is
    exactly zero with a margin, and positive above."""
    exponent_limit: int
    """2**limit overflows."""
    exp2: tuple[float, ...]
    """(2**r - 1) / r for |r| <= 1/2."""
    exp: tuple[float, ...]
    """(e**r - 1) / r for |r| <= log(2)/2."""
    log_of_two: tuple[float, float]
    """The natural logarithm as the sum of two."""
    log2: tuple[float, ...]
    """log2(1 + f) / f - 1 for sqrt(1/2) <= 1 + f <= sqrt(2)."""
    log: tuple[float, ...]
    """(log(1 + f) - f) / f**2 in the same range."""
    log10_of_two: tuple[float, float]
    """The logarithm of 2 to base 10 as the sum of two."""
    log10_of_e: tuple[float, float]
    """That of e."""
    root_half_bits: int
    """The bits of sqrt(1/2)."""

    @property
    def sign_bit(self) -> int:
        return 1 << (self.unsigned.bits - 1)

    @property
    def exponent_bias(self) -> int:
        return (1 << (self.unsigned.bits - self.mantissa_bits - 2)) - 1

    @property
    def rounder(self) -> float:
        """Added to a small number, it leaves the nearest integer + offset in the lowest bits."""
        return 1.5 * 2.0**self.mantissa_bits + self.exponent_offset


_FLOAT32: Final = _Format(
    real=dtypes.float32,
    unsigned=dtypes.uint32,
    signed=dtypes.int32,
    mantissa_bits=23,
    smallest_normal=2.0**-126,
    exponent_offset=152,
    exponent_limit=129,
    exp2=(0.6931472, 0.24022648, 0.055503596, 0.009618499, 0.0013390972, 0.0001532937),
    exp=(1.0, 0.49999994, 0.16666521, 0.041668274, 0.008368685, 0.0013820323),
    log_of_two=(0.6931472, -1.9046542e-09),
    log2=(
        0.44269505,
        -0.7213475,
        0.48089656,
        -0.36068293,
        0.28861657,
        -0.23994014,
        0.2041773,
        -0.1883695,
        0.18683828,
        -0.11613025,
    ),
    log=(
        -0.49999988,
        0.33333325,
        -0.25001585,
        0.20001963,
        -0.16609022,
        0.14182019,
        -0.13243635,
        0.12903376,
        -0.076189436,
    ),
    log10_of_two=(0.30103, -1.4320989e-08),
    log10_of_e=(0.4342945, -1.010305e-08),
    root_half_bits=0x3F3504F3,
)

_FLOAT64: Final = _Format(
    real=dtypes.float64,
    unsigned=dtypes.uint64,
    signed=dtypes.int64,
    mantissa_bits=52,
    smallest_normal=2.0**-1022,
    exponent_offset=1077,
    exponent_limit=1025,
    exp2=(
        0.6931471805599453,
        0.24022650695910108,
        0.05550410866482172,
        0.009618129107601592,
        0.0013333558146546782,
        0.00015403530449057247,
        1.5252733632960968e-05,
        1.321543882544606e-06,
        1.0178160706561158e-07,
        7.073234650897426e-09,
        4.438728804496799e-10,
    ),
    exp=(
        1.0,
        0.5000000000000011,
        0.16666666666666446,
        0.0416666666665277,
        0.008333333333478311,
        0.001388888894412237,
        0.00019841269534408266,
        2.4801492657504725e-05,
        2.7557565596894603e-06,
        2.763039504059091e-07,
        2.5005782903295674e-08,
    ),
    log_of_two=(0.6931471805599453, 2.3190468138462996e-17),
    log2=(
        0.4426950408889634,
        -0.7213475204444817,
        0.4808983469630045,
        -0.36067376022216235,
        0.28853900817522915,
        -0.240449173508096,
        0.2060992917326185,
        -0.18033687713027136,
        0.1602994401723897,
        -0.14426966492435334,
        0.13115448270578456,
        -0.12021984880293124,
        0.11096389304006378,
        -0.10312748284512971,
        0.09643667883903323,
        -0.08952164159184638,
        0.08188428454314342,
        -0.08150340869839391,
        0.09323886886201314,
        -0.08665042720051228,
        0.03840753933530181,
    ),
    log=(
        -0.5000000000000003,
        0.33333333333333026,
        -0.2499999999997485,
        0.2000000000008534,
        -0.1666666667136307,
        0.1428571427958947,
        -0.1249999960409977,
        0.11111111101138303,
        -0.10000017952487415,
        0.09090927368365831,
        -0.08332863750189393,
        0.07691434608325483,
        -0.07149943381561556,
        0.06685919028513651,
        -0.061942987882104054,
        0.056590428286639294,
        -0.0567853376035497,
        0.06529570741710405,
        -0.060049653881869273,
        0.02616366441982788,
    ),
    log10_of_two=(0.3010299956639812, -2.8037281277851704e-18),
    log10_of_e=(0.4342944819032518, 1.098319650216765e-17),
    root_half_bits=0x3FE6A09E667F3BCD,
)

_FORMATS: Final = {dtypes.float32: _FLOAT32, dtypes.float64: _FLOAT64}


def _format(name: str, x: Expr) -> _Format:
    found = _FORMATS.get(x.dtype)
    if found is None:
        raise DTypeError(
            f"{name} of {x.dtype} has no expansion; cast to dtypes.float32 first, "
            "and back afterwards"
        )
    return found


# -- exponentials ----------------------------------------------------------------------------------


def _times_power(form: _Format, r: Expr, fit: Sequence[float], shifted: Expr) -> Expr:
    """`(1 + r * fit(r)) * 2**n`, n being what `form.rounder` left in the bits of `shifted`.

    One power of two cannot reach from the least subnormal to overflow, so it is split into two
    halves: the first is added to the exponent of the polynomial, where it cannot leave the range,
    and the second is a factor, whose multiplication rounds a subnormal or overflows. The factor's
    exponent field is 0 where n has been clamped from below: a product with 0.0, which unlike one
    that underflows costs nothing extra. Where r is NaN the bits say nothing, so `r - r` is added.
    """
    scale = 2.0 ** (form.exponent_bias - form.exponent_offset)
    series = _polynomial([coefficient * scale for coefficient in fit], r)
    power = _fma(series, r, _like(scale, r))
    count = _bitcast(shifted, form.unsigned)
    half = _shr(count, 1)
    rest = _sub(count, half)
    raised = _add(_bitcast(power, form.unsigned), _shl(half, form.mantissa_bits))
    factor = _bitcast(_shl(rest, form.mantissa_bits), form.real)
    return _fma(_bitcast(raised, form.real), factor, _sub(r, r))


def exp2(x: Expr) -> Expr:
    """2 to the power of x: x is an integer n plus an r of at most a half.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = _format("exp2", x)
    clamped = _at_most(_at_least(x, -form.exponent_offset), form.exponent_limit)
    rounder = _like(form.rounder, x)
    shifted = _add(clamped, rounder)
    r = _sub(clamped, _sub(shifted, rounder))
    return _times_power(form, r, form.exp2, shifted)


def exp(x: Expr) -> Expr:
    """e to the power of x: `exp2(x * log2(e))` as if the product were exact.

    At the cost of one operation it saves the relative error of `|x| * 2**-24` that the rounded
    product makes.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = _format("exp", x)
    high, low = form.log_of_two
    least = -(form.exponent_offset + 0.25) * high
    clamped = _at_most(_at_least(x, least), form.exponent_limit * high)
    rounder = _like(form.rounder, x)
    shifted = _fma(clamped, _like(1 / high, x), rounder)
    n = _sub(shifted, rounder)
    r = _fma(n, _like(-low, x), _fma(n, _like(-high, x), clamped))
    return _times_power(form, r, form.exp, shifted)


# -- logarithm -------------------------------------------------------------------------------------


def _integer_to_real(form: _Format, n: Expr) -> Expr:
    """A small integer as a float. The conversion of 64 bits is rare in hardware, so use bits."""
    if form is _FLOAT32:
        return cast(n, form.real)
    base = 1.5 * 2.0**form.mantissa_bits
    shifted = _add(n, _bitcast(const(base, form.real), form.signed))
    return _sub(_bitcast(shifted, form.real), const(base, form.real))


def _exponent_and_fraction(form: _Format, x: Expr) -> tuple[Expr, Expr]:
    """(n, f) with x = 2**n * (1 + f) and 1 + f between sqrt(1/2) and sqrt(2)."""
    subnormal = _less(x, _like(form.smallest_normal, x))
    shift = form.mantissa_bits + 1
    normal = _where(subnormal, _mul(x, _like(2.0**shift, x)), x)
    correction = _where(subnormal, _like(-shift, x), _like(0.0, x))
    bits = _bitcast(normal, form.signed)
    exponent = _shr(_sub(bits, const(form.root_half_bits, form.signed)), form.mantissa_bits)
    reduced = _bitcast(_sub(bits, _shl(exponent, form.mantissa_bits)), form.real)
    n = _add(_integer_to_real(form, exponent), correction)
    return n, _sub(reduced, _like(1.0, x))


def _at_the_limits(x: Expr, logarithm: Expr) -> Expr:
    """The logarithm of positive numbers, completed: -inf at zero, NaN below."""
    zero = _like(0.0, x)
    value = _where(_less(x, _like(math.inf, x)), logarithm, x)
    value = _where(_less(x, zero), _like(math.nan, x), value)
    return _where(alu(ExprOp.CMPNE, x, zero), value, _like(-math.inf, x))


def log2(x: Expr) -> Expr:
    """The logarithm to base 2.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = _format("log2", x)
    n, f = _exponent_and_fraction(form, x)
    return _at_the_limits(x, _add(n, _fma(f, _polynomial(form.log2, f), f)))


def log(x: Expr) -> Expr:
    """The natural logarithm: `log2(x) * log(2)` as if neither were rounded.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = _format("log", x)
    n, f = _exponent_and_fraction(form, x)
    fraction = _fma(_mul(f, f), _polynomial(form.log, f), f)
    high, low = form.log_of_two
    return _at_the_limits(x, _fma(n, _like(high, x), _fma(n, _like(low, x), fraction)))


def log10(x: Expr) -> Expr:
    """The logarithm to base 10: `log2(x) * log10(2)` as if neither were rounded.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = _format("log10", x)
    n, f = _exponent_and_fraction(form, x)
    high, low = (_like(part, x) for part in form.log10_of_e)
    linear = _mul(f, high)
    lost = _fma(f, low, _fma(f, high, alu(ExprOp.NEG, linear)))
    curved = _polynomial([form.log10_of_e[0] * c for c in form.log], f)
    fraction = _fma(_mul(f, f), curved, lost)
    high, low = (_like(part, x) for part in form.log10_of_two)
    value = _fma(n, high, _add(linear, _fma(n, low, fraction)))
    return _at_the_limits(x, value)


# -- sine and cosine, float32 ----------------------------------------------------------------------

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


def _magnitude(form: _Format, x: Expr) -> Expr:
    bits = _and(_bitcast(x, form.unsigned), const(form.sign_bit - 1, form.unsigned))
    return _bitcast(bits, form.real)


def _sign(form: _Format, x: Expr) -> Expr:
    """The sign bit where it is, all other bits 0."""
    return _and(_bitcast(x, form.unsigned), const(form.sign_bit, form.unsigned))


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
        whole_and_fraction = _fma(wide, _like(piece, wide), fraction)
        fraction = _sub(whole_and_fraction, _round(whole_and_fraction))
    return _fma(wide, _like(_TURN_PIECES[-1], wide), fraction)


def _sine_of_turns(v: Expr) -> Expr:
    """sin(2*pi*v) for a float64 |v| <= 1/4, right to 28 bits."""
    return _mul(_polynomial(_SINE_OF_TURNS, _mul(v, v)), v)


def _sin_float32(x: Expr) -> Expr:
    turns = _turns(_magnitude(_FLOAT32, x))
    size = _magnitude(_FLOAT64, turns)
    mirrored = _sub(const(0.5, dtypes.float64), size)
    folded = _where(_less(mirrored, size), mirrored, size)
    value = cast(_sine_of_turns(folded), dtypes.float32)
    sign = _xor(_sign(_FLOAT32, cast(turns, dtypes.float32)), _sign(_FLOAT32, x))
    return _bitcast(_xor(_bitcast(value, dtypes.uint32), sign), dtypes.float32)


def _cos_float32(x: Expr) -> Expr:
    size = _magnitude(_FLOAT64, _turns(_magnitude(_FLOAT32, x)))
    return cast(_sine_of_turns(_sub(const(0.25, dtypes.float64), size)), dtypes.float32)


# -- sine and cosine, float64 ----------------------------------------------------------------------

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
    a_high, a_low = _shr(a, 32), _and(a, _LOW_HALF)
    b_high, b_low = _shr(b, 32), _and(b, _LOW_HALF)
    upper = _add(_mul(a_low, b_high), _shr(_mul(a_low, b_low), 32))
    lower = _add(_mul(a_high, b_low), _and(upper, _LOW_HALF))
    return _add(_mul(a_high, b_high), _add(_shr(upper, 32), _shr(lower, 32)))


def _window(position: Expr) -> tuple[Expr, Expr, Expr]:
    """192 digits of 1/(2*pi) from `position` (uint64) on, the first word of zeros counted.

    The word is chosen bit by bit of its number, from the highest: a tree of WHERE, not a table.
    """
    words = [const(word, dtypes.uint64) for word in _TURN_WORDS]
    zero = const(0, dtypes.uint64)
    for bit in reversed(range(5)):
        step = 1 << bit
        chosen = alu(ExprOp.CMPNE, _and(position, const(64 << bit, dtypes.uint64)), zero)
        needed = 4 + step - 1
        words = [
            _where(chosen, words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(min(needed, len(words)))
        ]
    shift = _and(position, const(63, dtypes.uint64))
    counter_shift = _xor(shift, const(63, dtypes.uint64))

    def joined(first: Expr, second: Expr) -> Expr:
        upper = alu(ExprOp.SHL, first, shift)
        return _or(upper, alu(ExprOp.SHR, _shr(second, 1), counter_shift))

    return joined(words[0], words[1]), joined(words[1], words[2]), joined(words[2], words[3])


def _reduce_huge(x: Expr) -> tuple[Expr, Expr]:
    """(r, quadrant) of a float64 from `_HUGE` to the largest, in integers (Payne and Hanek).

    x is an integer m of 53 bits times 2**e. Of m * 2**e / (2*pi) only the fraction counts, so the
    product of m with the 192 digits after the first e is enough: its highest 128 bits are right.
    """
    bits = _bitcast(x, dtypes.uint64)
    fraction_mask = const((1 << 52) - 1, dtypes.uint64)
    m = _or(_and(bits, fraction_mask), const(1 << 52, dtypes.uint64))
    position = _sub(_shr(bits, 52), const(1023 + 52 - 64, dtypes.uint64))
    first, second, third = _window(position)
    low_part = _mul(m, second)
    low = _add(low_part, _high_product(m, third))
    carry = cast(_less(low, low_part), dtypes.uint64)
    turns = _add(_add(_mul(m, first), _high_product(m, second)), carry)
    quadrant = _shr(_add(turns, const(1 << 61, dtypes.uint64)), 62)
    rest = _bitcast(_sub(turns, _shl(quadrant, 62)), dtypes.int64)
    rest_low = _bitcast(_shr(low, 11), dtypes.int64)
    return _radians(rest, rest_low), quadrant


def _radians(high: Expr, low: Expr) -> Expr:
    """`(high * 2**-64 + low * 2**-117) * 2*pi` in float64, from int64: rounded once but for a hair.

    The leading 29 bits of `high` are a float exactly, and so what their product with 2*pi loses in
    rounding is a float too, which a fused multiply-add gives. The rest adds to that.
    """
    leading = cast(_and(high, const(-(1 << 32), dtypes.int64)), dtypes.float64)
    following = cast(_and(high, const((1 << 32) - 1, dtypes.int64)), dtypes.float64)
    following = _fma(cast(low, dtypes.float64), const(2.0**-53, dtypes.float64), following)
    unit, unit_rest = (const(part * 2.0**-64, dtypes.float64) for part in _TWO_PI_PARTS)
    product = _mul(leading, unit)
    lost = _fma(leading, unit, alu(ExprOp.NEG, product))
    return _add(product, _fma(leading, unit_rest, _fma(following, unit, lost)))


def _reduce_small(x: Expr) -> tuple[Expr, Expr]:
    """(r, quadrant) of a float64 from 0 to `_HUGE`: x less n times pi/2 (Cody and Waite)."""
    rounder = _like(1.5 * 2.0**52, x)
    shifted = _fma(x, _like(2 / math.pi, x), rounder)
    n = _sub(shifted, rounder)
    r = x
    for part in _HALF_PI_PARTS:
        r = _fma(n, _like(-part, x), r)
    return r, _bitcast(shifted, dtypes.uint64)


def _wave_float64(x: Expr, quarter: int) -> Expr:
    """The sine of a non-negative float64 plus `quarter` quarter turns."""
    small_r, small_quadrant = _reduce_small(x)
    huge_r, huge_quadrant = _reduce_huge(x)
    is_small = _less(x, _like(_HUGE, x))
    r = _where(is_small, small_r, huge_r)
    quadrant = _add(_where(is_small, small_quadrant, huge_quadrant), const(quarter, dtypes.uint64))
    z = _mul(r, r)
    sine = _fma(_mul(r, z), _polynomial(_SINE, z), r)
    parabola = _fma(z, _like(-0.5, z), _like(1.0, z))
    cosine = _fma(_mul(z, z), _polynomial(_COSINE, z), parabola)
    odd = alu(ExprOp.CMPNE, _and(quadrant, const(1, dtypes.uint64)), const(0, dtypes.uint64))
    value = _bitcast(_where(odd, cosine, sine), dtypes.uint64)
    flip = _shl(_and(quadrant, const(2, dtypes.uint64)), 62)
    signed = _bitcast(_xor(value, flip), dtypes.float64)
    return _where(_less(x, _like(math.inf, x)), signed, _like(math.nan, x))


def _sin_float64(x: Expr) -> Expr:
    value = _wave_float64(_magnitude(_FLOAT64, x), 0)
    signed = _xor(_bitcast(value, dtypes.uint64), _sign(_FLOAT64, x))
    return _bitcast(signed, dtypes.float64)


def sin(x: Expr) -> Expr:
    """The sine of x radians, with the argument reduced exactly however large it is.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = _format("sin", x)
    return _sin_float32(x) if form is _FLOAT32 else _sin_float64(x)


def cos(x: Expr) -> Expr:
    """The cosine of x radians: better than `sin(pi/2 - x)`, whose difference is rounded.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = _format("cos", x)
    if form is _FLOAT32:
        return _cos_float32(x)
    return _wave_float64(_magnitude(_FLOAT64, x), 1)


EXPANSIONS: Final[dict[ExprOp, Callable[[Expr], Expr]]] = {
    ExprOp.EXP2: exp2,
    ExprOp.LOG2: log2,
    ExprOp.SIN: sin,
    ExprOp.COS: cos,
}
# LOG2 times a number that is a function of its own.
_LOGARITHMS: Final = {math.log(2): log, math.log10(2): log10}


def expand(op: ExprOp, x: Expr) -> Expr:
    """`op` of x, of EXP2, LOG2, SIN and COS, without that operation.

    Raises:
        DTypeError: x is neither float32 nor float64.

    >>> from ferrule.expr import toposort
    >>> x = Expr(ExprOp.READ, dtypes.float32, (), "x")
    >>> any(node.op is ExprOp.EXP2 for node in toposort([expand(ExprOp.EXP2, x)]))
    False
    """
    return EXPANSIONS[op](x)


def expand_product(product: Expr, x: Expr) -> Expr | None:
    """`LOG2(x) * c`, for c = log(2) or log10(2), as one function; None of any other product.

    Its rounding errors would add up, and powers of ten would have no whole logarithms.
    """
    logarithm, factor = product.src
    if logarithm.op is not ExprOp.LOG2 or factor.op is not ExprOp.CONST:
        return None
    for number, function in _LOGARITHMS.items():
        if factor is const(number, product.dtype):
            return function(x)
    return None
