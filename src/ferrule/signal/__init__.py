"""Signals: their spectra piece by piece, and `ferrule.signal.windows` that they are cut with."""

from ferrule.signal import windows
from ferrule.signal.spectrum import istft, stft

__all__ = ["istft", "stft", "windows"]
