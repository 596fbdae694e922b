"""Copies of the operands of a contraction, in the order in which its tiles read them.

They are common to both forms in `codegen/schedules/cpu/blocks.py`: which loads are the operands,
how they are copied, and what is prefetched meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.window import Window, distance, overlap
from ferrule.codegen.kernel import Kind
from ferrule.codegen.plan import MIN_LANES, PREFETCH_BYTES, Plan, loads, step_of
from ferrule.codegen.schedules.tile import Tile
from ferrule.ir.expr import Expr, as_expr
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES

UNROLL_FACTORS = (4, 7, 6, 5, 3)
"""Terms at a time: the first factor that leaves no tail. 14 terms by 7 take a fifth less time than
by 4 (Zen 4, 2026-11-21)."""


@dataclass(frozen=True)
class Operands:
    """The two loads of a contraction, and the loops that each varies with."""

    rows: Expr
    """The load of one element at a time, for all lanes."""
    lanes: Expr
    """The load of vectors."""
    shared: tuple[Expr, ...]
    """The root's ranges that both loads vary with: a batch, or groups."""
    row_ranges: tuple[Expr, ...]
    lane_ranges: tuple[Expr, ...]
    terms: tuple[Expr, ...]
    """The ranges that are summed over."""

    def window(self, r: Expr) -> list[Expr]:
        """A range with the ranges that the rows' operand uses only by one sum with it."""
        others = self.terms if r in self.row_ranges else self.row_ranges
        return [r, *(o for o in others if overlap(self.rows, r, o))]


