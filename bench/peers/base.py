"""What a contender has to offer, so that each workload is written down once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Call = Callable[[], Any]
"""Does the work once and returns a fresh result: one array or several.

On a GPU it may return before the work is done, which `Library.finish` waits for.
"""

Program = Callable[..., Any]
"""A function of a library and arrays of that library."""

BETAS = (0.9, 0.999)
EPSILON = 1e-8
DECAY = {"sgd": 0.0, "adam": 0.0, "adamw": 0.01}


class Unsupported(Exception):
    """The library has no way to do this."""


class Library(ABC):
    """One library: how it holds arrays, calls functions, and spells operations.

    Axes are (batch, channels, height, width), and filters (out, in, height, width), unless
    `channels_last`: then images and filters alike have their second axis last.
    """

    channels_last = False
    searches = False
    """Whether first calls try several kernels, and may do so on the very arrays they are given."""
    images = False
    """Whether the workload's arrays of four axes are images and filters."""
    gpu = False
    """Whether its arrays are to be on a GPU."""

    def use_gpu(self) -> None:
        """From now on arrays are on a GPU. Raises `Unsupported` where the library has none."""
        self.gpu = True

    def finish(self) -> None:
        """Waits for the device to do all that the calls have asked for."""
        return

    # Arrays

    def array(self, value: np.ndarray) -> Any:
        """An array of the library's own, in the layout that it likes best."""
        if self.channels_last and self.images and value.ndim == 4:
            value = np.ascontiguousarray(value.transpose(0, 2, 3, 1))
        return self._array(value)

    def numpy(self, value: Any) -> np.ndarray:
        """A result in float64, with channels second."""
        found = np.asarray(self._numpy(value), dtype=np.float64)
        if self.channels_last and self.images and found.ndim == 4:
            found = found.transpose(0, 3, 1, 2)
        return found

    @abstractmethod
    def _array(self, value: np.ndarray) -> Any: ...

    def _numpy(self, value: Any) -> Any:
        return value

    # Calls

    @abstractmethod
    def forward(self, program: Program, arrays: Sequence[Any], constants: Sequence[int]) -> Call:
        """The program's result; the arrays at `constants` are a model's weights."""

    def backward(
        self, program: Program, arrays: Sequence[Any], wrt: Sequence[int], with_result: bool
    ) -> Call:
        """The gradients at `wrt`; the last array is that of the result.

        Without the result the forward pass need not be done again.
        """
        raise Unsupported("no gradients")

    def training(
        self,
        loss: Program,
        parameters: Sequence[Any],
        batch: Sequence[Any],
        optimizer: str,
        rate: float,
    ) -> Call:
        """A step: the loss, its gradient, and the update; returns the loss."""
        raise Unsupported("no training")

    @abstractmethod
    def stateful(self, program: Program, state: Sequence[Any], arrays: Sequence[Any]) -> Call:
        """A program that returns (result, new state), whose state may be written in place."""

    # Operations. +, -, *, [] and reshape are alike everywhere; these are where nothing else is said

    def matmul(self, a: Any, b: Any) -> Any:
        """a @ b."""
        return a @ b

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """x @ weight + bias."""
        return x @ weight + bias

    def permute(self, x: Any, axes: Sequence[int]) -> Any:
        """The axes in another order."""
        return x.permute(*axes)

    def swap(self, x: Any) -> Any:
        """The last two axes exchanged."""
        return x.transpose(-2, -1)

    def sum(self, x: Any) -> Any:
        """The sum of all elements."""
        return x.sum()

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""
        return x.tanh()

    def relu(self, x: Any) -> Any:
        """max(x, 0)."""
        return x.relu()

    def gelu(self, x: Any) -> Any:
        """GELU by way of tanh."""
        return x.gelu()

    def softmax(self, x: Any) -> Any:
        """Along the last axis."""
        return x.softmax(-1)

    def layernorm(self, x: Any, weight: Any, bias: Any) -> Any:
        """Along the last axis, with an epsilon of 1e-5."""
        return x.layernorm() * weight + bias

    def conv2d(self, x: Any, weight: Any, stride: int, padding: int, groups: int) -> Any:
        """A convolution without bias."""
        return x.conv2d(weight, stride=stride, padding=padding, groups=groups)

    def channel_bias(self, bias: Any) -> Any:
        """A vector, to be added to images."""
        return bias if self.channels_last else bias.reshape(-1, 1, 1)

    def max_pool(self, x: Any) -> Any:
        """The largest of each 2 x 2."""
        return x.max_pool2d()

    def flatten(self, x: Any) -> Any:
        """Images as rows, in the order of channels, height, width."""
        if self.channels_last:
            x = self.permute(x, (0, 3, 1, 2))
        return x.reshape(x.shape[0], -1)

    def attention(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        """softmax(q k^T / sqrt(depth)) v for (batch, heads, positions, depth)."""
        scores = self.matmul(q, self.swap(k)) * (1 / math.sqrt(q.shape[-1]))
        if causal:
            size = q.shape[-2]
            mask = np.triu(np.full((size, size), -np.inf, np.float32), 1)
            scores = scores + self._array(mask)
        return self.matmul(self.softmax(scores), v)

    def embedding(self, table: Any, indices: Any) -> Any:
        """Rows of a table."""
        return table[indices]

    def cross_entropy(self, scores: Any, labels: Any) -> Any:
        """The mean over the rows."""
        return scores.sparse_categorical_crossentropy(labels)

    @abstractmethod
    def put(self, cache: Any, new: Any, position: int) -> Any:
        """(batch, heads, positions, depth) with one position replaced."""


def results(value: Any) -> list[Any]:
    """One result or several, as a list."""
    return list(value) if isinstance(value, tuple | list) else [value]
