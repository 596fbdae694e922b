"""Implicit inputs: gradients and states that a captured function finds without its arguments.

Gradients: `backward()` adds to an existing gradient, and makes one where there is none. So the
signature says if there is one, but not which tensor it is: a training loop makes new ones.

States: tensors in an attribute, an item or a variable that the function reads and then replaces, as
in `self.h = self.cell(x, self.h)`. A replay reads the present state and puts its own there, for the
next replay to read.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import field
from functools import cached_property
from typing import Any, TypeAlias, final

from ferrule.autograd import TracedValue
from ferrule.base.records import dataclass
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.jit.inputs import Arguments, follow, is_copy, memories_of, memory_of, memory_serial
from ferrule.jit.places import Path, Place, tensors_of
from ferrule.jit.state import State
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef

Parameter: TypeAlias = weakref.ref[Tensor]
Spot: TypeAlias = Parameter | Place
"""The location of an implicit input: a parameter, for its gradient, or a place with a tensor or a
tuple of tensors."""

_OTHER = "a part, or in memory that others share"


def _contents(spot: Spot) -> Any:
    if isinstance(spot, Place):
        return spot.get()
    tensor = spot()
    return None if tensor is None else tensor.grad


def _key(spot: Spot) -> Any:
    """The identity of a spot: equal keys mean the same spot."""
    return spot.identity if isinstance(spot, Place) else spot


@final
@dataclass
class FoundInputs:
    """The implicit inputs of calls whose arguments have one signature."""

    used: list[Spot] = field(default_factory=list)
    """The spots that the function reads or writes; they may be empty."""
    others: list[Parameter] = field(default_factory=list)
    """The other parameters, and tensors with a gradient: code may ask if there is one."""

    @cached_property
    def places(self) -> tuple[Any, ...]:
        """The identities of the spots, in the order of the signature."""
        used = [spot.identity if isinstance(spot, Place) else id(spot) for spot in self.used]
        return tuple(used), tuple(map(id, self.others))

    def add_to(self, tensors: list[Tensor], buffers: list[Buffer]) -> tuple[Any, ...]:
        """Appends the used inputs to the tensors of a call and to the list of their memory.

        Returns their signature: the kind of each used input, then for each of the others if its
        gradient is absent.
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
        signature += [_contents(reference) is None for reference in self.others]
        return tuple(signature)


def _kind_of_contents(spot: Spot, taken: Set[int]) -> tuple[Any, list[tuple[Tensor, Buffer]]]:
    """The kind of a spot for the signature, and its tensors with their memory.

    There are no tensors if they cannot be inputs, or if the memory is among the `taken`.
    """
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


def _is_at(spot: Spot, places: list[Place]) -> bool:
    """True if these places are all one, the spot itself."""
    if isinstance(spot, Place):
        return [place.identity for place in places] == [spot.identity]
    return len(places) == 1 and places[0].holder is spot()


def _structure(content: Any) -> Any:
    """The nesting and the classes of the tuples around the tensors."""
    if not isinstance(content, tuple):
        return None
    return (type(content), *[_structure(part) for part in content])


