"""Operand fragments: the elements of the matrices that each thread of a warp holds for a product.

If the matrices are in shared memory, one instruction loads four matrices of 8 rows, and each thread
gives the address of one row. Such a row is a piece of 16 bytes. It has 8 elements of 16 bits, a row
or a column of the operand; or 4 of 32 bits, terms of one row or column. An operand that is rounded
for the product is rounded once, when it is loaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from math import gcd
from typing import final

from ferrule.base.records import dataclass
from ferrule.codegen.emit.values import Values
from ferrule.codegen.intrinsics import WGMMA, MatrixIntrinsic, matrix_intrinsic
from ferrule.codegen.kernel import BANK_LINE_BYTES, Compute, Kind, Loop, Nest
from ferrule.codegen.primitives.products import matrix_operands
from ferrule.codegen.uops import UOp
from ferrule.ir.expr import Expr, ExprOp, as_expr, const, range_, sint, substitute

Place = Callable[[Mapping[Expr, Expr]], Expr]
"""The place of an operand's element in memory, with some of its ranges replaced."""


@final
@dataclass(frozen=True)
class Tile:
    """The ranges of a warp's tile that determine which element of an operand a thread has."""

    down: Expr
    across: Expr
    half: Expr
    near: Expr
    term: Expr
    copy: Expr
    """The number of the copy, of two copies side by side."""
    by: MatrixIntrinsic


@final
@dataclass(frozen=True)
class Rows:
    """The place of the row that a thread gives, and whether rows are columns of the operand
    (`transposed`).
    """

    place: Expr
    transposed: bool


def left_rows(place: Place, tile: Tile) -> Rows | None:
    """The rows of the left operand: upper and lower half, then the same of the later terms."""
    matrix, row = _given(tile)
    half, first = {tile.half: matrix % 2}, matrix // 2 * tile.by.half
    return _rows(
        tile.by,
        lambda i: place({**half, tile.down: row, tile.term: first + i}),
        lambda i: place({**half, tile.down: const(i), tile.term: first + row}),
    )


