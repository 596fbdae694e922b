"""Stages inside a kernel: a value is computed block by block, each read before the next.

A value that a kernel reads many times, as the last contraction of attention reads its weights, need
not go through memory. If all its readers are in the same outer loops, one iteration of these
computes the block that it needs, in the cache. Halide and TVM call this `compute_at`.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final, final

from ferrule.base.config import config
from ferrule.base.records import dataclass
from ferrule.codegen.policy import tiles_stages
from ferrule.fusion.costs import Costs
from ferrule.fusion.gains import Gains
from ferrule.fusion.groups import MAX_NODES, Fusion, Visits
from ferrule.fusion.legality import (
    MIN_ITERATIONS_PER_THREAD,
    Legality,
    is_always_fused,
    rows_for_blocks,
)
from ferrule.fusion.signature import ZERO, Signature, Space
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import same
from ferrule.ir.target import Target

# Bytes of a thread's stack that the rows of a block, one for each lane of a vector, may take. Not
# measured.
_MAX_STACK_BYTES: Final = 2 << 20


@final
@dataclass(frozen=True)
class Block:
    """The block of a stage that one iteration of the outer loops computes."""

    outer: int
    """The ranges of the outer loops, as bits."""
    at: Signature
    """The node's index; `ZERO` for the axis of the block."""
    axis: int
    """The axis of the block, which has all of the node's elements along it."""
    nbytes: int
    """Bytes of one row, the most that one iteration of the outer loops computes."""

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
    share no outer loops, or if those loops would compute an element twice. None as well if each
    result had a block of its own, unless `for_each_result`.
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
class Staging:
    """Decides which values are stages of kernels on one target."""

    def __init__(
        self,
        costs: Costs,
        gains: Gains,
        legality: Legality,
        target: Target,
        external: Set[LazyBuffer],
        without_stages: Set[LazyBuffer],
    ) -> None:
        self.costs = costs
        self.gains = gains
        self.legality = legality
        self.target = target
        self.external = external
        """The nodes that something outside of the schedule refers to."""
        self.without_stages = without_stages
        """The kernels whose first output is one of these have no stages."""
        self.is_skipped = "blocks" in config().FERRULE_SKIP
        self.iterations = MIN_ITERATIONS_PER_THREAD * target.max_threads
        self.lanes = target.lanes(4)

    def staged_block(self, node: LazyBuffer, visits: Visits) -> Block | None:
        """The block of a node as a stage of the only kernel that wants it; None without gain."""
        if len(visits) != 1 or self.is_skipped or is_always_fused(node):
            return None
        ((fusion, indices),) = visits.items()
        contraction = fusion.contraction
        if (
            fusion.outputs[0] in self.without_stages
            or (contraction is not None and self.costs[contraction].runs)
            or (fusion.contraction is None and not self._reduces_rows(fusion, indices))
            or len(fusion.outputs) > 1
            or node in self.external
        ):
            return None
        if fusion.nodes > MAX_NODES or len(fusion.buffers) > self.legality.most_buffers:
            return None
        rows = fusion.contraction is None or fusion.outer == fusion.space.outputs
        block = find_block(node, fusion.space, fusion.outer, indices, rows)
        if block is None:
            return None
        if fusion.outer:
            pays = self.gains.is_costly(node) and len(indices) > 1
        else:
            pays = self._has_room(block, fusion.space) and self.gains.saves_traffic(node, fusion)
        return block if pays else None

    def _reduces_rows(self, fusion: Fusion, indices: dict[Signature, bool]) -> bool:
        """True if only reduces of its rows, several of them, use a node in a GPU's kernel.

        Blocks of threads then go along the rows tile by tile, as below a contraction.
        """
        return tiles_stages(self.target) and bool(fusion.reduces) and len(indices) > 1

    def is_recomputed_by_each(self, node: LazyBuffer, visits: Visits) -> bool:
        """True if several kernels should each have a node as a stage, contraction included.

        Only blocks of threads do, since their blocks are tiles. Each kernel repeats the operations
        of the contraction. But the node is much larger than the operands, so that its memory would
        limit the size of a problem.
        """
        if len(visits) == 1 or self.is_skipped or is_always_fused(node):
            return False
        if node in self.external or not self.gains.is_worth_recomputing(node):
            return False
        return all(self._can_stage(node, {f: visits[f]}) for f in visits)

    def _can_stage(self, node: LazyBuffer, visits: Visits) -> bool:
        """True if a node could be a stage of a kernel, or a stage be computed from it."""
        ((fusion, _),) = visits.items()
        if self.staged_block(node, visits) is not None:
            return True
        return bool(fusion.outer) and self.legality.can_be_tiled(node, visits)

    def _has_room(self, block: Block, space: Space) -> bool:
        """True if the rows of a block fit the cache, and there are enough of them for all threads.

        Blocks of threads have tiles of rows only, so that rows of any length fit.
        """
        rows = space.evals(block.outer)
        if tiles_stages(self.target):
            return rows >= rows_for_blocks(self.target)
        return (
            block.nbytes * self.lanes <= _MAX_STACK_BYTES and rows >= self.lanes * self.iterations
        )
