"""Random programs of movements around few elements, for tensors and for NumPy.

A program is a list of steps, each a function of all values so far. It is drawn once, on `Dual`s:
arrays that carry their derivatives along; so values and gradients have an oracle that no rule of
ferrule's is part of. All numbers are small multiples of 1/2, so that float64 is exact.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Step = Callable[[list[Any]], Any]
MOST_ELEMENTS = 120
LARGEST = 1000.0
"""Larger values are not multiplied: squares of squares would not be exact."""


@dataclass
class Dual:
    """An array, and its derivatives by each element of the first, on a last axis."""

    value: Array
    slope: Array

    @staticmethod
    def of(array: Array) -> "Dual":
        return Dual(array, np.eye(array.size).reshape(*array.shape, array.size))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    def linear(self, move: Callable[[Array], Array]) -> "Dual":
        parts = [np.asarray(move(part)) for part in np.moveaxis(self.slope, -1, 0)]
        value = np.asarray(move(self.value))
        slope = np.stack(parts, -1) if parts else np.zeros((*value.shape, 0))
        return Dual(value, slope)

    def pad(self, pairs: Any, value: float = 0.0) -> "Dual":
        outside = np.pad(np.ones(self.shape), pairs) == 0
        padded = self.linear(lambda a: np.pad(a, pairs))
        return Dual(np.where(outside, value, padded.value), padded.slope)

    def __getitem__(self, key: Any) -> "Dual":
        return self.linear(lambda a: a[key])

    def permute(self, axes: Any) -> "Dual":
        return self.linear(lambda a: a.transpose(axes))

    def reshape(self, shape: Any) -> "Dual":
        return self.linear(lambda a: a.reshape(shape))

    def expand(self, shape: Any) -> "Dual":
        return self.linear(lambda a: np.broadcast_to(a, shape))

    def flip(self, axis: int) -> "Dual":
        return self.linear(lambda a: np.flip(a, axis))

    def roll(self, shift: int, axis: int) -> "Dual":
        return self.linear(lambda a: np.roll(a, shift, axis))

    def diagonal(self, offset: int) -> "Dual":
        return self.linear(lambda a: a.diagonal(offset))

    def sum(self, axis: int, keepdim: bool) -> "Dual":
        return self.linear(lambda a: a.sum(axis, keepdims=keepdim))

    def cumsum(self, axis: int) -> "Dual":
        return self.linear(lambda a: a.cumsum(axis))

    def contiguous(self) -> "Dual":
        return self

    realize = contiguous

    def __add__(self, other: Any) -> "Dual":
        if isinstance(other, Dual):
            return Dual(self.value + other.value, self.slope + other.slope)
        return Dual(self.value + other, self.slope)

    def __mul__(self, other: Any) -> "Dual":
        if not isinstance(other, Dual):
            return Dual(self.value * other, self.slope * other)
        mine = self.slope * other.value[..., None]
        return Dual(self.value * other.value, mine + other.slope * self.value[..., None])

    def cat(self, other: "Dual", dim: int) -> "Dual":
        value = np.concatenate([self.value, other.value], dim)
        return Dual(value, np.concatenate([self.slope, other.slope], dim))

    def stack(self, other: "Dual", dim: int) -> "Dual":
        value = np.stack([self.value, other.value], dim)
        return Dual(value, np.stack([self.slope, other.slope], dim))


def shape_of(rng: random.Random, size: int) -> tuple[int, ...]:
    """A shape with so many elements, with axes of size 1 among them; none at all for one."""
    out = [0] * (size == 0)
    while size > 1:
        out.append(rng.choice([n for n in range(2, size + 1) if size % n == 0]))
        size //= out[-1]
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        out.insert(rng.randint(0, len(out)), 1 if 0 not in out else rng.randint(0, 3))
    return tuple(out)


def part_of(rng: random.Random, size: int) -> slice:
    """A slice, which often has one element, and seldom none."""
    start = rng.randint(0, size)
    stop = rng.randint(start, size)
    if rng.random() < 0.4 and size:
        start = min(start, size - 1)
        stop = start + 1
    if start == stop and rng.random() < 0.8:
        start, stop = 0, size
    return slice(start, stop, rng.choice([1, 1, 2, 3]))


class Drawing:
    """Draws steps: each method gives one that fits the value number `at`, or None."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kinds = [
            *[self.pad] * 4,
            *[self.element] * 3,
            *[self.part] * 4,
            *[self.reshape] * 3,
            *[self.number] * 3,
            *[self.pair] * 4,
            *[self.along] * 3,
            self.permute,
            self.expand,
            self.flip,
            self.diagonal,
            self.rows,
            self.memory,
        ]

    def step(self, values: list[Dual]) -> Step | None:
        at = len(values) - 1
        if self.rng.random() < 0.35:
            at = self.rng.randrange(len(values))
        return self.rng.choice(self.kinds)(at, values)

    def pad(self, at: int, values: list[Dual]) -> Step:
        rng = self.rng
        pairs = tuple(
            (rng.choice([0, 0, 1, 2]), rng.choice([0, 0, 1, 3])) for _ in values[at].shape
        )
        fill = rng.choice([0, 0, 0, -1, 2])
        return lambda xs: xs[at].pad(pairs, value=fill) if pairs else xs[at]

    def element(self, at: int, values: list[Dual]) -> Step | None:
        shape = values[at].shape
        if not shape or 0 in shape:
            return None
        chosen = shape[: self.rng.randint(1, len(shape))]
        whole = slice(None)
        key = tuple(self.rng.randrange(-n, n) if self.rng.random() < 0.7 else whole for n in chosen)
        return lambda xs: xs[at][key]

    def part(self, at: int, values: list[Dual]) -> Step:
        key: tuple[slice, ...] = tuple(part_of(self.rng, n) for n in values[at].shape)
        if self.rng.random() < 0.2:
            key = tuple(slice(None, None, self.rng.choice([-1, -2])) for _ in key)
        return lambda xs: xs[at][key]

    def reshape(self, at: int, values: list[Dual]) -> Step:
        shape = shape_of(self.rng, values[at].value.size)
        return lambda xs: xs[at].reshape(shape)

    def permute(self, at: int, values: list[Dual]) -> Step:
        rank = len(values[at].shape)
        axes = tuple(self.rng.sample(range(rank), rank))
        return lambda xs: xs[at].permute(axes)

    def expand(self, at: int, values: list[Dual]) -> Step:
        shape = tuple(self.rng.choice([1, 2, 3]) if n == 1 else n for n in values[at].shape)
        return lambda xs: xs[at].expand(shape)

    def flip(self, at: int, values: list[Dual]) -> Step | None:
        rank = len(values[at].shape)
        axis = self.rng.randrange(rank) if rank else 0
        return (lambda xs: xs[at].flip(axis)) if rank else None

    def diagonal(self, at: int, values: list[Dual]) -> Step | None:
        offset = self.rng.randint(-2, 2)
        return (lambda xs: xs[at].diagonal(offset)) if len(values[at].shape) > 1 else None

    def rows(self, at: int, values: list[Dual]) -> Step | None:
        shape = values[at].shape
        if not shape or not shape[0]:
            return None
        places = [self.rng.randrange(-shape[0], shape[0]) for _ in range(self.rng.randint(0, 3))]
        return lambda xs: xs[at][places]

    def memory(self, at: int, values: list[Dual]) -> Step:
        name = self.rng.choice(["contiguous", "realize"])
        return lambda xs: getattr(xs[at], name)()

    def number(self, at: int, values: list[Dual]) -> Step:
        factor, offset = self.rng.choice([(1, 1), (2, 1), (-1, 3)])
        return lambda xs: xs[at] * factor + offset

    def along(self, at: int, values: list[Dual]) -> Step | None:
        rank = len(values[at].shape)
        if not rank:
            return None
        axis, kept = self.rng.randrange(rank), self.rng.random() < 0.5
        shift = self.rng.randint(-3, 3)
        steps: Sequence[Step] = [
            lambda xs: xs[at].sum(axis, keepdim=kept),
            lambda xs: xs[at].cumsum(axis),
            lambda xs: xs[at].roll(shift, axis),
        ]
        return self.rng.choice(steps)

    def pair(self, at: int, values: list[Dual]) -> Step | None:
        """Two values of one shape: added, multiplied, or joined."""
        shape = values[at].shape
        other = self.rng.choice([k for k, value in enumerate(values) if value.shape == shape])
        both = [values[at].value, values[other].value]
        steps: list[Step] = [lambda xs: xs[at] + xs[other]]
        if all(np.abs(value).max(initial=0) < LARGEST for value in both):
            steps.append(lambda xs: xs[at] * xs[other])
        dim = self.rng.randint(0, len(shape))
        steps.append(lambda xs: xs[at].stack(xs[other], dim=dim))
        if dim < len(shape):
            steps.append(lambda xs: xs[at].cat(xs[other], dim=dim))
        return self.rng.choice(steps)


