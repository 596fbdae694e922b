"""Batch normalisation folded into the layers before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, nn
from ferrule.nn.state import get_parameters, get_state_dict

RANDOM = np.random.default_rng(0)


def batchnorm(channels: int, **settings: Any) -> nn.BatchNorm2d:
    """A normalisation whose statistics, weight and bias are not those of a new one."""
    norm = nn.BatchNorm2d(channels, **settings)
    for name, least in (("weight", -1.0), ("bias", -1.0), ("running_mean", -1), ("running_var", 0)):
        if getattr(norm, name) is not None:
            values = RANDOM.uniform(least, 2.0, channels).astype(np.float32)
            getattr(norm, name).assign(Tensor(values)).realize()  # not with a later graph
    return norm


def image(*shape: int) -> Tensor:
    return Tensor(RANDOM.standard_normal(shape).astype(np.float32))


def norms(model: Any) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in nn.state.model.parts_of(model))


def check(model: Callable[[Tensor], Tensor], x: Tensor, left: int) -> Any:
    """Fold, compare the results, and count the normalisations that are left."""
    before = {name: tensor.numpy() for name, tensor in get_state_dict(model).items()}
    folded = nn.fold_batchnorm(model, x)
    np.testing.assert_allclose(folded(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-4)
    assert norms(folded) == left
    for name, tensor in get_state_dict(model).items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])
    return folded


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 4, 3), (2, 3, 9)),
        (nn.Conv2d(3, 4, 3, bias=False), (2, 3, 9, 9)),
        (nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), (2, 4, 9, 9)),
        (nn.Conv2d(4, 6, 1, groups=2), (2, 4, 5, 5)),
        (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 9, 9)),
        (nn.Conv2d(3, 4, 3, dilation=2), (1, 3, 9, 9)),
        (nn.Conv3d(2, 4, 2), (1, 2, 4, 5, 4)),
        (nn.Linear(5, 4), (6, 5)),
        (nn.Linear(5, 4, bias=False), (6, 5)),
    ],
    ids=repr,
)
def test_layers_of_all_kinds(layer: Any, shape: tuple[int, ...]) -> None:
    channels = layer.weight.shape[0]
    model = nn.Sequential(layer, batchnorm(channels), nn.ReLU())
    folded = check(model, image(*shape), 0)
    assert isinstance(folded[1], nn.Identity)
    assert folded[0].weight.shape == layer.weight.shape


@pytest.mark.parametrize("settings", [{"affine": False}, {"eps": 0.3}, {"momentum": None}])
def test_settings_of_the_normalisation(settings: dict[str, Any]) -> None:
    check(nn.Sequential(nn.Conv2d(3, 4, 3), batchnorm(4, **settings)), image(1, 3, 6, 6), 0)


class Block:
    """A residual block, normalisations declared in another order than they run in."""

    def __init__(self) -> None:
        self.bn = [batchnorm(4), batchnorm(4), batchnorm(4)]
        self.conv = {"b": nn.Conv2d(4, 4, 3, padding=1), "a": nn.Conv2d(3, 4, 3, padding=1)}
        self.side = nn.Conv2d(3, 4, 1, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn[2](self.conv["a"](x)).relu()
        return (self.bn[0](self.conv["b"](y)) + self.bn[1](self.side(x))).relu()


def test_pairs_are_found_by_what_runs() -> None:
    folded = check(Block(), image(2, 3, 8, 8), 0)
    assert isinstance(folded, Block)


def test_other_tensors_are_shared() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), batchnorm(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    folded = check(model, image(1, 3, 6, 6), 0)
    assert folded[3].weight is model[3].weight
    assert folded[0].weight is not model[0].weight
    assert len(get_parameters(folded)) == 4


# What is left as it is: in each the convolution's result, its weight or the normalisation is used
# for more than the pair, or there is something between the two.


class Used(Block):
    """The normalised convolution's result is used again."""

    def __call__(self, x: Tensor) -> Tensor:
        y = self.conv["a"](x)
        return self.bn[0](y) + y


class SharedConvolution(Block):
    """One convolution, whose results two normalisations take."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.bn[0](self.conv["a"](x)) + self.bn[1](self.conv["a"](x.flip(2)))


class SharedNorm(Block):
    """One normalisation of two convolutions' results."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.bn[0](self.conv["a"](x)) + self.bn[0](self.side(x))


class Between(Block):
    """An activation, or the sum with another image, between the two."""

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn[0](self.side(x).relu())
        return y + self.bn[1](self.conv["a"](x) + x[:, :1])


class SumOfImage(Block):
    """An image is added where a convolution without a bias could have had one."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.bn[1](self.side(x) + x[:1, :1, :1, :1])


class Returned(Block):
    """The convolution's result is one of the results."""

    def __call__(self, x: Tensor) -> Any:
        y = self.conv["a"](x)
        return Tensor.stack(y, self.bn[0](y))


@pytest.mark.parametrize(
    "kind", [Used, SharedConvolution, SharedNorm, Between, SumOfImage, Returned]
)
def test_what_cannot_be_folded_is_left(kind: Callable[[], Block]) -> None:
    check(kind(), image(2, 3, 8, 8), 3)


def test_statistics_of_the_batch_are_left() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    check(model, image(4, 3, 6, 6), 1)
    trained = nn.Sequential(nn.Conv2d(3, 4, 3), batchnorm(4))
    nn.set_training(trained, True)
    assert norms(nn.fold_batchnorm(trained, image(4, 3, 6, 6))) == 1


def test_a_fold_ignores_the_mode_of_the_thread() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), batchnorm(4))
    with Tensor.train():
        folded = nn.fold_batchnorm(model, image(1, 3, 6, 6))
    assert norms(folded) == 0
    assert model[1].num_batches_tracked.item() == 0


def test_what_is_no_model() -> None:
    with pytest.raises(TypeError, match="fold_batchnorm: list cannot be called"):
        nn.fold_batchnorm([nn.Conv2d(3, 4, 3), batchnorm(4)], image(1, 3, 6, 6))  # type: ignore[type-var]
