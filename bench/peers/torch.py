"""PyTorch: eager, compiled, or eager with channels last; on a GPU also as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch._functorch.config
import torch.nn.functional as F

from peers.base import BETAS, DECAY, EPSILON, Call, Library, Program, Unsupported, results

Tensor = torch.Tensor


class Torch(Library):
    """PyTorch; on the CPU with as many threads as OMP_NUM_THREADS says.

    Compiled for a GPU, kernels are Triton's; with `graphs` they are replayed as CUDA graphs.
    """

    def __init__(
        self,
        compiled: bool = False,
        nhwc: bool = False,
        double: bool = False,
        graphs: bool = False,
    ) -> None:
        self.compiled = compiled or graphs
        self.mode = "reduce-overhead" if graphs else None
        self.nhwc = nhwc
        self.double = double
        if self.compiled:
            torch._functorch.config.donated_buffer = False  # a backward pass is run repeatedly

    def _array(self, value: np.ndarray) -> Tensor:
        if value.dtype.name == "bfloat16":
            tensor = torch.from_numpy(value.astype(np.float32)).bfloat16()
        else:
            tensor = torch.from_numpy(value.copy())
        tensor = tensor.cuda() if self.gpu else tensor
        if not tensor.is_floating_point():
            return tensor.long()
        if self.nhwc and self.images and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.double() if self.double else tensor

    def _numpy(self, value: Tensor) -> np.ndarray:
        return value.detach().cpu().double().numpy()

    def use_gpu(self) -> None:
        if not torch.cuda.is_available():
            raise Unsupported(f"PyTorch {torch.__version__} finds no GPU")
        super().use_gpu()

    def finish(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    # Calls

    def _bound(self, program: Program) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            return program(self, *arrays)

        return torch.compile(call, dynamic=False, mode=self.mode) if self.compiled else call

    def forward(self, program: Program, arrays: Sequence[Tensor], constants: Sequence[int]) -> Call:
        del constants
        torch.set_grad_enabled(False)
        function = self._bound(program)
        return lambda: function(*arrays)

    def backward(
        self, program: Program, arrays: Sequence[Tensor], wrt: Sequence[int], with_result: bool
    ) -> Call:
        torch.set_grad_enabled(True)
        *inputs, upstream = arrays
        targets = [inputs[position].requires_grad_() for position in wrt]
        function = self._bound(program)

        def both() -> list[Tensor]:
            result = function(*inputs)
            return [result, *torch.autograd.grad(result, targets, upstream)]

        if with_result:
            return both
        kept = function(*inputs)
        return lambda: torch.autograd.grad(kept, targets, upstream, retain_graph=True)

    def training(
        self,
        loss: Program,
        parameters: Sequence[Tensor],
        batch: Sequence[Tensor],
        optimizer: str,
        rate: float,
    ) -> Call:
        torch.set_grad_enabled(True)
        for parameter in parameters:
            parameter.requires_grad_()
        updates = _optimizer(optimizer, list(parameters), rate, fused=not self.double)
        function = self._bound(loss)

        def step() -> Tensor:
            found = function(*parameters, *batch)
            updates.zero_grad()
            found.backward()
            updates.step()
            return found.detach()

        return step

    def stateful(self, program: Program, state: Sequence[Tensor], arrays: Sequence[Tensor]) -> Call:
        torch.set_grad_enabled(False)
        function = self._bound(program)
        return lambda: results(function(*state, *arrays))[0]

    # Operations

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight.mT, bias)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def layernorm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias)

    def conv2d(self, x: Tensor, weight: Tensor, stride: int, padding: int, groups: int) -> Tensor:
        return F.conv2d(x, weight, stride=stride, padding=padding, groups=groups)

    def max_pool(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def embedding(self, table: Tensor, indices: Tensor) -> Tensor:
        return F.embedding(indices, table)

    def cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores, labels)

    def put(self, cache: Tensor, new: Tensor, position: int) -> Tensor:
        cache[:, :, position : position + 1] = new
        return cache


def _optimizer(
    name: str, parameters: list[Tensor], rate: float, fused: bool
) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=rate, fused=fused)
    return torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, eps=EPSILON, weight_decay=DECAY[name], fused=fused
    )


def load(variant: str) -> Torch:
    """Eager, "compile", "nhwc" (channels last), "graphs", or "float64": the reference."""
    return Torch(variant == "compile", variant == "nhwc", variant == "float64", variant == "graphs")
