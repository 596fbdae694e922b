"""Determinants, inverses and solutions of linear systems, with their reverse rules.

The functions take values of float32 or float64 with matrices in the last two axes, whose sizes are
known. Kernels compute many small ones (`elimination`), NumPy others, on the host, when they are
realised; what has no solution raises a `LinalgError`. The
rules are products and further solutions, so that they have derivatives themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ferrule.autograd import Gradients, GradNode, Rule, Shape, TracedValue, record
from ferrule.autograd.concat import concatenated
from ferrule.engine import lapack
from ferrule.engine.blas import solve_triangles
from ferrule.engine.host import Array, on_host
from ferrule.ir.lazy import LazyBuffer
from ferrule.tensor.algebra.elimination import (
    cholesky_factors,
    determinants,
    inverses,
    is_small,
    log_determinants,
    solutions,
    triangle_solutions,
)
from ferrule.tensor.algebra.matrices import (
    diagonal_matrix,
    diagonal_part,
    identity,
    lower,
    matrix_product,
    product,
    transposed,
    upper,
)
from ferrule.tensor.algebra.templates import by_kernels
from ferrule.tensor.broadcast import broadcast_shape, expanded, part_of


class LinalgError(np.linalg.LinAlgError):
    """A matrix for which a function of linear algebra has no result."""


@contextmanager
def explained(what: str, way_out: str) -> Iterator[None]:
    """LAPACK's errors, with the name of the function and what to do."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        reason = str(error).replace("Singular", "singular").replace("Matrix", "matrix").rstrip(".")
        raise LinalgError(f"[{what}] {reason}; {way_out}") from None


def finite(a: Array) -> Array:
    """Matrices with singular values; raises NumPy's error if they are not finite.

    For infinities LAPACK may iterate for ever.
    """
    if not np.isfinite(a).all():
        raise np.linalg.LinAlgError("SVD did not converge")
    return a


def mirrored(x: TracedValue) -> TracedValue:
    """Symmetric matrices, from the lower triangles; the gradient is that of symmetric changes."""
    symmetric = lower(x.detach()) + transposed(lower(x.detach(), -1))
    return record("mirrored", _MIRRORED, (x,), symmetric.node, None)


_MIRRORED = Rule(lambda grad, entry: ((grad + transposed(grad)) * 0.5,))


def summed_to(grad: TracedValue, shape: Shape) -> TracedValue:
    """A gradient of the broadcast shape, summed over the axes that were repeated."""
    extra = len(grad.shape) - len(shape)
    axes = [
        axis
        for axis, size in enumerate(grad.shape)
        if axis < extra or (shape[axis - extra] == 1 and size != 1)
    ]
    return grad.sum(axes).reshape(shape)


def over_matrices(number: TracedValue, like: TracedValue) -> TracedValue:
    """One number for each matrix, repeated over all its elements."""
    return number.reshape((*number.shape, 1, 1)).expand(like.shape)


def _total(value: TracedValue) -> TracedValue:
    """The sum of each matrix."""
    rank = len(value.shape)
    return value.sum((rank - 2, rank - 1)).reshape(value.shape[:-2])


# *** eliminations by kernels, for many small matrices ***


def _eliminated(
    found: LazyBuffer, function: Callable[..., Array], sources: Sequence[TracedValue], *args: Any
) -> LazyBuffer:
    """What kernels found, if it is finite; else what `function` gives, or raises, on the host."""
    result = TracedValue(found)
    return on_host(_checked, [result, *sources], result.shape, result.dtype, function, *args).node


def _checked(found: Array, *rest: Any) -> Array:
    if np.isfinite(found).all():
        return found
    place = next(place for place, part in enumerate(rest) if callable(part))
    return np.asarray(rest[place](*rest[:place], *rest[place + 1 :]))


def _system(a: TracedValue, b: TracedValue, what: str) -> TracedValue:
    """The matrices of a system with its right sides beside them, as elimination takes both."""
    batch = broadcast_shape((a.shape[:-2], b.shape[:-2]), what)
    both = [expanded(part, (*batch, *part.shape[-2:])) for part in (a.detach(), b.detach())]
    return concatenated(both, -1)


# *** determinants ***


