"""The kernel before it is a program: loop nests, the values that each computes, and the loop of
another nest in which each hangs.

A `Kernel` is immutable. Scheduling primitives (`primitives/`) make a new one from an old one;
nothing in here chooses anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import auto
from functools import cached_property

from ferrule.base.enums import Enum
from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType
from ferrule.ir.expr import (
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
from ferrule.ir.expr.printing import texts
from ferrule.ir.op_table import COMBINATIONS


class Kind(Enum):
    """How a loop is run.

    SERIAL and PARALLEL loops run; the iterations of a PARALLEL one are the chunks that threads
    share. UNROLL makes copies of the body, VECTOR makes lanes. TRANSPOSE is the loop around a
    VECTOR one along which values are loaded as vectors. THREAD gives each thread of a block one
    iteration. MATRIX is a loop over terms that the threads of a warp add up together, by one
    instruction; or one of the last three loops, rows, columns and terms, that an instruction does
    in tile registers. WARP_GROUP is a loop over terms that four warps add up together.
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
# Shared memory of a thread block, in bytes, as NVIDIA's GPUs have it.
BANK_LINE_BYTES = 128  # bytes that all banks give in one access: 32 banks of 4 bytes
MAX_ACCESS_BYTES = 16  # bytes; the widest access of one thread
COMBINING_BYTES = 8 << 10  # bytes; the most that threads use to combine values (not measured)


@dataclass(frozen=True)
class Monoid:
    """The combining operation of a reduce: associative, with an identity."""

    name: str
    op: ExprOp

    def identity(self, dtype: DType) -> Expr:
        """The identity: combined with it, a value stays as it is."""
        return const(COMBINATIONS[self.name].identity(dtype), dtype)


MONOIDS = {
    name: Monoid(name, row.expr) for name, row in COMBINATIONS.items() if row.expr is not None
}


@dataclass(frozen=True)
class Segment:
    """A part of a loop's iterations in which some conditions are known to hold, or to fail.

    It goes from the end of the segment before it up to `end`, exclusive.
    """

    end: Expr
    known: tuple[tuple[Expr, bool], ...]


