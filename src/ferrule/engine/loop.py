"""Loops: a body of lazy nodes that is planned once, and run once for each trip.

A `Body` is written over placeholders: the values that are carried from trip to trip, the rows of
arrays, and what is the same in each trip. `loop_results` makes the nodes of its results. They are
those of one run of a `Loop`, which computes as many of them as somebody needs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final
from weakref import WeakValueDictionary

import numpy as np

from ferrule.base.config import config
from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.device import Device
from ferrule.device.loop import LoopStep, Operand, Stream
from ferrule.device.memory_planner import ALIGNMENT
from ferrule.device.runner import BufferCopy, JITRunner, update_stats
from ferrule.engine.realize import prepare, unrecorded
from ferrule.fusion import ClosedGraph
from ferrule.fusion.graph import toposort
from ferrule.fusion.plans.execution_plan import ExecutionPlan
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Expr, Variable, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps
from ferrule.ir.op_table import PLAIN_MOVEMENTS
from ferrule.ir.shape.layout import storage_size


class LoopError(RuntimeError):
    """The body of a loop does something that cannot be done once for all trips."""


@final
class Placeholder(JITRunner):
    """Stands for a value of one trip while the body is traced. It cannot run."""

    name = "a value of one trip"

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Raise an error: the value was asked for."""
        raise LoopError(
            f"[{self.what}] the values of one trip are known only when the loop runs, after the "
            "function has returned. It cannot read them (item, tolist, numpy, bool, if, masks as "
            "indices), nor leave them in an attribute or a variable from outside; use "
            "x.where(...), and return what is needed"
        )


def placeholder(what: str, shape: Sequence[sint], dtype: DType, device: str) -> LazyBuffer:
    """A node that stands for a value of one trip of the loop `what`."""
    return LazyBuffer.custom(Placeholder(what), (), shape, dtype, device)


# *** bodies ***


@final
@dataclass(frozen=True, eq=False)
class Body:
    """One trip: nodes that are made of placeholders.

    `carries` and `rows` are placeholders, `outs` the next carries, then a row of each result.
    """

    carries: Sequence[LazyBuffer]
    rows: Sequence[LazyBuffer]
    outs: Sequence[LazyBuffer]

    @property
    def next(self) -> Sequence[LazyBuffer]:
        """The carried values of the next trip."""
        return self.outs[: len(self.carries)]


def rebuilt(roots: Sequence[LazyBuffer], twins: dict[LazyBuffer, LazyBuffer]) -> list[LazyBuffer]:
    """The nodes made of `twins` in the place of some others; adds those in between to `twins`."""
    for node in toposort_until(roots, twins):
        srcs = tuple([twins.get(source, source) for source in node.srcs])
        if srcs == node.srcs:
            continue
        if (
            node.op is LoadOps.ASSIGN
            and srcs[0].realized is not None
            and srcs[0] is not node.srcs[0]
        ):
            fresh = LazyBuffer.empty(srcs[0].shape, srcs[0].dtype, srcs[0].device)
            srcs = (fresh.assign(srcs[0]), *srcs[1:])
        twins[node] = node.like(srcs, node.arg)
    return [twins.get(root, root) for root in roots]


def toposort_until(
    roots: Iterable[LazyBuffer], known: Mapping[LazyBuffer, Any]
) -> list[LazyBuffer]:
    """The nodes that `roots` are made of, sources first, without `known` ones and those below."""
    order: list[LazyBuffer] = []
    seen: set[LazyBuffer] = set(known)
    stack: list[LazyBuffer | None] = [*roots]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:
            node = stack.pop()
            assert node is not None
            order.append(node)
        elif node not in seen:
            seen.add(node)
            if node.srcs:
                stack += (node, None)
                stack += node.srcs[::-1]
            else:
                order.append(node)
    return order


def made_of(roots: Sequence[LazyBuffer], leaves: Iterable[LazyBuffer]) -> set[LazyBuffer]:
    """The nodes below the roots that depend on one of `leaves`, these included."""
    found = set(leaves)
    for node in toposort_until(roots, dict.fromkeys(found)):
        if any([source in found for source in node.srcs]):
            found.add(node)
    return found


