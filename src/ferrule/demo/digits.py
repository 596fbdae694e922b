"""Learns to read handwritten digits: a small convolutional network, trained in a few seconds."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import field
from pathlib import Path
from typing import Any, TextIO, final

import numpy as np
import numpy.typing as npt

from ferrule.base.config import Context
from ferrule.base.helpers import GlobalCounters
from ferrule.base.records import dataclass
from ferrule.demo.terminal import Progress, bar, curve, pictures
from ferrule.device import Device
from ferrule.ir.dtype import dtypes
from ferrule.jit import TinyJit
from ferrule.nn import Conv2d, Linear
from ferrule.nn.optim import Adam
from ferrule.nn.state import get_parameters
from ferrule.tensor import Tensor

Array = npt.NDArray[Any]

DATA_FILE = Path(__file__).with_name("data") / "digits.npz"
BATCH = 128
PEAK_RATE = 0.006
HELD_OUT = 0.2
BRIGHTEST = 16.0
# Of all pixels of the data set, rounded; scaled by them, the inputs are centred.
PIXEL_MEAN, PIXEL_SPREAD = 5.0, 6.0


@final
@dataclass(frozen=True)
class Options:
    """The options of the demonstration."""

    device: str | None = None
    epochs: int = 30
    seed: int = 0


@final
@dataclass(frozen=True)
class Data:
    """Images, (count, 8, 8) with values from 0 to 16, and the digits that they show."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


@final
@dataclass(frozen=True)
class Result:
    """The measurements of a run."""

    accuracy: float
    total_s: float
    first_step_s: float
    step_ms: float
    kernels: int
    gflops: float
    peak_mb: float

    def line(self) -> str:
        """The result for programs, on one line."""
        return (
            f"digits accuracy={self.accuracy:.4f} total_s={self.total_s:.1f}"
            f" first_step_s={self.first_step_s:.2f} step_ms={self.step_ms:.2f}"
            f" kernels={self.kernels} peak_mb={self.peak_mb:.0f}"
        )


# Data


def load(rng: np.random.Generator) -> Data:
    """The data set, split so that a fifth of each digit's images is held out for the test."""
    with np.load(DATA_FILE) as archive:
        images, labels = archive["images"].astype(np.float32), archive["labels"].astype(np.int32)
    train, test = [], []
    for digit in range(10):
        shuffled = rng.permutation(np.flatnonzero(labels == digit))
        held_out = round(len(shuffled) * HELD_OUT)
        test.append(shuffled[:held_out])
        train.append(shuffled[held_out:])
    train_order, test_order = np.concatenate(train), np.concatenate(test)
    return Data(images[train_order], labels[train_order], images[test_order], labels[test_order])


def scaled(images: Array) -> Array:
    """Images, (count, 8, 8), as the network takes them: centred, with an axis for the channel."""
    return ((images - PIXEL_MEAN) / PIXEL_SPREAD)[:, None].astype(np.float32)


def shifted(images: Array, rng: np.random.Generator) -> Array:
    """About half of the images moved by up to a pixel each way, which helps to generalise."""
    count = len(images)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(1, 2))
    moved = rng.random(count) < 0.5
    down, right = np.where(moved, rng.integers(0, 3, (2, count)), 1)
    return np.asarray(windows[np.arange(count), down, right])


# Network and training


@final
class Network:
    """Two convolutions and a linear layer: (count, 1, 8, 8) to a score for each of ten digits."""

    def __init__(self) -> None:
        self.first = Conv2d(1, 32, kernel_size=3)
        self.second = Conv2d(32, 64, kernel_size=3)
        self.last = Linear(64 * 4 * 4, 10)

    def __call__(self, images: Tensor) -> Tensor:
        """The scores of `images`."""
        hidden = self.first(images).relu()
        hidden = self.second(hidden).relu()
        return self.last(hidden.flatten(1))


@final
class Trainer:
    """A network, its optimiser, and the step that trains it, compiled as one."""

    def __init__(self) -> None:
        self.network = Network()
        self.optimizer = Adam(get_parameters(self.network))
        self.step = TinyJit(self._step)

    def _step(self, images: Tensor, labels: Tensor, rate: Tensor) -> Tensor:
        loss = self.network(images).sparse_categorical_crossentropy(labels)
        self.optimizer.lr = rate
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.realize()

    def answers(self, images: Array) -> Array:
        """The digits that the network sees in `images`, (count, 8, 8)."""
        return self.network(Tensor(scaled(images))).argmax(axis=1).numpy()


@final
@dataclass
class Log:
    """The times, kernels and operations of a run's steps."""

    started: float
    losses: list[float] = field(default_factory=list)
    first_step_s: float = math.nan
    step_seconds: list[float] = field(default_factory=list)
    kernels: int = 0
    operations: int = 0

    def add(self, seconds: float, kernels: int, operations: int) -> None:
        """Counts one step."""
        if not self.step_seconds:
            self.first_step_s = time.perf_counter() - self.started
        self.step_seconds.append(seconds)
        self.kernels = kernels
        self.operations = operations

    def replay_seconds(self) -> float:
        """The median time of a step once it is captured: the first two calls prepare."""
        return float(np.median(self.step_seconds[2:] or self.step_seconds))


