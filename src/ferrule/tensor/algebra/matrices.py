"""Matrices as values, in the last two axes: products, transposes, diagonals, triangles."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, final

from ferrule.autograd import Shape, TracedValue
from ferrule.autograd.iota import iota, position_dtype
from ferrule.ir.dtype import promote
from ferrule.ir.expr import sint
from ferrule.tensor.broadcast import broadcast_shape, expanded, known_size
from ferrule.tensor.reduce.rowwise import accumulating


def matrix_product(a: TracedValue, b: TracedValue) -> TracedValue:
    """(…, m, k) times (…, k, n), of one dtype; the leading axes broadcast."""
    return wide_product(a, b).cast(a.dtype)


def wide_product(a: TracedValue, b: TracedValue) -> TracedValue:
    """The same in the dtype that it is added up in: float32 for narrower floats."""
    forms = _forms(a.node.shape, b.node.shape)
    first = accumulating(a).reshape(forms.first).expand(forms.terms)
    second = accumulating(b).permute(forms.order).reshape(forms.second).expand(forms.terms)
    return (first * second).sum((len(forms.terms) - 1,)).reshape(forms.terms[:-1])


@final
class _Forms(NamedTuple):
    """The shapes in a product of matrices."""

    first: Shape
    second: Shape
    """The operands, the second one transposed, with axes of size 1 to repeat along."""
    order: tuple[int, ...]
    """The axes of the second operand, transposed."""
    terms: Shape
    """(…, rows, columns, terms of a sum)."""


# Programs multiply matrices of the same shapes again and again, so answers are kept.
@lru_cache(maxsize=4096)
def _forms(a: Shape, b: Shape) -> _Forms:
    batch = broadcast_shape((a[:-2], b[:-2]), "matmul")
    rows, depth, columns = a[-2], a[-1], b[-1]
    missing_a, missing_b = [(1,) * (len(batch) + 2 - len(shape)) for shape in (a, b)]
    rank = len(b)
    return _Forms(
        (*missing_a, *a[:-2], rows, 1, depth),
        (*missing_b, *b[:-2], 1, columns, b[-2]),
        (*range(rank - 2), rank - 1, rank - 2),
        (*batch, rows, columns, depth),
    )


def transposed(x: TracedValue) -> TracedValue:
    """The matrices transposed."""
    rank = len(x.shape)
    return x.permute([*range(rank - 2), rank - 1, rank - 2])


def product(first: TracedValue, *others: TracedValue) -> TracedValue:
    """The product of several matrices, from left to right."""
    for other in others:
        first = matrix_product(first, other)
    return first


# *** diagonals: in rows that are one element longer than they are many, each is a column ***


def diagonal_part(value: TracedValue, offset: int = 0) -> TracedValue:
    """The diagonal `offset` above the main one (below, if negative) of the last two axes, as one.

    Raises `ShapeError` for symbolic sizes.
    """
    rows, columns = [known_size(size, "diagonal") for size in value.shape[-2:]]
    batch = value.shape[:-2]
    top, left = max(-offset, 0), max(offset, 0)
    size = max(min(rows - top, columns - left), 0)
    top, left = min(top, rows - size), min(left, columns - size)
    kept: list[tuple[sint, sint]] = [(0, n) for n in batch]
    none = ((0, 0),) * len(batch)
    square = value.shrink([*kept, (top, top + size), (left, left + size)])
    flat = square.reshape((*batch, size * size)).pad((*none, (0, size)))
    table = flat.reshape((*batch, size, size + 1))
    return table.shrink([*kept, (0, size), (0, 1)]).reshape((*batch, size))


def diagonal_matrix(value: TracedValue, offset: int = 0) -> TracedValue:
    """Square matrices with the last axis on a diagonal, and zeros elsewhere.

    Raises `ShapeError` for a symbolic size.
    """
    batch, size = value.shape[:-1], known_size(value.shape[-1], "diagonal")
    none = ((0, 0),) * len(batch)
    kept: list[tuple[sint, sint]] = [(0, n) for n in batch]
    table = value.reshape((*batch, size, 1)).pad((*none, (0, 0), (0, size)))
    flat = table.reshape((*batch, size * (size + 1))).shrink([*kept, (0, size * size)])
    square = flat.reshape((*batch, size, size))
    top, left = max(-offset, 0), max(offset, 0)
    return square.pad((*none, (top, left), (left, top)))


def identity(like: TracedValue, size: int) -> TracedValue:
    """Identity matrices with a value's dtype, device and leading axes."""
    return diagonal_matrix(like.full(1, (*like.shape[:-2], size)))


# *** triangles ***


def above(shape: Shape, diagonal: int, device: str) -> TracedValue:
    """Where the column of the last two axes is at least the row + diagonal."""
    rows, columns = shape[-2:]
    dtype = promote(position_dtype(rows), position_dtype(columns))
    row = expanded(iota(rows, dtype, device), (rows, columns), 0)
    column = expanded(iota(columns, dtype, device), (rows, columns))
    return expanded(row + (diagonal - 1) < column, shape)


def upper(value: TracedValue, diagonal: int = 0) -> TracedValue:
    """Zeros below a diagonal."""
    if 0 in value.shape:
        return value
    return above(value.shape, diagonal, value.node.device).where(value, 0)


def lower(value: TracedValue, diagonal: int = 0) -> TracedValue:
    """Zeros above a diagonal."""
    if 0 in value.shape:
        return value
    zero = value.full(0)
    return above(value.shape, diagonal + 1, value.node.device).where(zero, value)
