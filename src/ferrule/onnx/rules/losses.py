"""Losses."""

from __future__ import annotations

from ferrule.onnx.registry import rule
from ferrule.tensor import Tensor


def _nll(
    log_p: Tensor, target: Tensor, weight: Tensor | None, ignore: int | None, reduction: str
) -> Tensor:
    """The negative log-likelihood of classes along axis 1."""
    kept = None if ignore is None else target != ignore
    safe = target if kept is None else kept.where(target, 0)
    safe = (safe < 0).where(safe + log_p.shape[1], safe)
    loss = -log_p.gather(1, safe.unsqueeze(1)).squeeze(1)
    scale = None if weight is None else weight.index_select(0, safe.reshape(-1)).reshape(safe.shape)
    if kept is not None:
        scale = kept.cast(loss.dtype) if scale is None else kept.where(scale, 0.0)
    if scale is not None:
        loss = loss * scale
    if reduction == "none":
        return loss
    if reduction == "sum" or scale is None:
        return loss.sum() if reduction == "sum" else loss.mean()
    return loss.sum() / scale.sum()


@rule("NegativeLogLikelihoodLoss", 12)
def negative_log_likelihood(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    return _nll(x, target, weight, ignore_index, reduction)


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
    return _nll(log_p, labels, weights, ignore_index, reduction), log_p
