"""Products with their customary names: of vectors, matrices, batches, chains, over any axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.autograd import Number
from ferrule.base.calls import is_several, whole
from ferrule.ir.dtype import compute_dtype, promote
from ferrule.ir.expr import sint
from ferrule.ir.shape.layout import storage_size
from ferrule.ir.shape.view import ShapeError, prod_sint, same
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import operands
from ferrule.tensor.shaping.joining import tensors_of


def _check_ranks(what: str, *wanted: tuple[Tensor, int]) -> None:
    if all(tensor.ndim == rank for tensor, rank in wanted):
        return
    ranks = " and ".join(str(rank) for _, rank in wanted)
    shapes = " and ".join(str(tensor.shape) for tensor, _ in wanted)
    raise ShapeError(
        f"[{what}] takes tensors of {ranks} axes, not of shapes {shapes}; "
        "reshape them, or use matmul, which takes any"
    )


def _size(tensor: Tensor, dim: int) -> sint:
    return tensor._shape[dim] if -tensor.ndim <= dim < tensor.ndim else 1


# -- matrices and batches ------------------------------------------------------------------------


@method
def mm(self: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices: (m, k) times (k, n).

    Raises `ShapeError` for tensors of other ranks.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).mm(Tensor([[1, 0], [1, 1]])).tolist()
    [[3, 2], [7, 4]]
    """
    _check_ranks("mm", (self, 2), (mat2, 2))
    return self @ mat2


@method
def mv(self: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector: (m, k) times (k,).

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).mv(Tensor([1, 1])).tolist()
    [3, 7]
    """
    _check_ranks("mv", (self, 2), (vec, 1))
    return self @ vec


@method
def bmm(self: Tensor, mat2: Tensor) -> Tensor:
    """The products of as many matrices: (b, m, k) times (b, k, n).

    >>> from ferrule import Tensor
    >>> Tensor([[[1, 2]], [[3, 4]]]).bmm(Tensor([[[1], [1]], [[1], [1]]])).tolist()
    [[[3]], [[7]]]
    """
    _check_ranks("bmm", (self, 3), (mat2, 3))
    if not same(self._shape[0], mat2._shape[0]):
        raise ShapeError(
            f"[bmm] batches of {self._shape[0]} and {mat2._shape[0]} matrices differ; "
            "expand one of them, or use matmul, which broadcasts"
        )
    return self @ mat2


@method
def addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * (mat1 @ mat2); with beta = 0 nothing of self counts.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 1]]).addmm(Tensor([[1, 2]]), Tensor([[1, 0], [1, 1]]), alpha=2).tolist()
    [[7, 5]]
    """
    _check_ranks("addmm", (mat1, 2), (mat2, 2))
    return _plus_product(self, mat1, mat2, beta, alpha)


