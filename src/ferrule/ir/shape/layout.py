"""The layout of values in memory of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir.expr import is_exact, sint, unbind
from ferrule.ir.shape.view import View, prod_sint, row_major


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
