"""QR, singular values, eigenvalues, the exponential, with their reverse rules.

The factors of one matrix come from one call of NumPy, and lie one after the other in a last axis.
The rules hold where the factors are differentiable: singular values and eigenvalues that differ, a
matrix R without zeros on its diagonal. Signs of vectors, and the basis of a null space, are free;
the gradient is that of functions which do not depend on the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial, prod

import numpy as np

from ferrule.autograd import Gradients, GradNode, Rule, Shape, TracedValue, record
from ferrule.engine import lapack
from ferrule.engine.host import Array, on_host
from ferrule.ir.lazyop import BinaryOps
from ferrule.tensor.algebra.elimination import householder, is_small
from ferrule.tensor.algebra.matrices import (
    diagonal_matrix,
    lower,
    matrix_product,
    product,
    transposed,
)
from ferrule.tensor.algebra.solving import explained, finite, solve_triangular
from ferrule.tensor.algebra.templates import by_kernels
from ferrule.tensor.broadcast import part_of

_NOT_FINITE = "look for NaN and infinity"


# *** several matrices in one ***


def _packed(*parts: Array) -> Array:
    """Arrays of any shapes behind their batch axes, one after the other in one axis."""
    batch = parts[0].shape[:-2]
    return np.concatenate([part.reshape((*batch, -1)) for part in parts], -1)


def _parts(value: TracedValue, shapes: Sequence[Sequence[int]]) -> list[TracedValue]:
    """The parts of packed values."""
    batch = value.shape[:-1]
    parts = []
    start = 0
    for shape in shapes:
        stop = start + prod(shape)
        if stop == start:
            parts.append(value.full(0, (*batch, *shape)))
        else:
            part = part_of(value, start, stop)
            parts.append(part.reshape((*batch, *shape)))
        start = stop
    return parts


def _sides(x: TracedValue) -> tuple[Shape, int, int]:
    *batch, rows, columns = x.shape
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return tuple(batch), rows, columns


def _along_columns(numbers: TracedValue, like: TracedValue) -> TracedValue:
    """One number for each column of some matrices."""
    row = numbers.reshape((*numbers.shape[:-1], 1, numbers.shape[-1]))
    return row.expand(like.shape)


def _scaled(matrix: TracedValue, numbers: TracedValue) -> TracedValue:
    """The columns of a matrix times one number each."""
    return matrix * _along_columns(numbers, matrix)


def _ratio(value: TracedValue, divisor: TracedValue) -> TracedValue:
    """The quotient; 0 by 0 is 0, because nothing depends on such a pair."""
    neither = value.equals(0).alu(BinaryOps.AND, divisor.equals(0))
    quotient = value / neither.where(divisor.full(1), divisor)
    return neither.where(value.full(0), quotient)


def _without(grad: TracedValue, basis: TracedValue) -> TracedValue:
    """The part of the columns that is not in the span of an orthonormal basis."""
    return grad - product(basis, transposed(basis), grad)


def _gradient_from_complement(
    grad: TracedValue, rest: TracedValue, basis: TracedValue
) -> TracedValue:
    """The gradient of a basis, from that of its complement, which stays orthogonal to it."""
    return -product(rest, transposed(grad), basis)


# *** QR ***


def _qr(a: Array, complete: bool) -> Array:
    size = min(a.shape[-2:])
    with explained("qr", _NOT_FINITE):
        q, r = lapack.qr(a, complete)
    return _packed(q[..., :size], r[..., :size, :], q[..., size:])


def qr(x: TracedValue, complete: bool) -> tuple[TracedValue, TracedValue]:
    """Q and R with Q R = x: (…, m, k) and (…, k, n), k the smaller of m and n; m if `complete`.

    For a wide matrix, R's last columns are Q.T times those of x.
    """
    batch, rows, columns = _sides(x)
    if rows < columns:
        q, r = qr(part_of(x, 0, rows), False)
        rest = matrix_product(transposed(q), part_of(x, rows, columns))
        none = ((0, 0),) * (len(batch) + 1)
        return q, r.pad((*none, (0, columns - rows))) + rest.pad((*none, (rows, 0)))
    more = rows - columns if complete else 0
    shapes = ((rows, columns), (columns, columns), (rows, more))
    total = sum(map(prod, shapes))
    if is_small(x, -1) and not more:
        node = by_kernels(x.node, householder)
    else:
        node = on_host(_qr, [x], (*batch, total), x.dtype, complete).node
    q, r, rest = _parts(record("qr", _QR, (x,), node, shapes), shapes)
    if not more:
        return q, r
    none = ((0, 0),) * (len(batch) + 1)
    full = q.pad((*none, (0, more))) + rest.pad((*none, (columns, 0)))
    return full, r.pad((*none[1:], (0, more), (0, 0)))


def upper_factor(x: TracedValue) -> TracedValue:
    """R of `qr`. Q, which only its gradient needs, takes as long."""
    batch, rows, columns = _sides(x)
    if x.edge is not None or is_small(x, -1):
        return qr(x, False)[1]
    shape = (*batch, min(rows, columns), columns)
    return TracedValue(on_host(_upper_factor, [x], shape, x.dtype).node)


def _upper_factor(a: Array) -> Array:
    with explained("qr", _NOT_FINITE):
        return lapack.upper_factor(a)


def _reverse_qr(grad: TracedValue, entry: GradNode) -> Gradients:
    """Walter & Lehmann (2013): (grad_Q + Q M) R**-T, M the lower part of its argument, mirrored."""
    q, r, rest = _parts(entry.result(), entry.arg)
    to_q, to_r, to_rest = _parts(grad, entry.arg)
    if rest.shape[-1] != 0:
        to_q = to_q + _gradient_from_complement(to_rest, rest, q)
    inner = matrix_product(r, transposed(to_r)) - matrix_product(transposed(to_q), q)
    mirrored = lower(inner) + transposed(lower(inner, -1))
    slope = to_q + matrix_product(q, mirrored)
    return (transposed(solve_triangular(r, transposed(slope), True, False, "qr")),)


_QR = Rule(_reverse_qr, output=True)


# *** singular values ***


def _svd(a: Array, full: bool) -> Array:
    size = min(a.shape[-2:])
    with explained("svd", _NOT_FINITE):
        u, s, vh = lapack.svd(finite(a), full)
    return _packed(u[..., :size], s[..., None], vh[..., :size, :], u[..., size:], vh[..., size:, :])


def _packed_svd(x: TracedValue, full: bool) -> tuple[TracedValue, tuple[tuple[int, ...], ...]]:
    batch, rows, columns = _sides(x)
    size = min(rows, columns)
    more = (rows - size, columns - size) if full else (0, 0)
    shapes = ((rows, size), (size,), (size, columns), (rows, more[0]), (more[1], columns))
    total = sum(map(prod, shapes))
    node = on_host(_svd, [x], (*batch, total), x.dtype, full).node
    return record("svd", _SVD, (x,), node, shapes), shapes


def svd(x: TracedValue, full: bool) -> tuple[TracedValue, TracedValue, TracedValue]:
    """U, S and V.T with U diag(S) V.T = x, S in decreasing order.

    U has as many columns, and V.T as many rows, as S, unless `full`: then they are square.
    """
    packed, shapes = _packed_svd(x, full)
    u, s, vh, u_rest, vh_rest = _parts(packed, shapes)
    none = ((0, 0),) * (len(x.shape) - 2)
    more, wide = u_rest.shape[-1], vh_rest.shape[-2]
    if more != 0:
        size = u.shape[-1]
        u = u.pad((*none, (0, 0), (0, more))) + u_rest.pad((*none, (0, 0), (size, 0)))
    if wide != 0:
        size = vh.shape[-2]
        vh = vh.pad((*none, (0, wide), (0, 0))) + vh_rest.pad((*none, (size, 0), (0, 0)))
    return u, s, vh


def _reverse_svd(grad: TracedValue, entry: GradNode) -> Gradients:
    """Townsend (2016), "Differentiating the singular value decomposition"."""
    u, s, vh, u_rest, vh_rest = _parts(entry.result(), entry.arg)
    to_u, to_s, to_vh, to_u_rest, to_vh_rest = _parts(grad, entry.arg)
    v, to_v = transposed(vh), transposed(to_vh)
    if u_rest.shape[-1] != 0:
        to_u = to_u + _gradient_from_complement(to_u_rest, u_rest, u)
    if vh_rest.shape[-2] != 0:
        to_v = to_v + _gradient_from_complement(transposed(to_vh_rest), transposed(vh_rest), v)
    inner = diagonal_matrix(to_s)
    inner = inner + _scaled(_turned(u, to_u, s), s)
    inner = inner + transposed(_scaled(transposed(_turned(v, to_v, s)), s))
    slope = product(u, inner, vh)
    size = s.shape[-1]
    if u.shape[-2] != size:
        outside = _without(to_u, u)
        slope = slope + matrix_product(_ratio(outside, _along_columns(s, outside)), vh)
    if v.shape[-2] != size:
        outside = _without(to_v, v)
        outside = _ratio(outside, _along_columns(s, outside))
        slope = slope + matrix_product(u, transposed(outside))
    return (slope,)


def _turned(basis: TracedValue, grad: TracedValue, s: TracedValue) -> TracedValue:
    """The antisymmetric part of basis.T grad, over the differences of the squares of s."""
    inner = matrix_product(transposed(basis), grad)
    later, earlier = _pairs(s)
    return _ratio(inner - transposed(inner), (later - earlier) * (later + earlier))


def _pairs(s: TracedValue) -> tuple[TracedValue, TracedValue]:
    """s[j] and s[i] for each i and j."""
    wide = (*s.shape, s.shape[-1])
    column = s.reshape((*s.shape, 1)).expand(wide)
    return transposed(column), column


def _svdvals(a: Array) -> Array:
    with explained("svdvals", _NOT_FINITE):
        return lapack.singular_values(finite(a))


def singular_values(x: TracedValue) -> TracedValue:
    """The singular values alone, whose gradient does not need them to differ.

    Vectors, which only that gradient needs, take most of the time of a decomposition.
    """
    if x.edge is None:
        batch, rows, columns = _sides(x)
        return on_host(_svdvals, [x], (*batch, min(rows, columns)), x.dtype)
    packed, shapes = _packed_svd(x, False)
    values = _parts(packed.detach(), shapes)[1]
    return record("svdvals", _SVDVALS, (x, packed), values.node, shapes)


def _reverse_svdvals(grad: TracedValue, entry: GradNode) -> Gradients:
    u, _, vh, *_ = _parts(entry.saved[0], entry.arg)
    return matrix_product(_scaled(u, grad), vh), None


_SVD = Rule(_reverse_svd, output=True)
_SVDVALS = Rule(_reverse_svdvals, inputs=(1,))


# *** eigenvalues of symmetric matrices ***


def _eigh(a: Array, is_upper: bool) -> Array:
    with explained("eigh", _NOT_FINITE):
        values, vectors = lapack.eigh(a, is_upper)
    return _packed(values[..., None], vectors)


def _packed_eigh(x: TracedValue, is_upper: bool) -> tuple[TracedValue, tuple[tuple[int, ...], ...]]:
    batch, size, _ = _sides(x)
    shapes = ((size,), (size, size))
    node = on_host(_eigh, [x], (*batch, size + size * size), x.dtype, is_upper).node
    return record("eigh", _EIGH, (x,), node, shapes), shapes


def eigh(x: TracedValue, is_upper: bool) -> tuple[TracedValue, TracedValue]:
    """The eigenvalues, increasing, and the eigenvectors as columns; one triangle is read."""
    values, vectors = _parts(*_packed_eigh(x, is_upper))
    return values, vectors


def _reverse_eigh(grad: TracedValue, entry: GradNode) -> Gradients:
    """V (diag(grad_values) + V.T grad_vectors / differences) V.T (Giles, 2008).

    Of V.T grad_vectors the antisymmetric part counts for symmetric changes.
    """
    values, vectors = _parts(entry.result(), entry.arg)
    to_values, to_vectors = _parts(grad, entry.arg)
    inner = matrix_product(transposed(vectors), to_vectors)
    later, earlier = _pairs(values)
    inner = _ratio((inner - transposed(inner)) * 0.5, later - earlier)
    inner = inner + diagonal_matrix(to_values)
    return (product(vectors, inner, transposed(vectors)),)


def _eigvalsh(a: Array, is_upper: bool) -> Array:
    with explained("eigvalsh", _NOT_FINITE):
        return lapack.eigenvalues(a, is_upper)


def eigenvalues(x: TracedValue, is_upper: bool) -> TracedValue:
    """The eigenvalues alone, whose gradient does not need them to differ."""
    if x.edge is None:
        batch, size, _ = _sides(x)
        return on_host(_eigvalsh, [x], (*batch, size), x.dtype, is_upper)
    packed, shapes = _packed_eigh(x, is_upper)
    values = _parts(packed.detach(), shapes)[0]
    return record("eigvalsh", _EIGVALSH, (x, packed), values.node, shapes)


def _reverse_eigvalsh(grad: TracedValue, entry: GradNode) -> Gradients:
    _, vectors = _parts(entry.saved[0], entry.arg)
    return matrix_product(_scaled(vectors, grad), transposed(vectors)), None


_EIGH = Rule(_reverse_eigh, output=True)
_EIGVALSH = Rule(_reverse_eigvalsh, inputs=(1,))


# *** the exponential ***


_DEGREE = 13
_PADE_NORM_LIMIT = (
    5.371920351148152  # the 1-norm up to which Padé's quotient is exact to double precision
)
_PADE = tuple(
    factorial(2 * _DEGREE - k) // (factorial(_DEGREE - k) * factorial(k)) * 1.0
    for k in range(_DEGREE + 1)
)


def _matrix_exp(a: Array) -> Array:
    """Scaling and squaring of Padé's quotient of degree 13 (Higham, 2005), in double precision."""
    wide = a.astype(np.float64)
    norm = np.abs(wide).sum(-2).max(-1)
    with np.errstate(all="ignore"):
        steps = np.ceil(np.log2(np.where(np.isfinite(norm), norm, 0) / _PADE_NORM_LIMIT))
        steps = np.maximum(np.where(np.isfinite(steps), steps, 0), 0).astype(np.int64)
        result = _pade(np.ldexp(wide, -steps[..., None, None]))
        for step in range(int(steps.max(initial=0))):
            result = np.where((step < steps)[..., None, None], result @ result, result)
    return result


