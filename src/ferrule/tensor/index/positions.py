"""Parsing of indices; reads and writes of positions on some axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ferrule.autograd import Shape, TracedValue
from ferrule.autograd.iota import position_dtype
from ferrule.base.config import config
from ferrule.base.records import dataclass
from ferrule.engine.host import on_host
from ferrule.ir.dtype import DTypeError, dtypes, promote
from ferrule.ir.expr import Expr, as_int, sint
from ferrule.ir.lazyop import BinaryOps
from ferrule.ir.shape.view import ShapeError, prod_sint, same
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, expanded, fit_shape
from ferrule.tensor.data import from_host
from ferrule.tensor.index.scattered import placed

Known: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one axis: `count` elements, `step` apart, that lie in [low, high)."""

    low: sint
    high: sint
    step: int


@dataclass(frozen=True, slots=True)
class Gather:
    """Positions on one axis: known on the host, or as a value."""

    known: Known | None
    value: TracedValue | None

    @property
    def shape(self) -> Shape:
        """The shape of the positions."""
        if self.known is not None:
            return tuple(self.known.shape)
        assert self.value is not None
        return self.value.shape


NEW = None
Item: TypeAlias = int | Expr | Slice | Gather | None


def take_slice(part: slice, size: sint, axis: int) -> Slice:
    """The elements that a slice takes of an axis of this size."""
    step = 1 if part.step is None else _whole(part.step)
    if step == 0:
        raise ValueError(f"[index] the step of the slice on axis {axis} is 0")
    start = _bound_of(part.start)
    stop = _bound_of(part.stop)
    if isinstance(size, int) and not isinstance(start, Expr) and not isinstance(stop, Expr):
        chosen = range(*slice(start, stop, step).indices(size))
        if not len(chosen):
            return Slice(0, 0, 1)
        first, last = chosen[0], chosen[-1]
        return Slice(min(first, last), max(first, last) + 1, step)
    if step != 1:
        raise ShapeError(
            f"[index] axis {axis} of symbolic size {size} takes slices of step 1 only, not {step}"
        )
    low = 0 if start is None else _from_front(start, size)
    high = size if stop is None else _from_front(stop, size)
    return Slice(low, high, 1)


def _bound_of(bound: Any) -> Any:
    """A bound of a slice as an int or an expression; None stays."""
    return bound if bound is None or isinstance(bound, Expr) else _whole(bound)


def _whole(number: Any) -> int:
    if not hasattr(number, "__index__"):
        raise TypeError(
            f"[index] a slice has whole numbers or None, not {number!r}; round it first"
        )
    whole: int = number.__index__()
    return whole


def _from_front(bound: sint, size: sint) -> sint:
    return as_int(size + bound) if isinstance(bound, int) and bound < 0 else bound


def take_integer(place: int, size: sint, axis: int, shape: Shape) -> sint:
    """The place that an integer means, which may count from the end; checked where it can be."""
    if isinstance(size, int) and not -size <= place < size:
        raise IndexError(
            f"[index] {place} is out of range for axis {axis} of shape {shape}, "
            f"whose size is {size}"
        )
    return as_int(size + place) if place < 0 else place


def is_array(item: object) -> bool:
    """True for an index that is an array of positions, or a mask."""
    return isinstance(item, Tensor | np.ndarray | list | tuple | range)


def host_positions(array: Any, size: sint, axis: int, shape: Shape) -> Known:
    """Positions as an array, counted from the front where the size is known.

    Raises `IndexError` for one that is out of range for any value of the size.
    """
    positions: Known = np.asarray(array)
    if positions.size == 0:
        positions = positions.astype(np.int64)
    if positions.dtype.kind not in "iu":
        raise IndexError(
            f"[index] positions on axis {axis} are integers or bools, not {positions.dtype}"
        )
    positions = positions.astype(np.int64)
    most = size if isinstance(size, int) else size.max
    wrong = positions[(positions < -most) | (positions >= most)]
    if wrong.size:
        raise IndexError(
            f"[index] {wrong.flat[0]} is out of range for axis {axis} of shape {shape}, "
            f"whose size is {size}"
        )
    return np.where(positions < 0, positions + size, positions) if most is size else positions


