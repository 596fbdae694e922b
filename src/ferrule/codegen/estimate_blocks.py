"""An estimate of the time that a scheduled kernel takes on thread blocks.

It reads the loops, as `estimate.py` does for processors, and how the threads of a warp lie in
memory. The time of a kernel is that of memory, or of the second cache, and that of the
multiprocessor with the most blocks, which partly overlap. `docs/design/schedules-gpu.md` has the
model.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, hypot, log2, prod
from typing import Any, Final, NamedTuple, final

import numpy as np

from ferrule.base.records import dataclass
from ferrule.codegen.block_accesses import (
    Access,
    holding_part,
    mean_iterations,
    side_by_side,
)
from ferrule.codegen.intrinsics import (
    WARP,
    WGMMA,
    MatrixIntrinsic,
    by_warp_groups,
    matrix_intrinsic,
    native_matrix_intrinsic,
)
from ferrule.codegen.kernel import (
    BANK_LINE_BYTES,
    BY_WARPS,
    LANES_OR_COPIES,
    MONOIDS,
    Compute,
    Kernel,
    Kind,
    Loop,
    Nest,
)
from ferrule.codegen.primitives.editing import descendants
from ferrule.codegen.threads import Threads, in_registers
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import BOOL, INDEX, TRUE, Expr, ExprOp, toposort
from ferrule.ir.target import Target

_FREE: Final = frozenset({ExprOp.CONST, ExprOp.VARIABLE, ExprOp.RANGE})
_DIVISIONS: Final = frozenset({ExprOp.IDIV, ExprOp.MOD})


@final
@dataclass(frozen=True)
class Estimate:
    """The time of a kernel and what it is made of, in cycles of a multiprocessor."""

    launch: float
    memory: float
    """Of the traffic with memory, by all multiprocessors together."""
    cache: float
    """The same for the second cache."""
    busiest: float
    """Of the multiprocessor that has the most blocks."""

    @property
    def cycles(self) -> float:
        """The time in all: multiprocessors wait for memory, and memory for them."""
        return self.launch + hypot(max(self.memory, self.cache), self.busiest)


def block_cycles(kernel: Kernel, target: Target) -> float:
    """The cycles of a multiprocessor in which thread blocks do a kernel, about."""
    return BlockWork(kernel, target).estimate().cycles


def least_block_cycles(kernel: Kernel, target: Target) -> float:
    """The cycles of a kernel if each byte is moved once and all multiprocessors are busy."""
    return _least(kernel, target, loads=False)


def least_untiled_block_cycles(kernel: Kernel, target: Target) -> float:
    """The same if each term of each result loads its operands: no tile of results shares them."""
    return _least(kernel, target, loads=True)


def _least(kernel: Kernel, target: Target, *, loads: bool) -> float:
    blocks = BlockWork(kernel, target)
    works = [_Work(blocks, nest) for nest in kernel.nests]
    moved: dict[tuple[int | None, bool], float] = {}
    for access in itertools.chain.from_iterable([work.accesses for work in works]):
        place = access.slot, access.is_store
        moved[place] = max(moved.get(place, 0.0), access.different)
    busy = sum([max(work.least, work.least_loads if loads else 0.0) for work in works])
    memory = sum(moved.values()) / blocks.memory_bytes
    return blocks.launch + max(memory, busy / target.multiprocessors)


def _times(loops: Collection[Loop]) -> float:
    return prod([loop.range.size.max for loop in loops])


# -- a whole kernel --------------------------------------------------------------------------------


@final
class BlockWork:
    """What the blocks of a kernel do."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.speeds = target.block_speeds
        self.threads = Threads(kernel)
        self.registers = in_registers(kernel, self.threads)
        self.warps = ceil(self.threads.count / target.warp)

    @cached_property
    def _roots(self) -> list[tuple[float, list[_Work]]]:
        """The number of blocks of each root, and the nests that they do."""
        found = []
        for root in self.kernel.roots:
            family = descendants(self.kernel, root.name)
            works = [_Work(self, nest) for nest in self.kernel.nests if nest.name in family]
            found.append((_times(root.loops[:1]) if root.is_shared_out else 1.0, works))
        return found

    def estimate(self, parts: int = 1) -> Estimate:
        """The time of the kernel; if its reduces are in `parts`, each of these has blocks of its
        own.
        """
        footprints: dict[tuple[int | None, bool], float] = {}
        at_once = self.room * self.target.multiprocessors
        for blocks, works in self._roots:
            for access in itertools.chain.from_iterable([work.accesses for work in works]):
                place = access.slot, access.is_store  # what is read again is near, as a rule
                traffic = access.traffic(
                    self.target.l2_bytes, min(blocks, at_once), max(blocks / at_once, 1)
                )
                traffic *= parts if access.is_store else 1
                footprints[place] = max(footprints.get(place, 0.0), traffic)
        return Estimate(
            launch=self.launch,
            memory=sum(footprints.values()) / self.memory_bytes,
            cache=self._cache_bytes / (self.speeds.l2_bytes * self.target.multiprocessors),
            busiest=sum([self._of_multiprocessor(n, works, parts) for n, works in self._roots]),
        )

    @cached_property
    def _cache_bytes(self) -> float:
        return sum(
            [
                self._moved(access) * blocks
                for blocks, works in self._roots
                for work in works
                for access in work.accesses
            ]
        )

    def _moved(self, access: Access) -> float:
        """The bytes that a block gets from the second cache, or gives to it."""
        asked = access.asked * self.warps
        room = self.target.l1_bytes / self.room - self.shared_bytes
        return asked if access.is_store or access.of_block > room else min(asked, access.of_block)

    @property
    def launch(self) -> float:
        """The cycles from one kernel to the next."""
        return self.speeds.launch * self.target.clock

    @property
    def memory_bytes(self) -> float:
        """The bytes that memory moves in a cycle."""
        target = self.target
        return target.bytes_per_second * target.max_threads * self.speeds.memory / target.clock

    def _of_multiprocessor(self, blocks: float, works: Sequence[_Work], parts: int) -> float:
        """The cycles of the multiprocessor that has the most blocks of a root."""
        busy = self._busy(works)
        near = sum([work.near_latency for work in works])
        each = max(busy, near) + _exposed(works, busy)
        each = max(each / parts, min(each, self.speeds.load_latency))
        mine = ceil(blocks * parts / self.target.multiprocessors)
        return float(max(mine * busy / parts, ceil(mine / self.room) * each))

    def _busy(self, works: Sequence[_Work]) -> float:
        """The cycles in which a block keeps the units of a multiprocessor busy."""
        counts = [work.counts for work in works]
        arithmetic, accesses, matrices, instructions = (
            sum(column) for column in zip(*counts, strict=True)
        )
        # Loads and multiply-adds of a thread wait for each other; products of matrices do not.
        return float(max(arithmetic + accesses, matrices, instructions / self.speeds.instructions))

    def balanced(self) -> Estimate:
        """The time if all multiprocessors are busy to the end, as with any number of parts."""
        shares = [blocks * self._busy(works) for blocks, works in self._roots]
        return replace(self.estimate(), busiest=sum(shares) / self.target.multiprocessors)

    @cached_property
    def room(self) -> int:
        """The blocks that run on a multiprocessor at once."""
        speeds, target, count = self.speeds, self.target, self.threads.count
        room = min(speeds.threads // count, speeds.registers // (count * self._thread_registers))
        if target.static_shared_bytes is not None and self.shared_bytes:
            room = min(room, target.l1_bytes // self.shared_bytes)
        return max(1, int(room))

    @cached_property
    def shared_bytes(self) -> int:
        kept: dict[str, int] = {}
        for name in self.threads.shared:
            c = self.kernel.computes[name]
            place, _ = self.kernel.memory[name]
            kept[place] = max(kept.get(place, 0), self.threads.elements(c) * c.value.dtype.itemsize)
        return sum(kept.values())

    @cached_property
    def _thread_registers(self) -> int:
        """The registers of a thread: what it keeps, and beside that addresses and operands."""
        kept = {
            c.name: prod([r.size.max for r in self.threads.axes(c)])
            * max(1, c.value.dtype.itemsize // 4)
            for c in self.kernel.computes.values()
            if c.store is None and c.name in self.registers
        }
        return min(self.speeds.other_registers + sum(kept.values()), self.speeds.thread_registers)


def _exposed(works: Sequence[_Work], busy: float) -> float:
    """The cycles in which all threads of a block wait for loads."""
    waits: dict[Any, _Wait] = {}
    for work in works:
        for wait in work.waits:
            found = waits.get(wait.place)
            if found is None or found.cycles < wait.cycles:
                waits[wait.place] = wait
    total = 0.0
    for wait in waits.values():
        hidden = (wait.pipeline_depth - 1) * busy / wait.times
        total += wait.times * max(wait.least, wait.cycles - hidden)
    return total


class _Wait(NamedTuple):
    """Loads at one place of a block that are awaited together."""

    place: tuple[str, int]
    times: float
    cycles: float
    least: float
    pipeline_depth: int


class _Counts(NamedTuple):
    """Cycles of a multiprocessor in which a block keeps its units busy."""

    arithmetic: float
    accesses: float
    matrices: float
    instructions: float
    """The number of instructions of all warps, not cycles."""


# -- one nest --------------------------------------------------------------------------------------


@final
class _Work:
    """What one nest does in one block."""

    def __init__(self, blocks: BlockWork, nest: Nest) -> None:
        self.blocks = blocks
        self._kernel = blocks.kernel
        self._nest = nest
        self._speeds = blocks.speeds
        self.loops = [loop for _, _, loop in blocks.kernel.path(nest)]
        self._depths = {loop.range: depth for depth, loop in enumerate(self.loops)}
        self._known_depths: dict[Expr, int] = {}
        sizes = [self._iterations(loop) for loop in self.loops]
        self.serial = [prod(sizes[:depth]) for depth in range(len(sizes) + 1)]
        self._by = _multiplied_by(nest)

    def _iterations(self, loop: Loop) -> float:
        if loop.kind is not Kind.SERIAL:
            return 1.0
        size = float(loop.range.size.max)
        if loop.bitmask is not None and loop.assumed is not None:
            return size * holding_part(loop.assumed, self.loops, self.lane_digits)
        return size if loop.start is loop.end is None else mean_iterations(loop)

    # -- instructions --------------------------------------------------------------------------

    @cached_property
    def counts(self) -> _Counts:
        speeds, warps = self._speeds, self.blocks.warps
        arithmetic = matrices = instructions = 0.0
        fused = self._fused
        if self._by is not None:
            matrices = self._matrix_cycles(self._by)
        for e in self._nest.nodes:
            if e.op in _FREE or e.op in (ExprOp.LOAD, ExprOp.READ) or e in fused:
                continue
            if self._by is not None and e.dtype is not INDEX:
                continue
            arithmetic += self._operations(e)
        for c in self._nest.computes:
            if c.monoid is not None and self._by is None:
                everywhere = self.serial[-1] * self._lanes(self._depths)
                arithmetic += everywhere * max(1, c.value.dtype.itemsize // 4)
                arithmetic += self._combining(c)
        lines = 0.0
        if self._by is not None:
            lines += self._lines_of_matrices(self._by)
        for access in self._near_accesses:
            lines += access.times * access.turns
            instructions += access.times
        for access in self.accesses:
            lines += access.times * access.turns
            instructions += access.times * (1 + speeds.address)
        of_lanes = self.blocks.target.warp / speeds.lanes
        return _Counts(
            arithmetic * warps * of_lanes,
            lines * warps,
            matrices,
            (instructions + arithmetic) * warps,
        )

    @property
    def least(self) -> float:
        """The cycles of one multiprocessor for the operations, however they are scheduled."""
        speeds = self._speeds
        total = 0.0
        for e in self._nest.nodes:
            free = e.op in _FREE or e.op in (ExprOp.LOAD, ExprOp.READ) or e in self._fused
            if not free and e.dtype not in (INDEX, BOOL):
                total += self._operations(e)
        for c in self._nest.computes:
            if c.monoid is not None:
                by = self._could_multiply(c)
                each = 1.0 if by is None else self._products(by) * speeds.lanes
                total += self.serial[-1] * each
        return total / speeds.lanes

    def _could_multiply(self, c: Compute) -> MatrixIntrinsic | None:
        """The instruction that may add up the products of a sum."""
        if c.value not in self._fused:
            return None
        found = {e.dtype for e in toposort([c.value]) if e.op is ExprOp.LOAD}
        target = self.blocks.target
        by = native_matrix_intrinsic(found.pop(), c.value.dtype, target) if found else None
        return by and (by_warp_groups(by, target) or by)

    def _products(self, by: MatrixIntrinsic) -> float:
        """The cycles for one product of numbers, as one of many of an instruction."""
        if by.warps > 1:
            return self._speeds.group_column / (by.warps * by.rows * by.terms)
        return self._speeds.matrix / (by.rows * by.columns * by.terms)

    @property
    def least_loads(self) -> float:
        """The cycles of one multiprocessor for the loads if each term of each result has its
        own.
        """
        axes = [o.range for o in self._nest.loops if o.range not in self._nest.result_axes]
        if all([c.monoid is None for c in self._nest.computes]):
            return 0.0
        sizes = [
            e.dtype.itemsize
            for e in self._nest.nodes
            if e.op is ExprOp.LOAD and not e.src[0].ranges.isdisjoint(axes)
        ]
        return self.serial[-1] * sum(sizes) / BANK_LINE_BYTES

    def _operations(self, e: Expr) -> float:
        """The instructions of a thread for a node."""
        serial = self.serial[self.depth_of(e)]
        if e.dtype is INDEX:
            if e.op in _DIVISIONS:
                divisor = e.src[1].arg if e.src[1].op is ExprOp.CONST else 3
                return serial * (1.0 if divisor & (divisor - 1) == 0 else self._speeds.quotient)
            return serial
        if e.dtype is BOOL and all([s.dtype in (INDEX, BOOL) for s in e.src]):
            return serial
        each = self.blocks.target.speeds.additions(e.op.name, is_float=dtypes.is_float(e.dtype))
        return serial * self._lanes(e.ranges) * each * max(1, e.dtype.itemsize // 4)

    @cached_property
    def _fused(self) -> frozenset[Expr]:
        """The products that are one instruction with the addition of their reduce."""
        sums = [c.value for c in self._nest.computes if c.monoid == MONOIDS["sum"]]
        return frozenset([e for e in sums if e.op is ExprOp.MUL])

    def _combining(self, c: Compute) -> float:
        """The instructions that combine the values of threads."""
        values = self._lanes(c.ranges) * self.serial[self._results_depth]
        return sum([2 * log2(d.size) * values for d in self.blocks.threads.combined(self._nest)])

    @property
    def _results_depth(self) -> int:
        """The number of loops around the place where results are complete."""
        axes = self._nest.result_axes
        around = len(self.loops) - len(self._nest.loops)
        own = [d for d, o in enumerate(self.loops) if d < around or o.range in axes]
        return max(own, default=-1) + 1

    def _matrix_cycles(self, by: MatrixIntrinsic) -> float:
        """The cycles of a multiprocessor for the products of matrices of a block."""
        results = self._lanes(self._nest.result_axes) * self.blocks.warps * WARP
        return self.serial[-1] * results * by.terms * self._products(by)

    def _lanes(self, ranges: Collection[Expr]) -> float:
        """The copies and lanes of a value that varies with some ranges."""
        return _times([o for o in self.loops if o.kind in LANES_OR_COPIES and o.range in ranges])

    def depth_of(self, e: Expr) -> int:
        """The number of loops around the place where a node is computed."""
        depth = self._known_depths.get(e)
        if depth is None:
            depth = max([self._depths[r] + 1 for r in e.ranges if r in self._depths], default=0)
            if e.op is ExprOp.READ:
                path = self._kernel.path(self._kernel.owner[e.arg])
                around = [self._depths.get(loop.range, -1) + 1 for _, _, loop in path]
                depth = max([depth, *around])
            self._known_depths[e] = depth = max([depth, *[self.depth_of(s) for s in e.src]])
        return depth

    # -- waiting -------------------------------------------------------------------------------

    @cached_property
    def near_latency(self) -> float:
        """The cycles in which a thread waits for shared memory and for its own sums; others
        go on meanwhile.
        """
        speeds = self._speeds
        inner = self.serial[-1]
        total = 0.0
        if any([self._is_shared(e.arg) for e in self._nest.reads]):
            total += inner * speeds.shared_latency / speeds.unrolled
        if any([c.monoid is not None for c in self._nest.computes]) and self._by is None:
            total += inner * speeds.latency * self._terms_at_once
            for digit in self.blocks.threads.combined(self._nest):
                total += log2(digit.size) * speeds.shared_latency
                if digit.step * digit.size > self.blocks.target.warp:
                    total += 2 * speeds.barrier
        return total

    @property
    def _terms_at_once(self) -> float:
        """The copies and lanes of a nest's terms, which are added one after the other."""
        axes = self._nest.result_axes
        return _times(
            [o for o in self._nest.loops if o.kind in LANES_OR_COPIES and o.range not in axes]
        )

    @property
    def waits(self) -> Iterator[_Wait]:
        """The loads that something waits for."""
        speeds, nest = self._speeds, self._nest
        depths: dict[int, tuple[float, float]] = {}
        for access in self.accesses:
            if not access.is_store:
                chain, copies = depths.get(access.depth, (0.0, 1.0))
                depths[access.depth] = max(chain, access.chain), max(copies, access.beside)
        shared = any([c.name in self.blocks.threads.shared for c in nest.computes])
        pipeline_depth = max([c.pipeline_depth for c in nest.computes])
        place = nest.at if nest.at is not None and shared else None
        for depth, (chain, copies) in depths.items():
            times = self.serial[depth]
            cycles = speeds.load_latency * chain
            if not shared:
                times = max(1.0, times / max(1.0, speeds.unrolled / copies))
            yield _Wait(
                place or (nest.name, depth),
                times,
                cycles + (speeds.barrier if shared else 0.0),
                speeds.barrier if shared else 0.0,
                pipeline_depth,
            )

    # -- accesses ------------------------------------------------------------------------------

    def _is_shared(self, name: str) -> bool:
        return self._kernel.computes[name].name in self.blocks.threads.shared

    @cached_property
    def _near_accesses(self) -> list[Access]:
        """The accesses of shared memory; not those by products of matrices."""
        found = []
        threads = self.blocks.threads
        for e in self._nest.reads:
            if self._is_shared(e.arg) and self._by is None:
                c = self._kernel.computes[e.arg]
                place = threads.place(c, e.src)
                found.append(self._access(None, place, c, e))
        for c in self._nest.computes:
            if c.store is None and c.name in threads.shared:
                place = threads.place(c, c.ranges)
                found.append(self._access(None, place, c))
        return found

    def _lines_of_matrices(self, by: MatrixIntrinsic) -> float:
        """The lines of shared memory that warps read to multiply matrices."""
        digits, together = self.blocks.threads.digits, by.warps * WARP
        total = 0.0
        for e in self._nest.reads:
            near = [
                o
                for o in self.loops
                if o.range in e.ranges
                and (
                    o.kind in BY_WARPS | LANES_OR_COPIES
                    or (o.kind is Kind.THREAD and digits[o.range].step < together)
                )
            ]
            if self._is_shared(e.arg):
                total += _times(near) * by.itemsize / BANK_LINE_BYTES
        return total * self.serial[-1] / by.warps

    @cached_property
    def accesses(self) -> list[Access]:
        """The loads and stores of memory."""
        found = []
        for e in self._nest.nodes:
            if e.op is ExprOp.LOAD:
                for index, valid in zip(e.src[::2], e.src[1::2], strict=True):
                    found.append(self._access(e.arg, index, e, e, valid))
        for c in self._nest.computes:
            if c.store is not None:
                found.append(self._access(c.store.slot, c.store.index, c, valid=c.store.valid))
        return found

    def _access(
        self,
        slot: int | None,
        index: Expr,
        of: Expr | Compute,
        load: Expr | None = None,
        valid: Expr = TRUE,
    ) -> Access:
        dtype = of.value.dtype if isinstance(of, Compute) else of.dtype
        packed = 1 if slot is None or load is None else len(load.src) // 2
        itemsize = dtype.itemsize // packed
        width, beside = side_by_side(self.loops, index, itemsize, shared=slot is None)
        if load is None:
            depth = len(self.loops) if slot is None else self.depth_of(index)
        else:
            depth = self.depth_of(load)
        is_known = valid not in self._loaded
        part = 1.0 if is_known else holding_part(valid, self.loops, self.lane_digits)
        return Access(
            slot,
            index,
            itemsize,
            is_store=load is None,
            loops=self.loops,
            lane_digits=self.lane_digits,
            sector=self._speeds.sector,
            depth=depth,
            width=width,
            beside=beside,
            times=self.serial[depth] * beside * part,
            chain=(1 + (index in self._loaded)) * min(1.0, part * self.blocks.target.warp),
        )

    @cached_property
    def _loaded(self) -> set[Expr]:
        """The nodes that depend on what is loaded."""
        found: set[Expr] = set()
        for e in self._nest.nodes:
            if e.op in (ExprOp.LOAD, ExprOp.READ) or not found.isdisjoint(e.src):
                found.add(e)
        return found

    @cached_property
    def lane_digits(self) -> dict[Expr, Any]:
        """The iterations of THREAD loops that the threads of the first warp do."""
        thread = np.arange(min(self.blocks.target.warp, self.blocks.threads.count))
        digits = self.blocks.threads.digits
        return {
            o.range: thread // digits[o.range].step % digits[o.range].size
            for o in self.loops
            if o.kind is Kind.THREAD
        }


def _multiplied_by(nest: Nest) -> MatrixIntrinsic | None:
    """The instruction that multiplies matrices in a nest."""
    kinds = {loop.kind for loop in nest.loops}
    if Kind.WARP_GROUP in kinds:
        return WGMMA
    if Kind.MATRIX not in kinds:
        return None
    sources = [e.dtype for e in nest.nodes if e.op is ExprOp.READ or e.op is ExprOp.LOAD]
    return next((by for by in map(matrix_intrinsic, sources) if by is not None), None)
