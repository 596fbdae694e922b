"""More ways to rearrange, join and split, by PyTorch's and NumPy's names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ferrule.autograd import Number
from ferrule.base.calls import is_several, whole
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, known_size
from ferrule.tensor.cell import DIAGONAL
from ferrule.tensor.keywords import method
from ferrule.tensor.limits import plain
from ferrule.tensor.shaping.joining import tensors_of
from ferrule.tensor.shaping.movement import listed

# -- axes ----------------------------------------------------------------------------------------


@method
def swapaxes(self: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two axes swapped: NumPy's name of `transpose`. A view.

    >>> from ferrule import Tensor
    >>> Tensor.zeros(2, 3, 4).swapaxes(0, 2).shape
    (4, 3, 2)
    """
    return self.transpose(axis0, axis1)


@method
def swapdims(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """The same as `swapaxes`. A view.

    >>> from ferrule import Tensor
    >>> Tensor.zeros(2, 3, 4).swapdims(0, 1).shape
    (3, 2, 4)
    """
    return self.transpose(dim0, dim1)


@method
def t(self: Tensor) -> Tensor:
    """A matrix transposed; tensors with fewer axes unchanged. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2]]).t().tolist()
    [[1], [2]]
    """
    if self.ndim > 2:
        raise ShapeError(
            f"[t] takes at most two axes, not shape {self._shape}; use mT or transpose(a, b)"
        )
    return self.T


@method
def adjoint(self: Tensor) -> Tensor:
    """The last two axes swapped, as `mT`: there are no complex numbers. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2]]).adjoint().shape
    (2, 1)
    """
    return self.mT


@method
def ravel(self: Tensor) -> Tensor:
    """NumPy's name of `flatten`. A view, or a copy where NumPy's is one.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).ravel().tolist()
    [1, 2, 3, 4]
    """
    return self.flatten()


@method
def view_as(self: Tensor, other: Tensor) -> Tensor:
    """The same elements under the shape of another tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).view_as(Tensor([[3], [4]])).tolist()
    [[1], [2]]
    """
    return self.reshape(other._shape)


@method
def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """The same as `view_as`.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).reshape_as(Tensor([[3], [4]])).shape
    (2, 1)
    """
    return self.reshape(other._shape)


@method
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two axes as a new last axis, `offset` above the main one. A view.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1, 2], [3, 4]])
    >>> x.diagonal()[:] = 0
    >>> x.tolist()
    [[0, 2], [3, 0]]
    """
    if self.ndim < 2:
        raise ShapeError(f"[diagonal] shape {self._shape} has less than two axes; give it two")
    rows, columns = self._axis(dim1, "diagonal"), self._axis(dim2, "diagonal")
    if rows == columns:
        raise ShapeError(f"[diagonal] the axes {dim1} and {dim2} are the same; give two")
    moved = self.movedim((rows, columns), (-2, -1))
    high, wide = (known_size(size, "diagonal") for size in moved._shape[-2:])
    offset = plain(offset)
    top, left = max(-offset, 0), max(offset, 0)
    size = max(min(high - top, wide - left), 0)
    top, left = min(top, high - size), min(left, wide - size)
    square = moved.narrow(-2, top, size).narrow(-1, left, size)
    return square._view_of(DIAGONAL, None)


@method
def fill_diagonal_(self: Tensor, value: Number) -> Tensor:
    """Writes one value to the main diagonal of a matrix, in place; returns the tensor.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).fill_diagonal_(0).tolist()
    [[0, 2], [3, 0]]
    """
    self.diagonal().assign(value)
    return self


@method
def atleast_1d(self: Tensor | Sequence[Tensor], *others: Any) -> Any:
    """With one axis at least; of several tensors, or a list of them, a tuple. Views.

    >>> from ferrule import Tensor
    >>> Tensor(3).atleast_1d().shape
    (1,)
    """
    return _each(self, others, lambda x: x.reshape(1) if x.ndim == 0 else x)


@method
def atleast_2d(self: Tensor | Sequence[Tensor], *others: Any) -> Any:
    """With two axes at least: new ones come in front; of several tensors a tuple. Views.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).atleast_2d().shape
    (1, 2)
    """
    return _each(self, others, lambda x: x.reshape((1,) * (2 - x.ndim) + x._shape))


@method
def atleast_3d(self: Tensor | Sequence[Tensor], *others: Any) -> Any:
    """With three axes at least: a vector is (1, n, 1), a matrix (m, n, 1). Views.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).atleast_3d().shape
    (1, 2, 1)
    """
    return _each(self, others, _with_three_axes)


# -- turning -------------------------------------------------------------------------------------


@method
def fliplr(self: Tensor) -> Tensor:
    """The second axis reversed. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2]]).fliplr().tolist()
    [[2, 1]]
    """
    _need_axes(self, 2, "fliplr")
    return self.flip(1)


@method
def flipud(self: Tensor) -> Tensor:
    """The first axis reversed. A view.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).flipud().tolist()
    [2, 1]
    """
    _need_axes(self, 1, "flipud")
    return self.flip(0)


def _need_axes(self: Tensor, count: int, what: str) -> None:
    if self.ndim < count:
        raise ShapeError(
            f"[{what}] takes {count} axes or more, not shape {self._shape}; reshape it first"
        )


@method
def rot90(self: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by k quarters in the plane of two axes, from the first towards the second. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).rot90().tolist()
    [[2, 4], [1, 3]]
    """
    if len(dims) != 2:
        raise ShapeError(f"[rot90] takes two axes, not {tuple(dims)}")
    first, second = (self._axis(dim, "rot90") for dim in dims)
    if first == second:
        raise ShapeError(f"[rot90] the axes {tuple(dims)} are the same; give two")
    if k % 4 == 0:
        return self
    if k % 4 == 2:
        return self.flip(first, second)
    turned = self.transpose(first, second)
    return turned.flip(first if k % 4 == 1 else second)


