"""Random numbers. A seed in the model is not used: `Tensor.manual_seed` sets one for all."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.onnx.registry import rule
from ferrule.onnx.values import dtype_of
from ferrule.tensor import Tensor


@rule("RandomUniform")
def uniform(
    *,
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    shape: Sequence[int],
) -> Tensor:
    return (Tensor.rand(*shape) * (high - low) + low).cast(dtype_of(dtype))


@rule("RandomNormal")
def normal(
    *,
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: Sequence[int],
) -> Tensor:
    return (Tensor.randn(*shape) * scale + mean).cast(dtype_of(dtype))


@rule("RandomUniformLike")
def uniform_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Tensor:
    numbers = Tensor.rand(*x.shape) * (high - low) + low
    return numbers.cast(x.dtype if dtype is None else dtype_of(dtype))


@rule("RandomNormalLike")
def normal_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    numbers = Tensor.randn(*x.shape) * scale + mean
    return numbers.cast(x.dtype if dtype is None else dtype_of(dtype))


@rule("Bernoulli", 15)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return (Tensor.rand(*x.shape) < x).cast(x.dtype if dtype is None else dtype_of(dtype))


@rule("Multinomial", 7)
def multinomial(
    x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Tensor:
    return x.softmax(-1).multinomial(sample_size, replacement=True).cast(dtype_of(dtype))
