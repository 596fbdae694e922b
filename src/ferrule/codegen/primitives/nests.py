"""Primitives for nests: they move, merge and divide nests, and change what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

from ferrule.codegen.analysis.injective_stores import owned_digit
from ferrule.codegen.analysis.loop_bounds import end_from
from ferrule.codegen.kernel import MONOIDS, Compute, Kernel, Kind, Loop, Monoid, Nest, Store
from ferrule.codegen.primitives.editing import (
    ScheduleError,
    are_apart,
    copy_name,
    depth_of,
    descendants,
    is_combined,
    map_reads,
    mapped,
    nest_of,
    ranges_used,
)
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import (
    COSTLY,
    TRUE,
    Expr,
    ExprOp,
    alu,
    both,
    conjuncts,
    const,
    load,
    minimum,
    range_,
    toposort,
)

MAX_EXPANDED_TERMS = 25
"""Terms of a reduce that is expanded: a window of 5 x 5. Maxima of 3 x 3 took 1.7 ms and take
0.46, those of 5 x 5 6.4 and 1.4 (Zen 4, 2026-11)."""


def compute_at(
    kernel: Kernel, nest_name: str, depth: int, inside: bool = False, always: Expr | None = None
) -> Kernel:
    """Compute a nest further out, with a loop of its own for each of its consumer's loops that it
    leaves.

    It keeps a tile of values. It gets no loop for one with which it does not vary, other than the
    loop over `always`. A nest that hangs in it leaves the new loops in turn, or stays inside of
    them. The tile is in registers if those loops are lanes and copies. Exact.
    """
    nest = nest_of(kernel, nest_name)
    if nest.at is None or not 0 <= depth <= nest.at[1]:
        raise ScheduleError(
            f"compute_at({nest_name}, {depth}) in kernel {kernel.name}: it hangs at {nest.at}"
        )
    parent = kernel.by_name[nest.at[0]]
    family = descendants(kernel, nest_name)
    used = ranges_used(kernel, family)
    leaves = parent.loops[depth : nest.at[1]]
    left = [loop for loop in leaves if loop.range in used or loop.range is always]
    clones = {
        loop.range: range_(copy_name(loop.range.name, nest_name), loop.range.size) for loop in left
    }
    nests = tuple(mapped(n, clones) if n.name in family else n for n in kernel.nests)
    kernel = replace(kernel, nests=nests)
    own = {n for c in nest.computes for n in c.names}
    extra = tuple(loop.range for loop in left)
    kernel = map_reads(
        kernel, own, lambda e: Expr(ExprOp.READ, e.dtype, e.src + extra, e.arg), family
    )
    nest = nest_of(kernel, nest_name)
    axes = tuple(clones[loop.range] for loop in left)
    computes = tuple(
        c if c.store is not None else replace(c, ranges=c.ranges + axes) for c in nest.computes
    )
    new_loops = tuple(
        replace(loop.mapped(clones), range=clones[loop.range], lineage=loop.descent)
        for loop in left
    )
    loops = nest.loops + new_loops
    kernel = kernel.with_nest(Nest(nest.name, computes, loops, (parent.name, depth)))
    for child in [n for n in kernel.nests if n.at is not None and n.at[0] == nest_name]:
        assert child.at is not None
        if ranges_used(kernel, descendants(kernel, child.name)).isdisjoint(axes):
            continue
        child_now = kernel.by_name[child.name]
        kernel = kernel.with_nest(replace(child_now, at=(nest_name, len(loops))))
        if not inside:
            kernel = compute_at(kernel, child.name, child.at[1])
    return kernel


def recompute(kernel: Kernel, nest_name: str, depth: int) -> Kernel:
    """Compute a nest further in: once more in each iteration of the loops that it enters.

    `for i: s = x; for j: b = s` -> `for i: for j: s = x; b = s`. All of its readers are in these
    loops. Exact.
    """
    nest = nest_of(kernel, nest_name)
    family = descendants(kernel, nest_name)
    own = {c.name for c in nest.computes}
    users = [n for n in kernel.nests if n.name not in family]
    users = [n for n in users if any(e.arg in own for e in n.reads)]
    deeper = nest.at is not None and nest.at[1] <= depth <= len(nest_of(kernel, nest.at[0]).loops)
    if nest.at is None or not deeper or not all(_is_within(kernel, n, nest, depth) for n in users):
        raise ScheduleError(
            f"recompute({nest_name}, {depth}) in kernel {kernel.name}: it hangs at {nest.at}, and "
            f"{[n.name for n in users]} read it; all of them have to be in the loops that it enters"
        )
    return kernel.with_nest(replace(nest, at=(nest.at[0], depth)))


def _is_within(kernel: Kernel, reader: Nest, nest: Nest, depth: int) -> bool:
    """True if a nest is in the first `depth` loops of the one that another hangs in."""
    assert nest.at is not None
    while reader.at is not None and reader.at[0] != nest.at[0]:
        reader = kernel.by_name[reader.at[0]]
    return reader.name == nest.at[0] or (reader.at is not None and reader.at[1] >= depth)


def enter(kernel: Kernel, nest_name: str, host_name: str, depth: int) -> Kernel:
    """Do a root nest inside of the first loops of the next one, a part in each iteration.

    `for j: a[j]; for j: b[j]` -> `for j: a[j]; b[j]`, if iteration j of both stores only to the
    same part of a buffer. Exact.
    """
    nest, host = nest_of(kernel, nest_name), nest_of(kernel, host_name)
    pairs = list(zip(nest.loops[:depth], host.loops[:depth], strict=True))
    stores = [c.store for n in (nest, host) for c in n.computes if c.store is not None]
    same = len({s.slot for s in stores}) == 1 and len(kernel.roots) == 2
    for a, b in pairs:
        digits = {owned_digit(s, r) for s in stores for r in (a.range, b.range) if _has(s, r)}
        same = same and len(digits) == 1 and None not in digits
        same = same and a.range.size is b.range.size  # a size may be a variable below the other
    places = {s.index for s in stores}
    found = [e for n in kernel.nests for e in n.nodes if e.op is ExprOp.LOAD]
    if not same or any(e.arg == stores[0].slot and e.src[0] not in places for e in found):
        raise ScheduleError(
            f"enter({nest_name}, {host_name}, {depth}) in kernel {kernel.name}: the iterations of "
            f"their loops are not as many, or do not store to the same parts of one buffer"
        )
    ranges = {a.range: b.range for a, b in pairs}
    inside = mapped(replace(nest, loops=nest.loops[depth:], at=(host_name, depth)), ranges)
    return kernel.with_nest(inside)


def _has(store: Store, r: Expr) -> bool:
    return r in store.index.ranges


def partition(kernel: Kernel, nest_name: str, parts: int) -> Kernel:
    """Split a nest that stores at a loaded place into `parts` passes, each for a part of the
    places.

    `for k: b[x[k]] = y` -> `for p in parts: for k: if x[k] % parts == p: b[x[k]] = y`. The new
    outermost loop is called `<nest>.part`. Adjacent places are in different parts, as frequent
    places may be close together. Stores to one place keep their order. Exact.
    """
    nest = nest_of(kernel, nest_name)
    found = chosen_place(nest)
    if found is None or nest.at is not None or not 1 <= parts <= found[1]:
        raise ScheduleError(
            f"partition({nest_name}, {parts}) in kernel {kernel.name}: it is no root nest that "
            f"stores where one value says, which is known to be in some bounds, or there are fewer "
            f"places than parts"
        )
    place, size = found
    (c,) = nest.computes
    assert c.store is not None
    p = range_(f"{nest_name}.part", parts)
    known = _clamped(place, -1, size)  # a place outside stays outside
    inside = _clamped(known, 0, size - 1)
    mine = alu(ExprOp.NOT, alu(ExprOp.CMPNE, inside % parts, p))
    step = c.store.index.linear()[0][place]
    index = c.store.index + (inside // parts * parts + p - place) * step
    valid = both(c.store.valid.substitute({place: known}), mine)
    outside = {e for e in toposort([c.value]) if e.op is ExprOp.LOAD} - set(toposort([place]))
    masked = {}
    for e in outside:
        own = e.arg == c.store.slot and e.src[0] is c.store.index
        at = (index, valid) if own else (e.src[0], both(e.src[1], mine))
        masked[e] = load(e.arg, e.dtype, *at)
    stored = Store(c.store.slot, index, valid, c.store.nontemporal)
    compute = replace(c, value=c.value.substitute(masked), store=stored)
    return kernel.with_nest(replace(nest, computes=(compute,), loops=(Loop(p), *nest.loops)))


def _clamped(e: Expr, least: int, most: int) -> Expr:
    return alu(ExprOp.MAX, minimum(e, most), const(least))


def chosen_place(nest: Nest) -> tuple[Expr, int] | None:
    """The only loaded value of a nest's store along an axis, and the size of the axis; None if
    there is none.
    """
    stores = [c.store for c in nest.computes if c.store is not None]
    if len(stores) != 1 or len(nest.computes) != 1:
        return None
    terms, _ = stores[0].index.linear()
    chosen = [x for x in terms if any(e.op is ExprOp.LOAD for e in toposort([x]))]
    if len(chosen) != 1:
        return None
    bounds = [
        int(condition.src[1].arg)
        for condition in conjuncts(stores[0].valid)
        if condition.op is ExprOp.CMPLT
        and condition.src[0] is chosen[0]
        and condition.src[1].is_const
    ]
    return (chosen[0], min(bounds)) if bounds else None


def group(kernel: Kernel, nest_name: str, names: Sequence[str]) -> Kernel:
    """Compute partial results for each value of some combined ranges, then one reduce over these.

    The partial nest is called `<nest>.p`. It keeps the loops, the named ones last and as axes of
    its values; lanes stay innermost. Re-associates.
    """
    nest = nest_of(kernel, nest_name)
    named = [nest.loops[depth_of(kernel, nest, n)] for n in names]
    carried = any(c.carried_by is not None for c in nest.computes)
    if carried or not all(is_combined(nest, loop.range) for loop in named):
        raise ScheduleError(
            f"group({list(names)}) in kernel {kernel.name}: nest {nest_name} does not combine "
            "over all of them, or a loop carries its values"
        )
    partial_name = f"{nest_name}.p"
    first = tuple(loop for loop in nest.loops if loop not in named)
    axes = tuple(loop.range for loop in named)
    partials = []
    finals = []
    fresh = {
        loop.range: range_(copy_name(loop.range.name, nest_name), loop.range.size)
        for loop in nest.loops
    }
    for c in nest.computes:
        if c.monoid is None:
            partials.append(c)
            continue
        name = f"{c.name}.p"
        partials.append(replace(c, name=name, ranges=c.ranges + axes))
        result_axes = tuple(fresh[r] for r in c.ranges)
        read = Expr(ExprOp.READ, c.value.dtype, (*result_axes, *(fresh[r] for r in axes)), name)
        finals.append(Compute(c.name, read, result_axes, c.monoid))
    result_loops = [loop for loop in first if not is_combined(nest, loop.range)]
    final_loops = tuple(
        Loop(fresh[loop.range], loop.kind, lineage=loop.descent)
        for loop in _lanes_last([*result_loops, *named])
    )
    final = Nest(nest_name, tuple(finals), final_loops, nest.at)
    partial = Nest(partial_name, tuple(partials), _lanes_last([*first, *named]), nest.at)
    kernel = kernel.with_nest(final).insert_before(nest_name, partial)
    nests = tuple(
        replace(n, at=(partial_name, n.at[1])) if n.at is not None and n.at[0] == nest_name else n
        for n in kernel.nests
    )
    return replace(kernel, nests=nests)


def _lanes_last(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    return tuple(sorted(loops, key=lambda loop: loop.kind is Kind.VECTOR))


def expand_reduce(kernel: Kernel, nest_name: str) -> Kernel:
    """Replace a reduce of a few terms by an expression of all of them, in order, where it is read.

    `for k in 2: s sum= x[k]; b = s` -> `b = (0 + x[0]) + x[1]`. Exact.
    """
    nest = nest_of(kernel, nest_name)
    if not can_expand_reduce(kernel, nest):
        raise ScheduleError(
            f"expand_reduce({nest_name}) in kernel {kernel.name}: it is no reduce of at most "
            f"{MAX_EXPANDED_TERMS} terms to one value, or something hangs in it"
        )
    totals = {c.name: _expanded(c, nest.loops) for c in nest.computes}
    rest = tuple(n for n in kernel.nests if n.name != nest_name)
    return map_reads(replace(kernel, nests=rest), set(totals), lambda e: totals[e.arg])


def can_expand_reduce(kernel: Kernel, nest: Nest) -> bool:
    """True if a nest is a plain reduce of a few terms to one value for its place."""
    hung = any(n.at is not None and n.at[0] == nest.name for n in kernel.nests)
    if nest.at is None or nest.ahead or hung:
        return False
    if any(loop != Loop(loop.range) or not loop.range.size.is_const for loop in nest.loops):
        return False
    plain = all(c.monoid and c.carried_by is None and not c.ranges for c in nest.computes)
    is_sum_of_pairs = any(c.value.op is ExprOp.DOT for c in nest.computes)
    few = prod(loop.size for loop in nest.loops) <= MAX_EXPANDED_TERMS
    return plain and few and not is_sum_of_pairs


def _expanded(c: Compute, loops: Sequence[Loop]) -> Expr:
    assert c.monoid is not None
    total = c.monoid.identity(c.value.dtype)
    for places in product(*[range(loop.size) for loop in loops]):
        at = {loop.range: const(i) for loop, i in zip(loops, places, strict=True)}
        total = _combined(c.monoid, total, c.value.substitute(at))
    return total


def _combined(monoid: Monoid, total: Expr, term: Expr) -> Expr:
    """A combination as an accumulator does it: a product is added by one operation."""
    if monoid.op is ExprOp.ADD and term.op is ExprOp.MUL and dtypes.is_float(term.dtype):
        return alu(ExprOp.MULACC, *term.src, total)
    return alu(monoid.op, total, term)


def merge(kernel: Kernel, first_name: str, second_name: str) -> Kernel:
    """Make two nests at one place with loops of equal sizes one pass.

    Neither needs the other's result; or the second reads the first one's stage at the same
    point only, and uses it as it is computed. Exact.
    """
    first = nest_of(kernel, first_name)
    second = nest_of(kernel, second_name)
    if not (mergeable(kernel, first, second) or takes_from(kernel, second, first)):
        raise ScheduleError(
            f"merge({first_name}, {second_name}) in kernel {kernel.name}: their places or loops "
            "differ, or one needs the other"
        )
    mapping = {b.range: a.range for a, b in zip(first.loops, second.loops, strict=True)}
    values = {c.name: c.value for c in first.computes}
    mapping |= {e: values[e.arg] for e in second.reads if e.arg in values}
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
    """True if two nests can share their loops; for roots, neither may load elements that the other
    stores.
    """
    if not _have_same_loops(first, second):
        return False
    if first.at is None and not are_apart(kernel, first.name, second.name):
        return False
    family = [kernel.by_name[name] for name in descendants(kernel, first.name)]
    names = {c.name for nest in family for c in nest.computes}
    needing = [kernel.by_name[name] for name in descendants(kernel, second.name)]
    return not any(e.arg in names for nest in needing for e in nest.reads)


def _have_same_loops(first: Nest, second: Nest) -> bool:
    """True if two nests are at one place and have loops of equal sizes."""
    sizes = [[loop.range.size for loop in n.loops] for n in (first, second)]
    return first.at == second.at and sizes[0] == sizes[1]


def takes_from(kernel: Kernel, reader: Nest, producer: Nest) -> bool:
    """True if a nest needs only stages of the nest before it, at the same point of equal
    loops.

    Both can then be one pass.
    """
    if producer.at is None or not _have_same_loops(producer, reader):
        return False
    order = [n.name for n in kernel.nests]
    hung = any(n.at is not None and n.at[0] in (producer.name, reader.name) for n in kernel.nests)
    plain = all(loop == Loop(loop.range) for loop in (*producer.loops, *reader.loops))
    if hung or not plain or order.index(reader.name) != order.index(producer.name) + 1:
        return False
    point = tuple(loop.range for loop in reader.loops)
    stages = {c.name for c in producer.computes if c.monoid is None and c.store is None}
    same = [c.ranges == tuple(loop.range for loop in producer.loops) for c in producer.computes]
    reads = [e for e in reader.reads if e.arg in {c.name for c in producer.computes}]
    return bool(reads) and all(same) and all(e.arg in stages and e.src == point for e in reads)


def accumulate(kernel: Kernel, nest_name: str, name: str) -> Kernel:
    """Replace additions to memory, one in each iteration of a loop, by a sum that is added once.

    `for k in n: b[i] = (b[i] if j + k > 0) + x` -> `b[i] = (b[i] if j > 0) + (for k in n: s sum=
    x)`. The nest of the sum is called `<nest>.sum`. Re-associates.
    """
    nest = nest_of(kernel, nest_name)
    depth = depth_of(kernel, nest, name)
    loop = nest.loops[depth]
    r = loop.range
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
        last = end_from(part, r, opened) if part.ranges <= opened | {r} else None
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
    summed = Loop(r, end=end, lineage=loop.lineage)
    inner = Nest(total.name, (total,), (summed,), (nest_name, len(loops)))
    return kernel.insert_before(nest_name, inner)


def _added(c: Compute, r: Expr) -> tuple[Expr, Expr] | None:
    """The condition under which a compute adds to the value in memory, and the term that it adds.

    None unless it does so at one place for all of a range, at least from the second iteration on.
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


