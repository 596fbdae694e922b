"""Layers against NumPy."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, dtypes, nn
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.state import get_parameters, get_state_dict

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
    assert isinstance(layer.padding, tuple)
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


@pytest.mark.parametrize(("eps", "added"), [(None, 2.0**-23), (1e-3, 1e-3)])
def test_rmsnorm(eps: float | None, added: float) -> None:
    layer, x = nn.RMSNorm(6, eps), random(3, 6) * 2
    assert_close(layer(Tensor(x)), x / np.sqrt((x * x).mean(-1, keepdims=True) + added))
    assert_trains(layer, Tensor(x))


def test_rmsnorm_over_several_axes() -> None:
    layer, x = nn.RMSNorm((5, 6)), random(3, 5, 6)
    assert_close(layer(Tensor(x)), x / np.sqrt((x * x).mean((1, 2), keepdims=True)))


def test_instancenorm() -> None:
    layer, x = nn.InstanceNorm2d(3, track_running_stats=True), random(4, 3, 5, 2) * 3 + 1
    assert layer(Tensor(x)).numpy() == pytest.approx(x / np.sqrt(1 + 1e-5), rel=1e-5, abs=1e-6)
    with Tensor.train():
        assert_close(layer(Tensor(x)), normalised(x, (2, 3)), 1e-4)
    assert_close(layer.running_mean, 0.1 * x.mean((0, 2, 3)))
    assert_close(layer.running_var, 0.9 + 0.1 * x.var((2, 3), ddof=1).mean(0))


def test_batchnorm_without_momentum_averages_all_batches() -> None:
    layer, batches = nn.BatchNorm1d(3, momentum=None), [random(4, 3, seed=i) for i in range(3)]
    with Tensor.train():
        for batch in batches:
            layer(Tensor(batch))
    assert_close(layer.running_mean, np.mean([batch.mean(0) for batch in batches], 0))


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


def test_the_padding_of_an_embedding_is_not_learnt() -> None:
    layer = nn.Embedding(5, 3, padding_idx=-1)
    assert layer.weight.numpy()[4].tolist() == [0.0] * 3
    layer(Tensor([4, 1, 4])).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.numpy().sum(1).tolist() == [0.0, 3.0, 0.0, 0.0, 0.0]


def test_an_embedding_that_is_given() -> None:
    rows = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert nn.Embedding.from_pretrained(rows)(Tensor([1, 0])).tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert nn.Embedding.from_pretrained(rows).weight.requires_grad is False
    assert nn.Embedding.from_pretrained(rows, freeze=False).weight.requires_grad is True


def test_bags_of_given_rows() -> None:
    rows = Tensor([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]])
    bag = nn.EmbeddingBag.from_pretrained(rows, mode="sum", padding_idx=-1)
    assert bag(Tensor([[1, 0, 2], [1, 1, 2]])).tolist() == [[4.0, 6.0], [6.0, 8.0]]
    assert bag.weight.requires_grad is False
    assert (bag.num_embeddings, bag.embedding_dim) == (3, 2)
    assert nn.EmbeddingBag.from_pretrained(rows)(Tensor([[0, 1]])).tolist() == [[2.0, 3.0]]
    assert nn.EmbeddingBag.from_pretrained(rows, freeze=False).weight.requires_grad is True


def test_the_causal_mask_of_a_transformer() -> None:
    mask = nn.Transformer.generate_square_subsequent_mask(3).numpy()
    np.testing.assert_array_equal(mask, np.triu(np.full((3, 3), -np.inf), 1))
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False, mask_check=False)
    x = Tensor.rand(2, 3, 4)
    alone = encoder(x[:, :1]).numpy()
    np.testing.assert_allclose(encoder(x, Tensor(mask)).numpy()[:, :1], alone, rtol=1e-5, atol=1e-6)


def test_bilinear() -> None:
    layer, one, two = nn.Bilinear(3, 4, 2), random(5, 3), random(5, 4, seed=1)
    assert layer.bias is not None
    exact = np.einsum("ni,oij,nj->no", one, layer.weight.numpy(), two) + layer.bias.numpy()
    assert_close(layer(Tensor(one), Tensor(two)), exact)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_transposed_convolution_is_the_adjoint(axes: int) -> None:
    settings: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": 2, "bias": False}
    forth = getattr(nn, f"Conv{axes}d")(2, 3, 3, **settings)
    back = getattr(nn, f"ConvTranspose{axes}d")(3, 2, 3, **settings)
    back.weight = forth.weight
    x = random(1, 2, *(9, 7, 5)[:axes])
    y = forth(Tensor(x)).numpy()
    z = random(*y.shape, seed=1)
    returned = back(Tensor(z), output_size=x.shape[2:]).numpy()
    assert returned.shape == x.shape
    assert (y * z).sum() == pytest.approx((x * returned).sum(), rel=1e-3)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_convolutions_pad_in_other_ways(mode: str) -> None:
    layer, x = nn.Conv1d(2, 3, 3, padding="same", padding_mode=mode), random(1, 2, 6)
    padded = np.pad(
        x,
        ((0, 0), (0, 0), (1, 1)),
        mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode],  # type: ignore[call-overload]
    )
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=2)
    assert layer.bias is not None
    exact = np.einsum("nclk,ock->nol", windows, layer.weight.numpy())
    assert_close(layer(Tensor(x)), exact + layer.bias.numpy()[:, None])


# Sequences


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def step(kind: str, given: Array, kept: Array, states: list[Array]) -> list[Array]:
    """One step by its formula, from the products with input and hidden state."""
    if kind == "RNN":
        return [np.tanh(given + kept)]
    if kind == "LSTM":
        write, forget, fresh, show = np.split(given + kept, 4, -1)
        cell = sigmoid(forget) * states[1] + sigmoid(write) * np.tanh(fresh)
        return [sigmoid(show) * np.tanh(cell), cell]
    (r, z, n), (hr, hz, hn) = np.split(given, 3, -1), np.split(kept, 3, -1)
    fresh, update = np.tanh(n + sigmoid(r + hr) * hn), sigmoid(z + hz)
    return [(1 - update) * fresh + update * states[0]]


def unrolled(kind: str, layer: Any, x: Array, place: str) -> tuple[Array, list[Array]]:
    """One layer in one direction: (T, N, size)."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, u, b, c = (getattr(layer, name + place).numpy().astype(float) for name in names)
    states = [np.zeros((x.shape[1], u.shape[1]))] * (2 if kind == "LSTM" else 1)
    outs = []
    for row in x:
        states = step(kind, row @ w.T + b, states[0] @ u.T + c, states)
        outs.append(states[0])
    return np.stack(outs), states


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_recurrent_layers(kind: str, length: int) -> None:
    layer = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    x = random(2, length, 3)
    exact: Array = x.swapaxes(0, 1)
    last = []
    for number in range(2):
        ahead, one = unrolled(kind, layer, exact, f"_l{number}")
        back, other = unrolled(kind, layer, exact[::-1], f"_l{number}_reverse")
        exact = np.concatenate([ahead, back[::-1]], -1)
        last += [one, other]
    out, states = layer(Tensor(x))
    assert_close(out, exact.swapaxes(0, 1))
    states = states if isinstance(states, tuple) else (states,)
    for found, parts in zip(states, zip(*last, strict=True), strict=True):
        assert_close(found, np.stack(parts))
    assert_trains(lambda x: layer(x)[0], Tensor(x))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_cells_do_the_steps_of_the_layers(kind: str) -> None:
    layer, cell = getattr(nn, kind)(3, 4), getattr(nn, f"{kind}Cell")(3, 4)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, getattr(layer, f"{name}_l0"))
    x = random(3, 2, 3)
    states = None
    for row in x:
        states = cell(Tensor(row), states)
    hidden = states[0] if isinstance(states, tuple) else states
    assert isinstance(hidden, Tensor)
    assert_close(hidden, layer(Tensor(x))[0].numpy()[-1])


