"""Loop bounds: loops that may start late or end early, as the other iterations would change
nothing.

Five forms are found:

- A sum's terms have a factor, loaded or read from a block, that is 0 where a condition on indices
  fails.
- The terms are powers of the lowest number there, and each sum has a term for which the condition
  holds.
- The only reader of a nest's values is `where(condition, …, other)`, or a product with such a
  factor.
- Such a sum is added to memory.
- A condition masks the store, as beyond the end of a range that was split into chunks.

The condition is one on a sum of ranges, such as that of a causal mask, or of the taps that a place
of a strided window has. An iteration is left out if the condition fails for all lanes and copies
inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from ferrule.codegen.kernel import MONOIDS, Compute, Kernel, Monoid, Nest, unclamped
from ferrule.ir.expr import (
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

MASKED_SCORE = -65504.0  # a masked score is this or less: the lowest float16


def loop_end(kernel: Kernel, nest: Nest, depth: int) -> Expr | None:
    """The number of iterations of a loop that matter, in terms of the ranges outside; None if all
    may.
    """
    r = nest.loops[depth].range
    found = [_end(step, least, r) for _, (step, least) in _parts(kernel, nest, depth)]
    ends = [end for end in dict.fromkeys(found) if end is not None and end is not r.size]
    early = reduce(minimum, ends, r.size)
    return None if early is r.size else _where_it_adds(kernel, nest, depth, early, r.size)


def loop_start(kernel: Kernel, nest: Nest, depth: int) -> Expr | None:
    """The first iteration of a loop that matters, in terms of the ranges outside; None if it is the
    first.
    """
    # step * r + least < 0, with step < 0
    parts = [found for _, found in _parts(kernel, nest, depth)]
    starts = [least // -step + 1 for step, least in parts if step < 0]
    late = [start for start in starts if start.max > 0]
    if not late:
        return None
    latest = -reduce(minimum, [-start for start in late], const(0))
    return _where_it_adds(kernel, nest, depth, latest, const(0))


def implied_conditions(kernel: Kernel, nest: Nest, depth: int) -> list[Expr]:
    """The conditions that hold in all iterations of a loop that matter.

    If one is the mask of a load, the load's index varies with the loop. So no such load is moved
    before the loop, where the condition may fail.
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
    """The limit of a loop that adds to memory, or `otherwise` where it replaces memory.

    The first addition may replace memory, which must happen in all iterations. None if that changes
    inside of the loop.
    """
    adds = _added_to(nest.computes[0])
    if adds is None:
        return limit
    outside = {loop.range for name, d, loop in kernel.path(nest) if name != nest.name or d < depth}
    return alu(ExprOp.WHERE, adds, limit, otherwise) if adds.ranges <= outside else None


def end_from(part: Expr, r: Expr, opened: frozenset[Expr]) -> Expr | None:
    """The first iteration from which on `a < b` fails for everything inside of a loop."""
    found = _least(part, r, opened)
    return None if found is None else _end(*found, r)


def _opened(kernel: Kernel, nest: Nest, depth: int) -> frozenset[Expr]:
    """The ranges that are open around a loop."""
    path = kernel.path(nest)
    return frozenset(loop.range for name, d, loop in path if name != nest.name or d < depth)


def _parts(kernel: Kernel, nest: Nest, depth: int) -> Iterator[tuple[Expr, tuple[int, Expr]]]:
    """The conditions on a loop's range, each with (step, least).

    Something inside of iteration r matters only if `step * r + least < 0`.
    """
    r = nest.loops[depth].range
    opened = _opened(kernel, nest, depth)
    limited = {loop.range for loop in nest.loops[:depth] if (loop.start, loop.end) != (None, None)}
    running = [
        {_least(p, r, opened) for e in _idle(kernel, c.value, c.monoid) for p in conjuncts(e)}
        for child in kernel.children(nest.name, depth + 1)
        for c in child.computes
        if c.carried_by is r and c.monoid is not None
    ]
    for condition in [*_conditions(kernel, nest), *_conditions_of_powers(kernel, nest, r)]:
        for part in conjuncts(condition):
            found = _least(part, r, opened)
            if any(found not in agreed for agreed in running):
                continue
            if found is not None and (found[0] or limited.isdisjoint(part.ranges)):
                yield part, found


