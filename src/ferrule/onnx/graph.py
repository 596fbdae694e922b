"""The graph of an ONNX model: its nodes with their rules, and how they are run in order.

Sizes, axes and the like are computed on the host, before anything else is: where a rule takes a
`Host` input, the nodes that lead to it are marked, and run on arrays by ONNX's own reference
implementation whenever their inputs are such arrays, as shapes and constants are.

All of it is tuples, which cannot change: a captured function that reaches a model need not look
through its nodes again in each call.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from ferrule.onnx import rules as rules
from ferrule.onnx import sizes
from ferrule.onnx.registry import Entry, entry_for
from ferrule.onnx.values import (
    Array,
    Constant,
    HostArray,
    OnnxError,
    Value,
    as_host,
    as_tensor,
    is_host,
    is_supported,
    type_name,
)

Environment = dict[str, Value]

_RANDOM: Final = {
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip
_SHAPES: Final = {"Shape", "Size"}
_TENSORS: Final = ("Tensor", "Statistic", "Scale")
_NOTES: Final = {"consumed_inputs"}
"""Attributes that change no result: whether an input may be overwritten, in the oldest versions."""


class Graph(NamedTuple):
    """Nodes in an order in which they can run, and the names of what goes in and comes out."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: tuple[tuple[str, Value], ...] = ()
    """Values that are the same in each run."""

    def run(self, values: Environment) -> list[Value]:
        """Run all nodes; `values` has the inputs, and takes what the nodes give."""
        values.update(self.constants)
        for node in self.nodes:
            for name, value in zip(node.outputs, node.run(values), strict=False):
                if name:
                    values[name] = value
        return [values[name] for name in self.outputs]

    def folded(self, needed: set[str], left: Set[str] = frozenset()) -> Graph:
        """The graph without the nodes that depend on constants alone: they are run now.

        `needed` are the names whose values are needed on the host, `left` operators to be left.
        """
        values: Environment = dict(self.constants)
        nodes = []
        for node in self.nodes:
            known = all(not name or name in values for name in node.inputs)
            if not known or node.graphs or node.operator in _RANDOM or node.operator in left:
                nodes.append(node)
                continue
            for name, value in zip(node.outputs, node.run(values), strict=False):
                if name:
                    keeps = value is None or isinstance(value, list)
                    values[name] = value if keeps else as_host(value)
        wanted = {name for node in nodes for name in node.all_inputs()} | {*self.outputs}
        kept = [
            (name, Constant.of(value, name in needed) if isinstance(value, np.ndarray) else value)
            for name, value in values.items()
            if name in wanted
        ]
        return self._replace(nodes=tuple(nodes), constants=tuple(kept))

    def all_nodes(self) -> Iterator[Node]:
        """The nodes, and those of the graphs inside them."""
        for node in self.nodes:
            yield node
            for graph in node.graphs:
                yield from graph.all_nodes()


class Node(NamedTuple):
    """A node: its rule, the names of its inputs and outputs, and its attributes."""

    name: str
    domain: str
    operator: str
    version: int
    entry: Entry
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]
    needed: bool
    """Whether an output is needed on the host."""
    proto: bytes

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.operator})"

    @property
    def graphs(self) -> list[Graph]:
        """The graphs among the attributes."""
        return [value for _, value in self.attributes if isinstance(value, Graph)]

    def all_inputs(self) -> Iterator[str]:
        """The names that the node reads, and those that the graphs inside it read."""
        yield from self.inputs
        for graph in self.graphs:
            yield from graph.outputs
            for node in graph.nodes:
                yield from node.all_inputs()

    def run(self, values: Environment) -> Sequence[Value]:
        """The outputs; `values` are those of all earlier nodes."""
        arguments = [values[name] if name else None for name in self.inputs]
        try:
            if self.entry.by_reference or self._runs_on_host(arguments):
                return self._run_on_host(arguments)
            return self._run_rule(arguments, values)
        except OnnxError as error:
            if str(error).startswith("node "):
                raise
            raise OnnxError(f"{self}: {error}") from error
        except Exception as error:
            error.add_note(f"in {self} of the model")
            raise

    def _runs_on_host(self, arguments: Sequence[Value]) -> bool:
        if not self.needed or self.operator in _RANDOM or self.operator in _SHAPES or self.graphs:
            return False
        if not all(argument is None or is_host(argument) for argument in arguments):
            return False
        # No array on the host has a length that varies.
        counts = arguments if self.operator in sizes.LONG else ()
        return not any(isinstance(count, np.ndarray) and sizes.varies(count) for count in counts)

    def _run_on_host(self, arguments: Sequence[Value]) -> Sequence[Value]:
        arrays = [None if a is None else as_host(a) for a in arguments]
        if any(array is not None and sizes.varies(array) for array in arrays):
            found = self._run_with_sizes(arrays)
            if found is not None:
                return found
            arrays = [None if array is None else sizes.present(array) for array in arrays]
        return [np.asarray(array) for array in self._reference().run(*arrays)]

    def _run_with_sizes(self, arrays: Sequence[Array | None]) -> Sequence[Value] | None:
        """The outputs for sizes that vary; None if they depend on the values of these."""
        attributes = dict(self.attributes)
        if not sizes.takes(self.operator, arrays, attributes):
            return None
        if sizes.moves(self.operator):
            return sizes.moved(self.operator, self._reference().run, arrays)
        given = [array for array in arrays if array is not None]
        result = sizes.computed(self.operator, given, attributes)
        return None if result is None else [result]

    def _reference(self) -> Any:
        return _reference(self.domain, self.operator, self.version, self.proto)

    def _run_rule(self, arguments: Sequence[Value], values: Environment) -> Sequence[Value]:
        entry = self.entry
        given = [
            _converted(argument, entry.annotation(place))
            for place, argument in enumerate(arguments)
        ]
        while given and given[-1] is None:
            given.pop()
        attributes = {name: _attribute_value(value, values) for name, value in self.attributes}
        named = entry.arguments(attributes)
        if entry.wants_count:
            named["n_outputs"] = len(self.outputs)
        result = entry.function(*given, **named)
        return result if type(result) is tuple else (result,)


