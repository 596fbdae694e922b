"""Instructions that do several multiply-adds in each lane, or in each thread of a warp: their
operands and results.

`tensorize` (in `codegen/primitives/products.py`) emits one. Lane instructions are `ExprOp.DOT`.
Their operands are packed into one integer each, with the element of the smallest k in the lowest
bits.

With four bytes each, signed in an int32 and unsigned in a uint32, and an int32 `c`,

    dot(a, b, c) = a[0]*b[0] + a[1]*b[1] + a[2]*b[2] + a[3]*b[3] + c

which wraps. With pairs of a narrow float and a float32 `c`,

    dot(a, b, c) = a[0]*b[0] + (a[1]*b[1] + c)

Both steps are fused multiply-adds that round to nearest even, in that order. A subnormal operand or
result counts as a zero of its sign. The products of bfloat16 are exact in float32. So a sum differs
from one with float32 multiply-adds only in the order of its terms, and where numbers below 2**-126
matter.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Expr, range_
from ferrule.ir.target import Target


def _has(target: Target, features: frozenset[str]) -> bool:
    """True if a target has all of some features, given in LLVM's spelling."""
    return {f"+{feature}" for feature in features} <= set(target.features.split(","))


@dataclass(frozen=True)
class Intrinsic:
    """`c[n] += sum(a[k] * b[k, n] for k in range(terms))`, with an n for each lane."""

    name: str
    terms: int
    """The number of adjacent terms of the summed axis that are packed into one value."""
    lanes: tuple[int, ...]
    """The vector sizes that one instruction can do."""
    operands: tuple[tuple[DType, DType], ...]
    """The dtypes of an operand's elements, each with the integer that holds `terms` of them."""
    result: DType
    needs: frozenset[str]
    """The features of the target, in LLVM's spelling."""
    mixed: bool = False
    """True if one operand has to be unsigned and the other one signed."""

    def takes(self, source: DType) -> bool:
        """True if an operand may have elements of a dtype."""
        return any(source is element for element, _ in self.operands)

    def gives(self, dtype: DType) -> bool:
        """True if sums in a dtype are those of the result, or, as integers wrap, their low bits."""
        whole = dtypes.is_int(dtype) and dtypes.is_int(self.result)
        return dtype is self.result or (whole and dtype.itemsize <= self.result.itemsize)

    def packed(self, source: DType) -> DType:
        """The integer that holds `terms` elements of a dtype."""
        return dict(self.operands)[source]

    def is_native(self, target: Target) -> bool:
        """True if the target has the instruction."""
        return _has(target, self.needs)


_OF_BYTES: Final = Intrinsic(
    name="dpbusd",
    terms=4,
    lanes=(4, 8, 16),
    operands=((dtypes.int8, dtypes.int32), (dtypes.uint8, dtypes.uint32)),
    result=dtypes.int32,
    needs=frozenset({"avx512vnni", "avx512vl"}),
    mixed=True,
)
INTRINSICS: Final = {
    intrinsic.name: intrinsic
    for intrinsic in (  # of several for the same operands, the first one that a target has
        Intrinsic(
            name="dpbf16ps",
            terms=2,
            lanes=(4, 8, 16),
            operands=((dtypes.bfloat16, dtypes.uint32),),
            result=dtypes.float32,
            needs=frozenset({"avx512bf16", "avx512vl"}),
        ),
        _OF_BYTES,
        replace(_OF_BYTES, name="dpbusd.vex", lanes=(4, 8), needs=frozenset({"avxvnni"})),
        replace(_OF_BYTES, name="pmaddwd.512", needs=frozenset({"avx512bw"}), mixed=False),
        replace(_OF_BYTES, name="pmaddwd", lanes=(4, 8), needs=frozenset({"avx2"}), mixed=False),
    )
}


