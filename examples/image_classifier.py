"""Train a convolutional network to read handwritten digits.

Shows the usual training loop: a model as a plain class, an optimiser, a captured step, and a
measure on images that were held out. Each image has 8 x 8 pixels and comes with ferrule.

    python examples/image_classifier.py --epochs 12

Prints the loss of every epoch and the share of the held-out digits that are read correctly.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from ferrule import Tensor, TinyJit, nn
from ferrule.demo import digits

BATCH = 128


class Classifier:
    """Two convolutions, one halving of the image, one linear layer: ten scores for each image."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.head = nn.Linear(32 * 4 * 4, 10)

    def __call__(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.first(images)).relu()
        hidden = self.second(hidden).relu().max_pool2d(2)
        return self.head(hidden.flatten(1).dropout(0.2))


def main(arguments: Sequence[str] | None = None) -> float:
    """Trains, and gives the accuracy on the held-out images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    epochs = parser.parse_args(arguments).epochs

    Tensor.manual_seed(0)
    shuffle = np.random.default_rng(0)
    data = digits.load(shuffle)
    images, labels = Tensor(digits.scaled(data.train_images)), Tensor(data.train_labels)

    model = Classifier()
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=3e-3)
    batches = len(data.train_labels) // BATCH
    schedule = nn.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * batches)

    @TinyJit
    def step(images: Tensor, labels: Tensor) -> Tensor:
        loss = model(images).cross_entropy(labels, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    for epoch in range(epochs):
        order = shuffle.permutation(len(data.train_labels)).astype(np.int32)
        # Dropout and the statistics of the batch are for training only.
        with Tensor.train():
            losses = []
            for start in range(0, batches * BATCH, BATCH):
                batch = Tensor(order[start : start + BATCH])
                losses.append(step(images[batch], labels[batch]))
                schedule.step()
        print(f"epoch {epoch + 1:2d}  loss {np.mean([loss.item() for loss in losses]):.4f}")

    answers = model(Tensor(digits.scaled(data.test_images))).argmax(axis=1)
    accuracy = float((answers == Tensor(data.test_labels)).mean().item())
    print(f"accuracy {accuracy:.4f} on {len(data.test_labels)} held-out images")
    return accuracy


if __name__ == "__main__":
    main()
