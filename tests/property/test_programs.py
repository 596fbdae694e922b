"""Random programs of reads, writes and views mean what NumPy means by them."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.device import Buffer
from ferrule.dtype import dtypes
from ferrule.engine.realize import realize
from ferrule.fusion.views import dense
from ferrule.ir.lazy import Handle, LazyBuffer
from ferrule.ir.shape.view import View
from ferrule.ir.storage import Storage
from ferrule.ops import BinaryOps, ReduceOps

Array = np.ndarray[Any, Any]


def from_array(array: Array, device: str) -> LazyBuffer:
    return LazyBuffer.from_buffer(Buffer.fromCPU(device, array), array.shape)


def to_array(node: LazyBuffer) -> Array:
    assert node.realized is not None
    return node.realized.toCPU().reshape(node.shape).copy()


@dataclass
class Memory:
    """A storage, and the NumPy array that it must equal."""

    storage: Storage
    array: Array


class Held(Handle):
    """A value that was built and not computed, and what it must be."""

    def __init__(self, node: LazyBuffer, expected: Array) -> None:
        super().__init__(node)
        self.expected = expected


class Program:
    """Draws statements, and does each with the lazy graph and with NumPy."""

    def __init__(self, seed: int, device: str) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.memories: list[Memory] = []
        self.held: list[Held] = []
        self.exports: list[tuple[Array, Array]] = []
        for _ in range(self.random.randint(1, 3)):
            self.create()

    def create(self) -> None:
        shape = self.random.choice([(4,), (2, 3), (3, 2), (6,), (3, 4)])
        array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        array = array * self.random.randint(1, 5) - self.random.randint(0, 9)
        if self.random.random() < 0.3:
            value = self.random.randint(-3, 3)
            node = LazyBuffer.const(value, dtypes.int32, shape, self.device)
            self.memories.append(Memory(Storage(node), np.full(shape, value, np.int32)))
        else:
            memory = Memory(Storage(from_array(array, self.device)), array.copy())
            self.memories.append(memory)

    def view(self, node: LazyBuffer, array: Array, view: View) -> tuple[LazyBuffer, Array, View]:
        """A few random movements of a value, of an array, and of a view of memory."""
        for _ in range(self.random.randint(0, 2)):
            kind = self.random.choice(["permute", "flip", "shrink", "reshape"])
            if kind == "permute":
                axes = tuple(reversed(range(array.ndim)))
                node, array, view = node.permute(axes), array.transpose(axes), view.permute(axes)
            elif kind == "flip":
                steps = tuple(self.random.choice([1, -1]) for _ in array.shape)
                array = array[tuple(slice(None, None, step) for step in steps)]
                node, view = node.stride(steps), view.stride(steps)
            elif kind == "shrink":
                starts = [self.random.randint(0, size - 1) for size in array.shape]
                ends = [
                    self.random.randint(start + 1, size)
                    for start, size in zip(starts, array.shape, strict=True)
                ]
                pairs = tuple(zip(starts, ends, strict=True))
                array = array[tuple(slice(start, end) for start, end in pairs)]
                node, view = node.shrink(pairs), view.shrink(pairs)
            else:
                flat = view.reshape((array.size,))
                if flat is not None:
                    node, array, view = node.reshape((array.size,)), array.reshape(-1), flat
        return node, array, view

    def operand(self) -> tuple[LazyBuffer, Array]:
        """Something to compute with: a view of memory, or a value that is held."""
        if self.held and self.random.random() < 0.3:
            held = self.random.choice(self.held)
            return held.node, held.expected
        memory = self.random.choice(self.memories)
        node = memory.storage.node
        node, array, _ = self.view(node, memory.array, dense(node.shape))
        return node, array.copy()

    def fit(self, node: LazyBuffer, array: Array, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """The value in another shape: reshaped if that goes, else reduced and expanded."""
        if array.size == int(np.prod(shape)):
            return node.reshape(shape), array.reshape(shape)
        total = node.r(ReduceOps.SUM, range(array.ndim)).reshape((1,) * len(shape)).expand(shape)
        return total, np.broadcast_to(array.sum(dtype=np.int32), shape)

    def expression(self, shape: tuple[int, ...]) -> tuple[LazyBuffer, Array]:
        node, array = self.fit(*self.operand(), shape)
        for _ in range(self.random.randint(0, 2)):
            other, values = self.fit(*self.operand(), shape)
            if self.random.random() < 0.5:
                node, array = node.e(BinaryOps.ADD, other), array + values
            else:
                node, array = node.e(BinaryOps.MAX, other), np.maximum(array, values)
        return node, array.copy()

    def hold(self) -> None:
        shape = self.random.choice(self.memories).array.shape
        self.held.append(Held(*self.expression(shape)))

    def write(self) -> None:
        memory = self.random.choice(self.memories)
        storage = memory.storage
        whole = self.random.random() < 0.4
        part, region = memory.array, dense(storage.node.shape)
        if not whole:
            _, part, region = self.view(storage.node, memory.array, region)
        value, values = self.expression(part.shape)
        if whole or part.base is None:
            part = memory.array
        part[...] = values
        storage.write(value, None if whole else region)

    def compute(self) -> None:
        nodes = [held.node for held in self.held] + [m.storage.node for m in self.memories]
        self.random.shuffle(nodes)
        realize(nodes[: self.random.randint(1, 2)])

    def drop(self) -> None:
        if self.held:
            self.held.pop(self.random.randrange(len(self.held)))

    def export(self) -> None:
        memory = self.random.choice(self.memories)
        realize([memory.storage.node])
        buffer = memory.storage.node.realized
        assert buffer is not None
        self.exports.append((buffer.toCPU(), memory.array.reshape(-1).copy()))

    def read(self, held: Held) -> None:
        realize([held.node])
        np.testing.assert_array_equal(to_array(held.node), held.expected)

    def run(self, statements: int) -> None:
        kinds = [self.hold] * 4 + [self.write] * 5 + [self.compute] * 2 + [self.drop] * 2
        kinds += [self.create, self.export]
        for _ in range(statements):
            self.random.choice(kinds)()
        self.random.shuffle(self.held)
        for held in self.held:
            self.read(held)
        for memory in self.memories:
            realize([memory.storage.node])
            np.testing.assert_array_equal(to_array(memory.storage.node), memory.array)
        for array, expected in self.exports:
            np.testing.assert_array_equal(array, expected)


@given(seed=st.integers(0, 2**32), statements=st.integers(3, 14))
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_programs_of_reads_writes_and_views(device: str, seed: int, statements: int) -> None:
    Program(seed, device).run(statements)
