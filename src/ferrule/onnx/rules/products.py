"""Products of matrices and vectors."""

from __future__ import annotations

from ferrule.ir.dtype import dtypes
from ferrule.onnx.registry import rule
from ferrule.tensor import Tensor


@rule("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b).cast(a.dtype)


@rule("Gemm", 7)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    y = (a.transpose(0, 1) if transA else a) @ (b.transpose(0, 1) if transB else b)
    if alpha != 1:
        y = y * alpha
    if c is not None and beta:
        y = y + (c if beta == 1 else c * beta)
    return y.cast(a.dtype)


@rule("Gemm")
def gemm_old(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    return gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


@rule("Einsum", 12)
def einsum(*xs: Tensor, equation: str) -> Tensor:
    return Tensor.einsum(equation.replace(" ", ""), *xs)


@rule("Det", 11)
def determinant(x: Tensor) -> Tensor:
    return x.det()


def integer_product(
    a: Tensor,
    b: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    a_sums: Tensor | None = None,
    b_sums: Tensor | None = None,
) -> Tensor:
    """The product of matrices of 8-bit numbers less their zero points, in int32.

    A zero point is one number, or one for each row of `a`, or column of `b`, along its last axis.
    The product is that of the numbers themselves, for which processors have instructions; what the
    zero points take away are sums of rows and columns:
    (A - p)(B - q) = AB - p sum(B) - sum(A) q + K p q. `a_sums` and `b_sums` are these sums, if they
    are known.
    """
    terms = a.shape[-1]
    a, b = a.cast(dtypes.int32), b.cast(dtypes.int32)
    y = a @ b
    p = None if a_zero is None else _column(a_zero.cast(dtypes.int32))
    q = None if b_zero is None else b_zero.cast(dtypes.int32)
    if p is not None:
        if b_sums is None:
            b_sums = b.sum(-2, dtype=dtypes.int32).contiguous()
        sums = b_sums.unsqueeze(-2)
        y = y - p * (sums if q is None else sums - terms * q)
    if q is not None:
        if a_sums is None:
            a_sums = a.sum(-1, dtype=dtypes.int32).contiguous()
        y = y - a_sums.unsqueeze(-1) * q
    return y.cast(dtypes.int32)


def _column(zero: Tensor) -> Tensor:
    return zero.unsqueeze(-1) if zero.ndim else zero


@rule("MatMulInteger", 10)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return integer_product(a, b, a_zero, b_zero)
