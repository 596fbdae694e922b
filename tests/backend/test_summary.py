"""`nn.summary`: shapes, parameters and operations of layers; the model stays as it was."""

from typing import Any

import pytest

from ferrule import Tensor, TinyJit, nn


class Plain:
    """A model that is no `Module`."""

    def __init__(self) -> None:
        self.first = nn.Linear(4, 8)
        self.rest = [nn.ReLU(), nn.Linear(8, 2, bias=False)]

    def __call__(self, x: Tensor, scale: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        return x * scale


def test_a_convolution_network() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 10),
    )
    model[0].weight.requires_grad_(False)
    found = nn.summary(model, (2, 3, 6, 6))
    by_name = {layer.name: layer for layer in found.layers}
    assert list(by_name) == ["", "0", "1", "2", "3", "4"]
    assert [layer.depth for layer in found.layers] == [0, 1, 1, 1, 1, 1]
    # A product and a sum for each tap, and the bias.
    assert by_name["0"].flops == 2 * (2 * 8 * 36) * 27 + 2 * 8 * 36
    assert by_name["2"].flops == 2 * 8 * 36
    assert by_name["3"].flops == 0
    assert by_name["4"].flops == 2 * 2 * 288 * 10 + 20
    assert found.flops == sum(layer.flops for layer in found.layers if layer.is_leaf)
    assert by_name["0"].output_shapes == ((2, 8, 6, 6),)
    assert by_name["4"].input_shapes == ((2, 288),)
    assert found.parameters == 3 * 8 * 9 + 8 + 16 + 2890
    assert found.trainable == found.parameters - 3 * 8 * 9
    assert by_name["0"].trainable == 8
    assert found.parameter_bytes == 4 * found.parameters
    assert found.input_bytes == 4 * 2 * 3 * 36
    assert found.activation_bytes == 4 * (3 * 2 * 8 * 36 + 2 * 288 + 2 * 10)
    text = str(found).splitlines()
    assert len(text) == 2 + 6 + 3
    assert text[0].split() == ["layer", "output", "parameters", "trainable", "flops"]
    assert "4 (Linear)" in text[7]
    assert repr(found) == str(found)


def test_a_model_that_is_no_module() -> None:
    model = Plain()
    found = nn.summary(model, Tensor.ones(5, 4), scale=Tensor([2.0]))
    assert [(layer.name, layer.kind) for layer in found.layers] == [
        ("", "Plain"),
        ("first", "Linear"),
        ("rest.0", "ReLU"),
        ("rest.1", "Linear"),
    ]
    assert found.parameters == 4 * 8 + 8 + 16
    assert found.flops == (2 * 5 * 32 + 40) + 40 + 2 * 5 * 16 + 10
    assert found.input_bytes == 4 * 20 + 4


@pytest.mark.parametrize("steps", [4, 9])
def test_loops_count_each_trip(steps: int) -> None:
    one = nn.summary(nn.RNN(3, 5, nonlinearity="relu"), (steps, 2, 3)).flops
    each = 2 * 2 * 3 * 5 + 10 + 2 * 2 * 5 * 5 + 10 + 10 + 10
    assert one == steps * each


def test_a_second_call_and_shared_layers() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    x = Tensor.ones(2, 4).realize()
    kept = model(x)
    first, second = nn.summary(model, x), nn.summary(model, x)
    assert first == second
    assert first.parameters == 20
    assert first.flops == 2 * (2 * 2 * 16 + 8) + 8
    assert kept.shape == (2, 4)


def test_the_model_is_left_as_it_was() -> None:
    seen: list[Any] = []
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    model.train()
    model[0].register_forward_hook(lambda m, args, out: seen.append(out.shape))
    before = [module._beside for module in model.modules()]
    mean = model[0].running_mean.numpy().copy()
    step = TinyJit(lambda x: model(x).realize())
    for _ in range(3):
        step(Tensor.ones(2, 3).realize())
    mean = model[0].running_mean.numpy().copy()
    nn.summary(model, (2, 3))
    assert all(a is m._beside for a, m in zip(before, model.modules(), strict=True))
    assert (model[0].running_mean.numpy() == mean).all()
    assert model.training
    with pytest.raises(TypeError, match="can not be called"):
        nn.summary([nn.ReLU()], (2, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be equal"):
        nn.summary(nn.Sequential(nn.Linear(3, 2)), (2, 4))
