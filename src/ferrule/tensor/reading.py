"""Reading tensors: sizes, and elements as arrays, lists and Python numbers; computing them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.autograd import is_noting
from ferrule.base.helpers import prod
from ferrule.engine.realize import realize as compute
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazy import Handle
from ferrule.ir.shape.layout import held_shape
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.ir.storage import turn
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import Array, bound_shape
from ferrule.tensor.keywords import method


@method
def dim(self: Tensor) -> int:
    """The number of axes, as a method.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0]]).dim()
    2
    """
    return len(self._shape)


@method
def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or the size of one axis: PyTorch's method. NumPy's `x.size` is `x.numel()`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3]]).size(), Tensor([[1, 2, 3]]).size(1)
    ((1, 3), 3)
    """
    return self._shape if dim is None else self._shape[self._axis(dim, "size")]


@method
def numel(self: Tensor) -> sint:
    """The number of elements.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2, 3]]).numel()
    3
    """
    return prod_sint(self._shape)


@method
def element_size(self: Tensor) -> int:
    """The bytes of one element.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).element_size()
    4
    """
    return self.dtype.itemsize


@method
def is_floating_point(self: Tensor) -> bool:
    """True if the dtype is a float.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).is_floating_point(), Tensor([1]).is_floating_point()
    (True, False)
    """
    return dtypes.is_float(self.dtype)


@method
def realize(self: Tensor, *others: Tensor) -> Tensor:
    """Computes this tensor and the others now, together; returns this one.

    Raises `TypeError` for anything but tensors.

    >>> from ferrule import Tensor
    >>> (Tensor([1, 2]) + 1).realize().lazydata.realized is not None
    True
    """
    if others:
        for tensor in others:
            if not isinstance(tensor, Tensor):
                kind = type(tensor).__name__
                raise TypeError(f"[realize] takes tensors, not {kind}; make it one: Tensor(...)")
    if is_noting():  # all of it is yet to be written down
        return self
    value = _root(self)
    if others:
        values = [value, *map(_root, others)]  # handles, for as long as this takes
        compute([value.node for value in values])
    else:
        compute((value.node,))
    return self


@method
def numpy(self: Tensor, copy: bool = True) -> Array:
    """The elements as a NumPy array; computes them now.

    The array is the caller's own. With `copy=False` it is read-only, and shares the tensor's
    memory where the host can address that; it keeps its contents whatever the tensor becomes.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).numpy().sum()
    np.int64(10)
    """
    value = self._read()  # a handle: what another thread writes meanwhile leaves these contents
    node = value.node
    shape = bound_shape(node.shape, "numpy")
    known = node.base_const()
    if known is not None and not hasattr(known, "bounds"):
        return np.full(shape, known, node.dtype.np)
    whole = held_shape(node.shape)
    if node.realized is None:
        compute([node])
    with turn:  # another thread's replay may be writing there
        memory = node.realized
        assert memory is not None
        if memory.size != prod(whole):  # there is room for larger sizes
            memory = memory.view(0, prod(whole))
        array = memory.copied(whole) if copy else memory.toCPU().reshape(whole)
    if whole == shape:
        return array
    part = array[tuple([slice(0, size) for size in shape])]
    return part.copy() if copy else part


@method
def item(self: Tensor) -> Any:
    """The only element, as a Python number.

    Raises `ShapeError` for a tensor with more elements, or none.

    >>> from ferrule import Tensor
    >>> Tensor([[2.5]]).item()
    2.5
    """
    if any([size != 1 for size in bound_shape(self._shape, "item")]):
        raise ShapeError(
            f"[item] a tensor of shape {self._shape} is not one element; "
            "use .tolist() or .numpy(), or take an element first"
        )
    return self.numpy().item()


@method
def tolist(self: Tensor) -> Any:
    """The elements as nested lists of Python numbers; a number for a tensor without axes.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).tolist()
    [[1, 2], [3, 4]]
    """
    return self.numpy(copy=False).tolist()


@method
def data(self: Tensor) -> memoryview:
    """The elements as a read-only memoryview with the tensor's shape.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).data().tolist()
    [[1, 2], [3, 4]]
    """
    if self.dtype.fmt is None:
        raise DTypeError(f"[data] {self.dtype} has no memoryview format; cast it to float32")
    array = self.numpy()
    array.flags.writeable = False
    return array.data


def length(self: Tensor) -> int:
    """The size of the first axis."""
    if not self._shape:
        raise TypeError("[len] a tensor without axes has no length; use .item() or .reshape(1)")
    return bound_shape(self._shape[:1], "len")[0]


def truth(self: Tensor) -> bool:
    """True if the only element is not 0; raises `TypeError` unless there is exactly one."""
    if self._shape and self.numel() != 1:
        raise TypeError(
            f"[bool] the truth of a tensor of shape {self._shape} is not one value; "
            "use .any(), .all() or .item()"
        )
    return bool(self.item())


def to_int(self: Tensor) -> int:
    """The only element, as an int."""
    return int(self.item())


def to_float(self: Tensor) -> float:
    """The only element, as a float."""
    return float(self.item())


def to_index(self: Tensor) -> int:
    """The only element of a tensor of integers, as an int."""
    if not dtypes.is_int(self.dtype):
        raise TypeError(f"[index] a tensor of {self.dtype} is no index; cast it to int32")
    return int(self.item())


def _root(self: Tensor) -> Handle:
    """The value to compute for this tensor: its whole memory, where that exists anyway."""
    cell = self._cell
    memory = cell.value
    if self._parent is not None and not memory.node.owns_memory:
        return self._read()
    cell.taken = True  # as `StorageRef.take` does, without a call
    return memory
