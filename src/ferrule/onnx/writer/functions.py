"""Functions of tensors that have an operator of their own.

The tape notes them while a function is traced: each with its name, its sources and its argument. A
rule that declines gives None, and the function is written as the primitive operations that it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.view import Shape, prod_sint, same
from ferrule.ir.simplify import join_mask
from ferrule.onnx.writer.builder import Builder, Value
from ferrule.onnx.writer.plan import Plan, call_rule

Sources = Sequence[Any]

_FLOATS: Final = (dtypes.float16, dtypes.float32, dtypes.float64)

_OF_ONE: Final = {
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "erf": "Erf",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "abs": "Abs",
    "root": "Sqrt",
}
_IN_FLOAT32: Final = {
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Softplus",
}
"""Operators that runtimes have for float32 alone."""


def _are_floats(*nodes: LazyBuffer | None) -> bool:
    """True if all values are of one dtype that runtimes have these operators for."""
    kinds = {node.dtype for node in nodes if node is not None}
    return len(kinds) == 1 and kinds <= set(_FLOATS)


def _of_one(name: str, operator: str) -> None:
    @call_rule(name)
    def made(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
        if not _are_floats(*sources):
            return None
        if operator in _IN_FLOAT32 and node.dtype is not dtypes.float32:
            return None
        return Plan(sources, lambda builder, x: builder.like(operator, x))


for _name, _operator in _OF_ONE.items():
    _of_one(_name, _operator)


@call_rule("silu")
def _silu(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    if not _are_floats(*sources):
        return None
    return Plan(sources, lambda b, x: b.like("Mul", x, b.like("Sigmoid", x)))


@call_rule("power")
def _power(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    if not _are_floats(*sources):
        return None
    return Plan(sources, lambda builder, x, y: builder.like("Pow", x, y))


@call_rule("with_sign")
def _with_sign(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    if not _are_floats(*sources):
        return None

    def write(builder: Builder, size: Value, sign: Value) -> Value:
        zero = builder.number(0, sign.dtype)
        is_zero = builder.compared("Equal", sign, zero)
        # One over a zero is infinite, with its sign.
        there = builder.like("Where", is_zero, builder.like("Reciprocal", sign), sign)
        positive = builder.like("Abs", size)
        negative = builder.compared("Less", there, zero)
        return builder.like("Where", negative, builder.like("Neg", positive), positive)

    return Plan(sources, write)


@call_rule("mish")
def _mish(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    if node.dtype is not dtypes.float32:
        return None
    return Plan(sources, lambda builder, x: builder.like("Mish", x))


def _rank(node: LazyBuffer) -> int:
    return len(node.shape)


# *** along axes ***


def _softmax(name: str, operator: str) -> None:
    @call_rule(name)
    def made(node: LazyBuffer, sources: Sources, axes: Any) -> Plan | None:
        if len(axes) != 1 or not _are_floats(*sources):
            return None
        return Plan(sources, lambda builder, x: builder.like(operator, x, axis=axes[0]))


_softmax("softmax", "Softmax")
_softmax("log_softmax", "LogSoftmax")


def _gelus(name: str, approximate: str) -> None:
    @call_rule(name)
    def made(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
        if not _are_floats(*sources):
            return None

        def write(builder: Builder, x: Value) -> Value:
            return builder.like("Gelu", x, approximate=approximate)

        return Plan(sources, write)


_gelus("gelu", "none")
_gelus("gelu_tanh", "tanh")


@call_rule("det")
def _det(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    if node.dtype is not dtypes.float32:
        return None
    return Plan(sources, lambda builder, x: builder.add("Det", [x], x.dtype, node.shape))


@call_rule("logsumexp")
def _logsumexp(node: LazyBuffer, sources: Sources, axes: Any) -> Plan | None:
    if not _are_floats(*sources):
        return None

    def write(builder: Builder, x: Value) -> Value:
        inputs = [x, builder.integers(axes)]
        return builder.add("ReduceLogSumExp", inputs, x.dtype, node.shape, keepdims=1)

    return Plan(sources, write)


@call_rule("cumsum")
def _cumsum(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    if not _are_floats(*sources):
        return None
    axis = _rank(node) - 1

    def write(builder: Builder, x: Value) -> Value:
        return builder.add("CumSum", [x, builder.number(axis, dtypes.int64)], x.dtype, x.shape)

    return Plan(sources, write)


# *** normalisation ***


def _full(builder: Builder, number: float, like: Value, shape: Shape) -> Value:
    """A vector of one number; all its sizes are known."""
    return builder.constant(np.full(shape, number, like.dtype.np))


def _last_axes(node: LazyBuffer, axes: Sequence[int]) -> int | None:
    """The first of the axes, if they are the last ones, of known sizes."""
    rank = _rank(node)
    known = all([isinstance(node.shape[axis], int) for axis in axes])
    return axes[0] if known and list(axes) == list(range(rank - len(axes), rank)) else None


@call_rule("layernorm")
def _layernorm(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    axes, eps = arg
    return (
        _layer_norm(node, [*sources, None, None], (len(axes), eps))
        if _last_axes(node, axes) is not None
        else None
    )


@call_rule("layer_norm")
def _layer_norm(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    """The last axes normalised, times a weight, plus a bias."""
    count, eps = arg
    x, *others = sources
    first = _last_axes(node, range(_rank(node) - count, _rank(node)))
    if first is None or not _are_floats(*sources):
        return None
    shape = node.shape[first:]
    given = [other for other in others if other is not None]

    def write(builder: Builder, x: Value, *values: Value) -> Value:
        rest = iter(values)
        weight, bias = [None if other is None else next(rest) for other in others]
        weight = _full(builder, 1, x, shape) if weight is None else builder.reshape(weight, shape)
        bias = None if bias is None else builder.reshape(bias, shape)
        inputs = [x, weight, bias]
        attributes = {"axis": first, "epsilon": eps}
        return builder.add("LayerNormalization", inputs, x.dtype, x.shape, **attributes)

    return Plan([x, *given], write)


@call_rule("batch_norm")
def _batch_norm(node: LazyBuffer, sources: Sources, eps: Any) -> Plan | None:
    """By running statistics, as in evaluation."""
    x, *others = sources
    if not _are_floats(*sources) or _rank(node) < 2 or not isinstance(node.shape[1], int):
        return None
    given = [other for other in others if other is not None]
    shape = (node.shape[1],)

    def write(builder: Builder, x: Value, *values: Value) -> Value:
        rest = iter(values)
        mean, variance, weight, bias = [None if o is None else next(rest) for o in others]
        scale = _full(builder, 1, x, shape) if weight is None else builder.reshape(weight, shape)
        shift = _full(builder, 0, x, shape) if bias is None else builder.reshape(bias, shape)
        statistics = [builder.reshape(part, shape) for part in (mean, variance) if part]
        inputs = [x, scale, shift, *statistics]
        return builder.add("BatchNormalization", inputs, x.dtype, x.shape, epsilon=eps)

    return Plan([x, *given], write)


# *** convolutions ***


def _spatial(arg: Any) -> dict[str, Any]:
    sizes, strides, pads, dilations = arg
    befores, afters = zip(*pads, strict=True)
    return {
        "kernel_shape": list(sizes),
        "strides": list(strides),
        "pads": [*befores, *afters],
        "dilations": list(dilations),
    }


def _convolution(name: str, operator: str) -> None:
    @call_rule(name)
    def made(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
        if not _are_floats(*sources, node):
            return None
        spatial, groups, attributes = arg
        given = [source for source in sources if source is not None]

        def write(builder: Builder, *values: Value) -> Value:
            options = {**_spatial(spatial), "group": groups, **attributes}
            return builder.add(operator, values, node.dtype, node.shape, **options)

        return Plan(given, write)


_convolution("conv", "Conv")
_convolution("conv_transpose", "ConvTranspose")


# *** pooling ***


@call_rule("max_pool", "avg_pool")
def _pool(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    """Pooling of (batch, channels, …)."""
    spatial, operator, attributes = arg
    count = len(spatial[0])
    (x,) = sources
    if operator == "MaxPool":
        x, spatial = _without_borders(x, spatial)
    if not _are_floats(x, node) or _rank(x) < count:
        return None
    lead = x.shape[: _rank(x) - count]
    inner = x.shape[_rank(x) - count :]

    def write(builder: Builder, value: Value) -> Value:
        known: Shape = lead if len(lead) == 2 else (1, prod_sint(lead))
        images = builder.reshape(value, (*known, *inner))
        shape = (*known, *node.shape[_rank(node) - count :])
        options = {**_spatial(spatial), **attributes}
        found = builder.add(operator, [images], node.dtype, shape, **options)
        return builder.reshape(found, node.shape)

    return Plan([x], write)


def _without_borders(x: LazyBuffer, spatial: Any) -> tuple[LazyBuffer, Any]:
    """A value before -inf was put around it, and windows that reach over its borders instead."""
    sizes, strides, pads, dilations = spatial
    if join_mask(x) is None or x.srcs[2].base_const() != dtypes.min(x.dtype):
        return x, spatial
    count = len(sizes)
    lead, borders = x.srcs[1].arg[:-count], x.srcs[1].arg[-count:]
    known = all([isinstance(n, int) for pair in borders for n in pair])
    if not known or any([pair != (0, 0) for pair in lead]):
        return x, spatial
    both = [(a + c, b + d) for (a, b), (c, d) in zip(borders, pads, strict=True)]
    # A window of padding alone is an error in ONNX.
    if any([max(pair) >= size for pair, size in zip(both, sizes, strict=True)]):
        return x, spatial
    return x.srcs[1].srcs[0], (sizes, strides, both, dilations)


# *** order ***

_ORDERED: Final = (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)
"""The dtypes of which ONNX Runtime finds the largest elements."""


@call_rule("order")
def _order(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    """Positions of elements along the last axis, in their order: ONNX's largest or smallest."""
    start, stop, descending = arg
    (x,) = sources
    axis = _rank(x) - 1
    if x.dtype not in _ORDERED:
        return None

    def write(builder: Builder, value: Value) -> Value:
        shape = (*value.shape[:-1], stop)
        options = {"axis": axis, "largest": int(descending), "sorted": 1}
        inputs = [value, builder.size(stop)]
        outputs = [(value.dtype, shape), (dtypes.int64, shape)]
        _, places = builder.several("TopK", inputs, outputs, **options)
        if not same(start, 0):
            inputs = [places, *map(builder.size, (start, stop, axis))]
            places = builder.add("Slice", inputs, dtypes.int64, node.shape)
        return builder.cast(places._replace(shape=node.shape), node.dtype)

    return Plan(sources, write)


