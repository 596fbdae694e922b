"""Differentiate through an equation's solution, without the steps that found it.

Shows `custom_vjp`. A fixed point z = tanh(W z + x) is found by iterating. Its gradient needs none
of the iterations: with J the Jacobian of the right side, it solves u = g + u J, again by iterating
(the implicit function theorem). A small network is trained whose only layer is such a fixed point.

    python examples/custom_gradient.py --steps 60

Prints how far the gradient is from that of the unrolled iterations, and the loss in training.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import ferrule
from ferrule import Tensor, TinyJit, nn

ITERATIONS = 30


def iterated(weight: Tensor, x: Tensor) -> Tensor:
    """The fixed point of z -> tanh(z W + x) for each row of x, from z = 0 on."""
    z = x.zeros_like()
    for _ in range(ITERATIONS):
        z = (z @ weight + x).tanh()
    return z


@ferrule.custom_vjp
def fixed_point(weight: Tensor, x: Tensor) -> Tensor:
    """As `iterated`, with a gradient that keeps the fixed point alone."""
    return iterated(weight, x)


def forward(weight: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The value, and what the gradient needs."""
    z = iterated(weight, x)
    return z, (weight, x, z)


def backward(kept: tuple[Tensor, Tensor, Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """The gradients of `weight` and `x`: one linear equation, then one step backwards."""
    weight, x, z = kept
    _, pull = ferrule.vjp(lambda w, x, z: (z @ w + x).tanh(), weight, x, z)
    u = gradient
    for _ in range(ITERATIONS):
        u = gradient + pull(u)[2]
    of_weight, of_x, _ = pull(u)
    return of_weight, of_x


fixed_point.defvjp(forward, backward)


class Result(NamedTuple):
    """The largest difference between two ways to a gradient, and the losses of training."""

    difference: float
    losses: list[float]


def main(arguments: Sequence[str] | None = None) -> Result:
    """Compares the gradients, and trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args(arguments).steps

    Tensor.manual_seed(0)
    weight = (Tensor.randn(8, 8) * 0.15).realize()
    x = Tensor.randn(16, 8).realize()
    slopes = [
        ferrule.grad(lambda w, f=f: f(w, x).square().sum())(weight) for f in (fixed_point, iterated)
    ]
    difference = float((slopes[0] - slopes[1]).abs().max().item())
    print(f"implicit gradient against that of the iterations: {difference:.1e}")

    inputs = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)
    targets = np.sin(inputs.sum(axis=1, keepdims=True)).astype(np.float32)
    weight.requires_grad_(True)
    into, out = nn.Linear(8, 8), nn.Linear(8, 1)
    optimizer = nn.optim.Adam([weight, *nn.state.get_parameters([into, out])], lr=2e-2)

    @TinyJit
    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = (out(fixed_point(weight, into(inputs))) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    losses = [step(Tensor(inputs), Tensor(targets)).item() for _ in range(steps)]
    print(f"loss: {losses[0]:.4f} at first, {losses[-1]:.4f} after {steps} steps")
    return Result(difference, losses)


if __name__ == "__main__":
    main()
