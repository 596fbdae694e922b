"""Interpreted devices: a kernel runs op by op, each by a function of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from ferrule.base.records import dataclass
from ferrule.device.runner import InterpretedASTRunner
from ferrule.ir.buffer import Allocator
from ferrule.ir.expr import Expr
from ferrule.ir.lazyop import BufferOps, ConstBuffer, LazyOp, LoadOps, MemBuffer, Op, OpError
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View


@dataclass(frozen=True)
class _Step:
    """One call of an interpreted kernel: `fxn(*values[sources], [handle of buffer], arg)`."""

    fxn: Callable[..., Any]
    sources: tuple[int, ...]
    arg: Any
    buffer: int | None
    symbolic: bool


def with_values(arg: Any, var_vals: Mapping[Any, int]) -> Any:
    """An op's argument with the variables' values put in."""
    if isinstance(arg, Expr):
        return arg.infer(var_vals)
    if isinstance(arg, tuple):
        return tuple(with_values(part, var_vals) for part in arg)
    if isinstance(arg, MemBuffer):
        return replace(arg, st=_known_view(arg.st, var_vals))
    if isinstance(arg, ConstBuffer):
        return replace(arg, val=with_values(arg.val, var_vals), st=_known_view(arg.st, var_vals))
    return arg


def _known_view(st: ShapeTracker, var_vals: Mapping[Any, int]) -> ShapeTracker:
    view = st.view
    parts = (view.shape, view.strides, view.offset, view.mask)
    return ShapeTracker(View(*with_values(parts, var_vals)))


class Interpreted:
    """A device that runs a kernel op by op: `fxn_for_op[op](*operands, arg)` gives an op's value.

    An op without an argument is called with its operands alone. For LOAD the operand is the
    buffer's handle; for STORE the operands are the value and the handle. `fused` may hold
    a function for an op on top of another that nothing else uses: `fused[outer, inner](*operands of
    the inner, outer's arg)`.
    """

    codegen = None
    graph = None
    row_function = None

    def __init__(
        self,
        allocator: Allocator,
        fxn_for_op: Mapping[Op, Callable[..., Any]],
        device: str = "NUMPY",
        fused: Mapping[tuple[Op, Op], Callable[..., Any]] | None = None,
    ) -> None:
        self.allocator = allocator
        self.fxn_for_op = fxn_for_op
        self.device = device
        self.fused = fused or {}
        self._runners: dict[LazyOp, InterpretedASTRunner] = {}

    def synchronize(self) -> None:
        """Nothing to wait for: a kernel is done when its call returns."""

    def get_runner(self, ast: LazyOp) -> InterpretedASTRunner:
        """The runner of `ast`, made once."""
        runner = self._runners.get(ast)
        if runner is None:
            runner = InterpretedASTRunner(ast, self._function(ast))
            runner.device = self.device
            self._runners[ast] = runner
        return runner

    def prepare(self, asts: Sequence[LazyOp]) -> Mapping[LazyOp, InterpretedASTRunner]:
        """Makes the runners of all `asts`, and gives them."""
        return {ast: self.get_runner(ast) for ast in asts}

    def _function(self, ast: LazyOp) -> Callable[[list[Any], Mapping[Any, int]], None]:
        steps = self._steps(_with_store(ast))

        def run(handles: list[Any], var_vals: Mapping[Any, int]) -> None:
            values: list[Any] = []
            for step in steps:
                operands = [values[source] for source in step.sources]
                if step.buffer is not None:
                    operands.append(handles[step.buffer])
                if step.arg is not None:
                    operands.append(with_values(step.arg, var_vals) if step.symbolic else step.arg)
                values.append(step.fxn(*operands))

        return run

    def _steps(self, ast: LazyOp) -> list[_Step]:
        """The calls in order, stores last: an in-place update reads before it writes."""
        nodes = [node for node in ast.toposort() if node.op is not BufferOps.SINK]
        ordered = sorted(nodes, key=lambda node: node.op is BufferOps.STORE)
        stored = {node.arg.idx for node in nodes if node.op is BufferOps.STORE}
        inner_of = self._fusible(ordered)
        skipped = set(inner_of.values())
        numbers: dict[LazyOp, int] = {}
        steps: list[_Step] = []
        for node in ordered:
            if node in skipped:
                continue
            numbers[node] = len(steps)
            steps.append(self._step(node, inner_of.get(node), numbers, stored))
        return steps

    def _step(
        self,
        node: LazyOp,
        inner: LazyOp | None,
        numbers: Mapping[LazyOp, int],
        stored: Set[int],
    ) -> _Step:
        if inner is None and node.op not in self.fxn_for_op:
            raise OpError(
                f"device {self.device} has no function for {node.op}; its fxn_for_op has "
                f"{', '.join(map(str, self.fxn_for_op)) or 'none'}"
            )
        fxn = self.fxn_for_op[node.op] if inner is None else self.fused[node.op, inner.op]
        if node.op is BufferOps.LOAD and node.arg.idx in stored:
            fxn = self._snapshot
        sources = tuple(numbers[source] for source in (inner or node).src)
        is_memory = node.op in (BufferOps.LOAD, BufferOps.STORE)
        symbolic = bool(LazyOp(node.op, (), node.arg).vars())
        return _Step(fxn, sources, node.arg, node.arg.idx if is_memory else None, symbolic)

    def _snapshot(self, handle: Any, arg: MemBuffer) -> Any:
        """A copy of a buffer's contents from before the kernel writes to it."""
        value = self.fxn_for_op[BufferOps.LOAD](handle, arg)
        return self.fxn_for_op[LoadOps.CONTIGUOUS](value)

    def _fusible(self, nodes: Sequence[LazyOp]) -> dict[LazyOp, LazyOp]:
        """The source of each node that has a fused function with it."""
        uses: dict[LazyOp, int] = {}
        for node in nodes:
            for source in node.src:
                uses[source] = uses.get(source, 0) + 1
        found: dict[LazyOp, LazyOp] = {}
        for node in nodes:
            if len(node.src) == 1 and (node.op, node.src[0].op) in self.fused:
                inner = node.src[0]
                if uses[inner] == 1:
                    found[node] = inner
        return found


def _with_store(ast: LazyOp) -> LazyOp:
    """The AST with a STORE; one without gets the implied STORE, row-major to buffer 0."""
    if ast.op in (BufferOps.STORE, BufferOps.SINK):
        return ast
    st = ShapeTracker.from_shape(ast.shape)
    return LazyOp(BufferOps.STORE, (ast,), MemBuffer(0, ast.dtype, st))
