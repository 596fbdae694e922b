"""Horizontal fusion of sums into a kernel that has their operand as a stage.

A kernel has each block of a stage in the cache once. Another kernel that only
sums that value becomes its guest: the host adds each block to the guest's result in memory, and the
value is computed once.
"""

from __future__ import annotations

from typing import Final, final

from ferrule.codegen.policy import tiles_stages
from ferrule.fusion.costs import Costs
from ferrule.fusion.graph import value_sources
from ferrule.fusion.groups import MAX_NODES, Fusion, Visits, add_users
from ferrule.fusion.signature import Signature
from ferrule.fusion.stages import Block, Staging, find_block
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import MovementOps
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.target import Target

# Time of sums over blocks, relative to work that is shared out evenly among threads, up to which
# kernels are fused. Not measured.
_MAX_IMBALANCE: Final = 1.25


@final
class HorizontalFusion:
    """Finds the kernels among `fusions` that sum a value which is a stage of another kernel."""

    def __init__(
        self, costs: Costs, staging: Staging, target: Target, fusions: list[Fusion]
    ) -> None:
        self.costs = costs
        self.staging = staging
        self.target = target
        self.threads = target.max_threads
        self.fusions = fusions

    def fuse(self, node: LazyBuffer, visits: Visits) -> None:
        """Fuse the kernels that want a node, if it can be a stage of one and the others sum it.

        Changes `visits` to the kernel that remains.
        """
        if tiles_stages(self.target):
            return
        rows: set[int] | None = None
        for host in visits:
            block = find_block(node, host.space, host.outer, visits[host])
            guests = [fusion for fusion in visits if fusion is not host]
            if block is None or not all(self._can_attach(f, host) for f in guests):
                continue
            if rows is None:
                rows = self._reduced_axes(node)
            if not rows <= {block.axis}:
                continue
            axes = {self._summed_axis(node, block, f, visits[f]) for f in guests}
            axis = axes.pop()
            if axes or axis is None:
                continue
            again = block.signature(node, host.space)
            together: Visits = {host: {**visits[host], again: True}}
            if host.added_up not in (0, block.at[axis]) or not self.staging.staged_block(
                node, together
            ):
                continue
            host.added_up = block.at[axis]
            for fusion in guests:
                self._attach(fusion, host)
            visits.clear()
            visits.update(together)
            return

    def _reduced_axes(self, node: LazyBuffer) -> set[int]:
        """The axes along which a node's elements depend on one another, as those of a softmax."""
        axes: set[int] = set()
        seen = {node}
        stack = [node]
        while stack and len(seen) < MAX_NODES:
            current = stack.pop()
            for source in value_sources(current):
                cost = self.costs[source]
                if source in seen or self.costs.is_load(source) or cost.contraction:
                    continue
                seen.add(source)
                stack.append(source)
                if current.op is MovementOps.EXPAND and cost.reduces:
                    pairs = zip(current.shape, source.shape, strict=True)
                    axes.update(axis for axis, (n, m) in enumerate(pairs) if n != m)
        return axes

    def _can_attach(self, guest: Fusion, host: Fusion) -> bool:
        """True if the guest is a sum and nothing else, and neither kernel needs the other."""
        if guest.host is host:
            return True
        if guest.host is not None or guest.guests or host.host is not None or guest.outer:
            return False
        if guest.reduces != [guest.space.outputs] or len(guest.outputs) > 1:
            return False
        return guest.is_plain_sum() and not (host.users & guest.bits or guest.users & host.bits)

    def _summed_axis(
        self, node: LazyBuffer, block: Block, guest: Fusion, indices: dict[Signature, bool]
    ) -> int | None:
        """The axis of a node along which a guest sums it, block after block; None if it cannot.

        All other axes have to be axes of the guest's result, the block's among them. Those other
        than the block's need enough elements for all threads.
        """
        space = guest.space
        reduce = guest.first_reduce
        if len(indices) != 1 or reduce is None:
            return None
        (signature,) = indices
        own = [space.ranges((component,)) for component in signature]
        if any(r and not space.is_range(c) for r, c in zip(own, signature, strict=True)):
            return None
        summed = [a for a, r in enumerate(own) if r and not r & space.outputs]
        terms = storage_size(reduce.srcs[0].shape)
        if len(summed) != 1 or block.axis in summed or not own[block.axis]:
            return None
        if terms != storage_size((*reduce.shape, node.shape[summed[0]])):
            return None
        shared = [c for a, c in enumerate(signature) if a not in (block.axis, *summed)]
        chunks = space.evals(space.ranges(tuple(shared)))
        rounds = -(-chunks // self.threads)
        return summed[0] if rounds * self.threads <= _MAX_IMBALANCE * chunks else None

    def _attach(self, guest: Fusion, host: Fusion) -> None:
        """Make a kernel the guest of a host, so that both are one kernel."""
        if guest.host is host:
            return
        guest.host = host
        host.guests.append(guest)
        bits = host.bits | guest.bits
        for fusion in (host, *host.guests):
            fusion.bits = bits
        add_users(self.fusions, bits, host.users | guest.users | bits)
