"""Connectionist temporal classification: the probability of labels, however they are aligned.

A. Graves and others, "Connectionist temporal classification", 2006, section 4.1: over the labels
with blanks before, between and after them, a path stays, moves on by one, or skips a blank between
two different labels. Forward sums are logarithms; states that cannot be reached have
`_UNREACHED_SCORE`, a number rather than an infinity, so that no gradient is NaN.

Each step in time is one kernel, the same for all, which is compiled once: it reads its own piece of
the scores. The pieces are halves of halves, because the place of a piece is part of its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ferrule.autograd import TracedValue
from ferrule.autograd.iota import iota
from ferrule.ir.dtype import dtypes
from ferrule.ir.lazyop import BinaryOps
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor.base import Tensor
from ferrule.tensor.broadcast import expanded, known_size, part_of
from ferrule.tensor.data import from_host
from ferrule.tensor.index.positions import index_value
from ferrule.tensor.keywords import method
from ferrule.tensor.math.elementwise import less_or_equal
from ferrule.tensor.network.loss import reduced
from ferrule.tensor.reduce import rowwise

_UNREACHED_SCORE = -1e30


@method
def ctc_loss(
    self: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int] | int | Tensor,
    target_lengths: Sequence[int] | int | Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The negative log-probability of label sequences, over all their alignments in time.

    This tensor holds log-probabilities (time, batch, classes), `targets` labels other than
    `blank`: (batch, labels) with anything behind their lengths, or all of them one after the
    other. Without a batch these are (time, classes) and (labels,), and the lengths numbers.
    "mean" divides by the target lengths first. Targets too long for their input have an
    infinite loss, or 0 with `zero_infinity`; no gradient comes from them. Gradients are those
    of the log-probabilities themselves.

    Raises `ShapeError` if the shapes do not fit.

    >>> from ferrule import Tensor
    >>> chances = Tensor([[0.25, 0.75], [0.5, 0.5]])
    >>> loss = chances.log().ctc_loss(Tensor([1]), 2, 1)
    >>> round(loss.exp().item(), 4)  # one over 1 - 0.25 * 0.5
    1.1429
    """
    scores = self if len(self._shape) == 3 else self.unsqueeze(1)
    if len(self._shape) not in (2, 3) or not dtypes.is_float(self.dtype):
        raise ShapeError(
            f"[ctc_loss] log-probabilities are floats (time, batch, classes), or without the "
            f"batch, not {self.dtype} of shape {self._shape}"
        )
    time, batch, classes = (known_size(n, "ctc_loss") for n in scores._shape)
    if not 0 <= blank < classes or time == 0:
        raise ShapeError(
            f"[ctc_loss] shape {self._shape} needs a step in time, and the blank, {blank}, "
            f"among its {classes} classes"
        )
    inputs, lengths = (_lengths(self, x, batch) for x in (input_lengths, target_lengths))
    labels = _labels(self, targets, lengths, target_lengths, batch)
    value = rowwise.accumulating(scores._read())
    losses = -_log_probability(value, labels, inputs, lengths, blank)
    infinite = losses > -_UNREACHED_SCORE / 2
    losses = infinite.where(losses.full(0.0 if zero_infinity else math.inf), losses)
    result = self._wrap(losses.cast(self.dtype))
    if reduction == "mean":
        result = result / self._wrap(lengths.cast(self.dtype)).maximum(1)
    result = result if len(self._shape) == 3 else result.reshape(())
    return reduced(result, reduction, "ctc_loss")


def _lengths(self: Tensor, given: Sequence[int] | int | Tensor, batch: int) -> TracedValue:
    """One length for each sequence of the batch."""
    if not isinstance(given, Tensor):
        numbers = [given] * batch if isinstance(given, int) else list(given)
        value = from_host(numbers, dtypes.int32, self.device)
    else:
        value = given._read().cast(dtypes.int32)
    if math.prod(known_size(n, "ctc_loss") for n in value.shape) != batch:
        raise ShapeError(
            f"[ctc_loss] {value.shape} lengths for a batch of {batch}; give one for each"
        )
    return value.reshape((batch,))


