"""Short-time Fourier transforms against their definition, written out in NumPy."""

from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import Tensor, TinyJit, signal
from ferrule.ir.shape.view import ShapeError

pytestmark = pytest.mark.usefixtures("device")

Array = np.ndarray[Any, Any]
SETTINGS: list[dict[str, Any]] = [
    {"n_fft": 8},
    {"n_fft": 7, "hop_length": 3},
    {"n_fft": 8, "hop_length": 2, "win_length": 5},
    {"n_fft": 8, "center": False},
    {"n_fft": 6, "hop_length": 2, "normalized": True},
    {"n_fft": 8, "pad_mode": "constant"},
]


def points(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape)


def window_of(settings: dict[str, Any]) -> Array:
    size = settings.get("win_length", settings["n_fft"])
    return 0.1 + np.hanning(size + 2)[1:-1]


def defined(x: Array, settings: dict[str, Any]) -> Array:
    """The sum of w[k] x[t * hop + k] exp(-2 pi i f k / n_fft) over k, as pairs."""
    n_fft = settings["n_fft"]
    hop = settings.get("hop_length", n_fft // 4)
    window = np.zeros(n_fft)
    given = window_of(settings)
    start = (n_fft - given.size) // 2
    window[start : start + given.size] = given
    if settings.get("center", True):
        widths = [(0, 0)] * (x.ndim - 1) + [(n_fft // 2, n_fft // 2)]
        x = np.pad(x, widths, mode=settings.get("pad_mode", "reflect"))
    places = np.arange(n_fft)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(n_fft // 2 + 1), places) / n_fft)
    pieces = range((x.shape[-1] - n_fft) // hop + 1)
    spectra = np.stack([(x[..., t * hop + places] * window) @ waves.T for t in pieces], -1)
    if settings.get("normalized"):
        spectra = spectra / np.sqrt(n_fft)
    return np.stack([spectra.real, spectra.imag], -1)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_spectra_are_those_of_the_definition(settings: dict[str, Any]) -> None:
    x = points(2, 3, 20)
    found = signal.stft(Tensor(x), **settings, window=Tensor(window_of(settings)))
    np.testing.assert_allclose(found.numpy(), defined(x, settings), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_signals_come_back(settings: dict[str, Any]) -> None:
    x = points(2, 20)
    window = Tensor(window_of({**settings, "win_length": settings["n_fft"]}))
    settings = {name: value for name, value in settings.items() if name != "win_length"}
    spectra = signal.stft(Tensor(x), **settings, window=window)
    settings.pop("pad_mode", None)
    found = signal.istft(spectra, **settings, window=window).numpy()
    np.testing.assert_allclose(found, x[:, : found.shape[1]], rtol=1e-9, atol=1e-9)
    longer = signal.istft(spectra, **settings, window=window, length=23).numpy()
    assert longer.shape == (2, 23)
    whole = min(found.shape[1], 20)
    np.testing.assert_allclose(longer[:, :whole], found[:, :whole], rtol=1e-9, atol=1e-9)


def test_gradients() -> None:
    assert_gradients(lambda x: signal.stft(x, 4, window=Tensor([0.5, 1.0, 1.0, 0.5])), points(9))
    spectra = signal.stft(Tensor(points(9)), 4).numpy()
    assert_gradients(lambda s: signal.istft(s, 4), spectra)


def test_captured() -> None:
    run = TinyJit(lambda x: signal.istft(signal.stft(x, 4), 4).realize())
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal(12)
        np.testing.assert_allclose(run(Tensor(x).realize()).numpy(), x, rtol=1e-9, atol=1e-9)


def test_misuse_is_explained() -> None:
    x = Tensor(points(6))
    with pytest.raises(ShapeError, match=r"\[stft\] 6 points are less than a piece of n_fft 8"):
        signal.stft(x, 8, center=False)
    with pytest.raises(ShapeError, match=r"\[stft\] pieces of n_fft 4, 0 apart"):
        signal.stft(x, 4, hop_length=0)
    with pytest.raises(ShapeError, match=r"a window of shape \(3,\) is not of win_length 4"):
        signal.stft(x, 4, win_length=4, window=Tensor.ones(3))
    with pytest.raises(ShapeError, match=r"\[istft\] spectra of shape \(3, 5\) are not"):
        signal.istft(Tensor.ones(3, 5), 4)
    with pytest.raises(TypeError, match=r"\[stft\] x has to be a tensor, not list"):
        signal.stft([1.0], 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "settings", "point"),
    [
        (np.hanning(8), {"center": False}, 0),  # zero at its ends
        (np.ones(8), {"hop_length": 9, "center": False}, 8),
        (np.hanning(8), {"hop_length": 7}, 3),
    ],
)
def test_points_that_no_window_covers(window: Array, settings: dict[str, Any], point: int) -> None:
    """They were NaN, as 0 / 0 is."""
    spectra = Tensor.ones(5, 4, 2, dtype="float64")
    weights = Tensor(window)

    def back(spectra: Tensor) -> Tensor:
        return signal.istft(spectra, 8, window=weights, **settings)

    with pytest.raises(ValueError, match=f"windows are all zero at point {point} of the signal"):
        back(spectra)
    with pytest.raises(ValueError, match="take a window without zeros"):
        TinyJit(back)(spectra)
