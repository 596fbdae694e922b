"""Sums, means, extremes along axes; all, any, and differences of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ferrule.array_api.data_types import total_dtype
from ferrule.ir.dtype import DType
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

Axis: TypeAlias = int | tuple[int, ...] | None


def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """True if no element along the axes is 0; True without elements."""
    return x.all(axis, keepdims)


def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """True if some element along the axes is not 0; False without elements."""
    return x.any(axis, keepdims)


def max(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element along the axes; NaN if there is one."""
    return x.amax(axis, keepdims)


def min(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element along the axes; NaN if there is one."""
    return x.amin(axis, keepdims)


def mean(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean along the axes."""
    return x.mean(axis, keepdims)


def sum(
    x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The sum along the axes; narrow integers in 32 bits."""
    return x.sum(axis, keepdims, dtype or total_dtype(x.dtype))


def prod(
    x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The product along the axes; narrow integers in 32 bits."""
    return x.prod(axis, keepdims, dtype or total_dtype(x.dtype))


def var(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The variance along the axes: squared distances from the mean over n - correction."""
    return x.var(axis, keepdims, correction)


def std(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The standard deviation along the axes, the square root of `var`."""
    return x.std(axis, keepdims, correction)


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """The sum of all elements up to each one; with 0 before them if `include_initial`."""
    return _running(Tensor.cumsum, 0, x, axis, dtype, include_initial, "cumulative_sum")


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """The product of all elements up to each one; with 1 before them if `include_initial`."""
    return _running(Tensor.cumprod, 1, x, axis, dtype, include_initial, "cumulative_prod")


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The differences of neighbours along an axis, n times; of `prepend`, x and `append` joined."""
    return x.diff(n, axis, prepend, append)


def _running(
    total: Callable[..., Tensor],
    initial: int,
    x: Tensor,
    axis: int | None,
    dtype: DType | None,
    include_initial: bool,
    what: str,
) -> Tensor:
    if axis is None and x.ndim != 1:
        raise ShapeError(f"[{what}] needs an axis for a tensor of shape {x.shape}")
    place = 0 if axis is None else axis
    result = total(x, place, dtype or total_dtype(x.dtype))
    if not include_initial:
        return result
    shape = list(result.shape)
    shape[place] = 1
    first = Tensor.full(tuple(shape), initial, dtype=result.dtype, device=result.device)
    return first.cat(result, dim=place)
