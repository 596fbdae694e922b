"""Iota: the numbers 0, 1, 2, … as values.

No op gives an element's own position. So each device keeps one small buffer with the numbers below
4096, which stays in the nearest cache. Larger numbers are made of digits in that base: position i
is `digits[i // 4096] * 4096 + digits[i % 4096]`, so that nothing large is read. Such memory is a
`table`: it belongs to no tensor, and nothing writes there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.autograd import TracedValue, note_call
from ferrule.base.helpers import prod
from ferrule.ir.buffer import Buffer
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.layout import storage_size

_BASE = 4096
_digits: dict[str, LazyBuffer] = {}
_tables: set[int] = set()
"""The serial numbers of the memory of all tables."""


def table(array: np.ndarray[Any, Any], device: str) -> LazyBuffer:
    """An array in the memory of a device that never changes and belongs to no tensor."""
    buffer = Buffer.fromCPU(device, array)
    _tables.add(buffer.serial)
    return LazyBuffer.from_buffer(buffer, array.shape)


def is_table(buffer: Buffer) -> bool:
    """True for the memory of a table."""
    return buffer.serial in _tables


def _digits_on(device: str) -> TracedValue:
    node = _digits.get(device)
    if node is None:
        node = _digits[device] = table(np.arange(_BASE, dtype=np.int32), device)
    return TracedValue(node)


def is_numbers(buffer: Buffer) -> bool:
    """True for the tables with the numbers."""
    return any(node.realized is buffer for node in _digits.values())


def position_dtype(*sizes: sint) -> DType:
    """The dtype of positions on an axis, or on several merged ones: int64 if int32 is too narrow.

    >>> position_dtype(5000), position_dtype(1 << 16, 1 << 16)
    (dtypes.int32, dtypes.int64)
    """
    return dtypes.int32 if storage_size(sizes) <= dtypes.max(dtypes.int32) else dtypes.int64


def iota(size: sint, dtype: DType, device: str) -> TracedValue:
    """0 to size - 1, of shape (size,); wide enough for any size if the dtype is.

    >>> from ferrule.ir.dtype import dtypes
    >>> iota(5000, dtypes.int32, "NUMPY").shape
    (5000,)
    """
    numbers = _numbers(size, dtype, device)
    note_call("iota", (), numbers)
    return numbers


def _numbers(size: sint, dtype: DType, device: str) -> TracedValue:
    digits = _digits_on(device)
    largest = storage_size((size,))
    if largest <= _BASE:
        return digits.cast(dtype).shrink(((0, size),))
    shape: tuple[int, ...] = (_BASE,)
    while prod(shape) < largest:
        shape = (min(_BASE, -(-largest // prod(shape))), *shape)
    numbers = None
    for axis, rows in enumerate(shape):
        # Digits stay views of memory until they have the whole shape: arithmetic on fewer elements
        # would be a kernel of its own.
        column = tuple([rows if other == axis else 1 for other in range(len(shape))])
        digit = digits.shrink(((0, rows),)).reshape(column).expand(shape).cast(dtype)
        part = digit * prod(shape[axis + 1 :])
        numbers = part if numbers is None else numbers + part
    assert numbers is not None
    return numbers.reshape((prod(shape),)).shrink(((0, size),))
