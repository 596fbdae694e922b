"""Tensors that a captured function finds by itself, and that are inputs, as its arguments are.

Gradients: `backward()` adds to one that is there, and makes one where there is none. So whether
there is one belongs to the signature; and which tensor it is does not, as a training loop makes new
ones. States: tensors in an attribute, an item or a variable which the function reads and then
replaces, as in `self.h = self.cell(x, self.h)`. A replay reads what is there, and puts its own
there, which the next one reads.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import field
from functools import cached_property
from typing import Any, TypeAlias, final

from ferrule.buffer import Buffer
from ferrule.expr import sint
from ferrule.gradient import Value
from ferrule.jit.inputs import Arguments, follow, is_copy, memories_of, memory_of, memory_serial
from ferrule.jit.places import Path, Place, replaceable, tensors_of
from ferrule.jit.reach import Reach
from ferrule.lazy import LazyBuffer
from ferrule.records import dataclass
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell

Parameter: TypeAlias = weakref.ref[Tensor]
Spot: TypeAlias = Parameter | Place
"""Where an input is found: the gradient of a parameter, or what is in a place: a tensor, or a tuple
of tensors."""

_OTHER = "a part, or in memory that others share"


def _contents(spot: Spot) -> Any:
    if isinstance(spot, Place):
        return spot.get()
    tensor = spot()
    return None if tensor is None else tensor.grad


def _key(spot: Spot) -> Any:
    """What makes two spots one."""
    return spot.identity if isinstance(spot, Place) else spot


@final
@dataclass
class FoundInputs:
    """Which inputs a function finds by itself, in calls whose arguments have one signature."""

    used: list[Spot] = field(default_factory=list)
    """Where those are that the function reads or writes to, if there are any."""
    absent: list[Parameter] = field(default_factory=list)
    """Other tensors that had no gradient when a call was captured."""

    @cached_property
    def places(self) -> tuple[Any, ...]:
        """What tells its spots from others, in their order, which that of a signature is."""
        used = [spot.identity if isinstance(spot, Place) else id(spot) for spot in self.used]
        return tuple(used), tuple(map(id, self.absent))

    def add_to(self, tensors: list[Tensor], buffers: list[Buffer]) -> tuple[Any, ...]:
        """Adds the inputs that are used to the tensors of a call and their memory.

        Gives the signature of all: for each that is used its kind, and whether others are absent.
        """
        signature: list[Any] = []
        taken = {buffer.base.serial for buffer in buffers}
        for spot in self.used:
            kind, found = _kind_of_contents(spot, taken)
            for tensor, buffer in found:
                taken.add(buffer.base.serial)
                tensors.append(tensor)
                buffers.append(buffer)
            signature.append(kind)
        signature += [_contents(reference) is None for reference in self.absent]
        return tuple(signature)


def _kind_of_contents(spot: Spot, taken: Set[int]) -> tuple[Any, list[tuple[Tensor, Buffer]]]:
    """What the signature holds of a spot, and what is there; no tensors if they are no inputs."""
    content = _contents(spot)
    if content is None:
        return None, []
    if isinstance(content, Tensor):  # there may be hundreds of gradients
        kind, buffer = _kind(content)
        if kind is _OTHER or buffer.base.serial in taken:
            return _OTHER, []
        return (None, kind), [(content, buffer)]
    tensors = tensors_of(content)
    if tensors is None:
        return None, []
    pairs = [_kind(tensor) for tensor in tensors]
    serials = [buffer.base.serial for _, buffer in pairs]
    are_apart = len({*serials}) == len(serials) and taken.isdisjoint(serials)
    if not are_apart or any(kind is _OTHER for kind, _ in pairs):
        return _OTHER, []
    found = zip(tensors, [buffer for _, buffer in pairs], strict=True)
    return (_structure(content), *[kind for kind, _ in pairs]), list(found)


def _is_at(spot: Spot, places: list[tuple[Place, Path]]) -> bool:
    """Whether a spot is the only one of these places."""
    found = [replaceable(*place) for place in places]
    if isinstance(spot, Place):
        return [place.identity for place, _ in found] == [spot.identity]
    return len(found) == 1 and found[0][0].holder is spot()


def _structure(content: Any) -> Any:
    """Which tuples there are around the tensors."""
    if not isinstance(content, tuple):
        return None
    return (type(content), *[_structure(part) for part in content])


def _kind(tensor: Tensor) -> tuple[Any, Buffer]:
    """What the signature holds of an input, and its memory.

    It may be `h.detach()`, in the memory of another tensor, and it may be on the tape.
    """
    buffer, chain = memory_of(tensor)
    value = tensor._read()
    shape = value.node.shape
    own = tensor._leaf is None and tensor._grad is None and not is_copy(tensor, value.node)
    plain = own and not chain and buffer.base is buffer
    if not plain or any([type(size) is not int for size in shape]):
        return _OTHER, buffer
    ways = tensor._parent is None, tensor._detached, value.edge is None
    return (shape, value.node.dtype, value.node.device, buffer.nbytes, *ways), buffer


@final
@dataclass
class _Present:
    """An input that was there before a call; the call may let it go."""

    shape: tuple[sint, ...]
    serial: int
    """Of its memory."""
    tensor: weakref.ref[Tensor]
    cell: weakref.ref[Cell]
    memory: Buffer | None = None
    """Its memory, where that is to be kept."""

    def in_memory(self, buffer: Buffer) -> Tensor:
        """The tensor, or one that stands for it, for its views too."""
        found = self.tensor()
        if found is None:
            found = Tensor._wrap(Value(LazyBuffer.in_buffer(buffer, self.shape)))
            cell = self.cell()
            if cell is not None:
                found._set(cell)
        return found


@final
@dataclass
class _Candidate:
    """A spot that may turn out to be used: what its signature was before the call."""

    spot: Spot
    kind: Any
    parts: list[_Present]


@final
class FoundBefore:
    """What a function can find by itself, and perhaps replace, as it was before a call is captured.

    What is `known` to be used from earlier calls is added to the arguments at once. No tensor is an
    input if the function can reach its memory in another way too: that stays what it was.
    """

    def __init__(
        self, reach: Reach, arguments: Arguments, known: FoundInputs, stored: Set[str]
    ) -> None:
        """`stored` are the names of what the code assigns to."""
        tensors = reach.tensors()
        self._memories = Counter([serial for tensor in tensors for serial in memories_of(tensor)])
        self._cells = Counter([id(tensor._cell) for tensor in tensors])
        self._taken = {buffer.base.serial for buffer in arguments.buffers}
        known = FoundInputs([s for s in known.used if self._is_alone(s, reach)], known.absent)
        signature = known.add_to(arguments.tensors, arguments.buffers)
        count = len(known.used)
        self._used: dict[Any, tuple[Spot, Any]] = {
            _key(spot): (spot, kind)
            for spot, kind in zip(known.used, signature[:count], strict=True)
        }
        self._others: dict[Parameter, Any] = dict(zip(known.absent, signature[count:], strict=True))
        self._candidates: list[_Candidate] = []
        self.paths: dict[int, list[Path]] = {}
        """For the memory of each input that there may be: the ways to what has it."""
        for tensor in tensors:
            if tensor.grad is not None:
                if 0 not in tensor.grad.shape and self._is_alone(weakref.ref(tensor), reach):
                    self._add(weakref.ref(tensor), reach.ways_to(tensor))
            elif tensor._leaf is not None:
                self._others[weakref.ref(tensor)] = True
        for place, path in reach.states():
            # Constants get memory only where they may be states.
            held = tensors_of(place.get()) or ()
            in_memory = all(memory_serial(tensor.lazydata) is not None for tensor in held)
            if (in_memory or place.key in stored) and self._is_alone(place, reach):
                self._add(place, [path])

    def _is_alone(self, spot: Spot, reach: Reach) -> bool:
        """Whether nothing else that the function can reach is, or is in the memory of, an input.

        A spot that is known from an earlier call may be out of reach, and what is there not.
        """
        return all(
            self._is_only(tensor, int(tensor in reach))
            and (tensor not in reach or _is_at(spot, reach.places(tensor)))
            for tensor in tensors_of(_contents(spot)) or ()
        )

    def _is_only(self, tensor: Tensor, count: int) -> bool:
        """Whether so many tensors in reach are in its memory."""
        serial = memory_serial(tensor.lazydata)
        is_alone = serial is None or self._memories[serial] == count
        return is_alone and self._cells[id(tensor._cell)] == count

    def _add(self, spot: Spot, paths: list[Path]) -> None:
        known = self._used.get(_key(spot))
        taken = self._taken
        kind, found = _kind_of_contents(spot, taken)
        if kind is _OTHER:
            return
        is_state = isinstance(spot, Place)
        parts = []
        for tensor, buffer in found:
            taken.add(buffer.serial)
            self.paths[buffer.serial] = paths
            references = weakref.ref(tensor), weakref.ref(tensor._cell)
            memory = buffer if is_state else None
            parts.append(_Present(tensor._read().node.shape, buffer.serial, *references, memory))
        if known is None:
            self._candidates.append(_Candidate(spot, kind, parts))

    def add_used(
        self,
        used: Mapping[int, Buffer],
        seen: Collection[int],
        replaced: Collection[Any],
        arguments: Arguments,
    ) -> list[Tensor]:
        """Adds those to the arguments that the call has used; gives them.

        `used` is the memory that it read or wrote, by serial number; `seen` are the cells, by
        `id()`, of the tensors that it returned or left somewhere; `replaced` are the places, by
        their identity, in which there is something else now.
        """
        added = []
        for candidate in self._candidates:
            spot, parts = candidate.spot, candidate.parts
            if isinstance(spot, Place) and spot.identity not in replaced:
                continue
            memories = [_used_memory(part, used, seen) for part in parts]
            if not any(memory is not None for memory in memories):
                continue
            self._used[_key(spot)] = (spot, candidate.kind)
            for part, memory in zip(parts, memories, strict=True):
                buffer = memory or part.memory
                assert buffer is not None, "what keeps no memory is the only part"
                added.append(part.in_memory(buffer))
                arguments.tensors.append(added[-1])
                arguments.buffers.append(buffer)
        return added

    def spots(self) -> Set[Any]:
        """What tells the spots of all that are used from other places."""
        return self._used.keys()

    def mattering(self) -> tuple[FoundInputs, tuple[Any, ...]]:
        """All that matter from now on, and what `add_to` would have given before the call."""
        others = {one: kind for one, kind in self._others.items() if one not in self._used}
        signature = (*[kind for _, kind in self._used.values()], *others.values())
        return FoundInputs([spot for spot, _ in self._used.values()], list(others)), signature


def _used_memory(
    part: _Present, used: Mapping[int, Buffer], seen: Collection[int]
) -> Buffer | None:
    buffer = used.get(part.serial)
    cell = part.cell()
    if buffer is None and cell is not None and id(cell) in seen:
        found = follow(cell.value.node)
        return None if found is None else found[0]
    return buffer
