"""One captured call, ready to run again.

A replay is right as long as the memory that the captured kernels use is still what it was: `Watch`
checks that before each one.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, final

from ferrule.buffer import Buffer
from ferrule.expr import Variable
from ferrule.gradient import Value, is_recording
from ferrule.jit.batch import Batch
from ferrule.jit.inputs import Arguments
from ferrule.jit.reach import Owner, Path, Place, Reach, present_version
from ferrule.jit.results import Fresh, Leaf, build_result
from ferrule.jit.weights import PackedWeights
from ferrule.lazy import LazyBuffer
from ferrule.realize import realize
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell

# *** what must not have changed ***


@dataclass
class _Watched:
    """Memory in which the replay reads or writes."""

    owner: weakref.ref[Owner]
    node_serial: int
    buffer: Buffer
    readers: int | None
    """Where the replay writes: what `_readers` was after the capture."""


def _readers(owner: Owner) -> int:
    """A count that grows with each reference to what some memory holds, but for the owner's own."""
    node = present_version(owner)
    storage = None
    if isinstance(owner, Cell):
        owner.forget_views()  # they are no readers, and must read anew after the replay
        storage = owner.storage
    own = 1 if storage is not None and storage.node is node else 0
    return sys.getrefcount(node) - own


@final
class Watch:
    """Everything outside the arguments that a replay depends on."""

    def __init__(self) -> None:
        self._memory: list[_Watched] = []
        self._items: dict[tuple[int, Any], tuple[dict[Any, Any], Any, Any]] = {}
        """What has to be in which dict under which key; instances keep attributes in dicts."""
        self._others: dict[tuple[int, Any], tuple[Place, Any]] = {}
        self._without_gradient: list[weakref.ref[Tensor]] = []
        self._constants: list[tuple[weakref.ref[Cell], int]] = []

    def add(self, owner: Owner, buffer: Buffer, written: bool) -> None:
        """Watches memory that is now in `buffer`."""
        serial = present_version(owner).serial
        readers = _readers(owner) if written else None
        self._memory.append(_Watched(weakref.ref(owner), serial, buffer, readers))

    def add_path(self, path: Path) -> None:
        """Watches that all places of a path hold what they do."""
        for place, child in path:
            key = (id(place.holder), place.key)
            if isinstance(place.holder, dict):
                self._items[key] = (place.holder, place.key, child)
            else:
                self._others[key] = (place, child)

    def add_tensor(self, tensor: Tensor, reach: Reach) -> bool:
        """Watches that a tensor is where it was; False if it is not now."""
        for place, path in reach.places(tensor):
            steps = path if place.fixed else (*path, (place, tensor))
            if not all(step.get() is child for step, child in steps):
                return False
            self.add_path(steps)
        return True

    def add_constant(self, cell: Cell) -> None:
        """Watches that a tensor that is no more than a number stays that number."""
        self._constants.append((weakref.ref(cell), cell.value.node.serial))

    def add_no_gradient(self, tensor: Tensor) -> None:
        """Watches that a tensor has no gradient, to which a backward pass would add."""
        self._without_gradient.append(weakref.ref(tensor))

    def is_empty(self) -> bool:
        """Whether there is nothing to watch."""
        parts = (self._memory, self._items, self._others, self._without_gradient, self._constants)
        return not any(parts)

    def problem(self) -> str | None:
        """What makes the next replay wrong; None if nothing does."""
        for holder, key, child in self._items.values():
            if holder.get(key) is not child:
                return f"{key!r} is another object now"
        for place, child in self._others.values():
            if place.get() is not child:
                return "something that the function uses is another object now"
        for parameter in self._without_gradient:
            tensor = parameter()
            if tensor is not None and tensor._grad is not None:
                return "there is a gradient where there was none"
        for reference, serial in self._constants:
            cell = reference()
            if cell is None or cell.value.node.serial != serial:
                return "a constant that the function may use has changed"
        for watched in self._memory:
            problem = _problem(watched)
            if problem is not None:
                return problem
        return None


