"""`summary`: the layers of a model with their shapes, parameters, operations and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from ferrule.autograd import Shape, no_grad
from ferrule.base.containers import leaves
from ferrule.base.records import dataclass
from ferrule.engine.loop_runs import Loop
from ferrule.ir.buffer import readable_bytes
from ferrule.ir.expr import as_expr
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, count_operations
from ferrule.ir.shape.view import prod_sint
from ferrule.nn.hooks import Hook, numbers
from ferrule.nn.module import Module, set_training
from ferrule.nn.state.model import children_of, get_parameters
from ferrule.tensor import Tensor
from ferrule.tensor.broadcast import known_size
from ferrule.transforms.loop_gradients import node_mark

_Named: TypeAlias = Iterator[tuple[str, Module]]


@final
@dataclass(frozen=True)
class LayerSummary:
    """One call of a layer."""

    name: str
    """The layer's name in the model; empty for the model itself."""
    kind: str
    depth: int
    """The number of layers around it whose calls it is a part of."""
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    parameters: int
    """The number of elements of the parameters of the layer itself, without those of its parts."""
    trainable: int
    """The number of those that are trained."""
    flops: int
    """Operations with numbers; a product and a sum are two. Those of parts are included."""
    output_bytes: int
    is_leaf: bool
    """True if no other layer was called in its call."""


@final
@dataclass(frozen=True)
class Summary:
    """The calls of all layers, and totals. As text it is a table."""

    layers: tuple[LayerSummary, ...]
    """In the order in which calls began."""
    parameters: int
    """Elements of all parameters, each counted once."""
    trainable: int
    flops: int
    parameter_bytes: int
    input_bytes: int
    activation_bytes: int
    """Bytes of the results of the layers that have no parts: what training keeps, about."""

    def __str__(self) -> str:
        rows = [("layer", "output", "parameters", "trainable", "flops")]
        for layer in self.layers:
            label = f"{'  ' * layer.depth}{layer.name or 'model'} ({layer.kind})"
            shapes = ", ".join(map(str, layer.output_shapes))
            own, trained = f"{layer.parameters:,}", f"{layer.trainable:,}"
            rows.append((label, shapes, own, trained, f"{layer.flops:,}"))
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if place < 2 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        lines.append(lines[1])
        lines.append(
            f"{self.parameters:,} parameters, {self.trainable:,} trainable; {self.flops:,} flops"
        )
        sizes = (self.parameter_bytes, self.input_bytes, self.activation_bytes)
        kinds = ("parameters", "inputs", "activations")
        lines.append(
            "memory: "
            + ", ".join(
                f"{readable_bytes(n)} of {kind}" for n, kind in zip(sizes, kinds, strict=True)
            )
        )
        return "\n".join(lines)

    __repr__ = __str__


