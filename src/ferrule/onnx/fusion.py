"""Products of quantised numbers, found among the nodes that quantise and dequantise around them.

Quantised models in the form that tools write have floats between all operators, and pairs of nodes
that say where these are numbers of 8 bits:

    DequantizeLinear -> Conv, Gemm or MatMul [-> Relu] -> QuantizeLinear

Here such a row of nodes becomes one product of bytes: integers are summed, and the sums scaled
once. What depends on the weights and scales alone is computed here: sums of weights, which the
zero point of the other operand is multiplied with, and the quotient of the scales. Where the nodes
between such a pair only move elements or take maxima, and the scales are equal, bytes are moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ferrule.ir.dtype import DType, dtypes
from ferrule.onnx.graph import Graph, Node
from ferrule.onnx.registry import entry_for
from ferrule.onnx.values import Array, Constant, as_host, number_of

_BYTES: Final = (dtypes.int8, dtypes.uint8)

_MOVES: Final = {
    "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators whose results are elements of their first input."""

_PRODUCTS: Final = {
    "Conv": "Conv", "ConvInteger": "Conv", "Gemm": "MatMul", "MatMul": "MatMul",
    "MatMulInteger": "MatMul", "QLinearConv": "Conv", "QLinearMatMul": "MatMul",
}  # fmt: skip
"""What the nodes become, in the domain "ferrule" with "Quantized" before it."""


_STORES: Final = {"QuantizeLinear", *("Quantized" + name for name in _PRODUCTS.values())}
"""What gives bytes. They are stored where a product reads them, or a node moves them: the
instructions that multiply them read memory."""


class _Quantized(NamedTuple):
    """Quantised numbers: `(x - zero) * scale`."""

    x: str
    scale: Array
    zero: str
    """The name of the zero point; empty if it is left out."""
    dtype: DType
    axis: int = 0
    """The axis that the scales are for, if there are several."""


class _Finish(NamedTuple):
    """What a product does to its sums."""

    bias: str = ""
    factor: Array | None = None
    zero: str = ""
    relu: bool = False
    dtype: int = 0
    """The data type of the result in `onnx.TensorProto`; 0 for floats, or sums without a factor."""


def fused(graph: Graph) -> Graph:
    """The graph with products of quantised numbers as single nodes."""
    fusion = _Fusion(graph)
    for node in graph.nodes:
        fusion.visit(node)
    return fusion.graph()


