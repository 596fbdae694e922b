"""Layers against PyTorch's: names and shapes of parameters, results, gradients, initial values."""

from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, dtypes, nn
from ferrule.nn.state import get_state_dict, load_state_dict

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about its own options

Array = np.ndarray[Any, Any]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def flat(result: Any) -> list[Any]:
    """The tensors of a result, those in tuples included."""
    if isinstance(result, tuple | list):
        return [tensor for part in result for tensor in flat(part)]
    return [] if result is None else [result]


def pair(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """PyTorch's layer in float64, and ours with its state."""
    theirs = getattr(torch.nn, name)(*args, **kwargs).double()
    kinds = {"dtype": dtypes.float64} if theirs.state_dict() else {}
    ours = getattr(nn, name)(*args, **kwargs, **kinds)
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    shapes = {name: tensor.shape for name, tensor in get_state_dict(ours).items()}
    assert shapes == {name: value.shape for name, value in state.items()}
    load_state_dict(ours, state)
    return ours, theirs


def assert_same(ours: Any, theirs: Any, inputs: list[Array], **options: Any) -> None:
    """Results, gradients of inputs and parameters, and what the layers keep afterwards."""
    mine = [Tensor(value, requires_grad=value.dtype.kind == "f") for value in inputs]
    reference = [torch.tensor(value, requires_grad=value.dtype.kind == "f") for value in inputs]
    found, exact = flat(ours(*mine, **options)), flat(theirs(*reference, **options))
    assert len(found) == len(exact)
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-9)
    floats = [
        (one, other)
        for one, other in zip(found, exact, strict=True)
        if other.is_floating_point() and other.requires_grad
    ]
    if floats:
        assert_same_gradients(floats, mine, reference, ours, theirs)
    for name, value in theirs.state_dict().items():
        if name == "num_batches_tracked" and isinstance(ours, nn.InstanceNorm):
            continue  # which PyTorch does not count
        kept = get_state_dict(ours)[name].numpy()
        np.testing.assert_allclose(kept, value.numpy(), rtol=1e-9, atol=1e-9)


def assert_same_gradients(
    floats: list[Any], mine: list[Any], reference: list[Any], ours: Any, theirs: Any
) -> None:
    loss, exact = Tensor(0.0), torch.tensor(0.0)
    for place, (one, other) in enumerate(floats):
        slope = random(*other.shape, seed=place + 5)
        loss = loss + (one * Tensor(slope)).sum()
        exact = exact + (other * torch.tensor(slope)).sum()
    loss.backward()
    exact.backward()
    for one, other in zip(mine, reference, strict=True):
        if other.grad is not None:
            np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-8, atol=1e-8)
    parameters = get_state_dict(ours)
    for name, value in theirs.named_parameters():
        if value.grad is not None:
            grad = parameters[name].grad
            assert grad is not None, name
            np.testing.assert_allclose(grad.numpy(), value.grad.numpy(), rtol=1e-8, atol=1e-8)