def determinant(x: TracedValue) -> TracedValue:
    """The determinant of each matrix. Its slope is the matrix of cofactors."""
    if is_small(x):
        node = by_kernels(x.node, determinants)
    else:
        node = on_host(lapack.determinant, [x], x.shape[:-2], x.dtype).node
    return record("det", _DET, (x,), node, None)


def _reverse_det(grad: TracedValue, entry: GradNode) -> Gradients:
    slopes = _cofactors_of(entry.saved[0])
    return (over_matrices(grad, slopes) * slopes,)


def _cofactors(a: Array) -> Array:
    """det(U) det(V) U diag(the product of the other singular values) V.T, also if a is singular."""
    with explained("det", "its gradient needs finite numbers; look for NaN and infinity"):
        u, s, vh = lapack.svd(finite(a), True)
    sign = np.sign(lapack.determinant(u) * lapack.determinant(vh))
    ones = np.ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    others = before * after * sign[..., None]
    return np.asarray((u * others[..., None, :]) @ vh)


def _cofactors_of(x: TracedValue) -> TracedValue:
    node = on_host(_cofactors, [x], x.shape, x.dtype).node
    return record("cofactors", _COFACTORS, (x,), node, None)


def _reverse_cofactors(grad: TracedValue, entry: GradNode) -> Gradients:
    """From C = det(A) A**-T; a singular matrix raises, as its inverse does."""
    inverse_t = transposed(inverse(entry.saved[0], "det"))
    cofactors = entry.result()
    along = over_matrices(_total(grad * cofactors), grad)
    return (inverse_t * along - product(inverse_t, transposed(grad), cofactors),)


def _slogdet(a: Array) -> Array:
    return np.stack(lapack.signed_log_determinant(a), -1)


def signed_log_determinant(x: TracedValue) -> TracedValue:
    """The sign of each determinant and the logarithm of its size, as a last axis of two."""
    if is_small(x):
        node = by_kernels(x.node, log_determinants)
    else:
        node = on_host(_slogdet, [x], (*x.shape[:-2], 2), x.dtype).node
    return record("slogdet", _SLOGDET, (x,), node, None)


def _reverse_slogdet(grad: TracedValue, entry: GradNode) -> Gradients:
    (x,) = entry.saved
    batch = x.shape[:-2]
    to_log = part_of(grad, 1, 2).reshape(batch)
    return (over_matrices(to_log, x) * transposed(inverse(x, "slogdet")),)


_DET = Rule(_reverse_det, inputs=(0,))
_COFACTORS = Rule(_reverse_cofactors, inputs=(0,), output=True)
_SLOGDET = Rule(_reverse_slogdet, inputs=(0,))


# *** inverses ***


def _inv(a: Array, what: str) -> Array:
    with explained(what, "use pinv or lstsq, or add a small multiple of the identity"):
        return lapack.inverse(a)


def inverse(x: TracedValue, what: str) -> TracedValue:
    """The inverse of each matrix; `what` is the function that errors name."""
    if is_small(x):
        node = _eliminated(by_kernels(x.node, inverses), _inv, [x], what)
    else:
        node = on_host(_inv, [x], x.shape, x.dtype, what).node
    return record("inv", _INV, (x,), node, None)


def _reverse_inv(grad: TracedValue, entry: GradNode) -> Gradients:
    result_t = transposed(entry.result())
    return (-product(result_t, grad, result_t),)


def _inv_or_infinity(a: Array) -> Array:
    result = np.full_like(a, np.inf)
    for place in np.ndindex(a.shape[:-2]):
        with suppress(np.linalg.LinAlgError):
            result[place] = lapack.inverse(a[place])
    return result


def inverse_or_infinity(x: TracedValue) -> TracedValue:
    """The inverse of each matrix; infinity for singular ones."""
    node = on_host(_inv_or_infinity, [x], x.shape, x.dtype).node
    return record("inv", _INV, (x,), node, None)


def _pinv(a: Array, atol: Array, rtol: Array) -> Array:
    with explained("pinv", "look for NaN and infinity"):
        u, s, vh = lapack.svd(finite(a), False)
    scale = inverted(s, atol, rtol)
    return np.asarray(np.swapaxes(vh, -1, -2) @ (scale[..., None] * np.swapaxes(u, -1, -2)))


def inverted(s: Array, atol: Array | float, rtol: Array | float) -> Array:
    """1 over each singular value, 0 for those that count as zero."""
    limit = np.maximum(s.max(-1) * rtol, atol)
    return np.divide(1, s, where=s > limit[..., None], out=np.zeros_like(s))


