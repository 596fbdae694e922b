"""The scheduling primitives: pure functions `Kernel -> Kernel`, and `Opt`, the data that names one.

An `Opt` prints, hashes, goes to JSON and back; `apply_opts` replays a tuple of them. Nests and
ranges are named by stable paths (`out0`, `sum0`; `i0.1`, `r0.2`; a split range `r` becomes `r.o`
and `r.i`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrule.codegen.intrinsics import INTRINSICS, MMA, Intrinsic
from ferrule.codegen.kernel import (
    MONOIDS,
    Compute,
    Kernel,
    Kind,
    Loop,
    Nest,
    Store,
    can_overwrite,
    expressions,
    reads,
    scatters,
    verify,
)
from ferrule.codegen.limits import end_by, end_of, start_of
from ferrule.codegen.owner import owned_digit, owns
from ferrule.codegen.window import Window
from ferrule.expr import (
    TRUE,
    Expr,
    ExprOp,
    alu,
    both,
    conjuncts,
    const,
    less,
    load,
    minimum,
    pack,
    range_,
    rebuild,
    select,
    substitute,
    toposort,
    varying,
)


class ScheduleError(ValueError):
    """A scheduling primitive that is not legal on this kernel."""


@dataclass(frozen=True)
class Opt:
    """One application of a primitive: its name and its literal arguments.

    >>> Opt("split", ("out0", "i0.1", 16, "mask"))
    split('out0', 'i0.1', 16, 'mask')
    """

    primitive: str
    args: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.primitive}({', '.join(map(repr, self.args))})"

    def to_json(self) -> str:
        """The opt as JSON text."""
        return json.dumps([self.primitive, *self.args])

    @staticmethod
    def from_json(text: str) -> Opt:
        """The opt that `to_json` wrote."""
        primitive, *args = json.loads(text)
        return Opt(primitive, tuple(tuple(a) if isinstance(a, list) else a for a in args))


def apply_opts(kernel: Kernel, opts: Sequence[Opt]) -> Kernel:
    """The kernel with every opt applied in turn.

    Raises:
        ScheduleError: one is unknown, or not legal.
    """
    for opt in opts:
        primitive = PRIMITIVES.get(opt.primitive)
        if primitive is None:
            raise ScheduleError(
                f"unknown primitive {opt.primitive}; known are {sorted(PRIMITIVES)}"
            )
        kernel = primitive(kernel, *opt.args)
    verify(kernel)
    return kernel


# -- finding
# -----------------------------------------------------------------------------------------


def _nest(kernel: Kernel, name: str) -> Nest:
    found = kernel.by_name.get(name)
    if found is None:
        raise ScheduleError(
            f"no nest {name} in kernel {kernel.name}; there are {sorted(kernel.by_name)}"
        )
    return found


def _depth(kernel: Kernel, nest: Nest, name: str) -> int:
    for depth, loop in enumerate(nest.loops):
        if loop.range.name == name:
            return depth
    names = [loop.range.name for loop in nest.loops]
    raise ScheduleError(
        f"no loop {name} in nest {nest.name} of kernel {kernel.name}; there are {names}"
    )


def _is_combined(nest: Nest, r: Expr) -> bool:
    """Whether the nest reduces over a range."""
    monoids = [c for c in nest.computes if c.monoid is not None]
    return bool(monoids) and all(r not in c.ranges for c in monoids)


_Axes = Mapping[str, tuple[Expr, ...]]  # of what is kept, by name

# -- rewriting
# ---------------------------------------------------------------------------------------


def mapped(nest: Nest, mapping: Mapping[Expr, Expr]) -> Nest:
    """A nest with parts of its expressions replaced."""
    computes = tuple(_map_compute(c, mapping) for c in nest.computes)
    loops = tuple(loop.mapped(mapping) for loop in nest.loops)
    return Nest(nest.name, computes, loops, nest.at)


def _map_compute(c: Compute, mapping: Mapping[Expr, Expr]) -> Compute:
    if c.store is None:
        return replace(c, value=c.value.substitute(mapping))
    value, index, valid = substitute([c.value, c.store.index, c.store.valid], mapping)
    return replace(c, value=value, store=replace(c.store, index=index, valid=valid))


def _map_all(kernel: Kernel, mapping: Mapping[Expr, Expr]) -> Kernel:
    return replace(kernel, nests=tuple(mapped(n, mapping) for n in kernel.nests))


def _retarget(
    e: Expr, r: Expr, position: Expr, condition: Expr, axes: _Axes, *, clamp: bool
) -> Expr:
    """`r` replaced by `position`.

    Loads that vary with it stay in bounds, by a mask or by a clamp; so do reads of what is kept,
    unless its `axes` are padded as much.
    """
    if r not in e.ranges:
        return e
    inside = {r: minimum(position, r.size - 1)}
    kept = {r: alu(ExprOp.WHERE, condition, position, r.size - 1)}
    done: dict[Expr, Expr] = {r: position}
    for node in varying([e], frozenset((r,))):
        if node in done:
            continue
        if node.op is ExprOp.LOAD and condition is not TRUE:
            if clamp:
                moved = substitute(node.src, inside)
            else:
                # An index may be loaded too, by what has its mask by now.
                moved = [done.get(s, s) for s in node.src]
                moved[1::2] = [both(valid, condition) for valid in moved[1::2]]
            done[node] = rebuild(node, tuple(moved))
            continue
        if node.op is ExprOp.READ and condition is not TRUE:
            moved = substitute(node.src, {r: position})
            sizes = [axis.size for axis in axes[node.arg]]
            inside_all = all(i.max < size.min for i, size in zip(moved, sizes, strict=True))
            moved = moved if inside_all else substitute(node.src, kept)
            done[node] = Expr(ExprOp.READ, node.dtype, tuple(moved), node.arg)
            continue
        src = tuple([done.get(s, s) for s in node.src])
        done[node] = node if src == node.src else rebuild(node, src)
    return done[e]


def descendants(kernel: Kernel, name: str) -> set[str]:
    """The nests that hang, directly or not, in a nest, and itself."""
    out = {name}
    for nest in reversed(kernel.nests):  # producers come first
        if nest.at is not None and nest.at[0] in out:
            out.add(nest.name)
    return out


def is_ordered(kernel: Kernel, name: str) -> bool:
    """Whether a root nest and another one use memory that one of the two stores to.

    One has to be done before the other, as the zeros that a SCATTER then adds to; chunks are done
    in any order.
    """
    mine = descendants(kernel, name)
    used, stored = _slots_of(kernel, mine)
    used_there, stored_there = _slots_of(kernel, kernel.by_name.keys() - mine)
    return bool(stored & used_there or stored_there & used)


def _slots_of(kernel: Kernel, names: Set[str]) -> tuple[set[int], set[int]]:
    """The slots that some nests load or store, and those that they store."""
    nests = [kernel.by_name[name] for name in names]
    stored = {c.store.slot for nest in nests for c in nest.computes if c.store is not None}
    found = toposort([e for nest in nests for e in expressions(nest)])
    return stored | {e.arg for e in found if e.op is ExprOp.LOAD}, stored


def map_reads(
    kernel: Kernel, names: set[str], new: Callable[[Expr], Expr], skip: Set[str] = frozenset()
) -> Kernel:
    """Replace the READs of some names everywhere but in the nests of `skip`."""
    nests = []
    for nest in kernel.nests:
        found = [e for e in reads(expressions(nest)) if e.arg in names]
        if found and nest.name not in skip:
            nest = mapped(nest, {e: new(e) for e in found})
        nests.append(nest)
    return replace(kernel, nests=tuple(nests))


# -- primitives
# --------------------------------------------------------------------------------------


def split(kernel: Kernel, nest_name: str, name: str, factor: int, tail: str = "mask") -> Kernel:
    """`for i in n` -> `for i.o in ceil(n / factor): for i.i in factor`, with `i = i.o * factor +
    i.i`.

    Where the factor does not divide n, `tail` says what happens beyond it: "mask" guards loads and
    stores; "peel" does so in a copy of the body for the last iteration; "clamp" lets loads repeat
    the last element and guards stores only (not for a range that is combined over). Exact.
    """
    nest = _nest(kernel, nest_name)
    depth = _depth(kernel, nest, name)
    loop = nest.loops[depth]
    r = loop.range
    combined = _is_combined(nest, r)
    if factor < 1 or tail not in ("mask", "peel", "clamp"):
        raise ScheduleError(
            f"split({name}, {factor}, {tail!r}) in kernel {kernel.name}: the factor is at least "
            "1, the tail mask, peel or clamp"
        )
    if tail == "clamp" and combined:
        raise ScheduleError(
            f"split({name}, clamp) in kernel {kernel.name}: a range that is combined over "
            "cannot repeat elements; use mask or peel"
        )
    repeated = [n.name for n in kernel.nests if n.name != nest_name and _stores_in(kernel, n, r)]
    if (loop.start, loop.end) != (None, None) or (tail == "clamp" and repeated):
        raise ScheduleError(
            f"split({name}, {factor}, {tail!r}) in kernel {kernel.name}: it is limited, or "
            f"{repeated} would be stored twice; use mask or peel, and split first"
        )
    outer = range_(f"{name}.o", (r.size + (factor - 1)) // factor)
    inner = range_(f"{name}.i", factor)
    position = outer * factor + inner
    exact = r.size.is_const and r.size.arg % factor == 0
    condition = TRUE if exact else less(position, r.size)
    _refuse_padded(kernel, nest, r, f"split({name})")
    ranges = {c.name: c.ranges for c in kernel.computes.values()}
    guard = _Split(r, position, condition, tail, ranges)
    inside = {nest_name, *repeated}
    nests = [guard.apply(n, owns=n.name in inside, combined=combined) for n in kernel.nests]
    kernel = replace(kernel, nests=tuple(nests))
    nest = _nest(kernel, nest_name)
    peel = both(_peel(nest.loops[depth]), condition if tail == "peel" else TRUE)
    loops = (
        *nest.loops[:depth],
        Loop(outer, loop.kind, None if peel is TRUE else peel),
        Loop(inner),
        *nest.loops[depth + 1 :],
    )
    axes = {c.name: c.ranges.index(r) for c in nest.computes if r in c.ranges}
    computes = tuple(
        replace(c, ranges=_replace_axis(c.ranges, r, (outer, inner))) for c in nest.computes
    )
    kernel = kernel.with_nest(Nest(nest.name, computes, loops, nest.at))
    kernel = _move_children(kernel, nest_name, lambda d: d if d <= depth else d + 1)
    return map_reads(kernel, set(axes), lambda e: _split_read(e, axes[e.arg], factor))


def _refuse_padded(kernel: Kernel, nest: Nest, r: Expr, what: str) -> None:
    if any(r is padded for c in nest.computes for padded, _ in c.padding):
        raise ScheduleError(
            f"{what} in kernel {kernel.name}: {r} is an axis of {nest.name} that is padded "
            "already; pad it last"
        )


def _stores_in(kernel: Kernel, nest: Nest, r: Expr) -> bool:
    """Whether a nest stores something inside of the loop over a range."""
    stores = any(c.store is not None for c in nest.computes)
    return stores and any(loop.range is r for _, _, loop in kernel.path(nest))


def _peel(loop: Loop) -> Expr:
    return TRUE if loop.peel is None else loop.peel


@dataclass(frozen=True)
class _Split:
    """What a split does to the expressions of a nest."""

    range: Expr
    position: Expr
    condition: Expr
    tail: str
    axes: _Axes

    def expression(self, e: Expr) -> Expr:
        clamp = self.tail == "clamp"
        return _retarget(e, self.range, self.position, self.condition, self.axes, clamp=clamp)

    def _adds_nothing(self, c: Compute, value: Expr) -> bool:
        """Whether a term of a sum is 0 beyond the end, because what it multiplies is."""
        beyond = set(conjuncts(self.condition))
        masked = self.tail == "mask" and is_product_of_loads(c)
        return masked and all(
            beyond.issubset(conjuncts(_uncast(factor).src[1])) for factor in value.src
        )

    def apply(self, nest: Nest, *, owns: bool, combined: bool) -> Nest:
        computes = []
        for c in nest.computes:
            value = self.expression(c.value)
            store = c.store
            if owns and combined and c.monoid is not None and not self._adds_nothing(c, value):
                value = select(self.condition, value, c.monoid.identity(value.dtype))
            if store is not None:
                valid = self.expression(store.valid)
                valid = both(valid, self.condition) if owns else valid
                store = replace(store, index=self.expression(store.index), valid=valid)
            computes.append(replace(c, value=value, store=store))
        peel = {self.range: self.position}
        loops = tuple(loop.mapped(peel) for loop in nest.loops)
        return Nest(nest.name, tuple(computes), loops, nest.at)


def is_product_of_loads(c: Compute) -> bool:
    """Whether a sum adds up products of two loads, perhaps cast: 0 where both are masked."""
    if c.monoid is None or c.monoid.op is not ExprOp.ADD or c.value.op is not ExprOp.MUL:
        return False
    factors = [_uncast(factor) for factor in c.value.src]
    return all(factor.op is ExprOp.LOAD and len(factor.src) == 2 for factor in factors)


def _uncast(e: Expr) -> Expr:
    while e.op is ExprOp.CAST:
        e = e.src[0]
    return e


def _replace_axis(ranges: tuple[Expr, ...], old: Expr, new: tuple[Expr, ...]) -> tuple[Expr, ...]:
    out: list[Expr] = []
    for r in ranges:
        out.extend(new if r is old else (r,))
    return tuple(out)


def _split_read(e: Expr, axis: int, factor: int) -> Expr:
    at = e.src[axis]
    return Expr(
        ExprOp.READ, e.dtype, (*e.src[:axis], at // factor, at % factor, *e.src[axis + 1 :]), e.arg
    )


def fuse(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """`for i in n: for j in m` -> `for i*j in n*m`, with i the quotient and j the remainder by m.

    `name` is i. Exact.
    """
    nest = _nest(kernel, nest_name)
    depth = _depth(kernel, nest, name)
    if depth + 1 >= len(nest.loops):
        raise ScheduleError(
            f"fuse({name}) in kernel {kernel.name}: no loop follows it in nest {nest_name}"
        )
    a, b = nest.loops[depth].range, nest.loops[depth + 1].range
    _refuse_padded(kernel, nest, a, f"fuse({name})")
    _refuse_padded(kernel, nest, b, f"fuse({name})")
    kept = [c for c in nest.computes if a in c.ranges or b in c.ranges]
    if any(not _follows(c.ranges, a, b) for c in kept):
        raise ScheduleError(
            f"fuse({name}) in kernel {kernel.name}: {a} and {b} are axes of a kept value, "
            "but not neighbours"
        )
    if any(child.at == (nest_name, depth + 1) for child in kernel.nests):
        raise ScheduleError(
            f"fuse({name}) in kernel {kernel.name}: something is computed between {a} and {b}"
        )
    both_ranges = range_(f"{a.name}*{b.name}", a.size * b.size)
    kernel = _map_all(kernel, {a: both_ranges // b.size, b: both_ranges % b.size})
    nest = _nest(kernel, nest_name)
    loops = (*nest.loops[:depth], Loop(both_ranges), *nest.loops[depth + 2 :])
    axis = {c.name: c.ranges.index(a) for c in kept}
    computes = tuple(
        replace(c, ranges=(*c.ranges[: axis[c.name]], both_ranges, *c.ranges[axis[c.name] + 2 :]))
        if c.name in axis
        else c
        for c in nest.computes
    )
    kernel = kernel.with_nest(replace(nest, computes=computes, loops=loops))
    kernel = _move_children(kernel, nest_name, lambda d: d if d <= depth else d - 1)
    return map_reads(kernel, set(axis), lambda e: _fuse_read(e, axis[e.arg], b.size))


def _follows(ranges: tuple[Expr, ...], a: Expr, b: Expr) -> bool:
    return a in ranges and ranges[ranges.index(a) + 1 : ranges.index(a) + 2] == (b,)


def _fuse_read(e: Expr, axis: int, size: Expr) -> Expr:
    at = e.src[axis] * size + e.src[axis + 1]
    return Expr(ExprOp.READ, e.dtype, (*e.src[:axis], at, *e.src[axis + 2 :]), e.arg)


def _move_children(kernel: Kernel, nest_name: str, new_depth: Callable[[int], int]) -> Kernel:
    nests = []
    for n in kernel.nests:
        if n.at is not None and n.at[0] == nest_name:
            n = replace(n, at=(nest_name, new_depth(n.at[1])))
        nests.append(n)
    return replace(kernel, nests=tuple(nests))


def reorder(kernel: Kernel, nest_name: str, names: Sequence[str]) -> Kernel:
    """The loops of a nest in another order; what hangs in it moves out to where all its ranges are
    still open.

    Exact for ranges that are kept. Re-associates where ranges that are combined over change their
    order among themselves.
    """
    nest = _nest(kernel, nest_name)
    old = [loop.range.name for loop in nest.loops]
    if sorted(names) != sorted(old):
        raise ScheduleError(
            f"reorder({list(names)}) in kernel {kernel.name}: nest {nest_name} has the loops {old}"
        )
    loops = tuple(nest.loops[old.index(n)] for n in names)
    kernel = kernel.with_nest(replace(nest, loops=loops))
    position = {loop.range: d + 1 for d, loop in enumerate(loops)}
    place: dict[str, int] = {}
    nests = []
    for n in kernel.nests:  # producers come first, so that what they need is known
        if n.at is not None and n.at[0] == nest_name:
            family = [kernel.by_name[m] for m in descendants(kernel, n.name)]
            found = [e for m in family for e in expressions(m)]
            needed = [position[r] for e in found for r in e.ranges if r in position]
            needed += [place[e.arg] for e in reads(found) if e.arg in place]
            depth = max(needed, default=0)
            place.update((c.name, depth) for c in n.computes)
            n = replace(n, at=(nest_name, depth))
        nests.append(n)
    return replace(kernel, nests=tuple(nests))


def _set_kind(kernel: Kernel, nest_name: str, name: str, kind: Kind) -> Kernel:
    nest = _nest(kernel, nest_name)
    depth = _depth(kernel, nest, name)
    loop = nest.loops[depth]
    free = kind in (Kind.PARALLEL, Kind.THREAD) and _is_free(kernel, nest, loop.range)
    if kind in (Kind.PARALLEL, Kind.VECTOR, Kind.THREAD) and scatters(nest) and not free:
        raise ScheduleError(
            f"{kind.name.lower()}({name}) in kernel {kernel.name}: a value says where {nest_name} "
            "stores, and two iterations may store to one place; leave its loops serial"
        )
    if kind is not Kind.PARALLEL and not loop.range.size.is_const:
        raise ScheduleError(
            f"{kind.name.lower()}({name}) in kernel {kernel.name}: its size {loop.range.size} "
            "is not constant; split it first"
        )
    loops = (*nest.loops[:depth], replace(loop, kind=kind), *nest.loops[depth + 1 :])
    return kernel.with_nest(replace(nest, loops=loops))


def _is_free(kernel: Kernel, nest: Nest, r: Expr) -> bool:
    """Whether the iterations of a loop store to different elements, to which no other root does."""
    stores = [c.store for c in nest.computes if c.store is not None]
    slots = {s.slot for s in stores}
    others = [c.store for n in kernel.roots if n.name != nest.name for c in n.computes]
    if any(s is not None and s.slot in slots for s in others):
        return False
    return all(owns(s, r) for s in stores)


def vectorize(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """The iterations of a loop become the lanes of vectors. Its size is constant. Exact."""
    return _set_kind(kernel, nest_name, name, Kind.VECTOR)


def unroll(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """The iterations of a loop become copies of its body. Its size is constant. Exact."""
    return _set_kind(kernel, nest_name, name, Kind.UNROLL)


def transpose(kernel: Kernel, nest_name: str, along: str, across: str) -> Kernel:
    """A square of values is computed as vectors along one range, and stored along the other.

    Both are the last loops, of one constant size, a power of two. Exact.
    """
    nest = _nest(kernel, nest_name)
    last = nest.loops[-2:]
    sizes = [loop.range.size for loop in last]
    fits = [loop.range.name for loop in last] == [along, across] and sizes[0] is sizes[-1]
    plain = all(c.monoid is None for c in nest.computes)
    if not (fits and plain and sizes[0].is_const and sizes[0].arg & (sizes[0].arg - 1) == 0):
        raise ScheduleError(
            f"transpose({along}, {across}) in kernel {kernel.name}: these must be the last two "
            f"loops, of one size that is a power of two, and reduce nothing; {nest_name} ends "
            f"with {[loop.range.name for loop in last]}"
        )
    turned = (replace(last[0], kind=Kind.TRANSPOSE), replace(last[1], kind=Kind.VECTOR))
    return kernel.with_nest(replace(nest, loops=(*nest.loops[:-2], *turned)))


def parallel(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """The iterations of a root nest's outermost loop become the kernel's chunks. Exact."""
    nest = _nest(kernel, nest_name)
    depth = _depth(kernel, nest, name)
    if nest.at is not None or depth != 0 or _is_combined(nest, nest.loops[0].range):
        raise ScheduleError(
            f"parallel({name}) in kernel {kernel.name}: only the outermost loop of a root nest "
            "can be shared out"
        )
    r = nest.loops[0].range
    for inner in kernel.nests:
        for c in inner.computes:
            if inner is nest or c.store is None or not _stores_in(kernel, inner, r):
                continue
            if c.store.index.linear()[0].get(r, 0) == 0 and not owns(c.store, r):
                raise ScheduleError(
                    f"parallel({name}) in kernel {kernel.name}: {inner.name} is stored to one "
                    f"place in several iterations of {name}; share out fewer loops"
                )
    shared = _set_kind(kernel, nest_name, name, Kind.PARALLEL)
    if is_ordered(kernel, nest_name):
        raise ScheduleError(
            f"parallel({name}) in kernel {kernel.name}: {nest_name} and another nest use memory "
            "that one of them stores to, and chunks are done in any order; leave its loops serial"
        )
    return shared


def bind(
    kernel: Kernel, nest_name: str, name: str, axis: str = "thread", step: int | None = None
) -> Kernel:
    """The iterations of a loop are done by the threads of a block, one each; for the axis "block",
    by the blocks, as `parallel` says.

    Threads whose numbers are `step` apart do neighbouring iterations; where it is not given, the
    loops around a nest are the digits of the thread's number, the outermost the highest.

    Binding a loop that is combined over re-associates, and takes a power of two of threads.
    Otherwise exact.
    """
    if axis == "block":
        return parallel(kernel, nest_name, name)
    if axis != "thread":
        raise ScheduleError(
            f"bind({name}, {axis!r}) in kernel {kernel.name}: the axis is thread or block"
        )
    kernel = _set_kind(kernel, nest_name, name, Kind.THREAD)
    nest = _nest(kernel, nest_name)
    loops = [replace(o, step=step) if o.range.name == name else o for o in nest.loops]
    return kernel.with_nest(replace(nest, loops=tuple(loops)))


def compute_at(kernel: Kernel, nest_name: str, depth: int, inside: bool = False) -> Kernel:
    """Compute a nest further out: it gets a loop of its own for each of its consumer's loops that
    it leaves, and keeps a tile of values.

    What hangs in it leaves the new loops in its turn, or stays inside of them. The tile is in
    registers if those loops are lanes and copies. Exact.
    """
    nest = _nest(kernel, nest_name)
    if nest.at is None or not 0 <= depth <= nest.at[1]:
        raise ScheduleError(
            f"compute_at({nest_name}, {depth}) in kernel {kernel.name}: it hangs at {nest.at}"
        )
    parent = kernel.by_name[nest.at[0]]
    family = descendants(kernel, nest_name)
    used = {r for n in family for e in expressions(kernel.by_name[n]) for r in e.ranges}
    left = [loop for loop in parent.loops[depth : nest.at[1]] if loop.range in used]
    clones = {
        loop.range: range_(f"{loop.range.name}@{nest_name}", loop.range.size) for loop in left
    }
    nests = tuple(mapped(n, clones) if n.name in family else n for n in kernel.nests)
    kernel = replace(kernel, nests=nests)
    own = {c.name for c in nest.computes}
    extra = tuple(loop.range for loop in left)
    kernel = map_reads(
        kernel, own, lambda e: Expr(ExprOp.READ, e.dtype, e.src + extra, e.arg), family
    )
    nest = _nest(kernel, nest_name)
    axes = tuple(clones[loop.range] for loop in left)
    computes = tuple(
        c if c.store is not None else replace(c, ranges=c.ranges + axes) for c in nest.computes
    )
    new_loops = tuple(replace(loop.mapped(clones), range=clones[loop.range]) for loop in left)
    loops = nest.loops + new_loops
    kernel = kernel.with_nest(Nest(nest.name, computes, loops, (parent.name, depth)))
    for child in [n for n in kernel.nests if n.at is not None and n.at[0] == nest_name]:
        assert child.at is not None
        inner = {
            r
            for n in descendants(kernel, child.name)
            for e in expressions(kernel.by_name[n])
            for r in e.ranges
        }
        if inner & set(axes):  # what hangs in the nest leaves the new loops in its turn
            kernel = kernel.with_nest(
                replace(kernel.by_name[child.name], at=(nest_name, len(loops)))
            )
            if not inside:
                kernel = compute_at(kernel, child.name, child.at[1])
    return kernel


def enter(kernel: Kernel, nest_name: str, host_name: str, depth: int) -> Kernel:
    """A root nest is done inside of the first loops of the next one, a part for each iteration.

    `for j: a[j]; for j: b[j]` -> `for j: a[j]; b[j]`, where iteration j of both stores to the same
    part of a buffer, and to no other. Exact.
    """
    nest, host = _nest(kernel, nest_name), _nest(kernel, host_name)
    pairs = list(zip(nest.loops[:depth], host.loops[:depth], strict=True))
    stores = [c.store for n in (nest, host) for c in n.computes if c.store is not None]
    same = len({s.slot for s in stores}) == 1 and len(kernel.roots) == len(kernel.nests) == 2
    for a, b in pairs:
        digits = {owned_digit(s, r) for s in stores for r in (a.range, b.range) if _has(s, r)}
        same = same and len(digits) == 1 and None not in digits
    places = {s.index for s in stores}
    found = [e for n in (nest, host) for e in toposort(expressions(n)) if e.op is ExprOp.LOAD]
    if not same or any(e.arg == stores[0].slot and e.src[0] not in places for e in found):
        raise ScheduleError(
            f"enter({nest_name}, {host_name}, {depth}) in kernel {kernel.name}: the iterations of "
            f"their loops do not store to the same parts of one buffer"
        )
    ranges = {a.range: b.range for a, b in pairs}
    inside = mapped(replace(nest, loops=nest.loops[depth:], at=(host_name, depth)), ranges)
    return kernel.with_nest(inside)


def _has(store: Store, r: Expr) -> bool:
    return r in store.index.ranges


def limit(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """A loop runs without the first and last iterations that conditions on indices make useless.

    Exact, but that 0 times an infinity or NaN, which would be NaN, counts as nothing there.
    """
    nest = _nest(kernel, nest_name)
    depth = _depth(kernel, nest, name)
    loop = nest.loops[depth]
    start, end = start_of(kernel, nest, depth), end_of(kernel, nest, depth)
    plain = loop.peel is None and loop.kind is Kind.SERIAL
    if (start is None and end is None) or not plain:
        raise ScheduleError(
            f"limit({name}) in kernel {kernel.name}: no condition makes its first or last "
            "iterations useless, or it is not a plain loop"
        )
    loops = (*nest.loops[:depth], replace(loop, start=start, end=end), *nest.loops[depth + 1 :])
    return kernel.with_nest(replace(nest, loops=loops))


def accumulate(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """What a loop adds to memory, one iteration after the other, becomes a sum that is added once.

    `for k in n: b[i] = (b[i] if j + k > 0) + x` -> `b[i] = (b[i] if j > 0) + (for k in n: s sum=
    x)`. The nest of the sum is called `<nest>.sum`. Re-associates.
    """
    nest = _nest(kernel, nest_name)
    depth = _depth(kernel, nest, name)
    r = nest.loops[depth].range
    c = nest.computes[0]
    added = _added(c, r)
    hangs = any(n.at is not None and n.at[0] == nest_name for n in kernel.nests)
    opened = frozenset(loop.range for _, _, loop in kernel.path(nest)) - {r}
    if added is None or c.store is None or hangs or len(nest.computes) > 1:
        raise ScheduleError(
            f"accumulate({name}) in kernel {kernel.name}: nest {nest_name} does not add to memory "
            f"at a place that is the same for all of {name}, or something hangs in it"
        )
    before, term = added
    end = None
    for part in conjuncts(c.store.valid):
        last = end_by(part, r, opened) if part.ranges <= opened | {r} else None
        if r in part.ranges and last is not None:
            end = last if end is None else minimum(end, last)
        elif r in part.ranges:
            raise ScheduleError(
                f"accumulate({name}) in kernel {kernel.name}: it is not the first iterations that "
                f"{part} holds for"
            )
    first = {r: const(0)}
    index, valid = c.store.index, c.store.valid.substitute(first)
    old = load(c.store.slot, term.dtype, index, before.substitute(first))
    total = Compute(f"{c.name}.sum", term, (), MONOIDS["sum"])
    value = alu(ExprOp.ADD, old, Expr(ExprOp.READ, term.dtype, (), total.name))
    loops = (*nest.loops[:depth], *nest.loops[depth + 1 :])
    store = replace(c.store, valid=valid)
    kernel = kernel.with_nest(
        replace(nest, computes=(replace(c, value=value, store=store),), loops=loops)
    )
    inner = Nest(total.name, (total,), (Loop(r, end=end),), (nest_name, len(loops)))
    return kernel.insert_before(nest_name, inner)


def _added(c: Compute, r: Expr) -> tuple[Expr, Expr] | None:
    """When a compute adds to what it finds in memory, and what.

    None if it does not, at one place for all of a range, from the second iteration on at least.
    """
    if c.store is None or c.value.op is not ExprOp.ADD or r in c.store.index.ranges:
        return None
    old, term = c.value.src
    if old.op is not ExprOp.LOAD or (old.arg, old.src[0]) != (c.store.slot, c.store.index):
        return None
    if any(e.op is ExprOp.LOAD and e.arg == c.store.slot for e in toposort([term])):
        return None
    later = {r: range_(f"{r.name}.later", r.size - 1) + 1} if r.size.max > 1 else {}
    known = set(conjuncts(c.store.valid))
    if any(p.substitute(later) is not TRUE for p in conjuncts(old.src[1]) if p not in known):
        return None
    return old.src[1], term


def overwrite(kernel: Kernel, name: str, old: str) -> Kernel:
    """A kept value takes the memory of another, which it reads at the same place only, and which
    nothing reads afterwards. Exact.
    """
    owner = kernel.owner.get(name)
    if owner is None or not can_overwrite(kernel, name, old):
        raise ScheduleError(
            f"overwrite({name}, {old}) in kernel {kernel.name}: {name} is not computed from "
            f"{old} in place, or {old} is read again"
        )
    computes = tuple(replace(c, over=old) if c.name == name else c for c in owner.computes)
    return kernel.with_nest(replace(owner, computes=computes))


def group(kernel: Kernel, nest_name: str, names: Sequence[str]) -> Kernel:
    """Partial results for each value of some ranges that are combined over, then one reduce over
    these. Re-associates.

    The partial nest is called `<nest>.p`; it keeps the loops, the named ones last and as axes of
    what it keeps.
    """
    nest = _nest(kernel, nest_name)
    named = [nest.loops[_depth(kernel, nest, n)] for n in names]
    if not all(_is_combined(nest, loop.range) for loop in named):
        raise ScheduleError(
            f"group({list(names)}) in kernel {kernel.name}: nest {nest_name} does not combine "
            "over all of them"
        )
    partial_name = f"{nest_name}.p"
    first = tuple(loop for loop in nest.loops if loop not in named)
    axes = tuple(loop.range for loop in named)
    partials = []
    finals = []
    fresh = {
        loop.range: range_(f"{loop.range.name}@{nest_name}", loop.range.size) for loop in nest.loops
    }
    for c in nest.computes:
        if c.monoid is None:
            partials.append(c)
            continue
        name = f"{c.name}.p"
        partials.append(replace(c, name=name, ranges=c.ranges + axes))
        kept = tuple(fresh[r] for r in c.ranges)
        read = Expr(ExprOp.READ, c.value.dtype, (*kept, *(fresh[r] for r in axes)), name)
        finals.append(Compute(c.name, read, kept, c.monoid))
    kept_loops = [loop for loop in first if not _is_combined(nest, loop.range)]
    final_loops = tuple(Loop(fresh[loop.range], loop.kind) for loop in [*kept_loops, *named])
    final = Nest(nest_name, tuple(finals), final_loops, nest.at)
    partial = Nest(partial_name, tuple(partials), (*first, *named), nest.at)
    kernel = kernel.with_nest(final).insert_before(nest_name, partial)
    nests = tuple(
        replace(n, at=(partial_name, n.at[1])) if n.at is not None and n.at[0] == nest_name else n
        for n in kernel.nests
    )
    return replace(kernel, nests=nests)


def stage(
    kernel: Kernel,
    nest_name: str,
    slot: int,
    at: str,
    depth: int,
    order: Sequence[str],
    name: str,
    number: int = 0,
    what: str = "load",
) -> Kernel:
    """Copy what a nest loads from a buffer inside some loops of `at` to scratch, once, in the
    layout given by `order`; `pack`.

    `order` names the ranges, outermost first, that become the axes of the copy: all those inside
    that the load varies with. `"y+k"` names ranges that the load takes only by a sum, as the rows
    and taps of a window: they become one axis, as long as the sum has values. `number` says which
    of the different loads of the buffer it is. Masked elements are 0 in the copy, so that its
    readers need no mask but that of some of the ranges of a sum. With `what` "value" it is not the
    elements that are copied, but the largest value that is computed from them alone. Exact.
    """
    nest = _nest(kernel, nest_name)
    found = [e for e in toposort(expressions(nest)) if e.op is ExprOp.LOAD and e.arg == slot]
    if number >= len(found):
        raise ScheduleError(
            f"stage(b{slot}, number {number}) in kernel {kernel.name}: nest {nest_name} has "
            f"{len(found)} different loads of it"
        )
    element = found[number]
    inside = {r.name: r for r in _ranges_inside(kernel, nest, at, depth) if r in element.ranges}
    groups = [entry.split("+") for entry in order]
    if sorted(n for group in groups for n in group) != sorted(inside):
        raise ScheduleError(
            f"stage(b{slot}) in kernel {kernel.name}: it varies inside with {sorted(inside)}, "
            f"not {sorted(order)}"
        )
    value = _largest_of(nest, element) if what == "value" else element
    copied = element
    axes, positions = [], []
    valid = TRUE
    for group in groups:
        members = [inside[n] for n in group]
        window = Window.of(element, members)
        if window is None:
            raise ScheduleError(
                f"stage(b{slot}) in kernel {kernel.name}: it varies with {group} by more than "
                "one sum of them"
            )
        axis = range_(f"{'+'.join(group)}@{name}", window.extent)
        copied = window.moved(copied, axis)
        for part in window.widened(element):
            if not all(_is_lost(kernel, nest, c, part) for c in nest.computes):
                valid = both(valid, part)
        axes.append(axis)
        positions.append(window.position)
    copy = Compute(name, value.substitute({element: copied}), tuple(axes))
    fill = Nest(name, (copy,), tuple(Loop(r) for r in axes), (at, depth))
    read = Expr(ExprOp.READ, value.dtype, tuple(positions), name)
    masked = select(valid, read, value.substitute({element: const(0, element.dtype)}))
    kernel = kernel.with_nest(mapped(nest, {value: masked}))
    first = next(
        n.name
        for n in kernel.nests
        if n.name == nest_name or n.name in descendants(kernel, nest_name)
    )
    return kernel.insert_before(first, fill)


def _is_lost(kernel: Kernel, nest: Nest, c: Compute, condition: Expr) -> bool:
    """Whether what a value is where a condition fails is neither stored nor combined."""
    combined = {loop.range for loop in nest.loops}.difference(c.ranges)
    if c.monoid is not None and not combined.isdisjoint(condition.ranges):
        return False
    if c.store is not None:
        return condition in conjuncts(c.store.valid)
    users = [(n, user) for n in kernel.nests for user in n.computes if user is not c]
    return all(
        _is_lost(kernel, n, user, condition.substitute(dict(zip(c.ranges, e.src, strict=True))))
        for n, user in users
        for e in reads([user.value])
        if e.arg == c.name
    )


def reuse(kernel: Kernel, nest_name: str, slot: int, name: str, number: int = 0) -> Kernel:
    """What a nest loads from a buffer is read from a copy that `stage` made for another nest.

    The loops of the nest that its load varies with, inside of the place of the copy, have the sizes
    of the copy's axes, in their order. `number` says which of the different loads of the buffer it
    is. Exact.
    """
    nest = _nest(kernel, nest_name)
    copy = kernel.computes.get(name)
    found = [e for e in toposort(expressions(nest)) if e.op is ExprOp.LOAD and e.arg == slot]
    element = found[number] if number < len(found) else None
    varies = frozenset() if element is None or copy is None else element.ranges - copy.value.ranges
    own = [loop.range for loop in nest.loops if loop.range in varies]
    fits = copy is not None and [r.size for r in own] == [r.size for r in copy.ranges]
    if copy is None or element is None or not fits:
        raise ScheduleError(
            f"reuse(b{slot}, number {number}, {name}) in kernel {kernel.name}: nest {nest_name} "
            f"has {len(found)} different loads of it, or none along loops of the copy's sizes"
        )
    if element.substitute(dict(zip(own, copy.ranges, strict=True))) is not copy.value:
        raise ScheduleError(
            f"reuse(b{slot}, number {number}, {name}) in kernel {kernel.name}: nest {nest_name} "
            f"loads {element}, which is not what {name} holds"
        )
    read = Expr(ExprOp.READ, element.dtype, tuple(own), name)
    return kernel.with_nest(mapped(nest, {element: read}))


def _largest_of(nest: Nest, element: Expr) -> Expr:
    """The largest value of a nest that varies by one load only; the load, if there are several."""
    values = [c.value for c in nest.computes]
    made = {element}
    used: set[Expr] = set()
    for e in toposort(values):
        parts = [s for s in e.src if s in made]
        if parts and all(s in made or not s.ranges for s in e.src):
            made.add(e)
        else:
            used.update(parts)
    largest = [e for e in made if e in used or e in values]
    alone = len(largest) == 1 and not any(reads(largest))
    return largest[0] if alone else element


def pad(kernel: Kernel, nest_name: str, name: str, extra: int) -> Kernel:
    """Each step along an axis of what a nest keeps is `extra` places longer in scratch memory.

    So what is one step apart falls into other banks. Exact.

    >>> from ferrule.dtype import dtypes
    >>> i, j = range_("i", 4), range_("j", 8)
    >>> copy = Compute("a", load(1, dtypes.float32, i + j * 4), (i, j))
    >>> kernel = Kernel("turn", (Nest("a", (copy,), (Loop(i), Loop(j))),), (dtypes.float32,) * 2)
    >>> pad(kernel, "a", "i", 1).computes["a"].place((i, j))
    ((i * 9) + j)
    """
    nest = _nest(kernel, nest_name)
    r = nest.loops[_depth(kernel, nest, name)].range
    kept = [c for c in nest.computes if r in c.ranges]
    if extra < 0 or not kept or any(c.over is not None for c in kernel.computes.values()):
        raise ScheduleError(
            f"pad({name}, {extra}) in kernel {kernel.name}: it is no axis of what {nest_name} "
            "keeps, or values are kept over one another, or the step is shorter"
        )
    computes = tuple(
        replace(c, padding=(*c.padding, (r, extra))) if c in kept else c for c in nest.computes
    )
    return kernel.with_nest(replace(nest, computes=computes))


def _ranges_inside(kernel: Kernel, nest: Nest, at: str, depth: int) -> list[Expr]:
    """The ranges of the loops around the body of a nest that are open only inside some loops of
    `at`.
    """
    return [
        loop.range
        for n, d, loop in kernel.path(nest)
        if (n == at and d >= depth) or (n != at and _hangs_below(kernel, n, at, depth))
    ]


def _hangs_below(kernel: Kernel, name: str, at: str, depth: int) -> bool:
    """Whether a nest is computed inside `at` with at least `depth` of its loops open."""
    nest = kernel.by_name[name]
    while nest.at is not None:
        if nest.at[0] == at:
            return nest.at[1] >= depth
        nest = kernel.by_name[nest.at[0]]
    return False


def keep(kernel: Kernel, reduce_name: str, consumer_name: str) -> Kernel:
    """Keep a row of what a reduce computes on the way, for a consumer that computes it again at the
    same place.

    Both have one loop left at the place where the reduce hangs, of one size. What is kept is the
    largest costly value that both share. Exact.
    """
    nest = _nest(kernel, reduce_name)
    consumer = _nest(kernel, consumer_name)
    shared = shared_row(kernel, nest, consumer)
    if shared is None:
        raise ScheduleError(
            f"keep({reduce_name}, {consumer_name}) in kernel {kernel.name}: they share no "
            "costly value"
        )
    mine, theirs = shared
    r = nest.loops[-1].range
    j = consumer.loops[-1].range
    name = f"{reduce_name}.row"
    row = Compute(name, mine, (r,))
    kernel = kernel.with_nest(replace(nest, computes=(row, *nest.computes)))
    read = Expr(ExprOp.READ, theirs.dtype, (j,), name)
    return kernel.with_nest(mapped(_nest(kernel, consumer_name), {theirs: read}))


COSTLY = frozenset({ExprOp.EXP2, ExprOp.LOG2, ExprOp.SIN, ExprOp.COS})


def shared_row(kernel: Kernel, nest: Nest, consumer: Nest) -> tuple[Expr, Expr] | None:
    """The largest value with a transcendental in it that a reduce and its consumer both compute, in
    the ranges of each.
    """
    if len(nest.loops) != 1 or not consumer.loops or len(nest.computes) != 1:
        return None
    r = nest.loops[0].range
    j = consumer.loops[-1].range
    if nest.at != (consumer.name, len(consumer.loops) - 1) or r.size is not j.size:
        return None
    below = set(toposort([nest.computes[0].value]))
    candidates = toposort([c.value for c in consumer.computes])
    for e in reversed(candidates):
        if (
            j in e.ranges
            and e.op is not ExprOp.RANGE
            and any(x.op in COSTLY for x in toposort([e]))
        ):
            mine = e.substitute({j: r})
            if mine in below:
                return mine, e
    return None


def merge(kernel: Kernel, first_name: str, second_name: str) -> Kernel:
    """Two nests at one place with loops of equal sizes, neither needing the other's result, become
    one pass. Exact.
    """
    first = _nest(kernel, first_name)
    second = _nest(kernel, second_name)
    if not mergeable(kernel, first, second):
        raise ScheduleError(
            f"merge({first_name}, {second_name}) in kernel {kernel.name}: their places or loops "
            "differ, or one needs the other"
        )
    mapping = {b.range: a.range for a, b in zip(first.loops, second.loops, strict=True)}
    family = descendants(kernel, second_name)
    found = [mapped(n, mapping) if n.name in family else n for n in kernel.nests]
    moved = next(n for n in found if n.name == second_name)
    computes = tuple(replace(c, ranges=tuple(mapping[r] for r in c.ranges)) for c in moved.computes)
    merged = Nest(second_name, first.computes + computes, first.loops, first.at)
    nests = [merged if n.name == second_name else n for n in found if n.name != first_name]
    renamed = tuple(
        replace(n, at=(second_name, n.at[1])) if n.at is not None and n.at[0] == first_name else n
        for n in nests
    )
    return replace(kernel, nests=renamed)


def mergeable(kernel: Kernel, first: Nest, second: Nest) -> bool:
    """Whether two nests can share their loops."""
    if first.at is None or first.at != second.at or len(first.loops) != len(second.loops):
        return False
    if any(
        a.range.size is not b.range.size for a, b in zip(first.loops, second.loops, strict=True)
    ):
        return False
    family = [kernel.by_name[name] for name in descendants(kernel, first.name)]
    names = {c.name for nest in family for c in nest.computes}
    needing = [kernel.by_name[name] for name in descendants(kernel, second.name)]
    return not any(e.arg in names for nest in needing for e in reads(expressions(nest)))


def tensorize(kernel: Kernel, nest_name: str, name: str, intrinsic_name: str) -> Kernel:
    """A sum of products of narrow floats takes several steps at once, by an instruction for it.

    `for k in n: s sum= cast(a[k]) * cast(b[k])` -> `for k.o in ceil(n / 2): s sum= dot(a[2*k.o &
    2*k.o + 1], b[2*k.o & 2*k.o + 1], 0)`, where the 0 stands for the sum so far. Where n is odd the
    last pair is filled with zeros, in a copy of the body. Re-associates, and takes subnormals for
    zeros. "mma16816" leaves the loops as they are and does the last, of 16 terms, at once, by the
    threads of a warp.

    >>> from ferrule.codegen.kernel import MONOIDS, show
    >>> from ferrule.dtype import dtypes
    >>> from ferrule.expr import cast, load
    >>> k = range_("k", 8)
    >>> a, b = (cast(load(slot, dtypes.bfloat16, k), dtypes.float32) for slot in (1, 2))
    >>> product = Compute("s", alu(ExprOp.MUL, a, b), (), MONOIDS["sum"])
    >>> nest = Nest("s", (product,), (Loop(k),))
    >>> dtypes_of_slots = (dtypes.float32, dtypes.bfloat16, dtypes.bfloat16)
    >>> print(show(tensorize(Kernel("dot", (nest,), dtypes_of_slots), "s", "k", "dpbf16ps")))
    kernel dot(b0: float32, b1: bfloat16, b2: bfloat16)
      # s
      for k.o in 4:
        s sum= dot(b1[(k.o * 2) & ((k.o * 2) + 1)], b2[(k.o * 2) & ((k.o * 2) + 1)], 0.0)
    """
    nest = _nest(kernel, nest_name)
    r = nest.loops[_depth(kernel, nest, name)].range
    if intrinsic_name == MMA.name:
        return _multiply_matrices(kernel, nest, r)
    intrinsic = INTRINSICS.get(intrinsic_name)
    if intrinsic is None:
        raise ScheduleError(
            f"tensorize({name}) in kernel {kernel.name}: no intrinsic {intrinsic_name}; there are "
            f"{sorted((*INTRINSICS, MMA.name))}"
        )
    if not (is_dot(nest, r, intrinsic) and r.size.is_const):
        raise ScheduleError(
            f"tensorize({name}) in kernel {kernel.name}: {intrinsic_name} adds up products of two "
            f"{intrinsic.source.name} loads that vary with the range, cast to "
            f"{intrinsic.result.name}, over a constant size; nest {nest_name} does not"
        )
    kernel = split(kernel, nest_name, name, intrinsic.terms, "peel")
    nest = _nest(kernel, nest_name)
    inner = nest.loops[_depth(kernel, nest, f"{name}.i")]
    depth = nest.loops.index(inner)
    (c,) = nest.computes
    product = c.value.src[1] if c.value.op is ExprOp.WHERE else c.value
    a, b = (_packed(factor.src[0], inner.range, intrinsic) for factor in product.src)
    value = Expr(ExprOp.DOT, intrinsic.result, (a, b, const(0, intrinsic.result)))
    last = {inner.range: inner.range.size - 1}
    loops = tuple(loop.mapped(last) for loop in nest.loops if loop is not inner)
    kernel = kernel.with_nest(replace(nest, computes=(replace(c, value=value),), loops=loops))
    return _move_children(kernel, nest_name, lambda d: d if d <= depth else d - 1)


def _multiply_matrices(kernel: Kernel, nest: Nest, r: Expr) -> Kernel:
    """The last loop of a tile of a warp's results is one instruction."""
    threads = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD][-2:]
    kinds = [(loop.kind, loop.range.size.max) for loop in nest.loops[-3:]]
    expected = [(Kind.UNROLL, MMA.rows // MMA.down), (Kind.VECTOR, MMA.near)]
    sizes = [thread.size.max for thread in threads]
    fits = (
        kinds == [*expected, (Kind.SERIAL, MMA.terms)]
        and nest.loops[-1].range is r
        and sizes == [MMA.down, MMA.across]
    )
    if not (fits and _is_matrix_product(nest, r, threads)):
        raise ScheduleError(
            f"tensorize({r}, {MMA.name}) in kernel {kernel.name}: nest {nest.name} does not add up "
            f"{MMA.terms} products of matrices of {[d.name for d in MMA.sources]} in the last of "
            f"its loops, after threads of {MMA.down} and {MMA.across}, copies of "
            f"{MMA.rows // MMA.down} and {MMA.near} lanes"
        )
    return _set_kind(kernel, nest.name, r.name, Kind.MATRIX)


def _is_matrix_product(nest: Nest, r: Expr, threads: Sequence[Expr]) -> bool:
    """Whether a nest adds up products of what varies with its rows and with its columns only."""
    (c,) = nest.computes
    down, across = threads
    half, lane = (loop.range for loop in nest.loops[-3:-1])
    adds = c.monoid is not None and c.monoid.op is ExprOp.ADD and c.value.op is ExprOp.MUL
    if not adds or c.value.dtype is not MMA.result_dtype:
        return False
    left, right = matrix_operands(c.value, down)
    sources = {f.src[0].dtype if f.op is ExprOp.CAST else f.dtype for f in (left, right)}
    return (
        len(sources) == 1
        and sources <= set(MMA.sources)
        and {down, half, r} <= left.ranges
        and {across, lane, r} <= right.ranges
        and left.ranges.isdisjoint((across, lane))
        and right.ranges.isdisjoint((down, half))
    )


def matrix_operands(product: Expr, row: Expr) -> tuple[Expr, Expr]:
    """The factor that varies with the rows of the result, and the other one."""
    a, b = product.src
    return (a, b) if row in a.ranges else (b, a)


def _packed(e: Expr, r: Expr, intrinsic: Intrinsic) -> Expr:
    """A load at 0 and at 1 of a range, as one value."""
    first, second = (e.substitute({r: const(i)}) for i in range(intrinsic.terms))
    return pack(first, second, intrinsic.packed)


def is_dot(nest: Nest, r: Expr, intrinsic: Intrinsic) -> bool:
    """Whether a nest adds up products of two loads over a range, both cast, as an intrinsic does.

    Both vary with the range, so that where it ends each can be filled with zeros.
    """
    if len(nest.computes) != 1 or not _is_combined(nest, r):
        return False
    (c,) = nest.computes
    assert c.monoid is not None
    if c.monoid.op is not ExprOp.ADD or c.value.op is not ExprOp.MUL:
        return False
    return c.value.dtype is intrinsic.result and all(
        factor.op is ExprOp.CAST
        and factor.src[0].op is ExprOp.LOAD
        and factor.src[0].dtype is intrinsic.source
        and r in factor.src[0].ranges
        for factor in c.value.src
    )


def nontemporal(kernel: Kernel, nest_name: str) -> Kernel:
    """The stores of a nest bypass the caches: for plain streaming outputs much larger than they
    are. Exact.
    """
    nest = _nest(kernel, nest_name)
    computes = tuple(
        replace(c, store=replace(c.store, nontemporal=True)) if c.store is not None else c
        for c in nest.computes
    )
    return kernel.with_nest(replace(nest, computes=computes))


PRIMITIVES: Final[dict[str, Callable[..., Kernel]]] = {
    "accumulate": accumulate,
    "bind": bind,
    "compute_at": compute_at,
    "enter": enter,
    "fuse": fuse,
    "group": group,
    "keep": keep,
    "limit": limit,
    "merge": merge,
    "nontemporal": nontemporal,
    "overwrite": overwrite,
    "pad": pad,
    "parallel": parallel,
    "reorder": reorder,
    "reuse": reuse,
    "split": split,
    "stage": stage,
    "tensorize": tensorize,
    "transpose": transpose,
    "unroll": unroll,
    "vectorize": vectorize,
}