@dataclass(frozen=True)
class Loop:
    """One loop over a range.

    With `peel`, that condition holds in all iterations but the last. With `start` and `end`, only
    the iterations from `start` up to `end`, exclusive, are run. With `segments`, the loop is run as
    several loops, one after the other. With `step`, the iterations of a THREAD loop are that digit
    of the thread's number. With `bitmask`, only the iterations are run whose bits are set in that
    value, the lowest first. `assumed` is a condition that holds in all iterations that `bitmask`,
    `start` and `end` leave; the others would change nothing.

    `lineage` has the ranges that the loop was made from, the first one first: a part of a split
    loop begins with the range of the whole loop, a copy of a loop with the range of the original.
    It does not change what the loop does, so loops that differ only in it are equal.
    """

    range: Expr
    kind: Kind = Kind.SERIAL
    peel: Expr | None = None
    end: Expr | None = None
    start: Expr | None = None
    segments: tuple[Segment, ...] = ()
    step: int | None = None
    bitmask: Expr | None = None
    assumed: Expr | None = None
    lineage: tuple[Expr, ...] = field(default=(), compare=False)

    def mapped(self, mapping: Mapping[Expr, Expr]) -> Loop:
        """The loop with parts of its conditions, its start and its ends replaced."""
        parts = (self.peel, self.start, self.end, self.bitmask, self.assumed)
        if parts == (None,) * len(parts) and not self.segments:
            return self
        peel, start, end, bitmask, assumed = (
            None if e is None else e.substitute(mapping) for e in parts
        )
        segments = tuple(
            Segment(
                s.end.substitute(mapping), tuple((c.substitute(mapping), v) for c, v in s.known)
            )
            for s in self.segments
        )
        known = replace(self, peel=peel, bitmask=bitmask, assumed=assumed)
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
        """True if the loop runs over the range `r`, or over a part or a copy of it."""
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
    """A value for every point of a nest.

    It is stored to a buffer, or it is a stage, which READ nodes read by its `name`; with a `monoid`
    it is combined first. `ranges` are the axes of a stage, outermost first. The other loops of a
    reduce are those that it combines over.

    - `overwrites`: the stage whose memory this one takes.
    - `padding`: for some axes, by how many places each step is longer than it need be.
    - `swizzle`: elements after which pieces of 16 bytes change places in their line, by a number
      that grows by `pieces`.
    - `pipeline_depth`: copies that memory is reserved for, as a ring. A copy is made
      `pipeline_depth - 1` iterations before it is read, of the loop that its nest hangs in.
    - `carried_by`: the loop, of its own nest or of the one that it hangs in, that carries a reduce
      from iteration to iteration. Its value before this iteration is read as `carried`.
    - `initial`: the value that an iteration begins with, if that is not `carried` itself.
    - `scan_lanes`: an axis of lanes. Each lane has what the lanes before it have too, and the last
      lane is carried to the next iteration.
    """

    name: str
    value: Expr
    ranges: tuple[Expr, ...] = ()
    monoid: Monoid | None = None
    store: Store | None = None
    overwrites: str | None = None
    padding: tuple[tuple[Expr, int], ...] = ()
    swizzle: int = 0
    pieces: int = 1
    pipeline_depth: int = 1
    carried_by: Expr | None = None
    initial: Expr | None = None
    scan_lanes: Expr | None = None

    @property
    def carried(self) -> str:
        """The name under which its value before an iteration of `carried_by` is read."""
        return f"{self.name}.carried"

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it is read."""
        return (self.name,) if self.carried_by is None else (self.name, self.carried)

    @property
    def elements(self) -> int:
        """The number of values that its memory has room for."""
        return self.room(self.ranges)

    def place(self, index: Sequence[Expr]) -> Expr:
        """The index of a value in its scratch memory."""
        steps = zip(index, self.strides(self.ranges), strict=True)
        return self.swizzled(weighted_sum(steps))

    def swizzled(self, place: Expr) -> Expr:
        """The place of an element after swizzling, so that the rows of a column are in different
        banks.

        The first piece of the second row is where another piece of the first row would be: their
        numbers in a line differ in the bits of the row's number. The swizzled copies of GPUs use
        the same order.
        """
        if not self.swizzle:
            return place
        itemsize = self.value.dtype.itemsize
        line, piece = BANK_LINE_BYTES // itemsize, MAX_ACCESS_BYTES // itemsize
        further = place // max(line, self.swizzle) * self.pieces % (line // piece)
        swapped = exclusive_or(place // piece % (line // piece), further)
        return place // line * line + swapped * piece + place % piece

    def strides(self, axes: Sequence[Expr]) -> list[int]:
        """The distance in scratch memory of a step along each of `axes`, if memory has these axes
        only.
        """
        extra = dict(self.padding)
        strides = []
        stride = 1
        for r in reversed(axes):
            stride += extra.get(r, 0)
            strides.append(stride)
            stride *= r.size.max
        return strides[::-1]

    def room(self, axes: Sequence[Expr]) -> int:
        """The number of places of scratch memory that has these axes only."""
        places = self.strides(axes)[0] * axes[0].size.max if axes else 1
        line = BANK_LINE_BYTES // self.value.dtype.itemsize if self.swizzle else 1
        return -(-places // line) * line


@dataclass(frozen=True)
class Nest:
    """Computes that share loops. `at` is (consumer nest, number of its loops that are open).

    `ahead` has pairs of a slot and a distance: with each load from that buffer, the element so many
    places later is fetched into the cache. Distance 0 stands for the places that the nest will
    store to.
    """

    name: str
    computes: tuple[Compute, ...]
    loops: tuple[Loop, ...]
    at: tuple[str, int] | None = None
    ahead: tuple[tuple[int, int], ...] = ()

    @cached_property
    def nodes(self) -> Sequence[Expr]:
        """All nodes of its expressions, operands first."""
        return toposort(expressions(self))

    @cached_property
    def reads(self) -> Sequence[Expr]:
        """The READ nodes of its expressions."""
        return [e for e in self.nodes if e.op is ExprOp.READ]

    @property
    def result_axes(self) -> frozenset[Expr]:
        """The axes of the values of its reduces. The other loops are combined over."""
        return frozenset(r for c in self.computes for r in c.ranges if c.monoid is not None)

    @property
    def is_shared_out(self) -> bool:
        """True if chunks of its outermost loop run in any order, on any thread."""
        return bool(self.loops) and self.loops[0].kind is Kind.PARALLEL

    @property
    def loop_ranges(self) -> list[Expr]:
        """The ranges of its loops, outermost first."""
        return [loop.range for loop in self.loops]


@dataclass(frozen=True)
class Kernel:
    """All nests, producers before their consumers; `slots` gives the dtype of every buffer.

    With a `guard`, the nests are right only if all elements of some slots are finite.
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
        """The computes by the names that READ nodes use."""
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
        """The range of the loop that this range's loop was split or copied from; `r` itself if
        there is none.
        """
        return self._origins.get(r, r)

    @cached_property
    def memory(self) -> Mapping[str, tuple[str, int]]:
        """For each stage: the first one that is in the same memory, and the number of
        elements of the largest one there.
        """
        first: dict[str, str] = {}
        elements: dict[str, int] = {}
        for c in self.computes.values():  # in order: what is replaced comes first
            first[c.name] = place = c.name if c.overwrites is None else first[c.overwrites]
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
        """The nests that hang in no other nest."""
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
    """The same computation as `exact`, a kernel for any elements, where some slots are known to be
    finite.

    `exact` is run where one of the `checks` finds an infinity or NaN. A check is a kernel whose
    root would store 0 if all elements that it looks at are finite, and 1 if not. A check with a
    loop around its root is for one chunk; both kernels then have the same chunks. Without checks
    nothing is looked at.
    """

    finite: frozenset[int]
    exact: Kernel
    checks: tuple[Kernel, ...] = ()


