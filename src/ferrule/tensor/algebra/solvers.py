"""Determinants, inverses, linear systems: of many small matrices by kernels, else on the host.

All take matrices in the last two axes, and batches of them in front. Integers and bools become the
default float; float16 and bfloat16 go through float32 and are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Generic, NamedTuple, TypeVar

from ferrule.autograd import TracedValue
from ferrule.ir.dtype import dtypes, promote
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor.algebra import solving
from ferrule.tensor.algebra.matrices import identity, transposed
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import check_devices, fit_shape, known_size
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import Operand, float_value
from ferrule.tensor.reduce.rowwise import accumulating

T = TypeVar("T")


class SlogDet(NamedTuple, Generic[T]):
    """The result of `slogdet`: the determinant is sign * exp(logabsdet)."""

    sign: T
    logabsdet: T


class TriangularSolution(NamedTuple, Generic[T]):
    """The result of `triangular_solve`, with a copy of the matrix."""

    solution: T
    cloned_coefficient: T


def matrices_of(self: Tensor, what: str, square: bool = True) -> TracedValue:
    """The value for functions of matrices, as float32 or float64; sizes are checked."""
    if self.ndim < 2:
        raise ShapeError(
            f"[{what}] takes matrices, with at least two axes, not shape {self._shape}; "
            "reshape it first"
        )
    rows, columns = (known_size(size, what) for size in self._shape[-2:])
    if square and rows != columns:
        raise ShapeError(
            f"[{what}] takes square matrices, not shape {self._shape}; "
            "use lstsq, pinv or svd for others"
        )
    return accumulating(float_value(self))


def in_own_float(self: Tensor, value: TracedValue) -> Tensor:
    """A result, in this tensor's float type."""
    return self._wrap(value.cast(float_value(self).dtype))


# -- determinants --------------------------------------------------------------------------------


@method
def det(self: Tensor) -> Tensor:
    """The determinant of square matrices.

    The gradient exists for singular matrices too, that of the gradient for regular ones only.

    >>> from ferrule import Tensor
    >>> round(Tensor([[1.0, 2.0], [3.0, 4.0]]).det().item(), 4)
    -2.0
    """
    return in_own_float(self, solving.determinant(matrices_of(self, "det")))


@method
def slogdet(self: Tensor) -> SlogDet[Tensor]:
    """The sign of the determinant, and the logarithm of its size.

    A singular matrix has sign 0 and -inf; its gradient raises `LinalgError` when realised.

    >>> from ferrule import Tensor
    >>> [round(part.item(), 4) for part in Tensor([[0.0, 1.0], [1.0, 0.0]]).slogdet()]
    [-1.0, 0.0]
    """
    both = in_own_float(self, solving.signed_log_determinant(matrices_of(self, "slogdet"))).unbind(
        -1
    )
    return SlogDet(*both)


@method
def logdet(self: Tensor) -> Tensor:
    """The logarithm of the determinant: -inf if that is 0, NaN if it is negative.


    >>> from ferrule import Tensor
    >>> Tensor([[1.0, 0.0], [0.0, 1.0]]).logdet().item()
    0.0
    """
    sign, size = self.slogdet()
    return (sign < 0).where(float("nan"), size)


# -- inverses ------------------------------------------------------------------------------------


