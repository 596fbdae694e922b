"""Reductions over any axes, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

from ferrule.counting import count_to
from ferrule.dtype import DType, dtypes, sum_dtype
from ferrule.expr import as_int
from ferrule.gradient import Value
from ferrule.ops import BinaryOps, ReduceOps
from ferrule.shape.view import ShapeError, prod_sint, same
from ferrule.tensor import rowwise
from ferrule.tensor.data import to_dtype
from ferrule.tensor.elementwise import complement
from ferrule.tensor.joining import Joining

Axes: TypeAlias = int | Sequence[int] | None
_BLOCK = 16  # of a running sum: every element of a block is added up on its own


def largest(value: Value, axes: Sequence[int]) -> Value:
    """The maximum along axes, which stay with size 1."""
    return value.reduce(ReduceOps.MAX, axes)


def smallest(value: Value, axes: Sequence[int]) -> Value:
    """The minimum along axes, which stay with size 1."""
    if dtypes.is_float(value.dtype):
        return -largest(-value, axes)
    return complement(largest(complement(value), axes))


class Reduce(Joining):
    """Sums, products, extremes, statistics, softmax."""

    __slots__ = ()

    def _dropped(self, value: Value, axes: Sequence[int], keepdim: bool) -> Self:
        """The reduced axes, which have size 1, removed unless they are to stay."""
        if keepdim:
            return self._wrap(value)
        kept = [size for axis, size in enumerate(value.shape) if axis not in axes]
        return self._wrap(value.reshape(tuple(kept)))

    def _check_not_empty(self, axes: Sequence[int], what: str) -> None:
        for axis in axes:
            if same(self._shape[axis], 0):
                raise ShapeError(
                    f"[{what}] axis {axis} of shape {self._shape} has no elements, so it has no "
                    f"{what}; pad it first, or check the size"
                )

    # -- sums and products -----------------------------------------------------------------------

    def sum(
        self, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """The sum along some axes, or of everything. Bools and narrow ints give int32 or uint32.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2], [3, 4]]).sum(0).tolist(), Tensor([True, True]).sum().item()
        ([4, 6], 2)
        """
        axes = self._axes(axis, "sum")
        value = self._read()
        value = value.cast(sum_dtype(value.dtype) if dtype is None else to_dtype(dtype))
        return self._dropped(value.sum(axes), axes, keepdim)

    def prod(
        self, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """The product along some axes, or of everything. Types as those of `sum`.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2], [3, 4]]).prod().item()
        24
        """
        axes = self._axes(axis, "prod")
        value = self._read()
        value = value.cast(sum_dtype(value.dtype) if dtype is None else to_dtype(dtype))
        return self._dropped(value.reduce(ReduceOps.PROD, axes), axes, keepdim)

    def mean(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The mean along some axes, or of everything. Ints give float32.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2], [3, 4]]).mean(1).tolist()
        [1.5, 3.5]
        """
        axes = self._axes(axis, "mean")
        return self._dropped(self._mean(self._float(), axes), axes, keepdim)

    @staticmethod
    def _mean(value: Value, axes: Sequence[int]) -> Value:
        narrow = value.dtype
        wide = value.cast(dtypes.float32) if narrow.itemsize < 4 else value
        return rowwise.mean(wide, tuple(axes)).cast(narrow)

    def var(self, axis: Axes = None, keepdim: bool = False, correction: int = 1) -> Self:
        """The variance along some axes: squared distances from the mean, over n - correction.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0, 3.0]).var().item()
        1.0
        """
        return self._variance(axis, keepdim, correction, "var")[0]

    def std(self, axis: Axes = None, keepdim: bool = False, correction: int = 1) -> Self:
        """The standard deviation: the square root of `var`.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0, 3.0]).std().item()
        1.0
        """
        return self._variance(axis, keepdim, correction, "std")[0].sqrt()

    def var_mean(
        self, axis: Axes = None, keepdim: bool = False, correction: int = 1
    ) -> tuple[Self, Self]:
        """The variance and the mean.

        >>> from ferrule import Tensor
        >>> [part.item() for part in Tensor([1.0, 2.0, 3.0]).var_mean()]
        [1.0, 2.0]
        """
        return self._variance(axis, keepdim, correction, "var_mean")

    def std_mean(
        self, axis: Axes = None, keepdim: bool = False, correction: int = 1
    ) -> tuple[Self, Self]:
        """The standard deviation and the mean.

        >>> from ferrule import Tensor
        >>> [part.item() for part in Tensor([1.0, 2.0, 3.0]).std_mean()]
        [1.0, 2.0]
        """
        variance, mean = self._variance(axis, keepdim, correction, "std_mean")
        return variance.sqrt(), mean

    def _variance(self, axis: Axes, keepdim: bool, correction: int, what: str) -> tuple[Self, Self]:
        axes = self._axes(axis, what)
        value = self._float()
        narrow = value.dtype
        if narrow.itemsize < 4:
            value = value.cast(dtypes.float32)
        mean = self._mean(value, axes)
        distance = value - mean.expand(value.shape)
        total = (distance * distance).sum(axes)
        count = prod_sint([value.shape[place] for place in axes])
        if isinstance(count, int):
            left = max(count - correction, 0)
            variance = total / left
        else:
            variance = total / (rowwise.symbolic(count, total) - correction)
        return (
            self._dropped(variance.cast(narrow), axes, keepdim),
            self._dropped(mean.cast(narrow), axes, keepdim),
        )

    def norm(self, p: float = 2.0, axis: Axes = None, keepdim: bool = False) -> Self:
        """The p-norm along some axes, or of everything; p may be infinite.

        >>> from ferrule import Tensor
        >>> Tensor([3.0, 4.0]).norm().item(), Tensor([3.0, -4.0]).norm(float("inf")).item()
        (5.0, 4.0)
        """
        size = self._wrap(self._float()).abs()
        if p == math.inf:
            return size.max(axis, keepdim)
        if p == -math.inf:
            return size.min(axis, keepdim)
        if p == 0:
            nonzero = self._wrap(size._read().differs(0))
            return nonzero.sum(axis, keepdim).cast(size.dtype)
        if p == 1:
            return size.sum(axis, keepdim)
        return (size**p).sum(axis, keepdim) ** (1 / p)

    # -- extremes --------------------------------------------------------------------------------

    def max(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The largest element along some axes, or of all; NaN if there is one.

        Elements that share the maximum share its gradient evenly. Raises `ShapeError` for an axis
        without elements.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 5], [7, 2]]).max(1).tolist()
        [5, 7]
        """
        axes = self._axes(axis, "max")
        self._check_not_empty(axes, "max")
        return self._dropped(largest(self._read(), axes), axes, keepdim)

    def min(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The smallest element along some axes, or of all; NaN if there is one.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 5], [7, 2]]).min(1).tolist()
        [1, 2]
        """
        axes = self._axes(axis, "min")
        self._check_not_empty(axes, "min")
        return self._dropped(smallest(self._read(), axes), axes, keepdim)

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The position of the largest element: the first of several, the first NaN if any.

        Without an axis, the position in the flat tensor. The dtype is int32.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 5], [7, 2]]).argmax(1).tolist(), Tensor([[1, 5], [7, 2]]).argmax().item()
        ([1, 0], 2)
        """
        return self._position(axis, keepdim, "argmax", largest)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The position of the smallest element, as `argmax`.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 5], [7, 2]]).argmin(1).tolist()
        [0, 1]
        """
        return self._position(axis, keepdim, "argmin", smallest)

    def _position(self, axis: int | None, keepdim: bool, what: str, extreme: Any) -> Self:
        if axis is None:
            flat = self.flatten()._position(0, False, what, extreme)
            return flat.reshape((1,) * self.ndim) if keepdim else flat
        place = self._axis(axis, what)
        self._check_not_empty((place,), what)
        value = self._read().detach()
        found = value.equals(extreme(value, (place,)).expand(value.shape))
        if dtypes.is_float(value.dtype):
            found = found.alu(BinaryOps.OR, value.differs(value))
        # Counted from the end, so that the first position has the largest number.
        size = value.shape[place]
        shape = tuple([size if i == place else 1 for i in range(len(value.shape))])
        numbers = count_to(size, dtypes.int32, self.device).reshape(shape).expand(value.shape)
        last = rowwise.symbolic(size, numbers) if not isinstance(size, int) else numbers.full(size)
        from_end = found.where(last - numbers, 0)
        first = largest(from_end, (place,))
        last = rowwise.symbolic(size, first) if not isinstance(size, int) else first.full(size)
        return self._dropped(last - first, (place,), keepdim)

    def any(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Whether some element is other than 0.

        >>> from ferrule import Tensor
        >>> Tensor([[0, 1], [0, 0]]).any(1).tolist()
        [True, False]
        """
        axes = self._axes(axis, "any")
        return self._dropped(largest(self._read().cast(dtypes.bool), axes), axes, keepdim)

    def all(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Whether every element is other than 0.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 1], [0, 1]]).all(1).tolist()
        [True, False]
        """
        axes = self._axes(axis, "all")
        return self._dropped(smallest(self._read().cast(dtypes.bool), axes), axes, keepdim)

    def allclose(
        self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> bool:
        """Whether all elements are close, as `isclose`; runs what is needed.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).allclose(Tensor([1.0 + 1e-9]))
        True
        """
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    # -- softmax ---------------------------------------------------------------------------------

    def softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """e**x over its sum along an axis.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 0.0]).softmax().tolist()
        [0.5, 0.5]
        """
        value = self._float() if dtype is None else self._read().cast(to_dtype(dtype))
        return self._wrap(rowwise.softmax(value, self._softmax_axes(axis, "softmax")))

    def log_softmax(self, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """The logarithm of the softmax along an axis.

        >>> from ferrule import Tensor
        >>> Tensor([5.0]).log_softmax().tolist()
        [0.0]
        """
        value = self._float() if dtype is None else self._read().cast(to_dtype(dtype))
        return self._wrap(rowwise.log_softmax(value, self._softmax_axes(axis, "log_softmax")))

    def _softmax_axes(self, axis: int, what: str) -> tuple[int, ...]:
        return (self._axis(axis, what),) if self._shape else ()

    def logsumexp(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The logarithm of the sum of e**x along some axes, or of everything.

        >>> from ferrule import Tensor
        >>> Tensor([7.0]).logsumexp().item()
        7.0
        """
        axes = self._axes(axis, "logsumexp")
        self._check_not_empty(axes, "logsumexp")
        return self._dropped(rowwise.logsumexp(self._float(), axes), axes, keepdim)

    # -- running totals --------------------------------------------------------------------------

    def cumsum(self, axis: int = 0) -> Self:
        """The sum of all elements up to and with each one, along an axis.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """
        if not self._shape:
            return self.sum()
        place = self._axis(axis, "cumsum")
        value = self._read()
        value = value.cast(sum_dtype(value.dtype))
        order = [i for i in range(len(value.shape)) if i != place] + [place]
        back = [order.index(i) for i in range(len(order))]
        return self._wrap(running_total(value.permute(order)).permute(back))


def running_total(value: Value) -> Value:
    """The running sum along the last axis: within blocks, and over the blocks' totals."""
    size = value.shape[-1]
    if not isinstance(size, int):
        raise ShapeError(f"[cumsum] the size {size} is symbolic; cumsum needs a known size")
    if size <= 1:
        return value
    rank = len(value.shape)
    none = ((0, 0),) * (rank - 1)
    if size <= _BLOCK:
        windows = value.pad((*none, (size - 1, 0))).window(rank - 1, size)
        return windows.sum((rank,)).reshape(value.shape)
    blocks = -(-size // _BLOCK)
    padded = value.pad((*none, (0, as_int(blocks * _BLOCK - size))))
    inner = running_total(padded.reshape((*value.shape[:-1], blocks, _BLOCK)))
    last = inner.shrink([(0, n) for n in inner.shape[:-1]] + [(_BLOCK - 1, _BLOCK)])
    totals = running_total(last.reshape(inner.shape[:-1]))
    before = totals.pad((*none, (1, 0))).shrink([(0, n) for n in totals.shape])
    shifted = inner + before.reshape((*before.shape, 1)).expand(inner.shape)
    flat = shifted.reshape((*value.shape[:-1], blocks * _BLOCK))
    return flat.shrink([(0, n) for n in value.shape])