@call_rule("median")
def _median(node: LazyBuffer, sources: Sources, ignores_nan: bool) -> Plan | None:
    """The position of the lower of the middle elements along the last axis, or of the first NaN."""
    (x,) = sources
    axis, size = _rank(x) - 1, x.shape[-1]
    if x.dtype not in _ORDERED or not isinstance(size, int):
        return None
    if ignores_nan and dtypes.is_float(x.dtype):
        return None  # which rank it has depends on the elements

    def write(builder: Builder, value: Value) -> Value:
        middle = (size - 1) // 2
        shape = (*value.shape[:-1], middle + 1)
        outputs = [(value.dtype, shape), (dtypes.int64, shape)]
        inputs = [value, builder.size(middle + 1)]
        _, places = builder.several("TopK", inputs, outputs, axis=axis, largest=0, sorted=1)
        inputs = [places, *map(builder.size, (middle, middle + 1, axis))]
        place = builder.add("Slice", inputs, dtypes.int64, node.shape)
        if dtypes.is_float(x.dtype):
            is_nan = builder.add("IsNaN", [value], dtypes.bool, value.shape)
            ones = builder.cast(is_nan, dtypes.int32)
            first = builder.add("ArgMax", [ones], dtypes.int64, node.shape, axis=axis)
            there = builder.add(
                "ReduceMax", [ones, builder.integers([axis])], dtypes.int32, node.shape
            )
            has_nan = builder.cast(there, dtypes.bool)
            place = builder.add("Where", [has_nan, first, place], dtypes.int64, node.shape)
        return builder.cast(place, node.dtype)

    return Plan(sources, write)


