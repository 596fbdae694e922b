"""Products of tensors: matrices of any rank, outer products, Einstein's notation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ferrule.dtype import DType, dtypes, promote
from ferrule.expr import sint
from ferrule.gradient import Shape, Value
from ferrule.shape.view import ShapeError, same
from ferrule.tensor.arithmetic import Operand
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import broadcast_shape, check_devices
from ferrule.tensor.data import from_host, to_dtype
from ferrule.tensor.indexing import Indexing


def accumulating(value: Value) -> Value:
    """The value in the type that its products are added up in: float32 for narrower floats."""
    narrow = dtypes.is_float(value.dtype) and value.dtype.itemsize < 4
    return value.cast(dtypes.float32) if narrow else value


def matrix_product(a: Value, b: Value) -> Value:
    """(…, m, k) times (…, k, n), of one dtype; the leading axes broadcast."""
    dtype = a.dtype
    rows, columns = a.shape[-2], b.shape[-1]
    depth = a.shape[-1]
    batch = broadcast_shape((a.shape[:-2], b.shape[:-2]), "matmul")
    shape = (*batch, rows, columns, depth)
    a = _with_axis(accumulating(a), len(batch), -2)
    rank = len(b.shape)
    b = b.permute([*range(rank - 2), rank - 1, rank - 2])
    b = _with_axis(accumulating(b), len(batch), -3)
    product = a.expand(shape) * b.expand(shape)
    total = product.sum((len(shape) - 1,)).reshape(shape[:-1])
    return total.cast(dtype)


def _with_axis(value: Value, batch: int, place: int) -> Value:
    """A matrix with axes of size 1: in front up to `batch`, and one before the axis `place + 1`."""
    shape = value.shape
    missing = batch + 2 - len(shape)
    inner = (shape[-2], 1, shape[-1]) if place == -2 else (1, shape[-2], shape[-1])
    return value.reshape((1,) * missing + shape[:-2] + inner)


def _to_matrices(a: Value, b: Value) -> tuple[Value, Value, Shape]:
    """Vectors as matrices of one row or column, and the shape of the result."""
    batch = broadcast_shape((a.shape[:-2], b.shape[:-2]), "matmul")
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    if len(a.shape) == 1:
        a = a.reshape((1, *a.shape))
    if len(b.shape) == 1:
        b = b.reshape((*b.shape, 1))
    return a, b, (*batch, *rows, *columns)


class Linalg(Indexing):
    """Matrix products and what is made of them."""

    __slots__ = ()

    def matmul(self, other: Operand, dtype: DType | str | None = None) -> Self:
        """The matrix product over the last axis of this and the last but one of `other`.

        Vectors and leading axes are treated as NumPy does. float16 and bfloat16 are added up in
        float32 and rounded once; `dtype` is that of the result. Where the processor adds up
        bfloat16 by an instruction of its own, numbers below 2**-126 count as zeros.

        Raises `ShapeError` if the sizes of the two axes differ.

        >>> from ferrule import Tensor
        >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([[1, 0], [1, 1]])).tolist()
        [[3, 2], [7, 4]]
        """
        return self._product(other, None if dtype is None else to_dtype(dtype), swap=False)

    def dot(self, other: Operand) -> Self:
        """The same as `matmul`.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).dot(Tensor([3, 4])).item()
        11
        """
        return self._product(other, None, swap=False)

    def __matmul__(self, other: Operand) -> Self:
        return self._product(other, None, swap=False)

    def __rmatmul__(self, other: Operand) -> Self:
        return self._product(other, None, swap=True)

    def __imatmul__(self, other: Operand) -> Self:
        return self._update(self @ other, "@=")

    def _product(self, other: Operand, wanted: DType | None, swap: bool) -> Self:
        a = self._read()
        b = self._operand(other)
        if not a.shape or not b.shape:
            raise ShapeError(
                f"[matmul] {a.shape} @ {b.shape}: a number has no axis to sum over; use *"
            )
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
            dtype = promote(dtype, wanted)
        a, b, shape = _to_matrices(a.cast(dtype), b.cast(dtype))
        result = matrix_product(a, b).reshape(shape)
        return self._wrap(result if wanted is None else result.cast(wanted))

    def _operand(self, other: Operand) -> Value:
        if isinstance(other, TensorBase):
            return other._read()
        return from_host(other, None, self.device)

    def outer(self, other: TensorBase) -> Self:
        """All products of an element of this vector with one of another.

        >>> from ferrule import Tensor
        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        return self.flatten().unsqueeze(1) * self._wrap(other._read()).flatten()

    def linear(self, weight: TensorBase, bias: TensorBase | None = None) -> Self:
        """self @ weight + bias; a weight of one axis multiplies element by element.

        >>> from ferrule import Tensor
        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0], [1.0]]), Tensor([10.0])).tolist()
        [[13.0]]
        """
        result = self * weight if weight.ndim == 1 else self @ weight
        return result if bias is None else result + bias

    @classmethod
    def einsum(cls, formula: str, *operands: Any) -> Self:
        """The sum of products in Einstein's notation, such as "ij,jk->ik".

        Letters that are not in the result are summed over, a letter that an operand repeats takes
        its diagonal, and "..." stands for axes that broadcast. Operands are multiplied from left to
        right.

        >>> from ferrule import Tensor
        >>> Tensor.einsum("ij,j->i", Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
        [3, 7]
        """
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = tuple(operands[0])
        tensors = [part if isinstance(part, TensorBase) else cls(part) for part in operands]
        inputs, output = _parse(formula, [tensor.shape for tensor in tensors])
        dtype = promote(*[tensor.dtype for tensor in tensors])
        values = [tensor._read().cast(dtype) for tensor in tensors]
        for value in values[1:]:
            check_devices(values[0], value, "einsum")
        return cls._wrap(_einsum(inputs, output, values).cast(dtype))


