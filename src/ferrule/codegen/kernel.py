"""The kernel before it is a program: loop nests, what each computes, and where each hangs in
another.

A `Kernel` is immutable. Scheduling primitives (`primitives/`) make a new one from an old one;
nothing in here chooses anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import auto
from functools import cached_property

from ferrule.dtype import DType
from ferrule.enums import Enum
from ferrule.expr import (
    TRUE,
    Expr,
    ExprOp,
    Variable,
    const,
    exclusive_or,
    less,
    toposort,
    weighted_sum,
)
from ferrule.expr.printing import texts
from ferrule.opkinds import COMBINATIONS
from ferrule.records import dataclass


class Kind(Enum):
    """How a loop is run. TRANSPOSE is the loop around a VECTOR one along which the values are
    loaded. The iterations of a THREAD loop are done by the threads of a block, one each. MATRIX is
    a loop over terms that the threads of a warp add up together, by an instruction; or one of three
    last loops, rows, columns and terms, that an instruction does in tile registers. WARP_GROUP is a
    loop over terms that four warps add up together.
    """

    SERIAL = auto()
    PARALLEL = auto()
    UNROLL = auto()
    VECTOR = auto()
    TRANSPOSE = auto()
    THREAD = auto()
    MATRIX = auto()
    WARP_GROUP = auto()


BY_WARPS = frozenset({Kind.MATRIX, Kind.WARP_GROUP})
LANES_OR_COPIES = frozenset({Kind.UNROLL, Kind.VECTOR})
BANKS_BYTES = 128  # of memory that threads share: what its banks give at a time
PIECE_BYTES = 16  # the most that a thread takes of it at a time
COMBINING_BYTES = 8 << 10  # of it, at most, in which threads combine values


@dataclass(frozen=True)
class Monoid:
    """How a reduce combines values: an associative operation with an identity."""

    name: str
    op: ExprOp

    def identity(self, dtype: DType) -> Expr:
        """The value that changes nothing."""
        return const(COMBINATIONS[self.name].identity(dtype), dtype)


MONOIDS = {
    name: Monoid(name, row.expr) for name, row in COMBINATIONS.items() if row.expr is not None
}


@dataclass(frozen=True)
class Segment:
    """The iterations of a loop from the end of the segment before to before `end`, in which some
    conditions are known to hold, or to fail, whatever goes on inside.
    """

    end: Expr
    known: tuple[tuple[Expr, bool], ...]


@dataclass(frozen=True)
class Loop:
    """One loop over a range. Where `peel` is set, that condition holds in all iterations but the
    last. With `start` and `end`, only the iterations from the one to before the other are run.
    With `segments` it is run as one loop after the other, each with what is known there.
    With `step`, the iterations of a THREAD loop are that digit of the thread's number.
    With `bits`, only the iterations are run whose bits are set in that value, the lowest first.
    In those that `bits`, `start` and `end` leave, `only` holds; the others would change nothing.

    `lineage` is what the loop was made from, the first range first: a part of a loop that was split
    has the range of the whole there, a loop that is a copy has that of the other one. It says
    nothing about what the loop does, so loops that differ in it only are equal.
    """

    range: Expr
    kind: Kind = Kind.SERIAL
    peel: Expr | None = None
    end: Expr | None = None
    start: Expr | None = None
    segments: tuple[Segment, ...] = ()
    step: int | None = None
    bits: Expr | None = None
    only: Expr | None = None
    lineage: tuple[Expr, ...] = field(default=(), compare=False)

    def mapped(self, mapping: Mapping[Expr, Expr]) -> Loop:
        """The loop with parts of its conditions, its start and its ends replaced."""
        parts = (self.peel, self.start, self.end, self.bits, self.only)
        if parts == (None,) * len(parts) and not self.segments:
            return self
        peel, start, end, bits, only = (None if e is None else e.substitute(mapping) for e in parts)
        segments = tuple(
            Segment(
                s.end.substitute(mapping), tuple((c.substitute(mapping), v) for c, v in s.known)
            )
            for s in self.segments
        )
        known = replace(self, peel=peel, bits=bits, only=only)
        return replace(known, start=start, end=end, segments=segments)

    @property
    def size(self) -> int:
        """The number of iterations, where it is constant."""
        return int(self.range.size.arg)

    @property
    def descent(self) -> tuple[Expr, ...]:
        """The lineage of loops that are made from this one."""
        return (*self.lineage, self.range)

    def is_from(self, r: Expr) -> bool:
        """Whether it is the loop over a range, or a part or a copy of that, or of its parts."""
        return r is self.range or any(r is x for x in self.lineage)


@dataclass(frozen=True)
class Store:
    """A write to a buffer."""

    slot: int
    index: Expr
    valid: Expr = TRUE
    nontemporal: bool = False


@dataclass(frozen=True)
class Compute:
    """A value for every point of a nest: stored to a buffer, kept under `name`, or combined by a
    monoid first.

    `ranges` are the axes of what is kept, outermost first; a reduce's other loops are those it
    combines over. With `over` it is kept in the memory of another value, which it replaces.
    With `padding`, steps along some axes are so many places longer than they need be. With
    `swizzle`, pieces of 16 bytes change places in their line, by a number that grows by `pieces`
    for each so many elements.
    With `stages`, there is so much memory for copies of it, which are made `stages - 1` iterations
    of the loop that its nest hangs in before they are read.

    A reduce that runs `along` a loop, of its own nest or of the one that it hangs in, goes on from
    one iteration to the next. What it was before this iteration is read as `before`; with `start`,
    that is what it goes on from. With `by_lanes`, an axis that is lanes, each lane has what the
    lanes before it have too, and the last one what the next iteration goes on from.
    """

    name: str
    value: Expr
    ranges: tuple[Expr, ...] = ()
    monoid: Monoid | None = None
    store: Store | None = None
    over: str | None = None
    padding: tuple[tuple[Expr, int], ...] = ()
    swizzle: int = 0
    pieces: int = 1
    stages: int = 1
    along: Expr | None = None
    start: Expr | None = None
    by_lanes: Expr | None = None

    @property
    def before(self) -> str:
        """The name of what it was before an iteration of the loop that it runs along."""
        return f"{self.name}.before"

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it is read."""
        return (self.name,) if self.along is None else (self.name, self.before)

    @property
    def elements(self) -> int:
        """How many values it has room for."""
        return self.room(self.ranges)

    def place(self, index: Sequence[Expr]) -> Expr:
        """Where in its scratch memory a value is."""
        steps = zip(index, self.strides(self.ranges), strict=True)
        return self.swizzled(weighted_sum(steps))

    def swizzled(self, place: Expr) -> Expr:
        """Where what would be at a place is, so that columns are in different banks too.

        The first piece of the second row is where another piece of the first row would be: their
        numbers in a line differ in the bits of the row's number, as GPUs' own copies have it.
        """
        if not self.swizzle:
            return place
        itemsize = self.value.dtype.itemsize
        line, piece = BANKS_BYTES // itemsize, PIECE_BYTES // itemsize
        further = place // max(line, self.swizzle) * self.pieces % (line // piece)
        turned = exclusive_or(place // piece % (line // piece), further)
        return place // line * line + turned * piece + place % piece

    def strides(self, axes: Sequence[Expr]) -> list[int]:
        """How far a step along each of some of its axes goes in scratch memory that has these."""
        extra = dict(self.padding)
        strides = []
        stride = 1
        for r in reversed(axes):
            stride += extra.get(r, 0)
            strides.append(stride)
            stride *= r.size.max
        return strides[::-1]

    def room(self, axes: Sequence[Expr]) -> int:
        """How many places scratch memory with some of its axes has."""
        places = self.strides(axes)[0] * axes[0].size.max if axes else 1
        line = BANKS_BYTES // self.value.dtype.itemsize if self.swizzle else 1
        return -(-places // line) * line


@dataclass(frozen=True)
class Nest:
    """Computes that share loops. `at` is (consumer nest, number of its loops that are open).

    With `ahead`, pairs of a slot and a distance, what comes so many elements after each load from
    that buffer is brought into the cache meanwhile; 0 stands for what the nest will store there.
    """

    name: str
    computes: tuple[Compute, ...]
    loops: tuple[Loop, ...]
    at: tuple[str, int] | None = None
    ahead: tuple[tuple[int, int], ...] = ()

    @cached_property
    def nodes(self) -> Sequence[Expr]:
        """Every node of its expressions, operands first."""
        return toposort(expressions(self))

    @cached_property
    def reads(self) -> Sequence[Expr]:
        """The READs among them."""
        return [e for e in self.nodes if e.op is ExprOp.READ]

    @property
    def kept(self) -> frozenset[Expr]:
        """The axes of what its reduces give: the others are combined over."""
        return frozenset(r for c in self.computes for r in c.ranges if c.monoid is not None)

    @property
    def is_shared_out(self) -> bool:
        """Whether chunks of its outermost loop run in any order, on any thread."""
        return bool(self.loops) and self.loops[0].kind is Kind.PARALLEL

    @property
    def loop_ranges(self) -> list[Expr]:
        """The ranges of its loops, the outermost first."""
        return [loop.range for loop in self.loops]


@dataclass(frozen=True)
class Kernel:
    """All nests, producers before their consumers; `slots` gives the dtype of every buffer.

    With a `guard`, they are right only if some slots are finite.
    """

    name: str
    nests: tuple[Nest, ...]
    slots: tuple[DType, ...]
    variables: tuple[Variable, ...] = ()
    guard: Guard | None = None

    @cached_property
    def by_name(self) -> Mapping[str, Nest]:
        """Nests by name."""
        return {nest.name: nest for nest in self.nests}

    @cached_property
    def computes(self) -> Mapping[str, Compute]:
        """What READ nodes refer to."""
        found = [c for nest in self.nests for c in nest.computes]
        return {n: c if n == c.name else replace(c, name=n) for c in found for n in c.names}

    @cached_property
    def owner(self) -> Mapping[str, Nest]:
        """The nest that computes each name."""
        return {n: nest for nest in self.nests for c in nest.computes for n in c.names}

    @cached_property
    def _origins(self) -> Mapping[Expr, Expr]:
        loops = [loop for nest in self.nests for loop in nest.loops]
        return {r: loop.lineage[0] for loop in loops if loop.lineage for r in loop.descent}

    def origin(self, r: Expr) -> Expr:
        """The range that a loop's range was before it was split, or computed elsewhere."""
        return self._origins.get(r, r)

    @cached_property
    def memory(self) -> Mapping[str, tuple[str, int]]:
        """For what is kept: the first of the values in its place, the elements of the largest."""
        first: dict[str, str] = {}
        elements: dict[str, int] = {}
        for c in self.computes.values():  # in order: what is replaced comes first
            first[c.name] = place = c.name if c.over is None else first[c.over]
            elements[place] = max(elements.get(place, 0), c.elements)
        return {name: (place, elements[place]) for name, place in first.items()}

    def free_name(self, stem: str, number: int = 0, *, numbered: bool = False) -> str:
        """The first name that no nest has of `stem`, `stem.1`, `stem.2`, ..., or, if `numbered`, of
        `stem0`, `stem1`, ...; those below `number` are left out.
        """
        plain = f"{stem}0" if numbered else stem
        separator = "" if numbered else "."
        names = (f"{stem}{separator}{n}" if n else plain for n in itertools.count(number))
        return next(name for name in names if name not in self.by_name)

    def loop_around(self, nest: Nest) -> Loop | None:
        """The innermost loop of its consumer that a nest hangs in."""
        if nest.at is None or nest.at[1] == 0:
            return None
        return self.by_name[nest.at[0]].loops[nest.at[1] - 1]

    @property
    def roots(self) -> list[Nest]:
        """The nests that hang in no other."""
        return [nest for nest in self.nests if nest.at is None]

    def children(self, nest: str, depth: int) -> list[Nest]:
        """The nests that are computed inside a nest when `depth` of its loops are open."""
        return [child for child in self.nests if child.at == (nest, depth)]

    def path(self, nest: Nest) -> list[tuple[str, int, Loop]]:
        """The loops around the body of a nest, outermost first, as (nest, depth, loop)."""
        outer: list[tuple[str, int, Loop]] = []
        if nest.at is not None:
            parent, depth = nest.at
            outer = [p for p in self.path(self.by_name[parent]) if p[0] != parent or p[1] < depth]
        return outer + [(nest.name, d, loop) for d, loop in enumerate(nest.loops)]

    def with_nest(self, nest: Nest) -> Kernel:
        """The kernel with the nest of that name exchanged."""
        return replace(self, nests=tuple(nest if n.name == nest.name else n for n in self.nests))

    def insert_before(self, consumer: str, nest: Nest) -> Kernel:
        """The kernel with one more nest, ahead of its consumer."""
        at = next(i for i, n in enumerate(self.nests) if n.name == consumer)
        return replace(self, nests=(*self.nests[:at], nest, *self.nests[at:]))


@dataclass(frozen=True)
class Guard:
    """A kernel that does the same as another one, which is right only if some slots are finite, for
    any elements: `exact`.

    It is run instead where one of the `checks` finds that they are not: a kernel whose root would
    store 0 if they are, and 1 if not. One with a loop around its root is for each chunk, and the
    chunks of both kernels are the same then. Without checks nothing is looked at.
    """

    finite: frozenset[int]
    exact: Kernel
    checks: tuple[Kernel, ...] = ()


class KernelError(AssertionError):
    """A kernel that breaks the rules: a mistake in the compiler, never in the user's code."""


def expressions(nest: Nest) -> list[Expr]:
    """Every expression of a nest."""
    out: list[Expr] = []
    for c in nest.computes:
        out.append(c.value)
        if c.start is not None:
            out.append(c.start)
        if c.store is not None:
            out.extend((c.store.index, c.store.valid))
    out.extend(loop.bits for loop in nest.loops if loop.bits is not None)
    return out


def reads(exprs: Sequence[Expr]) -> Iterator[Expr]:
    """The READ nodes below."""
    return (e for e in toposort(exprs) if e.op is ExprOp.READ)


def scatters(nest: Nest) -> bool:
    """Whether a value says where a nest stores, so that iterations may store to one place."""
    stored = [c.store.index for c in nest.computes if c.store is not None]
    return any(e.op in (ExprOp.LOAD, ExprOp.READ) for e in toposort(stored))


def stores_to_one_place(nest: Nest) -> bool:
    """Whether iterations may store to one place: where a value says, or at one index."""
    ranges = [loop.range for loop in nest.loops]
    stores = [c.store.index for c in nest.computes if c.store is not None]
    return scatters(nest) or any(not index.ranges.issuperset(ranges) for index in stores)


def loaded_again(kernel: Kernel) -> frozenset[int]:
    """The slots from which a nest loads what another one has stored, or an earlier iteration."""
    out: set[int] = set()
    for nest in kernel.nests:
        loaded = {e.arg for e in nest.nodes if e.op is ExprOp.LOAD}
        for other in kernel.nests:
            stored = {c.store.slot for c in other.computes if c.store is not None}
            if other is not nest or stores_to_one_place(nest):
                out |= loaded & stored
    return frozenset(out)


def can_overwrite(kernel: Kernel, name: str, old: str) -> bool:
    """Whether a kept value may take the memory of another.

    Its nest reads the other at the place that it writes, and no later nest reads it.
    """
    new, replaced, owner = (kernel.computes[name], kernel.computes[old], kernel.owner[name])
    if new.monoid is not None or any(c.swizzle or c.stages > 1 for c in (new, replaced)):
        return False
    if new.value.dtype.itemsize != replaced.value.dtype.itemsize or owner.at is None:
        return False
    if kernel.owner[old].at != owner.at:
        return False
    mine = new.place(new.ranges)
    found = [e for e in owner.reads if e.arg == old]
    position = kernel.nests.index(owner)
    family = {nest.name for nest in kernel.nests if _hangs_in(kernel, nest, owner.name)}
    later = [n for i, n in enumerate(kernel.nests) if i > position or n.name in family]
    return all(replaced.place(unclamped(e.src)) is mine for e in found) and not any(
        e.arg == old for nest in later if nest is not owner for e in nest.reads
    )


def unclamped(index: Sequence[Expr]) -> list[Expr]:
    """An index inside of what was there before the last tile was filled up with copies of its end.

    What such a copy reads does not matter: nothing reads what it makes.
    """
    clamps = {
        e: e.src[1]
        for e in toposort(index)
        if e.op is ExprOp.WHERE and e.src[0] is less(e.src[1], e.src[2] + 1)
    }
    return [e.substitute(clamps) for e in index]


def why_not_ahead(kernel: Kernel, nest: Nest) -> str:
    """Why what a nest keeps cannot be made in an earlier iteration of the loop that it hangs in.

    Empty where it can: it is made of memory alone, that nothing in the kernel changes.
    """
    loop = kernel.loop_around(nest)
    if loop is None:
        return "it hangs in no loop"
    if loop.kind is not Kind.SERIAL or loop.peel is not None or loop.bits is not None:
        return f"{loop.range} is no plain loop"
    if any(
        c.store is not None or c.monoid is not None or c.over is not None for c in nest.computes
    ):
        return "it stores, combines or overwrites values"
    if any(n.at is not None and n.at[0] == nest.name for n in kernel.nests):
        return "something is computed inside of it"
    found = nest.nodes
    stored = {c.store.slot for c in kernel.computes.values() if c.store is not None}
    if any(e.op is ExprOp.READ or (e.op is ExprOp.LOAD and e.arg in stored) for e in found):
        return "what it is made of is computed in the kernel"
    beside = [n for n in kernel.nests if n.at == nest.at]
    if len({c.stages for n in beside for c in n.computes} - {1}) > 1:
        return "another nest at its place has another number of stages"
    return ""


def _hangs_in(kernel: Kernel, nest: Nest, name: str) -> bool:
    while nest.at is not None:
        if nest.at[0] == name:
            return True
        nest = kernel.by_name[nest.at[0]]
    return False


def show(kernel: Kernel) -> str:
    """The loop tree as readable text."""
    lines = [
        f"kernel {kernel.name}({', '.join(f'b{i}: {d.name}' for i, d in enumerate(kernel.slots))})"
    ]
    for root in kernel.roots:
        lines.extend(_show_nest(kernel, root, 1))
    if kernel.guard is not None and kernel.guard.checks:
        lines.append("where not all that it needs is finite:")
        lines.extend(
            x for n in kernel.guard.exact.roots for x in _show_nest(kernel.guard.exact, n, 1)
        )
    return "\n".join(lines)


def _show_nest(kernel: Kernel, nest: Nest, indent: int) -> Iterator[str]:
    pad = "  "
    fetched = "".join(
        f", fetching b{slot} {f'{far} ahead' if far else 'before it is computed'}"
        for slot, far in nest.ahead
    )
    yield f"{pad * indent}# {nest.name}{fetched}"
    for depth in range(len(nest.loops) + 1):
        for child in kernel.children(nest.name, depth):
            yield from _show_nest(kernel, child, indent + depth)
        if depth < len(nest.loops):
            loop = nest.loops[depth]
            kind = "" if loop.kind is Kind.SERIAL else f" {loop.kind.name.lower()}"
            peel = "" if loop.peel is None else f" peel {loop.peel}"
            size = loop.range.size if loop.end is None else loop.end
            first = "" if loop.start is None else f"{loop.start}.."
            bits = "" if loop.bits is None else f" by the bits of {loop.bits}"
            head = f"for {loop.range.name} in {first}{size}{kind}{peel}{bits}:"
            yield f"{pad * (indent + depth)}{head}"
            for s in loop.segments:
                known = " and ".join(str(c) if holds else f"not {c}" for c, holds in s.known)
                yield f"{pad * (indent + depth)}  # to {s.end}: {known or 'nothing is known'}"
    yield from (f"{pad * (indent + len(nest.loops))}{line}" for line in _show_computes(nest))


def _show_computes(nest: Nest) -> Iterator[str]:
    """What a nest computes; before it, what several places in it use."""
    roots = expressions(nest)
    shown, parts = texts(roots)
    text = dict(zip(roots, shown, strict=True))
    yield from parts
    for c in nest.computes:
        if c.stages > 1:
            yield f"# {c.stages} stages"
        target = c.name if not c.ranges else f"{c.name}[{', '.join(r.name for r in c.ranges)}]"
        if c.store is not None:
            mask = "" if c.store.valid is TRUE else f" if {text[c.store.valid]}"
            target = f"b{c.store.slot}[{text[c.store.index]}]{mask}"
        sign = "=" if c.monoid is None else f"{c.monoid.name}="
        goes_on = "" if c.along is None else f" along {c.along}"
        goes_on += "" if c.start is None else f" from {text[c.start]}"
        goes_on += "" if c.by_lanes is None else f" by lanes {c.by_lanes}"
        yield f"{target} {sign} {text[c.value]}{goes_on}"
