"""Elements chosen by position or by a mask, by PyTorch's and NumPy's names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota, position_dtype
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import Operand
from ferrule.tensor.math.elementwise import choose


@method
def take(self: Tensor, index: Any, dim: int | None = None) -> Tensor:
    """The elements at positions in the flat tensor; with `dim`, along it, as NumPy's. A copy.

    **A position of a tensor that is out of range reads 0**, where PyTorch raises: it is known
    only when it runs. With `FERRULE_CHECK_INDEX=1` it raises `IndexError` then.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).take(Tensor([0, -1])).tolist()
    [1, 4]
    >>> Tensor([[1, 2], [3, 4]]).take([1], axis=0).tolist()
    [[3, 4]]
    """
    if dim is None:
        return self.flatten()[index].clone()
    return self[(slice(None),) * self._axis(dim, "take") + (index,)].clone()


@method
def take_along_axis(self: Tensor, indices: Tensor, axis: int | None = -1) -> Tensor:
    """NumPy's name of `take_along_dim`.

    Raises `ShapeError` for an axis that is out of range.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).take_along_axis(Tensor([[1], [0]]), 1).tolist()
    [[2], [3]]
    """
    return self.take_along_dim(indices, axis)


@overload
def nonzero(self: Tensor, as_tuple: Literal[False] = False) -> Tensor: ...


@overload
def nonzero(self: Tensor, as_tuple: bool) -> Any: ...


@method
def nonzero(self: Tensor, as_tuple: bool = False) -> Any:
    """The positions of all elements other than 0, one row each; computes the tensor now.

    With `as_tuple` one vector for each axis, with which the tensor can be indexed.

    >>> from ferrule import Tensor
    >>> Tensor([0, 5, 7]).nonzero().tolist()
    [[1], [2]]
    >>> [part.tolist() for part in Tensor([[0, 5], [7, 0]]).nonzero(as_tuple=True)]
    [[0, 1], [1, 0]]
    """
    array = self.numpy(copy=False)
    if as_tuple:
        places = np.nonzero(array.reshape(1) if array.ndim == 0 else array)
        return tuple([_positions_of(self, place) for place in places])
    return _positions_of(self, np.argwhere(array))


def _positions_of(self: Tensor, places: Any) -> Tensor:
    sizes = [known_size(size, "nonzero") for size in self._shape]
    dtype = position_dtype(max(sizes, default=1))
    return type(self)(places.astype(dtype.np), device=self.device)


@method
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` rows of `nonzero`, or all and rows of `fill_value`; lazy.

    The shape is (size, axes) whatever the elements are, so that the result can be part of a
    captured function.

    >>> from ferrule import Tensor
    >>> Tensor([0, 5, 7]).nonzero_static(size=3).tolist()
    [[1], [2], [-1]]
    """
    if size < 0:
        raise ShapeError(f"[nonzero_static] the size is at least 0, not {size}")
    if size == 0 or not self._shape:
        return self.zeros(size, self.ndim, dtype=dtypes.int32, device=self.device)
    chosen = self.detach().ne(0).flatten()
    count = known_size(chosen._shape[0], "nonzero_static")
    # The others, and those that are too many, are written nowhere.
    row = chosen.where(chosen.cumsum(0, dtype=position_dtype(count)) - 1, size)
    numbers = iota(count, position_dtype(count), self.device)
    flat = self._wrap(numbers.scatter(row._read(), 0, size))
    found = self.arange(size, device=self.device) < chosen.count_nonzero()
    sizes = [known_size(n, "nonzero_static") for n in self._shape]
    first, *rest = flat.unravel_index(sizes)
    return found.unsqueeze(1).where(first.stack(*rest, dim=-1), fill_value)


@method
def argwhere(self: Tensor) -> Tensor:
    """The positions of all elements other than 0, one row each; computes the tensor now.

    >>> from ferrule import Tensor
    >>> Tensor([0, 5, 7]).argwhere().tolist()
    [[1], [2]]
    """
    return self.nonzero()


@overload
def where(self: Tensor) -> tuple[Tensor, ...]: ...


@overload
def where(self: Tensor, input: Operand, other: Operand) -> Tensor: ...


@method
def where(self: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where this condition holds, `other` elsewhere; alone, `nonzero(as_tuple=True)`.

    Raises `DTypeError` where only `input` is a condition, as in PyTorch's x.where(x > 0, y).

    >>> from ferrule import Tensor
    >>> x = Tensor([-1.0, 2.0])
    >>> (x > 0).where(x, 0).tolist()
    [0.0, 2.0]
    >>> [part.tolist() for part in (x > 0).where()]
    [[1]]
    """
    if input is None and other is None:
        return self.nonzero(as_tuple=True)
    if input is None or other is None:
        raise TypeError("[where] give what to take where it holds, and elsewhere: two operands")
    return choose(self, input, other)


@method
def combinations(self: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector, in order, one row each.

    >>> from ferrule import Tensor
    >>> Tensor([1, 2, 3]).combinations().tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    if self.ndim != 1 or r < 0:
        raise ShapeError(
            f"[combinations] takes a vector and a count, not shape {self._shape} and {r}"
        )
    places = range(known_size(self._shape[0], "combinations"))
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(places, r)) if r else []
    if not rows:
        return self._wrap(self._read().nothing((0,) if r == 0 else (0, r)))
    return self[rows]


def mask_value(mask: Any, what: str) -> TracedValue:
    """The mask's value; raises `DTypeError` unless it holds bools."""
    if not isinstance(mask, Tensor) or mask.dtype is not dtypes.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DTypeError(f"[{what}] the mask holds bools, not {kind}; compare it, as in x != 0")
    return mask._read()


@method
def unravel_index(self: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Positions in a flat tensor as those on each axis of a shape.

    >>> from ferrule import Tensor
    >>> [part.tolist() for part in Tensor([1, 5]).unravel_index((2, 3))]
    [[0, 1], [1, 2]]
    """
    sizes = [shape] if isinstance(shape, int) else list(shape)
    rest: Tensor = self
    found: list[Tensor] = []
    for size in reversed(sizes):
        found.append(rest % size)
        rest = rest // size
    return tuple(found[::-1])
