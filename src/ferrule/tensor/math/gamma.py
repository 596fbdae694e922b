"""The logarithm of the gamma function, its derivatives, zeta, and sinc, in float64.

Arguments are brought to an interval where a rational function fits, by gamma(x + 1) = x gamma(x);
large ones have Stirling's series, and negative ones are reflected. See the NIST handbook (DLMF),
chapter 5. The rational functions were fitted for this file, by weighted least squares.
"""

from __future__ import annotations

import math

from ferrule.autograd import GradientError, Gradients, GradNode, Rule, TracedValue, record
from ferrule.ir.lazyop import UnaryOps
from ferrule.tensor.math.power import power
from ferrule.tensor.math.special import (
    doubled,
    function_of_one,
    log,
    magnitude,
    polynomial,
    with_sign,
)

Fit = tuple[tuple[float, ...], tuple[float, ...]]

# lgamma(x) / ((x - 1) * (x - 2)) on [0.75, 3], in x - 0.75: numerator and denominator.
_LGAMMA: Fit = (
    (
        0.6504990445801452,
        2.801203033323616,
        4.76995368822308,
        4.096216226891109,
        1.876207787916143,
        0.44629388590826763,
        0.04948692938347719,
        0.0019507870320398045,
        7.880382605422336e-06,
        -5.0636661277264966e-08,
    ),
    (
        1.0,
        4.847912477244374,
        9.506664015443556,
        9.698999254857503,
        5.520877296118866,
        1.7498526471351108,
        0.29133223326879165,
        0.02219423348603627,
        0.0005507114316035227,
    ),
)
# digamma(x) / (x - root) on [1, 2], in x - 1.5: numerator and denominator.
_DIGAMMA: Fit = (
    (
        0.9510558760318328,
        1.1679427099355773,
        0.515443725083171,
        0.10043641519035226,
        0.008383202712804015,
        0.0002301048817132592,
        4.3356912938807895e-07,
    ),
    (
        1.0,
        1.6734769968066168,
        1.0344628642413058,
        0.2991683947001334,
        0.04169089593894335,
        0.002532840105481706,
        4.7493239695706664e-05,
    ),
)
_ROOT = (1.4616321449683622, 9.549995429965697e-17)  # of digamma, as the sum of two
_BERNOULLI = (  # B2, B4, B6, ...
    1 / 6,
    -1 / 30,
    1 / 42,
    -1 / 30,
    5 / 66,
    -691 / 2730,
    7 / 6,
    -3617 / 510,
    43867 / 798,
    -174611 / 330,
    854513 / 138,
    -236364091 / 2730,
)
_LARGE = 10.0  # Stirling's series is exact enough from here


def _ratio(x: TracedValue, fit: Fit) -> TracedValue:
    return polynomial(x, fit[0]) / polynomial(x, fit[1])


def _fraction(x: TracedValue) -> TracedValue:
    """x less the nearest whole number, exactly, so that it has the sine and tangent of pi * x."""
    rest = x - x.alu(UnaryOps.TRUNC)
    size = magnitude(rest)
    return (size > 0.5).where(rest - with_sign(rest.full(1), rest), rest)


# sin(pi * x) / x over x**2, for |x| <= 1/2: SIN would look for multiples of pi.
_SINE = (
    3.141592653589793,
    -5.167712780049969,
    2.5501640398773007,
    -0.5992645293189447,
    0.0821458865731029,
    -0.007370430505916944,
    0.0004662998161898394,
    -2.1903497074626018e-05,
    7.697826768224191e-07,
)


def _sine(x: TracedValue) -> TracedValue:
    """sin(pi * x), for |x| <= 1/2."""
    return x * polynomial(x * x, _SINE)


def _ratio_or_inverse(
    near: TracedValue, fit: Fit, x: TracedValue, other: TracedValue
) -> TracedValue:
    """The fit's ratio at x where `near`, else 1 / other: a division is as long as ten products."""
    over, under = (polynomial(x, part) for part in fit)
    return near.where(over, 1.0) / near.where(under, other)


# *** lgamma ***

_LGAMMA_SERIES = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:8], 1))


def _lgamma_positive(x: TracedValue) -> TracedValue:
    """For x >= 0: Stirling's series, or by the x in [0.75, 3] that differs by a whole number."""
    moderate = x < _LARGE
    small = x < 0.75
    y = small.where(x + 1.0, x)
    product = x.full(1)
    for _ in range(int(_LARGE) - 3):
        above = y > 3.0
        y = above.where(y - 1.0, y)
        product = above.where(product * y, product)
    logarithm = log(moderate.where(small.where(x, product), x))
    ratio = _ratio_or_inverse(moderate, _LGAMMA, y - 0.75, x)
    near = (y - 1.0) * (y - 2.0) * ratio + small.where(-logarithm, logarithm)
    rest = ratio * polynomial(ratio * ratio, _LGAMMA_SERIES)
    far = (x - 0.5) * (logarithm - 1.0) + (rest + (0.5 * math.log(2 * math.pi) - 0.5))
    return moderate.where(near, (x < math.inf).where(far, x))