def pseudo_inverse(x: TracedValue, atol: TracedValue, rtol: TracedValue) -> TracedValue:
    """Moore and Penrose's inverse; singular values of at most max(atol, rtol * largest) are 0.

    The limits are numbers, or one for each matrix.
    """
    *batch, rows, columns = x.shape
    sources = [x, atol.detach(), rtol.detach()]
    node = on_host(_pinv, sources, (*batch, columns, rows), x.dtype).node
    return record("pinv", _PINV, (x,), node, None)


def _reverse_pinv(grad: TracedValue, entry: GradNode) -> Gradients:
    return (pinv_slope(entry.saved[0], entry.result(), grad),)


def pinv_slope(x: TracedValue, inverse: TracedValue, grad: TracedValue) -> TracedValue:
    """The gradient of a pseudo-inverse of constant rank (Golub & Pereyra, 1973)."""
    inverse_t, grad_t = transposed(inverse), transposed(grad)
    left = product(grad_t, inverse, inverse_t)
    left = left - product(x, inverse, left)
    right = product(inverse_t, inverse, grad_t)
    right = right - product(right, inverse, x)
    return left + right - product(inverse_t, grad, inverse_t)


_INV = Rule(_reverse_inv, output=True)
_PINV = Rule(_reverse_pinv, inputs=(0,), output=True)


# *** linear systems ***


def _solve(a: Array, b: Array) -> Array:
    with explained("solve", "use lstsq, or add a small multiple of the identity"):
        return lapack.solve(a, b)


def _solution_shape(a: TracedValue, b: TracedValue, what: str) -> Shape:
    batch = broadcast_shape((a.shape[:-2], b.shape[:-2]), what)
    return (*batch, a.shape[-1], b.shape[-1])


def solve(a: TracedValue, b: TracedValue) -> TracedValue:
    """X with a X = b, for (…, n, n) and (…, n, k); the leading axes broadcast."""
    system = _system(a, b, "solve")
    if is_small(system):
        node = _eliminated(by_kernels(system.node, solutions), _solve, [a, b])
    else:
        node = on_host(_solve, [a, b], _solution_shape(a, b, "solve"), a.dtype).node
    return record("solve", _SOLVE, (a, b), node, None)


def _reverse_solve(grad: TracedValue, entry: GradNode) -> Gradients:
    (a,) = entry.saved
    to_b = solve(transposed(a), grad)
    to_a = -matrix_product(to_b, transposed(entry.result()))
    return summed_to(to_a, entry.shapes[0]), summed_to(to_b, entry.shapes[1])


def _triangular(a: Array, b: Array, is_upper: bool, unit: bool, what: str) -> Array:
    """By BLAS, or by an LU decomposition, which finds nothing to do in an upper triangle."""
    size = a.shape[-1]
    if not unit and not a.reshape((*a.shape[:-2], size * size))[..., :: size + 1].all():
        with explained(what, "the diagonal has a zero"):
            raise np.linalg.LinAlgError("Singular matrix")
    x = solve_triangles(a, b, is_upper, unit)
    if x is not None:
        return x
    a = np.triu(a) if is_upper else np.tril(a)
    if unit:
        diagonal = np.arange(a.shape[-1])
        a[..., diagonal, diagonal] = 1
    if is_upper:
        return np.linalg.solve(a, b)
    return np.asarray(np.linalg.solve(a[..., ::-1, ::-1], b[..., ::-1, :])[..., ::-1, :])


def solve_triangular(
    a: TracedValue, b: TracedValue, is_upper: bool, unit: bool, what: str
) -> TracedValue:
    """X with t X = b for the upper or lower triangle t of a, with ones on the diagonal if `unit`.

    Elements outside the triangle are not used.
    """
    system, args = _system(a, b, what), (is_upper, unit, what)
    if is_small(system):
        found = by_kernels(system.node, triangle_solutions, is_upper, unit)
        node = _eliminated(found, _triangular, [a, b], *args)
    else:
        shape = _solution_shape(a, b, what)
        node = on_host(_triangular, [a, b], shape, a.dtype, *args).node
    return record("solve_triangular", _TRIANGULAR, (a, b), node, (is_upper, unit, what))


