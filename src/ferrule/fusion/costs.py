"""The cost of each node, from the leaves up, as if everything above memory were fused.

The unit of work is one addition. A load counts one as well, so that evaluating a node twice is
never free.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import gcd
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.codegen.intrinsics import native_intrinsic
from ferrule.codegen.policy import continues_totals, repeats_long_sums, widens_factors
from ferrule.fusion.graph import Graph, value_sources
from ferrule.fusion.joins import MAX_MASKS
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import (
    BinaryOps,
    FunctionOps,
    LoadOps,
    MovementOps,
    ReduceOps,
    UnaryOps,
    running_axis,
)
from ferrule.ir.op_table import PLAIN_MOVEMENTS, WHOLE_MOVEMENTS
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.simplify import join_mask
from ferrule.ir.speeds import Speeds
from ferrule.ir.steps import Step, Steps
from ferrule.ir.target import Target

# Reads of each loaded element from which on a reduce counts as a contraction, which is tiled for
# registers. Not measured.
_MIN_READS_PER_ELEMENT: Final = 4
SMALL_KERNEL_OPERATIONS: Final = 32768
"""Operations; a kernel with fewer needs neither tiles nor threads. Not measured."""
# Terms of a sum from which on blocks of threads store it rather than compute it at several indices.
# Chosen for a loss over 128 rows, where one block took 128 turns (2026-11-22).
_LONG_SUM_TERMS: Final = 64
# Evaluations per element of a contraction up to which a sum over its moved results is fused with
# it. Not measured: chosen so that the gradient of a convolution's input stays one reduce.
_MAX_SPREAD: Final = 1.5
# Operations per element, the bound of `Cost.local`. A shared value counts once for each user, so
# that without a bound the estimate would double at each level. Not measured.
_MAX_LOCAL_OPERATIONS: Final = 256

_CHANGES_INDEX: Final = frozenset({*ReduceOps, *MovementOps} - WHOLE_MOVEMENTS)
_KEEPS_REDUCES: Final = WHOLE_MOVEMENTS | {MovementOps.SHRINK}
"""The movements whose result is still an epilogue of the reduces below."""
NONE: Final[frozenset[LazyBuffer]] = frozenset()


@final
@dataclass(slots=True)
class Cost:
    """The cost of one node."""

    size: int
    """The number of its elements."""
    each: float
    """Operations of one evaluation, without those of its sources."""
    local: float
    """Estimated operations for all its elements, from the nearest reduces and loads below it on."""
    distinct: int
    """Estimated number of different elements of its widest source in memory."""
    repeats: bool
    """True if an EXPAND repeats elements, below the node and above any reduce."""
    reduces: frozenset[LazyBuffer]
    """The reduces of which it is an epilogue: at the same index, up to reshapes."""
    owned: frozenset[LazyBuffer]
    """The members of `reduces` that only this node uses, through nodes with one user each."""
    alone: bool = False
    """True if it reaches a reduce below it through nodes with one user each."""
    contraction: bool = False
    """True for a reduce that reads each loaded element many times, as a matrix product does."""
    is_reduce: bool = False
    spread: float = 0.0
    """Elements for each computed one, of a contraction's result after movements; 0 for others."""
    runs: bool = False
    """True for a running total: one loop adds each element to the total before it."""
    nodes: int = 1
    """The number of nodes that it counts for: a function counts as its steps do."""
    masks: frozenset[LazyBuffer] = NONE
    """The masks of the joins that it is computed from; of many, some are left out."""

    @property
    def passed(self) -> float:
        """The operations that it adds to the `local` of its users."""
        return float(self.size) if self.is_reduce else self.local


def operations(node: LazyBuffer | Step, speeds: Speeds) -> float:
    """The cost of one evaluation of an element-wise operation, in additions."""
    return speeds.additions(node.op.name, is_float=dtypes.is_float(node.dtype))


@final
@dataclass(frozen=True)
class _Function:
    """The cost of the steps of an element-wise function."""

    each: float
    """Operations for each element."""
    local: float
    """The same with shared steps counted once for each user, as shared nodes are."""
    times: int
    """How many times `local` counts the argument."""


@cache
def _function(function: Steps, speeds: Speeds) -> _Function:
    local = [0.0]
    times = [1]
    for step in function.steps:
        unique = set(step.sources)
        own = 0.0 if step.op is LoadOps.CONST else operations(step, speeds)
        local.append(sum([local[source] for source in unique]) + own)
        times.append(sum([times[source] for source in unique]))
    each = sum([operations(step, speeds) for step in function.operations])
    return _Function(each, local[-1], times[-1])


