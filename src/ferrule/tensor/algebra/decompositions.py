"""Decompositions of matrices, and what their singular values tell. NumPy computes on the host.

All take matrices in the last two axes, and batches of them in front. Integers and bools become the
default float; float16 and bfloat16 go through float32 and are rounded once.
"""

from __future__ import annotations

import math
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from ferrule.base.calls import one_of
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.algebra import factoring, solving
from ferrule.tensor.algebra.solvers import (
    in_own_float,
    limit_of,
    matrices_of,
    solved,
    system,
    takes_vectors,
)
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import Operand, as_floats

T = TypeVar("T")
Order = str | float | None


class QR(NamedTuple, Generic[T]):
    """The result of `qr`: Q @ R is the matrix."""

    Q: T
    R: T


class SVD(NamedTuple, Generic[T]):
    """The result of `svd`: U @ diag(S) @ Vh is the matrix."""

    U: T
    S: T
    Vh: T


class Eigh(NamedTuple, Generic[T]):
    """The result of `eigh`: eigenvalues in ascending order, eigenvectors as columns."""

    eigenvalues: T
    eigenvectors: T


class LeastSquares(NamedTuple, Generic[T]):
    """The result of `lstsq`."""

    solution: T
    residuals: T
    rank: T
    singular_values: T


# -- factors -------------------------------------------------------------------------------------


@method
def qr(self: Tensor, mode: str | bool = "reduced", *, some: bool | None = None) -> QR[Tensor]:
    """Q with orthonormal columns and R, an upper triangle, with Q @ R = self.

    `mode` is "reduced", "complete" (Q is square) or "r" (Q is without elements); True and False
    are the first two. The gradient needs R's diagonal to have no zero.

    >>> from ferrule import Tensor
    >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
    >>> bool((q @ r).isclose(Tensor([[3.0, 1.0], [4.0, 2.0]]), atol=1e-5).all())
    True
    """
    kind = mode if some is None else some
    if isinstance(kind, bool):
        kind = "reduced" if kind else "complete"
    one_of(kind, ("reduced", "complete", "r"), "[qr] mode")
    matrices = matrices_of(self, "qr", square=False)
    if kind == "r":
        q, r = matrices.full(0, (0,)), factoring.upper_factor(matrices)
    else:
        q, r = factoring.qr(matrices, kind == "complete")
    return QR(in_own_float(self, q), in_own_float(self, r))


@method
def svd(self: Tensor, full_matrices: bool = True) -> SVD[Tensor]:
    """U, S and Vh with U @ diag(S) @ Vh = self; S is a vector in decreasing order.

    U and Vh are square, unless `full_matrices` is False: then they have as many columns and
    rows as S. Computed on the host. The gradient needs singular values that differ.

    >>> from ferrule import Tensor
    >>> u, s, vh = Tensor([[0.0, 2.0], [1.0, 0.0]]).svd()
    >>> s.tolist()
    [2.0, 1.0]
    """
    parts = factoring.svd(matrices_of(self, "svd", square=False), full_matrices)
    return SVD(*[in_own_float(self, part) for part in parts])


@method
def svdvals(self: Tensor) -> Tensor:
    """The singular values, in decreasing order. Computed on the host.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, 2.0], [1.0, 0.0]]).svdvals().tolist()
    [2.0, 1.0]
    """
    values = factoring.singular_values(matrices_of(self, "svdvals", square=False))
    return in_own_float(self, values)


@method
def eigh(self: Tensor, UPLO: str = "L") -> Eigh[Tensor]:
    """The eigenvalues, increasing, and eigenvectors, as columns, of symmetric matrices.

    Only the lower triangle of each matrix is read, or the upper one for UPLO = "U". Computed on the
    host. The gradient is the one for symmetric changes, and needs eigenvalues that differ.

    >>> from ferrule import Tensor
    >>> values, vectors = Tensor([[2.0, 0.0], [0.0, 1.0]]).eigh()
    >>> values.tolist()
    [1.0, 2.0]
    """
    parts = factoring.eigh(matrices_of(self, "eigh"), _is_upper(UPLO, "eigh"))
    return Eigh(*[in_own_float(self, part) for part in parts])


@method
def eigvalsh(self: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, increasing. Computed on the host.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).eigvalsh().tolist()
    [1.0, 2.0]
    """
    value = matrices_of(self, "eigvalsh")
    return in_own_float(self, factoring.eigenvalues(value, _is_upper(UPLO, "eigvalsh")))


@method
def eig(self: Tensor) -> NoReturn:
    """Raises `DTypeError`: eigenvalues of general matrices are complex numbers.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0]]).eig()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ferrule.ir.dtype.DTypeError: [eig] eigenvalues of general matrices are complex, ...
    """
    raise _complex_error("eig")


@method
def eigvals(self: Tensor) -> NoReturn:
    """Raises `DTypeError`: eigenvalues of general matrices are complex numbers.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0]]).eigvals()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ferrule.ir.dtype.DTypeError: [eigvals] eigenvalues of general matrices are complex, ...
    """
    raise _complex_error("eigvals")


@method
def matrix_exp(self: Tensor) -> Tensor:
    """e to the power of square matrices: the sum of self ** k / k!. Computed on the host.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, 1.0], [0.0, 0.0]]).matrix_exp().tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return in_own_float(self, factoring.matrix_exp(matrices_of(self, "matrix_exp")))


# -- by singular values --------------------------------------------------------------------------


