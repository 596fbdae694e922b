"""EXP2, LOG2, SIN and COS as expressions: polynomials, fused multiply-adds and operations on bits.

Every function here takes and gives an `Expr` of float32 or float64 and expands it into MUL, ADD,
MULACC, ROUND, integer operations, BITCAST, CAST, WHERE and comparisons: no call into a
library, no table in memory, no branch, so that any number of lanes computes in step. Narrower
floats are computed in float32 by the caller.

| function | float32 | float64 | of its argument |
|---|---|---|---|
| exp2 | 0.85 ulp | 1.0 ulp | all; 18 operations in float32; exact at integers |
| exp | 1.0 ulp | 1.0 ulp | all; 18 operations in float32 |
| near_exp2 | 2**-21 of the result, and as if the argument was off by 1 ulp | | all; float32 only |
| log2 | 1.0 ulp | 1.5 ulp | all; exact at powers of two |
| log, log10 | 0.9 ulp | 1.3 ulp | all |
| sin, cos | 0.6 ulp | 1.6 ulp | all, however large |

Infinities, NaN, signed zeros, subnormal arguments and subnormal results come out as IEEE 754's
recommended functions have them; nothing is flushed to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from ferrule.codegen.emit.floats import (
    FLOAT32,
    Format,
    add,
    at_least,
    at_most,
    bitcast,
    fma,
    format_of,
    less,
    like,
    mul,
    polynomial,
    shl,
    shr,
    sub,
    where,
)
from ferrule.codegen.emit.trigonometry import cos, sin
from ferrule.ir.expr import Expr, ExprOp, alu, cast, const

# -- exponentials ----------------------------------------------------------------------------------


def _times_power(form: Format, r: Expr, fit: Sequence[float], shifted: Expr) -> Expr:
    """`(1 + r * fit(r)) * 2**n`, n being what `form.rounder` left in the bits of `shifted`.

    One power of two cannot reach from the least subnormal to overflow, so it is split into two
    halves: the first is added to the exponent of the polynomial, where it cannot leave the range,
    and the second is a factor, whose multiplication rounds a subnormal or overflows. The factor's
    exponent field is 0 where n has been clamped from below: a product with 0.0, which unlike one
    that underflows costs nothing extra. Where r is NaN the bits say nothing, so `r - r` is added.
    """
    scale = 2.0 ** (form.exponent_bias - form.exponent_offset)
    series = polynomial([coefficient * scale for coefficient in fit], r)
    power = fma(series, r, like(scale, r))
    count = bitcast(shifted, form.unsigned)
    half = shr(count, 1)
    rest = sub(count, half)
    raised = add(bitcast(power, form.unsigned), shl(half, form.mantissa_bits))
    factor = bitcast(shl(rest, form.mantissa_bits), form.real)
    return fma(bitcast(raised, form.real), factor, sub(r, r))


def exp2(x: Expr) -> Expr:
    """2 to the power of x: x is an integer n plus an r of at most a half.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = format_of("exp2", x)
    clamped = at_most(at_least(x, -form.exponent_offset), form.exponent_limit)
    rounder = like(form.rounder, x)
    shifted = add(clamped, rounder)
    r = sub(clamped, sub(shifted, rounder))
    return _times_power(form, r, form.exp2, shifted)


