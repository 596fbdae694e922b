"""The incomplete gamma function, and how samples of a gamma distribution move with its shape.

Both are integrals of the density from the sample x to 0, or to infinity, whichever is the smaller
part. With t = x * exp(-y), or x * exp(y), the integrand is smooth, falls steadily, and is summed at
the points of Gauss and Legendre between 0 and where it is exp(-40): exact to the last digits of
float64, for all shapes and samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.tensor import Tensor
from ferrule.transforms import custom_vjp

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_DEPTH = 40.0  # of exp(-40) = 4e-18 the sum has nothing any more


_SHIFTS = 3
"""Steps by which a small shape is raised below its mean: two scales would ask for more points."""


def _tails(shape: Tensor, log_x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """True where the part below x is summed; the shape there; log(t / x) at each point, its weight.

    The points are along a new first axis; weights are those of dt / t times the density at t,
    over the density at x. All is float64.
    """
    x = log_x.exp()
    below = x <= shape
    raised = (below & (shape < _SHIFTS)).where(shape + _SHIFTS, shape)
    # Where the exponent is -40: an estimate from its first two derivatives at y = 0 ...
    slope = (raised - x).abs()
    end = 2 * _DEPTH / (slope + (slope.square() + 2 * _DEPTH * x).sqrt())
    # ... which is too small below, so that Newton's steps come from the right, the first but one;
    left = end
    for _ in range(4):
        fall = (-left).exp()
        excess = raised * left - x * (1 - fall) - _DEPTH
        left = left - excess / (raised - x * fall)
    # ... and too large above, where the exponential bounds it.
    right = end
    for _ in range(2):
        right = right.minimum(((_DEPTH + raised * right) / x).log1p())
    end = below.where(left, right)
    axes = (-1, *[1] * x.ndim)
    points = Tensor((_POINTS + 1) / 2, device=x.device).reshape(*axes)
    weights = Tensor(_WEIGHTS / 2, device=x.device).reshape(*axes)
    y = end * points
    exponent = below.where(-x * (-y).expm1() - raised * y, raised * y - x * y.expm1())
    return below, raised, below.where(-y, y), exponent.exp() * weights * end


def log_sample_slope(shape: Tensor, log_x: Tensor) -> Tensor:
    """The derivative of the logarithm of a sample by the shape, with its quantile as it is.

    That is -(dF / dshape) / (x f(x)), with the distribution F and the density f.
    """
    kind = shape.dtype
    shape, log_x = shape.cast(dtypes.float64), log_x.cast(dtypes.float64)
    below, raised, steps, weights = _tails(shape, log_x)
    # The derivative of the density by the shape is (log t - digamma) times the density.
    total = (weights * (log_x + steps - raised.digamma())).sum(0)
    slope = below.where(-total, total)
    # F(shape) = F(shape + 1) + x**shape * exp(-x) / gamma(shape + 1), and its derivative.
    lowered = slope
    for step in reversed(range(_SHIFTS)):
        a = shape + step
        lowered = (log_x.exp() * lowered - log_x + (a + 1).digamma()) / a
    return (raised > shape).where(lowered, slope).cast(kind)


def _lower(shape: Tensor, x: Tensor) -> Tensor:
    kind = x.dtype
    shape, x = shape.cast(dtypes.float64), x.cast(dtypes.float64)
    log_x = x.clamp(1e-300).log()
    below, raised, _, weights = _tails(shape, log_x)
    part = weights.sum(0)
    lowered = part
    for step in reversed(range(_SHIFTS)):
        lowered = (x * lowered + 1) / (shape + step)
    # x times the density at x
    scale = (shape * log_x - x - shape.lgamma()).exp()
    part = scale * (raised > shape).where(lowered, part)
    found = below.where(part, 1 - part).clamp(0, 1)
    return (x > 0).where((x < np.inf).where(found, 1), 0).cast(kind)


@custom_vjp
def _regularized(shape: Tensor, x: Tensor) -> Tensor:
    return _lower(shape, x)


def _backward(kept: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
    shape, x = kept
    log_x = x.clamp(1e-300 if x.dtype == dtypes.float64 else 1e-37).log()
    density = ((shape - 1) * log_x - x - shape.lgamma()).exp()
    moved = -log_sample_slope(shape, log_x) * density * x
    return slope * moved, slope * density


_regularized.defvjp(lambda shape, x: (_lower(shape, x), (shape, x)), _backward)


def gammainc(shape: Tensor, x: Tensor) -> Tensor:
    """The regularised lower incomplete gamma function: the probability of a sample below x.

    >>> from ferrule import Tensor
    >>> from ferrule.distributions.incomplete import gammainc
    >>> round(gammainc(Tensor(1.0), Tensor(2.0)).item(), 6)  # 1 - exp(-2)
    0.864665
    """
    shape, x = shape.broadcast_tensors(x)
    found: Tensor = _regularized(shape, x)
    return found
