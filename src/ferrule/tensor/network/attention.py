"""Attention as one function with a reverse rule of its own, which keeps nothing of S x T elements.

The weights are computed again for the gradient, from the queries and keys: that is one more matrix
product, and they need not wait in memory from the forward pass on. The rows of the softmax's
gradient need the sum of weight times gradient over each row; that is the sum of result times
gradient, which has no axis of T elements: sum_j W_j (G . v_j) = G . sum_j W_j v_j.

Where blocks of threads run it, the three gradients are three kernels that each compute the weights
for themselves. What these need of a whole row is one number then, the logarithm of its sum of
powers, which a kernel before them finds.

Of narrower floats than float32, only weights and slopes are rounded, as operands of the products
that follow. Scores are float32: a float16 does not hold them where queries and keys are large, and
a bfloat16 holds too little of them for a power of e.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.fusion.forms import wants_one_number_a_row
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import ReduceOps
from ferrule.tensor.algebra.matrices import matrix_product, transposed, wide_product
from ferrule.tensor.broadcast import expanded
from ferrule.tensor.math.special import exp, log
from ferrule.tensor.reduce.rowwise import accumulating, softmax


def attention(
    query: TracedValue,
    key: TracedValue,
    value: TracedValue,
    mask: TracedValue | None,
    scale: float,
    causal: bool,
) -> TracedValue:
    """softmax(query @ key.T * scale + mask) @ value, for (…, positions, depth) of one dtype.

    The leading axes are equal, and a mask has the shape of the scores. One of bools keeps what is
    True, any other is added.
    """
    given = [x.detach() for x in (query, key, value)]
    scores = attention_scores(given[0], given[1], scale)
    weights = attention_weights(scores, None if mask is None else mask.detach(), causal)
    result = matrix_product(weights.cast(value.dtype), given[2])
    sources = (query, key, value) if mask is None else (query, key, value, mask)
    rule = _PLAIN if mask is None else _MASKED
    return record("attention", rule, sources, result.node, (scale, causal))


def attention_scores(query: TracedValue, key: TracedValue, scale: float) -> TracedValue:
    """query @ key.T * scale, in float32 for narrower floats."""
    return wide_product(query, transposed(key)) * scale


def attention_weights(
    scores: TracedValue,
    mask: TracedValue | None,
    causal: bool,
    normalised: Callable[[TracedValue, tuple[int, ...]], TracedValue] = softmax,
) -> TracedValue:
    """The softmax along the last axis; a row that is masked entirely is 0."""
    last = (len(scores.shape) - 1,)
    if causal:
        rows, columns = scores.shape[-2:]
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        mask = _lower_triangle(rows, columns, scores.node.device)
        mask = expanded(mask, scores.shape)
    if mask is None:
        return normalised(scores, last)
    if mask.dtype is not dtypes.bool:
        scores = scores + mask.cast(scores.dtype)
        mask = mask.differs(-math.inf)
    # The lowest number, not -inf: a row without any position would be all NaN.
    low = mask.where(scores, -_largest(scores.dtype))
    return mask.where(normalised(low, last), 0.0)


def _softmax_by_one_number(x: TracedValue, axes: tuple[int, ...]) -> TracedValue:
    """The softmax as e**(x - y), where y is the logarithm of the sum of the powers."""
    largest = x.detach().reduce(ReduceOps.MAX, axes)
    total = exp(x - largest.expand(x.shape)).sum(axes)
    y = (log(total) + largest).contiguous()
    return exp(x - y.expand(x.shape))


def _reverse(grad: TracedValue, entry: GradNode) -> Gradients:
    """The gradients of query, key, value and, if it is added, of the mask."""
    query, key, value, *masks = entry.saved
    mask = masks[0] if masks else None
    scale, causal = entry.arg
    scores, scaled = _scores_again(query, key, scale)
    one_number = wants_one_number_a_row(grad.node.device)
    by = _softmax_by_one_number if one_number else softmax
    weights = attention_weights(scores, mask, causal, by)
    along = _sums_of_products(grad, entry.result())
    slope = wide_product(grad, transposed(value))
    slope = (weights * (slope - along.expand(slope.shape))).cast(grad.dtype)
    return (
        matrix_product(slope, key) * scale,
        matrix_product(transposed(slope), scaled),
        matrix_product(transposed(weights.cast(grad.dtype)), grad),
        *[slope for _ in masks],
    )


def _scores_again(
    query: TracedValue, key: TracedValue, scale: float
) -> tuple[TracedValue, TracedValue]:
    """The scores, and the scaled query. As nodes of their own: those of the forward pass are not
    held until now.
    """
    scaled = query * scale
    if accumulating(query) is query:
        return wide_product(scaled, transposed(key)), scaled
    # A narrower query, scaled, would be rounded: the weights would not be those of before.
    scores = attention_scores(_with_new_axis(query), _with_new_axis(key), scale)
    return scores.reshape(scores.shape[1:]), scaled


def _sums_of_products(a: TracedValue, b: TracedValue) -> TracedValue:
    """The sums of products along the last axis, in memory."""
    if accumulating(a) is a:
        return (a * b).sum((len(a.shape) - 1,)).contiguous()
    # Without a new axis the wider operands would be shared with the products, and stored for them.
    product = accumulating(_with_new_axis(a)) * accumulating(_with_new_axis(b))
    total = product.sum((len(a.shape),)).contiguous()
    return total.reshape(total.shape[1:])


def _with_new_axis(x: TracedValue) -> TracedValue:
    """The value with one more axis, so that nodes made of it are others than without."""
    return x.reshape((1, *x.shape))


_PLAIN = Rule(_reverse, inputs=(0, 1, 2), output=True)
_MASKED = Rule(_reverse, inputs=(0, 1, 2, 3), output=True)


def _largest(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    exponent = (1 << (dtype.exponent_bits - 1)) - 1
    return math.ldexp(2.0 - math.ldexp(1.0, -dtype.mantissa_bits), exponent)


def _lower_triangle(rows: int, columns: int, device: str) -> TracedValue:
    """Where the column is not above the row, as a condition on indices: nothing is read for it.

    Row i is a window, last element first, over as many zeros as there are columns but one, and
    ones after them.
    """
    ones = TracedValue(LazyBuffer.const(True, dtypes.bool, (rows,), device))
    steps = ones.pad(((columns - 1, 0),))
    return steps.window(0, columns).stride((1, -1))
