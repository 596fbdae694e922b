"""Chains of contractions for blocks of threads: what is between two of them is never in memory.

Of such a chain, as attention is one, a block of threads has some rows of the result. It goes along
the axis that the last contraction adds up, a tile at a time: the first contraction gives a tile of
scores in registers, maxima and sums go on from the tile before (`run_along`), and what the scores
have become is multiplied from memory that the threads share. A thread has the same rows in all of
this, so that what belongs to a row never leaves its registers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import final

from ferrule.codegen.contraction import is_contraction
from ferrule.codegen.gridcost import (
    ACCESS_BYTES,
    FILL_CYCLES,
    LANES,
    OTHER_REGISTERS,
    REGISTERS,
    STEP_CYCLES,
    GridTile,
    multiprocessors,
    term_cycles,
)
from ferrule.codegen.gridtile import Axes, Tiling, fill_copy, is_matrix_product
from ferrule.codegen.intrinsics import MMA
from ferrule.codegen.kernel import Compute, Kernel, Nest, reads
from ferrule.codegen.plan import Plan, base, loads
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.primitives.nests import compute_at
from ferrule.codegen.primitives.running import run_along
from ferrule.expr import Expr, ExprOp
from ferrule.records import dataclass
from ferrule.target import Target

SCORE_CYCLES = 40.0  # of a lane, for what is computed from one score
MOST_REGISTERS = 112  # for the scores and the results of one thread
MOST_THREADS = 256
TERMS = (16, 32)  # of a score, between two barriers
MATRIX_TERMS = (16, 32, 64)  # the same where warps multiply matrices


@final
@dataclass(frozen=True)
class ChainTile:
    """What a block computes at a time: scores of some rows and terms, and results of these rows.

    Both have the same rows, by the same threads.
    """

    scores: GridTile
    results: GridTile

    @property
    def threads(self) -> int:
        """The threads of the block."""
        return self.scores.threads

    def shared_bytes(self, itemsize: int) -> int:
        """What is in shared memory, with its padding."""
        rows, terms = self.scores.block_rows, self.scores.block_columns
        near = ACCESS_BYTES // itemsize
        weights = rows * (terms + near)
        values = terms * (self.results.block_columns + near)
        step = max(self.scores.step, near)
        operands = (rows + terms + 2 * near) * step + (rows + terms) * near
        return (weights + values + operands) * itemsize


@final
@dataclass(frozen=True)
class ChainWork:
    """The size of a chain: so many rows of `terms` scores, and of `columns` results each."""

    batch: int
    rows: int
    depth: int
    """The terms of one score."""
    terms: int
    columns: int
    itemsize: int
    """Of what is in shared memory."""
    matrices: bool


# -- which tile ------------------------------------------------------------------------------------


def best_chain_tile(target: Target, work: ChainWork) -> ChainTile | None:
    """The tile with the least time; None if none fits."""
    tiles = _matrix_tiles(work) if work.matrices else _tiles(target, work)
    fits = [t for t in tiles if t.shared_bytes(work.itemsize) <= target.shared_bytes]
    return min(fits, key=lambda tile: chain_tile_cost(target, work, tile), default=None)


def _tiles(target: Target, work: ChainWork) -> Iterator[ChainTile]:
    most = min(MOST_THREADS, target.block_threads)
    counts = [1 << i for i in range(most.bit_length())]
    wide = work.itemsize // 4 or 1
    for rows, terms, columns in itertools.product((2, 4, 8), (1, 2, 4), (1, 2, 4, 8, 16)):
        if rows * (terms + columns) * wide > MOST_REGISTERS:
            continue
        for down, across, step in itertools.product(counts, counts, TERMS):
            if target.warp <= down * across <= most and 4 <= across <= 32:
                scores = GridTile(rows, terms, down, across, step)
                yield ChainTile(scores, replace(scores, columns=columns, step=terms * across))


def _matrix_tiles(work: ChainWork) -> Iterator[ChainTile]:
    """Warps below one another. More of them would leave a thread too few registers."""
    half = MMA.rows // MMA.down
    for warps, terms, columns, step in itertools.product(
        (2, 4), (4, 8), (1, 2, 4, 8, 16), MATRIX_TERMS
    ):
        if half * MMA.near * (terms + columns) > MOST_REGISTERS:
            continue
        scores = GridTile(half, terms * MMA.near, warps * MMA.down, MMA.across, step, matrices=True)
        yield ChainTile(
            scores, replace(scores, columns=columns * MMA.near, step=terms * MMA.columns)
        )


def chain_tile_cost(target: Target, work: ChainWork, tile: ChainTile) -> float:
    """About how many cycles a chain takes, on the multiprocessor that has the most blocks."""
    rows, terms = tile.scores.block_rows, tile.scores.block_columns
    columns = tile.results.block_columns
    blocks = work.batch * -(-work.rows // rows) * -(-work.columns // columns)
    blocks = -(-blocks // multiprocessors(target))
    lanes = max(tile.threads, LANES) / LANES
    steps = -(-work.depth // tile.scores.step)
    depth = steps * tile.scores.step
    busy = depth * term_cycles(target, tile.scores, work.itemsize) * lanes
    busy += terms * term_cycles(target, tile.results, work.itemsize) * lanes
    busy += SCORE_CYCLES * tile.scores.rows * tile.scores.columns * lanes
    busy += FILL_CYCLES * ((rows + terms) * depth + terms * columns + rows * terms) / LANES
    held = tile.scores.rows * (tile.scores.columns + tile.results.columns)
    registers = tile.threads * (OTHER_REGISTERS + held * max(1, work.itemsize // 4))
    at_once = max(1, min(blocks, LANES * REGISTERS // registers))
    waiting = (steps + 1) * STEP_CYCLES / at_once
    return blocks * -(-work.terms // terms) * (busy + waiting)


# -- what is a chain -------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Chain:
    """A root nest with blocks at one place, and the contraction that adds up over the last one."""

    name: str
    steps: tuple[str, ...]
    """The nests that hang in the loops of the rows, in order."""
    first: str
    """The step whose block the first contraction makes."""
    scores: str
    last: str
    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]

    @staticmethod
    def of(kernel: Kernel, name: str) -> Chain | None:
        """The chain of a root nest, if it is one."""
        root = kernel.by_name[name]
        inside = [n for n in kernel.nests if n.at is not None and n.at[0] == name]
        if len(inside) < 2 or inside[-1].at != (name, len(root.loops)):
            return None
        *steps, last = inside
        places = {n.at for n in steps}
        below = [n for n in kernel.nests if n.at is not None and n.at[0] in {s.name for s in steps}]
        known = all(loop.range.size.is_const for n in (root, *inside, *below) for loop in n.loops)
        if len(places) != 1 or len(below) != 1 or len(kernel.nests) != len(inside) + 2 or not known:
            return None
        ((_, depth),) = [at for at in places if at is not None]
        (scores,) = below
        first = kernel.by_name[scores.at[0]] if scores.at is not None else root
        simple = all(len(n.loops) == 1 for n in (*steps, last))
        if not simple or not is_contraction(first, scores):
            return None
        outer, columns = root.loop_ranges[:depth], root.loop_ranges[depth:]
        groups = _by_missing_operands(outer, [scores, last])
        rows = max(groups, key=_count, default=[])
        if not rows or not columns:
            return None
        return Chain(
            name=name,
            steps=tuple(n.name for n in steps),
            first=first.name,
            scores=scores.name,
            last=last.name,
            batch=tuple(r for r in outer if r not in rows),
            rows=tuple(rows),
            columns=tuple(columns),
        )


def _by_missing_operands(ranges: Sequence[Expr], nests: Sequence[Nest]) -> list[list[Expr]]:
    """Loops by the operands of contractions that are the same for all of their iterations; those
    that some operand of each is the same for.
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


