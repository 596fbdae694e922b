"""The cost model of contractions on thread blocks, and the tile of results with the least time.

The time is that of the multiprocessor with the most blocks, in cycles, by the work of its lanes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from ferrule.base.records import dataclass
from ferrule.codegen.intrinsics import WARP, MatrixIntrinsic, by_warp_groups
from ferrule.codegen.kernel import BANK_LINE_BYTES, MAX_ACCESS_BYTES
from ferrule.ir.target import Target

# An H100 (compute capability 9.0), where nothing else is said. Sizes are those of the hardware;
# cycles are estimates from NVRTC's machine code (2026-11-23) unless a measurement is named.
ACCUMULATOR_BYTES = 512  # bytes of the results of one thread
MATRIX_RESULTS = 128  # results of one thread, if warps multiply matrices: half of its registers
PIPELINE_DEPTHS = (4, 3, 2)  # steps in shared memory: one is used, the others on their way
WARP_GROUP_DEPTHS = (4,)  # the same for warp groups, which read one more step until they are done
WARP_GROUP_COLUMNS = (64, 128, 256)  # columns of a tile by warp groups
REGISTER_DEPTHS = (2,)  # the same if the copies on their way are in a thread's registers
MAX_HELD = 160  # results and copies in a thread's registers; each copy has an address as well
RESIDENT = 2  # blocks on a multiprocessor at once, assumed where it is not computed
STEPS = (8, 16, 32)  # terms of the sum between two barriers
MATRIX_STEPS = (*STEPS, 64)  # the same if warps multiply matrices
# A multiprocessor: lanes that begin a multiply-add in each cycle, and for each lane its threads and
# its registers.
LANES = 128
THREADS_OF_LANE = 16
REGISTERS = 512
OTHER_REGISTERS = 40  # registers of a thread beside its results
# Cycles of all lanes of a multiprocessor at once; those of a step are of a block.
BANKS_CYCLES = 4.0  # to read from all banks of shared memory
# To read an element of a thread's rows, and of its columns, from there. With these two, fitted to
# times on an H100, products of 4096 x 4096 x 4096, 2048 x 1536 x 384, 2048 x 384 x 1536 and 1536 x
# 2048 x 384 get tiles that are at most 3 % slower than the best of 48; without, 14 to 58 %.
ROW_CYCLES, COLUMN_CYCLES = 1.0, 2.0
FILL_CYCLES = 4.0  # to copy one element to shared memory
PLACE_CYCLES = 8.0  # to compute the source of an element, if each step has other taps of a window
AHEAD_CYCLES = 1.0  # to copy one element asynchronously
STEP_CYCLES = 500.0  # from the loads of a step to its first multiply-add
TURN_CYCLES = 40.0  # from the last multiply-add of a step to the first of the next
MATRIX_CYCLES = 2.0  # of a multiprocessor, for one product of matrices by a warp
GROUP_CYCLES = 0.62  # for each column of a product by a warp group; measured, 2026-11-27
NAIVE_CYCLES = 16.0  # for a multiply-add whose operands both come from the caches
SECOND_KERNEL = 3e-6  # seconds from the end of a kernel to the first results of its reader
SOON_OPERATIONS = 32768  # operations that a block does in about that time
LINE_SUMS = 32  # sums across memory that lie in a line, all of which one block has


@final
@dataclass(frozen=True)
class BlockTile:
    """The tile of results that a block computes at a time.

    Its threads are a grid of `row_threads` x `column_threads`, and each has `rows` x `columns`
    results. `step` terms of the sum are in shared memory at once. With `matrices`, an instruction,
    its warps multiply matrices, and the layout of the threads' elements is that instruction's.
    Copies of `pipeline_depth` steps are in shared memory, all but one of them on their way.
    """

    rows: int
    columns: int
    row_threads: int
    column_threads: int
    step: int
    matrices: MatrixIntrinsic | None = None
    pipeline_depth: int = 1

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
        """The number of elements of a step in shared memory, without padding."""
        return (self.block_rows + self.block_columns) * self.step

    def shared_bytes(self, itemsize: int) -> int:
        """The bytes of shared memory that it takes at most, with the padding that threads
        may need.
        """
        padding = 0 if self.matrices else 2 * MAX_ACCESS_BYTES // itemsize * self.step
        return self.pipeline_depth * (self.staged + padding) * itemsize


@final
@dataclass(frozen=True)
class Work:
    """The size of a contraction: the number of products of matrices, and the sizes of these."""

    batch: int
    rows: int
    columns: int
    terms: int
    itemsize: int
    matrices: MatrixIntrinsic | None
    """The instruction by which warps multiply them, if there is one."""
    ahead: bool = False
    """True if copies to shared memory can go on while the threads multiply."""
    by_registers: tuple[bool, bool] = (False, False)
    """True if the copies of the rows, or of the columns, need the threads' registers meanwhile."""
    period: int = 1
    """The number of terms for each step of the outermost loop over terms."""

    @property
    def copied_bytes(self) -> int:
        """The bytes of an element in shared memory."""
        return self.itemsize if self.matrices is None else self.matrices.itemsize


