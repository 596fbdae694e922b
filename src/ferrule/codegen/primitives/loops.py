"""Primitives for the loops of a nest: they split, fuse, reorder and shorten loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ferrule.base.records import dataclass
from ferrule.codegen.analysis.loop_bounds import implied_conditions, loop_end, loop_start
from ferrule.codegen.analysis.loop_partitions import segments_of
from ferrule.codegen.kernel import (
    MONOIDS,
    Compute,
    Kernel,
    Kind,
    Loop,
    Nest,
    expressions,
    reads,
    stores_to_one_place,
)
from ferrule.codegen.primitives.editing import (
    ScheduleError,
    copy_name,
    depth_of,
    descendants,
    fused_name,
    is_combined,
    is_product_of_loads,
    map_all,
    map_reads,
    move_children,
    nest_of,
    part_names,
    refuse_carried,
    stores_in,
)
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import (
    TRUE,
    Expr,
    ExprOp,
    all_of,
    alu,
    both,
    cast,
    conjuncts,
    const,
    less,
    minimum,
    range_,
    rebuild,
    select,
    substitute,
    toposort,
    uncast,
    varying,
)

MAX_SKIP_SIZE = 32  # iterations of a loop that `skip` shortens, one for each bit of a uint32


def split(kernel: Kernel, nest_name: str, name: str, factor: int, tail: str = "mask") -> Kernel:
    """`for i in n` -> `for i.o in ceil(n / factor): for i.i in factor`, with `i = i.o * factor +
    i.i`.

    If the factor does not divide n, `tail` says what happens beyond the end. "mask" guards loads
    and stores. "peel" does so in a copy of the body for the last iteration. "clamp" lets loads
    repeat the last element and guards stores only; not for a range that is combined over. "shift"
    has the last `factor` elements in the last iteration, some of which are then stored twice.
    Exact.
    """
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    r = nest.loops[depth].range
    _refuse_tail(kernel, nest, r, factor, tail)
    repeated = [n.name for n in kernel.nests if n.name != nest_name and stores_in(kernel, n, r)]
    _refuse_limited(kernel, nest.loops[depth], repeated, factor, tail)
    outer_name, inner_name = part_names(name)
    outer = range_(outer_name, (r.size + (factor - 1)) // factor)
    inner = range_(inner_name, factor)
    exact = r.size.is_const and r.size.arg % factor == 0
    first = outer * factor if exact or tail != "shift" else minimum(outer * factor, r.size - factor)
    position = first + inner
    condition = TRUE if exact or tail == "shift" else less(position, r.size)
    _refuse_padded(kernel, nest, r, f"split({name})")
    refuse_carried(kernel, r, f"split({name})")
    ranges = {c.name: c.ranges for c in kernel.computes.values()}
    guard = _Split(r, position, condition, tail, ranges)
    inside, combined = {nest_name, *repeated}, is_combined(nest, r)
    nests = [guard.apply(n, owns=n.name in inside, combined=combined) for n in kernel.nests]
    kernel = replace(kernel, nests=tuple(nests))
    nest = nest_of(kernel, nest_name)
    peel = condition if tail == "peel" else TRUE
    kernel = kernel.with_nest(_with_split_loop(nest, depth, outer, inner, peel))
    kernel = move_children(kernel, nest_name, lambda d: d if d <= depth else d + 1)
    axes = {n: c.ranges.index(r) for c in nest.computes if r in c.ranges for n in c.names}
    return map_reads(kernel, set(axes), lambda e: _split_read(e, axes[e.arg], factor))


def _refuse_tail(kernel: Kernel, nest: Nest, r: Expr, factor: int, tail: str) -> None:
    """Raise an error if a range cannot be split with this tail, whatever its loop is like."""
    if factor < 1 or tail not in ("mask", "peel", "clamp", "shift"):
        raise ScheduleError(
            f"split({r.name}, {factor}, {tail!r}) in kernel {kernel.name}: the factor is at least "
            "1, the tail mask, peel, clamp or shift"
        )
    if tail == "shift" and not can_shift(kernel, nest, r, factor):
        raise ScheduleError(
            f"split({r.name}, {factor}, 'shift') in kernel {kernel.name}: what is computed twice "
            f"has to be the same both times, and there have to be {factor} elements; use mask or "
            "peel"
        )
    if tail == "clamp" and is_combined(nest, r):
        raise ScheduleError(
            f"split({r.name}, clamp) in kernel {kernel.name}: a range that is combined over "
            "cannot repeat elements; use mask or peel"
        )


def _refuse_limited(
    kernel: Kernel, loop: Loop, repeated: list[str], factor: int, tail: str
) -> None:
    """Raise an error for a loop that was limited, or a tail by which `repeated` nests would store
    twice.
    """
    limits = (loop.start, loop.end, loop.bitmask, loop.segments)
    if limits != (None, None, None, ()) or (tail == "clamp" and repeated):
        raise ScheduleError(
            f"split({loop.range.name}, {factor}, {tail!r}) in kernel {kernel.name}: it is limited, "
            f"or {repeated} would be stored twice; use mask or peel, and split first"
        )


def _with_split_loop(nest: Nest, depth: int, outer: Expr, inner: Expr, condition: Expr) -> Nest:
    """A nest with two loops in place of one; where `condition` may fail, the last iteration is
    peeled.
    """
    loop = nest.loops[depth]
    peel = both(_peel(loop), condition)
    loops = (
        *nest.loops[:depth],
        Loop(outer, loop.kind, None if peel is TRUE else peel, lineage=loop.descent),
        Loop(inner, lineage=loop.descent),
        *nest.loops[depth + 1 :],
    )
    computes = tuple(
        replace(c, ranges=_replace_axis(c.ranges, loop.range, (outer, inner)))
        for c in nest.computes
    )
    return replace(nest, computes=computes, loops=loops)


def can_shift(kernel: Kernel, nest: Nest, r: Expr, factor: int) -> bool:
    """True if a nest may compute elements of a loop again, and has at least `factor` of them.

    It is a root that only stores, each element to its own place, in buffers that it does not load
    from, and no nest hangs in it.
    """
    inside = any(n.at is not None and n.at[0] == nest.name for n in kernel.nests)
    stored = {None if c.store is None else c.store.slot for c in nest.computes}
    loaded = {e.arg for e in nest.nodes if e.op is ExprOp.LOAD}
    enough = r.size.is_const and r.size.arg >= factor
    alone = nest.at is None and not inside and not stores_to_one_place(nest)
    return enough and alone and stored.isdisjoint({None, *loaded})


def _refuse_padded(kernel: Kernel, nest: Nest, r: Expr, what: str) -> None:
    if any(r is padded for c in nest.computes for padded, _ in c.padding):
        raise ScheduleError(
            f"{what} in kernel {kernel.name}: {r} is an axis of {nest.name} that is padded "
            "already; pad it last"
        )


def _peel(loop: Loop) -> Expr:
    return TRUE if loop.peel is None else loop.peel


_Axes = Mapping[str, tuple[Expr, ...]]  # of stages, by name


@dataclass(frozen=True)
class _Split:
    """The effect of a split on the expressions of a nest."""

    range: Expr
    position: Expr
    condition: Expr
    tail: str
    axes: _Axes

    def expression(self, e: Expr) -> Expr:
        clamp = self.tail == "clamp"
        return _retarget(e, self.range, self.position, self.condition, self.axes, clamp=clamp)

    def _adds_nothing(self, c: Compute, value: Expr) -> bool:
        """True if a term of a sum is 0 beyond the end, because its factors are."""
        beyond = set(conjuncts(self.condition))
        masked = self.tail == "mask" and is_product_of_loads(c)
        return masked and all(
            beyond.issubset(conjuncts(uncast(factor).src[1])) for factor in value.src
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
            initial = None if c.initial is None else self.expression(c.initial)
            computes.append(replace(c, value=value, store=store, initial=initial))
        peel = {self.range: self.position}
        loops = tuple(loop.mapped(peel) for loop in nest.loops)
        return replace(nest, computes=tuple(computes), loops=loops)


def _retarget(
    e: Expr, r: Expr, position: Expr, condition: Expr, axes: _Axes, *, clamp: bool
) -> Expr:
    """An expression with `r` replaced by `position`.

    Loads that vary with it stay in bounds, by a mask or by a clamp. So do reads of stages,
    unless their `axes` are padded as much.
    """
    if r not in e.ranges:
        return e
    inside = {r: minimum(position, r.size - 1)}
    clamped = {r: alu(ExprOp.WHERE, condition, position, r.size - 1)}
    done: dict[Expr, Expr] = {r: position}
    for node in varying([e], frozenset((r,))):
        if node in done:
            continue
        if node.op is ExprOp.LOAD and condition is not TRUE:
            if clamp:
                moved = substitute(node.src, inside)
            else:
                # An index may be loaded too, by a load that has its mask already.
                moved = [done.get(s, s) for s in node.src]
                moved[1::2] = [both(valid, condition) for valid in moved[1::2]]
            done[node] = rebuild(node, tuple(moved))
            continue
        if node.op is ExprOp.READ and condition is not TRUE:
            moved = substitute(node.src, {r: position})
            sizes = [axis.size for axis in axes[node.arg]]
            inside_all = all(map(_is_inside, moved, sizes))
            moved = moved if inside_all else substitute(node.src, clamped)
            done[node] = Expr(ExprOp.READ, node.dtype, tuple(moved), node.arg)
            continue
        src = tuple([done.get(s, s) for s in node.src])
        done[node] = node if src == node.src else rebuild(node, src)
    return done[e]


def _replace_axis(ranges: tuple[Expr, ...], old: Expr, new: tuple[Expr, ...]) -> tuple[Expr, ...]:
    out: list[Expr] = []
    for r in ranges:
        out.extend(new if r is old else (r,))
    return tuple(out)


def _is_inside(index: Expr, size: Expr) -> bool:
    """True if an index is certainly below a size, which may be that of its own range."""
    return index.max < size.min or (index.op is ExprOp.RANGE and index.size is size)


def _split_read(e: Expr, axis: int, factor: int) -> Expr:
    at = e.src[axis]
    return Expr(
        ExprOp.READ, e.dtype, (*e.src[:axis], at // factor, at % factor, *e.src[axis + 1 :]), e.arg
    )


def fuse(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """`for i in n: for j in m` -> `for i*j in n*m`, with i the quotient and j the remainder by m.

    `name` is i. Exact.
    """
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    if depth + 1 >= len(nest.loops):
        raise ScheduleError(
            f"fuse({name}) in kernel {kernel.name}: no loop follows it in nest {nest_name}"
        )
    a, b = nest.loops[depth].range, nest.loops[depth + 1].range
    _refuse_padded(kernel, nest, a, f"fuse({name})")
    _refuse_padded(kernel, nest, b, f"fuse({name})")
    for r in (a, b):
        refuse_carried(kernel, r, f"fuse({name})")
    stages = [c for c in nest.computes if a in c.ranges or b in c.ranges]
    if any(not _follows(c.ranges, a, b) for c in stages):
        raise ScheduleError(
            f"fuse({name}) in kernel {kernel.name}: {a} and {b} are axes of a stage, "
            "but not neighbours"
        )
    if any(child.at == (nest_name, depth + 1) for child in kernel.nests):
        raise ScheduleError(
            f"fuse({name}) in kernel {kernel.name}: something is computed between {a} and {b}"
        )
    if any(loop.bitmask is not None for loop in nest.loops[depth : depth + 2]):
        raise ScheduleError(
            f"fuse({name}) in kernel {kernel.name}: only some iterations of {a} or {b} are run"
        )
    both_ranges = range_(fused_name(a.name, b.name), a.size * b.size)
    kernel = map_all(kernel, {a: both_ranges // b.size, b: both_ranges % b.size})
    nest = nest_of(kernel, nest_name)
    loops = (*nest.loops[:depth], Loop(both_ranges), *nest.loops[depth + 2 :])
    axis = {n: c.ranges.index(a) for c in stages for n in c.names}
    computes = tuple(
        replace(c, ranges=(*c.ranges[: axis[c.name]], both_ranges, *c.ranges[axis[c.name] + 2 :]))
        if c.name in axis
        else c
        for c in nest.computes
    )
    kernel = kernel.with_nest(replace(nest, computes=computes, loops=loops))
    kernel = move_children(kernel, nest_name, lambda d: d if d <= depth else d - 1)
    return map_reads(kernel, set(axis), lambda e: _fuse_read(e, axis[e.arg], b.size))


def _follows(ranges: tuple[Expr, ...], a: Expr, b: Expr) -> bool:
    return a in ranges and ranges[ranges.index(a) + 1 : ranges.index(a) + 2] == (b,)


def _fuse_read(e: Expr, axis: int, size: Expr) -> Expr:
    at = e.src[axis] * size + e.src[axis + 1]
    return Expr(ExprOp.READ, e.dtype, (*e.src[:axis], at, *e.src[axis + 2 :]), e.arg)


def reorder(kernel: Kernel, nest_name: str, names: Sequence[str]) -> Kernel:
    """Put the loops of a nest into another order.

    A nest that hangs in it moves out to where all its ranges are still open. Exact for result axes.
    Re-associates if combined ranges change their order among themselves.
    """
    nest = nest_of(kernel, nest_name)
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
            needed += [position[c.carried_by] for c in n.computes if c.carried_by in position]
            depth = max(needed, default=0)
            place.update((c.name, depth) for c in n.computes)
            n = replace(n, at=(nest_name, depth))
        nests.append(n)
    return replace(kernel, nests=tuple(nests))


def reverse(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Run the iterations of a loop in reverse order. Exact, as no value is made along the loop.

    >>> from ferrule.codegen.kernel import Compute, Store, show
    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.expr import load, range_
    >>> i = range_("i", 4)
    >>> copy = Compute("a", load(1, dtypes.float32, i), store=Store(0, i))
    >>> kernel = Kernel("copy", (Nest("a", (copy,), (Loop(i),)),), (dtypes.float32,) * 2)
    >>> print(show(reverse(kernel, "a", "i")))
    kernel copy(b0: float32, b1: float32)
      # a
      for i in 4:
        b0[i * -1 + 3] = b1[i * -1 + 3]
    """
    nest = nest_of(kernel, nest_name)
    loop = nest.loops[depth_of(kernel, nest, name)]
    made = [c for c in nest.computes if c.monoid is not None or loop.range in c.ranges]
    if made or loop.mapped({}) != Loop(loop.range, loop.kind):
        raise ScheduleError(
            f"reverse({name}) in kernel {kernel.name}: {nest_name} makes a value along it, or it "
            "does not run all of its iterations"
        )
    return map_all(kernel, {loop.range: loop.range.size - 1 - loop.range})


