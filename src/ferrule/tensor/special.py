"""Functions made of several primitive ops, to a few units in the last place.

Each has a reverse rule of its own. The forward parts are written for float32 and float64; narrower
types compute in float32 and round once. No value within range overflows on the way, and infinities
give limits. The polynomials and rational functions were fitted for this file, by Chebyshev
interpolation or weighted least squares of the function named beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferrule.dtype import dtypes
from ferrule.gradient import Entry, Gradients, Number, Rule, Value, record
from ferrule.ops import BinaryOps, UnaryOps

Function = Callable[[Value], Value]
_NARROW = (dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2)


def widened(x: Value) -> Value:
    """The value outside the tape, in a type that the forward parts are written for."""
    return x.detach().cast(dtypes.float32) if x.dtype in _NARROW else x.detach()


def function_of_one(
    name: str,
    forward: Function,
    reverse: Callable[[Value, Entry], Gradients],
    inputs: tuple[int, ...] = (),
    output: bool = False,
) -> Function:
    """`forward` as one entry of the tape with the rule `reverse`."""
    rule = Rule(reverse, inputs, output)

    def function(x: Value) -> Value:
        result = forward(widened(x)).cast(x.dtype)
        return record(name, rule, (x,), result.node, None)

    function.__name__ = name
    function.__doc__ = forward.__doc__
    return function


# *** what depends on the width of the float ***


@dataclass(frozen=True, slots=True)
class _Constants:
    """Coefficients, the constant one first, and limits."""

    expm1: tuple[float, ...]  # (expm1(x) - x) / x**2 on [-0.5, 0.5]
    sinh: tuple[float, ...]  # (sinh(x) / x - 1) / x**2 on [-1, 1], in x**2
    tanh: tuple[float, ...]  # (tanh(x) / x - 1) / x**2 on [-0.6, 0.6], in x**2
    near_log_2: float  # a little above log(2), and so short that subtracting it is exact
    half_of_its_exp: float  # e**near_log_2 / 2 - 1
    erfc: tuple[float, ...]  # (1 + 2z) * exp(z**2) * erfc(z), in t = (z - pivot) / (z + pivot)
    erfc_pivot: float
    erfc_limit: float  # erfc is 0 beyond it


_FLOAT32 = _Constants(
    expm1=(
        0.5,
        0.1666666716337204,
        0.0416666679084301,
        0.008333181962370872,
        0.0013888737885281444,
        0.00019962176156695932,
        2.492243584129028e-05,
    ),
    sinh=(0.16666667, 0.0083333505, 0.00019836158, 2.8169584e-06),
    tanh=(-0.3333333, 0.13333246, -0.053952172, 0.021732766, -0.008262879, 0.002227117),
    near_log_2=0.6931610107421875,
    half_of_its_exp=1.3830277879601902e-05,
    erfc=(
        1.2769783735275269,
        -0.09276381880044937,
        -0.1660310924053192,
        0.16405050456523895,
        -0.054211996495723724,
        -0.008024739101529121,
        0.00868925265967846,
        0.001230503199622035,
        -0.0013958050403743982,
        -0.0003709284064825624,
        0.00016084033995866776,
        6.807514728279784e-05,
    ),
    erfc_pivot=2.0,
    erfc_limit=10.1,
)
_FLOAT64 = _Constants(
    expm1=(
        0.5,
        0.16666666666666666,
        0.041666666666666664,
        0.0083333333333334,
        0.001388888888888893,
        0.0001984126984105686,
        2.4801587301454233e-05,
        2.755731951602831e-06,
        2.7557319406457273e-07,
        2.50519137456348e-08,
        2.0876635370907816e-09,
        1.6121291390767837e-10,
        1.1509642370665761e-11,
    ),
    sinh=(
        0.16666666666666666,
        0.008333333333333333,
        0.000198412698412696,
        2.7557319224116602e-06,
        2.5052108346446e-08,
        1.6059050608379955e-10,
        7.646482474164971e-13,
        2.848243206680055e-15,
    ),
    tanh=(
        -0.3333333333333333,
        0.1333333333333326,
        -0.053968253968198536,
        0.021869488533999632,
        -0.008863235480355895,
        0.003592127302928258,
        -0.0014558270246971788,
        0.0005899758723010267,
        -0.0002388734083517753,
        9.601683715649769e-05,
        -3.706850845937569e-05,
        1.2223678920978601e-05,
        -2.4553130976389652e-06,
    ),
    near_log_2=0.6931471805601177,
    half_of_its_exp=1.7239444525616322e-13,
    erfc=(
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
    ),
    erfc_pivot=3.0,
    erfc_limit=27.3,
)
# erf(x) / x on [-3.92, 3.92], in x**2: numerator and denominator.
_ERF = (
    (
        1.1283791065216064,
        0.19040535390377045,
        0.05274847894906998,
        0.0037655376363545656,
        0.00028487551026046276,
        2.0500272057688562e-06,
    ),
    (
        1.0,
        0.5020750761032104,
        0.11410856246948242,
        0.014969069510698318,
        0.0011625058250501752,
        3.809071131399833e-05,
    ),
)
# erf(x) / x on [-1, 1], in x**2, for float64.
_ERF_SMALL = (
    1.1283791670955126,
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


def constants(x: Value) -> _Constants:
    return _FLOAT64 if x.dtype is dtypes.float64 else _FLOAT32


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with these coefficients, the constant one first."""
    result = x.full(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.muladd(x, coefficient)
    return result


def at_least(x: Value, low: Number) -> Value:
    """`x`, or `low` where it is smaller; NaN stays."""
    bound = x.full(low)
    return (x < bound).where(bound, x)


def at_most(x: Value, high: Number) -> Value:
    """`x`, or `high` where it is larger; NaN stays."""
    bound = x.full(high)
    return (bound < x).where(bound, x)


def _within(x: Value, limits: tuple[float, float]) -> Value:
    return at_most(at_least(x, limits[0]), limits[1])


_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def sign_bits(x: Value) -> Value:
    """The sign of each float where it is in memory, all other bits 0, as an unsigned integer."""
    bits = x.detach().bitcast(_BITS[x.dtype.itemsize])
    return bits.alu(BinaryOps.AND, bits.full(1 << (x.dtype.bits - 1)))


def magnitude(x: Value) -> Value:
    """Each float without its sign, outside the tape."""
    bits = x.detach().bitcast(_BITS[x.dtype.itemsize])
    size = bits.alu(BinaryOps.AND, bits.full((1 << (x.dtype.bits - 1)) - 1))
    return size.bitcast(x.dtype)


def with_sign(size: Value, sign: Value) -> Value:
    """Floats with the sign of others, zeros and NaN included."""
    positive = magnitude(size).bitcast(_BITS[size.dtype.itemsize])
    return positive.alu(BinaryOps.OR, sign_bits(sign)).bitcast(size.dtype)


# *** exponentials and logarithms ***


def _exp(x: Value) -> Value:
    """e**x. Devices take exp2 of a product with log2(e) as one: its rounding would be magnified."""
    return (x * (1 / math.log(2))).alu(UnaryOps.EXP2)


def _expm1(x: Value) -> Value:
    """e**x - 1, without cancellation near 0."""
    square = x * x
    near = square.muladd(polynomial(x, constants(x).expm1), x)
    return with_sign((square < 0.25).where(near, _exp(x) - 1.0), x)


def _log(x: Value) -> Value:
    """The natural logarithm. Devices take log2 times log(2) as one, as they do with exp2."""
    return x.alu(UnaryOps.LOG2) * math.log(2)


def _log1p(x: Value) -> Value:
    """ln(1 + x): the part of x that 1 + x lost is added to first order."""
    total = x + 1.0
    lost = (x - (total - 1.0)) / total
    usable = lost.equals(lost)  # not at -1 and infinity, where it is NaN
    return with_sign(_log(total) + usable.where(lost, 0.0), x)


exp = function_of_one("exp", _exp, lambda grad, entry: (grad * entry.result(),), output=True)
expm1 = function_of_one(
    "expm1", _expm1, lambda grad, entry: (grad * (entry.result() + 1.0),), output=True
)
log = function_of_one("log", _log, lambda grad, entry: (grad / entry.saved[0],), inputs=(0,))
log1p = function_of_one(
    "log1p", _log1p, lambda grad, entry: (grad / (entry.saved[0] + 1.0),), inputs=(0,)
)


# *** trigonometric and hyperbolic functions ***


def _reverse_sin(grad: Value, entry: Entry) -> Gradients:
    return (grad * cos(entry.saved[0]),)


def _reverse_cos(grad: Value, entry: Entry) -> Gradients:
    return (-(grad * sin(entry.saved[0])),)


def _tan(x: Value) -> Value:
    """The tangent."""
    return x.alu(UnaryOps.SIN) / x.alu(UnaryOps.COS)


def _reverse_tan(grad: Value, entry: Entry) -> Gradients:
    result = entry.result()
    return (grad * (result * result + 1.0),)


def _tanh(x: Value) -> Value:
    """The hyperbolic tangent: 1 - 2 / (e**2x + 1), or a polynomial of small x."""
    size = magnitude(x)
    square = size * size
    near = (size * square).muladd(polynomial(square, constants(x).tanh), size)
    far = 1.0 - 2.0 / (_exp(size + size) + 1.0)
    return with_sign((size < 0.6).where(near, far), x)


def _reverse_tanh(grad: Value, entry: Entry) -> Gradients:
    result = entry.result()
    return (grad * (1.0 - result * result),)


def _half_exp(x: Value) -> Value:
    """e**x / 2, which overflows only where it is too large itself."""
    power = _exp(x - constants(x).near_log_2)
    return power.muladd(constants(x).half_of_its_exp, power)


def _sinh(x: Value) -> Value:
    """The hyperbolic sine."""
    size = magnitude(x)
    square = size * size
    near = (size * square).muladd(polynomial(square, constants(x).sinh), size)
    half = _half_exp(size)
    return with_sign((size < 1.0).where(near, half - 0.25 / half), x)


def _cosh(x: Value) -> Value:
    """The hyperbolic cosine."""
    half = _half_exp(magnitude(x))
    return half + 0.25 / half


def _reverse_sinh(grad: Value, entry: Entry) -> Gradients:
    return (grad * cosh(entry.saved[0]),)


def _reverse_cosh(grad: Value, entry: Entry) -> Gradients:
    return (grad * sinh(entry.saved[0]),)


sin = function_of_one("sin", lambda x: x.alu(UnaryOps.SIN), _reverse_sin, inputs=(0,))
cos = function_of_one("cos", lambda x: x.alu(UnaryOps.COS), _reverse_cos, inputs=(0,))
tan = function_of_one("tan", _tan, _reverse_tan, output=True)
tanh = function_of_one("tanh", _tanh, _reverse_tanh, output=True)
sinh = function_of_one("sinh", _sinh, _reverse_sinh, inputs=(0,))
cosh = function_of_one("cosh", _cosh, _reverse_cosh, inputs=(0,))


# *** sigmoids ***


def _relu(x: Value) -> Value:
    """x where it is positive, else 0."""
    return x.maximum(0)


def _reverse_relu(grad: Value, entry: Entry) -> Gradients:
    return ((entry.result() > 0).where(grad, 0),)


def _sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x): 0 where the power overflows, which is where no normal number is as small."""
    return (_exp(-x) + 1.0).alu(UnaryOps.RECIP)


def _reverse_sigmoid(grad: Value, entry: Entry) -> Gradients:
    result = entry.result()
    return (grad * (result * (1.0 - result)),)


def _softplus(x: Value) -> Value:
    """ln(1 + e**x)."""
    return x.maximum(0.0) + _log1p(_exp(-x.absolute()))


def _silu(x: Value) -> Value:
    """x * sigmoid(x); the sigmoid is 0 below the bound."""
    return at_least(x, -800.0) * _sigmoid(x)


def _reverse_silu(grad: Value, entry: Entry) -> Gradients:
    x = at_least(entry.saved[0], -800.0)
    gate = sigmoid(x)
    return (grad * (gate + x * gate * (1.0 - gate)),)


relu = function_of_one("relu", _relu, _reverse_relu, output=True)
sigmoid = function_of_one("sigmoid", _sigmoid, _reverse_sigmoid, output=True)
softplus = function_of_one(
    "softplus", _softplus, lambda grad, entry: (grad * sigmoid(entry.saved[0]),), inputs=(0,)
)
silu = function_of_one("silu", _silu, _reverse_silu, inputs=(0,))


# *** the error function ***


def _erfc_positive(z: Value) -> Value:
    """1 - erf(z) for z >= 0."""
    z = at_most(z, constants(z).erfc_limit)
    square = z * z
    return _tail(z, square, z.muladd(z, -square))


def _tail(z: Value, square: Value, lost: Value) -> Value:
    """erfc(z), where z * z is `square + lost`: exp would magnify the rounding of the square."""
    known = constants(z)
    t = (z - known.erfc_pivot) / (z + known.erfc_pivot)
    return _exp(-square) * (1.0 - lost) * polynomial(t, known.erfc) / (2.0 * z + 1.0)


def _erf(x: Value) -> Value:
    """The error function."""
    if x.dtype is not dtypes.float64:
        x = _within(x, (-3.92, 3.92))
        square = x * x
        ratio = x * polynomial(square, _ERF[0]) / polynomial(square, _ERF[1])
        return _within(ratio, (-1.0, 1.0))
    square = x * x
    near = x * polynomial(square, _ERF_SMALL)
    positive = 1.0 - _erfc_positive(x.absolute())
    return (square < 1.0).where(near, (x < 0).where(-positive, positive))


def _reverse_erf(grad: Value, entry: Entry) -> Gradients:
    x = entry.saved[0]
    return (grad * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),)


def _gelu(x: Value) -> Value:
    """x times the normal distribution's probability of less than x, exact in both tails."""
    near = _within(x, (-40.0, 40.0))  # the tail is 0 outside
    square = near * near
    lost = near.muladd(near, -square)
    tail = 0.5 * _tail(near.absolute() * math.sqrt(0.5), square * 0.5, lost * 0.5)
    product = near * tail
    return (x < 0).where(product, x - product)


