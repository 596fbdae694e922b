"""Generators of random orders, with seeds of their own."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ferrule.tensor import Tensor


@final
class Generator:
    """Random numbers for the order of samples, apart from those of tensors.

    >>> from ferrule.data import Generator
    >>> Generator().manual_seed(3).initial_seed()
    3
    """

    def __init__(self) -> None:
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> Generator:
        """Begins anew with a seed; returns the generator."""
        self._seed = int(seed)
        self.numbers = np.random.default_rng(abs(self._seed))
        """The numbers, by NumPy."""
        return self

    def initial_seed(self) -> int:
        """The seed that it began with."""
        return self._seed


def numbers_of(generator: Generator | None) -> np.random.Generator:
    """The random numbers of a generator; without one, of those that `Tensor.manual_seed` sets."""
    if generator is not None:
        return generator.numbers
    drawn: Any = Tensor.randint(2, low=0, high=2**31 - 1).tolist()
    return np.random.default_rng(drawn)
