"""A kernel as it grows while the graph is cut: the nodes it takes in, the kernels that need it."""

from __future__ import annotations

from typing import Final, TypeAlias, final

from ferrule.fusion.signature import Signature, Space
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, ReduceOps
from ferrule.ir.op_table import WHOLE_MOVEMENTS

MAX_NODES: Final = 400
"""Nodes of a kernel from which on it takes in no more, and nodes that a walk below a node visits.
Bounds the time to plan and to compile; not measured."""
SINGLE: Final = frozenset({LoadOps.FROM, LoadOps.CUSTOM, LoadOps.EMPTY, ReduceOps.SCATTER})
"""A kernel that writes one of these writes nothing else."""


@final
class Fusion:
    """One kernel as it grows: the values it computes and reads, and the ranges it loops over."""

    def __init__(self, number: int, root: LazyBuffer, value: LazyBuffer, space: Space) -> None:
        self.bits = 1 << number
        """Its number and those of the kernels merged into it, as bits."""
        self.outputs = [root]
        self.value = value
        self.space = space
        self.nodes = 0
        self.buffers: set[LazyBuffer] = set()
        self.reduces: list[int] = []
        """The output ranges that each fused reduce depends on, as bits."""
        self.first_reduce: LazyBuffer | None = None
        self.contraction: LazyBuffer | None = None
        self.stages: dict[LazyBuffer, tuple[int, ...]] = {}
        """The nodes that are stages of it, with the axes of their blocks."""
        self.outer = 0
        """The ranges of the loops around its blocks, as bits; 0 without blocks."""
        self.masks: set[tuple[LazyBuffer, Signature]] = set()
        """The masks of the joins that it computes, and the indices at which it evaluates them."""
        self.blocks: set[Signature] = set()
        """The indices at which it fills blocks."""
        self.guests: list[Fusion] = []
        """Kernels fused horizontally: sums over its blocks that it adds up beside its own value."""
        self.host: Fusion | None = None
        """The kernel whose guest it is."""
        self.added_up = 0
        """The index component along which its guests are summed."""
        self.users = 0
        """The kernels that run after this one, because they read what it stores or store over it,
        directly or not, as bits."""
        self.most_evals = 0
        """The evaluations of the node that it evaluates most often."""
        self.takes_outputs = not {root.op, value.op} & SINGLE and root.shape == value.shape
        """True if nodes at the kernel's own index may be stored beside the root."""

    def depends_on(self, signature: Signature) -> int:
        """The output ranges around the loops of a reduce at `signature`."""
        space = self.space
        return space.closure(space.ranges(signature)) & space.outputs

    def own_index(self, node: LazyBuffer, indices: dict[Signature, bool]) -> Signature | None:
        """The signature of a node that an element-wise kernel wants at its own index only.

        None for other kernels, and for nodes wanted at other indices.
        """
        if not self.takes_outputs or self.reduces or self.value.shape != node.shape:
            return None
        if len(indices) != 1:
            return None
        (signature,) = indices
        space = self.space
        same = space.digits_of(signature, node.shape) == space.digits
        return signature if same and not indices[signature] else None

    def is_plain_sum(self) -> bool:
        """True if it stores a contraction's sums, of 32 bits or more, unchanged but for movements.

        A kernel that stores them into an earlier version's memory does not count.
        """
        source = self.value
        while source is not self.contraction:
            if source.op not in WHOLE_MOVEMENTS:
                return False
            source = source.srcs[0]
        is_assigned = self.outputs[0].op is LoadOps.ASSIGN
        return source.op is ReduceOps.SUM and source.dtype.itemsize >= 4 and not is_assigned


Visits: TypeAlias = dict[Fusion, dict[Signature, bool]]
"""The kernels that would evaluate a node: at which indices, and whether inside a reduce."""


def move_indices(visits: Visits, source: Fusion, target: Fusion) -> None:
    """Move the indices at which `source` wants a node to `target`."""
    indices = visits.setdefault(target, {})
    for signature, nested in visits.pop(source).items():
        indices[signature] = indices.get(signature, False) or nested


def add_users(fusions: list[Fusion], needed: int, users: int) -> None:
    """Some kernels, and all that they need, are needed by others from now on; both as bits."""
    for fusion in fusions:
        if (fusion.bits | fusion.users) & needed:
            fusion.users |= users & ~fusion.bits


def share_memory(outputs: list[LazyBuffer], others: list[LazyBuffer]) -> bool:
    """True if both lists have versions of one storage: one kernel cannot write two of them."""
    places = {_memory(output) for output in outputs}
    return any(_memory(other) in places for other in others)


def _memory(node: LazyBuffer) -> LazyBuffer:
    """The first version of the storage that a node is a version of."""
    while node.op is LoadOps.ASSIGN:
        node = node.srcs[0]
    return node
