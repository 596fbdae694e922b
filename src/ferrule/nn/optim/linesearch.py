"""Line search: a step along a direction that meets the strong Wolfe conditions.

Nocedal and Wright, "Numerical Optimization" (2006), algorithms 3.5 and 3.6, whose trial steps are
the minima of cubics (3.59). Everything here is numbers of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, isfinite, sqrt
from typing import Any, Final

from ferrule.base.records import dataclass

_ARMIJO: Final = 1e-4
"""The Armijo constant c1: the fraction of the first slope's decrease that a step must reach."""
_CURVATURE: Final = 0.9
"""The curvature constant c2: the fraction of the first slope's size that the last may have."""


@dataclass(frozen=True)
class Trial:
    """A step along the direction, the loss and the slope there, and the gradient for the caller."""

    step: float
    loss: float
    slope: float
    gradient: Any = None


def strong_wolfe(
    evaluate: Callable[[float], Trial], start: Trial, first: float, shortest: float, limit: int = 25
) -> Trial:
    """A step with a loss well below that of `start` and a slope that is nearly flat.

    At most `limit` evaluations; intervals below `shortest` are not searched further. Where none is
    found, it is the best step that was seen, which may be that of `start`.

    >>> from ferrule.nn.optim.linesearch import Trial, strong_wolfe
    >>> def parabola(step):
    ...     return Trial(step, (step - 3) ** 2, 2 * (step - 3))
    >>> round(strong_wolfe(parabola, parabola(0.0), first=100.0, shortest=1e-9).step, 6)
    3.0
    """
    before, step = start, first
    for left in range(limit - 1, -1, -1):
        now = evaluate(step)
        if not _meets_armijo(now, start) or (before is not start and now.loss >= before.loss):
            return _between(evaluate, start, before, now, shortest, left)
        if _is_flat(now, start):
            return now
        if now.slope >= 0:
            return _between(evaluate, start, now, before, shortest, left)
        width = step - before.step
        before, step = now, _within(_minimum(before, now), step + 0.01 * width, step + 9 * width)
    return before


def _between(
    evaluate: Callable[[float], Trial],
    start: Trial,
    low: Trial,
    high: Trial,
    shortest: float,
    left: int,
) -> Trial:
    """A step between two that bracket a good one; `low` is the better of the two."""
    for _ in range(left):
        width = high.step - low.step
        if abs(width) < shortest:
            break
        ends = sorted((low.step + 0.1 * width, high.step - 0.1 * width))
        now = evaluate(_within(_minimum(low, high), *ends))
        if not _meets_armijo(now, start) or now.loss >= low.loss:
            high = now
            continue
        if _is_flat(now, start):
            return now
        if now.slope * width >= 0:
            high = low
        low = now
    return low


def _meets_armijo(now: Trial, start: Trial) -> bool:
    """True if the loss meets the Armijo condition; False for NaN."""
    return now.loss <= start.loss + _ARMIJO * now.step * start.slope


def _is_flat(now: Trial, start: Trial) -> bool:
    return abs(now.slope) <= -_CURVATURE * start.slope


def _minimum(one: Trial, other: Trial) -> float:
    """The step at the minimum of the cubic with two losses and slopes; NaN if it has none."""
    width = other.step - one.step
    bend = one.slope + other.slope - 3 * (one.loss - other.loss) / -width
    square = bend * bend - one.slope * other.slope
    if not square >= 0:
        return float("nan")
    root = copysign(sqrt(square), width)
    scale = other.slope - one.slope + 2 * root
    return other.step - width * (other.slope + root - bend) / scale if scale else float("nan")


def _within(step: float, low: float, high: float) -> float:
    """The step, or the nearest end; the middle if there is no step."""
    return min(max(step, low), high) if isfinite(step) else (low + high) / 2
