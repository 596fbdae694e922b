"""Elements put into memory by index: which versions need no copy of the one before.

A SCATTER may have a base: it is that, with elements put in. Where its memory is the base's, its
kernel stores these elements and nothing else; where it is not, the kernel copies the base first.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from ferrule.lazy import LazyBuffer
from ferrule.ops import LoadOps, MovementOps, ReduceOps
from ferrule.schedule.graph import Graph, value_sources
from ferrule.schedule.signature import is_pass_through
from ferrule.schedule.views import dense, is_movement, unmoved, view_of
from ferrule.shape.view import View

BASE: Final = 2
"""Which source of a SCATTER elements are put into, if there is one."""


def base_of(node: LazyBuffer) -> LazyBuffer | None:
    """What a SCATTER puts elements into, if that is no constant."""
    if node.op is not ReduceOps.SCATTER or len(node.srcs) <= BASE:
        return None
    base = node.srcs[BASE]
    return base if base.base_const() is None else None


def memory_of(base: LazyBuffer) -> LazyBuffer:
    """What has to be in memory so that a load is all it takes to read a base."""
    below = base
    while is_movement(below):
        below = below.srcs[0]
    is_view = below.base_const() is None and view_of(base, below) is not None
    return below if is_view else base


def updates_of(graph: Graph) -> dict[LazyBuffer, LazyBuffer]:
    """The versions that are the one before with elements put in by index, and the SCATTERs of it.

    Nothing else needs these SCATTERs, so that the version is all that has to be stored.
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
    """The nodes from a value down to a SCATTER, if that is only reshaped and permuted; each with
    the view of memory by which it is stored where `value` is by `view`.
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
    """The SCATTER that a version stores without memory of its own for it, and where."""
    if root.op is not LoadOps.ASSIGN:
        return None
    chain = _to_scatter(root.srcs[1], _place(root))
    return chain[-1] if chain is not None and chain[-1][0] not in roots else None


def stored_value(root: LazyBuffer, roots: Set[LazyBuffer]) -> LazyBuffer:
    """What a kernel computes for a root; reshapes of that are left out."""
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
    """Where in memory a version is stored."""
    view: View = dense(version.shape) if version.arg is None else version.arg
    return view
