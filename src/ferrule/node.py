"""Nodes of the lazy graph. In a thread, equal nodes are one object.

`lazy.py` makes the nodes.
"""

from __future__ import annotations

from typing import Any, Final, Self, TypeAlias

from ferrule.buffer import Buffer
from ferrule.dtype import DType
from ferrule.expr import Expr, sint
from ferrule.fold import Scalar
from ferrule.ops import LoadOps, Op
from ferrule.threadstate import ThreadState, this_thread

Shape: TypeAlias = tuple[sint, ...]


def forget_nodes() -> None:
    """Make every expression from now on a new node, even if an equal one is alive.

    A caller can then tell the nodes made from here on from earlier ones.
    """
    this_thread.state.nodes.clear()


# These own memory from the start. All others are values, which get memory when the scheduler
# decides so.
_MEMORY: Final = frozenset({LoadOps.EMPTY, LoadOps.FROM, LoadOps.CUSTOM, LoadOps.ASSIGN})


class Node:
    """`op` on `srcs`; or, once `realized` is a Buffer, its contents."""

    __slots__ = (
        "__weakref__",
        "arg",
        "device",
        "dtype",
        "key",
        "maker",
        "op",
        "owner",
        "realized",
        "serial",
        "shape",
        "srcs",
    )

    op: Op
    srcs: tuple[Self, ...]
    arg: Any
    shape: Shape
    dtype: DType
    device: str
    realized: Buffer | None
    owner: object | None
    """The token of the `Storage` whose version this is."""
    serial: int
    """Counts nodes as they are made."""
    key: Any
    """Its key in the table of its maker; None if it is in none."""
    maker: ThreadState | None
    """The thread that made it; None for a node in memory."""

    def base_const(self) -> Scalar | Expr | None:
        """The value of all elements, if it is known."""
        arg = self.arg  # see `set_realized`
        return arg if self.op is LoadOps.CONST and self.realized is None else None

    @property
    def owns_memory(self) -> bool:
        """True if the node has memory, or is sure to get it, rather than being only a value."""
        return self.realized is not None or self.op in _MEMORY

    def set_realized(self, buffer: Buffer) -> None:
        """Make the node the contents of `buffer`, and forget its sources.

        Another thread may be building on the node meanwhile. So `op` changes before `srcs` and
        `arg`: a reader that takes these two first, and then finds `op` unchanged, has all three of
        one state.
        """
        maker = self.maker
        if maker is not None and maker is not this_thread.state and self.realized is None:
            maker.taken += 1
        self.realized = buffer
        self.leave()
        self.op = LoadOps.EMPTY
        self.srcs = ()
        self.arg = None

    def leave(self) -> None:
        """Remove the node from its table, so that look-ups of equal nodes do not find it."""
        if self.key is not None:
            assert self.maker is not None, "what has a key was made by someone"
            nodes = self.maker.nodes
            entry = nodes.get(self.key)
            if entry is not None and entry() is self:
                nodes.remove(entry)
            self.key = None
