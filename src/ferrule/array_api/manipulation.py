"""Shapes and axes, joining and repeating."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import broadcast_shape

Axis: TypeAlias = int | tuple[int, ...]


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Tensors expanded to the shape that all of them have together."""
    shape = broadcast_shape([x.shape for x in arrays], "broadcast_arrays")
    return tuple([x.expand(shape) for x in arrays])


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """A tensor expanded to a shape."""
    return x.broadcast_to(shape)


def concat(arrays: tuple[Tensor, ...] | list[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis; flat ones for None."""
    parts = [x.flatten() for x in arrays] if axis is None else list(arrays)
    return parts[0].cat(*parts[1:], dim=0 if axis is None else axis)


def stack(arrays: tuple[Tensor, ...] | list[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    return arrays[0].stack(*arrays[1:], dim=axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The elements of an axis one by one."""
    return x.unbind(axis)


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """A new axis of size 1."""
    return x.unsqueeze(axis)


def squeeze(x: Tensor, /, axis: Axis) -> Tensor:
    """Without some axes, which have size 1; raises `ShapeError` if one has not."""
    axes = (axis,) if isinstance(axis, int) else axis
    for place in axes:
        if x.size(place) != 1:
            raise ShapeError(
                f"[squeeze] axis {place} of shape {x.shape} has size {x.size(place)}, not 1"
            )
    return x.squeeze(axes)


def flip(x: Tensor, /, *, axis: Axis | None = None) -> Tensor:
    """Some axes reversed; all of them for None."""
    axes: Sequence[int] = (
        range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    )
    return x.flip(list(axes))


def moveaxis(x: Tensor, source: Axis, destination: Axis, /) -> Tensor:
    """Some axes moved to other places."""
    return x.movedim(source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Axis i of the result is axis `axes[i]`."""
    return x.permute(axes)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes swapped."""
    return x.mT


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element several times, one after the other; of the flat tensor for no axis."""
    return x.repeat_interleave(repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The same elements in row-major order under another shape, which may hold one -1.

    Raises `ValueError` where `copy=False` and no view has that shape.
    """
    result = x.reshape(shape)
    if copy is False and result._cell is not x._cell:
        raise ValueError(
            f"[reshape] of shape {x.shape} to {shape} needs a copy of these strides; use copy=None"
        )
    return result.clone() if copy else result


def roll(x: Tensor, /, shift: Axis, *, axis: Axis | None = None) -> Tensor:
    """The elements moved along axes, those that leave at one end back at the other."""
    if isinstance(shift, int) and isinstance(axis, tuple):
        shift = (shift,) * len(axis)
    return x.roll(shift, axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The whole tensor several times along each axis, counted from the last."""
    return x.tile(repetitions)
