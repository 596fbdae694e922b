"""The graph that is cut into kernels: some nodes are expanded into several.

A graph is built, and its plan found again, with few nodes: a template is one, and so is a long
reduce. Only what was never planned before is expanded.
"""

from __future__ import annotations

from ferrule.fusion.dynamic.stand_in import StandIn, replaced
from ferrule.fusion.dynamic.templates import Template
from ferrule.fusion.graph import Graph
from ferrule.fusion.long_reduces import is_long, rebuilt
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps


def expanded(graph: Graph) -> StandIn | None:
    """The graph with templates and long reduces expanded; None where it has neither."""
    is_template = [node.op is LoadOps.TEMPLATE for node in graph.everything]
    if not any(is_template) and not any(map(is_long, graph.everything)):
        return None
    twins: dict[LazyBuffer, LazyBuffer] = {}
    for node, template in zip(graph.everything, is_template, strict=True):
        srcs = tuple([twins.get(source, source) for source in node.srcs])
        if template:
            made: Template = node.arg
            twin = made.expanded(srcs[0])
            twin.owner = node.owner
        else:
            twin = rebuilt(node, srcs)
        if twin is not node:
            twins[node] = twin
    found = replaced(graph, twins, graph.symbolic)
    for node in _needed_later(graph):
        found.graph.requested[twins[node]] = None
    return found


def _needed_later(graph: Graph) -> list[LazyBuffer]:
    """The long reduces that something outside still needs: their few results are stored."""
    found, needed = [], set(graph.external)
    for node in reversed(graph.everything):
        if node in needed and node not in graph.requested and node.realized is None:
            if is_long(node):
                found.append(node)
            else:
                needed.update(node.srcs)
    return found[::-1]
