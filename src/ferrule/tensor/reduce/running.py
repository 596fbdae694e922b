"""Running totals along an axis: what there is up to and with each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.autograd import TracedValue
from ferrule.ir.dtype import sum_dtype
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import DTypeLike, to_dtype
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import float_value
from ferrule.tensor.reduce import scan
from ferrule.tensor.reduce.reductions import ValuesIndices, reduced_axes, total_of, with_axis


def _scanned(
    self: Tensor,
    axis: int,
    function: Callable[[TracedValue], Sequence[TracedValue]],
    value: TracedValue,
    what: str,
) -> list[Tensor]:
    """The results of a scan of a value of this shape along an axis."""
    place = with_axis(self, axis, what)[1]
    column = value if self._shape else value.reshape((1,))
    results = scan.along(place, column, function)
    return [self._wrap(result.reshape(value.shape)) for result in results]


@method
def cumsum(self: Tensor, axis: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """The sum of all elements up to and with each one, along an axis. Types as those of `sum`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).cumsum().tolist()
    [1, 3, 6]
    """

    def totals(value: TracedValue) -> TracedValue:
        return _scanned(self, axis, lambda x: [scan.cumsum(x)], value, "cumsum")[0]._read()

    return self._wrap(total_of(self, dtype, reduced_axes(self, axis, "cumsum"), totals))


@method
def cumprod(self: Tensor, axis: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """The product of all elements up to and with each one. Types as those of `sum`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).cumprod().tolist()
    [1, 2, 6]
    """
    chosen = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
    value = self._read().cast(chosen)
    return _scanned(self, axis, lambda x: [scan.cumprod(x)], value, "cumprod")[0]


@method
def cummax(self: Tensor, axis: int = 0) -> ValuesIndices[Tensor]:
    """The largest element up to and with each one, along an axis, and where it is (int32).

    NaN is the largest. Of equal elements the position is the last one's. Raises `ShapeError` for an
    axis that is out of range.

    >>> from ferrule import Tensor
    >>> values, indices = Tensor([1, 3, 2, 3]).cummax()
    >>> values.tolist(), indices.tolist()
    ([1, 3, 3, 3], [0, 1, 1, 3])
    """
    return ValuesIndices(*_scanned(self, axis, scan.cummax, self._read(), "cummax"))


@method
def cummin(self: Tensor, axis: int = 0) -> ValuesIndices[Tensor]:
    """The smallest element up to and with each one, along an axis, as `cummax`; NaN if any is.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([3, 1, 2]).cummin().values.tolist()
    [3, 1, 1]
    """
    return ValuesIndices(*_scanned(self, axis, scan.cummin, self._read(), "cummin"))


@method
def logcumsumexp(self: Tensor, axis: int = 0) -> Tensor:
    """The logarithm of the sum of e**x up to and with each element, along an axis.

    The error is at most 6 units of 2**-24 (2**-53 for float64), of 1 or of the result if that is
    larger. Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 0.0]).logcumsumexp().exp().tolist()
    [1.0, 2.0]
    """
    function = scan.logcumsumexp
    return _scanned(self, axis, lambda x: [function(x)], float_value(self), "logcumsumexp")[0]
