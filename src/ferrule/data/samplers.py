"""Samplers: the numbers of samples in the order of a pass, and batches of numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar, final

import numpy as np

from ferrule.data.generator import Generator, numbers_of

T = TypeVar("T", covariant=True)


class Sampler(ABC, Generic[T]):
    """The numbers of samples, or lists of them. A subclass defines `__iter__`, maybe `__len__`."""

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """The numbers of one pass."""


@final
class SequentialSampler(Sampler[int]):
    """All samples in their order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


@final
class RandomSampler(Sampler[int]):
    """Samples at random, in another order in each pass: all of them once, or `num_samples`.

    With `replacement` each is drawn from all. The order is that of the generator, or of
    `Tensor.manual_seed`.

    >>> from ferrule.data import Generator, RandomSampler
    >>> sampler = RandomSampler(range(5), generator=Generator().manual_seed(0))
    >>> sorted(sampler), len([*RandomSampler(range(5), replacement=True, num_samples=12)])
    ([0, 1, 2, 3, 4], 12)
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; draw at least one sample")
        self.data_source = data_source
        self.replacement = replacement
        self.generator = generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """The samples of a pass."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        numbers, size = numbers_of(self.generator), len(self.data_source)
        left = self.num_samples if size else 0
        while left > 0:
            if self.replacement:
                some = numbers.integers(size, size=left)
            else:
                some = numbers.permutation(size)[:left]
            yield from some.tolist()
            left -= len(some)

    def __len__(self) -> int:
        return self.num_samples


@final
class SubsetRandomSampler(Sampler[int]):
    """Some samples at random, each once."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = numbers_of(self.generator).permutation(len(self.indices))
        return iter([self.indices[place] for place in order.tolist()])

    def __len__(self) -> int:
        return len(self.indices)


@final
class WeightedRandomSampler(Sampler[int]):
    """`num_samples` samples at random, as often as their weights say, which need no sum of 1.

    Raises `ValueError` for weights that are negative or all zero, and for more samples than weights
    above zero without `replacement`.

    >>> from ferrule.data import WeightedRandomSampler
    >>> sorted(WeightedRandomSampler([0.0, 1.0, 3.0], 2, replacement=False))
    [1, 2]
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        self.weights = np.asarray(weights, np.float64)
        there = int((self.weights > 0).sum())
        if self.weights.ndim != 1 or (self.weights < 0).any() or not there:
            raise ValueError("weights are a list of numbers from 0 on, and not all 0")
        if num_samples < 1 or (not replacement and num_samples > there):
            raise ValueError(f"{num_samples} samples cannot be drawn with {there} weights above 0")
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        chances = self.weights / self.weights.sum()
        numbers = numbers_of(self.generator)
        found = numbers.choice(len(chances), self.num_samples, self.replacement, chances)
        return iter(found.tolist())

    def __len__(self) -> int:
        return self.num_samples


@final
class BatchSampler(Sampler[list[int]]):
    """Lists of numbers of another sampler; the last one may be shorter, or is dropped.

    >>> from ferrule.data import BatchSampler
    >>> [*BatchSampler(range(5), 2, drop_last=False)], len(BatchSampler(range(5), 2, True))
    ([[0, 1], [2, 3], [4]], 2)
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if type(batch_size) is not int or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; it is a number from 1 on")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return grouped(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        size: Any = self.sampler
        return count_of(len(size), self.batch_size, self.drop_last)


def grouped(items: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Items in lists of so many."""
    left = iter(items)
    while some := [*islice(left, size)]:
        if len(some) == size or not drop_last:
            yield some


def count_of(items: int, size: int, drop_last: bool) -> int:
    """The number of lists that `grouped` makes of so many items."""
    return items // size if drop_last else -(-items // size)