@method
def inv(self: Tensor) -> Tensor:
    """The inverse of square matrices.

    Raises `LinalgError` when a singular matrix is realised.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inv().tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return in_own_float(self, solving.inverse(matrices_of(self, "inv"), "inv"))


@method
def pinv(
    self: Tensor,
    rtol: Operand | None = None,
    hermitian: bool = False,
    *,
    atol: Operand | None = None,
) -> Tensor:
    """Moore and Penrose's pseudo-inverse, by singular values. Computed on the host.

    Singular values of at most max(atol, rtol * the largest) count as zeros. Unless either is
    given, rtol is the larger side times the float's epsilon; they are numbers, or tensors of
    one for each matrix. `hermitian` says that matrices are symmetric, and only their lower
    triangle is read. The gradient is that of matrices which keep their rank.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0], [0.0]]).pinv().tolist()
    [[0.5, 0.0]]
    """
    value = matrices_of(self, "pinv", square=hermitian)
    if hermitian:
        value = solving.mirrored(value)
    if rtol is None:
        rtol = solving.default_rtol(value) if atol is None else 0.0
    least = 0.0 if atol is None else atol
    limits = [limit_of(self, value, limit, "pinv") for limit in (least, rtol)]
    return in_own_float(self, solving.pseudo_inverse(value, *limits))


def limit_of(self: Tensor, value: TracedValue, limit: Operand, what: str) -> TracedValue:
    """A number, or one for each matrix, as a value."""
    if isinstance(limit, int | float):
        return value.full(limit, ())
    if not isinstance(limit, Tensor):
        raise TypeError(f"[{what}] limits are numbers or tensors, not {type(limit).__name__}")
    given = limit._read()
    check_devices(value, given, what)
    return fit_shape(given.cast(value.dtype), value.shape[:-2], what)


@method
def pinverse(self: Tensor, rcond: float = 1e-15) -> Tensor:
    """The same as `pinv`, with a limit relative to the largest singular value.

    >>> from ferrule import Tensor
    >>> Tensor([[4.0]]).pinverse().tolist()
    [[0.25]]
    """
    return self.pinv(rcond)


@method
def matrix_power(self: Tensor, n: int) -> Tensor:
    """The n-th power of square matrices; for n < 0 of the inverse, from the host.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 1], [0, 1]]).matrix_power(5).tolist()
    [[1, 5], [0, 1]]
    """
    size = matrices_of(self, "matrix_power").shape[-1]
    assert isinstance(size, int)
    if n == 0:
        value = self._read()
        return self._wrap(identity(value.detach(), size))
    base = self if n > 0 else self.inv()
    result: Tensor | None = None
    rest = abs(n)
    while True:
        if rest & 1:
            result = base if result is None else result @ base
        rest >>= 1
        if not rest:
            assert result is not None
            return result.clone()
        base = base @ base


@method
def tensorinv(self: Tensor, ind: int = 2) -> Tensor:
    """The inverse of the map that `tensordot` over the axes from `ind` on is.

    Computed on the host.

    >>> from ferrule import Tensor
    >>> Tensor.eye(4).reshape(4, 2, 2).tensorinv(1).shape
    (2, 2, 4)
    """
    front, back = self._shape[:ind], self._shape[ind:]
    if not 0 < ind or prod(front) != prod(back):
        raise ShapeError(
            f"[tensorinv] the sizes of shape {self._shape} before axis {ind} and from there on "
            "have different products; choose another ind, which is at least 1"
        )
    matrix = self.reshape(prod(front), prod(back))
    return matrix.inv().reshape(*back, *front)


# -- linear systems ------------------------------------------------------------------------------


def takes_vectors(self: Tensor, other: Tensor) -> bool:
    """True if right sides are vectors: one, or as many as there are matrices."""
    return other.ndim == 1 or other._shape == self._shape[:-1]


def system(
    self: Tensor, other: Tensor, what: str, vectors: bool
) -> tuple[TracedValue, TracedValue]:
    """Both sides of a system in one type, vectors as columns."""
    a, b = matrices_of(self, what, square=False), accumulating(float_value(other))
    dtype = promote(a.dtype, b.dtype)
    check_devices(a, b, what)
    if vectors:
        b = b.reshape((*b.shape, 1))
    if len(b.shape) < 2 or not same(a.shape[-2], b.shape[-2]):
        raise ShapeError(
            f"[{what}] matrices of shape {self._shape} and right sides of shape "
            f"{other._shape} do not fit: they need equal rows"
        )
    return a.cast(dtype), b.cast(dtype)


def solved(self: Tensor, other: Tensor, x: TracedValue, vectors: bool) -> Tensor:
    """A solution, in the type of both tensors, as vectors if those were given."""
    kinds = [t.dtype if dtypes.is_float(t.dtype) else dtypes.default_float for t in (self, other)]
    x = x.reshape(x.shape[:-1]) if vectors else x
    return self._wrap(x.cast(promote(*kinds)))


@method
def solve(self: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with self @ X = B, or X @ self = B unless `left`.

    B is (…, n, k), or vectors: (n,), or the shape of this tensor without its last axis. Leading
    axes broadcast. Raises `LinalgError` when a singular matrix is realised.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).solve(Tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    matrices_of(self, "solve")
    vectors = takes_vectors(self, B)
    if not left:
        return self.mT.solve(B) if vectors else self.mT.solve(B.mT).mT
    a, b = system(self, B, "solve", vectors)
    return solved(self, B, solving.solve(a, b), vectors)


@method
def solve_triangular(
    self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X with t @ X = B, or X @ t = B unless `left`, for one triangle t of this tensor.

    Elements outside the triangle are not read; `unitriangular` takes its diagonal for ones.
    Raises `LinalgError` when a zero on the diagonal is realised.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0, 9.0], [1.0, 1.0]]).solve_triangular(Tensor([[2.0], [2.0]]), upper=False)\\
    ...     .tolist()
    [[1.0], [1.0]]
    """
    matrices_of(self, "solve_triangular")
    if not left:
        right = B if B.ndim == 1 else B.mT
        x = self.mT.solve_triangular(right, upper=not upper, unitriangular=unitriangular)
        return x if B.ndim == 1 else x.mT
    vectors = B.ndim == 1
    a, b = system(self, B, "solve_triangular", vectors)
    found = solving.solve_triangular(a, b, upper, unitriangular, "solve_triangular")
    return solved(self, B, found, vectors)


