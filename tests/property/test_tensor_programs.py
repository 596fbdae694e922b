"""Random programs on tensors mean what NumPy means by them.

A program has views, reads, writes through views and positions, arithmetic in place, functions of
all kinds (`tests/computations.py`), and computes at random points, also in captured functions.
`--programs` is how many are run for each device.

PYTEST_DONT_REWRITE: what a captured function can reach is searched; it would be all of pytest.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.computations import compute as computed

from ferrule import Tensor, TinyJit
from ferrule.base.config import Context

Array = np.ndarray[Any, Any]
DTYPES = (np.int32, np.int32, np.int32, np.float32, np.int64, np.uint8, np.bool_)
SHAPES = ((4,), (6,), (2, 3), (3, 2), (3, 4), (2, 3, 2), (1, 4), (), (2, 0))


@dataclass
class Pair:
    """A tensor, and the array that it must equal."""

    tensor: Tensor
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def is_bool(self) -> bool:
        return bool(self.array.dtype == np.bool_)


def equal(tensor: Tensor, array: Array) -> None:
    assert tensor.shape == array.shape
    assert tensor.dtype.np == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)


def owned(array: Any) -> Array:
    """An array of its own, row-major, as ferrule's results are."""
    return np.array(array, order="C")


def viewing(key: Any) -> tuple[Any, ...]:
    """A key with which NumPy gives a view also where no axis is left."""
    parts = key if isinstance(key, tuple) else (key,)
    return parts if Ellipsis in parts else (*parts, Ellipsis)


def expanded(array: Array) -> Array:
    """Two of an array, in the same memory, which may be written."""
    return np.lib.stride_tricks.as_strided(array, (2, *array.shape), (0, *array.strides))


def diagonal(array: Array, offset: int, *axes: int) -> Array:
    """A diagonal in the same memory, which may be written."""
    seen = array.diagonal(offset, *axes)
    seen.flags.writeable = True
    return seen


def distinct(array: Array) -> bool:
    """Whether no two elements share memory."""
    return all(step != 0 or size < 2 for step, size in zip(array.strides, array.shape, strict=True))