def right_rows(place: Place, tile: Tile) -> Rows | None:
    """The rows of the right operand of two copies side by side: earlier and later terms of each."""
    matrix, row = _given(tile)
    chosen, first = {tile.copy: matrix // 2}, matrix % 2 * tile.by.half

    def column(i: sint) -> Mapping[Expr, Expr]:
        return {tile.across: as_expr(i // tile.by.near), tile.near: as_expr(i % tile.by.near)}

    return _rows(
        tile.by,
        lambda i: place({**chosen, **column(row), tile.term: first + i}),
        lambda i: place({**chosen, **column(i), tile.term: first + row}),
    )


def _given(tile: Tile) -> tuple[Expr, Expr]:
    """The matrix, and the row of it, that a thread gives: the lane is `down * 4 + across`."""
    return tile.down // 2, tile.down % 2 * tile.by.across + tile.across


def _rows(
    by: MatrixIntrinsic, along_terms: Callable[[int], Expr], across_them: Callable[[int], Expr]
) -> Rows | None:
    """The rows along the terms or across them, whichever are adjacent in memory; None if neither
    is.

    Elements of 32 bits cannot be transposed.
    """
    forms = [(along_terms, False), *([(across_them, True)] if by.packed > 1 else [])]
    for element, transposed in forms:
        first = element(0)
        near = all(element(i) - first is const(i) for i in range(1, by.half))
        if near and _is_whole(first, by.half):
            return Rows(first, transposed)
    return None


def _is_whole(place: Expr, length: int) -> bool:
    """True if a place is a multiple of a row's length."""
    terms, first = place.linear()
    return gcd(first, *terms.values()) % length == 0


@final
class Fragments:
    """Emits the operands of products of matrices, as an intrinsic distributes them among
    threads.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.out = values.out
        self._rows: dict[Expr, Rows | None] = {}
        self._rounded: dict[UOp, UOp] = {}

    def operands(self, nest: Nest) -> tuple[UOp, UOp]:
        """The elements that this thread holds of the operands of a nest's product."""
        (c,) = nest.computes
        down, across = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD][-2:]
        half, near, term = (loop.range for loop in nest.loops[-3:])
        left, right = (factor.src[0] for factor in matrix_operands(c.value, down))
        by = matrix_intrinsic(left.dtype)
        assert by is not None, f"{left} is no operand of a product of matrices"
        tile = Tile(down, across, half, near, term, range_("copy", 2), by)
        lefts = self._left_matrices(left, tile) or self._left_elements(left, tile)
        rights = self._right_matrices(right, left, tile) or self._right_elements(right, tile)
        return lefts, rights

    def in_memory(
        self, nest: Nest, columns: Sequence[Loop]
    ) -> tuple[tuple[UOp, ...], tuple[int | None, int]]:
        """The operands of a warp group's product, and their layouts in shared memory.

        An operand is a pointer and an index; the left one may be the elements that this thread
        holds. A layout is 0 for rows along the terms. Otherwise rows lie side by side for each
        term, and it is the distance between groups of a line of rows. It is None for elements that
        threads hold.
        """
        (c,) = nest.computes
        warp, down, across = [loop.range for loop in nest.loops if loop.kind is Kind.THREAD][-3:]
        half, near, term = (loop.range for loop in nest.loops[-3:])
        left, right = (factor.src[0] for factor in matrix_operands(c.value, down))
        own = {warp, down, across, half, near, term, *(loop.range for loop in columns)}
        distance, beside = self._lines(right, own, term, columns)
        if self.values.is_in_registers(left):
            tile = Tile(down, across, half, near, term, range_("copy", 2), WGMMA)
            return (self._left_elements(left, tile), *beside), (None, distance)
        above, place = self._lines(left, own, term, ())
        return (*place, *beside), (above, distance)

    def _lines(
        self, operand: Expr, own: Set[Expr], term: Expr, rows: Sequence[Loop]
    ) -> tuple[int, tuple[UOp, UOp]]:
        """The layout of an operand, and the place of its first element."""
        staged, place = self._stage_of(operand, dict.fromkeys(own, const(0)))
        at = self.values.local(staged), self.values.plain(self.values.current(place({})))
        if place({term: const(1)}) - place({}) is const(1):
            return 0, at
        further = {rows[0].range: const(1)} if len(rows) > 1 else {}
        distance = int((place(further) - place({})).arg)
        return distance or BANK_LINE_BYTES // staged.value.dtype.itemsize, at

    def _stage_of(self, operand: Expr, first: Mapping[Expr, Expr]) -> tuple[Compute, Place]:
        """The stage that an operand reads, and the place of an element of it before swizzling.

        An element is given by its steps from the first one.
        """
        c = self.values.kernel.computes[operand.arg]
        plain = replace(c, swizzle=0)
        return c, lambda steps: self.values.threads.place(
            plain, substitute(operand.src, {**first, **steps})
        )

    def joined(self, parts: Sequence[UOp]) -> UOp:
        """Several vectors as one, one after the other."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.out.shuffle(tuple(range(2 * a.lanes)), a, b) for a, b in pairs]
        return parts[0]

    def _left_matrices(self, left: Expr, tile: Tile) -> UOp | None:
        """The left operand by one instruction, if its rows or columns are adjacent; else None."""
        return self._matrices(self.values.current(left), left_rows, tile)

    def _right_matrices(self, right: Expr, left: Expr, tile: Tile) -> UOp | None:
        """The right operand by one instruction, if its rows or columns are adjacent; else None.

        It is half as large, so it is loaded with that of the copy beside it.
        """
        copies = self.values.copies
        own = [r for r in copies if r in right.ranges - left.ranges and r.size.max % 2 == 0]
        if not own:
            return None
        number = int(copies[own[-1]].arg)
        chosen = {**copies, own[-1]: tile.copy + (number - number % 2)}
        pair = self._matrices(right.substitute(chosen), right_rows, tile)
        if pair is None:
            return None
        _, count, _ = tile.by.held
        first = count * (number % 2)
        return self.out.shuffle(tuple(range(first, first + count)), pair)

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
        if rows is None:
            return None
        return self._taken(self.values.matrices(operand, rows.place, rows.transposed), tile.by)

    def _left_elements(self, left: Expr, tile: Tile) -> UOp:
        """The left operand, a register at a time."""
        by = tile.by
        parts = []
        for i, h in itertools.product(range(by.terms // by.half), range(by.rows // by.down)):
            parts.append(self._register(left, tile, i, {tile.half: const(h)}))
        return self.joined(parts)

    def _right_elements(self, right: Expr, tile: Tile) -> UOp:
        """The right operand, a register at a time."""
        by = tile.by
        column = {tile.across: tile.down // by.near, tile.near: tile.down % by.near}
        return self.joined(
            [self._register(right, tile, i, column) for i in range(by.terms // by.half)]
        )

    def _register(self, operand: Expr, tile: Tile, half: int, place: Mapping[Expr, Expr]) -> UOp:
        """One register of a thread: one element, or a vector of two neighbours along the terms."""
        by = tile.by
        with self.values.along(by.pair):
            own = {**place, tile.term: by.term(tile.across, half)}
            part = self.values.vector(operand.substitute(own))
        return self._taken(self.out.widen(part, by.packed), by)

    def _taken(self, part: UOp, by: MatrixIntrinsic) -> UOp:
        """The elements as the instruction takes them: rounded once, however many products use
        them.
        """
        if not by.rounds:
            return part
        if part not in self._rounded:
            self._rounded[part] = self.out.alu(ExprOp.TF32, part)
        return self._rounded[part]
