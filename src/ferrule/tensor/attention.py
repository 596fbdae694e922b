"""Attention as one function with a reverse rule of its own, which keeps nothing of S x T elements.

The weights are computed again for the gradient, from the queries and keys: that is one more matrix
product, and they need not wait in memory from the forward pass on. The rows of the softmax's
gradient need the sum of weight times gradient over each row; that is the sum of result times
gradient, which has no axis of T elements: sum_j W_j (G . v_j) = G . sum_j W_j v_j.

Where blocks of threads run it, the three gradients are three kernels that each compute the weights
for themselves. What these need of a whole row is one number then, the logarithm of its sum of
powers, which a kernel before them finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ferrule import schedule
from ferrule.dtype import DType, dtypes
from ferrule.gradient import Entry, Gradients, Rule, Value, record
from ferrule.lazy import LazyBuffer
from ferrule.ops import ReduceOps
from ferrule.tensor.matrices import matrix_product, transposed
from ferrule.tensor.rowwise import accumulating, softmax
from ferrule.tensor.special import exp, log


def attention(
    query: Value, key: Value, value: Value, mask: Value | None, scale: float, causal: bool
) -> Value:
    """softmax(query @ key.T * scale + mask) @ value, for (…, positions, depth) of one dtype.

    The leading axes are equal, and a mask has the shape of the scores. One of bools keeps what is
    True, any other is added.
    """
    given = [x.detach() for x in (query, key, value)]
    scores = matrix_product(given[0], transposed(given[1])) * scale
    weights = attention_weights(scores, None if mask is None else mask.detach(), causal)
    result = matrix_product(weights, given[2])
    sources = (query, key, value) if mask is None else (query, key, value, mask)
    rule = _PLAIN if mask is None else _MASKED
    return record("attention", rule, sources, result.node, (scale, causal))


def attention_weights(
    scores: Value,
    mask: Value | None,
    causal: bool,
    normalised: Callable[[Value, tuple[int, ...]], Value] = softmax,
) -> Value:
    """The softmax along the last axis; a row that is masked entirely is 0."""
    last = (len(scores.shape) - 1,)
    if causal:
        rows, columns = scores.shape[-2:]
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        mask = _lower_triangle(rows, columns, scores.node.device)
        mask = mask.reshape((1,) * (len(scores.shape) - 2) + mask.shape).expand(scores.shape)
    if mask is None:
        return normalised(scores, last)
    if mask.dtype is not dtypes.bool:
        scores = scores + mask
        mask = mask.differs(-math.inf)
    # The lowest number, not -inf: a row without any position would be all NaN.
    low = mask.where(scores, -_largest(scores.dtype))
    return mask.where(normalised(low, last), 0.0)


def _weights_by_one_number(scores: Value, mask: Value | None, causal: bool) -> Value:
    """The same weights, with one number for each row that is stored."""
    wide = accumulating(scores)
    if mask is not None and mask.dtype is not dtypes.bool:
        mask = mask.cast(wide.dtype)
    return attention_weights(wide, mask, causal, _softmax_by_one_number).cast(scores.dtype)


def _softmax_by_one_number(x: Value, axes: tuple[int, ...]) -> Value:
    """The softmax as e**(x - y), where y is the logarithm of the sum of the powers."""
    largest = x.detach().reduce(ReduceOps.MAX, axes)
    total = exp(x - largest.expand(x.shape)).sum(axes)
    y = (log(total) + largest).contiguous()
    return exp(x - y.expand(x.shape))


def _reverse(grad: Value, entry: Entry) -> Gradients:
    """The gradients of query, key, value and, if it is added, of the mask."""
    query, key, value, *masks = entry.saved
    mask = masks[0] if masks else None
    scale, causal = entry.arg
    # Scaled before the product, so that these scores are nodes of their own: those of the forward
    # pass are not held until now.
    scaled = query * scale
    scores = matrix_product(scaled, transposed(key))
    if schedule.target_of(grad.node.device).block_threads > 1:
        weights = _weights_by_one_number(scores, mask, causal)
    else:
        weights = attention_weights(scores, mask, causal)
    along = (grad * entry.result()).sum((len(grad.shape) - 1,)).contiguous()
    slope = matrix_product(grad, transposed(value))
    slope = weights * (slope - along.expand(slope.shape))
    return (
        matrix_product(slope, key) * scale,
        matrix_product(transposed(slope), scaled),
        matrix_product(transposed(weights), grad),
        *[slope for _ in masks],
    )


_PLAIN = Rule(_reverse, inputs=(0, 1, 2), output=True)
_MASKED = Rule(_reverse, inputs=(0, 1, 2, 3), output=True)


def _largest(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    exponent = (1 << (dtype.exponent_bits - 1)) - 1
    return math.ldexp(2.0 - math.ldexp(1.0, -dtype.mantissa_bits), exponent)


def _lower_triangle(rows: int, columns: int, device: str) -> Value:
    """Where the column is not above the row, as a condition on indices: nothing is read for it.

    Row i is a window, last element first, over as many zeros as there are columns but one, and
    ones after them.
    """
    ones = Value(LazyBuffer.const(True, dtypes.bool, (rows,), device))
    steps = ones.pad(((columns - 1, 0),))
    return steps.window(0, columns).stride((1, -1))
