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


def shifted(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    """Whole numbers of 8 bits less their zero point, one for all or one for each along an axis."""
    wide = x.cast(dtypes.int32)
    if zero is None:
        return wide
    offset = zero.cast(dtypes.int32)
    if offset.numel() == 1:
        return wide - offset.reshape(())
    if axis is not None and offset.ndim == 1:
        shape = [1] * x.ndim
        shape[axis] = -1
        offset = offset.reshape(*shape)
    return wide - offset


@rule("MatMulInteger", 10)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return (shifted(a, a_zero, -2) @ shifted(b, b_zero, -1)).cast(dtypes.int32)