IMAGE, LINE, SOLID = (2, 4, 6, 7), (2, 4, 9), (2, 4, 5, 4, 6)

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], list[Any]]] = [
    ("Linear", (5, 3), {}, [(2, 4, 5)]),
    ("Linear", (5, 3), {"bias": False}, [(5,)]),
    ("Bilinear", (5, 3, 4), {}, [(2, 6, 5), (2, 6, 3)]),
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, [LINE]),
    ("Conv1d", (4, 6, 4), {"padding": "same", "dilation": 2}, [LINE]),
    ("Conv1d", (4, 6, 3), {"padding": 2, "padding_mode": "circular"}, [LINE]),
    ("Conv2d", (4, 6, (3, 2)), {"padding": (2, 1), "stride": (2, 1), "bias": False}, [IMAGE]),
    ("Conv2d", (4, 6, 3), {"padding": "valid"}, [IMAGE]),
    ("Conv2d", (4, 6, 3), {"padding": (1, 2), "padding_mode": "reflect"}, [IMAGE]),
    ("Conv2d", (4, 6, 3), {"padding": "same", "padding_mode": "replicate"}, [IMAGE]),
    ("Conv2d", (4, 4, 3), {"groups": 4}, [IMAGE[1:]]),
    ("Conv3d", (4, 2, (1, 2, 3)), {"padding": 1, "dilation": (1, 2, 1)}, [SOLID]),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, [LINE]),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "output_padding": 1, "dilation": 2}, [IMAGE]),
    ("ConvTranspose3d", (4, 2, 2), {"stride": (1, 2, 1), "bias": False}, [SOLID]),
    ("BatchNorm1d", (4,), {}, [(6, 4)]),
    ("BatchNorm1d", (4,), {"momentum": None}, [LINE]),
    ("BatchNorm2d", (4,), {"momentum": 0.3, "eps": 1e-3}, [IMAGE]),
    ("BatchNorm2d", (4,), {"affine": False, "track_running_stats": False}, [IMAGE]),
    ("BatchNorm3d", (4,), {}, [SOLID]),
    ("InstanceNorm1d", (4,), {}, [LINE]),
    ("InstanceNorm2d", (4,), {"affine": True}, [IMAGE]),
    ("InstanceNorm2d", (4,), {"affine": True, "track_running_stats": True}, [IMAGE]),
    ("InstanceNorm3d", (4,), {"track_running_stats": True}, [SOLID]),
    ("LayerNorm", (7,), {}, [IMAGE]),
    ("LayerNorm", ((6, 7),), {"eps": 1e-3, "bias": False}, [IMAGE]),
    ("LayerNorm", (7,), {"elementwise_affine": False}, [IMAGE]),
    ("GroupNorm", (2, 4), {"eps": 1e-3}, [IMAGE]),
    ("GroupNorm", (4, 4), {"affine": False}, [IMAGE]),
    ("RMSNorm", (7,), {}, [IMAGE]),
    ("RMSNorm", ((6, 7),), {"eps": 1e-3}, [IMAGE]),
    ("RMSNorm", (7,), {"elementwise_affine": False}, [IMAGE]),
    ("PReLU", (), {}, [IMAGE]),
    ("PReLU", (4,), {}, [IMAGE]),
    ("PReLU", (4,), {"init": 0.1}, [(3, 4)]),
    ("RNN", (3, 4), {}, [(5, 2, 3)]),
    ("RNN", (3, 4), {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True}, [(5, 2, 3)]),
    ("LSTM", (3, 4), {"num_layers": 2, "bidirectional": True}, [(5, 2, 3)]),
    ("LSTM", (3, 4), {"batch_first": True, "bias": False}, [(5, 2, 3)]),
    ("LSTM", (3, 4), {"proj_size": 2, "num_layers": 2, "bidirectional": True}, [(5, 2, 3)]),
    ("GRU", (3, 4), {}, [(5, 3)]),
    ("GRU", (3, 4), {"num_layers": 2, "bidirectional": True, "batch_first": True}, [(5, 2, 3)]),
    ("RNNCell", (3, 4), {"nonlinearity": "relu"}, [(2, 3)]),
    ("LSTMCell", (3, 4), {}, [(2, 3)]),
    ("GRUCell", (3, 4), {"bias": False}, [(3,)]),
    ("MultiheadAttention", (8, 2), {}, [(5, 2, 8), (6, 2, 8), (6, 2, 8)]),
    ("MultiheadAttention", (8, 4), {"batch_first": True, "bias": False}, [(2, 5, 8)] * 3),
    (
        "MultiheadAttention",
        (8, 2),
        {"kdim": 3, "vdim": 5, "add_bias_kv": True, "add_zero_attn": True},
        [(5, 2, 8), (6, 2, 3), (6, 2, 5)],
    ),
    ("MultiheadAttention", (8, 2), {}, [(5, 8), (6, 8), (6, 8)]),
    ("TransformerEncoderLayer", (8, 2, 16), {"dropout": 0.0}, [(5, 2, 8)]),
    (
        "TransformerEncoderLayer",
        (8, 2, 16),
        {"dropout": 0.0, "norm_first": True, "activation": "gelu", "batch_first": True},
        [(2, 5, 8)],
    ),
    ("TransformerEncoderLayer", (8, 2, 16), {"dropout": 0.0, "bias": False}, [(5, 8)]),
    ("TransformerDecoderLayer", (8, 2, 16), {"dropout": 0.0}, [(5, 2, 8), (6, 2, 8)]),
    (
        "TransformerDecoderLayer",
        (8, 2, 16),
        {"dropout": 0.0, "norm_first": True, "batch_first": True},
        [(2, 5, 8), (2, 6, 8)],
    ),
    ("Transformer", (8, 2, 2, 2, 16), {"dropout": 0.0}, [(5, 2, 8), (6, 2, 8)]),
    ("Flatten", (), {}, [IMAGE]),
    ("Unflatten", (1, (2, 2)), {}, [IMAGE]),
    ("Dropout2d", (0.0,), {}, [IMAGE]),
    ("MaxPool1d", (3,), {"stride": 2, "padding": 1}, [LINE]),
    ("MaxPool2d", (2,), {"return_indices": True, "ceil_mode": True}, [IMAGE]),
    ("MaxPool2d", ((3, 2), (2, 1)), {"dilation": (1, 2)}, [IMAGE]),
    ("MaxPool3d", (2,), {}, [SOLID]),
    ("AvgPool1d", (3, 2, 1), {"count_include_pad": False}, [LINE]),
    ("AvgPool2d", (3,), {"padding": 1, "divisor_override": 5}, [IMAGE]),
    ("AvgPool3d", (2, 1), {}, [SOLID]),
    ("LPPool1d", (2, 3), {"stride": 2}, [LINE]),
    ("LPPool2d", (4, (3, 2)), {"ceil_mode": True}, [IMAGE]),
    ("LPPool3d", (2.0, 2, 1), {}, [SOLID]),
    ("LocalResponseNorm", (3,), {"alpha": 0.5, "k": 2.0}, [IMAGE]),
    ("ChannelShuffle", (2,), {}, [IMAGE]),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, [IMAGE]),
    ("UpsamplingBilinear2d", ((9, 5),), {}, [IMAGE]),
    ("TripletMarginWithDistanceLoss", (), {"margin": 2.0, "swap": True}, [(4, 3)] * 3),
    ("AdaptiveAvgPool1d", (4,), {}, [LINE]),
    ("AdaptiveAvgPool2d", ((3, None),), {}, [IMAGE]),
    ("AdaptiveAvgPool3d", (2,), {}, [SOLID]),
    ("AdaptiveMaxPool2d", (3,), {"return_indices": True}, [IMAGE]),
    ("Upsample", ((9, 8),), {}, [IMAGE]),
    ("Upsample", (), {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True}, [IMAGE]),
    ("PixelShuffle", (2,), {}, [(1, 8, 2, 3)]),
    ("PixelUnshuffle", (2,), {}, [(1, 2, 4, 6)]),
    ("Unfold", ((3, 2),), {"padding": 1, "stride": 2}, [IMAGE]),
    ("Fold", ((5, 6), 2), {}, [(1, 8, 20)]),
    ("ZeroPad1d", (2,), {}, [LINE]),
    ("ZeroPad2d", ((1, 2, 3, 0),), {}, [IMAGE]),
    ("ReflectionPad2d", ((1, 2, 3, 0),), {}, [IMAGE]),
    ("ReplicationPad3d", (1,), {}, [SOLID]),
    ("CircularPad1d", ((1, 2),), {}, [LINE]),
    ("ConstantPad2d", (1, 3.5), {}, [IMAGE]),
    *[
        (name, (), {}, [IMAGE])
        for name in [
            "ReLU",
            "ReLU6",
            "LeakyReLU",
            "ELU",
            "SELU",
            "CELU",
            "GELU",
            "SiLU",
            "Mish",
            "Sigmoid",
            "LogSigmoid",
            "Tanh",
            "Softsign",
            "Hardtanh",
            "Hardsigmoid",
            "Hardswish",
            "Softmax2d",
        ]
    ],
    ("LeakyReLU", (0.3,), {}, [IMAGE]),
    ("ELU", (), {"alpha": 0.5}, [IMAGE]),
    ("CELU", (0.5,), {}, [IMAGE]),
    ("GELU", ("tanh",), {}, [IMAGE]),
    ("Hardtanh", (-0.5, 0.2), {}, [IMAGE]),
    ("Softmax", (1,), {}, [IMAGE]),
    ("LogSoftmax", (), {"dim": 2}, [IMAGE]),
    ("Softmin", (0,), {}, [IMAGE]),
    ("Softplus", (2.0,), {"threshold": 1.0}, [IMAGE]),
    ("Tanhshrink", (), {}, [IMAGE]),
    ("Softshrink", (0.3,), {}, [IMAGE]),
    ("Hardshrink", (), {}, [IMAGE]),
    ("Threshold", (0.2, 3.0), {}, [IMAGE]),
    ("GLU", (1,), {}, [IMAGE]),
    ("MSELoss", (), {}, [IMAGE] * 2),
    ("L1Loss", (), {"reduction": "sum"}, [IMAGE] * 2),
    ("SmoothL1Loss", (), {"beta": 0.5}, [IMAGE] * 2),
    ("HuberLoss", (), {"delta": 0.5, "reduction": "none"}, [IMAGE] * 2),
    ("BCEWithLogitsLoss", (), {}, [IMAGE] * 2),
    ("KLDivLoss", (), {"log_target": True, "reduction": "batchmean"}, [IMAGE] * 2),
    ("PoissonNLLLoss", (), {}, [IMAGE] * 2),
    ("CrossEntropyLoss", (), {"label_smoothing": 0.1}, [IMAGE] * 2),
    ("CosineSimilarity", (), {}, [IMAGE] * 2),
    ("PairwiseDistance", (), {"keepdim": True}, [(3, 4)] * 2),
    ("TripletMarginLoss", (), {"swap": True}, [(3, 4)] * 3),
    ("MarginRankingLoss", (0.3,), {}, [(5,)] * 3),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "place", range(len(CASES)), ids=[f"{i} {c[0]}" for i, c in enumerate(CASES)]
)
def test_results_and_gradients(place: int, training: bool) -> None:
    name, args, kwargs, shapes = CASES[place]
    torch.manual_seed(place)
    ours, theirs = pair(name, args, kwargs)
    theirs.train(training)
    inputs = [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    with Tensor.train(training):
        assert_same(ours, theirs, inputs)
        if "Norm" in name:  # statistics after a second batch
            for parameter in [*get_state_dict(ours).values(), *theirs.parameters()]:
                parameter.grad = None
            assert_same(ours, theirs, [value * 2 + 1 for value in inputs])


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_given_states(name: str) -> None:
    ours, theirs = pair(name, (3, 4), {"num_layers": 2, "bidirectional": True})
    x, states = random(5, 2, 3), [random(4, 2, 4, seed=seed) for seed in (1, 2)]
    if name == "LSTM":
        found = ours(Tensor(x), tuple(Tensor(state) for state in states))
        exact = theirs(torch.tensor(x), tuple(torch.tensor(state) for state in states))
    else:
        found = ours(Tensor(x), Tensor(states[0]))
        exact = theirs(torch.tensor(x), torch.tensor(states[0]))
    for one, other in zip(flat(found), flat(exact), strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-9)


HIDDEN = np.triu(np.ones((5, 5), bool), 1)
PADDED = np.array([[False] * 4 + [True], [False] * 3 + [True] * 2])


@pytest.mark.parametrize("weights", [{}, {"average_attn_weights": False}, {"need_weights": False}])
@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": HIDDEN},
        {"attn_mask": np.where(HIDDEN, -np.inf, 0.5)},
        {"attn_mask": random(4, 5, 5)},
        {"key_padding_mask": PADDED},
        {"attn_mask": HIDDEN, "key_padding_mask": PADDED},
        {"attn_mask": random(5, 5), "key_padding_mask": PADDED},
    ],
    ids=str,
)
def test_masks_of_attention(masks: dict[str, Any], weights: dict[str, Any]) -> None:
    ours, theirs = pair("MultiheadAttention", (8, 2), {"add_zero_attn": True})
    x = random(5, 2, 8)

    def options(make: Any) -> dict[str, Any]:
        made = {name: make(m) if isinstance(m, np.ndarray) else m for name, m in masks.items()}
        return {**made, **weights}

    found = flat(ours(*[Tensor(x)] * 3, **options(Tensor)))
    exact = flat(theirs(*[torch.tensor(x)] * 3, **options(torch.tensor)))
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_attention(need_weights: bool) -> None:
    ours, theirs = pair("MultiheadAttention", (8, 2), {})
    x = random(5, 2, 8)
    # PyTorch wants the mask too.
    mask = torch.tensor(HIDDEN)
    options = {"is_causal": True, "need_weights": need_weights}
    found = flat(ours(*[Tensor(x)] * 3, **options))
    exact = flat(theirs(*[torch.tensor(x)] * 3, attn_mask=mask, **options))
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-9)


