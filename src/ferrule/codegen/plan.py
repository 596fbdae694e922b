"""A schedule in the making: a kernel, and the opts that made it so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from ferrule.codegen.kernel import Kernel, Kind, Loop, Nest
from ferrule.codegen.limits import end_of, start_of
from ferrule.codegen.opt import PRIMITIVES, Opt
from ferrule.codegen.primitives.editing import ScheduleError, descendants, is_ordered
from ferrule.codegen.primitives.loops import can_shift
from ferrule.codegen.window import distance
from ferrule.expr import (
    BOOL,
    COSTLY,
    INDEX,
    Expr,
    ExprOp,
    const,
    step_along,
    substitute,
    toposort,
)
from ferrule.target import Target

SERIAL_WORK = 150_000  # operations below which sharing out costs more than it gains: about 2 us
PAGE_BYTES = 4096
LINE_BYTES = 64
MOST_SCRATCH = 3 << 20  # bytes of a thread's stack
COSTLY_WORK = 12  # operations in a transcendental


class Plan:
    """Collects opts, and applies each at once so that the next choice sees its effect."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.opts: list[Opt] = []

    def do(self, primitive: str, *args: Any) -> None:
        # What suits such a nest otherwise is as good for one thread.
        if primitive == "parallel" and is_ordered(self.kernel, args[0]):
            return
        choice = Opt(primitive, args)
        self.kernel = PRIMITIVES[primitive](self.kernel, *args)
        self.opts.append(choice)

    @property
    def l1_ways(self) -> int:
        """How many lines a set of the first cache has room for: each way of it is a page."""
        return self.target.l1_bytes // PAGE_BYTES

    def nest(self, name: str) -> Nest:
        return self.kernel.by_name[name]

    def attempt(self, schedule: Callable[..., bool], *names: str) -> bool:
        """Whether a schedule suits; if it does not, is not legal, or takes too much scratch memory,
        nothing is changed.
        """
        kernel, count = self.kernel, len(self.opts)
        try:
            if schedule(self, *names) and self._scratch_bytes() <= MOST_SCRATCH:
                return True
        except ScheduleError:  # its primitives know better than its first look
            pass
        self._go_back(kernel, count)
        return False

    def _go_back(self, kernel: Kernel, count: int) -> None:
        """To what the kernel was after so many opts."""
        self.kernel = kernel
        del self.opts[count:]

    def _scratch_bytes(self) -> int:
        """What is kept between the loops of the kernel, values in registers included."""
        memory = self.kernel.memory
        kept = [c for c in self.kernel.computes.values() if c.store is None and c.over is None]
        return sum(c.value.dtype.itemsize * memory[c.name][1] for c in kept)

    def collapse(self) -> None:
        """Fuse neighbouring loops wherever every index stays as simple as it was."""
        for name in [nest.name for nest in self.kernel.nests]:
            depth = len(self.nest(name).loops) - 2
            while depth >= 0:
                self.try_fuse(name, depth)
                depth -= 1

    def try_fuse(self, name: str, depth: int) -> bool:
        """Fuse two loops, unless that puts a quotient or a remainder into an index, but for one
        that was there of both.
        """
        a, b = (loop.range for loop in self.nest(name).loops[depth : depth + 2])
        if any(n.at == (name, depth + 1) for n in self.kernel.nests):
            return False
        before, count = self.kernel, len(self.opts)
        of_both = [e for e in _divisions(before) if a in e.ranges and b in e.ranges]
        self.do("fuse", name, a.name)
        r = self.nest(name).loops[depth].range
        known = set(substitute(of_both, {a: r // b.size, b: r % b.size}))
        if any(r in e.ranges and e not in known for e in _divisions(self.kernel)):
            self._go_back(before, count)
            return False
        return True

    def below(self, name: str) -> list[str]:
        """The nests inside a root, producers first."""
        family = descendants(self.kernel, name)
        return [n.name for n in self.kernel.nests if n.name in family and n.name != name]

    def work(self, name: str) -> int:
        """About how many scalar operations a root nest and all inside it take.

        Counted are loads, what is computed from them, and stores; not indices and conditions.
        """
        return self.work_of([*self.below(name), name])

    def work_of(self, names: Iterable[str]) -> int:
        """The same of some nests."""
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
        """How many lanes suit a loop of a size: a full vector, or the next power of two for a short
        one.
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
        r = loop.range
        lanes = self.lanes(self.nest(name), r.size.max)
        if lanes == 1:
            return
        self.do("split", name, r.name, lanes, "peel")
        self.do("vectorize", name, f"{r.name}.i")

    def vectors(self, name: str, loop: str, lanes: int) -> tuple[str, ...]:
        """A loop as copies of vectors; the names of the loops that it becomes."""
        size = next(o.range.size.arg for o in self.nest(name).loops if o.range.name == loop)
        if size <= lanes:
            self.do("vectorize", name, loop)
            return (loop,)
        self.do("split", name, loop, lanes, "mask")
        self.do("unroll", name, f"{loop}.o")
        self.do("vectorize", name, f"{loop}.i")
        return f"{loop}.o", f"{loop}.i"

    def turn(self, name: str, along: str, across: str, lanes: int) -> None:
        """Squares of values: computed as vectors along one loop, kept or stored along another."""
        self.squares(name, along, across, lanes)
        self.transpose(name, f"{along}.i", f"{across}.i")

    def squares(self, name: str, along: str, across: str, lanes: int) -> None:
        """Two loops in squares. Where that may be, the last ones begin earlier: none has rows under
        an empty mask then.
        """
        for r in (across, along):
            nest = self.nest(name)
            size = next(loop.range for loop in nest.loops if loop.range.name == r)
            tail = "shift" if can_shift(self.kernel, nest, size, lanes) else "peel"
            self.do("split", name, r, lanes, tail)

    def stage(
        self, name: str, e: Expr, at: str, depth: int, order: Sequence[str], copy: str
    ) -> None:
        """Copy what a nest loads by `e`, one of perhaps several loads of a buffer."""
        number = self.number(name, e)
        which = (number,) if number else ()
        self.do("stage", name, e.arg, at, depth, tuple(order), copy, *which)

    def number(self, name: str, e: Expr) -> int:
        """Which of the different loads of its buffer in a nest a load is."""
        found = self.nest(name).nodes
        return [x for x in found if x.op is ExprOp.LOAD and x.arg == e.arg].index(e)

    def limit(self, name: str, loop: str) -> None:
        """Leave out the first and the last iterations of a loop, if they change nothing."""
        nest = self.nest(name)
        depth = [o.range.name for o in nest.loops].index(loop)
        bounds = start_of(self.kernel, nest, depth), end_of(self.kernel, nest, depth)
        if bounds != (None, None):
            self.do("limit", name, loop)

    def transpose(self, name: str, along: str, across: str) -> None:
        """`turn` for loops that have the size of a square already."""
        names = [loop.range.name for loop in self.nest(name).loops]
        last = (along, across)
        self.do("reorder", name, (*(x for x in names if x not in last), *last))
        self.do("transpose", name, *last)

    def fetch_results(self, name: str) -> None:
        """What a root will store to comes into the cache before it is computed, where the results
        are more than the second cache keeps: stores would wait for it.
        """
        nest = self.nest(name)
        count = prod(loop.range.size.max for loop in nest.loops)
        for slot in {c.store.slot: c for c in nest.computes if c.store is not None}:
            size = count * self.kernel.slots[slot].itemsize
            if size > self.target.l2_bytes:
                self.do("prefetch", name, slot, 0)

    def share(self, name: str, loops: int = 1) -> None:
        """Share out the first loops of a root nest as one, where there is work for two threads."""
        if loops == 0 or self.work(name) < SERIAL_WORK:
            return
        self.do("parallel", name, self.fuse_first(name, loops))

    def fuse_first(self, name: str, loops: int) -> str:
        """The first loops of a nest become one; its name."""
        return self.fuse_at(name, 0, loops)

    def fuse_at(self, name: str, depth: int, loops: int) -> str:
        """So many loops of a nest become one, from that depth on; its name."""
        for _ in range(loops - 1):
            self.do("fuse", name, self.nest(name).loops[depth].range.name)
        return self.nest(name).loops[depth].range.name


def _divisions(kernel: Kernel) -> list[Expr]:
    """The quotients and remainders in a kernel."""
    return [e for n in kernel.nests for e in n.nodes if e.op in (ExprOp.IDIV, ExprOp.MOD)]


def loads(value: Expr) -> list[Expr]:
    return [e for e in toposort([value]) if e.op is ExprOp.LOAD]


def outer_loads(value: Expr) -> list[Expr]:
    """Those that do not say where another load is: a copy of that one has them too."""
    found = loads(value)
    inner = {e for x in found for e in loads(x) if e is not x}
    return [e for e in found if e not in inner]


def bytes_loaded(e: Expr) -> int:
    """How many bytes a load touches in all of its iterations, at most."""
    return prod(r.size.max for r in e.ranges) * e.dtype.itemsize


def load_step(e: Expr, r: Expr) -> int:
    """How far a load moves along a range, in its own width: 1 where it reads neighbours.

    Two elements that are packed count as one where they are neighbours themselves.
    """
    step = step_of(e.src[0], r)
    if len(e.src) == 2 or e.src[2] - e.src[0] is not const(1):
        return step
    return step // 2 if step % 2 == 0 else -1


def step_of(index: Expr, r: Expr) -> int:
    """How far an index moves along a range.

    0 where it does not depend on it, -1 where it is not linear in it.
    """
    step = step_along(index, r)
    return -1 if step is None else step


def gap_of_copies(nest: Nest, slot: int) -> int:
    """How far apart in a buffer neighbouring copies of a nest load, where that is less than a line
    of cache; else 1.
    """
    copies = [loop.range for loop in nest.loops if loop.kind is Kind.UNROLL]
    found = [e for e in nest.nodes if e.op is ExprOp.LOAD and e.arg == slot]
    steps = [distance(e.src[0], r) for e in found for r in copies]
    size = max((e.dtype.itemsize for e in found), default=1)
    return min((s for s in steps if 0 < s < LINE_BYTES // size), default=1)
