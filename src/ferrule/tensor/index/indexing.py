"""Indexing as NumPy's: integers, slices, None and Ellipsis give views; integer tensors gather.

An index given as a list or an array is checked against the size. One given as a tensor is known
only when it runs: **out of range it reads 0, and writes nowhere**; with `FERRULE_CHECK_INDEX=1` the
host looks at it on the way, and raises `IndexError` with the position and its place.
A mask of bools is computed at once, because the shape depends on it; only writing one value where a
mask holds stays lazy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, as_int, sint
from ferrule.ir.shape.view import ShapeError, same
from ferrule.ir.storage import turn
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, expanded, known_size
from ferrule.tensor.cell import SELECT
from ferrule.tensor.index.positions import (
    NEW,
    Gather,
    Item,
    Plan,
    Slice,
    chosen,
    index_value,
    is_array,
    take_integer,
    take_slice,
    without_gaps,
    wrapped,
)
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import is_part
from ferrule.tensor.math.arithmetic import Operand
from ferrule.tensor.shaping.movement import reshaped, strided

# -- taking an index apart -----------------------------------------------------------------------


def items_of(self: Tensor, key: Any) -> list[Item]:
    """One item for each axis, and None for each new one."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if not all([type(part) in _PLAIN for part in parts]):
        parts = _without_masks(self, parts)
    used = sum([part is not None and part is not Ellipsis for part in parts])
    rank = len(self._shape)
    if used > rank:
        raise IndexError(f"[index] {used} indices for shape {self._shape}, which has {rank} axes")
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("[index] an index may hold one Ellipsis (...) only")
    whole = [slice(None)] * (rank - used)
    place = dots[0] if dots else len(parts)
    parts[place : place + 1] = whole
    items: list[Item] = []
    axis = 0
    for part in parts:
        items.append(NEW if part is None else _item(self, part, axis))
        axis += part is not None
    return items


def _without_masks(self: Tensor, parts: list[Any]) -> list[Any]:
    """Masks replaced by the positions where they hold, for which they are computed now."""
    result: list[Any] = []
    for part in parts:
        mask = _mask_of(part)
        if mask is None:
            result.append(part)
            continue
        axis = sum(item is not None and item is not Ellipsis for item in result)
        if Ellipsis not in [item for item in result if not is_array(item)]:
            sizes = self._shape[axis : axis + mask.ndim]
            if tuple(sizes) != mask.shape:
                raise IndexError(
                    f"[index] a mask of shape {mask.shape} does not fit the sizes {sizes} of "
                    f"shape {self._shape}"
                )
        result.extend(np.nonzero(mask))
    return result


def _without_truths(self: Tensor, parts: list[Any]) -> tuple[Tensor, tuple[Any, ...]]:
    """Masks without axes, such as True, as NumPy's: new axes with no or one position."""
    view = self
    for place, part in enumerate(parts):
        if not _is_truth(part):
            continue
        behind = sum(_axes_used(other) for other in parts[place + 1 :])
        ahead = sum(_axes_used(other) for other in parts[:place])
        from_end = any(other is Ellipsis for other in parts[:place])
        view = view.unsqueeze(view.ndim - behind if from_end else ahead)
        parts[place] = np.zeros(int(bool(part)), np.int64)
    return view, tuple(parts)


def _item(self: Tensor, part: Any, axis: int) -> Item:
    size = self._shape[axis]
    if type(part) is int:
        return take_integer(part, size, axis, self._shape)
    if isinstance(part, slice):
        return take_slice(part, size, axis)
    if isinstance(part, Expr):
        return part
    if isinstance(part, Tensor):
        return Gather(None, wrapped(index_value(part._read()), size, "index", axis))
    if isinstance(part, np.ndarray | list | tuple | range):
        return chosen(part, size, axis, self._shape, self.device)
    if hasattr(part, "__index__") and not isinstance(part, bool):
        return take_integer(part.__index__(), size, axis, self._shape)
    raise IndexError(
        f"[index] {type(part).__name__} is no index; use integers, slices, None, Ellipsis, "
        "integer tensors, or masks of bools"
    )


