"""`nn.Module`: parameters, buffers and modules by name, modes, hooks, states, captures."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, dtypes, nn
from ferrule.nn.state import StateError, functional_call, get_state_dict


class Net(nn.Module):
    """Layers in attributes and in a list, a mask that is no state, and two buffers."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(1.0)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.scale = nn.Parameter(Tensor.ones(4))
        self.mask = Tensor.ones(4)
        self.register_buffer("shift", Tensor.zeros(4))
        self.register_buffer("cache", Tensor.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Any:
        x = self.drop(self.norm(self.fc(x)).relu())
        for layer in self.layers:
            x = layer(x)
        return x * self.scale * self.mask + self.shift


PARAMETERS = [
    "scale",
    *("fc.weight", "fc.bias", "norm.weight", "norm.bias"),
    *("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"),
]
STATISTICS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


def test_tensors_by_name() -> None:
    model = Net()
    assert [name for name, _ in model.named_parameters()] == PARAMETERS
    assert [name for name, _ in model.named_buffers()] == ["shift", "cache", *STATISTICS]
    assert sorted(model.state_dict()) == sorted([*PARAMETERS, "shift", *STATISTICS])
    assert len(list(model.parameters())) == len(PARAMETERS)
    assert [name for name, _ in model.named_parameters(recurse=False)] == ["scale"]
    assert next(model.named_parameters(prefix="net"))[0] == "net.scale"
    assert model.get_parameter("layers.1.bias") is model.layers[1].bias
    assert model.get_buffer("norm.running_var") is model.norm.running_var


def test_frozen_parameters_stay_parameters() -> None:
    model = Net()
    model.requires_grad_(False)
    assert [name for name, _ in model.named_parameters()] == PARAMETERS
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.requires_grad_()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.norm.running_mean.requires_grad


def test_a_parameter_that_is_replaced_stays_one() -> None:
    layer = nn.Linear(2, 1)
    layer.weight = Tensor([[1.0, 2.0]])
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert copy.deepcopy(layer).state_dict()["weight"].tolist() == [[1.0, 2.0]]


def test_shared_parameters_are_listed_once() -> None:
    model: Any = nn.Module()
    model.one, model.other = nn.Linear(2, 2), nn.Linear(2, 2)
    model.other.weight = model.one.weight
    names = [name for name, _ in model.named_parameters()]
    assert names == ["one.weight", "one.bias", "other.bias"]
    assert "other.weight" in model.state_dict()


def test_modules_by_name() -> None:
    model = Net()
    names = ["fc", "norm", "drop", "layers"]
    assert [name for name, _ in model.named_children()] == names
    assert [name for name, _ in model.named_modules()] == ["", *names, "layers.0", "layers.1"]
    assert model.get_submodule("layers.1") is model.layers[1]
    assert model.get_submodule("") is model
    with pytest.raises(AttributeError, match=r"Net has no module 'layers\.7'"):
        model.get_submodule("layers.7")
    seen: list[Any] = []
    model.apply(seen.append)
    assert seen[-1] is model
    assert len(seen) == 7


def test_a_model_starts_in_training_and_decides_for_its_layers() -> None:
    model, x = Net(), Tensor.ones(5, 3)
    assert model.training
    start = model.norm.num_batches_tracked.item()
    model(x).realize()
    assert model.norm.num_batches_tracked.item() == start + 1
    assert not model.eval().training
    assert not model.drop.training
    with Tensor.train():  # its own mode has priority
        model(x).realize()
    assert model.norm.num_batches_tracked.item() == start + 1
    assert model.train().drop.training


def test_train_of_a_part_may_be_overridden() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm1d(2)

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.norm.eval()
            return self

    model = nn.Sequential(Frozen())
    assert model.train()[0].training
    assert not model[0].norm.training


def test_casts_and_gradients() -> None:
    model, x = Net(), Tensor.ones(5, 3)
    model.eval()(x).sum().backward()
    model.double()
    assert {parameter.dtype for parameter in model.parameters()} == {dtypes.float64}
    assert model.norm.running_mean.dtype is dtypes.float64
    assert model.norm.num_batches_tracked.dtype is dtypes.int64
    slope = model.fc.weight.grad
    assert slope is not None
    assert slope.dtype is dtypes.float64
    model(x.double()).sum().backward()  # adds to it
    model.zero_grad(set_to_none=False)
    assert np.all(model.scale.grad.numpy() == 0)  # type: ignore[union-attr]
    model.zero_grad()
    assert model.scale.grad is None
    assert model.to("CPU", dtypes.float32).scale.dtype is dtypes.float32
    assert model.to(Tensor.zeros(1).half()).scale.dtype is dtypes.float16
    with pytest.raises(TypeError, match="to: int is neither a device nor a dtype"):
        model.to(3)


def test_states_are_loaded_by_name() -> None:
    one, other = Net().eval(), Net().eval()
    assert other.load_state_dict(one.state_dict()) == ((), ())
    x = Tensor.ones(2, 3)
    np.testing.assert_array_equal(one(x).numpy(), other(x).numpy())
    found = other.load_state_dict({"scale": Tensor.zeros(4), "odd": Tensor([1.0])}, strict=False)
    assert found.unexpected_keys == ["odd"]
    assert found.missing_keys[0] == "shift" or "shift" in found.missing_keys
    assert other.scale.tolist() == [0.0] * 4
    with pytest.raises(StateError, match="unexpected odd"):
        other.load_state_dict({**one.state_dict(), "odd": Tensor([1.0])})


def test_copies_keep_buffers_and_modes() -> None:
    model = Net().eval()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not twin.training
        assert [name for name, _ in twin.named_buffers()] == ["shift", "cache", *STATISTICS]
        assert not twin.register_buffer("more", Tensor.ones(1))
    assert "more" not in dict(model.named_buffers())


def test_functions_of_the_state() -> None:
    model = Net().eval()
    zeros = {name: tensor.zeros_like() for name, tensor in model.named_parameters()}
    assert functional_call(model, zeros, Tensor.ones(2, 3)).tolist() == [[0.0] * 4] * 2
    assert "scale" in get_state_dict(model)
    folded = nn.fold_batchnorm(model, Tensor.ones(2, 3))
    assert isinstance(folded.norm, nn.Identity)
    assert np.allclose(folded(Tensor.ones(2, 3)).numpy(), model(Tensor.ones(2, 3)).numpy())


def test_forward_hooks() -> None:
    layer, x = nn.ReLU(), Tensor([-1.0, 2.0])
    before = layer.register_forward_pre_hook(lambda module, args: args[0] + 1)
    after = layer.register_forward_hook(lambda module, args, out: out * args[0])
    assert layer(x).tolist() == [0.0, 9.0]
    before.remove()
    assert layer(x).tolist() == [0.0, 4.0]
    first = layer.register_forward_hook(lambda module, args, out: out + 1, prepend=True)
    assert layer(x).tolist() == [-1.0, 6.0]
    after.remove()
    first.remove()
    assert layer(x).tolist() == [0.0, 2.0]


def test_backward_hooks() -> None:
    seen: list[Any] = []

    def note(module: nn.Module, into: Any, out: Any) -> None:
        seen.append((into, out))

    layer = nn.Linear(2, 1, bias=False)
    layer.register_full_backward_hook(note)
    x = Tensor([[1.0, 2.0]], requires_grad=True)
    ((layer(x) * 3).sum() + x.sum()).backward()
    ((into,), (out,)) = seen.pop()
    assert out.tolist() == [[3.0]]
    assert np.allclose(into.numpy(), 3 * layer.weight.numpy())  # not the part of x.sum()
    assert np.allclose(x.grad.numpy(), into.numpy() + 1)  # type: ignore[union-attr]
    layer(Tensor([[1.0, 2.0]])).sum().backward()  # no gradient for the input
    assert seen.pop()[0] == (None,)


def test_captured_calls_notice_modes_and_hooks() -> None:
    model = Net()
    call = TinyJit(lambda x: model(x).realize())
    x = Tensor.ones(5, 3)

    def check() -> None:
        for _ in range(4):
            np.testing.assert_allclose(call(x).numpy(), model(x).numpy(), rtol=1e-6, atol=1e-6)

    model.eval()
    check()
    hook = model.register_forward_hook(lambda module, args, out: out + 1)
    check()
    hook.remove()
    check()
    model.scale.assign(Tensor.full((4,), 5.0))
    check()
    model.register_buffer("shift", Tensor.full((4,), 3.0))
    check()
    model.drop.train()
    assert np.all(call(x).numpy() == model(x).numpy())


def test_a_captured_training_step_of_a_module() -> None:
    def losses(captured: bool) -> list[float]:
        Tensor.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).train()
        sgd = nn.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            sgd.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            sgd.step()
            return loss.realize()

        run = TinyJit(step) if captured else step
        x, y = Tensor.randn(16, 4).realize(), Tensor.randn(16, 1).realize()
        return [run(x, y).item() for _ in range(6)]

    np.testing.assert_allclose(losses(captured=True), losses(captured=False), rtol=1e-6)


