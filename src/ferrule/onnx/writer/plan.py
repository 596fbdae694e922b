"""Plans: for each node of the lazy graph, the nodes that its value is made of in ONNX, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, final

from ferrule.autograd.iota import is_table
from ferrule.base.helpers import type_name
from ferrule.engine.host import HostFunction
from ferrule.fusion.graph import toposort
from ferrule.ir.expr import Expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import FunctionOps, LoadOps, MovementOps, Op
from ferrule.ir.shape.view import Shape
from ferrule.onnx.values import OnnxError
from ferrule.onnx.writer.builder import Builder, Value
from ferrule.tensor import Tensor

Write: TypeAlias = Callable[..., Value]


class Plan(NamedTuple):
    """The nodes that a value is made of, and the function that writes it: of a builder, and their
    values."""

    needs: Sequence[LazyBuffer]
    write: Write


class Call(NamedTuple):
    """A call of a function of tensors, whose result a node is."""

    name: str
    result: LazyBuffer
    sources: Sequence[LazyBuffer | None]
    arg: Any


@final
class Calls:
    """The calls of functions that a trace notes, by the nodes of their results."""

    def __init__(self) -> None:
        self._of: dict[LazyBuffer, list[Call]] = {}
        self._functions: dict[Any, str] = {}

    def add(self, name: str, sources: Sequence[Any], node: LazyBuffer, arg: Any) -> None:
        """Note a call; `sources` are values, or None for operands that are left out."""
        nodes = [None if source is None else source.node for source in sources]
        call = Call(name, node, nodes, arg)
        # A later reshape takes the place of one at the end of the function.
        is_reshaped = node.op is MovementOps.RESHAPE and node.realized is None
        for known in (node, *node.srcs) if is_reshaped else (node,):
            if known not in nodes:
                self._of.setdefault(known, []).append(call)
        if node.op is FunctionOps.STEPS and len(nodes) == 1:
            self._functions[node.arg] = name

    def of(self, node: LazyBuffer) -> Iterable[Call]:
        """The calls with this result, the outermost first."""
        if node in self._of:
            yield from reversed(self._of[node])
        elif node.op is FunctionOps.STEPS and node.arg in self._functions:
            # In the body of a loop: made anew from nodes of the trace.
            yield Call(self._functions[node.arg], node, node.srcs, None)


Rule: TypeAlias = Callable[["Planner", LazyBuffer], "Plan | None"]
CallRule: TypeAlias = Callable[[LazyBuffer, Sequence[Any], Any], "Plan | None"]

RULES: Final[dict[Op, Rule]] = {}
"""The rule of each primitive op; None where it does not apply."""
CALL_RULES: Final[dict[str, CallRule]] = {}
"""The rules of functions of tensors, by name: of the result, the sources, and the argument."""


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of primitive ops."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return enter


def call_rule(*names: str) -> Callable[[CallRule], CallRule]:
    """Enter a function as the rule of functions of tensors."""

    def enter(function: CallRule) -> CallRule:
        CALL_RULES.update(dict.fromkeys(names, function))
        return function

    return enter


@final
class Planner:
    """Finds the plans of all nodes below some, and writes them."""

    def __init__(self, calls: Calls, known: Mapping[LazyBuffer, Value]) -> None:
        self.calls = calls
        self.values: dict[LazyBuffer, Value] = dict(known)
        self.plans: dict[LazyBuffer, Plan] = {}
        self.problems: list[str] = []
        self.needs_opset: dict[int, str] = {}
        """Versions of the operators that something needs."""
        self.loops: dict[LazyBuffer, Any] = {}
        """The runs of loops that some of the nodes are results of."""
        self._numbers: dict[LazyBuffer, bool] = {}

    def inside(self) -> Planner:
        """The planner of a graph inside of this one."""
        inner = Planner(self.calls, {})
        inner.problems, inner.needs_opset = self.problems, self.needs_opset
        return inner

    def plan(self, roots: Iterable[LazyBuffer]) -> None:
        """Plan all nodes that the roots need."""
        waiting = list(roots)
        while waiting:
            node = waiting.pop()
            if node in self.values or node in self.plans:
                continue
            found = self._found(node)
            self.plans[node] = found
            waiting.extend(found.needs)

    def write(self, builder: Builder, roots: Sequence[LazyBuffer]) -> list[Value]:
        """Write the values of planned nodes, each after those that it needs."""
        stack = list(reversed(roots))
        while stack:
            node = stack[-1]
            if node in self.values:
                stack.pop()
                continue
            plan = self.plans[node]
            missing = [need for need in plan.needs if need not in self.values]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.values[node] = plan.write(builder, *[self.values[need] for need in plan.needs])
        return [self.values[root] for root in roots]

    def is_noted(self, node: LazyBuffer) -> bool:
        """True if a node is the result of a function that has an operator of its own."""
        return any([call.name in CALL_RULES for call in self.calls.of(node)])

    def _found(self, node: LazyBuffer) -> Plan:
        if node.realized is None:
            for call in self.calls.of(node):
                made = CALL_RULES.get(call.name)
                found = None if made is None else made(call.result, call.sources, call.arg)
                if found is not None:
                    return found if call.result is node else _reshaped(found, node.shape)
            if node.base_const() is None and self._is_of_tables(node):
                return self._folded(node)
        else:  # a table, or data that the function makes a tensor of
            return self._folded(node)
        made_of = RULES.get(node.op)
        plan = None if made_of is None else made_of(self, node)
        if plan is None:
            self.problems.append(_problem(node))
            return Plan((), lambda builder: builder.number(0, node.dtype))
        return plan

    def _is_of_tables(self, node: LazyBuffer) -> bool:
        """True if a value of numbers that never change is no larger than what it is read from."""
        if not all([isinstance(size, int) for size in node.shape]):
            return False
        stack = [node]
        while stack:
            below = stack[-1]
            missing = [source for source in below.srcs if source not in self._numbers]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            known = [self._numbers[source] for source in below.srcs]
            self._numbers[below] = all(known) if known else _is_number(below)
        if not self._numbers[node]:
            return False
        read = [n.size for n in toposort([node], everything=True) if n.realized is not None]
        return bool(read) and node.size <= max(read)

    def _folded(self, node: LazyBuffer) -> Plan:
        array = Tensor(node).numpy()
        return Plan((), lambda builder: builder.constant(array))


def _reshaped(plan: Plan, shape: Shape) -> Plan:
    def write(builder: Builder, *values: Value) -> Value:
        return builder.reshape(plan.write(builder, *values), shape)

    return Plan(plan.needs, write)


def _is_number(node: LazyBuffer) -> bool:
    """True for constants and tables."""
    if node.realized is not None:
        return is_table(node.realized)
    return node.op is LoadOps.CONST and not isinstance(node.base_const(), Expr)


def _problem(node: LazyBuffer) -> str:
    """The name of an operation that cannot be exported."""
    if node.op is LoadOps.CUSTOM:
        runner = node.arg
        if isinstance(runner, HostFunction):
            return f"{runner.name}, asked for at {runner.line}"
        return f"{getattr(runner, 'name', type_name(runner))}"
    sources = ", ".join([f"{source.dtype} {source.shape}" for source in node.srcs])
    return f"{node.op.name} of {sources}"


def check(problems: Sequence[str]) -> None:
    """Raise `OnnxError` that lists what cannot be exported, if there is any."""
    if problems:
        lines = "\n".join(dict.fromkeys(problems))
        raise OnnxError(f"the function cannot be exported, because of:\n{lines}")
