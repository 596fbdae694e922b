"""Schedules of chains of contractions: the result of one stays in the cache until the next uses it.

An example is attention. Its root nest has stages in its outer loops, such as the scores. For a
block of rows, the first contraction fills a block of scratch memory; maxima, powers and sums go
over it in place; the last contraction reads it. The rows become lanes. So reduces along the other
axis of a block need no step across lanes, and the last contraction finds the rows of its tile side
by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from ferrule.base.records import dataclass
from ferrule.codegen.kernel import Nest, can_overwrite, reads
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.codegen.primitives.nests import takes_from
from ferrule.codegen.schedules.copies import unroll_terms
from ferrule.codegen.schedules.tile import best_tile
from ferrule.ir.expr import Expr

# Set between 2026-11-21 and 23; not measured by themselves.
BLOCK_OVERHEAD = 0.5
"""The fixed part of a block's time, in units of the time of one vector of rows."""


def has_stages(plan: Plan, name: str) -> bool:
    """True if stages hang in a root nest."""
    return any(_is_stage(plan, n) for n in plan.below(name))


def _is_stage(plan: Plan, name: str) -> bool:
    return any(c.monoid is None and c.store is None for c in plan.nest(name).computes)


def schedule_chain(plan: Plan, name: str) -> bool:
    """Schedule a root nest with stages; if they are no chain, its loops stay as they are."""
    done = plan.attempt(_schedule_blocks, name)
    if not done and not any(n.at == (name, 0) for n in plan.kernel.nests):
        plan.attempt(_share_out, name)
    return True


def _schedule_blocks(plan: Plan, name: str) -> bool:
    chain = _Chain.of(plan, name)
    if chain is None:
        return False
    chain.apply()
    return True


def _share_out(plan: Plan, name: str) -> bool:
    plan.do("parallel", name, plan.nest(name).loops[0].range.name)
    return True


def operands(nest: Nest) -> list[Expr]:
    """The indexed operands of a nest: elements of buffers and of blocks."""
    values = [c.value for c in nest.computes]
    found = [e for value in values for e in loads(value)]
    return found + [e for e in nest.reads if e.src]


