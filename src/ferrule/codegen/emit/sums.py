"""Sums for targets without fused multiply-adds: a multiplication and an addition for each term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ferrule.codegen.uops import UOp, UOps
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import ExprOp


def rounded_twice(program: Sequence[UOp]) -> list[UOp]:
    """The program with each term of a sum rounded before it is added.

    A multiply-add rounds once. Without the instruction that takes twenty times as long, and sums
    are as good without it. So are the steps of polynomials, where the number added is a constant.
    What else uses one, such as the reduction of an argument to a range, relies on the rounding.
    """
    made: dict[UOp, UOp] = {}
    sums: set[UOp] = set()

    def changed(u: UOp) -> Iterator[UOp]:
        src = tuple(made[s] for s in u.src)
        new = u if src == u.src else replace(u, src=src)
        is_fused = u.op is UOps.ALU and u.arg is ExprOp.MULACC
        is_real = u.dtype is not None and dtypes.is_float(u.dtype)
        if is_fused and is_real and (u.src[2].op in (UOps.GET, UOps.CONST) or u.src[2] in sums):
            sums.add(u)
            product = replace(new, src=src[:2], arg=ExprOp.MUL)
            new = replace(new, src=(product, src[2]), arg=ExprOp.ADD)
            yield product
        made[u] = new
        yield new

    return [new for u in program for new in changed(u)]
