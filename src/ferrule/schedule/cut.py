"""Where the graph is cut into kernels."""

from __future__ import annotations

from ferrule.lazy import LazyBuffer
from ferrule.ops import LoadOps, MovementOps, ReduceOps
from ferrule.schedule.graph import Graph, value_sources
from ferrule.schedule.tasks import memory_roots
from ferrule.target import Target


def cut(graph: Graph, target: Target) -> tuple[set[LazyBuffer], list[list[LazyBuffer]]]:
    """The nodes that get memory, and those of them that are computed together."""
    roots = memory_roots(graph)
    users = dict.fromkeys(graph.order, 0)
    for node in graph.order:
        for source in value_sources(node):
            users[source] += 1
    for node in graph.order:
        if node.realized is not None or node.op is LoadOps.CONST:
            continue
        if isinstance(node.op, ReduceOps):
            roots.add(node)
        elif users[node] > 1 and not isinstance(node.op, MovementOps):
            roots.add(node)
    return roots, [[node] for node in graph.order if node in roots and is_computed(node)]


def is_computed(node: LazyBuffer) -> bool:
    """Whether it takes a kernel to fill the node's memory."""
    return node.op is not LoadOps.EMPTY and 0 not in node.shape