class KernelError(AssertionError):
    """A kernel that breaks the rules: a mistake in the compiler, never in the user's code."""


def expressions(nest: Nest) -> list[Expr]:
    """All expressions of a nest."""
    out: list[Expr] = []
    for c in nest.computes:
        out.append(c.value)
        if c.initial is not None:
            out.append(c.initial)
        if c.store is not None:
            out.extend((c.store.index, c.store.valid))
    out.extend(loop.bitmask for loop in nest.loops if loop.bitmask is not None)
    return out


def reads(exprs: Sequence[Expr]) -> Iterator[Expr]:
    """The READ nodes in some expressions."""
    return (e for e in toposort(exprs) if e.op is ExprOp.READ)


def scatters(nest: Nest) -> bool:
    """True if a loaded or computed value is part of a store's index, so that iterations may store
    to one place.
    """
    stored = [c.store.index for c in nest.computes if c.store is not None]
    return any(e.op in (ExprOp.LOAD, ExprOp.READ) for e in toposort(stored))


def stores_to_one_place(nest: Nest) -> bool:
    """True if two iterations may store to one place: by an index that is loaded, or by one without
    some loop.
    """
    ranges = [loop.range for loop in nest.loops]
    stores = [c.store.index for c in nest.computes if c.store is not None]
    return scatters(nest) or any(not index.ranges.issuperset(ranges) for index in stores)


def loaded_again(kernel: Kernel) -> frozenset[int]:
    """The slots that a nest loads from after another nest, or an earlier iteration, has stored to
    them.
    """
    out: set[int] = set()
    for nest in kernel.nests:
        loaded = {e.arg for e in nest.nodes if e.op is ExprOp.LOAD}
        for other in kernel.nests:
            stored = {c.store.slot for c in other.computes if c.store is not None}
            if other is not nest or stores_to_one_place(nest):
                out |= loaded & stored
    return frozenset(out)


