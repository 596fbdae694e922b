"""Matrices with structure: diagonals, blocks, powers of a vector; distances between vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.ir.dtype import dtypes, promote
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.algebra.matrices import diagonal_matrix, diagonal_part
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.data import DTypeLike, to_device, to_dtype
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import as_floats
from ferrule.tensor.reduce.norms import norm_along
from ferrule.tensor.shaping.joining import tensors_of

# -- diagonals -----------------------------------------------------------------------------------


@method
def diag(self: Tensor, diagonal: int = 0) -> Tensor:
    """A vector as the diagonal of a square matrix, or the diagonal of a matrix as a vector.

    `diagonal` is how far above the main one it is. A copy, where `diagonal()` is a view. Raises
    `ShapeError` for other ranks.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).diag().tolist(), Tensor([[1, 2], [3, 4]]).diag().tolist()
    ([[1, 0], [0, 2]], [1, 4])
    """
    if self.ndim == 1:
        return self.diag_embed(diagonal)
    if self.ndim != 2:
        raise ShapeError(
            f"[diag] takes a vector or a matrix, not shape {self._shape}; "
            "use diag_embed or diagonal for more axes"
        )
    return self._wrap(diagonal_part(_matrix_of(self, (0, 1), "diag"), diagonal))


@method
def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last axis as a diagonal of square matrices, whose axes in the result are given.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2]]).diag_embed().tolist()
    [[[1, 0], [0, 2]]]
    """
    if not self._shape:
        raise ShapeError("[diag_embed] a tensor without axes has none to embed; reshape(1) it")
    known_size(self._shape[-1], "diag_embed")
    made = self._wrap(diagonal_matrix(self._read(), offset))
    rows, columns = made._axis(dim1, "diag_embed"), made._axis(dim2, "diag_embed")
    if rows == columns:
        raise ShapeError(f"[diag_embed] the axes {dim1} and {dim2} are the same; give two")
    return made.movedim((-2, -1), (rows, columns))


@method
def diagflat(self: Tensor, offset: int = 0) -> Tensor:
    """All elements, in row-major order, as the diagonal of a square matrix.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2]]).diagflat().tolist()
    [[1, 0], [0, 2]]
    """
    return self.flatten().diag_embed(offset)


@method
def trace(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The sum of a diagonal of two axes. Types as those of `sum`.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).trace().item()
    5
    """
    value = _matrix_of(self, (dim1, dim2), "trace")
    return self._wrap(diagonal_part(value, offset)).sum(-1)


def _matrix_of(self: Tensor, axes: tuple[int, int], what: str) -> TracedValue:
    """The value with two axes, of known sizes, moved to the end."""
    if self.ndim < 2:
        raise ShapeError(f"[{what}] shape {self._shape} has less than two axes")
    rows, columns = (self._axis(axis, what) for axis in axes)
    if rows == columns:
        raise ShapeError(f"[{what}] the axes {axes[0]} and {axes[1]} are the same; give two")
    for axis in (rows, columns):
        known_size(self._shape[axis], what)
    rest = [axis for axis in range(self.ndim) if axis not in (rows, columns)]
    return self._read().permute([*rest, rows, columns])


# -- blocks and powers ---------------------------------------------------------------------------


@method
def block_diag(self: Tensor, *others: Any) -> Tensor:
    """Matrices one after the other on the diagonal, zeros elsewhere; vectors are rows.

    The tensors may come as one list. Raises `ShapeError` for more than two axes, and
    `TypeError` for anything but tensors.

    >>> from ferrule import Tensor
    >>> Tensor.block_diag(Tensor([[1, 2]]), Tensor([3])).tolist()
    [[1, 2, 0], [0, 0, 3]]
    """
    blocks: list[Tensor] = [_as_block(part) for part in tensors_of(self, others, "block_diag")]
    dtype = promote(*[block.dtype for block in blocks])
    widths = [known_size(block._shape[1], "block_diag") for block in blocks]
    rows = [
        block.cast(dtype).pad((sum(widths[:place]), sum(widths[place + 1 :])))
        for place, block in enumerate(blocks)
    ]
    return rows[0].cat(*rows[1:])


@method
def vander(self: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Vandermonde's matrices: each element's powers from 0 to N - 1, as a new last axis.

    Powers decrease from left to right unless `increasing`. N is the size of the last axis
    unless it is given.

    >>> from ferrule import Tensor
    >>> Tensor([2, 3]).vander(3).tolist()
    [[4, 2, 1], [9, 3, 1]]
    """
    if not self._shape:
        return self.reshape(1).vander(N, increasing)
    count = known_size(self._shape[-1], "vander") if N is None else N
    if count < 0:
        raise ShapeError(f"[vander] the number of powers is at least 0, not {count}")
    value = self._read()
    if value.dtype is dtypes.bool:
        value = value.cast(dtypes.default_int)
    if count == 0:
        return self._wrap(value.nothing((*value.shape, 0)))
    base = self._wrap(value.reshape((*value.shape, 1)))
    powers = self._wrap(base._read().full(1))
    known, factor = 1, base
    while known < count:  # powers below `known`, and x**known
        powers = powers.cat(powers * factor, dim=-1)
        known, factor = 2 * known, factor * factor
    powers = powers.narrow(-1, 0, count)
    return powers if increasing else powers.flip(-1)


