"""Copies of tensors, in the program and in files."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ferrule.dtype import dtypes
from ferrule.tensor.data import Array
from ferrule.tensor.exchange import Exchange


class Copying(Exchange):
    """What the modules `copy` and `pickle` ask for."""

    __slots__ = ()

    def _own_requires_grad(self) -> bool | None:
        return True if self._leaf is not None else self._requires_grad

    def __copy__(self) -> Self:
        """The same memory, as PyTorch's: a write to either is seen by both. A leaf's is a leaf."""
        tensor = self._same_handle()
        tensor._detached = self._detached
        if self._leaf is not None:
            tensor.requires_grad = True
        return tensor

    def __deepcopy__(self, memo: object) -> Self:
        """The same elements in memory of its own, on the same device, and a copy of the gradient.

        A leaf's copy is a leaf. Results of recorded operations are detached.
        """
        tensor = self._wrap(self._read().detach())
        tensor.requires_grad = self._own_requires_grad()
        if self._grad is not None:
            tensor._grad = self._grad.__deepcopy__(memo)
        return tensor

    def __reduce__(self) -> tuple[Any, ...]:
        """The elements, dtype, device and `requires_grad`; computes the tensor.

        With protocol 5 the elements can go out of band, without a copy.
        """
        array = self.numpy(copy=False)
        if self.dtype.fmt is None:
            array = array.view(np.dtype(f"u{self.dtype.itemsize}"))
        made_of = (array, self.dtype.name, self.device, self._own_requires_grad())
        return type(self)._unpickled, made_of

    @classmethod
    def _unpickled(cls, array: Array, name: str, device: str, requires_grad: bool | None) -> Self:
        return cls(array.view(dtypes.from_name(name).np), device, requires_grad=requires_grad)
