"""Lanes: the steps of a batch by device, and the events by which lanes wait for each other.

Each device has a lane, with its steps in program order. A copy between devices is a step of the
device that it goes to. Lanes run at once, and a step that needs one of another lane waits for its
event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ferrule.base.records import dataclass
from ferrule.device.capture import JitItem
from ferrule.ir.dependence import Dependencies


@final
@dataclass(frozen=True)
class Segment:
    """Consecutive steps of a lane that wait only before the first, for which nobody waits before
    the last.
    """

    stop: int
    """The number of steps of the lane up to its end."""
    needs: tuple[int, ...]
    """The number of segments of each lane that have to be finished before it begins."""


@final
@dataclass(frozen=True)
class Lane:
    """The steps of one device, by their numbers in the batch."""

    device: str
    steps: tuple[int, ...]
    segments: tuple[Segment, ...]


def lanes_of(items: Sequence[JitItem]) -> list[Lane]:
    """The lanes of a batch, by device in the order of their first steps."""
    devices = list(dict.fromkeys([item.prg.device for item in items]))
    if len(devices) == 1:
        # One device needs no events, so no analysis of memory either.
        n = len(items)
        return [Lane(devices[0], tuple(range(n)), (Segment(n, (0,)),))]
    numbers = {device: number for number, device in enumerate(devices)}
    lane_of = [numbers[item.prg.device] for item in items]
    steps: list[list[int]] = [[] for _ in devices]
    place: list[int] = []
    for step, lane in enumerate(lane_of):
        place.append(len(steps[lane]))
        steps[lane].append(step)
    dependencies = Dependencies()
    # The steps of other lanes that each step waits for.
    waits = [
        [other for other in dependencies.add(item.accesses()) if lane_of[other] != lane_of[step]]
        for step, item in enumerate(items)
    ]
    awaited = {other for needed in waits for other in needed}
    # For each step, the segments of its lane that are finished when it is.
    finished = [0] * len(items)
    bounds: list[list[int]] = []
    for own in steps:
        stops = [
            i + 1
            for i, step in enumerate(own)
            if i + 1 == len(own) or step in awaited or waits[own[i + 1]]
        ]
        bounds.append(stops)
        for number, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
            for step in own[start:stop]:
                finished[step] = number + 1
    return [
        Lane(
            device, tuple(own), tuple(_segments(own, stops, waits, finished, lane_of, len(devices)))
        )
        for (device, own, stops) in zip(devices, steps, bounds, strict=True)
    ]


def _segments(
    own: Sequence[int],
    stops: Sequence[int],
    waits: Sequence[Sequence[int]],
    finished: Sequence[int],
    lane_of: Sequence[int],
    n_lanes: int,
) -> list[Segment]:
    segments = []
    for start, stop in zip([0, *stops], stops, strict=False):
        needs = [0] * n_lanes
        for other in waits[own[start]]:
            lane = lane_of[other]
            needs[lane] = max(needs[lane], finished[other])
        segments.append(Segment(stop, tuple(needs)))
    return segments
