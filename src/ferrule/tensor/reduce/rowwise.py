"""Functions along axes, with reverse rules of their own: softmax and its relatives, normalisation.

Forward and reverse parts are sums and maxima along the axes and arithmetic on what they give, so
that each becomes one kernel. Types narrower than float32 compute in float32 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.ir.dtype import compute_dtype
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, ReduceOps, UnaryOps
from ferrule.ir.shape.view import prod_sint, same
from ferrule.tensor.math.special import at_least, exp, log, widened


def accumulating(x: TracedValue) -> TracedValue:
    """The value in the type that its sums are added up in: float32 for narrower floats."""
    return x.cast(compute_dtype(x.dtype))


def _is_empty(x: TracedValue) -> bool:
    return any(same(size, 0) for size in x.shape)


def _shifted(x: TracedValue, axes: tuple[int, ...]) -> tuple[TracedValue, TracedValue]:
    """The largest value along the axes (0 if that is infinite), and x less it."""
    largest = x.reduce(ReduceOps.MAX, axes)
    finite = largest.absolute() < math.inf
    largest = finite.alu(BinaryOps.OR, largest.differs(largest)).where(largest, 0.0)
    return largest, x - largest.expand(x.shape)


def softmax(x: TracedValue, axes: tuple[int, ...]) -> TracedValue:
    """e**x divided by its sum along the axes; the largest x, subtracted first, is detached."""
    if _is_empty(x):
        return x
    wide = widened(x)
    powers = exp(wide - wide.reduce(ReduceOps.MAX, axes).expand(wide.shape))
    scale = powers.sum(axes).alu(UnaryOps.RECIP)
    result = (powers * scale.expand(powers.shape)).cast(x.dtype)
    return record("softmax", _SOFTMAX, (x,), result.node, axes)


def _reverse_softmax(grad: TracedValue, entry: GradNode) -> Gradients:
    weighted = grad * entry.result()
    mean = weighted.sum(entry.arg).expand(grad.shape)
    return (weighted - entry.result() * mean,)


def log_softmax(x: TracedValue, axes: tuple[int, ...]) -> TracedValue:
    """The logarithm of the softmax along the axes."""
    if _is_empty(x):
        return x
    return log_softmax_from(x, *log_of_powers(widened(x), axes), axes)


def log_of_powers(x: TracedValue, axes: tuple[int, ...]) -> tuple[TracedValue, TracedValue]:
    """The largest x along the axes (0 if that is infinite), and the logarithm of the sum of
    e**(x - largest).
    """
    largest, rest = _shifted(x, axes)
    return largest, log(exp(rest).sum(axes))


def log_softmax_from(
    x: TracedValue, largest: TracedValue, total: TracedValue, axes: tuple[int, ...]
) -> TracedValue:
    """The logarithm of the softmax, from what `log_of_powers` gave."""
    result = _rest(x, largest, total).cast(x.dtype)
    return record("log_softmax", _LOG_SOFTMAX, (x,), result.node, axes)


def softmax_from(
    x: TracedValue, largest: TracedValue, total: TracedValue, axes: tuple[int, ...]
) -> TracedValue:
    """The softmax, from what `log_of_powers` gave."""
    result = exp(_rest(x, largest, total)).cast(x.dtype)
    return record("softmax", _SOFTMAX, (x,), result.node, axes)


def _rest(x: TracedValue, largest: TracedValue, total: TracedValue) -> TracedValue:
    return widened(x) - largest.expand(x.shape) - total.expand(x.shape)


def _reverse_log_softmax(grad: TracedValue, entry: GradNode) -> Gradients:
    total = grad.sum(entry.arg).expand(grad.shape)
    return (grad - exp(entry.result()) * total,)


def logsumexp(x: TracedValue, axes: tuple[int, ...]) -> TracedValue:
    """The logarithm of the sum of e**x along the axes, which stay with size 1."""
    if _is_empty(x):
        return x.sum(axes) - math.inf
    wide = widened(x)
    largest, rest = _shifted(wide, axes)
    result = (log(exp(rest).sum(axes)) + largest).cast(x.dtype)
    return record("logsumexp", _LOGSUMEXP, (x,), result.node, axes)


def _reverse_logsumexp(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    total = entry.result()
    total = total.equals(-math.inf).where(total.full(0), total)
    share = exp(x - total.expand(x.shape))
    return (grad.expand(x.shape) * share,)


_SOFTMAX = Rule(_reverse_softmax, output=True)
_LOG_SOFTMAX = Rule(_reverse_log_softmax, output=True)
_LOGSUMEXP = Rule(_reverse_logsumexp, inputs=(0,), output=True)


# *** means and normalisation ***


def symbolic(size: sint, like: TracedValue) -> TracedValue:
    """A size as a value of another's dtype and shape."""
    node = like.node
    return TracedValue(LazyBuffer.const(size, node.dtype, node.shape, node.device))


