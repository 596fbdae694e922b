"""Reduces: accumulators in registers, updated by the innermost loops.

If only combined loops, lanes and copies remain, each copy of each accumulator has a register. If a
serial loop over a result axis comes after the first combined loop, accumulators are in scratch
memory, and in registers from that loop on.

A reduce that a loop carries has its registers outside of that loop, and each iteration goes on
from them. A nest's own accumulators are updated in place; a nest that hangs in the loop is added to
them once it has the part of this iteration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import final

from ferrule.codegen.emit.emitter import Copy
from ferrule.codegen.emit.fragments import Fragments
from ferrule.codegen.emit.loops import run_loop
from ferrule.codegen.emit.software_pipelining import hangs_until, is_by_warp_groups, products_go_on
from ferrule.codegen.emit.tile_registers import TileRegisters, in_tile_registers
from ferrule.codegen.emit.values import Values
from ferrule.codegen.kernel import BY_WARPS, LANES_OR_COPIES, Compute, Kind, Loop, Monoid, Nest
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import ExprOp, const

# The operation of a term -> one operation that adds it to an accumulator. A DOT else adds to 0.
_FUSED = {ExprOp.MUL: ExprOp.MULACC, ExprOp.DOT: ExprOp.DOT}
_Registers = dict[Copy, UOp]


@final
class Reductions:
    """Puts the loops of reduces into a program, from the first one that is combined over.

    `children(nest, depth)` emits the nests that hang where `depth` loops of a nest are open.
    `serial(loop, body)` emits a loop that runs, and its copies ahead.
    """

    def __init__(
        self,
        values: Values,
        children: Callable[[Nest, int], None],
        serial: Callable[[Loop, Callable[[], None]], None],
    ) -> None:
        self.values = values
        self.out = values.out
        self.children = children
        self.serial = serial
        self.fragments = Fragments(values)
        self.tile_registers = TileRegisters(values, children, serial)
        self._fresh: dict[UOp, int] = {}  # registers that hold the identity, and in which loop
        self._carried: _Registers = {}  # of what an open loop carries
        self._names = itertools.count()

    def reduce(self, nest: Nest, depth: int) -> None:
        """Emit the loops of a nest from the first combined one, at `depth`, and the use of the
        accumulators.
        """
        hold = _hold_depth(nest)
        if hold == depth:
            self._in_registers(nest, hold)
        else:
            self._fill_identity(nest, depth)
            self._through_memory(nest, depth, hold)

    def _through_memory(self, nest: Nest, depth: int, hold: int) -> None:
        if depth == hold:
            self._in_registers(nest, hold, partial=True)
            return
        if depth > first_reduce(nest):
            self.children(nest, depth)
        loop = nest.loops[depth]
        if loop.kind is Kind.THREAD:
            self._through_memory(nest, depth + 1, hold)
            return
        self.serial(loop, lambda: self._through_memory(nest, depth + 1, hold))

    def _in_registers(self, nest: Nest, hold: int, *, partial: bool = False) -> None:
        if in_tile_registers(nest):
            self.tile_registers.sums(nest, hold, partial=partial)
            return
        registers = self._registers(nest, hold)
        inside = self._begin_first(nest, registers)
        self._accumulate(nest, hold, registers)
        self._finish(nest, hold, registers, partial=partial)
        for c in inside:
            self._end_carried(c)

    # -- before ------------------------------------------------------------------------------------

    def _fill_identity(self, nest: Nest, depth: int) -> None:
        """Set the accumulators in scratch memory to the identity."""
        for c in nest.computes:
            inner = [loop for loop in nest.loops[depth:] if loop.range in c.ranges]
            identity = c.monoid.identity(c.value.dtype) if c.monoid else const(0, c.value.dtype)
            self._fill(Compute(c.name, identity, c.ranges), inner)

    def _fill(self, c: Compute, loops: Sequence[Loop]) -> None:
        if not loops:
            self.values.write_stage(c, self.values.vector(c.value))
            return
        loop, *rest = loops
        if loop.kind is Kind.THREAD:
            self._fill(c, rest)
        elif loop.kind is Kind.UNROLL:
            for _ in self.values.each_copy([loop]):
                self._fill(c, rest)
        elif loop.kind is Kind.VECTOR or (loop.kind in BY_WARPS and not rest):
            with self.values.along(loop.range):
                self._fill(c, rest)
        else:
            run_loop(self.values, Loop(loop.range), lambda: self._fill(c, rest))

    def _registers(self, nest: Nest, hold: int) -> _Registers:
        """A register for every copy of every accumulator, set to the identity."""
        out: _Registers = {}
        for c in nest.computes:
            if c.monoid is None:
                continue
            inner = [loop for loop in nest.loops[hold:] if loop.range in c.ranges]
            lanes = prod(loop.size for loop in inner if loop.kind is Kind.VECTOR)
            identity = c.monoid.identity(c.value.dtype).arg
            for _ in self.values.each_copy(inner):
                first = self.out.constant(identity, c.value.dtype, lanes)
                dtype = self.out.memory_dtype(c.value.dtype)
                name = f"{c.name}.{next(self._names)}"
                register = self.out.emit(UOp(UOps.REG, dtype, lanes, (first,), name))
                out[self.values.key(c)] = register
                self._fresh[register] = self.out.innermost
        return out

    # -- loops -------------------------------------------------------------------------------------

    def _accumulate(self, nest: Nest, depth: int, registers: _Registers) -> None:
        """Emit the loops from `depth` on; the innermost lanes and copies update the registers."""
        if depth > first_reduce(nest):
            self.children(nest, depth)
        if depth == 1:
            self._set_initial(nest)
        if depth == max(hangs_until(self.values.kernel, nest), first_reduce(nest)):
            self._accumulate_rest(nest, depth, registers)
        else:
            self._update_inside(nest, depth, registers)

    def _accumulate_rest(self, nest: Nest, depth: int, registers: _Registers) -> None:
        """Emit the loops from a depth on in which no nest hangs.

        Products by warp groups begin and end there, unless they may overlap the next iteration.
        """
        begin = is_by_warp_groups(nest) and not products_go_on(self.values.kernel, nest)
        if begin:
            self.out.inside(UOp(UOps.WGMMA_FENCE))
        self._update_inside(nest, depth, registers)
        if begin:
            self.out.inside(UOp(UOps.WGMMA_COMMIT))
            self.out.inside(UOp(UOps.WGMMA_WAIT, arg=0))

    def _update_inside(self, nest: Nest, depth: int, registers: _Registers) -> None:
        rest = nest.loops[depth:]
        if rest and rest[-1].kind in BY_WARPS and rest[0].kind in LANES_OR_COPIES:
            together = rest[-1].kind is Kind.WARP_GROUP
            (self._multiply_together if together else self._multiply)(nest, rest, registers)
            return
        if all(loop.kind in LANES_OR_COPIES for loop in rest):
            self._update(nest, rest, registers)
            return
        loop = nest.loops[depth]
        if loop.kind is Kind.THREAD:
            self._accumulate(nest, depth + 1, registers)
            return
        if loop.kind in LANES_OR_COPIES:
            raise AssertionError(
                f"{nest.name}: the serial loops must be outside of lanes and copies"
            )
        self.serial(loop, lambda: self._accumulate(nest, depth + 1, registers))

    def _update(self, nest: Nest, rest: Sequence[Loop], registers: _Registers) -> None:
        with self.values.along(self.values.lane_of(rest)):
            for c in nest.computes:
                of_result = [loop for loop in rest if loop.range in c.ranges]
                combined = [loop for loop in rest if loop.range not in c.ranges]
                if c.monoid is None:
                    for _ in self.values.each_copy(rest):
                        self.values.write_stage(c, self.values.vector(c.value))
                elif combined and (not of_result or any(o.kind is Kind.VECTOR for o in combined)):
                    for _ in self.values.each_copy(of_result):
                        self._update_tree(c, c.monoid, combined, registers)
                else:
                    for _ in self.values.each_copy(combined):
                        for _ in self.values.each_copy(of_result):
                            self._combine(c, c.monoid, registers[self.values.key(c)])

    def _update_tree(
        self, c: Compute, monoid: Monoid, combined: Sequence[Loop], registers: _Registers
    ) -> None:
        """Combine all copies, then all lanes, and the register last: short chains of dependent
        operations.
        """
        values = [self.values.vector(c.value) for _ in self.values.each_copy(combined)]
        # Some copies may be the same in all lanes, such as those beyond a tail.
        width = max(value.lanes for value in values)
        values = [self.out.widen(value, width) for value in values]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            odd = values[-1:] if len(values) % 2 else []
            values = [self.out.alu(monoid.op, a, b) for a, b in pairs] + odd
        total = values[0]
        lanes = next((loop.size for loop in combined if loop.kind is Kind.VECTOR), None)
        if lanes is not None:
            # A value that is the same in all lanes counts once for each.
            vector = total if total.lanes > 1 else self.out.widen(total, lanes)
            total = self.out.emit(UOp(UOps.HREDUCE, vector.dtype, 1, (vector,), monoid.op))
        self._add(monoid, registers[self.values.key(c)], total)

    def _combine(self, c: Compute, monoid: Monoid, register: UOp) -> None:
        product = c.value
        if product.op is ExprOp.WHERE:  # it guards a tail that is peeled off, perhaps
            product = self.values.current(product)
        lanes = register.lanes
        fused = _FUSED.get(product.op) if monoid.op is ExprOp.ADD else None
        if fused is None or (fused is ExprOp.MULACC and not dtypes.is_float(product.dtype)):
            self._add(monoid, register, self.out.widen(self.values.vector(product), lanes))
            return
        factors = [self.values.vector(s) for s in product.src[:2]]
        if all(u.op is UOps.CONST and u.arg == 0 for u in factors):
            return  # beyond a tail: a sum that began as 0 is never -0, so it stays what it is
        self._fresh.pop(register, None)
        old = self.out.get(register)
        a, b = (self.out.widen(u, lanes) for u in factors)
        new = self.out.emit(UOp(UOps.ALU, register.dtype, lanes, (a, b, old), fused))
        self.out.set(register, new)

    def _add(self, monoid: Monoid, register: UOp, value: UOp) -> None:
        """Combine a register with a value; the first value replaces the identity."""
        if self._fresh.pop(register, None) != self.out.innermost:
            value = self.out.alu(monoid.op, self.out.get(register), value)
        self.out.set(register, value)

    # -- after -------------------------------------------------------------------------------------

    def _finish(self, nest: Nest, hold: int, registers: _Registers, *, partial: bool) -> None:
        """Take the accumulators out of their registers after the loops.

        They become stages, in registers or in scratch memory. A partial result is combined with
        the value in scratch memory.
        """
        for c in nest.computes:
            if c.monoid is None:
                continue
            inner = [loop for loop in nest.loops[hold:] if loop.range in c.ranges]
            with self.values.along(self.values.lane_of(inner)):
                for _ in self.values.each_copy(inner):
                    value = self.out.get(registers[self.values.key(c)])
                    value = self._across(nest, c.monoid, value)
                    if c.carried_by is not None and c.carried_by not in nest.loop_ranges:
                        value = self._add_to_carried(c, c.monoid, value)
                    if partial:
                        before = self.out.widen(self.values.read_own(c), value.lanes)
                        value = self.out.alu(c.monoid.op, before, value)
                    self.values.write_stage(c, value)

    def _across(self, nest: Nest, monoid: Monoid, value: UOp) -> UOp:
        """The combination of several threads' values, in all of these threads."""
        for digit in self.values.threads.combined(nest):
            arg = (monoid.op, digit.size, digit.step)
            value = self.out.inside(UOp(UOps.ACROSS, value.dtype, value.lanes, (value,), arg))
        return value

    # -- values that a loop carries ----------------------------------------------------------------

    def begin_carried(self, nest: Nest, depth: int) -> None:
        """Make the registers of what a loop carries for the nests in it, before it is opened."""
        r = nest.loops[depth].range
        for n in self.values.kernel.nests:
            if n.at == (nest.name, depth + 1) and any(c.carried_by is r for c in n.computes):
                self._carried |= self._registers(n, 0)

    def _begin_first(self, nest: Nest, own: _Registers) -> list[Compute]:
        """Make the registers of the reduces that a nest's first loop carries, before it is opened.

        These are the nest's own accumulators, and those of nests that hang in the loop; the latter
        are returned.
        """
        first = nest.loop_ranges[:1]
        hanging = [n for n in self.values.kernel.nests if n.at == (nest.name, 1)]
        inside = [c for n in hanging for c in n.computes if c.carried_by in first]
        for n in hanging:
            if any(c in inside for c in n.computes):
                self._carried |= self._registers(n, 0)
        if any(c.carried_by in first for c in nest.computes):
            self._carried |= own
        return inside

    def _set_initial(self, nest: Nest) -> None:
        """Set a nest's own carried accumulators to their initial values of this iteration."""
        for c in nest.computes:
            if c.carried_by is None or c.carried_by not in nest.loop_ranges or c.initial is None:
                continue
            inner = [loop for loop in nest.loops if loop.range in c.ranges]
            with self.values.along(self.values.lane_of(inner)):
                for _ in self.values.each_copy(inner):
                    register = self._carried[self.values.key(c)]
                    self.out.set(register, self._initial(c, register))

    def _initial(self, c: Compute, register: UOp) -> UOp:
        """The initial value of a carried reduce in this iteration; its `carried` value can be read
        from now on.
        """
        before = self.out.get(register)
        self.values.write_stage(self.values.kernel.computes[c.carried], before)
        if c.initial is None:
            return before
        return self.out.widen(self.values.vector(c.initial), register.lanes)

    def _add_to_carried(self, c: Compute, monoid: Monoid, part: UOp) -> UOp:
        """A carried reduce after this iteration's part is added."""
        register = self._carried[self.values.key(c)]
        initial = self._initial(c, register)
        if c.scan_lanes is not None:
            part = self._prefixes(monoid, part)
            total = self.out.shuffle((part.lanes - 1,) * part.lanes, part)
            self.out.set(register, self.out.alu(monoid.op, initial, total))
            return self.out.alu(monoid.op, initial, part)
        value = self.out.alu(monoid.op, initial, self.out.widen(part, register.lanes))
        self.out.set(register, value)
        return value

    def _prefixes(self, monoid: Monoid, part: UOp) -> UOp:
        """Each lane combined with all lanes before it: log2(lanes) steps."""
        lanes = part.lanes
        step = 1
        while step < lanes:
            moved = self.out.shuffle(tuple((i - step) % lanes for i in range(lanes)), part)
            both = self.out.alu(monoid.op, moved, part)
            # The first `step` lanes have no lane `step` before them.
            part = self.out.shuffle(
                tuple(i if i < step else lanes + i for i in range(lanes)), part, both
            )
            step *= 2
        return part

    def _end_carried(self, c: Compute) -> None:
        """Read the final values of a carried reduce, after its loop."""
        inner = self.values.kernel.owner[c.name].loops
        of_result = [loop for loop in inner if loop.range in c.ranges]
        with self.values.along(self.values.lane_of(of_result)):
            for _ in self.values.each_copy(of_result):
                self.values.write_stage(c, self.out.get(self._carried[self.values.key(c)]))

    # -- products of matrices ----------------------------------------------------------------------

    def _multiply(self, nest: Nest, rest: Sequence[Loop], registers: _Registers) -> None:
        """Emit one product of matrices for each copy of a warp's tile; the two halves are copies
        too.
        """
        *copies, half, lane, _ = rest
        (c,) = nest.computes
        for _ in self.values.each_copy(copies):
            held = [registers[self.values.key(c)] for _ in self.values.each_copy([half])]
            before = self.fragments.joined([self.out.get(register) for register in held])
            parts = self.fragments.operands(nest)
            matrix = UOp(UOps.MMA, before.dtype, before.lanes, (*parts, before))
            after = self.out.inside(matrix)
            for i, register in enumerate(held):
                order = tuple(range(i * lane.size, (i + 1) * lane.size))
                self.out.set(register, self.out.shuffle(order, after))
                self._fresh.pop(register, None)

    def _multiply_together(self, nest: Nest, rest: Sequence[Loop], registers: _Registers) -> None:
        """Emit one product of matrices by four warps, of all columns of their tile at once."""
        *copies, half, lane, _ = rest
        (c,) = nest.computes
        terms = [loop for loop in copies if loop.range not in c.ranges]
        columns = [loop for loop in copies if loop.range in c.ranges]
        held = [registers[self.values.key(c)] for _ in self.values.each_copy([*columns, half])]
        for _ in self.values.each_copy(terms):
            before = self.fragments.joined([self.out.get(register) for register in held])
            operands, layouts = self.fragments.in_memory(nest, columns)
            product = UOp(UOps.WGMMA, before.dtype, before.lanes, (*operands, before), layouts)
            after = self.out.inside(product)
            for i, register in enumerate(held):
                order = tuple(range(i * lane.size, (i + 1) * lane.size))
                self.out.set(register, self.out.shuffle(order, after))
                self._fresh.pop(register, None)


def first_reduce(nest: Nest) -> int:
    """The depth of the first combined loop; if there is none, of the first loop after all that run.

    -1 if nothing is combined.
    """
    if all(c.monoid is None for c in nest.computes):
        return -1
    result_axes = nest.result_axes
    combined = (d for d, loop in enumerate(nest.loops) if loop.range not in result_axes)
    run = [d for d, loop in enumerate(nest.loops, 1) if loop.kind not in LANES_OR_COPIES]
    return next(combined, max(run, default=0))


def _hold_depth(nest: Nest) -> int:
    """The depth from which on no serial loop over a result axis follows."""
    depth = first = first_reduce(nest)
    result_axes = nest.result_axes
    for d, loop in enumerate(nest.loops[first:], first):
        together = (*LANES_OR_COPIES, Kind.THREAD, *BY_WARPS)
        if loop.range in result_axes and loop.kind not in together:
            depth = d + 1
    return depth
