"""The layout of values in memory of their own, and the split of a long reduce into two."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ferrule.expr import is_exact, sint, unbind
from ferrule.helpers import prod
from ferrule.shape.view import Shape, View, prod_sint, row_major


def storage_shape(shape: Sequence[sint]) -> tuple[int, ...]:
    """The shape of the memory behind a value of `shape`: symbolic sizes take their upper bounds."""
    return tuple([size if isinstance(size, int) else size.max for size in shape])


def storage_size(shape: Sequence[sint]) -> int:
    """The number of elements of memory that a value of `shape` takes."""
    size = 1
    for length in shape:
        size *= length if isinstance(length, int) else length.max
    return size


def storage_view(shape: Sequence[sint]) -> View:
    """The places of a value's elements in its own memory."""
    sizes = [n if isinstance(n, int) or is_exact(n) else n.max for n in shape]
    return View.create(shape, row_major(sizes))


def memory_size(shape: Sequence[sint]) -> sint:
    """The number of elements of a buffer that holds one value alone.

    It is symbolic if the sizes are the scheduler's variables.
    """
    sizes = [n if isinstance(n, int) or is_exact(n) else n.max for n in shape]
    return unbind(prod_sint(sizes))[0]


FEW_RESULTS: Final = 32
"""Results; fewer cannot keep the threads busy. Not measured."""
MAX_PARTS: Final = 16 * FEW_RESULTS
LONG_REDUCE: Final = 1 << 17
"""Elements for each result from which a second kernel is worth its time. Not measured by itself."""
TALL_RESULTS: Final = 1024
TALL_ROWS: Final = 1024
TALL_SIZE: Final = 1 << 20
"""The columns at most, and the rows and elements at least, of a tall reduce in parts.

A thread that reads whole rows gets two to three times as much from memory as one that reads its
share of the columns of all rows.
"""
PARTIAL_RESULTS: Final = 1 << 14
"""Results of all parts together: so many threads, with several rows each, fill a GPU."""
MIN_PART_ROWS: Final = 256
"""Rows of one part; the second kernel then has little to do."""


@lru_cache(maxsize=4096)
def parts_of_long_reduce(shape: Shape, chosen: frozenset[int]) -> tuple[int, int] | None:
    """The axis to split of a reduce of many elements to few results, and the number of parts.

    If the number does not divide the axis, the rest is fewer elements than there are parts. It
    depends on the shape alone, so that the bits do not depend on the number of threads. A single
    axis has as many parts whether they divide it or not: so the number is the same for similar
    lengths, and for any length up to a bound. None if a split does not help.
    """
    sizes = storage_shape(shape)
    results = prod(n for axis, n in enumerate(sizes) if axis not in chosen)
    combined = prod(sizes[axis] for axis in chosen)
    if results >= FEW_RESULTS or combined < LONG_REDUCE:
        return None
    axis = max(chosen, key=lambda a: sizes[a])
    size = sizes[axis]
    if size == combined:
        parts = 2 * FEW_RESULTS
        while size // parts >= LONG_REDUCE and 2 * parts < MAX_PARTS:
            parts *= 2
        return axis, parts
    if _known(shape) is None:
        return None
    fit = [parts for parts in range(8, MAX_PARTS) if size % parts == 0]
    enough = [
        parts for parts in range(2 * FEW_RESULTS, MAX_PARTS) if combined // parts < LONG_REDUCE
    ]
    if fit:
        return axis, next((parts for parts in fit if parts in enough), fit[-1])
    parts = enough[0] if enough else MAX_PARTS - 1
    return (axis, parts) if parts <= size // parts else None


@lru_cache(maxsize=4096)
def parts_of_tall_reduce(shape: Shape, chosen: frozenset[int]) -> tuple[int, int] | None:
    """The axis to split of a reduce of many rows to one, and the number of parts; None if none
    helps.
    """
    sizes = _known(shape)
    if sizes is None or any(n > 1 for axis, n in enumerate(sizes[:-1]) if axis not in chosen):
        return None
    results, rows = sizes[-1], prod(sizes[:-1])
    if not FEW_RESULTS <= results <= TALL_RESULTS or rows < TALL_ROWS:
        return None
    if len(sizes) - 1 in chosen or rows * results < TALL_SIZE:
        return None
    axis = max(chosen, key=lambda a: sizes[a])
    wanted = max(FEW_RESULTS, min(PARTIAL_RESULTS // results, rows // MIN_PART_ROWS))
    even = 1 << (wanted.bit_length() - 1)  # the same for similar numbers of rows
    if even <= sizes[axis] // even:
        return axis, even
    fit = [parts for parts in range(8, 4 * wanted) if sizes[axis] % parts == 0]
    if fit:
        return axis, min(fit, key=lambda parts: abs(parts - wanted))
    return (axis, wanted) if wanted <= sizes[axis] // wanted else None


def _known(shape: Shape) -> list[int] | None:
    sizes = [n for n in shape if isinstance(n, int)]
    return sizes if len(sizes) == len(shape) else None
