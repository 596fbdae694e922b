"""Functions of tensors as models in ONNX's format: the same numbers, the right operators, names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from tests.property.test_tensor_programs import Pair, Program  # noqa: E402

import ferrule  # noqa: E402
import ferrule.onnx  # noqa: E402
from ferrule import Tensor, TinyJit, Variable, dtypes, nn  # noqa: E402
from ferrule.autograd.iota import table  # noqa: E402
from ferrule.ir.lazyop import FunctionOps, LoadOps  # noqa: E402
from ferrule.ir.op_table import ELEMENTWISE, MOVEMENTS, REDUCTIONS  # noqa: E402
from ferrule.onnx import Exported, OnnxError, export, load  # noqa: E402
from ferrule.onnx.writer.plan import RULES  # noqa: E402

Array = npt.NDArray[Any]

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


def integers(high: int, *shape: int) -> Tensor:
    return Tensor(RNG.integers(0, high, shape).astype(np.int32))


def run(exported: Exported, *arrays: Array) -> list[Array]:
    """What ONNX Runtime gives for other inputs than the example."""
    session = onnxruntime.InferenceSession(exported.proto.SerializeToString())
    names = [port.name for port in session.get_inputs()]
    found: list[Array] = session.run(None, dict(zip(names, arrays, strict=True)))
    return found


def both_ways(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Exported:
    """The export, checked on ONNX Runtime, and read again by ferrule itself."""
    exported = export(function, None, *args, **kwargs)
    assert exported.checked_by.startswith("ONNX Runtime")
    assert exported.difference < 1e-5
    inputs = [arg.numpy() for arg in args if isinstance(arg, Tensor)]
    if len(inputs) == len(exported.inputs):
        again = load(exported.proto.SerializeToString())(*inputs)
        results = again if isinstance(again, tuple) else (again,)
        for mine, other in zip(results, run(exported, *inputs), strict=True):
            np.testing.assert_allclose(mine.numpy(), other, rtol=1e-4, atol=1e-5)
    return exported


# -- models --------------------------------------------------------------------------------------


class Residual:
    """A block of a residual network."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = nn.Conv2d(channels, out, 1, stride=stride)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + self.down(x)).relu()