def _problem(watched: _Watched) -> str | None:
    owner = watched.owner()
    if owner is None:
        return "a tensor that the function uses is gone"
    moved = present_version(owner).serial != watched.node_serial
    if moved and not _is_back(watched, owner):
        return "a tensor that the function uses is in other memory now"
    if watched.readers is not None:
        if watched.buffer.exports:
            return "an array shares the memory of a tensor that the function writes"
        if _readers(owner) > watched.readers:
            return "a lazy tensor is still to read what the function writes"
    return None


def _is_back(watched: _Watched, owner: Owner) -> bool:
    """Whether what was written to since is in the same memory as before."""
    node = present_version(owner)
    realize([node])
    watched.node_serial = node.serial
    return node.realized is watched.buffer


# *** the replay ***


@final
@dataclass(frozen=True)
class Effect:
    """A tensor that the call put somewhere: in a place, or in an argument's gradient."""

    where: Place | int
    leaf: Leaf | None

    def let_go(self, given: Sequence[Tensor]) -> None:
        """Drops a gradient that the replay replaces, so that its memory can be used again.

        Nothing that the replay does reads it: what is read may not be replaced.
        """
        if isinstance(self.where, int):
            given[self.where].grad = None
        elif isinstance(self.where.holder, Tensor):
            self.where.set(None)

    def apply(self, tensors: Sequence[Tensor]) -> None:
        """Puts the replay's own tensor there."""
        tensor = build_result(self.leaf, tensors)
        if isinstance(self.where, int):
            tensors[self.where].grad = tensor
        else:
            self.where.set(tensor)


@final
class Replay:
    """What ran in one call, to be run with other arguments of the same signature."""

    def __init__(
        self,
        batch: Batch,
        packed: PackedWeights | None,
        fresh: Sequence[Fresh],
        made: Sequence[int],
        template: Any,
        effects: Sequence[Effect],
        watch: Watch,
        var_vals: dict[Variable, int],
    ) -> None:
        self.jit_cache = batch.items
        self.input_replace = batch.input_replace
        self.var_vals = var_vals
        self.objects: list[object] = []
        self._batch = batch
        self._packed = packed
        self._fresh = fresh
        self._made = made
        self._template = template
        self._effects = effects
        self._watch = watch
        self._used: frozenset[int] = frozenset()
        self._updated: frozenset[int] = frozenset()
        self._unshared: list[int] = []
        self._written: list[tuple[int, int]] = []
        self._is_guarded = True
        self._changed: list[Buffer] = []
        """The memory from outside that each replay writes to, other than arguments."""

    def guard_arguments(
        self, arguments: Arguments, used: Iterable[int], updated: Mapping[int, Buffer]
    ) -> None:
        """Notes which memory from outside is `used`, and which of all memory is `updated`."""
        tensors = arguments.tensors
        serials = [buffer.base.serial for buffer in arguments.buffers]
        self._used = frozenset(used)
        self._updated = self._used & updated.keys()
        self._changed = [buffer for serial, buffer in updated.items() if serial not in serials]
        self._written = [
            (number, _readers(tensors[number]._cell))
            for number, serial in enumerate(serials)
            if serial in updated
        ]
        self._unshared = [
            number
            for number, serial in enumerate(serials)
            if serial in updated or tensors[number].requires_grad
        ]
        self._is_guarded = bool(self._written) or not self._watch.is_empty()

    def overlaps(self, buffers: Sequence[Buffer]) -> bool:
        """Whether an argument is in memory from outside, and a write or a gradient makes it matter.

        In the captured call it was in memory of its own.
        """
        if not self._used:
            return False
        return any([buffers[number].base.serial in self._used for number in self._unshared]) or any(
            [buffer.base.serial in self._updated for buffer in buffers]
        )

    def problem(self, tensors: Sequence[Tensor], buffers: Sequence[Buffer]) -> str | None:
        """Why the next replay with these arguments would be wrong; None if it would not."""
        if not self._is_guarded:
            return None
        for number, readers in self._written:
            if buffers[number].exports or _readers(tensors[number]._cell) > readers:
                return "something else reads the memory of an argument that the function writes"
        return self._watch.problem()

    def run(
        self, tensors: Sequence[Tensor], buffers: Sequence[Buffer], var_vals: dict[Variable, int]
    ) -> Any:
        """Runs everything again, with the tensors among the arguments, and the memory that they
        are in; the results are in new memory."""
        values = {**self.var_vals, **var_vals} if var_vals else self.var_vals
        for effect in self._effects:
            effect.let_go(tensors)
        nodes: list[LazyBuffer] = []
        memory: list[Any] = list(buffers)
        for value in self._fresh:
            node = value.make(values)
            nodes.append(node)
            memory.append(node.realized)
        packed = self._packed
        batch = self._batch if packed is None or not packed.are_ready() else packed.batch
        try:
            batch.run(memory, values)
        finally:
            self._note_writes(buffers)
        everything = list(tensors)
        for number in self._made:
            everything.append(Tensor._wrap(Value(nodes[number])))
        for effect in self._effects:
            effect.apply(everything)
        return build_result(self._template, everything)

    def _note_writes(self, buffers: Sequence[Buffer]) -> None:
        for buffer in self._changed:
            buffer.note_write()
        for number, _ in self._written:
            buffers[number].note_write()


