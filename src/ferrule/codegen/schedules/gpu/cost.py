"""The tile of results that is proposed for a contraction on thread blocks.

Thousands of tiles are weighed at once, by a formula for the multiprocessor with the most blocks, so
that only the best of them is made. The estimate of the kernel then says whether a tile pays.
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

# Of an H100 (compute capability 9.0), as registers and shared memory leave room for.
RESULT_BYTES = 512  # bytes of the results of one thread
MATRIX_RESULTS = 128  # results of one thread, if warps multiply matrices: half of its registers
HELD_REGISTERS = 160  # results and copies in a thread's registers; copies have addresses as well
PIPELINE_DEPTHS = (4, 3, 2)  # steps in shared memory: one is used, the others on their way
WARP_GROUP_DEPTHS = (4,)  # the same for warp groups, which read one more step until they are done
WARP_GROUP_COLUMNS = (64, 128, 256)  # columns of a tile by warp groups
REGISTER_DEPTHS = (2,)  # the same if the copies on their way are in a thread's registers
STEPS = (8, 16, 32)  # terms of the sum between two barriers
MATRIX_STEPS = (*STEPS, 64)  # the same if warps multiply matrices
LINE_SUMS = BANK_LINE_BYTES // 4  # sums across memory that lie in a line, all of one block
SOON_OPERATIONS = 32768  # operations that a block does while the next kernel begins


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
    """The tile with the least time; None if none fits.

    Of tiles with equal times it has few elements in shared memory, and a shallow pipeline.
    """
    best: tuple[BlockTile | None, float] = None, np.inf
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
        if rows * columns * max(itemsize, 4) > RESULT_BYTES:
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
    fits = (tile.shared_bytes(work.copied_bytes) <= target.shared_bytes) & (held <= HELD_REGISTERS)
    return (tile.pipeline_depth == 1) | fits


def _on_their_way(work: Work, tile: BlockTile) -> Any:
    """The number of copied elements that each thread's registers hold while it multiplies."""
    sides = zip(work.by_registers, (tile.block_rows, tile.block_columns), strict=True)
    held = sum(size for through, size in sides if through) * tile.step // tile.threads
    return held * (tile.pipeline_depth > 1)


def _blocks(target: Target, work: Work, tile: BlockTile) -> Any:
    """The number of blocks on the multiprocessor that has the most."""
    blocks = work.batch * -(-work.rows // tile.block_rows) * -(-work.columns // tile.block_columns)
    return -(-blocks // target.multiprocessors)


def blocks_at_once(target: Target, threads: Any, held: Any, shared_bytes: Any) -> Any:
    """The number of blocks that run at once: registers and shared memory limit it.

    A thread holds `held` values of 32 bits.
    """
    speeds = target.block_speeds
    room = speeds.registers // (threads * (speeds.other_registers + held))
    if target.static_shared_bytes is not None:  # else it is not known what they have together
        room = np.minimum(room, target.l1_bytes // shared_bytes)
    return np.maximum(1, room)


def grid_tile_cost(target: Target, work: Work, tile: BlockTile) -> Any:
    """About the cycles of a contraction, on the multiprocessor that has the most blocks.

    For a tile whose fields are arrays it is an array.
    """
    speeds = target.block_speeds
    blocks = _blocks(target, work, tile)
    steps = -(-work.terms // tile.step)
    lanes = np.maximum(tile.threads, speeds.lanes)
    cycles = term_cycles(target, tile, work.itemsize) * lanes / speeds.lanes
    splits = (tile.step % work.period != 0) & (work.period % tile.step != 0)
    sides = zip(work.by_registers, (tile.block_rows, tile.block_columns), strict=True)
    for through, size in sides:
        fill = np.where(through | (tile.pipeline_depth == 1), speeds.copy, speeds.async_copy)
        cycles = cycles + (fill + 2 * speeds.quotient * splits) * size / speeds.lanes
    busy = tile.step * cycles
    held = tile.rows * tile.columns + _on_their_way(work, tile)
    room = blocks_at_once(target, tile.threads, held, tile.shared_bytes(work.copied_bytes))
    at_once = np.minimum(blocks, room)
    # The latency that the steps in between do not hide.
    latency = speeds.load_latency
    hidden = np.maximum(speeds.barrier, latency - (tile.pipeline_depth - 1) * busy * at_once)
    wait = np.where(tile.pipeline_depth == 1, latency, hidden)
    first = np.where(tile.pipeline_depth == 1, 0.0, latency)
    return blocks * (steps * (busy + wait / at_once) + first / at_once)


def best_group(rows: int, at_once: int, tile: BlockTile) -> int:
    """The number of rows of tiles that are done together: a divisor of the number of all.

    The blocks that run at once are a rectangle of tiles, whose rows and columns are in the cache.
    """
    divisors = [n for n in range(1, rows + 1) if rows % n == 0]
    sizes = {n: n * tile.block_rows + -(-at_once // n) * tile.block_columns for n in divisors}
    return min(divisors, key=sizes.__getitem__)


def shares_out_rows(target: Target, results: int, operations: float, along: bool) -> bool:
    """True if thread blocks do well with sums of so many operations, and with their consumers.

    There must be enough blocks for all multiprocessors, or each block must be done soon.
    """
    together = 1 if along else LINE_SUMS
    enough = results >= 2 * together * target.multiprocessors
    return enough or together * operations <= SOON_OPERATIONS


def term_cycles(target: Target, tile: BlockTile, itemsize: int) -> Any:
    """The cycles of all lanes for one term of the sums of as many threads.

    A thread waits for what it reads; products of matrices go on meanwhile.
    """
    speeds = target.block_speeds
    by = tile.matrices
    if by is None:
        in_turn = speeds.lanes // target.warp
        return tile.rows * tile.columns + in_turn * _bank_reads(target, tile, itemsize)
    if by.warps > 1:
        columns = tile.block_columns
        read = (by.warps * by.rows + columns) * by.terms * by.itemsize / BANK_LINE_BYTES
        return np.maximum(speeds.group_column * columns, read) / by.terms
    rows, columns = tile.rows * by.down // by.rows, tile.columns // by.near
    banks = rows * by.rows // by.across + columns * by.columns // by.across
    return np.maximum(speeds.matrix * rows * columns, banks) * speeds.lanes / WARP / by.terms


def _bank_reads(target: Target, tile: BlockTile, itemsize: int) -> Any:
    """The number of reads of all banks of shared memory for one term of a warp's sums."""
    across = np.minimum(tile.column_threads, target.warp)
    down = np.maximum(1, target.warp // across)

    def reads(results: Any, threads: Any) -> Any:
        near = np.minimum(results * itemsize, MAX_ACCESS_BYTES)
        return results * itemsize / near * np.maximum(1.0, near * threads / BANK_LINE_BYTES)

    return reads(tile.columns, across) + reads(tile.rows, down)
