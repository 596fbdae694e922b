"""Layers against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, dtypes, nn
from ferrule.nn.state import get_parameters, get_state_dict
from ferrule.shape.view import ShapeError

pytestmark = pytest.mark.usefixtures("device")

Array = np.ndarray[Any, Any]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assert_close(found: Tensor, exact: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found.numpy(), exact, rtol=tolerance, atol=tolerance)


def assert_trains(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Every parameter gets a gradient of its own shape."""
    layer(x).square().sum().backward()
    for parameter in get_parameters(layer):
        if parameter.requires_grad:
            assert parameter.grad is not None
            assert parameter.grad.shape == parameter.shape
            assert np.isfinite(parameter.grad.numpy()).all()


def test_linear() -> None:
    layer, x = nn.Linear(5, 3), random(2, 4, 5)
    assert layer.bias is not None
    assert layer.weight.shape == (3, 5)
    assert_close(layer(Tensor(x)), x @ layer.weight.numpy().T + layer.bias.numpy())
    assert_trains(layer, Tensor(x))


def test_linear_without_bias() -> None:
    layer, x = nn.Linear(5, 3, bias=False), random(4, 5)
    assert layer.bias is None
    assert_close(layer(Tensor(x)), x @ layer.weight.numpy().T)


def test_initial_values_are_spread_as_in_pytorch() -> None:
    Tensor.manual_seed(0)
    for layer, bound in ((nn.Linear(64, 100), 1 / 8), (nn.Conv2d(4, 100, (2, 8)), 1 / 8)):
        weight = layer.weight.numpy()
        assert np.abs(weight).max() <= bound
        assert np.abs(weight).max() > 0.99 * bound
        assert abs(weight.mean()) < 0.02 * bound
        assert layer.weight.requires_grad


def convolved(x: Array, layer: nn.Conv2d) -> Array:
    """The convolution by its definition, tap by tap."""
    weight = layer.weight.numpy().astype(np.float64)
    outputs, inputs, height, width = weight.shape
    down, right = layer.padding
    padded = np.pad(x, ((0, 0), (0, 0), (down, down), (right, right)))
    spans = (layer.dilation[0] * (height - 1), layer.dilation[1] * (width - 1))
    sizes = [
        (padded.shape[2 + axis] - spans[axis] - 1) // layer.stride[axis] + 1 for axis in (0, 1)
    ]
    out = np.zeros((x.shape[0], outputs, *sizes))
    per_group = outputs // layer.groups
    for y in range(height):
        for z in range(width):
            window = padded[
                :,
                :,
                y * layer.dilation[0] :: layer.stride[0],
                z * layer.dilation[1] :: layer.stride[1],
            ][:, :, : sizes[0], : sizes[1]]
            for group in range(layer.groups):
                of_group = slice(group * per_group, (group + 1) * per_group)
                part = window[:, group * inputs : (group + 1) * inputs]
                out[:, of_group] += np.einsum("nchw,oc->nohw", part, weight[of_group, :, y, z])
    return out if layer.bias is None else out + layer.bias.numpy()[:, None, None]


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 2), "padding": (2, 1), "stride": (2, 1)},
        {"kernel_size": 2, "stride": 2, "bias": False},
        {"kernel_size": 3, "dilation": (1, 2), "padding": 2},
        {"kernel_size": 3, "groups": 2},
        {"kernel_size": 1, "groups": 4},
    ],
    ids=str,
)
def test_conv2d(settings: dict[str, Any]) -> None:
    layer, x = nn.Conv2d(4, 8, **settings), random(2, 4, 7, 8)
    assert_close(layer(Tensor(x)), convolved(x, layer))
    assert_trains(layer, Tensor(x))


def test_batchnorm_in_training() -> None:
    layer, x = nn.BatchNorm2d(3), random(4, 3, 5, 2) * 3 + 1
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    expected = (x - mean[:, None, None]) / np.sqrt(variance[:, None, None] + 1e-5)
    with Tensor.train():
        assert_close(layer(Tensor(x)), expected)
    assert_close(layer.running_mean, 0.1 * mean)
    assert_close(layer.running_var, 0.9 + 0.1 * x.var((0, 2, 3), ddof=1))
    assert layer.num_batches_tracked.item() == 1


def test_batchnorm_after_training() -> None:
    layer, x = nn.BatchNorm(3), random(4, 3)
    for name, values in (("running_mean", [1.0, 2.0, 3.0]), ("running_var", [4.0, 9.0, 16.0])):
        getattr(layer, name).assign(values)
    with Tensor.no_grad():
        layer.weight.assign([2.0, 1.0, 0.5])
        layer.bias.assign([0.0, -1.0, 5.0])
    expected = (x - [1, 2, 3]) / np.sqrt(np.array([4, 9, 16]) + 1e-5) * [2, 1, 0.5] + [0, -1, 5]
    assert_close(layer(Tensor(x)), expected)
    assert layer.num_batches_tracked.item() == 0


