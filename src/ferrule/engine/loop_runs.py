"""Runs of loops: the plan of a body, and the memory of each trip."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final
from weakref import WeakValueDictionary

import numpy as np

from ferrule.base.config import config
from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.device import Compiled, CompiledASTRunner, Device
from ferrule.device.loop import LoopStep, Operand, Stream
from ferrule.device.memory_planner import ALIGNMENT
from ferrule.device.runner import ASTRunner, BufferCopy, JITRunner, update_stats
from ferrule.device.weight_packing import Request, is_worth_packing, packed_forms
from ferrule.engine.loop_body import Body, LoopError, LoopForm
from ferrule.engine.realize import Runners, prepare, unrecorded
from ferrule.fusion import ClosedGraph, target_of, values_of
from ferrule.fusion.dynamic.lengths import uses_worth_kernels
from ferrule.fusion.plans.execution_plan import ExecutionPlan
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, Extent, Length, Variable, as_expr, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.shape.layout import memory_size

_MOST_PLANS: Final = 64
"""Lengths of values in a body for which its plan is kept. Not measured."""


@final
class Loop(JITRunner):
    """Runs a body for each trip. Its buffers: `Trips.size` bytes, the results, the starts and
    arrays, what is the same in each trip, and the number of trips if that is known when it runs. A
    fixed number of trips follows from those bytes, so that one loop serves all.

    `numbers` are those of the results that it computes, among all that there are: last carries,
    stacked rows, stacked carries, number of trips. None: it is to be `narrowed` before it runs.
    """

    is_pure = True
    n_sizes = 0
    """The number of sizes among `integers`, which are those of the body."""
    symbols: tuple[sint, ...] = ()
    """The integers of a body of any lengths, as expressions of these."""

    def __init__(
        self,
        body: Body,
        constants: Sequence[LazyBuffer],
        form: LoopForm,
        firsts: tuple[sint, ...],
        device: str,
        numbers: tuple[int, ...] | None = None,
    ) -> None:
        self.body = body
        self.constants = constants
        self.form = form
        self.trips, self.is_limited, self.backwards, self.condition, self.is_counted = form
        self.firsts = firsts
        self.device = device
        self.numbers = numbers
        self.n_results = 0 if numbers is not None else len(body.carries) + len(body.outs) + 1
        self.name = "loop"
        self._narrowed: dict[tuple[int, ...], Loop] = {}
        if numbers is None:
            return
        self.writes = frozenset(range(1 + len(numbers)))
        self._plans: dict[tuple[int, ...], _LoopPlan] = {}
        self._done: dict[tuple[int, ...], int] = {}
        """The trips that were made with these values of the body's lengths."""
        bound = values_of([*body.carries, *body.rows, *constants, *body.outs])
        self._lengths = tuple(
            [variable for variable in bound if isinstance(variable, Length | Extent)]
        )
        self._plan = self._plan_at(bound)
        self.vars = (*self._lengths, *self._plan.vars)
        self.may_raise = self._plan.may_raise
        self.op_estimate = self._plan.op_estimate
        self.mem_estimate = self._plan.mem_estimate

    def narrowed(self, numbers: tuple[int, ...]) -> Loop:
        """The loop that computes the results with these numbers alone."""
        found = self._narrowed.get(numbers)
        if found is None:
            made = Loop(self.body, self.constants, self.form, self.firsts, self.device, numbers)
            made.family, made.symbols = self.family, self.symbols
            found = self._narrowed.setdefault(numbers, made)
        return found

    def with_integers(self, integers: Sequence[sint]) -> Loop | None:
        """The loop whose body has other integers; None if its shapes may not fit then, or if what a
        run is given would not tell their values.
        """
        found = ClosedGraph(self.body.outs).generalised(integers, self.n_sizes)
        if found is None:
            return None
        twins = {node: twin for twin, node in found.originals.items()}
        carries, rows, outs, constants = [
            [twins.get(node, node) for node in nodes]
            for nodes in (self.body.carries, self.body.rows, self.body.outs, self.constants)
        ]
        known = values_of([*carries, *rows, *constants])
        if not all([unbind(integer)[1].keys() <= known.keys() for integer in integers]):
            return None
        made = Loop(Body(carries, rows, outs), constants, self.form, self.firsts, self.device)
        made.family, made.symbols = self.family, tuple([unbind(n)[0] for n in integers])
        return made

    def at(self, var_vals: Mapping[Any, int]) -> Loop:
        """The loop with these values of its body's lengths in each run."""
        if not self._lengths:
            return self
        found = copy.copy(self)
        found._plan, found._lengths = self._plan_at(var_vals), ()
        found.vars = found._plan.vars
        return found

    def _plan_at(self, var_vals: Mapping[Any, int]) -> _LoopPlan:
        """The plan for these values of the body's lengths."""
        values = tuple([var_vals[length] for length in self._lengths])
        found = self._plans.get(values)
        if found is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
                self._done.clear()
            found = _LoopPlan(self, dict(zip(self._lengths, values, strict=True)))
            self._plans[values] = found
        return found

    def _plan_for(self, var_vals: Mapping[Any, int], trips: int) -> _LoopPlan:
        """The plan for so many trips more: after enough of them it has kernels of its own."""
        found = self._plan_at(var_vals)
        values = tuple([var_vals[length] for length in self._lengths])
        done = self._done[values] = self._done.get(values, 0) + trips
        if self.symbols and done > found.enough:
            integers = tuple([as_expr(symbol).infer(var_vals) for symbol in self.symbols])
            own = loops_by_integers.get((self.family, integers))
            if own is not None:
                assert self.numbers is not None
                found = self._plans[values] = own.narrowed(self.numbers)._plan
        return found

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Run all trips."""
        most = self._most(rawbufs[0].size, var_vals)
        plan = self._plan_for(var_vals, most or 1) if self._lengths else self._plan
        return plan.run(rawbufs, most, var_vals, wait, jit)

    def parts(self, size: int, packed: bool) -> LoopParts | None:
        """The steps of the loop, for those that run it by other means; None if its plan depends on
        the lengths of tensors.

        `size` is that of the first buffer. With `packed` kernels read constant weights from packed
        copies where a run does.
        """
        if self._lengths:
            return None
        limit = size - 1 if self.is_limited else None
        return self._plan.parts(limit if self.trips is None else self.trips, packed)

    def costs(self, size: int, var_vals: Mapping[Any, int]) -> tuple[int, int]:
        """The operations and the bytes of a run; of one trip where their number has no limit."""
        most = self._most(size, var_vals)
        ops, mem = super().costs(size, var_vals)
        return (ops, mem) if most is None else (most * ops, most * mem)

    def _most(self, size: int, var_vals: Mapping[Any, int]) -> int | None:
        """The largest number of trips; None: any number."""
        if self.trips is not None:
            return self.trips.infer(var_vals)
        return size - 1 if self.is_limited else None


loops_by_integers: Final[WeakValueDictionary[tuple[Hashable, tuple[int, ...]], Loop]] = (
    WeakValueDictionary()
)
"""The loops of families, by these and their integers."""


@final
@dataclass(frozen=True)
class LoopParts:
    """A loop as steps. Behind the buffers that it is given, it has scratch memory, and tables that
    it reads. Buffers are given by their numbers."""

    most: sint | None
    """The number of trips, or the largest number; None: any number."""
    before: Sequence[LoopStep]
    """On the memory of the first trip, even if there is none."""
    body: Sequence[LoopStep]
    after: Sequence[LoopStep]
    """On the memory of the trip that would be next after the last one."""
    count: int | None
    """The buffer with the number of trips, int32."""
    start: int | None
    """The buffer with a bool: without it there are no trips."""
    condition: Operand | None
    """A bool; after a trip in which it is false, there are no more."""
    counted: int | None
    """The buffer that the number of trips is written to, int32."""
    scratch_bytes: int
    tables: Sequence[Buffer]


@final
class _LoopPlan:
    """The steps of a trip, and the memory that they run on."""

    _packed_steps: Sequence[LoopStep] = ()
    """The steps with packed weights, if there are any."""

    def __init__(self, loop: Loop, lengths: Mapping[Any, int]) -> None:
        assert loop.numbers is not None
        self._lengths = lengths
        self._loop = loop
        self._scratch_bytes = 0
        body, numbers = loop.body, loop.numbers
        place = {number: 1 + i for i, number in enumerate(numbers)}
        n, n_outs = len(body.carries), len(body.outs)
        first = 1 + len(numbers)
        count = first + n + len(body.rows) + len(loop.constants)
        self._count = count if loop.is_counted else None
        """The number of the buffer with the number of trips."""
        self._counted = place.get(n_outs + n)
        """The number of the result with the number of trips."""
        self._scratch = count + loop.is_counted
        """The number of the loop's own memory, after all that it is given."""
        self._tables: list[Buffer] = []
        needed = self._needed_carries(place)
        self._at = {
            leaf: Stream(first + n + len(body.rows) + i) for i, leaf in enumerate(loop.constants)
        }
        for j, leaf in enumerate(body.rows):
            stride = self._nbytes(leaf)
            start = loop.firsts[j] * stride
            assert isinstance(start, int)
            self._at[leaf] = Stream(first + n + j, start, stride, 0, 0, loop.backwards)
        self._before: list[LoopStep] = []
        """Copies of what carried values start with."""
        self._after: list[LoopStep] = []
        """Copies of carried values to results."""
        targets = self._carry(needed, place, first)
        for k in range(n, n_outs):
            if k in place:
                out = body.outs[k]
                targets[out] = Stream(place[k], 0, self._nbytes(out), 0, 0, loop.backwards)
        self._plan_steps(list(targets), targets)
        self._condition: Operand | None = None
        if loop.condition is not None:
            self._condition = Operand(targets[body.outs[loop.condition]], 0, 1, dtypes.bool)
            self._start = first + loop.condition
        self.vars = tuple(
            dict.fromkeys(
                [*_variables(loop.trips), *[v for s in self.steps for v in s.runner.vars]]
            )
        )
        kernels = [s.runner for s in self.steps if isinstance(s.runner, ASTRunner)]
        costs = [one.costs(0, lengths) for one in kernels if one.is_general]
        self.enough = uses_worth_kernels(costs, target_of(loop.device))
        """The trips after which kernels pay that are for these lengths, not for any."""
        self.may_raise = any([step.runner.may_raise for step in self.steps])
        self.op_estimate: sint = sum([step.runner.op_estimate for step in self.steps])
        self.mem_estimate: sint = sum([step.runner.mem_estimate for step in self.steps])
        self._packing: list[LoopStep] = []
        """The copies of constant weights in the layout that kernels read."""
        self._runs = 0
        self._native = self._make_native(self.steps)

    def _size(self, size: sint) -> int:
        return size if isinstance(size, int) else size.infer(self._lengths)

    def _nbytes(self, node: LazyBuffer) -> int:
        return self._size(memory_size(node.shape)) * node.dtype.itemsize

    def _make_native(self, steps: Sequence[LoopStep]) -> Any:
        """What runs the steps by one call; None if the device has nothing that does."""
        device = Device[self._loop.device]
        if not isinstance(device, Compiled) or device.loop is None:
            return None
        return device.loop(steps, self._condition)

    def _pack_weights(self) -> None:
        """Let the kernels read weights that are the same in each trip from packed copies.

        These are made once a run. Their kernels are compiled for the second one.
        """
        device = Device[self._loop.device]
        constant = [_constant_places(step, self._scratch) for step in self.steps]
        chosen = {
            number: Request(step.runner, places, tuple([o.nbytes for o in step.operands]))
            for number, (step, places) in enumerate(zip(self.steps, constant, strict=True))
            if isinstance(step.runner, CompiledASTRunner) and is_worth_packing(step.runner, places)
        }
        if not chosen or not isinstance(device, Compiled):
            return
        forms = zip(chosen, packed_forms(device, list(chosen.values())), strict=True)
        steps = [*self.steps]
        packed: dict[tuple[Operand, str], Operand] = {}
        for number, form in forms:
            if form is None:
                continue
            operands = list(self.steps[number].operands)
            for made in form.copies:
                weight = operands[made.source]
                key = weight, made.runner.name
                if key not in packed:
                    start = self._take(made.size * made.dtype.itemsize)
                    packed[key] = Operand(Stream(self._scratch, start), 0, made.size, made.dtype)
                    self._packing.append(LoopStep(made.runner, [packed[key], weight]))
                operands.append(packed[key])
            steps[number] = LoopStep(form.runner, operands)
        if self._packing:
            self._packed_steps = steps
            self._native = self._make_native(steps)

    def _needed_carries(self, place: Mapping[int, int]) -> list[int]:
        """The carried values that results depend on."""
        body = self._loop.body
        n, n_outs = len(body.carries), len(body.outs)
        needed = {k for k in range(n) if k in place or n_outs + k in place}
        if self._loop.condition is not None:
            needed.add(self._loop.condition)
        waiting = [body.outs[k] for k in range(n_outs) if k in needed or k in place]
        seen: set[LazyBuffer] = set()
        number = {leaf: k for k, leaf in enumerate(body.carries)}
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            waiting += node.srcs
            if node in number and number[node] not in needed:
                needed.add(number[node])
                waiting.append(body.outs[number[node]])
        return sorted(needed)

    def _carry(
        self, needed: Sequence[int], place: Mapping[int, int], first: int
    ) -> dict[LazyBuffer, Stream]:
        """Gives carried values their memory: that of each after a trip, by its node."""
        loop, body = self._loop, self._loop.body
        targets: dict[LazyBuffer, Stream] = {}
        for k in needed:
            leaf = body.carries[k]
            inside = self._carried(place.get(len(body.outs) + k), self._nbytes(leaf))
            self._at[leaf], targets[body.outs[k]] = inside
            whole = Operand(inside[0], 0, self._size(memory_size(leaf.shape)), leaf.dtype)
            start = replace(whole, stream=Stream(first + k))
            self._before.append(_copying(loop.device, whole, start))
            if k in place:
                result = replace(whole, stream=Stream(place[k]))
                self._after.append(_copying(loop.device, result, whole))
        return targets

    def _carried(self, kept: int | None, nbytes: int) -> tuple[Stream, Stream]:
        """The memory of a carried value: before a trip, and after it."""
        if kept is None:
            start = self._take(nbytes)
            size = self._take(nbytes) - start
            return Stream(self._scratch, start, 0, size, 0), Stream(
                self._scratch, start, 0, size, 1
            )
        before = Stream(kept, 0, nbytes), Stream(kept, nbytes, nbytes)
        after = (
            Stream(kept, nbytes, nbytes, 0, 0, True),
            Stream(kept, 0, nbytes, 0, 0, True),
        )
        return after if self._loop.backwards else before

    def _take(self, nbytes: int) -> int:
        """The first byte of so many in the loop's own memory."""
        start = self._scratch_bytes
        # No two pieces begin at the same place of a page: a processor takes a load for one of what
        # was stored 4096 bytes before, and waits. A product of 16 x 128 x 512 took 40 us for 26
        # (Zen 4, 2026-11).
        self._scratch_bytes += round_up(nbytes, ALIGNMENT) + ALIGNMENT
        return start

    def _plan_steps(self, outs: list[LazyBuffer], targets: Mapping[LazyBuffer, Stream]) -> None:
        with unrecorded():
            plan, nodes = ClosedGraph(outs).plan()
            runners = prepare(plan.kernels)
        others = {place.device for place in plan.places} - {self._loop.device}
        if others:
            raise LoopError(
                f"[{self._loop.name}] the function computes on {', '.join(sorted(others))} and on "
                f"{self._loop.device}; copy what it needs to one device, outside of it"
            )
        arenas = [self._take(nbytes) for _, nbytes in plan.arenas]
        given = {
            number: targets[nodes[node]] for node, number in plan.results if nodes[node] in targets
        }
        found: list[Operand] = []
        moved: list[tuple[Operand, Stream]] = []
        for number, place in enumerate(plan.places):
            size = self._size(place.size)
            start = place.offset * place.dtype.itemsize
            if place.node is not None:
                stream = self._at.get(nodes[place.node])
                if stream is None:  # a table of a template
                    stream = self._table(nodes[place.node].realized)
                operand = Operand(stream, start, size, place.dtype)
            elif place.arena is not None:
                whole = Stream(self._scratch, arenas[place.arena])
                operand = Operand(whole, start, size, place.dtype)
            elif place.whole is not None:
                memory = found[place.whole]
                operand = Operand(memory.stream, memory.offset + start, size, place.dtype)
            elif number in given:
                operand = Operand(given[number], 0, size, place.dtype)
            else:
                nbytes = size * place.dtype.itemsize
                operand = Operand(Stream(self._scratch, self._take(nbytes)), 0, size, place.dtype)
            found.append(operand)
            if number in given and operand.stream is not given[number]:
                moved.append((operand, given[number]))
        self.steps = [
            LoopStep(self._runner(plan, number, runners), [found[p] for p in step.places])
            for number, step in enumerate(plan.steps)
        ]
        for operand, stream in moved:
            target = Operand(stream, 0, operand.size, operand.dtype)
            self.steps.append(_copying(self._loop.device, target, operand))

    def _runner(self, plan: ExecutionPlan, number: int, runners: Runners) -> JITRunner:
        step = plan.steps[number]
        if isinstance(step.ast.op, LoadOps):
            runner: JITRunner = step.ast.arg
        else:
            runner = step.sized(runners[plan.places[step.places[0]].device][step.ast])
        return runner.at(self._lengths) if self._lengths else runner

    def _table(self, memory: Buffer | None) -> Stream:
        assert memory is not None, "a leaf lost its memory"
        self._tables.append(memory)
        return Stream(self._scratch + len(self._tables))

    def run(
        self,
        rawbufs: Sequence[Buffer],
        most: int | None,
        var_vals: dict[Variable, int],
        wait: bool,
        jit: bool,
    ) -> float | None:
        """Run all trips."""
        loop = self._loop
        started = time.perf_counter()
        if self._count is not None:
            count = int(rawbufs[self._count].borrowed()[0])
            most = count if most is None else min(count, most)
        if self._condition is not None and not rawbufs[self._start].borrowed()[0]:
            most = 0
        self._runs += 1
        if self._runs == 2 and self._native is not None:
            self._pack_weights()
        # A row's place does not depend on how many trips there are, but in a loop backwards.
        trips = most or 0
        scratch = Buffer(loop.device, self._scratch_bytes, dtypes.uint8)
        buffers = [*rawbufs, scratch, *self._tables]
        for step in (*self._before, *(self._packing if most != 0 else ())):
            _run_step(step, buffers, 0, trips, var_vals)
        done = most
        if most != 0:
            if self._native is not None:
                done = self._native.run(buffers, most, var_vals)
            else:
                done = self._run_steps(buffers, most, var_vals, jit)
        if self._condition is None:
            done = most
        assert done is not None, "a loop without an end"
        if self._counted is not None:
            rawbufs[self._counted].fill(np.array([done]))
        for step in self._after:
            _run_step(step, buffers, done, trips, var_vals)
        if self._native is None:
            return None
        seconds = time.perf_counter() - started
        update_stats(
            loop.name,
            done * self.op_estimate,
            done * self.mem_estimate,
            {**var_vals},
            seconds if wait or config().DEBUG >= 2 else None,
            len(rawbufs),
            jit=jit,
            num_kernels=done * len(self.steps),
            device=loop.device,
        )
        return seconds

    def parts(self, most: sint | None, packed: bool) -> LoopParts:
        """See `Loop.parts`."""
        is_packed = packed and bool(self._packed_steps)
        return LoopParts(
            most,
            [*self._before, *(self._packing if is_packed else ())],
            self._packed_steps if is_packed else self.steps,
            self._after,
            self._count,
            None if self._condition is None else self._start,
            self._condition,
            self._counted,
            self._scratch_bytes,
            self._tables,
        )

    def _run_steps(
        self, buffers: Sequence[Buffer], most: int | None, var_vals: dict[Variable, int], jit: bool
    ) -> int:
        """Run up to so many trips one by one; returns how many it were."""
        trips = most or 0
        for trip in itertools.count():
            if trip == most:
                return trip
            for step in self.steps:
                _run_step(step, buffers, trip, trips, var_vals, jit)
            condition = self._condition
            if condition is not None:
                place = condition.stream.at(trip, trips)
                if not _part(buffers, condition, place).borrowed()[0]:
                    return trip + 1
        raise AssertionError("counting ends")


