"""Models in ONNX's format: loaded, called, captured, trained; and files that are no good."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.planning import Work  # noqa: E402

import ferrule  # noqa: E402
import ferrule.onnx.graph  # noqa: E402
from ferrule import Tensor, TinyJit, cli, nn, no_grad  # noqa: E402
from ferrule.errors import JitError, ShapeError  # noqa: E402
from ferrule.nn.state import (  # noqa: E402
    functional_call,
    get_parameters,
    get_state_dict,
    load_state_dict,
)
from ferrule.onnx import Model, OnnxError, load  # noqa: E402
from ferrule.onnx.registry import entry_for  # noqa: E402

Array = npt.NDArray[Any]
Shape = Sequence[int | str]


def port(name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def proto(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: dict[str, Array] | None = None,
    version: int = 17,
) -> Any:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def loaded(*args: Any, **kwargs: Any) -> Model:
    return load(proto(*args, **kwargs).SerializeToString())


RNG = np.random.default_rng(0)
WEIGHTS = {
    "fc1.weight": RNG.standard_normal((4, 300)).astype(np.float32),
    "fc1.bias": RNG.standard_normal(300).astype(np.float32),
    "fc2.weight": RNG.standard_normal((300, 2)).astype(np.float32),
}
LAYERS = [
    helper.make_node("MatMul", ["x", "fc1.weight"], ["a"]),
    helper.make_node("Add", ["a", "fc1.bias"], ["b"]),
    helper.make_node("Relu", ["b"], ["c"]),
    helper.make_node("MatMul", ["c", "fc2.weight"], ["y"]),
]


def mlp() -> Any:
    return proto(LAYERS, [port("x", ["n", 4])], [port("y", ["n", 2])], WEIGHTS)


def expected(x: Array) -> Array:
    w = WEIGHTS
    return np.maximum(x @ w["fc1.weight"] + w["fc1.bias"], 0) @ w["fc2.weight"]


def examples(n: int) -> Array:
    return RNG.standard_normal((n, 4)).astype(np.float32)


def close(found: Tensor, wanted: Array) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, 1e-4, 1e-4)


# Calls


def test_inputs_go_by_position_and_by_name() -> None:
    model = load(mlp().SerializeToString())
    x = examples(3)
    close(model(x), expected(x))
    close(model(x=Tensor(x)), expected(x))
    assert model.inputs[0] == ("x", "dtypes.float32", ("n", 4))
    assert [output.name for output in model.outputs] == ["y"]
    assert repr(model) == "Model(x: float32[n, 4] -> y: float32[n, 2])"


def test_a_model_is_a_function_of_its_parameters_and_of_one_row() -> None:
    model = load(mlp().SerializeToString())
    x = Tensor(examples(3))
    state = get_state_dict(model)
    slopes = ferrule.grad(lambda w: functional_call(model, w, x).sum())(state)
    np.testing.assert_allclose(slopes["fc1.bias"].shape, (300,))
    rows = ferrule.vmap(lambda row: model(row.unsqueeze(0)).squeeze(0))(x)
    close(rows, expected(x.numpy()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(), r"the inputs \['x'\] are missing"),
        (lambda model: model(1, 2), "takes 1 inputs"),
        (lambda model: model(z=1), "no input 'z'"),
        (lambda model: model(examples(1), x=examples(1)), "'x' is given twice"),
    ],
)
def test_a_wrong_call_names_the_input(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(load(mlp().SerializeToString()))


@pytest.mark.parametrize("shape", [(3, 5), (4,), (3, 4, 1)])
def test_a_wrong_shape_names_the_input(shape: tuple[int, ...]) -> None:
    with pytest.raises(OnnxError, match="input 'x' has the shape"):
        load(mlp().SerializeToString())(np.zeros(shape, np.float32))


def test_several_outputs_are_a_tuple() -> None:
    nodes = [helper.make_node("Split", ["x"], ["y", "z"], axis=1)]
    model = loaded(nodes, [port("x", [2, 4])], [port("y", [2, 2]), port("z", [2, 2])])
    y, z = model(np.arange(8, dtype=np.float32).reshape(2, 4))
    assert y.tolist() == [[0, 1], [4, 5]]
    assert z.tolist() == [[2, 3], [6, 7]]


# Parameters


def test_parameters_have_the_names_of_the_file() -> None:
    model = load(mlp().SerializeToString())
    state = get_state_dict(model)
    assert {name: tensor.shape for name, tensor in state.items()} == {
        name: array.shape for name, array in WEIGHTS.items()
    }
    assert all(tensor.requires_grad for tensor in state.values())
    load_state_dict(model, {name: array * 2 for name, array in WEIGHTS.items()})
    x = examples(2)
    w = {name: 2 * array for name, array in WEIGHTS.items()}
    hidden = np.maximum(x @ w["fc1.weight"] + w["fc1.bias"], 0)
    close(model(x), hidden @ w["fc2.weight"])


def test_running_means_want_no_gradient() -> None:
    names = ["scale", "shift", "mean", "variance"]
    weights = {name: np.ones(3, np.float32) for name in names}
    nodes = [helper.make_node("BatchNormalization", ["x", *names], ["y"])]
    model = loaded(nodes, [port("x", [2, 3])], [port("y", [2, 3])], weights)
    wanted = {name: tensor.requires_grad for name, tensor in get_state_dict(model).items()}
    assert wanted == {"scale": True, "shift": True, "mean": False, "variance": False}
    assert [name for name, _ in model.named_parameters()] == ["scale", "shift"]
    assert [name for name, _ in model.named_buffers()] == ["mean", "variance"]
    assert list(model.state_dict()) == names


def test_means_of_each_element_are_refused() -> None:
    names = ["scale", "shift", "mean", "variance"]
    weights = {name: np.ones((3,), np.float32) for name in names}
    nodes = [helper.make_node("BatchNormalization", ["x", *names], ["y"], spatial=0)]
    model = loaded(nodes, [port("x", [2, 3])], [port("y", [2, 3])], weights, version=7)
    with pytest.raises(OnnxError, match="means of each element"):
        model(np.zeros((2, 3), np.float32))


def test_a_model_is_trained_and_captured() -> None:
    model = load(mlp().SerializeToString())
    optimizer = nn.optim.SGD(get_parameters(model), lr=1e-3)
    x, wanted = Tensor(examples(16)), Tensor(np.ones((16, 2), np.float32))

    @TinyJit
    def step(x: Tensor, wanted: Tensor) -> Tensor:
        loss = ((model(x) - wanted) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    with Tensor.train():
        losses = [step(x, wanted).item() for _ in range(8)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


def test_gradients_are_those_of_the_formula() -> None:
    model = load(mlp().SerializeToString())
    x = examples(3)
    model(x).sum().backward()
    hidden = np.maximum(x @ WEIGHTS["fc1.weight"] + WEIGHTS["fc1.bias"], 0)
    found = get_state_dict(model)["fc2.weight"].grad
    assert found is not None
    close(found, np.repeat(hidden.sum(0)[:, None], 2, 1))


def test_a_captured_model_takes_any_number_of_rows() -> None:
    model = load(mlp().SerializeToString())
    captured = TinyJit(lambda x: model(x).realize())
    for n in (3, 3, 3, 5, 5, 1, 8, 3):
        x = examples(n)
        close(captured(Tensor(x)), expected(x))


# Sizes that are computed


def test_shapes_are_computed_on_the_host() -> None:
    """The second half of the columns, by the shape of the input, and captured."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["columns"], axis=0),
        helper.make_node("Div", ["columns", "two"], ["half"]),
        helper.make_node("Slice", ["x", "half", "columns", "one"], ["part"]),
        helper.make_node("Mul", ["part", "factor"], ["y"]),
    ]
    weights = {"one": np.int64([1]), "two": np.int64([2]), "factor": np.float32([3.0])}
    model = loaded(nodes, [port("x", ["n", "m"])], [port("y", ["n", "k"])], weights)
    assert set(get_state_dict(model)) == {"factor"}
    captured = TinyJit(lambda x: model(x).realize())
    for columns in (4, 4, 4, 6, 6, 10):
        x = RNG.standard_normal((2, columns)).astype(np.float32)
        close(captured(Tensor(x)), 3 * x[:, columns // 2 :])


def test_what_depends_on_constants_alone_is_computed_once() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("Cos", ["zeros"], ["ones"]),
        helper.make_node("Add", ["x", "ones"], ["y"]),
    ]
    model = loaded(nodes, [port("x", [3])], [port("y", [3])], {"size": np.int64([3])})
    assert [node.operator for node in model.nodes] == ["Add"]
    assert model(np.zeros(3, np.float32)).tolist() == [1, 1, 1]


def test_sizes_are_no_parameters() -> None:
    """Also where they are floats, as the scales of an image are."""
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")]
    weights = {"scales": np.float32([1, 2])}
    model = loaded(nodes, [port("x", [1, 2])], [port("y", [1, 4])], weights)
    assert get_state_dict(model) == {}
    assert model(np.float32([[1, 2]])).tolist() == [[1, 1, 2, 2]]


def test_random_numbers_are_drawn_in_each_call() -> None:
    nodes = [helper.make_node("RandomNormal", [], ["y"], shape=[8])]
    model = loaded(nodes, [], [port("y", [8])])
    assert model().tolist() != model().tolist()


def test_large_values_are_not_made_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask by the shape of an input is no size, though all that it is made of is known."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["mask"]),
        helper.make_node("Add", ["x", "mask"], ["y"]),
    ]
    model = loaded(nodes, [port("x", ["n", "m"])], [port("y", ["n", "m"])])
    monkeypatch.delattr(ferrule.onnx.graph, "_reference")
    assert model(np.ones((2, 3), np.float32)).tolist() == [[1, 1, 1], [1, 1, 1]]


