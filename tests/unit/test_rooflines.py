"""The kernels of training steps against their rooflines: none is estimated far beyond its own.

A roofline is the time of a kernel's arithmetic with full vectors on all threads, or of its bytes if
that is longer, and a launch. Nothing is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.golden.test_golden import TARGET
from tests.planning import forget

from ferrule import Context, Tensor, nn
from ferrule.codegen.estimate import cycles, least_cycles
from ferrule.codegen.heuristic import schedule
from ferrule.codegen.lower import lower
from ferrule.fusion import make_schedule
from ferrule.nn.state import get_parameters
from ferrule.ops import LazyOp

BENCH = Path(__file__).parents[2] / "bench"
MOST = 10.0
"""The estimate of a kernel, in its roofline."""


class MobileNet:
    """Inverted residuals: 1 x 1, depthwise and 1 x 1 convolutions with batch normalisation."""

    def __init__(self) -> None:
        self.first, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = []
        for inputs, outputs, stride in ((16, 24, 2), (24, 24, 1), (24, 40, 2)):
            wide = 4 * inputs
            self.blocks.append(
                [
                    nn.Conv2d(inputs, wide, 1, bias=False),
                    nn.BatchNorm2d(wide),
                    nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                    nn.BatchNorm2d(wide),
                    nn.Conv2d(wide, outputs, 1, bias=False),
                    nn.BatchNorm2d(outputs),
                ]
            )
        self.last = nn.Linear(40, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).clip(0, 6)
        for expand, norm1, depthwise, norm2, project, norm3 in self.blocks:
            y = norm1(expand(x)).clip(0, 6)
            y = norm3(project(norm2(depthwise(y)).clip(0, 6)))
            x = x + y if x.shape == y.shape else y
        return self.last(x.mean((2, 3)))


class Transformer:
    """A vision transformer: patches of 4 x 4 pixels, 64 wide."""

    def __init__(self, layer: type) -> None:
        self.patches = nn.Conv2d(3, 64, 4, 4)
        self.positions = Tensor.zeros(1, 64, 64, requires_grad=True)
        self.layers = [layer(64, 4) for _ in range(2)]
        self.norm, self.last = nn.LayerNorm(64), nn.Linear(64, 10)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.patches(x).reshape(x.shape[0], 64, -1).transpose(1, 2) + self.positions
        for layer in self.layers:
            y = layer(y)
        return self.last(self.norm(y).mean(1))


class Recurrent:
    """An LSTM over 12 steps."""

    def __init__(self) -> None:
        self.lstm, self.last = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 10)

    def __call__(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.last(y[:, -1])


def numbers(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).realize()


def labels(classes: int, *shape: int) -> Tensor:
    values = np.random.default_rng(1).integers(0, classes, shape).astype(np.int32)
    return Tensor(values).realize()


def classified(model: Callable[[Tensor], Tensor], *shape: int) -> Tensor:
    return model(numbers(*shape)).sparse_categorical_crossentropy(labels(10, shape[0]))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("first_calls")


def loss_of(name: str, models: ModuleType) -> tuple[object, Tensor]:
    """A model, and its loss for some data."""
    match name:
        case "ResNet-18":
            model = models.ResNet18()
            return model, classified(model, 4, 3, 32, 32)
        case "GPT":
            model, x, y = models.GPT(), labels(256, 2, 32), labels(256, 64)
            return model, model(x).reshape(-1, 256).sparse_categorical_crossentropy(y)
        case "U-Net":
            model, x = models.UNet(), numbers(2, 3, 16, 16)
            return model, ((model(x, numbers(2)) - x) ** 2).mean()
        case "LSTM":
            model = Recurrent()
            return model, classified(model, 8, 12, 32)
        case "MobileNet":
            model = MobileNet()
            return model, classified(model, 4, 3, 32, 32)
        case _:
            model = Transformer(models.Layer)
            return model, classified(model, 4, 3, 32, 32)


def kernels_of(name: str, models: ModuleType) -> list[LazyOp]:
    """The different kernels of a training step."""
    forget()
    with Tensor.train(), Context(FERRULE_SKIP="lengths"):
        model, loss = loss_of(name, models)
        parameters = get_parameters(model)
        loss.backward()
        gradients = [p.grad.lazydata for p in parameters if p.grad is not None]
        plan = make_schedule([loss.lazydata, *gradients]).plan
    return list(dict.fromkeys(ast for found in plan.kernels.values() for ast in found))


def beyond(name: str, models: ModuleType) -> list[float]:
    """The estimates beyond `MOST` of their rooflines, in these."""
    found = []
    launch = TARGET.speeds.launch
    for ast in kernels_of(name, models):
        kernel = lower(ast, "k")
        taken = cycles(schedule(kernel, TARGET).kernel, TARGET) + launch
        found.append(taken / (least_cycles(kernel, TARGET) + launch))
    assert len(found) > 10
    return [ratio for ratio in found if ratio > MOST]


KNOWN = {
    # The gradient of a convolution of 1 x 1 images by its input: the products over the filters are
    # summed over the channels, then over the windows, in one kernel, whose lanes gather the
    # weights. A product of its own, and its windows' sums in the next kernel, would be faster.
    "ResNet-18": 2,
    # The same of a convolution after an upsampling: its pixels are summed once more. And an
    # element-wise kernel that gathers along channels, whose lines share the sets of the cache.
    "U-Net": 2,
    # Gradients of small depthwise filters, and sums for each channel: lanes are along the channels
    # or the few taps, and gather, though the pixels are neighbours.
    "MobileNet": 3,
}
"""The kernels that are beyond, and why."""


@pytest.mark.parametrize("name", ["ResNet-18", "GPT", "U-Net", "LSTM", "MobileNet", "ViT"])
def test_no_kernel_is_far_beyond_its_roofline(name: str, models: ModuleType) -> None:
    found = beyond(name, models)
    assert len(found) == KNOWN.get(name, 0), found