class Program:
    """Draws statements from a seed, and does each with ferrule and with NumPy."""

    def __init__(self, seed: int, pairs: list[Pair] | None = None, captured: bool = False) -> None:
        self.random = random.Random(seed)
        self.captured = captured
        self.exports: list[tuple[Array, Array]] = []
        self.pairs = [] if pairs is None else pairs
        while len(self.pairs) < 2:
            self.create()
        statements: list[tuple[int, Callable[[], None]]] = [
            (2, self.create),
            (7, self.view),
            (5, self.compute),
            (6, self.write),
            (5, self.write_at_positions),
            (5, self.update),
            (3, self.update_at_positions),
            (5, self.put_at_positions),
            (2, self.read_at_positions),
            (2, self.overlap),
            (2, self.assign),
            (2, self.write_where),
            (2, self.copy),
            (4, self.realize),
            (2, self.drop),
        ]
        if not captured:
            statements += [(3, self.read), (1, self.export), (2, self.write_at_mask)]
        self.statements = [statement for _, statement in statements]
        self.weights = [weight for weight, _ in statements]

    def run(self, count: int) -> None:
        for _ in range(count):
            (statement,) = self.random.choices(self.statements, self.weights)
            with np.errstate(over="ignore"):
                statement()

    def check(self) -> None:
        for pair in self.random.sample(self.pairs, len(self.pairs)):
            equal(pair.tensor, pair.array)
        for array, expected in self.exports:
            np.testing.assert_array_equal(array, expected)

    # -- drawing ---------------------------------------------------------------------------------

    def pick(self) -> Pair:
        return self.random.choice(self.pairs)

    def target(self) -> Pair:
        """Something that may be written."""
        found = [pair for pair in self.pairs if distinct(pair.array)]
        if not found:
            self.create()
            return self.pairs[-1]
        return self.random.choice(found)

    def data(self, shape: tuple[int, ...], dtype: Any) -> Array:
        numbers = [self.random.randint(0, 9) for _ in range(int(np.prod(shape)))]
        return np.array(numbers, np.int64).reshape(shape).astype(dtype)

    def value(self, shape: tuple[int, ...]) -> tuple[Any, Array]:
        """Something that broadcasts to a shape: a number, a tensor, an expression of tensors."""
        kind = self.random.random()
        if kind < 0.2:
            number = self.random.randint(0, 9)
            return number, np.array(number)
        fitting = [pair for pair in self.pairs if self.broadcasts(pair.shape, shape)]
        if kind < 0.45 or not fitting:
            array = self.data(self.smaller(shape), self.random.choice(DTYPES))
            return Tensor(array), array
        pair = self.random.choice(fitting)
        if kind < 0.75 or pair.is_bool:
            return pair.tensor, pair.array.copy()
        other = self.random.choice(fitting)
        return self.sum_of(pair, other)

    def sum_of(self, a: Pair, b: Pair) -> tuple[Tensor, Array]:
        dtype = self.wide(a, b)
        result = a.array.astype(dtype) + b.array.astype(dtype)
        return a.tensor.cast(dtype) + b.tensor.cast(dtype), owned(result)

    @staticmethod
    def wide(a: Pair, b: Pair) -> str:
        """A dtype in which both libraries compute alike."""
        return "float32" if np.float32 in (a.array.dtype, b.array.dtype) else "int32"

    @staticmethod
    def broadcasts(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
        try:
            return np.broadcast_shapes(shape, wide) == wide
        except ValueError:
            return False

    def smaller(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        shape = tuple(1 if self.random.random() < 0.2 else size for size in shape)
        return shape[self.random.randint(0, len(shape)) :] if self.random.random() < 0.3 else shape

    def slice(self, size: int) -> slice:
        def bound() -> int | None:
            return None if self.random.random() < 0.4 else self.random.randint(-size - 1, size + 1)

        return slice(bound(), bound(), self.random.choice([None, None, 1, -1, 2, -2]))

    def key(self, shape: tuple[int, ...]) -> Any:
        """Integers, slices, None and an Ellipsis."""
        parts: list[Any] = [self.part(size) for size in shape]
        first = self.random.randint(0, len(shape))
        if self.random.random() < 0.3:
            last = self.random.randint(first, len(shape))
            parts[first:last] = [Ellipsis]
        else:
            del parts[first:]
        if self.random.random() < 0.2:
            parts.insert(self.random.randint(0, len(parts)), None)
        return parts[0] if len(parts) == 1 else tuple(parts)

    def part(self, size: int) -> Any:
        """An integer or a slice for an axis."""
        if size and self.random.random() < 0.25:
            return self.random.randint(-size, size - 1)
        return self.slice(size)

    def positions(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """An index with positions on some axes, for ferrule and for NumPy; positions may repeat."""
        wide = self.random.choice([(3,), (2,), (2, 2), (1,), (), (0,), (2, 1)])
        mine: list[Any] = []
        theirs: list[Any] = []
        chosen = self.random.randrange(len(shape))
        if 0 in shape:
            wide = (0,)
        for axis, size in enumerate(shape):
            if axis != chosen and (self.random.random() < 0.6 or not size):
                part = self.part(size)
                mine.append(part)
                theirs.append(part)
                continue
            count = int(np.prod(wide))
            places = [self.random.randint(-size, size - 1) for _ in range(count)]
            array = np.array(places, np.int64).reshape(wide)
            theirs.append(array)
            kind = self.random.random()
            if kind < 0.6:
                mine.append(Tensor(array.astype(self.random.choice([np.int32, np.int64]))))
            else:
                mine.append(array.tolist() if array.ndim and array.size else array)
        return tuple(mine), tuple(theirs)

    # -- statements ------------------------------------------------------------------------------

    def add(self, tensor: Tensor, array: Array) -> None:
        self.pairs.append(Pair(tensor, array))
        if len(self.pairs) > 9:
            self.drop()

    def create(self) -> None:
        shape, dtype = self.random.choice(SHAPES), self.random.choice(DTYPES)
        if self.random.random() < 0.2:
            number = self.random.randint(0, 1)
            self.add(
                Tensor.full(shape, number, dtype=np.dtype(dtype).name),
                np.full(shape, number, dtype),
            )
            return
        array = self.data(shape, dtype)
        self.add(Tensor(array), array)

    def view(self) -> None:
        pair = self.pick()
        tensor, array = pair.tensor, pair.array
        for _ in range(self.random.randint(1, 2)):
            tensor, array = self.moved(tensor, array)
        self.add(tensor, array)

    def moved(self, x: Tensor, a: Array) -> tuple[Tensor, Array]:
        kind = self.random.choice(
            [
                "key",
                "key",
                "T",
                "permute",
                "reshape",
                "flat",
                "expand",
                "axis",
                "flip",
                "diagonal",
                "same",
            ]
        )
        if kind == "key":
            key = self.key(a.shape)
            return x[key], a[viewing(key)]
        if kind == "T":
            return x.T, a.transpose()
        if kind == "permute":
            order = self.random.sample(range(a.ndim), a.ndim)
            return x.permute(order), a.transpose(order)
        if kind == "reshape":
            shapes = [shape for shape in SHAPES if np.prod(shape) == a.size]
            shape = self.random.choice([*shapes, a.shape])
            return x.reshape(shape), self.reshaped(a, shape)
        if kind == "flat":
            return x.reshape(-1) if a.size else x.reshape(0), self.reshaped(a, (a.size,))
        if kind == "expand":
            return x.expand(2, *a.shape), expanded(a)
        if kind == "axis":
            place = self.random.randint(0, a.ndim)
            return x.unsqueeze(place), np.expand_dims(a, place)
        if kind == "flip":
            axes = [axis for axis in range(a.ndim) if self.random.random() < 0.5]
            return x.flip(*axes), np.flip(a, tuple(axes)) if axes else a
        if kind == "diagonal" and a.ndim > 1:
            offset, axes = self.random.randint(-2, 2), self.random.sample(range(a.ndim), 2)
            return x.diagonal(offset, *axes), diagonal(a, offset, *axes)
        return x.detach(), a

    @staticmethod
    def reshaped(a: Array, shape: tuple[int, ...]) -> Array:
        made = a.reshape(shape)
        return made if np.shares_memory(made, a) else owned(made)

    def compute(self) -> None:
        """A value of others, to be read later."""
        pair = self.pick()
        if self.random.random() < 0.4:
            self.add(*computed(self.random, pair.tensor, pair.array))
            return
        kind = self.random.choice(["add", "max", "sum", "where", "double", "cast"])
        x, a = pair.tensor, pair.array
        if kind == "sum" and a.ndim:
            axis = self.random.randrange(a.ndim)
            self.add(x.cast("int64").sum(axis), owned(a.astype(np.int64).sum(axis)))
        elif kind == "cast":
            dtype = self.random.choice(DTYPES)
            self.add(
                x.cast(np.dtype(dtype).name), a if a.dtype == dtype else owned(a.astype(dtype))
            )
        elif kind == "double" and not pair.is_bool:
            self.add(x * 2, owned(a * a.dtype.type(2)))
        elif kind == "where" and not pair.is_bool:
            self.add((x > 3).where(x, 0), owned(np.where(a > 3, a, 0).astype(a.dtype)))
        else:
            others = [p for p in self.pairs if self.broadcasts(p.shape, a.shape)]
            self.add(*self.sum_of(pair, self.random.choice(others)))

    def write(self) -> None:
        pair = self.target()
        key = self.key(pair.shape)
        tensor, array = self.value(pair.array[viewing(key)].shape)
        pair.array[viewing(key)] = array
        pair.tensor[key] = tensor

    def assign(self) -> None:
        pair = self.target()
        tensor, array = self.value(pair.shape)
        pair.array[...] = array
        pair.tensor.assign(tensor)

    def write_at_positions(self) -> None:
        pair = self.target()
        if not pair.array.ndim:
            return
        mine, theirs = self.positions(pair.shape)
        tensor, array = self.value(pair.array[theirs].shape)
        pair.array[theirs] = array
        pair.tensor[mine] = tensor

    def read_at_positions(self) -> None:
        pair = self.pick()
        if pair.array.ndim:
            mine, theirs = self.positions(pair.shape)
            self.add(pair.tensor[mine], owned(pair.array[theirs]))

    def write_where(self) -> None:
        """A number, wherever a mask holds that is known only when it runs."""
        pair = self.target()
        mask = [p for p in self.pairs if p.is_bool and p.shape == pair.shape[: p.array.ndim]]
        number = self.random.randint(0, 9)
        if mask and self.random.random() < 0.6:
            chosen = self.random.choice(mask)
            # Read before the write: the mask may be a view of what is written.
            pair.array[chosen.array.copy()] = number
            pair.tensor[chosen.tensor] = number
        else:
            pair.array[pair.array > 4] = number
            pair.tensor[pair.tensor > 4] = number

    def write_at_mask(self) -> None:
        pair = self.target()
        if pair.array.ndim:
            count = int(np.count_nonzero(pair.array > 4))
            array = self.data((count,), pair.array.dtype)
            pair.array[pair.array > 4] = array
            pair.tensor[pair.tensor > 4] = Tensor(array)

    def update(self) -> None:
        """x += y and its like, also of a part."""
        pair = self.target()
        if pair.is_bool:
            return
        tensor, array = self.value(pair.shape)
        if array.dtype == np.float32 and pair.array.dtype != np.float32:
            tensor, array = tensor.cast("int32"), array.astype(np.int32)
        if np.promote_types(array.dtype, pair.array.dtype) == np.float64:
            array = array.astype(np.int32)
        if not isinstance(tensor, int):
            tensor, array = tensor.cast(pair.tensor.dtype), array.astype(pair.array.dtype)
        else:
            array = array.astype(pair.array.dtype)
        self.in_place(pair.tensor, tensor, pair.array, array)

    def in_place(self, x: Tensor, y: Any, a: Array, b: Array) -> None:
        kind = self.random.choice(["+", "-", "key"])
        if kind == "+":
            x += y
            a += b
        elif kind == "-":
            x -= y
            a -= b
        else:
            x[...] += y
            a[...] += b

    def update_at_positions(self) -> None:
        pair = self.target()
        if not pair.array.ndim or pair.is_bool:
            return
        mine, theirs = self.positions(pair.shape)
        number = self.random.randint(1, 5)
        pair.tensor[mine] += number
        pair.array[theirs] += pair.array.dtype.type(number)

    def put_at_positions(self) -> None:
        """In place along one axis, to positions that may repeat, be out of range, and come, as the
        elements may, from what is written.
        """
        pair = self.target()
        x, a = pair.tensor, pair.array
        if not a.ndim or not a.size:
            return
        axis = self.random.randrange(a.ndim)
        index, places = self.places(a.shape, axis)
        value, array = self.value(places.shape)
        if not isinstance(value, Tensor):
            value = Tensor(array)
        value = value.cast(x.dtype).expand(*places.shape)
        array = np.broadcast_to(array.astype(a.dtype), places.shape).copy()
        how = "last" if pair.is_bool else self.random.choice(["last", "sum", "amax", "amin"])
        self.put(a, axis, places, array, how)
        if how == "last":
            x.scatter_(axis, index, value)
        elif how == "sum" and self.random.random() < 0.6:
            x.scatter_add_(axis, index, value)
        else:
            x.scatter_reduce_(axis, index, value, how)

    def places(self, shape: tuple[int, ...], axis: int) -> tuple[Tensor, Array]:
        """Positions along an axis, given or computed, and the same counted from the front."""
        size = shape[axis]
        found = [p for p in self.pairs if p.array.size and self.broadcasts(p.shape, shape)]
        if found and self.random.random() < 0.4:
            pair = self.random.choice(found)
            index = pair.tensor.cast("int32").expand(*shape) % size
            return index, np.broadcast_to(pair.array.astype(np.int32), shape) % size
        wide = [n if self.random.random() < 0.7 else self.random.randint(1, n) for n in shape]
        wide[axis] = self.random.randint(1, 4)
        count = int(np.prod(wide))
        numbers = [self.random.randint(-size - 1, size) for _ in range(count)]
        array = np.array(numbers, np.int64).reshape(wide)
        index = Tensor(array.astype(self.random.choice([np.int32, np.int64])))
        return index, np.where(array < 0, array + size, array)

    @staticmethod
    def put(a: Array, axis: int, places: Array, values: Array, how: str) -> None:
        """One element after the other; those out of range go nowhere."""
        for source in np.ndindex(*places.shape):
            place = int(places[source])
            if 0 <= place < a.shape[axis]:
                there = (*source[:axis], place, *source[axis + 1 :])
                old, new = a[there], values[source]
                if how == "sum":
                    a[there] += new
                else:
                    a[there] = {"last": new, "amax": max(old, new), "amin": min(old, new)}[how]

    def overlap(self) -> None:
        """Parts of one memory, one written with the other."""
        pair = self.target()
        x, a = pair.tensor, pair.array
        if not a.ndim or not a.shape[0]:
            return
        kind = self.random.choice(["forward", "back", "flip", "T", "self"])
        if kind == "forward":
            x[1:] = x[:-1]
            a[1:] = a[:-1].copy()
        elif kind == "back":
            x[:-1] = x[1:]
            a[:-1] = a[1:].copy()
        elif kind == "flip":
            x[::-1] = x
            a[::-1] = a.copy()
        elif kind == "self":
            x[0] = x[-1]
            a[0] = a[-1].copy()
        elif a.shape == a.T.shape and not pair.is_bool:
            x += x.T
            a += a.T.copy()

    def copy(self) -> None:
        pair = self.pick()
        kind = self.random.choice(["clone", "contiguous", "Tensor", "cat"])
        x, a = pair.tensor, pair.array
        if kind == "cat" and a.ndim:
            self.add(Tensor.cat(x, x, dim=-1), owned(np.concatenate([a, a], -1)))
        elif kind == "clone":
            self.add(x.clone(), owned(a))
        elif kind == "contiguous":
            self.add(x.contiguous(), owned(a))
        else:
            self.add(Tensor(x), owned(a))

    def realize(self) -> None:
        self.pick().tensor.realize(*[self.pick().tensor for _ in range(self.random.randint(0, 2))])

    def drop(self) -> None:
        if len(self.pairs) > 2:
            del self.pairs[self.random.randrange(len(self.pairs))]

    def read(self) -> None:
        pair = self.pick()
        equal(pair.tensor, pair.array)

    def export(self) -> None:
        pair = self.pick()
        self.exports.append((pair.tensor.numpy(copy=False), owned(pair.array)))


class Calls:
    """Calls of a captured function, which writes to its arguments and to tensors of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        shape, dtype = self.random.choice([(4,), (2, 3), (3, 4)]), self.random.choice(DTYPES)
        self.states = [self.made(shape, dtype) for _ in range(2)]
        self.outside = self.made((2, *shape), dtype)
        self.held: list[Pair] = []
        self.tensors = [pair.tensor for pair in self.states]
        self.function = TinyJit(self.captured)

    def made(self, shape: tuple[int, ...], dtype: Any) -> Pair:
        array = np.array([self.random.randint(0, 9) for _ in range(int(np.prod(shape)))])
        array = array.reshape(shape).astype(dtype)
        return Pair(Tensor(array), array)

    def statements(self, pairs: list[Pair]) -> list[Pair]:
        """The same ones each time."""
        program = Program(self.seed, pairs, captured=True)
        program.run(5)
        return program.pairs[:3]

    def captured(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """What NumPy does meanwhile is of no account."""
        tensors = [x, y, *self.tensors]
        pairs = [Pair(tensor, np.zeros(tensor.shape, tensor.dtype.np)) for tensor in tensors]
        return [pair.tensor for pair in self.statements(pairs)]

    def expected(self, x: Array, y: Array) -> list[Array]:
        """What ferrule does meanwhile is of no account."""
        arrays = [x, y, *[pair.array for pair in self.states]]
        pairs = [Pair(Tensor(array), array) for array in arrays]
        return [owned(pair.array) for pair in self.statements(pairs)]

    def argument(self) -> Pair:
        """A part of memory that others see, or a new tensor."""
        if self.random.random() < 0.6:
            place = self.random.randrange(2)
            return Pair(self.outside.tensor[place], self.outside.array[place])
        return self.made(self.states[0].shape, self.states[0].array.dtype)

    def between(self) -> None:
        pair = self.random.choice([*self.states, self.outside])
        kind = self.random.choice(["write", "hold", "realize", "nothing"])
        if kind == "write":
            pair.tensor[0] = 3
            pair.array[0] = 3
        elif kind == "hold":
            self.held.append(Pair(pair.tensor.cast("int32") + 1, pair.array.astype(np.int32) + 1))
        elif kind == "realize":
            pair.tensor.realize()

    def run(self, count: int) -> None:
        for _ in range(count):
            x, y = self.argument(), self.argument()
            wanted = self.expected(x.array, y.array)
            results = self.function(x.tensor, y.tensor)
            order = list(zip(results, wanted, strict=True))
            order += [(pair.tensor, pair.array) for pair in (x, y, *self.states, self.outside)]
            self.random.shuffle(order)
            for tensor, array in order[: self.random.randint(1, len(order))]:
                equal(tensor, array)
            self.between()
        for pair in [*self.held, *self.states, self.outside]:
            equal(pair.tensor, pair.array)


# *** the tests ***


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_programs_on_tensors_are_numpys(device: str, programs: int) -> None:
    count = programs if device == "NUMPY" else programs // 16
    with Context(FERRULE_DEVICE=device):
        for seed in range(count):
            program = Program(seed)
            program.run(program.random.randint(3, 16))
            program.check()


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_captured_programs_are_numpys(device: str, programs: int) -> None:
    count = programs // 40 if device == "NUMPY" else programs // 80
    with Context(FERRULE_DEVICE=device):
        for seed in range(count):
            Calls(seed).run(5)
