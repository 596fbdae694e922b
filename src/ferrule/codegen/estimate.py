"""An estimate of the time that a scheduled kernel takes on a processor.

It reads the loops, and what the expressions in them load, compute and store; nothing is lowered.
The time of a nest is the longest of four: its instructions, the chains of dependent operations in
its reduces, and its traffic between the first cache and the second, and between the caches and
memory. `docs/design/estimate.md` has the model, its constants and how good it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import ceil, gcd, log2, prod
from operator import mul
from typing import Final, NamedTuple, final

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.vector_shuffles import few_vectors, near_lanes
from ferrule.codegen.kernel import LANES_OR_COPIES, MONOIDS, Kernel, Kind, Loop, Nest, Store
from ferrule.codegen.primitives.editing import descendants
from ferrule.ir.dtype import dtype_from_name, dtypes
from ferrule.ir.expr import (
    BOOL,
    INDEX,
    Expr,
    ExprOp,
    conjuncts,
    const,
    is_adjacent,
    load,
    step_along,
)
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES, Target

ERROR: Final = 1.3
"""The ratio of two estimates from which on the order of the times is almost certain."""
_LOOP: Final = 2.0
"""Instructions of a loop, in each iteration."""
_MASK: Final = 4.0
"""Instructions that make a mask of a condition on indices."""
_STORED: Final = 2
"""Moves of a line that is stored to: it is read first, and written back."""
_CACHES: Final = 8
"""The size of all caches together, in second caches."""
_OVERLAP: Final = 0.5
"""The part of the time of memory that does not pass while other lines are worked on."""

_FREE: Final = frozenset({ExprOp.CONST, ExprOp.VARIABLE, ExprOp.RANGE})
_LOADED: Final = frozenset({ExprOp.LOAD, ExprOp.READ})
_BY_PLACE: Final = frozenset({ExprOp.LOAD, ExprOp.CMPLT})
"""The operations whose first operand is an index that says which of several they are."""
_INDEX_WORK: Final = frozenset({ExprOp.IDIV, ExprOp.MOD, ExprOp.WHERE})
"""The operations on indices that take time: others are part of an address."""
_LANES: Final = frozenset({Kind.VECTOR, Kind.TRANSPOSE, Kind.MATRIX})
_AT_ONCE: Final = LANES_OR_COPIES | {Kind.MATRIX}
_TOGETHER: Final = _AT_ONCE | _LANES
"""The loops whose iterations are one block of instructions."""


def cycles(kernel: Kernel, target: Target) -> float:
    """The cycles that a kernel takes on a processor whose threads all are free, about."""
    taken = {nest.name: _Work(kernel, nest, target).cycles for nest in kernel.nests}
    return sum([_shared(kernel, root, taken, target) for root in kernel.roots])


def least_cycles(kernel: Kernel, target: Target) -> float:
    """The cycles of a kernel with full vectors, all threads, and each line of memory once.

    A schedule can be below that only by storing values that several nests compute.
    """
    return _on_threads(sum([_Work(kernel, nest, target).least for nest in kernel.nests]), target)


def least_untiled(kernel: Kernel, target: Target) -> float:
    """As `least_cycles`, if each term of each result loads its operands: no tile of results shares
    them.
    """
    works = [_Work(kernel, nest, target) for nest in kernel.nests]
    return _on_threads(sum([max(work.least, work.least_loads) for work in works]), target)


def _on_threads(least: float, target: Target) -> float:
    return min(least, least / target.max_threads + target.speeds.threads)


def _shared(kernel: Kernel, root: Nest, taken: Mapping[str, float], target: Target) -> float:
    """The cycles of a root nest and of all nests inside it, on the threads that share them."""
    inside = sum([taken[name] for name in descendants(kernel, root.name)])
    if not root.is_shared_out or kernel.children(root.name, 0):
        return inside
    chunks = max(_size(root.loops[0]), 1)
    return inside * ceil(chunks / target.max_threads) / chunks + target.speeds.threads


def _is_of_indices(e: Expr) -> bool:
    """True for a condition that depends on nothing but indices."""
    return e.dtype is BOOL and all([s.dtype is INDEX or _is_of_indices(s) for s in e.src])


def _unmasked(e: Expr) -> Expr:
    """The value of a term that is left out in some iterations of its loops."""
    return e.src[1] if e.op is ExprOp.WHERE and _is_of_indices(e.src[0]) else e


def _size(loop: Loop) -> int:
    return loop.range.size.max


def _times(loops: Collection[Loop]) -> float:
    return prod(map(_size, loops))


class _Counts(NamedTuple):
    """Instructions by kind; shuffles move elements between lanes."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    shuffles: float = 0.0


