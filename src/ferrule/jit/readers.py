"""Whoever holds what some memory contained before a replay writes to it: copies, lazy tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from sys import getrefcount
from typing import TypeAlias

from ferrule.buffer import Buffer
from ferrule.dtype import dtypes
from ferrule.gradient import Value
from ferrule.jit.reach import Owner, present_version
from ferrule.lazy import LazyBuffer
from ferrule.runner import BufferCopy
from ferrule.storage import Storage
from ferrule.tensor.cell import Cell


def leave_to_readers(owner: Owner) -> None:
    """What somebody else holds of some memory is copied elsewhere: the memory may be written to.

    To write in the graph is to make a new version, and the old one is whoever's who holds it: a
    lazy tensor that is still to read it, or a copy (`x.clone()`) that shares the memory until one
    of the two is written to. A replay writes without the graph's knowledge.
    """
    if not readers(owner):
        return
    old = present_version(owner)
    memory = old.realized
    assert memory is not None, f"{old} was not computed"
    kept = Buffer(memory.device, memory.size, memory.dtype)
    BufferCopy(memory.device, memory.nbytes, memory.device)([kept, memory], {})
    _renew(owner)
    kept.note_write()  # a capture in another thread knows by that whose contents these are
    old.realized = kept


def renew(owners: Iterable[Owner], writes: bool) -> None:
    """Memory that nobody else reads gets a new node; with `writes`, all of it, by copies.

    So whoever makes a copy in a call that is captured holds a node of the call: its value is to be
    computed in each replay, where it is not that of before the call.
    """
    for owner in owners:
        if present_version(owner).realized is None:
            continue
        if writes:
            leave_to_readers(owner)
        if not readers(owner):
            _renew(owner)


def _renew(owner: Owner) -> None:
    """The present version becomes another node in the same memory."""
    old = present_version(owner)
    assert old.realized is not None, f"{old} was not computed"
    new = LazyBuffer.in_buffer(old.realized, old.shape)
    new.owner = old.owner
    storage = owner.storage if isinstance(owner, Cell) else owner
    if storage is not None:
        storage.put(new)
    if isinstance(owner, Cell):
        owner.value = Value(new, owner.value.edge)


def readers(owner: Owner) -> int:
    """How many references to what some memory contains now there are, but for the owner's own."""
    if isinstance(owner, Storage):
        return getrefcount(owner.node) - _alone_in_storage
    if owner.caches:
        owner.forget_views()  # they are no readers, and must read anew after a replay
    value = owner.value
    of_storage = owner.storage is not None
    return getrefcount(value) + getrefcount(value.node) - of_storage - _alone_in_cell


# What is counted in memory that nobody else knows of.
_alone_in_storage = _alone_in_cell = 0
_alone_in_storage = readers(Storage(LazyBuffer.empty((), dtypes.uint8, "")))
_alone_in_cell = readers(Cell(Value(LazyBuffer.empty((), dtypes.uint8, ""))))


# The same for many tensors' memory at once, by calls of C.

References: TypeAlias = tuple[list[int], list[int]]


def references(cells: Sequence[Cell]) -> References:
    """How many references there are to the value of each, and to its node."""
    values = list(map(getrefcount, map(_value_of, cells)))
    return values, list(map(getrefcount, map(_node_of, cells)))


def without_readers(cells: Sequence[Cell]) -> References:
    """What `references` gives where nobody else holds what is in the memory."""
    values = [_value_alone] * len(cells)
    return values, [_node_alone + (cell.storage is not None) for cell in cells]


_value_of = attrgetter("value")
_node_of = attrgetter("value.node")
((_value_alone,), (_node_alone,)) = references(
    [Cell(Value(LazyBuffer.empty((), dtypes.uint8, "")))]
)
