"""ONNX Runtime: programs are traced into a graph of ONNX; forward passes only."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from peers.base import Call, Library, Program, Unsupported

OPSET = 20


class Graph:
    """The nodes so far."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, value: np.ndarray) -> str:
        """A weight that the runtime may pack."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name


class Node:
    """A value in a graph, whose shape is known."""

    def __init__(self, graph: Graph, name: str, shape: tuple[int, ...]) -> None:
        self.graph = graph
        self.name = name
        self.shape = shape

    def apply(self, op: str, *others: Any, shape: Sequence[int], **attributes: Any) -> Node:
        """A node of the graph that takes this value, others, and NumPy arrays."""
        names = [self.name]
        for other in others:
            names.append(other.name if isinstance(other, Node) else self.graph.constant(other))
        output = f"v{len(self.graph.nodes)}"
        self.graph.nodes.append(helper.make_node(op, names, [output], **attributes))
        return Node(self.graph, output, tuple(shape))

    def _binary(self, op: str, other: Any) -> Node:
        if not isinstance(other, Node):
            other = np.asarray(other, np.float32)
        shape = np.broadcast_shapes(self.shape, other.shape)
        return self.apply(op, other, shape=shape)

    def __add__(self, other: Any) -> Node:
        return self._binary("Add", other)

    def __mul__(self, other: Any) -> Node:
        return self._binary("Mul", other)

    def __matmul__(self, other: Node) -> Node:
        batch = np.broadcast_shapes(self.shape[:-2], other.shape[:-2])
        return self.apply("MatMul", other, shape=(*batch, self.shape[-2], other.shape[-1]))

    def reshape(self, *shape: int) -> Node:
        """The same elements in another shape."""
        shape = tuple(np.empty(self.shape, np.bool_).reshape(shape).shape)
        return self.apply("Reshape", np.array(shape, np.int64), shape=shape)

    def __getitem__(self, key: int | slice) -> Node:
        if isinstance(key, int):
            return self.apply("Gather", np.array(key, np.int64), shape=self.shape[1:], axis=0)
        ends = [np.array([end], np.int64) for end in (key.start, key.stop, 0)]
        return self.apply("Slice", *ends, shape=(key.stop - key.start, *self.shape[1:]))


class OnnxRuntime(Library):
    """ONNX Runtime's CPU provider; `packed`: weights are constants, which it packs beforehand."""

    def __init__(self, packed: bool) -> None:
        self.packed = packed

    def _array(self, value: np.ndarray) -> np.ndarray:
        if value.dtype == ml_dtypes.bfloat16:
            raise Unsupported("no bfloat16 on the CPU")
        return value

    # Calls

    def forward(
        self, program: Program, arrays: Sequence[np.ndarray], constants: Sequence[int]
    ) -> Call:
        if self.packed and not constants:
            raise Unsupported("no weights to pack")
        graph = Graph()
        nodes, inputs, feeds = [], [], {}
        for position, value in enumerate(arrays):
            if self.packed and position in constants:
                nodes.append(Node(graph, graph.constant(value), value.shape))
                continue
            name = f"x{position}"
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, value.shape))
            nodes.append(Node(graph, name, value.shape))
            feeds[name] = value
        result = program(self, *nodes)
        session = _session(graph, inputs, result)
        feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(v) for name, v in feeds.items()}
        return lambda: session.run_with_ort_values([result.name], feeds)[0]

    def stateful(
        self, program: Program, state: Sequence[np.ndarray], arrays: Sequence[np.ndarray]
    ) -> Call:
        weights = range(len(state), len(state) + len(arrays) - 1)
        first = lambda lib, *given: program(lib, *given)[0]  # noqa: E731
        return self.forward(first, [*state, *arrays], weights)

    def _numpy(self, value: Any) -> np.ndarray:
        return value.numpy()

    # Operations

    def permute(self, x: Node, axes: Sequence[int]) -> Node:
        return x.apply("Transpose", shape=[x.shape[axis] for axis in axes], perm=list(axes))

    def swap(self, x: Node) -> Node:
        rank = len(x.shape)
        return self.permute(x, [*range(rank - 2), rank - 1, rank - 2])

    def sum(self, x: Node) -> Node:
        return x.apply("ReduceSum", shape=(), keepdims=0)

    def tanh(self, x: Node) -> Node:
        return x.apply("Tanh", shape=x.shape)

    def relu(self, x: Node) -> Node:
        return x.apply("Relu", shape=x.shape)

    def gelu(self, x: Node) -> Node:
        return x.apply("Gelu", shape=x.shape, approximate="tanh")

    def softmax(self, x: Node) -> Node:
        return x.apply("Softmax", shape=x.shape, axis=-1)

    def layernorm(self, x: Node, weight: Node, bias: Node) -> Node:
        return x.apply("LayerNormalization", weight, bias, shape=x.shape, epsilon=1e-5)

    def conv2d(self, x: Node, weight: Node, stride: int, padding: int, groups: int) -> Node:
        sizes = [
            (x.shape[axis] + 2 * padding - weight.shape[axis]) // stride + 1 for axis in (2, 3)
        ]
        shape = (x.shape[0], weight.shape[0], *sizes)
        settings = {"strides": [stride] * 2, "pads": [padding] * 4, "group": groups}
        return x.apply("Conv", weight, shape=shape, **settings)

    def max_pool(self, x: Node) -> Node:
        raise Unsupported("no training")

    def attention(self, q: Node, k: Node, v: Node, causal: bool) -> Node:
        scores = (q @ self.swap(k)) * (1 / math.sqrt(q.shape[-1]))
        if causal:
            size = q.shape[-2]
            scores = scores + np.triu(np.full((size, size), -np.inf, np.float32), 1)
        return self.softmax(scores) @ v

    def embedding(self, table: Node, indices: Node) -> Node:
        return table.apply("Gather", indices, shape=(*indices.shape, *table.shape[1:]), axis=0)

    def cross_entropy(self, scores: Node, labels: Node) -> Node:
        raise Unsupported("no training")

    def put(self, cache: Node, new: Node, position: int) -> Node:
        spot = np.full(new.shape[:-1], position, np.int64)[..., None]
        indices = np.broadcast_to(spot, new.shape)
        return cache.apply("ScatterElements", indices, new, shape=cache.shape, axis=2)


def _session(graph: Graph, inputs: list[Any], result: Node) -> onnxruntime.InferenceSession:
    output = helper.make_tensor_value_info(result.name, TensorProto.FLOAT, result.shape)
    made = helper.make_graph(graph.nodes, "workload", inputs, [output], graph.initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    # Left to itself it takes a thread for each core, whatever the process may use.
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    return onnxruntime.InferenceSession(
        onnx.ModelProto.SerializeToString(model), options, providers=["CPUExecutionProvider"]
    )


def load(variant: str) -> OnnxRuntime:
    """All inputs are given anew with each call; "packed": but for the weights."""
    return OnnxRuntime(variant == "packed")
