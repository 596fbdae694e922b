"""Random graphs of all kinds of operations, cut into kernels, have the values that NumPy says."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.device import Buffer
from ferrule.dtype import dtypes
from ferrule.engine.realize import realize
from ferrule.ir.lazy import LazyBuffer
from ferrule.ops import BinaryOps, ReduceOps, TernaryOps, UnaryOps

Array = np.ndarray[Any, Any]
Pair = tuple[LazyBuffer, Array]
MOST_ELEMENTS = 4000


class RandomGraph:
    """Grows pairs of a node and its value, each made of earlier ones. Integers are exact."""

    def __init__(self, seed: int, device: str) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.pairs = [self.leaf() for _ in range(2)]

    def leaf(self) -> Pair:
        shape = self.random.choice([(4,), (3, 4), (2, 3, 4), (6, 5), (1, 4), (2, 1, 3)])
        numbers = np.random.default_rng(self.random.randrange(1 << 30))
        array = numbers.integers(-4, 5, shape).astype(np.int32)
        buffer = Buffer.fromCPU(self.device, array)
        return LazyBuffer.from_buffer(buffer, shape), array

    def pick(self) -> Pair:
        # Mostly what is new, so that graphs grow deep, and now and then something old.
        place = min(int(self.random.expovariate(0.5)), len(self.pairs) - 1)
        return self.pairs[-1 - place]

    def fit(self, pair: Pair, shape: tuple[int, ...]) -> Pair:
        """Another value in a given shape: by sums, reshapes and repetition."""
        node, array = pair
        if array.size == np.prod(shape):
            return node.reshape(shape), array.reshape(shape)
        while array.ndim < len(shape):
            node, array = node.reshape((1, *array.shape)), array[None]
        if array.ndim > len(shape):
            node = node.r(ReduceOps.SUM, range(array.ndim)).reshape((1,) * len(shape))
            array = array.sum(dtype=np.int32).reshape((1,) * len(shape))
        pairs = enumerate(zip(array.shape, shape, strict=True))
        axes = tuple(axis for axis, (size, wanted) in pairs if size != wanted)
        node, array = node.r(ReduceOps.MAX, axes), array.max(axes, keepdims=True)
        return node.expand(shape), np.broadcast_to(array, shape)

    def unary(self, node: LazyBuffer, array: Array) -> Pair:
        return node.e(UnaryOps.NEG), -array

    def binary(self, node: LazyBuffer, array: Array) -> Pair:
        other, values = self.fit(self.pick(), array.shape)
        kinds = [
            (BinaryOps.ADD, np.add),
            (BinaryOps.MUL, np.multiply),
            (BinaryOps.MAX, np.maximum),
            (BinaryOps.XOR, np.bitwise_xor),
        ]
        op, function = self.random.choice(kinds)
        return node.e(op, other), function(array, values)

    def where(self, node: LazyBuffer, array: Array) -> Pair:
        other, values = self.fit(self.pick(), array.shape)
        condition = node.e(BinaryOps.CMPLT, other)
        return condition.e(TernaryOps.WHERE, other, node), np.where(array < values, values, array)

    def reduce(self, node: LazyBuffer, array: Array) -> Pair:
        axes = tuple(axis for axis in range(array.ndim) if self.random.random() < 0.5)
        if self.random.random() < 0.5:
            return node.r(ReduceOps.SUM, axes), array.sum(axes, keepdims=True, dtype=np.int32)
        return node.r(ReduceOps.MAX, axes), array.max(axes, keepdims=True)

    def normalise(self, node: LazyBuffer, array: Array) -> Pair:
        axis = self.random.randrange(array.ndim)
        total = node.r(ReduceOps.SUM, (axis,)).expand(array.shape)
        sums = array.sum(axis, keepdims=True, dtype=np.int32)
        return node.e(BinaryOps.SUB, total), array - sums

    def contract(self, node: LazyBuffer, array: Array) -> Pair:
        """A matrix product with another value."""
        columns = self.random.randint(1, 9)
        other, values = self.fit(self.pick(), (array.shape[-1], columns))
        rows = array.size // array.shape[-1]
        left = node.reshape((rows, 1, array.shape[-1])).expand((rows, columns, array.shape[-1]))
        right = other.permute((1, 0)).reshape((1, columns, array.shape[-1])).expand(left.shape)
        product = left.e(BinaryOps.MUL, right).r(ReduceOps.SUM, (2,))
        result = array.reshape(rows, -1) @ values
        return product.reshape((rows, columns)), result.astype(np.int32)

    def move(self, node: LazyBuffer, array: Array) -> Pair:
        kind = self.random.choice(["permute", "reshape", "pad", "shrink", "stride"])
        if kind == "permute":
            axes = list(range(array.ndim))
            self.random.shuffle(axes)
            return node.permute(axes), array.transpose(axes)
        if kind == "reshape":
            divisors = [n for n in range(1, array.size + 1) if array.size % n == 0]
            first = self.random.choice(divisors)
            shape = (first, array.size // first)
            return node.reshape(shape), array.reshape(shape)
        if kind == "pad":
            pairs = [(self.random.randint(0, 2), self.random.randint(0, 2)) for _ in array.shape]
            return node.pad(pairs), np.pad(array, pairs)
        if kind == "shrink":
            starts = [self.random.randint(0, size - 1) for size in array.shape]
            stops = [
                self.random.randint(start + 1, size)
                for start, size in zip(starts, array.shape, strict=True)
            ]
            pairs = list(zip(starts, stops, strict=True))
            return node.shrink(pairs), array[tuple(slice(*pair) for pair in pairs)]
        steps = [self.random.choice([1, -1, 2]) for _ in array.shape]
        return node.stride(steps), array[tuple(slice(None, None, step) for step in steps)]

    def window(self, node: LazyBuffer, array: Array) -> Pair:
        axis = self.random.randrange(array.ndim)
        size = self.random.randint(1, min(3, array.shape[axis]))
        step = self.random.randint(1, 2)
        windows = np.lib.stride_tricks.sliding_window_view(array, size, axis)
        values = windows[(slice(None),) * axis + (slice(None, None, step),)]
        return node.window(axis, size, step), values

    def gather(self, node: LazyBuffer, array: Array) -> Pair:
        axis = self.random.randrange(array.ndim)
        other, values = self.fit(self.pick(), array.shape)
        size = array.shape[axis]
        limit = LazyBuffer.const(size, dtypes.int32, array.shape, self.device)
        index = other.e(BinaryOps.MUL, other).e(BinaryOps.MOD, limit)
        places = np.abs(np.fmod(values * values, size))
        index = index.e(BinaryOps.MAX, index.e(UnaryOps.NEG))
        return node.gather(index, axis), np.take_along_axis(array, places, axis)

    def keep(self, node: LazyBuffer, array: Array) -> Pair:
        return node.contiguous(), array

    def grow(self) -> None:
        kinds = [self.unary, self.binary, self.binary, self.where, self.reduce, self.normalise]
        kinds += [self.contract, self.move, self.move, self.move, self.window, self.gather]
        kinds += [self.keep]
        node, array = self.random.choice(kinds)(*self.pick())
        assert node.shape == array.shape
        if array.size <= MOST_ELEMENTS and array.ndim <= 5:
            self.pairs.append((node, array))

    def check(self, steps: int) -> None:
        for _ in range(steps):
            self.grow()
        chosen = self.random.sample(self.pairs, min(3, len(self.pairs)))
        realize([node for node, _ in chosen])
        for node, array in [*chosen, self.pairs[-1]]:
            realize([node])
            assert node.realized is not None
            np.testing.assert_array_equal(node.realized.toCPU().reshape(node.shape), array)


@given(seed=st.integers(0, 2**32), steps=st.integers(2, 25))
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_random_graphs(device: str, seed: int, steps: int) -> None:
    with np.errstate(over="ignore"):
        RandomGraph(seed, device).check(steps)
