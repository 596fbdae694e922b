"""`Storage`: memory with versions, which a tensor and its views share."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, final

from ferrule.base.changes import changes
from ferrule.base.forks import lock_across_forks
from ferrule.base.threadstate import ThreadState, left_behind, this_thread
from ferrule.ir.lazy import LazyBuffer, check_assign
from ferrule.ir.lazyop import LoadOps
from ferrule.ir.shape.view import View

turn: Final = lock_across_forks()
"""The lock of computing, writing to tensors, reading contents, and replaying: threads take turns.

So the state that a replay checked stays, its reads and writes are not torn, and no write is lost.
The locks of lower modules may be taken inside of it, so it is made after them: a fork takes them in
the order from the last one to the first.
"""
_MOST_REPLACED = 4  # versions without memory, which keep their sources alive. Not measured


class Holder(Protocol):
    """An object that also holds the version of a storage, and is told when that goes back."""

    def go_back(self, failed: LazyBuffer, before: LazyBuffer) -> None:
        """The version is `before` again: `failed` was withdrawn."""


@final
class Token:
    """Marks the versions of one storage."""

    __slots__ = ("storage",)

    def __init__(self, storage: Storage) -> None:
        self.storage = weakref.ref(storage)


@final
class Storage:
    """The memory behind a tensor and its views: `node` is the version that holds now.

    `holder` is another object that has that version, if there is one.
    """

    __slots__ = (
        *("__weakref__", "_mark", "earlier", "holder", "node", "replaced", "taken", "token"),
        "writes",
    )

    node: LazyBuffer
    """The version that holds now; `put` makes another one that. It is to be looked at only: `take`
    gives it to who keeps it."""
    taken: bool
    """False if nobody has had the node since `jit/readers.py` made it, unless there is a holder,
    which notes that itself."""
    token: Token
    replaced: int
    """The number of times that the version was replaced before there was memory for it."""
    earlier: list[LazyBuffer | weakref.ref[LazyBuffer]]
    """The replaced versions, the newest last. All but constants are weak, to be no readers."""
    writes: int
    """The number of writes, those that changed nothing included."""

    def __init__(self, node: LazyBuffer, holder: Holder | None = None) -> None:
        self.put(node)
        self.holder = None if holder is None else weakref.ref(holder)
        self.token = Token(self)
        self.replaced = 0
        self.earlier = []
        self.writes = 0
        if node.owner is None:
            node.owner = self.token

    def put(self, version: LazyBuffer) -> None:
        """Makes a version the one that holds now; others may have it."""
        self.renew(version)
        self.taken = True
        changes.count += 1

    def renew(self, version: LazyBuffer) -> None:
        """Keeps, as a handle does, another node in the same memory as the present one."""
        self.node = version
        self._mark = weakref.ref(version.anchor)

    def take(self) -> LazyBuffer:
        """The present version, for the graph or whoever else keeps it."""
        node = self.node  # first, as in `StorageRef.take`
        self.taken = True
        return node

    def write(self, value: LazyBuffer, region: View | None = None) -> None:
        """Replaces the part at `region`, or all, by `value`; earlier reads keep their meaning.

        Raises `ShapeError`, `DeviceMismatchError` as `LazyBuffer.assign` does.
        """
        old = self.node
        check_assign(old, value, region)
        self.writes += 1
        if 0 in value.shape:
            return
        if value is old and region is None:
            self._keep(old)
            return
        if region is not None and region == View.create(region.shape) and region.size == old.size:
            value = value.reshape(old.shape)
            region = None
        maker = old.maker
        if maker is not None and maker is not this_thread.state and old.realized is None:
            maker.taken += 1  # its maker's capture may miss the computation
        started = old.realized is not None or old.op is LoadOps.ASSIGN
        started = started or self.replaced == _MOST_REPLACED
        if region is None and not started and not value.owns_memory:
            self.put(value)  # there is no memory yet to write to
            self.replaced += 1
            self.earlier.append(old if old.op is LoadOps.CONST else weakref.ref(old))
            _without_memory.add(weakref.ref(self, _without_memory.discard))
        else:
            if self.earlier and old.realized is not None:
                self.earlier.clear()
            memory = old if old.owns_memory else _in_new_memory(old)
            self.put(memory.assign(value, region))
        if self.node.owner is None:
            self.node.owner = self.token
        if self.node.op is LoadOps.ASSIGN:
            written = this_thread.state.written
            written.add(weakref.ref(self, written.discard))
            self._keep(old)

    def rewrite(self) -> None:
        """Count a write that leaves the contents as they are."""
        self.writes += 1
        self._keep(self.node)

    def _keep(self, old: LazyBuffer) -> None:
        """Keep this storage alive in a block of `keep_written`, if `old` is from before it."""
        state = this_thread.state
        kept = state.kept
        if kept is not None and (old.serial <= kept[0] or _is_from_before(old, state)):
            kept[1].append(self)

    def withdraw(self) -> bool:
        """Withdraw the present version, if it is not in memory and there is one before it.

        The earlier version is in force again. Returns True if there was one.
        """
        before = self._before()
        if before is None:
            return False
        failed = self.node
        self.put(before)
        holder = None if self.holder is None else self.holder()
        if holder is not None:
            holder.go_back(failed, before)
        return True

    def withdraw_since(self, serial: int) -> None:
        """Withdraw versions above this serial number that are not in memory."""
        while self.node.serial > serial and self.withdraw():
            pass

    def _before(self) -> LazyBuffer | None:
        node = self.node
        if node.realized is not None:
            return None
        if node.op is LoadOps.ASSIGN:
            old = node.srcs[0]
            is_new = old.op is LoadOps.EMPTY and old.realized is None and old.owner is None
            if not is_new:  # or else this is the first version in memory, of the same contents
                return old
        if not self.earlier:
            return None
        earlier = self.earlier[-1]
        found = earlier() if isinstance(earlier, weakref.ref) else earlier
        if found is not None:  # or else nobody knows it any more; those before it are no answer
            self.earlier.pop()
        return found

    def settle(self) -> None:
        """Give the present version memory of its own, to which later versions are written."""
        self.put(_in_new_memory(self.node))
        self.node.owner = self.token


def _is_from_before(version: LazyBuffer, state: ThreadState) -> bool:
    """True, in a capture, if another thread made a version meanwhile, in memory from before."""
    memory, since = version.realized, state.watched_since
    return memory is not None and since is not None and memory.base.serial <= since


_without_memory: Final[set[weakref.ref[Storage]]] = set()
"""The storages with versions that are values only, of all threads; some may have memory by now."""

_left: Final[set[weakref.ref[Storage]]] = set()
"""The storages with a write that raised; the call that reads it gets the error."""


def _in_new_memory(value: LazyBuffer) -> LazyBuffer:
    """`value` in memory that no other node can come to share."""
    if value.op is LoadOps.CONTIGUOUS:
        value = value.srcs[0]
    memory = LazyBuffer.empty(value.shape, value.dtype, value.device)
    return memory.assign(value)


@contextmanager
def keep_written(last: int) -> Iterator[list[Storage]]:
    """A block that keeps written storages alive, so that their writes are done.

    It keeps those whose earlier version is no newer than the node of serial number `last`.
    """
    storages: list[Storage] = []
    state = this_thread.state
    before = state.kept
    state.kept = (last, storages)
    try:
        yield storages
    finally:
        state.kept = before


def pending_writes() -> list[Storage]:
    """The live storages with a write of this thread that has not run, the oldest write first.

    Other threads do their own writes, unless a thread reads what they write to. The writes of a
    thread that has ended go to the first one that calls this outside of a capture.
    """
    state = this_thread.state
    if left_behind and state.observer is None:
        _adopt(state)
    written = state.written
    if not written:  # a fast path for calls of captured functions
        return []
    pending: list[Storage] = []
    for reference in list(written):  # storages may die meanwhile
        storage = reference()
        node = None if storage is None else storage.node
        if storage is not None and node is not None and _is_pending(node, state):
            pending.append(storage)
        else:
            written.discard(reference)
    return sorted(pending, key=_last_write)


def _last_write(storage: Storage) -> int:
    """A key to sort by, so that no plan depends on how a set is ordered."""
    return storage.node.serial


def _is_pending(node: LazyBuffer, state: ThreadState) -> bool:
    return node.op is LoadOps.ASSIGN and node.maker is state


def _adopt(state: ThreadState) -> None:
    """Take over the writes of threads that have ended."""
    while left_behind:
        try:
            ended = left_behind.popleft()
        except IndexError:
            return  # another thread was faster
        for reference in list(ended.written):
            storage = reference()
            if storage is not None and _is_pending(storage.node, ended):
                storage.node.maker = state
                state.written.add(weakref.ref(storage, state.written.discard))


def leave_pending(storage: Storage) -> None:
    """Remove a write that raises from `pending_writes`; the call that reads it gets the error."""
    this_thread.state.written.discard(weakref.ref(storage))
    _left.add(weakref.ref(storage, _left.discard))


@contextmanager
def none_pending() -> Iterator[None]:
    """A block in which `pending_writes` has no write from before it."""
    state = this_thread.state
    before, state.written = state.written, set()
    try:
        yield
    finally:
        state.written = before | state.written


def unfinished(owners: Iterable[object]) -> list[Storage]:
    """The live storages whose version is not in memory, as far as they may concern this thread.

    They are the ones that it wrote to, those whose tokens are among `owners`, and those with
    versions that have no memory, or raised.
    """
    found = [owner.storage() for owner in owners if isinstance(owner, Token)]
    for known in (this_thread.state.written, _without_memory, _left):
        found += [reference() for reference in list(known)]
    storages = dict.fromkeys([storage for storage in found if storage is not None])
    return [storage for storage in storages if storage.node.realized is None]
