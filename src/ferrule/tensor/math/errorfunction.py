"""The error function, its complement and its inverse, and the normal distribution's part in GELU.

The polynomials and rational functions were fitted for this file, by Chebyshev interpolation or
weighted least squares of the function named beside them.
"""

from __future__ import annotations

import math

from ferrule.autograd import Gradients, GradNode, TracedValue
from ferrule.base.records import dataclass
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import UnaryOps
from ferrule.tensor.math.special import (
    at_least,
    at_most,
    doubled,
    exp,
    function_of_one,
    log,
    log1p,
    log2_e,
    magnitude,
    polynomial,
    power_of_two,
    sigmoid,
    with_sign,
    within,
)


@dataclass(frozen=True, slots=True)
class _Constants:
    """Of GELU, in one float type: coefficients, the constant one first, and limits."""

    tail: tuple[float, ...]  # (x + pivot) * ndtr(-x), in t = (x - pivot) / (x + pivot)
    pivot: float
    tail_limit: float  # the tail is 0 beyond it
    lift: int  # what makes an exponent at the limit that of a normal number
    gelu_tanh_limit: float  # where exp(2u) is infinite, by less than a factor of 2


_FLOAT32 = _Constants(
    tail=(
        0.70665663,
        -0.433692,
        0.13198696,
        0.009235912,
        -0.016386036,
        -0.0016009558,
        0.0025233352,
        0.00068435154,
        -0.00031089876,
        -0.00015728509,
    ),
    pivot=2.5,
    tail_limit=14.4,
    lift=24,
    gelu_tanh_limit=10.068,
)
_FLOAT64 = _Constants(
    tail=(
        0.729083690133373,
        -0.5093319819174897,
        0.23001771997460377,
        -0.04726302514293706,
        -0.010462867023317253,
        0.006972621239315979,
        0.0010275922592275313,
        -0.0010458286046851858,
        -0.0002565753470467461,
        0.00015439430238662168,
        7.881267194503065e-05,
        -1.3245111387901469e-05,
        -2.0689129912072586e-05,
        -3.5211658476179145e-06,
        3.64007008251216e-06,
        2.2650317011220973e-06,
        7.675851535395574e-09,
        -6.06794310772834e-07,
        -2.724251530581917e-07,
        5.655359806232614e-08,
        9.433115474993926e-08,
        1.6557026691769994e-08,
        -1.299083861149843e-08,
        -4.747399804667277e-09,
    ),
    pivot=3.0,
    tail_limit=38.6,
    lift=53,
    gelu_tanh_limit=21.1615,
)
# (1 + 2z) * exp(z**2) * erfc(z) for float64, in t = (z - 3) / (z + 3).
_ERFC = (
    1.2530080582697296,
    -0.1356211061245812,
    -0.04756229435341897,
    0.12964515870276264,
    -0.11927366341681594,
    0.06830802734392144,
    -0.023770514890662273,
    0.002529391816799663,
    0.0018886900908332905,
    -0.0007798322772742547,
    -0.00010515828085467254,
    0.00012509937435915822,
    4.944031214882928e-06,
    -2.0100627664406107e-05,
    -7.186149396303622e-07,
    3.472520280065519e-06,
    3.3649033965298255e-07,
    -6.167709493550964e-07,
    -1.2038713923616526e-07,
    1.0195717375790894e-07,
    2.7779061599708634e-08,
    -1.3361953304404018e-08,
    -3.169592039553522e-09,
    9.948820947537195e-10,
)
_ERFC_LIMIT = 27.3  # erfc is 0 beyond it
# In float32: erf(x) / x - 1 on [-0.9, 0.9], in x**2; log2(1 - erf(x)) on [0.9, 4].
_ERF_NEAR = (
    0.12837917,
    -0.37612635,
    0.11283715,
    -0.026860507,
    0.0052038543,
    -0.00081755844,
    8.51288e-05,
)
_ERF_FAR = (
    -0.00025627873,
    -1.6269976,
    -0.91908526,
    -0.1500916,
    0.032137476,
    -0.0044078226,
    0.00028441247,
)
# erf(x) / x - 1 on [-1, 1], in x**2, for float64.
_ERF_SMALL = (
    0.12837916709551258,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
)


