"""Schedules of matrix products in tile registers: AMX.

`par block of rows: copy rows; for panel of columns: for block of k: copy columns; for tile of rows:
for k: 2 x 2 tile registers`. A tile of 32 x 32 results takes four loads and four products for each
32 terms, 64 cycles, in which the second cache can give half of the loads: so a panel of columns
stays in the first cache, and a block of rows in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.base.records import dataclass
from ferrule.codegen.intrinsics import INTRINSICS, TILE
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.primitives.products import is_dot
from ferrule.codegen.schedules.packed import pack
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import TRUE, Expr, is_adjacent

# Not measured: there was no processor with AMX. Chosen from the sizes of caches and registers.
TERMS_PER_PAIR = 2
TILE_COPIES = 2
"""Copies of a tile register along rows and along columns, if there are as many."""
PANEL_L1_SHARE = 2 / 3
"""The share of the first cache for a panel."""


@dataclass(frozen=True)
class _Axes:
    """The ranges of a product by their meaning for the tile."""

    rows: Expr
    columns: Expr
    batch: tuple[Expr, ...]


def schedule_amx(plan: Plan, name: str, reduce: str) -> bool:
    """Schedule the contraction `reduce` of the root nest `name`; False if it does not suit."""
    pairs = INTRINSICS[TILE.pairs]
    nest = plan.nest(reduce)
    if not TILE.is_native(plan.target) or len(nest.loops) != 1:
        raise ScheduleError("there are none, or the terms have several axes")
    k = nest.loops[0].range
    whole = k.size.is_const and k.size.arg % (TERMS_PER_PAIR * TILE.terms) == 0
    axes = _axes(plan, name, reduce) if whole and is_dot(nest, k, pairs) else None
    if axes is None:
        raise ScheduleError("its operands do not fill tiles of bfloat16 or bytes")
    _Product(plan, name, reduce, axes, k.size.arg).apply()
    return True


def _axes(plan: Plan, name: str, reduce: str) -> _Axes | None:
    """The rows and the columns of a product; results are contiguous along the columns."""
    root = plan.nest(name)
    result_axes = [loop.range for loop in root.loops]
    found = loads(plan.nest(reduce).computes[0].value)
    store = root.computes[0].store
    if len(found) != 2 or store is None or not all(r.size.is_const for r in result_axes):
        return None
    own = [
        [r for r in result_axes if r in e.ranges and r not in other.ranges]
        for e, other in zip(found, found[::-1], strict=True)
    ]
    if not all(own):
        return None
    a, b = (max(ranges, key=lambda r: int(r.size.arg)) for ranges in own)
    rows, columns = (b, a) if step_of(store.index, a) == 1 else (a, b)
    if rows.size.arg < TILE.rows or columns.size.arg < TILE.columns:
        return None
    batch = tuple(r for r in result_axes if r not in (rows, columns))
    return _Axes(rows, columns, batch)


@dataclass
class _Product:
    """The schedule of one product: `plan` holds the kernel."""

    plan: Plan
    name: str
    reduce: str
    axes: _Axes
    terms: int

    def apply(self) -> None:
        plan, name, n = self.plan, self.name, self.reduce
        plan.do("tensorize", n, plan.loops(n)[0], TILE.pairs)
        tile_rows, tile_columns = (
            size * min(TILE_COPIES, -(-int(r.size.arg) // size))
            for r, size in ((self.axes.rows, TILE.rows), (self.axes.columns, TILE.columns))
        )
        in_place = self._is_in_place(tile_rows)
        panels, panel = plan.split(name, self.axes.columns, tile_columns, "mask")
        vectors = plan.vectors(name, panel, TILE.columns)
        tiles, row = plan.split(name, self.axes.rows, tile_rows, "mask")
        blocks, tile = plan.split(name, tiles, self._tiles_of_a_block(tile_rows), "clamp")
        outer = (*self.axes.batch, blocks, panels)
        plan.do("reorder", name, (*outer, tile, row, *vectors))
        block = len(outer) - 1
        if not in_place:
            self._pack(self.axes.rows, name, block)
        self._compute_tiles(len(outer), tile, row, vectors)
        plan.share(name, len(outer) if in_place else block)

    def _is_in_place(self, tile_rows: int) -> bool:
        """True if tiles have all of their rows, and pairs are adjacent in memory."""
        e = self._operand(self.axes.rows)
        near = e.src[1] is TRUE and is_adjacent(e)
        return near and self._step(e) == TERMS_PER_PAIR and self.axes.rows.size.arg % tile_rows == 0

    def _step(self, e: Expr) -> int:
        (k,) = (loop.range for loop in self.plan.nest(self.reduce).loops)
        return step_of(e.src[0], k)

    def _operand(self, axis: Expr) -> Expr:
        """The load that varies with an axis, or with a loop that it was split into."""
        found = loads(self.plan.nest(self.reduce).computes[0].value)
        return next(e for e in found if any(self._is_part(r, axis) for r in e.ranges))

    def _is_part(self, r: Expr, axis: Expr) -> bool:
        """True if a range is an axis, or a part of it."""
        return self.plan.kernel.origin(r) is axis

    def _tiles_of_a_block(self, tile_rows: int) -> int:
        """The tiles of a block: equal blocks that stay in the second cache, as many for each
        thread.
        """
        target = self.plan.target
        tiles = -(-int(self.axes.rows.size.arg) // tile_rows)
        row_bytes = self.terms * dtypes.bfloat16.itemsize
        most = max(1, target.l2_bytes // 2 // (row_bytes * tile_rows))
        blocks = -(-tiles // most)
        threads = min(target.max_threads, tiles)
        return -(-tiles // (-(-blocks // threads) * threads))

    def _pack(self, axis: Expr, at: str, depth: int) -> None:
        """Copy an operand: rows with their terms side by side, or terms with their columns."""
        plan = self.plan
        e = self._operand(axis)
        nest = plan.nest(self.reduce)
        path = plan.kernel.path(nest)
        opened = sum((n == at and d < depth) or n not in (at, self.reduce) for n, d, _ in path)
        inside = [loop.range for _, _, loop in path[opened:] if loop.range in e.ranges]
        own = [r for r in inside if self._is_part(r, axis)]
        terms = [r for r in inside if r not in own]
        order = own + terms if axis is self.axes.rows else terms + own
        pack(plan, self.reduce, e, at, depth, order, TILE.columns)

    def _compute_tiles(self, depth: int, tile: Expr, row: Expr, vectors: Sequence[Expr]) -> None:
        """Compute the tiles of a panel, a block of k at a time if the panel exceeds the first
        cache.
        """
        plan, n = self.plan, self.reduce
        steps, block = self._steps(prod(int(r.size.arg) for r in vectors))
        is_cut = block < steps
        parts, term = plan.split(n, plan.loops(n)[0], TILE.terms, "mask")
        order = [parts]
        if is_cut:
            order = list(plan.split(n, parts, block, "mask"))
        plan.do("compute_at", n, depth if is_cut else depth + 1)
        if is_cut:
            order.insert(1, plan.copy_of(tile, n))
        self._pack(self.axes.columns, *((n, 1) if is_cut else (self.name, depth)))
        row_here = plan.copy_of(row, n)
        if row_here.size.arg > TILE.rows:
            copies, row_here = plan.split(n, row_here, TILE.rows, "mask")
            plan.do("unroll", n, copies)
            order.append(copies)
        columns = plan.copies_of(vectors, n)
        plan.do("reorder", n, (*order, *columns[:-1], row_here, columns[-1], term))
        plan.do("tensorize", n, term, TILE.name)

    def _steps(self, tile_columns: int) -> tuple[int, int]:
        """The number of steps in all, and in a block of k.

        All blocks are equal, and their panels stay in the first cache, unless that takes far
        smaller blocks.
        """
        steps = self.terms // (TERMS_PER_PAIR * TILE.terms)
        itemsize = dtypes.uint32.itemsize
        step_bytes = tile_columns * TILE.terms * itemsize
        most = max(1, int(self.plan.target.l1_bytes * PANEL_L1_SHARE) // step_bytes)
        sizes = [size for size in range(1, steps + 1) if steps % size == 0]
        fit = max(size for size in sizes if size <= most)
        larger = min((size for size in sizes if size > most), default=fit)
        return steps, fit if 2 * fit >= min(most, steps) else larger
