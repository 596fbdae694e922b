"""Building blocks of the expanded functions: short names for operations, and float formats.

A format has the fits that reach its precision. The coefficients are minimax fits of our own, in
relative error. They come from an iteratively reweighted least-squares fit (Lawson's method) on a
Chebyshev grid in 240 bits. Each time the lowest free coefficient is rounded to the type, the others
are fitted anew. The leading 1 of the exponentials is kept, so that they are exact where the reduced
argument is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, DTypeError, dtypes
from ferrule.ir.expr import Expr, ExprOp, alu, const
from ferrule.ir.fits import EXP2_FLOAT32, EXP2_FLOAT64

# -- short names for building ----------------------------------------------------------------------


def add(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.ADD, a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.SUB, a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.MUL, a, b)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """`a * b + c`, rounded once."""
    return alu(ExprOp.MULACC, a, b, c)


def rounded(x: Expr) -> Expr:
    return alu(ExprOp.ROUND, x)


def less(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.CMPLT, a, b)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.WHERE, condition, a, b)


def and_(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.AND, a, b)


def xor(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.XOR, a, b)


def or_(a: Expr, b: Expr) -> Expr:
    return alu(ExprOp.OR, a, b)


def shl(x: Expr, count: int) -> Expr:
    return alu(ExprOp.SHL, x, const(count, x.dtype))


def shr(x: Expr, count: int) -> Expr:
    return alu(ExprOp.SHR, x, const(count, x.dtype))


def bitcast(x: Expr, dtype: DType) -> Expr:
    return Expr(ExprOp.BITCAST, dtype, (x,))


def like(value: float, x: Expr) -> Expr:
    return const(value, x.dtype)


def at_least(x: Expr, low: float) -> Expr:
    """The greater of x and a number; NaN stays. As a WHERE it is one instruction, MAX is three."""
    bound = like(low, x)
    return where(less(x, bound), bound, x)


def at_most(x: Expr, high: float) -> Expr:
    bound = like(high, x)
    return where(less(bound, x), bound, x)


def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's rule, the constant coefficient first in `coefficients`."""
    value = like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        value = fma(value, x, like(coefficient, x))
    return value


# -- formats ---------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Format:
    """A float type's layout, and the fits that reach its precision."""

    real: DType
    unsigned: DType
    signed: DType
    mantissa_bits: int
    smallest_normal: float
    exponent_offset: int
    """The number added to a power's exponent n so that it can be counted: n + offset is 0 at the
    greatest n whose 2**n is exactly zero, with a margin, and positive above.
    """
    exponent_limit: int
    """2**limit overflows."""
    exp2: tuple[float, ...]
    """(2**r - 1) / r for |r| <= 1/2."""
    exp: tuple[float, ...]
    """(e**r - 1) / r for |r| <= log(2)/2."""
    log_of_two: tuple[float, float]
    """The natural logarithm of 2 as the sum of two numbers."""
    log2: tuple[float, ...]
    """log2(1 + f) / f - 1 for sqrt(1/2) <= 1 + f <= sqrt(2)."""
    log: tuple[float, ...]
    """(log(1 + f) - f) / f**2 in the same range."""
    log10_of_two: tuple[float, float]
    """The logarithm of 2 to base 10 as the sum of two numbers."""
    log10_of_e: tuple[float, float]
    """The logarithm of e to base 10 as the sum of two numbers."""
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


FLOAT32: Final = Format(
    real=dtypes.float32,
    unsigned=dtypes.uint32,
    signed=dtypes.int32,
    mantissa_bits=23,
    smallest_normal=2.0**-126,
    exponent_offset=152,
    exponent_limit=129,
    exp2=EXP2_FLOAT32[1:],
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
FLOAT64: Final = Format(
    real=dtypes.float64,
    unsigned=dtypes.uint64,
    signed=dtypes.int64,
    mantissa_bits=52,
    smallest_normal=2.0**-1022,
    exponent_offset=1077,
    exponent_limit=1025,
    exp2=EXP2_FLOAT64[1:],
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
_FORMATS: Final = {dtypes.float32: FLOAT32, dtypes.float64: FLOAT64}


def format_of(name: str, x: Expr) -> Format:
    found = _FORMATS.get(x.dtype)
    if found is None:
        raise DTypeError(
            f"{name} of {x.dtype} has no expansion; cast to dtypes.float32 first, "
            "and back afterwards"
        )
    return found
