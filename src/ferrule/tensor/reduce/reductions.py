"""Reductions over any axes, and functions made of them.

Axes are one number, several, or None for all; () are none, as NumPy's. A tensor without axes takes
0 and -1, as PyTorch's.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ferrule.autograd import TracedValue, note_call
from ferrule.autograd.iota import iota, position_dtype
from ferrule.ir.dtype import DType, DTypeError, dtypes, sum_dtype
from ferrule.ir.expr import sint
from ferrule.ir.lazyop import BinaryOps, ReduceOps, UnaryOps
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, expanded
from ferrule.tensor.data import DTypeLike, to_dtype
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import at_most
from ferrule.tensor.math.arithmetic import float_value
from ferrule.tensor.math.elementwise import complement
from ferrule.tensor.reduce import rowwise
from ferrule.tensor.shaping.movement import listed

Axes: TypeAlias = int | Sequence[int] | None
T = TypeVar("T")


class ValuesIndices(NamedTuple, Generic[T]):
    """Elements that were chosen along an axis, and their positions on it."""

    values: T
    indices: T


class MinMax(NamedTuple, Generic[T]):
    """The smallest and the largest elements."""

    min: T
    max: T


def largest(value: TracedValue, axes: Sequence[int]) -> TracedValue:
    """The maximum along axes, which stay with size 1."""
    return value.reduce(ReduceOps.MAX, axes)


def smallest(value: TracedValue, axes: Sequence[int]) -> TracedValue:
    """The minimum along axes, which stay with size 1."""
    if dtypes.is_float(value.dtype):
        return -largest(-value, axes)
    return complement(largest(complement(value), axes))


def is_nan(value: TracedValue) -> TracedValue:
    """Where a value is NaN; nowhere for integers."""
    return value.differs(value)


def _adding_dtype(dtype: DType, wanted: DType, sizes: Sequence[sint]) -> DType:
    """The type to add up in: int32 where no sum of so many elements is beyond it, which is faster.

    >>> _adding_dtype(dtypes.uint8, dtypes.int64, (1000,))
    dtypes.int32
    """
    if dtype.itemsize > 2 or not (dtype is dtypes.bool or dtypes.is_int(dtype)):
        return wanted
    largest = builtins.max(dtypes.max(dtype), -dtypes.min(dtype))
    fits = storage_size(tuple(sizes)) * largest <= dtypes.max(dtypes.int32)
    return dtypes.int32 if fits else wanted


def reduced_axes(self: Tensor, axis: Axes, what: str) -> tuple[int, ...]:
    """The axes to reduce, counted from the front."""
    if not self._shape and axis is not None:
        wanted = (axis,) if isinstance(axis, int) else tuple(axis)
        if wanted in ((0,), (-1,)):
            return ()
    return self._axes(axis, what)


def with_axis(self: Tensor, axis: int, what: str) -> tuple[Tensor, int]:
    """This tensor with at least one axis, and the one meant, counted from the front."""
    (place,) = reduced_axes(self, axis, what) or (0,)
    return (self, place) if self._shape else (self.reshape(1), place)


def total_of(
    self: Tensor,
    dtype: DTypeLike | None,
    axes: Sequence[int],
    combined: Callable[[TracedValue], TracedValue] | None = None,
) -> TracedValue:
    """The sum along some axes, in the type that it has; or what else adds elements up."""
    value = self._read()
    add = combined or (lambda terms: terms.sum(axes))
    if dtype is not None:
        return add(value.cast(to_dtype(dtype)))
    wanted = sum_dtype(value.dtype)
    sizes = [value.shape[axis] for axis in axes]
    return add(value.cast(_adding_dtype(value.dtype, wanted, sizes))).cast(wanted)


def squeezed(value: TracedValue, axes: Sequence[int]) -> TracedValue:
    """A value without some axes, which have size 1."""
    kept = [size for axis, size in enumerate(value.shape) if axis not in axes]
    return value.reshape(tuple(kept))


def dropped(self: Tensor, value: TracedValue, axes: Sequence[int], keepdim: bool) -> Tensor:
    """The reduced axes, which have size 1, removed unless they are to stay."""
    return self._wrap(value if keepdim else squeezed(value, axes))


def check_not_empty(self: Tensor, axes: Sequence[int], what: str) -> None:
    """Raises `ShapeError` where one of some axes has no elements."""
    for axis in axes:
        size = self._shape[axis]
        if same(size, 0) or not (isinstance(size, int) or at_most(1, size)):
            raise ShapeError(
                f"[{what}] axis {axis} of shape {self._shape} has no elements, so it has no "
                f"{what}; pad it first, or check the size"
            )


# -- sums and products ---------------------------------------------------------------------------


@method
def sum(
    self: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum along some axes, or of everything. Bools and integers give int64, as PyTorch's.

    Sums of uint64 are uint64. With `dtype` the elements are cast before they are added. A sum that
    does not fit wraps around. Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).sum(0).tolist(), Tensor([True, True]).sum().item()
    ([4, 6], 2)
    >>> Tensor([2**30] * 4).sum().item()
    4294967296
    """
    axes = reduced_axes(self, axis, "sum")
    return dropped(self, total_of(self, dtype, axes), axes, keepdim)