def stage_row(kernel: Kernel, reduce_name: str, consumer_name: str) -> Kernel:
    """Make a row of values of a reduce a stage, for a consumer that would compute them again at the
    same place.

    Both have one loop left at the place where the reduce hangs, of one size. The stage is the
    largest costly value that both share. Exact.
    """
    nest = nest_of(kernel, reduce_name)
    consumer = nest_of(kernel, consumer_name)
    shared = shared_row(kernel, nest, consumer)
    if shared is None:
        raise ScheduleError(
            f"stage_row({reduce_name}, {consumer_name}) in kernel {kernel.name}: they share no "
            "costly value"
        )
    mine, theirs = shared
    r = nest.loops[-1].range
    j = consumer.loops[-1].range
    name = f"{reduce_name}.row"
    row = Compute(name, mine, (r,))
    kernel = kernel.with_nest(replace(nest, computes=(row, *nest.computes)))
    read = Expr(ExprOp.READ, theirs.dtype, (j,), name)
    return kernel.with_nest(mapped(nest_of(kernel, consumer_name), {theirs: read}))


def shared_row(kernel: Kernel, nest: Nest, consumer: Nest) -> tuple[Expr, Expr] | None:
    """The largest value with a transcendental function that a reduce and its consumer both compute,
    in the ranges of each.
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
