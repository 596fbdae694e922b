"""`View`: the places of a shaped tensor's elements in a flat buffer.

Element `i` is at `offset + sum(i[k] * strides[k])` if every `i[k]` is inside `mask[k]`, and 0
elsewhere. A movement op gives another View, or None where no single View says the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import final

from ferrule.base.helpers import argsort
from ferrule.base.records import dataclass
from ferrule.ir.expr import TRUE, Expr, all_of, as_expr, as_int, is_exact, minimum, sint

Shape = tuple[sint, ...]
Mask = tuple[tuple[sint, sint], ...]


class ShapeError(ValueError):
    """A shape, or a movement of one, that makes no sense or does not fit where it is needed."""


def prod_sint(sizes: Sequence[sint]) -> sint:
    """The product of sizes, some of which may be symbolic."""
    total: sint = 1
    for size in sizes:
        total = total * size
        if type(total) is not int:
            total = as_int(total)
    return total


def same(a: sint, b: sint) -> bool:
    """True if two sizes are certainly equal: equal numbers, or one expression."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def row_major(shape: Sequence[sint]) -> Shape:
    """The strides of a dense buffer of `shape`; 0 on axes that are never stepped along.

    >>> row_major((2, 1, 3))
    (3, 0, 1)
    """
    if any(same(size, 0) for size in shape):
        return (0,) * len(shape)
    strides: list[sint] = []
    step: sint = 1
    for size in reversed(shape):
        strides.append(0 if same(size, 1) else step)
        step = as_int(step * size)
    return tuple(reversed(strides))


def _surely(condition: bool | Expr) -> bool:
    """True if a comparison holds for all values of the variables."""
    return condition is True or condition is TRUE


def _smaller(a: sint, b: sint) -> sint:
    if _surely(a <= b):
        return a
    return b if _surely(b <= a) else minimum(a, b)


def _larger(a: sint, b: sint) -> sint:
    if _surely(a <= b):
        return b
    return a if _surely(b <= a) else -minimum(-a, -b)


