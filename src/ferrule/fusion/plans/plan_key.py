"""The key of a plan, and the form of a graph that it is made of.

Forms are equal for all graphs that one plan serves, whatever the values of variables.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias, final

from ferrule.base.config import config
from ferrule.fusion.graph import Graph
from ferrule.fusion.plans.graph_key import Part, is_known, parts_of
from ferrule.ir.expr import Expr, Variable, unbind
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.shape.view import View
from ferrule.ir.target import Target

Values: TypeAlias = dict[Variable, int]


@final
class PlanKey:
    """A tuple whose hash is computed once, since descriptions of large graphs are long."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self.parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanKey) and self.parts == other.parts


@final
class GraphForm:
    """What the scheduler looks at: the nodes in order, with sources and memory named by numbers.

    `parts` are the nodes' parts, `constants` the bits of constants, and `uses` tells which nodes
    are requested, needed later, or moved out. `described` is all of that. `key` is the key of the
    plan; None for graphs with a user's runner, or with two values of one variable. `values` has the
    values of variables.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        self.values: Values = {}
        self._consistent = all([is_known(node) for node in graph.everything])
        found, constants, numbers = parts_of(graph.everything, graph.parts)
        self.parts: list[Part] = list(map(self._free, found)) if graph.symbolic else found
        self.constants = tuple(constants)
        # Who needs a constant makes no difference: that gets no memory.
        held = [node for node in graph.external if node.op is not LoadOps.CONST]
        waiting = [node for node in held if node.realized is None]
        uses = [("requested", graph.requested), ("needed", waiting), ("moved", graph.moved_out)]
        self.uses: tuple[Part, ...] = tuple(
            [(what, *sorted([numbers[node] for node in nodes])) for what, nodes in uses]
        )
        self.described: tuple[Hashable, ...] = (*self.parts, *self.uses, self.constants)
        self.key: PlanKey | None = None
        if self._consistent:
            self.key = PlanKey((target, config().FERRULE_SKIP, self.described))

    def _free(self, arg: Any) -> Any:
        """The argument with variables for bound values, which go to `values`."""
        if isinstance(arg, tuple):
            return tuple([self._free(part) for part in arg])
        if isinstance(arg, View):
            return self._free((arg.shape, arg.strides, arg.offset, arg.mask))
        if not isinstance(arg, Expr):
            return arg
        free, values = unbind(arg)
        for variable, value in values.items():
            if self.values.setdefault(variable, value) != value:
                self._consistent = False
        return free
