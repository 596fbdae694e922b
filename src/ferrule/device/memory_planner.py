"""Which values may share memory: a plan from live ranges to offsets in one arena on each device.

A value is live from the first to the last step that uses it, in the order of the list. That is
right for who runs the list in order, and for who runs steps at once unless their bytes make one
wait for the other (`ir/dependence.py`). Schedules plan their intermediate results, and captures
what is gone when they end. Results, inputs, and memory that was handed out stay out of a plan: it
does not know how long they are live.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol, TypeVar, final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass

ALIGNMENT: Final = 64
"""Offsets are multiples of this many bytes: a cache line, and the widest vector."""


@final
@dataclass(frozen=True)
class LiveRange:
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


def plan_memory(ranges: Sequence[LiveRange]) -> MemoryPlan:
    """Offsets such that pieces which share bytes never live at the same step.

    >>> plan_memory([LiveRange(64, 0, 1), LiveRange(64, 1, 2), LiveRange(32, 2, 3)])
    MemoryPlan(offsets=(0, 64, 0), nbytes=128)
    """
    arena = _Arena()
    offsets = [0] * len(ranges)
    alive: list[tuple[int, int]] = []  # a heap of (last step, number)
    # Large pieces first, so that small ones fill the gaps that they leave.
    order = sorted(range(len(ranges)), key=lambda i: (ranges[i].first, -ranges[i].nbytes))
    for number in order:
        piece = ranges[number]
        while alive and alive[0][0] < piece.first:
            _, other = heappop(alive)
            arena.give_back(offsets[other], round_up(ranges[other].nbytes, ALIGNMENT))
        offsets[number] = arena.take(round_up(piece.nbytes, ALIGNMENT))
        heappush(alive, (piece.last, number))
    return MemoryPlan(tuple(offsets), arena.stop)


class Piece(Protocol):
    """Memory to be planned, told apart by equality."""

    @property
    def device(self) -> str:
        """The device that it is of."""

    @property
    def nbytes(self) -> int:
        """How large it is."""


P = TypeVar("P", bound=Piece)


def plan_arenas(
    steps: Iterable[Iterable[P]],
) -> tuple[dict[P, tuple[int, int]], tuple[tuple[str, int], ...]]:
    """Arenas for the pieces that steps use, one on each device.

    Gives for each piece the number of its arena and its first byte there, and for each arena the
    device and the size in bytes.
    """
    first: dict[P, int] = {}
    last: dict[P, int] = {}
    for step, used in enumerate(steps):
        for piece in used:
            first.setdefault(piece, step)
            last[piece] = step
    places: dict[P, tuple[int, int]] = {}
    arenas: list[tuple[str, int]] = []
    for device in dict.fromkeys([piece.device for piece in first]):
        pieces = [piece for piece in first if piece.device == device]
        plan = plan_memory([LiveRange(p.nbytes, first[p], last[p]) for p in pieces])
        for piece, offset in zip(pieces, plan.offsets, strict=True):
            places[piece] = len(arenas), offset
        arenas.append((device, plan.nbytes))
    return places, tuple(arenas)