# -- positions -----------------------------------------------------------------------------------


@method
def tril_indices(
    cls: type[Tensor],
    /,
    row: int,
    col: int,
    offset: int = 0,
    device: str | None = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Rows and columns of the elements on and below a diagonal, as two lines; int32.

    >>> from ferrule import Tensor
    >>> Tensor.tril_indices(2, 2).tolist()
    [[0, 1, 1], [0, 0, 1]]
    """
    return _positions(cls, np.tril_indices(row, offset, col), device, dtype)


@method
def triu_indices(
    cls: type[Tensor],
    /,
    row: int,
    col: int,
    offset: int = 0,
    device: str | None = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Rows and columns of the elements on and above a diagonal, as two lines; int32.

    >>> from ferrule import Tensor
    >>> Tensor.triu_indices(2, 2).tolist()
    [[0, 0, 1], [0, 1, 1]]
    """
    return _positions(cls, np.triu_indices(row, offset, col), device, dtype)


def _positions(
    cls: type[Tensor], /, places: Any, device: str | None, dtype: DTypeLike | None
) -> Tensor:
    chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
    return cls(np.stack(places), device=to_device(device), dtype=chosen)


# -- distances -----------------------------------------------------------------------------------


@method
def cdist(self: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The p-norm of the difference of each row here, (…, m, k), and there, (…, n, k).

    The result is (…, m, n); leading axes broadcast. The gradient of a distance of 0 is 0.
    `compute_mode` is PyTorch's, and changes nothing here: differences are taken one by one.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, 0.0], [3.0, 0.0]]).cdist(Tensor([[0.0, 4.0]])).tolist()
    [[4.0], [5.0]]
    """
    if self.ndim < 2 or x2.ndim < 2:
        raise ShapeError(
            f"[cdist] the shapes {self._shape} and {x2._shape} need rows: at least two axes"
        )
    difference = as_floats(self, x2).unsqueeze(-2) - x2.unsqueeze(-3)
    value = difference._read()
    if value.edge is None or not isinstance(p, int | float):
        return difference.norm(p, -1)
    # The gradients of both need the distances, which are as much work as either.
    found = norm_along(value, float(p), (difference.ndim - 1,), kept=True)
    return self._wrap(found.reshape(difference._shape[:-1]))


def _as_block(part: Any) -> Any:
    if part.ndim > 2:
        raise ShapeError(
            f"[block_diag] takes matrices, not shape {part.shape}; take them apart with unbind"
        )
    return part.reshape((1,) * (2 - part.ndim) + part.shape)
