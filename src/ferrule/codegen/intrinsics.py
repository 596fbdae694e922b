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

from typing import Any, Final

from ferrule.dtype import DType, dtypes
from ferrule.records import dataclass
from ferrule.target import Target


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
        return {f"+{feature}" for feature in self.needs} <= set(target.features.split(","))


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


COPIES_AHEAD = "+async"  # the feature: copies to shared memory go on while the threads do others
COPIED_BYTES = (4, 8, 16)  # of such a copy, which needs no register
WARP = 32  # threads that multiply matrices together


@dataclass(frozen=True)
class MatrixIntrinsic:
    """`c[m, n] += sum(a[m, k] * b[k, n] for k in range(terms))`, by the 32 threads of a warp.

    Each thread holds a part of each matrix: `left`, `right` and `result` say which element, as
    (row, column), is the e-th of thread t. The threads are `down` x `across`; a thread has every
    `down`-th row of the result, and `near` neighbours of each.
    """

    name: str
    rows: int
    columns: int
    terms: int
    down: int
    across: int
    near: int
    sources: tuple[DType, ...]
    result_dtype: DType
    needs: frozenset[str]

    def left(self, t: Any, e: Any) -> tuple[Any, Any]:
        """Pairs along the terms; of two pairs the second is of the lower half of the rows."""
        return t // 4 + e // 2 % 2 * 8, t % 4 * 2 + e % 2 + e // 4 * 8

    def right(self, t: Any, e: Any) -> tuple[Any, Any]:
        """Pairs along the terms, of one column."""
        return t % 4 * 2 + e % 2 + e // 2 * 8, t // 4

    def result(self, t: Any, e: Any) -> tuple[Any, Any]:
        """Pairs along a row."""
        return t // 4 + e // 2 * 8, t % 4 * 2 + e % 2

    def is_native(self, target: Target) -> bool:
        """Whether the target has the instruction."""
        features = set(target.features.split(","))
        return target.warp == WARP and {f"+{feature}" for feature in self.needs} <= features


MMA: Final = MatrixIntrinsic(
    name="mma16816",
    rows=16,
    columns=8,
    terms=16,
    down=8,
    across=4,
    near=2,
    sources=(dtypes.float16, dtypes.bfloat16),
    result_dtype=dtypes.float32,
    needs=frozenset({"mma"}),
)


def of_matrices(t: Any, e: Any, turned: bool) -> tuple[Any, Any, Any]:
    """Which element thread t of a warp gets as its e-th of four 8 x 8 matrices: (matrix, row,
    column). Thread 8 * m + i has told where row i of matrix m is.

    That is what `MMA.left` and `MMA.right` say of two or four of them, if the rows run along the
    terms, or, `turned`, the columns.
    """
    row, column = t // 4, t % 4 * 2 + e % 2
    return e // 2, *((column, row) if turned else (row, column))


def native_intrinsic(source: DType, result: DType, target: Target) -> Intrinsic | None:
    """The target's instruction for sums, in `result`, of products of `source`."""
    for intrinsic in INTRINSICS.values():
        if (intrinsic.source, intrinsic.result) == (source, result) and intrinsic.is_native(target):
            return intrinsic
    return None
