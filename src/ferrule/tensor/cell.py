"""Memory that a tensor shares with its views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final, TypeAlias, final
from weakref import ref

from ferrule.autograd import GradEdge, GradientError, GradNode, Rule, TracedValue, is_recording
from ferrule.base.changes import changes
from ferrule.base.threadstate import this_thread
from ferrule.engine.realize import settle_or_withdraw
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import MovementOps
from ferrule.ir.shape.view import View
from ferrule.ir.storage import Storage, turn
from ferrule.tensor.algebra.matrices import diagonal_part

DIAGONAL: Final = "diagonal"
SELECT: Final = "select"
Move: TypeAlias = tuple[MovementOps | str, Any]

MOVES: dict[MovementOps | str, Callable[[Any, Any], Any]] = {
    MovementOps.RESHAPE: lambda value, arg: value.reshape(arg),
    MovementOps.PERMUTE: lambda value, arg: value.permute(arg),
    MovementOps.EXPAND: lambda value, arg: value.expand(arg),
    MovementOps.SHRINK: lambda value, arg: value.shrink(arg),
    MovementOps.STRIDE: lambda value, arg: value.stride(arg),
    # Of square matrices, in the last two axes: several primitive movements, but one of strides.
    DIAGONAL: lambda value, _: diagonal_of(value),
    # A part, without the axes of which it has one place: two movements, but one view to make.
    SELECT: lambda value, arg: value.shrink(arg[0]).reshape(arg[1]),
}


@lru_cache(maxsize=4096)
def moved_view(op: MovementOps | str, view: View, arg: Any) -> View | None:
    """`MOVES` of a view; programs write to the same parts of the same shapes again and again."""
    moved: View | None = MOVES[op](view, arg)
    return moved


def diagonal_of(value: View | TracedValue) -> View | TracedValue:
    """The diagonal of the last two axes, as one."""
    return value.diagonal() if isinstance(value, View) else diagonal_part(value)


@final
class Cache:
    """The last value that a view read; `view` is the view, weakly."""

    __slots__ = ("__weakref__", "read", "view")

    read: tuple[TracedValue, TracedValue] | None
    """The view's value, and its parent's value: one tuple, since threads share it."""

    def __init__(self, view: object, value: TracedValue, source: TracedValue) -> None:
        self.view = ref(view)
        self.read = value, source

    def value_of(self, source: TracedValue) -> TracedValue | None:
        """The view's value, if its parent still has that value and the tape has it if need be."""
        found = self.read
        if found is None:
            return None
        value, known = found
        if known.node is not source.node or known.edge is not source.edge:
            return None
        is_fit = source.edge is None or value.edge is not None or not is_recording()
        return value if is_fit else None


@final
class StorageRef:
    """The memory of a tensor and all its views: its current version, and that version's edge."""

    __slots__ = ("__weakref__", "caches", "edges", "epoch", "storage", "taken", "value")

    value: TracedValue
    """The present version, to be looked at only: `take` gives it to who keeps it or its node."""
    taken: bool
    """False if nobody has had the node since `jit/readers.py` made it: the version has no readers
    then."""
    epoch: int
    """How often `watch_writes` was entered before the cell was made."""

    def __init__(self, value: TracedValue) -> None:
        self.value = value
        self.taken = True
        self.epoch = _epoch
        if _noting:
            for noted in _noting:
                noted.append(ref(self))
        self.storage: Storage | None = None
        self.caches: set[ref[Cache]] | None = None
        """The caches of its live views."""
        self.edges: list[tuple[int, ref[GradEdge] | None]] | None = None
        """For versions that are not in memory, by serial number: the edges that they replaced."""

    def own(self) -> None:
        """Makes the memory of the present version that of this cell, if it is no other's yet.

        Of several cells with one version, that one writes to it in place; others take copies.
        """
        if self.storage is None:
            self.storage = Storage(self.value.node, self)

    def take(self) -> TracedValue:
        """The present version, for the graph, the tape, or whoever else keeps it."""
        value = self.value  # first: `jit/readers.py` resets `taken`, and then puts another there
        self.taken = True
        return value

    def hold(self, value: TracedValue) -> None:
        """Makes a version the present one; others may have it."""
        self.value = value
        self.taken = True

    def keep(self, cache: Cache) -> None:
        """Note the value that a view has read."""
        if self.caches is None:
            self.caches = set()
        self.caches.add(ref(cache, self.caches.discard))

    def forget_views(self) -> None:
        """Lets all views read anew: the memory is about to change."""
        if self.caches:
            for reference in list(self.caches):  # views may die meanwhile
                cache = reference()
                if cache is not None:
                    cache.read = None

    def write(self, value: TracedValue, part: Part | None, recorded: bool) -> None:
        """Makes the next version: `value` in a part, or in all of the memory.

        If the write is not recorded, the edge stays: a gradient flows as if nothing was written.
        """
        with turn:  # or another thread's write to another part would be lost
            self._write(value, part, recorded)

    def _write(self, value: TracedValue, part: Part | None, recorded: bool) -> None:
        for watch in _watching.get():
            watch(self)
        old = self.take()
        # A stale copy of the old version would keep the write from being done in place.
        self.forget_views()
        if self.storage is None:
            self.storage = Storage(old.node, self)
        undoable = this_thread.state.undoable
        if undoable is not None:
            undoable.setdefault(self.storage, old.node.serial)
        self.storage.write(value.node, None if part is None else part.view)
        node = self.storage.node
        if not recorded:
            self.hold(TracedValue(node, old.edge))
        else:
            new = TracedValue(node, value.edge) if part is None else old.assign(value, part, node)
            if new.edge is not old.edge:
                self._note_edge(new, old)
            self.hold(new)

    def rewrite(self) -> None:
        """Notes that something was written to which holds it already: other calls may change it."""
        if self.storage is None:
            self.storage = Storage(self.value.node, self)
        self.storage.rewrite()

    def _note_edge(self, new: TracedValue, old: TracedValue) -> None:
        """Note the edge that a version replaces, weakly, so that it keeps no tape alive."""
        if self.edges is None or old.node.realized is not None:
            self.edges = []
        self.edges.append((new.node.serial, None if old.edge is None else ref(old.edge)))

    def go_back(self, failed: LazyBuffer, before: LazyBuffer) -> None:
        """Makes the version `before` the current one: `failed` could not be computed."""
        self.forget_views()
        edge = self.value.edge
        if self.edges and self.edges[-1][0] == failed.serial:
            _, replaced = self.edges.pop()
            edge = None if replaced is None else replaced() or _end_of_tape(before)
        self.hold(TracedValue(before, edge))

    def settle(self) -> None:
        """Give the present value memory to which later writes go; a constant has none."""
        self.forget_views()
        if self.storage is None:
            self.storage = Storage(self.value.node, self)
        self.storage.settle()
        self.hold(TracedValue(self.storage.node, self.value.edge))

    def restore(self, value: TracedValue) -> None:
        """Makes an earlier version the current one."""
        self.forget_views()
        self.hold(value)
        changes.count += 1
        if self.storage is not None:
            self.storage.put(value.node)


