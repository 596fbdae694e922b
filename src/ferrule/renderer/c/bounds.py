"""The least and the greatest value that each integer of a program can have.

An operation that cannot overflow may use signed arithmetic, whose overflow C leaves undefined. If a
dividend is not negative, `/` is the division that floors. A small 64-bit index needs 32 bits only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import dtype_of

Bounds = tuple[int, int]
INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)


def range_of(dtype: DType) -> Bounds:
    """All values of an integer dtype, or of bool; of a float nothing is known."""
    if dtypes.is_float(dtype):
        return _INT64
    if dtype is dtypes.bool:
        return 0, 1
    return int(dtypes.min(dtype)), int(dtypes.max(dtype))


def within(inner: Bounds, outer: Bounds) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _corners(function: Callable[[int, int], int], a: Bounds, b: Bounds) -> Bounds:
    """The bounds of a function that has no extremum inside."""
    found = [function(x, y) for x in a for y in b]
    return min(found), max(found)


def _union(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _fused(a: Bounds, b: Bounds, c: Bounds) -> Bounds:
    """The bounds of a multiply-add; the product counts too, as it must not overflow on the way."""
    product = _corners(operator.mul, a, b)
    return _union(product, _corners(operator.add, product, c))


def _positive(b: Bounds) -> Bounds:
    return max(b[0], 1), max(b[1], 1)


def _remainder(a: Bounds, b: Bounds) -> Bounds:
    least, largest = _positive(b)
    if a[0] < 0:
        return 0, largest - 1
    return a if a[1] < least else (0, min(largest - 1, a[1]))


_EXACT: Final[dict[ExprOp, Callable[..., Bounds]]] = {
    ExprOp.ADD: partial(_corners, operator.add),
    ExprOp.SUB: partial(_corners, operator.sub),
    ExprOp.MUL: partial(_corners, operator.mul),
    ExprOp.MULACC: _fused,
    ExprOp.NEG: lambda a: (-a[1], -a[0]),
    ExprOp.IDIV: lambda a, b: _corners(operator.floordiv, a, _positive(b)),
    ExprOp.MOD: _remainder,
    ExprOp.POPCOUNT: lambda a: (0, 32),
    ExprOp.MIN: partial(_corners, min),
    ExprOp.MAX: partial(_corners, max),
    ExprOp.WHERE: lambda condition, a, b: _union(a, b),
}


def bounds(uops: Sequence[UOp], has_blocks: bool) -> dict[UOp, Bounds]:
    """For each integer of a program, its least and its greatest value if nothing overflows.

    Of an ALU these may be beyond its dtype: then its result wraps, and may be anything.
    `has_blocks`: the chunks are blocks and the variables are passed as 32-bit integers.
    """
    found: dict[UOp, Bounds] = {}
    blocks = INT32[1] if has_blocks else _INT64[1]
    threads = 1

    def known(u: UOp) -> Bounds:
        everything = range_of(dtype_of(u))
        value = found.get(u, everything)
        return value if within(value, everything) else everything

    for u in uops:
        if u.dtype is not None and dtypes.is_float(u.dtype):
            continue
        match u.op:
            case UOps.EXTENT:
                threads = u.arg or 1
                blocks = min(blocks, max(known(u.src[0])[1], 1))
            case UOps.START:
                found[u] = (0, blocks - 1)
            case UOps.STOP:
                found[u] = (0, blocks)
            case UOps.THREAD:
                found[u] = (0, threads - 1)
            case UOps.VALUE:
                found[u] = INT32 if has_blocks else _INT64
            case UOps.CONST:
                found[u] = (int(u.arg), int(u.arg))
            case UOps.IOTA:
                found[u] = (0, u.lanes - 1)
            case UOps.LOOP:
                first, last = known(u.src[0])[0], known(u.src[1])[1] - 1
                found[u] = (first, max(first, last))
            case UOps.SPLAT | UOps.EXTRACT | UOps.CAST if not dtypes.is_float(dtype_of(u.src[0])):
                found[u] = known(u.src[0])
            case UOps.SHUFFLE:
                parts = [known(s) for s in u.src]
                found[u] = _union(parts[0], parts[-1])
            case UOps.ALU if u.arg in _EXACT:
                found[u] = _EXACT[u.arg](*(known(s) for s in u.src))
            case _:
                pass
    return found
