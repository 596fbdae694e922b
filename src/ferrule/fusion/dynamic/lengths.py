"""Dynamic shapes: one plan for lengths that change from call to call, as a growing sequence's.

A kernel that is specialised for one length is simpler and faster, but has to be compiled. So a
family of graphs whose sizes follow laws of a few lengths is generalised: one plan, of a stand-in in
which the lengths are variables, serves them all. Memory is laid out as for a single length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, TypeAlias

from ferrule.fusion.dynamic.families import Family
from ferrule.fusion.dynamic.known_lengths import AnyLength
from ferrule.fusion.dynamic.parameters import Parameters, by_node, constants_of
from ferrule.fusion.dynamic.stand_in import generalised
from ferrule.fusion.graph import Graph
from ferrule.fusion.plans.execution_plan import ExecutionPlan, Schedule
from ferrule.fusion.plans.graph_key import KeyedGraph, serves_any_size
from ferrule.ir.expr import Length, as_expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BufferOps, LoadOps, get_lazyop_info
from ferrule.ir.shape.view import ShapeError
from ferrule.ir.target import Target

Planner: TypeAlias = Callable[[Graph, Target], tuple[ExecutionPlan, Any]]

_MOST_PLANS: Final = 64
"""Plans of one family. Not measured."""
_MOST_BYTES: Final = 1 << 26
"""Bytes of a stored value above which each length has its own plan: compiling is then a small part
of the time. Not measured."""
_MOST_OPERATIONS: Final = 1 << 31
"""Operations of a kernel above which each length has its own plan. Not measured."""
_COMPILE_SECONDS: Final = 20e-3
"""Seconds to plan and compile a kernel (a training step of a small GPT, Zen 4, 2026-11)."""
_GAIN: Final = 0.2
"""The part of its time that a kernel for one length saves at most (as above)."""
_STORE_SECONDS: Final = 0.3e-3
"""Seconds of memory traffic that raise `_MOST_BYTES` on a fast device. Not measured."""
_KERNEL_SECONDS: Final = 5e-3
"""Seconds of operations that raise `_MOST_OPERATIONS` on a fast device. Not measured."""


def schedule_of_any_length(
    graph: Graph,
    family: Family,
    now: Parameters,
    planner: Planner,
    target: Target,
    keyed: KeyedGraph | None,
) -> Schedule | None:
    """The schedule of a graph by a plan for all lengths of its family; None if there is none.

    `keyed` is the graph's key; None if that is of another graph, which this one stands for.
    """
    if graph.symbolic or any([_is_for_one_size(node) for node in graph.everything]):
        return None
    lengths = family.lengths_of(now)
    if not lengths:
        return None
    bounds = enumerate(family.bounds_of(lengths))
    variables = tuple([Length(f"length{n}", *both) for n, both in bounds])
    kind = (target, variables)
    known = family.plans.get(kind)
    if known is None:
        if len(family.plans) >= _MOST_PLANS:
            family.plans.clear()
        bound = [variable.bind(n) for variable, n in zip(variables, lengths, strict=True)]
        integers = dict(by_node(graph.everything, family.integers(bound), len(now.sizes)))
        constants = constants_of(graph.everything)
        changing = [constants[place] for place in sorted(family.constants)]
        found = generalised(graph, integers, changing)
        plan = None if found is None else _planned(found.graph, planner, target)
        if found is None or plan is None:
            known = AnyLength(variables, None, (), 0)
        else:
            numbers = found.numbers_in(graph)
            known = AnyLength(variables, plan, numbers, _uses_worth_a_plan(plan, target))
            if keyed is not None:
                known.learn(target, keyed, graph, found)
        family.plans[kind] = known
    return known.schedule(lengths, graph.everything)


def _is_for_one_size(node: LazyBuffer) -> bool:
    """True for a user's runner, or the reader of a file, which work for one size only."""
    return node.op is LoadOps.CUSTOM and not serves_any_size(node)


def uses_worth_kernels(costs: Sequence[tuple[int, int]], target: Target) -> float:
    """The uses of the same lengths after which compiling kernels for them has paid.

    `costs` are the operations and the bytes of each kernel for any length. Never without kernels.
    """
    if not costs:
        return inf
    seconds = sum(
        [ops / target.flops_per_second + mem / target.bytes_per_second for ops, mem in costs]
    )
    return uses_worth_compiling(len(costs), seconds / target.max_threads)


def uses_worth_compiling(kernels: int, seconds: float) -> float:
    """The uses after which compiling so many kernels has paid, if those for any length take so many
    seconds together in each use.
    """
    return _COMPILE_SECONDS * kernels / max(_GAIN * seconds, 1e-12)


def _uses_worth_a_plan(plan: ExecutionPlan, target: Target) -> float:
    """`uses_worth_kernels` of a plan, by the bounds of its lengths."""
    sizes = [as_expr(p.size).max * p.dtype.itemsize for p in plan.places]
    costs = [
        (as_expr(get_lazyop_info(step.ast).flops).max, sum([sizes[place] for place in step.places]))
        for step in plan.steps
        if isinstance(step.ast.op, BufferOps)
    ]
    costs += [
        step.ast.arg.costs(as_expr(plan.places[step.places[0]].size).max, {})
        for step in plan.steps
        if step.ast.op is LoadOps.CUSTOM and step.variables
    ]
    return uses_worth_kernels(costs, target)


def _planned(graph: Graph, planner: Planner, target: Target) -> ExecutionPlan | None:
    """The plan of a graph with symbolic sizes.

    None if it is uncertain that views fit. None as well if values are so large, or kernels run so
    long, that a plan for each length is worth its compilation.
    """
    try:
        plan, _ = planner(graph, target)
    except ShapeError:
        return None
    stored = [place for place in plan.places if place.node is None]
    most_bytes = max(_MOST_BYTES, _STORE_SECONDS * target.bytes_per_second * target.max_threads)
    if any([as_expr(p.size).max * p.dtype.itemsize > most_bytes for p in stored]):
        return None
    kernels = [step.ast for step in plan.steps if isinstance(step.ast.op, BufferOps)]
    longest = max([as_expr(get_lazyop_info(ast).flops).max for ast in kernels], default=0)
    most = max(_MOST_OPERATIONS, _KERNEL_SECONDS * target.flops_per_second * target.max_threads)
    return plan if longest <= most else None
