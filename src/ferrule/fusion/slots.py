"""Slots: memory that may not be allocated yet, and which version of a value lives in which.

A version of a storage goes where the one before it is, so that a write happens in place, unless an
array that was handed out shares that memory, or the memory belongs to another storage, or another
write got there first.
"""

from __future__ import annotations

from typing import final

from ferrule.base.records import dataclass
from ferrule.device.runner import is_divisible
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps


@final
@dataclass(eq=False)
class Slot:
    """`size` elements of memory on a device; `buffer` once there is one, which it may be a part of,
    from element `start` on. So it may be of `whole`, for which there is no memory yet."""

    device: str
    dtype: DType
    size: int
    buffer: Buffer | None = None
    start: int = 0
    whole: Slot | None = None

    @property
    def memory(self) -> Slot:
        """The slot that it is a part of; itself, if of none."""
        return self if self.whole is None else self.whole

    @property
    def is_divisible(self) -> bool:
        """True if a kernel may be given a part of it in its place."""
        return self.buffer is None or is_divisible(self.buffer)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def part(self, start: int, size: int) -> Slot:
        """The `size` elements from `start` on."""
        if self.buffer is not None:
            return Slot(self.device, self.dtype, size, self.buffer, self.start + start)
        return Slot(self.device, self.dtype, size, None, self.start + start, self.memory)

    def overlaps(self, other: Slot) -> bool:
        """True if the two share memory. New slots share with the slots that they are parts of."""
        if self.memory is other.memory:
            return True
        a, b = self.buffer, other.buffer
        if a is None or b is None or a.base is not b.base:
            return False
        return a.byte_offset < b.byte_offset + b.nbytes and b.byte_offset < a.byte_offset + a.nbytes


@final
class Slots:
    """The slot of every node that has, or gets, memory."""

    def __init__(self) -> None:
        self._of_node: dict[LazyBuffer, Slot] = {}
        self._of_buffer: dict[Buffer, Slot] = {}
        self.overwrites: dict[LazyBuffer, LazyBuffer] = {}
        """For the versions written in place: the version whose contents they replace."""
        self._overwritten: set[LazyBuffer] = set()

    def __getitem__(self, node: LazyBuffer) -> Slot:
        slot = self._of_node.get(node)
        if slot is not None:
            return slot
        assert node.realized is not None, f"{node} has no memory"
        return self.of_buffer(node.realized)

    def of_buffer(self, buffer: Buffer) -> Slot:
        """The slot of memory that exists."""
        slot = self._of_buffer.get(buffer)
        if slot is None:
            slot = Slot(buffer.device, buffer.dtype, buffer.size, buffer)
            self._of_buffer[buffer] = slot
        return slot

    def __contains__(self, node: LazyBuffer) -> bool:
        return node in self._of_node

    def add(self, node: LazyBuffer) -> Slot:
        """New memory for a node."""
        slot = Slot(node.device, node.dtype, node.size)
        self._of_node[node] = slot
        return slot

    def add_part(self, node: LazyBuffer, memory: LazyBuffer, start: int, size: int) -> None:
        """A part of another node's memory for a node."""
        self._of_node[node] = self._of_node[memory].part(start, size)

    def previous(self, version: LazyBuffer) -> LazyBuffer:
        """The version whose memory `version` would overwrite.

        Versions that are never computed do not count.
        """
        old = version.srcs[0]
        while old.op is LoadOps.ASSIGN and old not in self._of_node:
            old = old.srcs[0]
        return old

    def may_overwrite(self, version: LazyBuffer, old: LazyBuffer) -> bool:
        """True if `version` may be written where `old` is, once all readers of `old` are done."""
        if old.realized is None and old not in self._of_node:
            return False
        if old in self._overwritten:
            return False
        slot = self[old]
        if slot.buffer is not None and slot.buffer.exports > 0:
            return False
        return old.owner is None or old.owner is version.owner

    def overwrite(self, version: LazyBuffer, old: LazyBuffer) -> None:
        """Puts `version` where `old` is."""
        self._of_node[version] = self[old]
        self._overwritten.add(old)
        self.overwrites[version] = old

    def move_out(self, version: LazyBuffer) -> None:
        """Gives memory of its own to a version that was to be written in place, and to those that
        are written over it.
        """
        self._overwritten.discard(self.overwrites.pop(version))
        slot = self.add(version)
        moved = {version}
        for later, old in self.overwrites.items():
            if old in moved:
                self._of_node[later] = slot
                moved.add(later)
