"""Schedules of scatters on CPUs: stores at loaded indices, whose iterations must stay in order.

Loops along other axes than the scattered one own their parts of the result, and threads can share
them. The scattered axis stays in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.analysis.injective_stores import Digit, owned_digit
from ferrule.codegen.kernel import Nest, Store, stores_to_one_place
from ferrule.codegen.plan import Plan, step_of
from ferrule.codegen.policy import MIN_PARALLEL_WORK
from ferrule.codegen.primitives.nests import chosen_place
from ferrule.ir.expr import Expr


def schedule_rows_of_scatter(plan: Plan) -> bool:
    """Let threads share the rows of a batch, and fill each row with its initial values first.

    A row is a part of the result that a loop owns. False if a kernel is no such scatter, or has
    little work.
    """
    names = [nest.name for nest in plan.kernel.nests]
    *fills, host = names
    found = chosen_place(plan.nest(host))
    if len(names) > 2 or len(plan.kernel.roots) != len(names) or found is None:
        return False
    if not stores_to_one_place(plan.nest(host)) or plan.work(host) < MIN_PARALLEL_WORK:
        return False
    place = stored_by(plan.nest(host)).index.linear()[0][found[0]]
    rows = [d for d in owned(plan.nest(host)) if d[0] > place]
    rows = sorted((d for d in rows if all(cut_out(plan, f, host, d) for f in fills)), reverse=True)
    if prod(size for _, size in rows) < plan.target.max_threads:
        return False
    fill_inside(plan, names, rows)
    for name in names:
        loops = plan.nest(name).loops
        if loops and step_of(stored_by(plan.nest(name)).index, loops[-1].range) == 1:
            plan.vectorize_inner(name, loops[-1])
    plan.do("parallel", host, plan.fuse_first(host, len(rows)))
    return True


# -- parts of the result ---------------------------------------------------------------------------


def cut_out(plan: Plan, name: str, host: str, digit: Digit) -> bool:
    """Split the loops of a nest so that one of them owns a digit, as a loop of the host does.

    False if that leaves a tail in the middle, or if only one of the two loops has a symbolic size.
    """
    iterations = owned(plan.nest(host))[digit].size
    step, size = digit
    total = prod(loop.range.size.max for loop in plan.nest(name).loops)
    for (own, count), r in owned(plan.nest(name)).items():
        inner, outer = step * size // own, step // own
        if own <= step and step * size <= own * count:
            # Only the last digit may have an incomplete part at its end.
            if step % own or (count % inner and own * count != total):
                return False
            if r.size is not iterations and not (r.size.is_const and iterations.is_const):
                return False
            _split(plan, name, _split(plan, name, r, inner, count), outer, inner)
            return True
    return False


def fill_inside(plan: Plan, names: Sequence[str], digits: Sequence[Digit]) -> None:
    """Put the loops that own some digits first, and the nests that fill the result inside of the
    host's.

    Each part of the result is filled right before it is added to.
    """
    *fills, host = names
    for name in names:
        ranges = owned(plan.nest(name))
        first = [ranges[d] for d in digits]
        rest = plan.others(name, first)
        plan.do("reorder", name, (*first, *rest))
    for fill in fills:
        plan.do("enter", fill, host, len(digits))


def _split(plan: Plan, name: str, r: Expr, factor: int, size: int) -> Expr:
    """Split a loop if both parts have more than one iteration; the inner loop then."""
    return r if factor in (1, size) else plan.split(name, r, factor)[1]


def stored_by(nest: Nest) -> Store:
    (store,) = [c.store for c in nest.computes if c.store is not None]
    return store


def owned(nest: Nest) -> dict[Digit, Expr]:
    """The loops of a nest that own a digit of the elements' numbers, by that digit."""
    store = stored_by(nest)
    found = {loop.range: owned_digit(store, loop.range) for loop in nest.loops}
    return {digit: r for r, digit in found.items() if digit is not None}
