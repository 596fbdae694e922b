"""Train with the gradient of each example clipped, as differential privacy asks.

Shows `vmap` of `grad`: the gradient of the loss of one example becomes that of each of a batch, in
one computation. Clipping bounds what a single example can change; noise of that size hides it (DP-
SGD).

    python examples/per_example_gradients.py --steps 400

Prints the largest norm before and after clipping, and the accuracy of the classifier.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import ferrule
from ferrule import Tensor, TinyJit

CLIP, NOISE, RATE, BATCH = 1.0, 0.5, 0.5, 128
Weights = dict[str, Tensor]


def loss(weights: Weights, point: Tensor, label: Tensor) -> Tensor:
    """The logistic loss of one example: a point, (2,), and its label, 0 or 1."""
    hidden = (point @ weights["first"] + weights["bias"]).tanh()
    score = hidden @ weights["second"]
    return score.binary_crossentropy_logits(label)


# One gradient for each example: its leaves have the batch as their first axis.
each_gradient = ferrule.vmap(ferrule.grad(loss), in_axes=(None, 0, 0))


def norms(gradients: Weights) -> Tensor:
    """The norm of each example's gradient, over all weights together."""
    squares = [g.square().flatten(1).sum(1) for g in gradients.values()]
    return Tensor.stack(squares).sum(0).sqrt()


def clipped(gradients: Weights) -> Weights:
    """Gradients of norm at most `CLIP`, in the same directions."""
    factors = (CLIP / norms(gradients).clip(min=1e-12)).clip(max=1.0)
    return {name: g * factors.reshape(-1, *[1] * (g.ndim - 1)) for name, g in gradients.items()}


class Result(NamedTuple):
    """Norms of the last batch's gradients, and what training came to."""

    largest: float
    largest_clipped: float
    accuracy: float


def rings(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of an inner and an outer ring, and which of them they are on."""
    draw = np.random.default_rng(0)
    outer = draw.integers(0, 2, count)
    radius, angle = 1 + outer + draw.normal(0, 0.15, count), draw.uniform(0, 2 * np.pi, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), outer.astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> Result:
    """Trains, and gives the norms and the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args(arguments).steps

    Tensor.manual_seed(0)
    points, labels = rings(1024)
    weights = {
        "first": Tensor.randn(2, 16),
        "bias": Tensor.randn(16),
        "second": Tensor.randn(16) * 0.3,
    }

    @TinyJit
    def step(weights: Weights, points: Tensor, labels: Tensor) -> Weights:
        private = clipped(each_gradient(weights, points, labels))
        noise = {name: NOISE * CLIP * w.randn_like() for name, w in weights.items()}
        return {
            name: (w - RATE * (private[name].sum(0) + noise[name]) / BATCH).realize()
            for name, w in weights.items()
        }

    draw = np.random.default_rng(1)
    weights = {name: w.realize() for name, w in weights.items()}
    for _ in range(steps):
        batch = draw.integers(0, len(points), BATCH)
        weights = step(weights, Tensor(points[batch]), Tensor(labels[batch]))

    gradients = each_gradient(weights, Tensor(points), Tensor(labels))
    hidden = (Tensor(points) @ weights["first"] + weights["bias"]).tanh()
    right = ((hidden @ weights["second"] > 0) == Tensor(labels).bool()).mean()
    largest = float(norms(gradients).max().item())
    bounded = float(norms(clipped(gradients)).max().item())
    result = Result(largest, bounded, float(right.item()))
    print(f"largest gradient of an example: {largest:.3f}, clipped {bounded:.3f}")
    print(f"accuracy: {result.accuracy:.4f}")
    return result


if __name__ == "__main__":
    main()
