"""Rearranging elements: shapes, axes, slices.

Reshapes, permutations, slices, flips and expansions are views: they share the tensor's memory, as
NumPy's do, and a write through either is seen by both. All else makes new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.autograd import Shape
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr, as_expr, as_int, is_zero, present_value, sint, unbind
from ferrule.ir.lazyop import MovementOps
from ferrule.ir.shape.view import ShapeError, prod_sint, same
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import whole_size
from ferrule.tensor.cell import moved_view
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import at_most, is_part


def _bounds(pair: Sequence[Any], what: str) -> tuple[sint, sint]:
    start, stop = pair
    return whole_size(start, what), whole_size(stop, what)


def _longer_than_one(shape: Shape) -> list[sint]:
    return [size for size in shape if type(size) is not int or size != 1]


def listed(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments that were given one by one, or as one sequence."""
    if len(arguments) == 1 and isinstance(arguments[0], list | tuple):
        return tuple(arguments[0])
    return tuple(arguments)


def resolve_shape(wanted: Sequence[sint], shape: Shape, what: str) -> Shape:
    """The new shape, with -1 replaced by the size that fits; raises `ShapeError`."""
    new = tuple([whole_size(size, what) for size in wanted])
    unknown = [axis for axis, size in enumerate(new) if same(size, -1)]
    if len(unknown) > 1:
        raise ShapeError(f"[{what}] only one size of {new} may be -1")
    if any(isinstance(size, int) and size < -1 for size in new):
        raise ShapeError(f"[{what}] {new} has a negative size; only one -1 is allowed")
    total = prod_sint(shape)
    if unknown:
        (axis,) = unknown
        left = _quotient(total, prod_sint(new[:axis] + new[axis + 1 :]))
        if left is not None:
            return (*new[:axis], left, *new[axis + 1 :])
    elif same(prod_sint(new), total):
        return new
    elif isinstance(total, Expr) or any(isinstance(size, Expr) for size in new):
        return _bound_shape(new, shape, what)
    raise ShapeError(
        f"[{what}] {new} does not fit a tensor of shape {shape}, which has {total} elements; "
        "the product of the sizes must be the same"
    )