# erfinv(x) / x on [-0.75, 0.75], in 0.5625 - x**2: numerator and denominator.
_ERFINV = (
    (
        1.0845597967968248,
        7.256532599980053,
        18.57115914477748,
        22.7949214459781,
        13.773787990713949,
        3.761174894592616,
        0.3619458309135967,
        0.005494234005507974,
    ),
    (
        1.0,
        7.209511114117497,
        20.243782377272748,
        27.990991536873906,
        19.853216299885883,
        6.833112449748419,
        0.9615527223098115,
        0.0351270567196218,
    ),
)
# erfinv(1 - 2 exp(-w**2)), from 0.75 to the largest float64 below 1, in w - 1.4375.
_ERFINV_TAIL = (
    (
        0.8078117826712861,
        3.2562145079838536,
        5.080191934152144,
        4.178932724603772,
        2.0329180221778125,
        0.6088675393035813,
        0.11076212650086943,
        0.011387265873810922,
        0.0005648675252741727,
        9.39939688689383e-06,
    ),
    (
        1.0,
        2.4967252760005354,
        2.5942182441669774,
        1.4645463789393007,
        0.4886546745335099,
        0.0967488294544685,
        0.010623511027118015,
        0.0005514026831305498,
        9.399201518061304e-06,
    ),
)
# The y with erfc(y) / 2 = exp(-w**2), for w from 6 to what float64 can hold, in w - 6.
_NDTRI_TAIL = (
    (
        5.74212762765364,
        4.174505169977479,
        1.2341552636946038,
        0.19106915718777231,
        0.016621681312970163,
        0.0008105009555324978,
        2.0861182367210348e-05,
        2.460599363313747e-07,
        9.421218865687628e-10,
    ),
    (
        1.0,
        0.5476664021654156,
        0.1173981433230665,
        0.012500636557016937,
        0.000694686866915015,
        1.942232617450957e-05,
        2.404082651886395e-07,
        9.4212088897662e-10,
    ),
)


def _constants(x: TracedValue) -> _Constants:
    return _FLOAT64 if x.dtype is dtypes.float64 else _FLOAT32


def _erfc_positive(z: TracedValue) -> TracedValue:
    """1 - erf(z) for z >= 0."""
    z = at_most(z, _ERFC_LIMIT)
    square = z * z
    return _tail(z, square, z.muladd(z, -square))


def _tail(z: TracedValue, square: TracedValue, lost: TracedValue) -> TracedValue:
    """erfc(z), where z * z is `square + lost`: exp would magnify the rounding of the square."""
    return exp(-square) * (1.0 - lost) * _scaled_tail(z)


def _scaled_tail(z: TracedValue) -> TracedValue:
    """exp(z**2) * erfc(z) for z >= 0, not infinite."""
    t = (z - 3.0) / (z + 3.0)
    return polynomial(t, _ERFC) / (2.0 * z + 1.0)


def _erf(x: TracedValue) -> TracedValue:
    """The error function."""
    size = magnitude(x)
    square = x * x
    if x.dtype is dtypes.float64:
        near = size.muladd(polynomial(square, _ERF_SMALL), size)
        return with_sign((size < 1.0).where(near, 1.0 - _erfc_positive(size)), x)
    near = size.muladd(polynomial(square, _ERF_NEAR), size)
    rest, scale = power_of_two(polynomial(at_most(size, 4.0), _ERF_FAR), 1.0)
    far = (-rest).muladd(scale, 1.0)
    return with_sign((size < 0.9).where(near, far), x)


def _reverse_erf(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),)


def _erfc(x: TracedValue) -> TracedValue:
    """1 - erf(x), to full precision where it is small."""
    size = magnitude(x)
    tail = _erfc_positive(size)
    square = x * x
    near = 1.0 - x.muladd(polynomial(square, _ERF_SMALL), x)
    return (square < 0.25).where(near, (x < 0).where(2.0 - tail, tail))


