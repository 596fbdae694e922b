"""Parameters of a graph: the sizes, offsets and constants by which graphs of a family differ.

All else is the *form* of the family. Axes of size 1 can be repeated, so that which sizes are 1 is a
part of the form.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.fusion.graph import Graph
from ferrule.fusion.plans.graph_key import Part, is_constant, is_run, serves_any_size
from ferrule.fusion.plans.plan_key import GraphForm
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.op_table import FORMS
from ferrule.ir.shape.view import prod_sint

Integers: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
"""The sizes and the offsets of a node."""


@final
@dataclass(frozen=True)
class Parameters:
    """The sizes, offsets and constants of a graph, in order of its nodes."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    constants: tuple[Hashable, ...]

    @property
    def integers(self) -> tuple[int, ...]:
        """The sizes and the offsets."""
        return self.sizes + self.offsets


def parameters_of(graph: Graph, form: GraphForm) -> tuple[Parameters, tuple[Hashable, ...]]:
    """The parameters of a graph, and the rest of its key, which is that of all its family.

    The sizes and offsets of a symbolic graph are a part of the rest.
    """
    sizes: list[int] = []
    offsets: list[int] = []
    rest: list[Part] = list(form.parts)
    for place, node in enumerate(() if graph.symbolic else graph.everything):
        own_sizes, own_offsets = integers_of(node)
        if own_sizes or own_offsets:
            sizes += own_sizes
            offsets += own_offsets
            ones = tuple([size == 1 for size in own_sizes])
            rest[place] = (ones, *_without_integers(node, rest[place]))
    return Parameters(tuple(sizes), tuple(offsets), form.constants), (*rest, *form.uses)


def integers_of(node: LazyBuffer) -> Integers:
    """The sizes and the offsets that a node introduces."""
    if node.realized is not None:
        return (node.shape if _is_whole(node) else ()), ()
    if not node.srcs:
        return node.shape, ()
    if is_run(node):
        if not serves_any_size(node):
            return (), ()
        own = node.arg.integers if node.op is LoadOps.CUSTOM else ()
        return (*node.shape, *own), ()
    form = FORMS.get(node.op)
    return ((), ()) if form is None else (form.sizes(node.arg), form.offsets(node.arg))


def argument_with(node: LazyBuffer, integers: Integers) -> Any:
    """The argument of a node that has sources, with other integers."""
    form = FORMS.get(node.op)
    if form is None:
        return node.arg
    sizes, offsets = integers
    return form.replaced(node.arg, iter(sizes), iter(offsets))


def by_node(
    nodes: Iterable[LazyBuffer], integers: Sequence[sint], count: int
) -> Iterator[tuple[LazyBuffer, Integers]]:
    """The nodes that get symbolic integers, with these; the first `count` of all are sizes."""
    sizes, offsets = iter(integers[:count]), iter(integers[count:])
    for node in nodes:
        counts = [len(found) for found in integers_of(node)]
        own = list(islice(sizes, counts[0])), list(islice(offsets, counts[1]))
        if not all([isinstance(n, int) for n in own[0] + own[1]]):
            yield node, own


def constants_of(nodes: Iterable[LazyBuffer]) -> list[LazyBuffer]:
    """The constants among `nodes`, in the order in which a graph's key has their values."""
    return [node for node in nodes if is_constant(node)]


def _without_integers(node: LazyBuffer, part: Part) -> Part:
    """A node's part of the key without its sizes and offsets; see `parts_of` for the order."""
    if node.realized is not None:
        return (*part[1:-3], *part[-2:])
    if not node.srcs:
        return (part[0], *part[2:])
    if is_run(node):
        arg = node.arg.family if node.op is LoadOps.CUSTOM else node.arg
        return (*part[:2], arg, *part[4:])
    op, sources, arg, owner = part
    return (op, sources, FORMS[op].rest(arg), owner)


def _is_whole(node: LazyBuffer) -> bool:
    """True for a leaf that is all of its memory, so that its sizes tell the number of elements."""
    buffer = node.realized
    return buffer is not None and buffer.base is buffer and buffer.size == prod_sint(node.shape)