def _kind(tensor: Tensor) -> tuple[Any, Buffer]:
    """The kind of an input for the signature, and its memory.

    The input may be `h.detach()`, which is in the memory of another tensor, and it may be on the
    tape.
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
    """A possible input from before a call, held weakly: the call may free it."""

    shape: tuple[sint, ...]
    serial: int
    """The serial number of its memory."""
    tensor: weakref.ref[Tensor]
    cell: weakref.ref[StorageRef]
    memory: Buffer | None = None
    """Its memory, for states, whose memory must stay alive."""

    def in_memory(self, buffer: Buffer) -> Tensor:
        """The tensor, or if it is gone, a new one in `buffer` with the same cell.

        The views of the old tensor are then views of the new one.
        """
        found = self.tensor()
        if found is None:
            found = Tensor._wrap(TracedValue(LazyBuffer.in_buffer(buffer, self.shape)))
            cell = self.cell()
            if cell is not None:
                found._set(cell)
        return found


@final
@dataclass
class _Candidate:
    """A spot that the call may turn out to use, with its kind before the call."""

    spot: Spot
    kind: Any
    parts: list[_Present]


@final
class FoundBefore:
    """The possible implicit inputs of a function, as they were before a captured call.

    Inputs `known` from earlier calls are added to the arguments at once. A tensor is no input if
    the function can also reach its memory in another way, because a replay would not replace that.
    """

    def __init__(self, state: State, arguments: Arguments, known: FoundInputs) -> None:
        tensors = state.tensors()
        self._memories = Counter([serial for tensor in tensors for serial in memories_of(tensor)])
        self._cells = Counter([id(tensor._cell) for tensor in tensors])
        self._taken = {buffer.base.serial for buffer in arguments.buffers}
        known = FoundInputs([s for s in known.used if self._is_alone(s, state)], known.others)
        signature = known.add_to(arguments.tensors, arguments.buffers)
        count = len(known.used)
        self._used: dict[Any, tuple[Spot, Any]] = {
            _key(spot): (spot, kind)
            for spot, kind in zip(known.used, signature[:count], strict=True)
        }
        self._others: dict[Parameter, Any] = dict(zip(known.others, signature[count:], strict=True))
        self._candidates: list[_Candidate] = []
        self.paths: dict[int, Path] = {}
        """For each possible input, by the serial number of its memory: the places of the parameter
        whose gradient it is."""
        for tensor in tensors:
            if tensor.grad is not None:
                self._others[weakref.ref(tensor)] = False
                if 0 not in tensor.grad.shape and self._is_alone(weakref.ref(tensor), state):
                    self._add(weakref.ref(tensor), state.places_of(tensor))
            elif tensor._leaf is not None:
                self._others[weakref.ref(tensor)] = True
        for place in state.states():
            # A constant is a possible state only if the code assigns to that name: as a state it
            # gets memory.
            held = tensors_of(place.get()) or ()
            in_memory = all(memory_serial(tensor.lazydata) is not None for tensor in held)
            if (in_memory or place.key in state.assigned) and self._is_alone(place, state):
                self._add(place, ())

    def _is_alone(self, spot: Spot, state: State) -> bool:
        """True if no other tensor in reach shares memory with those in the spot.

        A spot known from an earlier call may be out of reach while its tensor is not.
        """
        return all(
            self._is_only(tensor, int(tensor in state))
            and (tensor not in state or _is_at(spot, state.places(tensor)))
            for tensor in tensors_of(_contents(spot)) or ()
        )

    def _is_only(self, tensor: Tensor, count: int) -> bool:
        """True if exactly `count` tensors in reach use the memory, and the cell, of this one."""
        serial = memory_serial(tensor.lazydata)
        is_alone = serial is None or self._memories[serial] == count
        return is_alone and self._cells[id(tensor._cell)] == count

    def _add(self, spot: Spot, path: Path) -> None:
        known = self._used.get(_key(spot))
        taken = self._taken
        kind, found = _kind_of_contents(spot, taken)
        if kind is _OTHER:
            return
        is_state = isinstance(spot, Place)
        parts = []
        for tensor, buffer in found:
            taken.add(buffer.serial)
            self.paths[buffer.serial] = path
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
        """Appends the inputs that the call has used to the arguments, and returns them.

        `used` is the memory that it read or wrote, by serial number. `seen` are the cells, by
        `id()`, of the tensors that it returned or left somewhere. `replaced` are the identities of
        the places whose contents it replaced.
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
        """The identities of the spots that are used."""
        return self._used.keys()

    def mattering(self) -> tuple[FoundInputs, tuple[Any, ...]]:
        """The inputs for the replay, and the signature that `add_to` gave before the call."""
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
