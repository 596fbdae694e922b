"""Layers, optimisers (`nn.optim`) and the state of models (`nn.state`)."""

from ferrule.nn import optim, state, utils
from ferrule.nn.layers import (
    BatchNorm,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    RMSNorm,
    Sequential,
)

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "Sequential",
    "optim",
    "state",
    "utils",
]
