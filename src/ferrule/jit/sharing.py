"""Aliases: results that share memory with an argument or with one another, in replays too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.ir.expr import Variable
from ferrule.jit.inputs import has_variables, with_values, without_values
from ferrule.tensor import Tensor
from ferrule.tensor.cell import Move, StorageRef

Moves: TypeAlias = tuple[tuple[Move, bool], ...]
"""Movements in order, each with True if gradients stop at it."""


@final
@dataclass(frozen=True)
class Shared:
    """An alias: the movements that make it from tensor number `whole`."""

    whole: int
    detached: bool
    """True if gradients stop before the first movement."""
    moves: Moves
    symbolic: bool
    """True if there are variables in the movements."""

    def of(self, tensors: Sequence[Tensor], var_vals: Mapping[Variable, int]) -> Tensor:
        """The alias of one of the tensors, with these values of the variables in sizes."""
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
    """The aliases among the tensors that a call made: views of its inputs, or of a common base.

    Two kinds of views are left out: those with a variable that no argument has, and those of a leaf
    made in the call.
    """

    def __init__(
        self,
        given: Mapping[Tensor, int],
        made: Sequence[Tensor],
        variables: Set[Variable],
    ) -> None:
        self._numbers = given
        self._variables = variables
        self._given: dict[StorageRef, list[Tensor]] = {}
        for tensor in given:
            self._given.setdefault(tensor._cell, []).append(tensor)
        self.wholes: dict[StorageRef, Tensor] = {}
        """The base of several aliases that the call made, by cell."""
        self._ways = {tensor: way for tensor in made if (way := self._way(tensor)) is not None}
        several = Counter([whole._cell for whole, _, _ in self._ways.values()])
        # A handle that gradients pass is the base of those at which they stop.
        for tensor, (whole, _, _) in sorted(
            self._ways.items(), key=lambda way: way[1][0]._detached
        ):
            if whole._cell in self._given:
                continue
            if several[whole._cell] == 1 or self.wholes.setdefault(whole._cell, whole) is tensor:
                del self._ways[tensor]

    def _way(self, tensor: Tensor) -> tuple[Tensor, bool, Moves] | None:
        """The base of a view (an input, if one fits), and the movements from there to the view."""
        moves: list[tuple[Move, bool]] = []
        handle = tensor
        while True:
            if handle._leaf is not None and handle is not tensor and handle not in self._numbers:
                return None
            for known in self._given.get(tensor._cell, ()):
                if _is_like(handle, known):
                    return known, handle._detached and handle is not known, tuple(moves[::-1])
            if handle._parent is None:
                return handle, handle._detached, tuple(moves[::-1])
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
        """True if a tensor is an alias of one of these inputs."""
        return self._ways[tensor][0] in tensors

    def shared(self, tensor: Tensor, numbers: Mapping[int, object]) -> Shared:
        """The alias as a `Shared`; `numbers` are those of the tensors of the call, by `id()`."""
        whole, detached, moves = self._ways[tensor]
        number = self._numbers.get(whole)
        if number is None:
            made = numbers[id(self.wholes[whole._cell])]
            assert isinstance(made, int)
            number = made
        symbolic = any(has_variables(arg) for (_, arg), _ in moves)
        return Shared(number, detached, moves, symbolic)


def _is_like(handle: Tensor, known: Tensor) -> bool:
    """True if two handles on one cell are both its base, or the same view of one tensor."""
    return handle._parent is known._parent and handle._move == known._move
