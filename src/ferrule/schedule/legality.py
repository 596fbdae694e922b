"""What the structure of kernels permits when a value is fused, whatever it would gain."""

from __future__ import annotations

from typing import Final, final

from ferrule.codegen.policy import keeps_tiles, shares_reduces
from ferrule.lazy import LazyBuffer
from ferrule.opkinds import MOVEMENTS, PLAIN_MOVEMENTS
from ferrule.ops import MovementOps, ReduceOps
from ferrule.schedule.costs import SMALL_KERNEL, Cost, Costs, factors
from ferrule.schedule.fusion import MOST_NODES, Fusion, Visits
from ferrule.schedule.gains import Gains
from ferrule.schedule.signature import is_pass_through
from ferrule.target import Target

ITERATIONS_PER_THREAD: Final = 4
"""A reduce that keeps others waiting must leave so many for each thread to share out."""
# The fewest rows that a block of threads should have of a stack of blocks.
_ROWS_TOGETHER: Final = 16
# Of a kernel that may take in more; and indices at which it may want one node. With more, loops go
# through more places in memory at once than the first cache has room for.
_MOST_BUFFERS: Final = 28
_MOST_INDICES: Final = 8
_ALWAYS_FUSED: Final = frozenset([op for op, row in MOVEMENTS.items() if row.free])


def is_always_fused(node: LazyBuffer) -> bool:
    """Whether a node only says where elements are: it is never worth memory of its own."""
    return node.op in _ALWAYS_FUSED or is_pass_through(node)


def most_buffers(target: Target) -> int:
    """How many buffers a kernel may have before it takes in more."""
    if target.max_buffers is None:
        return _MOST_BUFFERS
    return min(_MOST_BUFFERS, target.max_buffers - 2)


def rows_for_blocks(target: Target) -> int:
    """How many rows are enough for all blocks of threads that run at once."""
    # Imported here: other devices need no code generation to schedule.
    from ferrule.codegen.grid.cost import multiprocessors

    return _ROWS_TOGETHER * multiprocessors(target)


@final
class Legality:
    """Which nodes the kernels of one target may take in."""

    def __init__(self, costs: Costs, gains: Gains, target: Target) -> None:
        self.costs = costs
        self.gains = gains
        self.target = target
        self.iterations = ITERATIONS_PER_THREAD * target.max_threads
        self.most_buffers = most_buffers(target)

    def is_allowed(self, node: LazyBuffer, cost: Cost, visits: Visits) -> bool:
        """What the structure of kernels permits, whatever it would gain."""
        for fusion, indices in visits.items():
            if fusion.nodes > MOST_NODES or len(indices) > _MOST_INDICES:
                return False
            if len(fusion.buffers) > self.most_buffers:
                return False
        # What a reduce may do is decided at the end of its epilogue, before its users part.
        for reduce in cost.owned:
            below = self.costs[reduce]
            if below.runs:
                fits = self.can_be_tiled(visits) and _goes_on(reduce, node, visits)
            elif below.contraction:
                fits = self.can_be_tiled(visits) or self._is_summed_on(node, visits)
            else:
                fits = self._can_hold(reduce, below.local, visits)
            if not fits:
                return False
        return True

    def can_be_tiled(self, visits: Visits) -> bool:
        """Whether a contraction is computed once, for exactly the elements that a kernel stores.

        Only then can the kernel keep a tile of them in registers.
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
        return not fusion.reduces and ranges == space.outputs

    def _is_summed_on(self, node: LazyBuffer, visits: Visits) -> bool:
        """Whether a sum is only a part of another, to which a kernel adds nothing but an epilogue:
        both are one sum then, as in the gradient of a convolution's input.
        """
        if len(visits) != 1 or node.op is not ReduceOps.SUM:
            return False
        if any(self.gains.is_spared(factor) for factor in factors(node)):
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
        is_only_placed = windows == sums  # as no two windows have an element in common
        return not (is_product and is_only_placed) or self.gains.fills_lanes(node, visits)

    def _can_hold(self, reduce: LazyBuffer, work: float, visits: Visits) -> bool:
        """Whether every kernel has a place in its loops for a reduce that takes `work`."""
        for fusion, indices in visits.items():
            if len(fusion.outputs) > 1 or (fusion.contraction is not None and not fusion.outer):
                return False
            for signature, nested in indices.items():
                depends = fusion.depends_on(signature)
                if fusion.outer and (depends != fusion.outer or nested):
                    return False
                if not self._is_chain(fusion.reduces, depends):
                    return False
                if fusion.outer and keeps_tiles(self.target):
                    continue  # the threads of a block share out the rows that they go along
                waited_for = nested or depends != fusion.space.outputs
                if waited_for and work > SMALL_KERNEL:
                    whole = work / self.costs[reduce].size * fusion.space.evals_at(signature)
                    if self._is_scarce(reduce, fusion, whole, fusion.space.evals(depends)):
                        return False
        return True

    def _is_scarce(self, reduce: LazyBuffer, fusion: Fusion, work: float, results: int) -> bool:
        """Whether a kernel has too little to share out where it waits so many times for a reduce,
        which takes `work` in all.
        """
        if not shares_reduces(self.target):
            return results < self.iterations
        if self.gains.contraction_below(reduce.srcs[0]) is not None:  # blocks go along its rows
            return results < rows_for_blocks(self.target)
        from ferrule.codegen.grid.cost import shares_out_rows

        operations = max(work, fusion.most_evals) / results
        along = reduce.srcs[0].shape[-1:] != reduce.shape[-1:]
        return not shares_out_rows(self.target, results, operations, along)

    def _is_chain(self, others: list[int], depends: int) -> bool:
        """Whether one loop order serves all reduces: the ranges they vary with are nested sets."""
        return all(depends & other in (depends, other) for other in others)


def _overlaps(unwindow: LazyBuffer) -> bool:
    """Whether several windows have an element in common."""
    _, _, stride, _ = unwindow.arg
    size = unwindow.shape[-1]
    return not isinstance(size, int) or size > stride


def _goes_on(total: LazyBuffer, node: LazyBuffer, visits: Visits) -> bool:
    """Whether a kernel wants the elements of a running total, or of its epilogue, in their order.

    Else it would add up all that is before an element for each of them.
    """
    ((fusion, indices),) = visits.items()
    (signature,) = indices
    axis = total.srcs[0].arg[0]
    if node.shape[: axis + 1] == total.shape[: axis + 1]:
        signature = (signature[axis],)
    return all(fusion.space.is_in_order(component) for component in signature)
