"""tinygrad: each function is captured by its `TinyJit`; BEAM is read from the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tinygrad import Context, Device, Tensor, TinyJit, dtypes
from tinygrad.nn.optim import SGD, AdamW, Optimizer

from peers.base import BETAS, DECAY, EPSILON, Call, Library, Program


class Tinygrad(Library):
    """tinygrad on its default device, which the environment sets to the CPU."""

    def __init__(self, searches: bool) -> None:
        self.searches = searches

    def _array(self, value: np.ndarray) -> Tensor:
        if value.dtype.name == "bfloat16":
            return Tensor(value.astype(np.float32)).cast(dtypes.bfloat16).realize()
        return Tensor(value).realize()

    def _numpy(self, value: Tensor) -> np.ndarray:
        return value.float().numpy()

    # Calls

    def _call(self, function: Any, arrays: Sequence[Tensor]) -> Call:
        jitted = TinyJit(function)
        device = Device[Device.DEFAULT]

        def call() -> Any:
            result = jitted(*arrays)
            device.synchronize()
            return result

        return call

    def forward(self, program: Program, arrays: Sequence[Tensor], constants: Sequence[int]) -> Call:
        del constants
        return self._call(lambda *given: program(self, *given).realize(), arrays)

    def backward(
        self, program: Program, arrays: Sequence[Tensor], wrt: Sequence[int], with_result: bool
    ) -> Call:
        def gradients(*given: Tensor) -> list[Tensor]:
            *inputs, upstream = given
            result = program(self, *inputs)
            found = result.gradient(*(inputs[position] for position in wrt), gradient=upstream)
            wanted = [result, *found] if with_result else found
            Tensor.realize(*wanted)
            return wanted

        return self._call(gradients, arrays)

    def training(
        self,
        loss: Program,
        parameters: Sequence[Tensor],
        batch: Sequence[Tensor],
        optimizer: str,
        rate: float,
    ) -> Call:
        updates = _optimizer(optimizer, list(parameters), rate)

        def step(*batch: Tensor) -> Tensor:
            with Context(TRAINING=1):
                found = loss(self, *parameters, *batch)
                updates.zero_grad()
                found.backward()
                return found.realize(*updates.schedule_step())

        return self._call(step, batch)

    def stateful(self, program: Program, state: Sequence[Tensor], arrays: Sequence[Tensor]) -> Call:
        def step(*given: Tensor) -> Tensor:
            result, written = program(self, *state, *given)
            return result.realize(*written)

        return self._call(step, arrays)

    # Operations

    def attention(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=causal)

    def put(self, cache: Tensor, new: Tensor, position: int) -> Tensor:
        cache[:, :, position : position + 1].assign(new)
        return cache


def _optimizer(name: str, parameters: list[Tensor], rate: float) -> Optimizer:
    if name == "sgd":
        return SGD(parameters, lr=rate)
    first, second = BETAS
    return AdamW(parameters, rate, first, second, EPSILON, DECAY[name])


def load(variant: str) -> Tinygrad:
    """Plain, or "beam": the search has to be asked for in the environment too."""
    return Tinygrad(variant == "beam")