def _ceildiv(size: sint, divisor: int) -> sint:
    return as_int((size + (divisor - 1)) // divisor)


@final
@dataclass(frozen=True)
class View:
    """Shape, strides and offset, counted in elements, and the part of each axis that is there.

    Equal layouts are equal Views: axes of one element have stride 0, a mask that hides nothing is
    None, and an axis of which one element is left has its position in the offset.

    >>> View.create((2, 3)).permute((1, 0))
    View(shape=(3, 2), strides=(1, 3), offset=0, mask=None)
    """

    shape: Shape
    strides: Shape
    offset: sint = 0
    mask: Mask | None = None

    @staticmethod
    def create(
        shape: Sequence[sint],
        strides: Sequence[sint] | None = None,
        offset: sint = 0,
        mask: Sequence[tuple[sint, sint]] | None = None,
    ) -> View:
        """A View; without `strides`, row-major.

        Raises `ShapeError` for negative sizes or lengths that differ.
        """
        steps = row_major(shape) if strides is None else tuple(strides)
        return View(tuple(shape), steps, offset, None if mask is None else tuple(mask))

    def __post_init__(self) -> None:
        shape = tuple(as_int(size) for size in self.shape)
        if len(self.strides) != len(shape) or len(self.mask or shape) != len(shape):
            raise ShapeError(
                f"View of shape {shape}: one stride and one mask for each axis are needed, "
                f"not strides {self.strides} and mask {self.mask}"
            )
        if any(_surely(size < 0) for size in shape):
            raise ShapeError(f"View of shape {shape}: a size is negative; sizes start at 0")
        strides, offset, mask = _canonical(shape, self.strides, self.offset, self.mask)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "mask", mask)

    # -- properties ------------------------------------------------------------------------------

    @property
    def size(self) -> sint:
        """The number of elements of the shape."""
        return prod_sint(self.shape)

    @property
    def contiguous(self) -> bool:
        """True for a whole dense buffer, row-major from its start."""
        return self.mask is None and same(self.offset, 0) and self.strides == row_major(self.shape)

    @property
    def valid_ranges(self) -> Mask:
        """The (start, stop) of what is there on each axis."""
        return tuple((0, size) for size in self.shape) if self.mask is None else self.mask

    def index(self, idxs: Sequence[Expr]) -> tuple[Expr, Expr]:
        """The offset of the element at `idxs`, and the condition under which it is there.

        `idxs` are in range of the shape.
        """
        if len(idxs) != len(self.shape):
            raise ShapeError(
                f"index: {len(idxs)} indices for the {len(self.shape)} axes of shape {self.shape}"
            )
        position = as_expr(self.offset)
        conditions: list[Expr] = []
        for i, size, stride, (start, stop) in self._axes(idxs):
            position = position + i * stride
            if not same(start, 0):
                conditions.append(i >= start)
            if not same(stop, size):
                conditions.append(i < stop)
        return position, all_of(conditions)

    def _axes(self, idxs: Sequence[Expr]) -> Iterator[tuple[Expr, sint, sint, tuple[sint, sint]]]:
        return zip(idxs, self.shape, self.strides, self.valid_ranges, strict=True)

    def _extents(self) -> list[tuple[sint, sint]]:
        """(count, distance) of the axes along which memory is stepped through.

        Where symbols decide whether anything is there, a stop may be before its start.
        """
        counts = [as_int(_larger(stop - start, 0)) for start, stop in self.valid_ranges]
        pairs = zip(counts, self.strides, strict=True)
        return [(n, _larger(s, -s)) for n, s in pairs if not same(n, 1)]

    @cached_property
    def is_injective(self) -> bool:
        """True if it is proved that no two elements share a place in memory.

        The proof orders the axes by stride, and each must step over everything below it. Few
        layouts are injective otherwise; for them the answer is False.
        """
        extents = self._extents()
        if any(same(count, 0) for count, _ in extents):
            return True
        reach: sint = 0
        for place in argsort([as_expr(distance).min for _, distance in extents]):
            count, distance = extents[place]
            if not _surely(reach < distance):
                return False
            reach = as_int(reach + (count - 1) * distance)
        return True

    @property
    def real_size(self) -> sint:
        """The number of different elements of the buffer that it touches at most; exact if
        injective.

        >>> View.create((4, 3), (0, 1)).real_size, View.create((4, 3), (1, 1)).real_size
        (3, 6)
        """
        extents = [(n, distance) for n, distance in self._extents() if not same(distance, 0)]
        if any(same(stop - start, 0) for start, stop in self.valid_ranges):
            return 0
        count = prod_sint([n for n, _ in extents])
        if self.is_injective:
            return count
        span: sint = 1
        for n, distance in extents:
            span = span + (n - 1) * distance
        return _smaller(count, span)

    @property
    def reach(self) -> tuple[int, int] | None:
        """From which element of the buffer to before which one it goes, at most where sizes are
        symbolic.

        None where it shows none at all, begins at a symbolic place, or is of exact size, see
        `Length`: memory of that size may end before.

        >>> View.create((4, 3), (-3, 1), 9).reach
        (0, 12)
        """
        start = self.offset
        if not isinstance(start, int):
            return None
        stop = start + 1
        for (low, high), stride in zip(self.valid_ranges, self.strides, strict=True):
            if not isinstance(low, int) or not isinstance(stride, int):
                return None
            if not isinstance(high, int):
                if is_exact(high):
                    return None
                high = high.max
            if low >= high:
                return None
            first, last = sorted((low * stride, (high - 1) * stride))
            start += first
            stop += last
        return start, stop

    # -- movement --------------------------------------------------------------------------------

    def permute(self, axes: Sequence[int]) -> View:
        """Axis `i` of the result is axis `axes[i]` of this View."""
        if sorted(axes) != list(range(len(self.shape))):
            raise ShapeError(
                f"permute({tuple(axes)}) of shape {self.shape}: "
                f"each of the axes 0 to {len(self.shape) - 1} is needed once"
            )
        ranges = self.valid_ranges
        return View(
            tuple(self.shape[axis] for axis in axes),
            tuple(self.strides[axis] for axis in axes),
            self.offset,
            tuple(ranges[axis] for axis in axes),
        )

    def expand(self, shape: Sequence[sint]) -> View:
        """Axes of size 1 repeat."""
        new = tuple(as_int(size) for size in shape)
        fits = len(new) == len(self.shape) and all(
            same(a, b) or same(a, 1) for a, b in zip(self.shape, new, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"expand({new}) of shape {self.shape}: "
                "only axes of size 1 repeat; reshape first to add axes"
            )
        return View(new, self.strides, self.offset, self._expanded_mask(new))

    def _expanded_mask(self, new: Shape) -> Mask | None:
        if self.mask is None:
            return None
        # Of an axis of size 1 all is there or nothing, which symbols may decide.
        return tuple(
            (0, as_int((stop - start) * size)) if same(old, 1) else (start, stop)
            for old, size, (start, stop) in zip(self.shape, new, self.mask, strict=True)
        )

    def pad(self, arg: Sequence[tuple[sint, sint]]) -> View:
        """`(before, after)` zeros are added on each axis."""
        self._need_pairs("pad", arg)
        if any(_surely(n < 0) for pair in arg for n in pair):
            raise ShapeError(
                f"pad({tuple(arg)}) of shape {self.shape}: a count is negative; use shrink"
            )
        axes = list(zip(self.shape, self.strides, self.valid_ranges, arg, strict=True))
        offset = self.offset
        for _, stride, _, (before, _) in axes:
            offset = offset - before * stride
        return View(
            tuple(size + before + after for size, _, _, (before, after) in axes),
            self.strides,
            offset,
            tuple((start + before, stop + before) for _, _, (start, stop), (before, _) in axes),
        )

    def shrink(self, arg: Sequence[tuple[sint, sint]]) -> View:
        """The elements `start` to `stop - 1` of each axis."""
        self._need_pairs("shrink", arg)
        for size, (start, stop) in zip(self.shape, arg, strict=True):
            if _surely(start < 0) or _surely(stop < start) or _surely(size < stop):
                raise ShapeError(
                    f"shrink({tuple(arg)}) of shape {self.shape}: "
                    f"({start}, {stop}) is no part of (0, {size})"
                )
        offset = self.offset
        for stride, (start, _) in zip(self.strides, arg, strict=True):
            offset = offset + start * stride
        mask = None
        if self.mask is not None:
            mask = tuple(
                (_larger(low - start, 0), _smaller(high - start, stop - start))
                for (low, high), (start, stop) in zip(self.mask, arg, strict=True)
            )
        return View(tuple(stop - start for start, stop in arg), self.strides, offset, mask)

    def stride(self, arg: Sequence[int]) -> View:
        """Every `arg`-th element of each axis; a negative multiplier starts from the end."""
        if len(arg) != len(self.shape) or 0 in arg:
            raise ShapeError(
                f"stride({tuple(arg)}) of shape {self.shape}: "
                "one multiplier for each axis is needed, and none may be 0"
            )
        offset = self.offset
        mask: list[tuple[sint, sint]] = []
        for size, step, (start, stop), m in zip(
            self.shape, self.strides, self.valid_ranges, arg, strict=True
        ):
            low, high = start, stop
            if m < 0:
                offset = offset + (size - 1) * step
                low, high = size - stop, size - start
            mask.append((_ceildiv(low, abs(m)), _ceildiv(high, abs(m))))
        sizes = [_ceildiv(size, abs(m)) for size, m in zip(self.shape, arg, strict=True)]
        steps = [step * m for step, m in zip(self.strides, arg, strict=True)]
        return View(tuple(sizes), tuple(steps), offset, tuple(mask))

    def diagonal(self) -> View:
        """The diagonal of the last two axes, which have one size, as one axis. No mask hides any.

        >>> View.create((3, 3)).diagonal()
        View(shape=(3,), strides=(4,), offset=0, mask=None)
        """
        if len(self.shape) < 2 or not same(*self.shape[-2:]) or self.mask is not None:
            raise ShapeError(
                f"diagonal of shape {self.shape} with mask {self.mask}: two last axes of one size "
                "are needed, and no mask; shrink them first"
            )
        step = self.strides[-2] + self.strides[-1]
        return View(self.shape[:-1], (*self.strides[:-2], step), self.offset)

    def reshape(self, shape: Sequence[sint]) -> View | None:
        """The same elements, row-major, under another shape; None if strides cannot say it.

        Sizes of which the variables decide whether they are as many count as such: they are with
        the values that the variables have.
        """
        new = tuple(as_int(size) for size in shape)
        if new == self.shape:
            return self
        size, asked = self.size, prod_sint(new)
        if isinstance(size, int) and isinstance(asked, int) and size != asked:
            raise ShapeError(
                f"reshape({new}) of shape {self.shape}: "
                f"{asked} elements are asked for, and there are {size}"
            )
        if self.mask is None and self.strides == row_major(self.shape):
            return View(new, row_major(new), self.offset)
        if not same(size, asked):
            return None
        ranges = self.valid_ranges
        if any(same(start, stop) for start, stop in ranges):
            # A mask needs an axis to say that nothing is there.
            return View(new, (0,) * len(new), 0, ((0, 0),) * len(new)) if new else None
        if any(same(n, 1) and pair != (0, 1) for n, pair in zip(self.shape, ranges, strict=True)):
            return None  # symbols decide whether there is anything
        return _reshaped(self, new)

    def _need_pairs(self, op: str, arg: Sequence[tuple[sint, sint]]) -> None:
        if len(arg) != len(self.shape):
            raise ShapeError(
                f"{op}({tuple(arg)}) of shape {self.shape}: one pair for each axis is needed"
            )


def _canonical(
    shape: Shape, strides: Shape, offset: sint, mask: Mask | None
) -> tuple[Shape, sint, Mask | None]:
    """The one way to write a layout."""
    ranges = [(as_int(low), as_int(high)) for low, high in mask or [(0, n) for n in shape]]
    if any(same(size, 0) for size in shape):
        return (0,) * len(shape), 0, None
    if any(_surely(high <= low) for low, high in ranges):
        return (0,) * len(shape), 0, ((0, 0),) * len(shape)
    steps: list[sint] = []
    for size, stride, (low, high) in zip(shape, strides, ranges, strict=True):
        if same(size, 1):
            steps.append(0)
        elif same(as_int(high - low), 1):
            steps.append(0)
            offset = offset + low * stride
        else:
            steps.append(as_int(stride))
    whole = all(
        same(low, 0) and same(high, n) for n, (low, high) in zip(shape, ranges, strict=True)
    )
    return tuple(steps), as_int(offset), None if whole else tuple(ranges)


# -- reshape -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    size: sint
    stride: sint
    start: sint
    stop: sint

    @property
    def single(self) -> bool:
        """One element is there, and the offset holds its position, so that any stride will do."""
        return same(as_int(self.stop - self.start), 1)


def _reshaped(view: View, new: Shape) -> View | None:
    """Axes are taken in groups of equal size; each group becomes one axis, then the new ones."""
    axes = [
        _Axis(size, stride, start, stop)
        for size, stride, (start, stop) in zip(
            view.shape, view.strides, view.valid_ranges, strict=True
        )
        if not same(size, 1)
    ]
    sizes = [size for size in new if not same(size, 1)]
    offset = view.offset
    parts: list[_Axis] = []
    for old, wanted in _groups(axes, sizes):
        merged = _merge(old)
        if merged is None:
            return None
        flat, moved = merged
        split = _split(flat, wanted)
        if split is None:
            return None
        offset = offset - moved
        parts.extend(split)
    rest = iter(parts)
    placed = [_Axis(1, 0, 0, 1) if same(size, 1) else next(rest) for size in new]
    strides = tuple(axis.stride for axis in placed)
    return View(new, strides, offset, tuple((axis.start, axis.stop) for axis in placed))


def _groups(
    axes: Sequence[_Axis], sizes: Sequence[sint]
) -> Iterator[tuple[Sequence[_Axis], Sequence[sint]]]:
    """The shortest runs of old axes and of new sizes with the same product, side by side."""
    i = j = 0
    while i < len(axes) and j < len(sizes):
        first, begin = i, j
        left, right = axes[i].size, sizes[j]
        i, j = i + 1, j + 1
        while not same(left, right) and (i < len(axes) or j < len(sizes)):
            behind = as_expr(left).max <= as_expr(right).max
            if i < len(axes) and (behind or j == len(sizes)):
                left = as_int(left * axes[i].size)
                i += 1
            else:
                right = as_int(right * sizes[j])
                j += 1
        yield axes[first:i], sizes[begin:j]


def _unit_stride(axes: Sequence[_Axis]) -> sint | None:
    """The stride of all `axes` as one; None where their strides do not follow from one another."""
    unit: sint | None = None
    inner: sint = 1
    for axis in reversed(axes):
        if not axis.single:
            if unit is None:
                if not same(as_int(axis.stride % inner), 0):
                    return None
                unit = as_int(axis.stride // inner)
            elif not same(axis.stride, as_int(unit * inner)):
                return None
        inner = as_int(inner * axis.size)
    return 0 if unit is None else unit


def _merge(axes: Sequence[_Axis]) -> tuple[_Axis, sint] | None:
    """The `axes` as one, and what the offset loses by it; None where one axis cannot say it."""
    if len(axes) == 1:
        return axes[0], 0
    unit = _unit_stride(axes)
    if unit is None:
        return None
    size: sint = 1
    low: sint = 0
    high: sint = 1
    moved: sint = 0
    for axis in reversed(axes):
        if same(low, 0) and same(high, size):
            low, high = as_int(axis.start * size), as_int(axis.stop * size)
        elif axis.single:
            low, high = as_int(axis.start * size + low), as_int(axis.start * size + high)
        else:
            return None
        if axis.single:
            moved = as_int(moved + axis.start * unit * size)
        size = as_int(size * axis.size)
    return _Axis(size, unit, low, high), moved


def _split(axis: _Axis, sizes: Sequence[sint]) -> list[_Axis] | None:
    """The `axis` as several of `sizes`; None where what is there of it is no box of theirs."""
    if len(sizes) == 1:
        return [axis]
    out: list[_Axis] = []
    low, high = axis.start, axis.stop
    for place, size in enumerate(sizes):
        inner = prod_sint(sizes[place + 1 :])
        stride = as_int(axis.stride * inner)
        first, last = as_int(low // inner), as_int((high - 1) // inner)
        if same(as_int(low % inner), 0) and same(as_int(high % inner), 0):
            out.append(_Axis(size, stride, first, as_int(high // inner)))
            low, high = 0, inner
        elif same(first, last):
            out.append(_Axis(size, stride, first, as_int(first + 1)))
            low, high = as_int(low - first * inner), as_int(high - first * inner)
        else:
            return None
    return out
