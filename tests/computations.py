"""Functions of one tensor, of all kinds, drawn at random, each with what NumPy says of it.

For random programs (`tests/property/test_tensor_programs.py`): numbers are small integers, so that
whatever is computed is exact, in whichever order.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from ferrule import Tensor

Array = np.ndarray[Any, Any]
Result = tuple[Tensor, Any]
Computation = Callable[[Random, Tensor, Array], Result]


def numbers(draw: Random, shape: tuple[int, ...], low: int = 0, high: int = 9) -> Array:
    count = int(np.prod(shape))
    return np.array([draw.randint(low, high) for _ in range(count)], np.int32).reshape(shape)


def axis_of(draw: Random, a: Array) -> int:
    return draw.randint(-a.ndim, a.ndim - 1)


# *** element by element ***


def arithmetic(draw: Random, x: Tensor, a: Array) -> Result:
    divisor = draw.choice([-7, -3, -1, 1, 2, 5, 8])
    return draw.choice(
        [
            lambda: (x // divisor, a // divisor),
            lambda: (x % divisor, a % divisor),
            lambda: (divisor - x, divisor - a),
            lambda: (x * divisor, a * divisor),
            lambda: (x.abs() - x, np.abs(a) - a),
            lambda: (x.clamp(1, 5), np.clip(a, 1, 5)),
            lambda: (x.maximum(divisor), np.maximum(a, divisor)),
            lambda: (x.square() % 64, np.square(a) % 64),
            lambda: (x.sign(), np.sign(a)),
            lambda: (-x, -a),
        ]
    )()


def bits(draw: Random, x: Tensor, a: Array) -> Result:
    count = draw.randint(0, 6)
    return draw.choice(
        [
            lambda: (x & 5, a & 5),
            lambda: (x | 8, a | 8),
            lambda: (x ^ count, a ^ count),
            lambda: (~x, ~a),
            lambda: ((x & 63) << count, (a & 63) << count),
            lambda: (x >> count, a >> count),
        ]
    )()


def comparison(draw: Random, x: Tensor, a: Array) -> Result:
    limit = draw.randint(0, 9)
    return draw.choice(
        [
            lambda: (x < limit, a < limit),
            lambda: (x >= limit, a >= limit),
            lambda: (x == limit, a == limit),
            lambda: (x != limit, a != limit),
            lambda: (x.logical_not(), np.logical_not(a)),
        ]
    )()


def choice(draw: Random, x: Tensor, a: Array) -> Result:
    limit, other = draw.randint(0, 9), draw.randint(-3, 3)
    return draw.choice(
        [
            lambda: ((x > limit).where(x, other), np.where(a > limit, a, other)),
            lambda: (x.masked_fill(x < limit, other), np.where(a < limit, other, a)),
            lambda: ((x > limit).where(other, -x), np.where(a > limit, other, -a)),
        ]
    )()


def narrowed(draw: Random, x: Tensor, a: Array) -> Result:
    """Through another type and back: integers wrap, halves hold them."""
    kind = draw.choice(["int8", "uint8", "int16", "uint32", "int64", "float16", "float64", "bool"])
    if kind.startswith("float"):
        x, a = x % 1000, a % 1000
    return x.cast(kind).cast("int32"), a.astype(kind).astype(np.int32)


# *** along axes ***


def reduction(draw: Random, x: Tensor, a: Array) -> Result:
    axes = tuple(draw.sample(range(a.ndim), draw.randint(0, a.ndim))) or None
    keep = draw.random() < 0.5
    if axes is None and draw.random() < 0.5 and a.ndim:
        axes = (axis_of(draw, a),)
    choices: list[Callable[[], Result]] = [
        lambda: (x.sum(axes, keepdim=keep), a.sum(axes, keepdims=keep)),
        lambda: ((x > 3).any(axes, keepdim=keep), (a > 3).any(axes, keepdims=keep)),
        lambda: ((x > 3).all(axes, keepdim=keep), (a > 3).all(axes, keepdims=keep)),
        lambda: ((x % 3).prod(axes, keepdim=keep), (a % 3).prod(axes, keepdims=keep)),
    ]
    if a.size:
        choices += [
            lambda: (x.max(axes, keepdim=keep), a.max(axes, keepdims=keep)),
            lambda: (x.min(axes, keepdim=keep), a.min(axes, keepdims=keep)),
        ]
    tensor, array = draw.choice(choices)()
    if array.dtype == np.bool_:
        return tensor, array
    return tensor.cast("int32"), array.astype(np.int32)


def place_of_extreme(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim or not a.size:
        return x, a
    axis = axis_of(draw, a)
    if draw.random() < 0.5:
        return x.argmax(axis), a.argmax(axis).astype(np.int32)
    return x.argmin(axis), a.argmin(axis).astype(np.int32)


def running(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim:
        return x, a
    axis = axis_of(draw, a)
    return draw.choice(
        [
            lambda: (x.cumsum(axis), a.cumsum(axis)),
            lambda: ((x % 3).cumprod(axis), (a % 3).cumprod(axis)),
            lambda: (x.cummax(axis)[0], np.maximum.accumulate(a, axis)),
            lambda: (x.cummin(axis)[0], np.minimum.accumulate(a, axis)),
            lambda: (x.diff(axis=axis), np.diff(a, axis=axis)),
        ]
    )()


def sorted_(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim:
        return x, a
    axis = axis_of(draw, a)
    if draw.random() < 0.3:
        return x.argsort(axis, stable=True), a.argsort(axis, stable=True).astype(np.int32)
    if draw.random() < 0.4:
        count = draw.randint(0, a.shape[axis])
        largest = np.flip(np.sort(a, axis), axis).take(range(count), axis)
        return x.topk(count, axis)[0], largest
    if draw.random() < 0.5:
        return x.sort(axis, descending=True)[0], np.flip(np.sort(a, axis), axis)
    return x.sort(axis)[0], np.sort(a, axis)


# *** moved ***


def moved(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim:
        return x.reshape(1), a.reshape(1)
    axis = axis_of(draw, a)
    count = draw.randint(-3, 3)
    pads = [(draw.randint(0, 2), draw.randint(0, 2)) for _ in a.shape]
    parts = draw.randint(1, 3)
    times = draw.randint(1, 3)
    return draw.choice(
        [
            lambda: (x.roll(count, axis), np.roll(a, count, axis)),
            lambda: (x.flip(axis), np.flip(a, axis)),
            lambda: (x.pad(tuple(pads), value=count), np.pad(a, pads, constant_values=count)),
            lambda: (x.repeat_interleave(times, axis), np.repeat(a, times, axis)),
            lambda: (x.repeat(*[times] * a.ndim), np.tile(a, [times] * a.ndim)),
            lambda: (Tensor.stack(x, x + 1, dim=axis), np.stack([a, a + 1], axis)),
            lambda: (Tensor.cat(x, -x, x, dim=axis), np.concatenate([a, -a, a], axis)),
            lambda: (x.chunk(parts, axis)[-1], _chunk(a, parts, axis)),
            lambda: (x.movedim(axis, 0), np.moveaxis(a, axis, 0)),
        ]
    )()


def _chunk(a: Array, parts: int, axis: int) -> Array:
    """The last of PyTorch's chunks: all of one size, but perhaps the last."""
    size = a.shape[axis]
    step = max(-(-size // parts), 1)
    first = (max(-(-size // step), 1) - 1) * step
    return a.take(range(first, size), axis)


def triangle(draw: Random, x: Tensor, a: Array) -> Result:
    if a.ndim < 2:
        return x, a
    offset = draw.randint(-2, 2)
    return draw.choice(
        [
            lambda: (x.tril(offset), np.tril(a, offset)),
            lambda: (x.triu(offset), np.triu(a, offset)),
            lambda: (x.rot90(offset), np.rot90(a, offset)),
        ]
    )()


# *** by positions ***


def gathered(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim or not a.size:
        return x, a
    axis = axis_of(draw, a)
    shape = list(a.shape)
    shape[axis] = draw.randint(1, 4)
    places = numbers(draw, tuple(shape), 0, a.shape[axis] - 1)
    index = Tensor(places.astype(draw.choice([np.int32, np.int64])))
    if draw.random() < 0.5:
        return x.gather(axis, index), np.take_along_axis(a, places.astype(np.int64), axis)
    flat = places.ravel()
    return x.index_select(axis, Tensor(flat)), a.take(flat, axis)


def scattered(draw: Random, x: Tensor, a: Array) -> Result:
    """Into a copy, with positions that may repeat."""
    if not a.ndim or not a.size:
        return x, a
    axis = axis_of(draw, a)
    shape = list(a.shape)
    shape[axis] = draw.randint(1, 4)
    places = numbers(draw, tuple(shape), 0, a.shape[axis] - 1)
    values = numbers(draw, tuple(shape), 0, 3)
    how = draw.choice(["last", "sum", "amax", "prod"])
    expected = a.copy()
    for source in np.ndindex(*shape):
        there = list(source)
        there[axis] = places[source]
        old = expected[tuple(there)]
        new = values[source]
        expected[tuple(there)] = {
            "last": new,
            "sum": old + new,
            "amax": max(old, new),
            "prod": old * new,
        }[how]
    index, source_values = Tensor(places), Tensor(values)
    if how == "last":
        return x.scatter(axis, index, source_values), expected
    if how == "sum" and draw.random() < 0.5:
        return x.scatter_add(axis, index, source_values), expected
    return x.scatter_reduce(axis, index, source_values, how), expected


def written_rows(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim or not a.size:
        return x, a
    axis = axis_of(draw, a)
    places = numbers(draw, (draw.randint(1, 3),), 0, a.shape[axis] - 1)
    shape = list(a.shape)
    shape[axis] = len(places)
    values = numbers(draw, tuple(shape))
    expected = np.moveaxis(a.copy(), axis, 0)
    if draw.random() < 0.5:
        np.add.at(expected, places, np.moveaxis(values, axis, 0))
        return x.index_add(axis, Tensor(places), Tensor(values)), np.moveaxis(expected, 0, axis)
    expected[places] = 7
    return x.index_fill(axis, Tensor(places), 7), np.moveaxis(expected, 0, axis)


# *** products and windows ***


def product(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim:
        return x * x % 64, a * a % 64
    x, a = x % 16, a % 16
    factor = numbers(draw, (a.shape[-1], draw.randint(1, 4)))
    kind = draw.choice(["left", "right", "self", "einsum"])
    if kind == "left" and a.ndim > 1:
        factor = numbers(draw, (draw.randint(1, 3), a.shape[-2]))
        return Tensor(factor) @ x, factor @ a
    if kind == "self" and a.ndim > 1:
        return x @ x.mT, a @ np.swapaxes(a, -1, -2)
    if kind == "einsum":
        return Tensor.einsum("...i,ij->...j", x, Tensor(factor)), a @ factor
    return x @ Tensor(factor), a @ factor


def convolved(draw: Random, x: Tensor, a: Array) -> Result:
    """One channel in, one out, over the last axis."""
    if not a.ndim or not a.size:
        return x, a
    x, a = x % 16, a % 16
    size = draw.randint(1, a.shape[-1])
    stride, padding = draw.randint(1, 2), draw.randint(0, 2)
    weights = numbers(draw, (size,), -3, 3)
    rows, wide = a.reshape(-1, a.shape[-1]), x.reshape(-1, 1, a.shape[-1])
    padded = np.pad(rows, [(0, 0), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, -1)[:, ::stride]
    if draw.random() < 0.5:
        kernel = Tensor(weights).reshape(1, 1, size)
        found = wide.conv2d(kernel, stride=stride, padding=padding)
        return found.squeeze(1).cast("int32"), (windows * weights).sum(-1).astype(np.int32)
    if padding * 2 > size:
        return x, a
    low = np.pad(rows, [(0, 0), (padding, padding)], constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(low, size, -1)[:, ::stride]
    return wide.max_pool1d(size, stride, padding).squeeze(1), windows.max(-1)


def unfolded(draw: Random, x: Tensor, a: Array) -> Result:
    if not a.ndim or not a.size:
        return x, a
    size = draw.randint(1, a.shape[-1])
    step = draw.randint(1, 2)
    windows = np.lib.stride_tricks.sliding_window_view(a, size, -1)
    return x.unfold(-1, size, step), windows[..., ::step, :]


# *** made of a tensor's values ***


def counted(draw: Random, x: Tensor, a: Array) -> Result:
    x, a = x % 8, a % 8
    edges = np.sort(numbers(draw, (4,)))
    return draw.choice(
        [
            lambda: (x.one_hot(8), np.eye(8, dtype=np.int32)[a]),
            lambda: (x.isin(Tensor(edges)), np.isin(a, edges)),
            lambda: (Tensor(edges).searchsorted(x), np.searchsorted(edges, a).astype(np.int32)),
        ]
    )()


COMPUTATIONS: tuple[Computation, ...] = (
    arithmetic,
    bits,
    comparison,
    choice,
    narrowed,
    reduction,
    place_of_extreme,
    running,
    sorted_,
    moved,
    triangle,
    gathered,
    scattered,
    written_rows,
    product,
    convolved,
    unfolded,
    counted,
)


def compute(draw: Random, x: Tensor, a: Array) -> Result:
    """One of them, or a few, one of the other. What is done does not depend on the values."""
    x, a = x.cast("int32"), a.astype(np.int32)
    for _ in range(draw.choice([1, 1, 2, 3])):
        x, a = draw.choice(COMPUTATIONS)(draw, x.cast("int32"), np.asarray(a).astype(np.int32))
        while np.size(a) > 200:
            x, a = x[:1].squeeze(0), a[0]
    if a.dtype != np.bool_:
        x, a = x % 100, a % 100
    return x, np.array(a, order="C")
