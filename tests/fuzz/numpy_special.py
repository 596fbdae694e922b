"""Counterparts of special functions, of integer arithmetic, and of reductions that skip NaN.

Elements for which a function is not meant, such as those near a pole, become NaN: nothing is
compared there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tests.fuzz.numpy_functions import (
    Array,
    Function,
    Scaled,
    as_integers,
    axes_of,
    erf,
    only_if,
    sizes_of,
)

_erfc: Final = np.vectorize(math.erfc, otypes=[np.float64])
_lgamma: Final = np.vectorize(math.lgamma, otypes=[np.float64])
_factorial = math.factorial


def _where(condition: Any, function: Function) -> Function:
    """A function of the elements for which a condition holds."""

    def apply(x: Array, *others: Any) -> Array:
        found = np.full(x.shape, np.nan)
        meant = condition(x)
        found[meant] = function(x[meant], *others)
        return found

    return apply


# -- the gamma function and its kin ----------------------------------------------------------------


def _zeta(s: Any, start: Array) -> Array:
    """The sum of (start + k) ** -s: twenty terms, and Euler and Maclaurin's for the others."""
    s, start = np.broadcast_arrays(np.asarray(s, np.float64), start)
    total = sum((start + k) ** -s for k in range(20))
    end = start + 20
    total += end ** (1 - s) / (s - 1) + end**-s / 2 + s * end ** (-s - 1) / 12
    return np.asarray(total - s * (s + 1) * (s + 2) * end ** (-s - 3) / 720)


def _hurwitz(s: Array, start: Any) -> Array:
    s, start = np.broadcast_arrays(s, start)
    return np.where((s >= 1.25) & (start >= 0.25), _zeta(s, np.maximum(start, 0.25)), np.nan)


def _digamma(x: Array) -> Array:
    end = x + 20
    total = np.log(end) - 1 / (2 * end) - 1 / (12 * end**2) + 1 / (120 * end**4)
    return np.asarray(total - sum(1 / (x + k) for k in range(20)))


def _polygamma(x: Array, n: int) -> Array:
    if n == 0:
        return _digamma(x)
    return np.asarray((-1) ** (n + 1) * _factorial(n) * _zeta(n + 1.0, x))


def _multigammaln(x: Array, p: int) -> Array:
    meant = np.where(x > (p - 1) / 2 + 0.05, x, np.nan)
    parts = sum(_lgamma(meant - k / 2) for k in range(p))
    return np.asarray(p * (p - 1) / 4 * math.log(math.pi) + parts)


# -- the error function and its kin ----------------------------------------------------------------


def _erfinv(y: Array) -> Array:
    only_if(y.size < 5_000)
    low, high = np.full(y.shape, -6.0), np.full(y.shape, 6.0)
    for _ in range(60):
        middle = (low + high) / 2
        less = erf(middle) < y
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return low


def _log_ndtr(x: Array) -> Array:
    return np.log(_erfc(-x / math.sqrt(2)) / 2)


def _gelu(x: Array, approximate: str = "tanh") -> Array:
    if approximate == "none":
        return x * (1 + erf(x / math.sqrt(2))) / 2
    return np.asarray(x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2)


# -- Bessel's functions ----------------------------------------------------------------------------


def _bessel(order: int, scaled: bool) -> Function:
    """The mean of exp(x * cos(t)) * cos(order * t) over the circle."""
    count = 64

    def function(x: Array) -> Array:
        total, sizes = np.zeros(x.shape), np.abs(x) if scaled else 0
        for angle in np.arange(count) * (2 * math.pi / count):
            total += np.exp(x * np.cos(angle) - sizes) * np.cos(order * angle)
        return total / count

    return _where(lambda x: np.abs(x) < 20, function)


# -- element by element ----------------------------------------------------------------------------


def _shrunk(x: Array, lambd: float = 0.5) -> Array:
    return np.where(np.abs(x) > lambd, x - np.sign(x) * lambd, 0)


def _power(x: Array, other: Any) -> Scaled:
    found = np.asarray(np.power(x, np.asarray(other, np.float64)))
    sizes = np.abs(found[np.isfinite(found)])
    return Scaled(found, 4 * float(sizes.max(initial=1)))


