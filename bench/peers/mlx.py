"""MLX: everything under `compile`, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx import optimizers

from peers.base import BETAS, DECAY, EPSILON, Call, Library, Program

Array = mx.array


class Mlx(Library):
    """MLX on the CPU."""

    channels_last = True

    def __init__(self) -> None:
        mx.set_default_device(mx.cpu)

    def _array(self, value: np.ndarray) -> Array:
        if value.dtype.name == "bfloat16":
            return mx.array(value.astype(np.float32)).astype(mx.bfloat16)
        return mx.array(value)

    def _numpy(self, value: Array) -> np.ndarray:
        return np.array(value.astype(mx.float32))

    # Calls

    def _call(self, function: Any, arrays: Sequence[Array]) -> Call:
        mx.eval(*arrays)

        def call() -> Any:
            result = function(*arrays)
            mx.eval(result)
            return result

        return call

    def forward(self, program: Program, arrays: Sequence[Array], constants: Sequence[int]) -> Call:
        del constants
        return self._call(mx.compile(lambda *given: program(self, *given)), arrays)

    def backward(
        self, program: Program, arrays: Sequence[Array], wrt: Sequence[int], with_result: bool
    ) -> Call:
        def gradients(*given: Array) -> list[Array]:
            *inputs, upstream = given

            def of_targets(*targets: Array) -> Array:
                for position, target in zip(wrt, targets, strict=True):
                    inputs[position] = target
                return program(self, *inputs)

            targets = [inputs[position] for position in wrt]
            result, found = mx.vjp(of_targets, targets, [upstream])
            return [*result, *found] if with_result else found

        return self._call(mx.compile(gradients), arrays)

    def training(
        self,
        loss: Program,
        parameters: Sequence[Array],
        batch: Sequence[Array],
        optimizer: str,
        rate: float,
    ) -> Call:
        values = {str(position): value for position, value in enumerate(parameters)}
        updates = _optimizer(optimizer, rate)
        updates.init(values)
        state = [values, updates.state]

        def loss_of(values: dict[str, Array], *batch: Array) -> Array:
            return loss(self, *values.values(), *batch)

        def step(*batch: Array) -> Array:
            found, gradients = mx.value_and_grad(loss_of)(values, *batch)
            values.update(updates.apply_gradients(gradients, values))
            return found

        compiled = mx.compile(step, inputs=state, outputs=state)
        mx.eval(*batch, state)

        def call() -> Array:
            found = compiled(*batch)
            mx.eval(found, state)
            return found

        return call

    def stateful(self, program: Program, state: Sequence[Array], arrays: Sequence[Array]) -> Call:
        def step(kept: list[Array], *given: Array) -> Any:
            return program(self, *kept, *given)

        compiled = mx.compile(step)
        kept = list(state)

        def call() -> Array:
            nonlocal kept
            result, kept = compiled(kept, *arrays)
            mx.eval(result, kept)
            return result

        return call

    # Operations

    def linear(self, x: Array, weight: Array, bias: Array) -> Array:
        return mx.addmm(bias, x, weight)

    def permute(self, x: Array, axes: Sequence[int]) -> Array:
        return x.transpose(*axes)

    def swap(self, x: Array) -> Array:
        return x.swapaxes(-2, -1)

    def tanh(self, x: Array) -> Array:
        return mx.tanh(x)

    def relu(self, x: Array) -> Array:
        return mx.maximum(x, 0)

    def gelu(self, x: Array) -> Array:
        return nn.gelu_approx(x)

    def softmax(self, x: Array) -> Array:
        return mx.softmax(x, axis=-1)

    def layernorm(self, x: Array, weight: Array, bias: Array) -> Array:
        return mx.fast.layer_norm(x, weight, bias, 1e-5)

    def conv2d(self, x: Array, weight: Array, stride: int, padding: int, groups: int) -> Array:
        return mx.conv2d(x, weight, stride=stride, padding=padding, groups=groups)

    def max_pool(self, x: Array) -> Array:
        batch, height, width, channels = x.shape
        return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))

    def attention(self, q: Array, k: Array, v: Array, causal: bool) -> Array:
        scale = q.shape[-1] ** -0.5
        mask = "causal" if causal else None
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)

    def cross_entropy(self, scores: Array, labels: Array) -> Array:
        return nn.losses.cross_entropy(scores, labels, reduction="mean")

    def put(self, cache: Array, new: Array, position: int) -> Array:
        return mx.slice_update(cache, new, mx.array([position]), axes=(2,))


def _optimizer(name: str, rate: float) -> optimizers.Optimizer:
    if name == "sgd":
        return optimizers.SGD(rate)
    return optimizers.AdamW(rate, list(BETAS), EPSILON, DECAY[name], bias_correction=True)


def load(variant: str) -> Mlx:
    """There is one variant only."""
    del variant
    return Mlx()
