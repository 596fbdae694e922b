"""Element-wise functions as one node each; their steps are recorded from their first call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias, final

from ferrule.autograd import TracedValue
from ferrule.fusion.graph import toposort
from ferrule.ir.dtype import DType, exact
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, FunctionOps, TernaryOps, UnaryOps
from ferrule.ir.steps import ARGUMENT, Step, Steps

Function: TypeAlias = Callable[[TracedValue], TracedValue]

_ELEMENTWISE: Final = (UnaryOps, BinaryOps, TernaryOps)


def applied(function: Function, x: LazyBuffer) -> LazyBuffer:
    """An element-wise function of a value, off the tape."""
    steps = None if x.base_const() is not None or 0 in x.shape else _steps(function, x.dtype)
    return function(TracedValue(x)).node if steps is None else steps.of(x)


@cache
def _steps(function: Function, dtype: DType) -> Steps | None:
    """The steps of a function; None if there are none, or some are not element-wise."""
    x = LazyBuffer.empty((2,), dtype, "")  # of more than one element: a sum would be seen
    taken = _Taken()
    numbers = {x: ARGUMENT}
    for node in toposort([function(TracedValue(x)).node]):
        if node is x:
            continue
        sources = tuple([numbers[source] for source in node.srcs])
        if node.op is FunctionOps.STEPS:
            numbers[node] = taken.all_of(node.arg, *sources)
        elif node.base_const() is not None or isinstance(node.op, _ELEMENTWISE):
            numbers[node] = taken.add(Step(node.op, sources, node.arg, node.dtype))
        else:
            return None
    return Steps(tuple(taken.steps)) if taken.steps else None


@final
class _Taken:
    """The steps taken so far; equal operations are one step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def add(self, step: Step) -> int:
        """The number of a step."""
        key = (step.op, step.sources, exact(step.arg), step.dtype)
        if key not in self._numbers:
            self.steps.append(step)
            self._numbers[key] = len(self.steps)
        return self._numbers[key]

    def all_of(self, function: Steps, argument: int) -> int:
        """The number of the last step of a function."""
        numbers = [argument]
        for step in function.steps:
            sources = tuple([numbers[source] for source in step.sources])
            numbers.append(self.add(Step(step.op, sources, step.arg, step.dtype)))
        return numbers[-1]