_TILE: Final = _Counts(arithmetic=32.0, loads=32.0)
"""A product of tile registers, and the loads of two of them, row by row."""


@final
@dataclass(frozen=True)
class _Access:
    """The loads from, or the stores to, one line of a buffer in each iteration."""

    index: Expr
    itemsize: int
    moves: int
    """How often a line is moved between two caches: a stored one twice."""


@final
class _Work:
    """What one nest does."""

    def __init__(self, kernel: Kernel, nest: Nest, target: Target) -> None:
        self._kernel = kernel
        self._nest = nest
        self._target = target
        self._speeds = target.speeds
        self._loops = [loop for _, _, loop in kernel.path(nest)]
        self._depths = {loop.range: depth for depth, loop in enumerate(self._loops)}
        self._around = self._loops[: len(self._loops) - len(nest.loops)]
        self._vectors = [loop.range for loop in self._loops if loop.kind is Kind.VECTOR]
        self._transposed = [loop.range for loop in self._loops if loop.kind is Kind.TRANSPOSE]
        self._copies = [(d, o) for d, o in enumerate(self._loops) if o.kind is Kind.UNROLL]
        serial = [1 if o.kind in _AT_ONCE else _size(o) for o in self._loops]
        self._serial = list(accumulate(serial, mul, initial=1))
        """How often the body of the first loops runs, copies and lanes at once."""
        self._known_depths: dict[Expr, int] = {}
        self._known_lines: dict[int, list[_Lines]] = {}

    @property
    def cycles(self) -> float:
        """The cycles that it takes on one core."""
        target, speeds = self._target, self._speeds
        near = self._traffic(target.l1_bytes, speeds.line, speeds.line_alone)
        of_memory = LINE_BYTES / speeds.bytes_per_second * speeds.hertz * _OVERLAP
        caches = target.l2_bytes * _CACHES
        # What fits is there from the kernel before.
        fits = self._is_within(caches, 0)
        far = 0.0 if fits else self._traffic(caches, of_memory, of_memory)
        return max(self._instructions, self._chains, near, far)

    @property
    def least(self) -> float:
        """The cycles of one core that it takes at least, however it is scheduled."""
        lanes = self._target.vector_bytes
        fused = self._fused
        work = sum(
            [
                self._additions(e) * e.dtype.itemsize / lanes * self._variants(e.ranges)
                for e in self._nest.nodes
                if e.src and e.op not in _LOADED and e.dtype not in (INDEX, BOOL) and e not in fused
            ]
        )
        everywhere = _times(self._loops)
        sizes = [c.value.dtype.itemsize for c in self._nest.computes if c.monoid is not None]
        work += sum([everywhere * size / lanes for size in sizes])
        lines = sum([lines.number for lines in self._lines_from(0)])
        return max(work / self._speeds.arithmetic, lines * self._speeds.line)

    def _additions(self, e: Expr) -> float:
        """The time of an operation, in additions."""
        return self._speeds.additions(e.op.name, is_float=dtypes.is_float(e.dtype))

    @property
    def least_loads(self) -> float:
        """The cycles of the loads of one core if each term of each result needs its own."""
        terms = [
            loop.range for loop in self._nest.loops if loop.range not in self._nest.result_axes
        ]
        if all([c.monoid is None for c in self._nest.computes]):
            return 0.0
        each = [
            e.dtype.itemsize / self._target.vector_bytes
            for e in self._nest.nodes
            if e.op is ExprOp.LOAD and not e.src[0].ranges.isdisjoint(terms)
        ]
        return _times(self._loops) * sum(each) / self._speeds.loads

    def _variants(self, ranges: Collection[Expr]) -> float:
        return _times([loop for loop in self._loops if loop.range in ranges])

    # -- instructions --------------------------------------------------------------------------

    @cached_property
    def _instructions(self) -> float:
        """The cycles of its instructions if none has to wait for another one."""
        counts, speeds = self._counts, self._speeds
        return max(
            (counts.arithmetic + counts.shuffles) / speeds.arithmetic,
            counts.loads / speeds.loads,
            counts.stores / speeds.stores,
            counts.shuffles / speeds.shuffles,
            (sum(counts) + _LOOP * self._iterations) / speeds.instructions,
        )

    @cached_property
    def _counts(self) -> _Counts:
        total = [0.0, 0.0, 0.0, 0.0]
        for times, counts in self._executed():
            for kind, count in enumerate(counts):
                total[kind] += times * count
        return _Counts(*total)

    def _executed(self) -> Iterator[tuple[float, _Counts]]:
        """How often something is executed, and its instructions."""
        nest = self._nest
        fused = self._fused
        everywhere = self._runs(len(self._loops))
        if any([loop.kind is Kind.MATRIX for loop in nest.loops]):
            yield everywhere, _TILE
            return
        for e in nest.nodes:
            if e.op not in _FREE and e not in fused:
                yield self._executions(e), self._of_node(e)
        for e, part in self._conditions(*self._validities()).items():
            count = 1.0 if self._lanes(e.ranges) == 1 else _MASK
            yield self._executions(e) * part, _Counts(arithmetic=count)
        for c in nest.computes:
            registers = self._registers(c.value.ranges.union(c.ranges), c.value.dtype.itemsize)
            if c.monoid is not None:
                yield everywhere, _Counts(arithmetic=registers)
                if self._is_in_memory(c.ranges):
                    copies = [
                        o for o in nest.loops if o.kind is Kind.UNROLL and o.range not in c.ranges
                    ]
                    yield everywhere / _times(copies), _Counts(loads=registers, stores=registers)
            elif c.store is None and self._is_in_memory(c.ranges):
                yield everywhere, _Counts(stores=registers)
            if c.store is not None:
                depth = len(self._loops) if c.monoid is None else self._depth(c.store.index)
                yield self._runs(depth), self._of_store(c.store, c.value.dtype.itemsize)

    @cached_property
    def _fused(self) -> frozenset[Expr]:
        """The products that are one instruction with the addition of their reduce."""
        sums = [_unmasked(c.value) for c in self._nest.computes if c.monoid == MONOIDS["sum"]]
        fused = {ExprOp.DOT, ExprOp.MUL} if self._target.has_fma else {ExprOp.DOT}
        return frozenset([e for e in sums if e.op in fused])

    def _of_node(self, e: Expr) -> _Counts:
        """The instructions of one execution of a node, for all lanes."""
        size = e.dtype.itemsize
        if e.op is ExprOp.READ:
            in_memory = self._is_in_memory(e.ranges)
            return _Counts(loads=self._registers(e.ranges, size) if in_memory else 0)
        if e.op is ExprOp.LOAD:
            return self._of_load(e)
        if e.dtype is INDEX:
            return _Counts(1.0 if e.op in _INDEX_WORK else 0.0)
        if e.dtype is BOOL:
            if _is_of_indices(e):
                return _Counts()  # counted with what it is the condition of
            size = max([s.dtype.itemsize for s in e.src], default=1)
        if e.op is ExprOp.WHERE and _is_of_indices(e.src[0]):
            part = max(self._conditions(e.src[0]).values(), default=0.0)
            return _Counts(part * self._registers(e.ranges, size))
        return _Counts(self._additions(e) * self._registers(e.ranges, size))

    def _of_load(self, e: Expr) -> _Counts:
        size = e.dtype.itemsize
        lanes = self._lanes(e.ranges)
        registers = self._registers(e.ranges, size)
        parts = _unpacked(e)
        index = e.src[0] // len(parts)
        in_order = lanes == 1 or self._is_contiguous(index) or self._is_transposed(index)
        if len(parts) > 1 and not (in_order and is_adjacent(e)):
            shifted_in = _Counts(arithmetic=2 * registers * (len(parts) - 1))
            each = [self._of_load(part) for part in parts]
            return _Counts(*map(sum, zip(shifted_in, *each, strict=True)))
        if lanes == 1:
            return _Counts(loads=1)
        if self._is_contiguous(index):
            return _Counts(loads=registers * self._lines_of_vector(index, lanes, size))
        if self._is_transposed(index):
            return _Counts(loads=registers, shuffles=registers * log2(lanes))
        (lane, *_) = (r for r in self._vectors if r in e.ranges)
        first = {loop.range: const(0) for _, loop in self._copies}
        near = near_lanes(index.substitute(first), e.src[1].substitute(first), lane)
        few = None if near is None else few_vectors(near.distances)
        count = lanes if few is None else registers * len(few.starts)
        return _Counts(loads=count, shuffles=count)

    def _of_store(self, store: Store, size: int) -> _Counts:
        index = store.index
        lanes = self._lanes(index.ranges)
        registers = self._registers(index.ranges, size)
        conditions = self._conditions(store.valid)
        masked = max(
            [part for e, part in conditions.items() if self._lanes(e.ranges) > 1], default=0
        )
        stores = registers * (1 + (self._speeds.masked_store - 1) * masked)
        if lanes == 1 or self._is_contiguous(index):
            return _Counts(stores=stores)
        if self._is_transposed(index):
            return _Counts(stores=stores, shuffles=registers * log2(lanes))
        return _Counts(stores=lanes, shuffles=lanes)

    def _validities(self) -> Iterator[Expr]:
        yield from [v for e in self._nest.nodes if e.op is ExprOp.LOAD for v in e.src[1::2]]
        yield from [c.store.valid for c in self._nest.computes if c.store is not None]

    def _conditions(self, *valid: Expr) -> dict[Expr, float]:
        """The conditions of accesses, and the part of the iterations in which each is tested.

        A condition that holds in all iterations but the last is tested in that one.
        """
        peeled = {
            e: 1 / _size(loop)
            for loop in self._loops
            if loop.peel is not None
            for e in conjuncts(loop.peel)
        }
        known = {loop.range for loop in self._loops if loop.kind in LANES_OR_COPIES}
        found = [e for v in valid for e in conjuncts(v)]
        return {e: peeled.get(e, 1.0) for e in found if not e.ranges <= known}

    def _is_in_memory(self, ranges: Collection[Expr]) -> bool:
        """True if the values of a stage are in memory, not in the registers of copies and lanes."""
        return any([o.range in ranges and o.kind not in _TOGETHER for o in self._nest.loops])

    def _lanes(self, ranges: Collection[Expr]) -> int:
        return prod([r.size.max for r in self._vectors if r in ranges])

    def _registers(self, ranges: Collection[Expr], size: int) -> int:
        """The vector registers of a value that varies with some ranges."""
        return ceil(self._lanes(ranges) * size / self._target.vector_bytes)

    def _is_contiguous(self, index: Expr) -> bool:
        """True if neighbouring lanes are neighbours in memory."""
        step = 1
        for r in reversed(self._vectors):
            if r in index.ranges:
                if step_along(index, r) != step:
                    return False
                step *= r.size.max
        return True

    def _is_transposed(self, index: Expr) -> bool:
        """True if vectors are along a loop around the lanes, and are transposed."""
        return any([step_along(index, r) == 1 for r in self._transposed])

    def _lines_of_vector(self, index: Expr, lanes: int, size: int) -> float:
        """The lines of the vectors of a contiguous access, on average: 1 if all are aligned."""
        terms, first = index.linear()
        in_line = LINE_BYTES // size
        width = min(lanes, in_line)
        steps = [step for e, step in terms.items() if e not in self._vectors]
        is_aligned = all([step % width == 0 for step in (*steps, first)])
        return 1.0 if is_aligned else 1.0 + width / in_line

    def _executions(self, e: Expr) -> float:
        """How often a node is executed: outside of the loops that it does not vary with."""
        depth = self._depth(e)
        times = self._serial[depth]
        apart: dict[int | None, int] = {}  # copies the same distance apart have some in common
        for at, loop in self._copies:
            if at >= depth or loop.range not in e.ranges:
                continue
            step = step_along(e.src[0], loop.range) if e.op in _BY_PLACE else None
            known = apart.get(step, 1)
            apart[step] = known * _size(loop) if step is None else known + _size(loop) - 1
        return times * prod(apart.values())

    def _runs(self, depth: int) -> float:
        """How often the first loops run, all lanes at once."""
        return self._serial[depth] * prod([_size(loop) for at, loop in self._copies if at < depth])

    @cached_property
    def _iterations(self) -> float:
        total = 0.0
        times = self._runs(len(self._around))
        for loop in self._nest.loops:
            if loop.kind not in _TOGETHER:
                times *= _size(loop)
                total += times
        return total

    def _depth(self, e: Expr) -> int:
        """The number of loops around the place where a node is computed."""
        depth = self._known_depths.get(e)
        if depth is None:
            depth = max([self._depths[r] + 1 for r in e.ranges if r in self._depths], default=0)
            if e.op is ExprOp.READ:
                depth = max(depth, self._depth_of_stage(self._kernel.owner[e.arg]))
            for s in e.src:
                depth = max(depth, self._depth(s))
            self._known_depths[e] = depth
        return depth

    def _depth_of_stage(self, owner: Nest) -> int:
        """The number of loops around the nest that a READ reads."""
        if owner is self._nest:
            return len(self._loops)
        path = self._kernel.path(owner)
        around = [loop for name, _, loop in path if name != owner.name]
        return max([self._depths.get(loop.range, -1) + 1 for loop in around], default=0)

    # -- chains --------------------------------------------------------------------------------

    @cached_property
    def _chains(self) -> float:
        """The cycles in which the steps of a reduce wait for each other.

        The steps of one result follow each other up to the next result's; those of different
        results overlap, as far as a core looks ahead.
        """
        axes = self._nest.result_axes
        if all([c.monoid is None for c in self._nest.computes]):
            return 0.0
        loops = self._nest.loops
        apart = [d for d, o in enumerate(loops) if o.range in axes and o.kind not in _TOGETHER]
        first = max(apart, default=-1) + 1
        inside = [o for o in loops[first:] if o.range not in axes and o.kind is not Kind.VECTOR]
        results = max(self._runs(len(self._around) + first), 1.0)
        ahead = self._speeds.in_flight * results / max(sum(self._counts), 1.0)
        overlapping = min(max(ahead, 1.0), results)
        return self._speeds.latency * _times(inside) * results / overlapping

    # -- memory --------------------------------------------------------------------------------

    @cached_property
    def _accesses(self) -> list[_Access]:
        """The loads and stores; of those that are always in one line, one."""
        found: dict[tuple[int, frozenset[tuple[Expr, int]], int], _Access] = {}
        for slot, access in self._touched():
            terms, first = access.index.linear()
            place = slot, frozenset(terms.items()), first * access.itemsize // LINE_BYTES
            found.setdefault(place, access)
        return list(found.values())

    def _touched(self) -> Iterator[tuple[int, _Access]]:
        for c in self._nest.computes:
            if c.store is not None:
                yield c.store.slot, _Access(c.store.index, c.value.dtype.itemsize, _STORED)
        for e in self._nest.nodes:
            if e.op is ExprOp.LOAD:
                for part in _unpacked(e):
                    yield part.arg, _Access(part.src[0], part.dtype.itemsize, 1)

    @cached_property
    def _in_order(self) -> list[Loop]:
        """The loops in the order of their iterations: lanes are innermost, copies around them."""
        order = {Kind.UNROLL: 1, Kind.TRANSPOSE: 2, Kind.MATRIX: 2, Kind.VECTOR: 3}
        return sorted(self._loops, key=lambda loop: order.get(loop.kind, 0))

    def _traffic(self, capacity: int, line: float, alone: float) -> float:
        """The cycles to bring what a cache of this size has lost before it is used again."""
        order = self._in_order
        inside = len([loop for loop in order if loop.kind not in _LANES])
        fit = (depth for depth in range(inside) if self._is_within(capacity, depth))
        depth = next(fit, inside)
        parts = self._lines_from(depth)
        total = 0.0
        for access, part in zip(self._accesses, parts, strict=True):
            around = depth  # what does not vary with the next loops outside stays in the cache
            while around and order[around - 1].range not in access.index.ranges:
                around -= 1
            each = alone if part.are_alone else line
            total += access.moves * each * part.number * _times(order[:around])
        return total

    def _is_within(self, capacity: int, depth: int) -> bool:
        """True if a cache of this size has room for what the loops from `depth` on touch."""
        return sum([lines.room for lines in self._lines_from(depth)]) <= capacity

    def _lines_from(self, depth: int) -> list[_Lines]:
        """The lines that each access touches in all iterations of the loops from `depth` on."""
        found = self._known_lines.get(depth)
        if found is None:
            found = self._known_lines[depth] = [
                self._lines(access, [extent for d, extent in extents if d >= depth])
                for access, extents in self._extents
            ]
        return found

    @cached_property
    def _extents(self) -> list[tuple[_Access, list[tuple[int, tuple[int, int]]]]]:
        """The loops that each access varies with: their depth, the bytes between iterations, and
        their number.
        """
        loops = [(d, loop.range, _size(loop)) for d, loop in enumerate(self._in_order)]
        found = []
        for access in self._accesses:
            extents = []
            for d, r, size in loops:
                if size > 1 and r in access.index.ranges:
                    step = step_along(access.index, r)
                    apart = LINE_BYTES if step is None else abs(step) * access.itemsize
                    extents.append((d, (apart, size)))
            found.append((access, extents))
        return found

    @staticmethod
    def _lines(access: _Access, extents: Sequence[tuple[int, int]]) -> _Lines:
        """The lines of an access for so many iterations, so many bytes apart, of several loops."""
        span, count, room = access.itemsize, 1, LINE_BYTES
        for apart, size in sorted(extents):
            if apart <= max(span, LINE_BYTES):
                span += apart * (size - 1)
            else:
                count *= size
                room = max(room, gcd(apart, PAGE_BYTES))
        of_span = ceil(span / LINE_BYTES)
        return _Lines(
            count * of_span, count * max(of_span * LINE_BYTES, room), of_span == 1 < count
        )


class _Lines(NamedTuple):
    """Lines of memory.

    `room` is the bytes of a cache that they take: lines a power of two apart share its sets.
    """

    number: int
    room: int
    are_alone: bool


def _unpacked(e: Expr) -> list[Expr]:
    """The elements of a load, each as a load of its own."""
    places = list(zip(e.src[::2], e.src[1::2], strict=True))
    if len(places) == 1:
        return [e]
    narrow = dtype_from_name(f"uint{e.dtype.bits // len(places)}")
    return [load(e.arg, narrow, index, valid) for index, valid in places]
