"""Where a loop may start late or end early: the other iterations would change nothing.

Five forms are found. A sum's terms have a factor, loaded or read from a block, that is 0 where a
condition on indices fails. Or they are powers of what is the lowest number there, and in each sum
is a term for which the condition holds. Or nothing but `where(condition, …, other)`, or a product
with such a factor, reads what a nest computes. Or such a sum is added to memory. Or a condition
says what is stored at all, as beyond the end of what was split into chunks. The condition is one on
a sum of ranges, such as that of a causal mask, or of the taps that a place of a strided window has;
where it fails for all lanes and copies inside, the iteration is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from ferrule.codegen.kernel import (
    MONOIDS,
    Compute,
    Kernel,
    Monoid,
    Nest,
    unclamped,
)
from ferrule.expr import (
    INDEX,
    TRUE,
    UNBOUNDED,
    Expr,
    ExprOp,
    all_of,
    alu,
    conjuncts,
    const,
    less,
    minimum,
    toposort,
)

LOWEST = -65504.0  # or less is what stands for no score: the lowest number of some float


def end_of(kernel: Kernel, nest: Nest, depth: int) -> Expr | None:
    """How many iterations of a loop matter, in the ranges outside of it; None if all may."""
    r = nest.loops[depth].range
    found = [_end(step, least, r) for _, (step, least) in _parts(kernel, nest, depth)]
    ends = [end for end in dict.fromkeys(found) if end is not None and end is not r.size]
    early = reduce(minimum, ends, r.size)
    return None if early is r.size else _where_it_adds(kernel, nest, depth, early, r.size)


def start_of(kernel: Kernel, nest: Nest, depth: int) -> Expr | None:
    """The first iteration of a loop that matters, in the ranges outside of it; None if the very
    first may.
    """
    # step * r + least < 0, with step < 0
    parts = [found for _, found in _parts(kernel, nest, depth)]
    starts = [least // -step + 1 for step, least in parts if step < 0]
    late = [start for start in starts if start.max > 0]
    if not late:
        return None
    latest = -reduce(minimum, [-start for start in late], const(0))
    return _where_it_adds(kernel, nest, depth, latest, const(0))


def holds_inside(kernel: Kernel, nest: Nest, depth: int) -> list[Expr]:
    """Conditions that hold in all iterations of a loop that matter.

    Where one is the mask of a load, the place of the load varies with the loop: none is done before
    the loop, where the condition may fail.
    """
    r = nest.loops[depth].range
    if _added_to(nest.computes[0]) is not None:
        return []  # it may be run from end to end
    opened = _opened(kernel, nest, depth)
    elements = [e for n in kernel.nests for e in n.nodes if e.op is ExprOp.LOAD]
    found = []
    for part, (step, least) in _parts(kernel, nest, depth):
        exact = least_and_most(part, r, opened) == (step, least, least)
        fixed = [e for e in elements if r not in e.src[0].ranges and part in _masks(e)]
        if step and exact and not fixed:
            found.append(part)
    return found


def _masks(element: Expr) -> list[Expr]:
    return [part for valid in element.src[1::2] for part in conjuncts(valid)]


def _where_it_adds(
    kernel: Kernel, nest: Nest, depth: int, limit: Expr, otherwise: Expr
) -> Expr | None:
    """The limit of a loop: what replaces memory, rather than add to it, does so in all iterations.

    None if inside of the loop it does now the one, now the other.
    """
    adds = _added_to(nest.computes[0])
    if adds is None:
        return limit
    outside = {loop.range for name, d, loop in kernel.path(nest) if name != nest.name or d < depth}
    return alu(ExprOp.WHERE, adds, limit, otherwise) if adds.ranges <= outside else None


def end_by(part: Expr, r: Expr, opened: frozenset[Expr]) -> Expr | None:
    """The first iteration from which on `a < b` fails for everything inside of a loop."""
    found = _least(part, r, opened)
    return None if found is None else _end(*found, r)


def _opened(kernel: Kernel, nest: Nest, depth: int) -> frozenset[Expr]:
    """The ranges that are open around a loop."""
    path = kernel.path(nest)
    return frozenset(loop.range for name, d, loop in path if name != nest.name or d < depth)


def _parts(kernel: Kernel, nest: Nest, depth: int) -> Iterator[tuple[Expr, tuple[int, Expr]]]:
    """Conditions on a loop's range, each with (step, least): something inside of iteration r counts
    only if `step * r + least < 0`.
    """
    r = nest.loops[depth].range
    opened = _opened(kernel, nest, depth)
    limited = {loop.range for loop in nest.loops[:depth] if (loop.start, loop.end) != (None, None)}
    running = [
        {_least(p, r, opened) for e in _idle(kernel, c.value, c.monoid) for p in conjuncts(e)}
        for child in kernel.children(nest.name, depth + 1)
        for c in child.computes
        if c.along is r and c.monoid is not None
    ]
    for condition in [*_conditions(kernel, nest), *_conditions_of_powers(kernel, nest, r)]:
        for part in conjuncts(condition):
            found = _least(part, r, opened)
            if any(found not in agreed for agreed in running):
                continue
            if found is not None and (found[0] or limited.isdisjoint(part.ranges)):
                yield part, found


def _conditions_of_powers(kernel: Kernel, nest: Nest, r: Expr) -> Iterator[Expr]:
    """Conditions without which a sum of powers that runs along a loop has terms as good as 0.

    Where there were no other terms, these would count: at one end of the sum the condition holds.
    """
    (c, *others) = nest.computes
    if others or c.along is not r or c.monoid is None or c.monoid.op is not ExprOp.ADD:
        return
    terms = [x for x in nest.loop_ranges if x not in c.ranges]
    ends = [{x: const(0) for x in terms}, {x: x.size - 1 for x in terms}]
    for condition in _idle(kernel, c.value, c.monoid):
        if any(condition.substitute(end) is TRUE for end in ends):
            yield condition


def _idle(kernel: Kernel, value: Expr, monoid: Monoid) -> Iterator[Expr]:
    """Conditions without which a value changes nothing that runs along a loop."""
    if monoid.op is ExprOp.ADD:
        yield from _support(kernel, value)
    elif monoid.op is not ExprOp.MAX:
        return
    match value.op:
        case ExprOp.WHERE:
            condition, inside, otherwise = value.src
            lowest = otherwise.op is ExprOp.CONST and otherwise.arg <= LOWEST
            if lowest and monoid.op is ExprOp.MAX:
                yield condition
            if lowest or otherwise.arg == 0:
                yield from _idle(kernel, inside, monoid)
        case ExprOp.CAST:
            yield from _idle(kernel, value.src[0], monoid)
        case ExprOp.EXP2 if monoid.op is ExprOp.ADD:
            exponent = value.src[0].src[0] if value.src[0].op is ExprOp.MUL else value.src[0]
            if exponent.op is ExprOp.SUB:
                yield from _idle(kernel, exponent.src[0], MONOIDS["max"])
        case ExprOp.READ:
            kept = kernel.computes[value.arg]
            if kept.monoid is None:
                at = dict(zip(kept.ranges, value.src, strict=True))
                for condition in _idle(kernel, kept.value, monoid):
                    yield condition.substitute(at)


def _conditions(kernel: Kernel, nest: Nest) -> Iterator[Expr]:
    """Conditions without which an iteration of a nest adds nothing, or for nothing."""
    if all(c.store is not None and _added_to(c) is None for c in nest.computes):
        yield from _stored_where(kernel, nest)
    if len(nest.computes) != 1:
        return
    (c,) = nest.computes
    if c.store is not None:
        if _added_to(c) is not None:
            yield from _support(kernel, c.value.src[1])
        return
    if c.monoid is not None and c.monoid.op is ExprOp.ADD:
        yield from _support(kernel, c.value)
    users = [
        user
        for other in kernel.nests
        for user in other.computes
        if any(e.arg == c.name for e in other.reads)
    ]
    if len(users) != 1:
        return
    value = users[0].value
    if value.op is ExprOp.WHERE:
        condition, _, otherwise = value.src
        if not any(_reads(e, c) for e in (condition, otherwise)):
            yield condition
    elif value.op is ExprOp.MUL:
        for factor in value.src:
            if not _reads(factor, c):
                yield from _support(kernel, factor)


def _stored_where(kernel: Kernel, nest: Nest) -> Iterator[Expr]:
    """Conditions that all stores of a nest have, where no other nest inside of it stores."""
    first, *others = [conjuncts(c.store.valid) for c in nest.computes if c.store is not None]
    inside = {nest.name}
    for n in reversed(kernel.nests):  # producers come first
        if n.at is not None and n.at[0] in inside:
            inside.add(n.name)
    inside.discard(nest.name)
    if all(c.store is None for name in inside for c in kernel.by_name[name].computes):
        yield from (part for part in first if all(part in valid for valid in others))


def _added_to(c: Compute) -> Expr | None:
    """The condition under which a compute adds to what is in memory, rather than replace it."""
    if c.store is None or c.value.op is not ExprOp.ADD:
        return None
    old = c.value.src[0]
    if old.op is not ExprOp.LOAD or (old.arg, old.src[0]) != (c.store.slot, c.store.index):
        return None
    known = conjuncts(c.store.valid)
    return all_of(part for part in conjuncts(old.src[1]) if part not in known)


def _support(kernel: Kernel, value: Expr) -> Iterator[Expr]:
    """Conditions without which a value, a product or a sum is 0: its own, or those of its parts."""
    match value.op:
        case ExprOp.MUL | ExprOp.CAST | ExprOp.TF32:
            for factor in value.src:
                yield from _support(kernel, factor)
        case ExprOp.LOAD if len(value.src) == 2:
            yield value.src[1]
        case ExprOp.WHERE:
            condition, inside, otherwise = value.src
            if otherwise.op is ExprOp.CONST and otherwise.arg == 0:
                yield condition
                yield from _support(kernel, inside)
        case ExprOp.READ:
            kept = kernel.computes[value.arg]
            if kept.monoid is None or kept.monoid.op is ExprOp.ADD:
                at = dict(zip(kept.ranges, unclamped(value.src), strict=True))
                for condition in _support(kernel, kept.value):
                    yield condition.substitute(at)


def _reads(e: Expr, c: Compute) -> bool:
    return any(x.op is ExprOp.READ and x.arg == c.name for x in toposort([e]))


def _least(part: Expr, r: Expr, opened: frozenset[Expr]) -> tuple[int, Expr] | None:
    """`a < b` as (step of r, what is added to it at least inside of the loop)."""
    found = least_and_most(part, r, opened)
    return None if found is None else found[:2]


def least_and_most(part: Expr, r: Expr, opened: frozenset[Expr]) -> tuple[int, Expr, Expr] | None:
    """`a < b` as `step * r + rest < 0`: (step, the least and the most that the rest is inside of
    the loop), by the ranges that are open around it; None where it is nothing like that, as where
    values are compared, or has no bounds, as a quotient by what may be 0 has not.
    """
    if part.op is not ExprOp.CMPLT or part.src[0].dtype is not INDEX:
        return None
    if any(e.op in (ExprOp.LOAD, ExprOp.READ) for e in toposort([part])):
        return None
    terms, constant = (part.src[0] - part.src[1]).linear()
    least: Expr = const(constant)
    most: Expr = least
    for atom, coefficient in terms.items():
        if atom is r:
            continue
        if atom.ranges <= opened:
            least, most = least + atom * coefficient, most + atom * coefficient
        elif r in atom.ranges or UNBOUNDED[0] in atom.bounds() or UNBOUNDED[1] in atom.bounds():
            return None
        else:
            ends = sorted((coefficient * atom.min, coefficient * atom.max))
            least, most = least + ends[0], most + ends[1]
    return terms.get(r, 0), least, most


def _end(step: int, least: Expr, r: Expr) -> Expr | None:
    """The first iteration from which on `step * r + least < 0` fails."""
    if step == 0:
        return alu(ExprOp.WHERE, less(least, const(0)), r.size, const(0))
    return minimum((step - 1 - least) // step, r.size) if step > 0 else None
