"""Tensors whose sizes are seen as variables: one plan, and one capture, for all sizes in bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, final

from ferrule.autograd import Rule, TracedValue, record
from ferrule.base.containers import leaves, mapped
from ferrule.base.helpers import prod
from ferrule.base.threadstate import this_thread
from ferrule.device.capture import JitError
from ferrule.device.runner import BufferCopy
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Extent
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.layout import is_dense
from ferrule.tensor.base import Tensor, TensorBase
from ferrule.tensor.cell import StorageRef
from ferrule.tensor.data import bound_shape

Extents: TypeAlias = Mapping[int, Extent]
"""The variables that are the sizes of axes, by axis."""


def note_extents(tensor: Tensor, extents: Extents) -> None:
    """Tells the captured function that runs that axes of a tensor have any size within bounds."""
    noted = this_thread.state.extents
    if noted is not None and tensor._parent is None:
        noted[tensor._cell] = extents


def is_within(tensor: Tensor, extents: Extents) -> bool:
    """True for a tensor without a place in autograd whose sizes are within bounds."""
    shape = tensor.shape
    fits = [
        axis < len(shape) and type(shape[axis]) is int and one.min <= shape[axis] <= one.max
        for axis, one in extents.items()
    ]
    value = tensor._read()
    return all(fits) and value.edge is None and tensor._leaf is None and tensor._grad is None


def seen_with(tensor: Tensor, extents: Extents) -> Tensor:
    """A tensor in the memory of a computed one, with variables as sizes."""
    node = tensor._read().node
    assert node.realized is not None
    return _in_memory(tensor, node.realized, extents)


def copied_with(tensor: Tensor, extents: Extents) -> Tensor:
    """A copy of a tensor, with variables as sizes; computes it now."""
    return _in_memory(tensor, _copy(tensor, prod(tensor.shape)), extents)


def _in_memory(like: Tensor, buffer: Buffer, extents: Extents) -> Tensor:
    axes = enumerate(like.shape)
    sizes = [extents[n].bind(size) if n in extents else size for n, size in axes]
    return like._wrap(TracedValue(LazyBuffer.in_buffer(buffer, tuple(sizes))))


def _copy(tensor: Tensor, size: int) -> Buffer:
    """A copy of the memory of a tensor of that size, which is computed now."""
    memory = tensor.contiguous().realize()._read().node.realized
    assert memory is not None
    copy = Buffer(memory.device, size, memory.dtype)
    BufferCopy(copy.device, copy.nbytes, copy.device).exec([copy, memory.view(0, size)])
    return copy


_WITH_NUMBERS = Rule(lambda grad, entry: (grad.reshape(entry.arg),))


def with_numbers(tensor: Tensor) -> Tensor:
    """A copy of a tensor whose sizes are such variables, with numbers as sizes; computes it now.

    A copy, since a later write to it must not change what else is made of the tensor.
    """
    shape = tensor.shape
    if not is_dense(shape):
        return tensor
    numbers = bound_shape(shape, "reshape")
    node = LazyBuffer.in_buffer(_copy(tensor, prod(numbers)), numbers)
    return tensor._wrap(record("with_numbers", _WITH_NUMBERS, (tensor._read(),), node, shape))


# Arguments of captured functions


@contextmanager
def noting_extents() -> Iterator[dict[StorageRef, Extents]]:
    """A block in which extents are noted, by the memory of tensors."""
    state = this_thread.state
    before = state.extents
    noted: dict[StorageRef, Extents] = {}
    state.extents = noted
    try:
        yield noted
    finally:
        state.extents = before


def extents_of(
    noted: Mapping[StorageRef, Extents], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[int | str, Extents]:
    """The extents that were noted of arguments, by position or name.

    Empty if another argument has a size that is now the same: it may have to fit, as labels do.
    """
    found: dict[int | str, Extents] = {}
    varying: set[int] = set()
    others: set[int] = set()
    for key, value in _named(args, kwargs):
        if _is_tensor(value) and value._parent is None and value._cell in noted:
            found[key] = noted[value._cell]
            varying.update([value.shape[axis] for axis in found[key]])
        else:
            others.update([n for leaf in leaves([value]) if _is_tensor(leaf) for n in leaf.shape])
    return {} if varying & others - {1} else found


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorBase)


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[int | str, Any]]:
    return [*enumerate(args), *kwargs.items()]


@final
class Generalised:
    """The arguments of a call, those with extents as tensors whose sizes are variables.

    The others, and all if a variable had two values, are as they were. The tensors are in the same
    memory; the function must not write there.
    """

    def __init__(
        self,
        extents: Mapping[int | str, Extents],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.args: Sequence[Any] = args
        self.kwargs = kwargs
        self.twins: dict[StorageRef, tuple[Tensor, Tensor, Buffer | None]] = {}
        """The new tensors and those that they stand for, with their memory."""
        given = [(key, value) for key, value in _named(args, kwargs) if key in extents]
        chosen: dict[int | str, Tensor] = {}
        sizes: dict[Extent, int] = {}
        for key, value in given:
            if not _is_tensor(value) or not is_within(value, extents[key]):
                continue
            if value.realize()._read().node.realized is None:
                continue  # a view, or a constant
            for axis, one in extents[key].items():
                if sizes.setdefault(one, value.shape[axis]) != value.shape[axis]:
                    return
            chosen[key] = seen_with(value, extents[key])
        self.twins = {
            twin._cell: (twin, dict(given)[key], twin._read().node.realized)
            for key, twin in chosen.items()
        }
        self.args = [chosen.get(n, value) for n, value in enumerate(args)]
        self.kwargs = {name: chosen.get(name, value) for name, value in kwargs.items()}

    def refuse_write(self, cell: StorageRef) -> None:
        """Raises `JitError` if the memory is that of an argument with sizes that vary."""
        if cell in self.twins:
            _, original, _ = self.twins[cell]
            raise JitError(
                f"the function writes to an argument of shape {original.shape}, whose sizes vary "
                "since a model with bounds takes it; write to a copy"
            )

    def result(self, result: Any) -> Any:
        """The result of a call, with numbers as sizes, and the arguments themselves where it has
        them.

        Raises `JitError` if an argument was written to by a replay inside of the function.
        """
        for twin, _, memory in self.twins.values():
            storage = twin._cell.storage
            is_written = storage is not None and storage.writes
            if is_written or twin._cell.value.node.realized is not memory:
                self.refuse_write(twin._cell)
        return mapped(result, self._with_numbers)

    def _with_numbers(self, leaf: Any) -> Any:
        if not _is_tensor(leaf):
            return leaf
        known = self.twins.get(leaf._cell)
        if known is None:
            return with_numbers(leaf)
        twin, original, _ = known
        return original if leaf is twin else with_numbers(leaf + 0)
