"""Chains of movements, applied to a `View`, to indices and to a NumPy array, without common code.

All ways to run a program read memory through the same views, so comparing ways cannot find a
mistake there. A chain takes a fraction of the time of a statement, since nothing is computed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ferrule.dtype import dtypes
from ferrule.fusion.views import unmoved, view_of
from ferrule.ir.expr import Expr, const
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.op_table import MOVEMENTS
from ferrule.ir.shape import movement
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View
from ferrule.ops import MovementOps

Array = np.ndarray[Any, Any]
Pads = tuple[tuple[int, int], ...]
HIDDEN = -1
"""The place of an element that is not there, and reads as 0."""
MOST_MOVES = 6
MOST_ELEMENTS = 400
LOOKED_AT = 3
"""Elements of each result whose index is followed back to the source."""


TRACKED = {
    MovementOps.RESHAPE: "reshape",
    MovementOps.PERMUTE: "permute",
    MovementOps.EXPAND: "expand",
    MovementOps.PAD: "pad",
    MovementOps.SHRINK: "shrink",
    MovementOps.STRIDE: "stride",
}
"""The movements that are methods of views, and of `ShapeTracker`, the documented type."""


class WrongLayoutError(Exception):
    """A movement is not what NumPy makes of it."""


@dataclass(frozen=True)
class Move:
    """A movement, its argument, and the places after it."""

    op: MovementOps
    arg: Any
    places: Array

    def __str__(self) -> str:
        return f"{self.op.name} {self.arg}"


class Chain:
    """Movements drawn one after the other, each compared with NumPy's."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.shape = tuple(rng.choice([1, 2, 2, 3, 3, 4, 6]) for _ in range(rng.randint(1, 4)))
        self.done: list[str] = []
        self.cut: tuple[Pads, tuple[int, ...]] | None = None
        """The numbers of elements that the last SHRINK cut off each axis, and the shape left."""

    def run(self) -> None:
        """Does a whole chain; raises `WrongLayoutError`."""
        places = self.copied(self.shape)
        for _ in range(self.rng.randint(2, MOST_MOVES)):
            moved = self.drawn(places)
            if moved is None or moved.places.size > MOST_ELEMENTS:
                continue
            self.done.append(str(moved))
            self.follow_back(places, moved)
            self.node = _moved(self.node, moved)
            view = view_of(self.node, self.memory)
            if view is None:
                self.done.append("copy")
                places = self.copied(moved.places.shape)
                continue
            self.compare(view, moved.places)
            self.move_back(moved, view, places)
            self.track(moved)
            self.view = view
            places = moved.places

    def copied(self, shape: Sequence[int]) -> Array:
        """The places of what is in memory of its own from now on."""
        self.memory = LazyBuffer.empty(shape, dtypes.int32, "NUMPY")
        self.node = self.memory
        self.view = View.create(tuple(shape))
        return np.arange(math.prod(shape)).reshape(shape)

    # -- comparing -------------------------------------------------------------------------------

    def expect(self, fine: bool, what: str) -> None:
        if not fine:
            raise WrongLayoutError(f"{self.shape}: {', '.join(self.done)}: {what}")

    def compare(self, view: View, places: Array) -> None:
        """Compares a view, and the properties that it claims, with the expected places."""
        self.expect(view.shape == places.shape, f"{view} has shape {places.shape}")
        self.expect(np.array_equal(_places(view), places), f"{view} is at {places.tolist()}")
        seen = places[places != HIDDEN]
        count = np.unique(seen).size
        if view.is_injective:
            self.expect(count == seen.size, f"{view} is not injective")
        self.expect(count <= view.real_size, f"{view} has {count} elements")
        if view.reach is not None:
            found = (int(seen.min()), int(seen.max()) + 1)
            self.expect(view.reach == found, f"{view} reaches {found}, not {view.reach}")
        if view.contiguous:
            self.expect(np.array_equal(places.ravel(), np.arange(places.size)), "is no whole")
        if view.mask is None and places.ndim > 1 and places.shape[-1] == places.shape[-2]:
            diagonal = np.diagonal(places, axis1=-2, axis2=-1)
            self.expect(np.array_equal(_places(view.diagonal()), diagonal), f"{view.diagonal()}")
        idx = self.some_index(places)
        if idx is not None:
            position, valid = view.index(tuple(map(const, idx)))
            found = position.arg if valid.arg else HIDDEN
            self.expect(found == places[idx], f"{view} at {idx} is {places[idx]}, not {found}")

    def move_back(self, moved: Move, view: View, before: Array) -> None:
        """The source of a reshape or a permutation is where it was."""
        if moved.op not in (MovementOps.RESHAPE, MovementOps.PERMUTE):
            return
        node = _moved(LazyBuffer.empty(before.shape, dtypes.int32, "NUMPY"), moved)
        below = unmoved(node, view) if node.op is moved.op else None
        if below is not None:
            fine = np.array_equal(_places(below[1]), before)
            self.expect(fine, f"its source is at {before.tolist()}, not {below[1]}")

    def track(self, moved: Move) -> None:
        """A `ShapeTracker` is moved as the view in it is."""
        name = TRACKED.get(moved.op)
        view = None if name is None else getattr(self.view, name)(moved.arg)
        if name is not None and view is not None:
            found = getattr(ShapeTracker(self.view), name)(moved.arg)
            self.expect(found == ShapeTracker(view), f"the tracker's {name} gives {found}")

    def follow_back(self, before: Array, moved: Move) -> None:
        """The index of an element of the result leads to the element of the source."""
        for _ in range(LOOKED_AT):
            idx = self.some_index(moved.places)
            if idx is None:
                return
            inner, valid = _indices(moved, tuple(map(const, idx)), before.shape)
            found = HIDDEN
            if valid.arg:
                at = tuple(i.arg for i in inner)
                inside = all(0 <= i < n for i, n in zip(at, before.shape, strict=True))
                self.expect(inside, f"index {idx} leads to {at}")
                found = int(before[at])
            wanted = int(moved.places[idx])
            self.expect(found == wanted, f"index {idx} leads to {found}, not to {wanted}")

    def some_index(self, places: Array) -> tuple[int, ...] | None:
        return tuple(self.rng.randrange(n) for n in places.shape) if places.size else None

    # -- drawing ---------------------------------------------------------------------------------

    def drawn(self, places: Array) -> Move | None:
        kinds: list[tuple[int, Callable[[Array], Move | None]]] = [
            (5, self.reshape),
            (5, self.regrouped),
            (3, self.permute),
            (2, self.expand),
            (6, self.pad),
            (3, self.shrink),
            (1, self.one),
            (2, self.border),
            (5, self.stride),
            (2, self.window),
            (1, self.unwindow),
            (1, self.as_strided),
        ]
        (kind,) = self.rng.choices([k for _, k in kinds], [weight for weight, _ in kinds])
        return kind(places)

    def reshape(self, places: Array) -> Move | None:
        """Any other shape of as many elements."""
        left, sizes = places.size, []
        while left > 1 and len(sizes) < 3:
            sizes.append(self.rng.choice([n for n in range(1, left + 1) if left % n == 0]))
            left //= sizes[-1]
        shape = (*sizes, left)
        return Move(MovementOps.RESHAPE, shape, places.reshape(shape))

    def regrouped(self, places: Array) -> Move | None:
        """One axis as two, or two as one, or an axis of size 1 more or less."""
        shape = list(places.shape)
        at = self.rng.randint(0, len(shape))
        if self.rng.random() < 0.2:
            shape.insert(at, 1)
        elif self.rng.random() < 0.5 and at + 1 < len(shape):
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif at < len(shape) and shape[at]:
            size = shape[at]
            outer = self.rng.choice([n for n in range(1, size + 1) if size % n == 0])
            shape[at : at + 1] = [outer, size // outer]
        return Move(MovementOps.RESHAPE, tuple(shape), places.reshape(shape))

    def permute(self, places: Array) -> Move | None:
        axes = tuple(self.rng.sample(range(places.ndim), places.ndim))
        return Move(MovementOps.PERMUTE, axes, places.transpose(axes))

    def expand(self, places: Array) -> Move | None:
        shape = tuple(self.rng.randint(1, 3) if n == 1 else n for n in places.shape)
        return Move(MovementOps.EXPAND, shape, np.broadcast_to(places, shape))

    def pad(self, places: Array) -> Move | None:
        arg = tuple(
            (self.rng.choice([0, 0, 1, 2]), self.rng.choice([0, 0, 1, 3])) for _ in places.shape
        )
        return self.padded(places, arg)

    def padded(self, places: Array, arg: Pads) -> Move:
        return Move(MovementOps.PAD, arg, np.pad(places, arg, constant_values=HIDDEN))

    def shrink(self, places: Array) -> Move | None:
        arg = []
        for size in places.shape:
            start = self.rng.choice([0, 0, self.rng.randint(0, size)])
            arg.append((start, self.rng.choice([size, size, self.rng.randint(start, size)])))
        left = places[tuple(slice(*pair) for pair in arg)]
        sizes = zip(arg, places.shape, strict=True)
        self.cut = tuple((start, size - stop) for (start, stop), size in sizes), left.shape
        return Move(MovementOps.SHRINK, tuple(arg), left)

    def one(self, places: Array) -> Move | None:
        """One element alone, often at an end."""
        if not places.size:
            return None
        arg = []
        for size in places.shape:
            start = self.rng.choice([0, size - 1, self.rng.randrange(size)])
            arg.append((start, start + 1))
        return Move(MovementOps.SHRINK, tuple(arg), places[tuple(slice(*pair) for pair in arg)])

    def border(self, places: Array) -> Move | None:
        """Zeros around what is left of an axis, as many as were cut off there."""
        if self.cut is None or self.cut[1] != places.shape:
            return None
        return self.padded(places, self.cut[0])

    def stride(self, places: Array) -> Move | None:
        arg = tuple(self.rng.choice([1, 1, 1, -1, -1, 2, -2, 3, -3]) for _ in places.shape)
        return Move(MovementOps.STRIDE, arg, places[tuple(slice(None, None, n) for n in arg)])

    def window(self, places: Array) -> Move | None:
        arg = self.window_of(places)
        if arg is None:
            return None
        axis, size, stride, dilation = arg
        whole = np.lib.stride_tricks.sliding_window_view(places, dilation * (size - 1) + 1, axis)
        part = [slice(None)] * places.ndim
        part[axis] = slice(None, None, stride)
        return Move(MovementOps.WINDOW, arg, whole[(*part, slice(None, None, dilation))])

    def unwindow(self, places: Array) -> Move | None:
        """The last axis becomes that of the windows along another."""
        if places.ndim < 2 or not places.size:
            return None
        axis = self.rng.randrange(places.ndim - 1)
        stride, dilation = self.rng.choice([1, 1, 2, 3]), self.rng.choice([1, 1, 2])
        count, size = places.shape[axis], places.shape[-1]
        length = (count - 1) * stride + (size - 1) * dilation + 1 + self.rng.choice([0, 0, 1, 2])
        out = np.full((*places.shape[:axis], length, *places.shape[axis + 1 :]), HIDDEN)
        for place, element in np.ndindex(count, size):
            at = place * stride + element * dilation
            out.swapaxes(0, axis)[at, ..., element] = places.swapaxes(0, axis)[place, ..., element]
        return Move(MovementOps.UNWINDOW, (axis, length, stride, dilation), out)

    def window_of(self, places: Array) -> tuple[int, int, int, int] | None:
        if not places.ndim or not places.size:
            return None
        axis = self.rng.randrange(places.ndim)
        size, dilation = self.rng.randint(1, 3), self.rng.choice([1, 1, 2])
        fits = dilation * (size - 1) < places.shape[axis]
        return (axis, size, self.rng.choice([1, 1, 2, 3]), dilation) if fits else None

    def as_strided(self, places: Array) -> Move | None:
        if not places.size:
            return None
        shape = tuple(self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 3)))
        strides = [self.rng.choice([0, 1, 1, 2, -1, 3]) for _ in shape]
        steps = [step * (n - 1) for n, step in zip(shape, strides, strict=True)]
        low, high = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
        if high - low >= places.size:
            return None
        offset = self.rng.randint(-low, places.size - 1 - high)
        at = offset + sum(np.ix_(*[np.arange(n) * s for n, s in zip(shape, strides, strict=True)]))
        moved = places.ravel()[at]
        return Move(MovementOps.AS_STRIDED, (shape, tuple(strides), offset), moved)


def _places(view: View) -> Array:
    """The position of each element of a view in memory."""
    places = np.full(view.shape, view.offset)
    seen = np.ones(view.shape, bool)
    for axis, (stride, (low, high)) in enumerate(zip(view.strides, view.valid_ranges, strict=True)):
        along = np.arange(view.shape[axis]).reshape((-1,) + (1,) * (len(view.shape) - axis - 1))
        places = places + along * stride
        seen = seen & (along >= low) & (along < high)
    return np.where(seen, places, HIDDEN)


def _moved(source: LazyBuffer, moved: Move) -> LazyBuffer:
    """The node of a movement."""
    return source.moved(moved.op, moved.arg)


def _indices(
    moved: Move, idx: movement.Index, source: Sequence[int]
) -> tuple[movement.Index, Expr]:
    """The source index for an index into the result, and the condition that it is not padding."""
    rule = MOVEMENTS[moved.op].index
    assert rule is not None
    return rule(idx, moved.arg, tuple(source))