class Program:
    """Steps from a seed, and which of their values are results."""

    def __init__(self, seed: int, most_steps: int = 9) -> None:
        drawing = Drawing(seed)
        self.rng = drawing.rng
        sizes = [0] if self.rng.random() < 0.02 else [1, 1, 2, 3, 3]
        self.shape = tuple(self.rng.choice(sizes) for _ in range(self.rng.randint(0, 3)))
        values = [Dual.of(self.data())]
        self.steps: list[Step] = []
        for _ in range(self.rng.randint(2, most_steps)):
            step = drawing.step(values)
            made = None if step is None else step(values)
            if step is not None and made is not None and made.value.size <= MOST_ELEMENTS:
                values.append(made)
                self.steps.append(step)
        last = len(values) - 1
        others = [k for k in range(1, last) if self.rng.random() < 0.15]
        self.weights = {k: self.rng.choice([1, 2, -1]) for k in (*others, last)}

    def data(self) -> Array:
        """New numbers for the first value."""
        numbers = [self.rng.randint(-3, 3) / 2 for _ in range(math.prod(self.shape))]
        return np.array(numbers, np.float64).reshape(self.shape)

    def results(self, first: Any) -> list[Any]:
        """What the steps make of a Tensor or a Dual."""
        values = [first]
        for step in self.steps:
            values.append(step(values))
        return [values[k] for k in self.weights]

    def total(self, results: list[Any]) -> Any:
        """A number of all results, to differentiate."""
        parts = [
            result.sum() * weight
            for result, weight in zip(results, self.weights.values(), strict=True)
        ]
        return sum(parts[1:], parts[0])

    def expected(self, array: Array) -> tuple[list[Array], Array]:
        """The results, and the gradient of their total, by NumPy."""
        found = self.results(Dual.of(array))
        gradient = np.zeros(array.size)
        for result, weight in zip(found, self.weights.values(), strict=True):
            slopes = result.slope.reshape(result.value.size, array.size)
            gradient = gradient + weight * slopes.sum(0)
        return [result.value for result in found], gradient.reshape(array.shape)