def test_a_recurrent_layer_learns_in_a_captured_step() -> None:
    Tensor.manual_seed(0)
    layer, head = nn.GRU(2, 8), nn.Linear(8, 1)
    optimizer = nn.optim.Adam(get_parameters([layer, head]), lr=0.05)
    x = Tensor(random(4, 16, 2)).realize()
    target = Tensor(x.numpy()[:, :, 0].sum(0)[:, None]).realize()

    @TinyJit
    def learn(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = head(layer(x)[1][0]).mse_loss(target)
        loss.backward()
        optimizer.step()
        return loss

    losses = [learn(x, target).item() for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]


# Attention


def attended(layer: Any, x: Array, hidden: Array) -> Array:
    """Self-attention with the batch first, by its definition."""
    weight = layer.in_proj_weight.numpy().astype(float)
    batch, length, width = x.shape
    depth = width // layer.num_heads
    shape = (batch, length, layer.num_heads, depth)
    query, key, value = ((x @ part.T).reshape(shape).swapaxes(1, 2) for part in np.split(weight, 3))
    scores = np.where(hidden, -np.inf, query @ key.swapaxes(-1, -2) / np.sqrt(depth))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = (weights @ value).swapaxes(1, 2).reshape(batch, length, width)
    return np.asarray(out @ layer.out_proj.weight.numpy().T)


def test_attention_with_masks() -> None:
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), random(2, 5, 8)
    later = np.triu(np.ones((5, 5), bool), 1)
    padded = np.array([[False] * 5, [False] * 3 + [True] * 2])
    both = later | padded[:, None, None, :]
    inputs = [Tensor(x)] * 3
    assert_close(layer(*inputs)[0], attended(layer, x, np.zeros((5, 5), bool)))
    assert_close(layer(*inputs, is_causal=True)[0], attended(layer, x, later))
    masks = {"attn_mask": Tensor(later), "key_padding_mask": Tensor(padded)}
    assert_close(layer(*inputs, **masks)[0], attended(layer, x, both))
    added = {**masks, "attn_mask": Tensor(np.where(later, -np.inf, 0.0))}
    assert_close(layer(*inputs, **added)[0], attended(layer, x, both))
    weights = layer(*inputs, **masks, average_attn_weights=False)[1]
    assert weights is not None
    assert weights.shape == (2, 2, 5, 5)
    assert_close(weights.sum(axis=-1), np.ones((2, 2, 5)))
    assert (weights.numpy()[np.broadcast_to(both, weights.shape)] == 0).all()
    assert_trains(lambda x: layer(x, x, x)[0], Tensor(x))