def _invariants(
    roots: Sequence[LazyBuffer], leaves: Sequence[LazyBuffer], since: int | None
) -> list[LazyBuffer]:
    """The values that are the same in each trip: they are computed once, before the loop.

    These are the largest that are no movement of others, so that nothing is copied for it, and not
    made `since`.
    """
    varying = made_of(roots, leaves)
    if since is not None:
        below = toposort_until(roots, dict.fromkeys(leaves))
        varying |= {node for node in below if node.serial >= since and node.realized is None}
    found: dict[LazyBuffer, None] = {}
    stack = list(roots)
    seen = set(leaves)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        value = node.base_const()
        if isinstance(value, Expr):  # a loop knows no values of variables but of its sizes
            found[node] = None
        if value is not None or (node.op is LoadOps.EMPTY and node.realized is None):
            continue
        if node in varying or (node.op in PLAIN_MOVEMENTS and node.realized is None):
            stack += node.srcs
        elif any([below.base_const() is None for below in toposort([node]) if not below.srcs]):
            found[node] = None
    return list(found)


@final
@dataclass(frozen=True)
class Trips:
    """How often a loop runs its body, and in which direction."""

    most: sint | None
    """The number of trips, or the largest number; None: any number."""
    backwards: bool = False
    """True if the first trip has the last row."""
    condition: int | None = None
    """The number of a carried value that is true while the loop is to go on."""
    count: LazyBuffer | None = None
    """A number of trips that is known when the loop runs."""
    since: int | None = None
    """Nodes with this serial number or a later one are not computed before the loop, as they may
    not be needed at all."""

    @property
    def rows(self) -> sint:
        """The number of rows of results."""
        return 1 if self.most is None else self.most

    def form(self) -> LoopForm:
        """All that equal loops have in common."""
        most = unbind(self.most)[0] if isinstance(self.most, Expr) else self.most
        return most, self.backwards, self.condition, self.count is not None


_MEMORY: Final = object()
"""The handle of the memory of placeholders in plans, which is never touched."""


def _in_plan(node: LazyBuffer) -> LazyBuffer:
    """A leaf like a node, for plans."""
    buffer = Buffer(node.device, storage_size(node.shape), node.dtype, _MEMORY)
    return LazyBuffer.in_buffer(buffer, node.shape)


@final
@dataclass(frozen=True, eq=False)
class Results:
    """The nodes of a loop's results."""

    last: list[LazyBuffer]
    """The carried values after the last trip."""
    stacked: list[LazyBuffer]
    """The rows of all trips."""
    kept: list[LazyBuffer]
    """The carried values before each trip."""
    count: LazyBuffer
    """The number of trips."""


def loop_results(
    body: Body,
    starts: Sequence[LazyBuffer],
    arrays: Sequence[LazyBuffer],
    trips: Trips,
    device: str,
) -> Results:
    """The results of a loop. `starts` are the first carries, `arrays` have a row for each trip."""
    n = len(body.carries)
    constants = _invariants(body.outs, [*body.carries, *body.rows], trips.since)
    twins = {node: _in_plan(node) for node in (*body.carries, *body.rows, *constants)}
    leaves = list(twins.values())
    outs = _distinct(rebuilt(body.outs, twins), twins)
    sources, firsts = zip(*map(_rows_of, arrays), strict=True) if arrays else ((), ())
    inner = Body(leaves[:n], leaves[n : n + len(arrays)], outs)
    runner = _loop(inner, leaves[n + len(arrays) :], trips.form(), tuple(firsts), device)
    rows, n_outs = trips.rows, len(outs)
    carried = [(node.shape, node.dtype) for node in body.carries]
    stacked = [((rows, *node.shape), node.dtype) for node in body.outs[n:]]
    kept = [((rows + 1, *shape), dtype) for shape, dtype in carried]
    counted = [] if trips.count is None else [trips.count]
    nodes = LazyBuffer.several(
        runner,
        [*starts, *sources, *constants, *counted],
        [*carried, *stacked, *kept, ((1,), dtypes.int32)],
        device,
        1 if isinstance(rows, int) else rows,
    )
    first = 1 if trips.backwards else 0
    kept_rows = [
        node.shrink([(first, rows + first), *[(0, size) for size in node.shape[1:]]])
        for node in nodes[n_outs : n_outs + n]
    ]
    return Results(nodes[:n], nodes[n:n_outs], kept_rows, nodes[-1])


def _distinct(
    outs: Sequence[LazyBuffer], twins: Mapping[LazyBuffer, LazyBuffer]
) -> list[LazyBuffer]:
    """The nodes, each with memory of its own."""
    seen: set[LazyBuffer] = set()
    found = []
    for out in outs:
        is_computed = out.srcs and out not in seen
        seen.add(out)
        found.append(out if is_computed else out.like((out,), None, op=LoadOps.CONTIGUOUS))
    return found