_epoch = 0
_watching: Final[ContextVar[tuple[Callable[[StorageRef], None], ...]]] = ContextVar(
    "ferrule_watching", default=()
)
"""The functions that are called before each write."""


_noting: tuple[list[ref[StorageRef]], ...] = ()
"""The lists that new cells are added to, of all threads."""


@contextmanager
def noting_cells() -> Iterator[list[ref[StorageRef]]]:
    """A block that notes, weakly, the cells that are made in it, by other threads as well."""
    global _noting
    made: list[ref[StorageRef]] = []
    _noting = (*_noting, made)
    try:
        yield made
    finally:
        _noting = tuple([noted for noted in _noting if noted is not made])


@contextmanager
def before_writes(watch: Callable[[StorageRef], None]) -> Iterator[None]:
    """A block in which a function is called before each write, which it may refuse by an error."""
    token = _watching.set((*_watching.get(), watch))
    try:
        yield
    finally:
        _watching.reset(token)


@contextmanager
def watch_writes() -> Iterator[dict[StorageRef, TracedValue]]:
    """A block that notes each write to memory from before it, and what that held until then."""
    global _epoch
    _epoch += 1
    epoch = _epoch
    before: dict[StorageRef, TracedValue] = {}

    def note(cell: StorageRef) -> None:
        if cell.epoch < epoch and cell not in before:
            before[cell] = cell.take()

    with before_writes(note):
        yield before


@contextmanager
def writes_together(earlier: Mapping[Storage, int] | None = None) -> Iterator[None]:
    """A block whose writes to tensors are all withdrawn, if it raises before they are done.

    No version is kept by that, so all of them are still written in place. `earlier` has storages
    that were written to before and belong to the block, each with the serial number that no version
    from before these writes exceeds.
    """
    state = this_thread.state
    outer = state.undoable
    written = dict(earlier or {})
    state.undoable = written
    try:
        yield
    except BaseException as error:
        for storage, serial in written.items():
            storage.withdraw_since(serial)
        if isinstance(error, Exception):  # one from before the block may be what raises
            settle_or_withdraw(written)
        raise
    finally:
        state.undoable = outer
        for storage, serial in written.items() if outer is not None else ():
            outer.setdefault(storage, serial)


def _end_of_tape(node: LazyBuffer) -> GradNode:
    return GradNode("assign", Rule(_refuse), (), node, None)


def _refuse(grad: TracedValue, entry: GradNode) -> tuple[TracedValue | None, ...]:
    raise GradientError(
        "[backward] a gradient arrives at a tensor whose write raised an error: it holds what it "
        "did before, and how that was computed is not known any more; compute it again"
    )


@final
class Part:
    """A part of a cell's memory: the movements that read it, and the view to write it by."""

    __slots__ = ("moves", "view")

    def __init__(self, moves: Sequence[Move], view: View) -> None:
        self.moves = moves
        self.view = view

    def read(self, value: TracedValue) -> TracedValue:
        """The part of a value with the shape of the whole memory."""
        for op, arg in self.moves:
            value = MOVES[op](value, arg)
        return value
