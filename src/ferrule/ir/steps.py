"""Element-wise functions: several operations on one value as one node of the graph.

A function such as the hyperbolic tangent is 25 operations. As nodes of their own they would have to
be built and scheduled each time, and an unrolled network has thousands. So the function is one
node, whose argument is its steps. They become operations of their own in the kernel's AST.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, final

from ferrule.base.records import dataclass
from ferrule.ir.dtype import DType
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import (
    BufferOps,
    ConstBuffer,
    FunctionOps,
    LazyOp,
    LoadOps,
    Op,
    UnaryOps,
    cast_arg,
)
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View

ARGUMENT: Final = 0
"""The number of the function's argument; steps are numbered from 1."""


@final
@dataclass(frozen=True, slots=True)
class Step:
    """A constant, or an element-wise operation on the results of earlier steps."""

    op: Op
    sources: tuple[int, ...]
    arg: Any
    dtype: DType


@final
class Steps:
    """The steps of an element-wise function, in order; the last one gives its result.

    `Steps` are compared by identity, so make those of a function only once.
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        self.dtype = steps[-1].dtype
        self.operations = [step for step in steps if step.op is not LoadOps.CONST]
        """The steps that compute something."""

    @cached_property
    def users(self) -> list[int]:
        """The number of operations that use the argument, and the result of each step."""
        count = [0] * (len(self.steps) + 1)
        for step in self.operations:
            for source in step.sources:
                count[source] += 1
        return count

    @cached_property
    def is_chain(self) -> bool:
        """True if the argument and the result of each operation have one user."""
        pairs = zip(self.users[1:-1], self.steps[:-1], strict=True)
        shared = [step for users, step in pairs if users != 1 and step.op is not LoadOps.CONST]
        return self.users[ARGUMENT] == 1 and not shared

    @cached_property
    def form(self) -> tuple[Any, ...]:
        """A key of the steps that is equal for equal steps, in every process."""
        return tuple([(step.op, step.sources, step.arg, step.dtype) for step in self.steps])

    def of(self, x: LazyBuffer) -> LazyBuffer:
        """The function of a value, as one node; a constant value gives simpler nodes."""
        if x.base_const() is not None or 0 in x.shape:
            return self.spelled_out(x)
        return x.same(FunctionOps.STEPS, (x,), self, self.dtype)

    def spelled_out(self, x: LazyBuffer) -> LazyBuffer:
        """The function with a node for each step."""
        made = [x]
        for step in self.steps:
            sources = [made[number] for number in step.sources]
            if step.op is LoadOps.CONST:
                made.append(LazyBuffer.const(step.arg, step.dtype, x.shape, x.device))
            elif step.op is UnaryOps.CAST:
                dtype, bits = cast_arg(step.arg)
                made.append(sources[0].bitcast(dtype) if bits else sources[0].cast(dtype))
            else:
                made.append(sources[0].e(step.op, *sources[1:], arg=step.arg))
        return made[-1]

    def tree(self, x: LazyOp) -> LazyOp:
        """The function in the AST of a kernel."""
        # A constant needs no strides.
        st = ShapeTracker(View.create(x.shape, (0,) * len(x.shape), 0, None))
        made = [x]
        for step in self.steps:
            if step.op is LoadOps.CONST:
                made.append(LazyOp(BufferOps.CONST, (), ConstBuffer(step.arg, step.dtype, st)))
            else:
                sources = tuple([made[number] for number in step.sources])
                made.append(LazyOp(step.op, sources, step.arg))
        return made[-1]
