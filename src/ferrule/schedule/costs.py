"""What nodes cost, from the leaves up, as if everything above memory were fused.

Operations are counted in units of one addition; a load counts one, so that evaluating something
twice is never free.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import gcd
from typing import Final, final

from ferrule.codegen.intrinsics import native_intrinsic
from ferrule.codegen.policy import continues_totals, repeats_long_sums, widens_factors
from ferrule.dtype import dtypes
from ferrule.lazy import LazyBuffer
from ferrule.opkinds import ELEMENTWISE, PLAIN_MOVEMENTS, WHOLE_MOVEMENTS
from ferrule.ops import BinaryOps, FunctionOps, LoadOps, MovementOps, Op, ReduceOps, UnaryOps
from ferrule.records import dataclass
from ferrule.schedule.graph import Graph, value_sources
from ferrule.schedule.signature import is_running_total
from ferrule.shape.layout import storage_size
from ferrule.steps import Step, Steps
from ferrule.target import Target

_FLOAT_COST: Final[dict[Op, float]] = {op: row.cost for op, row in ELEMENTWISE.items()}
_INTEGER_COST: Final[dict[Op, float]] = {
    op: row.integer_cost for op, row in ELEMENTWISE.items() if row.integer_cost is not None
}
# Above this many reads of each element that is loaded, a reduce is worth tiling for registers.
_REUSE: Final = 4
SMALL_KERNEL: Final = 32768
"""A kernel of fewer operations needs neither tiles nor threads."""
# Terms of a sum that is not computed again where it is used at several indices.
_LONG_SUM: Final = 64
# A sum over the moved parts of a contraction is part of it, if it evaluates so many times more.
_MOST_SPREAD: Final = 1.5
# What is shared counts once for each user, and so doubles at each level: a bound for each element.
_MOST_LOCAL: Final = 256

_CHANGES_INDEX: Final = frozenset({*ReduceOps, *MovementOps} - WHOLE_MOVEMENTS)
_KEEPS_REDUCES: Final = WHOLE_MOVEMENTS | {MovementOps.SHRINK}
"""The movements whose result is still an epilogue of the reduces below."""
NONE: Final[frozenset[LazyBuffer]] = frozenset()


@final
@dataclass(slots=True)
class Cost:
    """Of one node."""

    size: int
    """How many elements it has."""
    each: float
    """Operations for each of its own evaluations, its sources not counted."""
    local: float
    """About what it takes from the nearest reduces, and loads, below it on."""
    distinct: int
    """About how many different elements its widest source in memory has."""
    repeats: bool
    """Whether an EXPAND below it, and above any reduce, repeats elements."""
    reduces: frozenset[LazyBuffer]
    """The reduces of which it is an epilogue: at the same index, up to reshapes."""
    owned: frozenset[LazyBuffer]
    """Those of the `reduces` whose only user it is, through others that have only one user."""
    alone: bool = False
    """Whether a reduce is below it that it reaches through nodes with one user each."""
    contraction: bool = False
    """Whether it is a reduce that reads what it loads many times, as a matrix product does."""
    is_reduce: bool = False
    spread: float = 0.0
    """Above 0 for what a contraction's result moves to: elements for each that was computed."""
    runs: bool = False
    """Whether it is a total that goes on from element to element, in one loop of its own."""
    nodes: int = 1
    """How many it counts for: a function counts as its steps do."""

    @property
    def passed(self) -> float:
        """What users count as local."""
        return float(self.size) if self.is_reduce else self.local


def operations(node: LazyBuffer | Step) -> float:
    """What one evaluation of an element-wise operation takes."""
    if node.op in _INTEGER_COST and not dtypes.is_float(node.dtype):
        return _INTEGER_COST[node.op]
    return _FLOAT_COST.get(node.op, 1.0)


@final
@dataclass(frozen=True)
class _Function:
    """What the steps of a function cost."""

    each: float
    """Operations for each element."""
    local: float
    """The same, where what is shared counts once for each user, as it does between nodes."""
    times: int
    """How many times the argument counts in that."""


@cache
def _function(function: Steps) -> _Function:
    local = [0.0]
    times = [1]
    for step in function.steps:
        unique = set(step.sources)
        own = 0.0 if step.op is LoadOps.CONST else operations(step)
        local.append(sum([local[source] for source in unique]) + own)
        times.append(sum([times[source] for source in unique]))
    each = sum([operations(step) for step in function.operations])
    return _Function(each, local[-1], times[-1])


def widened_factors(reduce: LazyBuffer, target: Target) -> list[LazyBuffer]:
    """The casts below a sum of products that cost nothing there.

    That is where both factors are casts of one narrow float, and the target's instruction for such
    sums does them itself; or where blocks of threads do them, which are bound by what they read.
    """
    casts = factors(reduce)
    if widens_factors(target):
        return [node for node in casts if node.op is UnaryOps.CAST and node.realized is None]
    if any(node.op is not UnaryOps.CAST or node.realized is not None for node in casts):
        return []
    sources = {node.srcs[0].dtype for node in casts}
    if len(sources) != 1 or not native_intrinsic(sources.pop(), reduce.dtype, target):
        return []
    return casts