# -- repeating and padding -----------------------------------------------------------------------


@method
def tile(self: Tensor, *reps: Any) -> Tensor:
    """The whole tensor several times along each axis; missing counts are 1, in front.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2]]).tile(2).tolist()
    [[1, 2, 1, 2]]
    """
    counts = listed(reps)
    return self.repeat((1,) * (self.ndim - len(counts)) + counts)


@method
def constant_pad_nd(self: Tensor, pad: Sequence[sint], value: Number = 0) -> Tensor:
    """`pad` with a constant.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).constant_pad_nd((1, 0), 9).tolist()
    [9, 1, 2]
    """
    return self.pad(pad, "constant", value)


# -- broadcasting --------------------------------------------------------------------------------


@method
def broadcast_shapes(*shapes: Any) -> tuple[sint, ...]:
    """The shape to which all shapes broadcast; a number stands for a shape of one axis.

    Raises `ShapeError` if they do not.

    >>> from ferrule import Tensor
    >>> Tensor.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    wanted = [tuple(shape) if isinstance(shape, Iterable) else (shape,) for shape in shapes]
    return broadcast_shape(wanted, "broadcast_shapes") if wanted else ()


@method
def broadcast_tensors(self: Tensor | Sequence[Tensor], *others: Any) -> tuple[Tensor, ...]:
    """This tensor and others, or a list of tensors, expanded to one shape. Views.

    >>> from ferrule import Tensor
    >>> [x.shape for x in Tensor([1, 2]).broadcast_tensors(Tensor([[3], [4]]))]
    [(2, 2), (2, 2)]
    """
    parts = tensors_of(self, others)
    shape = broadcast_shape([part._shape for part in parts], "broadcast_tensors")
    return tuple([part.expand(shape) for part in parts])


# -- joining -------------------------------------------------------------------------------------


@method
def hstack(self: Tensor | Sequence[Tensor], *others: Any) -> Tensor:
    """Tensors joined along the second axis, vectors along their only one.

    >>> from ferrule import Tensor
    >>> Tensor.hstack([Tensor([1]), Tensor([2, 3])]).tolist()
    [1, 2, 3]
    """
    parts: tuple[Tensor, ...] = _tuple(atleast_1d(self, *others))
    return parts[0].cat(*parts[1:], dim=min(parts[0].ndim - 1, 1))


@method
def vstack(self: Tensor | Sequence[Tensor], *others: Any) -> Tensor:
    """Tensors joined along the first axis; vectors are rows.

    >>> from ferrule import Tensor
    >>> Tensor.vstack([Tensor([1, 2]), Tensor([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    parts: tuple[Tensor, ...] = _tuple(atleast_2d(self, *others))
    return parts[0].cat(*parts[1:])


@method
def dstack(self: Tensor | Sequence[Tensor], *others: Any) -> Tensor:
    """Tensors joined along the third axis; a vector is (1, n, 1), a matrix (m, n, 1).

    >>> from ferrule import Tensor
    >>> Tensor.dstack([Tensor([1, 2]), Tensor([3, 4])]).tolist()
    [[[1, 3], [2, 4]]]
    """
    parts: tuple[Tensor, ...] = _tuple(atleast_3d(self, *others))
    return parts[0].cat(*parts[1:], dim=2)


@method
def column_stack(self: Tensor | Sequence[Tensor], *others: Any) -> Tensor:
    """Tensors joined along the second axis; vectors are columns.

    >>> from ferrule import Tensor
    >>> Tensor.column_stack([Tensor([1, 2]), Tensor([3, 4])]).tolist()
    [[1, 3], [2, 4]]
    """
    parts = tensors_of(self, others)
    columns = [part.reshape(-1, 1) if part.ndim < 2 else part for part in parts]
    return columns[0].cat(*columns[1:], dim=1)


@method
def cartesian_prod(self: Tensor | Sequence[Tensor], *others: Any) -> Tensor:
    """All choices of one element of each vector, one row each; of one vector, the vector.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2]).cartesian_prod(Tensor([3, 4])).tolist()
    [[1, 3], [1, 4], [2, 3], [2, 4]]
    """
    vectors = tensors_of(self, others)
    if any(vector.ndim != 1 for vector in vectors):
        raise ShapeError(
            f"[cartesian_prod] takes vectors, not shapes {[v._shape for v in vectors]}"
        )
    if len(vectors) == 1:
        return vectors[0]
    grids: list[Tensor] = []
    for place, vector in enumerate(vectors):
        own = [-1 if axis == place else 1 for axis in range(len(vectors))]
        grids.append(vector.reshape(own).expand([v._shape[0] for v in vectors]).flatten())
    return grids[0].stack(*grids[1:], dim=1)


# -- splitting -----------------------------------------------------------------------------------


@method
def split_with_sizes(self: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of an axis of the given sizes. Views.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([1, 2, 3]).split_with_sizes([1, 2])]
    [[1], [2, 3]]
    """
    return self.split(list(split_sizes), dim)


@method
def tensor_split(self: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Split an axis into a number of parts, the first ones larger by one if need be, or at places.

    The parts are views. Places may be a tensor, which is computed now. Raises `ShapeError` for a
    number of parts below 1, `TypeError` for places that are no integers.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([1, 2, 3]).tensor_split(2)]
    [[1, 2], [3]]
    >>> [part.tolist() for part in Tensor([1, 2, 3]).tensor_split((1, 1))]
    [[1], [], [2, 3]]
    """
    axis = self._axis(dim, "tensor_split")
    size = known_size(self._shape[axis], "tensor_split")
    places = indices_or_sections
    if isinstance(places, Tensor):
        places = places.tolist()
    if not is_several(places):
        places = whole(places, "[tensor_split] the number of parts")
        if places < 1:
            raise ShapeError(f"[tensor_split] the number of parts is at least 1, not {places}")
        small, larger = divmod(size, places)
        places = [part * small + min(part, larger) for part in range(1, places)]
    places = [whole(place, "[tensor_split] a place") for place in places]
    parts = [range(size)[slice(a, b)] for a, b in pairwise([0, *places, size])]
    return tuple([self.narrow(axis, part.start, len(part)) for part in parts])


@method
def hsplit(self: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Equal parts of the second axis, of a vector's only one; or cut at places. Views.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([[1, 2]]).hsplit(2)]
    [[[1]], [[2]]]
    """
    _need_axes(self, 1, "hsplit")
    return _equal_parts(self, indices_or_sections, min(self.ndim - 1, 1), "hsplit")


@method
def vsplit(self: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Equal parts of the first axis of two or more; or cut at places. Views.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([[1], [2]]).vsplit(2)]
    [[[1]], [[2]]]
    """
    _need_axes(self, 2, "vsplit")
    return _equal_parts(self, indices_or_sections, 0, "vsplit")


@method
def dsplit(self: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Equal parts of the third axis; or cut at places. Views.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([[[1, 2]]]).dsplit(2)]
    [[[[1]]], [[[2]]]]
    """
    _need_axes(self, 3, "dsplit")
    return _equal_parts(self, indices_or_sections, 2, "dsplit")


def _equal_parts(self: Tensor, parts: Any, axis: int, what: str) -> tuple[Tensor, ...]:
    size = self._shape[axis]
    if isinstance(parts, int) and (parts < 1 or not same(size % parts, 0)):
        raise ShapeError(
            f"[{what}] axis {axis} of shape {self._shape} does not split into {parts} equal "
            "parts; use tensor_split"
        )
    return self.tensor_split(parts, axis)


# -- parts ---------------------------------------------------------------------------------------


@method
def select(self: Tensor, dim: int, index: int) -> Tensor:
    """One element of an axis, without the axis. A view.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).select(1, -1).tolist()
    [2, 4]
    """
    axis = self._axis(dim, "select")
    size = known_size(self._shape[axis], "select")
    if not -size <= index < size:
        raise IndexError(f"[select] {index} is out of range for axis {dim} of shape {self._shape}")
    return self.narrow(axis, index % size, 1).squeeze(axis)


def _tuple(parts: Any) -> Any:
    return parts if isinstance(parts, tuple) else (parts,)


def _each(first: Any, others: Sequence[Any], function: Any) -> Any:
    """A function of one tensor, or of each of several, which may come as one list."""
    if isinstance(first, Tensor) and not others:
        return function(first)
    return tuple([function(part) for part in tensors_of(first, others)])


def _with_three_axes(x: Tensor) -> Tensor:
    shapes = {0: (1, 1, 1), 1: (1, *x._shape, 1), 2: (*x._shape, 1)}
    return x.reshape(shapes.get(x.ndim, x._shape))
