"""What is in scratch memory, and how it lies there: primitives that copy, keep and pad values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferrule.codegen.kernel import Compute, Kernel, Loop, Nest, can_overwrite, expressions, reads
from ferrule.codegen.primitives.editing import ScheduleError, depth_of, descendants, mapped, nest_of
from ferrule.codegen.window import Window
from ferrule.expr import TRUE, Expr, ExprOp, both, conjuncts, const, range_, select, toposort


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
    nest = nest_of(kernel, nest_name)
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


def reuse(kernel: Kernel, nest_name: str, slot: int, name: str, number: int = 0) -> Kernel:
    """What a nest loads from a buffer is read from a copy that `stage` made for another nest.

    The loops of the nest that its load varies with, inside of the place of the copy, have the sizes
    of the copy's axes, in their order. `number` says which of the different loads of the buffer it
    is. Exact.
    """
    nest = nest_of(kernel, nest_name)
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


def pad(kernel: Kernel, nest_name: str, name: str, extra: int) -> Kernel:
    """Each step along an axis of what a nest keeps is `extra` places longer in scratch memory.

    So what is one step apart falls into other banks. Exact.

    >>> from ferrule.dtype import dtypes
    >>> from ferrule.expr import load
    >>> i, j = range_("i", 4), range_("j", 8)
    >>> copy = Compute("a", load(1, dtypes.float32, i + j * 4), (i, j))
    >>> kernel = Kernel("turn", (Nest("a", (copy,), (Loop(i), Loop(j))),), (dtypes.float32,) * 2)
    >>> pad(kernel, "a", "i", 1).computes["a"].place((i, j))
    ((i * 9) + j)
    """
    nest = nest_of(kernel, nest_name)
    r = nest.loops[depth_of(kernel, nest, name)].range
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


def prefetch(kernel: Kernel, nest_name: str, slot: int, distance: int) -> Kernel:
    """While a nest loads from a buffer, what comes `distance` elements later is brought into the
    cache.

    That may be beyond the buffer's end, where nothing is fetched. Exact.
    """
    nest = nest_of(kernel, nest_name)
    found = any(e.op is ExprOp.LOAD and e.arg == slot for e in toposort(expressions(nest)))
    if not found or distance <= 0 or slot in dict(nest.ahead):
        raise ScheduleError(
            f"prefetch(b{slot}, {distance}) in kernel {kernel.name}: nest {nest_name} loads "
            "nothing from there, or fetches from there already, or the distance is not positive"
        )
    return kernel.with_nest(replace(nest, ahead=(*nest.ahead, (slot, distance))))


def nontemporal(kernel: Kernel, nest_name: str) -> Kernel:
    """The stores of a nest bypass the caches: for plain streaming outputs much larger than they
    are. Exact.
    """
    nest = nest_of(kernel, nest_name)
    computes = tuple(
        replace(c, store=replace(c.store, nontemporal=True)) if c.store is not None else c
        for c in nest.computes
    )
    return kernel.with_nest(replace(nest, computes=computes))
