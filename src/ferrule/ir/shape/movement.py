"""The movement ops: rules for shapes, indices and views, and the forms of their arguments.

A shape rule takes the shape of the source and the argument. It raises `ShapeError` where they do
not fit. An index rule takes a tuple of index expressions, one for each axis of the result, the
argument and the shape of the source. It gives the index into the source and the condition under
which the result is read from there; elsewhere the result is 0. A view rule takes a view of the
source, the argument and the shape of the result. It gives the view of the result, or None if no
single view says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, final

from ferrule.ir.expr import TRUE, Expr, all_of, as_expr, as_int, const, less, sint
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import Shape, ShapeError, View, prod_sint, same

Index = tuple[Expr, ...]
Found: TypeAlias = tuple[Index, Expr]
"""An index into the source, and the condition under which the result is read from there."""


def flatten(idx: Sequence[Expr], shape: Sequence[sint]) -> Expr:
    """The row-major position of an index."""
    out = const(0)
    for i, size in zip(idx, shape, strict=True):
        out = out * size + i
    return out


def unflatten(position: Expr, shape: Sequence[sint]) -> Index:
    """The index of a row-major position."""
    out: list[Expr] = []
    for size in reversed(shape[1:]):
        out.append(position % size)
        position = position // size
    if shape:
        out.append(position)
    return tuple(reversed(out))


def is_known(values: Iterable[sint]) -> bool:
    """True if all sizes are numbers."""
    # Lists are faster than generators, here and below: the rules run for every node that is made.
    return all([isinstance(value, int) for value in values])


def check_axis(axis: Any, rank: int) -> None:
    """Raises `ShapeError` if there is no such axis."""
    if not (isinstance(axis, int) and 0 <= axis < rank):
        raise ShapeError(f"axis {axis} is out of range for {rank} axes")


def _check_one_for_each_axis(shape: Shape, arg: Sequence[Any], what: str) -> None:
    if len(arg) != len(shape):
        raise ShapeError(f"{arg} has not one {what} for each axis of {shape}")


# *** RESHAPE: the same elements, row-major, under another shape ***


def reshape_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of RESHAPE; `arg` is the new shape."""
    if is_known(shape) and is_known(arg) and prod_sint(shape) != prod_sint(arg):
        raise ShapeError(f"{shape} has {prod_sint(shape)} elements, {arg} has {prod_sint(arg)}")
    for size in arg:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"the new shape {arg} has a negative size")
    return tuple(arg)


def reshape_index(idx: Index, arg: Shape, source: Shape) -> Found:
    """The index rule of RESHAPE. Axes are regrouped only where they must be: independent groups of
    axes do not mix, and axes of size 1 take no part.
    """
    wide = [(i, size) for i, size in zip(idx, arg, strict=True) if not same(size, 1)]
    found = iter(
        _regroup(
            [i for i, _ in wide],
            [size for _, size in wide],
            [size for size in source if not same(size, 1)],
        )
    )
    return tuple(const(0) if same(size, 1) else next(found) for size in source), TRUE


def _regroup(idx: Sequence[Expr], shape: Sequence[sint], source: Sequence[sint]) -> list[Expr]:
    out: list[Expr] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        first, start = i, j
        left: sint = 1
        right: sint = 1
        while (i == first and j == start) or not same(left, right):
            behind = as_expr(left).min <= as_expr(right).min
            if i < len(shape) and (j >= len(source) or behind):
                left = left * shape[i]
                i += 1
            elif j < len(source):
                right = right * source[j]
                j += 1
            else:
                break
        out.extend(unflatten(flatten(idx[first:i], shape[first:i]), source[start:j]))
    return out


def reshape_view(view: View, arg: Shape, shape: Shape) -> View | None:
    """The view rule of RESHAPE; None, too, where symbolic sizes do not show that the numbers of
    elements agree.
    """
    return view.reshape(shape) if prod_sint(view.shape) == prod_sint(shape) else None


# *** PERMUTE: axis i of the result is axis `arg[i]` of the source ***


def permute_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of PERMUTE."""
    if sorted(arg) != list(range(len(shape))):
        raise ShapeError(f"{arg} is no permutation of the {len(shape)} axes of {shape}")
    return tuple([shape[axis] for axis in arg])


def permute_index(idx: Index, arg: Sequence[int], source: Shape) -> Found:
    """The index rule of PERMUTE."""
    out: list[Expr] = [const(0)] * len(idx)
    for i, axis in zip(idx, arg, strict=True):
        out[axis] = i
    return tuple(out), TRUE


# *** EXPAND: axes of size 1 repeat; `arg` is the new shape ***


def expand_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of EXPAND."""
    if len(arg) != len(shape):
        raise ShapeError(f"the new shape {arg} has not the rank of {shape}")
    for size, new in zip(shape, arg, strict=True):
        if new != size and size != 1:
            raise ShapeError(f"{shape} does not expand to {arg}: only 1 repeats")
    return tuple(arg)


