"""What a kernel gains by not storing a value: seconds of memory traffic against evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from ferrule.codegen.policy import fills_vectors, keeps_tiles, repeats_long_sums
from ferrule.helpers import prod, round_up
from ferrule.lazy import LazyBuffer
from ferrule.ops import BinaryOps, LoadOps, MovementOps, ReduceOps
from ferrule.records import dataclass
from ferrule.schedule.costs import SMALL_KERNEL, Cost, Costs, factors
from ferrule.schedule.fusion import MOST_NODES, Fusion, Visits
from ferrule.schedule.graph import value_sources
from ferrule.shape.layout import storage_size
from ferrule.target import Target

# How long it takes to start one more kernel.
_LAUNCH_SECONDS: Final = 1e-6
# Costs below a node are counted down to the next nodes that may be cut themselves, so many deep.
_CHANCES_TO_CUT: Final = 2
# So many operations for each element are hidden behind the memory's latency.
_UNNOTICED: Final = 16
# With fewer operations for each element, computing it again is as fast as reading a block of it.
_BLOCK_OPERATIONS: Final = 8
# The part of a kernel's time that its memory traffic must take for blocks to be worth their while.
_NOTICED: Final = 0.1
# The terms of a contraction that several kernels compute, each for itself, and how much larger its
# result is than its operands.
_MOST_TERMS_AGAIN: Final = 256
_MUCH_LARGER: Final = 4


@final
@dataclass(frozen=True)
class _Below:
    """What it takes to compute a node once."""

    work: float
    """Operations."""
    loaded: int
    """Bytes of memory to read."""
    reading: int
    """How many of the kernels that want the node read most of that memory anyway."""


@final
class Gains:
    """What fusing gains on one target."""

    def __init__(self, costs: Costs, target: Target, visits: Mapping[LazyBuffer, Visits]) -> None:
        self.costs = costs
        self.visits = visits
        """For each node that the walk has yet to reach, the kernels that would evaluate it."""
        self.operation_seconds = 2 / target.flops_per_second
        self.threads = target.max_threads
        self.lanes = target.lanes(4)
        self.fills_vectors = fills_vectors(target)
        self.keeps_tiles = keeps_tiles(target)
        self.repeats_long_sums = repeats_long_sums(target)
        self.byte_seconds = 1 / (target.bytes_per_second * target.max_threads)
        self.near_bytes = target.l2_bytes

    def is_costly(self, node: LazyBuffer) -> bool:
        """Whether computing a node takes longer than reading it from a block."""
        cost = self.costs[node]
        return any(self.costs[reduce].contraction for reduce in cost.owned) or (
            cost.local > _BLOCK_OPERATIONS * cost.size
        )

    def streams(self, node: LazyBuffer, fusion: Fusion) -> bool:
        """Whether two contractions with the node between them gain from not storing it.

        Both it and what the first one gives would be written and read, which has to be noticeable
        beside their operations.
        """
        first = self.contraction_below(node)
        if first is None:
            return False
        both = [first] if fusion.contraction is None else [first, fusion.contraction]
        work = 2 * sum([self.costs[n].each * self.costs[n].size for n in both])
        return 4 * self.costs.nbytes[node] * self.byte_seconds >= _NOTICED * self._seconds(work)

    def is_much_larger(self, node: LazyBuffer) -> bool:
        """Whether a node is much larger than what the contraction has that it is made from, and
        that takes few operations for each element.
        """
        first = self.contraction_below(node)
        if first is None or self.costs[first].each > _MOST_TERMS_AGAIN:
            return False
        operands = sum([storage_size(x.shape) for x in factors(first)])
        return self.costs[node].size >= _MUCH_LARGER * operands

    def is_spared(self, node: LazyBuffer) -> bool:
        """Whether memory for a node is worth operations that are done several times for it."""
        return self.keeps_tiles and self.is_much_larger(node)

    def contraction_below(self, node: LazyBuffer) -> LazyBuffer | None:
        """A contraction that gives as many elements as the node has, and of which it is made."""
        size = self.costs[node].size
        seen = {node}
        stack = [node]
        while stack and len(seen) < MOST_NODES:
            current = stack.pop()
            cost = self.costs[current]
            if cost.contraction:
                if cost.size == size and len(cost.reduces) == 1:
                    return current
                continue
            for source in value_sources(current):
                if source not in seen and not self.costs.is_load(source):
                    seen.add(source)
                    stack.append(source)
        return None

    def fills_lanes(self, node: LazyBuffer, visits: Visits) -> bool:
        """Whether the results of a contraction, several for each place, which a kernel does nothing
        to but put them side by side, are as well computed there.

        A tile's lanes are then along the results for one element of a place, and more of them may
        be empty than along all of these; but nothing goes through memory twice. Elements of a place
        that fill vectors are lanes of another kernel, which stores them as they lie in memory.
        """
        ((fusion, indices),) = visits.items()
        (signature,) = indices
        taps = [fusion.space.is_inner_range(component) for component in signature]
        columns = _columns(node, taps)
        every = prod(size for size, _ in columns)
        count = prod(size for size, is_tap in columns if is_tap)
        if not self.fills_vectors or not columns or count % self.lanes == 0:
            return False
        empty = count * round_up(every // count, self.lanes) - round_up(every, self.lanes)
        cost = self.costs[node]
        through_memory = 2 * self.costs.nbytes[node] * self.byte_seconds + _LAUNCH_SECONDS
        return self._seconds(empty * (cost.size // every) * cost.each) <= through_memory

    def pays(self, node: LazyBuffer, cost: Cost, visits: Visits) -> bool:
        """Whether evaluating the node wherever it is needed beats its trip through memory."""
        evals = 0
        for fusion, indices in visits.items():
            space = fusion.space
            for signature in indices:
                evals += space.evals_at(signature)
        extra = evals - cost.size
        if self._is_scattered(visits) and cost.local > _UNNOTICED * cost.size:
            extra = evals * self.lanes - cost.size  # the others are done by vectors
        if len(visits) == 1 and extra <= 0:
            if cost.local <= _UNNOTICED * cost.size or cost.reduces:
                return True
            extra = self._evals_in_order(visits) - cost.size
            if extra <= 0:
                return True
        if not self.repeats_long_sums and self.costs.has_long_sum(node):
            return False
        below = self._below(node, visits)
        size = self.costs.nbytes[node]
        through_memory = below.loaded + size * (1 + len(visits))
        rereads = 0
        if cost.reduces and below.loaded > self.near_bytes * cost.size:
            rereads = below.reading  # the second pass over a row finds it no longer in the cache
        fused = below.loaded * (len(visits) - below.reading + rereads)
        seconds = (through_memory - fused) * self.byte_seconds + _LAUNCH_SECONDS
        return self._seconds(extra * below.work / max(cost.size, 1)) <= seconds

    def _is_scattered(self, visits: Visits) -> bool:
        """Whether a processor would compute a node for one element after the other: where kernels
        store is said by values, and may be one place.
        """
        scatters = any(fusion.value.op is ReduceOps.SCATTER for fusion in visits)
        return scatters and self.fills_vectors

    def _evals_in_order(self, visits: Visits) -> int:
        """The evaluations where the loops over the output keep their order.

        What does not vary with an outer loop is computed again in each of its iterations.
        """
        evals = 0
        for fusion, indices in visits.items():
            space = fusion.space
            for signature in indices:
                ranges = space.closure(space.ranges(signature))
                inner = ranges & space.outputs
                outer = (1 << inner.bit_length()) - 1
                evals += space.evals(ranges | (outer & space.outputs))
        return evals

    def _seconds(self, work: float) -> float:
        """How long so many operations take; few of them are not shared out."""
        threads = min(self.threads, max(work / SMALL_KERNEL, 1))
        return work * self.operation_seconds / threads

    def _below(self, node: LazyBuffer, visits: Visits) -> _Below:
        """What computing the node once takes, down to what is in memory, or may well come to be.

        Each node that is wanted at several indices is another chance to cut: after a few of them
        there surely was one.
        """
        work = 0.0
        loads: dict[LazyBuffer, int] = {}
        inner: list[LazyBuffer] = []
        costs = self.costs
        seen = {node}
        nodes = costs[node].nodes
        stack = [(node, _CHANCES_TO_CUT, costs.nbytes[node])]
        while stack and nodes < MOST_NODES:
            current, chances, part = stack.pop()
            cost = costs[current]
            work += cost.each * cost.size
            inner.append(current)
            moves = isinstance(current.op, MovementOps)
            for source in value_sources(current):
                if source in seen:
                    continue
                seen.add(source)
                most = costs.nbytes[source]
                if moves:  # of what is moved into a smaller shape, only that much is read
                    most = min(most, part)
                left = chances - (source in costs.several_indices)
                if left < 0 or costs.is_surely_load(source):
                    loads[source] = most
                    nodes += 1
                elif source.op is not LoadOps.CONST:
                    stack.append((source, left, most))
                    nodes += costs[source].nodes
        loaded = sum(loads.values())
        work += sum([most // load.dtype.itemsize for load, most in loads.items()])
        wide = max([self.costs[load].size for load in loads], default=0)
        reading = self._count_reading(visits, [*inner[1:], *loads], wide)
        return _Below(work, loaded, reading)

    def _count_reading(self, visits: Visits, nodes: list[LazyBuffer], wide: int) -> int:
        """How many of the kernels compute, or load, one of the widest `nodes` anyway."""
        widest = [node for node in nodes if 2 * self.costs[node].size > wide]
        count = 0
        for fusion in visits:
            for node in widest:
                if node in fusion.buffers or fusion in self.visits.get(node, ()):
                    count += 1
                    break
        return count


def _columns(product: LazyBuffer, taps: Sequence[bool]) -> list[tuple[int, bool]]:
    """The axes of a sum of products that only one of its factors varies with, which is the one that
    varies with the `taps`: the size of each, and whether it is one of these. Empty if there is no
    such factor, or a size is not known.
    """
    body = product.srcs[0]
    sizes = [size for size in product.shape if isinstance(size, int)]
    if body.op is not BinaryOps.MUL or len(sizes) < len(taps):
        return []
    first, second = ([_varies(factor, axis) for axis in range(len(taps))] for factor in body.srcs)
    for varies, other in ((first, second), (second, first)):
        only = [mine and not others for mine, others in zip(varies, other, strict=True)]
        if all(is_only for is_only, is_tap in zip(only, taps, strict=True) if is_tap):
            axes = zip(sizes, taps, only, strict=True)
            return [(size, is_tap) for size, is_tap, is_only in axes if is_only]
    return []


def _varies(factor: LazyBuffer, axis: int) -> bool:
    """Whether a factor of a product has different elements along an axis, as far as its last EXPAND
    says so.
    """
    source = factor.srcs[0] if factor.op is MovementOps.EXPAND else factor
    return source.shape[axis] != 1
