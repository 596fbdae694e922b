"""Contractions for thread blocks: a block has a tile of results, each of its threads a part of that
in registers.

The block goes through the sum a few terms at a time. It copies the operands' elements for these
terms, for its rows and for its columns, to shared memory, and every thread multiplies from there. A
loop is a row, a column or a term by the loads that vary with it. Several loops of one kind become
one loop. So a convolution is the product of two matrices, one of which only exists tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd, inf, prod
from typing import final

import numpy as np

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.index_values import index_values
from ferrule.codegen.intrinsics import (
    ASYNC_COPIES,
    COPIED_BYTES,
    MatrixIntrinsic,
    native_matrix_intrinsic,
)
from ferrule.codegen.kernel import (
    BANK_LINE_BYTES,
    COMBINING_BYTES,
    MAX_ACCESS_BYTES,
    Compute,
    Kind,
    Nest,
)
from ferrule.codegen.plan import Plan, loads, step_of
from ferrule.codegen.primitives.editing import is_product_of_loads
from ferrule.codegen.schedules.cpu.contraction import is_contraction
from ferrule.codegen.schedules.gpu.cost import (
    BlockTile,
    Work,
    best_grid_tile,
    best_group,
    grid_tile_cost,
)
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr, ExprOp, range_, substitute, toposort
from ferrule.ir.target import Target

BLOCKS_AT_ONCE = 2  # blocks of a tile that a multiprocessor has at once, usually
LINE = BANK_LINE_BYTES // 2  # elements of 16 bits in a line of shared memory
UNROLLED = 4  # terms in the innermost loop; not measured
MAX_SEEN_STEPS = 32  # steps along an axis that are looked at for adjacent elements; not measured


# -- rows and columns ------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Axes:
    """The loops of a contraction's root by their kind; the others are `batch`."""

    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]


def _axes(root: Nest, nest: Nest) -> Axes | None:
    """The axes of a contraction: loops that the same loads miss belong together.

    Columns are the loops along which stores are contiguous. None if there is only one such group,
    or if a load has an element for each term of each result: then reads take longest, and little is
    reused.
    """
    ranges = [loop.range for loop in root.loops]
    found = loads(nest.computes[0].value)
    terms = {loop.range for loop in nest.loops}
    if any(e.ranges >= set(ranges) and e.ranges & terms for e in found):
        return None
    groups: dict[frozenset[Expr], list[Expr]] = {}
    for r in ranges:
        missed = frozenset(e for e in found if r not in e.ranges)
        if missed:
            groups.setdefault(missed, []).append(r)
    by_size = sorted(groups.values(), key=_count, reverse=True)
    if len(by_size) < 2:
        return None
    rows, columns = by_size[:2]
    if _stored_together(root, rows):
        rows, columns = columns, rows
    batch = [r for r in ranges if r not in rows and r not in columns]
    return Axes(tuple(batch), tuple(rows), tuple(columns))


def _stored_together(root: Nest, group: Sequence[Expr]) -> bool:
    """True if stores are contiguous along a loop of a group."""
    stores = [c.store.index for c in root.computes if c.store is not None]
    return any(step_of(index, r) == 1 for index in stores for r in group)


# -- the schedule ----------------------------------------------------------------------------------


def can_be_tiled(plan: Plan, name: str) -> bool:
    """True if a root nest is a contraction, in which tiles of results share operands."""
    return _contraction(plan, name) is not None


