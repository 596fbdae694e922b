"""Tasks: what one kernel, or one copy, writes and reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import final

from ferrule.base.records import dataclass
from ferrule.fusion.graph import Graph
from ferrule.fusion.updates import BASE, base_of, memory_of, stored_scatter, updates_of
from ferrule.fusion.views import Views, reshape
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import (
    BinaryOps,
    FunctionOps,
    LoadOps,
    MovementOps,
    ReduceOps,
    TernaryOps,
    UnaryOps,
)
from ferrule.ir.shape.view import View
from ferrule.ir.simplify import join_mask


@final
@dataclass(eq=False)
class Task:
    """One kernel, or one copy: computes `outputs` from `reads`.

    `instead` replaces nodes for this task alone: an old version by its copy, a value by its
    temporary.
    """

    outputs: list[LazyBuffer]
    instead: dict[LazyBuffer, LazyBuffer] = field(default_factory=dict)
    reads: list[LazyBuffer] = field(default_factory=list)
    stages: dict[LazyBuffer, tuple[int, ...]] = field(default_factory=dict)
    """The nodes that are stages of the kernel, with the axes of their blocks."""
    has_reduce: bool = False
    nodes: int = 0
    """The nodes that it computes. Masks of joins partition its loops: then each part counts."""

    @property
    def is_kernel(self) -> bool:
        """True if there is an AST to run, rather than a copy or a runner of the user's."""
        return self.outputs[0].op not in (LoadOps.FROM, LoadOps.CUSTOM)

    def sources(self, node: LazyBuffer) -> tuple[LazyBuffer, ...]:
        """The nodes that the task computes a node from."""
        if node.op is LoadOps.ASSIGN:
            return node.srcs[1:]
        if node.op is LoadOps.RESULT:  # the run that it is a result of is of the same task
            return ()
        return node.srcs


_KEEPS_INDEX = (UnaryOps, BinaryOps, TernaryOps, FunctionOps)
_PASSES_ON = (LoadOps.ASSIGN, LoadOps.CONTIGUOUS)


def memory_roots(graph: Graph) -> set[LazyBuffer]:
    """The nodes that must be in memory, whatever else is fused."""
    found = set(graph.requested)
    updates = updates_of(graph)
    for node in graph.order:
        if node.realized is not None:
            continue
        if node.op is LoadOps.ASSIGN and (node.arg is not None or node in updates):
            # A version that is whole, and only read on the way to others, is a value like any
            # other.
            found.update((node, node.srcs[0]))
        elif node.op in (LoadOps.FROM, LoadOps.CUSTOM):
            found.add(node)
            found.update(node.srcs)
        elif node.op is LoadOps.RESULT:
            found.add(node)
        elif node.op in (LoadOps.CONTIGUOUS, LoadOps.EMPTY, ReduceOps.SCATTER):
            found.add(node)
            base = base_of(node)
            if base is not None:
                found.add(memory_of(base))
    found -= set(updates.values())
    return {node for node in found if node.realized is None}


@final
class Reader:
    """Finds what tasks read. `roots` are the nodes that have, or get, memory.

    That is memory of their own, but for those that are in a part of another's: `layouts` says how.
    """

    def __init__(
        self, roots: set[LazyBuffer], layouts: Mapping[LazyBuffer, View] | None = None
    ) -> None:
        self.roots = roots
        self.views = Views(roots, layouts or {})

    def is_leaf(self, node: LazyBuffer, task: Task) -> bool:
        """True if the task loads the node, rather than computing it."""
        if node.realized is not None:
            return True
        if node.op is LoadOps.CONST:
            return False
        return node in self.roots and node not in task.outputs

    def leaf_view(self, node: LazyBuffer, task: Task) -> tuple[LazyBuffer, View] | None:
        """The leaf and the view of it that a load of `node` needs, if a load is all it takes."""
        if self.is_leaf(node, task):
            return node, self.views.layout(node)
        found = self.views.of(node)
        if found is None:
            return None
        base = task.instead.get(found[0], found[0])
        return (base, found[1]) if self.is_leaf(base, task) else None

    def find_reads(self, task: Task) -> None:
        """Fills in what the task reads, in the order in which a walk from the outputs meets it."""
        found: dict[LazyBuffer, None] = {}
        seen: set[LazyBuffer] = set()
        masks: set[LazyBuffer | None] = {None}
        task.has_reduce = any(isinstance(root.op, ReduceOps) for root in task.outputs)
        stack = [source for root in reversed(task.outputs) for source in task.sources(root)[::-1]]
        while stack:
            node = stack.pop()
            node = task.instead.get(node, node)
            if node in seen:
                continue
            seen.add(node)
            if self.is_leaf(node, task) or not task.is_kernel:
                found[node] = None
            else:
                task.has_reduce = task.has_reduce or isinstance(node.op, ReduceOps)
                masks.add(join_mask(node))
                stack.extend(task.sources(node)[::-1])
        task.reads = list(found)
        task.nodes = len(seen) * len(masks)

    def stored(self, task: Task, root: LazyBuffer) -> tuple[LazyBuffer, View]:
        """The value that the task stores for a root, and where it goes in the root's memory.

        A RESHAPE at the end is left out where it changes nothing in memory.
        """
        value = task.sources(root)[0] if root.op in _PASSES_ON else root
        scatter = stored_scatter(root, self.roots)
        if scatter is not None and value not in task.instead:
            return scatter
        is_region = root.op is LoadOps.ASSIGN and root.arg is not None
        view = root.arg if is_region else self.views.layout(root)
        while value.op is MovementOps.RESHAPE:
            below = value.srcs[0]
            if value is not root and (value in self.roots or value in task.instead):
                break
            narrower = reshape(view, below.shape)
            if narrower is None:
                break
            value, view = below, narrower
        return task.instead.get(value, value), view

    def aligned_views(self, task: Task, root: LazyBuffer) -> dict[LazyBuffer, View | None]:
        """For the leaves below one root: the view by which each is read at the root's own index.

        None where it is read at another index, or through different views.
        """
        found: dict[LazyBuffer, View | None] = {}
        seen: set[tuple[LazyBuffer, bool]] = set()
        stack = [(self.stored(task, root)[0], True)]
        while stack:
            node, aligned = stack.pop()
            node = task.instead.get(node, node)
            if (node, aligned) in seen:
                continue
            seen.add((node, aligned))
            loaded = self.leaf_view(node, task)
            if loaded is not None:
                leaf, view = loaded
                same = aligned and found.get(leaf, view) == view
                found[leaf] = view if same else None
                continue
            below = aligned and (isinstance(node.op, _KEEPS_INDEX) or node.op in _PASSES_ON)
            is_scatter = node.op is ReduceOps.SCATTER
            for place, source in enumerate(task.sources(node)):
                stack.append((source, aligned if is_scatter and place == BASE else below))
        return found