def _labels(
    self: Tensor,
    targets: Tensor,
    lengths: TracedValue,
    given: Sequence[int] | int | Tensor,
    batch: int,
) -> TracedValue:
    """The labels as (batch, labels), from either form."""
    value = index_value(targets._read())
    if len(value.shape) == 2 and value.shape[0] == batch:
        return value
    if len(value.shape) != 1:
        raise ShapeError(
            f"[ctc_loss] targets of shape {value.shape} are neither ({batch}, labels) nor all "
            "labels one after the other"
        )
    total = known_size(value.shape[0], "ctc_loss")
    if len(self._shape) == 2 or total == 0:
        return value.reshape((1, total)).expand((batch, total))
    longest = total if isinstance(given, Tensor | int) else max(given, default=0)
    before = self._wrap(lengths).cumsum(0, lengths.dtype)._read() - lengths
    shape = (batch, longest)
    index = expanded(before, shape, 0) + expanded(iota(longest, dtypes.int32, self.device), shape)
    return value.gather(index.reshape((batch * longest,)), 0).reshape(shape)


def _log_probability(
    scores: TracedValue, labels: TracedValue, inputs: TracedValue, lengths: TracedValue, blank: int
) -> TracedValue:
    """The log-probability of each sequence: (batch,) from scores (time, batch, classes)."""
    time, batch, _ = scores.shape
    count = known_size(labels.shape[1], "ctc_loss")
    states = 2 * count + 1
    device = scores.node.device
    wanted, skips = _states(labels, blank)
    index = expanded(wanted, (time, batch, states))
    step = expanded(iota(time, dtypes.int32, device), index.shape, 0)
    is_over = less_or_equal(expanded(inputs, index.shape, 1), step)
    emitted = scores.gather(index, 2)
    emitted = (emitted > _UNREACHED_SCORE).where(emitted, _UNREACHED_SCORE)
    # No logarithm of a probability is infinitely large: that marks steps after the end.
    emitted = is_over.where(emitted.full(math.inf), emitted).contiguous()
    state = expanded(iota(states, dtypes.int32, device), (batch, states))
    sums = state.equals(0).where(scores.full(0.0, state.shape), _UNREACHED_SCORE).contiguous()
    for piece in _steps(emitted):
        sums = _moved(sums, piece, skips).contiguous()
    last = expanded(lengths * 2, state.shape, 0)
    ends = state.equals(last).alu(BinaryOps.OR, state.equals(last - 1))
    return rowwise.logsumexp(ends.where(sums, _UNREACHED_SCORE), (1,)).reshape((batch,))


def _states(labels: TracedValue, blank: int) -> tuple[TracedValue, TracedValue]:
    """Labels with blanks around them, and the states that the one before the last may skip to."""
    batch, count = labels.shape
    assert isinstance(count, int)
    pairs = labels.reshape((batch, count, 1)).pad(((0, 0), (0, 0), (1, 0)))
    is_label = labels.full(True).cast(dtypes.bool).reshape((batch, count, 1))
    is_label = is_label.pad(((0, 0), (0, 0), (1, 0))).reshape((batch, 2 * count))
    is_label = is_label.pad(((0, 0), (0, 1)))
    wanted = pairs.reshape((batch, 2 * count)).pad(((0, 0), (0, 1)))
    wanted = is_label.where(wanted, blank)
    states = 2 * count + 1
    before = part_of(wanted.pad(((0, 0), (2, 0))), 0, states)
    skips = is_label.alu(BinaryOps.AND, wanted.differs(before))
    # The first label has none before it.
    second = iota(states, dtypes.int32, labels.node.device) > 1
    return wanted, skips.alu(BinaryOps.AND, expanded(second, skips.shape)).contiguous()


def _steps(value: TracedValue) -> list[TracedValue]:
    """The elements of axis 0 one by one, each in memory of its own."""
    length = value.shape[0]
    assert isinstance(length, int)
    if length == 1:
        return [value.reshape(value.shape[1:])]
    half = length // 2
    parts = (part_of(value, 0, half, 0), part_of(value, half, length, 0))
    return [step for part in parts for step in _steps(part.contiguous())]


def _moved(sums: TracedValue, emitted: TracedValue, skips: TracedValue) -> TracedValue:
    """The forward sums after one more step; a sequence ends where its emission is infinite."""
    batch, states = sums.shape
    wide = (batch, states, 3)  # from two states before, from one, from the state itself
    inside = sums.full(1).cast(dtypes.bool).pad(((0, 0), (2, 0)))
    sources = inside.where(sums.pad(((0, 0), (2, 0))), _UNREACHED_SCORE).window(1, 3)
    is_skip = expanded(iota(3, dtypes.int32, sums.node.device).equals(0), wide)
    open_ = is_skip.where(expanded(skips, wide, 0), is_skip.full(True))
    total = rowwise.logsumexp(open_.where(sources, _UNREACHED_SCORE), (2,)).reshape((batch, states))
    return emitted.equals(math.inf).where(sums, total + emitted)
