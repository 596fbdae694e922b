"""`cat` and `stack` of any number of any tensors are NumPy's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, Variable, vmap
from ferrule.base.config import Context

Array = np.ndarray[Any, Any]
COUNTS = (1, 2, 3, 7, 8, 9, 10, 16, 17, 31, 64, 65, 90)
DTYPES = (np.float32, np.int32, np.uint8, np.float16, np.bool_)


class Pieces:
    """Random values that are equal on all axes but one, and the arrays that they must equal."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = self.random.choice(COUNTS)
        rank = self.random.randint(1, 3)
        self.axis = self.random.randrange(rank)
        self.shape = [self.random.randint(1, 5) for _ in range(rank)]
        self.sizes = self.random.choice([(0, 1, 2, 5), (3,), (1,), (16,), (1, 40)])
        self.dtypes = self.random.sample(DTYPES, self.random.choice([1, 1, 2]))
        self.numbers = np.random.default_rng(seed)
        self.pairs: list[tuple[Tensor, Array]] = []
        for _ in range(self.count):
            self.pairs.append(self._piece())

    def _array(self, shape: list[int]) -> Array:
        return self.numbers.integers(0, 5, shape).astype(self.random.choice(self.dtypes))

    def _piece(self) -> tuple[Tensor, Array]:
        shape = list(self.shape)
        shape[self.axis] = self.random.choice(self.sizes)
        kinds = ["memory", "memory", "computed", "transposed", "part", "reversed", "constant"]
        kind = self.random.choice([*kinds, "again", "summed", "stored"])
        if kind == "again" and self.pairs:
            return self.random.choice(self.pairs)
        if kind == "constant":
            array = np.full(shape, self.random.choice([0, 1]), self.dtypes[0])
            return Tensor.full(
                shape, array.flat[0].item() if array.size else 0, dtype=str(array.dtype)
            ), array
        if kind == "transposed":
            array = self._array(shape[::-1])
            return Tensor(array).realize().permute(tuple(range(len(shape)))[::-1]), array.T
        if kind in ("part", "summed"):
            wide = [*shape[: self.axis], shape[self.axis] + 3, *shape[self.axis + 1 :]]
            array = self._array(wide)
            tensor = Tensor(array).realize().narrow(self.axis, 2, shape[self.axis])
            array = array.take(range(2, 2 + shape[self.axis]), self.axis)
            if kind == "part":
                return tensor, array
            kept = tensor.cast("int32").sum(0, keepdim=True).expand(shape) if shape[0] else tensor
            sums = array.astype(np.int32).sum(0, keepdims=True, dtype=np.int32)
            return kept, np.broadcast_to(sums, shape) if shape[0] else array
        array = self._array(shape)
        tensor = Tensor(array).realize()
        if kind == "reversed":
            return tensor.flip(self.axis), np.flip(array, self.axis)
        if kind in ("computed", "stored") and array.dtype != np.bool_:
            tensor, array = tensor * 2, array * array.dtype.type(2)
            return (tensor.contiguous() if kind == "stored" else tensor), array
        return tensor, array


def check(found: Tensor, expected: Array, message: str) -> None:
    np.testing.assert_array_equal(
        found.numpy().astype(np.float64), expected.astype(np.float64), message
    )
    assert found.shape == expected.shape


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_any_pieces_are_joined(device: str, programs: int) -> None:
    count = programs // 4 if device == "NUMPY" else programs // 24
    with Context(FERRULE_DEVICE=device):
        for seed in range(count):
            pieces = Pieces(seed)
            tensors, arrays = zip(*pieces.pairs, strict=True)
            whole = Tensor.cat(tensors, dim=pieces.axis)
            expected = np.concatenate(arrays, pieces.axis)
            check(whole, expected, f"seed {seed}")
            if seed % 3 == 0:  # its pieces again
                parts = whole.split([array.shape[pieces.axis] for array in arrays], pieces.axis)
                for part, array in zip(parts, arrays, strict=True):
                    check(part, array, f"seed {seed}")
            if seed % 3 == 1:
                check((whole.cast("float32") + 1).sum(0), (expected.astype("f4") + 1).sum(0), "sum")


