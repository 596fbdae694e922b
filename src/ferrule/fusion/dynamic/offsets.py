"""Offsets that change from call to call, as in random crops: parts of memory, or variables.

Kernels need not know where a part of memory begins: they are given that part as a buffer. So such a
part becomes a leaf of its own, and the plan is the same wherever it begins. Other changing offsets,
such as those of a crop of a padded value, become variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from ferrule.device.runner import is_divisible
from ferrule.fusion.dynamic.parameters import Integers, constants_of, integers_of
from ferrule.fusion.dynamic.stand_in import StandIn, generalised
from ferrule.fusion.graph import Graph
from ferrule.fusion.views import is_movement, view_of
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps
from ferrule.ir.op_table import FORMS
from ferrule.ir.shape.view import View


def stand_in(
    graph: Graph,
    constants: Iterable[int],
    offsets: Iterable[int],
    alignment: int,
    may_vary: bool,
) -> StandIn | None:
    """The stand-in of a graph with some constants in memory, and without some offsets.

    They are given by position among all of the graph. Parts begin at multiples of `alignment`
    bytes. Offsets may become variables only if `may_vary`. None if there is nothing to gain.
    """
    known = constants_of(graph.everything)
    chosen = [known[place] for place in sorted(constants)]
    parts, varying = _without_offsets(graph, offsets, alignment, may_vary)
    if not chosen and not parts and not varying:
        return None
    return generalised(graph, varying, chosen, parts)


def _without_offsets(
    graph: Graph, changed: Iterable[int], alignment: int, may_vary: bool
) -> tuple[dict[LazyBuffer, LazyBuffer], dict[LazyBuffer, Integers]]:
    """What replaces the changed offsets, by node: parts of memory, and integers with variables."""
    axes = [(node, axis) for node in graph.everything for axis in range(len(integers_of(node)[1]))]
    chosen: dict[LazyBuffer, list[int]] = {}
    for place in sorted(changed):
        node, axis = axes[place]
        chosen.setdefault(node, []).append(axis)
    written = _written(graph)
    parts = {node: part for node in chosen if (part := _part(node, written, alignment)) is not None}
    others = {node: found for node, found in chosen.items() if node not in parts}
    # A plan for fixed offsets gives kernels parts of existing memory anyway. It also sees that one
    # kernel reads what it overwrites, as in `x[i:j] += y`.
    moved = [node for node in others if node.op is not LoadOps.ASSIGN]
    if not may_vary or (moved and all([_is_in_memory(node) for node in others])):
        others = {}
    varying: dict[LazyBuffer, Integers] = {}
    variables = 0
    for node in graph.everything:
        if node in others:
            varying[node] = _with_variables(node, others[node], variables)
            variables += len(others[node])
    return parts, varying


def _with_variables(node: LazyBuffer, axes: Iterable[int], number: int) -> Integers:
    """The integers of a node with variables for some offsets, numbered from `number` on."""
    form, (sizes, offsets) = FORMS[node.op], integers_of(node)
    offsets = list(offsets)
    for place, axis in enumerate(axes, number):
        bounds = form.offset_bounds(node.arg, axis, node.srcs[0].shape)
        offsets[axis] = Variable(f"offset{place}", *bounds).bind(offsets[axis])
    return sizes, offsets


def _written(graph: Graph) -> set[Buffer]:
    """The existing memory that versions in the graph may be written to."""
    found: set[Buffer] = set()
    for node in graph.everything:
        if node.op is LoadOps.ASSIGN:
            memory = _memory(node)
            if memory is not None:
                found.add(memory.base)
    return found


def _is_in_memory(node: LazyBuffer) -> bool:
    """True for a version in existing memory, or a movement that is a part of such memory."""
    if node.op is not LoadOps.ASSIGN:
        return _part_of(node) is not None
    memory = node
    while memory.realized is None and memory.op is LoadOps.ASSIGN:
        memory = memory.srcs[0]
    return memory.realized is not None and memory.owner in (None, node.owner)


def _memory(node: LazyBuffer) -> Buffer | None:
    """The existing memory below a chain of movements and versions; None if there is none."""
    while node.realized is None and (node.op is LoadOps.ASSIGN or is_movement(node)):
        node = node.srcs[0]
    return node.realized


def _part_of(node: LazyBuffer) -> tuple[Buffer, View, int] | None:
    """The existing memory that a node moves, its view of that, and the view's offset.

    None below a PAD: whether a part holds padding would depend on its offset.
    """
    leaf = node
    while is_movement(leaf):
        if leaf.op is MovementOps.PAD:
            return None
        leaf = leaf.srcs[0]
    if leaf is node or leaf.realized is None:
        return None
    view = view_of(node, leaf)
    if view is None or not isinstance(view.offset, int):
        return None
    return leaf.realized, view, view.offset


def _part(node: LazyBuffer, written: Set[Buffer], alignment: int) -> LazyBuffer | None:
    """The node's elements as a view of a leaf that spans no more memory than they do.

    None if they are no part of existing memory, or that memory is in `written`.
    """
    found = _part_of(node)
    if found is None:
        return None
    memory, view, offset = found
    if memory.base in written or not is_divisible(memory):
        return None
    if view.reach is None:
        return None
    start, stop = view.reach
    start -= start % max(1, alignment // memory.dtype.itemsize)
    size = stop - start
    part = LazyBuffer.in_buffer(memory.view(start, size), (size,))
    return part.as_strided(view.shape, view.strides, offset - start)
