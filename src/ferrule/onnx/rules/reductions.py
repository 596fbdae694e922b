"""Operators that combine the elements along axes: sums, extremes, running totals, orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.onnx.values import Host, ints
from ferrule.tensor import Tensor

_Axes = tuple[int, ...]
_Method = Callable[..., Tensor]


def _log_sum(x: Tensor, axes: _Axes, keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep).log()


# Each from a tensor, its axes, and whether these are kept with length 1.
_REDUCES: dict[str, Callable[[Tensor, _Axes, bool], Tensor]] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: _mean(x, axes, keep),
    "ReduceProd": lambda x, axes, keep: _one_by_one(x, axes, keep, Tensor.prod),
    "ReduceMax": lambda x, axes, keep: _extreme(x, axes, keep, Tensor.amax),
    "ReduceMin": lambda x, axes, keep: _extreme(x, axes, keep, Tensor.amin),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: _norm(x, axes, keep),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
}


def _mean(x: Tensor, axes: _Axes, keep: bool) -> Tensor:
    if dtypes.is_float(x.dtype):
        return x.mean(axes, keepdim=keep)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return x.sum(axes, keepdim=keep).div(count, rounding_mode="trunc")


def _norm(x: Tensor, axes: _Axes, keep: bool) -> Tensor:
    squares = x if dtypes.is_float(x.dtype) else x.cast(dtypes.float64)
    return (squares * squares).sum(axes, keepdim=keep).sqrt()


def _one_by_one(x: Tensor, axes: _Axes, keep: bool, method: _Method) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = method(x, axis, keepdim=keep)
    return x


def _extreme(x: Tensor, axes: _Axes, keep: bool, method: _Method) -> Tensor:
    if all(x.shape[axis] for axis in axes):
        return method(x, axes, keepdim=keep)
    # The extreme of nothing is the element that changes no extreme.
    least = method is Tensor.amax
    edge = dtypes.min(x.dtype) if least else dtypes.max(x.dtype)
    if dtypes.is_float(x.dtype):
        edge = float("-inf") if least else float("inf")
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    shape = kept if keep else [n for axis, n in enumerate(x.shape) if axis not in axes]
    return Tensor.full(tuple(shape), edge, dtype=x.dtype)


def _reduce(
    function: Callable[[Tensor, _Axes, bool], Tensor],
    x: Tensor,
    axes: Sequence[int] | None,
    keepdims: int,
    noop: int = 0,
) -> Tensor:
    if not axes:
        if noop:
            # Each element is reduced alone.
            return function(x.unsqueeze(-1), (x.ndim,), False).cast(x.dtype)
        axes = range(x.ndim)
    chosen = tuple(axis % x.ndim for axis in axes)
    if not chosen:
        return function(x.reshape(1), (0,), False).cast(x.dtype)
    return function(x, chosen, bool(keepdims)).cast(x.dtype)


def _enter(operator: str, function: Callable[[Tensor, _Axes, bool], Tensor]) -> None:
    @rule(operator)
    def with_attribute(
        x: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1
    ) -> Tensor:
        return _reduce(function, x, axes, keepdims)

    @rule(operator, 13 if operator == "ReduceSum" else 18)
    def with_input(
        x: Tensor, axes: Host | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        return _reduce(function, x, ints(axes), keepdims, noop_with_empty_axes)


for _operator, _function in _REDUCES.items():
    _enter(_operator, _function)


def _place(x: Tensor, method: _Method, axis: int, keepdims: int, last: int) -> Tensor:
    if not last:
        return method(x, axis, keepdim=bool(keepdims)).cast(dtypes.int64)
    flipped = method(x.flip(axis), axis, keepdim=bool(keepdims))
    place: Tensor = x.shape[axis] - 1 - flipped
    return place.cast(dtypes.int64)


@rule("ArgMax")
def argmax(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _place(x, Tensor.argmax, axis, keepdims, select_last_index)


@rule("ArgMin")
def argmin(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _place(x, Tensor.argmin, axis, keepdims, select_last_index)


def _running(x: Tensor, axis: Host, exclusive: int, reverse: int, method: _Method) -> Tensor:
    (along,) = ints(axis)
    along %= x.ndim
    if reverse:
        x = x.flip(along)
    if exclusive:
        neutral = 0 if method is Tensor.cumsum else 1
        first = x[_part(along, x.ndim, slice(0, 1))]
        rest = x[_part(along, x.ndim, slice(0, x.shape[along] - 1))]
        x = Tensor.cat(first.full_like(neutral), rest, dim=along)
    total = method(x, along).cast(x.dtype)
    return total.flip(along) if reverse else total


def _part(axis: int, ndim: int, part: slice) -> tuple[slice, ...]:
    return tuple(part if i == axis else slice(None) for i in range(ndim))


@rule("CumSum", 11)
def cumsum(x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, exclusive, reverse, Tensor.cumsum)


@rule("CumProd", 26)
def cumprod(x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, exclusive, reverse, Tensor.cumprod)


@rule("TopK", 10)
def topk(
    x: Tensor, k: Host, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    (count,) = ints(k)
    values, places = x.topk(count, axis, bool(largest), bool(sorted))
    return values, places.cast(dtypes.int64)


@rule("TopK")
def topk_old(x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    values, places = x.topk(k, axis)
    return values, places.cast(dtypes.int64)


# Softmax and its kind


@rule("Softmax", 13)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return x.softmax(axis)


@rule("LogSoftmax", 13)
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return x.log_softmax(axis)


@rule("Hardmax", 13)
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    chosen = x.argmax(axis, keepdim=True)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    places = Tensor.arange(x.shape[axis], dtype=chosen.dtype).reshape(*shape)
    return (places == chosen).cast(x.dtype)


def _of_rows(function: Callable[..., Tensor], x: Tensor, axis: int) -> Tensor:
    """A function of all axes from `axis` on as one, as it was before version 13."""
    return function(x.flatten(axis % x.ndim), axis=-1).reshape(x.shape)


@rule("Softmax")
def softmax_old(x: Tensor, *, axis: int = 1) -> Tensor:
    return _of_rows(softmax, x, axis)


@rule("LogSoftmax")
def log_softmax_old(x: Tensor, *, axis: int = 1) -> Tensor:
    return _of_rows(log_softmax, x, axis)


@rule("Hardmax")
def hardmax_old(x: Tensor, *, axis: int = 1) -> Tensor:
    return _of_rows(hardmax, x, axis)