def summary(model: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Summary:
    """The layers of a model in a call on some inputs; nothing is computed but what the model reads.

    Inputs are the model's arguments; a tuple of integers stands for zeros of that shape. The model
    is called as in evaluation. Operations are counted in the graph that the call makes, before any
    are joined or left out: a loop counts each trip, one of unknown length a single one.

    Raises `TypeError` for a model that can not be called.

    >>> from ferrule import Tensor, nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> found = nn.summary(model, Tensor.ones(3, 4))
    >>> found.parameters, found.flops
    (58, 342)
    >>> [(layer.name, layer.output_shapes) for layer in found.layers]
    [('', ((3, 2),)), ('0', ((3, 8),)), ('1', ((3, 8),)), ('2', ((3, 2),))]
    >>> print(nn.summary(nn.Linear(4, 8), (3, 4)))
    layer           output  parameters  trainable  flops
    ----------------------------------------------------
    model (Linear)  (3, 8)          40         40    216
    ----------------------------------------------------
    40 parameters, 40 trainable; 216 flops
    memory: 160 bytes of parameters, 48 bytes of inputs, 96 bytes of activations
    """
    if not callable(model):
        raise TypeError(f"[summary] a {type(model).__name__} can not be called")
    modules = dict(_modules_of(model))
    buffers = {id(t) for module in modules.values() for t in module.buffers(recurse=False)}
    parameters = [tensor for tensor in get_parameters(model) if id(tensor) not in buffers]
    given = [_input(value) for value in inputs]
    named = {name: _input(value) for name, value in kwargs.items()}
    record = _Record()
    before = [(module, module._beside) for module in modules.values()]
    set_training(model, False)
    for name, module in modules.items():
        record.watch(name, module)
    try:
        with no_grad():
            if isinstance(model, Module):
                model(*given, **named)
            else:
                record.enter("", model, (*given, *named.values()))
                record.leave(model(*given, **named))
    finally:
        for module, beside in before:
            object.__setattr__(module, "_beside", beside)
    layers = record.layers()
    return Summary(
        layers,
        sum(map(_size, parameters)),
        sum(_size(tensor) for tensor in parameters if tensor.requires_grad),
        layers[0].flops,
        sum(map(_bytes, parameters)),
        sum(map(_bytes, _tensors_in([*given, *named.values()]))),
        sum(layer.output_bytes for layer in layers if layer.is_leaf),
    )


def _modules_of(value: object, name: str = "", inside: frozenset[int] = frozenset()) -> _Named:
    """All modules in a model, however they are held, under dotted names; each may come twice."""
    if isinstance(value, Tensor) or id(value) in inside:
        return
    if isinstance(value, Module):
        yield name, value
    for key, part in children_of(value):
        yield from _modules_of(part, f"{name}.{key}" if name else key, inside | {id(value)})


def _input(value: Any) -> Any:
    """An argument in memory of its own: the nodes that are made of it are new."""
    if isinstance(value, tuple) and value and all(isinstance(size, int) for size in value):
        return Tensor(np.zeros(value, np.float32))
    if isinstance(value, Tensor):
        return Tensor(value.numpy().copy(), device=value.device)
    return value


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


def _size(tensor: Tensor) -> int:
    return known_size(tensor.numel(), "summary")


def _bytes(tensor: Tensor) -> int:
    return _size(tensor) * tensor.dtype.itemsize


@final
class _Record:
    """The calls of layers so far."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str, Any, tuple[Shape, ...], int]] = []
        self._found: dict[int, LayerSummary] = {}
        self._begun = 0

    def layers(self) -> tuple[LayerSummary, ...]:
        """All calls, in the order in which they began."""
        return tuple(self._found[number] for number in sorted(self._found))

    def watch(self, name: str, module: Module) -> None:
        """Record the calls of a module."""

        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.enter(name, module, (*args, *kwargs.values()))

        def after(_: Any, args: tuple[Any, ...], result: Any) -> None:
            self.leave(result)

        module._register(Hook(next(numbers), "pre", before, True), False)
        module._register(Hook(next(numbers), "forward", after), False)

    def enter(self, name: str, layer: Any, given: Sequence[Any]) -> None:
        """A call begins."""
        shapes = tuple(tuple(tensor.shape) for tensor in _tensors_in(list(given)))
        self._open.append((self._begun, name, layer, shapes, node_mark()))
        self._begun += 1

    def leave(self, result: Any) -> None:
        """The call that began last has ended."""
        number, name, layer, shapes, mark = self._open.pop()
        outputs = _tensors_in(result)
        own = list(layer.parameters(recurse=False)) if isinstance(layer, Module) else []
        self._found[number] = LayerSummary(
            name,
            type(layer).__name__,
            len(self._open),
            shapes,
            tuple(tuple(tensor.shape) for tensor in outputs),
            sum(map(_size, own)),
            sum(_size(tensor) for tensor in own if tensor.requires_grad),
            _operations([tensor._read().node for tensor in outputs], mark),
            sum(map(_bytes, outputs)),
            self._begun == number + 1,
        )


def _operations(roots: Sequence[LazyBuffer], mark: int) -> int:
    """The operations of the nodes that were made after a mark."""
    return _count(_below(roots, lambda node: node.serial > mark))


def _below(roots: Sequence[LazyBuffer], counts: Callable[[LazyBuffer], bool]) -> list[LazyBuffer]:
    """The nodes that some are made of, themselves included, down to those that do not count."""
    found: dict[LazyBuffer, None] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in found and counts(node):
            found[node] = None
            waiting += node.srcs
    return list(found)


def _count(nodes: Sequence[LazyBuffer]) -> int:
    total = as_expr(count_operations(nodes)).max
    for node in nodes:
        if isinstance(node.arg, Loop) and not node.arg.numbers:
            body = node.arg.body
            ends = {*body.carries, *body.rows, *node.arg.constants}
            # The node has a byte for each trip, and one.
            trips = max(as_expr(prod_sint(node.shape)).max - 1, 1)
            inside = _below(body.outs, lambda node, ends=ends: node not in ends)  # type: ignore[misc]
            total += trips * _count(inside)
        elif node.op is LoadOps.TEMPLATE:
            total += _count(node.arg.nodes)
    return total
