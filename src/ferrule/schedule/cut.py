"""Where the graph is cut into kernels: evaluations against bytes.

Nodes are decided from the outputs down, each after all its users. By then it is known which kernels
would evaluate a node, at which indices and how often. A node is fused into all of them if the extra
evaluations cost less time than its trip through memory; else it becomes the root of a kernel of its
own. As the walk comes from above, the cut falls at the narrowest place after an expensive reduce:
its element-wise epilogue is met first.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, TypeAlias, final

from ferrule.expr import sint
from ferrule.lazy import LazyBuffer
from ferrule.ops import LoadOps, MovementOps, ReduceOps
from ferrule.schedule.costs import SMALL_KERNEL, Cost, Costs, factors, widened_factors
from ferrule.schedule.fusion import MOST_NODES, SINGLE, Fusion, Visits, move_indices, share_memory
from ferrule.schedule.gains import Gains
from ferrule.schedule.graph import Graph, value_sources
from ferrule.schedule.keep import Block, find_block
from ferrule.schedule.signature import Signature, Space, is_pass_through, ranges_shape
from ferrule.schedule.tasks import memory_roots
from ferrule.schedule.updates import BASE, base_of, stored_value
from ferrule.shape.layout import storage_size
from ferrule.target import Target

# A reduce that keeps others waiting must leave this many iterations for each thread to share out.
_ITERATIONS_PER_THREAD: Final = 4
# What takes more operations than this, and is held by somebody, is stored when it is computed.
_WORTH_KEEPING: Final = 64
# How much longer sums over blocks may take than if their work were shared out evenly.
_UNEVEN: Final = 1.25
# A block of fewer rows than a vector has lanes is not worth it; what a block may take of a stack.
_MOST_BLOCK: Final = 2 << 20
# The fewest rows that a block of threads should have of such a stack.
_ROWS_TOGETHER: Final = 16
_MOST_BUFFERS: Final = 28
_MOST_INDICES: Final = 8
# With more kernels than this, the bookkeeping for several outputs would take too long.
_MOST_KERNELS: Final = 4096


Group: TypeAlias = tuple[list[LazyBuffer], dict[LazyBuffer, tuple[int, ...]]]
"""What one kernel stores, and what it keeps in blocks along which axes."""


def cut(
    graph: Graph, target: Target, without_blocks: Set[LazyBuffer] = frozenset()
) -> tuple[set[LazyBuffer], list[Group]]:
    """The nodes that get memory, and those of them that are computed together.

    The kernels of `without_blocks` keep nothing.
    """
    cutter = _Cutter(graph, target, without_blocks)
    cutter.run()
    hosts = [fusion for fusion in reversed(cutter.fusions) if fusion.host is None]
    return cutter.roots, [(_stored(fusion), fusion.kept) for fusion in hosts]


def _stored(fusion: Fusion) -> list[LazyBuffer]:
    """What a kernel stores, its guests' values last."""
    return fusion.outputs + [output for guest in fusion.guests for output in guest.outputs]


def is_computed(node: LazyBuffer) -> bool:
    """Whether it takes a task to fill the node's memory."""
    return node.op is not LoadOps.EMPTY and 0 not in node.shape


_ALWAYS_FUSED: Final = frozenset(
    {
        MovementOps.RESHAPE,
        MovementOps.PERMUTE,
        MovementOps.EXPAND,
        MovementOps.PAD,
        MovementOps.WINDOW,
        MovementOps.UNWINDOW,
    }
)


