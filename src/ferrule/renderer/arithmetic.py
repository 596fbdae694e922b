"""Arithmetic that all languages share: operations on bools as logic, and casts as steps.

A renderer has a table of its words for them. Casts give:

| from | to | result |
|---|---|---|
| any | bool | not equal to 0; NaN is true |
| integer | integer | wraps |
| float | integer | the fraction is dropped; what does not fit is some number, the same each time |
| integer, float | float | nearest, ties to even; from float64 in one rounding |
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from enum import auto
from typing import Final

from ferrule.base.enums import Enum
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.base import STORAGE_ONLY, RenderError

# Arithmetic on bools is logic.
_LOGIC: Final = {
    ExprOp.ADD: ExprOp.OR,
    ExprOp.MUL: ExprOp.AND,
    ExprOp.MAX: ExprOp.OR,
    ExprOp.MIN: ExprOp.AND,
    ExprOp.NEG: ExprOp.NOT,
}


def meaning(op: ExprOp, dtype: DType, known: Container[ExprOp]) -> ExprOp:
    """The operation that computes `op` on values of a dtype.

    Raises:
        RenderError: the operation is not `known`, or the dtype has no arithmetic.
    """
    if op not in known:
        raise RenderError(f"{op.name} is no operation of a program; expand it first")
    if dtype in STORAGE_ONLY and op is not ExprOp.WHERE:
        raise RenderError(
            f"{op.name} of {dtype.name}: programs compute in float32; CAST before and after"
        )
    if dtype is not dtypes.bool:
        return op
    if op is ExprOp.SUB:
        raise RenderError("SUB of bool has no meaning; use XOR, or cast to an integer first")
    return _LOGIC.get(op, op)


class Step(Enum):
    """One step of a cast."""

    TEST = auto()
    """A bool: not equal to 0."""
    CHOOSE = auto()
    """One or zero, from a bool."""
    WIDEN = auto()
    """float32 from the bits of a narrower float."""
    NARROW = auto()
    """The bits of a narrower float from float32."""
    ODD = auto()
    """float32 from float64, an inexact result made odd, so that one more rounding is right."""
    TRUNCATE = auto()
    """An integer from a float."""
    CONVERT = auto()
    """Any other number: one conversion of the language."""


def conversion(source: DType, target: DType) -> Iterator[tuple[Step, DType]]:
    """The steps from one dtype to another, each with the dtype of its result."""
    if source is target:
        return
    if target is dtypes.bool:
        yield Step.TEST, target
    elif source is dtypes.bool:
        yield Step.CHOOSE, target
    elif source in STORAGE_ONLY:
        yield Step.WIDEN, dtypes.float32
        yield from conversion(dtypes.float32, target)
    elif target in STORAGE_ONLY:
        if source is not dtypes.float32:
            yield Step.ODD if source is dtypes.float64 else Step.CONVERT, dtypes.float32
        yield Step.NARROW, target
    elif dtypes.is_float(source) and not dtypes.is_float(target):
        yield Step.TRUNCATE, target
    else:
        yield Step.CONVERT, target
