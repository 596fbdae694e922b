"""Weights that layers compute from other tensors, against their formulas in NumPy."""

from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, nn
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.optim import SGD
from ferrule.nn.state import get_parameters, get_state_dict, load_state_dict
from ferrule.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from ferrule.nn.utils.parametrize import is_parametrized, remove_parametrizations

pytestmark = pytest.mark.usefixtures("device")

Array = np.ndarray[Any, Any]


def norms(weight: Array, dim: int | None) -> Array:
    axes = tuple(axis for axis in range(weight.ndim) if dim is None or axis != dim % weight.ndim)
    return np.asarray(np.sqrt((weight.astype(float) ** 2).sum(axes, keepdims=dim is not None)))


def numbers(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dim", [0, 1, 2, -2, None])
def test_sizes_and_directions_of_a_weight(dim: int | None) -> None:
    layer: Any = nn.Conv1d(3, 4, 2)
    before = layer.weight.numpy()
    x = Tensor(numbers(2, 3, 5))
    result = layer(x).numpy()
    assert weight_norm(layer, dim=dim) is layer
    g, v = layer.parametrizations["weight"].original0, layer.parametrizations["weight"].original1
    np.testing.assert_allclose(g.numpy(), norms(before, dim), rtol=1e-5)
    np.testing.assert_array_equal(v.numpy(), before)
    np.testing.assert_allclose(layer(x).numpy(), result, atol=1e-5)
    g.assign(g.detach() * 2)
    np.testing.assert_allclose(layer.weight.numpy(), before * 2, rtol=1e-5)
    layer.weight = Tensor(before * 3)
    np.testing.assert_allclose(g.numpy(), norms(before * 3, dim), rtol=1e-5)
    np.testing.assert_allclose(layer.weight.numpy(), before * 3, rtol=1e-5)


@pytest.mark.parametrize("is_captured", [False, True])
def test_weight_norm_is_trained(is_captured: bool) -> None:
    """Its gradients are those of the formula, by differences."""
    layer = weight_norm(nn.Linear(3, 2, bias=False))
    g, v = get_parameters(layer)
    rows = [g.numpy().astype(float), v.numpy().astype(float)]
    optimizer = SGD(get_parameters(layer), lr=0.25)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    def value(g: Array, v: Array, x: Array) -> float:
        return float(((x @ (g * v / norms(v, 0)).T) ** 2).sum())

    run = TinyJit(step) if is_captured else step
    for call in range(5):
        x = numbers(7, 3)[call : call + 2]
        assert run(Tensor(x)).item() == pytest.approx(value(*rows, x), rel=1e-4)
        slopes = []
        for place in (0, 1):
            slope = np.zeros_like(rows[place])
            for index in np.ndindex(slope.shape):
                moved = [[row.copy() for row in rows] for _ in range(2)]
                moved[0][place][index] += 1e-5
                moved[1][place][index] -= 1e-5
                slope[index] = (value(*moved[0], x) - value(*moved[1], x)) / 2e-5
            slopes.append(slope)
        rows = [row - 0.25 * slope for row, slope in zip(rows, slopes, strict=True)]
        np.testing.assert_allclose(g.numpy(), rows[0], atol=1e-3)
        np.testing.assert_allclose(v.numpy(), rows[1], atol=1e-3)


@pytest.mark.parametrize(
    ("layer", "dim"),
    [
        (lambda: nn.Linear(4, 3), 0),
        (lambda: nn.Conv2d(2, 3, 2), 0),
        (lambda: nn.ConvTranspose2d(2, 3, 2), 1),
    ],
)
def test_the_largest_singular_value_becomes_one(layer: Any, dim: int) -> None:
    Tensor.manual_seed(3)
    made = layer()
    weight = made.weight.numpy().astype(float)
    matrix = np.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1)
    spectral_norm(made, n_power_iterations=30)
    assert made.weight.shape == weight.shape
    with Tensor.train():
        made.weight.realize()
    found = made.weight.numpy()
    np.testing.assert_allclose(found, weight / np.linalg.svd(matrix)[1][0], rtol=1e-4)


