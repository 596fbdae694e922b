"""Find the constants of a differential equation from measurements.

Shows gradients through a simulation. Pendulums with friction are released at many angles, moved by
Euler's semi-implicit method, and measured once. Their length and friction are fitted by L-BFGS,
whose gradients go back through all time steps.

    python examples/fit_motion.py --steps 10

Prints the constants after each step, and the true ones.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ferrule import Tensor, TinyJit, dtypes, nn

GRAVITY, LENGTH, FRICTION = 9.81, 1.3, 0.25
SECONDS, TIME_STEPS, PENDULUMS = 1.0, 20, 200


def motion(starts: Tensor, constants: Tensor) -> Tensor:
    """The (angle, speed) of each pendulum after `SECONDS`, from rest at an angle of `starts`."""
    length, friction = constants[0], constants[1]
    angle, speed = starts, starts.zeros_like()
    for _ in range(TIME_STEPS):
        pull = -GRAVITY / length * angle.sin() - friction * speed
        speed = speed + SECONDS / TIME_STEPS * pull
        angle = angle + SECONDS / TIME_STEPS * speed
    return Tensor.stack([angle, speed])


class Result(NamedTuple):
    """The constants found."""

    length: float
    friction: float


def main(arguments: Sequence[str] | None = None) -> Result:
    """Measures motions, and fits the constants to it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args(arguments).steps

    starts = Tensor(np.linspace(-2, 2, PENDULUMS))
    truth = motion(starts, Tensor([LENGTH, FRICTION], dtype=dtypes.float64)).numpy()
    measured = Tensor(truth + np.random.default_rng(0).normal(0, 0.05, truth.shape))
    constants = Tensor([1.0, 0.0], dtype=dtypes.float64, requires_grad=True)
    optimizer = nn.optim.LBFGS([constants], line_search_fn="strong_wolfe", max_iter=2)

    @TinyJit
    def loss_with_gradient() -> Tensor:
        optimizer.zero_grad()
        loss = (motion(starts, constants) - measured).square().mean()
        loss.backward()
        return loss.realize()

    for number in range(steps):
        loss = optimizer.step(loss_with_gradient)
        length, friction = constants.tolist()
        print(f"step {number + 1:2d}  loss {loss.item():.2e}  {length:.4f} m  {friction:.4f} / s")
    print(f"the true constants:    {LENGTH:.4f} m  {FRICTION:.4f} / s")
    return Result(length, friction)


if __name__ == "__main__":
    main()