def test_an_encoder_is_a_stack_of_its_layer() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    theirs = torch.nn.TransformerEncoder(layer, 3, torch.nn.LayerNorm(8)).double()
    kind = {"dtype": dtypes.float64}
    mine = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **kind)
    ours = nn.TransformerEncoder(mine, 3, nn.LayerNorm(8, **kind))
    load_state_dict(ours, {name: value.numpy() for name, value in theirs.state_dict().items()})
    theirs.train()
    x = random(5, 2, 8)
    found = ours(Tensor(x), Tensor(HIDDEN), Tensor(PADDED))
    exact = theirs(torch.tensor(x), torch.tensor(HIDDEN), torch.tensor(PADDED))
    np.testing.assert_allclose(found.numpy(), exact.detach().numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"padding_idx": -2},
        {"max_norm": 1.5, "norm_type": 1.0},
        {"scale_grad_by_freq": True, "padding_idx": 1},
    ],
    ids=str,
)
def test_embedding(settings: dict[str, Any]) -> None:
    ours, theirs = pair("Embedding", (6, 4), settings)
    assert_same(ours, theirs, [np.array([[0, 4, 1], [4, 4, 5]])])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "settings", [{}, {"padding_idx": 4}, {"max_norm": 1.0}, {"include_last_offset": True}], ids=str
)
def test_embedding_bag(mode: str, settings: dict[str, Any]) -> None:
    ours, theirs = pair("EmbeddingBag", (6, 4), {"mode": mode, **settings})
    ids = np.array([0, 4, 1, 4, 4, 5])
    # The second bag is empty.
    assert_same(ours, theirs, [ids, np.array([0, 2, 2, 5, 6][: 4 + (len(settings) > 0)])])
    if "include_last_offset" not in settings:
        assert_same(ours, theirs, [ids.reshape(2, 3)])


