"""NumPy's LAPACK, called for matrices as they lie in memory.

NumPy copies each matrix to columns and back, row by row, inverts by solving for the identity, and
computes QR in double precision. LAPACK's matrices are columns, so rows in memory are the transposed
matrix: its lower triangle is LAPACK's upper one, LQ takes the place of QR, and U that of V. Then
factors come where the matrix was. Of 50 x 50 float32 an inverse takes 25 us (NumPy: 53), R 17 (33),
a solution 13 (23); of 200 x 200 an inverse 0.5 ms (1.2), QR 0.7 (1.0) (one core of a Zen 4,
2026-11).

All functions take (…, n, n) or (…, m, n) of float32 or float64, give what NumPy's do, and raise its
`LinAlgError` with the same words. NumPy computes where it has another LAPACK, or where matrices are
so small that a call for each would take longer than its copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias, final

import numpy as np

from ferrule.engine.blas import address, addresses, find

Array: TypeAlias = np.ndarray[Any, Any]
_LETTERS: Final = {"f": "s", "d": "d"}
_ROUTINES: Final = ("potrf", "gelqf", "orglq", "gesdd", "syevd", "getrf", "getri", "getrs")
_MIN_ELEMENTS: Final = 24 * 24
"""Elements of a matrix from which on a call costs less than NumPy's copies. A call with its arrays
takes 4 to 8 us; NumPy's own steps 4, and for n rows 2 n calls of 20 ns and n**2 elements at 1.5 ns
(Zen 4, 2026-11)."""
_MIN_ELEMENTS_OF_LU: Final = 64 * 64
"""The same for two calls, or one and what determinants take. NumPy's copies are all it saves."""


@final
class _Call:
    """A subroutine of LAPACK with its texts and integers; None stands for an address.

    All arguments are addresses. The last one is that of an integer, which says if it failed; behind
    it are the lengths of texts, as Fortran has them.
    """

    def __init__(self, function: Any, integer: Any, args: Sequence[int | bytes | None]) -> None:
        texts = sum(type(arg) is bytes for arg in args)
        self._lengths = [1] * texts
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * (len(args) + 1) + [ctypes.c_size_t] * texts
        self._function = function
        self._integer = integer
        self._kept = [integer(arg) if type(arg) is int else arg for arg in args]
        self._given = [ctypes.addressof(a) if isinstance(a, integer) else a for a in self._kept]
        self._open = [place for place, arg in enumerate(args) if arg is None]

    def __call__(self, *places: int) -> int:
        """Call it with these addresses; its answer, 0 if all went well."""
        failed, given = self._integer(0), self._given.copy()
        for number, place in zip(self._open, places, strict=True):
            given[number] = place
        self._function(*given, ctypes.addressof(failed), *self._lengths)
        return int(failed.value)


@lru_cache(maxsize=1024)
def _call(name: str, char: str, *args: int | bytes | None) -> _Call:
    found = find(f"{_LETTERS[char]}{name}_")
    assert found is not None, name
    return _Call(*found, args)


@cache
def _integer(char: str) -> np.dtype[Any] | None:
    """The dtype of LAPACK's integers; None if it cannot be called."""
    found = [find(f"{_LETTERS[char]}{name}_") for name in _ROUTINES]
    kinds = {one[1] for one in found if one is not None}
    return np.dtype(*kinds) if None not in found and len(kinds) == 1 else None


def _is_called(a: Array, least: int = _MIN_ELEMENTS) -> bool:
    """True if LAPACK is called for these matrices; NumPy computes for others."""
    rows, columns = a.shape[-2:]
    return rows * columns >= least and a.size > 0 and _integer(a.dtype.char) is not None


def _copy(a: Array) -> Array:
    return np.array(a, order="C")