@final
class Recent:
    """The replay used last, and what it was given: nothing but plain tensors in memory.

    A call that is given the same again, or others of the same kind, needs no signature. Nodes are
    numbered and stay in the memory that they are in; no tensor and no memory is kept alive.
    """

    __slots__ = ("_apart", "_kinds", "_reachable", "_recording", "_serials", "_training", "replay")

    def __init__(
        self, replay: Replay, buffers: Sequence[Buffer], reachable: Set[int | None]
    ) -> None:
        self.replay = replay
        self._training = Tensor.training
        self._recording = is_recording()
        self._reachable = reachable
        self._serials: list[int] = []
        self._kinds: list[tuple[Any, ...]] = []
        self._apart = self._are_apart(buffers)

    @staticmethod
    def of(
        replay: Replay, args: Sequence[Any], buffers: Sequence[Buffer], reachable: Set[int | None]
    ) -> Recent | None:
        """A call with these arguments; None if they are not of the simple kind."""
        nodes = [_plain(arg) for arg in args]
        known = [node for node in nodes if node is not None]
        if len(known) < len(nodes):
            return None
        recent = Recent(replay, buffers, reachable)
        recent._serials = [node.serial for node in known]
        recent._kinds = [_kind(node) for node in known]
        return recent

    def buffers(self, args: Sequence[Any]) -> list[Buffer] | None:
        """The memory that the arguments are in; None if they have to be read anew."""
        serials = self._serials
        if len(args) != len(serials) or Tensor.training is not self._training:
            return None
        if is_recording() is not self._recording:
            return None
        buffers: list[Any] = []
        same = True
        for arg in args:
            node = _plain(arg)
            if node is None:
                return None
            number = len(buffers)
            if node.serial != serials[number]:
                if _kind(node) != self._kinds[number]:
                    return None
                same = False
            buffers.append(node.realized)
        return buffers if same or (self._apart and self._are_apart(buffers)) else None

    def _are_apart(self, buffers: Sequence[Buffer]) -> bool:
        """Whether no two share memory, and the function reaches none of it by itself."""
        serials = {buffer.base.serial for buffer in buffers}
        if len(serials) != len(buffers) or not serials.isdisjoint(self._reachable):
            return False
        return not self.replay.overlaps(buffers)


def _plain(value: Any) -> LazyBuffer | None:
    """A tensor's node; None if that is not in memory, or if it is a view, on the tape, or more."""
    if type(value) is not Tensor or value._parent is not None or value._detached:
        return None
    held = value._cell.value
    if held.edge is not None or value._leaf is not None or value._grad is not None:
        return None
    return held.node if held.node.realized is not None else None


def _kind(node: LazyBuffer) -> tuple[Any, ...]:
    """What the signature of a plain tensor holds."""
    assert node.realized is not None
    return node.shape, node.dtype, node.device, node.realized.nbytes
