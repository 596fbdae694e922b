"""Minimise by Newton's method, and solve a boundary value problem: derivatives of derivatives.

Shows `grad`, `hessian`, and products of a Hessian with a vector, which need no matrix. The first
part finds the minimum of Rosenbrock's function in a few steps. The second part minimises a function
of 200 variables by conjugate gradients, where each Hessian-vector product is a `jvp` of a `grad`.

    python examples/newton.py --steps 8

Prints the point after each step, and the error of the solution of u'' = -sin(x).
"""

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import ferrule
from ferrule import Tensor, TinyJit, dtypes

Function = Callable[[Tensor], Tensor]


def rosenbrock(point: Tensor) -> Tensor:
    """A curved valley whose lowest point is (1, 1)."""
    x, y = point[0], point[1]
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def newton_step(function: Function) -> Function:
    """A function that goes from a point to the minimum of the parabola that fits there."""
    slope, curvature = ferrule.grad(function), ferrule.hessian(function)
    return lambda point: point - curvature(point).solve(slope(point))


def hessian_product(function: Function, point: Tensor) -> Function:
    """The linear function that multiplies a vector by the Hessian at `point`."""
    return lambda vector: ferrule.jvp(ferrule.grad(function), (point,), (vector,))[1]


def conjugate_gradients(product: Function, right: Tensor, steps: int) -> Tensor:
    """The solution of `product(x) = right`, for a symmetric positive definite product."""

    @TinyJit
    def step(x: Tensor, rest: Tensor, way: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        image = product(way)
        length = (rest @ rest) / (way @ image)
        left = rest - length * image
        turned = left + (left @ left) / (rest @ rest) * way
        return (x + length * way).realize(), left.realize(), turned.realize()

    x, rest, way = right.zeros_like().contiguous(), right, right
    for _ in range(steps):
        x, rest, way = step(x, rest, way)
        if rest.norm().item() < 1e-12 * right.norm().item():
            break
    return x


class Result(NamedTuple):
    """The minimum found, and the largest error of the boundary value problem's solution."""

    point: list[float]
    error: float


def main(arguments: Sequence[str] | None = None) -> Result:
    """Runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8, help="of Newton's method")
    steps = parser.parse_args(arguments).steps

    point = Tensor([-1.2, 1.0], dtype=dtypes.float64)
    step = newton_step(rosenbrock)
    for number in range(steps):
        point = step(point).realize()
        print(f"step {number + 1}: {point.tolist()}, value {rosenbrock(point).item():.2e}")

    # -u'' = sin(x) between 0 and pi, with u = 0 at both ends, has the solution sin(x): it is where
    # the energy, the integral of u'^2 / 2 - u sin(x), has its minimum.
    places = np.linspace(0, np.pi, 202)
    width, force = float(places[1]), Tensor(np.sin(places[1:-1]))

    def energy(inner: Tensor) -> Tensor:
        slopes = inner.pad(((1, 1),)).diff() / width
        return width * (slopes.square().sum() / 2 - (inner * force).sum())

    start = Tensor.zeros(200, dtype=dtypes.float64)
    downhill = -ferrule.grad(energy)(start)
    solution = conjugate_gradients(hessian_product(energy, start), downhill.realize(), 200)
    error = float(np.abs(solution.numpy() - np.sin(places[1:-1])).max())
    print(f"largest error of u: {error:.1e}")
    return Result([float(x) for x in point.tolist()], error)


if __name__ == "__main__":
    main()
