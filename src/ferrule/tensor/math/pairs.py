"""Functions, mostly of two values of one dtype and shape, each with a reverse rule of its own."""

from __future__ import annotations

import math
from typing import Final

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.math.special import (
    at_least,
    at_most,
    doubled,
    exp,
    log,
    log1p,
    magnitude,
    with_sign,
)

# *** floats ***


def _reverse_copysign(grad: TracedValue, entry: GradNode) -> Gradients:
    size, sign = entry.saved
    one = size.full(1)
    factor = with_sign(one, size) * with_sign(one, sign)
    # At NaN the derivative is NaN: the sign of a NaN says nothing, and differs between devices.
    factor = size.differs(size).where(size, factor)
    return grad * size.equals(0).where(size.full(0), factor), None


_COPYSIGN = Rule(_reverse_copysign, inputs=(0, 1))


def copysign(size: TracedValue, sign: TracedValue) -> TracedValue:
    """The size of one float with the sign of another; the gradient at 0 is 0."""
    return record("copysign", _COPYSIGN, (size, sign), with_sign(size, sign).node, None)


def _hypot(a: TracedValue, b: TracedValue) -> TracedValue:
    """sqrt(a**2 + b**2) in float64, scaled so that no square is lost."""
    a, b = magnitude(a), magnitude(b)
    larger = a.maximum(b)
    down, up = larger > 2.0**500, larger < 2.0**-450
    one = a.full(1)
    scale = down.where(a.full(2.0**-600), up.where(a.full(2.0**600), one))
    back = down.where(a.full(2.0**600), up.where(a.full(2.0**-600), one))
    a, b = a * scale, b * scale
    length = a.muladd(a, b * b).alu(UnaryOps.SQRT) * back
    infinite = a.equals(math.inf).alu(BinaryOps.OR, b.equals(math.inf))
    return infinite.where(a.full(math.inf), length)


def _reverse_hypot(grad: TracedValue, entry: GradNode) -> Gradients:
    a, b = entry.saved
    length = entry.result()
    share = length.equals(0).where(grad.full(0), grad / length)
    return share * a, share * b


_HYPOT = Rule(_reverse_hypot, inputs=(0, 1), output=True)


def hypot(a: TracedValue, b: TracedValue) -> TracedValue:
    """sqrt(a**2 + b**2), which is finite wherever the result is; infinite if either is."""
    result = _hypot(doubled(a), doubled(b)).cast(a.dtype)
    return record("hypot", _HYPOT, (a, b), result.node, None)


def _logaddexp(a: TracedValue, b: TracedValue) -> TracedValue:
    distance = a.equals(b).where(a.full(0), magnitude(a - b))
    return a.maximum(b) + log1p(exp(-distance))


def _reverse_logaddexp(grad: TracedValue, entry: GradNode) -> Gradients:
    total = entry.result()
    return tuple(
        grad * part.equals(total).where(part.full(1), exp(part - total)) for part in entry.saved
    )


_LOGADDEXP = Rule(_reverse_logaddexp, inputs=(0, 1), output=True)


def logaddexp(a: TracedValue, b: TracedValue) -> TracedValue:
    """log(exp(a) + exp(b)), without overflow."""
    result = _logaddexp(doubled(a), doubled(b)).cast(a.dtype)
    return record("logaddexp", _LOGADDEXP, (a, b), result.node, None)


def _quotient(x: TracedValue, y: TracedValue) -> TracedValue:
    """x / y, and 0 where both are: a product with x is 0 there, whatever y is."""
    return x / x.equals(0).alu(BinaryOps.AND, y.equals(0)).where(y.full(1), y)


def _reverse_xlogy(grad: TracedValue, entry: GradNode) -> Gradients:
    x, y = entry.saved
    nothing = x.equals(0).alu(BinaryOps.AND, (y > 0).alu(UnaryOps.NEG))
    return nothing.where(grad.full(0), grad * log(y)), grad * _quotient(x, y)


_XLOGY = Rule(_reverse_xlogy, inputs=(0, 1))


def xlogy(x: TracedValue, y: TracedValue) -> TracedValue:
    """x * log(y), and 0 where x is 0, unless y is NaN."""
    a, b = doubled(x), doubled(y)
    product = a * log(b)
    known = a.equals(0).alu(BinaryOps.AND, b.equals(b))
    result = known.where(a.full(0), product).cast(x.dtype)
    return record("xlogy", _XLOGY, (x, y), result.node, None)


