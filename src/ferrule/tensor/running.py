"""Running totals along an axis: what there is up to and with each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from ferrule.dtype import sum_dtype
from ferrule.gradient import Value
from ferrule.tensor import scan
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.data import DTypeLike, to_dtype
from ferrule.tensor.norms import Norms
from ferrule.tensor.reduce import ValuesIndices


class Running(Norms):
    """Running sums, products and extremes."""

    __slots__ = ()

    def _scanned(
        self, axis: int, function: Callable[[Value], Sequence[Value]], value: Value, what: str
    ) -> list[Self]:
        """The results of a scan of a value of this shape along an axis."""
        place = self._with_axis(axis, what)[1]
        known_size(value.shape[place] if self._shape else 1, what)
        column = value if self._shape else value.reshape((1,))
        results = scan.along(place, column, function)
        return [self._wrap(result.reshape(value.shape)) for result in results]

    def cumsum(self, axis: int = 0, dtype: DTypeLike | None = None) -> Self:
        """The sum of all elements up to and with each one, along an axis. Types as those of `sum`.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """

        def totals(value: Value) -> Value:
            return self._scanned(axis, lambda x: [scan.cumsum(x)], value, "cumsum")[0]._read()

        return self._wrap(self._total(dtype, self._over(axis, "cumsum"), totals))

    def cumprod(self, axis: int = 0, dtype: DTypeLike | None = None) -> Self:
        """The product of all elements up to and with each one. Types as those of `sum`.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2, 3]).cumprod().tolist()
        [1, 2, 6]
        """
        chosen = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
        value = self._read().cast(chosen)
        return self._scanned(axis, lambda x: [scan.cumprod(x)], value, "cumprod")[0]

    def cummax(self, axis: int = 0) -> ValuesIndices[Self]:
        """The largest element up to and with each one, along an axis, and where it is (int32).

        NaN is the largest. Of equal elements the position is the last one's.

        >>> from ferrule import Tensor
        >>> values, indices = Tensor([1, 3, 2, 3]).cummax()
        >>> values.tolist(), indices.tolist()
        ([1, 3, 3, 3], [0, 1, 1, 3])
        """
        return ValuesIndices(*self._scanned(axis, scan.cummax, self._read(), "cummax"))

    def cummin(self, axis: int = 0) -> ValuesIndices[Self]:
        """The smallest element up to and with each one, along an axis, as `cummax`; NaN if any is.

        >>> from ferrule import Tensor
        >>> Tensor([3, 1, 2]).cummin().values.tolist()
        [3, 1, 1]
        """
        return ValuesIndices(*self._scanned(axis, scan.cummin, self._read(), "cummin"))

    def logcumsumexp(self, axis: int = 0) -> Self:
        """The logarithm of the sum of e**x up to and with each element, along an axis.

        The error is at most 6 units of 2**-24 (2**-53 for float64), of 1 or of the result if that
        is larger.

        >>> from ferrule import Tensor
        >>> Tensor([0.0, 0.0]).logcumsumexp().exp().tolist()
        [1.0, 2.0]
        """
        function = scan.logcumsumexp
        return self._scanned(axis, lambda x: [function(x)], self._float(), "logcumsumexp")[0]