def test_containers() -> None:
    layers = nn.ModuleList([nn.ReLU()])
    layers.append(nn.Tanh()).extend([nn.Sigmoid()])
    layers.insert(0, nn.Linear(1, 1))
    assert [type(layer).__name__ for layer in layers] == ["Linear", "ReLU", "Tanh", "Sigmoid"]
    assert list(layers.state_dict()) == ["0.weight", "0.bias"]
    del layers[0]
    assert type(layers[-1]).__name__ == "Sigmoid"
    assert len(layers[:2]) == 2
    assert len(layers + nn.ModuleList([nn.ReLU()])) == 4
    named = nn.ModuleDict({"a": nn.Linear(1, 1)})
    named["b"] = nn.ReLU()
    assert "b" in named
    assert list(named) == ["a", "b"]
    assert list(named.state_dict()) == ["a.weight", "a.bias"]
    weights = nn.ParameterList([Tensor.ones(1)])
    weights.append(Tensor.ones(2))
    assert all(isinstance(weight, nn.Parameter) for weight in weights)
    assert list(nn.ParameterDict({"w": Tensor.ones(1)}).state_dict()) == ["w"]


def test_a_layer_whose_forward_is_overridden() -> None:
    class Doubled(nn.ReLU):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) * 2

    class Again(Doubled):
        def __call__(self, x: Tensor) -> Any:
            return super().__call__(x) + 1

    assert Doubled()(Tensor([3.0])).tolist() == [6.0]
    assert Again()(Tensor([3.0])).tolist() == [7.0]
    with pytest.raises(NotImplementedError, match="Module has no forward method"):
        nn.Module()(1)


def test_the_tree_of_a_model() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.act = nn.ReLU()

        def extra_repr(self) -> str:
            return "size=3"

    assert repr(Small()) == (
        "Small(\n  size=3\n  (fc): Linear(in_features=3, out_features=2, bias=True)\n"
        "  (act): ReLU()\n)"
    )


def test_an_average_starts_without_gradients_and_leaves_those_of_the_model() -> None:
    model = nn.Linear(2, 1)
    model(Tensor.ones(1, 2)).sum().backward()
    average = nn.optim.swa_utils.AveragedModel(model)
    assert all(parameter.grad is None for parameter in average.parameters())
    assert model.weight.grad is not None


def test_an_average_takes_a_shared_weight_once() -> None:
    """Twice would move it twice."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    half = nn.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    model[0].weight.assign([[0.0]])
    average = nn.optim.swa_utils.AveragedModel(model, multi_avg_fn=half)
    for value in (0.0, 4.0):
        model[0].weight.assign([[value]])
        average.update_parameters(model)
    assert average.module[0].weight.tolist() == [[2.0]]
    assert average.module[1].weight is average.module[0].weight
