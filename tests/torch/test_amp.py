"""Mixed precision, averages of weights, and texts of layers, against PyTorch's."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, dtypes, nn
from ferrule.nn.optim import swa_utils

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.uniform(0.1, 0.9, shape).astype(np.float32) for shape in shapes]


# -- autocast ------------------------------------------------------------------------------------

PRODUCTS: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
    "matmul": ([(4, 3), (3, 5)], lambda x, y: x @ y),
    "mm": ([(4, 3), (3, 5)], lambda x, y: x.mm(y)),
    "bmm": ([(2, 4, 3), (2, 3, 5)], lambda x, y: x.bmm(y)),
    "addmm": ([(4, 5), (4, 3), (3, 5)], lambda x, y, z: x.addmm(y, z)),
    "baddbmm": ([(2, 4, 5), (2, 4, 3), (2, 3, 5)], lambda x, y, z: x.baddbmm(y, z)),
    "mean": ([(4, 3)], lambda x: x.mean()),
    "relu": ([(4, 3)], lambda x: x.relu()),
    "sigmoid": ([(4, 3)], lambda x: x.sigmoid()),
    "add": ([(4, 3), (4, 3)], lambda x, y: x + y),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_results_have_pytorchs_types(name: str) -> None:
    shapes, call = PRODUCTS[name]
    given = arrays(*shapes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = call(*map(torch.tensor, given))
    with ferrule.autocast(dtype=dtypes.bfloat16):
        found = call(*map(Tensor, given))
    assert str(expected.dtype).removeprefix("torch.") == found.dtype.name
    np.testing.assert_allclose(
        found.float().numpy(), expected.float().numpy(), rtol=2**-6, atol=1e-3
    )


def test_the_lists_are_pytorchs() -> None:
    """The operations that PyTorch documents for CUDA, where ferrule has them under that name."""
    low = "addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_transpose1d"
    low += " conv_transpose2d conv_transpose3d linear matmul multi_dot mv prelu"
    wide = """acos asin cosh cosine_embedding_loss cdist cosine_similarity cross_entropy cumprod
        cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log
        log10 log1p log2 log_softmax margin_ranking_loss mse_loss multi_margin_loss
        multilabel_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal
        rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum renorm tan
        triplet_margin_loss"""
    from ferrule.tensor.autocast import POLICIES, Policy

    for names, policy in ((low, Policy.LOW), (wide, Policy.WIDE)):
        assert [name for name in names.split() if POLICIES.get(name) is not policy] == []


# -- GradScaler ----------------------------------------------------------------------------------


def test_scales_and_weights_are_pytorchs() -> None:
    start = arrays((3, 2))[0]
    settings = {"init_scale": 64.0, "growth_interval": 2}
    weight, own = torch.tensor(start, requires_grad=True), Tensor(start)
    theirs, ours = torch.optim.AdamW([weight], lr=0.1), nn.optim.AdamW([own], lr=0.1)
    scaler, own_scaler = torch.amp.GradScaler("cpu", **settings), ferrule.amp.GradScaler(**settings)

    @TinyJit
    def step(factor: Tensor) -> Tensor:
        ours.zero_grad()
        own_scaler.scale((own * own * factor).sum()).backward()
        own_scaler.step(ours)
        own_scaler.update()
        return own.sum().realize()

    for factor in (1.0, 2.0, math.inf, 1.0, math.nan, 1.0, 0.5, 3.0):
        theirs.zero_grad()
        scaler.scale((weight * weight * factor).sum()).backward()
        scaler.step(theirs)
        scaler.update()
        step(Tensor([factor]).realize())
        assert own_scaler.get_scale() == scaler.get_scale()
        np.testing.assert_allclose(own.numpy(), weight.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert own_scaler.state_dict() == scaler.state_dict()
    other = ferrule.amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()


# -- averages ------------------------------------------------------------------------------------


def model_of(library: Any) -> Any:
    return library.Sequential(
        library.Linear(4, 3), library.BatchNorm1d(3), library.ReLU(), library.Linear(3, 2)
    )


def pair() -> tuple[Any, Any]:
    theirs, ours = model_of(torch.nn), model_of(nn)
    nn.state.load_state_dict(ours, {name: x.numpy() for name, x in theirs.state_dict().items()})
    return theirs.train(), ours.train()


AVERAGES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "mean": lambda _: {},
    "ema": lambda utils: {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.8)},
    "ema of each": lambda utils: {"avg_fn": utils.get_ema_avg_fn(0.8)},
    "buffers too": lambda utils: {
        "multi_avg_fn": utils.get_ema_multi_avg_fn(0.8),
        "use_buffers": True,
    },
    "own": lambda _: {"avg_fn": lambda averaged, now, count: averaged * 0.5 + now * 2},
}


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("kind", AVERAGES)
def test_averaged_models_are_pytorchs(kind: str, captured: bool) -> None:
    theirs, ours = pair()
    their_average = torch.optim.swa_utils.AveragedModel(
        theirs, **AVERAGES[kind](torch.optim.swa_utils)
    )
    average = swa_utils.AveragedModel(ours, **AVERAGES[kind](swa_utils))
    their_step, our_step = (
        torch.optim.SGD(theirs.parameters(), lr=0.1),
        nn.optim.SGD(ours.parameters(), lr=0.1),
    )

    def step(x: Tensor) -> Tensor:
        our_step.zero_grad()
        loss = ours(x).square().mean()
        loss.backward()
        our_step.step()
        average.update_parameters(ours)
        return loss.realize()

    run = TinyJit(step) if captured else step
    for x in arrays(*[(6, 4)] * 5):
        their_step.zero_grad()
        theirs(torch.tensor(x)).square().mean().backward()
        their_step.step()
        their_average.update_parameters(theirs)
        run(Tensor(x).realize())
    state = average.state_dict()
    assert list(state) == list(their_average.state_dict())
    for name, expected in their_average.state_dict().items():
        np.testing.assert_allclose(state[name].numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)

    batches = arrays(*[(6, 4)] * 3)
    torch.optim.swa_utils.update_bn([torch.tensor(x) for x in batches], their_average)
    swa_utils.update_bn([[Tensor(x), 0] for x in batches], average)
    average.eval()
    x = arrays((5, 4))[0]
    np.testing.assert_allclose(
        average(Tensor(x)).numpy(),
        their_average.eval()(torch.tensor(x)).detach().numpy(),
        rtol=1e-4,
        atol=1e-5,
    )
    assert [layer.momentum for layer in average.modules() if isinstance(layer, nn.BatchNorm1d)] == [
        0.1
    ]


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("epochs", [0, 1, 5])
def test_swa_rates_are_pytorchs(strategy: str, epochs: int) -> None:
    weight, own = torch.zeros(1, requires_grad=True), Tensor([0.0])
    theirs, ours = torch.optim.SGD([weight], lr=0.8), nn.optim.SGD([own], lr=0.8)
    settings = {"swa_lr": 0.05, "anneal_epochs": epochs, "anneal_strategy": strategy}
    first = torch.optim.lr_scheduler.ExponentialLR(theirs, 0.9)
    own_first = nn.optim.lr_scheduler.ExponentialLR(ours, 0.9)
    second = torch.optim.swa_utils.SWALR(theirs, **settings)
    own_second = swa_utils.SWALR(ours, **settings)
    found, expected = [], []
    for epoch in range(12):
        theirs.step()
        for scheduler in (second, own_second) if epoch > 3 else (first, own_first):
            scheduler.step()
        found.append(ours.lr.item())
        expected.append(theirs.param_groups[0]["lr"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# -- texts of layers -----------------------------------------------------------------------------

TEXT = """
    ReLU() ReLU(inplace=True) ReLU6() GELU() ELU(0.5) SELU() SiLU() Mish() Sigmoid() Tanh()
    Softmax(dim=1) LogSoftmax(1) Softplus() Softshrink() Threshold(0.1,20.0) Hardtanh()
    Hardshrink() LeakyReLU(0.1) GLU() PReLU(3) RReLU() Linear(4,2) Linear(4,2,bias=False)
    Bilinear(2,3,4) Identity() Flatten() Dropout(0.1) Dropout2d() Conv1d(3,8,3)
    Conv2d(3,8,3,padding=1) Conv3d(1,2,3)
    Conv2d(4,8,(3,1),stride=2,dilation=2,groups=2,bias=False) ConvTranspose1d(3,8,3)
    ConvTranspose2d(3,8,3,stride=2,padding=1,output_padding=1) RMSNorm(4) LocalResponseNorm(3)
    GroupNorm(2,4) LayerNorm(4) LayerNorm((4,5),elementwise_affine=False) MaxPool1d(2)
    MaxPool2d(2,padding=1) MaxPool2d((2,3),stride=(1,2)) AvgPool2d(3) AvgPool3d(2)
    AdaptiveAvgPool2d((1,1)) AdaptiveMaxPool2d(2) PixelShuffle(2) Fold((4,4),2) Unfold(2)
    Upsample(size=(4,4),mode="bilinear") Embedding(10,3) Embedding(10,3,padding_idx=0)
    EmbeddingBag(10,3) RNN(4,8) LSTM(4,8,num_layers=2,batch_first=True) LSTMCell(4,8)
    GRU(4,8,bidirectional=True,dropout=0.1) GRUCell(4,8,bias=False) CrossEntropyLoss() MSELoss()
    BCEWithLogitsLoss() CTCLoss() KLDivLoss() Sequential() ModuleDict({"a":nn.ReLU()})
    ModuleList([nn.Linear(1,1),nn.Linear(1,1)])
    Sequential(nn.Linear(4,8),nn.Sequential(nn.ReLU()))
"""
LAYERS = TEXT.split()


@pytest.mark.filterwarnings("ignore:dropout option adds dropout")
@pytest.mark.parametrize("layer", LAYERS)
def test_texts_of_layers_are_pytorchs(layer: str) -> None:
    expected = repr(eval(f"nn.{layer}", {"nn": torch.nn}))
    if "Norm(" in layer:  # newer versions say if there is a bias
        expected = expected.replace(", bias=True)", ")").replace(", bias=False)", ")")
    assert repr(eval(f"nn.{layer}", {"nn": nn})) == expected


def test_copies_of_a_model_are_independent() -> None:
    _, ours = pair()
    average = swa_utils.AveragedModel(ours)
    kept = copy.deepcopy(average)
    with Tensor.no_grad():
        for parameter in ours.parameters():
            parameter += 1
    average.update_parameters(ours)
    assert not np.array_equal(average.module[0].weight.numpy(), kept.module[0].weight.numpy())
