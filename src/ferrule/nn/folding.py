"""Batch normalisation folded into the layers before it, for inference.

With fixed statistics `(x - mean) / sqrt(var + eps) * weight + bias` multiplies and shifts each
channel. Where x is the result of a convolution or a `Linear`, its weight and bias can do that.
Which layer is before which is read from the graph of a call, not from names or the order of
attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy, deepcopy
from typing import Any, TypeVar

from ferrule.autograd import no_grad, train
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import BinaryOps, MovementOps, ReduceOps
from ferrule.nn.convolution import Conv1d, Conv2d, Conv3d
from ferrule.nn.linear import Linear
from ferrule.nn.normalization import BatchNorm
from ferrule.nn.shapes import Identity
from ferrule.nn.state.model import functional_call, get_parameters, get_state_dict, parts_of
from ferrule.tensor import Tensor

M = TypeVar("M", bound=Callable[..., Any])


def fold_batchnorm(model: M, *example: Any) -> M:
    """A copy of a model for inference, with batch normalisations folded into the layers before.

    `example` are arguments of one call, which shows what runs before what; only their shapes and
    dtypes matter, and nothing is computed. A `BatchNorm` is folded if its input is the result of
    one convolution or `Linear` that nothing else reads, and both run once in a call. Such a layer
    gets a weight and a bias of its own, and an `Identity` takes the place of the `BatchNorm`. All
    other tensors are those of `model`. Results differ by rounding. Later training of `model` does
    not reach the copy: fold again.

    Raises what the call of the model raises; `TypeError` for a model that cannot be called, and
    `StateError` for tensors in tuples.

    >>> from ferrule import Tensor, nn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    >>> x = Tensor.ones(1, 3, 5, 5)
    >>> folded = nn.fold_batchnorm(model, x)
    >>> folded[1], bool((folded(x) - model(x)).abs().max() < 1e-5)
    (Identity(), True)
    """
    if not callable(model):
        raise TypeError(f"fold_batchnorm: {type(model).__name__} cannot be called")
    own = get_state_dict(model)
    leaves = _leaves(own.values())
    others = {name: leaves[id(tensor)] for name, tensor in own.items()}
    inputs = deepcopy(example, dict(_leaves(get_parameters(example))))
    with train(False), no_grad():
        results = get_parameters(functional_call(model, others, inputs))
    graph = _Graph([tensor.lazydata for tensor in results])
    parts = list(parts_of(model))
    memo: dict[int, Any] = {id(tensor): tensor for tensor in own.values()}
    for norm in parts:
        if isinstance(norm, BatchNorm) and norm.track_running_stats:
            mean = leaves[id(norm.running_mean)].lazydata
            for layer in parts:
                if isinstance(layer, Conv1d | Conv2d | Conv3d | Linear):
                    weight = leaves[id(layer.weight)].lazydata
                    bias = None if layer.bias is None else leaves[id(layer.bias)].lazydata
                    if graph.normalises(mean, weight, bias):
                        memo[id(norm)] = Identity()
                        memo[id(layer)] = _folded(layer, norm)
    return deepcopy(model, memo)


def _leaves(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """A leaf of the graph for each tensor, by identity: nothing is simplified as for constants."""
    return {id(t): Tensor.empty(*t.shape, dtype=t.dtype, device=t.device) for t in tensors}


def _folded(layer: Any, norm: BatchNorm) -> Any:
    """The layer and the normalisation of its results as one layer."""
    with no_grad():
        scale = (norm.running_var + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight
        shift = norm.running_mean if layer.bias is None else norm.running_mean - layer.bias
        bias = -shift * scale
        if norm.bias is not None:
            bias = bias + norm.bias
        both = copy(layer)
        each = scale.reshape(-1, *(1,) * (layer.weight.ndim - 1))
        both.weight = (layer.weight * each).cast(layer.weight.dtype).realize()
        both.bias = bias.cast(layer.weight.dtype).realize()
    return both


class _Graph:
    """The graph of some results: how often values are read, and what normalisations normalise."""

    def __init__(self, results: list[LazyBuffer]) -> None:
        self._reads = dict.fromkeys(map(_unmoved, results), 1)
        """How often a value is read, through movements or not."""
        self._differences: dict[LazyBuffer, list[LazyBuffer]] = {}
        """What a value is subtracted from."""
        seen: set[LazyBuffer] = set()
        waiting = list(self._reads)
        while waiting:
            node = waiting.pop()
            if node in seen or node.realized is not None:
                continue
            seen.add(node)
            sources = [_unmoved(source) for source in node.srcs]
            for source in sources:
                self._reads[source] = self._reads.get(source, 0) + 1
            if node.op is BinaryOps.SUB:
                self._differences.setdefault(sources[1], []).append(sources[0])
            waiting += sources

    def normalises(self, mean: LazyBuffer, weight: LazyBuffer, bias: LazyBuffer | None) -> bool:
        """True if a mean is subtracted from the result of a layer with a weight and a bias, and
        nothing else reads the layer's result, its weight, or the mean.
        """
        differences = self._differences.get(mean, [])
        if len(differences) != 1 or not self._is_read_once(mean, weight, differences[0]):
            return False
        (product,) = differences
        if bias is not None:
            if product.op is not BinaryOps.ADD or _unmoved(product.srcs[1]) is not bias:
                return False
            product = _unmoved(product.srcs[0])
            if not self._is_read_once(product):
                return False
        if product.op is not ReduceOps.SUM or product.srcs[0].op is not BinaryOps.MUL:
            return False
        return weight in [_unmoved(factor) for factor in product.srcs[0].srcs]

    def _is_read_once(self, *nodes: LazyBuffer) -> bool:
        return all([self._reads.get(node, 0) == 1 for node in nodes])


def _unmoved(node: LazyBuffer) -> LazyBuffer:
    """A value below the movements of it."""
    while isinstance(node.op, MovementOps) and node.realized is None:
        node = node.srcs[0]
    return node
