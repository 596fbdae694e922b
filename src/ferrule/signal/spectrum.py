"""Short-time Fourier transforms of a signal, and their inverse: `stft`, `istft`."""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrule.fft import irfft, rfft
from ferrule.ir.buffer import read_guard
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.checked import checks_arguments

_MIN_WEIGHT: Final = 1e-11
"""A sum of squares of windows that divides nothing, as in PyTorch."""


@checks_arguments
def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
) -> Tensor:
    """The spectra of pieces of `n_fft` points, `hop_length` apart (a quarter of that), as pairs.

    A shape (…, points) gives (…, n_fft // 2 + 1 frequencies, pieces, 2); PyTorch's settings and
    values. Pieces are multiplied by the window, ones unless given, with zeros on both sides where
    `win_length` is less than `n_fft`. `center` puts the middle of piece t at point t * hop_length:
    the signal gets n_fft // 2 points more at both ends, as `pad_mode` says. `normalized` divides by
    the root of `n_fft`.

    >>> from ferrule import Tensor, signal
    >>> signal.stft(Tensor([1.0, 2.0, 3.0, 4.0]), n_fft=2, hop_length=2, center=False).tolist()
    [[[3.0, 0.0], [7.0, 0.0]], [[-1.0, 0.0], [-1.0, 0.0]]]
    """
    hop, weights = _settings(x, n_fft, hop_length, win_length, window, "stft")
    if not x.ndim:
        raise ShapeError("[stft] a signal has an axis of points, and shape () has none")
    if center:
        x = x.pad((n_fft // 2, n_fft // 2), mode=pad_mode)
    points = known_size(x.shape[-1], "stft")
    if points < n_fft:
        raise ShapeError(
            f"[stft] {points} points are less than a piece of n_fft {n_fft}; pad the signal, or "
            "make n_fft smaller"
        )
    spectra = rfft(x.unfold(-1, n_fft, hop) * weights, norm="ortho" if normalized else None)
    return spectra.transpose(-3, -2)


@checks_arguments
def istft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    length: int | None = None,
) -> Tensor:
    """The signal whose spectra, by `stft` with the same settings, are nearest to the given ones.

    With `length` the signal has so many points, of which those after the last piece are zero.

    Raises `ValueError` where the windows leave out a point; this reads them, which a captured
    function cannot do: there such a point is NaN.

    >>> from ferrule import Tensor, signal
    >>> spectra = signal.stft(Tensor([1.0, 2.0, 3.0, 4.0]), n_fft=2, hop_length=1)
    >>> signal.istft(spectra, n_fft=2, hop_length=1).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    hop, weights = _settings(x, n_fft, hop_length, win_length, window, "istft")
    if x.ndim < 3 or x.shape[-3] != n_fft // 2 + 1 or x.shape[-1] != 2:
        raise ShapeError(
            f"[istft] spectra of shape {x.shape} are not (…, {n_fft // 2 + 1}, pieces, 2), as those"
            f" of n_fft {n_fft} are"
        )
    pieces = irfft(x.transpose(-3, -2), n_fft, norm="ortho" if normalized else None) * weights
    count = known_size(x.shape[-2], "istft")
    squares = (weights * weights).expand(count, n_fft)
    start = n_fft // 2 if center else 0
    total = n_fft + hop * (count - 1)
    stop = total - start if length is None else min(start + length, total)
    if read_guard.get() is None:
        _check_cover(weights, hop, count, start, stop)
    signal = (_overlapped(pieces, hop) / _overlapped(squares, hop))[..., start:stop]
    missing = 0 if length is None else length - (stop - start)
    return signal.pad((0, missing)) if missing else signal


def _check_cover(weights: Tensor, hop: int, count: int, start: int, stop: int) -> None:
    """Raises `ValueError` for a point of the signal at which all windows are zero."""
    squares = weights.detach().float().numpy() ** 2
    steps = -(-squares.size // hop)
    parts = np.pad(squares, (0, steps * hop - squares.size)).reshape(steps, hop)
    cover = np.zeros((count + steps, hop))
    for step, part in enumerate(parts):
        cover[step : step + count] += part
    missed = np.flatnonzero(cover.reshape(-1)[start:stop] < _MIN_WEIGHT)
    if missed.size:
        raise ValueError(
            f"[istft] the windows are all zero at point {missed[0]} of the signal, which is not "
            f"known therefore; make hop_length {hop} smaller, take a window without zeros, or "
            "center=True where only the ends are missing"
        )


def _settings(
    x: Tensor, n_fft: int, hop: int | None, size: int | None, window: Tensor | None, what: str
) -> tuple[int, Tensor]:
    """The distance of pieces in points, and the window for a whole piece."""
    hop = n_fft // 4 if hop is None else hop
    if window is None:
        size = n_fft if size is None else size
        window = Tensor.ones(size, dtype=x.dtype, device=x.device)
    size = known_size(window.numel(), what) if size is None else size
    if n_fft < 1 or hop < 1 or not 0 < size <= n_fft:
        raise ShapeError(
            f"[{what}] pieces of n_fft {n_fft}, {hop} apart, with a window of {size}: pieces are at"
            " least 1 apart, and windows are from 1 to n_fft"
        )
    if window.shape != (size,):
        raise ShapeError(
            f"[{what}] a window of shape {window.shape} is not of win_length {size}; leave one of"
            " the two out"
        )
    before = (n_fft - size) // 2
    return hop, window.pad((before, n_fft - size - before)) if size < n_fft else window


def _overlapped(pieces: Tensor, hop: int) -> Tensor:
    """The sum of pieces (…, pieces, points), each `hop` after the one before it."""
    *batch, count, size = (known_size(axis, "istft") for axis in pieces.shape)
    total = size + hop * (count - 1)
    columns = pieces.reshape(-1, count, size).transpose(1, 2)
    return columns.fold((1, total), (1, size), stride=(1, hop)).reshape(*batch, total)
