"""Memory plans: nothing that lives at the same step shares bytes, and what can be reused is."""

import random

import pytest

from ferrule.memory import ALIGNMENT, Lifetime, plan_memory


def assert_disjoint(lifetimes: list[Lifetime]) -> int:
    plan = plan_memory(lifetimes)
    for offset, piece in zip(plan.offsets, lifetimes, strict=True):
        assert offset % ALIGNMENT == 0
        assert offset + piece.nbytes <= plan.nbytes
    for i, a in enumerate(lifetimes):
        for j, b in enumerate(lifetimes[:i]):
            if a.first <= b.last and b.first <= a.last:
                start, other = plan.offsets[i], plan.offsets[j]
                assert start + a.nbytes <= other or other + b.nbytes <= start
    return plan.nbytes


def peak(lifetimes: list[Lifetime]) -> int:
    steps = range(max(piece.last for piece in lifetimes) + 1)
    return max(
        sum(-(-p.nbytes // ALIGNMENT) * ALIGNMENT for p in lifetimes if p.first <= step <= p.last)
        for step in steps
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_lifetimes_never_overlap(seed: int) -> None:
    draw = random.Random(seed)
    lifetimes = []
    for _ in range(draw.randint(1, 60)):
        first = draw.randint(0, 30)
        lifetimes.append(Lifetime(draw.randint(1, 1000), first, first + draw.randint(0, 8)))
    assert assert_disjoint(lifetimes) <= 2 * peak(lifetimes)


def test_a_chain_of_equal_pieces_needs_two() -> None:
    chain = [Lifetime(4096, step, step + 1) for step in range(50)]
    assert assert_disjoint(chain) == 2 * 4096


def test_neighbouring_gaps_become_one() -> None:
    pieces = [Lifetime(64, 0, 1), Lifetime(64, 0, 2), Lifetime(64, 0, 1), Lifetime(192, 3, 3)]
    assert assert_disjoint(pieces) == 192


def test_nothing_to_plan() -> None:
    assert plan_memory([]).nbytes == 0


def test_many_pieces_are_planned_quickly() -> None:
    chain = [Lifetime(64 + step % 7, step, step + 3) for step in range(20000)]
    assert plan_memory(chain).nbytes <= 5 * 128