def _turned(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _places(*arrays: Array) -> zip[tuple[int, ...]]:
    """The addresses of the matrices of each array, matrix by matrix."""
    return zip(*map(addresses, arrays), strict=True)


def _integers(shape: Sequence[int], like: Array) -> Array:
    return np.empty(shape, _integer(like.dtype.char))


def _by_numpy(function: Callable[..., Any], *args: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(*args)


@lru_cache(maxsize=64)
def _below(rows: int, columns: int) -> Array:
    return ~np.triu(np.ones((rows, columns), bool))


@lru_cache(maxsize=64)
def _above(size: int) -> Array:
    return ~np.tril(np.ones((size, size), bool))


# *** factors ***


def cholesky(a: Array) -> Array:
    """The lower triangle L with L L.T = a, of which the lower triangle is read.

    >>> cholesky(np.array([[4.0, 9.0], [2.0, 2.0]]))
    array([[2., 0.],
           [1., 1.]])
    """
    if not _is_called(a, _MIN_ELEMENTS_OF_LU):
        return np.asarray(_by_numpy(np.linalg.cholesky, a))
    factor, n = _copy(a), a.shape[-1]
    potrf = _call("potrf", a.dtype.char, b"U", n, None, n)
    for (at,) in _places(factor):
        if potrf(at):
            raise np.linalg.LinAlgError("Matrix is not positive definite")
    np.copyto(factor, 0, where=_above(n))
    return factor


def _reflected(a: Array) -> tuple[Array, Array]:
    """R, with the reflections of Q around it, and their factors: (…, k, 1)."""
    *batch, m, n = a.shape
    x = _copy(a)
    factors, work = np.empty((*batch, min(m, n), 1), a.dtype), _workspace(n, a)
    gelqf = _call("gelqf", a.dtype.char, n, m, None, n, None, None, work.size)
    for at, factor in _places(x, factors):
        gelqf(at, factor, address(work))
    return x, factors


def _workspace(rows: int, like: Array) -> Array:
    """Room for blocks of as many columns as LAPACK takes at most."""
    return np.empty(64 * rows, like.dtype)


def upper_factor(a: Array) -> Array:
    """R of `qr`: (…, k, n).

    >>> abs(upper_factor(np.array([[3.0, 3.0], [4.0, 4.0]])).round(4))
    array([[5., 5.],
           [0., 0.]])
    """
    if not _is_called(a):
        return np.asarray(_by_numpy(np.linalg.qr, a, "r"))
    return _upper(_reflected(a)[0])


def _upper(x: Array) -> Array:
    m, n = x.shape[-2:]
    size = min(m, n)
    r = x[..., :size, :].copy()
    np.copyto(r, 0, where=_below(size, n))
    return r


def qr(a: Array, complete: bool) -> tuple[Array, Array]:
    """Q and R with Q R = a: (…, m, k) and (…, k, n), k the smaller of m and n; m if `complete`.

    >>> q, r = qr(np.array([[3.0, 1.0], [4.0, 2.0]]), False)
    >>> (q @ r).round(4)
    array([[3., 1.],
           [4., 2.]])
    """
    if not _is_called(a):
        q, r = _by_numpy(np.linalg.qr, a, "complete" if complete else "reduced")
        return q, r
    x, factors = _reflected(a)
    *batch, m, n = a.shape
    k = min(m, n)
    columns = m if complete else k
    q = np.empty((*batch, m, columns), a.dtype)
    q[..., :k] = x[..., :k]
    work = _workspace(columns, a)
    args = columns, m, k, None, columns, None, None, work.size
    orglq = _call("orglq", a.dtype.char, *args)
    for at, factor in _places(q, factors):
        orglq(at, factor, address(work))
    r = _upper(x)
    if columns == k:
        return q, r
    return q, np.concatenate([r, np.zeros((*batch, columns - k, n), a.dtype)], -2)


# *** values and vectors ***


def svd(a: Array, full: bool) -> tuple[Array, Array, Array]:
    """U, S and V.T with U diag(S) V.T = a; square U and V.T if `full`.

    >>> svd(np.array([[0.0, 2.0], [1.0, 0.0]]), False)[1]
    array([2., 1.])
    """
    if not _is_called(a):
        u, s, vh = _by_numpy(np.linalg.svd, a, full)
        return u, s, vh
    *batch, m, n = a.shape
    k = min(m, n)
    u = np.empty((*batch, m, m if full else k), a.dtype)
    vh = np.empty((*batch, n if full else k, n), a.dtype)
    return u, _values(a, b"A" if full else b"S", u, vh), vh


def singular_values(a: Array) -> Array:
    """S of `svd`.

    >>> singular_values(np.array([[0.0, 2.0], [1.0, 0.0]]))
    array([2., 1.])
    """
    if not _is_called(a):
        return np.asarray(_by_numpy(np.linalg.svd, a, False, False))
    none = np.empty((*a.shape[:-2], 1, 1), a.dtype)
    return _values(a, b"N", none, none)


def _values(a: Array, job: bytes, u: Array, vh: Array) -> Array:
    *batch, m, n = a.shape
    k = min(m, n)
    x, s = _copy(a), np.empty((*batch, k, 1), a.dtype)
    # Of the transposed matrix: its U is V, and its V.T is U.T, both as columns.
    sides = vh.shape[-1], u.shape[-1]
    size = _svd_room(a.dtype.char, job, n, m, *sides)
    work, integers = np.empty(size, a.dtype), _integers((8 * k,), a)
    gesdd = _gesdd(a.dtype.char, job, n, m, *sides, size)
    scratch = address(work), address(integers)
    for at, to_s, to_u, to_vh in _places(x, s, u, vh):
        if gesdd(at, to_s, to_vh, to_u, *scratch):
            raise np.linalg.LinAlgError("SVD did not converge")
    return s[..., 0]


def _gesdd(char: str, job: bytes, m: int, n: int, u: int, vt: int, room: int) -> _Call:
    return _call("gesdd", char, job, m, n, None, m, None, None, u, None, vt, None, room, None)


@lru_cache(maxsize=1024)
def _svd_room(char: str, job: bytes, m: int, n: int, u: int, vt: int) -> int:
    """The elements of scratch memory that the routine asks for."""
    elements = np.zeros(1, char)
    _gesdd(char, job, m, n, u, vt, -1)(0, 0, 0, 0, address(elements), 0)
    return int(elements[0])


def eigh(a: Array, is_upper: bool) -> tuple[Array, Array]:
    """Eigenvalues, increasing, and eigenvectors as columns; one triangle is read.

    >>> eigh(np.array([[2.0, 0.0], [0.0, 1.0]]), False)[0]
    array([1., 2.])
    """
    if not _is_called(a):
        values, vectors = _by_numpy(np.linalg.eigh, a, "U" if is_upper else "L")
        return values, vectors
    values, rows = _spectrum(a, b"V", is_upper)
    return values, _turned(rows)


def eigenvalues(a: Array, is_upper: bool) -> Array:
    """The eigenvalues of `eigh`.

    >>> eigenvalues(np.array([[2.0, 0.0], [0.0, 1.0]]), False)
    array([1., 2.])
    """
    if not _is_called(a):
        return np.asarray(_by_numpy(np.linalg.eigvalsh, a, "U" if is_upper else "L"))
    return _spectrum(a, b"N", is_upper)[0]


def _spectrum(a: Array, job: bytes, is_upper: bool) -> tuple[Array, Array]:
    """Eigenvalues, and the eigenvectors as rows."""
    char, n = a.dtype.char, a.shape[-1]
    triangle = b"L" if is_upper else b"U"
    x, values = _copy(a), np.empty((*a.shape[:-1], 1), a.dtype)
    size, count = _eigen_room(char, job, triangle, n)
    work, integers = np.empty(size, a.dtype), _integers((count,), a)
    syevd = _syevd(char, job, triangle, n, size, count)
    scratch = address(work), address(integers)
    for at, to in _places(x, values):
        if syevd(at, to, *scratch):
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
    return values[..., 0], x


def _syevd(char: str, job: bytes, triangle: bytes, n: int, room: int, integers: int) -> _Call:
    return _call("syevd", char, job, triangle, n, None, n, None, None, room, None, integers)


@lru_cache(maxsize=1024)
def _eigen_room(char: str, job: bytes, triangle: bytes, n: int) -> tuple[int, int]:
    """The elements and the integers of scratch memory that the routine asks for."""
    elements, integers = np.zeros(1, char), np.zeros(1, _integer(char))
    _syevd(char, job, triangle, n, -1, -1)(0, 0, address(elements), address(integers))
    return int(elements[0]), int(integers[0])


# *** by LU ***


def _lu(a: Array) -> tuple[Array, Array, bool]:
    """The factors of the transposed matrices as columns, their exchanges of rows, and whether one
    is singular.
    """
    n = a.shape[-1]
    x, exchanged = _copy(a), _integers((*a.shape[:-1], 1), a)
    getrf = _call("getrf", a.dtype.char, n, n, None, n, None)
    failed = [getrf(at, to) for at, to in _places(x, exchanged)]
    return x, exchanged, any(failed)


def determinant(a: Array) -> Array:
    """The determinant of each matrix.

    >>> determinant(np.array([[0.0, 1.0], [1.0, 0.0]]))
    array(-1.)
    """
    if not _is_called(a, _MIN_ELEMENTS_OF_LU):
        return np.asarray(_by_numpy(np.linalg.det, a))
    sign, log = signed_log_determinant(a)
    with np.errstate(all="ignore"):
        return np.asarray(sign * np.exp(log))


def signed_log_determinant(a: Array) -> tuple[Array, Array]:
    """The sign of each determinant, and the logarithm of its size.

    >>> signed_log_determinant(np.array([[0.0, 1.0], [1.0, 0.0]]))
    (array(-1.), array(0.))
    """
    if not _is_called(a, _MIN_ELEMENTS_OF_LU):
        sign, log = _by_numpy(np.linalg.slogdet, a)
        return np.asarray(sign), np.asarray(log)
    x, exchanged, _ = _lu(a)
    pivots = x.reshape((*a.shape[:-2], -1))[..., :: a.shape[-1] + 1]
    signs = np.sign(pivots, dtype=np.float64)
    kept = exchanged[..., 0] == np.arange(1, a.shape[-1] + 1)
    with np.errstate(all="ignore"):
        log = np.log(np.abs(pivots), dtype=np.float64).sum(-1)
    return np.asarray(np.where(kept, signs, -signs).prod(-1)), np.asarray(log)


def inverse(a: Array) -> Array:
    """The inverse of each matrix.

    >>> abs(inverse(np.array([[2.0, 0.0], [0.0, 4.0]])))
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    if not _is_called(a):
        return np.asarray(_by_numpy(np.linalg.inv, a))
    x, exchanged, is_singular = _lu(a)
    if is_singular:
        raise np.linalg.LinAlgError("Singular matrix")
    n, work = a.shape[-1], _workspace(a.shape[-1], a)
    getri = _call("getri", a.dtype.char, n, None, n, None, None, work.size)
    for at, to in _places(x, exchanged):
        getri(at, to, address(work))
    return x


def solve(a: Array, b: Array) -> Array:
    """X with a X = b, for (…, n, n) and (…, n, k); the leading axes broadcast.

    >>> solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([[1.0], [1.0]]))
    array([[0.5 ],
           [0.25]])
    """
    if a.shape[:-2] != b.shape[:-2] or b.size == 0 or not _is_called(a, _MIN_ELEMENTS_OF_LU):
        return np.asarray(_by_numpy(np.linalg.solve, a, b))
    x, exchanged, is_singular = _lu(a)
    if is_singular:
        raise np.linalg.LinAlgError("Singular matrix")
    n, k = b.shape[-2:]
    columns = _copy(_turned(b))
    getrs = _call("getrs", a.dtype.char, b"T", n, k, None, n, None, None, n)
    for at, exchange, to in _places(x, exchanged, columns):
        getrs(at, exchange, to)
    return _turned(columns)