def chosen(array: Any, size: sint, axis: int, shape: Shape, device: str) -> Gather:
    """The positions in an array or a list, on an axis of any size.

    Those that count from the end of a symbolic size are known only when it is.
    """
    positions = host_positions(array, size, axis, shape)
    if isinstance(size, int) or (positions >= 0).all():
        return Gather(positions, None)
    index = index_value(from_host(positions, None, device))
    return Gather(None, wrapped(index, size, "index", axis))


def index_value(value: TracedValue, what: str = "index") -> TracedValue:
    """Positions in a dtype that gathers take."""
    if dtypes.is_float(value.dtype) or value.dtype is dtypes.bool:
        raise DTypeError(f"[{what}] positions are integers, not {value.dtype}; cast them first")
    if value.dtype in (dtypes.uint32, dtypes.uint64):
        return value.cast(dtypes.int64)
    return value if value.dtype is dtypes.int64 else value.cast(dtypes.int32)


def wrapped(index: TracedValue, size: sint, what: str, axis: int) -> TracedValue:
    """Negative positions counted from the end."""
    if isinstance(size, int):
        index = in_range(index, size, what, axis, -size)
    index = index.cast(promote(index.dtype, position_dtype(size)))
    return (index < 0).where(index + index.full(size), index)


def in_range(
    index: TracedValue, size: int, what: str, axis: int, first: int = 0, ignored: int | None = None
) -> TracedValue:
    """The same positions. If `FERRULE_CHECK_INDEX` is 1, the host checks them on the way.

    So a position that is not from `first` to `size` - 1 raises `IndexError` when it is computed,
    in a replay as well. Those of a symbolic shape, or on an axis of one, are not looked at.
    """
    if not config().FERRULE_CHECK_INDEX or not all([isinstance(n, int) for n in index.shape]):
        return index
    return on_host(
        _index_check, [index], index.shape, index.dtype, first, size, ignored, what, axis
    )


def _index_check(
    positions: Known, first: int, size: int, ignored: int | None, what: str, axis: int
) -> Known:
    wrong = (positions < first) | (positions >= size)
    if ignored is not None:
        wrong &= positions != ignored
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        number = "" if len(place) == 0 else f", element {place[0] if len(place) == 1 else place},"
        raise IndexError(
            f"[{what}] the position {positions[place]}{number} is out of range for axis {axis}, "
            f"whose size is {size}: it takes {first} to {size - 1}"
        )
    return positions


# *** positions without gaps ***


def without_gaps(items: Sequence[Item]) -> tuple[Sequence[Item], list[int]]:
    """The same elements, by positions on all axes from the first to the last that have any.

    So the axes with positions are neighbours in memory, and a write needs no other order of them.
    Gives, too, in which order the axes of what is written come then.
    """
    places = [place for place, item in enumerate(items) if isinstance(item, Gather)]
    first, stop = places[0], places[-1] + 1
    inner = items[first:stop]
    shape = broadcast_shape([item.shape for item in inner if isinstance(item, Gather)], "index")
    slices = [item for item in inner if isinstance(item, Slice)]
    basic = list(range(sum(map(_is_basic, items))))
    front = _axes_in_front(items)
    chosen = [-1 - axis for axis in range(len(shape))]
    before = [*basic[:front], *chosen, *basic[front:]]
    if len(places) == len(inner) or NEW in inner or any(map(_is_symbolic, inner)):
        return items, list(range(len(before)))
    ahead = sum(_is_basic(item) for item in items[:first])
    between = basic[ahead : ahead + len(slices)]
    rest = [axis for axis in basic if axis not in between]
    full = [*items[:first], *_with_slices(inner, len(shape), len(slices)), *items[stop:]]
    front = _axes_in_front(full)
    after = [*rest[:front], *chosen, *between, *rest[front:]]
    return full, [before.index(axis) for axis in after]