def _reverse_gelu(grad: Value, entry: Entry) -> Gradients:
    x = entry.saved[0]
    density = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    below = (erf(x * math.sqrt(0.5)) + 1.0) * 0.5
    return (grad * (below + _within(x, (-50.0, 50.0)) * density),)


_GELU = (2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715)


def _gelu_tanh(x: Value) -> Value:
    """x * (1 + tanh(u)) / 2, u = sqrt(2/pi) * (x + 0.044715 x**3), as x * sigmoid(2u)."""
    x = at_least(x, -40.0)
    return x * _sigmoid(x * polynomial(x * x, _GELU))


def _reverse_gelu_tanh(grad: Value, entry: Entry) -> Gradients:
    x = _within(entry.saved[0], (-40.0, 40.0))
    square = x * x
    gate = sigmoid(x * polynomial(square, _GELU))
    slope = polynomial(square, (_GELU[0], 3 * _GELU[1]))
    return (grad * (gate + x * slope * gate * (1.0 - gate)),)


erf = function_of_one("erf", _erf, _reverse_erf, inputs=(0,))
gelu = function_of_one("gelu", _gelu, _reverse_gelu, inputs=(0,))
gelu_tanh = function_of_one("gelu_tanh", _gelu_tanh, _reverse_gelu_tanh, inputs=(0,))