def test_weights_in_an_embedding_bag() -> None:
    ours, theirs = pair("EmbeddingBag", (6, 4), {"mode": "sum"})
    ids, weights = np.array([[0, 4, 1], [4, 4, 5]]), random(2, 3)
    found = ours(Tensor(ids), per_sample_weights=Tensor(weights))
    exact = theirs(torch.tensor(ids), per_sample_weights=torch.tensor(weights))
    np.testing.assert_allclose(found.numpy(), exact.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"])
def test_losses_of_classes(name: str) -> None:
    weight = np.array([1.0, 2.0, 0.5])
    theirs = getattr(torch.nn, name)(weight=torch.tensor(weight))
    ours = getattr(nn, name)(weight=Tensor(weight))
    assert set(get_state_dict(ours)) == set(theirs.state_dict()) == {"weight"}
    assert_same(ours, theirs, [random(4, 3), np.array([0, 2, 1, 2])])


INITIAL: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Linear", (50, 60), {}),
    ("Bilinear", (30, 20, 10), {}),
    ("Conv2d", (8, 20, 5), {}),
    ("ConvTranspose2d", (8, 20, 5), {"groups": 2}),
    ("Embedding", (50, 60), {}),
    ("LSTM", (30, 40), {"num_layers": 2}),
    ("GRUCell", (30, 40), {}),
    ("MultiheadAttention", (60, 4), {"add_bias_kv": True}),
    ("MultiheadAttention", (60, 4), {"kdim": 20}),
    ("TransformerEncoderLayer", (60, 4, 70), {}),
    ("Transformer", (40, 4, 2, 2, 50), {}),
    ("BatchNorm2d", (40,), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), INITIAL, ids=str)
def test_initial_values_are_spread_alike(name: str, args: Any, kwargs: Any) -> None:
    torch.manual_seed(0)
    Tensor.manual_seed(0)
    theirs = getattr(torch.nn, name)(*args, **kwargs).state_dict()
    ours = get_state_dict(getattr(nn, name)(*args, **kwargs))
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        one, other = ours[key].numpy().astype(float), value.numpy().astype(float)
        assert one.shape == other.shape
        if one.size < 100 and other.std():
            assert np.abs(one).max() < 2 * np.abs(other).max()
            continue
        np.testing.assert_allclose(one.std(), other.std(), rtol=0.2, err_msg=key)
        np.testing.assert_allclose(np.abs(one).max(), np.abs(other).max(), rtol=0.25, err_msg=key)


def test_matrices_of_a_transformer_differ() -> None:
    model = nn.Transformer(8, 2, 2, 1, 16)
    first, second = (layer.linear1.weight.numpy() for layer in model.encoder.layers)
    assert not np.array_equal(first, second)