# Loops and branches


def branch(value: float) -> Any:
    nodes = [helper.make_node("Constant", [], ["factor"], value_float=value),
             helper.make_node("Mul", ["x", "factor"], ["r"])]  # fmt: skip
    return helper.make_graph(nodes, "branch", [], [port("r", [2])])


def test_a_branch_is_chosen_by_a_tensor_also_in_a_capture() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch(2.0), else_branch=branch(-1.0)),
    ]
    model = loaded(nodes, [port("x", [2])], [port("y", [2])], {"zero": np.float32(0)})
    captured = TinyJit(lambda x: model(x).realize())
    for x in ([1.0, 2.0], [-1.0, -2.0], [3.0, 1.0], [-3.0, 1.0], [0.5, 0.5]):
        factor = 2 if sum(x) > 0 else -1
        assert captured(Tensor(x)).tolist() == [factor * value for value in x]


def counted_loop(trips: int) -> Model:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["again"]),
            helper.make_node("Mul", ["state", "w"], ["next"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        "body",
        [port("trip", [], TensorProto.INT64), port("going", [], TensorProto.BOOL),
         port("state", [2])],
        [port("again", [], TensorProto.BOOL), port("next", [2]), port("row", [2])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["last", "rows"], body=body)]
    weights = {"trips": np.int64(trips), "w": np.float32([2.0, 3.0])}
    outputs = [port("last", [2]), port("rows", ["n", 2])]
    return loaded(nodes, [port("x", [2])], outputs, weights)


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_loop_carries_values_and_stacks_rows(trips: int) -> None:
    model = counted_loop(trips)
    x = np.float32([1.0, 1.0])
    last, rows = model(x)
    wanted = np.float32([[2.0**i, 3.0**i] for i in range(1, trips + 1)])
    close(rows, wanted)
    close(last, wanted[-1])
    last.sum().backward()
    grad = get_state_dict(model)["w"].grad
    assert grad is not None
    close(grad, np.float32([trips * 2.0 ** (trips - 1), trips * 3.0 ** (trips - 1)]))


def test_a_loop_ends_when_its_condition_does() -> None:
    """Doubles a value until it is above ten."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("Less", ["next", "ten"], ["again"]),
        ],
        "body",
        [port("trip", [], TensorProto.INT64), port("going", [], TensorProto.BOOL),
         port("state", [])],
        [port("again", [], TensorProto.BOOL), port("next", [])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)]
    weights = {"true": np.asarray(True), "ten": np.float32(10)}
    model = loaded(nodes, [port("x", [])], [port("y", [])], weights)
    assert model(np.float32(1)).item() == 16
    assert model(np.float32(3)).item() == 12


def test_a_loop_of_a_known_number_of_trips_may_end_early() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("Less", ["next", "ten"], ["again"]),
        ],
        "body",
        [port("trip", [], TensorProto.INT64), port("going", [], TensorProto.BOOL),
         port("state", [])],
        [port("again", [], TensorProto.BOOL), port("next", [])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    weights = {"trips": np.int64(100), "ten": np.float32(10)}
    model = loaded(nodes, [port("x", [])], [port("y", [])], weights)
    assert model(np.float32(1)).item() == 16


# What depends on data


def finders() -> Any:
    """A model with nodes that read, one of them in a branch, and some that seem to."""
    body = helper.make_graph(
        [
            helper.make_node("NonZero", ["x"], ["found"], name="inside"),
            helper.make_node("Gather", ["found", "zero"], ["r"], axis=0),
        ],
        "body", [], [port("r", ["k"], TensorProto.INT64)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["s"], to=TensorProto.INT64)],
        "other", [], [port("s", ["k"], TensorProto.INT64)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["blank"]),
        helper.make_node("NonZero", ["blank"], ["nothing"], name="of a shape"),
        helper.make_node("Reshape", ["x", "shape"], ["same"], name="to a shape"),
        helper.make_node("NonZero", ["same"], ["places"], name="finder"),
        helper.make_node("Compress", ["x", "mask"], ["picked"], name="by a constant"),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other),
    ]
    outputs = [port(name, ["k", "l"], TensorProto.INT64) for name in ("nothing", "places")]
    outputs += [port("picked", ["k"]), port("y", ["k"], TensorProto.INT64)]
    return proto(
        nodes, [port("x", ["n"])], outputs, {"mask": np.array([True, False]), "zero": np.int64(0)}
    )


def test_nodes_that_read_are_named_at_load() -> None:
    model = load(finders().SerializeToString())
    assert model.reading == ("node 'finder' (NonZero)", "node 'inside' (NonZero)")
    nothing, places, picked, y = model(np.float32([0, 2, 3]))
    assert nothing.shape == (1, 0)
    assert (places.tolist(), picked.tolist(), y.tolist()) == ([[1, 2]], [0], [1, 2])
    captured = TinyJit(lambda x: [value.realize() for value in model(x)])
    captured(Tensor([1.0, 0.0]))
    with pytest.raises(ferrule.errors.JitError) as caught:
        captured(Tensor([1.0, 0.0]))
    assert caught.value.__notes__ == [
        "in node 'finder' (NonZero) of the model",
        "all that read values: node 'finder' (NonZero), node 'inside' (NonZero)",
    ]


def test_a_loop_reads_unless_its_trips_are_known() -> None:
    assert counted_loop(3).reading == ()
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("Less", ["next", "ten"], ["again"]),
        ],
        "body",
        [port("trip", [], TensorProto.INT64), port("going", [], TensorProto.BOOL),
         port("state", [])],
        [port("again", [], TensorProto.BOOL), port("next", [])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["trips", "true", "x"], ["y"], body=body, name="doubling")]
    weights = {"true": np.asarray(True), "ten": np.float32(10), "trips": np.int64(5)}
    model = loaded(nodes, [port("x", [])], [port("y", [])], weights)
    assert model.reading == ("node 'doubling' (Loop)",)


def test_captured_models_read_nothing() -> None:
    assert load(mlp().SerializeToString()).reading == ()


# Sizes within bounds


@no_grad()
def test_sizes_within_bounds_have_one_plan_but_for_none_and_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (0, 60)})
    work = Work(monkeypatch)
    plans = []
    for n in (3, 1, 0, 5, 2, 60, 7, 33, 1, 0, 3):
        x = examples(n)
        close(model(x), expected(x))
        plans.append(work.plans)
    assert plans == [1] + [2] * 10


def attention() -> onnx.ModelProto:
    """A causal layer with positions, written as PyTorch writes it: all sizes come from `Shape`."""
    rng = np.random.default_rng(3)
    weights: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(np.float32) / 3
        for name, shape in {
            "table": (20, 8), "places": (50, 8), "qkv": (8, 24), "first": (1, 1, 8),
        }.items()
    }  # fmt: skip
    integers = {
        "zero": 0, "one": 1, "end": [2**62], "axis1": [1], "start1": [1], "last": [-1],
        "heads": [3, 2, 4], "eight": [8], "none": [-1, -1, -1], "scalar1": 1,
    }  # fmt: skip
    weights |= {name: np.asarray(value, np.int64) for name, value in integers.items()}
    weights |= {"scale": np.float32(0.5), "three": np.asarray([3])}
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "zero"], ["b"]),
        node("Gather", ["sizes", "one"], ["t"]),
        node("Gather", ["table", "x"], ["words"]),
        node("Range", ["zero", "t", "scalar1"], ["steps"]),
        node("Gather", ["places", "steps"], ["at"]),
        node("Add", ["words", "at"], ["sum"]),
        node("Unsqueeze", ["b", "zero0"], ["b1"]),
        node("Concat", ["b1", "last", "last"], ["wide"], axis=0),
        # PyTorch's expand: -1 keeps a size.
        node("ConstantOfShape", ["three"], ["ones"],
             value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
        node("Equal", ["wide", "none"], ["keeps"]),
        node("Where", ["keeps", "ones", "wide"], ["to"]),
        node("Expand", ["first", "to"], ["token"]),
        node("Concat", ["token", "sum"], ["h"], axis=1),
        node("Add", ["t", "scalar1"], ["t1"]),
        node("Unsqueeze", ["t1", "zero0"], ["t2"]),
        node("MatMul", ["h", "qkv"], ["packed"]),
        node("Concat", ["b1", "t2", "heads"], ["split"], axis=0),
        node("Reshape", ["packed", "split"], ["parts"]),
        node("Transpose", ["parts"], ["moved"], perm=[2, 0, 3, 1, 4]),
        node("Split", ["moved"], ["q4", "k4", "v4"], axis=0),
        *[node("Squeeze", [f"{name}4", "zero0"], [name]) for name in "qkv"],
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["dots"]),
        node("Mul", ["dots", "scale"], ["scores"]),
        node("Concat", ["t2", "t2"], ["square"], axis=0),
        node("ConstantOfShape", ["square"], ["lows0"],
             value=helper.make_tensor("v", TensorProto.FLOAT, [1], [-1e9])),
        node("Trilu", ["lows0", "scalar1"], ["lows"], upper=1),
        node("Add", ["scores", "lows"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Mul", ["b", "t1"], ["rows"]),
        node("Unsqueeze", ["rows", "zero0"], ["rows1"]),
        node("Concat", ["rows1", "eight"], ["flat"], axis=0),
        node("Reshape", ["back", "flat"], ["flatter"]),
        node("Concat", ["b1", "last", "eight"], ["whole"], axis=0),
        node("Reshape", ["flatter", "whole"], ["all"]),
        node("Slice", ["all", "start1", "end", "axis1"], ["y"]),
    ]  # fmt: skip
    weights["zero0"] = np.asarray([0])
    sizes = ["batch", "length"]
    return proto(nodes, [port("x", sizes, TensorProto.INT64)], [port("y", [*sizes, 8])], weights)


SIZES = [(3, 5), (2, 7), (6, 2), (4, 30), (9, 12), (2, 2), (12, 40)]


def token_numbers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).integers(0, 20, shape)


@no_grad()
def test_models_that_compute_with_sizes_have_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_ = attention().SerializeToString()
    plain = load(bytes_)
    model = load(bytes_, bounds={"batch": (0, 12), "length": (1, 40)})
    ort = pytest.importorskip("onnxruntime")
    runtime = ort.InferenceSession(bytes_)
    work = Work(monkeypatch)
    for shape in SIZES:
        x = token_numbers(*shape)
        found = model(Tensor(x))
        assert [type(size) for size in found.shape] == [int] * 3
        close(found, runtime.run(None, {"x": x})[0])
    assert (work.plans, model.plain) == (1, "")
    for shape in ((1, 5), (3, 1), (1, 1)):
        x = token_numbers(*shape)
        close(model(Tensor(x)), plain(Tensor(x)).numpy())


def test_sizes_within_bounds_have_one_capture() -> None:
    bytes_ = attention().SerializeToString()
    model = load(bytes_, bounds={"batch": (1, 12), "length": (1, 40)})
    ort = pytest.importorskip("onnxruntime")
    runtime = ort.InferenceSession(bytes_)
    captured = TinyJit(lambda x: (model(x) * 2).realize())
    found = []
    for shape in SIZES:
        x = token_numbers(*shape)
        found.append(captured(Tensor(x)))
        close(found[-1], runtime.run(None, {"x": x})[0] * 2)
    assert len(captured._replays) == 1
    joined = Tensor.cat(*[one.reshape(-1) for one in found])  # sizes are numbers again
    close(joined, np.concatenate([one.numpy().reshape(-1) for one in found]))
    close(captured(Tensor(token_numbers(1, 5))), model(Tensor(token_numbers(1, 5))).numpy() * 2)
    assert len(captured._replays) <= 2


def test_gradients_are_those_without_bounds() -> None:
    bytes_ = attention().SerializeToString()
    gradients = []
    for bounds in ({}, {"batch": (1, 12), "length": (1, 40)}):
        model = load(bytes_, bounds=bounds)
        for shape in SIZES[:3]:
            (model(Tensor(token_numbers(*shape))) ** 2).sum().backward()
        gradients.append([parameter.grad.numpy() for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        close(Tensor(one), other)


def test_a_captured_function_may_not_write_to_an_argument_of_varying_size() -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    writes = False

    def step(x: Tensor) -> Tensor:
        y = model(x).realize()
        if writes:
            x.assign(x * 2).realize()
        return y

    captured = TinyJit(step)
    captured(Tensor(examples(3)))
    writes = True
    given = examples(4)
    x = Tensor(given)
    with pytest.raises(JitError, match=r"writes to an argument of shape \(4, 4\)") as raised:
        captured(x)
    assert any(entry.name == "step" for entry in raised.traceback), "where it writes"
    close(x, given)
    writes = False
    close(captured(x), expected(given))


def test_a_tensor_from_outside_becomes_an_argument_or_is_refused() -> None:
    """Its size is a number, and that of the argument a variable: the error says what to do."""
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    x, labels = examples(4), Tensor(np.ones((4, 1), np.float32))
    closed = TinyJit(lambda y: (model(y) * labels).realize())
    close(closed(Tensor(x)), expected(x))
    with pytest.raises(ShapeError) as raised:
        closed(Tensor(x))
    (note,) = raised.value.__notes__
    assert "does not fit them: make it an argument, too" in note
    given = TinyJit(lambda y, labels: (model(y) * labels).realize())
    for _ in range(3):
        close(given(Tensor(x), labels), expected(x))


def test_a_written_argument_keeps_its_size() -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})

    @TinyJit
    def step(x: Tensor) -> Tensor:
        y = model(x).realize()
        x.assign(x * 2).realize()
        return y

    for n in (3, 4, 3, 4, 5):
        x = examples(n)
        tensor = Tensor(x)
        close(step(tensor), expected(x))
        close(tensor, x * 2)


@pytest.mark.parametrize("records", [False, True])
def test_an_operator_that_takes_no_variables_is_named(records: bool) -> None:
    """Its model has plain sizes: reversing an axis needs a number."""
    weights = {"s": np.asarray([-1]), "e": np.asarray([-(2**62)]), "a": np.asarray([0])}
    nodes = [helper.make_node("Slice", ["x", "s", "e", "a", "s"], ["y"], name="reverse")]
    bytes_ = proto(nodes, [port("x", ["n", 2])], [port("y", ["n", 2])], weights)
    model = load(bytes_.SerializeToString(), bounds={"n": (1, 9)})
    captured = TinyJit(lambda x: model(x).realize())
    with nullcontext() if records else no_grad():
        for n in (4, 3, 5, 3, 5, 3):
            x = examples(n)[:, :2]
            with (
                nullcontext()
                if n < 4 or model.plain
                else pytest.warns(UserWarning, match=r"plain numbers.*node 'reverse' \(Slice\)")
            ):
                found = captured(Tensor(x))
            close(found, x[::-1])
    assert "node 'reverse' (Slice)" in model.plain


def test_arguments_that_have_to_fit_keep_their_sizes() -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    captured = TinyJit(lambda x, scale: (model(x) * scale).realize())
    for n in (3, 4, 5, 3, 4, 5, 3, 4, 5):
        x, scale = examples(n), np.ones((n, 1), np.float32)
        close(captured(Tensor(x), Tensor(scale)), expected(x))
    assert len(captured._replays) == 3


def test_sizes_of_two_arguments_may_differ() -> None:
    """The model's axis has one name, and not one size, in a function that calls it twice."""
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    captured = TinyJit(lambda x, y: (model(x).sum(0) + model(y).sum(0)).realize())
    for n, m in ((3, 3), (4, 4), (5, 5), (3, 4), (4, 6), (5, 3), (6, 6), (3, 4)):
        x, y = examples(n), examples(m)
        close(captured(Tensor(x), Tensor(y)), expected(x).sum(0) + expected(y).sum(0))


def test_an_argument_that_is_a_result_is_itself() -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    captured = TinyJit(lambda x: (model(x).realize(), x))
    for n in (3, 4, 5, 6, 3):
        x = Tensor(examples(n))
        found, same = captured(x)
        close(found, expected(x.numpy()))
        same.assign(same * 0).realize()
        close(x, np.zeros((n, 4)))


def test_gradients_of_arguments_within_bounds() -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    plain = load(mlp().SerializeToString())
    for n in (3, 4, 1):
        x = examples(n)
        found, wanted = [Tensor(x, requires_grad=True) for _ in range(2)]
        (model(found) ** 2).sum().backward()
        (plain(wanted) ** 2).sum().backward()
        close(found.grad, wanted.grad.numpy())


def test_writing_to_a_result_of_a_replay_leaves_the_argument() -> None:
    """A result that only has another shape is in other memory than the argument."""
    weights = {"flat": np.asarray([-1])}
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["y"])]
    bytes_ = proto(nodes, [port("x", ["n", 4])], [port("y", ["m"])], weights).SerializeToString()
    model = load(bytes_, bounds={"n": (1, 8)})
    captured = TinyJit(lambda x: model(x).realize())
    captured(Tensor(examples(3)))
    for n in (4, 5, 6):
        x = examples(n)
        tensor = Tensor(x.copy())
        found = captured(tensor)
        close(found, x.reshape(-1))
        found.assign(found * 0).realize()
        close(tensor, x)