@lru_cache(maxsize=4096)
def best_grid_tile(target: Target, work: Work) -> BlockTile | None:
    """The tile with the least time; None if a thread for each result takes less.

    Of tiles with equal times it has few elements in shared memory, and a shallow pipeline.
    """
    best = None, naive_cost(target, work)
    for by, depths in _kinds(target, work):
        tiles, table = _candidates(target, work.itemsize, by, work.period, depths)
        if tiles:
            cycles = grid_tile_cost(target, work, table)
            costs = np.where(_fits(target, work, table), cycles, np.inf)
            keys: Any = (table.pipeline_depth, table.staged, costs)
            first = np.lexsort(keys)[0]
            best = min(best, (tiles[first], costs[first]), key=operator.itemgetter(1))
    return best[0]


def _kinds(target: Target, work: Work) -> Iterator[tuple[MatrixIntrinsic | None, tuple[int, ...]]]:
    """The instructions that may multiply, each with the pipeline depths that may be used."""
    by = work.matrices
    if not work.ahead:
        yield by, (1,)
    elif any(work.by_registers):
        yield by, (1, *REGISTER_DEPTHS)
    else:
        yield by, (1, *PIPELINE_DEPTHS)
        groups = None if by is None else by_warp_groups(by, target)
        if groups is not None:
            yield groups, WARP_GROUP_DEPTHS


@lru_cache(maxsize=64)
def _candidates(
    target: Target,
    itemsize: int,
    by: MatrixIntrinsic | None,
    period: int,
    depths: tuple[int, ...],
) -> tuple[list[BlockTile], BlockTile]:
    """All tiles for some work, and the same as one tile whose fields are arrays, with an entry for
    each.
    """
    if by is None:
        plain = _tiles(target, itemsize, period)
    else:
        plain = _warp_group_tiles(target, by) if by.warps > 1 else _matrix_tiles(target, by)
    tiles = [replace(tile, pipeline_depth=n) for tile in plain for n in depths]
    names = ("rows", "columns", "row_threads", "column_threads", "step", "pipeline_depth")
    arrays: dict[str, Any] = {
        name: np.array([getattr(tile, name) for tile in tiles]) for name in names
    }
    return tiles, BlockTile(**arrays, matrices=by)


def _tiles(target: Target, itemsize: int, period: int) -> Iterator[BlockTile]:
    sizes = (1, 2, 4, 8, 16)
    counts = [1 << i for i in range(target.block_threads.bit_length())]
    for rows, columns in itertools.product(sizes, sizes):
        if rows * columns * max(itemsize, 4) > ACCUMULATOR_BYTES:
            continue
        for down, across in itertools.product(counts, counts):
            if not target.warp <= down * across <= target.block_threads:
                continue
            for step in _steps(period):
                tile = BlockTile(rows, columns, down, across, step)
                if (tile.staged + 4 * step) * itemsize <= target.shared_bytes:
                    yield tile


