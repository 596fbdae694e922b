"""Variance and standard deviation, exact however large the mean is.

`correction` is what is subtracted from the number of elements: 1 for an estimate from a sample, 0
for a whole population. PyTorch's older `unbiased` says the same by True and False, also in place of
the axes: `x.var(False)`. Of no more than `correction` elements the variance is NaN, or infinite.
"""

from __future__ import annotations

from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import float_value
from ferrule.tensor.reduce import rowwise
from ferrule.tensor.reduce.reductions import Axes, dropped, reduced_axes


@method
def var(
    self: Tensor,
    axis: Axes | bool = None,
    keepdim: bool = False,
    correction: float | None = None,
    unbiased: bool | None = None,
) -> Tensor:
    """The variance along some axes: squared distances from the mean, over n - correction.

    `correction` is 1 unless given. Ints give float32. Raises `ShapeError` for an axis that is out
    of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0, 3.0]).var().item()
    1.0
    """
    return _moments(self, axis, keepdim, correction, unbiased, "var")[0]


@method
def std(
    self: Tensor,
    axis: Axes | bool = None,
    keepdim: bool = False,
    correction: float | None = None,
    unbiased: bool | None = None,
) -> Tensor:
    """The standard deviation: the square root of `var`. Where it is 0, so is its gradient.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0, 3.0]).std().item()
    1.0
    """
    return _moments(self, axis, keepdim, correction, unbiased, "std")[0]


@method
def var_mean(
    self: Tensor,
    axis: Axes | bool = None,
    keepdim: bool = False,
    correction: float | None = None,
    unbiased: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The variance and the mean.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> [part.item() for part in Tensor([1.0, 2.0, 3.0]).var_mean()]
    [1.0, 2.0]
    """
    return _moments(self, axis, keepdim, correction, unbiased, "var_mean")


@method
def std_mean(
    self: Tensor,
    axis: Axes | bool = None,
    keepdim: bool = False,
    correction: float | None = None,
    unbiased: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> [part.item() for part in Tensor([1.0, 2.0, 3.0]).std_mean()]
    [1.0, 2.0]
    """
    return _moments(self, axis, keepdim, correction, unbiased, "std_mean")


def _moments(
    self: Tensor,
    axis: Axes | bool,
    keepdim: bool,
    correction: float | None,
    unbiased: bool | None,
    what: str,
) -> tuple[Tensor, Tensor]:
    """The variance, or its root, and the mean."""
    if isinstance(axis, bool):
        axis, unbiased = None, axis
    axes = reduced_axes(self, axis, what)
    value = float_value(self)
    wide = rowwise.accumulating(value)
    spread = rowwise.variance(wide, axes, _correction(correction, unbiased, what))
    if what.startswith("std"):
        spread = rowwise.root(spread)
    spread, mean = spread.cast(value.dtype), rowwise.rounded_mean(value, axes)
    return dropped(self, spread, axes, keepdim), dropped(self, mean, axes, keepdim)


def _correction(correction: float | None, unbiased: bool | None, what: str) -> float:
    if unbiased is None:
        return 1 if correction is None else correction
    if correction is not None:
        raise ValueError(
            f"[{what}] correction={correction} and unbiased={unbiased} say the same thing twice; "
            "give one of them"
        )
    return int(unbiased)