def test_a_function_that_compares_a_size_is_captured_for_each() -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    captured = TinyJit(lambda x: (model(x) * (2.0 if x.shape[0] > 3 else 1.0)).realize())
    for n in (3, 4, 2, 5, 3, 4, 2, 5, 3, 4, 2, 5):
        x = examples(n)
        close(captured(Tensor(x)), expected(x) * (2 if n > 3 else 1))
    assert len(captured._replays) > 1


@pytest.mark.parametrize("n", [0, 9])
def test_a_size_out_of_bounds_names_the_axis(n: int) -> None:
    model = load(mlp().SerializeToString(), bounds={"n": (1, 8)})
    with pytest.raises(OnnxError, match=f"'x' has the shape .{n}, 4.; axis 'n' must be from 1 to"):
        model(examples(n))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"rows": (1, 2)}, r"no axis of an input has the names \['rows'\]; there are \['n'\]"),
        ({"n": (3, 2)}, "the bounds of axis 'n' are 3 and 2"),
        ({"n": (-1, 2)}, "the bounds of axis 'n' are -1 and 2"),
    ],
)
def test_wrong_bounds_are_refused(bounds: Any, message: str) -> None:
    with pytest.raises(OnnxError, match=message):
        load(mlp().SerializeToString(), bounds=bounds)


