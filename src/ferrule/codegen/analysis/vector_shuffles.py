"""Vector shuffles for lanes that are near one another in memory, though not adjacent in order.

Examples are every second element, each element twice, and elements of two rows by turns. If each
lane's element is a constant distance from the first, a few whole vectors have all of them. These
are loaded and shuffled: a load for each lane would be as many loads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import gcd, lcm

from ferrule.base.records import dataclass
from ferrule.ir.expr import (
    TRUE,
    Expr,
    ExprOp,
    all_of,
    conjuncts,
    const,
    range_,
    step_along,
    substitute,
    toposort,
)

MAX_VECTORS = 8
"""Vectors that are loaded for one. With 8 instead of 4, transposing rows of 8 takes two thirds of
the time (Zen 4, 2026-11-28)."""
MAX_PERIOD = 8
"""Vectors of results after which loads repeat. Set on 2026-11-22; not measured by itself."""


@dataclass(frozen=True)
class Near:
    """The elements that lanes load: lane i's is `distances[i]` elements from `base`.

    A distance is None if that lane loads nothing and is 0. `valid` is a mask that is the same for
    all lanes.
    """

    base: Expr
    valid: Expr
    distances: tuple[int | None, ...]


@dataclass(frozen=True)
class Vectors:
    """Loads of `width` elements at distances `starts`, and the place of each lane's element in
    them.

    A place is (number of the vector, lane of it), or None if the lane has no element.
    """

    width: int
    starts: tuple[int, ...]
    places: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Whole:
    """Vectors of scratch memory that begin with elements `firsts`, and the place of each lane's
    element.

    A place is (number of the vector, lane of it).
    """

    firsts: tuple[Expr, ...]
    places: tuple[tuple[int, int], ...]


def period(elements: Iterable[Expr], along: Expr, lanes: int) -> int:
    """The number of vectors along a range after which the loads repeat, shifted by some elements.

    It is 3 for `x[i // 3]` and 1 for `x[2 * i]`. It is at most 8, and 1 if more does not help.
    """
    far = [x for x in elements if not _is_near(x, along, lanes, 1)]
    count = 1
    for e in toposort([s for x in far for s in x.src[:2]]):
        if e.op in (ExprOp.IDIV, ExprOp.MOD) and e.src[1].is_const:
            step = e.src[0].linear()[0].get(along, 0) * lanes
            count = lcm(count, e.src[1].arg // gcd(e.src[1].arg, step))
    helps = count <= MAX_PERIOD and any(_is_near(x, along, lanes, count) for x in far)
    return count if helps else 1


def _is_near(element: Expr, along: Expr, lanes: int, vectors: int) -> bool:
    """True if a load is of a few vectors, for each of `vectors` vectors of lanes in turn."""
    outer, lane = range_("outer", along.size), range_("lane", lanes)
    for i in range(vectors):
        at = {along: outer * (lanes * vectors) + i * lanes + lane}
        index, valid = substitute(element.src[:2], at)
        if step_along(index, lane) in (0, 1):
            continue
        near = near_lanes(index, valid, lane)
        if near is None or few_vectors(near.distances) is None:
            return False
    return True


def near_lanes(index: Expr, valid: Expr, lane: Expr) -> Near | None:
    """The elements of a load as constant distances from one of them; None if some are not
    constant.
    """
    terms, _ = index.linear()
    varying = [e for e in terms if lane in e.ranges]
    by_lane = [e for e in conjuncts(valid) if lane in e.ranges]
    if not all(_is_of_lane_alone(e, lane) for e in (*varying, *by_lane)):
        return None
    distances: list[int | None] = []
    for i in range(int(lane.size.arg)):
        at = {lane: const(i)}
        loads = all(e is TRUE for e in substitute(by_lane, at))
        moved = substitute(varying, at)
        steps = [terms[e] * int(x.arg) for e, x in zip(varying, moved, strict=True)]
        distances.append(sum(steps) if loads else None)
    base = index - sum((e * terms[e] for e in varying), const(0))
    uniform = all_of(e for e in conjuncts(valid) if e not in by_lane)
    return Near(base, uniform, tuple(distances))


def _is_of_lane_alone(e: Expr, lane: Expr) -> bool:
    return e.ranges == {lane} and not any(
        x.op in (ExprOp.LOAD, ExprOp.READ, ExprOp.VARIABLE) for x in toposort([e])
    )


@cache
def few_vectors(distances: tuple[int | None, ...]) -> Vectors | None:
    """Vectors that contain the elements at some distances; None if that takes too many.

    None of them begins before the first element or ends after the last. The memory between two
    elements of a buffer can be loaded, the memory beyond them may not exist.
    """
    found = sorted({d for d in distances if d is not None})
    if len(found) < 2:
        return None
    width = 1
    while 2 * width <= min(len(distances), found[-1] - found[0] + 1):
        width *= 2
    starts: list[int] = []
    for d in found:
        if not starts or d >= starts[-1] + width:
            starts.append(min(d, found[-1] - width + 1))
    if len(starts) > min(MAX_VECTORS, len(found) - 1):
        return None
    return Vectors(width, tuple(starts), tuple([_place(d, starts, width) for d in distances]))


def whole_vectors(index: Expr, lane: Expr | None, elements: int) -> Whole | None:
    """The vectors of scratch memory that lanes read if they are not adjacent.

    None if there are many, or if a vector would cross the border of a stored one. Each begins where
    a stored vector begins: a load across two stored vectors would wait until both have reached the
    cache, and so would a load for each lane.
    """
    if lane is None or step_along(index, lane) in (0, 1):
        return None
    near = near_lanes(index, TRUE, lane)
    if near is None:
        return None
    distances = [d for d in near.distances if d is not None]
    width = len(distances)
    terms, first = near.base.linear()
    if any(n % width for n in (elements, *terms.values())):
        return None
    found = [divmod(first + d, width) for d in distances]
    numbers = sorted({n for n, _ in found})
    if len(numbers) > MAX_VECTORS:
        return None
    firsts = tuple([near.base + (n * width - first) for n in numbers])
    return Whole(firsts, tuple([(numbers.index(n), at) for n, at in found]))


def _place(distance: int | None, starts: list[int], width: int) -> tuple[int, int] | None:
    if distance is None:
        return None
    number = next(n for n, start in enumerate(starts) if start <= distance < start + width)
    return number, distance - starts[number]
