"""Exported programs beside the replays that they are made of: time of a run, and of the start.

    python bench/export.py

Both run by turns on one thread; the least processor time counts. The program is called as from C,
with pointers that are ready.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ferrule
from ferrule import Tensor, TinyJit, nn

ROUNDS = 5
SECONDS = 0.5
"""The time for each of the two in a round."""


class Net:
    """A small network of convolutions."""

    def __init__(self) -> None:
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.l = nn.Linear(32 * 7 * 7, 10)

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of images."""
        x = self.c1(x).relu().max_pool2d(2)
        return self.l(self.c2(x).relu().max_pool2d(2).flatten(1))


class Block:
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        self.norms = [nn.LayerNorm(width), nn.LayerNorm(width)]
        self.attention = nn.MultiheadAttention(width, width // 32, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        """The next representation of a sequence."""
        y = self.norms[0](x)
        x = x + self.attention(y, y, y)[0]
        return x + self.down(self.up(self.norms[1](x)).gelu())


def frozen(model: Any) -> Any:
    """The model without gradients."""
    for parameter in nn.state.get_parameters(model):
        parameter.requires_grad = False
    return model


def training_step() -> Callable[[Tensor, Tensor], Tensor]:
    """A step of Adam on the network."""
    net = Net()
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y)
            loss.backward()
            optimizer.step()
        return loss.realize()

    return step


def best(run: Callable[[], Any]) -> float:
    """The least processor time of a run."""
    least, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        started = time.thread_time()
        run()
        least = min(least, time.thread_time() - started)
    return least


def compare(name: str, function: Callable[..., Tensor], *arrays: np.ndarray[Any, Any]) -> None:
    """Prints the row of one function."""
    step = TinyJit(function)
    tensors = [Tensor(array) for array in arrays]
    for _ in range(4):
        step(*tensors)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.so"
        step.export(path)
        started = time.perf_counter()
        library, instance = ctypes.CDLL(str(path)), ctypes.c_void_p()
        assert library.step_create(ctypes.byref(instance)) == 0
        start = time.perf_counter() - started
        result = np.zeros(1 << 20, np.float32)
        pointers = (ctypes.c_void_p * (len(arrays) + 1))(
            *[array.ctypes.data for array in (*arrays, result)]
        )
        run = library.step_run_tensors
        pairs = [
            (best(lambda: step(*tensors)), best(lambda: run(instance, pointers, None)))
            for _ in range(ROUNDS)
        ]
        library.step_destroy(instance)
        replay, program = (min(times) for times in zip(*pairs, strict=True))
        size = path.stat().st_size
    print(
        f"| {name} | {replay * 1e6:.0f} us | {program * 1e6:.0f} us | {program / replay:.2f} "
        f"| {start * 1e3:.2f} ms | {size / 1e6:.2f} MB |"
    )


def main() -> None:
    """Prints the table."""
    ferrule.set_num_threads(1)
    images = np.random.default_rng(0).standard_normal((64, 1, 28, 28)).astype(np.float32)
    labels = (np.arange(64) % 10).astype(np.int32)
    net = frozen(Net())
    blocks = frozen([Block(128) for _ in range(4)])
    sequence = np.random.default_rng(1).standard_normal((1, 64, 128)).astype(np.float32)

    def transformer(x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x)
        return x.realize()

    print("| | replay | `so` | ratio | start | file |\n|---|---|---|---|---|---|")
    compare("convolutions, 64 images", lambda x: net(x).realize(), images)
    compare("convolutions, 1 image", lambda x: net(x).realize(), images[:1].copy())
    compare("convolutions, a step of Adam, 64 images", training_step(), images, labels)
    compare("transformer, 4 layers of 128, 64 tokens", transformer, sequence)


if __name__ == "__main__":
    main()
