"""Functions made of several primitive ops: exponentials, logarithms, trigonometry, sigmoids.

Each has a reverse rule of its own. The forward parts are written for float32 and float64; narrower
types compute in float32 and round once. No value within range overflows on the way, and infinities
give limits. The polynomials and rational functions were fitted for this file, by Chebyshev
interpolation or weighted least squares of the function named beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ferrule.autograd import Gradients, GradNode, Number, Rule, TracedValue, note_call, record
from ferrule.base.records import dataclass
from ferrule.ir.dtype import compute_dtype, dtypes
from ferrule.ir.fits import EXP2_FLOAT32, EXP2_FLOAT64
from ferrule.ir.lazyop import BinaryOps, UnaryOps
from ferrule.tensor.steps import applied

Function = Callable[[TracedValue], TracedValue]
Product = tuple[TracedValue, TracedValue]


def widened(x: TracedValue) -> TracedValue:
    """The value outside the tape, in a type that the forward parts are written for."""
    return x.detach().cast(compute_dtype(x.dtype))


def doubled(x: TracedValue) -> TracedValue:
    """The value outside the tape as float64, for functions whose float32 forms would be long."""
    return x.detach().cast(dtypes.float64)


def function_of_one(
    name: str,
    forward: Function,
    reverse: Callable[[TracedValue, GradNode], Gradients],
    inputs: tuple[int, ...] = (),
    output: bool = False,
    within: Function = widened,
) -> Function:
    """`forward` as one entry of the tape with the rule `reverse`, computed in a wider type."""
    rule = Rule(reverse, inputs, output)

    def computed(x: TracedValue) -> TracedValue:
        return forward(within(x)).cast(x.dtype)

    def function(x: TracedValue) -> TracedValue:
        return record(name, rule, (x,), applied(computed, x.node), None)

    function.__name__ = name
    function.__doc__ = forward.__doc__
    return function


# *** what depends on the width of the float ***


@dataclass(frozen=True, slots=True)
class _Constants:
    """Coefficients, the constant one first, and limits."""

    expm1: tuple[float, ...]  # (expm1(x) - x) / x**2 on [-0.5, 0.5]
    sinh: tuple[float, ...]  # (sinh(x) / x - 1) / x**2 on [-1, 1], in x**2
    tanh: tuple[float, ...]  # (tanh(x) / x - 1) / x**2 within +-`tanh_near`, in x**2
    tanh_near: float
    exp2: tuple[float, ...]  # 2**x on [-0.5, 0.5]
    log2_e: tuple[float, float]  # log2(e) as the sum of two
    exp_overflow: float  # e**x is infinite here, by less than a factor of 2
    near_log_2: float  # a little above log(2), and so short that subtracting it is exact
    half_of_its_exp: float  # e**near_log_2 / 2 - 1


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
    tanh=(-0.33333224, 0.13329892, -0.05361512, 0.020249521, -0.0052890424),
    tanh_near=0.68,
    exp2=EXP2_FLOAT32,
    log2_e=(1.4426950216293335, 1.925963e-08),
    exp_overflow=88.9,
    near_log_2=0.6931610107421875,
    half_of_its_exp=1.3830277879601902e-05,
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
        0.13333333333332759,
        -0.053968253967887,
        0.021869488524317585,
        -0.008863235304062368,
        0.003592125260023095,
        -0.0014558112430449726,
        0.0005898926954919554,
        -0.0002385730413769972,
        9.528534041105182e-05,
        -3.591973856776419e-05,
        1.117291299800363e-05,
        -2.029893663195511e-06,
    ),
    tanh_near=0.66,
    exp2=EXP2_FLOAT64,
    log2_e=(1.4426950408889634, 2.0355273740931033e-17),
    exp_overflow=709.95,
    near_log_2=0.6931471805601177,
    half_of_its_exp=1.7239444525616322e-13,
)


def constants(x: TracedValue) -> _Constants:
    """The constants in the precision of a value."""
    return _FLOAT64 if x.dtype is dtypes.float64 else _FLOAT32


def log2_e(x: TracedValue) -> tuple[float, float]:
    """log2(e) as the sum of two numbers of the type."""
    return constants(x).log2_e


def polynomial(x: TracedValue, coefficients: Sequence[float]) -> TracedValue:
    """The polynomial with these coefficients, the constant one first."""
    result = x.full(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.muladd(x, coefficient)
    return result


def polynomial_in_halves(x: TracedValue, coefficients: Sequence[float]) -> TracedValue:
    """The polynomial as even and odd powers: one operation more, but a chain of half the length.

    It pays if there are so many coefficients that a processor would wait for the chain.
    """
    square = x * x
    even = polynomial(square, coefficients[::2])
    return polynomial(square, coefficients[1::2]).muladd(x, even)


def at_least(x: TracedValue, low: Number) -> TracedValue:
    """`x`, or `low` where it is smaller; NaN stays."""
    bound = x.full(low)
    return (x < bound).where(bound, x)


def at_most(x: TracedValue, high: Number) -> TracedValue:
    """`x`, or `high` where it is larger; NaN stays."""
    bound = x.full(high)
    return (bound < x).where(bound, x)


def within(x: TracedValue, limits: tuple[float, float]) -> TracedValue:
    """A value moved to between two numbers."""
    return at_most(at_least(x, limits[0]), limits[1])


_LAYOUT = {dtypes.float32: (23, 127), dtypes.float64: (52, 1023)}  # mantissa's bits, bias
_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def sign_bits(x: TracedValue) -> TracedValue:
    """The sign of each float where it is in memory, all other bits 0, as an unsigned integer."""
    bits = x.detach().bitcast(_BITS[x.dtype.itemsize])
    return bits.alu(BinaryOps.AND, bits.full(1 << (x.dtype.bits - 1)))


def magnitude(x: TracedValue) -> TracedValue:
    """Each float without its sign, outside the tape."""
    bits = x.detach().bitcast(_BITS[x.dtype.itemsize])
    size = bits.alu(BinaryOps.AND, bits.full((1 << (x.dtype.bits - 1)) - 1)).bitcast(x.dtype)
    note_call("abs", (x,), size)
    return size


def with_sign(size: TracedValue, sign: TracedValue) -> TracedValue:
    """Floats with the sign of others, zeros and NaN included."""
    positive = magnitude(size).bitcast(_BITS[size.dtype.itemsize])
    result = positive.alu(BinaryOps.OR, sign_bits(sign)).bitcast(size.dtype)
    note_call("with_sign", (size, sign), result)
    return result


# *** exponentials and logarithms ***


def _exp(x: TracedValue) -> TracedValue:
    """e**x. Devices take exp2 of a product with log2(e) as one: its rounding would be magnified."""
    return (x * (1 / math.log(2))).alu(UnaryOps.EXP2)


def power_of_two(
    x: TracedValue,
    factor: TracedValue | Number,
    *rest: tuple[TracedValue, Number],
    lift: int = 0,
    fit: Sequence[float] | None = None,
) -> Product:
    """2**(x * factor + the products in `rest`), as if neither products nor sums were rounded.

    The result are two numbers whose product it is: one near 2**-lift, and a power of two which is
    made of bits. The exponent plus `lift` has to be within the type's, and `rest` small: without
    limits to look for, this takes two thirds of the operations of EXP2. `fit` is another
    polynomial than the one to the type's precision.
    """
    mantissa, bias = _LAYOUT[x.dtype]
    rounder = x.full(1.5 * 2.0**mantissa + bias + lift)
    shifted = x.muladd(factor, rounder)  # the nearest integer, in the lowest bits
    fraction = x.muladd(factor, rounder - shifted)
    for small, times in rest:
        fraction = small.muladd(times, fraction)
    bits = shifted.bitcast(_BITS[x.dtype.itemsize])
    scale = bits.alu(BinaryOps.SHL, bits.full(mantissa)).bitcast(x.dtype)
    return polynomial(fraction, [c * 2.0**-lift for c in fit or constants(x).exp2]), scale


def _expm1(x: TracedValue) -> TracedValue:
    """e**x - 1, without cancellation near 0."""
    square = x * x
    near = square.muladd(polynomial(x, constants(x).expm1), x)
    return with_sign((square < 0.25).where(near, _exp(x) - 1.0), x)


def _log(x: TracedValue) -> TracedValue:
    """The natural logarithm. Devices take log2 times log(2) as one, as they do with exp2."""
    return x.alu(UnaryOps.LOG2) * math.log(2)


def _log1p(x: TracedValue) -> TracedValue:
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


def _reverse_sin(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * cos(entry.saved[0]),)


def _reverse_cos(grad: TracedValue, entry: GradNode) -> Gradients:
    return (-(grad * sin(entry.saved[0])),)


def _tan(x: TracedValue) -> TracedValue:
    """The tangent."""
    return x.alu(UnaryOps.SIN) / x.alu(UnaryOps.COS)


def _reverse_tan(grad: TracedValue, entry: GradNode) -> Gradients:
    result = entry.result()
    return (grad * (result * result + 1.0),)


def _tanh(x: TracedValue) -> TracedValue:
    """The hyperbolic tangent: 1 - 2 / (e**2x + 1), or a polynomial of small x."""
    size = magnitude(x)
    square = size * size
    near = (size * square).muladd(polynomial(square, constants(x).tanh), size)
    power, scale = power_of_two(at_most(size, 20.0), 2 / math.log(2))
    far = 1.0 - 2.0 / power.muladd(scale, 1.0)
    return with_sign((size < constants(x).tanh_near).where(near, far), x)


def _reverse_tanh(grad: TracedValue, entry: GradNode) -> Gradients:
    result = entry.result()
    return (grad * (1.0 - result * result),)


def _half_exp(x: TracedValue) -> TracedValue:
    """e**x / 2, which overflows only where it is too large itself."""
    power = _exp(x - constants(x).near_log_2)
    return power.muladd(constants(x).half_of_its_exp, power)


def _sinh(x: TracedValue) -> TracedValue:
    """The hyperbolic sine."""
    size = magnitude(x)
    square = size * size
    near = (size * square).muladd(polynomial(square, constants(x).sinh), size)
    half = _half_exp(size)
    return with_sign((size < 1.0).where(near, half - 0.25 / half), x)


def _cosh(x: TracedValue) -> TracedValue:
    """The hyperbolic cosine."""
    half = _half_exp(magnitude(x))
    return half + 0.25 / half


def _reverse_sinh(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * cosh(entry.saved[0]),)


def _reverse_cosh(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * sinh(entry.saved[0]),)


sin = function_of_one("sin", lambda x: x.alu(UnaryOps.SIN), _reverse_sin, inputs=(0,))
cos = function_of_one("cos", lambda x: x.alu(UnaryOps.COS), _reverse_cos, inputs=(0,))
tan = function_of_one("tan", _tan, _reverse_tan, output=True)
tanh = function_of_one("tanh", _tanh, _reverse_tanh, output=True)
sinh = function_of_one("sinh", _sinh, _reverse_sinh, inputs=(0,))
cosh = function_of_one("cosh", _cosh, _reverse_cosh, inputs=(0,))


# *** sigmoids ***


def _relu(x: TracedValue) -> TracedValue:
    """x where it is positive, else 0."""
    return x.maximum(0)


def _reverse_relu(grad: TracedValue, entry: GradNode) -> Gradients:
    return ((entry.result() > 0).where(grad, 0),)


def _sigmoid(x: TracedValue) -> TracedValue:
    """1 / (1 + e**-x): 0 where the power overflows, which is where no normal number is as small."""
    return _one_and_power(at_least(x, -constants(x).exp_overflow)).alu(UnaryOps.RECIP)


def _one_and_power(x: TracedValue) -> TracedValue:
    """1 + e**-x, for an x not below where the power overflows."""
    high, low = log2_e(x)
    x = at_most(x, 80.0)  # where the power is nothing beside 1
    double, scale = power_of_two(x, -high, (x, -low), lift=-1)
    return double.muladd(scale, 1.0)


def _reverse_sigmoid(grad: TracedValue, entry: GradNode) -> Gradients:
    result = entry.result()
    return (grad * (result * (1.0 - result)),)


def _softplus(x: TracedValue) -> TracedValue:
    """ln(1 + e**x)."""
    return x.maximum(0.0) + _log1p(_exp(-x.absolute()))


def _silu(x: TracedValue) -> TracedValue:
    """x * sigmoid(x); the sigmoid is 0 at the bound."""
    x = at_least(x, -constants(x).exp_overflow)
    return x / _one_and_power(x)


def _reverse_silu(grad: TracedValue, entry: GradNode) -> Gradients:
    x = at_least(entry.saved[0], -800.0)
    gate = sigmoid(x)
    return (grad * (gate + x * gate * (1.0 - gate)),)


def _mish(x: TracedValue) -> TracedValue:
    """x * tanh(softplus(x)): with n = (1 + e**x)**2 the tangent is (n - 1) / (n + 1)."""
    power = exp(at_most(x, 40.0))
    rest = power * (power + 2.0)
    return at_least(x, -800.0) * (rest / (rest + 2.0))


def _reverse_mish(grad: TracedValue, entry: GradNode) -> Gradients:
    x = at_least(entry.saved[0], -800.0)
    gate = tanh(softplus(x))
    return (grad * (gate + x * sigmoid(x) * (1.0 - gate * gate)),)


def _tanhshrink(x: TracedValue) -> TracedValue:
    """x - tanh(x), which are nearly equal for small x."""
    size = magnitude(x)
    square = size * size
    near = -(size * square) * polynomial(square, constants(x).tanh)
    return with_sign((size < 0.6).where(near, size - tanh(size)), x)


def _reverse_tanhshrink(grad: TracedValue, entry: GradNode) -> Gradients:
    slope = tanh(entry.saved[0])
    return (grad * slope * slope,)


mish = function_of_one("mish", _mish, _reverse_mish, inputs=(0,))
tanhshrink = function_of_one(
    "tanhshrink", _tanhshrink, _reverse_tanhshrink, inputs=(0,), within=doubled
)
relu = function_of_one("relu", _relu, _reverse_relu, output=True)
sigmoid = function_of_one("sigmoid", _sigmoid, _reverse_sigmoid, output=True)
softplus = function_of_one(
    "softplus", _softplus, lambda grad, entry: (grad * sigmoid(entry.saved[0]),), inputs=(0,)
)
silu = function_of_one("silu", _silu, _reverse_silu, inputs=(0,))
