"""Scatters for blocks of threads: a value says where they store, so that their order counts.

Loops along other axes than the one that is scattered own their parts of the result: these become
blocks and threads. What is scattered stays in its order, one after the other in each thread, which
has filled its part of the result with the identity itself.
"""

from __future__ import annotations

from ferrule.codegen.kernel import Nest
from ferrule.codegen.owner import Digit, owned_digit
from ferrule.codegen.plan import LINE_BYTES, Plan
from ferrule.expr import Expr


def schedule_scatter(plan: Plan) -> bool:
    """Blocks and threads along the axes that are not scattered; False if there are none."""
    if len(plan.kernel.nests) != 2 or len(plan.kernel.roots) != 2:
        return False
    fill, host = plan.kernel.nests
    owned = _owned(host)
    digits = sorted((d for d in owned if _cut_out(plan, fill.name, d)), reverse=True)
    if not digits:
        return False
    filled = _owned(plan.nest(fill.name))
    for name, ranges in ((fill.name, filled), (host.name, owned)):
        first = [ranges[d].name for d in digits]
        rest = [o.range.name for o in plan.nest(name).loops if o.range.name not in first]
        plan.do("reorder", name, (*first, *rest))
    plan.do("enter", fill.name, host.name, len(digits))
    _share(plan, host.name, len(digits))
    return True


def _cut_out(plan: Plan, name: str, digit: Digit) -> bool:
    """Split the loops of a nest so that one of them is a digit; False where that leaves a tail."""
    step, size = digit
    for (own, count), r in _owned(plan.nest(name)).items():
        if own <= step and step * size <= own * count:
            inner, outer = step * size // own, step // own
            if count % inner or step % own:
                return False
            inside = _split(plan, name, r.name, inner, count)[1]
            _split(plan, name, inside, outer, inner)
            return True
    return False


def _split(plan: Plan, name: str, r: str, factor: int, size: int) -> tuple[str, str]:
    """The two loops that a loop is split into, if both have more than one iteration."""
    if factor in (1, size):
        return r, r
    plan.do("split", name, r, factor)
    return f"{r}.o", f"{r}.i"


def _owned(nest: Nest) -> dict[Digit, Expr]:
    """The loops of a nest that own a digit of the elements' numbers, by it."""
    (store,) = [c.store for c in nest.computes if c.store is not None]
    found = {loop.range: owned_digit(store, loop.range) for loop in nest.loops}
    return {digit: r for r, digit in found.items() if digit is not None}


def _share(plan: Plan, name: str, depth: int) -> None:
    """A warp to a block: blocks are what there are few of."""
    last = plan.nest(name).loops[depth - 1].range
    threads = 1
    while threads < min(last.size.max, max(plan.target.warp, LINE_BYTES // 4)):
        threads *= 2
    plan.do("split", name, last.name, threads, "mask")
    plan.do("bind", name, f"{last.name}.i")
    plan.do("parallel", name, plan.fuse_first(name, depth))
