"""The graph of a program of PyTorch: its nodes with their rules, and how they are run in order.

All of it is tuples, which cannot change: a captured function that reaches a model need not look
through its nodes again in each call. Sizes are Python's numbers, and computed in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ferrule.ir.dtype import DType
from ferrule.torch import rules as rules
from ferrule.torch.registry import rule_for
from ferrule.torch.values import Ref, TorchError, dtype_of, shared

_ABOUT_MEMORY: Final = {"device", "layout", "memory_format", "pin_memory"}
"""Arguments that say where memory is, or how it is laid out."""
_HOST_MODULES: Final = {"_operator", "math", "builtins"}
"""Modules whose functions compute with sizes."""


class Node(NamedTuple):
    """A node: its rule, its arguments with places of earlier values, and its result's place."""

    name: str
    operator: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    place: int
    last: tuple[int, ...]
    """The places of values that no later node reads."""

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.operator})"

    def run(self, values: list[Any]) -> Any:
        """The result; `values` has those of all earlier nodes."""
        try:
            return self.function(
                *[filled(argument, values) for argument in self.args],
                **{name: filled(value, values) for name, value in self.kwargs},
            )
        except Exception as error:
            error.add_note(f"in {self} of the program")
            raise


class Graph(NamedTuple):
    """Nodes in an order in which they can run; the first values are the inputs."""

    inputs: tuple[str, ...]
    outputs: tuple[Any, ...]
    nodes: tuple[Node, ...]
    size: int
    """The number of values."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs."""
        values: list[Any] = [*inputs, *[None] * (self.size - len(inputs))]
        for node in self.nodes:
            values[node.place] = node.run(values)
            for place in node.last:
                values[place] = None
        return [filled(output, values) for output in self.outputs]


def filled(argument: Any, values: Sequence[Any]) -> Any:
    """An argument with the values in their places."""
    kind = type(argument)
    if kind is Ref:
        return values[argument.place]
    if kind is tuple:
        return tuple([filled(part, values) for part in argument])
    if kind is slice:
        return slice(*filled((argument.start, argument.stop, argument.step), values))
    return argument


def references(argument: Any) -> Iterator[int]:
    """The places that an argument reads."""
    if isinstance(argument, Ref):
        yield argument.place
    elif isinstance(argument, tuple):
        for part in argument:
            yield from references(part)
    elif isinstance(argument, slice):
        yield from references((argument.start, argument.stop, argument.step))


# Building


def graph_of(module: Any, gives_complex: bool = False) -> Graph:
    """The graph of a `torch.fx.GraphModule`; raises `TorchError` with all nodes without a rule.

    Complex results are refused, unless the caller says that it takes them, as pairs.
    """
    return _Builder(module, gives_complex).built()


