"""Counterparts of functions of matrices: products of several, factors, inverses, solutions, norms.

Where a result depends on rounding, as the inverse of a nearly singular matrix does, they raise
`TypeError`, as all counterparts do for what they are not meant for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tests.fuzz.numpy_functions import Array, Function, Scaled, axes_of, only_if

_MOST_CONDITION: Final = 50.0
"""Rounding errors grow by the condition number of a matrix, at most."""


def _tame(x: Array) -> Array:
    """The matrices, if their inverses are hardly more wrong than they are."""
    only_if(x.ndim >= 2 and x.size and np.linalg.cond(x).max() < _MOST_CONDITION)
    return x


def _turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _mirrored(x: Array) -> Array:
    """The symmetric matrices with these lower triangles."""
    return np.asarray(np.tril(x) + _turned(np.tril(x, -1)))


def _square(function: Function) -> Function:
    return lambda x: function(_tame(x))


# -- products --------------------------------------------------------------------------------------


def _bounded(product: Callable[..., Any]) -> Function:
    """A sum of products, with the largest that its terms can add up to."""

    def multiply(*factors: Any, **options: Any) -> Scaled:
        sizes = [np.abs(x) if isinstance(x, np.ndarray) else x for x in factors]
        bound = np.abs(product(*sizes, **options)).max(initial=1)
        return Scaled(product(*factors, **options), float(bound))

    return multiply


def _chain(*factors: Array) -> Any:
    return functools.reduce(np.matmul, factors)


def _power(x: Array, n: int) -> Any:
    only_if(n >= 0)
    return np.linalg.matrix_power(x, n)


def _dot_along(x: Array, other: Array, dim: int = -1) -> Any:
    only_if(dim < 0 or x.ndim == other.ndim)
    return (x * other).sum(dim)


# -- determinants, inverses, solutions -------------------------------------------------------------


def _logdet(x: Array) -> Any:
    sign, size = np.linalg.slogdet(_tame(x))
    return np.where(sign < 0, np.nan, size)


def _exp(x: Array) -> Array:
    """The sum of x ** k / k!, of a small part of x, squared as often as it was halved."""
    only_if(x.size and np.abs(x).max() < 100)
    halvings = 10
    term = total = np.broadcast_to(np.eye(x.shape[-1]), x.shape)
    for k in range(1, 20):
        term = term @ x / 2**halvings / k
        total = total + term
    return np.asarray(np.linalg.matrix_power(total, 2**halvings))


def _pinv(x: Array, hermitian: bool = False) -> Any:
    return np.linalg.pinv(_tame(_mirrored(x) if hermitian else x))


def _cholesky(x: Array, upper: bool = False) -> Any:
    factor = np.linalg.cholesky(_tame(_mirrored(_turned(x) if upper else x)))
    return _turned(factor) if upper else factor


def _of_factor(x: Array, upper: bool) -> Array:
    """The matrices whose Cholesky's factors these are."""
    low = _turned(np.triu(x)) if upper else np.tril(x)
    return _tame(low @ _turned(low))


def _solve(x: Array, right: Array, left: bool = True) -> Any:
    vectors = right.ndim == 1 or right.shape == x.shape[:-1]
    columns = right[..., None] if vectors else right
    if left:
        found = np.linalg.solve(_tame(x), columns)
    elif vectors:
        found = np.linalg.solve(_turned(_tame(x)), columns)
    else:
        found = _turned(np.linalg.solve(_turned(_tame(x)), _turned(columns)))
    return found[..., 0] if vectors else found