# Attributes

# Values that no tensor has.
NOT_TAKEN = {("Constant", name) for name in ("sparse_value", "value_string", "value_strings")}


def test_every_attribute_of_the_standard_is_taken() -> None:
    """In all versions of all operators that have a rule."""
    missing = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        entry = None if schema.domain else entry_for(schema.name, schema.since_version)
        if entry is not None and not entry.by_reference:
            names = set(schema.attributes) - entry.attributes - {"consumed_inputs"}
            missing |= {(schema.name, name) for name in names}
    assert missing == NOT_TAKEN


def test_an_attribute_that_is_not_taken_is_refused() -> None:
    nodes = [helper.make_node("Constant", [], ["y"], value_string="text")]
    with pytest.raises(OnnxError, match=r"the attributes \['value_string'\] are not supported"):
        loaded(nodes, [], [port("y", [])])


@pytest.mark.parametrize("saturate", [0, 1])
def test_a_quantisation_saturates_if_asked_for(saturate: int) -> None:
    zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])
    nodes = [helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["q"], saturate=saturate),
             helper.make_node("DequantizeLinear", ["q", "one"], ["y"])]  # fmt: skip
    weights = {"one": np.float32(1)}
    model = proto(nodes, [port("x", [2])], [port("y", [2])], weights, version=19)
    model.graph.initializer.append(zero)
    found = load(model.SerializeToString())(np.float32([2, 1e6])).numpy()
    np.testing.assert_array_equal(found, [2, 448 if saturate else np.nan])


