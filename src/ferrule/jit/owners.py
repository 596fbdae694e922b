"""Owners of memory: the cells and storages whose present contents are in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from ferrule.ir.buffer import Buffer
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.storage import Storage
from ferrule.tensor.cell import StorageRef

Owner: TypeAlias = StorageRef | Storage


def present_version(owner: Owner) -> LazyBuffer:
    """The node with the present contents of some memory, to be looked at only."""
    return owner.value.node if type(owner) is StorageRef else owner.node


def owners_among(owners: Iterable[Owner], serials: Collection[int]) -> Mapping[int, list[Owner]]:
    """The owners, among these, of the memory with these serial numbers."""
    found: dict[int, list[Owner]] = {serial: [] for serial in serials}
    for owner in dict.fromkeys(owners):
        buffer = present_version(owner).realized
        if buffer is not None and buffer.base.serial in found:
            found[buffer.base.serial].append(owner)
    return found


def have(owners: Iterable[Owner], part: Buffer) -> bool:
    """True if this part of their memory belongs to one of these owners."""
    wholes = [present_version(owner).realized for owner in owners]
    return any([whole is not None and _contains(whole, part) for whole in wholes])


def _contains(whole: Buffer, part: Buffer) -> bool:
    end = part.byte_offset + part.nbytes
    return whole.byte_offset <= part.byte_offset and end <= whole.byte_offset + whole.nbytes
