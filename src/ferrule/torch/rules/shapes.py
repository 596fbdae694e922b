"""Operators that make tensors, and change shapes and orders without computing elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.ir.dtype import DType, dtypes
from ferrule.tensor import Tensor
from ferrule.torch.registry import rule
from ferrule.torch.values import Number, Operand, TorchError, as_tensor, result_dtype, wrapped

# -- sizes, which are numbers ---------------------------------------------------------------------


@rule("sym_size.int")
def sym_size(self: Tensor, dim: int) -> int:
    size: Any = self.shape[dim]
    return int(size)


@rule("sym_numel")
def sym_numel(self: Tensor) -> int:
    return int(self.numel())


@rule("sym_stride.int")
def sym_stride(self: Tensor, dim: int) -> int:
    """The stride of memory in row-major order: each result is laid out so."""
    stride = 1
    for size in self.shape[dim % self.ndim + 1 :]:
        stride *= size
    return stride


@rule("sym_storage_offset")
def sym_storage_offset(self: Tensor) -> int:
    return 0


@rule("sym_is_contiguous")
def sym_is_contiguous(self: Tensor) -> bool:
    return True


def _ignored(*args: Any, **kwargs: Any) -> None:
    """Assertions: PyTorch has checked them for the sizes that it has seen."""


for _name in (
    *("_assert_scalar", "_assert_async.msg", "_assert_async", "_assert_tensor_metadata"),
    *("sym_constrain_range_for_size", "sym_constrain_range"),
):
    rule(_name)(_ignored)


# -- new tensors ---------------------------------------------------------------------------------


def _filled(shape: Sequence[int], value: Number, dtype: DType) -> Tensor:
    return Tensor.full(tuple(shape), wrapped(value, dtype), dtype=dtype)


def _dtype_for(value: Number, dtype: DType | None) -> DType:
    return result_dtype(value) if dtype is None else dtype


@rule("full")
def full(size: Sequence[int], fill_value: Number, *, dtype: DType | None = None) -> Tensor:
    return _filled(size, fill_value, _dtype_for(fill_value, dtype))


@rule("full_like")
def full_like(self: Tensor, fill_value: Number, *, dtype: DType | None = None) -> Tensor:
    return _filled(self.shape, fill_value, dtype or self.dtype)


@rule("new_full")
def new_full(
    self: Tensor, size: Sequence[int], fill_value: Number, *, dtype: DType | None = None
) -> Tensor:
    return _filled(size, fill_value, dtype or self.dtype)


@rule("zeros", "empty.memory_format")
def zeros(size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return _filled(size, 0, dtype or dtypes.default_float)


@rule("empty_strided", "empty_permuted")
def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: DType | None = None
) -> Tensor:
    return _filled(size, 0, dtype or dtypes.default_float)


@rule("ones")
def ones(size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return _filled(size, 1, dtype or dtypes.default_float)


@rule("zeros_like", "empty_like")
def zeros_like(self: Tensor, *, dtype: DType | None = None) -> Tensor:
    return _filled(self.shape, 0, dtype or self.dtype)


@rule("ones_like")
def ones_like(self: Tensor, *, dtype: DType | None = None) -> Tensor:
    return _filled(self.shape, 1, dtype or self.dtype)


@rule("new_zeros", "new_empty")
def new_zeros(self: Tensor, size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return _filled(size, 0, dtype or self.dtype)


@rule("new_ones")
def new_ones(self: Tensor, size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return _filled(size, 1, dtype or self.dtype)


@rule("new_empty_strided")
def new_empty_strided(
    self: Tensor, size: Sequence[int], stride: Sequence[int], *, dtype: DType | None = None
) -> Tensor:
    return _filled(size, 0, dtype or self.dtype)


@rule("fill.Scalar", "fill.Tensor")
def fill(self: Tensor, value: Operand) -> Tensor:
    return as_tensor(value, self.dtype).expand(*self.shape)


@rule("scalar_tensor")
def scalar_tensor(s: Number, *, dtype: DType | None = None) -> Tensor:
    return _filled((), s, dtype or dtypes.default_float)


@rule("arange", "arange.start", "arange.start_step")
def arange(
    start: Number, end: Number | None = None, step: Number = 1, *, dtype: DType | None = None
) -> Tensor:
    first, last = (0, start) if end is None else (start, end)
    numbers = (first, last, step)
    is_float = any(isinstance(number, float) for number in numbers)
    kind = dtype or (dtypes.default_float if is_float else dtypes.int64)
    if dtypes.is_float(kind):
        return Tensor.arange(first, last, step, dtype=kind)
    return Tensor.arange(int(first), int(last), int(step), dtype=kind)


@rule("linspace")
def linspace(start: Number, end: Number, steps: int, *, dtype: DType | None = None) -> Tensor:
    return Tensor.linspace(start, end, steps, dtype=dtype or dtypes.default_float)


@rule("eye")
def eye(n: int, *, dtype: DType | None = None) -> Tensor:
    return Tensor.eye(n, dtype=dtype or dtypes.default_float)


@rule("eye.m")
def eye_rectangular(n: int, m: int, *, dtype: DType | None = None) -> Tensor:
    return Tensor.eye(n, m, dtype=dtype or dtypes.default_float)


# -- other shapes --------------------------------------------------------------------------------


@rule("view", "reshape", "_unsafe_view", "_reshape_alias")
def view(self: Tensor, size: Sequence[int], stride: Sequence[int] = ()) -> Tensor:
    return self.reshape(tuple(size))


@rule("expand")
def expand(self: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    return self.expand(*size)


@rule("permute")
def permute(self: Tensor, dims: Sequence[int]) -> Tensor:
    return self.permute(*dims) if self.ndim else self


@rule("transpose.int")
def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    return self.transpose(dim0, dim1) if self.ndim else self


@rule("t")
def t(self: Tensor) -> Tensor:
    return self.transpose(0, 1) if self.ndim == 2 else self


@rule("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(self: Tensor, dim: Sequence[int] | int | None = None) -> Tensor:
    if dim is None:
        return self.squeeze()
    axes = {axis % (self.ndim or 1) for axis in ((dim,) if isinstance(dim, int) else dim)}
    kept = [size for axis, size in enumerate(self.shape) if axis not in axes or size != 1]
    return self.reshape(tuple(kept))


@rule("unsqueeze")
def unsqueeze(self: Tensor, dim: int) -> Tensor:
    return self.unsqueeze(dim)


@rule("repeat")
def repeat(self: Tensor, repeats: Sequence[int]) -> Tensor:
    return self.repeat(*repeats) if len(repeats) else self


@rule("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    # PyTorch leaves out tensors of the shape (0,), whatever the others are like.
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    dtype = result_dtype(*tensors)
    return Tensor.cat([x.cast(dtype) for x in kept], dim=dim)


@rule("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dtype = result_dtype(*tensors)
    return Tensor.stack([x.cast(dtype) for x in tensors], dim=dim)


@rule("split_with_sizes")
def split_with_sizes(self: Tensor, split_sizes: Sequence[int], dim: int = 0) -> Sequence[Tensor]:
    return self.split(list(split_sizes), dim)


@rule("split.Tensor")
def split(self: Tensor, split_size: int, dim: int = 0) -> Sequence[Tensor]:
    return self.split(split_size, dim)


@rule("unbind.int")
def unbind(self: Tensor, dim: int = 0) -> Sequence[Tensor]:
    return self.unbind(dim)


@rule("flip")
def flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    return self.flip(tuple(dims)) if self.ndim else self


@rule("roll")
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    return self.roll(list(shifts), list(dims)) if dims else self.roll(shifts[0])


@rule("diagonal")
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return self.diagonal(offset, dim1, dim2)


@rule("tril")
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    return self.tril(diagonal)


@rule("triu")
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    return self.triu(diagonal)


@rule("unfold")
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    return self.unfold(dimension, size, step)


@rule("pixel_shuffle")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    return self.pixel_shuffle(upscale_factor)


@rule("pixel_unshuffle")
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    return self.pixel_unshuffle(downscale_factor)


@rule("as_strided")
def as_strided(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Elements at places in memory; memory is taken to be the tensor in row-major order."""
    places = Tensor.full((), storage_offset or 0, dtype=dtypes.int64)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = Tensor.arange(count, dtype=dtypes.int64) * step
        places = places + along.reshape(count, *(1,) * (len(size) - axis - 1))
    return self.reshape(-1)[places]


# -- around a tensor -----------------------------------------------------------------------------


@rule("constant_pad_nd")
def constant_pad_nd(self: Tensor, pad: Sequence[int], value: Number = 0) -> Tensor:
    return self.pad(tuple(pad), value=wrapped(value, self.dtype)) if len(pad) else self


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    return self.pad(tuple(padding), "reflect")


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    return self.pad(tuple(padding), "replicate")


@rule("pad")
def pad(
    self: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise TorchError(f"no padding is called {mode!r}")
    return self.pad(tuple(pad), mode, wrapped(value or 0, self.dtype))