def _solve_triangular(
    x: Array, right: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    triangle = np.triu(x) if upper else np.tril(x)
    if unitriangular:
        diagonal = np.eye(x.shape[-1], dtype=bool)
        triangle = np.where(diagonal, 1, triangle)
    only_if(right.ndim != 1 or x.ndim == 2)
    only_if(right.ndim == 1 or right.shape != x.shape[:-1])
    return _solve(triangle, right, left)


def _solve_of_factor(x: Array, factor: Array, upper: bool = False) -> Any:
    only_if(x.ndim >= 2)
    return np.linalg.solve(_of_factor(factor, upper), x)


def _solve_triangle_of(
    x: Array,
    matrix: Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    given, is_upper = (_turned(matrix), not upper) if transpose else (matrix, upper)
    return _solve_triangular(given, x, upper=is_upper, unitriangular=unitriangular), matrix


def _tensorinv(x: Array, ind: int = 2) -> Any:
    front, back = x.shape[:ind], x.shape[ind:]
    matrix = x.reshape(math.prod(front), math.prod(back))
    return np.linalg.inv(_tame(matrix)).reshape(*back, *front)


def _tensorsolve(x: Array, right: Array, dims: Sequence[int] | None = None) -> Any:
    chosen = [axis % x.ndim for axis in dims or ()]
    moved = x.transpose([axis for axis in range(x.ndim) if axis not in chosen] + chosen)
    matrix = moved.reshape(right.size, -1)
    return np.linalg.solve(_tame(matrix), right.reshape(-1)).reshape(moved.shape[right.ndim :])


def _lstsq(x: Array, right: Array) -> Scaled:
    """By the pseudoinverse: a solution, squares of what is left, ranks, singular values."""
    vectors = right.ndim == 1 or right.shape == x.shape[:-1]
    columns = right[..., None] if vectors else right
    found = np.linalg.pinv(_tame(x)) @ columns
    rows, count = x.shape[-2:]
    left = np.square(x @ found - columns).sum(-2) if rows > count else np.zeros(0)
    ranks = np.full(x.shape[:-2], min(rows, count))
    parts = found[..., 0] if vectors else found, left, ranks, _singular(x)
    return Scaled(parts, float(max(1, np.abs(x).max(), rows * np.square(right).max())))


# -- singular values and norms ---------------------------------------------------------------------


def _singular(x: Array) -> Array:
    return np.asarray(np.linalg.svd(x, compute_uv=False))


def _symmetric_values(x: Array, UPLO: str = "L") -> Array:
    return np.asarray(np.linalg.eigvalsh(x, UPLO))


def _rank(x: Array, hermitian: bool = False) -> Any:
    values = _singular(_tame(_mirrored(x) if hermitian else x))
    return np.full(values.shape[:-1], values.shape[-1])


def _cond(x: Array, p: Any = None) -> Any:
    return np.linalg.cond(_tame(x), p)


def vector_norm(x: Array, p: float = 2.0, axis: Any = None, keepdim: bool = False) -> Any:
    """The root of index p of the sum of powers, along axes that count as one."""
    axis, sizes = axes_of(axis), np.abs(x)
    if p == 0:
        return np.count_nonzero(x, axis=axis, keepdims=keepdim)
    if math.isinf(p):
        return (np.max if p > 0 else np.min)(sizes, axis=axis, keepdims=keepdim)
    return (sizes**p).sum(axis=axis, keepdims=keepdim) ** (1 / p)


def _norm_named_ord(x: Array, ord: float = 2.0, axis: Any = None, keepdim: bool = False) -> Any:
    return vector_norm(x, ord, axis, keepdim)


def _matrix_norm(
    x: Array, ord: Any = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False
) -> Any:
    only_if(x.size)
    return np.linalg.norm(x, ord, dim, keepdim)


# -- what the parts of a decomposition make together -----------------------------------------------


def _qr(x: Array, found: Sequence[Array], mode: Any = "reduced", some: Any = None) -> Any:
    only_if(x.size and mode == "reduced" and some is not False)
    q, r = found
    yield x, q @ r
    yield np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], *q.shape[-1:] * 2)), _turned(q) @ q
    yield np.triu(r), r


def _svd(x: Array, found: Sequence[Array], full_matrices: bool = True) -> Any:
    only_if(x.size)
    u, s, v = found
    least = min(x.shape[-2:])
    yield x, (u[..., :least] * s[..., None, :]) @ v[..., :least, :]
    yield _singular(x), s
    columns = x.shape[-2:] if full_matrices else (least, least)
    for size, part in zip(columns, (u, _turned(v)), strict=True):
        yield np.broadcast_to(np.eye(size), (*x.shape[:-2], size, size)), _turned(part) @ part


def _eigh(x: Array, found: Sequence[Array], UPLO: str = "L") -> Any:
    only_if(x.size)
    values, vectors = found
    symmetric = _mirrored(x if UPLO == "L" else _turned(x))
    yield np.linalg.eigvalsh(symmetric), values
    yield symmetric, (vectors * values[..., None, :]) @ _turned(vectors)
    yield np.broadcast_to(np.eye(x.shape[-1]), x.shape), _turned(vectors) @ vectors


CHAINS: Final[Mapping[str, Function]] = {
    "multi_dot": _bounded(_chain),
    "chain_matmul": _bounded(_chain),
    "matrix_power": _bounded(_power),
    "tensordot": _bounded(lambda x, other, dims=2: np.tensordot(x, other, dims)),
    "vecdot": _bounded(_dot_along),
}
MATRICES: Final[Mapping[str, Function]] = {
    "det": _square(np.linalg.det),
    "slogdet": _square(lambda x: tuple(np.linalg.slogdet(x))),
    "logdet": _logdet,
    "inv": _square(np.linalg.inv),
    "inverse": _square(np.linalg.inv),
    "pinv": _pinv,
    "pinverse": lambda x: np.linalg.pinv(_tame(x)),
    "matrix_exp": _exp,
    "cholesky": _cholesky,
    "cholesky_inverse": lambda x, upper=False: np.linalg.inv(_of_factor(x, upper)),
    "cholesky_solve": _solve_of_factor,
    "solve": _solve,
    "solve_triangular": _solve_triangular,
    "triangular_solve": _solve_triangle_of,
    "tensorinv": _tensorinv,
    "tensorsolve": _tensorsolve,
    "lstsq": _lstsq,
    "svdvals": _singular,
    "eigvalsh": _symmetric_values,
    "matrix_rank": _rank,
    "cond": _cond,
    "matrix_norm": _matrix_norm,
    "norm": vector_norm,
    "vector_norm": _norm_named_ord,
}
"""Functions of floats."""
DECOMPOSITIONS: Final[Mapping[str, Callable[..., Any]]] = {"qr": _qr, "svd": _svd, "eigh": _eigh}
"""Pairs of what should be and what is, given the parts that ferrule found."""
