"""Legality of fusion: whether a kernel's structure can take a value in, whatever that gains."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, final

from ferrule.codegen.policy import shares_reduces, tiles_stages
from ferrule.fusion.costs import SMALL_KERNEL_OPERATIONS, Cost, Costs, factors
from ferrule.fusion.gains import Gains
from ferrule.fusion.groups import MAX_NODES, Fusion, Visits
from ferrule.fusion.joins import MAX_MASKS, masks_of, pieces_of_joins
from ferrule.fusion.signature import Signature, is_pass_through
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import MovementOps, ReduceOps, running_axis
from ferrule.ir.op_table import MOVEMENTS, PLAIN_MOVEMENTS
from ferrule.ir.target import Target

MIN_ITERATIONS_PER_THREAD: Final = 4
"""Iterations for each thread to share out, outside of a reduce that other values wait for. Not
measured."""
# Rows for each multiprocessor from which on kernels for thread blocks have stages. Not measured.
_MIN_ROWS_PER_MULTIPROCESSOR: Final = 16
# Buffers up to which a kernel takes in more. With more, its loops read from more places at once
# than the first-level cache has room for. Not measured.
_MAX_BUFFERS: Final = 28
# Indices at which a kernel may want one node, for the same reason. Not measured.
_MAX_INDICES: Final = 8
_ALWAYS_FUSED: Final = frozenset([op for op, row in MOVEMENTS.items() if row.free])


def is_always_fused(node: LazyBuffer) -> bool:
    """True for a node that only moves elements, which is never worth memory of its own."""
    return node.op in _ALWAYS_FUSED or is_pass_through(node)


def most_buffers(target: Target) -> int:
    """The number of buffers up to which a kernel takes in more."""
    if target.max_buffers is None:
        return _MAX_BUFFERS
    return min(_MAX_BUFFERS, target.max_buffers - 2)


def rows_for_blocks(target: Target) -> int:
    """The number of rows that is enough for all blocks of threads that run at once."""
    return _MIN_ROWS_PER_MULTIPROCESSOR * target.multiprocessors


@final
class Legality:
    """Decides which nodes the kernels of one target may take in."""

    def __init__(self, costs: Costs, gains: Gains, target: Target) -> None:
        self.costs = costs
        self.gains = gains
        self.target = target
        self.iterations = MIN_ITERATIONS_PER_THREAD * target.max_threads
        self.most_buffers = most_buffers(target)
        self.pieces = pieces_of_joins(costs.users)

    def is_allowed(self, node: LazyBuffer, cost: Cost, visits: Visits) -> bool:
        """True if all kernels that want a node can compute it within their loops."""
        for fusion, indices in visits.items():
            if fusion.nodes > MAX_NODES or len(indices) > _MAX_INDICES:
                return False
            if len(fusion.buffers) > self.most_buffers:
                return False
            if cost.masks and self._has_too_many_masks(node, cost, fusion, indices):
                return False
        # A reduce is decided at the end of its epilogue, the last node with a single user.
        for reduce in cost.owned:
            below = self.costs[reduce]
            if below.runs:
                fits = self.can_be_tiled(node, visits) and _reads_in_order(reduce, node, visits)
            elif below.contraction:
                fits = self.can_be_tiled(node, visits) or self._is_inner_sum(node, visits)
            else:
                fits = self._has_place_in_loops(reduce, below.local, visits)
            if not fits:
                return False
        return True

    def _has_too_many_masks(
        self, node: LazyBuffer, cost: Cost, fusion: Fusion, indices: Collection[Signature]
    ) -> bool:
        """True if loops could not be partitioned by the masks of all joins that a kernel computes.

        What is wanted at several indices has all masks below it several times. Wanted at one, it
        has its own: a join that is no piece of another one needs several, else memory is slower.
        """
        masks: Collection[LazyBuffer] = cost.masks
        if len(indices) == 1:
            masks = masks_of(node)
            if len(masks) < 2 and node not in self.pieces:
                return False
        new = {(mask, signature) for mask in masks for signature in indices} - fusion.masks
        return bool(new) and len(fusion.masks) + len(new) > MAX_MASKS

    def can_be_tiled(self, node: LazyBuffer, visits: Visits) -> bool:
        """True if a contraction, at the end of its epilogue `node`, is computed once, for exactly
        the elements that a kernel stores.

        Only then can the kernel keep a tile of them in registers. A kernel that joins the node with
        others, or pads it, stores more elements than it has.
        """
        if len(visits) != 1:
            return False
        (fusion,) = visits
        indices = visits[fusion]
        if len(indices) != 1 or len(fusion.outputs) > 1:
            return False
        (signature,) = indices
        if indices[signature]:
            return False
        space = fusion.space
        ranges = space.closure(space.ranges(signature))
        if fusion.outer:
            return any(space.ranges(block) == ranges for block in fusion.blocks)
        if fusion.reduces or ranges != space.outputs:
            return False
        return space.evals(ranges) <= self.costs[node].size

    def _is_inner_sum(self, node: LazyBuffer, visits: Visits) -> bool:
        """True if a kernel only moves and sums a sum further, so that both are one reduce.

        The gradient of a convolution's input is an example.
        """
        if len(visits) != 1 or node.op is not ReduceOps.SUM:
            return False
        if any(self.gains.is_worth_recomputing(factor) for factor in factors(node)):
            return False  # its terms come from blocks, along one axis
        (fusion,) = visits
        if fusion.first_reduce is None or len(fusion.outputs) > 1 or len(visits[fusion]) != 1:
            return False
        source, sums, windows = fusion.first_reduce, 0, 0
        while source is not node:
            if source.op is ReduceOps.SUM and source.dtype is node.dtype:
                sums += 1
            elif source.op not in PLAIN_MOVEMENTS:
                return False
            windows += source.op is MovementOps.UNWINDOW and not _overlaps(source)
            source = source.srcs[0]
        if fusion.reduces != [fusion.space.outputs] * sums:
            return False
        is_product = bool(factors(node))
        is_only_placed = windows == sums  # no two windows have an element in common
        return not (is_product and is_only_placed) or self.gains.fills_lanes(node, visits)

    def _has_place_in_loops(self, reduce: LazyBuffer, work: float, visits: Visits) -> bool:
        """True if every kernel has a place in its loops for a reduce of `work` operations."""
        for fusion, indices in visits.items():
            if len(fusion.outputs) > 1 or (fusion.contraction is not None and not fusion.outer):
                return False
            for signature, nested in indices.items():
                if fusion.masks and fusion.space.evals_at(signature) > self.costs[reduce].size:
                    return False  # it would be computed for all pieces of a join, not for its own
                depends = fusion.depends_on(signature)
                if fusion.outer and (depends != fusion.outer or nested):
                    return False
                if not self._is_chain(fusion.reduces, depends):
                    return False
                if fusion.outer and tiles_stages(self.target):
                    continue  # the threads of a block share out the rows that they go along
                waited_for = nested or depends != fusion.space.outputs
                if waited_for and work > SMALL_KERNEL_OPERATIONS:
                    whole = work / self.costs[reduce].size * fusion.space.evals_at(signature)
                    if self._has_too_few_iterations(
                        reduce, fusion, whole, fusion.space.evals(depends)
                    ):
                        return False
        return True

    def _has_too_few_iterations(
        self, reduce: LazyBuffer, fusion: Fusion, work: float, results: int
    ) -> bool:
        """True if the loops around a reduce have too few iterations for all threads.

        `results` is their number; the reduce takes `work` operations in all.
        """
        if not shares_reduces(self.target):
            return results < self.iterations
        if self.gains.contraction_below(reduce.srcs[0]) is not None:  # blocks go along its rows
            return results < rows_for_blocks(self.target)
        # Imported here: other devices need no code generation to schedule.
        from ferrule.codegen.schedules.gpu.cost import shares_out_rows

        operations = max(work, fusion.most_evals) / results
        along = reduce.srcs[0].shape[-1:] != reduce.shape[-1:]
        return not shares_out_rows(self.target, results, operations, along)

    def _is_chain(self, others: list[int], depends: int) -> bool:
        """True if one loop order serves all reduces: the ranges they vary with are nested sets."""
        return all(depends & other in (depends, other) for other in others)


def _overlaps(unwindow: LazyBuffer) -> bool:
    """True if several windows have an element in common."""
    _, _, stride, _ = unwindow.arg
    size = unwindow.shape[-1]
    return not isinstance(size, int) or size > stride


def _reads_in_order(total: LazyBuffer, node: LazyBuffer, visits: Visits) -> bool:
    """True if a kernel wants the elements of a running total, or of its epilogue, in their order.

    In another order each element would start again at the first term.
    """
    ((fusion, indices),) = visits.items()
    (signature,) = indices
    axis = running_axis(total)
    assert axis is not None
    if node.shape[: axis + 1] == total.shape[: axis + 1]:
        signature = (signature[axis],)
    return all(fusion.space.is_in_order(component) for component in signature)