class Copies:
    """The common part of all forms of contractions: `plan` holds the kernel."""

    def __init__(self, plan: Plan, name: str, reduce: str, operands: Operands) -> None:
        self.plan = plan
        self.name = name
        self.reduce = reduce
        self.operands = operands
        index = operands.lanes.src[0]
        self.v = max(operands.lane_ranges, key=lambda r: (r.size.arg, -distance(index, r)))
        self.windows = [operands.window(r) for r in operands.row_ranges]
        self.itemsize = max(plan.nest(reduce).computes[0].value.dtype.itemsize, 4)
        self.names: dict[Expr, str] = {}
        """The nests that copy the operands."""

    def copied_bytes(
        self, element: Expr, ranges: Iterable[Expr], part: tuple[Expr, int] | None = None
    ) -> int:
        """The bytes of a copy of an operand over some ranges.

        `part` may be one of the ranges with a smaller number of its values.
        """
        inside = [r for r in ranges if r in element.ranges]
        sizes = {r: int(r.size.arg) for r in inside} | dict([part] if part else [])
        total = int(element.dtype.itemsize)
        for window in self.windows if element is self.operands.rows else []:
            if len(window) > 1 and all(r in inside for r in window):
                found = Window.of(element, window)
                assert found is not None
                left_out = ((r.size.arg - sizes[r]) * abs(found.weights[r]) for r in window)
                total *= as_expr(found.extent).max - sum(left_out)
                inside = [r for r in inside if r not in window]
        return total * prod(sizes[r] for r in inside)

    def split_rows(self, rows: Expr, tile: Tile) -> tuple[list[Expr], Expr]:
        """The loop over tiles, if there is one, and the rows of a tile, as copies."""
        plan = self.plan
        if rows.size.max <= tile.rows:
            plan.do("unroll", self.reduce, rows)
            return [], rows
        tiles, row = plan.split(self.reduce, rows, tile.rows, "mask")
        plan.do("unroll", self.reduce, row)
        return [tiles], row

    def copy(self, which: Expr, at: str, depth: int, last: Sequence[Expr]) -> None:
        """Stage an operand.

        Its axes are those of the source, windows as one, but `last` comes last (innermost at the
        end). Rows are loaded one element at a time, so they may stay in the order of memory and
        need no transposition.
        """
        plan = self.plan
        nest = plan.nest(self.reduce)
        element = next(e for e in loads(nest.computes[0].value) if e.arg == which.arg)
        path = plan.kernel.path(nest)
        start = sum(1 for n, d, _ in path if (n == at and d < depth) or n not in (at, self.reduce))
        groups: dict[Expr, list[Expr]] = {}
        windows = self.windows if which is self.operands.rows else self._phased_taps()
        joined = {r: window[0] for window in windows for r in window}
        for _, _, loop in path[start:]:
            if loop.range in element.ranges:
                axis = plan.kernel.origin(loop.range)
                groups.setdefault(joined.get(axis, axis), []).append(loop.range)
        keys = sorted(groups, key=lambda k: -max(distance(element.src[0], r) for r in groups[k]))
        nearest = min(distance(element.src[0], r) for r in groups[keys[-1]])
        as_it_lies = which is self.operands.rows and nearest == 1
        if not as_it_lies:
            keys = [k for k in keys if k not in last] + [k for k in last if k in groups]
        self.names[which] = name = plan.kernel.free_name(f"{self.reduce}.copy{which.arg}")
        order = [groups[key] for key in keys]
        plan.stage(self.reduce, element, at, depth, order, name)
        for d in reversed(range(len(order) - (1 if as_it_lies else 2))):
            plan.try_fuse(name, d)
        self._vectorize_copy(name)

    def _phased_taps(self) -> list[list[Expr]]:
        """The taps of a strided window with the phases that are between them in memory: one axis
        each.
        """
        lanes = self.operands.lanes
        phases = [r for r in self.operands.lane_ranges if r is not self.v]
        pairs = [[t, p] for t in self.operands.terms for p in phases]
        steps = [[distance(lanes.src[0], r) for r in pair] for pair in pairs]
        return [
            [t, p]
            for (t, p), (outer, inner) in zip(pairs, steps, strict=True)
            if outer == inner * p.size.arg and Window.of(lanes, [t, p]) is not None
        ]

    def read_in_order(self, which: Expr) -> None:
        """Put the loops over a copy's squares in the order of its source.

        More lines at a time than the first cache has ways would be read again.
        """
        nest = self.plan.nest(self.names[which])
        if nest.loops[-2:][0].kind is not Kind.TRANSPOSE:
            return
        source = nest.computes[0].value.src[0]
        outer = [loop.range for loop in nest.loops[:-2]]
        ordered = sorted(outer, key=lambda r: -distance(source, r))
        if ordered != outer:
            self.plan.do("reorder", nest.name, (*ordered, *nest.loop_ranges[-2:]))

    def prefetch_next(self, which: Expr, depth: int) -> None:
        """Prefetch the source of the next iteration's copy while one is made, in the `depth` loops
        around it.
        """
        plan = self.plan
        name = self.names[which]
        (element,) = loads(plan.nest(name).computes[0].value)
        around = [loop.range for loop in plan.nest(self.reduce).loops[:depth]]
        steps = [n for r in around if (n := distance(element.src[0], r))]
        size = prod(r.size.max for r in element.ranges) * element.dtype.itemsize
        if steps and size > plan.target.l2_bytes // 2:
            plan.do("prefetch", name, element.arg, steps[-1])

    def prefetch_later(self, which: Expr) -> None:
        """Prefetch a later piece of an operand while one is copied, if the operand is not in the
        cache.

        Pieces are often not adjacent, and then no processor prefetches them by itself.
        """
        plan = self.plan
        nest = plan.nest(self.names[which])
        (element,) = loads(nest.computes[0].value)
        if self.copied_bytes(which, which.ranges) <= plan.target.l2_bytes // 2:
            return
        piece = which.dtype.itemsize
        for loop in reversed(nest.loops):
            pieces = -(-PREFETCH_BYTES // piece)
            step = distance(element.src[0], loop.range)
            if step and pieces <= loop.range.size.arg:
                plan.do("prefetch", nest.name, which.arg, pieces * step)
                return
            piece *= int(loop.range.size.arg)

    def pad_rows(self, which: Expr, rows: Expr, tile: Tile) -> None:
        """Pad a copy by a line if its steps along the rows of a tile would be in few sets of the
        first cache.

        Each line is used again for the next terms.
        """
        plan = self.plan
        name = self.names[which]
        c = plan.kernel.computes[name]
        for r, step in zip(c.ranges, c.strides(c.ranges), strict=True):
            near = tile.rows * gcd(step * c.value.dtype.itemsize, PAGE_BYTES)
            if plan.kernel.origin(r) is rows and near > max(plan.l1_ways // 4, 1) * PAGE_BYTES:
                plan.do("pad", name, r, LINE_BYTES // c.value.dtype.itemsize)

    def _vectorize_copy(self, name: str) -> None:
        """Vectorize a copy; squares are transposed if another axis than the last is contiguous."""
        plan = self.plan
        axes = [loop.range for loop in plan.nest(name).loops]
        source = plan.nest(name).computes[0].value.src[0]
        if step_of(source, axes[-1]) == 1:
            plan.vectorize_inner(name, plan.nest(name).loops[-1])
            return
        along = next((r for r in axes[:-1] if step_of(source, r) == 1), None)
        if along is not None:
            _transpose(plan, name, along, axes[-1])

    def unroll_terms(self, innermost: Expr) -> None:
        unroll_terms(self.plan, self.reduce, innermost)

    def store(self, rows: Expr, lanes: Expr) -> None:
        """Store the results from scratch, transposed if the result is contiguous along the rows."""
        plan = self.plan
        nest = plan.nest(self.name)
        index = next(c.store.index for c in nest.computes if c.store is not None)
        if step_of(index, rows) == 1 and _transpose(plan, self.name, lanes, rows):
            return
        plan.vectorize_inner(self.name, plan.nest(self.name).loops[-1])


def _transpose(plan: Plan, name: str, along: Expr, across: Expr) -> bool:
    """Transpose squares of values: loaded along one axis, staged or stored along another; False if
    the axes are too short.
    """
    size = min(along.size.max, across.size.max)
    lanes = plan.lanes(plan.nest(name), size)
    while lanes > size:
        lanes //= 2
    if lanes < MIN_LANES:
        return False
    plan.transpose_squares(name, along, across, lanes)
    return True


def unroll_terms(plan: Plan, reduce: str, innermost: Expr) -> None:
    """Unroll the innermost loop over terms, or several of its iterations."""
    size = innermost.size.max
    if size > max(UNROLL_FACTORS):
        copies = next((n for n in UNROLL_FACTORS if size % n == 0), UNROLL_FACTORS[0])
        _, innermost = plan.split(reduce, innermost, copies, "peel")
    plan.do("unroll", reduce, innermost)
