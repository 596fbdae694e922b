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
