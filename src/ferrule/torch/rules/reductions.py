"""Operators that combine the elements along axes: sums, extremes, orders, running totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.ir.dtype import DType, dtypes
from ferrule.tensor import Tensor
from ferrule.torch.registry import enter_rule, rule
from ferrule.torch.values import Number, as_float, axes_of, int64

Dims = Sequence[int] | int | None


@rule("sum", "sum.dim_IntList")
def sum_(
    self: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    x = self if dtype is None else self.cast(dtype)
    return x.sum(axes_of(x, dim), keepdim)


@rule("mean", "mean.dim")
def mean(
    self: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    x = self if dtype is None else self.cast(dtype)
    return x.mean(axes_of(x, dim), keepdim)


@rule("prod", "prod.dim_int")
def prod(
    self: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    x = self if dtype is None else self.cast(dtype)
    return x.prod(axes_of(x, dim), keepdim)


@rule("amax")
def amax(self: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return self.amax(axes_of(self, dim), keepdim)


@rule("amin")
def amin(self: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return self.amin(axes_of(self, dim), keepdim)


@rule("max")
def max_(self: Tensor) -> Tensor:
    return self.max()


@rule("min")
def min_(self: Tensor) -> Tensor:
    return self.min()


def _extreme(x: Tensor, dim: int, keepdim: bool, where: Any) -> tuple[Tensor, Tensor]:
    """The extreme element, and its place; a gradient goes to that place alone."""
    if not x.ndim:
        return x, Tensor.zeros(dtype=dtypes.int64)
    places = where(x, dim, True)
    values = x.gather(dim, places)
    found = (values, int64(places))
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


@rule("max.dim")
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme(self, dim, keepdim, Tensor.argmax)


@rule("min.dim")
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme(self, dim, keepdim, Tensor.argmin)


@rule("argmax")
def argmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return int64(self.argmax(dim, keepdim))


@rule("argmin")
def argmin(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return int64(self.argmin(dim, keepdim))


def _as_asked(x: Tensor, found: Tensor) -> Tensor:
    """Of bytes, PyTorch's `any` and `all` are bytes."""
    return found.cast(x.dtype) if x.dtype is dtypes.uint8 else found


@rule("any", "any.dim", "any.dims")
def any_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _as_asked(self, self.any(axes_of(self, dim), keepdim))


@rule("all", "all.dim", "all.dims")
def all_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _as_asked(self, self.all(axes_of(self, dim), keepdim))


@rule("var.correction", "var.dim", "var")
def var(
    self: Tensor,
    dim: Dims = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: Number | None = None,
) -> Tensor:
    less = int(unbiased) if correction is None else correction
    return self.var(axes_of(self, _as_axes(dim)), keepdim, correction=less)


def _as_axes(dim: Any) -> Dims:
    axes: Dims = None if isinstance(dim, bool) else dim
    return axes


@rule("std.correction")
def std(
    self: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Tensor:
    return var(self, dim, keepdim=keepdim, correction=correction).sqrt()


@rule("var_mean.correction")
def var_mean(
    self: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return var(self, dim, keepdim=keepdim, correction=correction), mean(self, dim, keepdim)


@rule("logsumexp")
def logsumexp(self: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    return as_float(self).logsumexp(axes_of(self, dim), keepdim)


@rule("linalg_vector_norm")
def vector_norm(
    self: Tensor,
    ord: Number = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    x = self if dtype is None else self.cast(dtype)
    return x.vector_norm(ord, axes_of(x, dim), keepdim)


# -- along one axis ------------------------------------------------------------------------------


@rule("cumsum")
def cumsum(self: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    x = self if dtype is None else self.cast(dtype)
    return x.cumsum(dim) if x.ndim else x.sum()


@rule("cumprod")
def cumprod(self: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    x = self if dtype is None else self.cast(dtype)
    return x.cumprod(dim) if x.ndim else x.prod()


@rule("logcumsumexp")
def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    return self.logcumsumexp(dim) if self.ndim else self


def _enter_running_extremes() -> None:
    for name in ("cummax", "cummin"):
        method = getattr(Tensor, name)

        def running(self: Tensor, dim: int, method: Any = method) -> Any:
            values, places = method(self, dim)
            return values, int64(places)

        enter_rule(name, running)


_enter_running_extremes()


@rule("sort", "sort.stable")
def sort(
    self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    if not self.ndim:
        return self, Tensor.zeros(dtype=dtypes.int64)
    places = self.argsort(dim, descending)
    return self.gather(dim, places), int64(places)


@rule("argsort", "argsort.stable")
def argsort(
    self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> Tensor:
    return sort(self, dim, descending)[1]


@rule("histc")
def histc(self: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    return self.histc(bins, min, max).cast(self.dtype)


@rule("topk")
def topk(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    if not self.ndim:
        return self, Tensor.zeros(dtype=dtypes.int64)
    values, places = self.topk(k, dim, largest, sorted)
    return values, int64(places)


def _softmax_of(name: str) -> Any:
    method = getattr(Tensor, name)

    def compute(self: Tensor, dim: int, half_to_float: bool = False) -> Any:
        x = self.cast(dtypes.float32) if half_to_float else self
        return method(x, dim) if x.ndim else method(x.reshape(1), 0).reshape()

    return compute


def _converted_softmax_of(name: str) -> Any:
    compute = _softmax_of(name)

    def converted(self: Tensor, dim: int, dtype: DType | None = None) -> Any:
        return compute(as_float(self) if dtype is None else self.cast(dtype), dim)

    return converted


for _name in ("softmax", "log_softmax"):
    enter_rule(f"_{_name}", _softmax_of(_name))
    enter_rule(f"{_name}.int", _converted_softmax_of(_name))


@rule("_softmax_backward_data")
def softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType) -> Tensor:
    slope = grad_output * output
    return (slope - output * slope.sum(dim, keepdim=True)).cast(input_dtype)


@rule("_log_softmax_backward_data")
def log_softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    return (grad_output - output.exp() * grad_output.sum(dim, keepdim=True)).cast(input_dtype)
