"""The choice of an instruction that does several multiply-adds in each lane for a contraction."""

from __future__ import annotations

from ferrule.codegen.intrinsics import Intrinsic, native_intrinsic
from ferrule.codegen.plan import Plan, loads
from ferrule.codegen.primitives.products import is_dot

MIN_TERMS = 8
"""Terms of a sum; shorter ones are mostly tails. Set on 2026-11-21, not measured by itself."""


def tensorize_contraction(plan: Plan, name: str, lanes: int) -> None:
    """Let a reduce nest use the target's instruction for it, if there is one.

    The nest is to be computed in vectors of `lanes`.
    """
    nest = plan.nest(name)
    intrinsic = _intrinsic_for(plan, name)
    if intrinsic is None or lanes not in intrinsic.lanes or len(nest.loops) != 1:
        return
    k = nest.loops[0].range
    if k.size.is_const and k.size.arg >= MIN_TERMS and is_dot(nest, k, intrinsic):
        plan.do("tensorize", name, k, intrinsic.name)


def _intrinsic_for(plan: Plan, name: str) -> Intrinsic | None:
    (c,) = plan.nest(name).computes
    sources = {e.dtype for e in loads(c.value)}
    if len(sources) != 1:
        return None
    return native_intrinsic(sources.pop(), c.value.dtype, plan.target)