def exp(x: Expr) -> Expr:
    """e to the power of x: `exp2(x * log2(e))` as if the product were exact.

    At the cost of one operation it saves the relative error of `|x| * 2**-24` that the rounded
    product makes.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = format_of("exp", x)
    high, low = form.log_of_two
    least = -(form.exponent_offset + 0.25) * high
    clamped = at_most(at_least(x, least), form.exponent_limit * high)
    rounder = like(form.rounder, x)
    shifted = fma(clamped, like(1 / high, x), rounder)
    n = sub(shifted, rounder)
    r = fma(n, like(-low, x), fma(n, like(-high, x), clamped))
    return _times_power(form, r, form.exp, shifted)


def near_exp2(x: Expr) -> Expr:
    """2 to the power of x, float32, by an instruction that is off by up to 2**-22 of the result.

    That instruction gives 0 for a subnormal result. So the result is the square of the power of
    x/2, which is subnormal only if its square is 0. The operation that is left is NEAR_EXP2, which
    only some targets have.
    """
    if x.op is ExprOp.MUL and x.src[1].op is ExprOp.CONST:
        half = mul(x.src[0], like(0.5 * x.src[1].arg, x))  # exact, unless it is subnormal
    else:
        half = mul(x, like(0.5, x))
    power = alu(ExprOp.NEAR_EXP2, half)
    return mul(power, power)


# -- logarithms ------------------------------------------------------------------------------------


def _integer_to_real(form: Format, n: Expr) -> Expr:
    """A small integer as a float. The conversion of 64 bits is rare in hardware, so use bits."""
    if form is FLOAT32:
        return cast(n, form.real)
    base = 1.5 * 2.0**form.mantissa_bits
    shifted = add(n, bitcast(const(base, form.real), form.signed))
    return sub(bitcast(shifted, form.real), const(base, form.real))


def _exponent_and_fraction(form: Format, x: Expr) -> tuple[Expr, Expr]:
    """(n, f) with x = 2**n * (1 + f) and 1 + f between sqrt(1/2) and sqrt(2)."""
    subnormal = less(x, like(form.smallest_normal, x))
    shift = form.mantissa_bits + 1
    normal = where(subnormal, mul(x, like(2.0**shift, x)), x)
    correction = where(subnormal, like(-shift, x), like(0.0, x))
    bits = bitcast(normal, form.signed)
    exponent = shr(sub(bits, const(form.root_half_bits, form.signed)), form.mantissa_bits)
    reduced = bitcast(sub(bits, shl(exponent, form.mantissa_bits)), form.real)
    n = add(_integer_to_real(form, exponent), correction)
    return n, sub(reduced, like(1.0, x))


def _at_the_limits(x: Expr, logarithm: Expr) -> Expr:
    """The logarithm of positive numbers, completed: -inf at zero, NaN below."""
    zero = like(0.0, x)
    value = where(less(x, like(math.inf, x)), logarithm, x)
    value = where(less(x, zero), like(math.nan, x), value)
    return where(alu(ExprOp.CMPNE, x, zero), value, like(-math.inf, x))


def log2(x: Expr) -> Expr:
    """The logarithm to base 2.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = format_of("log2", x)
    n, f = _exponent_and_fraction(form, x)
    return _at_the_limits(x, add(n, fma(f, polynomial(form.log2, f), f)))


def log(x: Expr) -> Expr:
    """The natural logarithm: `log2(x) * log(2)` as if neither were rounded.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = format_of("log", x)
    n, f = _exponent_and_fraction(form, x)
    fraction = fma(mul(f, f), polynomial(form.log, f), f)
    high, low = form.log_of_two
    return _at_the_limits(x, fma(n, like(high, x), fma(n, like(low, x), fraction)))


def log10(x: Expr) -> Expr:
    """The logarithm to base 10: `log2(x) * log10(2)` as if neither were rounded.

    Raises:
        DTypeError: x is neither float32 nor float64.
    """
    form = format_of("log10", x)
    n, f = _exponent_and_fraction(form, x)
    high, low = (like(part, x) for part in form.log10_of_e)
    linear = mul(f, high)
    lost = fma(f, low, fma(f, high, alu(ExprOp.NEG, linear)))
    curved = polynomial([form.log10_of_e[0] * c for c in form.log], f)
    fraction = fma(mul(f, f), curved, lost)
    high, low = (like(part, x) for part in form.log10_of_two)
    value = fma(n, high, add(linear, fma(n, low, fraction)))
    return _at_the_limits(x, value)


# -- all of them -----------------------------------------------------------------------------------

EXPANSIONS: Final[dict[ExprOp, Callable[[Expr], Expr]]] = {
    ExprOp.EXP2: exp2,
    ExprOp.LOG2: log2,
    ExprOp.SIN: sin,
    ExprOp.COS: cos,
}


# LOG2 times one of these numbers is a function of its own.
_LOGARITHMS: Final = {math.log(2): log, math.log10(2): log10}


def expand(op: ExprOp, x: Expr) -> Expr:
    """`op` of x, one of EXP2, LOG2, SIN and COS, without that operation.

    Raises:
        DTypeError: x is neither float32 nor float64.

    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.expr import toposort
    >>> x = Expr(ExprOp.READ, dtypes.float32, (), "x")
    >>> any(node.op is ExprOp.EXP2 for node in toposort([expand(ExprOp.EXP2, x)]))
    False
    """
    return EXPANSIONS[op](x)


def expand_product(product: Expr, x: Expr) -> Expr | None:
    """`LOG2(x) * c`, for c = log(2) or log10(2), as one function; None for any other product.

    The rounding errors of two operations would add up, and powers of ten would have no whole
    logarithms.
    """
    logarithm, factor = product.src
    if logarithm.op is not ExprOp.LOG2 or factor.op is not ExprOp.CONST:
        return None
    for number, function in _LOGARITHMS.items():
        if factor is const(number, product.dtype):
            return function(x)
    return None
