"""Products of matrices and vectors, and the extension `linalg` of the array API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ferrule.array_api.data_types import total_dtype
from ferrule.array_api.manipulation import matrix_transpose
from ferrule.ir.dtype import DType
from ferrule.tensor import Tensor
from ferrule.tensor.algebra.decompositions import QR, SVD, Eigh
from ferrule.tensor.algebra.solvers import SlogDet

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product over the last axis of x1 and the last but one of x2."""
    return x1.matmul(x2)


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """The sum of products over the last axes of x1 and the first of x2, or those named."""
    return x1.tensordot(x2, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis of both."""
    return x1.vecdot(x2, axis)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """All products of an element of one vector with one of another."""
    return x1.outer(x2)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along an axis."""
    return x1.cross(x2, axis)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """The sum of a diagonal of the last two axes."""
    chosen = dtype or total_dtype(x.dtype)
    return x.cast(chosen).trace(offset, -2, -1).cast(chosen)


def vector_norm(
    x: Tensor,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Tensor:
    """The norm of order `ord` along some axes, or of all elements."""
    return x.vector_norm(ord, axis, keepdims)


def matrix_norm(
    x: Tensor,
    /,
    *,
    keepdims: bool = False,
    ord: float | Literal["fro", "nuc"] | None = "fro",
) -> Tensor:
    """A norm of matrices: Frobenius', or another by name or order."""
    return x.matrix_norm("fro" if ord is None else ord, (-2, -1), keepdims)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """A diagonal of the last two axes, `offset` above the main one."""
    return x.diagonal(offset, -2, -1)


# *** computed on the host ***


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangle L with L @ L.mT = x, or U with U.mT @ U = x if `upper`."""
    return x.cholesky(upper)


def det(x: Tensor, /) -> Tensor:
    """The determinant."""
    return x.det()


def eigh(x: Tensor, /) -> Eigh[Tensor]:
    """The eigenvalues and eigenvectors of symmetric matrices."""
    return x.eigh()


def eigvalsh(x: Tensor, /) -> Tensor:
    """The eigenvalues of symmetric matrices."""
    return x.eigvalsh()


def inv(x: Tensor, /) -> Tensor:
    """The inverse."""
    return x.inv()


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """A square matrix times itself; for a negative n, its inverse."""
    return x.matrix_power(n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The number of singular values above `rtol` times the largest."""
    return x.matrix_rank(rtol=rtol)


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The pseudo-inverse; singular values below `rtol` times the largest count as 0."""
    return x.pinv(rtol)


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR[Tensor]:
    """Q with orthonormal columns and R, an upper triangle, with Q @ R = x."""
    return x.qr(mode)


def slogdet(x: Tensor, /) -> SlogDet[Tensor]:
    """The sign of the determinant, and the logarithm of its size."""
    return x.slogdet()


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """X with x1 @ X = x2."""
    return x1.solve(x2)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD[Tensor]:
    """U, S and Vh with U @ diag(S) @ Vh = x."""
    return x.svd(full_matrices)


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values, the largest first."""
    return x.svdvals()