def test_a_position_that_may_take_nothing_gets_zeros() -> None:
    layer, x = nn.MultiheadAttention(8, 2, bias=False, batch_first=True), Tensor(random(1, 3, 8))
    out, weights = layer(x, x, x, key_padding_mask=Tensor([[True, True, True]]))
    assert weights is not None
    assert out.abs().sum().item() == 0
    assert weights.abs().sum().item() == 0


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_and_decoder_put_their_parts_together(norm_first: bool) -> None:
    settings: dict[str, Any] = {"batch_first": True, "norm_first": norm_first}
    encoder = nn.TransformerEncoderLayer(8, 2, 16, **settings)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, **settings)
    x, memory = Tensor(random(2, 4, 8)), Tensor(random(2, 3, 8, seed=1))

    def part(x: Tensor, norm: nn.LayerNorm, inner: Callable[[Tensor], Tensor]) -> Tensor:
        return x + inner(norm(x)) if norm_first else norm(x + inner(x))

    y = part(x, encoder.norm1, lambda x: encoder.self_attn(x, x, x)[0])
    y = part(y, encoder.norm2, lambda x: encoder.linear2(encoder.linear1(x).relu()))
    assert_close(encoder(x), y.numpy())
    y = part(x, decoder.norm1, lambda x: decoder.self_attn(x, x, x)[0])
    y = part(y, decoder.norm2, lambda x: decoder.multihead_attn(x, memory, memory)[0])
    y = part(y, decoder.norm3, lambda x: decoder.linear2(decoder.linear1(x).relu()))
    assert_close(decoder(x, memory), y.numpy())


def test_the_layers_of_an_encoder_are_copies() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
    x = Tensor(random(4, 2, 8))
    exact = model.layers[1](model.layers[0](x, is_causal=True), is_causal=True)
    assert model.norm is not None
    assert_close(model(x, is_causal=True), model.norm(exact).numpy())
    assert len(get_parameters(model)) == 2 * len(get_parameters(layer)) + 2
    assert "layers.1.self_attn.in_proj_weight" in get_state_dict(model)


