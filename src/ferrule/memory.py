"""Which intermediate results may share memory: a plan from lifetimes to offsets in one arena.

A step is a number that grows as kernels run. Positions in a list give the smallest arena, and are
right for a list that runs in order, or for an executor that keeps all hazards between the memory of
kernels. Hazard levels leave kernels of one level free to run at once. Results, inputs, and memory
that was handed out stay out of a plan: it does not know how long they live.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, final

from ferrule.helpers import round_up
from ferrule.records import dataclass

ALIGNMENT: Final = 64
"""Offsets are multiples of this many bytes: a cache line, and the widest vector."""


@final
@dataclass(frozen=True)
class Lifetime:
    """`nbytes` of memory, first written at step `first`, last read or written at step `last`."""

    nbytes: int
    first: int
    last: int


@final
@dataclass(frozen=True)
class MemoryPlan:
    """Where each piece of memory starts in an arena of `nbytes`."""

    offsets: tuple[int, ...]
    nbytes: int


@final
class _Arena:
    """Free gaps, as (start, stop) in order; the arena grows at its end."""

    def __init__(self) -> None:
        self.gaps: list[tuple[int, int]] = []
        self.stop = 0

    def take(self, size: int) -> int:
        """The start of `size` free bytes: the tightest gap, else the end of the arena."""
        fitting = [(stop - start, start) for start, stop in self.gaps if stop - start >= size]
        if fitting:
            _, start = min(fitting)
            place = next(i for i, gap in enumerate(self.gaps) if gap[0] == start)
            _, stop = self.gaps.pop(place)
            if start + size < stop:
                self.gaps.insert(place, (start + size, stop))
            return start
        start = self.stop
        if self.gaps and self.gaps[-1][1] == self.stop:
            start = self.gaps.pop()[0]  # the last gap, and more
        self.stop = start + size
        return start

    def give_back(self, start: int, size: int) -> None:
        """Makes a gap, one with its neighbours."""
        insort(self.gaps, (start, start + size))
        place = self.gaps.index((start, start + size))
        first = place - 1 if place and self.gaps[place - 1][1] == start else place
        after = place + 1
        if after < len(self.gaps) and self.gaps[after][0] == start + size:
            after += 1
        joined = (self.gaps[first][0], self.gaps[after - 1][1])
        self.gaps[first:after] = [joined]


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Offsets such that pieces which share bytes never live at the same step.

    >>> plan_memory([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(32, 2, 3)])
    MemoryPlan(offsets=(0, 64, 0), nbytes=128)
    """
    arena = _Arena()
    offsets = [0] * len(lifetimes)
    alive: list[tuple[int, int]] = []  # a heap of (last step, number)
    # Large pieces first, so that small ones fill the gaps that they leave.
    order = sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i].first, -lifetimes[i].nbytes))
    for number in order:
        piece = lifetimes[number]
        while alive and alive[0][0] < piece.first:
            _, other = heappop(alive)
            arena.give_back(offsets[other], round_up(lifetimes[other].nbytes, ALIGNMENT))
        offsets[number] = arena.take(round_up(piece.nbytes, ALIGNMENT))
        heappush(alive, (piece.last, number))
    return MemoryPlan(tuple(offsets), arena.stop)
