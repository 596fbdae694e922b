"""Readers: copies and lazy tensors that need the contents of memory which a replay overwrites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from sys import getrefcount
from typing import TypeAlias

from ferrule.autograd import TracedValue
from ferrule.base.changes import changes
from ferrule.device.runner import BufferCopy
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.storage import Storage
from ferrule.jit.owners import Owner, present_version
from ferrule.tensor.cell import StorageRef


def leave_to_readers(owner: Owner) -> None:
    """Copies the contents of some memory for its readers, if there are any, before a write to it.

    A write in the graph makes a new version, and readers keep the old one. Readers are lazy tensors
    that have not been computed yet, and copies (`x.clone()`) that share the memory until one of the
    two is written to. A replay writes to memory without the graph, so it has to do the same here.
    """
    if not readers(owner):
        return
    old = present_version(owner)
    kept = _copy_of(old)
    _renew(owner)
    old.realized = kept


def _copy_of(node: LazyBuffer) -> Buffer:
    """New memory with the contents of a node."""
    memory = node.realized
    assert memory is not None, f"{node} was not computed"
    kept = Buffer(memory.device, memory.size, memory.dtype)
    BufferCopy(memory.device, memory.nbytes, memory.device)([kept, memory], {})
    kept.note_write()  # so that a capture in another thread sees whose contents these are
    return kept


def renew(owners: Iterable[Owner], writes: bool) -> None:
    """Gives memory without readers a new node; with `writes`, all memory, after copies for readers.

    A copy made in a captured call then holds a node of the call, and not one from before it. So its
    value is computed again in each replay.
    """
    for owner in owners:
        if present_version(owner).realized is None:
            continue
        if writes:
            leave_to_readers(owner)
        if not readers(owner):
            before = StorageRef(owner.value) if isinstance(owner, StorageRef) else None
            _renew(owner)
            if before is not None and readers(before):  # another thread took it meanwhile
                before.value.node.realized = _copy_of(before.value.node)


def _renew(owner: Owner) -> None:
    """Replaces the node of the present version by a new one in the same memory."""
    old = present_version(owner)
    assert old.realized is not None, f"{old} was not computed"
    new = LazyBuffer.in_buffer(old.realized, old.shape)
    new.owner = old.owner
    storage = owner.storage if isinstance(owner, StorageRef) else owner
    if storage is not None:
        storage.put(new)
    if isinstance(owner, StorageRef):
        owner.value = TracedValue(new, owner.value.edge)
        changes.count += 1


def readers(owner: Owner) -> int:
    """The number of references to the present version of some memory, besides the owner's own."""
    if isinstance(owner, Storage):
        return getrefcount(owner.node) - _alone_in_storage
    if owner.caches:
        owner.forget_views()  # cached views are no readers, and must read again after a replay
    value = owner.value
    of_storage = owner.storage is not None
    return getrefcount(value) + getrefcount(value.node) - of_storage - _alone_in_cell


# The reference counts of memory without readers.
_alone_in_storage = _alone_in_cell = 0
_alone_in_storage = readers(Storage(LazyBuffer.empty((), dtypes.uint8, "")))
_alone_in_cell = readers(StorageRef(TracedValue(LazyBuffer.empty((), dtypes.uint8, ""))))


# The same counts for many cells at once, by calls of C.

References: TypeAlias = tuple[list[int], list[int]]


def references(cells: Sequence[StorageRef]) -> References:
    """The numbers of references to each cell's value, and to its node."""
    values = list(map(getrefcount, map(_value_of, cells)))
    return values, list(map(getrefcount, map(_node_of, cells)))


def without_readers(cells: Sequence[StorageRef]) -> References:
    """The result of `references` for these cells if none has readers."""
    values = [_value_alone] * len(cells)
    return values, [_node_alone + (cell.storage is not None) for cell in cells]


_value_of = attrgetter("value")
_node_of = attrgetter("value.node")
((_value_alone,), (_node_alone,)) = references(
    [StorageRef(TracedValue(LazyBuffer.empty((), dtypes.uint8, "")))]
)