@pytest.mark.parametrize("is_captured", [False, True])
def test_spectral_norm_goes_on_in_training_alone(is_captured: bool) -> None:
    layer = spectral_norm(nn.Linear(4, 3, bias=False))
    state = get_state_dict(layer)
    vectors = {
        "parametrizations.weight.0._u": Tensor([1.0, 0.0, 0.0]),
        "parametrizations.weight.0._v": Tensor([0.0, 1.0, 0.0, 0.0]),
    }
    load_state_dict(layer, vectors, strict=False)
    matrix = state["parametrizations.weight.original"].numpy().astype(float)
    u, v = np.eye(3)[0], np.eye(4)[1]

    def apply(x: Tensor) -> Tensor:
        return layer(x).contiguous()

    run = TinyJit(apply) if is_captured else apply
    x = numbers(2, 4)
    for call in range(8):
        Tensor.training = call % 3 != 0
        if Tensor.training:
            u = matrix @ v / np.linalg.norm(matrix @ v)
            v = matrix.T @ u / np.linalg.norm(matrix.T @ u)
        try:
            found = run(Tensor(x)).numpy()
        finally:
            Tensor.training = False
        np.testing.assert_allclose(found, x @ matrix.T / (u @ matrix @ v), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state["parametrizations.weight.0._u"].numpy(), u, atol=1e-5)
    assert [p.shape for p in get_parameters(layer) if p.requires_grad] == [(3, 4)]


def test_a_vector_has_its_norm_for_a_singular_value() -> None:
    layer: Any = spectral_norm(nn.Linear(3, 2), "bias")
    assert layer.bias.square().sum().item() == pytest.approx(1, rel=1e-5)


def test_a_parametrized_layer_is_one_of_its_kind_and_can_be_plain_again() -> None:
    layer: Any = weight_norm(weight_norm(nn.Linear(3, 2)), "bias", dim=None)
    assert isinstance(layer, nn.Linear)
    assert type(layer).__name__ == "ParametrizedLinear"
    assert sorted(get_state_dict(layer)) == [
        "parametrizations.bias.original0",
        "parametrizations.bias.original1",
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    ]
    weight = layer.weight.numpy()
    with pytest.raises(ValueError, match="WeightNorm does not keep what weight was before"):
        remove_parametrizations(layer, "weight", leave_parametrized=False)
    remove_parametrizations(layer, "weight")
    assert is_parametrized(layer, "bias")
    assert not is_parametrized(layer, "weight")
    remove_parametrizations(layer, "bias")
    assert type(layer) is nn.Linear
    assert not is_parametrized(layer)
    np.testing.assert_allclose(layer.weight.numpy(), weight, rtol=1e-6)
    assert sorted(get_state_dict(layer)) == ["bias", "weight"]
    original = layer.weight.numpy()
    spectral_norm(layer)
    remove_parametrizations(layer, "weight", leave_parametrized=False)
    np.testing.assert_array_equal(layer.weight.numpy(), original)
    with pytest.raises(ValueError, match="weight of this Linear is not parametrized"):
        remove_parametrizations(layer, "weight")


def test_what_cannot_be_parametrized() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(TypeError, match="weight_norm: Linear has no tensor 'w'; it has weight, bi"):
        weight_norm(layer, "w")
    with pytest.raises(TypeError, match="spectral_norm: int has no tensor 'weight'; it has none"):
        spectral_norm(3)
    with pytest.raises(ShapeError, match=r"weight_norm: dim 2 is no axis of a weight of shape \(2"):
        weight_norm(layer, dim=2)
    with pytest.raises(ValueError, match="n_power_iterations is 0; it must be a whole number"):
        spectral_norm(layer, n_power_iterations=0)
    weight_norm(layer)
    with pytest.raises(ValueError, match="weight of this ParametrizedLinear is parametrized alre"):
        spectral_norm(layer)


@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("sizes", [(6, 3), (3, 6), (5, 5)])
def test_weights_stay_orthogonal(kind: str, sizes: tuple[int, int]) -> None:
    Tensor.manual_seed(0)
    layer: Any = nn.Linear(*sizes)
    before = layer.weight.numpy()
    assert orthogonal(layer, orthogonal_map=kind) is layer
    first = layer.weight.numpy()
    tall, start = (first, before) if sizes[1] >= sizes[0] else (first.T, before.T)
    q, r = np.linalg.qr(start)
    np.testing.assert_allclose(tall, q * np.sign(np.diagonal(r)), atol=1e-5)
    optimizer = SGD([p for p in get_parameters(layer) if p.requires_grad], lr=0.5)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (layer(Tensor(numbers(7, sizes[0]))) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    weight = layer.weight.numpy()
    assert np.abs(weight - first).max() > 1e-3
    product = weight.T @ weight if sizes[1] >= sizes[0] else weight @ weight.T
    np.testing.assert_allclose(product, np.eye(min(sizes)), atol=1e-5)
    removed = remove_parametrizations(layer, "weight")
    np.testing.assert_allclose(removed.weight.numpy(), weight, atol=1e-6)


def test_what_cannot_be_orthogonal_says_so() -> None:
    with pytest.raises(ShapeError, match="is no matrix"):
        orthogonal(nn.Linear(2, 2), "bias")
    with pytest.raises(ValueError, match="orthogonal_map"):
        orthogonal(nn.Linear(2, 2), orthogonal_map="qr")
