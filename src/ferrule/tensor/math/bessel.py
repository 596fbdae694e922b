"""The modified Bessel functions of order 0 and 1, in float64: growing, and scaled by e**-|x|.

Small arguments have the power series, all of whose terms are positive; large ones a polynomial in
1 / x, fitted for this file by Chebyshev interpolation. See the NIST handbook (DLMF), chapter 10.
"""

from __future__ import annotations

import math

from ferrule.autograd import Gradients, GradNode, TracedValue
from ferrule.ir.lazyop import UnaryOps
from ferrule.tensor.math.special import (
    at_most,
    doubled,
    exp,
    function_of_one,
    magnitude,
    polynomial,
    with_sign,
)

_LARGE = 8.0  # from where the polynomials in 1 / x hold
# I0(x) and 2 * I1(x) / x in (x / 2)**2, up to the terms that count at _LARGE.
_SERIES = (
    tuple(1 / math.factorial(k) ** 2 for k in range(26)),
    tuple(1 / (math.factorial(k) * math.factorial(k + 1)) for k in range(26)),
)
# sqrt(x) * e**-x * I0(x), and the same of I1, for x from _LARGE on, in 16 / x - 1.
_SCALED = (
    (
        0.4021765094450081,
        0.0033605519836678944,
        0.00013621607439186705,
        1.1143033787545386e-05,
        1.4838475687894938e-06,
        2.9735996224521226e-07,
        8.872214307451732e-08,
        3.932437699533459e-08,
        2.15488936175863e-08,
        7.566352487698237e-09,
        -6.750552282740284e-09,
        -1.346629294837396e-08,
        -5.394456734259438e-09,
        7.737147033780934e-09,
        7.406235049001522e-09,
        -3.905230623712341e-09,
        -5.91556056510856e-09,
        2.1053080134403423e-09,
        3.5985362919394714e-09,
        -1.1448789558755036e-09,
        -1.5930354799216344e-09,
        5.122212147228388e-10,
        4.4789181847911815e-10,
        -1.5066113686101474e-10,
        -5.905024573995148e-11,
        2.0820835852793106e-11,
    ),
    (
        0.38939845902587233,
        -0.009749577193235768,
        -0.00021923576383382282,
        -1.5038547197358572e-05,
        -1.8349101357991557e-06,
        -3.4838567401229716e-07,
        -1.0001282610189342e-07,
        -4.312778920167609e-08,
        -2.337446787242448e-08,
        -8.43880090582137e-09,
        6.737493433374833e-09,
        1.408852075202545e-08,
        5.963645798166707e-09,
        -7.816968266767898e-09,
        -7.863004697555056e-09,
        3.803814960536081e-09,
        6.202984113000443e-09,
        -1.992076551203188e-09,
        -3.75344338735913e-09,
        1.0715528639398075e-09,
        1.657764699456319e-09,
        -4.798751536934023e-10,
        -4.6561597954216946e-10,
        1.417650842869536e-10,
        6.135932778393812e-11,
        -1.9677083272584384e-11,
    ),
)


def _near(size: TracedValue, order: int) -> TracedValue:
    """For sizes up to `_LARGE`."""
    half = size * 0.5
    total = polynomial(half * half, _SERIES[order])
    return half * total if order else total


def _far(size: TracedValue, order: int) -> TracedValue:
    """Times e**-size, for sizes from `_LARGE` on."""
    return polynomial(16.0 / size - 1.0, _SCALED[order]) / size.alu(UnaryOps.SQRT)


def _growing(x: TracedValue, order: int) -> TracedValue:
    size = at_most(magnitude(x), 1000.0)
    # e**size may overflow where the product with what is small does not.
    half = exp(size * 0.5)
    return (size < _LARGE).where(_near(size, order), half * _far(size, order) * half)


def _scaled(x: TracedValue, order: int) -> TracedValue:
    size = magnitude(x)
    return (size < _LARGE).where(exp(-size) * _near(size, order), _far(size, order))


def _i0(x: TracedValue) -> TracedValue:
    """The modified Bessel function of order 0."""
    return _growing(x, 0)


def _i1(x: TracedValue) -> TracedValue:
    """The modified Bessel function of order 1, an odd one."""
    return with_sign(_growing(x, 1), x)


def _i0e(x: TracedValue) -> TracedValue:
    """e**-|x| * I0(x)."""
    return _scaled(x, 0)


def _i1e(x: TracedValue) -> TracedValue:
    """e**-|x| * I1(x)."""
    return with_sign(_scaled(x, 1), x)


def _sign(x: TracedValue) -> TracedValue:
    return x.equals(0).where(x.full(0), (x > 0).where(x.full(1), -1))


def _by(result: TracedValue, x: TracedValue, limit: float) -> TracedValue:
    """result / x, and its limit at 0."""
    zero = x.equals(0)
    return zero.where(x.full(limit), result / zero.where(x.full(1), x))


def _reverse_i0(grad: TracedValue, entry: GradNode) -> Gradients:
    return (grad * i1(entry.saved[0]),)


def _reverse_i1(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad * (i0(x) - _by(entry.result(), x, 0.5)),)


def _reverse_i0e(grad: TracedValue, entry: GradNode) -> Gradients:
    x = entry.saved[0]
    return (grad * (i1e(x) - _sign(x) * entry.result()),)


def _reverse_i1e(grad: TracedValue, entry: GradNode) -> Gradients:
    x, result = entry.saved[0], entry.result()
    return (grad * (i0e(x) - _by(result, x, 0.5) - _sign(x) * result),)


i0 = function_of_one("i0", _i0, _reverse_i0, inputs=(0,), within=doubled)
i1 = function_of_one("i1", _i1, _reverse_i1, inputs=(0,), output=True, within=doubled)
i0e = function_of_one("i0e", _i0e, _reverse_i0e, inputs=(0,), output=True, within=doubled)
i1e = function_of_one("i1e", _i1e, _reverse_i1e, inputs=(0,), output=True, within=doubled)
