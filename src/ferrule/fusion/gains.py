"""The gain of fusing a value rather than storing it: seconds of traffic against evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from ferrule.base.helpers import prod, round_up
from ferrule.base.records import dataclass
from ferrule.codegen.policy import fills_vectors, repeats_long_sums, tiles_stages
from ferrule.fusion.costs import SMALL_KERNEL_OPERATIONS, Cost, Costs, factors
from ferrule.fusion.graph import value_sources
from ferrule.fusion.groups import MAX_NODES, Fusion, Visits
from ferrule.fusion.views import interleaves, is_movement, view_of
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, LoadOps, MovementOps, ReduceOps
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.target import Target

# Seconds to start one more kernel. An order of magnitude; one launch takes 1.1 us on one core of
# the machine in docs/performance.md.
_LAUNCH_SECONDS: Final = 1e-6
# Levels of nodes used at several indices below which costs are no longer counted: each of them may
# be cut itself. Not measured: without a bound everything in a deep network would count.
_MAX_CUT_DEPTH: Final = 2
# Operations per element that are hidden behind the latency of memory. Not measured.
_HIDDEN_OPERATIONS: Final = 16
# Operations per element up to which computing it again is as fast as reading it from a block in the
# cache. Not measured.
_BLOCK_READ_OPERATIONS: Final = 8
# Fraction of a kernel's time that its memory traffic must take for blocks to be worthwhile. Not
# measured: networks with narrow layers qualify, those with wide layers do not.
_MIN_TRAFFIC_SHARE: Final = 0.1
# Terms of a contraction up to which several kernels may compute it, each for itself. Not measured:
# chosen for the scores of attention.
_MAX_RECOMPUTED_TERMS: Final = 256
# Elements of its result for each element of its operands from which on they may. Not measured.
_MIN_RESULT_GROWTH: Final = 4


@final
@dataclass(frozen=True)
class _Below:
    """The cost of computing a node once."""

    work: float
    """Operations."""
    loaded: int
    """Bytes of memory to read."""
    reading: int
    """The number of kernels that want the node and read most of that memory anyway."""


@final
class Gains:
    """The gains of fusing nodes of a graph on one target."""

    def __init__(self, costs: Costs, target: Target, visits: Mapping[LazyBuffer, Visits]) -> None:
        self.costs = costs
        self.visits = visits
        """The kernels that would evaluate each node that the cut has not decided yet."""
        self.operation_seconds = 2 / target.flops_per_second
        self.threads = target.max_threads
        self.lanes = target.lanes(4)
        self.fills_vectors = fills_vectors(target)
        self.tiles_stages = tiles_stages(target)
        self.repeats_long_sums = repeats_long_sums(target)
        self.byte_seconds = 1 / (target.bytes_per_second * target.max_threads)
        self.near_bytes = target.l2_bytes

    def is_costly(self, node: LazyBuffer) -> bool:
        """True if computing a node takes longer than reading it from a block."""
        cost = self.costs[node]
        return any(self.costs[reduce].contraction for reduce in cost.owned) or (
            cost.local > _BLOCK_READ_OPERATIONS * cost.size
        )

    def saves_traffic(self, node: LazyBuffer, fusion: Fusion) -> bool:
        """True if two contractions with the node between them gain from not storing it.

        Stored, both the node and the first contraction's result would be written and read. This
        traffic has to be a noticeable part of the time of the contractions.
        """
        first = self.contraction_below(node)
        if first is None:
            return False
        both = [first] if fusion.contraction is None else [first, fusion.contraction]
        work = 2 * sum([self.costs[n].each * self.costs[n].size for n in both])
        return 4 * self.costs.nbytes[
            node
        ] * self.byte_seconds >= _MIN_TRAFFIC_SHARE * self._seconds(work)

    def is_much_larger(self, node: LazyBuffer) -> bool:
        """True if a node is much larger than the operands of the contraction that it is made from.

        The contraction must take few operations for each element.
        """
        first = self.contraction_below(node)
        if first is None or self.costs[first].each > _MAX_RECOMPUTED_TERMS:
            return False
        operands = sum([storage_size(x.shape) for x in factors(first)])
        return self.costs[node].size >= _MIN_RESULT_GROWTH * operands

    def is_worth_recomputing(self, node: LazyBuffer) -> bool:
        """True if several kernels should each compute a node, to save its memory."""
        return self.tiles_stages and self.is_much_larger(node)

    def contraction_below(self, node: LazyBuffer) -> LazyBuffer | None:
        """The contraction that a node with as many elements is made from; None without one."""
        size = self.costs[node].size
        seen = {node}
        stack = [node]
        while stack and len(seen) < MAX_NODES:
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
        """True if a kernel that only places a contraction's results should compute them, too.

        An example is a transposed convolution whose windows do not overlap. The lanes of a tile are
        then the results for one element (tap) of a window, so that more lanes may stay empty than
        in a kernel for the contraction alone; but no result goes through memory. Taps that fill
        vectors are better off as the lanes of a kernel of their own.
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

    def is_worth_keeping(self, node: LazyBuffer, cost: Cost) -> bool:
        """True if computing a value again takes longer than to store it now and to load it then.

        Storing needs no kernel of its own, as a rule. What is made of reduces is not computed
        again: they are stored, or their results are.
        """
        through_memory = 2 * self.costs.nbytes[node] * self.byte_seconds
        return not cost.reduces and self._seconds(cost.local) > through_memory

    def pays(self, node: LazyBuffer, cost: Cost, visits: Visits) -> bool:
        """True if evaluating the node in all its users is faster than storing and loading it."""
        evals = 0
        for fusion, indices in visits.items():
            space = fusion.space
            for signature in indices:
                evals += space.evals_at(signature)
        extra = evals - cost.size
        scalar = self._is_scattered(visits) and cost.local > _HIDDEN_OPERATIONS * cost.size
        if scalar or self._gathers_terms(cost, visits):
            extra = evals * self.lanes - cost.size  # a kernel of its own would use vectors
        if len(visits) == 1 and extra <= 0:
            if cost.local <= _HIDDEN_OPERATIONS * cost.size or cost.reduces:
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

    def is_worth_moving(self, node: LazyBuffer, visits: Visits) -> bool:
        """True if a contraction that reads interleaved elements should find them in order.

        Else each lane of each load is gathered, though an element is loaded many times. A copy has
        to take less time than the contraction.
        """
        if not self.fills_vectors or not interleaves(node):
            return False
        copied = 2 * self.costs.nbytes[node] * self.byte_seconds + _LAUNCH_SECONDS
        contractions = [
            fusion.contraction
            for fusion, indices in visits.items()
            if fusion.contraction is not None and any(indices.values())
        ]
        costs = [self.costs[contraction] for contraction in contractions]
        return any([self._seconds(2 * cost.each * cost.size) > copied for cost in costs])

    def _is_scattered(self, visits: Visits) -> bool:
        """True if a processor would compute the node without vectors, in a kernel that scatters.

        Such a kernel stores to computed positions, which may be equal for several lanes.
        """
        scatters = any(fusion.value.op is ReduceOps.SCATTER for fusion in visits)
        return scatters and self.fills_vectors

    def _gathers_terms(self, cost: Cost, visits: Visits) -> bool:
        """True if a kernel would gather the terms of sums that it waits for.

        Its lanes are along its innermost range. A sum outside of that has lanes along its terms, so
        that what is adjacent for several sums is gathered.
        """
        if not self.fills_vectors or len(visits) > 1:
            return False
        ((fusion, indices),) = visits.items()
        space = fusion.space
        for signature in indices:
            # Ranges of a reduce around it come behind those of the outputs.
            if space.closure(space.ranges(signature)).bit_length() >= space.outputs.bit_length():
                return False
        return any(map(_is_across, cost.reduces))

    def _evals_in_order(self, visits: Visits) -> int:
        """The number of evaluations if the loops over the output keep their order.

        A node that does not vary with an outer loop is then computed in each of its iterations.
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
        """The time of `work` operations; few of them are not shared out among threads."""
        threads = min(self.threads, max(work / SMALL_KERNEL_OPERATIONS, 1))
        return work * self.operation_seconds / threads

    def _below(self, node: LazyBuffer, visits: Visits) -> _Below:
        """The cost of computing the node once, from the values below that are likely in memory.

        Each node that is wanted at several indices may be stored itself. After a few of them the
        walk assumes that one is.
        """
        work = 0.0
        loads: dict[LazyBuffer, int] = {}
        inner: list[LazyBuffer] = []
        costs = self.costs
        seen = {node}
        nodes = costs[node].nodes
        stack = [(node, _MAX_CUT_DEPTH, costs.nbytes[node])]
        while stack and nodes < MAX_NODES:
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
                if moves:  # a movement into a smaller shape reads only a part
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
        """The number of kernels that compute or load one of the widest `nodes` anyway."""
        widest = [node for node in nodes if 2 * self.costs[node].size > wide]
        count = 0
        for fusion in visits:
            for node in widest:
                if node in fusion.buffers or fusion in self.visits.get(node, ()):
                    count += 1
                    break
        return count


def _is_across(reduce: LazyBuffer) -> bool:
    """True if some memory that a reduce reads is adjacent for several results, not along its terms.

    An example is `t @ w` with the rows of `w` in memory.
    """
    waiting, seen = [*reduce.srcs], set()
    while waiting:
        node = memory = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        while is_movement(memory):
            memory = memory.srcs[0]
        if memory is node and node.realized is None:
            waiting.extend([x for x in value_sources(node) if x.shape == node.shape])
        elif (view := view_of(node, memory)) is not None:
            of_results: set[sint] = set()
            of_terms: set[sint] = set()
            for result, size, step in zip(reduce.shape, node.shape, view.strides, strict=True):
                (of_results if result == size else of_terms).add(0 if size == 1 else step)
            if 1 in of_results and 1 not in of_terms and of_terms != {0}:
                return True
    return False


def _columns(product: LazyBuffer, taps: Sequence[bool]) -> list[tuple[int, bool]]:
    """The axes along which only the factor with the `taps` varies: size, and True for a tap.

    Empty if no factor varies with all taps alone, or a size is symbolic. `product` is a sum of
    products.
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
    """True if a factor has different elements along an axis, judged by its last EXPAND alone."""
    source = factor.srcs[0] if factor.op is MovementOps.EXPAND else factor
    return source.shape[axis] != 1