def can_run_along(kernel: Kernel) -> bool:
    """Whether a kernel with kept blocks is a chain that can go along them tile by tile."""
    root = kernel.roots[-1]
    chain = Chain.of(kernel, root.name) if len(kernel.roots) == 1 else None
    if chain is None:
        return False
    place = kernel.by_name[chain.first].at
    assert place is not None
    try:
        run_along(compute_at(kernel, chain.last, place[1]), chain.last)
    except ScheduleError:
        return False
    return True


# -- the schedule ----------------------------------------------------------------------------------


def schedule_grid_chain(plan: Plan, name: str) -> bool:
    """Tile a root nest with kept blocks for blocks of threads; False where it is no such chain."""
    chain = Chain.of(plan.kernel, name)
    if chain is None or len(plan.kernel.roots) > 1:  # it takes all of the shared memory
        return False
    tile = best_chain_tile(plan.target, _work(plan, chain))
    if tile is None:
        return False
    tile_chain(plan, chain, tile)
    return True


def _work(plan: Plan, chain: Chain) -> ChainWork:
    scores, last = (plan.nest(n).computes[0] for n in (chain.scores, chain.last))
    matrices = MMA.is_native(plan.target) and _is_matrix_chain(plan.kernel, scores, last)
    itemsize = max(scores.value.dtype.itemsize, last.value.dtype.itemsize)
    return ChainWork(
        batch=_count(chain.batch),
        rows=_count(chain.rows),
        depth=_count(plan.nest(chain.scores).loop_ranges),
        terms=_count(plan.nest(chain.last).loop_ranges),
        columns=_count(chain.columns),
        itemsize=2 if matrices else itemsize,
        matrices=matrices,
    )


