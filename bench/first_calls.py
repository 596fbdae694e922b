"""First calls: the time of a model's first training step, with an empty disk cache.

first_calls.py [TREE ...] [--workers N] [--turns N]

Each step is in a process of its own, with the code of each TREE (a folder with `src/ferrule`; this
one by default) in turn. The best of the turns is printed: seconds of the clock, and of this
process's processor time, that of its workers left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ferrule import Tensor, nn
from ferrule.nn import optim

# The models


class Block:
    """Two convolutions beside the input, which a third brings to their shape if it has another."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.beside: list[Callable[[Tensor], Tensor]] = []
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.beside = [convolution, nn.BatchNorm2d(outputs)]

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm2(self.second(self.norm1(self.first(x)).relu()))
        for layer in self.beside:
            x = layer(x)
        return (y + x).relu()


class ResNet18:
    """Of images with three channels; ten classes."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.blocks: list[Block] = []
        inputs = 64
        for outputs in (64, 128, 256, 512):
            stride = 1 if outputs == inputs else 2
            self.blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.last = nn.Linear(512, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu().max_pool2d((3, 3), 2, padding=1)
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((2, 3)))


class Layer:
    """Causal attention, and two linear layers with GELU between them."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.projections(self.norm1(x)).chunk(3, -1)
        q, k, v = [
            part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in parts
        ]
        found = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + self.joined(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(self.wide(self.norm2(x)).gelu())


class GPT:
    """Six layers of six heads, 192 wide, for texts of 128 bytes."""

    def __init__(self) -> None:
        self.embedding, self.positions = nn.Embedding(256, 192), nn.Embedding(128, 192)
        self.layers = [Layer(192, 6) for _ in range(6)]
        self.norm, self.last = nn.LayerNorm(192), nn.Linear(192, 256, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.embedding(x) + self.positions(Tensor.arange(x.shape[1]).reshape(1, -1))
        for layer in self.layers:
            y = layer(y)
        return self.last(self.norm(y))


class Residual:
    """Two convolutions with normalised groups of channels, told of the time in between."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.beside = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(self.norm1(x).silu()) + self.time(time.silu())[:, :, None, None]
        y = self.second(self.norm2(y).silu())
        return y + (x if self.beside is None else self.beside(x))


class Attention:
    """Of the pixels of an image, with four heads."""

    def __init__(self, channels: int) -> None:
        self.norm = nn.GroupNorm(8, channels)
        self.projections = nn.Conv2d(channels, 3 * channels, 1)
        self.joined = nn.Conv2d(channels, channels, 1)

    def __call__(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        parts = self.projections(self.norm(x)).chunk(3, 1)
        q, k, v = [
            part.reshape(batch, 4, channels // 4, height * width).transpose(2, 3) for part in parts
        ]
        found = q.scaled_dot_product_attention(k, v).transpose(2, 3)
        return x + self.joined(found.reshape(batch, channels, height, width))


class UNet:
    """A diffusion model of images with three channels: 32, 64 and 128 channels, attention twice."""

    def __init__(self) -> None:
        self.time = [nn.Linear(32, 128), nn.Linear(128, 128)]
        self.first, self.last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.down = [Residual(32, 32, 128), Residual(32, 64, 128), Residual(64, 128, 128)]
        self.smaller = [nn.Conv2d(32, 32, 3, 2, 1), nn.Conv2d(64, 64, 3, 2, 1)]
        self.attention = [Attention(128), Attention(128)]
        self.middle = [Residual(128, 128, 128), Residual(128, 128, 128)]
        self.up = [Residual(256, 128, 128), Residual(192, 64, 128), Residual(96, 32, 128)]
        self.larger = [nn.Conv2d(128, 128, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)]
        self.norm = nn.GroupNorm(8, 32)

    def __call__(self, x: Tensor, times: Tensor) -> Tensor:
        rates = (Tensor.arange(16) * (-np.log(10000) / 16)).exp()
        angles = times.reshape(-1, 1) * rates.reshape(1, -1)
        time = self.time[1](self.time[0](angles.sin().cat(angles.cos(), dim=1)).silu())
        x = self.first(x)
        kept = []
        for depth, block in enumerate(self.down):
            x = block(x, time)
            if depth == 2:
                x = self.attention[0](x)
            kept.append(x)
            if depth < 2:
                x = self.smaller[depth](x)
        x = self.middle[1](self.attention[1](self.middle[0](x, time)), time)
        for depth, block in enumerate(self.up):
            x = block(x.cat(kept.pop(), dim=1), time)
            if depth < 2:
                size = x.shape[2] * 2, x.shape[3] * 2
                x = self.larger[depth](x.interpolate(size, mode="nearest"))
        return self.last(self.norm(x).silu())


# The steps


def _numbers(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def _labels(classes: int, *shape: int) -> Tensor:
    return Tensor(np.random.default_rng(1).integers(0, classes, shape).astype(np.int32))


def _resnet() -> tuple[object, Callable[[], Tensor]]:
    model, x, y = ResNet18(), _numbers(16, 3, 64, 64), _labels(10, 16)
    return model, lambda: model(x).sparse_categorical_crossentropy(y)


def _gpt() -> tuple[object, Callable[[], Tensor]]:
    model, x, y = GPT(), _labels(256, 8, 128), _labels(256, 8 * 128)
    return model, lambda: model(x).reshape(-1, 256).sparse_categorical_crossentropy(y)


def _unet() -> tuple[object, Callable[[], Tensor]]:
    model, x, t = UNet(), _numbers(4, 3, 32, 32), _numbers(4)
    return model, lambda: ((model(x, t) - x) ** 2).mean()


STEPS = {
    "ResNet-18, 16 images of 64 x 64": _resnet,
    "GPT, 6 layers": _gpt,
    "diffusion U-Net, 4 images of 32 x 32": _unet,
}


def first_step(name: str) -> None:
    """Print the seconds of a first step, by the clock and of processor time."""
    Tensor.manual_seed(0)
    model, loss = STEPS[name]()
    optimizer = optim.AdamW(nn.state.get_parameters(model), lr=0.01)
    begin, processor = time.perf_counter(), time.process_time()
    with Tensor.train():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        value.item()
    print(time.perf_counter() - begin, time.process_time() - processor)


def _measured(tree: Path, name: str, workers: int | None) -> list[float]:
    with TemporaryDirectory() as cache:
        path = os.pathsep.join([str(tree / "src"), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "FERRULE_CACHE_DIR": cache}  # noqa: TID251
        if workers is not None:
            environment["FERRULE_COMPILE_WORKERS"] = str(workers)
        command = [sys.executable, __file__, "--step", name]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Measure all steps with each tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    parser.add_argument("--workers", type=int)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step is not None:
        first_step(asked.step)
        return
    for name in STEPS:
        found: dict[Path, list[list[float]]] = {tree: [] for tree in asked.trees}
        for _ in range(asked.turns):
            for tree in asked.trees:
                found[tree].append(_measured(tree, name, asked.workers))
        for tree, samples in found.items():
            clock, processor = (min(column) for column in zip(*samples, strict=True))
            print(f"{name}, {tree.name}: {clock:.2f} s by the clock, {processor:.2f} of processor")


if __name__ == "__main__":
    main()
