"""Random numbers: they come from ferrule's generator, which `Tensor.manual_seed` sets."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir.dtype import DType, dtypes
from ferrule.tensor import Tensor
from ferrule.torch.registry import rule


@rule("rand")
def rand(size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return Tensor.rand(tuple(size), dtype=dtype or dtypes.default_float)


@rule("randn")
def randn(size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return Tensor.randn(tuple(size), dtype=dtype or dtypes.default_float)


@rule("rand_like")
def rand_like(self: Tensor, *, dtype: DType | None = None) -> Tensor:
    return rand(self.shape, dtype=dtype or self.dtype)


@rule("randn_like")
def randn_like(self: Tensor, *, dtype: DType | None = None) -> Tensor:
    return randn(self.shape, dtype=dtype or self.dtype)


@rule("randint")
def randint(high: int, size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return randint_low(0, high, size, dtype=dtype)


@rule("randint.low")
def randint_low(low: int, high: int, size: Sequence[int], *, dtype: DType | None = None) -> Tensor:
    return Tensor.randint(tuple(size), low=low, high=high, dtype=dtypes.int64).cast(
        dtype or dtypes.int64
    )


@rule("randperm")
def randperm(n: int, *, dtype: DType | None = None) -> Tensor:
    return Tensor.randperm(n, dtype=dtype or dtypes.int64)


@rule("bernoulli")
def bernoulli(self: Tensor) -> Tensor:
    return self.bernoulli()


@rule("bernoulli.p")
def bernoulli_of(self: Tensor, p: float = 0.5) -> Tensor:
    return self.bernoulli(p)


@rule("native_dropout")
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The result, and which elements were kept."""
    if not train or p == 0:
        return input, Tensor.ones(*input.shape, dtype=dtypes.bool)
    kept = Tensor.rand(*input.shape) >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return kept.where(input, 0) * scale, kept


@rule("native_dropout_backward")
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    return mask.where(grad_output, 0) * scale