class _Builder:
    def __init__(self, module: Any, gives_complex: bool) -> None:
        self._module = module
        self._gives_complex = gives_complex
        self._nodes = [node for node in module.graph.nodes if _is_needed(node)]
        self._places = {node: place for place, node in enumerate(self._ordered())}
        self._problems: list[str] = []

    def _ordered(self) -> list[Any]:
        """Inputs first."""
        inputs = [node for node in self._nodes if node.op == "placeholder"]
        return inputs + [node for node in self._nodes if node.op not in ("placeholder", "output")]

    def built(self) -> Graph:
        """The graph."""
        made = [
            self._node(node) for node in self._nodes if node.op not in ("placeholder", "output")
        ]
        (end,) = [node for node in self._nodes if node.op == "output"]
        outputs = self._argument(end.args[0])
        for node in end.all_input_nodes:
            if _gives_complex(node) and not self._gives_complex:
                self._problems.append(
                    f"node {node.name!r}: complex results; return torch.view_as_real of them"
                )
        if self._problems:
            raise TorchError("the program is not supported:\n" + "\n".join(self._problems))
        inputs = tuple(node.name for node in self._nodes if node.op == "placeholder")
        listed = outputs if type(outputs) is tuple else (outputs,)
        return Graph(inputs, listed, _with_last(made, len(inputs), listed), len(self._places))

    def _node(self, node: Any) -> Node:
        if node.op == "get_attr":
            return self._constant(node)
        operator = f"{node.op} {node.target}" if node.op != "call_function" else _name(node.target)
        function = _function(node)
        if function is None:
            kind = " on complex numbers" if _is_complex(node) else ""
            self._problems.append(f"node {node.name!r}: operator {operator}{kind}")
        try:
            args = self._argument(node.args)
            kwargs = tuple(
                (name, self._argument(value))
                for name, value in node.kwargs.items()
                if name not in _ABOUT_MEMORY
            )
        except TorchError as error:
            self._problems.append(f"node {node.name!r}: {error}")
            args, kwargs = (), ()
        return Node(node.name, operator, function or _nothing, args, kwargs, self._places[node], ())

    def _constant(self, node: Any) -> Node:
        from torch import Tensor as Theirs
        from torch.fx import GraphModule

        value: Any = self._module
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, GraphModule):  # the body of a loop, or a branch
            return Node(
                node.name, node.op, _same, (graph_of(value, True),), (), self._places[node], ()
            )
        if not isinstance(value, Theirs):
            self._problems.append(f"node {node.name!r}: a {type(value).__name__} as an argument")
            return Node(node.name, node.op, _nothing, (), (), self._places[node], ())
        return Node(node.name, node.op, _same, (shared(value),), (), self._places[node], ())

    def _argument(self, value: Any) -> Any:
        from torch import dtype
        from torch.fx import Node as Traced

        if isinstance(value, Traced):
            return Ref(self._places[value])
        if isinstance(value, list | tuple):
            return tuple(self._argument(part) for part in value)
        if isinstance(value, slice):
            return slice(*self._argument((value.start, value.stop, value.step)))
        if isinstance(value, dtype):
            # A complex type is that of its parts: rules for complex numbers alone get it.
            return dtype_of(value.to_real() if value.is_complex else value)
        if value is None or isinstance(value, bool | int | float | str | DType):
            return value
        if type(value).__module__.startswith("torch") and not hasattr(value, "shape"):
            return None  # a device, a layout or a memory format by position
        raise TorchError(f"an argument is a {type(value).__name__}, {value!r}")


def _same(value: Any) -> Any:
    return value


def _nothing(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a program with such a node is refused")


def _name(target: Any) -> str:
    from torch._ops import OpOverload

    return str(target if isinstance(target, OpOverload) else getattr(target, "__name__", target))


def _function(node: Any) -> Callable[..., Any] | None:
    """The rule of a node, or the host's function of sizes; None if there is none."""
    from torch._ops import HigherOrderOperator, OpOverload

    if node.op != "call_function":
        return None
    if isinstance(node.target, OpOverload):
        name = str(node.target)
        return rule_for(name.replace("aten.", "complex.", 1) if _is_complex(node) else name)
    if isinstance(node.target, HigherOrderOperator):
        return rule_for(f"higher_order.{node.target}.default")
    target: Callable[..., Any] = node.target
    of_sizes = target.__module__ in _HOST_MODULES or target.__name__.startswith("sym_")
    return target if of_sizes and not _has_tensor(node) else None


def _is_complex(node: Any) -> bool:
    """True if a node takes or gives complex numbers."""
    return any(map(_gives_complex, (node, *node.all_input_nodes)))


def _gives_complex(node: Any) -> bool:
    found = node.meta.get("val")
    values = found if isinstance(found, list | tuple) else [found]
    return any([getattr(getattr(one, "dtype", None), "is_complex", False) for one in values])


def _has_tensor(node: Any) -> bool:
    """Whether the result of a host's function would be one of tensors, which rules compute."""
    name = getattr(node.target, "__name__", "")
    return name != "getitem" and hasattr(node.meta.get("val"), "shape")


def _is_needed(node: Any) -> bool:
    return node.op in ("placeholder", "output") or bool(node.users) or node.is_impure()


def _with_last(nodes: Sequence[Node], inputs: int, outputs: Any) -> tuple[Node, ...]:
    """The nodes with the places of values that are read for the last time."""
    seen = {*references(outputs), *range(inputs)}
    found = []
    for node in reversed(nodes):
        read = {*references((node.args, tuple(value for _, value in node.kwargs))), node.place}
        found.append(node._replace(last=tuple(sorted(read - seen))))
        seen |= read
    return tuple(reversed(found))