@method
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * self + alpha * (mat @ vec).

    >>> from ferrule import Tensor
    >>> Tensor([1]).addmv(Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
    [4, 8]
    """
    _check_ranks("addmv", (mat, 2), (vec, 1))
    return _plus_product(self, mat, vec, beta, alpha)


@method
def baddbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * batch1.bmm(batch2).

    >>> from ferrule import Tensor
    >>> Tensor([1]).baddbmm(Tensor([[[1, 2]]]), Tensor([[[1], [1]]])).tolist()
    [[[4]]]
    """
    _check_ranks("baddbmm", (batch1, 3), (batch2, 3))
    return _plus_product(self, batch1, batch2, beta, alpha)


@method
def addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * the sum of all products of batch1.bmm(batch2).

    >>> from ferrule import Tensor
    >>> Tensor([1]).addbmm(Tensor([[[1]], [[2]]]), Tensor([[[3]], [[4]]])).tolist()
    [[12]]
    """
    _check_ranks("addbmm", (batch1, 3), (batch2, 3))
    # (b, m, k) and (b, k, n) as one product of (m, b * k) and (b * k, n).
    left = batch1.permute(1, 0, 2).flatten(1)
    return _plus_product(self, left, batch2.flatten(0, 1), beta, alpha)


@method
def addr(
    self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * self + alpha * vec1.outer(vec2).

    >>> from ferrule import Tensor
    >>> Tensor([[1, 1]]).addr(Tensor([1, 2]), Tensor([3, 4])).tolist()
    [[4, 5], [7, 9]]
    """
    _check_ranks("addr", (vec1, 1), (vec2, 1))
    return _plus_product(self, vec1.unsqueeze(1), vec2.unsqueeze(0), beta, alpha)


def _plus_product(self: Tensor, left: Tensor, right: Tensor, beta: Number, alpha: Number) -> Tensor:
    """Narrow floats are added up in float32, and rounded once."""
    dtype = promote(self.dtype, left.dtype, right.dtype)
    wide = compute_dtype(dtype)
    result = left.cast(wide) @ right.cast(wide)
    result = result if alpha == 1 else result * alpha
    if beta == 0:
        shape = broadcast_shape((self._shape, result._shape), "add")
        return result.cast(dtype).expand(shape)
    own = self.cast(wide)
    total = result + (own if beta == 1 else own * beta)
    return total if wide is dtype else total.cast(dtype)


@method
def multi_dot(self: Tensor, *others: Any) -> Tensor:
    """The product of several matrices, in the order of pairs that takes the fewest steps.

    The first and the last may be vectors. The tensors may come as one list.

    >>> from ferrule import Tensor
    >>> Tensor.multi_dot(Tensor([1, 2]), Tensor([[1, 0], [1, 1]]), Tensor([1, 1])).item()
    5
    """
    parts = tensors_of(self, others, "multi_dot")
    _check_ranks("multi_dot", *[(part, 2) for part in parts[1:-1]])
    if not all(part.ndim in (1, 2) for part in parts):
        raise ShapeError(
            "[multi_dot] takes matrices, and vectors at the ends, not the shapes "
            f"{' and '.join(str(part.shape) for part in parts)}; use matmul for more axes"
        )
    sizes = [storage_size((n,)) for n in _chain_sizes(parts)]
    chain: Tensor = _multiplied(parts, _cuts(sizes), 0, len(parts) - 1)
    return chain


@method
def chain_matmul(self: Tensor, *others: Any) -> Tensor:
    """The same as `multi_dot`.

    >>> from ferrule import Tensor
    >>> Tensor.chain_matmul(Tensor([[2]]), Tensor([[3]]), Tensor([[4]])).tolist()
    [[24]]
    """
    first, *rest = tensors_of(self, others, "chain_matmul")
    chain: Tensor = first.multi_dot(*rest)
    return chain


# -- vectors -------------------------------------------------------------------------------------


@method
def inner(self: Tensor, other: Tensor) -> Tensor:
    """The sum of products over the last axes of both; a number multiplies.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).inner(Tensor([1, 1])).tolist()
    [3, 7]
    """
    if not self._shape or not other._shape:
        return self * other
    return _contracted(self, other, (self.ndim - 1,), (other.ndim - 1,), "inner")


@method
def vdot(self: Tensor, other: Tensor) -> Tensor:
    """The sum of products of all elements, in row-major order.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
    11
    """
    a, b = self.flatten(), other.flatten()
    return _contracted(a, b, (0,), (0,), "vdot")


@method
def vecdot(self: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """The sum of products along one axis; the others broadcast.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 1])).tolist()
    [3, 7]
    """
    a, b = operands(self, other, "vecdot")
    dtype = a.dtype
    wide = compute_dtype(dtype)
    product = self._wrap(a.cast(wide) * b.cast(wide))
    return product.sum(dim, dtype=wide).cast(dtype)


@method
def ger(self: Tensor, vec2: Tensor) -> Tensor:
    """The same as `outer`.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).ger(Tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return self.outer(vec2)


@method
def cross(self: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """The vector product of vectors of 3 along one axis; the others broadcast.

    Raises `ShapeError` if the axis has not 3 elements.

    >>> from ferrule import Tensor
    >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    a, b = (self._wrap(value) for value in operands(self, other, "cross"))
    axis = a._axis(dim, "cross")
    if not all(same(_size(x, dim), 3) for x in (self, other)):
        raise ShapeError(
            f"[cross] axis {dim} of the shapes {self._shape} and {other._shape} must have 3 "
            "elements; for plane vectors pad a zero, or compute x[0] * y[1] - x[1] * y[0]"
        )
    a_next, b_next = a.roll(-1, axis), b.roll(-1, axis)
    return a_next * b.roll(-2, axis) - a.roll(-2, axis) * b_next


@method
def kron(self: Tensor, other: Tensor) -> Tensor:
    """Kronecker's product: a copy of `other`, times each element of this tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1, 10]).kron(Tensor([1, 2])).tolist()
    [1, 2, 10, 20]
    """
    rank = max(self.ndim, other.ndim)
    own = (1,) * (rank - self.ndim) + self._shape
    others = (1,) * (rank - other.ndim) + other._shape
    left = self.reshape([n for size in own for n in (size, 1)])
    right = other.reshape([n for size in others for n in (1, size)])
    sizes = [a * b for a, b in zip(own, others, strict=True)]
    return (left * right).reshape(sizes)


# -- any axes ------------------------------------------------------------------------------------


@method
def tensordot(self: Tensor, other: Tensor, dims: Any = 2) -> Tensor:
    """The sum of products over pairs of axes: the last of this with the first of `other`.

    `dims` is how many, or two lists: the axes here, and those of `other` that go with them. The
    other axes follow one another. An axis of size 1 broadcasts.

    Raises `ShapeError` for axes that do not pair.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([[1, 0], [0, 1]])).item()
    5
    >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([1, 1]), ([0], [0])).tolist()
    [4, 6]
    """
    if not is_several(dims):
        dims = whole(dims, "[tensordot] dims")
        if not 0 <= dims <= min(self.ndim, other.ndim):
            raise ShapeError(
                f"[tensordot] {dims} axes of the shapes {self._shape} and {other._shape} cannot"
                " be paired; give 0 to the smaller number of axes, or two lists"
            )
        mine = tuple(range(self.ndim - dims, self.ndim))
        theirs = tuple(range(dims))
    else:
        here, there = ([axes] if isinstance(axes, int) else list(axes) for axes in dims)
        mine = tuple(self._axis(axis, "tensordot") for axis in here)
        theirs = tuple(other._axis(axis, "tensordot") for axis in there)
    left, right = _shrunk(self, mine, other, theirs), _shrunk(other, theirs, self, mine)
    return _contracted(left, right, mine, theirs, "tensordot")


def _shrunk(self: Tensor, mine: tuple[int, ...], other: Tensor, theirs: tuple[int, ...]) -> Tensor:
    """Summed over the axes whose partner is 1."""
    pairs = zip(mine, theirs, strict=False)
    alone = [axis for axis, partner in pairs if same(other._shape[partner], 1)]
    return self.sum(alone, True, self.dtype) if alone else self


def _contracted(
    self: Tensor, other: Tensor, mine: tuple[int, ...], theirs: tuple[int, ...], what: str
) -> Tensor:
    """The sum over pairs of axes, as one product of matrices."""
    paired = [self._shape[axis] for axis in mine]
    sizes = [other._shape[axis] for axis in theirs]
    fits = len(paired) == len(sizes) and all(map(same, paired, sizes))
    if not fits or len(set(mine)) < len(mine) or len(set(theirs)) < len(theirs):
        raise ShapeError(
            f"[{what}] the axes {mine} of shape {self._shape} and {theirs} of shape "
            f"{other._shape} do not pair: as many axes, each once, of equal sizes"
        )
    free = [axis for axis in range(self.ndim) if axis not in mine]
    rest = [axis for axis in range(other.ndim) if axis not in theirs]
    rows = [self._shape[axis] for axis in free]
    columns = [other._shape[axis] for axis in rest]
    depth = prod_sint(paired)
    left = self.permute([*free, *mine]).reshape(prod_sint(rows), depth)
    right = other.permute([*theirs, *rest]).reshape(depth, prod_sint(columns))
    return (left @ right).reshape([*rows, *columns])


# *** chains of matrices ***


def _chain_sizes(parts: Sequence[Tensor]) -> list[sint]:
    """Rows of the first matrix, and the columns of each; vectors at the ends have one."""
    first = parts[0].shape
    sizes: list[sint] = [first[0] if len(first) > 1 else 1]
    sizes.extend(part.shape[-1] for part in parts[:-1])
    last = parts[-1].shape
    return [*sizes, last[-1] if len(last) > 1 else 1]


def _cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to cut each part of a chain in two: the dynamic program of Godbole (1973)."""
    count = len(sizes) - 1
    cost = {(place, place): 0 for place in range(count)}
    best: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for start in range(count - length):
            stop = start + length
            choices = {
                cut: cost[start, cut]
                + cost[cut + 1, stop]
                + sizes[start] * sizes[cut + 1] * sizes[stop + 1]
                for cut in range(start, stop)
            }
            best[start, stop] = min(choices, key=choices.__getitem__)
            cost[start, stop] = choices[best[start, stop]]
    return best


def _multiplied(
    parts: Sequence[Any], cuts: dict[tuple[int, int], int], start: int, stop: int
) -> Any:
    if start == stop:
        return parts[start]
    cut = cuts[start, stop]
    return _multiplied(parts, cuts, start, cut) @ _multiplied(parts, cuts, cut + 1, stop)