def _timed_step(trainer: Trainer, log: Log, images: Array, labels: Array, rate: float) -> Tensor:
    inputs = Tensor(scaled(images)), Tensor(labels), Tensor([rate], dtype=dtypes.float32)
    kernels, operations = GlobalCounters.kernel_count, GlobalCounters.global_ops
    start = time.perf_counter()
    loss = trainer.step(*inputs)
    Device[Device.DEFAULT].synchronize()
    seconds = time.perf_counter() - start
    log.add(
        seconds,
        GlobalCounters.kernel_count - kernels,
        GlobalCounters.global_ops - operations,
    )
    return loss


def train(
    trainer: Trainer, data: Data, epochs: int, rng: np.random.Generator, log: Log, out: TextIO
) -> None:
    """Trains for some epochs, with a learning rate that falls to zero."""
    batches = len(data.train_labels) // BATCH
    progress = Progress(out, every=math.ceil(epochs / 5))
    try:
        for epoch in range(epochs):
            order = rng.permutation(len(data.train_labels))
            losses = []
            for batch in range(batches):
                chosen = order[batch * BATCH : (batch + 1) * BATCH]
                rate = PEAK_RATE * (1 - (epoch * batches + batch) / (epochs * batches))
                images = shifted(data.train_images[chosen], rng)
                losses.append(_timed_step(trainer, log, images, data.train_labels[chosen], rate))
            log.losses += [loss.item() for loss in losses]
            progress.update(_progress_text(epoch + 1, epochs, log, batches))
    finally:
        progress.close()


def _progress_text(epoch: int, epochs: int, log: Log, batches: int) -> str:
    loss = float(np.mean(log.losses[-batches:]))
    step_ms = 1e3 * float(np.median(log.step_seconds[-batches:]))
    return f"{bar(epoch, epochs)} epoch {epoch}/{epochs}  loss {loss:.4f}  {step_ms:.2f} ms a step"


# The whole run


def peak_memory_mb() -> float:
    """The most memory that this process has held so far; NaN where the system does not say."""
    try:
        import resource
    except ImportError:
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def run(options: Options, out: TextIO) -> Result:
    """Trains, tests and reports to `out`; the last line is `Result.line()`."""
    changes = {"FERRULE_DEVICE": options.device} if options.device else {}
    with Context(**changes):
        return _run(options, out)


def _run(options: Options, out: TextIO) -> Result:
    log = Log(started=time.perf_counter())
    rng = np.random.default_rng(options.seed)
    Tensor.manual_seed(options.seed)
    data = load(rng)
    print(
        f"Handwritten digits on {Device.DEFAULT}: {len(data.train_labels)} images to learn from,"
        f" {len(data.test_labels)} held out",
        file=out,
    )
    trainer = Trainer()
    train(trainer, data, options.epochs, rng, log, out)
    answers = trainer.answers(data.test_images)
    result = _result(log, float(np.mean(answers == data.test_labels)))
    _report(data, answers, log, result, out)
    return result


def _result(log: Log, accuracy: float) -> Result:
    return Result(
        accuracy=accuracy,
        total_s=time.perf_counter() - log.started,
        first_step_s=log.first_step_s,
        step_ms=1e3 * log.replay_seconds(),
        kernels=log.kernels,
        gflops=log.operations / log.replay_seconds() / 1e9,
        peak_mb=peak_memory_mb(),
    )


def _report(data: Data, answers: Array, log: Log, result: Result, out: TextIO) -> None:
    right = answers == data.test_labels
    lines = ["", "loss of each step, logarithmic:", *curve(log.losses), ""]
    shown = _examples(right)
    captions = [_caption(answers[at], data.test_labels[at]) for at in shown]
    lines += ["some held-out images, and what the network reads:"]
    lines += [*pictures(data.test_images[shown], captions, out, BRIGHTEST), ""]
    lines += [
        f"test accuracy      {result.accuracy:.2%} ({right.sum()} of {len(right)})",
        f"first step after   {result.first_step_s:.2f} s, compilation included",
        f"a replayed step    {result.step_ms:.2f} ms, {result.kernels} kernels,"
        f" {result.gflops:.1f} GFLOPS",
        f"the whole run      {result.total_s:.1f} s, {len(log.losses)} steps of {BATCH} images",
        f"peak memory        {result.peak_mb:.0f} MB",
        result.line(),
    ]
    print("\n".join(lines), file=out)


def _caption(answer: int, label: int) -> str:
    return f"{answer}" if answer == label else f"{answer}, but it is {label}"


def _examples(right: Array, count: int = 4) -> Array:
    """Test images to show: at most two mistakes, then right answers from all over the set."""
    wrong = np.flatnonzero(~right)[:2]
    correct = np.flatnonzero(right)
    spread = np.linspace(0, len(correct) - 1, count - len(wrong)).astype(int)
    return np.concatenate([correct[spread], wrong])
