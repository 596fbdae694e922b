"""The layout of values in memory of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir.expr import Expr, is_exact, sint, unbind
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


def is_dense(shape: Sequence[sint]) -> bool:
    """True if sizes vary, and memory for them is dense."""
    varying = [size for size in shape if isinstance(size, Expr)]
    return bool(varying) and all([is_exact(size) for size in varying])


def held_shape(shape: Sequence[sint]) -> tuple[int, ...]:
    """The shape in which a value's elements lie in its memory, from its start on.

    That of the memory, unless all sizes that vary are such that memory is dense: then the present
    shape.
    """
    now = [n if isinstance(n, int) or not is_exact(n) else now_of(n) for n in shape]
    return tuple([n if isinstance(n, int) else n.max for n in now])


def now_of(size: sint) -> int:
    """The present value of a size whose variables are bound."""
    free, values = unbind(size)
    return free if isinstance(free, int) else free.infer(values)


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