def expand_index(idx: Index, arg: Shape, source: Shape) -> Found:
    """The index rule of EXPAND."""
    found = tuple(
        const(0) if same(size, 1) and not same(wide, 1) else i
        for i, wide, size in zip(idx, arg, source, strict=True)
    )
    return found, TRUE


# *** PAD: zeros around the source; `arg` holds (before, after) for each axis ***


def pad_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of PAD."""
    _check_one_for_each_axis(shape, arg, "pair")
    for before, after in arg:
        if (isinstance(before, int) and before < 0) or (isinstance(after, int) and after < 0):
            raise ShapeError(f"{arg} has a negative amount; use SHRINK")
    pairs = zip(shape, arg, strict=True)
    return tuple([size + before + after for size, (before, after) in pairs])


def pad_index(idx: Index, arg: Sequence[tuple[sint, sint]], source: Shape) -> Found:
    """The index rule of PAD. Along an axis of one element the index is 0, so that what is read
    there is one value, whatever the place that it is put at.
    """
    inner = tuple(i - before for i, (before, _) in zip(idx, arg, strict=True))
    conditions: list[Expr] = []
    for i, size, (before, after) in zip(inner, source, arg, strict=True):
        if not same(before, 0):
            conditions.append(less(const(-1), i))
        if not same(after, 0):
            conditions.append(less(i, as_expr(size)))
    zero = const(0)
    found = tuple(zero if same(n, 1) else i for i, n in zip(inner, source, strict=True))
    return found, all_of(conditions)


# *** SHRINK: a part of the source; `arg` holds (start, stop) for each axis ***


def shrink_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of SHRINK."""
    _check_one_for_each_axis(shape, arg, "pair")
    for size, (start, stop) in zip(shape, arg, strict=True):
        known = isinstance(size, int) and isinstance(start, int) and isinstance(stop, int)
        if known and not 0 <= start <= stop <= size:
            raise ShapeError(f"({start}, {stop}) is no part of an axis of size {size}")
    return tuple([stop - start for start, stop in arg])


def shrink_index(idx: Index, arg: Sequence[tuple[sint, sint]], source: Shape) -> Found:
    """The index rule of SHRINK."""
    return tuple(i + start for i, (start, _) in zip(idx, arg, strict=True)), TRUE


# *** STRIDE: every `arg[i]`-th element of axis i, from the end if that is negative ***


def stride_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of STRIDE."""
    _check_one_for_each_axis(shape, arg, "multiplier")
    if 0 in arg or not is_known(arg):
        raise ShapeError(f"the multipliers {arg} must be integers other than 0")
    return tuple(
        [
            size if abs(step) == 1 else (size + (abs(step) - 1)) // abs(step)
            for size, step in zip(shape, arg, strict=True)
        ]
    )


def stride_index(idx: Index, arg: Sequence[int], source: Shape) -> Found:
    """The index rule of STRIDE."""
    found = tuple(
        i * m if m > 0 else as_expr(size) - 1 + i * m
        for i, m, size in zip(idx, arg, source, strict=True)
    )
    return found, TRUE


# *** AS_STRIDED: `arg` is (shape, strides, offset) on the source taken as flat ***


def as_strided_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of AS_STRIDED."""
    new, strides, offset = arg
    if len(new) != len(strides):
        raise ShapeError(f"{len(new)} sizes, but {len(strides)} strides")
    if is_known((*shape, *new, *strides, offset)) and 0 not in new:
        reach = [(size - 1) * stride for size, stride in zip(new, strides, strict=True)]
        lowest = offset + sum(step for step in reach if step < 0)
        highest = offset + sum(step for step in reach if step > 0)
        if lowest < 0 or highest >= prod_sint(shape):
            size = prod_sint(shape)
            raise ShapeError(f"{arg} reaches {lowest}..{highest} of {size} elements")
    return tuple(new)


def as_strided_index(idx: Index, arg: tuple[Shape, Shape, sint], source: Shape) -> Found:
    """The index rule of AS_STRIDED."""
    _, strides, offset = arg
    position = as_expr(offset)
    for i, step in zip(idx, strides, strict=True):
        position = position + i * step
    return unflatten(position, source), TRUE


