"""Gradients that a replay replaces: the new ones are computed in their memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, final
from weakref import ref

from ferrule.autograd import TracedValue
from ferrule.autograd.tape import Shape
from ferrule.ir.buffer import Buffer, Salvage
from ferrule.ir.lazy import LazyBuffer
from ferrule.tensor import Tensor

_Old: TypeAlias = tuple[Tensor, int, "ref[Tensor]", "ref[LazyBuffer]", Shape, Salvage]
"""A dropped gradient: its holder, the number of the value that is the next one, the tensor and its
node, which others may hold, the shape, and the memory."""


@final
class ReplacedGradients:
    """Old gradients, which are dropped, so that no memory is needed for two at a time.

    `holders` are tensors, each with the number of the value that will be its gradient. Views and
    lazy gradients stay until they are replaced. One that is in use elsewhere keeps its memory.
    """

    __slots__ = ("_old",)

    def __init__(self, holders: Iterable[tuple[Tensor, int]]) -> None:
        found = [_noted(holder, number) for holder, number in holders]
        self._old = [noted for noted in found if noted is not None]
        for holder, *_ in self._old:
            holder._grad = None

    def memory(self) -> dict[int, Buffer]:
        """The memory of old gradients that nobody uses, by the numbers of the values."""
        return {one[1]: one[5].buffer for one in self._old if one[5].buffer is not None}

    def put_back(self) -> None:
        """Sets the old gradients again. Nothing may have been written to their memory."""
        made: dict[int, Tensor] = {}
        nodes: dict[Salvage, LazyBuffer] = {}
        for holder, _, reference, known, shape, salvage in self._old:
            gradient = reference()
            if gradient is None:
                gradient = made.get(id(reference))
            if gradient is None:
                node = known() or nodes.get(salvage)
                if node is None:
                    assert salvage.buffer is not None, "the memory of a gradient is lost"
                    node = nodes[salvage] = LazyBuffer.in_buffer(salvage.buffer, shape)
                gradient = made[id(reference)] = Tensor._wrap(TracedValue(node))
            holder._grad = gradient


def _noted(holder: Tensor, number: int) -> _Old | None:
    """What puts a gradient back; None if it cannot be made again from its memory alone."""
    gradient = holder._grad
    if type(gradient) is not Tensor or gradient._parent is not None:
        return None
    value = gradient._cell.value
    node = value.node
    memory = node.realized
    is_plain = value.edge is None and gradient._leaf is None and gradient._requires_grad is None
    salvage = None if memory is None or not is_plain else Salvage.of(memory)
    if salvage is None:
        return None
    return holder, number, ref(gradient), ref(node), node.shape, salvage