def _is_close(x: Array, other: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    distance, limit = np.abs(x - other), atol + rtol * np.abs(other)
    only_if(not np.any((distance > limit / 2) & (distance < limit * 2)))
    return distance <= limit


def _angle(x: Array) -> Array:
    return np.where(x == 0, np.nan, np.where(x < 0, math.pi, 0))


def _prelu(x: Array, weight: Any) -> Array:
    only_if(np.size(weight) == 1)
    return np.where(x < 0, np.reshape(weight, ()) * x, x)


def _quotient(x: Array, y: Any) -> Array:
    """Rounded down, and NaN where that may depend on how x / y is rounded."""
    x, y = np.broadcast_arrays(x, y)
    near = np.abs(x / y - np.round(x / y)) < 1e-3 * np.maximum(1, np.abs(x / y))
    whole = np.fmod(x, y) == 0
    return np.where((y == 0) | (near & ~whole), np.nan, np.floor_divide(x, y))


def _remainder(x: Array, y: Any) -> Array:
    return x - _quotient(x, y) * y


def _fmod(x: Array, y: Any) -> Array:
    return np.where(np.isnan(_quotient(x, y)), np.nan, np.fmod(x, y))


# -- integers --------------------------------------------------------------------------------------


def _whole(function: Function) -> Function:
    """Of integers; 0 where the divisor is."""

    def divide(x: Array, y: Any) -> Array:
        x, y = np.broadcast_arrays(as_integers(x), as_integers(y))
        return np.where(y == 0, 0, function(x, np.where(y == 0, 1, y)))

    return divide


def _shifted(function: Function) -> Function:
    def shift(x: Array, count: Any) -> Any:
        only_if(np.all((np.asarray(count) >= 0) & (np.asarray(count) < 8)))
        return function(as_integers(x), as_integers(count))

    return shift


# -- reductions that skip NaN ----------------------------------------------------------------------


def _skipping(function: Function) -> Function:
    def reduce(x: Array, axis: Any = None, keepdim: bool = False) -> Any:
        return function(x, axis=axes_of(axis), keepdims=keepdim)

    return reduce


def _spread(function: Function) -> Function:
    def spread(x: Array, axis: Any = None, keepdim: bool = False, correction: float = 1) -> Any:
        return function(x, axis=axes_of(axis), keepdims=keepdim, ddof=correction)

    return spread


# -- tensors of numbers alone ----------------------------------------------------------------------


def _indices(function: Function) -> Function:
    return lambda rows, columns, offset=0: np.stack(function(rows, offset, columns))


def _arange(start: Any, stop: Any = None, step: Any = 1) -> Any:
    return np.arange(0, start, step) if stop is None else np.arange(start, stop, step)


def _logspace(start: float, stop: float, steps: int, base: float = 10.0) -> Any:
    return base ** np.linspace(start, stop, steps)


SPECIAL: Final[Mapping[str, Function]] = {
    "digamma": _where(lambda x: x > 0.1, _digamma),
    "polygamma": _where(lambda x: x > 0.1, _polygamma),
    "zeta": _hurwitz,
    "multigammaln": _multigammaln,
    "mvlgamma": _multigammaln,
    "erfinv": _where(lambda x: np.abs(x) < 0.99, _erfinv),
    "ndtri": _where(lambda x: np.abs(x - 0.5) < 0.49, lambda x: math.sqrt(2) * _erfinv(2 * x - 1)),
    "erfcx": _where(lambda x: np.abs(x) < 5, lambda x: np.exp(x * x) * _erfc(x)),
    "log_ndtr": _where(lambda x: np.abs(x) < 5, _log_ndtr),
    "gelu": _gelu,
    "i0": _bessel(0, False),
    "i0e": _bessel(0, True),
    "i1": _bessel(1, False),
    "i1e": _bessel(1, True),
    "frexp": lambda x: tuple(np.frexp(x)),
    "tan": lambda x: np.where(np.abs(np.cos(x)) < 0.05, np.nan, np.tan(x)),
    "softshrink": _shrunk,
    "hardshrink": lambda x, lambd=0.5: np.where(np.abs(x) > lambd, x, 0),
    "prelu": _prelu,
    "angle": _angle,
    "isclose": _is_close,
    "ldexp": lambda x, other: x * np.exp2(other),
    **{name: _power for name in ("pow", "power", "float_power")},
    **{name: _quotient for name in ("floor_divide", "floordiv")},
    **{name: _remainder for name in ("remainder", "mod")},
    "fmod": _fmod,
}
"""Functions of floats."""
INTEGERS: Final[Mapping[str, Function]] = {
    **{
        name: lambda x: np.invert(as_integers(x))
        for name in ("invert", "bitwise_not", "bitwise_invert")
    },
    "bitwise_left_shift": _shifted(np.left_shift),
    "bitwise_right_shift": _shifted(np.right_shift),
    **{name: _whole(np.floor_divide) for name in ("floor_divide", "floordiv")},
    **{name: _whole(np.remainder) for name in ("remainder", "mod")},
    "fmod": _whole(np.fmod),
}
"""Functions of integers."""
SKIPPING: Final[Mapping[str, Function]] = {
    "nansum": _skipping(np.nansum),
    "nanprod": _skipping(np.nanprod),
    "nanmean": _skipping(np.nanmean),
    "nanmax": _skipping(np.nanmax),
    "nanmin": _skipping(np.nanmin),
    "nanvar": _spread(np.nanvar),
    "nanstd": _spread(np.nanstd),
}
"""Functions of floats, some of which may be NaN."""
NUMBERS: Final[Mapping[str, Function]] = {
    "eye": np.eye,
    "zeros": lambda *sizes: np.zeros(sizes_of(sizes)),
    "ones": lambda *sizes: np.ones(sizes_of(sizes)),
    "full": np.full,
    "arange": _arange,
    "linspace": np.linspace,
    "logspace": _logspace,
    "tri": lambda n, m=None, k=0: np.tri(n, m, k),
    "tril_indices": _indices(np.tril_indices),
    "triu_indices": _indices(np.triu_indices),
    "scalar_tensor": np.asarray,
}
"""Functions that take no tensor."""