@dataclass(frozen=True)
class TileIntrinsic:
    """`c[m, n] += sum(a[m, k] * b[k, n] for k in range(terms))`, of matrices in tile registers.

    A register has 16 rows of 64 bytes. An element of an operand is a pair, in the layout that
    `ExprOp.DOT` of the lane instruction `pairs` has. The products of the first elements of all
    pairs are added up by themselves, beginning with 0, and those of the second too; their sum is
    added to c. All of these round to nearest even, and subnormals are zeros.
    """

    name: str
    rows: int
    columns: int
    terms: int
    """Terms, counted in pairs."""
    registers: int
    pairs: str
    needs: frozenset[str]

    def is_native(self, target: Target) -> bool:
        """True if the target has the instruction."""
        return _has(target, self.needs)


TILE: Final = TileIntrinsic(
    name="tdpbf16ps",
    rows=16,
    columns=16,
    terms=16,
    registers=8,
    pairs="dpbf16ps",
    needs=frozenset({"amx-tile", "amx-bf16"}),
)


ASYNC_COPIES = "+async"  # the feature: asynchronous copies to shared memory
COPIED_BYTES = (4, 8, 16)  # bytes of one asynchronous copy, which needs no register
WARP = 32  # threads that multiply matrices together


@dataclass(frozen=True)
class MatrixIntrinsic:
    """`c[m, n] += sum(a[m, k] * b[k, n] for k in range(terms))`, by the 32 threads of a warp.

    Each thread holds a part of each matrix: `left`, `right` and `result` give the e-th element of
    thread t, as (row, column). The threads are `down` x `across`; a thread has every `down`-th row
    of the result, and `near` adjacent elements of each. Of an operand it has `packed` adjacent
    terms in a register of 32 bits.

    With `warps`, so many warps together, one below the other, take their operands from shared
    memory. The product may have any number of columns, and is complete when the warps have waited
    for it.

    With `rounds` the operands are rounded first (`ExprOp.TF32`), so that the product differs from
    that of the elements; only if the target's `allows_tf32` permits it.
    """

    name: str
    rows: int
    columns: int
    terms: int
    down: int
    across: int
    near: int
    packed: int
    sources: tuple[DType, ...]
    result_dtype: DType
    needs: frozenset[str]
    rounds: bool = False
    warps: int = 1

    @property
    def itemsize(self) -> int:
        """The bytes of an element of an operand."""
        return self.sources[0].itemsize

    @property
    def half(self) -> int:
        """The terms of one row or column that a register of each thread has."""
        return self.across * self.packed

    @property
    def held(self) -> tuple[int, int, int]:
        """The number of elements that each thread has of the left matrix, the right one, and the
        result.
        """
        sizes = self.rows * self.terms, self.terms * self.columns, self.rows * self.columns
        left, right, result = (size // WARP for size in sizes)
        return left, right, result

    @property
    def pair(self) -> Expr | None:
        """A range over the neighbours in a register, if there are several."""
        return range_("pair", self.packed) if self.packed > 1 else None

    def term(self, across: Expr, half: int) -> Expr:
        """The terms that a thread has in a register of the left matrix or the right one."""
        first = across * self.packed + half * self.half
        return first if self.pair is None else first + self.pair

    def left(self, t: Any, e: Any) -> tuple[Any, Any]:
        """The place of thread t's e-th element of the left matrix.

        Of each two registers the second has the lower half of the rows.
        """
        register = e // self.packed
        return t // 4 + register % 2 * 8, self._term(t, e, register // 2)

    def right(self, t: Any, e: Any) -> tuple[Any, Any]:
        """The place of thread t's e-th element of the right matrix: registers along the terms, of
        one column.
        """
        return self._term(t, e, e // self.packed), t // 4

    def _term(self, t: Any, e: Any, half: Any) -> Any:
        return t % 4 * self.packed + e % self.packed + half * self.half

    def result(self, t: Any, e: Any) -> tuple[Any, Any]:
        """The place of thread t's e-th element of the result: pairs along a row."""
        return t // 4 + e // 2 * 8, t % 4 * 2 + e % 2

    @cached_property
    def is_chained(self) -> bool:
        """True if threads hold results side by side as they hold a left matrix.

        Results can then be multiplied where they are.
        """
        _, _, count = self.held
        results = {
            (t, row, column)
            for t in range(WARP)
            for row, column in (self.result(t, e) for e in range(count))
        }
        lefts = ((t, *self.left(t, e)) for t in range(WARP) for e in range(self.held[0]))
        return all((t, row, term % self.columns) in results for t, row, term in lefts)

    def is_native(self, target: Target) -> bool:
        """True if the target has the instruction, and may use it."""
        has_it = target.warp == WARP and _has(target, self.needs)
        return has_it and (target.allows_tf32 or not self.rounds)


MMA: Final = MatrixIntrinsic(
    name="mma16816",
    rows=16,
    columns=8,
    terms=16,
    down=8,
    across=4,
    near=2,
    packed=2,
    sources=(dtypes.float16, dtypes.bfloat16),
    result_dtype=dtypes.float32,
    needs=frozenset({"mma"}),
)
MMA_TF32: Final = MatrixIntrinsic(
    name="mma1688",
    rows=16,
    columns=8,
    terms=8,
    down=8,
    across=4,
    near=2,
    packed=1,
    sources=(dtypes.float32,),
    result_dtype=dtypes.float32,
    needs=frozenset({"mma"}),
    rounds=True,
)
WGMMA: Final = replace(MMA, name="wgmma", needs=frozenset({"wgmma"}), warps=4)
"""Products of matrices by a warp group: of 64 rows, 8 to 256 columns and 16 terms."""
WGMMA_COLUMNS = 256  # columns of a product by a warp group, at most
MATRIX_INTRINSICS: Final = {intrinsic.name: intrinsic for intrinsic in (MMA, MMA_TF32)}


def matrix_intrinsic(source: DType | None) -> MatrixIntrinsic | None:
    """The instruction that multiplies matrices of a dtype, whether a target has it or not."""
    return next((i for i in MATRIX_INTRINSICS.values() if source in i.sources), None)


def native_matrix_intrinsic(source: DType, result: DType, target: Target) -> MatrixIntrinsic | None:
    """The target's instruction for sums, in `result`, of products of `source` by a warp.

    Only here is it decided whether products of float32 may be of rounded operands.
    """
    found = matrix_intrinsic(source)
    fits = found is not None and found.result_dtype is result and found.is_native(target)
    return found if fits else None


def by_warp_groups(by: MatrixIntrinsic, target: Target) -> MatrixIntrinsic | None:
    """The same instruction for several warps, if the target has it."""
    return WGMMA if by.sources == WGMMA.sources and WGMMA.is_native(target) else None


def of_matrices(t: Any, e: Any, transposed: bool, packed: int = 2) -> tuple[Any, Any, Any]:
    """The element that thread t of a warp gets as its e-th of four matrices, as (matrix, row,
    column).

    The matrices have 8 rows of 16 bytes. Thread 8 * m + i has given the address of row i of matrix
    m. Elements are `packed` to 32 bits. The order is that of `left` and `right` of an intrinsic for
    two or four matrices, if the rows run along the terms; or, if `transposed`, the columns.
    Elements of 32 bits cannot be transposed.
    """
    row, column = t // 4, t % 4 * packed + e % packed
    return e // packed, *((column, row) if transposed else (row, column))


def of_warp_groups(first: Any, row: Any, term: Any, distance: int) -> Any:
    """The place of an element of 16 bits in a warp group's operand, which begins at `first`.

    Lines have 64 terms for each row. Or, with a `distance`, they have 64 rows for each term, and
    the next rows are so far apart. The pieces of eight elements in a line are swizzled as in
    `Compute.swizzled`.
    """
    further = row // 64 * distance + term * 64 + row % 64 if distance else row * 64 + term
    place = first + further
    return place ^ (place // 64 % 8 * 8)


def native_intrinsic(sources: Collection[DType], result: DType, target: Target) -> Intrinsic | None:
    """The target's instruction for sums, in `result`, of products of elements of `sources`."""
    for intrinsic in INTRINSICS.values():
        fits = intrinsic.gives(result) and all(map(intrinsic.takes, sources))
        if fits and intrinsic.is_native(target):
            return intrinsic
    return None