@dataclass
class _Chain:
    """A root nest with blocks at one depth, and the contraction that uses the last one."""

    plan: Plan
    name: str
    steps: list[str]
    """The nests that hang in the outer loops, in order."""
    sums: list[str]
    """The nests that add a block's part of a sum to memory."""
    last: str
    depth: int
    row: Expr
    """The outer loop whose iterations become the rows of the blocks."""

    @staticmethod
    def of(plan: Plan, name: str) -> _Chain | None:
        """The chain of a root nest; None if it is none."""
        root = plan.nest(name)
        *inside, last = _children(plan, name)
        depths = {at[1] for n in inside if (at := plan.nest(n).at)}
        if len(depths) != 1 or plan.nest(last).at != (name, len(root.loops)):
            return None
        (depth,) = depths
        sums = [n for n in inside if plan.nest(n).computes[0].store is not None]
        steps = [n for n in inside if n not in sums]
        contractions = [last, *(inner for n in steps for inner in _children(plan, n))]
        if depth == len(root.loops):
            return None
        rows = [
            loop.range
            for loop in root.loops[:depth]
            if all(_is_used_again(plan.nest(n), loop.range) for n in contractions)
        ]
        simple = all(len(plan.nest(n).loops) == 1 for n in steps)
        if not rows or not simple or any(_children(plan, n) for n in contractions):
            return None
        row = max(rows, key=lambda r: r.size.max)
        if any(row in c.store.index.ranges for n in sums for c in plan.nest(n).computes if c.store):
            return None
        return _Chain(plan, name, steps, sums, last, depth, row)

    def apply(self) -> None:
        plan, r = self.plan, self.row
        loops = plan.loops(self.name)
        outer = [x for x in loops[: self.depth] if x is not r]
        plan.do("reorder", self.name, (*outer, r, *loops[self.depth :]))
        _, row = plan.split(self.name, r, self._rows(r.size), "mask")
        for n in [*self.steps, *self.sums]:
            plan.do("compute_at", n, self.depth, True)
        self._overwrite()
        self._combine_at_once()
        for n in self.steps:
            self._step(n)
        for n in self.sums:
            self._add_up(n)
        self._finish(row)
        plan.share(self.name, self.depth - 1 if self.sums else self.depth)

    def _rows(self, size: Expr) -> int:
        """The number of rows of the blocks, as whole vectors that fit half of the cache.

        Of the sizes that fit it is the one that leaves the least of the blocks empty, on the
        average of all sizes there may be.
        """
        stages = [c for n in self.steps for c in self.plan.nest(n).computes if c.monoid is None]
        row = max(c.elements * c.value.dtype.itemsize for c in stages)
        lanes = self.plan.target.lanes(max(c.value.dtype.itemsize for c in stages))
        others = prod(
            loop.range.size.max for loop in self.plan.nest(self.name).loops[: self.depth - 1]
        )
        vectors = self.plan.sums_at_once // 2
        while vectors > 1 and (
            vectors * lanes * row > self.plan.target.l2_bytes // 2
            or others * -(-size.max // (vectors * lanes)) < self.plan.enough_chunks
        ):
            vectors -= 1
        whole = range(-(-size.min // lanes), -(-size.max // lanes) + 1)  # numbers of vectors in all

        def time(n: int) -> float:
            return sum(-(-vectors // n) for vectors in whole) * (n + BLOCK_OVERHEAD)

        return lanes * min(range(vectors, 0, -1), key=time)

    def _overwrite(self) -> None:
        """Let each block take the memory of the block that it is made from, if that is not read
        again.
        """
        plan = self.plan
        for n in self.steps:
            for c in plan.nest(n).computes:
                if c.monoid is not None:
                    continue
                found = (e.arg for e in reads([c.value]) if e.src)
                old = next((x for x in found if can_overwrite(plan.kernel, c.name, x)), None)
                if old is not None:
                    plan.do("overwrite", c.name, old)

    def _combine_at_once(self) -> None:
        """Compute a sum over a block in the pass that computes the block."""
        plan = self.plan
        for producer, reader in pairwise(tuple(self.steps)):
            if takes_from(plan.kernel, plan.nest(reader), plan.nest(producer)):
                plan.do("merge", producer, reader)
                self.steps.remove(producer)

    def _step(self, n: str) -> None:
        """Schedule one pass over a block: its last loop, over the rows, becomes lanes."""
        plan = self.plan
        inner = _children(plan, n)
        if inner:
            m, v = [loop.range for loop in plan.nest(n).loops]
            for reduce in inner:
                self._pack(reduce, n, v)
            _tile(plan, n, inner, v, m, ())
            return
        plan.vectors(n, plan.loops(n)[-1], _lanes(plan, n))

    def _add_up(self, n: str) -> None:
        """Schedule the part that a block adds to a sum in memory: a contraction over the rows of
        the block.
        """
        plan = self.plan
        *along, m, v, k = [loop.range for loop in plan.nest(n).loops]
        plan.do("accumulate", n, k)
        plan.limit(n, _tile(plan, n, _children(plan, n), v, m, along, "mask"))

    def _pack(self, n: str, at: str, lane: Expr) -> None:
        """Copy the loads of a contraction along the rows of a block, with rows as the last axis."""
        plan = self.plan
        nest = plan.nest(n)
        own = {loop.range for loop in nest.loops} | {lane}
        for place, e in enumerate(loads(nest.computes[0].value)):
            if lane not in e.ranges or step_of(e.src[0], lane) == 1:
                continue
            order = [r for r in nest.loop_ranges if r in e.ranges]
            if not all(r in own for r in e.ranges - self._opened()) or not order:
                continue
            same = [x for x in loads(plan.nest(n).computes[0].value) if x.arg == e.arg]
            name = f"{n}.pack{e.arg}.{place}"
            plan.do("stage", n, e.arg, at, 0, (*order, lane), name, same.index(e))
            _transposed(plan, name, _lanes(plan, name))

    def _opened(self) -> set[Expr]:
        return {loop.range for loop in self.plan.nest(self.name).loops[: self.depth]}

    def _finish(self, row: Expr) -> None:
        """Tile the last contraction: rows of the block, lanes along the other loops."""
        plan = self.plan
        loops = plan.loops(self.name)
        *others, v = [r for r in loops[self.depth :] if r is not row]
        _tile(plan, self.name, [self.last], v, row, (*loops[: self.depth], *others))


def _children(plan: Plan, name: str) -> list[str]:
    """The nests that hang in a nest, in order."""
    return [n.name for n in plan.kernel.nests if n.at is not None and n.at[0] == name]


def _lanes(plan: Plan, name: str) -> int:
    """The number of lanes of a nest: as its widest dtype allows, at most as many as of float32."""
    return plan.target.lanes(max(4, *(c.value.dtype.itemsize for c in plan.nest(name).computes)))


def _is_used_again(nest: Nest, r: Expr) -> bool:
    """True if some operand of a contraction is the same for all iterations of a loop."""
    return any(r not in e.ranges for e in operands(nest))


def _tile(
    plan: Plan,
    name: str,
    reduces: Sequence[str],
    v: Expr,
    m: Expr,
    outer: Sequence[Expr],
    tail: str = "clamp",
) -> Expr:
    """Give the reduces in a nest one register tile, one after the other: rows `m`, lanes `v`.

    Returns the loop over tiles of rows.
    """
    itemsize = max(plan.nest(n).computes[0].value.dtype.itemsize for n in reduces)
    tile = best_tile(plan.target, itemsize, m.size.max, v.size.max)
    panels, panel = plan.split(name, v, tile.columns, "mask")
    inner = plan.vectors(name, panel, tile.lanes)
    tiles, row = plan.split(name, m, tile.rows, tail)
    plan.do("unroll", name, row)
    first = (*outer, panels, tiles)
    plan.do("reorder", name, (*first, row, *inner))
    for n in reduces:
        plan.do("compute_at", n, len(first))
        nest = plan.nest(n)
        k = [loop for loop in nest.loops if loop.range not in nest.computes[0].ranges][-1]
        if k.end is not None:
            continue
        unroll_terms(plan, n, k.range)
        plan.limit(n, plan.loops(n)[0])
    return tiles


def _transposed(plan: Plan, name: str, lanes: int) -> None:
    """Fill a copy by squares if the source is contiguous along another axis than the
    copy's last.
    """
    *axes, lane = [loop.range for loop in plan.nest(name).loops]
    e = loads(plan.nest(name).computes[0].value)[0]
    along = next((r for r in axes if step_of(e.src[0], r) == 1), None)
    if along is None or along.size.max < lanes or lane.size.arg % lanes:
        return
    exact = along.size.is_const and along.size.arg % lanes == 0
    _, side = plan.split(name, along, lanes, "mask" if exact else "peel")
    _, inside = plan.split(name, lane, lanes, "mask")
    plan.transpose(name, side, inside)
