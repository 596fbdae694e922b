"""Copies of tensors, in the program and in files."""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.ir.dtype import dtypes
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import Array


def _own_requires_grad(self: Tensor) -> bool | None:
    return True if self._leaf is not None else self._requires_grad


def shallow_copy(self: Tensor) -> Tensor:
    """The same memory, as PyTorch's: a write to either is seen by both. A leaf's is a leaf."""
    tensor = self._same_handle()
    if self._leaf is not None:
        tensor.requires_grad = True
    return tensor


def deepcopy(self: Tensor, memo: object) -> Tensor:
    """The same elements in memory of its own, on the same device, and a copy of the gradient.

    A leaf's copy is a leaf. Results of recorded operations are detached.
    """
    tensor = self._wrap(self._read().detach())
    tensor.requires_grad = _own_requires_grad(self)
    if self._grad is not None:
        tensor._grad = self._grad.__deepcopy__(memo)
    return tensor


def pickled(self: Tensor) -> tuple[Any, ...]:
    """The elements, dtype, device and `requires_grad`; computes the tensor.

    With protocol 5 the elements can go out of band, without a copy.
    """
    array = self.numpy(copy=False)
    if self.dtype.fmt is None:
        array = array.view(np.dtype(f"u{self.dtype.itemsize}"))
    made_of = (array, self.dtype.name, self.device, _own_requires_grad(self))
    return type(self)._unpickled, made_of


def _unpickled(
    cls: type[Tensor], /, array: Array, name: str, device: str, requires_grad: bool | None
) -> Tensor:
    """The tensor of a pickle, in which this is an attribute of the class under its own name."""
    return cls(array.view(dtypes.from_name(name).np), device, requires_grad=requires_grad)