def _basic(self: Tensor, items: Sequence[Item]) -> Tensor:
    """The view that slices, integers and None select; positions to gather keep their axis."""
    pairs: list[tuple[sint, sint]] = []
    steps: list[int] = []
    shape: list[sint] = []
    is_dropped = False
    for item in items:
        if item is None:
            shape.append(1)
            continue
        size = self._shape[len(pairs)]
        if isinstance(item, Slice):
            if not is_part(item.low, item.high, size):
                raise IndexError(
                    f"[index] ({item.low}, {item.high}) is no part of axis {len(pairs)} of "
                    f"shape {self._shape}, whose size is {size}; bounds with variables are "
                    "not cut off at its end"
                )
            pairs.append((item.low, item.high))
            steps.append(item.step)
            length = as_int(item.high - item.low)
            shape.append(length if item.step == 1 else -(-length // abs(item.step)))
        elif isinstance(item, Gather):
            pairs.append((0, size))
            steps.append(1)
            shape.append(size)
        else:
            if not is_part(item, item + 1, size):
                raise IndexError(
                    f"[index] {item} is out of range for axis {len(pairs)} of shape "
                    f"{self._shape}, whose size is {size}"
                )
            pairs.append((item, as_int(item + 1)))
            steps.append(1)
            is_dropped = True
    if is_dropped and steps.count(1) == len(steps):
        return self._view_of(SELECT, (tuple(pairs), tuple(shape)))
    return reshaped(strided(self.shrink(pairs), tuple(steps)), tuple(shape))


# -- reading -------------------------------------------------------------------------------------


def getitem(self: Tensor, key: Any) -> Tensor:
    """The elements that an index names: a view, unless it has positions or masks."""
    if _has_truths(key):
        view, rest = _without_truths(self, list(key) if isinstance(key, tuple) else [key])
        return view[rest]
    items = items_of(self, key)
    view = _basic(self, items)
    gathers = [item for item in items if isinstance(item, Gather)]
    if not gathers:
        return view
    plan = Plan.make(items, gathers, view._shape, view.device)
    return self._wrap(plan.read(view._read()))


def iterated(self: Tensor) -> Any:
    """The parts along the first axis, one after the other."""
    if not self._shape:
        raise TypeError("[iter] a tensor without axes cannot be iterated; use .item()")
    try:
        what = object.__getattribute__(self, "_values_of")
    except AttributeError:  # nearly always, and not worth a place in every tensor's making
        return iter(self.unbind(0))
    raise TypeError(
        f"[{what}] x.{what}(axis) gives the values alone, which are not unpacked; for values "
        f"and positions write x.{what}(axis), x.arg{what}(axis), and to go through the values "
        f"x.a{what}(axis)"
    )


def contains(self: Tensor, value: Any) -> bool:
    """True if some element is equal to a number, or to an array's or a tensor's element."""
    if not isinstance(value, Tensor | bool | int | float | np.generic | np.ndarray):
        return False
    return bool((self == value).any().item())


@method
def index_select(self: Tensor, dim: int, index: Any) -> Tensor:
    """The elements at some positions of one axis. A copy.

    **A position of a tensor that is out of range reads 0**, where PyTorch raises: it is known
    only when it runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3]]).index_select(1, Tensor([2, 0])).tolist()
    [[3, 1]]
    """
    if not self._shape:
        return self.reshape(1).index_select(dim, index).reshape(())
    axis = self._axis(dim, "index_select")
    return self[(slice(None),) * axis + (index,)]


@method
def gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """For each position in `index`, the element there along `dim`, as PyTorch's.

    **A position of a tensor that is out of range reads 0**, where PyTorch raises: it is known
    only when it runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[0, 0], [1, 0]])).tolist()
    [[1, 1], [4, 3]]
    """
    if not self._shape:
        return self.reshape(1).gather(dim, index.reshape(-1)).reshape(index._shape)
    axis = self._axis(dim, "gather")
    if 0 in index._shape:
        return self._wrap(self._read().nothing(index._shape))
    value, positions = lanes_of(self, axis, index, "gather")
    return self._wrap(value.gather(positions, axis))


def lanes_of(self: Tensor, axis: int, index: Tensor, what: str) -> tuple[TracedValue, TracedValue]:
    """This tensor cut to the index's size on the other axes, and the positions."""
    value = self._read()
    positions = index_value(index._read(), what)
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
    return value, wrapped(positions, length, what, axis)


@method
def take_along_dim(self: Tensor, index: Tensor, dim: int | None = None) -> Tensor:
    """`gather` with the other axes of both broadcast; without `dim`, from the flat tensor.

    **A position of a tensor that is out of range reads 0**, where PyTorch raises: it is known
    only when it runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).take_along_dim(Tensor([[1], [0]]), 1).tolist()
    [[2], [3]]
    """
    if dim is None:
        flat = index.flatten()
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
    return self.expand(shape).gather(axis, index.expand(shape))


@method
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """The elements where a mask holds, as a vector; computes the mask now.

    >>> from ferrule import Tensor
    >>> x = Tensor([1, 2, 3])
    >>> x.masked_select(x > 1).tolist()
    [2, 3]
    """
    shape = broadcast_shape((self._shape, mask._shape), "masked_select")
    known = [known_size(size, "masked_select") for size in shape]
    chosen = np.broadcast_to(mask.numpy(copy=False), known)
    if not shape:
        return self.reshape(1)[np.flatnonzero(chosen)]
    return self.expand(shape)[tuple(np.nonzero(chosen))]


# -- writing -------------------------------------------------------------------------------------


def setitem(self: Tensor, key: Any, value: Operand) -> None:
    """Writes to the elements that an index names."""
    mask = key if isinstance(key, Tensor) and key.dtype is dtypes.bool else None
    if mask is not None and _is_single(value):
        _set_where(self, mask, value)
        return
    put_at(self, key, value, "setitem")


def put_at(self: Tensor, key: Any, value: Any, what: str, accumulate: bool = False) -> None:
    """Writes to the elements that a key names, or adds to them."""
    if _has_truths(key):
        view, rest = _without_truths(self, list(key) if isinstance(key, tuple) else [key])
        put_at(view, rest, value, what, accumulate)
        return
    items = items_of(self, key)
    with turn:  # or what another thread writes elsewhere would be lost
        if any(isinstance(item, Gather) for item in items):
            view, plan, new = planned(self, items, value, what)
            new = plan.put(view._read(), new, accumulate)
        else:
            view = _basic(self, items)
            new = view._fitted(value, what)
            if accumulate:
                new = view._read() + new
            elif isinstance(value, Tensor) and value._cell is view._cell and _is_read(view, new):
                view._cell.rewrite()
                return  # `x[i:j] += y` ends with what it has done to this very part
        view._store(new, what)


def planned(
    self: Tensor, items: Sequence[Item], value: Any, what: str
) -> tuple[Tensor, Plan, TracedValue]:
    """The view to write to, at which places of it, and the elements for these."""
    items, order = without_gaps(items)
    view = _basic(self, items)
    gathers = [item for item in items if isinstance(item, Gather)]
    plan = Plan.make(items, gathers, view._shape, view.device)
    there = plan.read(view._read().detach())
    target = self._wrap(there.permute([order.index(axis) for axis in range(len(order))]))
    return view, plan, target._fitted(value, what).permute(order)


def _set_where(self: Tensor, mask: Tensor, value: Operand) -> None:
    """One value wherever a mask holds: needs no positions, so it can stay lazy."""
    rank = len(mask._shape)
    if mask._shape != self._shape[:rank]:
        raise IndexError(
            f"[setitem] a mask of shape {mask._shape} does not fit shape {self._shape}"
        )
    condition = expanded(mask._read(), self._shape, 0)
    new = self._fitted(value, "setitem")
    with turn:  # or what another thread writes elsewhere would be lost
        self._store(condition.where(new, self._read()), "setitem")


_PLAIN = frozenset({int, slice, type(None), type(Ellipsis)})
"""The types of most indices: no masks, no positions."""


def _is_truth(part: Any) -> bool:
    """True if part of an index is one bool: Python's, NumPy's, or a tensor without axes."""
    if type(part) in _PLAIN:
        return False
    if isinstance(part, Tensor):
        return not part._shape and part.dtype is dtypes.bool
    if isinstance(part, np.ndarray):
        return part.ndim == 0 and part.dtype == np.bool_
    return isinstance(part, bool | np.bool_)


def _has_truths(key: Any) -> bool:
    return any(map(_is_truth, key)) if isinstance(key, tuple) else _is_truth(key)


def _axes_used(part: Any) -> int:
    """How many axes part of an index stands for."""
    if part is None or part is Ellipsis or _is_truth(part):
        return 0
    if isinstance(part, Tensor):
        return part.ndim if part.dtype is dtypes.bool else 1
    if isinstance(part, np.ndarray | list):
        array = np.asarray(part)
        return array.ndim if array.dtype == np.bool_ else 1
    return 1


def _is_read(view: Tensor, value: TracedValue) -> bool:
    """True if a value is the present value of a tensor."""
    now = view._read()
    return now.node is value.node and now.edge is value.edge


def _is_single(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (
        isinstance(value, Tensor) and all(same(size, 1) for size in value._shape)
    )


def _mask_of(part: Any) -> np.ndarray[Any, Any] | None:
    """A mask of bools on the host; None for any other index."""
    if isinstance(part, Tensor):
        return part.numpy(copy=False) if part.dtype is dtypes.bool else None
    if isinstance(part, np.ndarray):
        return part if part.dtype == np.bool_ else None
    if isinstance(part, list):
        array = np.asarray(part)
        return array if array.dtype == np.bool_ else None
    return None
