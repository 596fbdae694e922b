"""Data sets: samples by number, or one after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import floor
from typing import Any, Generic, TypeVar, final

import numpy as np

from ferrule.data.generator import Generator, numbers_of
from ferrule.tensor import Tensor

T = TypeVar("T")


class Dataset(ABC, Generic[T]):
    """Samples by number. A subclass defines `__getitem__`, and `__len__` for loaders that count.

    >>> from ferrule.data import Dataset
    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return index**2
    >>> Squares()[3], len(Squares() + Squares())
    (9, 8)
    """

    @abstractmethod
    def __getitem__(self, index: int) -> T:
        """The sample with a number."""

    def __add__(self, other: Dataset[T]) -> ConcatDataset[T]:
        return ConcatDataset([self, other])


class IterableDataset(ABC, Generic[T]):
    """Samples one after another, such as lines of a stream. A subclass defines `__iter__`."""

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """A pass over the samples."""


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """The rows of tensors: sample `i` is `(x[i], y[i], ...)`. Arrays become tensors.

    Raises `ValueError` for tensors with different numbers of rows.

    >>> from ferrule import Tensor
    >>> from ferrule.data import TensorDataset
    >>> rows = TensorDataset(Tensor([[1, 2], [3, 4]]), Tensor([5, 6]))
    >>> len(rows), [one.tolist() for one in rows[1]]
    (2, [[3, 4], 6])
    """

    def __init__(self, *tensors: Any) -> None:
        found = [one if isinstance(one, Tensor) else Tensor(np.asarray(one)) for one in tensors]
        sizes = [one.shape[0] if one.ndim else None for one in found]
        if not found or None in sizes or len(set(sizes)) > 1:
            shapes = ", ".join([str(one.shape) for one in found]) or "nothing"
            raise ValueError(f"TensorDataset takes tensors with as many rows each, not {shapes}")
        self.tensors = tuple(found)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple([one[index] for one in self.tensors])


@final
class Subset(Dataset[T]):
    """The samples of a data set that have some numbers, in their order.

    >>> from ferrule.data import Subset
    >>> [*Subset("abcdef", [4, 0])]
    ['e', 'a']
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> T:
        found: T = self.dataset[self.indices[index]]
        return found


def rows_at(dataset: Any, numbers: Sequence[int]) -> list[Tensor] | None:
    """The batch of some samples, picked from tensors at once; None if they are no rows of such."""
    while isinstance(dataset, Subset):
        dataset, numbers = dataset.dataset, [dataset.indices[number] for number in numbers]
    if type(dataset) is not TensorDataset:
        return None
    return [one[Tensor(np.asarray(numbers), device=one.device)] for one in dataset.tensors]


@final
class ConcatDataset(Dataset[T]):
    """The samples of several data sets, one after another; `a + b` is one.

    Raises `ValueError` without a data set, and for one that is iterated over.

    >>> from ferrule.data import ConcatDataset
    >>> both = ConcatDataset(["abc", "de"])
    >>> both[3], both[-1], len(both)
    ('d', 'e', 5)
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets or any([isinstance(one, IterableDataset) for one in self.datasets]):
            raise ValueError("ConcatDataset takes one or more data sets with samples by number")
        self.cumulative_sizes = list(accumulate([len(one) for one in self.datasets]))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> T:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        number = bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[number - 1] if number else 0
        found: T = self.datasets[number][index - before]
        return found


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset[Any]]:
    """Parts of a data set, with samples at random: as many as `lengths` say, or such fractions.

    Fractions are of all samples, rounded down; what is left goes to the first parts, one sample to
    each. The order is that of the generator, or of `Tensor.manual_seed`.

    Raises `ValueError` for fractions whose sum is more than 1, or lengths with another sum than the
    number of samples.

    >>> from ferrule.data import Generator, random_split
    >>> parts = random_split(range(10), [0.75, 0.25], Generator().manual_seed(0))
    >>> [len(part) for part in parts], sorted([*parts[0], *parts[1]]) == [*range(10)]
    ([8, 2], True)
    """
    size = len(dataset)
    given = [*lengths]
    if abs(sum(given) - 1) < 1e-6 and all([0 <= one <= 1 for one in given]):
        parts = [floor(size * one) for one in given]
        for number in range(size - sum(parts)):
            parts[number % len(parts)] += 1
        given = [*parts]
    sizes = [int(one) for one in given]
    if sizes != given or min(sizes, default=0) < 0 or sum(sizes) != size:
        raise ValueError(f"the lengths {[*lengths]} are not those of parts of {size} samples")
    order = numbers_of(generator).permutation(size).tolist()
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - one : end]) for one, end in zip(sizes, ends, strict=True)]
