"""Losses that want a distance between right and wrong, and how similar vectors are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota
from ferrule.ir.dtype import dtypes
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import broadcast_shape, expanded, known_size
from ferrule.tensor.index.positions import in_range, index_value
from ferrule.tensor.keywords import method
from ferrule.tensor.making import is_class
from ferrule.tensor.math.arithmetic import Operand, as_floats, float_value
from ferrule.tensor.network.loss import class_weights, reduced
from ferrule.tensor.reduce.reductions import largest

# -- similarity ----------------------------------------------------------------------------------


@method
def cosine_similarity(self: Tensor, other: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis, whose lengths are at least `eps`.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([[3.0, 4.0]]).cosine_similarity(Tensor([[3.0, 4.0]])).item()
    1.0
    """
    shape = broadcast_shape((self._shape, other._shape), "cosine_similarity")
    a, b = (self._wrap(expanded(x, shape)) for x in (float_value(self), other._read()))
    lengths = [x.norm(2, dim, True).clamp(min=eps) for x in (a, b)]
    return (a / lengths[0] * (b / lengths[1])).sum(dim)


@method
def pairwise_distance(
    self: Tensor, other: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of self - other + eps along the last axis.

    Raises `ShapeError` if the shapes do not broadcast.

    >>> from ferrule import Tensor
    >>> Tensor([[3.0, 4.0]]).pairwise_distance(Tensor([[0.0, 0.0]]), eps=0).tolist()
    [5.0]
    """
    return (as_floats(self, other) - other + eps).norm(p, -1, keepdim)


@method
def pdist(self: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of all pairs of rows: n * (n - 1) / 2 numbers.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]).pdist(1).tolist()
    [7.0, 1.0, 6.0]
    """
    if self.ndim != 2:
        raise ShapeError(f"[pdist] a matrix of rows is needed, not shape {self._shape}")
    count = known_size(self._shape[0], "pdist")
    rows, columns = self.triu_indices(count, count, 1, device=self.device)
    x = as_floats(self)
    return (x[rows] - x[columns]).norm(p, -1)


# -- two vectors, or three -----------------------------------------------------------------------


@method
def cosine_embedding_loss(
    self: Tensor, other: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cosine where the target is 1, and max(0, cosine - margin) where it is -1.

    The vectors are along the last axis. Raises `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1.0, 0.0]])
    >>> round(x.cosine_embedding_loss(x, Tensor([-1]), margin=0.25).item(), 6)
    0.75
    """
    x, y = as_floats(self), as_floats(other)
    # PyTorch adds this to the squared lengths, so that zeros have a cosine.
    tiny = 1e-12
    squares = (x.square().sum(-1) + tiny) * (y.square().sum(-1) + tiny)
    cosine = (x * y).sum(-1) / squares.sqrt()
    near, far = (self._wrap(target._read().equals(sign)) for sign in (1, -1))
    losses = near.where(1 - cosine, far.where((cosine - margin).clamp(min=0), 0))
    return reduced(losses, reduction, "cosine_embedding_loss")


@method
def triplet_margin_loss(
    self: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """How much the distance to `positive` plus `margin` exceeds that to `negative`, or 0.

    With `swap` the distance between these two counts, if it is smaller than the latter. Raises
    `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> x = Tensor([[0.0, 0.0]])
    >>> x.triplet_margin_loss(x + 1, x + 1).item()
    1.0
    """

    def distance(a: Any, b: Any) -> Any:
        return a.pairwise_distance(b, p, eps)

    given = (positive, negative, distance, margin, swap, reduction)
    return _triplet_loss(self, *given, "triplet_margin_loss")


@method
def triplet_margin_with_distance_loss(
    self: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with any distance of two tensors; `pairwise_distance` unless given.

    Raises `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> x = Tensor([[0.0, 0.0]])
    >>> far = lambda a, b: (a - b).abs().max(-1)
    >>> x.triplet_margin_with_distance_loss(x + 1, x + 3, far, margin=3.0).item()
    1.0
    """
    distance = type(self).pairwise_distance if distance_function is None else distance_function
    given = (positive, negative, distance, margin, swap, reduction)
    return _triplet_loss(self, *given, "triplet_margin_with_distance_loss")


def _triplet_loss(
    self: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance: Callable[[Any, Any], Any],
    margin: float,
    swap: bool,
    reduction: str,
    what: str,
) -> Tensor:
    near, far = distance(self, positive), distance(self, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    losses: Tensor = (near - far + margin).clamp(min=0)
    return reduced(losses, reduction, what)


@method
def margin_ranking_loss(
    self: Tensor, other: Operand, target: Operand, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, margin - target * (self - other)): 1 wants self to be larger, -1 smaller.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
    2.0
    """
    losses = (margin - (as_floats(self, other) - other) * target).clamp(min=0)
    return reduced(losses, reduction, "margin_ranking_loss")


# -- signs ---------------------------------------------------------------------------------------


@method
def hinge_embedding_loss(
    self: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """self where the target is 1, and max(0, margin - self) where it is -1.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([0.5, 0.25]).hinge_embedding_loss(Tensor([1, -1]), reduction="none").tolist()
    [0.5, 0.75]
    """
    not_near, not_far = (self._wrap(target._read().differs(sign)) for sign in (1, -1))
    x = as_floats(self)
    losses = not_near.where((margin - x).clamp(min=0), 0) + not_far.where(x, 0)
    return reduced(losses, reduction, "hinge_embedding_loss")


@method
def soft_margin_loss(self: Tensor, target: Operand, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * self)), for targets 1 and -1.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([-200.0]).soft_margin_loss(Tensor([1.0])).item()
    200.0
    """
    losses = (as_floats(self, target) * target).neg().softplus()
    return reduced(losses, reduction, "soft_margin_loss")


# -- classes, on the last axis -------------------------------------------------------------------


@method
def multi_margin_loss(
    self: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of max(0, margin - score of the right one + score)**p.

    Scores are (batch, classes), or without the batch; `weight` is one factor for each class. Raises
    `ShapeError` if the targets do not fit the scores, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([[3.0, 2.5, 0.0, 0.0]]).multi_margin_loss(Tensor([0])).item()
    0.125
    """
    what = "multi_margin_loss"
    scores, labels = _scores_of(self, target, False, what)
    chosen = self._wrap(
        TracedValue(is_class(labels, known_size(scores._shape[1], what), what).node)
    )
    right = chosen.where(scores, 0).sum(1, keepdim=True)
    losses = (scores - right + margin).clamp(min=0)
    losses = losses if p == 1 else losses.pow(p)
    if weight is not None:
        weights = self._wrap(class_weights(scores, weight, scores._shape, 1, what))
        factor = chosen.where(weights, 0)
        losses = losses * factor.sum(1, keepdim=True)
    total = chosen.where(0, losses).mean(1)
    return reduced(total.reshape(self._shape[:-1]), reduction, what)


@method
def multilabel_margin_loss(self: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The sum of max(0, 1 - right + wrong) for all right and wrong classes, over their number.

    Scores are (batch, classes), or without the batch, and targets of that shape hold class indices
    up to the first -1. Raises `ShapeError` if the targets do not fit the scores, `ValueError` for
    another `reduction`.

    >>> from ferrule import Tensor
    >>> x = Tensor([[0.5, 0.25, 1.0, 0.0]])
    >>> x.multilabel_margin_loss(Tensor([[2, 0, -1, 1]])).item()
    0.375
    """
    what = "multilabel_margin_loss"
    scores, labels = _scores_of(self, target, True, what)
    value, places = scores._read(), index_value(labels._read())
    batch, classes = value.shape
    counts = self._wrap((places < 0).cast(dtypes.int32)).cumsum(1, dtypes.int32)._read()
    listed = counts.equals(0)
    wide = (batch, classes, classes)  # a right class, then any
    number = expanded(iota(classes, places.dtype, self.device), wide)
    at = in_range(listed.where(places, -1), known_size(classes, what), what, 1, -1)
    is_it = expanded(at, wide, 0).equals(number)
    is_right = largest(is_it, (1,)).expand(wide)
    right = expanded(value.gather(at, 1), wide, 0)
    short = self._wrap(1 - right + value.reshape((batch, 1, classes)).expand(wide)).clamp(min=0)
    counted = expanded(listed, wide, 0)
    counted = is_right.where(is_right.full(False), counted)
    losses = self._wrap(counted).where(short, 0).sum((1, 2)) / classes
    return reduced(losses.reshape(self._shape[:-1]), reduction, what)


@method
def multilabel_soft_margin_loss(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over classes, the last axis, of `binary_cross_entropy_with_logits`.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([[-100.0, -200.0]]).multilabel_soft_margin_loss(Tensor([[1, 0]])).item()
    50.0
    """
    losses = self.binary_cross_entropy_with_logits(target, weight, "none")
    return reduced(losses.mean(-1), reduction, "multilabel_soft_margin_loss")


def _scores_of(self: Tensor, target: Tensor, same: bool, what: str) -> tuple[Tensor, Tensor]:
    """Scores in floats as (batch, classes) and targets to match; raises `ShapeError`."""
    scores = as_floats(self)
    scores = scores.reshape(1, -1) if len(self._shape) < 2 else scores
    shape = self._shape if same else self._shape[:-1]
    one = not self._shape or (not same and len(self._shape) == 1 and target._shape == (1,))
    if len(self._shape) > 2 or (target._shape != shape and not one):
        raise ShapeError(
            f"[{what}] targets of shape {target._shape} do not fit scores of shape "
            f"{self._shape}, which are (batch, classes): they are of shape {shape}"
        )
    labels = target.cast(dtypes.int64) if dtypes.is_float(target.dtype) else target
    return scores, labels.reshape(scores._shape if same else scores._shape[:1])
