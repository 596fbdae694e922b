"""Loop partitioning: segments of a loop in which conditions are known.

A concatenation, or a padded border, chooses each element by conditions on indices. Along a loop
these change a few times. Between the changes no condition is evaluated, and no load has an empty
mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.loop_bounds import least_and_most
from ferrule.codegen.kernel import Kernel, Loop, Nest, Segment
from ferrule.codegen.policy import MAX_SEGMENTS
from ferrule.ir.expr import INDEX, Expr, ExprOp, alu, conjuncts, const, less, minimum


@dataclass(frozen=True)
class _Change:
    """A condition that is `before` in the iterations up to `(first + place) / step`, and its
    opposite from `(then + place) / step` on, rounded up.
    """

    condition: Expr
    before: bool
    first: int
    then: int
    place: Expr
    step: int

    def known(self, start: float, end: float) -> bool | None:
        """The value of the condition between two such numbers, or None if it changes there."""
        if end <= self.first:
            return self.before
        return None if start < self.then else not self.before


def segments_of(kernel: Kernel, nest: Nest, depth: int) -> tuple[Segment, ...]:
    """The segments of a loop in which conditions of its nest, and of nests inside it, are known.

    Empty if loops are already peeled by all of these conditions, or if they are very many.
    """
    loop = nest.loops[depth]
    path = [o.range for name, d, o in kernel.path(nest) if name != nest.name or d < depth]
    inside = [n for n in kernel.nests if n is nest or _hangs_in(kernel, n, loop)]
    nodes = [e for n in inside for e in n.nodes]
    changes = _in_one_order(_changes(nodes, loop.range, frozenset(path)))
    peeled = [c for o in nest.loops if o.peel is not None for c in conjuncts(o.peel)]
    if all(c.condition in peeled for c in changes):
        return ()
    segments = list(_segments_between(changes, loop.range.size))
    while segments and not _stores(nest, dict(segments[-1].known)):
        segments.pop()
    # Iterations that are not run need no segment: those before the start, or after the end.
    first = next((i for i, s in enumerate(segments, 1) if s.end is loop.start), 0)
    last = next((i for i, s in enumerate(segments, 1) if s.end is loop.end), len(segments))
    segments = segments[first:last]
    return tuple(segments) if 1 < len(segments) <= MAX_SEGMENTS else ()


def _hangs_in(kernel: Kernel, nest: Nest, loop: Loop) -> bool:
    """True if a nest is computed in each iteration of a loop, for that iteration."""
    ahead = any(c.pipeline_depth > 1 for c in nest.computes)
    return not ahead and any(o is loop for _, _, o in kernel.path(nest))


def _changes(nodes: Iterable[Expr], r: Expr, opened: frozenset[Expr]) -> Iterator[_Change]:
    for e in nodes:
        if e.op is not ExprOp.CMPLT or e.src[0].dtype is not INDEX or r not in e.ranges:
            continue
        found = least_and_most(_undivided(e), r, opened)
        if found is None or found[0] == 0:
            continue
        step, least, most = found
        # step * r + rest < 0, so r < -rest / step or r > rest / -step
        ends = (-most, -least) if step > 0 else (least + 1, most + 1)
        first, then = (end.linear()[1] for end in ends)
        place, size = ends[0] - first, abs(step)
        if place.is_const:  # by iterations, so that changes are in order whatever their steps
            first, then, size = -(-first // size), -(-then // size), 1
        yield _Change(e, step > 0, first, then, place, size)


def _undivided(condition: Expr) -> Expr:
    """A comparison of a quotient as one of its dividend, so that it is linear in a fused loop.

    `x // n < k` is `x < k * n`, and `-(x // n) < k` is `-x < (k - 1) * n + 1`.
    """
    value, limit = condition.src
    terms, offset = value.linear()
    if len(terms) != 1 or not limit.is_const:
        return condition
    ((quotient, sign),) = terms.items()
    if quotient.op is not ExprOp.IDIV or sign not in (1, -1):
        return condition
    (x, n), k = quotient.src, limit - offset
    if not n.is_const or n.min <= 0:
        return condition
    return _undivided(less(x, k * n) if sign > 0 else less(-x, (k - 1) * n + 1))


def _in_one_order(changes: Iterable[_Change]) -> list[_Change]:
    """The changes that come in the same order wherever the first of them is."""
    found = list(changes)
    return [c for c in found if (c.place, c.step) == (found[0].place, found[0].step)]


def _segments_between(changes: Sequence[_Change], size: Expr) -> Iterator[Segment]:
    """The segments between all changes; adjacent segments in which the same is known are one."""
    numbers = sorted({n for c in changes for n in (c.first, c.then)})
    segment: Segment | None = None
    before = const(0)
    for start, number in pairwise([-inf, *numbers, inf]):
        end = size if number == inf else _iteration(changes[0], int(number), size)
        if end is before:
            continue
        held = [(c.condition, c.known(start, number)) for c in changes]
        known = tuple((condition, holds) for condition, holds in held if holds is not None)
        if segment is not None and segment.known != known:
            yield segment
        segment, before = Segment(end, known), end
    if segment is not None:
        yield segment


def _iteration(change: _Change, number: int, size: Expr) -> Expr:
    """The first iteration from such a number on, within the bounds of the loop."""
    found = (change.place + (number + change.step - 1)) // change.step
    return minimum(_at_least_0(found), size)


def _at_least_0(x: Expr) -> Expr:
    if x.min >= 0:
        return x
    return const(0) if x.max <= 0 else alu(ExprOp.MAX, x, const(0))


def _stores(nest: Nest, known: dict[Expr, bool]) -> bool:
    """True if anything may be stored where some conditions are known."""
    valids = [conjuncts(c.store.valid) for c in nest.computes if c.store is not None]
    return any(all(known.get(part, True) for part in valid) for valid in valids) or not valids