# *** recurrent layers ***

_ORDERS: Final = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}
"""Which of a layer's gates comes at each place in ONNX."""


@call_rule("recurrent")
def _recurrent(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    """One layer in one direction: its outputs, and its last states."""
    (kind, activation), reverse, number = arg
    x, weight, matrix, bias_given, bias_kept, *states = sources
    if not all([source.dtype is dtypes.float32 for source in sources if source is not None]):
        return None
    biases = [bias for bias in (bias_given, bias_kept) if bias is not None]
    steps, rows, _ = x.shape
    hidden = matrix.shape[-1]
    if len(biases) == 1 or not isinstance(hidden, int):
        return None
    order = _ORDERS[kind]

    def write(builder: Builder, x: Value, *values: Value) -> Value:
        weights = [_gates(builder, value, order, hidden) for value in values[: 2 + len(biases)]]
        inputs: list[Value | None] = [x, *weights[:2], None, None]
        if biases:
            shape = (1, 2 * len(order) * hidden)
            inputs[3] = builder.add("Concat", weights[2:], dtypes.float32, shape, axis=1)
        first = values[2 + len(biases) :]
        inputs += [builder.reshape(state, (1, rows, hidden)) for state in first]
        options: dict[str, Any] = {"hidden_size": hidden, "activations": _ACTIVATIONS[kind]}
        if kind == "RNN":
            options["activations"] = [activation.capitalize()]
        if kind == "GRU":
            options["linear_before_reset"] = 1
        if reverse:
            options["direction"] = "reverse"
        outputs: list[tuple[DType, Shape]] = [(dtypes.float32, (steps, 1, rows, hidden))]
        outputs += [(dtypes.float32, (1, rows, hidden)) for _ in first]
        found = builder.several(kind, inputs, outputs, **options)
        return builder.reshape(found[number], node.shape)

    return Plan([x, weight, matrix, *biases, *states], write)


_ACTIVATIONS: Final = {
    "RNN": ["Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
}


def _gates(builder: Builder, value: Value, order: Sequence[int], hidden: int) -> Value:
    """The rows of a weight or a bias in ONNX's order of gates, for one direction."""
    shape = (hidden, *value.shape[1:])
    if order != sorted(order):
        sizes = builder.integers([hidden] * len(order))
        outputs = [(value.dtype, shape)] * len(order)
        parts = builder.several("Split", [value, sizes], outputs, axis=0)
        chosen = [parts[place] for place in order]
        value = builder.add("Concat", chosen, value.dtype, value.shape, axis=0)
    return builder.reshape(value, (1, *value.shape))


# *** images ***


@call_rule("interpolate")
def _interpolate(node: LazyBuffer, sources: Sources, arg: Any) -> Plan | None:
    """The last axes in other sizes: the distance between places is the ratio of the sizes."""
    mode, align = arg
    if node.dtype is not dtypes.float32 or not all([isinstance(n, int) for n in node.shape[2:]]):
        return None

    def write(builder: Builder, value: Value) -> Value:
        options: dict[str, Any] = {"coordinate_transformation_mode": "half_pixel"}
        if mode == "nearest":
            options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        elif mode == "nearest-exact":
            options["nearest_mode"] = "round_prefer_ceil"
        elif align:
            options = {"coordinate_transformation_mode": "align_corners"}
        if mode == "bicubic":
            options["cubic_coeff_a"] = -0.75
        options["mode"] = _RESIZE_MODES.get(mode, "linear")
        inputs = [value, None, None, builder.sizes(node.shape)]
        return builder.add("Resize", inputs, value.dtype, node.shape, **options)

    return Plan(sources, write)


_RESIZE_MODES: Final = {"nearest": "nearest", "nearest-exact": "nearest", "bicubic": "cubic"}


def _extreme(name: str, operator: str) -> None:
    @call_rule(name)
    def made(node: LazyBuffer, sources: Sources, axis: Any) -> Plan | None:
        """The first position of the extreme element along an axis."""
        if not _are_floats(*sources):
            return None

        def write(builder: Builder, x: Value) -> Value:
            shape = (*x.shape[:axis], *x.shape[axis + 1 :])
            found = builder.add(operator, [x], dtypes.int64, shape, axis=axis, keepdims=0)
            return builder.reshape(builder.cast(found, node.dtype), node.shape)

        return Plan(sources, write)


_extreme("argmax", "ArgMax")
_extreme("argmin", "ArgMin")
