"""Which tile of results a block of threads gets in a contraction: that which takes the least time.

The time is that of the multiprocessor that has the most blocks, in cycles, by what its lanes do.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from ferrule.codegen.intrinsics import WARP, MatrixIntrinsic, by_warp_groups
from ferrule.codegen.kernel import BANKS_BYTES, PIECE_BYTES
from ferrule.records import dataclass
from ferrule.target import Target

ACCUMULATOR_BYTES = 512  # for the results of one thread
MATRIX_RESULTS = 128  # of one thread, where warps multiply matrices: half of its registers
STAGES = (4, 3, 2)  # steps that are in shared memory at once: one is used, the others on their way
GROUP_STAGES = (4,)  # the same where warp groups read one more, until they are done
WARP_GROUP_COLUMNS = (64, 128, 256)
LINE_BYTES = 128  # of shared memory: the terms of a row, or the rows of a term, that they read
BY_REGISTERS = (2,)  # the same where a thread's registers hold what is on its way
MOST_HELD = 160  # of these, and of its results: each element on its way has an address as well
RESIDENT = 2  # blocks of a multiprocessor that this is shared by
STEPS = (8, 16, 32)  # terms of the sum between two barriers
MATRIX_STEPS = (*STEPS, 64)  # the same where warps multiply matrices
# What a multiprocessor has: lanes that multiply and add in each cycle, and what these keep.
LANES = 128
THREADS_OF_LANE = 16
REGISTERS = 512
OTHER_REGISTERS = 40  # of a thread, beside its results
# Time in cycles: for all lanes at once, but for that of a step.
BANKS_CYCLES = 4.0  # to read from all banks of shared memory
# To read an element of a thread's rows, and of its columns, from there. With these two, found from
# times on an H100, products of 4096 x 4096 x 4096, 2048 x 1536 x 384, 2048 x 384 x 1536 and 1536 x
# 2048 x 384 get tiles that are at most 3 % slower than the best of 48; without, 14 to 58 %.
ROW_CYCLES, COLUMN_CYCLES = 1.0, 2.0
FILL_CYCLES = 4.0  # to copy one element there
PLACE_CYCLES = 8.0  # to find out where it comes from, where each step has other taps of a window
AHEAD_CYCLES = 1.0  # the same where the threads do not wait for it
STEP_CYCLES = 500.0  # from the loads of a step to its first multiply-add
TURN_CYCLES = 40.0  # from the last multiply-add of a step to the first of the next
MATRIX_CYCLES = 2.0  # of a multiprocessor, for one product of matrices by a warp
GROUP_CYCLES = 0.62  # the same for each column of a product by a warp group, as measured
NAIVE_CYCLES = 16.0  # a multiply-add whose operands both come from the caches
# In seconds: from the end of a kernel to the first results of one that reads what it wrote.
SECOND_KERNEL = 3e-6
WAITED_FOR = 32768  # operations that a block does in about that time
NEIGHBOURS = 32  # sums across memory that lie in a line, of which a block has all


@final
@dataclass(frozen=True)
class GridTile:
    """What a block computes at a time.

    Its threads are a grid of `row_threads` x `column_threads`, and each has `rows` x `columns`
    results; `step` terms of the sum are in shared memory at once. With `matrices`, an instruction,
    its warps multiply matrices, and the threads hold what that says. With `stages` copies of so
    many steps are in shared memory, all but one of them on their way.
    """

    rows: int
    columns: int
    row_threads: int
    column_threads: int
    step: int
    matrices: MatrixIntrinsic | None = None
    stages: int = 1

    @property
    def threads(self) -> int:
        """The threads of the block."""
        return self.row_threads * self.column_threads

    @property
    def block_rows(self) -> int:
        """The rows of the block's results."""
        return self.rows * self.row_threads

    @property
    def block_columns(self) -> int:
        """The columns of the block's results."""
        return self.columns * self.column_threads

    @property
    def staged(self) -> int:
        """How many elements of a step are in shared memory, but for padding."""
        return (self.block_rows + self.block_columns) * self.step

    def shared_bytes(self, itemsize: int) -> int:
        """The most shared memory that it takes: with padding, which threads may need."""
        padding = 0 if self.matrices else 2 * PIECE_BYTES // itemsize * self.step
        return self.stages * (self.staged + padding) * itemsize


@final
@dataclass(frozen=True)
class Work:
    """The size of a contraction: so many products of matrices."""

    batch: int
    rows: int
    columns: int
    terms: int
    itemsize: int
    matrices: MatrixIntrinsic | None
    """What multiplies them by warps, if something does."""
    ahead: bool = False
    """Whether copies to shared memory can go on while the threads multiply."""
    by_registers: tuple[bool, bool] = (False, False)
    """Whether those of the rows, and of the columns, need the threads' registers meanwhile."""
    period: int = 1
    """How many terms there are to each step of the outermost loop over them."""

    @property
    def copied_bytes(self) -> int:
        """The bytes of an element in shared memory."""
        return self.itemsize if self.matrices is None else self.matrices.itemsize