def schedule_grid_tile(plan: Plan, name: str) -> bool:
    """Tile the only reduce in a root nest for thread blocks; False if no tile suits it."""
    contraction = _contraction(plan, name)
    if contraction is None:
        return False
    work, target = _work(plan, *contraction), plan.target
    roots = len(plan.kernel.roots)
    if roots > 1:  # each has its own shared memory, and all have blocks of the same size
        work = replace(work, matrices=None)
        target = replace(target, shared_bytes=(target.shared_bytes - COMBINING_BYTES) // roots)
    tile = best_grid_tile(target, work)
    return tile is not None and tile_grid(plan, name, tile)


def cycles_in_parts(plan: Plan, name: str, parts: int) -> float:
    """About the cycles of a contraction with its sum in parts, each in a tile; infinite for other
    work.
    """
    contraction = _contraction(plan, name)
    if contraction is None:
        return inf
    work = _work(plan, *contraction)
    work = replace(work, batch=work.batch * parts, terms=-(-work.terms // parts))
    tile = best_grid_tile(plan.target, work)
    return inf if tile is None else float(grid_tile_cost(plan.target, work, tile))


def tile_grid(plan: Plan, name: str, tile: BlockTile) -> bool:
    """Give a tile to the only reduce in a root nest; False if it is no contraction."""
    contraction = _contraction(plan, name)
    if contraction is None:
        return False
    Tiling(plan, name, *contraction, tile).apply()
    return True


def _contraction(plan: Plan, name: str) -> tuple[str, Axes] | None:
    """The only reduce in a root nest, and the kinds of the root's loops."""
    below = plan.below(name)
    if len(below) != 1 or not is_contraction(plan.nest(name), plan.nest(below[0])):
        return None
    axes = _axes(plan.nest(name), plan.nest(below[0]))
    if axes is None or not plan.nest(below[0]).loops:
        return None
    return below[0], axes


def _work(plan: Plan, reduce: str, axes: Axes) -> Work:
    nest = plan.nest(reduce)
    terms = [loop.range for loop in nest.loops]
    (c,) = nest.computes
    matrices = matrix_product(c, plan.target)
    return Work(
        batch=_count(axes.batch),
        rows=_count(axes.rows),
        columns=_count(axes.columns),
        terms=_count(terms),
        itemsize=c.value.dtype.itemsize,
        matrices=matrices,
        period=_count(terms[1:]),
        ahead=ASYNC_COPIES in plan.target.features.split(",") and is_product_of_loads(c),
        by_registers=(
            _needs_registers(c, axes.rows, matrices is not None),
            _needs_registers(c, axes.columns, matrices is not None),
        ),
    )


def _needs_registers(c: Compute, side: Sequence[Expr], matrices: bool) -> bool:
    """True if copies of the operand that varies with `side` need registers on their way.

    Something is computed from the loaded elements, or too few bytes are adjacent in memory.
    """
    if not is_product_of_loads(c):
        return False
    found = [factor for factor in c.value.src if factor.ranges & set(side)]
    if not matrices and any(factor.op is not ExprOp.LOAD for factor in found):
        return True
    return not all(_is_wide(e) for factor in found for e in loads(factor))


def goes_alone(c: Compute, matrices: bool) -> bool:
    """True if no copy of a sum's operands needs registers on its way."""
    factors = [factor for factor in c.value.src if loads(factor)]
    plain = matrices or all(factor.op is ExprOp.LOAD for factor in factors)
    return plain and all(_is_wide(e) for factor in factors for e in loads(factor))


def _is_wide(e: Expr) -> bool:
    """True if elements are as large as an asynchronous copy, or come in aligned groups that are."""
    together = COPIED_BYTES[0] // e.dtype.itemsize
    if together <= 1:
        return True
    return any(step_of(e.src[0], r) == 1 and _is_whole(e, r, together) for r in e.ranges)


def matrix_product(c: Compute, target: Target) -> MatrixIntrinsic | None:
    """The target's instruction by which warps add up a sum's products; None if it does not fit.

    The products are of two loads of one dtype, each cast at most once.
    """
    if not is_product_of_loads(c) or len(loads(c.value)) != 2:
        return None
    factors = [f.src[0] if f.op is ExprOp.CAST else f for f in c.value.src]
    sources = {factor.dtype for factor in factors}
    if len(sources) > 1 or any(factor.op is not ExprOp.LOAD for factor in factors):
        return None
    return native_matrix_intrinsic(sources.pop(), c.value.dtype, target)


def _count(ranges: Sequence[Expr]) -> int:
    return prod(r.size.max for r in ranges)


@final
@dataclass
class Tiling:
    """The schedule of one contraction: `plan` holds the kernel."""

    plan: Plan
    name: str
    reduce: str
    axes: Axes
    tile: BlockTile

    def apply(self) -> None:
        row, column = self.blocks()
        self.plan.do("compute_at", self.reduce, 1)
        row_here, column_here = self.plan.copies_of((row, column), self.reduce)
        term = self.terms(row_here, column_here)
        fills = self.stage_operands((row_here, column_here), term)
        self.threads(self.name, row, column)
        self.threads(self.reduce, row_here, column_here, term)
        for fill in fills:
            fill_copy(self.plan, fill, self.tile)

    def _fuse(self, nest: str, group: Sequence[Expr]) -> Expr:
        """Fuse neighbouring loops; the fused loop."""
        return self.plan.fuse_at(nest, self.plan.loops(nest).index(group[0]), len(group))

    def row_blocks(self, work: int = 0) -> Expr:
        """Make a block for each tile of results that have only rows; the loop over a tile's rows.

        `work` is 1 if later rows take more work, -1 if they take less.
        """
        plan, name, axes = self.plan, self.name, self.axes
        plan.do("reorder", name, (*axes.batch, *axes.rows))
        tiles, row = plan.split(name, self._fuse(name, axes.rows), self.tile.block_rows, "mask")
        if work:
            plan.do("reorder", name, (*self._most_work_first(tiles, work), row))
        plan.do("parallel", name, self._fuse(name, plan.loops(name)[:-1]))
        return row

    def blocks(self, work: int = 0) -> tuple[Expr, Expr]:
        """Make a block for each tile; the loops over a tile's rows and over its columns.

        `work` is 1 if later rows take more work, -1 if they take less.
        """
        plan, name, axes = self.plan, self.name, self.axes
        order = (*axes.batch, *axes.rows, *axes.columns)
        if len(order) > 1:
            plan.do("reorder", name, order)
        rows, columns = self._fuse(name, axes.rows), self._fuse(name, axes.columns)
        row_tiles, row = plan.split(name, rows, self.tile.block_rows, "mask")
        column_tiles, column = plan.split(name, columns, self.tile.block_columns, "mask")
        if work:
            outer = (*self._most_work_first(row_tiles, work), column_tiles)
        else:
            outer = (*axes.batch, *self._grouped(row_tiles, column_tiles))
        plan.do("reorder", name, (*outer, row, column))
        plan.do("parallel", name, self._fuse(name, outer))
        return row, column

    def _most_work_first(self, row: Expr, work: int) -> tuple[Expr, ...]:
        """The loops over the batch and over tiles of rows, in an order in which blocks with most
        work come first.

        They come first among the blocks of as many products as fill the device. The last blocks are
        then short, so that multiprocessors are idle only briefly.
        """
        plan, name = self.plan, self.name
        if work > 0:
            plan.do("reverse", name, row)
        if not self.axes.batch:
            return (row,)
        batch = self._fuse(name, self.axes.batch)
        if not (row.size.is_const and batch.size.is_const):
            return row, batch
        count, rows = batch.size.arg, row.size.arg
        least = -(-2 * BLOCKS_AT_ONCE * plan.target.multiprocessors // rows)
        group = next((n for n in range(least, count) if count % n == 0), count)
        if group == count:
            return row, batch
        groups, batch = plan.split(name, batch, group)
        return groups, row, batch

    def _grouped(self, row: Expr, column: Expr) -> list[Expr]:
        """The loops over tiles in an order in which blocks that run at once use few rows and
        columns.

        A few rows of tiles are done together: the blocks of a column of these come first.
        """
        count = row.size
        at_once = BLOCKS_AT_ONCE * self.plan.target.multiprocessors
        group = best_group(count.arg, at_once, self.tile) if count.is_const else 1
        if group in (1, count.arg):
            return [row, column] if group == 1 else [column, row]
        groups, row = self.plan.split(self.name, row, group)
        return [groups, column, row]

    def terms(self, row: Expr, column: Expr) -> Expr:
        """Put a loop over parts of the sum around the loops of the tile; the loop over one part."""
        result_axes = self.plan.nest(self.reduce).computes[0].ranges
        loops = [loop.range for loop in self.plan.nest(self.reduce).loops]
        term = self._fuse(self.reduce, [r for r in loops if r not in result_axes])
        (c,) = self.plan.nest(self.reduce).computes
        tail = "mask" if is_product_of_loads(c) else "peel"
        parts, term = self.plan.split(self.reduce, term, self.tile.step, tail)
        self.plan.do("reorder", self.reduce, (parts, row, column, term))
        return term

    def stage_operands(
        self, tile: Sequence[Expr], term: Expr, place: Callable[[Expr], str] | None = None
    ) -> list[str]:
        """Copy the operands that are reused, for one part of the sum; the names of the copies.

        A load that varies with both rows and columns is used once. With `place`, the copies are of
        all parts of the sum, each in the first loop of the nest that `place` gives for its load.
        """
        names: list[str] = []
        tile = [r for loop in tile for r in self._in_lines(self.reduce, loop)]
        while True:
            nest = self.plan.nest(self.reduce)
            part = nest.loops[0].range
            inside = [loop.range for loop in nest.loops[1:]]
            found = loads(nest.computes[0].value)
            again = [e for e in found if _is_used_again(e, tile, term)]
            if not again:
                return names
            # A load inside of another load's index belongs to the copy of that load.
            e = next(e for e in again if not any(e in loads(x) for x in again if x is not e))
            number = [x for x in found if x.arg == e.arg].index(e)
            axes = [r for r in inside if r in e.ranges]
            # A warp takes rows or columns of matrices; a thread, rows of one term.
            last = _along(e, axes) if self.tile.matrices else axes[0]
            order = [r for r in axes if r is not last] + [last]
            if place is not None and part in e.ranges:
                order.insert(0, part)
            names.append(f"{self.reduce}.tile{len(names)}")
            what = "load" if self.tile.matrices else "value"
            at = self.reduce if place is None else place(e)
            self.plan.do("stage", self.reduce, e.arg, at, 1, order, names[-1], number, what)
            if self.tile.matrices is not None:
                self._swizzle(names[-1], self.tile.matrices, last is term)

    def _swizzle(self, copy: str, by: MatrixIntrinsic, along_terms: bool) -> None:
        """Swizzle a copy, so that the pieces that a warp takes at a time are in different banks.

        The pieces are rows of 16 bytes of eight rows or columns. Of elements that cannot be
        transposed they are two pieces of four terms.
        """
        pieces = () if along_terms or by.packed > 1 else (2,)
        axis = self.plan.nest(copy).computes[0].ranges[-2]
        self.plan.do("swizzle", copy, axis, *pieces)

    @property
    def _together(self) -> bool:
        """True if warps multiply together, from lines of shared memory."""
        return self.tile.matrices is not None and self.tile.matrices.warps > 1

    def _in_lines(self, nest: str, r: Expr) -> list[Expr]:
        """A loop over rows or columns as the loops that warp groups need, or as it is for others.

        These are a loop over lines, if there are several, and one inside of a line.
        """
        if not self._together:
            return [r]
        if r not in self.plan.loops(nest):  # the copies have split it already
            return [o.range for o in self.plan.nest(nest).loops if o.is_from(r)]
        outer, inner = self._part(nest, r, min(LINE, r.size.arg))
        return [*outer, inner]

    def threads(self, nest: str, row: Expr, column: Expr | None, term: Expr | None = None) -> None:
        """Bind threads along both axes of a tile, and arrange the part of each of them.

        Without a column, the threads of a row do the same.
        """
        plan, tile = self.plan, self.tile
        if tile.matrices is not None:
            self._warps(tile.matrices, nest, row, column, term)
            return
        lanes = max(1, MAX_ACCESS_BYTES // self._dtype.itemsize)
        outer = self._around(nest, row, column, term)
        rows = _shared_out(plan, nest, row, tile.row_threads, min(tile.rows, lanes))
        columns = _Shares()
        if column is not None:
            near = min(tile.columns, lanes)
            columns = _shared_out(plan, nest, column, tile.column_threads, near)
        threads = [*rows.threads, *columns.threads]
        copies = [*rows.copies, *rows.last, *columns.copies]
        terms = [] if term is None else self._unrolled(term)
        plan.do("reorder", nest, (*outer, *threads, *terms, *copies, *columns.last))
        _bind(plan, nest, threads, copies, columns.last)

    def _warps(
        self, by: MatrixIntrinsic, nest: str, row: Expr, column: Expr | None, term: Expr | None
    ) -> None:
        """Bind warps along both axes of a tile, and the threads of each as an instruction
        has them.
        """
        plan, tile = self.plan, self.tile
        *row_lines, row = self._in_lines(nest, row)
        column_lines: list[Expr] = []
        if column is not None:
            *column_lines, column = self._in_lines(nest, column)
        outer = self._around(nest, *row_lines, row, *column_lines, column, term)
        down, rows = self._part(nest, row, tile.rows * by.down)
        down = [*row_lines, *down]
        row_copies, rows = self._part(nest, rows, by.rows)
        half, near = self._part(nest, rows, by.down)
        across, column_copies, beside, lanes = self._warp_columns(by, nest, column)
        column_copies = [*column_lines, *column_copies]
        threads = [*down, *across, near, *beside]
        terms = [] if term is None else self._parts(nest, term, by.terms)
        copies = [*row_copies, *column_copies, *half]
        plan.do("reorder", nest, (*outer, *threads, *terms[:-1], *copies, *lanes, *terms[-1:]))
        _bind(plan, nest, threads, copies, lanes)
        for last in terms[-1:]:
            plan.do("tensorize", nest, last, by.name)

    def _warp_columns(
        self, by: MatrixIntrinsic, nest: str, column: Expr | None
    ) -> tuple[list[Expr], list[Expr], list[Expr], list[Expr]]:
        """The loops over the columns of a tile: warps, copies, threads of a warp, lanes."""
        if column is None:
            return [], [], [], []
        mine = LINE if self._together else self.tile.columns * by.across
        across, columns = self._part(nest, column, mine)
        copies, columns = self._part(nest, columns, by.columns)
        beside, lane = self._part(nest, columns, by.near)
        return across, copies, beside, [lane]

    def _around(self, nest: str, *tile: Expr | None) -> list[Expr]:
        """The loops of a nest around those of a tile."""
        return self.plan.others(nest, tile)

    def _part(self, nest: str, r: Expr, size: int) -> tuple[list[Expr], Expr]:
        """A loop as parts of a size: the loop over parts, if there are several, and the loop
        inside.
        """
        *outer, inner = self._parts(nest, r, size)
        return outer, inner

    def _parts(self, nest: str, r: Expr, size: int) -> list[Expr]:
        return [r] if r.size.arg == size else list(self.plan.split(nest, r, size))

    def _unrolled(self, term: Expr) -> list[Expr]:
        """The loop over the terms in shared memory, a few of them unrolled."""
        if self.tile.step <= UNROLLED:
            return [term]
        unrolled = next(n for n in range(UNROLLED, 0, -1) if self.tile.step % n == 0)
        some, term = self.plan.split(self.reduce, term, unrolled)
        self.plan.do("unroll", self.reduce, term)
        return [some, term]

    @property
    def _dtype(self) -> DType:
        return self.plan.nest(self.reduce).computes[0].value.dtype


def _is_used_again(e: Expr, tile: Sequence[Expr], term: Expr) -> bool:
    """True if a load varies with the terms of the sum, and is reused along one axis of the tile."""
    return term in e.ranges and not e.ranges.issuperset(tile)


@final
@dataclass(frozen=True)
class _Shares:
    """The loops that one loop was split into: none or one of each kind."""

    copies: tuple[Expr, ...] = ()
    threads: tuple[Expr, ...] = ()
    last: tuple[Expr, ...] = ()


def _shared_out(plan: Plan, nest: str, r: Expr, threads: int, near: int) -> _Shares:
    """Split a loop into copies of threads that have `near` adjacent elements each."""
    if threads * near == 1:
        return _Shares(copies=(r,))
    copies: tuple[Expr, ...] = ()
    if threads * near < r.size.arg:
        outer, r = plan.split(nest, r, threads * near)
        copies = (outer,)
    if threads == 1:
        return _Shares(copies, (), (r,))
    if near == 1:
        return _Shares(copies, (r,))
    thread, last = plan.split(nest, r, near)
    return _Shares(copies, (thread,), (last,))


def _bind(
    plan: Plan, nest: str, threads: Sequence[Expr], copies: Sequence[Expr], lanes: Sequence[Expr]
) -> None:
    for primitive, loops in (("bind", threads), ("unroll", copies), ("vectorize", lanes)):
        for loop in loops:
            plan.do(primitive, nest, loop)


# -- copies of the operands ------------------------------------------------------------------------


def fill_copy(plan: Plan, name: str, tile: BlockTile) -> None:
    """Share out a copy among the threads of a block: neighbouring threads read adjacent elements.

    It is pipelined to the tile's depth, if it hangs in a loop over steps.
    """
    (c,) = plan.nest(name).computes
    axes = c.ranges
    # The loads before the last one are part of its index.
    element = [e for e in loads(c.value) if e.ranges & set(axes)][-1]
    along = _along(element, axes)
    transposed = along is not axes[-1]
    around = plan.kernel.loop_around(plan.nest(name))
    ahead = tile.pipeline_depth > 1 and around is not None and around.kind is Kind.SERIAL
    lanes = _lanes(element, along)
    # Transposed elements go to separate places: each by itself, if a copy needs no register.
    if transposed and ahead and c.value is element and element.dtype.itemsize in COPIED_BYTES:
        lanes = 1
    first = gcd(tile.threads, along.size.arg // lanes)
    mine = _shared_out(plan, name, along, first, lanes)
    near = mine.threads
    if transposed:
        near = _nearest(plan, name, near, lanes * element.dtype.itemsize)
    copies = list(mine.copies)
    across: list[Expr] = []
    left = tile.threads // first
    for r in (r for r in axes if r is not along):
        count = gcd(left, r.size.arg)
        left //= count
        share = _shared_out(plan, name, r, count, 1)
        copies += share.copies
        across += share.threads
    bound = [*near[:-1], *across, *near[-1:]]
    plan.do("reorder", name, (*copies, *bound, *mine.last))
    _bind(plan, name, bound, copies, mine.last)
    if transposed:
        _pad(plan, name, axes[0])
    if ahead:
        plan.do("pipeline", name, tile.pipeline_depth)


def _along(e: Expr, axes: Sequence[Expr]) -> Expr:
    """The axis along which neighbours in a copy are adjacent in memory."""
    return max(reversed(axes), key=lambda r: _unit_steps(e, r))


def _nearest(plan: Plan, name: str, threads: Sequence[Expr], each: int) -> tuple[Expr, ...]:
    """Threads along a row, of which only as many come first as read one sector.

    The next threads take other rows, which they store next to one another.
    """
    together = max(1, plan.target.block_speeds.sector // each)
    if not threads or threads[0].size.arg <= together:
        return tuple(threads)
    return plan.split(name, threads[0], together)


def _pad(plan: Plan, name: str, axis: Expr) -> None:
    """Pad an axis, so that neighbouring threads write to different banks."""
    (c,) = plan.nest(name).computes
    inner = [r for r in c.ranges if plan.kernel.origin(r) is plan.kernel.origin(axis)][-1]
    plan.do("pad", name, inner, MAX_ACCESS_BYTES // c.value.dtype.itemsize)


def _unit_steps(e: Expr, r: Expr) -> int:
    """The number of the first steps along a range that lead to the next element."""
    index = e.src[0]
    if any(x.op is ExprOp.LOAD for x in toposort([index])):
        return 0
    places = index_values(index, {r: np.arange(min(r.size.arg, MAX_SEEN_STEPS))})
    return int((np.diff(places) == 1).sum())


def _lanes(e: Expr, r: Expr) -> int:
    """The number of adjacent elements that one load takes: aligned, under one condition."""
    lanes = gcd(MAX_ACCESS_BYTES // e.dtype.itemsize, r.size.arg)
    while lanes > 1 and not _is_whole(e, r, lanes):
        lanes //= 2
    return lanes


def _is_whole(e: Expr, r: Expr, lanes: int) -> bool:
    """True if `lanes` elements along a range are adjacent, aligned, and all valid or none."""
    lane = range_("lane", lanes)
    index, valid = substitute(e.src, {r: range_("part", r.size // lanes) * lanes + lane})
    terms, first = index.linear()
    rest = [count for atom, count in terms.items() if atom is not lane]
    aligned = gcd(lanes, first, *rest) == lanes
    return step_of(index, lane) == 1 and aligned and lane not in valid.ranges
