"""The work of each thread of a block, and the scratch memory that threads share.

The threads of a block are numbered from 0. Around the body of a nest may be several THREAD loops.
Their iterations are the digits of the thread's number, the outermost loop's the highest, unless a
loop has a `step` of its own. If the loops have fewer iterations than the block has threads, digits
are left over. Threads that differ only in these do the same, and the first of them stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import final

from ferrule.base.records import dataclass
from ferrule.codegen.intrinsics import MATRIX_INTRINSICS, matrix_intrinsic
from ferrule.codegen.kernel import (
    BY_WARPS,
    LANES_OR_COPIES,
    Compute,
    Kernel,
    KernelError,
    Kind,
    Loop,
    Nest,
    reads,
)
from ferrule.codegen.primitives.products import matrix_operands
from ferrule.ir.expr import TRUE, Expr, ExprOp, both, const, less, range_, weighted_sum


@final
@dataclass(frozen=True)
class Digit:
    """A part of a thread's number: `number // step % size`."""

    step: int
    size: int


@final
class Threads:
    """The mapping from the THREAD loops of a kernel to the threads of a block.

    Raises:
        KernelError: the loops around a nest do not divide the threads of the block, or a nest
            combines over threads whose number is no power of two.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._around = {n.name: _thread_loops(kernel, n) for n in kernel.nests}
        sizes = [prod(o.size for o in around) for around in self._around.values()]
        ends = [o.step * o.size for n in kernel.nests for o in n.loops if o.step is not None]
        self.count = max([1, *sizes, *ends])
        """The number of threads of a block; 1 if the kernel binds none."""
        self.digits: dict[Expr, Digit] = {}
        for nest in kernel.nests:
            self._number(nest)
            self._check_combined(nest)

    def _number(self, nest: Nest) -> None:
        """Give each loop of a nest its digit, from the highest down, unless it chose one."""
        step = self.count
        for loop in self._around[nest.name]:
            if loop.step is not None:
                self.digits[loop.range] = Digit(loop.step, loop.size)
                continue
            if step % loop.size:
                raise KernelError(
                    f"nest {nest.name} has {loop.size} threads along {loop.range}, which do "
                    f"not divide the {step} that are left of {self.count}"
                )
            step //= loop.size
            self.digits[loop.range] = Digit(step, loop.size)
        if step > 1 and any(loop.kind in BY_WARPS for loop in nest.loops):
            raise KernelError(
                f"nest {nest.name} multiplies matrices by {self.count // step} of the "
                f"{self.count} threads of a block; a warp has all of its threads for it"
            )

    def _check_combined(self, nest: Nest) -> None:
        for digit in self.combined(nest):
            if digit.size & (digit.size - 1) or digit.step & (digit.step - 1):
                raise KernelError(
                    f"nest {nest.name} combines over {digit.size} threads, {digit.step} apart; "
                    f"both numbers must be powers of two"
                )

    def combined(self, nest: Nest) -> list[Digit]:
        """The digits over which a nest combines its values, the lowest first; adjacent digits as
        one.
        """
        if all(c.monoid is None for c in nest.computes):
            return []
        result_axes = nest.result_axes
        out: list[Digit] = []
        for loop in reversed(nest.loops):
            if loop.kind is not Kind.THREAD or loop.range in result_axes or loop.size == 1:
                continue
            digit = self.digits[loop.range]
            if out and out[-1].step * out[-1].size == digit.step:
                digit = Digit(out[-1].step, out[-1].size * digit.size)
                out.pop()
            out.append(digit)
        return out

    def left_over(self, nest: Nest) -> list[Digit]:
        """The digits of a thread's number that make no difference in the body of a nest.

        Raises:
            KernelError: two loops around it are one digit, in parts at least.
        """
        out = []
        end = 1
        chosen = [self.digits[loop.range] for loop in self._around[nest.name] if loop.size > 1]
        for digit in [*sorted(chosen, key=lambda d: d.step), Digit(self.count, 1)]:
            if digit.step % end:
                raise KernelError(
                    f"the threads around nest {nest.name} are no digits of one number: {chosen}"
                )
            if digit.step > end:
                out.append(Digit(end, digit.step // end))
            end = digit.step * digit.size
        return out

    def is_first(self, nest: Nest) -> Expr:
        """The condition that a thread is the first of those that do the same in the body of a
        nest.
        """
        out = TRUE
        for digit in self.left_over(nest):
            out = both(out, less(self.thread // digit.step % digit.size, const(1)))
        return out

    @cached_property
    def thread(self) -> Expr:
        """A range that stands for the thread's number in the block."""
        return range_("thread", self.count)

    def own(self, c: Compute) -> list[Expr]:
        """The axes of a stage that are THREAD loops of its nest."""
        nest = self.kernel.owner[c.name]
        mine = {loop.range for loop in nest.loops if loop.kind is Kind.THREAD}
        return [r for r in c.ranges if r in mine]

    @cached_property
    def shared(self) -> frozenset[str]:
        """The stages in shared memory: some thread reads an element that another one made."""
        return frozenset(
            c.name
            for c in self.kernel.computes.values()
            if c.store is None and self.own(c) and not self._stays_with_its_thread(c)
        )

    def _stays_with_its_thread(self, c: Compute) -> bool:
        """True if each thread reads only values that it has made itself."""
        own = {i: r for i, r in enumerate(c.ranges) if r in self.own(c)}
        for nest in self.kernel.nests:
            for read in _reads(nest):
                if read.arg != c.name:
                    continue
                for axis, r in own.items():
                    at = read.src[axis]
                    if at.op is not ExprOp.RANGE or self.digits.get(at) != self.digits[r]:
                        return False
        return True

    def axes(self, c: Compute) -> tuple[Expr, ...]:
        """The axes of a stage's memory; without THREAD loops if each thread has its own values."""
        own = set() if c.name in self.shared else set(self.own(c))
        return tuple(r for r in c.ranges if r not in own)

    def place(self, c: Compute, index: Sequence[Expr], ring_slot: Expr | None = None) -> Expr:
        """The index of a value in its scratch memory.

        Of several copies (`pipeline_depth`) it is in the one that this iteration of the loop around
        reads, or in that of number `ring_slot`.
        """
        axes = self.axes(c)
        strides = dict(zip(axes, c.strides(axes), strict=True))
        places = zip(index, c.ranges, strict=True)
        inside = weighted_sum((i, strides[r]) for i, r in places if r in strides)
        copy = self._group(c) if c.name in self.shared else const(0)
        depth = c.pipeline_depth
        if depth > 1:
            copy = copy * depth + (self.iteration(c) % depth if ring_slot is None else ring_slot)
        return copy * c.room(axes) + c.swizzled(inside)

    def iteration(self, c: Compute) -> Expr:
        """The range of the loop ahead of whose iterations a pipelined value is made."""
        loop = self.kernel.loop_around(self.kernel.owner[c.name])
        assert loop is not None, f"{c.name} hangs in no loop"
        return loop.range

    def elements(self, c: Compute) -> int:
        """The number of values that its scratch memory has room for."""
        inside = c.room(self.axes(c)) * c.pipeline_depth
        return inside * self._groups(c) if c.name in self.shared else inside

    def _outer(self, c: Compute) -> list[Loop]:
        """The THREAD loops around the nest of a stage, each iteration of which has a copy."""
        nest = self.kernel.owner[c.name]
        return [loop for loop in self._around[nest.name] if loop not in nest.loops]

    def _groups(self, c: Compute) -> int:
        return prod(loop.size for loop in self._outer(c))

    def _group(self, c: Compute) -> Expr:
        out = const(0)
        for loop in self._outer(c):
            out = out * loop.size + loop.range
        return out