@lru_cache(maxsize=4096)
def best_grid_tile(target: Target, work: Work) -> GridTile | None:
    """The tile with the least time; None where a thread for each result takes less.

    Of those that take as long it is one with few elements in shared memory, and with few stages.
    """
    best = None, naive_cost(target, work)
    for by, stages in _kinds(target, work):
        tiles, table = _candidates(target, work.itemsize, by, work.period, stages)
        if tiles:
            cycles = grid_tile_cost(target, work, table)
            costs = np.where(_fits(target, work, table), cycles, np.inf)
            keys: Any = (table.stages, table.staged, costs)
            first = np.lexsort(keys)[0]
            best = min(best, (tiles[first], costs[first]), key=operator.itemgetter(1))
    return best[0]


def _kinds(target: Target, work: Work) -> Iterator[tuple[MatrixIntrinsic | None, tuple[int, ...]]]:
    """What may multiply, and how many steps may be in shared memory at once."""
    by = work.matrices
    if not work.ahead:
        yield by, (1,)
    elif any(work.by_registers):
        yield by, (1, *BY_REGISTERS)
    else:
        yield by, (1, *STAGES)
        groups = None if by is None else by_warp_groups(by, target)
        if groups is not None:
            yield groups, GROUP_STAGES


@lru_cache(maxsize=64)
def _candidates(
    target: Target,
    itemsize: int,
    by: MatrixIntrinsic | None,
    period: int,
    stages: tuple[int, ...],
) -> tuple[list[GridTile], GridTile]:
    """All tiles for some work, and the same as one whose numbers are arrays, of a row for each."""
    if by is None:
        plain = _tiles(target, itemsize, period)
    else:
        plain = _warp_group_tiles(target, by) if by.warps > 1 else _matrix_tiles(target, by)
    tiles = [replace(tile, stages=n) for tile in plain for n in stages]
    names = ("rows", "columns", "row_threads", "column_threads", "step", "stages")
    arrays: dict[str, Any] = {
        name: np.array([getattr(tile, name) for tile in tiles]) for name in names
    }
    return tiles, GridTile(**arrays, matrices=by)


def _tiles(target: Target, itemsize: int, period: int) -> Iterator[GridTile]:
    sizes = (1, 2, 4, 8, 16)
    counts = [1 << i for i in range(target.block_threads.bit_length())]
    for rows, columns in itertools.product(sizes, sizes):
        if rows * columns * max(itemsize, 4) > ACCUMULATOR_BYTES:
            continue
        for down, across in itertools.product(counts, counts):
            if not target.warp <= down * across <= target.block_threads:
                continue
            for step in _steps(period):
                tile = GridTile(rows, columns, down, across, step)
                if (tile.staged + 4 * step) * itemsize <= target.shared_bytes:
                    yield tile


