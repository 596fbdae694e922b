"""Values that must be computed once, because a second computation could round differently.

An element-wise operation has the same bits in every kernel. A sum of floats has not: the schedule
of a kernel decides in which order it adds up, and which products it adds without rounding them
first. Two roundings of one value are harmless under continuous functions. They are wrong where a
discontinuous one tells them apart: `y == y.max()` is true nowhere if `y` and its maximum come from
two sums.

So these sums (`is_reordered`) have one evaluation, which is stored:

- a sum of which several evaluations reach one comparison, whether inside of its kernel or through
  memory;
- a sum below a value that something outside the schedule still holds, if an element of it is
  chosen now, such as its maximum: the two may be compared later.

See "One value" in `docs/design/scheduling.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import cache
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.fusion.graph import Graph, value_sources
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import (
    BinaryOps,
    FunctionOps,
    LoadOps,
    MovementOps,
    Op,
    ReduceOps,
    TernaryOps,
    UnaryOps,
    cast_arg,
)
from ferrule.ir.op_table import COMBINATIONS, ELEMENTWISE, REDUCED, combination_of
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.steps import Steps

_MOVING: Final = frozenset(MovementOps)
_REORDERED: Final = frozenset([op for op, row in REDUCED.items() if not row.chooses])
_CHOOSING: Final = frozenset([row.binary for row in COMBINATIONS.values() if row.chooses])
_DISCONTINUOUS: Final = frozenset([op for op, row in ELEMENTWISE.items() if row.jumps])


def is_reordered(node: LazyBuffer) -> bool:
    """True for a reduce whose bits depend on how a schedule combines its terms.

    Two terms have one order, but a product may be added without being rounded by itself.
    """
    if node.op not in _REORDERED or not dtypes.is_float(node.dtype):
        return False
    terms, results = storage_size(node.srcs[0].shape), storage_size(node.shape)
    return terms > 2 * results or (terms > results and _may_be_contracted(node.srcs[0], node.op))


def _may_be_contracted(term: LazyBuffer, reduce: Op) -> bool:
    """True if a reduce may contract a term into its steps: a product, a choice, a like reduce."""
    while term.realized is None and term.op in _MOVING:
        term = term.srcs[0]
    last = term.arg.steps[-1].op if term.op is FunctionOps.STEPS else term.op
    return term.realized is None and last in (BinaryOps.MUL, TernaryOps.WHERE, reduce)


def is_discontinuous(node: LazyBuffer) -> bool:
    """True for an element-wise operation on floats that may jump where its operand hardly moves."""
    if node.op is FunctionOps.STEPS:
        return _has_jump(node.arg)
    if node.op not in _DISCONTINUOUS or not dtypes.is_float(node.srcs[0].dtype):
        return False
    return node.op is not UnaryOps.CAST or not dtypes.is_float(cast_arg(node.arg)[0])


def _chooses(node: LazyBuffer) -> bool:
    """True if each element of the result is one of the operands' elements, by their sizes."""
    if isinstance(node.op, ReduceOps):
        return combination_of(node.op, node.arg).chooses
    if node.op is TernaryOps.WHERE:
        condition, *branches = node.srcs
        return condition.op is BinaryOps.CMPLT and set(condition.srcs) == set(branches)
    return node.op in _CHOOSING


@cache
def _has_jump(function: Steps) -> bool:
    return any(step.op in _DISCONTINUOUS for step in function.operations)


