"""Primitives for scratch memory: which values are in it, and their layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferrule.codegen.analysis.window import Window
from ferrule.codegen.kernel import (
    BANK_LINE_BYTES,
    MAX_ACCESS_BYTES,
    Compute,
    Kernel,
    Loop,
    Nest,
    can_overwrite,
    reads,
    why_not_pipelined,
)
from ferrule.codegen.primitives.editing import (
    ScheduleError,
    copy_name,
    depth_of,
    descendants,
    map_reads,
    mapped,
    nest_of,
)
from ferrule.ir.expr import TRUE, Expr, ExprOp, both, conjuncts, const, range_, select, toposort


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
    """Copy the elements that a nest loads from a buffer to scratch memory, once, in the layout
    `order`.

    The copy is made inside of `depth` loops of `at`. `order` names the ranges that become its axes,
    outermost first: all those inside that the load varies with. `"y+k"` names ranges that the load
    uses only by a sum, as the rows and taps of a window: they become one axis, as long as the sum
    has values. `number` selects one of the different loads of the buffer. Masked elements are 0 in
    the copy, so its readers need no mask but one that depends on some of the ranges of a sum. If
    `what` is "value", not the elements are copied, but the largest value that is computed from them
    alone. Exact.
    """
    nest = nest_of(kernel, nest_name)
    element = _load_of(kernel, nest, slot, number)
    loops = [o for o in _loops_inside(kernel, nest, at, depth) if o.range in element.ranges]
    inside = {loop.range.name: loop.range for loop in loops}
    lineages = {loop.range.name: loop.descent for loop in loops}
    groups = [[entry] if entry in inside else entry.split("+") for entry in order]
    if sorted(n for group in groups for n in group) != sorted(inside):
        raise ScheduleError(
            f"stage(b{slot}) in kernel {kernel.name}: it varies inside with {sorted(inside)}, "
            f"not {sorted(order)}"
        )
    windows = [_window_of(kernel, element, [inside[n] for n in group]) for group in groups]
    axes = [
        range_(copy_name("+".join(group), name), window.extent)
        for group, window in zip(groups, windows, strict=True)
    ]
    copied = element
    for window, axis in zip(windows, axes, strict=True):
        copied = window.moved(copied, axis)
    value = _largest_of(nest, element) if what == "value" else element
    copy = Compute(name, value.substitute({element: copied}), tuple(axes))
    # An axis that stands for several ranges descends from none of them.
    made = [Loop(r, lineage=lineages.get(n, ())) for n, r in zip(order, axes, strict=True)]
    fill = Nest(name, (copy,), tuple(made), (at, depth))
    positions = tuple(window.position for window in windows)
    read = Expr(ExprOp.READ, value.dtype, positions, name)
    valid = _beyond_copy(kernel, nest, element, windows)
    masked = select(valid, read, value.substitute({element: const(0, element.dtype)}))
    kernel = kernel.with_nest(mapped(nest, {value: masked}))
    first = next(
        n.name
        for n in kernel.nests
        if n.name == nest_name or n.name in descendants(kernel, nest_name)
    )
    return kernel.insert_before(first, fill)


def _load_of(kernel: Kernel, nest: Nest, slot: int, number: int) -> Expr:
    """One of the different loads of a buffer in a nest."""
    found = [e for e in nest.nodes if e.op is ExprOp.LOAD and e.arg == slot]
    if number >= len(found):
        raise ScheduleError(
            f"stage(b{slot}, number {number}) in kernel {kernel.name}: nest {nest.name} has "
            f"{len(found)} different loads of it"
        )
    return found[number]


def _window_of(kernel: Kernel, element: Expr, members: list[Expr]) -> Window:
    """The axis of a copy that stands for some ranges of a load."""
    window = Window.of(element, members)
    if window is None:
        raise ScheduleError(
            f"stage(b{element.arg}) in kernel {kernel.name}: it varies with "
            f"{[member.name for member in members]} by more than one sum of them"
        )
    return window


def _beyond_copy(kernel: Kernel, nest: Nest, element: Expr, windows: list[Window]) -> Expr:
    """The part of a load's mask that the zeros of its copy do not represent."""
    valid = TRUE
    for window in windows:
        for part in window.widened(element):
            if not all(_is_lost(kernel, nest, c, part) for c in nest.computes):
                valid = both(valid, part)
    return valid


def _loops_inside(kernel: Kernel, nest: Nest, at: str, depth: int) -> list[Loop]:
    """The loops around the body of a nest that are open only inside of `depth` loops of `at`."""
    return [
        loop
        for n, d, loop in kernel.path(nest)
        if (n == at and d >= depth) or (n != at and _hangs_below(kernel, n, at, depth))
    ]


