"""Shapes and devices that must fit together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ferrule.autograd import Shape, TracedValue
from ferrule.base.calls import whole
from ferrule.ir.expr import Expr, as_int, sint
from ferrule.ir.lazy import DeviceMismatchError
from ferrule.ir.shape.view import ShapeError


def broadcast_shape(shapes: Sequence[Shape], what: str) -> Shape:
    """The shape to which all shapes broadcast by NumPy's rules; raises `ShapeError`."""
    found = _broadcast(tuple(shapes))
    if found is None:
        listed = " and ".join(str(shape) for shape in shapes)
        raise ShapeError(
            f"[{what}] the shapes {listed} do not broadcast: aligned at the right, "
            "sizes must be equal or 1; reshape one of them, for example by .unsqueeze(axis)"
        )
    return found


@lru_cache(maxsize=4096)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape | None:
    """The shape to which all shapes broadcast; None where they do not."""
    rank = max(len(shape) for shape in shapes)
    result: list[sint] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if result[axis] == 1:
                result[axis] = size
            elif size != 1 and size != result[axis]:
                return None
    return tuple(result)


def whole_size(size: Any, what: str, name: str = "a size") -> sint:
    """A size as an int, or as an expression; raises `TypeError` for anything else."""
    if type(size) is int:
        return size
    return as_int(size) if isinstance(size, Expr) else whole(size, f"[{what}] {name}")


def known_size(size: sint, what: str) -> int:
    """A size that must be a number; raises `ShapeError` for a symbolic one."""
    if isinstance(size, int):
        return size
    raise ShapeError(
        f"[{what}] the size {size} is symbolic, and a known one is needed here; "
        "take a part of known size first: x[:int(n)]"
    )


def fit_shape(value: TracedValue, shape: Shape, what: str) -> TracedValue:
    """The value broadcast to a given shape; raises `ShapeError`."""
    own = value.node.shape
    if own == shape:
        return value
    rank = len(shape)
    extra = len(own) - rank
    if extra > 0 and all(size == 1 for size in own[:extra]):
        own = own[extra:]
    fits = len(own) <= rank and all(
        size == 1 or size == wide for size, wide in zip(own, shape[rank - len(own) :], strict=True)
    )
    if not fits:
        raise ShapeError(
            f"[{what}] a value of shape {value.node.shape} does not broadcast to {shape}; "
            "reshape it first"
        )
    return value.reshape((1,) * (rank - len(own)) + own).expand(shape)


def broadcast(a: TracedValue, b: TracedValue, what: str) -> tuple[TracedValue, TracedValue]:
    """Both values with the shape that they broadcast to."""
    shape_a, shape_b = a.node.shape, b.node.shape
    if shape_a == shape_b:
        return a, b
    shape = broadcast_shape((shape_a, shape_b), what)
    return expanded(a, shape), expanded(b, shape)


def expanded(value: TracedValue, shape: Shape, axis: int | None = None) -> TracedValue:
    """A value repeated along new axes and those of size 1, up to a shape.

    Its axes are the last ones of the shape, or those from `axis` on.
    """
    own = value.node.shape
    missing = len(shape) - len(own)
    if missing:
        before = missing if axis is None else axis
        value = value.reshape((1,) * before + own + (1,) * (missing - before))
    return value.expand(shape)


def part_of(value: TracedValue, start: sint, stop: sint, axis: int = -1) -> TracedValue:
    """The elements of an axis from `start` to `stop`."""
    kept: list[tuple[sint, sint]] = [(0, size) for size in value.shape]
    kept[axis] = (start, stop)
    return value.shrink(kept)


def check_devices(a: TracedValue, b: TracedValue, what: str) -> None:
    """Raises unless both values are on one device."""
    if a.node.device != b.node.device:
        raise DeviceMismatchError(
            f"[{what}] one tensor is on {a.node.device}, the other on {b.node.device}; "
            f"move one of them first: x.to({a.node.device!r})"
        )
