"""Values that are kept inside a kernel: computed block by block, and read before the next block.

A value that a kernel wants many times, as the last contraction of attention wants its weights, need
not go through memory. If all who want it stand in the same outer loops, the block of its elements
that belongs to one iteration of these loops is computed there once and kept in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ferrule.lazy import LazyBuffer
from ferrule.records import dataclass
from ferrule.schedule.signature import ZERO, Signature, Space
from ferrule.shape.layout import storage_size


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
    """The memory of one row: what is kept in one iteration of the outer loops."""

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
    share no outer loops, if those loops would compute an element twice, or if a size is not known;
    or if there were a block for each result, unless that is meant.
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
        if not isinstance(length, int) or (own and not space.is_range(component)):
            return None
        if not own and length != 1:
            return None
        if own & outer:
            at[axis] = component
        elif own:
            axes.append(axis)
            size *= length
    covered = space.ranges(tuple(at)) == outer
    if len(axes) != 1 or not covered or space.evals(outer) * size != storage_size(node.shape):
        return None
    return Block(outer, tuple(at), axes[0], size * node.dtype.itemsize)