def limit(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Run a loop without the first and last iterations that conditions on indices make useless.

    Exact, with one exception: 0 times an infinity or NaN, which would be NaN, counts as nothing
    there. For a reduce along the loop, so does the lowest number of a float.
    """
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    loop = nest.loops[depth]
    start, end = loop_start(kernel, nest, depth), loop_end(kernel, nest, depth)
    if (start is None and end is None) or loop.kind is not Kind.SERIAL:
        raise ScheduleError(
            f"limit({name}) in kernel {kernel.name}: no condition makes its first or last "
            "iterations useless, or it is not a plain loop"
        )
    held = implied_conditions(kernel, nest, depth)
    limited = replace(loop, start=start, end=end, assumed=all_of(held) if held else None)
    loops = (*nest.loops[:depth], limited, *nest.loops[depth + 1 :])
    return kernel.with_nest(replace(nest, loops=loops))


def skip(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Run a loop without the iterations in which its nest stores nothing, found by loaded values.

    A bit is set before for each of the other iterations. `for i in 32: if c[i]: b[x[i]] = y` ->
    `for k in 32: s any= c[k] << k; for i in bits of s: b[x[i]] = y`. The nest that sets the bits is
    called `<nest>.bits`, its loop `<loop>@<nest>.bits`. Exact.
    """
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    loop = nest.loops[depth]
    conditions = _conditions_of(kernel, nest, depth)
    plain = loop == Loop(loop.range) and loop.range.size.is_const and loop.size <= MAX_SKIP_SIZE
    inside = any(
        n.at is not None and n.at[0] == nest_name and n.at[1] > depth for n in kernel.nests
    )
    if not conditions or not plain or inside:
        raise ScheduleError(
            f"skip({name}) in kernel {kernel.name}: nothing but the loops around it says whether "
            f"{nest_name} stores, or it is no plain loop of at most {MAX_SKIP_SIZE} iterations, or "
            "something is computed inside of it"
        )
    stores, mask = all_of(conditions), f"{nest_name}.bits"
    k = range_(copy_name(name, mask), loop.range.size)
    bit = alu(ExprOp.SHL, const(1, dtypes.uint32), cast(k, dtypes.uint32))
    value = alu(ExprOp.WHERE, stores.substitute({loop.range: k}), bit, const(0, dtypes.uint32))
    outside = [d + 1 for d, o in enumerate(nest.loops) if o.range in value.ranges]
    set_mask = Nest(
        mask,
        (Compute(mask, value, (), MONOIDS["any"]),),
        (Loop(k, lineage=loop.descent),),
        (nest_name, max(outside, default=0)),
    )
    found = Expr(ExprOp.READ, dtypes.uint32, (), mask)
    loops = list(nest.loops)
    loops[depth] = replace(loop, bitmask=found, assumed=stores)
    kernel = kernel.with_nest(replace(nest, loops=tuple(loops)))
    return kernel.insert_before(nest_name, set_mask)


def _conditions_of(kernel: Kernel, nest: Nest, depth: int) -> list[Expr]:
    """The conditions of a nest's store in a loop that do not change inside of the loop.

    Empty if they read stages, or buffers that the kernel stores to.
    """
    stores = [c.store for c in nest.computes]
    if len(stores) != 1 or stores[0] is None or nest.computes[0].monoid is not None:
        return []
    inner = {o.range for o in nest.loops[depth + 1 :]}
    found = [
        condition
        for condition in conjuncts(stores[0].valid)
        if nest.loops[depth].range in condition.ranges and inner.isdisjoint(condition.ranges)
    ]
    changed = {c.store.slot for c in kernel.computes.values() if c.store is not None}
    known = [e.op is not ExprOp.READ and e.arg not in changed for e in _memory_of(found)]
    return found if all(known) else []


def _memory_of(conditions: Sequence[Expr]) -> list[Expr]:
    memory = (ExprOp.LOAD, ExprOp.READ)
    return [e for e in toposort(conditions) if e.op in memory]


def segment(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Partition a loop: several loops, one after the other, in each of which some conditions are
    known.

    `for i in n: b[i] = where(i < k, x[i], y[i - k])` -> `for i in k: b[i] = x[i]; for i in k..n:
    b[i] = y[i - k]`. It is the last primitive that a loop may have. Exact.
    """
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    loop = nest.loops[depth]
    found = segments_of(kernel, nest, depth)
    runs = loop.kind in (Kind.SERIAL, Kind.PARALLEL) and loop.range not in nest.result_axes
    if not found or not runs:
        raise ScheduleError(
            f"segment({name}) in kernel {kernel.name}: no condition of {nest_name} changes a few "
            "times along it, or it is no loop that runs, or it is an axis of the nest's results"
        )
    loops = (
        *nest.loops[:depth],
        replace(loop, peel=None, segments=found),
        *nest.loops[depth + 1 :],
    )
    return kernel.with_nest(replace(nest, loops=loops))