def _lgamma(x: TracedValue) -> TracedValue:
    """log(abs(gamma(x))): infinite at 0, -1, -2, ..."""
    size = magnitude(x)
    positive = _lgamma_positive(size)
    # gamma(x) * gamma(-x) = -pi / (x * sin(pi * x))
    sine = magnitude(_sine(_fraction(x)))
    tiny = size < 1e-20  # gamma is 1 / x there, and the product might be 0
    logarithm = log(tiny.where(size, sine * size))
    reflected = tiny.where(-logarithm, math.log(math.pi) - logarithm - positive)
    reflected = sine.equals(0).where(size.full(math.inf), reflected)
    return (x < 0).where(reflected, positive)


def _reverse_lgamma(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * digamma(entry.saved[0]),)


# *** digamma ***

_DIGAMMA_SERIES = tuple(-b / (2 * k) for k, b in enumerate(_BERNOULLI[:9], 1))


def _digamma_positive(x: TracedValue) -> TracedValue:
    """The logarithmic derivative of gamma, for x > 0."""
    inverse = x.alu(UnaryOps.RECIP)
    square = inverse * inverse
    large = log(x) - 0.5 * inverse + square * polynomial(square, _DIGAMMA_SERIES)
    small = x < 1.0
    y = small.where(x + 1.0, x)
    over, under = x.full(0), x.full(1)  # of the sum of 1 / y
    for _ in range(int(_LARGE) - 2):
        above = y > 2.0
        y = above.where(y - 1.0, y)
        over, under = above.where(over * y + under, over), above.where(under * y, under)
    near = ((y - _ROOT[0]) - _ROOT[1]) * _ratio(y - 1.5, _DIGAMMA)
    moderate = near + small.where(-inverse, over / under)
    return (x < _LARGE).where(moderate, large)


def _cotangent(x: TracedValue) -> TracedValue:
    """1 / tan(pi * x)."""
    rest = _fraction(x)
    return _sine(0.5 - magnitude(rest)) / _sine(rest)


def _digamma(x: TracedValue) -> TracedValue:
    """The logarithmic derivative of gamma: infinite at 0, NaN at -1, -2, ..."""
    negative = x < 0
    positive = _digamma_positive(negative.where(1.0 - x, x))
    whole = x.equals(x.alu(UnaryOps.TRUNC))
    reflected = positive - _cotangent(x) * math.pi
    result = negative.where(whole.where(x.full(math.nan), reflected), positive)
    return x.equals(0).where(with_sign(x.full(math.inf), -x), result)


def _reverse_digamma(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * polygamma(1, entry.saved[0]),)


digamma = function_of_one("digamma", _digamma, _reverse_digamma, inputs=(0,), within=doubled)
lgamma = function_of_one("lgamma", _lgamma, _reverse_lgamma, inputs=(0,), within=doubled)


# *** polygamma ***


def _whole_power(x: TracedValue, exponent: int) -> TracedValue:
    half = _whole_power(x, exponent // 2) if exponent > 1 else x.full(1)
    return half * half * x if exponent % 2 else half * half


def _zeta_tail(n: int) -> tuple[float, ...]:
    """The coefficients of w**-2k in Euler and Maclaurin's rest of the sum of (x + i)**-(n + 1)."""
    tail = [1 / n]
    for k, b in enumerate(_BERNOULLI, 1):
        rising = math.prod(range(n + 1, n + 2 * k))
        tail.append(b / math.factorial(2 * k) * rising)
    return tuple(tail)


def _polygamma_positive(n: int, x: TracedValue) -> TracedValue:
    """The size of the n-th derivative of digamma, n! * sum of (x + i)**-(n + 1), for x >= 0."""
    terms = 10 + n
    total = x.full(0)
    for i in range(terms):
        total = total + _whole_power((x + float(i)).alu(UnaryOps.RECIP), n + 1)
    inverse = (x + float(terms)).alu(UnaryOps.RECIP)
    rest = polynomial(inverse * inverse, _zeta_tail(n)) + 0.5 * inverse
    return (total + _whole_power(inverse, n) * rest) * float(math.factorial(n))


def _cotangent_derivative(n: int) -> tuple[float, ...]:
    """The n-th derivative of cot(x) as a polynomial in cot(x)."""
    terms = [0.0, 1.0]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(terms)][1:]
        terms = [0.0] * (len(slope) + 2)
        for k, c in enumerate(slope):
            terms[k] -= c
            terms[k + 2] -= c
    return tuple(terms)