def _reverse_erfc(grad: TracedValue, entry: GradNode) -> Gradients:
    (slope,) = _reverse_erf(grad, entry)
    return (None if slope is None else -slope,)


def _ratio(x: TracedValue, fit: tuple[tuple[float, ...], tuple[float, ...]]) -> TracedValue:
    return polynomial(x, fit[0]) / polynomial(x, fit[1])


def _erfinv(x: TracedValue) -> TracedValue:
    """The x with erf(x) the argument: infinite at -1 and 1, NaN outside."""
    size = magnitude(x)
    middle = 0.5625 - size * size
    rest = (1.0 - size) * 0.5
    tail = (-log(rest)).alu(UnaryOps.SQRT) - 1.4375
    near = size < 0.75
    # One division for both: it takes as long as ten products.
    over, under = (
        near.where(polynomial(middle, part), polynomial(tail, tail_part))
        for part, tail_part in zip(_ERFINV, _ERFINV_TAIL, strict=True)
    )
    result = near.where(size, 1.0) * (over / under)
    return with_sign(rest.equals(0).where(rest.full(math.inf), result), x)


def _reverse_erfinv(grad: TracedValue, entry: GradNode) -> Gradients:
    result = entry.result()
    return (grad * (exp(result * result) * (math.sqrt(math.pi) / 2)),)


def _logit(x: TracedValue) -> TracedValue:
    """log(x / (1 - x)), the inverse of the sigmoid; near 1/2 through what is beyond it."""
    middle = magnitude(x - 0.5) < 0.25
    beyond = log1p((x + x - 1.0) / (1.0 - x))
    return middle.where(beyond, log(x / (1.0 - x)))


def _reverse_logit(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad / (x * (1.0 - x)),)


def _ndtr(x: TracedValue) -> TracedValue:
    """The normal distribution's probability of less than x, exact in both tails."""
    near = within(x, (-40.0, 40.0))
    square = near * near
    lost = near.muladd(near, -square)
    tail = 0.5 * _tail(magnitude(near) * math.sqrt(0.5), square * 0.5, lost * 0.5)
    middle = 0.5 + 0.5 * erf(near * math.sqrt(0.5))
    return (square < 0.25).where(middle, (x < 0).where(tail, 1.0 - tail))


def _reverse_ndtr(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad * (exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))),)


# *** tails of the normal distribution: scaled, their logarithm, their inverse ***


def _erfcx(x: TracedValue) -> TracedValue:
    """exp(x**2) * erfc(x)."""
    size = magnitude(x)
    endless = size.equals(math.inf)
    tail = endless.where(size.full(0), _scaled_tail(endless.where(size.full(1), size)))
    near = at_most(size, 40.0)  # the square's exponential is infinite beyond
    square = near * near
    whole = exp(square) * (near.muladd(near, -square) + 1.0)
    return (x < 0).where(2.0 * whole - tail, tail)


def _reverse_erfcx(grad: TracedValue, entry: GradNode) -> Gradients:
    slope = 2.0 * entry.saved[0] * entry.result() - 2 / math.sqrt(math.pi)
    return (grad * slope,)


def _log_ndtr(x: TracedValue) -> TracedValue:
    """The logarithm of the normal distribution's probability of less than x."""
    low = log(0.5 * _erfcx(at_least(x * -math.sqrt(0.5), 0.0))) - 0.5 * x * x
    return (x < -1.0).where(low, log1p(-_ndtr(-x)))


def _reverse_log_ndtr(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * math.sqrt(2 / math.pi) / erfcx(entry.saved[0] * -math.sqrt(0.5)),)


