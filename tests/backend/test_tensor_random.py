"""Random tensors: the same stream on every device, fresh numbers, sound distributions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import nn
from ferrule.dtype import dtypes
from ferrule.ir.expr import Variable
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor


def test_a_seed_gives_one_stream_on_every_device(device: str) -> None:
    def draw(where: str) -> list[np.ndarray]:
        Tensor.manual_seed(42)
        return [
            Tensor.rand(5, device=where).numpy(),
            Tensor.rand(2, 3, device=where, dtype="float64").numpy(),
            Tensor.randint(6, low=-3, high=1000, device=where).numpy(),
            Tensor.rand(4, device=where, dtype="float16").numpy(),
        ]

    for mine, reference in zip(draw(device), draw("NUMPY"), strict=True):
        np.testing.assert_array_equal(mine, reference)
    Tensor.manual_seed(1)
    mine = Tensor.randn(100, device=device).numpy()
    Tensor.manual_seed(1)
    reference = Tensor.randn(100, device="NUMPY").numpy()
    np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-6)


def test_the_stream_is_fixed(device: str) -> None:
    """Programs keep their numbers from version to version."""
    Tensor.manual_seed(0)
    words = (Tensor.rand(4) * 2**24).int().tolist()
    assert words == [7020545, 5279483, 6596134, 12102596]
    words = (Tensor.rand(4) * 2**24).int().tolist()
    assert len(set(words)) == 4


def test_calls_differ_and_seeds_differ(device: str) -> None:
    Tensor.manual_seed(3)
    first, second = Tensor.rand(50).tolist(), Tensor.rand(50).tolist()
    assert not set(first) & set(second)
    Tensor.manual_seed(3)
    assert Tensor.rand(50).tolist() == first
    Tensor.manual_seed(4)
    assert not set(Tensor.rand(50).tolist()) & set(first)
    Tensor.manual_seed(3 + (1 << 32))
    assert not set(Tensor.rand(50).tolist()) & set(first)


def test_lazy_draws_keep_the_order_of_the_calls(device: str) -> None:
    Tensor.manual_seed(5)
    first, second, third = (Tensor.rand(3) for _ in range(3))
    late = [third.tolist(), first.tolist(), second.tolist()]
    Tensor.manual_seed(5)
    early = [Tensor.rand(3).tolist() for _ in range(3)]
    assert late == [early[2], early[0], early[1]]


def test_uniform(device: str) -> None:
    Tensor.manual_seed(0)
    for dtype in (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16):
        x = Tensor.rand(20_000, dtype=dtype)
        assert x.dtype is dtype
        values = x.numpy().astype(np.float64)
        assert values.min() >= 0
        assert values.max() < 1
        assert abs(values.mean() - 0.5) < 0.01
        assert abs(values.var() - 1 / 12) < 0.003
        counts = np.histogram(values, 16, (0, 1))[0]
        assert ((counts - 1250) ** 2 / 1250).sum() < 60  # chi squared of 15 degrees, p < 1e-6
    y = Tensor.uniform(5000, low=-2, high=5).numpy()
    assert y.min() >= -2
    assert y.max() < 5
    assert Tensor.uniform(4, low=0, high=10, dtype="int32").dtype is dtypes.int32
    assert Tensor.zeros(3, dtype="float64").rand_like().dtype is dtypes.float64


def test_neighbours_are_independent(device: str) -> None:
    Tensor.manual_seed(0)
    values = Tensor.rand(2, 20_000).numpy() - 0.5
    flat = values.reshape(-1)
    for lag in (1, 2, 32, 1000):
        assert abs((flat[lag:] * flat[:-lag]).mean() * 12) < 0.03
    assert abs((values[0] * values[1]).mean() * 12) < 0.03


def test_normal(device: str) -> None:
    Tensor.manual_seed(0)
    values = Tensor.randn(40_000).numpy().astype(np.float64)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert abs((values**3).mean()) < 0.06
    assert abs((values**4).mean() - 3) < 0.15
    assert np.isfinite(values).all()
    inside = (np.abs(values) < 1).mean()
    assert abs(inside - math.erf(math.sqrt(0.5))) < 0.01
    shifted = Tensor.normal(20_000, mean=3, std=0.1, dtype="float64").numpy()
    assert abs(shifted.mean() - 3) < 0.005
    assert abs(shifted.std() - 0.1) < 0.005


def test_integers(device: str) -> None:
    Tensor.manual_seed(0)
    values = Tensor.randint(30_000, low=-2, high=4)
    assert values.dtype is dtypes.int32
    counts = np.bincount(values.numpy() + 2)
    assert len(counts) == 6
    assert ((counts - 5000) ** 2 / 5000).sum() < 45
    wide = Tensor.randint(1000, low=-(1 << 62), high=1 << 62, dtype="int64").numpy()
    assert wide.min() < -(1 << 60)
    assert wide.max() > 1 << 60
    assert Tensor.randint(100, low=0, high=1).sum().item() == 0
    assert Tensor.randint(2, 3).shape == (2, 3)
    assert Tensor.randint(100, high=256, dtype="uint8").dtype is dtypes.uint8


def test_permutations(device: str) -> None:
    Tensor.manual_seed(0)
    order = Tensor.randperm(500).numpy()
    assert sorted(order) == list(range(500))
    assert list(order) != list(range(500))
    many = Tensor.randperm(200_000).numpy()  # not by comparing each with each
    np.testing.assert_array_equal(np.sort(many), np.arange(200_000))
    assert Tensor.randperm(0).shape == (0,)
    assert Tensor.randperm(1).tolist() == [0]
    firsts = [Tensor.randperm(4)[0].item() for _ in range(40)]
    assert set(firsts) == {0, 1, 2, 3}


def test_initialisations(device: str) -> None:
    Tensor.manual_seed(0)
    bounds = {
        "scaled_uniform": (64 * 32) ** -0.5,
        "glorot_uniform": (6 / 96) ** 0.5,
        "kaiming_uniform": (6 / 32 / (1 + 0.01**2)) ** 0.5,
    }
    for name, bound in bounds.items():
        values = getattr(Tensor, name)(64, 32, requires_grad=True)
        assert values.requires_grad
        assert values.is_leaf
        size = np.abs(values.numpy()).max()
        assert bound * 0.98 < size <= bound * 1.000001
    deviation = Tensor.kaiming_normal(64, 32, a=0).numpy().std()
    assert deviation == pytest.approx(0.25, rel=0.05)


def test_symbolic_shapes(device: str) -> None:
    Tensor.manual_seed(9)
    whole = Tensor.rand(10).tolist()
    Tensor.manual_seed(9)
    part = Tensor.rand(Variable("n", 1, 10).bind(4))
    assert part.numpy().tolist() == whole[:4]


def test_empty_and_scalar_shapes(device: str) -> None:
    assert Tensor.rand(0, 3).shape == (0, 3)
    assert 0 <= Tensor.rand().item() < 1
    assert Tensor.randn(()).shape == ()


def test_randint_takes_the_arguments_of_pytorch() -> None:
    for drawn, low, high in (
        (Tensor.randint(3, (400,)), 0, 3),
        (Tensor.randint(-2, 2, [20, 20]), -2, 2),
        (Tensor.randint((20, 20), low=4, high=6), 4, 6),
    ):
        assert drawn.numel() == 400
        assert np.unique(drawn.numpy()).tolist() == list(range(low, high))
    with pytest.raises(ValueError, match=r"\[randint\] low 3 is not below high 2"):
        Tensor.randint(3, 2, (4,))


def test_random_numbers_go_on_where_they_were(device: str) -> None:
    Tensor.manual_seed(5)
    Tensor.rand(3, device=device).realize()
    state = Tensor.get_rng_state(device)
    first = [Tensor.rand(4, device=device).tolist() for _ in range(3)]
    Tensor.manual_seed(6)
    Tensor.set_rng_state(state, device)
    assert [Tensor.rand(4, device=device).tolist() for _ in range(3)] == first


def test_random_numbers_of_replays_go_on_where_they_were(device: str) -> None:
    draw = TinyJit(lambda x: x + Tensor.rand(4, device=device))
    x = Tensor.zeros(4, device=device).contiguous().realize()
    for _ in range(3):
        draw(x)
    state = Tensor.get_rng_state(device)
    first = [draw(x).tolist() for _ in range(3)]
    Tensor.set_rng_state(state, device)
    assert [draw(x).tolist() for _ in range(3)] == first


def test_what_is_no_state_of_random_numbers() -> None:
    with pytest.raises(ValueError, match=r"\[set_rng_state\] a state is three words of uint32"):
        Tensor.set_rng_state(Tensor([1.0, 2.0, 3.0]))
    with pytest.raises(TypeError, match=r"\[set_rng_state\] state has to be a tensor, not int"):
        Tensor.set_rng_state(7)  # type: ignore[arg-type]


def test_training_that_was_saved_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Of a new process, in effect: other layers, optimiser and schedule, and other random numbers
    in between."""

    def made() -> tuple[nn.Linear, nn.optim.AdamW, nn.optim.lr_scheduler.CosineAnnealingLR]:
        layer = nn.Linear(6, 4)
        optimizer = nn.optim.AdamW(nn.state.get_parameters(layer), lr=0.05)
        return layer, optimizer, nn.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def losses(layer: nn.Linear, optimizer: Any, schedule: Any, steps: range) -> list[float]:
        @TinyJit
        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (layer(x).dropout(0.5) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        found = []
        with Tensor.train():
            for number in steps:
                x = np.random.default_rng(number).normal(size=(5, 6)).astype(np.float32)
                found.append(step(Tensor(x).realize()).item())
                schedule.step()
        return found

    Tensor.manual_seed(11)
    layer, optimizer, schedule = made()
    losses(layer, optimizer, schedule, range(5))
    path = tmp_path / "state.safetensors"
    state = {
        **nn.state.get_state_dict(layer, "model"),
        **nn.state.get_state_dict(optimizer, "optimizer"),
        "random": Tensor.get_rng_state(),
    }
    nn.state.safe_save(state, path)
    settings = schedule.state_dict()
    expected = losses(layer, optimizer, schedule, range(5, 12))

    Tensor.manual_seed(99)
    layer, optimizer, schedule = made()
    saved = nn.state.safe_load(path)
    Tensor.set_rng_state(saved.pop("random"))
    for part, name in ((layer, "model."), (optimizer, "optimizer.")):
        own = {key.removeprefix(name): t for key, t in saved.items() if key.startswith(name)}
        nn.state.load_state_dict(part, own)
    schedule.load_state_dict(settings)
    assert losses(layer, optimizer, schedule, range(5, 12)) == expected