def _pade(a: Array) -> Array:
    square = a @ a
    even, odd = np.zeros_like(a), np.zeros_like(a)
    power = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    for k in range(0, _DEGREE, 2):
        even, odd = even + _PADE[k] * power, odd + _PADE[k + 1] * power
        power = power @ square
    odd = a @ odd
    with explained("matrix_exp", _NOT_FINITE):
        return lapack.solve(even - odd, even + odd)


def matrix_exp(x: TracedValue) -> TracedValue:
    """e to the power of each matrix."""
    node = on_host(_matrix_exp, [x], x.shape, x.dtype).node
    return record("matrix_exp", _MATRIX_EXP, (x,), node, None)


def _reverse_matrix_exp(grad: TracedValue, entry: GradNode) -> Gradients:
    """The corner of the exponential of ((x.T, grad), (0, x.T)): Mathias (1996)."""
    turned = transposed(entry.saved[0])
    batch, size, _ = _sides(turned)
    none = ((0, 0),) * len(batch)
    blocks = turned.pad((*none, (0, size), (0, size))) + turned.pad((*none, (size, 0), (size, 0)))
    blocks = blocks + grad.pad((*none, (0, size), (size, 0)))
    every = [(0, n) for n in batch]
    return (matrix_exp(blocks).shrink([*every, (0, size), (size, 2 * size)]),)


_MATRIX_EXP = Rule(_reverse_matrix_exp, inputs=(0,))