class Attention:
    """Causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = [part.reshape(*shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
        y = q.scaled_dot_product_attention(k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block:
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)).gelu())


class GPT:
    """A small language model with tied weights."""

    def __init__(self) -> None:
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.blocks = [Block(32, 4) for _ in range(2)]
        self.norm = nn.LayerNorm(32)

    def __call__(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(Tensor.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


class ViT:
    """A vision transformer."""

    def __init__(self) -> None:
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.first = floats(1, 1, 32)
        self.places = floats(1, 17, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64)
        self.head = nn.Linear(32, 10)

    def __call__(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = self.first.expand(x.shape[0], 1, 32).cat(x, dim=1) + self.places
        return self.head(self.layer(x)[:, 0])


class UNet:
    """Down, up, and what was there before beside it."""

    def __init__(self) -> None:
        self.down1, self.down2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 1, 3, padding=1)

    def __call__(self, x: Tensor) -> Tensor:
        high = self.down1(x).relu()
        low = self.norm(self.down2(high.max_pool2d(2))).silu()
        wide = self.up(low) + low.mean(1, keepdim=True).interpolate(scale_factor=2, mode="bilinear")
        return self.last(high.cat(wide, dim=1)).sigmoid()


def digits() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(144, 10),
    )


def test_mlp() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    exported = both_ways(model, floats(3, 8))
    assert exported.operators == {"Transpose": 2, "MatMul": 2, "Add": 2, "Tanh": 1}
    names = {tensor.name for tensor in exported.proto.graph.initializer}
    assert names == set(nn.state.get_state_dict(model))


def test_digits_network_is_its_layers() -> None:
    exported = both_ways(digits(), floats(2, 1, 16, 16))
    wanted = {
        **{"Conv": 2, "BatchNormalization": 1, "Relu": 1, "MaxPool": 1, "Gelu": 1},
        **{"AveragePool": 1, "Reshape": 1, "Transpose": 1, "MatMul": 1, "Add": 1},
    }
    assert exported.operators == wanted


def test_residual_network() -> None:
    blocks = nn.Sequential(Residual(3, 8, 2), Residual(8, 8, 1))
    exported = both_ways(lambda x: blocks(x).mean((2, 3)), floats(2, 3, 16, 16))
    assert exported.operators["Conv"] == 6
    assert exported.operators["BatchNormalization"] == 4
    assert "MatMul" not in exported.operators


def test_gpt_for_any_batch_and_length() -> None:
    model = GPT()
    sizes = {"ids": {0: "batch", 1: "length"}}
    exported = both_ways(model, integers(50, 2, 9), dynamic=sizes)
    for operator in ("LayerNormalization", "Softmax", "Gelu", "Gather"):
        assert exported.operators[operator] > 0
    assert exported.inputs[0].shape == ("batch", "length")
    ids = integers(50, 3, 17)
    (found,) = run(exported, ids.numpy())
    np.testing.assert_allclose(found, model(ids).numpy(), rtol=1e-4, atol=1e-5)


def test_vision_transformer() -> None:
    assert both_ways(ViT(), floats(2, 3, 16, 16)).operators["LayerNormalization"] == 2


def test_unet() -> None:
    exported = both_ways(UNet(), floats(1, 1, 16, 16))
    assert exported.operators["ConvTranspose"] == 1
    assert exported.operators["Resize"] == 1


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_are_one_operator_for_each_direction(kind: str, bias: bool) -> None:
    layer = getattr(nn, kind)(5, 7, num_layers=2, bidirectional=True, bias=bias)
    assert both_ways(layer, floats(6, 2, 5)).operators[kind] == 4


def test_projected_lstm_is_a_scan() -> None:
    assert both_ways(nn.LSTM(5, 7, proj_size=3), floats(6, 2, 5)).operators["Scan"] == 1


def test_a_model_of_the_format_again() -> None:
    first = export(digits(), None, floats(2, 1, 16, 16))
    model = load(first.proto.SerializeToString())
    again = both_ways(model, floats(2, 1, 16, 16))
    assert again.operators["Conv"] == 2


# -- state ---------------------------------------------------------------------------------------


def test_running_statistics_are_inputs_and_outputs() -> None:
    layer = nn.BatchNorm1d(4)
    before = layer.running_mean.numpy()

    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            return layer(x)

    x = floats(6, 4)
    exported = both_ways(step, x)
    assert ("running_mean", "running_mean_out") in exported.states
    np.testing.assert_array_equal(layer.running_mean.numpy(), before)
    inputs = [x.numpy(), *[layer.state_dict()[name].numpy() for name, _ in exported.states]]
    found = dict(zip([p.name for p in exported.outputs], run(exported, *inputs), strict=True))
    step(x)
    np.testing.assert_allclose(
        found["running_mean_out"], layer.running_mean.numpy(), rtol=1e-5, atol=1e-6
    )


class Step:
    """One step of generation, with a cache of keys."""

    def __init__(self) -> None:
        self.keys = Tensor.zeros(1, 16, 8).contiguous().realize()
        self.linear = nn.Linear(8, 8)

    def __call__(self, x: Tensor, place: Any) -> Tensor:
        self.keys[:, place : place + 1].assign(self.linear(x).reshape(1, 1, 8))
        return self.keys[:, : place + 1].sum(1)


def test_a_step_of_generation_with_its_cache() -> None:
    step = Step()
    place = Variable("place", 0, 15)
    x = floats(1, 8)
    exported = both_ways(step, x, place.bind(3))
    assert exported.states == (("keys", "keys_out"),)
    keys = step.keys.numpy()
    for number in range(3):
        inputs = {"x": x.numpy(), "place": np.array(number), "keys": keys}
        total, keys = run(exported, *[inputs[port.name] for port in exported.inputs])
        np.testing.assert_allclose(total, step(x, place.bind(number)).numpy(), rtol=1e-5, atol=1e-6)


def test_a_whole_training_step() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=1e-2)

    def train(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(x).cross_entropy(y)
            loss.backward()
            optimizer.step()
            return loss.realize()

    x, y = floats(5, 1, 8, 8), integers(3, 5)
    weight = model[3].weight.numpy()
    exported = both_ways(train, x, y)
    assert ("model.3.weight", "model.3.weight_out") in exported.states
    np.testing.assert_array_equal(model[3].weight.numpy(), weight)
    assert model[3].weight.grad is None


def test_random_numbers_are_a_state() -> None:
    Tensor.manual_seed(3)

    def noisy(x: Tensor) -> Tensor:
        with Tensor.train():
            return x.dropout(0.5)

    x = floats(64)
    exported = both_ways(noisy, x)
    assert exported.states == (("random_state", "random_state_out"),)
    first = noisy(x).numpy()
    Tensor.manual_seed(3)
    np.testing.assert_array_equal(first, noisy(x).numpy())


class Kept:
    """Leaves another tensor in an attribute."""

    def __init__(self) -> None:
        self.total = Tensor.zeros(4)

    def __call__(self, x: Tensor) -> Tensor:
        self.total = self.total * 0.5 + x
        return self.total.sum()


class Growing(Kept):
    """Leaves a larger tensor there in each call."""

    def __call__(self, x: Tensor) -> Tensor:
        self.total = self.total.cat(x)
        return self.total.sum()


def test_attributes_that_get_another_tensor() -> None:
    model = Kept()
    before = model.total
    assert both_ways(model, floats(4)).states == (("total", "total_out"),)
    assert model.total is before
    growing = Growing()
    before = growing.total
    with pytest.raises(OnnxError, match="another value in the place of the tensor 'total'"):
        export(growing, None, floats(4))
    assert growing.total is before


class Shared:
    """Leaves another tensor in two attributes that share one."""

    def __init__(self) -> None:
        self.first = self.second = Tensor.zeros(4)

    def __call__(self, x: Tensor) -> Tensor:
        self.first = self.second = self.first + x
        return self.second.sum()


def test_a_tensor_in_two_attributes_is_one_state() -> None:
    assert len(both_ways(Shared(), floats(4)).states) == 1


# -- sizes that vary -----------------------------------------------------------------------------


VARYING: dict[str, Callable[[Tensor], Any]] = {
    "mean": lambda x: x.mean(0) + x.std(0),
    "reshape": lambda x: x.reshape(-1).softmax(0).reshape(1, -1) @ x.reshape(-1, 1),
    "outer": lambda x: x.reshape(-1, 1) * x.reshape(1, -1),
    "join": lambda x: x.cat(x * 2, dim=0)[1:],
    "pad": lambda x: x.pad(((1, 2), (0, 0))).sum(1),
    "arange": lambda x: x + Tensor.arange(x.shape[0]).reshape(-1, 1),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(0),
    "argmax": lambda x: x.argmax(0),
    "tril": lambda x: (x @ x.T).tril(),
    "pool": lambda x: x.T.reshape(1, 3, -1).max_pool1d(2),
    "conv": lambda x: x.T.reshape(1, 3, -1).conv1d(Tensor.ones(2, 3, 3), padding=1),
    "scan": lambda x: ferrule.scan(lambda c, row: (c + row, c * row), Tensor.zeros(3), x),
    "flip": lambda x: x.flip(0),
    "floor": lambda x: x * ((x.shape[0] - 9) // 2),
    "empty": lambda x: x[:, :0].reshape(0, x.shape[0]),
}


@pytest.mark.parametrize("name", VARYING)
def test_sizes_that_vary(name: str) -> None:
    function = VARYING[name]
    exported = both_ways(function, floats(6, 3), dynamic={"x": {0: "n"}})
    for size in (1, 2, 11):
        if size < 2 and name in ("pool", "mean"):
            continue
        x = floats(size, 3)
        expected = [tensor.numpy() for tensor in ferrule.base.containers.leaves(function(x))]
        for found, wanted in zip(run(exported, x.numpy()), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_bound_variable_as_a_size() -> None:
    n = Variable("n", 1, 10)
    whole = floats(10, 3)
    exported = export(lambda x: x.softmax(0), None, whole[: n.bind(4)])
    assert exported.inputs[0].shape == ("n", 3)
    x = floats(7, 3)
    (found,) = run(exported, x.numpy())
    np.testing.assert_allclose(found, x.softmax(0).numpy(), rtol=1e-5, atol=1e-6)


def test_branches_on_sizes_are_conditions() -> None:
    exported = export(lambda x: x * 2 if x.shape[0] > 2 else x, None, floats(3), dynamic=SIZE_OF_X)
    assert exported.conditions == ("n - 3 >= 0",)
    assert "only where n - 3 >= 0" in repr(exported)


SIZE_OF_X = {"x": {0: "n"}}


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"z": {0: "n"}}, "no arguments"),
        ({"x": {0: "n"}, "y": {0: "n"}}, "have the sizes"),
        ({"x": {0: "n", -1: "m"}}, "varies already"),
        *[(wrong, "it needs its axes") for wrong in ({"x": "n"}, {"x": ["n"]}, ["x"], "x")],
        ({"x": {0: 3}}, "it needs its axes"),
    ],
)
def test_sizes_that_cannot_be(dynamic: Any, message: str) -> None:
    with pytest.raises(OnnxError, match=message):
        export(lambda x, y: x.sum() + y.sum(), None, floats(3), floats(4), dynamic=dynamic)


@pytest.mark.parametrize(
    ("low", "high", "size", "other"),
    [(1, 8, 4, 3), (4, 8, 4, 5), (1, 8, 8, 7), (1, 1, 1, 1), (0, 8, 1, 0), (0, 8, 0, 0)],
)
def test_the_second_check_is_within_bounds(low: int, high: int, size: int, other: int) -> None:
    seen: set[int] = set()

    def function(x: Tensor) -> Tensor:
        if isinstance(x.shape[0], int):
            seen.add(x.shape[0])
        return x * 2

    sizes = {"x": {0: Variable("n", low, high)}}
    export(function, None, Tensor(np.ones((size, 2), np.float32)), dynamic=sizes)
    assert seen == {size, other}


# -- data types ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [str(dtype).removeprefix("dtypes.") for dtype in dtypes.all])
def test_data_types(name: str) -> None:
    dtype = getattr(dtypes, name)
    is_float, is_bool = dtypes.is_float(dtype), dtype is dtypes.bool
    a = (Tensor(RNG.random((3, 4), np.float32)) * 10 - 3).cast(dtype).realize()
    b = (Tensor(RNG.random((3, 4), np.float32)) * 5 + 1).cast(dtype).realize()

    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        found = [a + b, a * b, a.maximum(b), a < b, a.sum(), a.max(0), (a != b).where(a, b)]
        found += [a.cast(dtypes.float32), a.pad((1, 1)), a.cat(b), a.flip(0), a.prod(1)]
        index = Tensor([[0, 1, 2, 0]])
        found += [a.scatter(0, index, b), a.gather(0, index), a[index[0]]]
        if not is_bool:
            found += [a - b, a // b, a % b, a @ b.T, -a]
        if is_float:
            found += [a.exp().cast(dtypes.float32), a.floor(), a / b]
        else:
            found += [a & b, a ^ b]
        if not is_float and not is_bool:
            found += [a << 1, a >> 1]
        return found

    exported = export(function, None, a, b)
    assert exported.checked_by.startswith("ONNX Runtime"), exported.checked_by


def test_shifts_of_negative_numbers_keep_the_sign() -> None:
    x = Tensor(np.array([-7, -1, 0, 5, -(2**31)], np.int32))
    (found,) = run(export(lambda x: x >> 2, None, x), x.numpy())
    np.testing.assert_array_equal(found, x.numpy() >> 2)


def test_division_by_zero_is_ferrules() -> None:
    a, b = Tensor(np.array([7, -7, 5], np.int32)), Tensor(np.array([2, 2, 0], np.int32))
    export(lambda a, b: [a // b, a % b], None, a, b)  # its check compares exactly


def test_products_of_integers_wrap() -> None:
    x = Tensor(np.array([[2**31 - 1, 5, 2**31 - 3, 7, 11]], np.int64))
    (found,) = run(export(lambda x: x.prod(1), None, x), x.numpy())
    np.testing.assert_array_equal(found, x.numpy().prod(1))


def test_signs_of_zeros() -> None:
    x = Tensor(np.array([-0.0, 0.0, -1.5, 2.5], np.float32))
    exported = export(lambda x: Tensor.ones(4).copysign(x), None, x)
    (found,) = run(exported, x.numpy())
    np.testing.assert_array_equal(found, [-1, 1, -1, 1])


# -- positions -----------------------------------------------------------------------------------


def test_positions_out_of_range_read_zero() -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return x._wrap(x._read().gather(index._read(), 0))

    x, index = floats(4, 3), Tensor(np.array([[0, -1, 7], [3, 9, 2]], np.int32))
    (found,) = run(export(function, None, x, index), x.numpy(), index.numpy())
    assert found[0, 1] == found[0, 2] == found[1, 1] == 0


def test_rows_of_a_table_are_one_gather() -> None:
    exported = both_ways(nn.Embedding(10, 6), Tensor([[1, 2, 3], [4, -1, 0]]))
    assert set(exported.operators) == {"Gather", "Reshape"}


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("includes", [False, True])
def test_elements_written_at_positions(reduce: str, includes: bool) -> None:
    index = Tensor([[0, 1, 0], [1, 2, 0]])

    def function(x: Tensor, new: Tensor) -> Tensor:
        return x.scatter_reduce(0, index, new, reduce, include_self=includes)

    both_ways(function, floats(4, 3), floats(2, 3))


@pytest.mark.parametrize("added", [2, 4])
@pytest.mark.parametrize("limit", [0, 1])
def test_positions_from_the_end_are_those_plus_the_size(added: int, limit: int) -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        places = (index < limit).where(index + added, index)
        return x._wrap(x._read().gather(places._read(), 0))

    index = Tensor(np.array([[0, -1, 1], [-2, 3, -1]], np.int32))
    operators = both_ways(function, floats(4, 3), index).operators
    assert (set(operators) == {"GatherElements"}) == (added == 4 and limit == 0)


def test_padded_values_with_a_hole_are_no_concatenation() -> None:
    def function(x: Tensor, size: int) -> Tensor:
        mask = Tensor.full((4, 3), True).pad(((size, 0), (0, 0)))
        return mask.where(x.pad(((size, 0), (0, 0))), x.pad(((0, size), (0, 0))))

    assert set(both_ways(lambda x: function(x, 4), floats(4, 3)).operators) == {"Concat"}
    assert "Concat" not in both_ways(lambda x: function(x, 6), floats(4, 3)).operators


def test_a_function_with_an_operator_is_no_part_of_a_product() -> None:
    operators = both_ways(lambda x: x.softmax(1).sum(0), floats(4, 3)).operators
    assert "Softmax" in operators
    assert "MatMul" not in operators


# -- pooling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_pooling_with_borders(ceil: bool, counts: bool) -> None:
    def function(x: Tensor) -> list[Tensor]:
        options = {"stride": 2, "padding": 1, "ceil_mode": ceil}
        mean = x.avg_pool2d(3, count_include_pad=counts, **options)
        return [x.max_pool2d(3, **options), mean]

    operators = both_ways(function, floats(1, 2, 8, 8)).operators
    assert operators["MaxPool"] == 1
    assert ("AveragePool" in operators) == (not ceil or not counts)


def test_borders_of_minus_infinity_belong_to_the_pooling() -> None:
    def function(x: Tensor) -> Tensor:
        return x.pad((1, 1, 1, 1), value=-float("inf")).max_pool2d(3, stride=2)

    assert both_ways(function, floats(1, 2, 8, 8)).operators == {"MaxPool": 1}


# -- operators of functions ----------------------------------------------------------------------


WEIGHT = floats(3, 2, 3, 2)


def unequal_borders(x: Tensor) -> Tensor:
    return x.pad((2, 0, 0, 1)).conv2d(WEIGHT, stride=(2, 1), dilation=(2, 3))


def windows_gradient(x: Tensor) -> Tensor:
    return ferrule.grad(lambda x: x.unfold(-1, 3, 2).square().sum())(x)


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], set[str]]] = {
    "layer_norm": (lambda x: x.layer_norm((8,), eps=0.5), {"LayerNormalization"}),
    "batch_norm": (nn.BatchNorm2d(2, eps=0.5), {"BatchNormalization"}),
    "conv": (unequal_borders, {"Pad", "Conv"}),
    "argmax": (lambda x: x.argmax(1), {"ArgMax", "Cast"}),
    "argmin": (lambda x: x.argmin(2), {"ArgMin", "Cast"}),
    "ascending": (lambda x: x.argsort(-1), {"TopK", "Cast"}),
    "descending": (lambda x: x.argsort(-1, descending=True), {"TopK", "Cast"}),
    "softmax": (lambda x: x.softmax(1), {"Softmax"}),
    "log_softmax": (lambda x: x.log_softmax(2), {"LogSoftmax"}),
    "logsumexp": (lambda x: x.logsumexp((1, 3), keepdim=True), {"ReduceLogSumExp"}),
    "cumsum": (lambda x: x.cumsum(3), {"CumSum"}),
    "gelu": (lambda x: x.gelu("none"), {"Gelu"}),
    "gelu_tanh": (lambda x: x.gelu("tanh"), {"Gelu"}),
    "dilated_pool": (lambda x: x.max_pool2d(2, stride=1, dilation=(1, 2)), {"MaxPool"}),
    "windows_gradient": (windows_gradient, {"Gather", "Add", "Reshape", "Pad", "ReduceSum"}),
    **{
        f"{mode}_{align}": (
            lambda x, mode=mode, align=align: x.interpolate((7, 5), None, mode, align),
            {"Resize"},
        )
        for mode, align in (
            *(("nearest", None), ("nearest-exact", None), ("bilinear", False)),
            *(("bilinear", True), ("bicubic", False), ("bicubic", True)),
        )
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_with_attributes(name: str) -> None:
    function, operators = FUNCTIONS[name]
    x = Tensor((np.random.default_rng(5).standard_normal((2, 2, 9, 8)) * 2).astype(np.float32))
    assert both_ways(function, x).operators.keys() == operators


@pytest.mark.parametrize("name", ["tan", "asin", "atan", "sinh", "cosh", "asinh", "softplus"])
def test_functions_that_onnx_runtime_has_for_float32_alone(name: str) -> None:
    for dtype, n_operators in ((np.float32, 1), (np.float64, None)):
        x = Tensor(np.linspace(-0.9, 0.9, 7).astype(dtype))
        exported = both_ways(getattr(Tensor, name), x)
        assert n_operators in (None, sum(exported.operators.values()))


def test_a_window_of_borders_alone_is_no_pooling_of_onnx() -> None:
    def function(x: Tensor) -> Tensor:
        return x.pad((2, 0, 2, 0), value=-float("inf")).max_pool2d(2, stride=1)

    both_ways(function, floats(1, 2, 4, 4))


def test_medians_are_the_first_nan_or_the_lower_middle() -> None:
    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    x[1, 3] = x[1, 5] = x[3, 0] = np.nan
    both_ways(lambda x: [x.median(-1), x.median(0), x[:, :4].median(-1)], Tensor(x))
    both_ways(lambda x: x.median(-1), Tensor(np.arange(12, dtype=np.int64).reshape(2, 6)))
    with pytest.raises(OnnxError, match="median"):
        export(lambda x: x.nanmedian(-1), None, Tensor(x))


# -- loops ---------------------------------------------------------------------------------------


def test_loops() -> None:
    x = floats(4, 3)

    def rows(x: Tensor) -> Any:
        return ferrule.scan(lambda c, r: (c * r.sin(), c + r), Tensor.ones(3), x, reverse=True)

    assert both_ways(rows, x).operators["Scan"] == 1
    positive = x.abs().realize()
    doubled = both_ways(
        lambda x: ferrule.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, x), positive
    )
    assert doubled.operators["Loop"] == 1
    both_ways(lambda x: ferrule.cond(x.sum() > 1, lambda c: c * 2, lambda c: c - 1, x), x)
    both_ways(lambda x: ferrule.grad(lambda y: rows(y)[1].sum())(x), x)


# -- what cannot be ------------------------------------------------------------------------------


def test_host_functions_are_named_with_their_lines() -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [x.svd()[1], x.inverse()]

    wanted = r"(?s)cannot be exported.*host svd.*test_export.py"
    with pytest.raises(OnnxError, match=wanted) as info:
        export(function, None, floats(3, 3))
    assert "host inv" in str(info.value)


def test_reading_values_is_an_error() -> None:
    with pytest.raises(OnnxError, match="reads values that depend on 'x'"):
        export(lambda x: x * x.sum().item(), None, floats(3))


def test_results_that_are_no_tensors() -> None:
    with pytest.raises(OnnxError, match="has to return tensors"):
        export(lambda x: (x, 3), None, floats(3))


def test_a_version_that_is_too_old() -> None:
    with pytest.raises(OnnxError, match="needs opset 26"):
        export(lambda x: x.bitcast(dtypes.int32), None, floats(3), opset=20)
    assert export(lambda x: x.bitcast(dtypes.int32), None, floats(3)).opset == 26
    with pytest.raises(OnnxError, match="opset 9"):
        export(lambda x: x, None, floats(3), opset=9)


def test_a_difference_is_an_error() -> None:
    with pytest.raises(OnnxError, match="differs from the function's result"):
        export(lambda x: x.exp().sum(), None, floats(100), tolerance=-1.0)


class Changing:
    """Gives something else in one of its calls: the plain one, the trace, that of other sizes."""

    def __init__(self, call: int, other: Callable[[Tensor], Tensor]) -> None:
        self.call, self.other = call, other
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.other(x) if self.calls == self.call else x + 1


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1.01])
def test_each_check_compares(call: int, number: float) -> None:
    with pytest.raises(OnnxError, match="differs from the function's result"):
        export(Changing(call, lambda x: (x + 1) * number), None, floats(3), dynamic=SIZE_OF_X)


def test_half_of_the_digits_may_differ() -> None:
    for dtype, allowed, refused in ((dtypes.float32, 1e-4, 1e-3), (dtypes.float16, 1e-2, 0.1)):
        x = (floats(3).abs() + 1).cast(dtype).realize()
        export(Changing(1, lambda x, n=allowed: (x + 1) * (1 + n)), None, x)
        with pytest.raises(OnnxError, match="differs from the function's result"):
            export(Changing(1, lambda x, n=refused: (x + 1) * (1 + n)), None, x)


@pytest.mark.parametrize("opset", [None, 20, 21, 22])
def test_the_version_is_the_one_asked_for(opset: int | None) -> None:
    exported = export(lambda x: x.relu(), None, floats(3), opset=opset)
    wanted = 20 if opset is None else opset
    assert (exported.opset, exported.proto.opset_import[0].version) == (wanted, wanted)


def test_a_value_of_tables_that_is_larger_than_they_are_is_computed() -> None:
    numbers = Tensor(table(np.arange(50, dtype=np.float32), "CPU"))

    def function(x: Tensor) -> Tensor:
        return x + numbers.reshape(50, 1) * numbers

    exported = both_ways(function, floats(50, 50))
    assert all(np.prod(tensor.dims) <= 50 for tensor in exported.proto.graph.initializer)


# -- names and files -----------------------------------------------------------------------------


def test_names_of_inputs_and_outputs() -> None:
    def function(pair: tuple[Tensor, Tensor], options: dict[str, Tensor]) -> dict[str, Any]:
        return {"sum": pair[0] + options["bias"], "both": (pair[0], pair[1] * 2)}

    exported = export(function, None, (floats(3), floats(2)), {"bias": floats(3)})
    assert [port.name for port in exported.inputs] == ["pair.0", "pair.1", "options.bias"]
    assert [port.name for port in exported.outputs] == ["sum", "both.0", "both.1"]


def test_names_of_results_in_a_tuple() -> None:
    exported = export(lambda x: (x, (x + 1, x + 2)), None, floats(3))
    assert [port.name for port in exported.outputs] == ["output_0", "output_1.0", "output_1.1"]


def test_gradients_that_are_there_have_the_names_of_their_tensors() -> None:
    model = nn.Linear(3, 2)
    model(floats(4, 3)).sum().backward()
    before = model.weight.grad

    def gradients(x: Tensor) -> list[Tensor]:
        model(x).sum().backward()
        return [model.weight.grad * 1, model.bias.grad * 1]

    exported = both_ways(gradients, floats(4, 3))
    wanted = {(f"{name}.grad", f"{name}.grad_out") for name in ("weight", "bias")}
    assert set(exported.states) == wanted
    assert model.weight.grad is before


def test_a_captured_function() -> None:
    model = nn.Linear(3, 2)
    captured = TinyJit(lambda x: model(x).realize())
    x = floats(4, 3)
    for _ in range(3):
        captured(x)
    exported = both_ways(captured, x)
    assert {tensor.name for tensor in exported.proto.graph.initializer} == {"weight", "bias"}


def test_equal_calls_give_equal_files() -> None:
    model, x = digits(), floats(2, 1, 16, 16)
    first, second = [export(model, None, x).proto.SerializeToString() for _ in range(2)]
    assert first == second


def test_files(tmp_path: Path) -> None:
    model, x = nn.Linear(40, 30), floats(2, 40)
    plain = export(model, tmp_path / "plain.onnx", x)
    assert plain.path == tmp_path / "plain.onnx"
    apart = export(model, tmp_path / "apart.onnx", x, external_data=True)
    assert apart.path is not None
    assert (tmp_path / "apart.onnx.data").stat().st_size >= 40 * 30 * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "apart.onnx",
        "apart.onnx.data",
        "plain.onnx",
    ]
    expected = model(x).numpy()
    for path in ("plain.onnx", "apart.onnx"):
        onnx.checker.check_model(str(tmp_path / path), full_check=True)
        session = onnxruntime.InferenceSession(str(tmp_path / path))
        for found in (session.run(None, {"x": x.numpy()})[0], load(tmp_path / path)(x).numpy()):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_weights_of_an_older_model_go_away(tmp_path: Path) -> None:
    model, x = nn.Linear(40, 30), floats(2, 40)
    for external, names in ((True, ["a.onnx", "a.onnx.data"]), (False, ["a.onnx"])) * 2:
        export(model, tmp_path / "a.onnx", x, external_data=external)
        assert sorted(path.name for path in tmp_path.iterdir()) == names
        np.testing.assert_allclose(
            load(tmp_path / "a.onnx")(x).numpy(), model(x).numpy(), rtol=1e-5
        )


@pytest.mark.parametrize("name", ["shown.onnx", "model.onnx"])
def test_a_model_in_bfloat16_is_written_as_it_is(tmp_path: Path, name: str) -> None:
    """Its check runs on another model, whose inputs and outputs are in float32."""
    exported = export(lambda x: x * 2, tmp_path / name, floats(3).cast(dtypes.bfloat16).realize())
    assert onnx.load(tmp_path / name) == exported.proto


def test_weights_beyond_the_limit_of_a_file_go_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrule.onnx.exporting._LARGE", 1000)
    export(nn.Linear(40, 30), tmp_path / "model.onnx", floats(2, 40))
    assert (tmp_path / "model.onnx.data").exists()


def test_a_failed_export_leaves_an_older_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("older")
    with pytest.raises(OnnxError):
        export(lambda x: x.exp(), tmp_path / "model.onnx", floats(3), tolerance=-1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "older"


def test_without_onnx_runtime_ferrule_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    exported = export(digits(), None, floats(2, 1, 16, 16))
    assert exported.checked_by == "ferrule itself"
    assert exported.difference < 1e-5


def test_each_op_of_graphs_has_a_rule() -> None:
    ops = {*ELEMENTWISE, *REDUCTIONS, *MOVEMENTS, *FunctionOps, *LoadOps} - {LoadOps.CUSTOM}
    assert ops == set(RULES)


def test_nothing_is_noted_outside_of_exports() -> None:
    from ferrule.autograd import is_noting

    with pytest.raises(OnnxError):
        export(lambda x: x * x.sum().item(), None, floats(3))
    assert not is_noting()
    assert (floats(3).softmax() + 1).realize().lazydata.realized is not None


# -- any program ---------------------------------------------------------------------------------


def test_random_programs(programs: int) -> None:
    """The check of each export compares with the function: integers exactly."""
    for seed in range(max(programs // 40, 5)):
        arrays = [pair.array.copy() for pair in Program(seed).pairs]

        def function(*tensors: Tensor, seed: int = seed, arrays: Any = arrays) -> list[Tensor]:
            pairs = [Pair(t, a.copy()) for t, a in zip(tensors, arrays, strict=True)]
            program = Program(seed + 1, pairs, captured=True)
            program.run(12)
            return [pair.tensor for pair in program.pairs]

        exported = export(function, None, *[Tensor(array) for array in arrays])
        assert exported.checked_by.startswith("ONNX Runtime")


def test_names_of_methods_are_no_names_of_weights() -> None:
    """A global that is called as a method of something else is not searched for tensors."""

    class Searched(dict[str, object]):
        def items(self) -> Any:
            raise AssertionError("it is not used")

    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            return x * weight  # type: ignore[name-defined]  # noqa: F821

    scope = {"Tensor": Tensor, "weight": floats(3), "train": Searched()}
    exported = export(FunctionType(step.__code__, scope), None, floats(3))
    assert [tensor.name for tensor in exported.proto.graph.initializer] == ["weight"]


def test_a_function_may_call_a_captured_one() -> None:
    layers = [nn.Linear(4, 4) for _ in range(3)]
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers))

    @TinyJit
    def train(x: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            for layer in layers:
                x = layer(x)
            loss = x.sum().backward()
            optimizer.step()
        return loss

    scope = {"Tensor": Tensor, "train": train}
    exec("def step(x):\n    return train(x)\n", scope)
    for _ in range(3):
        train(floats(2, 4))
    assert len(export(scope["step"], None, floats(2, 4)).states) > 6


def test_a_model_needs_an_output() -> None:
    with pytest.raises(OnnxError, match="gives no tensors and changes none"):
        export(lambda x: None, None, floats(3))


def test_versions_that_onnx_has_not_are_refused() -> None:
    for opset in (11, 99):
        with pytest.raises(OnnxError, match=f"opset {opset}: models are written in 20 to"):
            export(lambda x: x * 2, None, floats(3), opset=opset)


def test_a_result_may_have_an_empty_name() -> None:
    exported = export(lambda x: {"": x + 1, "output": x + 2}, None, floats(3))
    assert [port.name for port in exported.outputs] == ["output", "output_1"]


def test_exports_within_captures_are_refused() -> None:
    def outer(x: Tensor) -> Tensor:
        export(lambda y: y * 2, None, x)
        return x + 1

    step = TinyJit(outer)
    step(floats(3))
    with pytest.raises(OnnxError, match="a captured function calls export"):
        step(floats(3))
