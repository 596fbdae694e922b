"""Random models in ONNX's format: nodes of many kinds, one after the other, on what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
LARGEST = 20_000  # elements of a value
VERSION = 18

_UNARY = (
    "Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign", "LeakyRelu",
    "HardSigmoid", "HardSwish", "Elu", "Selu", "Sin", "Cos", "Atan", "Reciprocal", "Mish",
)  # fmt: skip
_EXACT_UNARY = ("Abs", "Neg", "Relu")
_STEPS = ("Floor", "Ceil", "Round", "Sign")
_EXACT_PAIRS = ("Add", "Sub", "Mul", "Max", "Min")
_REDUCES = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp",
)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A value in a model: its name, its shape, and whether no rounding led to it."""

    name: str
    shape: tuple[int, ...]
    exact: bool


@dataclass
class Drawing:
    """A model that grows by random nodes."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def numbers(self, shape: Sequence[int]) -> Array:
        """Quarters, of which sums and products are exact."""
        return np.asarray(self.rng.integers(-8, 9, shape) / 4, np.float32)

    def constant(self, array: Any) -> str:
        name = self.name()
        self.weights[name] = np.asarray(array)
        return name

    def integers(self, numbers: Sequence[int]) -> str:
        return self.constant(np.array(numbers, np.int64))

    def below(self, limit: int) -> int:
        return int(self.rng.integers(0, limit))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def add(self, name: str, shape: Sequence[int], exact: bool) -> None:
        if 0 < prod(shape) <= LARGEST:
            self.values.append(Value(name, tuple(shape), exact))

    def pick(self, exact: bool = False, rank: int | None = None) -> Value:
        fitting = [
            value for value in self.values
            if (value.exact or not exact) and rank in (None, len(value.shape))
        ]  # fmt: skip
        return self.one_of(fitting[-6:]) if fitting else self.new(rank)

    def new(self, rank: int | None = None) -> Value:
        """One more input, or a constant."""
        rank = self.below(5) if rank is None else rank
        shape = tuple(int(size) for size in self.rng.integers(1, 8, rank))
        name = self.name()
        (self.inputs if self.below(3) else self.weights)[name] = self.numbers(shape)
        self.values.append(Value(name, shape, True))
        return self.values[-1]


Draw = Callable[[Drawing], None]


def _unary(d: Drawing) -> None:
    x, operator = d.pick(), d.one_of(_UNARY)
    d.add(d.node(operator, [x.name]), x.shape, x.exact and operator in _EXACT_UNARY)


def _step(d: Drawing) -> None:
    x = d.pick(exact=True)
    d.add(d.node(d.one_of(_STEPS), [x.name]), x.shape, True)


def _broadcast_to(d: Drawing, shape: Sequence[int]) -> str:
    """A constant that broadcasts to a shape."""
    kept = [size if d.below(3) else 1 for size in shape]
    return d.constant(d.numbers(kept[d.below(len(kept) + 1) :]))


def _pair(d: Drawing) -> None:
    x, operator = d.pick(), d.one_of((*_EXACT_PAIRS, "PRelu"))
    others = [value.name for value in d.values if value.shape == x.shape and value.exact]
    same = bool(others) and d.below(2) == 0 and operator != "PRelu"
    other = d.one_of(others) if same else _broadcast_to(d, x.shape)
    # Products of products would need more bits than floats have.
    d.add(d.node(operator, [x.name, other]), x.shape, x.exact and operator not in ("Mul", "PRelu"))


def _where(d: Drawing) -> None:
    x = d.pick(exact=True)
    condition = d.node(
        d.one_of(("Less", "Greater", "Equal", "LessOrEqual")), [x.name, _broadcast_to(d, x.shape)]
    )
    if d.below(2):
        condition = d.node("Not", [condition])
    y = d.node("Where", [condition, _broadcast_to(d, x.shape), x.name])
    d.add(y, x.shape, True)


def _clip(d: Drawing) -> None:
    x = d.pick()
    low = d.constant(np.float32(-1)) if d.below(3) else ""
    high = [d.constant(np.float32(1.5))] if d.below(3) else []
    d.add(d.node("Clip", [x.name, low, *high]), x.shape, x.exact)


def _transpose(d: Drawing) -> None:
    x = d.pick()
    if not x.shape:
        return
    order = [int(axis) for axis in d.rng.permutation(len(x.shape))]
    d.add(d.node("Transpose", [x.name], perm=order), [x.shape[axis] for axis in order], x.exact)


def _reshape(d: Drawing) -> None:
    x = d.pick()
    sizes = [size for size in x.shape if size > 1]
    while len(sizes) > 1 and d.below(2):
        place = d.below(len(sizes) - 1)
        sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
    while d.below(3) == 0:
        sizes.insert(d.below(len(sizes) + 1), 1)
    given = list(sizes)
    if given and d.below(2):
        given[d.below(len(given))] = -1
    d.add(d.node("Reshape", [x.name, d.integers(given)]), sizes, x.exact)


def _reshape_as_computed(d: Drawing) -> None:
    """The first axis stays, by its size in the input; the others become one."""
    x = d.pick()
    if not x.shape:
        return
    first = d.node("Gather", [d.node("Shape", [x.name]), d.constant(np.int64(0))], axis=0)
    whole = d.node("Unsqueeze", [first, d.integers([0])])
    sizes = d.node("Concat", [whole, d.integers([-1])], axis=0)
    d.add(d.node("Reshape", [x.name, sizes]), (x.shape[0], prod(x.shape[1:])), x.exact)


def _slice(d: Drawing) -> None:
    x = d.pick()
    axes = [axis for axis in range(len(x.shape)) if d.below(2)]
    if not axes:
        return
    parts = [slice(None)] * len(x.shape)
    for axis in axes:
        size, step = x.shape[axis], d.one_of((1, 1, 2, 3, -1, -2))
        start, end = d.below(2 * size + 2) - size - 1, d.below(2 * size + 2) - size - 1
        parts[axis] = slice(start, end, step)
    shape = np.empty(x.shape, np.int8)[tuple(parts)].shape
    if 0 in shape:
        return
    columns = [
        d.integers([getattr(parts[axis], field) for axis in axes]) for field in ("start", "stop")
    ]
    steps = d.integers([parts[axis].step for axis in axes])
    negative = d.below(2)
    along = d.integers([axis - len(x.shape) if negative else axis for axis in axes])
    d.add(d.node("Slice", [x.name, *columns, along, steps]), shape, x.exact)


def _concat(d: Drawing) -> None:
    x = d.pick()
    if not x.shape:
        return
    axis = d.below(len(x.shape))
    other = list(x.shape)
    other[axis] = 1 + d.below(4)
    parts = [x.name, d.constant(d.numbers(other))]
    other[axis] += x.shape[axis]
    if d.below(2):
        parts.reverse()
    along = axis - len(other) if d.below(2) else axis
    d.add(d.node("Concat", parts, axis=along), other, x.exact)


def _pad(d: Drawing) -> None:
    x = d.pick()
    mode = d.one_of(("constant", "edge", "reflect"))
    if not x.shape:
        return
    around = []
    for size in x.shape * 2:
        limit = size if mode == "reflect" else 3
        around.append(d.below(min(limit, 3)) if d.below(2) else 0)
    n = len(x.shape)
    shape = [size + around[i] + around[n + i] for i, size in enumerate(x.shape)]
    value = [d.constant(np.float32(0.5))] if mode == "constant" and d.below(2) else []
    y = d.node("Pad", [x.name, d.integers(around), *value], mode=mode)
    d.add(y, shape, x.exact)


def _expand(d: Drawing) -> None:
    x = d.pick()
    shape = [size if size > 1 else 1 + d.below(3) for size in x.shape]
    if d.below(2):
        shape.insert(0, 1 + d.below(3))
    d.add(d.node("Expand", [x.name, d.integers(shape)]), shape, x.exact)


def _tile(d: Drawing) -> None:
    x = d.pick()
    times = [1 + d.below(3) for _ in x.shape]
    shape = [size * n for size, n in zip(x.shape, times, strict=True)]
    d.add(d.node("Tile", [x.name, d.integers(times)]), shape, x.exact)


def _gather(d: Drawing) -> None:
    x = d.pick()
    if not x.shape:
        return
    axis = d.below(len(x.shape))
    size = x.shape[axis]
    shape = [1 + d.below(4) for _ in range(d.below(3))]
    places = d.rng.integers(-size, size, shape)
    y = d.node("Gather", [x.name, d.constant(places.astype(np.int64))], axis=axis)
    d.add(y, [*x.shape[:axis], *shape, *x.shape[axis + 1 :]], x.exact)


def _scatter(d: Drawing) -> None:
    x = d.pick()
    if not x.shape:
        return
    axis = d.below(len(x.shape))
    order = d.rng.permutation(x.shape[axis])[: 1 + d.below(x.shape[axis])]
    shape = list(x.shape)
    shape[axis] = len(order)
    places = np.broadcast_to(
        order.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape
    )
    operands = [x.name, d.constant(places.astype(np.int64)), d.constant(d.numbers(shape))]
    reduction = d.one_of(("none", "add", "max"))
    y = d.node("ScatterElements", operands, axis=axis, reduction=reduction)
    d.add(y, x.shape, x.exact)


def _reduce(d: Drawing) -> None:
    x = d.pick()
    axes = [axis for axis in range(len(x.shape)) if d.below(2)]
    keep = d.below(2)
    extra = [d.integers(axes)] if axes else []
    over = axes or range(len(x.shape))
    kept = [1 if i in over else size for i, size in enumerate(x.shape) if keep or i not in over]
    y = d.node(d.one_of(_REDUCES), [x.name, *extra], keepdims=keep)
    d.add(y, kept, False)


def _arg(d: Drawing) -> None:
    x = d.pick(exact=True)
    if not x.shape:
        return
    axis, keep = d.below(len(x.shape)), d.below(2)
    how = {"axis": axis, "keepdims": keep, "select_last_index": d.below(2)}
    y = d.node(d.one_of(("ArgMax", "ArgMin")), [x.name], **how)
    kept = [1 if i == axis else size for i, size in enumerate(x.shape) if keep or i != axis]
    d.add(d.node("Cast", [y], to=TensorProto.FLOAT), kept, True)


def _softmax(d: Drawing) -> None:
    x = d.pick()
    if x.shape:
        y = d.node(d.one_of(("Softmax", "LogSoftmax")), [x.name], axis=d.below(len(x.shape)))
        d.add(y, x.shape, False)


def _cumsum(d: Drawing) -> None:
    x = d.pick()
    if x.shape:
        axis = d.constant(np.int64(d.below(len(x.shape))))
        how = {"exclusive": d.below(2), "reverse": d.below(2)}
        d.add(d.node("CumSum", [x.name, axis], **how), x.shape, False)


def _layer_norm(d: Drawing) -> None:
    x = d.pick()
    if x.shape:
        axis = d.below(len(x.shape))
        scales = [d.constant(d.numbers(x.shape[axis:])) for _ in range(1 + d.below(2))]
        d.add(d.node("LayerNormalization", [x.name, *scales], axis=axis), x.shape, False)


def _matmul(d: Drawing) -> None:
    x = d.pick()
    if not x.shape:
        return
    n = 1 + d.below(20)
    y = d.node("MatMul", [x.name, d.constant(d.numbers((x.shape[-1], n)))])
    d.add(y, (*x.shape[:-1], n), False)


def _gemm(d: Drawing) -> None:
    x = d.pick(rank=2)
    a_turned, b_turned = d.below(2), d.below(2)
    m, k = x.shape[::-1] if a_turned else x.shape
    n = 1 + d.below(20)
    b = d.constant(d.numbers((n, k) if b_turned else (k, n)))
    bias = [d.constant(d.numbers(d.one_of(((n,), (m, 1), (1, n), ()))))] if d.below(3) else []
    how: dict[str, Any] = {"transA": a_turned, "transB": b_turned}
    if d.below(2):
        how |= {"alpha": 0.5, "beta": 2.0}
    d.add(d.node("Gemm", [x.name, b, *bias], **how), (m, n), False)


def _windows(d: Drawing, x: Value, kernel: list[int]) -> tuple[dict[str, Any], list[int]] | None:
    """Attributes of windows on images, and how many there are; None if there are none."""
    n = len(kernel)
    auto = d.one_of(("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    # ONNX Runtime has no windows between which elements are left out, for these.
    strides = [1 + d.below(k if auto.startswith("SAME") else 3) for k in kernel]
    dilations = [1 + d.below(2) for _ in kernel]
    how: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    reach = [(k - 1) * step + 1 for k, step in zip(kernel, dilations, strict=True)]
    if auto == "NOTSET":
        pads = [d.below(min(k, 3)) for k in kernel * 2]
        how["pads"] = pads
        whole = [size + pads[i] + pads[n + i] for i, size in enumerate(x.shape[2:])]
        counts = [(w - r) // s + 1 for w, r, s in zip(whole, reach, strides, strict=True)]
    else:
        how["auto_pad"] = auto
        if auto != "VALID":
            how["dilations"] = [1] * n
        counts = [
            (size - r) // s + 1 if auto == "VALID" else -(-size // s)
            for size, r, s in zip(x.shape[2:], reach, strides, strict=True)
        ]
    return (how, counts) if min(counts) > 0 else None


def _conv(d: Drawing) -> None:
    x = d.pick(rank=d.one_of((3, 4, 4, 4)))
    kernel = [1 + d.below(min(3, size)) for size in x.shape[2:]]
    windows = _windows(d, x, kernel)
    if windows is None:
        return
    how, counts = windows
    channels = x.shape[1]
    groups = d.one_of([g for g in range(1, channels + 1) if channels % g == 0])
    filters = groups * (1 + d.below(6))
    w = d.constant(d.numbers((filters, channels // groups, *kernel)))
    bias = [d.constant(d.numbers((filters,)))] if d.below(2) else []
    y = d.node("Conv", [x.name, w, *bias], group=groups, **how)
    if d.below(2):
        names = [d.constant(d.numbers((filters,))) for _ in range(3)]
        spread = d.constant(np.abs(d.numbers((filters,))) + np.float32(0.5))
        y = d.node("BatchNormalization", [y, *names, spread])
    d.add(y, (x.shape[0], filters, *counts), False)


def _conv_transpose(d: Drawing) -> None:
    x = d.pick(rank=d.one_of((3, 4)))
    kernel = [1 + d.below(3) for _ in x.shape[2:]]
    strides = [1 + d.below(3) for _ in kernel]
    extra = [d.below(stride) for stride in strides]
    sizes = [
        (size - 1) * s + k + more
        for size, s, k, more in zip(x.shape[2:], strides, kernel, extra, strict=True)
    ]
    filters = 1 + d.below(5)
    w = d.constant(d.numbers((x.shape[1], filters, *kernel)))
    bias = [d.constant(d.numbers((filters,)))] if d.below(2) else []
    how = {"kernel_shape": kernel, "strides": strides, "output_padding": extra}
    d.add(d.node("ConvTranspose", [x.name, w, *bias], **how), (x.shape[0], filters, *sizes), False)


def _pool(d: Drawing) -> None:
    x = d.pick(rank=d.one_of((3, 4, 4)))
    kernel = [1 + d.below(min(3, size)) for size in x.shape[2:]]
    windows = _windows(d, x, kernel)
    if windows is None:
        return
    how, counts = windows
    operator = d.one_of(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if operator.startswith("Global"):
        how, counts = {}, [1] * len(kernel)
    elif operator == "AveragePool":
        if how.pop("dilations") != [1] * len(kernel):
            return
        how["count_include_pad"] = d.below(2)
    d.add(d.node(operator, [x.name], **how), (*x.shape[:2], *counts), x.exact and "Max" in operator)


def _resize(d: Drawing) -> None:
    x = d.pick(rank=4)
    sizes = [1 + d.below(10) for _ in range(2)]
    how: dict[str, Any] = {"mode": d.one_of(("nearest", "linear", "linear", "cubic"))}
    how["coordinate_transformation_mode"] = d.one_of(("half_pixel", "asymmetric", "align_corners"))
    if how["mode"] == "nearest":
        how["nearest_mode"] = "floor"
    shape = [*x.shape[:2], *sizes]
    d.add(d.node("Resize", [x.name, "", "", d.integers(shape)], **how), shape, False)


def _top(d: Drawing) -> None:
    x = d.pick(exact=True)
    if not x.shape:
        return
    axis = d.below(len(x.shape))
    k = 1 + d.below(x.shape[axis])
    names = [d.name(), d.name()]
    count = d.integers([k])
    d.nodes.append(
        helper.make_node("TopK", [x.name, count], names, names[0], axis=axis, largest=d.below(2))
    )
    shape = [k if i == axis else size for i, size in enumerate(x.shape)]
    d.add(names[0], shape, True)


def _split(d: Drawing) -> None:
    x = d.pick()
    axes = [axis for axis, size in enumerate(x.shape) if size > 1]
    if not axes:
        return
    axis = d.one_of(axes)
    first = 1 + d.below(x.shape[axis] - 1)
    names = [d.name(), d.name()]
    sizes = d.integers([first, x.shape[axis] - first])
    d.nodes.append(helper.make_node("Split", [x.name, sizes], names, names[0], axis=axis))
    for name, size in zip(names, (first, x.shape[axis] - first), strict=True):
        d.add(name, [size if i == axis else s for i, s in enumerate(x.shape)], x.exact)


def _space(d: Drawing) -> None:
    x = d.pick(rank=4)
    n, c, h, w = x.shape
    if c % 4 == 0:
        mode = d.one_of(("DCR", "CRD"))
        y = d.node("DepthToSpace", [x.name], blocksize=2, mode=mode)
        d.add(y, (n, c // 4, 2 * h, 2 * w), x.exact)
    elif h % 2 == 0 and w % 2 == 0:
        d.add(d.node("SpaceToDepth", [x.name], blocksize=2), (n, 4 * c, h // 2, w // 2), x.exact)


def _triangle(d: Drawing) -> None:
    x = d.pick()
    if len(x.shape) > 1:
        k = [d.constant(np.int64(d.below(5) - 2))] if d.below(2) else []
        d.add(d.node("Trilu", [x.name, *k], upper=d.below(2)), x.shape, x.exact)


def _quantised(d: Drawing) -> None:
    """A product between quantised values, of which no rounding decides."""
    x = d.pick(exact=True, rank=2)
    n = 1 + d.below(20)
    kind = d.one_of((np.uint8, np.int8))
    scale = d.constant(np.float32(0.25))
    zero = d.constant(kind(128 if kind is np.uint8 else 0))
    w_scale = d.constant(np.full(n, 0.5, np.float32) if d.below(2) else np.float32(0.5))
    w = d.constant(d.rng.integers(-128, 128, (x.shape[1], n)).astype(np.int8))
    q = d.node("QuantizeLinear", [x.name, scale, zero])
    a = d.node("DequantizeLinear", [q, scale, zero])
    b = d.node("DequantizeLinear", [w, w_scale])
    y = d.node("MatMul", [a, b])
    if d.below(2):
        y = d.node("Relu", [y])
    d.add(y, (x.shape[0], n), False)


DRAWS: tuple[Draw, ...] = (
    _unary, _step, _pair, _pair, _where, _clip, _transpose, _reshape, _reshape_as_computed, _slice,
    _concat, _pad, _expand, _tile, _gather, _scatter, _reduce, _arg, _softmax, _cumsum, _layer_norm,
    _matmul, _gemm, _conv, _conv, _conv_transpose, _pool, _resize, _top, _split, _space, _triangle,
    _quantised,
)  # fmt: skip


def draw(seed: int, length: int = 10) -> tuple[Any, dict[str, Array]]:
    """A model of about so many nodes, and its inputs. Its outputs are what nothing reads."""
    d = Drawing(np.random.default_rng(seed))
    d.new()
    while len(d.nodes) < length:
        d.one_of(DRAWS)(d)
    read = {name for node in d.nodes for name in node.input}
    outputs = [value for value in d.values if value.name not in read]
    of_nodes = {name for node in d.nodes for name in node.output}
    ports = [
        helper.make_tensor_value_info(value.name, TensorProto.FLOAT, value.shape)
        for value in outputs
        if value.name in of_nodes
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in d.inputs.items()
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in d.weights.items()]
    graph = helper.make_graph(d.nodes, "drawn", inputs, ports, tensors)
    opsets = [helper.make_opsetid("", VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), d.inputs
