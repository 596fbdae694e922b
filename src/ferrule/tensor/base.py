"""The core of `Tensor`: memory that views share, reading and writing it, and its place in autograd.

A tensor is a handle on a `StorageRef`, and for a view also a movement of another handle, its
parent. It is resolved to a `TracedValue` when it is used: a write through any handle is seen by all
of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Never, Self, TypeVar
from weakref import ref

import numpy as np

from ferrule.autograd import (
    GradEdge,
    GradientError,
    Leaf,
    Shape,
    TracedValue,
    is_recording,
    is_training,
)
from ferrule.base.calls import unknown_keyword, whole
from ferrule.base.changes import changes
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType, DTypeError, dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazy import DeviceMismatchError, LazyBuffer
from ferrule.ir.lazyop import MovementOps
from ferrule.ir.shape.layout import storage_view
from ferrule.ir.shape.view import ShapeError, View, prod_sint
from ferrule.tensor.broadcast import fit_shape
from ferrule.tensor.cell import MOVES, Cache, Move, Part, StorageRef, moved_view
from ferrule.tensor.data import DTypeLike, from_host, to_device, to_dtype

T = TypeVar("T", bound="TensorBase")
_NUMBERS = (bool, int, float, list, tuple, np.generic)  # they have to fit the elements' dtype


class TensorBase:
    """The base of tensors, without arithmetic: it holds memory, shares it, reads and writes it."""

    __slots__ = (
        "__weakref__",
        "_cache",
        "_cell",
        "_detached",
        "_grad",
        "_leaf",
        "_move",
        "_parent",
        "_requires_grad",
        "_shape",
        "_values_of",
        "_view",
        "_whole",
    )

    # Not in `Tensor` itself, whose type has the mode for the class: there it would hide that from
    # what saves an attribute and sets it again.
    if TYPE_CHECKING:
        training: ClassVar[bool]
    else:
        training = property(lambda self: is_training(), doc="The mode of this thread.")

    _cell: StorageRef
    _shape: Shape
    _parent: TensorBase | None
    _move: Move | None
    _cache: Cache | None
    _view: View | None
    _leaf: Leaf | None
    _detached: bool
    _requires_grad: bool | None
    _grad: Tensor | None
    _whole: StorageRef | None
    """The cell, if reading the tensor gives its value as it is: None for views and leaves, and
    where it is detached. One attribute tells this, as tensors' take long; see `_note_whole`."""
    _values_of: str  # the function, such as `max`, whose values these are, if it was set

    def __init__(
        self,
        data: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
        **others: Never,
    ) -> None:
        """A tensor of `data`: a number, nested lists, bytes, a NumPy array, another tensor.

        Lists of floats become float32, of ints int32, of bools bool; arrays keep their dtype. The
        data is copied.

        Raises `ShapeError` for ragged lists, `TypeError` for other objects.

        >>> from ferrule import Tensor, dtypes
        >>> Tensor([[1, 2], [3, 4]]).shape, Tensor([1.0, 2.0], dtype=dtypes.float64).dtype
        ((2, 2), dtypes.float64)
        """
        if others:
            raise unknown_keyword(
                "Tensor", next(iter(others)), ("data", "device", "dtype", "requires_grad")
            )
        chosen = None if dtype is None else to_dtype(dtype)
        if isinstance(data, TensorBase):
            value = data._read()
            value = value if device is None else value.copy_to(to_device(device))
        elif isinstance(data, LazyBuffer):
            value = TracedValue(data)
        else:
            value = from_host(data, chosen, to_device(device))
        self._set(StorageRef(value if chosen is None else value.cast(chosen)))
        if requires_grad is not None:
            self.requires_grad = requires_grad

    def _set(self, cell: StorageRef) -> None:
        """Makes a tensor that has nothing yet a handle on all of a cell's memory."""
        self._cell = cell
        self._shape = cell.value.node.shape
        self._parent = None
        self._move = None
        self._cache = None
        self._view = None
        self._leaf = None
        self._detached = False
        self._requires_grad = None
        self._grad = None
        self._whole = cell

    def _note_whole(self) -> None:
        """Sets `_whole`; what changes a part of the handle calls it."""
        is_whole = self._parent is None and self._leaf is None and not self._detached
        self._whole = self._cell if is_whole else None

    @classmethod
    def _wrap(cls, value: TracedValue) -> Self:
        """A tensor with memory of its own that holds a value."""
        return wrapped(cls, value)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> TracedValue:
        """The value now, with its edge where a gradient is to flow to it."""
        cell = self._whole
        if cell is not None:
            value = cell.value
            cell.taken = True  # as `StorageRef.take` does, without a call
            return value
        if self._parent is not None:
            return self._read_view()
        value = self._cell.take()
        if self._leaf is not None:
            return TracedValue(value.node, self._leaf)
        if self._detached:
            return value.detach()
        return value

    def _read_view(self) -> TracedValue:
        """The parents' values from the top down: without recursion, for long chains of views."""
        chain: list[TensorBase] = []
        handle: TensorBase = self
        while handle._parent is not None:
            chain.append(handle)
            handle = handle._parent
        value = handle._read()
        for view in reversed(chain):
            value = view._moved(value)
        return value

    def _moved(self, source: TracedValue) -> TracedValue:
        """This view of its parent's value, made anew only if that has changed."""
        cache = self._cache
        value = None if cache is None else cache.value_of(source)
        if value is None:
            assert self._move is not None
            op, arg = self._move
            value = MOVES[op](source, arg)
            assert cache is not None
            cache.read = value, source
        if self._leaf is not None:
            return TracedValue(value.node, self._leaf)
        return value.detach() if self._detached else value

    def _view_of(self, op: MovementOps | str, arg: Any) -> Self:
        """A movement of this tensor that shares its memory."""
        source = self._read()
        value: TracedValue = MOVES[op](source, arg)
        tensor = object.__new__(type(self))
        tensor._set(self._cell)
        tensor._shape = value.node.shape
        tensor._parent = self
        tensor._move = (op, arg)
        tensor._detached = not is_recording()
        tensor._note_whole()
        tensor._watch(value, source)
        return tensor

    def _watch(self, value: TracedValue, source: TracedValue) -> None:
        """Keep the value that the view has read until its memory is written."""
        self._cache = Cache(self, value, source)
        self._cell.keep(self._cache)

    @property
    def lazydata(self) -> LazyBuffer:
        """The node of the lazy graph that this tensor is now."""
        return self._read().node

    # -- writing ---------------------------------------------------------------------------------

    def _layout(self) -> View:
        """Where in the memory of its cell this tensor's elements are."""
        chain: list[TensorBase] = []
        handle: TensorBase = self
        while handle._view is None and handle._parent is not None:
            chain.append(handle)
            handle = handle._parent
        view = storage_view(handle._shape) if handle._view is None else handle._view
        for part in reversed(chain):
            assert part._move is not None
            op, arg = part._move
            moved = moved_view(op, view, arg)
            assert moved is not None, f"{op} of {view} is not a view"
            view = part._view = moved
        return view

    def _part(self) -> Part | None:
        """The part of the memory that a write to this tensor replaces; None for all of it."""
        moves: list[Move] = []
        handle: TensorBase = self
        while handle._parent is not None:
            assert handle._move is not None
            moves.append(handle._move)
            handle = handle._parent
        return Part(moves[::-1], self._layout()) if moves else None

    def _store(self, value: TracedValue, what: str) -> None:
        """Writes a value of this tensor's shape and dtype."""
        part = self._part()
        if part is not None and not part.view.is_injective:
            raise ShapeError(
                f"[{what}] several elements of this tensor of shape {self._shape} share one place "
                "in memory, because it was expanded; write to a copy: x.contiguous()"
            )
        recorded = is_recording() and self._is_recorded_write(value, part, what)
        if 0 in self._shape:
            return
        self._cell.write(value, part, recorded)

    def _is_recorded_write(self, value: TracedValue, part: Part | None, what: str) -> bool:
        """True if the tape records a write; raises `GradientError` if PyTorch's rules forbid it."""
        handle: TensorBase | None = self
        detached = False
        while handle is not None:
            detached = detached or handle._detached
            if handle._leaf is not None and not detached:
                if part is None and value.edge is None and what == "assign":
                    return False
                raise GradientError(
                    f"[{what}] a tensor that requires a gradient, of shape {self._shape}, is not "
                    "written in place while gradients are recorded; do it under "
                    "Tensor.no_grad(), or on x.detach()"
                )
            handle = handle._parent
        if detached and value.edge is not None:
            raise GradientError(
                f"[{what}] a value that needs a gradient cannot be written through a detached "
                "tensor: the gradient would be lost; write x.detach() of the value"
            )
        return not detached

    def _fitted(self, value: Any, what: str) -> TracedValue:
        """A value for this tensor's elements, of its device, dtype and shape."""
        node = self._cell.value.node
        if isinstance(value, TensorBase):
            new = value._read()
        else:
            new = from_host(value, node.dtype if isinstance(value, _NUMBERS) else None, node.device)
        if new.node.device != node.device:
            raise DeviceMismatchError(
                f"[{what}] the tensor is on {node.device}, the value on {new.node.device}; "
                f"move it first: value.to({node.device!r})"
            )
        return fit_shape(new.cast(node.dtype), self._shape, what)

    def _become(self, other: TensorBase) -> None:
        """Makes this tensor a handle on the same memory, with the same movement of its parent."""
        self._set(other._cell)
        self._shape = other._shape
        self._parent = other._parent
        self._move = other._move
        self._view = other._view
        self._note_whole()
        if other._cache is not None:
            source = other._parent._read() if other._parent is not None else other._read()
            self._watch(other._moved(source), source)

    def _same_handle(self) -> Self:
        tensor = object.__new__(type(self))
        tensor._become(self)
        tensor._detached = self._detached
        tensor._note_whole()
        return tensor

    # -- what it is ------------------------------------------------------------------------------

    @property
    def shape(self) -> Any:
        """The size of each axis.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2, 3]]).shape
        (1, 3)
        """
        return self._shape

    @property
    def dtype(self) -> DType:
        """The number type of the elements."""
        return self._cell.value.node.dtype

    @property
    def device(self) -> str:
        """The name of the device that holds the elements."""
        return self._cell.value.node.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> sint:
        """The bytes of all elements."""
        return prod_sint(self._shape) * self.dtype.itemsize

    def __hash__(self) -> int:
        return id(self)

    def _axis(self, axis: int, what: str) -> int:
        """An axis counted from the front."""
        rank = len(self._shape)
        if type(axis) is not int:
            axis = whole(axis, f"[{what}] an axis")
        if not -rank <= axis < rank:
            raise ShapeError(
                f"[{what}] axis {axis} is out of range for shape {self._shape}, "
                f"whose axes are {-rank} to {rank - 1}"
                if rank
                else f"[{what}] axis {axis}: a tensor without axes has none"
            )
        return axis % rank

    def _axes(self, axes: int | Sequence[int] | None, what: str) -> tuple[int, ...]:
        """Axes counted from the front, in order; all of them for None."""
        if axes is None:
            return tuple(range(len(self._shape)))
        wanted: tuple[Any, ...] = tuple(axes) if isinstance(axes, Iterable) else (axes,)
        found = sorted(self._axis(axis, what) for axis in wanted)
        if len(set(found)) < len(found):
            raise ShapeError(f"[{what}] the axes {wanted} of shape {self._shape} repeat one")
        return tuple(found)

    # -- autograd --------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool | None:
        """True if `backward` computes a gradient here, False if not, None if it was not set.

        Only floats may require one. The results of operations on such a tensor require one, too.
        """
        if self._leaf is not None:
            return True
        if not self._detached and self._read().edge is not None:
            return True
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool | None) -> None:
        if value and not dtypes.is_float(self.dtype):
            raise DTypeError(
                f"[requires_grad] only floats have gradients, not {self.dtype}; cast it first"
            )
        if value:
            if self._leaf is None and (self._detached or self._read().edge is None):
                self._leaf = Leaf(self)
                changes.count += 1
        elif self._leaf is not None:
            self._leaf = None
            changes.count += 1
        elif not self._detached and self._read().edge is not None and value is False:
            raise GradientError(
                "[requires_grad] a result of tensors that require a gradient requires one too; "
                "use x.detach()"
            )
        self._requires_grad = value
        self._note_whole()


