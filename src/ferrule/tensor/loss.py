"""Losses: how far predictions are from what they should be."""

from __future__ import annotations

import math
from math import prod
from numbers import Real
from typing import Self

import numpy as np

from ferrule.dtype import DTypeError, dtypes
from ferrule.expr import sint
from ferrule.gradient import Entry, Gradients, Rule, Value, record
from ferrule.ops import BinaryOps
from ferrule.shape.view import ShapeError
from ferrule.tensor import rowwise
from ferrule.tensor.arithmetic import Operand
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import check_devices, known_size
from ferrule.tensor.classes import Given, LogChances, LogSoftmax, chosen
from ferrule.tensor.neural import Neural
from ferrule.tensor.positions import in_range, index_value
from ferrule.tensor.special import at_least, log, widened


def _check_smoothing(smoothing: float, what: str) -> None:
    if not isinstance(smoothing, Real) or not 0 <= smoothing <= 1:
        raise ValueError(f"[{what}] label_smoothing is from 0 to 1, not {smoothing!r}")


class Loss(Neural):
    """Losses, each with `reduction` "mean", "sum" or "none"."""

    __slots__ = ()

    def _reduced(self, reduction: str, what: str) -> Self:
        if reduction == "none":
            return self
        if reduction == "mean":
            return self.mean()
        if reduction == "sum":
            return self.sum()
        raise ValueError(f"[{what}] reduction is 'mean', 'sum' or 'none', not {reduction!r}")

    def _fitting(self, target: Operand, what: str) -> tuple[Self, Self]:
        """This tensor and a target, of one float dtype and one shape; raises `ShapeError`.

        A target may be a number, or one for many predictions. Predictions are not repeated, but for
        a single number: those of shape (N, 1) for a target (N,) would be compared each with each,
        and the mean be a number that looks right.
        """
        own, wanted = self._as_float(target)._operands(target, what)
        if own.shape != self._shape and self._shape:
            given = np.shape(target) if not isinstance(target, TensorBase) else target._shape
            is_other_order = prod(given) == prod(self._shape)
            fit = f"target.reshape{self._shape}" if is_other_order else f"x.expand{own.shape}"
            raise ShapeError(
                f"[{what}] a target of shape {given} does not fit predictions of shape "
                f"{self._shape}: they would be repeated to {own.shape}; write {fit}"
                + ("" if is_other_order else " if that is meant")
            )
        return self._wrap(own), self._wrap(wanted)

    def _difference(self, target: Operand, what: str) -> Self:
        own, wanted = self._fitting(target, what)
        return own - wanted

    # -- classes ---------------------------------------------------------------------------------

    def cross_entropy(
        self,
        target: TensorBase,
        reduction: str | TensorBase | None = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        weight: TensorBase | None = None,
    ) -> Self:
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
        axis = self._class_axis("cross_entropy")
        if target._shape != self._shape or not dtypes.is_float(target.dtype):
            logs = LogSoftmax(self._float(), axis)
            return self._class_loss(
                logs, target, reduction, label_smoothing, ignore_index, "cross_entropy", weight
            )
        scores = self.log_softmax(axis)
        wanted = self._smoothed(self._wrap(target._read()), axis, label_smoothing)
        if weight is not None:
            weights = scores._class_weights(weight, self._shape, axis, "cross_entropy")
            wanted = wanted * self._wrap(weights)
        return (-(scores * wanted).sum(axis))._reduced(reduction, "cross_entropy")

    def sparse_categorical_crossentropy(
        self,
        target: TensorBase,
        ignore_index: int = -1,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> Self:
        """`cross_entropy` for class indices, with the classes on the last axis.

        >>> from ferrule import Tensor
        >>> Tensor([[100.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).item()
        100.0
        """
        what = "sparse_categorical_crossentropy"
        logs = LogSoftmax(self._float(), self._axis(-1, what))
        _check_smoothing(label_smoothing, what)
        return self._class_loss(logs, target, reduction, label_smoothing, ignore_index, what)

    def nll_loss(
        self,
        target: TensorBase,
        weight: TensorBase | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Self:
        """The negative of the log-probability, with classes on axis 1, of each class index.

        `weight` is one factor for each class; a mean is over the weights.

        >>> from ferrule import Tensor
        >>> Tensor([[-1.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        axis = self._class_axis("nll_loss")
        logs = Given(self._read(), axis)
        return self._class_loss(logs, target, reduction, 0.0, ignore_index, "nll_loss", weight)

    def _class_axis(self, what: str) -> int:
        if not self._shape:
            raise ShapeError(f"[{what}] scores need an axis for the classes")
        return min(1, len(self._shape) - 1)

    @staticmethod
    def _smoothed(probabilities: Neural, axis: int, smoothing: float) -> Neural:
        if not smoothing:
            return probabilities
        classes = known_size(probabilities._shape[axis], "cross_entropy")
        return probabilities * (1 - smoothing) + smoothing / classes

    def _class_loss(
        self,
        logs: LogChances,
        target: TensorBase,
        reduction: str,
        smoothing: float,
        ignore_index: int,
        what: str,
        weight: TensorBase | None = None,
    ) -> Self:
        """The loss of log-probabilities, which have this tensor's shape, for class indices."""
        labels, is_class, counts = self._label_values(target, logs.axis, ignore_index, what)
        losses = self._wrap((0 - logs.chosen(labels)).reshape(target._shape))
        factors = losses.ones_like()
        weights = None
        if weight is not None:
            weights = losses._class_weights(weight, self._shape, logs.axis, what)
            factors = self._wrap(chosen(weights, labels, logs.axis).reshape(target._shape))
            losses = losses * factors
        if smoothing:
            spread = logs.all() if weights is None else logs.all() * weights
            losses = losses * (1 - smoothing) - self._wrap(spread).mean(logs.axis) * smoothing
        losses = counts.where(is_class.where(losses, math.nan), 0)
        if reduction == "mean":
            return losses.sum() / counts.where(factors, 0).sum()
        return losses._reduced(reduction, what)

    def _label_values(
        self, target: TensorBase, axis: int, ignore_index: int, what: str
    ) -> tuple[Value, Self, Self]:
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

    def _class_weights(
        self, weight: TensorBase, shape: tuple[sint, ...], axis: int, what: str
    ) -> Value:
        """One factor for each class, in this tensor's dtype, for each element of a shape."""
        classes = shape[axis]
        if weight._shape != (classes,):
            raise ShapeError(
                f"[{what}] a weight of shape {weight._shape} must be one number for each of the "
                f"{classes} classes"
            )
        along = tuple([classes if place == axis else 1 for place in range(len(shape))])
        return weight._read().cast(self.dtype).reshape(along).expand(shape)

    # -- probabilities ---------------------------------------------------------------------------

    def binary_cross_entropy(
        self,
        target: Operand,
        weight: TensorBase | None = None,
        reduction: str = "mean",
    ) -> Self:
        """-(target * log(self) + (1 - target) * log(1 - self)) for probabilities, times a weight.

        Logarithms are at least -100, and gradients at most 1e12, as PyTorch's.

        >>> from ferrule import Tensor
        >>> Tensor([0.5]).binary_cross_entropy(Tensor([1.0])).item() == Tensor([2.0]).log().item()
        True
        """
        source = self._as_float()
        source._fitting(target, "binary_cross_entropy")
        losses = self._wrap(_surprise(*source._operands(target, "binary_cross_entropy")))
        losses = losses if weight is None else losses * self._wrap(weight._read())
        return losses._reduced(reduction, "binary_cross_entropy")

    def binary_crossentropy(self, target: Operand, reduction: str = "mean") -> Self:
        """The same as `binary_cross_entropy`.

        >>> from ferrule import Tensor
        >>> Tensor([0.5]).binary_crossentropy(Tensor([1.0])).item() == Tensor([2.0]).log().item()
        True
        """
        return self.binary_cross_entropy(target, None, reduction)

    def binary_cross_entropy_with_logits(
        self,
        target: Operand,
        weight: TensorBase | None = None,
        reduction: str = "mean",
        pos_weight: TensorBase | None = None,
    ) -> Self:
        """`binary_cross_entropy` of sigmoid(self), without overflow.

        `pos_weight` multiplies the part of the loss that a target of 1 has.

        >>> from ferrule import Tensor
        >>> Tensor([-1000.0]).binary_cross_entropy_with_logits(Tensor([1.0])).item()
        1000.0
        """
        x = self._as_float()
        x._fitting(target, "binary_cross_entropy_with_logits")
        if pos_weight is None:
            losses = x.softplus() - x * target
        else:
            more = (self._wrap(pos_weight._read())._as_float() - 1) * target + 1
            losses = (x * target).neg() + x + more * (-x).softplus()
        losses = losses if weight is None else losses * self._wrap(weight._read())
        return losses._reduced(reduction, "binary_cross_entropy_with_logits")

    def binary_crossentropy_logits(
        self, target: Operand, reduction: str = "mean", pos_weight: TensorBase | None = None
    ) -> Self:
        """The same as `binary_cross_entropy_with_logits`.

        >>> from ferrule import Tensor
        >>> Tensor([-1000.0]).binary_crossentropy_logits(Tensor([1.0])).item()
        1000.0
        """
        return self.binary_cross_entropy_with_logits(target, None, reduction, pos_weight)

    def kl_div(self, target: TensorBase, reduction: str = "mean", log_target: bool = False) -> Self:
        """target * (log(target) - self): the Kullback-Leibler divergence of log-probabilities.

        With `log_target` the target is a logarithm too. "batchmean" divides the sum by the size of
        axis 0, which is what the divergence is defined as.

        >>> from ferrule import Tensor
        >>> Tensor([[0.0, -1.0]]).kl_div(Tensor([[1.0, 0.0]]), "batchmean").item()
        0.0
        """
        own, wanted = self._fitting(target, "kl_div")
        if log_target:
            losses = wanted.exp() * (wanted - own)
        else:
            losses = wanted.xlogy(wanted) - wanted * own
        if reduction == "batchmean":
            return losses.sum() / (losses._shape[0] if losses._shape else 1)
        return losses._reduced(reduction, "kl_div")

    def poisson_nll_loss(
        self,
        target: Operand,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> Self:
        """exp(self) - target * self: the negative log-likelihood of counts, self being their log.

        Without `log_input` self is the mean itself, and `eps` keeps its logarithm finite. `full`
        adds Stirling's approximation of log(target!) for targets above 1.

        >>> from ferrule import Tensor
        >>> Tensor([0.0]).poisson_nll_loss(Tensor([3.0])).item()
        1.0
        """
        x = self._as_float()
        x._fitting(target, "poisson_nll_loss")
        losses = x.exp() - x * target if log_input else x - (x + eps).log() * target
        if full:
            count = x._wrap(x._operand(target))._as_float()
            large = (count > 1).where(count, 1)
            more = large * large.log() - large + (large * (2 * math.pi)).log() * 0.5
            losses = losses + (count > 1).where(more, 0)
        return losses._reduced(reduction, "poisson_nll_loss")

    def gaussian_nll_loss(
        self,
        target: Operand,
        var: TensorBase | float,
        full: bool = False,
        eps: float = 1e-6,
        reduction: str = "mean",
    ) -> Self:
        """(log(var) + (self - target)**2 / var) / 2: normally distributed targets around self.

        `var` is a number, has this tensor's shape, or lacks the last axis, or has 1 there. It
        counts as `eps` at least, which its gradient does not see. `full` adds log(2 pi) / 2.

        >>> from ferrule import Tensor
        >>> Tensor([1.0]).gaussian_nll_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        difference = self._difference(target, "gaussian_nll_loss")
        spread = self._wrap(self._operand(var))._as_float()
        if spread._shape and spread._shape == self._shape[:-1]:
            spread = spread.unsqueeze(-1)
        spread = (spread < eps).where(spread - spread.detach() + eps, spread)
        losses = (spread.log() + difference.square() / spread) * 0.5
        if full:
            losses = losses + 0.5 * math.log(2 * math.pi)
        return losses._reduced(reduction, "gaussian_nll_loss")

    # -- distances -------------------------------------------------------------------------------

    def mse_loss(
        self, target: Operand, reduction: str = "mean", weight: TensorBase | None = None
    ) -> Self:
        """The squared difference; a mean with a weight is over the weights.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).mse_loss(Tensor([3.0, 2.0])).item()
        2.0
        """
        return (
            self._difference(target, "mse_loss").square()._weighted(weight, reduction, "mse_loss")
        )

    def l1_loss(
        self, target: Operand, reduction: str = "mean", weight: TensorBase | None = None
    ) -> Self:
        """The size of the difference; a mean with a weight is over the weights.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).l1_loss(Tensor([4.0, 2.0])).item()
        1.5
        """
        return self._difference(target, "l1_loss").abs()._weighted(weight, reduction, "l1_loss")

    def smooth_l1_loss(self, target: Operand, reduction: str = "mean", beta: float = 1.0) -> Self:
        """The size of the difference less beta / 2; below beta its square over 2 beta.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).smooth_l1_loss(Tensor([4.0, 1.5]), "none").tolist()
        [2.5, 0.125]
        """
        if beta < 0:
            raise ValueError(f"[smooth_l1_loss] beta is at least 0, not {beta}")
        if beta == 0:
            return self.l1_loss(target, reduction)
        difference = self._difference(target, "smooth_l1_loss")
        size = difference.abs()  # whose slope is 0 at 0: its square would have no curvature there
        losses = (size < beta).where(difference.square() * (0.5 / beta), size - beta / 2)
        return losses._reduced(reduction, "smooth_l1_loss")

    def huber_loss(
        self,
        target: Operand,
        reduction: str = "mean",
        delta: float = 1.0,
        weight: TensorBase | None = None,
    ) -> Self:
        """delta * (size of the difference - delta / 2); up to delta half its square.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).huber_loss(Tensor([4.0, 1.5]), "none", delta=2.0).tolist()
        [4.0, 0.125]
        """
        if delta <= 0:
            raise ValueError(f"[huber_loss] delta is more than 0, not {delta}")
        difference = self._difference(target, "huber_loss")
        size = difference.abs()
        losses = (size > delta).where((size - delta / 2) * delta, difference.square() * 0.5)
        return losses._weighted(weight, reduction, "huber_loss")

    mse = mse_loss
    l1 = l1_loss
    smooth_l1 = smooth_l1_loss
    huber = huber_loss

    def _weighted(self, weight: TensorBase | None, reduction: str, what: str) -> Self:
        if weight is None:
            return self._reduced(reduction, what)
        factors = self._wrap(weight._read())
        losses = self * factors
        if reduction == "mean":
            return losses.sum() / factors.expand(losses._shape).sum()
        return losses._reduced(reduction, what)


def _surprise(chance: Value, target: Value) -> Value:
    """-(target * log(chance) + (1 - target) * log(1 - chance)), of one float dtype and shape."""
    x, y = widened(chance), widened(target)
    own, other = at_least(log(x), -100), at_least(log(1 - x), -100)
    losses = (0 - ((own - other) * y + other)).cast(chance.dtype)
    return record("binary_cross_entropy", _SURPRISE, (chance, target), losses.node, None)


def _reverse_surprise(grad: Value, entry: Entry) -> Gradients:
    x, y = (rowwise.accumulating(part) for part in entry.saved)
    wide = rowwise.accumulating(grad)
    slope = (x - y) / at_least(x * (1 - x), 1e-12)
    odds = at_least(log(1 - x), -100) - at_least(log(x), -100)
    return (wide * slope).cast(grad.dtype), (wide * odds).cast(grad.dtype)


_SURPRISE = Rule(_reverse_surprise, inputs=(0, 1))