class _Fusion:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = dict(graph.constants)
        self._producers = {name: node for node in graph.nodes for name in node.outputs}
        self._readers = {name: node for node in graph.nodes for name in node.inputs}
        self._uses = Counter(name for node in graph.nodes for name in node.all_inputs())
        self._uses.update(graph.outputs)
        self._replaced: dict[str, Node | None] = {}
        """By the first output of the node that is replaced; None for nodes that are left out."""

    def graph(self) -> Graph:
        """The graph as it is now, without what nothing needs any more."""
        wanted = set(self._graph.outputs)
        stored: set[str] = set()
        kept: list[Node] = []
        for old in reversed(self._graph.nodes):
            node = self._replaced.get(old.outputs[0], old)
            if node is None or wanted.isdisjoint(node.outputs):
                continue
            if node.operator in _STORES and node.outputs[0] in stored:
                node = node._replace(attributes=(*node.attributes, ("stored", 1)))
            kept.append(node)
            wanted.update(node.all_inputs())
            if node.domain == "ferrule" or node.operator in _MOVES:
                stored.update(node.inputs[:2])
        constants = [(name, value) for name, value in self._constants.items() if name in wanted]
        return self._graph._replace(nodes=tuple(reversed(kept)), constants=tuple(constants))

    def visit(self, node: Node) -> None:
        """Replace a row of nodes by its product, or by the QuantizeLinear at its end."""
        if node.domain or node.needed:
            return
        if node.operator in ("Conv", "Gemm", "MatMul"):
            self._dequantized_product(node)
        elif node.operator in ("QLinearConv", "QLinearMatMul"):
            self._quantized_product(node)
        elif node.operator in ("ConvInteger", "MatMulInteger"):
            x, w, *zeros = node.inputs
            self._enter(node, node, (x, w), (*zeros, "", "")[:2], _Finish())
        elif node.operator == "QuantizeLinear":
            self._move(node)

    # Products

    def _dequantized_product(self, node: Node) -> None:
        a, b = (self._dequantized(name) for name in node.inputs[:2])
        attributes = dict(node.attributes)
        scaled = attributes.get("alpha", 1) != 1 or attributes.get("beta", 1) != 1
        if a is None or b is None or scaled or {a.dtype, b.dtype} - {*_BYTES} or a.scale.size > 1:
            return
        if b.scale.size > 1 and not self._is_by_channel(b, node):
            return
        scale = a.scale.reshape(()) * b.scale
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        exact = self._integers(bias, scale) if bias else ""
        zeros = a.zero, b.zero
        row = self._quantized_after(node) if exact is not None else None
        if row is None:
            finish = _Finish(bias if exact is None else exact, scale)
            self._enter(node, node, (a.x, b.x), zeros, finish)
            return
        last, result, relu = row
        factor = scale / result.scale.reshape(())
        finish = _Finish(exact or "", factor, result.zero, relu, number_of(result.dtype))
        self._enter(node, last, (a.x, b.x), zeros, finish)

    def _quantized_product(self, node: Node) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, *bias = node.inputs
        scales = [self._array(name) for name in (a_scale, b_scale, y_scale)]
        zero = self._array(y_zero)
        if zero is None or any(s is None or s.ndim > 1 or s.dtype != np.float32 for s in scales):
            return
        first, second, third = (s for s in scales if s is not None)
        if first.size > 1 or third.size > 1 or zero.size > 1:
            return
        factor = first.reshape(()) * second / third.reshape(())
        dtype = number_of(dtypes.from_np(zero.dtype))
        finish = _Finish(bias[0] if bias else "", factor, y_zero, False, dtype)
        self._enter(node, node, (a, b), (a_zero, b_zero), finish)

    def _enter(
        self,
        node: Node,
        last: Node,
        operands: tuple[str, str],
        zeros: Sequence[str],
        finish: _Finish,
    ) -> None:
        """Replace `last` by the product that `node` computes, and what follows it up to there."""
        operator = "Quantized" + _PRODUCTS[node.operator]
        a_zero, b_zero = ("" if self._is_zero(name) else name for name in zeros)
        weights = self._array(operands[1])
        attributes = {k: v for k, v in node.attributes if k not in ("alpha", "beta")}
        names = {"sums": "", "factor": ""}
        if weights is not None and a_zero:
            names["sums"] = f"sums of {operands[1]} for {last.outputs[0]}"
            terms = _terms(node, attributes, weights)
            self._constants[names["sums"]] = Constant.of(weights.sum(terms, np.int32))
        if finish.factor is not None:
            names["factor"] = f"factor of {last.outputs[0]}"
            factor = finish.factor if finish.factor.size > 1 else finish.factor.reshape(())
            self._constants[names["factor"]] = Constant.of(factor.astype(np.float32))
        inputs = (
            *operands, a_zero, b_zero, names["sums"], finish.bias, names["factor"], finish.zero,
        )  # fmt: skip
        attributes |= {"relu": int(finish.relu), "dtype": finish.dtype}
        entry = entry_for(operator, 1, "ferrule")
        assert entry is not None
        self._replaced[last.outputs[0]] = node._replace(
            domain="ferrule",
            operator=operator,
            version=1,
            entry=entry,
            inputs=inputs,
            outputs=last.outputs,
            attributes=tuple(attributes.items()),
        )

    def _is_by_channel(self, weights: _Quantized, node: Node) -> bool:
        """Whether there is a scale for each channel of a product."""
        array = self._array(weights.x)
        if array is None:
            return False
        terms = _terms(node, dict(node.attributes), array)
        channels = {*range(array.ndim)} - {axis % array.ndim for axis in terms}
        return weights.axis % array.ndim == max(channels, default=-1)

    def _integers(self, name: str, scale: Array) -> str | None:
        """The integers that a bias is, in parts of the scale of the sums; None if it is not."""
        bias = self._dequantized(name)
        if bias is None or bias.dtype != dtypes.int32 or not self._is_zero(bias.zero):
            return None
        fits = bias.scale.size in (1, scale.size) and np.allclose(bias.scale, scale, 1e-6, 0)
        return bias.x if fits else None

    def _quantized_after(self, node: Node) -> tuple[Node, _Quantized, bool] | None:
        """The QuantizeLinear that alone reads a result, and whether a Relu is between."""
        after = self._only_reader(node)
        relu = after is not None and after.operator == "Relu" and not after.domain
        if after is not None and relu:
            after = self._only_reader(after)
        result = None if after is None else self._quantized(after)
        if after is None or result is None or result.scale.size > 1:
            return None
        return after, result, relu

    # Moves

    def _move(self, last: Node) -> None:
        """Move bytes where nodes between equal scales only move elements."""
        row: list[Node] = []
        name = last.inputs[0]
        while (node := self._producers.get(name)) is not None and _only_moves(node):
            if self._uses[name] > 1:
                return
            row.append(node)
            name = node.inputs[0]
        before, after = self._dequantized(name), self._quantized(last)
        if not row or before is None or after is None or not self._are_equal(before, after):
            return
        for node in row:
            inputs, outputs = node.inputs, node.outputs
            if node is row[-1]:
                inputs = (before.x, *inputs[1:])
            if node is row[0]:
                outputs = last.outputs
            self._replaced[node.outputs[0]] = node._replace(inputs=inputs, outputs=outputs)
        self._replaced[last.outputs[0]] = None

    def _are_equal(self, one: _Quantized, other: _Quantized) -> bool:
        zeros = [self._array(quantized.zero) for quantized in (one, other)]
        same = (zeros[0] is None) == (zeros[1] is None) and one.dtype == other.dtype
        if not same or one.scale.size > 1 or other.scale.size > 1:
            return False
        return one.scale.item() == other.scale.item() and (
            zeros[0] is None or zeros[1] is None or zeros[0].item() == zeros[1].item()
        )

    # Nodes and constants

    def _dequantized(self, name: str) -> _Quantized | None:
        """The quantised numbers that a value is made of; None if it is not, or not so simply."""
        node = self._producers.get(name)
        if node is None or node.operator != "DequantizeLinear" or node.domain or node.needed:
            return None
        return self._numbers(node, node.inputs[0])

    def _quantized(self, node: Node) -> _Quantized | None:
        """The quantised numbers that a node makes of others; None if it does something else."""
        if node.operator != "QuantizeLinear" or node.domain or node.needed:
            return None
        return self._numbers(node, node.outputs[0])

    def _numbers(self, node: Node, x: str) -> _Quantized | None:
        attributes = dict(node.attributes)
        scale = self._array(node.inputs[1])
        others = attributes.keys() - {"axis", "saturate"}
        if scale is None or scale.dtype != np.float32 or any(attributes[name] for name in others):
            return None
        zero = node.inputs[2] if len(node.inputs) > 2 else ""
        dtype = self._dtype(zero) if zero else self._dtype_without_zero(node, x)
        return None if dtype is None else _Quantized(
            x, scale, zero, dtype, attributes.get("axis", 1)
        )  # fmt: skip

    def _dtype_without_zero(self, node: Node, x: str) -> DType | None:
        if node.operator == "QuantizeLinear":
            return dtypes.uint8
        source = self._producers.get(x)
        made = None if source is None else self._quantized(source)
        return self._dtype(x) if made is None else made.dtype

    def _dtype(self, name: str) -> DType | None:
        """The data type of a constant; None for other values."""
        value = self._constants.get(name)
        if not isinstance(value, Constant):
            return None
        return dtypes.from_np(as_host(value).dtype) if value.tensor is None else value.tensor.dtype

    def _array(self, name: str) -> Array | None:
        """The elements of a constant; None for other values."""
        value = self._constants.get(name)
        return as_host(value) if isinstance(value, Constant) else None

    def _is_zero(self, name: str) -> bool:
        """Whether a zero point is left out, or zero."""
        array = self._array(name)
        return not name or (array is not None and not array.any())

    def _only_reader(self, node: Node) -> Node | None:
        """The node that alone reads a result; None if there are others, or it is an output."""
        name = node.outputs[0]
        return self._readers.get(name) if self._uses[name] == 1 else None


def _only_moves(node: Node) -> bool:
    several = any(node.outputs[1:])
    return node.operator in _MOVES and not (node.domain or node.needed or several)


def _terms(node: Node, attributes: Mapping[str, Any], weights: Array) -> tuple[int, ...]:
    """The axes of the weights that a product sums over."""
    if _PRODUCTS[node.operator] == "Conv":
        return tuple(range(1, weights.ndim))
    return (-1,) if attributes.get("transB") or weights.ndim == 1 else (-2,)