class Body:
    """A graph inside a node, as a function of its inputs; it reads the values around it."""

    def __init__(self, graph: Graph, around: Environment) -> None:
        self._graph = graph
        self._around = around

    @property
    def n_outputs(self) -> int:
        """The number of results."""
        return len(self._graph.outputs)

    def __call__(self, *arguments: Value) -> list[Value]:
        """The results for these inputs."""
        values = {**self._around, **dict(zip(self._graph.inputs, arguments, strict=True))}
        return self._graph.run(values)


def _converted(value: Value, annotation: str) -> Value:
    if value is None or isinstance(value, list):
        return value
    if "Host" in annotation:
        return as_host(value)
    return as_tensor(value) if any(name in annotation for name in _TENSORS) else value


def _attribute_value(value: Any, values: Environment) -> Any:
    if isinstance(value, Graph):
        return Body(value, values)
    return value.array if isinstance(value, HostArray) else value


@lru_cache(maxsize=1024)
def _reference(domain: str, operator: str, version: int, proto: bytes) -> Any:
    """ONNX's own implementation of a node."""
    from onnx import NodeProto
    from onnx.reference.ops._op_list import load_op

    settings = {
        **{"log": lambda *_: None, "opsets": {domain: version}, "verbose": 0},
        **{"new_ops": None, "evaluator_cls": None},
    }
    return load_op(domain, operator, version)(NodeProto.FromString(proto), settings)


# Captures

_KNOWN: Final = {"OptionalHasElement", "SequenceLength", *_SHAPES}
"""Operators whose results are known before anything is computed."""


def reading(graph: Graph, known: Set[str] = frozenset()) -> Iterator[Node]:
    """The nodes that read what was computed: sizes, axes or trips of theirs depend on data.

    `known` are the names of values on the host around the graph.
    """
    names = {"", *known, *(name for name, _ in graph.constants)}
    for node in graph.nodes:
        inputs_known = names.issuperset(node.inputs)
        if node.operator == "Loop":
            reads = yield from _reading_loop(node, names)
        else:
            reads = _reads(node, names)
            for inner in node.graphs:
                yield from reading(inner, names)
        if reads:
            yield node
        on_host = node.entry.by_reference or (inputs_known and (node.needed or not node.inputs))
        if on_host or node.operator in _KNOWN:
            names.update(node.outputs)


def _reads(node: Node, known: Set[str]) -> bool:
    if node.operator == "RoiAlign" and not dict(node.attributes).get("sampling_ratio"):
        return True  # the number of points in a region depends on its size
    return any(
        (node.entry.by_reference or node.entry.is_host(place)) and name not in known
        for place, name in enumerate(node.inputs)
    )


def _reading_loop(node: Node, known: Set[str]) -> Generator[Node, None, bool]:
    """The nodes in a loop that read, and whether the number of its trips is read."""
    (body,) = node.graphs
    trips, condition = (*node.inputs, "", "")[:2]
    inside = {*known, body.inputs[1]}
    yield from reading(body, inside)
    return not trips or trips not in known or condition not in known or not _goes_on(body, inside)


def _goes_on(body: Graph, known: Set[str]) -> bool:
    """Whether the condition that a body gives is known: it is the one that came in, or constant."""
    name = body.outputs[0]
    sources = {output: node for node in body.nodes for output in node.outputs}
    while name in sources and sources[name].operator == "Identity":
        name = sources[name].inputs[0]
    is_constant = name in sources and sources[name].operator == "Constant"
    return is_constant or name in known or name in dict(body.constants)


# Building


def domain_name(domain: str) -> str:
    """The name of a domain; ONNX's own has two."""
    return "" if domain == "ai.onnx" else domain


