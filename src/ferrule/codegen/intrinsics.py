"""Instructions that do several multiply-adds in each lane, or in each thread of a warp: what they
take and what they give.

`tensorize` (in `primitives/products.py`) puts one into a kernel. Those of lanes are `ExprOp.DOT`:
with pairs `a` and `b` of a narrow float, packed into one integer each with the element of the
smaller k in the low half, and a float32 `c`,

    dot(a, b, c) = a[0]*b[0] + (a[1]*b[1] + c)

Both steps are fused multiply-adds that round to nearest even, in that order. An operand or a result
that is subnormal counts as a zero of its sign. The products of bfloat16 are exact in float32, so
that a sum differs from one with float32 multiply-adds only in the order of its terms, and where
numbers below 2**-126 matter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from ferrule.dtype import DType, dtypes
from ferrule.expr import Expr, range_
from ferrule.records import dataclass
from ferrule.target import Target


def _has(target: Target, features: frozenset[str]) -> bool:
    """Whether a target has all of some features, given in LLVM's spelling."""
    return {f"+{feature}" for feature in features} <= set(target.features.split(","))


@dataclass(frozen=True)
class Intrinsic:
    """`c[n] += sum(a[k] * b[k, n] for k in range(terms))`, for as many n as there are lanes."""

    name: str
    terms: int
    """How many neighbours along the summed axis are packed into one value."""
    lanes: tuple[int, ...]
    """The vector sizes that one instruction can do."""
    source: DType
    packed: DType
    """The integer that holds `terms` elements; both operands are laid out in these."""
    result: DType
    needs: frozenset[str]
    """The features of the target, in LLVM's spelling."""

    def is_native(self, target: Target) -> bool:
        """Whether the target has the instruction."""
        return _has(target, self.needs)


INTRINSICS: Final = {
    intrinsic.name: intrinsic
    for intrinsic in (
        Intrinsic(
            name="dpbf16ps",
            terms=2,
            lanes=(4, 8, 16),
            source=dtypes.bfloat16,
            packed=dtypes.uint32,
            result=dtypes.float32,
            needs=frozenset({"avx512bf16", "avx512vl"}),
        ),
    )
}


@dataclass(frozen=True)
class TileIntrinsic:
    """`c[m, n] += sum(a[m, k] * b[k, n] for k in range(terms))`, of matrices in tile registers.

    A register has 16 rows of 64 bytes. Of what is multiplied an element is a pair, as
    `ExprOp.DOT` of the instruction of lanes `pairs` takes it. The products of the first of each
    pair are added up by themselves, beginning with 0, those of the second too; their sum is added
    to c. All of these round to nearest even, and subnormals are zeros.
    """

    name: str
    rows: int
    columns: int
    terms: int
    """In pairs."""
    registers: int
    pairs: str
    needs: frozenset[str]

    def is_native(self, target: Target) -> bool:
        """Whether the target has the instruction."""
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


COPIES_AHEAD = "+async"  # the feature: copies to shared memory go on while the threads do others
COPIED_BYTES = (4, 8, 16)  # of such a copy, which needs no register
WARP = 32  # threads that multiply matrices together


