"""Cutting the graph into kernels, by weighing evaluations against bytes.

Nodes are decided from the outputs down, each after all its users. By then it is known which kernels
would evaluate a node, at which indices and how often. A node is fused into all of them if the extra
evaluations take less time than storing and loading it. Else it becomes the root of a kernel of its
own. Since the walk comes from above, it meets the element-wise epilogue of an expensive reduce
first, and cuts there, where the value is narrowest.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, TypeAlias, final

from ferrule.base.config import config
from ferrule.fusion.costs import Cost, Costs, widened_factors
from ferrule.fusion.gains import Gains
from ferrule.fusion.graph import Graph, value_sources
from ferrule.fusion.groups import (
    MAX_NODES,
    SINGLE,
    Fusion,
    Visits,
    add_users,
    move_indices,
    share_memory,
)
from ferrule.fusion.horizontal_reduces import HorizontalFusion
from ferrule.fusion.joins import MAX_MASKS, masks_of
from ferrule.fusion.legality import Legality, is_always_fused
from ferrule.fusion.rounding import (
    Evaluation,
    Evaluations,
    is_discontinuous,
    is_reordered,
    must_be_stored,
)
from ferrule.fusion.signature import Signature, Space, is_pass_through, ranges_shape
from ferrule.fusion.stages import Block, Staging
from ferrule.fusion.tasks import memory_roots
from ferrule.fusion.updates import BASE, base_of, stored_value
from ferrule.fusion.views import is_movement
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps, ReduceOps
from ferrule.ir.op_table import PLAIN_MOVEMENTS
from ferrule.ir.target import Target

# Elements for each element of a source from which on reading the source again takes no time. Not
# measured: chosen for optimisers, whose updates share numbers (2026-11-23).
_MIN_REPEATS: Final = 16
# Kernels of a graph up to which outputs are merged: the time to track their dependences grows with
# the square. Not measured.
_MAX_KERNELS: Final = 4096


Group: TypeAlias = tuple[list[LazyBuffer], dict[LazyBuffer, tuple[int, ...]]]
"""The outputs of one kernel, and the nodes that are its stages, with the axes of their blocks."""


def cut(
    graph: Graph, target: Target, without_stages: Set[LazyBuffer] = frozenset()
) -> tuple[set[LazyBuffer], list[Group]]:
    """The nodes that get memory, and their groups that are one kernel each.

    Kernels whose first output is in `without_stages` have no stages.
    """
    stored: set[LazyBuffer] = set()
    while True:
        cutter = _Cutter(graph, target, without_stages, stored)
        cutter.run()
        inconsistent = must_be_stored(graph, cutter.roots, cutter.evaluations())
        if not inconsistent:
            break
        stored |= inconsistent
    hosts = [fusion for fusion in reversed(cutter.fusions) if fusion.host is None]
    for node in graph.order:
        if node.op is LoadOps.RESULT and node.realized is None:
            cutter.makers[node.srcs[0]].outputs.append(node)
    return cutter.roots, [(_stored(fusion), fusion.stages) for fusion in hosts]


def _stored(fusion: Fusion) -> list[LazyBuffer]:
    """The outputs of a kernel, its guests' last."""
    return fusion.outputs + [output for guest in fusion.guests for output in guest.outputs]


def is_computed(node: LazyBuffer) -> bool:
    """True if a task has to fill the node's memory."""
    return node.op not in (LoadOps.EMPTY, LoadOps.RESULT) and 0 not in node.shape


def _repeats(node: LazyBuffer) -> bool:
    """True if a node repeats a constant, or a value that is much smaller.

    Kernels that both read such a node have next to nothing in common.
    """
    source = node
    while is_movement(source):
        source = source.srcs[0]
    return source.base_const() is not None or _MIN_REPEATS * source.size < node.size


