"""Movements of memory as views of it, so that a load does them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import final

from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import MovementOps
from ferrule.ir.op_table import MOVEMENTS, PLAIN_MOVEMENTS
from ferrule.ir.shape.layout import storage_view
from ferrule.ir.shape.movement import reshape_view
from ferrule.ir.shape.view import View

dense = lru_cache(maxsize=4096)(storage_view)


def move(view: View, node: LazyBuffer) -> View | None:
    """The view after the movement `node`; None if no single view expresses it."""
    row = MOVEMENTS.get(node.op)
    return None if row is None or row.view is None else row.view(view, node.arg, node.shape)


def reshape(view: View, shape: tuple[sint, ...]) -> View | None:
    """The view under another shape; None if no single view expresses it."""
    return reshape_view(view, shape, shape)


def unmoved(node: LazyBuffer, view: View) -> tuple[LazyBuffer, View] | None:
    """The source of a RESHAPE or a PERMUTE, and its view of memory if the node's is `view`.

    None if no single view expresses it.
    """
    below = node.srcs[0]
    if node.op is MovementOps.PERMUTE:
        order = [node.arg.index(axis) for axis in range(len(node.arg))]
        return below, view.permute(tuple(order))
    narrower = reshape(view, below.shape)
    return None if narrower is None else (below, narrower)


def view_of(node: LazyBuffer, memory: LazyBuffer) -> View | None:
    """The view of `memory` that the chain of movements down from `node` makes.

    None if there is no such chain, or no single view expresses it.
    """
    chain: list[LazyBuffer] = []
    while node is not memory:
        if not is_movement(node):
            return None
        chain.append(node)
        node = node.srcs[0]
    view: View | None = dense(memory.shape)
    for moved in reversed(chain):
        view = None if view is None else move(view, moved)
    return view


def interleaves(node: LazyBuffer) -> bool:
    """True for a RESHAPE that puts other elements between neighbours in memory.

    Examples are a pixel shuffle, and an image in which each pixel is repeated along the row. No
    view expresses it, and lanes that read along the row gather.
    """
    if node.op is not MovementOps.RESHAPE:
        return False
    memory = source = node.srcs[0]
    while is_movement(memory):
        memory = memory.srcs[0]
    view = view_of(source, memory)
    if view is None or reshape(view, node.shape) is not None:
        return False
    return any(
        view.strides[axis] == 1
        for axes in _joined_axes(view.shape, node.shape)
        for axis in axes[:-1]
    )


def _joined_axes(shape: tuple[sint, ...], joined: tuple[sint, ...]) -> Iterator[list[int]]:
    """The axes of `shape`, but those of size 1, by the axes of another shape that they become.

    None of those that become parts of several, or of which a size is symbolic.
    """
    sizes = [size for size in shape if isinstance(size, int)]
    wanted = [size for size in joined if isinstance(size, int) and size > 1]
    if len(sizes) < len(shape) or 0 in sizes:
        return
    axes: list[int] = []
    whole = 1
    for axis, size in enumerate(sizes):
        if size > 1:
            axes.append(axis)
            whole *= size
            if wanted and whole == wanted[0]:
                yield axes
                axes, whole = [], 1
                wanted.pop(0)


@final
class Views:
    """The ends of chains of movements, and the views that the chains make of these."""

    def __init__(self, roots: set[LazyBuffer], layouts: Mapping[LazyBuffer, View]) -> None:
        self._roots = roots
        self._layouts = layouts
        self._known: dict[LazyBuffer, tuple[LazyBuffer, View] | None] = {}

    def layout(self, node: LazyBuffer) -> View:
        """The view of a node's elements in the memory that holds it."""
        return self._layouts.get(node) or dense(node.shape)

    def of(self, node: LazyBuffer) -> tuple[LazyBuffer, View] | None:
        """The end of the chain of movements that begins at `node`, and the view of it.

        The end is the first node that is in memory, or is no movement; `node` itself may be it.
        None if no single view expresses the chain.
        """
        chain: list[LazyBuffer] = []
        below = node
        while below not in self._known and is_movement(below):
            chain.append(below)
            below = below.srcs[0]
            if below in self._roots:
                break
        if chain and below in self._known and below not in self._roots:
            found = self._known[below]
        else:
            found = (below, self.layout(below)) if _may_be_loaded(below, self._roots) else None
        for moved in reversed(chain):
            if found is not None:
                view = move(found[1], moved)
                found = None if view is None else (found[0], view)
            self._known[moved] = found
        if not chain and below in self._known:
            return self._known[below]
        return found


def is_movement(node: LazyBuffer) -> bool:
    """True for a plain movement that has no memory of its own."""
    return node.op in PLAIN_MOVEMENTS and node.realized is None


def _may_be_loaded(node: LazyBuffer, roots: set[LazyBuffer]) -> bool:
    """True if a view of the node may be a load, or a constant."""
    return node.realized is not None or node in roots or node.base_const() is not None