read: Final = TensorBase._read
"""`_read` of a tensor, without a look-up: each operation comes by here."""


def wrapped(cls: type[T], value: TracedValue) -> T:
    """`_wrap` of a class, without a look-up: each operation comes by here."""
    tensor = object.__new__(cls)
    tensor._cell = tensor._whole = StorageRef(value)
    tensor._shape = value.node.shape
    tensor._parent = None
    tensor._move = None
    tensor._cache = None
    tensor._view = None
    tensor._leaf = None
    tensor._detached = False
    tensor._requires_grad = None
    tensor._grad = None
    return tensor


def in_new_memory(cls: type[T], buffer: Buffer, shape: Shape, edge: GradEdge | None) -> T:
    """`wrapped` for a value in memory of that shape: each result of a replay comes by here."""
    value = object.__new__(TracedValue)  # as its `__init__` does, without two calls
    value.node = node = LazyBuffer.in_buffer(buffer, shape)
    value._mark = ref(node.anchor)
    value.edge = edge
    return wrapped(cls, value)


# The name for functions of tensors, of which the class is made and which are below it. It is the
# class to type checkers; at run time its base, of which it is the only subclass.
if TYPE_CHECKING:
    from ferrule.tensor import Tensor as Tensor
else:
    Tensor = TensorBase
