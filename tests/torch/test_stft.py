"""Short-time Fourier transforms against PyTorch's, to whose settings they are the same."""

from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, signal

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "settings",
    [
        {"n_fft": 16},
        {"n_fft": 15, "hop_length": 4, "normalized": True},
        {"n_fft": 16, "win_length": 9, "hop_length": 2, "pad_mode": "constant"},
        {"n_fft": 16, "hop_length": 5, "center": False},
    ],
    ids=str,
)
def test_there_and_back_is_the_same(settings: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 50))
    window = 0.1 + np.hanning(settings.get("win_length", settings["n_fft"]) + 2)[1:-1]
    ours = signal.stft(Tensor(x), **settings, window=Tensor(window))
    given = {**settings, "window": torch.tensor(window)}
    theirs = torch.stft(torch.tensor(x), **given, return_complex=True)
    np.testing.assert_allclose(ours.numpy(), torch.view_as_real(theirs).numpy(), atol=1e-10)
    settings.pop("pad_mode", None)
    given.pop("pad_mode", None)
    back = signal.istft(ours, **settings, window=Tensor(window)).numpy()
    np.testing.assert_allclose(back, torch.istft(theirs, **given).numpy(), atol=1e-10)
    longer = signal.istft(ours, **settings, window=Tensor(window), length=40).numpy()
    np.testing.assert_allclose(longer, torch.istft(theirs, **given, length=40).numpy(), atol=1e-10)


@pytest.mark.parametrize("hop", [1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("kind", ["hann", "ones"])
def test_windows_that_leave_out_points_are_refused_as_there(
    hop: int, center: bool, kind: str
) -> None:
    weights = torch.hann_window(8) if kind == "hann" else torch.ones(8)
    spectra = torch.ones(5, 6, dtype=torch.complex64)
    given: Any = {"hop_length": hop, "center": center}
    pairs = Tensor(torch.view_as_real(spectra).numpy())
    try:
        theirs = torch.istft(spectra, 8, window=weights, **given).numpy()
    except RuntimeError:
        with pytest.raises(ValueError, match="windows are all zero at point"):
            signal.istft(pairs, 8, window=Tensor(weights.numpy()), **given)
    else:
        found = signal.istft(pairs, 8, window=Tensor(weights.numpy()), **given).numpy()
        np.testing.assert_allclose(found, theirs, atol=1e-5)
