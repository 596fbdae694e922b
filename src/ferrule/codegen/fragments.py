"""What each thread of a warp holds of the matrices that the warp multiplies.

Where they are in memory that the block shares, one instruction loads four 8 x 8 matrices, and each
thread says where one row of them is. Such rows, pieces of 16 bytes, may be rows or columns of what
is multiplied.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import final

from ferrule.codegen.intrinsics import MMA
from ferrule.codegen.kernel import Kind, Nest
from ferrule.codegen.primitives.products import matrix_operands
from ferrule.codegen.uops import UOp
from ferrule.codegen.values import Values
from ferrule.expr import Expr, ExprOp, as_expr, const, range_, sint, substitute
from ferrule.records import dataclass

SIDE = 8  # rows of a matrix, and elements in each
Place = Callable[[Mapping[Expr, Expr]], Expr]
"""Where in memory an operand's element is, some of its ranges replaced."""


@final
@dataclass(frozen=True)
class Tile:
    """The ranges of a warp's tile that say which element of an operand a thread has."""

    down: Expr
    across: Expr
    half: Expr
    near: Expr
    term: Expr
    copy: Expr
    """Of two copies side by side, which."""


@final
@dataclass(frozen=True)
class Rows:
    """Where the row is that a thread gives, and whether these are columns of the operand."""

    place: Expr
    turned: bool


def left_rows(place: Place, tile: Tile) -> Rows | None:
    """For 16 x 16 of the left operand: upper and lower half, then the same of the later terms."""
    matrix, row = _given(tile)
    half, first = {tile.half: matrix % 2}, matrix // 2 * SIDE
    return _rows(
        lambda i: place({**half, tile.down: row, tile.term: first + i}),
        lambda i: place({**half, tile.down: const(i), tile.term: first + row}),
    )


def right_rows(place: Place, tile: Tile) -> Rows | None:
    """For 16 x 8 of the right one, twice, side by side: earlier and later terms of each."""
    matrix, row = _given(tile)
    chosen, first = {tile.copy: matrix // 2}, matrix % 2 * SIDE

    def column(i: sint) -> Mapping[Expr, Expr]:
        return {tile.across: as_expr(i // MMA.near), tile.near: as_expr(i % MMA.near)}

    return _rows(
        lambda i: place({**chosen, **column(row), tile.term: first + i}),
        lambda i: place({**chosen, **column(i), tile.term: first + row}),
    )


def _given(tile: Tile) -> tuple[Expr, Expr]:
    """The matrix and the row of it that a thread gives: the lane is `down * 4 + across`."""
    return tile.down // 2, tile.down % 2 * MMA.across + tile.across


def _rows(along_terms: Callable[[int], Expr], across_them: Callable[[int], Expr]) -> Rows | None:
    """The one of two forms whose rows are neighbours in memory; None if neither's are."""
    for element, turned in ((along_terms, False), (across_them, True)):
        first = element(0)
        if _is_whole(first) and all(element(i) - first is const(i) for i in range(1, SIDE)):
            return Rows(first, turned)
    return None


def _is_whole(place: Expr) -> bool:
    """Whether a place is a multiple of a row's length."""
    terms, first = place.linear()
    return gcd(first, *terms.values()) % SIDE == 0


@final
class Fragments:
    """Gets operands of products of matrices, as `MMA` shares them out among threads."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.out = values.out
        self._rows: dict[Expr, Rows | None] = {}

    def operands(self, nest: Nest) -> tuple[UOp, UOp]:
        """What this thread holds of the operands of a nest's product now."""
        (c,) = nest.computes
        down, across = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD][-2:]
        half, near, term = (loop.range for loop in nest.loops[-3:])
        left, right = (factor.src[0] for factor in matrix_operands(c.value, down))
        tile = Tile(down, across, half, near, term, range_("copy", 2))
        lefts = self._left_matrices(left, tile) or self._left_pairs(left, tile)
        rights = self._right_matrices(right, left, tile) or self._right_pairs(right, tile)
        return lefts, rights

    def joined(self, parts: Sequence[UOp]) -> UOp:
        """Vectors one after the other."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.out.shuffle(tuple(range(2 * a.lanes)), a, b) for a, b in pairs]
        return parts[0]

    def _left_matrices(self, left: Expr, tile: Tile) -> UOp | None:
        """The left operand by one instruction, if rows or columns of it are neighbours."""
        return self._matrices(self.values.current(left), left_rows, tile)

    def _right_matrices(self, right: Expr, left: Expr, tile: Tile) -> UOp | None:
        """The same of the right one, which is half as large: with that of the copy beside it."""
        copies = self.values.copies
        own = [r for r in copies if r in right.ranges - left.ranges and r.size.max % 2 == 0]
        if not own:
            return None
        number = int(copies[own[-1]].arg)
        chosen = {**copies, own[-1]: tile.copy + (number - number % 2)}
        pair = self._matrices(right.substitute(chosen), right_rows, tile)
        if pair is None:
            return None
        first = 4 * (number % 2)
        return self.out.shuffle(tuple(range(first, first + 4)), pair)

    def _matrices(
        self, operand: Expr, rows_of: Callable[[Place, Tile], Rows | None], tile: Tile
    ) -> UOp | None:
        threads = self.values.threads
        if operand.op is not ExprOp.READ or operand.arg not in threads.shared:
            return None
        if operand not in self._rows:
            c = self.values.kernel.computes[operand.arg]
            self._rows[operand] = rows_of(
                lambda values: threads.place(c, substitute(operand.src, values)), tile
            )
        rows = self._rows[operand]
        return None if rows is None else self.values.matrices(operand, rows.place, rows.turned)

    def _left_pairs(self, left: Expr, tile: Tile) -> UOp:
        """The left operand, two neighbours along the terms at a time."""
        near, pair = _pair(tile)
        parts = []
        for i, h in itertools.product(range(MMA.terms // MMA.down), range(MMA.rows // MMA.down)):
            place = {tile.term: near + i * MMA.down, tile.half: const(h)}
            with self.values.along(pair):
                parts.append(self.values.vector(left.substitute(place)))
        return self.joined(parts)

    def _right_pairs(self, right: Expr, tile: Tile) -> UOp:
        """The right operand, two neighbours along the terms at a time."""
        near, pair = _pair(tile)
        column = {tile.across: tile.down // MMA.near, tile.near: tile.down % MMA.near}
        parts = []
        for i in range(MMA.terms // MMA.down):
            place = {tile.term: near + i * MMA.down, **column}
            with self.values.along(pair):
                parts.append(self.values.vector(right.substitute(place)))
        return self.joined(parts)


def _pair(tile: Tile) -> tuple[Expr, Expr]:
    """The terms of which a thread has two neighbours, and the range over these."""
    pair = range_("pair", MMA.near)
    return tile.across * MMA.near + pair, pair
