"""One training step of a 784-512-512-10 network on a batch of 128: forward, backward, Adam.

All contenders start from the same weights. Their losses over the first steps are checked against
PyTorch's in float64 before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from harness import Plan, Row, alternate, figure, load_jax, load_torch, ratio, run_script

SIZES = (784, 512, 512, 10)
BATCH = 128
CHECKED_STEPS = 5
CHECKED_RATE = 1e-3
# Timed steps hardly move, so that the first and the last of them compute on numbers alike.
TIMED_RATE = 1e-6

Step = Callable[[], Any]


def problem() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Weights and biases, a batch of inputs, and labels."""
    rng = np.random.default_rng(0)
    parameters = []
    for inputs, outputs in pairwise(SIZES):
        bound = inputs**-0.5
        parameters.append(rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32))
        parameters.append(np.zeros(outputs, dtype=np.float32))
    images = rng.standard_normal((BATCH, SIZES[0]), dtype=np.float32)
    return parameters, images, rng.integers(0, 10, BATCH).astype(np.int32)


def ferrule_step(rate: float) -> Step:
    """A step that returns the loss as a tensor."""
    # Imported here, so that cold.py can start the other contenders without it.
    from ferrule import Tensor, TinyJit
    from ferrule.nn.optim import Adam

    initial, images, labels = problem()
    parameters = [Tensor(value.copy(), requires_grad=True).realize() for value in initial]
    x, y = Tensor(images).realize(), Tensor(labels).realize()
    optimizer = Adam(parameters, lr=rate)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = parameters
        hidden = (x @ w1 + b1).relu()
        hidden = (hidden @ w2 + b2).relu()
        loss = (hidden @ w3 + b3).sparse_categorical_crossentropy(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    return lambda: step(x, y)


def torch_step(torch: Any, rate: float, dtype: str = "float32") -> Step:
    """A step of eager PyTorch, with its fused Adam where it has one."""
    initial, images, labels = problem()
    kind = getattr(torch, dtype)
    parameters = [torch.from_numpy(value.copy()).to(kind).requires_grad_() for value in initial]
    x, y = torch.from_numpy(images).to(kind), torch.from_numpy(labels).long()
    optimizer = torch.optim.Adam(parameters, lr=rate, fused=True)

    def step() -> Any:
        w1, b1, w2, b2, w3, b3 = parameters
        hidden = torch.relu(torch.addmm(b1, x, w1))
        hidden = torch.relu(torch.addmm(b2, hidden, w2))
        loss = torch.nn.functional.cross_entropy(torch.addmm(b3, hidden, w3), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def jax_step(jax: Any, rate: float) -> Step:
    """A jitted step of JAX, which gives its old parameters' memory to the new ones."""
    jnp = jax.numpy
    initial, images, labels = problem()

    def loss_of(parameters: list[Any], x: Any, y: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = parameters
        hidden = jax.nn.relu(x @ w1 + b1)
        hidden = jax.nn.relu(hidden @ w2 + b2)
        scores = jax.nn.log_softmax(hidden @ w3 + b3)
        return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()

    def adam(parameters: Any, means: Any, squares: Any, count: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        count = count + 1
        means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
        squares = [0.999 * v + 0.001 * g * g for v, g in zip(squares, gradients, strict=True)]
        scale, root = rate / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
        parameters = [
            p - scale * m / (jnp.sqrt(v) / root + 1e-8)
            for p, m, v in zip(parameters, means, squares, strict=True)
        ]
        return loss, (parameters, means, squares, count)

    jitted = jax.jit(adam, donate_argnums=(0, 1, 2, 3))
    x, y = jnp.asarray(images), jnp.asarray(labels)
    zeros = [np.zeros_like(value) for value in initial]
    state = jax.tree.map(jnp.asarray, (initial, zeros, zeros, np.float32(0)))

    def step() -> Any:
        nonlocal state
        loss, state = jitted(*state, x, y)
        jax.block_until_ready(state)
        return loss

    return step


def steps(rate: float) -> dict[str, Step]:
    """A fresh step of every contender that is there."""
    found = {"ferrule": ferrule_step(rate)}
    torch, jax = load_torch(), load_jax()
    if torch is not None:
        found["torch"] = torch_step(torch, rate)
    if jax is not None:
        found["jax"] = jax_step(jax, rate)
    return found


def _check(candidates: dict[str, Step]) -> dict[str, float]:
    torch = load_torch()
    if torch is None:
        return {}
    exact_step = torch_step(torch, CHECKED_RATE, "float64")
    exact = [float(exact_step()) for _ in range(CHECKED_STEPS)]
    errors = {}
    for name, step in candidates.items():
        losses = [float(np.asarray(_loss(step()))) for _ in range(CHECKED_STEPS)]
        errors[name] = max(abs(a - b) / abs(b) for a, b in zip(losses, exact, strict=True))
        if not errors[name] < 1e-4:
            raise ValueError(f"mlp: losses of {name} are {losses}, expected {exact}")
    return errors


def _loss(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def measure(plan: Plan) -> list[Row]:
    """One row: a step."""
    errors = _check(steps(CHECKED_RATE))
    blocks = alternate(steps(TIMED_RATE), plan)
    figures = {name: figure(found, errors.get(name)) for name, found in blocks.items()}
    ratios = {
        name: ratio(found, blocks["ferrule"]) for name, found in blocks.items() if name != "ferrule"
    }
    return [Row("MLP 784-512-512-10, batch 128, Adam step", "ms", figures, ratios)]


if __name__ == "__main__":
    run_script(measure)