def as_strided_view(view: View, arg: tuple[Shape, Shape, sint], shape: Shape) -> View | None:
    """The view rule of AS_STRIDED."""
    new, strides, offset = arg
    return View.create(new, strides, offset) if view.contiguous else None


# *** WINDOW: `arg` is (axis, size, stride, dilation); a last axis counts inside the window ***


def window_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of WINDOW: the axis has the positions of the window."""
    axis, size, stride, dilation = arg
    check_axis(axis, len(shape))
    known = [stride, dilation] if isinstance(size, Expr) else [size, stride, dilation]
    if not all(isinstance(value, int) and value >= 1 for value in known):
        raise ShapeError(f"size, stride and dilation must be at least 1, got {arg[1:]}")
    span = dilation * (size - 1) + 1
    length = shape[axis]
    if isinstance(length, int) and isinstance(span, int) and length < span:
        raise ShapeError(f"a window that spans {span} does not fit an axis of size {length}")
    count = length - span + 1 if stride == 1 else (length - span) // stride + 1
    return (*shape[:axis], count, *shape[axis + 1 :], size)


def window_index(idx: Index, arg: tuple[int, sint, int, int], source: Shape) -> Found:
    """The index rule of WINDOW."""
    axis, _, step, dilation = arg
    return (*idx[:axis], idx[axis] * step + idx[-1] * dilation, *idx[axis + 1 : -1]), TRUE


def window_view(view: View, arg: tuple[int, sint, int, int], shape: Shape) -> View | None:
    """The view rule of WINDOW."""
    axis, _, stride, dilation = arg
    if view.mask is not None:
        return None
    step = view.strides[axis]
    strides = (*view.strides[:axis], step * stride, *view.strides[axis + 1 :], step * dilation)
    return View.create(shape, strides, view.offset)


# *** UNWINDOW: `arg` is (axis, length, stride, dilation); the elements of windows, put back ***


def unwindow_shape(shape: Shape, arg: Any) -> Shape:
    """The shape rule of UNWINDOW."""
    axis, length, stride, dilation = arg
    check_axis(axis, len(shape) - 1)
    if not all(isinstance(value, int) and value >= 1 for value in (stride, dilation)):
        raise ShapeError(f"stride and dilation must be at least 1, got {arg[2:]}")
    return (*shape[:axis], length, *shape[axis + 1 :])


def unwindow_index(idx: Index, arg: tuple[int, sint, int, int], source: Shape) -> Found:
    """The index rule of UNWINDOW: where in WINDOW a position came from."""
    axis, _, step, dilation = arg
    distance = idx[axis] - idx[-1] * dilation
    position = distance // step
    conditions = [less(const(-1), distance), less(position, as_expr(source[axis]))]
    if step != 1:
        conditions.append(less(distance % step, const(1)))
    return (*idx[:axis], position, *idx[axis + 1 :]), all_of(conditions)


# *** forms of arguments ***


class Form:
    """The form of an op's argument: its sizes, its offsets, and the argument of a batched op.

    This base class is the form without integers that may change from call to call.
    """

    def sizes(self, arg: Any) -> Sequence[Any]:
        """The sizes in an argument."""
        return ()

    def offsets(self, arg: Any) -> Sequence[Any]:
        """The offsets in an argument, one for each axis."""
        return ()

    def replaced(self, arg: Any, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
        """The argument with the next of `sizes` and `offsets` in place of its own."""
        return arg

    def rest(self, arg: Any) -> Any:
        """The part of an argument that is neither sizes nor offsets."""
        return None

    def offset_bounds(self, arg: Any, axis: int, source: Shape) -> tuple[Any, Any]:
        """The least and the greatest offset along an axis that the sizes leave room for."""
        raise NotImplementedError(f"{type(self).__name__} has no offsets")

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The argument of the same op on each of `size` values, stacked along a new first axis;
        `source` is the shape of one of them.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be batched")


@final
class NewShape(Form):
    """The form of an argument that is the shape of the result."""

    def sizes(self, arg: Any) -> Sequence[Any]:
        """The sizes of the new shape."""
        sizes: Sequence[Any] = arg
        return sizes

    def replaced(self, arg: Any, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
        """A shape of the next sizes."""
        return tuple([next(sizes) for _ in arg])

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The shape with `size` in front."""
        return (size, *arg)


