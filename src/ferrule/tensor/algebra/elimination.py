"""Eliminations of many small matrices by kernels: each lane of a vector has a matrix of its own.

LAPACK takes some hundred nanoseconds for a matrix, however small. Here the elements at one place of
all matrices are one value, and an elimination is a few hundred element-wise steps without a loop;
of more than 8 rows it is a few sums and an outer product for each column. Where a matrix has no
solution, or no factor, some elements of the result are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, TypeAlias

from ferrule.autograd import TracedValue
from ferrule.autograd.concat import concatenated
from ferrule.autograd.iota import iota
from ferrule.fusion.forms import has_kernels
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazyop import ReduceOps, UnaryOps
from ferrule.tensor.broadcast import expanded, part_of
from ferrule.tensor.math.special import log

MAX_STEPS: Final = 16
"""Rows or columns that are eliminated, one after the other."""
MAX_ROWS: Final = 8
"""Rows of a matrix that is eliminated number by number: the steps, and the time to compile them,
grow with their third power. Others are eliminated by sums and outer products."""
MIN_MATRICES: Final = 16
"""Matrices: a vector of float32. Fewer are left to LAPACK, which compiles nothing."""

Row: TypeAlias = list[TracedValue]


def is_small(x: TracedValue, axis: int = -2) -> bool:
    """True if kernels eliminate matrices of this shape: many, small, and of known sizes.

    The time grows with the size of an axis: that of rows, or of columns for reflections.
    """
    sizes = [size for size in x.shape if isinstance(size, int)]
    if len(sizes) < len(x.shape) or 0 in sizes:
        return False
    is_many = prod(sizes[:-2]) >= MIN_MATRICES
    return is_many and sizes[axis] <= MAX_STEPS and has_kernels(x.node.device)


def _lanes(x: TracedValue) -> TracedValue:
    """Matrices as (rows, columns, matrices)."""
    *batch, rows, columns = x.shape
    return x.reshape((prod(batch), rows, columns)).permute((1, 2, 0)).contiguous()


def _row(lanes: TracedValue, row: int, start: sint, stop: sint) -> TracedValue:
    """A part of one row of all matrices: (columns, matrices)."""
    part = part_of(part_of(lanes, row, row + 1, 0), start, stop, 1)
    return part.reshape(part.shape[1:])


def _element(lanes: TracedValue, row: int, column: int) -> TracedValue:
    """The elements at one place of all matrices: (1, matrices)."""
    return _row(lanes, row, column, column + 1)


def _square(lanes: TracedValue) -> list[Row]:
    size = lanes.shape[0]
    return [[_element(lanes, i, j) for j in range(size)] for i in range(size)]


def _matrices(rows: Row, batch: Sequence[sint]) -> TracedValue:
    """Rows of (columns, matrices) as (…, rows, columns)."""
    joined = concatenated(rows, 0).contiguous().permute((1, 0))
    return joined.reshape((*batch, len(rows), joined.shape[-1] // len(rows)))


def _triangulated(rows: list[Row], right: Row) -> TracedValue:
    """Elimination with partial pivoting, in place; returns the sign of the order of rows."""
    size = len(rows)
    sign = rows[0][0].full(1)
    for k in range(size):
        for i in range(k + 1, size):
            swap = rows[k][k].absolute() < rows[i][k].absolute()
            for j in range(k, size):
                upper, lower = rows[k][j], rows[i][j]
                rows[k][j], rows[i][j] = swap.where(lower, upper), swap.where(upper, lower)
            if right:
                upper, lower = right[k], right[i]
                wide = swap.expand(upper.shape)
                right[k], right[i] = wide.where(lower, upper), wide.where(upper, lower)
            sign = swap.where(-sign, sign)
        pivot = rows[k][k]
        if not right:
            pivot = _divisor(pivot)
        for i in range(k + 1, size):
            factor = rows[i][k] / pivot
            for j in range(k + 1, size):
                rows[i][j] = rows[i][j] - factor * rows[k][j]
            if right:
                right[i] = right[i] - factor.expand(right[k].shape) * right[k]
    return sign


def _pivots(x: TracedValue) -> tuple[TracedValue, Row]:
    """The sign of the order of rows of (…, n, n), and the pivots."""
    lanes = _lanes(x)
    size = lanes.shape[0]
    assert isinstance(size, int)
    if size > MAX_ROWS:
        sign, upper = _upper_rows(lanes)
        return sign, [part_of(row, 0, 1, 0) for row in upper]
    rows = _square(lanes)
    return _triangulated(rows, []), [rows[k][k] for k in range(size)]


def _upper_rows(rest: TracedValue) -> tuple[TracedValue, Row]:
    """Elimination with partial pivoting of (rows, columns, matrices), a column at a time.

    Returns the sign of the order of rows, and of each row what begins with its pivot:
    (columns, matrices).
    """
    rows, columns, count = rest.shape
    assert isinstance(rows, int)
    sign, upper = rest.full(1, (1, count)), []
    for k in range(rows):
        left = rows - k
        first = part_of(rest, 0, 1, 0)
        if left == 1:
            upper.append(first.reshape(first.shape[1:]))
            break
        size = part_of(rest, 0, 1, 1).absolute()
        peak = size.reduce(ReduceOps.MAX, (0,))
        number = iota(left, dtypes.int32, rest.node.device).reshape((left, 1, 1)).expand(size.shape)
        at = (size < peak.expand(size.shape)).where(number.full(-1), number)
        place = at.reduce(ReduceOps.MAX, (0,)).contiguous()
        chosen = number.equals(place.expand(number.shape))
        row = chosen.expand(rest.shape).where(rest, 0).sum((0,)).contiguous()
        upper.append(row.reshape(row.shape[1:]))
        sign = place.reshape((1, count)).equals(0).where(sign, -sign)
        others = part_of(rest, 1, left, 0)
        swap = part_of(chosen, 1, left, 0).expand(others.shape)
        others = swap.where(first.expand(others.shape), others)
        pivot = part_of(row, 0, 1, 1)
        if columns == rows:
            pivot = _divisor(pivot)
        head, tail = part_of(others, 0, 1, 1), part_of(others, 1, others.shape[1], 1)
        factor = (head / pivot.expand(head.shape)).contiguous()
        after = part_of(row, 1, others.shape[1], 1).expand(tail.shape)
        rest = (tail - factor.expand(tail.shape) * after).contiguous()
    return sign, upper


def _divisor(pivot: TracedValue) -> TracedValue:
    """For a determinant: below a pivot of 0 nothing is left to eliminate."""
    return _or_one(pivot, pivot.equals(0))


def determinants(x: TracedValue) -> TracedValue:
    """The determinants of (…, n, n)."""
    product, pivots = _pivots(x)
    for pivot in pivots:
        product = product * pivot
    return product.reshape(x.shape[:-2])


def log_determinants(x: TracedValue) -> TracedValue:
    """The signs of determinants, and the logarithms of their sizes, in a last axis of two."""
    sign, pivots = _pivots(x)
    total = sign.full(0)
    for pivot in pivots:
        sign = sign * (pivot < 0).where(-sign.full(1), pivot.differs(0).cast(x.dtype))
        total = total + log(pivot.absolute())
    return _matrices([sign, total], x.shape[:-2]).reshape((*x.shape[:-2], 2))


def solutions(x: TracedValue) -> TracedValue:
    """The solutions of (…, n, n + k), matrices and right sides.

    That of a singular matrix is not finite.
    """
    *batch, size, width = x.shape
    lanes = _lanes(x)
    assert isinstance(size, int)
    if size > MAX_ROWS:
        return _matrices(_substituted(_upper_rows(lanes)[1], size), batch)
    rows = _square(lanes)
    right = [_row(lanes, i, size, width) for i in range(size)]
    _triangulated(rows, right)
    for i in reversed(range(size)):
        for j in range(i + 1, size):
            right[i] = right[i] - rows[i][j].expand(right[j].shape) * right[j]
        right[i] = right[i] / rows[i][i].expand(right[i].shape)
    return _matrices(right, batch)


def _substituted(upper: Row, size: int) -> Row:
    """The rows of solutions, from rows that begin with their pivots and end with right sides."""
    solved: Row = []
    for i in reversed(range(size)):
        row, left = upper[i], size - i
        width = row.shape[0]
        result = part_of(row, left, width, 0)
        if solved:
            factors = part_of(row, 1, left, 0)
            factors = factors.reshape((left - 1, 1, row.shape[1]))
            below = concatenated([one.reshape((1, *one.shape)) for one in solved], 0)
            result = result - (factors.expand(below.shape) * below).sum((0,)).reshape(result.shape)
        pivot = part_of(row, 0, 1, 0)
        solved.insert(0, (result / pivot.expand(result.shape)).contiguous())
    return solved


def inverses(x: TracedValue) -> TracedValue:
    """The inverses of (…, n, n). That of a singular matrix is not finite."""
    size = x.shape[-1]
    place = iota(size, dtypes.int32, x.node.device)
    column = place.reshape((size, 1)).expand((size, size))
    ones = column.equals(place.reshape((1, size)).expand((size, size))).cast(x.dtype)
    return solutions(concatenated([x, expanded(ones, x.shape)], -1))


def triangle_solutions(x: TracedValue, is_upper: bool, unit: bool) -> TracedValue:
    """The solutions of (…, n, n + k), triangles and right sides."""
    *batch, size, width = x.shape
    lanes = _lanes(x)
    solved: dict[int, TracedValue] = {}
    for i in reversed(range(size)) if is_upper else range(size):
        row = _row(lanes, i, size, width)
        for j, other in solved.items():
            row = row - _element(lanes, i, j).expand(other.shape) * other
        solved[i] = row if unit else row / _element(lanes, i, i).expand(row.shape)
    return _matrices([solved[i] for i in range(size)], batch)


def cholesky_factors(x: TracedValue) -> TracedValue:
    """The lower factors of (…, n, n), whose lower triangles are read.

    If a matrix is not positive definite, the diagonal of its factor has a NaN or a 0.
    """
    size = x.shape[-1]
    lanes = _lanes(x)
    factor: list[Row] = []
    for i in range(size):
        row: Row = []
        for j in range(i + 1):
            rest = _element(lanes, i, j)
            for k in range(j):
                rest = rest - row[k] * (factor[j][k] if j < i else row[k])
            row.append(rest / factor[j][j] if j < i else rest.alu(UnaryOps.SQRT))
        factor.append(row)
    zero = factor[0][0].full(0)
    rows = [[*row, *[zero] * (size - len(row))] for row in factor]
    return _matrices([concatenated(row, 0) for row in rows], x.shape[:-2])


def householder(x: TracedValue) -> TracedValue:
    """Q and R of (…, m, n) with m >= n, one after the other in a last axis, signed as LAPACK's."""
    batch, (rows, columns) = x.shape[:-2], x.shape[-2:]
    lanes = _lanes(x)
    peak = lanes.absolute().reduce(ReduceOps.MAX, (0, 1))  # no square of a part of it overflows
    peak = _or_one(peak, peak.equals(0)).contiguous()
    rest = lanes / peak.expand(lanes.shape)
    reflections, upper = [], []
    for k in range(columns):
        vector, factor, diagonal = _reflection(part_of(rest, 0, 1, 1))
        reflections.append((vector, factor))
        row = diagonal
        if k + 1 < columns:
            rest = _reflected(part_of(rest, 1, columns - k, 1), vector, factor)
            row = concatenated([diagonal, part_of(rest, 0, 1, 0)], 1)
            rest = part_of(rest, 1, rows - k, 0)
        upper.append(row.pad(((0, 0), (k, 0), (0, 0))))
    r = concatenated(upper, 0) * peak.expand((columns, columns, peak.shape[-1]))
    q = peak.full(1, (1, 1, peak.shape[-1]))
    for k in reversed(range(columns)):
        # The rows and columns before k are those of the identity still.
        q = _bordered(q) if k + 1 < columns else q.pad(((0, rows - columns), (0, 0), (0, 0)))
        q = _reflected(q, *reflections[k])
    parts = [part.permute((2, 0, 1)).reshape((*batch, prod(part.shape[:2]))) for part in (q, r)]
    return concatenated(parts, -1)