@method
def lstsq(
    self: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares[Tensor]:
    """The smallest X for which the norm of self @ X - B is least, by singular values.

    Gives the solution, the squared norms of self @ X - B along its rows (with as many equations
    as unknowns or less, a tensor without elements), the rank and the singular values.
    Those of at most rcond * the largest count as zeros. `driver` is accepted, and changes
    nothing. Computed on the host; the gradient is that of matrices which keep their rank.

    >>> from ferrule import Tensor
    >>> a, b = Tensor([[1.0], [1.0]]), Tensor([[1.0], [3.0]])
    >>> result = a.lstsq(b)
    >>> round(result.solution.item(), 4), round(result.residuals.item(), 4)
    (2.0, 2.0)
    """
    vectors = takes_vectors(self, B)
    a, b = system(self, B, "lstsq", vectors)
    rtol = solving.default_rtol(a) if rcond is None else rcond
    solution = solved(self, B, solving.least_squares(a, b, rtol), vectors)
    rows, columns = a.shape[-2:]
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    distance = self @ (solution.unsqueeze(-1) if vectors else solution)
    distance = distance - (B.unsqueeze(-1) if vectors else B)
    residuals = (distance * distance).sum(-2)
    if rows <= columns:
        residuals = residuals.reshape(-1)[:0]
    values = self.svdvals()
    rank = self.matrix_rank(rtol=rtol)
    return LeastSquares(solution, residuals, rank, values)


@method
def matrix_rank(
    self: Tensor,
    tol: float | None = None,
    hermitian: bool = False,
    *,
    atol: float | None = None,
    rtol: Operand | None = None,
) -> Tensor:
    """How many singular values are more than max(atol, rtol * the largest); int32.

    `tol` is another name of atol. Unless one is given, rtol is the larger side times the
    float's epsilon; it may be a tensor with one for each matrix. `hermitian` says that matrices
    are symmetric, and only their lower triangle is read. Computed on the host.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).matrix_rank().item()
    1
    """
    value = matrices_of(self, "matrix_rank", square=hermitian).detach()
    if hermitian:
        value = solving.mirrored(value)
    least = tol if atol is None else atol
    if rtol is None:
        rtol = 0.0 if least else solving.default_rtol(value)
    if 0 in self._shape:
        return self.zeros(*self._shape[:-2], device=self.device, dtype=dtypes.default_int)
    values = self._wrap(factoring.singular_values(value))
    share = self._wrap(limit_of(self, value, rtol, "matrix_rank")).unsqueeze(-1)
    limit = (values.max(-1, keepdim=True) * share).maximum(least or 0.0)
    return (values > limit).count_nonzero(-1)


@method
def matrix_norm(
    self: Tensor,
    ord: str | float = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
) -> Tensor:
    """A norm of matrices in two axes.

    "fro": the root of the sum of squares; "nuc": the sum of singular values; 2 and -2: the
    largest and smallest of them; inf and -inf: the largest and smallest sum of sizes of a row;
    1 and -1: of a column. Those by singular values are computed on the host.

    Raises `ValueError` for another order.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0, -2.0], [3.0, 4.0]]).matrix_norm(1).item()
    6.0
    """
    rows, columns = (self._axis(axis, "matrix_norm") for axis in dim)
    if rows == columns:
        raise ShapeError(f"[matrix_norm] the axes {dim} are the same; give two")
    matrices = as_floats(self).movedim((rows, columns), (-2, -1))
    if ord == "fro":
        result = matrices.norm(2, (-2, -1))
    elif ord in ("nuc", 2, -2):
        values = matrices.svdvals()
        result = values.sum(-1) if ord == "nuc" else _extreme(values, ord, -1)
    elif ord in (1, -1, math.inf, -math.inf):
        across = -2 if abs(float(ord)) == 1 else -1
        result = _extreme(matrices.abs().sum(across), ord, -1)
    else:
        raise ValueError(
            f"[matrix_norm] ord {ord!r} is not one of 'fro', 'nuc', 1, -1, 2, -2, inf, -inf"
        )
    if not keepdim:
        return result
    return result.reshape(
        [1 if axis in (rows, columns) else size for axis, size in enumerate(self._shape)]
    )


@method
def cond(self: Tensor, p: Order = None) -> Tensor:
    """The condition number: the norm of a matrix times that of its inverse.

    `p` is an order of `matrix_norm`; for None and 2 it is the largest singular value over the
    smallest one, of matrices of any shape. Singular matrices have infinity. Computed on the
    host.

    >>> from ferrule import Tensor
    >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).cond().item()
    2.0
    """
    if p is None or p in (2, -2, "nuc"):
        values = self.svdvals()
        largest, smallest = values.max(-1), values.min(-1)
        if p == "nuc":
            matrices_of(self, "cond")
            result = values.sum(-1) * (1 / values).sum(-1)
        else:
            result = smallest / largest if p == -2 else largest / smallest
    else:
        inverse = in_own_float(self, solving.inverse_or_infinity(matrices_of(self, "cond")))
        result = self.matrix_norm(p) * inverse.matrix_norm(p)
    undefined = result.isnan() & ~self.isnan().any((-2, -1))
    return undefined.where(math.inf, result)


def _is_upper(triangle: str, what: str) -> bool:
    if triangle not in ("L", "U", "l", "u"):
        raise ValueError(f"[{what}] UPLO is 'L' or 'U', for the triangle to read, not {triangle!r}")
    return triangle in ("U", "u")


def _complex_error(what: str) -> DTypeError:
    return DTypeError(
        f"[{what}] eigenvalues of general matrices are complex, and there is no complex dtype; "
        "use eigh for symmetric matrices, svd for others, or NumPy: np.linalg.eig(x.numpy())"
    )


def _extreme(values: Any, order: Any, axis: int) -> Any:
    return values.max(axis) if order > 0 else values.min(axis)
