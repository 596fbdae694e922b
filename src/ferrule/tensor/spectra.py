"""Fourier transforms along an axis, without factors: by kernels or by NumPy, and their rules.

The gradient of a transform is the one the other way round, with each frequency counted as often as
it is there: so the same two ways compute it, as often as one likes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ferrule.capture import is_capturing
from ferrule.gradient import Entry, Gradients, Rule, Value, record
from ferrule.host import Array, on_host
from ferrule.shape.layout import storage_size
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.data import is_in_host_memory
from ferrule.tensor.fourier import (
    can_transform,
    frequency_weights,
    halved,
    transformed,
    unhalved,
)

LEAST_OF_KERNELS: Final = 1 << 18
"""Elements from which on kernels compute what is not captured: to make and to find the graph of a
handful of them takes longer than NumPy needs for fewer."""


def _complex(pairs: Array) -> Array:
    """The numbers in the same memory."""
    pairs = np.ascontiguousarray(pairs)
    return pairs.view(np.result_type(pairs, np.complex64))[..., 0]


def _pairs(numbers: Array) -> Array:
    """The pairs in the same memory."""
    numbers = np.ascontiguousarray(numbers)
    return numbers[..., np.newaxis].view(numbers.real.dtype)


def _has_kernels(x: Value, size: int) -> bool:
    """Whether kernels compute a transform of so many points, rather than NumPy."""
    node = x.node
    if 0 in x.shape or not can_transform(size):
        return False
    known = all(isinstance(n, int) for n in x.shape)
    small = known and storage_size(x.shape) < LEAST_OF_KERNELS
    return is_capturing() or not (small and is_in_host_memory(node.device))


def _moved(x: Value, source: int, target: int) -> Value:
    """An axis in another place."""
    axes = list(range(len(x.shape)))
    axes.insert(range(len(axes))[target], axes.pop(source))
    return x.permute(axes)


def _fft(pairs: Array, axis: int, inverse: bool) -> Array:
    numbers = _complex(pairs)
    if inverse:
        return _pairs(np.fft.ifft(numbers, axis=axis, norm="forward"))
    return _pairs(np.fft.fft(numbers, axis=axis))


def transform(pairs: Value, axis: int, inverse: bool) -> Value:
    """The sum of x[j] exp(-2i pi j k / n), or with + if `inverse`, for each k."""
    if _has_kernels(pairs, known_size(pairs.shape[axis], "fft")):
        moved = _moved(pairs.detach(), axis, -2)
        node = _moved(transformed(moved, inverse), -2, axis).node
    else:
        node = on_host(_fft, [pairs], pairs.shape, pairs.dtype, axis, inverse).node
    return record("fft", _FFT, (pairs,), node, (axis, inverse))


def _reverse_fft(grad: Value, entry: Entry) -> Gradients:
    axis, inverse = entry.arg
    return (transform(grad, axis, not inverse),)


def _weights(size: int, axis: int, rank: int, dtype: Any) -> Array:
    """How often a real signal has each of its frequencies, along an axis."""
    return frequency_weights(size).astype(dtype).reshape((-1,) + (1,) * (rank - axis - 1))


def _rfft(x: Array, axis: int, weighted: bool) -> Array:
    numbers = np.fft.rfft(x, axis=axis)
    return _pairs(numbers * _weights(x.shape[axis], axis, x.ndim, x.dtype) if weighted else numbers)


def _irfft(pairs: Array, size: int, axis: int, unweighted: bool) -> Array:
    numbers = _complex(pairs)
    if unweighted:
        numbers = numbers / _weights(size, axis, numbers.ndim, pairs.dtype)
    return np.fft.irfft(numbers, size, axis, norm="forward")


def half_transform(x: Value, axis: int, weighted: bool) -> Value:
    """The transform of real numbers up to the middle frequency; times its weights if `weighted`."""
    size = x.shape[axis]
    assert isinstance(size, int)
    if _has_kernels(x, size):
        node = _moved(halved(_moved(x.detach(), axis, -1), weighted), -2, axis).node
    else:
        shape = (*x.shape[:axis], size // 2 + 1, *x.shape[axis + 1 :], 2)
        node = on_host(_rfft, [x], shape, x.dtype, axis, weighted).node
    return record("rfft", _RFFT, (x,), node, (size, axis, weighted))


def _reverse_rfft(grad: Value, entry: Entry) -> Gradients:
    size, axis, weighted = entry.arg
    return (signal_from(grad, size, axis, not weighted),)


def signal_from(pairs: Value, size: int, axis: int, unweighted: bool) -> Value:
    """Real numbers from the frequencies up to the middle, over their weights if `unweighted`."""
    if _has_kernels(pairs, size):
        moved = _moved(pairs.detach(), axis, -2)
        node = _moved(unhalved(moved, size, not unweighted), -1, axis).node
    else:
        shape = (*pairs.shape[:axis], size, *pairs.shape[axis + 1 : -1])
        node = on_host(_irfft, [pairs], shape, pairs.dtype, size, axis, unweighted).node
    return record("irfft", _IRFFT, (pairs,), node, (axis, unweighted))


def _reverse_irfft(grad: Value, entry: Entry) -> Gradients:
    axis, unweighted = entry.arg
    return (half_transform(grad, axis, not unweighted),)


_FFT = Rule(_reverse_fft)
_RFFT = Rule(_reverse_rfft)
_IRFFT = Rule(_reverse_irfft)