def test_batchnorm_trains_its_parameters_only() -> None:
    layer = nn.BatchNorm(3)
    with Tensor.train():
        assert_trains(layer, Tensor(random(4, 3)))
    assert layer.running_mean.grad is None
    assert set(get_state_dict(layer)) == {
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }


def normalised(x: Array, axes: tuple[int, ...], eps: float = 1e-5) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    return centred / np.sqrt(wide.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize(("shape", "axes"), [(6, (-1,)), ((5, 6), (-2, -1))])
def test_layernorm(shape: Any, axes: tuple[int, ...]) -> None:
    layer, x = nn.LayerNorm(shape), random(2, 5, 6) + 3
    assert layer.weight is not None
    with Tensor.no_grad():
        layer.weight.assign(random(*layer.weight.shape, seed=1))
    assert_close(layer(Tensor(x)), normalised(x, axes) * layer.weight.numpy())
    assert_trains(layer, Tensor(x))


def test_groupnorm() -> None:
    layer, x = nn.GroupNorm(2, 6), random(3, 6, 4, 5) * 2 - 1
    expected = normalised(x.reshape(3, 2, -1), (2,)).reshape(x.shape)
    assert_close(layer(Tensor(x)), expected)
    assert_trains(layer, Tensor(x))


def test_rmsnorm() -> None:
    layer, x = nn.RMSNorm(6), random(3, 6) * 2
    assert_close(layer(Tensor(x)), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))
    assert_trains(layer, Tensor(x))


def test_rmsnorm_of_halves_does_not_overflow() -> None:
    x = Tensor(np.full((1, 4), 1000, np.float16))
    out = nn.RMSNorm(4, elementwise_affine=False)(x)
    assert out.dtype is dtypes.float16
    assert out.tolist() == [[1.0] * 4]


def test_norms_without_parameters() -> None:
    for layer in (
        nn.LayerNorm(6, elementwise_affine=False),
        nn.GroupNorm(1, 6, affine=False),
        nn.BatchNorm(6, affine=False, track_running_stats=False),
    ):
        assert get_parameters(layer) == []
        assert layer(Tensor(random(4, 6))).shape == (4, 6)


def test_embedding() -> None:
    layer, indices = nn.Embedding(10, 4), np.array([[1, 9, 1], [0, 3, 3]])
    assert_close(layer(Tensor(indices)), layer.weight.numpy()[indices])
    layer(Tensor(indices)).sum().backward()
    assert layer.weight.grad is not None
    counts = np.bincount(indices.ravel(), minlength=10)
    assert_close(layer.weight.grad, np.repeat(counts[:, None], 4, axis=1))


def test_dropout() -> None:
    layer, x = nn.Dropout(0.25), Tensor(np.ones(4000, np.float32))
    assert layer(x).tolist() == [1.0] * 4000
    Tensor.manual_seed(0)
    with Tensor.train():
        dropped = layer(x).numpy()
    np.testing.assert_allclose(np.unique(dropped), [0, 4 / 3], rtol=1e-6)
    assert abs(dropped.mean() - 1) < 0.05


def test_sequential_calls_in_order_and_names_like_pytorch() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Tensor.relu, nn.Linear(3, 2, bias=False))
    x = Tensor(random(5, 4))
    assert_close(model(x), model[2](model[0](x).relu()).numpy())
    assert list(get_state_dict(model)) == ["0.weight", "0.bias", "2.weight"]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "Conv2d: 3 and 4 channels do not divide into 2"),
        (lambda: nn.Conv2d(3, 4, (1, 2, 3)), r"Conv2d: kernel_size: expected an int or two"),
        (lambda: nn.GroupNorm(4, 6), "GroupNorm: 6 channels do not divide into 4 groups"),
        (
            lambda: nn.GroupNorm(2, 6)(Tensor(random(2, 3))),
            r"GroupNorm: expected \(N, 6, ...\), got \(2, 3\)",
        ),
        (
            lambda: nn.BatchNorm(6)(Tensor(random(2, 3))),
            r"BatchNorm: expected \(N, 6, ...\), got \(2, 3\)",
        ),
        (
            lambda: nn.LayerNorm((4, 5))(Tensor(random(2, 5))),
            r"LayerNorm: expected \(..., 4, 5\), got \(2, 5\)",
        ),
    ],
)
def test_misuse_is_explained(use: Callable[[], object], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        use()