def _hangs_below(kernel: Kernel, name: str, at: str, depth: int) -> bool:
    """True if a nest is computed inside `at` with at least `depth` of its loops open."""
    nest = kernel.by_name[name]
    while nest.at is not None:
        if nest.at[0] == at:
            return nest.at[1] >= depth
        nest = kernel.by_name[nest.at[0]]
    return False


def _is_lost(kernel: Kernel, nest: Nest, c: Compute, condition: Expr) -> bool:
    """True if a value is neither stored nor combined where a condition fails."""
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


def _largest_of(nest: Nest, element: Expr) -> Expr:
    """The largest value of a nest that varies only with one load; the load itself if there are
    several.
    """
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
    alone = len(largest) == 1 and not list(reads(largest))
    return largest[0] if alone else element


def reuse(kernel: Kernel, nest_name: str, slot: int, name: str, number: int = 0) -> Kernel:
    """Read the elements that a nest loads from a copy that `stage` made for another nest.

    The nest's loops that its load varies with, inside of the place of the copy, have the sizes of
    the copy's axes, in their order. `number` selects one of the different loads of the buffer.
    Exact.
    """
    nest = nest_of(kernel, nest_name)
    copy = kernel.computes.get(name)
    found = [e for e in nest.nodes if e.op is ExprOp.LOAD and e.arg == slot]
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


def overwrite(kernel: Kernel, name: str, old: str) -> Kernel:
    """Let a stage take the memory of another one.

    Its nest reads the other value only at the same place, and no nest reads it afterwards. Exact.
    """
    owner = kernel.owner.get(name)
    if owner is None or not can_overwrite(kernel, name, old):
        raise ScheduleError(
            f"overwrite({name}, {old}) in kernel {kernel.name}: {name} is not computed from "
            f"{old} in place, or {old} is read again"
        )
    computes = tuple(replace(c, overwrites=old) if c.name == name else c for c in owner.computes)
    return kernel.with_nest(replace(owner, computes=computes))


def pad(kernel: Kernel, nest_name: str, name: str, extra: int) -> Kernel:
    """Make each step along an axis of a nest's stage `extra` places longer in scratch memory.

    Elements that are one step apart are then in other banks. Exact.

    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.expr import load
    >>> i, j = range_("i", 4), range_("j", 8)
    >>> copy = Compute("a", load(1, dtypes.float32, i + j * 4), (i, j))
    >>> kernel = Kernel("turn", (Nest("a", (copy,), (Loop(i), Loop(j))),), (dtypes.float32,) * 2)
    >>> pad(kernel, "a", "i", 1).computes["a"].place((i, j))
    i * 9 + j
    """
    nest = nest_of(kernel, nest_name)
    r = nest.loops[depth_of(kernel, nest, name)].range
    stages = [c for c in nest.computes if r in c.ranges]
    overwrites = any(c.overwrites is not None for c in kernel.computes.values())
    if extra < 0 or not stages or overwrites or any(c.swizzle for c in stages):
        raise ScheduleError(
            f"pad({name}, {extra}) in kernel {kernel.name}: it is no axis of a stage of "
            f"{nest_name}, or that is swizzled, or stages overwrite one another, or the step is "
            "shorter"
        )
    computes = tuple(
        replace(c, padding=(*c.padding, (r, extra))) if c in stages else c for c in nest.computes
    )
    return kernel.with_nest(replace(nest, computes=computes))


def prefetch(kernel: Kernel, nest_name: str, slot: int, distance: int) -> Kernel:
    """Fetch the element `distance` places later into the cache with each load of a nest from a
    buffer.

    Distance 0 fetches the places that the nest will store to or load from before the nests in its
    loops compute their values. An address beyond the buffer's end is not fetched. Exact.
    """
    nest = nest_of(kernel, nest_name)
    loaded = any(e.op is ExprOp.LOAD and e.arg == slot for e in nest.nodes)
    stored = any(c.store is not None and c.store.slot == slot for c in nest.computes)
    found = (loaded and distance >= 0) or (stored and distance == 0)
    if not found or slot in dict(nest.ahead):
        raise ScheduleError(
            f"prefetch(b{slot}, {distance}) in kernel {kernel.name}: nest {nest_name} loads "
            "nothing from there, or fetches from there already, or the distance is negative; it is "
            "0 for what is only stored"
        )
    return kernel.with_nest(replace(nest, ahead=(*nest.ahead, (slot, distance))))


