"""Where a loop may start late or end early: the other iterations would change nothing.

Two forms are found. A sum's terms have a factor, loaded or read from a block, that is 0 where a
condition on indices fails. Or nothing but `where(condition, …, other)` reads what a nest computes.
The condition is one on a sum of ranges, such as that of a causal mask, or of the taps that a place
of a strided window has; where it fails for all lanes and copies inside, the iteration is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from ferrule.codegen.kernel import Compute, Kernel, Nest, expressions, reads
from ferrule.expr import Expr, ExprOp, alu, conjuncts, const, less, minimum, toposort


def end_of(kernel: Kernel, nest: Nest, depth: int) -> Expr | None:
    """How many iterations of a loop matter, in the ranges outside of it; None if all may."""
    r = nest.loops[depth].range
    ends = [
        end
        for step, least in _parts(kernel, nest, depth)
        if (end := _end(step, least, r)) is not None
    ]
    early = reduce(minimum, ends, r.size)
    return None if early is r.size else early


def start_of(kernel: Kernel, nest: Nest, depth: int) -> Expr | None:
    """The first iteration of a loop that matters, in the ranges outside of it; None if the very
    first may.
    """
    # step * r + least < 0, with step < 0
    starts = [least // -step + 1 for step, least in _parts(kernel, nest, depth) if step < 0]
    late = [start for start in starts if start.max > 0]
    return -reduce(minimum, [-start for start in late], const(0)) if late else None


def _parts(kernel: Kernel, nest: Nest, depth: int) -> Iterator[tuple[int, Expr]]:
    """Conditions on a loop's range: something inside of iteration r counts only if
    `step * r + least < 0`.
    """
    r = nest.loops[depth].range
    path = [loop.range for name, d, loop in kernel.path(nest) if name != nest.name or d < depth]
    opened = frozenset(path)
    limited = {loop.range for loop in nest.loops[:depth] if (loop.start, loop.end) != (None, None)}
    for condition in _conditions(kernel, nest):
        for part in conjuncts(condition):
            found = _least(part, r, opened)
            if found is not None and (found[0] or limited.isdisjoint(part.ranges)):
                yield found


def _conditions(kernel: Kernel, nest: Nest) -> Iterator[Expr]:
    """Conditions without which an iteration of a nest adds nothing, or for nothing."""
    if len(nest.computes) != 1:
        return
    (c,) = nest.computes
    if c.monoid is not None and c.monoid.op is ExprOp.ADD:
        for factor in _factors(c.value):
            if factor.op is ExprOp.LOAD and len(factor.src) == 2:
                yield factor.src[1]
            kept = kernel.computes[factor.arg] if factor.op is ExprOp.READ else None
            if kept is not None and kept.monoid is None and _is_zero_unless(kept.value):
                at = dict(zip(kept.ranges, factor.src, strict=True))
                yield kept.value.src[0].substitute(at)
    users = [
        user
        for other in kernel.nests
        for user in other.computes
        if any(e.arg == c.name for e in reads(expressions(other)))
    ]
    if len(users) == 1 and users[0].value.op is ExprOp.WHERE and c.store is None:
        condition, _, otherwise = users[0].value.src
        if not any(_reads(e, c) for e in (condition, otherwise)):
            yield condition


def _factors(value: Expr) -> list[Expr]:
    if value.op is ExprOp.MUL:
        return [factor for s in value.src for factor in _factors(s)]
    return _factors(value.src[0]) if value.op is ExprOp.CAST else [value]


def _is_zero_unless(value: Expr) -> bool:
    """Whether a value is `where(condition, …, 0)`."""
    if value.op is not ExprOp.WHERE:
        return False
    otherwise = value.src[2]
    return otherwise.op is ExprOp.CONST and otherwise.arg == 0


def _reads(e: Expr, c: Compute) -> bool:
    return any(x.op is ExprOp.READ and x.arg == c.name for x in toposort([e]))


def _least(part: Expr, r: Expr, opened: frozenset[Expr]) -> tuple[int, Expr] | None:
    """`a < b` as (step of r, what is added to it at least inside of the loop)."""
    if part.op is not ExprOp.CMPLT or any(e.op is ExprOp.LOAD for e in toposort([part])):
        return None
    terms, constant = (part.src[0] - part.src[1]).linear()
    least: Expr = const(constant)
    for atom, coefficient in terms.items():
        if atom is r:
            continue
        if atom.ranges <= opened:
            least = least + atom * coefficient
        elif r in atom.ranges:
            return None
        else:
            least = least + coefficient * (atom.min if coefficient > 0 else atom.max)
    return terms.get(r, 0), least


def _end(step: int, least: Expr, r: Expr) -> Expr | None:
    """The first iteration from which on `step * r + least < 0` fails."""
    if step == 0:
        return alu(ExprOp.WHERE, less(least, const(0)), r.size, const(0))
    return minimum((step - 1 - least) // step, r.size) if step > 0 else None
