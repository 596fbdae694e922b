"""Contractions: reduces whose operands are reused for many results, such as a matrix product.

They get a register tile of rows x vectors, packed panels of the operand along the lanes, and blocks
that fit the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod

from ferrule.base.records import dataclass
from ferrule.codegen.kernel import Kind, Nest
from ferrule.codegen.plan import (
    Plan,
    Proposal,
    bytes_loaded,
    load_step,
    loads,
    outer_loads,
    step_of,
)
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.schedules.copies import unroll_terms
from ferrule.codegen.schedules.cpu.amx import schedule_amx
from ferrule.codegen.schedules.cpu.blocks import schedule_blocks
from ferrule.codegen.schedules.cpu.depthwise import schedule_taps
from ferrule.codegen.schedules.cpu.gemv import panels
from ferrule.codegen.schedules.cpu.inner_products import schedule_dots
from ferrule.codegen.schedules.cpu.lines import schedule_lines
from ferrule.codegen.schedules.packed import is_far, pack
from ferrule.codegen.schedules.tensorize import intrinsic_for, tensorize_contraction
from ferrule.codegen.schedules.tile import (
    FAR_ROWS_VECTOR_CYCLES,
    VECTOR_CYCLES,
    Tile,
    best_tile,
)
from ferrule.ir.expr import Expr
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES

# Tuning constants. They were set with the changes of 2026-11-21 and 22, on the processors of
# docs/performance.md; what was measured then are whole kernels, not each number by itself.
MAX_PAGES = 64
"""Pages that are read in turns without misses in the address cache (TLB)."""
FAR_ROWS_MIN_COLUMNS = 512
"""Columns from which it matters that rows are read again for each panel."""
MAX_BLOCK_ROWS = 512
"""Rows of accumulators that stay in memory between two blocks of k."""
MIN_TILES = 4
"""Tiles of rows that a panel of columns is packed for."""


def is_contraction(root: Nest, nest: Nest) -> bool:
    """True if a reduce has two loads or more, and some load is reused: it misses a loop of the
    results.
    """
    if nest.at != (root.name, len(root.loops)) or len(nest.computes) != 1:
        return False
    found = loads(nest.computes[0].value)
    result_axes = [loop.range for loop in root.loops]
    missing = [frozenset(r for r in result_axes if r not in e.ranges) for e in found]
    return len(found) >= 2 and any(missing)


def schedule_contraction(plan: Plan, name: str) -> bool:
    """Tile the only reduce inside of a root nest."""
    below = plan.below(name)
    root, nest = plan.nest(name), plan.nest(below[0])
    if len(below) > 1 or not is_contraction(root, nest):
        raise ScheduleError("no load is used for several results")
    found = loads(nest.computes[0].value)
    axes = [o.range for o in reversed(root.loops) if any(o.range not in e.ranges for e in found)]

    def of(form: str, schedule: Callable[..., bool], **where: Expr) -> Proposal:
        return Proposal(form, partial(schedule, name=name, reduce=nest.name, **where))

    dots = of("inner products", schedule_dots)
    tiles = [of(f"tiles along {v}", _tiles_along, v=v) for v in axes]
    lines = of("lines", schedule_lines)
    copies = (
        of("tile registers", schedule_amx),
        of("taps", schedule_taps),
        *([dots] if len(nest.loops) > 1 else []),  # blocks copy both operands of such sums
        of("blocks", schedule_blocks),
    )
    return plan.best("copies", *copies) or plan.best(
        "form",
        *panels(plan, name, nest.name, far=True),
        Proposal("in registers", lambda plan: plan.least("lanes", *tiles, lines, dots)),
    )


def _tiles_along(plan: Plan, name: str, reduce: str, v: Expr) -> bool:
    """Tile a reduce with lanes along `v`."""
    n = reduce
    root, nest = plan.nest(name), plan.nest(n)
    m = _row_axis(root, loads(nest.computes[0].value), v)
    rows, columns = m.size.max if m is not None else 1, v.size.max
    intrinsic = intrinsic_for(plan, n)
    itemsize = (intrinsic.result if intrinsic else nest.computes[0].value.dtype).itemsize
    cycles = _vector_cycles(plan, nest, rows, columns)
    tile = best_tile(plan.target, itemsize, rows, columns, cycles)
    if columns < 2 or tile.lanes == 1:
        raise ScheduleError("too few for a vector")
    if intrinsic is not None and tile.lanes in intrinsic.lanes:
        tensorize_contraction(plan, n, intrinsic, v)
    _Contraction(plan, name, n, v, m, tile).apply()
    return True


def _vector_cycles(plan: Plan, nest: Nest, rows: int, columns: int) -> float:
    """The extra cycles of each vector that a tile loads.

    Rows that do not stay in the second cache are read again for each panel of columns.
    """
    size = rows * _terms(nest) * nest.computes[0].value.dtype.itemsize
    far = size > plan.target.l2_bytes // 2 and columns >= FAR_ROWS_MIN_COLUMNS
    return FAR_ROWS_VECTOR_CYCLES if far else VECTOR_CYCLES


def _terms(nest: Nest) -> int:
    return max(prod(loop.range.size.max for loop in nest.loops), 1)


def _row_axis(root: Nest, found: Sequence[Expr], v: Expr) -> Expr | None:
    """The axis of the tile's rows, the longest one with which no load along the lanes varies."""
    vectors = [e for e in found if v in e.ranges]
    fit = [
        loop.range
        for loop in root.loops
        if loop.range is not v and all(loop.range not in e.ranges for e in vectors)
    ]
    return max(fit, key=lambda r: r.size.max, default=None)


