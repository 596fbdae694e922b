"""ferrule: each function is captured by `TinyJit` and replayed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule import Tensor, TinyJit
from ferrule.device import Device
from ferrule.nn.optim import SGD, AdamW, Optimizer
from peers.base import BETAS, DECAY, EPSILON, Call, Library, Program, Unsupported


class Ferrule(Library):
    """The contender, on the CPU or on CUDA; `packed`: weights are no arguments, and packed once."""

    def __init__(self, device: str = "CPU", double: bool = False, packed: bool = False) -> None:
        self.device = device
        self.double = double
        self.packed = packed

    def _array(self, value: np.ndarray) -> Tensor:
        if self.double and value.dtype.kind not in "iu":
            value = value.astype(np.float64)
        return Tensor(value, device="CUDA" if self.gpu else self.device).realize()

    def _numpy(self, value: Tensor) -> np.ndarray:
        return value.numpy()

    def finish(self) -> None:
        if self.gpu:
            Device["CUDA"].synchronize()

    # Calls

    def forward(self, program: Program, arrays: Sequence[Tensor], constants: Sequence[int]) -> Call:
        if not self.packed:
            jitted = TinyJit(lambda *given: program(self, *given).realize())
            return lambda: jitted(*arrays)
        if not constants:
            raise Unsupported("no weights to pack")
        inputs = [array for number, array in enumerate(arrays) if number not in constants]

        @TinyJit
        def run(*given: Tensor) -> Tensor:
            rest = iter(given)
            whole = [x if n in constants else next(rest) for n, x in enumerate(arrays)]
            return program(self, *whole).realize()

        return lambda: run(*inputs)

    def backward(
        self, program: Program, arrays: Sequence[Tensor], wrt: Sequence[int], with_result: bool
    ) -> Call:
        if self.packed:
            raise Unsupported("forward passes only")
        for position in wrt:
            arrays[position].requires_grad_()

        @TinyJit
        def gradients(*given: Tensor) -> list[Tensor]:
            *inputs, upstream = given
            result = program(self, *inputs)
            targets = [inputs[position] for position in wrt]
            found = result.gradient(*targets, gradient=upstream)
            wanted = [result.detach(), *found] if with_result else found
            Tensor.realize(*wanted)
            return wanted

        return lambda: gradients(*arrays)

    def training(
        self,
        loss: Program,
        parameters: Sequence[Tensor],
        batch: Sequence[Tensor],
        optimizer: str,
        rate: float,
    ) -> Call:
        if self.packed:
            raise Unsupported("a step writes to its weights")
        for parameter in parameters:
            parameter.requires_grad_()
        updates = _optimizer(optimizer, parameters, rate)

        @TinyJit
        def step(*batch: Tensor) -> Tensor:
            found = loss(self, *parameters, *batch)
            updates.zero_grad()
            found.backward()
            updates.step()
            return found.realize()

        return lambda: step(*batch)

    def stateful(self, program: Program, state: Sequence[Tensor], arrays: Sequence[Tensor]) -> Call:
        weights = arrays[:-1] if self.packed else []
        inputs = arrays[len(weights) :]

        @TinyJit
        def step(*given: Tensor) -> Tensor:
            result, written = program(self, *state, *weights, *given)
            Tensor.realize(result, *written)
            return result

        return lambda: step(*inputs)

    # Operations

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x.linear(weight, bias)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=causal)

    def put(self, cache: Tensor, new: Tensor, position: int) -> Tensor:
        cache[:, :, position : position + 1] = new
        return cache


def _optimizer(name: str, parameters: Sequence[Tensor], rate: float) -> Optimizer:
    if name == "sgd":
        return SGD(parameters, lr=rate)
    return AdamW(parameters, lr=rate, betas=BETAS, eps=EPSILON, weight_decay=DECAY[name])


def load(variant: str) -> Ferrule:
    """The plain one, "packed", or "float64": NumPy's in double precision, as a reference."""
    if variant == "float64":
        return Ferrule("NUMPY", double=True)
    return Ferrule(packed=variant == "packed")
