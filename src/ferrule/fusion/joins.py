"""Joins: values side by side in the graph, as `cat` and the gradients of slices write them.

A join is a chain of WHEREs. Each chooses one padded value inside its padding, and else what follows
in the chain; the last is padded alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ferrule.codegen.policy import MAX_SEGMENTS
from ferrule.fusion.views import is_movement
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.simplify import join_mask

MAX_MASKS: Final = (MAX_SEGMENTS - 1) // 2
"""Masks of a kernel up to which its loops may be partitioned so that none is evaluated, except in
the vectors that two values share. With more, each element evaluates each of them."""


def masks_of(node: LazyBuffer) -> list[LazyBuffer]:
    """The masks of a join, from its first WHERE on; empty for other nodes.

    Of more than a kernel may have, some are left out.
    """
    masks: list[LazyBuffer] = []
    while len(masks) <= MAX_MASKS and (mask := join_mask(node)) is not None:
        masks.append(mask)
        node = node.srcs[2]
    return masks


def pieces_of_joins(nodes: Iterable[LazyBuffer]) -> set[LazyBuffer]:
    """The values that joins among the nodes put side by side, below movements."""
    found: set[LazyBuffer] = set()
    for node in nodes:
        if join_mask(node) is not None:
            for source in node.srcs[1:]:
                piece = source
                while is_movement(piece):
                    piece = piece.srcs[0]
                if piece is not source:
                    found.add(piece)
    return found