def _is_symbolic(item: Item) -> bool:
    if isinstance(item, Slice):
        return isinstance(item.low, Expr) or isinstance(item.high, Expr)
    return isinstance(item, Expr)


def _taken(item: Slice) -> range:
    """The elements of a slice of numbers that are known."""
    low, high, step = item.low, item.high, item.step
    assert isinstance(low, int)
    assert isinstance(high, int)
    return range(low, high, step) if step > 0 else range(high - 1, low - 1, step)


def _with_slices(items: Sequence[Item], rank: int, slices: int) -> list[Gather]:
    """Slices and integers as positions: each slice on an axis of its own behind the others'."""
    found: list[Gather] = []
    number = rank
    for item in items:
        ones = [1] * (rank + slices)
        if isinstance(item, Gather):
            before, behind = ones[: rank - len(item.shape)], ones[rank:]
            if item.value is None:
                found.append(Gather(_of(item).reshape((*before, *_of(item).shape, *behind)), None))
            else:
                found.append(Gather(None, item.value.reshape((*before, *item.shape, *behind))))
        elif isinstance(item, Slice):
            ones[number] = len(_taken(item))
            number += 1
            found.append(Gather(np.array(_taken(item), np.int64).reshape(ones), None))
        else:
            found.append(Gather(np.full(ones, item, np.int64), None))
    return found


# *** gathering ***


@dataclass(frozen=True, slots=True)
class Plan:
    """How positions on some axes of a view are read and written.

    `axes` are the view's axes with positions, `positions` one flat vector of places in those axes
    taken together, `shape` the shape of the positions, and `front` the number of axes of the result
    before them.
    """

    axes: tuple[int, ...]
    positions: TracedValue
    unique: bool
    shape: Shape
    front: int

    @staticmethod
    def make(items: Sequence[Item], gathers: Sequence[Gather], view: Shape, device: str) -> Plan:
        """The plan for an index whose other parts have been applied already."""
        shape = broadcast_shape([gather.shape for gather in gathers], "index")
        axes: list[int] = []
        place = 0
        for item in items:
            if isinstance(item, Gather):
                axes.append(place)
            place += item is None or isinstance(item, Slice | Gather)
        sizes = [view[axis] for axis in axes]
        # The places of rows are only known where the sizes of the axes below them are.
        fixed = all(isinstance(size, int) for size in sizes[1:])
        if fixed and all(gather.known is not None for gather in gathers):
            known = [np.broadcast_to(_of(gather), shape) for gather in gathers]  # type: ignore[arg-type]
            value, unique = _known_positions(known, sizes, device)
        else:
            value = _flat_positions(gathers, sizes, shape, device)
            unique = same(prod_sint(shape), 1)
        return Plan(tuple(axes), value, unique, shape, _axes_in_front(items))

    def _gathered(self, value: TracedValue) -> tuple[TracedValue, int, list[int]]:
        """The value with the axes merged into one, its place, and the order of axes used for it."""
        first, last = self.axes[0], self.axes[-1]
        rank = len(value.shape)
        order = list(range(rank))
        if last - first + 1 != len(self.axes):
            order = [*self.axes, *[axis for axis in order if axis not in self.axes]]
            first = 0
        value = value.permute(order)
        sizes = value.shape
        stop = first + len(self.axes)
        merged = (*sizes[:first], prod_sint(sizes[first:stop]), *sizes[stop:])
        return value.reshape(merged), first, order

    def _spread(self, merged: Shape, axis: int) -> TracedValue:
        """The positions for each lane of the merged value."""
        wide = (*merged[:axis], self.positions.shape[0], *merged[axis + 1 :])
        return expanded(self.positions, wide, axis)

    def _to_result(self, axis: int, rank: int) -> list[int]:
        """The order that takes the positions' axes from `axis` to their place in the result."""
        count = len(self.shape)
        moved = list(range(axis, axis + count))
        rest = [place for place in range(rank) if place not in moved]
        return [*rest[: self.front], *moved, *rest[self.front :]]

    def read(self, value: TracedValue) -> TracedValue:
        """The elements at the positions."""
        merged, axis, _ = self._gathered(value)
        found = merged.gather(self._spread(merged.shape, axis), axis)
        sizes = found.shape
        found = found.reshape((*sizes[:axis], *self.shape, *sizes[axis + 1 :]))
        return found.permute(self._to_result(axis, len(found.shape)))

    def put(self, value: TracedValue, new: TracedValue, accumulate: bool = False) -> TracedValue:
        """The value with new elements at the positions: added, or of several for one the last."""
        merged, axis, order = self._gathered(value)
        spread, new = self._aligned(merged, axis, new)
        if accumulate:
            return self._unmerged(merged.put(new, spread, axis), value, order)
        return self._unmerged(placed(merged, spread, new, axis, self.unique), value, order)

    def _aligned(
        self, merged: TracedValue, axis: int, new: TracedValue
    ) -> tuple[TracedValue, TracedValue]:
        """The positions for each lane, and new elements in their order."""
        there = self._to_result(axis, len(new.shape))
        new = new.permute([there.index(place) for place in range(len(there))])
        spread = self._spread(merged.shape, axis)
        return spread, new.reshape(spread.shape)

    def _unmerged(self, merged: TracedValue, value: TracedValue, order: list[int]) -> TracedValue:
        """The merged axes split again, and all axes in the value's order."""
        result = merged.reshape(tuple([value.shape[place] for place in order]))
        return result.permute([order.index(place) for place in range(len(order))])


