"""`Storage`: memory with versions, which is what is behind a tensor and its views."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

from ferrule.helpers import lock_across_forks
from ferrule.lazy import LazyBuffer, check_assign
from ferrule.ops import LoadOps
from ferrule.shape.view import View

_MOST_REPLACED = 4  # versions without memory, each of which keeps alive what it is made of


@final
class Storage:
    """The memory behind a tensor and its views: `node` is the version that holds now."""

    __slots__ = ("__weakref__", "node", "replaced", "token")

    node: LazyBuffer
    token: object
    replaced: int
    """How often the version was replaced before there was memory for it."""

    def __init__(self, node: LazyBuffer) -> None:
        self.node = node
        self.token = object()
        self.replaced = 0
        if node.owner is None:
            node.owner = self.token

    def write(self, value: LazyBuffer, region: View | None = None) -> None:
        """Replaces the part at `region`, or all, by `value`; earlier reads keep their meaning.

        Raises `ShapeError`, `DeviceMismatchError` as `LazyBuffer.assign` does.
        """
        old = self.node
        check_assign(old, value, region)
        if 0 in value.shape or (value is old and region is None):
            return
        if region is not None and region == View.create(region.shape) and region.size == old.size:
            value = value.reshape(old.shape)
            region = None
        started = old.realized is not None or old.op is LoadOps.ASSIGN
        started = started or self.replaced == _MOST_REPLACED
        if region is None and not started and not value.owns_memory:
            self.node = value  # there is no memory yet that other versions could be in
            self.replaced += 1
        else:
            memory = old if old.owns_memory else _in_new_memory(old)
            self.node = memory.assign(value, region)
        if self.node.owner is None:
            self.node.owner = self.token
        if self.node.op is LoadOps.ASSIGN:
            with _written_lock:
                _written.add(weakref.ref(self, _written.discard))
            kept = _kept.get()
            if kept is not None and old.serial <= kept[0]:
                kept[1].append(self)

    def settle(self) -> None:
        """Gives the version that holds now memory of its own: later ones are written there."""
        self.node = _in_new_memory(self.node)
        self.node.owner = self.token


def _in_new_memory(value: LazyBuffer) -> LazyBuffer:
    """`value` in memory that no other node can come to share."""
    if value.op is LoadOps.CONTIGUOUS:
        value = value.srcs[0]
    memory = LazyBuffer.empty(value.shape, value.dtype, value.device)
    return memory.assign(value)


_written: set[weakref.ref[Storage]] = set()
_written_lock = lock_across_forks()
_kept: ContextVar[tuple[int, list[Storage]] | None] = ContextVar("ferrule_kept", default=None)


@contextmanager
def keep_written(last: int) -> Iterator[list[Storage]]:
    """A block that keeps the storages alive which are written to, so that the writes are done.

    Those, that is, whose version from before is no newer than the node of serial number `last`.
    """
    storages: list[Storage] = []
    token = _kept.set((last, storages))
    try:
        yield storages
    finally:
        _kept.reset(token)


def pending_writes() -> list[Storage]:
    """All live storages whose node is an ASSIGN that has not run."""
    if not _written:  # as before most calls of captured functions, which ask
        return []
    with _written_lock:
        pending: list[Storage] = []
        for reference in list(_written):  # storages may die meanwhile
            storage = reference()
            if storage is not None and storage.node.op is LoadOps.ASSIGN:
                pending.append(storage)
            else:
                _written.discard(reference)
        return pending


def leave_pending(storage: Storage) -> None:
    """A write that raises is none of `pending_writes` any more: who reads it gets the error."""
    with _written_lock:
        _written.discard(weakref.ref(storage))