def _reverse_triangular(grad: TracedValue, entry: GradNode) -> Gradients:
    (a,) = entry.saved
    is_upper, unit, what = entry.arg
    to_b = solve_triangular(transposed(a), grad, not is_upper, unit, what)
    to_a = -matrix_product(to_b, transposed(entry.result()))
    to_a = upper(to_a, int(unit)) if is_upper else lower(to_a, -int(unit))
    return summed_to(to_a, entry.shapes[0]), summed_to(to_b, entry.shapes[1])


def _lstsq(a: Array, b: Array, rtol: float) -> Array:
    with explained("lstsq", "look for NaN and infinity"):
        u, s, vh = lapack.svd(finite(a), False)
    projected = inverted(s, 0.0, rtol)[..., None] * (np.swapaxes(u, -1, -2) @ b)
    return np.asarray(np.swapaxes(vh, -1, -2) @ projected)


def least_squares(a: TracedValue, b: TracedValue, rtol: float) -> TracedValue:
    """The smallest X for which |a X - b| is least, for (…, m, n) and (…, m, k)."""
    node = on_host(_lstsq, [a, b], _solution_shape(a, b, "lstsq"), a.dtype, rtol).node
    return record("lstsq", _LSTSQ, (a, b), node, rtol)


def _reverse_lstsq(grad: TracedValue, entry: GradNode) -> Gradients:
    """The gradient of pinv(a) @ b."""
    a, b = entry.saved
    inverse = pseudo_inverse(a, a.full(0, ()), a.full(entry.arg, ()))
    to_b = matrix_product(transposed(inverse), grad)
    to_a = pinv_slope(a, inverse, matrix_product(grad, transposed(b)))
    return summed_to(to_a, a.shape), summed_to(to_b, b.shape)


_SOLVE = Rule(_reverse_solve, inputs=(0,), output=True)
_TRIANGULAR = Rule(_reverse_triangular, inputs=(0,), output=True)
_LSTSQ = Rule(_reverse_lstsq, inputs=(0, 1))


# *** Cholesky's factor ***


def _cholesky(a: Array) -> Array:
    with explained("cholesky", "add a small multiple of the identity, or use eigh or qr"):
        return lapack.cholesky(a)


def cholesky(x: TracedValue) -> TracedValue:
    """The lower triangle L with L L.T = x; of x the lower triangle is read."""
    if is_small(x):
        node = _eliminated(by_kernels(x.node, cholesky_factors), _cholesky, [x])
    else:
        node = on_host(_cholesky, [x], x.shape, x.dtype).node
    return record("cholesky", _CHOLESKY, (x,), node, None)


def _reverse_cholesky(grad: TracedValue, entry: GradNode) -> Gradients:
    """Smith (1995), for symmetric changes: L**-T P L**-1, P the halved lower part of L.T grad."""
    factor = entry.result()
    inner = matrix_product(transposed(factor), grad)
    half = lower(inner) - diagonal_matrix(diagonal_part(inner)) * 0.5
    slope = _divided(factor, half)
    return ((slope + transposed(slope)) * 0.5,)


def _divided(factor: TracedValue, inner: TracedValue) -> TracedValue:
    """L**-T inner L**-1."""
    left = solve_triangular(transposed(factor), inner, True, False, "cholesky")
    both = solve_triangular(transposed(factor), transposed(left), True, False, "cholesky")
    return transposed(both)


_CHOLESKY = Rule(_reverse_cholesky, output=True)


def cholesky_solve(factor: TracedValue, b: TracedValue, is_upper: bool, what: str) -> TracedValue:
    """X with L L.T X = b, or U.T U X = b, given the factor."""
    first = transposed(factor) if is_upper else factor
    half = solve_triangular(first, b, False, False, what)
    return solve_triangular(transposed(first), half, True, False, what)


def cholesky_inverse(factor: TracedValue, is_upper: bool) -> TracedValue:
    """The inverse of L L.T, or of U.T U, given the factor."""
    size = factor.shape[-1]
    assert isinstance(size, int)
    return cholesky_solve(factor, identity(factor, size), is_upper, "cholesky_inverse")


def default_rtol(x: TracedValue) -> float:
    """The usual limit of singular values: the larger side times the distance of 1 to the next."""
    rows, columns = x.shape[-2:]
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return max(rows, columns) * float(np.finfo(x.dtype.np).eps)
