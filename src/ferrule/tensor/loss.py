"""Losses: how far predictions are from what they should be."""

from __future__ import annotations

from typing import Self

from ferrule.dtype import DTypeError, dtypes
from ferrule.gradient import Value
from ferrule.shape.view import ShapeError
from ferrule.tensor.arithmetic import Operand
from ferrule.tensor.base import TensorBase
from ferrule.tensor.broadcast import known_size
from ferrule.tensor.neural import Neural


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

    # -- classes ---------------------------------------------------------------------------------

    def cross_entropy(
        self,
        target: TensorBase,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
    ) -> Self:
        """The loss of unnormalised scores, whose classes are on axis 1 (0 for one axis).

        `target` holds class indices, without that axis, or probabilities of the same shape. Indices
        equal to `ignore_index` do not count.

        >>> from ferrule import Tensor
        >>> Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item() == Tensor([2.0]).log().item()
        True
        """
        axis = min(1, len(self._shape) - 1)
        if axis < 0:
            raise ShapeError("[cross_entropy] scores need an axis for the classes")
        scores = self.log_softmax(axis)
        if target._shape == self._shape and dtypes.is_float(target.dtype):
            smooth = self._smoothed(self._wrap(target._read()), axis, label_smoothing)
            return (-(scores * smooth).sum(axis))._reduced(reduction, "cross_entropy")
        return scores._class_loss(
            target, axis, reduction, label_smoothing, ignore_index, "cross_entropy"
        )

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
        return self.log_softmax(-1)._class_loss(
            target,
            len(self._shape) - 1,
            reduction,
            label_smoothing,
            ignore_index,
            "sparse_categorical_crossentropy",
        )

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
        axis = min(1, len(self._shape) - 1)
        return self._class_loss(target, axis, reduction, 0.0, ignore_index, "nll_loss", weight)

    @staticmethod
    def _smoothed(probabilities: Neural, axis: int, smoothing: float) -> Neural:
        if not smoothing:
            return probabilities
        classes = known_size(probabilities._shape[axis], "cross_entropy")
        return probabilities * (1 - smoothing) + smoothing / classes

    def _class_loss(
        self,
        target: TensorBase,
        axis: int,
        reduction: str,
        smoothing: float,
        ignore_index: int,
        what: str,
        weight: TensorBase | None = None,
    ) -> Self:
        """The loss of log-probabilities for class indices."""
        shape = self._shape[:axis] + self._shape[axis + 1 :]
        if target._shape != shape:
            raise ShapeError(
                f"[{what}] class indices of shape {target._shape} do not fit scores of shape "
                f"{self._shape}: without the classes on axis {axis} that is {shape}"
            )
        if dtypes.is_float(target.dtype):
            raise DTypeError(f"[{what}] class indices are integers, not {target.dtype}; cast them")
        classes = known_size(self._shape[axis], what)
        labels = self._wrap(target._read())
        # The classes go from the last axis, where the indices are compared, to their own.
        order = [*range(axis), len(shape), *range(axis, len(shape))]
        chosen = labels._is_class(classes).permute(order)
        factors = Value(chosen.node).cast(self.dtype)
        if weight is not None:
            own = [classes if place == axis else 1 for place in range(len(self._shape))]
            spread = weight._read().cast(self.dtype).reshape(tuple(own)).expand(self._shape)
            factors = factors * spread
        counted = self._wrap(factors.sum((axis,)).reshape(shape))
        used = self._wrap(labels._read().differs(ignore_index))
        counted = used.where(counted, 0)
        losses = self._picked(chosen, factors, axis, smoothing)
        losses = used.where(losses, 0)
        if reduction == "mean":
            return losses.sum() / counted.sum()
        return losses._reduced(reduction, what)

    def _picked(self, chosen: Value, factors: Value, axis: int, smoothing: float) -> Self:
        """The negative of the chosen log-probability, and of the mean of all for a part of it."""
        value = self._read()
        # Not a product with 0: a log-probability may be -inf.
        kept = chosen.where(value * factors if smoothing == 0 else value, 0)
        losses = -self._dropped(kept.sum((axis,)), (axis,), False)
        if not smoothing:
            return losses
        return losses * (1 - smoothing) - self.mean(axis) * smoothing

    # -- probabilities ---------------------------------------------------------------------------

    def binary_crossentropy(self, target: Operand, reduction: str = "mean") -> Self:
        """-(target * log(self) + (1 - target) * log(1 - self)) for probabilities.

        >>> from ferrule import Tensor
        >>> Tensor([0.5]).binary_crossentropy(Tensor([1.0])).item() == Tensor([2.0]).log().item()
        True
        """
        own = self.log().clamp(min=-100)
        other = (1 - self).log().clamp(min=-100)
        losses = -((own - other) * target + other)
        return losses._reduced(reduction, "binary_crossentropy")

    def binary_crossentropy_logits(self, target: Operand, reduction: str = "mean") -> Self:
        """`binary_crossentropy` of sigmoid(self), without overflow.

        >>> from ferrule import Tensor
        >>> Tensor([-1000.0]).binary_crossentropy_logits(Tensor([1.0])).item()
        1000.0
        """
        losses = self.softplus() - self * target
        return losses._reduced(reduction, "binary_crossentropy_logits")

    # -- distances -------------------------------------------------------------------------------

    def mse_loss(self, target: Operand, reduction: str = "mean") -> Self:
        """The squared difference.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).mse_loss(Tensor([3.0, 2.0])).item()
        2.0
        """
        return (self - target).square()._reduced(reduction, "mse_loss")

    def l1_loss(self, target: Operand, reduction: str = "mean") -> Self:
        """The size of the difference.

        >>> from ferrule import Tensor
        >>> Tensor([1.0, 2.0]).l1_loss(Tensor([4.0, 2.0])).item()
        1.5
        """
        return (self - target).abs()._reduced(reduction, "l1_loss")
