"""Copies of a tensor with elements changed at positions or where a mask holds.

Elements to write are cast to the tensor's dtype. Positions that are known on the host (lists,
arrays) are checked; those of a tensor are known only when it runs, and write nowhere if they are
out of range, unless `FERRULE_CHECK_INDEX=1` makes them an `IndexError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule.autograd import Number, TracedValue
from ferrule.autograd.iota import position_dtype
from ferrule.base.calls import one_of
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, expanded, fit_shape
from ferrule.tensor.data import from_host
from ferrule.tensor.index.indexing import items_of, lanes_of, planned, put_at
from ferrule.tensor.index.positions import Gather, host_positions, index_value, is_array, wrapped
from ferrule.tensor.index.scattered import REDUCTIONS, placed, reduced
from ferrule.tensor.index.selecting import mask_value
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import Operand

_NUMPY_NAMES = {"add": "sum", "multiply": "prod", "max": "amax", "min": "amin"}


# -- along one axis ------------------------------------------------------------------------------


@method
def scatter(
    self: Tensor, dim: int, index: Tensor, src: Operand, reduce: str | None = None
) -> Tensor:
    """This tensor with elements of `src` at the positions along `dim`, as PyTorch's.

    Of several elements for one position the last counts; `reduce="add"` adds all of them.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
    [6, 0, 5]
    """
    one_of(reduce, (None, "add"), "[scatter] reduce")
    axis, positions, own = _target_lanes(self, dim, index, "scatter")
    new = _source(self, src, positions, "scatter")
    if reduce == "add":
        return _lifted(self, own.put(new, positions, axis))
    return _lifted(self, placed(own, positions, new, axis))


@method
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """This tensor, to which elements of `src` are added at the positions along `dim`.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> Tensor([0, 0]).scatter_add(0, Tensor([1, 1]), Tensor([5, 6])).tolist()
    [0, 11]
    """
    return self.scatter(dim, index, src, "add")


@method
def scatter_reduce(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """This tensor with the elements of `src` for each position along `dim` reduced into it.

    `reduce` is "sum", "prod", "mean", "amax" or "amin"; without `include_self` the elements
    that were there are left out. The mean of integers is rounded down. Gradients of extremes
    are shared evenly among equal elements.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> x = Tensor([10, 20])
    >>> x.scatter_reduce(0, Tensor([1, 1]), Tensor([5, 30]), "amax").tolist()
    [10, 30]
    """
    how = _reduction(reduce, "scatter_reduce")
    axis, positions, own = _target_lanes(self, dim, index, "scatter_reduce")
    new = _source(self, src, positions, "scatter_reduce")
    return _lifted(self, reduced(own, positions, new, axis, how, include_self))


def _target_lanes(
    self: Tensor, dim: int, index: Tensor, what: str
) -> tuple[int, TracedValue, TracedValue]:
    """The axis, the positions, this value; a tensor without axes counts as one element."""
    own = self if self._shape else self.reshape(1)
    axis = own._axis(dim, what)
    wide = index if index._shape else index.reshape(1)
    _, positions = lanes_of(own, axis, wide, what)
    return axis, positions, own._read()


def _source(self: Tensor, src: Any, positions: TracedValue, what: str) -> TracedValue:
    """The elements to write: as many as positions, or more, of which the first ones count."""
    own = self._read()
    if not isinstance(src, Tensor):
        return fit_shape(from_host(src, own.dtype, self.device), positions.shape, what)
    new = src._read().cast(own.dtype)
    new = new if new.shape else new.reshape((1,))
    fits = len(new.shape) == len(positions.shape) and all(
        size <= there for size, there in zip(positions.shape, new.shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"[{what}] a source of shape {new.shape} is smaller than the index, {positions.shape}"
        )
    return new.shrink([(0, size) for size in positions.shape])


def _lifted(self: Tensor, value: TracedValue) -> Tensor:
    return self._wrap(value.reshape(self._shape))


@method
def index_add(self: Tensor, dim: int, index: Any, source: Any, alpha: Number = 1) -> Tensor:
    """This tensor, to which slices of `source`, times alpha, are added at positions of `dim`.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> Tensor([0, 0]).index_add(0, Tensor([1, 1]), Tensor([5, 6])).tolist()
    [0, 11]
    """
    axis, positions, own = _slices(self, dim, index, source, "index_add")
    new = _source(self, source, positions, "index_add")
    new = new * alpha if alpha != 1 else new
    return _lifted(self, reduced(own, positions, new, axis, "sum", include_self=True))


@method
def index_reduce(
    self: Tensor, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """This tensor with slices of `source` reduced into positions of `dim`; see
    `scatter_reduce`.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> Tensor([2, 3]).index_reduce(0, Tensor([1, 1]), Tensor([5, 6]), "prod").tolist()
    [2, 90]
    """
    how = _reduction(reduce, "index_reduce")
    axis, positions, own = _slices(self, dim, index, source, "index_reduce")
    new = _source(self, source, positions, "index_reduce")
    return _lifted(self, reduced(own, positions, new, axis, how, include_self))


@method
def index_copy(self: Tensor, dim: int, index: Any, source: Any) -> Tensor:
    """This tensor with slices of `source` at positions of `dim`; of several the last counts.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).index_copy(0, Tensor([2, 0]), Tensor([8, 9])).tolist()
    [9, 2, 8]
    """
    axis, positions, own = _slices(self, dim, index, source, "index_copy")
    new = _source(self, source, positions, "index_copy")
    return _lifted(self, placed(own, positions, new, axis))


@method
def index_fill(self: Tensor, dim: int, index: Any, value: Any) -> Tensor:
    """This tensor with one value at positions of `dim`.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).index_fill(0, Tensor([2, 0]), 7).tolist()
    [7, 2, 7]
    """
    axis, positions, own = _slices(self, dim, index, None, "index_fill")
    if isinstance(value, Tensor):
        if value._shape:
            raise ShapeError(f"[index_fill] one value is needed, not shape {value._shape}")
        new = fit_shape(value._read().cast(own.dtype), positions.shape, "index_fill")
    else:
        new = _source(self, value, positions, "index_fill")
    return _lifted(self, placed(own, positions, new, axis))


def _slices(
    self: Tensor, dim: int, index: Any, source: Any, what: str
) -> tuple[int, TracedValue, TracedValue]:
    """The axis, the position of each element of the slices, this value."""
    whole = self if self._shape else self.reshape(1)
    axis = whole._axis(dim, what)
    own = whole._read()
    places = _vector(index, own, axis, what)
    wide = (*own.shape[:axis], places.shape[0], *own.shape[axis + 1 :])
    if isinstance(source, Tensor) and (source._shape or (1,)) != wide:
        raise ShapeError(
            f"[{what}] {places.shape[0]} positions on axis {dim} of shape {self._shape} need a "
            f"source of shape {wide}, not {source._shape}"
        )
    return axis, expanded(places, wide, axis), own


# -- at tuples of positions ----------------------------------------------------------------------


@method
def index_put(
    self: Tensor, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Tensor:
    """This tensor with values at tuples of positions, as `x[indices] = values` on a copy.

    With `accumulate` they are added, all of those with equal positions.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> at = (Tensor([0, 0]),)
    >>> Tensor([1, 2]).index_put(at, Tensor([5, 6]), accumulate=True).tolist()
    [12, 2]
    """
    key = tuple([slice(None) if index is None else index for index in indices])
    items = [] if _selects_parts(key) else items_of(self, key)
    if not any(isinstance(item, Gather) for item in items):
        copy = self.clone()
        put_at(copy, key, values, "index_put", accumulate)
        return copy
    _, plan, new = planned(self, items, values, "index_put")
    return self._wrap(plan.put(self._read(), new, accumulate))


@method
def put(self: Tensor, index: Any, source: Any, accumulate: bool = False) -> Tensor:
    """This tensor with elements of `source` at positions in the flat tensor.

    **A position of a tensor that is out of range is written nowhere**, where PyTorch raises;
    with `FERRULE_CHECK_INDEX=1` it raises `IndexError` when it is computed.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).put(Tensor([3, 0]), Tensor([8, 9])).tolist()
    [[9, 2], [3, 8]]
    """
    values = source.reshape(-1) if isinstance(source, Tensor) else source
    places = index.reshape(-1) if isinstance(index, Tensor) else np.ravel(index)
    flat = self.flatten().index_put((places,), values, accumulate)
    return flat.reshape(self._shape)


# -- by masks ------------------------------------------------------------------------------------


@method
def masked_scatter(self: Tensor, mask: Any, source: Tensor) -> Tensor:
    """This tensor with the elements of `source`, in order, where a mask holds.

    Stays lazy: which element goes where is counted when it runs. Elements that are missing
    count as 0.

    >>> from ferrule import Tensor
    >>> x = Tensor([1, 2, 3])
    >>> x.masked_scatter(x > 1, Tensor([8, 9])).tolist()
    [1, 8, 9]
    """
    chosen = mask_value(mask, "masked_scatter")
    shape = broadcast_shape((self._shape, chosen.shape), "masked_scatter")
    own = fit_shape(self._read(), shape, "masked_scatter")
    chosen = fit_shape(chosen, shape, "masked_scatter")
    new = source._read().cast(own.dtype)
    total = prod_sint(shape)
    before = self._wrap(chosen.reshape((total,))).cumsum(0, position_dtype(total))._read() - 1
    flat = new.reshape((prod_sint(new.shape),))
    if 0 in flat.shape or 0 in shape:
        return self._wrap(own)
    found = flat.gather(before, 0).reshape(shape)
    return self._wrap(chosen.where(found, own))


# -- parts ---------------------------------------------------------------------------------------


@method
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """This tensor with one element of an axis replaced.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).select_scatter(Tensor([8, 9]), 0, 1).tolist()
    [[1, 2], [8, 9]]
    """
    copy = self.clone()
    copy[(slice(None),) * self._axis(dim, "select_scatter") + (index,)] = src
    return copy


@method
def slice_scatter(
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """This tensor with a slice of an axis replaced.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3, 4]).slice_scatter(Tensor([8, 9]), 0, 1, 4, 2).tolist()
    [1, 8, 3, 9]
    """
    copy = self.clone()
    axis = self._axis(dim, "slice_scatter")
    copy[(slice(None),) * axis + (slice(start, end, step),)] = src
    return copy


@method
def diagonal_scatter(
    self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """This tensor with a diagonal of two axes replaced.

    >>> from ferrule import Tensor
    >>> Tensor.zeros(2, 2).diagonal_scatter(Tensor([1.0, 2.0])).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    copy = self.clone()
    copy.diagonal(offset, dim1, dim2)[...] = src
    return copy


def _selects_parts(key: Sequence[Any]) -> bool:
    """True if an index has integers or slices beside its positions."""
    return not all(is_array(part) or part == slice(None) for part in key)


def _reduction(name: str, what: str) -> str:
    how = _NUMPY_NAMES.get(name, name)
    one_of(how, REDUCTIONS, f"[{what}] reduce")
    return how


def _vector(index: Any, own: TracedValue, axis: int, what: str) -> TracedValue:
    """Positions on one axis as a vector, counted from the front."""
    size = own.shape[axis]
    if isinstance(index, Tensor):
        places = index._read()
    else:
        known = host_positions(index, size, axis, own.shape)
        places = from_host(known, None, own.node.device)
    if len(places.shape) > 1:
        raise ShapeError(f"[{what}] positions are a vector, not of shape {places.shape}")
    flat = index_value(places.reshape((prod_sint(places.shape),)), what)
    return wrapped(flat, size, what, axis)