# Functions as layers


def test_functions_are_layers_with_settings() -> None:
    layer = nn.LeakyReLU(negative_slope=0.5)
    assert layer(Tensor([-2.0, 2.0])).tolist() == [-1.0, 2.0]
    assert repr(layer) == "LeakyReLU(negative_slope=0.5)"
    assert isinstance(nn.ReLU(), nn.ReLU)  # type: ignore[arg-type]
    assert get_parameters(nn.Sequential(nn.ReLU(inplace=True), nn.Flatten())) == []
    copied = pickle.loads(pickle.dumps(nn.MaxPool2d(2, ceil_mode=True)))
    assert repr(copied) == repr(nn.MaxPool2d(2, ceil_mode=True))


def test_a_wrong_setting_names_the_layer() -> None:
    with pytest.raises(TypeError, match="LeakyReLU got an unexpected keyword argument 'a'"):
        nn.LeakyReLU(a=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Softmax\(dim.*\): missing a required argument: 'dim'"):
        nn.Softmax()  # type: ignore[call-arg]


def test_losses_are_layers_with_settings() -> None:
    x, y = Tensor(random(4, 3)), Tensor(random(4, 3, seed=1))
    assert nn.MSELoss(reduction="sum")(x, y).item() == x.mse_loss(y, "sum").item()
    assert nn.HuberLoss(delta=0.5)(x, y).item() == x.huber_loss(y, delta=0.5).item()
    assert nn.TripletMarginLoss(margin=0.5)(x, y, x).item() > 0


def test_weights_of_a_loss_are_saved_and_not_learnt() -> None:
    loss = nn.CrossEntropyLoss(weight=Tensor([1.0, 3.0]))
    assert list(get_state_dict(loss)) == ["weight"]
    layer = nn.Linear(2, 2)
    assert len(nn.optim.SGD(get_parameters([layer, loss])).params) == 2
    losses = np.log1p(np.exp([0.5, -0.25]))
    found = loss(Tensor([[1.0, 0.5], [0.25, 0.5]]), Tensor([1, 1]))
    assert found.item() == pytest.approx((losses * 3).sum() / 6, rel=1e-5)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_dropout_of_channels(axes: int) -> None:
    layer, x = getattr(nn, f"Dropout{axes}d")(0.5), Tensor.ones(20, 30, *(2, 3, 4)[:axes])
    assert layer(x) is x
    Tensor.manual_seed(0)
    with Tensor.train():
        dropped = layer(x).numpy().reshape(20, 30, -1)
    assert (dropped == dropped[..., :1]).all()
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert 0.4 < (dropped[..., 0] == 0).mean() < 0.6


def test_dropout() -> None:
    layer, x = nn.Dropout(0.25), Tensor(np.ones(4000, np.float32))
    assert layer(x).tolist() == [1.0] * 4000
    Tensor.manual_seed(0)
    with Tensor.train():
        dropped = layer(x).numpy()
    np.testing.assert_allclose(np.unique(dropped), [0, 4 / 3], rtol=1e-6)
    assert abs(dropped.mean() - 1) < 0.05


def test_sequential_is_a_list_with_names() -> None:
    model = nn.Sequential({"first": nn.Linear(4, 3), "act": nn.ReLU()})
    model.append(nn.Linear(3, 2))
    assert len(model) == 3
    assert list(get_state_dict(model)) == ["first.weight", "first.bias", "2.weight", "2.bias"]
    assert model[-1] is list(model)[2]
    assert model[1:](Tensor([[-1.0, 2.0, 3.0]])).shape == (1, 2)
    model[1] = Tensor.tanh
    assert model.act is Tensor.tanh
    with pytest.raises(
        AttributeError, match="'Sequential' object has no attribute 'last'; it has first, act, 2"
    ):
        _ = model.last


def test_sequential_calls_in_order_and_names_like_pytorch() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Tensor.relu, nn.Linear(3, 2, bias=False))
    x = Tensor(random(5, 4))
    assert_close(model(x), model[2](model[0](x).relu()).numpy())
    assert list(get_state_dict(model)) == ["0.weight", "0.bias", "2.weight"]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "Conv2d: 3 and 4 channels do not divide into 2"),
        (lambda: nn.Conv1d(3, 4, (1, 2)), r"Conv1d: kernel_size \(1, 2\) needs one number"),
        (
            lambda: nn.ConvTranspose1d(1, 1, 3, stride=2)(Tensor.ones(1, 1, 4), output_size=[20]),
            r"ConvTranspose1d: output_size \(20,\) is out of reach; .* sizes go from \(9,\) on",
        ),
        (lambda: nn.Embedding(4, 2, padding_idx=4), "padding_idx 4 is none of 4 rows"),
        (lambda: nn.InstanceNorm1d(3)(Tensor.ones(2, 3)), r"\(2, 3\) has no axes after the"),
        (lambda: nn.LSTM(3, 4, proj_size=4), "proj_size 4 must be between 0 and hidden_size 4"),
        (
            lambda: nn.LSTM(3, 4)(Tensor.ones(2, 5)),
            r"expected \(T, N, 3\) or \(T, 3\), got \(2, 5\)",
        ),
        (
            lambda: nn.GRU(3, 4)(Tensor.ones(5, 2, 3), Tensor.ones(2, 4)),
            r"GRU: states of shape \(2, 4\) do not fit; .* they are \(1, 2, 4\)",
        ),
        (lambda: nn.GRUCell(3, 4)(Tensor.ones(2, 5)), r"GRUCell: expected \(N, 3\) or \(3,\)"),
        (lambda: nn.MultiheadAttention(8, 3), "embed_dim 8 does not divide into 3 heads"),
        (
            lambda: nn.MultiheadAttention(8, 2)(
                *[Tensor.ones(5, 1, 8)] * 3, attn_mask=Tensor.ones(4, 5)
            ),
            r"attn_mask is \(4, 5\); it must be \(5, 5\), or \(2, 5, 5\)",
        ),
        (lambda: nn.Dropout2d()(Tensor.ones(2, 3)), r"\[dropout2d\] shape \(2, 3\) is not"),
        (lambda: nn.Conv2d(3, 4, (1, 2, 3)), r"Conv2d: kernel_size \(1, 2, 3\) needs one number"),
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


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (
            lambda: nn.Conv2d(3, 4, 3, padding="sam"),
            "padding is numbers, 'valid' or 'same', not 'sam'",
        ),
        (lambda: nn.Conv2d(3, 4, 3, 2, padding="same"), "padding='same' is for a stride of 1"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="x"), "padding_mode 'x' is not one of 'zeros'"),
        (lambda: nn.RNN(3, 4, nonlinearity="x"), "RNN: nonlinearity 'x' is not one of 'tanh'"),
        (lambda: nn.TransformerEncoderLayer(8, 2, activation="x"), "activation is 'x'; it must be"),
    ],
)
def test_settings_that_do_not_exist_are_explained(use: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        use()


@pytest.mark.parametrize("name", ["float16", "float64", np.float64, dtypes.bfloat16])
def test_layers_take_all_that_names_a_dtype(name: Any) -> None:
    wanted = Tensor.zeros(1, dtype=name).dtype
    for layer in (
        nn.Linear(3, 2, dtype=name),
        nn.LayerNorm(3, dtype=name),
        nn.BatchNorm1d(3, dtype=name),
        nn.PReLU(dtype=name),
        nn.Embedding(3, 2, dtype=name),
        nn.LSTM(3, 2, dtype=name),
        nn.TransformerEncoderLayer(4, 2, 3, dtype=name),
    ):
        kinds = {x.dtype for key, x in nn.state.get_state_dict(layer).items() if "num" not in key}
        assert kinds == {wanted}


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize(
    ("shape", "state"), [((2, 3), (1, 4)), ((3,), (2, 4)), ((2, 3), (4,)), ((2, 3), (2, 1))]
)
def test_states_of_another_shape_are_no_states(
    cell: Any, shape: tuple[int, ...], state: tuple[int, ...]
) -> None:
    """What broadcasts would give numbers all the same."""
    h = Tensor.zeros(*state)
    with pytest.raises(ValueError, match=r"Cell: states of shape .* do not fit"):
        cell(3, 4)(Tensor.ones(*shape), (h, h) if cell is nn.LSTMCell else h)
