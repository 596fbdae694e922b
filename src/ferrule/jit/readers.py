"""Readers: copies and lazy tensors that need the contents of memory which a replay overwrites.

A write in the graph makes a new version, and readers keep the old one. Readers are lazy tensors
that have not been computed yet, and copies (`x.clone()`) that share the memory until one of the two
is written to. A replay writes to memory without the graph, so it has to do the same here.

Whether there are readers shows when the owner lets its node go, and has a new one in the same
memory: the old node lives on if somebody else has it. That takes 2 us. So owners note if a node was
`taken`, that is handed out, since it was made here; no other has readers.

Other threads may take a node meanwhile. They read the present version first, and then note it as
taken; here the note goes first, and then the version. So nobody has a node that is not noted, but
for those who have just read it: their reading counts as later than the write.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from ferrule.autograd import TracedValue
from ferrule.device.runner import BufferCopy
from ferrule.ir.buffer import Buffer
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.storage import Storage
from ferrule.jit.owners import Owner, present_version
from ferrule.tensor.cell import StorageRef


def leave_to_readers(owner: Owner) -> None:
    """Copies the contents of some memory, before a write to it, for its readers, if any."""
    if owner.taken:
        _renew(owner, True)


def renew(owners: Iterable[Owner], writes: bool) -> None:
    """Gives memory without readers a new node; with `writes`, all memory, after copies for readers.

    A copy made in a captured call then holds a node of the call, and not one from before it. So its
    value is computed again in each replay.
    """
    for owner in owners:
        if present_version(owner).realized is not None:
            _renew(owner, writes)


def _renew(owner: Owner, copies: bool) -> None:
    """Replaces the node of the present version by a new one in the same memory.

    Readers of the old one get a copy of the contents; without `copies` the old one is put back.
    """
    old = _replaced(owner, None)()
    if old is None:
        return
    try:
        if copies:
            old.realized = _copy_of(old)
    finally:  # there may be no room for a copy
        if old.realized is present_version(owner).realized:
            new = _replaced(owner, old)()
            if new is not None:  # another thread took it meanwhile
                new.realized = _copy_of(new)


def _replaced(owner: Owner, node: LazyBuffer | None) -> weakref.ref[LazyBuffer]:
    """Replaces the node of the present version by this one, or by a new one in the same memory.

    Returns the one that was replaced, weakly: it is gone unless others have it.
    """
    before = present_version(owner)
    if node is None:
        assert before.realized is not None, f"{before} was not computed"
        node = LazyBuffer.in_buffer(before.realized, before.shape)
        node.owner = before.owner
        owner.taken = False
    else:
        owner.taken = True
    storage: Storage | None
    if isinstance(owner, StorageRef):
        storage = owner.storage
        owner.forget_views()  # they are no readers, since they read again
        owner.value = TracedValue(node, owner.value.edge)
    else:
        storage = owner
    if storage is not None:
        storage.renew(node)
    return weakref.ref(before)


def _copy_of(node: LazyBuffer) -> Buffer:
    """New memory with the contents of a node."""
    memory = node.realized
    assert memory is not None, f"{node} was not computed"
    kept = Buffer(memory.device, memory.size, memory.dtype)
    BufferCopy(memory.device, memory.nbytes, memory.device)([kept, memory], {})
    kept.note_write()  # so that a capture in another thread sees whose contents these are
    return kept