def _reverse_entr(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    return (-grad * (log(x) + 1.0),)


_ENTR = Rule(_reverse_entr, inputs=(0,))


def entr(x: TracedValue) -> TracedValue:
    """-x * log(x): 0 at 0, where its slope is infinite, and -inf for negative numbers."""
    entropy = (x < 0).where(x.full(-math.inf), -xlogy(x, x))
    return record("entr", _ENTR, (x,), entropy.node, None)


def _reverse_xlog1py(grad: TracedValue, entry: GradNode) -> Gradients:
    x, y = entry.saved
    nothing = x.equals(0).alu(BinaryOps.AND, (y > -1.0).alu(UnaryOps.NEG))
    return nothing.where(grad.full(0), grad * log1p(y)), grad * _quotient(x, y + 1.0)


_XLOG1PY = Rule(_reverse_xlog1py, inputs=(0, 1))


def xlog1py(x: TracedValue, y: TracedValue) -> TracedValue:
    """x * log(1 + y), and 0 where x is 0, unless y is NaN."""
    a, b = doubled(x), doubled(y)
    product = a * log1p(b)
    known = a.equals(0).alu(BinaryOps.AND, b.equals(b))
    result = known.where(a.full(0), product).cast(x.dtype)
    return record("xlog1py", _XLOG1PY, (x, y), result.node, None)


def ldexp(x: TracedValue, exponent: TracedValue) -> TracedValue:
    """x * 2**exponent, in two factors, so that neither overflows before the product does."""
    wide = x.cast(dtypes.float64)
    power = at_most(at_least(exponent.cast(dtypes.float64), -4400.0), 4400.0)
    half = (power * 0.25).alu(UnaryOps.TRUNC)
    factor = half.alu(UnaryOps.EXP2)
    rest = (power - 3.0 * half).alu(UnaryOps.EXP2)
    return (wide * factor * factor * factor * rest).cast(x.dtype)


def exponent_of(x: TracedValue) -> TracedValue:
    """The e with 0.5 <= |x| / 2**e < 1 as int32; 0 for 0, infinities and NaN."""
    wide = magnitude(doubled(x))
    tiny = wide < 2.0**-1022
    bits = tiny.where(wide * 2.0**54, wide).bitcast(dtypes.int64)
    biased = bits.alu(BinaryOps.SHR, bits.full(52)).cast(dtypes.int32)
    exponent = biased - tiny.where(biased.full(1022 + 54), biased.full(1022))
    usual = (wide > 0).alu(BinaryOps.AND, wide < math.inf)
    return usual.where(exponent, exponent.full(0))


_PATTERNS: Final = {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


def _nextafter(x: TracedValue, towards: TracedValue) -> TracedValue:
    """As bits, one more or one less."""
    pattern = _PATTERNS[x.dtype.itemsize]
    bits = x.bitcast(pattern)
    grows = (x < towards).equals(x > 0).where(bits.full(1), -1)
    # The bits of 1 are those of the smallest positive number.
    from_zero = with_sign(bits.full(1).bitcast(x.dtype), towards)
    moved = x.equals(0).where(from_zero, (bits + grows).bitcast(x.dtype))
    result = x.equals(towards).where(towards, moved)
    return x.equals(x).alu(BinaryOps.AND, towards.equals(towards)).where(result, x + towards)


def _reverse_nextafter(grad: TracedValue, entry: GradNode) -> Gradients:
    x, towards = entry.saved
    return x.equals(towards).where(grad.full(0), grad), None


_NEXTAFTER = Rule(_reverse_nextafter, inputs=(0, 1))


def nextafter(x: TracedValue, towards: TracedValue) -> TracedValue:
    """The float next to `x` on the way to another, which has no part in the gradient."""
    result = _nextafter(x.detach(), towards.detach())
    return record("nextafter", _NEXTAFTER, (x, towards), result.node, None)


# *** integers ***


def _size_of(x: TracedValue) -> TracedValue:
    """The absolute values of integers; the least integer wraps to itself."""
    return x if dtypes.is_unsigned(x.dtype) else (x < 0).where(-x, x)


def gcd(a: TracedValue, b: TracedValue) -> TracedValue:
    """The greatest common divisor of two integers, by Euclid's algorithm.

    A remainder by 0 is the dividend, so at the end one of the two is 0 and the other the result,
    which stay so. Neighbouring Fibonacci numbers take most steps, 1.4404 for each bit.
    """
    a, b = _size_of(a), _size_of(b)
    for _ in range(math.ceil(1.4404 * a.dtype.bits) + 2):
        a, b = b, a.alu(BinaryOps.MOD, b)
    return _size_of(a.alu(BinaryOps.OR, b))


def lcm(a: TracedValue, b: TracedValue) -> TracedValue:
    """The least common multiple of two integers; 0 if either is 0."""
    return _size_of(a.alu(BinaryOps.DIV, gcd(a, b)) * b)
