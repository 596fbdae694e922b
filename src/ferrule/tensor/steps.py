"""Element-wise functions as the steps that they took the first time.

A function such as the hyperbolic tangent is 25 nodes of the lazy graph. To build each takes a look
at its operands: whether they fit, and whether the result is known. But for all values of one dtype
the nodes are the same; so they are looked at once, and only put together after that, in a third of
the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, final

from ferrule.dtype import DType
from ferrule.gradient import Value, constant
from ferrule.lazy import LazyBuffer
from ferrule.ops import BinaryOps, LoadOps, Op, TernaryOps, UnaryOps
from ferrule.records import dataclass
from ferrule.schedule.graph import toposort

Function: TypeAlias = Callable[[Value], Value]

_X = 0
"""The number of the function's argument; steps are numbered from 1."""


@final
@dataclass(frozen=True, slots=True)
class _Step:
    """A node: a constant, or an element-wise operation on the results of earlier steps."""

    op: Op
    sources: tuple[int, ...]
    arg: Any
    dtype: DType


def applied(function: Function, x: LazyBuffer) -> LazyBuffer:
    """What an element-wise function makes of a value, outside the tape: the very same nodes."""
    # What is known, or has no elements, has simpler results.
    steps = None if x.base_const() is not None or 0 in x.shape else _steps(function, x.dtype)
    if steps is None:
        return function(Value(x)).node
    made = [x]
    for step in steps:
        if step.op is LoadOps.CONST:
            made.append(constant(step.arg, step.dtype, x.shape, x.device))
            continue
        sources = tuple([made[number] for number in step.sources])
        if _X not in step.sources:
            made.append(x.same(step.op, sources, step.arg, step.dtype))
            continue
        node = sources[0].e(step.op, *sources[1:], arg=step.arg)
        if node.op is not step.op:  # what `x` is made of makes it simpler, as in -(-y)
            return function(Value(x)).node
        made.append(node)
    return made[-1]


@cache
def _steps(function: Function, dtype: DType) -> tuple[_Step, ...] | None:
    """The steps of a function; None where some are no element-wise operations."""
    x = LazyBuffer.empty((2,), dtype, "")  # of more than one element: a sum would be seen
    numbers = {x: _X}
    steps = []
    for node in toposort([function(Value(x)).node]):
        if node is x:
            continue
        if node.base_const() is None and not isinstance(node.op, (UnaryOps, BinaryOps, TernaryOps)):
            return None
        sources = tuple([numbers[source] for source in node.srcs])
        numbers[node] = len(numbers)
        steps.append(_Step(node.op, sources, node.arg, node.dtype))
    return tuple(steps)
