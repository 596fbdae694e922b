"""Differences of neighbours, integrals, and how variables vary together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.autograd import Number, TracedValue
from ferrule.ir.dtype import DTypeError, dtypes, promote
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.algebra.matrices import diagonal_part, matrix_product, transposed
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast, check_devices, known_size, part_of
from ferrule.tensor.data import from_host
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import as_floats, float_value
from ferrule.tensor.math.special import at_least
from ferrule.tensor.reduce import rowwise
from ferrule.tensor.reduce.scan import along


def _neighbours(value: TracedValue) -> tuple[TracedValue, TracedValue]:
    """All elements of the last axis but the last, and all but the first."""
    size = known_size(value.shape[-1], "diff")
    return part_of(value, 0, max(size - 1, 0)), part_of(value, min(size, 1), size)


@method
def diff(
    self: Tensor,
    n: int = 1,
    axis: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Each element of an axis less the one before, n times over; of bools, whether they differ.

    `prepend` and `append` are joined to the axis first. Raises `ShapeError` for an axis that is out
    of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 4, 9]).diff().tolist(), Tensor([1, 4, 9]).diff(2).tolist()
    ([3, 5], [2])
    """
    if not self._shape:
        raise ShapeError("[diff] a tensor without axes has no neighbours; reshape it first")
    if n < 0:
        raise ValueError(f"[diff] n is how many times to take differences, not {n}")
    place = self._axis(axis, "diff")
    if n == 0:
        return self.clone()
    parts = [part for part in (prepend, self, append) if part is not None]
    joined = parts[0].cat(*parts[1:], dim=place) if parts[1:] else self

    def differences(value: TracedValue) -> list[TracedValue]:
        for _ in range(n):
            before, after = _neighbours(value)
            differs = value.dtype is dtypes.bool
            value = after.differs(before) if differs else after - before
        return [value]

    return self._wrap(along(place, joined._read(), differences)[0])


@method
def trapezoid(self: Tensor, x: Any = None, dx: Number = 1, axis: int = -1) -> Tensor:
    """The integral along an axis by trapezoids, of points at x or dx apart. Ints give float32.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0, 4.0]).trapezoid().item()
    4.5
    """
    return _integrated(self, x, dx, axis, "trapezoid", lambda areas: areas.sum(-1))


@method
def cumulative_trapezoid(self: Tensor, x: Any = None, dx: Number = 1, axis: int = -1) -> Tensor:
    """The integral up to each point but the first, as `trapezoid`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0, 4.0]).cumulative_trapezoid().tolist()
    [1.5, 4.5]
    """
    place = self._axis(axis, "cumulative_trapezoid") - self.ndim
    return _integrated(
        self, x, dx, axis, "cumulative_trapezoid", lambda areas: areas.cumsum(-1).movedim(-1, place)
    )


def _integrated(
    self: Tensor, x: Any, dx: Number, axis: int, what: str, finish: Callable[[Tensor], Tensor]
) -> Tensor:
    """The areas between neighbours, on the last axis, finished."""
    place = self._axis(axis, what)
    heights = as_floats(self).movedim(place, -1)._read()
    before, after = _neighbours(heights)
    doubled = before + after
    if x is None:
        return finish(self._wrap(doubled * (0.5 * dx)))
    points = x._read() if isinstance(x, Tensor) else from_host(x, None, self.device)
    check_devices(heights, points, what)
    dtype = promote(heights.dtype, points.dtype)
    if len(points.shape) > 1:
        points = self._wrap(points).movedim(place - self.ndim, -1)._read()
    if points.shape[-1:] != heights.shape[-1:]:
        raise ShapeError(
            f"[{what}] points x of shape {points.shape} do not fit axis {axis} of shape "
            f"{self._shape}; give one for each element"
        )
    left, right = _neighbours(points.cast(dtype))
    width, height = broadcast(right - left, doubled.cast(dtype), what)
    return finish(self._wrap(width * height * 0.5))


@method
def cov(
    self: Tensor,
    correction: float = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """How each two rows vary together: the mean product of their distances from their means.

    Rows are variables, columns observations; of one variable it is a single number.
    `fweights` says how often each observation counts, `aweights` how much. Divided by their
    number less `correction`. Ints give float32.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]).cov().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if self.ndim > 2:
        raise ShapeError(f"[cov] a matrix or a vector is needed, not shape {self._shape}")
    value = float_value(self)
    rows = rowwise.accumulating(value)
    rows = rows.reshape(((1,) * 2 + rows.shape)[-2:])
    importances = _weights(aweights, rows, "aweights")
    weights = importances * _weights(fweights, rows, "fweights")
    whole = weights.sum((1,))
    # What rounding left of the mean is taken away, too.
    centred = _centred(_centred(rows, weights), weights)
    product = matrix_product(centred, transposed(centred * weights.expand(rows.shape)))
    total = at_least(whole - (weights * importances).sum((1,)) * correction / whole, 0)
    found = self._wrap((product / total.expand(product.shape)).cast(value.dtype))
    return found.reshape(()) if rows.shape[0] == 1 else found


@method
def corrcoef(self: Tensor) -> Tensor:
    """How each two rows vary together as a fraction of their deviations: from -1 to 1.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]).corrcoef().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if self.ndim > 2:
        raise ShapeError(f"[corrcoef] a matrix or a vector is needed, not shape {self._shape}")
    found = self.cov()
    if found.ndim == 0:
        return found / found
    deviation = self._wrap(diagonal_part(found._read())).sqrt()
    ratio = found / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    return ratio.clamp(-1, 1)


def _weights(given: Tensor | None, rows: TracedValue, name: str) -> TracedValue:
    """The weight of each observation, (1, n)."""
    shape = (1, rows.shape[1])
    if given is None:
        return rows.full(1, shape)
    if name == "fweights" and dtypes.is_float(given.dtype):
        raise DTypeError(f"[cov] fweights are counts, integers, not {given.dtype}")
    if given._shape != shape[1:]:
        raise ShapeError(
            f"[cov] {name} of shape {given._shape} do not fit {shape[1]} observations; "
            "give one for each"
        )
    return given._read().cast(rows.dtype).reshape(shape)


def _centred(rows: TracedValue, weights: TracedValue) -> TracedValue:
    """The distances of the elements from the weighted mean of their row."""
    totals = (rows * weights.expand(rows.shape)).sum((1,))
    return rows - (totals / weights.sum((1,)).expand(totals.shape)).expand(rows.shape)