@dataclass(frozen=True)
class MatrixIntrinsic:
    """`c[m, n] += sum(a[m, k] * b[k, n] for k in range(terms))`, by the 32 threads of a warp.

    Each thread holds a part of each matrix: `left`, `right` and `result` say which element, as
    (row, column), is the e-th of thread t. The threads are `down` x `across`; a thread has every
    `down`-th row of the result, and `near` neighbours of each. Of what it multiplies it has
    `packed` neighbours along the terms in a register of 32 bits.

    With `warps`, so many together, one below the other, take their operands from shared memory, any
    number of columns at once; what they add up is there when they have waited for it.

    With `rounds` the operands are rounded first (`ExprOp.TF32`), so that a product is another than
    that of its elements; only where the target's `allows_tf32` says so.
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
        """The bytes of an element of what is multiplied."""
        return self.sources[0].itemsize

    @property
    def half(self) -> int:
        """The terms that a register of each thread has, of one row or column."""
        return self.across * self.packed

    @property
    def held(self) -> tuple[int, int, int]:
        """How many elements each thread has of the left matrix, the right one, and the result."""
        sizes = self.rows * self.terms, self.terms * self.columns, self.rows * self.columns
        left, right, result = (size // WARP for size in sizes)
        return left, right, result

    @property
    def pair(self) -> Expr | None:
        """A range over the neighbours in a register, if there are several."""
        return range_("pair", self.packed) if self.packed > 1 else None

    def term(self, across: Expr, half: int) -> Expr:
        """Which terms a thread has in a register of the left matrix or the right one."""
        first = across * self.packed + half * self.half
        return first if self.pair is None else first + self.pair

    def left(self, t: Any, e: Any) -> tuple[Any, Any]:
        """Of two registers the second is of the lower half of the rows."""
        register = e // self.packed
        return t // 4 + register % 2 * 8, self._term(t, e, register // 2)

    def right(self, t: Any, e: Any) -> tuple[Any, Any]:
        """Registers along the terms, of one column."""
        return self._term(t, e, e // self.packed), t // 4

    def _term(self, t: Any, e: Any, half: Any) -> Any:
        return t % 4 * self.packed + e % self.packed + half * self.half

    def result(self, t: Any, e: Any) -> tuple[Any, Any]:
        """Pairs along a row."""
        return t // 4 + e // 2 * 8, t % 4 * 2 + e % 2

    @cached_property
    def is_chained(self) -> bool:
        """Whether results side by side lie among the threads as a left matrix does, so that what
        becomes of each can be multiplied where it is.
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
        """Whether the target has the instruction, and may use it."""
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
WGMMA_COLUMNS = 256
MATRIX_INTRINSICS: Final = {intrinsic.name: intrinsic for intrinsic in (MMA, MMA_TF32)}


def matrix_intrinsic(source: DType | None) -> MatrixIntrinsic | None:
    """The instruction that multiplies matrices of a dtype, whether a target has it or not."""
    return next((i for i in MATRIX_INTRINSICS.values() if source in i.sources), None)


def native_matrix_intrinsic(source: DType, result: DType, target: Target) -> MatrixIntrinsic | None:
    """The target's instruction for sums, in `result`, of products of `source` by a warp.

    This is the one place that asks whether products of float32 may be of rounded operands.
    """
    found = matrix_intrinsic(source)
    fits = found is not None and found.result_dtype is result and found.is_native(target)
    return found if fits else None


def by_warp_groups(by: MatrixIntrinsic, target: Target) -> MatrixIntrinsic | None:
    """What does the same with several warps, if the target has it."""
    return WGMMA if by.sources == WGMMA.sources and WGMMA.is_native(target) else None


def of_matrices(t: Any, e: Any, turned: bool, packed: int = 2) -> tuple[Any, Any, Any]:
    """Which element thread t of a warp gets as its e-th of four matrices of 8 rows of 16 bytes:
    (matrix, row, column). Thread 8 * m + i has told where row i of matrix m is. Elements are
    `packed` to 32 bits.

    That is what `left` and `right` of an intrinsic say of two or four of them, if the rows run
    along the terms, or, `turned`, the columns; elements of 32 bits cannot be turned.
    """
    row, column = t // 4, t % 4 * packed + e % packed
    return e // packed, *((column, row) if turned else (row, column))


def of_warp_groups(first: Any, row: Any, term: Any, distance: int) -> Any:
    """Where an element of 16 bits of a warp group's operand is, which begins at `first`: lines of
    64 terms for each row; or, with a `distance`, of 64 rows for each term, and the next rows so far
    apart. The pieces of eight elements in a line have changed places, as `Compute.swizzled` says.
    """
    further = row // 64 * distance + term * 64 + row % 64 if distance else row * 64 + term
    place = first + further
    return place ^ (place // 64 % 8 * 8)


def native_intrinsic(source: DType, result: DType, target: Target) -> Intrinsic | None:
    """The target's instruction for sums, in `result`, of products of `source`."""
    for intrinsic in INTRINSICS.values():
        if (intrinsic.source, intrinsic.result) == (source, result) and intrinsic.is_native(target):
            return intrinsic
    return None