def _quotient(total: sint, by: sint) -> sint | None:
    """`total / by`, if that is whole; for all values of the variables or, noted, for these."""
    if same(by, 0):
        return None
    rest = as_int(total % by)
    if same(rest, 0) or (isinstance(by, int) and isinstance(rest, Expr) and is_zero(rest)):
        return as_int(total // by)
    if isinstance(rest, int):
        return None
    number, divisor = present_value(as_expr(total)), present_value(as_expr(by))
    if number is None or not divisor or number % divisor:
        return None
    return number // divisor if is_zero(total - by * (number // divisor)) else None


def _bound_shape(new: Shape, shape: Shape, what: str) -> Shape:
    """A shape that fits the old one with the values that its variables are bound to."""
    asked, there = prod_sint(new), prod_sint(shape)
    as_many = at_most(asked, there) and at_most(there, asked)
    if as_many and bound_size(new) == bound_size(shape):
        return new
    raise ShapeError(
        f"[{what}] {new} does not fit a tensor of shape {shape} with the values bound now"
    )


def bound_size(shape: Shape) -> int | None:
    """The number of elements with the values that variables are bound to, if all are."""
    total = 1
    for size in bound_sizes(shape):
        if size is None:
            return None
        total *= size
    return total


def bound_sizes(shape: Shape) -> list[int | None]:
    """The sizes with the values that variables are bound to; None where one is not bound."""
    sizes: list[int | None] = []
    for size in shape:
        free, values = unbind(size)
        bound: dict[Expr, int] = {variable: value for variable, value in values.items()}
        known = isinstance(free, int) or free.vars() <= set(bound)
        sizes.append(as_expr(free).infer(bound) if known else None)
    return sizes


# -- shapes --------------------------------------------------------------------------------------


@method
def reshape(self: Tensor, *shape: Any) -> Tensor:
    """The same elements in row-major order under another shape; one size may be -1.

    A view wherever NumPy would make one, else a copy.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3], [4, 5, 6]]).reshape(3, -1).tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    return _shaped(self, listed(shape), "reshape")


def _shaped(self: Tensor, wanted: Sequence[Any], what: str) -> Tensor:
    """The tensor under another shape, in which None keeps a size and -1 takes the rest."""
    own = self._shape
    if any(size is None for size in wanted[len(own) :]):
        raise ShapeError(f"[{what}] None in {tuple(wanted)} keeps no axis of shape {own}")
    sizes = [own[axis] if size is None else size for axis, size in enumerate(wanted)]
    return reshaped(self, resolve_shape(sizes, own, what))


def reshaped(self: Tensor, new: Shape) -> Tensor:
    """Under another shape of as many elements: a view, unless NumPy would copy."""
    if new == self._shape:
        return self
    # Memory of a symbolic shape is laid out for the largest, so that it may not be dense.
    may_be_copied = self._parent is not None or not {int}.issuperset(map(type, self._shape))
    if may_be_copied and not _is_view_as(self, new):
        return self._wrap(self._read().reshape(new))
    return self._view_of(MovementOps.RESHAPE, new)


def _is_view_as(self: Tensor, new: Shape) -> bool:
    """True if strides can express the new shape; axes of size 1 never matter."""
    if _longer_than_one(new) == _longer_than_one(self._shape):
        return True
    return moved_view(MovementOps.RESHAPE, self._layout(), new) is not None


@method
def view(self: Tensor, *shape: Any) -> Tensor:
    """The same as `reshape`; of a dtype, as PyTorch has it, the same as `bitcast`.

    So where elements cannot stay where they are it is a copy, and PyTorch's an error.

    >>> from ferrule import Tensor, dtypes
    >>> Tensor([1, 2, 3, 4]).view(2, 2).tolist()
    [[1, 2], [3, 4]]
    >>> Tensor([1.0]).view(dtypes.int32).item() == 0x3F800000
    True
    """
    if len(shape) == 1 and isinstance(shape[0], DType):
        return self.bitcast(shape[0])
    return _shaped(self, listed(shape), "view")


@method
def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from `start_dim` to `end_dim` as one. A view wherever there can be one.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).flatten().tolist()
    [1, 2, 3, 4]
    """
    if not self._shape:
        return reshaped(self, (1,))
    start = self._axis(start_dim, "flatten")
    end = self._axis(end_dim, "flatten")
    if end < start:
        raise ShapeError(f"[flatten] axis {end_dim} is before axis {start_dim}; swap them")
    sizes = self._shape
    return reshaped(self, (*sizes[:start], prod_sint(sizes[start : end + 1]), *sizes[end + 1 :]))


@method
def unflatten(self: Tensor, dim: int, sizes: Sequence[sint]) -> Tensor:
    """One axis as several; one size may be -1. A view.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3, 4]).unflatten(0, (2, -1)).tolist()
    [[1, 2], [3, 4]]
    """
    axis = self._axis(dim, "unflatten")
    parts = resolve_shape(sizes, (self._shape[axis],), "unflatten")
    return reshaped(self, (*self._shape[:axis], *parts, *self._shape[axis + 1 :]))


@method
def squeeze(self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without the axes of size 1: all of them, or those given that have it. A view.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[[1, 2]]]).squeeze().shape, Tensor([[[1, 2]]]).squeeze(0).shape
    ((2,), (1, 2))
    """
    if not self._shape and dim is not None:
        return self
    axes = self._axes(dim, "squeeze")
    kept = [size for axis, size in enumerate(self._shape) if axis not in axes or not same(size, 1)]
    return reshaped(self, tuple(kept))


@method
def unsqueeze(self: Tensor, dim: int) -> Tensor:
    """A new axis of size 1 at `dim`. A view.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).unsqueeze(0).shape, Tensor([1, 2]).unsqueeze(-1).shape
    ((1, 2), (2, 1))
    """
    rank = len(self._shape) + 1
    if not -rank <= dim < rank:
        raise ShapeError(
            f"[unsqueeze] axis {dim} is out of range for a new axis in shape {self._shape}: "
            f"{-rank} to {rank - 1}"
        )
    axis = dim % rank
    return reshaped(self, (*self._shape[:axis], 1, *self._shape[axis:]))


@method
def expand(self: Tensor, *shape: Any) -> Tensor:
    """Axes of size 1 repeat, and new axes come in front; -1 keeps a size. A view.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).expand(2, -1).tolist()
    [[1, 2], [1, 2]]
    """
    wanted = tuple([whole_size(size, "expand") for size in listed(shape)])
    own = self._shape
    missing = len(wanted) - len(own)
    if missing < 0:
        raise ShapeError(
            f"[expand] {wanted} has fewer axes than shape {own}; give -1 for those that stay"
        )
    own = (1,) * missing + own
    new = tuple([size if same(wide, -1) else wide for size, wide in zip(own, wanted, strict=True)])
    for size, wide in zip(own, new, strict=True):
        if not same(size, wide) and not same(size, 1):
            raise ShapeError(
                f"[expand] shape {self._shape} does not expand to {new}: only axes of size 1 "
                "repeat; use .repeat() to tile larger ones"
            )
    source = reshaped(self, own)
    return source if new == own else source._view_of(MovementOps.EXPAND, new)


@method
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """Expanded to the shape of another tensor. A view.

    >>> from ferrule import Tensor
    >>> Tensor([1]).expand_as(Tensor([4, 5])).tolist()
    [1, 1]
    """
    return self.expand(*other._shape)


# -- axes ----------------------------------------------------------------------------------------


@method
def permute(self: Tensor, *axes: Any) -> Tensor:
    """Axis i of the result is axis `axes[i]`. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3]]).permute(1, 0).shape
    (3, 1)
    """
    wanted = listed(axes)
    order = tuple([self._axis(axis, "permute") for axis in wanted])
    rank = len(self._shape)
    if sorted(order) != list(range(rank)):
        raise ShapeError(
            f"[permute] {wanted} is no order of the {rank} axes of shape {self._shape}; "
            "name each axis once"
        )
    if order == tuple(range(rank)):
        return self
    return self._view_of(MovementOps.PERMUTE, order)


@method
def transpose(self: Tensor, dim0: int = 1, dim1: int = 0) -> Tensor:
    """Two axes swapped. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).transpose(0, 1).tolist()
    [[1, 3], [2, 4]]
    """
    if not self._shape and {dim0, dim1} <= {0, -1}:
        return self
    order = list(range(len(self._shape)))
    a, b = self._axis(dim0, "transpose"), self._axis(dim1, "transpose")
    order[a], order[b] = order[b], order[a]
    return self.permute(order)


@method
def movedim(self: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Some axes moved to other places, the others kept in order. A view.

    >>> from ferrule import Tensor
    >>> Tensor.zeros(2, 3, 4).movedim(0, -1).shape
    (3, 4, 2)
    """
    origins = [source] if isinstance(source, int) else list(source)
    places = [destination] if isinstance(destination, int) else list(destination)
    if len(origins) != len(places):
        raise ShapeError(f"[movedim] {origins} and {places} differ in length")
    moved = {
        self._axis(place, "movedim"): self._axis(origin, "movedim")
        for origin, place in zip(origins, places, strict=True)
    }
    rest = iter([axis for axis in range(len(self._shape)) if axis not in moved.values()])
    return self.permute([moved[i] if i in moved else next(rest) for i in range(self.ndim)])


