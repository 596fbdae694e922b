"""Inner products: long sums of products whose terms are adjacent in both operands, many at a time.

Examples are the gradient of a 1 x 1 convolution's weights, and `a @ b.T` with few rows and columns.
Lanes run along the terms, so that nothing is copied or transposed. Each result has a vector of
partial sums, which is added up at the end. A tile is rows x columns of such vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.window import distance
from ferrule.codegen.kernel import Nest
from ferrule.codegen.plan import Plan, bytes_loaded, loads, step_of
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.schedules.tile import Tile, best_tile
from ferrule.ir.expr import TRUE, Expr
from ferrule.ir.target import PAGE_BYTES

# Tuning constants of 2026-11-21 and 23, Zen 4 and 5; not measured one by one.
MAX_BLOCK_RESULTS = 64
"""Results along each axis of a block."""
MAX_ROWS = 8
"""Rows of a tile: each row and column is a separate stream of reads."""


@dataclass(frozen=True)
class _Axes:
    """The ranges of a contraction by their meaning for the tile."""

    rows: Expr
    columns: Expr
    terms: Expr
    """The range whose terms are adjacent in memory."""
    others: tuple[Expr, ...]
    """Further ranges that are summed over."""


def schedule_dots(plan: Plan, name: str, reduce: str) -> bool:
    """Schedule the contraction `reduce` of the root nest `name`."""
    axes = _axes(plan.nest(name), plan.nest(reduce))
    if _size(axes.terms) < _lanes(plan) ** 2:
        raise ScheduleError("to add up the lanes of a result would take longer than its products")
    _Dots(plan, name, reduce, axes).apply()
    return True


def _axes(root: Nest, nest: Nest) -> _Axes:
    found = loads(nest.computes[0].value)
    result_axes = [loop.range for loop in root.loops]
    terms = [loop.range for loop in nest.loops]
    if len(found) != 2 or any(not r.size.is_const for r in (*result_axes, *terms)):
        raise ScheduleError("it has more than two operands, or a size is not known")
    near = [r for r in terms if all(step_of(e.src[0], r) == 1 for e in found)]
    a, b = found
    rows = [r for r in result_axes if r in a.ranges and r not in b.ranges]
    columns = [r for r in result_axes if r in b.ranges and r not in a.ranges]
    plain = all(len(e.src) == 2 and e.src[1] is TRUE for e in found)
    if not near or not rows or not columns or not plain:
        raise ScheduleError("its terms are not adjacent in both operands")
    longest = max(rows, key=_size), max(columns, key=_size), max(near, key=_size)
    return _Axes(*longest, tuple(r for r in terms if r is not longest[2]))


def _size(r: Expr) -> int:
    return int(r.size.arg)


def _lanes(plan: Plan) -> int:
    return max(1, plan.target.vector_bytes // 4)


@dataclass
class _Dots:
    """The schedule of one contraction: `plan` holds the kernel."""

    plan: Plan
    name: str
    reduce: str
    axes: _Axes

    def apply(self) -> None:
        plan = self.plan
        itemsize = plan.nest(self.reduce).computes[0].value.dtype.itemsize
        lanes = _lanes(plan)
        sizes = self._block()
        outer, block_row, block_column = self._split_results(*sizes)
        plan.do("compute_at", self.reduce, len(outer))
        vectors, lane = plan.split(self.reduce, self.axes.terms, lanes, "peel")
        plan.do("vectorize", self.reduce, lane)
        partial = plan.group(self.reduce, (lane,))
        rows_at_once = -(-sizes[0] // -(-sizes[0] // MAX_ROWS))
        tile = best_tile(plan.target, itemsize, rows_at_once, sizes[1] * lanes)
        row_tiles, row = self._tile_axis(partial, block_row, tile.rows)
        column_tiles, column = self._tile_axis(partial, block_column, tile.vectors)
        blocks, steps = self._split_terms(partial, vectors, tile, sizes[1])
        others = self.axes.others
        tiles = [*row_tiles, *column_tiles]
        plan.do("reorder", partial, (*others, *blocks, *tiles, steps, row, column, lane))
        self._prefetch_columns(partial, [*others, *blocks])
        plan.vectorize_inner(self.name, plan.nest(self.name).loops[-1])
        plan.share(self.name, len(outer))

    def _block(self) -> tuple[int, int]:
        """The rows and columns of a block: enough blocks for all threads, but few, as each block
        reads its operands anew.
        """
        sizes = [_size(self.axes.rows), _size(self.axes.columns)]
        counts = [-(-size // MAX_BLOCK_RESULTS) for size in sizes]
        while counts[0] * counts[1] < self.plan.target.max_threads:
            longer = 0 if sizes[0] * counts[1] >= sizes[1] * counts[0] else 1
            if sizes[longer] < MAX_ROWS * counts[longer]:
                break
            counts[longer] *= 2
        rows, columns = (-(-size // n) for size, n in zip(sizes, counts, strict=True))
        return rows, columns

    def _split_results(self, rows: int, columns: int) -> tuple[list[Expr], Expr, Expr]:
        """The loops outside of a block, the loop over its rows and the loop over its columns."""
        plan, axes = self.plan, self.axes
        others = plan.others(self.name, (axes.rows, axes.columns))
        row_blocks, row = plan.split(self.name, axes.rows, rows, "clamp")
        column_blocks, column = plan.split(self.name, axes.columns, columns, "clamp")
        outer = [*others, row_blocks, column_blocks]
        inner = [r for r in plan.loops(self.name) if r in (row, column)]
        plan.do("reorder", self.name, (*outer, *inner))
        return outer, row, column

    def _tile_axis(self, partial: str, r: Expr, copies: int) -> tuple[list[Expr], Expr]:
        """The loop over tiles, if there is one, and the copies inside a tile, along one axis of a
        block.
        """
        plan, own = self.plan, self.plan.copy_of(r, partial)
        if own.size.arg <= copies:
            plan.do("unroll", partial, own)
            return [], own
        tiles, inside = plan.split(partial, own, copies, "clamp")
        plan.do("unroll", partial, inside)
        return [tiles], inside

    def _split_terms(
        self, nest: str, steps: Expr, tile: Tile, columns: int
    ) -> tuple[list[Expr], Expr]:
        """Blocks of terms: the rows of a tile stay in the first cache, all columns in the
        second.
        """
        plan, target = self.plan, self.plan.target
        vectors = -(-_size(self.axes.terms) // _lanes(plan))
        most = min(
            # one way of the first cache is for partial sums
            (target.l1_bytes - PAGE_BYTES) // (tile.rows * target.vector_bytes),
            target.l2_bytes // 2 // (columns * target.vector_bytes),
        )
        if vectors <= most:
            return [], steps
        count = -(-vectors // most)
        count = next((n for n in range(count, 2 * count) if vectors % n == 0), count)
        blocks, steps = plan.split(nest, steps, -(-vectors // count), "peel")
        return [blocks], steps

    def _prefetch_columns(self, nest: str, blocks: Sequence[Expr]) -> None:
        """Prefetch the next block of the columns' terms while one is multiplied.

        A block is a few lines of each column, too few for the processor to prefetch by itself.
        """
        plan = self.plan
        for e in loads(plan.nest(nest).computes[0].value):
            size = bytes_loaded(e)
            steps = [distance(e.src[0], r) for r in e.ranges if r in blocks[-1:]]
            of_columns = any(plan.kernel.origin(r) is self.axes.columns for r in e.ranges)
            if of_columns and any(steps) and size > plan.target.l2_bytes // 2:
                plan.do("prefetch", nest, e.arg, steps[0])
