"""`(Kernel, Target) -> tuple[Opt, ...]`: a schedule that is good without any search.

Each form of a schedule is a proposal, and an estimate of the time chooses between those that suit.
Devices with thread blocks have schedules of their own (`codegen/schedules/gpu/schedule.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from types import MappingProxyType

from ferrule.codegen.estimate import least_untiled
from ferrule.codegen.kernel import Kernel, stores_to_one_place
from ferrule.codegen.opt import Opt
from ferrule.codegen.plan import Plan, Proposal
from ferrule.codegen.schedules.cpu.chains import has_stages, schedule_chain
from ferrule.codegen.schedules.cpu.contraction import schedule_contraction
from ferrule.codegen.schedules.cpu.rows import schedule_rows
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


def proposed(kernel: Kernel, target: Target) -> Iterator[tuple[Opt, ...]]:
    """The opts that `choose` gives, and then those with each candidate that it did not take."""
    plan = schedule(kernel, target)
    yield tuple(plan.opts)
    for path in [candidate.path for candidate in plan.candidates if not candidate.is_taken]:
        wanted = {path[:n]: path[n] for n in range(1, len(path), 2)}
        yield tuple(schedule(kernel, target, wanted=wanted).opts)


def schedule(
    kernel: Kernel,
    target: Target,
    constants: Set[int] = frozenset(),
    wanted: Mapping[tuple[str, ...], str] = MappingProxyType({}),
) -> Plan:
    """The opts for a kernel, as `choose` gives them, and the kernel that they make.

    `constants` are slots whose copies are made beforehand. Only the order of loops over results may
    depend on them: each result has the same bits as without. `wanted` are forms to take where they
    suit, by the paths of choices (`Candidate.path`).
    """
    plan = Plan(kernel, target, constants, wanted)
    plan.collapse()
    if target.block_threads > 1:
        # Imported here: it imports NumPy, which processes that compile for the CPU do not need.
        from ferrule.codegen.schedules.gpu.schedule import schedule_grid

        schedule_grid(plan)
    elif not plan.attempt(schedule_rows_of_scatter):
        for name in [nest.name for nest in plan.kernel.roots]:
            plan.best(name, *_proposals(plan, name))
    return plan


def _proposals(plan: Plan, name: str) -> list[Proposal]:
    """The forms of schedules that may suit a root nest, the one to be preferred first."""
    below = plan.below(name)

    def of(form: str, schedule: Callable[..., bool]) -> Proposal:
        return Proposal(form, partial(schedule, name=name))

    if stores_to_one_place(plan.nest(name)):
        return [] if below else [of("scatter", schedule_scatter)]
    if not below:
        return [of("stream", schedule_stream)]
    if has_stages(plan, name):
        return [of("chain", schedule_chain)]
    return [
        of("running totals", schedule_scan),
        of("contraction", schedule_contraction),
        of("few terms", schedule_few_terms),
        of("rows", schedule_rows)._replace(least=least_untiled),
    ]
