"""Losses."""

from __future__ import annotations

from ferrule.onnx.registry import rule
from ferrule.tensor import Tensor

_NONE = -100
"""The class that is left out if none is: no class has such a number."""


@rule("NegativeLogLikelihoodLoss", 12)
def negative_log_likelihood(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    left_out = _NONE if ignore_index is None else ignore_index
    return x.nll_loss(target, weight, left_out, reduction)


@rule("SoftmaxCrossEntropyLoss", 12)
def softmax_cross_entropy(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    log_p = scores.log_softmax(1)
    loss = negative_log_likelihood(
        log_p, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return loss, log_p
