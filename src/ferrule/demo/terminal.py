"""Drawing in a terminal: a progress line, a curve, small grey images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TextIO, final

import numpy as np
import numpy.typing as npt

_SHADES = " ░▒▓█"
_PLAIN_SHADES = " .+#@"


def _can_print(out: TextIO, text: str) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@final
class Progress:
    """One line that is rewritten in place on a terminal; elsewhere, some lines of several.

    `every` says how many updates make one line where lines cannot be rewritten.
    """

    def __init__(self, out: TextIO, every: int) -> None:
        self._out = out
        self._every = every
        self._live = out.isatty()
        self._updates = 0
        self._width = 0

    def update(self, text: str) -> None:
        """Shows `text` as the state of things now."""
        self._updates += 1
        if self._live:
            self._out.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif self._updates % self._every == 0:
            self._out.write(text + "\n")
        self._out.flush()

    def close(self) -> None:
        """Ends the line, so that what follows starts on one of its own."""
        if self._live and self._width:
            self._out.write("\n")
            self._width = 0
        self._out.flush()


def bar(done: int, total: int, width: int = 24) -> str:
    """How much is done, as a bar.

    >>> bar(1, 4, width=8)
    '[##------]'
    """
    filled = width * done // total
    return "[" + "#" * filled + "-" * (width - filled) + "]"


def curve(values: Sequence[float], width: int = 64, height: int = 8) -> list[str]:
    """Positive `values` as lines of text, on a logarithmic scale; a column averages its values."""
    groups = np.array_split(np.asarray(values), min(width, len(values)))
    means = [max(float(group.mean()), 1e-12) for group in groups]
    low, high = math.log(min(means)), math.log(max(means))
    scale = (height - 1) / (high - low) if high > low else 0.0
    levels = [round((math.log(mean) - low) * scale) for mean in means]
    lines = []
    for level in reversed(range(height)):
        label = math.exp(low + level / scale) if scale else means[0]
        dots = "".join("*" if at == level else " " for at in levels)
        lines.append(f"{label:9.4f} |{dots}".rstrip())
    return lines


def pictures(
    images: npt.NDArray[Any], captions: Sequence[str], out: TextIO, brightest: float
) -> list[str]:
    """Grey images, (count, height, width), side by side, each with its caption below."""
    shades = _SHADES if _can_print(out, _SHADES) else _PLAIN_SHADES
    steps = np.clip(images / brightest * (len(shades) - 1), 0, len(shades) - 1)
    levels = np.rint(steps).astype(int)
    width = 2 * images.shape[2]
    lines = []
    for row in range(images.shape[1]):
        drawn = ("".join(2 * shades[level] for level in image[row]) for image in levels)
        lines.append(" | ".join(drawn).rstrip())
    lines.append(" | ".join(caption.center(width) for caption in captions).rstrip())
    return lines
