"""Updates by index: versions that are stored without a copy of the version before.

A SCATTER may have a base, into which it puts elements. If it is stored in the memory of the base,
its kernel stores these elements and nothing else. In other memory the kernel copies the base first.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from ferrule.fusion.graph import Graph, value_sources
from ferrule.fusion.signature import is_pass_through
from ferrule.fusion.views import dense, is_movement, unmoved, view_of
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps, ReduceOps
from ferrule.ir.shape.view import View

BASE: Final = 2
"""The position of a SCATTER's base among its sources, if it has one."""


def base_of(node: LazyBuffer) -> LazyBuffer | None:
    """The base of a SCATTER; None for other nodes, without a base, or for a constant one."""
    if node.op is not ReduceOps.SCATTER or len(node.srcs) <= BASE:
        return None
    base = node.srcs[BASE]
    return base if base.base_const() is None else None


def memory_of(base: LazyBuffer) -> LazyBuffer:
    """The node to store so that a base can be read by a single load."""
    below = base
    while is_movement(below):
        below = below.srcs[0]
    is_view = below.base_const() is None and view_of(base, below) is not None
    return below if is_view else base


def updates_of(graph: Graph) -> dict[LazyBuffer, LazyBuffer]:
    """The versions that put elements into the version before by index, with their SCATTERs.

    Nothing else needs these SCATTERs, so that only the version has to be stored.
    """
    if not any([base_of(node) is not None for node in graph.order]):
        return {}
    users: dict[LazyBuffer, int] = {}
    for node in graph.order:
        for source in node.srcs:
            users[source] = users.get(source, 0) + 1
    found: dict[LazyBuffer, LazyBuffer] = {}
    for version in graph.order:
        if version.op is not LoadOps.ASSIGN:
            continue
        chain = _to_scatter(version.srcs[1], _place(version))
        base = None if chain is None else base_of(chain[-1][0])
        if chain is None or base is None:
            continue
        needed = any(users[n] > 1 or n in graph.external for n, _ in chain)
        scatter, place = chain[-1]
        if not needed and view_of(base, version.srcs[0]) == place:
            found[version] = scatter
    return found


def _to_scatter(value: LazyBuffer, view: View) -> list[tuple[LazyBuffer, View]] | None:
    """The nodes from a value down to a SCATTER, with their views if `value` is stored by `view`.

    None if anything but RESHAPE and PERMUTE is between them.
    """
    chain = [(value, view)]
    while value.op in (MovementOps.RESHAPE, MovementOps.PERMUTE):
        below = unmoved(value, view)
        if below is None:
            return None
        value, view = below
        chain.append(below)
    return chain if value.op is ReduceOps.SCATTER else None


def stored_scatter(root: LazyBuffer, roots: Set[LazyBuffer]) -> tuple[LazyBuffer, View] | None:
    """The SCATTER that a version stores directly, and its view there; None for other nodes."""
    if root.op is not LoadOps.ASSIGN:
        return None
    chain = _to_scatter(root.srcs[1], _place(root))
    return chain[-1] if chain is not None and chain[-1][0] not in roots else None


def stored_value(root: LazyBuffer, roots: Set[LazyBuffer]) -> LazyBuffer:
    """The node whose value a kernel computes for a root, below reshapes."""
    scatter = stored_scatter(root, roots)
    if scatter is not None:
        return scatter[0]
    value = value_sources(root)[-1] if is_pass_through(root) else root
    while value.op is MovementOps.RESHAPE:
        if value is not root and value in roots:
            break
        value = value.srcs[0]
    return value


def _place(version: LazyBuffer) -> View:
    """The view of memory by which a version is stored."""
    view: View = dense(version.shape) if version.arg is None else version.arg
    return view
