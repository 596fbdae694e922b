"""Memory plans: nothing that lives at the same step shares bytes, and what can be reused is."""

import random

import pytest

from ferrule.device.memory_planner import ALIGNMENT, LiveRange, plan_arenas, plan_memory
from ferrule.dtype import dtypes
from ferrule.fusion.slots import Slot


def assert_disjoint(ranges: list[LiveRange]) -> int:
    plan = plan_memory(ranges)
    for offset, piece in zip(plan.offsets, ranges, strict=True):
        assert offset % ALIGNMENT == 0
        assert offset + piece.nbytes <= plan.nbytes
    for i, a in enumerate(ranges):
        for j, b in enumerate(ranges[:i]):
            if a.first <= b.last and b.first <= a.last:
                start, other = plan.offsets[i], plan.offsets[j]
                assert start + a.nbytes <= other or other + b.nbytes <= start
    return plan.nbytes


def peak(ranges: list[LiveRange]) -> int:
    steps = range(max(piece.last for piece in ranges) + 1)
    return max(
        sum(-(-p.nbytes // ALIGNMENT) * ALIGNMENT for p in ranges if p.first <= step <= p.last)
        for step in steps
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_ranges_never_overlap(seed: int) -> None:
    draw = random.Random(seed)
    ranges = []
    for _ in range(draw.randint(1, 60)):
        first = draw.randint(0, 30)
        ranges.append(LiveRange(draw.randint(1, 1000), first, first + draw.randint(0, 8)))
    assert assert_disjoint(ranges) <= 2 * peak(ranges)


def test_a_chain_of_equal_pieces_needs_two() -> None:
    chain = [LiveRange(4096, step, step + 1) for step in range(50)]
    assert assert_disjoint(chain) == 2 * 4096


def test_neighbouring_gaps_become_one() -> None:
    pieces = [LiveRange(64, 0, 1), LiveRange(64, 0, 2), LiveRange(64, 0, 1), LiveRange(192, 3, 3)]
    assert assert_disjoint(pieces) == 192


def test_nothing_to_plan() -> None:
    assert plan_memory([]).nbytes == 0


def test_many_pieces_are_planned_quickly() -> None:
    chain = [LiveRange(64 + step % 7, step, step + 3) for step in range(20000)]
    assert plan_memory(chain).nbytes <= 5 * 128


def test_each_device_has_an_arena() -> None:
    a, b, c = [Slot("CPU", dtypes.uint8, 64) for _ in range(3)]
    other = Slot("NUMPY", dtypes.float32, 32)
    places, arenas = plan_arenas([[a], [b, a, a], [other, b], [c]])
    assert places == {a: (0, 0), b: (0, 64), c: (0, 0), other: (1, 0)}
    assert arenas == (("CPU", 128), ("NUMPY", 128))
    assert plan_arenas([[], []]) == ({}, ())


def test_what_is_used_again_is_live_in_between() -> None:
    a, b = [Slot("CPU", dtypes.uint8, 64) for _ in range(2)]
    places, _ = plan_arenas([[a], [b], [a]])
    assert len(set(places.values())) == 2
