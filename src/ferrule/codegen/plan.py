"""A schedule in the making: a kernel, and the opts that were applied to it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from math import log2, prod
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from ferrule.codegen.analysis.loop_bounds import loop_end, loop_start
from ferrule.codegen.analysis.window import distance
from ferrule.codegen.estimate import ERROR, cycles, least_cycles
from ferrule.codegen.kernel import Kernel, Kind, Loop, Nest
from ferrule.codegen.opt import PRIMITIVES, Opt
from ferrule.codegen.policy import MIN_PARALLEL_WORK
from ferrule.codegen.primitives.editing import (
    ScheduleError,
    depth_of,
    descendants,
    is_ordered,
    nest_of,
)
from ferrule.codegen.primitives.loops import can_shift
from ferrule.ir.expr import (
    BOOL,
    COSTLY,
    INDEX,
    Expr,
    ExprOp,
    is_adjacent,
    step_along,
    substitute,
    toposort,
)
from ferrule.ir.target import LINE_BYTES, PAGE_BYTES, Target

MAX_SCRATCH_BYTES = 3 << 20
"""Bytes of scratch memory of a thread, which is on its stack. Chosen as less than half of a stack,
which has 8 MiB as a rule."""
CHUNKS_PER_THREAD = 4
"""Chunks for each thread, where there are so many: a thread that is late is late by a part of its
work. Set in 2026-11; not measured by itself."""
MIN_LANES = 4
"""Lanes that are worth their shuffles and masks. Set in 2026-11; not measured by itself."""
PREFETCH_BYTES = 8192
"""Bytes of a piece of memory between the read and the prefetched place, about the latency of
memory (Zen 4, 2026-11-22); in panels 8 to 64 KiB were equally good."""
COSTLY_WORK = 12
"""Operations that a transcendental function counts as; a float32 exponential takes 18."""
_REACHED: Final = 1.15
"""The estimates of the best schedules, in those of `least_cycles`. Contractions in tiles reach 1.1
to 1.3 (2026-11-28)."""


_Estimate: TypeAlias = Callable[[Kernel, Target], float]


class Proposal(NamedTuple):
    """A schedule that may suit a kernel.

    It says that it does not by a `ScheduleError`, whose text is the reason, or by False.
    """

    form: str
    """Its name, as `DEBUG=3` shows it."""
    schedule: Callable[[Plan], bool]
    least: _Estimate = least_cycles
    """The cycles that the kernel then takes at least."""


class Candidate(NamedTuple):
    """A proposal, and how a choice between several has judged it."""

    path: tuple[str, ...]
    """What is chosen for and the form, those of the choices around this one first."""
    cycles: float | None
    """The estimate; None if the schedule was not made, or was the only one."""
    note: str
    """Why it was not made; empty if it was."""
    is_taken: bool = False

    def __str__(self) -> str:
        *around, form = self.path
        estimate = "" if self.cycles is None else f": {self.cycles:,.0f} cycles"
        taken = " (taken)" if self.is_taken else ""
        note = f": {self.note}" if self.note else ""
        return f"{'  ' * (len(around) // 2)}{around[-1]}: {form}{estimate}{note}{taken}"


class _Made(NamedTuple):
    """A candidate that was made."""

    cycles: float
    number: int
    proposal: Proposal
    kernel: Kernel
    opts: list[Opt]


class Plan:
    """Collects opts, and applies each at once so that the next choice sees its effect.

    Loops are identified by their ranges. Opts are plain data and use the names of ranges. Only the
    primitive that makes a loop composes its name; the methods here return the loops that they make.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        constants: Set[int] = frozenset(),
        wanted: Mapping[tuple[str, ...], str] = MappingProxyType({}),
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.constants = constants
        """The slots whose copies are made beforehand, by kernels of their own."""
        self.opts: list[Opt] = []
        self.candidates: list[Candidate] = []
        """The proposals of all choices so far, those inside of a form after it."""
        self._wanted = wanted
        """The forms to take if they suit, by the path of their choice."""
        self._path: tuple[str, ...] = ()

    def do(self, primitive: str, *args: Any) -> None:
        # A nest whose order counts keeps its schedule otherwise; one thread runs it.
        if primitive == "parallel" and is_ordered(self.kernel, args[0]):
            return
        choice = Opt(primitive, _literal(args))
        self.kernel = PRIMITIVES[primitive](self.kernel, *choice.args)
        self.opts.append(choice)

    @property
    def l1_ways(self) -> int:
        """The number of lines that one set of the first cache holds: each way of it is a page."""
        return self.target.l1_bytes // PAGE_BYTES

    @property
    def enough_chunks(self) -> int:
        """The number of chunks that gives all threads about the same work."""
        return CHUNKS_PER_THREAD * self.target.max_threads

    def parts(self, chunks: int, most: int) -> int:
        """The number of parts of each chunk with which all threads have about the same work."""
        if chunks % self.target.max_threads == 0 or chunks >= self.enough_chunks:
            return 1
        return max(1, min(most, -(-self.enough_chunks // chunks)))

    @property
    def sums_at_once(self) -> int:
        """The number of sums of which none waits for another one, a power of two."""
        speeds = self.target.speeds
        return 1 << round(log2(speeds.latency * speeds.arithmetic))

    def nest(self, name: str) -> Nest:
        return self.kernel.by_name[name]

    def loops(self, name: str) -> list[Expr]:
        """The ranges of a nest's loops, outermost first."""
        return self.nest(name).loop_ranges

    def others(self, name: str, ranges: Iterable[Expr | None]) -> list[Expr]:
        """The ranges of a nest's loops without some of them."""
        left_out = set(ranges)
        return [r for r in self.loops(name) if r not in left_out]

    def loop(self, name: str, r: Expr) -> Loop:
        """The loop of a nest over a range."""
        nest = nest_of(self.kernel, name)
        return nest.loops[depth_of(self.kernel, nest, r.name)]

    def copy_of(self, r: Expr, name: str) -> Expr:
        """The loop of a nest that is a copy of another nest's loop.

        Raises:
            ScheduleError: the nest has none.
        """
        for loop in self.nest(name).loops:
            if loop.lineage and loop.lineage[-1] is r:
                return loop.range
        raise ScheduleError(f"nest {name} of kernel {self.kernel.name} has no copy of loop {r}")

    def copies_of(self, ranges: Iterable[Expr], name: str) -> list[Expr]:
        """The loops of a nest that are copies of other nests' loops."""
        return [self.copy_of(r, name) for r in ranges]

    def split(self, name: str, r: Expr, factor: int, *tail: str) -> tuple[Expr, Expr]:
        """Split a loop; the outer and the inner loop."""
        depth = self._depth(name, r)
        self.do("split", name, r, factor, *tail)
        outer, inner = self.loops(name)[depth : depth + 2]
        return outer, inner

    def fuse(self, name: str, r: Expr) -> Expr:
        """Fuse a loop with the next one; the fused loop."""
        depth = self._depth(name, r)
        self.do("fuse", name, r)
        return self.loops(name)[depth]

    def _depth(self, name: str, r: Expr) -> int:
        return depth_of(self.kernel, nest_of(self.kernel, name), r.name)

    def group(self, name: str, ranges: Sequence[Expr]) -> str:
        """Add a nest of partial results to a reduce; the name of that nest."""
        before = self.kernel.by_name
        self.do("group", name, ranges)
        return self._new_nest(before)

    def skip(self, name: str, r: Expr) -> str:
        """Leave out the iterations in which a nest stores nothing; the name of the nest that finds
        them.
        """
        before = self.kernel.by_name
        self.do("skip", name, r)
        return self._new_nest(before)

    def _new_nest(self, before: Container[str]) -> str:
        (made,) = (nest.name for nest in self.kernel.nests if nest.name not in before)
        return made

    def attempt(self, schedule: Callable[..., bool], *where: str | Expr) -> bool:
        """Apply a schedule; False, with nothing changed, if it does not suit, is not legal, or
        takes too much scratch memory.
        """
        return self._refusal(partial(schedule, self, *where)) is None

    def _refusal(self, schedule: Callable[[], bool]) -> str | None:
        """Apply a schedule; the reason, with nothing changed, if that cannot be."""
        kernel, count = self.kernel, len(self.opts)
        try:
            reason = None if schedule() else "does not suit"
        except ScheduleError as error:
            reason = str(error)
        if reason is None and self._scratch_bytes() > MAX_SCRATCH_BYTES:
            reason = f"needs {self._scratch_bytes()} bytes of scratch memory"
        if reason is not None:
            self._restore(kernel, count)
        return reason

    def best(self, of: str, *proposals: Proposal) -> bool:
        """Apply the first proposal, or one whose kernel surely takes less time, as estimated.

        `of` names what is chosen. Proposals that do not suit are left out, as by `attempt`, and
        those that cannot take surely less are not made. False, with nothing changed, if none suits.
        """
        return self._choose(of, proposals, ERROR)

    def least(self, of: str, *proposals: Proposal) -> bool:
        """Apply the proposal of the least estimate: for proposals of one form, in whose estimates
        an error is much the same.
        """
        return self._choose(of, proposals, 1.0)

    def _choose(self, of: str, proposals: Sequence[Proposal], error: float) -> bool:
        around, constants, before = self._path, self.constants, self.candidates
        choice = (*around, of)
        wanted = self._wanted.get(choice)
        kernel, count = self.kernel, len(self.opts)
        launch = self.target.speeds.launch
        made: list[_Made] = []
        judged: list[Candidate] = []
        least_of: dict[_Estimate, float] = {}
        # What is made beforehand has no part in a choice, so that it changes no bits.
        self.constants = frozenset()
        for proposal in sorted(proposals, key=lambda p: p.form != wanted):
            self._path, self.candidates = (*choice, proposal.form), []
            taken, note = None, None
            if made:
                if made[0].proposal.form == wanted:
                    break
                least = least_of.get(proposal.least)
                if least is None:
                    least = least_of[proposal.least] = proposal.least(kernel, self.target)
                if made[0].cycles <= max(max(error, _REACHED) * least, launch):
                    note = f"takes {least:,.0f} cycles at least"
            if note is None:
                note = self._refusal(partial(proposal.schedule, self))
            if note is None:
                taken = _cycles(self.kernel, self.target) if len(proposals) > 1 else None
                made.append(
                    _Made(taken or 0.0, len(judged), proposal, self.kernel, self.opts[count:])
                )
                self._restore(kernel, count)
            judged += [Candidate(self._path, taken, note or ""), *self.candidates]
        if made:
            fastest = min(made, key=itemgetter(0))
            chosen = fastest if fastest.cycles * error < made[0].cycles else made[0]
            self.kernel = chosen.kernel
            self.opts += chosen.opts
            judged[chosen.number] = judged[chosen.number]._replace(is_taken=True)
            if constants:
                self.constants = constants
                self._path = judged[chosen.number].path
                self._restore(kernel, count)
                self._refusal(partial(chosen.proposal.schedule, self))
        self._path, self.constants = around, constants
        self.candidates = before + judged
        return bool(made)

    def _restore(self, kernel: Kernel, count: int) -> None:
        """Restore a kernel, and the number of opts that it had."""
        self.kernel = kernel
        del self.opts[count:]

    def _scratch_bytes(self) -> int:
        """The bytes of all stages of the kernel, those in registers included."""
        memory = self.kernel.memory
        stages = [
            c for c in self.kernel.computes.values() if c.store is None and c.overwrites is None
        ]
        return sum(c.value.dtype.itemsize * memory[c.name][1] for c in stages)

    def collapse(self) -> None:
        """Fuse adjacent loops wherever every index stays as simple as it was."""
        for name in [nest.name for nest in self.kernel.nests]:
            depth = len(self.nest(name).loops) - 2
            while depth >= 0:
                self.try_fuse(name, depth)
                depth -= 1

    def try_fuse(self, name: str, depth: int) -> bool:
        """Fuse two loops unless an index gets a new quotient or remainder; False if it would.

        A quotient or remainder of both loops together, which was there before, does not count.
        """
        a, b = (loop.range for loop in self.nest(name).loops[depth : depth + 2])
        if any(n.at == (name, depth + 1) for n in self.kernel.nests):
            return False
        before, count = self.kernel, len(self.opts)
        if any([_is_taken_apart(index, a, b) for index in _indices(before)]):
            return False
        of_both = [e for e in _divisions(before) if a in e.ranges and b in e.ranges]
        self.do("fuse", name, a)
        r = self.nest(name).loops[depth].range
        known = set(substitute(of_both, {a: r // b.size, b: r % b.size}))
        if any(r in e.ranges and e not in known for e in _divisions(self.kernel)):
            self._restore(before, count)
            return False
        return True

    def below(self, name: str) -> list[str]:
        """The nests inside a root, producers first."""
        family = descendants(self.kernel, name)
        return [n.name for n in self.kernel.nests if n.name in family and n.name != name]

    def work(self, name: str) -> int:
        """The number of scalar operations of a root nest and of all nests inside it, roughly.

        Loads, arithmetic on them, and stores count; indices and conditions do not.
        """
        return self.work_of([*self.below(name), name])

    def work_of(self, names: Iterable[str]) -> int:
        """The number of scalar operations of some nests, roughly."""
        total = 0
        for n in names:
            nest = self.nest(n)
            times = prod(loop.range.size.max for _, _, loop in self.kernel.path(nest))
            nodes = toposort(c.value for c in nest.computes)
            values = [e for e in nodes if e.src and e.dtype not in (INDEX, BOOL)]
            cost = sum(COSTLY_WORK if e.op in COSTLY else 1 for e in values)
            total += times * (cost + len(nest.computes))
        return total

    def lanes(self, nest: Nest, size: int) -> int:
        """The number of lanes for a loop of this size: a full vector, or for a short loop the next
        power of two.
        """
        widest = max(
            (
                e.dtype.itemsize
                for e in toposort(c.value for c in nest.computes)
                if e.op is ExprOp.LOAD
            ),
            default=4,
        )
        full = max(1, self.target.vector_bytes // max(widest, 4))
        lanes = 1
        while lanes < min(size, full):
            lanes *= 2
        return lanes

    def vectorize_inner(self, name: str, loop: Loop) -> None:
        lanes = self.lanes(self.nest(name), loop.range.size.max)
        if lanes == 1:
            return
        _, inner = self.split(name, loop.range, lanes, "peel")
        self.do("vectorize", name, inner)

    def vectors(self, name: str, r: Expr, lanes: int) -> tuple[Expr, ...]:
        """Turn a loop into copies of vectors; the loops that it becomes."""
        if r.size.arg <= lanes:
            self.do("vectorize", name, r)
            return (r,)
        outer, inner = self.split(name, r, lanes, "mask")
        self.do("unroll", name, outer)
        self.do("vectorize", name, inner)
        return outer, inner

    def transpose_squares(self, name: str, along: Expr, across: Expr, lanes: int) -> None:
        """Transpose squares of values: computed as vectors along one loop, staged or stored along
        another.
        """
        self.transpose(name, *self.squares(name, along, across, lanes))

    def squares(self, name: str, along: Expr, across: Expr, lanes: int) -> tuple[Expr, Expr]:
        """Split two loops into squares; the two loops of one square.

        If it is legal, the last square begins earlier instead of having masked rows.
        """
        inside = []
        for r in (across, along):
            tail = "shift" if can_shift(self.kernel, self.nest(name), r, lanes) else "peel"
            inside.append(self.split(name, r, lanes, tail)[1])
        return inside[1], inside[0]

    def stage(
        self,
        name: str,
        e: Expr,
        at: str,
        depth: int,
        order: Sequence[Expr | Sequence[Expr]],
        copy: str,
    ) -> list[Expr]:
        """Copy the elements that a nest loads by `e` to a new nest called `copy`; the loops of that
        nest.

        `e` may be one of several loads of a buffer. An entry of `order` may be several loops, such
        as the rows and taps of a window: they become one loop of the copy.
        """
        number = self.number(name, e)
        which = (number,) if number else ()
        axes = [r.name if isinstance(r, Expr) else "+".join(x.name for x in r) for r in order]
        self.do("stage", name, e.arg, at, depth, axes, copy, *which)
        return self.loops(copy)

    def number(self, name: str, e: Expr) -> int:
        """The number of a load among the different loads of its buffer in a nest."""
        found = self.nest(name).nodes
        return [x for x in found if x.op is ExprOp.LOAD and x.arg == e.arg].index(e)

    def limit(self, name: str, r: Expr) -> None:
        """Leave out the first and last iterations of a loop if they change nothing."""
        nest, depth = self.nest(name), self._depth(name, r)
        bounds = loop_start(self.kernel, nest, depth), loop_end(self.kernel, nest, depth)
        if bounds != (None, None):
            self.do("limit", name, r)

    def transpose(self, name: str, along: Expr, across: Expr) -> None:
        """Transpose like `transpose_squares`, for loops that have the size of a square already."""
        last = (along, across)
        self.do("reorder", name, (*self.others(name, last), *last))
        self.do("transpose", name, *last)

    def prefetch_results(self, name: str) -> None:
        """Prefetch the elements that a root stores, and those that it loads for each result, before
        the reduces in its loops are computed.

        Only if they exceed the second cache: a tile has a few lines in each of many rows, which no
        processor prefetches by itself, so that stores and loads would wait for memory.
        """
        nest = self.nest(name)
        count = prod(loop.range.size.max for loop in nest.loops)
        found = [e for e in nest.nodes if e.op is ExprOp.LOAD]
        for_each = {e.arg for e in found if bytes_loaded(e) == count * e.dtype.itemsize}
        slots = for_each | {c.store.slot for c in nest.computes if c.store is not None}
        size = sum(count * self.kernel.slots[slot].itemsize for slot in slots)
        if size > self.target.l2_bytes:
            for slot in sorted(slots):
                self.do("prefetch", name, slot, 0)

    def share(self, name: str, loops: int = 1) -> None:
        """Share out the first loops of a root nest as one, if there is work for two threads."""
        if loops == 0 or self.work(name) < MIN_PARALLEL_WORK:
            return
        self.do("parallel", name, self.fuse_first(name, loops))

    def fuse_first(self, name: str, loops: int) -> Expr:
        """Fuse the first loops of a nest; the fused loop."""
        return self.fuse_at(name, 0, loops)

    def fuse_at(self, name: str, depth: int, loops: int) -> Expr:
        """Fuse `loops` loops of a nest from `depth` on; the fused loop."""
        for _ in range(loops - 1):
            self.do("fuse", name, self.loops(name)[depth])
        return self.loops(name)[depth]


def _cycles(kernel: Kernel, target: Target) -> float:
    """The cycles of a kernel, on cores or on multiprocessors."""
    if target.block_threads == 1:
        return cycles(kernel, target)
    # Imported here: it imports NumPy, which processes that compile for the CPU do not need.
    from ferrule.codegen.estimate_blocks import block_cycles

    return block_cycles(kernel, target)


def _literal(arg: Any) -> Any:
    """An argument as an opt has it: names instead of ranges, tuples instead of lists."""
    if isinstance(arg, Expr):
        return arg.name
    return tuple(map(_literal, arg)) if isinstance(arg, (list, tuple)) else arg


def _indices(kernel: Kernel) -> Iterator[Expr]:
    """The indices of a kernel's loads and stores."""
    for nest in kernel.nests:
        yield from [e.src[0] for e in nest.nodes if e.op is ExprOp.LOAD]
        yield from [c.store.index for c in nest.computes if c.store is not None]


def _is_taken_apart(index: Expr, a: Expr, b: Expr) -> bool:
    """True if an index surely needs the quotient or the remainder of two loops that are fused:
    steps along the outer one are not those past the end of the inner one.
    """
    terms, _ = index.linear()
    outer, inner = terms.get(a, 0), terms.get(b, 0)
    if outer == inner == 0 or not (a.size.is_const and b.size.is_const):
        return False
    return min(a.size.max, b.size.max) > 1 and outer != inner * b.size.max


def _divisions(kernel: Kernel) -> list[Expr]:
    """The quotients and remainders in a kernel."""
    return [e for n in kernel.nests for e in n.nodes if e.op in (ExprOp.IDIV, ExprOp.MOD)]


def loads(value: Expr) -> list[Expr]:
    return [e for e in toposort([value]) if e.op is ExprOp.LOAD]


def outer_loads(value: Expr) -> list[Expr]:
    """The loads of a value that are not part of another load's index: a copy of that load includes
    them.
    """
    found = loads(value)
    inner = {e for x in found for e in loads(x) if e is not x}
    return [e for e in found if e not in inner]


def bytes_loaded(e: Expr) -> int:
    """The number of bytes that a load touches in all of its iterations, at most."""
    return prod(r.size.max for r in e.ranges) * e.dtype.itemsize


def load_step(e: Expr, r: Expr) -> int:
    """The distance of a load's elements along a range, in units of its own width; 1 for neighbours.

    Packed elements count as one if they are neighbours.
    """
    step = step_of(e.src[0], r)
    if not is_adjacent(e):
        return step
    packed = len(e.src) // 2
    return step // packed if step % packed == 0 else -1


def step_of(index: Expr, r: Expr) -> int:
    """The distance that an index moves along a range.

    0 where it does not depend on it, -1 where it is not linear in it.
    """
    step = step_along(index, r)
    return -1 if step is None else step


def gap_of_copies(nest: Nest, slot: int) -> int:
    """The distance in a buffer between copies of a nest's loads, if it is less than a cache line;
    else 1.
    """
    copies = [loop.range for loop in nest.loops if loop.kind is Kind.UNROLL]
    found = [e for e in nest.nodes if e.op is ExprOp.LOAD and e.arg == slot]
    steps = [distance(e.src[0], r) for e in found for r in copies]
    size = max((e.dtype.itemsize for e in found), default=1)
    return min((s for s in steps if 0 < s < LINE_BYTES // size), default=1)
