"""The models and expressions that are measured, in terms of any library's operations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from peers.base import Library, Program

MLP_SIZES = (784, 512, 512, 10)
CONVNET_CHANNELS = (1, 16, 32)
PER_LAYER = 12
"""How many arrays a transformer's layer has."""


def gelu_chain(lib: Library, x: Any, w: Any, b: Any) -> Any:
    """gelu(x*w+b) + x."""
    return lib.gelu(x * w + b) + x


def product(left: str = "A", right: str = "B") -> Program:
    """A matrix product of operands as they lie, or transposed ("A.T", "B.T")."""

    def program(lib: Library, a: Any, b: Any) -> Any:
        a = lib.swap(a) if left == "A.T" else a
        b = lib.swap(b) if right == "B.T" else b
        return lib.matmul(a, b)

    return program


def convolution(stride: int = 1, padding: int = 1, groups: int = 1) -> Program:
    """A convolution without bias."""
    return lambda lib, x, weight: lib.conv2d(x, weight, stride, padding, groups)


def attention(causal: bool) -> Program:
    """Scaled dot-product attention."""
    return lambda lib, q, k, v: lib.attention(q, k, v, causal)


def chain(lib: Library, x: Any, w: Any) -> Any:
    """50 times tanh(x @ w)."""
    for _ in range(50):
        x = lib.tanh(lib.matmul(x, w))
    return x


# Training


def mlp_loss(
    lib: Library, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, *batch: Any
) -> Any:
    """Two hidden layers with ReLU, and cross-entropy."""
    x, labels = batch
    hidden = lib.relu(lib.linear(x, w1, b1))
    hidden = lib.relu(lib.linear(hidden, w2, b2))
    return lib.cross_entropy(lib.linear(hidden, w3, b3), labels)


def mlp_parameters(rng: np.random.Generator) -> list[np.ndarray]:
    """Weights (in, out) and biases."""
    found = []
    for inputs, outputs in pairwise(MLP_SIZES):
        found += [uniform(rng, (inputs, outputs), inputs), np.zeros(outputs, np.float32)]
    return found


def convnet_loss(
    lib: Library, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, x: Any, labels: Any
) -> Any:
    """Twice convolution, ReLU and pooling, then a linear layer, and cross-entropy."""
    for weight, bias in ((w1, b1), (w2, b2)):
        x = lib.max_pool(lib.relu(lib.conv2d(x, weight, 1, 1, 1) + lib.channel_bias(bias)))
    return lib.cross_entropy(lib.linear(lib.flatten(x), w3, b3), labels)


def convnet_parameters(rng: np.random.Generator) -> list[np.ndarray]:
    """3 x 3 filters and biases, and the linear layer's."""
    found = []
    for inputs, outputs in pairwise(CONVNET_CHANNELS):
        found += [uniform(rng, (outputs, inputs, 3, 3), 9 * inputs), np.zeros(outputs, np.float32)]
    features = CONVNET_CHANNELS[-1] * 7 * 7
    return [*found, uniform(rng, (features, 10), features), np.zeros(10, np.float32)]


# Transformers


def gpt_parameters(
    rng: np.random.Generator, vocabulary: int, positions: int, width: int, layers: int
) -> list[np.ndarray]:
    """Two embeddings, 12 arrays for each layer, and the last normalisation's two."""

    def norm() -> list[np.ndarray]:
        return [np.ones(width, np.float32), np.zeros(width, np.float32)]

    def linear(inputs: int, outputs: int) -> list[np.ndarray]:
        return [normal(rng, (inputs, outputs), 0.02), np.zeros(outputs, np.float32)]

    found = [normal(rng, (vocabulary, width), 0.02), normal(rng, (positions, width), 0.02)]
    for _ in range(layers):
        found += norm() + linear(width, 3 * width) + linear(width, width)
        found += norm() + linear(width, 4 * width) + linear(4 * width, width)
    return found + norm()


def _layers(parameters: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(parameters), PER_LAYER):
        yield parameters[start : start + PER_LAYER]


def gpt_loss(heads: int) -> Program:
    """GPT-2's structure, without dropout, its head tied to the embedding; cross-entropy."""

    def loss(lib: Library, table: Any, positions: Any, *rest: Any) -> Any:
        *layers, last_scale, last_shift, tokens, labels = rest
        batch, size, width = *tokens.shape, table.shape[1]
        x = lib.embedding(table, tokens) + positions
        for layer in _layers(tuple(layers)):
            scale1, shift1, wqkv, bqkv, wo, bo, scale2, shift2, w1, b1, w2, b2 = layer
            qkv = lib.linear(lib.layernorm(x, scale1, shift1), wqkv, bqkv)
            qkv = qkv.reshape(batch, size, 3, heads, width // heads)
            qkv = lib.permute(qkv, (2, 0, 3, 1, 4))
            mixed = lib.attention(qkv[0], qkv[1], qkv[2], True)
            mixed = lib.permute(mixed, (0, 2, 1, 3)).reshape(batch, size, width)
            x = x + lib.linear(mixed, wo, bo)
            hidden = lib.gelu(lib.linear(lib.layernorm(x, scale2, shift2), w1, b1))
            x = x + lib.linear(hidden, w2, b2)
        x = lib.layernorm(x, last_scale, last_shift).reshape(batch * size, width)
        return lib.cross_entropy(lib.matmul(x, lib.swap(table)), labels)

    return loss


def gpt_decode(heads: int, layers: int, position: int) -> Program:
    """One token's scores, given the keys and values of those before it."""

    def decode(lib: Library, *arrays: Any) -> Any:
        caches, (table, places, *rest) = arrays[: 2 * layers], arrays[2 * layers :]
        *weights, last_scale, last_shift, token = rest
        width = table.shape[1]
        x = lib.embedding(table, token) + places[position : position + 1]
        written = []
        for number, layer in enumerate(_layers(tuple(weights))):
            scale1, shift1, wqkv, bqkv, wo, bo, scale2, shift2, w1, b1, w2, b2 = layer
            qkv = lib.linear(lib.layernorm(x, scale1, shift1), wqkv, bqkv)
            qkv = qkv.reshape(3, 1, heads, 1, width // heads)
            keys = lib.put(caches[2 * number], qkv[1], position)
            values = lib.put(caches[2 * number + 1], qkv[2], position)
            written += [keys, values]
            mixed = lib.attention(qkv[0], keys, values, False)
            x = x + lib.linear(mixed.reshape(1, width), wo, bo)
            hidden = lib.gelu(lib.linear(lib.layernorm(x, scale2, shift2), w1, b1))
            x = x + lib.linear(hidden, w2, b2)
        x = lib.layernorm(x, last_scale, last_shift)
        return lib.matmul(x, lib.swap(table)), written

    return decode


# Initial values


def uniform(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> np.ndarray:
    """Values that keep a layer's outputs about as large as its inputs."""
    bound = inputs**-0.5
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def normal(
    rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0, shift: float = 0.0
) -> np.ndarray:
    """Normally distributed values."""
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= scale
    values += shift
    return values