def swizzle(kernel: Kernel, nest_name: str, name: str, pieces: int = 1) -> Kernel:
    """Let pieces of 16 bytes change places in their line of 128 bytes with each step along an axis.

    The number of the place is xored with that of the step, or `pieces` times it. Pieces at one
    place of eight steps are then in different banks, as adjacent pieces are, and memory is no
    longer than it need be. With two `pieces` that holds for four steps, two pieces at a time.
    Exact.

    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.expr import load
    >>> i, j = range_("i", 8), range_("j", 32)
    >>> copy = Compute("a", load(1, dtypes.float32, i * 32 + j), (i, j))
    >>> kernel = Kernel("rows", (Nest("a", (copy,), (Loop(i), Loop(j))),), (dtypes.float32,) * 2)
    >>> copy = swizzle(kernel, "a", "i").computes["a"]
    >>> [[copy.place((const(i), const(j))).arg for j in (0, 4, 28)] for i in (0, 1, 7)]
    [[0, 4, 28], [36, 32, 56], [252, 248, 224]]
    """
    nest = nest_of(kernel, nest_name)
    r = nest.loops[depth_of(kernel, nest, name)].range
    stages = [c for c in nest.computes if r in c.ranges]
    steps = [c.strides(c.ranges)[c.ranges.index(r)] * c.value.dtype.itemsize for c in stages]
    whole = pieces >= 1 and all(
        n % MAX_ACCESS_BYTES == 0 and max(n, BANK_LINE_BYTES) % min(n, BANK_LINE_BYTES) == 0
        for n in steps
    )
    if not (stages and whole) or any(c.padding or c.overwrites is not None for c in stages):
        raise ScheduleError(
            f"swizzle({name}) in kernel {kernel.name}: it is no axis of a stage of {nest_name}, "
            f"or that is padded or overwrites another, or steps of {steps} bytes are no pieces of "
            f"{MAX_ACCESS_BYTES} that fill lines of {BANK_LINE_BYTES}"
        )
    swizzle_of = {c.name: n // c.value.dtype.itemsize for c, n in zip(stages, steps, strict=True)}
    computes = [
        replace(c, swizzle=swizzle_of[c.name], pieces=pieces) if c.name in swizzle_of else c
        for c in nest.computes
    ]
    return kernel.with_nest(replace(nest, computes=tuple(computes)))


def pipeline(kernel: Kernel, nest_name: str, depth: int) -> Kernel:
    """Pipeline the copies of a nest: later ones are on their way while earlier ones are used.

    `for k: a = load(k); use(a)` -> `a0 = load(0); for k: a[k + 1] = load(k + 1); use(a[k])`. There
    is memory for `depth` copies, and each is made `depth - 1` iterations ahead, of the loop that
    the nest hangs in. A copy that no iteration reads is not loaded. Exact.
    """
    nest = nest_of(kernel, nest_name)
    computes = tuple(replace(c, pipeline_depth=depth) for c in nest.computes)
    out = kernel.with_nest(replace(nest, computes=computes))
    problem = (
        "there are two at least" if depth < 2 else why_not_pipelined(out, out.by_name[nest_name])
    )
    if any(c.overwrites in {d.name for d in nest.computes} for c in kernel.computes.values()):
        problem = "another value overwrites it"
    if problem:
        raise ScheduleError(
            f"pipeline({nest_name}, {depth}) in kernel {kernel.name}: {problem}; stage it in a "
            "plain loop, from buffers that the kernel does not store to"
        )
    return out


def axes(kernel: Kernel, name: str, order: Sequence[str]) -> Kernel:
    """Put the axes of a stage into another order in scratch memory. Exact.

    >>> from ferrule.ir.dtype import dtypes
    >>> from ferrule.ir.expr import load
    >>> i, j = range_("i", 4), range_("j", 8)
    >>> copy = Compute("a", load(1, dtypes.float32, i + j * 4), (i, j))
    >>> kernel = Kernel("turn", (Nest("a", (copy,), (Loop(i), Loop(j))),), (dtypes.float32,) * 2)
    >>> axes(kernel, "a", ("j", "i")).computes["a"].place((j, i))
    j * 4 + i
    """
    owner = kernel.owner.get(name)
    old = () if owner is None else kernel.computes[name].ranges
    if owner is None or sorted(r.name for r in old) != sorted(order):
        raise ScheduleError(
            f"axes({name}, {list(order)}) in kernel {kernel.name}: it has the axes "
            f"{[r.name for r in old]}"
        )
    places = [[r.name for r in old].index(n) for n in order]
    reordered = tuple(old[p] for p in places)
    computes = tuple(replace(c, ranges=reordered) if c.name == name else c for c in owner.computes)
    names = set(kernel.computes[name].names)
    kernel = kernel.with_nest(replace(owner, computes=computes))
    return map_reads(
        kernel, names, lambda e: Expr(ExprOp.READ, e.dtype, tuple(e.src[p] for p in places), e.arg)
    )


def nontemporal(kernel: Kernel, nest_name: str) -> Kernel:
    """Let the stores of a nest bypass the caches, for streamed outputs much larger than these.
    Exact.
    """
    nest = nest_of(kernel, nest_name)
    computes = tuple(
        replace(c, store=replace(c.store, nontemporal=True)) if c.store is not None else c
        for c in nest.computes
    )
    return kernel.with_nest(replace(nest, computes=computes))