def factors(reduce: LazyBuffer) -> list[LazyBuffer]:
    """What a sum of products multiplies, before it is moved; empty for any other reduce."""
    product = _unmoved(reduce.srcs[0])
    if reduce.op is not ReduceOps.SUM or product.op is not BinaryOps.MUL:
        return []
    return [_unmoved(factor) for factor in product.srcs]


def _unmoved(node: LazyBuffer) -> LazyBuffer:
    while isinstance(node.op, MovementOps) and node.realized is None:
        node = node.srcs[0]
    return node


def nbytes(node: LazyBuffer) -> int:
    """The memory of a value."""
    return storage_size(node.shape) * node.dtype.itemsize


@final
class Costs:
    """The costs of all nodes of a graph. What is in memory, or will surely be, costs its load."""

    def __init__(self, graph: Graph, roots: set[LazyBuffer], target: Target) -> None:
        self.roots = roots
        self._repeats_long_sums = repeats_long_sums(target)
        self._continues_totals = continues_totals(target)
        self.users = dict.fromkeys(graph.order, 0)
        self._costs: dict[LazyBuffer, Cost] = {}
        self._loads: dict[LazyBuffer, Cost] = {}
        self.several_indices: set[LazyBuffer] = set()
        """The nodes that are used both as they are and at another index, as `x` in `x / sum(x)`.

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
        """The memory of each value."""
        for node in graph.order:
            self._costs[node] = self._cost(node)
        self._stored = {node for node, cost in self._costs.items() if self._is_stored(node, cost)}

    def __getitem__(self, node: LazyBuffer) -> Cost:
        """What it takes to compute the node."""
        return self._costs[node]

    def of_source(self, node: LazyBuffer) -> Cost:
        """What the node costs its users: a load, if it is in memory.

        A contraction is never computed twice, so that its users do not pay for it either; nor do
        those of long sums that are used at several indices, where blocks of threads run kernels.
        """
        cost = self._costs[node]
        in_memory = node in self.roots or self._is_long_sum_again(node)
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
        """Whether a kernel that uses the node finds it in memory."""
        return node.realized is not None or node in self.roots

    def is_surely_load(self, node: LazyBuffer) -> bool:
        """Whether that is so, or will be."""
        return node.realized is not None or node in self.roots or node in self._stored

    def _is_stored(self, node: LazyBuffer, cost: Cost) -> bool:
        """Whether a node will be in memory, whatever is found out about others."""
        return cost.contraction or self._is_long_sum_again(node)

    def has_long_sum(self, node: LazyBuffer) -> bool:
        """Whether each element is a long sum, or an epilogue of one."""
        return any(self._costs[reduce].each >= _LONG_SUM for reduce in self._costs[node].reduces)

    def _is_long_sum_again(self, node: LazyBuffer) -> bool:
        return (
            not self._repeats_long_sums and node in self.several_indices and self.has_long_sum(node)
        )

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
        steps = _function(node.arg)
        only = node.arg.is_chain and self.users[node.srcs[0]] == 1
        return Cost(
            size,
            steps.each,
            min(steps.times * source.passed + steps.local * size, _MOST_LOCAL * size),
            source.distinct,
            source.repeats,
            source.reduces,
            source.owned if only else NONE,
            source.alone and only,
            nodes=len(node.arg.operations),
        )

    def _elementwise(self, node: LazyBuffer, sources: list[Cost]) -> Cost:
        size = storage_size(node.shape)
        own = size * operations(node)
        unique = {id(cost): cost for cost in sources}.values()
        reduces = owned = NONE
        for source, cost in zip(value_sources(node), sources, strict=True):
            if cost.reduces:
                reduces = reduces | cost.reduces
                owned = owned | self._owned(source, cost)
        return Cost(
            size,
            operations(node),
            min(sum([cost.passed for cost in unique]) + own, _MOST_LOCAL * size),
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
        """That of the only source, which nothing else uses."""
        source = node.srcs[0]
        alone = len(node.srcs) == 1 and self.users[source] == 1 and source not in self.roots
        return self._costs[source].spread if alone else 0.0

    def _reduce(self, node: LazyBuffer, sources: list[Cost]) -> Cost:
        body = sources[0]
        size = storage_size(node.shape)
        itself = frozenset((node,))
        if self._continues_totals and is_running_total(node):
            work = body.passed + size
            once = Cost(size, 1.0, work, size, False, itself, itself, alone=True)
            return replace(once, is_reduce=True, runs=True)
        reused = body.repeats and body.size >= _REUSE * max(body.distinct, 1)
        reused = reused and body.size > SMALL_KERNEL
        spread = self._spread(node) if node.op is ReduceOps.SUM else 0.0
        continued = 0 < spread <= _MOST_SPREAD and self._same_sum(node)
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
        """Whether the nearest node below that is no movement is a sum of the same dtype."""
        source = node.srcs[0]
        while isinstance(source.op, MovementOps):
            source = source.srcs[0]
        return source.op is ReduceOps.SUM and source.dtype is node.dtype


def _evaluated(node: LazyBuffer) -> float:
    """How many elements of a movement count: of an UNWINDOW, those that are no zeros between
    others.
    """
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