def _thread_loops(kernel: Kernel, nest: Nest) -> list[Loop]:
    return [loop for _, _, loop in kernel.path(nest) if loop.kind is Kind.THREAD]


def _reads(nest: Nest) -> list[Expr]:
    """The reads of a nest, as each thread reads them.

    The threads of a warp share the terms of the left matrix that they multiply.
    """
    threads = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD]
    by_warps = nest.loops and nest.loops[-1].kind in BY_WARPS and len(threads) > 1
    if not by_warps:  # an intrinsic may be one of lanes
        return list(nest.reads)
    down, across = threads[-2:]
    left = matrix_operands(nest.computes[0].value, down)[0].src[0]
    by = matrix_intrinsic(left.dtype)
    assert by is not None, f"{left} is no operand of a product of matrices"
    halves = range(by.terms // by.half)
    own = [left.substitute({nest.loops[-1].range: by.term(across, i)}) for i in halves]
    return [*(e for e in nest.reads if e is not left), *reads(own)]


def in_registers(kernel: Kernel, threads: Threads) -> frozenset[str]:
    """The stages that need no memory.

    Their axes are lanes, copies and threads, and each thread reads them exactly as it has made
    them.
    """
    without_memory = (*LANES_OR_COPIES, Kind.THREAD)
    out: set[str] = set()
    for nest in kernel.nests:
        kinds = {loop.range: loop.kind for loop in nest.loops}
        for c in nest.computes:
            plain = c.store is None and c.pipeline_depth == 1
            if plain and all(kinds[r] in without_memory for r in c.ranges):
                out.update(c.names)
    out -= threads.shared
    kind_of = {loop.range: loop.kind for nest in kernel.nests for loop in nest.loops}
    pairs = (by.pair for by in MATRIX_INTRINSICS.values())
    kind_of |= {pair: Kind.VECTOR for pair in pairs if pair is not None}
    for nest in kernel.nests:
        for read in _reads(nest):
            for i, r in zip(read.src, kernel.computes[read.arg].ranges, strict=True):
                copies = all(kind_of.get(x) is Kind.UNROLL for x in i.ranges)
                chosen = copies and kind_of[r] is Kind.UNROLL
                if not chosen and not (i.op is ExprOp.RANGE and kind_of[i] is kind_of[r]):
                    out.discard(read.arg)
    carried = {
        n
        for nest in kernel.nests
        for c in nest.computes
        if c.carried_by is not None
        for n in c.names
    }
    if not carried <= out:
        raise KernelError(f"{sorted(carried - out)} are carried by a loop, and not in registers")
    return frozenset(out)
