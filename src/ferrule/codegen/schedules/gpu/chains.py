"""Chains of contractions for thread blocks: the values between two of them are never in memory.

An example is attention. A block of threads has some rows of the result. It goes along the axis that
the last contraction sums over, a tile at a time. The first contraction makes a tile of scores in
registers. Maxima and sums go on from the tile before (`fuse_reduces`). The weights that the scores
become are multiplied from shared memory. A thread has the same rows in all of this, so values of a
row never leave its registers.

There may be several first contractions, as in the gradients of attention; or no last one, if a
row's result is made of reduces of its scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import final

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.loop_partitions import segments_of
from ferrule.codegen.intrinsics import ASYNC_COPIES, MatrixIntrinsic, by_warp_groups
from ferrule.codegen.kernel import (
    BANK_LINE_BYTES,
    MAX_ACCESS_BYTES,
    Compute,
    Kernel,
    Kind,
    Nest,
    reads,
)
from ferrule.codegen.plan import Plan, loads
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.primitives.nests import compute_at
from ferrule.codegen.primitives.reduce_fusion import fuse_reduces
from ferrule.codegen.schedules.cpu.contraction import is_contraction
from ferrule.codegen.schedules.gpu.cost import (
    HELD_REGISTERS,
    BlockTile,
    blocks_at_once,
    term_cycles,
)
from ferrule.codegen.schedules.gpu.tile import Axes, Tiling, fill_copy, goes_alone, matrix_product
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import INDEX, Expr, ExprOp
from ferrule.ir.target import Target

CHAIN_REGISTERS = 112  # registers of one thread for its scores and results, beside operands
TERMS = (16, 32)  # terms of a score between two barriers
MATRIX_TERMS = (16, 32, 64)  # the same if warps multiply matrices
AHEAD = 2  # tiles of terms in shared memory at once, if copies are asynchronous


@final
@dataclass(frozen=True)
class ChainTile:
    """The tile that a block computes at a time: scores of some rows and terms, and results of the
    rows.

    Both have the same rows, in the same threads. Without results, there is one result for each row.
    """

    scores: BlockTile
    results: BlockTile | None
    whole: bool = False
    """True if all terms of a tile's scores are in shared memory at once.

    Those of the rows stay from the first tile to the last, the others are pipelined to the depth of
    `scores`.
    """

    @property
    def threads(self) -> int:
        """The threads of the block."""
        return self.scores.threads

    def held(self, contractions: int) -> int:
        """The number of one thread's scores, of so many first contractions, and results."""
        columns = 0 if self.results is None else self.results.columns
        return self.scores.rows * (contractions * self.scores.columns + columns)

    def shared_bytes(self, work: ChainWork) -> int:
        """The bytes of shared memory that it takes, with padding."""
        rows, terms = self.scores.block_rows, self.scores.block_columns
        near = MAX_ACCESS_BYTES // work.itemsize
        copies, least = self.scores.pipeline_depth, max(self.scores.step, near)
        elements = 0
        for depth in work.depths:
            step = -(-depth // least) * least if self.whole else least
            elements += (rows + near) * step + rows * near
            elements += copies * ((terms + near) * step + terms * near)
        if self.results is not None:
            chained = work.matrices is not None and work.matrices.is_chained
            elements += 0 if chained else rows * (terms + near)
            elements += copies * terms * (self.results.block_columns + near)
        return elements * work.itemsize


@final
@dataclass(frozen=True)
class ChainWork:
    """The size of a chain: rows of `terms` scores, and of `columns` results each."""

    batch: int
    rows: int
    depths: tuple[int, ...]
    """The terms of one score, for each first contraction."""
    terms: int
    columns: int
    """1 if there is one result for each row, and no last contraction."""
    itemsize: int
    """Bytes of an element in shared memory."""
    matrices: MatrixIntrinsic | None
    """The instruction by which warps multiply, if there is one."""
    ahead: bool = False
    """True if copies to shared memory can go on while the threads multiply."""
    is_depth_known: bool = True
    """False if the terms of a score are of a symbolic number: they are not all copied at once."""
    operations: float = 1.0
    """The operations on each score, in additions."""


# -- which tile ------------------------------------------------------------------------------------


def best_chain_tile(target: Target, work: ChainWork) -> ChainTile | None:
    """The tile with the least time; None if none fits."""
    tiles = fitting_tiles(target, work)
    costs = {t: (chain_tile_cost(target, work, t), -t.scores.step) for t in tiles}
    return min(costs, key=costs.__getitem__, default=None)


def fitting_tiles(target: Target, work: ChainWork) -> list[ChainTile]:
    """The tiles that fit shared memory."""
    tiles = _candidates(target, work)
    return [t for t in tiles if t.shared_bytes(work) <= target.shared_bytes]


def _candidates(target: Target, work: ChainWork) -> Iterator[ChainTile]:
    by = work.matrices
    groups = None if by is None else by_warp_groups(by, target)
    tiles = _tiles(target, work) if by is None else _matrix_tiles(work, by)
    for tile in tiles:
        for made in (tile, _whole(work, tile)) if work.is_depth_known else (tile,):
            yield replace(made, results=None) if work.columns == 1 else made
    if groups is not None and work.ahead and work.columns > 1 and work.is_depth_known:
        yield from _warp_group_tiles(target, work, groups)


def _tiles(target: Target, work: ChainWork) -> Iterator[ChainTile]:
    counts = [1 << i for i in range(target.block_threads.bit_length())]
    wide = work.itemsize // 4 or 1
    for rows, terms, columns in itertools.product((2, 4, 8), (1, 2, 4), (1, 2, 4, 8, 16)):
        for down, across, step in itertools.product(counts, counts, TERMS):
            if not (target.warp <= down * across <= target.block_threads and across <= target.warp):
                continue
            scores = BlockTile(rows, terms, down, across, step)
            tile = ChainTile(scores, replace(scores, columns=columns, step=terms * across))
            if tile.held(len(work.depths)) * wide <= CHAIN_REGISTERS:
                yield tile


def _matrix_tiles(work: ChainWork, by: MatrixIntrinsic) -> Iterator[ChainTile]:
    """The tiles of warps below one another; more warps would leave a thread too few registers."""
    half = by.rows // by.down
    for warps, terms, columns, step in itertools.product(
        (2, 4), (4, 8), (1, 2, 4, 8, 16), MATRIX_TERMS
    ):
        scores = BlockTile(half, terms * by.near, warps * by.down, by.across, step, by)
        results = replace(scores, columns=columns * by.near, step=terms * by.columns)
        tile = ChainTile(scores, results)
        if tile.held(len(work.depths)) <= CHAIN_REGISTERS:
            yield tile


def _warp_group_tiles(target: Target, work: ChainWork, by: MatrixIntrinsic) -> Iterator[ChainTile]:
    """The tiles of 64 rows for each four warps, with whole lines of scores and of results."""
    line = BANK_LINE_BYTES // by.itemsize
    for groups, terms, columns in itertools.product((1, 2), (1, 2), (1, 2, 4)):
        warps, each = groups * by.warps, line // by.across
        scores = BlockTile(by.near, terms * each, warps * by.down, by.across, line, by)
        tile = ChainTile(scores, replace(scores, columns=columns * each, step=terms * line))
        fits = scores.threads <= target.block_threads
        if fits and tile.held(len(work.depths)) <= HELD_REGISTERS:
            yield _whole(work, tile)


def _whole(work: ChainWork, tile: ChainTile) -> ChainTile:
    """The tile with all terms of its scores in shared memory, copied ahead if that is possible."""
    scores = replace(tile.scores, pipeline_depth=AHEAD if work.ahead else 1)
    return replace(tile, scores=scores, whole=True)


def chain_tile_cost(target: Target, work: ChainWork, tile: ChainTile) -> float:
    """About the cycles of a chain, on the multiprocessor that has the most blocks."""
    speeds = target.block_speeds
    rows, terms = tile.scores.block_rows, tile.scores.block_columns
    columns = 0 if tile.results is None else tile.results.block_columns
    blocks = work.batch * -(-work.rows // rows) * -(-work.columns // max(1, columns))
    blocks = -(-blocks // target.multiprocessors)
    lanes = max(tile.threads, speeds.lanes) / speeds.lanes
    steps = sum(-(-depth // tile.scores.step) for depth in work.depths)
    depth = steps * tile.scores.step
    ahead = tile.scores.pipeline_depth > 1
    copy = speeds.copy / speeds.lanes
    fill = speeds.async_copy / speeds.lanes if ahead else copy
    busy = depth * term_cycles(target, tile.scores, work.itemsize) * lanes
    busy += work.operations * tile.scores.rows * tile.scores.columns * lanes
    busy += speeds.shared_latency * tile.scores.rows * lanes  # rows are combined by shuffles
    busy += fill * (terms if tile.whole else rows + terms) * depth
    if tile.results is not None:
        busy += terms * term_cycles(target, tile.results, work.itemsize) * lanes
        busy += tile.results.rows * tile.results.columns * lanes  # scaled by what a tile changes
        busy += fill * terms * columns
        chained = work.matrices is not None and work.matrices.is_chained
        busy += 0 if chained else copy * rows * terms
        steps += 1
    held = tile.held(len(work.depths)) * max(1, work.itemsize // 4)
    room = blocks_at_once(target, tile.threads, held, tile.shared_bytes(work))
    at_once = min(blocks, room)
    waiting = (1 if tile.whole else steps) * speeds.load_latency
    if ahead:  # the latency that the tile before does not hide
        waiting = max(speeds.barrier, speeds.load_latency - busy * at_once)
    first = 0.0
    if tile.whole:
        first = copy * rows * depth + speeds.load_latency * (2 if ahead else 1) / at_once
    return float(blocks * (-(-work.terms // terms) * (busy + waiting / at_once) + first))


# -- finding chains --------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Chain:
    """A root nest with stages at one place, and the reduce over the last of them.

    That reduce is a contraction if results have columns.
    """

    name: str
    steps: tuple[str, ...]
    """The nests that hang in the loops of the rows, in order."""
    scores: tuple[tuple[str, str], ...]
    """The first contractions, each after the step whose block it makes."""
    last: str
    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]

    @staticmethod
    def of(kernel: Kernel, name: str) -> Chain | None:
        """The chain of a root nest; None if it is none."""
        root = kernel.by_name[name]
        inside = [n for n in kernel.nests if n.at is not None and n.at[0] == name]
        if len(inside) < 2 or inside[-1].at != (name, len(root.loops)):
            return None
        *steps, last = inside
        places = {n.at for n in steps}
        below = [n for n in kernel.nests if n.at is not None and n.at[0] in {s.name for s in steps}]
        others = len(kernel.nests) - len(inside) - len(below) - 1
        if len(places) != 1 or not below or others:
            return None
        ((_, depth),) = [at for at in places if at is not None]
        scores = [(kernel.by_name[n.at[0]], n) for n in below if n.at is not None]
        simple = all(len(n.loops) == 1 for n in (*steps, last))
        if not simple or not all(is_contraction(*pair) for pair in scores):
            return None
        outer, columns = root.loop_ranges[:depth], root.loop_ranges[depth:]
        groups = _by_missing_operands(outer, [*below, last] if columns else below)
        rows = max(groups, key=_count, default=[])
        if not rows or (not columns and loads(last.computes[0].value)):
            return None
        return Chain(
            name=name,
            steps=tuple(n.name for n in steps),
            scores=tuple((step.name, n.name) for step, n in scores),
            last=last.name,
            batch=tuple(r for r in outer if r not in rows),
            rows=tuple(rows),
            columns=tuple(columns),
        )


def _by_missing_operands(ranges: Sequence[Expr], nests: Sequence[Nest]) -> list[list[Expr]]:
    """The loops grouped by the operands of contractions that are the same for all of their
    iterations.

    A loop counts only if some operand of each contraction is.
    """
    operands = [[e for c in n.computes for e in loads(c.value)] for n in nests]
    groups: dict[frozenset[Expr], list[Expr]] = {}
    for r in ranges:
        missing = [[e for e in found if r not in e.ranges] for found in operands]
        if all(missing):
            groups.setdefault(frozenset(e for found in missing for e in found), []).append(r)
    return list(groups.values())


def _count(ranges: Sequence[Expr]) -> int:
    return prod(r.size.max for r in ranges)


def can_fuse_reduces(kernel: Kernel) -> bool:
    """True if a kernel with stages is a chain that can be fused into one loop over tiles."""
    root = kernel.roots[-1]
    chain = Chain.of(kernel, root.name) if len(kernel.roots) == 1 else None
    if chain is None:
        return False
    place = kernel.by_name[chain.steps[0]].at
    assert place is not None
    try:
        fuse_reduces(compute_at(kernel, chain.last, place[1]), chain.last)
    except ScheduleError:
        return False
    return True


# -- the schedule ----------------------------------------------------------------------------------


def schedule_grid_chain(plan: Plan, name: str) -> bool:
    """Tile a root nest with stages for thread blocks; False if it is no such chain."""
    chain = Chain.of(plan.kernel, name)
    if chain is None or len(plan.kernel.roots) > 1:  # it takes all of the shared memory
        return False
    tile = best_chain_tile(plan.target, _work(plan, chain))
    if tile is None:
        return False
    tile_chain(plan, chain, tile)
    return True


def _work(plan: Plan, chain: Chain) -> ChainWork:
    scores = [plan.nest(n).computes[0] for _, n in chain.scores]
    (last,) = plan.nest(chain.last).computes
    matrices = _matrix_products(scores, plan.target)
    if matrices is not None and chain.columns and not _adds_matrices(plan.kernel, last, matrices):
        matrices = None
    return ChainWork(
        batch=_count(chain.batch),
        rows=_count(chain.rows),
        depths=tuple(_count(plan.nest(n).loop_ranges) for _, n in chain.scores),
        terms=_count(plan.nest(chain.last).loop_ranges),
        columns=_count(chain.columns),
        itemsize=max(c.value.dtype.itemsize for c in (*scores, last))
        if matrices is None
        else matrices.itemsize,
        matrices=matrices,
        is_depth_known=all(r.size.is_const for _, n in chain.scores for r in plan.loops(n)),
        operations=_operations(plan, chain.steps),
        ahead=ASYNC_COPIES in plan.target.features.split(",")
        and all(goes_alone(c, matrices is not None) for c in (*scores, last)),
    )


def _operations(plan: Plan, steps: Sequence[str]) -> float:
    """The operations on each score in the steps of a chain, in additions."""
    nodes = [e for n in steps for e in plan.nest(n).nodes]
    found = [e for e in nodes if e.src and e.dtype is not INDEX and e.op is not ExprOp.READ]
    additions = plan.target.speeds.additions
    return sum([additions(e.op.name, is_float=dtypes.is_float(e.dtype)) for e in found])


def _matrix_products(scores: Sequence[Compute], target: Target) -> MatrixIntrinsic | None:
    """The instruction that multiplies for several contractions, all of one dtype, by warps; None if
    there is none.
    """
    (by, *others) = {matrix_product(c, target) for c in scores}
    one_dtype = len({e.dtype for c in scores for e in loads(c.value)}) == 1
    return by if one_dtype and not others else None


def _adds_matrices(kernel: Kernel, last: Compute, by: MatrixIntrinsic) -> bool:
    """True if the last contraction is such a sum too.

    Its weights are rounded to the dtype of the loads; or, if the instruction rounds, they are as
    they are.
    """
    staged = next((e for e in reads([last.value]) if e.src), None)
    found = loads(last.value)
    if staged is None or len(found) != 1 or last.value.op is not ExprOp.MUL:
        return False
    wide, source = last.value.dtype is by.result_dtype, found[0].dtype
    if by.rounds:
        return wide and set(last.value.src) == {staged, found[0]} and source in by.sources
    weights = kernel.computes[staged.arg].value
    sources = {e.src[0].dtype for e in (weights, *last.value.src) if e.op is ExprOp.CAST}
    return wide and weights.op is ExprOp.CAST and sources == {source} and source in by.sources


def tile_chain(plan: Plan, chain: Chain, tile: ChainTile) -> None:
    """Give a chain a tile."""
    tiling = _ChainTiling(plan, chain, tile)
    if tile.results is None:
        tiling.reduce_rows()
    else:
        tiling.add_up(tile.results)


@final
@dataclass
class _ChainTiling:
    """The schedule of one chain: `plan` holds the kernel."""

    plan: Plan
    chain: Chain
    tile: ChainTile

    def add_up(self, tile: BlockTile) -> None:
        """Schedule a chain whose last reduce is a contraction; its results have a tile too."""
        plan, chain = self.plan, self.chain
        results = Tiling(plan, chain.name, chain.last, self._axes, tile)
        row, column = results.blocks(self._more_work())
        terms = self._along()
        here = self._first_contractions(row, terms)
        plan.do("fuse_reduces", chain.last)
        row_here, column_here = plan.copies_of((row, column), chain.last)
        fills = self._stage_operands(results, (row_here, column_here), here, terms)
        self._share_steps(row, here, terms)
        results.threads(chain.name, row, column)
        results.threads(chain.last, row_here, column_here, terms[chain.last])
        self._weights(row)
        self._finish(fills)

    def reduce_rows(self) -> None:
        """Schedule a chain whose last reduce gives one result for each row, as those before it."""
        plan, chain = self.plan, self.chain
        results = Tiling(plan, chain.name, chain.last, self._axes, self.tile.scores)
        row = results.row_blocks(self._more_work())
        terms = self._along()
        here = self._first_contractions(row, terms)
        plan.do("fuse_reduces", chain.last)
        fills = self._stage_scores(here)
        self._share_steps(row, here, terms)
        results.threads(chain.last, plan.copy_of(row, chain.last), terms[chain.last])
        results.threads(chain.name, row, None)
        self._finish(fills)

    def _more_work(self) -> int:
        """1 if later rows have more terms that count, -1 if they have fewer, 0 if all
        have as many.
        """
        rows = set(self.chain.rows)
        for n in (*self.chain.steps, self.chain.last):
            nest = self.plan.nest(n)
            terms = {loop.range for loop in nest.loops}
            for e in nest.nodes:
                if e.op is not ExprOp.CMPLT or not (e.ranges & rows and e.ranges & terms):
                    continue
                by_range, _ = (e.src[0] - e.src[1]).linear()
                steps = [step for r, step in by_range.items() if r in rows]
                if e.src[0].dtype is INDEX and steps:
                    return 1 if min(steps) < 0 else -1
        return 0

    @property
    def _axes(self) -> Axes:
        return Axes(self.chain.batch, self.chain.rows, self.chain.columns)

    def _scores(self, step: str, nest: str) -> Tiling:
        return Tiling(self.plan, step, nest, self._axes, self.tile.scores)

    def _along(self) -> dict[str, Expr]:
        """Move the steps and the last sum out to a block's rows; the loops over the terms of a
        tile, by nest.
        """
        plan, terms = self.plan, dict[str, Expr]()
        nests = (*self.chain.steps, self.chain.last)
        for n in nests:
            plan.do("compute_at", n, 1, True)
        for n in nests:
            columns = self.tile.scores.block_columns
            _, terms[n] = plan.split(n, plan.loops(n)[0], columns, "mask")
        return terms

    def _first_contractions(
        self, row: Expr, terms: dict[str, Expr]
    ) -> dict[str, tuple[Expr, Expr, Expr]]:
        """Compute the scores of a tile in nests of their own.

        Returns the loops of each nest: over rows, over terms of the chain, over its own terms.
        """
        here = {}
        for step, nest in self.chain.scores:
            self.plan.do("compute_at", nest, 1)
            here_too = (self.plan.copy_of(row, step), terms[step])
            rows, columns = self.plan.copies_of(here_too, nest)
            here[nest] = rows, columns, self._scores(step, nest).terms(rows, columns)
        return here

    def _stage_scores(self, here: dict[str, tuple[Expr, Expr, Expr]]) -> list[str]:
        """Copy the loads of the first contractions; the names of the copies' nests."""
        fills = []
        for step, nest in self.chain.scores:
            rows, columns, term = here[nest]
            place = self._place if self.tile.whole else None
            fills += self._scores(step, nest).stage_operands((rows, columns), term, place)
        return fills

    def _place(self, element: Expr) -> str:
        """The nest in whose first loop a load is copied: the loop over tiles of terms, or over
        blocks.
        """
        last = self.chain.last
        along = self.plan.nest(last).loops[0].range
        return last if along in element.ranges else self.chain.name

    def _stage_operands(
        self,
        results: Tiling,
        tile_here: Sequence[Expr],
        here: dict[str, tuple[Expr, Expr, Expr]],
        terms: dict[str, Expr],
    ) -> list[str]:
        """Copy the loads of all contractions; the names of the copies' nests."""
        plan, last = self.plan, self.chain.last
        plan.do("reorder", last, (plan.loops(last)[0], *tile_here, terms[last]))
        return [*self._stage_scores(here), *results.stage_operands(tile_here, terms[last])]

    def _share_steps(
        self, row: Expr, here: dict[str, tuple[Expr, Expr, Expr]], terms: dict[str, Expr]
    ) -> None:
        """Bind threads for the steps and for the first contractions."""
        step, nest = self.chain.scores[0]
        for n in self.chain.steps:
            self._scores(step, nest).threads(n, self.plan.copy_of(row, n), terms[n])
        for step, nest in self.chain.scores:
            self._scores(step, nest).threads(nest, *here[nest])

    def _weights(self, row: Expr) -> None:
        """Place the operand of the last contraction.

        It stays in registers if an instruction takes it as another gives it. Otherwise it is in
        rows of shared memory that begin in different banks.
        """
        plan, last = self.plan, self.chain.last
        by = self.tile.scores.matrices
        if by is not None and by.is_chained:
            for loop in plan.nest(last).loops[1:]:
                if loop.kind is Kind.SERIAL:
                    plan.do("unroll", last, loop.range)
            return
        (c,) = plan.nest(last).computes
        name = next(
            e.arg for e in reads([c.value]) if plan.kernel.owner[e.arg].name in self.chain.steps
        )
        nest, stage = plan.kernel.owner[name].name, plan.kernel.computes[name]
        origin = plan.kernel.origin
        rows = [r for r in stage.ranges if origin(r) is origin(row)]
        terms = [r for r in stage.ranges if r not in rows]
        plan.do("axes", name, (*rows, *terms))
        plan.do("pad", nest, rows[-1], MAX_ACCESS_BYTES // stage.value.dtype.itemsize)

    def _finish(self, fills: Sequence[str]) -> None:
        plan, last = self.plan, self.chain.last
        for fill in fills:
            fill_copy(plan, fill, self.tile.scores)
        plain = plan.nest(last).loops[0]
        plan.limit(last, plain.range)
        limited = plan.nest(last).loops[0] != plain
        if limited and segments_of(plan.kernel, plan.nest(last), 0):
            plan.do("segment", last, plain.range)
