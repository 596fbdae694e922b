"""Losses: how far predictions are from what they should be."""

from __future__ import annotations

import math
from math import prod
from numbers import Real

import numpy as np

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, record
from ferrule.base.calls import one_of
from ferrule.ir.dtype import DTypeError, dtypes
from ferrule.ir.expr import sint
from ferrule.ir.lazyop import BinaryOps
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.algebra.linalg import operand_value
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import check_devices, expanded, known_size
from ferrule.tensor.index.positions import in_range, index_value
from ferrule.tensor.keywords import method
from ferrule.tensor.math.arithmetic import Operand, as_floats, float_value, operands
from ferrule.tensor.math.special import at_least, log, widened
from ferrule.tensor.network.classes import Given, LogChances, LogSoftmax, chosen
from ferrule.tensor.reduce import rowwise


def _check_smoothing(smoothing: float, what: str) -> None:
    if not isinstance(smoothing, Real) or not 0 <= smoothing <= 1:
        raise ValueError(f"[{what}] label_smoothing is from 0 to 1, not {smoothing!r}")


def reduced(self: Tensor, reduction: str, what: str) -> Tensor:
    """The mean or the sum of losses, or the losses themselves."""
    one_of(reduction, ("mean", "sum", "none"), f"[{what}] reduction")
    if reduction == "mean":
        return self.mean()
    return self.sum() if reduction == "sum" else self


def _fitting(self: Tensor, target: Operand, what: str) -> tuple[Tensor, Tensor]:
    """This tensor and a target, of one float dtype and one shape; raises `ShapeError`.

    A target may be a number, or one for many predictions. Predictions are not repeated, but for
    a single number: those of shape (N, 1) for a target (N,) would be compared each with each,
    and the mean be a number that looks right.
    """
    own, wanted = operands(as_floats(self, target), target, what)
    if own.shape != self._shape and self._shape:
        given = np.shape(target) if not isinstance(target, Tensor) else target._shape
        is_other_order = prod(given) == prod(self._shape)
        fit = f"target.reshape{self._shape}" if is_other_order else f"x.expand{own.shape}"
        raise ShapeError(
            f"[{what}] a target of shape {given} does not fit predictions of shape "
            f"{self._shape}: they would be repeated to {own.shape}; write {fit}"
            + ("" if is_other_order else " if that is meant")
        )
    return self._wrap(own), self._wrap(wanted)


def _difference(self: Tensor, target: Operand, what: str) -> Tensor:
    own, wanted = _fitting(self, target, what)
    return own - wanted


# -- classes -------------------------------------------------------------------------------------


@method
def cross_entropy(
    self: Tensor,
    target: Tensor,
    reduction: str | Tensor | None = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    weight: Tensor | None = None,
) -> Tensor:
    """The loss of unnormalised scores, whose classes are on axis 1 (0 for one axis).

    `target` holds class indices, without that axis, or probabilities of the same shape. Indices
    equal to `ignore_index` do not count; the loss of others that are no class is NaN, and with
    `FERRULE_CHECK_INDEX=1` they raise `IndexError` when they are computed. `weight`
    is one factor for each class; a mean over class indices is over their weights. PyTorch's
    order works as well: a weight in the second place.

    Raises `ShapeError` if the shapes do not fit.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item() == Tensor([2.0]).log().item()
    True
    """
    if not isinstance(reduction, str):
        weight, reduction = reduction if weight is None else weight, "mean"
    _check_smoothing(label_smoothing, "cross_entropy")
    axis = _class_axis(self, "cross_entropy")
    if target._shape != self._shape or not dtypes.is_float(target.dtype):
        logs = LogSoftmax(float_value(self), axis)
        return _class_loss(
            self, logs, target, reduction, label_smoothing, ignore_index, "cross_entropy", weight
        )
    scores = self.log_softmax(axis)
    wanted = _smoothed(target, axis, label_smoothing)
    if weight is not None:
        weights = class_weights(scores, weight, self._shape, axis, "cross_entropy")
        wanted = wanted * self._wrap(weights)
    return reduced((-(scores * wanted).sum(axis)), reduction, "cross_entropy")


