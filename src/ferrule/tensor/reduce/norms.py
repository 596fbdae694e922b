"""Norms of vectors: of all elements along some axes together."""

from __future__ import annotations

import math
from typing import Any

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.ir.lazyop import UnaryOps
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.algebra import factoring
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import DTypeLike
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import plain
from ferrule.tensor.math.arithmetic import Operand, as_floats
from ferrule.tensor.math.power import power
from ferrule.tensor.math.special import widened
from ferrule.tensor.reduce import rowwise
from ferrule.tensor.reduce.reductions import (
    Axes,
    check_not_empty,
    dropped,
    float_of,
    largest,
    reduced_axes,
    smallest,
)


def norm_along(x: TracedValue, p: float, axes: tuple[int, ...], kept: bool = False) -> TracedValue:
    """(sum of abs(x)**p)**(1/p) along the axes, which stay with size 1, or the limit of that.

    `kept` says that its gradients are to read it from memory.
    """
    result = _norm(widened(x), p, axes).cast(x.dtype)
    node = result.node
    if kept:
        without = tuple([n for i, n in enumerate(x.shape) if i not in axes])
        node = node.reshape(without).contiguous().reshape(node.shape)
    return record("vector_norm", _NORM, (x,), node, (p, axes))


def _norm(x: TracedValue, p: float, axes: tuple[int, ...]) -> TracedValue:
    if p == 2:
        return (x * x).sum(axes).alu(UnaryOps.SQRT)
    if p == 0:
        return x.differs(0).cast(x.dtype).sum(axes)
    size = x.absolute()
    if math.isinf(p):
        return largest(size, axes) if p > 0 else smallest(size, axes)
    if p == 1:
        return size.sum(axes)
    total = power(size, size.full(p)).sum(axes)
    return power(total, total.full(1 / p))


def _reverse_norm(grad: TracedValue, entry: GradNode) -> Gradients:
    """sign(x) * (abs(x) / norm)**(p - 1); 0 for elements that are 0, as PyTorch's.

    Elements that share the largest, or smallest, size share its gradient evenly.
    """
    p, axes = entry.arg
    x = rowwise.accumulating(entry.saved[0])
    grad = rowwise.accumulating(grad).expand(x.shape)
    zero = x.equals(0)
    if p == 0:
        return (None,)
    sign = zero.where(x.full(0), (x > 0).where(x.full(1), -1.0))
    if p == 1:
        return ((grad * sign).cast(entry.kinds[0]),)
    norm = rowwise.accumulating(entry.result())
    if p == 2:
        return ((_direction(x, norm) * grad).cast(entry.kinds[0]),)
    norm = norm.expand(x.shape)
    if math.isinf(p):
        chosen = x.absolute().equals(norm).cast(x.dtype)
        slope = sign * chosen / chosen.sum(axes).expand(x.shape)
        return ((grad * slope).cast(entry.kinds[0]),)
    ratio = zero.where(x.full(1), x) / norm.equals(0).where(norm.full(1), norm)
    ratio = sign * power(ratio.absolute(), ratio.full(p - 1))
    return (zero.where(x.full(0), grad * ratio).cast(entry.kinds[0]),)


def _direction(x: TracedValue, norm: TracedValue) -> TracedValue:
    """x / norm, and 0 where the norm is 0, with one division for each norm.

    Neither that nor the product leaves the range of floats, as the gradient over a norm might.
    """
    is_zero = norm.equals(0)
    inverse = is_zero.where(norm.full(1), norm).alu(UnaryOps.RECIP)
    return x * is_zero.where(norm.full(0), inverse).expand(x.shape)


_NORM = Rule(_reverse_norm, inputs=(0,), output=True)


@method
def norm(
    self: Tensor,
    p: Any = 2.0,
    axis: Axes = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The p-norm along some axes, or of everything; p may be infinite, 0, or "fro" for 2.

    All elements along the axes count as one vector, as in PyTorch's `norm`. Where the norm is 0,
    its gradient is. "nuc", of matrices in two axes, is the sum of their singular values, which are
    computed on the host; `matrix_norm` has the other norms of matrices. Raises `ShapeError` for an
    axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([3.0, 4.0]).norm().item(), Tensor([3.0, -4.0]).norm(float("inf")).item()
    (5.0, 4.0)
    """
    if p == "nuc":
        return _nuclear_norm(self, axis, keepdim, dtype)
    order = 2.0 if p is None or p == "fro" else plain(p)
    if not isinstance(order, int | float):
        raise ValueError(f"[norm] p is a number, 'fro', 'nuc' or None, not {p!r}")
    return _vector_norm(self, order, axis, keepdim, dtype, "norm")


def _nuclear_norm(self: Tensor, axis: Axes, keepdim: bool, dtype: DTypeLike | None) -> Tensor:
    axes = reduced_axes(self, axis, "norm")
    if len(axes) != 2:
        raise ShapeError(f"[norm] 'nuc' is of matrices, in two axes, not {len(axes)}: {axes}")
    value = float_of(self, dtype, "norm")
    matrices = rowwise.accumulating(self._wrap(value).movedim(axes, (-2, -1))._read())
    total = factoring.singular_values(matrices).sum((len(matrices.shape) - 2,))
    shape = [1 if i in axes else size for i, size in enumerate(value.shape)]
    return dropped(self, total.reshape(tuple(shape)).cast(value.dtype), axes, keepdim)


@method
def vector_norm(
    self: Tensor,
    ord: float = 2.0,
    axis: Axes = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The same as `norm`, under the name of PyTorch's `linalg` and the array API.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[3.0, 4.0], [6.0, 8.0]]).vector_norm(2, axis=1).tolist()
    [5.0, 10.0]
    """
    return _vector_norm(self, ord, axis, keepdim, dtype, "vector_norm")


def _vector_norm(
    self: Tensor, p: float, axis: Axes, keepdim: bool, dtype: DTypeLike | None, what: str
) -> Tensor:
    axes = reduced_axes(self, axis, what)
    if math.isinf(p):
        check_not_empty(self, axes, what)
    return dropped(self, norm_along(float_of(self, dtype, what), float(p), axes), axes, keepdim)


@method
def dist(self: Tensor, other: Operand, p: float = 2.0) -> Tensor:
    """The p-norm of the difference from another tensor.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).dist(Tensor([4.0, 6.0])).item()
    5.0
    """
    return (as_floats(self, other) - other).norm(p)


@method
def renorm(self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Each part at one place of an axis, scaled down to the norm `maxnorm` if it has more.

    >>> from ferrule import Tensor
    >>> Tensor([[3.0, 4.0], [0.5, 0.25]]).renorm(1, 0, 3.5).tolist()[1]
    [0.5, 0.25]
    """
    place = self._axis(dim, "renorm")
    others = [axis for axis in range(self.ndim) if axis != place]
    norm = self.norm(p, others, keepdim=True)
    return self * (norm > maxnorm).where(maxnorm / (norm + 1e-7), 1.0)
