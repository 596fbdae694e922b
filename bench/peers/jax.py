"""JAX: everything under `jit`, state donated; optimisers written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from peers.base import BETAS, DECAY, EPSILON, Call, Library, Program, Unsupported

Array = jax.Array


class Jax(Library):
    """JAX; on the CPU with as many threads as the process may use cores."""

    def __init__(self, channels_last: bool) -> None:
        self.channels_last = channels_last
        self._last: Any = ()
        """What a GPU is busy with: it does one thing after the other."""

    def use_gpu(self) -> None:
        try:
            jax.devices("cuda")
        except Exception as error:  # which type depends on what is missing
            raise Unsupported(f"JAX {jax.__version__} finds no GPU") from error
        super().use_gpu()

    def finish(self) -> None:
        jax.block_until_ready(self._last)

    def _done(self, value: Any) -> Any:
        """The same, when it is there; on a GPU `finish` waits for it."""
        if not self.gpu:
            return jax.block_until_ready(value)
        self._last = value
        return value

    def _array(self, value: np.ndarray) -> Array:
        return jnp.asarray(value)

    # Calls

    def forward(self, program: Program, arrays: Sequence[Array], constants: Sequence[int]) -> Call:
        del constants
        jitted = jax.jit(lambda *given: program(self, *given))
        return lambda: self._done(jitted(*arrays))

    def backward(
        self, program: Program, arrays: Sequence[Array], wrt: Sequence[int], with_result: bool
    ) -> Call:
        @jax.jit
        def gradients(*given: Array) -> list[Array]:
            *inputs, upstream = given

            def of_targets(*targets: Array) -> Array:
                for position, target in zip(wrt, targets, strict=True):
                    inputs[position] = target
                return program(self, *inputs)

            result, pull = jax.vjp(of_targets, *(inputs[position] for position in wrt))
            return [result, *pull(upstream)] if with_result else list(pull(upstream))

        return lambda: self._done(gradients(*arrays))

    def training(
        self,
        loss: Program,
        parameters: Sequence[Array],
        batch: Sequence[Array],
        optimizer: str,
        rate: float,
    ) -> Call:
        update = _sgd if optimizer == "sgd" else _adam

        def step(state: Any, *batch: Array) -> Any:
            def loss_of(values: list[Array]) -> Array:
                return loss(self, *values, *batch)

            found, gradients = jax.value_and_grad(loss_of)(state[0])
            return found, update(state, gradients, rate, DECAY[optimizer])

        jitted = jax.jit(step, donate_argnums=0)
        zeros = [jnp.zeros_like(value) for value in parameters]
        state = (list(parameters), zeros, [value + 0 for value in zeros], jnp.float32(0))

        def call() -> Array:
            nonlocal state
            found, state = jitted(state, *batch)
            self._done(state)
            return found

        return call

    def stateful(self, program: Program, state: Sequence[Array], arrays: Sequence[Array]) -> Call:
        jitted = jax.jit(lambda kept, *given: program(self, *kept, *given), donate_argnums=0)
        kept = list(state)

        def call() -> Array:
            nonlocal kept
            result, kept = jitted(kept, *arrays)
            return self._done(result)

        return call

    # Operations

    def permute(self, x: Array, axes: Sequence[int]) -> Array:
        return jnp.transpose(x, axes)

    def swap(self, x: Array) -> Array:
        return x.mT

    def tanh(self, x: Array) -> Array:
        return jnp.tanh(x)

    def relu(self, x: Array) -> Array:
        return jax.nn.relu(x)

    def gelu(self, x: Array) -> Array:
        return jax.nn.gelu(x, approximate=True)

    def softmax(self, x: Array) -> Array:
        return jax.nn.softmax(x, axis=-1)

    def layernorm(self, x: Array, weight: Array, bias: Array) -> Array:
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias

    def conv2d(self, x: Array, weight: Array, stride: int, padding: int, groups: int) -> Array:
        layout = ("NHWC", "OHWI", "NHWC") if self.channels_last else ("NCHW", "OIHW", "NCHW")
        return jax.lax.conv_general_dilated(
            x,
            weight,
            window_strides=(stride, stride),
            padding=((padding, padding), (padding, padding)),
            dimension_numbers=layout,
            feature_group_count=groups,
        )

    def max_pool(self, x: Array) -> Array:
        window = (1, 2, 2, 1) if self.channels_last else (1, 1, 2, 2)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    def embedding(self, table: Array, indices: Array) -> Array:
        return jnp.take(table, indices, axis=0)

    def cross_entropy(self, scores: Array, labels: Array) -> Array:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)
        return -chosen.mean()

    def put(self, cache: Array, new: Array, position: int) -> Array:
        return jax.lax.dynamic_update_slice(cache, new, (0, 0, position, 0))


def _sgd(state: Any, gradients: list[Array], rate: float, decay: float) -> Any:
    del decay
    values, *rest = state
    return ([p - rate * g for p, g in zip(values, gradients, strict=True)], *rest)


def _adam(state: Any, gradients: list[Array], rate: float, decay: float) -> Any:
    values, means, squares, count = state
    first, second = BETAS
    count = count + 1
    means = [first * m + (1 - first) * g for m, g in zip(means, gradients, strict=True)]
    squares = [second * v + (1 - second) * g * g for v, g in zip(squares, gradients, strict=True)]
    scale, root = rate / (1 - first**count), jnp.sqrt(1 - second**count)
    values = [
        p * (1 - rate * decay) - scale * m / (jnp.sqrt(v) / root + EPSILON)
        for p, m, v in zip(values, means, squares, strict=True)
    ]
    return values, means, squares, count


def load(variant: str) -> Jax:
    """Channels second, or "nhwc": last."""
    return Jax(variant == "nhwc")