def _steps(period: int) -> list[int]:
    """The steps that are tried: some terms, or all terms of some iterations of the outermost loop.

    In the latter case the indices of the inner loops are constants.
    """
    whole = [n * period for n in range(1, max(STEPS) // period + 1)] if period > 1 else []
    return sorted({*STEPS, *(n for n in whole if n >= min(STEPS))})


def _matrix_tiles(target: Target, by: MatrixIntrinsic) -> Iterator[BlockTile]:
    counts = (1, 2, 4, 8)
    near = by.rows // by.down
    for down, across, rows, columns in itertools.product(counts, counts, counts, counts):
        results = near * rows * by.near * columns
        if down * across * WARP > target.block_threads or results > MATRIX_RESULTS:
            continue
        for step in MATRIX_STEPS:
            tile = BlockTile(
                rows * near, columns * by.near, down * by.down, across * by.across, step, by
            )
            fits = tile.staged * by.itemsize <= target.shared_bytes
            if step % by.terms == 0 and fits:
                yield tile


def _warp_group_tiles(target: Target, by: MatrixIntrinsic) -> Iterator[BlockTile]:
    """The tiles of 64 rows for each four warps."""
    step = BANK_LINE_BYTES // by.itemsize
    for groups, columns in itertools.product((1, 2), WARP_GROUP_COLUMNS):
        rows = groups * by.warps * by.down
        tile = BlockTile(2, columns // by.across, rows, by.across, step, by)
        if tile.threads <= target.block_threads:
            yield tile


def _fits(target: Target, work: Work, tile: BlockTile) -> Any:
    """True if the steps of a tile fit into shared memory, and a thread's part into registers."""
    held = tile.rows * tile.columns + _on_their_way(work, tile)
    fits = (tile.shared_bytes(work.copied_bytes) <= target.shared_bytes) & (held <= MAX_HELD)
    return (tile.pipeline_depth == 1) | fits


def _on_their_way(work: Work, tile: BlockTile) -> Any:
    """The number of copied elements that each thread's registers hold while it multiplies."""
    sides = zip(work.by_registers, (tile.block_rows, tile.block_columns), strict=True)
    held = sum(size for through, size in sides if through) * tile.step // tile.threads
    return held * (tile.pipeline_depth > 1)


def _blocks(target: Target, work: Work, tile: BlockTile) -> Any:
    """The number of blocks on the multiprocessor that has the most."""
    blocks = work.batch * -(-work.rows // tile.block_rows) * -(-work.columns // tile.block_columns)
    return -(-blocks // multiprocessors(target))


def _room(target: Target, work: Work, tile: BlockTile) -> Any:
    """The number of blocks that run at once: registers and shared memory limit it."""
    held = tile.rows * tile.columns + _on_their_way(work, tile)
    registers = tile.threads * (OTHER_REGISTERS + held)
    room = LANES * REGISTERS // registers
    if target.static_shared_bytes is not None:  # else it is not known what they have together
        room = np.minimum(room, target.l1_bytes // tile.shared_bytes(work.copied_bytes))
    return np.maximum(1, room)


def grid_tile_cost(target: Target, work: Work, tile: BlockTile) -> Any:
    """About the cycles of a contraction, on the multiprocessor that has the most blocks.

    For a tile whose fields are arrays it is an array.
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
        fill = np.where(through | (tile.pipeline_depth == 1), FILL_CYCLES, AHEAD_CYCLES)
        cycles = cycles + (fill + PLACE_CYCLES * splits) * size / LANES
    busy = tile.step * cycles
    at_once = np.minimum(blocks, _room(target, work, tile))
    # The latency that the steps in between do not hide.
    hidden = np.maximum(TURN_CYCLES, STEP_CYCLES - (tile.pipeline_depth - 1) * busy * at_once)
    wait = np.where(tile.pipeline_depth == 1, STEP_CYCLES, hidden)
    first = np.where(tile.pipeline_depth == 1, 0.0, STEP_CYCLES)
    return blocks * (steps * (busy + wait / at_once) + first / at_once)


def best_group(rows: int, at_once: int, tile: BlockTile) -> int:
    """The number of rows of tiles that are done together: a divisor of the number of all.

    The blocks that run at once are a rectangle of tiles, whose rows and columns are in the cache.
    """
    divisors = [n for n in range(1, rows + 1) if rows % n == 0]
    sizes = {n: n * tile.block_rows + -(-at_once // n) * tile.block_columns for n in divisors}
    return min(divisors, key=sizes.__getitem__)


def naive_cost(target: Target, work: Work) -> float:
    """The cost without a tile: a thread for each result, or a block for each if there are few."""
    products = work.batch * work.rows * work.columns * work.terms
    return products * NAIVE_CYCLES / (LANES * multiprocessors(target))


def shares_out_rows(target: Target, results: int, operations: float, along: bool) -> bool:
    """True if thread blocks do well with sums of so many operations, and with their consumers.

    There must be enough blocks for all multiprocessors, or each block must be done soon.
    """
    together = 1 if along else LINE_SUMS
    enough = results >= together * RESIDENT * multiprocessors(target)
    return enough or together * operations <= SOON_OPERATIONS


def clock(target: Target) -> float:
    """The number of cycles of a multiprocessor in a second."""
    return target.flops_per_second * target.max_threads / (2 * LANES * multiprocessors(target))


def multiprocessors(target: Target) -> int:
    return max(1, target.max_threads * target.block_threads // (LANES * THREADS_OF_LANE))


def term_cycles(target: Target, tile: BlockTile, itemsize: int) -> Any:
    """The cycles of all lanes for one term of the sums of as many threads."""
    by = tile.matrices
    if by is None:
        banks = BANKS_CYCLES * _bank_reads(target, tile, itemsize)
        return np.maximum(tile.rows * tile.columns, banks)
    if by.warps > 1:
        columns = tile.block_columns
        read = (by.warps * by.rows + columns) * by.terms * by.itemsize / BANK_LINE_BYTES
        return np.maximum(GROUP_CYCLES * columns, read) / by.terms
    rows, columns = tile.rows * by.down // by.rows, tile.columns // by.near
    banks = rows * by.rows // by.across + columns * by.columns // by.across
    return np.maximum(MATRIX_CYCLES * rows * columns, banks) * LANES / WARP / by.terms


def _bank_reads(target: Target, tile: BlockTile, itemsize: int) -> Any:
    """The number of reads of all banks of shared memory for one term of a warp's sums."""
    across = np.minimum(tile.column_threads, target.warp)
    down = np.maximum(1, target.warp // across)

    def reads(results: Any, threads: Any) -> Any:
        near = np.minimum(results * itemsize, MAX_ACCESS_BYTES)
        return results * itemsize / near * np.maximum(1.0, near * threads / BANK_LINE_BYTES)

    return reads(tile.columns, across) + reads(tile.rows, down)
