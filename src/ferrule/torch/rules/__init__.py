"""The rules of ATen's operators, by topic; importing this fills the table."""

from ferrule.torch.rules import (
    attention,
    control,
    elementwise,
    indexing,
    normalization,
    products,
    random,
    reductions,
    shapes,
    spectra,
    windows,
)

__all__ = [
    "attention",
    "control",
    "elementwise",
    "indexing",
    "normalization",
    "products",
    "random",
    "reductions",
    "shapes",
    "spectra",
    "windows",
]