def _polygamma(n: int, x: TracedValue) -> TracedValue:
    negative = x < 0
    positive = _polygamma_positive(n, negative.where(1.0 - x, x))
    sign = -1.0 if n % 2 == 0 else 1.0
    # polygamma(n, x) = (-1)**n * polygamma(n, 1 - x) - pi * d**n cot(pi * x)
    slope = polynomial(_cotangent(x), _cotangent_derivative(n)) * math.pi ** (n + 1)
    return negative.where(-positive - slope, positive * sign)


def _reverse_polygamma(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * polygamma(entry.arg + 1, entry.saved[0]),)


_POLYGAMMA = Rule(_reverse_polygamma, inputs=(0,))


_MAX_DERIVATIVES = 170  # of digamma: n! is more than any float64 beyond


def polygamma(n: int, x: TracedValue) -> TracedValue:
    """The n-th derivative of digamma, n from 0 on."""
    if not 0 <= n <= _MAX_DERIVATIVES:
        raise ValueError(
            f"[polygamma] n = {n} counts derivatives; it is from 0 to {_MAX_DERIVATIVES}, "
            "since n! is a factor, and has to be a float64"
        )
    if n == 0:
        return digamma(x)
    result = _polygamma(n, doubled(x)).cast(x.dtype)
    return record("polygamma", _POLYGAMMA, (x,), result.node, n)


# *** zeta ***

_TERMS = 10  # of the sum, before Euler and Maclaurin's rest of it


def _zeta(x: TracedValue, q: TracedValue) -> TracedValue:
    """The sum of (q + k)**-x over k = 0, 1, 2, ..., for q > 0."""
    total = x.full(0)
    for k in range(_TERMS):
        total = total + power(q + float(k), -x)
    w = q + float(_TERMS)
    inverse = w.alu(UnaryOps.RECIP)
    term, rest = x * inverse, x.full(0.5)
    for j, b in enumerate(_BERNOULLI, 1):
        rest = rest + term * (b / math.factorial(2 * j))
        term = term * ((x + (2 * j - 1.0)) * inverse) * ((x + 2.0 * j) * inverse)
    last = power(w, -x)
    rest = last.equals(0).where(last, last * (rest + w / (x - 1.0)))
    result = total + rest
    result = x.equals(1).where(x.full(math.inf), (x < 1).where(x.full(math.nan), result))
    pole = q.equals(q.alu(UnaryOps.TRUNC)).where(x.full(math.inf), x.full(math.nan))
    return (q > 0).where(result, x.equals(x).where(pole, x))


def _reverse_zeta(grad: TracedValue, entry: GradNode) -> Gradients:
    if entry.parents[0] is not None:
        raise GradientError(
            "[zeta] has no gradient by its exponent, only by q; use x.detach() for the exponent"
        )
    x, q = entry.saved
    return None, -(grad * x * zeta(x + 1.0, q))


_ZETA = Rule(_reverse_zeta, inputs=(0, 1))


def zeta(x: TracedValue, q: TracedValue) -> TracedValue:
    """Hurwitz' zeta function, for floats of one type and shape."""
    result = _zeta(doubled(x), doubled(q)).cast(x.dtype)
    return record("zeta", _ZETA, (x, q), result.node, None)


# *** sinc ***


def _sinc(x: TracedValue) -> TracedValue:
    """sin(pi * x) / (pi * x), and 1 at 0."""
    rest = _fraction(x)
    turns = (x - rest) * 0.5
    odd = turns.differs(turns.alu(UnaryOps.TRUNC))
    sine = _sine(rest)
    ratio = odd.where(-sine, sine) / (x * math.pi)
    ratio = magnitude(x).equals(math.inf).where(x.full(0), ratio)
    return x.equals(0).where(x.full(1), ratio)


# The slope of sinc over x, in (pi * x)**2, for |x| < 1/2: the terms of its Taylor series.
_SINC_SLOPE = tuple(
    (-1) ** k * math.pi**2 * 2 * k / math.factorial(2 * k + 1) for k in range(1, 12)
)


def _reverse_sinc(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    near = x.absolute() < 0.5
    angle = x * math.pi
    far = near.where(x.full(1), x)
    slope = (angle.alu(UnaryOps.COS) - sinc(x)) / far
    series = x * polynomial(angle * angle, _SINC_SLOPE)
    return (grad * near.where(series, slope),)


sinc = function_of_one("sinc", _sinc, _reverse_sinc, inputs=(0,), within=doubled)
