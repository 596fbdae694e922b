"""Values that are kept inside a kernel: computed block by block, and read before the next block.

A value that a kernel wants many times, as the last contraction of attention wants its weights, need
not go through memory. If all who want it stand in the same outer loops, the block of its elements
that belongs to one iteration of these loops is computed there once and kept in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final, final

from ferrule.codegen.policy import keeps_tiles
from ferrule.config import config
from ferrule.lazy import LazyBuffer
from ferrule.records import dataclass
from ferrule.schedule.costs import Costs
from ferrule.schedule.fusion import MOST_NODES, Fusion, Visits
from ferrule.schedule.gains import Gains
from ferrule.schedule.legality import (
    ITERATIONS_PER_THREAD,
    Legality,
    is_always_fused,
    rows_for_blocks,
)
from ferrule.schedule.signature import ZERO, Signature, Space
from ferrule.shape.layout import storage_size
from ferrule.shape.view import same
from ferrule.target import Target

# A block of fewer rows than a vector has lanes is not worth it; what a block may take of a stack.
_MOST_BLOCK: Final = 2 << 20


@final
@dataclass(frozen=True)
class Block:
    """Where a node can be kept."""

    outer: int
    """The ranges of the outer loops, as bits."""
    at: Signature
    """The node's index; `ZERO` for the axis of the block."""
    axis: int
    """The axis of the block: all of the node's elements along it."""
    nbytes: int
    """The memory of one row: what is kept in one iteration of the outer loops, at most."""

    def signature(self, node: LazyBuffer, space: Space) -> Signature:
        """The index at which a kernel fills the block: a fresh range inside of the outer loops."""
        component = space.new_range(node.shape[self.axis], self.outer)
        return (*self.at[: self.axis], component, *self.at[self.axis + 1 :])


def find_block(
    node: LazyBuffer,
    space: Space,
    outer: int,
    wanted: Iterable[Signature],
    for_each_result: bool = False,
) -> Block | None:
    """The block that serves all of the indices at which one kernel wants a node.

    `outer` are the ranges around the kernel's other blocks, 0 if it has none. None if the indices
    share no outer loops, or if those loops would compute an element twice; or if there were a block
    for each result, unless that is meant.
    """
    found = {_block(node, space, outer, signature) for signature in wanted}
    block = found.pop() if len(found) == 1 else None
    if block is None or (block.outer == space.outputs and not for_each_result):
        return None
    return block


def _block(node: LazyBuffer, space: Space, outer: int, signature: Signature) -> Block | None:
    outer = outer or space.ranges(signature) & space.outputs
    at = [ZERO] * len(signature)
    axes = []
    size = 1
    for axis, component in enumerate(signature):
        own = space.ranges((component,))
        length = node.shape[axis]
        if own and not space.is_range(component):
            return None
        if not own and not same(length, 1):
            return None
        if own & outer:
            at[axis] = component
        elif own:
            axes.append(axis)
            size *= storage_size((length,))
    covered = space.ranges(tuple(at)) == outer
    if len(axes) != 1 or not covered or space.evals(outer) * size != storage_size(node.shape):
        return None
    return Block(outer, tuple(at), axes[0], size * node.dtype.itemsize)


@final
class Keeping:
    """Which values kernels keep in blocks on one target."""

    def __init__(
        self,
        costs: Costs,
        gains: Gains,
        legality: Legality,
        target: Target,
        external: Set[LazyBuffer],
        without_blocks: Set[LazyBuffer],
    ) -> None:
        self.costs = costs
        self.gains = gains
        self.legality = legality
        self.target = target
        self.external = external
        """The nodes that somebody may ask for again."""
        self.without_blocks = without_blocks
        self.is_skipped = "blocks" in config().FERRULE_SKIP
        """The kernels of these keep nothing."""
        self.iterations = ITERATIONS_PER_THREAD * target.max_threads
        self.lanes = target.lanes(4)

    def kept_block(self, node: LazyBuffer, visits: Visits) -> Block | None:
        """The block in which the only kernel that wants a node keeps it, if that pays."""
        if len(visits) != 1 or self.is_skipped or is_always_fused(node):
            return None
        ((fusion, indices),) = visits.items()
        contraction = fusion.contraction
        if (
            fusion.outputs[0] in self.without_blocks
            or (contraction is not None and self.costs[contraction].runs)
            or (fusion.contraction is None and not self._reduces_rows(fusion, indices))
            or len(fusion.outputs) > 1
            or node in self.external
        ):
            return None
        if fusion.nodes > MOST_NODES or len(fusion.buffers) > self.legality.most_buffers:
            return None
        rows = fusion.contraction is None or fusion.outer == fusion.space.outputs
        block = find_block(node, fusion.space, fusion.outer, indices, rows)
        if block is None:
            return None
        if fusion.outer:
            pays = self.gains.is_costly(node) and len(indices) > 1
        else:
            pays = self._has_room(block, fusion.space) and self.gains.streams(node, fusion)
        return block if pays else None

    def _reduces_rows(self, fusion: Fusion, indices: dict[Signature, bool]) -> bool:
        """Whether a kernel wants nothing of a node but what several reduces make of its rows.

        Blocks of threads go along the rows tile by tile, as if a contraction followed.
        """
        return keeps_tiles(self.target) and bool(fusion.reduces) and len(indices) > 1

    def is_done_by_each(self, node: LazyBuffer, visits: Visits) -> bool:
        """Whether each of several kernels computes for itself, in blocks, what a contraction gives.

        For blocks of threads only, whose blocks are tiles. It takes the contraction's operations
        again for each of the kernels; but the memory of the node, which is much larger than that
        of all that it is made from, is what limits how large a problem may be.
        """
        if len(visits) == 1 or self.is_skipped or is_always_fused(node):
            return False
        if node in self.external or not self.gains.is_spared(node):
            return False
        return all(self._is_done_alone(node, {f: visits[f]}) for f in visits)

    def _is_done_alone(self, node: LazyBuffer, visits: Visits) -> bool:
        """Whether a kernel could keep a node in a block, or make a block that it keeps from it."""
        ((fusion, _),) = visits.items()
        if self.kept_block(node, visits) is not None:
            return True
        return bool(fusion.outer) and self.legality.can_be_tiled(visits)

    def _has_room(self, block: Block, space: Space) -> bool:
        """Whether rows of a block stay near a thread, and there are enough of them for all.

        Blocks of threads have tiles of rows only, however long these are.
        """
        rows = space.evals(block.outer)
        if keeps_tiles(self.target):
            return rows >= rows_for_blocks(self.target)
        return block.nbytes * self.lanes <= _MOST_BLOCK and rows >= self.lanes * self.iterations
