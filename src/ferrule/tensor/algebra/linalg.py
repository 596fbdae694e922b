"""Products of tensors: matrices of any rank, outer products, Einstein's notation."""

from __future__ import annotations

from typing import Any

from ferrule.autograd import Shape, TracedValue
from ferrule.ir.dtype import DType, dtypes, promote
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor.algebra import einstein
from ferrule.tensor.algebra.einstein import formula_of, parse
from ferrule.tensor.algebra.matrices import matrix_product
from ferrule.tensor.autocast import autocasting
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, check_devices
from ferrule.tensor.data import DTypeLike, from_host, to_dtype
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import Operand


def _accumulated(a: DType, b: DType, wanted: DType) -> DType:
    """The dtype that a product of matrices is added up in, for a result of dtype `wanted`.

    int64 and uint64 have no common integer type, but sums of integers wrap: they are the same bits
    if they are added up in the dtype of the result.
    """
    common = promote(promote(a, b), wanted)
    whole = not any(dtypes.is_float(dtype) for dtype in (a, b, wanted))
    return wanted if whole and dtypes.is_float(common) else common


def _to_matrices(a: TracedValue, b: TracedValue) -> tuple[TracedValue, TracedValue, Shape]:
    """Vectors as matrices of one row or column, and the shape of the result."""
    batch = broadcast_shape((a.shape[:-2], b.shape[:-2]), "matmul")
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    if len(a.shape) == 1:
        a = a.reshape((1, *a.shape))
    if len(b.shape) == 1:
        b = b.reshape((*b.shape, 1))
    return a, b, (*batch, *rows, *columns)


@method
def matmul(self: Tensor, other: Operand, dtype: DTypeLike | None = None) -> Tensor:
    """The matrix product over the last axis of this and the last but one of `other`.

    Vectors and leading axes are treated as NumPy does. float16 and bfloat16 are added up in
    float32 and rounded once; `dtype` is that of the result. Where the processor adds up
    bfloat16 by an instruction of its own, numbers below 2**-126 count as zeros.

    Raises `ShapeError` if the sizes of the two axes differ.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([[1, 0], [1, 1]])).tolist()
    [[3, 2], [7, 4]]
    """
    return _product(self, other, None if dtype is None else to_dtype(dtype), swap=False)


@method
def dot(self: Tensor, other: Operand) -> Tensor:
    """The same as `matmul`.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).dot(Tensor([3, 4])).item()
    11
    """
    return _product(self, other, None, swap=False)


@autocasting
def rmatmul(self: Tensor, other: Operand) -> Tensor:
    """other @ self."""
    return _product(self, other, None, swap=True)


def _product(self: Tensor, other: Operand, wanted: DType | None, swap: bool) -> Tensor:
    a = self._read()
    b = operand_value(self, other)
    if not a.shape or not b.shape:
        raise ShapeError(f"[matmul] {a.shape} @ {b.shape}: a number has no axis to sum over; use *")
    if swap:
        a, b = b, a
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if not same(a.shape[-1], inner):
        raise ShapeError(
            f"[matmul] {a.shape} @ {b.shape}: the last axis of the left, of size "
            f"{a.shape[-1]}, and the {'last but one' if len(b.shape) > 1 else 'only'} axis of "
            f"the right, of size {inner}, must be equal; transpose one of them"
        )
    check_devices(a, b, "matmul")
    dtype = promote(a.dtype, b.dtype)
    if wanted is not None:
        dtype = _accumulated(a.dtype, b.dtype, wanted)
    a, b, shape = _to_matrices(a.cast(dtype), b.cast(dtype))
    result = matrix_product(a, b).reshape(shape)
    return self._wrap(result if wanted is None else result.cast(wanted))


def operand_value(self: Tensor, other: Operand) -> TracedValue:
    """The value of another operand; on this tensor's device, unless it is a tensor."""
    if isinstance(other, Tensor):
        return other._read()
    return from_host(other, None, self.device)


@method
def outer(self: Tensor, other: Tensor) -> Tensor:
    """All products of an element of this vector with one of another.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return self.flatten().unsqueeze(1) * other.flatten()


@method
def linear(self: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """self @ weight + bias; a weight of one axis multiplies element by element.

    >>> from ferrule import Tensor
    >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0], [1.0]]), Tensor([10.0])).tolist()
    [[13.0]]
    """
    result = self * weight if weight.ndim == 1 else self @ weight
    return result if bias is None else result + bias


@method
def einsum(cls: type[Tensor], /, formula: Any, *operands: Any) -> Tensor:
    """The sum of products in Einstein's notation, such as "ij,jk->ik".

    Letters that are not in the result are summed over, a letter that an operand repeats takes
    its diagonal, and "..." stands for axes that broadcast. Without "->" the result has the
    letters that occur once, in order. Three and more operands are multiplied two at a time,
    first those whose product frees the most memory. The operands may be one list; and instead
    of a formula, each may be followed by a list of numbers for its axes.

    Raises `ShapeError` for a formula that does not fit the operands.

    >>> from ferrule import Tensor
    >>> Tensor.einsum("ij,j->i", Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
    [3, 7]
    >>> Tensor.einsum(Tensor([[1, 2], [3, 4]]), [0, 0]).item()
    5
    """
    if not isinstance(formula, str):
        formula, operands = formula_of((formula, *operands))
    elif len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    tensors = [part if isinstance(part, Tensor) else cls(part) for part in operands]
    inputs, output = parse(formula, [tensor.shape for tensor in tensors])
    dtype = promote(*[tensor.dtype for tensor in tensors])
    values = [tensor._read().cast(dtype) for tensor in tensors]
    for value in values[1:]:
        check_devices(values[0], value, "einsum")
    return cls._wrap(einstein.einsum(inputs, output, values).cast(dtype))