@method
def triangular_solve(
    self: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> TriangularSolution[Tensor]:
    """X with t @ X = self, for one triangle t of A, or its transpose; and A itself.

    `solve_triangular`, with the sides swapped.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0]]).triangular_solve(Tensor([[4.0]])).solution.tolist()
    [[0.5]]
    """
    given, is_upper = (A.mT, not upper) if transpose else (A, upper)
    matrices_of(given, "triangular_solve")
    vectors = self.ndim == 1
    a, b = system(given, self, "triangular_solve", vectors)
    x = solving.solve_triangular(a, b, is_upper, unitriangular, "triangular_solve")
    return TriangularSolution(solved(self, A, x, vectors), A.clone())


@method
def tensorsolve(self: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with self.tensordot(X, X.ndim) = B; the axes `dims` are moved to the end first.

    Computed on the host.

    >>> from ferrule import Tensor
    >>> Tensor.eye(4).reshape(4, 2, 2).tensorsolve(Tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    chosen = [self._axis(axis, "tensorsolve") for axis in dims or ()]
    moved = self.permute([a for a in range(self.ndim) if a not in chosen] + chosen)
    sizes = moved._shape[B.ndim :]
    if not prod(moved._shape[: B.ndim]) == prod(sizes) == prod(B._shape):
        raise ShapeError(
            f"[tensorsolve] as many elements as B of shape {B._shape} are needed in the first "
            f"{B.ndim} axes of shape {moved._shape}, and in the others; reorder them with dims"
        )
    matrix = moved.reshape(prod(B._shape), prod(sizes))
    return matrix.solve(B.flatten()).reshape(sizes)


# -- Cholesky's factor ---------------------------------------------------------------------------


@method
def cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """The triangle L with L @ L.mT = self, or U with U.mT @ U = self if `upper`.

    Only one triangle of this tensor is read, the lower one unless `upper`; the gradient is that of
    symmetric changes. Raises `LinalgError` when a matrix that is not
    positive definite is realised.

    >>> from ferrule import Tensor
    >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    value = matrices_of(self, "cholesky")
    value = transposed(value) if upper else value
    factor = solving.cholesky(value)
    return in_own_float(self, transposed(factor) if upper else factor)


@method
def cholesky_solve(self: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with A @ X = self, given Cholesky's factor of A.

    >>> from ferrule import Tensor
    >>> Tensor([[8.0]]).cholesky_solve(Tensor([[2.0]])).tolist()
    [[2.0]]
    """
    matrices_of(L, "cholesky_solve")
    vectors = self.ndim == 1
    factor, b = system(L, self, "cholesky_solve", vectors)
    x = solving.cholesky_solve(factor, b, upper, "cholesky_solve")
    return solved(self, L, x, vectors)


@method
def cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrices whose Cholesky's factor this is.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0]]).cholesky_inverse().tolist()
    [[0.25]]
    """
    factor = matrices_of(self, "cholesky_inverse")
    return in_own_float(self, solving.cholesky_inverse(factor, upper))
