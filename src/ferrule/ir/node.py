"""Nodes of the lazy graph, and their users. In a thread, equal nodes are one object.

`lazy.py` makes the nodes. Who needs a node later has a mark on it, a weak reference, and a node can
tell whether there are any. Handles have one, which hold a node from outside of the graph, and nodes
that are made of it. Of these only the ones that a schedule left out do, since most are dead by
then.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, Self, TypeAlias, TypeVar, final
from weakref import getweakrefcount, ref

from ferrule.base.forks import lock_across_forks
from ferrule.base.interning import Entry, forget
from ferrule.base.threadstate import ThreadState
from ferrule.ir.buffer import Buffer
from ferrule.ir.constant_folding import Scalar
from ferrule.ir.dtype import DType
from ferrule.ir.expr import Expr, sint
from ferrule.ir.lazyop import LoadOps, Op

Shape: TypeAlias = tuple[sint, ...]
N = TypeVar("N", bound="Node")


# These own memory from the start. All others are values, which get memory when the scheduler
# decides so.
_ASSIGN: Final = LoadOps.ASSIGN
_EMPTY: Final = LoadOps.EMPTY
_MEMORY: Final = frozenset({LoadOps.EMPTY, LoadOps.FROM, LoadOps.CUSTOM, LoadOps.RESULT, _ASSIGN})


GONE: Final = "contents that were written over"
"""The argument of a node that was in memory, and has lost it to a later version."""


class Node:
    """`op` on `srcs`; or, once `realized` is a Buffer, its contents."""

    __slots__ = (
        "__weakref__",
        "anchor",
        "arg",
        "device",
        "dtype",
        "maker",
        "marks",
        "op",
        "owner",
        "realized",
        "results",
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
    results: dict[int, ref[Any]]
    """The results of a run that has several, by their numbers; other nodes have no such attribute.

    They are found here and not in a table, which a capture empties: a run has to give all of them
    at once."""
    serial: int
    """Counts nodes as they are made."""
    maker: ThreadState | None
    """The thread that made it; None for a node in memory."""
    anchor: Anchor | Entry
    """The object that the marks on it refer to, and nothing else does.

    For nodes that are found again it is their entry in the table of their maker."""
    marks: list[Mark] | None
    """On its sources, if some schedule did not compute it; see `needed_outside`."""

    def base_const(self) -> Scalar | Expr | None:
        """The value of all elements, if it is known."""
        arg = self.arg  # see `set_realized`
        return arg if self.op is LoadOps.CONST and self.realized is None else None

    @property
    def owns_memory(self) -> bool:
        """True if the node has memory, or is sure to get it, rather than being only a value."""
        return self.realized is not None or self.op in _MEMORY

    def set_realized(self, buffer: Buffer, state: ThreadState) -> None:
        """Make the node the contents of `buffer`, and forget its sources.

        `state` is that of the calling thread.

        Another thread may be building on the node meanwhile. So `op` changes before `srcs` and
        `arg`: a reader that takes these two first, and then finds `op` unchanged, has all three of
        one state.
        """
        maker = self.maker
        if maker is not state and maker is not None and self.realized is None:
            maker.taken += 1
        self.realized = buffer
        entry = self.anchor
        if type(entry) is Entry and entry.key is not None:  # nobody finds it from now on
            forget(entry)
        self.op = _EMPTY
        self.srcs = ()
        self.arg = None
        self.marks = None

    def give_up(self) -> None:
        """From now on what it contained is gone: the memory was written over.

        Nobody with a mark needs it. Who refers to the node all the same gets an error later.
        """
        self.arg = GONE  # first, or another thread might take it for memory without contents
        self.realized = None


# *** who needs a node ***


@final
class Anchor:
    """The object that marks on a node refer to, if the node was never in a table."""

    __slots__ = ("__weakref__",)


Mark: TypeAlias = "ref[Anchor | Entry]"
"""A weak reference to a node's anchor, kept by who needs the node. The node keeps the anchor.

So a node has marks if `getweakrefcount` of its anchor is not 0. They have no callbacks: no code
runs when who needs a node dies. They are not looked for by `getweakrefs`: up to Python 3.12 that
also gives those that another thread is about to free, and they would be freed twice.
"""
_MOST_DEAD: Final = 1 << 10
"""Nodes; where nothing is computed, the dead among new ones are dropped after so many. What is
noted of them fits the first cache then."""


class _Recent(list[ref[Any]]):
    """The live nodes with sources, of all threads, that have not marked these; and dead ones."""

    __slots__ = ("limit",)

    limit: int
    """How many there may be until the dead are dropped."""


recent_nodes: Final = _Recent()
recent_nodes.limit = _MOST_DEAD
_turn: Final = lock_across_forks()
_looking = False
"""True if the holder of the lock looks at `recent_nodes`: a destructor may interrupt even that."""


def sweep() -> None:
    """Forgets new nodes that are dead: a program may make them without end, and compute none."""
    if not _turn.acquire(blocking=False):
        return  # another thread is at it, and may wait for this one
    try:
        if not _looking:
            recent = recent_nodes[:]
            live = [reference for reference in recent if reference() is not None]
            recent_nodes[: len(recent)] = live  # others may have been noted meanwhile
            recent_nodes.limit = 2 * len(live) + _MOST_DEAD  # each is looked at a few times only
    finally:
        _turn.release()


def needed_outside(numbers: dict[N, int]) -> list[int]:
    """The numbers of the nodes that a handle, or a node that is none of these, needs later.

    Users have larger numbers than their sources. Of what is in memory only the versions count that
    are written over: others stay there.
    """
    global _looking
    with _turn:
        if _looking:  # a destructor, amid all this: any of them may be needed
            return list(reversed(numbers.values()))
        _looking = True
        try:
            _mark_sources(numbers)
            return _marked(numbers)
        finally:
            _looking = False


def _marked(numbers: dict[N, int]) -> list[int]:
    outside: list[int] = []
    written = False
    for node in reversed(numbers):
        if node.marks is not None:  # it is computed now
            node.marks = None
            recent_nodes.append(ref(node))
        if node.srcs:
            written = written or node.op is _ASSIGN
        elif not written or node.op is LoadOps.CONST:
            continue
        if getweakrefcount(node.anchor):
            outside.append(numbers[node])
    return outside


def _mark_sources(present: Container[Node]) -> None:
    """New nodes mark their sources, but for those `present`, which mostly die with a schedule."""
    recent = recent_nodes[:]
    waiting = []
    for reference in recent:
        node = reference()
        if node is None or not node.srcs:
            continue
        if node in present:
            waiting.append(reference)
        else:
            node.marks = [ref(source.anchor) for source in node.srcs]
    recent_nodes[: len(recent)] = waiting
