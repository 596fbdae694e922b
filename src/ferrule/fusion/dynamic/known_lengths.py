"""Graphs of a family whose plan for any length is found without looking at the graph.

A *template* is the flat key of one graph (`KeyedGraph.key`) with an expression of the lengths in
each place that differs between lengths. A graph that agrees with it in all places has that plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import compress, count
from operator import ne
from typing import Any, Final, final
from weakref import WeakSet

from ferrule.base.config import config
from ferrule.fusion.dynamic.stand_in import StandIn, nodes_by
from ferrule.fusion.graph import Graph, note_passed
from ferrule.fusion.plans.execution_plan import ExecutionPlan, Schedule
from ferrule.fusion.plans.graph_key import KeyedGraph, is_constant, is_marker, is_run
from ferrule.ir.expr import Expr, Length, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.shape.view import View, prod_sint
from ferrule.ir.target import Target

_MOST_COUNTED: Final = 4096
"""Lengths whose uses are counted. Not measured."""
_Place = tuple[int, tuple[int, ...]]
"""The position of an integer in a key, and in the tuples there."""


@final
class AnyLength:
    """A plan for graphs with any lengths, and how to recognise these.

    `plan` is None where there can be none; then each length has its own. `numbers` are those of its
    nodes, see `StandIn.numbers_in`. After `enough` uses of the same lengths they have a plan too.
    """

    __slots__ = ("__weakref__", "_template", "_uses", "enough", "numbers", "plan", "variables")

    def __init__(
        self,
        variables: tuple[Length, ...],
        plan: ExecutionPlan | None,
        numbers: tuple[int, ...],
        enough: float,
    ) -> None:
        self.variables = variables
        self.plan = plan
        self.numbers = numbers
        self.enough = enough
        self._uses: dict[tuple[int, ...], int] = {}
        self._template: _Template | None = None

    def schedule(self, lengths: tuple[int, ...], nodes: Sequence[LazyBuffer]) -> Schedule | None:
        """The schedule of a graph with these lengths and nodes; None if it has its own plan."""
        if self.plan is None:
            return None
        if len(self._uses) >= _MOST_COUNTED:
            self._uses.clear()
        uses = self._uses[lengths] = self._uses.get(lengths, 0) + 1
        if uses > self.enough:
            return None
        values: dict[Any, int] = dict(zip(self.variables, lengths, strict=True))
        found = nodes_by(self.numbers, nodes)
        return self.plan.bind(found, [values] * len(self.plan.steps), values)

    def learn(self, target: Target, keyed: KeyedGraph, graph: Graph, stand_in: StandIn) -> None:
        """Learn how graphs look that have this plan, from one of them."""
        self._template = _template(self.variables, keyed, graph, stand_in)
        if self._template is not None:
            _known.setdefault(_kind(target, keyed), WeakSet()).add(self)

    def schedule_of(self, keyed: KeyedGraph) -> Schedule | None:
        """The schedule of a graph that is not looked at; None if it may be of another kind."""
        template = self._template
        assert template is not None
        lengths = template.lengths_of(keyed)
        if lengths is None:
            return None
        nodes = list(keyed.numbers)
        schedule = self.schedule(lengths, nodes)
        if schedule is not None and template.passed:
            note_passed([nodes[number] for number in template.passed])
        return schedule


_known: dict[Hashable, WeakSet[AnyLength]] = {}
"""The plans with templates, by what all graphs that they serve have in common."""


def schedule_of_known_lengths(target: Target, keyed: KeyedGraph) -> Schedule | None:
    """The schedule of a graph that agrees with a template; None for any other graph."""
    for known in _known.get(_kind(target, keyed), ()):
        schedule = known.schedule_of(keyed)
        if schedule is not None:
            return schedule
    return None


def _kind(target: Target, keyed: KeyedGraph) -> Hashable:
    sizes = len(keyed.key), len(keyed.constants), len(keyed.numbers)
    return id(target), config().FERRULE_SKIP, sizes


@final
class _Template:
    """The key of a graph with expressions in place of what follows from the lengths."""

    def __init__(
        self,
        variables: tuple[Length, ...],
        keyed: KeyedGraph,
        symbolic: Mapping[int, Any],
        places: Sequence[_Place],
        free: Sequence[int],
        passed: Sequence[int],
    ) -> None:
        self.passed = passed
        """The numbers of `Graph.passed`."""
        self._variables = variables
        self._key = keyed.key
        self._constants = keyed.constants
        self._symbolic = symbolic
        """The parts of the key with expressions, by position."""
        self._places = places
        """A place for each length where the key has it as it is."""
        self._free = frozenset(free)
        """The positions of the constants that are memory."""

    def lengths_of(self, keyed: KeyedGraph) -> tuple[int, ...] | None:
        """The lengths of a graph; None if it does not agree with the template."""
        key = keyed.key
        differing = list(compress(count(), map(ne, key, self._key)))
        if not self._symbolic.keys() >= set(differing):
            return None
        lengths = []
        for variable, place in zip(self._variables, self._places, strict=True):
            length = _at(key, place)
            if type(length) is not int or not variable.min <= length <= variable.max:
                return None
            lengths.append(length)
        values = dict(zip(self._variables, lengths, strict=True))
        known: dict[Any, Any] = {}
        for position, part in self._symbolic.items():
            expected = known.get(part)
            if expected is None:
                expected = known[part] = _mapped(part, lambda size: size.infer(values))
            if key[position] != expected:
                return None
        constants = compress(count(), map(ne, keyed.constants, self._constants))
        return tuple(lengths) if self._free.issuperset(constants) else None


def _template(
    variables: tuple[Length, ...], keyed: KeyedGraph, graph: Graph, stand_in: StandIn
) -> _Template | None:
    """The template of graphs like this one; None if a length is nowhere in its key as it is."""
    twins = {node: twin for twin, node in stand_in.originals.items()}
    symbolic: dict[int, Any] = {}
    for node, start in zip(graph.everything, _starts(keyed), strict=True):
        twin = twins.get(node)
        for position, part in () if twin is None else _parts(node, twin, start):
            if isinstance(part, View):
                return None
            free = _mapped(part, lambda size: unbind(size)[0])
            if free != keyed.key[position]:
                symbolic[position] = free
    places = [_place_of(variable, symbolic) for variable in variables]
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        return None
    in_memory = set(stand_in.constants.values())
    constants = [node for node in graph.everything if is_constant(node)]
    free_constants = [n for n, node in enumerate(constants) if node in in_memory]
    passed = [keyed.numbers[node] for node in graph.passed]
    return _Template(variables, keyed, symbolic, known, free_constants, passed)


def _starts(keyed: KeyedGraph) -> Iterator[int]:
    """The position in the key at which each node's part begins; see `KeyedGraph` for the parts."""
    position = 0
    for node in keyed.numbers:
        yield position
        if node.realized is not None:
            position += 4
        elif node.srcs:
            own = 5 if node.op is LoadOps.CUSTOM else 3 if node.op is LoadOps.RESULT else 2
            position += own + len(node.srcs)
        else:
            position += 4 if is_constant(node) else 5
        while is_marker(keyed.key[position]):
            position += 1