# Files


def test_weights_in_other_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size >= 4 * (4 * 300 + 300 + 600)
    x = examples(2)
    close(load(path)(x), expected(x))
    close(load(str(path))(x), expected(x))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "/etc/passwd"}, "outside of the model's folder"),
        ({"location": "../weights.bin"}, "outside of the model's folder"),
        ({"location": "link.bin"}, "outside of the model's folder"),
        ({"location": "missing.bin"}, "which is not there"),
        ({"location": "model.onnx", "offset": "5", "length": "1" + "0" * 12}, "which has"),
        ({"location": "model.onnx", "offset": "-5", "length": "64"}, "which has"),
        ({"location": "model.onnx", "offset": "x"}, "no number"),
        ({"location": "model.onnx", "length": "32"}, "needs 64 bytes"),
    ],
)
def test_weights_come_from_the_models_folder_alone(
    tmp_path: Path, entries: dict[str, str], message: str
) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    tensor = TensorProto(name="w", data_type=1, dims=[4, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = proto(nodes, [port("x", [2, 4])], [port("y", [2, 4])])
    model.graph.initializer.append(tensor)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(OnnxError, match=message):
        load(folder / "model.onnx")


def test_every_cut_and_many_changes_of_a_file_are_noticed_or_harmless() -> None:
    data = np.frombuffer(mlp().SerializeToString(), np.uint8)
    rng = np.random.default_rng(1)
    refused = 0
    for i in range(150):
        changed = data.copy()
        if i % 2:
            changed[rng.integers(0, 200)] = rng.integers(0, 256)
        else:
            changed = changed[: rng.integers(0, len(data))]
        try:
            load(changed.tobytes())
        except OnnxError:
            refused += 1
    assert refused > 75


@pytest.mark.parametrize("size", [1 << 40, -40])
def test_absurd_sizes_are_refused(size: int) -> None:
    model = mlp()
    model.graph.initializer[0].dims[0] = size
    with pytest.raises(OnnxError, match=r"fc1\.weight"):
        load(model.SerializeToString())


def test_a_circle_is_refused() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    with pytest.raises(OnnxError, match="topologically sorted"):
        loaded(nodes, [port("x", [2])], [port("b", [2])])


def test_all_that_is_not_supported_is_listed() -> None:
    nodes = [
        helper.make_node("StringSplit", ["s"], ["parts", "counts"], name="splitter"),
        helper.make_node("RegexFullMatch", ["s"], ["matches"], pattern="a"),
    ]
    outputs = [port("counts", ["n"], TensorProto.INT64), port("matches", ["n"], TensorProto.BOOL)]
    with pytest.raises(OnnxError) as caught:
        loaded(nodes, [port("s", ["n"], TensorProto.STRING)], outputs, version=20)
    for text in ("'s': tensors of STRING", "'splitter': operator StringSplit", "RegexFullMatch"):
        assert text in str(caught.value)


def test_an_error_in_a_call_names_the_node() -> None:
    nodes = [helper.make_node("Reshape", ["x", "size"], ["y"], name="to_rows")]
    inputs = [port("x", ["n"]), port("size", [2], TensorProto.INT64)]
    model = loaded(nodes, inputs, [port("y", ["a", "b"])])
    with pytest.raises(ShapeError) as caught:
        model(np.zeros(6, np.float32), np.int64([4, 4]))
    assert caught.value.__notes__ == ["in node 'to_rows' (Reshape) of the model"]


# The command line


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "model.onnx"
    file.write_bytes(mlp().SerializeToString())
    return str(file)


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["onnx", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_info_shows_the_parts_of_a_model(capsys: pytest.CaptureFixture[str], path: str) -> None:
    status, out, _ = command(capsys, "info", path, "--size", "n=2")
    assert status == 0
    assert "x: float32[n, 4]" in out
    assert "2,100 in 3 tensors" in out
    assert "2 MatMul" in out


def test_info_names_what_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(finders().SerializeToString())
    status, out, _ = command(capsys, "info", str(tmp_path / "model.onnx"), "--size", "n=3")
    assert status == 0
    assert "reading     node 'finder' (NonZero), node 'inside' (NonZero)\n" in out


def test_run_writes_the_outputs(
    capsys: pytest.CaptureFixture[str], path: str, tmp_path: Path
) -> None:
    x = examples(3)
    np.save(tmp_path / "x.npy", x)
    given = ("--input", f"x={tmp_path / 'x.npy'}")
    assert command(capsys, "run", path, *given, "--output", str(tmp_path / "out"))[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected(x), 1e-4, 1e-4)


def test_check_compares_each_node(
    capsys: pytest.CaptureFixture[str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = command(capsys, "check", path)
    assert (status, out) == (0, "4 values agree with the reference implementation\n")
    monkeypatch.setattr(Tensor, "relu", lambda x: x.exp())
    status, out, _ = command(capsys, "check", path)
    assert status == 1
    assert out.startswith("node 'Relu #2' (Relu): output 'c' differs by")


def test_bench_times_calls(capsys: pytest.CaptureFixture[str], path: str) -> None:
    status, out, _ = command(capsys, "bench", path)
    assert status == 0
    assert "ferrule" in out


@pytest.mark.parametrize("what", ["missing.onnx", __file__])
def test_a_file_that_is_no_model_is_an_error(capsys: pytest.CaptureFixture[str], what: str) -> None:
    status, _, err = command(capsys, "info", what)
    assert status == cli.MISUSED
    assert err.startswith("ferrule: ")
    assert len(err.splitlines()) == 1


def test_the_namespace_finds_the_module() -> None:
    assert ferrule.onnx.load is load