@dataclass
class _Contraction:
    """The schedule of one contraction: `plan` holds the kernel."""

    plan: Plan
    name: str
    reduce: str
    v: Expr
    m: Expr | None
    tile: Tile

    def apply(self) -> None:
        batch = self.plan.others(self.name, (self.v, self.m))
        first = [*batch, *self._copy_far_rows(batch)]
        inner, v_outer = self._split_lanes()
        row_inner, row_outer = self._split_rows(v_outer, first)
        outer = [*first, *v_outer, *row_outer]
        self.plan.do("reorder", self.name, (*outer, *row_inner, *inner))
        panel = len(outer) - (1 if row_outer else 0)
        if row_outer and self._block_reduce(panel, row_outer[0], (*row_inner, *inner)):
            self._pack_operands(self.reduce, 1, panel)
        else:
            self.plan.do("compute_at", self.reduce, len(outer))
            self._pack_operands(self.name, panel, panel)
            if row_outer:
                self._limit_tiles(row_outer[0])
        self._unroll_reduce()
        self._prefetch_next_panel()
        self.plan.prefetch_results(self.name)
        self._hoist_corrections(panel)
        self.plan.share(self.name, panel if len(first) == len(batch) else len(first))

    def _hoist_corrections(self, panel: int) -> None:
        """Correct products of bytes once for a panel, as all of its rows have the same correction.

        They are what the results read beside the reduce.
        """
        kernel = self.plan.kernel
        read = {kernel.owner[e.arg].name for e in self.plan.nest(self.name).reads}
        for nest in sorted(read - {self.reduce}):
            self.plan.do("compute_at", nest, panel)

    def _prefetch_next_panel(self) -> None:
        """Prefetch the columns of the next panel if a tile reads the operand along the lanes in
        place.

        Each step of k is at another place there, where no processor prefetches by itself.
        """
        plan = self.plan
        nest = plan.nest(self.reduce)
        lanes = [loop.range for loop in nest.loops if loop.kind is Kind.VECTOR]
        for e in loads(nest.computes[0].value):
            along = [r for r in lanes if r in e.ranges and step_of(e.src[0], r) == 1]
            size = bytes_loaded(e)
            fetched = dict(plan.nest(self.reduce).ahead)
            if along and size > plan.target.l2_bytes and e.arg not in fetched:
                plan.do("prefetch", self.reduce, e.arg, self.tile.columns)

    def _panel_bytes(self, k: int) -> int:
        """The size of a packed panel of the operand that runs along the lanes."""
        return k * self.tile.columns * self.plan.nest(self.reduce).computes[0].value.dtype.itemsize

    def _exceeds_cache(self) -> bool:
        """True if a panel exceeds half of the second cache and can be cut along k."""
        nest = self.plan.nest(self.reduce)
        k = nest.loops[-1].range
        if len(nest.loops) != 1 or not k.size.is_const:
            return False
        return self._panel_bytes(k.size.arg) > self.plan.target.l2_bytes // 2

    def _block_reduce(self, panel: int, row_outer: Expr, tile_loops: Sequence[Expr]) -> bool:
        """Put blocks of k outside of the rows if a panel is too large for the cache; False if it is
        not.

        The accumulators of all rows of a block then stay in scratch memory between two blocks of k.
        """
        plan = self.plan
        if not self._exceeds_cache():
            return False
        k = plan.nest(self.reduce).loops[0].range
        blocks = -(-self._panel_bytes(k.size.arg) // (plan.target.l2_bytes // 2))
        block = next((n for n in range(blocks, 2 * blocks + 1) if k.size.arg % n == 0), blocks)
        outside, inside = plan.split(self.reduce, k, -(-k.size.arg // block), "peel")
        plan.do("compute_at", self.reduce, panel)
        tiles, *tile = plan.copies_of((row_outer, *tile_loops), self.reduce)
        plan.do("reorder", self.reduce, (outside, tiles, inside, *tile))
        return True

    def _split_lanes(self) -> tuple[list[Expr], list[Expr]]:
        """The loops over the vectors and lanes of a panel, and the loop over panels of columns."""
        panels, panel = self.plan.split(self.name, self.v, self.tile.columns, "mask")
        return list(self.plan.vectors(self.name, panel, self.tile.lanes)), [panels]

    def _split_rows(
        self, v_outer: list[Expr], first: Sequence[Expr]
    ) -> tuple[list[Expr], list[Expr]]:
        """The loop over the rows of a tile, and the loop over tiles; both lists are empty without
        rows.

        The loop over tiles is cut into blocks if threads need more chunks.
        """
        if self.m is None:
            return [], []
        plan = self.plan
        tiles, row = plan.split(self.name, self.m, self.tile.rows, "clamp")
        plan.do("unroll", self.name, row)
        blocks = self._row_blocks([*v_outer, tiles], first)
        if blocks == 1:
            return [row], [tiles]
        size = -(-tiles.size.max // blocks)
        outside, tiles = plan.split(self.name, tiles, size, "clamp")
        v_outer.append(outside)
        return [row], [tiles]

    def _limit_tiles(self, tiles: Expr) -> None:
        """Let a block of rows end early: the last one of a symbolic size may have few tiles, or
        none.
        """
        if self.m is None or self.m.size.is_const:
            return
        if self.plan.loop(self.name, tiles).lineage[-1] is not self.m:  # tiles are in blocks
            self.plan.limit(self.name, tiles)

    def _copy_far_rows(self, batch: Sequence[Expr]) -> list[Expr]:
        """Copy blocks of an operand whose rows are neighbours but whose steps of k are pages apart.

        Each step of k would otherwise touch another page, and often the same cache set. The loop
        over these blocks is returned, if there is one.
        """
        plan = self.plan
        nest = plan.nest(self.reduce)
        k = nest.loops[-1].range
        if (
            self.m is None
            or len(nest.loops) != 1
            or not k.size.is_const
            or not self.m.size.is_const
        ):
            return []
        of_rows = [e for e in loads(nest.computes[0].value) if self.m in e.ranges]
        far = [
            e
            for e in of_rows
            if self.v not in e.ranges and step_of(e.src[0], self.m) == 1 and is_far(e, k)
        ]
        if not (len(far) == len(of_rows) == 1) or k.size.arg < MAX_PAGES:
            return []
        rows = self.tile.rows
        limit = 2 * plan.target.l2_bytes
        most = max(1, limit // (k.size.arg * far[0].dtype.itemsize * rows))
        threads = plan.target.max_threads
        blocks = -(-self.m.size.arg // (rows * most))
        blocks = -(-blocks // threads) * threads
        block = -(-self.m.size.arg // (rows * blocks)) * rows
        outside, self.m = plan.split(self.name, self.m, block, "mask")
        rest = plan.others(self.name, (*batch, outside))
        plan.do("reorder", self.name, (*batch, outside, *rest))
        (far_rows,) = (
            e for e in loads(plan.nest(self.reduce).computes[0].value) if self.m in e.ranges
        )
        copy = f"{self.reduce}.rows"
        plan.stage(self.reduce, far_rows, self.name, len(batch) + 1, (k, self.m), copy)
        plan.vectorize_inner(copy, plan.nest(copy).loops[-1])
        return [outside]

    def _row_blocks(self, outer: Sequence[Expr], batch: Sequence[Expr]) -> int:
        """The number of blocks of rows: one, or as many as threads need to have equal shares.

        Each block copies its panel anew.
        """
        chunks = outer[0].size.max * prod(r.size.max for r in batch)
        tiles = outer[1].size.max
        least = -(-tiles * self.tile.rows // MAX_BLOCK_ROWS) if self._exceeds_cache() else 1
        return max(least, self.plan.parts(chunks, tiles // (2 * MIN_TILES)))

    def _unroll_reduce(self) -> None:
        """Unroll the innermost loop that is combined over."""
        plan = self.plan
        nest = plan.nest(self.reduce)
        of_result = [loop for loop in nest.loops if loop.range in nest.computes[0].ranges]
        combined = [loop for loop in nest.loops if loop not in of_result]
        unroll_terms(plan, self.reduce, combined[-1].range)

    def _pack_operands(self, at: str, depth: int, panel: int) -> None:
        """Pack the loads along the lanes if many tiles of rows use them."""
        plan = self.plan
        nest = plan.nest(self.reduce)
        root = plan.nest(self.name)
        tiles = root.loops[panel].range.size.max if self.m is not None else 1
        for e in outer_loads(nest.computes[0].value):
            along = [loop.range for loop in nest.loops if loop.kind is Kind.VECTOR]
            if not along or along[0] not in e.ranges or tiles < 2:
                continue
            step = load_step(e, along[0])
            few = tiles * self.tile.rows <= MAX_BLOCK_ROWS
            near = few and (self._is_even(nest, e) or self._fits_first_cache(nest, e))
            if step == 1 and (tiles < MIN_TILES or near):
                continue
            self._pack(nest, e, at, depth)

    def _is_even(self, nest: Nest, e: Expr) -> bool:
        """True if an operand's steps are whole cache lines, and shorter than a page."""
        result_axes = nest.computes[0].ranges
        steps = [
            step_of(e.src[0], loop.range) for loop in nest.loops if loop.range not in result_axes
        ]
        sizes = [step * e.dtype.itemsize for step in steps]
        return all(0 <= size < PAGE_BYTES and size % LINE_BYTES == 0 for size in sizes)

    def _fits_first_cache(self, nest: Nest, e: Expr) -> bool:
        """True if a panel stays in the first caches although its vectors are far apart.

        Its vectors are in whole cache lines, and these and their pages fit.
        """
        if len(nest.loops) - len(nest.computes[0].ranges) != 1:
            return False
        k = next(o.range for o in nest.loops if o.range not in nest.computes[0].ranges)
        step = step_of(e.src[0], k) * e.dtype.itemsize
        width = self.tile.columns * e.dtype.itemsize
        together = k.size.max * max(gcd(step, PAGE_BYTES), width) // PAGE_BYTES
        whole = step % LINE_BYTES == 0
        return whole and together <= self.plan.l1_ways

    def _pack(self, nest: Nest, e: Expr, at: str, depth: int) -> None:
        """Copy a load in the order in which the tile reads it: k outermost, lanes innermost."""
        result_axes = nest.computes[0].ranges
        opened = {loop.range for loop in nest.loops[:depth]} if at == nest.name else set()
        combined = [loop.range for loop in nest.loops if loop.range not in result_axes]
        axes = [r for r in combined if r in e.ranges - opened] + [
            r for r in result_axes if r in e.ranges
        ]
        size = prod(r.size.max for r in axes) * e.dtype.itemsize
        if size <= self.plan.target.l2_bytes and all(r.size.is_const for r in axes):
            pack(self.plan, self.reduce, e, at, depth, axes, self.tile.lanes)
