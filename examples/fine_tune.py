"""Train on one task, save, load, and fine-tune the last layer on another.

Shows safetensors files, loading a part of a model, and layers that stay as they are. A network
learns to read digits; with its features frozen, a new last layer learns from 40 images which are
odd.

    python examples/fine_tune.py --steps 200

Prints the accuracy on held-out images: with features from the file, and with untrained ones.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ferrule import Tensor, TinyJit, nn
from ferrule.demo import digits


class Reader:
    """A convolutional network in two parts: the features, and the head that scores classes."""

    def __init__(self, classes: int) -> None:
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * 2 * 2, classes)

    def __call__(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


class Result(NamedTuple):
    """Accuracies of the second task on held-out images, and whether the features are the same."""

    tuned: float
    untrained: float
    unchanged: bool


def train(model: Reader, images: np.ndarray, labels: np.ndarray, steps: int) -> None:
    """Trains the tensors of the model that may change, on batches drawn by chance."""
    parameters = [p for p in nn.state.get_parameters(model) if p.requires_grad]
    optimizer = nn.optim.Adam(parameters, lr=2e-3)
    draw = np.random.default_rng(0)

    @TinyJit
    def step(images: Tensor, labels: Tensor) -> Tensor:
        loss = model(images).cross_entropy(labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    for _ in range(steps):
        batch = draw.integers(0, len(labels), 64)
        step(Tensor(digits.scaled(images[batch])), Tensor(labels[batch]))


def accuracy(model: Reader, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of the images whose class the model names."""
    return float(np.mean(model(Tensor(digits.scaled(images))).argmax(axis=1).numpy() == labels))


def main(arguments: Sequence[str] | None = None) -> Result:
    """Trains, saves, loads and fine-tunes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of either training")
    steps = parser.parse_args(arguments).steps

    Tensor.manual_seed(0)
    data = digits.load(np.random.default_rng(0))
    few = np.random.default_rng(1).permutation(len(data.train_labels))[:40]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reader.safetensors"
        reader = Reader(classes=10)
        train(reader, data.train_images, data.train_labels, steps)
        nn.state.safe_save(nn.state.get_state_dict(reader), path)
        loaded = nn.state.safe_load(path)

        tuned, untrained = Reader(classes=2), Reader(classes=2)
        features = {name: loaded[name] for name in loaded if name.startswith("features.")}
        nn.state.load_state_dict(tuned, features, strict=False)
        before = {name: tensor.numpy() for name, tensor in features.items()}

    scores = []
    for model in (tuned, untrained):
        for parameter in nn.state.get_parameters(model.features):
            parameter.requires_grad_(False)
        train(model, data.train_images[few], data.train_labels[few] % 2, steps)
        scores.append(accuracy(model, data.test_images, data.test_labels % 2))

    after = nn.state.get_state_dict(tuned)
    unchanged = all(np.array_equal(after[name].numpy(), before[name]) for name in before)
    print(f"accuracy of odd or even with features from the file: {scores[0]:.4f}")
    print(f"                        with untrained features:     {scores[1]:.4f}")
    return Result(scores[0], scores[1], unchanged)


if __name__ == "__main__":
    main()
