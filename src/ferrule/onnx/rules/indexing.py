"""Operators that read from places, or write to places, which other inputs say."""

from __future__ import annotations

from math import prod

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import on_host, rule
from ferrule.onnx.values import Host, ints
from ferrule.tensor import Tensor


def _from_start(places: Tensor, size: int) -> Tensor:
    """Places that may count from the end of an axis, as places from its start."""
    return (places < 0).where(places + size, places)


@rule("Gather")
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis %= x.ndim
    flat = _from_start(indices.reshape(-1), x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return x.index_select(axis, flat).reshape(*shape)


@rule("GatherElements", 11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return x.gather(axis, _from_start(indices, x.shape[axis]))


@rule("GatherND", 11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1]
    batch = prod(x.shape[:batch_dims])
    inner = x.shape[batch_dims + depth :]
    places = indices.reshape(batch, -1, depth)
    flat = _flat_places(places, x.shape[batch_dims : batch_dims + depth])
    rows = x.reshape(batch, -1, prod(inner))
    index = flat.reshape(batch, -1, 1).expand(batch, flat.shape[1], prod(inner))
    return rows.gather(1, index).reshape(*indices.shape[:-1], *inner)


def _flat_places(places: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Places in several axes, along the last axis of `places`, as places in all of them as one."""
    flat = places[..., 0] * 0
    for axis, size in enumerate(sizes):
        flat = flat * size + _from_start(places[..., axis], size)
    return flat


_REDUCES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@rule("ScatterElements", 11)
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    places = _from_start(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCES[reduction])


@rule("Scatter", 9)
def scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    return scatter_elements(x, indices, updates, axis=axis)


@rule("ScatterND", 11)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = indices.shape[-1]
    inner = prod(x.shape[depth:])
    flat = _flat_places(indices.reshape(-1, depth), x.shape[:depth])
    rows = x.reshape(-1, inner)
    index = flat.reshape(-1, 1).expand(flat.shape[0], inner)
    written = scatter_elements(rows, index, updates.reshape(-1, inner), axis=0, reduction=reduction)
    return written.reshape(*x.shape)


@rule("TensorScatter", 24)
def tensor_scatter(
    past: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    axis %= past.ndim
    shape = [1] * past.ndim
    shape[axis] = update.shape[axis]
    places = Tensor.arange(update.shape[axis], dtype=dtypes.int64).reshape(*shape)
    if write_indices is not None:
        places = places + write_indices.reshape(-1, *(1,) * (past.ndim - 1))
    if mode == "circular":
        places = places % past.shape[axis]
    return past.scatter(axis, places.expand(*update.shape), update)


@rule("OneHot", 9)
def one_hot(indices: Tensor, depth: Host, values: Tensor, *, axis: int = -1) -> Tensor:
    (size,) = ints(depth)
    axis %= indices.ndim + 1
    shape = [1] * (indices.ndim + 1)
    shape[axis] = size
    places = _from_start(indices.cast(dtypes.int64), size).unsqueeze(axis)
    hot = Tensor.arange(size, dtype=dtypes.int64).reshape(*shape) == places
    return hot.where(values[1], values[0])


@rule("NonZero", 9)
def nonzero(x: Host) -> Tensor:
    places = np.nonzero(x.reshape(x.shape or (1,)))
    return Tensor(np.stack(places)[: x.ndim].astype(np.int64))


@rule("Compress", 9)
def compress(x: Tensor, condition: Host, *, axis: int | None = None) -> Tensor:
    kept = Tensor(np.flatnonzero(condition))
    return x.reshape(-1)[kept] if axis is None else x.index_select(axis % x.ndim, kept)


@rule("Unique", 11)
def unique(
    x: Host, *, axis: int | None = None, sorted: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        # In the order in which they first occur.
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    whole = [array.astype(np.int64) for array in (first, inverse, counts)]
    return Tensor(values), Tensor(whole[0]), Tensor(whole[1]), Tensor(whole[2])


on_host("TfIdfVectorizer", 9)