def _or_one(value: TracedValue, is_zero: TracedValue) -> TracedValue:
    """A value to divide by."""
    return is_zero.where(value.full(1), value)


def _reflection(column: TracedValue) -> tuple[TracedValue, TracedValue, TracedValue]:
    """For columns (rows, 1, matrices): v, its factor t and d, with (1 - t v v.T) column = d e1.

    The first element of v is 1.
    """
    rows = column.shape[0]
    top = part_of(column, 0, 1, 0)
    if rows == 1:
        return top.full(1), top.full(0), top
    tail = part_of(column, 1, rows, 0)
    square = (tail * tail).sum((0,))
    nothing = square.equals(0)
    root = (top * top + square).alu(UnaryOps.SQRT)
    diagonal = nothing.where(top, (top < 0).where(root, -root)).contiguous()
    factor = (diagonal - top) / _or_one(diagonal, nothing)
    below = tail / _or_one(top - diagonal, nothing).expand(tail.shape)
    return concatenated([top.full(1), below], 0).contiguous(), factor.contiguous(), diagonal


def _reflected(x: TracedValue, vector: TracedValue, factor: TracedValue) -> TracedValue:
    """The matrices less `factor` times the vector times its product with them."""
    wide = vector.expand(x.shape)
    along = (wide * x).sum((0,))
    share = (along * factor.expand(along.shape)).contiguous()
    return (x - wide * share.expand(x.shape)).contiguous()


def _bordered(q: TracedValue) -> TracedValue:
    """Matrices with a row and a column of the identity in front."""
    rows, columns, count = q.shape
    corner = q.full(1, (1, 1, count)).pad(((0, rows), (0, columns), (0, 0)))
    return q.pad(((1, 0), (1, 0), (0, 0))) + corner
