"""Signals: `ferrule.signal.windows` has the windows that they are cut with."""

from ferrule.signal import windows

__all__ = ["windows"]