def _conditions_of_powers(kernel: Kernel, nest: Nest, r: Expr) -> Iterator[Expr]:
    """The conditions without which a running sum of powers has only negligible terms.

    If there were no other terms, these would count: the condition must hold at one end of the sum.
    """
    (c, *others) = nest.computes
    if others or c.carried_by is not r or c.monoid is None or c.monoid.op is not ExprOp.ADD:
        return
    terms = [x for x in nest.loop_ranges if x not in c.ranges]
    ends = [{x: const(0) for x in terms}, {x: x.size - 1 for x in terms}]
    for condition in _idle(kernel, c.value, c.monoid):
        if any(condition.substitute(end) is TRUE for end in ends):
            yield condition


def _idle(kernel: Kernel, value: Expr, monoid: Monoid) -> Iterator[Expr]:
    """The conditions without which a value changes nothing in a running reduce."""
    if monoid.op is ExprOp.ADD:
        yield from _support(kernel, value)
    elif monoid.op is not ExprOp.MAX:
        return
    match value.op:
        case ExprOp.WHERE:
            condition, inside, otherwise = value.src
            lowest = otherwise.op is ExprOp.CONST and otherwise.arg <= MASKED_SCORE
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
            stage = kernel.computes[value.arg]
            if stage.monoid is None:
                at = dict(zip(stage.ranges, value.src, strict=True))
                for condition in _idle(kernel, stage.value, monoid):
                    yield condition.substitute(at)


def _conditions(kernel: Kernel, nest: Nest) -> Iterator[Expr]:
    """The conditions without which an iteration of a nest adds nothing, or nothing that is used."""
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
    """The conditions that all stores of a nest have, if no nest inside of it stores."""
    first, *others = [conjuncts(c.store.valid) for c in nest.computes if c.store is not None]
    inside = {nest.name}
    for n in reversed(kernel.nests):  # producers come first
        if n.at is not None and n.at[0] in inside:
            inside.add(n.name)
    inside.discard(nest.name)
    if all(c.store is None for name in inside for c in kernel.by_name[name].computes):
        yield from (part for part in first if all(part in valid for valid in others))


def _added_to(c: Compute) -> Expr | None:
    """The condition under which a compute adds to memory instead of replacing it; None if it never
    does.
    """
    if c.store is None or c.value.op is not ExprOp.ADD:
        return None
    old = c.value.src[0]
    if old.op is not ExprOp.LOAD or (old.arg, old.src[0]) != (c.store.slot, c.store.index):
        return None
    known = conjuncts(c.store.valid)
    return all_of(part for part in conjuncts(old.src[1]) if part not in known)


def _support(kernel: Kernel, value: Expr) -> Iterator[Expr]:
    """The conditions without which a value is 0: its own, or those of its parts."""
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
            stage = kernel.computes[value.arg]
            if stage.monoid is None or stage.monoid.op is ExprOp.ADD:
                at = dict(zip(stage.ranges, unclamped(value.src), strict=True))
                for condition in _support(kernel, stage.value):
                    yield condition.substitute(at)


def _reads(e: Expr, c: Compute) -> bool:
    return any(x.op is ExprOp.READ and x.arg == c.name for x in toposort([e]))


def _least(part: Expr, r: Expr, opened: frozenset[Expr]) -> tuple[int, Expr] | None:
    """`a < b` as (step of r, the least value of the other terms inside of the loop)."""
    found = least_and_most(part, r, opened)
    return None if found is None else found[:2]


def least_and_most(part: Expr, r: Expr, opened: frozenset[Expr]) -> tuple[int, Expr, Expr] | None:
    """`a < b` as `step * r + rest < 0`: (step, least and most value of the rest inside of the
    loop).

    Both are in terms of the ranges that are open around the loop. None if it is no comparison of
    indices, or the rest has no bounds, as a quotient by a number that may be 0 has not.
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