def _of(gather: Gather) -> Known:
    assert gather.known is not None
    return gather.known


def _is_basic(item: Item) -> bool:
    """True if an item leaves an axis of its own."""
    return item is NEW or isinstance(item, Slice)


def _axes_in_front(items: Sequence[Item]) -> int:
    """How many axes of the result come before those of the positions: NumPy's rule.

    Positions that are next to each other, integers counted among them, stay in their place;
    separated ones go to the front.
    """
    chosen = [place for place, item in enumerate(items) if not _is_basic(item)]
    if chosen[-1] - chosen[0] + 1 != len(chosen):
        return 0
    return chosen[0]


def _known_positions(
    known: Sequence[Known], sizes: Sequence[sint], device: str
) -> tuple[TracedValue, bool]:
    """Positions on several axes as one number each; only the first size may be symbolic."""
    flat = np.zeros(known[0].shape, np.int64)
    for positions, size in zip(known, sizes, strict=True):
        flat = flat * np.int64(size if isinstance(size, int) else 0) + positions
    flat = flat.reshape(-1)
    return from_host(flat.astype(position_dtype(*sizes).np), None, device), _all_differ(flat)


def _all_differ(flat: Known) -> bool:
    """True if no two positions are equal; a mask's are in order, and need no sorting."""
    if (flat[1:] > flat[:-1]).all():
        return True
    ordered = np.sort(flat)
    return bool((ordered[1:] != ordered[:-1]).all())


def _flat_positions(
    gathers: Sequence[Gather], sizes: Sequence[sint], shape: Shape, device: str
) -> TracedValue:
    """The positions on several axes as one number; -1 where any is out of range."""
    values = [
        gather.value if gather.value is not None else from_host(_of(gather), None, device)
        for gather in gathers
    ]
    wide = any(
        gather.value is not None and gather.value.dtype is dtypes.int64 for gather in gathers
    )
    dtype = dtypes.int64 if wide else position_dtype(*sizes)
    values = [fit_shape(value.cast(dtype), shape, "index") for value in values]
    flat = values[0]
    if len(values) > 1:
        inside: TracedValue | None = None
        for value, size in zip(values, sizes, strict=True):
            fits = (value > -1).alu(BinaryOps.AND, value < value.full(size))
            inside = fits if inside is None else inside.alu(BinaryOps.AND, fits)
        for value, size in zip(values[1:], sizes[1:], strict=True):
            flat = flat * flat.full(size) + value
        assert inside is not None
        flat = inside.where(flat, -1)
    return flat.reshape((prod_sint(shape),))