@final
class Axes(Form):
    """The form of an argument that has an axis of the source for each axis of the result."""

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The axes, moved by one, after the first axis, which stays first."""
        return (0, *[axis + 1 for axis in arg])


@final
class Margins(Form):
    """The form (before, after) for each axis; a size is the sum of both."""

    def sizes(self, arg: Any) -> Sequence[Any]:
        """The number of elements added to each axis."""
        return [before + after for before, after in arg]

    def offsets(self, arg: Any) -> Sequence[Any]:
        """The number of elements added in front of each axis."""
        return [before for before, _ in arg]

    def replaced(self, arg: Any, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
        """The margins of these sizes and offsets."""
        before = [next(offsets) for _ in arg]
        return tuple([(first, as_int(next(sizes) - first)) for first in before])

    def offset_bounds(self, arg: Any, axis: int, source: Shape) -> tuple[Any, Any]:
        """0, and the number of elements that are added to the axis."""
        return 0, sum(arg[axis])

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The margins, with none along the first axis."""
        return ((0, 0), *arg)


@final
class Parts(Form):
    """The form (start, stop) for each axis."""

    def sizes(self, arg: Any) -> Sequence[Any]:
        """The number of elements that are left."""
        return [stop - start for start, stop in arg]

    def offsets(self, arg: Any) -> Sequence[Any]:
        """The starts of the part."""
        return [start for start, _ in arg]

    def replaced(self, arg: Any, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
        """The part of these sizes and offsets."""
        starts = [next(offsets) for _ in arg]
        return tuple([(start, as_int(start + next(sizes))) for start in starts])

    def offset_bounds(self, arg: Any, axis: int, source: Shape) -> tuple[Any, Any]:
        """0, and the number of elements of the axis outside the part."""
        start, stop = arg[axis]
        return 0, source[axis] - (stop - start)

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The parts, with the whole first axis in front."""
        return ((0, size), *arg)


@final
class Multipliers(Form):
    """The form of an argument that has a step for each axis."""

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The steps, with step 1 along the first axis."""
        return (1, *arg)


@final
class Strided(Form):
    """The form (shape, strides, offset)."""

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The argument with a first axis whose stride is the number of elements of the source."""
        shape, strides, offset = arg
        return (size, *shape), (prod_sint(source), *strides), offset


@final
class AxisAndSize(Form):
    """The form (axis, size, ...)."""

    def sizes(self, arg: Any) -> Sequence[Any]:
        """The only size, that of the axis."""
        return (arg[1],)

    def rest(self, arg: Any) -> Any:
        """The argument without its size."""
        return (arg[0], *arg[2:])

    def replaced(self, arg: Any, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
        """The argument with the next size."""
        return (arg[0], next(sizes), *arg[2:])

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The argument for the next axis, since a new one comes first."""
        axis, *rest = arg
        return (axis + 1, *rest)


@final
class Axis(Form):
    """The form of an argument that is an axis."""

    def batched(self, arg: Any, source: Shape, size: sint) -> Any:
        """The argument for the next axis, since a new one comes first."""
        return arg + 1


@final
class Region(Form):
    """The form of the view of memory that is written to; None for all of it.

    Strides count as sizes, since they are multiples of those.
    """

    def sizes(self, arg: Any) -> Sequence[Any]:
        """The sizes of the view, and its strides."""
        return () if arg is None else (*arg.shape, *arg.strides)

    def offsets(self, arg: Any) -> Sequence[Any]:
        """The view's offset in memory."""
        return () if arg is None else (arg.offset,)

    def replaced(self, arg: Any, sizes: Iterator[sint], offsets: Iterator[sint]) -> Any:
        """A view of the next sizes, strides and offset."""
        if arg is None:
            return None
        shape = tuple([next(sizes) for _ in arg.shape])
        return View(shape, tuple([next(sizes) for _ in arg.strides]), next(offsets))

    def offset_bounds(self, arg: Any, axis: int, source: Shape) -> tuple[Any, Any]:
        """The bounds between which all elements of the view are inside the memory."""
        start, stop = arg.reach or (arg.offset, arg.offset)
        return arg.offset - start, storage_size(source) - (stop - arg.offset)


NO_INTEGERS: Final = Form()
NEW_SHAPE: Final = NewShape()
AXES: Final = Axes()
MARGINS: Final = Margins()
PARTS: Final = Parts()
MULTIPLIERS: Final = Multipliers()
STRIDED: Final = Strided()
AXIS_AND_SIZE: Final = AxisAndSize()
AXIS: Final = Axis()
REGION: Final = Region()