@pytest.mark.parametrize("count", [2, 8, 9, 20, 70])
@pytest.mark.parametrize("axis", [0, 1])
def test_pieces_may_be_arguments_of_a_captured_call(count: int, axis: int) -> None:
    @TinyJit
    def joined(*parts: Tensor) -> tuple[Tensor, Tensor]:
        whole = Tensor.cat(parts, dim=axis)
        return whole.realize(), (whole.exp2() + 1).realize()

    numbers = np.random.default_rng(count)
    held = []
    for call in range(5):
        arrays = [numbers.integers(0, 5, (3, 4)).astype(np.float32) for _ in range(count)]
        parts = [Tensor(array).realize() for array in arrays]
        if call == 4:  # one tensor for all
            parts, arrays = [parts[0]] * count, [arrays[0]] * count
        expected = np.concatenate(arrays, axis)
        held.append((joined(*parts), expected))
    for (whole, changed), expected in held:
        np.testing.assert_array_equal(whole.numpy(), expected)
        np.testing.assert_allclose(changed.numpy(), 2**expected + 1)


@pytest.mark.parametrize("count", [2, 9, 20, 70])
def test_gradients_are_the_slices(count: int) -> None:
    numbers = np.random.default_rng(count)
    parts = [Tensor(numbers.random((2, 1 + n % 3)).astype(np.float32)) for n in range(count)]
    for part in parts:
        part.requires_grad_()
    whole = Tensor.cat(parts, dim=1)
    weights = numbers.random(whole.shape).astype(np.float32)
    (whole * whole * Tensor(weights)).sum().backward()
    expected = 2 * whole.numpy() * weights
    start = 0
    for part in parts:
        assert part.grad is not None
        stop = start + part.shape[1]
        np.testing.assert_allclose(part.grad.numpy(), expected[:, start:stop], rtol=1e-6)
        start = stop


@pytest.mark.parametrize("count", [2, 9, 40])
def test_gradients_of_slices_are_joined(count: int) -> None:
    array = np.random.default_rng(0).random((count, 5)).astype(np.float32)
    x = Tensor(array).requires_grad_()
    parts = x.split(1)
    sum([(part * (n + 1)).sum() for n, part in enumerate(parts)], Tensor(0.0)).backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.arange(1, count + 1)[:, None] + 0 * array)


@pytest.mark.parametrize("count", [2, 9, 40])
def test_joins_are_mapped(count: int) -> None:
    arrays = [np.random.default_rng(n).random((4, 1 + n % 3)).astype("f4") for n in range(count)]
    rows = vmap(lambda *parts: Tensor.cat(parts))(*[Tensor(array) for array in arrays])
    np.testing.assert_array_equal(rows.numpy(), np.concatenate(arrays, 1))


@pytest.mark.parametrize("count", [2, 9, 20])
def test_sizes_may_be_variables(count: int) -> None:
    array = np.random.default_rng(0).random((count, 8, 3)).astype(np.float32)
    size = Variable("n", 1, 8).bind(5)
    x = Tensor(array).realize()
    whole = Tensor.cat([x[n].shrink(((0, size), (0, 3))) for n in range(count)], dim=1)
    np.testing.assert_array_equal(
        (whole * 2).sum(0).numpy(), (np.concatenate(array[:, :5], 1) * 2).sum(0)
    )


@pytest.mark.parametrize("count", [2, 9, 20, 70])
def test_old_contents_are_read_first(count: int) -> None:
    """Parts of what is written to, in other places, twice, and held by others."""
    numbers = np.random.default_rng(count)
    for seed in range(4):
        array = numbers.integers(0, 99, (count + 1, 4)).astype(np.float32)
        x = Tensor(array).realize()
        order = numbers.integers(0, count + 1, count + 1)
        rows = [x[n : n + 1] for n in order.tolist()]
        before = x + 0 if seed % 2 else None
        x.assign(Tensor.cat(rows))
        np.testing.assert_array_equal(x.numpy(), array[order])
        if before is not None:
            np.testing.assert_array_equal(before.numpy(), array)
