"""Fourier transforms along an axis, without factors, and their rules.

Kernels compute them, so that plain calls and replays give the same bits. NumPy does where a device
has no kernels of its own, and for sizes that would take long ones.

The gradient of a transform is the one the other way round, with each frequency counted as often as
it is there: so the same two ways compute it, as often as one likes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.engine.host import Array, on_host
from ferrule.fusion.forms import has_kernels
from ferrule.tensor.algebra.fourier import (
    can_transform,
    frequency_weights,
    halved,
    moved,
    transformed,
    unhalved,
)
from ferrule.tensor.algebra.templates import by_kernels
from ferrule.tensor.broadcast import known_size


def _complex(pairs: Array) -> Array:
    """The numbers in the same memory."""
    pairs = np.ascontiguousarray(pairs)
    return pairs.view(np.result_type(pairs, np.complex64))[..., 0]


def _pairs(numbers: Array) -> Array:
    """The pairs in the same memory."""
    numbers = np.ascontiguousarray(numbers)
    return numbers[..., np.newaxis].view(numbers.real.dtype)


def _has_kernels(x: TracedValue, size: int) -> bool:
    """True if kernels compute a transform of `size` points, rather than NumPy."""
    return 0 not in x.shape and can_transform(size) and has_kernels(x.node.device)


def _fft(pairs: Array, axis: int, inverse: bool) -> Array:
    numbers = _complex(pairs)
    if inverse:
        return _pairs(np.fft.ifft(numbers, axis=axis, norm="forward"))
    return _pairs(np.fft.fft(numbers, axis=axis))


def _fft_nodes(pairs: TracedValue, axis: int, inverse: bool) -> TracedValue:
    """The same by kernels; here and below axes count from the end."""
    return transformed(pairs, axis, inverse)


def transform(pairs: TracedValue, axis: int, inverse: bool) -> TracedValue:
    """The sum of x[j] exp(-2i pi j k / n), or with + if `inverse`, for each k."""
    if _has_kernels(pairs, known_size(pairs.shape[axis], "fft")):
        node = by_kernels(pairs.node, _fft_nodes, axis - len(pairs.shape), inverse)
    else:
        node = on_host(_fft, [pairs], pairs.shape, pairs.dtype, axis, inverse).node
    return record("fft", _FFT, (pairs,), node, (axis, inverse))


def _reverse_fft(grad: TracedValue, entry: GradNode) -> Gradients:
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


def _rfft_nodes(x: TracedValue, axis: int, weighted: bool) -> TracedValue:
    return moved(halved(moved(x, axis, -1), weighted), -2, axis - 1)


def _irfft_nodes(pairs: TracedValue, size: int, axis: int, unweighted: bool) -> TracedValue:
    return moved(unhalved(moved(pairs, axis, -2), size, not unweighted), -1, axis + 1)


def half_transform(x: TracedValue, axis: int, weighted: bool) -> TracedValue:
    """The transform of real numbers up to the middle frequency; times its weights if `weighted`."""
    size = x.shape[axis]
    assert isinstance(size, int)
    if _has_kernels(x, size):
        node = by_kernels(x.node, _rfft_nodes, axis - len(x.shape), weighted)
    else:
        shape = (*x.shape[:axis], size // 2 + 1, *x.shape[axis + 1 :], 2)
        node = on_host(_rfft, [x], shape, x.dtype, axis, weighted).node
    return record("rfft", _RFFT, (x,), node, (size, axis, weighted))


def _reverse_rfft(grad: TracedValue, entry: GradNode) -> Gradients:
    size, axis, weighted = entry.arg
    return (signal_from(grad, size, axis, not weighted),)


def signal_from(pairs: TracedValue, size: int, axis: int, unweighted: bool) -> TracedValue:
    """Real numbers from the frequencies up to the middle, over their weights if `unweighted`."""
    if _has_kernels(pairs, size):
        stored = pairs.node.contiguous()  # each number is read four times
        node = by_kernels(stored, _irfft_nodes, size, axis - len(pairs.shape), unweighted)
    else:
        shape = (*pairs.shape[:axis], size, *pairs.shape[axis + 1 : -1])
        node = on_host(_irfft, [pairs], shape, pairs.dtype, size, axis, unweighted).node
    return record("irfft", _IRFFT, (pairs,), node, (axis, unweighted))


def _reverse_irfft(grad: TracedValue, entry: GradNode) -> Gradients:
    axis, unweighted = entry.arg
    return (half_transform(grad, axis, not unweighted),)


_FFT = Rule(_reverse_fft)
_RFFT = Rule(_reverse_rfft)
_IRFFT = Rule(_reverse_irfft)
