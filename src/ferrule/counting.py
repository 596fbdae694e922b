"""The numbers 0, 1, 2, … as values.

No op gives an element's own position, so each device keeps one small buffer with the numbers below
4096, which stays in the nearest cache. Larger numbers are put together from digits in that base:
position i is `digits[i // 4096] * 4096 + digits[i % 4096]`, and nothing large is read.
"""

from __future__ import annotations

import numpy as np

from ferrule.buffer import Buffer
from ferrule.dtype import DType, dtypes
from ferrule.expr import sint
from ferrule.gradient import Value
from ferrule.lazy import LazyBuffer
from ferrule.shape.layout import storage_size

_BASE = 4096
_digits: dict[str, LazyBuffer] = {}


def _digits_on(device: str) -> Value:
    node = _digits.get(device)
    if node is None:
        numbers = np.arange(_BASE, dtype=np.int32)
        node = LazyBuffer.from_buffer(Buffer.fromCPU(device, numbers), (_BASE,))
        _digits[device] = node
    return Value(node)


def is_numbers(buffer: Buffer) -> bool:
    """Whether a buffer holds the numbers: it never changes and is never replaced."""
    return any(node.realized is buffer for node in _digits.values())


def place_dtype(*sizes: sint) -> DType:
    """The dtype of places on an axis, or on several made one: int64 where int32 is too narrow.

    >>> place_dtype(5000), place_dtype(1 << 16, 1 << 16)
    (dtypes.int32, dtypes.int64)
    """
    return dtypes.int32 if storage_size(sizes) <= dtypes.max(dtypes.int32) else dtypes.int64


def count_to(size: sint, dtype: DType, device: str) -> Value:
    """0 to size - 1, of shape (size,); wide enough for any size if the dtype is.

    >>> from ferrule.dtype import dtypes
    >>> count_to(5000, dtypes.int32, "NUMPY").shape
    (5000,)
    """
    largest = storage_size((size,))
    digits = _digits_on(device).cast(dtype)
    numbers = digits
    reach = _BASE
    while reach < largest:
        rows = min(_BASE, -(-largest // reach))
        higher = digits.shrink(((0, rows),)) * reach
        numbers = numbers.reshape((1, reach)).expand((rows, reach))
        numbers = numbers + higher.reshape((rows, 1)).expand((rows, reach))
        numbers = numbers.reshape((rows * reach,))
        reach *= _BASE
    return numbers.shrink(((0, size),))
