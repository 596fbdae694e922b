"""Counterparts of functions that write at positions, cut up, rearrange, or change the dtype."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tests.fuzz.numpy_functions import (
    Array,
    Function,
    Scaled,
    as_integers,
    only_if,
    padded,
    pairs,
    sizes_of,
    windows,
)

# -- writing at positions --------------------------------------------------------------------------


def _scattered(x: Array, dim: int, index: Array, src: Any, combine: Function) -> Array:
    """With each element of `src` combined into its place along an axis, one after the other."""
    only_if(x.ndim == index.ndim and x.ndim and index.size < 20_000)
    new = src[tuple(map(slice, index.shape))] if np.ndim(src) else np.full(index.shape, src)
    out = x.copy()
    for place in np.ndindex(index.shape):
        target = list(place)
        target[dim % x.ndim] = int(index[place])
        out[tuple(target)] = combine(out[tuple(target)], new[place])
    return out


def _scatter(x: Array, dim: int, index: Array, src: Any, reduce: str | None = None) -> Array:
    add = reduce == "add"
    return _scattered(x, dim, index, src, lambda old, new: old + new if add else new)


_FOLDS: Final[Mapping[str, Function]] = {
    "sum": lambda old, new: old + new,
    "mean": lambda old, new: old + new,
    "prod": lambda old, new: old * new,
    "amax": max,
    "amin": min,
}
_NEUTRAL: Final = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}


def _scatter_reduce(
    x: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Scaled:
    counts = _scattered(np.zeros(x.shape), dim, index, 1.0, lambda old, new: old + new)
    start = x if include_self else np.where(counts == 0, x, _NEUTRAL[reduce])
    found = _scattered(start, dim, index, src, _FOLDS[reduce])
    if reduce == "mean":
        found = found / np.maximum(1, counts + include_self)
    # What has been multiplied by small numbers was larger before.
    widest = _scattered(
        np.maximum(1, np.abs(x)), dim, index, np.maximum(1, np.abs(src)), _FOLDS["prod"]
    )
    return Scaled(found, float(widest.max(initial=1)))


def _along(x: Array, dim: int, index: Array, source: Any) -> Array:
    """Positions of slices along an axis, as those of all elements of a source."""
    count = np.size(index)
    shape = [count if axis == dim % x.ndim else n for axis, n in enumerate(x.shape)]
    only_if(np.ndim(source) == 0 or list(np.shape(source)) == shape)
    ones = [count if axis == dim % x.ndim else 1 for axis in range(x.ndim)]
    return np.broadcast_to(np.reshape(index, ones), shape)


def _index_copy(x: Array, dim: int, index: Array, source: Any) -> Array:
    return _scatter(x, dim, _along(x, dim, index, source), source)


def _index_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Scaled:
    places = _along(x, dim, index, source)
    return _scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _index_put(x: Array, indices: Any, values: Any, accumulate: bool = False) -> Array:
    key = tuple(as_integers(index) for index in indices)
    out = x.copy()
    if accumulate:
        np.add.at(out, key, values)
    else:
        out[key] = values
    return out


def _put(x: Array, index: Any, source: Any, accumulate: bool = False) -> Array:
    values = source.reshape(-1) if isinstance(source, np.ndarray) else source
    flat = _index_put(x.reshape(-1), (np.ravel(index),), values, accumulate)
    return flat.reshape(x.shape)


def _masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    only_if(mask.dtype == np.bool_)
    x, mask = (part.copy() for part in np.broadcast_arrays(x, mask))
    only_if(source.size >= mask.sum())
    x[mask] = source.reshape(-1)[: mask.sum()]
    return x


def _with_part(x: Array, dim: int, part: Any, src: Any) -> Array:
    out = x.copy()
    out[(slice(None),) * (dim % x.ndim) + (part,)] = src
    return out


def _select_scatter(x: Array, src: Array, dim: int, index: Any) -> Array:
    return _with_part(x, dim, as_integers(index), src)


def _slice_scatter(
    x: Array, src: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    return _with_part(x, dim, slice(start, end, step), src)


def _diagonal_places(rows: int, columns: int, offset: int) -> tuple[Array, Array]:
    grid = np.eye(rows, columns, offset)
    return np.nonzero(grid)[0], np.nonzero(grid)[1]


def _diagonal_scatter(x: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    out = np.moveaxis(x.copy(), (dim1, dim2), (-2, -1))
    rows, columns = _diagonal_places(*out.shape[-2:], offset)
    out[..., rows, columns] = src
    return np.moveaxis(out, (-2, -1), (dim1, dim2))


def _diag_embed(x: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    size = x.shape[-1] + abs(offset)
    out = np.zeros((*x.shape[:-1], size, size))
    rows, columns = _diagonal_places(size, size, offset)
    out[..., rows, columns] = x
    return np.moveaxis(out, (-2, -1), (dim1, dim2))


def _taken(x: Array, index: Array, dim: int | None = None) -> Array:
    if dim is None:
        return x.reshape(-1)[as_integers(index).reshape(-1)]
    return np.take_along_axis(x, as_integers(index), dim)


def _block_diag(*parts: Array) -> Array:
    blocks = [np.atleast_2d(part) for part in parts]
    only_if(all(block.ndim == 2 for block in blocks))
    corners = [(0, 0), *np.cumsum([block.shape for block in blocks], 0).tolist()]
    out = np.zeros(corners[-1])
    for (row, column), block in zip(corners, blocks, strict=False):
        out[row : row + block.shape[0], column : column + block.shape[1]] = block
    return out


# -- rearranging -----------------------------------------------------------------------------------


def _pixel_shuffle(x: Array, factor: int) -> Array:
    *front, channels, high, wide = x.shape
    parts = x.reshape(*front, channels // factor**2, factor, factor, high, wide)
    moved = np.moveaxis(parts, (-4, -3), (-3, -1))
    return moved.reshape(*front, channels // factor**2, high * factor, wide * factor)


def _pixel_unshuffle(x: Array, factor: int) -> Array:
    *front, channels, high, wide = x.shape
    parts = x.reshape(*front, channels, high // factor, factor, wide // factor, factor)
    moved = np.moveaxis(parts, (-3, -1), (-4, -3))
    return moved.reshape(*front, channels * factor**2, high // factor, wide // factor)


def _channel_shuffle(x: Array, groups: int) -> Array:
    parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    return np.swapaxes(parts, 1, 2).reshape(x.shape)


def _columns(
    x: Array, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Array:
    """Windows over two axes as columns."""
    only_if(x.ndim == 4 and (isinstance(padding, int) or len(padding) == 2))
    edges = [(n, n) for n in pairs(padding, 2)]
    found = windows(np.pad(x, [(0, 0), (0, 0), *edges]), pairs(kernel_size, 2), stride, dilation)
    moved = np.moveaxis(found, (2, 3), (4, 5))
    return moved.reshape(x.shape[0], math.prod(moved.shape[1:4]), -1)


def _fold(
    x: Array,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Array:
    """Each element of the columns added to where `_columns` would take it from."""
    kernel = math.prod(pairs(kernel_size, 2))
    batch, channels, sizes = x.shape[0], x.shape[1] // kernel, pairs(output_size, 2)
    image = (
        np.arange(channels * math.prod(sizes), dtype=np.float64).reshape(1, channels, *sizes) + 1
    )
    source = as_integers(_columns(image, kernel_size, dilation, padding, stride)).reshape(-1)
    out = np.zeros((batch, image.size + 1))
    for number in range(batch):
        np.add.at(out[number], source, x[number].reshape(-1))
    return out[:, 1:].reshape(batch, channels, *sizes)


def _by_pattern(x: Array, pattern: str, reduction: Function | None = None) -> Any:
    """Axes in another order, merged, or left out, as `a b c -> c 1 (b a)` says."""
    left, right = pattern.split("->")
    names = left.split()
    only_if("(" not in left and len(names) == x.ndim)
    groups = [part.strip("()").split() for part in re.findall(r"\([^)]*\)|\S+", right)]
    kept = [name for group in groups for name in group if name != "1"]
    gone = tuple(axis for axis, name in enumerate(names) if name not in kept)
    sizes = dict(zip(names, x.shape, strict=True))
    if gone:
        only_if(reduction is not None)
        x = reduction(x, axis=gone) if reduction is not None else x
    rest = [name for name in names if name in kept]
    moved = np.transpose(x, [rest.index(name) for name in kept])
    return moved.reshape([math.prod(sizes.get(name, 1) for name in group) for group in groups])


def _reduced_by_pattern(x: Array, pattern: str, reduction: str) -> Scaled:
    folds = {"sum": np.sum, "max": np.max, "mean": np.mean}
    found = _by_pattern(x, pattern, folds[reduction])
    return Scaled(found, float(max(1, np.abs(x).sum())))


# -- several results -------------------------------------------------------------------------------


def _split(x: Array, sizes: Any, dim: int = 0) -> Any:
    length = x.shape[dim]
    only_if(length)
    given = [sizes] * (length // sizes) if isinstance(sizes, int) else list(sizes)
    places = [n for n in itertools.accumulate(given) if n < length or not isinstance(sizes, int)]
    only_if(isinstance(sizes, int) or places[-1] == length)
    return np.split(x, places if isinstance(sizes, int) else places[:-1], dim)


def _chunk(x: Array, chunks: int, dim: int = 0) -> Any:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _tensor_split(x: Array, places: Any, dim: int = 0) -> Any:
    return np.array_split(x, places, dim)


# -- other dtypes and sizes ------------------------------------------------------------------------


def _cast(x: Array, dtype: str, copy: bool = True) -> Array:
    if dtype == "bool":
        return x != 0
    wide = x.astype(np.float64)
    return wide if "float" in dtype else np.trunc(wide)


def _to(dtype: str) -> Function:
    return lambda x: _cast(x, dtype)


def _full_of(x: Array, size: Any, fill_value: Any) -> Array:
    return np.full(size, fill_value)


MOVES: Final[Mapping[str, Function]] = {
    "scatter": _scatter,
    "index_copy": _index_copy,
    "index_fill": _index_copy,
    "index_put": _index_put,
    "put": _put,
    "masked_scatter": _masked_scatter,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "diag_embed": _diag_embed,
    "take_along_dim": _taken,
    "take_along_axis": lambda x, indices, axis=-1: _taken(x, indices, axis),
    "block_diag": _block_diag,
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle,
    "im2col": _columns,
    "rearrange": _by_pattern,
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _chunk,
    "tensor_split": _tensor_split,
    "array_split": _tensor_split,
    "hsplit": np.hsplit,
    "vsplit": np.vsplit,
    "dsplit": np.dsplit,
    "unbind": lambda x, dim=0: list(np.moveaxis(x, dim, 0)),
    "broadcast_tensors": np.broadcast_arrays,
    "atleast_1d": np.atleast_1d,
    "atleast_2d": np.atleast_2d,
    "atleast_3d": np.atleast_3d,
    "constant_pad_nd": padded,
    "copy": lambda x: x,
    "contiguous_backward": lambda x: x,
    "fill": np.full_like,
    "full_like": lambda x, fill_value: np.full(x.shape, fill_value),
    "new_full": _full_of,
    "new_ones": lambda x, *size: np.ones(sizes_of(size)),
    "new_zeros": lambda x, *size: np.zeros(sizes_of(size)),
    "new_tensor": lambda x, data: np.asarray(data),
    "cast": _cast,
    "astype": _cast,
    "float": _to("float32"),
    "double": _to("float64"),
    "half": _to("float16"),
    "long": _to("int64"),
    "int": _to("int32"),
    "short": _to("int16"),
    "char": _to("int8"),
    "byte": _to("uint8"),
    "bool": _to("bool"),
    "signbit": np.signbit,
    "isreal": lambda x: np.ones(x.shape, bool),
    "one_hot": lambda x, num_classes: as_integers(x)[..., None] == np.arange(num_classes),
    "embedding": lambda x, weight: weight[as_integers(x)],
}
"""Functions that give operands' elements, or integers."""
FOLDS: Final[Mapping[str, Function]] = {
    "scatter_reduce": _scatter_reduce,
    "index_reduce": _index_reduce,
    "fold": lambda x, *args, **words: Scaled(
        _fold(x, *args, **words), float(max(1, np.abs(x).sum()))
    ),
    "reduce": _reduced_by_pattern,
}
