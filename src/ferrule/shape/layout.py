"""How values are laid out in memory of their own, and how a long reduce is split into two."""

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
    """How many elements of memory a value of `shape` takes."""
    size = 1
    for length in shape:
        size *= length if isinstance(length, int) else length.max
    return size


def storage_view(shape: Sequence[sint]) -> View:
    """Where the elements of a value of `shape` are in its own memory."""
    sizes = [n if isinstance(n, int) or is_exact(n) else n.max for n in shape]
    return View.create(shape, row_major(sizes))


def memory_size(shape: Sequence[sint]) -> sint:
    """How many elements of memory a value needs that is alone there; symbolic if the scheduler's
    variables say it.
    """
    sizes = [n if isinstance(n, int) or is_exact(n) else n.max for n in shape]
    return unbind(prod_sint(sizes))[0]


FEW_RESULTS: Final = 32
"""Fewer than this cannot keep the threads busy."""
MOST_PARTS: Final = 16 * FEW_RESULTS
LONG_REDUCE: Final = 1 << 17
"""Elements for each result from which it is worth a second kernel."""
TALL_RESULTS: Final = 1024
TALL_ROWS: Final = 1024
TALL_SIZE: Final = 1 << 20
"""Columns at most, and rows and elements at least, of what is reduced down its columns in parts:
a thread that reads whole rows gets two to three times as much from memory as one that reads its
share of the columns of all rows."""
PARTIAL_RESULTS: Final = 1 << 14
"""Of all parts, together: so many threads, with several rows each, fill a GPU."""
LEAST_ROWS: Final = 256
"""Of one part: the second kernel has little to do then."""


@lru_cache(maxsize=4096)
def parts_of_long_reduce(shape: Shape, chosen: frozenset[int]) -> tuple[int, int] | None:
    """For a reduce of many elements to few results: an axis, and into how many parts to split it.

    What is left of it, if they do not divide it, is fewer elements than there are parts. It depends
    on the shape alone, so that the bits do not depend on the machine's threads. A single axis has
    as many parts whether they divide it or not: so it is the same for lengths that are near one
    another, and for any length up to a bound.
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
        while size // parts >= LONG_REDUCE and 2 * parts < MOST_PARTS:
            parts *= 2
        return axis, parts
    if _known(shape) is None:
        return None
    fit = [parts for parts in range(8, MOST_PARTS) if size % parts == 0]
    enough = [
        parts for parts in range(2 * FEW_RESULTS, MOST_PARTS) if combined // parts < LONG_REDUCE
    ]
    if fit:
        return axis, next((parts for parts in fit if parts in enough), fit[-1])
    parts = enough[0] if enough else MOST_PARTS - 1
    return (axis, parts) if parts <= size // parts else None


@lru_cache(maxsize=4096)
def parts_of_tall_reduce(shape: Shape, chosen: frozenset[int]) -> tuple[int, int] | None:
    """For a reduce of many rows to one: their axis, and into how many parts to split it."""
    sizes = _known(shape)
    if sizes is None or any(n > 1 for axis, n in enumerate(sizes[:-1]) if axis not in chosen):
        return None
    results, rows = sizes[-1], prod(sizes[:-1])
    if not FEW_RESULTS <= results <= TALL_RESULTS or rows < TALL_ROWS:
        return None
    if len(sizes) - 1 in chosen or rows * results < TALL_SIZE:
        return None
    axis = max(chosen, key=lambda a: sizes[a])
    wanted = max(FEW_RESULTS, min(PARTIAL_RESULTS // results, rows // LEAST_ROWS))
    even = 1 << (wanted.bit_length() - 1)  # the same for numbers of rows that are near one another
    if even <= sizes[axis] // even:
        return axis, even
    fit = [parts for parts in range(8, 4 * wanted) if sizes[axis] % parts == 0]
    if fit:
        return axis, min(fit, key=lambda parts: abs(parts - wanted))
    return (axis, wanted) if wanted <= sizes[axis] // wanted else None


def _known(shape: Shape) -> list[int] | None:
    sizes = [n for n in shape if isinstance(n, int)]
    return sizes if len(sizes) == len(shape) else None