def _rows_of(array: LazyBuffer) -> tuple[LazyBuffer, sint]:
    """The memory that an array's rows are in, and the number of the first: a part is not copied."""
    if array.op is MovementOps.SHRINK and array.realized is None:
        (memory,) = array.srcs
        (start, _), *rest = array.arg
        whole = rest == [(0, size) for size in memory.shape[1:]]
        if whole and memory.owns_memory and isinstance(start, int):
            return memory, start
    return array, 0


# *** runs ***

LoopForm: TypeAlias = tuple[sint | None, bool, int | None, bool]
"""See `Trips.form`."""

_loops: WeakValueDictionary[tuple[Hashable, ...], Loop] = WeakValueDictionary()


def _loop(
    body: Body,
    constants: Sequence[LazyBuffer],
    form: LoopForm,
    firsts: tuple[sint, ...],
    device: str,
) -> Loop:
    """One object for equal loops, so that equal graphs have equal keys."""
    with unrecorded():
        graph = ClosedGraph(body.outs)
    numbers = graph.numbers
    leaves = [*body.carries, *body.rows, *constants]
    named = tuple([numbers.get(leaf, -1) for leaf in leaves])
    outs = tuple([numbers[out] for out in body.outs])
    unread = tuple([(leaf.shape, leaf.dtype) for leaf in leaves if leaf not in numbers])
    shape = len(body.carries), len(body.rows)
    key = (graph.key, named, outs, unread, shape, form, firsts, device)
    found = None if graph.key is None else _loops.get(key)
    if found is None:
        found = Loop(body, constants, form, firsts, device)
        if graph.key is not None:
            found = _loops.setdefault(key, found)
    return found


