"""Operators that read from places, or write to places, which operands say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.ir.dtype import dtypes
from ferrule.tensor import Tensor
from ferrule.torch.registry import rule
from ferrule.torch.values import Number, as_tensor, int64, wrapped


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Where a slice starts and ends, as PyTorch limits it: a start behind the end gives nothing."""
    first = 0 if start is None else start + size if start < 0 else start
    last = size if end is None else end + size if end < 0 else end
    first = min(max(first, 0), size)
    return first, min(max(last, first), size)


@rule("slice.Tensor")
def slice_(
    self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    first, last = _bounds(self.shape[dim], start, end)
    axis = dim % self.ndim
    return self[(*(slice(None),) * axis, slice(first, last, step))]


@rule("select.int")
def select(self: Tensor, dim: int, index: int) -> Tensor:
    return self.select(dim, index)


@rule("slice_scatter")
def slice_scatter(
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    first, last = _bounds(self.shape[dim], start, end)
    return self.slice_scatter(src.cast(self.dtype), dim, first, last, step)


@rule("select_scatter")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    return self.select_scatter(src.cast(self.dtype), dim, index)


@rule("diagonal_scatter")
def diagonal_scatter(
    self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    return self.diagonal_scatter(src.cast(self.dtype), offset, dim1, dim2)


def _places(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return self[_places(self, indices)]


@rule("index_put", "_unsafe_index_put")
def index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    return self.index_put(_places(self, indices), values.cast(self.dtype), accumulate)


@rule("index_select")
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    return self.index_select(dim, index) if self.ndim else self


@rule("index_add")
def index_add(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1
) -> Tensor:
    return self.index_add(dim, index, source, alpha)


@rule("index_copy")
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return self.index_copy(dim, index, source)


@rule("index_fill.int_Scalar")
def index_fill(self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    return self.index_fill(dim, index, wrapped(value, self.dtype))


@rule("gather")
def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not self.ndim:
        return self.expand(*index.shape)
    return self.gather(dim, index)


@rule("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def scatter(
    self: Tensor, dim: int, index: Tensor, value: Any = None, src: Any = None, reduce: Any = None
) -> Tensor:
    given = value if src is None else src
    source = given if isinstance(given, Tensor) else wrapped(given, self.dtype)
    if reduce == "multiply":
        factors = as_tensor(source, self.dtype).expand(*index.shape)
        return self.scatter_reduce(dim, index, factors, "prod")
    return self.scatter(dim, index, source, reduce)


@rule("scatter_add")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return self.scatter_add(dim, index, src)


@rule("scatter_reduce.two")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return self.scatter_reduce(dim, index, src, reduce, include_self=include_self)


@rule("masked_scatter")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    return self.masked_scatter(mask, source)


@rule("masked_select")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """The shape depends on the elements, so they are computed and read."""
    return self.masked_select(mask)


@rule("nonzero")
def nonzero(self: Tensor) -> Tensor:
    """The shape depends on the elements, so they are computed and read."""
    return int64(self.nonzero())


@rule("nonzero_static")
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    return int64(self.nonzero_static(size=size, fill_value=fill_value))


@rule("searchsorted.Tensor")
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    ordered = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    found = ordered.searchsorted(self, right=right or side == "right")
    return found.cast(dtypes.int32) if out_int32 else int64(found)


@rule("bucketize.Tensor")
def bucketize(
    self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


# -- tables --------------------------------------------------------------------------------------


@rule("embedding")
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    left_out = None if padding_idx < 0 else padding_idx
    return indices.embedding(weight, left_out, scale_grad_by_freq=scale_grad_by_freq)


@rule("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    size = grad_output.shape[-1]
    rows, places = grad_output.reshape(-1, size), indices.reshape(-1)
    if padding_idx >= 0:
        rows = (places == padding_idx).unsqueeze(1).where(0, rows)
    if scale_grad_by_freq:
        counts = Tensor.zeros(num_weights, dtype=rows.dtype)
        counts = counts.index_add(0, places, Tensor.ones(places.shape[0], dtype=rows.dtype))
        rows = rows / counts[places].unsqueeze(1)
    return Tensor.zeros(num_weights, size, dtype=rows.dtype).index_add(0, places, rows)


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The bags, then for the way back: the bag of each index, the sizes of bags, largest rows."""
    found = indices.embedding_bag(
        weight,
        offsets,
        scale_grad_by_freq=scale_grad_by_freq,
        mode=("sum", "mean", "max")[mode],
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=None if padding_idx < 0 else padding_idx,
    )
    starts = int64(offsets)
    place = Tensor.arange(indices.shape[0], dtype=dtypes.int64).unsqueeze(1)
    bag = (place >= starts[: found.shape[0]]).sum(1) - 1
    counted = (indices != padding_idx).cast(dtypes.int64)
    sizes = Tensor.zeros(found.shape[0], dtype=dtypes.int64).index_add(0, bag, counted)
    largest = _largest(weight[indices], found, bag, indices) if mode == 2 else sizes
    return found, int64(bag), sizes, largest


def _largest(rows: Tensor, found: Tensor, bag: Tensor, indices: Tensor) -> Tensor:
    """For each bag and column, the index whose row has the largest element; the first of them."""
    count = indices.shape[0]
    place = Tensor.arange(count, dtype=dtypes.int64).unsqueeze(1)
    candidates = (rows == found[bag]).where(place, count)
    firsts = Tensor.full(found.shape, count, dtype=dtypes.int64).scatter_reduce(
        0, bag.unsqueeze(1).expand(*candidates.shape), candidates, "amin"
    )
    return int64(indices[firsts.clamp(max=count - 1)])


@rule("_embedding_bag_backward")
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if mode == 2:
        filled = (bag_size > 0).unsqueeze(1).where(grad, 0)
        zeros = Tensor.zeros(num_weights, grad.shape[-1], dtype=grad.dtype)
        return zeros.scatter_add(0, maximum_indices, filled)
    rows = grad / bag_size.clamp(min=1).unsqueeze(1).cast(grad.dtype) if mode == 1 else grad
    rows = rows[offset2bag]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    return embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


@rule("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    products = (grad[offset2bag] * weight[indices]).sum(1)
    return (indices == padding_idx).where(0, products)