def _is_matrix_chain(kernel: Kernel, scores: Compute, last: Compute) -> bool:
    """Whether both contractions are sums of products of one narrow float, as warps add them up."""
    kept = next((e for e in reads([last.value]) if e.src), None)
    found = loads(last.value)
    if kept is None or len(found) != 1 or last.value.op is not ExprOp.MUL:
        return False
    weights = kernel.computes[kept.arg].value
    sources = {e.src[0].dtype for e in (weights, *last.value.src) if e.op is ExprOp.CAST}
    wide = last.value.dtype is MMA.result_dtype and weights.op is ExprOp.CAST
    return (
        wide
        and sources == {found[0].dtype}
        and is_matrix_product(scores)
        and (loads(scores.value)[0].dtype is found[0].dtype)
    )


def tile_chain(plan: Plan, chain: Chain, tile: ChainTile) -> None:
    """Give a chain a tile."""
    _ChainTiling(plan, chain, tile).apply()


@final
@dataclass
class _ChainTiling:
    """The schedule of one chain: `plan` holds the kernel."""

    plan: Plan
    chain: Chain
    tile: ChainTile

    def apply(self) -> None:
        plan, chain = self.plan, self.chain
        axes = Axes(chain.batch, chain.rows, chain.columns)
        results = Tiling(plan, chain.name, chain.last, axes, self.tile.results)
        scores = Tiling(plan, chain.first, chain.scores, axes, self.tile.scores)
        row, column = results.blocks()
        terms = self._along()
        here = self._first_contraction(scores, row, terms[chain.first])
        plan.do("run_along", chain.last)
        fills = self._stages(results, scores, row, column, here, terms)
        for n in chain.steps:
            scores.threads(n, f"{row}@{n}", terms[n])
        scores.threads(chain.scores, *here)
        results.threads(chain.name, row, column)
        last = (f"{row}@{chain.last}", f"{column}@{chain.last}", terms[chain.last])
        results.threads(chain.last, *last)
        self._weights(row)
        for fill in fills:
            fill_copy(plan, fill, self.tile.scores)
        plan.limit(chain.last, plan.nest(chain.last).loops[0].range.name)

    def _along(self) -> dict[str, str]:
        """The steps and the last sum for all rows of a block; the loops over the terms of a tile,
        by nest.
        """
        plan, terms = self.plan, {}
        nests = (*self.chain.steps, self.chain.last)
        for n in nests:
            plan.do("compute_at", n, 1, True)
        for n in nests:
            term = plan.nest(n).loops[0].range.name
            plan.do("split", n, term, self.tile.results.step, "mask")
            terms[n] = f"{term}.i"
        return terms

    def _first_contraction(self, scores: Tiling, row: str, term: str) -> tuple[str, str, str]:
        """The scores of a tile in one nest; its loops over rows, terms of the chain, own terms."""
        nest, first = self.chain.scores, self.chain.first
        self.plan.do("compute_at", nest, 1)
        rows, columns = f"{row}@{first}@{nest}", f"{term}@{nest}"
        return rows, columns, scores.terms(rows, columns)

    def _stages(
        self,
        results: Tiling,
        scores: Tiling,
        row: str,
        column: str,
        here: tuple[str, str, str],
        terms: dict[str, str],
    ) -> list[str]:
        """Copies of what both contractions load; the names of their nests."""
        plan, last = self.plan, self.chain.last
        rows, columns, term = f"{row}@{last}", f"{column}@{last}", terms[last]
        first = plan.nest(last).loops[0].range.name
        plan.do("reorder", last, (first, rows, columns, term))
        return [*scores.stages({here[0], here[1]}, here[2]), *results.stages({rows, columns}, term)]

    def _weights(self, row: str) -> None:
        """What the last contraction reads lies in rows, and these begin in different banks."""
        plan = self.plan
        (c,) = plan.nest(self.chain.last).computes
        name = next(
            e.arg for e in reads([c.value]) if plan.kernel.owner[e.arg].name in self.chain.steps
        )
        nest, kept = plan.kernel.owner[name].name, plan.kernel.computes[name]
        rows = [r.name for r in kept.ranges if base(r.name) == base(row)]
        terms = [r.name for r in kept.ranges if r.name not in rows]
        plan.do("axes", name, (*rows, *terms))
        plan.do("pad", nest, rows[-1], ACCESS_BYTES // kept.value.dtype.itemsize)