def _parts(node: LazyBuffer, twin: LazyBuffer, start: int) -> Iterator[tuple[int, Any]]:
    """The positions of what a node introduces, with the same of its twin."""
    if node.realized is not None:
        yield start, twin.shape
        yield start + 3, prod_sint(twin.shape)
    elif not node.srcs:
        yield start + 1, twin.shape
    elif is_run(node):
        yield start + 2, twin.shape
    else:
        yield start + 1, twin.arg


def _mapped(part: Any, function: Callable[[Expr], sint]) -> Any:
    """A part of a key with a function of each expression in it."""
    if isinstance(part, tuple):
        return tuple([_mapped(inner, function) for inner in part])
    return function(part) if isinstance(part, Expr) else part


def _place_of(variable: Length, symbolic: Mapping[int, Any]) -> _Place | None:
    """A place in the key where there is nothing but a variable."""
    for position, part in symbolic.items():
        path = _path_to(variable, part)
        if path is not None:
            return position, path
    return None


def _path_to(variable: Length, part: Any) -> tuple[int, ...] | None:
    if part is variable:
        return ()
    for place, inner in enumerate(part) if isinstance(part, tuple) else ():
        path = _path_to(variable, inner)
        if path is not None:
            return (place, *path)
    return None


def _at(key: Sequence[Any], place: _Place) -> Any:
    """What a key has at a place; None if that is not there."""
    position, path = place
    found = key[position]
    for step in path:
        if not isinstance(found, tuple) or step >= len(found):
            return None
        found = found[step]
    return found
