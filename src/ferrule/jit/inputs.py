"""Arguments of a captured function: their tensors, variables and Python values, and the signature.

Two calls may share a capture if their `Arguments.key` is equal. It holds everything that may change
the function's behaviour, except the contents of tensors and the values of bound variables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.autograd import TracedValue, is_training
from ferrule.base.changes import changes
from ferrule.base.config import config
from ferrule.base.containers import is_record
from ferrule.base.helpers import prod
from ferrule.base.records import dataclass
from ferrule.base.threadstate import this_thread
from ferrule.device import Device
from ferrule.device.runner import BufferCopy
from ferrule.engine.realize import realize
from ferrule.fusion.views import dense, move
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import BoundVariable, Expr, Variable, sint, unbind
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import MovementOps, apply_movements
from ferrule.ir.shape.layout import is_dense
from ferrule.ir.shape.view import View
from ferrule.ir.storage import Storage
from ferrule.jit.hooks import hooks_of
from ferrule.jit.places import attributes, is_plain
from ferrule.jit.report.signature import (
    ArrayPart,
    DictPart,
    ListPart,
    ObjectPart,
    RecordPart,
    SettingsPart,
    Signature,
    SlicePart,
    TensorPart,
)
from ferrule.jit.values import form
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef

Chain: TypeAlias = tuple[tuple[MovementOps, Any], ...]
Layout: TypeAlias = tuple[tuple[sint, ...], Chain]
"""The shape of some memory, and movements from there to a tensor, with unbound variables."""
Reachable: TypeAlias = Mapping[int | None, Set[StorageRef]]
"""The memory that a function can reach by itself, by serial number, and the cells of the tensors
in each: a copy-on-write copy shares the memory but has another cell."""

_PLAIN = frozenset({int, bool, float, str, bytes, complex, type(None), range})
_SOME_PART: Chain = ((MovementOps.SHRINK, None),)
_ONE_SOURCE = frozenset(MovementOps) - {MovementOps.GATHER}


@final
@dataclass(slots=True)
class Arguments:
    """The tensors of a call, their memory, the variables' values, and the call's signature."""

    tensors: list[Tensor] = field(default_factory=list)
    """All tensors, those in lists, tuples, dicts and dataclasses included, in order."""
    buffers: list[Buffer] = field(default_factory=list)
    """The memory of each of them."""
    explicit: int = 0
    """The number of tensors without the implicit inputs that `FoundInputs` adds."""
    closed_over: list[int] = field(default_factory=list)
    """The numbers of the tensors that need a stand-in: see `read_arguments`."""
    parts: dict[Tensor, Buffer] = field(default_factory=dict)
    """The copies of views, such as a batch of a data set: one replay then serves all offsets."""
    copied: Set[int] = frozenset()
    """The numbers of the tensors to copy if they are views of larger memory."""
    chains: dict[int, Chain] | None = None
    """The movements of each view, if the signature leaves them out."""
    reachable: Reachable = field(default_factory=dict)
    var_vals: dict[Variable, int] = field(default_factory=dict)
    objects: list[object] = field(default_factory=list)
    """The objects that the key identifies by `id()`, which must stay alive, and the classes of the
    containers that it identifies by their contents. The function may find numbers and tensors in
    all of these."""
    key: tuple[Any, ...] = ()


@final
@dataclass(frozen=True)
class InputPart:
    """A slice of the memory of input `number`, from element `offset` on."""

    number: int
    offset: int
    size: int
    dtype: DType

    @staticmethod
    def of(part: Buffer, whole: Buffer, number: int) -> InputPart | None:
        """A buffer as a slice of an argument's memory; None if it is not inside of that."""
        start = part.byte_offset - whole.byte_offset
        is_inside = 0 <= start and start + part.nbytes <= whole.nbytes
        if part.base is not whole.base or not is_inside or start % part.dtype.itemsize:
            return None
        return InputPart(number, start // part.dtype.itemsize, part.size, part.dtype)

    def take(self, buffers: Sequence[Buffer]) -> Buffer:
        """The same slice of another call's argument."""
        return buffers[self.number].view(self.offset, self.size, self.dtype)


def read_arguments(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    reachable: Reachable,
    exact: bool = False,
    copied: Set[int] = frozenset(),
    only_kinds: bool = False,
) -> Arguments:
    """The arguments of a call and their signature; lazy tensors are computed first.

    `reachable` is the memory that the function can reach by itself. A kernel that reads such memory
    may mean the argument or the tensor that the function reached. To tell them apart, a capture
    passes a stand-in for the argument (`stand_ins`). Two cases need the memory itself in the
    signature instead: tensors with a gradient, and functions that write to memory from outside
    (`exact`).

    Views whose number is among the `copied` are copied, so that later calls with other offsets have
    the same signature. These have stand-ins, too, and the function must not write to its arguments.
    With `only_kinds` the signature leaves out the position of every view.

    Raises ValueError if one variable has two values.
    """
    arguments = Arguments(copied=copied, reachable=reachable, chains={} if only_kinds else None)
    given = _parts(args, arguments)
    named = _parts(kwargs.values(), arguments)
    shared = _aliases(arguments)
    reached: tuple[Any, ...] = ()
    if not reachable.keys().isdisjoint([buffer.base.serial for buffer in arguments.buffers]):
        reached = _reached(arguments, reachable, exact)
    # A function with **kwargs sees the order of its keywords.
    arguments.key = Signature((settings(), given, tuple(kwargs), named, shared, reached))
    return arguments


def settings() -> SettingsPart:
    """The global settings that a call's results depend on: modes, flags, default dtypes."""
    kinds = dtypes.default_float, dtypes.default_int
    state = this_thread.state
    modes = is_training(), state.recording, state.autocast
    now = config()
    chosen = now.ALLOW_TF32, now.FERRULE_CHECK_INDEX, now.FERRULE_SKIP
    return SettingsPart((*modes, *chosen, Device.defaults.get(now.FERRULE_DEVICE), *kinds))


def _part(value: Any, arguments: Arguments) -> Any:
    """The part of the signature for one value, with its contents."""
    kind = type(value)
    if kind in _PLAIN:
        return form(value)
    if isinstance(value, Tensor):
        return _tensor_part(value, arguments)
    if isinstance(value, list | tuple):
        items = _parts(value, arguments)
        return ListPart((kind, items, _others(value, (list, tuple), frozenset(), arguments)))
    if isinstance(value, dict):
        keys = tuple([form(key) if is_plain(key) else key for key in value])
        items = _parts(value.values(), arguments)
        return DictPart((kind, keys, items, _others(value, (dict,), frozenset(), arguments)))
    if isinstance(value, Expr):
        return _unbound(value, arguments)
    if kind is slice:
        return SlicePart((kind, *_parts((value.start, value.stop, value.step), arguments)))
    if isinstance(value, np.ndarray | np.generic):
        has_objects = value.dtype.hasobject
        contents = _part(value.tolist(), arguments) if has_objects else value.tobytes()
        return ArrayPart((kind, value.dtype, value.shape, contents))
    if is_record(value):
        names = [field.name for field in dataclasses.fields(value)]
        items = _parts([getattr(value, name) for name in names], arguments)
        return RecordPart((kind, items, _others(value, (), frozenset(names), arguments)))
    return _object_part(value, arguments)


def _parts(values: Iterable[Any], arguments: Arguments) -> tuple[Any, ...]:
    return tuple([_part(value, arguments) for value in values])


def _others(value: Any, known: Sequence[type], names: Set[str], arguments: Arguments) -> Any:
    """The attributes of a subclass of a container, except those in `names`.

    Its class is noted among the objects, since it may have code and numbers.
    """
    if type(value) in known:
        return ()
    arguments.objects.append(type(value))
    others = {name: child for name, child in attributes(value).items() if name not in names}
    if all(map(is_plain, others.values())):
        return tuple([(name, form(child)) for name, child in others.items()])
    return _object_part(value, arguments)


def _object_part(value: Any, arguments: Arguments) -> ObjectPart:
    arguments.objects.append(value)
    return ObjectPart((type(value), id(value)))


def _is_part(tensor: Tensor, buffer: Buffer, chain: Chain, arguments: Arguments) -> bool:
    """True if a tensor is a view of a part of `buffer` that may be replaced by a copy."""
    value = tensor._read()
    node = value.node
    if not chain or buffer.base.serial in arguments.reachable or node.size > buffer.size:
        return False
    is_plain = value.edge is None and tensor._leaf is None and tensor._grad is None
    return is_plain and 0 not in node.shape and not has_variables((node.shape, chain))


def has_variables(kind: Any) -> bool:
    """True if a shape or a movement is symbolic."""
    if isinstance(kind, tuple):
        return any([has_variables(part) for part in kind])
    return isinstance(kind, Expr)


def is_symbolic_view(tensor: Tensor) -> bool:
    """True if the offset or the shape of a view depends on variables."""
    handle: Any = tensor
    while handle._parent is not None:
        if has_variables(handle._move):
            return True
        handle = handle._parent
    return False


def without_values(kind: Any) -> tuple[Any, dict[Variable, int]]:
    """A shape or a movement with its variables unbound, and the values that they had."""
    if isinstance(kind, Expr):
        return unbind(kind)
    if not isinstance(kind, tuple):
        return kind, {}
    parts = [without_values(part) for part in kind]
    return tuple([free for free, _ in parts]), {
        v: n for _, found in parts for v, n in found.items()
    }


def with_values(kind: Any, var_vals: Mapping[Variable, int]) -> Any:
    """A shape or a movement with its variables bound to these values."""
    bound: dict[Expr, Expr] = {variable: variable.bind(n) for variable, n in var_vals.items()}

    def substituted(kind: Any) -> Any:
        if isinstance(kind, tuple):
            return tuple([substituted(part) for part in kind])
        if not isinstance(kind, Expr):
            return kind
        return bound[kind] if kind in bound else kind.substitute(bound)

    return substituted(kind)


def _copied_part(tensor: Tensor, buffer: Buffer, arguments: Arguments) -> Buffer:
    """A contiguous copy of a view of `buffer`."""
    part = arguments.parts.get(tensor)
    if part is not None:
        return part
    node = tensor.lazydata
    start = _start_of_piece(node)
    if start is None:
        copy = LazyBuffer.empty(node.shape, node.dtype, node.device).assign(node)
        realize([copy])
        assert copy.realized is not None, f"{copy} was not computed"
        part = copy.realized
    else:
        part = Buffer(buffer.device, node.size, buffer.dtype)
        BufferCopy(part.device, part.nbytes, part.device).exec(
            [part, buffer.view(start, node.size)]
        )
    arguments.parts[tensor] = part
    return part


def _start_of_piece(node: LazyBuffer) -> int | None:
    """The offset of a node that is a contiguous slice of some memory; None if it is not."""
    chain: list[LazyBuffer] = []
    while node.realized is None:
        chain.append(node)
        node = node.srcs[0]
    rows = chain[1:] if chain[0].op is MovementOps.RESHAPE else chain
    if len(rows) == 1 and rows[0].op is MovementOps.SHRINK:
        # The common case, one row or several; the general code below takes ten times as long.
        (first, _), *others = rows[0].arg
        if [high - low for low, high in others] == list(node.shape[1:]):
            is_dense = node.realized.size == prod(node.shape)
            return int(first * prod(node.shape[1:])) if is_dense else None
    view: View | None = dense(node.shape)
    for moved in reversed(chain):
        view = None if view is None else move(view, moved)
    if view is None or not isinstance(view.offset, int):
        return None
    is_part = view.size != node.realized.size == prod(node.shape)
    return view.offset if is_part and view == View.create(view.shape, offset=view.offset) else None


def _unbound(value: Any, arguments: Arguments) -> Any:
    """A size, or a tuple of sizes, with its variables unbound; notes their values."""
    if isinstance(value, tuple):
        return tuple([_unbound(part, arguments) for part in value])
    if not isinstance(value, Expr):
        return value
    if isinstance(value, BoundVariable):
        variable, number = value.unbound()
        free: Any = variable
        found = {variable: number}
    else:
        free, found = unbind(value)
    for variable, number in found.items():
        if arguments.var_vals.setdefault(variable, number) != number:
            raise ValueError(
                f"variable {variable.name} is {arguments.var_vals[variable]} in one argument and "
                f"{number} in another; bind it to one value, or use two variables"
            )
    return free


def _tensor_part(tensor: Tensor, arguments: Arguments) -> TensorPart:
    value = tensor._read()
    buffer = value.node.realized
    chain: Chain = ()
    if buffer is None:
        buffer, chain = memory_of(tensor)
        value = tensor._read()
        number = len(arguments.tensors)
        is_told = arguments.chains is None and number not in arguments.copied
        if not is_told and _is_part(tensor, buffer, chain, arguments):
            if arguments.chains is None:
                buffer = _copied_part(tensor, buffer, arguments)
            else:
                arguments.chains[number] = chain
            chain = _SOME_PART
    node = value.node
    shape = node.shape
    if chain or any([type(size) is not int for size in shape]):
        shape = _unbound(shape, arguments)
        chain = _unbound(chain, arguments)
    arguments.tensors.append(tensor)
    arguments.buffers.append(buffer)
    # A backward pass in the function adds to an existing gradient.
    gradient = None if tensor._grad is None else _tensor_part(tensor._grad, arguments)
    is_leaf, is_on_tape = tensor._leaf is not None, value.edge is not None
    return TensorPart(
        (
            shape,
            node.dtype,
            node.device,
            is_leaf,
            is_on_tape,
            tensor._detached,
            hooks_of(tensor),
            chain,
            is_copy(tensor, node),
            0 if is_dense(shape) else buffer.nbytes,
            gradient,
        )
    )


def _aliases(arguments: Arguments) -> tuple[Any, ...]:
    """The aliases among the tensors, for the signature.

    Views of one tensor share a cell; copy-on-write copies share memory, but no cell.
    """
    if len(arguments.buffers) < 2:
        return ()
    found = []
    first: dict[int, int] = {}
    first_of_cell: dict[StorageRef, int] = {}
    for number, buffer in enumerate(arguments.buffers):
        earlier = first.setdefault(buffer.base.serial, number)
        same = first_of_cell.setdefault(arguments.tensors[number]._cell, number)
        if earlier != number:
            found.append((number, earlier, same))
    return tuple(found)


def _reached(arguments: Arguments, reachable: Reachable, exact: bool) -> tuple[Any, ...]:
    """Notes the tensors in memory that the function can also reach by itself.

    Gives the memory for the signature, or notes that the tensor needs a stand-in.
    """
    serials = [buffer.base.serial for buffer in arguments.buffers]
    taped = {
        serial
        for serial, tensor in zip(serials, arguments.tensors, strict=True)
        if exact or tensor.requires_grad or tensor.grad is not None
    }
    found = []
    for number, serial in enumerate(serials):
        if serial in reachable:
            if serial in taped:
                found.append((number, serial, arguments.tensors[number]._cell in reachable[serial]))
            else:
                arguments.closed_over.append(number)
    return tuple(found)


# *** arguments that the function can also reach by itself ***


def stand_ins(arguments: Arguments) -> dict[Tensor, Tensor]:
    """A stand-in for each tensor that needs one: another tensor with the same contents.

    It is in the same memory, in a buffer with another serial number, which replaces the original
    among the arguments' buffers. For a copied view it is in the copy.
    """
    twins: dict[int, Buffer] = {}
    found: dict[Tensor, Tensor] = {}
    for number in arguments.closed_over:
        tensor, buffer = arguments.tensors[number], arguments.buffers[number]
        if buffer.serial not in twins:
            twins[buffer.serial] = buffer.view(0, buffer.size)
        arguments.buffers[number] = twins[buffer.serial]
        found[tensor] = _moved_like(tensor.lazydata, twins[buffer.serial])
    for tensor, part in arguments.parts.items():
        found[tensor] = _owner_of(part, tensor.lazydata.shape, ())
    return found


def _moved_like(node: LazyBuffer, buffer: Buffer) -> Tensor:
    """A tensor made from `buffer` by the movements that make `node` from its memory."""
    chain: list[tuple[MovementOps, Any]] = []
    while node.realized is None:
        assert isinstance(node.op, MovementOps)
        chain.append((node.op, node.arg))
        node = node.srcs[0]
    return _owner_of(buffer, node.shape, chain[::-1])


def _owner_of(
    buffer: Buffer, shape: Sequence[sint], chain: Sequence[tuple[MovementOps, Any]]
) -> Tensor:
    """A tensor made from `buffer` by movements, as the owner of that memory.

    Otherwise a copy-on-write copy of it would become the owner, and be written in place.
    """
    node = LazyBuffer.from_buffer(buffer, shape)
    tensor = Tensor._wrap(TracedValue(apply_movements(node, chain)))
    cell = tensor._cell
    cell.storage = Storage(cell.value.node, cell)
    node.owner = cell.storage.token
    return tensor


# *** the memory of a tensor ***


def memory_of(tensor: Tensor) -> tuple[Buffer, Chain]:
    """The buffer of a tensor, and the movements that lead from there to the tensor.

    A lazy tensor is computed. A constant gets memory too, so that a replay can take another value.
    """
    found = follow(tensor.lazydata)
    if found is None:
        _give_memory(tensor)
        found = follow(tensor.lazydata)
    if found is None:
        node = tensor.lazydata
        realize([node])
        found = follow(node)
    assert found is not None, f"{tensor} has no memory after it was computed"
    return found


def memories_of(tensor: Tensor) -> set[int | None]:
    """The serial numbers of the memory that a tensor reads and of its base's memory.

    They differ for a view that was computed by itself: it reads the base again after a write.
    """
    base = tensor._cell.value.node
    if tensor._parent is None:
        return {memory_serial(base)}
    return {memory_serial(tensor.lazydata), memory_serial(base)}


def memory_serial(node: LazyBuffer) -> int | None:
    """The serial number of the memory that a node is in; None if it has none yet."""
    if node.realized is not None:
        return node.realized.base.serial
    found = follow(node)
    return None if found is None else found[0].base.serial


def is_copy(tensor: Tensor, node: LazyBuffer) -> bool:
    """True if a view that was computed by itself reads a copy, and not the memory of its base.

    `node` is the node that it reads. A write to the view goes to the memory of the base.
    """
    if tensor._parent is None:
        return False
    found, whole = follow(node), follow(tensor._cell.value.node)
    return found is not None and (whole is None or found[0] is not whole[0])


def follow(node: LazyBuffer) -> tuple[Buffer, Chain] | None:
    """The buffer below a chain of movements, and the chain; None if there is no such buffer."""
    chain: list[tuple[MovementOps, Any]] = []
    while node.realized is None:
        if not isinstance(node.op, MovementOps) or node.op not in _ONE_SOURCE:
            return None
        chain.append((node.op, node.arg))
        node = node.srcs[0]
    return node.realized, tuple(chain)


def layout(node: LazyBuffer) -> Layout:
    """The layout of a node that is in memory, or a view of memory."""
    found = follow(node)
    assert found is not None, f"{node} has no memory"
    while node.realized is None:
        node = node.srcs[0]
    moves = [(op, without_values(arg)[0]) for op, arg in found[1]]
    return without_values(node.shape)[0], tuple(moves)


def _give_memory(tensor: Tensor) -> None:
    """Computes the memory that a tensor shares with all its views."""
    cell = tensor._cell
    value = cell.value
    if not value.node.owns_memory:
        # The contents are the same, so nobody can see the difference, gradients included.
        node = value.node.contiguous()
        cell.hold(TracedValue(node, value.edge))
        changes.count += 1
        if cell.storage is not None:
            cell.storage.put(node)
            node.owner = cell.storage.token
    realize([cell.value.node])