def can_overwrite(kernel: Kernel, name: str, old: str) -> bool:
    """True if a stage may take the memory of another.

    Its nest reads the other value only at the place that it writes, and no later nest reads it.
    """
    new, replaced, owner = (kernel.computes[name], kernel.computes[old], kernel.owner[name])
    if new.monoid is not None or any(c.swizzle or c.pipeline_depth > 1 for c in (new, replaced)):
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
    """An index without the clamps that let the last tile read its last element again.

    The elements beyond the end are copies that nothing reads, so it does not matter what they are
    made from.
    """
    clamps = {
        e: e.src[1]
        for e in toposort(index)
        if e.op is ExprOp.WHERE and e.src[0] is less(e.src[1], e.src[2] + 1)
    }
    return [e.substitute(clamps) for e in index]


def why_not_pipelined(kernel: Kernel, nest: Nest) -> str:
    """The reason why a nest's stages cannot be made in an earlier iteration of the loop around it.

    Empty if they can: they are made from buffers alone, and the kernel stores to none of these.
    """
    loop = kernel.loop_around(nest)
    if loop is None:
        return "it hangs in no loop"
    if loop.kind is not Kind.SERIAL or loop.peel is not None or loop.bitmask is not None:
        return f"{loop.range} is no plain loop"
    if any(
        c.store is not None or c.monoid is not None or c.overwrites is not None
        for c in nest.computes
    ):
        return "it stores, combines or overwrites values"
    if any(n.at is not None and n.at[0] == nest.name for n in kernel.nests):
        return "something is computed inside of it"
    found = nest.nodes
    stored = {c.store.slot for c in kernel.computes.values() if c.store is not None}
    if any(e.op is ExprOp.READ or (e.op is ExprOp.LOAD and e.arg in stored) for e in found):
        return "what it is made of is computed in the kernel"
    beside = [n for n in kernel.nests if n.at == nest.at]
    if len({c.pipeline_depth for n in beside for c in n.computes} - {1}) > 1:
        return "another nest at its place has another pipeline depth"
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
            bits = "" if loop.bitmask is None else f" by the set bits of {loop.bitmask}"
            head = f"for {loop.range.name} in {first}{size}{kind}{peel}{bits}:"
            yield f"{pad * (indent + depth)}{head}"
            for s in loop.segments:
                known = " and ".join(str(c) if holds else f"not {c}" for c, holds in s.known)
                yield f"{pad * (indent + depth)}  # to {s.end}: {known or 'nothing is known'}"
    yield from (f"{pad * (indent + len(nest.loops))}{line}" for line in _show_computes(nest))


def _show_computes(nest: Nest) -> Iterator[str]:
    """The computes of a nest as text, after the subexpressions that are used several times."""
    roots = expressions(nest)
    shown, parts = texts(roots)
    text = dict(zip(roots, shown, strict=True))
    yield from parts
    for c in nest.computes:
        if c.pipeline_depth > 1:
            yield f"# pipeline of depth {c.pipeline_depth}"
        target = c.name if not c.ranges else f"{c.name}[{', '.join(r.name for r in c.ranges)}]"
        if c.store is not None:
            mask = "" if c.store.valid is TRUE else f" if {text[c.store.valid]}"
            target = f"b{c.store.slot}[{text[c.store.index]}]{mask}"
        sign = "=" if c.monoid is None else f"{c.monoid.name}="
        carried = "" if c.carried_by is None else f" carried by {c.carried_by}"
        carried += "" if c.initial is None else f" from {text[c.initial]}"
        carried += "" if c.scan_lanes is None else f" scanning lanes {c.scan_lanes}"
        yield f"{target} {sign} {text[c.value]}{carried}"