# *** powers ***


def _power(base: Value, exponent: Value) -> Value:
    """base**exponent for floats, with C's rules for zeros, infinities and negative bases."""
    size = base.absolute().alu(UnaryOps.LOG2)
    product = exponent * size
    lost = exponent.muladd(size, -product)
    lost = lost.equals(lost).where(lost, 0.0)
    power = product.alu(UnaryOps.EXP2) * lost.muladd(math.log(2), 1.0)
    power = (base < 0).where(_signed_power(base, power, exponent), power)
    one = exponent.equals(0).alu(BinaryOps.OR, base.equals(1))
    minus_one = base.equals(-1).alu(BinaryOps.AND, exponent.absolute().equals(math.inf))
    return one.alu(BinaryOps.OR, minus_one).where(base.full(1), power)


def _signed_power(base: Value, power: Value, exponent: Value) -> Value:
    """The power of a negative base, from that of its size: NaN unless the exponent is whole."""
    whole = exponent.equals(exponent.alu(UnaryOps.TRUNC))
    halved = exponent * 0.5
    odd = halved.differs(halved.alu(UnaryOps.TRUNC)).alu(BinaryOps.AND, whole)
    infinite = exponent.absolute().equals(math.inf)
    signed = odd.where(infinite.where(power, -power), power)
    defined = whole.alu(BinaryOps.OR, infinite).alu(BinaryOps.OR, base.equals(-math.inf))
    return defined.where(signed, power.full(math.nan))


def _reverse_power(grad: Value, entry: Entry) -> Gradients:
    base, exponent = entry.saved
    to_base = to_exponent = None
    if entry.parents[0] is not None:
        slope = exponent * power(base, exponent - 1.0)
        to_base = grad * exponent.equals(0).where(base.full(0), slope)
    if entry.parents[1] is not None:
        slope = entry.result() * log(base)
        to_exponent = grad * base.equals(0).where(base.full(0), slope)
    return to_base, to_exponent


_POWER = Rule(_reverse_power, inputs=(0, 1), output=True)


def power(base: Value, exponent: Value) -> Value:
    """base**exponent for floats of one type and shape."""
    result = _power(widened(base), widened(exponent)).cast(base.dtype)
    return record("power", _POWER, (base, exponent), result.node, None)