def widened_factors(reduce: LazyBuffer, target: Target) -> list[LazyBuffer]:
    """The casts below a sum of products that cost nothing there.

    On a processor both factors have to be casts of narrow elements, and the target needs an
    instruction that casts and multiplies them. Blocks of threads cast for free, since memory bounds
    them.
    """
    casts = factors(reduce)
    if widens_factors(target):
        return [node for node in casts if node.op is UnaryOps.CAST and node.realized is None]
    if any(node.op is not UnaryOps.CAST or node.realized is not None for node in casts):
        return []
    sources = {node.srcs[0].dtype for node in casts}
    return casts if sources and native_intrinsic(sources, reduce.dtype, target) else []


def factors(reduce: LazyBuffer) -> list[LazyBuffer]:
    """The factors of a sum of products, below their movements; empty for any other reduce."""
    product = _unmoved(reduce.srcs[0])
    if reduce.op is not ReduceOps.SUM or product.op is not BinaryOps.MUL:
        return []
    return [_unmoved(factor) for factor in product.srcs]


def _unmoved(node: LazyBuffer) -> LazyBuffer:
    while isinstance(node.op, MovementOps) and node.realized is None:
        node = node.srcs[0]
    return node


def nbytes(node: LazyBuffer) -> int:
    """The size of a value in memory, in bytes."""
    return storage_size(node.shape) * node.dtype.itemsize