@final
class _Cutter:
    def __init__(self, graph: Graph, target: Target, without_blocks: Set[LazyBuffer]) -> None:
        self.graph = graph
        self.target = target
        self.without_blocks = without_blocks
        self.roots = memory_roots(graph)
        self.costs = Costs(graph, set(self.roots), target)
        self.fusions: list[Fusion] = []
        self.count = 0
        self.spaces: dict[tuple[sint, ...], Space] = {}
        self.visits: dict[LazyBuffer, Visits] = {}
        self.gains = Gains(self.costs, target, self.visits)
        self.widening: dict[LazyBuffer, list[Fusion]] = {}
        """For a cast, the kernels in which it is a part of an instruction."""
        self.threads = target.max_threads
        self.iterations = _ITERATIONS_PER_THREAD * target.max_threads
        self.lanes = target.lanes(4)
        self.most_buffers = _MOST_BUFFERS
        if target.max_buffers is not None:
            self.most_buffers = min(_MOST_BUFFERS, target.max_buffers - 2)

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
            elif node.op is LoadOps.CONST:
                continue
            elif visits:
                self._decide(node, visits)

    def _decide(self, node: LazyBuffer, visits: Visits) -> None:
        if len(visits) > 1:
            self._merge_siblings(node, visits)
            self._invite_sums(node, visits)
        if self._is_done_by_each(node, visits):
            for fusion, indices in visits.items():
                self._keep_or_fuse(node, {fusion: indices})
            return
        block = self._kept_block(node, visits)
        if block is not None:
            self._keep(node, block, visits)
        elif self._is_fused(node, visits):
            self._fuse(node, visits)
        else:
            self.roots.add(node)
            self._load(node, visits)
            self._make_root(node, visits)

    # -- what happens to a node ------------------------------------------------------------------

    def _load(self, node: LazyBuffer, visits: Visits) -> None:
        for fusion in visits:
            fusion.buffers.add(node)

    def _fuse(self, node: LazyBuffer, visits: Visits) -> None:
        cost = self.costs[node]
        for fusion, indices in visits.items():
            for signature, nested in indices.items():
                self._note_reduce(node, cost, fusion, signature)
                self._visit_sources(node, fusion, signature, nested)

    def _keep(self, node: LazyBuffer, block: Block, visits: Visits) -> None:
        (fusion,) = visits
        signature = block.signature(node, fusion.space)
        fusion.kept[node] = (block.axis,)
        fusion.outer = block.outer
        fusion.blocks.add(signature)
        self._note_reduce(node, self.costs[node], fusion, signature)
        self._visit_sources(node, fusion, signature, False)

    def _keep_or_fuse(self, node: LazyBuffer, visits: Visits) -> None:
        block = self._kept_block(node, visits)
        if block is not None:
            self._keep(node, block, visits)
        else:
            self._fuse(node, visits)

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
        fusion.nodes += 1
        fusion.most_evals = max(fusion.most_evals, fusion.space.evals_at(signature))
        nested = nested or isinstance(node.op, ReduceOps)
        for place, source in enumerate(value_sources(node)):
            if base_of(node) is source and place == BASE:
                self._visit_base(source, fusion)
                continue
            at = fusion.space.source_signature(node, signature, place)
            indices = self.visits.setdefault(source, {}).setdefault(fusion, {})
            indices[at] = indices.get(at, False) or nested

    def _visit_base(self, base: LazyBuffer, fusion: Fusion) -> None:
        """What a SCATTER puts elements into is loaded, or in its place."""
        while base not in self.roots and base.realized is None:
            base = base.srcs[0]
        self.visits.setdefault(base, {}).setdefault(fusion, {})

    def _make_root(self, node: LazyBuffer, visits: Visits) -> None:
        joined = self._joinable(node, visits)
        if joined is not None:
            self._join(node, joined, visits)
            return
        value = stored_value(node, self.roots)
        fusion = Fusion(self.count, node, value, self._space(ranges_shape(value)))
        self.fusions.append(fusion)
        self.count += 1
        if self.count <= _MOST_KERNELS:
            for user in visits:
                fusion.users |= user.users | user.bits
        self._enter(node, value, fusion)

    def _space(self, shape: tuple[sint, ...]) -> Space:
        space = self.spaces.get(shape)
        if space is None or not space.has_room:
            space = self.spaces[shape] = Space(shape, totals_run=self.target.block_threads == 1)
        return space

    def _enter(self, node: LazyBuffer, value: LazyBuffer, fusion: Fusion) -> None:
        """The sources of a new kernel are wanted by it."""
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

    # -- whether to keep -------------------------------------------------------------------------

    def _kept_block(self, node: LazyBuffer, visits: Visits) -> Block | None:
        """The block in which the only kernel that wants a node keeps it, if that pays."""
        if len(visits) != 1 or node.op in _ALWAYS_FUSED or is_pass_through(node):
            return None
        ((fusion, indices),) = visits.items()
        contraction = fusion.contraction
        if (
            fusion.outputs[0] in self.without_blocks
            or (contraction is not None and self.costs[contraction].runs)
            or (fusion.contraction is None and not self._reduces_rows(fusion, indices))
            or len(fusion.outputs) > 1
            or node in self.graph.external
        ):
            return None
        if fusion.nodes > MOST_NODES or len(fusion.buffers) > self.most_buffers:
            return None
        rows = fusion.contraction is None or fusion.outer == fusion.space.outputs
        block = find_block(node, fusion.space, fusion.outer, indices, rows)
        if block is None:
            return None
        if fusion.outer:
            pays = self.gains.is_costly(node) and len(indices) > 1
        else:
            pays = self._has_room(block, fusion.space) and self.gains.streams(node, fusion)
        return block if pays else None

    def _reduces_rows(self, fusion: Fusion, indices: dict[Signature, bool]) -> bool:
        """Whether a kernel wants nothing of a node but what several reduces make of its rows.

        Blocks of threads go along the rows tile by tile, as if a contraction followed.
        """
        return self.target.block_threads > 1 and bool(fusion.reduces) and len(indices) > 1

    def _is_done_by_each(self, node: LazyBuffer, visits: Visits) -> bool:
        """Whether each of several kernels computes for itself, in blocks, what a contraction gives.

        For blocks of threads only, whose blocks are tiles. It takes the contraction's operations
        again for each of the kernels; but the memory of the node, which is much larger than that
        of all that it is made from, is what limits how large a problem may be.
        """
        if len(visits) == 1 or node.op in _ALWAYS_FUSED or is_pass_through(node):
            return False
        if node in self.graph.external or not self._is_spared(node):
            return False
        return all(self._is_done_alone(node, {f: visits[f]}) for f in visits)

    def _is_spared(self, node: LazyBuffer) -> bool:
        """Whether memory for a node is worth operations that are done several times for it."""
        return self.target.block_threads > 1 and self.gains.is_much_larger(node)

    def _is_done_alone(self, node: LazyBuffer, visits: Visits) -> bool:
        """Whether a kernel could keep a node in a block, or make a block that it keeps from it."""
        ((fusion, _),) = visits.items()
        if self._kept_block(node, visits) is not None:
            return True
        return bool(fusion.outer) and self._can_be_tiled(visits)

    def _has_room(self, block: Block, space: Space) -> bool:
        """Whether rows of a block stay near a thread, and there are enough of them for all.

        Blocks of threads have tiles of rows only, however long these are.
        """
        rows = space.evals(block.outer)
        if self.target.block_threads > 1:
            return rows >= self._rows_for_blocks()
        return block.nbytes * self.lanes <= _MOST_BLOCK and rows >= self.lanes * self.iterations

    def _rows_for_blocks(self) -> int:
        """How many rows are enough for all blocks of threads that run at once."""
        # Imported here: other devices need no code generation to schedule.
        from ferrule.codegen.gridcost import multiprocessors

        return _ROWS_TOGETHER * multiprocessors(self.target)

    def _invite_sums(self, node: LazyBuffer, visits: Visits) -> None:
        """One kernel for all that want a node, if one of them can keep it in blocks and the others
        are sums over these blocks.
        """
        if self.target.block_threads > 1:  # its kernels with blocks add up nothing else
            return
        rows = self._reduced_axes(node)
        for host in visits:
            block = find_block(node, host.space, host.outer, visits[host])
            guests = [fusion for fusion in visits if fusion is not host]
            if block is None or not all(self._can_attach(f, host) for f in guests):
                continue
            if not rows <= {block.axis}:
                continue
            axes = {self._summed_axis(node, block, f, visits[f]) for f in guests}
            axis = axes.pop()
            if axes or axis is None:
                continue
            again = block.signature(node, host.space)
            together: Visits = {host: {**visits[host], again: True}}
            if host.added_up not in (0, block.at[axis]) or not self._kept_block(node, together):
                continue
            host.added_up = block.at[axis]
            for fusion in guests:
                self._attach(fusion, host)
            visits.clear()
            visits.update(together)
            return

    def _reduced_axes(self, node: LazyBuffer) -> set[int]:
        """The axes along which a node's elements need one another, as those of a softmax do."""
        axes: set[int] = set()
        seen = {node}
        stack = [node]
        while stack and len(seen) < MOST_NODES:
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
        """Whether a kernel is a sum and nothing else, and neither needs the other."""
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
        """The axis of a node along which a guest adds it up, block after block.

        The block's axis is one of the guest's result. All further axes are too, and there are
        enough of them for all threads.
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
        if terms != storage_size(reduce.shape) * node.shape[summed[0]]:
            return None
        shared = [c for a, c in enumerate(signature) if a not in (block.axis, *summed)]
        chunks = space.evals(space.ranges(tuple(shared)))
        rounds = -(-chunks // self.threads)
        return summed[0] if rounds * self.threads <= _UNEVEN * chunks else None

    def _attach(self, guest: Fusion, host: Fusion) -> None:
        """What a guest computes belongs to its host's kernel from now on."""
        if guest.host is host:
            return
        guest.host = host
        host.guests.append(guest)
        bits, users = host.bits | guest.bits, host.users | guest.users
        for fusion in (host, *host.guests):
            fusion.bits, fusion.users = bits, users
        for fusion in self.fusions:
            if fusion.users & bits:
                fusion.users |= users | bits

    # -- whether to fuse -------------------------------------------------------------------------

    def _is_fused(self, node: LazyBuffer, visits: Visits) -> bool:
        if node.op in _ALWAYS_FUSED or is_pass_through(node) or self._moves_a_load(node):
            return True
        if all(fusion in self.widening.get(node, ()) for fusion in visits):
            return True
        cost = self.costs[node]
        expensive = cost.local > _WORTH_KEEPING * cost.size and not cost.reduces
        if expensive and node in self.graph.external:
            return False  # it may be asked for again
        return self._is_allowed(node, cost, visits) and self.gains.pays(node, cost, visits)

    def _moves_a_load(self, node: LazyBuffer) -> bool:
        """Whether what it moves is in memory, or a contraction, which will be."""
        if not isinstance(node.op, MovementOps):
            return False
        if node.op is MovementOps.SHRINK and self.costs[node].owned:
            return False  # only the part is stored
        while isinstance(node.op, MovementOps) and node.op is not MovementOps.GATHER:
            node = node.srcs[0]
            if self.costs.is_load(node):
                return True
        return any(self.costs[reduce].contraction for reduce in self.costs[node].owned)

    def _is_allowed(self, node: LazyBuffer, cost: Cost, visits: Visits) -> bool:
        """What the structure of kernels permits, whatever it would gain."""
        for fusion, indices in visits.items():
            if fusion.nodes > MOST_NODES or len(indices) > _MOST_INDICES:
                return False
            if len(fusion.buffers) > self.most_buffers:
                return False
        # What a reduce may do is decided at the end of its epilogue, before its users part.
        for reduce in cost.owned:
            below = self.costs[reduce]
            if below.contraction or below.runs:
                fits = self._can_be_tiled(visits) or self._is_summed_on(node, visits)
            else:
                fits = self._can_hold(reduce, below.local, visits)
            if not fits:
                return False
        return True

    def _can_be_tiled(self, visits: Visits) -> bool:
        """Whether a contraction is computed once, for exactly the elements that a kernel stores.

        Only then can the kernel keep a tile of them in registers.
        """
        if len(visits) != 1:
            return False
        (fusion,) = visits
        indices = visits[fusion]
        if len(indices) != 1 or len(fusion.outputs) > 1:
            return False
        (signature,) = indices
        if indices[signature]:
            return False
        space = fusion.space
        ranges = space.closure(space.ranges(signature))
        if fusion.outer:
            return any(space.ranges(block) == ranges for block in fusion.blocks)
        return not fusion.reduces and ranges == space.outputs

    def _is_summed_on(self, node: LazyBuffer, visits: Visits) -> bool:
        """Whether a sum is only a part of another, to which a kernel adds nothing but an epilogue:
        both are one sum then, as in the gradient of a convolution's input.
        """
        if len(visits) != 1 or node.op is not ReduceOps.SUM:
            return False
        if any(self._is_spared(factor) for factor in factors(node)):
            return False  # its terms come from blocks, along one axis
        (fusion,) = visits
        if fusion.first_reduce is None or len(fusion.outputs) > 1 or len(visits[fusion]) != 1:
            return False
        source, sums = fusion.first_reduce, 0
        while source is not node:
            if source.op is ReduceOps.SUM and source.dtype is node.dtype:
                sums += 1
            elif not isinstance(source.op, MovementOps) or source.op is MovementOps.GATHER:
                return False
            source = source.srcs[0]
        return fusion.reduces == [fusion.space.outputs] * sums

    def _can_hold(self, reduce: LazyBuffer, work: float, visits: Visits) -> bool:
        """Whether every kernel has a place in its loops for a reduce that takes `work`."""
        for fusion, indices in visits.items():
            if len(fusion.outputs) > 1 or (fusion.contraction is not None and not fusion.outer):
                return False
            for signature, nested in indices.items():
                depends = fusion.depends_on(signature)
                if fusion.outer and (depends != fusion.outer or nested):
                    return False
                if not self._is_chain(fusion.reduces, depends):
                    return False
                if fusion.outer and self.target.block_threads > 1:
                    continue  # the threads of a block share out the rows that they go along
                waited_for = nested or depends != fusion.space.outputs
                if waited_for and work > SMALL_KERNEL:
                    whole = work / self.costs[reduce].size * fusion.space.evals_at(signature)
                    if self._is_scarce(reduce, fusion, whole, fusion.space.evals(depends)):
                        return False
        return True

    def _is_scarce(self, reduce: LazyBuffer, fusion: Fusion, work: float, results: int) -> bool:
        """Whether a kernel has too little to share out where it waits so many times for a reduce,
        which takes `work` in all.
        """
        if self.target.block_threads == 1:
            return results < self.iterations
        if self.gains.contraction_below(reduce.srcs[0]) is not None:  # blocks go along its rows
            return results < self._rows_for_blocks()
        from ferrule.codegen.gridcost import shares_out_rows

        operations = max(work, fusion.most_evals) / results
        along = reduce.srcs[0].shape[-1:] != reduce.shape[-1:]
        return not shares_out_rows(self.target, results, operations, along)

    def _is_chain(self, others: list[int], depends: int) -> bool:
        """Whether one loop order serves all reduces: the ranges they vary with are nested sets."""
        return all(depends & other in (depends, other) for other in others)

    # -- several outputs -------------------------------------------------------------------------

    def _joinable(self, node: LazyBuffer, visits: Visits) -> tuple[Fusion, Signature] | None:
        """A kernel that computes the root at its own index anyway, and so may store it too."""
        if node.op in SINGLE or (node.op is LoadOps.ASSIGN and node.arg is not None):
            return None
        if self.count > _MOST_KERNELS:
            return None
        value = value_sources(node)[-1] if is_pass_through(node) else node
        cost = self.costs.of_source(value) if value is not node else self.costs[node]
        if cost.alone:
            return None  # it is better off in one kernel with its reduces
        for fusion, indices in visits.items():
            at = fusion.own_index(node, indices)
            if at is None or share_memory(fusion.outputs, [node]):
                continue
            room = fusion.nodes < MOST_NODES and len(fusion.buffers) < self.most_buffers
            if room and self._stays_acyclic(fusion, visits):
                return fusion, at
        return None

    def _stays_acyclic(self, fusion: Fusion, visits: Visits) -> bool:
        """Whether none of the node's other users is needed by the kernel that would store it."""
        return not any(user.users & fusion.bits for user in visits if user is not fusion)

    def _join(self, node: LazyBuffer, at: tuple[Fusion, Signature], visits: Visits) -> None:
        fusion, signature = at
        fusion.outputs.append(node)
        fusion.buffers.discard(node)
        users = 0
        for user in visits:
            if user is not fusion:
                users |= user.users | user.bits
        fusion.users |= users
        for other in self.fusions:
            if other.users & fusion.bits:
                other.users |= users
        if is_pass_through(node):
            indices = self.visits.setdefault(node.srcs[-1], {}).setdefault(fusion, {})
            indices.setdefault(signature, False)
        else:
            self._visit_sources(node, fusion, signature, False)

    def _merge_siblings(self, node: LazyBuffer, visits: Visits) -> None:
        """Element-wise kernels that want the node at one and the same index become one kernel."""
        if self.costs[node].alone or self.count > _MOST_KERNELS:
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
        if a.nodes + b.nodes > MOST_NODES or len(a.buffers | b.buffers) > self.most_buffers:
            return False
        return not share_memory(a.outputs, b.outputs)

    def _merge(self, into: Fusion, other: Fusion) -> None:
        into.outputs.extend(other.outputs)
        into.nodes += other.nodes
        into.buffers |= other.buffers
        into.bits |= other.bits
        into.users |= other.users
        upto = into.users | into.bits
        for fusion in self.fusions:
            if fusion.users & into.bits:
                fusion.users |= upto
        self.fusions.remove(other)
        for visits in self.visits.values():
            if other in visits:
                move_indices(visits, other, into)
