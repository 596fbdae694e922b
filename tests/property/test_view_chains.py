"""Chains of movements of few elements, or none, by numbers and by variables, are NumPy's: as a
`View`, and as functions of an index.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.moves import shape_of

from ferrule.ir.expr import TRUE, Expr, Variable, all_of, as_expr, const, sint
from ferrule.ir.shape import movement
from ferrule.ir.shape.view import View

Array = np.ndarray[Any, Any]
Index = tuple[Expr, ...]
Function = Callable[[Index], tuple[Index, Expr]]
CHAINS = 800


class Chain:
    """One chain, done to a View, to index functions, and to the places of elements in NumPy, where
    -1 is padding.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.symbolic = self.rng.random() < 0.6
        sizes = [0, 1, 2] if self.rng.random() < 0.1 else [1, 1, 2, 3]
        self.shape = tuple(self.rng.choice(sizes) for _ in range(self.rng.randint(0, 3)))
        self.array: Array = np.arange(math.prod(self.shape)).reshape(self.shape)
        self.view: View | None = View.create(self.shape)
        self.functions: list[Function] = []
        self.values: dict[Expr, Expr] = {}
        self.was_empty = 0 in self.shape

    def run(self) -> None:
        kinds = [self.pad, self.pad, self.shrink, self.shrink, self.reshape, self.reshape]
        kinds += [self.permute, self.expand, self.stride]
        for _ in range(self.rng.randint(1, 8)):
            self.rng.choice(kinds)()
            self.was_empty |= 0 in self.array.shape
            if self.view is None:
                break

    def number(self, expression: sint) -> int:
        found = as_expr(expression).substitute(self.values)
        assert found.is_const
        return int(found.arg)

    def sized(self, low: int, high: int, value: int) -> sint:
        """A number, or a variable that has it."""
        if not self.symbolic or self.rng.random() < 0.5:
            return value
        variable = Variable(f"v{len(self.values)}", low, high)
        self.values[variable] = const(value)
        return variable

    def moved(self, view: View | None, function: Function, array: Array) -> None:
        self.view = view
        self.functions.append(function)
        self.array = array

    # -- movements -------------------------------------------------------------------------------

    def pad(self) -> None:
        if self.array.size > 60 or self.view is None:
            return
        source = self.array.shape
        pairs, known = [], []
        for _ in source:
            total = self.rng.choice([0, 1, 2, 3])
            before = self.rng.randint(0, total)
            first = self.sized(0, total, before)
            pairs.append((first, total - first))
            known.append((before, total - before))
        array = np.pad(self.array, known, constant_values=-1) if known else self.array
        self.moved(self.view.pad(pairs), lambda i: movement.pad_index(i, pairs, source), array)

    def shrink(self) -> None:
        assert self.view is not None
        pairs, known = [], []
        for size in self.array.shape:
            least = 0 if self.rng.random() < 0.1 else min(1, size)
            length = self.rng.choice([least, self.rng.randint(least, size), size])
            start = self.rng.randint(0, size - length)
            first = self.sized(0, size - length, start)
            pairs.append((first, first + length))
            known.append(slice(start, start + length))
        source = self.array.shape
        function: Function = lambda i: movement.shrink_index(i, pairs, source)  # noqa: E731
        self.moved(self.view.shrink(pairs), function, self.array[tuple(known)])

    def reshape(self) -> None:
        assert self.view is not None
        source, shape = self.array.shape, shape_of(self.rng, self.array.size)
        function: Function = lambda i: movement.reshape_index(i, shape, source)  # noqa: E731
        self.moved(self.view.reshape(shape), function, self.array.reshape(shape))

    def permute(self) -> None:
        assert self.view is not None
        rank = self.array.ndim
        axes = self.rng.sample(range(rank), rank)
        source = self.array.shape
        function: Function = lambda i: movement.permute_index(i, axes, source)  # noqa: E731
        self.moved(self.view.permute(axes), function, self.array.transpose(axes))

    def expand(self) -> None:
        assert self.view is not None
        source = self.array.shape
        shape = tuple(self.rng.choice([1, 2, 3]) if size == 1 else size for size in source)
        function: Function = lambda i: movement.expand_index(i, shape, source)  # noqa: E731
        self.moved(self.view.expand(shape), function, np.broadcast_to(self.array, shape))

    def stride(self) -> None:
        assert self.view is not None
        source = self.array.shape
        steps = [self.rng.choice([1, -1, 2, -2, 3]) for _ in source]
        function: Function = lambda i: movement.stride_index(i, steps, source)  # noqa: E731
        array = self.array[tuple(slice(None, None, step) for step in steps)]
        self.moved(self.view.stride(steps), function, array)

    # -- what they mean --------------------------------------------------------------------------

    def place_by_view(self, view: View, idx: Index) -> int:
        offset, there = view.index(idx)
        return self.number(offset) if self.number(there) else -1

    def place_by_functions(self, idx: Index) -> int:
        there = TRUE
        for function in reversed(self.functions):
            idx, inside = function(idx)
            there = all_of([there, inside])
        return self.number(movement.flatten(idx, self.shape)) if self.number(there) else -1

    def check(self) -> None:
        for place in np.ndindex(*self.array.shape):
            idx = tuple(const(i) for i in place)
            if self.view is not None:
                assert self.place_by_view(self.view, idx) == self.array[place]
            if not self.was_empty:  # no index into nothing means anything
                assert self.place_by_functions(idx) == self.array[place]
        if self.view is not None:
            self.check_counts(self.view)

    def check_counts(self, view: View) -> None:
        assert tuple(self.number(size) for size in view.shape) == self.array.shape
        touched = self.array[self.array >= 0]
        distinct, size = len(np.unique(touched)), self.number(view.real_size)
        assert distinct <= size
        assert size <= touched.size or self.values
        if view.is_injective:
            assert distinct == size == touched.size
        assert View(view.shape, view.strides, view.offset, view.mask) == view


def test_chains_of_movements_are_numpys() -> None:
    for seed in range(CHAINS):
        chain = Chain(seed)
        chain.run()
        try:
            chain.check()
        except AssertionError as error:
            error.add_note(f"chain {seed}: {chain.view} for {chain.array.tolist()}")
            raise


def test_what_hides_the_only_element_outlives_its_axes() -> None:
    """A mask needs an axis: without one no View says that nothing is there."""
    hidden = View.create((3,)).pad(((1, 0),)).shrink(((0, 1),))
    assert hidden.reshape(()) is None
    for shape in [(1,), (1, 1)]:
        view = hidden.reshape(shape)
        assert view is not None
        assert view.mask == ((0, 0),) * len(shape)
    shown = View.create((3,)).pad(((1, 0),)).shrink(((1, 2),)).reshape(())
    assert shown == View.create(())
