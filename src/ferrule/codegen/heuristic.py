"""`(Kernel, Target) -> tuple[Opt, ...]`: a schedule that is good without any search.

The loads in the expressions, not the user's calls, decide between three kinds of schedules. A
contraction reuses some loads for many results, and gets a register tile. Other reduces get lanes
along the axis that is contiguous in memory. All other kernels are streams. Devices with thread
blocks have schedules of their own (`codegen/schedules/gpu/schedule.py`).
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from ferrule.codegen.estimate import least_untiled
from ferrule.codegen.kernel import Kernel, stores_to_one_place
from ferrule.codegen.opt import Opt
from ferrule.codegen.plan import Plan, Proposal
from ferrule.codegen.schedules.cpu.chains import has_stages, schedule_chain
from ferrule.codegen.schedules.cpu.contraction import is_contraction, schedule_contraction
from ferrule.codegen.schedules.cpu.rows import partition_joins, schedule_rows
from ferrule.codegen.schedules.cpu.scans import schedule_scan
from ferrule.codegen.schedules.cpu.scatters import schedule_rows_of_scatter
from ferrule.codegen.schedules.cpu.streams import (
    schedule_few_terms,
    schedule_scatter,
    schedule_stream,
)
from ferrule.ir.target import Target


def choose(kernel: Kernel, target: Target) -> tuple[Opt, ...]:
    """The opts for a kernel; the same for equal kernels and targets."""
    return tuple(schedule(kernel, target).opts)


def schedule(kernel: Kernel, target: Target, constants: Set[int] = frozenset()) -> Plan:
    """The opts for a kernel, as `choose` gives them, and the kernel that they make.

    `constants` are slots whose copies are made beforehand. Only the order of loops over results may
    depend on them: each result has the same bits as without.
    """
    plan = Plan(kernel, target, constants)
    plan.collapse()
    if target.block_threads > 1:
        # Imported here: it imports NumPy, which processes that compile for the CPU do not need.
        from ferrule.codegen.schedules.gpu.schedule import schedule_grid

        schedule_grid(plan)
        return plan
    if plan.attempt(schedule_rows_of_scatter):
        return plan
    for name in [nest.name for nest in plan.kernel.roots]:
        _schedule_root(plan, name)
    return plan


def _schedule_root(plan: Plan, name: str) -> None:
    nest = plan.nest(name)
    below = plan.below(name)
    if stores_to_one_place(nest):
        if not below:
            plan.attempt(schedule_scatter, name)
        return
    if not below:
        schedule_stream(plan, name)
        return
    if plan.attempt(schedule_scan, name, *below):
        partition_joins(plan, name)
        return
    if has_stages(plan, name):
        schedule_chain(plan, name)
        return
    few, rows = partial(schedule_few_terms, name=name), partial(schedule_rows, name=name)
    n = next((n for n in below if is_contraction(nest, plan.nest(n))), None)
    if n is None or len(below) > 1:
        plan.best(Proposal(few), Proposal(rows))
        return
    contraction = partial(schedule_contraction, name=name, n=n)
    plan.best(Proposal(contraction), Proposal(few), Proposal(rows, least_untiled))