@method
def sparse_categorical_crossentropy(
    self: Tensor,
    target: Tensor,
    ignore_index: int = -1,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """`cross_entropy` for class indices, with the classes on the last axis.

    Raises `ShapeError` if the targets do not fit the scores, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([[100.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).item()
    100.0
    """
    what = "sparse_categorical_crossentropy"
    logs = LogSoftmax(float_value(self), self._axis(-1, what))
    _check_smoothing(label_smoothing, what)
    return _class_loss(self, logs, target, reduction, label_smoothing, ignore_index, what)


@method
def nll_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The negative of the log-probability, with classes on axis 1, of each class index.

    `weight` is one factor for each class; a mean is over the weights. Raises `ShapeError` if the
    targets do not fit the scores, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([[-1.0, -2.0]]).nll_loss(Tensor([1])).item()
    2.0
    """
    axis = _class_axis(self, "nll_loss")
    logs = Given(self._read(), axis)
    return _class_loss(self, logs, target, reduction, 0.0, ignore_index, "nll_loss", weight)


def _class_axis(self: Tensor, what: str) -> int:
    if not self._shape:
        raise ShapeError(f"[{what}] scores need an axis for the classes")
    return min(1, len(self._shape) - 1)


def _smoothed(probabilities: Tensor, axis: int, smoothing: float) -> Tensor:
    if not smoothing:
        return probabilities
    classes = known_size(probabilities._shape[axis], "cross_entropy")
    return probabilities * (1 - smoothing) + smoothing / classes


def _class_loss(
    self: Tensor,
    logs: LogChances,
    target: Tensor,
    reduction: str,
    smoothing: float,
    ignore_index: int,
    what: str,
    weight: Tensor | None = None,
) -> Tensor:
    """The loss of log-probabilities, which have this tensor's shape, for class indices."""
    labels, is_class, counts = _label_values(self, target, logs.axis, ignore_index, what)
    losses = self._wrap((0 - logs.chosen(labels)).reshape(target._shape))
    factors = losses.ones_like()
    weights = None
    if weight is not None:
        weights = class_weights(losses, weight, self._shape, logs.axis, what)
        factors = self._wrap(chosen(weights, labels, logs.axis).reshape(target._shape))
        losses = losses * factors
    if smoothing:
        spread = logs.all() if weights is None else logs.all() * weights
        losses = losses * (1 - smoothing) - self._wrap(spread).mean(logs.axis) * smoothing
    losses = counts.where(is_class.where(losses, math.nan), 0)
    if reduction == "mean":
        return losses.sum() / counts.where(factors, 0).sum()
    return reduced(losses, reduction, what)


def _label_values(
    self: Tensor, target: Tensor, axis: int, ignore_index: int, what: str
) -> tuple[TracedValue, Tensor, Tensor]:
    """Class indices, of size 1 along the classes' axis, which are a class, and which count."""
    shape = self._shape[:axis] + self._shape[axis + 1 :]
    if target._shape != shape:
        raise ShapeError(
            f"[{what}] class indices of shape {target._shape} do not fit scores of shape "
            f"{self._shape}: without the classes on axis {axis} that is {shape}"
        )
    if dtypes.is_float(target.dtype):
        raise DTypeError(f"[{what}] class indices are integers, not {target.dtype}; cast them")
    labels = target._read().detach()
    check_devices(labels, self._read(), what)
    labels = labels.cast(dtypes.int32) if labels.dtype is dtypes.bool else index_value(labels)
    classes = known_size(self._shape[axis], what)
    labels = in_range(labels, classes, what, axis, ignored=ignore_index)
    is_class = self._wrap((labels > -1).alu(BinaryOps.AND, labels < classes))
    counts = self._wrap(labels.differs(ignore_index))
    return labels.reshape((*shape[:axis], 1, *shape[axis:])), is_class, counts


def class_weights(
    self: Tensor, weight: Tensor, shape: tuple[sint, ...], axis: int, what: str
) -> TracedValue:
    """One factor for each class, in this tensor's dtype, for each element of a shape."""
    classes = shape[axis]
    if weight._shape != (classes,):
        raise ShapeError(
            f"[{what}] a weight of shape {weight._shape} must be one number for each of the "
            f"{classes} classes"
        )
    return expanded(weight._read().cast(self.dtype), shape, axis)


# -- probabilities -------------------------------------------------------------------------------


@method
def binary_cross_entropy(
    self: Tensor,
    target: Operand,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(target * log(self) + (1 - target) * log(1 - self)) for probabilities, times a weight.

    Logarithms are at least -100, and gradients at most 1e12, as PyTorch's. Raises `ShapeError` if
    the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([0.5]).binary_cross_entropy(Tensor([1.0])).item() == Tensor([2.0]).log().item()
    True
    """
    source = as_floats(self)
    _fitting(source, target, "binary_cross_entropy")
    losses = self._wrap(_surprise(*operands(source, target, "binary_cross_entropy")))
    losses = losses if weight is None else losses * weight
    return reduced(losses, reduction, "binary_cross_entropy")


@method
def binary_crossentropy(self: Tensor, target: Operand, reduction: str = "mean") -> Tensor:
    """The same as `binary_cross_entropy`.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([0.5]).binary_crossentropy(Tensor([1.0])).item() == Tensor([2.0]).log().item()
    True
    """
    return self.binary_cross_entropy(target, None, reduction)


@method
def binary_cross_entropy_with_logits(
    self: Tensor,
    target: Operand,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """`binary_cross_entropy` of sigmoid(self), without overflow.

    `pos_weight` multiplies the part of the loss that a target of 1 has. Raises `ShapeError` if the
    shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([-1000.0]).binary_cross_entropy_with_logits(Tensor([1.0])).item()
    1000.0
    """
    x = as_floats(self)
    _fitting(x, target, "binary_cross_entropy_with_logits")
    if pos_weight is None:
        losses = x.softplus() - x * target
    else:
        more = (as_floats(pos_weight) - 1) * target + 1
        losses = (x * target).neg() + x + more * (-x).softplus()
    losses = losses if weight is None else losses * weight
    return reduced(losses, reduction, "binary_cross_entropy_with_logits")


@method
def binary_crossentropy_logits(
    self: Tensor, target: Operand, reduction: str = "mean", pos_weight: Tensor | None = None
) -> Tensor:
    """The same as `binary_cross_entropy_with_logits`.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([-1000.0]).binary_crossentropy_logits(Tensor([1.0])).item()
    1000.0
    """
    return self.binary_cross_entropy_with_logits(target, None, reduction, pos_weight)


@method
def kl_div(
    self: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """target * (log(target) - self): the Kullback-Leibler divergence of log-probabilities.

    With `log_target` the target is a logarithm too. "batchmean" divides the sum by the size of axis
    0, which is what the divergence is defined as. Raises `ShapeError` if the shapes do not
    broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([[0.0, -1.0]]).kl_div(Tensor([[1.0, 0.0]]), "batchmean").item()
    0.0
    """
    own, wanted = _fitting(self, target, "kl_div")
    losses = wanted.exp() * (wanted - own) if log_target else wanted.xlogy(wanted) - wanted * own
    if reduction == "batchmean":
        return losses.sum() / (losses._shape[0] if losses._shape else 1)
    return reduced(losses, reduction, "kl_div")


@method
def poisson_nll_loss(
    self: Tensor,
    target: Operand,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """exp(self) - target * self: the negative log-likelihood of counts, self being their log.

    Without `log_input` self is the mean itself, and `eps` keeps its logarithm finite. `full` adds
    Stirling's approximation of log(target!) for targets above 1. Raises `ShapeError` if the shapes
    do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([0.0]).poisson_nll_loss(Tensor([3.0])).item()
    1.0
    """
    x = as_floats(self)
    _fitting(x, target, "poisson_nll_loss")
    losses = x.exp() - x * target if log_input else x - (x + eps).log() * target
    if full:
        count = as_floats(x._wrap(operand_value(x, target)))
        large = (count > 1).where(count, 1)
        more = large * large.log() - large + (large * (2 * math.pi)).log() * 0.5
        losses = losses + (count > 1).where(more, 0)
    return reduced(losses, reduction, "poisson_nll_loss")


@method
def gaussian_nll_loss(
    self: Tensor,
    target: Operand,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """(log(var) + (self - target)**2 / var) / 2: normally distributed targets around self.

    `var` is a number, has this tensor's shape, or lacks the last axis, or has 1 there. It counts as
    `eps` at least, which its gradient does not see. `full` adds log(2 pi) / 2. Raises `ValueError`
    for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).gaussian_nll_loss(Tensor([3.0]), Tensor([1.0])).item()
    2.0
    """
    difference = _difference(self, target, "gaussian_nll_loss")
    spread = as_floats(self._wrap(operand_value(self, var)))
    if spread._shape and spread._shape == self._shape[:-1]:
        spread = spread.unsqueeze(-1)
    spread = (spread < eps).where(spread - spread.detach() + eps, spread)
    losses = (spread.log() + difference.square() / spread) * 0.5
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return reduced(losses, reduction, "gaussian_nll_loss")


# -- distances -----------------------------------------------------------------------------------


@method
def mse_loss(
    self: Tensor, target: Operand, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The squared difference; a mean with a weight is over the weights.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).mse_loss(Tensor([3.0, 2.0])).item()
    2.0
    """
    return _weighted(_difference(self, target, "mse_loss").square(), weight, reduction, "mse_loss")


@method
def l1_loss(
    self: Tensor, target: Operand, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The size of the difference; a mean with a weight is over the weights.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).l1_loss(Tensor([4.0, 2.0])).item()
    1.5
    """
    return _weighted(_difference(self, target, "l1_loss").abs(), weight, reduction, "l1_loss")


@method
def smooth_l1_loss(
    self: Tensor, target: Operand, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """The size of the difference less beta / 2; below beta its square over 2 beta.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).smooth_l1_loss(Tensor([4.0, 1.5]), "none").tolist()
    [2.5, 0.125]
    """
    if beta < 0:
        raise ValueError(f"[smooth_l1_loss] beta is at least 0, not {beta}")
    if beta == 0:
        return self.l1_loss(target, reduction)
    difference = _difference(self, target, "smooth_l1_loss")
    size = difference.abs()  # whose slope is 0 at 0: its square would have no curvature there
    losses = (size < beta).where(difference.square() * (0.5 / beta), size - beta / 2)
    return reduced(losses, reduction, "smooth_l1_loss")


@method
def huber_loss(
    self: Tensor,
    target: Operand,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """delta * (size of the difference - delta / 2); up to delta half its square.

    Raises `ShapeError` if the shapes do not broadcast, `ValueError` for another `reduction`.

    >>> from ferrule import Tensor
    >>> Tensor([1.0, 2.0]).huber_loss(Tensor([4.0, 1.5]), "none", delta=2.0).tolist()
    [4.0, 0.125]
    """
    if delta <= 0:
        raise ValueError(f"[huber_loss] delta is more than 0, not {delta}")
    difference = _difference(self, target, "huber_loss")
    size = difference.abs()
    losses = (size > delta).where((size - delta / 2) * delta, difference.square() * 0.5)
    return _weighted(losses, weight, reduction, "huber_loss")


def _weighted(self: Tensor, weight: Tensor | None, reduction: str, what: str) -> Tensor:
    if weight is None:
        return reduced(self, reduction, what)
    losses = self * weight
    if reduction == "mean":
        return losses.sum() / weight.expand(losses._shape).sum()
    return reduced(losses, reduction, what)


def _surprise(chance: TracedValue, target: TracedValue) -> TracedValue:
    """-(target * log(chance) + (1 - target) * log(1 - chance)), of one float dtype and shape."""
    x, y = widened(chance), widened(target)
    own, other = at_least(log(x), -100), at_least(log(1 - x), -100)
    losses = (0 - ((own - other) * y + other)).cast(chance.dtype)
    return record("binary_cross_entropy", _SURPRISE, (chance, target), losses.node, None)


def _reverse_surprise(grad: TracedValue, entry: GradNode) -> Gradients:
    x, y = (rowwise.accumulating(part) for part in entry.saved)
    wide = rowwise.accumulating(grad)
    slope = (x - y) / at_least(x * (1 - x), 1e-12)
    odds = at_least(log(1 - x), -100) - at_least(log(x), -100)
    return (wide * slope).cast(grad.dtype), (wide * odds).cast(grad.dtype)


_SURPRISE = Rule(_reverse_surprise, inputs=(0, 1))