# *** Einstein's notation ***


def _parse(formula: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; "..." is replaced by capitals of its own."""
    left, arrow, right = formula.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ShapeError(
            f"[einsum] {formula!r} names {len(terms)} operands, and {len(shapes)} are given"
        )
    spare = [chr(code) for code in range(0x100, 0x200)]
    inputs: list[str] = []
    widest = ""
    for term, shape in zip(terms, shapes, strict=True):
        extra = len(shape) - len(term.replace("...", ""))
        if extra < 0 or (extra > 0 and "..." not in term):
            raise ShapeError(
                f"[einsum] {formula!r}: {term!r} does not name the {len(shape)} axes of shape "
                f"{shape}"
            )
        dots = "".join(spare[64 - extra : 64])
        widest = max(widest, dots, key=len)
        inputs.append(term.replace("...", dots))
    if arrow:
        output = right.replace("...", widest)
    else:
        letters = "".join(inputs)
        once = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in widest)
        output = widest + "".join(once)
    unknown = set(output) - set("".join(inputs))
    if unknown or len(set(output)) < len(output):
        raise ShapeError(
            f"[einsum] {formula!r}: the result {right!r} needs letters of the operands, each once"
        )
    return inputs, output


def _einsum(inputs: Sequence[str], output: str, values: Sequence[Value]) -> Value:
    letters, result = _diagonal(inputs[0], accumulating(values[0]))
    for place in range(1, len(values)):
        term, value = _diagonal(inputs[place], accumulating(values[place]))
        needed = output + "".join(inputs[place + 1 :])
        letters, result = _contracted(letters, result, term, value, needed)
    letters, result = _summed(letters, result, output)
    return result.permute([letters.index(letter) for letter in output])


def _diagonal(term: str, value: Value) -> tuple[str, Value]:
    """An operand without repeated letters."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            order = [axis for axis in range(len(term)) if axis not in (first, second)]
            value = _main_diagonal(value.permute([*order, first, second]), letter)
            term = "".join(term[axis] for axis in order) + letter
    return term, value


def _main_diagonal(value: Value, letter: str) -> Value:
    """The diagonal of the last two axes: in rows that are one element longer it is a column."""
    size = value.shape[-1]
    if not isinstance(size, int) or not same(value.shape[-2], size):
        raise ShapeError(f"[einsum] {letter!r} stands for two sizes in shape {value.shape}")
    batch = value.shape[:-2]
    none = ((0, 0),) * len(batch)
    flat = value.reshape((*batch, size * size)).pad((*none, (0, size)))
    rows = flat.reshape((*batch, size, size + 1))
    kept = [(0, n) for n in (*batch, size)]
    return rows.shrink([*kept, (0, 1)]).reshape((*batch, size))


def _contracted(a: str, left: Value, b: str, right: Value, needed: str) -> tuple[str, Value]:
    """The product of two operands, summed over the letters that are needed no more."""
    a, left = _summed(a, left, needed + b)
    b, right = _summed(b, right, needed + a)
    letters = "".join(dict.fromkeys(a + b))
    kept = [letter for letter in letters if letter in needed]
    gone = [letter for letter in letters if letter not in needed]
    order = "".join([*kept, *gone])
    sizes = _sizes(order, (a, left.shape), (b, right.shape))
    product = _aligned(a, left, order, sizes) * _aligned(b, right, order, sizes)
    total = product.sum(range(len(kept), len(order)))
    return "".join(kept), total.reshape(sizes[: len(kept)])


def _sizes(letters: str, *terms: tuple[str, Shape]) -> Shape:
    sizes: dict[str, sint] = {}
    for term, shape in terms:
        for letter, size in zip(term, shape, strict=True):
            known = sizes.get(letter, 1)
            if not same(known, size) and not same(known, 1) and not same(size, 1):
                raise ShapeError(
                    f"[einsum] {letter!r} stands for two sizes: {known} and {size}; "
                    "use another letter, or make them equal"
                )
            sizes[letter] = size if same(known, 1) else known
    return tuple([sizes[letter] for letter in letters])


def _aligned(term: str, value: Value, order: str, sizes: Shape) -> Value:
    """An operand with an axis for each letter in order."""
    present = [letter for letter in order if letter in term]
    value = value.permute([term.index(letter) for letter in present])
    axes = dict(zip(present, value.shape, strict=True))
    return value.reshape(tuple([axes.get(letter, 1) for letter in order])).expand(sizes)


def _summed(term: str, value: Value, needed: str) -> tuple[str, Value]:
    """An operand summed over letters that nothing else needs."""
    axes = [axis for axis, letter in enumerate(term) if letter not in needed]
    kept = [axis for axis in range(len(term)) if axis not in axes]
    shape = tuple([value.shape[axis] for axis in kept])
    return "".join(term[axis] for axis in kept), value.sum(axes).reshape(shape)