def versions_of(proto: Any) -> dict[str, int]:
    """The versions of the domains that a model uses."""
    return {domain_name(entry.domain): entry.version for entry in proto.opset_import}


class Builder:
    """Makes graphs of what the onnx package has parsed."""

    def __init__(self, versions: Mapping[str, int]) -> None:
        self._versions = versions

    def graph(self, proto: Any, wanted: Iterable[str] = ()) -> tuple[Graph, set[str]]:
        """A graph, and the names whose values are needed on the host.

        `wanted` are the outputs that are.
        """
        needed = set(wanted)
        nodes = []
        for place in reversed(range(len(proto.node))):
            nodes.append(self._node(proto.node[place], place, needed))
        needed.discard("")
        graph = Graph(
            tuple(value.name for value in proto.input),
            tuple(value.name for value in proto.output),
            tuple(reversed(nodes)),
        )
        return graph, needed

    def _node(self, proto: Any, place: int, needed: set[str]) -> Node:
        domain = domain_name(proto.domain)
        version = self._versions[domain]
        entry = entry_for(proto.op_type, version, domain)
        assert entry is not None, "unsupported nodes are refused before"
        is_needed = not needed.isdisjoint(proto.output)
        if is_needed and proto.op_type not in _SHAPES:
            needed.update(proto.input)
        needed.update(name for i, name in enumerate(proto.input) if entry.is_host(i))
        attributes = [
            (attribute.name, self._attribute(attribute, needed, is_needed))
            for attribute in proto.attribute
            if attribute.name not in _NOTES
        ]
        node = Node(
            proto.name or f"{proto.op_type} #{place}",
            domain,
            proto.op_type,
            version,
            entry,
            tuple(proto.input),
            tuple(proto.output),
            tuple(attributes),
            is_needed,
            b"" if any(isinstance(value, Graph) for _, value in attributes)
            else proto.SerializeToString(),
        )  # fmt: skip
        if not entry.by_reference:
            _check_attributes(node)
        return node

    def _attribute(self, attribute: Any, needed: set[str], is_needed: bool) -> Any:
        from onnx import AttributeProto, helper, numpy_helper

        kind = attribute.type
        if kind == AttributeProto.GRAPH:
            outputs = [value.name for value in attribute.g.output] if is_needed else ()
            graph, inside = self.graph(attribute.g, outputs)
            needed |= inside
            constants = [
                (tensor.name, Constant.of(numpy_helper.to_array(tensor)))
                for tensor in attribute.g.initializer
            ]
            return graph._replace(constants=tuple(constants))
        value = helper.get_attribute_value(attribute)
        if kind == AttributeProto.STRING:
            return value.decode()
        if kind == AttributeProto.STRINGS:
            return tuple(text.decode() for text in value)
        if kind == AttributeProto.TENSOR:
            return HostArray.of(numpy_helper.to_array(value))
        return tuple(value) if kind in (AttributeProto.INTS, AttributeProto.FLOATS) else value


def _check_attributes(node: Node) -> None:
    given = {name for name, _ in node.attributes}
    unknown = given - node.entry.attributes
    if unknown:
        raise OnnxError(f"{node}: the attributes {sorted(unknown)} are not supported")
    missing = node.entry.required - given
    if missing:
        raise OnnxError(f"{node}: the attributes {sorted(missing)} are missing")


def unsupported(proto: Any, versions: Mapping[str, int]) -> Iterator[str]:
    """What of a graph has no rule or no data type, a line each."""
    from onnx import AttributeProto

    for tensor in proto.initializer:
        if not is_supported(tensor.data_type):
            yield f"{tensor.name!r}: tensors of {type_name(tensor.data_type)}"
    for value in (*proto.input, *proto.output):
        kind = value.type.tensor_type.elem_type
        if value.type.HasField("tensor_type") and kind and not is_supported(kind):
            yield f"{value.name!r}: tensors of {type_name(kind)}"
    for place, node in enumerate(proto.node):
        name = node.name or f"{node.op_type} #{place}"
        domain = domain_name(node.domain)
        if entry_for(node.op_type, versions.get(domain, 0), domain) is None:
            operator = f"{domain}.{node.op_type}" if domain else node.op_type
            yield f"node {name!r}: operator {operator}"
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from unsupported(attribute.g, versions)
            elif attribute.type == AttributeProto.TENSOR:
                if not is_supported(attribute.t.data_type):
                    yield f"node {name!r}: a tensor of {type_name(attribute.t.data_type)}"
            elif attribute.name == "to" and not is_supported(attribute.i):
                yield f"node {name!r}: a cast to {type_name(attribute.i)}"


def without_rules(proto: Any, versions: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The domains and names of operators that have no rule, in a graph and those inside it."""
    for node in proto.node:
        domain = domain_name(node.domain)
        if entry_for(node.op_type, versions.get(domain, 0), domain) is None:
            yield domain, node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from without_rules(attribute.g, versions)
