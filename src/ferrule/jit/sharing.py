"""Results in the memory of an argument, or of one another: those of a replay are, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias, final

from ferrule.expr import Variable
from ferrule.jit.inputs import has_variables, with_values, without_values
from ferrule.records import dataclass
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Cell, Move

Moves: TypeAlias = tuple[tuple[Move, bool], ...]
"""Movements, one after the other, and whether gradients stop at each."""


@final
@dataclass(frozen=True)
class Shared:
    """How to make a tensor in the memory of another, which has a number."""

    whole: int
    detached: bool
    """Whether gradients stop before the first movement."""
    moves: Moves
    symbolic: bool
    """Whether there are variables in them."""

    def of(self, tensors: Sequence[Tensor], var_vals: Mapping[Variable, int]) -> Tensor:
        """The tensor, with these values of the variables in sizes."""
        handle = tensors[self.whole]
        if self.detached:
            handle = handle.detach()
        elif not self.moves:
            handle = handle._same_handle()
        for (op, arg), detached in self.moves:
            handle = handle._view_of(op, with_values(arg, var_vals) if self.symbolic else arg)
            handle._detached = detached
        return handle


@final
class Sharing:
    """Which of the tensors that a call made are in memory that it was given, or made once for all.

    Left out are views whose size has a variable that is not among those of the arguments, and those
    of a tensor that collects a gradient of its own and was made in the call.
    """

    def __init__(
        self,
        given: Mapping[Tensor, int],
        made: Sequence[Tensor],
        variables: Set[Variable],
    ) -> None:
        self._numbers = given
        self._variables = variables
        self._given: dict[Cell, list[Tensor]] = {}
        for tensor in given:
            self._given.setdefault(tensor._cell, []).append(tensor)
        self.wholes: dict[Cell, Tensor] = {}
        """For the memory of several tensors that the call made: a handle on all of it."""
        self._ways = {tensor: way for tensor in made if (way := self._way(tensor)) is not None}
        several = Counter([whole._cell for whole, _, _ in self._ways.values()])
        for tensor, (whole, _, _) in list(self._ways.items()):
            if whole._cell in self._given:
                continue
            if several[whole._cell] == 1 or self.wholes.setdefault(whole._cell, whole) is tensor:
                del self._ways[tensor]

    def _way(self, tensor: Tensor) -> tuple[Tensor, bool, Moves] | None:
        """Which tensor one is a view of, in the end, and how."""
        moves: list[tuple[Move, bool]] = []
        handle = tensor
        while True:
            if handle._leaf is not None and handle is not tensor and handle not in self._numbers:
                return None
            for known in self._given.get(tensor._cell, ()):
                if _is_like(handle, known):
                    return known, handle._detached and handle is not known, tuple(moves[::-1])
            if handle._parent is None:
                return handle, False, tuple(moves[::-1])
            assert isinstance(handle._parent, Tensor)
            assert handle._move is not None
            op, arg = handle._move
            free, values = without_values(arg)
            if not values.keys() <= self._variables:
                return None
            moves.append(((op, free), handle._detached))
            handle = handle._parent

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._ways

    def is_of(self, tensor: Tensor, tensors: Mapping[Tensor, Tensor]) -> bool:
        """Whether a tensor is in the memory of one of these that were given."""
        return self._ways[tensor][0] in tensors

    def shared(self, tensor: Tensor, numbers: Mapping[int, object]) -> Shared:
        """How to make a tensor; `numbers` are those of what the call made, by `id()`."""
        whole, detached, moves = self._ways[tensor]
        number = self._numbers.get(whole)
        if number is None:
            made = numbers[id(self.wholes[whole._cell])]
            assert isinstance(made, int)
            number = made
        symbolic = any(has_variables(arg) for (_, arg), _ in moves)
        return Shared(number, detached, moves, symbolic)


def _is_like(handle: Tensor, known: Tensor) -> bool:
    """Whether both are all of one memory, or the same view of one tensor."""
    return handle._parent is known._parent and handle._move == known._move
