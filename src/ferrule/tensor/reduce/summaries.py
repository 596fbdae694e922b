"""Statistics under NumPy's names: without NaN, by percent, weighted."""

from __future__ import annotations

from typing import Any

from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method
from ferrule.tensor.reduce.reductions import Axes


@method
def ptp(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """How far the largest element is from the smallest, along some axes or of all.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 5], [7, 2]]).ptp(1).tolist()
    [4, 5]
    """
    return self.amax(axis, keepdim) - self.amin(axis, keepdim)


@method
def percentile(
    self: Tensor, q: Any, axis: Axes = None, keepdim: bool = False, interpolation: str = "linear"
) -> Tensor:
    """`quantile` of q / 100.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 1.0, 2.0, 4.0]).percentile([50, 75]).tolist()
    [1.5, 2.5]
    """
    shares = q / 100 if isinstance(q, Tensor) else _percents(q)
    return self.quantile(shares, axis, keepdim, interpolation)


@method
def average(
    self: Tensor, axis: Axes = None, weights: Tensor | None = None, keepdim: bool = False
) -> Tensor:
    """The mean, each element counting as much as its weight says.

    The weights have this tensor's shape, or that of the one axis.

    Raises `ShapeError` for other weights.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 5.0]).average(weights=Tensor([3.0, 1.0])).item()
    2.0
    """
    if weights is None:
        return self.mean(axis, keepdim)
    factors: Tensor = weights
    if factors._shape != self._shape and isinstance(axis, int):
        place = self._axis(axis, "average")
        if factors._shape == self._shape[place : place + 1]:
            sizes = [n if other == place else 1 for other, n in enumerate(self._shape)]
            factors = factors.reshape(sizes).expand(self._shape)
    if factors._shape != self._shape:
        raise ShapeError(
            f"[average] weights of shape {weights._shape} for elements of shape {self._shape}; "
            "give one for each, or a vector and its axis"
        )
    return (self * factors).sum(axis, keepdim) / factors.sum(axis, keepdim)


# -- what is not NaN -----------------------------------------------------------------------------


@method
def nanmax(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The largest element that is not NaN; NaN where all are.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan"), 2.0]).nanmax().item()
    2.0
    """
    if not dtypes.is_float(self.dtype):
        return self.amax(axis, keepdim)
    missing = self.isnan()
    found = missing.where(float("-inf"), self).amax(axis, keepdim)
    return missing.all(axis, keepdim).where(float("nan"), found)


@method
def nanmin(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The smallest element that is not NaN; NaN where all are.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan"), 2.0]).nanmin().item()
    1.0
    """
    if not dtypes.is_float(self.dtype):
        return self.amin(axis, keepdim)
    return -(-self).nanmax(axis, keepdim)


@method
def nanprod(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The product of the elements that are not NaN.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([2.0, float("nan"), 3.0]).nanprod().item()
    6.0
    """
    return self.isnan().where(1, self).prod(axis, keepdim)


@method
def nanvar(
    self: Tensor, axis: Axes = None, keepdim: bool = False, correction: float | None = None
) -> Tensor:
    """The variance of the elements that are not NaN; `correction` is 1 unless given, as in `var`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan"), 3.0]).nanvar().item()
    2.0
    """
    missing = self.isnan()
    count = (~missing).count_nonzero(axis, keepdim)
    rest = missing.where(0, self - self.nanmean(axis, keepdim=True))
    left = count - (1 if correction is None else correction)
    return rest.square().sum(axis, keepdim) / left.maximum(0)


@method
def nanstd(
    self: Tensor, axis: Axes = None, keepdim: bool = False, correction: float | None = None
) -> Tensor:
    """The root of `nanvar`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, float("nan"), 2.0]).nanstd(correction=0).item()
    1.0
    """
    return self.nanvar(axis, keepdim, correction).sqrt()


def _percents(q: Any) -> Any:
    """Percents as fractions."""
    try:
        return [part / 100 for part in q] if isinstance(q, list | tuple) else q / 100
    except TypeError:
        raise TypeError(f"[percentile] q is a number, or several, not {q!r}") from None