@final
class _Cutter:
    def __init__(
        self,
        graph: Graph,
        target: Target,
        without_stages: Set[LazyBuffer],
        stored: Set[LazyBuffer],
    ) -> None:
        self.graph = graph
        self.target = target
        self.skipped = config().FERRULE_SKIP
        self.roots = memory_roots(graph) | stored
        self.costs = Costs(graph, set(self.roots), target)
        self.fusions: list[Fusion] = []
        self.count = 0
        self.spaces: dict[tuple[sint, ...], Space] = {}
        self.visits: dict[LazyBuffer, Visits] = {}
        self.computed: dict[LazyBuffer, list[tuple[Fusion, Signature]]] = {}
        """The evaluations of the fused nodes that `rounding` asks about."""
        self.makers: dict[LazyBuffer, Fusion] = {}
        """The kernel that stores each root."""
        self.replaced: dict[LazyBuffer, LazyBuffer] = {}
        """The version that is stored over another one, by a later kernel."""
        self.gains = Gains(self.costs, target, self.visits)
        self.widening: dict[LazyBuffer, list[Fusion]] = {}
        """The kernels in which a cast is a part of a multiply-add instruction."""
        self.legality = Legality(self.costs, self.gains, target)
        self.staging = Staging(
            self.costs, self.gains, self.legality, target, graph.external, without_stages
        )
        self.guests = HorizontalFusion(self.costs, self.staging, target, self.fusions)

    def run(self) -> None:
        for node in reversed(self.graph.order):
            visits = self.visits.pop(node, {})
            if node.realized is not None:
                self._load(node, visits)
            elif node in self.roots:
                if node.op is not LoadOps.CONST:
                    self._load(node, visits)
                if is_computed(node):
                    self._make_root(node, visits)
                elif node.op is LoadOps.RESULT:  # who needs it needs the run
                    run = self.visits.setdefault(node.srcs[0], {})
                    run.update({fusion: {} for fusion in visits if fusion not in run})
            elif node.op is LoadOps.CONST:
                continue
            elif visits:
                self._decide(node, visits)

    def _decide(self, node: LazyBuffer, visits: Visits) -> None:
        if len(visits) > 1:
            if "outputs" not in self.skipped:
                self._merge_siblings(node, visits)
            if "guests" not in self.skipped:
                self.guests.fuse(node, visits)
        if self.staging.is_recomputed_by_each(node, visits):
            for fusion, indices in visits.items():
                self._stage_or_fuse(node, {fusion: indices})
            return
        block = self.staging.staged_block(node, visits)
        if block is not None:
            self._stage(node, block, visits)
        elif self._is_fused(node, visits):
            self._fuse(node, visits)
        else:
            self.roots.add(node)
            self._load(node, visits)
            self._make_root(node, visits)

    # -- evaluations -----------------------------------------------------------------------------

    def evaluations(self) -> Evaluations:
        """The kernels that compute the nodes that `rounding` asks about."""
        first: dict[int, int] = {}  # for the bit of a fusion, the first bit of its kernel
        for fusion in self.fusions:
            bits = fusion.bits
            while bits & (bits - 1):
                first[bits & -bits] = fusion.bits & -fusion.bits
                bits &= bits - 1
            first[bits] = fusion.bits & -fusion.bits
        computed = {
            node: {
                Evaluation(first[fusion.bits & -fusion.bits], at, fusion.space.evals_at(at))
                for fusion, at in places
            }
            for node, places in self.computed.items()
        }
        kernels = {root: first[maker.bits & -maker.bits] for root, maker in self.makers.items()}
        return Evaluations(computed, kernels)

    # -- load, fuse, stage or store a node -------------------------------------------------------

    def _load(self, node: LazyBuffer, visits: Visits) -> None:
        for fusion in visits:
            fusion.buffers.add(node)

    def _fuse(self, node: LazyBuffer, visits: Visits) -> None:
        cost = self.costs[node]
        for fusion, indices in visits.items():
            for signature, nested in indices.items():
                self._note(node, cost, fusion, signature)
                self._visit_sources(node, fusion, signature, nested)

    def _stage(self, node: LazyBuffer, block: Block, visits: Visits) -> None:
        (fusion,) = visits
        signature = block.signature(node, fusion.space)
        fusion.stages[node] = (block.axis,)
        fusion.outer = block.outer
        fusion.blocks.add(signature)
        self._note(node, self.costs[node], fusion, signature)
        self._visit_sources(node, fusion, signature, False)

    def _stage_or_fuse(self, node: LazyBuffer, visits: Visits) -> None:
        block = self.staging.staged_block(node, visits)
        if block is not None:
            self._stage(node, block, visits)
        else:
            self._fuse(node, visits)

    def _note(self, node: LazyBuffer, cost: Cost, fusion: Fusion, signature: Signature) -> None:
        """Record that a kernel computes a node without storing it."""
        if is_reordered(node) or is_discontinuous(node):
            self.computed.setdefault(node, []).append((fusion, signature))
        self._note_reduce(node, cost, fusion, signature)

    def _note_reduce(
        self, node: LazyBuffer, cost: Cost, fusion: Fusion, signature: Signature
    ) -> None:
        if isinstance(node.op, ReduceOps):
            if not fusion.reduces:
                fusion.first_reduce = node
            fusion.reduces.append(fusion.depends_on(signature))
            if cost.contraction or cost.runs:
                fusion.contraction = node
                for factor in widened_factors(node, self.target):
                    self.widening.setdefault(factor, []).append(fusion)

    def _visit_sources(
        self, node: LazyBuffer, fusion: Fusion, signature: Signature, nested: bool
    ) -> None:
        cost = self.costs[node]
        fusion.nodes += cost.nodes
        fusion.most_evals = max(fusion.most_evals, fusion.space.evals_at(signature))
        fusion.masks.update([(mask, signature) for mask in masks_of(node)])
        nested = nested or isinstance(node.op, ReduceOps)
        for place, source in enumerate(value_sources(node)):
            if base_of(node) is source and place == BASE:
                self._visit_base(source, fusion)
                continue
            at = fusion.space.source_signature(node, signature, place, cost.runs)
            indices = self.visits.setdefault(source, {}).setdefault(fusion, {})
            indices[at] = indices.get(at, False) or nested

    def _visit_base(self, base: LazyBuffer, fusion: Fusion) -> None:
        """Want the base of a SCATTER at no index: it is loaded, or is the memory stored to."""
        while base not in self.roots and base.realized is None:
            base = base.srcs[0]
        self.visits.setdefault(base, {}).setdefault(fusion, {})

    def _make_root(self, node: LazyBuffer, visits: Visits) -> None:
        if node in self.replaced:
            visits.setdefault(self.makers[self.replaced[node]], {})
        self._note_replaced(node)
        joined = self._joinable(node, visits)
        if joined is not None:
            self._join(node, joined, visits)
            return
        value = stored_value(node, self.roots)
        fusion = Fusion(self.count, node, value, self._space(ranges_shape(value)))
        self.fusions.append(fusion)
        self.makers[node] = fusion
        self.count += 1
        if self.count <= _MAX_KERNELS:
            for user in visits:
                fusion.users |= user.users | user.bits
        self._enter(node, value, fusion)

    def _note_replaced(self, version: LazyBuffer) -> None:
        """Note the older versions that a version may be stored over.

        The last of them is the first that is surely stored, and earlier in the graph's order.
        """
        old = version
        while old.op is LoadOps.ASSIGN:
            old = old.srcs[0]
            self.replaced[old] = version
            if old in self.roots and old not in self.makers:
                break

    def _space(self, shape: tuple[sint, ...]) -> Space:
        space = self.spaces.get(shape)
        if space is None or not space.has_room:
            space = self.spaces[shape] = Space(shape)
        return space

    def _enter(self, node: LazyBuffer, value: LazyBuffer, fusion: Fusion) -> None:
        """Want the sources of a new kernel's root."""
        if node.op in (LoadOps.FROM, LoadOps.CUSTOM):
            for source in node.srcs:
                self.visits.setdefault(source, {}).setdefault(fusion, {})
            return
        if node.op is LoadOps.ASSIGN and node.arg is not None:
            self.visits.setdefault(node.srcs[0], {}).setdefault(fusion, {})
        identity = fusion.space.identity
        if value is node or (value.op is ReduceOps.SCATTER and value not in self.roots):
            self._note_reduce(value, self.costs[value], fusion, identity)
            self._visit_sources(value, fusion, identity, False)
        else:
            indices = self.visits.setdefault(value, {}).setdefault(fusion, {})
            indices.setdefault(identity, False)

    # -- whether to fuse -------------------------------------------------------------------------

    def _is_fused(self, node: LazyBuffer, visits: Visits) -> bool:
        if "fusion" not in self.skipped and self.gains.is_worth_moving(node, visits):
            return False
        if is_always_fused(node) or self._moves_a_load(node):
            return True
        if "fusion" in self.skipped:
            return False
        if any(fusion in self.widening.get(node, ()) for fusion in visits):
            return True  # others cast again, which takes less than loading the wider elements
        cost = self.costs[node]
        if node in self.graph.external and self.gains.is_worth_keeping(node, cost):
            return False  # it may be asked for again
        return self.legality.is_allowed(node, cost, visits) and self.gains.pays(node, cost, visits)

    def _moves_a_load(self, node: LazyBuffer) -> bool:
        """True for a movement of a node in memory, or of a contraction, which will be stored."""
        if not isinstance(node.op, MovementOps):
            return False
        if node.op is MovementOps.SHRINK and self.costs[node].owned:
            return False  # only the part is stored
        while node.op in PLAIN_MOVEMENTS:
            node = node.srcs[0]
            if self.costs.is_load(node):
                return True
        return any(self.costs[reduce].contraction for reduce in self.costs[node].owned)

    # -- several outputs -------------------------------------------------------------------------

    def _joinable(self, node: LazyBuffer, visits: Visits) -> tuple[Fusion, Signature] | None:
        """A kernel that may store the root as another output: it computes it at its own index."""
        if node.op in SINGLE or (node.op is LoadOps.ASSIGN and node.arg is not None):
            return None
        if self.count > _MAX_KERNELS or "outputs" in self.skipped:
            return None
        value = value_sources(node)[-1] if is_pass_through(node) else node
        cost = self.costs.of_source(value) if value is not node else self.costs[node]
        if cost.alone:
            return None  # it is better off in one kernel with its reduces
        for fusion, indices in visits.items():
            at = fusion.own_index(node, indices)
            if at is None or share_memory(fusion.outputs, [node]):
                continue
            room = fusion.nodes < MAX_NODES and len(fusion.buffers) < self.legality.most_buffers
            masks = {(mask, at) for mask in masks_of(node)}
            room = room and len(fusion.masks | masks) <= max(MAX_MASKS, len(fusion.masks))
            # None of the node's users may be needed by the kernel that would store it.
            if room and not any(user.users & fusion.bits for user in visits):
                return fusion, at
        return None

    def _join(self, node: LazyBuffer, at: tuple[Fusion, Signature], visits: Visits) -> None:
        fusion, signature = at
        fusion.outputs.append(node)
        self.makers[node] = fusion
        fusion.buffers.discard(node)
        users = 0
        for user in visits:
            users |= user.users | user.bits
        add_users(self.fusions, fusion.bits, users)
        if is_pass_through(node):
            indices = self.visits.setdefault(node.srcs[-1], {}).setdefault(fusion, {})
            indices.setdefault(signature, False)
        else:
            self._visit_sources(node, fusion, signature, False)

    def _merge_siblings(self, node: LazyBuffer, visits: Visits) -> None:
        """Merge the element-wise kernels that want the node at one and the same index."""
        if self.costs[node].alone or self.count > _MAX_KERNELS or _repeats(node):
            return
        first: Fusion | None = None
        for fusion in list(visits):
            if fusion.own_index(node, visits[fusion]) is None:
                continue
            if first is None:
                first = fusion
            elif self._can_merge(first, fusion):
                self._merge(first, fusion)
                move_indices(visits, fusion, first)

    def _can_merge(self, a: Fusion, b: Fusion) -> bool:
        if a.space is not b.space or a.users & b.bits or b.users & a.bits:
            return False
        if a.nodes + b.nodes > MAX_NODES or len(a.buffers | b.buffers) > self.legality.most_buffers:
            return False
        if len(a.masks | b.masks) > max(MAX_MASKS, len(a.masks), len(b.masks)):
            return False
        return not share_memory(a.outputs, b.outputs)

    def _merge(self, into: Fusion, other: Fusion) -> None:
        into.outputs.extend(other.outputs)
        into.nodes += other.nodes
        into.buffers |= other.buffers
        into.masks |= other.masks
        into.bits |= other.bits
        self.makers.update(dict.fromkeys(other.outputs, into))
        self.fusions.remove(other)
        add_users(self.fusions, into.bits, into.users | other.users | into.bits)
        for visits in self.visits.values():
            if other in visits:
                move_indices(visits, other, into)