def _steps(period: int) -> list[int]:
    """Steps of some terms, or of all terms of some iterations of the outermost loop over them.

    Then the others' numbers are constants.
    """
    whole = [n * period for n in range(1, max(STEPS) // period + 1)] if period > 1 else []
    return sorted({*STEPS, *(n for n in whole if n >= min(STEPS))})


def _matrix_tiles(target: Target, by: MatrixIntrinsic) -> Iterator[GridTile]:
    counts = (1, 2, 4, 8)
    near = by.rows // by.down
    for down, across, rows, columns in itertools.product(counts, counts, counts, counts):
        results = near * rows * by.near * columns
        if down * across * WARP > target.block_threads or results > MATRIX_RESULTS:
            continue
        for step in MATRIX_STEPS:
            tile = GridTile(
                rows * near, columns * by.near, down * by.down, across * by.across, step, by
            )
            fits = tile.staged * by.itemsize <= target.shared_bytes
            if step % by.terms == 0 and fits:
                yield tile


def _warp_group_tiles(target: Target, by: MatrixIntrinsic) -> Iterator[GridTile]:
    """Tiles of 64 rows for each four warps."""
    step = LINE_BYTES // by.itemsize
    for groups, columns in itertools.product((1, 2), WARP_GROUP_COLUMNS):
        rows = groups * by.warps * by.down
        tile = GridTile(2, columns // by.across, rows, by.across, step, by)
        if tile.threads <= target.block_threads:
            yield tile


def _fits(target: Target, work: Work, tile: GridTile) -> Any:
    """Whether the steps of a tile fit into shared memory, and a thread's part into registers."""
    held = tile.rows * tile.columns + _on_their_way(work, tile)
    fits = (tile.shared_bytes(work.copied_bytes) <= target.shared_bytes) & (held <= MOST_HELD)
    return (tile.stages == 1) | fits


def _on_their_way(work: Work, tile: GridTile) -> Any:
    """How many elements each thread's registers hold while it multiplies."""
    sides = zip(work.by_registers, (tile.block_rows, tile.block_columns), strict=True)
    held = sum(size for through, size in sides if through) * tile.step // tile.threads
    return held * (tile.stages > 1)


def _blocks(target: Target, work: Work, tile: GridTile) -> Any:
    """How many blocks the multiprocessor that has the most of them has."""
    blocks = work.batch * -(-work.rows // tile.block_rows) * -(-work.columns // tile.block_columns)
    return -(-blocks // multiprocessors(target))


def _room(target: Target, work: Work, tile: GridTile) -> Any:
    """How many of them run at once: their results have room, and their copies."""
    held = tile.rows * tile.columns + _on_their_way(work, tile)
    registers = tile.threads * (OTHER_REGISTERS + held)
    room = LANES * REGISTERS // registers
    if target.static_shared_bytes is not None:  # else it is not known what they have together
        room = np.minimum(room, target.l1_bytes // tile.shared_bytes(work.copied_bytes))
    return np.maximum(1, room)


def grid_tile_cost(target: Target, work: Work, tile: GridTile) -> Any:
    """About how many cycles a contraction takes, on the multiprocessor that has the most blocks;
    of a tile whose numbers are arrays, an array.
    """
    blocks = _blocks(target, work, tile)
    steps = -(-work.terms // tile.step)
    lanes = np.maximum(tile.threads, LANES)
    cycles = term_cycles(target, tile, work.itemsize) * lanes / LANES
    if tile.matrices is None:
        cycles += (ROW_CYCLES * tile.rows + COLUMN_CYCLES * tile.columns) * lanes / LANES
    splits = (tile.step % work.period != 0) & (work.period % tile.step != 0)
    sides = zip(work.by_registers, (tile.block_rows, tile.block_columns), strict=True)
    for through, size in sides:
        fill = np.where(through | (tile.stages == 1), FILL_CYCLES, AHEAD_CYCLES)
        cycles = cycles + (fill + PLACE_CYCLES * splits) * size / LANES
    busy = tile.step * cycles
    at_once = np.minimum(blocks, _room(target, work, tile))
    # What is not hidden by the steps in between.
    hidden = np.maximum(TURN_CYCLES, STEP_CYCLES - (tile.stages - 1) * busy * at_once)
    wait = np.where(tile.stages == 1, STEP_CYCLES, hidden)
    first = np.where(tile.stages == 1, 0.0, STEP_CYCLES)
    return blocks * (steps * (busy + wait / at_once) + first / at_once)


def best_group(rows: int, at_once: int, tile: GridTile) -> int:
    """How many rows of tiles are done together: a divisor of them all.

    The blocks that run at once are a rectangle of tiles, whose rows and columns are in the cache.
    """
    divisors = [n for n in range(1, rows + 1) if rows % n == 0]
    sizes = {n: n * tile.block_rows + -(-at_once // n) * tile.block_columns for n in divisors}
    return min(divisors, key=sizes.__getitem__)


def naive_cost(target: Target, work: Work) -> float:
    """The same without a tile: a thread for a result, or a block for one where there are few."""
    products = work.batch * work.rows * work.columns * work.terms
    return products * NAIVE_CYCLES / (LANES * multiprocessors(target))


def shares_out_rows(target: Target, results: int, operations: float, along: bool) -> bool:
    """Whether blocks of threads do well with sums, each of so many operations, and with what waits
    for them: there are enough blocks for all multiprocessors, or each is done soon.
    """
    together = 1 if along else NEIGHBOURS
    enough = results >= together * RESIDENT * multiprocessors(target)
    return enough or together * operations <= WAITED_FOR


def clock(target: Target) -> float:
    """How many cycles a multiprocessor has in a second."""
    return target.flops_per_second * target.max_threads / (2 * LANES * multiprocessors(target))


def multiprocessors(target: Target) -> int:
    return max(1, target.max_threads * target.block_threads // (LANES * THREADS_OF_LANE))


def term_cycles(target: Target, tile: GridTile, itemsize: int) -> Any:
    """How long all lanes take for one term of the sums of as many threads."""
    by = tile.matrices
    if by is None:
        banks = BANKS_CYCLES * _bank_reads(target, tile, itemsize)
        return np.maximum(tile.rows * tile.columns, banks)
    if by.warps > 1:
        columns = tile.block_columns
        read = (by.warps * by.rows + columns) * by.terms * by.itemsize / BANKS_BYTES
        return np.maximum(GROUP_CYCLES * columns, read) / by.terms
    rows, columns = tile.rows * by.down // by.rows, tile.columns // by.near
    banks = rows * by.rows // by.across + columns * by.columns // by.across
    return np.maximum(MATRIX_CYCLES * rows * columns, banks) * LANES / WARP / by.terms


def _bank_reads(target: Target, tile: GridTile, itemsize: int) -> Any:
    """How often the banks of shared memory are read for one term of a warp's sums."""
    across = np.minimum(tile.column_threads, target.warp)
    down = np.maximum(1, target.warp // across)

    def reads(results: Any, threads: Any) -> Any:
        near = np.minimum(results * itemsize, PIECE_BYTES)
        return results * itemsize / near * np.maximum(1.0, near * threads / BANKS_BYTES)

    return reads(tile.columns, across) + reads(tile.rows, down)
