"""Train a variational autoencoder on handwritten digits, and draw new ones.

Shows a loss of two parts, random numbers inside a captured step, and sampling from a trained model.
Each image becomes a normal distribution over eight numbers; a second network draws images from
them.

    python examples/autoencoder.py --epochs 40

Prints the two parts of the loss, and four images that the model made up.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ferrule import Tensor, TinyJit, nn
from ferrule.demo import digits

CODE, HIDDEN, BATCH = 8, 128, 128
SHADES = " .:-=+*#%@"


class Autoencoder:
    """Images of 64 pixels to means and log variances of a code, and codes to images."""

    def __init__(self) -> None:
        self.encoder = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 64))

    def losses(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """For each image: the error of its copy, and the code's distance from a normal one."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean + (log_variance / 2).exp() * mean.randn_like()
        pixels = self.decoder(code)
        error = pixels.binary_crossentropy_logits(images, reduction="none").sum(1)
        distance = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return error.mean(), distance.mean()

    def draw(self, count: int) -> Tensor:
        """Images from codes drawn by chance, (count, 8, 8) with values from 0 to 1."""
        pixels: Tensor = self.decoder(Tensor.randn(count, CODE))
        return pixels.sigmoid().reshape(count, 8, 8)


class Result(NamedTuple):
    """The loss of each epoch, and images that the model drew."""

    losses: list[float]
    images: np.ndarray


def main(arguments: Sequence[str] | None = None) -> Result:
    """Trains, and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args(arguments).epochs

    Tensor.manual_seed(0)
    shuffle = np.random.default_rng(0)
    images = digits.load(shuffle).train_images.reshape(-1, 64) / digits.BRIGHTEST
    model = Autoencoder()
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=3e-3)

    @TinyJit
    def step(images: Tensor) -> tuple[Tensor, Tensor]:
        error, distance = model.losses(images)
        optimizer.zero_grad()
        (error + distance).backward()
        optimizer.step()
        return error.realize(), distance.realize()

    losses = []
    for epoch in range(epochs):
        order = shuffle.permutation(len(images))
        parts = []
        for start in range(0, len(images) - BATCH + 1, BATCH):
            error, distance = step(Tensor(images[order[start : start + BATCH]]))
            parts.append((error.item(), distance.item()))
        error, distance = np.mean(parts, axis=0)
        losses.append(float(error + distance))
        if epoch % 10 == 0 or epoch == epochs - 1:
            print(f"epoch {epoch + 1:3d}  copies {error:.2f}  codes {distance:.2f}")

    drawn = model.draw(4).numpy()
    for row in range(8):
        shades = [[SHADES[int(v * 9.99)] * 2 for v in image[row]] for image in drawn]
        print("   ".join("".join(shade) for shade in shades).rstrip())
    return Result(losses, drawn)


if __name__ == "__main__":
    main()
