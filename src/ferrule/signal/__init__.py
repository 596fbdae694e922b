"""Signals: short-time spectra (`stft`, `istft`), and the windows in `ferrule.signal.windows`."""

from ferrule.signal import windows
from ferrule.signal.spectrum import istft, stft

__all__ = ["istft", "stft", "windows"]