@final
@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation of a node at one index in one kernel."""

    kernel: int
    index: tuple[int, ...]
    count: int
    """The number of elements evaluated, repeated ones included."""


@final
@dataclass(frozen=True, slots=True)
class Evaluations:
    """The kernels that compute each node."""

    fused: Mapping[LazyBuffer, Set[Evaluation]]
    """The evaluations of nodes without memory that are reordered reduces or discontinuous."""
    kernels: Mapping[LazyBuffer, int]
    """The kernel of each node that gets memory."""


def must_be_stored(
    graph: Graph, roots: Set[LazyBuffer], evaluations: Evaluations
) -> set[LazyBuffer]:
    """The nodes that a cut has to store, so that no reduce is seen with two roundings."""
    reduces = [node for node in evaluations.fused if is_reordered(node)]
    if not reduces:
        return set()
    below = _Below(graph, roots, reduces)
    chosen = _held_values(graph, below, evaluations)
    found = evaluations.fused
    repeated = [node for node in reduces if len(found[node]) > 1 and node not in chosen]
    if repeated:
        chosen.update(_conflicts(graph, below, evaluations, repeated))
    return _uppermost(graph, chosen) if len(chosen) > 1 else chosen


def _uppermost(graph: Graph, chosen: Set[LazyBuffer]) -> set[LazyBuffer]:
    """The chosen nodes that others than the chosen use.

    Once these have memory, the other chosen nodes may be computed only once as well.
    """
    hidden: dict[LazyBuffer, bool] = {}
    for node in reversed(graph.order):
        passes = node in chosen or (hidden.get(node, False) and node not in graph.requested)
        for source in value_sources(node):
            hidden[source] = hidden.get(source, True) and passes
    return {node for node in chosen if not hidden.get(node, False)}


@final
class _Below:
    """The fused reduces that each node is made of without a load, as bits."""

    def __init__(self, graph: Graph, roots: Set[LazyBuffer], reduces: Iterable[LazyBuffer]) -> None:
        self.roots = roots
        self.bit = {node: 1 << number for number, node in enumerate(reduces)}
        self.fused: dict[LazyBuffer, int] = {}
        for node in graph.order:
            bits = self.bit.get(node, 0)
            if node.realized is None:
                for source in value_sources(node):
                    bits |= self.of_source(source)
            self.fused[node] = bits

    def of_source(self, node: LazyBuffer) -> int:
        """The fused reduces that a user of a node evaluates for it, as bits."""
        return 0 if node in self.roots else self.fused[node]

    def among(self, bits: int, nodes: Iterable[LazyBuffer]) -> list[LazyBuffer]:
        """The members of `nodes` whose bits are in `bits`."""
        return [node for node in nodes if bits & self.bit[node]]


def _held_values(graph: Graph, below: _Below, evaluations: Evaluations) -> set[LazyBuffer]:
    """The values to store because something outside holds them while an element is chosen now.

    A reduce counts if all of its elements are computed anyway.
    """
    held = [node for node in graph.order if node in graph.external and below.of_source(node)]
    if not held:
        return set()
    chosen = _chosen(graph, below.bit)
    found = evaluations.fused
    both = {n for n in below.among(chosen, below.bit) if _is_whole(n, found[n])}
    return {
        stored
        for node in held
        for stored in _smaller_storage(node, below.among(below.fused[node], both))
    }


def _chosen(graph: Graph, bit: Mapping[LazyBuffer, int]) -> int:
    """The reduces of which elements are chosen, maybe after element-wise functions, as bits."""
    chosen = 0
    nearest: dict[LazyBuffer, int] = {}
    for node in graph.order:
        bits = 0
        if node.realized is None:
            for source in value_sources(node):
                bits |= nearest[source]
        if is_discontinuous(node) or _chooses(node):
            chosen |= bits
        nearest[node] = bit.get(node, 0) if is_reordered(node) else bits
    return chosen


def _smaller_storage(node: LazyBuffer, reduces: list[LazyBuffer]) -> list[LazyBuffer]:
    """The node, or the reduces that it is made from, whichever takes less memory."""
    size = sum([storage_size(reduce.shape) for reduce in reduces])
    is_value = node.op is not LoadOps.ASSIGN  # which would be a write
    return [node] if reduces and is_value and storage_size(node.shape) <= size else reduces


def _is_whole(node: LazyBuffer, places: Set[Evaluation]) -> bool:
    return sum([place.count for place in places]) >= storage_size(node.shape)


def _conflicts(
    graph: Graph, below: _Below, evaluations: Evaluations, repeated: list[LazyBuffer]
) -> set[LazyBuffer]:
    """The `repeated` reduces with several evaluations that reach one decision."""
    decisions = _decisions(graph)
    if not decisions:
        return set()
    seen = _Seen(graph, below, evaluations, repeated)
    chosen = set()
    for decision in decisions:
        bits = seen.by(decision)
        for node in repeated:
            own = bits & seen.masks[node]
            if own & (own - 1):
                chosen.add(node)
    return chosen


def _decisions(graph: Graph) -> list[LazyBuffer]:
    """The discontinuous operations, but for comparisons that only choose the larger operand."""
    jumping = {node for node in graph.order if is_discontinuous(node)}
    continuous: dict[LazyBuffer, bool] = {}
    if jumping:
        for node in graph.order:
            for place, source in enumerate(value_sources(node)):
                if source in jumping:
                    chooses = place == 0 and _chooses(node)
                    continuous[source] = continuous.get(source, True) and chooses
    return [node for node in graph.order if node in jumping and not continuous.get(node, False)]


@final
class _Seen:
    """The evaluations of repeated reduces that a node's value is made of, as bits."""

    def __init__(
        self,
        graph: Graph,
        below: _Below,
        evaluations: Evaluations,
        repeated: list[LazyBuffer],
    ) -> None:
        self.below = below
        self.evaluations = evaluations
        self.masks: dict[LazyBuffer, int] = {}
        """All evaluations of each reduce, as bits."""
        self._in_kernel: dict[tuple[LazyBuffer, int], int] = {}
        count = 0
        for node in repeated:
            for place in evaluations.fused[node]:
                bit = 1 << count
                self.masks[node] = self.masks.get(node, 0) | bit
                key = (node, place.kernel)
                self._in_kernel[key] = self._in_kernel.get(key, 0) | bit
                count += 1
        self._loaded: dict[LazyBuffer, int] = {}
        for node in graph.order:
            bits = 0
            if node.realized is None:
                for source in value_sources(node):
                    bits |= self._loaded[source]
            if node in evaluations.kernels:
                bits |= self._fused(node, evaluations.kernels[node])
            self._loaded[node] = bits

    def by(self, node: LazyBuffer) -> int:
        """The evaluations that reach a node in any of the kernels that compute it."""
        bits = self._loaded[node]
        for place in self.evaluations.fused.get(node, ()):
            bits |= self._fused(node, place.kernel)
        return bits

    def _fused(self, node: LazyBuffer, kernel: int) -> int:
        """The evaluations that a kernel makes for a node."""
        bits = 0
        for reduce in self.below.among(self.below.fused[node], self.masks):
            bits |= self._in_kernel.get((reduce, kernel), 0)
        return bits
