"""Sums of products of matrices in tile registers: AMX.

A tile of results has a register for each copy of 16 rows and 16 columns. It begins as zeros, or as
the partial sums in scratch memory. Each step of 16 pairs loads tiles of the operands, whose rows
may be any distance apart, and multiplies them. At the end the results go to scratch memory row by
row, and vectors read them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from ferrule.codegen.emit.values import Values
from ferrule.codegen.intrinsics import TILE
from ferrule.codegen.kernel import Compute, KernelError, Kind, Loop, Nest
from ferrule.codegen.primitives.products import matrix_operands
from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.expr import TRUE, Expr, ExprOp


def in_tile_registers(nest: Nest) -> bool:
    """True if the last three loops of a nest are one instruction."""
    return [loop.kind for loop in nest.loops[-3:]] == [Kind.MATRIX] * 3


@final
class TileRegisters:
    """Puts the loops of a sum in tile registers into a program.

    `children(nest, depth)` emits the nests that hang where `depth` loops of a nest are open.
    `serial(loop, body)` emits a loop that runs.
    """

    def __init__(
        self,
        values: Values,
        children: Callable[[Nest, int], None],
        serial: Callable[[Loop, Callable[[], None]], None],
    ) -> None:
        self.values = values
        self.children = children
        self.serial = serial

    def sums(self, nest: Nest, depth: int, *, partial: bool) -> None:
        """Emit the loops of a nest from `depth` on; `partial` if scratch memory has a part of the
        sums.
        """
        (c,) = nest.computes
        copies = [loop for loop in nest.loops[depth:] if loop.kind is Kind.UNROLL]
        results = {self.values.key(c): n for n, _ in enumerate(self.values.each_copy(copies))}
        for number in self._each(c, results, copies):
            if partial:
                self._move(UOps.TILE_LOAD, c, nest, number)
            else:
                self.values.out.inside(UOp(UOps.TILE_ZERO, arg=(number,)))
        self._add(nest, depth, lambda: self._multiply(nest, results, copies))
        for number in self._each(c, results, copies):
            self._move(UOps.TILE_STORE, c, nest, number)

    def _each(
        self, c: Compute, results: dict[tuple[str, tuple[int, ...]], int], copies: list[Loop]
    ) -> Iterator[int]:
        """The register of each copy in turn, with that copy chosen."""
        for _ in self.values.each_copy(copies):
            yield results[self.values.key(c)]

    def _add(self, nest: Nest, depth: int, step: Callable[[], None]) -> None:
        """Emit the loops over terms from `depth` on, with a step in the last of them."""
        if depth and nest.loops[depth - 1].range not in nest.result_axes:
            self.children(nest, depth)
        loop = nest.loops[depth]
        if loop.kind in (Kind.UNROLL, Kind.MATRIX):
            step()
            return
        if loop.range in nest.result_axes:
            raise KernelError(f"{nest.name}: {loop.range} is in the way of its tile registers")
        self.serial(loop, lambda: self._add(nest, depth + 1, step))

    def _multiply(
        self, nest: Nest, results: dict[tuple[str, tuple[int, ...]], int], copies: list[Loop]
    ) -> None:
        """Emit a product for each copy; copies that share an operand load it once."""
        (c,) = nest.computes
        rows, columns, terms = (loop.range for loop in nest.loops[-3:])
        held: dict[Expr, int] = {}
        left, right = matrix_operands(c.value, rows)
        for number in self._each(c, results, copies):
            for operand, row, near in ((left, rows, terms), (right, terms, columns)):
                e = self.values.current(operand)
                if e not in held:
                    held[e] = len(results) + len(held)
                    self._load(e, row, near, held[e])
            used = number, *(held[self.values.current(operand)] for operand in (left, right))
            self.values.out.inside(UOp(UOps.TILE_DOT, arg=used))
        if len(results) + len(held) > TILE.registers:
            raise KernelError(
                f"{nest.name} needs {len(results) + len(held)} tile registers of {TILE.registers}"
            )

    def _load(self, operand: Expr, row: Expr, near: Expr, number: int) -> None:
        """Load a tile of an operand: from a buffer in which pairs are adjacent, or from a copy."""
        if operand.op is ExprOp.READ:
            c = self.values.kernel.computes[operand.arg]
            index = self.values.threads.place(c, operand.src)
            self._access(UOps.TILE_LOAD, self.values.local(c), index, (row, near, 1), number)
            return
        index, valid, *second = operand.src  # of a pair, or where pairs were packed beforehand
        near_pairs = all(e is (TRUE if i else index + 1) for i, e in enumerate(second))
        if operand.op is not ExprOp.LOAD or valid is not TRUE or not near_pairs:
            raise KernelError(f"{operand} is no operand of a product in tile registers")
        pointer = self.values.params[operand.arg]
        self._access(UOps.TILE_LOAD, pointer, index, (row, near, 2 if second else 1), number)

    def _move(self, op: UOps, c: Compute, nest: Nest, number: int) -> None:
        """Load a tile of results from scratch memory, or store it there."""
        rows, columns, _ = (loop.range for loop in nest.loops[-3:])
        index = self.values.threads.place(c, [self.values.current(r) for r in c.ranges])
        self._access(op, self.values.local(c), index, (rows, columns, 1), number)

    def _access(
        self, op: UOps, pointer: UOp, index: Expr, axes: tuple[Expr, Expr, int], number: int
    ) -> None:
        """Load or store a tile: rows along the first axis, neighbours along the second."""
        row, near, step = axes
        stride = index.linear()[0].get(row, 0)
        first = index - row * stride - near * step
        if not first.ranges.isdisjoint((row, near)):
            raise KernelError(f"{index} is no place of a tile along {row} and {near}")
        src = (pointer, self.values.plain(first))
        self.values.out.inside(UOp(op, src=src, arg=(number, stride)))