@final
class Loop(JITRunner):
    """Runs a body for each trip. Its buffers: one byte, the results, the starts and arrays, what is
    the same in each trip, and the number of trips if that is known when it runs.

    `numbers` are those of the results that it computes, among all that there are: last carries,
    stacked rows, stacked carries, number of trips. None: it is to be `narrowed` before it runs.
    """

    is_pure = True
    is_batch = True

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
        self.trips, self.backwards, self.condition, self.is_counted = form
        self.firsts = firsts
        self.device = device
        self.numbers = numbers
        self.n_results = 0 if numbers is not None else len(body.carries) + len(body.outs) + 1
        self.name = "loop" if self.trips is None else f"loop of {self.trips}"
        self._narrowed: dict[tuple[int, ...], Loop] = {}
        if numbers is None:
            return
        self.writes = frozenset(range(1 + len(numbers)))
        self._plan = _LoopPlan(self)
        self.vars = self._plan.vars
        self.may_raise = self._plan.may_raise
        most = 1 if self.trips is None else self.trips
        self.op_estimate = most * self._plan.op_estimate
        self.mem_estimate = most * self._plan.mem_estimate

    def narrowed(self, numbers: tuple[int, ...]) -> Loop:
        """The loop that computes the results with these numbers alone."""
        found = self._narrowed.get(numbers)
        if found is None:
            made = Loop(self.body, self.constants, self.form, self.firsts, self.device, numbers)
            found = self._narrowed.setdefault(numbers, made)
        return found

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Run all trips."""
        trips = self.trips.infer(var_vals) if isinstance(self.trips, Expr) else self.trips
        return self._plan.run(rawbufs, trips, var_vals, wait, jit)


@final
class _LoopPlan:
    """The steps of a trip, and the memory that they run on."""

    def __init__(self, loop: Loop) -> None:
        assert loop.numbers is not None
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
            stride = _nbytes(leaf)
            start = loop.firsts[j] * stride
            assert isinstance(start, int)
            self._at[leaf] = Stream(first + n + j, start, stride, 0, 0, loop.backwards)
        targets: dict[LazyBuffer, Stream] = {}
        self._copies: list[tuple[Operand, Stream, int, int | None]] = []
        """For each carried value: its memory, the buffers that it starts in and ends in."""
        for k in needed:
            leaf = body.carries[k]
            inside = self._carried(place.get(n_outs + k), _nbytes(leaf))
            self._at[leaf], targets[body.outs[k]] = inside
            whole = Operand(inside[0], 0, storage_size(leaf.shape), leaf.dtype)
            self._copies.append((whole, inside[0], first + k, place.get(k)))
        for k in range(n, n_outs):
            if k in place:
                out = body.outs[k]
                targets[out] = Stream(place[k], 0, _nbytes(out), 0, 0, loop.backwards)
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
        self.may_raise = any([step.runner.may_raise for step in self.steps])
        self.op_estimate: sint = sum([step.runner.op_estimate for step in self.steps])
        self.mem_estimate: sint = sum([step.runner.mem_estimate for step in self.steps])
        maker = getattr(Device[loop.device], "loop", None)
        self._native = None if maker is None else maker(self.steps, self._condition)

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

    def _carried(self, kept: int | None, nbytes: int) -> tuple[Stream, Stream]:
        """The memory of a carried value: before a trip, and after it."""
        if kept is None:
            size = round_up(nbytes, ALIGNMENT)
            start = self._take(2 * size)
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
        self._scratch_bytes += round_up(nbytes, ALIGNMENT)
        return start

    def _plan_steps(self, outs: list[LazyBuffer], targets: Mapping[LazyBuffer, Stream]) -> None:
        with unrecorded():
            plan, nodes = ClosedGraph(outs).plan()
            runners = prepare(plan.kernels)
        others = {place.device for place in plan.places} - {self._loop.device}
        if others:
            raise LoopError(
                f"[scan] the function computes on {', '.join(sorted(others))} and on "
                f"{self._loop.device}; copy what it needs to one device, outside of it"
            )
        arenas = [self._take(nbytes) for _, nbytes in plan.arenas]
        given = {
            number: targets[nodes[node]] for node, number in plan.results if nodes[node] in targets
        }
        found: list[Operand] = []
        moved: list[tuple[Operand, Stream]] = []
        for number, place in enumerate(plan.places):
            size = place.size if isinstance(place.size, int) else place.size.max
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
            LoopStep(_step_runner(plan, number, runners), [found[p] for p in step.places])
            for number, step in enumerate(plan.steps)
        ]
        for operand, stream in moved:
            target = Operand(stream, 0, operand.size, operand.dtype)
            copy = _copier(self._loop.device, operand)
            self.steps.append(LoopStep(copy, [target, operand]))

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
        # A row's place does not depend on how many trips there are, but in a loop backwards.
        trips = most or 0
        scratch = Buffer(loop.device, self._scratch_bytes, dtypes.uint8)
        buffers = [*rawbufs, scratch, *self._tables]
        for whole, stream, source, _ in self._copies:
            start = _part(buffers, whole, stream.at(0, trips))
            _copy_into(start, rawbufs[source])
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
        for whole, stream, _, result in self._copies:
            if result is not None:
                _copy_into(rawbufs[result], _part(buffers, whole, stream.at(done, trips)))
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

    def _run_steps(
        self, buffers: Sequence[Buffer], most: int | None, var_vals: dict[Variable, int], jit: bool
    ) -> int:
        """Run up to so many trips one by one; returns how many it were."""
        trips = most or 0
        for trip in itertools.count():
            if trip == most:
                return trip
            for step in self.steps:
                used = [_part(buffers, o, o.stream.at(trip, trips)) for o in step.operands]
                step.runner(used, var_vals, jit=jit)
            condition = self._condition
            if condition is not None:
                place = condition.stream.at(trip, trips)
                if not _part(buffers, condition, place).borrowed()[0]:
                    return trip + 1
        raise AssertionError("counting ends")


def _variables(size: sint | None) -> list[Variable]:
    if not isinstance(size, Expr):
        return []
    return sorted([v for v in size.vars() if isinstance(v, Variable)], key=lambda v: v.name)


def _nbytes(node: LazyBuffer) -> int:
    return storage_size(node.shape) * node.dtype.itemsize


def _step_runner(plan: ExecutionPlan, number: int, runners: Any) -> JITRunner:
    step = plan.steps[number]
    out = plan.places[step.places[0]]
    if not isinstance(step.ast.op, LoadOps):
        found: JITRunner = runners[out.device][step.ast]
        return found
    runner: JITRunner = step.ast.arg
    return runner


def _copier(device: str, operand: Operand) -> BufferCopy:
    return BufferCopy(device, operand.size * operand.dtype.itemsize, device)


def _part(buffers: Sequence[Buffer], operand: Operand, start: int) -> Buffer:
    """The memory of an operand in a trip, whose stream is at `start`."""
    place = (start + operand.offset) // operand.dtype.itemsize
    return buffers[operand.stream.buffer].view(place, operand.size, operand.dtype)


def _copy_into(dest: Buffer, source: Buffer) -> None:
    BufferCopy(dest.device, dest.nbytes, source.device)([dest, source], {})
