"""Indexing as NumPy's: integers, slices, None and Ellipsis give views; integer tensors gather.

An index given as a list or an array is checked against the size. One given as a tensor is known
only when it runs: out of range it reads 0, and writes nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from ferrule.counting import count_to
from ferrule.dtype import DTypeError, dtypes
from ferrule.expr import Expr, as_int, sint
from ferrule.gradient import Shape, Value
from ferrule.ops import BinaryOps
from ferrule.shape.view import ShapeError, prod_sint, same
from ferrule.tensor.arithmetic import Operand
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import broadcast_shape, fit_shape, known_size
from ferrule.tensor.creation import Creation
from ferrule.tensor.data import from_host
from ferrule.tensor.reduce import largest

Known: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_LIMIT = 1 << 31


# *** what an index says ***


@dataclass(frozen=True, slots=True)
class _Slice:
    """A part of one axis: `count` elements, `step` apart, that lie in [low, high)."""

    low: sint
    high: sint
    step: int


@dataclass(frozen=True, slots=True)
class _Gather:
    """Positions on one axis: known on the host, or as a value."""

    known: Known | None
    value: Value | None

    @property
    def shape(self) -> Shape:
        """The shape of the positions."""
        if self.known is not None:
            return tuple(self.known.shape)
        assert self.value is not None
        return self.value.shape


_NEW = None
Item: TypeAlias = int | Expr | _Slice | _Gather | None


def _slice(part: slice, size: sint, axis: int) -> _Slice:
    step = 1 if part.step is None else int(part.step)
    if step == 0:
        raise ValueError(f"[index] the step of the slice on axis {axis} is 0")
    start = _bound_of(part.start)
    stop = _bound_of(part.stop)
    if isinstance(size, int) and not isinstance(start, Expr) and not isinstance(stop, Expr):
        chosen = range(*slice(start, stop, step).indices(size))
        if not len(chosen):
            return _Slice(0, 0, 1)
        first, last = chosen[0], chosen[-1]
        return _Slice(min(first, last), max(first, last) + 1, step)
    if step != 1:
        raise ShapeError(
            f"[index] axis {axis} of symbolic size {size} takes slices of step 1 only, not {step}"
        )
    low = 0 if start is None else _from_front(start, size)
    high = size if stop is None else _from_front(stop, size)
    return _Slice(low, high, 1)


def _bound_of(bound: Any) -> Any:
    """A bound of a slice as an int or an expression; None stays."""
    return bound if bound is None or isinstance(bound, Expr) else bound.__index__()


def _from_front(bound: sint, size: sint) -> sint:
    return as_int(size + bound) if isinstance(bound, int) and bound < 0 else bound


def _integer(place: int, size: sint, axis: int, shape: Shape) -> sint:
    if isinstance(size, int) and not -size <= place < size:
        raise IndexError(
            f"[index] {place} is out of range for axis {axis} of shape {shape}, "
            f"whose size is {size}"
        )
    return as_int(size + place) if place < 0 else place


def _is_array(item: object) -> bool:
    return isinstance(item, TensorBase | np.ndarray | list | tuple)


def _host_positions(array: Any, size: sint, axis: int, shape: Shape) -> Known:
    positions: Known = np.asarray(array)
    if positions.size == 0:
        positions = positions.astype(np.int64)
    if positions.dtype.kind not in "iu":
        raise IndexError(
            f"[index] positions on axis {axis} are integers or bools, not {positions.dtype}"
        )
    positions = positions.astype(np.int64)
    if isinstance(size, int):
        wrong = positions[(positions < -size) | (positions >= size)]
        if wrong.size:
            raise IndexError(
                f"[index] {wrong.flat[0]} is out of range for axis {axis} of shape {shape}, "
                f"whose size is {size}"
            )
        positions = np.where(positions < 0, positions + size, positions)
    return positions


def index_value(value: Value) -> Value:
    """Positions in a dtype that gathers take."""
    if dtypes.is_float(value.dtype) or value.dtype is dtypes.bool:
        raise DTypeError(f"[index] positions are integers, not {value.dtype}; cast them first")
    if value.dtype in (dtypes.uint32, dtypes.uint64):
        return value.cast(dtypes.int64)
    return value if value.dtype is dtypes.int64 else value.cast(dtypes.int32)


def _wrapped(index: Value, size: sint) -> Value:
    """Negative positions counted from the end."""
    if not isinstance(size, int):
        return index
    return (index < 0).where(index + size, index)


class Indexing(Creation):
    """Reading and writing parts of a tensor."""

    __slots__ = ()

    # -- taking an index apart -------------------------------------------------------------------

    def _items(self, key: Any) -> list[Item]:
        """One item for each axis, and None for each new one."""
        parts = self._without_masks(list(key) if isinstance(key, tuple) else [key])
        used = sum(part is not None and part is not Ellipsis for part in parts)
        rank = len(self._shape)
        if used > rank:
            raise IndexError(
                f"[index] {used} indices for shape {self._shape}, which has {rank} axes"
            )
        dots = [place for place, part in enumerate(parts) if part is Ellipsis]
        if len(dots) > 1:
            raise IndexError("[index] an index may hold one Ellipsis (...) only")
        whole = [slice(None)] * (rank - used)
        place = dots[0] if dots else len(parts)
        parts[place : place + 1] = whole
        items: list[Item] = []
        axis = 0
        for part in parts:
            items.append(_NEW if part is None else self._item(part, axis))
            axis += part is not None
        return items

    def _without_masks(self, parts: list[Any]) -> list[Any]:
        """Masks replaced by the positions where they hold, for which they are computed now."""
        result: list[Any] = []
        for part in parts:
            mask = _mask_of(part)
            if mask is None:
                result.append(part)
                continue
            axis = sum(item is not None and item is not Ellipsis for item in result)
            if Ellipsis not in [item for item in result if not _is_array(item)]:
                sizes = self._shape[axis : axis + mask.ndim]
                if tuple(sizes) != mask.shape:
                    raise IndexError(
                        f"[index] a mask of shape {mask.shape} does not fit the sizes {sizes} of "
                        f"shape {self._shape}"
                    )
            result.extend(np.nonzero(mask))
        return result

    def _item(self, part: Any, axis: int) -> Item:
        size = self._shape[axis]
        if isinstance(part, slice):
            return _slice(part, size, axis)
        if isinstance(part, Expr):
            return part
        if isinstance(part, TensorBase):
            return _Gather(None, _wrapped(index_value(part._read()), size))
        if isinstance(part, np.ndarray | list | tuple):
            return _Gather(_host_positions(part, size, axis, self._shape), None)
        if hasattr(part, "__index__") and not isinstance(part, bool):
            return _integer(part.__index__(), size, axis, self._shape)
        raise IndexError(
            f"[index] {type(part).__name__} is no index; use integers, slices, None, Ellipsis, "
            "integer tensors, or masks of bools"
        )

    def _basic(self, items: Sequence[Item]) -> Self:
        """The view that slices, integers and None select; positions to gather keep their axis."""
        pairs: list[tuple[sint, sint] | None] = []
        steps: list[int] = []
        shape: list[sint] = []
        for item in items:
            if item is None:
                shape.append(1)
                continue
            size = self._shape[len(pairs)]
            if isinstance(item, _Slice):
                pairs.append((item.low, item.high))
                steps.append(item.step)
                length = as_int(item.high - item.low)
                shape.append(length if item.step == 1 else -(-length // abs(item.step)))
            elif isinstance(item, _Gather):
                pairs.append(None)
                steps.append(1)
                shape.append(size)
            else:
                pairs.append((item, as_int(item + 1)))
                steps.append(1)
        return self.shrink(pairs)._strided(tuple(steps))._reshaped(tuple(shape))

    # -- reading ---------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Self:
        items = self._items(key)
        view = self._basic(items)
        gathers = [item for item in items if isinstance(item, _Gather)]
        if not gathers:
            return view
        plan = _Plan.make(items, gathers, view._shape, view.device)
        return self._wrap(plan.read(view._read()))

    def __iter__(self) -> Any:
        if not self._shape:
            raise TypeError("[iter] a tensor without axes cannot be iterated; use .item()")
        return iter(self.unbind(0))

    def index_select(self, dim: int, index: Any) -> Self:
        """The elements at some positions of one axis.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2, 3]]).index_select(1, Tensor([2, 0])).tolist()
        [[3, 1]]
        """
        axis = self._axis(dim, "index_select")
        return self[(slice(None),) * axis + (index,)]

    def gather(self, dim: int, index: TensorBase) -> Self:
        """For each position in `index`, the element there along `dim`, as PyTorch's.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[0, 0], [1, 0]])).tolist()
        [[1, 1], [4, 3]]
        """
        axis = self._axis(dim, "gather")
        value, positions = self._lanes(axis, index, "gather")
        return self._wrap(value.gather(positions, axis))

    def _lanes(self, axis: int, index: TensorBase, what: str) -> tuple[Value, Value]:
        """This tensor cut to the index's size on the other axes, and the positions."""
        value = self._read()
        positions = index_value(index._read())
        sizes = list(zip(positions.shape, value.shape, strict=False))
        fits = len(positions.shape) == len(value.shape) and all(
            place == axis or not isinstance(own, int) or not isinstance(size, int) or size <= own
            for place, (size, own) in enumerate(sizes)
        )
        if not fits:
            raise ShapeError(
                f"[{what}] an index of shape {positions.shape} does not fit a tensor of shape "
                f"{value.shape}: it needs as many axes, and no larger sizes but on axis {axis}"
            )
        length = value.shape[axis]
        cut = [(0, own if place == axis else size) for place, (size, own) in enumerate(sizes)]
        if any(not same(stop, own) for (_, stop), own in zip(cut, value.shape, strict=True)):
            value = value.shrink(cut)
        return value, _wrapped(positions, length)

    def take_along_dim(self, index: TensorBase, dim: int | None = None) -> Self:
        """`gather` with the other axes of both broadcast; without `dim`, from the flat tensor.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2], [3, 4]]).take_along_dim(Tensor([[1], [0]]), 1).tolist()
        [[2], [3]]
        """
        if dim is None:
            flat = self._wrap(index._read()).flatten()
            return self.flatten().take_along_dim(flat, 0)
        axis = self._axis(dim, "take_along_dim")
        own, other = list(self._shape), list(index._shape)
        if len(own) != len(other):
            raise ShapeError(
                f"[take_along_dim] an index of shape {index._shape} needs as many axes as the "
                f"tensor of shape {self._shape}"
            )
        own[axis] = other[axis] = 1
        shape = list(broadcast_shape((tuple(own), tuple(other)), "take_along_dim"))
        shape[axis] = -1
        return self.expand(shape).gather(axis, self._wrap(index._read()).expand(shape))

    def masked_select(self, mask: TensorBase) -> Self:
        """The elements where a mask holds, as a vector; computes the mask now.

        >>> from ferrule import Tensor
        >>> x = Tensor([1, 2, 3])
        >>> x.masked_select(x > 1).tolist()
        [2, 3]
        """
        shape = broadcast_shape((self._shape, mask._shape), "masked_select")
        known = [known_size(size, "masked_select") for size in shape]
        chosen = np.broadcast_to(mask.numpy(copy=False), known)
        return self.expand(shape)[tuple(np.nonzero(chosen))]

    def nonzero(self) -> Self:
        """The positions of all elements other than 0, one row each; computes the tensor now.

        >>> from ferrule import Tensor
        >>> Tensor([0, 5, 7]).nonzero().tolist()
        [[1], [2]]
        """
        found = np.argwhere(self.numpy(copy=False)).astype(np.int32)
        return type(self)(found, device=self.device)

    # -- writing ---------------------------------------------------------------------------------

    def __setitem__(self, key: Any, value: Operand) -> None:
        mask = key if isinstance(key, TensorBase) and key.dtype is dtypes.bool else None
        if mask is not None and _is_single(value):
            self._set_where(mask, value)
            return
        items = self._items(key)
        view = self._basic(items)
        gathers = [item for item in items if isinstance(item, _Gather)]
        if not gathers:
            view._store(view._fitted(value, "setitem"), "setitem")
            return
        plan = _Plan.make(items, gathers, view._shape, view.device)
        target = self._wrap(plan.read(view._read().detach()))
        new = target._fitted(value, "setitem")
        view._store(plan.written(view._read(), new), "setitem")

    def _set_where(self, mask: TensorBase, value: Operand) -> None:
        """One value wherever a mask holds: needs no positions, so it can stay lazy."""
        rank = len(mask._shape)
        if mask._shape != self._shape[:rank]:
            raise IndexError(
                f"[setitem] a mask of shape {mask._shape} does not fit shape {self._shape}"
            )
        condition = mask._read().reshape((*mask._shape, *(1,) * (len(self._shape) - rank)))
        new = self._fitted(value, "setitem")
        self._store(condition.expand(self._shape).where(new, self._read()), "setitem")

    def scatter(self, dim: int, index: TensorBase, src: Operand, reduce: str | None = None) -> Self:
        """This tensor with elements of `src` at the positions along `dim`, as PyTorch's.

        Of several elements for one position the last counts; `reduce="add"` adds all of them.

        >>> from ferrule import Tensor
        >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 0, 5]
        """
        if reduce not in (None, "add"):
            raise ValueError(f"[scatter] reduce is None or 'add', not {reduce!r}")
        axis = self._axis(dim, "scatter")
        _, positions = self._lanes(axis, index, "scatter")
        own = self._read()
        if isinstance(src, TensorBase):
            new = src._read().cast(own.dtype)
            fits = len(new.shape) == len(positions.shape) and all(
                size <= there for size, there in zip(positions.shape, new.shape, strict=True)
            )
            if not fits:
                raise ShapeError(
                    f"[scatter] src of shape {new.shape} is smaller than the index, "
                    f"{positions.shape}"
                )
            new = new.shrink([(0, size) for size in positions.shape])
        else:
            new = fit_shape(from_host(src, own.dtype, self.device), positions.shape, "scatter")
        if reduce == "add":
            return self._wrap(own + _grown(new.scatter(positions, axis, own.shape[axis]), own))
        positions = _last_only(positions, axis)
        return self._wrap(_placed(own, positions, new, axis))

    def scatter_add(self, dim: int, index: TensorBase, src: Operand) -> Self:
        """This tensor, to which elements of `src` are added at the positions along `dim`.

        >>> from ferrule import Tensor
        >>> Tensor([0, 0]).scatter_add(0, Tensor([1, 1]), Tensor([5, 6])).tolist()
        [0, 11]
        """
        return self.scatter(dim, index, src, "add")


