"""Gradients that a captured function finds by itself: they are inputs, as its arguments are.

`backward()` adds to a gradient that is there, and makes one where there is none. So whether there
is one belongs to the signature; and which tensor it is does not, as a training loop makes new ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, TypeAlias, final

from ferrule.buffer import Buffer
from ferrule.gradient import Value
from ferrule.jit.inputs import Arguments, memory_of
from ferrule.jit.places import Path
from ferrule.jit.reach import Reach
from ferrule.lazy import LazyBuffer
from ferrule.records import dataclass
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell

Parameter: TypeAlias = weakref.ref[Tensor]

_OTHER = "a view, on the tape, or in memory that others share"


@final
@dataclass
class Gradients:
    """Which gradients matter to a function, in calls whose arguments have one signature."""

    used: list[Parameter] = field(default_factory=list)
    """The tensors whose gradient, where there is one, the function reads or writes to."""
    absent: list[Parameter] = field(default_factory=list)
    """Others that had no gradient when a call was captured."""

    def add_to(self, tensors: list[Tensor], buffers: list[Buffer]) -> tuple[Any, ...]:
        """Adds the gradients that are used to the tensors of a call and their memory.

        Gives the signature of all: for each that is used its kind, and whether others are absent.
        """
        signature: list[Any] = []
        taken = {buffer.base.serial for buffer in buffers}
        for reference in self.used:
            gradient = _gradient_of(reference)
            kind: Any = None
            if gradient is not None:
                kind, buffer = _kind(gradient)
                if buffer.base.serial in taken:
                    kind = _OTHER
                if kind is not _OTHER:
                    taken.add(buffer.base.serial)
                    tensors.append(gradient)
                    buffers.append(buffer)
            signature.append(kind)
        signature += [_gradient_of(reference) is None for reference in self.absent]
        return tuple(signature)


def _gradient_of(parameter: Parameter) -> Tensor | None:
    tensor = parameter()
    return None if tensor is None else tensor.grad


def _kind(gradient: Tensor) -> tuple[Any, Buffer]:
    """What the signature holds of a gradient, and its memory."""
    buffer, chain = memory_of(gradient)
    value = gradient._read()
    shape = value.node.shape
    own = gradient._parent is None and gradient._leaf is None and gradient._grad is None
    plain = own and not chain and value.edge is None and buffer.base is buffer
    if not plain or any([type(size) is not int for size in shape]):
        return _OTHER, buffer
    return (shape, value.node.dtype, value.node.device, buffer.nbytes), buffer


@final
@dataclass
class _Present:
    """A gradient that was there before a call; the call may let it go."""

    kind: tuple[Any, ...]
    serial: int
    """Of its memory."""
    gradient: weakref.ref[Tensor]
    cell: weakref.ref[Cell]

    def tensor(self, buffer: Buffer) -> Tensor:
        """The gradient, or one that stands for it, for its views too."""
        found = self.gradient()
        if found is None:
            found = Tensor._wrap(Value(LazyBuffer.in_buffer(buffer, self.kind[0])))
            cell = self.cell()
            if cell is not None:
                found._set(cell)
        return found


@final
class GradientsBefore:
    """The gradients that a function can reach, as they were before a call that is captured.

    Those `known` to matter from earlier calls are added to the arguments at once.
    """

    def __init__(self, reach: Reach, arguments: Arguments, known: Gradients) -> None:
        self._taken = {buffer.base.serial for buffer in arguments.buffers}
        signature = known.add_to(arguments.tensors, arguments.buffers)
        count = len(known.used)
        self._used: dict[Parameter, Any] = dict(zip(known.used, signature[:count], strict=True))
        self._others: dict[Parameter, Any] = dict(zip(known.absent, signature[count:], strict=True))
        self._present: dict[Parameter, _Present] = {}
        self.paths: dict[int, Path] = {}
        """For the memory of each that is in no other place: the way to the tensor that has it."""
        for tensor in reach.tensors():
            gradient = tensor.grad
            if gradient is None:
                if tensor._leaf is not None:
                    self._others[weakref.ref(tensor)] = True
            elif 0 not in gradient.shape:
                self._add(weakref.ref(tensor), gradient, reach)

    def _add(self, parameter: Parameter, gradient: Tensor, reach: Reach) -> None:
        kind, buffer = _kind(gradient)
        places = reach.places(gradient)
        if kind is _OTHER or len(places) > 1 or buffer.serial in self._taken:
            return
        self._taken.add(buffer.serial)
        self.paths[buffer.serial] = places[0][1]
        if parameter not in self._used:
            references = weakref.ref(gradient), weakref.ref(gradient._cell)
            found = _Present(kind, buffer.serial, *references)
            self._present[parameter] = found

    def add_used(
        self, used: Mapping[int, Buffer], seen: Collection[int], arguments: Arguments
    ) -> list[Tensor]:
        """Adds those to the arguments that the call has used; gives them.

        `used` is the memory that it read or wrote, by serial number; `seen` are the tensors, by
        `id()`, that it returned or left somewhere.
        """
        added = []
        for parameter, present in self._present.items():
            gradient = present.gradient()
            buffer = used.get(present.serial)
            if buffer is None and gradient is not None and id(gradient) in seen:
                buffer = memory_of(gradient)[0]
            if buffer is not None:
                self._used[parameter] = present.kind
                added.append(present.tensor(buffer))
                arguments.tensors.append(added[-1])
                arguments.buffers.append(buffer)
        return added

    def mattering(self) -> tuple[Gradients, tuple[Any, ...]]:
        """All that matter from now on, and what `add_to` would have given before the call."""
        others = {one: kind for one, kind in self._others.items() if one not in self._used}
        signature = (*self._used.values(), *others.values())
        return Gradients(list(self._used), list(others)), signature