@method
def prod(
    self: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The product along some axes, or of everything. Types as those of `sum`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).prod().item()
    24
    """
    axes = reduced_axes(self, axis, "prod")
    value = self._read()
    chosen = sum_dtype(value.dtype) if dtype is None else to_dtype(dtype)
    product = value.cast(chosen).reduce(ReduceOps.PROD, axes)
    return dropped(self, product, axes, keepdim)


@method
def mean(
    self: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The mean along some axes, or of everything; NaN of no elements. Ints give float32.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).mean(1).tolist()
    [1.5, 3.5]
    """
    axes = reduced_axes(self, axis, "mean")
    value = float_of(self, dtype, "mean")
    return dropped(self, rowwise.rounded_mean(value, axes), axes, keepdim)


def float_of(self: Tensor, dtype: DTypeLike | None, what: str) -> TracedValue:
    """The value in a type of floats, its own unless given."""
    if dtype is None:
        return float_value(self)
    chosen = to_dtype(dtype)
    if not dtypes.is_float(chosen):
        raise DTypeError(f"[{what}] gives floats, not {chosen}; cast the result instead")
    return self._read().cast(chosen)


@method
def nansum(
    self: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum of the elements that are not NaN; 0 if all are.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan"), 2.0]).nansum().item()
    3.0
    """
    axes = reduced_axes(self, axis, "nansum")
    total = total_of(
        self, dtype, axes, lambda value: is_nan(value).where(value.full(0), value).sum(axes)
    )
    return dropped(self, total, axes, keepdim)


@method
def nanmean(
    self: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The mean of the elements that are not NaN; NaN if all are.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, float("nan"), 2.0]).nanmean().item()
    1.5
    """
    axes = reduced_axes(self, axis, "nanmean")
    value = float_of(self, dtype, "nanmean")
    full = rowwise.accumulating(value)
    missing = is_nan(full)
    total = missing.where(full.full(0), full).sum(axes)
    count = missing.alu(UnaryOps.NEG).cast(full.dtype).sum(axes)
    return dropped(self, (total / count).cast(value.dtype), axes, keepdim)


@method
def count_nonzero(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """How many elements are other than 0 along some axes, or of all; NaN is.

    The dtype is int32, or int64 for 2**31 elements and more. Raises `ShapeError` for an axis that
    is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[0, 1], [2, 3]]).count_nonzero(0).tolist()
    [1, 2]
    """
    axes = reduced_axes(self, axis, "count_nonzero")
    chosen = position_dtype(*[self._shape[axis] for axis in axes])
    return dropped(self, self._read().differs(0).cast(chosen).sum(axes), axes, keepdim)


@method
def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """The sum over the axes that broadcasting from a shape to this one's would repeat.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).sum_to_size(1, 2).tolist()
    [[4, 6]]
    """
    shape = listed(size)
    if broadcast_shape((self._shape, shape), "sum_to_size") != self._shape:
        raise ShapeError(
            f"[sum_to_size] {shape} does not broadcast to shape {self._shape}; give its sizes, "
            "or 1 where a sum is wanted"
        )
    own = (1,) * (len(self._shape) - len(shape)) + shape
    pairs = enumerate(zip(own, self._shape, strict=True))
    axes = [axis for axis, (size, wide) in pairs if not same(size, wide)]
    return self._wrap(total_of(self, None, axes).reshape(shape))


# -- extremes ------------------------------------------------------------------------------------


@method
def max(self: Tensor, axis: Axes | Tensor = None, keepdim: bool = False) -> Tensor:
    """The largest element along some axes, or of all; NaN if there is one.

    Elements that share the maximum share its gradient evenly. With a tensor in place of axes,
    `maximum`. Raises `ShapeError` for an axis without elements.

    **With an axis, too, these are the values alone**, as NumPy's, and `argmax` has the
    positions: PyTorch's `x.max(1)[1]` is `x.argmax(1)` here. So that `v, i = x.max(1)` does not
    take two rows for these, the result is not iterated: that raises `TypeError`. `x.amax(1)` is
    the same values, which are.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 5], [7, 2]]).max(1).tolist()
    [5, 7]
    """
    if isinstance(axis, Tensor):
        return self.maximum(axis)
    return _extreme_alone(self, axis, keepdim, "max")


@method
def min(self: Tensor, axis: Axes | Tensor = None, keepdim: bool = False) -> Tensor:
    """The smallest element along some axes, or of all, as `max`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 5], [7, 2]]).min(1).tolist()
    [1, 2]
    """
    if isinstance(axis, Tensor):
        return self.minimum(axis)
    return _extreme_alone(self, axis, keepdim, "min")


def _extreme(
    self: Tensor,
    extreme: Callable[[TracedValue, Sequence[int]], TracedValue],
    axis: Axes,
    keepdim: bool,
    what: str,
) -> Tensor:
    axes = reduced_axes(self, axis, what)
    check_not_empty(self, axes, what)
    return dropped(self, extreme(self._read(), axes), axes, keepdim)


def _extreme_alone(self: Tensor, axis: Axes, keepdim: bool, what: str) -> Tensor:
    """Values along an axis, beside which PyTorch has positions: they are not unpacked."""
    values = _extreme(self, largest if what == "max" else smallest, axis, keepdim, what)
    if axis is not None:
        values._values_of = what
    return values


@method
def amax(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The same as `max`, under PyTorch's name for values alone.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 5], [7, 2]]).amax(0).tolist()
    [7, 5]
    """
    return _extreme(self, largest, axis, keepdim, "max")


@method
def amin(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The same as `min`, under PyTorch's name for values alone.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 5], [7, 2]]).amin(0).tolist()
    [1, 2]
    """
    return _extreme(self, smallest, axis, keepdim, "min")


@method
def aminmax(self: Tensor, *, axis: Axes = None, keepdim: bool = False) -> MinMax[Tensor]:
    """The smallest and the largest element along some axes, or of all.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([3, 1, 2]).aminmax().max.item()
    3
    """
    return MinMax(self.amin(axis, keepdim), self.amax(axis, keepdim))


@method
def argmax(self: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """The position of the largest element: the first of several, the first NaN if any.

    Without an axis, the position in the flat tensor. The dtype is int32, or int64 for an axis of
    2**31 elements and more. Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 5], [7, 2]]).argmax(1).tolist(), Tensor([[1, 5], [7, 2]]).argmax().item()
    ([1, 0], 2)
    """
    return _position(self, axis, keepdim, "argmax", largest)


@method
def argmin(self: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """The position of the smallest element, as `argmax`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 5], [7, 2]]).argmin(1).tolist()
    [0, 1]
    """
    return _position(self, axis, keepdim, "argmin", smallest)


def _position(self: Tensor, axis: int | None, keepdim: bool, what: str, extreme: Any) -> Tensor:
    if axis is None:
        flat = _position(self.flatten(), 0, False, what, extreme)
        return flat.reshape((1,) * self.ndim) if keepdim else flat
    tensor, place = with_axis(self, axis, what)
    check_not_empty(tensor, (place,), what)
    value = tensor._read().detach()
    found = value.equals(extreme(value, (place,)).expand(value.shape))
    if dtypes.is_float(value.dtype):
        found = found.alu(BinaryOps.OR, is_nan(value))
    # Counted from the end, so that the first position has the largest number.
    size = value.shape[place]
    numbers = expanded(iota(size, position_dtype(size), self.device), value.shape, place)
    last = rowwise.symbolic(size, numbers) if not isinstance(size, int) else numbers.full(size)
    from_end = found.where(last - numbers, 0)
    first = largest(from_end, (place,))
    last = rowwise.symbolic(size, first) if not isinstance(size, int) else first.full(size)
    note_call(what, [value], last - first, place)
    result = dropped(self, last - first, (place,), keepdim)
    return result if self._shape else result.reshape(())


@method
def any(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """True where some element along the axes (None: all of them) is not 0, as a bool tensor.

    Without elements it is False. Raises `ShapeError` for an axis that is not there.

    >>> from ferrule import Tensor
    >>> Tensor([[0, 1], [0, 0]]).any(1).tolist()
    [True, False]
    """
    axes = reduced_axes(self, axis, "any")
    return dropped(self, largest(self._read().cast(dtypes.bool), axes), axes, keepdim)


@method
def all(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """True where no element along the axes (None: all of them) is 0, as a bool tensor.

    Without elements it is True. Raises `ShapeError` for an axis that is not there.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 1], [0, 1]]).all(1).tolist()
    [True, False]
    """
    axes = reduced_axes(self, axis, "all")
    return dropped(self, smallest(self._read().cast(dtypes.bool), axes), axes, keepdim)


@method
def equal(self: Tensor, other: Tensor) -> bool:
    """True if the shapes and all elements are equal, as a Python bool; computes them now.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).equal(Tensor([1, 2])), Tensor([1, 2]).equal(Tensor([1]))
    (True, False)
    """
    if self._shape != other._shape:
        return False
    return bool((self == other).all().item())


@method
def allclose(
    self: Tensor, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """True if all elements are close, as for `isclose`, as a Python bool; computes them now.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).allclose(Tensor([1.0 + 1e-9]))
    True
    """
    return bool(self.isclose(other, rtol, atol, equal_nan).all().item())


# -- softmax -------------------------------------------------------------------------------------


@method
def softmax(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """e**x over its sum along an axis.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([0.0, 0.0]).softmax().tolist()
    [0.5, 0.5]
    """
    value = float_value(self) if dtype is None else self._read().cast(to_dtype(dtype))
    return self._wrap(rowwise.softmax(value, reduced_axes(self, axis, "softmax")))


@method
def log_softmax(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """The logarithm of the softmax along an axis.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([5.0]).log_softmax().tolist()
    [0.0]
    """
    value = float_value(self) if dtype is None else self._read().cast(to_dtype(dtype))
    return self._wrap(rowwise.log_softmax(value, reduced_axes(self, axis, "log_softmax")))


@method
def logsumexp(self: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of e**x along some axes, or of everything; -inf of nothing.

    The error is at most 6 units of 2**-24 (2**-53 for float64), of 1 or of the result if that is
    larger. Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([7.0]).logsumexp().item()
    7.0
    """
    axes = reduced_axes(self, axis, "logsumexp")
    return dropped(self, rowwise.logsumexp(float_value(self), axes), axes, keepdim)
