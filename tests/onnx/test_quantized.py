"""Products of quantised numbers: as single nodes, with the numbers of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from ferrule import Tensor, TinyJit, no_grad  # noqa: E402
from ferrule.nn.state import get_state_dict  # noqa: E402
from ferrule.onnx import Model, load  # noqa: E402

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)


def proto(nodes: Sequence[Any], shapes: Sequence[Any], weights: dict[str, Array]) -> Any:
    x, y = (helper.make_tensor_value_info(name, 1, s) for name, s in zip("xy", shapes, strict=True))
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def operators(model: Model) -> list[str]:
    return [node.operator for node in model.nodes]


# By hand


def quantize(x: str, of: str) -> Any:
    return helper.make_node("QuantizeLinear", [x, f"{of}s", f"{of}z"], [f"{x}_q"])


def dequantize(q: str, of: str, y: str, axis: int = 1) -> Any:
    return helper.make_node("DequantizeLinear", [q, f"{of}s", f"{of}z"], [y], axis=axis)


def numbers(
    activations: str, weights: str, channels: int, zero: int, weight_zero: int = 0
) -> dict[str, Array]:
    """The scales and zero points of inputs, weights and results."""
    scales = RNG.uniform(0.01, 0.02, channels).astype(np.float32)
    return {
        "xs": np.float32(0.02), "xz": np.array(zero, activations),
        "ws": scales if channels > 1 else scales[0],
        "wz": np.full(channels if channels > 1 else (), weight_zero, weights),
        "ys": np.float32(0.11), "yz": np.array(zero // 2, activations),
    }  # fmt: skip


def by_numpy(x: Array, w: Array, bias: Array, values: dict[str, Array], relu: bool) -> Array:
    """A product of matrices in integers, scaled once."""
    info = np.iinfo(values["xz"].dtype)
    q = np.clip(np.round(x / values["xs"]) + values["xz"], info.min, info.max).astype(np.int32)
    total = (q - values["xz"].astype(np.int32)) @ (w.astype(np.int32) - values["wz"]) + bias
    scaled = total.astype(np.float32) * (values["xs"] * values["ws"] / values["ys"])
    if relu:
        scaled = np.maximum(scaled, 0)
    zero = values["yz"].astype(np.float32)
    result = np.clip(np.round(scaled) + zero, info.min, info.max)
    return (result - zero) * values["ys"]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("weights", "weight_zero"), [("int8", 0), ("int8", 3), ("uint8", 130)])
@pytest.mark.parametrize(("activations", "zero"), [("uint8", 0), ("uint8", 120), ("int8", -7)])
@pytest.mark.parametrize("channels", [1, 24])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_a_product_between_quantised_values_is_one_of_integers(
    operator: str, channels: int, activations: str, zero: int, weights: str, weight_zero: int,
    relu: bool,
) -> None:  # fmt: skip
    values = numbers(activations, weights, channels, zero, weight_zero)
    info = np.iinfo(weights)
    w = RNG.integers(info.min, info.max, (40, 24), weights, endpoint=True)
    bias = np.zeros(24, np.int32)
    operands = ["xd", "wd"]
    extra = []
    if operator == "Gemm":
        bias = RNG.integers(-5000, 5000, 24).astype(np.int32)
        values |= {"b": bias, "bs": values["xs"] * values["ws"], "bz": np.zeros_like(bias[:1])[0]}
        values["bz"] = np.zeros(values["bs"].shape, np.int32)
        operands.append("bd")
        extra = [dequantize("b", "b", "bd", 0)]
    nodes = [
        quantize("x", "x"), dequantize("x_q", "x", "xd"), dequantize("w", "w", "wd"), *extra,
        helper.make_node(operator, operands, ["p"]),
        *([helper.make_node("Relu", ["p"], ["r"])] if relu else []),
        quantize("r" if relu else "p", "y"), dequantize("r_q" if relu else "p_q", "y", "y"),
    ]  # fmt: skip
    model = load(proto(nodes, [["n", 40], ["n", 24]], {**values, "w": w}).SerializeToString())
    assert operators(model) == ["QuantizeLinear", "QuantizedMatMul", "DequantizeLinear"]
    assert get_state_dict(model) == {}
    x = RNG.standard_normal((9, 40)).astype(np.float32)
    expected = by_numpy(x, w, bias, values, relu)
    np.testing.assert_array_equal(model(x).numpy(), expected)


def test_a_product_whose_result_is_not_quantised_gives_floats() -> None:
    values = numbers("uint8", "int8", 24, 120)
    w = RNG.integers(-128, 128, (40, 24)).astype(np.int8)
    nodes = [
        quantize("x", "x"), dequantize("x_q", "x", "xd"), dequantize("w", "w", "wd"),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]  # fmt: skip
    model = load(proto(nodes, [["n", 40], ["n", 24]], {**values, "w": w}).SerializeToString())
    assert operators(model) == ["QuantizeLinear", "QuantizedMatMul"]
    x = RNG.standard_normal((9, 40)).astype(np.float32)
    q = np.clip(np.round(x / values["xs"]) + 120, 0, 255).astype(np.int32) - 120
    expected = (q @ w.astype(np.int32)).astype(np.float32) * (values["xs"] * values["ws"])
    np.testing.assert_array_equal(model(x).numpy(), expected)


@pytest.mark.parametrize("near", ["alpha", "beta", "bias scale", "two readers", "scale by column"])
def test_what_is_nearly_a_product_of_integers_is_computed_as_it_stands(near: str) -> None:
    rng = np.random.default_rng(1)
    w = rng.integers(-128, 128, (40, 24)).astype(np.int8)
    b = rng.integers(-5000, 5000, 24).astype(np.int32)
    by_column = near == "scale by column"
    xs = rng.uniform(0.01, 0.03, 40).astype(np.float32) if by_column else np.float32(0.02)
    values: dict[str, Any] = {
        "xs": np.asarray(xs), "xz": np.full(np.shape(xs), 120, np.uint8),
        "ws": np.float32(0.015), "wz": np.int8(0), "ys": np.float32(0.11), "yz": np.uint8(60),
        "bs": np.float32(0.02 * 0.015 * (2 if near == "bias scale" else 1)), "bz": np.int32(0),
    }  # fmt: skip
    factors: dict[str, Any] = {near: 0.5} if near in ("alpha", "beta") else {}
    nodes = [
        quantize("x", "x"), dequantize("x_q", "x", "xd"), dequantize("w", "w", "wd"),
        dequantize("b", "b", "bd", 0),
        helper.make_node("Gemm", ["xd", "wd", "bd"], ["p"], **factors),
        quantize("p", "y"), dequantize("p_q", "y", "pd"),
        helper.make_node("Add", ["pd", "p" if near == "two readers" else "none"], ["y"]),
    ]  # fmt: skip
    weights = {**values, "w": w, "b": b, "none": np.zeros(1, np.float32)}
    made = proto(
        nodes, [["n", 40], ["n", 24]], {name: np.asarray(v) for name, v in weights.items()}
    )
    x = rng.standard_normal((9, 40)).astype(np.float32)
    q = np.clip(np.round(x / xs) + 120, 0, 255) - 120
    product = (q * xs).astype(np.float64) @ (w * np.float64(values["ws"]))
    bias = b * np.float64(values["bs"])
    p = factors.get("alpha", 1) * product + factors.get("beta", 1) * bias
    rounded = (np.clip(np.round(p / values["ys"]) + 60, 0, 255) - 60) * values["ys"]
    expected = rounded + (p if near == "two readers" else 0)
    found = load(made.SerializeToString())(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_bias_in_other_units_is_added_after_the_sums_are_scaled() -> None:
    values = numbers("uint8", "int8", 1, 120)
    w = RNG.integers(-128, 128, (40, 24)).astype(np.int8)
    bias = RNG.standard_normal(24).astype(np.float32)
    nodes = [
        quantize("x", "x"), dequantize("x_q", "x", "xd"), dequantize("w", "w", "wd"),
        helper.make_node("Gemm", ["xd", "wd", "bias"], ["y"]),
    ]  # fmt: skip
    weights = {**values, "w": w, "bias": bias}
    model = load(proto(nodes, [["n", 40], ["n", 24]], weights).SerializeToString())
    assert set(get_state_dict(model)) == {"bias"}
    x = RNG.standard_normal((9, 40)).astype(np.float32)
    q = np.clip(np.round(x / values["xs"]) + 120, 0, 255).astype(np.int32) - 120
    scaled = (q @ w.astype(np.int32)).astype(np.float32) * (values["xs"] * values["ws"])
    np.testing.assert_array_equal(model(x).numpy(), scaled + bias)


def test_scales_of_rows_are_not_those_of_results() -> None:
    """Scales along the axis that is summed over cannot be taken out of the sum."""
    values = numbers("uint8", "int8", 24, 120)
    w = RNG.integers(-128, 128, (24, 24)).astype(np.int8)
    nodes = [
        quantize("x", "x"), dequantize("x_q", "x", "xd"), dequantize("w", "w", "wd", 0),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]  # fmt: skip
    model = load(proto(nodes, [["n", 24], ["n", 24]], {**values, "w": w}).SerializeToString())
    x = RNG.standard_normal((9, 24)).astype(np.float32)
    q = (np.clip(np.round(x / values["xs"]) + 120, 0, 255) - 120) * values["xs"]
    expected = q @ (w * values["ws"][:, None])
    np.testing.assert_allclose(model(x).numpy(), expected, 1e-4, 1e-4)


@pytest.mark.parametrize("equal", [True, False])
def test_bytes_are_moved_between_equal_scales(equal: bool) -> None:
    values = numbers("uint8", "int8", 1, 100)
    values |= {"ys": values["xs"] if equal else np.float32(0.05), "yz": values["xz"]}
    nodes = [
        quantize("x", "x"), dequantize("x_q", "x", "xd"),
        helper.make_node("MaxPool", ["xd"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["p"], ["t"], perm=[0, 2, 3, 1]),
        quantize("t", "y"), dequantize("t_q", "y", "y"),
    ]  # fmt: skip
    shapes = [[1, 3, 8, 8], [1, 4, 4, 3]]
    model = load(proto(nodes, shapes, values).SerializeToString())
    moved = ["QuantizeLinear", "MaxPool", "Transpose", "DequantizeLinear"]
    assert (operators(model) == moved) == equal
    x = RNG.standard_normal(shapes[0]).astype(np.float32)
    q = (np.clip(np.round(x / values["xs"]) + 100, 0, 255) - 100) * values["xs"]
    pooled = q.reshape(1, 3, 4, 2, 4, 2).max((3, 5)).transpose(0, 2, 3, 1)
    expected = (np.clip(np.round(pooled / values["ys"]) + 100, 0, 255) - 100) * values["ys"]
    np.testing.assert_array_equal(model(x).numpy(), expected)


# By ONNX Runtime's tools


def network() -> Any:
    """Convolutions: plain, strided, depthwise, in groups, with a residual; a pool and a Gemm."""
    weights: dict[str, Array] = {}
    nodes: list[Any] = []

    def conv(x: str, y: str, channels: int, filters: int, k: int, **how: Any) -> None:
        terms = channels // how.get("group", 1)
        w = RNG.standard_normal((filters, terms, k, k)) / np.sqrt(terms * k * k)
        weights[f"{y}_w"] = w.astype(np.float32)
        weights[f"{y}_b"] = RNG.standard_normal(filters).astype(np.float32)
        how = {"pads": [k // 2] * 4, **how}
        nodes.append(helper.make_node("Conv", [x, f"{y}_w", f"{y}_b"], [y], **how))

    def node(operator: str, inputs: list[str], y: str, **how: Any) -> None:
        nodes.append(helper.make_node(operator, inputs, [y], **how))

    conv("x", "a", 3, 16, 3, strides=[2, 2])
    node("Relu", ["a"], "ar")
    node("MaxPool", ["ar"], "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    conv("p", "b", 16, 32, 1)
    node("Relu", ["b"], "br")
    conv("br", "c", 32, 32, 5, group=32)
    conv("c", "d", 32, 32, 3, group=2)
    node("Add", ["d", "br"], "e")
    node("Relu", ["e"], "er")
    conv("er", "f", 32, 20, 3, dilations=[2, 2], pads=[2] * 4)
    node("Flatten", ["f"], "h")
    weights |= {"w": RNG.standard_normal((7, 1280)), "bias": np.ones(7)}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    node("Gemm", ["h", "w", "bias"], "y", transB=1)
    return proto(nodes, [[2, 3, 30, 30], [2, 7]], weights)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("activations", "weights"), [("QUInt8", "QInt8"), ("QInt8", "QInt8")])
@pytest.mark.filterwarnings("ignore")
def test_quantised_networks_give_the_numbers_of_onnx_runtime(
    tmp_path: Path, per_channel: bool, activations: str, weights: str
) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    from onnxruntime import quantization as tools

    class Samples(tools.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = 3

        def get_next(self) -> dict[str, Array] | None:
            self.left -= 1
            shape = (2, 3, 30, 30)
            return {"x": RNG.standard_normal(shape).astype("float32")} if self.left >= 0 else None

    plain, path = tmp_path / "plain.onnx", tmp_path / "quantised.onnx"
    onnx.save(network(), plain)
    tools.quantize_static(
        plain, path, Samples(), quant_format=tools.QuantFormat.QDQ, per_channel=per_channel,
        activation_type=tools.QuantType[activations], weight_type=tools.QuantType[weights],
        op_types_to_quantize=["Conv", "Gemm", "MaxPool"],
    )  # fmt: skip
    model = load(path)
    assert operators(model).count("QuantizedConv") == 5
    assert "Conv" not in operators(model)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    captured = TinyJit(lambda x: model(x).realize())
    with no_grad():
        for _ in range(4):
            x = RNG.standard_normal((2, 3, 30, 30)).astype(np.float32)
            expected = session.run(None, {"x": x})[0]
            np.testing.assert_array_equal(captured(Tensor(x)).numpy(), expected)


def test_the_nodes_for_integers_have_their_sums_computed_at_load() -> None:
    w = RNG.integers(-128, 128, (40, 24)).astype(np.int8)
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"])]
    model = proto(nodes, [[9, 40], [9, 24]], {"w": w, "xz": np.uint8(9), "wz": np.int8(0)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    found = load(model.SerializeToString())
    assert operators(found) == ["QuantizedMatMul"]
    assert [name for name, _ in found._graph.constants] == ["w", "xz", "sums of w for y"]
    x = RNG.integers(0, 256, (9, 40)).astype(np.uint8)
    expected = (x.astype(np.int32) - 9) @ w.astype(np.int32)
    np.testing.assert_array_equal(found(x).numpy(), expected)


# Operators between quantised numbers, one by one: the bits of ONNX Runtime

_SCALES = (0.01, 0.02, 0.03, 0.05, 0.06, 0.07, 0.1, 0.15, 0.25, 0.3)
"""Ratios of these make many sums that lie between two integers, in the middle."""


def scale_and_zero(dtype: Any) -> list[Array]:
    limits = np.iinfo(dtype)
    zero = np.array(RNG.integers(limits.min, limits.max + 1), dtype)
    return [np.array(RNG.choice(_SCALES), np.float32), zero]


def whole(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def compared(
    operator: str, inputs: Sequence[Array | None], given: Sequence[int], **attributes: Any
) -> None:
    """One node on ONNX Runtime and here; the `given` inputs are no constants."""
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    names = ["" if array is None else f"i{n}" for n, array in enumerate(inputs)]
    domain = "" if operator in ("QLinearConv", "QLinearMatMul") else "com.microsoft"
    node = helper.make_node(operator, names, ["y"], domain=domain, **attributes)
    arrays = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    fed = {names[n]: arrays.pop(names[n]) for n in given}
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in fed.items()
    ]
    (first, *_) = fed.values()
    result = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(first.dtype), None)
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "graph", ports, [result], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (wanted,) = session.run(None, fed)
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", result.type.tensor_type.elem_type, wanted.shape)
    )
    with no_grad():
        found = load(model.SerializeToString())(**fed)
    assert found.numpy().dtype == wanted.dtype
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        *[((4, 60), (4, 60)), ((3, 5, 37), (5, 1)), ((5, 1), (3, 5, 37)), ((), (70,))],
        *[
            ((70,), (1,)),
            ((1, 9), (6, 1)),
            ((6, 1), (1, 9)),
            ((1,), (1, 1)),
            ((2, 1, 7), (9, 1)),
            ((1, 1), (80, 1)),
        ],
    ],
)
def test_sums_of_quantised_numbers_have_the_bits_of_onnx_runtime(
    dtype: Any, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    for _ in range(5):
        inputs = [whole(dtype, *left), *scale_and_zero(dtype)]
        inputs += [whole(dtype, *right), *scale_and_zero(dtype), *scale_and_zero(dtype)]
        compared("QLinearAdd", inputs, (0, 3))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_means_of_quantised_images_have_the_bits_of_onnx_runtime(
    dtype: Any, channels_last: int
) -> None:
    for _ in range(8):
        shape = (*RNG.integers(1, 4, 1), *RNG.integers(1, 40, 1), *RNG.integers(1, 12, 2))
        inputs = [whole(dtype, *shape), *scale_and_zero(dtype), *scale_and_zero(dtype)]
        compared("QLinearGlobalAveragePool", inputs, (0,), channels_last=channels_last)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_of_random_shapes_have_the_bits_of_onnx_runtime(dtype: Any) -> None:
    for number in range(9):
        m, k, n = (int(size) for size in RNG.integers(1, 70, 3))
        batch = (int(RNG.integers(1, 4)),) * int(RNG.integers(0, 2))
        a, b = whole(dtype, *batch, m, k), whole(np.int8, k, n)
        if number % 2:  # a scale for each column
            scales = RNG.choice(_SCALES, n).astype(np.float32)
            b_scale = [scales, np.zeros(n, np.int8)]
        else:
            b_scale = scale_and_zero(np.int8)
        inputs = [a, *scale_and_zero(dtype), b, *b_scale, *scale_and_zero(dtype)]
        compared("QLinearMatMul", inputs, (0,))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_convolutions_of_random_shapes_have_the_bits_of_onnx_runtime(dtype: Any) -> None:
    for number in range(9):
        group = int(RNG.choice([1, 1, 2, 3]))
        channels, features = (group * int(size) for size in RNG.integers(1, 9, 2))
        kernel = [int(size) for size in RNG.integers(1, 4, 2)]
        x = whole(dtype, int(RNG.integers(1, 3)), channels, *RNG.integers(6, 15, 2))
        w = whole(np.int8, features, channels // group, *kernel)
        w_scale = [RNG.choice(_SCALES, features).astype(np.float32), np.zeros(features, np.int8)]
        if number % 2:
            w_scale = [np.array(RNG.choice(_SCALES), np.float32), np.zeros((), np.int8)]
        bias = RNG.integers(-5000, 5000, features).astype(np.int32) if number % 3 else None
        pads = [int(size) for size in RNG.integers(0, 3, 4)]
        strides = [int(size) for size in RNG.integers(1, 3, 2)]
        inputs = [x, *scale_and_zero(dtype), w, *w_scale, *scale_and_zero(dtype), bias]
        compared("QLinearConv", inputs, (0,), group=group, pads=pads, strides=strides)
