"""Owners of memory: the cells and storages whose present contents are in it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias, final

from ferrule.autograd import TracedValue
from ferrule.ir.buffer import Buffer
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.storage import Storage
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef

Owner: TypeAlias = StorageRef | Storage


def owners_among(
    owners: Iterable[Owner], parts: Collection[Buffer]
) -> dict[int, list[Owner]] | None:
    """The owners, among `owners`, of the memory of these parts, by its serial number.

    None if a part is outside of their buffers: then another object owns it.
    """
    found: dict[int, list[Owner]] = {part.base.serial: [] for part in parts}
    places: dict[int, list[Buffer]] = {serial: [] for serial in found}
    for owner in owners:
        buffer = present_version(owner).realized
        if buffer is not None and buffer.base.serial in found:
            found[buffer.base.serial].append(owner)
            places[buffer.base.serial].append(buffer)
    for part in parts:
        if not any(_contains(place, part) for place in places[part.base.serial]):
            return None
    return found


def _contains(whole: Buffer, part: Buffer) -> bool:
    end = part.byte_offset + part.nbytes
    return whole.byte_offset <= part.byte_offset and end <= whole.byte_offset + whole.nbytes


@final
class Holders:
    """The nodes and the owners of some memory, found among all objects of the program.

    The garbage collector finds the objects. That takes 0.04 s for a million objects of any kind, so
    it is the last resort. To ask for the referrers of each node would be slower: that compares each
    reference on the heap with each of the given objects.
    """

    def __init__(self, memories: Iterable[Buffer]) -> None:
        self.nodes: dict[int, list[LazyBuffer]] = {memory.serial: [] for memory in memories}
        """The nodes whose contents are in each memory or a part of it, by serial number."""
        nodes, cells, storages = _objects()
        for node in nodes:
            # Another thread may be constructing the node, so the attribute may be missing.
            buffer: Buffer | None = getattr(node, "realized", None)
            if buffer is not None and buffer.base.serial in self.nodes:
                self.nodes[buffer.base.serial].append(node)
        self._owners: dict[LazyBuffer, list[Owner]] = {
            node: [] for found in self.nodes.values() for node in found
        }
        self._add_owners(cells, storages)

    def _add_owners(self, cells: Iterable[StorageRef], storages: Iterable[Storage]) -> None:
        in_cells: set[int] = set()
        for cell in cells:
            value: TracedValue | None = getattr(cell, "value", None)
            if value is not None and value.node in self._owners:
                self._owners[value.node].append(cell)
                in_cells.add(id(getattr(cell, "storage", None)))
        for storage in storages:
            node: LazyBuffer | None = getattr(storage, "node", None)
            if node in self._owners and id(storage) not in in_cells:
                self._owners[node].append(storage)

    def owners(self, serial: int) -> list[Owner]:
        """The cells, and the storages without a cell, whose present version is in that memory."""
        return [owner for node in self.nodes[serial] for owner in self._owners[node]]


def memory_of_views(views: Sequence[Tensor]) -> set[int]:
    """The cells, by `id()`, that only these views and their bases use.

    The reference counts tell, because nothing records who holds a tensor.
    """
    handles: dict[int, Tensor] = {}
    known: dict[int, int] = {}
    for view in views:
        handle: Any = view
        while handle is not None and id(handle) not in handles:
            handles[id(handle)] = handle
            known[id(handle._cell)] = known.get(id(handle._cell), 0) + 1
            handle = handle._parent
            if handle is not None:
                known[id(handle)] = known.get(id(handle), 0) + 1
    handle = None
    free = object()
    own = sys.getrefcount(free) + 1  # plus one from `handles`, or from `cells`
    given = {id(view) for view in views}
    cells = list({id(handle._cell): handle._cell for handle in handles.values()}.values())
    held = {
        id(handle._cell)
        for handle in handles.values()
        if id(handle) not in given and sys.getrefcount(handle) > own + known[id(handle)]
    }
    return {
        id(cell)
        for cell in cells
        if id(cell) not in held and sys.getrefcount(cell) <= own + known[id(cell)]
    }


def present_version(owner: Owner) -> LazyBuffer:
    """The node with the present contents of some memory."""
    return owner.value.node if type(owner) is StorageRef else owner.node


@final
class _Mark:
    """An object that shows if the program called `gc.freeze` since, as it may before a fork."""


_mark: _Mark | None = None
_frozen_mark: _Mark | None = None
_frozen: list[weakref.ref[LazyBuffer | StorageRef | Storage]] = []
"""The objects frozen together with `_frozen_mark`, which `gc.get_objects` leaves out."""


_KINDS = frozenset({LazyBuffer, StorageRef, Storage, _Mark})


def _unfrozen() -> list[Any]:
    """All objects of these kinds, without the frozen ones; the kinds have no subclasses.

    An object refers to its type. `gc.get_objects` would take hold of all others too, and a thread
    that is amid `tuple(generator)` gets a SystemError if somebody else has its tuple.
    """
    return [thing for thing in gc.get_referrers(*_KINDS) if type(thing) in _KINDS]


def _objects() -> tuple[list[LazyBuffer], list[StorageRef], list[Storage]]:
    """All nodes, cells and storages, including the frozen ones."""
    global _mark, _frozen_mark, _frozen
    found = _unfrozen()
    marks = [thing for thing in found if type(thing) is _Mark]
    if _mark not in marks:  # the program has called `gc.freeze` since, or this is the first walk
        _frozen_mark, _frozen = _Mark(), []
        if gc.get_freeze_count():
            gc.unfreeze()
            found = _unfrozen()
            gc.freeze()
            _frozen = [weakref.ref(thing) for thing in found if type(thing) is not _Mark]
        _mark = _Mark()
    elif _frozen_mark in marks:  # nothing is frozen now
        _frozen = []
    else:
        found += [thing for reference in _frozen if (thing := reference()) is not None]
    nodes = [thing for thing in found if type(thing) is LazyBuffer]
    cells = [thing for thing in found if type(thing) is StorageRef]
    return nodes, cells, [thing for thing in found if type(thing) is Storage]