def _is_single(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (
        isinstance(value, TensorBase) and all(same(size, 1) for size in value._shape)
    )


def _mask_of(part: Any) -> np.ndarray[Any, Any] | None:
    """A mask of bools on the host; None for any other index."""
    if isinstance(part, TensorBase):
        return part.numpy(copy=False) if part.dtype is dtypes.bool else None
    if isinstance(part, np.ndarray):
        return part if part.dtype == np.bool_ else None
    if isinstance(part, list):
        array = np.asarray(part)
        return array if array.dtype == np.bool_ else None
    return None


# *** gathering ***


@dataclass(frozen=True, slots=True)
class _Plan:
    """How positions on some axes of a view are read and written.

    `axes` are the view's axes with positions, `positions` one flat vector of places in those axes
    taken together, `shape` the shape of the positions, and `front` the number of axes of the result
    before them.
    """

    axes: tuple[int, ...]
    positions: Value
    unique: bool
    shape: Shape
    front: int

    @staticmethod
    def make(items: Sequence[Item], gathers: Sequence[_Gather], view: Shape, device: str) -> _Plan:
        """The plan for an index whose other parts have been applied already."""
        shape = broadcast_shape([gather.shape for gather in gathers], "index")
        axes: list[int] = []
        place = 0
        for item in items:
            if isinstance(item, _Gather):
                axes.append(place)
            place += item is None or isinstance(item, _Slice | _Gather)
        sizes = [view[axis] for axis in axes]
        if all(gather.known is not None for gather in gathers):
            known = [np.broadcast_to(_of(gather), shape) for gather in gathers]  # type: ignore[arg-type]
            value, unique = _known_positions(known, sizes, device)
        else:
            value = _flat_positions(gathers, sizes, shape, device)
            unique = same(prod_sint(shape), 1)
        return _Plan(tuple(axes), value, unique, shape, _axes_in_front(items))

    def _gathered(self, value: Value) -> tuple[Value, int, list[int]]:
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

    def _spread(self, merged: Shape, axis: int) -> Value:
        """The positions for each lane of the merged value."""
        count = self.positions.shape[0]
        own = tuple([count if place == axis else 1 for place in range(len(merged))])
        wide = (*merged[:axis], count, *merged[axis + 1 :])
        return self.positions.reshape(own).expand(wide)

    def _to_result(self, axis: int, rank: int) -> list[int]:
        """The order that takes the positions' axes from `axis` to their place in the result."""
        count = len(self.shape)
        moved = list(range(axis, axis + count))
        rest = [place for place in range(rank) if place not in moved]
        return [*rest[: self.front], *moved, *rest[self.front :]]

    def read(self, value: Value) -> Value:
        """The elements at the positions."""
        merged, axis, _ = self._gathered(value)
        found = merged.gather(self._spread(merged.shape, axis), axis)
        sizes = found.shape
        found = found.reshape((*sizes[:axis], *self.shape, *sizes[axis + 1 :]))
        return found.permute(self._to_result(axis, len(found.shape)))

    def written(self, value: Value, new: Value) -> Value:
        """The value with new elements at the positions; of several for one the last counts."""
        merged, axis, order = self._gathered(value)
        there = self._to_result(axis, len(new.shape))
        new = new.permute([there.index(place) for place in range(len(there))])
        spread = self._spread(merged.shape, axis)
        new = new.reshape(spread.shape)
        flat = self.positions if self.unique else _last_only(self.positions, 0)
        result = _placed(
            merged, _Plan((), flat, True, (), 0)._spread(merged.shape, axis), new, axis
        )
        result = result.reshape(tuple([value.shape[place] for place in order]))
        return result.permute([order.index(place) for place in range(len(order))])


def _of(gather: _Gather) -> Known:
    assert gather.known is not None
    return gather.known


def _axes_in_front(items: Sequence[Item]) -> int:
    """How many axes of the result come before those of the positions: NumPy's rule.

    Positions that are next to each other, integers counted among them, stay in their place;
    separated ones go to the front.
    """
    kinds = [item is None or isinstance(item, _Slice) for item in items]
    chosen = [place for place, is_basic in enumerate(kinds) if not is_basic]
    if chosen[-1] - chosen[0] + 1 != len(chosen):
        return 0
    return chosen[0]


def _known_positions(
    known: Sequence[Known], sizes: Sequence[sint], device: str
) -> tuple[Value, bool]:
    flat = np.zeros(known[0].shape, np.int64)
    for positions, size in zip(known, sizes, strict=True):
        flat = flat * np.int64(size if isinstance(size, int) else size.max) + positions
    flat = flat.reshape(-1)
    large = math.prod(size if isinstance(size, int) else size.max for size in sizes) >= _LIMIT
    dtype = dtypes.int64 if large else dtypes.int32
    unique = len(np.unique(flat)) == len(flat)
    return from_host(flat.astype(dtype.np), None, device), unique


def _flat_positions(
    gathers: Sequence[_Gather], sizes: Sequence[sint], shape: Shape, device: str
) -> Value:
    """The positions on several axes as one number; -1 where any is out of range."""
    values = [
        gather.value
        if gather.value is not None
        else from_host(_of(gather).astype(np.int32), None, device)
        for gather in gathers
    ]
    wide = any(value.dtype is dtypes.int64 for value in values)
    dtype = dtypes.int64 if wide else dtypes.int32
    values = [fit_shape(value.cast(dtype), shape, "index") for value in values]
    flat = values[0]
    if len(values) > 1:
        inside: Value | None = None
        for value, size in zip(values, sizes, strict=True):
            assert isinstance(size, int), "positions on several axes need sizes that are known"
            fits = (value > -1).alu(BinaryOps.AND, value < size)
            inside = fits if inside is None else inside.alu(BinaryOps.AND, fits)
        for value, size in zip(values[1:], sizes[1:], strict=True):
            assert isinstance(size, int)
            flat = flat * size + value
        assert inside is not None
        flat = inside.where(flat, -1)
    return flat.reshape((prod_sint(shape),))


# *** writing at positions ***


def _last_only(positions: Value, axis: int) -> Value:
    """Of equal positions along an axis all but the last replaced by -1."""
    shape = positions.shape
    count = shape[axis]
    wide = (*shape[:axis], count, count, *shape[axis + 1 :])
    mine = positions.reshape((*shape[: axis + 1], 1, *shape[axis + 1 :])).expand(wide)
    others = positions.reshape((*shape[:axis], 1, *shape[axis:])).expand(wide)
    number = count_to(count, dtypes.int32, positions.node.device)
    behind = len(shape) - axis - 1
    here = number.reshape((count, 1, *(1,) * behind))
    there = number.reshape((1, count, *(1,) * behind))
    grid = (count, count, *(1,) * behind)
    later = here.expand(grid) < there.expand(grid)
    later = later.reshape((1,) * axis + grid).expand(wide)
    replaced = largest(mine.equals(others).alu(BinaryOps.AND, later), (axis + 1,))
    return replaced.reshape(shape).where(positions.full(-1), positions)


def _placed(old: Value, positions: Value, new: Value, axis: int) -> Value:
    """`old` with `new` at positions along an axis, no two of which are equal."""
    size = old.shape[axis]
    ones = Value(positions.node).full(1)
    hit = _grown(ones.scatter(positions, axis, size), old).differs(0)
    return hit.where(_grown(new.scatter(positions, axis, size), old), old)


def _grown(value: Value, like: Value) -> Value:
    """The value with zeros behind, up to another's shape."""
    if value.shape == like.shape:
        return value
    pairs = zip(value.shape, like.shape, strict=True)
    return value.pad([(0, as_int(wide - size)) for size, wide in pairs])