def _constant_places(step: LoopStep, scratch: int) -> frozenset[int]:
    """The operands of a step that are the same in each trip, by position."""
    streams = enumerate([operand.stream for operand in step.operands])
    return frozenset(
        [place for place, s in streams if s.buffer < scratch and not (s.stride or s.other)]
    )


def _variables(size: sint | None) -> list[Variable]:
    if not isinstance(size, Expr):
        return []
    return sorted([v for v in size.vars() if isinstance(v, Variable)], key=lambda v: v.name)


def _copying(device: str, target: Operand, source: Operand) -> LoopStep:
    return LoopStep(BufferCopy(device, source.nbytes, device), [target, source])


def _part(buffers: Sequence[Buffer], operand: Operand, start: int) -> Buffer:
    """The memory of an operand in a trip, whose stream is at `start`."""
    place = (start + operand.offset) // operand.dtype.itemsize
    return buffers[operand.stream.buffer].view(place, operand.size, operand.dtype)


def _run_step(
    step: LoopStep,
    buffers: Sequence[Buffer],
    trip: int,
    trips: int,
    var_vals: dict[Variable, int],
    jit: bool = False,
) -> None:
    """Run a step on the memory of a trip of so many."""
    used = [_part(buffers, o, o.stream.at(trip, trips)) for o in step.operands]
    step.runner(used, var_vals, jit=jit)
