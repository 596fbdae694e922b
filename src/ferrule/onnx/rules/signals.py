"""Fourier transforms, and the windows and filters that go with them."""

from __future__ import annotations

import numpy as np

from ferrule import fft
from ferrule.onnx.registry import on_host, rule
from ferrule.onnx.values import Host, dtype_of, ints
from ferrule.signal import windows
from ferrule.tensor import Tensor


def _window(size: Host, dtype: int, periodic: int, *weights: float) -> Tensor:
    (count,) = ints(size)
    return windows.general_cosine(count, a=weights, sym=not periodic).cast(dtype_of(dtype))


@rule("HannWindow", 17)
def hann_window(size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, output_datatype, periodic, 0.5, 0.5)


@rule("HammingWindow", 17)
def hamming_window(size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, output_datatype, periodic, 25 / 46, 21 / 46)


@rule("BlackmanWindow", 17)
def blackman_window(size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, output_datatype, periodic, 0.42, 0.5, 0.08)


@rule("DFT", 20)
def dft(
    x: Tensor,
    length: Host | None = None,
    axis: Host | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    along = -2 if axis is None else int(axis.item())
    return _dft(x, length, along, inverse, onesided)


@rule("DFT", 17)
def dft_old(
    x: Tensor, length: Host | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return _dft(x, length, axis, inverse, onesided)


def _dft(x: Tensor, length: Host | None, axis: int, inverse: int, onesided: int) -> Tensor:
    """The transform along an axis of complex or real numbers: pairs along the last axis, or not."""
    axis %= x.ndim
    n = x.shape[axis] if length is None else int(length.item())
    real = x[..., 0]
    imaginary = x[..., 1] if x.shape[-1] == 2 else None
    if onesided and inverse:
        n = (2 * (x.shape[axis] - 1)) if length is None else n
        return _real_signal(real, imaginary, n, axis)
    kept = n // 2 + 1 if onesided else n
    return _transformed(real, imaginary, n, kept, axis, inverse)


def _real_signal(real: Tensor, imaginary: Tensor | None, n: int, axis: int) -> Tensor:
    """A real signal from half of its spectrum: the other half is the conjugate, backwards."""
    real = real.moveaxis(axis, -1)
    if imaginary is not None:
        imaginary = imaginary.moveaxis(axis, -1)
    half = real.shape[-1]
    rest = n - half
    tail = np.arange(rest, 0, -1)
    other = real.index_select(real.ndim - 1, Tensor(tail))
    full = Tensor.cat(real, other, dim=-1)
    mirrored = None
    if imaginary is not None:
        mirrored = Tensor.cat(
            imaginary, -imaginary.index_select(imaginary.ndim - 1, Tensor(tail)), dim=-1
        )
    y = _transformed(full, mirrored, n, n, full.ndim - 1, 1)[..., :1]
    return y.moveaxis(-2, axis)


def _transformed(
    real: Tensor, imaginary: Tensor | None, n: int, kept: int, axis: int, inverse: int
) -> Tensor:
    real = _sized(real, n, axis)
    imaginary = real * 0 if imaginary is None else _sized(imaginary, n, axis)
    pairs = Tensor.stack(real, imaginary, dim=-1)
    y = fft.ifft(pairs, dim=axis) if inverse else fft.fft(pairs, dim=axis)
    return y[tuple(slice(0, kept) if i == axis else slice(None) for i in range(y.ndim))]


def _sized(x: Tensor, n: int, axis: int) -> Tensor:
    """An axis cut to a length, or filled up with zeros."""
    size = x.shape[axis]
    if size > n:
        return x[tuple(slice(0, n) if i == axis else slice(None) for i in range(x.ndim))]
    widths = [0, 0] * x.ndim
    widths[2 * (x.ndim - 1 - axis) + 1] = n - size
    return x.pad(widths) if size < n else x


@rule("STFT", 17)
def stft(
    signal: Tensor,
    frame_step: Host,
    window: Tensor | None = None,
    frame_length: Host | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    (step,) = ints(frame_step)
    if frame_length is not None:
        (length,) = ints(frame_length)
    else:
        assert window is not None, "the checker wants one of the two"
        length = window.shape[0]
    values = signal if signal.ndim == 3 else signal.unsqueeze(-1)
    count = (values.shape[1] - length) // step + 1
    frames = values.unfold(1, length, step)[:, :count].moveaxis(-1, 2)
    if window is not None:
        frames = frames * window.reshape(1, 1, -1, 1)
    return _dft(frames, None, 2, 0, onesided)


on_host("MelWeightMatrix", 17)
