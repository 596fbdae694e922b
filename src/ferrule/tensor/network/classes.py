"""The element of each row that a label chooses, of scores as they are or of their log-softmax.

It is gathered, so that nothing is done for the other classes; in the gradient a comparison with the
classes' numbers puts it back, so that nothing is scattered. A loss over many classes reads its
scores once, and its gradient reads them once and writes once: what it needs of a row is the largest
score and the logarithm of the sum of powers, which the forward pass stores.
"""

from __future__ import annotations

from typing import Protocol, final

from ferrule.autograd import Gradients, GradNode, Rule, TracedValue, is_recording, record
from ferrule.autograd.iota import iota
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazy import LazyBuffer
from ferrule.tensor.broadcast import expanded, part_of
from ferrule.tensor.math.special import widened
from ferrule.tensor.reduce import rowwise


def chosen(x: TracedValue, labels: TracedValue, axis: int) -> TracedValue:
    """The element of each row along an axis that its label says, 0 if it is no class.

    Labels are int32 or int64, with size 1 along the axis, as the result.
    """
    if 0 in x.shape:
        return x.sum((axis,))
    node = x.node.gather(labels.node, axis)
    return record("chosen", _CHOSEN, (x, labels), node, axis)


def _reverse_chosen(grad: TracedValue, entry: GradNode) -> Gradients:
    (labels,) = entry.saved
    shape = entry.shapes[0]
    wide = grad.expand(shape)
    return _is_chosen(labels, entry.arg, wide).where(wide, 0), None


def _is_chosen(labels: TracedValue, axis: int, like: TracedValue) -> TracedValue:
    """Where the class is the label, for each element of a value."""
    shape = like.shape
    numbers = iota(shape[axis], labels.dtype, labels.node.device)
    return labels.expand(shape).equals(expanded(numbers, shape, axis))


class LogChances(Protocol):
    """The logarithms of the classes' probabilities."""

    axis: int
    """The axis of the classes."""

    def chosen(self, labels: TracedValue) -> TracedValue:
        """The weights of the labels, which have size 1 along the axis; 0 for labels of no class."""

    def all(self) -> TracedValue:
        """The weights of all classes."""


@final
class Given:
    """Given logarithms, unchanged."""

    __slots__ = ("_logs", "axis")

    def __init__(self, logs: TracedValue, axis: int) -> None:
        self._logs = logs
        self.axis = axis

    def chosen(self, labels: TracedValue) -> TracedValue:
        """The elements at the labels."""
        return chosen(self._logs, labels, self.axis)

    def all(self) -> TracedValue:
        """All elements."""
        return self._logs


@final
class LogSoftmax:
    """The log-softmax of scores."""

    __slots__ = ("_largest", "_scores", "_total", "axis")

    def __init__(self, scores: TracedValue, axis: int) -> None:
        self._scores = scores
        self.axis = axis
        if 0 not in scores.shape:
            self._largest, self._total = _of_rows(scores, axis)

    def chosen(self, labels: TracedValue) -> TracedValue:
        """The elements at the labels, for which alone they are computed."""
        x = self._scores
        if 0 in x.shape:
            return x.sum((self.axis,))
        picked = TracedValue(widened(x).node.gather(labels.node, self.axis))
        node = (picked - self._largest - self._total).cast(x.dtype).node
        sources = (x, labels, self._largest, self._total)
        return record("log_softmax of labels", _OF_LABELS, sources, node, self.axis)

    def all(self) -> TracedValue:
        """All elements."""
        if 0 in self._scores.shape:
            return self._scores
        return rowwise.log_softmax_from(self._scores, self._largest, self._total, (self.axis,))


def _of_rows(x: TracedValue, axis: int) -> tuple[TracedValue, TracedValue]:
    """The largest score of each row, and the logarithm of the sum of powers relative to it.

    Where a gradient may follow, one kernel stores them side by side. Their sum would not do: scores
    far from zero differ by less than its rounding error.
    """
    largest, total = rowwise.log_of_powers(widened(x), (axis,))
    if x.edge is None or not is_recording():
        return largest, total
    shape = largest.shape
    both = tuple([2 if place == axis else size for place, size in enumerate(shape)])
    is_first = TracedValue(LazyBuffer.const(True, dtypes.bool, shape, x.node.device))
    is_first = is_first.pad([(0, int(place == axis)) for place in range(len(shape))])
    stored = is_first.where(largest.expand(both), total.expand(both)).contiguous()
    return part_of(stored, 0, 1, axis), part_of(stored, 1, 2, axis)


def _reverse_of_labels(grad: TracedValue, entry: GradNode) -> Gradients:
    x, labels, largest, total = entry.saved
    wide, grad = rowwise.accumulating(x), rowwise.accumulating(grad).expand(x.shape)
    shares = rowwise.softmax_from(wide, largest, total, (entry.arg,))
    slope = _is_chosen(labels, entry.arg, x).where(grad, 0) - shares * grad
    return slope.cast(x.dtype), None, None, None


_CHOSEN = Rule(_reverse_chosen, inputs=(1,))
_OF_LABELS = Rule(_reverse_of_labels, inputs=(0, 1, 2, 3))
