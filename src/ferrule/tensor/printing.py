"""Texts of tensors: the values of those that are computed, in NumPy's layout.

Nothing is computed, and no state changes: a debugger may ask for them at any time.
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from ferrule.ir.buffer import read_guard
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.storage import turn
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import Array


def shown(self: Tensor) -> str:
    """The values as NumPy shows them, if they are computed; else what computes them.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0, 2.5], [3.0, 4.0]])
    Tensor([[1. , 2.5],
            [3. , 4. ]], dtype=dtypes.float32, device='CPU')
    >>> Tensor([1.0]) + 1
    <Tensor (1,) dtypes.float32 on CPU, lazy ADD>
    """
    requires_grad = ", requires_grad=True" if _requires_grad(self) else ""
    with turn:  # another thread's replay may be writing there
        values = _values(self)
        if values is not None:
            text = np.array2string(values, separator=", ", prefix="Tensor(")
            is_whole = 0 < values.size <= np.get_printoptions()["threshold"]
            shape = "" if is_whole else f", shape={self._shape}"
            ending = f"dtype={self.dtype}, device={self.device!r}{requires_grad}"
            return f"Tensor({text}{shape}, {ending})"
    node = self._cell.value.node
    made_by = node.op if self._move is None else self._move[0]
    state = "realized" if node.realized is not None else f"lazy {getattr(made_by, 'name', made_by)}"
    return f"<Tensor {self._shape} {self.dtype} on {self.device}, {state}{requires_grad}>"


def html(self: Tensor) -> str:
    """The text for notebooks, in a font whose digits are below each other.

    >>> from ferrule import Tensor
    >>> Tensor([1.0])._repr_html_()
    "<pre>Tensor([1.], dtype=dtypes.float32, device='CPU')</pre>"
    """
    return f"<pre>{escape(shown(self), quote=False)}</pre>"


def _requires_grad(self: Tensor) -> bool:
    """`self.requires_grad`, without taking the value of memory that a write may be about to use."""
    if self._leaf is not None or self._parent is not None:
        return bool(self.requires_grad)
    is_recorded = not self._detached and self._cell.value.edge is not None
    return bool(self._requires_grad) or is_recorded


def _values(self: Tensor) -> Array | None:
    """The elements, if they are in memory or a constant, and may be read now; else None."""
    shape = tuple([size for size in self._shape if isinstance(size, int)])
    if len(shape) < len(self._shape):
        return None
    node = self._cell.value.node
    known = node.base_const()
    if known is not None and not hasattr(known, "bounds"):
        return np.broadcast_to(np.asarray(known, node.dtype.np), shape)
    if read_guard.get() is not None:
        return None
    memory = node.realized
    if memory is None:
        return None
    if 0 in shape:
        return np.empty(shape, node.dtype.np)
    view = self._layout()
    flat = memory.toCPU()[: storage_size(node.shape)][view.offset :]
    # As integers: strides are NumPy's to take, and it does not know all dtypes.
    size = node.dtype.itemsize
    steps: Any = [stride * size for stride in view.strides]
    integers: Array = flat.view(f"u{size}")
    part: Array = np.lib.stride_tricks.as_strided(integers, shape, steps, writeable=False)
    elements: Array = part.view(node.dtype.np)
    return elements