@method
def flip(self: Tensor, *axes: Any, dims: int | Sequence[int] = ()) -> Tensor:
    """Some axes reversed, given one by one, or as a sequence, or by keyword. A view.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).flip(0).tolist()
    [3, 2, 1]
    """
    named = (dims,) if isinstance(dims, int) else tuple(dims)
    chosen = self._axes((*listed(axes), *named), "flip")
    if not chosen:
        return self
    steps = tuple([-1 if axis in chosen else 1 for axis in range(len(self._shape))])
    return self._view_of(MovementOps.STRIDE, steps)


# -- parts ---------------------------------------------------------------------------------------


@method
def shrink(self: Tensor, arg: Sequence[tuple[sint, sint] | None]) -> Tensor:
    """The elements from start to stop - 1 of each axis; None keeps an axis. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink((None, (1, 3))).tolist()
    [[2, 3], [5, 6]]
    """
    if len(arg) != len(self._shape):
        raise ShapeError(
            f"[shrink] {len(arg)} ranges for the {len(self._shape)} axes of shape {self._shape}"
        )
    pairs = tuple(
        [
            (0, size) if pair is None else _bounds(pair, "shrink")
            for pair, size in zip(arg, self._shape, strict=True)
        ]
    )
    for bounds, size in zip(pairs, self._shape, strict=True):
        _check_part(self, bounds, size)
    if pairs == tuple([(0, size) for size in self._shape]):
        return self
    return self._view_of(MovementOps.SHRINK, pairs)


@method
def narrow(self: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """`length` elements of one axis from `start` on. A view.

    A negative start counts from the end; a tensor of one integer is computed now. Raises
    `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3, 4]).narrow(0, 1, 2).tolist()
    [2, 3]
    """
    axis = self._axis(dim, "narrow")
    if isinstance(start, Tensor):
        start = start.item()
    if isinstance(start, int) and start < 0:
        start = as_int(start + self._shape[axis])
    return part_along(self, axis, start, start + length)


def part_along(self: Tensor, axis: int, start: Any, stop: Any) -> Tensor:
    """`shrink` of one axis, counted from the front."""
    shape = self._shape
    bounds = _bounds((start, stop), "shrink")
    _check_part(self, bounds, shape[axis])
    if bounds == (0, shape[axis]):
        return self
    pairs: list[tuple[sint, sint]] = [(0, size) for size in shape]
    pairs[axis] = bounds
    return self._view_of(MovementOps.SHRINK, tuple(pairs))


def _check_part(self: Tensor, bounds: tuple[sint, sint], size: sint) -> None:
    start, stop = bounds
    if not is_part(start, stop, size):
        raise ShapeError(
            f"[shrink] ({start}, {stop}) is no part of an axis of size {size} in shape "
            f"{self._shape}"
        )


def strided(self: Tensor, steps: tuple[int, ...]) -> Tensor:
    """Every n-th element of each axis, from the end if negative. A view."""
    if all(step == 1 for step in steps):
        return self
    return self._view_of(MovementOps.STRIDE, steps)