def _ndtri(p: TracedValue) -> TracedValue:
    """The x of which a normal number is less with probability p; NaN outside [0, 1]."""
    beyond = (p - 0.5) * 2.0
    near = beyond * math.sqrt(2) * _ratio(0.5625 - beyond * beyond, _ERFINV)
    rest = (p < 0.5).where(p, 1.0 - p)
    root = (-log(rest)).alu(UnaryOps.SQRT)
    tail = (root < 6.0).where(_ratio(root - 1.4375, _ERFINV_TAIL), _ratio(root - 6.0, _NDTRI_TAIL))
    tail = rest.equals(0).where(rest.full(math.inf), tail * math.sqrt(2))
    return (magnitude(beyond) < 0.75).where(near, (p < 0.5).where(-tail, tail))


def _reverse_ndtri(grad: TracedValue, entry: GradNode) -> Gradients:
    result = entry.result()
    return (grad * (exp(result * result * 0.5) * math.sqrt(2 * math.pi)),)


def _gelu(x: TracedValue) -> TracedValue:
    """x times the normal distribution's probability of less than x, exact in both tails."""
    limit = _constants(x).tail_limit
    near = within(x, (-limit, limit))
    product = near * _normal_tail(near)
    return (x < 0).where(product, x - product)


def _normal_tail(x: TracedValue) -> TracedValue:
    """A normal number's probability of more than the size of x, which is within the limit.

    It is exp(-x**2 / 2) * polynomial(t) / (size + pivot). What rounding takes from the square is
    part of the power.
    """
    known = _constants(x)
    size = magnitude(x)
    share = (size + known.pivot).alu(UnaryOps.RECIP)
    fit = polynomial((size - known.pivot) * share, known.tail)
    square = x * x
    lost = x.muladd(x, -square)
    high, low = (-0.5 * part for part in log2_e(x))
    power, scale = power_of_two(square, high, (square, low), (lost, high), lift=known.lift)
    return fit * share * (power * scale)


def _reverse_gelu(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    density = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    below = (erf(x * math.sqrt(0.5)) + 1.0) * 0.5
    return (grad * (below + within(x, (-50.0, 50.0)) * density),)


_GELU = (2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715)
_GELU_POWER = (-2.3022081981443248, -0.1029432395800235)  # -log2(e) times these


def _gelu_tanh(x: TracedValue) -> TracedValue:
    """x * (1 + tanh(u)) / 2, u = sqrt(2/pi) * (x + 0.044715 x**3), as x / (1 + exp(-2u))."""
    x = at_least(x, -_constants(x).gelu_tanh_limit)
    near = at_most(x, 8.0)  # where the power is nothing beside 1
    double, scale = power_of_two(near, polynomial(near * near, _GELU_POWER), lift=-1)
    return x / double.muladd(scale, 1.0)


def _reverse_gelu_tanh(grad: TracedValue, entry: GradNode) -> Gradients:
    x = within(entry.saved[0], (-40.0, 40.0))
    square = x * x
    gate = sigmoid(x * polynomial(square, _GELU))
    slope = polynomial(square, (_GELU[0], 3 * _GELU[1]))
    return (grad * (gate + x * slope * gate * (1.0 - gate)),)


erf = function_of_one("erf", _erf, _reverse_erf, inputs=(0,))
erfc = function_of_one("erfc", _erfc, _reverse_erfc, inputs=(0,), within=doubled)
erfinv = function_of_one("erfinv", _erfinv, _reverse_erfinv, output=True, within=doubled)
logit = function_of_one("logit", _logit, _reverse_logit, inputs=(0,), within=doubled)
ndtr = function_of_one("ndtr", _ndtr, _reverse_ndtr, inputs=(0,), within=doubled)
erfcx = function_of_one("erfcx", _erfcx, _reverse_erfcx, inputs=(0,), output=True, within=doubled)
log_ndtr = function_of_one("log_ndtr", _log_ndtr, _reverse_log_ndtr, inputs=(0,), within=doubled)
ndtri = function_of_one("ndtri", _ndtri, _reverse_ndtri, output=True, within=doubled)
gelu = function_of_one("gelu", _gelu, _reverse_gelu, inputs=(0,))
gelu_tanh = function_of_one("gelu_tanh", _gelu_tanh, _reverse_gelu_tanh, inputs=(0,))