@final
class Costs:
    """The costs of all nodes of a graph; a node in memory costs its load."""

    def __init__(self, graph: Graph, roots: set[LazyBuffer], target: Target) -> None:
        self.roots = roots
        self._speeds = target.speeds
        self._repeats_long_sums = repeats_long_sums(target)
        self._continues_totals = continues_totals(target)
        self.users = dict.fromkeys(graph.order, 0)
        self._costs: dict[LazyBuffer, Cost] = {}
        self._loads: dict[LazyBuffer, Cost] = {}
        self.several_indices: set[LazyBuffer] = set()
        """The nodes with several users, one of which changes the index, as `x` in `x / sum(x)`.

        A kernel that fuses such a node evaluates it more than once.
        """
        moved: set[LazyBuffer] = set()
        for node in graph.order:
            for source in value_sources(node):
                self.users[source] += 1
                if node.op in _CHANGES_INDEX:
                    moved.add(source)
        self.several_indices = {node for node in moved if self.users[node] > 1}
        self.nbytes = {node: nbytes(node) for node in graph.order}
        """The size of each value in memory, in bytes."""
        for node in graph.order:
            cost = self._costs[node] = self._cost(node)
            cost.masks = self._masks(node)
        self._stored = {node for node, cost in self._costs.items() if self._is_stored(node, cost)}

    def __getitem__(self, node: LazyBuffer) -> Cost:
        """The cost of computing the node."""
        return self._costs[node]

    def of_source(self, node: LazyBuffer) -> Cost:
        """The cost of the node for its users: a load, if it is in memory.

        A contraction is never computed twice, so that its users count a load, too. So do the users
        of an epilogue of a long sum at several indices, where blocks of threads run kernels.
        """
        cost = self._costs[node]
        in_memory = node in self.roots or self._is_repeated_long_sum(node)
        if not in_memory and not cost.contraction:
            return cost
        load = self._loads.get(node)
        if load is None:
            load = self._loads[node] = _load(node)
            if not in_memory:
                load.reduces = load.owned = cost.reduces
                load.alone = True
        return load

    def is_load(self, node: LazyBuffer) -> bool:
        """True if a kernel that uses the node finds it in memory."""
        return node.realized is not None or node in self.roots

    def is_surely_load(self, node: LazyBuffer) -> bool:
        """True if the node is in memory, or is certain to be stored."""
        return node.realized is not None or node in self.roots or node in self._stored

    def _is_stored(self, node: LazyBuffer, cost: Cost) -> bool:
        """True if a node will be stored, whatever is decided about others."""
        return cost.contraction or self._is_repeated_long_sum(node)

    def has_long_sum(self, node: LazyBuffer) -> bool:
        """True if each element is a long sum, or an epilogue of one."""
        return any(
            self._costs[reduce].each >= _LONG_SUM_TERMS for reduce in self._costs[node].reduces
        )

    def _is_repeated_long_sum(self, node: LazyBuffer) -> bool:
        return (
            not self._repeats_long_sums and node in self.several_indices and self.has_long_sum(node)
        )

    def _masks(self, node: LazyBuffer) -> frozenset[LazyBuffer]:
        if self.is_load(node):
            return NONE
        own = join_mask(node)
        found = NONE if own is None else frozenset((own,))
        for source in value_sources(node):
            below = self._costs[source].masks
            if below and len(found) <= MAX_MASKS and not self.is_load(source):
                found |= below
        return found

    def _cost(self, node: LazyBuffer) -> Cost:
        if node.realized is not None or not node.srcs:
            return _const(node) if node.op is LoadOps.CONST else _load(node)
        sources = [self.of_source(source) for source in value_sources(node)]
        if isinstance(node.op, MovementOps):
            return self._movement(node, sources)
        if isinstance(node.op, ReduceOps):
            return self._reduce(node, sources)
        if node.op is FunctionOps.STEPS:
            return self._function(node, sources[0])
        return self._elementwise(node, sources)

    def _owned(self, source: LazyBuffer, cost: Cost) -> frozenset[LazyBuffer]:
        """The reduces that a user of `source` owns."""
        return cost.owned if self.users[source] == 1 else NONE

    def _alone(self, node: LazyBuffer, sources: list[Cost]) -> bool:
        pairs = zip(value_sources(node), sources, strict=True)
        return any([cost.alone and self.users[source] == 1 for source, cost in pairs])

    def _function(self, node: LazyBuffer, source: Cost) -> Cost:
        size = storage_size(node.shape)
        steps = _function(node.arg, self._speeds)
        only = node.arg.is_chain and self.users[node.srcs[0]] == 1
        return Cost(
            size,
            steps.each,
            min(steps.times * source.passed + steps.local * size, _MAX_LOCAL_OPERATIONS * size),
            source.distinct,
            source.repeats,
            source.reduces,
            source.owned if only else NONE,
            source.alone and only,
            nodes=len(node.arg.operations),
        )

    def _elementwise(self, node: LazyBuffer, sources: list[Cost]) -> Cost:
        size = storage_size(node.shape)
        own = size * operations(node, self._speeds)
        unique = {id(cost): cost for cost in sources}.values()
        reduces = owned = NONE
        for source, cost in zip(value_sources(node), sources, strict=True):
            if cost.reduces:
                reduces = reduces | cost.reduces
                owned = owned | self._owned(source, cost)
        return Cost(
            size,
            operations(node, self._speeds),
            min(sum([cost.passed for cost in unique]) + own, _MAX_LOCAL_OPERATIONS * size),
            max([cost.distinct for cost in sources]),
            any([cost.repeats for cost in sources]),
            reduces,
            owned,
            self._alone(node, sources),
        )

    def _movement(self, node: LazyBuffer, sources: list[Cost]) -> Cost:
        size = storage_size(node.shape)
        source = sources[0]
        keeps = node.op in _KEEPS_REDUCES
        smaller = size < source.size and node.op in PLAIN_MOVEMENTS
        part = size / source.size if smaller and source.size else 1.0
        return Cost(
            size,
            0.0,
            sum([cost.passed for cost in sources]) * part,
            min(size, source.distinct),
            any([c.repeats for c in sources])
            or (node.op is MovementOps.EXPAND and size > source.size),
            source.reduces if keeps else NONE,
            self._owned(node.srcs[0], source) if keeps else NONE,
            self._alone(node, sources),
            spread=self._spread(node) * _evaluated(node) / max(source.size, 1),
        )

    def _spread(self, node: LazyBuffer) -> float:
        """The spread of the only source; 0 if something else uses that, or it is in memory."""
        source = node.srcs[0]
        alone = len(node.srcs) == 1 and self.users[source] == 1 and source not in self.roots
        return self._costs[source].spread if alone else 0.0

    def _reduce(self, node: LazyBuffer, sources: list[Cost]) -> Cost:
        body = sources[0]
        size = storage_size(node.shape)
        itself = frozenset((node,))
        if self._continues_totals and running_axis(node) is not None:
            work = body.passed + size
            once = Cost(size, 1.0, work, size, False, itself, itself, alone=True)
            return replace(once, is_reduce=True, runs=True)
        reused = body.repeats and body.size >= _MIN_READS_PER_ELEMENT * max(body.distinct, 1)
        reused = reused and body.size > SMALL_KERNEL_OPERATIONS
        spread = self._spread(node) if node.op is ReduceOps.SUM else 0.0
        continued = 0 < spread <= _MAX_SPREAD and self._same_sum(node)
        return Cost(
            size,
            body.size / size if size else 0.0,
            body.passed + body.size,
            size,
            False,
            itself,
            itself,
            True,
            reused or continued,
            True,
            spread if continued else float(reused),
        )

    def _same_sum(self, node: LazyBuffer) -> bool:
        """True if the nearest node below the movements is a sum of the same dtype."""
        source = node.srcs[0]
        while isinstance(source.op, MovementOps):
            source = source.srcs[0]
        return source.op is ReduceOps.SUM and source.dtype is node.dtype


def _evaluated(node: LazyBuffer) -> float:
    """The number of elements of a movement without the zeros that an UNWINDOW puts between them."""
    size = storage_size(node.shape)
    if node.op is not MovementOps.UNWINDOW:
        return size
    _, _, stride, dilation = node.arg
    return size / stride if gcd(stride, dilation) == 1 else size


def _const(node: LazyBuffer) -> Cost:
    return Cost(storage_size(node.shape), 0.0, 0.0, 1, False, NONE, NONE)


def _load(node: LazyBuffer) -> Cost:
    size = storage_size(node.shape)
    return Cost(size, 1.0, float(size), size, False, NONE, NONE)
