"""Random programs that cut tensors into parts and join them again mean what NumPy means by them.

Pieces are stored by kernels of their own (`contiguous`), so that they are stored where they belong;
meanwhile others read them, hold them, and write to what they are joined to.
"""

import random
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit
from ferrule.base.config import Context

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 4, 6


class Program:
    """Tensors, and the arrays that they must equal, as random steps make more of them."""

    def __init__(self, seed: int, given: Tensor, array: Array) -> None:
        self.random = random.Random(seed)
        self.pairs = [(given, array)]
        """Of ROWS x COLUMNS each."""
        self.joined: list[tuple[Tensor, Array]] = []

    def any(self) -> tuple[Tensor, Array]:
        return self.random.choice(self.pairs[-5:])

    def piece(self, axis: int) -> tuple[Tensor, Array]:
        """Some part of a tensor, computed and perhaps stored, with all of the other axis."""
        tensor, array = self.any()
        size = array.shape[axis]
        start = self.random.randrange(size)
        stop = self.random.randint(start + 1, size)
        tensor, array = (
            tensor.narrow(axis, start, stop - start),
            array.take(range(start, stop), axis),
        )
        for _ in range(self.random.randrange(3)):
            tensor, array = self.changed(tensor, array)
        return tensor, array

    def changed(self, tensor: Tensor, array: Array) -> tuple[Tensor, Array]:
        match self.random.choice(["store", "store", "double", "flip", "add"]):
            case "store":
                return tensor.contiguous(), array
            case "double":
                return tensor * 2 % 7, array * 2 % 7
            case "flip":
                return tensor.flip(0), array[::-1]
        other, values = self.any()
        same = other[: array.shape[0], : array.shape[1]]
        if same.shape != array.shape:
            return tensor + 1, array + 1
        return tensor + same, array + values[: array.shape[0], : array.shape[1]]

    def fitted(self, tensor: Tensor, array: Array) -> tuple[Tensor, Array]:
        """The first rows and columns, or some more of them, so that sizes stay what they are."""
        for axis, size in enumerate((ROWS, COLUMNS)):
            while array.shape[axis] < size:
                tensor, array = tensor.cat(tensor, dim=axis), np.concatenate([array] * 2, axis)
        return tensor[:ROWS, :COLUMNS], array[:ROWS, :COLUMNS]

    def join(self) -> None:
        axis = self.random.randrange(2)
        pieces = [self.piece(axis) for _ in range(self.random.randint(2, 4))]
        tensor = Tensor.cat([tensor for tensor, _ in pieces], dim=axis)
        array = np.concatenate([array for _, array in pieces], axis)
        if self.random.random() < 0.6:
            tensor = tensor.contiguous()
        self.joined.append((tensor, array))
        self.pairs.append(self.fitted(tensor, array))

    def write(self) -> None:
        tensor, array = self.fitted(*self.any())
        tensor, array = tensor.clone().contiguous(), array.copy()
        start = self.random.randrange(ROWS - 1)
        value, values = self.piece(0)
        count = min(ROWS - start, len(values))
        value, values = self.fitted(value, values)
        tensor[start : start + count] = value[:count]
        array[start : start + count] = values[:count]
        self.pairs.append((tensor, array))

    def step(self, computes: bool) -> None:
        kind = self.random.choice(["join", "join", "join", "write", "change", "realize"])
        if kind == "join":
            self.join()
        elif kind == "write":
            self.write()
        elif kind == "change":
            self.pairs.append(self.changed(*self.any()))
        elif computes:
            self.any()[0].realize()

    def run(self, computes: bool) -> list[tuple[Tensor, Array]]:
        for _ in range(self.random.randint(2, 9)):
            self.step(computes)
        count = self.random.randint(1, 3)
        found = [*self.pairs, *self.joined]
        return self.random.sample(found, min(count, len(found)))


def argument(seed: int) -> tuple[Tensor, Array]:
    array = np.random.default_rng(seed).integers(0, 7, (ROWS, COLUMNS)).astype(np.int32)
    return Tensor(array).realize(), array


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_programs_of_parts_are_numpys(device: str, programs: int) -> None:
    count = programs if device == "NUMPY" else programs // 16
    with Context(FERRULE_DEVICE=device):
        for seed in range(count):
            program = Program(seed, *argument(seed))
            results = program.run(computes=True)
            if seed % 2:
                program.pairs, program.joined = [], []  # nothing but the results is needed later
            for tensor, array in results:
                np.testing.assert_array_equal(tensor.numpy(), array, err_msg=f"program {seed}")


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_captured_programs_of_parts_are_numpys(device: str, programs: int) -> None:
    count = programs // (100 if device == "NUMPY" else 200)  # each is run four times, and captured
    with Context(FERRULE_DEVICE=device):
        for seed in range(count):
            expected: list[Array] = []

            @TinyJit
            def function(x: Tensor) -> list[Tensor]:
                tensors = [tensor for tensor, _ in Program(seed, x, given).run(computes=False)]  # noqa: B023
                return [tensor + 0 if tensor is x else tensor for tensor in tensors]

            earlier = []
            for call in range(4):
                x, given = argument(100 * seed + call)
                results = function(x)
                pairs = Program(seed, Tensor(given), given).run(computes=False)
                expected = [array for _, array in pairs]
                earlier.append((results, expected))
            for results, expected in earlier:
                for tensor, array in zip(results, expected, strict=True):
                    np.testing.assert_array_equal(tensor.numpy(), array, err_msg=f"program {seed}")
