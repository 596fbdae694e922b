"""Arguments with a bound `Variable` as a size, instead of a number."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from ferrule import Tensor, Variable
from ferrule.errors import ShapeError

ROOM = 3
"""By how much the variable may be larger than it ever is; in memory there are numbers there."""


class NoSizeError(ShapeError):
    """No argument has an axis that could be of variable size."""


class Sizes:
    """The size that becomes a variable, for all calls of a program.

    All axes with this size in the first call, in any argument, become variable together, so that
    they still fit one another. In later calls they may have another size.
    """

    def __init__(self, calls: Sequence[Sequence[Tensor]], seed: int) -> None:
        self.rng = random.Random(seed)
        shapes = [tensor.shape for tensor in calls[0]]
        # Axes known to be of size 1 are repeated and squeezed; a variable is not known to be 1.
        found = sorted({size for shape in shapes for size in shape if size > 1})
        if not found:
            raise NoSizeError("no argument has an axis of a size above 1")
        size = self.rng.choice(found)
        self.axes = [
            [axis for axis, n in enumerate(shape) if n == size and self.rng.random() < 0.9]
            for shape in shapes
        ]
        used = [
            tensor.shape[axis]
            for tensors in calls
            for tensor, axes in zip(tensors, self.axes, strict=True)
            for axis in axes
        ]
        if not used or not all(used):
            raise NoSizeError("the axes are of size 0 in a later call")
        self.variable = Variable("n", 1, max(used) + self.rng.randint(0, ROOM))

    def bound(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The arguments of a call, with the variable for their sizes.

        Raises `NoSizeError` if their axes have not all the same size.
        """
        sizes = {t.shape[a] for t, axes in zip(tensors, self.axes, strict=True) for a in axes}
        if len(sizes) != 1:
            raise NoSizeError("the axes have several sizes")
        value = self.variable.bind(sizes.pop())
        made = []
        for tensor, axes in zip(tensors, self.axes, strict=True):
            if not axes:
                made.append(tensor)
                continue
            rest = [
                (0, self.variable.max - n if a in axes else 0) for a, n in enumerate(tensor.shape)
            ]
            array = np.pad(tensor.numpy().astype(tensor.dtype.np), rest, constant_values=3)
            whole = Tensor(array, dtype=tensor.dtype).realize()
            made.append(
                whole[tuple(slice(value) if a in axes else slice(None) for a in range(tensor.ndim))]
            )
        return made
