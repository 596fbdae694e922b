"""The choice of an instruction that does several multiply-adds in each lane for a contraction."""

from __future__ import annotations

from ferrule.codegen.intrinsics import Intrinsic, native_intrinsic
from ferrule.codegen.plan import Plan, loads
from ferrule.codegen.primitives.products import is_dot
from ferrule.ir.expr import Expr


def intrinsic_for(plan: Plan, name: str) -> Intrinsic | None:
    """The target's instruction for a reduce nest, if there is one."""
    nest = plan.nest(name)
    (c,) = nest.computes
    found = native_intrinsic({e.dtype for e in loads(c.value)}, c.value.dtype, plan.target)
    if found is None or len(nest.loops) != 1:
        return None
    k = nest.loops[0].range
    long = k.size.is_const and k.size.arg >= 2 * found.terms
    return found if long and is_dot(nest, k, found) else None


def tensorize_contraction(plan: Plan, name: str, intrinsic: Intrinsic, along: Expr) -> None:
    """Let a reduce nest use an instruction, in lanes along a range."""
    nest = plan.nest(name)
    (c,) = nest.computes
    in_all_rows = next(i for i, factor in enumerate(c.value.src) if along in factor.ranges)
    plan.do("tensorize", name, nest.loops[0].range, intrinsic.name, 1 - in_all_rows)
