"""From a lazy graph to a list of kernels: cut, place in memory, order, and build the ASTs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, final

from ferrule.device import Device
from ferrule.expr import Variable
from ferrule.lazy import LazyBuffer
from ferrule.memory import Lifetime, plan_memory
from ferrule.ops import LazyOp, LoadOps, ScheduleItem
from ferrule.schedule.cut import cut
from ferrule.schedule.graph import Graph, build_graph
from ferrule.schedule.hazards import Hazards
from ferrule.schedule.recipe import Form, Place, Recipe, Schedule, Step
from ferrule.schedule.slots import Slot, Slots
from ferrule.schedule.tasks import Reader, Task
from ferrule.schedule.trees import TreeBuilder
from ferrule.target import Target, detect_cpu

__all__ = ["Schedule", "create_schedule", "make_schedule"]

_MOST_RECIPES: Final = 512
_recipes: OrderedDict[Hashable, Recipe] = OrderedDict()


def create_schedule(nodes: Sequence[LazyBuffer]) -> list[ScheduleItem]:
    """The kernels that compute `nodes`, to be run in this order by the caller.

    From now on the nodes count as realised.
    """
    schedule = make_schedule(nodes)
    schedule.commit()
    return schedule.items


def make_schedule(nodes: Sequence[LazyBuffer]) -> Schedule:
    """What has to run to compute `nodes`; the graph stays as it is until `commit`."""
    graph = build_graph(nodes)
    if not graph.requested:
        return Schedule([], [])
    target = _target(next(iter(graph.requested)).device)
    form = Form(graph)
    if form.key is None:
        recipe, values = _plan(graph, target)
        return recipe.follow(graph.everything, values)
    key = (target, form.key)
    recipe = _recipes.get(key)
    if recipe is None:
        recipe, _ = _plan(graph, target)
        _recipes[key] = recipe
        if len(_recipes) > _MOST_RECIPES:
            _recipes.popitem(last=False)
    else:
        _recipes.move_to_end(key)
    return recipe.follow(graph.everything, form.values)


@cache
def _target(device: str) -> Target:
    """What the scheduler assumes about a device; one that interprets is weighed as the host."""
    target: Target | None = getattr(Device[device], "linearizer_opts", None)
    return detect_cpu() if target is None else target