def mean(x: TracedValue, axes: tuple[int, ...]) -> TracedValue:
    """The mean along the axes, which stay with size 1; NaN if they have no elements."""
    count = prod_sint([x.shape[axis] for axis in axes])
    total = x.sum(axes)
    if isinstance(count, int):
        return total / count if count else total * math.nan
    return total / symbolic(count, total)


def variance(x: TracedValue, axes: tuple[int, ...], correction: float) -> TracedValue:
    """The squared distances from the mean along the axes, added up, over n - correction.

    The rounding error of the mean is subtracted again (the corrected two-pass algorithm of Chan,
    Golub and LeVeque, 1983), so that a mean much larger than the distances does no harm.
    """
    count = prod_sint([x.shape[axis] for axis in axes])
    distance = _centred(widened(x), axes)
    drift = distance.sum(axes)
    total = (distance * distance).sum(axes) - drift * mean(distance, axes)
    result = (at_least(total, 0) / _freedom(count, correction, total)).cast(x.dtype)
    return record("variance", _VARIANCE, (x,), result.node, (axes, correction))


def _freedom(count: sint, correction: float, like: TracedValue) -> TracedValue:
    """The degrees of freedom, none at least."""
    if isinstance(count, int):
        return like.full(max(count - correction, 0))
    return symbolic(count, like) - correction


def _reverse_variance(grad: TracedValue, entry: GradNode) -> Gradients:
    axes, correction = entry.arg
    x = accumulating(entry.saved[0])
    distance = _centred(_centred(x, axes), axes)
    count = prod_sint([x.shape[axis] for axis in axes])
    slope = accumulating(grad) * 2 / _freedom(count, correction, accumulating(grad))
    return ((distance * slope.expand(x.shape)).cast(entry.kinds[0]),)


def root(x: TracedValue) -> TracedValue:
    """The square root of a sum of squares: at 0, which is its least value, the gradient is 0."""
    return record("root", _ROOT, (x,), x.detach().alu(UnaryOps.SQRT).node, None)


def _reverse_root(grad: TracedValue, entry: GradNode) -> Gradients:
    result = entry.result()
    at_zero = result.equals(0)
    slope = grad * 0.5 / at_zero.where(result.full(1), result)
    return (at_zero.where(slope.full(0), slope),)


_VARIANCE = Rule(_reverse_variance, inputs=(0,))
_ROOT = Rule(_reverse_root, output=True)


def rounded_mean(x: TracedValue, axes: Sequence[int]) -> TracedValue:
    """The mean along the axes, in float32 for narrower floats, and rounded once."""
    return mean(accumulating(x), tuple(axes)).cast(x.dtype)


def _centred(x: TracedValue, axes: tuple[int, ...]) -> TracedValue:
    return x - mean(x, axes).expand(x.shape)


def _scale(x: TracedValue, axes: tuple[int, ...], eps: float) -> TracedValue:
    """1 over the root of the mean square and eps."""
    root = (mean(x * x, axes) + eps).alu(UnaryOps.SQRT)
    return root.alu(UnaryOps.RECIP).expand(x.shape)


def layernorm(x: TracedValue, axes: tuple[int, ...], eps: float) -> TracedValue:
    """The distance from the mean along the axes, over the root of the variance and eps."""
    centred = _centred(widened(x), axes)
    result = (centred * _scale(centred, axes, eps)).cast(x.dtype)
    return record("layernorm", _LAYERNORM, (x,), result.node, (axes, eps))


def _reverse_layernorm(grad: TracedValue, entry: GradNode) -> Gradients:
    """The part of the gradient that changes neither the mean nor the mean square."""
    axes, eps = entry.arg
    centred = _centred(accumulating(entry.saved[0]), axes)
    scale = _scale(centred, axes, eps)
    result = centred * scale
    grad = accumulating(grad)
    along = mean(grad * result, axes).expand(grad.shape)
    slope = (_centred(grad, axes) - result * along) * scale
    return (slope.cast(entry.kinds[0]),)


def rms_norm(x: TracedValue, axes: tuple[int, ...], eps: float) -> TracedValue:
    """The value over the root of its mean square along the axes and eps."""
    wide = widened(x)
    result = (wide * _scale(wide, axes, eps)).cast(x.dtype)
    return record("rms_norm", _RMS_NORM, (x,), result.node, (axes, eps))


def _reverse_rms_norm(grad: TracedValue, entry: GradNode) -> Gradients:
    axes, eps = entry.arg
    wide = accumulating(entry.saved[0])
    scale = _scale(wide, axes, eps)
    result = wide * scale
    grad = accumulating(grad)
    along = mean(grad * result, axes).expand(grad.shape)
    return (((grad - result * along) * scale).cast(entry.kinds[0]),)


_LAYERNORM = Rule(_reverse_layernorm, inputs=(0,))
_RMS_NORM = Rule(_reverse_rms_norm, inputs=(0,))
