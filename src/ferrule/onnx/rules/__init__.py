"""The rules of ONNX's operators, by topic; importing this fills the table."""

from ferrule.onnx.rules import (
    attention,
    control,
    elementwise,
    images,
    indexing,
    losses,
    normalization,
    products,
    quantization,
    random,
    recurrent,
    reductions,
    sequences,
    shapes,
    signals,
    windows,
)

__all__ = [
    "attention",
    "control",
    "elementwise",
    "images",
    "indexing",
    "losses",
    "normalization",
    "products",
    "quantization",
    "random",
    "recurrent",
    "reductions",
    "sequences",
    "shapes",
    "signals",
    "windows",
]
